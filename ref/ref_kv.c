/* Storage of keys and values in a page (types: formats/kv_type.h). This file defines what kernels
 * compute, and the order of codes on CPUs.
 *
 * A plane holds a page's 32 rows of one head. G is the number of groups, i an element, g its group,
 * `at` the position in the page.
 *
 *            keys                                             values (on GPUs: keys too)
 *   f32, ..  [D][32]                                          [32][D]
 *   8 bits   [D][32], scale [32]                              [32][D], scale [32]
 *   *_32     [32 G][32], scale [G][32]                        [32][32 G], scale [32][G]
 *   6 bits   as 4 bits, +32; then two high bits               as 4 bits, +32; then two high bits
 *            [8 G][32]: of elements 4 r .. 4 r + 3            [32][8 G]: of i, i + 8, i + 16, i + 24 of a group
 *            scale [G][32]                                    scale [32][G]
 *   4 bits   [16 G][32]: of elements 2 r and 2 r + 1          [32][16 G]: of i and i + 16 of a group
 *            scale [G][32], zero [G][32]                      scale and zero [32][G][2]
 *   int4c    as 4 bits; per element i, for all positions:     none
 *            scale [32 G], zero [32 G]
 *
 * Each byte belongs to one position, so threads may write different rows concurrently. */
#include <math.h>

#include "formats/dequant.h"
#include "ref/ref_internal.h"

void
ref_hadamard(float *row, int64_t dim)
{
	const int64_t n = kv_rotation(dim);
	const float scale = (float)(1 / sqrt((double)n));

	for (float *x = row; x < row + dim; x += n) {
		for (int64_t half = 1; half < n; half *= 2)
			for (int64_t i = 0; i < n; i++)
				if (!(i & half)) {
					float a = x[i], b = x[i + half];
					x[i] = a + b;
					x[i + half] = a - b;
				}
		for (int64_t i = 0; i < n; i++)
			x[i] *= scale;
	}
}

/* Nearest e4m3, ties to even; saturates at 448 */
static uint8_t
e4m3_of(float x)
{
	float top = fabsf(x) < 448.0f ? fabsf(x) : 448.0f;
	uint8_t sign = signbit(x) ? 0x80 : 0;
	uint32_t u;

	if (top < 0x1p-6f)
		return sign | (uint8_t)rintf(top * 512);
	memcpy(&u, &top, 4);
	return sign | (uint8_t)(((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
}

static float
e4m3_value(uint8_t c)
{
	int e = c >> 3 & 15, m = c & 7;
	float x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);

	return c & 0x80 ? -x : x;
}

static uint16_t
half_of(float x)
{
	return f32_to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

typedef struct Plane {
	KvType type;
	bool key;
	char *at;
	int64_t dim, groups;
} Plane;

static Plane
plane_of(KvType t, bool key, char *at, int64_t dim)
{
	return (Plane){ t, key, at, dim,
		        kv_type_info(t)->group
		            ? (dim + kv_type_info(t)->group - 1) / kv_type_info(t)->group
		            : 1 };
}

/* Bytes of codes, which precede the scales */
static int64_t
plane_codes(const Plane *p)
{
	const KvTypeInfo *info = kv_type_info(p->type);

	return PLAN_KV_PAGE * (info->group ? p->groups * info->group : p->dim) * info->bits / 8;
}

/* Address of a scale (which = 0) or a zero (which = 1) */
static char *
plane_scale(const Plane *p, int64_t at, int64_t g, int which)
{
	if (kv_by_channel(p->type)) /* g is the element */
		return p->at + plane_codes(p) + (which * p->groups * 32 + g) * 2;
	int64_t n = p->key ? (which * p->groups + g) * PLAN_KV_PAGE + at
	                   : (at * p->groups + g) * (kv_type_info(p->type)->scales / 2) + which;

	return p->at + plane_codes(p) + n * 2;
}

/* The byte with the low bits of element i, and their shift in it; for 6 bits also the byte with the
 * two high bits */
static uint8_t *
plane_low(const Plane *p, int64_t at, int64_t i, int *shift)
{
	if (kv_type_info(p->type)->bits == 8) {
		*shift = 0;
		return (uint8_t *)p->at +
		       (p->key ? i * PLAN_KV_PAGE + at
		               : at * (kv_type_info(p->type)->group ? p->groups * 32 : p->dim) + i);
	}
	*shift = 4 * (int)(p->key ? i % 2 : i % 32 / 16);
	return (uint8_t *)p->at +
	       (p->key ? i / 2 * PLAN_KV_PAGE + at : at * p->groups * 16 + i / 32 * 16 + i % 16);
}

static uint8_t *
plane_high(const Plane *p, int64_t at, int64_t i, int *shift)
{
	uint8_t *high = (uint8_t *)p->at + p->groups * 16 * PLAN_KV_PAGE;

	*shift = 2 * (int)(p->key ? i % 4 : i % 32 / 8);
	return high +
	       (p->key ? i / 4 * PLAN_KV_PAGE + at : at * p->groups * 8 + i / 32 * 8 + i % 8);
}

static void
put_bits(uint8_t *to, int shift, int bits, unsigned code)
{
	*to = (uint8_t)((*to & ~(((1u << bits) - 1) << shift)) | code << shift);
}

static void
put_code(const Plane *p, int64_t at, int64_t i, unsigned code)
{
	const int bits = kv_type_info(p->type)->bits;
	int shift;
	uint8_t *low = plane_low(p, at, i, &shift);

	put_bits(low, shift, bits == 8 ? 8 : 4, code & (bits == 8 ? 255 : 15));
	if (bits == 6) {
		uint8_t *high = plane_high(p, at, i, &shift);
		put_bits(high, shift, 2, code >> 4);
	}
}

static unsigned
get_code(const Plane *p, int64_t at, int64_t i)
{
	const int bits = kv_type_info(p->type)->bits;
	int shift;
	unsigned low = *plane_low(p, at, i, &shift);

	if (bits == 8)
		return low;
	low = low >> shift & 15;
	if (bits == 4)
		return low;
	unsigned high = *plane_high(p, at, i, &shift);
	return low | (high >> shift & 3) << 4;
}

static bool
is_f8(KvType t)
{
	return t == KVT_F8 || t == KVT_F8_32;
}

static bool
is_int8(KvType t)
{
	return t == KVT_INT8 || t == KVT_INT8_32;
}

static float
limit(float x, float lo, float hi)
{
	return !(x > lo) ? lo : x < hi ? x : hi;
}

/* Quantises elements [from, from + n) of a row: one group */
static void
put_group(const Plane *p, int64_t at, int64_t g, int64_t from, int64_t n, const float *x)
{
	float most = 0, lo = x[0], hi = x[0], zero = 0, scale, inverse;
	uint16_t h;

	for (int64_t i = 0; i < n; i++) {
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	if (p->type == KVT_INT4) {
		h = half_of(lo);
		memcpy(plane_scale(p, at, g, 1), &h, 2);
		zero = f16_to_f32(h);
		scale = (hi - zero) / 15;
	} else {
		scale = most / (is_f8(p->type) ? 448 : is_int8(p->type) ? 127 : 31);
	}
	h = half_of(scale > 0 ? scale : 0);
	memcpy(plane_scale(p, at, g, 0), &h, 2);
	scale = f16_to_f32(h);
	inverse = scale > 0 ? 1 / scale : 0;
	for (int64_t i = 0; i < n; i++) {
		float v = (x[i] - zero) * inverse;
		unsigned code = 0;
		if (is_f8(p->type))
			code = e4m3_of(v);
		else if (is_int8(p->type))
			code = (unsigned)(int)limit(rintf(v), -127, 127) & 255;
		else if (p->type == KVT_INT6)
			code = (unsigned)((int)limit(rintf(v), -31, 31) + 32);
		else
			code = (unsigned)(int)limit(rintf(v), 0, 15);
		put_code(p, at, from + i, code);
	}
}

static int64_t
plain_place(const Plane *p, int64_t at, int64_t i)
{
	return p->key ? i * PLAN_KV_PAGE + at : at * p->dim + i;
}

static float
get_value(const Plane *p, int64_t at, int64_t i)
{
	const KvType t = p->type;
	uint16_t scale, zero = 0;

	if (!kv_quantised(t))
		return ref_kv_get(t, p->at, plain_place(p, at, i));
	const int64_t g = kv_by_channel(t)         ? i
	                  : kv_type_info(t)->group ? i / kv_type_info(t)->group
	                                           : 0;
	unsigned code = get_code(p, at, i);
	memcpy(&scale, plane_scale(p, at, g, 0), 2);
	if (t == KVT_INT4 || t == KVT_INT4C)
		memcpy(&zero, plane_scale(p, at, g, 1), 2);
	double c = is_f8(t)        ? e4m3_value((uint8_t)code)
	           : is_int8(t)    ? (int8_t)code
	           : t == KVT_INT6 ? (int)code - 32
	                           : (int)code;
	return (float)(c * (double)f16_to_f32(scale) + (double)f16_to_f32(zero));
}

float
ref_latent_get(const PlanPool *p, const char *page, int64_t at, int64_t i)
{
	const Plane plane = plane_of(p->k, false, (char *)(uintptr_t)page, p->k_dim);

	return get_value(&plane, at, i);
}

void
ref_kv_put_row(KvType t, bool rotate, bool key, char *plane, int64_t at, const float *row,
               int64_t dim, float *rotated)
{
	const Plane p = plane_of(t, key, plane, dim);

	if (!kv_quantised(t)) {
		for (int64_t i = 0; i < dim; i++)
			ref_kv_put(t, plane, plain_place(&p, at, i), row[i]);
		return;
	}
	if (kv_by_channel(t)) /* types by channel: codes are written when the page is full */
		return;
	if (rotate) {
		memcpy(rotated, row, (size_t)dim * sizeof *row);
		ref_hadamard(rotated, dim);
		row = rotated;
	}
	const int64_t group = kv_type_info(t)->group ? kv_type_info(t)->group : dim;
	for (int64_t g = 0; g < p.groups; g++)
		put_group(&p, at, g, g * group, dim - g * group < group ? dim - g * group : group,
		          row + g * group);
}

void
ref_kv_get_row(KvType t, bool rotate, bool key, const char *plane, int64_t at, float *row,
               int64_t dim)
{
	const Plane p = plane_of(t, key, (char *)(uintptr_t)plane, dim);

	for (int64_t i = 0; i < dim; i++)
		row[i] = get_value(&p, at, i);
	if (rotate && kv_rotates(t))
		ref_hadamard(row, dim);
}

void
ref_kv_close_plane(KvType t, char *plane, const char *exact, int64_t dim)
{
	const Plane to = plane_of(t, true, plane, dim),
	            from = plane_of(kv_exact(t), true, (char *)(uintptr_t)exact, dim);

	for (int64_t i = 0; i < dim; i++) {
		float x[PLAN_KV_PAGE], lo = 0, hi = 0;
		uint16_t h;

		for (int64_t at = 0; at < PLAN_KV_PAGE; at++) {
			x[at] = get_value(&from, at, i);
			lo = at == 0 || x[at] < lo ? x[at] : lo;
			hi = at == 0 || x[at] > hi ? x[at] : hi;
		}
		h = half_of(lo);
		memcpy(plane_scale(&to, 0, i, 1), &h, 2);
		h = half_of((hi - lo) / 15);
		memcpy(plane_scale(&to, 0, i, 0), &h, 2);
		const float scale = f16_to_f32(h), inverse = scale > 0 ? 1 / scale : 0;
		for (int64_t at = 0; at < PLAN_KV_PAGE; at++)
			put_code(&to, at, i,
			         (unsigned)(int)limit(rintf((x[at] - lo) * inverse), 0, 15));
	}
}

void
ref_exact_put_row(KvType t, bool rotate, bool key, char *plane, int64_t at, const float *row,
                  int64_t dim, float *rotated)
{
	if (rotate && kv_rotates(t)) {
		memcpy(rotated, row, (size_t)dim * sizeof *row);
		ref_hadamard(rotated, dim);
		row = rotated;
	}
	ref_kv_put_row(kv_exact(t), false, key, plane, at, row, dim, rotated);
}

void
ref_exact_get_row(KvType t, bool rotate, bool key, const char *plane, int64_t at, float *row,
                  int64_t dim)
{
	ref_kv_get_row(kv_exact(t), false, key, plane, at, row, dim);
	if (rotate && kv_rotates(t))
		ref_hadamard(row, dim);
}
