/* Latent attention of a decode step on tensor cores.
 *
 *   prologue: issue the load of the first page, if it is older than the step; PDL wait
 *   page of latents --cp.async--> 2 stages --ldmatrix--> B (scores), .trans: A (sum) of the mma
 *   mainloop: wait for the page, barrier, prefetch the next,
 *             scores --shared, barrier--> softmax --shared, barrier--> sum
 *   unit in one CTA: o; otherwise parts and a counter; last CTA to arrive combines them --> o
 *
 * A unit is a row and 16 of its heads. The heads share one read of the latents. Units are cut into
 * runs of pages, one run per CTA (cuda/attention/attention_split_kv.h). The 8 warps of a CTA divide
 * the phases as follows:
 *
 *   scores    warp (half, quarter): 8 heads, all 32 positions, a quarter of the dimensions.
 *             m16n8k16: rows 0-7 are the rounded queries of the heads, rows 8-15 the residue; they
 *             stay in registers for the unit.
 *   weights   16 threads per head
 *   sum       a warp has an eighth of the latent, all heads and positions: rows are dimensions,
 *             columns heads, weights rounded plus residue */
#ifndef LLMC_CUDA_MLA_MLA_DECODE_H
#define LLMC_CUDA_MLA_MLA_DECODE_H

#include "cuda/attention/attention_split_kv.h"
#include "cuda/attention/kv_mma.h"
#include "cuda/mla/mla.h"
#include "cuda/runtime/prefetch.h"

/* Returns the i-th position to which the segment's row attends. */
template <class S> DEV int
mla_position(const int *sel, const AttSegment &g, int i)
{
	return S::INDEX_TOP_K > 0 && g.pos >= S::INDEX_TOP_K
	           ? sel[(long long)g.row * S::INDEX_TOP_K + i]
	           : i;
}

/* Kernel arguments: queries [n_tok, HEADS, WIDTH], scale of the scores, the pool, o [n_tok, HEADS,
 * RANK]. part_o, part_ml and ticket are scratch of split-KV. */
struct mla_args {
	const float *q;
	float scale;
	const void *kv;
	float *o, *part_o, *part_ml;
	int *ticket;
	const int *sel; /* [n_tok, INDEX_TOP_K], or NULL */
};

template <class A> struct mla_split : att_split<A, KV_PAGE, 16, 1, 256> {
	enum {
		STEPS = A::WIDTH / 16, /* k-steps of 16 dimensions */
		QUARTER = (STEPS + 3) / 4,
		STRIDE =
		    A::WIDTH +
		    8, /* row stride in shared memory, for which ldmatrix has no bank conflicts */
		TILES = A::RANK / 16, /* 16-row tiles of the latent */
		MINE = (TILES + MLA_WARPS - 1) / MLA_WARPS
	};
	typedef unsigned short page_buffer[KV_PAGE][STRIDE];
};

template <class S> struct alignas(16) mla_shared_storage {
	typename S::page_buffer page[2];
	union {
		/* per warp and position: scores of 8 rounded queries, then of their 8 residues */
		float scores[MLA_WARPS][16][36];
		float factor[S::BLOCKS][S::HB]; /* used while parts of several CTAs are combined */
	};
	unsigned short weight[2][16][40]; /* rounded, residue */
	float keep[16], top[16], sum[16];
	int last;
	AttSegment at; /* in shared memory until the epilogue, to save registers */
};

/* Loads a page, or 32 selected positions, to shared memory: by cp.async, or through registers if
 * rows are quantised. Positions that have not been written are set to zero. */
template <class S> DEV void
mla_fetch(const llmc_step &step, const void *pool, const int *sel, const AttSegment &g, int tile,
          typename S::page_buffer &to)
{
	enum { PIECES = S::WIDTH / 8 };
	const int n = min(g.range.hi - tile * KV_PAGE, (int)KV_PAGE);
	const typename S::elem *page =
	    S::INDEX_TOP_K > 0 ? 0 : S::page(step, pool, g.seq, tile * KV_PAGE);

	for (int i = threadIdx.x; i < KV_PAGE * PIECES; i += blockDim.x) {
		const int row = i / PIECES, at = i % PIECES * 8;
		int from = row < n ? row : 0;
		if constexpr (S::INDEX_TOP_K > 0) {
			const int pos = mla_position<S>(sel, g, tile * KV_PAGE + from);
			page = S::page(step, pool, g.seq, pos);
			from = pos % KV_PAGE;
		}
		if constexpr (S::KP::UNQUANTISED) {
			cp_async_16_fill(&to[row][at], page + from * S::WIDTH + at,
			                 row < n ? 16 : 0);
		} else {
			float x[8] = {};
			unsigned two[4];
			if (row < n)
				S::KP::load(page, from, at, x);
#pragma unroll
			for (int c = 0; c < 4; c++)
				two[c] = S::E::put(x[2 * c]) | (unsigned)S::E::put(x[2 * c + 1])
				                                   << 16;
			st_v4(&to[row][at], make_uint4(two[0], two[1], two[2], two[3]));
		}
	}
	cp_async_commit();
}

/* Loads this warp's queries: 8 heads, a quarter of the dimensions. */
template <class S> DEV void
mla_load_q(const float *queries, float scale, const AttSegment &g, unsigned (&q)[S::QUARTER][4])
{
	const float factor = scale * (float)ATT_LOG2E * kv_mma<typename S::E>::Q_FACTOR;
	const int lane = lane_id(), head = warp_id() / 4 * 8 + lane / 4,
	          first = (int)warp_id() % 4 * S::QUARTER;
	const float *from =
	    queries + ((long long)g.row * S::HEADS + g.head + head) * S::WIDTH + lane % 4 * 2;

#pragma unroll
	for (int i = 0; i < S::QUARTER; i++) {
		uint2 a = {}, b = {};
		if (head < g.n_head && first + i < S::STEPS) {
			a = ld_v2(from + (first + i) * 16);
			b = ld_v2(from + (first + i) * 16 + 8);
		}
		kv_pair_split<typename S::E>(__uint_as_float(a.x) * factor,
		                             __uint_as_float(a.y) * factor, &q[i][0], &q[i][1]);
		kv_pair_split<typename S::E>(__uint_as_float(b.x) * factor,
		                             __uint_as_float(b.y) * factor, &q[i][2], &q[i][3]);
	}
}

template <class S> DEV void
mla_scores(mla_shared_storage<S> &s, const typename S::page_buffer &page,
           const unsigned (&q)[S::QUARTER][4])
{
	const int lane = lane_id(), warp = warp_id(), first = warp % 4 * S::QUARTER;
	float x[4][4] = {};

#pragma unroll
	for (int i = 0; i < S::QUARTER; i++) {
		/* after the last step, q is zero */
		const int step = first + i < S::STEPS ? first + i : 0;
#pragma unroll
		for (int n = 0; n < 2; n++) {
			unsigned k[4];
			ldmatrix_x4(
			    k,
			    &page[16 * n + lane / 16 * 8 + lane % 8][step * 16 + lane / 8 % 2 * 8]);
			const unsigned a[2] = { k[0], k[1] }, b[2] = { k[2], k[3] };
			kv_mma<typename S::E>::product(x[2 * n], q[i], a);
			kv_mma<typename S::E>::product(x[2 * n + 1], q[i], b);
		}
	}
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s.scores[warp][lane / 4 + i / 2 * 8][8 * n + lane % 4 * 2 + i % 2] =
			    x[n][i];
}

/* Softmax of a page. Thread i handles head i / 16 and positions 2 (i % 16) and the next. m is that
 * of the head; l is only the thread's share. */
template <class S> DEV void
mla_weights(mla_shared_storage<S> &s, int visible, float &m, float &l)
{
	constexpr float Q_FACTOR = kv_mma<typename S::E>::Q_FACTOR;
	const int head = threadIdx.x / 16, at = threadIdx.x % 16 * 2;
	float x[2] = {};

	for (int w = head / 8 * 4; w < head / 8 * 4 + 4; w++)
#pragma unroll
		for (int i = 0; i < 2; i++)
			x[i] += s.scores[w][head % 8][at + i] + s.scores[w][head % 8 + 8][at + i];
#pragma unroll
	for (int i = 0; i < 2; i++)
		x[i] = at + i < visible ? x[i] * (1 / Q_FACTOR) : ATT_NONE;
	float top = fmaxf(m, fmaxf(x[0], x[1]));
#pragma unroll
	for (int d = 1; d < 16; d *= 2)
		top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
	const float keep = exp2f(m - top);
#pragma unroll
	for (int i = 0; i < 2; i++)
		x[i] = at + i < visible ? exp2f(x[i] - top) : 0;
	m = top;
	l = l * keep + x[0] + x[1];
	unsigned whole, rest;
	kv_pair_split<typename S::E>(x[0], x[1], &whole, &rest);
	st_v1(&s.weight[0][head][at], whole);
	st_v1(&s.weight[1][head][at], rest);
	if (at == 0)
		s.keep[head] = keep;
}

/* Accumulates o[tile][half of the heads] of this warp. */
template <class S> DEV void
mla_sum(const mla_shared_storage<S> &s, const typename S::page_buffer &page,
        float (&o)[S::MINE][2][4])
{
	const int lane = lane_id(), warp = warp_id(), pair = lane % 4 * 2;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const float a = s.keep[half * 8 + pair], b = s.keep[half * 8 + pair + 1];
#pragma unroll
		for (int i = 0; i < S::MINE; i++) {
			o[i][half][0] *= a;
			o[i][half][1] *= b;
			o[i][half][2] *= a;
			o[i][half][3] *= b;
		}
	}
#pragma unroll
	for (int k = 0; k < KV_PAGE; k += 16) {
		unsigned w[2][2][2]; /* [half of the heads][rounded, residue] */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const unsigned short *from =
			    &s.weight[i % 2][i / 2 * 8 + lane / 4][k + pair];
			w[i / 2][i % 2][0] = ld_v1(from);
			w[i / 2][i % 2][1] = ld_v1(from + 8);
		}
#pragma unroll
		for (int i = 0; i < S::MINE; i++) {
			const int tile = warp * S::MINE + i;
			unsigned v[4];
			if (tile >= S::TILES)
				break;
			ldmatrix_x4_trans(
			    v, &page[k + lane / 16 * 8 + lane % 8][tile * 16 + lane / 8 % 2 * 8]);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				kv_mma<typename S::E>::product(o[i][half], v, w[half][0]);
				kv_mma<typename S::E>::product(o[i][half], v, w[half][1]);
			}
		}
	}
}

template <class A> DEV void
mla_attend(const llmc_call &call, const mla_args &a)
{
	const llmc_step &step = call.s;
	typedef mla_split<A> S;
	typedef mla_shared_storage<S> shared_storage;
	SHARED_STORAGE(shared_storage, s);
	static_assert(sizeof(shared_storage) <= 128 * (S::WIDTH + 8) + 21376,
	              "must match shared in the @launch lines");

	const int lane = lane_id(), warp = warp_id();
	AttList list = att_list<S>(step);
	/* for the first segment of this CTA: its first page is older than the step, unless it
	 * contains the row's own position */
	bool first = true;
	while (list.at < list.end) {
		const AttSegment g = att_segment<S>(step, list);
		const bool early = S::INDEX_TOP_K == 0 && first && (g.tile + 1) * KV_PAGE <= g.pos;
		unsigned q[S::QUARTER][4];
		float o[S::MINE][2][4] = {}, m = ATT_NONE, l = 0;

		if (early)
			mla_fetch<S>(step, a.kv, a.sel, g, g.tile, s.page[0]);
		if (first) {
			PDL_WAIT();
			PDL_LAUNCH();
		}
		first = false;
		__syncthreads(); /* no warp uses s for the previous segment any more */
		if (threadIdx.x == 0)
			s.at = g;
		if (!early)
			mla_fetch<S>(step, a.kv, a.sel, g, g.tile, s.page[0]);
		mla_load_q<S>(a.q, a.scale, g, q);
		for (int tile = g.tile; tile < g.end; tile++) {
			const int stage = (tile - g.tile) % 2;
			cp_async_wait_all();
			__syncthreads();
			if (tile + 1 < g.end)
				mla_fetch<S>(step, a.kv, a.sel, g, tile + 1, s.page[1 - stage]);
			mla_scores<S>(s, s.page[stage], q);
			__syncthreads();
			mla_weights<S>(s, g.range.hi - tile * KV_PAGE, m, l);
			__syncthreads();
			mla_sum<S>(s, s.page[stage], o);
		}
#pragma unroll
		for (int d = 1; d < 16; d *= 2)
			l += __shfl_xor_sync(~0u, l, d);
		if (threadIdx.x % 16 == 0) {
			s.top[threadIdx.x / 16] = m;
			s.sum[threadIdx.x / 16] = l;
		}
		__syncthreads();
		const AttSegment &f = s.at;
		const bool whole = f.first_block == f.last_block;
		const AttOut out = { a.o + ((long long)f.row * S::HEADS + f.head) * S::RANK,
			             S::RANK,
			             a.part_o,
			             a.part_ml,
			             a.ticket + f.unit,
			             0 };
		float *part =
		    out.part_o + (long long)(2 * (int)blockIdx.x + f.begins) * S::HB * S::RANK;
#pragma unroll
		for (int i = 0; i < S::MINE; i++)
#pragma unroll
			for (int e = 0; e < 8; e++) {
				const int head = e / 4 * 8 + lane % 4 * 2 + e % 2,
				          d = (warp * S::MINE + i) * 16 + lane / 4 + e / 2 % 2 * 8;
				if (head >= f.n_head || d >= S::RANK)
					continue;
				if (whole)
					out.y[head * out.y_step + d] =
					    o[i][e / 4][e % 4] / s.sum[head];
				else
					part[head * S::RANK + d] = o[i][e / 4][e % 4];
			}
		if (!whole)
			att_combine<S>(f, out, s.top, s.sum, &s.last, &s.factor[0][0]);
	}
	prefetch_next(call, warp, MLA_WARPS);
	if (first)
		PDL_WAIT();
}

#endif
