/* The layout "planes": see formats/layout_packed.h. */
#include <string.h>

#include "formats/dequant.h"
#include "formats/layout_codes.h"
#include "formats/layout_packed.h"

/* ---- planes: one field of all blocks of a row, then the next field ---- */
enum { ALIGN = 16, MAX_BLOCK_BYTES = 210 };

/* A field: offset in the file's block, and size. Unused: bytes 0. */
typedef struct Field {
	int at, bytes;
} Field;
typedef struct Fields {
	Field f[4];
} Fields;

static Fields
fields(Dtype d)
{
	switch (d) {
	case DT_Q4_0:
		return (Fields){ { { 2, 16 }, { 0, 2 } } };
	case DT_Q4_1:
		return (Fields){ { { 4, 16 }, { 0, 4 } } };
	case DT_Q5_0:
		return (Fields){ { { 6, 16 }, { 2, 4 }, { 0, 2 } } };
	case DT_Q5_1:
		return (Fields){ { { 8, 16 }, { 4, 4 }, { 0, 4 } } };
	case DT_Q8_0:
		return (Fields){ { { 2, 32 }, { 0, 2 } } };
	case DT_Q4_K:
		return (Fields){ { { 16, 128 }, { 0, 16 } } };
	case DT_Q5_K:
		return (Fields){ { { 48, 128 }, { 16, 32 }, { 0, 16 } } };
	case DT_MXFP4:
		return (Fields){ { { 1, 16 }, { 0, 1 } } };
	case DT_NVFP4:
		return (Fields){ { { 8, 32 }, { 4, 4 } } };
	case DT_Q6_K:
		return (Fields){ { { 0, 128 }, { 128, 64 }, { 192, 16 }, { 208, 2 } } };
		CODE_DTYPES(DTYPE_CASE)
		{
			Fields o = { 0 };
			int bytes[4], at = 0;
			codes_planes(d, bytes);
			for (int i = 0; i < 4; at += bytes[i++])
				o.f[i] = (Field){ at, bytes[i] };
			return o;
		}
		GROUP_DTYPES(DTYPE_CASE)
		{
			const DtypeGroup g = dtype_group(d);
			const int head = g.scale_bytes + g.zero_bytes,
			          bits = g.bits == 3 ? 2 : g.bits,
			          third = g.bits == 3 ? g.columns / 8 : 0;
			return (Fields){ { { head, g.columns * bits / 8 },
				           { 0, g.scale_bytes },
				           { g.scale_bytes, g.zero_bytes },
				           { head + g.columns / 4, third } } };
		}
	case DT_F32:
	case DT_F16:
	case DT_BF16:
	case DT_I32:
	case DT_I64:
	case DT_NONE:
	case DT_COUNT:
		break;
	}
	return (Fields){ 0 };
}

static int64_t
plane_bytes(Field f, int64_t blocks)
{
	return (blocks * f.bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t
whole_plane_bytes(Dtype d)
{
	return plane_bytes((Field){ 0, layout_whole_bytes(d) }, 1);
}

int64_t
planes_bytes(Dtype d, int64_t cols)
{
	Fields s = fields(d);
	int64_t n = 0;

	/* the file's row size is in range, so the padding cannot overflow */
	if (!s.f[0].bytes || cols < 0 || dtype_row_bytes(d, cols) < 0 ||
	    dtype_row_bytes(d, cols) > INT64_MAX / 4)
		return -1;
	for (int i = 0; i < 4; i++)
		n += plane_bytes(s.f[i], cols / dtype_info(d)->block_elems);
	return n + whole_plane_bytes(d);
}

/* block of Q5_K and the offsets of its fields */
enum { Q5_K_BYTES = 176, Q5_K_FIFTH = 16, Q5_K_NIBBLES = 48 };

/* Reorders a Q5_K block from file order to plane order: five words per sub-block, four stored in
 * place of the nibbles, the fifth in place of the fifth bits. See layout_packed.h. */
static void
q5_k_fives(const uint8_t *block, uint8_t *to)
{
	memcpy(to, block, Q5_K_FIFTH);
	for (int s = 0; s < 8; s++) {
		uint32_t pair[16], w[5] = { 0 };
		for (int p = 0; p < 16; p++) {
			const uint8_t *n = block + Q5_K_NIBBLES + s / 2 * 32 + 2 * p,
			              *f = block + Q5_K_FIFTH + 2 * p;
			pair[p] = (n[0] >> s % 2 * 4 & 15u) | (f[0] >> s & 1u) << 4 |
			          (n[1] >> s % 2 * 4 & 15u) << 16 | (f[1] >> s & 1u) << 20;
		}
		for (int i = 0; i < 5; i++)
			w[i] = pair[3 * i] | pair[3 * i + 1] << 5 | pair[3 * i + 2] << 10 |
			       (pair[15] >> i & 0x00010001u) << 15;
		memcpy(to + Q5_K_NIBBLES + 16 * s, w, 16);
		memcpy(to + Q5_K_FIFTH + 4 * s, w + 4, 4);
	}
}

static void
q5_k_file(uint8_t *block)
{
	uint8_t fives[Q5_K_BYTES];

	memcpy(fives, block, sizeof fives);
	memset(block + Q5_K_FIFTH, 0, Q5_K_BYTES - Q5_K_FIFTH);
	for (int s = 0; s < 8; s++) {
		uint32_t w[5], pair[16] = { 0 };
		memcpy(w, fives + Q5_K_NIBBLES + 16 * s, 16);
		memcpy(w + 4, fives + Q5_K_FIFTH + 4 * s, 4);
		for (int i = 0; i < 5; i++) {
			for (int k = 0; k < 3; k++)
				pair[3 * i + k] = w[i] >> 5 * k & 0x001f001fu;
			pair[15] |= (w[i] >> 15 & 0x00010001u) << i;
		}
		for (int e = 0; e < 32; e++) {
			const uint32_t v = pair[e / 2] >> e % 2 * 16 & 31;
			block[Q5_K_NIBBLES + s / 2 * 32 + e] |= (uint8_t)((v & 15) << s % 2 * 4);
			block[Q5_K_FIFTH + e] |= (uint8_t)((v >> 4) << s);
		}
	}
}

static uint32_t
rotate_left(uint32_t v, int left)
{
	return v << left | v >> (32 - left);
} /* left: 1 .. 31 */

/* Reorders four words of E2M1 nibbles from file order (byte i: columns i and 16 + i) to the order
 * in which rotations of one word yield half-precision bits: see layout_packed.h. */
static void
e2m1_reordered(uint8_t *nibbles)
{
	for (int i = 0; i < 4; i++) {
		uint32_t v, h[4], w;
		memcpy(&v, nibbles + 4 * i, 4);
		for (int j = 0; j < 4; j++) {
			const uint32_t n = v >> (j % 2 * 8 + j / 2 * 4) & 0x000f000fu;
			h[j] = (n & 0x00070007u) << 9 | (n & 0x00080008u) << 12;
		}
		/* solve h[2] = rot 7 ^ rot 10 and h[3] = rot 7 ^ rot 12 for the unknown bits of the
		 * word, a few at a time */
		w = h[0] | rotate_left(h[1], 29);
		w |= rotate_left(h[2] ^ rotate_left(w, 7), 22) & 0x00200020u;
		w |= (rotate_left(h[2] ^ rotate_left(w, 10), 25) & 0x00040004u) |
		     (rotate_left(h[3] ^ rotate_left(w, 7), 20) & 0x00080008u) |
		     (rotate_left(h[3] ^ rotate_left(w, 12), 25) & 0x00100010u);
		w |= (rotate_left(h[3] ^ rotate_left(w, 7), 20) & 0x60006000u) |
		     (rotate_left(h[2] ^ rotate_left(w, 7), 22) & 0x00030003u);
		memcpy(nibbles + 4 * i, &w, 4);
	}
}

static void
e2m1_file(uint8_t *nibbles)
{
	for (int i = 0; i < 4; i++) {
		uint32_t w, v = 0;
		memcpy(&w, nibbles + 4 * i, 4);
		const uint32_t h[4] = { w, rotate_left(w, 3),
			                rotate_left(w, 7) ^ rotate_left(w, 10),
			                rotate_left(w, 7) ^ rotate_left(w, 12) };
		for (int j = 0; j < 4; j++)
			v |= ((h[j] >> 9 & 0x00070007u) | (h[j] >> 12 & 0x00080008u))
			     << (j % 2 * 8 + j / 2 * 4);
		memcpy(nibbles + 4 * i, &v, 4);
	}
}

void
planes_pack(Dtype d, int64_t cols, const void *src, void *dst)
{
	Fields s = fields(d);
	const int64_t blocks = cols / dtype_info(d)->block_elems,
	              block_bytes = dtype_info(d)->block_bytes;
	uint8_t other[MAX_BLOCK_BYTES]; /* a block reordered from the order of the file */

	for (int64_t b = 0; b < blocks; b++) {
		const uint8_t *block = (const uint8_t *)src + b * block_bytes;
		uint8_t *plane = dst;
		if (d == DT_Q5_K) {
			q5_k_fives(block, other);
			block = other;
		} else if (dtype_kind(d)) {
			codes_plane_pack(d, block, other);
			block = other;
		} else if (d == DT_MXFP4 || d == DT_NVFP4) {
			memcpy(other, block, (size_t)block_bytes);
			for (int at = 0; at < s.f[0].bytes; at += 16)
				e2m1_reordered(other + s.f[0].at + at);
			block = other;
		}
		for (int i = 0; i < 4; i++) {
			memcpy(plane + b * s.f[i].bytes, block + s.f[i].at, (size_t)s.f[i].bytes);
			plane += plane_bytes(s.f[i], blocks);
		}
	}
	uint8_t *end = dst;
	for (int i = 0; i < 4; i++) {
		int64_t used = blocks * s.f[i].bytes, all = plane_bytes(s.f[i], blocks);
		memset(end + used, 0, (size_t)(all - used));
		end += all;
	}
	memset(end, 0, (size_t)whole_plane_bytes(d));
	memcpy(end, src, (size_t)layout_whole_bytes(d));
}

void
planes_row(Dtype d, int64_t cols, const void *packed, int r, float *dst)
{
	Fields s = fields(d);
	const int elems = dtype_info(d)->block_elems;
	const int64_t blocks = cols / elems;
	uint8_t block[MAX_BLOCK_BYTES];

	(void)r;
	for (int64_t b = 0; b < blocks; b++) {
		const uint8_t *plane = packed;
		for (int i = 0; i < 4; i++) {
			memcpy(block + s.f[i].at, plane + b * s.f[i].bytes, (size_t)s.f[i].bytes);
			plane += plane_bytes(s.f[i], blocks);
		}
		memcpy(block, plane, (size_t)layout_whole_bytes(d));
		if (dtype_kind(d)) {
			codes_plane_read(d, block, dst + b * elems);
			continue;
		}
		if (d == DT_Q5_K)
			q5_k_file(block);
		for (int at = 0; (d == DT_MXFP4 || d == DT_NVFP4) && at < s.f[0].bytes; at += 16)
			e2m1_file(block + s.f[0].at + at);
		dequant_row(d, block, dst + b * elems, elems);
	}
}
