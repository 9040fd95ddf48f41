/* Activations of a matmul x w^T, and the compile-time description of the matmul. A row of fp32 is
 * quantised to integers with one scale per 32 columns, or stays fp32 for float weights. The
 * integers depend only on the row itself, not on other rows, the thread or the chunk.
 *
 * Scale d = max|x| / top, q = round(x / d); 16 bits: q = 256 hi + lo with hi, lo in a signed byte.
 * A block with an infinity or NaN gets d = NaN, q = 0. The results of this row are then NaN, and
 * other rows are not affected.
 *
 * Order of the integers of a block:
 *   words  32 s16, each four in the order k, k+2, k+1, k+3 (w_words); for grid formats in a GEMV
 *          (cpu/weights/grids.h), each eight as even columns, then odd ones
 *   bytes  32 s8 hi, 32 s8 lo; 8 bits: 32 s8
 *   bf16   on AMX (cpu/gemm/amx_bf16.h): 32 hi and 32 lo, x = hi + lo, or only hi (act_plain)
 *
 * Order of blocks (of columns for float weights): rows are grouped in tiles. A tile is stored block
 * by block, so that one block of all its rows is contiguous and rows are a constant distance apart.
 * With one row per tile this is row order. */
#ifndef LLMC_CPU_GEMM_QUANTIZE_ACT_H
#define LLMC_CPU_GEMM_QUANTIZE_ACT_H

#include "cpu/weights/grids.h"

#ifndef LLMC_ACT_BF16
#define LLMC_ACT_BF16 0 /* 1 for `activations: bf16`, defined before the include */
#endif

enum {
	/* prefetch distance of weights in bytes. Distances of 1 to 4 KiB perform alike; without
	 * prefetch a quarter of the speed is lost */
	STREAM_AHEAD = 2048,
	STREAM_TOKENS = VL == 16 ? 4
	                         /* largest number of tokens of a GEMV (cpu/gemm/gemv.h): as many as
	                          * have accumulators in registers */
	                         : 2,
	TILE_T = VL == 16 ? 8
	         : VL == 8 || VF_NEON
	             ? 6
	             : 4, /* largest number of tokens of a register tile (cpu/gemm/gemm_tile.h) */
#if defined(LLMC_TILES)
	TILE_TOKENS = 256, /* largest number of tokens of a call */
#else
	TILE_TOKENS = 96,
#endif
};

/* Description of a matmul. All fields are constant after inlining, except that cols may be a
 * run-time value: kernels have it as a constant, the functions of a type (cpu/gemm/matmul_kernel.h)
 * as an argument. The matrix itself is a pointer to its first row group. */
typedef struct Product {
	Weight w;
	int cols;
	int ragged;    /* 1: columns are not a multiple of 32 */
	int act_bits;  /* bits of activations for integer weights: 8 or 16 */
	int act_plain; /* 1: on AMX, activations and scaled weights are rounded to one bf16 part */
} Product;

LLMC_INLINE int
p_blocks(const Product p)
{
	return p.cols / 32;
}

/* Returns whether a GEMV multiplies bytes. Byte instructions process twice as many columns as word
 * instructions, and are used for weights of few bits. 16-bit activations then need two passes,
 * which cost nothing while weights stream from memory. In a GEMM tile, whose weights are unpacked
 * once for many tokens, words are faster. Grid formats (cpu/weights/grids.h) store magnitudes as
 * bytes, and their signs can be applied to 8-bit activations. */
LLMC_INLINE int
act_are_bytes(const Product p)
{
	return (VL > 4 || VF_NEON) && (w_width(p.w) <= 6 || DOT_BYTES_WIDE);
}

LLMC_INLINE int
act_stream_bytes(const Product p)
{
	return w_is_eights(p.w) ? w_is_iq1(p.w) || p.act_bits == 8 : act_are_bytes(p);
}

/* Returns whether tiles multiply bytes. On Arm, 16-bit activations take two passes. */
LLMC_INLINE int
act_tile_bytes(const Product p)
{
	return act_are_bytes(p) && (p.act_bits == 8 || VF_NEON);
}

/* Returns whether bf16 AMX tiles are used. The answer is the same for any number of tokens: yes for
 * 16-bit weights, and with plain bf16 activations for all weights except fp32. */
#if defined(LLMC_TILES)
#define act_is_bf16(p)                                                                             \
	(((LLMC_WEIGHTS & 2) || LLMC_ACT_BF16) && (p).w.bits < 32 && !(p).ragged &&                \
	 ((p).act_plain || (p).w.bits == 16))
#else
#define act_is_bf16(p) (0 && (p).ragged)
#endif

/* bytes per block, or per column */
LLMC_INLINE int
act_block_bytes(const Product p)
{
	if (w_is_float(p.w) && !act_is_bf16(p))
		return 4;
	return act_is_bf16(p) ? p.act_plain ? 64 : 128 : act_tile_bytes(p) ? 4 * p.act_bits : 64;
}

/* Pads the stride of rows, because a stride of a power of two would map all rows to few cache
 * sets. */
LLMC_INLINE int
act_row_bytes(const Product p)
{
	if (w_is_float(p.w) && !act_is_bf16(p))
		return p.cols * 4 + (p.cols % 256 ? 0 : 64);
	return p_blocks(p) * act_block_bytes(p) + 64;
}

/* Rows of activations in a thread's scratch; float weights use only q */
typedef struct act_rows {
	uint8_t *q; /* act_row_bytes per row */
	float *d;   /* [row][blocks]: scale */
	/* [row][blocks][halves]: scale times the sum of the integers; only if the weights have
	 * mins */
	float *s;
	int32_t *z; /* [row][blocks][halves]: w_offset times the sum of the integers */
	int cols;   /* columns per row */
	/* tile: rows per tile of q, d, s and z; longer: the first `longer` tiles have one row more.
	 * 1 and 0: row order */
	int tile, longer;
} act_rows;

/* First row and row count of the tile that contains row t */
typedef struct act_tile {
	int first, rows;
} act_tile;

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

/* Unpacks the integers of a block to bytes, in byte order. */
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

/* Stores part `at` of `parts` of a block's integers. A part has 32 bytes. Tiles for matrix-multiply
 * instructions have pairs of rows: 8 bytes of one row follow 8 bytes of the other. */
LLMC_INLINE void
act_put(const act_tile in, int t, int for_stream, uint8_t *o, int at, int parts, const vi *q)
{
	const int row = t - in.first;
	uint8_t bytes[32];

	if (!VF_MMLA || for_stream || (row | 1) >= in.rows) {
		act_put_bytes(o + 32 * at, q);
		return;
	}
	act_put_bytes(bytes, q);
	o += 64 * at - (row & 1) * (32 * parts - 8);
	for (int i = 0; i < 4; i++)
		memcpy(o + 16 * i, bytes + 8 * i, 8);
}

/* Unpacks the integers of a block to words, in word order. */
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
		v = VF_SHUFFLE(v, v, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
#elif VL == 8
		v = VF_SHUFFLE(v, v, 0, 2, 1, 3, 4, 6, 5, 7);
#else
		v = VF_SHUFFLE(v, v, 0, 2, 1, 3);
#endif
		*(half_mem *)(o + 2 * VL * i) = v;
	}
#endif
}

/* Groups `tokens` rows in tiles, for matmuls that use tiles. */
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
	} else if (!w_is_float(
	               p.w)) { /* the sizes for which functions are instantiated: 6, 8, 12, 16 */
		a->tile = (rows + to - 1) / to * to;
		a->longer = 0;
	}
#endif
	(void)p;
}

LLMC_INLINE act_tile
act_tile_of(const act_rows *a, int t)
{
	const int rows = a->tile + 1, edge = a->longer * rows;

	if (t < edge)
		return (act_tile){ t / rows * rows, rows };
	return (act_tile){ edge + (t - edge) / a->tile * a->tile, a->tile };
}

/* Returns the address of block 0 of row t of a tile. The next block is t.rows blocks later. */
LLMC_INLINE uint8_t *
act_block(const Product p, const act_rows *a, act_tile in, int t)
{
	return a->q + (size_t)in.first * (size_t)act_row_bytes(p) +
	       (size_t)(t - in.first) * (size_t)act_block_bytes(p);
}

/* Stores one row of fp32 as row t */
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
/* Splits a row x into bf16 parts and stores it as row t. With two parts an infinity becomes NaN. */
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

/* Quantises a row x and stores it as row t, for a GEMV or for a tile. */
LLMC_INLINE void
act_quantise(const Product p, const act_rows *a, int t, const float *x, int for_stream)
{
	enum { N = 32 / VL };
	const act_tile in = act_tile_of(a, t);
	uint8_t *o = act_block(p, a, in, t);
	size_t at = (size_t)in.first * (size_t)p_blocks(p) + (size_t)(t - in.first);
#if defined(LLMC_TILES)
	const int blocks = p_blocks(p), bytes = 1,
	          sums = for_stream ||
	                 p.w.min; /* tiles have signed weights, so they need sums only for mins */
#else
	const int blocks = p_blocks(p),
	          bytes = for_stream ? act_stream_bytes(p) : act_tile_bytes(p), sums = 1;
#endif
	const int offset = dot_offset(w_offset(p.w), w_width(p.w));
	const float act_top = p.act_bits == 16 ? 32512.0f : 127.0f;
	/* 1.5 * 2^23. Added to a small number, it leaves that number in the low bits, rounded to
	 * nearest even. */
	const vf magic = vf_set1(12582912.0f);

	for (int b = 0; b < blocks;
	     b++, x += 32, o += in.rows * act_block_bytes(p), at += (size_t)in.rows) {
		vi top = vi_all(0), q[N], sum[2] = { { 0 } };
		float d = 0, inverse = 0, peak;
		LLMC_UNROLL
		for (int i = 0; i < N; i++) {
			/* compared as integers, NaN is larger than infinity, and infinity larger
			 * than all finite values */
			top = act_max((vi)vf_abs(vf_load(x + i * VL)), top);
		}
		int32_t bits = act_hmax(top);
		int32_t *z = a->z + at * (size_t)p.w.halves;
		float *s = a->s + at * (size_t)p.w.halves;
		memcpy(&peak, &bits, 4);
		if (bits >= 0x7f800000 ||
		    peak < 1e-30f) { /* not finite, or so small that 1 / d would overflow */
			a->d[at] = bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
			for (int h = 0; h < p.w.halves; h++) {
				s[h] = a->d[at];
				z[h] = 0;
			}
			LLMC_UNROLL
			for (int i = 0; i < N; i++)
				q[i] = vi_all(0);
			for (int part = 0; part < p.act_bits / 8; part++)
				act_put(in, t, for_stream || !bytes, o, part, p.act_bits / 8, q);
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
			/* s and z are never read */
		} else if (p.w.halves == 2) {
			for (int h = 0; h < 2; h++) {
				int32_t total = act_hsum(sum[h]);
				s[h] = d * (float)total;
				z[h] = offset * total;
			}
		} else {
			int32_t total = act_hsum(sum[0] + sum[1]);
			s[0] = d * (float)total;
			z[0] = offset * total;
		}
		a->d[at] = d;
		if (bytes && p.act_bits == 16) {
			vi hi[N];
			LLMC_UNROLL
			for (int i = 0; i < N; i++) {
				hi[i] = (q[i] + vi_all(128)) >> 8;
				q[i] -= hi[i] << 8;
			}
			act_put(in, t, for_stream, o, 0, 2, hi);
			act_put(in, t, for_stream, o, 1, 2, q);
		} else if (bytes) {
			act_put(in, t, for_stream, o, 0, 1, q);
		} else {
			act_put_words(o, q, for_stream && w_is_eights(p.w));
		}
	}
}

#endif
