/* Selects a type per matrix under a budget of bits, from the error of each type and the cost of
 * errors in that matrix. No fixed table ranks the matrices.
 *
 * The error of a matrix is the relative energy lost in its outputs, E |(v - w) x|^2 / E |w x|^2,
 * with |x| = 1 and uncorrelated columns, measured on sampled rows. The selection minimises the sum
 * of cost times error. It follows the convex hull of error over bytes, then uses the remaining
 * bytes. */
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
	const void *src; /* [rows][cols] of type `from` */
	int64_t rows, cols;
	const float *importance; /* [n_mat][cols] importance for rounding; NULL: uniform */
	int64_t n_mat; /* matrices stacked in rows, one importance vector each; usually 1 */
	/* [cols] mean square of each input column, inputs normalised to length 1; NULL:
	 * uniform */
	const double *share;
	Dtype only;  /* the only allowed type; DT_NONE: any */
	double cost; /* cost of a relative error of 1 */
	/* set by budget_measure */
	double energy;    /* mean over outputs of E (w x)^2, |x| = 1 */
	int n_choice, at; /* at: set by budget_choose */
	BudgetChoice choice[BUDGET_TYPES];
} BudgetMatrix;

/* Types that a matrix with this many columns may get; ends with DT_NONE */
const Dtype *budget_types(int64_t cols);
/* Measures errors and energy; the results do not depend on the number of threads. E_MEMORY */
llmc_status budget_measure(BudgetMatrix *m, int n, Threads *threads, llmc_error *err);
/* Chooses types so that bits per weight over all matrices are at most `bits`. E_INPUT: impossible;
 * the message has the smallest possible value. E_MEMORY */
llmc_status budget_choose(BudgetMatrix *m, int n, double bits, llmc_error *err);

#endif
