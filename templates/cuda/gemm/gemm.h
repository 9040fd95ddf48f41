/* y = a w^T for the rows of a mixed step, with an epilogue. This file has the tile scheduler.
 * Stages are filled by cuda/gemm/gemm_cp_async.h or cuda/gemm/gemm_tma.h.
 *
 *   a tile of BM x BN results, BK columns per stage, STAGES stages in shared memory:
 *     sm_80 .. 90, and block formats             sm_100, sm_120, 16-bit weights
 *     all threads: cp.async of stage s + S - 1     producer thread: wait empty, expect bytes,
 *       (blocks: ld.global; after the mma            TMA of stage s + S - 1
 *        unpack, st.shared); commit                all warps (consumers): wait full
 *     wait for stage s, barrier
 *     ldmatrix, mma of stage s                     ldmatrix, mma of stage s, arrive at empty
 *   after the last stage: epilogue e, from registers
 *
 * gemm_run<G, SMALL_M>(in, e): G is a gemm_config, `in` gemm_operands (cuda/gemm/gemm_tile.h), `e`
 * an epilogue (cuda/epilogue/epilogue.h). With SHARE 2 the epilogue's u are columns of the second
 * half of the matrix.
 *
 * CTAs are persistent and iterate over tiles, so any n is covered by any grid. There are three
 * tiles, of 16, 64 and 128 rows. The choice depends on n and on the number of tiles that keep the
 * SMs busy. Results do not depend on the choice (cuda/gemm/gemm_tile.h). A kernel may run several
 * GEMMs in sequence in the same shared memory; each has one matrix or format.
 *
 * Bytes: a stage of the large tile with 16-bit weights is 8 KB of activations and 8 KB of weights,
 * for 32 mma per warp (8 warps). With blocks it is 16 KB of activations and 4.5 to 8.5 KB of
 * weights from memory, for 64 mma. A stage of the large tile is 91 instructions for 32 mma with
 * 16-bit weights (sm_80). A warp reads 3 KB of shared memory per 16 mma, three quarters of what an
 * A100 can deliver.
 *
 * Resources (ptxas 13.0, all of sm_80 to sm_120a, no spills): 16-bit weights and blocks of 32 take
 * 124-128 registers, so two CTAs (16 warps) run per SM, with 3 or 4 stages of 32 columns (2 of 64
 * for blocks of 32). K-quants take 162-183 registers: one CTA, 3 stages of 64. From sm_100a on,
 * 16-bit weights and their activations are loaded by tensor maps. This takes 119-123 registers. The
 * large tile has 6 stages of 32 columns in the 227 KB of sm_100a, and 3 in the 99 KB of sm_120a.
 * Only the producer computes addresses. Neither sm_100a nor sm_120a has been measured.
 *
 * Shared memory: G::SHARED bytes, dynamic, and 256 for the mbarriers if G::TMA. */
#ifndef LLMC_CUDA_GEMM_GEMM_H
#define LLMC_CUDA_GEMM_GEMM_H

#include "cuda/epilogue/epilogue.h"
#include "cuda/gemm/gemm_tma.h"

/* Clears a warp's sums of a tile. */
template <class T> DEV void
gemm_clear(float (&acc)[T::MT][T::NT][4])
{
#pragma unroll
	for (int i = 0; i < T::MT; i++)
#pragma unroll
		for (int j = 0; j < T::NT; j++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				acc[i][j][c] = 0;
}

/* Scales the sums of this warp, if the tile has rows for it, and passes them to the epilogue. wm,
 * wn: row and column of the warp among the warps of the tile */
template <class G, class T, class E> DEV void
gemm_epilogue(const float (&acc)[T::MT][T::NT][4], const gemm_operands<typename G::W> &in, int m0,
              int n0, int wm, int wn, const E &e)
{
	const int lane = (int)lane_id();
	constexpr int N_OUT_TILES = T::NT / G::SHARE;

	if (T::WARPS < GEMM_THREADS / 32 && (int)warp_id() >= T::WARPS)
		return;
#pragma unroll
	for (int i = 0; i < T::MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int m = m0 + wm * T::WM + i * 16 + half * 8 + (lane >> 2);
			if (m >= in.n)
				continue;
			const float s = in.factor(m);
			const int col = n0 + wn * (T::WN / G::SHARE) + (lane & 3) * 2;
			float v[N_OUT_TILES][2], u[N_OUT_TILES][2];
#pragma unroll
			for (int j = 0; j < N_OUT_TILES; j++)
#pragma unroll
				for (int c = 0; c < 2; c++) {
					v[j][c] = acc[i][j][half * 2 + c] * s;
					u[j][c] = acc[i][j + T::NT - N_OUT_TILES][half * 2 + c] * s;
				}
			e.store(m, col, v, u);
		}
}

/* Runs all tiles of a GEMM and returns their number. Tiles are ordered in bands of 8 along M, so
 * that CTAs that run at the same time share both matrices in L2. GEMMs of one configuration may
 * follow each other on the same stages. `before` is the number of tiles of the earlier ones; with
 * it, the load of the CTAs stays even. */
template <class G, class T, class E> DEV int
gemm_tile_loop(gemm_stages<G, T> &stages, const gemm_operands<typename G::W> &in, const E &e,
               int before = 0)
{
	constexpr int OUT = T::BN / G::SHARE, TILES_N = (G::ROWS + OUT - 1) / OUT;
	const int tiles_m = (in.n + T::BM - 1) / T::BM, grid = (int)gridDim.x;

#pragma unroll 1
	for (int t = before ? ((int)blockIdx.x + grid - before % grid) % grid : (int)blockIdx.x;
	     t < tiles_m * TILES_N; t += grid) {
		const int band = t / (8 * TILES_N), at = t - band * (8 * TILES_N);
		const int height = min(tiles_m - band * 8, 8);
		const int m0 = (band * 8 + at % height) * T::BM, n0 = at / height * OUT;
		const int wm = (int)warp_id() / T::WARPS_N, wn = (int)warp_id() % T::WARPS_N;
		float acc[T::MT][T::NT][4];
		gemm_clear<T>(acc);
		stages.mainloop(in, m0, n0, wm, wn, acc);
		gemm_epilogue<G, T>(acc, in, m0, n0, wm, wn, e);
	}
	return tiles_m * TILES_N;
}

/* Runs one GEMM with tile T. */
template <class G, class T, class E> DEV void
gemm_tiles(unsigned char *smem, const gemm_operands<typename G::W> &in, const E &e)
{
	gemm_stages<G, T> stages(smem);

	gemm_tile_loop(stages, in, e);
	stages.end();
}

/* SMALL_M: another kernel runs steps of up to this many rows */
template <class G, int SMALL_M = 0, class E> DEV void
gemm_run(const gemm_operands<typename G::W> &in, const E &e)
{
	SHARED_BYTES(smem);
	constexpr int OUT = G::large::BN / G::SHARE;
	const int large = (in.n + 127) / 128 * ((G::ROWS + OUT - 1) / OUT);

	if constexpr (SMALL_M < 16)
		if (in.n <= 16)
			return gemm_tiles<G, typename G::small>(smem, in, e);
	if (in.n <= 64 ||
	    2 * G::BLOCKS * large <=
	        (int)gridDim.x) /* large tiles would occupy less than half of the SMs */
		gemm_tiles<G, typename G::middle>(smem, in, e);
	else
		gemm_tiles<G, typename G::large>(smem, in, e);
}

#endif
