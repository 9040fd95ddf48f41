/* Grouped products of experts on sm_90a: the stages, warps and tiles of cuda/gemm/gemm_sm90.h, of
 * which the clusters walk over (expert, pair of tiles). Rows of an expert stand as prep has put
 * them for a product of its own (gemm90_act), from the expert's first row on.
 *
 * 16-bit weights go by the large tile: a pair has 256 rows, and rows that are not there cost
 * nothing by 64 (cuda/gemm/gemm_sm90.h), so 272 rows of an expert cost 320. With few rows an expert
 * a pair reads its weights once, half of them each block: 32 KB a stage are 1640 cycles of a
 * multiprocessor's share of the memory, and the products that nobody wants 1024. Weights to unpack:
 * the large tile (256 rows a block) where experts have more than 192 rows on average, else the
 * middle one. Steps with at most 24 rows an expert have launches of their own with the tiles of
 * sm_80, chosen by rows: there 512 cycles a stage would be four times what 4.6 KB take.
 *
 * The shared expert's product follows on the same ring, when its weights are of the same kind
 * (elements, or to unpack). */
#ifndef LLMC_CUDA_MOE_MOE_GEMM_SM90_H
#define LLMC_CUDA_MOE_MOE_GEMM_SM90_H

#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/moe_gemm.h"

template <class W, int ROWS, int SHARE = 1> struct moe90_config : gemm90_config<W, ROWS, SHARE> {
	enum { SEPARATE_HALVES = SHARE == 2 };
};

/* Pairs of tiles of an expert with `count` rows */
template <class T> struct moe90_tiles {
	DEV int
	of(int count)
	{
		return gemm90_tile_pairs<T>(count);
	}
};

/* Of an expert only its number and that of its rows are kept: registers are few while a tile is
 * multiplied */
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

/* Where this cluster goes on with the shared expert's pairs, so that they are dealt on where the
 * others end */
template <class T, class P> DEV int
moe90_then(const P &of)
{
	const int grid = (int)gridDim.x / 2;
	int before = 0;

	for (int i = (int)lane_id(); i < P::E; i += 32)
		before += gemm90_tile_pairs<T>(of.counts()[i]);
	for (int d = 16; d; d /= 2)
		before += __shfl_xor_sync(~0u, before, d);
	return ((int)blockIdx.x / 2 + grid - before % grid) % grid;
}

/* All experts' products by tiles T, then the shared expert's by T2, the same tile: more() is what
 * it multiplies, takes() what takes its results; MORE 0: there is none. Both are asked when the
 * others are done, which need the registers. */
template <class G, class T, class G2, class T2, bool MORE, class P, class SHARED_,
          class TAKES> DEV void
moe90_tiles_of(gemm90_shared_storage &s, const P &of, int n, const SHARED_ &more,
               const TAKES &takes)
{
	constexpr bool PACKED = G::W::PACKED;
	int it = 0;

	gemm90_init<G, T>(s, n, true);
	if (threadIdx.x < G::PRODUCERS) {
		reg_dec<(PACKED ? 72 : 40)>();
		gemm90_produce<G, T>(s, moe90_tile_scheduler<G, T, P>(of), (int)blockIdx.x / 2, it);
		if constexpr (MORE) {
			const auto in = more();
			const auto e = takes();
			gemm90_produce<G2, T2>(
			    s, gemm90_tile_scheduler<G2, T2, decltype(takes())>{ in, e, s.n },
			    moe90_then<T>(of), it);
		}
	} else {
		reg_inc<(PACKED ? 184 : 232)>();
		gemm90_consume<G, T>(s, moe90_tile_scheduler<G, T, P>(of), (int)blockIdx.x / 2, it);
		if constexpr (MORE) {
			const auto in = more();
			const auto e = takes();
			gemm90_consume<G2, T2>(
			    s, gemm90_tile_scheduler<G2, T2, decltype(takes())>{ in, e, in.n },
			    moe90_then<T>(of), it);
		}
	}
	__syncwarp();
	cluster_sync(); /* the other block still arrives at barriers of this one */
}

/* n rows, K experts each, of EXPERTS, here or elsewhere */
template <class G, class G2, bool MORE, int EXPERTS, class P, class SHARED_, class TAKES> DEV void
moe90_run(const P &of, int n, int K, const SHARED_ &more, const TAKES &takes)
{
	SHARED_STORAGE(gemm90_shared_storage, s);

	if (!G::W::PACKED || n * K > 192 * EXPERTS)
		moe90_tiles_of<G, typename G::large90, G2, typename G2::large90, MORE>(s, of, n,
		                                                                       more, takes);
	else if constexpr (G::W::PACKED)
		moe90_tiles_of<G, typename G::middle90, G2, typename G2::middle90, MORE>(
		    s, of, n, more, takes);
}

#endif
