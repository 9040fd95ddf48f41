/* Attention of one row. Results are bit-identical in every phase, batch, prefill chunk and number
 * of threads.
 *
 * cpu/attention/kv_cache.h describes how quantised keys and values are read: with one scale per
 * row, the key's scale multiplies s_j before the cap, and the value's scale multiplies e_j after l
 * is summed. If a pool has exact pages (KvExact), a chunk is divided into up to three segments
 * (first positions, quantised positions, recent positions), each with its own m, l and o. They are
 * merged in order.
 *
 * For a row at position p and one query head, over the visible positions lo <= j < hi:
 *
 *   score    s_j = cap(scale q . k_j) + alibi: one FMA chain in the order of d
 *   chunk    positions [128 c, 128 c + 128): m = max s_j, e_j = exp(s_j - m), l = sum of e_j in VL lanes,
 *            o = sum of e_j v_j in the order of j
 *   span     2^k whole chunks, aligned to its size; its chunks are merged in order. k is the smallest value with at most
 *            64 spans in [lo, hi), so it depends only on the row, and partial results fit fixed
 * memory at any length
 *   row      spans are merged in order; y = o / l, with a sink o / (l + exp(sink - m))
 *
 * On v3, rows of integer codes use integer arithmetic (cpu/attention/attention_int16.h), in decode
 * and in tiles. With AMX (cpu/attention/attention_amx.h), scores and chunk sums are accumulated in
 * that file's order, in decode too; the rest is the same. Terms outside of [lo, hi) may be added as
 * exact zeros, as long as the other factor is finite. This is the only difference between a tile of
 * several rows and a single row.
 *
 * An attention is a value of type Att, constant after inlining. ATTENTION(name, value) defines its
 * functions; a file may have several. The caller provides the scratch memory (`work` in
 * attention/attention.head). */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_H
#define LLMC_CPU_ATTENTION_ATTENTION_H

#include "cpu/attention/kv_cache.h"
#include "cpu/attention/split_kv.h"

typedef struct Att {
	int heads, kv_heads, dim, v_dim;
	float scale, cap;
	int window, chunk; /* chunk: the window starts at a multiple of its size */
	double alibi;
	/* index of the first slope, and heads in the slope rule; 0, 0: all `heads` */
	int alibi_first, alibi_heads;
	/* MASK_*: prefix: rows also attend to the prefix of their sequence; none: to all of its
	 * positions, or with a window to those less than `window` away */
	int mask;
	KvForm kv;
} Att;

enum { MASK_causal, MASK_prefix, MASK_none };

enum {
	ATT_CHUNK = 128,
	ATT_SPANS = 64,
	ATT_PAGES = ATT_CHUNK / KV_PAGE, /* pages per chunk */
	ATT_MOST_HB = 8,
	ATT_AHEAD = VL == 8 ? 4 : 2,  /* prefetch distance in planes, quantised types */
	ATT_NK = KV_PAGE / VL,        /* vectors of keys per page */
	ATT_ACC = VL == 16 ? 24 : 12, /* accumulators: 12 of 16 or 24 of 32 registers */
};

LLMC_INLINE int
att_group(const Att a)
{
	return a.heads / a.kv_heads;
}

#define ATT_SPLIT ((Split){ ATT_CHUNK, ATT_SPANS })

/* A work unit is a sequence, a kv head and at most 8 of its query heads. Number of such blocks of
 * query heads per kv head */
LLMC_INLINE int
att_blocks(const Att a)
{
	return (att_group(a) + ATT_MOST_HB - 1) / ATT_MOST_HB;
}

/* query heads per block */
LLMC_INLINE int
att_hb(const Att a)
{
	return (att_group(a) + att_blocks(a) - 1) / att_blocks(a);
}

/* work units per row */
LLMC_INLINE int
att_units(const Att a)
{
	return a.kv_heads * att_blocks(a);
}

/* stride of o */
LLMC_INLINE int
att_vs(const Att a)
{
	return (a.v_dim + VL - 1) / VL * VL;
}

/* query heads per load of K or V */
LLMC_INLINE int
att_gb(const Att a)
{
	return VL == 16 || att_hb(a) <= 6 ? att_hb(a) : 4;
}

LLMC_INLINE SplitRange
att_range(const Att a, const llmc_step *s, int seq, int pos)
{
	SplitRange r = { 0, pos + 1 };

	if (a.mask == MASK_none) {
		r.hi = s->kv_len[seq];
		if (a.window > 0 && r.hi > pos + a.window)
			r.hi = pos + a.window;
	} else if (a.mask == MASK_prefix) {
		int prefix =
		    s->prefix_len[seq] < s->kv_len[seq] ? s->prefix_len[seq] : s->kv_len[seq];
		if (r.hi < prefix)
			r.hi = prefix;
	}
	if (a.window > 0 && a.chunk)
		r.lo = pos - pos % a.window;
	else if (a.window > 0 && pos + 1 > a.window)
		r.lo = pos + 1 - a.window;
	return r;
}

/* Segments of the visible positions, by the way a row reads them */
enum { ATT_FIRST, ATT_QUANTISED, ATT_RECENT };

LLMC_INLINE Att
att_segment_form(const Att a, const int segment)
{
	Att b = a;

	if (segment != ATT_QUANTISED)
		b.kv = kv_exact_form(a.kv);
	return b;
}

/* Returns whether rows can have such a segment */
LLMC_INLINE int
att_has_segment(const Att a, const int segment)
{
	return segment == ATT_FIRST    ? a.kv.exact.sinks > 0
	       : segment == ATT_RECENT ? a.kv.exact.recent > 0
	                               : 1;
}

/* Positions of a segment within r, the range of a row at pos; lo >= hi: empty */
LLMC_INLINE SplitRange
att_segment(const Att a, const int segment, SplitRange r, int pos)
{
	const int first = r.lo > a.kv.exact.sinks ? r.lo : a.kv.exact.sinks,
	          from = pos + 1 - a.kv.exact.recent;
	const int recent = from > first ? from : first;

	if (!a.kv.exact.page_bytes)
		return r;
	if (segment == ATT_FIRST)
		return (SplitRange){ r.lo, r.hi < first ? r.hi : first };
	if (segment == ATT_RECENT)
		return (SplitRange){ recent, r.hi };
	return (SplitRange){ first, r.hi < recent ? r.hi : recent };
}

/* 2^-x, x >= 0, to fp32 precision: series of e^y in double, y = -frac(x) ln 2 */
LLMC_INLINE float
att_exp2_neg(double x)
{
	int whole = (int)x;
	double y = -(x - whole) * 0.69314718055994531, sum = 1, term = 1;

	for (int i = 1; i < 20; i++) {
		term *= y / i;
		sum += term;
	}
	for (; whole > 0; whole--)
		sum *= 0.5;
	return (float)sum;
}

/* With c the largest power of two <= heads: head h < c has slope 2^(-B (h + 1) / c), the others the
 * odd powers of 2^(-B / 2c). */
LLMC_INLINE float
att_slope(const Att a, int head)
{
	int c = 1;

	while (c * 2 <= (a.alibi_heads ? a.alibi_heads : a.heads))
		c *= 2;
	head += a.alibi_first;
	return head < c ? att_exp2_neg(a.alibi * (head + 1) / c)
	                : att_exp2_neg(a.alibi * (2 * (head - c) + 1) / (2 * c));
}

/* Converts scores of a chunk to weights: s[j] for lo <= j < hi (relative to pos0, its first
 * position), 0 elsewhere. */
LLMC_INLINE void
att_softmax(const Att a, const int chunk, float *s, int pos0, int lo, int hi, int pos, float slope,
            float *m_out, float *l_out)
{
	const vf none = vf_set1(-__builtin_inff());
	vf top = none, sum = vf_set1(0);
	int j0 = lo / VL * VL, j1 = (hi + VL - 1) / VL * VL;

	for (int j = j0; j < j1; j += VL) {
		vf v = vf_load(s + j);
		vi at = vi_iota() + vi_set1(j);
		if (a.cap > 0)
			v = vf_set1(a.cap) * vf_tanh(v * vf_set1((float)(1 / (double)a.cap)));
		if (a.alibi > 0)
			v = vf_fma(vf_set1(slope),
			           __builtin_convertvector(at + vi_set1(pos0 - pos), vf), v);
		if (j < lo || j + VL > hi)
			v = vf_select((vi)(at >= vi_set1(lo)) & (vi)(at < vi_set1(hi)), v, none);
		vf_store(s + j, v);
		top = vf_max(top, v);
	}
	float m = vf_hmax(top);
	for (int j = 0; j < j0; j += VL)
		vf_store(s + j, vf_set1(0));
	for (int j = j0; j < j1; j += VL) {
		vf e = vf_exp(vf_load(s + j) - vf_set1(m));
		sum += e;
		vf_store(s + j, e);
	}
	for (int j = j1; j < chunk; j += VL)
		vf_store(s + j, vf_set1(0));
	*m_out = m;
	*l_out = vf_hsum(sum);
}

/* (m, l, o) += (mc, lc, oc). l == 0: empty (the sum of a softmax is at least 1). */
LLMC_INLINE void
att_merge(const int v_dim, float *m, float *l, float *o, float mc, float lc, const float *oc)
{
	if (*l == 0) {
		*m = mc;
		*l = lc;
		memcpy(o, oc, (size_t)v_dim * sizeof *o);
		return;
	}
	float top = *m > mc ? *m : mc, a = f32_exp(*m - top), b = f32_exp(mc - top);
	int d = 0;
	*m = top;
	*l = f32_fma(*l, a, lc * b);
	for (; d + VL <= v_dim; d += VL)
		vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(a), vf_load(oc + d) * vf_set1(b)));
	for (; d < v_dim; d++)
		o[d] = f32_fma(o[d], a, oc[d] * b);
}

/* Adds the sink of the head, if any, to the sum of weights: a score without a value. m: maximum of
 * the other scores */
LLMC_INLINE float
att_sink(const float *sink, float m, float l)
{
	return sink ? l + f32_exp(*sink - m) : l;
}

LLMC_INLINE void
att_finish(const int v_dim, float *y, const float *o, float l)
{
	float r = 1 / l;

	for (int d = 0; d < v_dim; d++)
		y[d] = o[d] * r;
}

/* Stores a row of y from its sums; rotates it back if values are stored rotated. */
LLMC_INLINE void
att_put(const Att a, float *y, const float *o, float l)
{
	const int n_rotated = kv_rotated(a.kv.v, a.kv.rotate, a.v_dim);

	att_finish(a.v_dim, y, o, l);
	if (n_rotated)
		kv_rotate(a.v_dim, n_rotated, y);
}

/* Prepares a query for scores: scales it, and rotates it if keys are stored rotated. */
LLMC_INLINE void
att_query(const Att a, float *to, const float *from)
{
	const int n_rotated = kv_rotated(a.kv.k, a.kv.rotate, a.dim);

	for (int d = 0; d < a.dim; d++)
		to[d] = from[d] * a.scale;
	if (n_rotated)
		kv_rotate(a.dim, n_rotated, to);
}

LLMC_INLINE void
att_prefetch(const void *p, const int bytes)
{
	LLMC_UNROLL
	for (int i = 0; i < bytes; i += 64)
		__builtin_prefetch((const char *)p + i);
}

/* Prefetches the cache lines that begin in slice i of consecutive slices of `bytes` bytes */
LLMC_INLINE void
att_prefetch_slice(const char *p, int i, const int bytes)
{
	if (bytes >= 64)
		att_prefetch(p + i * bytes, bytes);
	else if (i * bytes % 64 < bytes)
		__builtin_prefetch(p + i * bytes);
}

/* Returns whether AMX is used. Pools with exact pages do not use it: their segments all use the
 * sums below. Converting keys and values to bf16 parts costs as much as multiplying four heads by
 * them. A single row pays this in full; it is hidden if data comes from memory. */
LLMC_INLINE int
att_tiled(const Att a)
{
#if defined(LLMC_TILES)
	return att_group(a) >= 4 && !a.kv.is_exact && (a.kv.k == KV_f16 || a.kv.k == KV_bf16) &&
	       (a.kv.v == KV_f16 || a.kv.v == KV_bf16);
#else
	(void)a;
	return 0;
#endif
}

#if defined(LLMC_TILES)
#include "cpu/attention/attention_amx.h"
#endif

#include "cpu/attention/attention_int16.h"

/* ---- one row: units, chunks, spans ---- */
/* acc += element d of nk vectors of keys, from j on, times that of gb queries, stride apart. acc
 * and the smaller operand set stay in registers */
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

/* Scores of a page's 32 keys for gb heads; next: a page to prefetch. sums: kv_query_sums of each
 * query */
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

/* o[g][d0 .. d0 + nv * VL) of gb heads over keys [lo, hi) of a chunk with values v[page];
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

/* Partial result of a block of heads; o [att_hb][att_vs] */
typedef struct AttPart {
	float *o;
	float m[ATT_MOST_HB], l[ATT_MOST_HB];
} AttPart;

/* State of a unit of one row */
typedef struct AttUnit {
	const llmc_step *s;
	const void *pool;
	int row, seq, pos, kv_head, head; /* head: its first query head */
	int n_head;                       /* att_hb, or fewer in the last block of a kv head */
	int shift;
	SplitRange range;
	float slope[ATT_MOST_HB];
	const float *sink; /* [heads], or NULL */
	float *q;          /* [att_hb][dim], scaled */
	float *sums;       /* [att_hb][kv_groups] kv_query_sums of q */
	/* q_words [att_hb][dim / 2] and words [att_hb][kv_groups]: kv_query_words of q */
	int32_t *q_words;
	KvWords *words;
	AttWords w;               /* weights of a chunk */
	float *scores;            /* [att_hb][ATT_CHUNK] */
	AttPart chunk, span, sum; /* partial results of a chunk, a span, the row */
	uint8_t *queries, *weights,
	    /* AMX: bf16 parts of the row's queries, of a chunk's weights, and of the current keys
	     * or values */
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
/* Places a unit's AMX buffers at work. Returns the memory after them, which begins with a row of
 * zeros */
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

/* unit: 0 .. att_units of row `row`; work: ATT_WORK floats, 64-byte aligned */
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

/* Returns the plane to prefetch while plane i of a chunk is read: K of its n pages, then V.
 * Quantised planes, and those converted to AMX tiles, are consumed faster than memory delivers, so
 * the distance is one plane more. end: end of the positions read in this form */
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

/* Scores of a page for gb heads from g on; s: scores of the first head */
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

/* Processes the part of a chunk within `see`: K of its pages, softmax, V of its pages */
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

/* Processes a segment of a chunk, if the row has one, and merges it into u->span */
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

/* Processes a span; the result is in u->span */
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

/* name(): the Att value; name_run_span: att_span for it, compiled once */
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
