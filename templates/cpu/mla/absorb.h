/* GEMM q w, which sums over the rows of w. It maps query heads to the latent space.
 *
 *   16 columns of the head's rows --w_bytes, w_scale, w_min--> fp32 [groups of VL rows][16], once for all tokens
 *   per token: 16 sums of VL lanes over the groups in order --lanes_sums--> 16 elements
 *
 * If a head begins inside a row group, the whole group is read, and the query has zeros for the
 * rows before the head. */
#ifndef LLMC_CPU_MLA_ABSORB_H
#define LLMC_CPU_MLA_ABSORB_H

#include "cpu/math/lane_sums.h"
#include "cpu/weights/weights.h"

enum { ABSORB_COLS = 16 };

/* number of groups that contain rows [row, row + n) */
LLMC_INLINE int
absorb_groups(int row, int n)
{
	return (row % VL + n + VL - 1) / VL;
}

/* Dequantises columns [c0, c0 + ABSORB_COLS) of a group to y [ABSORB_COLS][VL]. half: c0 is in the
 * second half of its block */
LLMC_INLINE void
absorb_unpack(const Weight w, const uint8_t *group, int cols, int c0, const int half, float *y)
{
	if (w_is_float(w)) {
		for (int c = 0; c < ABSORB_COLS; c++)
			vf_store(y + c * VL,
			         c0 + c < cols ? w_column(w, group, c0 + c) : vf_set1(0));
		return;
	}
	const w_at k = w_block(w, group, c0 / 32);
	const vf d = w_scale(w, k, half * (w.halves - 1)),
	         m = w.min ? w_min(w, k, half * (w.halves - 1)) : vf_set1(0);
	LLMC_UNROLL
	for (int i = 0; i < 4; i++) {
		vi v = w_bytes(w, k, 4 * half + i);
		LLMC_UNROLL
		for (int c = 0; c < 4; c++) {
			vf q = vf_of_vi((v >> 8 * c & vi_all(255)) - vi_all(w_offset(w)));
			q = w.min ? vf_fma(d, q, m) : vf_fma(d, q, vf_set1(0));
			vf_store(y + (4 * i + c) * VL, q);
		}
	}
}

/* out[t] = sum over i < n of q[t][i] * row (`row` + i) of w. out[t] has cols elements; rows of out
 * are out_stride apart, those of q q_stride. q starts at the first row of the first group and is
 * zero outside of the n rows. space: ABSORB_COLS vectors per group */
LLMC_INLINE void
absorb(const Weight w, const uint8_t *data, int cols, int row, int n, const float *q, int q_stride,
       int tokens, float *const *out, float *space)
{
	const int groups = absorb_groups(row, n);
	const int64_t bytes = w_group_bytes(w, cols);
	const uint8_t *first = data + row / VL * bytes;

	for (int c0 = 0; c0 < cols; c0 += ABSORB_COLS) {
		for (int g = 0; g < groups; g++) {
			__builtin_prefetch(first + g * bytes + (int64_t)c0 * bytes / cols + 512);
			if (c0 % 32 == 0 || w_is_float(w))
				absorb_unpack(w, first + g * bytes, cols, c0, 0,
				              space + g * ABSORB_COLS * VL);
			else
				absorb_unpack(w, first + g * bytes, cols, c0, 1,
				              space + g * ABSORB_COLS * VL);
		}
		for (int t = 0; t < tokens; t++) {
			vf acc[ABSORB_COLS];
			float sum[ABSORB_COLS];
			LLMC_UNROLL
			for (int c = 0; c < ABSORB_COLS; c++)
				acc[c] = vf_set1(0);
			for (int g = 0; g < groups; g++) {
				vf v = vf_load(q + t * q_stride + g * VL);
				LLMC_UNROLL
				for (int c = 0; c < ABSORB_COLS; c++)
					acc[c] = vf_fma(vf_load(space + (g * ABSORB_COLS + c) * VL),
					                v, acc[c]);
			}
			LLMC_UNROLL
			for (int c = 0; c < ABSORB_COLS; c += VL)
				vf_store(sum + c, lanes_sums(acc + c));
			memcpy(out[t] + c0, sum,
			       (size_t)(cols - c0 < ABSORB_COLS ? cols - c0 : ABSORB_COLS) *
			           sizeof *sum);
		}
	}
}

#endif
