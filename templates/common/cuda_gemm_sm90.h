/* y = a w^T for the rows of a mixed step on sm_90a: wgmma, fed by a ring of stages in shared memory. What is in cuda_gemm.h (weights,
 * epilogues, includer's names) holds here too; columns are a multiple of 64.
 *
 * A block has 16 warps and stays: 8 copy, 8 multiply; tiles of BM = 256 or 128 rows by 128 rows of the matrix, 64 columns a stage.
 *   activations  one thread's bulk copies: prep stores them in the order in which they stand in a stage (gemm90_act)
 *   weights      by all 256 copying threads: cp.async, or unpacked from registers
 *   products     two warpgroups, BM / 2 rows each, m64n128k16 from shared memory both sides; one stage's instructions run while the
 *                next stage's are issued
 * full[s] has 8 arrivals of the copying warps and one with the bytes of the bulk copies; empty[s] has 8 of the multiplying warps.
 *
 * Every result is one chain of sums over k, whatever the tile, so that a row depends neither on others nor on how many there are. Tiles
 * are walked in bands of 8 tiles of rows: what runs at one time shares both matrices in L2.
 *
 * Steps of at most GEMM90_FEW rows are left to a second kernel with the tiles of sm_80, which has more and smaller ones: their time is
 * that of the weights. With GEMM90_ALWAYS (deterministic) that one does nothing.
 *
 * H200, 4096 x 4096 x 4096: 48 KB a stage for 1024 cycles of products, so 48 bytes a cycle and multiprocessor out of L2. */
#ifndef LLMC_CUDA_GEMM_SM90_H
#define LLMC_CUDA_GEMM_SM90_H

#include "common/cuda_gemm.h"
#include "common/cuda_wgmma.h"

enum { GEMM90_BEHIND = 2 /* stages of cp.async on their way while the next is asked for */ };
enum { GEMM90_THREADS = 512, GEMM90_COPIERS = 256, GEMM90_SHARED = 197632, GEMM90_FEW = 64 };
static_assert(GEMM_COLS % 64 == 0, "whole stages");

typedef gemm_tile<256, 128, 64, 64, 128, 4> gemm90_large;
typedef gemm_tile<128, 128, 64, 64, 128, 6> gemm90_middle;

struct alignas(1024) gemm90_arena {
	unsigned char stage[196608];
	mbar_t        full[8], empty[8];
	int           n; /* copying warps have no register left for it */
};
static_assert(gemm90_large::BYTES <= 196608 && gemm90_middle::BYTES <= 196608 && sizeof(gemm90_arena) == GEMM90_SHARED, "shared memory");

#ifdef W_bf16
#define gemm90_mma wgmma_bf16_m64n128k16
#else
#define gemm90_mma wgmma_f16_m64n128k16
#endif

/* is this step too small for the big tiles? */
DEV bool
gemm90_few(int n)
{
#ifdef GEMM90_ALWAYS
	return false;
#else
	return n <= GEMM90_FEW;
#endif
}

/* Where prep puts a row: plainly for steps of few rows. Otherwise rows in groups of 64 (the last one of what is left), each group in pieces of
 * 64 columns, a piece as it stands in shared memory: rows of 128 bytes whose 16-byte chunks are xored with the row. */
struct gemm90_act {
	unsigned char *at;
	int            piece, flip;

	__device__ __forceinline__ gemm90_act(void *act, int t, int n)
	{
		const int group = t / 64, in = t % 64;

		piece = gemm90_few(n) ? 0 : min(64, n - group * 64) * 128;
		flip = (t & 7) * 16;
		at = (unsigned char *)act + (piece ? (long long)group * 64 * GEMM_COLS * 2 + in * 128 : (long long)t * GEMM_COLS * 2);
	}
	__device__ __forceinline__ void *
	operator+(int k) const
	{
		return piece ? at + (long long)(k / 64) * piece + (k % 64 * 2 ^ flip) : at + k * 2;
	}
};

/* tile t of the walk */
template <class T> DEV void
gemm90_tile(int t, int tiles_m, int &m0, int &n0)
{
	constexpr int OUT = T::BN / GEMM_OUT_SHARE, TILES_N = (GEMM_ROWS + OUT - 1) / OUT;
	const int band = t / (8 * TILES_N), in = t - band * (8 * TILES_N), height = min(tiles_m - band * 8, 8);

	m0 = (band * 8 + in % height) * T::BM;
	n0 = in / height * OUT;
}

template <class T> DEV int
gemm90_tiles(int n)
{
	constexpr int OUT = T::BN / GEMM_OUT_SHARE;

	return (n + T::BM - 1) / T::BM * ((GEMM_ROWS + OUT - 1) / OUT);
}

DEV void
gemm90_filled(mbar_t *full)
{
	fence_proxy_async();
	__syncwarp();
	if (lane_id() == 0)
		mbar_arrive(full);
}

#if !W_PLANES
/* A thread's part of the 16-bit weights of a tile: chunk c of rows r, r + 32, r + 64, r + 96. Paired, the last two are rows of the second half
 * of the matrix. Rows past the matrix are zeros. */
struct gemm90_weights {
	const unsigned short *from;
	int                   r, left;

	__device__ __forceinline__ gemm90_weights(const void *w, int n0) : r((int)threadIdx.x / 8), left(GEMM_ROWS - n0 - r)
	{
		from = (const unsigned short *)w + (long long)(n0 + r) * GEMM_COLS + threadIdx.x % 8 * 8;
	}
	__device__ __forceinline__ void
	fetch(unsigned char *to, int k0) const
	{
		to += r * 128 + ((threadIdx.x ^ r) & 7) * 16;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			constexpr int N = 4 / GEMM_OUT_SHARE;
			const bool in = i % N * 32 < left;
			cp_async_16_fill(to + i * 4096, from + (in ? (long long)(i % N * 32 + i / N * GEMM_ROWS) * GEMM_COLS + k0 : (long long)-r * GEMM_COLS), in ? 16 : 0);
		}
	}
};
#else
#define gemm90_weights gemm_weights<T>
#endif

/* The copying warps. */
template <class T> DEV void
gemm90_copy(gemm90_arena &s, const unsigned short *act, const void *w)
{
	constexpr int STEPS = GEMM_COLS / 64;
	int it = 0;

#pragma unroll 1
	for (int t = (int)blockIdx.x; t < gemm90_tiles<T>(s.n); t += (int)gridDim.x) {
		int m0, n0;
		gemm90_tile<T>(t, (s.n + T::BM - 1) / T::BM, m0, n0);
		gemm90_weights weights(w, n0);
#if W_PLANES
		weights.fetch(0, 0);
#endif
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			unsigned char *stage = s.stage + at * T::STAGE_BYTES;
			mbar_wait(&s.empty[at], (it / T::STAGES & 1) ^ 1);
			if (threadIdx.x == 0) {
				const int n = s.n;
				mbar_arrive_expect(&s.full[at], (unsigned)min(T::BM, n - m0) * 128);
#pragma unroll
				for (int i = 0; i < T::BM / 64; i++) {
					const int m = m0 + i * 64, rows = min(64, n - m);
					if (rows > 0)
						bulk_load(stage + i * 8192, (const unsigned char *)act + (long long)m * GEMM_COLS * 2 + (long long)step * rows * 128, rows * 128, &s.full[at]);
				}
			}
#if W_PLANES
			gemm90_weights now = weights;
			if (step + 1 < STEPS)
				weights.fetch(0, (step + 1) * 64);
			now.put(stage + T::A_BYTES);
			gemm90_filled(&s.full[at]);
#else
			weights.fetch(stage + T::A_BYTES, step * 64);
			cp_async_commit();
			if (it >= GEMM90_BEHIND) {
				cp_async_wait<GEMM90_BEHIND>();
				gemm90_filled(&s.full[(it - GEMM90_BEHIND) % T::STAGES]);
			}
#endif
		}
	}
#if !W_PLANES
	cp_async_wait_all();
	for (int i = max(it - GEMM90_BEHIND, 0); i < it; i++)
		gemm90_filled(&s.full[i % T::STAGES]);
#endif
}

/* The multiplying warps. */
template <class T, class E> DEV void
gemm90_multiply(gemm90_arena &s, const float *scale, int n, const E &e)
{
	constexpr int STEPS = GEMM_COLS / 64, MT = T::BM / 128;
	constexpr int PARTS = W_PLANES ? 2 : 1, N_OUT = 16 / GEMM_OUT_SHARE / PARTS; /* unpacking leaves fewer registers here */
	const int tiles_m = (n + T::BM - 1) / T::BM, tiles = gemm90_tiles<T>(n);
	const int lane = (int)lane_id(), warp = (int)warp_id() - GEMM90_COPIERS / 32, group = warp / 4;
	int it = 0;

#pragma unroll 1
	for (int t = (int)blockIdx.x; t < tiles; t += (int)gridDim.x) {
		float acc[MT][64];
		int m0, n0;
		gemm90_tile<T>(t, tiles_m, m0, n0);
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			const unsigned char *stage = s.stage + at * T::STAGE_BYTES;
			const unsigned long long a = smem_desc(stage + group * MT * 8192, 16, 1024, 128), b = smem_desc(stage + T::A_BYTES, 16, 1024, 128);
			mbar_wait(&s.full[at], it / T::STAGES & 1);
			wgmma_fence();
#pragma unroll
			for (int k = 0; k < 4; k++)
#pragma unroll
				for (int i = 0; i < MT; i++)
					gemm90_mma(acc[i], a + i * 512 + k * 2, b + k * 2, step > 0 || k > 0);
			wgmma_commit();
			wgmma_wait<1>();
			if (step > 0 && lane == 0)
				mbar_arrive(&s.empty[(it - 1) % T::STAGES]);
		}
		wgmma_wait<0>();
#pragma unroll
		for (int i = 0; i < MT; i++)
			wgmma_pin(acc[i]);
		if (lane == 0)
			mbar_arrive(&s.empty[(it - 1) % T::STAGES]);
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int m = m0 + (group * MT + i) * 64 + warp % 4 * 16 + half * 8 + (lane >> 2);
				if (m >= n)
					continue;
				const float f = scale ? scale[m] : 1.0f;
#pragma unroll
				for (int part = 0; part < PARTS; part++) {
					float v[N_OUT][2], u[N_OUT][2];
#pragma unroll
					for (int j = 0; j < N_OUT; j++)
#pragma unroll
						for (int c = 0; c < 2; c++) {
							const int at = 4 * (part * N_OUT + j) + 2 * half + c;
							v[j][c] = acc[i][at] * f;
							u[j][c] = acc[i][at + 64 - 64 / GEMM_OUT_SHARE] * f;
						}
					e.take(m, n0 + part * N_OUT * 8 + (lane & 3) * 2, v, u);
				}
			}
	}
}

template <class T> DEV void
gemm90_begin(gemm90_arena &s, int n)
{
	if (threadIdx.x == 0)
		s.n = n;
	if (threadIdx.x < T::STAGES) {
		mbar_init(&s.full[threadIdx.x], 9);
		mbar_init(&s.empty[threadIdx.x], 8);
	}
	if (n % T::BM) /* rows that no copy brings are multiplied too */
		for (int i = (int)threadIdx.x; i < T::BYTES / 16; i += GEMM90_THREADS)
			if (i * 16 % T::STAGE_BYTES < T::A_BYTES)
				st_v4(s.stage + i * 16, make_uint4(0, 0, 0, 0));
	fence_proxy_async();
	__syncthreads();
}

/* Larger tiles need fewer bytes for the same products (by a sixth of the time, as measured elsewhere), smaller ones leave fewer
 * multiprocessors idle in the last round. */
DEV bool
gemm90_is_large(int n)
{
	const int g = (int)gridDim.x, large = (gemm90_tiles<gemm90_large>(n) + g - 1) / g, middle = (gemm90_tiles<gemm90_middle>(n) + g - 1) / g;

	return 12 * large <= 7 * middle;
}

template <class E> DEV void
gemm90_run(const unsigned short *act, const float *scale, const void *w, int n, const E &e)
{
	SHARED_ARENA(gemm90_arena, s);

	if (gemm90_few(n))
		return;
	const bool large = gemm90_is_large(n);
	if (large)
		gemm90_begin<gemm90_large>(s, n);
	else
		gemm90_begin<gemm90_middle>(s, n);
	if (threadIdx.x < GEMM90_COPIERS) {
		reg_dec<(W_PLANES ? 72 : 40)>();
		if (large)
			gemm90_copy<gemm90_large>(s, act, w);
		else
			gemm90_copy<gemm90_middle>(s, act, w);
	} else {
		reg_inc<(W_PLANES ? 184 : 216)>();
		if (large)
			gemm90_multiply<gemm90_large>(s, scale, n, e);
		else
			gemm90_multiply<gemm90_middle>(s, scale, n, e);
	}
}

/* The other kernel: two blocks of 256 threads a multiprocessor. */
template <class E> DEV void
gemm90_run_few(const unsigned short *act, const float *scale, const void *w, int n, const E &e)
{
	SHARED_BYTES(smem);

	if (!gemm90_few(n))
		return;
	if (n <= 16)
		gemm_walk<gemm_small>(smem, act, scale, w, n, e);
	else
		gemm_walk<gemm_middle>(smem, act, scale, w, n, e);
}

#endif
