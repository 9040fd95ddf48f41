/* A type for each matrix under a budget of bits, by the error that each type makes in it: no table says which matrix is worth more.
 *
 * The error of a matrix is that of its outputs, E |(v - w) x|^2 / E |w x|^2, with the squares of x's columns from an importance matrix and columns taken
 * as uncorrelated, measured on rows spread over the matrix. Chosen is the least sum over all matrices that the budget allows, nearly: the
 * hull of error over bytes is walked by error saved a byte, then what room is left is used. */
#ifndef LLMC_QUANT_BUDGET_H
#define LLMC_QUANT_BUDGET_H

#include "base/error.h"
#include "formats/dtype.h"
#include "runtime/threads/threads.h"

typedef struct BudgetMatrix {
	Dtype        from;
	const void  *src;        /* [rows][cols] of type from */
	int64_t      rows, cols;
	const float *importance; /* [n_mat][cols] mean squares of the inputs; NULL: all the same */
	int64_t      n_mat;      /* matrices stacked in rows, an importance each; 1 */
	Dtype        only;       /* this type and no other; DT_NONE: any */
	/* found */
	Dtype        to;
	double       error;      /* share of the energy of its outputs */
} BudgetMatrix;

/* Bits a weight, over all matrices, are at most `bits`. The same choice for any number of threads.
 * E_INPUT: no choice is that small, and the sentence says what the least is. E_MEMORY. */
llmc_status budget_choose(BudgetMatrix *m, int n, double bits, Threads *threads, llmc_error *err);
/* Types that a matrix of so many columns may get; ends with DT_NONE */
const Dtype *budget_types(int64_t cols);

#endif
