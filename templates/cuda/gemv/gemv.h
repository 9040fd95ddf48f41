/* y = W x for up to 8 rows of x: the GEMV of decode steps. The bytes of W limit its speed.
 *
 *   each warp of a CTA is both producer and consumer:
 *     weights   memory --cp.async--> stage of its ring --ld.shared--> fragment --scales--> A of mma
 *     x         memory --cp.async--> shared --norm, split--> shared --ld.shared-->         B of mma
 *     ring      fill, wait (gate), load x; main loop: wait for the oldest stage, load it, prefetch
 *               into it, commit, mma
 *   CTA         8 partial sums of each result --> shared, barrier --> epilogue, per tile of groups
 *   split-K     partial sums --> scratch, counter; the last CTA of a range to arrive adds them in
 *               order --> epilogue
 *
 * Functions: gemv_split_range (the CTA's groups and columns), gemv_stage_x, gemv_stream_groups (the
 * main loop is gemv_groups), gemv_store and gemv_finish (cuda/gemv/gemv_finish.h).
 *
 * Bytes: W once. A stage is 1 KB of bf16 (16 rows x 32 columns), q8_0 (16 x 64) or nibbles (16 x
 * 128), plus its scales. Instructions per warp and stage (sm_90a, one row of x): bf16 53, of
 * which 2 LDGSTS, 3 LDS, 2 HMMA; q8_0 101; q4_0 127, q4_k 157, q5_k 183, with 4 to 6 LDGSTS and
 * 8 HMMA.
 *
 * Work: rows of W form groups of 8, and two groups are processed at a time. Columns form units
 * (W::stream, cuda/weights/weights.h). A CTA of 8 warps has a range of groups. Units of a row are
 * assigned to the warps in turn, so the CTA reads its 16 rows as 16 wide streams. Warps wait for
 * each other only at the end of a tile of groups, where the 8 partial sums of each result are added
 * in shared memory, in the order of warps. If a range has an odd number of groups, its last one is
 * processed alone.
 *
 * Mma: 16 rows of weights are A, x is B. One row of x has its 16-bit part in one column of B and
 * the rounding residual in another. With up to 8 rows, each of the two parts is an mma of its own.
 * So x keeps 16 (bf16) or 22 bits (f16), and 8 rows cost little more than one. With a block format
 * and one row, columns of B are free, so each of a unit's four sub-blocks gets a pair of columns.
 * Weights enter the mma as integers, which takes one instruction per pair and rounds nothing, and
 * each lane scales the sums of one sub-block (gemv_unit_whole).
 *
 * In flight: each warp has a ring of units, which it refills as stages are emptied. The rings of an
 * SM have 40 KB (sm_80, 90, 100) or 24 KB. For one row (RING1) they also use all memory that x does
 * not need: 88 KB at 4096 columns. The ring is first filled before the gate's wait, from addresses
 * that depend on the launch only. These loads overlap with most of the end of the previous kernel
 * (figures: docs/kernels/gemv.md). One CTA runs per SM, and the runtime reserves the SM for it
 * (cuda_shared_of); CTAs of the next kernel start as these exit. The ring is in shared memory and
 * not in registers, because a warp has only six scoreboards. With a deeper ring in registers, a
 * wait for the oldest load would also wait for the newest.
 *
 * The norm is not a separate phase. While x is loaded to shared memory, it is multiplied by the
 * norm's weights, and its squares are summed. The results are divided by the root of the mean
 * square at the end. (Layer norms need the mean first: one more pass over x.)
 *
 * Split-K: columns may be split. CTAs of one range of groups then write partial sums to scratch,
 * and the last to arrive adds these in the order of splits. gemv_splits chooses the number of
 * splits from the launch's `rows`. There are two reasons to split: more rows of x than shared
 * memory holds (4 at 4096 columns), or an uneven division of groups, since a range has G / blocks
 * of them, rounded up or down. H200, 132 CTAs, largest share over mean:
 *
 *   rows of W          groups per CTA, largest / mean
 *   4096 (512 groups)  4 / 3.88
 *   6144               6 / 5.82
 *   2 x 14336          28 / 27.2
 *   128256             122 / 121.5
 *   2048               2 / 1.94
 *   3584               4 / 3.39; in two splits 7 / 6.79 (chosen for block formats of many columns)
 *
 * More than 8 rows are processed in turns.
 *
 * gemv<G>(gate, rows, x, norm, w, e, to, call): G is a gemv_config (cuda/gemv/gemv_smem.h). gate
 * waits for the previous op (cuda/runtime/gate.h). `rows` is the number of rows that the launch was
 * sized for. When a warp has issued its last load of W, it prefetches the weights that `call` names
 * (cuda/runtime/prefetch.h; NULL: none). A kernel may call gemv for several matrices, with a
 * barrier between the calls. The epilogue e selects rows of W and stores the results:
 *
 *     GROUPS                  number of groups of 8 weight rows
 *     UNIT                    groups that the last of their CTAs to arrive finishes together; 0:
 *                             each group is stored when it is complete
 *     FIRST                   1: count and x_row must be read before x
 *     row(group, n)           row of W, for n in 0 .. 7; n and n + 4 are paired
 *     count(), x_row(t)       number of rows of x, index of row t in x
 *     X_STRIDE                floats between rows of x; default: the columns
 *     NEEDS_PAGE              1: store needs the position and page of each row
 *     position(t), page(pos)  position and sequence of row t; page that holds it
 *     prefetch(group, j, t)   issues the loads that store needs
 *     store(group, j, t, a, b, early, slot)   results j and j + 4 of the group for row t
 *     raw(i, v)               UNIT > 0: converts result i (8 per group, in order) for finish
 *     finish(t, unit, raw)    UNIT > 0: one warp finishes a unit of row t, from its results in
 *                             order */
#ifndef LLMC_CUDA_GEMV_GEMV_H
#define LLMC_CUDA_GEMV_GEMV_H

#include "cuda/gemv/gemv_finish.h"
#include "cuda/runtime/gate.h"
#include "cuda/runtime/prefetch.h"
#include "cuda/gemv/gemv_x.h"

/* ---- weights ---- */

/* A warp's sequence of units: those of a pair of groups (the last pair may have a single group),
 * then those of the next pair. Units of a row are assigned to the warps in turn, so that a CTA
 * reads its rows as a few wide streams. */
template <class G, class E> struct gemv_stream {
	typedef typename G::S S;
	w_matrix<typename G::W> w;
	const unsigned char *row; /* the lane's row in the pair's first group */
	unsigned second_group;    /* byte offset from `row` to the same row of the second group */
	int unit0, stop, group, end;
	int at[S::PLANES]; /* per plane: offset in a row of the lane's next unit */

	__device__ __forceinline__ explicit gemv_stream(const w_matrix<typename G::W> &w) : w(w) {}

	/* bytes from a unit to the warp's next one */
	static __device__ __forceinline__ int
	unit_step(int plane, int t)
	{
		return S::offset(plane, GEMV_WARPS, t) - S::offset(plane, 0, t);
	}

	/* Sets the addresses for the current pair of groups. */
	__device__ __forceinline__ void
	aim()
	{
		const int n = lane_id() >> 2, first = E::row(group, n);

		row = w.row(first);
		second_group = group + 1 < end
		                   ? (unsigned)(E::row(group + 1, n) - first) * (unsigned)w.stride
		                   : 0;
#pragma unroll
		for (int p = 0; p < S::PLANES; p++)
			at[p] = S::offset(p, unit0, lane_id() & 3);
	}

	__device__ __forceinline__ int
	units() const
	{
		return stop > unit0 ? (unsigned)(stop - unit0 + GEMV_WARPS - 1) / GEMV_WARPS : 0;
	}

	/* Prefetches the next unit, if there is one. Commits in either case, so that cp.async
	 * groups can be counted. */
	__device__ __forceinline__ void
	prefetch(gemv_stage<typename G::W> &to)
	{
		const int lane = lane_id();

		if (group < end) {
			S::prefetch(to.group[0], row, at, lane, 16);
			S::prefetch(to.group[1], row + second_group, at, lane,
			            group + 1 < end ? 16 : 0);
#pragma unroll
			for (int p = 0; p < S::PLANES; p++)
				at[p] += unit_step(p, lane & 3);
			if (at[0] >= stop * (S::offset(0, 1, 0) - S::offset(0, 0, 0))) {
				group += 2;
				aim();
			}
		}
		cp_async_commit();
	}

	/* Starts with the first of groups [g0, g1) and every eighth of units [unit0, stop), and
	 * fills the ring. */
	__device__ __forceinline__ void
	begin(typename G::warp_storage &own, bool one, int g0, int g1)
	{
		gemv_stage<typename G::W> *const ring = one ? own.one.ring : own.many.ring;
		const int stages = one ? G::RING1 : G::RING;

		group = unit0 < stop ? g0 : g1;
		end = g1;
		aim();
#pragma unroll 1
		for (int s = 0; s < stages; s++)
			prefetch(ring[s]);
	}
};

/* Loads the lane's fragments of a stage, and prefetches the next unit into it. `stage`: byte offset
 * of the stage in the ring */
template <class G, class E, int RING> DEV void gemv_next(typename G::S::fragment (&u)[2],
                                                         gemv_stream<G, E> &in,
                                                         gemv_stage<typename G::W> *ring,
                                                         int &stage)
{
	typedef typename G::S S;
	gemv_stage<typename G::W> &from =
	    *(gemv_stage<typename G::W> *)((unsigned char *)ring + stage);
	const int lane = lane_id();

	cp_async_wait<RING - 1>();
	if (S::QUADS)
		__syncwarp();
	S::load(u[0], from.group[0], in.unit0, lane);
	S::load(u[1], from.group[1], in.unit0, lane);
	if (S::QUADS)
		__syncwarp();
	in.prefetch(from);
	stage += (int)sizeof from;
	stage = stage < RING * (int)sizeof from ? stage : 0;
}

/* Multiplies one row of x by a unit of a block format. total[i] receives the sum for row n of group
 * i over the columns that share lane t's scales.
 *
 * The weights enter the mma as integers: no rounding, no scaling. Scales are applied to the sums,
 * and the columns of B keep sub-blocks separate: pair p of columns has the high and low parts of x
 * in lane p's sub-block, and zeros elsewhere. x: B fragments, in the lanes that have them; other
 * lanes have zeros. */
template <class G> DEV void
gemv_unit_whole(float (&total)[2], const typename G::S::fragment (&u)[2], uint4 (&x)[G::S::CHUNKS],
                const uint4 *xq, uint2 sums, int unit)
{
	typedef typename G::S S;
	const int lane = lane_id(), t = lane & 3, pair = lane >> 3;
	const typename S::scale none = {};
	float low[4] = {}, high[4] = {};

#pragma unroll
	for (int c = 0; c < S::CHUNKS; c++) {
		if (S::SPLIT == 1) {
			/* with sub-blocks of low and of high nibbles, in lanes t and t ^ 1 */
			if (pair == (t & 2))
				*(uint2 *)&x[c].x = *(const uint2 *)&xq[c * 8];
			if (pair == (t | 1))
				*(uint2 *)&x[c].z = *((const uint2 *)&xq[c * 8] + 1);
		} else if (pair == t) {
			x[c] = xq[c * 8];
		}
	}
#pragma unroll
	for (int c = 0; c < S::CHUNKS; c++) {
		unsigned w[4], v[4];
		S::template chunk<true>(w, u[0], none, unit, c, t);
		S::template chunk<true>(v, u[1], none, unit, c, t);
		const unsigned a0[4] = { w[0], v[0], w[1], v[1] },
		               a1[4] = { w[2], v[2], w[3], v[3] }, b0[2] = { x[c].x, x[c].y },
		               b1[2] = { x[c].z, x[c].w };
		w_mma<typename G::W>(low, a0, b0);
		w_mma<typename G::W>(S::SPLIT == 2 ? high : low, a1, b1);
	}
	const float l[2] = { low[0] + low[1], low[2] + low[3] },
	            h[2] = { high[0] + high[1], high[2] + high[3] };
	S::add(total, u, l, h, make_float2(__uint_as_float(sums.x), __uint_as_float(sums.y)), unit,
	       t);
}

/* Multiplies rows of x by a unit. ONE: there is one row, whose high and low parts are columns of
 * one mma. Otherwise the columns of B are rows of x. Lanes without a row multiply a row of another
 * lane, and their results are ignored. */
template <class G, bool ONE> DEV void
gemv_unit_scaled(float (&total)[4], float (&acc)[2][4], const typename G::S::fragment (&u)[2],
                 const uint4 *xq, const uint2 *xm, int R, int unit)
{
	typedef typename G::S S;
	const int t = lane_id() & 3;
	typename S::scale s, r;

	S::scales(s, u[0], unit, t);
	S::scales(r, u[1], unit, t);
#pragma unroll
	for (int c = 0; c < S::CHUNKS; c++) {
		unsigned w[4], v[4];
		S::template chunk<false>(w, u[0], s, unit, c, t);
		S::template chunk<false>(v, u[1], r, unit, c, t);
		const unsigned a0[4] = { w[0], v[0], w[1], v[1] },
		               a1[4] = { w[2], v[2], w[3], v[3] };
#pragma unroll
		for (int part = 0; part < (ONE ? 1 : 2); part++) {
			const uint4 x = xq[c * 8 * R + part * 4 * R];
			const unsigned b0[2] = { x.x, x.y }, b1[2] = { x.z, x.w };
			w_mma<typename G::W>(acc[0], a0, b0);
			w_mma<typename G::W>(acc[1], a1, b1);
		}
	}
	if constexpr (S::MINS) {
		const unsigned am[2] = { s.mins, r.mins }, hi[1] = { xm->x }, lo[1] = { xm->y };
		float mins[4] = { 0, 0, 0, 0 };
		mma_f16_m16n8k8(mins, am, hi, mins);
		mma_f16_m16n8k8(mins, am, lo, mins);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const unsigned d = S::factors(u[i / 2]);
			total[i] = fmaf(f16_lo(d) * 0x1p14f, acc[0][i] + acc[1][i], total[i]);
			total[i] = fmaf(f16_hi(d) * 16.0f, mins[i], total[i]);
			acc[0][i] = acc[1][i] = 0;
		}
	}
}

/* Computes this warp's sums of groups [first, stop), counted from g0. The last load of the stream
 * is issued RING units before its end; then the warp prefetches the weights that `call` names. The
 * loop over units is split at that unit, because a condition in it would keep the compiler from
 * unrolling it. */
template <class G, class E, bool ONE> DEV void
gemv_groups(typename G::shared_storage &sm, gemv_stream<G, E> &in, int g0, int log_r,
            const float (&back)[2], int first, int stop, int &stage, const llmc_call *call)
{
	typedef typename G::S S;
	typedef typename G::W W;
	enum { RING = ONE ? G::RING1 : G::RING };
	constexpr bool WHOLE = ONE && W::PACKED;
	const int warp = warp_id(), lane = lane_id(), n = lane >> 2, t = lane & 3,
	          R = ONE ? 1 : 1 << log_r, tile = 16 >> (ONE ? 0 : log_r);
	typename G::warp_storage &own = sm.warp[warp];
	gemv_stage<W> *const ring = ONE ? own.one.ring : own.many.ring;
	const int mine = WHOLE ? (n & 1) * 4 + t : ONE ? (n & 4) + t : (n & (R - 1)) * 4 + t;
	const uint4 *const xs = own.many.x + mine;
	typename S::fragment u[2];

	/* stores the sum of row n of group (`done` + i), for row b of x */
	auto put = [&](int done, int i, int b, float v) {
		sm.sum[((((done + i) & (2 * tile - 1)) * GEMV_WARPS + warp) * R + b) * 8 + n] = v;
	};

	for (int done = first; done < stop; done += 2) {
		const uint4 *xq = xs;
		const int units = in.units(), rest = (in.end - g0 - done + 1) / 2 * units - RING;
		const bool ends = call && rest < units && (rest >= 0 || done == 0);
		const int cut = ends ? max(rest, 0) : units;
		/* factors of row n of both groups, loaded while the units are processed */
		float factor[2];
#pragma unroll
		for (int i = 0; i < 2; i++)
			factor[i] = w_row_factor<W>::HAS
			                ? w_row_factor<W>::of(
			                      in.w.row(E::row(g0 + min(done + i, stop - 1), n)))
			                : 1.0f;
		if constexpr (WHOLE) {
			float total[2] = { 0, 0 };
			uint4 x[S::CHUNKS] = {};
			const uint2 *xm = own.one.sums + t;
			for (int part = 0;; part++) {
				for (int left = part ? units - cut : cut; left > 0;
				     left--, xm += 4, xq += S::CHUNKS * 8) {
					gemv_next<G, E, RING>(u, in, ring, stage);
					gemv_unit_whole<G>(total, u, x, xq, *xm, in.unit0);
				}
				if (part || !ends)
					break;
				prefetch_next(*call, warp, GEMV_WARPS);
			}
#pragma unroll
			for (int i = 0; i < 2; i++) {
				total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
				total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
				if (t == 0)
					put(done, i, 0,
					    total[i] * (S::GAIN * S::UNDO) * back[0] * factor[i]);
			}
		} else {
			float acc[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
			float total[4] = { 0, 0, 0, 0 };
			const uint2 *xm = 0;
			if constexpr (S::MINS)
				xm = own.many.sums + mine;
			for (int part = 0;; part++) {
				for (int left = part ? units - cut : cut; left > 0; left--) {
					gemv_next<G, E, RING>(u, in, ring, stage);
					gemv_unit_scaled<G, ONE>(total, acc, u, xq, xm, R,
					                         in.unit0);
					xq += S::CHUNKS * 8 * R;
					xm += 4 * R;
				}
				if (part || !ends)
					break;
				prefetch_next(*call, warp, GEMV_WARPS);
			}
			/* a lane holds the sums of row n of both groups, for rows 2 t and 2 t + 1
			 * of x */
#pragma unroll
			for (int i = 0; i < 4; i++) {
				total[i] += acc[0][i] + acc[1][i];
				if (ONE)
					total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
				const int b = 2 * t + (i & 1);
				if (b < R)
					put(done, i >> 1, b,
					    total[i] * back[i & 1] * factor[i >> 1]);
			}
		}
	}
}

/* ---- phases of a launch ---- */

/* Divides the groups among the CTAs. To start loads early, this takes few instructions, with a
 * single 32-bit division. The first ranges have one more group than the others. */
template <class G, class E> DEV gemv_range
gemv_split_range(int rows)
{
	enum {
		SPLITS1 = gemv_splits<G>(1, E::GROUPS),
		SPLITS2 = gemv_splits<G>(2, E::GROUPS),
		SPLITS4 = gemv_splits<G>(4, E::GROUPS),
		SPLITS8 = gemv_splits<G>(8, E::GROUPS)
	};
	int splits = rows < 1 || rows > 8 ? 1
	             : rows == 1          ? SPLITS1
	             : rows == 2          ? SPLITS2
	             : rows <= 4          ? SPLITS4
	                                  : SPLITS8;
	unsigned ranges = gridDim.x, range = blockIdx.x, split = 0;

	if (splits > (int)gridDim.x)
		splits = 1;
	if (splits > 1) {
		ranges = gridDim.x / splits;
		range = blockIdx.x / splits;
		split = blockIdx.x - range * splits;
	}
	const unsigned each = E::GROUPS / ranges, more = E::GROUPS - each * ranges;
	const bool work = range < ranges;
	const int g0 = work ? (int)(each * range + min(range, more)) : 0,
	          g1 = work ? (int)(g0 + each + (range < more)) : 0;

	return { splits, (int)range, (int)split, g0, g1 };
}

/* Logarithm of the number of rows of x per turn: all n, if they fit in shared memory */
template <class G> DEV int
gemv_log_rows(int rows, int splits, int n)
{
	enum { ROWS = gemv_rows_at_once<G>(1) };
	static_assert(ROWS > 0, "too many columns");
	const int fit = splits > 1 ? (rows <= 2 ? 2 : rows <= 4 ? 4 : 8) : ROWS;
	int log_r = 0;

	if (rows != 1)
		while (1 << log_r < n && 1 << log_r < fit)
			log_r++;
	return log_r;
}

/* Loads rows [t0, min(t0 + 2^log_r, n)) of x to shared memory. Returns the page of row t0 + tid, if
 * the epilogue needs one. Finding the page takes dependent loads. One is issued before x is loaded,
 * the next while x is converted, so that no thread waits for them. back: factors of the sums */
template <class G, class E> DEV int
gemv_stage_x(typename G::shared_storage &sm, float (&back)[2], const float *x,
             const norm_vectors &norm, const E &e, const gemv_stream<G, E> &in, float scale,
             bool one, bool blind, int log_r, int t0, int n)
{
	const int tid = (int)threadIdx.x, R = 1 << log_r;
	const bool needs_page = E::NEEDS_PAGE && tid < R && t0 + tid < n;
	const int2 position = needs_page ? e.position(t0 + tid) : make_int2(0, 0);

	if (G::NORM::MEAN)
		gemv_moments<G>(sm, x, norm, e, R, t0, n);
	gemv_load_x<G>(sm, one, back, x, norm, e, log_r, t0, blind ? 1 : n, in.unit0, in.units());
	back[0] *= scale;
	back[1] *= scale;
	const int page = needs_page ? e.page(position) : 0;
	if (needs_page)
		sm.slot[tid].y = position.x;
	return page;
}

/* Adds the warps' sums of results j and j + 4 of group sm.g0 + at, for row t0 + b of x. Stores the
 * results by the epilogue, or in scratch if other CTAs contribute to them (`counted`). */
template <class G, class E> DEV void
gemv_store(const typename G::shared_storage &sm, const norm_vectors &norm, const E &e,
           const gemv_scratch &to, bool counted, int splits, int log_r, int t0, int at, int j,
           int b, const float4 &early)
{
	enum { RESULTS = E::GROUPS * 8 };
	const int R = 1 << log_r, tile = 16 >> log_r, group = sm.g0 + at;
	const float *from = sm.sum + (at & (2 * tile - 1)) * GEMV_WARPS * R * 8 + b * 8 + j;
	float v = 0, u = 0;

#pragma unroll 4
	for (int i = 0; i < G::KWARPS; i++) {
		v += from[i * R * 8];
		u += from[i * R * 8 + 4];
	}
	if (counted) {
		float *sum = (splits > 1 ? to.part + (long long)(sm.split * 8 + b) * RESULTS
		                         : to.all + (long long)(t0 + b) * RESULTS) +
		             group * 8 + j;
		sum[0] = v;
		sum[4] = u;
	} else {
		const float root = gemv_root<G>(gemv_squares<G>(sm, b), norm.eps);
		e.store(group, j, t0 + b, v * root, u * root, early, sm.slot[b]);
	}
}

/* Computes and stores the sums of the CTA's groups for one turn of rows, a tile of groups at a
 * time. */
template <class G, class E> DEV void
gemv_stream_groups(typename G::shared_storage &sm, gemv_stream<G, E> &in, const norm_vectors &norm,
                   const E &e, const gemv_scratch &to, const float (&back)[2], bool one,
                   bool counted, int splits, int g0, int log_r, int t0, int n, int page,
                   const llmc_call *call)
{
	const int tid = (int)threadIdx.x, R = 1 << log_r, tile = 16 >> log_r, ng = in.end - g0;
	int stage = 0;

	for (int first = 0; first < ng; first += tile) {
		const int stop = min(first + tile, ng), items = (stop - first) * R * 4;
		const int j = tid & 3, b = (tid >> 2) & (R - 1), at = first + (tid >> (2 + log_r));
		float4 early = make_float4(0, 0, 0, 0);
		if (!counted && tid < items && t0 + b < n)
			early = e.prefetch(g0 + at, j, t0 + b);

		if (one)
			gemv_groups<G, E, true>(sm, in, g0, 0, back, first, stop, stage, call);
		else
			gemv_groups<G, E, false>(sm, in, g0, log_r, back, first, stop, stage, call);
		if (E::NEEDS_PAGE && first == 0 && tid < R)
			sm.slot[tid].x = page;
		__syncthreads();
		if (tid < items && t0 + b < sm.n)
			gemv_store<G, E>(sm, norm, e, to, counted, splits, log_r, t0, at, j, b,
			                 early);
	}
}

template <class G, class E, class GATE> DEV void
gemv(GATE &gate, int rows, const float *x, const norm_vectors &norm,
     const w_matrix<typename G::W> &w, const E &e, const gemv_scratch &to,
     const llmc_call *call = 0)
{
	typedef typename G::shared_storage shared_storage;
	SHARED_STORAGE(shared_storage, sm);
	const int tid = (int)threadIdx.x, warp = warp_id();
	const gemv_range own = gemv_split_range<G, E>(rows);
	const int splits = own.splits;

	if (tid == 0) {
		sm.range = own.range;
		sm.split = own.split;
		sm.g0 = own.g0;
	}
	const bool one = rows == 1, counted = splits > 1 || E::UNIT > 0;
	gemv_stream<G, E> in(w);

	in.unit0 = (splits > 1 ? G::UNITS * (unsigned)own.split / splits : 0) + warp;
	in.stop = splits > 1 ? G::UNITS * ((unsigned)own.split + 1) / splits : G::UNITS;

	/* The norm's weights are not in L2 yet, and they are needed right after the wait. */
	if (G::NORM::NORMED && norm.w)
		for (int i = tid * 32; i < G::COLS; i += GEMV_THREADS * 32)
			prefetch_l2(norm.w + i);
	in.begin(sm.warp[warp], one, own.g0, own.g1);
	if (call && own.g0 == own.g1) /* this CTA has no weights to read */
		prefetch_next(*call, warp, GEMV_WARPS);
	gate.wait();
	const int n = e.count();
	/* a launch for one row reads x without waiting for n */
	const bool blind = one && !E::FIRST;
	if (own.g0 == own.g1 || (!blind && n <= 0))
		return;

	if (tid == 0)
		sm.n = n;
	const int log_r = gemv_log_rows<G>(rows, splits, n);

	for (int t0 = 0;;) {
		float back[2];
		const int page =
		    gemv_stage_x<G, E>(sm, back, x, norm, e, in, w.scale, one, blind, log_r, t0, n);
		gemv_stream_groups<G, E>(sm, in, norm, e, to, back, one, counted, splits, own.g0,
		                         log_r, t0, n, page, call);
		if (counted)
			gemv_finish<G, E>(sm, norm, e, to, splits, in.end, log_r, t0);
		t0 += 1 << log_r;
		if (t0 >= sm.n)
			return;
		__syncthreads(); /* all warps have finished with the shared memory of the last turn
		                  */
		in.begin(sm.warp[warp], one, sm.g0, in.end);
	}
}

#endif
