/* PTX wrappers. All inline PTX of device code is here. The emulator has host definitions of the
 * same names (list: emu/README.md). A wrapper is not defined for architectures without the
 * instruction.
 *
 * Order: the asm of an instruction that must not be moved is volatile. The asm of an instruction
 * clobbers memory if other threads also access the memory that it accesses. Plain loads stay plain
 * C++, so the compiler sees which memory they read. Plain loads must never become ld.global.nc,
 * which ptxas moves across griddep_wait. */
#ifndef LLMC_CUDA_PTX_PTX_H
#define LLMC_CUDA_PTX_PTX_H

#define DEV static __device__ __forceinline__

#ifndef LLMC_EMU

/* ---- shared memory: structs, so that the emulator sees their bounds ---- */
#define SHARED(T, name) __shared__ T name
#define SHARED_STORAGE(T, name)                                                                    \
	extern __shared__ __align__(1024) unsigned char llmc_shared_storage[];                     \
	T &name = *reinterpret_cast<T *>(llmc_shared_storage)
#define SHARED_BYTES(name)                                                                         \
	extern __shared__ __align__(1024) unsigned char llmc_shared_storage[];                     \
	unsigned char *name = llmc_shared_storage

DEV unsigned
shared_address(const void *p)
{
	return (unsigned)__cvta_generic_to_shared(p);
}

/* ---- vector accesses: one instruction each ---- */
DEV unsigned
ld_v1(const void *p)
{
	return *(const unsigned *)p;
}
DEV uint2
ld_v2(const void *p)
{
	return *(const uint2 *)p;
}
DEV uint4
ld_v4(const void *p)
{
	return *(const uint4 *)p;
}
DEV void
st_v1(void *p, unsigned v)
{
	*(unsigned *)p = v;
}
DEV void
st_v2(void *p, uint2 v)
{
	*(uint2 *)p = v;
}
DEV void
st_v4(void *p, uint4 v)
{
	*(uint4 *)p = v;
}

/* Streaming load of global memory that is read once and that no thread of this kernel writes */
DEV uint4
ld_v4_stream(const void *p)
{
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(p));
	return v;
}

/* Loads global memory that no thread writes while the kernel runs. Must not precede
 * griddep_wait. */
DEV uint4
ld_v4_const(const void *p)
{
	uint4 v;
	asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(p));
	return v;
}

DEV void
prefetch_l2(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

/* ---- warps and barriers; blocks have one dimension ---- */
DEV unsigned
lane_id()
{
	return threadIdx.x & 31;
}
DEV unsigned
warp_id()
{
	return threadIdx.x >> 5;
}

/* Returns x, but hides its value from the optimiser, so that expressions of the result are not
 * hoisted out of a loop that has no registers for them. */
DEV int
opaque(int x)
{
	asm volatile("" : "+r"(x));
	return x;
}

DEV float
warp_sum(float v)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

DEV float
warp_max(float v)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
	return v;
}

DEV float
warp_min(float v)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		v = fminf(v, __shfl_xor_sync(0xffffffffu, v, d));
	return v;
}

DEV void
bar_sync(int id, int n)
{
	asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(n) : "memory");
}
DEV void
bar_arrive(int id, int n)
{
	asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(n) : "memory");
}

/* ---- conversions: bit patterns of 16-bit types; round to nearest even; NaN is 0x7fff ---- */
DEV float
bf16_to_f32(unsigned short h)
{
	return __uint_as_float((unsigned)h << 16);
}

DEV float
f16_to_f32(unsigned short h)
{
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

DEV unsigned short
f32_to_f16(float f)
{
	unsigned short h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

DEV unsigned short
f32_to_bf16(float f)
{
#if __CUDA_ARCH__ >= 800
	unsigned short h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
#else
	unsigned u = __float_as_uint(f);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return 0x7fff;
	return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
#endif
}

/* ---- order and scope ---- */
#define LLMC_LD(name, ptx, T, c, t)                                                                \
	DEV T name(const T *p)                                                                     \
	{                                                                                          \
		T v;                                                                               \
		asm volatile("ld." ptx "." t " %0, [%1];" : "=" c(v) : "l"(p) : "memory");         \
		return v;                                                                          \
	}
#define LLMC_ST(name, ptx, T, c, t)                                                                \
	DEV void name(T *p, T v)                                                                   \
	{                                                                                          \
		asm volatile("st." ptx "." t " [%0], %1;" : : "l"(p), c(v) : "memory");            \
	}
#define LLMC_ADD(name, ptx, T, c, t)                                                               \
	DEV T name(T *p, T v)                                                                      \
	{                                                                                          \
		T o;                                                                               \
		asm volatile("atom." ptx ".add." t " %0, [%1], %2;"                                \
		             : "=" c(o)                                                            \
		             : "l"(p), c(v)                                                        \
		             : "memory");                                                          \
		return o;                                                                          \
	}
#define LLMC_SCOPE(s, T, c, t, a)                                                                  \
	LLMC_LD(ld_acquire_##s, "acquire." #s, T, c, t)                                            \
	LLMC_LD(ld_relaxed_##s, "relaxed." #s, T, c, t)                                            \
	LLMC_ST(st_release_##s, "release." #s, T, c, t)                                            \
	LLMC_ST(st_relaxed_##s, "relaxed." #s, T, c, t)                                            \
	LLMC_ADD(atom_add_acq_rel_##s, "acq_rel." #s, T, c, a)                                     \
	LLMC_ADD(atom_add_release_##s, "release." #s, T, c, a)                                     \
	LLMC_ADD(atom_add_relaxed_##s, "relaxed." #s, T, c, a)
#define LLMC_SCOPES(s)                                                                             \
	LLMC_SCOPE(s, int, "r", "s32", "s32")                                                      \
	LLMC_SCOPE(s, unsigned, "r", "u32", "u32")                                                 \
	LLMC_SCOPE(s, float, "f", "f32", "f32")                                                    \
	LLMC_SCOPE(s, unsigned long long, "l", "u64", "u64")
LLMC_SCOPES(cta)
LLMC_SCOPES(gpu)
LLMC_SCOPES(sys)
#if __CUDA_ARCH__ >= 900
LLMC_SCOPES(cluster)
#endif

/* Grid barrier of a cooperative launch. The driver provides a workspace word whose address is in
 * envreg1 (upper half) and envreg2. CTA 0 adds the value that flips the top bit once all other CTAs
 * have added one; all wait for the flip. */
DEV void
grid_sync()
{
	unsigned n = gridDim.x * gridDim.y * gridDim.z, lo, hi;

	asm("mov.u32 %0, %%envreg1;" : "=r"(hi));
	asm("mov.u32 %0, %%envreg2;" : "=r"(lo));
	unsigned *word = (unsigned *)((unsigned long long)hi << 32 | lo) + 1;
	__syncthreads();
	if (threadIdx.x == 0) {
		bool first = (blockIdx.x | blockIdx.y | blockIdx.z) == 0;
		__threadfence();
		unsigned old = atom_add_acq_rel_gpu(word, first ? 0x80000000u - (n - 1) : 1u);
		while (((old ^ ld_acquire_gpu(word)) & 0x80000000u) == 0)
			;
		__threadfence();
	}
	__syncthreads();
}

/* ---- matrices ---- */
DEV void
ldmatrix_x1(unsigned (&r)[1], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
	             : "=r"(r[0])
	             : "r"(shared_address(row))
	             : "memory");
}

DEV void
ldmatrix_x2(unsigned (&r)[2], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
	             : "=r"(r[0]), "=r"(r[1])
	             : "r"(shared_address(row))
	             : "memory");
}

DEV void
ldmatrix_x4(unsigned (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(shared_address(row))
	             : "memory");
}

DEV void
ldmatrix_x1_trans(unsigned (&r)[1], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
	             : "=r"(r[0])
	             : "r"(shared_address(row))
	             : "memory");
}

DEV void
ldmatrix_x2_trans(unsigned (&r)[2], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
	             : "=r"(r[0]), "=r"(r[1])
	             : "r"(shared_address(row))
	             : "memory");
}

DEV void
ldmatrix_x4_trans(unsigned (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(shared_address(row))
	             : "memory");
}

/* The suffix is the number of registers of a, of b and of the sums. d may alias c. */
#define LLMC_MMA_214(name, ptx)                                                                    \
	DEV void name(float(&d)[4], const unsigned(&a)[2], const unsigned(&b)[1],                  \
	              const float(&c)[4])                                                          \
	{                                                                                          \
		asm volatile("mma.sync.aligned." ptx                                               \
		             " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"               \
		             : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                      \
		             : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]),   \
		               "f"(c[3]));                                                         \
	}
#define LLMC_MMA_424(name, ptx)                                                                    \
	DEV void name(float(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2],                  \
	              const float(&c)[4])                                                          \
	{                                                                                          \
		asm volatile(                                                                      \
		    "mma.sync.aligned." ptx                                                        \
		    " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"         \
		    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                               \
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), \
		      "f"(c[1]), "f"(c[2]), "f"(c[3]));                                            \
	}
LLMC_MMA_214(mma_f16_m16n8k8, "m16n8k8.row.col.f32.f16.f16.f32")

DEV void
mma_s8_m8n8k16(int (&d)[2], const unsigned (&a)[1], const unsigned (&b)[1], const int (&c)[2])
{
	asm volatile(
	    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
	    : "=r"(d[0]), "=r"(d[1])
	    : "r"(a[0]), "r"(b[0]), "r"(c[0]), "r"(c[1]));
}

#if __CUDA_ARCH__ >= 800
LLMC_MMA_424(mma_bf16_m16n8k16, "m16n8k16.row.col.f32.bf16.bf16.f32")
LLMC_MMA_424(mma_f16_m16n8k16, "m16n8k16.row.col.f32.f16.f16.f32")
LLMC_MMA_424(mma_tf32_m16n8k8, "m16n8k8.row.col.f32.tf32.tf32.f32")
LLMC_MMA_214(mma_bf16_m16n8k8, "m16n8k8.row.col.f32.bf16.bf16.f32")

DEV void
mma_s8_m16n8k32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&c)[4])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, "
	             "%6, %7}, {%8, %9}, {%10, %11, %12, %13};"
	             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]),
	               "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

DEV void
mma_s8_m16n8k16(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1], const int (&c)[4])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, "
	             "{%6}, {%7, %8, %9, %10};"
	             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

#if __CUDA_ARCH__ >= 890
LLMC_MMA_424(mma_e4m3_m16n8k32, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif

/* ---- asynchronous copies to shared memory ---- */
DEV void
cp_async_4(void *dst, const void *src)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
	             :
	             : "r"(shared_address(dst)), "l"(src)
	             : "memory");
}

DEV void
cp_async_8(void *dst, const void *src)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
	             :
	             : "r"(shared_address(dst)), "l"(src)
	             : "memory");
}

DEV void
cp_async_16(void *dst, const void *src)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
	             :
	             : "r"(shared_address(dst)), "l"(src)
	             : "memory");
}

/* Copies n bytes and fills the rest of the 16 with zeros. */
DEV void
cp_async_16_fill(void *dst, const void *src, unsigned n)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	             :
	             : "r"(shared_address(dst)), "l"(src), "r"(n)
	             : "memory");
}

DEV void
cp_async_commit()
{
	asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int LEFT> DEV void
cp_async_wait()
{
	asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}
DEV void
cp_async_wait_all()
{
	asm volatile("cp.async.wait_all;" : : : "memory");
}

/* ---- mbarriers ---- */
typedef unsigned long long mbar_t;

/* Initialises an mbarrier. Other threads may use it only after a barrier or cluster_sync. */
DEV void
mbar_init(mbar_t *b, unsigned n)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;"
	             :
	             : "r"(shared_address(b)), "r"(n)
	             : "memory");
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.mbarrier_init.release.cluster;"
	             :
	             :
	             : "memory"); /* visible to the async proxy and to other CTAs */
#endif
}

DEV void
mbar_inval(mbar_t *b)
{
	asm volatile("mbarrier.inval.shared.b64 [%0];" : : "r"(shared_address(b)) : "memory");
}

DEV void
mbar_arrive(mbar_t *b)
{
	asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }"
	             :
	             : "r"(shared_address(b))
	             : "memory");
}

/* Returns whether the phase with this parity has completed. */
DEV bool
mbar_test(mbar_t *b, unsigned parity)
{
	unsigned done;
	asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 "
	             "%0, 1, 0, p; }"
	             : "=r"(done)
	             : "r"(shared_address(b)), "r"(parity)
	             : "memory");
	return done != 0;
}

DEV void
mbar_wait(mbar_t *b, unsigned parity)
{
#if __CUDA_ARCH__ >= 900
	unsigned done;
	do
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
		             "selp.u32 %0, 1, 0, p; }"
		             : "=r"(done)
		             : "r"(shared_address(b)), "r"(parity)
		             : "memory");
	while (!done);
#else
	while (!mbar_test(b, parity))
		;
#endif
}
#endif

#if __CUDA_ARCH__ >= 900
DEV void
mbar_expect(mbar_t *b, unsigned bytes)
{
	asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
	             :
	             : "r"(shared_address(b)), "r"(bytes)
	             : "memory");
}

DEV void
mbar_arrive_expect(mbar_t *b, unsigned bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
	             :
	             : "r"(shared_address(b)), "r"(bytes)
	             : "memory");
}

/* Bulk copy of a multiple of 16 bytes; both addresses are 16-byte aligned. Its bytes complete in
 * the current phase of b. */
DEV void
bulk_load(void *dst, const void *src, unsigned bytes, mbar_t *b)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
	             "[%1], %2, [%3];"
	             :
	             : "r"(shared_address(dst)), "l"(src), "r"(bytes), "r"(shared_address(b))
	             : "memory");
}

/* Prefetches a multiple of 16 bytes at a 16-byte aligned address. */
DEV void
bulk_prefetch_l2(const void *p, unsigned bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes));
}

DEV void
stmatrix_x4(void *row, const unsigned (&r)[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
	             :
	             : "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
	             : "memory");
}

/* ---- dependent launches, clusters ---- */
DEV void
griddep_wait()
{
	asm volatile("griddepcontrol.wait;" : : : "memory");
}
DEV void
griddep_launch()
{
	asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

DEV void
cluster_arrive()
{
	asm volatile("barrier.cluster.arrive.release;" : : : "memory");
}
DEV void
cluster_wait()
{
	asm volatile("barrier.cluster.wait.acquire;" : : : "memory");
}

DEV void
cluster_sync()
{
	cluster_arrive();
	cluster_wait();
}

DEV unsigned
cluster_rank()
{
	unsigned r;
	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
	return r;
}

DEV unsigned
cluster_size()
{
	unsigned n;
	asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
	return n;
}

/* Maps the address p of this CTA's shared memory to the same offset in CTA `rank` of the
 * cluster. */
template <class T> DEV T *
cluster_map(T *p, unsigned rank)
{
	unsigned long long a;
	asm("mapa.u64 %0, %1, %2;" : "=l"(a) : "l"(p), "r"(rank));
	return (T *)a;
}
#endif

#endif /* LLMC_EMU */

/* For kernels launched with `pdl`. Below sm_90 these macros are empty, and a launch waits for the
 * end of the previous one.
 *
 * PDL_LAUNCH follows PDL_WAIT in every kernel, so that at most two kernels are on the GPU.
 * cuda_shared_of in runtime/cuda/cuda_model.c describes how the CTAs of the second kernel get
 * SMs. */
#if __CUDA_ARCH__ >= 900
#define PDL_WAIT() griddep_wait()
#define PDL_LAUNCH() griddep_launch()
#else
#define PDL_WAIT() ((void)0)
#define PDL_LAUNCH() ((void)0)
#endif

#endif
