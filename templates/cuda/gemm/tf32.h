/* fp32 matmul on tensor cores. An operand is split into two tf32: its first 11 bits, and the
 * remainder. Three of the four mma of parts are computed. The omitted one and the last
 * bits of the remainder are 2^-21 of a term.
 *
 * The eight columns of a fragment of a (rows of b) may be in any order that both operands share.
 * Lane t holds 2 t and 2 t + 1, which are adjacent in memory. */
#ifndef LLMC_CUDA_GEMM_TF32_H
#define LLMC_CUDA_GEMM_TF32_H

#include "cuda/ptx/ptx.h"

struct tf32_a {
	unsigned hi[4], lo[4];
};
struct tf32_b {
	unsigned hi[2], lo[2];
};

DEV void
tf32_split(float v, unsigned &hi, unsigned &lo)
{
	hi = __float_as_uint(v) & 0xffffe000u;
	lo = __float_as_uint(v - __uint_as_float(hi));
}

/* Loads eight columns of 16 rows of a, or of 8 columns of b. Rows are `stride` floats apart; stride
 * must be 8 more than a multiple of 32. */
DEV void
tf32_get(tf32_a &a, const float *p, int stride)
{
	const int lane = (int)lane_id();
	const float *at = p + (lane >> 2) * stride + 2 * (lane & 3);

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint2 v = ld_v2(at + 8 * i * stride);
		tf32_split(__uint_as_float(v.x), a.hi[i], a.lo[i]);
		tf32_split(__uint_as_float(v.y), a.hi[i + 2], a.lo[i + 2]);
	}
}

DEV void
tf32_get(tf32_b &b, const float *p, int stride)
{
	const int lane = (int)lane_id();
	const uint2 v = ld_v2(p + (lane >> 2) * stride + 2 * (lane & 3));

	tf32_split(__uint_as_float(v.x), b.hi[0], b.lo[0]);
	tf32_split(__uint_as_float(v.y), b.hi[1], b.lo[1]);
}

DEV void
tf32_mma(float (&d)[4], const tf32_a &a, const tf32_b &b)
{
	mma_tf32_m16n8k8(d, a.lo, b.hi, d);
	mma_tf32_m16n8k8(d, a.hi, b.lo, d);
	mma_tf32_m16n8k8(d, a.hi, b.hi, d);
}

#endif
