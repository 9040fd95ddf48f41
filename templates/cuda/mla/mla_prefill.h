/* Latent attention of prefill and mixed steps. The rows of a sequence use the expanded form if it
 * takes fewer operations (llmc_mla.h). Keys and values of each head are then computed from the
 * latents of all positions of the sequence, ROUND slots at a time. The flash kernels
 * (cuda/attention/flash.h, cuda/attention/flash_sm90.h) attend over these keys and values, with
 * NOPE + ROPE dimensions of K and V_DIM of V. All other rows use the absorbed form
 * (cuda/mla/mla_decode.h). The first three launches are a round:
 *
 *   mla_latents   page of a position --ld.global--> act (16 bits, in the type of the weights);
 *                 rotary key of the position --> each head of `made`
 *   mla_expand    act k_b^T, act v_b^T --round--> made
 *                 (cuda/gemm/gemm.h; cuda/mla/mla_prefill_sm90.h)
 *   flash_run     made --cp.async, TMA--> ...; incomplete sums stay in o, their m and l in `kept`,
 *                 for the next round
 *
 * made: ROUND slots of [HEADS][NOPE + ROPE] keys, then [HEADS][V_DIM] values. Slots are assigned
 * sequence by sequence. Slots after the end of a sequence are computed from zeros. */
#ifndef LLMC_CUDA_MLA_MLA_PREFILL_H
#define LLMC_CUDA_MLA_MLA_PREFILL_H

#include "cuda/attention/flash.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/quantize_act.h"
#include "cuda/mla/mla_decode.h"

/* Number of slots of the sequences before `seq`. All lanes of a warp call. */
template <int EXPAND> DEV int
mla_base(const llmc_step &s, int seq)
{
	int sum = 0;

	for (int i = (int)lane_id(); i < seq; i += 32) {
		const int rows = s.q_start[i + 1] - s.q_start[i];
		sum += mla_places(rows, s.kv_len[i] - rows, EXPAND);
	}
	return __reduce_add_sync(~0u, sum);
}

/* Number of slots in this round */
template <int EXPAND, int ROUND> DEV int
mla_round(const llmc_step &s)
{
	return max(0, min(ROUND, mla_base<EXPAND>(s, s.n[2]) - s.round * ROUND));
}

/* Returns the sequence to which a slot is assigned. pos: in: the slot; out: its position in the
 * sequence. All lanes of a warp call. */
template <int EXPAND> DEV int
mla_find(const llmc_step &s, int &pos)
{
	const int n_seq = s.n[2];

	for (int first = 0; first < n_seq; first += 32) {
		const int i = first + (int)lane_id();
		int mine = 0;
		if (i < n_seq) {
			const int rows = s.q_start[i + 1] - s.q_start[i];
			mine = mla_places(rows, s.kv_len[i] - rows, EXPAND);
		}
		const int upto = flash_upto(mine);
		const unsigned behind = __ballot_sync(~0u, pos < upto);
		if (behind) {
			const int lane = __ffs((int)behind) - 1;
			pos -= __shfl_sync(~0u, upto - mine, lane);
			return first + lane;
		}
		pos -= __shfl_sync(~0u, upto, 31);
	}
	return 0;
}

/* A as an attention over the expanded keys and values in the slots of a round, with the scale of
 * SCORES. Queries and sums have the strides of A. */
template <class A, class SCORES, int EXPAND, int ROUND> struct mla_whole
    : att_config<typename A::E, SCORES, A::HEADS, A::HEADS, A::Q, A::V_DIM, 0> {
	typedef typename A::E::elem elem;
	enum {
		Q_STRIDE = A::WIDTH,
		Y_STRIDE = A::RANK,
		K_STRIDE = A::HEADS * (A::Q + A::V_DIM),
		V_STRIDE = K_STRIDE,
		MADE = ROUND
	};
	typedef const elem *source;
	static_assert(ROUND % MLA_TILE == 0, "the slots of a tile are in one round");

	DEV const elem *
	chunk_k(source made, int, int base, int head, int c0)
	{
		return made + (long long)(base + c0) * K_STRIDE + head * A::Q;
	}
	DEV const elem *
	chunk_v(source made, int, int base, int head, int c0)
	{
		return made + (long long)(base + c0) * K_STRIDE + A::HEADS * A::Q + head * A::V_DIM;
	}
	DEV int
	base(const llmc_step &s, int seq)
	{
		return mla_base<EXPAND>(s, seq) - s.round * ROUND;
	}

	DEV bool
	takes(const llmc_step &s, int seq)
	{
		const int rows = s.q_start[seq + 1] - s.q_start[seq];

		return mla_expanded(rows, s.kv_len[seq] - rows, EXPAND, 0);
	}
};

/* A, restricted to absorbed rows */
template <class A, int EXPAND> struct mla_absorbed : A {
	DEV bool
	takes_row(const llmc_step &s, int row)
	{
		return !mla_row_expanded<EXPAND>(s, row);
	}
	DEV int
	seq_of(const llmc_step &s, int row)
	{
		return s.seq_of[row];
	}
};

/* Rows of act in row-major order */
template <class W> struct mla_act_rows {
	DEV unsigned short *
	at(unsigned short *act, int t, int)
	{
		return act + (long long)t * W::COLS;
	}
};

/* Computes rows of act and rotary keys for this round's slots, UNIT slots at a time per CTA. W:
 * type of both weights, one kind of 16 bits; ACT: layout of act */
template <class A, int EXPAND, int ROUND, class W, class ACT = mla_act_rows<W>> DEV void
mla_latents(const llmc_step &step, const void *pool, unsigned short *act, float *scale,
            typename A::E::elem *made)
{
	struct alignas(16) shared {
		float c[A::RANK];
	};
	SHARED(shared, s);
	enum { UNIT = 8 };
	const int n = mla_round<EXPAND, ROUND>(step);

	for (int first = (int)blockIdx.x * UNIT; first < n; first += (int)gridDim.x * UNIT) {
		int pos = step.round * ROUND + first;
		const int seq = mla_find<EXPAND>(step, pos), end = step.kv_len[seq];
		for (int t = first; t < first + UNIT; t++, pos++) {
			const bool held = pos < end;
			const typename A::elem *page = A::page(step, pool, seq, held ? pos : 0);
			__syncthreads(); /* all warps have read the previous latent */
			for (int i = threadIdx.x; i < A::RANK; i += blockDim.x)
				s.c[i] = held ? A::KP::get(page, pos % KV_PAGE, i) : 0;
			__syncthreads();
			quantize_act_row<W, norm_none>(s.c, norm_vectors(), ACT::at(act, t, n),
			                               scale + t);
			typename A::E::elem *to =
			    made + (long long)t * (A::HEADS * (A::Q + A::V_DIM)) + A::NOPE;
			for (int i = threadIdx.x; i < A::HEADS * A::ROPE; i += blockDim.x)
				to[i / A::ROPE * A::Q + i % A::ROPE] = A::E::put(
				    held ? A::KP::get(page, pos % KV_PAGE, A::RANK + i % A::ROPE)
				         : 0.0f);
		}
	}
}

/* Epilogue of mla_expand: stores results to `made`. ROWS columns form heads of FROM columns. Heads
 * are `head` elements apart, rows STRIDE elements. */
template <class E, int ROWS, int FROM, int STRIDE> struct mla_store {
	typename E::elem *to;
	int head;
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int n, float (&v)[N][C], float (&)[N][C]) const
	{
		static_assert(FROM % C == 0, "columns of one head");
#pragma unroll
		for (int j = 0; j < N; j++) {
			const int at = n + 4 * C * j;
			typename E::elem *p =
			    to + (long long)m * STRIDE + at / FROM * head + at % FROM;
			if (at >= ROWS) /* outside of the matrix */
				continue;
			unsigned two[C / 2];
#pragma unroll
			for (int c = 0; c < C; c += 2)
				two[c / 2] = E::put(v[j][c]) | (unsigned)E::put(v[j][c + 1]) << 16;
			if constexpr (C == 4)
				st_v2(p, make_uint2(two[0], two[1]));
			else
				st_v1(p, two[0]);
		}
	}
};

#endif
