/* What the attention kernels of a GPU agree on: which positions a row sees, how a score is made of
 * a product, and how partial results (maximum m, sum l of the weights, weighted sum o of V) are put
 * together. Scores are in units of log 2, so that a weight is one exp2f. */
#ifndef LLMC_CUDA_ATTENTION_ATTENTION_H
#define LLMC_CUDA_ATTENTION_ATTENTION_H

#include "cuda/attention/kv_quantized.h"

#define ATT_LOG2E 1.4426950408889634f
#define ATT_NONE (-1e30f) /* below every score; its difference with itself is 0, not NaN */

/* An attention: K of a type E_ and V of a type EV_ (cuda/attention/kv_quantized.h), query heads in
 * groups that share a head of K, D elements wide, and of V, V wide; bytes from page to page of the
 * pool; TURN_: quantised rows are turned. SCORES says how scores are made and what is seen:
 *     static constexpr float SCALE, CAP, ALIBI;     CAP, ALIBI 0: none
 *     enum { ALIBI_FIRST, ALIBI_HEADS };            with ALIBI: slopes of heads from that one on, of so many; 0: of all from the first
 *     enum { WINDOW, CHUNK, PREFIX };               WINDOW 0: none; CHUNK 1: rows see from the last multiple of the window on; PREFIX 1: all rows see the sequence's first prefix_len positions */
template <class E_, class SCORES_, int HEADS_, int KV_HEADS_, int D_, int V_, long long PAGE_BYTES_,
          class EV_ = E_, bool ROTATE_ = false> struct att_config {
	typedef typename E_::math E; /* for tensor cores */
	typedef kv_plane<E_, D_, ROTATE_> KP;
	typedef kv_plane<EV_, V_, ROTATE_> VP;
	typedef kv_plane<typename kv_exact<E_>::type, D_> KX; /* exact rows */
	typedef kv_plane<typename kv_exact<EV_>::type, V_> VX;
	typedef SCORES_ SCORES;
	typedef typename E_::elem elem;
	typedef typename EV_::elem v_elem;
	enum {
		HEADS = HEADS_,
		KV_HEADS = KV_HEADS_,
		G = HEADS / KV_HEADS,
		D = D_,
		V = V_,
		WINDOW = SCORES::WINDOW
	};
	enum { ROTATE = ROTATE_ };
	enum {
		INDEX_TOP_K = 0
	}; /* of the positions that a row sees it attends to so many, which it chooses:
	      cuda/mla/mla.h; 0: to all */
	enum {
		Q_STRIDE = D,
		Y_APART = V
	}; /* elements from head to head of the queries, and of y */
	static constexpr long long PAGE_BYTES = PAGE_BYTES_;

	/* Is a sequence, and a row, of the step one that this attention is for? */
	DEV bool
	takes(const llmc_step &, int)
	{
		return true;
	}
	DEV bool
	takes_row(const llmc_step &, int)
	{
		return true;
	}
	/* sequence of a decode row */
	DEV int
	seq_of(const llmc_step &, int row)
	{
		return row;
	}

	/* Where a chunk of a page's length comes from: K and V of head `head` of positions c0 and
	 * on, in rows K_APART and V_APART elements apart. Here: from page number `page` of the
	 * pool; others (MADE) have them in places, position 0 in place `base`. */
	typedef const void *source;
	enum { K_APART = D, V_APART = V, MADE = 0 };
	DEV const elem *
	chunk_k(source pool, int page, int, int head, int)
	{
		return k(page_at(pool, page), head);
	}
	DEV const v_elem *
	chunk_v(source pool, int page, int, int head, int)
	{
		return v(page_at(pool, page), head);
	}

	/* a page of the layer's pool; K and V of a head in it */
	DEV elem *
	page_at(const void *pool, int page)
	{
		return kv_page_at<E_>(pool, PAGE_BYTES, page);
	}
	DEV elem *
	page(const llmc_step &s, const void *pool, int seq, int pos)
	{
		return kv_page<E_>(s, pool, PAGE_BYTES, seq, pos);
	}
	DEV const elem *
	k(const elem *page, int head)
	{
		return (const elem *)((const char *)page + head * KP::BYTES);
	}
	DEV const v_elem *
	v(const elem *page, int head)
	{
		return (const v_elem *)((const char *)page + KV_HEADS * KP::BYTES +
		                        head * VP::BYTES);
	}
};

/* What an attention A reads from exact pages (cuda/attention/kv_quantized.h): the last RECENT_
 * positions of a row, its own included, and the first SINKS_ of a sequence. BYTES_ of such a page,
 * 0: there are none; WINDOWED_: as kv_exact_page. */
template <class A, long long BYTES_, int RECENT_, int SINKS_, int WINDOWED_> struct att_exact {
	enum { HAS = BYTES_ > 0 };

	/* position j, for the row at `pos`; any of the page that begins at `base` */
	DEV bool
	reads(int pos, int j)
	{
		return HAS && (j < SINKS_ || pos - j < RECENT_);
	}
	DEV bool
	reads_of(int pos, int base)
	{
		return HAS && (base < SINKS_ || pos - base - (KV_PAGE - 1) < RECENT_);
	}

	DEV const char *
	page(const llmc_step &s, const void *pool, int seq, int pos)
	{
		return kv_exact_page(s, pool, BYTES_, WINDOWED_, seq, pos);
	}
	DEV const void *
	k(const char *page, int head)
	{
		return page + head * A::KX::BYTES;
	}
	DEV const void *
	v(const char *page, int head)
	{
		return page + A::KV_HEADS * A::KX::BYTES + head * A::VX::BYTES;
	}
};

/* positions [lo, hi) that the row at `pos` of sequence `seq` sees; never empty */
typedef struct AttRange {
	int lo, hi;
} AttRange;

template <class A> DEV AttRange
att_range(const llmc_step &s, int seq, int pos)
{
	AttRange r;

	constexpr int W = A::WINDOW > 0 ? (int)A::WINDOW : 1;
	r.lo = A::WINDOW == 0 ? 0 : A::SCORES::CHUNK ? pos - pos % W : max(pos - W + 1, 0);
	r.hi = pos + 1;
	if constexpr (A::INDEX_TOP_K > 0)
		r.hi = min(r.hi, (int)A::INDEX_TOP_K);
	if constexpr (A::SCORES::PREFIX)
		r.hi = min(max(r.hi, s.prefix_len[seq]), s.kv_len[seq]);
	return r;
}

/* ALiBi: powers of 2^(-bias / n) for the first n heads, n the largest power of two within the
 * heads; the others take the odd powers of the series for 2n heads. */
template <class A> DEV float
att_slope(int head)
{
	constexpr float ALIBI = A::SCORES::ALIBI;

	if constexpr (ALIBI > 0) {
		int n = 1;
		while (n * 2 <=
		       (A::SCORES::ALIBI_HEADS ? (int)A::SCORES::ALIBI_HEADS : (int)A::HEADS))
			n *= 2;
		head += A::SCORES::ALIBI_FIRST;
		return head < n ? exp2f(-ALIBI * (float)(head + 1) / (float)n)
		                : exp2f(-ALIBI * (float)(2 * (head - n) + 1) / (float)(2 * n));
	}
	return 0;
}

/* The weight of a head's sink, a score without a value, beside others whose maximum is m (in units
 * of log 2). sink: NULL without */
DEV float
att_sink(const float *sink, float m)
{
	return sink ? exp2f(*sink * ATT_LOG2E - m) : 0.0f;
}

/* The score, times log2(e), of a product q.k; q as it came. distance: position of the key minus
 * position of the row */
template <class A> DEV float
att_score(float product, float slope, int distance)
{
	typedef typename A::SCORES S;
	float s = product * S::SCALE;

	if (S::SOFTCAP > 0)
		s = soft_cap(s, S::SOFTCAP);
	if (S::ALIBI > 0)
		s += slope * (float)distance;
	return s * ATT_LOG2E;
}

#endif
