/* Rounding with error compensation (GPTQ in its LDLQ form) onto the grids of block formats.
 *
 * With H = X'X of a layer's inputs, a row w is rounded to v on the grid so that (v - w) H (v - w)'
 * is small. H = R R' with R upper triangular. Columns are rounded in order, each after a correction
 * for the errors of the previous columns: v_j = round(w_j + sum over i < j of (w_i - v_i) R_ij /
 * R_jj). The loss is the sum of R_jj^2 times the squared rounding errors. The scales of a block are
 * chosen when its first column is reached, for the corrected values. */
#ifndef LLMC_QUANT_GPTQ_H
#define LLMC_QUANT_GPTQ_H

#include "formats/dtype.h"
#include "runtime/threads/threads.h"

/* Adds to each diagonal entry of h [n][n] a share of that entry, and fills the upper triangle from
 * the lower one. Each entry gets a share of itself, not of the mean, so that with little data
 * rounding approaches importance-weighted rounding. Columns without inputs get the mean. */
void gptq_damp(float *h, int64_t n, double damp);
/* h becomes R_jj on the diagonal and R_ij / R_jj above it. */
void gptq_factor(float *h, int64_t n, Threads *threads);

typedef struct GptqRows {
	Dtype from, to;
	const void *src; /* [rows][cols] of type `from` */
	void *dst;       /* blocks of type `to` */
	int64_t rows, cols;
	const float *h;    /* [cols][cols] result of gptq_factor */
	const float *full; /* [cols][cols] H itself, both triangles; NULL: no further passes */
	/* number of further passes over the rounded rows, which lower the loss by new codes and
	 * scales */
	int passes;
} GptqRows;
/* Rounds all rows. false: out of memory */
bool gptq_rows(const GptqRows *job, Threads *threads);

#endif
