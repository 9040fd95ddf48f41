/* Selective scan with one rate per head, row by row. A warp keeps COLS columns of one head's state
 * S of one sequence in registers for the whole step:
 *
 *     lane           rows j = lane, lane + 32, .. of S, and the same elements of B and C
 *     per row of x   S = e S + B (d u)^T; y = S^T C + skip u
 *
 * A sum over a head's rows is a sum over the warp, so no warp waits for another, and the order of
 * summation depends on the head alone. Loads of the next row are issued before the current one is
 * processed. */
#ifndef LLMC_CUDA_SSM_SELECTIVE_SCAN_H
#define LLMC_CUDA_SSM_SELECTIVE_SCAN_H

#include "cuda/gemv/warp_column_sum.h"
#include "cuda/math/math.h"
#include "cuda/runtime/step.h"

struct scan_args {
	const float *x, *dt, *rate, *bias, *skip;
	float *state, *y;
};

/* Row length of x in floats; group of head h; rate of head h; its time step d, from dt of the row;
 * its recurrent state in the step's sequence q */
template <class D> DEV constexpr int
scan_row()
{
	return D::H * D::DIM + 2 * D::G * D::N;
}
template <class D> DEV int
scan_group(int h)
{
	return h / (D::H / D::G);
}
template <class D> DEV float
scan_rate(const scan_args &in, int h)
{
	return D::A_LOG ? -expf(in.rate[h]) : in.rate[h];
}
template <class D> DEV float
scan_step(float dt, float bias)
{
	const float d = fmaxf(softplus(dt + bias), D::DT_MIN);
	return D::DT_MAX > 0 ? fminf(d, D::DT_MAX) : d;
}
template <class D> DEV float *
scan_state(const llmc_step &s, const scan_args &in, int q, int h)
{
	return in.state + (s.seq[q] * (long long)D::H + h) * D::N * D::DIM;
}

template <class D> struct scan_schedule {
	enum {
		N = D::N,
		DIM = D::DIM,
		H = D::H,
		R = (N + 31) / 32,
		COLS = R <= 4    ? 8
		       : R <= 8  ? 4
		       : R <= 16 ? 2
		                 : 1,
		BLOCKS = (DIM + COLS - 1) / COLS
	};
	/* Inputs of a row for this lane */
	struct Row {
		float dt, u[COLS], b[R], o[R];
	};

	/* Loads this lane's elements of a group's vector. */
	DEV void
	part(const float *x, float *v)
	{
#pragma unroll
		for (int r = 0; r < R; r++)
			v[r] = r * 32 + (int)lane_id() < N ? x[r * 32 + lane_id()] : 0;
	}

	/* Loads row t for head h, whose group is `from`, with columns from `col` on. */
	DEV void
	get(Row &row, const scan_args &in, long long t, int h, int from, int col)
	{
		const float *x = in.x + t * scan_row<D>();

		row.dt = in.dt[t * H + h];
#pragma unroll
		for (int c = 0; c < COLS; c++)
			row.u[c] = col + c < DIM ? x[h * DIM + col + c] : 0;
		part(x + H * DIM + from * N, row.b);
		part(x + H * DIM + (D::G + from) * N, row.o);
	}

	/* Processes all rows of the step's sequence q, for the columns of head h from `col` on. */
	DEV void
	run(const llmc_step &s, const scan_args &in, int q, int h, int col)
	{
		const int lane = lane_id(), from = scan_group<D>(h), first = s.q_start[q],
		          end = s.q_start[q + 1];
		const bool begins = s.pos[first] == 0;
		const float rate = scan_rate<D>(in, h), bias = in.bias[h], skip = in.skip[h];
		float *state = scan_state<D>(s, in, q, h) + col, own[R][COLS];
		Row row, next;

#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int c = 0; c < COLS; c++)
				own[r][c] = !begins && r * 32 + lane < N && col + c < DIM
				                ? state[(long long)(r * 32 + lane) * DIM + c]
				                : 0;
		get(next, in, first, h, from, col);
		for (int t = first; t < end; t++) {
			row = next;
			get(next, in, t + 1 < end ? t + 1 : t, h, from, col);
			const float d = scan_step<D>(row.dt, bias), e = expf(rate * d);
			float y[COLS];
#pragma unroll
			for (int c = 0; c < COLS; c++) {
				const float add = d * row.u[c];
				y[c] = lane == 0 ? skip * row.u[c] : 0;
#pragma unroll
				for (int r = 0; r < R; r++) {
					own[r][c] = fmaf(e, own[r][c], row.b[r] * add);
					y[c] = fmaf(own[r][c], row.o[r], y[c]);
				}
			}
			const float sum = column_sum<COLS>(y);
			const int c = col + column_of<COLS>(lane);
			if (lane % (32 / COLS) == 0 && c < DIM)
				in.y[((long long)t * H + h) * DIM + c] = sum;
		}
#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int c = 0; c < COLS; c++)
				if (r * 32 + lane < N && col + c < DIM)
					state[(long long)(r * 32 + lane) * DIM + c] = own[r][c];
	}

	/* Distributes the first n_seq sequences of the step over the warps of the grid. */
	DEV void
	deal(const llmc_step &s, const scan_args &in, int n_seq)
	{
		const long long n = (long long)n_seq * H * BLOCKS, warps = blockDim.x / 32;

		for (long long i = blockIdx.x * warps + warp_id(); i < n; i += gridDim.x * warps)
			run(s, in, (int)(i / BLOCKS / H), (int)(i / BLOCKS % H),
			    (int)(i % BLOCKS) * COLS);
	}
};

#endif
