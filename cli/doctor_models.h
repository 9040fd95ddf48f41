/* llmc doctor: the descriptions of configs/ that fit this machine's memory. */
#ifndef LLMC_CLI_DOCTOR_MODELS_H
#define LLMC_CLI_DOCTOR_MODELS_H

#include <jansson.h>

/* Return an array with one object per description: "name", "params", and two objects "stored" and
 * "q4_k". Each has the bytes of the weights, and the number of positions of one sequence that fit
 * with them now (0: the model does not fit). An object is absent if the description cannot have
 * that form. NULL: out of memory, or there is no folder for temporary files. */
json_t *doctor_models(void);
void doctor_models_print(const json_t *models);

#endif
