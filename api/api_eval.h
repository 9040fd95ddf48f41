/* Texts as windows of tokens: what eval measures on and what quantising is calibrated with. */
#ifndef LLMC_API_API_EVAL_H
#define LLMC_API_API_EVAL_H

#include "api/api.h"

typedef struct Windows {
	int32_t *tok; /* [n][width], malloc'ed */
	int32_t n, width;
} Windows;

/* text NULL: the built-in one of that name (configs/texts/<name>.txt). Each window begins with what
 * the tokenizer puts before a text, bos say. At most `most` windows (0: all whole ones). Free
 * w->tok. */
llmc_status text_windows(const llmc_model *m, const char *text, size_t n_bytes, const char *name,
                         int32_t width, int32_t most, Windows *w, llmc_error *err);

#endif
