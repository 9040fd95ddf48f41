/* Mainloop of one tile of y = a w^T from shared memory, by mma.sync m16n8k16. This file also has
 * the configuration of a GEMM (gemm_config) and its operands (gemm_operands).
 *
 * Each result is one chain of sums in the order of k, 16 terms at a time, whatever the tile. So a
 * row's results depend neither on other rows nor on their number, and tiles of different shapes may
 * be mixed freely.
 *
 * A stage in shared memory is BM rows of activations, then BN rows of weights, BK 16-bit values
 * each. Chunks of 16 bytes are swizzled (gemm_chunk_offset) so that ldmatrix and the copies are
 * free of bank conflicts. bf16 weights are multiplied with bf16 activations, all others with f16.
 * */
#ifndef LLMC_CUDA_GEMM_GEMM_TILE_H
#define LLMC_CUDA_GEMM_GEMM_TILE_H

#include "cuda/ptx/tma.h"
#include "cuda/weights/weights.h"

enum { GEMM_THREADS = 256 };

/* Ways in which a GEMM fills its stages (gemm_stages): by all threads (cuda/gemm/gemm_cp_async.h),
 * by tensor maps (cuda/gemm/gemm_tma.h), or with bytes (cuda/gemm/gemm_int8.h,
 * cuda/gemm/gemm_fp8.h) */
enum { GEMM_CP_ASYNC, GEMM_TMA, GEMM_INT8, GEMM_FP8 };

/* BM x BN results by WARPS warps, with WM x WN results per warp (additional warps only copy), and
 * STAGES stages of BK columns in flight. */
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_> struct gemm_tile {
	static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
	static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N;
	static constexpr int MT = WM / 16, NT = WN / 8;
	static constexpr int CHUNKS = BK / 8; /* per row */
	static constexpr int A_BYTES = BM * BK * 2, STAGE_BYTES = (BM + BN) * BK * 2;
	static constexpr int BYTES = STAGES * STAGE_BYTES;
	static_assert(WARPS <= GEMM_THREADS / 32 && WM % 16 == 0 && WN % 16 == 0, "warps");
	static_assert(BK == 32 || BK == 64 || BK == 128, "the order of chunks is made for these");
};

/* Byte offset of chunk c of row r in a stage */
template <class T> DEV int
gemm_chunk_offset(int r, int c)
{
	return (r * T::CHUNKS + (T::BK == 32 ? c ^ (r >> 1 & 3) : c ^ (r & 7))) * 16;
}

/* Configuration of a GEMM with ROWS columns of y. SHARE 2: each column of y needs one row of both
 * halves of W, as in norm_glu.
 *
 * BLOCKS CTAs share an SM: with 48 KB each, two fit in 100 KB. Unpacked weights need columns in
 * multiples of 64. Blocks of 256 need so many registers that only one CTA fits an SM. On some GPUs
 * this holds for all weights that are unpacked, because 128 registers would make ptxas spill. */
template <class W_, int ROWS_, int ARCH_, int SHARE_ = 1> struct gemm_config {
	typedef W_ W;
	enum {
		ROWS = ROWS_,
		COLS = W::COLS,
		ARCH = ARCH_,
		SHARE = SHARE_,
		TMA = ARCH >= 100 && !W::PACKED,
		SOURCE = TMA ? GEMM_TMA : GEMM_CP_ASYNC,
		WIDE = ARCH == 80 || ARCH == 90 ||
		       ARCH == 100, /* GPUs with more than 100 KB of shared memory */
		BLOCKS = W::BLOCK == 256 || (W::PACKED && ARCH != 80 && ARCH != 90) ? 1 : 2,
		SHARED = W::BLOCK == 256 || (ARCH == 100 && !W::PACKED) ? 98304
		         : W::PACKED || WIDE                            ? 65536
		                                                        : 49152,
		MANY = ROWS >= 8192
	};
	typedef gemm_tile<16, W::PACKED || MANY ? 64 : 32, W::PACKED ? 128 : 64, 16, 16,
	                  W::PACKED ? 3
	                  : MANY    ? SHARED / 10240
	                            : 8>
	    small;
	typedef gemm_tile<64, 64, 64, 32, 16, W::PACKED ? 3 : SHARED / 16384> middle;
	typedef gemm_tile<128, 128, W::PACKED ? 64 : 32, 64, 32,
	                  SHARED / (W::PACKED ? 32768 : 16384)>
	    large;
	static_assert(small::BYTES <= SHARED && middle::BYTES <= SHARED && large::BYTES <= SHARED,
	              "shared memory");
};

#if __CUDA_ARCH__ < 900
struct tensor_map;
#endif

/* Operands of a GEMM.
 *
 *   act [n, COLS]   activations in 16 bits (cuda/gemm/quantize_act.h)
 *   scale [n]       factor of the results of each row; NULL: 1. Not used with bf16 weights.
 *   w               weights
 *   maps            tensor maps of w, then of act, for kernels that use them */
template <class W> struct gemm_operands {
	const unsigned short *act;
	const float *scale;
	w_matrix<W> w;
	int n;
	const tensor_map *maps;
	int row;
	__device__ __forceinline__ float
	factor(int m) const
	{
		return (W::BF16 || !scale ? 1.0f : scale[m]) * w.scale;
	}
};

/* Returns the column of y, relative to the tile's first, to which row r of a tile belongs, and
 * whether r is in the second half. With SHARE 2, half of a warp's rows are in the first half of the
 * matrix and half in the second, so a thread holds both values of one column of y. */
template <class G, class T> DEV int
gemm_column(int r)
{
	return G::SHARE == 2 ? r / T::WN * (T::WN / 2) + r % (T::WN / 2) : r;
}
template <class G, class T> DEV bool
gemm_second(int r)
{
	return G::SHARE == 2 && r % T::WN >= T::WN / 2;
}

/* Multiplies the stage and adds this warp's part of the result to acc. */
template <class W, class T> DEV void
gemm_multiply(const unsigned char *stage, int wm, int wn, float (&acc)[T::MT][T::NT][4])
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
			ldmatrix_x4(r, stage + T::A_BYTES + gemm_chunk_offset<T>(rb, 2 * kk + cb) +
			                   j * 8 * T::BK * 2);
			b[j][0] = r[0];
			b[j][1] = r[1];
			b[j + 1][0] = r[2];
			b[j + 1][1] = r[3];
		}
#pragma unroll
		for (int i = 0; i < T::MT; i++) {
			unsigned a[4];
			ldmatrix_x4(a, stage + gemm_chunk_offset<T>(ra, 2 * kk + ca) +
			                   i * 16 * T::BK * 2);
#pragma unroll
			for (int j = 0; j < T::NT; j++)
				w_mma<W>(acc[i][j], a, b[j]);
		}
	}
}

#endif
