/* What a block of a GEMV has in shared memory, and in how many slices its columns are cut. Asks for what cuda_gemv.h asks for. */
#ifndef LLMC_CUDA_GEMV_ARENA_H
#define LLMC_CUDA_GEMV_ARENA_H

#include "common/cuda_gemv_weights.h"
#include "common/cuda_step.h"

#ifndef GV_MAX_SLICES
#define GV_MAX_SLICES (COLS > 16384 ? 16 : 8) /* so that 8 rows of x fit */
#endif
#ifdef NORM_none
#define GV_NORMED 0
#define NORM_PLUS_ONE 0
#else
#define GV_NORMED 1
#endif

enum {
	GV_WARPS = 8,
	GV_THREADS = GV_WARPS * 32,
	GV_SMS = GV_ARCH == 80 ? 108 : GV_ARCH == 86 ? 84 : GV_ARCH == 89 ? 128 : GV_ARCH == 90 ? 132 : GV_ARCH == 100 ? 148 : 170,
	GV_UNITS = (COLS + GV_UNIT - 1) / GV_UNIT, /* of a row */
	GV_MOST = (GV_UNITS + GV_WARPS - 1) / GV_WARPS,
	GV_KWARPS = GV_UNITS < GV_WARPS ? GV_UNITS : GV_WARPS,
	/* 64 KB for x, more where one row needs it; templates' @launch lines count the same. Then sums of x, where weights have minima (two pairs
	 * a unit and lane that has x), and the ring. */
	GV_X = (COLS > 16384 ? (COLS + 1023) / 1024 * 4096 : 65536) / 16 / GV_WARPS,
	GV_SUMS = GV_MINS ? GV_X / 8 : 0,
	GV_ROOM = GV_X * 16 + (GV_ARCH == 80 || GV_ARCH == 90 || GV_ARCH == 100 ? 5120 : 3072),
	GV_RING = (GV_ROOM - GV_X * 16 - GV_SUMS * 8) / (int)sizeof(gv_slot),
	/* of a launch for one row */
	GV_X1 = GV_MOST * GV_CHUNKS * 8,
	GV_SUMS1 = GV_MINS ? GV_MOST * 4 : 0,
	GV_RING1 = (GV_ROOM - GV_X1 * 16 - GV_SUMS1 * 8) / (int)sizeof(gv_slot),
	GV_FLAGS = 256
};

/* What a warp has for itself: either way x comes first */
template <int X, int SUMS, int RING> struct gv_share {
	uint4   x[X];
#if GV_MINS
	uint2   sums[SUMS];
#endif
	gv_slot ring[RING];
};
union gv_room {
	gv_share<GV_X, GV_SUMS, GV_RING>    many;
	gv_share<GV_X1, GV_SUMS1, GV_RING1> one;
};

struct gv_arena {
	gv_room            room[GV_WARPS];
	float              sum[2048];           /* 2 tiles of (16 / R groups) x (8 warps) x (R rows of x) x 8 */
	float              squares[GV_WARPS][8];
	float              stat[8][2];          /* mean and 1 / deviation */
	int2               place[8];            /* page and position of a row */
	int                range, slice, g0, n; /* of the block: for when its registers are free again */
	unsigned char      done[GV_FLAGS];
};
static_assert(sizeof(gv_arena) <= 8848 + GV_WARPS * GV_ROOM, "@launch says so");

/* Rows of x (a power of two) that a block takes at once when columns are cut in `slices`; 0: none */
static __device__ constexpr int
gv_rows(int slices)
{
	const int parts = GV_KWARPS * slices, most = (GV_UNITS + parts - 1) / parts;

	if (GV_UNITS < parts)
		return 0;
	for (int r = 8; r; r /= 2)
		if (most * GV_CHUNKS * r * 8 <= GV_X)
			return r;
	return 0;
}

/* For so many rows of x and groups of W: the number of slices with which all is soonest read. Ranges with a group more are alone at the end, and then
 * each reads at twice its share of the bandwidth (block formats, which cost instructions, hardly faster than before). More than one slice costs
 * what a multiprocessor reads in the 1.5 us that sums take through memory. 1 where rows do not fit whatever is done: they go in turns. */
static __device__ constexpr int
gv_slices(int rows, int groups)
{
	const long long joined = 1024 * (GV_ARCH == 90 ? 48 : GV_ARCH == 100 ? 80 : GV_ARCH == 80 ? 28 : 14);
	const int alone = GV_CHUNKS == 1 ? 50 : 85;
	long long least = 0;
	int best = 1;

	for (int s = 1; s <= GV_MAX_SLICES; s++) {
		const int ranges = GV_SMS / s, more = groups % ranges * 100 / ranges; /* percent */
		const int percent = groups / ranges * 100 + (groups % ranges == 0 ? 0 : more > alone ? more : alone);
		const long long cost = (long long)percent * 8 * GV_ROW_BYTES / 100 / s + (s > 1 ? joined : 0);
		if (gv_rows(s) >= rows && (least == 0 || cost < least)) {
			best = s;
			least = cost;
		}
	}
	return best;
}

enum { GV_ROWS = gv_rows(1) };
static_assert(GV_ROWS > 0, "too many columns");

#endif
