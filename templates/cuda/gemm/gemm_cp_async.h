/* Stages of the tiles of cuda/gemm/gemm.h, filled by all threads. Activations and 16-bit weights
 * are copied by cp.async, with one commit group per stage. Blocks are loaded to registers and
 * unpacked from there (cuda/gemm/gemm_weights.h). */
#ifndef LLMC_CUDA_GEMM_GEMM_CP_ASYNC_H
#define LLMC_CUDA_GEMM_GEMM_CP_ASYNC_H

#include "cuda/gemm/gemm_weights.h"

/* Copies activations. Rows past n and columns past the matrix become zeros. */
template <class G, class T> struct gemm_activations {
	static constexpr int PASS = GEMM_THREADS / T::CHUNKS;
	const unsigned short *from;
	int r, c, left;

	__device__ __forceinline__
	gemm_activations(const unsigned short *act, int m0, int n)
	    : r((int)threadIdx.x / T::CHUNKS), c((int)threadIdx.x % T::CHUNKS)
	{
		left = n - m0 - r;
		from = act + (long long)(m0 + r) * G::COLS + c * 8;
	}

	__device__ __forceinline__ void
	prefetch(unsigned char *to, int k0)
	{
		to += gemm_chunk_offset<T>(r, c);
#pragma unroll
		for (int i = 0; i < (T::BM + PASS - 1) / PASS; i++) {
			const bool in =
			    i * PASS < left && (G::COLS % T::BK == 0 || k0 + c * 8 < G::COLS);
			if (T::BM % PASS == 0 || r + i * PASS < T::BM)
				cp_async_16_fill(to + i * PASS * T::BK * 2,
				                 from + k0 + (long long)i * PASS * G::COLS,
				                 in ? 16 : 0);
		}
	}
};

template <class G, class T, int SOURCE = G::SOURCE> struct gemm_stages {
	static constexpr int STEPS = (G::COLS + T::BK - 1) / T::BK;
	unsigned char *smem;

	__device__ __forceinline__ explicit gemm_stages(unsigned char *smem) : smem(smem) {}
	__device__ __forceinline__ void
	end()
	{
	}

	__device__ __forceinline__ void
	mainloop(const gemm_operands<typename G::W> &in, int m0, int n0, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
		gemm_weights<G, T> weights(in.w, n0);
		gemm_activations<G, T> rows(in.act, m0, in.n);

		__syncthreads(); /* all warps have read the last tile */
#pragma unroll
		for (int s = 0; s < T::STAGES - 1; s++) {
			if (s < STEPS) {
				unsigned char *stage = smem + s * T::STAGE_BYTES;
				rows.prefetch(stage, s * T::BK);
				weights.prefetch(stage + T::A_BYTES, s * T::BK);
				weights.store(stage + T::A_BYTES);
			}
			cp_async_commit();
		}
		int at = 0, into = T::STAGES - 1;
#pragma unroll 1
		for (int step = 0; step < STEPS; step++) {
			cp_async_wait<T::STAGES - 2>();
			__syncthreads();
			unsigned char *stage = smem + into * T::STAGE_BYTES;
			const bool more = step + T::STAGES - 1 < STEPS;
			if (more) {
				rows.prefetch(stage, (step + T::STAGES - 1) * T::BK);
				weights.prefetch(stage + T::A_BYTES,
				                 (step + T::STAGES - 1) * T::BK);
			}
			cp_async_commit();
			if (T::WARPS == GEMM_THREADS / 32 || (int)warp_id() < T::WARPS)
				gemm_multiply<typename G::W, T>(smem + at * T::STAGE_BYTES, wm, wn,
				                                acc);
			if (more)
				weights.store(stage + T::A_BYTES);
			at = at + 1 == T::STAGES ? 0 : at + 1;
			into = into + 1 == T::STAGES ? 0 : into + 1;
		}
		cp_async_wait_all();
	}
};

#endif
