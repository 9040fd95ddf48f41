/* Activations for tensor cores. A row is normed, then rounded to the 16-bit type of the weights.
 * f16 values are scaled by a power of two per row, so that the largest magnitude is in [2^13,
 * 2^14). Nothing overflows then, and small values keep their precision. */
#ifndef LLMC_CUDA_GEMM_QUANTIZE_ACT_H
#define LLMC_CUDA_GEMM_QUANTIZE_ACT_H

#include "cuda/epilogue/epilogue.h"
#include "cuda/gemm/gemm_tile.h"
#include "cuda/norm/norm.h"

struct quantize_act_shared {
	float sum[8], square[8], top[8];
};

/* Loads four values of a row of f32 or bf16. */
DEV void
quantize_act_read(const value_f32 *x, float (&v)[4])
{
	const uint4 q = ld_v4(x);
	v[0] = __uint_as_float(q.x);
	v[1] = __uint_as_float(q.y);
	v[2] = __uint_as_float(q.z);
	v[3] = __uint_as_float(q.w);
}

DEV void
quantize_act_read(const value_bf16 *x, float (&v)[4])
{
	const uint2 q = ld_v2(x);
	v[0] = bf16_lo(q.x);
	v[1] = bf16_hi(q.x);
	v[2] = bf16_lo(q.y);
	v[3] = bf16_hi(q.y);
}

/* Returns the exponent of the power-of-two scale of an f16 row, with which the largest value gets
 * exponent 13. Rows of zeros, infinities or very small values are not scaled. */
DEV int
quantize_act_bias(float top)
{
	const int e = (int)(__float_as_uint(top) >> 23) - 127;

	return e == 128 || e < -112 ? 0 : 13 - e;
}

/* A thread's part of a norm's weights, in registers if they fit. These weights are constants and
 * not in L2 yet. Loads issued before the PDL wait therefore overlap with the end of the previous
 * kernel. */
template <class W, class NORM> struct quantize_act_gain {
	enum {
		N = (W::COLS + 4 * GEMM_THREADS - 1) / (4 * GEMM_THREADS),
		EARLY = NORM::NORMED && N <= 16,
		HELD = EARLY ? N : 1
	};
	float w[HELD][4];

	__device__ __forceinline__ explicit quantize_act_gain(const norm_vectors &norm)
	{
#pragma unroll
		for (int i = 0; i < HELD; i++) {
			const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
#pragma unroll
			for (int c = 0; c < 4; c++)
				w[i][c] = 1;
			if (EARLY && norm.w && k < W::COLS)
				quantize_act_read(norm.w + k, w[i]);
		}
	}
	/* weight of value k + c, in the thread's i-th group of four */
	__device__ __forceinline__ float
	of(const norm_vectors &norm, int i, int k, int c) const
	{
		return EARLY ? w[EARLY ? i : 0][c] : norm.w ? norm.w[k + c] : 1.0f;
	}
};

/* number of groups of four values of a row per thread */
template <class W> DEV constexpr int
quantize_act_groups()
{
	return (W::COLS + 4 * GEMM_THREADS - 1) / (4 * GEMM_THREADS);
}

/* Loads and norms the CTA's row x [W::COLS]. Value c of group i is that of column (thread + i *
 * GEMM_THREADS) * 4 + c, and 0 past the row. */
template <class W, class NORM, class X, int N> DEV void
quantize_act_load(const X *x, const norm_vectors &norm, const quantize_act_gain<W, NORM> &gain,
                  quantize_act_shared &s, float (&v)[N][4])
{
	constexpr int COLS = W::COLS;

#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
#pragma unroll
		for (int c = 0; c < 4; c++)
			v[i][c] = 0;
		if (k < COLS)
			quantize_act_read(x + k, v[i]);
	}
	if constexpr (NORM::NORMED) {
		float mean = 0, square = 0;
		if constexpr (NORM::MEAN) {
			float sum = 0;
#pragma unroll
			for (int i = 0; i < N; i++)
				sum += v[i][0] + v[i][1] + (v[i][2] + v[i][3]);
			mean = block_sum(sum, s.sum) / COLS;
		}
#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				if (((int)threadIdx.x + i * GEMM_THREADS) * 4 < COLS) {
					v[i][c] -= mean;
					square += v[i][c] * v[i][c];
				}
		const float r = 1.0f / sqrtf(block_sum(square, s.square) / COLS + norm.eps);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
#pragma unroll
			for (int c = 0; c < 4; c++)
				if (k < COLS)
					v[i][c] =
					    v[i][c] * r * (gain.of(norm, i, k, c) + norm.plus_one) +
					    (norm.b ? norm.b[k + c] : 0.0f);
		}
	}
}

/* Norms and rounds the CTA's row, from x [W::COLS] to act [W::COLS]. scale: set to the factor of
 * the row's results (f16 only). act is a pointer, or an object for which act + k is the address of
 * value k (in steps of 4). upto: zeros are written from COLS to there */
template <class W, class NORM, class X, class A> DEV void
quantize_act_row(const X *x, const norm_vectors &norm, const quantize_act_gain<W, NORM> &gain,
                 A act, float *scale, int upto = W::COLS)
{
	SHARED(quantize_act_shared, s);
	constexpr int N = quantize_act_groups<W>();
	float v[N][4];

	quantize_act_load<W, NORM>(x, norm, gain, s, v);
	float up = 1;
	if constexpr (!W::BF16) {
		float top = 0;
#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				top = fmaxf(top, fabsf(v[i][c]));
		const int shift = quantize_act_bias(block_max(top, s.top));
		up = __uint_as_float((unsigned)(127 + shift) << 23);
		if (threadIdx.x == 0)
			*scale = __uint_as_float((unsigned)(127 - shift) << 23);
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
		if (k < upto)
			st_v2(act + k, make_uint2(w_pack<W>(v[i][0] * up, v[i][1] * up),
			                          w_pack<W>(v[i][2] * up, v[i][3] * up)));
	}
}

template <class W, class NORM, class X, class A> DEV void
quantize_act_row(const X *x, const norm_vectors &norm, A act, float *scale, int upto = W::COLS)
{
	quantize_act_row<W, NORM>(x, norm, quantize_act_gain<W, NORM>(norm), act, scale, upto);
}

#endif
