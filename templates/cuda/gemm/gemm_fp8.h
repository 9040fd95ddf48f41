/* GEMM of e4m3 for `activations: f8`. This file has stages of bytes for the tiles of
 * cuda/gemm/gemm.h, and multiplies by mma.sync m16n8k32 of e4m3.
 *
 *   per group of GROUP columns (128; 32 for f8_32):
 *     s    = sum of q_w q_x            by the tensor cores, from 0
 *     acc  = fma(s d_w, d_x, acc)      fp32, one chain per result, in the order of the groups
 *
 * Weights are stored with a scale d_w per row and group. quantize_act_fp8 computes the scale of
 * activations per row and group, d_x = max|x| / 448. The terms q_w q_x are exact. Tensor cores keep
 * fewer bits of s than fp32 has: 14 significant bits, aligned to the largest term, were reported
 * for Hopper. For this reason s covers at most 128 columns. The emulator adds in fp32.
 *
 * A stage has 128 columns: BM rows of activations, then BN rows of weights, by cp.async, in the
 * order of gemm_chunk_offset for 64 elements of 16 bits. Scales of all stages follow the ring:
 * activations [group][BM], then weights [group][BN]. */
#ifndef LLMC_CUDA_GEMM_GEMM_FP8_H
#define LLMC_CUDA_GEMM_GEMM_FP8_H

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/quantize_act.h"

/* Rounded activations of n rows, in a kernel's scratch: bytes [n][COLS], then scales [n][GROUPS] */
template <class W> struct fp8_rows {
	enum { COLS = W::COLS, GROUP = W::BLOCK, GROUPS = COLS / GROUP };
	static_assert(COLS % GROUP == 0 && GROUP >= 4, "whole groups");
	unsigned char *at;
	int n;

	__device__ __forceinline__ unsigned char *
	row(int t) const
	{
		return at + (long long)t * COLS;
	}
	__device__ __forceinline__ float *
	scales(int t) const
	{
		return (float *)(at + (long long)n * COLS) + (long long)t * GROUPS;
	}
};

/* Norms the CTA's row x and rounds it to row t of `to`, whose members are those of fp8_rows.
 * *scale, the factor of the row's results, is set to 1. A group with an infinity or NaN gets the
 * scale NaN; a group whose largest magnitude is below 1e-30 gets the scale 0. */
template <class W, class NORM, class X, class R> DEV void
quantize_act_fp8(const X *x, const norm_vectors &norm, const quantize_act_gain<W, NORM> &gain,
                 const R &to, int t, float *scale)
{
	SHARED(quantize_act_shared, s);
	constexpr int N = quantize_act_groups<W>(), LANES = R::GROUP / 4;
	static_assert(LANES <= 32, "a group is a part of a warp");
	float v[N][4];

	quantize_act_load<W, NORM>(x, norm, gain, s, v);
	if (threadIdx.x == 0)
		*scale = 1;
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
		unsigned top = 0; /* compared as integers, NaN is larger than infinity, and infinity
		                     larger than all other values */
#pragma unroll
		for (int c = 0; c < 4; c++)
			top = max(top, __float_as_uint(v[i][c]) & 0x7fffffffu);
#pragma unroll
		for (int l = 1; l < LANES; l *= 2)
			top = max(top, __shfl_xor_sync(0xffffffffu, top, l));
		const float peak = __uint_as_float(top);
		const bool finite = top < 0x7f800000u, some = finite && !(peak < 1e-30f);
		const float inverse = some ? 448.0f / peak : 0.0f;
		unsigned bytes = 0;
#pragma unroll
		for (int c = 0; c < 4; c++)
			bytes |= (some ? f32_to_e4m3(__fmul_rn(v[i][c], inverse)) : 0u) << 8 * c;
		if (k >= R::COLS)
			continue;
		st_v1(to.row(t) + k, bytes);
		if (k % R::GROUP == 0)
			to.scales(t)[k / R::GROUP] = some     ? __fmul_rn(peak, 1.0f / 448.0f)
			                             : finite ? 0.0f
			                                      : __uint_as_float(0x7fc00000u);
	}
}

/* Configuration of a GEMM of e4m3. The members have the meaning that they have in gemm_config. One
 * CTA runs per SM. */
template <class W_, int ROWS_, int SHARE_ = 1> struct gemm_fp8_config {
	typedef W_ W;
	enum {
		ROWS = ROWS_,
		COLS = W::COLS / 2, /* pairs of bytes */
		SHARE = SHARE_,
		SOURCE = GEMM_FP8,
		BLOCKS = 1,
		SHARED = 98304,
		SUBS = 128 / W::BLOCK /* groups per stage */
	};
	typedef gemm_tile<64, 64, 64, 32, 16, 4> middle;
	typedef middle small;
	typedef gemm_tile<128, 128, 64, 64, 32, 2> large;
	static_assert(large::STAGES * (large::STAGE_BYTES + 256 * 4 * SUBS) <= SHARED &&
	                  middle::STAGES * (middle::STAGE_BYTES + 128 * 4 * SUBS) <= SHARED,
	              "shared memory");
};

/* Copies rows of weights and their scales. Rows and columns past the matrix are set to zero. */
template <class G, class T> struct gemm_fp8_weights {
	typedef typename G::W W;
	static constexpr int PASS = GEMM_THREADS / T::CHUNKS;
	static_assert(PASS % T::WN == 0, "a thread's rows are equally far apart");
	const w_matrix<W> &w;
	const unsigned char *from;
	int n0, r, c, left; /* left: columns of y from that of row r to the last */

	__device__ __forceinline__
	gemm_fp8_weights(const w_matrix<W> &w, int n0)
	    : w(w), n0(n0), r((int)threadIdx.x / T::CHUNKS), c((int)threadIdx.x % T::CHUNKS)
	{
		const int n = n0 + gemm_column<G, T>(r);
		left = G::ROWS - n;
		from = w.row(n) + (gemm_second<G, T>(r) ? w.half : 0) + c * 16;
	}

	__device__ __forceinline__ void
	prefetch(unsigned char *to, float *scales, int step) const
	{
		const int k0 = step * 128;

		to += gemm_chunk_offset<T>(r, c);
#pragma unroll
		for (int i = 0; i < T::BN / PASS; i++)
			cp_async_16_fill(to + i * PASS * 128,
			                 from + k0 + (long long)i * (PASS / G::SHARE) * w.stride,
			                 i * (PASS / G::SHARE) < left &&
			                         (W::COLS % 128 == 0 || k0 + c * 16 < W::COLS)
			                     ? 16
			                     : 0);
#pragma unroll
		for (int i = (int)threadIdx.x; i < T::BN * G::SUBS; i += GEMM_THREADS) {
			const int row = i % T::BN,
			          n = min(n0 + gemm_column<G, T>(row), G::ROWS - 1),
			          g = min(step * G::SUBS + i / T::BN, (int)fp8_rows<W>::GROUPS - 1);
			cp_async_4(scales + i,
			           w.row(n) + (gemm_second<G, T>(row) ? w.half : 0) + W::D + 4 * g);
		}
	}
};

template <class G, class T> struct gemm_stages<G, T, GEMM_FP8> {
	typedef typename G::W W;
	static constexpr int STEPS = (W::COLS + 127) / 128,
	                     SCALES = (T::BM + T::BN) * G::SUBS; /* floats */
	unsigned char *smem;

	__device__ __forceinline__ explicit gemm_stages(unsigned char *smem) : smem(smem) {}
	__device__ __forceinline__ void
	end()
	{
	}
	__device__ __forceinline__ float *
	scales(int s) const
	{
		return (float *)(smem + T::BYTES) + s * SCALES;
	}

	/* Copies the scales of the activations. Rows past the last one get its scales. */
	DEV void
	row_scales(const fp8_rows<W> &x, float *to, int m0, int step)
	{
#pragma unroll
		for (int i = (int)threadIdx.x; i < T::BM * G::SUBS; i += GEMM_THREADS)
			cp_async_4(to + i, x.scales(min(m0 + i % T::BM, x.n - 1)) +
			                       min(step * G::SUBS + i / T::BM,
			                           (int)fp8_rows<W>::GROUPS - 1));
	}

	DEV void
	multiply(const unsigned char *stage, const float *at, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
		constexpr int IN_GROUP = 4 / G::SUBS; /* mma per sum s */
		const int lane = (int)lane_id();
		const int ra = wm * T::WM + (lane & 15), ca = lane >> 4;
		const int rb = wn * T::WN + (lane & 7) + (lane >> 4 << 3), cb = lane >> 3 & 1;

#pragma unroll 1 /* if unrolled, ptxas hoists loads until registers spill */
		for (int g = 0; g < G::SUBS; g++) {
			unsigned w[IN_GROUP][T::NT][2];
			float d[T::NT][2];
#pragma unroll
			for (int j = 0; j < T::NT; j++) {
				const uint2 two = ld_v2(at + G::SUBS * T::BM + g * T::BN +
				                        wn * T::WN + j * 8 + (lane & 3) * 2);
				d[j][0] = __uint_as_float(two.x);
				d[j][1] = __uint_as_float(two.y);
			}
#pragma unroll
			for (int k = 0; k < IN_GROUP; k++)
#pragma unroll
				for (int j = 0; j < T::NT; j += 2) {
					unsigned r[4];
					ldmatrix_x4(r, stage + T::A_BYTES +
					                   gemm_chunk_offset<T>(
					                       rb, 2 * (g * IN_GROUP + k) + cb) +
					                   j * 8 * 128);
					w[k][j][0] = r[0];
					w[k][j][1] = r[1];
					w[k][j + 1][0] = r[2];
					w[k][j + 1][1] = r[3];
				}
#pragma unroll
			for (int i = 0; i < T::MT; i++) {
				float t[T::NT][4] = {}, x[2];
#pragma unroll
				for (int h = 0; h < 2; h++)
					x[h] = at[g * T::BM + wm * T::WM + i * 16 + h * 8 +
					          (lane >> 2)];
#pragma unroll
				for (int k = 0; k < IN_GROUP; k++) {
					unsigned a[4];
					ldmatrix_x4(a, stage +
					                   gemm_chunk_offset<T>(
					                       ra, 2 * (g * IN_GROUP + k) + ca) +
					                   i * 16 * 128);
#pragma unroll
					for (int j = 0; j < T::NT; j++)
						mma_e4m3_m16n8k32(t[j], a, w[k][j], t[j]);
				}
#pragma unroll
				for (int j = 0; j < T::NT; j++)
#pragma unroll
					for (int c = 0; c < 4; c++)
						acc[i][j][c] = fmaf(__fmul_rn(t[j][c], d[j][c & 1]),
						                    x[c >> 1], acc[i][j][c]);
			}
		}
	}

	__device__ __forceinline__ void
	mainloop(const gemm_operands<W> &in, int m0, int n0, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
		const fp8_rows<W> x = { (unsigned char *)in.act, in.n };
		const gemm_fp8_weights<G, T> weights(in.w, n0);
		gemm_activations<G, T> rows(in.act, m0, in.n);

		__syncthreads(); /* all warps have read the last tile */
		for (int s = 0; s < T::STAGES - 1; s++) {
			if (s < STEPS)
				fill(x, weights, rows, m0, s, s);
			cp_async_commit();
		}
		int at = 0, into = T::STAGES - 1;
#pragma unroll 1
		for (int step = 0; step < STEPS; step++) {
			cp_async_wait<T::STAGES - 2>();
			__syncthreads();
			if (step + T::STAGES - 1 < STEPS)
				fill(x, weights, rows, m0, into, step + T::STAGES - 1);
			cp_async_commit();
			multiply(smem + at * T::STAGE_BYTES, scales(at), wm, wn, acc);
			at = at + 1 == T::STAGES ? 0 : at + 1;
			into = into + 1 == T::STAGES ? 0 : into + 1;
		}
		cp_async_wait_all();
	}

	/* Issues the copies of step `step` to stage s. */
	__device__ __forceinline__ void
	fill(const fp8_rows<W> &x, const gemm_fp8_weights<G, T> &weights,
	     gemm_activations<G, T> &rows, int m0, int s, int step) const
	{
		unsigned char *stage = smem + s * T::STAGE_BYTES;

		rows.prefetch(stage, step * T::BK);
		row_scales(x, scales(s), m0, step);
		weights.prefetch(stage + T::A_BYTES, scales(s) + G::SUBS * T::BM, step);
	}
};

#endif
