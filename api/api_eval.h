/* Splits a corpus into windows of tokens, for evaluation and for calibration. */
#ifndef LLMC_API_API_EVAL_H
#define LLMC_API_API_EVAL_H

#include "api/api.h"

typedef struct Windows {
	int32_t *tok; /* [n][width], malloc'ed */
	int32_t n, width;
} Windows;

/* Tokenize a corpus into windows; text NULL: the built-in corpus `name` (configs/texts/<name>.txt).
 * Each window begins with the tokens that the tokenizer adds, such as BOS. most: maximum number of
 * windows; 0: all full windows. Free w->tok. */
llmc_status text_windows(const llmc_model *m, const char *text, size_t n_bytes, const char *name,
                         int32_t width, int32_t most, Windows *w, llmc_error *err);

#endif
