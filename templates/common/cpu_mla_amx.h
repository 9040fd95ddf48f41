/* A chunk of the absorbed form (cpu_mla.h) on tile registers, where the cache is f16. A half is exactly two parts of bf16, hi + lo; queries
 * and weights become two parts as well: relative error 2^-17. Products of lo and lo are left out.
 *
 *   pages --> hi, lo [64][width]   --A, 16 positions x 32 elements--+
 *         |                                                         +--> [position][row], turned --> w --softmax-->
 *         |   queries, pairs of elements [32 / 2][16 rows][2] --B---+
 *         +-> pairs of positions [64 / 2][rank][2] --B--------------+
 *                                                                   +--> oc [row][rank]
 *   weights hi, lo [row][64] --A------------------------------------+
 *
 * Rows by 16; a row's sums are the same in any company. By count a chunk of rank 512 + 64 takes 408 dot instructions of 16 cycles for 16
 * rows, where fp32 takes 70,000 multiplications, and about 30 instructions for 32 elements of the cache to bring them into both orders.
 *
 * Memory: hi and lo take the place of x, queries in parts the place of q; pairs and weights in parts lie behind o. */
#ifndef LLMC_CPU_MLA_AMX_H
#define LLMC_CPU_MLA_AMX_H

#include "common/cpu_amx.h"

enum { MLA_TR = 16 };           /* rows of a tile register */

typedef uint32_t mla_bits __attribute__((vector_size(64), may_alias));

LLMC_INLINE void
mla_amx_begin(void)
{
	_Alignas(64) amx_config c = { .palette = 1 };

	for (int r = 0; r < 8; r++) {
		c.rows[r] = 16;
		c.bytes[r] = 64;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* the part of x that bf16 holds, cut: exact for halves, whose rest it holds as well */
LLMC_INLINE vf
mla_cut(vf x)
{
	return (vf)((vi)x & vi_set1((int32_t)0xffff0000));
}

LLMC_INLINE void
mla_put16(uint16_t *to, vf x)
{
	_mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16((__m512i)((mla_bits)x >> 16)));
}

LLMC_INLINE void
mla_put_pairs(uint16_t *to, vf x, vf y)
{
	_mm512_storeu_si512(to, (__m512i)(vi)(((mla_bits)x >> 16) | ((mla_bits)y & 0xffff0000u)));
}

/* x in two parts, rounded: for what is no half */
LLMC_INLINE vf
mla_round(vf x)
{
	return (vf)((vi)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)) << 16);
}

/* Row r of the tile's queries, scaled, of `width` elements, to its place in q: for 16 rows hi [width / 2][16][2], then lo.
 * n: width, 0 for a row that does not exist, which becomes zeros */
LLMC_INLINE void
mla_amx_query(float *q, int width, int r, const float *from, int n, float scale)
{
	const int padded = mla_up(width, 32);
	uint16_t *hi = (uint16_t *)(void *)q + (size_t)(r / MLA_TR) * 2 * MLA_TR * (size_t)padded, *lo = hi + MLA_TR * padded;

	uint32_t *const to[2] = { (uint32_t *)(void *)hi + r % MLA_TR, (uint32_t *)(void *)lo + r % MLA_TR };
	for (int d = 0; d < padded; d += VL) {
		vf x = (n - d >= VL ? vf_load(from + d) : vf_load_n(from + d, n - d)) * vf_set1(scale), both[2] = { x, x - mla_round(x) };
		for (int part = 0; part < 2; part++) {
			uint32_t pair[VL / 2];
			_mm256_storeu_si256((__m256i *)(void *)pair, (__m256i)_mm512_cvtneps_pbh((__m512)both[part]));
			for (int i = 0; i < VL / 2; i++)
				to[part][(d / 2 + i) * MLA_TR] = pair[i];
		}
	}
}

/* Positions [0, n) of a chunk to hi and lo [64][width], and to pairs [2][64 / 2][os][2]; those behind n are zeros */
LLMC_INLINE void
mla_amx_fetch(const Mla a, const llmc_step *s, const void *pool, int seq, int pos0, int n, float *x, float *pairs)
{
	const int width = mla_width(a), padded = mla_up(width, 32), os = mla_os(a);
	uint16_t *hi = (uint16_t *)(void *)x, *lo = hi + MLA_CHUNK * padded;
	uint16_t *ph = (uint16_t *)(void *)pairs, *pl = ph + MLA_CHUNK * os;
	_Alignas(64) float scale[KV_ROOM];

	for (int j = 0; j < MLA_CHUNK; j += 2) {
		const char *page = j < n ? kv_page(s, pool, a.page_bytes, seq, (pos0 + j) / KV_PAGE) : NULL;
		const int at = (pos0 + j) % KV_PAGE;
		if (kv_grouped(a.kv) && page && (j == 0 || at == 0))
			kv_scales_v(a.kv, width, page, scale);
		for (int i = 0; i < padded; i += VL) {
			const int rest = width - i;
			vf v[2] = { { 0 }, { 0 } }, h[2], l[2];
			for (int k = 0; k < 2; k++) {
				if (j + k < n && rest > 0)
					v[k] = kv_val(a.kv, width, page, at + k, i, scale);
				h[k] = mla_cut(v[k]);
				l[k] = v[k] - h[k];
				mla_put16(hi + (j + k) * padded + i, h[k]);
				mla_put16(lo + (j + k) * padded + i, l[k]);
			}
			if (i < os) {
				mla_put_pairs(ph + (j * os + 2 * i), h[0], h[1]);
				mla_put_pairs(pl + (j * os + 2 * i), l[0], l[1]);
			}
		}
	}
}

/* Part i of the lines of a page, which are in as many parts as there are steps of 16 elements */
LLMC_INLINE void
mla_amx_ahead(const Mla a, const char *page, int i)
{
	const int bytes = (int)kv_plane(a.kv, mla_width(a)), part = mla_up(bytes / (mla_up(mla_width(a), 32) / 16), 64);

	for (int at = i * part; page && at < (i + 1) * part && at < bytes; at += 64)
		__builtin_prefetch(page + at, 0, 2);
}

/* w[r][j] = score of rows [r0, r0 + 16); next: the pages of the next chunk, or NULL, asked for meanwhile */
LLMC_INLINE void
mla_amx_scores(const Mla a, const float *x, const float *q, int r0, float *w, const char *const *next)
{
	const int padded = mla_up(mla_width(a), 32), bytes = 2 * padded;
	const uint16_t *hi = (const uint16_t *)(const void *)x, *lo = hi + MLA_CHUNK * padded;
	const uint16_t *qh = (const uint16_t *)(const void *)q + (size_t)r0 * 2 * (size_t)padded, *ql = qh + MLA_TR * padded;
	_Alignas(64) float c[MLA_CHUNK][MLA_TR];

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
#define MLA_POSITIONS(p)                                        \
	AMX_LOAD(4, hi + (p) * 16 * padded + d, bytes);         \
	AMX_BF16(p, 4, 6);                                      \
	AMX_BF16(p, 4, 7);                                      \
	AMX_LOAD(5, lo + (p) * 16 * padded + d, bytes);         \
	AMX_BF16(p, 5, 6)
	for (int d = 0; d < padded; d += 32) {
		AMX_LOAD(6, qh + d * MLA_TR, 64);
		AMX_LOAD(7, ql + d * MLA_TR, 64);
		MLA_POSITIONS(0);
		mla_amx_ahead(a, next[0], d / 32 * 2);
		MLA_POSITIONS(1);
		mla_amx_ahead(a, next[0], d / 32 * 2 + 1);
		MLA_POSITIONS(2);
		mla_amx_ahead(a, next[1], d / 32 * 2);
		MLA_POSITIONS(3);
		mla_amx_ahead(a, next[1], d / 32 * 2 + 1);
	}
#undef MLA_POSITIONS
	AMX_STORE(0, c[0], 64);
	AMX_STORE(1, c[16], 64);
	AMX_STORE(2, c[32], 64);
	AMX_STORE(3, c[48], 64);
	for (int r = 0; r < MLA_TR; r++)
		for (int j = 0; j < MLA_CHUNK; j++)
			w[(r0 + r) * MLA_CHUNK + j] = c[j][r];
}

/* oc of rows [r0, r0 + 16); parts: [2][16][64] to work in */
LLMC_INLINE void
mla_amx_sums(const Mla a, const float *pairs, const float *w, int r0, uint16_t *parts, float *oc)
{
	const int os = mla_os(a);
	const uint16_t *ph = (const uint16_t *)(const void *)pairs, *pl = ph + MLA_CHUNK * os;

	for (int r = 0; r < MLA_TR; r++)
		for (int j = 0; j < MLA_CHUNK; j += VL) {
			vf p = vf_load(w + (r0 + r) * MLA_CHUNK + j), h = mla_round(p);
			mla_put16(parts + r * MLA_CHUNK + j, h);
			mla_put16(parts + (MLA_TR + r) * MLA_CHUNK + j, mla_round(p - h));
		}
	AMX_LOAD(4, parts, 2 * MLA_CHUNK);
	AMX_LOAD(5, parts + 32, 2 * MLA_CHUNK);
	AMX_LOAD(6, parts + MLA_TR * MLA_CHUNK, 2 * MLA_CHUNK);
	AMX_LOAD(7, parts + MLA_TR * MLA_CHUNK + 32, 2 * MLA_CHUNK);
	for (int d = 0; d < os; d += 16) {
		AMX_ZERO(0);
		AMX_LOAD(1, ph + 2 * d, 4 * os);
		AMX_BF16(0, 4, 1);
		AMX_LOAD(2, ph + 32 * os + 2 * d, 4 * os);
		AMX_BF16(0, 5, 2);
		AMX_BF16(0, 6, 1);
		AMX_BF16(0, 7, 2);
		AMX_LOAD(1, pl + 2 * d, 4 * os);
		AMX_BF16(0, 4, 1);
		AMX_LOAD(2, pl + 32 * os + 2 * d, 4 * os);
		AMX_BF16(0, 5, 2);
		AMX_STORE(0, oc + r0 * os + d, 4 * os);
	}
}

#endif
