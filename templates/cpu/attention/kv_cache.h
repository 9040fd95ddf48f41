/* Pages of the KV cache: 32 positions each. The page of one layer holds planes of k, one per head,
 * then planes of v. With latent attention it holds latent and key [32][rank + rope]. The type of an
 * element, KV_f32 ... KV_int4, is constant after inlining. formats/kv_type.h defines the types,
 * ref/ref_kv.c the order of their codes. Unquantised types: k [D][32], v [32][V]. A kernel must not
 * read positions at or beyond kv_len: their content is undefined. Recent and first positions may
 * also be in exact pages (KvExact; plan/plan.h describes where those are). A latent and its key are
 * stored as one row of values, in an unquantised type or one with groups.
 *
 * All readers add the same terms in the same order. Keys are read as codes: the dot product of a
 * group with the query is summed, then scaled. Then the group's zero times the sum of the query's
 * elements is added (kv_score). Per-channel keys are read as code * scale + zero. Values are read
 * as code * scale + zero if groups have scales. Otherwise they are read as codes, and the row's
 * scale multiplies the weight. */
#ifndef LLMC_CPU_ATTENTION_KV_CACHE_H
#define LLMC_CPU_ATTENTION_KV_CACHE_H

#include "cpu/gemm/int_dot.h"
#include "common/kv_types.h"
#include "common/llmc_step.h"

enum { KV_PAGE = 32, KV_GROUP = 32, KV_MOST_DIM = 1024 /* largest dim of quantised rows */ };

#define KV_TYPE(name, capitals, bits, group, scales) KV_##name,
enum { KV_TYPES(KV_TYPE) };
#undef KV_TYPE

/* scale and zero of a group, per lane */
typedef struct KvScale {
	vf s, z;
} KvScale;

/* ---- sizes ---- */
LLMC_INLINE int
kv_plain(const int type)
{
	return type <= KV_bf16;
}

/* Returns whether keys have a scale per channel, shared by all positions of a page. */
LLMC_INLINE int
kv_by_channel(const int type)
{
	return type == KV_int4c;
}

/* Returns whether groups of 32 elements have their own scales. If not, a row or a channel has one
 * scale. */
LLMC_INLINE int
kv_grouped(const int type)
{
	return type >= KV_f8_32 && !kv_by_channel(type);
}

LLMC_INLINE int
kv_is_f8(const int type)
{
	return type == KV_f8 || type == KV_f8_32;
}

/* Returns whether codes have 8 bits. */
LLMC_INLINE int
kv_wide(const int type)
{
	return type >= KV_f8 && type <= KV_int8_32;
}

/* bytes per element of an unquantised type */
LLMC_INLINE int
kv_bytes(const int type)
{
	return type == KV_f32 ? 4 : 2;
}

LLMC_INLINE int
kv_groups(const int type, const int dim)
{
	return kv_grouped(type) ? (dim + KV_GROUP - 1) / KV_GROUP : 1;
}

/* elements per group */
LLMC_INLINE int
kv_group(const int type, const int dim)
{
	return kv_grouped(type) ? KV_GROUP : dim;
}

/* bytes of a row's codes */
LLMC_INLINE int
kv_codes(const int type, const int dim)
{
	return kv_plain(type)     ? dim * kv_bytes(type)
	       : type == KV_int6  ? kv_groups(type, dim) * 24
	       : type == KV_int4  ? kv_groups(type, dim) * 16
	       : type == KV_int4c ? (dim + KV_GROUP - 1) / KV_GROUP * 16
	       : kv_grouped(type) ? kv_groups(type, dim) * KV_GROUP
	                          : dim;
}

/* numbers stored per group: the scale, and the zero if there is one */
LLMC_INLINE int
kv_scales(const int type)
{
	return kv_plain(type) ? 0 : type == KV_int4 || type == KV_int4c ? 2 : 1;
}

LLMC_INLINE size_t
kv_plane(const int type, const int dim)
{
	return (size_t)KV_PAGE * (size_t)(kv_codes(type, dim) +
	                                  2 * kv_scales(type) *
	                                      (kv_by_channel(type) ? (dim + KV_GROUP - 1) / KV_GROUP
	                                                           : kv_groups(type, dim)));
}

/* elements per Hadamard matrix; 0: rows are not rotated */
LLMC_INLINE int
kv_rotated(const int type, const int rotate, const int dim)
{
	return rotate && !kv_plain(type) && !kv_by_channel(type) ? dim & -dim : 0;
}

/* ---- unquantised elements ---- */
LLMC_INLINE vf
kv_load_bf16(const uint16_t *p)
{
	return (vf)(vi_of_u16((const uint8_t *)(const void *)p) << 16);
}

/* Loads elements i .. i + VL. */
LLMC_INLINE vf
kv_load(const int type, const void *p, int64_t i)
{
	return type == KV_f32    ? vf_load((const float *)p + i)
	       : type == KV_bf16 ? kv_load_bf16((const uint16_t *)p + i)
	                         : vf_load_f16((const f16 *)p + i);
}

LLMC_INLINE vf
kv_load_n(const int type, const void *p, int64_t i, int n)
{
	if (type == KV_bf16) {
		uint16_t x[VL] = { 0 };
		for (int k = 0; k < n; k++)
			x[k] = ((const uint16_t *)p)[i + k];
		return kv_load_bf16(x);
	}
	return type == KV_f32 ? vf_load_n((const float *)p + i, n)
	                      : vf_load_f16_n((const f16 *)p + i, n);
}

/* Converts to f16; too large values become the largest finite one. An infinity would become 0 * inf
 * = NaN in rows that do not attend to the position. */
LLMC_INLINE f16
kv_half(float x)
{
	x = x > 65504.0f ? 65504.0f : x;
	return f16_put(x < -65504.0f ? -65504.0f : x);
}

LLMC_INLINE void
kv_put(const int type, void *p, int64_t i, float x)
{
	if (type == KV_f32) {
		((float *)p)[i] = x;
	} else if (type == KV_bf16) {
		uint32_t u;
		memcpy(&u, &x, 4);
		((uint16_t *)p)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
	} else {
		((f16 *)p)[i] = kv_half(x);
	}
}

/* ---- codes ---- */
/* VL e4m3 codes as values / 256. An f16 has the same bits below the sign, shifted left, and a
 * larger exponent bias. */
LLMC_INLINE vf
kv_of_e4m3(const uint8_t *p)
{
#if defined(VF_NATIVE_512)
	__m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
	/* clear the second copy of the sign */
	c = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16((short)0xbfff));
	return (vf)_mm512_cvtph_ps(c);
#elif VL == 8 && defined(VF_HAVE_256)
	__m128i c = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
	c = _mm_and_si128(_mm_slli_epi16(c, 7), _mm_set1_epi16((short)0xbfff));
	return (vf)_mm256_cvtph_ps(c);
#else
	vi c = vi_of_u8(p);
	vf x = (vf)((c & vi_set1(0x7f)) << 20) * (vf)vi_set1(0x77800000); /* 2^112 */
	return (vf)((vi)x | (c & vi_set1(0x80)) << 24);
#endif
}

/* Returns whether the type has one scale per row. Readers of such types use codes, and multiply the
 * scale into sums over codes (scores) or into the codes' other factor (weights). */
LLMC_INLINE int
kv_folded(const int type)
{
	return !kv_plain(type) && !kv_grouped(type) && !kv_by_channel(type);
}

/* VL codes of 8 bits at p */
LLMC_INLINE vf
kv_bytes_at(const int type, const uint8_t *p)
{
	if (kv_is_f8(type))
		return kv_of_e4m3(p);
	return vf_of_vi(vi_of_s8(p));
}

/* VL scales at p; for types whose codes are read as values / 256, times 256 */
LLMC_INLINE vf
kv_scale_at(const int type, const f16 *p)
{
	vf s = vf_load_f16(p);

	if (kv_is_f8(type))
		s = s * vf_set1(256);
	return s;
}

/* Converts 4-bit codes in the low bits of each lane; higher bits are ignored. */
LLMC_INLINE vf
kv_code4(vi c)
{
#if defined(VF_NATIVE_512)
	return (vf)_mm512_permutexvar_ps(
	    (__m512i)c, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
#else
	return vf_of_vi(c & vi_set1(15));
#endif
}

/* Converts 6-bit codes: four low bits per lane of c, two high bits of `high`. The result is 32 too
 * large. */
LLMC_INLINE vf
kv_code6(vi c, vi high)
{
#if defined(VF_NATIVE_512)
	return kv_code4(c) + (vf)_mm512_permutexvar_ps(
	                         (__m512i)high, _mm512_setr_ps(-32, -16, 0, 16, -32, -16, 0, 16,
	                                                       -32, -16, 0, 16, -32, -16, 0, 16));
#else
	return vf_of_vi(((c & vi_set1(15)) | (high & vi_set1(3)) << 4) - vi_set1(32));
#endif
}

/* ---- reading keys: positions j .. j + VL ---- */
LLMC_INLINE const f16 *
kv_scales_of(const int type, const int dim, const char *plane)
{
	return (const f16 *)(const void *)(plane + KV_PAGE * kv_codes(type, dim));
}

/* scale and zero of group g */
LLMC_INLINE KvScale
kv_scale_k(const int type, const int dim, const char *plane, int g, int j)
{
	const f16 *s = kv_scales_of(type, dim, plane) + g * KV_PAGE + j;
	KvScale v = { vf_set1(0), vf_set1(0) };

	if (!kv_plain(type) && !kv_by_channel(type))
		v.s = kv_scale_at(type, s);
	if (type == KV_int4)
		v.z = kv_scale_at(type, s + kv_groups(type, dim) * KV_PAGE);
	return v;
}

/* Adds one group to scores. acc: dot product with the group's codes; query: sum of the query's
 * elements in the group; first: `total` is not initialised yet */
LLMC_INLINE vf
kv_score(const int type, int first, vf total, vf acc, KvScale s, vf query)
{
	if (kv_plain(type) || kv_by_channel(type))
		return acc;
	if (type == KV_int4)
		acc = vf_fma(acc, s.s, query * s.z);
	else
		acc = acc * s.s;
	if (first)
		return acc;
	return total + acc;
}

/* Sums a query's elements per group to `to` [kv_groups], if kv_score needs the sums. */
LLMC_INLINE void
kv_query_sums(const int type, const int dim, const float *query, float *to, int stride)
{
	for (int g = 0; type == KV_int4 && g < kv_groups(type, dim); g++) {
		float sum = 0;
		for (int d = g * KV_GROUP; d < (g + 1) * KV_GROUP && d < dim; d++)
			sum += query[d];
		to[g * stride] = sum;
	}
}

/* Loads scales of per-channel keys to `to`, and their zeros from KV_MOST_DIM on: 2 KV_MOST_DIM
 * floats. */
LLMC_INLINE void
kv_channels(const int type, const int dim, const char *plane, float *to)
{
	const int n = (dim + KV_GROUP - 1) / KV_GROUP * KV_GROUP;
	const f16 *s = kv_scales_of(type, dim, plane);

	for (int i = 0; kv_by_channel(type) && i < n; i += VL) {
		vf_store(to + i, vf_load_f16(s + i));
		vf_store(to + KV_MOST_DIM + i, vf_load_f16(s + n + i));
	}
}

/* Loads elements 4 i .. 4 i + 3, or as many of them as exist: codes of quantised types, values of
 * per-channel types. channels: from kv_channels */
LLMC_INLINE void
kv_keys(const int type, const int dim, const char *plane, int i, int j, const float *channels,
        vf *x)
{
	const uint8_t *p = (const uint8_t *)plane;

	if (kv_plain(type) || kv_wide(type)) {
		LLMC_UNROLL
		for (int e = 0; e < 4; e++)
			if (dim % 4 == 0 || 4 * i + e < dim) {
				const int at = (4 * i + e) * KV_PAGE + j;
				if (kv_plain(type))
					x[e] = kv_load(type, plane, at);
				else
					x[e] = kv_bytes_at(type, p + at);
			}
		return;
	}
	vi a = vi_of_u8(p + 2 * i * KV_PAGE + j), b = vi_of_u8(p + (2 * i + 1) * KV_PAGE + j),
	   c[4] = { a, a >> 4, b, b >> 4 };
	if (type == KV_int6) {
		vi h = vi_of_u8(p + (kv_groups(type, dim) * 16 + i) * KV_PAGE + j);
		LLMC_UNROLL
		for (int e = 0; e < 4; e++)
			x[e] = kv_code6(c[e], h >> (2 * e));
		return;
	}
	LLMC_UNROLL
	for (int e = 0; e < 4; e++) {
		x[e] = kv_code4(c[e]);
		if (kv_by_channel(type))
			x[e] = vf_fma(x[e], vf_set1(channels[4 * i + e]),
			              vf_set1(channels[KV_MOST_DIM + 4 * i + e]));
	}
}

/* Loads element d of VL positions from j on, as kv_keys does, for types that store each element
 * separately. */
LLMC_INLINE vf
kv_key(const int type, const char *plane, int d, int j)
{
	const int at = d * KV_PAGE + j;

	return kv_plain(type) ? kv_load(type, plane, at)
	                      : kv_bytes_at(type, (const uint8_t *)plane + at);
}

/* ---- reading values: elements d .. d + VL of position j; d is a multiple of VL ---- */
/* KV_ROOM: largest number of floats that kv_scales_v writes for a plane */
enum { KV_ROOM = KV_PAGE * 2 * (KV_MOST_DIM / KV_GROUP) };

LLMC_INLINE void
kv_scales_v(const int type, const int dim, const char *plane, float *to)
{
	const int n = KV_PAGE * kv_groups(type, dim) * kv_scales(type);

	for (int i = 0; i < n; i += VL)
		vf_store(to + i, kv_scale_at(type, kv_scales_of(type, dim, plane) + i));
}

LLMC_INLINE vf
kv_val(const int type, const int dim, const char *plane, int j, int d, const float *scales)
{
	const uint8_t *p = (const uint8_t *)plane;
	const int groups = kv_groups(type, dim), g = d / KV_GROUP, part = d % KV_GROUP;

	if (kv_plain(type)) {
		const int64_t at = (int64_t)j * dim + d;
		return d + VL <= dim ? kv_load(type, plane, at)
		                     : kv_load_n(type, plane, at, dim % VL);
	}
	if (kv_folded(type))
		return kv_bytes_at(type, p + j * dim + d);
	const float *s = scales + (j * groups + g) * kv_scales(type);
	if (kv_wide(type))
		return kv_bytes_at(type, p + j * groups * KV_GROUP + d) * vf_set1(s[0]);
	vi c = vi_of_u8(p + (j * groups + g) * 16 + part % 16) >> (part / 16 * 4);
	if (type == KV_int6) {
		const uint8_t *high =
		    p + groups * 16 * KV_PAGE + (j * groups + g) * 8 + (VL < 8 ? part % 8 : 0);
#if VL == 16
		uint64_t both[2];
		memcpy(both, high, 8);
		both[1] = both[0];
		const vi shift = { 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2 };
		vi h = vi_of_u8((const uint8_t *)(const void *)both) >>
		       (shift + vi_set1(part / 16 * 4));
#else
		vi h = vi_of_u8(high) >> (part / 8 * 2);
#endif
		return kv_code6(c, h) * vf_set1(s[0]);
	}
	return vf_fma(kv_code4(c), vf_set1(s[0]), vf_set1(s[1]));
}

/* Multiplies the weights of a page's positions by the scales of its values, unless reading applies
 * the scales. */
LLMC_INLINE void
kv_fold_v(const int type, const int dim, const char *plane, float *weights)
{
	if (kv_folded(type))
		for (int j = 0; j < KV_PAGE; j += VL)
			vf_store(weights + j,
			         vf_load(weights + j) *
			             kv_scale_at(type, kv_scales_of(type, dim, plane) + j));
}

/* ---- rotation: the row times Hadamard matrices of n elements each, n a power of two; the rotation
 * is its own inverse ---- */
LLMC_INLINE void
kv_rotate(const int dim, const int n, float *row)
{
	float scale = 1;
	int m = n;

	for (; m >= 4; m /= 4)
		scale *= 0.5f;
	if (m == 2)
		scale *= 0.70710678118654752f;
	for (int at = 0; at < dim; at += n)
		for (int half = 1; half < n; half *= 2)
			for (int b = at; b < at + n; b += 2 * half)
				for (int i = b; i < b + half; i++) {
					float x = row[i], y = row[i + half];
					row[i] = x + y;
					row[i + half] = x - y;
				}
	for (int i = 0; i < dim; i++)
		row[i] *= scale;
}

/* ---- writing ---- */
LLMC_INLINE float
kv_limit(float x, float lo, float hi)
{
	return !(x > lo) ? lo : x < hi ? x : hi;
}

/* rounds to nearest even, |x| < 2^22 */
LLMC_INLINE int
kv_round(float x)
{
	return (int)((x + 12582912.0f) - 12582912.0f);
}

LLMC_INLINE uint8_t
kv_to_e4m3(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	uint8_t sign = (uint8_t)(u >> 24 & 0x80);
	u &= 0x7fffffff;
	if (u > 0x43e00000) /* 448 */
		u = 0x43e00000;
	if (u < 0x3c800000) { /* 2^-6 */
		float top;
		memcpy(&top, &u, 4);
		return sign | (uint8_t)kv_round(top * 512);
	}
	return sign | (uint8_t)(((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
}

/* Quantises the n elements of a group to codes of one byte each. */
LLMC_INLINE void
kv_encode(const int type, const float *x, int n, uint8_t *code, f16 *scale_out, f16 *zero_out)
{
	float most = 0, lo = x[0], hi = x[0], zero = 0, scale;

	for (int i = 0; i < n; i++) {
		float a = x[i] < 0 ? -x[i] : x[i];
		most = a > most ? a : most;
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	if (type == KV_int4 || type == KV_int4c) {
		*zero_out = kv_half(lo);
		zero = f16_get(*zero_out);
		scale = (hi - zero) / 15;
	} else {
		scale = most / (kv_is_f8(type) ? 448 : kv_wide(type) ? 127 : 31);
	}
	*scale_out = kv_half(scale > 0 ? scale : 0);
	scale = f16_get(*scale_out);
	float inverse = scale > 0 ? 1 / scale : 0;
	for (int i = 0; i < n; i++) {
		float v = (x[i] - zero) * inverse;
		code[i] = kv_is_f8(type)    ? kv_to_e4m3(v)
		          : kv_wide(type)   ? (uint8_t)kv_round(kv_limit(v, -127, 127))
		          : type == KV_int6 ? (uint8_t)(kv_round(kv_limit(v, -31, 31)) + 32)
		                            : (uint8_t)kv_round(kv_limit(v, 0, 15));
	}
}

/* Stores a row of dim elements at position pos of a plane of keys or values. n_rotated: from
 * kv_rotated */
LLMC_INLINE void
kv_store(const int type, const int n_rotated, const int key, char *plane, int pos, const int dim,
         const float *row)
{
	const int at = pos % KV_PAGE, groups = kv_groups(type, dim), size = kv_group(type, dim);
	uint8_t *p = (uint8_t *)plane, code[KV_MOST_DIM + KV_GROUP];
	f16 *s = (f16 *)(void *)(plane + KV_PAGE * kv_codes(type, dim));
	float turned[KV_MOST_DIM];

	if (kv_by_channel(type)) /* codes are written later, when the page is full */
		return;
	if (n_rotated) {
		memcpy(turned, row, (size_t)dim * sizeof *row);
		kv_rotate(dim, n_rotated, turned);
		row = turned;
	}
	if (kv_plain(type)) {
		for (int d = 0; d < dim; d++)
			kv_put(type, plane, key ? d * KV_PAGE + at : (int64_t)at * dim + d, row[d]);
		return;
	}
	for (int g = 0; g < groups; g++) {
		f16 *scale = key ? s + g * KV_PAGE + at : s + (at * groups + g) * kv_scales(type);
		f16 *zero = type != KV_int4 ? scale : key ? scale + groups * KV_PAGE : scale + 1;
		const int n = dim - g * size < size ? dim - g * size : size;
		kv_encode(type, row + g * size, n, code + g * size, scale, zero);
		if (kv_grouped(type) && n < size)
			memset(code + g * size + n, 0, (size_t)(size - n));
	}
	if (kv_wide(type)) {
		const int n = kv_codes(type, dim);
		for (int d = 0; d < n; d++)
			p[key ? d * KV_PAGE + at : at * n + d] = code[d];
		return;
	}
	/* two elements per byte; then the high bits, of four elements per byte */
	for (int i = 0; i < groups * 16; i++) {
		const uint8_t *c = code + (key ? 2 * i : i / 16 * 32 + i % 16);
		p[key ? i * KV_PAGE + at : at * groups * 16 + i] =
		    (uint8_t)((c[0] & 15) | c[key ? 1 : 16] << 4);
	}
	for (int i = 0; type == KV_int6 && i < groups * 8; i++) {
		const uint8_t *c = code + (key ? 4 * i : i / 8 * 32 + i % 8);
		const int step = key ? 1 : 8;
		p[groups * 16 * KV_PAGE + (key ? i * KV_PAGE + at : at * groups * 8 + i)] =
		    (uint8_t)(c[0] >> 4 | c[step] >> 4 << 2 | c[2 * step] >> 4 << 4 |
		              c[3 * step] >> 4 << 6);
	}
}

/* ---- pages ---- */
/* Returns page `index` of sequence `seq` of the step. pool: the layer's first page */
LLMC_INLINE char *
kv_page(const llmc_step *s, const void *pool, size_t page_bytes, int seq, int index)
{
	int32_t page = s->block_table[(size_t)seq * (size_t)s->block_stride + (size_t)index];

	return (char *)(uintptr_t)pool + (size_t)page * page_bytes;
}

/* Returns the page that stores the key and value of row t. */
LLMC_INLINE char *
kv_page_of(const llmc_step *s, const void *pool, size_t page_bytes, int t)
{
	return kv_page(s, pool, page_bytes, s->seq_of[t], s->pos[t] / KV_PAGE);
}

/* Exact pages of a pool. A row reads two kinds of positions from them: the last `recent` ones,
 * including its own, and the first `sinks` ones. It reads all others from the quantised pages. The
 * choice depends only on the row's position. page_bytes 0: there are no exact pages. windowed: all
 * pages of the pool are window pages, so a page and its exact page have the same index */
typedef struct KvExact {
	size_t page_bytes;
	int recent, sinks, windowed;
} KvExact;

/* Description of a KV pool */
typedef struct KvForm {
	int k, v, rotate; /* k, v: KV types; rotate: rows are stored rotated */
	int heads, dim, v_dim;
	size_t page_bytes;
	KvExact exact;
	int is_exact; /* true if this describes the exact pages themselves */
} KvForm;

/* KV type of exact rows */
LLMC_INLINE int
kv_exact_type(const int type)
{
	return kv_plain(type) ? type : KV_f16;
}

LLMC_INLINE KvForm
kv_exact_form(const KvForm f)
{
	return (KvForm){ kv_exact_type(f.k),
		         kv_exact_type(f.v),
		         0,
		         f.heads,
		         f.dim,
		         f.v_dim,
		         f.exact.page_bytes,
		         f.exact,
		         1 };
}

/* Returns page `index` of sequence `seq`, of the kind that this form describes. */
LLMC_INLINE char *
kv_page_at(const KvForm f, const llmc_step *s, const void *pool, int seq, int index)
{
	if (!f.is_exact)
		return kv_page(s, pool, f.page_bytes, seq, index);
	int32_t page =
	    s->block_table[(size_t)seq * (size_t)s->block_stride +
	                   (size_t)(f.exact.windowed ? 0 : s->block_stride / 2) + (size_t)index];
	return (char *)(uintptr_t)pool - (size_t)(page + 1) * f.page_bytes;
}

/* Return the planes of a head in a page. */
LLMC_INLINE char *
kv_k(const KvForm f, char *page, int head)
{
	return page + (size_t)head * kv_plane(f.k, f.dim);
}

LLMC_INLINE char *
kv_v(const KvForm f, char *page, int head)
{
	return page + (size_t)f.heads * kv_plane(f.k, f.dim) +
	       (size_t)head * kv_plane(f.v, f.v_dim);
}

/* Stores the key (dim elements) of one head of row t of the step in the pool. */
LLMC_INLINE void
kv_store_k(const KvForm f, const llmc_step *s, const void *pool, int t, int head, const float *key)
{
	const int n_rotated = kv_rotated(f.k, f.rotate, f.dim), seq = s->seq_of[t], pos = s->pos[t];
	const KvForm exact = kv_exact_form(f);

	kv_store(f.k, n_rotated, 1, kv_k(f, kv_page_at(f, s, pool, seq, pos / KV_PAGE), head), pos,
	         f.dim, key);
	if (exact.page_bytes)
		kv_store(exact.k, n_rotated, 1,
		         kv_k(exact, kv_page_at(exact, s, pool, seq, pos / KV_PAGE), head), pos,
		         f.dim, key);
}

/* Stores the value (v_dim elements) of one head of row t of the step in the pool. */
LLMC_INLINE void
kv_store_v(const KvForm f, const llmc_step *s, const void *pool, int t, int head,
           const float *value)
{
	const int n_rotated = kv_rotated(f.v, f.rotate, f.v_dim), seq = s->seq_of[t],
	          pos = s->pos[t];
	const KvForm exact = kv_exact_form(f);

	kv_store(f.v, n_rotated, 0, kv_v(f, kv_page_at(f, s, pool, seq, pos / KV_PAGE), head), pos,
	         f.v_dim, value);
	if (exact.page_bytes)
		kv_store(exact.v, n_rotated, 0,
		         kv_v(exact, kv_page_at(exact, s, pool, seq, pos / KV_PAGE), head), pos,
		         f.v_dim, value);
}

/* Quantises the per-channel keys of one head, for a full page, from its exact page. */
LLMC_INLINE void
kv_quantize_page(const KvForm f, const llmc_step *s, const void *pool, int seq, int index, int head)
{
	const KvForm exact = kv_exact_form(f);
	const char *from = kv_k(exact, kv_page_at(exact, s, pool, seq, index), head);
	char *plane = kv_k(f, kv_page_at(f, s, pool, seq, index), head);
	f16 *scale = (f16 *)(void *)(plane + KV_PAGE * kv_codes(f.k, f.dim)),
	    *zero = scale + (f.dim + KV_GROUP - 1) / KV_GROUP * KV_GROUP;

	for (int d = 0; d < f.dim; d += 2) {
		uint8_t code[2][KV_PAGE] = { { 0 } };
		for (int e = 0; e < 2 && d + e < f.dim; e++) {
			float x[KV_PAGE];
			for (int j = 0; j < KV_PAGE; j += VL)
				vf_store(x + j, kv_load(exact.k, from, (d + e) * KV_PAGE + j));
			kv_encode(f.k, x, KV_PAGE, code[e], &scale[d + e], &zero[d + e]);
		}
		for (int j = 0; j < KV_PAGE; j++)
			plane[d / 2 * KV_PAGE + j] = (char)(code[0][j] | code[1][j] << 4);
	}
}

#endif
