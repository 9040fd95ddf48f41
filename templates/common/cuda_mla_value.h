/* Sums of latents out of their space: the last step of latent attention. */
#ifndef LLMC_CUDA_MLA_VALUE_H
#define LLMC_CUDA_MLA_VALUE_H

#include "common/cuda_mla.h"
#include "common/cuda_moe.h"

/* Elements of y go round the warps, each for some rows together; rows [n_tok] of o are HEADS x W::COLS. Expanded rows are copied. */
template <class W, int HEADS, int V, int EXPAND> DEV void
mla_value(const llmc_step &step, const float *o, const w_matrix<W> &v_b, float *out)
{
	enum { RANK = W::COLS, T = W::UNIT > 8 ? 2 : 4 /* what registers hold */ };

	PDL_LAUNCH();
	PDL_WAIT();
	const int n = step.n[0], lane = lane_id();

	for (int r = (int)blockIdx.x * MLA_WARPS + warp_id(); r < HEADS * V; r += (int)gridDim.x * MLA_WARPS) {
		const unsigned char *const w[1] = { v_b.row(r) };
		const float *from = o + r / V * RANK;
		float *y = out + r;

		for (int t0 = 0; t0 < n; t0 += T)
			if (n - t0 == 1) {
				const float *const x[1] = { from + (long long)t0 * HEADS * RANK };
				float sum[1][1] = {};
				moe_rows<W, 1, 1>(w, x, sum);
				sum[0][0] = warp_sum(sum[0][0]);
				if (lane == 0)
					y[(long long)t0 * HEADS * V] = mla_row_expanded<EXPAND>(step, t0) ? x[0][r % V] : sum[0][0] * v_b.scale;
			} else {
				const float *x[T];
				float sum[1][T] = {};
#pragma unroll
				for (int t = 0; t < T; t++)
					x[t] = from + (long long)min(t0 + t, n - 1) * HEADS * RANK;
				moe_rows<W, 1, T>(w, x, sum);
#pragma unroll
				for (int t = 0; t < T; t++) {
					float v = warp_sum(sum[0][t]);
					if (lane == t && t0 + t < n)
						y[(long long)(t0 + t) * HEADS * V] = mla_row_expanded<EXPAND>(step, t0 + t) ? x[t][r % V] : v * v_b.scale;
				}
			}
	}
}

#endif
