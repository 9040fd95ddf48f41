/* Rotary position embedding (RoPE) */
#ifndef LLMC_CPU_ATTENTION_ROPE_H
#define LLMC_CPU_ATTENTION_ROPE_H

#include "cpu/math/vector.h"

enum {
	ROPE_half,
	ROPE_interleaved,
	ROPE_none
}; /* pairs (i, i + dims / 2); pairs (2i, 2i + 1); no rotation */

/* Rotates dims elements of x into y, which may be x. angle: the cosines of dims / 2 angles, then
 * the sines */
LLMC_INLINE void
rope_rotate(const int style, const float *x, float *y, int dims, const float *angle)
{
	for (int i = 0; i < dims / 2; i++) {
		int j = style == ROPE_interleaved ? 2 * i : i,
		    k = style == ROPE_interleaved ? j + 1 : i + dims / 2;
		float c = angle[i], sn = angle[dims / 2 + i], u = x[j], v = x[k];
		y[j] = u * c - v * sn;
		y[k] = v * c + u * sn;
	}
}

#endif
