/* Latent attention in its fused form: mla_query, mla_attend, mla_value. templates/common/llmc_mla.h
 * decides the form of a row. */
#include "ref/ref_internal.h"
#include "templates/common/llmc_mla.h"

static bool
expanded(const RefCall *c, int64_t t)
{
	int32_t seq = c->s->seq_of[t], rows = c->s->q_start[seq + 1] - c->s->q_start[seq];

	return mla_expanded(rows, c->s->kv_len[seq] - rows, (int)step_int(c->step, "expand"),
	                    (int)step_int(c->step, "index_top_k"));
}

/* scratch: the two norms' weights [part], [rank], a normed query latent [part], one query [heads *
 * (nope + rope)], a weight row */
void
ref_mla_query(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), q_rank = step_int(c->step, "q_rank"),
	        rank = step_int(c->step, "kv_rank");
	int64_t nope = step_int(c->step, "nope_dim"), rope = step_int(c->step, "rope_dim"),
	        dim = nope + rope;
	int64_t part = q_rank ? q_rank : heads * dim, stride = rank + rope,
	        stacked = step_int(c->step, "fused");
	double eps = step_num(c->step, "eps");
	bool interleaved = !strcmp(step_word(c->step, "style"), "interleaved");
	float *qn = c->scratch, *kvn = qn + part, *low = kvn + rank, *q = low + part,
	      *row = q + heads * dim;
	const RefArg *k_b = &c->arg[ARG(mla_query, k_b)];
	const PlanPool *pool = c->arg[ARG(mla_query, kv)].pool;
	const float *qw = ref_vector(&c->arg[ARG(mla_query, qn)], qn),
	            *kw = ref_vector(&c->arg[ARG(mla_query, kvn)], kvn);

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const float *a =
		    ref_f32(c, ARG(mla_query, a)) + t * (part + (stacked ? stride : 0));
		const float *latent =
		    stacked ? a + part : ref_f32(c, ARG(mla_query, c)) + t * stride;
		const float *angles = ref_has(c, ARG(mla_query, rope))
		                          ? ref_f32(c, ARG(mla_query, rope)) + t * rope
		                          : NULL;
		float *out = ref_f32(c, ARG(mla_query, q)) + t * heads * stride;

		memcpy(q, a, (size_t)(q_rank ? 0 : part) * sizeof *q);
		if (q_rank) {
			ref_rms_row(a, qw, part, eps, false, low);
			ref_matmul_rows(&c->arg[ARG(mla_query, q_b)], 0, heads * dim, part, low,
			                part, 1, q, heads * dim, row);
		}
		memset(out, 0, (size_t)(heads * stride) * sizeof *out);
		for (int64_t h = 0; h < heads; h++, out += stride) {
			float *qh = q + h * dim;
			bool whole = expanded(c, t);

			if (angles)
				ref_rotate(qh + nope, angles, rope, interleaved, qh + nope);
			memcpy(out + (whole ? nope : rank), qh + nope, (size_t)rope * sizeof *out);
			for (int64_t i = 0; i < nope; i++) {
				if (whole) {
					out[i] = qh[i];
					continue;
				}
				plan_tensor_row(k_b->tensor, k_b->data, h * nope + i, row);
				for (int64_t r = 0; r < rank; r++)
					out[r] += qh[i] * row[r];
			}
		}
		int64_t pos = c->s->pos[t];
		char *page = ref_page(c, ARG(mla_query, kv), c->s->seq_of[t], pos);
		ref_rms_row(latent, kw, rank, eps, false, row);
		memcpy(row + rank, latent + rank, (size_t)rope * sizeof *row);
		if (angles)
			ref_rotate(row + rank, angles, rope, interleaved, row + rank);
		ref_kv_put_row(pool->k, false, false, page, pos % PLAN_KV_PAGE, row, rank + rope,
		               NULL);
	}
}

/* Element of the latent or key of position j of sequence seq */
static double
cached(const RefCall *c, int32_t seq, int64_t j, int64_t i)
{
	const PlanPool *pool = c->arg[ARG(mla_attend, kv)].pool;

	return ref_latent_get(pool, ref_page(c, ARG(mla_attend, kv), seq, j), j % PLAN_KV_PAGE, i);
}

/* out[n] = rows first .. first + n of w, times the latent of position j; latent, row: scratch
 * [rank] */
static void
expand(const RefCall *c, int arg, int64_t first, int64_t n, int64_t rank, int32_t seq, int64_t j,
       float *out, float *latent, float *row)
{
	for (int64_t r = 0; r < rank; r++)
		latent[r] = (float)cached(c, seq, j, r);
	ref_matmul_rows(&c->arg[arg], first, n, rank, latent, rank, 1, out, n, row);
}

/* scratch: scores [kv_len], a key or value [nope + v], latent and weight row [rank] each */
void
ref_mla_attend(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), rank = step_int(c->step, "kv_rank"),
	        nope = step_int(c->step, "nope_dim");
	int64_t rope = step_int(c->step, "rope_dim"), v_dim = step_int(c->step, "v_dim");
	double scale = step_num(c->step, "scale");

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		int32_t seq = c->s->seq_of[t];
		int64_t end;
		const int32_t *sel = ref_sel(c, ARG(mla_attend, sel), t, &end);
		bool whole = expanded(c, t);
		float *p = c->scratch, *made = p + end, *latent = made + nope + v_dim,
		      *row = latent + rank;

		for (int64_t h = 0; h < heads; h++) {
			const float *q =
			    ref_f32(c, ARG(mla_attend, q)) + (t * heads + h) * (rank + rope);
			float *o = ref_f32(c, ARG(mla_attend, o)) + (t * heads + h) * rank;
			int64_t first = whole ? nope : rank;

			for (int64_t i = 0; i < end; i++) {
				int64_t j = sel ? sel[i] : i;
				double s = 0;

				if (whole)
					expand(c, ARG(mla_attend, k_b), h * nope, nope, rank, seq,
					       j, made, latent, row);
				for (int64_t d = 0; d < first; d++)
					s += (double)q[d] *
					     (whole ? (double)made[d] : cached(c, seq, j, d));
				for (int64_t d = 0; d < rope; d++)
					s += (double)q[first + d] * cached(c, seq, j, rank + d);
				p[i] = (float)(s * scale);
			}
			ref_softmax(p, end, NULL);
			memset(o, 0, (size_t)rank * sizeof *o);
			for (int64_t i = 0; i < end; i++) {
				int64_t j = sel ? sel[i] : i;

				if (whole)
					expand(c, ARG(mla_attend, v_b), h * v_dim, v_dim, rank, seq,
					       j, made, latent, row);
				for (int64_t d = 0; d < (whole ? v_dim : rank); d++)
					o[d] =
					    (float)((double)o[d] +
					            (double)p[i] * (whole ? (double)made[d]
					                                  : cached(c, seq, j, d)));
			}
		}
	}
}

/* scratch: a weight row */
void
ref_mla_value(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), rank = step_int(c->step, "kv_rank"),
	        v_dim = step_int(c->step, "v_dim");

	for (int64_t t = 0; t < c->s->n_tok; t++)
		for (int64_t h = 0; h < heads; h++) {
			const float *o = ref_f32(c, ARG(mla_value, o)) + (t * heads + h) * rank;
			float *y = ref_f32(c, ARG(mla_value, y)) + (t * heads + h) * v_dim;

			if (expanded(c, t))
				memcpy(y, o, (size_t)v_dim * sizeof *y);
			else
				ref_matmul_rows(&c->arg[ARG(mla_value, v_b)], h * v_dim, v_dim,
				                rank, o, rank, 1, y, v_dim, c->scratch);
		}
}
