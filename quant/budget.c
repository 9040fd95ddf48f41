#include "quant/budget.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/block_quantize.h"

enum {
	SAMPLE = 1 << 16 /* weights measured per matrix, at least LEAST_ROWS rows */,
	LEAST_ROWS = 16
};

const Dtype *
budget_types(int64_t cols)
{
	static const Dtype super[] = { DT_Q2_K, DT_Q3_K, DT_IQ4_XS, DT_Q4_K,
		                       DT_Q5_K, DT_Q6_K, DT_Q8_0,   DT_NONE };
	static const Dtype small[] = { DT_IQ4_NL, DT_Q5_0, DT_Q5_1, DT_Q8_0, DT_NONE };
	static const Dtype none[] = { DT_NONE };

	return cols % 256 == 0 ? super : cols % 32 == 0 ? small : none;
}

typedef struct BudgetState {
	BudgetMatrix *m;
	int n;
	atomic_int next; /* index over all (matrix, type) pairs */
	atomic_bool failed;
} BudgetState;

/* ---- error per type ---- */

static double
error_of(const BudgetMatrix *m, Dtype to, float *x, float *y, void *blocks, double *energy)
{
	const int64_t want = SAMPLE / m->cols > LEAST_ROWS ? SAMPLE / m->cols : LEAST_ROWS,
	              n = want < m->rows ? want : m->rows;
	const int64_t from_bytes = dtype_row_bytes(m->from, m->cols), per_mat = m->rows / m->n_mat;
	double lost = 0, all = 0;

	for (int64_t i = 0; i < n; i++) {
		const int64_t r = m->rows * i / n;
		const float *importance =
		    m->importance ? m->importance + r / per_mat * m->cols : NULL;
		dequant_row(m->from, (const char *)m->src + r * from_bytes, x, m->cols);
		quantize_row(to, x, importance, blocks, m->cols);
		dequant_row(to, blocks, y, m->cols);
		for (int64_t j = 0; j < m->cols; j++) {
			double w = m->share ? m->share[j] : 1 / (double)m->cols,
			       e = (double)y[j] - (double)x[j];
			lost += w * e * e;
			all += w * (double)x[j] * (double)x[j];
		}
	}
	*energy = n ? all / (double)n : 0;
	return all > 0 && isfinite(lost / all) ? lost / all : 0;
}

static void
measure(void *user, int part, int n_parts)
{
	BudgetState *b = user;
	int64_t cols = 0;

	(void)part, (void)n_parts;
	for (int i = 0; i < b->n; i++)
		cols = b->m[i].cols > cols ? b->m[i].cols : cols;
	float *x = malloc((size_t)cols * 4 * sizeof *x);
	if (!x) {
		atomic_store(&b->failed, true);
		return;
	}
	for (int k; (k = atomic_fetch_add(&b->next, 1)) < b->n * BUDGET_TYPES;) {
		BudgetMatrix *m = &b->m[k / BUDGET_TYPES];
		BudgetChoice *choice = &m->choice[k % BUDGET_TYPES];
		double energy;
		if (k % BUDGET_TYPES >= m->n_choice)
			continue;
		choice->error = error_of(m, choice->type, x, x + cols, x + 2 * cols, &energy);
		if (k % BUDGET_TYPES == 0)
			m->energy = energy;
	}
	free(x);
}

/* ---- selection ---- */

static int64_t
bytes_of(const BudgetState *b)
{
	int64_t sum = 0;

	for (int i = 0; i < b->n; i++)
		sum += b->m[i].choice[b->m[i].at].bytes;
	return sum;
}

static double
sum_of(const BudgetState *b)
{
	double sum = 0;

	for (int i = 0; i < b->n; i++)
		sum += b->m[i].cost * b->m[i].choice[b->m[i].at].error;
	return sum;
}

/* Repeatedly changes the type of the matrix that saves the most error per added byte and still
 * fits, until no change fits. Each step goes to the next corner of the convex hull, which is the
 * steepest of all larger choices, so it skips choices above the hull. */
static void
fill(BudgetState *b, int64_t room)
{
	for (int64_t used = bytes_of(b);;) {
		double best = 0;
		int which = -1, to = 0;
		for (int i = 0; i < b->n; i++) {
			const BudgetMatrix *m = &b->m[i];
			const BudgetChoice *now = &m->choice[m->at];
			for (int k = 0; k < m->n_choice; k++) {
				int64_t more = m->choice[k].bytes - now->bytes;
				double gain = m->cost * (now->error - m->choice[k].error);
				if (gain <= 0 || used + more > room)
					continue;
				double rate = more > 0 ? gain / (double)more : INFINITY;
				if (rate > best)
					best = rate, which = i, to = k;
			}
		}
		if (which < 0)
			return;
		used += b->m[which].choice[to].bytes - b->m[which].choice[b->m[which].at].bytes;
		b->m[which].at = to;
	}
}

/* Runs fill from several starts: the smallest types, and each single type that fits for all
 * matrices. Keeps the best result. */
static bool
solve(BudgetState *b, int64_t room, int *best)
{
	double least = INFINITY;

	for (int start = -1; start < DT_COUNT; start++) {
		bool any = start < 0;
		for (int i = 0; i < b->n; i++) {
			BudgetMatrix *m = &b->m[i];
			m->at = 0;
			for (int k = 0; k < m->n_choice; k++)
				if ((int)m->choice[k].type == start)
					m->at = k, any = true;
		}
		if (!any || bytes_of(b) > room)
			continue;
		fill(b, room);
		double sum = sum_of(b);
		if (sum < least) {
			least = sum;
			for (int i = 0; i < b->n; i++)
				best[i] = b->m[i].at;
		}
	}
	return least < INFINITY;
}

llmc_status
budget_measure(BudgetMatrix *m, int n, Threads *threads, llmc_error *err)
{
	BudgetState b = { .m = m, .n = n };

	for (int i = 0; i < n; i++) {
		const Dtype only[2] = { m[i].only, DT_NONE },
		            *t = m[i].only != DT_NONE ? only : budget_types(m[i].cols);
		m[i].n_choice = 0;
		for (; *t != DT_NONE && m[i].n_choice < BUDGET_TYPES; t++)
			m[i].choice[m[i].n_choice++] =
			    (BudgetChoice){ *t, dtype_row_bytes(*t, m[i].cols) * m[i].rows, 0 };
	}
	threads_run(threads, measure, &b);
	return atomic_load(&b.failed)
	           ? error_set(err, LLMC_E_MEMORY, "out of memory for rows to measure")
	           : LLMC_OK;
}

llmc_status
budget_choose(BudgetMatrix *m, int n, double bits, llmc_error *err)
{
	BudgetState b = { .m = m, .n = n };
	int *best = calloc((size_t)n + 1, sizeof *best);
	int64_t weights = 0, least = 0;
	llmc_status status = LLMC_OK;

	if (!best)
		return error_set(err, LLMC_E_MEMORY, "out of memory while choosing types");
	for (int i = 0; i < n; i++) {
		weights += m[i].rows * m[i].cols;
		least += m[i].choice[0].bytes;
	}
	if (n && !solve(&b, (int64_t)(bits * (double)weights / 8), best))
		status =
		    error_set(err, LLMC_E_INPUT, "%g bits per weight: the smallest types need %.4g",
		              bits, ceil(8e3 * (double)least / (double)weights) / 1e3);
	for (int i = 0; i < n; i++)
		m[i].at = best[i];
	free(best);
	return status;
}
