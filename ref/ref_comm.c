/* Ops between ranks: the definition for runtime/comm. A call has the first argument of every
 * rank. */
#include "ref/ref_internal.h"

/* Returns the x of rank k; without peers, the call's own x. */
static const float *
term(const RefCall *c, int k)
{
	return c->n_peer ? c->peer[k] : ref_f32(c, 0);
}

void
ref_all_reduce(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(all_reduce, y)), width = step_int(c->step, "width");
	int ranks = c->n_peer ? c->n_peer : 1;
	float scale = (float)step_num(c->step, "scale"), *y = ref_f32(c, ARG(all_reduce, y));
	float *b = c->scratch, *b2 = c->scratch + width;

	bool has_b = ref_has(c, ARG(all_reduce, b)), has_b2 = ref_has(c, ARG(all_reduce, b2)),
	     has_r = ref_has(c, ARG(all_reduce, r));
	if (has_b)
		ref_vector(&c->arg[ARG(all_reduce, b)], b);
	if (has_b2)
		ref_vector(&c->arg[ARG(all_reduce, b2)], b2);
	for (int64_t i = 0; i < n * width; i++) {
		float sum = term(c, 0)[i];
		for (int k = 1; k < ranks; k++)
			sum += term(c, k)[i];
		if (has_b)
			sum += b[i % width];
		if (has_b2)
			sum += b2[i % width];
		if (has_r)
			sum += scale * ref_f32(c, ARG(all_reduce, r))[i];
		y[i] = sum;
	}
}

void
ref_all_gather(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(all_gather, y)), width = step_int(c->step, "width"), first,
	        count;
	int ranks = c->n_peer ? c->n_peer : 1;
	float *y = ref_f32(c, ARG(all_gather, y));

	for (int k = 0; k < ranks; k++) {
		op_share(width, step_int(c->step, "unit"), ranks, k, &first, &count);
		for (int64_t t = 0; t < n; t++)
			memmove(y + t * width + first, term(c, k) + t * count,
			        (size_t)count * sizeof *y);
	}
}

/* Does nothing: ref_recv copies x. */
void
ref_send(const RefCall *c)
{
	(void)c;
}

/* Copies the x of the other device. Without a peer, the caller has already stored it in y. */
void
ref_recv(const RefCall *c)
{
	if (c->n_peer)
		memcpy(ref_f32(c, ARG(recv, y)), c->peer[0],
		       (size_t)(ref_rows(c, ARG(recv, y)) * step_int(c->step, "width")) *
		           sizeof(float));
}

/* Copies the previous stage's stream. Without a peer, the caller has already stored it in y. */
void
ref_stage_in(const RefCall *c)
{
	if (c->n_peer)
		memcpy(ref_f32(c, ARG(stage_in, y)), c->peer[0],
		       (size_t)(ref_rows(c, ARG(stage_in, y)) * step_int(c->step, "hidden")) *
		           sizeof(float));
}
