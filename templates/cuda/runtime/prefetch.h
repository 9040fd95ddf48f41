/* L2 prefetch across op boundaries: a decode kernel prefetches weights of the next op.
 *
 *   CTA with work      last load of own weights issued --> prefetch, while it adds its sums
 *   CTA without work   prefetch at once, before the PDL wait
 *
 * Without prefetch, memory would be idle between the last byte of a kernel and the first load of
 * the next (about 2 us per kernel), and during attention and routing. The compiler chooses tensors
 * and numbers of bytes (compiler/emit/emit_prefetch.c). The runtime computes the slices, one per
 * CTA that reads the tensor, so that each CTA finds the beginning of its own rows in L2
 * (runtime/cuda/cuda_prefetch.c). A prefetch changes no result. */
#ifndef LLMC_CUDA_RUNTIME_PREFETCH_H
#define LLMC_CUDA_RUNTIME_PREFETCH_H

#include "cuda/ptx/ptx.h"
#include "cuda/runtime/step.h"

/* Prefetches a warp's share of [from, from + bytes); warp `warp` of `warps` calls. From sm_90 on,
 * one lane issues 4 KB per instruction; on older GPUs each lane prefetches lines of 128 bytes. */
DEV void
prefetch_bytes(const unsigned char *from, unsigned bytes, int warp, int warps)
{
#if __CUDA_ARCH__ >= 900
	if (lane_id() == 0)
#pragma unroll 1
		for (unsigned i = warp * 4096; i < bytes; i += warps * 4096)
			bulk_prefetch_l2(from + i, min(bytes - i, 4096u));
#else
#pragma unroll 1
	for (unsigned i = (warp * 32 + lane_id()) * 128; i < bytes; i += warps * 4096)
		prefetch_l2(from + i);
#endif
}

/* Prefetches a warp's share of the CTA's slices of the next op's weights. */
DEV void
prefetch_next(const llmc_call &p, int warp, int warps)
{
#pragma unroll 1
	for (int k = 0; k < LLMC_PREFETCHES; k++)
#pragma unroll 1
		for (int i = blockIdx.x; i < p.next[k].n; i += gridDim.x)
			prefetch_bytes(p.next[k].at + i * p.next[k].stride, p.next[k].bytes, warp,
			               warps);
}

/* Prefetches a warp's share of the CTA's part of the selected experts' matrices. id [n_id]: experts
 * of the step; negative: on another rank */
DEV void
prefetch_experts(const llmc_call &p, const int *id, int n_id, int warp, int warps)
{
	const long long from = (long long)blockIdx.x * p.experts.bytes;

	if (from + p.experts.bytes > p.experts.stride)
		return;
#pragma unroll 1
	for (int k = 0; k < min(n_id, p.experts.n); k++)
		if (id[k] >= 0)
			prefetch_bytes(p.experts.at + id[k] * p.experts.stride + from,
			               p.experts.bytes, warp, warps);
}

#endif
