/* Weights in file order, as formats/dequant.c reads them, for embedding lookups. */
#ifndef LLMC_CPU_WEIGHTS_FILE_BLOCK_H
#define LLMC_CPU_WEIGHTS_FILE_BLOCK_H

#include "cpu/weights/weights.h"

LLMC_INLINE float
file_f16(const uint8_t *p)
{
	f16 h;

	memcpy(&h, p, 2);
	return f16_get(h);
}

LLMC_INLINE float
file_float(const Weight w, const uint8_t *p)
{
	uint32_t u;
	float x;

	if (w.bits == 16 && !w.brain)
		return file_f16(p);
	if (w.brain)
		u = (uint32_t)(p[0] | p[1] << 8) << 16;
	else
		memcpy(&u, p, 4);
	memcpy(&x, &u, 4);
	return x;
}

LLMC_INLINE int
file_bytes(const Weight w)
{
	if (w_is_coded(w))
		return llmc_codes_of((llmc_codes_kind)w.kind).bytes;
	if (w.group)
		return 2 + 2 * w.wide + w_zero_bytes(w) + w.group * w.bits / 8;
	if (w.code)
		return w.halves == 1 ? 17 : 40;
	if (w_is_float(w))
		return w.bits / 8;
	if (w.super)
		return w.bits == 6 ? 210 : w.bits == 5 ? 176 : 144;
	return 2 + 2 * w.min + 4 * w.bits;
}

LLMC_INLINE void
file_small(const Weight w, const uint8_t *p, float *y)
{
	float d = file_f16(p), m = w.min ? file_f16(p + 2) : 0;
	const uint8_t *q = p + 2 + 2 * w.min;
	uint32_t high = 0;

	if (w.bits == 5) {
		memcpy(&high, q, 4);
		q += 4;
	}
	for (int i = 0; i < 32; i++) {
		int v = w.bits == 8 ? (int8_t)q[i]
		                    : (q[i % 16] >> (i / 16 * 4) & 15) | (int)(high >> i & 1) << 4;
		y[i] = w.min ? d * (float)v + m : d * (float)(w.bits == 8 ? v : v - w_offset(w));
	}
}

LLMC_INLINE void
file_q6_k(const uint8_t *p, float *y)
{
	float d = file_f16(p + 208);

	for (int e = 0; e < 256; e++) {
		int half = e / 128, group = e / 32 % 4, i = e % 32;
		int v = (p[half * 64 + group % 2 * 32 + i] >> (group / 2 * 4) & 15) |
		        (p[128 + half * 32 + i] >> (group * 2) & 3) << 4;
		y[e] = d * (float)(int8_t)p[192 + e / 16] * (float)(v - 32);
	}
}

LLMC_INLINE void
file_q45_k(const Weight w, const uint8_t *p, float *y)
{
	float d = file_f16(p), dmin = file_f16(p + 2);
	const uint8_t *s = p + 4;

	for (int e = 0; e < 256; e++) {
		int j = e / 32, i = e % 32;
		int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
		int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
		int v = p[(w.bits == 5 ? 48 : 16) + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
		if (w.bits == 5)
			v |= (p[16 + i] >> j & 1) << 4;
		y[e] = d * (float)scale * (float)v - dmin * (float)min;
	}
}

LLMC_INLINE float
file_e4m3(int code)
{
	const int small = code & 0x7f;
	float v = (float)small * 0x1p-9f;

	if (small >= 8) {
		uint32_t u = ((uint32_t)small << 20) + (120u << 23);
		memcpy(&v, &u, 4);
	}
	return code & 0x80 ? -v : v;
}

LLMC_INLINE void
file_group(const Weight w, const uint8_t *p, float *y)
{
	float d, m = 0;

	if (w.wide)
		memcpy(&d, p, 4);
	else
		d = file_f16(p);
	p += 2 + 2 * w.wide;
	const int zero = w.code || w.affine ? 0 : *p;
	if (w.affine)
		memcpy(&m, p, 4);
	p += w_zero_bytes(w);
	for (int i = 0; i < w.group; i++) {
		const int code = llmc_group_code(p, w.group, w.bits, i);
		y[i] = w.affine ? d * (float)code + m
		                : d * (w.code == W_E4M3 ? file_e4m3(code)
		                       : w.code         ? w_table[w.code == W_FP4][code]
		                                        : (float)(code - zero));
	}
}

/* E2M1: values of chunks of 32 columns, times the scales of their two halves */
LLMC_INLINE void
file_fp4(const Weight w, const uint8_t *p, float *y)
{
	const int8_t doubled[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
	const uint32_t u = p[0] ? (uint32_t)p[0] << 23 : 1u << 22;
	float d;

	memcpy(&d, w.halves == 1 ? (const void *)&u : (const void *)p, 4);
	for (int i = 0; i < w_columns(w); i++) {
		const float scale = w.halves == 1 ? d : d * file_e4m3(p[4 + i / 16]);
		const uint8_t *q = p + (w.halves == 1 ? 1 : 8) + i / 32 * 16 + i % 16;
		y[i] = scale * (0.5f * (float)doubled[*q >> (i % 32 / 16 * 4) & 15]);
	}
}

LLMC_INLINE void
file_codes(const Weight w, const uint8_t *p, float *y)
{
	llmc_codes c;

	llmc_codes_read((llmc_codes_kind)w.kind, p, &c);
	llmc_codes_values((llmc_codes_kind)w.kind, &c, file_f16((const uint8_t *)&c.d),
	                  file_f16((const uint8_t *)&c.m), y);
}

LLMC_INLINE void
file_block(const Weight w, const uint8_t *p, float *y)
{
	if (w_is_coded(w))
		file_codes(w, p, y);
	else if (w.group)
		file_group(w, p, y);
	else if (w.code)
		file_fp4(w, p, y);
	else if (!w.super)
		file_small(w, p, y);
	else if (w.bits == 6)
		file_q6_k(p, y);
	else
		file_q45_k(w, p, y);
}

#endif
