/* Last step of latent attention: projects weighted sums of latents out of the latent space. */
#ifndef LLMC_CUDA_MLA_MLA_VALUE_H
#define LLMC_CUDA_MLA_MLA_VALUE_H

#include "cuda/mla/mla.h"
#include "cuda/moe/moe.h"

/* Warps stride over the rows of v_b. Each computes its element of y, for T absorbed rows at a time.
 * Rows of o [n_tok] are HEADS x W::COLS. Expanded rows are copied. */
template <class W, int HEADS, int V, int EXPAND> DEV void
mla_value(const llmc_step &step, const float *o, const w_matrix<W> &v_b, float *y)
{
	enum { RANK = W::COLS, T = W::UNIT > 8 ? 2 : 4 /* limited by registers */ };

	PDL_WAIT();
	PDL_LAUNCH();
	const int n = step.n[0], lane = lane_id();
	bool absorbed = EXPAND == 0 || n <= 32;

	/* A long prompt usually has no absorbed row. The CTA's threads check this together;
	 * otherwise each warp would check all rows with dependent loads. */
	if (!absorbed) {
		for (int t = threadIdx.x; t < n; t += blockDim.x)
			absorbed |= !mla_row_expanded<EXPAND>(step, t);
		absorbed = __syncthreads_or(absorbed);
	}
	for (int r = absorbed ? (int)blockIdx.x * MLA_WARPS + warp_id() : HEADS * V; r < HEADS * V;
	     r += (int)gridDim.x * MLA_WARPS) {
		const unsigned char *const w[1] = { v_b.row(r) };
		const float *from = o + r / V * RANK;

		for (int base = 0; base < n; base += 32) {
			unsigned todo = __ballot_sync(
			    ~0u, base + lane < n && !mla_row_expanded<EXPAND>(step, base + lane));
			while (todo) {
				int t = base + __ffs((int)todo) - 1;
				todo &= todo - 1;
				if (!todo) {
					const float *const x[1] = { from +
						                    (long long)t * HEADS * RANK };
					float sum[1][1] = {};
					moe_rows<W, 1, 1>(w, x, sum);
					sum[0][0] = warp_sum(sum[0][0]);
					if (lane == 0)
						y[(long long)t * HEADS * V + r] =
						    sum[0][0] * v_b.scale;
					break;
				}
				const float *x[T];
				float sum[1][T] = {};
				int mine =
				    lane == 0 ? t : -1; /* lane i has the sum of the i-th row */
				x[0] = from + (long long)t * HEADS * RANK;
#pragma unroll
				for (int i = 1; i < T; i++) {
					if (todo) {
						t = base + __ffs((int)todo) - 1;
						todo &= todo - 1;
						mine = lane == i ? t : mine;
					}
					x[i] = from + (long long)t * HEADS * RANK;
				}
				moe_rows<W, 1, T>(w, x, sum);
#pragma unroll
				for (int i = 0; i < T; i++) {
					const float v = warp_sum(sum[0][i]);
					if (lane == i && mine >= 0)
						y[(long long)mine * HEADS * V + r] = v * v_b.scale;
				}
			}
		}
	}
	for (int t = blockIdx.x; EXPAND > 0 && t < n; t += gridDim.x)
		if (mla_row_expanded<EXPAND>(step, t))
			for (int i = threadIdx.x; i < HEADS * V; i += blockDim.x)
				y[(long long)t * HEADS * V + i] =
				    o[((long long)t * HEADS + i / V) * RANK + i % V];
}

#endif
