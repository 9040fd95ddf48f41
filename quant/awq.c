#include "quant/awq.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/block_quantize.h"

enum {
	SHARES = 20,
	SAMPLE = 1 << 15 /* weights sampled per matrix, at least LEAST_ROWS rows */,
	LEAST_ROWS = 8
};

/* ---- which matrices ---- */

static bool
is_ref(const PlanRef *r, PlanRefKind kind, int index)
{
	return r->kind == kind && r->index == index;
}

/* Returns the checkpoint tensor that holds an argument unchanged; NULL: it has several sources or
 * is transposed */
static const char *
plain(const Plan *plan, const PlanRef *r)
{
	const PlanTensor *t = r->kind == REF_TENSOR ? &plan->tensor[r->index] : NULL;
	return t && t->n_src == 1 && !t->src[0].transpose ? t->src[0].name : NULL;
}

int
awq_readers(const Plan *plan, int i, const char **weight, const char *name[AWQ_READERS])
{
	const PlanPhase *ph = &plan->phase[1];
	const PlanStep *norm = &ph->step[i];
	int n = 0;

	if (norm->op != OP_rmsnorm || step_int(norm, "plus_one") || step_int(norm, "groups") > 1 ||
	    norm->arg[ARG(rmsnorm, y)].kind != REF_BUFFER ||
	    !(*weight = plain(plan, &norm->arg[ARG(rmsnorm, w)])))
		return 0;
	const int buffer = norm->arg[ARG(rmsnorm, y)].index, own = norm->arg[ARG(rmsnorm, w)].index;
	for (int k = 0; k < ph->n_step; k++)
		for (int a = 0; k != i && a < ph->step[k].n_arg; a++)
			if (is_ref(&ph->step[k].arg[a], REF_TENSOR, own))
				return 0; /* not if another step uses the same weights */
	for (int k = i + 1; k < ph->n_step; k++) {
		const PlanStep *s = &ph->step[k];
		bool made = false;
		for (int m = 0; m < s->n_make; m++)
			made |= s->make[m].arg >= 0 &&
			        is_ref(&s->arg[s->make[m].arg], REF_BUFFER, buffer);
		for (int a = 0; a < s->n_arg; a++) {
			bool out = false;
			for (int m = 0; m < s->n_make; m++)
				out |= s->make[m].arg == a;
			if (out || !is_ref(&s->arg[a], REF_BUFFER, buffer))
				continue;
			if (s->op != OP_matmul || a != ARG(matmul, x) || n == AWQ_READERS ||
			    !(name[n] = plain(plan, &s->arg[ARG(matmul, w)])))
				return 0;
			n++;
		}
		if (made)
			break;
	}
	return n;
}

/* ---- factors ---- */

typedef struct Search {
	const AwqMatrix *m;
	int n;
	int64_t cols;
	const float *importance;
	double *error; /* [SHARES][n] */
	atomic_int next;
	atomic_bool failed;
} Search;

/* Normalises so that largest * smallest = 1 */
static void
factors(const float *importance, int64_t n, double share, float *s)
{
	float low = INFINITY, high = 0;

	for (int64_t j = 0; j < n; j++) {
		s[j] = importance[j] > 0 ? (float)pow((double)importance[j], share / 2) : 0;
		if (s[j] > 0)
			low = fminf(low, s[j]), high = fmaxf(high, s[j]);
	}
	for (int64_t j = 0; j < n; j++)
		s[j] = s[j] > 0 ? fminf(fmaxf(s[j] / sqrtf(low) / sqrtf(high), 1e-4f), 1e4f) : 1;
}

static double
error_of(const Search *q, const AwqMatrix *m, const float *s, float *x, float *y, float *weight,
         void *blocks)
{
	const int64_t cols = q->cols,
	              want = SAMPLE / cols > LEAST_ROWS ? SAMPLE / cols : LEAST_ROWS,
	              n = want < m->rows ? want : m->rows;
	double lost = 0, all = 0;

	for (int64_t j = 0; j < cols; j++)
		weight[j] = q->importance[j] / (s[j] * s[j]);
	for (int64_t i = 0; i < n; i++) {
		dequant_row(m->from,
		            (const char *)m->src + m->rows * i / n * dtype_row_bytes(m->from, cols),
		            x, cols);
		for (int64_t j = 0; j < cols; j++) {
			all += (double)q->importance[j] * (double)x[j] * (double)x[j];
			x[j] *= s[j];
		}
		quantize_row(m->to, x, weight, blocks, cols);
		dequant_row(m->to, blocks, y, cols);
		for (int64_t j = 0; j < cols; j++) {
			double e = (double)y[j] - (double)x[j];
			lost += (double)weight[j] * e * e;
		}
	}
	return all > 0 ? lost / all : 0;
}

static void
search(void *user, int part, int n_parts)
{
	Search *q = user;
	float *s = malloc((size_t)q->cols * 6 * sizeof *s);

	(void)part, (void)n_parts;
	if (!s) {
		atomic_store(&q->failed, true);
		return;
	}
	for (int k; (k = atomic_fetch_add(&q->next, 1)) < SHARES * q->n;) {
		factors(q->importance, q->cols, (double)(k / q->n) / SHARES, s);
		q->error[k] = error_of(q, &q->m[k % q->n], s, s + q->cols, s + 2 * q->cols,
		                       s + 3 * q->cols, s + 4 * q->cols);
	}
	free(s);
}

bool
awq_factors(const AwqMatrix *m, int n, int64_t cols, const float *importance, Threads *threads,
            float *s)
{
	Search q = { .m = m,
		     .n = n,
		     .cols = cols,
		     .importance = importance,
		     .error = calloc((size_t)(SHARES * n), sizeof *q.error) };
	double least = INFINITY;
	int best = 0;

	if (!q.error)
		return false;
	threads_run(threads, search, &q);
	for (int k = 0; k < SHARES; k++) {
		double sum = 0;
		for (int i = 0; i < n; i++)
			sum += q.error[k * n + i];
		if (sum < least)
			least = sum, best = k;
	}
	factors(importance, cols, (double)best / SHARES, s);
	free(q.error);
	return !atomic_load(&q.failed);
}
