/* Configuration of a GEMV, shared memory of a CTA, and number of splits of the columns. */
#ifndef LLMC_CUDA_GEMV_GEMV_SMEM_H
#define LLMC_CUDA_GEMV_GEMV_SMEM_H

#include "cuda/norm/norm.h"
#include "cuda/runtime/step.h"
#include "cuda/weights/weights.h"

enum { GEMV_WARPS = 8, GEMV_THREADS = GEMV_WARPS * 32, GEMV_FLAGS = 256 };

/* Stage of a ring: one unit of both groups */
template <class W> struct gemv_stage {
	typename W::stream::stage group[2];
};

/* Shared memory of one warp: x, sums of x if the weights have minima (two pairs per unit and lane
 * that holds x), and the ring */
template <class W, int X, int SUMS, int RING> struct gemv_share {
	uint4 x[X];
	uint2 sums[SUMS];
	gemv_stage<W> ring[RING];
};
template <class W, int X, int RING> struct gemv_share<W, X, 0, RING> {
	uint4 x[X];
	gemv_stage<W> ring[RING];
};

/* W: weights of COLS columns; NORM: norm of x (norm_none, norm_rms, norm_layer); ARCH: the GPU;
 * MAX_SPLITS: largest number of splits, by default so many that 8 rows of x fit */
template <class W_, class NORM_, int ARCH_,
          int MAX_SPLITS_ = (W_::COLS > 16384 ? 16 : 8)> struct gemv_config {
	typedef W_ W;
	typedef typename W::stream S;
	typedef NORM_ NORM;
	enum {
		ARCH = ARCH_,
		MAX_SPLITS = MAX_SPLITS_,
		COLS = W::COLS,
		SMS = ARCH == 80    ? 108
		      : ARCH == 86  ? 84
		      : ARCH == 89  ? 128
		      : ARCH == 90  ? 132
		      : ARCH == 100 ? 148
		                    : 170,
		UNITS = (COLS + S::UNIT - 1) / S::UNIT, /* per row */
		MOST = (UNITS + GEMV_WARPS - 1) / GEMV_WARPS,
		KWARPS = UNITS < GEMV_WARPS ? UNITS : GEMV_WARPS,
		/* 64 KB for x, or what one row needs if that is more; the @launch lines of the
		 * templates have the same formula */
		X = (COLS > 16384 ? (COLS + 1023) / 1024 * 4096 : 65536) / 16 / GEMV_WARPS,
		SUMS = S::MINS ? X / 8 : 0,
		WARP_BYTES = X * 16 + (ARCH == 80 || ARCH == 90 || ARCH == 100 ? 5120 : 3072),
		RING = (WARP_BYTES - X * 16 - SUMS * 8) / (int)sizeof(gemv_stage<W>),
		/* in a launch for one row */
		X1 = MOST * S::CHUNKS * 8,
		SUMS1 = W::PACKED ? MOST * 4 : 0,
		RING1 = (WARP_BYTES - X1 * 16 - SUMS1 * 8) / (int)sizeof(gemv_stage<W>)
	};

	union warp_storage {
		gemv_share<W, X, SUMS, RING> many;
		gemv_share<W, X1, SUMS1, RING1> one;
	};
	struct shared_storage {
		warp_storage warp[GEMV_WARPS];
		float sum[2048]; /* 2 tiles; each has (16 / R groups) x (8 warps) x (R rows of x) x
		                    8 rows */
		float squares[GEMV_WARPS][8];
		float stat[8][2];        /* mean and 1 / deviation */
		int2 slot[8];            /* page and position of a row */
		int range, split, g0, n; /* values of the CTA, in shared memory to save registers */
		unsigned char done[GEMV_FLAGS];
	};
	static_assert(sizeof(shared_storage) <= 8848 + GEMV_WARPS * WARP_BYTES,
	              "shared bytes of the @launch lines");
};

/* Number of rows of x (a power of two) that a CTA handles at a time if columns are cut into
 * `splits`; 0: not even one row fits */
template <class G> static __device__ constexpr int
gemv_rows_at_once(int splits)
{
	const int parts = G::KWARPS * splits, most = (G::UNITS + parts - 1) / parts;

	if (G::UNITS < parts)
		return 0;
	for (int r = 8; r; r /= 2)
		if (most * G::S::CHUNKS * r * 8 <= G::X)
			return r;
	return 0;
}

/* Returns the number of splits with which `rows` rows of x and `groups` groups of W are read in the
 * shortest time. The cost of s splits is expressed as bytes that an SM reads:
 *
 * - Ranges with one more group run alone at the end, and then get twice their share of the
 *   bandwidth. Block formats are bound by instructions, so they hardly gain from this.
 * - If the units of a split are not a multiple of the warps, some warps wait.
 * - A column of x costs 10 bytes for one row (a cost of 4 bytes chose splits with which, on an
 *   H100, down of Llama 8B took 49.5 us instead of 44.2, and gate and up 91.3 instead of 84.2). It
 *   costs 4 bytes for several rows, whose launches have less to gain.
 * - More than one split costs what an SM reads in the 1.5 us that sums take through memory.
 *
 * The result is 1 if the rows do not fit with any number of splits. Rows are then processed in
 * turns. */
template <class G> static __device__ constexpr int
gemv_splits(int rows, int groups)
{
	const long long joined = 1024 * (G::ARCH == 90    ? 48
	                                 : G::ARCH == 100 ? 80
	                                 : G::ARCH == 80  ? 28
	                                                  : 14);
	const int alone = G::S::CHUNKS == 1 ? 50 : 85;
	long long least = 0;
	int best = 1;

	for (int s = 1; s <= G::MAX_SPLITS; s++) {
		const int ranges = G::SMS / s, more = groups % ranges * 100 / ranges; /* percent */
		const int percent = groups / ranges * 100 + (groups % ranges == 0 ? 0
		                                             : more > alone       ? more
		                                                                  : alone);
		const int each = (G::UNITS + s - 1) / s,
		          ways = (each + GEMV_WARPS - 1) / GEMV_WARPS *
		                 GEMV_WARPS; /* units per split, then rounded up to a multiple of
		                                the warps */
		const long long x = (long long)G::COLS / s * (rows == 1 ? 10 : 4);
		const long long cost = (long long)percent * 8 * G::W::ROW / 100 / s * ways / each +
		                       x + (s > 1 ? joined : 0);
		if (gemv_rows_at_once<G>(s) >= rows && (least == 0 || cost < least)) {
			best = s;
			least = cost;
		}
	}
	return best;
}

#endif
