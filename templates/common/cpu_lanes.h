/* Sums across lanes of VL vectors at once. */
#ifndef LLMC_CPU_LANES_H
#define LLMC_CPU_LANES_H

#include "common/cpu_math.h"

/* neighbours of a, then of b, added: VL / 2 sums of each */
LLMC_INLINE vf
lanes_pairs(vf a, vf b)
{
#if VL == 16
	return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
	       __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif VL == 8
	return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
	return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

/* lane i: the sum of v[i], neighbours first, whichever vectors it is summed beside. v is overwritten. */
LLMC_INLINE vf
lanes_sums(vf *v)
{
	LLMC_UNROLL
	for (int i = 0; i < VL / 2; i++)
		v[i] = lanes_pairs(v[2 * i], v[2 * i + 1]);
	LLMC_UNROLL
	for (int i = 0; i < VL / 4; i++)
		v[i] = lanes_pairs(v[2 * i], v[2 * i + 1]);
#if VL >= 8
	LLMC_UNROLL
	for (int i = 0; i < VL / 8; i++)
		v[i] = lanes_pairs(v[2 * i], v[2 * i + 1]);
#endif
#if VL >= 16
	v[0] = lanes_pairs(v[0], v[1]);
#endif
	return v[0];
}

#endif
