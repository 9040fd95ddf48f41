/* Selective scan for some columns of one head's state S [n_state, dim], row by row:
 *
 *     S = e S + B (d u)^T;  y = S^T C + skip u
 *
 * One pass over the columns, which are in L1. */
#ifndef LLMC_CPU_SSM_SELECTIVE_SCAN_H
#define LLMC_CPU_SSM_SELECTIVE_SCAN_H

#include "cpu/math/gate.h"

enum { SCAN_COLS = 32, SCAN_NV = SCAN_COLS / VL };

typedef struct Scan {
	int heads, dim, groups, n_state;
	float dt_min, dt_max; /* dt_max 0: none */
	bool a_log;
	const float *x, *dt, *rate, *bias, *skip;
} Scan;

/* Processes one row: nv vectors of columns from s on. The last vector has `last` columns (VL or
 * more: it is full). d, e: values of the head in this row */
LLMC_INLINE void
scan_row(const Scan c, const int nv, int64_t last, const float *in, const float *out, float d,
         float e, float skip, const float *u, float *s, float *y)
{
	vf own[SCAN_NV], add[SCAN_NV], sum[SCAN_NV];

	LLMC_EACH(i, nv, SCAN_NV)
	{
		own[i] = share_get(u + i * VL, i + 1 < nv ? VL : last);
		add[i] = vf_set1(d) * own[i];
		sum[i] = vf_set1(0);
	}
	for (int j = 0; j < c.n_state; j++) {
		const vf b = vf_set1(in[j]), o = vf_set1(out[j]);
		LLMC_EACH(i, nv, SCAN_NV)
		{
			float *at = s + (int64_t)j * c.dim + i * VL;
			vf now =
			    vf_fma(vf_set1(e), share_get(at, i + 1 < nv ? VL : last), b * add[i]);
			share_put(at, now, i + 1 < nv ? VL : last);
			sum[i] = vf_fma(now, o, sum[i]);
		}
	}
	LLMC_EACH(i, nv, SCAN_NV)
	share_put(y + i * VL, vf_fma(vf_set1(skip), own[i], sum[i]), i + 1 < nv ? VL : last);
}

/* Processes all rows of the step's sequence n, for columns from `col` on of head h. state:
 * recurrent state of the sequence */
LLMC_INLINE void
scan_block(const llmc_step *step, const Scan c, int32_t n, int64_t h, int64_t col, float *state,
           float *y)
{
	const int64_t inner = (int64_t)c.heads * c.dim, parts = (int64_t)c.groups * c.n_state,
	              cols = c.dim - col;
	const float rate = c.a_log ? -vf_exp(vf_set1(c.rate[h]))[0] : c.rate[h];
	float *s = state + h * c.n_state * c.dim + col;

	if (step->pos[step->q_start[n]] == 0)
		for (int j = 0; j < c.n_state; j++)
			memset(s + (int64_t)j * c.dim, 0,
			       (size_t)(cols < SCAN_COLS ? cols : SCAN_COLS) * sizeof *s);
	for (int64_t t = step->q_start[n]; t < step->q_start[n + 1]; t++) {
		const float *x = c.x + t * (inner + 2 * parts), *u = x + h * c.dim + col,
		            *in = x + inner + h / (c.heads / c.groups) * c.n_state,
		            *out = in + parts;
		vf d = vf_max(vf_softplus(vf_set1(c.dt[t * c.heads + h] + c.bias[h])),
		              vf_set1(c.dt_min));

		d = c.dt_max > 0 ? vf_min(d, vf_set1(c.dt_max)) : d;
		const float e = vf_exp(vf_set1(rate) * d)[0];
		if (cols >= SCAN_COLS) {
			scan_row(c, SCAN_NV, VL, in, out, d[0], e, c.skip[h], u, s,
			         y + t * inner + h * c.dim + col);
			continue;
		}
		for (int64_t k = 0; k < cols; k += VL)
			scan_row(c, 1, cols - k, in, out, d[0], e, c.skip[h], u + k, s + k,
			         y + t * inner + h * c.dim + col + k);
	}
}

#endif
