/* Names of model files. */
#ifndef LLMC_BASE_MODEL_FILE_H
#define LLMC_BASE_MODEL_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Parse NAME-00001-of-00003 and a suffix of this length. Return the length of NAME, or that without
 * the suffix if there are no part numbers (1 of 1). */
size_t model_file_part(const char *path, size_t suffix, int *no, int *count);
/* Is it a GGUF of a model, by its name? Projectors and importance matrices are none. */
bool model_file_is_gguf(const char *path);

#endif
