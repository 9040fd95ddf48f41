/* Gated delta rule, row by row. A warp keeps COLS columns of one head's state S of one sequence in
 * registers for the whole step:
 *
 *     lane           rows j = lane, lane + 32, .. of S, and the same elements of q, k and the
 *                    decays
 *     per row of x   normalise q, k; S = diag(e) S; u = beta (v - S^T k); S += k u^T; y = S^T q
 *
 * A sum over a head's rows is a sum over the warp, so no warp waits for another, and the order of
 * summation depends on the head alone. With one long prompt, a warp scheduler has only one warp, so
 * work that does not depend on S is done ahead: while row t is processed, row t + 1 is normalised
 * and row t + 2 is in flight. */
#ifndef LLMC_CUDA_SSM_DELTA_RULE_H
#define LLMC_CUDA_SSM_DELTA_RULE_H

#include "cuda/gemv/warp_column_sum.h"
#include "cuda/math/math.h"
#include "cuda/runtime/step.h"

struct delta_args {
	const float *x, *a, *b, *rate, *dt;
	float *state, *y;
};

/* Row length of x in floats; key head of value head h; rate of decay of value head h; recurrent
 * state of head h in the step's sequence q */
template <class D> DEV constexpr int
delta_row()
{
	return 2 * D::KH * D::KD + D::VH * D::VD;
}
template <class D> DEV int
delta_from(int h)
{
	return D::TILED ? h % D::KH : h / (D::VH / D::KH);
}
template <class D> DEV float
delta_rate(const delta_args &in, int h)
{
	return D::A_LOG ? -expf(in.rate[h]) : in.rate[h];
}
template <class D> DEV float *
delta_state(const llmc_step &s, const delta_args &in, int q, int h)
{
	return in.state + (s.seq[q] * (long long)D::VH + h) * D::KD * D::VD;
}

template <class D> struct delta_schedule {
	enum {
		KD = D::KD,
		VD = D::VD,
		GD = D::GD,
		KH = D::KH,
		VH = D::VH,
		R = (KD + 31) / 32,
		COLS = R <= 4    ? 8
		       : R <= 8  ? 4
		       : R <= 16 ? 2
		                 : 1,
		BLOCKS = (VD + COLS - 1) / COLS,
		AHEAD = R <= 8 /* 1 if there are registers for a row in flight */
	};
	/* Inputs of a row as loaded: this lane's elements of the vectors, and the columns from
	 * `col` on */
	struct Raw {
		float q[R], k[R], v[COLS], a[GD > 1 ? R : 1], b;
	};
	/* Inputs of a row after normalisation */
	struct Row {
		float q[R], k[R], v[COLS], keep[GD > 1 ? R : 1], beta;
	};

	/* Loads this lane's elements of a head's vector. */
	DEV void
	part(const float *x, float *v)
	{
#pragma unroll
		for (int r = 0; r < R; r++)
			v[r] = r * 32 + (int)lane_id() < KD ? x[r * 32 + lane_id()] : 0;
	}

	DEV void
	unit(float *v, float scale)
	{
		float sum = 0;

#pragma unroll
		for (int r = 0; r < R; r++)
			sum = fmaf(v[r], v[r], sum);
		const float f = scale / sqrtf(warp_sum(sum) + D::EPS);
#pragma unroll
		for (int r = 0; r < R; r++)
			v[r] *= f;
	}

	DEV void
	get(Raw &row, const delta_args &in, long long t, int h, int from, int col)
	{
		const float *x = in.x + t * delta_row<D>(), *a = in.a + (t * VH + h) * GD;

		part(x + from * KD, row.q);
		part(x + (KH + from) * KD, row.k);
#pragma unroll
		for (int c = 0; c < COLS; c++)
			row.v[c] = col + c < VD ? x[2 * KH * KD + h * VD + col + c] : 0;
		if (GD > 1)
			part(a, row.a);
		else
			row.a[0] = a[0];
		row.b = in.b[t * VH + h];
	}

	DEV void
	make(Row &row, const Raw &raw, const float *dt, float rate)
	{
#pragma unroll
		for (int r = 0; r < R; r++) {
			row.q[r] = raw.q[r];
			row.k[r] = raw.k[r];
			if (GD > 1)
				row.keep[r] = r * 32 + (int)lane_id() < KD
				                  ? expf(rate * softplus(raw.a[r] + dt[r]))
				                  : 0;
		}
		if (GD == 1)
			row.keep[0] = expf(rate * softplus(raw.a[0] + dt[0]));
		unit(row.q, D::SCALE);
		unit(row.k, 1);
#pragma unroll
		for (int c = 0; c < COLS; c++)
			row.v[c] = raw.v[c];
		row.beta = D::B_SCALE * act_sigmoid(raw.b);
	}

	/* Processes all rows of the step's sequence q, for the columns of head h from `col` on. */
	DEV void
	run(const llmc_step &s, const delta_args &in, int q, int h, int col)
	{
		const int lane = lane_id(), from = delta_from<D>(h), first = s.q_start[q],
		          end = s.q_start[q + 1];
		const bool begins = s.pos[first] == 0;
		const float rate = delta_rate<D>(in, h);
		float *state = delta_state<D>(s, in, q, h) + col, own[R][COLS], dt[GD > 1 ? R : 1];
		Raw raw;
		Row row, next;

		if (GD > 1)
			part(in.dt + h * GD, dt);
		else
			dt[0] = in.dt[h];
#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int c = 0; c < COLS; c++)
				own[r][c] = !begins && r * 32 + lane < KD && col + c < VD
				                ? state[(long long)(r * 32 + lane) * VD + c]
				                : 0;
		if (AHEAD) {
			get(raw, in, first, h, from, col);
			make(next, raw, dt, rate);
			if (first + 1 < end)
				get(raw, in, first + 1, h, from, col);
		}
		for (int t = first; t < end; t++) {
			if (!AHEAD) {
				get(raw, in, t, h, from, col);
				make(row, raw, dt, rate);
			} else {
				row = next;
				if (t + 1 < end)
					make(next, raw, dt, rate);
				if (t + 2 < end)
					get(raw, in, t + 2, h, from, col);
			}
			float u[COLS] = {}, y[COLS] = {};
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int c = 0; c < COLS; c++) {
					own[r][c] *= row.keep[GD > 1 ? r : 0];
					u[c] = fmaf(own[r][c], row.k[r], u[c]);
				}
			const float seen = column_sum<COLS>(u);
#pragma unroll
			for (int c = 0; c < COLS; c++)
				u[c] = row.beta * (row.v[c] - column_get<COLS>(seen, c));
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int c = 0; c < COLS; c++) {
					own[r][c] = fmaf(row.k[r], u[c], own[r][c]);
					y[c] = fmaf(own[r][c], row.q[r], y[c]);
				}
			const float sum = column_sum<COLS>(y);
			const int c = col + column_of<COLS>(lane);
			if (lane % (32 / COLS) == 0 && c < VD)
				in.y[((long long)t * VH + h) * VD + c] = sum;
		}
#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int c = 0; c < COLS; c++)
				if (r * 32 + lane < KD && col + c < VD)
					state[(long long)(r * 32 + lane) * VD + c] = own[r][c];
	}

	/* Distributes the first n_seq sequences of the step over the warps of the grid. */
	DEV void
	deal(const llmc_step &s, const delta_args &in, int n_seq)
	{
		const long long n = (long long)n_seq * VH * BLOCKS, warps = blockDim.x / 32;

		for (long long i = blockIdx.x * warps + warp_id(); i < n; i += gridDim.x * warps)
			run(s, in, (int)(i / BLOCKS / VH), (int)(i / BLOCKS % VH),
			    (int)(i % BLOCKS) * COLS);
	}
};

#endif
