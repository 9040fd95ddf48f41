/* The indexer of sparse attention: stores its keys and selects positions for each row. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ref/ref_internal.h"

/* needs no scratch */
void
ref_index_append(const RefCall *c)
{
	int64_t dim = step_int(c->step, "dim");

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const PlanPool *pool = c->arg[ARG(index_append, kv)].pool;
		int64_t pos = c->s->pos[t];
		char *page = ref_page(c, ARG(index_append, kv), c->s->seq_of[t], pos);

		ref_kv_put_row(pool->k, false, false, page, pos % PLAN_KV_PAGE,
		               ref_f32(c, ARG(index_append, k)) + t * dim, dim, NULL);
	}
}

typedef struct Scored {
	float score;
	int32_t pos;
} Scored;

/* Converts a score to an integer that sorts in the order of the kernels' comparison, in which NaN
 * has a position too */
static uint32_t
score_order(float x)
{
	uint32_t u;

	x += 0.0f;
	memcpy(&u, &x, sizeof u);
	return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* Compares by descending score; in a tie the lower position comes first */
static int
by_score(const void *a, const void *b)
{
	const Scored *x = a, *y = b;

	const uint32_t p = score_order(x->score), q = score_order(y->score);

	if (p != q)
		return p > q ? -1 : 1;
	return x->pos < y->pos ? -1 : 1;
}

static int
by_position(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return x < y ? -1 : x > y;
}

/* scratch: score and position [kv_len][2] */
void
ref_index_select(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), dim = step_int(c->step, "dim"),
	        chosen = step_int(c->step, "index_top_k");
	double scale = step_num(c->step, "scale");
	const PlanPool *pool = c->arg[ARG(index_select, kv)].pool;
	Scored *all = (Scored *)(void *)c->scratch;

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		int32_t seq = c->s->seq_of[t],
		        *sel = (int32_t *)c->arg[ARG(index_select, sel)].data + t * chosen;
		int64_t end = c->s->pos[t] + 1;

		for (int64_t i = 0; i < chosen; i++)
			sel[i] = i < end ? (int32_t)i : -1;
		if (end <= chosen)
			continue;
		for (int64_t j = 0; j < end; j++) {
			const char *page = ref_page(c, ARG(index_select, kv), seq, j);
			double sum = 0;

			for (int64_t h = 0; h < heads; h++) {
				const float *q =
				    ref_f32(c, ARG(index_select, q)) + (t * heads + h) * dim;
				double s = 0;

				for (int64_t i = 0; i < dim; i++)
					s += (double)q[i] * (double)ref_latent_get(
					                        pool, page, j % PLAN_KV_PAGE, i);
				if (s > 0)
					sum += (double)ref_f32(
					           c, ARG(index_select, w))[t * heads + h] *
					       scale * s;
			}
			all[j] = (Scored){ (float)sum, (int32_t)j };
		}
		qsort(all, (size_t)end, sizeof *all, by_score);
		for (int64_t i = 0; i < chosen; i++)
			sel[i] = all[i].pos;
		qsort(sel, (size_t)chosen, sizeof *sel, by_position);
	}
}
