/* Copies weights of a tile to shared memory, by all threads. 16-bit elements are copied by
 * cp.async. Blocks are loaded to registers and unpacked to f16.
 *
 *     prefetch(to, k0)   issues the loads of columns [k0, k0 + BK)
 *     store(to)          completes them: unpacks what prefetch left in registers
 *
 * Columns past the matrix are set to zero. For rows past the matrix, any of its rows are copied;
 * their results are dropped. */
#ifndef LLMC_CUDA_GEMM_GEMM_WEIGHTS_H
#define LLMC_CUDA_GEMM_GEMM_WEIGHTS_H

#include "cuda/gemm/gemm_tile.h"

template <class G, class T, bool PACKED = G::W::PACKED> struct gemm_weights {
	static constexpr int PASS =
	    GEMM_THREADS / T::CHUNKS; /* number of rows that all threads together copy at a time */
	static_assert(PASS % T::WN == 0, "a thread's rows are equally far apart");
	const unsigned short *from;
	int r, c, left; /* first row and chunk; columns of y from that of row r to the last */

	__device__ __forceinline__
	gemm_weights(const w_matrix<typename G::W> &w, int n0)
	    : r((int)threadIdx.x / T::CHUNKS), c((int)threadIdx.x % T::CHUNKS)
	{
		const int n = n0 + gemm_column<G, T>(r);
		left = G::ROWS - n;
		from = (const unsigned short *)(w.w + (gemm_second<G, T>(r) ? w.half : 0)) +
		       (long long)n * G::COLS + c * 8;
	}

	__device__ __forceinline__ void
	prefetch(unsigned char *to, int k0)
	{
		to += gemm_chunk_offset<T>(r, c);
#pragma unroll
		for (int i = 0; i < (T::BN + PASS - 1) / PASS; i++) {
			const bool in = i * (PASS / G::SHARE) < left &&
			                (G::COLS % T::BK == 0 || k0 + c * 8 < G::COLS);
			if (T::BN % PASS == 0 || r + i * PASS < T::BN)
				cp_async_16_fill(to + i * PASS * T::BK * 2,
				                 from + k0 +
				                     (long long)i * (PASS / G::SHARE) * G::COLS,
				                 in ? 16 : 0);
		}
	}
	__device__ __forceinline__ void
	store(unsigned char *)
	{
	}
};

/* Units of 32 weights of a row; a thread handles one (W::tile, cuda/weights/weights.h) */
template <class G, class T> struct gemm_weights<G, T, true> {
	typedef typename G::W::tile W;
	static constexpr int IN_ROW = T::BK / 32, UNITS = T::BN * IN_ROW;
	static_assert(T::BK % 64 == 0 && UNITS <= GEMM_THREADS, "one unit per thread, in pairs");
	const unsigned char *row;
	/* r: row of the tile; u: unit within the stage; unit: unit within the row of the matrix */
	int r, u, unit;
	typename W::raw raw;

	__device__ __forceinline__
	gemm_weights(const w_matrix<typename G::W> &w, int n0)
	    : r((int)threadIdx.x / IN_ROW), u((int)threadIdx.x % IN_ROW), unit(0)
	{
		row = w.row(min(n0 + gemm_column<G, T>(r), G::ROWS - 1)) +
		      (gemm_second<G, T>(r) ? w.half : 0);
	}

	__device__ __forceinline__ bool
	in_range() const
	{
		return (UNITS == GEMM_THREADS || (int)threadIdx.x < UNITS) &&
		       (G::COLS % T::BK == 0 || unit < W::UNITS);
	}

	__device__ __forceinline__ void
	prefetch(unsigned char *, int k0)
	{
		unit = k0 / 32 + u;
		if (in_range())
			raw = W::load(row, unit, true);
	}

	__device__ __forceinline__ void
	store(unsigned char *to)
	{
		if (UNITS < GEMM_THREADS && (int)threadIdx.x >= UNITS)
			return;
#pragma unroll
		for (int c = 0; c < 4; c++)
			st_v4(to + gemm_chunk_offset<T>(r, W::column(u, 8 * c) / 8),
			      in_range() ? W::eight(raw, unit, c) : make_uint4(0, 0, 0, 0));
	}
};

#endif
