/* Latent attention of mixed steps. Sequences that begin in the step go expanded: keys and values of each head are made of their rows' latents, and
 * the flash kernel (cuda_flash.h) attends to them, K as wide as NOPE + ROPE, V as V_DIM. All other rows go absorbed, by cuda_mla_decode.h.
 *
 *   mla_latents   page of a row --ld.global--> act (16 bits, as the weights want it), and its key to each head of `made`
 *   mla_expand    act k_b^T, act v_b^T (cuda_gemm.h) --round--> made
 *   flash_run     made --cp.async--> ...
 *
 * made: rows of [HEADS][NOPE + ROPE] keys, then [HEADS][V_DIM] values. */
#ifndef LLMC_CUDA_MLA_PROMPT_H
#define LLMC_CUDA_MLA_PROMPT_H

#include "common/cuda_flash.h"
#include "common/cuda_gemm.h"
#include "common/cuda_gemm_prep.h"
#include "common/cuda_mla_decode.h"

/* A, in keys and values of the step's own rows: with the scale of SCORES, queries and sums in the places that A's have */
template <class A, class SCORES, int EXPAND> struct mla_whole : att_config<typename A::E, SCORES, A::HEADS, A::HEADS, A::Q, A::V_DIM, 0> {
	typedef typename A::elem elem;
	enum { Q_APART = A::WIDTH, Y_APART = A::RANK, K_APART = A::HEADS * (A::Q + A::V_DIM), V_APART = K_APART };
	typedef const elem *source;

	DEV const elem *chunk_k(source made, int, int row0, int head, int c0) { return made + (long long)(row0 + c0) * K_APART + head * A::Q; }
	DEV const elem *chunk_v(source made, int, int row0, int head, int c0) { return made + (long long)(row0 + c0) * K_APART + A::HEADS * A::Q + head * A::V_DIM; }

	DEV bool
	takes(const llmc_step &s, int seq)
	{
		const int rows = s.q_start[seq + 1] - s.q_start[seq];

		return mla_expanded(rows, s.kv_len[seq] - rows, EXPAND);
	}
};

/* A, for the rows that are left */
template <class A, int EXPAND> struct mla_absorbed : A {
	DEV bool takes_row(const llmc_step &s, int row) { return !mla_row_expanded<EXPAND>(s, row); }
	DEV int seq_of(const llmc_step &s, int row) { return s.seq_of[row]; }
};

/* A block: row t, if it goes expanded; zeros otherwise. W: weights of both products, of one kind of 16 bits */
template <class A, int EXPAND, class W> DEV void
mla_latents(const llmc_step &step, const void *pool, unsigned short *act, float *scale, typename A::elem *made)
{
	struct alignas(16) shared { float c[A::RANK]; };
	SHARED(shared, s);
	const int t = (int)blockIdx.x;

	if (t >= step.n[0])
		return;
	const typename A::elem *from = A::page(step, pool, step.seq_of[t], step.pos[t]) + step.pos[t] % KV_PAGE * A::WIDTH;
	const bool whole = mla_row_expanded<EXPAND>(step, t);
	for (int i = threadIdx.x; i < A::RANK; i += blockDim.x)
		s.c[i] = whole ? A::E::get(from[i]) : 0;
	__syncthreads();
	prep_row<W, norm_none>(s.c, norm_vectors(), act + (long long)t * W::COLS, scale + t);
	typename A::elem *to = made + (long long)t * (A::HEADS * (A::Q + A::V_DIM)) + A::NOPE;
	for (int i = threadIdx.x; whole && i < A::HEADS * A::ROPE; i += blockDim.x)
		to[i / A::ROPE * A::Q + i % A::ROPE] = from[A::RANK + i % A::ROPE];
}

/* Results of a product to `made`: ROWS columns in heads of FROM, which lie `head` elements apart; rows APART apart */
template <class E, int ROWS, int FROM, int APART> struct mla_store {
	typename E::elem *to;
	int               head;
	template <int OUT> __device__ __forceinline__ void prefetch(int, int) const {}
	template <int N, int C> __device__ __forceinline__ void
	take(int m, int n, float (&v)[N][C], float (&)[N][C]) const
	{
		static_assert(FROM % C == 0, "columns of one head");
#pragma unroll
		for (int j = 0; j < N; j++) {
			const int at = n + 4 * C * j;
			typename E::elem *p = to + (long long)m * APART + at / FROM * head + at % FROM;
			if (at >= ROWS) /* beyond the matrix */
				continue;
#pragma unroll
			for (int c = 0; c < C; c += 2)
				st_v1(p + c, E::put(v[j][c]) | (unsigned)E::put(v[j][c + 1]) << 16);
		}
	}
};

#endif
