/* y = W x for few rows of x: the decode step's products, bound by the bytes of W.
 *
 * Rows of W go in groups of 8, columns in units (cuda_gemv_weights.h). A block of 8 warps has a range of groups; within a group each warp has
 * its own columns, so that all 8 stream side by side and nobody waits for anybody but at the end of a tile of groups, where the 8 partial
 * sums of each result meet in shared memory (in the order of the warps). The product is that of the tensor cores with the weights as
 * B (8 of their rows) and x as A: up to 8 rows of x in its rows 0 .. 7, and in rows 8 .. 15 what rounding took from them, so x keeps 16
 * (bf16) or 22 bits (f16), and 8 rows cost what one does.
 *
 * In flight: each warp's ring of GV_RING units, asked for as slots are emptied: 40 KB a multiprocessor (sm_80, 90, 100) or 24 KB. The ring is
 * first filled before PDL_WAIT, from addresses that need nothing but the launch. One block a multiprocessor, at most 128 registers and
 * 113 KB: the next kernel's blocks fit beside it and fill their rings meanwhile.
 *
 * The norm is no phase of its own: weights of the norm are multiplied into x on its way to shared memory, the sum of squares is taken there
 * too, and its root divides the sums at the end. (Layer norms need the mean first: a pass over x more.)
 *
 * More rows of x than shared memory takes (4 at 4096 columns): the launch's `rows` decides, in GV_SLICES, to cut the columns in slices. Blocks
 * of one range then write partial sums to scratch; the last one adds them, slice by slice. More than 8 rows: in turns.
 *
 * Balance: a range has G / blocks groups, rounded up or down. H200, 132 blocks, largest share over mean: 4096 rows 512 groups, 4 / 3.88;
 * 6144 rows 6 / 5.82; 2 x 14336 rows 28 / 27.2; 128256 rows 122 / 121.5; 2048 rows 2 / 1.94; 3072 rows 3 / 2.91.
 *
 * Defined before inclusion: W_<dtype>, COLS, NORM_none | NORM_rms | NORM_layer, NORM_EPS, NORM_PLUS_ONE, GV_ARCH, GV_MAX_SLICES (8). OP, a struct of the template:
 *     GROUPS, UNIT            groups of 8 weight rows; groups that are finished together by the last of their blocks, 0: as they come
 *     FIRST                   1: the rows' places are read from n and out_row before x
 *     row(group, n)           row of W, for n in 0 .. 7; n and n + 4 are a pair
 *     count(p), x_row(p, t)   rows of x, and where row t is
 *     place(p, t)             an address that put wants to have at hand
 *     before(p, group, j, t)  what put wants of memory: loaded early
 *     put(p, group, j, t, a, b, before, place)   results j and j + 4 of the group for row t
 *     raw(p, i, v)            UNIT > 0: result i (8 a group, in order) as finish wants it
 *     finish(p, t, unit, raw) a warp finishes a unit of row t: its results in order (UNIT > 0) */
#ifndef LLMC_CUDA_GEMV_H
#define LLMC_CUDA_GEMV_H

#include "common/cuda_gemv_weights.h"
#include "common/cuda_step.h"

#ifndef GV_MAX_SLICES
#define GV_MAX_SLICES 8
#endif
#ifdef NORM_none
#define GV_NORMED 0
#define NORM_PLUS_ONE 0
#else
#define GV_NORMED 1
#endif

enum {
	GV_WARPS = 8,
	GV_THREADS = GV_WARPS * 32,
	/* 64 KB for x, more where one row needs it; templates' @launch lines count the same */
	GV_X = (COLS > 16384 ? (COLS + 1023) / 1024 * 4096 : 65536) / 16 / GV_WARPS,
	GV_SUMS = GV_MINS ? GV_X / 8 : 0, /* of x, where weights have minima: two pairs a unit and lane that has x */
	GV_RING = ((GV_ARCH == 80 || GV_ARCH == 90 || GV_ARCH == 100 ? 5120 : 3072) - GV_SUMS * 8) / (int)sizeof(gv_slot),
	GV_UNITS = COLS / GV_UNIT,       /* of a row */
	GV_KWARPS = GV_UNITS < GV_WARPS ? GV_UNITS : GV_WARPS,
	GV_FLAGS = 256
};

struct gv_arena {
	uint4              x[GV_WARPS][GV_X];
#if GV_MINS
	uint2              sums[GV_WARPS][GV_SUMS];
#endif
	gv_slot            ring[GV_WARPS][GV_RING];
	float              sum[2048];           /* 2 tiles of (16 / R groups) x (8 warps) x (R rows of x) x 8 */
	float              squares[GV_WARPS][8];
	float              stat[8][2];          /* mean and 1 / deviation */
	unsigned long long place[8];
	unsigned char      done[GV_FLAGS];
};
static_assert(sizeof(gv_arena) <= 8832 + GV_WARPS * (GV_X * 16 + (GV_ARCH == 80 || GV_ARCH == 90 || GV_ARCH == 100 ? 5120 : 3072)), "@launch says so");

/* ---- how many slices ---- */

/* Rows of x (a power of two) that a block takes at once when columns are cut in `slices`; 0: none */
static __device__ constexpr int
gv_rows(int slices)
{
	const int parts = GV_KWARPS * slices, most = (GV_UNITS + parts - 1) / parts;

	if (GV_UNITS < parts)
		return 0;
	for (int r = 8; r; r /= 2)
		if (most * GV_CHUNKS * r * 8 <= GV_X)
			return r;
	return 0;
}

/* For so many rows: 1 if they fit, else among the least number and the three above it the one that leaves fewest blocks without work */
static __device__ constexpr int
gv_slices(int rows)
{
	const int sms = GV_ARCH == 80 ? 108 : GV_ARCH == 86 ? 84 : GV_ARCH == 89 ? 128 : GV_ARCH == 90 ? 132 : GV_ARCH == 100 ? 148 : 170;
	int best = 1, idle = sms;

	if (gv_rows(1) >= rows)
		return 1;
	for (int s = 2, tried = 0; s <= GV_MAX_SLICES && tried < 4; s++)
		if (gv_rows(s) >= rows) {
			if (sms % s < idle) {
				best = s;
				idle = sms % s;
			}
			tried++;
		}
	return best;
}

enum { GV_ROWS = gv_rows(1), GV_SLICES2 = gv_slices(2), GV_SLICES4 = gv_slices(4), GV_SLICES8 = gv_slices(8) };
static_assert(GV_ROWS > 0, "too many columns");

/* ---- x ---- */

DEV void
gv_floats(float (&v)[4], const float *p)
{
	const uint4 q = ld_v4(p);

	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
}

/* A pair as the mma takes it, and what rounding took */
DEV void
gv_split(unsigned &hi, unsigned &lo, float a, float b)
{
#ifdef W_bf16
	hi = pack_bf16(a, b);
	lo = pack_bf16(a - bf16_lo(hi), b - bf16_hi(hi));
#else
	hi = pack_f16(a, b);
	lo = pack_f16(a - f16_lo(hi), b - f16_hi(hi));
#endif
}

/* Two fours of a chunk as the registers of A for its two mma */
DEV void
gv_fragments(uint4 &p, uint4 &q, const float (&v)[4], const float (&w)[4], float scale)
{
	enum { B = GV_NIBBLES ? 2 : 1, C = GV_NIBBLES ? 1 : 2 };
	gv_split(p.x, p.y, v[0] * scale, v[B] * scale);
	gv_split(p.z, p.w, v[C] * scale, v[3] * scale);
	gv_split(q.x, q.y, w[0] * scale, w[B] * scale);
	gv_split(q.z, q.w, w[C] * scale, w[3] * scale);
}

/* Four elements of a row, normed but for the root; their squares are added to ss. g, h: weights and biases of the norm */
DEV void
gv_norm(float (&v)[4], const uint4 &q, bool weighted, const float (&g)[4], const float *nb, const float (&stat)[2], float &ss)
{
	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
#if defined(NORM_rms)
#pragma unroll
	for (int i = 0; i < 4; i++)
		ss = fmaf(v[i], v[i], ss);
#elif defined(NORM_layer)
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = (v[i] - stat[0]) * stat[1];
#endif
	(void)stat, (void)ss;
#pragma unroll
	for (int i = 0; weighted && i < 4; i++)
		v[i] *= g[i] + NORM_PLUS_ONE;
	if (nb) {
		float h[4];
		gv_floats(h, nb);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] += h[i];
	}
}

/* This warp's columns of rows [t0, t0 + R): to x, chunk by chunk two planes of 4 R pieces, one for each lane that multiplies with them. All of them
 * are asked for at once, and lie where their fragments will; a lane makes what it asked for. Returns what the sums of the lane's row are
 * to be multiplied by. */
template <class OP> DEV float
gv_stage(const llmc_call &p, gv_arena &sm, const float *x, const float *nw, const float *nb, int R, int t0, int n, int unit0, int units)
{
	const int warp = warp_id(), lane = lane_id(), slot = lane & (4 * R - 1), b = slot >> 2, t = slot & 3;
	const int begin = lane / (4 * R), step = 8 / R, end = units * GV_CHUNKS;
	const bool valid = t0 + b < n, weighted = GV_NORMED && nw != 0;
	const float *row = x + (valid ? (long long)OP::x_row(p, t0 + b) * COLS : 0);
#ifdef NORM_layer
	const float stat[2] = { sm.stat[b][0], sm.stat[b][1] };
#else
	const float stat[2] = { 0, 1 };
#endif
	uint4 *to = sm.x[warp] + slot;
	float ss = 0, back = 1.0f / GV_GAIN, most = 0;

	for (int i = begin; i < end; i += step) {
		const int unit = unit0 + i / GV_CHUNKS, c = i % GV_CHUNKS;
		cp_async_16_fill(&to[i * 8 * R], row + gv_col(unit, c, t), valid ? 16 : 0);
		cp_async_16_fill(&to[i * 8 * R + 4 * R], row + gv_col2(unit, c, t), valid ? 16 : 0);
	}
	cp_async_commit();
	for (int first = begin; first < end; first += 4 * step) {
		float g[4][2][4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int i = min(first + k * step, end - 1), unit = unit0 + i / GV_CHUNKS, c = i % GV_CHUNKS;
			if (weighted) {
				gv_floats(g[k][0], nw + gv_col(unit, c, t));
				gv_floats(g[k][1], nw + gv_col2(unit, c, t));
			}
		}
		cp_async_wait_all();
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int i = first + k * step, unit = unit0 + i / GV_CHUNKS, c = i % GV_CHUNKS;
			float v[4], w[4];
			if (i >= end)
				break;
			gv_norm(v, to[i * 8 * R], weighted, g[k][0], nb ? nb + gv_col(unit, c, t) : 0, stat, ss);
			gv_norm(w, to[i * 8 * R + 4 * R], weighted, g[k][1], nb ? nb + gv_col2(unit, c, t) : 0, stat, ss);
#ifdef W_bf16
			gv_fragments(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w, 1.0f);
#else
#pragma unroll
			for (int j = 0; j < 4; j++)
				most = fmaxf(most, fmaxf(fabsf(v[j]), fabsf(w[j])));
			to[i * 8 * R] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
			to[i * 8 * R + 4 * R] = make_uint4(__float_as_uint(w[0]), __float_as_uint(w[1]), __float_as_uint(w[2]), __float_as_uint(w[3]));
#endif
		}
	}
#ifdef W_bf16
	(void)most;
#else
	/* The row's largest comes to 2^13 .. 2^14 by a power of two, so that nothing overflows and little is lost. */
	for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
	int e = 267 - (int)(__float_as_uint(most) >> 23);
	e = e < 1 ? 1 : e > 253 ? 253 : e;
	const float scale = __uint_as_float((unsigned)e << 23);
	back *= __uint_as_float((unsigned)(254 - e) << 23);
	for (int i = begin; i < end; i += step) {
		const uint4 f = to[i * 8 * R], h = to[i * 8 * R + 4 * R];
		const float v[4] = { __uint_as_float(f.x), __uint_as_float(f.y), __uint_as_float(f.z), __uint_as_float(f.w) };
		const float w[4] = { __uint_as_float(h.x), __uint_as_float(h.y), __uint_as_float(h.z), __uint_as_float(h.w) };
		gv_fragments(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w, scale);
	}
#endif
#if GV_MINS
	/* Sums of a unit's low columns and of its high ones, for the lane that has them, split as x is; 1/16 of them: sums may be 16 times x. */
	__syncwarp();
	for (int i = lane; i < units * 4 * R; i += 32) {
		const uint4 *from = sm.x[warp] + i / (4 * R) * GV_CHUNKS * 8 * R + i % (4 * R);
		float s[2] = { 0, 0 };
#pragma unroll
		for (int c = 0; c < 2 * GV_CHUNKS; c++) {
			const uint4 v = from[c * 4 * R];
			s[c & 1] += ((f16_lo(v.x) + f16_hi(v.x)) + (f16_lo(v.z) + f16_hi(v.z))) + ((f16_lo(v.y) + f16_hi(v.y)) + (f16_lo(v.w) + f16_hi(v.w)));
		}
		unsigned hi, lo;
		gv_split(hi, lo, s[0] * 0.0625f, s[1] * 0.0625f);
		sm.sums[warp][i] = make_uint2(hi, lo);
	}
#endif
#ifdef NORM_rms
	for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
		ss += __shfl_xor_sync(0xffffffffu, ss, d);
	if (lane < 4 * R && t == 0)
		sm.squares[warp][b] = ss;
#endif
	__syncwarp();
	return back;
}

#ifdef NORM_layer
/* Mean and deviation of row t0 + warp */
template <class OP> DEV void
gv_layer(const llmc_call &p, gv_arena &sm, const float *x, int R, int t0, int n)
{
	const int b = warp_id(), lane = lane_id();

	if (b < R) {
		float mean = 0, var = 0;
		if (t0 + b < n) {
			const float *row = x + (long long)OP::x_row(p, t0 + b) * COLS;
#pragma unroll 4
			for (int i = lane; i < COLS / 4; i += 32) {
				float v[4];
				gv_floats(v, row + 4 * i);
				mean += (v[0] + v[1]) + (v[2] + v[3]);
			}
			mean = warp_sum(mean) / COLS;
#pragma unroll 4
			for (int i = lane; i < COLS / 4; i += 32) {
				float v[4];
				gv_floats(v, row + 4 * i);
				for (int j = 0; j < 4; j++)
					var = fmaf(v[j] - mean, v[j] - mean, var);
			}
			var = warp_sum(var) / COLS;
		}
		if (lane == 0) {
			sm.stat[b][0] = mean;
			sm.stat[b][1] = 1.0f / sqrtf(var + NORM_EPS);
		}
	}
	__syncthreads();
}
#endif

/* ---- weights ---- */

/* A warp's way through its units: those of a group, then those of the next */
template <class OP> struct gv_stream {
	const unsigned char *w, *row;
	int                  unit0, units, unit, group, end, left; /* left: units not yet asked for */

	/* Ask for the next unit, if there is one; a group of copies in any case, so that they can be counted. */
	__device__ __forceinline__ void
	next(gv_slot &to)
	{
		const int lane = lane_id();

		if (left > 0) {
			gv_ask(to, row, unit0 + unit, lane);
			left--;
			if (++unit == units) {
				unit = 0;
				if (++group < end)
					row = w + (long long)OP::row(group, lane >> 2) * GV_ROW_BYTES;
			}
		}
		cp_async_commit();
	}

	__device__ __forceinline__ void
	begin(gv_slot (&ring)[GV_RING], const void *matrix, int g0, int g1, int u0, int u1)
	{
		w = (const unsigned char *)matrix;
		unit0 = u0, units = u1 - u0, unit = 0, group = g0, end = g1;
		left = (g1 - g0) * units;
		row = w;
		if (left)
			row += (long long)OP::row(g0, lane_id() >> 2) * GV_ROW_BYTES;
		for (int s = 0; s < GV_RING; s++)
			next(ring[s]);
	}
};

/* This warp's sums of groups [done, stop). FIXED: R, if it is known when this is compiled. Lanes that have no row of x multiply another's: nobody
 * looks at what they get. */
template <class OP, int FIXED> DEV void
gv_groups(gv_arena &sm, gv_stream<OP> &in, int rows, float back, int &done, int stop, int &slot)
{
	const int warp = warp_id(), lane = lane_id(), R = FIXED ? FIXED : rows, tile = 16 / R;
	const uint4 *const xs = sm.x[warp] + (lane & (4 * R - 1));

	for (; done < stop && in.units > 0; done++) {
		float acc[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
		float total[2] = { 0, 0 };
		const uint4 *xq = xs;
		for (int unit = in.unit0, left = in.units; left > 0; unit++, left--) {
			gv_slot &from = sm.ring[warp][slot];
			gv_unit  q;
			gv_scale scale;
			cp_async_wait<GV_RING - 1>();
			if (GV_QUADS)
				__syncwarp();
			gv_take(q, from, unit, lane);
			if (GV_QUADS)
				__syncwarp();
			in.next(from);
			slot = slot + 1 < GV_RING ? slot + 1 : 0;
			gv_scales(scale, q, unit, lane & 3);
#pragma unroll
			for (int c = 0; c < GV_CHUNKS; c++) {
				unsigned w[4];
				const uint4 a = xq[c * 8 * R], d = xq[c * 8 * R + 4 * R];
				gv_chunk(w, q, scale, unit, c, lane & 3);
				const unsigned a0[4] = { a.x, a.y, a.z, a.w }, a1[4] = { d.x, d.y, d.z, d.w };
				const unsigned b0[2] = { w[0], w[1] }, b1[2] = { w[2], w[3] };
#ifdef W_bf16
				mma_bf16_m16n8k16(acc[0], a0, b0, acc[0]);
				mma_bf16_m16n8k16(acc[1], a1, b1, acc[1]);
#else
				mma_f16_m16n8k16(acc[0], a0, b0, acc[0]);
				mma_f16_m16n8k16(acc[1], a1, b1, acc[1]);
#endif
			}
			xq += GV_CHUNKS * 8 * R;
#if GV_MINS
			const uint2 m = sm.sums[warp][(unit - in.unit0) * 4 * R + (lane & (4 * R - 1))];
			const unsigned am[4] = { m.x, m.y, 0, 0 }, bm[2] = { scale.mins, 0 };
			float mins[4] = { 0, 0, 0, 0 };
			mma_f16_m16n8k16(mins, am, bm, mins);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const float sum = (acc[0][i] + acc[1][i]) + (acc[0][i + 2] + acc[1][i + 2]);
				total[i] = fmaf(f16_lo(q.e[i]), sum, total[i]);
				total[i] = fmaf(f16_hi(q.e[i]), (mins[i] + mins[i + 2]) * -16.0f, total[i]);
				acc[0][i] = acc[1][i] = acc[0][i + 2] = acc[1][i + 2] = 0;
			}
#endif
		}
		/* a lane has weight rows 2 t and 2 t + 1 of row g of x */
		if (lane < 4 * R) {
			float *to = sm.sum + (((done & (2 * tile - 1)) * GV_WARPS + warp) * R) * 8 + lane * 2;
			to[0] = (total[0] + ((acc[0][0] + acc[1][0]) + (acc[0][2] + acc[1][2]))) * back;
			to[1] = (total[1] + ((acc[0][1] + acc[1][1]) + (acc[0][3] + acc[1][3]))) * back;
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
 * [n_tok, GROUPS * 8] sums of rows, for UNIT > 0; squares [blocks, 64]; count, of zeros: blocks, or units for each turn. */
template <class OP> DEV void
gemv(const llmc_call &p, const float *x, const float *nw, const float *nb, const void *matrix, float *part, float *all, float *squares, int *count)
{
	SHARED_ARENA(gv_arena, sm);
	enum { RESULTS = OP::GROUPS * 8 };
	const int tid = (int)threadIdx.x, warp = warp_id(), lane = lane_id(), rows = p.s.rows;
	int       slices = rows <= 1 || rows > 8 ? 1 : rows <= 2 ? GV_SLICES2 : rows <= 4 ? GV_SLICES4 : GV_SLICES8;

	/* Few instructions stand before the first load: one division, of 32 bits. Ranges with a group more come first. */
	unsigned ranges = gridDim.x, range = blockIdx.x, slice = 0, mine = warp, parts = GV_KWARPS;
	if (slices > (int)gridDim.x)
		slices = 1;
	if (slices > 1) {
		ranges = gridDim.x / slices;
		range = blockIdx.x / slices;
		slice = blockIdx.x - range * slices;
		mine += slice * GV_KWARPS;
		parts *= slices;
	}
	const unsigned each = OP::GROUPS / ranges, more = OP::GROUPS - each * ranges;
	const bool work = range < ranges;
	const int g0 = work ? (int)(each * range + min(range, more)) : 0, g1 = work ? (int)(g0 + each + (range < more)) : 0;
	int u0 = 0, u1 = 0;
	if (warp < GV_KWARPS) {
		u0 = slices > 1 ? GV_UNITS * mine / parts : GV_UNITS * mine / GV_KWARPS;
		u1 = slices > 1 ? GV_UNITS * (mine + 1) / parts : GV_UNITS * (mine + 1) / GV_KWARPS;
	}
	const bool counted = slices > 1 || OP::UNIT > 0;
	gv_stream<OP> in;

	in.begin(sm.ring[warp], matrix, g0, g1, u0, u1);
	PDL_LAUNCH();
	PDL_WAIT();
	const int n = OP::count(p);
	/* a launch for one row does not look at n before it reads x */
	const bool blind = rows == 1 && !OP::FIRST;
	if (g0 == g1 || (!blind && n <= 0))
		return;

	/* rows at once: all, if they fit */
	int R = 1, fit = slices > 1 ? (rows <= 2 ? 2 : rows <= 4 ? 4 : 8) : GV_ROWS;
	if (rows != 1)
		while (R < n && R < fit)
			R *= 2;

	for (int t0 = 0, turn = 0;; turn++) {
		if (tid < R)
			sm.place[tid] = t0 + tid < n ? OP::place(p, t0 + tid) : 0;
#ifdef NORM_layer
		gv_layer<OP>(p, sm, x, R, t0, n);
#endif
		const float back = gv_stage<OP>(p, sm, x, nw, nb, R, t0, blind ? 1 : n, u0, in.units);

		/* ---- stream ---- */
		const int tile = 16 / R, ng = g1 - g0;
		int       done = 0, slot = 0;

		for (int first = 0; first < ng; first += tile) {
			const int stop = min(first + tile, ng), items = (stop - first) * R * 4;
			const int j = tid & 3, b = (tid >> 2) & (R - 1), group = g0 + first + tid / (4 * R);
			float4 early = make_float4(0, 0, 0, 0);
			if (!counted && tid < items && t0 + b < n)
				early = OP::before(p, group, j, t0 + b);

			if (R == 1)
				gv_groups<OP, 1>(sm, in, 1, back, done, stop, slot);
			else
				gv_groups<OP, 0>(sm, in, R, back, done, stop, slot);
			__syncthreads();

			if (tid < items && t0 + b < n) {
				const float *from = sm.sum + ((first + tid / (4 * R)) & (2 * tile - 1)) * GV_WARPS * R * 8 + b * 8 + j;
				float v = 0, w = 0;
#pragma unroll 4
				for (int i = 0; i < GV_KWARPS; i++) {
					v += from[i * R * 8];
					w += from[i * R * 8 + 4];
				}
				if (counted) {
					float *to = (slices > 1 ? part + (long long)((int)slice * 8 + b) * RESULTS : all + (long long)(t0 + b) * RESULTS) + group * 8 + j;
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
			float *raw = (float *)sm.x; /* free by now */
			const int first = OP::UNIT > 0 ? g0 / UNIT : (int)range, units = OP::UNIT > 0 ? (g1 - 1) / UNIT + 1 - first : 1;
			if (tid < R && t0 + tid < n)
				squares[(range * 8 + slice) * 8 + tid] = gv_squares(sm, tid);
			__syncthreads();
			for (int i = tid; i < units; i += GV_THREADS) {
				int *c = count + turn * (OP::GROUPS / UNIT) * (OP::UNIT > 0) + first + i;
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
					sm.stat[tid][1] = gv_root(gv_partial(squares + range * 64 + tid, slices, 8));
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
							const int j = k & 3, b = (k >> 2) & (R - 1), group = g0 + k / (4 * R);
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
		if (t0 >= n)
			return;
		__syncthreads(); /* what the last turn left in shared memory has been read */
		in.begin(sm.ring[warp], matrix, g0, g1, u0, u1);
	}
}

#endif
