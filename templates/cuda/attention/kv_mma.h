/* Pairs of 16-bit KV elements as mma operands: kv_mma<kv_f16>, kv_mma<kv_bf16>. */
#ifndef LLMC_CUDA_ATTENTION_KV_MMA_H
#define LLMC_CUDA_ATTENTION_KV_MMA_H

#include "cuda/attention/kv_cache.h"

template <class E> struct kv_mma;

template <> struct kv_mma<kv_bf16> {
	static constexpr float Q_FACTOR = 1.0f; /* factor of queries before they are rounded */
	DEV unsigned
	pair(float lo, float hi)
	{
		return pack_bf16(lo, hi);
	}
	DEV float
	lo(unsigned pair)
	{
		return bf16_lo(pair);
	}
	DEV float
	hi(unsigned pair)
	{
		return bf16_hi(pair);
	}
	DEV void
	product(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
	{
		mma_bf16_m16n8k16(d, a, b, d);
	}
};

template <> struct kv_mma<kv_f16> {
	static constexpr float Q_FACTOR = 0.0625f; /* the factor avoids overflow of a half */
	DEV unsigned
	pair(float lo, float hi)
	{
		return pack_f16(lo, hi);
	}
	DEV float
	lo(unsigned pair)
	{
		return f16_lo(pair);
	}
	DEV float
	hi(unsigned pair)
	{
		return f16_hi(pair);
	}
	DEV void
	product(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
	{
		mma_f16_m16n8k16(d, a, b, d);
	}
};

/* Splits two numbers into a pair of rounded values and a pair of residues. */
template <class E> DEV void
kv_pair_split(float a, float b, unsigned *whole, unsigned *rest)
{
	typedef kv_mma<E> M;

	*whole = M::pair(a, b);
	*rest = M::pair(a - M::lo(*whole), b - M::hi(*whole));
}

#endif
