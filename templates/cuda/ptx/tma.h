/* TMA copies between global and shared memory (sm_90): tensor map boxes, bulk stores, and the
 * fences between accesses of threads and those of the async proxy (TMA and wgmma).
 *
 * The host encodes tensor maps (cuTensorMapEncodeTiled). A load copies the box at the given
 * coordinates, innermost first. Elements outside the tensor become zero. As with bulk_load, the
 * bytes complete in the current phase of the mbarrier. The shared memory must be aligned to 128
 * bytes, or 1024 with the 128-byte swizzle. Stores form groups: bulk_commit, then bulk_wait_read
 * (the source may be overwritten) or bulk_wait.
 *
 * A multicast copies the same bytes to every CTA of the cluster in the mask, at the same offset in
 * shared memory, and signals the mbarrier at the same offset there. Rules:
 *
 * - cluster_sync follows the initialisation of mbarriers.
 * - Threads that have read the target arrive across the cluster (mbar_arrive_cluster) before it is
 * overwritten.
 * - No CTA exits before all accesses of the others to it are done (cluster_sync at the end). */
#ifndef LLMC_CUDA_PTX_TMA_H
#define LLMC_CUDA_PTX_TMA_H

#include "cuda/ptx/ptx.h"

#ifndef LLMC_EMU

#if __CUDA_ARCH__ >= 800
/* Arrives at the mbarrier once all cp.async that this thread has issued so far are complete. */
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

/* Orders shared memory accesses of this thread, and all that happen before them, before accesses of
 * the async proxy (TMA, wgmma) that follow the next barrier. */
DEV void
fence_proxy_async()
{
	asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/* Like fence_proxy_async, for global memory: orders writes and reads of this launch before bulk
 * copies. */
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
/* Required once per CTA before the first use of a tensor map in global memory, if the host or
 * another kernel has written the map. */
DEV void
fence_tensor_map(const tensor_map *m)
{
	asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" : : "l"(m) : "memory");
}

/* With .shared::cluster, ptxas for sm_120 checks for every address whether it belongs to another
 * CTA, and emits a call for this. */
#if __CUDA_ARCH__ >= 1000
#define LLMC_TENSOR_TO ".shared::cta"
#else
#define LLMC_TENSOR_TO ".shared::cluster" /* .shared::cta needs PTX 8.6 */
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

/* Loads a box of which only the first rows are used; the memory of the other rows may be
 * uninitialised. (Only the emulator's checks use the number of rows.) */
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

/* Arrives at the mbarrier in CTA `rank` of the cluster (which may be this CTA) that has the offset
 * of b. Orders this thread's reads before the arrival, which is all that copies into shared memory
 * need. Does not publish this thread's writes to other CTAs (cluster_sync does). Release and
 * acquire at cluster scope would take a MEMBAR.GPU per arrival and a CCTL.IVALL per wait. */
DEV void
mbar_arrive_cluster(mbar_t *b, unsigned rank)
{
	asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; "
	             "mbarrier.arrive.shared::cluster.b64 _, [a]; }"
	             :
	             : "r"(shared_address(b)), "r"(rank)
	             : "memory");
}

/* Bulk copy of a multiple of 16 bytes; both addresses are 16-byte aligned. */
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
/* Second parameter of the functions of a kernel with `//@map` lines: const __grid_constant__
 * llmc_maps m */
struct llmc_maps {
	tensor_map map[4];
};
#endif
#endif
