/* Rounding with error compensation (GPTQ, in the form of LDLQ) onto the grids of block formats.
 *
 * With H = X'X of a layer's inputs, a row w is to become v of the format's values with (v - w) H (v
 * - w)' small. H = R R', R upper; then columns are rounded in order, each after what the errors of
 * those before ask of it:  v_j = round(w_j + sum over i < j of (w_i - v_i) R_ij / R_jj), and the
 * loss is the sum of R_jj^2 times the square of each rounding. Scales of a block are chosen when
 * its first column is reached, for what is then to be rounded. */
#ifndef LLMC_QUANT_GPTQ_H
#define LLMC_QUANT_GPTQ_H

#include "formats/dtype.h"
#include "runtime/threads/threads.h"

/* h [n][n], its lower triangle filled: the diagonal grows by a share of itself, and the upper
 * triangle is filled, too. A share of each column's own entry, not of their mean: the less inputs
 * say, the nearer rounding comes to that by importance. Columns without inputs get their own unit.
 */
void gptq_damp(float *h, int64_t n, double damp);
/* h becomes R_jj on the diagonal and R_ij / R_jj above it. */
void gptq_factor(float *h, int64_t n, Threads *threads);

typedef struct GptqRows {
	Dtype from, to;
	const void *src; /* [rows][cols] of type from */
	void *dst;       /* of type to */
	int64_t rows, cols;
	const float *h;    /* [cols][cols] of gptq_factor */
	const float *full; /* [cols][cols] H itself, both triangles; NULL: rounded once */
	int passes; /* over the rounded rows, column after column: codes and scales that lower the
	               loss */
} GptqRows;
/* false: memory is out */
bool gptq_rows(const GptqRows *job, Threads *threads);

#endif
