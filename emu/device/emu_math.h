/* Arithmetic that NVRTC provides without a header. Single precision throughout; the fast variants
 * are exact here. */
#ifndef EMU_DEVICE_EMU_MATH_H
#define EMU_DEVICE_EMU_MATH_H

extern "C" {
float expf(float), exp2f(float), logf(float), log2f(float), powf(float, float), sinf(float),
    cosf(float), tanhf(float), erff(float), log1pf(float), expm1f(float), rintf(float),
    roundf(float), fmodf(float, float), ldexpf(float, int), tanf(float), atanf(float);
float sqrtf(float) noexcept, fabsf(float) noexcept, floorf(float) noexcept, ceilf(float) noexcept,
    truncf(float) noexcept, copysignf(float, float) noexcept;
double sqrt(double) noexcept, fabs(double) noexcept, exp(double), log(double), pow(double, double),
    sin(double), cos(double), floor(double) noexcept;
}
EMU_FN float
emu_fmaf(float a, float b, float c)
{
	return __builtin_fmaf(a, b, c);
}
#define fmaf(a, b, c) emu_fmaf(a, b, c)
EMU_FN float
fmaxf(float a, float b)
{
	return __builtin_fmaxf(a, b);
}
EMU_FN float
fminf(float a, float b)
{
	return __builtin_fminf(a, b);
}
EMU_FN float
rsqrtf(float x)
{
	return 1.0f / sqrtf(x);
}
EMU_FN float
emu_expf(float x)
{
	return expf(x);
}
EMU_FN float
emu_logf(float x)
{
	return logf(x);
}
#define __expf(x) emu_expf(x)
#define __logf(x) emu_logf(x)
#define __log2f(x) log2f(x)
#define __exp2f(x) exp2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
EMU_FN float
__fdividef(float a, float b)
{
	return a / b;
}
EMU_FN float
__frcp_rn(float a)
{
	return 1.0f / a;
}
EMU_FN float
__fadd_rn(float a, float b)
{
	return a + b;
}
EMU_FN float
__fmul_rn(float a, float b)
{
	return a * b;
}
EMU_FN float
__fmaf_rn(float a, float b, float c)
{
	return __builtin_fmaf(a, b, c);
}
EMU_FN int
isnan(float x)
{
	return __builtin_isnan(x);
}
EMU_FN int
isinf(float x)
{
	return __builtin_isinf(x);
}

#define EMU_MINMAX(T)                                                                              \
	EMU_FN T min(T a, T b)                                                                     \
	{                                                                                          \
		return a < b ? a : b;                                                              \
	}                                                                                          \
	EMU_FN T max(T a, T b)                                                                     \
	{                                                                                          \
		return a > b ? a : b;                                                              \
	}
EMU_MINMAX(int)
EMU_MINMAX(unsigned)
EMU_MINMAX(long)
EMU_MINMAX(unsigned long)
EMU_MINMAX(long long)
EMU_MINMAX(unsigned long long)
EMU_FN float
min(float a, float b)
{
	return fminf(a, b);
}
EMU_FN float
max(float a, float b)
{
	return fmaxf(a, b);
}

EMU_FN unsigned
__float_as_uint(float f)
{
	unsigned u;
	__builtin_memcpy(&u, &f, 4);
	return u;
}
EMU_FN float
__uint_as_float(unsigned u)
{
	float f;
	__builtin_memcpy(&f, &u, 4);
	return f;
}
EMU_FN int
__float_as_int(float f)
{
	return (int)__float_as_uint(f);
}
EMU_FN float
__int_as_float(int i)
{
	return __uint_as_float((unsigned)i);
}
EMU_FN int
__popc(unsigned x)
{
	return __builtin_popcount(x);
}
EMU_FN int
__clz(int x)
{
	return x ? __builtin_clz((unsigned)x) : 32;
}
EMU_FN int
__ffs(int x)
{
	return __builtin_ffs(x);
}
EMU_FN unsigned
__brev(unsigned x)
{
	return __builtin_bitreverse32(x);
}
EMU_FN unsigned
__umulhi(unsigned a, unsigned b)
{
	return (unsigned)((unsigned long)a * b >> 32);
}
/* Permutes bytes without loops, so that the compiler can fold the call if the selector is
 * constant. */
EMU_FN unsigned
emu_byte(unsigned long v, unsigned s)
{
	unsigned byte = (unsigned)(v >> 8 * (s & 7)) & 255;
	return s & 8 ? (byte & 128 ? 255 : 0) : byte;
}
EMU_FN unsigned
__byte_perm(unsigned a, unsigned b, unsigned s)
{
	unsigned long v = (unsigned long)b << 32 | a;
	return emu_byte(v, s) | emu_byte(v, s >> 4) << 8 | emu_byte(v, s >> 8) << 16 |
	       emu_byte(v, s >> 12) << 24;
}
EMU_FN int
emu_product(int a, int b, int i)
{
	return (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
}
EMU_FN int
__dp4a(int a, int b, int c)
{
	return c + emu_product(a, b, 0) + emu_product(a, b, 1) + emu_product(a, b, 2) +
	       emu_product(a, b, 3);
}
EMU_FN unsigned
__funnelshift_r(unsigned lo, unsigned hi, unsigned s)
{
	return (unsigned)(((unsigned long)hi << 32 | lo) >> (s & 31));
}

/* Conversions: bit patterns of 16-bit types, round to nearest even. */
EMU_FN float
bf16_to_f32(unsigned short h)
{
	return __uint_as_float((unsigned)h << 16);
}
EMU_FN unsigned short
f32_to_bf16(float f)
{
	unsigned u = __float_as_uint(f);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return 0x7fff;
	return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
EMU_FN float
f16_to_f32(unsigned short h)
{
#ifdef __F16C__
	typedef short lanes __attribute__((vector_size(16)));
	if ((h & 0x7c00u) != 0x7c00u) /* NaNs keep their bits */
		return __builtin_ia32_vcvtph2ps((lanes){ (short)h })[0];
#endif
	unsigned s = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 1023u;
	if (e == 31)
		return __uint_as_float(s | 0x7f800000u | m << 13);
	if (e)
		return __uint_as_float(s | (e + 112) << 23 | m << 13);
	float f = (float)m * 0x1p-24f;
	return s ? -f : f;
}
EMU_FN unsigned short
f32_to_f16(float f)
{
	unsigned u = __float_as_uint(f), s = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
	if (a > 0x7f800000u)
		return 0x7fff;
#ifdef __F16C__
	typedef float lanes __attribute__((vector_size(16)));
	return (unsigned short)__builtin_ia32_vcvtps2ph((lanes){ f }, 0)[0];
#endif
	if (a >= 0x47800000u)
		return (unsigned short)(s | 0x7c00u);
	if (a < 0x38800000u) { /* subnormal: the addition rounds */
		float r = __uint_as_float(a) + 0.5f;
		return (unsigned short)(s | (__float_as_uint(r) - 0x3f000000u));
	}
	return (unsigned short)(s | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13));
}

EMU_FN unsigned
pack_bf16(float lo, float hi)
{
	return f32_to_bf16(lo) | (unsigned)f32_to_bf16(hi) << 16;
}

/* Pairs of halves (cuda/math/half2.h). Multiplication of two halves is exact in f32. So are the
 * sums that kernels form: sums of small integers, and a*b plus a value that is not larger. */
#ifdef __F16C__
typedef float emu_f4 __attribute__((vector_size(16)));
typedef short emu_h8 __attribute__((vector_size(16)));
typedef unsigned emu_u4 __attribute__((vector_size(16)));
EMU_FN emu_f4
emu_h2(unsigned v)
{
	return __builtin_ia32_vcvtph2ps((emu_h8)(emu_u4){ v });
}
EMU_FN unsigned
emu_h2_back(emu_f4 f)
{
	unsigned v = ((emu_u4)__builtin_ia32_vcvtps2ph(f, 0))[0];
	if ((v & 0x7fffu) > 0x7c00u) /* the only NaN that a GPU generates */
		v = (v & 0xffff0000u) | 0x7fffu;
	if ((v & 0x7fff0000u) > 0x7c000000u)
		v = (v & 0xffffu) | 0x7fff0000u;
	return v;
}
EMU_FN unsigned
pack_f16(float lo, float hi)
{
	return emu_h2_back((emu_f4){ lo, hi });
}
EMU_FN unsigned
h2_add(unsigned a, unsigned b)
{
	return emu_h2_back(emu_h2(a) + emu_h2(b));
}
EMU_FN unsigned
h2_mul(unsigned a, unsigned b)
{
	return emu_h2_back(emu_h2(a) * emu_h2(b));
}
EMU_FN unsigned
h2_fma(unsigned a, unsigned b, unsigned c)
{
	return emu_h2_back(emu_h2(a) * emu_h2(b) + emu_h2(c));
}
#else
EMU_FN float
emu_lo(unsigned v)
{
	return f16_to_f32((unsigned short)v);
}
EMU_FN float
emu_hi(unsigned v)
{
	return f16_to_f32((unsigned short)(v >> 16));
}
EMU_FN unsigned
pack_f16(float lo, float hi)
{
	return f32_to_f16(lo) | (unsigned)f32_to_f16(hi) << 16;
}
EMU_FN unsigned
h2_add(unsigned a, unsigned b)
{
	return pack_f16(emu_lo(a) + emu_lo(b), emu_hi(a) + emu_hi(b));
}
EMU_FN unsigned
h2_mul(unsigned a, unsigned b)
{
	return pack_f16(emu_lo(a) * emu_lo(b), emu_hi(a) * emu_hi(b));
}
EMU_FN unsigned
h2_fma(unsigned a, unsigned b, unsigned c)
{
	return pack_f16(emu_lo(a) * emu_lo(b) + emu_lo(c), emu_hi(a) * emu_hi(b) + emu_hi(c));
}
#endif
EMU_FN unsigned
byte_choose(unsigned a, unsigned b, unsigned which)
{
	return __byte_perm(a, b, which);
}
EMU_FN unsigned
h2_select(unsigned v, unsigned mask, unsigned bits)
{
	return (v & mask) | bits;
}

#endif
