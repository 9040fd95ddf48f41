/* Copies between global and shared memory by the copy unit (sm_90): tiles of tensor maps, bulk
 * stores, and the fences between what threads write and what the unit (and wgmma) reads.
 *
 * A tensor map is made by the host (cuTensorMapEncodeTiled). A load brings a box at coordinates,
 * innermost first; what lies outside of the tensor becomes zero; its bytes count towards the
 * barrier's phase as those of bulk_load do. Shared memory at a multiple of 128 bytes, of 1024 with
 * a swizzle of 128. Stores go by groups: bulk_commit, then bulk_wait_read (the source may be
 * written again) or bulk_wait.
 *
 * A multicast brings the same bytes to every block of the cluster whose bit is in the mask: to the
 * same place in its shared memory, counted by the barrier in the same place there. Barriers must be
 * known to be there (cluster_sync behind their initialisation), whoever reads the target must have
 * said so across the cluster (mbar_arrive_cluster), and no block may leave before all that others
 * do to it has been (cluster_sync at the end). */
#ifndef LLMC_CUDA_PTX_TMA_H
#define LLMC_CUDA_PTX_TMA_H

#include "cuda/ptx/ptx.h"

#ifndef LLMC_EMU

#if __CUDA_ARCH__ >= 800
/* One of the barrier's arrivals, once this thread's copies by cp.async so far have landed. */
DEV void
cp_async_arrive(mbar_t *b)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"
	             :
	             : "r"(shared_address(b))
	             : "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
struct __align__(128) tensor_map {
	unsigned long long opaque[16];
};

/* Accesses of this thread to shared memory, and those it is ordered after, come before what the
 * copy unit and wgmma do there after the next barrier. */
DEV void
fence_proxy_async()
{
	asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/* The same for global memory: bulk copies from or to what this launch has written or read. */
DEV void
fence_proxy_async_global()
{
	asm volatile("fence.proxy.async.global;" : : : "memory");
}
DEV void
fence_mbar_init()
{
	asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

DEV void
tensor_prefetch(const tensor_map *m)
{
	asm volatile("prefetch.tensormap [%0];" : : "l"(m) : "memory");
}
/* A map in global memory, written by the host or another kernel, before its first use in a block.
 */
DEV void
fence_tensor_map(const tensor_map *m)
{
	asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" : : "l"(m) : "memory");
}

#if __CUDA_ARCH__ >= 1000 /* ptxas for sm_120 looks at every address whether it is another         \
                             block's, and calls the driver for it */
#define LLMC_TENSOR_TO ".shared::cta"
#else
#define LLMC_TENSOR_TO ".shared::cluster" /* .shared::cta is of PTX 8.6 */
#endif
#define LLMC_TENSOR_LOAD(dim, coords)                                                              \
	"cp.async.bulk.tensor." dim LLMC_TENSOR_TO                                                 \
	".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" coords "}], [%2];"
#define LLMC_TENSOR_STORE(dim, coords)                                                             \
	"cp.async.bulk.tensor." dim ".global.shared::cta.tile.bulk_group [%0, {" coords "}], "     \
	"[%1];"
#define LLMC_LOAD_TO "r"(shared_address(dst)), "l"(m), "r"(shared_address(b))

DEV void
tensor_load_1d(void *dst, const tensor_map *m, int x, mbar_t *b)
{
	asm volatile(LLMC_TENSOR_LOAD("1d", "%3") : : LLMC_LOAD_TO, "r"(x) : "memory");
}

DEV void
tensor_load_2d(void *dst, const tensor_map *m, int x, int y, mbar_t *b)
{
	asm volatile(LLMC_TENSOR_LOAD("2d", "%3, %4") : : LLMC_LOAD_TO, "r"(x), "r"(y) : "memory");
}

/* The same where only the first rows of the box matter: nobody need have written the others. (The
 * emulator's checks want to know.) */
DEV void
tensor_load_2d_rows(void *dst, const tensor_map *m, int x, int y, int, mbar_t *b)
{
	tensor_load_2d(dst, m, x, y, b);
}

DEV void
tensor_load_3d(void *dst, const tensor_map *m, int x, int y, int z, mbar_t *b)
{
	asm volatile(LLMC_TENSOR_LOAD("3d", "%3, %4, %5")
	             :
	             : LLMC_LOAD_TO, "r"(x), "r"(y), "r"(z)
	             : "memory");
}

DEV void
tensor_load_4d(void *dst, const tensor_map *m, int x, int y, int z, int u, mbar_t *b)
{
	asm volatile(LLMC_TENSOR_LOAD("4d", "%3, %4, %5, %6")
	             :
	             : LLMC_LOAD_TO, "r"(x), "r"(y), "r"(z), "r"(u)
	             : "memory");
}

DEV void
tensor_load_5d(void *dst, const tensor_map *m, int x, int y, int z, int u, int v, mbar_t *b)
{
	asm volatile(LLMC_TENSOR_LOAD("5d", "%3, %4, %5, %6, %7")
	             :
	             : LLMC_LOAD_TO, "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
	             : "memory");
}

DEV void
tensor_store_1d(const tensor_map *m, int x, const void *src)
{
	asm volatile(LLMC_TENSOR_STORE("1d", "%2")
	             :
	             : "l"(m), "r"(shared_address(src)), "r"(x)
	             : "memory");
}

DEV void
tensor_store_2d(const tensor_map *m, int x, int y, const void *src)
{
	asm volatile(LLMC_TENSOR_STORE("2d", "%2, %3")
	             :
	             : "l"(m), "r"(shared_address(src)), "r"(x), "r"(y)
	             : "memory");
}

DEV void
tensor_store_3d(const tensor_map *m, int x, int y, int z, const void *src)
{
	asm volatile(LLMC_TENSOR_STORE("3d", "%2, %3, %4")
	             :
	             : "l"(m), "r"(shared_address(src)), "r"(x), "r"(y), "r"(z)
	             : "memory");
}

DEV void
tensor_store_4d(const tensor_map *m, int x, int y, int z, int u, const void *src)
{
	asm volatile(LLMC_TENSOR_STORE("4d", "%2, %3, %4, %5")
	             :
	             : "l"(m), "r"(shared_address(src)), "r"(x), "r"(y), "r"(z), "r"(u)
	             : "memory");
}

DEV void
tensor_store_5d(const tensor_map *m, int x, int y, int z, int u, int v, const void *src)
{
	asm volatile(LLMC_TENSOR_STORE("5d", "%2, %3, %4, %5, %6")
	             :
	             : "l"(m), "r"(shared_address(src)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
	             : "memory");
}

DEV void
tensor_load_2d_multicast(void *dst, const tensor_map *m, int x, int y, mbar_t *b,
                         unsigned short mask)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
	             "bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
	             :
	             : LLMC_LOAD_TO, "r"(x), "r"(y), "h"(mask)
	             : "memory");
}

DEV void
tensor_load_2d_rows_multicast(void *dst, const tensor_map *m, int x, int y, int, mbar_t *b,
                              unsigned short mask)
{
	tensor_load_2d_multicast(dst, m, x, y, b, mask);
}

DEV void
bulk_load_multicast(void *dst, const void *src, unsigned bytes, mbar_t *b, unsigned short mask)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
	             "cluster [%0], [%1], %2, [%3], %4;"
	             :
	             : "r"(shared_address(dst)), "l"(src), "r"(bytes), "r"(shared_address(b)),
	               "h"(mask)
	             : "memory");
}

/* One arrival at the barrier in the place of b in block `rank` of the cluster, this one's own too.
 * It says that this thread's reads are over, all that copies into shared memory need; what the
 * thread wrote itself it does not hand to another block (cluster_sync does). Release and acquire of
 * the cluster's scope would cost MEMBAR.GPU at each arrival and CCTL.IVALL at each wait. */
DEV void
mbar_arrive_cluster(mbar_t *b, unsigned rank)
{
	asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; "
	             "mbarrier.arrive.shared::cluster.b64 _, [a]; }"
	             :
	             : "r"(shared_address(b)), "r"(rank)
	             : "memory");
}

/* A multiple of 16 bytes, both sides aligned to 16. */
DEV void
bulk_store(void *dst, const void *src, unsigned bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
	             :
	             : "l"(dst), "r"(shared_address(src)), "r"(bytes)
	             : "memory");
}

DEV void
bulk_commit()
{
	asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}
template <int LEFT> DEV void
bulk_wait()
{
	asm volatile("cp.async.bulk.wait_group %0;" : : "n"(LEFT) : "memory");
}
template <int LEFT> DEV void
bulk_wait_read()
{
	asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(LEFT) : "memory");
}
#endif

#endif

#if __CUDA_ARCH__ >= 900
/* The second parameter of functions of a kernel with `//@map` lines: const __grid_constant__
 * llmc_maps m */
struct llmc_maps {
	tensor_map map[4];
};
#endif
#endif
