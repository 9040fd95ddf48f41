/* y = W x for few rows of x: the decode step's products, bound by the bytes of W.
 *
 * Rows of W go in groups of 8, two groups at a time, columns in units (cuda_gemv_weights.h). A block of 8 warps has a range of groups; a row's
 * units go round the warps, so that the block reads its 16 rows as 16 wide streams and nobody waits for anybody but at the end of a tile of
 * groups, where the 8 partial sums of each result meet in shared memory (in the order of the warps). The product is that of the tensor
 * cores with the weights as A (16 of their rows) and x as B: of one row of x, what 16 bits hold in column 0 and what rounding took in
 * column 4; of up to 8 rows, one product for each of the two. So x keeps 16 (bf16) or 22 bits (f16), and 8 rows cost little more than one.
 * Where a range has an odd number of groups its last one goes alone.
 *
 * In flight: each warp's ring of units, asked for as slots are emptied: 40 KB a multiprocessor (sm_80, 90, 100) or 24 KB; for one row
 * (GV_RING1) also all the room that x does not take, 88 KB at 4096 columns. The ring is first filled before PDL_WAIT, from addresses that
 * need nothing but the launch: what comes meanwhile covers most of the end of the kernel before (docs/cuda-decode.md has the sums). One block a
 * multiprocessor, at most 128 registers and 113 KB: the next kernel's blocks fit beside it and fill their rings meanwhile.
 *
 * The norm is no phase of its own: weights of the norm are multiplied into x on its way to shared memory, the sum of squares is taken there
 * too, and its root divides the sums at the end. (Layer norms need the mean first: a pass over x more.)
 *
 * Slices: the columns may be cut, blocks of one range then write partial sums to scratch, and the last one adds them, slice by slice. The launch's
 * `rows` decides, in gv_slices: because more rows of x than shared memory takes (4 at 4096 columns) are wanted, or because groups do not
 * come out even: a range has G / blocks of them, rounded up or down. H200, 132 blocks, largest share over mean: 4096 rows 512 groups,
 * 4 / 3.88; 6144 rows 6 / 5.82; 2 x 14336 rows 28 / 27.2; 128256 rows 122 / 121.5; 2048 rows 2 / 1.94; but 3584 rows 4 / 3.39, in two
 * slices 7 / 6.79 (taken for block formats of many columns). More than 8 rows: in turns.
 *
 * Defined before inclusion: W_<dtype>, COLS, NORM_none | NORM_rms | NORM_layer, NORM_EPS, NORM_PLUS_ONE, GV_ARCH, GV_MAX_SLICES. OP, a struct of the template:
 *     GROUPS, UNIT            groups of 8 weight rows; groups that are finished together by the last of their blocks, 0: as they come
 *     FIRST                   1: where rows of x are is read from n and out_row before x
 *     row(group, n)           row of W, for n in 0 .. 7; n and n + 4 are a pair
 *     count(p), x_row(p, t)   rows of x, and where row t is
 *     PLACED                  1: put wants to know of each row a position and a page:
 *     spot(p, t), page(p, spot)  position and sequence of row t; the page where it goes
 *     before(p, group, j, t)  what put wants of memory: loaded early
 *     put(p, group, j, t, a, b, before, place)   results j and j + 4 of the group for row t
 *     raw(p, i, v)            UNIT > 0: result i (8 a group, in order) as finish wants it
 *     finish(p, t, unit, raw) a warp finishes a unit of row t: its results in order (UNIT > 0) */
#ifndef LLMC_CUDA_GEMV_H
#define LLMC_CUDA_GEMV_H

#include "common/cuda_gemv_x.h"

/* ---- weights ---- */

/* A warp's way through its units: those of a pair of groups (the last may be alone), then those of the next. Units of a row go round the warps, so
 * that a block reads its rows as few wide streams. */
template <class OP> struct gv_stream {
	const unsigned char *w, *row; /* of the pair's first group */
	int                  apart;   /* bytes from there to the second one's */
	int                  unit0, stop, unit, group, end;

	/* To the rows of the pair at hand */
	__device__ __forceinline__ void
	aim()
	{
		const int n = lane_id() >> 2, first = OP::row(group, n);

		row = w + (long long)first * GV_ROW_BYTES;
		apart = group + 1 < end ? (OP::row(group + 1, n) - first) * GV_ROW_BYTES : 0;
	}

	__device__ __forceinline__ int units() const { return stop > unit0 ? (unsigned)(stop - unit0 + GV_WARPS - 1) / GV_WARPS : 0; }

	/* Ask for the next unit, if there is one; a group of copies in any case, so that they can be counted. */
	__device__ __forceinline__ void
	next(gv_slot &to)
	{
		const int lane = lane_id();

		if (group < end) {
			gv_ask(to.half[0], row, unit, lane, 16);
			gv_ask(to.half[1], row + apart, unit, lane, group + 1 < end ? 16 : 0);
			unit += GV_WARPS;
			if (unit >= stop) {
				unit = unit0;
				group += 2;
				aim();
			}
		}
		cp_async_commit();
	}

	/* Groups [g0, g1), and of units [unit0, stop) every eighth: from the start, as far as the ring goes */
	__device__ __forceinline__ void
	begin(gv_room &room, bool one, int g0, int g1)
	{
		gv_slot *const ring = one ? room.one.ring : room.many.ring;
		const int slots = one ? GV_RING1 : GV_RING;

		unit = unit0;
		group = unit0 < stop ? g0 : g1;
		end = g1;
		aim();
#pragma unroll 1
		for (int s = 0; s < slots; s++)
			next(ring[s]);
	}
};

/* This warp's sums of groups [first, stop) ONE: for one row of x, whose high and low parts are columns of one product;
 * otherwise its columns are rows of x, and lanes that have none multiply another's: nobody looks at what they get. */
template <class OP, bool ONE> DEV void
gv_groups(gv_arena &sm, gv_stream<OP> &in, int log_r, const float (&back)[2], int first, int stop, int &slot)
{
	enum { RING = ONE ? GV_RING1 : GV_RING };
	const int warp = warp_id(), lane = lane_id(), n = lane >> 2, t = lane & 3, R = ONE ? 1 : 1 << log_r, tile = 16 >> (ONE ? 0 : log_r);
	gv_room &room = sm.room[warp];
	gv_slot *const ring = ONE ? room.one.ring : room.many.ring;
	const int mine = ONE ? (n & 4) + t : (n & (R - 1)) * 4 + t;
	const uint4 *const xs = room.many.x + mine;

	for (int done = first; done < stop; done += 2) {
		float acc[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
		float total[4] = { 0, 0, 0, 0 };
		const uint4 *xq = xs;
#if GV_MINS
		const uint2 *xm = (ONE ? room.one.sums : room.many.sums) + (ONE ? t : mine);
#endif
		for (int left = in.units(); left > 0; left--) {
			gv_slot &from = ring[slot];
			gv_unit  q, r;
			gv_scale s, u;
			cp_async_wait<RING - 1>();
			if (GV_QUADS)
				__syncwarp();
			gv_take(q, from.half[0], in.unit0, lane);
			gv_take(r, from.half[1], in.unit0, lane);
			if (GV_QUADS)
				__syncwarp();
			in.next(from);
			slot = slot + 1 < RING ? slot + 1 : 0;
			gv_scales(s, q, in.unit0, t);
			gv_scales(u, r, in.unit0, t);
#pragma unroll
			for (int c = 0; c < GV_CHUNKS; c++) {
				unsigned w[4], v[4];
				gv_chunk(w, q, s, in.unit0, c, t);
				gv_chunk(v, r, u, in.unit0, c, t);
				const unsigned a0[4] = { w[0], v[0], w[1], v[1] }, a1[4] = { w[2], v[2], w[3], v[3] };
#pragma unroll
				for (int part = 0; part < (ONE ? 1 : 2); part++) {
					const uint4 x = xq[c * 8 * R + part * 4 * R];
					const unsigned b0[2] = { x.x, x.y }, b1[2] = { x.z, x.w };
#ifdef W_bf16
					mma_bf16_m16n8k16(acc[0], a0, b0, acc[0]);
					mma_bf16_m16n8k16(acc[1], a1, b1, acc[1]);
#else
					mma_f16_m16n8k16(acc[0], a0, b0, acc[0]);
					mma_f16_m16n8k16(acc[1], a1, b1, acc[1]);
#endif
				}
			}
			xq += GV_CHUNKS * 8 * R;
#if GV_MINS
			const unsigned am[2] = { s.mins, u.mins }, bm[1] = { ONE && n >= 4 ? xm->y : xm->x };
			float mins[4] = { 0, 0, 0, 0 };
			mma_f16_m16n8k8(mins, am, bm, mins);
			if (!ONE) {
				const unsigned bl[1] = { xm->y };
				mma_f16_m16n8k8(mins, am, bl, mins);
			}
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const unsigned d = i < 2 ? q.d.x : r.d.x;
				total[i] = fmaf(f16_lo(d), acc[0][i] + acc[1][i], total[i]);
				total[i] = fmaf(f16_hi(d) * 16.0f, mins[i], total[i]);
				acc[0][i] = acc[1][i] = 0;
			}
			xm += 4 * R;
#endif
		}
		/* a lane has row n of both groups, for rows 2 t and 2 t + 1 of x */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			total[i] += acc[0][i] + acc[1][i];
			if (ONE)
				total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
			const int b = 2 * t + (i & 1);
			if (b < R)
				sm.sum[((((done + (i >> 1)) & (2 * tile - 1)) * GV_WARPS + warp) * R + b) * 8 + n] = total[i] * back[i & 1];
		}
	}
}

/* ---- what becomes of the sums ---- */

/* 1 / the root of the mean square, of a sum of squares */
DEV float
gv_root(float squares)
{
#ifdef NORM_rms
	return 1.0f / sqrtf(squares / COLS + NORM_EPS);
#else
	(void)squares;
	return 1.0f;
#endif
}

DEV float
gv_squares(const gv_arena &sm, int b)
{
	float s = 0;
#ifdef NORM_rms
	for (int i = 0; i < GV_KWARPS; i++)
		s += sm.squares[i][b];
#else
	(void)sm, (void)b;
#endif
	return s;
}

/* Sum of `slices` numbers that are `stride` apart, all asked for at once, added in order. */
DEV float
gv_partial(const float *from, int slices, long long stride)
{
	float v[GV_MAX_SLICES], sum = 0;

#pragma unroll
	for (int s = 0; s < GV_MAX_SLICES; s++)
		v[s] = s < slices ? from[s * stride] : 0;
#pragma unroll
	for (int s = 0; s < GV_MAX_SLICES; s++)
		sum += v[s];
	return sum;
}

/* The kernel. x and the norm's vectors (or NULL), the matrix, and scratch: part [8 * GV_MAX_SLICES, GROUPS * 8] sums of slices; all
 * [n_tok, GROUPS * 8] sums of rows, for UNIT > 0; squares [blocks, 8]; count, of zeros: blocks, or units for each turn. */
template <class OP> DEV void
gemv(const llmc_call &p, const float *x, const float *nw, const float *nb, const void *matrix, float *part, float *all, float *squares, int *count)
{
	SHARED_ARENA(gv_arena, sm);
	enum {
		RESULTS = OP::GROUPS * 8,
		SLICES1 = gv_slices(1, OP::GROUPS),
		SLICES2 = gv_slices(2, OP::GROUPS),
		SLICES4 = gv_slices(4, OP::GROUPS),
		SLICES8 = gv_slices(8, OP::GROUPS)
	};
	const int tid = (int)threadIdx.x, warp = warp_id(), lane = lane_id(), rows = p.s.rows;
	int       slices = rows < 1 || rows > 8 ? 1 : rows == 1 ? SLICES1 : rows == 2 ? SLICES2 : rows <= 4 ? SLICES4 : SLICES8;

	/* Few instructions stand before the first load: one division, of 32 bits. Ranges with a group more come first. */
	unsigned ranges = gridDim.x, range = blockIdx.x, slice = 0;
	if (slices > (int)gridDim.x)
		slices = 1;
	if (slices > 1) {
		ranges = gridDim.x / slices;
		range = blockIdx.x / slices;
		slice = blockIdx.x - range * slices;
	}
	const unsigned each = OP::GROUPS / ranges, more = OP::GROUPS - each * ranges;
	const bool work = range < ranges;
	const int g0 = work ? (int)(each * range + min(range, more)) : 0, g1 = work ? (int)(g0 + each + (range < more)) : 0;
	if (tid == 0) {
		sm.range = range;
		sm.slice = slice;
		sm.g0 = g0;
	}
	const bool one = rows == 1, counted = slices > 1 || OP::UNIT > 0;
	gv_stream<OP> in;

	in.w = (const unsigned char *)matrix;
	in.unit0 = (slices > 1 ? GV_UNITS * slice / slices : 0) + warp;
	in.stop = slices > 1 ? GV_UNITS * (slice + 1) / slices : GV_UNITS;

	/* The norm's weights are in nobody's cache, and are wanted at once after the wait. */
	if (GV_NORMED && nw)
		for (int i = tid * 32; i < COLS; i += GV_THREADS * 32)
			prefetch_l2(nw + i);
	in.begin(sm.room[warp], one, g0, g1);
	PDL_LAUNCH();
	PDL_WAIT();
	const int n = OP::count(p);
	/* a launch for one row does not look at n before it reads x */
	const bool blind = one && !OP::FIRST;
	if (g0 == g1 || (!blind && n <= 0))
		return;

	if (tid == 0)
		sm.n = n;

	/* rows at once: all, if they fit */
	int log_r = 0;
	const int fit = slices > 1 ? (rows <= 2 ? 2 : rows <= 4 ? 4 : 8) : GV_ROWS;
	if (!one)
		while (1 << log_r < n && 1 << log_r < fit)
			log_r++;
	const int R = 1 << log_r, tile = 16 >> log_r;

	for (int t0 = 0;;) {
		/* places are found by loads that need each other's results: one before x, one while it is made, none waited for */
		const bool places = OP::PLACED && tid < R && t0 + tid < n;
		const int2 spot = places ? OP::spot(p, t0 + tid) : make_int2(0, 0);
#ifdef NORM_layer
		gv_layer<OP>(p, sm, x, R, t0, n);
#endif
		float back[2];
		gv_stage<OP>(p, sm, one, back, x, nw, nb, log_r, t0, blind ? 1 : n, in.unit0, in.units());
		const int page = places ? OP::page(p, spot) : 0;
		if (places)
			sm.place[tid].y = spot.x;

		/* ---- stream ---- */
		const int ng = in.end - g0;
		int       slot = 0;

		for (int first = 0; first < ng; first += tile) {
			const int stop = min(first + tile, ng), items = (stop - first) * R * 4;
			const int j = tid & 3, b = (tid >> 2) & (R - 1), at = first + (tid >> (2 + log_r));
			float4 early = make_float4(0, 0, 0, 0);
			if (!counted && tid < items && t0 + b < n)
				early = OP::before(p, g0 + at, j, t0 + b);

			if (one)
				gv_groups<OP, true>(sm, in, 0, back, first, stop, slot);
			else
				gv_groups<OP, false>(sm, in, log_r, back, first, stop, slot);
			if (OP::PLACED && first == 0 && tid < R)
				sm.place[tid].x = page;
			__syncthreads();

			if (tid < items && t0 + b < sm.n) {
				const int group = sm.g0 + at;
				const float *from = sm.sum + (at & (2 * tile - 1)) * GV_WARPS * R * 8 + b * 8 + j;
				float v = 0, w = 0;
#pragma unroll 4
				for (int i = 0; i < GV_KWARPS; i++) {
					v += from[i * R * 8];
					w += from[i * R * 8 + 4];
				}
				if (counted) {
					float *to = (slices > 1 ? part + (long long)(sm.slice * 8 + b) * RESULTS : all + (long long)(t0 + b) * RESULTS) + group * 8 + j;
					to[0] = v;
					to[4] = w;
				} else {
					const float root = gv_root(gv_squares(sm, b));
					OP::put(p, group, j, t0 + b, v * root, w * root, early, sm.place[b]);
				}
			}
		}

		/* ---- the last block of a range, or of each unit that it had a part in, finishes it ---- */
		if (counted) {
			enum { UNIT = OP::UNIT > 0 ? OP::UNIT : 1 };
			float *raw = (float *)sm.room; /* free by now */
			const int range = sm.range, slice = sm.slice, g0 = sm.g0, g1 = in.end, n = sm.n;
			const int first = OP::UNIT > 0 ? g0 / UNIT : range, units = OP::UNIT > 0 ? (g1 - 1) / UNIT + 1 - first : 1;
			if (tid < R && t0 + tid < n)
				squares[(range * slices + slice) * 8 + tid] = gv_squares(sm, tid);
			__syncthreads();
			for (int i = tid; i < units; i += GV_THREADS) {
				int *c = count + (t0 >> log_r) * (OP::GROUPS / UNIT) * (OP::UNIT > 0) + first + i;
				const int add = OP::UNIT > 0 ? min(g1, (first + i + 1) * UNIT) - max(g0, (first + i) * UNIT) : 1;
				const int full = OP::UNIT > 0 ? UNIT * slices : slices;
				const bool last = atom_add_acq_rel_gpu(c, add) == full - add;
				if (last)
					st_relaxed_gpu(c, 0);
				sm.done[i] = last;
			}
			__syncthreads();
			bool any = false;
			for (int i = 0; i < units; i++)
				any = any || sm.done[i];
			if (any) {
				const long long apart = (long long)8 * RESULTS;
				if (tid < R && t0 + tid < n)
					sm.stat[tid][1] = gv_root(gv_partial(squares + range * slices * 8 + tid, slices, 8));
				__syncthreads();
				for (int i = 0; i < units; i++) {
					if (!sm.done[i])
						continue;
					if constexpr (OP::UNIT > 0) {
						const int base = (first + i) * UNIT * 8;
						for (int k = tid; k < R * UNIT * 8; k += GV_THREADS) {
							const int b = k / (UNIT * 8), at = base + k % (UNIT * 8);
							if (t0 + b >= n)
								break;
							const float v = slices > 1 ? gv_partial(part + (long long)b * RESULTS + at, slices, apart) : all[(long long)(t0 + b) * RESULTS + at];
							raw[k] = OP::raw(p, at, v * sm.stat[b][1]);
						}
						__syncthreads();
						for (int b = warp; b < R && t0 + b < n; b += GV_WARPS)
							OP::finish(p, t0 + b, first + i, raw + b * UNIT * 8);
						__syncthreads();
					} else {
#pragma unroll 1
						for (int k = tid; k < (g1 - g0) * R * 4; k += GV_THREADS) {
							const int j = k & 3, b = (k >> 2) & (R - 1), group = g0 + (k >> (2 + log_r));
							if (t0 + b >= n)
								continue;
							const float4 early = OP::before(p, group, j, t0 + b);
							const float *from = part + (long long)b * RESULTS + group * 8 + j;
							const float v = gv_partial(from, slices, apart), w = gv_partial(from + 4, slices, apart);
							OP::put(p, group, j, t0 + b, v * sm.stat[b][1], w * sm.stat[b][1], early, sm.place[b]);
						}
					}
				}
			}
		}
		t0 += R;
		if (t0 >= sm.n)
			return;
		__syncthreads(); /* what the last turn left in shared memory has been read */
		in.begin(sm.room[warp], one, sm.g0, in.end);
	}
}

#endif
