/* Stored elements to fp32. The order of operations is ggml's (scale product first, then times q, then minus the
 * minimum), so results agree bit for bit with its reference; compiled without contraction for the same reason.
 *
 * And fp32 to stored elements, nearest value on a grid chosen from each block's range. Q8_0 is ggml's reference; the
 * others differ from it only where ggml searches for better scales. Not finite input gives unspecified elements. */
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

#include "templates/common/llmc_codes.h"
#include "templates/common/llmc_groups.h"

_Static_assert(DT_TQ2_0 - DT_Q2_K == CODES_tq2_0 - CODES_q2_k, "CODE_DTYPES and llmc_codes_kind have one order");

static float
float_of_bits(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static uint32_t
bits_of_float(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

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
	if (u > 0x7f800000) /* NaN: quiet, top of the payload kept */
		return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
	if (u >= 0x477ff000) /* rounds to 2^16 or more */
		return (uint16_t)(sign | 0x7c00);
	if (u >= 0x38800000) { /* normal in fp16 */
		u -= (uint32_t)112 << 23;
		return (uint16_t)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
	}
	/* subnormal: adding 0.5 makes fp32's own rounding drop the bits below 2^-24 */
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

/* d, 16 bytes: low nibbles are elements 0..15, high ones 16..31 */
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

/* the fifth bit of element i is bit i of a 32-bit word before the nibbles */
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

/* Eight 6-bit scales and minimums in 12 bytes: bytes 0..3 and 4..7 hold the first four of each, their top two
 * bits belong to the last four, whose low nibbles are in bytes 8..11. */
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

/* Q4_K and Q5_K: d, dmin, 12 scale bytes, [32 bytes of fifth bits], 128 bytes of nibbles. 32 bytes of nibbles hold
 * two sub-blocks of 32: low, then high; bit j of fifth[i] belongs to element i of sub-block j. */
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

/* 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, d. Each half of 128 elements: four groups of 32;
 * groups 0, 1 in the low nibbles of 64 bytes, 2, 3 in the high ones, bit pairs of 32 bytes at 2 * group. */
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

/* OCP e4m3 (fn): no infinity, 0x7f and 0xff are NaN. The bits of its value / 256 in fp16 are the same, moved up: exact for subnormals too. */
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
	static const float value[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };

	return value[b & 15];
}

/* 32 codes of E2M1: low nibbles are 0..15, high ones 16..31. scale: of each half */
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

/* One of GROUP_DTYPES */
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
		y[i] = g.zero_bytes == 4 ? d * (float)code + m : d * (codes ? codes[code] : g.values == VALUES_E4M3 ? e4m3_to_f32((uint8_t)code) : (float)(code - zero));
	}
}

/* One of CODE_DTYPES */
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
		case DT_F16: *y = f16_at(b); break;
		case DT_BF16: *y = bf16_to_f32(u16_at(b)); break;
		case DT_Q4_0: block_q4_0(b, y); break;
		case DT_Q4_1: block_q4_1(b, y); break;
		case DT_Q5_0: block_q5_0(b, y); break;
		case DT_Q5_1: block_q5_1(b, y); break;
		case DT_Q8_0: block_q8_0(b, y); break;
		case DT_Q4_K: block_q45_k(b, NULL, b + 16, y); break;
		case DT_Q5_K: block_q45_k(b, b + 16, b + 48, y); break;
		case DT_Q6_K: block_q6_k(b, y); break;
		case DT_MXFP4: piece_e2m1((float[2]){ e8m0_to_f32(b[0]), e8m0_to_f32(b[0]) }, b + 1, y); break;
		case DT_NVFP4: block_nvfp4(b, y); break;
		CODE_DTYPES(DTYPE_CASE) block_codes((llmc_codes_kind)dtype_kind(d), b, y); break;
		GROUP_DTYPES(DTYPE_CASE) block_group(group, b, y); break;
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
		case DT_COUNT: break;
		}
	}
}

/* --- fp32 to stored elements ------------------------------------------------------------------------------------------ */
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

/* Nearest e4m3, ties to even; beyond 448: 448 */
static uint8_t
f32_to_e4m3(float f)
{
	uint8_t sign = (uint8_t)(bits_of_float(f) >> 24 & 0x80);
	float   a = fabsf(f);

	if (!(a < 448))
		return (uint8_t)(sign | 0x7e);
	int e = a < 0x1p-6f ? -6 : (int)(bits_of_float(a) >> 23) - 127;
	float steps = rintf(ldexpf(a, 3 - e)); /* of 2^(e - 3): 0 .. 16 */
	int   v = (int)steps + (e + 6) * 8;     /* the next exponent's first code follows this one's last */
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

/* The nearest of E2M1, of two the one with the even code */
static uint8_t
to_e2m1(float f)
{
	const float a = fabsf(f);
	const uint8_t code = (uint8_t)((a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5));

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

/* The power of two that keeps the largest below 8, as OCP's rule has it: up to 6 it is kept, above it becomes 6 */
static void
to_mxfp4(const float *x, uint8_t *b)
{
	const int e = (int)(bits_of_float(peak_of(x, 32)) >> 23) - 2;

	b[0] = (uint8_t)(e < 1 ? 1 : e);
	const float id = 1 / e8m0_to_f32(b[0]);
	for (int i = 0; i < 16; i++)
		b[1 + i] = (uint8_t)(to_e2m1(x[i] * id) | to_e2m1(x[i + 16] * id) << 4);
}

/* d: the power of two with which the largest scale is an e4m3 */
static void
to_nvfp4(const float *x, uint8_t *b)
{
	const float peak = peak_of(x, 64) / (6 * 448), d = peak > 0 ? exp2f(ceilf(log2f(peak))) : 1;

	memcpy(b, &d, sizeof d);
	for (int j = 0; j < 4; j++) {
		const float *at = x + 16 * j;
		b[4 + j] = f32_to_e4m3(peak_of(at, 16) / 6 / d);
		const float id = inverse(d * e4m3_to_f32(b[4 + j]));
		for (int i = 0; i < 16; i++) {
			uint8_t *to = b + 8 + j / 2 * 16 + i;
			*to = (uint8_t)(j % 2 ? *to | to_e2m1(at[i] * id) << 4 : to_e2m1(at[i] * id));
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

/* One of GROUP_DTYPES: columns that share a scale, n of them, a whole number of blocks. Their range on the grid of the type's bits, zero point
 * rounded, or the minimum as it is; symmetric: the zero point is the middle code, the largest is as far from it as there are codes below; e4m3: the largest becomes 448; tables: 1 */
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
	float d = affine ? (hi - lo) / (float)top : codes ? fmaxf(hi, -lo) : g.values == VALUES_E4M3 ? fmaxf(hi, -lo) / 448 : symmetric ? fmaxf(hi, -lo) / (float)half : (hi - lo) / (float)top;
	if (g.scale_bytes == 2)
		d = f16_to_f32(f32_to_f16(d));
	float id = inverse(d);
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
			const float whole = affine ? (x[at + i] - lo) * id : x[at + i] * id + (float)zero;
			llmc_group_put(q, g.columns, g.bits, i, codes ? nearest_of(codes, x[at + i] * id) : clamp_int(whole + 0.5f, 0, top));
		}
	}
}

bool
quant_row_shared(Dtype d, int64_t scale_cols, bool symmetric, const float *src, void *dst, int64_t n)
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
		case DT_MXFP4: to_mxfp4(x, b); break;
		case DT_NVFP4: to_nvfp4(x, b); break;
		GROUP_DTYPES(DTYPE_CASE) to_group(dtype_group(d), x, block, false, b, bytes); break;
		CODE_DTYPES(DTYPE_CASE)
		case DT_I32:
		case DT_I64:
		case DT_NONE:
		case DT_COUNT: return false;
		}
	}
	return true;
}

/* d and, of Q2_K, the minima's factor into a block of codes */
static void
put_factors(Dtype d, uint8_t *b, float scale)
{
	const uint16_t h = f32_to_f16(scale);

	switch ((llmc_codes_kind)dtype_kind(d)) {
	case CODES_q2_k:
		put_f16(b + 80, scale);
		put_f16(b + 82, 1.5f * scale); /* weights are about 0 in the mean */
		break;
	case CODES_q3_k: put_f16(b + 108, scale); break;
	case CODES_tq1_0: put_f16(b + 52, scale); break;
	case CODES_tq2_0: put_f16(b + 64, scale); break;
	case CODES_iq1_m:
		for (int i = 0; i < 4; i++)
			b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
		break;
	default: put_f16(b, scale); break;
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
