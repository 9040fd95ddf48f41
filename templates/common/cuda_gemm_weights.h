/* Weights of a tile on their way to shared memory: 16-bit ones by cp.async as they are; block formats by registers, as
 * f16 (layout planes: a row is one plane of each field of all its blocks, each padded to 16 bytes).
 *
 *     fetch(to, k0)   begins to bring columns [k0, k0 + BK)
 *     put(to)         ends it: what fetch holds in registers is unpacked
 *
 * Columns past the matrix are zeros. Rows past it are some row: their results are dropped. With GEMM_PAIRED a warp's rows are half of
 * the matrix' first half and half of its second, so that a thread holds both results of one column of y. */
#ifndef LLMC_CUDA_GEMM_WEIGHTS_H
#define LLMC_CUDA_GEMM_WEIGHTS_H

#include "common/cuda_gemm_tile.h"

#if defined(W_bf16) || defined(W_f16)
#define W_PLANES 0
#else
#define W_PLANES 1
#endif

#ifdef GEMM_PAIRED
enum { GEMM_OUT_SHARE = 2 }; /* rows of the matrix for one column of y */
#else
enum { GEMM_OUT_SHARE = 1 };
#endif

/* The column of y that row r of a tile stands for, from the tile's first, and whether it is in the second half. */
template <class T> DEV int
gemm_column(int r)
{
#ifdef GEMM_PAIRED
	return r / T::WN * (T::WN / 2) + r % (T::WN / 2);
#else
	return r;
#endif
}

template <class T> DEV bool
gemm_second(int r)
{
#ifdef GEMM_PAIRED
	return r % T::WN >= T::WN / 2;
#else
	return false;
#endif
}

#if !W_PLANES

template <class T> struct gemm_weights {
	static constexpr int PASS = GEMM_THREADS / T::CHUNKS; /* rows that all threads copy at one time */
	static_assert(PASS % T::WN == 0, "a thread's rows are equally far apart");
	const unsigned short *from;
	int                   r, c, left; /* first row and chunk; columns of y from the row's to the last */

	__device__ __forceinline__ gemm_weights(const void *matrix, int n0) : r((int)threadIdx.x / T::CHUNKS), c((int)threadIdx.x % T::CHUNKS)
	{
		const int n = n0 + gemm_column<T>(r);
		left = GEMM_ROWS - n;
		from = (const unsigned short *)matrix + (long long)(n + (gemm_second<T>(r) ? GEMM_ROWS : 0)) * GEMM_COLS + c * 8;
	}

	__device__ __forceinline__ void
	fetch(unsigned char *to, int k0)
	{
		to += gemm_place<T>(r, c);
#pragma unroll
		for (int i = 0; i < (T::BN + PASS - 1) / PASS; i++) {
			const bool in = i * (PASS / GEMM_OUT_SHARE) < left && (GEMM_COLS % T::BK == 0 || k0 + c * 8 < GEMM_COLS);
			if (T::BN % PASS == 0 || r + i * PASS < T::BN)
				cp_async_16_fill(to + i * PASS * T::BK * 2, from + k0 + (long long)i * (PASS / GEMM_OUT_SHARE) * GEMM_COLS, in ? 16 : 0);
		}
	}
	__device__ __forceinline__ void put(unsigned char *) {}
};

#else

/* ---- fields of a row ---- */
#if defined(W_q4_k) || defined(W_q5_k) || defined(W_q6_k)
enum { WB = 256 };
#else
enum { WB = 32 };
#endif
#define W_PLANE(bytes) ((GEMM_COLS / WB * (bytes) + 15) / 16 * 16)

#if defined(W_q8_0)
enum { W_QS = 32, W_QH = 0, W_HEAD = 2 };
#elif defined(W_q4_0)
enum { W_QS = 16, W_QH = 0, W_HEAD = 2 };
#elif defined(W_q4_1)
enum { W_QS = 16, W_QH = 0, W_HEAD = 4 };
#elif defined(W_q5_0)
enum { W_QS = 16, W_QH = 4, W_HEAD = 2 };
#elif defined(W_q5_1)
enum { W_QS = 16, W_QH = 4, W_HEAD = 4 };
#elif defined(W_q4_k)
enum { W_QS = 128, W_QH = 0, W_HEAD = 16 };
#elif defined(W_q5_k)
enum { W_QS = 128, W_QH = 32, W_HEAD = 16 };
#elif defined(W_q6_k)
enum { W_QS = 128, W_QH = 64, W_HEAD = 16, W_D = 2 };
#endif
#ifdef W_q6_k
enum { W_AT_D = W_PLANE(W_QS) + W_PLANE(W_QH) + W_PLANE(W_HEAD), W_STRIDE = W_AT_D + W_PLANE(W_D) };
#else
enum { W_STRIDE = W_PLANE(W_QS) + W_PLANE(W_QH) + W_PLANE(W_HEAD) };
#endif
enum { W_AT_QH = W_PLANE(W_QS), W_AT_HEAD = W_AT_QH + W_PLANE(W_QH) };

/* Byte i of v, 0 .. 255, as a float, less 2^23: the subtraction of `base` (2^23 + zero point) is exact. */
DEV float
gemm_byte(unsigned v, int i, float base)
{
	return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u | (unsigned)i)) - base;
}

/* The bytes of a, then of b, times d plus m, as f16. */
DEV uint4
gemm_unpack(unsigned a, unsigned b, float base, float d, float m)
{
	unsigned p[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const unsigned v = i < 2 ? a : b;
		p[i] = pack_f16(fmaf(gemm_byte(v, i % 2 * 2, base), d, m), fmaf(gemm_byte(v, i % 2 * 2 + 1, base), d, m));
	}
	return make_uint4(p[0], p[1], p[2], p[3]);
}

/* Bits 0 .. 3 of x to bit 4 of four bytes. */
DEV unsigned gemm_fifth(unsigned x) { return ((x & 15) * 0x00204081u & 0x01010101u) << 4; }

/* Scale and minimum of sub-block j of a q4_k or q5_k block. */
DEV void
gemm_k_scale(const uint4 &head, int j, float &d, float &m)
{
	const int s = j % 4 * 8;
	const unsigned sc = j < 4 ? head.y >> s & 63 : (head.w >> s & 15) | (head.y >> (s + 6) & 3) << 4;
	const unsigned mn = j < 4 ? head.z >> s & 63 : (head.w >> (s + 4) & 15) | (head.z >> (s + 6) & 3) << 4;

	d = f16_lo(head.x) * (float)sc;
	m = -(f16_hi(head.x) * (float)mn);
}

/* Units of 32 weights of a row, one for each thread. Of the 64 columns that two units hold, unit u has 32 in a row, but for q4_k and q5_k 16
 * of the first and 16 of the second 32: those that share bytes. */
template <class T> struct gemm_weights {
	static constexpr int IN_ROW = T::BK / 32, UNITS = T::BN * IN_ROW;
	static_assert(T::BK % 64 == 0 && UNITS <= GEMM_THREADS, "a unit a thread, and they come in pairs");
	const unsigned char *row;
	int                  r, u, col; /* row of the tile, unit in it, the unit's first column: of its block, or of the pair's second half */
	uint4                qs[2], qh, head;
	unsigned             more, scale;

	__device__ __forceinline__ gemm_weights(const void *matrix, int n0) : r((int)threadIdx.x / IN_ROW), u((int)threadIdx.x % IN_ROW), col(0)
	{
		const int n = min(n0 + gemm_column<T>(r), GEMM_ROWS - 1) + (gemm_second<T>(r) ? GEMM_ROWS : 0);
		row = (const unsigned char *)matrix + (long long)n * W_STRIDE;
	}

	__device__ __forceinline__ bool
	here() const
	{
		return (UNITS == GEMM_THREADS || (int)threadIdx.x < UNITS) && (GEMM_COLS % T::BK == 0 || col < GEMM_COLS);
	}

	__device__ __forceinline__ void
	fetch(unsigned char *, int k0)
	{
		col = k0 + u * 32;
		if (!here())
			return;
		const int block = col / WB;
#if defined(W_q8_0)
		qs[0] = ld_v4(row + block * 32);
		qs[1] = ld_v4(row + block * 32 + 16);
#elif defined(W_q4_k) || defined(W_q5_k)
		qs[0] = ld_v4(row + block * 128 + col % 256 / 64 * 32 + u % 2 * 16);
		head = ld_v4(row + W_AT_HEAD + block * 16);
#ifdef W_q5_k
		qh = ld_v4(row + W_AT_QH + block * 32 + u % 2 * 16);
#endif
#elif defined(W_q6_k)
		const int half = col % 256 / 128;
		qs[0] = ld_v4(row + block * 128 + half * 64 + u % 2 * 32);
		qs[1] = ld_v4(row + block * 128 + half * 64 + u % 2 * 32 + 16);
		qh = ld_v4(row + W_AT_QH + block * 64 + half * 32);
		head = ld_v4(row + W_AT_QH + block * 64 + half * 32 + 16);
		more = *(const unsigned short *)(row + W_AT_HEAD + block * 16 + col % 256 / 16);
		scale = *(const unsigned short *)(row + W_AT_D + block * 2);
#else
		qs[0] = ld_v4(row + block * 16);
#if defined(W_q5_0) || defined(W_q5_1)
		qh.x = ld_v1(row + W_AT_QH + block * 4);
#endif
#endif
#if defined(W_q8_0) || defined(W_q4_0) || defined(W_q5_0)
		more = *(const unsigned short *)(row + W_AT_HEAD + block * 2);
#elif defined(W_q4_1) || defined(W_q5_1)
		more = ld_v1(row + W_AT_HEAD + block * 4);
#endif
	}

	__device__ __forceinline__ void
	put(unsigned char *to)
	{
		if (UNITS < GEMM_THREADS && (int)threadIdx.x >= UNITS)
			return;
#pragma unroll
		for (int c = 0; c < 4; c++) {
#if defined(W_q4_k) || defined(W_q5_k)
			const int chunk = u / 2 * 8 + u % 2 * 2 + c % 2 + c / 2 * 4;
#else
			const int chunk = u * 4 + c;
#endif
			st_v4(to + gemm_place<T>(r, chunk), here() ? unpack(c) : make_uint4(0, 0, 0, 0));
		}
	}

	/* 8 weights: chunk c of the unit's, in the order of columns; c is known to the compiler */
	__device__ __forceinline__ uint4
	unpack(int c) const
	{
		const float zero = 8388608.0f;
		unsigned    b[2];

#if defined(W_q8_0) || defined(W_q6_k)
		const unsigned q[8] = { qs[0].x, qs[0].y, qs[0].z, qs[0].w, qs[1].x, qs[1].y, qs[1].z, qs[1].w };
#else
		const unsigned q[4] = { qs[0].x, qs[0].y, qs[0].z, qs[0].w };
#endif
#if defined(W_q8_0)
		b[0] = q[2 * c] ^ 0x80808080u;
		b[1] = q[2 * c + 1] ^ 0x80808080u;
		return gemm_unpack(b[0], b[1], zero + 128, f16_lo(more), 0);
#elif defined(W_q4_k) || defined(W_q5_k)
		float d, m;
		const int j = col % 256 / 64 * 2 + c / 2;
		gemm_k_scale(head, j, d, m);
#ifdef W_q5_k
		const unsigned h[4] = { qh.x, qh.y, qh.z, qh.w };
#endif
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int at = c % 2 * 2 + e;
			b[e] = q[at] >> (c / 2 * 4) & 0x0f0f0f0fu;
#ifdef W_q5_k
			b[e] |= (h[at] >> j & 0x01010101u) << 4;
#endif
		}
		return gemm_unpack(b[0], b[1], zero, d, m);
#elif defined(W_q6_k)
		const unsigned h[8] = { qh.x, qh.y, qh.z, qh.w, head.x, head.y, head.z, head.w };
		const int part = col % 128 / 32;
		const float d = f16_lo(scale) * (float)(signed char)(more >> (c / 2 * 8) & 255);
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = (q[c * 2 + e] >> (part / 2 * 4) & 0x0f0f0f0fu) | (h[c * 2 + e] >> (part * 2) & 0x03030303u) << 4;
		return gemm_unpack(b[0], b[1], zero + 32, d, 0);
#else
#if defined(W_q4_1) || defined(W_q5_1)
		const float d = f16_lo(more), m = f16_hi(more), base = zero;
#elif defined(W_q5_0)
		const float d = f16_lo(more), m = 0, base = zero + 16;
#else
		const float d = f16_lo(more), m = 0, base = zero + 8;
#endif
#pragma unroll
		for (int e = 0; e < 2; e++) {
			b[e] = q[c % 2 * 2 + e] >> (c / 2 * 4) & 0x0f0f0f0fu;
#if defined(W_q5_0) || defined(W_q5_1)
			b[e] |= gemm_fifth(qh.x >> (c * 8 + e * 4));
#endif
		}
		return gemm_unpack(b[0], b[1], base, d, m);
#endif
	}
};

#endif
#endif
