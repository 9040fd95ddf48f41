/* Grouped GEMM of experts on sm_90a: the stages, warps and tiles of cuda/gemm/gemm_sm90.h, with a
 * tile scheduler over (expert, pair of tiles). Rows of an expert have the layout of a GEMM of their
 * own (gemm90_act), from the expert's first row on.
 *
 * 16-bit weights use the large tile. A pair of tiles has 256 rows, and missing rows are skipped in
 * groups of 64 (cuda/gemm/gemm_sm90.h), so 272 rows of an expert cost 320. With few rows per expert
 * a pair reads its weights once, half of them per CTA. A stage of 32 KB then takes 1640 cycles of
 * an SM's share of memory bandwidth; the unneeded mma take 1024.
 *
 * Weights to unpack use the large tile (256 rows per CTA) if experts have more than 192 rows on
 * average, otherwise the middle one. Steps with at most 24 rows per expert have launches of their
 * own with the tiles of sm_80, selected by `rows`: there the 512 cycles of a stage would be four
 * times what its 4.6 KB take.
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

/* Number of tile pairs of an expert with `count` rows */
template <class T> struct moe90_tiles {
	DEV int
	of(int count)
	{
		return gemm90_tile_pairs<T>(count);
	}
};

/* Keeps only the number of an expert and of its rows: registers are scarce during the mainloop. */
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

/* This cluster's first tile pair of the shared expert: pairs are dealt in turn from where the
 * routed experts end */
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

/* Runs all routed experts with tiles T, then the shared expert with T2, which has the same shape:
 * more() returns its operands, epilogue() its epilogue; MORE 0: there is no shared expert. Both are
 * called after the other experts are done, which need the registers. */
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
	cluster_sync(); /* the other CTA still arrives at mbarriers of this one */
}

/* n rows with K of EXPERTS experts each, counting those of other ranks */
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
