/* Converts a Hugging Face folder of 16-bit weights to a GGUF with the same values. Names, keys and
 * row order are those of llama.cpp's converter (compiler/import/export.h). The folder's tokenizer
 * is included. */
#ifndef LLMC_QUANT_WRITE_GGUF_H
#define LLMC_QUANT_WRITE_GGUF_H

#include "base/error.h"
#include "base/log.h"
#include "formats/dtype.h"

typedef struct ConvertJob {
	const char *folder, *out; /* out appears only when it is complete */
	/* type of matrices; DT_NONE: the folder's. Vectors, norms and routers are f32 */
	Dtype type;
	bool (*progress)(void *user, const char *doing, int64_t done,
	                 int64_t of); /* return false to stop */
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* results */
	int n_tensor;
	int64_t in_bytes, out_bytes, weights, weight_bytes; /* the last two: of matrices */
} ConvertJob;

/* E_INPUT: GGUF has no architecture for the family, its layout is not supported, or a tensor is
 * quantised */
llmc_status convert_gguf(ConvertJob *job, llmc_error *err);

#endif
