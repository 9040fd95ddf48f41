/* Chooses block scales for least error. Each type is a row of `shapes`: sub-blocks, code range and
 * how scales are stored. Types with one level store scale and base as f16. Types with two levels
 * (K-quants, IQ4_XS) store d and m as f16, plus a small integer multiple of d (and m) per
 * sub-block.
 *
 * The search per sub-block tries ranges slightly narrower and wider than min..max. For each it
 * rounds the codes, then fits scale and base to those codes by weighted least squares. With two
 * levels, the multiples are rounded, neighbouring multiples are tried, and d and m are fitted again
 * over all sub-blocks. Sums use eight lanes in a fixed order, so results are the same on any
 * processor. */
#include <math.h>
#include <string.h>

#include "formats/block_quantize.h"
#include "formats/dequant.h"

typedef float Lanes __attribute__((vector_size(32)));
typedef int32_t LaneMasks __attribute__((vector_size(32)));
enum { LANES = 8 };

/* The whole grid choice is force-inlined into one function that is built twice (baseline and AVX2).
 * Without FP contraction both builds give the same bits. */
#define INSIDE static inline __attribute__((always_inline))

typedef struct Shape {
	int sub;
	int low, high;           /* code range */
	bool affine;             /* has a base */
	bool below;              /* base is -(m * multiple), so never above 0 */
	int part_low, part_high; /* range of the multiples of d and m; 0, 0: one level */
	const int8_t *level;
	bool power; /* scale is half a power of two, stored as its exponent */
	bool group; /* one of GROUP_DTYPES, whose scales are positive */
	bool brain; /* scale is a bf16 */
} Shape;

static const int8_t iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
	                        1,    13,   25,  38,  53,  69,  89,  113 };
static const int8_t e2m1[15] = {
	-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12
}; /* doubled, so that .5 is an integer */

static bool
shape_of(Dtype d, Shape *s)
{
	switch (d) {
	case DT_Q2_K:
		*s = (Shape){
			16, 0, 3, .affine = true, .below = true, .part_low = 0, .part_high = 15
		};
		return true;
	case DT_Q3_K:
		*s = (Shape){ 16, -4, 3, .part_low = -32, .part_high = 31 };
		return true;
	case DT_IQ4_NL:
		*s = (Shape){ 32, 0, 15, .level = iq4 };
		return true;
	case DT_IQ4_XS:
		*s = (Shape){ 32, 0, 15, .level = iq4, .part_low = -32, .part_high = 31 };
		return true;
	case DT_U4_32:
		*s = (Shape){ 32, -8, 7, .group = true };
		return true;
	case DT_U4_128:
		*s = (Shape){ 128, -8, 7, .group = true };
		return true;
	case DT_U4_32_F32:
		*s = (Shape){ 32, -8, 7, .group = true, .brain = true };
		return true;
	case DT_U4_128_F32:
		*s = (Shape){ 128, -8, 7, .group = true, .brain = true };
		return true;
	case DT_MXFP4:
		*s = (Shape){ 32, 0, 14, .level = e2m1, .power = true };
		return true;
	case DT_Q4_0:
		*s = (Shape){ 32, -8, 7, .level = NULL };
		return true;
	case DT_Q5_0:
		*s = (Shape){ 32, -16, 15, .level = NULL };
		return true;
	case DT_Q8_0:
		*s = (Shape){ 32, -127, 127, .level = NULL };
		return true;
	case DT_Q4_1:
		*s = (Shape){ 32, 0, 15, .affine = true };
		return true;
	case DT_Q5_1:
		*s = (Shape){ 32, 0, 31, .affine = true };
		return true;
	case DT_Q4_K:
		*s = (Shape){
			32, 0, 15, .affine = true, .below = true, .part_low = 0, .part_high = 63
		};
		return true;
	case DT_Q5_K:
		*s = (Shape){
			32, 0, 31, .affine = true, .below = true, .part_low = 0, .part_high = 63
		};
		return true;
	case DT_Q6_K:
		*s = (Shape){ 16, -32, 31, .part_low = -128, .part_high = 127 };
		return true;
	default:
		return false;
	}
}

bool
grid_has(Dtype d)
{
	Shape s;
	return shape_of(d, &s);
}

INSIDE float
stored(float f)
{
	return f16_to_f32(f32_to_f16(f));
}

INSIDE float
lanes_sum(const Lanes *v)
{
	const Lanes a = *v;
	return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
}

#define SPLAT(v) ((Lanes){ v, v, v, v, v, v, v, v })
/* Rounds |t| < 2^22 to the nearest integer, within lo .. hi */
#define LANES_ROUND(t, lo, hi)                                                                     \
	do {                                                                                       \
		const Lanes magic_ = SPLAT(12582912.0f), lo_ = SPLAT(lo), hi_ = SPLAT(hi);         \
		(t) = ((t) + magic_) - magic_;                                                     \
		LaneMasks under_ = (t)<lo_, over_ = (t)> hi_;                                      \
		(t) = (Lanes)(((LaneMasks)(t) & ~under_ & ~over_) | ((LaneMasks)lo_ & under_) |    \
		              ((LaneMasks)hi_ & over_));                                           \
	} while (0)

typedef struct Sums {
	float w, x, xx, q, qq, xq;
} Sums; /* weighted by w */

/* Rounds (x - base) * id to levels and sums over them */
INSIDE void
levels_sum(const Shape *s, const float *x, const float *w, float id, float base, Sums *out)
{
	Lanes q_ = { 0 }, qq = { 0 }, xq = { 0 };

	for (int i = 0; i < s->sub; i += LANES) {
		Lanes xi, wi, t;
		memcpy(&xi, x + i, sizeof xi);
		memcpy(&wi, w + i, sizeof wi);
		t = (xi - SPLAT(base)) * SPLAT(id);
		if (s->level) {
			Lanes v = SPLAT((float)s->level[0]);
			for (int k = 0; k < s->high; k++) {
				LaneMasks over =
				    t > SPLAT(((float)s->level[k] + (float)s->level[k + 1]) * .5f);
				v += (Lanes)((LaneMasks)SPLAT(
				                 (float)(s->level[k + 1] - s->level[k])) &
				             over);
			}
			t = v;
		} else {
			LANES_ROUND(t, (float)s->low, (float)s->high);
		}
		Lanes wq = wi * t;
		q_ += wq;
		qq += wq * t;
		xq += wq * xi;
	}
	out->q = lanes_sum(&q_);
	out->qq = lanes_sum(&qq);
	out->xq = lanes_sum(&xq);
}

INSIDE void
plain_sums(const Shape *s, const float *x, const float *w, Sums *out)
{
	Lanes sw = { 0 }, sx = { 0 }, xx = { 0 };

	for (int i = 0; i < s->sub; i += LANES) {
		Lanes xi, wi;
		memcpy(&xi, x + i, sizeof xi);
		memcpy(&wi, w + i, sizeof wi);
		Lanes wx = wi * xi;
		sw += wi;
		sx += wx;
		xx += wx * xi;
	}
	out->w = lanes_sum(&sw);
	out->x = lanes_sum(&sx);
	out->xx = lanes_sum(&xx);
}

INSIDE double
error_of(const Sums *v, double scale, double base)
{
	return (double)v->xx - 2 * scale * (double)v->xq - 2 * base * (double)v->x +
	       scale * scale * (double)v->qq + 2 * scale * base * (double)v->q +
	       base * base * (double)v->w;
}

/* Least-squares scale and base for the codes summed in `v` */
INSIDE void
fit(const Shape *s, const Sums *v, double *scale, double *base)
{
	double det = (double)v->w * (double)v->qq - (double)v->q * (double)v->q;

	*base = 0;
	*scale = v->qq > 0 ? (double)v->xq / (double)v->qq : 0;
	if (!s->affine || det <= 1e-7 * (double)v->w * (double)v->qq)
		return;
	double b = ((double)v->qq * (double)v->x - (double)v->q * (double)v->xq) / det;
	if (s->below && b > 0)
		return;
	*base = b;
	*scale = ((double)v->w * (double)v->xq - (double)v->q * (double)v->x) / det;
}

/* Finds scale and base of one sub-block, before they are rounded to their stored form */
INSIDE void
search(const Shape *s, const float *x, const float *w, float *scale, float *base)
{
	float lo = x[0], hi = x[0];
	Sums v;
	double best = INFINITY, a, b;

	*scale = *base = 0;
	for (int i = 1; i < s->sub; i++) {
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	plain_sums(s, x, w, &v);
	if (!(v.w > 0) || !(hi - lo >= 0) || (hi == 0 && lo == 0))
		return;
	if (s->affine) {
		if (s->below && lo > 0)
			lo = 0;
		if (hi == lo) {
			*base = lo;
			return;
		}
		for (int k = -8; k <= 5; k++) {
			levels_sum(s, x, w, ((float)s->high + .15f * (float)k) / (hi - lo), lo, &v);
			fit(s, &v, &a, &b);
			double e = error_of(&v, a, b);
			if (a > 0 && e < best)
				best = e, *scale = (float)a, *base = (float)b;
		}
		/* refine once with the codes of the best candidate */
		levels_sum(s, x, w, scale_inverse(*scale), *base, &v);
		fit(s, &v, &a, &b);
		if (a > 0 && error_of(&v, a, b) < best)
			*scale = (float)a, *base = (float)b;
		return;
	}
	float peak = -lo > hi ? lo : hi;
	float end[2] = { s->level ? s->level[0] : (float)s->low,
		         s->level ? s->level[s->high] : (float)s->high };
	float step = s->level ? 1.5f : s->high > 100 ? .25f : .15f;
	for (int side = 0; side < 2; side++)
		for (int k = -6; k <= 6 && !(s->group && (end[side] < 0) != (peak < 0)); k++) {
			levels_sum(s, x, w, (end[side] + step * (float)k) / peak, 0, &v);
			fit(s, &v, &a, &b);
			double e = error_of(&v, a, 0);
			if (e < best)
				best = e, *scale = (float)a;
		}
}

/* Returns the error of a sub-block for this scale and base; *v receives the sums over its levels */
INSIDE double
on_grid(const Shape *s, const float *x, const float *w, float scale, float base, Sums *v)
{
	levels_sum(s, x, w, scale_inverse(scale), base, v);
	return error_of(v, (double)scale, (double)base);
}

INSIDE int
whole(float v, int lo, int hi)
{
	if (!(v > (float)lo)) /* also catches NaN, which has no int value */
		return lo;
	return v < (float)hi ? (int)lrintf(v) : hi;
}

INSIDE void
set_scales(const Shape *s, BlockGrid *g, int n_sub, float d, float m)
{
	for (int j = 0; j < n_sub; j++) {
		g->scale[j] = d * (float)g->part[j];
		g->base[j] = s->affine ? -(m * (float)g->min_part[j]) : 0;
	}
}

typedef struct TwoLevels {
	float d, m;
	double error;
} TwoLevels;

/* Chooses the multiples of d and m per sub-block: the nearest, or a neighbour with less error */
INSIDE double
choose_parts(const Shape *s, const float *x, const float *w, const float *scale, const float *base,
             int n_sub, float d, float m, BlockGrid *g)
{
	double sum = 0;

	for (int j = 0; j < n_sub; j++) {
		int p = whole(scale[j] * scale_inverse(d), s->part_low, s->part_high),
		    q = s->affine ? whole(-base[j] * scale_inverse(m), 0, s->part_high) : 0;
		int p0 = p, q0 = q;
		double best = INFINITY;
		Sums v;
		plain_sums(s, x + j * s->sub, w + j * s->sub, &v);
		for (int dp = -1; dp <= 1; dp++)
			for (int dq = s->affine ? -1 : 0; dq <= (s->affine ? 1 : 0); dq++) {
				int a = p0 + dp, b = q0 + dq;
				if (a < s->part_low || a > s->part_high || b < 0 ||
				    b > s->part_high)
					continue;
				double e = on_grid(s, x + j * s->sub, w + j * s->sub, d * (float)a,
				                   -(m * (float)b), &v);
				if (e < best)
					best = e, p = a, q = b;
			}
		g->part[j] = (int8_t)p;
		g->min_part[j] = (int8_t)q;
		sum += best;
	}
	return sum;
}

/* Least-squares d and m for the current multiples and the codes that they produce */
INSIDE void
fit_two(const Shape *s, const float *x, const float *w, int n_sub, const BlockGrid *g, float *d,
        float *m)
{
	double a = 0, b = 0, c = 0, xa = 0,
	       /* sums over all elements of (p q)^2, p q r, r^2, x p q, x r, where p and -r are the
	        * multiples of d and m, and q is the level */
	    xc = 0;

	for (int j = 0; j < n_sub; j++) {
		Sums v;
		plain_sums(s, x + j * s->sub, w + j * s->sub, &v);
		levels_sum(s, x + j * s->sub, w + j * s->sub, scale_inverse(g->scale[j]),
		           g->base[j], &v);
		double p = g->part[j], r = -(double)g->min_part[j];
		a += p * p * (double)v.qq;
		b += p * r * (double)v.q;
		c += r * r * (double)v.w;
		xa += p * (double)v.xq;
		xc += r * (double)v.x;
	}
	double det = a * c - b * b;
	if (s->affine && det > 1e-9 * a * c) {
		double nd = (xa * c - xc * b) / det, nm = (xc * a - xa * b) / det;
		if (nd > 0 && nm >= 0) {
			*d = (float)nd;
			*m = (float)nm;
		}
	} else if (a > 0) {
		*d = (float)((xa - (s->affine ? (double)*m * b : 0)) / a);
	}
}

INSIDE void
choose_two_levels(const Shape *s, const float *x, const float *w, int n_sub, BlockGrid *g)
{
	float scale[GRID_SUBS], base[GRID_SUBS], top = 0, deep = 0;

	for (int j = 0; j < n_sub; j++) {
		search(s, x + j * s->sub, w + j * s->sub, &scale[j], &base[j]);
		if (fabsf(scale[j]) > fabsf(top))
			top = scale[j];
		deep = fmaxf(deep, -base[j]);
	}
	/* the largest scale uses the end of the range of multiples that has more steps */
	float d = stored(top / (float)(s->part_low < 0 ? s->part_low : s->part_high)),
	      m = stored(deep / (float)s->part_high);
	BlockGrid best = *g;
	double least = INFINITY;
	for (int round = 0; round < 2; round++) {
		double e = choose_parts(s, x, w, scale, base, n_sub, d, m, g);
		g->d = f32_to_f16(d);
		g->m = f32_to_f16(m);
		set_scales(s, g, n_sub, d, m);
		if (!(e < least))
			break;
		least = e;
		best = *g;
		fit_two(s, x, w, n_sub, g, &d, &m);
		d = stored(d);
		m = stored(m);
	}
	*g = best;
}

/* Chooses the power of two near `scale` that has the least error */
INSIDE void
choose_power(const Shape *s, const float *x, const float *w, float scale, BlockGrid *g)
{
	double best = INFINITY;
	int near = scale > 0 ? ilogbf(scale) : 0;
	Sums v;

	for (int e = near - 1; e <= near + 2; e++) {
		int stored_e = e + 128 < 1 ? 1
		               : e + 128 > 254
		                   ? 254
		                   : e + 128; /* twice the scale, since levels are doubled */
		float power = ldexpf(1, stored_e - 128);
		plain_sums(s, x, w, &v);
		double error = on_grid(s, x, w, power, 0, &v);
		if (error < best) {
			best = error;
			g->d = (uint16_t)stored_e;
			g->scale[0] = power;
		}
	}
	if (!(best < INFINITY)) {
		g->d = 127;
		g->scale[0] = .5f;
	}
}

/* Stores scale and base of a one-level type, and sets them to their rounded values */
INSIDE void
set_one(const Shape *s, BlockGrid *g, float scale, float base)
{
	g->d = s->brain ? f32_to_bf16(scale) : f32_to_f16(scale);
	g->m = f32_to_f16(base);
	g->scale[0] = s->brain ? bf16_to_f32(g->d) : f16_to_f32(g->d);
	g->base[0] = f16_to_f32(g->m);
}

INSIDE void
choose(Dtype d, const float *x, const float *w, BlockGrid *g)
{
	Shape s;
	float even[GRID_MAX];
	const int n = dtype_info(d)->block_elems;
	float sum = 0;

	*g = (BlockGrid){ 0 };
	if (!shape_of(d, &s))
		return;
	*g = (BlockGrid){ .sub = s.sub, .low = s.low, .high = s.high, .level = s.level };
	for (int i = 0; i < n; i++)
		sum += w[i];
	if (!(sum > 0)) { /* no importance for any column: weight all elements equally */
		for (int i = 0; i < n; i++)
			even[i] = 1;
		w = even;
	}
	if (s.part_high) {
		choose_two_levels(&s, x, w, n / s.sub, g);
		return;
	}
	float scale, base;
	search(&s, x, w, &scale, &base);
	if (s.power) {
		choose_power(&s, x, w, fabsf(scale), g);
		return;
	}
	set_one(&s, g, scale, base);
}

static void
choose_plain(Dtype d, const float *x, const float *w, BlockGrid *g)
{
	choose(d, x, w, g);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
choose_avx2(Dtype d, const float *x, const float *w, BlockGrid *g)
{
	choose(d, x, w, g);
}
#endif

void
grid_choose(Dtype d, const float *x, const float *w, BlockGrid *g)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		choose_avx2(d, x, w, g);
		return;
	}
#endif
	choose_plain(d, x, w, g);
}

int
grid_code(const BlockGrid *g, int i, float x)
{
	const int j = i / g->sub;
	float t = (x - g->base[j]) * scale_inverse(g->scale[j]);

	if (!g->level)
		return whole(t, g->low, g->high);
	int k = 0;
	while (k < g->high && t > ((float)g->level[k] + (float)g->level[k + 1]) * .5f)
		k++;
	return k;
}

float
grid_value(const BlockGrid *g, int i, int code)
{
	const int j = i / g->sub;
	return g->scale[j] * (float)(g->level ? g->level[code] : code) + g->base[j];
}

bool
grid_move(Dtype d, BlockGrid *g, int k, float scale, float base, int part_step, int min_step)
{
	Shape s;

	if (!shape_of(d, &s) || s.power || (min_step && !s.affine) ||
	    (!s.part_high && (part_step || min_step)))
		return false;
	if (!s.part_high) {
		set_one(&s, g, scale, s.affine ? base : 0);
		return true;
	}
	const float one = f16_to_f32(g->d), min = f16_to_f32(g->m);
	int p = whole(scale * scale_inverse(one), s.part_low, s.part_high) + part_step,
	    q = s.affine ? whole(-base * scale_inverse(min), 0, s.part_high) + min_step : 0;
	if (p < s.part_low || p > s.part_high || q < 0 || q > s.part_high)
		return false;
	g->part[k] = (int8_t)p;
	g->min_part[k] = (int8_t)q;
	g->scale[k] = one * (float)p;
	g->base[k] = s.affine ? -(min * (float)q) : 0;
	return true;
}

void
quantize_weights(const float *x, const float *importance, float *w, int n)
{
	float square = 0;

	for (int i = 0; i < n; i++)
		square += x[i] * x[i];
	square /= (float)n;
	for (int i = 0; i < n; i++)
		w[i] = (importance ? importance[i] : 1) * sqrtf(square + x[i] * x[i]);
}

void
quantize_row(Dtype d, const float *x, const float *importance, void *dst, int64_t n)
{
	const int block = dtype_info(d)->block_elems, bytes = dtype_info(d)->block_bytes;
	uint8_t *b = dst;
	float w[GRID_MAX];
	int8_t code[GRID_MAX];
	BlockGrid g;

	for (int64_t i = 0; i + block <= n; i += block, b += bytes) {
		quantize_weights(x + i, importance ? importance + i : NULL, w, block);
		grid_choose(d, x + i, w, &g);
		for (int k = 0; k < block; k++)
			code[k] = (int8_t)grid_code(&g, k, x[i + k]);
		grid_pack(d, &g, code, b);
	}
}
