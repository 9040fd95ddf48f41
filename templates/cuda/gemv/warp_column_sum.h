/* Warp sums of several columns at once. At each distance a lane sends half of its columns to its
 * partner. So n columns together take n - 1 exchanges, then one for each distance that is left,
 * instead of five exchanges per column. The order of additions is that of warp_sum, so the bits are
 * the same. */
#ifndef LLMC_CUDA_GEMV_WARP_COLUMN_SUM_H
#define LLMC_CUDA_GEMV_WARP_COLUMN_SUM_H

#include "cuda/ptx/ptx.h"

/* Returns the column whose sum a lane has. */
template <int COLS> DEV int
column_of(int lane)
{
	return lane / (32 / COLS);
}

/* v: COLS columns of this lane, a power of two up to 32; overwritten */
template <int COLS> DEV float
column_sum(float *v)
{
	int n = COLS;

#pragma unroll
	for (int d = 16; d; d /= 2) {
		const bool upper = (lane_id() & d) != 0;
		n /= 2;
#pragma unroll
		for (int c = 0; c < n; c++) {
			const float give = upper ? v[c] : v[c + n];
			v[c] = (upper ? v[c + n] : v[c]) + __shfl_xor_sync(0xffffffffu, give, d);
		}
		if (n == 0)
			v[0] += __shfl_xor_sync(0xffffffffu, v[0], d);
	}
	return v[0];
}

/* Broadcasts the sum of column c. own: each lane's column sum */
template <int COLS> DEV float
column_get(float own, int c)
{
	return __shfl_sync(0xffffffffu, own, c * (32 / COLS));
}

#endif
