/* Epilogues of GEMM kernels. An epilogue handles C neighbouring columns at a time (2, or 4 after
 * lanes have exchanged results). It runs in the thread that holds these columns in registers.
 *
 *   store(m, n, v, u)           stores row m; v[j] are its C columns from n + 4 C j on
 *   read(m, n, before)          optional: issues the loads that store needs
 *   store(m, n, v, u, before)   stores, using what read has loaded
 *   prefetch<OUT>(m, n)         hint: OUT columns of row m from n on will be stored soon
 *
 * A thread with several rows calls read for all of them before the first store, so that no load
 * waits for another row's store. */
#ifndef LLMC_CUDA_EPILOGUE_EPILOGUE_H
#define LLMC_CUDA_EPILOGUE_EPILOGUE_H

#include "cuda/math/math.h"

/* Type of activations in memory, selected by value_${Y_DTYPE}. bf16 is rounded here exactly as the
 * matmul that reads it would round it. */
typedef float value_f32;
typedef unsigned short value_bf16;

/* Loads C columns of a row at p from column n (a multiple of C), in one access if WIDTH keeps rows
 * aligned. */
template <int WIDTH, int C> DEV void
gemm_read(const float *p, int n, float (&v)[C])
{
	if constexpr (C == 4 && WIDTH % 4 == 0) {
		if (n < WIDTH) {
			uint4 q = ld_v4(p + n);
			v[0] = __uint_as_float(q.x);
			v[1] = __uint_as_float(q.y);
			v[2] = __uint_as_float(q.z);
			v[3] = __uint_as_float(q.w);
		}
	} else if constexpr (WIDTH % 2 == 0) {
#pragma unroll
		for (int c = 0; c < C; c += 2)
			if (n + c < WIDTH) {
				uint2 q = ld_v2(p + n + c);
				v[c] = __uint_as_float(q.x);
				v[c + 1] = __uint_as_float(q.y);
			}
	} else {
#pragma unroll
		for (int c = 0; c < C; c++)
			if (n + c < WIDTH)
				v[c] = p[n + c];
	}
}

template <int WIDTH, int C> DEV void
gemm_write(float *p, int n, const float (&v)[C])
{
	if constexpr (C == 4 && WIDTH % 4 == 0) {
		if (n < WIDTH)
			st_v4(p + n, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
			                        __float_as_uint(v[2]), __float_as_uint(v[3])));
	} else if constexpr (WIDTH % 2 == 0) {
#pragma unroll
		for (int c = 0; c < C; c += 2)
			if (n + c < WIDTH)
				st_v2(p + n + c,
				      make_uint2(__float_as_uint(v[c]), __float_as_uint(v[c + 1])));
	} else {
#pragma unroll
		for (int c = 0; c < C; c++)
			if (n + c < WIDTH)
				p[n + c] = v[c];
	}
}

template <int WIDTH, int C> DEV void
gemm_write(value_bf16 *p, int n, const float (&v)[C])
{
	static_assert(WIDTH % 4 == 0, "rows of whole words");
	if constexpr (C == 4) {
		if (n < WIDTH)
			st_v2(p + n, make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])));
	} else {
		if (n < WIDTH)
			st_v1(p + n, pack_bf16(v[0], v[1]));
	}
}

template <int WIDTH, int N, int C> DEV void
gemm_bias(const float *b, int n, float (&v)[N][C])
{
	float t[N][C] = {};

	if (b == 0)
		return;
#pragma unroll
	for (int j = 0; j < N; j++)
		gemm_read<WIDTH>(b, n + 4 * C * j, t[j]);
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int c = 0; c < C; c++)
			v[j][c] += t[j][c];
}

/* Result of read, for an epilogue that loads nothing in advance */
struct gemm_no_operands {
};

/* y = F(v + b) */
template <int WIDTH, float (*F)(float), class Y = value_f32> struct gemm_store {
	Y *y;
	const float *b;
	template <int N, int C> using before = gemm_no_operands;
	__device__ __forceinline__ void
	read(int, int, gemm_no_operands &) const
	{
	}
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int n, float (&v)[N][C], float (&)[N][C], gemm_no_operands = {}) const
	{
		gemm_bias<WIDTH>(b, n, v);
#pragma unroll
		for (int j = 0; j < N; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				v[j][c] = F(v[j][c]);
			gemm_write<WIDTH>(y + (long long)m * WIDTH, n + 4 * C * j, v[j]);
		}
	}
};

/* y = scale * r + v + b; y may alias r, because a thread reads its elements before it writes them.
 * TIGHT: load and store two groups of columns at a time, for kernels with few free registers. */
template <int WIDTH, bool TIGHT = false> struct gemm_add {
	float *y;
	const float *b, *r;
	float scale;
	/* Prefetches OUT columns of a row of the residual to L2. */
	template <int OUT> __device__ __forceinline__ void
	prefetch(int m, int n) const
	{
#if __CUDA_ARCH__ >= 900
		if (WIDTH % 4 == 0 && n < WIDTH)
			bulk_prefetch_l2(r + (long long)m * WIDTH + n,
			                 (unsigned)min(OUT, WIDTH - n) * 4);
#endif
	}
	template <int N, int C> struct before {
		float r[N][C];
	};
	template <int N, int C> __device__ __forceinline__ void
	read(int m, int n, before<N, C> &t) const
	{
		t = {};
#pragma unroll
		for (int j = 0; j < N; j++)
			gemm_read<WIDTH>(r + (long long)m * WIDTH, n + 4 * C * j, t.r[j]);
	}
	template <int N, int C> __device__ __forceinline__ void
	write(int m, int n, float (&v)[N][C], const before<N, C> &t) const
	{
#pragma unroll
		for (int j = 0; j < N; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				v[j][c] += scale * t.r[j][c];
			gemm_write<WIDTH>(y + (long long)m * WIDTH, n + 4 * C * j, v[j]);
		}
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int n, float (&v)[N][C], float (&)[N][C]) const
	{
		enum { AT_ONCE = TIGHT && N % 2 == 0 ? 2 : N };
		gemm_bias<WIDTH>(b, n, v);
#pragma unroll
		for (int j = 0; j < N; j += AT_ONCE) {
			float(&some)[AT_ONCE][C] = (float(&)[AT_ONCE][C])v[j];
			before<AT_ONCE, C> t;
			read(m, n + 4 * C * j, t);
			write(m, n + 4 * C * j, some, t);
		}
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int n, float (&v)[N][C], float (&)[N][C], const before<N, C> &t) const
	{
		gemm_bias<WIDTH>(b, n, v);
		write(m, n, v, t);
	}
};

/* y = F(v + b, u + b'): v gate, u up */
template <int WIDTH, float (*F)(float, float), class Y = value_f32> struct gemm_glu {
	Y *y;
	const float *b;
	template <int N, int C> using before = gemm_no_operands;
	__device__ __forceinline__ void
	read(int, int, gemm_no_operands &) const
	{
	}
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int n, float (&v)[N][C], float (&u)[N][C], gemm_no_operands = {}) const
	{
		gemm_bias<WIDTH>(b, n, v);
		gemm_bias<WIDTH>(b ? b + WIDTH : b, n, u);
#pragma unroll
		for (int j = 0; j < N; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				v[j][c] = F(v[j][c], u[j][c]);
			gemm_write<WIDTH>(y + (long long)m * WIDTH, n + 4 * C * j, v[j]);
		}
	}
};

/* Load columns n and n + 1 of a row that cuBLASLt has stored. */
template <int WIDTH> DEV void
gemm_load_raw(const float *p, int n, float (&v)[2])
{
	gemm_read<WIDTH>(p, n, v);
}

template <int WIDTH> DEV void
gemm_load_raw(const unsigned short *p, int n, float (&v)[2]) /* bf16 */
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

/* Applies the epilogue to the result of a matmul by cuBLASLt, raw [n, SHARE, ROWS]. CTAs have 256
 * threads; blockIdx.x is the row, blockIdx.y a group of GEMM_POST_COLS columns. scale and e are as
 * in cuda/gemm/gemm.h. e may overwrite raw, because each thread overwrites only what it has
 * read. */
enum { GEMM_POST_COLS = 2048 };

template <class G, class T, class E> DEV void
gemm_post(const T *raw, const float *scale, int n, const E &e)
{
	enum { WIDTH = G::ROWS, PARTS = G::SHARE };
	const int m = (int)blockIdx.x, c = (int)blockIdx.y * GEMM_POST_COLS +
	                                   (int)threadIdx.x / 4 * 32 + (int)threadIdx.x % 4 * 2;
	float v[4][2] = {}, u[4][2] = {};

	if (m >= n || c >= WIDTH)
		return;
	const float s = G::W::BF16 || !scale ? 1.0f : scale[m];
	raw += (long long)m * PARTS * WIDTH;
#pragma unroll
	for (int j = 0; j < 4; j++) {
		gemm_load_raw<WIDTH>(raw, c + 8 * j, v[j]);
		if (PARTS == 2)
			gemm_load_raw<WIDTH>(raw + WIDTH, c + 8 * j, u[j]);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			v[j][i] *= s;
			u[j][i] *= s;
		}
	}
	e.store(m, c, v, u);
}

#endif
