/* Grid formats (IQ1 to IQ3) decoded with AVX2: a lookup loads the bytes of eight columns of a row.
 * A register holds eight columns of four rows, so four lookups have to be combined.
 *
 *   grid, bytes of magnitudes (iq1: values plus the zero of w_bytes)  --grid_eight(k, n, u)--> columns 8n .. 8n + 7 of rows 0, 1, 4, 5 (u = 0) or 2, 3, 6, 7 (u = 1)
 *   signs of the block  --grid_signs(k, n, u)--> bytes for vpsignb: < 0 where weights are, never 0
 *   sums of such registers, two values per row  --grid_rows--> sums of rows, in order
 *
 * GEMM tiles and embedding lookups use w_bytes and w_words instead. */
#ifndef LLMC_CPU_WEIGHTS_GRIDS_H
#define LLMC_CPU_WEIGHTS_GRIDS_H

#include "cpu/weights/weights.h"

#ifdef LLMC_EIGHTS
#define w_is_eights(w) (w_is_coded(w) && (w).kind >= CODES_iq3_s && (w).kind <= CODES_iq1_m)

#define GRID_SPREAD(x) (((x) & 0x0f0f0f0full) | ((x) >> 4 & 0x0f0f0f0full) << 32)
#define GRID_IQ2(x)                                                                                \
	GRID_SPREAD(x) * 17 + (GRID_SPREAD(x) >> 1 & 0x0101010101010101) + 0x0808080808080808,
#define GRID_IQ1(x) GRID_SPREAD(x) * 8,
#define GRID_IQ3_XXS(x) (x) * 8u + ((x) & (x) >> 1 & (x) >> 2 & 0x01010101u) * 2 + 0x04040404u,
#define GRID_IQ3_S(x) (x) * 2u + 0x01010101u,
static const uint64_t grid_iq2_s[] = { LLMC_GRID_IQ2_S(GRID_IQ2) },
                      grid_iq2_xs[] = { LLMC_GRID_IQ2_XS(GRID_IQ2) },
                      grid_iq2_xxs[] = { LLMC_GRID_IQ2_XXS(GRID_IQ2) },
                      grid_iq1[] = { LLMC_GRID_IQ1(GRID_IQ1) };
/* an entry of four columns is loaded together with its three neighbours, so both ends are padded */
static const uint32_t grid_iq3_s[] = { 0, 0, 0, LLMC_GRID_IQ3_S(GRID_IQ3_S) 0, 0, 0 },
                      grid_iq3_xxs[] = { 0, 0, 0, LLMC_GRID_IQ3_XXS(GRID_IQ3_XXS) 0, 0, 0 };
#undef GRID_SPREAD
#undef GRID_IQ2
#undef GRID_IQ1
#undef GRID_IQ3_XXS
#undef GRID_IQ3_S

/* eight columns of rows `row` and row + 1 */
LLMC_INLINE __m128i
grid_two(const Weight w, w_at k, int n, int row)
{
	if (w.kind == CODES_iq3_s || w.kind == CODES_iq3_xxs) {
		/* blends, because an insertion is two instructions */
		const uint32_t *const grid =
		    (w.kind == CODES_iq3_s ? grid_iq3_s : grid_iq3_xxs) + 3;
#define GRID_AT(i)                                                                                 \
	_mm_loadu_si128(                                                                           \
	    (const __m128i *)(const void *)(grid + w_index(w, k, row + i / 2, 2 * n + i % 2) - i))
		return _mm_blend_epi32(
		    _mm_blend_epi32(_mm_blend_epi32(GRID_AT(0), GRID_AT(1), 2), GRID_AT(2), 4),
		    GRID_AT(3), 8);
#undef GRID_AT
	}
	const uint64_t *const grid = w_is_iq1(w)              ? grid_iq1
	                             : w.kind == CODES_iq2_s  ? grid_iq2_s
	                             : w.kind == CODES_iq2_xs ? grid_iq2_xs
	                                                      : grid_iq2_xxs;
	const __m128i low =
	    _mm_loadl_epi64((const __m128i *)(const void *)(grid + w_index(w, k, row, n)));
	return (__m128i)_mm_loadh_pd(
	    (__m128d)low, (const double *)(const void *)(grid + w_index(w, k, row + 1, n)));
}

LLMC_INLINE vi
grid_eight(const Weight w, w_at k, int n, int u)
{
	const __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(grid_two(w, k, n, 2 * u)),
	                                          grid_two(w, k, n, 4 + 2 * u), 1);

	if (!w_is_iq1(w))
		return (vi)v;
	const int byte = 8 * u +
	                 /* byte of the first row's lane; the other row's byte is 4 later */
	                 (w.kind == CODES_iq1_s ? 3 : n);
	const __m256i at =
	    _mm256_add_epi8(_mm256_set1_epi8((char)byte),
	                    _mm256_set_epi64x(0x0404040404040404, 0, 0x0404040404040404, 0));
	return (vi)_mm256_add_epi8(v, _mm256_shuffle_epi8((__m256i)w_moved(w, k), at));
}

LLMC_INLINE vi
grid_signs(const Weight w, w_at k, int n, int u)
{
	/* For columns 0 .. 3 of eight, sign 2 n of a byte is in its bit 2 n + 1; for columns 4 ..
	 * 7, that bit is sign 2 n + 1. All other bits are 1. */
	const vi signs =
	             vi_load(k.quant + 4 * VL * (llmc_codes_of((llmc_codes_kind)w.kind).words - 1)),
	         ones = vi_all(0x55555555);
	const __m256i four = (__m256i)(signs << 1 | ones), next = (__m256i)(signs | ones);

	return (vi)(u ? _mm256_unpackhi_epi32(four, next) : _mm256_unpacklo_epi32(four, next))
	       << (6 - 2 * n);
}

LLMC_INLINE vi
grid_signed(vi v, vi signs)
{
	return (vi)_mm256_sign_epi8((__m256i)v, (__m256i)signs);
}

LLMC_INLINE vi
grid_rows(vi low, vi high)
{
	return (vi)_mm256_hadd_epi32((__m256i)low, (__m256i)high);
}

/* the 8 bytes at p, repeated per row */
LLMC_INLINE vi
vi_bcast8(const void *p)
{
	int64_t x;

	memcpy(&x, p, 8);
	return (vi)_mm256_set1_epi64x(x);
}
#else
#define w_is_eights(w) 0
#endif

#endif
