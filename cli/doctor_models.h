/* llmc doctor: the descriptions of configs/ that fit this machine's memory. */
#ifndef LLMC_CLI_DOCTOR_MODELS_H
#define LLMC_CLI_DOCTOR_MODELS_H

#include <jansson.h>

/* Return an array with one object per description: name, params, and under "stored" and "q4_k" the
 * bytes of the weights and the positions of one sequence that fit with them now (0: the model does
 * not fit). A form that the description cannot have is absent. NULL: out of memory, or no folder
 * for temporary files. */
json_t *doctor_models(void);
void doctor_models_print(const json_t *models);

#endif
