/* Indexer of sparse attention: selects the positions that a row attends to.
 *
 *   8 pages of keys per round, one warp per page, one lane per position:
 *     keys x queries --dots of 8 heads in registers--> relu, times head weights, summed --> scores
 *   scores above the bar --ballots, in order of position--> candidates (global memory of the CTA)
 *   2 TOP_K candidates: radix select, 8 bits per pass --> the bar rises, lower ones are dropped
 *
 * The pages of a row are cut into equal runs, one for each CTA that works on the row. Each CTA
 * stores its candidates, and the last CTA to arrive merges them in order. Scores are mapped to
 * integers of the same order and compared as integers. A score depends only on its row and key, and
 * the selection only on scores and positions, so the cut does not affect the result. Bytes: the
 * keys once per row. */
#ifndef LLMC_CUDA_ATTENTION_INDEXER_H
#define LLMC_CUDA_ATTENTION_INDEXER_H

#include "cuda/attention/kv_quantized.h"
#include "cuda/ptx/ptx.h"

enum { INDEX_WARPS = 8, INDEX_ROUND = INDEX_WARPS * KV_PAGE, INDEX_BLOCKS = 512 };

/* Indexer with keys of type E: number and dimension of heads, number of selected positions, and
 * stride of pages in bytes */
template <class E, int HEADS_, int DIM_, int INDEX_TOP_K_,
          long long PAGE_BYTES_> struct index_config {
	typedef kv_plane<E, DIM_> P;
	enum {
		HEADS = HEADS_,
		DIM = DIM_,
		INDEX_TOP_K = INDEX_TOP_K_,
		CAPACITY = 2 * INDEX_TOP_K + INDEX_ROUND, /* candidates per CTA */
		LEFT = 2 * INDEX_TOP_K + 1, /* words stored per CTA: count, scores, positions */
		SOME = 8,                   /* heads processed at a time */
		HELD = HEADS * DIM <= 8192  /* 1: the queries are in shared memory */
	};
	static constexpr long long PAGE_BYTES = PAGE_BYTES_;
};

/* Shared memory of a CTA; n, bar and full belong to its index_list */
template <class C> struct index_shared {
	float q[C::HELD ? C::HEADS * C::DIM : 1];
	int count[256];
	int warps[2][INDEX_WARPS];
	int n, full, last, above;
	unsigned bar;
};

/* Candidates of a CTA, in ascending order of position */
struct index_list {
	unsigned *score;
	int *pos;
};

DEV unsigned
index_order(float x)
{
	const unsigned u = __float_as_uint(x + 0.0f); /* -0 becomes +0 */

	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the rank of this thread among the threads with `mine`, in thread order. all: set to their
 * number. which: one of two buffers, used alternately. Contains a barrier. */
template <class C> DEV int
index_rank(index_shared<C> &s, bool mine, int which, int &all)
{
	const unsigned votes = __ballot_sync(~0u, mine);
	int before = 0;

	if (lane_id() == 0)
		s.warps[which][warp_id()] = __popc(votes);
	__syncthreads();
	all = 0;
#pragma unroll
	for (int w = 0; w < INDEX_WARPS; w++) {
		before += w < (int)warp_id() ? s.warps[which][w] : 0;
		all += s.warps[which][w];
	}
	return before + __popc(votes & ((1u << lane_id()) - 1));
}

/* Reduces more than TOP_K candidates to the best TOP_K. Of equal scores, the lower position
 * wins. */
template <class C> DEV void
index_prune(index_shared<C> &s, index_list c)
{
	const int n = s.n;
	unsigned value = 0, mask = 0;
	int over = 0;

	if (n <= C::INDEX_TOP_K)
		return;
	for (int shift = 24; shift >= 0; shift -= 8) {
		__syncthreads();
		s.count[threadIdx.x] = 0;
		__syncthreads();
		for (int i = threadIdx.x; i < n; i += blockDim.x)
			if ((c.score[i] & mask) == value)
				atomicAdd(&s.count[c.score[i] >> shift & 255], 1);
		__syncthreads();
		if (threadIdx.x == 0) {
			int byte = 255;
			for (; over + s.count[byte] < C::INDEX_TOP_K; byte--)
				over += s.count[byte];
			s.bar = value | (unsigned)byte << shift;
			s.above = over;
		}
		__syncthreads();
		value = s.bar;
		over = s.above;
		mask |= 255u << shift;
	}
	/* number of candidates equal to the bar that are kept */
	int kept = 0, equal = C::INDEX_TOP_K - over;
	for (int base = 0; base < n; base += blockDim.x) {
		const int i = base + (int)threadIdx.x;
		const unsigned score = i < n ? c.score[i] : 0;
		const int pos = i < n ? c.pos[i] : 0;
		int here, all;
		const bool same = i < n && score == value;
		const int place = index_rank(s, same, 0, here);
		const bool keep = i < n && (score > value || (same && place < equal));
		const int at = index_rank(s, keep, 1, all);
		if (keep) { /* in place: an element is written only after it has been read */
			c.score[kept + at] = score;
			c.pos[kept + at] = pos;
		}
		kept += all;
		equal -= min(here, equal);
		__syncthreads();
	}
	if (threadIdx.x == 0) {
		s.n = kept;
		s.full = 1;
	}
	__syncthreads();
}

/* Appends at most one candidate per thread, in thread order. */
template <class C> DEV void
index_add(index_shared<C> &s, index_list c, bool mine, unsigned score, int pos)
{
	int all;
	const bool keep = mine && !(s.full && score <= s.bar);
	const int n = s.n, at = index_rank(s, keep, 0, all);

	if (keep) {
		c.score[n + at] = score;
		c.pos[n + at] = pos;
	}
	__syncthreads();
	if (threadIdx.x == 0)
		s.n = n + all;
	__syncthreads();
	if (n + all > C::CAPACITY - INDEX_ROUND)
		index_prune(s, c);
}

/* Returns the score of key `at` of a page; q [HEADS][DIM], w [HEADS]. */
template <class C> DEV float
index_score(const typename C::P::elem *page, int at, const float *q, const float *w, float scale)
{
	typedef typename C::P P;
	enum { VEC = P::VEC };
	float sum = 0;

	for (int h0 = 0; h0 < C::HEADS; h0 += C::SOME) {
		float dot[C::SOME] = {};
		for (int i = 0; i < C::DIM; i += VEC) {
			float e[VEC];
			if (P::WHOLE)
				P::load(page, at, i, e);
#pragma unroll
			for (int k = 0; k < VEC; k++)
				if (P::WHOLE || i + k < C::DIM) {
					const float x = P::WHOLE ? e[k] : P::get(page, at, i + k);
#pragma unroll
					for (int h = 0; h < C::SOME; h++)
						if (h0 + h < C::HEADS)
							dot[h] = fmaf(q[(h0 + h) * C::DIM + i + k],
							              x, dot[h]);
				}
		}
#pragma unroll
		for (int h = 0; h < C::SOME; h++)
			if (h0 + h < C::HEADS)
				sum = fmaf(fmaxf(dot[h] * scale, 0.0f), w[h0 + h], sum);
	}
	return sum;
}

/* Kernel arguments. q [n_tok, HEADS, DIM], w [n_tok, HEADS]; kv: the pool; sel [n_tok, TOP_K].
 * Scratch: work [BLOCKS][2 * CAPACITY], left [BLOCKS][LEFT], ticket [n_tok]. */
struct index_args {
	const float *q, *w;
	float scale;
	const void *kv;
	int *sel;
	unsigned *work, *left;
	int *ticket;
};

template <class C> DEV void
index_select(const llmc_step &step, const index_args &a)
{
	SHARED(index_shared<C>, s);
	const int rows = step.n[0], blocks = min((int)gridDim.x, (int)INDEX_BLOCKS),
	          most = max(1, blocks / max(rows, 1));
	const index_list c = { a.work + (long long)blockIdx.x * 2 * C::CAPACITY,
		               (int *)a.work + ((long long)blockIdx.x * 2 + 1) * C::CAPACITY };

	if ((int)blockIdx.x >= blocks)
		return;
	for (long long unit = blockIdx.x; unit < (long long)rows * most; unit += blocks) {
		const int row = (int)(unit / most), part = (int)(unit % most), pos = step.pos[row],
		          seq = step.seq_of[row];
		int *sel = a.sel + (long long)row * C::INDEX_TOP_K;
		if (pos < C::INDEX_TOP_K) {
			for (int i = threadIdx.x; part == 0 && i < C::INDEX_TOP_K; i += blockDim.x)
				sel[i] = i <= pos ? i : -1;
			continue;
		}
		/* rounds of the row; one CTA per four rounds, as far as there are CTAs */
		const int all = pos / INDEX_ROUND + 1, parts = min(most, (all + 3) / 4),
		          first = (int)((long long)all * part / parts);
		const int end = (int)((long long)all * (part + 1) / parts);
		if (part >= parts)
			continue;
		const float *q = a.q + (long long)row * C::HEADS * C::DIM,
		            *w = a.w + (long long)row * C::HEADS;
		__syncthreads();
		for (int i = threadIdx.x; C::HELD && i < C::HEADS * C::DIM; i += blockDim.x)
			s.q[i] = q[i];
		if (threadIdx.x == 0)
			s.n = s.full = 0;
		__syncthreads();
		for (int round = first; round < end; round++) {
			const int at = round * INDEX_ROUND + (int)threadIdx.x;
			float score = 0;
			if (at <= pos)
				score = index_score<C>(
				    (const typename C::P::elem *)((const char *)a.kv +
				                                  kv_page_of(step, seq, at) *
				                                      C::PAGE_BYTES),
				    at % KV_PAGE, C::HELD ? s.q : q, w, a.scale);
			index_add(s, c, at <= pos, index_order(score), at);
		}
		index_prune(s, c);
		if (parts > 1) { /* each CTA has at most one unit, so the CTA's number is the slot
			            of its output */
			unsigned *left = a.left + (long long)blockIdx.x * C::LEFT;
			const unsigned *from = a.left + (long long)(blockIdx.x - part) * C::LEFT;
			for (int i = threadIdx.x; i < s.n; i += blockDim.x) {
				left[1 + i] = c.score[i];
				left[1 + C::INDEX_TOP_K + i] = (unsigned)c.pos[i];
			}
			if (threadIdx.x == 0)
				left[0] = (unsigned)s.n;
			__syncthreads();
			if (threadIdx.x == 0) {
				s.last = atom_add_acq_rel_gpu(a.ticket + row, 1) == parts - 1;
				if (s.last)
					st_relaxed_gpu(a.ticket + row, 0);
				s.n = s.full = 0;
			}
			__syncthreads();
			if (!s.last)
				continue;
			for (int k = 0; k < parts; k++, from += C::LEFT)
				for (int base = 0; base < (int)from[0]; base += blockDim.x) {
					const int i = base + (int)threadIdx.x;
					const bool mine = i < (int)from[0];
					index_add(s, c, mine, mine ? from[1 + i] : 0,
					          mine ? (int)from[1 + C::INDEX_TOP_K + i] : 0);
				}
			index_prune(s, c);
		}
		for (int i = threadIdx.x; i < C::INDEX_TOP_K; i += blockDim.x)
			sel[i] = c.pos[i];
	}
}

#endif
