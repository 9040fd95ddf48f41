/* Grouped GEMM of experts on sm_90a, with the stages, warps and tiles of cuda/gemm/gemm_sm90.h and
 * a tile scheduler over (expert, pair of tiles). The rows of each expert are stored as those of a
 * separate GEMM (gemm90_act), from the expert's first row on.
 *
 * 16-bit weights use the large tile. A pair of tiles has 256 rows, and missing rows are skipped in
 * groups of 64 (cuda/gemm/gemm_sm90.h), so 272 rows of an expert cost 320. With few rows per
 * expert, a pair of tiles reads its weights once, half of them per CTA. Loading a stage of 32 KB
 * then takes 1640 cycles of an SM's share of memory bandwidth. The mma on missing rows take only
 * 1024, so they cost no time.
 *
 * Weights that are unpacked use the large tile (256 rows per CTA) if experts have more than 192
 * rows on average, otherwise the middle one. Steps with at most 24 rows per expert use separate
 * launches with the tiles of sm_80, which `rows` selects. For such steps, the mma of a stage here
 * would take 512 cycles, four times as long as loading its 4.6 KB.
 *
 * The shared expert's GEMM follows on the same ring if its weights are of the same kind (16-bit, or
 * unpacked). */
#ifndef LLMC_CUDA_MOE_MOE_GEMM_SM90_H
#define LLMC_CUDA_MOE_MOE_GEMM_SM90_H

#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/moe_gemm.h"

template <class W, int ROWS, int SHARE = 1> struct moe90_config : gemm90_config<W, ROWS, SHARE> {
	enum { SEPARATE_HALVES = SHARE == 2 };
};

/* Number of pairs of tiles of an expert with `count` rows */
template <class T> struct moe90_tiles {
	DEV int
	of(int count)
	{
		return gemm90_tile_pairs<T>(count);
	}
};

/* Tile scheduler that keeps only the number of an expert and of its rows, because registers are
 * scarce during the mainloop. */
template <class G, class T, class P> struct moe90_tile_scheduler {
	enum { LANES = 32 };
	const P &of;
	int expert, n;
	moe_tile_scheduler<P::E, moe90_tiles<T>> experts;

	__device__ __forceinline__ explicit moe90_tile_scheduler(const P &of)
	    : of(of), expert(0), n(0)
	{
	}
	__device__ __forceinline__ bool
	find(int t, int rank, int &m0, int &n0)
	{
		int at;

		if (!experts.find(of.counts(), t, expert, at))
			return false;
		n = of.counts()[expert];
		gemm90_tile_coord<T>(at, n, rank, m0, n0);
		return true;
	}
	__device__ __forceinline__ int
	rows() const
	{
		return n;
	}
	__device__ __forceinline__ gemm_operands<typename G::W>
	operands() const
	{
		return of.operands(expert);
	}
	__device__ __forceinline__ typename P::epilogue
	epilogue() const
	{
		return of.store(expert);
	}
};

/* Returns this cluster's first pair of tiles of the shared expert. Pairs are assigned to clusters
 * in turn, continuing after the routed experts. */
template <class T, class P> DEV int
moe90_shared_first(const P &of)
{
	const int grid = (int)gridDim.x / 2;
	int before = 0;

	for (int i = (int)lane_id(); i < P::E; i += 32)
		before += gemm90_tile_pairs<T>(of.counts()[i]);
	for (int d = 16; d; d /= 2)
		before += __shfl_xor_sync(~0u, before, d);
	return ((int)blockIdx.x / 2 + grid - before % grid) % grid;
}

/* Runs all routed experts with tiles T, then the shared expert with T2, which has the same shape.
 * more() returns the operands of the shared expert's GEMM, epilogue() its epilogue; MORE 0: there
 * is no shared expert. Both are called after the routed experts are done, because these need the
 * registers. */
template <class G, class T, class G2, class T2, bool MORE, class P, class SHARED_,
          class EPI> DEV void
moe90_tiles_of(gemm90_shared_storage &s, const P &of, int n, const SHARED_ &more,
               const EPI &epilogue)
{
	constexpr bool PACKED = G::W::PACKED;
	int it = 0;

	gemm90_init<G, T>(s, n, true);
	if (threadIdx.x < G::PRODUCERS) {
		reg_dec<(PACKED ? 72 : 40)>();
		gemm90_produce<G, T>(s, moe90_tile_scheduler<G, T, P>(of), (int)blockIdx.x / 2, it);
		if constexpr (MORE) {
			const auto in = more();
			const auto e = epilogue();
			gemm90_produce<G2, T2>(
			    s, gemm90_tile_scheduler<G2, T2, decltype(epilogue())>{ in, e, s.n },
			    moe90_shared_first<T>(of), it);
		}
	} else {
		reg_inc<(PACKED ? 184 : 232)>();
		gemm90_consume<G, T>(s, moe90_tile_scheduler<G, T, P>(of), (int)blockIdx.x / 2, it);
		if constexpr (MORE) {
			const auto in = more();
			const auto e = epilogue();
			gemm90_consume<G2, T2>(
			    s, gemm90_tile_scheduler<G2, T2, decltype(epilogue())>{ in, e, in.n },
			    moe90_shared_first<T>(of), it);
		}
	}
	__syncwarp();
	cluster_sync(); /* the other CTA may still arrive at mbarriers of this one */
}

/* n rows with K experts each, out of EXPERTS, which includes the experts of other ranks */
template <class G, class G2, bool MORE, int EXPERTS, class P, class SHARED_, class EPI> DEV void
moe90_run(const P &of, int n, int K, const SHARED_ &more, const EPI &epilogue)
{
	SHARED_STORAGE(gemm90_shared_storage, s);

	if (!G::W::PACKED || n * K > 192 * EXPERTS)
		moe90_tiles_of<G, typename G::large90, G2, typename G2::large90, MORE>(
		    s, of, n, more, epilogue);
	else if constexpr (G::W::PACKED)
		moe90_tiles_of<G, typename G::middle90, G2, typename G2::middle90, MORE>(
		    s, of, n, more, epilogue);
}

#endif
