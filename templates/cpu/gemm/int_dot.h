/* Integer dot products of one step: VL rows at once; the lane of a row holds 2 (words) or 4
 * (bytes) of its columns. All are exact, so any combination gives the same integers. Only the
 * fp32 operations after them depend on order.
 *
 *   words  s16 x s16, exact in 32 bits
 *   bytes  u8 weights x s8 activations. With VNNI, sums have 32 bits (DOT_BYTES_WIDE). On v3, sums
 * are
 *          pairs of 16 bits, which hold DOT_BYTES_ROOM / (largest weight) steps; after these steps
 *          dot_bytes_sum must be called
 *
 *           generic   v3                    vnni        v4 and amx   neon                 i8mm
 *   VL      4         8                     8           16           4                    4
 *   words   pmaddwd   vpmaddwd, vpaddd      vpdpwssd    vpdpwssd     smull, smull2, addp  the same
 *   bytes   plain     vpmaddubsw, vpaddw    vpdpbusd    vpdpbusd     sdot                 usdot
 *
 * neon cannot multiply unsigned by signed bytes, so its weights are signed bytes (dot_operand). 128
 * is subtracted from 8-bit weights (dot_offset).
 *
 * On amx, tile instructions replace tile_dot for all weights except fp32 (cpu/gemm/amx.h). On i8mm,
 * matrix-multiply instructions replace it for integer weights (cpu/gemm/mmla.h).
 *
 * Each native instruction has an equivalent in plain vectors, which tests use on CPUs without
 * it. */
#ifndef LLMC_CPU_GEMM_INT_DOT_H
#define LLMC_CPU_GEMM_INT_DOT_H

#include "cpu/math/vector.h"

#if VL == 4 && defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef vi vi_mem __attribute__((aligned(1)));
typedef int16_t vw __attribute__((vector_size(4 * VL), may_alias));

LLMC_INLINE vi
vi_load(const void *p)
{
	return *(const vi_mem *)p;
}

/* broadcasts x */
LLMC_INLINE vi
vi_all(int32_t x)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_set1_epi32(x);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_set1_epi32(x);
#elif VL == 4
	return (vi){ x, x, x, x };
#else
	return vi_set1(x);
#endif
}

/* broadcasts the 4 bytes at p */
LLMC_INLINE vi
vi_bcast4(const void *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return vi_all(x);
}

/* Loads VL small integers at p and widens them. (Compilers implement __builtin_convertvector of
 * such vectors lane by lane.) */
LLMC_INLINE vi
vi_of_u8(const uint8_t *p)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#elif defined(VF_NATIVE_NEON)
	uint32_t four;
	memcpy(&four, p, 4);
	return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
	typedef uint8_t mem __attribute__((vector_size(VL), aligned(1), may_alias));
	return __builtin_convertvector(*(const mem *)p, vi);
#endif
}

LLMC_INLINE vi
vi_of_s8(const uint8_t *p)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#elif defined(VF_NATIVE_NEON)
	uint32_t four;
	memcpy(&four, p, 4);
	return (vi)vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
#else
	typedef int8_t mem __attribute__((vector_size(VL), aligned(1), may_alias));
	return __builtin_convertvector(*(const mem *)p, vi);
#endif
}

LLMC_INLINE vi
vi_of_u16(const uint8_t *p)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif VL == 8 && defined(VF_HAVE_256)
	return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif VL == 4 && defined(__SSE2__)
	return (vi)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p),
	                              _mm_setzero_si128());
#elif defined(VF_NATIVE_NEON)
	return (vi)vmovl_u16(vld1_u16((const uint16_t *)(const void *)p));
#else
	typedef uint16_t mem __attribute__((vector_size(2 * VL), aligned(1), may_alias));
	return __builtin_convertvector(*(const mem *)p, vi);
#endif
}

LLMC_INLINE vf
vf_of_vi(vi v)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_cvtepi32_ps((__m512i)v);
#elif VL == 8 && defined(VF_HAVE_256)
	return (vf)_mm256_cvtepi32_ps((__m256i)v);
#else
	return __builtin_convertvector(v, vf);
#endif
}

/* acc + w[2i] x[2i] + w[2i + 1] x[2i + 1] */
LLMC_INLINE vi
dot_words(vi acc, vi w, vi x)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(LLMC_VNNI_256)
	return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif VL == 8 && defined(VF_HAVE_256)
	vi t; /* in assembly, because gcc would reorder the additions into trees and run out of
	         registers */
	__asm__("vpmaddwd %[x], %[w], %[t]\n\tvpaddd %[t], %[a], %[a]"
	        : [a] "+x"(acc), [t] "=&x"(t)
	        : [w] "x"(w), [x] "x"(x));
	return acc;
#elif VL == 4 && defined(__SSE2__)
	return acc + (vi)_mm_madd_epi16((__m128i)w, (__m128i)x);
#elif defined(VF_NATIVE_NEON)
	int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)w), vget_low_s16((int16x8_t)x));
	return acc + (vi)vpaddq_s32(low, vmull_high_s16((int16x8_t)w, (int16x8_t)x));
#else
	return acc + (w << 16 >> 16) * (x << 16 >> 16) + (w >> 16) * (x >> 16);
#endif
}

/* Starts a sum. */
LLMC_INLINE vi
dot_words_first(vi w, vi x)
{
#if VL == 8 && defined(VF_HAVE_256) && !defined(LLMC_VNNI_256)
	return (vi)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#else
	return dot_words(vi_all(0), w, x);
#endif
}

#if VL == 16 || defined(LLMC_VNNI_256) || VF_NEON
#define DOT_BYTES_WIDE 1
#else
#define DOT_BYTES_WIDE 0
#endif
#if VL == 8 && !DOT_BYTES_WIDE
#define DOT_BYTES_ROOM 248 /* 31 x 8 steps; 248 x 128 is below 2^15 */
#else
#define DOT_BYTES_ROOM 65536
#endif

#define DOT_SIGNED (VF_NEON && !VF_MMLA) /* dot_bytes multiplies signed weights */

/* converts weights of `width` bits to the operand of dot_bytes */
LLMC_INLINE vi
dot_operand(vi w, const int width)
{
	if (DOT_SIGNED && width == 8)
		w ^= vi_all((int32_t)0x80808080);
	return w;
}

/* Returns the offset of such operands. `offset`: offset of the unsigned bytes */
LLMC_INLINE int
dot_offset(const int offset, const int width)
{
	return DOT_SIGNED && width == 8 ? offset - 128 : offset;
}

LLMC_INLINE vi
dot_bytes(vi acc, vi w, vi x)
{
#if defined(VF_NATIVE_512)
	return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(LLMC_VNNI_256)
	return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif VL == 8 && defined(VF_HAVE_256)
	vi t;
	__asm__("vpmaddubsw %[x], %[w], %[t]\n\tvpaddw %[t], %[a], %[a]"
	        : [a] "+x"(acc), [t] "=&x"(t)
	        : [w] "x"(w), [x] "x"(x));
	return acc;
#elif defined(VF_NATIVE_NEON) && DOT_SIGNED
	return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
#elif defined(VF_NATIVE_NEON)
	return (vi)vusdotq_s32((int32x4_t)acc, (uint8x16_t)w, (int8x16_t)x);
#elif DOT_SIGNED
	return acc + (w << 24 >> 24) * (x << 24 >> 24) + (w << 16 >> 24) * (x << 16 >> 24) +
	       (w << 8 >> 24) * (x << 8 >> 24) + (w >> 24) * (x >> 24);
#else
	vi byte = vi_all(255);
	return acc + (w & byte) * (x << 24 >> 24) + (w >> 8 & byte) * (x << 16 >> 24) +
	       (w >> 16 & byte) * (x << 8 >> 24) + (w >> 24 & byte) * (x >> 24);
#endif
}

LLMC_INLINE vi
dot_bytes_first(vi w, vi x)
{
#if VL == 8 && defined(VF_HAVE_256) && !DOT_BYTES_WIDE
	return (vi)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#else
	return dot_bytes(vi_all(0), w, x);
#endif
}

/* Returns scale * (32-bit sum). scale: 1 or 256 */
LLMC_INLINE vi
dot_bytes_sum(vi acc, int scale)
{
#if VL == 8 && defined(VF_HAVE_256) && !DOT_BYTES_WIDE
	return (vi)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16((short)scale));
#else
	return scale == 1 ? acc : acc << 8;
#endif
}

#endif
