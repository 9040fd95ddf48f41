/* One row of a matrix as fp32, from any layout (runtime/weights/layout.h), rounded as formats/dequant.c rounds: what gathers
 * rows of an embedding. Before inclusion: W_<dtype>, LAYOUT_<row | f32 | r4 | r8 | r16>, GATHER_COLS.
 *
 *   gather(w, row, b0, b1, y)   blocks [b0, b1) of GATHER_BLOCK columns of the row to y[b0 * GATHER_BLOCK ...] */
#ifndef LLMC_CPU_GATHER_H
#define LLMC_CPU_GATHER_H

#include "common/cpu_math.h"

#if defined(LAYOUT_r16)
#define GATHER_R 16
#elif defined(LAYOUT_r8)
#define GATHER_R 8
#elif defined(LAYOUT_r4)
#define GATHER_R 4
#else
#define GATHER_R 1
#endif

#if defined(W_f32) || defined(W_f16) || defined(W_bf16) || defined(LAYOUT_f32)

#if defined(W_f32) || defined(LAYOUT_f32)
typedef float gather_elem;
#else
typedef uint16_t gather_elem;
#endif
enum { GATHER_BLOCK = GATHER_COLS % 16 ? 1 : 16 };

LLMC_INLINE void
gather(const uint8_t *w, int64_t row, int b0, int b1, float *y)
{
	const gather_elem *p = (const gather_elem *)(const void *)w + row / GATHER_R * GATHER_R * GATHER_COLS + row % GATHER_R;

	for (int c = b0 * GATHER_BLOCK; c < b1 * GATHER_BLOCK; c++) {
		gather_elem x = p[(int64_t)c * GATHER_R];
#if defined(W_f32) || defined(LAYOUT_f32)
		y[c] = x;
#elif defined(W_f16)
		y[c] = f16_get(x);
#else
		uint32_t u = (uint32_t)x << 16;
		memcpy(&y[c], &u, 4);
#endif
	}
}

#else

#if defined(W_q4_0) || defined(W_q4_1) || defined(W_q4_k)
#define GATHER_BITS 4
#elif defined(W_q5_0) || defined(W_q5_1) || defined(W_q5_k)
#define GATHER_BITS 5
#elif defined(W_q6_k)
#define GATHER_BITS 6
#elif defined(W_q8_0)
#define GATHER_BITS 8
#else
#error "no reader for this type"
#endif
#if defined(W_q4_1) || defined(W_q5_1)
#define GATHER_MIN 1
#else
#define GATHER_MIN 0
#endif
#if defined(W_q4_k) || defined(W_q5_k) || defined(W_q6_k)
#define GATHER_SUPER 1
enum { GATHER_BLOCK = 256 };
#else
#define GATHER_SUPER 0
enum { GATHER_BLOCK = 32 };
#endif
_Static_assert(GATHER_COLS % GATHER_BLOCK == 0, "rows are whole blocks");

LLMC_INLINE float
gather_f16(const uint8_t *p)
{
	f16 h;

	memcpy(&h, p, 2);
	return f16_get(h);
}

/* element i of 32: dwords of R rows */
LLMC_INLINE int
gather_nibble(const uint8_t *q, int r, int i)
{
	return q[(i % 16 / 4 * GATHER_R + r) * 4 + i % 4] >> (i / 16 * 4) & 15;
}

/* fifth bit of element i: in order in a file, by bytes in a packed layout */
LLMC_INLINE int
gather_fifth(const uint8_t *p, int i)
{
	uint32_t high;

	memcpy(&high, p, 4);
	return (int)(high >> (GATHER_R == 1 ? i : 8 * (i % 4) + i / 4) & 1) << 4;
}

#if !GATHER_SUPER

enum { GATHER_BYTES = 2 + 2 * GATHER_MIN + 4 * GATHER_BITS }; /* of a row in a block */

static void
gather_block(const uint8_t *p, int r, float *y)
{
	float d = gather_f16(p + 2 * r);
	const uint8_t *q = p + (2 + 2 * GATHER_MIN) * GATHER_R;
#if GATHER_BITS == 8
	for (int i = 0; i < 32; i++)
		y[i] = d * (float)(int8_t)q[(i / 4 * GATHER_R + r) * 4 + i % 4];
#else
#if GATHER_MIN
	float m = gather_f16(p + 2 * (GATHER_R + r));
#endif
	for (int i = 0; i < 32; i++) {
#if GATHER_BITS == 5
		int v = gather_nibble(q + 4 * GATHER_R, r, i) | gather_fifth(q + 4 * r, i);
#else
		int v = gather_nibble(q, r, i);
#endif
#if GATHER_MIN
		y[i] = d * (float)v + m;
#else
		y[i] = d * (float)(v - (1 << (GATHER_BITS - 1)));
#endif
	}
#endif
}

#elif GATHER_BITS == 6

enum { GATHER_BYTES = 210 };

static void
gather_block(const uint8_t *p, int r, float *y)
{
	float d = gather_f16(GATHER_R == 1 ? p + 208 : p + 2 * r);

	for (int e = 0; e < 256; e++) {
#if GATHER_R == 1
		int half = e / 128, group = e / 32 % 4, i = e % 32;
		int v = (p[half * 64 + group % 2 * 32 + i] >> (group / 2 * 4) & 15) | (p[128 + half * 32 + i] >> (group * 2) & 3) << 4;
		float ds = d * (float)(int8_t)p[192 + e / 16];
#else
		const uint8_t *q = p + 18 * GATHER_R + e / 32 * 24 * GATHER_R;
		int i = e % 32, pair = q[16 * GATHER_R + 4 * (i / 16 * GATHER_R + r) + i % 4] >> (2 * (i % 16 / 4)) & 3;
		int v = gather_nibble(q, r, i) | pair << 4;
		float ds = d * (float)(int8_t)p[2 * GATHER_R + e / 16 * GATHER_R + r];
#endif
		y[e] = ds * (float)(v - 32);
	}
}

#else

/* a file keeps scales and minimums in 6 bits */
enum { GATHER_BYTES = (GATHER_BITS == 5 ? 176 : 144) + (GATHER_R == 1 ? 0 : 4), GATHER_SUB = (GATHER_BITS == 5 ? 20 : 16) };

static void
gather_block(const uint8_t *p, int r, float *y)
{
	float d = gather_f16(p + 2 * r), dmin = gather_f16(p + 2 * (GATHER_R + r));

	for (int j = 0; j < 8; j++) {
#if GATHER_R == 1
		const uint8_t *s = p + 4, *q = p + (GATHER_BITS == 5 ? 48 : 16) + j / 2 * 32;
		int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
		int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
#else
		const uint8_t *s = p + 4 * GATHER_R + 2 * j * GATHER_R + r, *q = p + (20 + j * GATHER_SUB) * GATHER_R;
		int scale = s[0], min = s[GATHER_R];
#endif
		float ds = d * (float)scale, dm = dmin * (float)min;
		for (int i = 0; i < 32; i++) {
#if GATHER_R == 1
			int v = q[i] >> (j % 2 * 4) & 15;
			if (GATHER_BITS == 5)
				v |= (p[16 + i] >> j & 1) << 4;
#elif GATHER_BITS == 5
			int v = gather_nibble(q + 4 * GATHER_R, r, i) | gather_fifth(q + 4 * r, i);
#else
			int v = gather_nibble(q, r, i);
#endif
			y[j * 32 + i] = ds * (float)v - dm;
		}
	}
}

#endif

LLMC_INLINE void
gather(const uint8_t *w, int64_t row, int b0, int b1, float *y)
{
	const int64_t blocks = GATHER_COLS / GATHER_BLOCK, group = GATHER_BYTES * GATHER_R;
	const uint8_t *p = w + row / GATHER_R * blocks * group;

	for (int b = b0; b < b1; b++)
		gather_block(p + b * group, (int)(row % GATHER_R), y + b * GATHER_BLOCK);
}

#endif
#endif
