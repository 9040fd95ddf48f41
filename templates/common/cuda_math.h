/* Arithmetic that kernels share: activations as the op table names them, sums over a block, the thread's place in the grid. */
#ifndef LLMC_CUDA_MATH_H
#define LLMC_CUDA_MATH_H

#include "common/cuda_ptx.h"

/* this thread among all threads of a one-dimensional grid, and their number */
DEV long long flat_thread() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
DEV long long flat_threads() { return (long long)gridDim.x * blockDim.x; }

DEV float act_none(float x) { return x; }
DEV float act_silu(float x) { return x / (1.0f + expf(-x)); }
DEV float act_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
DEV float act_gelu_tanh(float x) { return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x))); }
DEV float act_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEV float soft_cap(float x, float cap) { return cap * tanhf(x / cap); }

/* 16-bit values in pairs: the lower half is the first. */
DEV float bf16_lo(unsigned pair) { return __uint_as_float(pair << 16); }
DEV float bf16_hi(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
DEV float f16_lo(unsigned pair) { return f16_to_f32((unsigned short)pair); }
DEV float f16_hi(unsigned pair) { return f16_to_f32((unsigned short)(pair >> 16)); }

#if __CUDA_ARCH__ >= 800 && !defined(LLMC_EMU)
DEV unsigned
pack_bf16(float lo, float hi)
{
	unsigned pair;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
	return pair;
}

DEV unsigned
pack_f16(float lo, float hi)
{
	unsigned pair;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
	return pair;
}
#elif !defined(LLMC_EMU)
DEV unsigned pack_bf16(float lo, float hi) { return f32_to_bf16(lo) | (unsigned)f32_to_bf16(hi) << 16; }
DEV unsigned pack_f16(float lo, float hi) { return f32_to_f16(lo) | (unsigned)f32_to_f16(hi) << 16; }
#endif

/* Sums and maxima over a block of NW warps, for every thread; the order is fixed. `part` is shared and free again after the next
 * barrier; every thread of the block calls. */
template <int NW> DEV float
block_sum(float v, float (&part)[NW])
{
	v = warp_sum(v);
	if (NW == 1)
		return v;
	if (lane_id() == 0)
		part[warp_id()] = v;
	__syncthreads();
	float s = 0;
	for (int i = 0; i < NW; i++)
		s += part[i];
	return s;
}

template <int NW> DEV float
block_max(float v, float (&part)[NW])
{
	v = warp_max(v);
	if (NW == 1)
		return v;
	if (lane_id() == 0)
		part[warp_id()] = v;
	__syncthreads();
	float m = part[0];
	for (int i = 1; i < NW; i++)
		m = fmaxf(m, part[i]);
	return m;
}

#endif
