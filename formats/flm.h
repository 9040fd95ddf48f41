/* FastLLM's .flm: a model in one file, version 0 (May 2023), 1 (adds a table of keys) and 2 (adds
 * model_type; still current). The file is mapped and untrusted. It has no magic number, so it is
 * recognised by its extension. Tensors have the names of Hugging Face checkpoints. */
#ifndef LLMC_FORMATS_FLM_H
#define LLMC_FORMATS_FLM_H

#include "formats/quant_format.h"

typedef struct FlmPair {
	const char *key, *value;
} FlmPair; /* values are Python's str() of the model's configuration entries */

typedef struct FlmPiece {
	const char *text; /* NUL-terminated; may also contain NUL bytes: see n */
	size_t n;
	int32_t id;
	float score; /* 0 if the file has none */
} FlmPiece;

typedef struct FlmTensor {
	const char *name;
	Dtype dtype;
	int n_dims;
	int64_t dim[8];   /* row-major */
	const void *data; /* in the file; NULL: rows are computed by `made` */
	int64_t bytes;
	const QuantFormatMatrix *made;
} FlmTensor;

typedef struct Flm {
	int version;
	size_t n_pair, n_piece, n_special, n_tensor;
	FlmPair *pair;
	FlmPiece *piece;
	char **special; /* special tokens, matched before the input is tokenized */
	FlmTensor *tensor;
} Flm;

bool flm_name(const char *path); /* Returns whether path ends in .flm */
/* Reads the whole file into the arena; tensor values stay in `data`. E_INPUT: the message names the
 * file. */
llmc_status flm_read(Arena *a, const uint8_t *data, size_t size, const char *file, Flm *out,
                     llmc_error *err);
const char *flm_get(const Flm *f, const char *key); /* NULL: none */

#endif
