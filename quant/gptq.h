/* Rounding with error compensation (GPTQ, in the form of LDLQ) onto the grids of block formats.
 *
 * With H = X'X of a layer's inputs, a row w is to become v of the format's values with (v - w) H (v - w)' small. H = R R', R upper; then columns are
 * rounded in order, each after what the errors of those before ask of it:  v_j = round(w_j + sum over i < j of (w_i - v_i) R_ij / R_jj), and the loss is the
 * sum of R_jj^2 times the square of each rounding. Scales of a block are chosen when its first column is reached, for what is then to be rounded. */
#ifndef LLMC_QUANT_GPTQ_H
#define LLMC_QUANT_GPTQ_H

#include "formats/dtype.h"
#include "runtime/threads/threads.h"

/* h [n][n], its lower triangle filled: becomes R_jj on the diagonal and R_ij / R_jj above it. damp: share of the mean of the diagonal that is added to it.
 * Columns without inputs get their own unit. */
void gptq_factor(float *h, int64_t n, double damp, Threads *threads);

typedef struct GptqRows {
	Dtype        from, to;
	const void  *src;      /* [rows][cols] of type from */
	void        *dst;      /* of type to */
	int64_t      rows, cols;
	const float *h;        /* [cols][cols] of gptq_factor */
} GptqRows;
/* false: memory is out */
bool gptq_rows(const GptqRows *job, Threads *threads);

#endif
