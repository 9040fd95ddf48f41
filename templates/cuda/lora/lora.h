/* LoRA adapters in slots: the slot of a row, the factors of a routed expert, and multiplication
 * with factor B. */
#ifndef LLMC_CUDA_LORA_LORA_H
#define LLMC_CUDA_LORA_LORA_H

#include "cuda/math/math.h"

/* Returns the adapter slot of a row's sequence; negative: no adapter. S: type of a call or of a
 * step */
template <class S> DEV int
lora_slot(const S &s, long long t)
{
	return s.adapter[s.seq[s.seq_of[t]]];
}

/* Returns the index of the factors of choice i (choices of all rows are counted) among those of all
 * slots and experts. Negative: the row has no adapter, or the expert is on another rank. */
template <class S> DEV long long
lora_expert(const S &s, const int *id, long long i, int top_k, int n_experts)
{
	const int slot = lora_slot(s, i / top_k);

	return slot < 0 || id[i] < 0 ? -1 : (long long)slot * n_experts + id[i];
}

/* Terms that adapters add to gate and up of a MoE layer before the activation: [pairs][2][F]. A
 * pair is a row and one of its K experts. Only pairs whose row has an adapter have terms. */
struct moe_added_none {
	__device__ __forceinline__ void
	to(int, int, float &, float &) const
	{
	}
	__device__ __forceinline__ moe_added_none
	from(int) const
	{
		return {};
	}
	__device__ __forceinline__ const float *
	of(int) const
	{
		return 0;
	}
};

template <int K, int F> struct moe_added {
	const float *add;
	const int *adapter, *seq, *seq_of;

	template <class S> __device__ __forceinline__
	moe_added(const S &s, const float *add)
	    : add(add), adapter(s.adapter), seq(s.seq), seq_of(s.seq_of)
	{
	}
	/* the same terms, for rows from t0 on */
	__device__ __forceinline__ moe_added
	from(int t0) const
	{
		moe_added a = *this;
		a.add += (long long)t0 * K * 2 * F;
		a.seq_of += t0;
		return a;
	}
	/* terms of a pair; NULL if its row has no adapter */
	__device__ __forceinline__ const float *
	of(int pair) const
	{
		return adapter[seq[seq_of[pair / K]]] < 0 ? 0 : add + (long long)pair * 2 * F;
	}
	__device__ __forceinline__ void
	to(int pair, int row, float &g, float &u) const
	{
		const float *const a = of(pair);
		if (a) {
			g += a[row];
			u += a[F + row];
		}
	}
};

/* Dot product of `low` with a column of b [RANK, ROWS]. */
template <int RANK, int ROWS> DEV float
lora_sum(const float *low, const float *b)
{
	float sum = 0;

	for (int k = 0; k < RANK; k++)
		sum = fmaf(low[k], b[(long long)k * ROWS], sum);
	return sum;
}

#endif
