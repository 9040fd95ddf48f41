/* Attention of one row, the same bits in every phase, batch, chunk of the prompt and number of threads.
 *
 * For a row at position p and one query head, over the visible positions lo <= j < hi:
 *   score    s_j = cap(scale q . k_j) + alibi: products added in the order of d by one fused chain
 *   chunk    positions [128 c, 128 c + 128): m = max s_j, e_j = exp(s_j - m), l = sum e_j in lanes of VL, o = sum e_j v_j
 *            in the order of j
 *   span     2^k whole chunks, at multiples of their size; chunks are merged in order. k is the smallest with at most
 *            64 spans in [lo, hi), so it depends on the row alone; partial results fit fixed memory at any length
 *   row      spans are merged in order; y = o / l
 * Terms outside [lo, hi) may be added as exact zeros, as long as what they multiply is finite. That is all a tile of many rows does
 * differently from a single row.
 *
 * The includer defines ATT_HEADS, ATT_KV_HEADS, ATT_D, ATT_V, ATT_SCALE, ATT_CAP, ATT_WINDOW, ATT_ALIBI, ATT_PAGE_BYTES,
 * ATT_MASK_causal or ATT_MASK_prefix, and what cpu_math.h and cpu_kv.h want. */
#ifndef LLMC_CPU_ATTENTION_H
#define LLMC_CPU_ATTENTION_H

#include "common/cpu_kv.h"

enum {
	ATT_CHUNK = 128,
	ATT_SPANS = 64,
	ATT_PAGES = ATT_CHUNK / KV_PAGE,                      /* of a chunk */
	ATT_G     = ATT_HEADS / ATT_KV_HEADS,
	ATT_NHB   = (ATT_G + 7) / 8,                          /* a unit of work: a sequence, a kv head and at most 8 query heads */
	ATT_HB    = (ATT_G + ATT_NHB - 1) / ATT_NHB,
	ATT_UNITS = ATT_KV_HEADS * ATT_NHB,                   /* of a row */
	ATT_VS    = (ATT_V + VL - 1) / VL * VL,               /* stride of o */
	ATT_NK    = KV_PAGE / VL,                             /* vectors of keys in a page */
#if VL == 16
	ATT_ACC   = 24,                                       /* accumulators: half of 16 or three quarters of 32 registers */
	ATT_GB    = ATT_HB,
#else
	ATT_ACC   = 12,
	ATT_GB    = ATT_HB <= 6 ? ATT_HB : 4,                 /* query heads that share a load */
#endif
	ATT_TAIL  = ATT_HB % ATT_GB,
};

typedef struct { int lo, hi; } AttRange;

LLMC_INLINE AttRange
att_range(const llmc_step *s, int seq, int pos)
{
	AttRange r = { 0, pos + 1 };

#if defined(ATT_MASK_prefix)
	int prefix = s->prefix_len[seq] < s->kv_len[seq] ? s->prefix_len[seq] : s->kv_len[seq];
	if (r.hi < prefix)
		r.hi = prefix;
#else
	(void)s, (void)seq;
#endif
	if (ATT_WINDOW > 0 && pos + 1 > ATT_WINDOW)
		r.lo = pos + 1 - ATT_WINDOW;
	return r;
}

LLMC_INLINE int
att_span_shift(AttRange r)
{
	int first = r.lo / ATT_CHUNK, last = (r.hi - 1) / ATT_CHUNK, shift = 0;

	while ((last >> shift) - (first >> shift) >= ATT_SPANS)
		shift++;
	return shift;
}

/* 2^-x, x >= 0, to fp32's precision: the series of e^y in double, y = -frac(x) ln 2 */
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

/* With c the largest power of two <= heads: head h < c has 2^(-B (h + 1) / c), the others the odd powers of 2^(-B / 2c). */
LLMC_INLINE float
att_slope(int head)
{
	int c = 1;

	while (c * 2 <= ATT_HEADS)
		c *= 2;
	return head < c ? att_exp2_neg((double)(ATT_ALIBI) * (head + 1) / c)
	                : att_exp2_neg((double)(ATT_ALIBI) * (2 * (head - c) + 1) / (2 * c));
}

/* Scores of a chunk (pos0: its first position) to weights: s[j] for lo <= j < hi (relative to it), 0 elsewhere. */
LLMC_INLINE void
att_softmax(float *s, int pos0, int lo, int hi, int pos, float slope, float *m_out, float *l_out)
{
	const vf none = vf_set1(-__builtin_inff());
	vf top = none, sum = vf_set1(0);
	int j0 = lo / VL * VL, j1 = (hi + VL - 1) / VL * VL;

	for (int j = j0; j < j1; j += VL) {
		vf v = vf_load(s + j);
		vi at = vi_iota() + vi_set1(j);
		if (ATT_CAP > 0)
			v = vf_set1((float)(ATT_CAP)) * vf_tanh(v * vf_set1((float)(1 / (double)(ATT_CAP))));
		if (ATT_ALIBI > 0)
			v = vf_fma(vf_set1(slope), __builtin_convertvector(at + vi_set1(pos0 - pos), vf), v);
		if (j < lo || j + VL > hi)
			v = vf_pick((vi)(at >= vi_set1(lo)) & (vi)(at < vi_set1(hi)), v, none);
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
	for (int j = j1; j < ATT_CHUNK; j += VL)
		vf_store(s + j, vf_set1(0));
	*m_out = m;
	*l_out = vf_hsum(sum);
}

/* (m, l, o) += (mc, lc, oc). l == 0: nothing yet (a softmax's own sum is at least 1). */
LLMC_INLINE void
att_merge(float *m, float *l, float *o, float mc, float lc, const float *oc)
{
	if (*l == 0) {
		*m = mc;
		*l = lc;
		memcpy(o, oc, ATT_V * sizeof *o);
		return;
	}
	float top = *m > mc ? *m : mc, a = f32_exp(*m - top), b = f32_exp(mc - top);
	int d = 0;
	*m = top;
	*l = f32_fma(*l, a, lc * b);
	for (; d + VL <= ATT_V; d += VL)
		vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(a), vf_load(oc + d) * vf_set1(b)));
	for (; d < ATT_V; d++)
		o[d] = f32_fma(o[d], a, oc[d] * b);
}

LLMC_INLINE void
att_finish(float *y, const float *o, float l)
{
	float r = 1 / l;

	for (int d = 0; d < ATT_V; d++)
		y[d] = o[d] * r;
}

LLMC_INLINE void
att_prefetch(const void *p, int bytes)
{
	LLMC_UNROLL
	for (int i = 0; i < bytes; i += 64)
		__builtin_prefetch((const char *)p + i);
}

/* --- one row: units, chunks, spans --------------------------------------------------------------------------------- */
/* Scores of a page's 32 keys for gb heads; next: the page to be read after this one. */
LLMC_INLINE void
att_scores(const int gb, const kv_elem *k, const float *q, float *s, const kv_elem *next)
{
	const int nk = gb * ATT_NK <= ATT_ACC ? ATT_NK : gb * (ATT_NK / 2) <= ATT_ACC ? ATT_NK / 2 : ATT_NK > 4 ? ATT_NK / 4 : 1;

	LLMC_UNROLL
	for (int j0 = 0; j0 < ATT_NK; j0 += nk) {
		vf acc[8][8];

		LLMC_UNROLL
		for (int g = 0; g < gb; g++)
			LLMC_UNROLL
			for (int j = 0; j < nk; j++)
				acc[g][j] = vf_set1(0);
		for (int d = 0; d < ATT_D; d++) {
			if (j0 == 0)
				att_prefetch(next + d * KV_PAGE, KV_PAGE * (int)sizeof *k);
			LLMC_UNROLL
			for (int j = 0; j < nk; j++) {
				vf x = kv_load(k + d * KV_PAGE + (j0 + j) * VL);
				LLMC_UNROLL
				for (int g = 0; g < gb; g++)
					acc[g][j] = vf_fma(x, vf_set1(q[g * ATT_D + d]), acc[g][j]);
			}
		}
		LLMC_UNROLL
		for (int g = 0; g < gb; g++)
			LLMC_UNROLL
			for (int j = 0; j < nk; j++)
				vf_store(s + g * ATT_CHUNK + (j0 + j) * VL, acc[g][j]);
	}
}

/* o[g][d0 .. d0 + nv * VL) of gb heads over keys [lo, hi) of a chunk whose values are v[page] */
LLMC_INLINE void
att_values(const int gb, const int nv, const kv_elem *const *v, const kv_elem *next, int lo, int hi, const float *s, int d0,
           float *o)
{
	vf acc[8][4];

	LLMC_UNROLL
	for (int g = 0; g < gb; g++)
		LLMC_UNROLL
		for (int i = 0; i < nv; i++)
			acc[g][i] = vf_set1(0);
	for (int p = lo / KV_PAGE; p * KV_PAGE < hi; p++) {
		int j0 = lo > p * KV_PAGE ? lo : p * KV_PAGE, j1 = hi < (p + 1) * KV_PAGE ? hi : (p + 1) * KV_PAGE;
		const kv_elem *ahead = (p + 1) * KV_PAGE < hi ? v[p + 1] : next, *row = v[p] - (size_t)p * KV_PAGE * ATT_V + d0;
		ahead -= (size_t)p * KV_PAGE * ATT_V;
		for (int j = j0; j < j1; j++) {
			if (d0 == 0)
				att_prefetch(ahead + j * ATT_V, ATT_V * (int)sizeof *row);
			LLMC_UNROLL
			for (int i = 0; i < nv; i++) {
				vf x = d0 + (i + 1) * VL <= ATT_V ? kv_load(row + j * ATT_V + i * VL)
				                                  : kv_load_n(row + j * ATT_V + i * VL, ATT_V % VL);
				LLMC_UNROLL
				for (int g = 0; g < gb; g++)
					acc[g][i] = vf_fma(x, vf_set1(s[g * ATT_CHUNK + j]), acc[g][i]);
			}
		}
	}
	LLMC_UNROLL
	for (int g = 0; g < gb; g++)
		LLMC_UNROLL
		for (int i = 0; i < nv; i++)
			vf_store(o + g * ATT_VS + d0 + i * VL, acc[g][i]);
}

LLMC_INLINE void
att_values_all(const int gb, const kv_elem *const *v, const kv_elem *next, int lo, int hi, const float *s, float *o)
{
	const int nv = gb * 4 <= ATT_ACC ? 4 : gb * 2 <= ATT_ACC ? 2 : 1;
	int d = 0;

	for (; d + nv * VL <= ATT_VS; d += nv * VL)
		att_values(gb, nv, v, next, lo, hi, s, d, o);
	for (; d < ATT_VS; d += VL)
		att_values(gb, 1, v, next, lo, hi, s, d, o);
}

/* What a unit of one row needs */
typedef struct {
	const llmc_step *s;
	const void *pool;
	int   row, seq, pos, kv_head, head; /* head: its first query head */
	int   n_head;                       /* ATT_HB, fewer in the last block of a group */
	int   shift;
	AttRange range;
	_Alignas(64) float q[ATT_HB][ATT_D]; /* scaled */
	float slope[ATT_HB];
} AttUnit;

/* Partial result of ATT_HB heads */
typedef struct {
	_Alignas(64) float o[ATT_HB][ATT_VS];
	float m[ATT_HB], l[ATT_HB];
} AttPart;

LLMC_INLINE void
att_part_clear(AttPart *p)
{
	memset(p->l, 0, sizeof p->l);
}

LLMC_INLINE void
att_part_merge(AttPart *to, const AttPart *from)
{
	for (int g = 0; g < ATT_HB; g++)
		att_merge(&to->m[g], &to->l[g], to->o[g], from->m[g], from->l[g], from->o[g]);
}

/* unit: 0 .. ATT_UNITS of row `row` */
static void
att_unit_init(AttUnit *u, const llmc_step *s, const void *pool, const float *q, int row, int unit)
{
	u->s = s;
	u->pool = pool;
	u->row = row;
	u->seq = s->seq_of[row];
	u->pos = s->pos[row];
	u->kv_head = unit / ATT_NHB;
	u->head = u->kv_head * ATT_G + unit % ATT_NHB * ATT_HB;
	u->n_head = (u->kv_head + 1) * ATT_G - u->head;
	if (u->n_head > ATT_HB)
		u->n_head = ATT_HB;
	u->range = att_range(s, u->seq, u->pos);
	u->shift = att_span_shift(u->range);
	for (int g = 0; g < ATT_HB; g++) {
		/* a block that is not full repeats its last head */
		int h = u->head + (g < u->n_head ? g : u->n_head - 1);
		const float *from = q + ((size_t)row * ATT_HEADS + (size_t)h) * ATT_D;
		for (int d = 0; d < ATT_D; d++)
			u->q[g][d] = from[d] * (float)(ATT_SCALE);
		u->slope[g] = ATT_ALIBI > 0 ? att_slope(h) : 0;
	}
}

LLMC_INLINE const kv_elem *
att_page_k(const AttUnit *u, int page)
{
	return kv_k(kv_page(u->s, u->pool, ATT_PAGE_BYTES, u->seq, page), u->kv_head, ATT_D);
}

LLMC_INLINE const kv_elem *
att_page_v(const AttUnit *u, int page)
{
	return kv_v(kv_page(u->s, u->pool, ATT_PAGE_BYTES, u->seq, page), u->kv_head, ATT_KV_HEADS, ATT_D, ATT_V);
}

/* One chunk: K of its pages, softmax, V of its pages; each page asks for the next one in that order. */
static void
att_chunk(const AttUnit *u, int chunk, AttPart *out)
{
	_Alignas(64) float s[ATT_HB][ATT_CHUNK];
	const kv_elem *v[ATT_PAGES + 1];
	int pos0 = chunk * ATT_CHUNK;
	int lo = u->range.lo > pos0 ? u->range.lo - pos0 : 0;
	int hi = u->range.hi < pos0 + ATT_CHUNK ? u->range.hi - pos0 : ATT_CHUNK;
	int p0 = lo / KV_PAGE, p1 = (hi - 1) / KV_PAGE, base = chunk * ATT_PAGES;
	const kv_elem *k = att_page_k(u, base + p0);

	for (int p = p0; p <= p1; p++) {
		v[p] = att_page_v(u, base + p);
		const kv_elem *next = p < p1 ? att_page_k(u, base + p + 1) : v[p0];
		int g = 0;
		for (; g + ATT_GB <= ATT_HB; g += ATT_GB)
			att_scores(ATT_GB, k, u->q[g], &s[g][p * KV_PAGE], next);
		if (ATT_TAIL)
			att_scores(ATT_TAIL, k, u->q[g], &s[g][p * KV_PAGE], next);
		k = next;
	}
	for (int g = 0; g < ATT_HB; g++)
		att_softmax(s[g], pos0, lo, hi, u->pos, u->slope[g], &out->m[g], &out->l[g]);
	const kv_elem *after = u->range.hi > pos0 + ATT_CHUNK ? att_page_k(u, base + ATT_PAGES) : v[p1];
	int g = 0;
	for (; g + ATT_GB <= ATT_HB; g += ATT_GB)
		att_values_all(ATT_GB, v, after, lo, hi, s[g], out->o[g]);
	if (ATT_TAIL)
		att_values_all(ATT_TAIL, v, after, lo, hi, s[g], out->o[g]);
}

/* Spans of a unit are numbered from the first visible one. */
LLMC_INLINE int
att_spans(const AttUnit *u)
{
	return ((u->range.hi - 1) / ATT_CHUNK >> u->shift) - (u->range.lo / ATT_CHUNK >> u->shift) + 1;
}

static void
att_span(const AttUnit *u, int span, AttPart *out)
{
	int first = u->range.lo / ATT_CHUNK, last = (u->range.hi - 1) / ATT_CHUNK;
	int at = (first >> u->shift) + span, c0 = at << u->shift, c1 = ((at + 1) << u->shift) - 1;

	if (c0 < first)
		c0 = first;
	if (c1 > last)
		c1 = last;
	att_chunk(u, c0, out);
	for (int c = c0 + 1; c <= c1; c++) {
		AttPart one;
		att_chunk(u, c, &one);
		att_part_merge(out, &one);
	}
}

LLMC_INLINE void
att_unit_finish(const AttUnit *u, const AttPart *p, float *y)
{
	for (int g = 0; g < u->n_head; g++)
		att_finish(y + ((size_t)u->row * ATT_HEADS + (size_t)(u->head + g)) * ATT_V, p->o[g], p->l[g]);
}

#endif
