/* Multi-head latent attention (MLA): projection of query heads into the latent space, and of
 * weighted sums of latents out of it. Both matrices are stacked by head: k_b [heads * nope, rank],
 * v_b [heads * v, rank]. */
#ifndef LLMC_CUDA_MLA_MLA_H
#define LLMC_CUDA_MLA_MLA_H

#include "cuda/attention/attention.h"
#include "cuda/attention/rope.h"
#include "cuda/weights/weights.h"
#include "common/llmc_mla.h"

enum { MLA_WARPS = 8 };

/* Scores of queries that the caller has already scaled */
struct mla_scores {
	static constexpr float SCALE = 1, SOFTCAP = 0, ALIBI = 0;
	enum { WINDOW = 0, CHUNK = 0, PREFIX = 0, NO_MASK = 0 };
};

/* Compile-time description of a latent attention with KV elements of type E. RANK_: dimension of
 * the latent; NOPE_, ROPE_: dimensions of a query without and with RoPE (the shared rotary key also
 * has ROPE_); V_DIM_: dimension of values; PAGE_BYTES: stride of pages. In the latent space it is
 * an attention with one KV head: K has WIDTH dimensions, and V is the first RANK of them. */
template <class E, int HEADS_, int RANK_, int NOPE_, int ROPE_, int V_DIM_, long long PAGE_BYTES>
struct mla_config : att_config<E, mla_scores, HEADS_, 1, RANK_ + ROPE_, RANK_, PAGE_BYTES> {
	enum {
		RANK = RANK_,
		NOPE = NOPE_,
		ROPE = ROPE_,
		WIDTH = RANK + ROPE,
		Q = NOPE + ROPE,
		V_DIM = V_DIM_
	};
};

/* Returns whether row t of the step uses the expanded form. EXPAND: attribute of the op */
template <int EXPAND> DEV bool
mla_row_expanded(const llmc_step &s, int t)
{
	if constexpr (EXPAND == 0)
		return false;
	const int seq = s.seq_of[t], rows = s.q_start[seq + 1] - s.q_start[seq];

	return mla_expanded(rows, s.kv_len[seq] - rows, EXPAND, 0);
}

/* Norms the latent c of row t (kvn, eps), rotates the key that follows it (rope: the row's table,
 * or NULL) and stores both in the pool. All lanes of a warp call. */
template <class A, class ROPE> DEV void
mla_append_row(const llmc_step &s, const float *c, const float *kvn, float eps, const float *rope,
               void *pool, int t)
{
	const int pos = s.pos[t];
	float sum = 0, z[A::KP::M];

	for (int i = lane_id(); i < A::RANK; i += 32)
		sum = fmaf(c[i], c[i], sum);
	const float scale = 1.0f / sqrtf(warp_sum(sum) / A::RANK + eps);
#pragma unroll
	for (int m = 0; m < A::KP::M; m++) {
		const int i = (int)lane_id() + 32 * m, at = i - A::RANK;
		z[m] = 0;
		if (i < A::RANK)
			z[m] = c[i] * scale * kvn[i];
		else if (i < A::WIDTH && !rope)
			z[m] = c[i];
		else if (i < A::WIDTH) {
			const bool apart =
			    ROPE::second(0, A::ROPE) >
			    1; /* the elements of a RoPE pair are half of the key apart */
			const int k = apart ? at % (A::ROPE / 2) : at / 2;
			float x = c[A::RANK + ROPE::first(k, A::ROPE)],
			      y = c[A::RANK + ROPE::second(k, A::ROPE)];
			rope_rotate(&x, &y, rope, k, A::ROPE);
			z[m] = at == ROPE::first(k, A::ROPE) ? x : y;
		}
	}
	A::KP::put(A::page(s, pool, s.seq_of[t], pos), pos % KV_PAGE, z);
}

/* out[rank] = sum of q[i] * row i over rows first, first + step, ... below NOPE. One warp computes
 * it. */
template <class W, int NOPE> DEV void
mla_query_rows(const unsigned char *w, const float *q, int first, int step, float *out)
{
	for (int u0 = 0; u0 < W::UNITS; u0 += 32) {
		const int u = u0 + lane_id();
		float sum[W::UNIT] = {};
		if (u < W::UNITS) {
#pragma unroll 4
			for (int i = first; i < NOPE; i += step) {
				float v[W::UNIT], x = q[i];
				W::decode(W::load(w + i * W::ROW, u), u, v);
#pragma unroll
				for (int j = 0; j < W::UNIT; j++)
					sum[j] = fmaf(x, v[j], sum[j]);
			}
#pragma unroll
			for (int j = 0; j < W::UNIT; j++)
				if (j < W::width(u))
					out[W::column(u, j)] = sum[j];
		}
	}
}

/* y[r] = dot product of row r with x, for rows first, first + step, ... below V. One warp computes
 * it. */
template <class W, int V> DEV void
mla_value_rows(const unsigned char *w, const float *x, int first, int step, float *y)
{
	for (int r = first; r < V; r += step) {
		float sum = 0;
		for (int u = lane_id(); u < W::UNITS; u += 32) {
			float v[W::UNIT];
			W::decode(W::load(w + r * W::ROW, u), u, v);
#pragma unroll
			for (int j = 0; j < W::UNIT; j++)
				if (j < W::width(u))
					sum = fmaf(v[j], x[W::column(u, j)], sum);
		}
		sum = warp_sum(sum);
		if (lane_id() == 0)
			y[r] = sum;
	}
}

/* Shared memory of a CTA that attends over latents for one row and head, without tensor cores */
template <class A> struct mla_row {
	float part[MLA_WARPS][A::RANK], q[A::WIDTH], w[MLA_WARPS][KV_PAGE], m[MLA_WARPS],
	    l[MLA_WARPS];
};

/* Like mla_row, over positions that an indexer has selected. A row that sees more than INDEX_TOP_K
 * positions attends to those in its row of `sel`, in that order. */
template <class A, int INDEX_TOP_K_> struct mla_chosen : A {
	enum { INDEX_TOP_K = INDEX_TOP_K_ };
};

/* Positions to which a row attends: the n selected ones, or the first n if sel is NULL */
struct mla_positions {
	const int *sel;
	int n;
};

/* INDEX_TOP_K: attribute of the op; sel [n_tok, INDEX_TOP_K] */
template <int INDEX_TOP_K> DEV mla_positions
mla_positions_of(const llmc_step &step, const int *sel, int t)
{
	const int n = step.pos[t] + 1;

	if (INDEX_TOP_K > 0 && n > INDEX_TOP_K)
		return { sel + (long long)t * INDEX_TOP_K, INDEX_TOP_K };
	return { 0, n };
}

/* Attends over latents, by one CTA. s.q holds the query in latent space, times scale and log2(e),
 * and receives the weighted sum of latents. Warps process blocks of 32 positions in turn. A lane
 * first handles one position, then some dimensions. The warps' sums are added in the order of
 * warps. The caller provides barriers before and after. */
template <class A> DEV void
mla_attend_row(const llmc_step &step, const void *pool, int seq, mla_positions see, mla_row<A> &s)
{
	typedef typename A::KP P;
	enum { RANK = A::RANK, WIDTH = A::WIDTH, CN = (RANK + 31) / 32, VEC = P::VEC };
	const int lane = lane_id(), warp = warp_id(), end = see.n;
	float m = ATT_NONE, l = 0, o[CN] = {};

	for (int base = warp * KV_PAGE; base < end; base += MLA_WARPS * KV_PAGE) {
		const int n = min(end - base, (int)KV_PAGE), pos = lane >= n ? 0
		                                                   : see.sel ? see.sel[base + lane]
		                                                             : base + lane;
		float score = ATT_NONE;
		if (lane < n) {
			const typename A::elem *page = A::page(step, pool, seq, pos);
			score = 0;
			for (int i = 0; i < WIDTH; i += VEC) {
				float e[VEC];
				if (P::WHOLE)
					P::load(page, pos % KV_PAGE, i, e);
#pragma unroll
				for (int k = 0; k < VEC; k++)
					if (P::WHOLE || i + k < WIDTH)
						score = fmaf(
						    s.q[i + k],
						    P::WHOLE ? e[k]
						             : P::get(page, pos % KV_PAGE, i + k),
						    score);
			}
		}
		float top = fmaxf(m, warp_max(score)), keep = exp2f(m - top),
		      weight = lane < n ? exp2f(score - top) : 0;
		m = top;
		l = l * keep + warp_sum(weight);
		s.w[warp][lane] = weight;
		__syncwarp();
#pragma unroll
		for (int i = 0; i < CN; i++)
			o[i] *= keep;
		for (int at = 0; at < n; at++) {
			const int from = __shfl_sync(~0u, pos, at);
			const typename A::elem *page = A::page(step, pool, seq, from);
#pragma unroll
			for (int i = 0; i < CN; i++)
				if (lane + 32 * i < RANK)
					o[i] =
					    fmaf(s.w[warp][at],
					         P::get(page, from % KV_PAGE, lane + 32 * i), o[i]);
		}
		__syncwarp();
	}
	if (lane == 0) {
		s.m[warp] = m;
		s.l[warp] = l;
	}
#pragma unroll
	for (int i = 0; i < CN; i++)
		if (lane + 32 * i < RANK)
			s.part[warp][lane + 32 * i] = o[i];
	__syncthreads();
	float top = s.m[0], sum = 0;
	for (int w = 1; w < MLA_WARPS; w++)
		top = fmaxf(top, s.m[w]);
	for (int w = 0; w < MLA_WARPS; w++)
		sum += s.l[w] * exp2f(s.m[w] - top);
	for (int i = threadIdx.x; i < RANK; i += blockDim.x) {
		float v = 0;
		for (int w = 0; w < MLA_WARPS; w++)
			v += s.part[w][i] * exp2f(s.m[w] - top);
		s.q[i] = v / sum;
	}
}

#endif
