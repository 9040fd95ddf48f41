/* fp32 to stored elements, nearest value on a grid chosen from each block's range. Q8_0 is ggml's reference; the
 * others differ from it only where ggml searches for better scales. Not finite input gives unspecified elements. */
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

static void
put_f16(uint8_t *p, float f)
{
	uint16_t h = f32_to_f16(f);
	memcpy(p, &h, sizeof h);
}

static int
clamp_int(float v, int lo, int hi)
{
	if (!(v > (float)lo)) /* also NaN, which no int can hold */
		return lo;
	return v < (float)hi ? (int)v : hi;
}

static float
inverse(float d)
{
	return d != 0 ? 1 / d : 0;
}

static void
to_q8_0(const float *x, uint8_t *b)
{
	float top = 0;

	for (int i = 0; i < 32; i++)
		top = fmaxf(top, fabsf(x[i]));
	float d = top / 127, id = inverse(d);
	put_f16(b, d);
	for (int i = 0; i < 32; i++)
		b[2 + i] = (uint8_t)(int8_t)clamp_int(roundf(x[i] * id), -127, 127);
}

/* Q4_0, Q5_0: the element of largest magnitude becomes -2^(bits-1), which has no positive counterpart */
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
	float d = peak / (float)-half, id = inverse(d);
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
	float d = (hi - lo) / (float)top, id = inverse(d);
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

/* Each sub-block of 32 spans min(0, lowest) .. highest; its scale and minimum are rounded to 6 bits of the largest
 * of the eight, and the elements are then rounded on the grid that a reader will see. */
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
	float d = f16_to_f32(f32_to_f16(top_scale / 63)), dmin = f16_to_f32(f32_to_f16(top_min / 63));
	for (int j = 0; j < 8; j++) {
		int s = clamp_int(scale[j] * inverse(d) + 0.5f, 0, 63);
		int m = clamp_int(min[j] * inverse(dmin) + 0.5f, 0, 63);
		if (j < 4) {
			b[4 + j] |= (uint8_t)s;
			b[8 + j] |= (uint8_t)m;
		} else {
			b[4 + j + 4] = (uint8_t)((s & 15) | m << 4);
			b[4 + j - 4] |= (uint8_t)(s >> 4 << 6);
			b[4 + j] |= (uint8_t)(m >> 4 << 6);
		}
		float id = inverse(d * (float)s), lo = dmin * (float)m;
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
		int s = clamp_int(roundf(scale[e / 16] * inverse(d)), -128, 127);
		b[192 + e / 16] = (uint8_t)(int8_t)s;
		int v = clamp_int(roundf(x[e] * inverse(d * (float)s)) + 32, 0, 63);
		int half = e / 128, group = e / 32 % 4, i = e % 32;
		b[half * 64 + group % 2 * 32 + i] |= (uint8_t)((v & 15) << (group / 2 * 4));
		b[128 + half * 32 + i] |= (uint8_t)((v >> 4) << (group * 2));
	}
}

bool
quant_row(Dtype d, const float *src, void *dst, int64_t n)
{
	uint8_t *b = dst;

	if (d == DT_NONE || d == DT_COUNT || d == DT_I32 || d == DT_I64)
		return false;
	const int block = dtype_info(d)->block_elems, bytes = dtype_info(d)->block_bytes;
	for (int64_t i = 0; i + block <= n; i += block, b += bytes) {
		const float *x = src + i;
		switch (d) {
		case DT_F32: memcpy(b, x, sizeof *x); break;
		case DT_F16: put_f16(b, *x); break;
		case DT_BF16: {
			uint16_t h = f32_to_bf16(*x);
			memcpy(b, &h, sizeof h);
			break;
		}
		case DT_Q4_0: to_symmetric(x, b, 4); break;
		case DT_Q4_1: to_affine(x, b, 4); break;
		case DT_Q5_0: to_symmetric(x, b, 5); break;
		case DT_Q5_1: to_affine(x, b, 5); break;
		case DT_Q8_0: to_q8_0(x, b); break;
		case DT_Q4_K: to_q45_k(x, b, 4); break;
		case DT_Q5_K: to_q45_k(x, b, 5); break;
		case DT_Q6_K: to_q6_k(x, b); break;
		case DT_I32:
		case DT_I64:
		case DT_NONE:
		case DT_COUNT: return false;
		}
	}
	return true;
}
