/* A Hugging Face folder of 16-bit weights as a GGUF of the same values, with the names, keys and
 * order of rows that llama.cpp's converter gives it (compiler/import/export.h), and the folder's
 * tokenizer. */
#ifndef LLMC_QUANT_WRITE_GGUF_H
#define LLMC_QUANT_WRITE_GGUF_H

#include "base/error.h"
#include "base/log.h"
#include "formats/dtype.h"

typedef struct ConvertJob {
	const char *folder, *out; /* out appears when it is complete */
	Dtype type; /* of matrices; DT_NONE: as the folder has them. Vectors, norms and routers are
	               f32 */
	bool (*progress)(void *user, const char *doing, int64_t done,
	                 int64_t of); /* false stops it */
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* found */
	int n_tensor;
	int64_t in_bytes, out_bytes, weights, weight_bytes; /* the last two: of matrices */
} ConvertJob;

/* E_INPUT: the family has no name there, its form is not written, a tensor is quantised */
llmc_status convert_gguf(ConvertJob *job, llmc_error *err);

#endif
