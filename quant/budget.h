/* A type for each matrix under a budget of bits, by the error that each type makes in it and by
 * what errors in it cost: no table says which matrix is worth more.
 *
 * The error of a matrix is the share of the energy of its outputs that is lost, E |(v - w) x|^2 / E
 * |w x|^2, with x of length 1 and its columns taken as uncorrelated, measured on rows spread over
 * the matrix. What is made small is the sum of cost times error: the hull of that over bytes is
 * walked by what a byte saves, then what room is left is used. */
#ifndef LLMC_QUANT_BUDGET_H
#define LLMC_QUANT_BUDGET_H

#include "base/error.h"
#include "formats/dtype.h"
#include "runtime/threads/threads.h"

enum { BUDGET_TYPES = 8 };

typedef struct BudgetChoice {
	Dtype type;
	int64_t bytes;
	double error;
} BudgetChoice;

typedef struct BudgetMatrix {
	Dtype from;
	const void *src; /* [rows][cols] of type from */
	int64_t rows, cols;
	const float *importance; /* [n_mat][cols] that rounding goes by; NULL: all the same */
	int64_t n_mat;           /* matrices stacked in rows, an importance each; 1 */
	const double
	    *share; /* [cols] mean square of a column of an input of length 1; NULL: all the same */
	Dtype only; /* this type and no other; DT_NONE: any */
	double cost; /* of an error of 1 */
	/* by budget_measure */
	double energy;    /* mean over outputs of E (w x)^2, x of length 1 */
	int n_choice, at; /* at: by budget_choose */
	BudgetChoice choice[BUDGET_TYPES];
} BudgetMatrix;

/* Types that a matrix of so many columns may get; ends with DT_NONE */
const Dtype *budget_types(int64_t cols);
/* Errors and energy, the same for any number of threads. E_MEMORY */
llmc_status budget_measure(BudgetMatrix *m, int n, Threads *threads, llmc_error *err);
/* Bits a weight, over all matrices, are at most `bits`. E_INPUT: no choice is that small, and the
 * sentence says what the least is. E_MEMORY */
llmc_status budget_choose(BudgetMatrix *m, int n, double bits, llmc_error *err);

#endif
