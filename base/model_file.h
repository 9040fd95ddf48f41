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

/* Is it the vision tower of a GGUF model, by its name (mmproj-F16.gguf)? */
bool model_file_is_mmproj(const char *path);
/* Order of two such files for a model: the one whose name shares more with the model's, then F16,
 * BF16, F32 and other types, then by name. < 0: a comes first. Arguments are names without folders.
 */
int model_file_mmproj_order(const char *model, const char *a, const char *b);
/* Does the name of a tower, without its type, begin that of the model? mmproj-M-F16.gguf and
 * M.mmproj-F16.gguf are of M-Q4_K_M.gguf. Names without folders. */
bool model_file_mmproj_named(const char *model, const char *name);
/* Is the name of a tower that of its type alone (mmproj-F16.gguf)? */
bool model_file_mmproj_nameless(const char *name);
/* Do two names of GGUF files differ in the quantisation or the part only? Without folders. */
bool model_file_same_model(const char *a, const char *b);

#endif
