/* Converts stored elements to fp32. The order of operations is that of ggml: multiply the scales,
 * multiply by q, subtract the min. So results equal ggml's reference bit for bit; this is also why
 * the file is compiled without FP contraction. */
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

#include "formats/float_bits.h"
#include "templates/common/llmc_codes.h"
#include "templates/common/llmc_groups.h"

_Static_assert(DT_TQ2_0 - DT_Q2_K == CODES_tq2_0 - CODES_q2_k,
               "CODE_DTYPES and llmc_codes_kind have one order");

float
f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 0x3ff;

	if (exp == 31) /* infinity, NaN */
		return float_of_bits(sign | 0x7f800000 | frac << 13);
	if (exp > 0)
		return float_of_bits(sign | (exp + 112) << 23 | frac << 13);
	float f = (float)frac * 0x1p-24f; /* subnormal: exact in fp32 */
	return float_of_bits(sign | bits_of_float(f));
}

uint16_t
f32_to_f16(float f)
{
	uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000;

	u &= 0x7fffffff;
	if (u > 0x7f800000) /* NaN: make it quiet, keep the top of the payload */
		return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
	if (u >= 0x477ff000) /* a value that rounds to 2^16 or more is infinite */
		return (uint16_t)(sign | 0x7c00);
	if (u >= 0x38800000) { /* the value is normal in fp16 */
		u -= (uint32_t)112 << 23;
		return (uint16_t)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
	}
	/* the value is subnormal in fp16: adding 0.5 makes fp32 round off the bits below 2^-24 */
	uint32_t sum = bits_of_float(float_of_bits(u) + 0.5f);
	return (uint16_t)(sign | (sum - 0x3f000000));
}

float
bf16_to_f32(uint16_t h)
{
	return float_of_bits((uint32_t)h << 16);
}

uint16_t
f32_to_bf16(float f)
{
	uint32_t u = bits_of_float(f);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t
u16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static float
f16_at(const uint8_t *p)
{
	return f16_to_f32(u16_at(p));
}

/* Q4_0: d, then 16 bytes; low nibbles are elements 0..15, high nibbles 16..31 */
static void
block_q4_0(const uint8_t *b, float *y)
{
	float d = f16_at(b);

	for (int i = 0; i < 16; i++) {
		y[i] = d * (float)((b[2 + i] & 15) - 8);
		y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
	}
}

static void
block_q4_1(const uint8_t *b, float *y)
{
	float d = f16_at(b), m = f16_at(b + 2);

	for (int i = 0; i < 16; i++) {
		y[i] = d * (float)(b[4 + i] & 15) + m;
		y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
	}
}

/* Q5_0: the fifth bit of element i is bit i of a 32-bit word before the nibbles */
static void
block_q5_0(const uint8_t *b, float *y)
{
	float d = f16_at(b);
	uint32_t high;

	memcpy(&high, b + 2, sizeof high);
	for (int i = 0; i < 16; i++) {
		y[i] = d * (float)((int)((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
		y[i + 16] = d * (float)((int)(b[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
	}
}

static void
block_q5_1(const uint8_t *b, float *y)
{
	float d = f16_at(b), m = f16_at(b + 2);
	uint32_t high;

	memcpy(&high, b + 4, sizeof high);
	for (int i = 0; i < 16; i++) {
		y[i] = d * (float)((b[8 + i] & 15) | (high >> i & 1) << 4) + m;
		y[i + 16] = d * (float)((uint32_t)b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
	}
}

static void
block_q8_0(const uint8_t *b, float *y)
{
	float d = f16_at(b);

	for (int i = 0; i < 32; i++)
		y[i] = (float)(int8_t)b[2 + i] * d;
}

/* Unpacks eight 6-bit scales and mins from 12 bytes. The low 6 bits of bytes 0..3 are the first
 * four scales, those of bytes 4..7 the first four mins. The top 2 bits of these bytes belong to the
 * last four scales and mins, whose low nibbles are in bytes 8..11. */
static void
scale_min(const uint8_t *s, int j, int *scale, int *min)
{
	if (j < 4) {
		*scale = s[j] & 63;
		*min = s[j + 4] & 63;
	} else {
		*scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
		*min = s[j + 4] >> 4 | s[j] >> 6 << 4;
	}
}

/* Q4_K and Q5_K: d, dmin, 12 scale bytes, [32 bytes of fifth bits], 128 bytes of nibbles. Each 32
 * bytes of nibbles hold two sub-blocks of 32: low nibbles, then high. Bit j of fifth[i] belongs to
 * element i of sub-block j. */
static void
block_q45_k(const uint8_t *b, const uint8_t *fifth, const uint8_t *nibbles, float *y)
{
	float d = f16_at(b), dmin = f16_at(b + 2);

	for (int j = 0; j < 8; j++) {
		int scale, min;
		scale_min(b + 4, j, &scale, &min);
		float ds = d * (float)scale, dm = dmin * (float)min;
		const uint8_t *q = nibbles + j / 2 * 32;
		int shift = j % 2 * 4;
		for (int i = 0; i < 32; i++) {
			int v = q[i] >> shift & 15;
			if (fifth)
				v |= (fifth[i] >> j & 1) << 4;
			y[j * 32 + i] = ds * (float)v - dm;
		}
	}
}

/* Q6_K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, d. Each half of 128 elements
 * has four groups of 32. Groups 0 and 1 are the low nibbles of 64 bytes, 2 and 3 the high nibbles;
 * the bit pair of group g is at shift 2 * g of 32 bytes. */
static void
block_q6_k(const uint8_t *b, float *y)
{
	const int8_t *scale = (const int8_t *)b + 192;
	float d = f16_at(b + 208);

	for (int e = 0; e < 256; e++) {
		int half = e / 128, group = e / 32 % 4, i = e % 32;
		int low = b[half * 64 + group % 2 * 32 + i] >> (group / 2 * 4) & 15;
		int high = b[128 + half * 32 + i] >> (group * 2) & 3;
		float ds = d * (float)scale[e / 16];
		y[e] = ds * (float)((low | high << 4) - 32);
	}
}

/* OCP e4m3 (fn): no infinity, 0x7f and 0xff are NaN. Shifted into fp16, the bits represent value /
 * 256, exactly also for subnormals. */
float
e4m3_to_f32(uint8_t b)
{
	if ((b & 0x7f) == 0x7f)
		return NAN;
	return f16_to_f32((uint16_t)((b & 0x7f) << 7 | (b & 0x80) << 8)) * 256;
}

float
e8m0_to_f32(uint8_t e)
{
	return e == 255 ? NAN : e == 0 ? 0x1p-127f : float_of_bits((uint32_t)e << 23);
}

float
e2m1_to_f32(uint8_t b)
{
	static const float value[16] = { 0,     .5f,  1,  1.5f,  2,  3,  4,  6,
		                         -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };

	return value[b & 15];
}

/* Converts 32 codes of E2M1: low nibbles are elements 0..15, high nibbles 16..31. scale: one per
 * half of the elements */
static void
piece_e2m1(const float scale[2], const uint8_t *q, float *y)
{
	for (int i = 0; i < 16; i++) {
		y[i] = scale[0] * e2m1_to_f32(q[i]);
		y[i + 16] = scale[1] * e2m1_to_f32(q[i] >> 4);
	}
}

static void
block_nvfp4(const uint8_t *b, float *y)
{
	float d, scale[4];

	memcpy(&d, b, sizeof d);
	for (int i = 0; i < 4; i++)
		scale[i] = d * e4m3_to_f32(b[4 + i]);
	piece_e2m1(scale, b + 8, y);
	piece_e2m1(scale + 2, b + 24, y + 32);
}

/* GROUP_DTYPES */
static void
block_group(DtypeGroup g, const uint8_t *b, float *y)
{
	float d;

	if (g.scale_bytes == 2)
		d = f16_at(b);
	else
		memcpy(&d, b, sizeof d);
	b += g.scale_bytes;
	const int zero = g.zero_bytes == 1 ? *b : 0;
	float m = 0;
	if (g.zero_bytes == 4)
		memcpy(&m, b, sizeof m);
	b += g.zero_bytes;
	const float *codes = dtype_codes(g.values);
	for (int i = 0; i < g.columns; i++) {
		const int code = llmc_group_code(b, g.columns, g.bits, i);
		y[i] = g.zero_bytes == 4
		           ? d * (float)code + m
		           : d * (codes                     ? codes[code]
		                  : g.values == VALUES_E4M3 ? e4m3_to_f32((uint8_t)code)
		                                            : (float)(code - zero));
	}
}

/* CODE_DTYPES */
static void
block_codes(llmc_codes_kind kind, const uint8_t *b, float *y)
{
	llmc_codes c;

	llmc_codes_read(kind, b, &c);
	llmc_codes_values(kind, &c, f16_to_f32(c.d), f16_to_f32(c.m), y);
}

void
dequant_row(Dtype d, const void *src, float *dst, int64_t n)
{
	const uint8_t *b = src;
	const int block = dtype_info(d)->block_elems, bytes = dtype_info(d)->block_bytes;
	const DtypeGroup group = dtype_group(d);

	if (d == DT_F32) {
		if (n > 0)
			memcpy(dst, src, (size_t)n * sizeof *dst);
		return;
	}
	for (int64_t i = 0; i + block <= n; i += block, b += bytes) {
		float *y = dst + i;
		switch (d) {
		case DT_F16:
			*y = f16_at(b);
			break;
		case DT_BF16:
			*y = bf16_to_f32(u16_at(b));
			break;
		case DT_Q4_0:
			block_q4_0(b, y);
			break;
		case DT_Q4_1:
			block_q4_1(b, y);
			break;
		case DT_Q5_0:
			block_q5_0(b, y);
			break;
		case DT_Q5_1:
			block_q5_1(b, y);
			break;
		case DT_Q8_0:
			block_q8_0(b, y);
			break;
		case DT_Q4_K:
			block_q45_k(b, NULL, b + 16, y);
			break;
		case DT_Q5_K:
			block_q45_k(b, b + 16, b + 48, y);
			break;
		case DT_Q6_K:
			block_q6_k(b, y);
			break;
		case DT_MXFP4:
			piece_e2m1((float[2]){ e8m0_to_f32(b[0]), e8m0_to_f32(b[0]) }, b + 1, y);
			break;
		case DT_NVFP4:
			block_nvfp4(b, y);
			break;
			CODE_DTYPES(DTYPE_CASE) block_codes((llmc_codes_kind)dtype_kind(d), b, y);
			break;
			GROUP_DTYPES(DTYPE_CASE) block_group(group, b, y);
			break;
		case DT_I32: {
			int32_t v;
			memcpy(&v, b, sizeof v);
			*y = (float)v;
			break;
		}
		case DT_I64: {
			int64_t v;
			memcpy(&v, b, sizeof v);
			*y = (float)v;
			break;
		}
		case DT_F32:
		case DT_NONE:
		case DT_COUNT:
			break;
		}
	}
}
