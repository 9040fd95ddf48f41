/* GGUF block types whose weights are codes: numbers of 2 or 3 bits, indices into a table of sixteen
 * (IQ4), or points of a grid of eight or four weights (IQ1 to IQ3). The dequantiser, the packer and
 * the CPU gather share this unpacking of a block.
 *
 *   columns of 32   `words` words of codes, `scales` bytes of scales, `high` bytes for the parts of
 *                   grid indices above 8 bits
 *   block           f16 d, and m for types with minima
 *
 *   value           d * factor * scale * (byte - zero) - m * minimum; kernels compute byte,
 *                   which is unsigned, from a code
 *
 *   codes     q2_k, tq1_0, tq2_0   two words: byte c of word h has column 16 h + 4 k + c in
 *                                  bits 2 k
 *             q3_k                 the same two words, then third bits in sign order
 *             iq4_nl, iq4_xs       four words of nibbles: byte c of word j has column 4 j + c in
 *                                  the low nibble, 16 + 4 j + c in the high one
 *             iq3                  two words of indices (one byte per four columns), then signs
 *             iq2                  indices (one byte per eight columns), signs
 *             iq1                  indices
 *   signs     byte c has bit i for column 4 i + c
 *   high      iq2_xs, iq2_s        2 bits per index
 *             iq3_s                1 bit per index
 *             iq1                  3 bits per index; bits 12 .. 15: which groups of eight are
 *                                  shifted by -1/8 instead of 1/8 (iq1_s: bit 15 for all groups,
 *                                      and bits 12 .. 14 are
 *                                      the scale)
 *   scales    q2_k                 two bytes, as in the file: scale and minimum
 *             q3_k                 two signed bytes
 *             iq4_xs               one signed byte
 *             iq3_s, iq3_xxs, iq2_xxs   2 s + 1
 *             iq2_xs, iq2_s, iq1_m      two nibbles s, which mean 2 s + 1
 *
 * All multiplications are exact in fp32 except those of q2_k, which round as in ggml. */
#ifndef LLMC_CODES_H
#define LLMC_CODES_H

#include <stdint.h>
#include <string.h>

#include "common/llmc_grids.h"

#define LLMC_CODES_FN static inline __attribute__((always_inline, unused))

typedef enum llmc_codes_kind {
	CODES_none,
	CODES_q2_k,
	CODES_q3_k,
	CODES_iq4_nl,
	CODES_iq4_xs,
	CODES_iq3_s,
	CODES_iq3_xxs,
	CODES_iq2_s,
	CODES_iq2_xs,
	CODES_iq2_xxs,
	CODES_iq1_s,
	CODES_iq1_m,
	CODES_tq1_0,
	CODES_tq2_0
} llmc_codes_kind;

typedef struct llmc_codes_shape {
	int columns, bytes; /* columns and bytes per block of the file */
	int halves, min;    /* halves: scales per 32 columns, 1 or 2; min 1: the type has minima */
	int scales, high,
	    words;      /* per 32 columns: bytes of scales, bytes of high bits, words of codes */
	int zero, bits; /* zero: subtracted from bytes; bits: bytes are below 2^bits */
	float factor;
} llmc_codes_shape;

LLMC_CODES_FN llmc_codes_shape
llmc_codes_of(llmc_codes_kind kind)
{
	switch (kind) {
	case CODES_q2_k:
		return (llmc_codes_shape){ 256, 84, 2, 1, 2, 0, 2, 0, 2, 1 };
	case CODES_q3_k:
		return (llmc_codes_shape){ 256, 110, 2, 0, 2, 0, 3, 4, 3, 1 };
	case CODES_iq4_nl:
		return (llmc_codes_shape){ 32, 18, 1, 0, 0, 0, 4, 128, 8, 1 };
	case CODES_iq4_xs:
		return (llmc_codes_shape){ 256, 136, 1, 0, 1, 0, 4, 128, 8, 1 };
	case CODES_iq3_s:
		return (llmc_codes_shape){ 256, 110, 1, 0, 1, 1, 3, 16, 5, 1 };
	case CODES_iq3_xxs:
		return (llmc_codes_shape){ 256, 98, 1, 0, 1, 0, 3, 64, 7, 0.25f };
	case CODES_iq2_s:
		return (llmc_codes_shape){ 256, 82, 2, 0, 1, 1, 2, 64, 7, 0.125f };
	case CODES_iq2_xs:
		return (llmc_codes_shape){ 256, 74, 2, 0, 1, 1, 2, 64, 7, 0.125f };
	case CODES_iq2_xxs:
		return (llmc_codes_shape){ 256, 66, 1, 0, 1, 0, 2, 64, 7, 0.125f };
	case CODES_iq1_s:
		return (llmc_codes_shape){ 256, 50, 1, 0, 0, 2, 1, 16, 5, 0.125f };
	case CODES_iq1_m:
		return (llmc_codes_shape){ 256, 56, 2, 0, 1, 2, 1, 16, 5, 0.125f };
	case CODES_tq1_0:
		return (llmc_codes_shape){ 256, 54, 1, 0, 0, 0, 2, 1, 2, 1 };
	case CODES_tq2_0:
		return (llmc_codes_shape){ 256, 66, 1, 0, 0, 0, 2, 1, 2, 1 };
	case CODES_none:
		break;
	}
	return (llmc_codes_shape){ 0 };
}

/* Returns the bits of a grid index that are stored apart from its low byte: the index's upper bits,
 * and for iq1 one of bits 12 .. 15 of `high`. */
LLMC_CODES_FN int
llmc_codes_extra_bytes(llmc_codes_kind kind)
{
	return kind == CODES_iq3_s                           ? 1
	       : kind == CODES_iq2_s || kind == CODES_iq2_xs ? 2
	       : kind == CODES_iq1_s || kind == CODES_iq1_m  ? 4
	                                                     : 0;
}

/* A table of sixteen bytes. z is subtracted from each: 0, or the type's zero to get signed
 * values. */
#define LLMC_CODES_16(z, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                           \
	{                                                                                          \
		(a - z) & 255, (b - z) & 255, (c - z) & 255, (d - z) & 255,                        \
		(e - z) & 255, (f - z) & 255, (g - z) & 255, (h - z) & 255,                        \
		(i - z) & 255, (j - z) & 255, (k - z) & 255, (l - z) & 255,                        \
		(m - z) & 255, (n - z) & 255, (o - z) & 255, (p - z) & 255                         \
	}
/* Values of the nibbles of iq4_nl and iq4_xs, plus 128 */
#define LLMC_IQ4(z)                                                                                \
	LLMC_CODES_16(z, 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
/* Magnitudes of grid codes plus the type's zero: first as positive values, then as negative ones
 * (from index 8; for iq2 from index 4, and the table is repeated) */
#define LLMC_IQ3_XXS(z)                                                                            \
	LLMC_CODES_16(z, 68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2)
#define LLMC_IQ3_S(z) LLMC_CODES_16(z, 17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1)
#define LLMC_IQ2(z)                                                                                \
	LLMC_CODES_16(z, 72, 89, 107, 64, 56, 39, 21, 64, 72, 89, 107, 64, 56, 39, 21, 64)

LLMC_CODES_FN const unsigned *
llmc_codes_grid(llmc_codes_kind kind)
{
	return kind == CODES_iq3_s     ? llmc_grid_iq3_s
	       : kind == CODES_iq3_xxs ? llmc_grid_iq3_xxs
	       : kind == CODES_iq2_s   ? llmc_grid_iq2_s
	       : kind == CODES_iq2_xs  ? llmc_grid_iq2_xs
	       : kind == CODES_iq2_xxs ? llmc_grid_iq2_xxs
	                               : llmc_grid_iq1;
}

/* An unpacked block; iq4_nl uses only index [0] */
typedef struct llmc_codes {
	uint16_t d, m; /* f16 */
	uint8_t scale[8][2];
	uint16_t high[8];
	uint32_t word[8][4];
} llmc_codes;

LLMC_CODES_FN unsigned
llmc_codes_u16(const uint8_t *p)
{
	return p[0] | (unsigned)p[1] << 8;
}

LLMC_CODES_FN uint32_t
llmc_codes_u32(const uint8_t *p)
{
	return llmc_codes_u16(p) | (uint32_t)llmc_codes_u16(p + 2) << 16;
}

/* Reorders bits from bit i for column i to sign order. */
LLMC_CODES_FN uint32_t
llmc_codes_signs(uint32_t bits)
{
	uint32_t out = 0;

	for (int i = 0; i < 8; i++) /* four bits go to bit i of the four bytes */
		out |= ((bits >> 4 * i & 15) * 0x00204081u & 0x01010101u) << i;
	return out;
}

/* Returns seven signs, and as the eighth the sign that makes the number of negative signs even. */
LLMC_CODES_FN uint32_t
llmc_codes_even(uint32_t seven)
{
	uint32_t odd = seven ^ seven >> 4;

	odd ^= odd >> 2;
	odd ^= odd >> 1;
	return seven | (odd & 1) << 7;
}

/* Gathers the 2-bit codes of 32 columns from bit position `shift` of the bytes at p. */
LLMC_CODES_FN void
llmc_codes_pairs(const uint8_t *p, int shift, uint32_t word[2])
{
	for (int h = 0; h < 2; h++) {
		word[h] = 0;
		for (int k = 0; k < 4; k++)
			word[h] |= (llmc_codes_u32(p + 16 * h + 4 * k) >> shift & 0x03030303u)
			           << 2 * k;
	}
}

LLMC_CODES_FN void
llmc_codes_q3_k(const uint8_t *b, llmc_codes *o)
{
	const uint8_t *s = b + 96;

	o->d = (uint16_t)llmc_codes_u16(b + 108);
	for (int i = 0; i < 8; i++) {
		llmc_codes_pairs(b + 32 + i / 4 * 32, i % 4 * 2, o->word[i]);
		for (int k = 0; k < 8; k++)
			o->word[i][2] |= (llmc_codes_u32(b + 4 * k) >> i & 0x01010101u) << k;
		for (int h = 0; h < 2; h++) {
			const int j = 2 * i + h;
			o->scale[i][h] = (uint8_t)(((s[j % 8] >> j / 8 * 4 & 15) |
			                            (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) -
			                           32);
		}
	}
}

LLMC_CODES_FN void
llmc_codes_tq(llmc_codes_kind kind, const uint8_t *b, llmc_codes *o)
{
	static const uint8_t power[5] = { 1, 3, 9, 27, 81 };

	o->d = (uint16_t)llmc_codes_u16(b + (kind == CODES_tq1_0 ? 52 : 64));
	for (int e = 0; e < 256; e++) {
		/* Base three: the byte has five columns. The first 160 columns are in 32 bytes, the
		 * next 80 in 16 bytes, the last 16 in 4 bytes with four columns each. */
		const int at = e < 160   ? e % 32
		               : e < 240 ? 32 + e % 16
		                         : 48 + e % 4,
		          digit = e < 160   ? e / 32
		                  : e < 240 ? (e - 160) / 16
		                            : (e - 240) / 4;
		const unsigned v = kind == CODES_tq1_0
		                       ? (unsigned)(uint8_t)(b[at] * power[digit]) * 3 >> 8
		                       : b[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3u;
		o->word[e / 32][e % 32 / 16] |= (uint32_t)v << (8 * (e % 4) + e % 16 / 4 * 2);
	}
}

LLMC_CODES_FN void
llmc_codes_iq4(llmc_codes_kind kind, const uint8_t *b, llmc_codes *o)
{
	const int xs = kind == CODES_iq4_xs;

	o->d = (uint16_t)llmc_codes_u16(b);
	for (int i = 0; i < (xs ? 8 : 1); i++) {
		for (int j = 0; j < 4; j++)
			o->word[i][j] = llmc_codes_u32(b + (xs ? 8 : 2) + 16 * i + 4 * j);
		if (xs)
			o->scale[i][0] = (uint8_t)(((b[4 + i / 2] >> i % 2 * 4 & 15) |
			                            (llmc_codes_u16(b + 2) >> 2 * i & 3) << 4) -
			                           32);
	}
}

LLMC_CODES_FN void
llmc_codes_iq23(llmc_codes_kind kind, const uint8_t *b, llmc_codes *o)
{
	o->d = (uint16_t)llmc_codes_u16(b);
	for (int i = 0; i < 8; i++) {
		uint32_t signs = 0, packed;
		switch (kind) {
		case CODES_iq2_xxs: /* four indices; then 4 x 7 signs and the scale */
		case CODES_iq3_xxs:
			packed =
			    llmc_codes_u32(kind == CODES_iq2_xxs ? b + 6 + 8 * i : b + 66 + 4 * i);
			for (int k = 0; k < 4; k++)
				signs |= llmc_codes_even(packed >> 7 * k & 127) << 8 * k;
			o->word[i][0] = llmc_codes_u32(b + 2 + 8 * i);
			if (kind == CODES_iq3_xxs)
				o->word[i][1] = llmc_codes_u32(b + 6 + 8 * i);
			o->scale[i][0] = (uint8_t)((packed >> 28) * 2 + 1);
			break;
		case CODES_iq2_xs: /* words with 9 bits of index and 7 bits of signs */
			for (int k = 0; k < 4; k++) {
				packed = llmc_codes_u16(b + 2 + 8 * i + 2 * k);
				o->word[i][0] |= (packed & 255) << 8 * k;
				o->high[i] = (uint16_t)(o->high[i] | (packed >> 8 & 1) << 2 * k);
				signs |= llmc_codes_even(packed >> 9) << 8 * k;
			}
			o->scale[i][0] = b[66 + i];
			break;
		case CODES_iq2_s:
			o->word[i][0] = llmc_codes_u32(b + 2 + 4 * i);
			signs = llmc_codes_u32(b + 34 + 4 * i);
			o->high[i] = b[66 + i];
			o->scale[i][0] = b[74 + i];
			break;
		default: /* iq3_s */
			o->word[i][0] = llmc_codes_u32(b + 2 + 8 * i);
			o->word[i][1] = llmc_codes_u32(b + 6 + 8 * i);
			o->high[i] = b[66 + i];
			signs = llmc_codes_u32(b + 74 + 4 * i);
			o->scale[i][0] = (uint8_t)((b[106 + i / 2] >> i % 2 * 4 & 15) * 2 + 1);
			break;
		}
		o->word[i][kind == CODES_iq3_s || kind == CODES_iq3_xxs ? 2 : 1] =
		    llmc_codes_signs(signs);
	}
}

LLMC_CODES_FN void
llmc_codes_iq1(llmc_codes_kind kind, const uint8_t *b, llmc_codes *o)
{
	if (kind == CODES_iq1_s)
		o->d = (uint16_t)llmc_codes_u16(b);
	for (int i = 0; i < 8; i++) {
		o->word[i][0] = llmc_codes_u32(b + (kind == CODES_iq1_s ? 2 : 0) + 4 * i);
		if (kind == CODES_iq1_s) {
			o->high[i] = (uint16_t)llmc_codes_u16(b + 34 + 2 * i);
			continue;
		}
		const unsigned q = llmc_codes_u16(b + 32 + 2 * i),
		               s = llmc_codes_u16(b + 48 + i / 2 * 2) >> i % 2 * 6;
		for (int k = 0; k < 4; k++)
			o->high[i] = (uint16_t)(o->high[i] | (q >> 4 * k & 7) << 3 * k |
			                        (q >> (4 * k + 3) & 1) << (12 + k));
		o->scale[i][0] = (uint8_t)((s & 7) | (s >> 3 & 7) << 4);
		if (i % 2 == 0) /* the block's scale is in the top nibbles */
			o->d = (uint16_t)(o->d | llmc_codes_u16(b + 48 + i) >> 12 << 2 * i);
	}
}

LLMC_CODES_FN void
llmc_codes_read(llmc_codes_kind kind, const uint8_t *b, llmc_codes *o)
{
	memset(o, 0, sizeof *o);
	switch (kind) {
	case CODES_q2_k:
		o->d = (uint16_t)llmc_codes_u16(b + 80);
		o->m = (uint16_t)llmc_codes_u16(b + 82);
		for (int i = 0; i < 8; i++) {
			llmc_codes_pairs(b + 16 + i / 4 * 32, i % 4 * 2, o->word[i]);
			o->scale[i][0] = b[2 * i];
			o->scale[i][1] = b[2 * i + 1];
		}
		break;
	case CODES_q3_k:
		llmc_codes_q3_k(b, o);
		break;
	case CODES_iq4_nl:
	case CODES_iq4_xs:
		llmc_codes_iq4(kind, b, o);
		break;
	case CODES_iq3_s:
	case CODES_iq3_xxs:
	case CODES_iq2_s:
	case CODES_iq2_xs:
	case CODES_iq2_xxs:
		llmc_codes_iq23(kind, b, o);
		break;
	case CODES_iq1_s:
	case CODES_iq1_m:
		llmc_codes_iq1(kind, b, o);
		break;
	case CODES_tq1_0:
	case CODES_tq2_0:
		llmc_codes_tq(kind, b, o);
		break;
	case CODES_none:
		break;
	}
}

/* Returns the byte (value + zero) of column e of a group of 32 columns, computed as kernels compute
 * it. */
LLMC_CODES_FN int
llmc_codes_byte(llmc_codes_kind kind, const llmc_codes *o, int i, int e)
{
	static const uint8_t iq4[16] = LLMC_IQ4(0), iq3_xxs[16] = LLMC_IQ3_XXS(0),
	                     iq3_s[16] = LLMC_IQ3_S(0), iq2[16] = LLMC_IQ2(0);
	const uint32_t *w = o->word[i];
	const int at = 8 * (e % 4), bit = at + e / 4,
	          pair = (int)(w[e / 16] >> (at + e % 16 / 4 * 2) & 3), four = e / 4, eight = e / 8;
	unsigned index;

	switch (kind) {
	case CODES_q2_k:
	case CODES_tq1_0:
	case CODES_tq2_0:
		return pair;
	case CODES_q3_k:
		return pair | (int)(w[2] >> bit & 1) << 2;
	case CODES_iq4_nl:
	case CODES_iq4_xs:
		return iq4[w[e % 16 / 4] >> (at + e / 16 * 4) & 15];
	case CODES_iq3_s:
	case CODES_iq3_xxs:
		index = (w[four / 4] >> four % 4 * 8 & 255) |
		        (kind == CODES_iq3_s ? (o->high[i] >> four & 1u) << 8 : 0);
		index = (llmc_codes_grid(kind)[index] >> at & 7) | (w[2] >> bit & 1) << 3;
		return (kind == CODES_iq3_s ? iq3_s : iq3_xxs)[index];
	case CODES_iq2_s:
	case CODES_iq2_xs:
	case CODES_iq2_xxs:
		index = (w[0] >> eight * 8 & 255) | (o->high[i] >> 2 * eight & 3u) << 8;
		return iq2[(llmc_codes_grid(kind)[index] >> (at + e % 8 / 4 * 4) & 3) |
		           (w[1] >> bit & 1) << 2];
	case CODES_iq1_s:
	case CODES_iq1_m:
		index = (w[0] >> eight * 8 & 255) | (o->high[i] >> 3 * eight & 7u) << 8;
		return (int)(llmc_codes_grid(kind)[index] >> (at + e % 8 / 4 * 4) & 3) * 8 + 8 +
		       (o->high[i] >> (kind == CODES_iq1_s ? 15 : 12 + eight) & 1 ? -1 : 1);
	case CODES_none:
		break;
	}
	return 0;
}

/* Returns the scale of half h of 32 columns, times d. */
LLMC_CODES_FN float
llmc_codes_scale(llmc_codes_kind kind, const llmc_codes *o, float d, int i, int h)
{
	d *= llmc_codes_of(kind).factor;
	switch (kind) {
	case CODES_q2_k:
		return d * (float)(o->scale[i][h] & 15);
	case CODES_q3_k:
		return d * (float)(int8_t)o->scale[i][h];
	case CODES_iq4_xs:
	case CODES_iq3_s:
	case CODES_iq3_xxs:
	case CODES_iq2_xxs:
		return d * (float)(int8_t)o->scale[i][0];
	case CODES_iq2_s:
	case CODES_iq2_xs:
	case CODES_iq1_m:
		return d * (float)((o->scale[i][0] >> 4 * h & 15) * 2 + 1);
	case CODES_iq1_s:
		return d * (float)((o->high[i] >> 12 & 7) * 2 + 1);
	case CODES_iq4_nl:
	case CODES_tq1_0:
	case CODES_tq2_0:
	case CODES_none:
		break;
	}
	return d;
}

/* Dequantises a block; d and m are o->d and o->m converted to float. */
LLMC_CODES_FN void
llmc_codes_values(llmc_codes_kind kind, const llmc_codes *o, float d, float m, float *y)
{
	const llmc_codes_shape s = llmc_codes_of(kind);

	for (int i = 0; i < s.columns / 32; i++)
		for (int e = 0; e < 32; e++) {
			const int h = s.halves == 2 ? e / 16 : 0;
			const float v = llmc_codes_scale(kind, o, d, i, h) *
			                (float)(llmc_codes_byte(kind, o, i, e) - s.zero);
			y[32 * i + e] = s.min ? v - m * (float)(o->scale[i][h] >> 4) : v;
		}
}

#endif
