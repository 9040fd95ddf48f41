/* Packing into r4, r8 and r16, and reading a row back. See layout_packed.h for the order of
 * fields. */
#include <string.h>

#include "formats/dequant.h"
#include "formats/layout_codes.h"
#include "formats/layout_packed.h"

/* Composition of a dtype's packed block; the names are those of Weight in
 * templates/cpu/weights/weights.h. */
typedef struct Geometry {
	int k;    /* columns per block; 0: dtype is not packed */
	int row;  /* bytes per row of a block */
	int bits; /* bits per element */
	int min;  /* 1: f16 d and m at the start, 0: only d */
	/* 1: superblock of eight blocks of 32 columns; two bytes of scales per block follow d
	 * and m */
	int super;
} Geometry;

static Geometry
geometry(Dtype d)
{
	switch (d) {
	case DT_F32:
		return (Geometry){ 1, 4, 32, 0, 0 };
	case DT_F16:
	case DT_BF16:
		return (Geometry){ 1, 2, 16, 0, 0 };
	case DT_Q4_0:
		return (Geometry){ 32, 18, 4, 0, 0 };
	case DT_Q4_1:
		return (Geometry){ 32, 20, 4, 1, 0 };
	case DT_Q5_0:
		return (Geometry){ 32, 22, 5, 0, 0 };
	case DT_Q5_1:
		return (Geometry){ 32, 24, 5, 1, 0 };
	case DT_Q8_0:
		return (Geometry){ 32, 34, 8, 0, 0 };
	case DT_Q4_K:
		return (Geometry){ 256, 148, 4, 1, 1 };
	case DT_Q5_K:
		return (Geometry){ 256, 180, 5, 1, 1 };
	case DT_Q6_K:
		return (Geometry){ 256, 210, 6, 0, 1 };
	case DT_MXFP4:
		return (Geometry){ 32, 17, 4, 0, 0 };
	case DT_NVFP4:
		return (Geometry){ 64, 36, 4, 0, 0 };
		CODE_DTYPES(DTYPE_CASE)
		return (Geometry){ dtype_info(d)->block_elems, codes_bytes(d), 0, 0, 0 };
		GROUP_DTYPES(DTYPE_CASE)
		return (Geometry){ dtype_info(d)->block_elems, dtype_info(d)->block_bytes,
			           dtype_group(d).bits, 0, 0 };
	case DT_I32:
	case DT_I64:
	case DT_NONE:
	case DT_COUNT:
		break;
	}
	return (Geometry){ 0 };
}

int
layout_whole_bytes(Dtype d)
{
	return dtype_row_factor(d) ? (int)sizeof(float) : 0;
}

static uint32_t
u32_at(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static void
put_u32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, sizeof v);
}

static float
f16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return f16_to_f32(v);
}

static int64_t
group_bytes(Dtype d, int64_t cols, int R)
{
	Geometry g = geometry(d);
	int64_t bytes;

	if (!g.k || cols < 0 || cols % g.k ||
	    __builtin_mul_overflow(cols / g.k, (int64_t)g.row * R, &bytes) ||
	    __builtin_add_overflow(bytes, layout_whole_bytes(d) * R, &bytes))
		return -1;
	return bytes;
}

/* fifth_order: reorders bits (bit i for column i) to the order of a fifth-bit dword. fifth_bit:
 * returns the bit of column i in that order */
static uint32_t
fifth_order(uint32_t bits)
{
	uint32_t out = 0;

	for (int c = 0; c < 4; c++)
		for (int j = 0; j < 4; j++) {
			out |= (bits >> (4 * j + c) & 1) << (8 * c + j);
			out |= (bits >> (16 + 4 * j + c) & 1) << (8 * c + 4 + j);
		}
	return out;
}

static uint32_t
fifth_bit(uint32_t ordered, int i)
{
	/* i / 4 runs over bits 0..3, then over bits 4..7, of byte i % 4 */
	return ordered >> (8 * (i % 4) + i / 4) & 1;
}

/* Unpacks the 6-bit scales and mins of Q4_K and Q5_K to bytes */
static void
scales_of(const uint8_t *s, uint8_t scale[8], uint8_t min[8])
{
	for (int j = 0; j < 4; j++) {
		scale[j] = s[j] & 63;
		min[j] = s[j + 4] & 63;
		scale[j + 4] = (uint8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
		min[j + 4] = (uint8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
	}
}

static inline __attribute__((always_inline)) void
pack_small(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	Geometry g = geometry(d);
	const int n_f16 = 1 + g.min;
	uint8_t *q = dst + 2 * n_f16 * R;

	for (int r = 0; r < R; r++) {
		const uint8_t *b = src + r * row_bytes;
		for (int i = 0; i < n_f16; i++, b += 2)
			memcpy(dst + 2 * (i * R + r), b, 2);
		uint8_t *o = q + 4 * r;
		if (g.bits == 5) {
			put_u32(o, fifth_order(u32_at(b)));
			b += 4;
			o += 4 * R;
		}
		for (int j = 0; j < (g.bits == 8 ? 8 : 4); j++)
			put_u32(o + 4 * j * R, u32_at(b + 4 * j));
	}
}

/* In the file two sub-blocks share 32 bytes, as low and high nibbles. A packed sub-block has 16
 * bytes of its own. */
static inline __attribute__((always_inline)) void
pack_q45_k(int bits, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	int sub_bytes = (bits == 5 ? 20 : 16) * R;

	for (int r = 0; r < R; r++) {
		const uint8_t *b = src + r * row_bytes, *fifth = b + 16,
		              *nibbles = b + (bits == 5 ? 48 : 16);
		uint8_t scale[8], min[8];
		scales_of(b + 4, scale, min);
		memcpy(dst + 2 * r, b, 2);
		memcpy(dst + 2 * (R + r), b + 2, 2);
		for (int s = 0; s < 8; s++) {
			dst[4 * R + 2 * s * R + r] = scale[s];
			dst[4 * R + (2 * s + 1) * R + r] = min[s];
			uint8_t *o = dst + 20 * R + s * sub_bytes + 4 * r;
			if (bits == 5) {
				uint32_t high = 0;
				for (int i = 0; i < 32; i++)
					high |= (uint32_t)(fifth[i] >> s & 1) << i;
				put_u32(o, fifth_order(high));
				o += 4 * R;
			}
			const uint8_t *n = nibbles + s / 2 * 32;
			int shift = s % 2 * 4;
			for (int j = 0; j < 4; j++)
				put_u32(o + 4 * j * R,
				        (u32_at(n + 4 * j) >> shift & 0x0f0f0f0fu) |
				            (u32_at(n + 16 + 4 * j) >> shift & 0x0f0f0f0fu) << 4);
		}
	}
}

static inline __attribute__((always_inline)) void
pack_q6_k(const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	for (int r = 0; r < R; r++) {
		const uint8_t *b = src + r * row_bytes;
		memcpy(dst + 2 * r, b + 208, 2);
		for (int s = 0; s < 16; s++)
			dst[2 * R + s * R + r] = b[192 + s];
		for (int s = 0; s < 8; s++) {
			/* file order: see block_q6_k in formats/dequant.c */
			const uint8_t *low = b + s / 4 * 64 + s % 2 * 32,
			              *high = b + 128 + s / 4 * 32;
			int low_shift = s % 4 / 2 * 4, high_shift = s % 4 * 2;
			uint8_t *o = dst + 18 * R + s * 24 * R + 4 * r;
			uint32_t pair[2] = { 0, 0 };
			for (int j = 0; j < 4; j++) {
				put_u32(o + 4 * j * R,
				        (u32_at(low + 4 * j) >> low_shift & 0x0f0f0f0fu) |
				            (u32_at(low + 16 + 4 * j) >> low_shift & 0x0f0f0f0fu)
				                << 4);
				for (int h = 0; h < 2; h++)
					pair[h] |= (u32_at(high + 16 * h + 4 * j) >> high_shift &
					            0x03030303u)
					           << 2 * j;
			}
			put_u32(o + 16 * R, pair[0]);
			put_u32(o + 20 * R, pair[1]);
		}
	}
}

/* Returns the code of column i in file order: 32 columns per 16 bytes */
static inline int
nibble(const uint8_t *codes, int i)
{
	return codes[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
}

/* Packs R rows: scale bytes first, then 32-column chunks of nibbles */
static inline __attribute__((always_inline)) void
pack_fp4(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	const int head = d == DT_MXFP4 ? 1 : 4, whole = layout_whole_bytes(d);

	for (int r = 0; r < R; r++) {
		const uint8_t *b = src + r * row_bytes + whole;
		for (int i = 0; i < head; i++)
			dst[i * R + r] = b[i];
		for (int j = 0; j < dtype_info(d)->block_elems / 8; j++)
			put_u32(dst + head * R + 4 * (j * R + r), u32_at(b + head + 4 * j));
	}
}

/* whole: bytes that are stored once per row */
static void
read_fp4(Dtype d, const uint8_t *whole, const uint8_t *p, int R, int r, float *y)
{
	const int head = d == DT_MXFP4 ? 1 : 4, at = layout_whole_bytes(d);
	uint8_t block[40];

	memcpy(block, whole, (size_t)at);
	for (int i = 0; i < head; i++)
		block[at + i] = p[i * R + r];
	for (int j = 0; j < dtype_info(d)->block_elems / 8; j++)
		put_u32(block + at + head + 4 * j, u32_at(p + head * R + 4 * (j * R + r)));
	dequant_row(d, block, y, dtype_info(d)->block_elems);
}

/* Maps packed code word j to its index in a file block. 3-bit codes take three words per 32
 * columns: two of bit pairs and one of third bits. The file block holds the third-bit words after
 * all pairs. */
static inline int
group_word(DtypeGroup g, int j)
{
	return g.bits != 3 ? j : j % 3 < 2 ? j / 3 * 2 + j % 3 : g.columns / 16 + j / 3;
}

/* Packs scales of the rows, zero points or minima, then 32-column chunks. e4m3, nf4 and fp4 are
 * stored column by column; 4-bit codes two per byte. */
static inline __attribute__((always_inline)) void
pack_group(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	const DtypeGroup g = dtype_group(d);
	const int head = g.scale_bytes + g.zero_bytes;
	uint8_t *q = dst + head * R;

	for (int r = 0; r < R; r++) {
		const uint8_t *b = src + r * row_bytes, *codes = b + head;
		memcpy(dst + g.scale_bytes * r, b, (size_t)g.scale_bytes);
		if (g.values != VALUES_INT) {
			for (int i = 0; g.bits == 8 && i < g.columns; i++)
				q[i * R + r] = codes[i];
			for (int i = 0; g.bits == 4 && i < g.columns; i += 2)
				q[i / 2 * R + r] =
				    (uint8_t)(nibble(codes, i) | nibble(codes, i + 1) << 4);
			continue;
		}
		memcpy(dst + g.scale_bytes * R + g.zero_bytes * r, b + g.scale_bytes,
		       (size_t)g.zero_bytes);
		for (int j = 0; j < g.columns * g.bits / 32; j++)
			put_u32(q + 4 * (j * R + r), u32_at(codes + 4 * group_word(g, j)) ^
			                                 (g.bits == 8 ? 0x80808080u : 0));
	}
}

static void
read_group(Dtype d, const uint8_t *p, int R, int r, float *y)
{
	const DtypeGroup g = dtype_group(d);
	const int head = g.scale_bytes + g.zero_bytes;
	uint8_t block[140] = { 0 }, *codes = block + head;
	const uint8_t *q = p + head * R;

	memcpy(block, p + g.scale_bytes * r, (size_t)g.scale_bytes);
	memcpy(block + g.scale_bytes, p + g.scale_bytes * R + g.zero_bytes * r,
	       (size_t)g.zero_bytes);
	for (int i = 0; g.values != VALUES_INT && i < g.columns; i++) {
		if (g.bits == 8)
			codes[i] = q[i * R + r];
		else
			codes[i / 32 * 16 + i % 16] |=
			    (uint8_t)((q[i / 2 * R + r] >> i % 2 * 4 & 15) << (i % 32 / 16 * 4));
	}
	for (int j = 0; g.values == VALUES_INT && j < g.columns * g.bits / 32; j++)
		put_u32(codes + 4 * group_word(g, j),
		        u32_at(q + 4 * (j * R + r)) ^ (g.bits == 8 ? 0x80808080u : 0));
	dequant_row(d, block, y, g.columns);
}

static inline __attribute__((always_inline)) void
pack(Dtype d, int64_t cols, const uint8_t *src, uint8_t *dst, int R)
{
	Geometry g = geometry(d);
	int64_t row_bytes = dtype_row_bytes(d, cols);
	int in = dtype_info(d)->block_bytes, whole = layout_whole_bytes(d);

	for (int r = 0; whole && r < R; r++)
		memcpy(dst + whole * r, src + r * row_bytes, (size_t)whole);
	dst += whole * R;
	for (int64_t i = 0; i < cols / g.k; i++, src += in, dst += g.row * R)
		switch (d) {
		case DT_F32:
			for (int r = 0; r < R; r++)
				memcpy(dst + 4 * r, src + r * row_bytes, 4);
			break;
		case DT_F16:
		case DT_BF16:
			for (int r = 0; r < R; r++)
				memcpy(dst + 2 * r, src + r * row_bytes, 2);
			break;
		case DT_Q4_0:
			pack_small(DT_Q4_0, src, row_bytes, dst, R);
			break;
		case DT_Q4_1:
			pack_small(DT_Q4_1, src, row_bytes, dst, R);
			break;
		case DT_Q5_0:
			pack_small(DT_Q5_0, src, row_bytes, dst, R);
			break;
		case DT_Q5_1:
			pack_small(DT_Q5_1, src, row_bytes, dst, R);
			break;
		case DT_Q8_0:
			pack_small(DT_Q8_0, src, row_bytes, dst, R);
			break;
		case DT_Q4_K:
			pack_q45_k(4, src, row_bytes, dst, R);
			break;
		case DT_Q5_K:
			pack_q45_k(5, src, row_bytes, dst, R);
			break;
		case DT_Q6_K:
			pack_q6_k(src, row_bytes, dst, R);
			break;
		case DT_MXFP4:
		case DT_NVFP4:
			pack_fp4(d, src, row_bytes, dst, R);
			break;
			CODE_DTYPES(DTYPE_CASE) codes_pack(d, src, row_bytes, dst, R);
			break;
			GROUP_DTYPES(DTYPE_CASE) pack_group(d, src, row_bytes, dst, R);
			break;
		case DT_I32:
		case DT_I64:
		case DT_NONE:
		case DT_COUNT:
			break;
		}
}

/* Returns element i of the 32 of row r at q, unsigned. */
static int
element(Geometry g, const uint8_t *q, int R, int r, int i)
{
	if (g.bits == 8)
		return q[(i / 4 * R + r) * 4 + i % 4] ^ 0x80;
	const uint8_t *nibbles = q + (g.bits == 5 ? 4 * R : 0);
	int v = nibbles[(i % 16 / 4 * R + r) * 4 + i % 4] >> (i / 16 * 4) & 15;
	if (g.bits == 5)
		v |= (int)fifth_bit(u32_at(q + 4 * r), i) << 4;
	if (g.bits == 6)
		v |= (int)(u32_at(q + 16 * R + 4 * (i / 16 * R + r)) >>
		               (8 * (i % 4) + 2 * (i % 16 / 4)) &
		           3)
		     << 4;
	return v;
}

/* Rounds as formats/dequant.c does, so that a packed row equals the file's row bit for bit. */
static void
read_blocks(Geometry g, const uint8_t *p, int R, int r, float *y)
{
	const uint8_t *scales = p + (g.min ? 4 : 2) * R, *q = scales + (g.super ? 16 * R : 0);
	const float d = f16_at(p + 2 * r), m = g.min ? f16_at(p + 2 * (R + r)) : 0;

	for (int e = 0; e < g.k; e++) {
		int v = element(g, q + e / 32 * (g.bits == 6 ? 24 : 4 * g.bits) * R, R, r, e % 32);
		float scale = d, min = m;
		if (g.super && g.min) {
			scale *= (float)scales[2 * (e / 32) * R + r];
			min *= -(float)scales[(2 * (e / 32) + 1) * R + r];
		} else if (g.super) {
			scale *= (float)(int8_t)scales[e / 16 * R + r];
		}
		y[e] = g.min ? scale * (float)v + min : scale * (float)(v - (1 << (g.bits - 1)));
	}
}

static void
read_block(Dtype d, const uint8_t *whole, const uint8_t *p, int R, int r, float *y)
{
	uint16_t h;

	if (d == DT_F32) {
		memcpy(y, p + 4 * r, 4);
	} else if (d == DT_F16) {
		*y = f16_at(p + 2 * r);
	} else if (d == DT_BF16) {
		memcpy(&h, p + 2 * r, 2);
		*y = bf16_to_f32(h);
	} else if (d == DT_MXFP4 || d == DT_NVFP4) {
		read_fp4(d, whole, p, R, r, y);
	} else if (dtype_kind(d)) {
		codes_read(d, p, R, r, y);
	} else if (dtype_group(d).columns) {
		read_group(d, p, R, r, y);
	} else {
		read_blocks(geometry(d), p, R, r, y);
	}
}

static void
row(Dtype d, int64_t cols, const uint8_t *packed, int R, int r, float *dst)
{
	Geometry g = geometry(d);
	const uint8_t *whole = packed + layout_whole_bytes(d) * r;

	packed += layout_whole_bytes(d) * R;
	for (int64_t i = 0; i < cols; i += g.k, packed += g.row * R)
		read_block(d, whole, packed, R, r, dst + i);
}

#define PACKED(R)                                                                                  \
	int64_t packed##R##_bytes(Dtype d, int64_t cols)                                           \
	{                                                                                          \
		return group_bytes(d, cols, R);                                                    \
	}                                                                                          \
	void packed##R##_pack(Dtype d, int64_t cols, const void *src, void *dst)                   \
	{                                                                                          \
		pack(d, cols, src, dst, R);                                                        \
	}                                                                                          \
	void packed##R##_row(Dtype d, int64_t cols, const void *packed, int r, float *dst)         \
	{                                                                                          \
		row(d, cols, packed, R, r, dst);                                                   \
	}
PACKED(4)
PACKED(8)
PACKED(16)
