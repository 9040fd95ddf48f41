/* Integer attention on Arm: the words of cpu/attention/attention_int16.h as two signed bytes,
 * 256 hi + lo, which multiply codes without loss.
 *
 *   codes   of a page:  [8 rows][pair of columns][2 columns][8 rows]
 *           keys: rows are elements, columns positions
 *           values: rows are positions, columns elements
 *   words   [8 rows][hi 8, lo 8]
 *
 *   i8mm    smmla: two columns by hi and lo, 32 multiply-adds
 *   neon    sdot: two columns by hi, then by lo, 16 each
 *
 * Both give the same integers. An fp32 instruction does 4 multiply-adds, and codes would have to be
 * converted first. KV_ZERO is subtracted from unsigned codes when a page is unpacked. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_BYTES_H
#define LLMC_CPU_ATTENTION_ATTENTION_BYTES_H

#include "cpu/attention/attention_base.h"

typedef int8_t vb __attribute__((vector_size(16), may_alias));
typedef uint8_t vbu __attribute__((vector_size(16), may_alias));
typedef int16_t vh __attribute__((vector_size(16), may_alias));
typedef vb vb_mem __attribute__((aligned(1)));

enum {
	KV_UNIT = 4, /* 32-bit words per unit of q_words: 8 elements */
	KV_PAIRS =
	    VF_MMLA ? 4 : 2, /* pairs of columns processed at once: 24 accumulators for 6 rows */
};

LLMC_INLINE vb
vb_load(const void *p)
{
	return *(const vb_mem *)p;
}

LLMC_INLINE void
vb_store(void *p, vb x)
{
	*(vb_mem *)p = x;
}

/* ---- words ---- */
/* Converts a query to words, and computes its KvWords per group. All of them are `stride` apart. */
LLMC_INLINE void
kv_query_words(const int type, const int dim, const float *q, int32_t *to, KvWords *words,
               const int stride)
{
	const int size = kv_group(type, dim);

	for (int g = 0; g < kv_groups(type, dim); g++) {
		const int end = (g + 1) * size < dim ? (g + 1) * size : dim;
		float inverse;
		const float step = kv_word_step(q, g * size, end, &inverse);
		for (int d = g * size; d < end; d++) {
			const int x = kv_round(kv_limit(q[d] * inverse, -KV_WORD, KV_WORD));
			int8_t *const byte =
			    (int8_t *)(void *)(to + d / 8 * stride * KV_UNIT) + d % 8;
			byte[0] = (int8_t)((x + 128) >> 8);
			byte[8] = (int8_t)x;
		}
		words[g * stride] = (KvWords){ step, 0 };
	}
}

/* nearest even; |x| < 2^22 */
LLMC_INLINE vi
kv_round_all(vf x)
{
#if defined(VF_NATIVE_NEON)
	return (vi)vcvtnq_s32_f32((float32x4_t)x);
#else
	const vf magic = vf_set1(12582912.0f);
	return __builtin_convertvector((x + magic) - magic, vi);
#endif
}

/* Stores eight words */
LLMC_INLINE void
kv_put_words(void *to, vi a, vi b)
{
	const vh x = VF_SHUFFLE((vh)a, (vh)b, 0, 2, 4, 6, 8, 10, 12, 14);
	const vb hi = (vb)(x + 128), lo = (vb)x;

	vb_store(to, VF_SHUFFLE(hi, lo, 1, 3, 5, 7, 9, 11, 13, 15, 16, 18, 20, 22, 24, 26, 28, 30));
}

/* Computes steps and inverse steps of VL rows, after kv_weight_most. */
LLMC_INLINE void
kv_weight_steps(const float *most, float *step, float *inverse)
{
	vf top = { 0 };

	LLMC_EACH(i, VL, VL)
	top[i] = vf_hmax(vf_load(most + i * VL));
	vf_store(step, top * vf_set1(1.0f / KV_WORD));
	vf_store(inverse, (vf)((vi)(vf_set1(KV_WORD) / top) & (vi)(top > vf_set1(KV_LEAST))));
}

/* Converts to words the weights of one row over a page, times the scales of its values: [group][8
 * positions][hi 8, lo 8]. Adds the contribution of the zeros to zeros [group][VL]; its lanes must
 * be summed later. */
LLMC_INLINE void
kv_weight_words(const int type, const int dim, const float *weights, const float *scales,
                float step, float inverse, int16_t *to, float *zeros)
{
	(void)step;
	for (int g = 0; g < kv_groups(type, dim); g++, scales += kv_scales(type) * KV_PAGE) {
		vf none = vf_set1(0);
		LLMC_EACH(i, KV_PAGE / 8, KV_PAGE / 8)
		{
			vi y[2];
			LLMC_EACH(e, 2, 2)
			{
				const int at = 8 * i + 4 * e;
				const vf w = vf_load(weights + at);
				y[e] = kv_round_all(w * vf_set1(inverse) * vf_load(scales + at));
				if (type == KV_int4)
					none = vf_fma(w, vf_load(scales + KV_PAGE + at), none);
			}
			kv_put_words(to + g * KV_PAGE + 8 * i, y[0], y[1]);
		}
		if (type == KV_int4)
			vf_store(zeros + g * VL, vf_load(zeros + g * VL) + none);
	}
}

/* Transposes n columns (scales and zeros of groups) of a page's 32 positions */
LLMC_INLINE void
kv_scales_by_group(const int n, const f16 *s, float *to)
{
	for (int c = 0; c < n; c += 4)
		for (int j = 0; j < KV_PAGE; j += 4) {
			vf r[4];
			LLMC_EACH(i, 4, 4)
			r[i] = vf_load_f16(s + (j + i) * n + c);
			const vf a = VF_SHUFFLE(r[0], r[1], 0, 4, 1, 5),
			         b = VF_SHUFFLE(r[0], r[1], 2, 6, 3, 7),
			         d = VF_SHUFFLE(r[2], r[3], 0, 4, 1, 5),
			         e = VF_SHUFFLE(r[2], r[3], 2, 6, 3, 7);
			vf_store(to + c * KV_PAGE + j, VF_SHUFFLE(a, d, 0, 1, 4, 5));
			vf_store(to + (c + 1) * KV_PAGE + j, VF_SHUFFLE(a, d, 2, 3, 6, 7));
			vf_store(to + (c + 2) * KV_PAGE + j, VF_SHUFFLE(b, e, 0, 1, 4, 5));
			vf_store(to + (c + 3) * KV_PAGE + j, VF_SHUFFLE(b, e, 2, 3, 6, 7));
		}
}

/* ---- codes ---- */
/* low codes of bytes, or high ones */
LLMC_INLINE vb
kv_half_codes(vbu x, const int high)
{
	return high ? (vb)(x >> 4) : (vb)(x & 15);
}

/* two more bits of each code, from bit `shift` of its byte */
LLMC_INLINE vb
kv_code_six(vb low, vbu bits, const int shift)
{
	return (vb)((vbu)low | (bits >> shift & 3) << 4) - 32;
}

/* Loads elements d .. d + 7 of keys j .. j + 15. */
LLMC_INLINE void
kv_rows_k(const int type, const int dim, const uint8_t *p, int d, int j, vb x[8])
{
	LLMC_EACH(r, kv_wide(type) ? 8 : 0, 8)
	x[r] = vb_load(p + (d + r) * KV_PAGE + j);
	LLMC_EACH(r, kv_wide(type) ? 0 : 4, 4)
	{
		const vbu c = (vbu)vb_load(p + (d / 2 + r) * KV_PAGE + j);
		x[2 * r] = kv_half_codes(c, 0);
		x[2 * r + 1] = kv_half_codes(c, 1);
	}
	LLMC_EACH(e, type == KV_int6 ? 2 : 0, 2)
	{
		const vbu h =
		    (vbu)vb_load(p + (kv_groups(type, dim) * 16 + d / 4 + e) * KV_PAGE + j);
		LLMC_EACH(i, 4, 4)
		x[4 * e + i] = kv_code_six(x[4 * e + i], h, 2 * i);
	}
	LLMC_EACH(r, type == KV_int4 ? 8 : 0, 8)
	x[r] = x[r] - KV_ZERO;
}

/* Loads elements d .. d + 15 of values j .. j + 7; d is a multiple of 16, and an odd one if half is
 * 1. */
LLMC_INLINE void
kv_rows_v(const int type, const int dim, const uint8_t *p, int j, int d, const int half, vb x[8])
{
	const int groups = kv_groups(type, dim), row = type == KV_int8 ? dim : groups * KV_GROUP;

	LLMC_EACH(r, 8, 8)
	{
		const int at = (j + r) * groups + d / KV_GROUP;
		if (kv_wide(type)) {
			x[r] = vb_load(p + (j + r) * row + d);
			continue;
		}
		x[r] = kv_half_codes((vbu)vb_load(p + at * 16), half);
		if (type == KV_int4)
			x[r] = x[r] - KV_ZERO;
		if (type == KV_int6) {
			uint64_t h[2];
			vb bits;
			memcpy(h, p + groups * 16 * KV_PAGE + at * 8, 8);
			h[1] = h[0] >> 2; /* elements 8 to 15 of a half */
			memcpy(&bits, h, 16);
			x[r] = kv_code_six(x[r], (vbu)bits, 4 * half);
		}
	}
}

#define VB_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VB_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* Transposes eight rows of 16 columns to [pair of columns][2][8]. */
LLMC_INLINE void
kv_columns(const vb x[8], int8_t *to)
{
	vb a[8];
	vh b[8];

	LLMC_EACH(i, 4, 4)
	{
		a[2 * i] = VF_SHUFFLE(x[2 * i], x[2 * i + 1], VB_LOW);
		a[2 * i + 1] = VF_SHUFFLE(x[2 * i], x[2 * i + 1], VB_HIGH);
	}
	LLMC_EACH(half, 2, 2)
	LLMC_EACH(i, 2, 2)
	{
		const vh p = (vh)a[4 * i + half], q = (vh)a[4 * i + 2 + half];
		b[4 * half + 2 * i] = VF_SHUFFLE(p, q, 0, 8, 1, 9, 2, 10, 3, 11);
		b[4 * half + 2 * i + 1] = VF_SHUFFLE(p, q, 4, 12, 5, 13, 6, 14, 7, 15);
	}
	LLMC_EACH(half, 2, 2)
	LLMC_EACH(i, 2, 2)
	{
		const vi p = (vi)b[4 * half + i], q = (vi)b[4 * half + 2 + i];
		vb_store(to + (4 * half + 2 * i) * 16, (vb)VF_SHUFFLE(p, q, 0, 4, 1, 5));
		vb_store(to + (4 * half + 2 * i + 1) * 16, (vb)VF_SHUFFLE(p, q, 2, 6, 3, 7));
	}
}

/* Unpacks a page's keys to [dim / 8][16 pairs of keys][2][8]; next: a plane to prefetch, or NULL */
LLMC_INLINE void
kv_unpack_k(const int type, const int dim, const char *plane, const char *next, int8_t *to)
{
	for (int d = 0; d < dim; d += 8) {
		if (next)
			att_prefetch_part(next, d / 8, dim / 8, kv_plane(type, dim));
		LLMC_EACH(j, 2, 2)
		{
			vb x[8];
			kv_rows_k(type, dim, (const uint8_t *)plane, d, 16 * j, x);
			kv_columns(x, to + (2 * d + 8 * j) * 16);
		}
	}
}

/* Unpacks a page's values to [dim / 16][4][8 pairs of elements][2][8 positions] */
LLMC_INLINE void
kv_unpack_v(const int type, const int dim, const char *plane, const char *next, int8_t *to)
{
	const int n = (dim + 15) / 16;

	for (int d = 0; d < dim; d += 32) {
		LLMC_EACH(half, 2, 2)
		{
			const int i = d / 16 + half;
			if (i >= n)
				continue;
			if (next)
				att_prefetch_part(next, i, n, kv_plane(type, dim));
			for (int j = 0; j < KV_PAGE; j += 8) {
				vb x[8];
				kv_rows_v(type, dim, (const uint8_t *)plane, j, 16 * i, half, x);
				kv_columns(x, to + (4 * i + j / 8) * 128);
			}
		}
	}
}

/* ---- sums ---- */
/* Adds to acc the dot products of two columns with hi and lo of eight words. */
LLMC_INLINE void
kv_multiply(vi acc[2], vb x, vb word)
{
#if VF_MMLA && defined(VF_NATIVE_NEON)
	acc[0] = (vi)vmmlaq_s32((int32x4_t)acc[0], (int8x16_t)x, (int8x16_t)word);
#elif defined(VF_NATIVE_NEON)
	const int64x2_t w = (int64x2_t)word;
	acc[0] = (vi)vdotq_s32((int32x4_t)acc[0], (int8x16_t)x, (int8x16_t)vdupq_laneq_s64(w, 0));
	acc[1] = (vi)vdotq_s32((int32x4_t)acc[1], (int8x16_t)x, (int8x16_t)vdupq_laneq_s64(w, 1));
#else
	for (int column = 0; column < 2; column++)
		for (int i = 0; i < 8; i++) {
			acc[0][2 * column] += x[8 * column + i] * word[i];
			acc[0][2 * column + 1] += x[8 * column + i] * word[8 + i];
		}
#endif
}

/* Returns the sums of four columns from the accumulators of two pairs. */
LLMC_INLINE vi
kv_dots(const vi a[2], const vi b[2])
{
#if !VF_MMLA && defined(VF_NATIVE_NEON)
	const vi hi = (vi)vpaddq_s32((int32x4_t)a[0], (int32x4_t)b[0]),
	         lo = (vi)vpaddq_s32((int32x4_t)a[1], (int32x4_t)b[1]);
#else
	const vi hi = VF_SHUFFLE(a[0], b[0], 0, 2, 4, 6), lo = VF_SHUFFLE(a[0], b[0], 1, 3, 5, 7);
#endif
	return (hi << 8) + lo;
}

/* Multiplies KV_PAIRS pairs of columns, of n * 8 rows each, by `rows` rows of words. From one group
 * of 8 to the next are `next` bytes of codes and `step` bytes of words; rows of words are `apart`
 * bytes apart. to [row][column], four per vector */
LLMC_INLINE void
kv_sums(const int rows, int n, const int8_t *x, const int next, const int8_t *words, const int step,
        const int apart, vi to[8][KV_PAIRS / 2])
{
	vi acc[8][KV_PAIRS][2];

	LLMC_EACH(r, rows, 8)
	LLMC_EACH(p, KV_PAIRS, KV_PAIRS)
	acc[r][p][0] = acc[r][p][1] = vi_all(0);
	for (int i = 0; i < n; i++, x += next, words += step) {
		vb v[KV_PAIRS];
		LLMC_EACH(p, KV_PAIRS, KV_PAIRS)
		v[p] = vb_load(x + p * 16);
		LLMC_EACH(r, rows, 8)
		{
			const vb word = vb_load(words + r * apart);
			LLMC_EACH(p, KV_PAIRS, KV_PAIRS)
			kv_multiply(acc[r][p], v[p], word);
		}
	}
	LLMC_EACH(r, rows, 8)
	LLMC_EACH(p, KV_PAIRS / 2, KV_PAIRS / 2)
	to[r][p] = kv_dots(acc[r][2 * p], acc[r][2 * p + 1]);
}

/* Computes scores s [row][ATT_CHUNK] of a page for `rows` rows. x: from kv_unpack_k. q: words of
 * the rows; q_step: bytes from one group of 8 elements to the next; q_apart: bytes from row to row.
 * words, sums: per group and row, group_step and row_step apart */
LLMC_INLINE void
att_byte_scores(const Att a, const int rows, const char *k, const int8_t *x, const int8_t *q,
                const int q_step, const int q_apart, const KvWords *words, const float *sums,
                const int group_step, const int row_step, float *s)
{
	const int size = kv_group(a.kv.k, a.dim), groups = kv_groups(a.kv.k, a.dim);

	for (int j = 0; j < KV_PAGE; j += 2 * KV_PAIRS)
		for (int group = 0; group < groups; group++) {
			const int first = group * size / 8,
			          end = (group + 1) * size < a.dim ? (group + 1) * size : a.dim;
			vi dots[8][KV_PAIRS / 2];
			kv_sums(rows, end / 8 - first, x + first * 256 + j * 8, 256,
			        q + first * q_step, q_step, q_apart, dots);
			LLMC_EACH(p, KV_PAIRS / 2, KV_PAIRS / 2)
			{
				const KvScale scale =
				    kv_word_scale_k(a.kv.k, a.dim, k, group, j + p * VL);
				LLMC_EACH(r, rows, 8)
				{
					const int at = group * group_step + r * row_step;
					kv_word_score(a.kv.k, group, dots[r][p], words[at].step,
					              scale, a.kv.k == KV_int4 ? sums[at] : 0,
					              s + r * ATT_CHUNK + j + p * VL);
				}
			}
		}
}

/* Adds a page to o [row][apart] of `rows` rows. x: from kv_unpack_v. p: words of the weights,
 * p_apart bytes from row to row; step [row]: step of these words */
LLMC_INLINE void
att_byte_values(const Att a, const int rows, const int8_t *x, const int16_t *p, const int p_apart,
                const float *step, const int first, float *o, const int apart)
{
	const int size = kv_group(a.kv.v, a.v_dim);

	for (int d = 0; d < a.v_dim; d += 2 * KV_PAIRS) {
		const int8_t *const words = (const int8_t *)(p + d / size * KV_PAGE);
		vi dots[8][KV_PAIRS / 2];
		kv_sums(rows, KV_PAGE / 8, x + d / 16 * 512 + d % 16 * 8, 128, words, 16, p_apart,
		        dots);
		LLMC_EACH(i, KV_PAIRS / 2, KV_PAIRS / 2)
		if (d + i * VL < a.v_dim)
			LLMC_EACH(r, rows, 8)
		att_word_add(first, dots[r][i], step[r], o + r * apart + d + i * VL);
	}
}

/* Like att_scores. q: gb queries as words, dim / 2 apart */
/* Like att_scores. q: gb queries as words, dim / 2 apart */
LLMC_INLINE void
att_word_scores(const Att a, const int gb, const char *k, const int32_t *q, const KvWords *words,
                const float *sums, float *s, const char *next)
{
	_Alignas(16) int8_t x[KV_PAGE * KV_MOST_DIM];

	kv_unpack_k(a.kv.k, a.dim, k, next, x);
	att_byte_scores(a, gb, k, x, (const int8_t *)q, 16, 2 * a.dim, words, sums, 1,
	                kv_groups(a.kv.k, a.dim), s);
}

/* Adds pages [p0, p0 + n) of a chunk to o of gb heads, from head g0 of hb on. */
LLMC_INLINE void
att_word_values(const Att a, const int hb, const int gb, int g0, const char *const *v,
                const char *const *ahead, int p0, int n, const AttWords *w, float *o)
{
	const int size = kv_group(a.kv.v, a.v_dim), groups = kv_groups(a.kv.v, a.v_dim);
	_Alignas(16) int8_t x[KV_PAGE * KV_MOST_DIM];

	o += g0 * att_vs(a);
	for (int i = 0; i < n; i++) {
		kv_unpack_v(a.kv.v, a.v_dim, v[p0 + i], ahead[p0 + i], x);
		att_byte_values(a, gb, x, w->p[(i * hb + g0) * groups], groups * 2 * KV_PAGE,
		                w->steps + i * hb + g0, i == 0, o, att_vs(a));
	}
	for (int g = 0; a.kv.v == KV_int4 && g < gb; g++)
		for (int d = 0; d < a.v_dim; d += VL) {
			float *const to = o + g * att_vs(a) + d;
			const float *zero = w->zeros + ((g0 + g) * groups + d / size) * VL;
			vf_store(to, vf_load(to) + vf_set1(vf_hsum(vf_load(zero))));
		}
}

#endif
