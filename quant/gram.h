/* X'X of rows of floats, added to a lower triangle: what Hessians of layers are. In fp32, or where
 * the processor has tile registers, of the rows rounded to bf16 (2^-9 an element, to the nearest):
 * four times as fast, and exactly the product of what was rounded, so no eigenvalue becomes
 * negative. */
#ifndef LLMC_QUANT_GRAM_H
#define LLMC_QUANT_GRAM_H

#include "runtime/threads/threads.h"

typedef struct Gram {
	bool tiles; /* filled in by gram_open; false asks for fp32 */
	int n_part;
	size_t cap; /* bytes at room */
	void *room;
} Gram;

void gram_open(Gram *g, const Threads *threads);
void gram_release(Gram *g);
/* Memory for so many rows and columns. false: there is none */
bool gram_room(Gram *g, int64_t rows, int64_t n);
/* h [n][n] += x' x, x [rows][n]; what lies above the diagonal is anything afterwards. Called by all
 * parts of threads_run, for the same input; the same bits for any number of them. */
void gram_add(const Gram *g, Threads *threads, int part, const float *x, int64_t rows, int64_t n,
              float *h);

#endif
