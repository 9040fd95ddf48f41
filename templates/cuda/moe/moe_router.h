/* MoE router in one launch (norm, GEMM, top-k), for rows of mixed steps and 16-bit weights.
 *
 * A CTA of 8 warps has 8 rows of x and 16 rows of w (experts):
 *     norm   one warp per row of x, rounded to the 16-bit type of w, to shared memory
 *     GEMM   one warp per eighth of the columns, mma of 16 rows of w by 8 rows of x, w from L2 with
 *            many loads in flight; a lane loads 16 bytes of 32 columns of both operands, which only
 *            changes the order of columns within a sum of 16
 *     sums   of the warps are added in shared memory, in the order of columns
 *     top-k  by the last CTA of these 8 rows to arrive, one warp per row (cuda/moe/moe_topk.h)
 *
 * The order of a row's sums depends neither on other rows nor on their number.
 *
 * Bytes per CTA: 32 H of x from L2, again from L1 where they fit, and 32 H of w (16 H for at most 8
 * experts) from L2. docs/kernels/moe.md has the resulting time, and explains why
 * cuda/gemm/gemm_swap_ab.h is not used. */
#ifndef LLMC_CUDA_MOE_MOE_ROUTER_H
#define LLMC_CUDA_MOE_MOE_ROUTER_H

#include "cuda/gemm/quantize_act.h"
#include "cuda/moe/moe_topk.h"

enum { ROUTER_WARPS = 8, ROUTER_ROWS = 8, ROUTER_EXPERTS = 16 };

/* ROWS: rows of w. STRIDE: 16-bit values between rows of x, an odd multiple of 64 bytes, so that
 * neighbouring rows are in different banks. AHEAD: number of units of 32 columns that a warp loads
 * at a time */
template <class W_, int ROWS_> struct router_config {
	typedef W_ W;
	enum {
		ROWS = ROWS_,
		TILES = (ROWS + ROUTER_EXPERTS - 1) / ROUTER_EXPERTS,
		COLS = W::COLS,
		UNITS = (COLS + 31) / 32,
		STRIDE = (UNITS | 1) * 32,
		AHEAD = 8
	};
};

template <class G> struct router_shared {
	alignas(16) unsigned short x[ROUTER_ROWS][G::STRIDE];
	float part[ROUTER_WARPS][ROUTER_EXPERTS][ROUTER_ROWS + 2];
	float scale[ROUTER_ROWS];
};

/* Calls f(k, v) with the normed values v of columns k .. k + 3 of a row. A lane has every 32nd
 * group of four columns. */
template <class NORM, int COLS, class F> DEV void
router_each(const float *x, const norm_vectors &norm, float mean, float r, F f)
{
	constexpr int N = (COLS + 127) / 128, AT_ONCE = NORM::NORMED ? 8 : 16;

#pragma unroll 1
	for (int i = 0; i < N; i += AT_ONCE) {
		float v[AT_ONCE][4], w[AT_ONCE][4];
#pragma unroll
		for (int j = 0; j < AT_ONCE; j++) {
			const int k = ((i + j) * 32 + (int)lane_id()) * 4;
			if (k >= COLS)
				continue;
			quantize_act_read(x + k, v[j]);
			if (NORM::NORMED && norm.w)
				quantize_act_read(norm.w + k, w[j]);
		}
#pragma unroll
		for (int j = 0; j < AT_ONCE; j++) {
			const int k = ((i + j) * 32 + (int)lane_id()) * 4;
			if (k >= COLS)
				continue;
#pragma unroll
			for (int c = 0; c < 4; c++)
				if (NORM::NORMED)
					v[j][c] = (v[j][c] - mean) * r *
					              ((norm.w ? w[j][c] : 1.0f) + norm.plus_one) +
					          (NORM::MEAN ? norm_bias(norm.b, k + c) : 0.0f);
			f(k, v[j]);
		}
	}
}

/* Norms the warp's row x [COLS] into `to` [STRIDE], and pads it with zeros to a multiple of a unit.
 * Returns the factor of the row's results (f16 only, as in quantize_act_row). */
template <class G, class NORM> DEV float
router_row(const float *x, const norm_vectors &norm, unsigned short *to)
{
	typedef typename G::W W;
	enum { COLS = G::COLS };
	float mean = 0, r = 1, up = 1, down = 1;

	if constexpr (NORM::MEAN) {
		float sum = 0;
		router_each<norm_none, COLS>(x, norm, 0, 1, [&](int, const float(&v)[4]) {
			sum += v[0] + v[1] + (v[2] + v[3]);
		});
		mean = warp_sum(sum) / COLS;
	}
	if constexpr (NORM::NORMED) {
		float square = 0;
		router_each<norm_none, COLS>(x, norm, 0, 1, [&](int, const float(&v)[4]) {
#pragma unroll
			for (int c = 0; c < 4; c++)
				square = fmaf(v[c] - mean, v[c] - mean, square);
		});
		r = 1.0f / sqrtf(warp_sum(square) / COLS + norm.eps);
	}
	if constexpr (!W::BF16) {
		float top = 0;
		router_each<NORM, COLS>(x, norm, mean, r, [&](int, const float(&v)[4]) {
			top = fmaxf(top, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])),
			                       fmaxf(fabsf(v[2]), fabsf(v[3]))));
		});
		const int shift = quantize_act_bias(warp_max(top));
		up = __uint_as_float((unsigned)(127 + shift) << 23);
		down = __uint_as_float((unsigned)(127 - shift) << 23);
	}
	router_each<NORM, COLS>(x, norm, mean, r, [&](int k, const float(&v)[4]) {
		st_v2(to + k,
		      make_uint2(w_pack<W>(v[0] * up, v[1] * up), w_pack<W>(v[2] * up, v[3] * up)));
	});
	if (COLS + (int)lane_id() < G::UNITS * 32)
		to[COLS + lane_id()] = 0;
	return down;
}

/* Multiplies rows r0 .. r0 + 15 of w by x, over this warp's columns, and adds the results to acc
 * [16, 8]. */
template <class G> DEV void
router_gemm(const w_matrix<typename G::W> &w, const unsigned short (&x)[ROUTER_ROWS][G::STRIDE],
            int r0, float (&acc)[4])
{
	const int g = (int)lane_id() >> 2, t = (int)lane_id() & 3, warp = (int)warp_id(),
	          stop = G::UNITS * (warp + 1) / ROUTER_WARPS;
	const unsigned char *row[2] = { w.row(min(r0 + g, G::ROWS - 1)) + t * 16,
		                        w.row(min(r0 + 8 + g, G::ROWS - 1)) + t * 16 };

#pragma unroll 1
	for (int u = G::UNITS * warp / ROUTER_WARPS; u < stop; u += G::AHEAD) {
		uint4 a[G::AHEAD][2];
#pragma unroll
		for (int i = 0; i < G::AHEAD; i++)
#pragma unroll
			for (int h = 0; h < 2; h++)
				a[i][h] = u + i < stop && (u + i) * 32 + t * 8 < G::COLS &&
				                  r0 + h * 8 < G::ROWS
				              ? ld_v4(row[h] + (u + i) * 64)
				              : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int i = 0; i < G::AHEAD; i++) {
			if (u + i >= stop)
				break;
			const uint4 q = ld_v4(&x[g][(u + i) * 32 + t * 8]);
			const unsigned a0[4] = { a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y },
			               a1[4] = { a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w };
			const unsigned b0[2] = { q.x, q.y }, b1[2] = { q.z, q.w };
			w_mma<typename G::W>(acc, a0, b0);
			w_mma<typename G::W>(acc, a1, b1);
		}
	}
}

/* Outputs of the top-k selection. bias: bias that is used only for the selection, or NULL */
struct router_choice {
	const float *bias;
	float scale;
	int *id;
	float *weight;
};

/* x [n, COLS]. blockIdx.x: group of eight rows; blockIdx.y: group of sixteen experts. logit_b
 * [ROWS] or NULL; arrived: one counter per eight rows, initially 0 */
template <class G, class NORM, class R> DEV void
router_run(const int *count, const float *x, const norm_vectors &norm,
           const w_matrix<typename G::W> &w, const float *logit_b, float *logits, int *arrived,
           const router_choice &to)
{
	SHARED_STORAGE(router_shared<G>, s);
	const int tid = (int)threadIdx.x, lane = (int)lane_id(), warp = (int)warp_id(),
	          t0 = (int)blockIdx.x * ROUTER_ROWS, r0 = (int)blockIdx.y * ROUTER_EXPERTS;
	const int bytes = min((int)ROUTER_EXPERTS, G::ROWS - r0) * G::COLS * 2;

	for (int i = tid * 128; i < bytes; i += ROUTER_WARPS * 32 * 128)
		prefetch_l2(w.row(r0) + i);
	if (NORM::NORMED && norm.w)
		for (int i = tid * 32; i < G::COLS; i += ROUTER_WARPS * 32 * 32)
			prefetch_l2(norm.w + i);
	PDL_WAIT();
	PDL_LAUNCH();
	const int n = *count;
	if (t0 >= n)
		return;

	const float back =
	    router_row<G, NORM>(x + (long long)min(t0 + warp, n - 1) * G::COLS, norm, s.x[warp]);
	if (lane == 0)
		s.scale[warp] = back * w.scale;
	__syncthreads();

	float acc[4] = { 0, 0, 0, 0 };
	router_gemm<G>(w, s.x, r0, acc);
#pragma unroll
	for (int c = 0; c < 4; c++)
		s.part[warp][(lane >> 2) + c / 2 * 8][(lane & 3) * 2 + c % 2] = acc[c];
	__syncthreads();

	const int e = tid % ROUTER_EXPERTS, t = tid / ROUTER_EXPERTS;
	if (t < ROUTER_ROWS && t0 + t < n && r0 + e < G::ROWS) {
		float sum = 0;
#pragma unroll
		for (int i = 0; i < ROUTER_WARPS; i++)
			sum += s.part[i][e][t];
		logits[(long long)(t0 + t) * G::ROWS + r0 + e] =
		    sum * s.scale[t] + norm_bias(logit_b, r0 + e);
	}
	if (G::TILES > 1) {
		if (!route_last(arrived + blockIdx.x, G::TILES))
			return;
	} else {
		__syncthreads();
	}
	SHARED_STORAGE(route_shared_storage<R>,
	               storage); /* the storage of s, which is no longer used */
	if (t0 + warp < n)
		route_row<R>(storage.of[warp], logits + (long long)(t0 + warp) * G::ROWS, to.bias,
		             to.scale, to.id + (long long)(t0 + warp) * R::K,
		             to.weight + (long long)(t0 + warp) * (R::K + R::SHARED_GATE));
}

#endif
