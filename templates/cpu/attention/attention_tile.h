/* Attention of a tile: several rows of one sequence and the query heads of one kv head. Each page
 * of K and V is read and converted once for all of them. The sums of each row are those of
 * cpu/attention/attention.h, bit for bit.
 *
 *   for each chunk of 128 positions that a row of the tile attends to (with exact pages,
 *   for each of its segments):
 *     K of a page --to fp32, once--> x [D][32] --blocks of ATT_TILE_MR rows--> s [rows][128]
 *     s --cap, bias, mask, softmax of each row--> weights, m, l
 *     V of a page --to fp32, once--> x [32][V] --blocks of ATT_TILE_MR rows--> oc [rows][V]
 *     oc --at ends of spans--> os, o
 *
 * Bytes per tile: K and V of the visible positions once for att_tile_tokens tokens; q, s and sums
 * stay in L2. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_TILE_H
#define LLMC_CPU_ATTENTION_ATTENTION_TILE_H

#include "cpu/attention/attention.h"

enum {
	ATT_TILE_MR = VL == 16  ? 12
	              : VL == 8 ? 6
	                        : 4, /* rows of a register tile; each row has two vectors */
	ATT_TILE_R = 48, /* largest number of rows per tile: a multiple of ATT_TILE_MR */
};

/* Returns the number of tokens per tile. */
LLMC_INLINE int
att_tile_tokens(const Att a)
{
#if defined(LLMC_TILES)
	if (att_tiled(a))
		return ATT_AMX_R / att_hb(a);
#endif
	return ATT_TILE_R / att_hb(a);
}

/* Returns the number of vectors of values per pass. */
LLMC_INLINE int
att_tile_nv(const Att a)
{
	return att_vs(a) / VL % 2 ? 1 : 2;
}

typedef struct AttTile {
	/* [block][dim / 2][ATT_TILE_MR] queries as words (cpu/attention/attention_int16.h); on Arm
	 * the unit is 8 elements */
	int32_t *q_words;
	KvWords *words; /* [block][group][ATT_TILE_MR] */
	int16_t *p;     /* [row][group][32] the weights of a page as words */
	float *zeros;   /* [row][group][VL] */
	float *q;       /* [block][dim][ATT_TILE_MR], scaled */
	float *sums;    /* [block][group][ATT_TILE_MR] kv_query_sums of q */
	float
	    *x; /* [dim][32] a page's K (codes if quantised) or [32][att_tile_xs] its V, as fp32 */
	float *s;           /* [row][ATT_CHUNK] */
	float *oc, *os, *o; /* [row][att_vs] sums of a chunk, a span, the row */
	float mc[ATT_TILE_R], lc[ATT_TILE_R], ms[ATT_TILE_R], ls[ATT_TILE_R], m[ATT_TILE_R],
	    l[ATT_TILE_R], slope[ATT_MOST_HB];
	SplitRange range[ATT_TILE_R];
	int shift[ATT_TILE_R], pos[ATT_TILE_R];
} AttTile;

LLMC_INLINE void
att_tile_group(const Att a, const AttTile *t, const char *k, int n_block, int at, int group)
{
	const int first = group * kv_group(a.kv.k, a.dim), groups = kv_groups(a.kv.k, a.dim);
	const int end = group + 1 < groups ? first + kv_group(a.kv.k, a.dim) : a.dim;

	for (int b = 0; b < n_block; b++)
		for (int j = 0; j < KV_PAGE; j += 2 * VL) {
			const KvScale s0 = kv_scale_k(a.kv.k, a.dim, k, group, j),
			              s1 = kv_scale_k(a.kv.k, a.dim, k, group, j + VL);
			vf acc[ATT_TILE_MR][2];

			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++)
				acc[r][0] = acc[r][1] = vf_set1(0);
			for (int d = first; d < end; d++) {
				vf x0 = vf_load(t->x + d * KV_PAGE + j),
				   x1 = vf_load(t->x + d * KV_PAGE + j + VL);
				LLMC_UNROLL
				for (int r = 0; r < ATT_TILE_MR; r++) {
					vf q =
					    vf_set1(t->q[((size_t)b * (size_t)a.dim + (size_t)d) *
					                     ATT_TILE_MR +
					                 (size_t)r]);
					acc[r][0] = vf_fma(x0, q, acc[r][0]);
					acc[r][1] = vf_fma(x1, q, acc[r][1]);
				}
			}
			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++) {
				float *to = t->s + (b * ATT_TILE_MR + r) * ATT_CHUNK + at + j;
				const vf sum =
				    vf_set1(a.kv.k == KV_int4
				                ? t->sums[(b * groups + group) * ATT_TILE_MR + r]
				                : 0);
				vf_store(to, kv_score(a.kv.k, group == 0, vf_load(to), acc[r][0],
				                      s0, sum));
				vf_store(to + VL, kv_score(a.kv.k, group == 0, vf_load(to + VL),
				                           acc[r][1], s1, sum));
			}
		}
}

/* Computes scores of the page at position `at` of the chunk. k: plane of its keys */
LLMC_INLINE void
att_tile_scores(const Att a, const AttTile *t, const char *k, int n_block, int at)
{
	for (int group = 0; group < kv_groups(a.kv.k, a.dim); group++)
		att_tile_group(a, t, k, n_block, at, group);
}

/* stride of a page's values: one vector more than v_dim */
LLMC_INLINE int
att_tile_xs(const Att a)
{
	return att_vs(a) + VL;
}

/* oc += weights times values of keys [j0, j1) of the chunk. Rows of values are xs apart; the page
 * starts at `at`. */
LLMC_INLINE void
att_tile_values(const Att a, const AttTile *t, const int xs, int n_block, int at, int j0, int j1,
                int d, int first)
{
	const int nv = att_tile_nv(a), vs = att_vs(a);

	for (int b = 0; b < n_block; b++) {
		vf acc[ATT_TILE_MR][2];

		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			LLMC_EACH(i, nv, 2)
		acc[r][i] =
		    first ? vf_set1(0) : vf_load(t->oc + (b * ATT_TILE_MR + r) * vs + d + i * VL);
		for (int j = j0; j < j1; j++) {
			const float *row = t->x + (j - at) * xs + d;
			vf x[2];
			LLMC_EACH(i, nv, 2)
			x[i] = vf_load(row + i * VL);
			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++) {
				vf p = vf_set1(t->s[(b * ATT_TILE_MR + r) * ATT_CHUNK + j]);
				LLMC_EACH(i, nv, 2)
				acc[r][i] = vf_fma(x[i], p, acc[r][i]);
			}
		}
		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			LLMC_EACH(i, nv, 2)
		vf_store(t->oc + (b * ATT_TILE_MR + r) * vs + d + i * VL, acc[r][i]);
	}
}

#if VF_NEON
/* Computes scores of the page at position `at` of the chunk. k: plane of its keys */
LLMC_INLINE void
att_tile_word_scores(const Att a, const AttTile *t, const char *k, int n_block, int at)
{
	const int groups = kv_groups(a.kv.k, a.dim) * ATT_TILE_MR;
	int8_t *const x = (int8_t *)(void *)t->x;

	kv_unpack_k(a.kv.k, a.dim, k, NULL, x);
	for (int b = 0; b < n_block; b++)
		att_byte_scores(
		    a, ATT_TILE_MR, k, x,
		    (const int8_t *)(const void *)(t->q_words + b * (a.dim / 2) * ATT_TILE_MR),
		    16 * ATT_TILE_MR, 16, t->words + b * groups, t->sums + b * groups, ATT_TILE_MR,
		    1, t->s + b * ATT_TILE_MR * ATT_CHUNK + at);
}

/* Adds a page to oc. v: plane of its values; step [row]: step of the words of the weights */
LLMC_INLINE void
att_tile_word_sums(const Att a, const AttTile *t, const char *v, int n_block, int first,
                   const float *step)
{
	const int groups = kv_groups(a.kv.v, a.v_dim), vs = att_vs(a);
	int8_t *const x = (int8_t *)(void *)t->x;

	kv_unpack_v(a.kv.v, a.v_dim, v, NULL, x);
	for (int b = 0; b < n_block * ATT_TILE_MR; b += ATT_TILE_MR)
		att_byte_values(a, ATT_TILE_MR, x, t->p + b * groups * KV_PAGE,
		                groups * 2 * KV_PAGE, step + b, first, t->oc + b * vs, vs);
}
#elif KV_HAS_WORDS
/* Loads a page's keys as pairs of words: [dim / 2][32]. */
LLMC_INLINE void
att_tile_word_keys(const Att a, const char *k, int32_t *to)
{
	_Alignas(32) uint8_t buffer[KV_PAGE * KV_MOST_DIM];
	const uint8_t *codes = kv_word_plane(a.kv.k, 1, a.dim, k, buffer);

	for (int i = 0; i < a.dim / 4; i++)
		for (int j = 0; j < KV_PAGE; j += 16) {
			vi x[2][2];
			kv_pairs_k(a.kv.k, codes, i, j, x);
			LLMC_EACH(e, 2, 2)
			{
				kv_pairs_sort(x[e]);
				vi_store(to + (2 * i + e) * KV_PAGE + j, x[e][0]);
				vi_store(to + (2 * i + e) * KV_PAGE + j + VL, x[e][1]);
			}
		}
}

/* Like att_tile_group, for words */
LLMC_INLINE void
att_tile_word_group(const Att a, const AttTile *t, const char *k, int n_block, int at, int group)
{
	const int first = group * kv_group(a.kv.k, a.dim) / 2, groups = kv_groups(a.kv.k, a.dim);
	const int end = group + 1 < groups ? first + kv_group(a.kv.k, a.dim) / 2 : a.dim / 2;
	const int32_t *x = (const int32_t *)(const void *)t->x;

	for (int b = 0; b < n_block; b++)
		for (int j = 0; j < KV_PAGE; j += 2 * VL) {
			const KvWords *words = t->words + (b * groups + group) * ATT_TILE_MR;
			vi acc[ATT_TILE_MR][2];

			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++)
				acc[r][0] = acc[r][1] = vi_all(words[r].start);
			for (int i = first; i < end; i++) {
				const vi x0 = vi_load(x + i * KV_PAGE + j),
				         x1 = vi_load(x + i * KV_PAGE + j + VL);
				LLMC_UNROLL
				for (int r = 0; r < ATT_TILE_MR; r++) {
					const vi q = vi_bcast4(
					    t->q_words + (b * (a.dim / 2) + i) * ATT_TILE_MR + r);
					acc[r][0] = dot_words(acc[r][0], x0, q);
					acc[r][1] = dot_words(acc[r][1], x1, q);
				}
			}
			LLMC_EACH(i, 2, 2)
			{
				const KvScale scale =
				    kv_word_scale_k(a.kv.k, a.dim, k, group, j + i * VL);
				LLMC_UNROLL
				for (int r = 0; r < ATT_TILE_MR; r++)
					kv_word_score(
					    a.kv.k, group, acc[r][i], words[r].step, scale,
					    a.kv.k == KV_int4
					        ? t->sums[(b * groups + group) * ATT_TILE_MR + r]
					        : 0,
					    t->s + (b * ATT_TILE_MR + r) * ATT_CHUNK + at + j +
					        i * VL);
			}
		}
}

/* Computes scores of the page at position `at` of the chunk. k: plane of its keys */
LLMC_INLINE void
att_tile_word_scores(const Att a, const AttTile *t, const char *k, int n_block, int at)
{
	att_tile_word_keys(a, k, (int32_t *)(void *)t->x);
	for (int group = 0; group < kv_groups(a.kv.k, a.dim); group++)
		att_tile_word_group(a, t, k, n_block, at, group);
}

/* Adds a page to 16 elements of oc, from d on. x: its values as pairs of words */
LLMC_INLINE void
att_tile_word_slice(const Att a, const AttTile *t, const int32_t *x, const int xs, int n_block,
                    int d, int first, const float *step)
{
	const int groups = kv_groups(a.kv.v, a.v_dim), vs = att_vs(a);

	for (int b = 0; b < n_block; b++) {
		const int16_t *p =
		    t->p + (b * ATT_TILE_MR * groups + d / kv_group(a.kv.v, a.v_dim)) * KV_PAGE;
		vi acc[ATT_TILE_MR][2];

		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			acc[r][0] = acc[r][1] = vi_all(0);
		for (int j = 0; j < KV_PAGE; j += 2) {
			const vi x0 = vi_load(x + j / 2 * xs + d),
			         x1 = vi_load(x + j / 2 * xs + d + VL);
			const int at = kv_word_at(j);
			LLMC_UNROLL
			for (int r = 0; r < ATT_TILE_MR; r++) {
				const vi y = vi_bcast4(p + r * groups * KV_PAGE + at);
				acc[r][0] = dot_words(acc[r][0], x0, y);
				acc[r][1] = dot_words(acc[r][1], x1, y);
			}
		}
		LLMC_UNROLL
		for (int r = 0; r < ATT_TILE_MR; r++)
			LLMC_EACH(i, 2, 2)
		if (d + i * VL < vs)
			att_word_add(first, acc[r][i], step[b * ATT_TILE_MR + r],
			             t->oc + (b * ATT_TILE_MR + r) * vs + d + i * VL);
	}
}

/* Adds a page to oc. v: plane of its values; step [row]: step of the words of the weights */
LLMC_INLINE void
att_tile_word_sums(const Att a, const AttTile *t, const char *v, int n_block, int first,
                   const float *step)
{
	const int xs = (a.v_dim + 15) / 16 * 16 + VL;
	_Alignas(32) uint8_t buffer[KV_PAGE * KV_MOST_DIM];
	const uint8_t *codes = kv_word_plane(a.kv.v, 0, a.v_dim, v, buffer);
	int32_t *x = (int32_t *)(void *)t->x;

	for (int j = 0; j < KV_PAGE; j += 2)
		for (int d = 0; d < a.v_dim; d += 16) {
			vi pair[2];
			kv_pairs_v(a.kv.v, a.v_dim, codes, j, d, d / 16 % 2, pair);
			kv_pairs_sort(pair);
			vi_store(x + j / 2 * xs + d, pair[0]);
			vi_store(x + j / 2 * xs + d + VL, pair[1]);
		}
	for (int d = 0; d < a.v_dim; d += 16)
		att_tile_word_slice(a, t, x, xs, n_block, d, first, step);
}
#endif

#if KV_HAS_WORDS
/* Adds a page to oc. The page starts at `at` of the chunk; its positions below `end` are valid. */
LLMC_INLINE void
att_tile_word_values(const Att a, const AttTile *t, const char *v, int n_block, int at, int end,
                     int first)
{
	const int groups = kv_groups(a.kv.v, a.v_dim), n_row = n_block * ATT_TILE_MR;
	_Alignas(32) float scales[KV_ROOM], tops[KV_PAGE], most[ATT_TILE_R * VL], step[ATT_TILE_R],
	    inverse[ATT_TILE_R];

	kv_word_scales(a.kv.v, a.v_dim, v, end, scales, tops);
	for (int r = 0; r < n_row; r++)
		kv_weight_most(t->s + r * ATT_CHUNK + at, tops, most + r * VL);
	for (int r = 0; r < n_row; r += VL)
		kv_weight_steps(most + r * VL, step + r, inverse + r);
	if (first)
		memset(t->zeros, 0, (size_t)(n_row * groups * VL) * sizeof *t->zeros);
	for (int r = 0; r < n_row; r++)
		kv_weight_words(a.kv.v, a.v_dim, t->s + r * ATT_CHUNK + at, scales, step[r],
		                inverse[r], t->p + r * groups * KV_PAGE,
		                t->zeros + r * groups * VL);
	att_tile_word_sums(a, t, v, n_block, first, step);
}

/* After the last page, adds the contribution of the zeros. */
LLMC_INLINE void
att_tile_word_close(const Att a, const AttTile *t, int n_row)
{
	const int groups = kv_groups(a.kv.v, a.v_dim), vs = att_vs(a);

	for (int r = 0; a.kv.v == KV_int4 && r < n_row; r++)
		for (int d = 0; d < vs; d += VL)
			vf_store(t->oc + r * vs + d,
			         vf_load(t->oc + r * vs + d) +
			             vf_set1(vf_hsum(
			                 vf_load(t->zeros + (r * groups + d / KV_GROUP) * VL))));
}
#endif

/* State shared by the rows of a tile */
typedef struct AttRows {
	const llmc_step *s;
	const void *pool;
	int seq, kv_head;
	int n, nh, n_row, n_block; /* tokens, heads, rows, row blocks */
} AttRows;

/* Processes a segment of a chunk for all rows that have positions in it, and merges the result into
 * their spans. If a span is a single chunk with one segment, merges directly into the rows. */
LLMC_INLINE void
att_tile_segment(const Att whole, const int segment, AttTile *t, const AttRows *in, int chunk)
{
	const Att a = att_segment_form(whole, segment);
	const int vs = att_vs(a), pos0 = chunk * ATT_CHUNK, nh = in->nh, n_row = in->n_row;
	SplitRange see[ATT_TILE_R];
	int j0 = ATT_CHUNK, j1 = 0;

	if (!att_has_segment(whole, segment))
		return;
	for (int i = 0; i < in->n; i++) {
		see[i] = att_segment(whole, segment, t->range[i], t->pos[i]);
		see[i].lo = see[i].lo > pos0 ? see[i].lo - pos0 : 0;
		see[i].hi = see[i].hi < pos0 + ATT_CHUNK ? see[i].hi - pos0 : ATT_CHUNK;
		if (see[i].lo >= see[i].hi)
			continue;
		j0 = see[i].lo < j0 ? see[i].lo : j0;
		j1 = see[i].hi > j1 ? see[i].hi : j1;
	}
	for (int p = j0 / KV_PAGE; p * KV_PAGE < j1; p++) {
		const char *k =
		    kv_k(a.kv, kv_page_at(a.kv, in->s, in->pool, in->seq, chunk * ATT_PAGES + p),
		         in->kv_head);
		_Alignas(64) float channels[2 * KV_MOST_DIM];
#if KV_HAS_WORDS
		if (kv_in_words(a.kv.k, a.dim)) {
			att_tile_word_scores(a, t, k, in->n_block, p * KV_PAGE);
			continue;
		}
#endif
		kv_channels(a.kv.k, a.dim, k, channels);
		for (int j = 0; j < KV_PAGE; j += VL)
			for (int d = 0; d < a.dim; d += 4) {
				vf x[4];
				kv_keys(a.kv.k, a.dim, k, d / 4, j, channels, x);
				LLMC_EACH(e, 4, 4)
				if (a.dim % 4 == 0 || d + e < a.dim)
					vf_store(t->x + (d + e) * KV_PAGE + j, x[e]);
			}
		att_tile_scores(a, t, k, in->n_block, p * KV_PAGE);
	}
	if (j0 >= j1)
		return;
	for (int r = 0; r < in->n_block * ATT_TILE_MR; r++) {
		t->lc[r] = 0;
		const SplitRange own = see[r < n_row ? r / nh : 0];
		if (r < n_row && own.lo < own.hi)
			att_softmax(a, ATT_CHUNK, t->s + r * ATT_CHUNK, pos0, own.lo, own.hi,
			            t->pos[r / nh], t->slope[r % nh], &t->mc[r], &t->lc[r]);
		else
			memset(t->s + r * ATT_CHUNK, 0, ATT_CHUNK * sizeof *t->s);
	}
	for (int p = j0 / KV_PAGE, first = 1; p * KV_PAGE < j1; p++, first = 0) {
		int at = p * KV_PAGE, from = j0 > at ? j0 : at,
		    to = j1 < at + KV_PAGE ? j1 : at + KV_PAGE, d = 0;
		const char *v =
		    kv_v(a.kv, kv_page_at(a.kv, in->s, in->pool, in->seq, chunk * ATT_PAGES + p),
		         in->kv_head);
		_Alignas(64) float scale[KV_ROOM];
#if KV_HAS_WORDS
		if (kv_in_words(a.kv.v, a.v_dim)) {
			att_tile_word_values(a, t, v, in->n_block, at, to - at, first);
			if (to == j1)
				att_tile_word_close(a, t, n_row);
			continue;
		}
#endif
		if (kv_grouped(a.kv.v))
			kv_scales_v(a.kv.v, a.v_dim, v, scale);
		for (int r = 0; kv_folded(a.kv.v) && r < n_row; r++)
			kv_fold_v(a.kv.v, a.v_dim, v, t->s + r * ATT_CHUNK + at);
		for (int j = from - at; j < to - at; j++)
			for (int i = 0; i < vs; i += VL)
				vf_store(t->x + j * att_tile_xs(a) + i,
				         kv_val(a.kv.v, a.v_dim, v, j, i, scale));
		for (; d < vs; d += att_tile_nv(a) * VL)
			att_tile_values(a, t, att_tile_xs(a), in->n_block, at, from, to, d, first);
	}
	for (int r = 0; r < n_row; r++) {
		if (t->lc[r] == 0)
			continue;
		/* the same bits as by way of the span, with one copy less */
		if (t->shift[r / nh] == 0 && !a.kv.exact.page_bytes)
			att_merge(a.v_dim, &t->m[r], &t->l[r], t->o + r * vs, t->mc[r], t->lc[r],
			          t->oc + r * vs);
		else
			att_merge(a.v_dim, &t->ms[r], &t->ls[r], t->os + r * vs, t->mc[r], t->lc[r],
			          t->oc + r * vs);
	}
}

/* Processes rows [row0, row0 + n) of sequence seq for unit `unit` (0 .. att_units); n <=
 * att_tile_tokens. sink: [heads] or NULL; work: as for att_unit_init */
LLMC_INLINE void
att_tile(const Att a, float *work, const llmc_step *s, const void *pool, const float *q,
         const float *sink, float *y, int seq, int row0, int n, int unit)
{
	const int hb = att_hb(a), vs = att_vs(a), group = att_group(a),
	          k_groups = kv_groups(a.kv.k, a.dim);
	AttTile tile, *const t = &tile;
	int kv_head = unit / att_blocks(a), head = kv_head * group + unit % att_blocks(a) * hb;
	int nh = (kv_head + 1) * group - head < hb ? (kv_head + 1) * group - head : hb;
	int n_row = n * nh, n_block = (n_row + ATT_TILE_MR - 1) / ATT_TILE_MR;
	const AttRows in = { s, pool, seq, kv_head, n, nh, n_row, n_block };
	int lo = s->pos[row0], hi = 0;

	t->s = work;
	t->oc = t->s + ATT_TILE_R * ATT_CHUNK;
	t->os = t->oc + ATT_TILE_R * vs;
	t->o = t->os + ATT_TILE_R * vs;
	t->x = t->o + ATT_TILE_R * vs;
	t->q = t->x + KV_PAGE * (a.dim > att_tile_xs(a) ? a.dim : att_tile_xs(a));
	t->sums = t->q + ATT_TILE_R * a.dim;
	t->words = (KvWords *)(void *)(t->sums + ATT_TILE_R * k_groups);
	t->q_words = (int32_t *)(void *)(t->words + ATT_TILE_R * k_groups);
	t->zeros = (float *)(void *)(t->q_words + ATT_TILE_R * a.dim / 2);
	t->p = (int16_t *)(void *)(t->zeros + ATT_TILE_R * kv_groups(a.kv.v, a.v_dim) * VL);
	for (int i = 0; i < n; i++) {
		t->pos[i] = s->pos[row0 + i];
		t->range[i] = att_range(a, s, seq, t->pos[i]);
		t->shift[i] = split_shift(ATT_SPLIT, t->range[i]);
		lo = t->range[i].lo < lo ? t->range[i].lo : lo;
		hi = t->range[i].hi > hi ? t->range[i].hi : hi;
	}
	for (int r = 0; r < n_block * ATT_TILE_MR; r++) {
		const float *from =
		    q + ((size_t)(row0 + r / nh) * (size_t)a.heads + (size_t)(head + r % nh)) *
		            (size_t)a.dim;
		if (r < n_row)
			att_query(a, t->x, from);
		kv_query_sums(a.kv.k, a.dim, t->x,
		              t->sums + r / ATT_TILE_MR * k_groups * ATT_TILE_MR + r % ATT_TILE_MR,
		              ATT_TILE_MR);
#if KV_HAS_WORDS
		if (kv_in_words(a.kv.k, a.dim))
			kv_query_words(a.kv.k, a.dim, t->x,
			               t->q_words + r / ATT_TILE_MR * (a.dim / 2) * ATT_TILE_MR +
			                   r % ATT_TILE_MR * KV_UNIT,
			               t->words + r / ATT_TILE_MR * k_groups * ATT_TILE_MR +
			                   r % ATT_TILE_MR,
			               ATT_TILE_MR);
#endif
		for (int d = 0; d < a.dim; d++)
			t->q[((size_t)(r / ATT_TILE_MR) * (size_t)a.dim + (size_t)d) * ATT_TILE_MR +
			     (size_t)(r % ATT_TILE_MR)] = r < n_row ? t->x[d] : 0;
		t->l[r] = t->ls[r] = 0;
	}
	for (int g = 0; g < nh; g++)
		t->slope[g] = a.alibi > 0 ? att_slope(a, head + g) : 0;

	for (int chunk = lo / ATT_CHUNK; chunk * ATT_CHUNK < hi; chunk++) {
		att_tile_segment(a, ATT_FIRST, t, &in, chunk);
		att_tile_segment(a, ATT_QUANTISED, t, &in, chunk);
		att_tile_segment(a, ATT_RECENT, t, &in, chunk);
		for (int r = 0; r < n_row; r++) {
			int i = r / nh, mask = (1 << t->shift[i]) - 1;
			if (t->ls[r] == 0 ||
			    ((chunk & mask) != mask && chunk != (t->range[i].hi - 1) / ATT_CHUNK))
				continue;
			att_merge(a.v_dim, &t->m[r], &t->l[r], t->o + r * vs, t->ms[r], t->ls[r],
			          t->os + r * vs);
			t->ls[r] = 0;
		}
	}
	for (int r = 0; r < n_row; r++)
		att_put(a,
		        y + ((size_t)(row0 + r / nh) * (size_t)a.heads + (size_t)(head + r % nh)) *
		                (size_t)a.v_dim,
		        t->o + r * vs,
		        att_sink(sink ? sink + head + r % nh : NULL, t->m[r], t->l[r]));
}

#if defined(LLMC_TILES)
#include "cpu/attention/attention_tile_amx.h"
#endif

LLMC_INLINE void
att_any_tile(const Att a, float *work, const llmc_step *s, const void *pool, const float *q,
             const float *sink, float *y, int seq, int row0, int n, int unit)
{
#if defined(LLMC_TILES)
	if (att_tiled(a)) {
		att_amx_tile(a, work, s, pool, q, sink, y, seq, row0, n, unit);
		return;
	}
#endif
	att_tile(a, work, s, pool, q, sink, y, seq, row0, n, unit);
}

#define ATTENTION_TILE(name)                                                                       \
	static __attribute__((noinline, unused)) void name##_run_tile(                             \
	    float *work, const llmc_step *s, const void *pool, const float *q, const float *sink,  \
	    float *y, int seq, int row0, int n, int unit)                                          \
	{                                                                                          \
		att_any_tile(name(), work, s, pool, q, sink, y, seq, row0, n, unit);               \
	}

#endif
