/* Stages of cuda/gemm/gemm.h's tiles, filled by TMA (sm_100a, sm_120a; 16-bit weights). One
 * producer thread loads boxes of the tensor maps of weights and activations. No other thread
 * computes an address or waits for a group of copies.
 *
 * full[s] counts the bytes of a stage, empty[s] the warps that have read the stage. The ring
 * continues from tile to tile. Boxes have the layout of gemm_chunk_offset: rows of 64 bytes with
 * the 64-byte swizzle, rows of 128 with the 128-byte one. Elements outside a matrix become zeros.
 * Rows of activations past n are undefined, and their results are dropped.
 *
 * Boxes of weights have 64 or 32 rows; with SHARE 2 they have the rows of one half of the matrix
 * that a warp needs (16 or 8). Boxes of activations have 128 or 16 rows; see the //@map lines of
 * the templates. A tile begins as soon as its first stage has arrived. Until then, the other CTA of
 * the SM keeps the tensor cores busy.
 *
 * No clusters: the kernel is bound by mma.sync, not by L2 (the large tile loads 16 KB per 32 mma of
 * each of 8 warps), and a cluster would make two CTAs wait for each other at every stage. */
#ifndef LLMC_CUDA_GEMM_GEMM_TMA_H
#define LLMC_CUDA_GEMM_GEMM_TMA_H

#include "cuda/gemm/gemm_cp_async.h"
#include "cuda/ptx/tma.h"

#if __CUDA_ARCH__ >= 900

template <class G, class T> struct gemm_stages<G, T, GEMM_TMA> {
	static constexpr int STEPS = (G::COLS + T::BK - 1) / T::BK;
	static constexpr bool LARGE = T::BK == 32;
	static constexpr int W_BOX = (LARGE ? 64 : 32) / (G::SHARE == 2 ? 4 : 1),
	                     A_BOX = LARGE ? 128 : 16;
	static constexpr int PRODUCER =
	    GEMM_THREADS - 32; /* a warp that has no other work, if there is one */
	static_assert(G::SHARE == 1 || W_BOX == T::WN / 2, "a box is what a warp has of a half");
	static_assert(T::BN % W_BOX == 0 && T::BM % A_BOX == 0 && T::STAGES <= 16, "boxes");
	unsigned char *smem;
	int at, phase; /* at: stage that is read next; phase: parity of the ring's current round */

	__device__ __forceinline__ explicit gemm_stages(unsigned char *smem)
	    : smem(smem), at(0), phase(0)
	{
		if (threadIdx.x < T::STAGES) {
			mbar_init(full((int)threadIdx.x), 1);
			mbar_init(empty((int)threadIdx.x), T::WARPS);
		}
		fence_proxy_async(); /* make the mbarriers visible to the async proxy */
		__syncthreads();
	}

	/* After the next barrier, the caller may use the shared memory for other data. */
	__device__ __forceinline__ void
	end()
	{
		__syncthreads();
		if (threadIdx.x < T::STAGES) {
			mbar_inval(full((int)threadIdx.x));
			mbar_inval(empty((int)threadIdx.x));
		}
	}

	__device__ __forceinline__ mbar_t *
	full(int s) const
	{
		return (mbar_t *)(smem + G::SHARED) + s;
	}
	__device__ __forceinline__ mbar_t *
	empty(int s) const
	{
		return (mbar_t *)(smem + G::SHARED) + 16 + s;
	}

	/* Loads stage `step` of a tile. The stage will be read `ahead` stages from now. */
	__device__ __forceinline__ void
	load(const gemm_operands<typename G::W> &in, int step, int ahead, int m0, int n0)
	{
		const tensor_map *map = in.maps + !LARGE;
		const int over = at + ahead >= T::STAGES, s = at + ahead - (over ? T::STAGES : 0);
		unsigned char *stage = smem + s * T::STAGE_BYTES;

		mbar_wait(empty(s), phase ^ over ^ 1);
		fence_proxy_async(); /* orders the warps' reads before the TMA writes */
		mbar_arrive_expect(full(s), T::STAGE_BYTES);
#pragma unroll
		for (int r = 0; r < T::BM; r += A_BOX)
			tensor_load_2d_rows(stage + r * T::BK * 2, map + 2, step * T::BK, m0 + r,
			                    in.n - m0 - r, full(s));
#pragma unroll
		for (int r = 0; r < T::BN; r += W_BOX)
			tensor_load_2d(stage + T::A_BYTES + r * T::BK * 2, map, step * T::BK,
			               n0 + gemm_column<G, T>(r) +
			                   (gemm_second<G, T>(r) ? G::ROWS : 0),
			               full(s));
	}

	__device__ __forceinline__ void
	mainloop(const gemm_operands<typename G::W> &in, int m0, int n0, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
#pragma unroll 1
		for (int step = 0; step < STEPS; step++) {
			if (threadIdx.x == PRODUCER)
#pragma unroll 1
				for (int s = step ? step + T::STAGES - 1 : 0;
				     s < min(step + T::STAGES, STEPS); s++)
					load(in, s, s - step, m0, n0);
			__syncwarp();
			if (T::WARPS == GEMM_THREADS / 32 || (int)warp_id() < T::WARPS) {
				mbar_wait(full(at), phase);
				gemm_multiply<typename G::W, T>(smem + at * T::STAGE_BYTES, wm, wn,
				                                acc);
				__syncwarp();
				if (lane_id() == 0)
					mbar_arrive(empty(at));
			}
			at++;
			if (at == T::STAGES) {
				at = 0;
				phase ^= 1;
			}
		}
	}
};

#endif
#endif
