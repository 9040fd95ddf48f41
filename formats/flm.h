/* FastLLM's .flm: a model in one file, version 0 (May 2023), 1 (a table of keys) and 2 (model_type
 * among them, as it is still written). The file is mapped and untrusted; it has no magic number, so
 * its name says what it is. Tensors have the names of Hugging Face's checkpoints. */
#ifndef LLMC_FORMATS_FLM_H
#define LLMC_FORMATS_FLM_H

#include "formats/scheme.h"

typedef struct FlmPair {
	const char *key, *value;
} FlmPair; /* values are Python's str() of what the model's configuration has */

typedef struct FlmPiece {
	const char *text; /* NUL-terminated; a byte may be 0: length */
	size_t n;
	int32_t id;
	float score; /* 0 where the file has none */
} FlmPiece;

typedef struct FlmTensor {
	const char *name;
	Dtype dtype;
	int n_dims;
	int64_t dim[8];   /* row-major */
	const void *data; /* in the file; NULL: rows are made */
	int64_t bytes;
	const SchemeMatrix *made;
} FlmTensor;

typedef struct Flm {
	int version;
	size_t n_pair, n_piece, n_special, n_tensor;
	FlmPair *pair;
	FlmPiece *piece;
	char **special; /* texts that are looked for before a text is cut into pieces */
	FlmTensor *tensor;
} Flm;

bool flm_name(const char *path); /* does it end in .flm? */
/* All of it, in the arena, values of tensors in `data`. E_INPUT: a sentence that names the file. */
llmc_status flm_read(Arena *a, const uint8_t *data, size_t size, const char *file, Flm *out,
                     llmc_error *err);
const char *flm_get(const Flm *f, const char *key); /* NULL: none */

#endif
