/* Rotary positions: ROPE_half or ROPE_interleaved is defined before inclusion. */
#ifndef LLMC_CPU_MATH_ROPE_H
#define LLMC_CPU_MATH_ROPE_H

#include "common/cpu_math.h"

/* dims elements of x to y, which may be x; angle: cos of dims / 2 angles, then their sines */
LLMC_INLINE void
rope_turn(const float *x, float *y, int dims, const float *angle)
{
	for (int i = 0; i < dims / 2; i++) {
#if defined(ROPE_interleaved)
		int j = 2 * i, k = j + 1;
#else
		int j = i, k = i + dims / 2;
#endif
		float c = angle[i], sn = angle[dims / 2 + i], u = x[j], v = x[k];
		y[j] = u * c - v * sn;
		y[k] = v * c + u * sn;
	}
}

#endif
