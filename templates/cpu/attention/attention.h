/* Attention of one row. Results are bit-identical in every phase, batch, prefill chunk and number
 * of threads.
 *
 * cpu/attention/kv_cache.h describes how quantised keys and values are read. With one scale per
 * row, the key's scale multiplies s_j before the cap. The value's scale multiplies e_j after e_j
 * has been added to l. If a pool has exact pages (KvExact), a chunk is divided into up to three
 * segments (first positions, quantised positions, recent positions), each with its own m, l and o.
 * They are merged in order.
 *
 * For a row at position p and one query head, over the visible positions lo <= j < hi:
 *
 *   score    s_j = cap(scale q . k_j) + alibi: one FMA chain in the order of d
 *   chunk    positions [128 c, 128 c + 128): m = max s_j, e_j = exp(s_j - m), l = sum of e_j in VL lanes,
 *            o = sum of e_j v_j in the order of j
 *   span     2^k whole chunks, aligned to its size; its chunks are merged in order. k is the smallest value with at most
 *            64 spans in [lo, hi), so it depends only on the row, and partial
 *            results fit fixed memory at any length
 *   row      spans are merged in order; y = o / l, with a sink o / (l + exp(sink - m))
 *
 * On v3 and on Arm, rows of integer codes use integer arithmetic (cpu/attention/attention_int16.h),
 * in decode and in tiles. With AMX, scores and chunk sums are accumulated in the order of
 * cpu/attention/attention_amx.h, also in decode; spans and rows are as above. A tile of several
 * rows may add terms outside of [lo, hi) as exact zeros, as long as the other factor is finite. A
 * single row does not add such terms. There is no other difference between the two.
 *
 * An attention is a value of type Att, constant after inlining. ATTENTION(name, value) defines its
 * functions; a file may have several. The caller provides the scratch memory (`work` in
 * attention/attention.head). */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_H
#define LLMC_CPU_ATTENTION_ATTENTION_H

#include "cpu/attention/attention_base.h"

#if defined(LLMC_TILES)
#include "cpu/attention/attention_amx.h"
#endif

#include "cpu/attention/attention_int16.h"

/* ---- one row: units, chunks, spans ---- */
/* acc += element d of nk vectors of keys (from key j on) times element d of gb queries, which are
 * `stride` apart. acc and the smaller of the two operands stay in registers. */
LLMC_INLINE void
att_scores_of(const int type, const int gb, const int nk, const char *k, const float *q,
              const int stride, int d, int j, vf acc[8][8])
{
	vf x[8], y[8];

	if (gb <= nk) {
		LLMC_EACH(g, gb, 8)
		y[g] = vf_set1(q[g * stride]);
		LLMC_EACH(i, nk, 8)
		{
			const vf key = kv_key(type, k, d, j + i * VL);
			LLMC_EACH(g, gb, 8)
			acc[g][i] = vf_fma(key, y[g], acc[g][i]);
		}
		return;
	}
	LLMC_EACH(i, nk, 8)
	x[i] = kv_key(type, k, d, j + i * VL);
	LLMC_EACH(g, gb, 8)
	{
		const vf query = vf_set1(q[g * stride]);
		LLMC_EACH(i, nk, 8)
		acc[g][i] = vf_fma(x[i], query, acc[g][i]);
	}
}

/* Computes the scores of a page's 32 keys for gb heads. next: a page to prefetch; sums:
 * kv_query_sums of each query */
LLMC_INLINE void
att_scores(const Att a, const int gb, const char *k, const float *q, const float *sums, float *s,
           const char *next)
{
	const int group = kv_group(a.kv.k, a.dim), groups = kv_groups(a.kv.k, a.dim);
	const int nk = gb * ATT_NK <= ATT_ACC         ? ATT_NK
	               : gb * (ATT_NK / 2) <= ATT_ACC ? ATT_NK / 2
	               : ATT_NK > 4                   ? ATT_NK / 4
	                                              : 1;
	const int apart = VL < 16 && (kv_plain(a.kv.k) || kv_wide(a.kv.k));

	_Alignas(64) float channels[2 * KV_MOST_DIM];

	kv_channels(a.kv.k, a.dim, k, channels);
	LLMC_UNROLL
	for (int j0 = 0; j0 < ATT_NK; j0 += nk) {
		vf total[8][8];

		LLMC_EACH(g, gb, 8)
		LLMC_EACH(j, nk, 8)
		total[g][j] = vf_set1(0);
		for (int at = 0; at < a.dim; at += group) {
			const int end = at + group < a.dim ? at + group : a.dim;
			vf acc[8][8];
			LLMC_EACH(g, gb, 8)
			LLMC_EACH(j, nk, 8)
			acc[g][j] = vf_set1(0);
			for (int d = at; d < end; d += 4) {
				LLMC_EACH(e, 4, 4)
				if (j0 == 0 && (a.dim % 4 == 0 || d + e < end))
					att_prefetch_slice(next, d + e,
					                   (int)kv_plane(a.kv.k, a.dim) / a.dim);
				LLMC_EACH(e, 4, 4)
				if (apart && (a.dim % 4 == 0 || d + e < end))
					att_scores_of(a.kv.k, gb, nk, k, q + d + e, a.dim, d + e,
					              j0 * VL, acc);
				LLMC_EACH(j, apart ? 0 : nk, 8)
				{
					vf x[4];
					kv_keys(a.kv.k, a.dim, k, d / 4, (j0 + j) * VL, channels,
					        x);
					LLMC_EACH(e, 4, 4)
					if (a.dim % 4 == 0 || d + e < end)
						LLMC_EACH(g, gb, 8)
					acc[g][j] =
					    vf_fma(x[e], vf_set1(q[g * a.dim + d + e]), acc[g][j]);
				}
			}
			LLMC_EACH(j, nk, 8)
			{
				const KvScale scale =
				    kv_scale_k(a.kv.k, a.dim, k, at / group, (j0 + j) * VL);
				LLMC_EACH(g, gb, 8)
				total[g][j] = kv_score(
				    a.kv.k, at == 0, total[g][j], acc[g][j], scale,
				    vf_set1(a.kv.k == KV_int4 ? sums[g * groups + at / group] : 0));
			}
		}
		LLMC_EACH(g, gb, 8)
		LLMC_EACH(j, nk, 8)
		vf_store(s + g * ATT_CHUNK + (j0 + j) * VL, total[g][j]);
	}
}

/* Adds keys [lo, hi) of a chunk to o[g][d0 .. d0 + nv * VL) of gb heads. v[page]: values;
 * ahead[page]: a plane to prefetch */
LLMC_INLINE void
att_values(const Att a, const int gb, const int nv, const char *const *v, const char *const *ahead,
           int lo, int hi, const float *s, int d0, float *o)
{
	vf acc[8][4];
	_Alignas(64) float scale[KV_ROOM];

	LLMC_EACH(g, gb, 8)
	LLMC_EACH(i, nv, 4)
	acc[g][i] = vf_set1(0);
	for (int p = lo / KV_PAGE; p * KV_PAGE < hi; p++) {
		int j0 = lo > p * KV_PAGE ? lo : p * KV_PAGE,
		    j1 = hi < (p + 1) * KV_PAGE ? hi : (p + 1) * KV_PAGE;
		if (kv_grouped(a.kv.v))
			kv_scales_v(a.kv.v, a.v_dim, v[p], scale);
		for (int j = j0; j < j1; j++) {
			if (d0 == 0)
				att_prefetch_slice(ahead[p], j - p * KV_PAGE,
				                   (int)kv_plane(a.kv.v, a.v_dim) / KV_PAGE);
			LLMC_EACH(i, nv, 4)
			{
				vf x = kv_val(a.kv.v, a.v_dim, v[p], j - p * KV_PAGE, d0 + i * VL,
				              scale);
				LLMC_EACH(g, gb, 8)
				acc[g][i] = vf_fma(x, vf_set1(s[g * ATT_CHUNK + j]), acc[g][i]);
			}
		}
	}
	LLMC_EACH(g, gb, 8)
	LLMC_EACH(i, nv, 4)
	vf_store(o + g * att_vs(a) + d0 + i * VL, acc[g][i]);
}

LLMC_INLINE void
att_values_all(const Att a, const int gb, const char *const *v, const char *const *ahead, int lo,
               int hi, const float *s, float *o)
{
	const int nv = gb * 4 <= ATT_ACC ? 4 : gb * 2 <= ATT_ACC ? 2 : 1;
	int d = 0;

	LLMC_UNROLL
	for (; d + nv * VL <= att_vs(a); d += nv * VL)
		att_values(a, gb, nv, v, ahead, lo, hi, s, d, o);
	for (; d < att_vs(a); d += VL)
		att_values(a, gb, 1, v, ahead, lo, hi, s, d, o);
}

/* Partial result of the query heads of one unit; o [att_hb][att_vs] */
typedef struct AttPart {
	float *o;
	float m[ATT_MOST_HB], l[ATT_MOST_HB];
} AttPart;

/* State while a work unit (at most 8 query heads of one row) is processed */
typedef struct AttUnit {
	const llmc_step *s;
	const void *pool;
	int row, seq, pos, kv_head, head; /* head: first query head */
	int n_head; /* number of query heads: att_hb, or fewer in the last block of a kv head */
	int shift;
	SplitRange range;
	float slope[ATT_MOST_HB];
	const float *sink; /* [heads], or NULL */
	float *q;          /* [att_hb][dim], scaled */
	float *sums;       /* [att_hb][kv_groups] kv_query_sums of q */
	/* queries as words (kv_query_words): q_words [att_hb][dim / 2], words per group
	 * [att_hb][kv_groups] */
	int32_t *q_words;
	KvWords *words;
	AttWords w;               /* weights of a chunk */
	float *scores;            /* [att_hb][ATT_CHUNK] */
	AttPart chunk, span, sum; /* partial results of a chunk, a span, the row */
	uint8_t *queries, *weights,
	    /* AMX: bf16 parts of the row's queries, of the weights of a chunk, and of the current
	     * keys or values */
	    *ring;
} AttUnit;

LLMC_INLINE void
att_part_clear(AttPart *p)
{
	memset(p->l, 0, sizeof p->l);
}

LLMC_INLINE void
att_part_merge(const Att a, AttPart *to, const AttPart *from)
{
	for (int g = 0; g < att_hb(a); g++)
		att_merge(a.v_dim, &to->m[g], &to->l[g], to->o + g * att_vs(a), from->m[g],
		          from->l[g], from->o + g * att_vs(a));
}

#if defined(LLMC_TILES)
/* Assigns the AMX buffers of a unit, from `work` on. Returns the memory after them, which begins
 * with a row of zeros. */
LLMC_INLINE float *
att_amx_unit(const Att a, AttUnit *u, float *work)
{
	const int steps = att_amx_steps(a.dim);

	u->queries = (uint8_t *)work;
	u->weights = u->queries + steps * 2 * AMX_TILE;
	u->ring = u->weights + ATT_AMX_P;
	work = (float *)(void *)(u->ring + att_amx_ring_bytes(a));
	memset(work, 0, (size_t)(steps * 32) * sizeof *work);
	return work;
}
#endif

/* Sets up unit `unit` (0 .. att_units) of row `row`. work: ATT_WORK floats, 64-byte aligned */
LLMC_INLINE void
att_unit_init(const Att a, AttUnit *u, const llmc_step *s, const void *pool, const float *q,
              const float *sink, float *work, int row, int unit)
{
	const int hb = att_hb(a), part = hb * att_vs(a),
	          n_weights = hb * kv_groups(a.kv.v, a.v_dim);

	u->s = s;
	u->pool = pool;
	u->sink = sink;
	u->row = row;
	u->seq = s->seq_of[row];
	u->pos = s->pos[row];
	u->kv_head = unit / att_blocks(a);
	u->head = u->kv_head * att_group(a) + unit % att_blocks(a) * hb;
	u->n_head = (u->kv_head + 1) * att_group(a) - u->head;
	if (u->n_head > hb)
		u->n_head = hb;
	u->range = att_range(a, s, u->seq, u->pos);
	u->shift = split_shift(ATT_SPLIT, u->range);
#if defined(LLMC_TILES)
	float *padded = work;
	if (att_tiled(a)) {
		padded = att_amx_unit(a, u, work);
		work = padded + att_amx_steps(a.dim) * 32;
	}
#endif
	u->scores = work;
	u->chunk.o = work + hb * ATT_CHUNK;
	u->span.o = u->chunk.o + part;
	u->sum.o = u->span.o + part;
	u->q = u->sum.o + part;
	u->sums = u->q + hb * a.dim;
	u->words = (KvWords *)(void *)(u->sums + hb * kv_groups(a.kv.k, a.dim));
	u->q_words = (int32_t *)(void *)(u->words + hb * kv_groups(a.kv.k, a.dim));
	u->w.zeros = (float *)(void *)(u->q_words + hb * a.dim / 2);
	u->w.p = (int16_t(*)[KV_PAGE])(void *)(u->w.zeros + n_weights * VL);
	for (int g = 0; g < hb; g++) {
		/* a partial block repeats its last head */
		int h = u->head + (g < u->n_head ? g : u->n_head - 1);
		const float *from = q + ((size_t)row * (size_t)a.heads + (size_t)h) * (size_t)a.dim;
		att_query(a, u->q + g * a.dim, from);
		kv_query_sums(a.kv.k, a.dim, u->q + g * a.dim,
		              u->sums + g * kv_groups(a.kv.k, a.dim), 1);
#if KV_HAS_WORDS
		if (kv_in_words(a.kv.k, a.dim))
			kv_query_words(a.kv.k, a.dim, u->q + g * a.dim,
			               u->q_words + g * (a.dim / 2),
			               u->words + g * kv_groups(a.kv.k, a.dim), 1);
#endif
#if defined(LLMC_TILES)
		if (att_tiled(a)) {
			memcpy(padded, u->q + g * a.dim, (size_t)a.dim * sizeof *padded);
			att_amx_query(a, padded, g, u->queries);
		}
#endif
		u->slope[g] = a.alibi > 0 ? att_slope(a, h) : 0;
	}
	att_part_clear(&u->sum);
}

LLMC_INLINE const char *
att_page_k(const Att a, const AttUnit *u, int page)
{
	return kv_k(a.kv, kv_page_at(a.kv, u->s, u->pool, u->seq, page), u->kv_head);
}

LLMC_INLINE const char *
att_page_v(const Att a, const AttUnit *u, int page)
{
	return kv_v(a.kv, kv_page_at(a.kv, u->s, u->pool, u->seq, page), u->kv_head);
}

/* Returns the plane to prefetch while plane i of a chunk is read. The order of planes is K of the
 * chunk's n pages, then V. Quantised planes, and planes that are converted to AMX tiles, are
 * consumed faster than memory delivers them, so their prefetch distance is one plane longer. end:
 * end of the positions read in this form */
LLMC_INLINE const char *
att_ahead(const Att a, const AttUnit *u, const char *const *k, const char *const *v, int n, int i,
          int page, int end)
{
	i += kv_plain(a.kv.k) && !att_tiled(a) ? 1 : ATT_AHEAD;
	if (i < 2 * n)
		return i < n ? k[i] : v[i - n];
	page += i - n; /* in the next chunk */
	return page * KV_PAGE < end ? att_page_k(a, u, page) : v[n - 1];
}

/* Computes the scores of a page for gb heads from head g on; s: scores of the first of them */
LLMC_INLINE void
att_scores_some(const Att a, const AttUnit *u, const int gb, const char *k, int g, float *s,
                const char *next)
{
	const int groups = kv_groups(a.kv.k, a.dim);

#if KV_HAS_WORDS
	if (kv_in_words(a.kv.k, a.dim)) {
		att_word_scores(a, gb, k, u->q_words + g * (a.dim / 2), u->words + g * groups,
		                u->sums + g * groups, s + g * ATT_CHUNK, next);
		return;
	}
#endif
	att_scores(a, gb, k, u->q + g * a.dim, u->sums + g * groups, s + g * ATT_CHUNK, next);
}

/* Processes the positions `see` of a chunk: scores of its pages, softmax, weighted sums of its
 * pages. */
LLMC_INLINE void
att_chunk(const Att a, AttUnit *u, SplitRange see, int chunk, AttPart *out)
{
	const int hb = att_hb(a), gb = att_gb(a), tail = hb % gb;
	const char *k[ATT_PAGES], *v[ATT_PAGES], *ahead[ATT_PAGES];
	float *s = u->scores;
	int pos0 = chunk * ATT_CHUNK;
	int lo = see.lo > pos0 ? see.lo - pos0 : 0;
	int hi = see.hi < pos0 + ATT_CHUNK ? see.hi - pos0 : ATT_CHUNK;
	int p0 = lo / KV_PAGE, n = (hi - 1) / KV_PAGE + 1 - p0, base = chunk * ATT_PAGES + p0;

	for (int p = 0; p < n; p++) {
		k[p] = att_page_k(a, u, base + p);
		v[p0 + p] = att_page_v(a, u, base + p);
	}
#if defined(LLMC_TILES)
	if (att_tiled(a)) {
		const char *soon[ATT_PAGES];
		for (int p = 0; p < n; p++) {
			soon[p] = att_ahead(a, u, k, v + p0, n, p, base, see.hi);
			ahead[p0 + p] = att_ahead(a, u, k, v + p0, n, n + p, base, see.hi);
		}
		att_amx_row_scores(a, u->queries, k, soon, n, u->ring, s + p0 * KV_PAGE);
		for (int g = 0; g < hb; g++)
			att_amx_softmax(a, s + g * ATT_CHUNK, p0, p0 + n, pos0, lo, hi, u->pos,
			                u->slope[g], u->weights, g, &out->m[g], &out->l[g]);
		att_amx_row_sums(a, u->weights, v, ahead, p0, p0 + n, hi - p0 * KV_PAGE, u->ring,
		                 out->o);
		return;
	}
#endif
	for (int p = 0; p < n; p++) {
		const char *next = att_ahead(a, u, k, v + p0, n, p, base, see.hi);
		float *to = s + (p0 + p) * KV_PAGE;
		for (int g = 0; g + gb <= hb; g += gb)
			att_scores_some(a, u, gb, k[p], g, to, next);
		if (tail)
			att_scores_some(a, u, tail, k[p], hb - tail, to, next);
		ahead[p0 + p] = att_ahead(a, u, k, v + p0, n, n + p, base, see.hi);
	}
	for (int g = 0; g < hb; g++)
		att_softmax(a, ATT_CHUNK, s + g * ATT_CHUNK, pos0, lo, hi, u->pos, u->slope[g],
		            &out->m[g], &out->l[g]);
#if KV_HAS_WORDS
	if (kv_in_words(a.kv.v, a.v_dim)) {
		att_word_weights(a, hb, v, p0, n, hi, s, &u->w);
		for (int g = 0; g + gb <= hb; g += gb)
			att_word_values(a, hb, gb, g, v, ahead, p0, n, &u->w, out->o);
		if (tail)
			att_word_values(a, hb, tail, hb - tail, v, ahead, p0, n, &u->w, out->o);
		return;
	}
#endif
	for (int p = p0; kv_folded(a.kv.v) && p < p0 + n; p++)
		for (int g = 0; g < hb; g++)
			kv_fold_v(a.kv.v, a.v_dim, v[p], s + g * ATT_CHUNK + p * KV_PAGE);
	int g = 0;
	for (; g + gb <= hb; g += gb)
		att_values_all(a, gb, v, ahead, lo, hi, s + g * ATT_CHUNK, out->o + g * att_vs(a));
	if (tail)
		att_values_all(a, tail, v, ahead, lo, hi, s + g * ATT_CHUNK,
		               out->o + g * att_vs(a));
}

/* Processes a segment of a chunk, if the row has positions in it, and merges the result into
 * u->span. */
LLMC_INLINE void
att_chunk_segment(const Att a, const int segment, AttUnit *u, int chunk)
{
	if (!att_has_segment(a, segment))
		return;
	const SplitRange see = att_segment(a, segment, u->range, u->pos);
	if (see.lo >= see.hi || see.lo >= (chunk + 1) * ATT_CHUNK || see.hi <= chunk * ATT_CHUNK)
		return;
	att_chunk(att_segment_form(a, segment), u, see, chunk, &u->chunk);
	att_part_merge(a, &u->span, &u->chunk);
}

/* Processes a span. The result is in u->span. */
LLMC_INLINE void
att_span(const Att a, AttUnit *u, int span)
{
	SplitChunks c = split_chunks(ATT_SPLIT, u->range, u->shift, span);

	att_part_clear(&u->span);
#if defined(LLMC_TILES)
	if (att_tiled(a))
		amx_begin(att_hb(a), 64);
#endif
	for (; c.first <= c.last; c.first++) {
		att_chunk_segment(a, ATT_FIRST, u, c.first);
		att_chunk_segment(a, ATT_QUANTISED, u, c.first);
		att_chunk_segment(a, ATT_RECENT, u, c.first);
	}
#if defined(LLMC_TILES)
	if (att_tiled(a))
		amx_end();
#endif
}

LLMC_INLINE void
att_unit_finish(const Att a, const AttUnit *u, float *y)
{
	for (int g = 0; g < u->n_head; g++)
		att_put(a,
		        y + ((size_t)u->row * (size_t)a.heads + (size_t)(u->head + g)) *
		                (size_t)a.v_dim,
		        u->sum.o + g * att_vs(a),
		        att_sink(u->sink ? u->sink + u->head + g : NULL, u->sum.m[g], u->sum.l[g]));
}

/* Defines name(), which returns the Att value, and name_run_span, att_span for that value, compiled
 * once. */
#define ATTENTION(name, ...)                                                                       \
	LLMC_INLINE Att name(void)                                                                 \
	{                                                                                          \
		return (Att){ __VA_ARGS__ };                                                       \
	}                                                                                          \
	static __attribute__((noinline, unused)) void name##_run_span(AttUnit *u, int span)        \
	{                                                                                          \
		att_span(name(), u, span);                                                         \
	}

#endif
