/* y = a w^T for the rows of a mixed step on sm_90a, by wgmma from a ring of stages in shared
 * memory. Operands and epilogues are those of cuda/gemm/gemm.h; columns must be a multiple of 64.
 *
 *   a cluster of two CTAs, one tile of results each; 64 columns per stage:
 *     producer warps (4, or 8 that unpack)          consumer warpgroups (2, half of the rows each)
 *       wait empty[s]                                 wait full[s]
 *       thread 0: expect bytes; bulk copies of        wgmma of stage s, both operands from
 *         activations, TMA of 16-bit weights;           shared memory; commit
 *         each CTA multicasts half of what            wait for the wgmma of stage s - 1
 *         both need                                   arrive at empty[s - 1] of both CTAs
 *       all: unpack blocks from registers,            after the last stage: exchange pairs,
 *         st.shared, arrive at full[s];                 epilogue; producers fill the stages of
 *         prefetch s + 1                                the next tile meanwhile
 *
 * quantize_act stores activations in the order that a stage has them (gemm90_act). With ROW_MAJOR
 * they stay as the previous kernel stored them, and the tensor map's swizzle brings them into this
 * order. In a box of 64 rows, rows past the last one hold undefined values, and their results are
 * dropped.
 *
 * full[s] expects one arrival with the bytes of all copies, whichever CTA issued them, and 8
 * arrivals of warps that unpack. empty[s] expects 8 consumer warps of each CTA, because the copies
 * of one CTA also write into the shared memory of the other.
 *
 * A consumer warp issues 70 to 80 instructions per stage, of which 4 are wgmma (8 with two
 * 128-column ones). Computed per stage: an SM multiplies 128 x 256 x 64 in 1024 cycles, reads 128
 * bytes per cycle of shared memory, and gets 25 to 32 bytes per cycle from L2 when all SMs load
 * (measured):
 *
 *   tile        CTAs share    bytes from L2            per cycle  shared, read + fill, per cycle
 *   256 x 128   nothing       32 K + 16 K              48         96 + 48
 *   128 x 256   weights       16 K + 32 K / 2          32         80 + 48   16-bit weights, large
 *   256 x 128   activations   32 K / 2 + 4.6 to 8.7 K  20 - 24    96 + 48   others, large
 *   128 x 128   activations   16 K / 2 + 16 K          48         96 + 64   middle (512 cycles)
 *   128 x 32    activations   16 K / 2 + 4 K           96         192 + 160 small (128; L2: 440)
 *
 * A warpgroup's m64n256k16 reads 2 + 8 KB in 128 cycles, two m64n128k16 read 4 + 8 KB, so 16-bit
 * weights use the tile that is 256 wide. Unpacking takes 6 to 7 instructions per weight: 380 to 450
 * issue slots of 1024 that are otherwise idle (of 512 with the middle tile). CTAs could instead
 * exchange halves of unpacked weights through distributed shared memory. But then both would need
 * the same columns of weights, and each would load all its activations: 36 KB from L2.
 *
 * Stores. The threads that hold results store them. For 4096 x 4096 results (64 MB) with 4096
 * columns of a, the matmul of a tile takes 64 x 1024 cycles. If each lane stored pairs of columns,
 * a thread would issue 64 stores of 8 lines each: 4096 cycles. Lanes therefore exchange first
 * (gemm90_quad_exchange). The tile then takes 32 stores and 64 shuffles: 2560 cycles (4 %), during
 * which producers fill the ring. Three alternatives are not better:
 *
 *   - Through shared memory, stores would take 2 x 1024 cycles of the bandwidth that the matmul
 *     needs, 32 KB at a time because of the ring, so they would not end sooner.
 *   - Warpgroups that alternate on tiles of their own (64 x 256) would hide all stores, but need 48
 *     bytes per cycle from L2.
 *   - Delaying one warpgroup by one or two stages would hide a fifth to two fifths of the stores.
 * But then one or two of the four stages could not be filled ahead, at 1000 cycles of latency each.
 *
 * The residual (64 MB more) is prefetched during the mainloop.
 *
 * Each result is one chain of sums over K, whatever the tile, so a row depends neither on other
 * rows nor on their number. The tile scheduler uses bands of 8 tiles along M: CTAs that run at the
 * same time share both matrices in L2. If the number of tiles is odd, the last pair has a CTA
 * without rows or columns; that CTA still does its part of the copies.
 *
 * Steps of at most 64 rows run cuda/gemm/gemm_swap_ab.h. Measured on an H100: docs/results.md. */
#ifndef LLMC_CUDA_GEMM_GEMM_SM90_H
#define LLMC_CUDA_GEMM_GEMM_SM90_H

#include "cuda/gemm/gemm.h"
#include "cuda/ptx/wgmma.h"

/* Tile of each of the two CTAs. SHARE_A: both CTAs have the same rows and neighbouring columns;
 * otherwise the same columns and neighbouring rows. */
template <int BM, int BN, int STAGES, bool SHARE_A_, int ROWS, int SHARE> struct gemm90_tile
    : gemm_tile<BM, BN, 64, 64, BN, STAGES> {
	static constexpr bool SHARE_A = SHARE_A_;
	static constexpr int OUT = BN / SHARE; /* columns of y */
	static constexpr int BOTH_M = SHARE_A ? BM : 2 * BM,
	                     BOTH_N =
	                         SHARE_A ? 2 * OUT : OUT; /* columns of y of both CTAs together */
	static constexpr int TILES_N = (ROWS + BOTH_N - 1) / BOTH_N;
	/* MAP: index of the tensor map; BOX: rows of its box */
	static constexpr int MAP = BN < 128, BOX = MAP ? 32 / SHARE : 64;
};

/* With 16-bit weights, one thread copies all operands, so the producer is one warpgroup. Other
 * weights are unpacked by two warpgroups. ROW_MAJOR: activations are row-major, as the previous
 * kernel stored them, and are loaded by the tensor map that follows those of the weights. */
template <class W, int ROWS, int SHARE_ = 1, int ROW_MAJOR_ = 0> struct gemm90_config
    : gemm_config<W, ROWS, 90, SHARE_> {
	enum {
		SHARE = SHARE_,
		ROW_MAJOR = ROW_MAJOR_,
		PRODUCERS = W::PACKED ? 256 : 128,
		THREADS = PRODUCERS + 256,
		/* arrivals at a full stage: the thread that copies, and each warp that unpacks */
		ARRIVALS = W::PACKED ? 1 + PRODUCERS / 32 : 1,
		/* 1: the two halves are separate matrices with a tensor map each */
		SEPARATE_HALVES = 0,
		STAGE_BYTES = 196608
	};
	typedef gemm90_tile<W::PACKED ? 256 : 128, W::PACKED ? 128 : 256, 4, W::PACKED, ROWS, SHARE>
	    large90;
	typedef gemm90_tile<128, 128, 6, true, ROWS, SHARE> middle90;
	typedef gemm90_tile<128, 32, 8, true, ROWS, SHARE> small90;
	static_assert(W::COLS % 64 == 0, "a multiple of the columns of a stage");
	static_assert(large90::BYTES <= STAGE_BYTES && middle90::BYTES <= STAGE_BYTES &&
	                  small90::BYTES <= STAGE_BYTES,
	              "stages");
};

struct alignas(1024) gemm90_shared_storage {
	unsigned char stage[196608];
	mbar_t full[8], empty[8];
	int n; /* producer warps read n from here, because they have no register left for it */
};
static_assert(sizeof(gemm90_shared_storage) == 197632, "shared bytes of the @launch lines");

#define GEMM90_MMA(n)                                                                              \
	template <class W> DEV void gemm90_mma(float(&d)[n / 2], unsigned long long a,             \
	                                       unsigned long long b, int add)                      \
	{                                                                                          \
		if (W::BF16)                                                                       \
			wgmma_bf16_m64n##n##k16(d, a, b, add);                                     \
		else                                                                               \
			wgmma_f16_m64n##n##k16(d, a, b, add);                                      \
	}
GEMM90_MMA(32)
GEMM90_MMA(128)
GEMM90_MMA(256)

/* Destination of a row of activations. Rows form groups of 64 (the last group may have fewer); each
 * group is stored in chunks of 64 columns. A chunk has the layout of shared memory: rows of 128
 * bytes whose 16-byte parts are XORed with the row number. */
template <class G> struct gemm90_act {
	unsigned char *at;
	int piece, flip;

	__device__ __forceinline__
	gemm90_act(void *act, int t, int n)
	{
		const int group = t / 64, in = t % 64;

		piece = min(64, n - group * 64) * 128;
		flip = (t & 7) * 16;
		at = (unsigned char *)act + (long long)group * 64 * G::COLS * 2 + in * 128;
	}
	__device__ __forceinline__ void *
	operator+(int k) const
	{
		return at + (long long)(k / 64) * piece + (k % 64 * 2 ^ flip);
	}
};

/* Returns the number of pairs of tiles. */
template <class T> DEV int
gemm90_tile_pairs(int n)
{
	return (n + T::BOTH_M - 1) / T::BOTH_M * T::TILES_N;
}

/* Sets the origin of this CTA's tile in pair t. Pairs are numbered in the order of the
 * scheduler. */
template <class T> DEV void
gemm90_tile_coord(int t, int n, int rank, int &m0, int &n0)
{
	const int pairs_m = (n + T::BOTH_M - 1) / T::BOTH_M;
	const int band = t / (8 * T::TILES_N), in = t - band * (8 * T::TILES_N),
	          height = min(pairs_m - band * 8, 8);

	m0 = (band * 8 + in % height) * T::BOTH_M + (T::SHARE_A ? 0 : rank * T::BM);
	n0 = in / height * T::BOTH_N + (T::SHARE_A ? rank * T::OUT : 0);
}

/* Weights that the producer warps unpack. For 16-bit weights it is empty; for blocks, it holds
 * units in registers one stage ahead. */
template <class G, class T, bool PACKED = G::W::PACKED> struct gemm90_unpack {
	__device__ __forceinline__
	gemm90_unpack(const w_matrix<typename G::W> &, int)
	{
	}
	__device__ __forceinline__ void
	store(unsigned char *, mbar_t *, int)
	{
	}
};

template <class G, class T> struct gemm90_unpack<G, T, true> {
	gemm_weights<G, T> weights;

	__device__ __forceinline__
	gemm90_unpack(const w_matrix<typename G::W> &w, int n0)
	    : weights(w, n0)
	{
		weights.prefetch(0, 0);
	}
	__device__ __forceinline__ void
	store(unsigned char *to, mbar_t *full, int next)
	{
		gemm_weights<G, T> now = weights;
		if (next >= 0)
			weights.prefetch(0, next * 64);
		now.store(to);
		fence_proxy_async();
		__syncwarp();
		if (lane_id() == 0)
			mbar_arrive(full);
	}
};

/* Source of the activations of a CTA's tile, in chunks of 64 rows from row `first` on (the last
 * chunk may have fewer). In the layout of gemm90_act, the next chunk of a group follows
 * directly. */
template <class G, int PIECES, bool ROW_MAJOR = G::ROW_MAJOR> struct gemm90_rows {
	const unsigned char *from[PIECES];
	int bytes[PIECES];

	__device__ __forceinline__
	gemm90_rows(const unsigned short *act, int m0, int first, int rows)
	{
#pragma unroll
		for (int i = 0; i < PIECES; i++) {
			const int r = (first + i) * 64;
			from[i] = (const unsigned char *)act + (long long)(m0 + r) * G::COLS * 2;
			bytes[i] = max(min(64, rows - r), 0) * 128;
		}
	}
	/* bytes of `rows` rows in a stage */
	DEV int
	in_stage(int rows)
	{
		return rows * 128;
	}
	template <bool BOTH> __device__ __forceinline__ void
	load(int i, unsigned char *to, mbar_t *full, const tensor_map *, int)
	{
		if (bytes[i] && BOTH)
			bulk_load_multicast(to, from[i], (unsigned)bytes[i], full, 3);
		if (bytes[i] && !BOTH)
			bulk_load(to, from[i], (unsigned)bytes[i], full);
		from[i] += bytes[i];
	}
};

template <class G, int PIECES> struct gemm90_rows<G, PIECES, true> {
	int m, left; /* m: first row of the first chunk; left: number of rows left */

	__device__ __forceinline__
	gemm90_rows(const unsigned short *, int m0, int first, int rows)
	    : m(m0 + first * 64), left(rows - first * 64)
	{
	}
	DEV int
	in_stage(int rows)
	{
		return (rows + 63) / 64 * 8192;
	}
	template <bool BOTH> __device__ __forceinline__ void
	load(int i, unsigned char *to, mbar_t *full, const tensor_map *w, int step)
	{
		const int rows = left - i * 64;

		if (rows > 0 && BOTH)
			tensor_load_2d_rows_multicast(to, w + 2, step * 64, m + i * 64, rows, full,
			                              3);
		if (rows > 0 && !BOTH)
			tensor_load_2d_rows(to, w + 2, step * 64, m + i * 64, rows, full);
	}
};

/* Copies that one thread issues for the stages of a tile. It loads this CTA's half of the shared
 * operand by a multicast to both CTAs. */
template <class G, class T> struct gemm90_loads {
	static constexpr int A = T::BM / 64 / (T::SHARE_A ? 2 : 1),
	                     B = T::BN / T::BOX / (T::SHARE_A ? 1 : 2);
	typedef gemm90_rows<G, A> Rows;
	Rows act;
	int all, n0, rank;

	/* n0: first row of the weights in their tensor map */
	__device__ __forceinline__
	gemm90_loads(const unsigned short *act, int m0, int n0, int n, int rank)
	    : act(act, m0, T::SHARE_A ? rank * A : 0, min(T::BM, n - m0)), n0(n0), rank(rank)
	{
		all = Rows::in_stage(max(min(T::BM, n - m0), 0)) + (G::W::PACKED ? 0 : T::BN * 128);
	}
	__device__ __forceinline__ void
	load(unsigned char *stage, mbar_t *full, const tensor_map *w, int step)
	{
		mbar_arrive_expect(full, (unsigned)all);
#pragma unroll
		for (int i = 0; i < A; i++)
			act.template load<T::SHARE_A>(
			    i, stage + (T::SHARE_A ? rank * A + i : i) * 8192, full, w, step);
#pragma unroll
		for (int i = 0; !G::W::PACKED && i < B; i++) {
			const int r = (T::SHARE_A ? i : rank * B + i) * T::BOX,
			          row = n0 + (r < T::OUT ? r
			                                 : r - T::OUT +
			                                       (G::SEPARATE_HALVES ? 0 : G::ROWS));
			const tensor_map *map = w + T::MAP + (G::SEPARATE_HALVES && r >= T::OUT);
			if (T::SHARE_A)
				tensor_load_2d(stage + T::A_BYTES + r * 128, map, step * 64, row,
				               full);
			else
				tensor_load_2d_multicast(stage + T::A_BYTES + r * 128, map,
				                         step * 64, row, full, 3);
		}
	}
};

/* Iterates over the pairs of tiles of one GEMM. find(t, ...) returns the origin of pair t, or false
 * if there is none. operands() and epilogue() belong to the pair that find returned last, and
 * rows() is the number of rows of that GEMM. LANES: number of threads of a warp that call find
 * together */
template <class G, class T, class E> struct gemm90_tile_scheduler {
	enum { LANES = 1 };
	const gemm_operands<typename G::W> &in;
	const E &e;
	const int &n; /* in.n, or a copy of it in shared memory */

	__device__ __forceinline__ bool
	find(int t, int rank, int &m0, int &n0)
	{
		if (t >= gemm90_tile_pairs<T>(n))
			return false;
		gemm90_tile_coord<T>(t, n, rank, m0, n0);
		return true;
	}
	__device__ __forceinline__ int
	rows() const
	{
		return n;
	}
	__device__ __forceinline__ const gemm_operands<typename G::W> &
	operands() const
	{
		return in;
	}
	__device__ __forceinline__ const E &
	epilogue() const
	{
		return e;
	}
};

/* Runs producer warps; with 16-bit weights, a single thread, or one warp of which lane 0 copies.
 * it: number of ring stages used so far; first: first pair of this cluster. Several GEMMs may
 * follow each other on one ring. */
template <class G, class T, class SCHEDULER> DEV void
gemm90_produce(gemm90_shared_storage &s, SCHEDULER scheduler, int first, int &it)
{
	constexpr bool PACKED = G::W::PACKED;
	constexpr int STEPS = G::COLS / 64;
	const int rank = (int)cluster_rank();
	int m0, n0;

	if (!PACKED && threadIdx.x >= SCHEDULER::LANES)
		return;
#pragma unroll 1
	for (int t = first; scheduler.find(t, rank, m0, n0); t += (int)gridDim.x / 2) {
		const gemm_operands<typename G::W> &in = scheduler.operands();
		gemm90_loads<G, T> copies(in.act, m0, n0 + in.row, scheduler.rows(), rank);
		const int rows = min(T::BM, scheduler.rows() - m0);
		gemm90_unpack<G, T> weights(in.w, n0);
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			unsigned char *stage = s.stage + at * T::STAGE_BYTES;
			mbar_wait(&s.empty[at], (it / T::STAGES & 1) ^ 1);
			if (SCHEDULER::LANES > 1)
				/* otherwise a lane that lags could wait for a phase that is already
				 * over */
				__syncwarp();
			if (threadIdx.x == 0) {
				copies.load(stage, &s.full[at], in.maps, step);
				for (int r = step; r < rows; r += STEPS)
					scheduler.epilogue().template prefetch<T::OUT>(m0 + r, n0);
			}
			weights.store(stage + T::A_BYTES, &s.full[at],
			              step + 1 < STEPS ? step + 1 : -1);
		}
	}
}

/* Each lane of a quad holds columns 2 q and 2 q + 1 of every group of eight columns. For two groups
 * at a time, even lanes get four neighbouring columns of the first group, odd lanes of the second.
 * Stores then cover 64 contiguous bytes instead of 32. */
template <int N> DEV void
gemm90_quad_exchange(const float (&v)[2 * N][2], float (&to)[N][4])
{
	const bool odd = threadIdx.x & 1;

#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			const float keep = odd ? v[2 * j + 1][c] : v[2 * j][c];
			const float got =
			    __shfl_xor_sync(0xffffffffu, odd ? v[2 * j][c] : v[2 * j + 1][c], 1);
			to[j][c] = odd ? got : keep;
			to[j][2 + c] = odd ? keep : got;
		}
}

/* Releases the stages of a tile without using them. */
template <class T> DEV void
gemm90_skip(gemm90_shared_storage &s, int steps, int &it)
{
#pragma unroll 1
	for (int step = 0; step < steps; step++, it++) {
		mbar_wait(&s.full[it % T::STAGES], it / T::STAGES & 1);
		/* otherwise a lane that lags could wait for a phase that is already over */
		__syncwarp();
		if (lane_id() < 2)
			mbar_arrive_cluster(&s.empty[it % T::STAGES], lane_id());
	}
}

/* Stores the sums of a warpgroup: MT * 64 rows from m0 on. */
template <class G, class T, int MT, int N, class SCHEDULER> DEV void
gemm90_store(const float (&acc)[MT][N], int m0, int n0, SCHEDULER scheduler)
{
	/* groups of columns that are stored together; limited by registers */
	constexpr int EIGHTS = T::OUT / 8 < 8 / G::SHARE ? T::OUT / 8 : 8 / G::SHARE;
	const int lane = (int)lane_id(), warp = (int)warp_id() - G::PRODUCERS / 32;

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int m = m0 + i * 64 + warp % 4 * 16 + half * 8 + (lane >> 2);
			const float f =
			    m < scheduler.rows() ? scheduler.operands().factor(m) : 1.0f;
#pragma unroll
			for (int col = 0; col < T::OUT / 8; col += EIGHTS) {
				float v[EIGHTS][2], u[EIGHTS][2], v4[EIGHTS / 2][4],
				    u4[EIGHTS / 2][4];
#pragma unroll
				for (int j = 0; j < EIGHTS; j++)
#pragma unroll
					for (int c = 0; c < 2; c++) {
						const int at = 4 * (col + j) + 2 * half + c;
						v[j][c] = acc[i][at] * f;
						u[j][c] = acc[i][at + (T::BN - T::OUT) / 2] * f;
					}
				gemm90_quad_exchange(v, v4);
				if (G::SHARE == 2)
					gemm90_quad_exchange(u, u4);
				if (m < scheduler.rows())
					scheduler.epilogue().store(
					    m, n0 + (col + (lane & 1)) * 8 + (lane & 2) * 2, v4,
					    u4);
			}
		}
}

/* Runs consumer warps. A warpgroup whose rows are all past the end only releases the stages, so a
 * last tile with up to 64 rows costs half a tile. */
template <class G, class T, class SCHEDULER> DEV void
gemm90_consume(gemm90_shared_storage &s, SCHEDULER scheduler, int first, int &it)
{
	constexpr int STEPS = G::COLS / 64, MT = T::BM / 128;
	const int lane = (int)lane_id(), warp = (int)warp_id() - G::PRODUCERS / 32,
	          group = warp / 4, rank = (int)cluster_rank();
	int m0, n0;

#pragma unroll 1
	for (int t = first; scheduler.find(t, rank, m0, n0); t += (int)gridDim.x / 2) {
		float acc[MT][T::BN / 2];
		if (m0 + group * MT * 64 >= scheduler.rows()) {
			gemm90_skip<T>(s, STEPS, it);
			continue;
		}
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			const unsigned char *stage = s.stage + at * T::STAGE_BYTES;
			const unsigned long long a = smem_desc(stage + group * MT * 8192, 16, 1024,
			                                       128),
			                         b = smem_desc(stage + T::A_BYTES, 16, 1024, 128);
			mbar_wait(&s.full[at], it / T::STAGES & 1);
			wgmma_fence();
#pragma unroll
			for (int k = 0; k < 4; k++)
#pragma unroll
				for (int i = 0; i < MT; i++)
					gemm90_mma<typename G::W>(acc[i], a + i * 512 + k * 2,
					                          b + k * 2, step > 0 || k > 0);
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
		gemm90_store<G, T>(acc, m0 + group * MT * 64, n0, scheduler);
	}
}

/* tails: some tiles have fewer rows than their capacity */
template <class G, class T> DEV void
gemm90_init(gemm90_shared_storage &s, int n, bool tails)
{
	if (threadIdx.x == 0)
		s.n = n;
	if (threadIdx.x < T::STAGES) {
		mbar_init(&s.full[threadIdx.x], G::ARRIVALS);
		mbar_init(&s.empty[threadIdx.x], 16);
	}
	if (tails) /* rows that no copy fills are multiplied too */
		for (int i = (int)threadIdx.x; i < T::BYTES / 16; i += G::THREADS)
			if (i * 16 % T::STAGE_BYTES < T::A_BYTES)
				st_v4(s.stage + i * 16, make_uint4(0, 0, 0, 0));
	fence_proxy_async();
	cluster_sync();
}

/* Returns the number of rounds that the grid's clusters need for all tiles. */
template <class T> DEV int
gemm90_rounds(int n)
{
	const int g = (int)gridDim.x / 2;

	return (gemm90_tile_pairs<T>(n) + g - 1) / g;
}

/* Tile choice. The estimated time is the number of rounds times the time per stage at 28 bytes per
 * cycle from L2 (1170, 860 and 440 cycles; 1024 and 590 for weights that are unpacked). Small tiles
 * are for shapes that would leave most SMs idle: 128 rows and 4096 columns are 32 middle tiles, but
 * 128 small ones. */
enum { GEMM90_LARGE, GEMM90_MIDDLE, GEMM90_SMALL };

template <class G> DEV int
gemm90_choose_tile(int n)
{
	const int large = gemm90_rounds<typename G::large90>(n) * (G::W::PACKED ? 102 : 117);
	const int middle = gemm90_rounds<typename G::middle90>(n) * (G::W::PACKED ? 59 : 86);
	const int small = gemm90_rounds<typename G::small90>(n) * 44;

	if (!G::W::PACKED && small < min(large, middle))
		return GEMM90_SMALL;
	return large <= middle ? GEMM90_LARGE : GEMM90_MIDDLE;
}

/* in.maps: tensor maps of the weights, with boxes of 64 columns and 64 rows, then of 32 rows (16
 * with paired halves) */
template <class G, class E> DEV void
gemm90_run(const gemm_operands<typename G::W> &in, const E &e)
{
	typedef typename G::large90 large;
	typedef typename G::middle90 middle;
	typedef typename G::small90 small;
	constexpr bool PACKED = G::W::PACKED;
	SHARED_STORAGE(gemm90_shared_storage, s);

	const int kind = gemm90_choose_tile<G>(in.n);
	if (!PACKED && threadIdx.x == 0)
		tensor_prefetch(in.maps + (kind == GEMM90_SMALL));
	if (kind == GEMM90_LARGE)
		gemm90_init<G, large>(s, in.n, in.n % large::BOTH_M != 0);
	else if (PACKED || kind == GEMM90_MIDDLE)
		gemm90_init<G, middle>(s, in.n, in.n % middle::BOTH_M != 0);
	else
		gemm90_init<G, small>(s, in.n, in.n % small::BOTH_M != 0);
	/* Each call below computes blockIdx.x / 2, the first pair, again: producers that unpack
	 * q6_k have no register for a variable. */
	int it = 0;
	if (threadIdx.x < G::PRODUCERS) {
		reg_dec<(PACKED ? 72 : 40)>();
		if (kind == GEMM90_LARGE)
			gemm90_produce<G, large>(s,
			                         gemm90_tile_scheduler<G, large, E>{ in, e, s.n },
			                         (int)blockIdx.x / 2, it);
		else if (PACKED || kind == GEMM90_MIDDLE)
			gemm90_produce<G, middle>(s,
			                          gemm90_tile_scheduler<G, middle, E>{ in, e, s.n },
			                          (int)blockIdx.x / 2, it);
		else if constexpr (!PACKED)
			gemm90_produce<G, small>(s,
			                         gemm90_tile_scheduler<G, small, E>{ in, e, s.n },
			                         (int)blockIdx.x / 2, it);
	} else {
		reg_inc<(PACKED ? 184 : 232)>();
		if (kind == GEMM90_LARGE)
			gemm90_consume<G, large>(s,
			                         gemm90_tile_scheduler<G, large, E>{ in, e, in.n },
			                         (int)blockIdx.x / 2, it);
		else if (PACKED || kind == GEMM90_MIDDLE)
			gemm90_consume<G, middle>(
			    s, gemm90_tile_scheduler<G, middle, E>{ in, e, in.n },
			    (int)blockIdx.x / 2, it);
		else if constexpr (!PACKED)
			gemm90_consume<G, small>(s,
			                         gemm90_tile_scheduler<G, small, E>{ in, e, in.n },
			                         (int)blockIdx.x / 2, it);
	}
	__syncwarp();
	cluster_sync(); /* the other CTA may still arrive at mbarriers of this one */
}

#endif
