/* Flash attention of mixed steps on tensor cores: any number of rows per sequence, over paged K and
 * V of 16 bits.
 *
 *   all warps   K, V of a chunk  memory --cp.async--> stage --ldmatrix (V: .trans)--> B of the mma
 *               queries          memory --round--> registers, or shared memory --> A of the mma
 *               prologue: prefetch STAGES - 1 chunks
 *               mainloop: wait for the oldest, barrier, prefetch the next, commit
 *                         S = Q K^T, scores --softmax--> A of the mma (registers), O = O keep + P V
 *   segment     O, m, l --> y (merged with earlier segments), or a part in memory and a counter;
 *               the last CTA to arrive combines the parts
 *
 * The result of a row is defined as follows, and depends on nothing else:
 *
 *   score    s_j = flash_score<F>(q . k_j), q rounded to the type of the pool, terms added 16 at a
 *            time in the order of d
 *   chunk    positions [32 c, 32 c + 32), a page: m' = max(m, max s_j),
 *            o = o 2^(m - m') + sum 2^(s_j - m') v_j, weights rounded to the pool's type;
 *            l likewise, unrounded
 *   segment  16 chunks, from m = none, l = 0, o = 0; with MADE, the end of a round ends a segment
 * too
 *   row      segments in order: m' = max(m, m_i), o = o 2^(m - m') + o_i 2^(m_i - m'),
 *            l likewise; y = o (1 / l)
 *
 * Chunks and segments in which a row sees nothing leave its result bit-identical, so rows with
 * different ranges can share a tile.
 *
 * cuda/attention/flash_tile.h schedules the work. A pair is a row and a query head; a warp holds 16
 * * MT pairs. Long tiles process their segments in order and keep the running result in y.
 *
 * Resources (ptxas 13.0, no spills): heads of 128 take 237-255 registers, so two CTAs (8 warps)
 * share an SM. Per chunk a warp issues 128 mma, 48 loads from shared memory and about 250 other
 * instructions; 32 x 32 scores need 24 KB of shared memory. Not measured on a GPU yet.
 *
 * Entry point: flash_run<F>, with F a flash_config. */
#ifndef LLMC_CUDA_ATTENTION_FLASH_H
#define LLMC_CUDA_ATTENTION_FLASH_H

#include "cuda/attention/flash_tile.h"

/* Tile sizes and memory of attention A on an architecture. */
template <class A, int ARCH> struct flash_config
    : flash_parts<A, A::D <= 128 && A::V <= 128 ? 128 : 64, 512> {
	enum {
		THREADS = 128,
		WARPS = THREADS / 32,
		C = KV_PAGE, /* positions per chunk */
		/* chunks in flight, as many as allow two CTAs per SM; the @launch line has the same
		 * formula */
		STAGES = A::D <= 64 && A::V <= 64 ||
		                 (ARCH == 90 || ARCH == 100) && A::D <= 128 && A::V <= 128
		             ? 3
		             : 2,
		MT = A::D <= 128 && A::V <= 128
		         ? 2
		         : 1, /* multiples of 16 pairs per warp: ROWS is WARPS * MT * 16 */
		KK = A::D / 16,
		VN = A::V / 8,
		/* bytes per row of K; an odd number of 16-byte vectors, so that ldmatrix has no
		 * bank conflicts */
		K_ROW = (A::D / 8 / 2 * 2 + 1) * 16,
		V_ROTATED =
		    A::V == 256, /* there is no memory for padding, so V is swizzled instead */
		V_ROW = V_ROTATED ? A::V * 2 : (A::V / 8 / 2 * 2 + 1) * 16,
		STAGE = C * (K_ROW + V_ROW),
		/* 1: queries are in shared memory, because registers do not suffice */
		Q_SHARED = A::D > 64 || A::V > 64,
		/* not fully unrolled: the compiler would hoist all loads, and registers would
		 * spill */
		UNROLL = Q_SHARED ? (A::D % 64 ? 2 : 4) : KK,
		Q_BYTES = Q_SHARED * WARPS * MT * 16 * A::D * 2
	};
	static_assert(A::D % 16 == 0 && A::V % 16 == 0, "shapes");
};

/* Byte offset of 16-byte vector c of row r of V. */
template <class F> DEV int
flash_v_offset(int r, int c)
{
	return r * F::V_ROW + (F::V_ROTATED ? c ^ (r & 7) : c) * 16;
}

/* Source offset, in elements, of vector `at` of a chunk: vector c of row j. Rows have D elements
 * and are STRIDE elements apart. */
template <int STRIDE, int D> DEV long long
flash_at(int at, int j, int c)
{
	return STRIDE == D ? at * 8 : (long long)j * STRIDE + c * 8;
}

/* Loads 8-element vector c of row j of a plane P to shared memory. before: offset of the vector in
 * elements. Plain rows use cp.async; quantised rows are converted at once. Vectors that no row
 * attends to are set to zero. */
template <class F, class P, class T> DEV void
flash_load_vector(unsigned char *to, const T *plane, long long before, int j, int c, bool seen)
{
	if constexpr (P::UNQUANTISED) {
		cp_async_16_fill(to, plane + before, seen ? 16 : 0);
	} else {
		float x[8] = {};
		if (seen)
			P::load(plane, j, c * 8, x);
		st_v4(to, make_uint4(flash_pack<F>(x[0], x[1]), flash_pack<F>(x[2], x[3]),
		                     flash_pack<F>(x[4], x[5]), flash_pack<F>(x[6], x[7])));
	}
}

/* Starts the loads of a chunk of K and V to shared memory. Positions that no row of the tile
 * attends to are set to zero. */
template <class F> DEV void
flash_load(unsigned char *stage, typename F::source from, int page, const FlashWork &w, int c0)
{
	const auto *k = F::chunk_k(from, page, w.base, w.kv_head, c0);
	const auto *v = F::chunk_v(from, page, w.base, w.kv_head, c0);
	const int lo = w.lo - c0, hi = w.hi - c0;

	/* codes are unpacked one vector at a time, to save registers */
	constexpr int K_VECTORS = (F::C * F::D / 8 + F::THREADS - 1) / F::THREADS,
	              V_VECTORS = (F::C * F::V / 8 + F::THREADS - 1) / F::THREADS;
	constexpr int K_UNROLL = F::KP::UNQUANTISED ? K_VECTORS : 1,
	              V_UNROLL = F::VP::UNQUANTISED ? V_VECTORS : 1;
#pragma unroll(K_UNROLL)
	for (int i = 0; i < K_VECTORS; i++) {
		const int at = (int)threadIdx.x + i * F::THREADS, j = at / (F::D / 8),
		          c = at % (F::D / 8);
		if (F::C * F::D / 8 % F::THREADS == 0 || at < F::C * F::D / 8)
			flash_load_vector<F, typename F::KP>(stage + j * F::K_ROW + c * 16, k,
			                                     flash_at<F::K_STRIDE, F::D>(at, j, c),
			                                     j, c, j >= lo && j < hi);
	}
	stage += F::C * F::K_ROW;
#pragma unroll(V_UNROLL)
	for (int i = 0; i < V_VECTORS; i++) {
		const int at = (int)threadIdx.x + i * F::THREADS, j = at / (F::V / 8),
		          c = at % (F::V / 8);
		if (F::C * F::V / 8 % F::THREADS == 0 || at < F::C * F::V / 8)
			flash_load_vector<F, typename F::VP>(stage + flash_v_offset<F>(j, c), v,
			                                     flash_at<F::V_STRIDE, F::V>(at, j, c),
			                                     j, c, j >= lo && j < hi);
	}
}

/* A pair of the tile: its visible positions, and the result of earlier segments. Only threads of
 * one warp read what that warp wrote. The values are in shared memory to save registers. */
typedef struct FlashPair {
	int lo, hi, pos;
	float slope, m, l;
} FlashPair;

/* Positions that all pairs of a warp attend to, and positions that any of its pairs attends to */
typedef struct FlashWarp {
	int all_lo, all_hi, some_lo, some_hi;
} FlashWarp;

template <class F> struct flash_block {
	FlashWork w;
	FlashWarp warp[F::WARPS];
	FlashPair pair[F::ROWS];
	int found, item, last;
};

/* A thread's fragment of its warp's pairs: rows g and g + 8 of each of F::MT times 16. */
template <class F> struct flash_rows {
	unsigned q[F::MT][F::Q_SHARED ? 1 : F::KK][4];
	float o[F::MT][F::VN][4];
	float m[F::MT][2],
	    l[F::MT][2]; /* state of the segment; l covers only the columns of this thread */
};

/* Slot of the queries in shared memory: 16 bytes per lane, in fragment order */
template <class F> DEV unsigned char *
flash_query(unsigned char *queries, int i, int kk)
{
	return queries + ((((int)warp_id() * F::MT + i) * F::KK + kk) * 32 + (int)lane_id()) * 16;
}

template <class F> DEV int
flash_pair(int i, int half)
{
	return ((int)warp_id() * F::MT + i) * 16 + half * 8 + (int)(lane_id() >> 2);
}

template <class F> DEV void
flash_reset(flash_rows<F> &r)
{
#pragma unroll
	for (int i = 0; i < F::MT; i++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			r.m[i][h] = ATT_NONE;
			r.l[i][h] = 0;
		}
#pragma unroll
		for (int n = 0; n < F::VN; n++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				r.o[i][n][c] = 0;
	}
}

template <class F> DEV void
flash_begin(unsigned char *queries, const llmc_step &s, const float *q, float *parts,
            flash_block<F> &b, flash_rows<F> &r)
{
	const FlashWork &w = b.w;
	const int warp_first = (int)warp_id() * F::MT * 16;

	for (int at = (int)lane_id(); at < F::MT * 16; at += 32) {
		const int pair = w.first + warp_first + at;
		FlashPair x = {
			0, 0, 0, att_slope<F>(w.kv_head * F::G + pair % F::G), ATT_NONE, 0
		};
		if (warp_first + at < w.pairs) {
			x.pos = s.pos[w.row0 + pair / F::G];
			const AttRange range = att_range<F>(s, w.seq, x.pos);
			x.lo = range.lo;
			x.hi = range.hi;
			if (F::MADE && w.begun) {
				const uint2 kept = ld_v2(flash_kept<F>(parts, w, warp_first + at));
				x.m = __uint_as_float(kept.x);
				x.l = __uint_as_float(kept.y);
			}
		}
		b.pair[warp_first + at] = x;
	}
#pragma unroll
	for (int i = 0; i < F::MT; i++) {
		const float *from[2];
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int pair = w.first + min(flash_pair<F>(i, h), w.pairs - 1);
			from[h] = q +
			          ((long long)(w.row0 + pair / F::G) * F::HEADS + w.kv_head * F::G +
			           pair % F::G) *
			              F::Q_STRIDE +
			          (lane_id() & 3) * 2;
		}
#pragma unroll
		for (int k = 0; k < F::KK; k++) {
			unsigned a[4];
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint2 v = ld_v2(from[c % 2] + k * 16 + c / 2 * 8);
				a[c] = flash_pack<F>(__uint_as_float(v.x), __uint_as_float(v.y));
			}
			if (F::Q_SHARED)
				st_v4(flash_query<F>(queries, i, k),
				      make_uint4(a[0], a[1], a[2], a[3]));
			else
#pragma unroll
				for (int c = 0; c < 4; c++)
					r.q[i][F::Q_SHARED ? 0 : k][c] = a[c];
		}
	}
	FlashWarp x = { 0, 0, 0, 0 };
	if (warp_first < w.pairs) {
		const int last = min(warp_first + F::MT * 16, w.pairs) - 1;
		const AttRange from =
		    att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + warp_first) / F::G]);
		const AttRange to = att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + last) / F::G]);
		x = { to.lo, from.hi, from.lo, to.hi };
	}
	if (lane_id() == 0)
		b.warp[warp_id()] = x;
	__syncwarp();
	flash_reset<F>(r); /* not done earlier, because zeros occupy registers too */
}

/* Sets scores of chunk c0 outside of each pair's range to minus infinity, so that their weights are
 * 0. */
template <class F> DEV void
flash_mask(float (&t)[F::MT][F::C / 8][4], int c0, const flash_block<F> &b)
{
	const int lane = (int)lane_id();

	if (c0 >= b.warp[warp_id()].all_lo && c0 + F::C <= b.warp[warp_id()].all_hi)
		return;
#pragma unroll
	for (int i = 0; i < F::MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int lo = b.pair[flash_pair<F>(i, h)].lo,
			          hi = b.pair[flash_pair<F>(i, h)].hi;
#pragma unroll
			for (int n = 0; n < F::C / 8; n++)
#pragma unroll
				for (int c = 0; c < 2; c++) {
					const int j = c0 + n * 8 + (lane & 3) * 2 + c;
					if (j < lo || j >= hi)
						t[i][n][2 * h + c] = __uint_as_float(0xff800000u);
				}
		}
}

/* Adds the chunk's values to the sums, with weights p. */
template <class F> DEV void
flash_values(const unsigned char *stage, const unsigned (&p)[F::MT][F::C / 16][4], flash_rows<F> &r)
{
	const int lane = (int)lane_id();
	const unsigned char *v = stage + F::C * F::K_ROW;
#pragma unroll
	for (int kk = 0; kk < F::C / 16; kk++)
#pragma unroll
		for (int n = 0; n < F::VN; n += 2) {
			unsigned kv[4];
			ldmatrix_x4_trans(kv, v + flash_v_offset<F>(lane & 15, n + (lane >> 4)) +
			                          kk * 16 * F::V_ROW);
			const unsigned b0[2] = { kv[0], kv[1] }, b1[2] = { kv[2], kv[3] };
#pragma unroll
			for (int i = 0; i < F::MT; i++) {
				kv_mma<typename F::E>::product(r.o[i][n], p[i][kk], b0);
				kv_mma<typename F::E>::product(r.o[i][n + 1], p[i][kk], b1);
			}
		}
}

/* Processes the chunk at c0 for this warp's pairs. */
template <class F> DEV void
flash_chunk(unsigned char *queries, const unsigned char *stage, int c0, const flash_block<F> &b,
            flash_rows<F> &r)
{
	const int lane = (int)lane_id();
	constexpr bool LINEAR = !(F::SCORES::SOFTCAP > 0) &&
	                        !(F::SCORES::ALIBI > 0); /* true if the score is linear in q.k */
	constexpr float UNIT = LINEAR ? F::SCORES::SCALE * ATT_LOG2E : 1.0f;
	float t[F::MT][F::C / 8][4] = {};
	const unsigned char *k =
	    stage + ((lane & 7) + (lane >> 4 << 3)) * F::K_ROW + (lane >> 3 & 1) * 16;

	constexpr int UNROLL = F::UNROLL;
#pragma unroll(UNROLL)
	for (int kk = 0; kk < F::KK; kk++) {
		unsigned a[F::MT][4];
#pragma unroll
		for (int i = 0; i < F::MT; i++) {
			uint4 v = make_uint4(0, 0, 0, 0);
			if (F::Q_SHARED)
				v = ld_v4(flash_query<F>(queries, i, kk));
			const unsigned *from = r.q[i][F::Q_SHARED ? 0 : kk];
			a[i][0] = F::Q_SHARED ? v.x : from[0];
			a[i][1] = F::Q_SHARED ? v.y : from[1];
			a[i][2] = F::Q_SHARED ? v.z : from[2];
			a[i][3] = F::Q_SHARED ? v.w : from[3];
		}
#pragma unroll
		for (int n = 0; n < F::C / 8; n += 2) {
			unsigned kv[4];
			ldmatrix_x4(kv, k + n * 8 * F::K_ROW + kk * 32);
			const unsigned b0[2] = { kv[0], kv[1] }, b1[2] = { kv[2], kv[3] };
#pragma unroll
			for (int i = 0; i < F::MT; i++) {
				kv_mma<typename F::E>::product(t[i][n], a[i], b0);
				kv_mma<typename F::E>::product(t[i][n + 1], a[i], b1);
			}
		}
	}
	if (!LINEAR) {
#pragma unroll
		for (int i = 0; i < F::MT; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const FlashPair &x = b.pair[flash_pair<F>(i, h)];
#pragma unroll
				for (int n = 0; n < F::C / 8; n++)
#pragma unroll
					for (int c = 0; c < 2; c++)
						t[i][n][2 * h + c] = flash_score<F>(
						    t[i][n][2 * h + c], x.slope,
						    c0 + n * 8 + (lane & 3) * 2 + c - x.pos);
			}
	}
	flash_mask<F>(t, c0, b);
	unsigned p[F::MT][F::C / 16][4];
	float keep[F::MT][2];
	bool same = true;
#pragma unroll
	for (int i = 0; i < F::MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float top = t[i][0][2 * h], sum = 0;
#pragma unroll
			for (int n = 0; n < F::C / 8; n++)
				top = fmaxf(top, fmaxf(t[i][n][2 * h], t[i][n][2 * h + 1]));
			top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
			top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
			const float m = fmaxf(r.m[i][h], __fmul_rn(top, UNIT));
			same = same && m == r.m[i][h];
			keep[i][h] = flash_exp2(r.m[i][h] - m);
			r.m[i][h] = m;
#pragma unroll
			for (int n = 0; n < F::C / 8; n++) {
				const float a = flash_exp2(fmaf(t[i][n][2 * h], UNIT, -m)),
				            b = flash_exp2(fmaf(t[i][n][2 * h + 1], UNIT, -m));
				sum += a + b;
				p[i][n / 2][n % 2 * 2 + h] = flash_pack_weights<F>(a, b);
			}
			r.l[i][h] = fmaf(r.l[i][h], keep[i][h], sum);
		}
	if (!__all_sync(~0u, same)) { /* otherwise all factors are 1 */
#pragma unroll
		for (int i = 0; i < F::MT; i++)
#pragma unroll
			for (int n = 0; n < F::VN; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					r.o[i][n][c] *= keep[i][c / 2];
	}
	flash_values<F>(stage, p, r);
}

/* Ends a segment: merges it into y, or stores it for the CTA that combines the parts. */
template <class F> DEV void
flash_segment(const FlashWork &w, const float *sink, FlashPair *pairs, flash_rows<F> &r, float *y,
              float *parts, bool first, bool last)
{
	const int lane = (int)lane_id();

#pragma unroll
	for (int i = 0; i < F::MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float l = r.l[i][h], a, b;
			l += __shfl_xor_sync(~0u, l, 1);
			l += __shfl_xor_sync(~0u, l, 2);
			const int pair = flash_pair<F>(i, h);
			if (pair >= w.pairs)
				continue;
			if (w.parts) {
				float *part = parts + (long long)(w.slot + w.part) * F::PART;
				float *o = part + pair * F::V + (lane & 3) * 2;
#pragma unroll
				for (int n = 0; n < F::VN; n++)
					st_v2(o + n * 8,
					      make_uint2(__float_as_uint(r.o[i][n][2 * h]),
					                 __float_as_uint(r.o[i][n][2 * h + 1])));
				if ((lane & 3) == 0)
					st_v2(part + F::PART_ROWS * F::V + pair * 2,
					      make_uint2(__float_as_uint(r.m[i][h]),
					                 __float_as_uint(l)));
				continue;
			}
			const int at = w.first + pair;
			float *o = y +
			           ((long long)(w.row0 + at / F::G) * F::HEADS + w.kv_head * F::G +
			            at % F::G) *
			               F::Y_STRIDE +
			           (lane & 3) * 2;
			float m = pairs[pair].m, sum = pairs[pair].l;
			flash_merge(m, sum, r.m[i][h], l, a, b);
			const float scale =
			    last ? 1.0f / (sum + att_sink(flash_sink<F>(sink, w, at), m)) : 1.0f;
			/* the four threads of a pair have read the old value */
			__syncwarp(0xfu << (lane & 28));
			if ((lane & 3) == 0) {
				pairs[pair].m = m;
				pairs[pair].l = sum;
				if (F::MADE && w.open)
					st_v2(flash_kept<F>(parts, w, pair),
					      make_uint2(__float_as_uint(m), __float_as_uint(sum)));
			}
#pragma unroll
			for (int n = 0; n < F::VN; n++) {
				uint2 old = make_uint2(0, 0);
				if (!first)
					old = ld_v2(o + n * 8);
				const float x = __fmul_rn(
				    fmaf(__uint_as_float(old.x), a, __fmul_rn(r.o[i][n][2 * h], b)),
				    scale);
				const float z = __fmul_rn(fmaf(__uint_as_float(old.y), a,
				                               __fmul_rn(r.o[i][n][2 * h + 1], b)),
				                          scale);
				st_v2(o + n * 8,
				      make_uint2(__float_as_uint(x), __float_as_uint(z)));
			}
		}
}

template <class F> DEV int
flash_page(const llmc_step &s, const FlashWork &w, int chunk)
{
	if (F::MADE)
		return 0;
	return chunk * F::C < w.hi ? s.block_table[(long long)w.seq * s.block_stride + chunk] : 0;
}

/* Processes one work item. done: number of finished parts of each split tile, 0 before and after */
template <class F> DEV void
flash_tile(unsigned char *smem, flash_block<F> &b, const llmc_step &s, const float *q,
           typename F::source pool, const float *sink, float *y, float *parts, int *done)
{
	const FlashWork &w = b.w;
	flash_rows<F> r;
	unsigned char *queries = smem + F::STAGES * F::STAGE;
	int page = flash_page<F>(s, w, w.lo / F::C); /* page of the next chunk to load */

#pragma unroll
	for (int i = 0; i < F::STAGES - 1; i++) {
		const int c = w.lo / F::C + i;
		if (c * F::C < w.hi)
			flash_load<F>(smem + i * F::STAGE, pool, page, w, c * F::C);
		cp_async_commit();
		page = flash_page<F>(s, w, c + 1);
	}
	flash_begin<F>(queries, s, q, parts, b, r);
	int at = 0;
	/* Not unrolled. Values that the loop rarely needs are reloaded where they are needed, to
	 * save registers. */
#pragma unroll 1
	for (int c = w.lo / F::C; c * F::C < w.hi; c++) {
		cp_async_wait<F::STAGES - 2>();
		__syncthreads();
		const int next = c + F::STAGES - 1;
		if (next * F::C < w.hi)
			flash_load<F>(smem + (at == 0 ? F::STAGES - 1 : at - 1) * F::STAGE, pool,
			              page, w, next * F::C);
		cp_async_commit();
		page = flash_page<F>(s, w, next + 1);
		if (c * F::C < b.warp[warp_id()].some_hi &&
		    (c + 1) * F::C > b.warp[warp_id()].some_lo)
			flash_chunk<F>(queries, smem + at * F::STAGE, c * F::C, b, r);
		const bool last = (c + 1) * F::C >= w.hi;
		if (last || (c + 1) % (F::SEGMENT / F::C) == 0) {
			flash_segment<F>(w, sink, b.pair, r, y, parts,
			                 c * F::C / F::SEGMENT == w.lo / F::SEGMENT && !w.begun,
			                 last && !w.open);
			flash_reset<F>(r);
		}
		at = at + 1 == F::STAGES ? 0 : at + 1;
	}
	cp_async_wait_all();
	if (w.parts) {
		__syncthreads();
		if (threadIdx.x == 0) {
			b.last = atom_add_acq_rel_gpu(done + w.slot, 1) == w.parts - 1;
			if (b.last)
				done[w.slot] = 0;
		}
		__syncthreads();
		if (b.last)
			flash_gather<F>(w, sink, y, parts, (int)threadIdx.x, F::THREADS);
	}
}

/* Kernel body. sink: per head, or NULL. parts: results of split tiles; with MADE, m and l
 * [n_tok][HEADS] between rounds. count: [0] is the number of work items fetched beyond the first
 * one of each CTA, [1] the number of CTAs that have finished; then follow the numbers of finished
 * parts. All are 0 before and after. */
template <class F> DEV void
flash_run(const llmc_step &s, const float *q, typename F::source pool, const float *sink, float *y,
          float *parts, int *count)
{
	SHARED_BYTES(smem);
	static_assert(sizeof(flash_block<F>) <= 1664 * F::MT,
	              "must match shared in the @launch line");
	flash_block<F> &b = *(flash_block<F> *)(smem + F::STAGES * F::STAGE + F::Q_BYTES);

	for (int item = (int)blockIdx.x;; item = b.item) {
		__syncthreads();
		if (warp_id() == 0) {
			const bool found = flash_find<F>(s, item, b.w);
			if (found)
				flash_clip<F>(s, b.w);
			if (lane_id() == 0) {
				b.found = found;
				b.item = (int)gridDim.x + atomicAdd(count, 1);
			}
		}
		__syncthreads();
		if (!b.found)
			break;
		if (!F::MADE || b.w.pairs > 0)
			flash_tile<F>(smem, b, s, q, pool, sink, y, parts, count + 2);
	}
	if (threadIdx.x == 0 && atomicAdd(count + 1, 1) == (int)gridDim.x - 1) {
		atomicExch(count, 0);
		atomicExch(count + 1, 0);
	}
}

#endif
