/* GEMV of norm_glu: a group has 4 rows of gate and the same of up, so that both halves of a result meet in one thread.
 *
 * Defined before inclusion, besides what cuda_gemv.h asks for: ROWS (of gate), GV_ACT(v). Arguments as norm_glu has them. */
#ifndef LLMC_CUDA_GEMV_GLU_H
#define LLMC_CUDA_GEMV_GLU_H

#include "common/cuda_gemv.h"

struct gv_op {
	enum { GROUPS = (ROWS + 3) / 4, UNIT = 0, PLACED = 0, FIRST = 0 };

	static __device__ __forceinline__ int row(int group, int n) { return min(group * 4 + (n & 3), ROWS - 1) + (n >> 2) * ROWS; }
	static __device__ __forceinline__ int count(const llmc_call &p) { return N_TOK(p); }
	static __device__ __forceinline__ int x_row(const llmc_call &, int t) { return t; }
	static __device__ __forceinline__ int2 spot(const llmc_call &, int) { return make_int2(0, 0); }
	static __device__ __forceinline__ int page(const llmc_call &, const int2 &) { return 0; }

	static __device__ __forceinline__ float4
	before(const llmc_call &p, int group, int j, int)
	{
		const float *bias = (const float *)p.a[4];
		const int r = min(group * 4 + j, ROWS - 1);

		return make_float4(bias ? bias[r] : 0, bias ? bias[ROWS + r] : 0, 0, 0);
	}

	static __device__ __forceinline__ void
	put(const llmc_call &p, int group, int j, int t, float a, float b, const float4 &early, const int2 &)
	{
		const int r = group * 4 + j;

		if (r < ROWS)
			((float *)p.a[5])[(long long)t * ROWS + r] = GV_ACT(a + early.x) * (b + early.y);
	}

	static __device__ __forceinline__ float raw(const llmc_call &, int, float v) { return v; }
	static __device__ __forceinline__ void finish(const llmc_call &, int, int, const float *) {}
};

#endif
