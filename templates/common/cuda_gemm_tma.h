/* The stages of cuda_gemm.h's tiles, filled by the copy unit (sm_100a, sm_120a; 16-bit weights): one thread asks for boxes of tensor maps, of
 * weights and of activations, and no other thread computes an address or holds a group of copies.
 *
 * full[s] counts the bytes of a stage, empty[s] the warps that have read it; the ring goes on from tile to tile. A box stands as gemm_place
 * wants it: rows of 64 bytes with the maps' swizzle of 64 bytes, rows of 128 with that of 128. What lies outside of a matrix becomes zeros;
 * rows of activations past n are whatever is there: their results are dropped.
 *
 * Boxes of weights have 64 and 32 rows, with GEMM_PAIRED what a warp has of one half of the matrix (16 and 8); of activations 128 and 16: the //@map
 * lines of the templates. A tile begins when its first stage is there: the other block of the multiprocessor works meanwhile.
 *
 * No clusters: the product is bound by mma.sync, not by L2 (the large tile takes 16 KB for 32 mma of each of 8 warps), and a cluster would make two
 * blocks wait for each other at every stage. */
#ifndef LLMC_CUDA_GEMM_TMA_H
#define LLMC_CUDA_GEMM_TMA_H

#include "common/cuda_gemm_weights.h"
#include "common/cuda_tma.h"

#if GEMM_TMA

typedef tensor_map gemm_source; /* of weights, then of activations: each for the large tile, then for the others */
#define GEMM_PARAMS    const llmc_call p, const __grid_constant__ llmc_maps m
#define GEMM_SOURCE(w) (&m.map[0])

template <class T> struct gemm_stages {
	static constexpr int  STEPS = (GEMM_COLS + T::BK - 1) / T::BK;
	static constexpr bool LARGE = T::BK == 32;
	static constexpr int  W_BOX = (LARGE ? 64 : 32) / (GEMM_OUT_SHARE == 2 ? 4 : 1), A_BOX = LARGE ? 128 : 16;
	static constexpr int  COPIER = GEMM_THREADS - 32; /* a warp that has nothing else to do, where there is one */
	static_assert(GEMM_OUT_SHARE == 1 || W_BOX == T::WN / 2, "a box is what a warp has of a half");
	static_assert(T::BN % W_BOX == 0 && T::BM % A_BOX == 0 && T::STAGES <= 16, "boxes");
	unsigned char    *smem;
	const tensor_map *map;
	int               at, phase; /* the stage that is read next, how often the ring has been round (parity) */

	__device__ __forceinline__ gemm_stages(unsigned char *smem, const unsigned short *, const gemm_source *maps)
		: smem(smem), map(maps + !LARGE), at(0), phase(0)
	{
		if (threadIdx.x < T::STAGES) {
			mbar_init(full((int)threadIdx.x), 1);
			mbar_init(empty((int)threadIdx.x), T::WARPS);
		}
		fence_proxy_async(); /* the copy unit finds them, too */
		__syncthreads();
	}

	__device__ __forceinline__ mbar_t *full(int s) const { return (mbar_t *)(smem + GEMM_SHARED) + s; }
	__device__ __forceinline__ mbar_t *empty(int s) const { return (mbar_t *)(smem + GEMM_SHARED) + 16 + s; }

	/* Asks for a tile's stage `step`, which is to be read `ahead` stages from now. */
	__device__ __forceinline__ void
	bring(int step, int ahead, int m0, int n0, int n)
	{
		const int over = at + ahead >= T::STAGES, s = at + ahead - (over ? T::STAGES : 0);
		unsigned char *stage = smem + s * T::STAGE_BYTES;

		mbar_wait(empty(s), phase ^ over ^ 1);
		mbar_arrive_expect(full(s), T::STAGE_BYTES);
#pragma unroll
		for (int r = 0; r < T::BM; r += A_BOX)
			tensor_load_2d_rows(stage + r * T::BK * 2, map + 2, step * T::BK, m0 + r, n - m0 - r, full(s));
#pragma unroll
		for (int r = 0; r < T::BN; r += W_BOX)
			tensor_load_2d(stage + T::A_BYTES + r * T::BK * 2, map, step * T::BK, n0 + gemm_column<T>(r) + (gemm_second<T>(r) ? GEMM_ROWS : 0), full(s));
	}

	__device__ __forceinline__ void
	product(int m0, int n0, int n, int wm, int wn, float (&acc)[T::MT][T::NT][4])
	{
#pragma unroll 1
		for (int step = 0; step < STEPS; step++) {
			if (threadIdx.x == COPIER)
#pragma unroll 1
				for (int s = step ? step + T::STAGES - 1 : 0; s < min(step + T::STAGES, STEPS); s++)
					bring(s, s - step, m0, n0, n);
			__syncwarp();
			if (T::WARPS == GEMM_THREADS / 32 || (int)warp_id() < T::WARPS) {
				mbar_wait(full(at), phase);
				gemm_stage<T>(smem + at * T::STAGE_BYTES, wm, wn, acc);
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
