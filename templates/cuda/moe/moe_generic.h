/* Experts of any shape, on any GPU, with the matmul of cuda/gemm/gemm_generic.h. A pair is a row of
 * x and an expert that it selected. A CTA multiplies some rows of an expert's matrices by the pairs
 * of that expert, 8 at a time. Matrices of experts without pairs are not read.
 *
 *   sort (cuda/moe/moe_sort.h) --> pairs by expert --> up: h --> down: z per pair --> sum: y */
#ifndef LLMC_CUDA_MOE_MOE_GENERIC_H
#define LLMC_CUDA_MOE_MOE_GENERIC_H

#include "cuda/lora/lora.h"
#include "cuda/gemm/gemm_generic.h"
#include "cuda/moe/moe.h"
#include "cuda/moe/moe_sort.h"

/* h [pairs, F] = GLU(gate x, up x) of each pair. Matrices and biases (or NULL) are those of all
 * experts. add: terms that adapters add, per pair */
template <class GATE, class UP, int F, float (*GLU)(float, float), class ADD> DEV void
moe_generic_up(const float *rows, const moe_pairs &pairs, int e, const void *gates, const void *ups,
               const float *gate_b, const float *up_b, const ADD &add, float *h)
{
	SHARED(rows_shared, s);
	const int row = blockIdx.x * ROWS_WARPS + warp_id(), lane = lane_id();
	const rows_x x = { rows, pairs.row, 0, 0, 0, 0 };
	const unsigned char *gate =
	    (const unsigned char *)gates + ((long long)e * F + min(row, F - 1)) * GATE::ROW;
	const unsigned char *up =
	    (const unsigned char *)ups + ((long long)e * F + min(row, F - 1)) * UP::ROW;

	for (int t0 = 0; t0 < pairs.count; t0 += ROWS_TOKENS) {
		float v, u;
		if constexpr (same_type<GATE, UP>::value) {
			const unsigned char *const w[2] = { gate, up };
			v = rows_times<GATE, norm_none>(s, x, w, t0, pairs.count);
			u = __shfl_down_sync(~0u, v, ROWS_TOKENS);
		} else {
			const unsigned char *const g[2] = { gate, gate }, *const w[2] = { up, up };
			v = rows_times<GATE, norm_none>(s, x, g, t0, pairs.count);
			u = rows_times<UP, norm_none>(s, x, w, t0, pairs.count);
		}
		if (lane < ROWS_TOKENS && row < F && t0 + lane < pairs.count) {
			const int pair = pairs.pair[t0 + lane];
			v += norm_bias(gate_b, e * F + row);
			u += norm_bias(up_b, e * F + row);
			add.to(pair, row, v, u);
			h[(long long)pair * F + row] = GLU(v, u);
		}
	}
}

/* z [pairs, H] = down h + its bias */
template <class DOWN, int H> DEV void
moe_generic_down(const float *h, const moe_pairs &pairs, int e, const void *downs,
                 const float *down_b, float *z)
{
	SHARED(rows_shared, s);
	const int row = (blockIdx.x * ROWS_WARPS + warp_id()) * 2, lane = lane_id();
	const rows_x x = { h, pairs.pair, 0, 0, 0, 0 };
	const unsigned char *down = (const unsigned char *)downs + (long long)e * H * DOWN::ROW;

	for (int t0 = 0; t0 < pairs.count; t0 += ROWS_TOKENS) {
		const unsigned char *const w[2] = { rows_w<DOWN>(down, row, H),
			                            rows_w<DOWN>(down, row + 1, H) };
		float v = rows_times<DOWN, norm_none>(s, x, w, t0, pairs.count);
		int r = row + lane / ROWS_TOKENS, t = t0 + lane % ROWS_TOKENS;
		if (lane < 2 * ROWS_TOKENS && r < H && t < pairs.count)
			z[(long long)pairs.pair[t] * H + r] = v + norm_bias(down_b, e * H + r);
	}
}

/* y = scale * r + the weighted sum of a row's z, in the order of expert numbers. r may be NULL or
 * alias y. */
template <int H, int K> DEV void
moe_generic_sum(const int *ids, const float *weights, const float *zs, const float *r, float scale,
                float *y, int n)
{
	struct Shared {
		int order[K];
	};
	SHARED(Shared, s);

	for (int t = blockIdx.x; t < n; t += gridDim.x) {
		const float *weight = weights + (long long)t * K, *z = zs + (long long)t * K * H;

		__syncthreads();
		moe_order<K>(ids + (long long)t * K, s.order);
		__syncthreads();
		for (int i = threadIdx.x; i < H; i += blockDim.x) {
			float sum = 0;
			for (int k = 0; k < K; k++)
				if (s.order[k] >= 0)
					sum = fmaf(weight[s.order[k]],
					           z[(long long)s.order[k] * H + i], sum);
			y[(long long)t * H + i] =
			    r ? fmaf(scale, r[(long long)t * H + i], sum) : sum;
		}
	}
}

#endif
