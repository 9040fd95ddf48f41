/* GEMV whose results are the rows of W: matmul, matmul_add, norm_matmul, norm_act, head.
 *
 * Defined before inclusion, besides what cuda_gemv.h asks for: ROWS, GV_Y (number of the argument y), GV_RESULT(v) (what is made of a result
 * with its bias); where there are: GV_BIAS, GV_ADD (numbers of the arguments), GV_ADD_SCALE; GV_HEAD: x rows are the wanted ones. */
#ifndef LLMC_CUDA_GEMV_ROWS_H
#define LLMC_CUDA_GEMV_ROWS_H

#include "common/cuda_gemv.h"

struct gv_op {
	enum {
		GROUPS = (ROWS + 7) / 8,
		UNIT = 0,
		PLACED = 0,
#ifdef GV_HEAD
		FIRST = 1
#else
		FIRST = 0
#endif
	};

	static __device__ __forceinline__ int row(int group, int n) { return min(group * 8 + n, ROWS - 1); }
#ifdef GV_HEAD
	static __device__ __forceinline__ int count(const llmc_call &p) { return N_OUT(p); }
	static __device__ __forceinline__ int x_row(const llmc_call &p, int t) { return p.s.out_row[t]; }
#else
	static __device__ __forceinline__ int count(const llmc_call &p) { return N_TOK(p); }
	static __device__ __forceinline__ int x_row(const llmc_call &, int t) { return t; }
#endif
	static __device__ __forceinline__ int2 spot(const llmc_call &, int) { return make_int2(0, 0); }
	static __device__ __forceinline__ int page(const llmc_call &, const int2 &) { return 0; }

	/* x, y: what is added to rows j and j + 4; z, w: their biases */
	static __device__ __forceinline__ float4
	before(const llmc_call &p, int group, int j, int t)
	{
		float4 v = make_float4(0, 0, 0, 0);
		const int r = group * 8 + j, s = min(r + 4, ROWS - 1);

		(void)p, (void)t;
		if (r >= ROWS)
			return v;
#ifdef GV_ADD
		const float *add = (const float *)p.a[GV_ADD] + (long long)t * ROWS;
		v.x = GV_ADD_SCALE * add[r];
		v.y = GV_ADD_SCALE * add[s];
#endif
#ifdef GV_BIAS
		const float *bias = (const float *)p.a[GV_BIAS];
		if (bias) {
			v.z = bias[r];
			v.w = bias[s];
		}
#endif
		(void)s;
		return v;
	}

	static __device__ __forceinline__ void
	put(const llmc_call &p, int group, int j, int t, float a, float b, const float4 &early, const int2 &)
	{
		float *y = (float *)p.a[GV_Y] + (long long)t * ROWS;
		const int r = group * 8 + j;

		if (r < ROWS)
			y[r] = early.x + GV_RESULT(a + early.z);
		if (r + 4 < ROWS)
			y[r + 4] = early.y + GV_RESULT(b + early.w);
	}

	static __device__ __forceinline__ float raw(const llmc_call &, int, float v) { return v; }
	static __device__ __forceinline__ void finish(const llmc_call &, int, int, const float *) {}
};

#endif
