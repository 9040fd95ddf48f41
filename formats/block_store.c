/* Stores chosen codes and scales as blocks; the layouts are described in dequant.c. */
#include <string.h>

#include "formats/block_quantize.h"

static void
put_nibbles(uint8_t *q, const int8_t *code, int zero)
{
	memset(q, 0, 16);
	for (int i = 0; i < 32; i++)
		q[i % 16] |= (uint8_t)(((code[i] + zero) & 15) << (i / 16 * 4));
}

static void
put_fifth(uint8_t *high, const int8_t *code, int zero)
{
	uint32_t bits = 0;

	for (int i = 0; i < 32; i++)
		bits |= (uint32_t)((code[i] + zero) >> 4 & 1) << i;
	memcpy(high, &bits, sizeof bits);
}

static void
pack_q45_k(const BlockGrid *g, const int8_t *code, uint8_t *b, bool five)
{
	uint8_t *fifth = b + 16, *nibbles = b + (five ? 48 : 16);

	memset(b, 0, five ? 176 : 144);
	memcpy(b, &g->d, 2);
	memcpy(b + 2, &g->m, 2);
	for (int j = 0; j < 8; j++) {
		int p = g->part[j], m = g->min_part[j];
		if (j < 4) {
			b[4 + j] |= (uint8_t)p;
			b[8 + j] |= (uint8_t)m;
		} else {
			b[8 + j] = (uint8_t)((p & 15) | m << 4);
			b[j] |= (uint8_t)(p >> 4 << 6);
			b[4 + j] |= (uint8_t)(m >> 4 << 6);
		}
		for (int i = 0; i < 32; i++) {
			int v = code[j * 32 + i];
			nibbles[j / 2 * 32 + i] |= (uint8_t)((v & 15) << (j % 2 * 4));
			if (five)
				fifth[i] |= (uint8_t)(v >> 4 << j);
		}
	}
}

static void
pack_q6_k(const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	memset(b, 0, 210);
	memcpy(b + 208, &g->d, 2);
	memcpy(b + 192, g->part, 16);
	for (int e = 0; e < 256; e++) {
		int half = e / 128, group = e / 32 % 4, i = e % 32, v = code[e] + 32;
		b[half * 64 + group % 2 * 32 + i] |= (uint8_t)((v & 15) << (group / 2 * 4));
		b[128 + half * 32 + i] |= (uint8_t)(v >> 4 << (group * 2));
	}
}

static void
put_pairs(uint8_t *q, const int8_t *code, int zero)
{
	memset(q, 0, 64);
	for (int e = 0; e < 256; e++)
		q[e / 128 * 32 + e % 32] |= (uint8_t)(((code[e] + zero) & 3) << (e % 128 / 32 * 2));
}

static void
pack_q2_k(const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	for (int j = 0; j < 16; j++)
		b[j] = (uint8_t)(g->part[j] | g->min_part[j] << 4);
	put_pairs(b + 16, code, 0);
	memcpy(b + 80, &g->d, 2);
	memcpy(b + 82, &g->m, 2);
}

static void
pack_q3_k(const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	memset(b, 0, 110);
	for (int e = 0; e < 256; e++)
		b[e % 32] |= (uint8_t)(((code[e] + 4) >> 2 & 1) << (e / 32));
	put_pairs(b + 32, code, 4);
	for (int j = 0; j < 16; j++) {
		int p = g->part[j] + 32;
		b[96 + j % 8] |= (uint8_t)((p & 15) << (j / 8 * 4));
		b[104 + j % 4] |= (uint8_t)(p >> 4 << (j / 4 * 2));
	}
	memcpy(b + 108, &g->d, 2);
}

static void
pack_iq4_xs(const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	unsigned high = 0;

	memset(b, 0, 8);
	memcpy(b, &g->d, 2);
	for (int j = 0; j < 8; j++) {
		unsigned p = (unsigned)(g->part[j] + 32);
		b[4 + j / 2] |= (uint8_t)((p & 15) << (j % 2 * 4));
		high |= p >> 4 << (2 * j);
		put_nibbles(b + 8 + 16 * j, code + 32 * j, 0);
	}
	b[2] = (uint8_t)high;
	b[3] = (uint8_t)(high >> 8);
}

/* Packs MXFP4: maps a level index (ascending) to the four bits of E2M1, sign first */
static void
pack_mxfp4(const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	int8_t four[32];

	for (int i = 0; i < 32; i++)
		four[i] = (int8_t)(code[i] >= 7 ? code[i] - 7 : 8 + 7 - code[i]);
	b[0] = (uint8_t)g->d;
	put_nibbles(b + 1, four, 0);
}

/* Packs scale, zero point (the middle code) and codes */
static void
pack_group(Dtype d, const BlockGrid *g, const int8_t *code, uint8_t *b)
{
	const DtypeGroup shape = dtype_group(d);
	const uint32_t wide = (uint32_t)g->d << 16;

	if (shape.scale_bytes == 2)
		memcpy(b, &g->d, 2);
	else
		memcpy(b, &wide, 4);
	b += shape.scale_bytes;
	*b++ = 8;
	for (int i = 0; i < shape.columns; i += 32)
		put_nibbles(b + i / 2, code + i, 8);
}

void
grid_pack(Dtype d, const BlockGrid *g, const int8_t *code, void *block)
{
	uint8_t *b = block;

	switch (d) {
	case DT_Q4_0:
		memcpy(b, &g->d, 2);
		put_nibbles(b + 2, code, 8);
		break;
	case DT_Q4_1:
		memcpy(b, &g->d, 2);
		memcpy(b + 2, &g->m, 2);
		put_nibbles(b + 4, code, 0);
		break;
	case DT_Q5_0:
		memcpy(b, &g->d, 2);
		put_fifth(b + 2, code, 16);
		put_nibbles(b + 6, code, 16);
		break;
	case DT_Q5_1:
		memcpy(b, &g->d, 2);
		memcpy(b + 2, &g->m, 2);
		put_fifth(b + 4, code, 0);
		put_nibbles(b + 8, code, 0);
		break;
	case DT_Q8_0:
		memcpy(b, &g->d, 2);
		memcpy(b + 2, code, 32);
		break;
	case DT_IQ4_NL:
		memcpy(b, &g->d, 2);
		put_nibbles(b + 2, code, 0);
		break;
	case DT_U4_32:
	case DT_U4_128:
	case DT_U4_32_F32:
	case DT_U4_128_F32:
		pack_group(d, g, code, b);
		break;
	case DT_MXFP4:
		pack_mxfp4(g, code, b);
		break;
	case DT_IQ4_XS:
		pack_iq4_xs(g, code, b);
		break;
	case DT_Q2_K:
		pack_q2_k(g, code, b);
		break;
	case DT_Q3_K:
		pack_q3_k(g, code, b);
		break;
	case DT_Q4_K:
		pack_q45_k(g, code, b, false);
		break;
	case DT_Q5_K:
		pack_q45_k(g, code, b, true);
		break;
	case DT_Q6_K:
		pack_q6_k(g, code, b);
		break;
	default:
		break;
	}
}
