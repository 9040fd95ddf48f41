/* What becomes of the results of a matrix product: two neighbouring columns at a time, by the thread that holds them. */
#ifndef LLMC_CUDA_GEMM_EPILOGUE_H
#define LLMC_CUDA_GEMM_EPILOGUE_H

#include "common/cuda_math.h"

/* Columns n, n + 1 of a row at p; n is even, so the pair is aligned when rows are of even length. */
template <int WIDTH> DEV void
gemm_load2(const float *p, int n, float (&v)[2])
{
	if (WIDTH % 2 == 0) {
		if (n < WIDTH) {
			uint2 q = ld_v2(p + n);
			v[0] = __uint_as_float(q.x);
			v[1] = __uint_as_float(q.y);
		}
	} else {
		if (n < WIDTH)
			v[0] = p[n];
		if (n + 1 < WIDTH)
			v[1] = p[n + 1];
	}
}

template <int WIDTH> DEV void
gemm_store2(float *p, int n, const float (&v)[2])
{
	if (WIDTH % 2 == 0) {
		if (n < WIDTH)
			st_v2(p + n, make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1])));
	} else {
		if (n < WIDTH)
			p[n] = v[0];
		if (n + 1 < WIDTH)
			p[n + 1] = v[1];
	}
}

/* v += b */
template <int WIDTH> DEV void
gemm_bias(const float *b, int n, float (&v)[2])
{
	float t[2] = { 0, 0 };

	if (b == 0)
		return;
	gemm_load2<WIDTH>(b, n, t);
	v[0] += t[0];
	v[1] += t[1];
}

/* y = F(v + b) */
template <int WIDTH, float (*F)(float)> struct gemm_store {
	float       *y;
	const float *b;
	template <int N> __device__ __forceinline__ void
	take(int m, int n, float (&v)[N][2], float (&)[N][2]) const
	{
#pragma unroll
		for (int j = 0; j < N; j++) {
			gemm_bias<WIDTH>(b, n + 8 * j, v[j]);
			v[j][0] = F(v[j][0]);
			v[j][1] = F(v[j][1]);
			gemm_store2<WIDTH>(y + (long long)m * WIDTH, n + 8 * j, v[j]);
		}
	}
};

/* y = scale * r + v + b; y may be r: each thread reads its places before it writes them. */
template <int WIDTH> struct gemm_add {
	float       *y;
	const float *b, *r;
	float        scale;
	template <int N> __device__ __forceinline__ void
	take(int m, int n, float (&v)[N][2], float (&)[N][2]) const
	{
		float t[N][2] = {};
#pragma unroll
		for (int j = 0; j < N; j++)
			gemm_load2<WIDTH>(r + (long long)m * WIDTH, n + 8 * j, t[j]);
#pragma unroll
		for (int j = 0; j < N; j++) {
			gemm_bias<WIDTH>(b, n + 8 * j, v[j]);
			v[j][0] += scale * t[j][0];
			v[j][1] += scale * t[j][1];
			gemm_store2<WIDTH>(y + (long long)m * WIDTH, n + 8 * j, v[j]);
		}
	}
};

/* y = F(v + b) * (u + b'): v gate, u up */
template <int WIDTH, float (*F)(float)> struct gemm_glu {
	float       *y;
	const float *b;
	template <int N> __device__ __forceinline__ void
	take(int m, int n, float (&v)[N][2], float (&u)[N][2]) const
	{
#pragma unroll
		for (int j = 0; j < N; j++) {
			gemm_bias<WIDTH>(b, n + 8 * j, v[j]);
			gemm_bias<WIDTH>(b ? b + WIDTH : b, n + 8 * j, u[j]);
			v[j][0] = F(v[j][0]) * u[j][0];
			v[j][1] = F(v[j][1]) * u[j][1];
			gemm_store2<WIDTH>(y + (long long)m * WIDTH, n + 8 * j, v[j]);
		}
	}
};

/* Columns n, n + 1 of a row that a library has left */
template <int WIDTH> DEV void
gemm_left2(const float *p, int n, float (&v)[2])
{
	gemm_load2<WIDTH>(p, n, v);
}

template <int WIDTH> DEV void
gemm_left2(const unsigned short *p, int n, float (&v)[2]) /* bf16 */
{
	if (WIDTH % 2 == 0) {
		const unsigned q = n < WIDTH ? ld_v1(p + n) : 0;
		v[0] = bf16_to_f32((unsigned short)q);
		v[1] = bf16_to_f32((unsigned short)(q >> 16));
	} else {
		v[0] = n < WIDTH ? bf16_to_f32(p[n]) : 0;
		v[1] = n + 1 < WIDTH ? bf16_to_f32(p[n + 1]) : 0;
	}
}

/* What follows a product that a library has left in memory, raw [n, PARTS, WIDTH]: blocks of 256 threads, blockIdx.x the row, blockIdx.y
 * GEMM_LEFT of its columns. scale, e: as in cuda_gemm.h; e may write over raw, each thread over what it has read. */
enum { GEMM_LEFT = 2048 };

template <int WIDTH, int PARTS, class T, class E> DEV void
gemm_after(const T *raw, const float *scale, int n, const E &e)
{
	const int m = (int)blockIdx.x, c = (int)blockIdx.y * GEMM_LEFT + (int)threadIdx.x / 4 * 32 + (int)threadIdx.x % 4 * 2;
	float v[4][2] = {}, u[4][2] = {};

	if (m >= n || c >= WIDTH)
		return;
	const float s = scale ? scale[m] : 1.0f;
	raw += (long long)m * PARTS * WIDTH;
#pragma unroll
	for (int j = 0; j < 4; j++) {
		gemm_left2<WIDTH>(raw, c + 8 * j, v[j]);
		if (PARTS == 2)
			gemm_left2<WIDTH>(raw + WIDTH, c + 8 * j, u[j]);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			v[j][i] *= s;
			u[j][i] *= s;
		}
	}
	e.take(m, c, v, u);
}

#endif
