/* The description of an attention (Att), the ranges and segments of its rows, and the merging of
 * chunks. All forms of attention share this file. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_BASE_H
#define LLMC_CPU_ATTENTION_ATTENTION_BASE_H

#include "cpu/attention/kv_cache.h"
#include "cpu/attention/split_kv.h"

typedef struct Att {
	int heads, kv_heads, dim, v_dim;
	float scale, cap;
	int window, chunk; /* chunk: the window starts at a multiple of its own size */
	double alibi;
	/* index of the first head in the slope rule, and number of heads in that rule; 0, 0: all
	 * `heads` */
	int alibi_first, alibi_heads;
	/* MASK_*. prefix: a row also attends to the prefix of its sequence. none: a row attends to
	 * all positions of its sequence, or with a window to those less than `window` away. */
	int mask;
	KvForm kv;
} Att;

enum { MASK_causal, MASK_prefix, MASK_none };

enum {
	ATT_CHUNK = 128,
	ATT_SPANS = 64,
	ATT_PAGES = ATT_CHUNK / KV_PAGE, /* pages per chunk */
	ATT_MOST_HB = 8,
	ATT_AHEAD = VL == 8 ? 4 : 2,  /* prefetch distance of quantised types, in planes */
	ATT_NK = KV_PAGE / VL,        /* vectors of keys per page */
	ATT_ACC = VL == 16 ? 24 : 12, /* accumulators: 12 of 16 registers, or 24 of 32 */
};

LLMC_INLINE int
att_group(const Att a)
{
	return a.heads / a.kv_heads;
}

#define ATT_SPLIT ((Split){ ATT_CHUNK, ATT_SPANS })

/* A work unit is a sequence, a kv head and at most 8 of its query heads. Returns the number of such
 * groups of query heads per kv head. */
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

/* query heads that share each load of K or V */
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

/* Segments of the visible positions, by the kind of page from which a row reads them */
enum { ATT_FIRST, ATT_QUANTISED, ATT_RECENT };

LLMC_INLINE Att
att_segment_form(const Att a, const int segment)
{
	Att b = a;

	if (segment != ATT_QUANTISED)
		b.kv = kv_exact_form(a.kv);
	return b;
}

/* Returns whether rows can have positions in this segment. */
LLMC_INLINE int
att_has_segment(const Att a, const int segment)
{
	return segment == ATT_FIRST    ? a.kv.exact.sinks > 0
	       : segment == ATT_RECENT ? a.kv.exact.recent > 0
	                               : 1;
}

/* Returns the positions of a segment within r, the range of a row at pos. Empty if lo >= hi. */
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

/* 2^-x for x >= 0, to fp32 precision: the series of e^y in double with y = -frac(x) ln 2. */
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

/* ALiBi slope of head h. c is the largest power of two up to the number of heads. A head h < c has
 * slope 2^(-B (h + 1) / c). The other heads use the odd powers of 2^(-B / 2c). */
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

/* Converts the scores of a chunk to weights: s[j] for lo <= j < hi (relative to pos0, the chunk's
 * first position), 0 elsewhere. */
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

/* Merges (mc, lc, oc) into (m, l, o). l == 0 means empty, because the sum of a softmax is at least
 * 1. */
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

/* Returns the sum of weights including the head's sink, if it has one: a score without a value. m:
 * maximum of the other scores */
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

/* Stores a row of y from its sums. If values are stored rotated, rotates the row back. */
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

/* Prefetches the cache lines that begin in slice i; slices are consecutive and have `bytes`
 * bytes. */
LLMC_INLINE void
att_prefetch_slice(const char *p, int i, const int bytes)
{
	if (bytes >= 64)
		att_prefetch(p + i * bytes, bytes);
	else if (i * bytes % 64 < bytes)
		__builtin_prefetch(p + i * bytes);
}

/* Returns whether AMX is used. Pools with exact pages do not use it, because all their segments use
 * the sums of cpu/attention/attention.h. Converting keys and values to bf16 parts costs as much as
 * multiplying them by four heads. A single row pays for the conversion alone, which is hidden if
 * the data comes from memory. */
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

#endif
