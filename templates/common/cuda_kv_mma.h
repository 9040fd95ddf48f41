/* Pairs of 16-bit KV elements (LLMC_KV_f16 or LLMC_KV_bf16) as tensor cores take them. */
#ifndef LLMC_CUDA_KV_MMA_H
#define LLMC_CUDA_KV_MMA_H

#include "common/cuda_kv.h"

/* queries are multiplied by it before they are rounded */
#ifdef LLMC_KV_bf16
#define KV_Q_FACTOR 1.0f
DEV unsigned kv_pair(float lo, float hi) { return pack_bf16(lo, hi); }
DEV float kv_pair_lo(unsigned pair) { return bf16_lo(pair); }
DEV float kv_pair_hi(unsigned pair) { return bf16_hi(pair); }
DEV void kv_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_bf16_m16n8k16(d, a, b, d); }
#else
#define KV_Q_FACTOR 0.0625f /* room for large ones */
DEV unsigned kv_pair(float lo, float hi) { return pack_f16(lo, hi); }
DEV float kv_pair_lo(unsigned pair) { return f16_lo(pair); }
DEV float kv_pair_hi(unsigned pair) { return f16_hi(pair); }
DEV void kv_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_f16_m16n8k16(d, a, b, d); }
#endif

/* two numbers as a rounded pair and the pair of what is left */
DEV void
kv_pair_split(float a, float b, unsigned *whole, unsigned *rest)
{
	*whole = kv_pair(a, b);
	*rest = kv_pair(a - kv_pair_lo(*whole), b - kv_pair_hi(*whole));
}

#endif
