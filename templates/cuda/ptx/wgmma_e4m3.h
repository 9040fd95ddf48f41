/* Warpgroup matrix instruction of e4m3 on sm_90a: d (64 x n, fp32) (+)= a (64 x 32) b (32 x n),
 * with both operands in shared memory and K contiguous. Registers and descriptors are those of
 * cuda/ptx/wgmma.h with pairs of bytes instead of 16-bit values:
 *
 *     wgmma_e4m3_m64n128k32(d, da, db, acc);
 *
 * Multiplications are exact. Tensor cores keep fewer bits of a sum than fp32 has
 * (docs/kernels/gemm.md). */
#ifndef LLMC_CUDA_PTX_WGMMA_E4M3_H
#define LLMC_CUDA_PTX_WGMMA_E4M3_H

#include "cuda/ptx/wgmma.h"

#if !defined(LLMC_EMU) && __CUDA_ARCH__ == 900
DEV void
wgmma_e4m3_m64n128k32(float (&d)[64], unsigned long long a, unsigned long long b, int acc)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
	             "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" LLMC_WG_D64
	             "}, %64, %65, p, 1, 1; }"
	             : LLMC_WG_R64
	             : "l"(a), "l"(b), "r"(acc)
	             : "memory");
}
#endif
#endif
