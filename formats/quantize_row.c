/* Converts fp32 to stored elements, the inverse of formats/dequant.c: to the nearest value on a
 * grid that is derived from each block's range. Q8_0 equals ggml's reference. The others differ
 * only where ggml searches for better scales, which formats/block_quantize.c does. Non-finite input
 * gives unspecified elements. */
#include <math.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/float_bits.h"
#include "templates/common/llmc_codes.h"
#include "templates/common/llmc_groups.h"

static void
put_f16(uint8_t *p, float f)
{
	uint16_t h = f32_to_f16(f);
	memcpy(p, &h, sizeof h);
}

static int
clamp_int(float v, int lo, int hi)
{
	if (!(v > (float)lo)) /* also catches NaN, which has no int value */
		return lo;
	return v < (float)hi ? (int)v : hi;
}

static void
to_q8_0(const float *x, uint8_t *b)
{
	float top = 0;

	for (int i = 0; i < 32; i++)
		top = fmaxf(top, fabsf(x[i]));
	float d = top / 127, id = scale_inverse(d);
	put_f16(b, d);
	for (int i = 0; i < 32; i++)
		b[2 + i] = (uint8_t)(int8_t)clamp_int(roundf(x[i] * id), -127, 127);
}

/* Q4_0, Q5_0: the element of largest magnitude becomes -2^(bits-1), the end of the code range with
 * one more step */
static void
to_symmetric(const float *x, uint8_t *b, int bits)
{
	float top = 0, peak = 0;
	int half = 1 << (bits - 1);
	uint32_t high = 0;
	uint8_t *q = b + (bits == 5 ? 6 : 2);

	for (int i = 0; i < 32; i++)
		if (fabsf(x[i]) > top)
			top = fabsf(x[i]), peak = x[i];
	float d = peak / (float)-half, id = scale_inverse(d);
	put_f16(b, d);
	memset(q, 0, 16);
	for (int i = 0; i < 32; i++) {
		int v = clamp_int(x[i] * id + (float)half + 0.5f, 0, 2 * half - 1);
		q[i % 16] |= (uint8_t)((v & 15) << (i / 16 * 4));
		high |= (uint32_t)(v >> 4 & 1) << i;
	}
	if (bits == 5)
		memcpy(b + 2, &high, sizeof high);
}

/* Nearest e4m3, ties to even; saturates at 448 */
static uint8_t
f32_to_e4m3(float f)
{
	uint8_t sign = (uint8_t)(bits_of_float(f) >> 24 & 0x80);
	float a = fabsf(f);

	if (!(a < 448))
		return (uint8_t)(sign | 0x7e);
	int e = a < 0x1p-6f ? -6 : (int)(bits_of_float(a) >> 23) - 127;
	float steps = rintf(ldexpf(a, 3 - e)); /* in units of 2^(e - 3): 0 .. 16 */
	/* 16 steps are the first value of the next exponent */
	int v = (int)steps + (e + 6) * 8;
	return (uint8_t)(sign | v);
}

/* Q4_1, Q5_1 */
static void
to_affine(const float *x, uint8_t *b, int bits)
{
	float lo = x[0], hi = x[0];
	int top = (1 << bits) - 1;
	uint32_t high = 0;
	uint8_t *q = b + (bits == 5 ? 8 : 4);

	for (int i = 1; i < 32; i++) {
		lo = fminf(lo, x[i]);
		hi = fmaxf(hi, x[i]);
	}
	float d = (hi - lo) / (float)top, id = scale_inverse(d);
	put_f16(b, d);
	put_f16(b + 2, lo);
	memset(q, 0, 16);
	for (int i = 0; i < 32; i++) {
		int v = clamp_int((x[i] - lo) * id + 0.5f, 0, top);
		q[i % 16] |= (uint8_t)((v & 15) << (i / 16 * 4));
		high |= (uint32_t)(v >> 4 & 1) << i;
	}
	if (bits == 5)
		memcpy(b + 4, &high, sizeof high);
}

/* Q4_K, Q5_K: each sub-block of 32 spans min(0, lowest) .. highest. Its scale and min are rounded
 * to 6 bits of the largest of the eight. The elements are then rounded on the grid of these stored
 * scales. */
static void
to_q45_k(const float *x, uint8_t *b, int bits)
{
	float scale[8], min[8], top_scale = 0, top_min = 0;
	uint8_t *fifth = b + 16, *nibbles = b + (bits == 5 ? 48 : 16);
	int levels = (1 << bits) - 1;

	memset(b, 0, bits == 5 ? 176 : 144);
	for (int j = 0; j < 8; j++) {
		float lo = 0, hi = x[j * 32];
		for (int i = 0; i < 32; i++) {
			lo = fminf(lo, x[j * 32 + i]);
			hi = fmaxf(hi, x[j * 32 + i]);
		}
		scale[j] = fmaxf(hi - lo, 0) / (float)levels;
		min[j] = -lo;
		top_scale = fmaxf(top_scale, scale[j]);
		top_min = fmaxf(top_min, min[j]);
	}
	put_f16(b, top_scale / 63);
	put_f16(b + 2, top_min / 63);
	float d = f16_to_f32(f32_to_f16(top_scale / 63)),
	      dmin = f16_to_f32(f32_to_f16(top_min / 63));
	for (int j = 0; j < 8; j++) {
		int s = clamp_int(scale[j] * scale_inverse(d) + 0.5f, 0, 63);
		int m = clamp_int(min[j] * scale_inverse(dmin) + 0.5f, 0, 63);
		if (j < 4) {
			b[4 + j] |= (uint8_t)s;
			b[8 + j] |= (uint8_t)m;
		} else {
			b[4 + j + 4] = (uint8_t)((s & 15) | m << 4);
			b[4 + j - 4] |= (uint8_t)(s >> 4 << 6);
			b[4 + j] |= (uint8_t)(m >> 4 << 6);
		}
		float id = scale_inverse(d * (float)s), lo = dmin * (float)m;
		for (int i = 0; i < 32; i++) {
			int v = clamp_int((x[j * 32 + i] + lo) * id + 0.5f, 0, levels);
			nibbles[j / 2 * 32 + i] |= (uint8_t)((v & 15) << (j % 2 * 4));
			if (bits == 5)
				fifth[i] |= (uint8_t)((v >> 4) << j);
		}
	}
}

static void
to_q6_k(const float *x, uint8_t *b)
{
	float scale[16], top = 0;

	memset(b, 0, 210);
	for (int g = 0; g < 16; g++) {
		float peak = 0;
		for (int i = 0; i < 16; i++)
			if (fabsf(x[g * 16 + i]) > fabsf(peak))
				peak = x[g * 16 + i];
		scale[g] = peak / -32;
		if (fabsf(scale[g]) > fabsf(top))
			top = scale[g];
	}
	put_f16(b + 208, top / -128);
	float d = f16_to_f32(f32_to_f16(top / -128));
	for (int e = 0; e < 256; e++) {
		int s = clamp_int(roundf(scale[e / 16] * scale_inverse(d)), -128, 127);
		b[192 + e / 16] = (uint8_t)(int8_t)s;
		int v = clamp_int(roundf(x[e] * scale_inverse(d * (float)s)) + 32, 0, 63);
		int half = e / 128, group = e / 32 % 4, i = e % 32;
		b[half * 64 + group % 2 * 32 + i] |= (uint8_t)((v & 15) << (group / 2 * 4));
		b[128 + half * 32 + i] |= (uint8_t)((v >> 4) << (group * 2));
	}
}

/* Nearest E2M1, ties to the even code */
static uint8_t
to_e2m1(float f)
{
	const float a = fabsf(f);
	const uint8_t code = (uint8_t)((a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) +
	                               (a > 2.5f) + (a >= 3.5f) + (a > 5));

	return (uint8_t)(code | (f < 0 ? 8 : 0));
}

static float
peak_of(const float *x, int n)
{
	float top = 0;

	for (int i = 0; i < n; i++)
		top = fmaxf(top, fabsf(x[i]));
	return top;
}

/* OCP's rule: the power of two that scales the largest magnitude into [4, 8). Values above 6
 * saturate to 6. */
static void
to_mxfp4(const float *x, uint8_t *b)
{
	const int e = (int)(bits_of_float(peak_of(x, 32)) >> 23) - 2;

	b[0] = (uint8_t)(e < 1 ? 1 : e);
	const float id = 1 / e8m0_to_f32(b[0]);
	for (int i = 0; i < 16; i++)
		b[1 + i] = (uint8_t)(to_e2m1(x[i] * id) | to_e2m1(x[i + 16] * id) << 4);
}

/* Returns the row factor d of NVFP4: the power of two for which the largest block scale fits
 * e4m3 */
static float
nvfp4_factor(const float *x, int64_t n)
{
	float peak = 0;

	for (int64_t i = 0; i < n; i++)
		peak = fmaxf(peak, fabsf(x[i]));
	peak /= 6 * 448;
	return peak > 0 ? exp2f(ceilf(log2f(peak))) : 1;
}

static void
to_nvfp4(const float *x, float d, uint8_t *b)
{
	memcpy(b, &d, sizeof d);
	for (int j = 0; j < 4; j++) {
		const float *at = x + 16 * j;
		b[4 + j] = f32_to_e4m3(peak_of(at, 16) / 6 / d);
		const float id = scale_inverse(d * e4m3_to_f32(b[4 + j]));
		for (int i = 0; i < 16; i++) {
			uint8_t *to = b + 8 + j / 2 * 16 + i;
			*to =
			    (uint8_t)(j % 2 ? *to | to_e2m1(at[i] * id) << 4 : to_e2m1(at[i] * id));
		}
	}
}

static int
nearest_of(const float codes[16], float v)
{
	int best = 0;

	for (int i = 1; i < 16; i++)
		if (fabsf(codes[i] - v) < fabsf(codes[best] - v))
			best = i;
	return best;
}

/* Quantises n columns that share a scale (a multiple of the block size) to one of GROUP_DTYPES.
 * Integer codes cover their range, with a rounded zero point or an exact minimum. symmetric: the
 * zero point is the middle code, and the largest magnitude gets the full negative range. e4m3: the
 * largest becomes 448. nf4, fp4: the largest becomes 1. */
static void
to_group(DtypeGroup g, const float *x, int64_t n, bool symmetric, uint8_t *b, int block_bytes)
{
	const bool affine = g.zero_bytes == 4;
	float lo = affine ? x[0] : 0, hi = lo;
	int top = (1 << g.bits) - 1, half = 1 << (g.bits - 1);

	for (int64_t i = 0; i < n; i++) {
		lo = fminf(lo, x[i]);
		hi = fmaxf(hi, x[i]);
	}
	const float *codes = dtype_codes(g.values);
	if (affine && symmetric) {
		hi = fmaxf(hi, -lo);
		lo = -hi;
	}
	float d = affine                    ? (hi - lo) / (float)top
	          : codes                   ? fmaxf(hi, -lo)
	          : g.values == VALUES_E4M3 ? fmaxf(hi, -lo) / 448
	          : symmetric               ? fmaxf(hi, -lo) / (float)half
	                                    : (hi - lo) / (float)top;
	if (g.scale_bytes == 2)
		d = f16_to_f32(f32_to_f16(d));
	float id = scale_inverse(d);
	int zero = symmetric ? half : clamp_int(-lo * id + 0.5f, 0, top);
	for (int64_t at = 0; at < n; at += g.columns, b += block_bytes) {
		uint8_t *q = b + g.scale_bytes;
		if (g.scale_bytes == 2)
			put_f16(b, d);
		else
			memcpy(b, &d, sizeof d);
		if (affine)
			memcpy(q, &lo, sizeof lo);
		else if (g.zero_bytes)
			*q = (uint8_t)zero;
		q += g.zero_bytes;
		memset(q, 0, (size_t)(g.columns * g.bits / 8));
		for (int i = 0; i < g.columns; i++) {
			if (g.values == VALUES_E4M3) {
				q[i] = f32_to_e4m3(x[at + i] * id);
				continue;
			}
			const float whole =
			    affine ? (x[at + i] - lo) * id : x[at + i] * id + (float)zero;
			llmc_group_put(q, g.columns, g.bits, i,
			               codes ? nearest_of(codes, x[at + i] * id)
			                     : clamp_int(whole + 0.5f, 0, top));
		}
	}
}

bool
quant_row_shared(Dtype d, int64_t scale_cols, bool symmetric, const float *src, void *dst,
                 int64_t n)
{
	const DtypeGroup g = dtype_group(d);
	uint8_t *b = dst;

	if (!g.columns)
		return quant_row(d, src, dst, n);
	const int bytes = dtype_info(d)->block_bytes;
	const int64_t step = scale_cols ? scale_cols : g.columns;
	for (int64_t i = 0; i + step <= n; i += step, b += step / g.columns * bytes)
		to_group(g, src + i, step, symmetric, b, bytes);
	return true;
}

bool
quant_row(Dtype d, const float *src, void *dst, int64_t n)
{
	uint8_t *b = dst;

	if (d == DT_NONE || d == DT_COUNT || d == DT_I32 || d == DT_I64 || dtype_kind(d))
		return false;
	const int block = dtype_info(d)->block_elems, bytes = dtype_info(d)->block_bytes;
	const float factor = dtype_row_factor(d) ? nvfp4_factor(src, n) : 0;
	for (int64_t i = 0; i + block <= n; i += block, b += bytes) {
		const float *x = src + i;
		switch (d) {
		case DT_F32:
			memcpy(b, x, sizeof *x);
			break;
		case DT_F16:
			put_f16(b, *x);
			break;
		case DT_BF16: {
			uint16_t h = f32_to_bf16(*x);
			memcpy(b, &h, sizeof h);
			break;
		}
		case DT_Q4_0:
			to_symmetric(x, b, 4);
			break;
		case DT_Q4_1:
			to_affine(x, b, 4);
			break;
		case DT_Q5_0:
			to_symmetric(x, b, 5);
			break;
		case DT_Q5_1:
			to_affine(x, b, 5);
			break;
		case DT_Q8_0:
			to_q8_0(x, b);
			break;
		case DT_Q4_K:
			to_q45_k(x, b, 4);
			break;
		case DT_Q5_K:
			to_q45_k(x, b, 5);
			break;
		case DT_Q6_K:
			to_q6_k(x, b);
			break;
		case DT_MXFP4:
			to_mxfp4(x, b);
			break;
		case DT_NVFP4:
			to_nvfp4(x, factor, b);
			break;
			GROUP_DTYPES(DTYPE_CASE)
			to_group(dtype_group(d), x, block, false, b, bytes);
			break;
			CODE_DTYPES(DTYPE_CASE)
		case DT_I32:
		case DT_I64:
		case DT_NONE:
		case DT_COUNT:
			return false;
		}
	}
	return true;
}

/* Stores d (and for Q2_K the factor of the mins) in a block of codes */
static void
put_factors(Dtype d, uint8_t *b, float scale)
{
	const uint16_t h = f32_to_f16(scale);

	switch ((llmc_codes_kind)dtype_kind(d)) {
	case CODES_q2_k:
		put_f16(b + 80, scale);
		put_f16(b + 82, 1.5f * scale); /* makes the mean of the weights about 0 */
		break;
	case CODES_q3_k:
		put_f16(b + 108, scale);
		break;
	case CODES_tq1_0:
		put_f16(b + 52, scale);
		break;
	case CODES_tq2_0:
		put_f16(b + 64, scale);
		break;
	case CODES_iq1_m:
		for (int i = 0; i < 4; i++)
			b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
		break;
	default:
		put_f16(b, scale);
		break;
	}
}

void
noise_row(Dtype d, float rms, void *dst, int64_t n)
{
	const int bytes = dtype_info(d)->block_bytes, elems = dtype_info(d)->block_elems;
	uint64_t state = 0x9e3779b97f4a7c15u;
	uint8_t *b = dst;
	float y[256];

	for (int64_t i = 0; dtype_kind(d) && i + elems <= n; i += elems, b += bytes) {
		double sum = 0;
		for (int k = 0; k < bytes; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			b[k] = (uint8_t)(state >> 56);
		}
		put_factors(d, b, 1);
		dequant_row(d, b, y, elems);
		for (int k = 0; k < elems; k++)
			sum += (double)y[k] * y[k];
		put_factors(d, b, sum > 0 ? rms / (float)sqrt(sum / elems) : 0);
	}
}
