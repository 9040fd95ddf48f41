/* Multi-head latent attention: what takes a query head into the space of latents, and a sum of latents out of it. Both matrices are
 * stacked by head: k_b [heads * nope, rank], v_b [heads * v, rank]. */
#ifndef LLMC_CUDA_MLA_H
#define LLMC_CUDA_MLA_H

#include "common/cuda_kv.h"
#include "common/cuda_weights.h"

enum { MLA_WARPS = 8 };

#define MLA_LOG2E 1.4426950408889634f
#define MLA_NONE  (-1e30f)

/* One warp: out[rank] = sum of q[i] * row i over the rows first, first + step, ... below NOPE */
template <class W, int NOPE> DEV void
mla_query_rows(const unsigned char *w, const float *q, int first, int step, float *out)
{
	for (int u0 = 0; u0 < W::UNITS; u0 += 32) {
		const int u = u0 + lane_id();
		float sum[W::UNIT] = {};
		if (u < W::UNITS) {
#pragma unroll 4
			for (int i = first; i < NOPE; i += step) {
				float v[W::UNIT], x = q[i];
				W::decode(W::load(w + i * W::ROW, u), u, v);
#pragma unroll
				for (int j = 0; j < W::UNIT; j++)
					sum[j] = fmaf(x, v[j], sum[j]);
			}
#pragma unroll
			for (int j = 0; j < W::UNIT; j++)
				if (j < W::width(u))
					out[W::column(u, j)] = sum[j];
		}
	}
}

/* One warp: y[r] = row r times x for the rows first, first + step, ... below V */
template <class W, int V> DEV void
mla_value_rows(const unsigned char *w, const float *x, int first, int step, float *y)
{
	for (int r = first; r < V; r += step) {
		float sum = 0;
		for (int u = lane_id(); u < W::UNITS; u += 32) {
			float v[W::UNIT];
			W::decode(W::load(w + r * W::ROW, u), u, v);
#pragma unroll
			for (int j = 0; j < W::UNIT; j++)
				if (j < W::width(u))
					sum = fmaf(v[j], x[W::column(u, j)], sum);
		}
		sum = warp_sum(sum);
		if (lane_id() == 0)
			y[r] = sum;
	}
}

#endif
