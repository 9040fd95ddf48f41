/* Integer attention over keys and values of integer codes, on v3 and on Arm
 * (cpu/attention/attention_bytes.h). On v3, one pmaddwd multiplies twice as many elements as an
 * FMA, and codes are not converted to float. kv_in_words selects types and dimensions.
 *
 *   query    elements of a group / step as int16; step: their largest magnitude / KV_WORD
 *   score    groups in order: + (sum of words times codes) * scale * step, after the contribution of the zeros, one FMA chain
 *   weights  e_j * scale_j of a page / step as int16; step: the largest of the page and
 *            row / KV_WORD
 *   o        pages of a chunk in order: + (sum of words times codes) * step; finally the contribution of the zeros,
 *            sum of e_j zero_j
 *
 * 8 is subtracted from unsigned codes (int4), so that the rounding error of a word multiplies a
 * number that is small on average. Integer sums do not depend on order, so a single row and a tile
 * give the same bits. A word's error is at most 2^-16 of the largest value: an eighth of f16's
 * error for a large element, a hundredth of that of 8-bit codes. Positions that a row does not
 * attend to have weight 0, whatever their content.
 *
 * For 64 codes and three heads, words take 24 multiply-adds and additions on four ports, and 8
 * instructions that unpack. Floats take 24 FMAs on two ports, and 16 or more instructions that
 * convert. Measured cycles on Zen 3, from L1: int8 10.0 for keys, 12.3 for values; int4 12.1 and
 * 16.3. In floats: f16 12.8 and 12.5, int8 15.8 for both. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_INT16_H
#define LLMC_CPU_ATTENTION_ATTENTION_INT16_H

#if VF_NEON || (VL == 8 && defined(VF_HAVE_256))
#define KV_HAS_WORDS 1
#else
#define KV_HAS_WORDS 0
#endif

/* Per group of a query: the step of its words, and the initial value of its dot products with
 * codes */
typedef struct KvWords {
	float step;
	int32_t start;
} KvWords;

#define KV_LEAST 1e-30f /* below this largest magnitude all words are 0 */

enum {
	KV_ZERO = 8, /* subtracted from unsigned codes */
	KV_WORD = VF_NEON ? 127 * 256 : 32767,
	KV_MULTIPLE = VF_NEON ? 8 : 4, /* dimensions must be a multiple of this */
};

/* int16 weights of a chunk */
typedef struct AttWords {
	int16_t (*p)[KV_PAGE]; /* [page][head][group] */
	float *zeros;          /* [head][group][VL] of the chunk */
	float steps[ATT_PAGES * ATT_MOST_HB], inverse[ATT_PAGES * ATT_MOST_HB]; /* [page][head] */
} AttWords;

/* Returns whether rows of this type use integer arithmetic. 32-bit sums can hold a group of 32, or
 * rows of up to 512. */
LLMC_INLINE int
kv_in_words(const int type, const int dim)
{
#if KV_HAS_WORDS
	return dim % KV_MULTIPLE == 0 && (type == KV_int8_32 || type == KV_int6 ||
	                                  type == KV_int4 || (type == KV_int8 && dim <= 512));
#else
	(void)type;
	(void)dim;
	return 0;
#endif
}

#if KV_HAS_WORDS
/* ---- both forms ---- */
/* Returns the step of the words of elements [from, to) of a query: their largest magnitude /
 * KV_WORD, or NaN if one is NaN. *inverse: factor from elements to words; 0: all words are 0 */
LLMC_INLINE float
kv_word_step(const float *q, int from, int to, float *inverse)
{
	float most = 0, none = 0;

	for (int d = from; d < to; d++) {
		const float x = q[d] < 0 ? -q[d] : q[d];
		most = x > most ? x : most;
		none += q[d] * 0; /* NaN propagates */
	}
	*inverse = most > KV_LEAST && most < 1e38f ? KV_WORD / most : 0;
	return (most + none) * (1.0f / KV_WORD);
}

/* Prefetches the i-th of n slices of a plane. All have equally many lines, except the last, which
 * has the remainder. */
LLMC_INLINE void
att_prefetch_part(const char *p, int i, const int n, const size_t bytes)
{
	const int lines = ((int)bytes + 63) / 64, part = lines / n;

	att_prefetch(p + i * part * 64, part * 64);
	if (i == n - 1)
		att_prefetch(p + n * part * 64, (lines - n * part) * 64);
}

/* Scales of keys j .. j + VL, and zeros relative to code KV_ZERO */
LLMC_INLINE KvScale
kv_word_scale_k(const int type, const int dim, const char *plane, int group, int j)
{
	KvScale s = kv_scale_k(type, dim, plane, group, j);

	if (type == KV_int4)
		s.z = vf_fma(s.s, vf_set1(KV_ZERO), s.z);
	return s;
}

/* Adds one group to the scores of VL keys. acc: integer dot product of the group; sum: sum of the
 * query's elements in the group */
LLMC_INLINE void
kv_word_score(const int type, int group, vi acc, float step, KvScale scale, float sum, float *to)
{
	vf total = group ? vf_load(to) : vf_set1(0);

	if (type == KV_int4)
		total = vf_fma(vf_set1(sum), scale.z, total);
	vf_store(to, vf_fma(vf_of_vi(acc) * scale.s, vf_set1(step), total));
}

/* Adds one page to elements of o, or stores it if the page is the first. */
LLMC_INLINE void
att_word_add(int first, vi acc, float step, float *o)
{
	vf_store(o, vf_fma(vf_of_vi(acc), vf_set1(step), first ? vf_set1(0) : vf_load(o)));
}

/* Multiplies the weights of one row over a page by the largest scales of its values. The largest
 * lane of the vector stored at `to` is the maximum. */
LLMC_INLINE void
kv_weight_most(const float *weights, const float *tops, float *to)
{
	vf x[KV_PAGE / VL];

	LLMC_EACH(i, KV_PAGE / VL, KV_PAGE / VL)
	x[i] = vf_load(weights + i * VL) * vf_load(tops + i * VL);
	for (int n = KV_PAGE / VL; n > 1; n /= 2)
		LLMC_EACH(i, n / 2, KV_PAGE / VL / 2)
	x[i] = vf_max(x[2 * i], x[2 * i + 1]);
	vf_store(to, x[0]);
}

#endif

#if VF_NEON
#include "cpu/attention/attention_bytes.h"
#elif KV_HAS_WORDS
enum { KV_UNIT = 1 /* 32-bit words per unit of q_words: 2 elements */ };

LLMC_INLINE void
vi_store(int32_t *p, vi x)
{
	*(vi_mem *)p = x;
}

LLMC_INLINE int32_t
kv_pair(int lo, int hi)
{
	return (int32_t)((uint32_t)hi << 16 | (uint16_t)lo);
}

/* Converts a query to pairs of words in the order of kv_pairs_k, and computes its KvWords per
 * group. All of them are `stride` apart. */
LLMC_INLINE void
kv_query_words(const int type, const int dim, const float *q, int32_t *to, KvWords *words,
               const int stride)
{
	const int size = kv_group(type, dim), next = type == KV_int4 ? 2 : 1;

	for (int g = 0; g < kv_groups(type, dim); g++) {
		const int end = (g + 1) * size < dim ? (g + 1) * size : dim;
		int sum = 0;
		float inverse;
		const float step = kv_word_step(q, g * size, end, &inverse);
		for (int d = g * size; d < end; d += 4)
			for (int p = 0; p < 2; p++) {
				const float *x = q + d + p * (3 - next);
				const int lo =
				              kv_round(kv_limit(x[0] * inverse, -KV_WORD, KV_WORD)),
				          hi = kv_round(
				              kv_limit(x[next] * inverse, -KV_WORD, KV_WORD));
				to[(d / 2 + p) * stride] = kv_pair(lo, hi);
				sum += lo + hi;
			}
		words[g * stride] = (KvWords){ step, type == KV_int4 ? -KV_ZERO * sum : 0 };
	}
}

/* 32 bytes at p */
LLMC_INLINE __m256i
kv_32_at(const void *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

/* 16 codes of 8 bits, or pairs of 4-bit codes, as words */
LLMC_INLINE __m256i
kv_16_at(const int type, const uint8_t *p)
{
	const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);

	return type == KV_int4 ? _mm256_cvtepu8_epi16(x) : _mm256_cvtepi8_epi16(x);
}

/* Interleaves words a and b of 16 columns. One result has pairs of columns 0-3 and 8-11, the other
 * result the remaining pairs. */
LLMC_INLINE void
kv_pairs_of(__m256i a, __m256i b, vi x[2])
{
	x[0] = (vi)_mm256_unpacklo_epi16(a, b);
	x[1] = (vi)_mm256_unpackhi_epi16(a, b);
}

/* Restores the order of columns. */
LLMC_INLINE void
kv_pairs_sort(vi x[2])
{
	const __m256i a = (__m256i)x[0], b = (__m256i)x[1];

	x[0] = (vi)_mm256_permute2x128_si256(a, b, 0x20);
	x[1] = (vi)_mm256_permute2x128_si256(a, b, 0x31);
}

/* Extracts the low or the high codes of bytes as words */
LLMC_INLINE void
kv_pairs_four(const int high, vi x[2])
{
	LLMC_UNROLL
	for (int i = 0; i < 2; i++)
		x[i] = high ? (vi)_mm256_srli_epi16((__m256i)x[i], 4)
		            : (vi)_mm256_and_si256((__m256i)x[i], _mm256_set1_epi16(15));
}

/* Unpacks 6-bit codes of a page's keys to bytes: [dim][32] */
LLMC_INLINE void
kv_unpack_k(const int dim, const char *plane, uint8_t *to)
{
	const __m256i four = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30),
	              zero = _mm256_set1_epi8(32);
	const char *two = plane + kv_groups(KV_int6, dim) * 16 * KV_PAGE;

	for (int i = 0; i < dim / 4; i++) {
		const __m256i a = kv_32_at(plane + 2 * i * KV_PAGE),
		              b = kv_32_at(plane + (2 * i + 1) * KV_PAGE),
		              h = kv_32_at(two + i * KV_PAGE);
		const __m256i c[4] = { a, _mm256_srli_epi16(a, 4), b, _mm256_srli_epi16(b, 4) };
		const __m256i t[4] = { _mm256_slli_epi16(h, 4), _mm256_slli_epi16(h, 2), h,
			               _mm256_srli_epi16(h, 2) };
		LLMC_UNROLL
		for (int e = 0; e < 4; e++) {
			const __m256i x = _mm256_or_si256(_mm256_and_si256(c[e], four),
			                                  _mm256_and_si256(t[e], high));
			_mm256_storeu_si256((__m256i *)(void *)(to + (4 * i + e) * KV_PAGE),
			                    _mm256_sub_epi8(x, zero));
		}
	}
}

/* Unpacks 6-bit codes of a page's values to bytes: [32][groups of 32] */
LLMC_INLINE void
kv_unpack_v(const int dim, const char *plane, uint8_t *to)
{
	const __m256i four = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30),
	              zero = _mm256_set1_epi8(32);
	const int n = kv_groups(KV_int6, dim) * KV_PAGE;
	const char *two = plane + n * 16;

	for (int i = 0; i < n; i++) {
		const __m256i c = _mm256_broadcastsi128_si256(
		    _mm_loadu_si128((const __m128i *)(const void *)(plane + i * 16)));
		const __m256i h = _mm256_broadcastq_epi64(
		    _mm_loadl_epi64((const __m128i *)(const void *)(two + i * 8)));
		const __m256i a =
		    _mm256_and_si256(_mm256_srlv_epi64(c, _mm256_setr_epi64x(0, 0, 4, 4)), four);
		const __m256i b = _mm256_and_si256(
		    _mm256_slli_epi16(_mm256_srlv_epi64(h, _mm256_setr_epi64x(0, 2, 4, 6)), 4),
		    high);
		_mm256_storeu_si256((__m256i *)(void *)(to + i * 32),
		                    _mm256_sub_epi8(_mm256_or_si256(a, b), zero));
	}
}

/* Returns the plane of codes. 6-bit codes are first unpacked into the buffer. */
LLMC_INLINE const uint8_t *
kv_word_plane(const int type, const int key, const int dim, const char *plane, uint8_t *buffer)
{
	if (type != KV_int6)
		return (const uint8_t *)plane;
	if (key)
		kv_unpack_k(dim, plane, buffer);
	else
		kv_unpack_v(dim, plane, buffer);
	return buffer;
}

/* Loads elements 4 i .. 4 i + 3 of keys j .. j + 15 as two pairs: for int4 elements 0 and 2, then 1
 * and 3; otherwise neighbours. plane: from kv_word_plane */
LLMC_INLINE void
kv_pairs_k(const int type, const uint8_t *plane, int i, int j, vi x[2][2])
{
	if (type == KV_int4) {
		const uint8_t *p = plane + 2 * i * KV_PAGE + j;
		kv_pairs_of(kv_16_at(type, p), kv_16_at(type, p + KV_PAGE), x[0]);
		x[1][0] = x[0][0];
		x[1][1] = x[0][1];
		kv_pairs_four(0, x[0]);
		kv_pairs_four(1, x[1]);
		return;
	}
	LLMC_UNROLL
	for (int e = 0; e < 2; e++) {
		const uint8_t *p = plane + (4 * i + 2 * e) * KV_PAGE + j;
		kv_pairs_of(kv_16_at(type, p), kv_16_at(type, p + KV_PAGE), x[e]);
	}
}

/* Loads elements d .. d + 15 of values j and j + 1 as pairs; d is a multiple of 16, and an odd one
 * if half is 1. */
LLMC_INLINE void
kv_pairs_v(const int type, const int dim, const uint8_t *plane, int j, int d, const int half,
           vi x[2])
{
	const int row =
	    type == KV_int8 ? dim : kv_groups(type, dim) * (type == KV_int4 ? 16 : KV_GROUP);
	const uint8_t *p = plane + j * row + (type == KV_int4 ? d / KV_GROUP * 16 : d);

	kv_pairs_of(kv_16_at(type, p), kv_16_at(type, p + row), x);
	if (type == KV_int4)
		kv_pairs_four(half, x);
}

/* Transposes n columns (scales and zeros of groups) of a page's 32 positions */
LLMC_INLINE void
kv_scales_by_group(const int n, const f16 *s, float *to)
{
	for (int c = 0; c < n; c += 4)
		for (int j = 0; j < KV_PAGE; j += 8) {
			__m256 r[4];
			LLMC_UNROLL
			for (int i = 0; i < 4; i++) {
				const __m128i lo = _mm_loadl_epi64(
				    (const __m128i *)(const void *)(s + (j + i) * n + c));
				const __m128i hi = _mm_loadl_epi64(
				    (const __m128i *)(const void *)(s + (j + i + 4) * n + c));
				r[i] = _mm256_cvtph_ps(_mm_unpacklo_epi64(lo, hi));
			}
			const __m256d a = (__m256d)_mm256_unpacklo_ps(r[0], r[1]),
			              b = (__m256d)_mm256_unpackhi_ps(r[0], r[1]);
			const __m256d d = (__m256d)_mm256_unpacklo_ps(r[2], r[3]),
			              e = (__m256d)_mm256_unpackhi_ps(r[2], r[3]);
			vf_store(to + c * KV_PAGE + j, (vf)_mm256_unpacklo_pd(a, d));
			vf_store(to + (c + 1) * KV_PAGE + j, (vf)_mm256_unpackhi_pd(a, d));
			vf_store(to + (c + 2) * KV_PAGE + j, (vf)_mm256_unpacklo_pd(b, e));
			vf_store(to + (c + 3) * KV_PAGE + j, (vf)_mm256_unpackhi_pd(b, e));
		}
}

/* Computes steps and inverse steps of VL rows, after kv_weight_most. A division per row would wait
 * for the full latency each time. */
LLMC_INLINE void
kv_weight_steps(const float *most, float *step, float *inverse)
{
	__m256 t[8];

	LLMC_EACH(i, 8, 8)
	t[i] = (__m256)vf_load(most + i * VL);
	LLMC_EACH(i, 4, 4)
	t[i] = _mm256_max_ps(_mm256_unpacklo_ps(t[2 * i], t[2 * i + 1]),
	                     _mm256_unpackhi_ps(t[2 * i], t[2 * i + 1]));
	LLMC_EACH(i, 2, 2)
	t[i] = _mm256_max_ps(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
	                     _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
	const vf top = (vf)_mm256_max_ps(_mm256_permute2f128_ps(t[0], t[1], 0x20),
	                                 _mm256_permute2f128_ps(t[0], t[1], 0x31));
	vf_store(step, top * vf_set1(1.0f / KV_WORD));
	vf_store(inverse, (vf)((vi)(vf_set1(KV_WORD) / top) & (vi)(top > vf_set1(KV_LEAST))));
}

/* Converts to words the weights of one row over a page, times the scales of its values: [group][32]
 * in the order of kv_word_at. Adds the contribution of the zeros to zeros [group][VL]; its lanes
 * must be summed later. */
LLMC_INLINE void
kv_weight_words(const int type, const int dim, const float *weights, const float *scales,
                float step, float inverse, int16_t *to, float *zeros)
{
	vf w[4], x[4];

	LLMC_EACH(i, 4, 4)
	{
		w[i] = vf_load(weights + i * VL);
		x[i] = w[i] * vf_set1(inverse);
	}
	for (int g = 0; g < kv_groups(type, dim); g++, scales += kv_scales(type) * KV_PAGE) {
		vf none = vf_set1(0);
		vi y[4];
		LLMC_EACH(i, 4, 4)
		{
			y[i] = (vi)_mm256_cvtps_epi32((__m256)(x[i] * vf_load(scales + i * VL)));
			if (type == KV_int4)
				none = vf_fma(w[i], vf_load(scales + KV_PAGE + i * VL), none);
		}
		LLMC_EACH(i, 2, 2)
		_mm256_storeu_si256((__m256i *)(void *)(to + g * KV_PAGE + i * 16),
		                    _mm256_packs_epi32((__m256i)y[2 * i], (__m256i)y[2 * i + 1]));
		if (type == KV_int4) {
			const vf sum = vf_of_vi((y[0] + y[1]) + (y[2] + y[3])) * vf_set1(-KV_ZERO);
			vf_store(zeros + g * VL,
			         vf_load(zeros + g * VL) + vf_fma(sum, vf_set1(step), none));
		}
	}
}

/* Returns the index of position j among the words of a page's weights. 16 words are in the order
 * 0-3, 8-11, 4-7, 12-15. */
LLMC_INLINE int
kv_word_at(int j)
{
	return j / 16 * 16 + j / 4 % 2 * 8 + j / 8 % 2 * 4 + j % 4;
}

/* Like att_scores. q: gb queries as words, dim / 2 apart */
/* Like att_scores. q: gb queries as words, dim / 2 apart */
LLMC_INLINE void
att_word_scores(const Att a, const int gb, const char *k, const int32_t *q, const KvWords *words,
                const float *sums, float *s, const char *next)
{
	const int size = kv_group(a.kv.k, a.dim) / 4, groups = kv_groups(a.kv.k, a.dim),
	          n = a.dim / 4;
	_Alignas(32) uint8_t buffer[KV_PAGE * KV_MOST_DIM];
	const uint8_t *codes = kv_word_plane(a.kv.k, 1, a.dim, k, buffer);

	for (int j = 0; j < KV_PAGE; j += 16)
		for (int group = 0; group < groups; group++) {
			const int end = (group + 1) * size < n ? (group + 1) * size : n;
			vi acc[8][2];
			LLMC_EACH(g, gb, 8)
			acc[g][0] = acc[g][1] = vi_all(words[g * groups + group].start);
			for (int i0 = group * size; i0 < end; i0 += 2) {
				att_prefetch_part(next, (j / 16 * n + i0) / 2, n,
				                  kv_plane(a.kv.k, a.dim));
				LLMC_EACH(u, 2, 2)
				{
					const int i = i0 + u;
					vi x[2][2];
					if (a.dim % 8 && i >= end)
						continue;
					kv_pairs_k(a.kv.k, codes, i, j, x);
					LLMC_EACH(e, 2, 2)
					LLMC_EACH(g, gb, 8)
					{
						const vi y =
						    vi_bcast4(q + g * (a.dim / 2) + 2 * i + e);
						acc[g][0] = dot_words(acc[g][0], x[e][0], y);
						acc[g][1] = dot_words(acc[g][1], x[e][1], y);
					}
				}
			}
			LLMC_EACH(g, gb, 8)
			kv_pairs_sort(acc[g]);
			LLMC_EACH(i, 2, 2)
			{
				const KvScale scale =
				    kv_word_scale_k(a.kv.k, a.dim, k, group, j + i * VL);
				LLMC_EACH(g, gb, 8)
				kv_word_score(a.kv.k, group, acc[g][i],
				              words[g * groups + group].step, scale,
				              a.kv.k == KV_int4 ? sums[g * groups + group] : 0,
				              s + g * ATT_CHUNK + j + i * VL);
			}
		}
}

/* After the last page, stores o in order, from element d on, as many elements as fit; adds the
 * contribution of the zeros. */
LLMC_INLINE void
att_word_close(const Att a, int d, const float *zero, const float *from, float *o)
{
	const vf add = vf_set1(a.kv.v == KV_int4 ? vf_hsum(vf_load(zero)) : 0);
	vi x[2] = { (vi)vf_load(from), (vi)vf_load(from + VL) };

	kv_pairs_sort(x);
	LLMC_UNROLL
	for (int i = 0; i < 2; i++)
		if (d + i * VL < att_vs(a))
			vf_store(o + i * VL, (vf)x[i] + add);
}

/* Computes sums of elements d .. d + 15 of gb heads over a page. p: weights of their group, `apart`
 * from head to head; half: as in kv_pairs_v */
LLMC_INLINE void
att_word_slice(const Att a, const int gb, const uint8_t *codes, const char *ahead, int d,
               const int half, const int16_t *p, const int apart, vi acc[8][2])
{
	LLMC_EACH(g, gb, 8)
	acc[g][0] = acc[g][1] = vi_all(0);
	for (int j = 0; j < KV_PAGE; j += 8) {
		const int at = kv_word_at(j);
		att_prefetch_part(ahead, d / 4 + j / 8, (a.v_dim + 15) / 16 * (KV_PAGE / 8),
		                  kv_plane(a.kv.v, a.v_dim));
		LLMC_EACH(e, 4, 4)
		{
			vi x[2];
			kv_pairs_v(a.kv.v, a.v_dim, codes, j + 2 * e, d, half, x);
			LLMC_EACH(g, gb, 8)
			{
				const vi y = vi_bcast4(p + g * apart + at + kv_word_at(2 * e));
				acc[g][0] = dot_words(acc[g][0], x[0], y);
				acc[g][1] = dot_words(acc[g][1], x[1], y);
			}
		}
	}
}

/* Adds pages [p0, p0 + n) of a chunk to o of gb heads, from head g0 of hb on. */
LLMC_INLINE void
att_word_values(const Att a, const int hb, const int gb, int g0, const char *const *v,
                const char *const *ahead, int p0, int n, const AttWords *w, float *o)
{
	const int size = kv_group(a.kv.v, a.v_dim), groups = kv_groups(a.kv.v, a.v_dim);
	_Alignas(32) uint8_t buffer[KV_PAGE * KV_MOST_DIM];
	_Alignas(32) float sums[8][KV_MOST_DIM + 32];

	for (int i = 0; i < n; i++) {
		const uint8_t *codes = kv_word_plane(a.kv.v, 0, a.v_dim, v[p0 + i], buffer);
		for (int at = 0; at < a.v_dim; at += 32)
			LLMC_EACH(half, 2, 2)
			{
				const int d = at + 16 * half;
				vi acc[8][2];
				if (a.v_dim % 32 && d >= a.v_dim)
					continue;
				att_word_slice(a, gb, codes, ahead[p0 + i], d, half,
				               w->p[(i * hb + g0) * groups + at / size],
				               groups * KV_PAGE, acc);
				LLMC_EACH(g, gb, 8)
				LLMC_EACH(e, 2, 2)
				att_word_add(i == 0, acc[g][e], w->steps[i * hb + g0 + g],
				             sums[g] + d + e * VL);
			}
	}
	for (int g = 0; g < gb; g++)
		for (int d = 0; d < a.v_dim; d += 16)
			att_word_close(a, d, w->zeros + ((g0 + g) * groups + d / size) * VL,
			               sums[g] + d, o + (g0 + g) * att_vs(a) + d);
}
#endif

#if KV_HAS_WORDS
/* Loads scales of a page's values, and their zeros relative to code KV_ZERO: [group][scale,
 * zero][32]. Only `end` values are valid. tops: largest scale of each value */
LLMC_INLINE void
kv_word_scales(const int type, const int dim, const char *plane, int end, float *to, float *tops)
{
	const int n = kv_groups(type, dim) * kv_scales(type);
	const f16 *s = kv_scales_of(type, dim, plane);
	f16 buffer[KV_ROOM + 4];

	for (int j = 0; n == 1 && j < KV_PAGE; j += VL)
		vf_store(to + j, vf_load_f16(s + j));
	if (n > 1 && n % 4) { /* lanes after the last valid position must be zero */
		memcpy(buffer, s, (size_t)(KV_PAGE * n) * sizeof *s);
		s = buffer;
	}
	if (n > 1)
		kv_scales_by_group(n, s, to);
	for (int c = 0; type == KV_int4 && c < n; c += 2)
		for (int j = c * KV_PAGE; j < (c + 1) * KV_PAGE; j += VL)
			vf_store(to + KV_PAGE + j, vf_fma(vf_load(to + j), vf_set1(KV_ZERO),
			                                  vf_load(to + KV_PAGE + j)));
	for (int c = 0; end < KV_PAGE && c < n; c++)
		memset(to + c * KV_PAGE + end, 0, (size_t)(KV_PAGE - end) * sizeof *to);
	LLMC_EACH(i, KV_PAGE / VL, KV_PAGE / VL)
	{
		vf top = vf_load(to + i * VL);
		for (int c = kv_scales(type); c < n; c += kv_scales(type))
			top = vf_max(vf_load(to + c * KV_PAGE + i * VL), top);
		vf_store(tops + i * VL, top);
	}
}

/* Converts the weights of pages [p0, p0 + n) of a chunk to words. Positions below hi are valid. */
LLMC_INLINE void
att_word_weights(const Att a, const int hb, const char *const *v, int p0, int n, int hi,
                 const float *s, AttWords *w)
{
	const int groups = kv_groups(a.kv.v, a.v_dim), per = kv_scales(a.kv.v) * groups * KV_PAGE;
	_Alignas(32) float scales[ATT_PAGES * KV_ROOM], tops[KV_PAGE],
	    most[ATT_PAGES * ATT_MOST_HB * VL];

	if (a.kv.v == KV_int4)
		memset(w->zeros, 0, (size_t)(hb * groups * VL) * sizeof *w->zeros);
	for (int i = 0; i < n; i++) {
		const int end = hi - (p0 + i) * KV_PAGE;
		kv_word_scales(a.kv.v, a.v_dim, v[p0 + i], end < KV_PAGE ? end : KV_PAGE,
		               scales + i * per, tops);
		for (int g = 0; g < hb; g++)
			kv_weight_most(s + g * ATT_CHUNK + (p0 + i) * KV_PAGE, tops,
			               most + (i * hb + g) * VL);
	}
	for (int i = 0; i < n * hb; i += VL)
		kv_weight_steps(most + i * VL, w->steps + i, w->inverse + i);
	for (int i = 0; i < n; i++)
		for (int g = 0; g < hb; g++)
			kv_weight_words(a.kv.v, a.v_dim, s + g * ATT_CHUNK + (p0 + i) * KV_PAGE,
			                scales + i * per, w->steps[i * hb + g],
			                w->inverse[i * hb + g], w->p[(i * hb + g) * groups],
			                w->zeros + g * groups * VL);
}
#endif

#endif
