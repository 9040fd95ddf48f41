/* Portable matmul in fp32 of normed rows of x with rows of weights, for every shape, storage type
 * and architecture.
 *
 * A CTA of 8 warps handles 8 tokens at a time. A warp handles two rows of weights, a lane one unit
 * of each at a time (cuda/weights/weights.h). Chunks of columns of the tokens are normed into
 * shared memory, from which all warps read. The result of a token does not depend on other tokens:
 * a lane adds its units in order, then the lanes' sums are added. */
#ifndef LLMC_CUDA_GEMM_GEMM_GENERIC_H
#define LLMC_CUDA_GEMM_GEMM_GENERIC_H

#include "cuda/norm/norm.h"
#include "cuda/weights/weights.h"

enum { ROWS_TOKENS = 8, ROWS_CHUNK = 1024, ROWS_WARPS = 8 };

/* Offset of column c. 4 floats of padding per 32 columns put lanes whose units are 32 columns apart
 * on different banks. */
DEV constexpr int
rows_at(int c)
{
	return c + c / 32 * 4;
}

struct alignas(16) rows_shared {
	float x[ROWS_TOKENS][ROWS_CHUNK + ROWS_CHUNK / 8];
	float mean[ROWS_TOKENS], scale[ROWS_TOKENS];
};

/* Source of the rows of x: row t, or out_row[t] if out_row is not NULL; nw and nb may be NULL. */
struct rows_x {
	const float *x;
	const int *out_row;
	const float *nw, *nb;
	float eps;
	int plus_one;
};

DEV const float *
rows_of(const rows_x &x, int t, int cols)
{
	return x.x + (long long)(x.out_row ? x.out_row[t] : t) * cols;
}

/* Multiplies units [first, last) of two rows of weights by NT tokens of the chunk that begins at
 * column c0, and adds the results. */
template <class W, int NT> DEV void
rows_chunk(const rows_shared &s, const unsigned char *const (&w)[2], int first, int last, int c0,
           float (&acc)[2][ROWS_TOKENS])
{
#pragma unroll 1 /* unrolling would need more registers than a thread has */
	for (int u = first + lane_id(); u < last; u += 32) {
		const int at0 = rows_at(W::column(u, 0) - c0),
		          at1 = rows_at(W::column(u, 0) + W::SPAN - c0);
		float v[2][W::UNIT];
		W::decode(W::load(w[0], u), u, v[0]);
		W::decode(W::load(w[1], u), u, v[1]);
#pragma unroll
		for (int t = 0; t < NT; t++)
#pragma unroll
			for (int i = 0; i < W::UNIT; i += 4) {
				const float4 f =
				    *(const float4 *)&s.x[t][i < 16 ? at0 + i : at1 + i - 16];
#pragma unroll
				for (int r = 0; r < 2; r++)
					acc[r][t] = fmaf(v[r][i + 3], f.w,
					                 fmaf(v[r][i + 2], f.z,
					                      fmaf(v[r][i + 1], f.y,
					                           fmaf(v[r][i], f.x, acc[r][t]))));
			}
	}
}

/* Multiplies tokens [t0, t0 + 8) below n by the two rows at w. Lane r * 8 + i returns the dot
 * product of row w[r] and token t0 + i. All threads of the CTA call. */
template <class W, class NORM> DEV float
rows_times(rows_shared &s, const rows_x &x, const unsigned char *const (&w)[2], int t0, int n)
{
	const int nt = min((int)ROWS_TOKENS, n - t0), stage = nt > 1 ? (int)ROWS_TOKENS : 1,
	          lane = lane_id(), warp = warp_id();
	float acc[2][ROWS_TOKENS] = {};

	__syncthreads(); /* all warps have read s for the last tile */
	if (warp < nt) {
		float mean, scale;
		NORM::stats(rows_of(x, t0 + warp, W::COLS), W::COLS, x.eps, mean, scale);
		if (lane == 0) {
			s.mean[warp] = mean;
			s.scale[warp] = scale;
		}
	}
	for (int c0 = 0; c0 < W::COLS; c0 += ROWS_CHUNK) {
		const int width = min((int)ROWS_CHUNK, W::COLS - c0),
		          padded = (width + 31) / 32 * 32;
		__syncthreads();
		for (int t = 0; t < stage; t++) { /* zeros past the columns and past the tokens */
			const float *from = rows_of(x, t0 + min(t, nt - 1), W::COLS) + c0;
			for (int c = threadIdx.x; c < padded; c += 32 * ROWS_WARPS)
				s.x[t][rows_at(c)] =
				    c < width && t < nt
				        ? NORM::apply(from[c], s.mean[t], s.scale[t], x.nw, x.nb,
				                      c0 + c, x.plus_one)
				        : 0.0f;
		}
		__syncthreads();
		const int first = c0 / W::UNIT,
		          last = min((int)W::UNITS, (c0 + ROWS_CHUNK) / W::UNIT);
		if (nt > 1)
			rows_chunk<W, ROWS_TOKENS>(s, w, first, last, c0, acc);
		else
			rows_chunk<W, 1>(s, w, first, last, c0, acc);
	}
	float mine = 0;
#pragma unroll
	for (int r = 0; r < 2; r++)
#pragma unroll
		for (int t = 0; t < ROWS_TOKENS; t++)
			if (t < stage) {
				float sum = warp_sum(acc[r][t]);
				if (lane == r * ROWS_TOKENS + t)
					mine = sum;
			}
	return mine;
}

/* Returns the address of a row of a matrix of `rows` rows. For indices past the end it returns that
 * of the last row. */
template <class W> DEV const unsigned char *
rows_w(const void *w, int row, int rows)
{
	return (const unsigned char *)w + min(row, rows - 1) * W::ROW;
}

/* Loop of most kernels that use this file: y[t][row] = FINISH(dot product, row, t, ...) for ROWS
 * rows and n tokens. A CTA handles 16 rows (ROWS_BLOCK) of each tile. */
enum { ROWS_BLOCK = 2 * ROWS_WARPS };

template <class W, class NORM, class FINISH> DEV void
rows_all(rows_shared &s, const rows_x &x, const void *w, int rows, int n, FINISH finish)
{
	const int row = (blockIdx.x * ROWS_WARPS + warp_id()) * 2, lane = lane_id();
	const unsigned char *const at[2] = { rows_w<W>(w, row, rows), rows_w<W>(w, row + 1, rows) };

	for (int t0 = blockIdx.y * ROWS_TOKENS; t0 < n; t0 += gridDim.y * ROWS_TOKENS) {
		const float v = rows_times<W, NORM>(s, x, at, t0, n);
		const int r = row + lane / ROWS_TOKENS, t = t0 + lane % ROWS_TOKENS;
		if (lane < 2 * ROWS_TOKENS && r < rows && t < n)
			finish(v, r, (long long)t * rows + r);
	}
}

#endif
