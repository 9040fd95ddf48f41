/* Warpgroup matrix instructions of sm_90a and their register layouts.
 *
 * The 128 threads of a warpgroup compute d (64 x n, fp32) (+)= a (64 x 16) b (16 x n), in f16 or
 * bf16. With g = lane / 4, q = lane % 4 and w the warp within its group:
 *
 *   d[4 j + 2 h + e]   row 16 w + g + 8 h, column 8 j + 2 q + e
 *   a[i]               row 16 w + g + 8 (i & 1), columns 2 q + 8 (i >> 1) and the next
 *   acc 0              the old value of d is not added
 *
 *     wgmma_fence();                           this thread's writes to d (and a) are complete
 *     wgmma_bf16_m64n128k16(d, da, db, acc);   _ra: a from registers; _bt: n of b is contiguous
 *     wgmma_commit();
 *     wgmma_wait<LEFT>();                      all groups except the last LEFT are done
 *     wgmma_pin(d);                            no use of d moves above this
 *
 * Operands in shared memory are described by smem_desc(start, lead, stride, swizzle). Rows have 16,
 * 32, 64 or 128 bytes of k, in groups of eight rows that are `stride` bytes apart. With a swizzle
 * of 32, 64 or 128 bytes, the index of a 16-byte chunk of a row is XORed with the row number, and
 * the pattern starts at a multiple of 8 rows. Without a swizzle (0) a row is 16 bytes, and the next
 * 8 values of k follow at a distance of `lead` bytes. A thread that has written an operand must
 * call fence_proxy_async (cuda/ptx/tma.h) before the barrier. */
#ifndef LLMC_CUDA_PTX_WGMMA_H
#define LLMC_CUDA_PTX_WGMMA_H

#include "cuda/ptx/tma.h"

#if !defined(LLMC_EMU) && __CUDA_ARCH__ == 900

DEV unsigned long long
smem_desc(const void *p, unsigned lead, unsigned stride, unsigned swizzle)
{
	const unsigned long long mode = swizzle == 128  ? 1
	                                : swizzle == 64 ? 2
	                                : swizzle == 32 ? 3
	                                                : 0;

	return (unsigned long long)((shared_address(p) & 0x3ffff) >> 4) |
	       (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
	       mode << 62;
}

DEV void
wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
DEV void
wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
template <int LEFT> DEV void
wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(LEFT) : "memory");
}

template <int N> DEV void
wgmma_pin(float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i]) : : "memory");
}

#define LLMC_WG_D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LLMC_WG_D32                                                                                \
	LLMC_WG_D16                                                                                \
	", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_WG_D48                                                                                \
	LLMC_WG_D32                                                                                \
	", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LLMC_WG_D64                                                                                \
	LLMC_WG_D48                                                                                \
	", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMC_WG_D96                                                                                \
	LLMC_WG_D64                                                                                \
	", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"         \
	", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLMC_WG_D128                                                                               \
	LLMC_WG_D96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
	            "%109, %110, %111"                                                             \
	            ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "   \
	            "%124, %125, %126, %127"
#define LLMC_WG_R8(o)                                                                              \
	"+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]),                \
	    "+f"(d[o + 5]), "+f"(d[o + 6]), "+f"(d[o + 7])
#define LLMC_WG_R16 LLMC_WG_R8(0), LLMC_WG_R8(8)
#define LLMC_WG_R32 LLMC_WG_R16, LLMC_WG_R8(16), LLMC_WG_R8(24)
#define LLMC_WG_R48 LLMC_WG_R32, LLMC_WG_R8(32), LLMC_WG_R8(40)
#define LLMC_WG_R64 LLMC_WG_R48, LLMC_WG_R8(48), LLMC_WG_R8(56)
#define LLMC_WG_R96 LLMC_WG_R64, LLMC_WG_R8(64), LLMC_WG_R8(72), LLMC_WG_R8(80), LLMC_WG_R8(88)
#define LLMC_WG_R128 LLMC_WG_R96, LLMC_WG_R8(96), LLMC_WG_R8(104), LLMC_WG_R8(112), LLMC_WG_R8(120)

/* r: number of registers of d; o..: indices of the operands that follow them */
#define LLMC_WG_SS(name, type, n, r, tb, o0, o1, o2)                                               \
	DEV void name(float(&d)[r], unsigned long long a, unsigned long long b, int acc)           \
	{                                                                                          \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o2                                \
		             ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type  \
		             " {" LLMC_WG_D##r "}, %" #o0 ", %" #o1 ", p, 1, 1, 0, " #tb "; }"     \
		             : LLMC_WG_R##r                                                        \
		             : "l"(a), "l"(b), "r"(acc)                                            \
		             : "memory");                                                          \
	}
#define LLMC_WG_RS(name, type, n, r, tb, o0, o1, o2, o3, o4, o5)                                   \
	DEV void name(float(&d)[r], const unsigned(&a)[4], unsigned long long b, int acc)          \
	{                                                                                          \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5                                \
		             ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type  \
		             " {" LLMC_WG_D##r "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3           \
		                               "}, %" #o4 ", p, 1, 1, " #tb "; }"                  \
		             : LLMC_WG_R##r                                                        \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(acc)        \
		             : "memory");                                                          \
	}
#define LLMC_WG(type, n, r, o0, o1, o2, o3, o4, o5)                                                \
	LLMC_WG_SS(wgmma_##type##_m64n##n##k16, #type, n, r, 0, o0, o1, o2)                        \
	LLMC_WG_SS(wgmma_##type##_m64n##n##k16_bt, #type, n, r, 1, o0, o1, o2)                     \
	LLMC_WG_RS(wgmma_##type##_m64n##n##k16_ra, #type, n, r, 0, o0, o1, o2, o3, o4, o5)         \
	LLMC_WG_RS(wgmma_##type##_m64n##n##k16_ra_bt, #type, n, r, 1, o0, o1, o2, o3, o4, o5)
#define LLMC_WG_N(n, r, ...) LLMC_WG(bf16, n, r, __VA_ARGS__) LLMC_WG(f16, n, r, __VA_ARGS__)
LLMC_WG_N(32, 16, 16, 17, 18, 19, 20, 21)
LLMC_WG_N(64, 32, 32, 33, 34, 35, 36, 37)
LLMC_WG_N(96, 48, 48, 49, 50, 51, 52, 53)
LLMC_WG_N(128, 64, 64, 65, 66, 67, 68, 69)
LLMC_WG_N(192, 96, 96, 97, 98, 99, 100, 101)
LLMC_WG_N(256, 128, 128, 129, 130, 131, 132, 133)

/* Move registers from producer to consumer warpgroups. All warps of a warpgroup must execute
 * them. */
template <int N> DEV void
reg_dec()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N));
}
template <int N> DEV void
reg_inc()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N));
}

#endif
#endif
