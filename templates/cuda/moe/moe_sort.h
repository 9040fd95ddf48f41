/* Pairs of a row and one of its experts, brought together by expert, and the way over all experts'
 * tiles.
 *
 * moe_sort makes, by counting: range [2, E], of each expert the place of its first pair and their
 * number; list [2, pairs], for each place the row of x, of which K pairs have one each, and the
 * pair (token * its choices + choice). Pairs of an expert stay in order, so the same choices always
 * give the same list. Experts of other ranks, -1, have no places. */
#ifndef LLMC_CUDA_MOE_MOE_SORT_H
#define LLMC_CUDA_MOE_MOE_SORT_H

#include "cuda/runtime/step.h"
#include "cuda/math/math.h"

/* The pairs of one expert: places first .. first + count of the list; their rows and numbers */
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

/* Expert e is this block's, of 8 warps: each takes an equal piece of the pairs, in order. id
 * [pairs] */
template <int E, int K> DEV void
moe_sort(const int *id, int pairs, int *range, int *list, int e)
{
	struct Shared {
		int below[8], here[8];
	};
	SHARED(Shared, s);
	const int lane = lane_id(), warp = warp_id(), piece = ((pairs + 7) / 8 + 31) / 32 * 32,
	          from = warp * piece, to = min(pairs, from + piece);
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

/* Places that have a pair: all, or those of this rank's experts where some are elsewhere */
template <int E, int N_REMOTE_EXPERTS> DEV int
moe_sorted_pairs(const int *range, int pairs)
{
	return N_REMOTE_EXPERTS ? range[E - 1] + range[2 * E - 1] : pairs;
}

/* All tiles of E experts in one row: expert by expert, of each TILES::of(count of its pairs).
 * Numbers are asked for in rising order, by whole warps, whose lanes look at 32 experts at a time:
 * no list of tiles is made, and none is read. Little is kept between two tiles, whose products want
 * all registers. */
template <int E, class TILES> struct moe_tile_scheduler {
	int base, before; /* the first of the 32, and the tiles of all before it */

	__device__ __forceinline__
	moe_tile_scheduler()
	    : base(0), before(0)
	{
	}

	/* The expert of tile t and the tile among its own; false: there is none, and `before` is
	 * the number of all. count [E] */
	__device__ __forceinline__ bool
	find(const int *count, int t, int &e, int &at)
	{
		for (; base < E; base += 32) {
			const int x = base + (int)lane_id(), mine = x < E ? TILES::of(count[x]) : 0;
			int upto = mine; /* of the 32 up to this lane's */
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
