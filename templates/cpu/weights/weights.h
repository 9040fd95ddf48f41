/* Weights in the packed layouts (byte order: formats/layout_packed.h): one decoder per format, for
 * GEMV, GEMM and embedding lookups.
 *
 *   group of VL rows   | block 0 | block 1 | ...   32 columns each; superblocks: 8 of them after shared scales
 *                           |
 *   w_shared, w_next, w_block   address of a block, and the scales it shares (w_at)
 *                           |
 *        +------------------+-------------------+--------------------+
 *   w_bytes(k, i)      w_words(k, i)       w_scale(k, h)         w_min(k, h)
 *   columns 4i..4i+3   columns 2i, 2i+2    fp32 of half h        fp32, added to each
 *   as u8 + offset     (even i) as s16     (16 or 32 columns)    element
 *        |                  |
 *   cpu/gemm/gemv.h       cpu/gemm/gemm_tile.h                      cpu/embedding/gather_row.h uses one lane of the bytes
 *
 * Each format is a constant of type Weight, which is passed to functions that are always inlined.
 * Compilers fold everything that depends on the format, and a file may use several formats. i and h
 * are constants at each call, so common loads and shifts are computed once. Float formats are read
 * one column at a time (w_column).
 *
 * cpu/weights/weight_types.h has the formats and sizes; cpu/weights/file_block.h reads these
 * formats in file order, for embedding lookups.
 *
 * Bytes per block and row: 4 * bits for elements, 2 or 4 for scales (Q4_K and Q5_K 2.5, Q6_K 2.25).
 * CODE_DTYPES: common/llmc_codes.h. */
#ifndef LLMC_CPU_WEIGHTS_WEIGHTS_H
#define LLMC_CPU_WEIGHTS_WEIGHTS_H

#include "cpu/weights/weight_types.h"

/* ---- scales and elements ---- */
/* Loads VL f16 values at p. Without a native conversion instruction, the lanes are still converted
 * together. */
LLMC_INLINE vf
w_halves(const uint8_t *p)
{
#if VL == 4
	vi h = vi_of_u16(p), em = (h & vi_all(0x7fff)) << 13;
	vf f = (vf)em * (vf)vi_all(0x77800000);
	vi special = (vi)(em >= vi_all(0x0f800000)) & vi_all(0x7f800000);
	return (vf)((vi)f | special | (h & vi_all(0x8000)) << 16);
#else
	return vf_load_f16((const f16 *)p);
#endif
}

/* 2 ^ (byte - 127). A byte of 255 would be NaN; files that contain it are rejected when they are
 * opened. */
LLMC_INLINE vf
w_exponents(const uint8_t *p)
{
	vi e = vi_of_u8(p);

	return (vf)(e << 23 | ((vi)(e == 0) & vi_all(1 << 22)));
}

LLMC_INLINE vf
w_e4m3(vi b)
{
	/* the upper half of an fp32 has these bits, except for subnormals */
	vi small = b & vi_all(0x7f), bits = (small << 20) + vi_all(120 << 23),
	   tiny = (vi)(small < vi_all(8));
	vi value = (bits & ~tiny) | ((vi)(vf_of_vi(small) * vf_set1(0x1p-9f)) & tiny);

	return (vf)(value | (b & vi_all(0x80)) << 24);
}

/* values of bitsandbytes' types; see formats/dtype.c */
static const float w_table[2][16] = {
	{ -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
	  -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
	  0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
	  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f },
	{ 0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 0.5f, 2.0f / 12, 0.25f, 0.0f,
	  -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f },
};

/* VL e4m3 codes at p, as values / 256 */
LLMC_INLINE vf
w_e4m3_over_256(const uint8_t *p)
{
	/* an f16 has the same bits, with the sign moved */
#if defined(VF_NATIVE_512)
	return (vf)_mm512_cvtph_ps(_mm256_and_si256(
	    _mm256_slli_epi16(
	        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)), 7),
	    _mm256_set1_epi16((short)0xbf80)));
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_cvtph_ps(_mm_and_si128(
	    _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)), 7),
	    _mm_set1_epi16((short)0xbf80)));
#else
	return w_e4m3(vi_of_u8(p)) * vf_set1(0x1p-8f);
#endif
}

/* value of the code in the lowest four bits of each lane */
LLMC_INLINE vf
w_looked_up(const Weight w, vi code)
{
	const float *table = w_table[w.code == W_FP4];
#if defined(VF_NATIVE_512)
	return (vf)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
#elif VL == 8 && defined(VF_HAVE_256)
	__m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code),
	       high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)code);
	return (vf)_mm256_blendv_ps(low, high, (__m256)(code << 28));
#else
	vf v;
	LLMC_UNROLL
	for (int i = 0; i < VL; i++)
		v[i] = table[code[i] & 15];
	return v;
#endif
}

/* Columns of a float format that share a scale */
typedef struct w_span {
	vf d;
	const uint8_t *codes;
} w_span;

LLMC_INLINE w_span
w_span_at(const Weight w, const uint8_t *group, int64_t i)
{
	const uint8_t *head = group + i * w_columns_bytes(w);

	return (w_span){ vf_load((const float *)(const void *)head) *
		             vf_set1(w.code == W_E4M3 ? 256.0f : 1.0f),
		         head + w_head_bytes(w) };
}

/* column 2 pair + odd of the span, without its scale */
LLMC_INLINE vf
w_span_column(const Weight w, const w_span s, int pair, int odd)
{
	if (w.code == W_E4M3)
		return w_e4m3_over_256(s.codes + (2 * pair + odd) * VL);
	return w_looked_up(w, vi_of_u8(s.codes + pair * VL) >> 4 * odd);
}

/* columns 2 pair and 2 pair + 1 of the span, without its scale */
LLMC_INLINE void
w_span_pair(const Weight w, const w_span s, int pair, vf v[2])
{
#if VL == 8 && defined(VF_HAVE_256)
	if (w.code == W_E4M3) { /* w_e4m3_over_256 of both columns at once */
		const __m256i b = _mm256_cvtepi8_epi16(
		    _mm_loadu_si128((const __m128i *)(const void *)(s.codes + 2 * pair * VL)));
		const __m256i h =
		    _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((short)0xbf80));
		v[0] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(h));
		v[1] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
		return;
	}
#endif
	v[0] = w_span_column(w, s, pair, 0);
	v[1] = w_span_column(w, s, pair, 1);
}

/* Byte-wise table lookup of 32 codes at a time, because AVX2's permutations of floats are slow. The
 * results have the same bits. */
#if VL == 8 && defined(VF_HAVE_256)
#define w_is_tabled(w) (w_is_float(w) && ((w).code == W_NF4 || (w).code == W_FP4))
#else
#define w_is_tabled(w) 0
#endif

/* Byte i of all 16 values of a table, in both halves of a vector */
typedef struct w_planes {
	uint8_t of[4][32];
} w_planes;

LLMC_INLINE w_planes
w_planes_of(const Weight w)
{
	w_planes p;

	for (int i = 0; i < 16; i++) {
		uint8_t b[4];
		memcpy(b, &w_table[w.code == W_FP4][i], 4);
		for (int k = 0; k < 4; k++)
			p.of[k][i] = p.of[k][16 + i] = b[k];
	}
	return p;
}

/* columns col .. col + 7 of a span, where col is a multiple of 8, without the span's scale */
LLMC_INLINE void
w_eight(const w_planes *p, const w_span s, int col, vf v[8])
{
#if VL == 8 && defined(VF_HAVE_256)
	/* rows 0 to 3 of four pairs of columns, then rows 4 to 7 */
	const __m256i c = _mm256_permutevar8x32_epi32(
	    _mm256_loadu_si256((const __m256i *)(const void *)(s.codes + col / 2 * VL)),
	    _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
	LLMC_UNROLL
	for (int odd = 0; odd < 2; odd++) {
		const __m256i n =
		    _mm256_and_si256(odd ? _mm256_srli_epi16(c, 4) : c, _mm256_set1_epi8(15));
		__m256i b[4];
		LLMC_UNROLL
		for (int k = 0; k < 4; k++)
			b[k] = _mm256_shuffle_epi8(
			    _mm256_loadu_si256((const __m256i *)(const void *)p->of[k]), n);
		const __m256i low = _mm256_unpacklo_epi8(b[0], b[1]),
		              high = _mm256_unpacklo_epi8(b[2], b[3]),
		              low2 = _mm256_unpackhi_epi8(b[0], b[1]),
		              high2 = _mm256_unpackhi_epi8(b[2], b[3]);
		v[odd] = (vf)_mm256_unpacklo_epi16(low, high);
		v[2 + odd] = (vf)_mm256_unpackhi_epi16(low, high);
		v[4 + odd] = (vf)_mm256_unpacklo_epi16(low2, high2);
		v[6 + odd] = (vf)_mm256_unpackhi_epi16(low2, high2);
	}
#else
	(void)p, (void)s, (void)col, (void)v;
#endif
}

/* a column of a float format */
LLMC_INLINE vf
w_column(const Weight w, const uint8_t *group, int64_t col)
{
	const uint8_t *p = group + col * w_block_bytes(w);

	if (w.group) {
		const int at = (int)(col % w.group);
		const w_span s = w_span_at(w, group, col / w.group);
		return w_span_column(w, s, at / 2, at % 2) * s.d;
	}
	if (w.bits == 32)
		return vf_load((const float *)p);
	return w.brain ? (vf)(vi_of_u16(p) << 16) : w_halves(p);
}

typedef struct w_at {
	const uint8_t *head, *quant;
	int sub;                       /* index in the superblock */
	const struct w_indices *found; /* NULL: w_bytes also does the work of w_gather_indices */
	vf d, m; /* scale and min of the superblock, or of the block if there are no superblocks */
} w_at;

/* zero points of a group of columns, minus w_offset */
LLMC_INLINE vi
w_zeros(const Weight w, const uint8_t *head)
{
	return vi_of_u8(head + (2 + 2 * w.wide) * VL) - vi_all(w_offset(w));
}

/* Prepares the data of w_together blocks. b: the first of them, a multiple of w_together */
LLMC_INLINE w_at
w_shared(const Weight w, const uint8_t *group, int b)
{
	w_at k = { .head = group + w_whole_bytes(w) +
		           (int64_t)(b / w_together(w)) * w_columns_bytes(w) };

	k.quant = k.head + w_head_bytes(w);
	if (w.group) {
		k.d = w.wide ? vf_load((const float *)k.head) : w_halves(k.head);
		if (w.affine)
			k.m =
			    vf_load((const float *)k.head + VL) + k.d * vf_set1((float)w_offset(w));
		else
			k.m = k.d * vf_of_vi(-w_zeros(w, k.head));
		return k;
	}
	if (w.code) { /* half the scale, because w_bytes returns doubled values */
		k.d = w.halves == 1
		          ? w_exponents(k.head) * vf_set1(0.5f)
		          : vf_load((const float *)group) * vf_set1(128); /* w_e4m3_over_256 */
		return k;
	}
	k.d = w_halves(k.head);
	if (w_is_coded(w) && llmc_codes_of((llmc_codes_kind)w.kind).factor < 1)
		k.d *= vf_set1(llmc_codes_of((llmc_codes_kind)w.kind).factor);
	if (w.min)
		k.m = w_halves(k.head + 2 * VL);
	if (w.min && w.super)
		k.m = -k.m;
	return k;
}

LLMC_INLINE w_at
w_next(const Weight w, w_at k)
{
	k.quant += w_quant_bytes(w);
	k.sub++;
	return k;
}

LLMC_INLINE w_at
w_block(const Weight w, const uint8_t *group, int b)
{
	w_at k = w_shared(w, group, b / w_together(w) * w_together(w));

	k.sub = b % w_together(w);
	k.quant += k.sub * w_quant_bytes(w);
	return k;
}

/* ---- codes ---- */
/* looks up each byte of x in a table of 16 bytes; bits 4 to 6 are ignored if bit 7 is clear */
LLMC_INLINE vi
w_sixteen(const uint8_t *table, vi x)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_shuffle_epi8(
	    _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)),
	    (__m512i)x);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_shuffle_epi8(
	    _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table)),
	    (__m256i)x);
#else
	for (int i = 0; i < VL; i++) {
		uint32_t v = (uint32_t)x[i];
		x[i] = (int32_t)(table[v & 15] | (uint32_t)table[v >> 8 & 15] << 8 |
		                 (uint32_t)table[v >> 16 & 15] << 16 |
		                 (uint32_t)table[v >> 24 & 15] << 24);
	}
	return x;
#endif
}

/* 12 + twice the E2M1 value of each of the four codes in the bytes of a lane */
LLMC_INLINE vi
w_doubled(vi v)
{
	static const uint8_t table[16] = {
		12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
	};

	return w_sixteen(table, v);
}

/* bytes of scales of the current 32 columns */
LLMC_INLINE const uint8_t *
w_side(const Weight w, w_at k)
{
	const llmc_codes_shape s = llmc_codes_of((llmc_codes_kind)w.kind);

	return k.head + (2 + 2 * s.min + k.sub * s.scales) * VL;
}

#define w_is_iq1(w) ((w).kind == CODES_iq1_s || (w).kind == CODES_iq1_m)

/* upper bits of a grid index, which are stored apart from its low byte */
LLMC_INLINE int
w_high_bits(const Weight w)
{
	return w_is_iq1(w) ? 3 : llmc_codes_extra_bytes((llmc_codes_kind)w.kind);
}

/* extra bits of index 4 j + c in the lowest bits of byte c: the index's upper bits; for iq1
 * followed by a flag */
LLMC_INLINE vi
w_high(const Weight w, w_at k, int j)
{
	const llmc_codes_shape s = llmc_codes_of((llmc_codes_kind)w.kind);
	const int bits = llmc_codes_extra_bytes((llmc_codes_kind)w.kind),
	          blocks = 8 / bits; /* number of blocks that share bytes */

	return vi_load(k.head +
	               (2 + 2 * s.min + 8 * s.scales + 4 * (bits * j + k.sub / blocks)) * VL) >>
	       bits * (k.sub % blocks);
}

/* Grid indices of a block. AVX2 gathers are slower than single loads, and the addresses of single
 * loads come from memory. Byte indices are used in place; wider indices are first assembled here by
 * w_gather_indices. Callers assemble several blocks before they use them, because reading values
 * right after a vector store would stall store forwarding. [word][rows 0, 1, 4, 5 or 2, 3, 6,
 * 7][row][index in the word] */
typedef struct w_indices {
	_Alignas(32) uint16_t of[2][2][4][4];
} w_indices;

#if VL == 8 && defined(VF_HAVE_256)
#define w_is_indexed(w) (w_is_coded(w) && w_high_bits(w))
#else
#define w_is_indexed(w) 0
#endif

LLMC_INLINE void
w_gather_indices(const Weight w, w_at k, w_indices *o)
{
#if VL == 8 && defined(VF_HAVE_256)
	LLMC_EACH(j, w.kind == CODES_iq3_s ? 2 : 1, 2)
	{
		const __m256i low = (__m256i)vi_load(k.quant + 4 * VL * j),
		              high = (__m256i)(w_high(w, k, j) &
		                               vi_all(0x01010101 * ((1 << w_high_bits(w)) - 1)));
		_mm256_store_si256((__m256i *)(void *)o->of[j][0], _mm256_unpacklo_epi8(low, high));
		_mm256_store_si256((__m256i *)(void *)o->of[j][1], _mm256_unpackhi_epi8(low, high));
	}
	__asm__("" : "+m"(*o)); /* keeps compilers from extracting the indices from the vectors */
#else
	(void)w, (void)k, (void)o;
#endif
}

#if VL == 8 && defined(VF_HAVE_256) && (LLMC_WEIGHTS & 4)
#define LLMC_EIGHTS 1 /* cpu/weights/grids.h */
/* Returns the index of entry n of a row in a block. An index of more than 8 bits was assembled
 * earlier. */
LLMC_INLINE uint64_t
w_index(const Weight w, w_at k, int row, int n)
{
	const uint16_t *const found =
	    w_high_bits(w) ? k.found->of[n / 4][row / 2 % 2][row / 4 * 2 + row % 2] : NULL;
	const uint8_t *const word = k.quant + 4 * VL * (n / 4) + 4 * row;

	if (w.kind == CODES_iq3_s || w.kind == CODES_iq3_xxs) {
		/* The load ports limit formats whose grid entries have four columns. One load
		 * therefore brings four indices to a register; compilers would load each index
		 * separately. */
		typedef uint64_t eight_bytes __attribute__((may_alias, aligned(1)));
		typedef uint32_t four_bytes __attribute__((may_alias, aligned(1)));
		const int bits = found ? 16 : 8, at = n % 4 * bits;
		uint64_t four;
		if (found)
			__asm__("mov %1, %0"
			        : "=r"(four)
			        : "m"(*(const eight_bytes *)(const void *)found));
		else
			__asm__("mov %1, %k0"
			        : "=r"(four)
			        : "m"(*(const four_bytes *)(const void *)word));
		return n % 4 == 0 ? four & ((1u << bits) - 1)
		       : n % 4 == 3
		           ? four >> at
		           : __builtin_ia32_bextr_u64(four, (unsigned long long)(at | bits << 8));
	}
	return found ? found[n % 4] : word[n % 4];
}
#endif

/* entry n of a grid in a block */
LLMC_INLINE vi
w_entry(const Weight w, w_at k, int n)
{
	const unsigned *const grid = llmc_codes_grid((llmc_codes_kind)w.kind);
	const int bits = w_high_bits(w);

#ifdef LLMC_EIGHTS
	if (!bits || k.found) {
#define W_OF(row) (int)grid[w_index(w, k, row, n)]
		return (vi)_mm256_setr_epi32(W_OF(0), W_OF(1), W_OF(2), W_OF(3), W_OF(4), W_OF(5),
		                             W_OF(6), W_OF(7));
#undef W_OF
	}
#endif
	vi x = vi_load(k.quant + 4 * VL * (n / 4)) >> 8 * (n % 4) & vi_all(255);
	if (bits)
		x |= (w_high(w, k, n / 4) >> 8 * (n % 4) & vi_all((1 << bits) - 1)) << 8;
#if defined(VF_NATIVE_512)
	return (vi)_mm512_i32gather_epi32((__m512i)x, (const int *)(const void *)grid, 4);
#else
	for (int i = 0; i < VL; i++)
		x[i] = (int32_t)grid[x[i]];
	return x;
#endif
}

/* broadcasts byte n of a lane within the lane */
LLMC_INLINE vi
w_spread(vi x, int n)
{
#if defined(VF_NATIVE_512) || (VL == 8 && defined(VF_HAVE_256))
	const __m128i at = _mm_add_epi8(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c),
	                                _mm_set1_epi8((char)n));
#if defined(VF_NATIVE_512)
	return (vi)_mm512_shuffle_epi8((__m512i)x, _mm512_broadcast_i32x4(at));
#else
	return (vi)_mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(at));
#endif
#else
	x = x >> 8 * n & vi_all(255);
	x |= x << 8;
	return x | x << 16;
#endif
}

/* Isolates bit n of each byte and moves it to bit `to`. n and `to` are constants. */
LLMC_INLINE vi
w_bit(vi x, int n, int to)
{
	return (n > to ? x >> (n - to) : x << (to - n)) & vi_all(0x01010101 << to);
}

/* iq1: shift of the groups of eight, plus 8 (for iq1_s in the last byte) */
LLMC_INLINE vi
w_moved(const Weight w, w_at k)
{
	return vi_all(0x09090909) - (w_high(w, k, 0) >> 2 & vi_all(0x02020202));
}

/* w_bytes of columns 4 i .. 4 i + 3 on VL rows, by common/llmc_codes.h. plain: for kinds with
 * tables, without the zero that w_bytes adds */
LLMC_INLINE vi
w_codes_bytes(const Weight w, w_at k, int i, const int plain)
{
	static const uint8_t iq4[2][16] = { LLMC_IQ4(0), LLMC_IQ4(128) },
	                     iq3_xxs[2][16] = { LLMC_IQ3_XXS(0), LLMC_IQ3_XXS(64) },
	                     iq3_s[2][16] = { LLMC_IQ3_S(0), LLMC_IQ3_S(16) },
	                     iq2[2][16] = { LLMC_IQ2(0), LLMC_IQ2(64) };
	const llmc_codes_kind kind = (llmc_codes_kind)w.kind;
	vi v;

	switch (kind) {
	case CODES_iq4_nl:
	case CODES_iq4_xs:
		v = vi_load(k.quant + 4 * VL * (i & 3));
		return w_sixteen(iq4[plain], (i < 4 ? v : v >> 4) & vi_all(0x0f0f0f0f));
	case CODES_iq3_s:
	case CODES_iq3_xxs:
		v = w_entry(w, k, i) | w_bit(vi_load(k.quant + 8 * VL), i, 3);
		return w_sixteen((kind == CODES_iq3_s ? iq3_s : iq3_xxs)[plain], v);
	case CODES_iq2_s:
	case CODES_iq2_xs:
	case CODES_iq2_xxs:
		/* codes are below 3, so after the shift bits of other columns remain only in bits 4
		 * and 5 */
		v = w_entry(w, k, i / 2) >> 4 * (i & 1);
		return w_sixteen(iq2[plain], v | w_bit(vi_load(k.quant + 4 * VL), i, 2));
	case CODES_iq1_s:
	case CODES_iq1_m:
		v = w_entry(w, k, i / 2);
		v = (i & 1 ? v >> 1 : v << 3) & vi_all(0x18181818);
		return v + w_spread(w_moved(w, k), kind == CODES_iq1_s ? 3 : i / 2);
	default:
		v = vi_load(k.quant + 4 * VL * (i / 4)) >> 2 * (i & 3) & vi_all(0x03030303);
		if (kind == CODES_q3_k)
			v |= w_bit(vi_load(k.quant + 8 * VL), i, 2);
		return v;
	}
}

LLMC_INLINE vf
w_codes_scale(const Weight w, w_at k, int half)
{
	const uint8_t *p = w_side(w, k);
	vi v;

	switch ((llmc_codes_kind)w.kind) {
	case CODES_q2_k:
		return k.d * vf_of_vi(vi_of_u8(p + half * VL) & vi_all(15));
	case CODES_q3_k:
		return k.d * vf_of_vi(vi_of_s8(p + half * VL));
	case CODES_iq4_xs:
	case CODES_iq3_s:
	case CODES_iq3_xxs:
	case CODES_iq2_xxs:
		return k.d * vf_of_vi(vi_of_s8(p));
	case CODES_iq2_s:
	case CODES_iq2_xs:
	case CODES_iq1_m:
		return k.d * vf_of_vi((vi_of_u8(p) >> 4 * half & vi_all(15)) * 2 + vi_all(1));
	case CODES_iq1_s:
		v = w_high(w, k, 0) >> 3 & vi_all(0x00010101);
		return k.d * vf_of_vi(((v | v >> 7 | v >> 14) & vi_all(7)) * 2 + vi_all(1));
	default:
		return k.d;
	}
}

LLMC_INLINE vi
w_bytes(const Weight w, w_at k, int i)
{
	if (w_is_coded(w))
		return w_codes_bytes(w, k, i, 0);
	if (w.bits == 8)
		return vi_load(k.quant + 4 * VL * i) ^ vi_all((int32_t)0x80808080);
	if (w.bits <= 3) { /* two words of bit pairs, then the third bits */
		vi v = vi_load(k.quant + 4 * VL * (i / 4)) >> 2 * (i & 3) & vi_all(0x03030303);
		if (w.bits == 3)
			v |= w_bit(vi_load(k.quant + 8 * VL), i, 2);
		return v;
	}
	/* nibbles, which are stored after the fifth bits or before the upper pairs of bits */
	vi v = vi_load(k.quant + 4 * VL * ((w.bits == 5) + (i & 3)));
	v = (i < 4 ? v : v >> 4) & vi_all(0x0f0f0f0f);
	if (w.code)
		return w_doubled(v);
	if (w.bits == 5) {
		vi high = vi_load(k.quant);
		v |= (i < 4 ? high << (4 - i) : high >> (i - 4)) & vi_all(0x10101010);
	}
	if (w.bits == 6) {
		vi high = vi_load(k.quant + 4 * VL * (4 + i / 4));
		v |= ((i & 3) == 3 ? high >> 2 : high << (4 - 2 * (i & 3))) & vi_all(0x30303030);
	}
	return v;
}

/* Returns whether elements are available as signed bytes: stored as such, or from a table of
 * sixteen. */
LLMC_INLINE int
w_is_signed(const Weight w)
{
	return w_is_coded(w) ? w.kind >= CODES_iq4_nl && w.kind <= CODES_iq2_xxs : w.bits == 8;
}

/* Returns signed bytes 0, 2, .. or 1, 3, .. as words. */
LLMC_INLINE vi
w_even_words(vi v)
{
#if VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_maddubs_epi16(
	    _mm256_set1_epi16(1), (__m256i)v); /* avoids a shift, which would be the bottleneck */
#else
	return (vi)((vw)v << 8 >> 8);
#endif
}

LLMC_INLINE vi
w_odd_words(vi v)
{
	return (vi)((vw)v >> 8);
}

LLMC_INLINE vi
w_words(const Weight w, w_at k, int i)
{
	if (w_is_signed(w)) {
		const vi v = w_is_coded(w) ? w_codes_bytes(w, k, i / 2, 1)
		                           : vi_load(k.quant + 4 * VL * (i / 2));
		return i & 1 ? w_odd_words(v) : w_even_words(v);
	}
	vi v = w_bytes(w, k, i / 2);
	v = (i & 1 ? v >> 8 : v) & vi_all(0x00ff00ff);
	return w_offset(w) ? (vi)((vw)v - (vw)vi_all(w_offset(w) * 0x10001)) : v;
}

LLMC_INLINE vf
w_scale(const Weight w, w_at k, int half)
{
	if (w.code && w.halves == 2)
		return k.d * w_e4m3_over_256(k.head + (2 * k.sub + half) * VL);
	if (w_is_coded(w))
		return w_codes_scale(w, k, half);
	if (!w.super)
		return k.d;
	if (w.min)
		return k.d * vf_of_vi(vi_of_u8(k.head + (4 + 2 * k.sub) * VL));
	return k.d * vf_of_vi(vi_of_s8(k.head + (2 + w.halves * k.sub + half) * VL));
}

LLMC_INLINE vf
w_min(const Weight w, w_at k, int half)
{
	if (w_is_coded(w))
		return k.m * vf_of_vi(vi_of_u8(w_side(w, k) + half * VL) >> 4);
	if (w.super)
		k.m *= vf_of_vi(vi_of_u8(k.head + (4 + 2 * k.sub + 1) * VL));
	return k.m;
}

#endif
