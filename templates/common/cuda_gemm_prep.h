/* Activations for tensor cores: a row normed, then rounded to the 16 bits that its weights ask for. Half floats are scaled by a power of
 * two for each row, so that the largest value is in [2^13, 2^14): nothing overflows, and small values keep their digits.
 *
 * The includer defines PREP_COLS, NORM_rms | NORM_layer | NORM_none, NORM_EPS, NORM_PLUS_ONE, and W_<dtype>. */
#ifndef LLMC_CUDA_GEMM_PREP_H
#define LLMC_CUDA_GEMM_PREP_H

#include "common/cuda_gemm_tile.h"

struct prep_shared {
	float sum[8], square[8], top[8];
};

/* The block's row: x [PREP_COLS] to act [PREP_COLS]; scale: what results are multiplied by (half floats only). act is a pointer, or
 * something else whose act + k is the place of value k (in steps of 4). */
template <class A> DEV void
prep_row(const float *x, const float *nw, const float *nb, A act, float *scale)
{
#if !defined(NORM_none) || !defined(W_bf16)
	SHARED(prep_shared, s);
#endif
	constexpr int N = (PREP_COLS + 4 * GEMM_THREADS - 1) / (4 * GEMM_THREADS);
	float v[N][4];

#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
		uint4 q = make_uint4(0, 0, 0, 0);
		if (k < PREP_COLS)
			q = ld_v4(x + k);
		v[i][0] = __uint_as_float(q.x);
		v[i][1] = __uint_as_float(q.y);
		v[i][2] = __uint_as_float(q.z);
		v[i][3] = __uint_as_float(q.w);
	}
#ifndef NORM_none
	float mean = 0, square = 0;
#ifdef NORM_layer
	float sum = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		sum += v[i][0] + v[i][1] + (v[i][2] + v[i][3]);
	mean = block_sum(sum, s.sum) / PREP_COLS;
#endif
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (((int)threadIdx.x + i * GEMM_THREADS) * 4 < PREP_COLS) {
				v[i][c] -= mean;
				square += v[i][c] * v[i][c];
			}
	const float r = 1.0f / sqrtf(block_sum(square, s.square) / PREP_COLS + NORM_EPS);
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (k < PREP_COLS)
				v[i][c] = v[i][c] * r * ((nw ? nw[k + c] : 1.0f) + NORM_PLUS_ONE) + (nb ? nb[k + c] : 0.0f);
	}
#endif
	float up = 1;
#ifndef W_bf16
	float top = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			top = fmaxf(top, fabsf(v[i][c]));
	/* the exponent of the largest value becomes 13; zero rows, infinities and the very small stay as they are */
	const int e = (int)(__float_as_uint(block_max(top, s.top)) >> 23) - 127;
	const int shift = e == 128 || e < -112 ? 0 : 13 - e;
	up = __uint_as_float((unsigned)(127 + shift) << 23);
	if (threadIdx.x == 0)
		*scale = __uint_as_float((unsigned)(127 - shift) << 23);
#endif
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
		if (k < PREP_COLS)
			st_v2(act + k, make_uint2(gemm_pack(v[i][0] * up, v[i][1] * up), gemm_pack(v[i][2] * up, v[i][3] * up)));
	}
}

#endif
