/* Rotary positions, the KV pool, and attention over it. */
#include "ref/ref_internal.h"

void
ref_rotate(const float *x, const float *angles, int64_t rope_dims, bool interleaved, float *y)
{
	int64_t half = rope_dims / 2;

	for (int64_t i = 0; i < half; i++) {
		int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
		double cosine = angles[i], sine = angles[half + i];
		double xa = x[a], xb = x[b];

		y[a] = (float)(xa * cosine - xb * sine);
		y[b] = (float)(xb * cosine + xa * sine);
	}
}

static bool
interleaved(const RefCall *c)
{
	return !strcmp(step_word(c->step, "style"), "interleaved");
}

void
ref_rope(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), dim = step_int(c->step, "dim");
	int64_t first = step_int(c->step, "first"), rope_dims = step_int(c->step, "rope_dims");
	const float *x = ref_f32(c, ARG(rope, x)), *angles = ref_f32(c, ARG(rope, rope));
	float *y = ref_f32(c, ARG(rope, y));

	for (int64_t t = 0; t < c->s->n_tok; t++, angles += rope_dims)
		for (int64_t h = 0; h < heads; h++, x += dim, y += dim) {
			if (x != y)
				memmove(y, x, (size_t)dim * sizeof *y);
			ref_rotate(y + first, angles, rope_dims, interleaved(c), y + first);
		}
}

void
ref_rope_2d(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), dim = step_int(c->step, "dim");
	int64_t rope_dims = step_int(c->step, "rope_dims");
	const float *x = ref_f32(c, ARG(rope_2d, x)), *angles = ref_f32(c, ARG(rope_2d, rope)),
	            *angles2 = ref_f32(c, ARG(rope_2d, rope2));
	float *y = ref_f32(c, ARG(rope_2d, y));

	for (int64_t t = 0; t < c->s->n_tok; t++, angles += rope_dims, angles2 += rope_dims)
		for (int64_t h = 0; h < heads; h++, x += dim, y += dim) {
			if (x != y)
				memmove(y, x, (size_t)dim * sizeof *y);
			ref_rotate(y, angles, rope_dims, interleaved(c), y);
			ref_rotate(y + dim / 2, angles2, rope_dims, interleaved(c), y + dim / 2);
		}
}

void
ref_append_row(const RefCall *c, int kv_arg, int64_t t, const float *k, const float *v,
               int64_t kv_heads, int64_t dim, int64_t v_dim, float *rotated)
{
	const PlanPool *p = c->arg[kv_arg].pool;
	int64_t pos = c->s->pos[t], at = pos % PLAN_KV_PAGE;
	char *page = ref_page(c, kv_arg, c->s->seq_of[t], pos);

	for (int64_t h = 0; h < kv_heads; h++) {
		ref_kv_put_row(p->k, p->rotate, true, ref_plane(p, page, true, h), at, k + h * dim,
		               dim, rotated);
		ref_kv_put_row(p->v, p->rotate, false, ref_plane(p, page, false, h), at,
		               v + h * v_dim, v_dim, rotated);
	}
	if (!plan_layer_exact_bytes(p))
		return;
	page = ref_exact_page(c, kv_arg, c->s->seq_of[t], pos);
	for (int64_t h = 0; h < kv_heads; h++) {
		ref_exact_put_row(p->k, p->rotate, true, ref_exact_plane(p, page, true, h), at,
		                  k + h * dim, dim, rotated);
		ref_exact_put_row(p->v, p->rotate, false, ref_exact_plane(p, page, false, h), at,
		                  v + h * v_dim, v_dim, rotated);
	}
}

/* Reads the key or value of a head at position j for the row at pos: from the exact page if that
 * row reads position j exactly */
static void
read_row(const RefCall *c, int kv_arg, bool key, int32_t seq, int64_t pos, int64_t j, int64_t head,
         float *row)
{
	const PlanPool *p = c->arg[kv_arg].pool;
	const KvType t = key ? p->k : p->v;
	const int64_t dim = key ? p->k_dim : p->v_dim, at = j % PLAN_KV_PAGE;

	if (ref_reads_exact(p, pos, j))
		ref_exact_get_row(t, p->rotate, key,
		                  ref_exact_plane(p, ref_exact_page(c, kv_arg, seq, j), key, head),
		                  at, row, dim);
	else
		ref_kv_get_row(t, p->rotate, key,
		               ref_plane(p, ref_page(c, kv_arg, seq, j), key, head), at, row, dim);
}

void
ref_kv_append(const RefCall *c)
{
	int64_t kv_heads = step_int(c->step, "kv_heads"), dim = step_int(c->step, "dim"),
	        v_dim = step_int(c->step, "v_dim");

	for (int64_t t = 0; t < c->s->n_tok; t++)
		ref_append_row(c, ARG(kv_append, kv), t,
		               ref_f32(c, ARG(kv_append, k)) + t * kv_heads * dim,
		               ref_f32(c, ARG(kv_append, v)) + t * kv_heads * v_dim, kv_heads, dim,
		               v_dim, c->scratch);
}

void
ref_kv_quantize_page(const RefCall *c)
{
	const PlanPool *p = c->arg[ARG(kv_quantize_page, kv)].pool;
	int64_t kv_heads = step_int(c->step, "kv_heads"), dim = step_int(c->step, "dim");

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		int64_t pos = c->s->pos[t];
		int32_t seq = c->s->seq_of[t];

		if (pos % PLAN_KV_PAGE != PLAN_KV_PAGE - 1)
			continue;
		char *page = ref_page(c, ARG(kv_quantize_page, kv), seq, pos),
		     *exact = ref_exact_page(c, ARG(kv_quantize_page, kv), seq, pos);
		for (int64_t h = 0; h < kv_heads; h++)
			ref_kv_close_plane(p->k, ref_plane(p, page, true, h),
			                   ref_exact_plane(p, exact, true, h), dim);
	}
}

/* ALiBi slopes: powers of 2^(-bias / n) for the first n heads, n the largest power of two within
 * `heads`; the others use the odd powers of the series for 2n heads. */
static double
alibi_slope(int64_t heads, int64_t h, double max_bias)
{
	int64_t n = 1;

	while (n * 2 <= heads)
		n *= 2;
	if (h < n)
		return exp2(-max_bias * (double)(h + 1) / (double)n);
	return exp2(-max_bias * (double)(2 * (h - n) + 1) / (double)(2 * n));
}

void
ref_softmax(float *p, int64_t n, const float *sink)
{
	double max = sink && *sink > p[0] ? *sink : p[0], sum = 0;

	for (int64_t i = 1; i < n; i++)
		if (p[i] > max)
			max = p[i];
	for (int64_t i = 0; i < n; i++) {
		p[i] = (float)exp(p[i] - max);
		sum += p[i];
	}
	if (sink)
		sum += exp(*sink - max);
	for (int64_t i = 0; i < n; i++)
		p[i] = (float)(p[i] / sum);
}

/* Computes the positions [*first, returned value) that row t attends to. */
static int64_t
visible(const RefCall *c, int64_t t, int64_t window, bool chunk, const char *mask, int64_t *first)
{
	int32_t seq = c->s->seq_of[t];
	int64_t pos = c->s->pos[t], end = pos + 1;

	if (!strcmp(mask, "prefix") && c->s->prefix_len[seq] > end)
		end = c->s->prefix_len[seq];
	if (!strcmp(mask, "none"))
		end = window > 0 ? pos + window : c->s->kv_len[seq];
	if (end > c->s->kv_len[seq])
		end = c->s->kv_len[seq];
	*first = window > 0 && chunk                  ? pos - pos % window
	         : window > 0 && pos - window + 1 > 0 ? pos - window + 1
	                                              : 0;
	return end;
}

void
ref_attention(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), kv_heads = step_int(c->step, "kv_heads");
	int64_t dim = step_int(c->step, "dim"), v_dim = step_int(c->step, "v_dim");
	double scale = step_num(c->step, "scale"), cap = step_num(c->step, "softcap"),
	       alibi = step_num(c->step, "alibi");
	int64_t window = step_int(c->step, "window");
	const char *mask = step_word(c->step, "mask");
	bool chunk = step_int(c->step, "chunk") != 0;
	int64_t alibi_first = step_int(c->step, "alibi_first"),
	        alibi_heads = step_int(c->step, "alibi_heads");
	double *sum = (double *)c->scratch;
	float *row = c->scratch + 2 * v_dim, *sinks = row + (dim > v_dim ? dim : v_dim),
	      *p = sinks + heads;
	const float *sink = ref_vector(&c->arg[ARG(attention, sink)], sinks);

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		int32_t seq = c->s->seq_of[t];
		int64_t first, end = visible(c, t, window, chunk, mask, &first);

		for (int64_t h = 0; h < heads; h++) {
			int64_t kh = h / (heads / kv_heads);
			const float *q = ref_f32(c, ARG(attention, q)) + (t * heads + h) * dim;
			float *y = ref_f32(c, ARG(attention, y)) + (t * heads + h) * v_dim;
			double slope = alibi > 0 ? alibi_slope(alibi_heads ? alibi_heads : heads,
			                                       alibi_first + h, alibi)
			                         : 0;

			for (int64_t j = first; j < end; j++) {
				double s = 0;

				read_row(c, ARG(attention, kv), true, seq, c->s->pos[t], j, kh,
				         row);
				for (int64_t i = 0; i < dim; i++)
					s += (double)q[i] * (double)row[i];
				s *= scale;
				if (cap > 0)
					s = cap * tanh(s / cap);
				p[j - first] = (float)(s + slope * (double)(j - c->s->pos[t]));
			}
			ref_softmax(p, end - first, sink ? sink + h : NULL);
			for (int64_t i = 0; i < v_dim; i++)
				sum[i] = 0;
			for (int64_t j = first; j < end; j++) {
				read_row(c, ARG(attention, kv), false, seq, c->s->pos[t], j, kh,
				         row);
				for (int64_t i = 0; i < v_dim; i++)
					sum[i] += (double)p[j - first] * (double)row[i];
			}
			for (int64_t i = 0; i < v_dim; i++)
				y[i] = (float)sum[i];
		}
	}
}

void
ref_mla_append(const RefCall *c)
{
	int64_t rank = step_int(c->step, "kv_rank"), rope = step_int(c->step, "rope_dim");

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const PlanPool *pool = c->arg[ARG(mla_append, kv)].pool;
		int64_t pos = c->s->pos[t];
		char *page = ref_page(c, ARG(mla_append, kv), c->s->seq_of[t], pos);
		float *row = c->scratch;

		memcpy(row, ref_f32(c, ARG(mla_append, latent)) + t * rank,
		       (size_t)rank * sizeof *row);
		memcpy(row + rank, ref_f32(c, ARG(mla_append, rope_k)) + t * rope,
		       (size_t)rope * sizeof *row);
		ref_kv_put_row(pool->k, false, false, page, pos % PLAN_KV_PAGE, row, rank + rope,
		               NULL);
	}
}

/* The outer loop is over heads, so that rows of k_b and v_b are dequantised once. scratch: query
 * and context in the latent space [n_tok][rank] each, a weight row [rank], scores [kv_len] */
void
ref_mla_attention(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), rank = step_int(c->step, "kv_rank");
	int64_t nope = step_int(c->step, "nope_dim"), rope = step_int(c->step, "rope_dim");
	int64_t v_dim = step_int(c->step, "v_dim"), n_tok = c->s->n_tok;
	double scale = step_num(c->step, "scale");
	const PlanPool *pool = c->arg[ARG(mla_attention, kv)].pool;
	float *latent_q = c->scratch, *context = latent_q + n_tok * rank,
	      *row = context + n_tok * rank;
	float *p = row + rank;

	for (int64_t h = 0; h < heads; h++) {
		memset(latent_q, 0, (size_t)(n_tok * rank) * sizeof *latent_q);
		for (int64_t i = 0; i < nope; i++) {
			plan_tensor_row(c->arg[ARG(mla_attention, k_b)].tensor,
			                c->arg[ARG(mla_attention, k_b)].data, h * nope + i, row);
			for (int64_t t = 0; t < n_tok; t++) {
				float q = ref_f32(
				    c, ARG(mla_attention, q))[(t * heads + h) * (nope + rope) + i];

				for (int64_t r = 0; r < rank; r++)
					latent_q[t * rank + r] += q * row[r];
			}
		}
		for (int64_t t = 0; t < n_tok; t++) {
			const float *q_rope = ref_f32(c, ARG(mla_attention, q)) +
			                      (t * heads + h) * (nope + rope) + nope;
			int64_t end;
			const int32_t *sel = ref_sel(c, ARG(mla_attention, sel), t, &end);
			int32_t seq = c->s->seq_of[t];

			for (int64_t i = 0; i < end; i++) {
				int64_t j = sel ? sel[i] : i;
				const char *page = ref_page(c, ARG(mla_attention, kv), seq, j);
				int64_t at = j % PLAN_KV_PAGE;
				double s = 0;

				for (int64_t r = 0; r < rank; r++)
					s += (double)latent_q[t * rank + r] *
					     (double)ref_latent_get(pool, page, at, r);
				for (int64_t r = 0; r < rope; r++)
					s += (double)q_rope[r] *
					     (double)ref_latent_get(pool, page, at, rank + r);
				p[i] = (float)(s * scale);
			}
			ref_softmax(p, end, NULL);
			for (int64_t r = 0; r < rank; r++) {
				double s = 0;

				for (int64_t i = 0; i < end; i++) {
					int64_t j = sel ? sel[i] : i;
					s += (double)p[i] *
					     (double)ref_latent_get(
					         pool, ref_page(c, ARG(mla_attention, kv), seq, j),
					         j % PLAN_KV_PAGE, r);
				}
				context[t * rank + r] = (float)s;
			}
		}
		ref_matmul_rows(&c->arg[ARG(mla_attention, v_b)], h * v_dim, v_dim, rank, context,
		                rank, n_tok, ref_f32(c, ARG(mla_attention, y)) + h * v_dim,
		                heads * v_dim, row);
	}
}
