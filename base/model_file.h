/* Names of model files. */
#ifndef LLMC_BASE_MODEL_FILE_H
#define LLMC_BASE_MODEL_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Parse NAME-00001-of-00003 and a suffix of this length. Return the length of NAME. Without part
 * numbers (then 1 of 1) it is the length without the suffix. */
size_t model_file_part(const char *path, size_t suffix, int *no, int *count);
/* Is a file a GGUF of a model, by its name? False for projectors and importance matrices. */
bool model_file_is_gguf(const char *path);

/* Is a file the vision tower of a GGUF model, by its name (mmproj-F16.gguf)? */
bool model_file_is_mmproj(const char *path);
/* Compare two vision towers for a model; < 0: a comes first. First comes the tower whose name
 * shares more with the model's name, then F16, BF16, F32 and other types, then the name. Arguments
 * are names without folders.
 */
int model_file_mmproj_order(const char *model, const char *a, const char *b);
/* Does the name of a tower, without its type, begin that of the model? mmproj-M-F16.gguf and
 * M.mmproj-F16.gguf belong to M-Q4_K_M.gguf. Arguments are names without folders. */
bool model_file_mmproj_named(const char *model, const char *name);
/* Does the name of a tower have its type only, and no model name (mmproj-F16.gguf)? */
bool model_file_mmproj_nameless(const char *name);
/* Do two names of GGUF files differ in the quantisation or the part only? Arguments are names
 * without folders. */
bool model_file_same_model(const char *a, const char *b);

#endif
