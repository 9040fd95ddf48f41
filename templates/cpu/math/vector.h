/* Vectors of fp32 for emitted C, and functions that kernels share: exp, tanh, erf, conversion
 * between f16 and fp32.
 *
 * LLMC_TARGET_generic, _v3, _vnni, _v4, _amx, _neon or _i8mm selects the target before inclusion:
 * VL = 4, 8, 8, 16, 16, 4, 4 lanes. _vnni is v3 with 256-bit dot products (cpu/gemm/int_dot.h),
 * _amx is v4 with tiles (cpu/gemm/amx.h), _i8mm is neon with matrix multiplies (cpu/gemm/mmla.h).
 * LLMC_PORTABLE_V4 builds v4 from v3 instructions, which is slow but gives the same bits, for tests
 * on machines without AVX-512. On a CPU without NEON, _neon and _i8mm are built from plain vectors,
 * also with the same bits.
 *
 * Build with -ffp-contract=off, so that an FMA occurs only where vf_fma is called; otherwise
 * kernels that must agree bit for bit could differ. libm is not used, so that exp is the same in
 * every kernel on every machine. */
#ifndef LLMC_CPU_MATH_VECTOR_H
#define LLMC_CPU_MATH_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Functions with vector arguments are all inlined, so their calling convention does not matter. */
#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(LLMC_TARGET_amx)
#define LLMC_TARGET_v4 1
#define LLMC_TILES 1
#elif defined(LLMC_TARGET_vnni)
#define LLMC_TARGET_v3 1
#define LLMC_VNNI_256 1
#endif
#if defined(LLMC_TARGET_i8mm)
#define VF_MMLA 1 /* matrix-multiply instructions for bytes */
#else
#define VF_MMLA 0
#endif
#if defined(LLMC_TARGET_neon) || defined(LLMC_TARGET_i8mm)
#define VF_NEON 1
#else
#define VF_NEON 0
#endif
#if defined(LLMC_TARGET_v4)
#define VL 16
#elif defined(LLMC_TARGET_v3)
#define VL 8
#else
#define VL 4
#endif
#if defined(LLMC_TARGET_v4) && !defined(LLMC_PORTABLE_V4)
#define VF_NATIVE_512 1
#endif
#if (defined(LLMC_TARGET_v4) || defined(LLMC_TARGET_v3)) && defined(__AVX2__) &&                   \
    defined(__F16C__) && defined(__FMA__)
#define VF_HAVE_256 1
#endif
#if defined(VF_NATIVE_512) || defined(VF_HAVE_256)
#include <immintrin.h>
#endif
#if VF_NEON && defined(__ARM_NEON)
#define VF_NATIVE_NEON 1
#include <arm_neon.h>
#endif
#if VL > 4 || VF_NEON
#define VF_FUSED 1 /* vf_fma and f32_fma round once */
#endif

#define LLMC_INLINE static inline __attribute__((always_inline, unused))
#if defined(LLMC_PORTABLE_V4)
#define LLMC_UNROLL
#elif defined(__clang__)
#define LLMC_UNROLL _Pragma("unroll")
#else
#define LLMC_UNROLL _Pragma("GCC unroll 32")
#endif
/* Loop i = 0 .. n - 1, unrolled. n is constant only after inlining. `most` is a constant in the
 * function itself; clang needs it because it unrolls before inlining, and does not unroll loops
 * with an unknown bound. */
#define LLMC_EACH(i, n, most)                                                                      \
	LLMC_UNROLL                                                                                \
	for (int i = 0; i < (most); i++)                                                           \
		if (i < (n))

/* Selects lanes of a and b by number; the numbers are constants. LLMC_GCC_11 selects the form for
 * older compilers, for tests. */
#if (defined(__clang__) || __GNUC__ >= 12) && !defined(LLMC_GCC_11)
#define VF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VF_INTEGERS(type, v) ((type __attribute__((vector_size(sizeof(v))))){ 0 })
/* integer type with the size of v's lanes */
#define VF_INDEX(v)                                                                                \
	__typeof__(__builtin_choose_expr(sizeof((v)[0]) == 4, VF_INTEGERS(int32_t, v),             \
	                                 __builtin_choose_expr(sizeof((v)[0]) == 2,                \
	                                                       VF_INTEGERS(int16_t, v),            \
	                                                       VF_INTEGERS(int8_t, v))))
#define VF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (VF_INDEX(a)){ __VA_ARGS__ })
#endif

typedef float vf __attribute__((vector_size(4 * VL), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VL), may_alias));
typedef float vf_mem __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef uint16_t f16;

#if VL == 16
#define VL_TIMES(x) { x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x }
#elif VL == 8
#define VL_TIMES(x) { x, x, x, x, x, x, x, x }
#else
#define VL_TIMES(x) { x, x, x, x }
#endif

/* ---- lanes ---- */
LLMC_INLINE vf
vf_load(const float *p)
{
	return *(const vf_mem *)p;
}

LLMC_INLINE void
vf_store(float *p, vf v)
{
	*(vf_mem *)p = v;
}

/* Loads the first n lanes; the others are 0. */
LLMC_INLINE vf
vf_load_n(const float *p, int n)
{
	vf v = { 0 };

	for (int i = 0; i < VL; i++)
		if (i < n)
			v[i] = p[i];
	return v;
}

LLMC_INLINE void
vf_store_n(float *p, vf v, int n)
{
	for (int i = 0; i < VL; i++)
		if (i < n)
			p[i] = v[i];
}

LLMC_INLINE vf
vf_set1(float x)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_set1_ps(x);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_set1_ps(x);
#else
	return (vf)VL_TIMES(x);
#endif
}

LLMC_INLINE vi
vi_set1(int32_t x)
{
	return (vi)VL_TIMES(x);
}

/* 0, 1, 2, ... */
LLMC_INLINE vi
vi_iota(void)
{
#if VL == 16
	return (vi){ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
#elif VL == 8
	return (vi){ 0, 1, 2, 3, 4, 5, 6, 7 };
#else
	return (vi){ 0, 1, 2, 3 };
#endif
}

/* a * b + c, rounded once; rounded twice on generic */
LLMC_INLINE vf
vf_fma(vf a, vf b, vf c)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif VL == 16 && defined(VF_HAVE_256)
	union {
		vf v;
		__m256 h[2];
	} x = { a }, y = { b }, z = { c };
	z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
	z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
	return z.v;
#elif defined(VF_NATIVE_NEON)
	return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(VF_FUSED)
	for (int i = 0; i < VL; i++)
		c[i] = __builtin_fmaf(a[i], b[i], c[i]);
	return c;
#else
	return a * b + c;
#endif
}

LLMC_INLINE float
f32_fma(float a, float b, float c)
{
#if defined(VF_FUSED)
	return __builtin_fmaf(a, b, c);
#else
	return a * b + c;
#endif
}

/* a in lanes where mask is all ones, b where it is zero */
LLMC_INLINE vf
vf_select(vi mask, vf a, vf b)
{
	return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* maximum; b if either is NaN, like the x86 instruction */
LLMC_INLINE vf
vf_max(vf a, vf b)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return vf_select((vi)(a > b), a, b);
#endif
}

LLMC_INLINE vf
vf_min(vf a, vf b)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return vf_select((vi)(a < b), a, b);
#endif
}

/* v, but 0 where x < lo */
LLMC_INLINE vf
vf_zero_below(vf x, vf lo, vf v)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)lo, _CMP_NLT_UQ),
	                               (__m512)v);
#else
	return (vf)((vi)v & ~(vi)(x < lo));
#endif
}

LLMC_INLINE vf
vf_abs(vf a)
{
	return (vf)((vi)a & vi_set1(0x7fffffff));
}

#if defined(VF_HAVE_256) && VL >= 8
/* combines the two halves of the vector by op, again and again until one lane is left */
#define VF_FOLD(v, op)                                                                             \
	do {                                                                                       \
		__m128 a_ = op(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));            \
		a_ = op(a_, _mm_movehl_ps(a_, a_));                                                \
		return _mm_cvtss_f32(op(a_, _mm_movehdup_ps(a_)));                                 \
	} while (0)
#endif
#if VL == 16
typedef union {
	vf v;
	float f[VL];
	float half[2][8];
} vf_lanes;
#endif

LLMC_INLINE float
vf_hmax(vf v)
{
#if VL == 16 && defined(VF_HAVE_256)
	vf_lanes x = { v };
	__m256 w = _mm256_max_ps(_mm256_loadu_ps(x.half[0]), _mm256_loadu_ps(x.half[1]));
	VF_FOLD(w, _mm_max_ps);
#elif VL == 8 && defined(VF_HAVE_256)
	VF_FOLD((__m256)v, _mm_max_ps);
#elif defined(VF_NATIVE_NEON)
	vf m = vf_max((vf)vextq_f32((float32x4_t)v, (float32x4_t)v, 2), v);
	return m[0] > m[1] ? m[0] : m[1];
#else
	float m = v[0];
	for (int i = 1; i < VL; i++)
		m = m > v[i] ? m : v[i];
	return m;
#endif
}

/* Adds the two halves again and again until one lane is left. All phases use this order, so that
 * their results have equal bits. */
LLMC_INLINE float
vf_hsum(vf v)
{
#if VL == 16 && defined(VF_HAVE_256)
	vf_lanes x = { v };
	__m256 w = _mm256_add_ps(_mm256_loadu_ps(x.half[0]), _mm256_loadu_ps(x.half[1]));
	VF_FOLD(w, _mm_add_ps);
#elif VL == 8 && defined(VF_HAVE_256)
	VF_FOLD((__m256)v, _mm_add_ps);
#elif defined(VF_NATIVE_NEON)
	float32x2_t half = vadd_f32(vget_low_f32((float32x4_t)v), vget_high_f32((float32x4_t)v));
	return vpadds_f32(half);
#else
	float t[VL];
	vf_store(t, v);
	for (int w = VL / 2; w > 0; w /= 2)
		for (int i = 0; i < w; i++)
			t[i] += t[i + w];
	return t[0];
#endif
}

/* ---- half precision ---- */
LLMC_INLINE float
f16_get(f16 h)
{
#if defined(VF_HAVE_256) || defined(VF_NATIVE_512)
	return _cvtsh_ss(h);
#elif defined(VF_NATIVE_NEON)
	__fp16 x;
	memcpy(&x, &h, 2);
	return x;
#else
	uint32_t em = (uint32_t)(h & 0x7fff) << 13, top = 0x77800000u, out;
	float scale, f;

	memcpy(&scale, &top, 4); /* 2^112: adjusts the exponent bias, also of subnormals */
	memcpy(&f, &em, 4);
	f *= scale;
	memcpy(&out, &f, 4);
	if (em >= 0x0f800000u) /* infinity, NaN */
		out |= 0x7f800000u;
	out |= (uint32_t)(h & 0x8000) << 16;
	memcpy(&f, &out, 4);
	return f;
#endif
}

/* rounds to nearest even; overflows to infinity */
LLMC_INLINE f16
f16_put(float x)
{
#if defined(VF_HAVE_256) || defined(VF_NATIVE_512)
	return (f16)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(VF_NATIVE_NEON)
	__fp16 y = (__fp16)x;
	f16 h;
	memcpy(&h, &y, 2);
	return h;
#else
	uint32_t u, sign;

	memcpy(&u, &x, 4);
	sign = u >> 16 & 0x8000;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return (f16)(sign | 0x7e00);
	if (u >= 0x477ff000)
		return (f16)(sign | 0x7c00);
	if (u < 0x38800000) { /* subnormal: adding 1/2 rounds to a multiple of 2^-24 */
		float half = 0.5f, f;
		memcpy(&f, &u, 4);
		f += half;
		memcpy(&u, &f, 4);
		return (f16)(sign | (u - 0x3f000000));
	}
	u += 0xfff + (u >> 13 & 1);
	return (f16)(sign | (u - 0x38000000) >> 13);
#endif
}

LLMC_INLINE vf
vf_load_f16(const f16 *p)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif VL == 16 && defined(VF_HAVE_256)
	union {
		__m256 h[2];
		vf v;
	} x;
	x.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
	x.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)));
	return x.v;
#elif defined(VF_NATIVE_NEON)
	return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
	vi h = { 0 };
	for (int i = 0; i < VL; i++)
		h[i] = p[i];
	vi em = (h & vi_set1(0x7fff)) << 13;
	vf f = (vf)em * (vf)vi_set1(0x77800000);
	vi special = (vi)(em >= vi_set1(0x0f800000)) & vi_set1(0x7f800000);
	return (vf)((vi)f | special | (h & vi_set1(0x8000)) << 16);
#endif
}

LLMC_INLINE vf
vf_load_f16_n(const f16 *p, int n)
{
	f16 t[VL] = { 0 };

	for (int i = 0; i < n; i++)
		t[i] = p[i];
	return vf_load_f16(t);
}

/* ---- functions ---- */
/* e^x, about 1 ulp; exactly 1 at 0, exactly 0 below -87 (so also for -infinity), e^88.37 above
 * that, NaN for NaN. x = n ln 2 + r, e^r by a polynomial of degree 6 (largest relative error 3e-9
 * before rounding). Adding 1.5 * 2^23 + 127 rounds n to an integer and leaves 2^n's exponent in the
 * low bits of the sum. */
LLMC_INLINE vf
vf_exp(vf x)
{
	const vf magic = vf_set1(12583039.0f), one = vf_set1(1.0f), lo = vf_set1(-87.0f);
	vf c = vf_min(vf_set1(88.37f), vf_max(lo, x));
	vf t = vf_fma(c, vf_set1(1.44269504f), magic);
	vf n = t - magic;
	vf r = vf_fma(n, vf_set1(-0.693359375f), c);
	vf p = vf_set1(0.00138144311f);

	r = vf_fma(n, vf_set1(2.12194440e-4f), r);
	p = vf_fma(p, r, vf_set1(0.00836879667f));
	p = vf_fma(p, r, vf_set1(0.0416683964f));
	p = vf_fma(p, r, vf_set1(0.166665196f));
	p = vf_fma(p, r, vf_set1(0.49999994f));
	p = vf_fma(p, r * r, r) + one;
	return vf_zero_below(x, lo, p * (vf)((vi)t << 23));
}

LLMC_INLINE vf
vf_sigmoid(vf x)
{
	return vf_set1(1) / (vf_set1(1) + vf_exp(-x));
}

/* x| < 0.625: x + x^3 P(x^2); else from exp. Relative error about 2e-7. */
LLMC_INLINE vf
vf_tanh(vf x)
{
	const vf one = vf_set1(1);
	vf a = vf_abs(x), z = x * x;
	vf p = vf_set1(-0.0056483075f);

	p = vf_fma(p, z, vf_set1(0.0205898173f));
	p = vf_fma(p, z, vf_set1(-0.0537251234f));
	p = vf_fma(p, z, vf_set1(0.133312747f));
	p = vf_fma(p, z, vf_set1(-0.333332747f));
	p = vf_fma(p * z, x, x);
	vf e = one - vf_set1(2) / (vf_exp(a + a) + one);
	vi sign = (vi)x & vi_set1(-0x7fffffff - 1);
	return vf_select((vi)(a < vf_set1(0.625f)), p, (vf)((vi)e | sign));
}

/* |x| < 1: x P(x^2); else 1 - e^(-x^2) t Q(t), t = 1 / (|x| + 2). Absolute error about 1e-7. */
LLMC_INLINE vf
vf_erf(vf x)
{
	vf a = vf_abs(x), z = x * x, c = vf_min(a, vf_set1(4.2f));
	vf p = vf_set1(7.8538571e-05f);

	p = vf_fma(p, z, vf_set1(-0.000801019254f));
	p = vf_fma(p, z, vf_set1(0.00518832775f));
	p = vf_fma(p, z, vf_set1(-0.026853811f));
	p = vf_fma(p, z, vf_set1(0.112835854f));
	p = vf_fma(p, z, vf_set1(-0.37612626f));
	p = vf_fma(p, z, vf_set1(1.12837911f)) * x;
	vf t = vf_set1(1) / (c + vf_set1(2)), q = vf_set1(-3.26434803f);
	q = vf_fma(q, t, vf_set1(-1.71933007f));
	q = vf_fma(q, t, vf_set1(6.10139561f));
	q = vf_fma(q, t, vf_set1(1.05029142f));
	q = vf_fma(q, t, vf_set1(1.25069642f));
	q = vf_fma(q, t, vf_set1(0.557835102f)) * t;
	q = vf_set1(1) - vf_exp(-(c * c)) * q;
	vi sign = (vi)x & vi_set1(-0x7fffffff - 1);
	p = vf_select((vi)(a < vf_set1(1)), p, (vf)((vi)q | sign));
	return vf_select((vi)(x == x), p, x);
}

LLMC_INLINE vf
vf_silu(vf x)
{
	return x / (vf_set1(1) + vf_exp(-x));
}

LLMC_INLINE vf
vf_gelu(vf x)
{
	return vf_set1(0.5f) * x * (vf_set1(1) + vf_erf(x * vf_set1(0.70710678f)));
}

/* x (1 + tanh u) / 2 = x sigmoid(2 u), which avoids cancellation for negative x */
LLMC_INLINE vf
vf_gelu_tanh(vf x)
{
	vf u = vf_set1(1.59576912f) * vf_fma(vf_set1(0.044715f) * x * x, x, x);

	return x / (vf_set1(1) + vf_exp(-u));
}

LLMC_INLINE vf
vf_gelu_quick(vf x)
{
	return x / (vf_set1(1) + vf_exp(vf_set1(-1.702f) * x));
}

LLMC_INLINE vf
vf_relu(vf x)
{
	return vf_max(x, vf_set1(0));
}

LLMC_INLINE vf
vf_relu2(vf x)
{
	vf r = vf_relu(x);

	return r * r;
}

/* Factors of xielu, computed from the layer's p [2]: a = log(1 + e^p[0]), b = 1/2 + log(1 +
 * e^p[1]) */
typedef struct Xielu {
	float a, b;
} Xielu;

LLMC_INLINE float
f32_softplus(float x)
{
	return x > 20 ? x : __builtin_log1pf(vf_exp(vf_set1(x))[0]);
}

LLMC_INLINE Xielu
xielu_of(const float *p)
{
	return (Xielu){ f32_softplus(p[0]), 0.5f + f32_softplus(p[1]) };
}

/* x > 0: a x^2 + x / 2; otherwise b (e^x - 1 - x) + x / 2. Near 0 the difference would cancel, so
 * e^x - 1 - x is computed by its series. The op's definition clamps the exponent to -1e-6, which
 * the series does not need: both round to x / 2 there. */
LLMC_INLINE vf
vf_xielu(vf x, const Xielu of)
{
	vf near = vf_set1(1.f / 5040), half = vf_set1(0.5f) * x;

	near = vf_fma(near, x, vf_set1(1.f / 720));
	near = vf_fma(near, x, vf_set1(1.f / 120));
	near = vf_fma(near, x, vf_set1(1.f / 24));
	near = vf_fma(near, x, vf_set1(1.f / 6));
	near = vf_fma(near, x, vf_set1(0.5f)) * x * x;
	vf far = vf_exp(vf_min(x, vf_set1(0))) - vf_set1(1) - x;
	vf low = vf_set1(of.b) * vf_select((vi)(x > vf_set1(-0.5f)), near, far) + half;
	return vf_select((vi)(x > vf_set1(0)), vf_fma(vf_set1(of.a) * x, x, half), low);
}

/* clamps g and u, as a gated activation with a limit does; limit 0: no clamp */
#define VF_LIMIT(g, u, limit)                                                                      \
	if ((limit) > 0) {                                                                         \
		g = vf_min(g, vf_set1(limit));                                                     \
		u = vf_max(vf_min(u, vf_set1(limit)), vf_set1(-(limit)));                          \
	}

/* defines vf_glu_<act>(g, u, limit) = act(g) * u */
#define VF_GLU(act)                                                                                \
	LLMC_INLINE vf vf_glu_##act(vf g, vf u, const float limit)                                 \
	{                                                                                          \
		VF_LIMIT(g, u, limit)                                                              \
		return vf_##act(g) * u;                                                            \
	}
VF_GLU(silu)
VF_GLU(gelu)
VF_GLU(gelu_tanh)
VF_GLU(gelu_quick)
VF_GLU(relu)
VF_GLU(relu2)

LLMC_INLINE vf
vf_glu_swiglu_oai(vf g, vf u, const float limit)
{
	VF_LIMIT(g, u, limit)
	return g / (vf_set1(1) + vf_exp(vf_set1(-1.702f) * g)) * (u + vf_set1(1));
}

/* applies silu first, then the limits */
LLMC_INLINE vf
vf_glu_silu_limit(vf g, vf u, const float limit)
{
	g = vf_silu(g);
	VF_LIMIT(g, u, limit)
	return g * u;
}

LLMC_INLINE float
f32_exp(float x)
{
	return vf_exp(vf_set1(x))[0];
}

LLMC_INLINE float
f32_sqrt(float x)
{
#if defined(VF_HAVE_256) || defined(VF_NATIVE_512)
	return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
	return __builtin_sqrtf(x);
#endif
}

#endif
