/* GEMM of e4m3 on sm_90a for `activations: f8`. Warps, ring and tile scheduler are those of
 * cuda/gemm/gemm_sm90.h, but a stage has 128 columns of bytes instead of 64 columns of 16 bits.
 *
 *   producer warps (4)                            consumer warpgroups (2, half of the rows each)
 *     wait empty[s]                                 wait full[s]
 *     thread 0: bulk copies of activations,         part = wgmma of stage s, 4 of k = 32, from 0;
 *       half of what both CTAs need each              commit; wait for them
 *     all: weights and their scales from            acc = fma(part d_w, d_x, acc)
 *       registers, st.shared; arrive at full[s];    arrive at empty[s] of both CTAs
 *       loads of stage s + 1                        the other warpgroup multiplies meanwhile
 *
 * Results are defined as in cuda/gemm/gemm_fp8.h. The sum of a group of 128 columns, which is one
 * stage, is scaled and added to fp32 sums. Weights are copied as they are stored. Activations are
 * stored in the order of gemm90_act, where a pair of bytes replaces a 16-bit value, followed by the
 * scales [n][GROUPS] of fp8_rows.
 *
 * The sums take 128 registers of a thread with the large tile (256 x 128) and 64 with the middle
 * one (128 x 128); `part` takes 64 more. Computed: a stage of the large tile takes 1024 cycles of
 * the tensor cores and 32 bytes per cycle from L2. Adding it takes 64 multiplications and 64 fma
 * twice in each of 8 warps: 512 of the 1024 issue slots of a scheduler. */
#ifndef LLMC_CUDA_GEMM_GEMM_FP8_SM90_H
#define LLMC_CUDA_GEMM_GEMM_FP8_SM90_H

#include "cuda/gemm/gemm_fp8.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/ptx/wgmma_e4m3.h"

/* Members have the meaning that they have in gemm90_config. A column is a pair of bytes. */
template <class W_, int ROWS_, int SHARE_ = 1> struct gemm90_fp8_config {
	typedef W_ W;
	enum {
		ROWS = ROWS_,
		COLS = W::COLS / 2,
		SHARE = SHARE_,
		ROW_MAJOR = 0,
		PRODUCERS = 128,
		THREADS = PRODUCERS + 256,
		ARRIVALS =
		    1 + PRODUCERS / 32, /* at a full stage: the thread that copies activations, and
		                           each producer warp, since all of them copy weights */
		SEPARATE_HALVES = 0
	};
	typedef gemm90_tile<256, 128, 4, true, ROWS, SHARE> large90;
	typedef gemm90_tile<128, 128, 6, true, ROWS, SHARE> middle90;
	static_assert(W::COLS % 128 == 0 && W::BLOCK == 128, "a stage is a group");
};

/* fp8_rows whose bytes are stored in the order of gemm90_act */
template <class G> struct gemm90_fp8_rows : fp8_rows<typename G::W> {
	struct bytes {
		gemm90_act<G> pairs;
		__device__ __forceinline__ void *
		operator+(int k) const
		{
			return pairs + k / 2;
		}
	};
	__device__ __forceinline__ bytes
	row(int t) const
	{
		return { gemm90_act<G>(this->at, t, this->n) };
	}
};

struct alignas(1024) gemm90_fp8_shared_storage {
	gemm90_shared_storage ring;
	struct {
		float w[128], x[256];
	} scale[6]; /* per stage: scales of its rows of weights and activations */
};
static_assert(sizeof(gemm90_fp8_shared_storage) == 206848, "shared bytes of the @launch line");

/* A producer thread's part of a stage, held in registers one stage ahead: a row of weights and its
 * scale, and the scales of one or two rows of activations */
template <class G, class T> struct gemm90_fp8_weights {
	typedef typename G::W W;
	static_assert(T::BN == G::PRODUCERS, "a row per thread");
	const unsigned char *row;
	const float *x[T::BM / 128];
	uint4 q[8];
	float d, d_x[T::BM / 128];

	/* Rows past the last one get its scale. */
	__device__ __forceinline__
	gemm90_fp8_weights(const gemm_operands<W> &in, int m0, int n0, int n)
	{
		const fp8_rows<W> rows = { (unsigned char *)in.act, n };
		const w_matrix<W> &w = in.w;
		const int r = (int)threadIdx.x;

#pragma unroll
		for (int i = 0; i < T::BM / 128; i++)
			x[i] = rows.scales(max(min(m0 + i * 128 + r, n - 1), 0));

		row = w.row(min(n0 + gemm_column<G, T>(r), G::ROWS - 1)) +
		      (gemm_second<G, T>(r) ? w.half : 0);
		load(0);
	}
	__device__ __forceinline__ void
	load(int step)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			q[i] = w_read(row + step * 128 + i * 16, true);
		d = __uint_as_float(ld_v1(row + W::D + step * 4));
#pragma unroll
		for (int i = 0; i < T::BM / 128; i++)
			d_x[i] = x[i][step];
	}
	/* next: stage to load afterwards; -1: none */
	__device__ __forceinline__ void
	store(unsigned char *to, float *of_w, float *of_x, mbar_t *full, int next)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			st_v4(to + gemm_chunk_offset<T>((int)threadIdx.x, i), q[i]);
		of_w[threadIdx.x] = d;
#pragma unroll
		for (int i = 0; i < T::BM / 128; i++)
			of_x[i * 128 + (int)threadIdx.x] = d_x[i];
		fence_proxy_async();
		__syncwarp();
		if (lane_id() == 0)
			mbar_arrive(full);
		if (next >= 0)
			load(next);
	}
};

/* gemm90_produce, for weights that the warps copy through registers */
template <class G, class T, class SCHEDULER> DEV void
gemm90_fp8_produce(gemm90_fp8_shared_storage &s, SCHEDULER scheduler)
{
	constexpr int STEPS = G::COLS / 64;
	const int rank = (int)cluster_rank();
	int m0, n0, it = 0;

#pragma unroll 1
	for (int t = (int)blockIdx.x / 2; scheduler.find(t, rank, m0, n0);
	     t += (int)gridDim.x / 2) {
		const gemm_operands<typename G::W> &in = scheduler.operands();
		gemm90_loads<G, T> copies(in.act, m0, n0 + in.row, scheduler.rows(), rank);
		const int rows = min(T::BM, scheduler.rows() - m0);
		gemm90_fp8_weights<G, T> weights(in, m0, n0, scheduler.rows());
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			unsigned char *stage = s.ring.stage + at * T::STAGE_BYTES;
			mbar_wait(&s.ring.empty[at], (it / T::STAGES & 1) ^ 1);
			if (threadIdx.x == 0) {
				copies.load(stage, &s.ring.full[at], in.maps, step);
				for (int r = step; r < rows; r += STEPS)
					scheduler.epilogue().template prefetch<T::OUT>(m0 + r, n0);
			}
			weights.store(stage + T::A_BYTES, s.scale[at].w, s.scale[at].x,
			              &s.ring.full[at], step + 1 < STEPS ? step + 1 : -1);
		}
	}
}

/* gemm90_consume, for e4m3 */
template <class G, class T, class SCHEDULER> DEV void
gemm90_fp8_consume(gemm90_fp8_shared_storage &s, SCHEDULER scheduler)
{
	constexpr int STEPS = G::COLS / 64, MT = T::BM / 128;
	const int lane = (int)lane_id(), warp = (int)warp_id() - G::PRODUCERS / 32,
	          group = warp / 4, rank = (int)cluster_rank();
	int m0, n0, it = 0;

#pragma unroll 1
	for (int t = (int)blockIdx.x / 2; scheduler.find(t, rank, m0, n0);
	     t += (int)gridDim.x / 2) {
		float acc[MT][64] = {};
		if (m0 + group * MT * 64 >= scheduler.rows()) {
			gemm90_skip<T>(s.ring, STEPS, it);
			continue;
		}
#pragma unroll 1
		for (int step = 0; step < STEPS; step++, it++) {
			const int at = it % T::STAGES;
			const unsigned char *stage = s.ring.stage + at * T::STAGE_BYTES;
			const unsigned long long a = smem_desc(stage + group * MT * 8192, 16, 1024,
			                                       128),
			                         b = smem_desc(stage + T::A_BYTES, 16, 1024, 128);
			const float *const d_w = s.scale[at].w;
			mbar_wait(&s.ring.full[at], it / T::STAGES & 1);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				float part[64];
				wgmma_fence();
#pragma unroll
				for (int k = 0; k < 4; k++)
					wgmma_e4m3_m64n128k32(part, a + i * 512 + k * 2, b + k * 2,
					                      k > 0);
				wgmma_commit();
				wgmma_wait<0>();
				wgmma_pin(part);
				float d_x[2];
#pragma unroll
				for (int h = 0; h < 2; h++)
					d_x[h] = s.scale[at].x[(group * MT + i) * 64 +
					                       warp % 4 * 16 + h * 8 + (lane >> 2)];
#pragma unroll
				for (int j = 0; j < 16; j++) {
					const uint2 two = ld_v2(d_w + j * 8 + (lane & 3) * 2);
					const float d[2] = { __uint_as_float(two.x),
						             __uint_as_float(two.y) };
#pragma unroll
					for (int c = 0; c < 4; c++)
						acc[i][4 * j + c] =
						    fmaf(__fmul_rn(part[4 * j + c], d[c & 1]),
						         d_x[c >> 1], acc[i][4 * j + c]);
				}
			}
			__syncwarp();
			if (lane < 2)
				mbar_arrive_cluster(&s.ring.empty[at], lane);
		}
		gemm90_store<G, T>(acc, m0 + group * MT * 64, n0, scheduler);
	}
}

/* Returns whether the large tile is faster than the middle one: rounds of tiles, times the cycles
 * of a stage at 28 bytes per cycle from L2 (1170 for the large tile, 860 for the middle one). */
template <class G> DEV bool
gemm90_fp8_is_large(int n)
{
	return gemm90_rounds<typename G::large90>(n) * 117 <=
	       gemm90_rounds<typename G::middle90>(n) * 86;
}

template <class G, class E> DEV void
gemm90_fp8_run(const gemm_operands<typename G::W> &in, const E &e)
{
	SHARED_STORAGE(gemm90_fp8_shared_storage, s);

	typedef typename G::large90 large;
	typedef typename G::middle90 middle;
	const bool is_large = gemm90_fp8_is_large<G>(in.n);

	if (is_large)
		gemm90_init<G, large>(s.ring, in.n, in.n % large::BOTH_M != 0);
	else
		gemm90_init<G, middle>(s.ring, in.n, in.n % middle::BOTH_M != 0);
	if (threadIdx.x < G::PRODUCERS) {
		reg_dec<80>();
		if (is_large)
			gemm90_fp8_produce<G, large>(
			    s, gemm90_tile_scheduler<G, large, E>{ in, e, s.ring.n });
		else
			gemm90_fp8_produce<G, middle>(
			    s, gemm90_tile_scheduler<G, middle, E>{ in, e, s.ring.n });
	} else {
		reg_inc<216>();
		if (is_large)
			gemm90_fp8_consume<G, large>(
			    s, gemm90_tile_scheduler<G, large, E>{ in, e, in.n });
		else
			gemm90_fp8_consume<G, middle>(
			    s, gemm90_tile_scheduler<G, middle, E>{ in, e, in.n });
	}
	__syncwarp();
	cluster_sync(); /* the other CTA may still arrive at mbarriers of this one */
}

#endif
