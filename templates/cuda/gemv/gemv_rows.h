/* GEMV in which each row of W is one result: matmul, matmul_add, norm_matmul, norm_act, lm_head. */
#ifndef LLMC_CUDA_GEMV_GEMV_ROWS_H
#define LLMC_CUDA_GEMV_GEMV_ROWS_H

#include "cuda/gemv/gemv.h"

/* y = scale * add + F(W x + b) for N rows of W; b and add may be NULL. WANTED: out_row selects the
 * rows of x. */
template <int N, float (*F)(float) = act_none, bool WANTED = false> struct gemv_rows {
	enum { GROUPS = (N + 7) / 8, UNIT = 0, NEEDS_PAGE = 0, FIRST = WANTED };
	const llmc_step &s;
	float *y;
	const float *b, *add;
	float scale;

	DEV int
	row(int group, int n)
	{
		return min(group * 8 + n, N - 1);
	}
	__device__ __forceinline__ int
	count() const
	{
		return s.n[WANTED ? 3 : 0];
	}
	__device__ __forceinline__ int
	x_row(int t) const
	{
		return WANTED ? s.out_row[t] : t;
	}
	__device__ __forceinline__ int2
	position(int) const
	{
		return make_int2(0, 0);
	}
	__device__ __forceinline__ int
	page(const int2 &) const
	{
		return 0;
	}

	/* x, y: residual of rows j and j + 4; z, w: their biases */
	__device__ __forceinline__ float4
	prefetch(int group, int j, int t) const
	{
		float4 v = make_float4(0, 0, 0, 0);
		const int r = group * 8 + j, q = min(r + 4, N - 1);

		if (r >= N)
			return v;
		if (add) {
			const float *from = add + (long long)t * N;
			v.x = scale * from[r];
			v.y = scale * from[q];
		}
		if (b) {
			v.z = b[r];
			v.w = b[q];
		}
		return v;
	}

	__device__ __forceinline__ void
	store(int group, int j, int t, float u, float v, const float4 &early, const int2 &) const
	{
		float *to = y + (long long)t * N;
		const int r = group * 8 + j;

		if (r < N)
			to[r] = early.x + F(u + early.z);
		if (r + 4 < N)
			to[r + 4] = early.y + F(v + early.w);
	}

	__device__ __forceinline__ float
	raw(int, float v) const
	{
		return v;
	}
	__device__ __forceinline__ void
	finish(int, int, const float *) const
	{
	}
};

#endif
