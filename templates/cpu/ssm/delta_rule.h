/* Gated delta rule for some columns of one head's state S [k_dim, v_dim], row by row:
 *
 *     S = diag(e) S;  u = beta (v - S^T k);  S += k u^T;  y = S^T q
 *
 * Two passes over the columns, which are in L1: the first computes S^T k, the second updates S and
 * computes S^T q. */
#ifndef LLMC_CPU_SSM_DELTA_RULE_H
#define LLMC_CPU_SSM_DELTA_RULE_H

#include "cpu/norm/norm.h"
#include "cpu/math/gate.h"

enum { DELTA_COLS = 32, DELTA_NV = DELTA_COLS / VL };

typedef struct Delta {
	int k_heads, v_heads, k_dim, v_dim, g_dim;
	float scale, eps, b_scale;
	bool tiled, a_log;
	const float *x, *a, *b, *rate, *dt;
} Delta;

/* u / sqrt(sum u^2 + eps) * scale */
LLMC_INLINE void
delta_unit(const float *u, int n, float eps, float scale, float *to)
{
	vf r = vf_set1(scale / f32_sqrt(norm_squares(u, n, 0) + eps));
	Share all = { 0, n };

	SHARE_EACH(all, i, m)
	share_put(to + i, share_get(u + i, m) * r, m);
}

/* Computes the decay of a head's state: one value e[0], or e [k_dim]. */
LLMC_INLINE void
delta_decay(const Delta d, int64_t t, int64_t h, float *e)
{
	const float *a = d.a + (t * d.v_heads + h) * d.g_dim, *dt = d.dt + h * d.g_dim;
	vf r = d.a_log ? -vf_exp(vf_set1(d.rate[h])) : vf_set1(d.rate[h]);
	Share all = { 0, d.g_dim };

	SHARE_EACH(all, i, n)
	share_put(e + i, vf_exp(r * vf_softplus(share_get(a + i, n) + share_get(dt + i, n))), n);
}

/* Processes one row: nv vectors of columns from s on. The last vector has `last` columns (VL or
 * more: it is full). */
LLMC_INLINE void
delta_row(const Delta d, const int nv, int64_t last, const float *q, const float *k, const float *e,
          float beta, const float *v, float *s, float *y)
{
	vf seen[DELTA_NV] = { { 0 } }, sum[DELTA_NV] = { { 0 } };

	for (int j = 0; j < d.k_dim; j++) {
		const vf keep = vf_set1(e[d.g_dim > 1 ? j : 0]), kj = vf_set1(k[j]);
		LLMC_EACH(c, nv, DELTA_NV)
		seen[c] = vf_fma(
		    share_get(s + (int64_t)j * d.v_dim + c * VL, c + 1 < nv ? VL : last) * keep, kj,
		    seen[c]);
	}
	LLMC_EACH(c, nv, DELTA_NV)
	seen[c] = vf_set1(beta) * (share_get(v + c * VL, c + 1 < nv ? VL : last) - seen[c]);
	for (int j = 0; j < d.k_dim; j++) {
		const vf keep = vf_set1(e[d.g_dim > 1 ? j : 0]), kj = vf_set1(k[j]),
		         qj = vf_set1(q[j]);
		LLMC_EACH(c, nv, DELTA_NV)
		{
			float *at = s + (int64_t)j * d.v_dim + c * VL;
			vf now = vf_fma(seen[c], kj, share_get(at, c + 1 < nv ? VL : last) * keep);
			share_put(at, now, c + 1 < nv ? VL : last);
			sum[c] = vf_fma(now, qj, sum[c]);
		}
	}
	LLMC_EACH(c, nv, DELTA_NV)
	share_put(y + c * VL, sum[c], c + 1 < nv ? VL : last);
}

/* Processes all rows of the step's sequence n, for columns from `col` on of head h. state:
 * recurrent state of the sequence; q, k [k_dim] and e [g_dim]: scratch */
LLMC_INLINE void
delta_block(const llmc_step *step, const Delta d, int32_t n, int64_t h, int64_t col, float *state,
            float *y, float *q, float *k, float *e)
{
	const int64_t row = 2 * (int64_t)d.k_heads * d.k_dim + (int64_t)d.v_heads * d.v_dim;
	const int64_t from = d.tiled ? h % d.k_heads : h / (d.v_heads / d.k_heads),
	              cols = d.v_dim - col;
	float *s = state + h * d.k_dim * d.v_dim + col;

	if (step->pos[step->q_start[n]] == 0)
		for (int j = 0; j < d.k_dim; j++)
			memset(s + (int64_t)j * d.v_dim, 0,
			       (size_t)(cols < DELTA_COLS ? cols : DELTA_COLS) * sizeof *s);
	for (int64_t t = step->q_start[n]; t < step->q_start[n + 1]; t++) {
		const float *x = d.x + t * row,
		            *v = x + 2 * (int64_t)d.k_heads * d.k_dim + h * d.v_dim + col;
		float *to = y + (t * d.v_heads + h) * d.v_dim + col;
		float beta = d.b_scale * vf_sigmoid(vf_set1(d.b[t * d.v_heads + h]))[0];

		delta_unit(x + from * d.k_dim, d.k_dim, d.eps, d.scale, q);
		delta_unit(x + (d.k_heads + from) * d.k_dim, d.k_dim, d.eps, 1, k);
		delta_decay(d, t, h, e);
		if (cols >= DELTA_COLS) {
			delta_row(d, DELTA_NV, VL, q, k, e, beta, v, s, to);
			continue;
		}
		for (int64_t c = 0; c < cols; c += VL)
			delta_row(d, 1, cols - c, q, k, e, beta, v + c, s + c, to + c);
	}
}

#endif
