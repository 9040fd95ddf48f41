/* First step of latent attention, after the query projection: projects queries into the latent
 * space and stores latents in the pool. This file is for decode steps whose rows are all absorbed;
 * cuda/mla/mla_project.h is for other steps.
 *
 *   k_b --ld.global--> registers; PDL wait; q --ld.global--> sums --shuffle, shared--> out,
 *   4 rows per barrier
 *   q_rope --rotate--> out;  latent, key --norm, rotate--> the row's page
 *
 * Bytes: k_b once, for any number of rows. */
#ifndef LLMC_CUDA_MLA_MLA_QUERY_H
#define LLMC_CUDA_MLA_MLA_QUERY_H

#include "cuda/mla/mla.h"

/* q: rows of HEADS x Q, q_stride floats apart; c: rows of [latent | key], c_stride floats apart;
 * rope: the step's table, or NULL; out [n_tok, HEADS, WIDTH] */
struct mla_query_args {
	const float *q;
	long long q_stride;
	const float *c;
	long long c_stride;
	const float *kvn, *rope;
	float eps;
	void *kv;
	float *out;
};

enum {
	MLA_SUB = 8,
	MLA_ROWS = 16
}; /* per CTA: number of units of columns; number of rows processed at a time */

template <class W> struct mla_query_shared {
	float part[MLA_WARPS][4][MLA_SUB * W::UNIT];
};

/* blockIdx.x selects a head and MLA_SUB units of latent columns, blockIdx.y the first group of
 * MLA_ROWS rows. A warp handles 4 rows of k_b at a time, a lane one unit of one of these rows. The
 * rows of k_b are loaded before the PDL wait. */
template <class A, class ROPE, class W> DEV void
mla_query(const llmc_step &step, const mla_query_args &a, const w_matrix<W> &k_b)
{
	enum {
		CHUNKS = (W::UNITS + MLA_SUB - 1) / MLA_SUB, /* CTAs per head */
		DEEP = (A::NOPE + 31) / 32,                  /* rows of k_b per lane */
		HEADS = A::HEADS,
		NOPE = A::NOPE,
		R = A::ROPE,
		Q = A::Q,
		WIDTH = A::WIDTH
	};
	typedef mla_query_shared<W> shared;
	SHARED(shared, s);
	const int h = blockIdx.x / CHUNKS, chunk = blockIdx.x % CHUNKS, lane = lane_id(),
	          warp = warp_id();
	const int sub = lane % MLA_SUB, u = chunk * MLA_SUB + sub, row = warp * 4 + lane / MLA_SUB;
	const bool mine = h < HEADS && u < W::UNITS;
	typename W::raw raw[DEEP];

#pragma unroll
	for (int i = 0; i < DEEP; i++)
		if (mine && row + 32 * i < NOPE)
			raw[i] = W::load(k_b.row((long long)h * NOPE + row + 32 * i), u);
	PDL_WAIT();
	PDL_LAUNCH();
	if (h >= HEADS) /* the grid is sized for the smallest units, so it may have more CTAs */
		return;
	const int n = step.n[0];
	for (int t0 = blockIdx.y * MLA_ROWS; t0 < n; t0 += gridDim.y * MLA_ROWS) {
		const int end = min(t0 + (int)MLA_ROWS, n);
		for (int t = t0; t < end; t++) {
			const float *q = a.q + t * a.q_stride + h * Q;
			float sum[W::UNIT] = {};
			if (mine) {
#pragma unroll
				for (int i = 0; i < DEEP; i++)
					if (row + 32 * i < NOPE) {
						float v[W::UNIT], x = q[row + 32 * i];
						W::decode(raw[i], u, v);
#pragma unroll
						for (int j = 0; j < W::UNIT; j++)
							sum[j] = fmaf(x, v[j], sum[j]);
					}
			}
#pragma unroll
			for (int j = 0; j < W::UNIT; j++) {
				sum[j] += __shfl_xor_sync(~0u, sum[j], 8);
				sum[j] += __shfl_xor_sync(~0u, sum[j], 16);
			}
			if (lane < MLA_SUB)
#pragma unroll
				for (int j = 0; j < W::UNIT; j++)
					s.part[warp][t % 4][sub * W::UNIT + j] = sum[j];
			if (t % 4 < 3 && t + 1 < end)
				continue;
			/* up to 4 rows per barrier */
			__syncthreads();
			for (int i = threadIdx.x; i < (t % 4 + 1) * MLA_SUB * W::UNIT;
			     i += blockDim.x) {
				const int to = t - t % 4 + i / (MLA_SUB * W::UNIT),
				          at = i % (MLA_SUB * W::UNIT),
				          unit = chunk * MLA_SUB + at / W::UNIT;
				if (unit >= W::UNITS || at % W::UNIT >= W::width(unit))
					continue;
				float v = 0;
#pragma unroll
				for (int w = 0; w < MLA_WARPS; w++)
					v += s.part[w][to % 4][at];
				a.out[((long long)to * HEADS + h) * WIDTH +
				      W::column(unit, at % W::UNIT)] = v * k_b.scale;
			}
			__syncthreads();
		}
		/* rotary part of this head */
		for (int i = chunk * (int)blockDim.x + threadIdx.x; i < (end - t0) * (R / 2);
		     i += CHUNKS * blockDim.x) {
			const int t = t0 + i / (R / 2), k = i % (R / 2);
			const int first = a.rope ? ROPE::first(k, R) : 2 * k,
			          second = a.rope ? ROPE::second(k, R) : 2 * k + 1;
			const float *q = a.q + t * a.q_stride + h * Q + NOPE;
			float *out = a.out + ((long long)t * HEADS + h) * WIDTH + A::RANK;
			float x = q[first], y = q[second];
			if (a.rope)
				rope_rotate(&x, &y, a.rope + (long long)t * R, k, R);
			out[first] = x;
			out[second] = y;
		}
		/* rows of the cache are distributed over heads, chunks and warps */
		for (int t = t0 + h + (chunk * MLA_WARPS + warp) * HEADS; t < end;
		     t += CHUNKS * MLA_WARPS * HEADS)
			mla_append_row<A, ROPE>(step, a.c + t * a.c_stride, a.kvn, a.eps,
			                        a.rope ? a.rope + (long long)t * R : 0, a.kv, t);
	}
}

#endif
