/* y = a w^T for the rows of a mixed step on sm_90a: wgmma, fed by a ring of stages in shared memory. What is in cuda_gemm.h (weights,
 * epilogues, includer's names) holds here too; columns are a multiple of 64.
 *
 * Two blocks on neighbouring multiprocessors (a cluster) work on neighbouring tiles and bring what both need once: each asks for its half,
 * and the copy unit puts it into both (multicast). Blocks stay; in each
 *   activations  one thread's bulk copies: prep stores them in the order in which they stand in a stage (gemm90_act)
 *   weights      16 bits: by the same thread, through a tensor map; others: unpacked from registers by all 8 copying warps
 *   products     two warpgroups, half of the tile's rows each, both operands from shared memory, 64 columns a stage; one stage's instructions run
 *                while the next stage's are issued
 * full[s] has an arrival with the bytes of the copies, whichever block they come from, and 8 of the warps that unpack. empty[s] has 8 of the
 * multiplying warps of each block, since the copies of one block write into the other.
 *
 * Arithmetic, by stages; a multiprocessor multiplies 128 x 256 x 64 in 1024 cycles, reads 128 bytes a cycle of shared memory and gets 25 to 32
 * out of L2 when all ask (measured):
 *   tile          blocks share   bytes out of L2          a cycle   shared memory, read + filled, a cycle
 *   256 x 128     nothing        32 K + 16 K              48        96 + 48
 *   128 x 256     weights        16 K + 32 K / 2          32        80 + 48   16-bit weights, large
 *   256 x 128     activations    32 K / 2 + 4.6 to 8.7 K  20 - 24   96 + 48   others, large
 *   128 x 128     activations    16 K / 2 + 16 K          48        96 + 64   middle (512 cycles)
 *   128 x 32      activations    16 K / 2 + 4 K           96        192 + 160 small (128 cycles; 440 for L2), 16-bit weights
 * A warpgroup's m64n256k16 reads 2 + 8 KB in 128 cycles, two m64n128k16 4 + 8 KB: so 16-bit weights have the wide tile. Unpacking is 6 to 7
 * instructions a weight, 380 to 450 of 1024 issue slots that nobody else wants (of 512 in the middle tile). Halves of unpacked weights could go to
 * the other block through distributed shared memory, but then both need the same columns and all of their activations: 36 KB out of L2.
 *
 * Results leave by the threads that hold them, 4096 x 4096 of them (64 MB) beside 64 x 1024 cycles of products a tile. Pairs of columns would be 64
 * stores a thread, 8 lines each: 4096 cycles. Lanes exchange first (gemm90_fours): 32 stores and 64 shuffles, 2560 cycles, 4 %; the ring fills
 * meanwhile. Through shared memory it is 2 x 1024 cycles of what the products want, 32 KB at a time beside the ring, so no sooner over.
 * Warpgroups in turns on tiles of their own (64 x 256) would hide all of it but want 48 bytes a cycle out of L2. What is added to the
 * results (64 MB more) is asked for while the products run (soon).
 *
 * Every result is one chain of sums over k, whatever the tile, so that a row depends neither on others nor on how many there are. Tiles
 * are walked in bands of 8 tiles of rows: what runs at one time shares both matrices in L2. A block without rows or columns of its own (an odd
 * number of tiles) does its part of the copies all the same.
 *
 * With weights to unpack, steps of at most GEMM90_FEW rows are left to a second kernel with the tiles of sm_80, which has more warps to unpack them;
 * not with GEMM90_ALWAYS (deterministic). Not measured on a GPU yet. */
#ifndef LLMC_CUDA_GEMM_SM90_H
#define LLMC_CUDA_GEMM_SM90_H

#include "common/cuda_gemm.h"
#include "common/cuda_wgmma.h"

/* 16-bit weights: one thread copies, and a warpgroup goes with it. Others are unpacked by two. */
enum { GEMM90_COPIERS = W_PLANES ? 256 : 128, GEMM90_THREADS = GEMM90_COPIERS + 256, GEMM90_SHARED = 197632 };
static_assert(GEMM_COLS % 64 == 0, "whole stages");
#if W_PLANES && !defined(GEMM90_ALWAYS)
#define GEMM90_FEW 64
#endif

/* The tile of each of two blocks. SHARE_A: they have the same rows and neighbouring columns; otherwise the same columns and neighbouring rows. */
template <int BM, int BN, int STAGES, bool SHARE_A_> struct gemm90_tile : gemm_tile<BM, BN, 64, 64, BN, STAGES> {
	static constexpr bool SHARE_A = SHARE_A_;
	static constexpr int  OUT = BN / GEMM_OUT_SHARE;                                       /* columns of y */
	static constexpr int  BOTH_M = SHARE_A ? BM : 2 * BM, BOTH_N = SHARE_A ? 2 * OUT : OUT; /* of the two blocks together */
	static constexpr int  TILES_N = (GEMM_ROWS + BOTH_N - 1) / BOTH_N;
	static constexpr int  MAP = BN < 128, BOX = MAP ? 32 / GEMM_OUT_SHARE : 64; /* which tensor map, rows of its box */
};
#if W_PLANES
typedef gemm90_tile<256, 128, 4, true>  gemm90_large;
#else
typedef gemm90_tile<128, 256, 4, false> gemm90_large;
#endif
typedef gemm90_tile<128, 128, 6, true>  gemm90_middle;
typedef gemm90_tile<128, 32, 8, true>   gemm90_small;

struct alignas(1024) gemm90_arena {
	unsigned char stage[196608];
	mbar_t        full[8], empty[8];
	int           n; /* copying warps have no register left for it */
};
static_assert(gemm90_large::BYTES <= 196608 && gemm90_middle::BYTES <= 196608 && gemm90_small::BYTES <= 196608, "stages");
static_assert(sizeof(gemm90_arena) == GEMM90_SHARED, "shared memory");

#ifdef W_bf16
#define GEMM90_MMA(n) wgmma_bf16_m64n##n##k16
#else
#define GEMM90_MMA(n) wgmma_f16_m64n##n##k16
#endif
DEV void gemm90_mma(float (&d)[16], unsigned long long a, unsigned long long b, int acc) { GEMM90_MMA(32)(d, a, b, acc); }
DEV void gemm90_mma(float (&d)[64], unsigned long long a, unsigned long long b, int acc) { GEMM90_MMA(128)(d, a, b, acc); }
DEV void gemm90_mma(float (&d)[128], unsigned long long a, unsigned long long b, int acc) { GEMM90_MMA(256)(d, a, b, acc); }

/* is this step too small for the big tiles? */
DEV bool
gemm90_few(int n)
{
#ifdef GEMM90_FEW
	return n <= GEMM90_FEW;
#else
	return false;
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

/* pairs of tiles */
template <class T> DEV int gemm90_pairs(int n) { return (n + T::BOTH_M - 1) / T::BOTH_M * T::TILES_N; }

/* this block's tile of pair t of the walk */
template <class T> DEV void
gemm90_at(int t, int n, int rank, int &m0, int &n0)
{
	const int pairs_m = (n + T::BOTH_M - 1) / T::BOTH_M;
	const int band = t / (8 * T::TILES_N), in = t - band * (8 * T::TILES_N), height = min(pairs_m - band * 8, 8);

	m0 = (band * 8 + in % height) * T::BOTH_M + (T::SHARE_A ? 0 : rank * T::BM);
	n0 = in / height * T::BOTH_N + (T::SHARE_A ? rank * T::OUT : 0);
}

DEV void
gemm90_filled(mbar_t *full)
{
	fence_proxy_async();
	__syncwarp();
	if (lane_id() == 0)
		mbar_arrive(full);
}

/* One thread's part of the stages of a tile: this block's half of what both share goes to both. */
template <class T> struct gemm90_copies {
	static constexpr int A = T::BM / 64 / (T::SHARE_A ? 2 : 1), B = T::BN / T::BOX / (T::SHARE_A ? 1 : 2);
	const unsigned char *from[A]; /* pieces of 64 rows, or of what is left: the next one follows */
	int                  bytes[A], all, n0, rank;

	__device__ __forceinline__ gemm90_copies(const unsigned short *act, int m0, int n0, int n, int rank) : n0(n0), rank(rank)
	{
		const int rows = max(min(T::BM, n - m0), 0);

		all = (rows + (W_PLANES ? 0 : T::BN)) * 128;
#pragma unroll
		for (int i = 0; i < A; i++) {
			const int r = (T::SHARE_A ? rank * A + i : i) * 64;
			from[i] = (const unsigned char *)act + (long long)(m0 + r) * GEMM_COLS * 2;
			bytes[i] = max(min(64, rows - r), 0) * 128;
		}
	}
	__device__ __forceinline__ void
	bring(unsigned char *stage, mbar_t *full, const tensor_map *w, int step)
	{
		mbar_arrive_expect(full, (unsigned)all);
#pragma unroll
		for (int i = 0; i < A; i++) {
			unsigned char *to = stage + (T::SHARE_A ? rank * A + i : i) * 8192;
			if (bytes[i] && T::SHARE_A)
				bulk_load_multicast(to, from[i], (unsigned)bytes[i], full, 3);
			if (bytes[i] && !T::SHARE_A)
				bulk_load(to, from[i], (unsigned)bytes[i], full);
			from[i] += bytes[i];
		}
#if !W_PLANES
#pragma unroll
		for (int i = 0; i < B; i++) {
			const int r = (T::SHARE_A ? i : rank * B + i) * T::BOX, row = n0 + (r < T::OUT ? r : r - T::OUT + GEMM_ROWS);
			if (T::SHARE_A)
				tensor_load_2d(stage + T::A_BYTES + r * 128, w + T::MAP, step * 64, row, full);
			else
				tensor_load_2d_multicast(stage + T::A_BYTES + r * 128, w + T::MAP, step * 64, row, full, 3);
		}
#endif
	}
};

/* The copying warps; of 16-bit weights, one thread. */
template <class T, class E> DEV void
gemm90_copy(gemm90_arena &s, const unsigned short *act, const void *w, const tensor_map *map, const E &e)
{
	constexpr int STEPS = GEMM_COLS / 64;
	const int rank = (int)cluster_rank();
	int it = 0;

	if (!W_PLANES && threadIdx.x)
		return;
#pragma unroll 1
	for (int t = (int)blockIdx.x / 2; t < gemm90_pairs<T>(s.n); t += (int)gridDim.x / 2) {
		int m0, n0;
		gemm90_at<T>(t, s.n, rank, m0, n0);
		gemm90_copies<T> copies(act, m0, n0, s.n, rank);
		const int rows = min(T::BM, s.n - m0);
#if W_PLANES
		gemm_weights<T> weights(w, n0);
		weights.fetch(0, 0);
#endif
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			unsigned char *stage = s.stage + at * T::STAGE_BYTES;
			mbar_wait(&s.empty[at], (it / T::STAGES & 1) ^ 1);
			if (threadIdx.x == 0) {
				copies.bring(stage, &s.full[at], map, step);
				for (int r = step; r < rows; r += STEPS)
					e.template soon<T::OUT>(m0 + r, n0);
			}
#if W_PLANES
			gemm_weights<T> now = weights;
			if (step + 1 < STEPS)
				weights.fetch(0, (step + 1) * 64);
			now.put(stage + T::A_BYTES);
			gemm90_filled(&s.full[at]);
#endif
		}
	}
}

/* Lanes of four hold columns 2 q and 2 q + 1 of every eight. Of two eights, even lanes get four neighbouring columns of the first and odd ones
 * of the second: stores of 64 bytes in a row instead of 32. */
template <int N> DEV void
gemm90_fours(const float (&v)[2 * N][2], float (&to)[N][4])
{
	const bool odd = threadIdx.x & 1;

#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			const float keep = odd ? v[2 * j + 1][c] : v[2 * j][c];
			const float got = __shfl_xor_sync(0xffffffffu, odd ? v[2 * j][c] : v[2 * j + 1][c], 1);
			to[j][c] = odd ? got : keep;
			to[j][2 + c] = odd ? keep : got;
		}
}

/* The multiplying warps. */
template <class T, class E> DEV void
gemm90_multiply(gemm90_arena &s, const float *scale, int n, const E &e)
{
	constexpr int STEPS = GEMM_COLS / 64, MT = T::BM / 128;
	constexpr int EIGHTS = T::OUT / 8 < 8 / GEMM_OUT_SHARE ? T::OUT / 8 : 8 / GEMM_OUT_SHARE; /* that end at one time: registers */
	const int lane = (int)lane_id(), warp = (int)warp_id() - GEMM90_COPIERS / 32, group = warp / 4, rank = (int)cluster_rank();
	int it = 0;

#pragma unroll 1
	for (int t = (int)blockIdx.x / 2; t < gemm90_pairs<T>(n); t += (int)gridDim.x / 2) {
		float acc[MT][T::BN / 2];
		int m0, n0;
		gemm90_at<T>(t, n, rank, m0, n0);
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
			if (step > 0 && lane < 2)
				mbar_arrive_cluster(&s.empty[(it - 1) % T::STAGES], lane);
		}
		wgmma_wait<0>();
#pragma unroll
		for (int i = 0; i < MT; i++)
			wgmma_pin(acc[i]);
		if (lane < 2)
			mbar_arrive_cluster(&s.empty[(it - 1) % T::STAGES], lane);
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int m = m0 + (group * MT + i) * 64 + warp % 4 * 16 + half * 8 + (lane >> 2);
				const float f = scale && m < n ? scale[m] : 1.0f;
#pragma unroll
				for (int first = 0; first < T::OUT / 8; first += EIGHTS) {
					float v[EIGHTS][2], u[EIGHTS][2], v4[EIGHTS / 2][4], u4[EIGHTS / 2][4];
#pragma unroll
					for (int j = 0; j < EIGHTS; j++)
#pragma unroll
						for (int c = 0; c < 2; c++) {
							const int at = 4 * (first + j) + 2 * half + c;
							v[j][c] = acc[i][at] * f;
							u[j][c] = acc[i][at + (T::BN - T::OUT) / 2] * f;
						}
					gemm90_fours(v, v4);
					if (GEMM_OUT_SHARE == 2)
						gemm90_fours(u, u4);
					if (m < n)
						e.take(m, n0 + (first + (lane & 1)) * 8 + (lane & 2) * 2, v4, u4);
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
		mbar_init(&s.full[threadIdx.x], W_PLANES ? 9 : 1);
		mbar_init(&s.empty[threadIdx.x], 16);
	}
	if (n % T::BOTH_M) /* rows that no copy brings are multiplied too */
		for (int i = (int)threadIdx.x; i < T::BYTES / 16; i += GEMM90_THREADS)
			if (i * 16 % T::STAGE_BYTES < T::A_BYTES)
				st_v4(s.stage + i * 16, make_uint4(0, 0, 0, 0));
	fence_proxy_async();
	cluster_sync();
}

/* Which tiles: rounds, times a stage at 28 bytes a cycle out of L2 (1170, 860, 440 cycles; with weights to unpack 1024 and 590). Small ones are
 * for what would leave most multiprocessors idle: 128 rows, 4096 columns are 32 middle tiles and 128 small ones. */
enum { GEMM90_LARGE, GEMM90_MIDDLE, GEMM90_SMALL };

DEV int
gemm90_kind(int n)
{
	const int g = (int)gridDim.x / 2;
	const int large = (gemm90_pairs<gemm90_large>(n) + g - 1) / g * (W_PLANES ? 102 : 117);
	const int middle = (gemm90_pairs<gemm90_middle>(n) + g - 1) / g * (W_PLANES ? 59 : 86);
	const int small = (gemm90_pairs<gemm90_small>(n) + g - 1) / g * 44;

	if (!W_PLANES && small < min(large, middle))
		return GEMM90_SMALL;
	return large <= middle ? GEMM90_LARGE : GEMM90_MIDDLE;
}

/* map: of the weights, by boxes of 64 columns and 64 rows, then 32, or 16 of paired halves */
template <class E> DEV void
gemm90_run(const unsigned short *act, const float *scale, const void *w, const tensor_map *map, int n, const E &e)
{
	SHARED_ARENA(gemm90_arena, s);

	if (gemm90_few(n))
		return;
	const int kind = gemm90_kind(n);
	if (!W_PLANES && threadIdx.x == 0)
		tensor_prefetch(map + (kind == GEMM90_SMALL));
	if (kind == GEMM90_LARGE)
		gemm90_begin<gemm90_large>(s, n);
	else if (W_PLANES || kind == GEMM90_MIDDLE)
		gemm90_begin<gemm90_middle>(s, n);
	else
		gemm90_begin<gemm90_small>(s, n);
	if (threadIdx.x < GEMM90_COPIERS) {
		reg_dec<(W_PLANES ? 72 : 40)>();
		if (kind == GEMM90_LARGE)
			gemm90_copy<gemm90_large>(s, act, w, map, e);
		else if (W_PLANES || kind == GEMM90_MIDDLE)
			gemm90_copy<gemm90_middle>(s, act, w, map, e);
		else
			gemm90_copy<gemm90_small>(s, act, w, map, e);
	} else {
		reg_inc<(W_PLANES ? 184 : 232)>();
		if (kind == GEMM90_LARGE)
			gemm90_multiply<gemm90_large>(s, scale, n, e);
		else if (W_PLANES || kind == GEMM90_MIDDLE)
			gemm90_multiply<gemm90_middle>(s, scale, n, e);
		else
			gemm90_multiply<gemm90_small>(s, scale, n, e);
	}
	__syncwarp();
	cluster_sync(); /* the other block still arrives at barriers of this one */
}

/* The other kernel, where there is one: two blocks of 256 threads a multiprocessor. */
template <class E> DEV void
gemm90_run_few(const unsigned short *act, const float *scale, const void *w, int n, const E &e)
{
#ifdef GEMM90_FEW
	SHARED_BYTES(smem);

	if (n <= 16)
		gemm_walk<gemm_small>(smem, act, scale, w, n, e);
	else if (n <= GEMM90_FEW)
		gemm_walk<gemm_middle>(smem, act, scale, w, n, e);
#endif
}

#endif
