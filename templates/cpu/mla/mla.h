/* Latent attention: rows of one sequence over the latents and keys of its pages, in one of two
 * forms (common/llmc_mla.h).
 *
 * Absorbed: all query heads share one key and value head, the latent. A tile has several tokens and
 * up to 32 of their heads.
 *   for each chunk of 64 positions:
 *     pages --to fp32, once for all heads--> x [64][rank + rope]
 *     x, q --dot products along rank + rope, VL of them reduced at once--> s [rows][64] --softmax--> weights, m, l
 *     x, weights --sums over positions--> oc [rows][rank] --at ends of spans--> os, o
 *
 * A row with selected positions has its own fp32 tile, which processes the selected positions as if
 * they were consecutive. cpu/attention/split_kv.h defines the spans of a row,
 * cpu/attention/attention.h how they are merged. Bytes: the latents once per tile.
 *
 * Expanded: a work unit is a query head and up to 512 rows.
 *   for each chunk of 128 positions:
 *     latents --GEMM with k_b[h] and v_b[h]--> keys [dim][32] per page, values [32][v_dim] per page, of this head, in cache
 *     rows by 48 --cpu/attention/attention_tile.h--> o
 *
 * Chunks are merged in order. Bytes: the latents, k_b[h] and v_b[h] once per chunk and head.
 *
 * A row's result depends only on the row and on the form that it uses, not on the tile, the thread
 * or other rows. */
#ifndef LLMC_CPU_MLA_MLA_H
#define LLMC_CPU_MLA_MLA_H

#include "cpu/attention/attention_tile.h"
#include "cpu/math/lane_sums.h"
#include "common/llmc_mla.h"

typedef struct Mla {
	int heads, rank, nope, rope, v_dim, expand, chosen;
	float scale;
	int kv;
	size_t page_bytes;
} Mla;

enum {
	MLA_CHUNK = 64,
	MLA_SPANS = 32,
	MLA_HEADS = 32,      /* largest number of heads per tile */
	MLA_R = 64,          /* rows per tile: tokens times heads */
	MLA_RB = LANES_ROWS, /* rows and positions per block of VL dot products */
	MLA_JB = LANES_OF,
	MLA_MR = VL == 16 ? 8 : 4,
	MLA_ROWS = 512, /* rows of an expanded unit */
#if defined(LLMC_TILES)
	MLA_TILES = 1,
#else
	MLA_TILES = 0,
#endif
	MLA_PAD = MLA_TILES ? 16 : 8, /* rows are padded to a multiple of this */
};
#define MLA_SPLIT ((Split){ MLA_CHUNK, MLA_SPANS })

LLMC_INLINE int
mla_up(int n, int to)
{
	return (n + to - 1) / to * to;
}

/* elements per position, and the stride of positions as fp32 */
LLMC_INLINE int
mla_width(const Mla a)
{
	return a.rank + a.rope;
}

LLMC_INLINE int
mla_stride(const Mla a)
{
	return mla_up(mla_width(a), MLA_TILES ? 32 : VL);
}

/* stride of o */
LLMC_INLINE int
mla_os(const Mla a)
{
	return mla_up(a.rank, VL);
}

LLMC_INLINE int
mla_blocks(const Mla a)
{
	return (a.heads + MLA_HEADS - 1) / MLA_HEADS;
}

LLMC_INLINE int
mla_hb(const Mla a)
{
	return (a.heads + mla_blocks(a) - 1) / mla_blocks(a);
}

/* tokens per tile */
LLMC_INLINE int
mla_tokens(const Mla a)
{
	return MLA_R / mla_hb(a);
}

/* ---- absorbed ---- */
typedef struct MlaTile {
	const llmc_step *s;
	const void *pool;
	int seq, row0, n_tok, head, n_head;
	int rows; /* n_tok * n_head; row r is head r % n_head of token r / n_head */
	/* positions selected for the tile's only token; NULL: consecutive positions */
	const int32_t *sel;
	float *x, *q,
	    *w; /* latents [64][stride], scaled queries [row][stride], weights [row][64] */
	float *oc, *os, *o; /* [row][mla_os] sums of a chunk, a span, the row */
	/* per row, for a chunk, a span and the row: maximum of the scores, and sum of the
	 * weights */
	float mc[MLA_R], lc[MLA_R], ms[MLA_R], ls[MLA_R], m[MLA_R], l[MLA_R];
	uint8_t *ring, *weights; /* cpu/mla/mla_amx.h */
	SplitRange range[MLA_R]; /* per token */
	int shift[MLA_R];
} MlaTile;

/* Returns whether a row sees more positions than index_top_k. Such a row has its own tile, and its
 * positions are numbered in the order of sel. */
LLMC_INLINE int
mla_selected(const Mla a, const llmc_step *s, int row)
{
	return a.chosen && s->pos[row] >= a.chosen;
}

LLMC_INLINE SplitRange
mla_range(const Mla a, const llmc_step *s, int row)
{
	if (mla_selected(a, s, row))
		return (SplitRange){ 0, a.chosen };
	return (SplitRange){ 0, s->pos[row] + 1 };
}

/* Returns the positions selected for the tile's only token; NULL: consecutive positions. */
LLMC_INLINE const int32_t *
mla_sel(const Mla a, const MlaTile *t)
{
	return a.chosen ? t->sel : NULL;
}

/* Returns the number of tokens of a tile that begins at `row`; tokens from `to` on are excluded. */
LLMC_INLINE int
mla_tile_tokens(const Mla a, const llmc_step *s, int row, int to, int most)
{
	int n = 1;

	while (n < most && row + n < to && !mla_selected(a, s, row) && !mla_selected(a, s, row + n))
		n++;
	return n;
}

/* whether AMX is used */
LLMC_INLINE int
mla_tiled(const Mla a)
{
#if defined(LLMC_TILES)
	return a.kv == KV_f16 || kv_grouped(a.kv);
#else
	(void)a;
	return 0;
#endif
}

#if defined(LLMC_TILES)
#include "cpu/mla/mla_amx.h"
#endif

/* Sets up a tile for tokens [row0, row0 + n) of a sequence; unit: 0 .. mla_blocks. sel: selected
 * positions of all rows of the step, or NULL; work: 64-byte aligned, see mla/mla_attend.head */
LLMC_INLINE void
mla_tile_init(const Mla a, MlaTile *t, const llmc_step *s, const void *pool, const int32_t *sel,
              const float *q, float *work, int row0, int n, int unit)
{
	const int stride = mla_stride(a), width = mla_width(a);

	t->s = s;
	t->pool = pool;
	t->seq = s->seq_of[row0];
	t->row0 = row0;
	t->n_tok = n;
	t->sel = mla_selected(a, s, row0) ? sel + (size_t)row0 * (size_t)a.chosen : NULL;
	t->head = unit * mla_hb(a);
	t->n_head = a.heads - t->head < mla_hb(a) ? a.heads - t->head : mla_hb(a);
	t->rows = n * t->n_head;
	t->x = work;
	t->q = t->x + MLA_CHUNK * stride;
	t->w = t->q + MLA_R * stride;
	t->oc = t->w + MLA_R * MLA_CHUNK;
	t->os = t->oc + MLA_R * mla_os(a);
	t->o = t->os + MLA_R * mla_os(a);
#if defined(LLMC_TILES)
	t->ring = (uint8_t *)(t->o + MLA_R * mla_os(a));
	t->weights = t->ring + MLA_RING;
#endif
	for (int i = 0; i < n; i++) {
		t->range[i] = mla_range(a, s, row0 + i);
		t->shift[i] = split_shift(MLA_SPLIT, t->range[i]);
	}
	for (int r = 0; r < mla_up(t->rows, MLA_PAD); r++) {
		const float *from = q + ((size_t)(row0 + r / t->n_head) * (size_t)a.heads +
		                         (size_t)(t->head + r % t->n_head)) *
		                            (size_t)width;
		float *to = t->q + r * stride;
		t->l[r] = t->ls[r] = 0;
#if defined(LLMC_TILES)
		if (mla_tiled(a) && !mla_sel(a, t)) {
			mla_amx_query(a, (uint8_t *)t->q, r, from, r < t->rows ? width : 0);
			continue;
		}
#endif
		for (int i = 0; i < stride; i++)
			to[i] = r < t->rows && i < width ? from[i] * a.scale : 0;
	}
}

/* Converts positions [0, n) of a chunk to fp32. Prefetches later selected positions, up to
 * `end`. */
LLMC_INLINE void
mla_fetch(const Mla a, const llmc_step *s, const void *pool, int seq, const int32_t *sel, int pos0,
          int n, int end, float *x)
{
	const int stride = mla_stride(a), width = mla_width(a),
	          bytes = (int)kv_plane(a.kv, width) / KV_PAGE;
	const char *last = NULL;
	_Alignas(64) float scale[KV_ROOM];

	for (int j = 0; j < n; j++) {
		const int pos = sel ? sel[pos0 + j] : pos0 + j, at = pos % KV_PAGE,
		          ahead = pos0 + MLA_CHUNK + j;
		const char *page = kv_page(s, pool, a.page_bytes, seq, pos / KV_PAGE);
		if (sel && ahead < end) {
			const char *next =
			    kv_page(s, pool, a.page_bytes, seq, sel[ahead] / KV_PAGE) +
			    sel[ahead] % KV_PAGE * bytes;
			for (int i = 0; i < bytes; i += 64)
				__builtin_prefetch(next + i);
		}
		if (kv_grouped(a.kv) && page != last)
			kv_scales_v(a.kv, width, page, scale);
		last = page;
		for (int i = 0; i < width; i += VL)
			vf_store(x + j * stride + i, kv_val(a.kv, width, page, at, i, scale));
	}
}

/* Computes s[r][j] for rows, padded to MLA_RB, and positions pos0 + j, padded to MLA_JB. */
LLMC_INLINE void
mla_scores(const Mla a, const MlaTile *t, int pos0, int n)
{
	const int stride = mla_stride(a), bytes = (int)kv_plane(a.kv, mla_width(a)) / KV_PAGE,
	          end = t->range[t->n_tok - 1].hi;

	for (int j0 = 0; j0 < n; j0 += MLA_JB) {
		const float *x = t->x + j0 * stride;
		/* prefetch the next chunk, one share per block of rows */
		const int ahead = pos0 + MLA_CHUNK + j0,
		          share = mla_up(MLA_JB * bytes * MLA_RB / t->rows, 64);
		const char *next =
		    !mla_sel(a, t) && ahead < end
		        ? kv_page(t->s, t->pool, a.page_bytes, t->seq, ahead / KV_PAGE) +
		              ahead % KV_PAGE * bytes
		        : NULL;
		for (int r0 = 0; r0 < t->rows; r0 += MLA_RB) {
			for (int i = 0; next && i < share; i += 64)
				__builtin_prefetch(next + r0 / MLA_RB * share + i);
			float sum[VL];
			vf_store(sum, lanes_dots(t->q + r0 * stride, x, stride));
			for (int r = 0; r < MLA_RB; r++)
				memcpy(t->w + (r0 + r) * MLA_CHUNK + j0, sum + r * MLA_JB,
				       MLA_JB * sizeof *sum);
		}
	}
}

/* oc = weights times the latents of positions [0, n) */
LLMC_INLINE void
mla_sums(const Mla a, const MlaTile *t, const int nv, int n, int d)
{
	const int stride = mla_stride(a), os = mla_os(a);

	for (int r0 = 0; r0 < t->rows; r0 += MLA_MR) {
		vf acc[MLA_MR][2];

		LLMC_UNROLL
		for (int r = 0; r < MLA_MR; r++)
			acc[r][0] = acc[r][1] = vf_set1(0);
		for (int j = 0; j < n; j++) {
			vf x[2];
			LLMC_EACH(i, nv, 2)
			x[i] = vf_load(t->x + j * stride + d + i * VL);
			LLMC_UNROLL
			for (int r = 0; r < MLA_MR; r++) {
				vf p = vf_set1(t->w[(r0 + r) * MLA_CHUNK + j]);
				LLMC_EACH(i, nv, 2)
				acc[r][i] = vf_fma(x[i], p, acc[r][i]);
			}
		}
		LLMC_UNROLL
		for (int r = 0; r < MLA_MR; r++)
			LLMC_EACH(i, nv, 2)
		vf_store(t->oc + (r0 + r) * os + d + i * VL, acc[r][i]);
	}
}

/* Computes oc, mc, lc of a chunk that some token sees. lc is 0 for rows that see nothing of the
 * chunk. */
LLMC_INLINE void
mla_chunk(const Mla a, MlaTile *t, int chunk)
{
	const int os = mla_os(a), pos0 = chunk * MLA_CHUNK;
	int end = t->range[t->n_tok - 1].hi, n = end - pos0 < MLA_CHUNK ? end - pos0 : MLA_CHUNK,
	    d = 0;

#if defined(LLMC_TILES)
	if (mla_tiled(a) && !mla_sel(a, t)) {
		mla_amx_chunk(a, t, pos0, n);
		return;
	}
#endif
	mla_fetch(a, t->s, t->pool, t->seq, mla_sel(a, t), pos0, n, end, t->x);
	mla_scores(a, t, pos0, n);
	for (int r = 0; r < mla_up(t->rows, MLA_PAD); r++) {
		float *w = t->w + r * MLA_CHUNK;
		int hi = r < t->rows ? t->range[r / t->n_head].hi - pos0 : 0;
		t->lc[r] = 0;
		if (hi > 0)
			att_softmax((Att){ 0 }, MLA_CHUNK, w, pos0, 0,
			            hi < MLA_CHUNK ? hi : MLA_CHUNK, 0, 0, &t->mc[r], &t->lc[r]);
		else
			memset(w, 0, MLA_CHUNK * sizeof *w);
	}
	for (; d + 2 * VL <= os; d += 2 * VL)
		mla_sums(a, t, 2, n, d);
	if (d < os)
		mla_sums(a, t, 1, n, d);
}

/* Processes one span of a single-token tile. Results are in os, ms, ls. */
LLMC_INLINE void
mla_span(const Mla a, MlaTile *t, int span)
{
	SplitChunks c = split_chunks(MLA_SPLIT, t->range[0], t->shift[0], span);

	memset(t->ls, 0, sizeof t->ls);
	for (; c.first <= c.last; c.first++) {
		mla_chunk(a, t, c.first);
		for (int r = 0; r < t->rows; r++)
			att_merge(a.rank, &t->ms[r], &t->ls[r], t->os + r * mla_os(a), t->mc[r],
			          t->lc[r], t->oc + r * mla_os(a));
	}
}

LLMC_INLINE void
mla_finish(const Mla a, const MlaTile *t, float *y)
{
	for (int r = 0; r < t->rows; r++)
		att_finish(a.rank,
		           y + ((size_t)(t->row0 + r / t->n_head) * (size_t)a.heads +
		                (size_t)(t->head + r % t->n_head)) *
		                   (size_t)a.rank,
		           t->o + r * mla_os(a), t->l[r]);
}

/* Processes a whole tile. The result is in o. */
LLMC_INLINE void
mla_tile(const Mla a, MlaTile *t)
{
	const int os = mla_os(a), end = t->range[t->n_tok - 1].hi;

	for (int chunk = 0; chunk * MLA_CHUNK < end; chunk++) {
		mla_chunk(a, t, chunk);
		for (int r = 0; r < t->rows; r++) {
			int i = r / t->n_head, mask = (1 << t->shift[i]) - 1;
			if (t->lc[r] == 0)
				continue;
			att_merge(a.rank, &t->ms[r], &t->ls[r], t->os + r * os, t->mc[r], t->lc[r],
			          t->oc + r * os);
			if ((chunk & mask) == mask || chunk == (t->range[i].hi - 1) / MLA_CHUNK) {
				att_merge(a.rank, &t->m[r], &t->l[r], t->o + r * os, t->ms[r],
				          t->ls[r], t->os + r * os);
				t->ls[r] = 0;
			}
		}
	}
}

/* Defines name(), which returns the description, and name_run_span and name_run_tile, which are
 * compiled once. */
#define LATENT_ATTENTION(name, ...)                                                                \
	LLMC_INLINE Mla name(void)                                                                 \
	{                                                                                          \
		return (Mla){ __VA_ARGS__ };                                                       \
	}                                                                                          \
	static __attribute__((noinline, unused)) void name##_run_span(MlaTile *t, int i)           \
	{                                                                                          \
		mla_span(name(), t, i);                                                            \
	}                                                                                          \
	static __attribute__((noinline, unused)) void name##_run_tile(MlaTile *t)                  \
	{                                                                                          \
		mla_tile(name(), t);                                                               \
	}

#endif
