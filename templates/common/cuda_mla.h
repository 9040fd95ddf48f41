/* Multi-head latent attention: what takes a query head into the space of latents, and a sum of latents out of it. Both matrices are
 * stacked by head: k_b [heads * nope, rank], v_b [heads * v, rank]. */
#ifndef LLMC_CUDA_MLA_H
#define LLMC_CUDA_MLA_H

#include "common/cuda_attention.h"
#include "common/cuda_weights.h"

enum { MLA_WARPS = 8 };

/* scores of queries that have their scale already */
struct mla_scores {
	static constexpr float SCALE = 1, CAP = 0, ALIBI = 0;
	enum { WINDOW = 0, PREFIX = 0 };
};

/* A latent attention: KV elements of type E, heads, the latent's width, that of a query's part without and with positions (and of the shared
 * rotary key), that of a head's value; bytes from page to page. In the space of latents it is an attention with one head of K, WIDTH
 * wide, of which the first RANK elements are V. */
template <class E, int HEADS_, int RANK_, int NOPE_, int ROPE_, int V_DIM_, long long PAGE_BYTES>
struct mla_config : att_config<E, mla_scores, HEADS_, 1, RANK_ + ROPE_, RANK_, PAGE_BYTES> {
	enum { RANK = RANK_, NOPE = NOPE_, ROPE = ROPE_, WIDTH = RANK + ROPE, Q = NOPE + ROPE, V_DIM = V_DIM_ };
};

/* Arguments: queries [n_tok, HEADS, Q], the factor of scores, the pool, y [n_tok, HEADS, V_DIM]; scratch: space f32 [n_tok, HEADS, WIDTH], the
 * queries in the space of latents, times scale and log2(e), and later the sums; part_o, part_ml and ticket are the split's */
struct mla_args {
	const float *q;
	float        scale;
	const void  *kv;
	float       *y, *space, *part_o, *part_ml;
	int         *ticket;
};

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
