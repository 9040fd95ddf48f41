/* y = a w^T for the rows of a mixed step, with an epilogue: the walk over tiles. Copies: cuda_gemm_async.h, cuda_gemm_tma.h.
 *
 *     act    [n, COLS] activations in 16 bits (cuda_gemm_prep.h)
 *     scale  [n] what a row's results are multiplied by; NULL: 1
 *     w      weights (cuda_gemm_weights.h), as GEMM_SOURCE(matrix) says it
 *     e      epilogue (cuda_gemm_epilogue.h): e.take(m, n, v, u) gets two neighbouring results v of row m, columns n and n + 1;
 *            with GEMM_PAIRED, u are those of the second half of the matrix
 *
 * Blocks stay and walk over tiles, so any n is covered by any grid. Three tiles: of 16, 64 and 128 rows; which one is used depends on
 * n and on how many tiles keep the multiprocessors busy; results do not (cuda_gemm_tile.h).
 *
 * Resources (ptxas 13.0, all of sm_80 to sm_120a, no spills): 16-bit weights and blocks of 32: 124-128 registers, two blocks (16 warps) a
 * multiprocessor, 3 or 4 stages of 32 columns (2 of 64 for blocks of 32); k formats: 162-183 registers, one block, 3 stages of 64. A step of
 * the large tile is 99 instructions for 32 mma with 16-bit weights; a warp reads 3 KB of shared memory for 16 mma, three quarters of what
 * an A100 can feed. Not measured on a GPU yet.
 *
 * From sm_100a on 16-bit weights and the activations beside them come by tensor maps: 119-123 registers, 6 stages of 32 columns of the large tile
 * in the 227 KB of an sm_100a, 3 in the 99 KB of an sm_120a, and no instruction for an address but the copying thread's.
 *
 * The functions that call gemm_run take GEMM_PARAMS. The includer defines GEMM_COLS, GEMM_ROWS (columns of y; the matrix has twice as many rows with GEMM_PAIRED), W_<dtype>, and
 * GEMM_ARCH. Shared memory: GEMM_SHARED bytes, dynamic, and 256 for the barriers of GEMM_TMA. */
#ifndef LLMC_CUDA_GEMM_H
#define LLMC_CUDA_GEMM_H

#include "common/cuda_gemm_epilogue.h"
#include "common/cuda_gemm_tile.h"
#include "common/cuda_gemm_weights.h"

/* GEMM_BLOCKS share a multiprocessor: 48 KB let two fit where it has 100 KB. Unpacked weights need whole groups of 64 columns; those of the k
 * formats so many registers that one block has a multiprocessor to itself. */
#if defined(W_q4_k) || defined(W_q5_k) || defined(W_q6_k)
#define GEMM_BLOCKS 1
#define GEMM_SHARED 98304
#elif W_PLANES
#define GEMM_BLOCKS (GEMM_ARCH == 80 || GEMM_ARCH == 90 ? 2 : 1) /* elsewhere memory is for one, or ptxas spills at 128 registers */
#define GEMM_SHARED 65536
#else
#define GEMM_BLOCKS 2
#define GEMM_SHARED (GEMM_ARCH == 100 ? 98304 : GEMM_ARCH == 80 || GEMM_ARCH == 90 ? 65536 : 49152)
#endif
#define GEMM_TMA (GEMM_ARCH >= 100 && !W_PLANES)
#if W_PLANES
typedef gemm_tile<16, 64, 128, 16, 16, 3>                     gemm_small;
typedef gemm_tile<64, 64, 64, 32, 16, 3>                      gemm_middle;
typedef gemm_tile<128, 128, 64, 64, 32, GEMM_SHARED / 32768>  gemm_large;
#else
typedef gemm_tile<16, (GEMM_ROWS >= 8192 ? 64 : 32), 64, 16, 16, (GEMM_ROWS >= 8192 ? GEMM_SHARED / 10240 : 8)> gemm_small;
typedef gemm_tile<64, 64, 64, 32, 16, GEMM_SHARED / 16384>    gemm_middle;
typedef gemm_tile<128, 128, 32, 64, 32, GEMM_SHARED / 16384>  gemm_large;
#endif
static_assert(gemm_small::BYTES <= GEMM_SHARED && gemm_middle::BYTES <= GEMM_SHARED && gemm_large::BYTES <= GEMM_SHARED, "shared memory");

/* bf16 activations have no scale */
#ifdef W_bf16
#define GEMM_SCALE(p) ((const float *)0)
#else
#define GEMM_SCALE(p) ((const float *)(p))
#endif

#include "common/cuda_gemm_async.h" /* one of the two is what GEMM_TMA asks for, the other is empty */
#include "common/cuda_gemm_tma.h"

/* The results of this warp go to the epilogue. */
template <class T, class E> DEV void
gemm_finish(const float (&acc)[T::MT][T::NT][4], const float *scale, int m0, int n0, int n, int wm, int wn, const E &e)
{
	const int lane = (int)lane_id();
	constexpr int N_OUT_TILES = T::NT / GEMM_OUT_SHARE;

#pragma unroll
	for (int i = 0; i < T::MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int m = m0 + wm * T::WM + i * 16 + half * 8 + (lane >> 2);
			if (m >= n)
				continue;
			const float s = scale ? scale[m] : 1.0f;
			const int col = n0 + wn * (T::WN / GEMM_OUT_SHARE) + (lane & 3) * 2;
			float v[N_OUT_TILES][2], u[N_OUT_TILES][2];
#pragma unroll
			for (int j = 0; j < N_OUT_TILES; j++)
#pragma unroll
				for (int c = 0; c < 2; c++) {
					v[j][c] = acc[i][j][half * 2 + c] * s;
					u[j][c] = acc[i][j + T::NT - N_OUT_TILES][half * 2 + c] * s;
				}
			e.take(m, col, v, u);
		}
}

template <class T, class E> DEV void
gemm_one(gemm_stages<T> &stages, const float *scale, int m0, int n0, int n, const E &e)
{
	const int warp = (int)warp_id(), wm = warp / T::WARPS_N, wn = warp % T::WARPS_N;
	float acc[T::MT][T::NT][4];

#pragma unroll
	for (int i = 0; i < T::MT; i++)
#pragma unroll
		for (int j = 0; j < T::NT; j++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				acc[i][j][c] = 0;
	stages.product(m0, n0, n, wm, wn, acc);
	if (T::WARPS == GEMM_THREADS / 32 || warp < T::WARPS)
		gemm_finish<T>(acc, scale, m0, n0, n, wm, wn, e);
}

/* Tiles in bands of 8 tiles of rows, so that what runs at one time shares both matrices in L2. */
template <class T, class E> DEV void
gemm_walk(unsigned char *smem, const unsigned short *act, const float *scale, const gemm_source *w, int n, const E &e)
{
	gemm_stages<T> stages(smem, act, w);
	constexpr int OUT = T::BN / GEMM_OUT_SHARE, TILES_N = (GEMM_ROWS + OUT - 1) / OUT;
	const int tiles_m = (n + T::BM - 1) / T::BM;

#pragma unroll 1
	for (int t = (int)blockIdx.x; t < tiles_m * TILES_N; t += (int)gridDim.x) {
		const int band = t / (8 * TILES_N), in = t - band * (8 * TILES_N);
		const int height = min(tiles_m - band * 8, 8);
		gemm_one<T>(stages, scale, (band * 8 + in % height) * T::BM, in / height * OUT, n, e);
	}
}

template <class E> DEV void
gemm_run(const unsigned short *act, const float *scale, const gemm_source *w, int n, const E &e)
{
	SHARED_BYTES(smem);
	constexpr int OUT = gemm_large::BN / GEMM_OUT_SHARE;
	const int large = (n + 127) / 128 * ((GEMM_ROWS + OUT - 1) / OUT);

	if (n <= 16)
		gemm_walk<gemm_small>(smem, act, scale, w, n, e);
	else if (n <= 64 || 2 * GEMM_BLOCKS * large <= (int)gridDim.x) /* large tiles for less than half of the multiprocessors */
		gemm_walk<gemm_middle>(smem, act, scale, w, n, e);
	else
		gemm_walk<gemm_large>(smem, act, scale, w, n, e);
}

#endif
