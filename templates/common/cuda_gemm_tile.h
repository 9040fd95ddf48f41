/* The inner part of a matrix product on tensor cores: one tile of y = a w^T from shared memory, by mma.sync m16n8k16.
 *
 * Every result is one chain of sums in the order of k, 16 terms at a time, whatever the tile: so a row's results depend neither on
 * the other rows nor on how many there are, and tiles of different shapes may be mixed freely.
 *
 * In shared memory a stage is BM rows of activations, then BN rows of weights, BK 16-bit values each, in chunks of 16 bytes
 * whose place is changed (`gemm_place`) so that ldmatrix and the copies meet no bank twice.
 *
 * The includer defines W_<dtype>; bf16 weights meet bf16 activations, all others f16. */
#ifndef LLMC_CUDA_GEMM_TILE_H
#define LLMC_CUDA_GEMM_TILE_H

#include "common/cuda_math.h"

#ifdef W_bf16
#define gemm_mma  mma_bf16_m16n8k16
#define gemm_pack pack_bf16
#else
#define gemm_mma  mma_f16_m16n8k16
#define gemm_pack pack_f16
#endif

enum { GEMM_THREADS = 256 };

/* BM x BN results by WARPS warps (further ones only copy), WM x WN each; STAGES of BK columns in flight. */
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_> struct gemm_tile {
	static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
	static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N;
	static constexpr int MT = WM / 16, NT = WN / 8;
	static constexpr int CHUNKS = BK / 8;                    /* of a row */
	static constexpr int A_BYTES = BM * BK * 2, STAGE_BYTES = (BM + BN) * BK * 2;
	static constexpr int BYTES = STAGES * STAGE_BYTES;
	static_assert(WARPS <= GEMM_THREADS / 32 && WM % 16 == 0 && WN % 16 == 0, "warps");
	static_assert(BK == 32 || BK == 64 || BK == 128, "the order of chunks is made for these");
};

/* Where chunk c of row r stands. */
template <class T> DEV int
gemm_place(int r, int c)
{
	return (r * T::CHUNKS + (T::BK == 32 ? c ^ (r >> 1 & 3) : c ^ (r & 7))) * 16;
}

/* acc += the stage's product, for this warp */
template <class T> DEV void
gemm_stage(const unsigned char *stage, int wm, int wn, float (&acc)[T::MT][T::NT][4])
{
	const int lane = (int)lane_id();
	const int ra = wm * T::WM + (lane & 15), ca = lane >> 4;
	const int rb = wn * T::WN + (lane & 7) + (lane >> 4 << 3), cb = lane >> 3 & 1;

#pragma unroll
	for (int kk = 0; kk < T::BK / 16; kk++) {
		unsigned b[T::NT][2];
#pragma unroll
		for (int j = 0; j < T::NT; j += 2) {
			unsigned r[4];
			ldmatrix_x4(r, stage + T::A_BYTES + gemm_place<T>(rb, 2 * kk + cb) + j * 8 * T::BK * 2);
			b[j][0] = r[0];
			b[j][1] = r[1];
			b[j + 1][0] = r[2];
			b[j + 1][1] = r[3];
		}
#pragma unroll
		for (int i = 0; i < T::MT; i++) {
			unsigned a[4];
			ldmatrix_x4(a, stage + gemm_place<T>(ra, 2 * kk + ca) + i * 16 * T::BK * 2);
#pragma unroll
			for (int j = 0; j < T::NT; j++)
				gemm_mma(acc[i][j], a, b[j], acc[i][j]);
		}
	}
}

#endif
