/* Definitions shared by the GPU attention kernels: visible positions of a row, computation of a
 * score from q.k, and merging of partial results (maximum m, sum l of the weights, weighted sum o
 * of V). Scores are in log2 units, so a softmax weight is one exp2f. */
#ifndef LLMC_CUDA_ATTENTION_ATTENTION_H
#define LLMC_CUDA_ATTENTION_ATTENTION_H

#include "cuda/attention/kv_quantized.h"

#define ATT_LOG2E 1.4426950408889634f
#define ATT_NONE (-1e30f) /* below every score; ATT_NONE - ATT_NONE is 0, not NaN */

/* Compile-time description of one attention op. K has type E_ and V type EV_
 * (cuda/attention/kv_quantized.h). HEADS_ query heads form KV_HEADS_ groups, each of which shares a
 * key head. D_ and V_ are the head dimensions of K and V; PAGE_BYTES_ is the stride of pages in the
 * pool. ROTATE_: quantised rows are stored Hadamard-rotated. SCORES_ defines the scores and the
 * visible positions:
 *     static constexpr float SCALE, SOFTCAP, ALIBI;  SOFTCAP, ALIBI 0: none
 *     enum { ALIBI_FIRST, ALIBI_HEADS };             ALiBi: index of the first head and number of
 *                                                    heads in the model (0: HEADS)
 *     enum { WINDOW, CHUNK, PREFIX, NO_MASK };       WINDOW 0: none. CHUNK 1: a row sees positions
 *                                                    from the last multiple of WINDOW on. PREFIX 1:
 *                                                    all rows see the first prefix_len. NO_MASK 1:
 *                                                    all rows see all positions, or those less than
 *                                                    WINDOW away. */
template <class E_, class SCORES_, int HEADS_, int KV_HEADS_, int D_, int V_, long long PAGE_BYTES_,
          class EV_ = E_, bool ROTATE_ = false> struct att_config {
	typedef typename E_::math E; /* element type of the mma */
	typedef kv_plane<E_, D_, ROTATE_> KP;
	typedef kv_plane<EV_, V_, ROTATE_> VP;
	typedef kv_plane<typename kv_exact<E_>::type, D_> KX; /* plane type of exact rows */
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
	}; /* number of positions selected per row (cuda/mla/mla.h); 0: rows attend to all visible
	      positions */
	enum { Q_STRIDE = D, Y_STRIDE = V }; /* stride between heads, in elements */
	static constexpr long long PAGE_BYTES = PAGE_BYTES_;

	/* Return whether this attention processes sequence i, or row i. Kernels that share a step
	 * divide its rows this way. */
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
	/* index in the step of the sequence of a decode row */
	DEV int
	seq_of(const llmc_step &, int row)
	{
		return row;
	}

	/* Source of a chunk as long as a page: K and V of a head, with row strides of K_STRIDE and
	 * V_STRIDE elements. Here the rows come from a page of the pool. If MADE is not 0, the rows
	 * were computed for this step and come from scratch with MADE slots, where position 0 has
	 * slot `base`. */
	typedef const void *source;
	enum { K_STRIDE = D, V_STRIDE = V, MADE = 0 };
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

	/* Return a page of the layer's pool, and K and V of one head in that page. */
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

/* Positions that attention A reads from exact pages (cuda/attention/kv_quantized.h): the last
 * RECENT_ positions of a row, including its own, and the first SINKS_ of a sequence. BYTES_ is the
 * size of an exact page (0: no exact pages). WINDOWED_: see kv_exact_page. */
template <class A, long long BYTES_, int RECENT_, int SINKS_, int WINDOWED_> struct att_exact {
	enum { HAS = BYTES_ > 0 };

	/* Return whether an exact page has position j for the row at `pos`, and whether it has any
	 * position of the page that starts at `base`. */
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

/* Positions [lo, hi) that the row at `pos` of sequence `seq` attends to; never empty */
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
	if constexpr (A::SCORES::NO_MASK)
		r.hi = A::WINDOW > 0 ? min(pos + W, s.kv_len[seq]) : s.kv_len[seq];
	return r;
}

/* ALiBi slopes: powers of 2^(-bias / n) for the first n heads, where n is the largest power of two
 * up to the number of heads. The remaining heads use the odd powers of the series for 2n heads. */
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

/* Returns the softmax weight of a head's attention sink (a score without a value), relative to
 * maximum m in log2 units. sink is NULL if the head has none. */
DEV float
att_sink(const float *sink, float m)
{
	return sink ? exp2f(*sink * ATT_LOG2E - m) : 0.0f;
}

/* Returns the score of dot product q.k, times log2(e). distance: position of the key minus position
 * of the row. */
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
