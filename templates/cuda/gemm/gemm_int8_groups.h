/* Weights of groups (cuda/weights/weights_groups.h: GPTQ, AWQ, W8A8 and others) for the GEMM of
 * bytes (cuda/gemm/gemm_int8.h):
 *
 *   up to 4 bits          q = code - zero, at most 5 bits with sign; no minimum
 *   8 bits                q = code - 128; minimum (128 - zero) d, which is 0 for symmetric weights
 *   f32 minimum, 2 to 4   q = code
 *   f32 minimum, 8        q = code - 128; minimum m + 128 d
 *
 * Zero points of up to 4 bits are at most 16 (formats/quant_format.h). Scales of 24 significant
 * bits need one more instruction per sum (int8_full_scale). */
#ifndef LLMC_CUDA_GEMM_GEMM_INT8_GROUPS_H
#define LLMC_CUDA_GEMM_GEMM_INT8_GROUPS_H

#include "cuda/gemm/gemm_int8.h"

/* Parameters of the w_groups from which B derives, as sizes of arrays */
template <int COLS, int BITS, int GROUP, int SCALE, int KIND, int ZERO>
__device__ char (&int8_groups_bits(const w_groups<COLS, BITS, GROUP, SCALE, KIND, ZERO> *))[BITS];
template <int COLS, int BITS, int GROUP, int SCALE, int KIND, int ZERO>
__device__ char (&int8_groups_scale(const w_groups<COLS, BITS, GROUP, SCALE, KIND, ZERO> *))[SCALE];

/* W::tile of weights in groups, as bytes. The members are described in cuda/weights/weights.h. */
template <class B> struct int8_groups_tile {
	typedef typename B::raw raw;
	enum {
		BITS = sizeof(int8_groups_bits((const B *)0)),
		UNITS = B::UNITS,
		SPAN = 16,
		ZERO = 128,
		HALVES = 1,
		HAS_MIN = B::AFFINE || BITS == 8
	};
	static_assert(!B::FLOATS, "codes are integers");

	DEV int
	column(int u, int i)
	{
		return B::column(u, i);
	}
	DEV raw
	load(const unsigned char *row, int u, bool again)
	{
		return B::load(row, u, again);
	}

	DEV void
	bytes(const raw &r, int, int c, unsigned (&b)[2], float &d, float &m)
	{
		const unsigned up = BITS == 8 ? 0u : B::AFFINE ? 128u : 128u - r.z;

		d = B::scale(r);
		m = B::AFFINE ? fmaf(BITS == 8 ? 128.0f : 0.0f, d, __uint_as_float(r.z))
		              : (float)(128 - (int)r.z) * d;
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = (BITS == 8  ? w_word(r.q[BITS == 8 ? c / 2 : 0], c % 2 * 2 + e)
			        : BITS < 4 ? B::sub4_codes(r.q[0].x, r.q[0].y, r.third, 2 * c + e)
			                   : w_nibbles(w_word(r.q[0], c % 2 * 2 + e), c / 2)) +
			       up * 0x01010101u;
	}
};

template <class B> struct int8_full_scale<int8_groups_tile<B>> {
	enum { IS = sizeof(int8_groups_scale((const B *)0)) == 4 };
};

template <class B> struct int8_groups : B {
	typedef int8_groups_tile<B> tile;
};

#endif
