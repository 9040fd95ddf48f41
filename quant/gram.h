/* Adds X'X of rows of floats to a lower triangle: the Hessian of a layer. The sum is computed in
 * fp32, or with AMX from rows rounded to bf16 (relative error at most 2^-9). AMX is four times as
 * fast. Its result is exactly X'X of the rounded rows, so no eigenvalue becomes negative. */
#ifndef LLMC_QUANT_GRAM_H
#define LLMC_QUANT_GRAM_H

#include "runtime/threads/threads.h"

typedef struct Gram {
	bool tiles; /* set by gram_open; set it to false for fp32 */
	int n_part;
	size_t cap; /* bytes allocated */
	void *work;
} Gram;

void gram_open(Gram *g, const Threads *threads);
void gram_release(Gram *g);
/* Allocates memory for this many rows and columns. false: out of memory */
bool gram_room(Gram *g, int64_t rows, int64_t n);
/* h [n][n] += x' x, x [rows][n]; values above the diagonal are unspecified afterwards. All parts of
 * threads_run call it with the same input. The result does not depend on their number. */
void gram_add(const Gram *g, Threads *threads, int part, const float *x, int64_t rows, int64_t n,
              float *h);

#endif
