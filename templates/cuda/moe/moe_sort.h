/* Sorts pairs (a row and one of its experts) by expert, and schedules the tiles of all experts.
 *
 * moe_sort counts the pairs of each expert and writes two arrays. range [2, E] has, for each
 * expert, the first slot and the number of pairs. list [2, pairs] has, for each slot, the row of x
 * (K consecutive pairs share a row) and the pair (token * number of choices + choice). Pairs of an
 * expert keep their order, so equal choices always give equal lists. Pairs with experts of other
 * ranks (-1) have no slot. */
#ifndef LLMC_CUDA_MOE_MOE_SORT_H
#define LLMC_CUDA_MOE_MOE_SORT_H

#include "cuda/runtime/step.h"
#include "cuda/math/math.h"

/* Pairs of one expert: slots [first, first + count) of the list, with their rows and pair
 * numbers */
struct moe_pairs {
	int first, count;
	const int *row, *pair;
};

template <int E> DEV moe_pairs
moe_pairs_of(const int *range, const int *list, int pairs, int e)
{
	const int first = range[e];

	return { first, range[E + e], list + first, list + pairs + first };
}

/* Sorts the pairs of expert e, by a CTA of 8 warps. Each warp processes an equal segment of id
 * [pairs], in order. */
template <int E, int K> DEV void
moe_sort(const int *id, int pairs, int *range, int *list, int e)
{
	struct Shared {
		int below[8], here[8];
	};
	SHARED(Shared, s);
	const int lane = lane_id(), warp = warp_id(), segment = ((pairs + 7) / 8 + 31) / 32 * 32,
	          from = warp * segment, to = min(pairs, from + segment);
	int below = 0, here = 0;

	for (int i = from; i < to; i += 32) {
		const int x = i + lane < to ? id[i + lane] : E;
		below += __popc(__ballot_sync(~0u, (unsigned)x < (unsigned)e));
		here += __popc(__ballot_sync(~0u, x == e));
	}
	if (lane == 0) {
		s.below[warp] = below;
		s.here[warp] = here;
	}
	__syncthreads();
	int first = 0, count = 0, at = 0;
	for (int w = 0; w < 8; w++) {
		first += s.below[w];
		count += s.here[w];
		at += w < warp ? s.here[w] : 0;
	}
	at += first;
	for (int i = from; i < to; i += 32) {
		const bool mine = i + lane < to && id[i + lane] == e;
		const unsigned votes = __ballot_sync(~0u, mine);
		if (mine) {
			const int k = at + __popc(votes & ((1u << lane) - 1));
			list[k] = (i + lane) / K;
			list[pairs + k] = i + lane;
		}
		at += __popc(votes);
	}
	if (threadIdx.x == 0) {
		range[e] = first;
		range[E + e] = count;
	}
}

/* Number of slots that have a pair: all slots, or those of this rank's experts if some experts are
 * on other ranks */
template <int E, int N_REMOTE_EXPERTS> DEV int
moe_sorted_pairs(const int *range, int pairs)
{
	return N_REMOTE_EXPERTS ? range[E - 1] + range[2 * E - 1] : pairs;
}

/* Tile scheduler over E experts. Tiles are numbered expert by expert; an expert has
 * TILES::of(number of pairs) tiles. Whole warps call find with increasing numbers, and each lane
 * inspects one of 32 experts at a time, so no list of tiles is written or read. Little state is
 * kept between tiles, because the mainloop needs all registers. */
template <int E, class TILES> struct moe_tile_scheduler {
	int base,
	    before; /* base: first of the 32 experts; before: number of tiles before that expert */

	__device__ __forceinline__
	moe_tile_scheduler()
	    : base(0), before(0)
	{
	}

	/* Finds the expert of tile t and the index of the tile within the expert. Returns false if
	 * there is no such tile; `before` is then the number of all tiles. count [E] */
	__device__ __forceinline__ bool
	find(const int *count, int t, int &e, int &at)
	{
		for (; base < E; base += 32) {
			const int x = base + (int)lane_id(), mine = x < E ? TILES::of(count[x]) : 0;
			int upto = mine; /* inclusive prefix sum over the 32 experts */
			for (int d = 1; d < 32; d *= 2) {
				const int v = __shfl_up_sync(~0u, upto, d);
				upto += (int)lane_id() >= d ? v : 0;
			}
			const unsigned votes = __ballot_sync(~0u, t - before < upto);
			if (votes) {
				const int k = __ffs((int)votes) - 1;
				e = base + k;
				at = t - before - __shfl_sync(~0u, upto - mine, k);
				return true;
			}
			before += __shfl_sync(~0u, upto, 31);
		}
		return false;
	}
};

#endif
