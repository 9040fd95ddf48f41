/* Sums across the lanes of VL vectors at once, and transposition of VL x VL lanes. */
#ifndef LLMC_CPU_MATH_LANE_SUMS_H
#define LLMC_CPU_MATH_LANE_SUMS_H

#include "cpu/math/vector.h"

/* sums of neighbouring lanes, VL / 2 of a, then VL / 2 of b */
LLMC_INLINE vf
lanes_pairs(vf a, vf b)
{
#if VL == 16
	return VF_SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
	       VF_SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif VL == 8
	return VF_SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
	       VF_SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
	return VF_SHUFFLE(a, b, 0, 2, 4, 6) + VF_SHUFFLE(a, b, 1, 3, 5, 7);
#endif
}

/* Lane i becomes the sum of v[i]. Neighbouring lanes are added first, so the result does not depend
 * on the other vectors. v is overwritten. */
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

enum { LANES_ROWS = VL / 4, LANES_OF = 4 };

/* VL dot products, LANES_ROWS rows of q with LANES_OF rows of x; rows are `stride` elements long.
 * Lane r * LANES_OF + j is row r of q times row j of x. The result of a pair does not depend on the
 * other rows. */
LLMC_INLINE vf
lanes_dots(const float *q, const float *x, int stride)
{
	vf acc[VL];

	LLMC_UNROLL
	for (int i = 0; i < VL; i++)
		acc[i] = vf_set1(0);
	for (int d = 0; d < stride; d += VL) {
		vf c[LANES_OF];
		LLMC_UNROLL
		for (int j = 0; j < LANES_OF; j++)
			c[j] = vf_load(x + j * stride + d);
		LLMC_UNROLL
		for (int r = 0; r < LANES_ROWS; r++) {
			vf v = vf_load(q + r * stride + d);
			LLMC_UNROLL
			for (int j = 0; j < LANES_OF; j++)
				acc[r * LANES_OF + j] = vf_fma(v, c[j], acc[r * LANES_OF + j]);
		}
	}
	return lanes_sums(acc);
}

/* interleave the lanes of a and b: the lower halves, the upper halves */
LLMC_INLINE vf
lanes_low(vf a, vf b)
{
#if VL == 16
	return VF_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif VL == 8
	return VF_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
	return VF_SHUFFLE(a, b, 0, 4, 1, 5);
#endif
}

LLMC_INLINE vf
lanes_high(vf a, vf b)
{
#if VL == 16
	return VF_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif VL == 8
	return VF_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
	return VF_SHUFFLE(a, b, 2, 6, 3, 7);
#endif
}

/* Transposes v[i][j] to v[j][i], VL x VL. Each round interleaves v[i] and v[i + VL / 2]. */
LLMC_INLINE void
lanes_transpose(vf *v)
{
	vf a[VL], b[VL];

	LLMC_UNROLL
	for (int i = 0; i < VL; i++)
		a[i] = v[i];
	LLMC_UNROLL
	for (int n = 1; n < VL; n *= 2) {
		LLMC_UNROLL
		for (int i = 0; i < VL / 2; i++) {
			b[2 * i] = lanes_low(a[i], a[i + VL / 2]);
			b[2 * i + 1] = lanes_high(a[i], a[i + VL / 2]);
		}
		LLMC_UNROLL
		for (int i = 0; i < VL; i++)
			a[i] = b[i];
	}
	LLMC_UNROLL
	for (int i = 0; i < VL; i++)
		v[i] = a[i];
}

#endif
