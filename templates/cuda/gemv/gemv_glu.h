/* GEMV of norm_glu. A group has 4 rows of gate and the same 4 rows of up, so one thread holds both
 * halves of a result. */
#ifndef LLMC_CUDA_GEMV_GEMV_GLU_H
#define LLMC_CUDA_GEMV_GEMV_GLU_H

#include "cuda/gemv/gemv.h"

/* y = F(gate x + b, up x + b'), for W = [gate; up] of N rows each; b may be NULL */
template <int N, float (*F)(float, float)> struct gemv_glu {
	enum { GROUPS = (N + 3) / 4, UNIT = 0, NEEDS_PAGE = 0, FIRST = 0 };
	const llmc_step &s;
	float *y;
	const float *b;

	DEV int
	row(int group, int n)
	{
		return min(group * 4 + (n & 3), N - 1) + (n >> 2) * N;
	}
	__device__ __forceinline__ int
	count() const
	{
		return s.n[0];
	}
	__device__ __forceinline__ int
	x_row(int t) const
	{
		return t;
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

	__device__ __forceinline__ float4
	prefetch(int group, int j, int) const
	{
		const int r = min(group * 4 + j, N - 1);

		return make_float4(b ? b[r] : 0, b ? b[N + r] : 0, 0, 0);
	}

	__device__ __forceinline__ void
	store(int group, int j, int t, float u, float v, const float4 &early, const int2 &) const
	{
		const int r = group * 4 + j;

		if (r < N)
			y[(long long)t * N + r] = F(u + early.x, v + early.y);
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
