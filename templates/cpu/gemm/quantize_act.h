/* A product x w^T as compilers see it, and its activations: a row of fp32 becomes integers with one
 * scale per 32, or stays fp32 beside float weights. The integers are those of the row alone: not of
 * its company, thread or chunk.
 *
 * Scale d = max|x| / top, q = round(x / d), for 16 bits q = 256 hi + lo with hi, lo in a signed
 * byte. A block with an infinity or NaN becomes d = NaN, q = 0, which makes the results of this row
 * NaN and touches no other.
 *
 * Orders of the integers of a block:
 *   words  32 s16, in each four columns k, k+2, k+1, k+3 (w_words); beside eights that stream
 * (cpu/weights/grids.h) in each eight the even ones, then the odd ones bytes  32 s8 hi, 32 s8 lo;
 * for 8 bits 32 s8 Where tiles of bf16 multiply (cpu/gemm/amx_bf16.h) a block is 32 bf16 of hi and
 * 32 of lo, x = hi + lo, or of hi alone (act_plain).
 *
 * Order of blocks, or of columns beside float weights: rows side by side in tiles, within a tile
 * block by block, so that a block of all its rows is one piece of memory and they lie a constant
 * apart. One row a tile is the order row by row. */
#ifndef LLMC_CPU_GEMM_QUANTIZE_ACT_H
#define LLMC_CPU_GEMM_QUANTIZE_ACT_H

#include "cpu/weights/grids.h"

#ifndef LLMC_ACT_BF16
#define LLMC_ACT_BF16 0 /* a kernel defines it before: activations: bf16 */
#endif

enum {
	STREAM_AHEAD = 2048, /* bytes of weights asked for ahead; 1 to 4 KiB measure alike, none
	                        costs a quarter */
	STREAM_TOKENS =
	    VL == 16
	        ? 4
	        : 2, /* as many sums as registers hold: up to so many are a GEMV, cpu/gemm/gemv.h */
	TILE_T = VL == 16  ? 8
	         : VL == 8 ? 6
	                   : 4, /* rows of a tile at most, cpu/gemm/gemm_tile.h */
#if defined(LLMC_TILES)
	TILE_TOKENS = 256, /* of a call, at most */
#else
	TILE_TOKENS = 96,
#endif
};

/* Constant wherever functions are inlined, like the format in it, but for cols, which a kernel
 * knows and the functions of a type (cpu/gemm/matmul_kernel.h) are told. The matrix itself is a
 * pointer to its first group. */
typedef struct Product {
	Weight w;
	int cols;
	int ragged;    /* 1: these are no whole blocks of 32 */
	int act_bits;  /* of activations beside integer weights: 8 or 16 */
	int act_plain; /* 1: on tiles activations are of one part, rounded to bf16, and so are
	                  scaled weights */
} Product;

LLMC_INLINE int
p_blocks(const Product p)
{
	return p.cols / 32;
}

/* Small weights meet bytes, where an instruction does twice the columns. 16-bit activations are two
 * such passes, which serves while weights stream; in a tile, whose weights are unpacked once for
 * many tokens, words come out ahead. Eights (cpu/weights/grids.h) have magnitudes as bytes, whose
 * signs activations of 8 bits can take. */
LLMC_INLINE int
act_are_bytes(const Product p)
{
	return VL > 4 && (w_width(p.w) <= 6 || DOT_BYTES_WIDE);
}

LLMC_INLINE int
act_stream_bytes(const Product p)
{
	return w_is_eights(p.w) ? w_is_iq1(p.w) || p.act_bits == 8 : act_are_bytes(p);
}

LLMC_INLINE int
act_tile_bytes(const Product p)
{
	return act_are_bytes(p) && p.act_bits == 8;
}

/* Products by tiles of bf16, whatever the number of tokens: of 16-bit weights, and beside plain
 * activations of all but fp32 */
#if defined(LLMC_TILES)
#define act_is_bf16(p)                                                                             \
	(((LLMC_WEIGHTS & 2) || LLMC_ACT_BF16) && (p).w.bits < 32 && !(p).ragged &&                \
	 ((p).act_plain || (p).w.bits == 16))
#else
#define act_is_bf16(p) (0 && (p).ragged)
#endif

/* of a block, or of a column */
LLMC_INLINE int
act_block_bytes(const Product p)
{
	if (w_is_float(p.w) && !act_is_bf16(p))
		return 4;
	return act_is_bf16(p) ? p.act_plain ? 64 : 128 : act_tile_bytes(p) ? 32 : 64;
}

/* Rows a power of two apart would share a few sets of the cache. */
LLMC_INLINE int
act_row_bytes(const Product p)
{
	if (w_is_float(p.w) && !act_is_bf16(p))
		return p.cols * 4 + (p.cols % 256 ? 0 : 64);
	return p_blocks(p) * act_block_bytes(p) + 64;
}

/* Rows of activations in a thread's scratch; q alone beside float weights */
typedef struct act_rows {
	uint8_t *q; /* act_row_bytes a row */
	float *d;   /* [row][blocks]: scale */
	float *s;   /* [row][blocks][halves]: scale times the sum of the integers, where there are
	               minima */
	int32_t *z; /* the same: w_offset times that sum */
	int cols;   /* of a row */
	int tile, longer; /* rows of a tile of q, d, s, z, and how many tiles, the first ones, have
	                     one more; 1, 0: they are as above */
} act_rows;

typedef int8_t act_byte __attribute__((vector_size(VL), may_alias));
typedef int8_t act_byte_mem __attribute__((vector_size(VL), aligned(1), may_alias));

LLMC_INLINE int32_t
act_hmax(vi v)
{
#if VL == 8 && defined(VF_HAVE_256)
	__m256i w = (__m256i)v;
	__m128i a = _mm_max_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
	a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
	return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
#elif defined(VF_NATIVE_512)
	return _mm512_reduce_max_epi32((__m512i)v);
#else
	int32_t m = v[0];
	for (int i = 1; i < VL; i++)
		m = m > v[i] ? m : v[i];
	return m;
#endif
}

LLMC_INLINE vi
act_max(vi a, vi b)
{
#if VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(VF_NATIVE_512)
	return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
	vi above = (vi)(a > b);
	return (a & above) | (b & ~above);
#endif
}

LLMC_INLINE int32_t
act_hsum(vi v)
{
#if VL == 8 && defined(VF_HAVE_256)
	__m256i w = (__m256i)v;
	__m128i a = _mm_add_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
	a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
#elif defined(VF_NATIVE_512)
	return _mm512_reduce_add_epi32((__m512i)v);
#else
	int32_t m = v[0];
	for (int i = 1; i < VL; i++)
		m += v[i];
	return m;
#endif
}

/* a block's integers as bytes in their order */
LLMC_INLINE void
act_put_bytes(uint8_t *o, const vi *q)
{
#if VL == 8 && defined(VF_HAVE_256)
	__m256i a = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]),
	        b = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
	a = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
	                                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_storeu_si256((__m256i *)(void *)o, a);
#elif defined(VF_NATIVE_512)
	_mm_storeu_si128((__m128i *)(void *)o, _mm512_cvtepi32_epi8((__m512i)q[0]));
	_mm_storeu_si128((__m128i *)(void *)(o + 16), _mm512_cvtepi32_epi8((__m512i)q[1]));
#else
	LLMC_UNROLL
	for (int i = 0; i < 32 / VL; i++)
		*(act_byte_mem *)(o + VL * i) = __builtin_convertvector(q[i], act_byte);
#endif
}

/* and as words in theirs */
LLMC_INLINE void
act_put_words(uint8_t *o, const vi *q, const int eights)
{
	(void)eights;
#if VL == 8 && defined(VF_HAVE_256)
	const __m128i fours = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15),
	              eight = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
	const __m256i order = _mm256_broadcastsi128_si256(eights ? eight : fours);
	LLMC_UNROLL
	for (int i = 0; i < 4; i += 2) {
		__m256i v = _mm256_permute4x64_epi64(
		    _mm256_packs_epi32((__m256i)q[i], (__m256i)q[i + 1]), 0xd8);
		_mm256_storeu_si256((__m256i *)(void *)(o + 16 * i), _mm256_shuffle_epi8(v, order));
	}
#elif VL == 4 && defined(__SSE2__)
	LLMC_UNROLL
	for (int i = 0; i < 8; i += 2) {
		__m128i v = _mm_packs_epi32((__m128i)q[i], (__m128i)q[i + 1]);
		v = _mm_shufflehi_epi16(_mm_shufflelo_epi16(v, 0xd8), 0xd8);
		_mm_storeu_si128((__m128i *)(void *)(o + 8 * i), v);
	}
#else
	typedef int16_t half __attribute__((vector_size(2 * VL), may_alias));
	typedef int16_t half_mem __attribute__((vector_size(2 * VL), aligned(2), may_alias));
	LLMC_UNROLL
	for (int i = 0; i < 32 / VL; i++) {
		half v = __builtin_convertvector(q[i], half);
#if VL == 16
		v = __builtin_shufflevector(v, v, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13,
		                            15);
#elif VL == 8
		v = __builtin_shufflevector(v, v, 0, 2, 1, 3, 4, 6, 5, 7);
#else
		v = __builtin_shufflevector(v, v, 0, 2, 1, 3);
#endif
		*(half_mem *)(o + 2 * VL * i) = v;
	}
#endif
}

/* Tiles of `tokens` rows, for products that take tiles */
LLMC_INLINE void
act_cut(const Product p, act_rows *a, int tokens)
{
	int tiles = (tokens + TILE_T - 1) / TILE_T;

	a->tile = tokens / tiles;
	a->longer = tokens % tiles;
#if defined(LLMC_TILES)
	tiles = (tokens + 15) / 16;
	const int rows = (tokens + tiles - 1) / tiles, to = rows <= 8 ? 2 : 4;
	if (act_is_bf16(p)) {
		a->tile = rows;
		a->longer = 0;
	} else if (!w_is_float(p.w)) { /* a kernel for each: 6, 8, 12, 16 */
		a->tile = (rows + to - 1) / to * to;
		a->longer = 0;
	}
#endif
	(void)p;
}

/* The tile that row t is in: its first row and its rows */
typedef struct act_tile {
	int first, rows;
} act_tile;

LLMC_INLINE act_tile
act_tile_of(const act_rows *a, int t)
{
	const int rows = a->tile + 1, edge = a->longer * rows;

	if (t < edge)
		return (act_tile){ t / rows * rows, rows };
	return (act_tile){ edge + (t - edge) / a->tile * a->tile, a->tile };
}

/* where block 0 of row t of a tile is; the next is t.rows blocks after it */
LLMC_INLINE uint8_t *
act_block(const Product p, const act_rows *a, act_tile in, int t)
{
	return a->q + (size_t)in.first * (size_t)act_row_bytes(p) +
	       (size_t)(t - in.first) * (size_t)act_block_bytes(p);
}

/* One row of fp32 to row t */
LLMC_INLINE void
act_copy(const Product p, const act_rows *a, int t, const float *x)
{
	const act_tile in = act_tile_of(a, t);
	float *o = (float *)(void *)act_block(p, a, in, t);

	if (in.rows == 1)
		memcpy(o, x, (size_t)p.cols * sizeof *o);
	else
		for (int k = 0; k < p.cols; k++)
			o[k * in.rows] = x[k];
}

#if defined(LLMC_TILES)
/* One row x to row t in parts of bf16. An infinity becomes NaN where there are two. */
LLMC_INLINE void
act_split(const Product p, const act_rows *a, int t, const float *x)
{
	const act_tile in = act_tile_of(a, t);
	uint8_t *o = act_block(p, a, in, t);

	for (int b = 0; b < p_blocks(p); b++, x += 32, o += in.rows * act_block_bytes(p)) {
		LLMC_UNROLL
		for (int i = 0; i < 2; i++) {
			vf v = vf_load(x + i * VL);
			__m256i hi = (__m256i)_mm512_cvtneps_pbh((__m512)v);
			_mm256_storeu_si256((__m256i *)(void *)(o + 32 * i), hi);
			if (p.act_plain)
				continue;
			vf rest = v - (vf)((vi)_mm512_cvtepu16_epi32(hi) << 16);
			_mm256_storeu_si256((__m256i *)(void *)(o + 64 + 32 * i),
			                    (__m256i)_mm512_cvtneps_pbh((__m512)rest));
		}
	}
}
#endif

/* One row x to row t; for the stream of weights or for the tile */
LLMC_INLINE void
act_quantise(const Product p, const act_rows *a, int t, const float *x, int for_stream)
{
	enum { N = 32 / VL };
	const act_tile in = act_tile_of(a, t);
	uint8_t *o = act_block(p, a, in, t);
	size_t at = (size_t)in.first * (size_t)p_blocks(p) + (size_t)(t - in.first);
#if defined(LLMC_TILES)
	const int blocks = p_blocks(p), bytes = 1,
	          sums = for_stream || p.w.min; /* tiles have signed weights */
#else
	const int blocks = p_blocks(p),
	          bytes = for_stream ? act_stream_bytes(p) : act_tile_bytes(p), sums = 1;
#endif
	const float act_top = p.act_bits == 16 ? 32512.0f : 127.0f;
	/* 1.5 * 2^23: its sum with a small number has that number, rounded to nearest even, in the
	 * low bits */
	const vf magic = vf_set1(12582912.0f);

	for (int b = 0; b < blocks;
	     b++, x += 32, o += in.rows * act_block_bytes(p), at += (size_t)in.rows) {
		vi top = vi_all(0), q[N], sum[2] = { { 0 } };
		float d = 0, inverse = 0, peak;
		LLMC_UNROLL
		for (int i = 0; i < N; i++) {
			/* as integers NaN is above infinity, which is above all numbers */
			top = act_max((vi)vf_abs(vf_load(x + i * VL)), top);
		}
		int32_t bits = act_hmax(top);
		int32_t *z = a->z + at * (size_t)p.w.halves;
		float *s = a->s + at * (size_t)p.w.halves;
		memcpy(&peak, &bits, 4);
		if (bits >= 0x7f800000 ||
		    peak < 1e-30f) { /* not finite; so small that 1 / d would not be */
			a->d[at] = bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
			for (int h = 0; h < p.w.halves; h++) {
				s[h] = a->d[at];
				z[h] = 0;
			}
			memset(o, 0, (size_t)act_block_bytes(p));
			continue;
		}
		d = peak * (1 / act_top);
		inverse = act_top / peak;
		LLMC_UNROLL
		for (int i = 0; i < N; i++) {
			q[i] = (vi)(vf_load(x + i * VL) * vf_set1(inverse) + magic) - (vi)magic;
			sum[i * 2 / N] += q[i];
		}
		if (!sums) {
			/* nobody reads them */
		} else if (p.w.halves == 2) {
			for (int h = 0; h < 2; h++) {
				int32_t total = act_hsum(sum[h]);
				s[h] = d * (float)total;
				z[h] = w_offset(p.w) * total;
			}
		} else {
			int32_t total = act_hsum(sum[0] + sum[1]);
			s[0] = d * (float)total;
			z[0] = w_offset(p.w) * total;
		}
		a->d[at] = d;
		if (bytes && p.act_bits == 16) {
			vi hi[N];
			LLMC_UNROLL
			for (int i = 0; i < N; i++) {
				hi[i] = (q[i] + vi_all(128)) >> 8;
				q[i] -= hi[i] << 8;
			}
			act_put_bytes(o, hi);
			act_put_bytes(o + 32, q);
		} else if (bytes) {
			act_put_bytes(o, q);
		} else {
			act_put_words(o, q, for_stream && w_is_eights(p.w));
		}
	}
}

#endif
