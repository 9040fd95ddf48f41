/* Flash attention of mixed steps on sm_90a, after FlashAttention-3 (Shah et al. 2024), over paged K
 * and V: wgmma, and TMA for pages. One producer warp, and GROUPS consumer warpgroups with 64 pairs
 * (a row and a query head) each.
 *
 *   producer (1 warp)        find work --> ring of 2; K, V of a chunk --TMA--> rings of STAGES:
 *                            wait empty, expect bytes, load
 *   consumers (GROUPS x 128) queries --round--> shared; wait full K; S = Q K^T (both from shared)
 *                            mainloop, by turns: issue S of chunk c and P V of chunk c - 1,
 *                            pass the turn on; wait S, arrive empty K, softmax during P V,
 *                            wait P V, arrive empty V, O = O keep, P --round--> registers
 *
 * The result of a row is defined as follows:
 *
 *   score    s_j = flash_score<F>(q . k_j), q rounded to the type of the pool, terms added 16 at a
 *            time in the order of d
 *   chunk    positions [N c, N c + N), N = 64 or 128: m' = max(m, max s_j),
 *            o = o 2^(m - m') + sum 2^(s_j - m') v_j, weights rounded to the pool's type;
 *            l likewise, unrounded
 *   segment  SEGMENT positions, from m = none, l = 0, o = 0
 *   row      segments in order: m' = max(m, m_i), o = o 2^(m - m') + o_i 2^(m_i - m'),
 *            l likewise; y = o (1 / l)
 *
 * With SEGMENTED (deterministic mode) the result depends on nothing else. Without it, only tiles
 * that are split over CTAs use segments. Other tiles process all visible positions (with MADE: all
 * of a round) at once and need no intermediate result in y. Chunks in which a row attends to
 * nothing leave its result bit-identical.
 *
 * Loads. The producer finds work (cuda/attention/flash_tile.h) one tile ahead. It fills the K and V
 * rings in the order of use. A page of a head is D / 64 boxes of 64 columns, rows of 128 bytes,
 * swizzled. For a page to which no row of the tile attends, the producer loads a box outside the
 * tensor, which yields zeros. The last page of a sequence may hold any values after the last
 * position, NaN too, and a weight of 0 does not cancel a NaN. The rows of this page are therefore
 * loaded by cp.async with zero fill. Keys and values computed in this step (latent attention) are
 * boxes of one chunk.
 *
 * Queries. Each warpgroup loads its own queries, rounds them and stores them to shared memory. The
 * producer has prefetched them to L2.
 *
 * Mainloop. S = Q K^T from shared memory, P V with P in registers. The softmax of chunk c overlaps
 * P V of chunk c - 1. Warpgroups issue wgmma by turns, so one computes softmax while the other
 * multiplies.
 *
 * Limits: 64 rows by 128 positions take 16 D / 2 cycles of mma (4096 operations per cycle and SM)
 * and 512 cycles of exponentials (16 per cycle). For heads of 128 these are 1024 and 512 cycles, so
 * mma is the limit, and two warpgroups of 232 registers keep it busy. For heads of 64 they are 512
 * and 512 cycles, and three warpgroups of 160 registers are used. A prompt of 4096 tokens of an 8B
 * model (32 layers, 32 heads of 128, causal) is 4.4 Tflop. That takes 4.5 ms at the peak of an H200
 * (989 TFLOP/s), and 8 ms at 550 TFLOP/s, which is expected here. With mma.sync it would take 14 ms
 * at 300 TFLOP/s. K and V from L2: 64 KB per chunk and CTA, 31 bytes per cycle and SM. Measured on
 * an H100: docs/kernels/attention.md.
 *
 * Entry point: flash90_run<F>, with F a flash90_config. */
#ifndef LLMC_CUDA_ATTENTION_FLASH_SM90_H
#define LLMC_CUDA_ATTENTION_FLASH_SM90_H

#include "cuda/attention/flash_tile.h"
#include "cuda/ptx/wgmma.h"

template <class A, bool SEGMENTED_> struct flash90_config
    : flash_parts<A, A::D == 64 && A::V == 64 ? 192 : 128, 1024> {
	enum {
		GROUPS = A::D == 64 && A::V == 64
		             ? 3
		             : 2, /* consumer warpgroups; the @launch line has the same formula */
		THREADS = 128 * (1 + GROUPS),
		/* positions per chunk; the @launch line has the same formula for N and STAGES */
		N = A::V <= 128 ? 128 : 64,
		PAGES = N / KV_PAGE,
		K_BOXES = (A::D + 63) / 64,
		V_BOXES = (A::V + 63) / 64, /* boxes of 64 columns */
		PV_COLS = V_BOXES * 64,     /* columns of P V: a multiple of the 128-byte swizzle */
		BOX = KV_PAGE * 128,        /* bytes */
		HALF = N * 128,             /* bytes of 64 columns of a chunk */
		K_TILE = K_BOXES * HALF,
		V_TILE = V_BOXES * HALF, /* bytes per chunk */
		STAGES = A::D <= 64 && A::V <= 64                        ? 4
		         : A::D <= (N == 128 ? 128 : 192) && A::V <= 192 ? 3
		                                                         : 2,
		ROTATE = 1,
		OWN = ROTATE + GROUPS,
		ALL = OWN + GROUPS, /* number of the named barrier of all consumers */
		SEGMENTED = SEGMENTED_,
		KEEPS = SEGMENTED_ || A::MADE /* y holds intermediate results */
	};
	static_assert((A::D == A::V || A::MADE) && A::D % 16 == 0 && A::V % 16 == 0 &&
	                  A::D <= 256 && A::V <= 256 && 1024 % N == 0,
	              "shapes");
};

template <class F> struct alignas(1024) flash90_shared_storage {
	unsigned char q[F::GROUPS][F::K_BOXES * 64 * 128];
	unsigned char k[F::STAGES][F::K_TILE], v[F::STAGES][F::V_TILE];
	mbar_t k_full[F::STAGES], k_empty[F::STAGES], v_full[F::STAGES], v_empty[F::STAGES];
	mbar_t work_full[2], work_empty[2];
	FlashWork work[2];
	int found[2], last;
};

/* Index in a ring of N stages, and the parity of the current round. */
template <int N> struct flash90_ring {
	int at = 0, round = 0;

	__device__ __forceinline__ void
	next()
	{
		at = at + 1 == N ? 0 : at + 1;
		round ^= at == 0;
	}
};
template <class F> using flash90_stage = flash90_ring<F::STAGES>;

/* Defines S and P V for each size n of the accumulator d. */
#define FLASH90_WIDTH(type, n)                                                                     \
	DEV void flash90_qk(kv_##type, float(&d)[n / 2], unsigned long long a,                     \
	                    unsigned long long b, int acc)                                         \
	{                                                                                          \
		wgmma_##type##_m64n##n##k16(d, a, b, acc);                                         \
	}                                                                                          \
	DEV void flash90_pv(kv_##type, float(&d)[n / 2], const unsigned(&a)[4],                    \
	                    unsigned long long b)                                                  \
	{                                                                                          \
		wgmma_##type##_m64n##n##k16_ra_bt(d, a, b, 1);                                     \
	}
#define FLASH90_WIDTHS(n) FLASH90_WIDTH(bf16, n) FLASH90_WIDTH(f16, n)
FLASH90_WIDTHS(64)
FLASH90_WIDTHS(128)
FLASH90_WIDTHS(192)
FLASH90_WIDTHS(256)

/* ---- producer warp ---- */

/* Returns in lane i the i-th page of chunk c; -1 if no row of tile w attends to it. */
template <class F> DEV int
flash90_page(const llmc_step &s, const FlashWork &w, int c)
{
	const int at = c * F::PAGES + (int)lane_id();

	if (F::MADE)
		return 0;
	return lane_id() < F::PAGES && at * KV_PAGE < w.hi && (at + 1) * KV_PAGE > w.lo
	           ? s.block_table[(long long)w.seq * s.block_stride + at]
	           : -1;
}

/* Loads chunk c of K (col 0) or V that was computed for this step. Slots after the end of a
 * sequence hold finite values. */
template <class F, int BOXES> DEV void
flash90_load_made(unsigned char *tile, mbar_t *full, const tensor_map *map, const FlashWork &w,
                  int col, int c)
{
	if (lane_id() == 0) {
		mbar_arrive_expect(full, BOXES * F::HALF);
#pragma unroll
		for (int b = 0; b < BOXES; b++)
			tensor_load_2d(tile + b * F::HALF, map, col + b * 64, w.base + c * F::N,
			               full);
	}
	__syncwarp(); /* otherwise a lane that lags could wait for a parity that has already passed
	               */
}

/* Loads chunk c of K or V from pages. page: lane i has page i of the chunk; head: index among the
 * heads of K and V in a page; held: number of positions of the sequence in the cache */
template <class F> DEV void
flash90_load(unsigned char *tile, mbar_t *full, const tensor_map *map, const void *pool, int page,
             int head, int c, int held)
{
	const int left = held - c * F::N, last = left / KV_PAGE;
	const int last_page = __shfl_sync(~0u, page, last & 31);
	const bool whole = left >= F::N || left % KV_PAGE == 0 || last_page < 0;

	if (lane_id() == 0) {
		if (whole)
			mbar_arrive_expect(full, F::K_TILE);
		else
			mbar_expect(full, F::K_TILE - F::K_BOXES * F::BOX);
	}
#pragma unroll
	for (int i = 0; i < F::PAGES; i++) {
		const int at = __shfl_sync(~0u, page, i),
		          row = at < 0 ? -KV_PAGE : (at * 2 * F::KV_HEADS + head) * KV_PAGE;
		if (lane_id() == 0 && (whole || i != last))
#pragma unroll
			for (int b = 0; b < F::K_BOXES; b++)
				tensor_load_2d(tile + b * F::HALF + i * F::BOX, map, b * 64, row,
				               full);
	}
	if (whole)
		return;
	const typename F::elem *from = F::k(F::page_at(pool, last_page), head);
	constexpr int ROW = F::PV_COLS / 8; /* 16-byte vectors per row that the mma reads */
#pragma unroll 4
	for (int i = (int)lane_id(); i < KV_PAGE * ROW; i += 32) {
		const int r = i / ROW, p = i % ROW;
		const bool in = r < left % KV_PAGE && p < F::D / 8;
		cp_async_16_fill(tile + p / 8 * F::HALF + last * F::BOX + r * 128 +
		                     ((p ^ r) & 7) * 16,
		                 in ? from + r * F::D + p * 8 : from, in ? 16 : 0);
	}
	cp_async_wait_all();
	fence_proxy_async();
	__syncwarp();
	if (lane_id() == 0)
		mbar_arrive(full);
}

/* Prefetches the queries of a tile to L2. */
template <class F> DEV void
flash90_issue_loads(const float *q, const FlashWork &w)
{
	constexpr int ROW = (F::G * F::Q_STRIDE * 4 + 127) / 128; /* cache lines per row */
	const int first = w.first / F::G, rows = (w.first + w.pairs - 1) / F::G - first + 1;

	for (int i = (int)lane_id(); i < rows * ROW; i += 32)
		prefetch_l2(q +
		            ((long long)(w.row0 + first + i / ROW) * F::HEADS + w.kv_head * F::G) *
		                F::Q_STRIDE +
		            i % ROW * 32);
}

template <class F> DEV void
flash90_copy(flash90_shared_storage<F> &a, const llmc_step &s, const float *q, const void *pool,
             const tensor_map *map, int *count)
{
	flash90_ring<2> work;
	flash90_stage<F> ks, vs;

	if (lane_id() == 0)
		tensor_prefetch(map);
	for (int item = (int)blockIdx.x;; work.next()) {
		FlashWork &w = a.work[work.at];
		mbar_wait(&a.work_empty[work.at], work.round ^ 1);
		const bool found = flash_find<F>(s, __shfl_sync(~0u, item, 0), w);
		if (found)
			flash_clip<F>(s, w);
		if (lane_id() == 0) {
			a.found[work.at] = found;
			/* the other lanes get the result by the next shuffle; afterwards this CTA
			 * counts itself as finished */
			if (found)
				item = (int)gridDim.x + atomicAdd(count, 1);
		}
		__syncwarp();
		if (lane_id() == 0)
			mbar_arrive(&a.work_full[work.at]);
		if (!found)
			break;
		flash90_issue_loads<F>(q, w);
		const int first = w.lo / F::N, end = (w.hi + F::N - 1) / F::N,
		          held = s.kv_len[w.seq];
		int page = flash90_page<F>(s, w, first), v_page = 0;
#pragma unroll 1
		for (int c = first; c <= end; c++) {
			const int next = flash90_page<F>(s, w, c + 1);
			if (c < end) {
				mbar_wait(&a.k_empty[ks.at], ks.round ^ 1);
				if constexpr (F::MADE)
					flash90_load_made<F, F::K_BOXES>(a.k[ks.at],
					                                 &a.k_full[ks.at], map, w,
					                                 w.kv_head * F::D, c);
				else
					flash90_load<F>(a.k[ks.at], &a.k_full[ks.at], map, pool,
					                page, w.kv_head, c, held);
				ks.next();
			}
			if (c > first) {
				mbar_wait(&a.v_empty[vs.at], vs.round ^ 1);
				if constexpr (F::MADE)
					flash90_load_made<F, F::V_BOXES>(
					    a.v[vs.at], &a.v_full[vs.at], map, w,
					    F::KV_HEADS * F::D + w.kv_head * F::V, c - 1);
				else
					flash90_load<F>(a.v[vs.at], &a.v_full[vs.at], map, pool,
					                v_page, F::KV_HEADS + w.kv_head, c - 1,
					                held);
				vs.next();
			}
			v_page = page;
			page = next;
		}
	}
	if (lane_id() == 0 && atomicAdd(count + 1, 1) == (int)gridDim.x - 1) {
		atomicExch(count, 0);
		atomicExch(count + 1, 0);
	}
}

/* ---- consumer warpgroups ---- */

/* A thread's fragment of its warpgroup: rows g and g + 8 of the 16 of its warp. */
template <class F> struct flash90_rows {
	float o[F::PV_COLS / 2], t[F::N / 2]; /* output; scores, then weights */
	unsigned p[F::N / 16][4];             /* weights as A fragments of P V */
	/* state of the segment; l covers only the columns of this thread; keep: factor that
	 * rescales o */
	float m[2], l[2], keep[2];
	float m_all[2], l_all[2]; /* state of earlier segments */
	int lo[2], hi[2], pos[2];
	float slope[2];
	int all_lo, all_hi; /* positions that all pairs of the warpgroup attend to */
};

template <class F> DEV int
flash90_group()
{
	return __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
}
template <class F> DEV int
flash90_pair(int h)
{
	return flash90_group<F>() * 64 + ((int)warp_id() & 3) * 16 + h * 8 + (int)(lane_id() >> 2);
}

/* Index of a pair among the heads of all rows */
template <class F> DEV long long
flash90_head(const FlashWork &w, int pair)
{
	const int at = w.first + pair;

	return (long long)(w.row0 + at / F::G) * F::HEADS + w.kv_head * F::G + at % F::G;
}

/* Releases the buffer that b guards, after all lanes of the warp have passed their waits. Otherwise
 * a lane that lags could wait for a parity that has already passed. */
DEV void
flash90_arrive(mbar_t *b)
{
	__syncwarp();
	if (lane_id() == 0)
		mbar_arrive(b);
}

/* Stores the warpgroup's queries to shared memory and sets the visible positions of its rows. */
template <class F> DEV void
flash90_begin(flash90_shared_storage<F> &a, const llmc_step &s, const float *q, float *parts,
              const FlashWork &w, flash90_rows<F> &r)
{
	constexpr int ROW = F::D / 8, STEPS = ROW / 2,
	              BATCH = STEPS % 8 == 0   ? 8
	                      : STEPS % 7 == 0 ? 7
	                      : STEPS % 6 == 0 ? 6
	                      : STEPS % 5 == 0 ? 5
	                      : STEPS < 5      ? STEPS
	                                       : 1;
	const int group = flash90_group<F>(), thread = (int)threadIdx.x & 127;
	unsigned char *to = a.q[group];

	/* all warps have finished the mma with the previous queries */
	bar_sync(F::OWN + group, 128);
#pragma unroll 1
	for (int i0 = 0; i0 < STEPS; i0 += BATCH) {
		uint4 x[BATCH][2]; /* all loads are issued before the first result is used */
#pragma unroll
		for (int i = 0; i < BATCH; i++) {
			const int at = thread + (i0 + i) * 128,
			          pair = min(group * 64 + at / ROW, w.pairs - 1);
			const float *from =
			    q + flash90_head<F>(w, pair) * F::Q_STRIDE + at % ROW * 8;
			x[i][0] = ld_v4(from);
			x[i][1] = ld_v4(from + 4);
		}
#pragma unroll
		for (int i = 0; i < BATCH; i++) {
			const int at = thread + (i0 + i) * 128, row = at / ROW, c = at % ROW;
			unsigned half[4];
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const uint4 v = x[i][k / 2];
				half[k] =
				    k % 2
				        ? flash_pack<F>(__uint_as_float(v.z), __uint_as_float(v.w))
				        : flash_pack<F>(__uint_as_float(v.x), __uint_as_float(v.y));
			}
			st_v4(to + c / 8 * 8192 + row * 128 + ((c ^ row) & 7) * 16,
			      make_uint4(half[0], half[1], half[2], half[3]));
		}
	}
	fence_proxy_async();
	const int last = min(group * 64 + 64, w.pairs) - 1;
	const AttRange from = att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + group * 64) / F::G]);
	const AttRange upto = att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + last) / F::G]);
	r.all_lo = upto.lo;
	r.all_hi = from.hi;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int pair = w.first + min(flash90_pair<F>(h), w.pairs - 1);
		const int pos = s.pos[w.row0 + pair / F::G];
		const AttRange range = att_range<F>(s, w.seq, pos);
		r.lo[h] = range.lo;
		r.hi[h] = range.hi;
		r.pos[h] = pos;
		r.slope[h] = att_slope<F>(w.kv_head * F::G + pair % F::G);
		r.m_all[h] = ATT_NONE;
		r.l_all[h] = 0;
		if (F::MADE && w.begun) {
			const uint2 kept = ld_v2(flash_kept<F>(parts, w, pair - w.first));
			r.m_all[h] = __uint_as_float(kept.x);
			r.l_all[h] = __uint_as_float(kept.y);
		}
	}
	bar_sync(F::OWN + group, 128);
}

template <class F> DEV void
flash90_scores(flash90_rows<F> &r, unsigned long long q, unsigned long long k)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::D / 16; i++)
		flash90_qk(typename F::E(), r.t, q + (i / 4 * 8192 + i % 4 * 32) / 16,
		           k + (i / 4 * F::HALF + i % 4 * 32) / 16, i > 0);
	wgmma_commit();
}

template <class F> DEV void
flash90_sums(flash90_rows<F> &r, unsigned long long v)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::N / 16; i++)
		flash90_pv(typename F::E(), r.o, r.p[i], v + i * 2048 / 16);
	wgmma_commit();
}

/* Softmax step: turns q.k into weights and updates m, l and keep. */
template <class F> DEV void
flash90_weights(flash90_rows<F> &r, int c0)
{
	constexpr bool LINEAR = !(F::SCORES::SOFTCAP > 0) &&
	                        !(F::SCORES::ALIBI > 0); /* true if the score is linear in q.k */
	constexpr float UNIT = LINEAR ? F::SCORES::SCALE * ATT_LOG2E : 1.0f;
	const int j0 = c0 + (int)(lane_id() & 3) * 2;

	if (!LINEAR) {
#pragma unroll
		for (int i = 0; i < F::N / 2; i++)
			r.t[i] = flash_score<F>(r.t[i], r.slope[i / 2 % 2],
			                        j0 + i / 4 * 8 + i % 2 - r.pos[i / 2 % 2]);
	}
	if (c0 < r.all_lo || c0 + F::N > r.all_hi) {
#pragma unroll
		for (int i = 0; i < F::N / 2; i++) {
			const int j = j0 + i / 4 * 8 + i % 2;
			if (j >= r.hi[i / 2 % 2] || (F::WINDOW > 0 && j < r.lo[i / 2 % 2]))
				r.t[i] = __uint_as_float(0xff800000u); /* -inf: its weight is 0 */
		}
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float top = r.t[2 * h], sum = 0;
#pragma unroll
		for (int i = 0; i < F::N / 8; i++)
			top = fmaxf(top, fmaxf(r.t[4 * i + 2 * h], r.t[4 * i + 2 * h + 1]));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
		const float m = fmaxf(r.m[h], __fmul_rn(top, UNIT));
		r.keep[h] = flash_exp2(r.m[h] - m);
		r.m[h] = m;
#pragma unroll
		for (int i = 0; i < F::N / 8; i++) {
			float &x = r.t[4 * i + 2 * h], &y = r.t[4 * i + 2 * h + 1];
			x = flash_exp2(fmaf(x, UNIT, -m));
			y = flash_exp2(fmaf(y, UNIT, -m));
			sum += x + y;
		}
		r.l[h] = fmaf(r.l[h], r.keep[h], sum);
	}
}

template <class F> DEV void
flash90_round(flash90_rows<F> &r)
{
#pragma unroll
	for (int i = 0; i < F::N / 16; i++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			r.p[i][c] =
			    flash_pack_weights<F>(r.t[8 * i + 2 * c], r.t[8 * i + 2 * c + 1]);
}

/* Ends a segment: merges it into y, or stores it for the CTA that combines the parts. */
template <class F> DEV void
flash90_end(const FlashWork &w, const float *sink, flash90_rows<F> &r, float *y, float *parts,
            bool first, bool last)
{
	const int q = (int)(lane_id() & 3) * 2;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		float l = r.l[h], a, b;
		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		const int pair = flash90_pair<F>(h);
		if (pair >= w.pairs)
			continue;
		if (w.parts) {
			float *part = parts + (long long)(w.slot + w.part) * F::PART,
			      *o = part + pair * F::V + q;
#pragma unroll
			for (int n = 0; n < F::V / 8; n++)
				st_v2(o + n * 8,
				      make_uint2(__float_as_uint(r.o[4 * n + 2 * h]),
				                 __float_as_uint(r.o[4 * n + 2 * h + 1])));
			if (q == 0)
				st_v2(part + F::PART_ROWS * F::V + pair * 2,
				      make_uint2(__float_as_uint(r.m[h]), __float_as_uint(l)));
			continue;
		}
		float *o = y + flash90_head<F>(w, pair) * F::Y_STRIDE + q;
		flash_merge(r.m_all[h], r.l_all[h], r.m[h], l, a, b);
		if (F::MADE && w.open && q == 0)
			st_v2(flash_kept<F>(parts, w, pair),
			      make_uint2(__float_as_uint(r.m_all[h]), __float_as_uint(r.l_all[h])));
		const float scale =
		    !F::KEEPS || last
		        ? 1.0f / (r.l_all[h] +
		                  att_sink(flash_sink<F>(sink, w, w.first + pair), r.m_all[h]))
		        : 1.0f;
		uint2 old[F::V / 8] = {};
		if (F::KEEPS && !first)
#pragma unroll
			for (int n = 0; n < F::V / 8; n++)
				old[n] = ld_v2(o + n * 8);
#pragma unroll
		for (int n = 0; n < F::V / 8; n++) {
			const float x = __fmul_rn(
			    fmaf(__uint_as_float(old[n].x), a, __fmul_rn(r.o[4 * n + 2 * h], b)),
			    scale);
			const float z = __fmul_rn(fmaf(__uint_as_float(old[n].y), a,
			                               __fmul_rn(r.o[4 * n + 2 * h + 1], b)),
			                          scale);
			st_v2(o + n * 8, make_uint2(__float_as_uint(x), __float_as_uint(z)));
		}
	}
}

/* Mainloop of a tile. turns: all warpgroups take part, and issue wgmma by turns. done: number of
 * finished parts of each split tile, 0 before and after */
template <class F> DEV void
flash90_tile(flash90_shared_storage<F> &a, const llmc_step &s, const float *q, const float *sink,
             float *y, float *parts, const FlashWork &w, flash90_stage<F> &ks, flash90_stage<F> &vs)
{
	const int group = flash90_group<F>(), first = __shfl_sync(~0u, w.lo / F::N, 0),
	          end = __shfl_sync(~0u, (w.hi + F::N - 1) / F::N, 0);
	const bool turns = __shfl_sync(~0u, w.pairs, 0) > 64 * (F::GROUPS - 1);
	const unsigned long long qd = smem_desc(a.q[group], 16, 1024, 128),
	                         kd = smem_desc(a.k[0], 16, 1024, 128);
	const unsigned long long vd = smem_desc(a.v[0], F::HALF, 1024, 128);
	flash90_rows<F> r;

	flash90_begin<F>(a, s, q, parts, w, r);
	for (int c = first; c < end;) {
		const int start = c,
		          stop = F::SEGMENTED
		                     ? min(end, (c * F::N / F::SEGMENT + 1) * (F::SEGMENT / F::N))
		                     : end;
#pragma unroll
		for (int h = 0; h < 2; h++) {
			r.m[h] = ATT_NONE;
			r.l[h] = 0;
		}
#pragma unroll
		for (int i = 0; i < F::PV_COLS / 2; i++)
			r.o[i] = 0;
		mbar_wait(&a.k_full[ks.at], ks.round);
		flash90_scores<F>(r, qd, kd + ks.at * (F::K_TILE / 16));
		wgmma_wait<0>();
		wgmma_pin(r.t);
		flash90_arrive(&a.k_empty[ks.at]);
		ks.next();
		flash90_weights<F>(r, c * F::N);
		flash90_round<F>(r);
		if (++c < stop)
			mbar_wait(&a.k_full[ks.at], ks.round);
#pragma unroll 1
		for (; c < stop; c++) {
			if (turns)
				bar_sync(F::ROTATE + group, 256);
			flash90_scores<F>(r, qd, kd + ks.at * (F::K_TILE / 16));
			mbar_wait(&a.v_full[vs.at], vs.round);
			flash90_sums<F>(r, vd + vs.at * (F::V_TILE / 16));
			if (turns)
				bar_arrive(F::ROTATE + (group + 1) % F::GROUPS, 256);
			wgmma_wait<1>();
			wgmma_pin(r.t);
			flash90_arrive(&a.k_empty[ks.at]);
			ks.next();
			flash90_weights<F>(r, c * F::N);
			wgmma_pin(r.t);
			/* a loop, because it also keeps the compiler from moving the wait below
			 * above the exponentials */
			if (c + 1 < stop)
				mbar_wait(&a.k_full[ks.at], ks.round);
			wgmma_wait<0>();
			wgmma_pin(r.o);
			flash90_arrive(&a.v_empty[vs.at]);
			vs.next();
#pragma unroll
			for (int i = 0; i < F::PV_COLS / 2; i++)
				r.o[i] *= r.keep[i / 2 % 2];
			flash90_round<F>(r);
		}
		mbar_wait(&a.v_full[vs.at], vs.round);
		flash90_sums<F>(r, vd + vs.at * (F::V_TILE / 16));
		wgmma_wait<0>();
		wgmma_pin(r.o);
		flash90_arrive(&a.v_empty[vs.at]);
		vs.next();
		flash90_end<F>(w, sink, r, y, parts, start == first && !w.begun,
		               stop == end && !w.open);
	}
}

/* Counts a stored part. The CTA that stores the last part combines all of them. threads: number of
 * threads of this CTA that take part, from the first consumer warpgroup on */
template <class F> DEV void
flash90_part(flash90_shared_storage<F> &a, const FlashWork &w, const float *sink, float *y,
             const float *parts, int *done, int threads)
{
	const int thread = (int)threadIdx.x - 128;

	bar_sync(F::ALL, threads);
	if (thread == 0) {
		a.last = atom_add_acq_rel_gpu(done + w.slot, 1) == w.parts - 1;
		if (a.last)
			done[w.slot] = 0;
	}
	bar_sync(F::ALL, threads);
	if (a.last)
		flash_gather<F>(w, sink, y, parts, thread, threads);
}

template <class F> DEV void
flash90_multiply(flash90_shared_storage<F> &a, const llmc_step &s, const float *q,
                 const float *sink, float *y, float *parts, int *done)
{
	const int group = flash90_group<F>();
	flash90_ring<2> work;
	flash90_stage<F> ks, vs;

	if (group == F::GROUPS - 1)
		bar_arrive(F::ROTATE, 256);
	for (;; work.next()) {
		const FlashWork &w = a.work[work.at];
		mbar_wait(&a.work_full[work.at], work.round);
		if (!a.found[work.at])
			break;
		if (group * 64 < w.pairs) {
			flash90_tile<F>(a, s, q, sink, y, parts, w, ks, vs);
			if (w.parts)
				flash90_part<F>(a, w, sink, y, parts, done,
				                (w.pairs + 63) / 64 * 128);
		} else {
			for (int c = w.lo / F::N; c * F::N < w.hi; c++, ks.next(), vs.next()) {
				mbar_wait(&a.k_full[ks.at], ks.round);
				flash90_arrive(&a.k_empty[ks.at]);
				mbar_wait(&a.v_full[vs.at], vs.round);
				flash90_arrive(&a.v_empty[vs.at]);
			}
		}
		flash90_arrive(&a.work_empty[work.at]);
	}
	if (group == 0)
		bar_sync(F::ROTATE, 256);
}

/* Kernel body. sink: per head, or NULL. parts: results of split tiles; with MADE, m and l
 * [n_tok][HEADS] between rounds. count: [0] is the number of work items fetched beyond the first
 * one of each CTA, [1] the number of CTAs that have finished; then follow the numbers of finished
 * parts. All are 0 before and after. */
template <class F> DEV void
flash90_run(const llmc_step &s, const float *q, const void *pool, const tensor_map *map,
            const float *sink, float *y, float *parts, int *count)
{
	SHARED_STORAGE(flash90_shared_storage<F>, a);

	if (threadIdx.x < F::STAGES) {
		mbar_init(&a.k_full[threadIdx.x], 1);
		mbar_init(&a.v_full[threadIdx.x], 1);
		mbar_init(&a.k_empty[threadIdx.x], 4 * F::GROUPS);
		mbar_init(&a.v_empty[threadIdx.x], 4 * F::GROUPS);
	}
	if (threadIdx.x < 2) {
		mbar_init(&a.work_full[threadIdx.x], 1);
		mbar_init(&a.work_empty[threadIdx.x], 4 * F::GROUPS);
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		/* registers per thread over the warpgroups: 32 + 3 * 160 = 512, or 40 + 2 * 232 =
		 * 504 */
		reg_dec<(F::GROUPS == 3 ? 32 : 40)>();
		if (threadIdx.x < 32)
			flash90_copy<F>(a, s, q, pool, map, count);
	} else {
		reg_inc<(F::GROUPS == 3 ? 160 : 232)>();
		flash90_multiply<F>(a, s, q, sink, y, parts, count + 2);
	}
}

#endif
