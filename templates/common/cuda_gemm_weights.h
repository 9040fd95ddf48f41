/* Weights of a tile on their way to shared memory: 16-bit ones by asynchronous copies as they are; block formats by registers, as
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

/* The matrix' row of row r of a tile that begins at column n0 of y. */
template <class T> DEV int
gemm_weight_row(int n0, int r)
{
#ifdef GEMM_PAIRED
	const int i = r % T::WN, col = n0 + r / T::WN * (T::WN / 2) + i % (T::WN / 2);
	return min(col, GEMM_ROWS - 1) + (i >= T::WN / 2 ? GEMM_ROWS : 0);
#else
	return min(n0 + r, GEMM_ROWS - 1);
#endif
}

#if !W_PLANES

template <class T> struct gemm_weights {
	const unsigned short *w;
	int                   n0;

	__device__ __forceinline__ gemm_weights(const void *matrix, int first) : w((const unsigned short *)matrix), n0(first) {}
	__device__ __forceinline__ void
	fetch(unsigned char *to, int k0)
	{
#pragma unroll
		for (int c = (int)threadIdx.x; c < T::BN * T::CHUNKS; c += GEMM_THREADS) {
			const int r = c / T::CHUNKS, k = k0 + c % T::CHUNKS * 8;
			const bool in = GEMM_COLS % T::BK == 0 || k < GEMM_COLS;
			cp_async_16_fill(to + gemm_place<T>(r, c % T::CHUNKS), w + (long long)gemm_weight_row<T>(n0, r) * GEMM_COLS + (in ? k : 0), in ? 16 : 0);
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

/* Units of 32 weights of a row; a thread has unit id, id + 256, .. of a tile. Of the 64 columns that two units hold, unit u has 32 in a row, but
 * for q4_k and q5_k 16 of the first and 16 of the second 32: those that share bytes. */
template <class T> struct gemm_weights {
	static constexpr int IN_ROW = T::BK / 32, UNITS = T::BN * IN_ROW, MINE = (UNITS + GEMM_THREADS - 1) / GEMM_THREADS;
	static_assert(T::BK % 64 == 0, "units come in pairs");
	const unsigned char *w;
	int                  n0, k;
	uint4                qs[MINE][2], qh[MINE], head[MINE];
	unsigned             more[MINE];

	__device__ __forceinline__ gemm_weights(const void *matrix, int first) : w((const unsigned char *)matrix), n0(first), k(0) {}

	/* first column of unit u: of its block's, or of the pair's for formats of shared bytes */
	__device__ __forceinline__ bool
	where(int i, int &r, int &u, int &col) const
	{
		const int id = (int)threadIdx.x + i * GEMM_THREADS;

		r = id / IN_ROW;
		u = id % IN_ROW;
		col = k + u * 32;
		return UNITS % GEMM_THREADS == 0 || id < UNITS;
	}

	__device__ __forceinline__ void
	fetch(unsigned char *, int k0)
	{
		k = k0;
#pragma unroll
		for (int i = 0; i < MINE; i++) {
			int r, u, col;
			if (!where(i, r, u, col) || (GEMM_COLS % T::BK != 0 && col >= GEMM_COLS))
				continue;
			const unsigned char *row = w + (long long)gemm_weight_row<T>(n0, r) * W_STRIDE;
			const int block = col / WB;
#if defined(W_q8_0)
			qs[i][0] = ld_v4(row + block * 32);
			qs[i][1] = ld_v4(row + block * 32 + 16);
#elif defined(W_q4_k) || defined(W_q5_k)
			qs[i][0] = ld_v4(row + block * 128 + col % 256 / 64 * 32 + u % 2 * 16);
			head[i] = ld_v4(row + W_AT_HEAD + block * 16);
#ifdef W_q5_k
			qh[i] = ld_v4(row + W_AT_QH + block * 32 + u % 2 * 16);
#endif
#elif defined(W_q6_k)
			const int half = col % 256 / 128;
			qs[i][0] = ld_v4(row + block * 128 + half * 64 + u % 2 * 32);
			qs[i][1] = ld_v4(row + block * 128 + half * 64 + u % 2 * 32 + 16);
			qh[i] = ld_v4(row + W_AT_QH + block * 64 + half * 32);
			head[i] = ld_v4(row + W_AT_QH + block * 64 + half * 32 + 16);
			more[i] = *(const unsigned short *)(row + W_AT_HEAD + block * 16 + col % 256 / 16) |
			          (unsigned)*(const unsigned short *)(row + W_AT_D + block * 2) << 16;
#else
			qs[i][0] = ld_v4(row + block * 16);
#if defined(W_q5_0) || defined(W_q5_1)
			qh[i].x = ld_v1(row + W_AT_QH + block * 4);
#endif
#endif
#if defined(W_q8_0) || defined(W_q4_0) || defined(W_q5_0)
			more[i] = *(const unsigned short *)(row + W_AT_HEAD + block * 2);
#elif defined(W_q4_1) || defined(W_q5_1)
			more[i] = ld_v1(row + W_AT_HEAD + block * 4);
#endif
		}
	}

	__device__ __forceinline__ void
	put(unsigned char *to)
	{
#pragma unroll
		for (int i = 0; i < MINE; i++) {
			int r, u, col;
			if (!where(i, r, u, col))
				continue;
			uint4 v[4];
			if (GEMM_COLS % T::BK != 0 && col >= GEMM_COLS) {
#pragma unroll
				for (int c = 0; c < 4; c++)
					v[c] = make_uint4(0, 0, 0, 0);
			} else {
				unpack(i, u, col, v);
			}
#pragma unroll
			for (int c = 0; c < 4; c++) {
#if defined(W_q4_k) || defined(W_q5_k)
				const int chunk = u / 2 * 8 + u % 2 * 2 + c % 2 + c / 2 * 4;
#else
				const int chunk = u * 4 + c;
#endif
				*(uint4 *)(to + gemm_place<T>(r, chunk)) = v[c];
			}
		}
	}

	/* v: 8 weights each, in the order of columns */
	__device__ __forceinline__ void
	unpack(int i, int u, int col, uint4 (&v)[4]) const
	{
		const unsigned q[8] = { qs[i][0].x, qs[i][0].y, qs[i][0].z, qs[i][0].w, qs[i][1].x, qs[i][1].y, qs[i][1].z, qs[i][1].w };
		const float zero = 8388608.0f;
#if defined(W_q8_0)
		const float d = f16_lo(more[i]);
#pragma unroll
		for (int c = 0; c < 4; c++)
			v[c] = gemm_unpack(q[2 * c] ^ 0x80808080u, q[2 * c + 1] ^ 0x80808080u, zero + 128, d, 0);
#elif defined(W_q4_k) || defined(W_q5_k)
		float d[2], m[2];
		const int j = col % 256 / 64 * 2;
		const unsigned h[4] = { qh[i].x, qh[i].y, qh[i].z, qh[i].w };
		gemm_k_scale(head[i], j, d[0], m[0]);
		gemm_k_scale(head[i], j + 1, d[1], m[1]);
#pragma unroll
		for (int c = 0; c < 4; c++) {
			unsigned b[2];
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int word = c % 2 * 2 + e;
				b[e] = q[word] >> (c / 2 * 4) & 0x0f0f0f0fu;
#ifdef W_q5_k
				b[e] |= (h[word] >> (j + c / 2) & 0x01010101u) << 4;
#endif
			}
			v[c] = gemm_unpack(b[0], b[1], zero, d[c / 2], m[c / 2]);
		}
#elif defined(W_q6_k)
		const unsigned h[8] = { qh[i].x, qh[i].y, qh[i].z, qh[i].w, head[i].x, head[i].y, head[i].z, head[i].w };
		const int part = col % 128 / 32;
		const float all = f16_hi(more[i]), d[2] = { all * (float)(signed char)(more[i] & 255), all * (float)(signed char)(more[i] >> 8 & 255) };
#pragma unroll
		for (int c = 0; c < 4; c++) {
			unsigned b[2];
#pragma unroll
			for (int e = 0; e < 2; e++)
				b[e] = (q[c * 2 + e] >> (part / 2 * 4) & 0x0f0f0f0fu) | (h[c * 2 + e] >> (part * 2) & 0x03030303u) << 4;
			v[c] = gemm_unpack(b[0], b[1], zero + 32, d[c / 2], 0);
		}
#else
#if defined(W_q4_1) || defined(W_q5_1)
		const float d = f16_lo(more[i]), m = f16_hi(more[i]), base = zero;
#elif defined(W_q5_0)
		const float d = f16_lo(more[i]), m = 0, base = zero + 16;
#else
		const float d = f16_lo(more[i]), m = 0, base = zero + 8;
#endif
#pragma unroll
		for (int c = 0; c < 4; c++) {
			unsigned b[2];
#pragma unroll
			for (int e = 0; e < 2; e++) {
				b[e] = q[c % 2 * 2 + e] >> (c / 2 * 4) & 0x0f0f0f0fu;
#if defined(W_q5_0) || defined(W_q5_1)
				b[e] |= gemm_fifth(qh[i].x >> (c * 8 + e * 4));
#endif
			}
			v[c] = gemm_unpack(b[0], b[1], base, d, m);
		}
#endif
	}
};

#endif
#endif
