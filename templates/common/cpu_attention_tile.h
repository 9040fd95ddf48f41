/* Attention of a tile: several rows of one sequence and the query heads of one group, so that each page of K and V is read and
 * converted once for all of them. Every row's sums are those of cpu_attention.h, bit for bit.
 *
 *   for each chunk of 128 positions that a row of the tile sees:
 *     K of a page --to fp32, once--> x [D][32] --blocks of ATT_TILE_MR rows--> s [rows][128]
 *     s --cap, bias, mask, softmax of each row--> weights, m, l
 *     V of a page --to fp32, once--> x [32][V] --blocks of ATT_TILE_MR rows--> oc [rows][V]
 *     oc --at ends of spans--> os, o
 *
 * Bytes of a tile: K and V of the visible positions once, for ATT_TILE_T tokens; q, s and sums stay in the second cache. */
#ifndef LLMC_CPU_ATTENTION_TILE_H
#define LLMC_CPU_ATTENTION_TILE_H

#include "common/cpu_attention.h"

enum {
#if VL == 16
	ATT_TILE_MR = 12,                               /* rows of a register tile, of two vectors each */
#elif VL == 8
	ATT_TILE_MR = 6,
#else
	ATT_TILE_MR = 4,
#endif
	ATT_TILE_T  = ATT_HB >= 48 ? 1 : 48 / ATT_HB,   /* tokens */
	ATT_TILE_NV = ATT_VS / VL % 2 ? 1 : 2,          /* vectors of values at once */
	ATT_TILE_R  = (ATT_TILE_T * ATT_HB + ATT_TILE_MR - 1) / ATT_TILE_MR * ATT_TILE_MR,
};

typedef struct {
	_Alignas(64) float q[ATT_TILE_R / ATT_TILE_MR][ATT_D][ATT_TILE_MR]; /* scaled */
	_Alignas(64) float x[KV_PAGE * (ATT_D > ATT_VS ? ATT_D : ATT_VS)]; /* a page's K [D][32] or V [32][VS] as fp32 */
	_Alignas(64) float s[ATT_TILE_R][ATT_CHUNK];
	_Alignas(64) float oc[ATT_TILE_R][ATT_VS];      /* of a chunk */
	_Alignas(64) float os[ATT_TILE_R][ATT_VS];      /* of a span */
	_Alignas(64) float o[ATT_TILE_R][ATT_VS];       /* of the row */
	float mc[ATT_TILE_R], lc[ATT_TILE_R], ms[ATT_TILE_R], ls[ATT_TILE_R], m[ATT_TILE_R], l[ATT_TILE_R], slope[ATT_HB];
	AttRange range[ATT_TILE_T];
	int shift[ATT_TILE_T], pos[ATT_TILE_T];
} AttTile;

LLMC_INLINE void
att_tile_scores(AttTile *t, const float *k, int n_block, int at)
{
	for (int b = 0; b < n_block; b++)
		for (int j = 0; j < KV_PAGE; j += 2 * VL) {
			vf acc[ATT_TILE_MR][2];

			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++)
				acc[r][0] = acc[r][1] = vf_set1(0);
			for (int d = 0; d < ATT_D; d++) {
				vf x0 = vf_load(k + d * KV_PAGE + j), x1 = vf_load(k + d * KV_PAGE + j + VL);
				LLMC_UNROLL
				for (int r = 0; r < ATT_TILE_MR; r++) {
					vf q = vf_set1(t->q[b][d][r]);
					acc[r][0] = vf_fma(x0, q, acc[r][0]);
					acc[r][1] = vf_fma(x1, q, acc[r][1]);
				}
			}
			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++) {
				vf_store(&t->s[b * ATT_TILE_MR + r][at + j], acc[r][0]);
				vf_store(&t->s[b * ATT_TILE_MR + r][at + j + VL], acc[r][1]);
			}
		}
}

/* oc += weights times values of keys [j0, j1) of the chunk, whose page starts at `at` */
LLMC_INLINE void
att_tile_values(AttTile *t, const float *v, int n_block, int at, int j0, int j1, int d, int first)
{
	for (int b = 0; b < n_block; b++) {
		vf acc[ATT_TILE_MR][ATT_TILE_NV];

		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			LLMC_UNROLL
			for (int i = 0; i < ATT_TILE_NV; i++)
				acc[r][i] = first ? vf_set1(0) : vf_load(&t->oc[b * ATT_TILE_MR + r][d + i * VL]);
		for (int j = j0; j < j1; j++) {
			const float *row = v + (j - at) * ATT_VS + d;
			vf x[ATT_TILE_NV];
			LLMC_UNROLL
			for (int i = 0; i < ATT_TILE_NV; i++)
				x[i] = vf_load(row + i * VL);
			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++) {
				vf p = vf_set1(t->s[b * ATT_TILE_MR + r][j]);
				LLMC_UNROLL
				for (int i = 0; i < ATT_TILE_NV; i++)
					acc[r][i] = vf_fma(x[i], p, acc[r][i]);
			}
		}
		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			LLMC_UNROLL
			for (int i = 0; i < ATT_TILE_NV; i++)
				vf_store(&t->oc[b * ATT_TILE_MR + r][d + i * VL], acc[r][i]);
	}
}

/* Rows [row0, row0 + n) of sequence seq, n <= ATT_TILE_T, unit 0 .. ATT_UNITS */
static void
att_tile(AttTile *t, const llmc_step *s, const void *pool, const float *q, float *y, int seq, int row0, int n, int unit)
{
	int kv_head = unit / ATT_NHB, head = kv_head * ATT_G + unit % ATT_NHB * ATT_HB;
	int nh = (kv_head + 1) * ATT_G - head < ATT_HB ? (kv_head + 1) * ATT_G - head : ATT_HB;
	int n_row = n * nh, n_block = (n_row + ATT_TILE_MR - 1) / ATT_TILE_MR;
	int lo = s->pos[row0], hi = 0;

	for (int i = 0; i < n; i++) {
		t->pos[i] = s->pos[row0 + i];
		t->range[i] = att_range(s, seq, t->pos[i]);
		t->shift[i] = att_span_shift(t->range[i]);
		lo = t->range[i].lo < lo ? t->range[i].lo : lo;
		hi = t->range[i].hi > hi ? t->range[i].hi : hi;
	}
	for (int r = 0; r < n_block * ATT_TILE_MR; r++) {
		const float *from = q + ((size_t)(row0 + r / nh) * ATT_HEADS + (size_t)(head + r % nh)) * ATT_D;
		for (int d = 0; d < ATT_D; d++)
			t->q[r / ATT_TILE_MR][d][r % ATT_TILE_MR] = r < n_row ? from[d] * (float)(ATT_SCALE) : 0;
		t->l[r] = t->ls[r] = 0;
	}
	for (int g = 0; g < nh; g++)
		t->slope[g] = ATT_ALIBI > 0 ? att_slope(head + g) : 0;

	for (int chunk = lo / ATT_CHUNK; chunk * ATT_CHUNK < hi; chunk++) {
		int pos0 = chunk * ATT_CHUNK;
		int j0 = lo > pos0 ? lo - pos0 : 0, j1 = hi < pos0 + ATT_CHUNK ? hi - pos0 : ATT_CHUNK;

		for (int p = j0 / KV_PAGE; p * KV_PAGE < j1; p++) {
			const kv_elem *k = kv_k(kv_page(s, pool, ATT_PAGE_BYTES, seq, chunk * ATT_PAGES + p), kv_head, ATT_D);
			for (int i = 0; i < KV_PAGE * ATT_D; i += VL)
				vf_store(t->x + i, kv_load(k + i));
			att_tile_scores(t, t->x, n_block, p * KV_PAGE);
		}
		for (int r = 0; r < n_block * ATT_TILE_MR; r++) {
			t->lc[r] = 0;
			AttRange see = t->range[r < n_row ? r / nh : 0];
			int a = see.lo > pos0 ? see.lo - pos0 : 0, b = see.hi < pos0 + ATT_CHUNK ? see.hi - pos0 : ATT_CHUNK;
			if (r < n_row && a < b)
				att_softmax(t->s[r], pos0, a, b, t->pos[r / nh], t->slope[r % nh], &t->mc[r], &t->lc[r]);
			else
				memset(t->s[r], 0, sizeof t->s[r]);
		}
		for (int p = j0 / KV_PAGE, first = 1; p * KV_PAGE < j1; p++, first = 0) {
			int at = p * KV_PAGE, from = j0 > at ? j0 : at, to = j1 < at + KV_PAGE ? j1 : at + KV_PAGE, d = 0;
			const kv_elem *v = kv_v(kv_page(s, pool, ATT_PAGE_BYTES, seq, chunk * ATT_PAGES + p), kv_head, ATT_KV_HEADS, ATT_D,
			                        ATT_V);
			for (int j = from - at; j < to - at; j++) {
				int i = 0;
				for (; i + VL <= ATT_V; i += VL)
					vf_store(t->x + j * ATT_VS + i, kv_load(v + (size_t)j * ATT_V + i));
				if (i < ATT_V)
					vf_store(t->x + j * ATT_VS + i, kv_load_n(v + (size_t)j * ATT_V + i, ATT_V % VL));
			}
			for (; d < ATT_VS; d += ATT_TILE_NV * VL)
				att_tile_values(t, t->x, n_block, at, from, to, d, first);
		}
		for (int r = 0; r < n_row; r++) {
			int i = r / nh, mask = (1 << t->shift[i]) - 1;
			if (t->lc[r] == 0)
				continue;
			if (mask == 0) {
				att_merge(&t->m[r], &t->l[r], t->o[r], t->mc[r], t->lc[r], t->oc[r]);
				continue;
			}
			att_merge(&t->ms[r], &t->ls[r], t->os[r], t->mc[r], t->lc[r], t->oc[r]);
			if ((chunk & mask) == mask || chunk == (t->range[i].hi - 1) / ATT_CHUNK) {
				att_merge(&t->m[r], &t->l[r], t->o[r], t->ms[r], t->ls[r], t->os[r]);
				t->ls[r] = 0;
			}
		}
	}
	for (int r = 0; r < n_row; r++)
		att_finish(y + ((size_t)(row0 + r / nh) * ATT_HEADS + (size_t)(head + r % nh)) * ATT_V, t->o[r], t->l[r]);
}

#endif
