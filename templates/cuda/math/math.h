/* Shared arithmetic: activations by their names in the op table, CTA-wide reductions, index of the
 * thread in the grid. */
#ifndef LLMC_CUDA_MATH_MATH_H
#define LLMC_CUDA_MATH_MATH_H

#include "cuda/ptx/ptx.h"

/* Return the index of this thread in a one-dimensional grid, and the number of threads. */
DEV long long
flat_thread()
{
	return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}
DEV long long
flat_threads()
{
	return (long long)gridDim.x * blockDim.x;
}

DEV float
act_none(float x)
{
	return x;
}
DEV float
act_silu(float x)
{
	return x / (1.0f + expf(-x));
}
DEV float
act_gelu(float x)
{
	return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
DEV float
act_gelu_tanh(float x)
{
	return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
DEV float
act_gelu_quick(float x)
{
	return x / (1.0f + expf(-1.702f * x));
}
DEV float
act_relu(float x)
{
	return fmaxf(x, 0.0f);
}
DEV float
act_relu2(float x)
{
	return act_relu(x) * act_relu(x);
}
DEV float
act_sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}
DEV float
softplus(float x)
{
	return x > 20.0f ? x : log1pf(expf(x));
}
DEV float
act_softplus(float x)
{
	return softplus(x);
}
DEV float
soft_cap(float x, float cap)
{
	return cap * tanhf(x / cap);
}

/* xielu with the layer's parameters p [2]: a = log(1 + e^p[0]), b = 1/2 + log(1 + e^p[1]). */

DEV float
act_xielu(float x, const float *p)
{
	if (x > 0)
		return fmaf(softplus(p[0]) * x, x, 0.5f * x);
	return fmaf(0.5f + softplus(p[1]), expm1f(fminf(x, -1e-6f)) - x, 0.5f * x);
}

/* Gated activation: glu_<act>(g, u, limit) = act(g) * u. limit > 0: g and u are clamped first. */
DEV float
glu_gate(float g, float limit)
{
	return limit > 0 ? fminf(g, limit) : g;
}
DEV float
glu_up(float u, float limit)
{
	return limit > 0 ? fmaxf(fminf(u, limit), -limit) : u;
}
DEV float
glu_silu(float g, float u, float limit)
{
	return act_silu(glu_gate(g, limit)) * glu_up(u, limit);
}
DEV float
glu_gelu(float g, float u, float limit)
{
	return act_gelu(glu_gate(g, limit)) * glu_up(u, limit);
}
DEV float
glu_gelu_tanh(float g, float u, float limit)
{
	return act_gelu_tanh(glu_gate(g, limit)) * glu_up(u, limit);
}
DEV float
glu_gelu_quick(float g, float u, float limit)
{
	return act_gelu_quick(glu_gate(g, limit)) * glu_up(u, limit);
}
DEV float
glu_relu(float g, float u, float limit)
{
	return act_relu(glu_gate(g, limit)) * glu_up(u, limit);
}
DEV float
glu_silu_limit(float g, float u, float limit)
{
	return glu_gate(act_silu(g), limit) * glu_up(u, limit);
}
DEV float
glu_relu2(float g, float u, float limit)
{
	return act_relu2(glu_gate(g, limit)) * glu_up(u, limit);
}

DEV float
glu_swiglu_oai(float g, float u, float limit)
{
	const float v = glu_gate(g, limit);

	return v / (1.0f + expf(-1.702f * v)) * (glu_up(u, limit) + 1.0f);
}

/* Pairs of 16-bit values; the lower half is the first. */
DEV float
bf16_lo(unsigned pair)
{
	return __uint_as_float(pair << 16);
}
DEV float
bf16_hi(unsigned pair)
{
	return __uint_as_float(pair & 0xffff0000u);
}
DEV float
f16_lo(unsigned pair)
{
	return f16_to_f32((unsigned short)pair);
}
DEV float
f16_hi(unsigned pair)
{
	return f16_to_f32((unsigned short)(pair >> 16));
}

/* Rounds to e4m3, ties to even; values above 448 become 448. */
DEV unsigned
f32_to_e4m3(float v)
{
	const unsigned u = __float_as_uint(v), sign = u >> 24 & 0x80,
	               top = min(u & 0x7fffffffu, 0x43e00000u);

	if (top < 0x3c800000u) /* 2^-6 */
		return sign | (unsigned)(int)rintf(__uint_as_float(top) * 512.0f);
	return sign | (((top + 0x7ffff + (top >> 20 & 1)) >> 20) - (120 << 3));
}

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
DEV unsigned
pack_bf16(float lo, float hi)
{
	return f32_to_bf16(lo) | (unsigned)f32_to_bf16(hi) << 16;
}
DEV unsigned
pack_f16(float lo, float hi)
{
	return f32_to_f16(lo) | (unsigned)f32_to_f16(hi) << 16;
}
#endif

/* Sum and maximum over a CTA of NW warps, in a fixed order, returned to every thread. `part` is
 * shared memory, which is free again after the next barrier. All threads of the CTA call. */
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
