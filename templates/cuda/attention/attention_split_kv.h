/* Split-KV schedule of decode attention. A unit is a row, a kv head and up to HB of its query
 * heads. The tiles (TILE positions each) of all units form one list, which is cut into runs of
 * equal length, one per CTA. Every SM thus reads the same amount for any number and length of rows.
 * A CTA processes its run unit by unit; the part of a unit in a run is a segment. The warps of a
 * CTA share the tiles of a segment and combine their sums. If several CTAs have segments of a unit,
 * the last of them to arrive combines the segments in order. No CTA waits for another. The cut
 * depends only on the lengths and the grid, so equal steps give equal results.
 *
 * Scratch: part_o [2 * BLOCKS][HB][V] and part_ml [2 * BLOCKS][HB][2]. Per CTA, entry 0 is the end
 * of a unit that starts in an earlier CTA, entry 1 the start of one that continues in a later CTA.
 * ticket [rows][units] counts the CTAs that have stored their part; it is 0 between calls. */
#ifndef LLMC_CUDA_ATTENTION_ATTENTION_SPLIT_KV_H
#define LLMC_CUDA_ATTENTION_ATTENTION_SPLIT_KV_H

#include "cuda/attention/attention.h"

/* Attention A in tiles of TILE_ positions and groups of HB_ query heads. A CTA has at least
 * MIN_TILES_ tiles. At most BLOCKS_ CTAs have work; the others idle. PART_ is the cost of combining
 * one part of a unit, in hundredths of a tile. A unit of at most six tiles is not split. For longer
 * units, the number of tiles per CTA minimises the time of one unit: n tiles in k parts take n / k
 * + k PART_ / 100. */
template <class A, int TILE_, int HB_, int MIN_TILES_, int BLOCKS_ = 512,
          int PART_ = 0> struct att_split : A {
	enum {
		TILE = TILE_,
		HB = HB_,
		MIN_TILES = MIN_TILES_,
		BLOCKS = BLOCKS_,
		PART = PART_,
		/* loads in flight while parts are combined: of different parts, and of rounds over
		 * the sums of a part */
		AT_ONCE = PART > 0 ? 16 : 8,
		ROUNDS = PART > 0 ? 4 : 1,
		WHOLE_TILES = 6, /* with PART, units of at most this many tiles are not split */
		WARPS = 8,
		NHB = (A::G + HB - 1) / HB,   /* head groups of HB per kv head */
		UNITS = A::KV_HEADS * NHB,    /* per row */
		VC_MAX = 1024 / HB / 64 * 64, /* dimensions combined at a time */
		/* row stride in shared memory, free of bank conflicts; WARPS rows must also hold
		 * BLOCKS factors */
		VC = A::V < VC_MAX ? (A::V + 7) / 8 * 8
		     : VC_MAX < 64 ? 64
		                   : VC_MAX,
		VS = VC < 64 ? 64 : VC + 4
	};
};

/* Kernel arguments. part_o to ticket are scratch; sink is [HEADS] or NULL. */
struct att_args {
	const float *q;
	const void *kv;
	float *y, *part_o, *part_ml;
	int *ticket;
	const float *sink;
};

/* Part of a unit that a CTA processes: tiles [tile, end) in absolute positions */
typedef struct AttSegment {
	int row, seq, pos, kv_head, head; /* head: first query head */
	int n_head;                       /* at most HB */
	int tile, end;
	AttRange range;
	int unit;                    /* row * UNITS + unit within the row */
	int first_block, last_block; /* CTAs that share the unit; if both are equal, one CTA has the
	                                whole unit */
	bool begins;                 /* the segment has the unit's first tile */
} AttSegment;

template <class S> struct att_shared {
	float m[S::WARPS][S::HB], l[S::WARPS][S::HB];
	float sum[S::HB], top[S::HB];
	float o[S::WARPS][S::HB][S::VS];
	int last;
};

template <class S> DEV int
att_tiles(const AttRange &r)
{
	return (r.hi - 1) / S::TILE - r.lo / S::TILE + 1;
}

/* Number of tiles of a row; 0 if another kernel processes it. */
template <class S> DEV int
att_row_tiles(const llmc_step &s, int row)
{
	return S::takes_row(s, row) ? att_tiles<S>(att_range<S>(s, S::seq_of(s, row), s.pos[row]))
	                            : 0;
}

DEV int
warp_sum_int(int v)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}

/* This CTA's run of the list: tiles [at, end). `blocks` CTAs have work. The first `longer` of them
 * have each + 1 tiles, the others `each`. Row i of a decode step belongs to sequence
 * S::seq_of(i). */
typedef struct AttList {
	int at, end, blocks, each, longer;
	AttRange only;
} AttList;

/* Cuts a list of `total` tiles. unit: mean number of tiles per unit */
template <class S> DEV AttList
att_cut(int total, const AttRange &only, int unit = 0)
{
	AttList list;
	int least = S::MIN_TILES;

	if (S::PART > 0)
		least = max(least, unit <= (int)S::WHOLE_TILES
		                       ? unit
		                       : (int)sqrtf((float)unit * (S::PART * 0.01f) + 0.5f));

	list.only = only;
	list.blocks = max(1, min(min((int)gridDim.x, (int)S::BLOCKS), (total + least - 1) / least));
	list.each = (unsigned)total / (unsigned)list.blocks;
	list.longer = total - list.each * list.blocks;
	list.at = list.end = 0;
	if ((int)blockIdx.x < list.blocks) {
		list.at = list.each * (int)blockIdx.x + min((int)blockIdx.x, list.longer);
		list.end = list.at + list.each + ((int)blockIdx.x < list.longer);
	}
	return list;
}

/* Computes this CTA's run. Each warp does so by itself. A launch for one row reads the row's
 * position without waiting for n. */
template <class S> DEV AttList
att_list(const llmc_step &s)
{
	const bool one = s.rows == 1;
	const AttRange only = att_range<S>(s, 0, one ? s.pos[0] : 0);
	const int n = s.n[0];
	int total = 0;

	if (one) {
		total = n > 0 ? att_tiles<S>(only) : 0;
	} else {
#pragma unroll 1
		for (int row = lane_id(); row < n; row += 32)
			total += att_row_tiles<S>(s, row);
		total = warp_sum_int(total);
	}
	return att_cut<S>(total * S::UNITS, only,
	                  one ? total : (int)((unsigned)total / (unsigned)max(n, 1)));
}

/* Returns the CTA that has a tile of the list. */
template <class S> DEV int
att_block_of(const AttList &list, int tile)
{
	const int rest = tile - list.longer * (list.each + 1);

	return rest < 0 ? (int)((unsigned)tile / (unsigned)(list.each + 1))
	                : list.longer + (int)((unsigned)rest / (unsigned)list.each);
}

/* Selects unit u of a segment's row, and sets its heads. */
template <class S> DEV void
att_unit(AttSegment &g, int u)
{
	g.unit = g.row * S::UNITS + u;
	g.kv_head = u / S::NHB;
	g.head = g.kv_head * S::G + u % S::NHB * S::HB;
	g.n_head = min((int)S::HB, (g.kv_head + 1) * S::G - g.head);
}

/* Returns the segment at list.at and advances list.at past it. */
template <class S> DEV AttSegment
att_segment(const llmc_step &s, AttList &list)
{
	AttSegment g;
	int base = 0;

	g.row = 0;
	g.range = list.only;
	if (s.rows != 1) {
		const int n = s.n[0], lane = lane_id();
#pragma unroll 1
		for (int first = 0;; first += 32) {
			int mine = first + lane < n ? att_row_tiles<S>(s, first + lane) : 0,
			    upto = mine;
#pragma unroll
			for (int d = 1; d < 32; d *= 2) {
				int below = __shfl_up_sync(~0u, upto, d);
				upto += lane >= d ? below : 0;
			}
			int all = __shfl_sync(~0u, upto, 31);
			if (list.at >= base + all * S::UNITS && first + 32 < n) {
				base += all * S::UNITS;
				continue;
			}
			unsigned before = __ballot_sync(~0u, list.at >= base + upto * S::UNITS);
			int at = __popc(before & 0x7fffffffu);
			base += __shfl_sync(~0u, upto - mine, at) * S::UNITS;
			g.row = first + at;
			break;
		}
		g.range = att_range<S>(s, S::seq_of(s, g.row), s.pos[g.row]);
	}
	g.seq = S::seq_of(s, g.row);
	g.pos = s.pos[g.row];
	const int tiles = att_tiles<S>(g.range), first = g.range.lo / S::TILE;
	const int u = (int)((unsigned)(list.at - base) / (unsigned)tiles), from = base + u * tiles,
	          in = list.at - from;
	att_unit<S>(g, u);
	g.begins = in == 0;
	g.tile = first + in;
	g.end = first + min(list.end - from, tiles);
	g.first_block = att_block_of<S>(list, from);
	g.last_block = att_block_of<S>(list, from + tiles - 1);
	list.at = from + (g.end - first);
	return g;
}

/* Destinations of results: y and the sink (or NULL) of the segment's first head, and scratch */
typedef struct AttOut {
	float *y;
	int y_step;
	float *part_o, *part_ml;
	int *ticket;
	const float *sink;
} AttOut;

/* Threads that combine parts: here the whole CTA */
struct att_block {
	DEV int
	thread()
	{
		return (int)threadIdx.x;
	}
	DEV int
	threads()
	{
		return (int)blockDim.x;
	}
	DEV void
	sync()
	{
		__syncthreads();
	}
};

/* If V is stored rotated, rotates y of a segment back. y has been written. */
template <class S, class TEAM = att_block> DEV void
att_rotate_back(const AttSegment &g, const AttOut &out)
{
	if constexpr (S::VP::ROTATED) {
		TEAM::sync();
		kv_rotate_rows<S::V>(out.y, g.n_head, out.y_step, TEAM::thread() / 32,
		                     TEAM::threads() / 32);
	}
}

template <int W> DEV void
att_sums(const float *from, float (&x)[W])
{
	if constexpr (W == 4) {
		const uint4 v = ld_v4(from);
		x[0] = __uint_as_float(v.x);
		x[1] = __uint_as_float(v.y);
		x[2] = __uint_as_float(v.z);
		x[3] = __uint_as_float(v.w);
	} else {
		x[0] = *from;
	}
}

/* Combines the parts of a unit. This CTA has written its part_o; top and sum (shared) are the
 * maxima and sums of its heads. The last CTA to arrive writes y. last: shared flag; factor: shared
 * [S::BLOCKS][S::HB], free from the next barrier on. */
template <class S, class TEAM = att_block> DEV void
att_combine(const AttSegment &g, const AttOut &out, const float *top, float *sum, int *last,
            float *factor)
{
	enum {
		/* sums per load: with four, 128 threads load a part of 512 sums (4 heads of 128) at
		 * once */
		W = S::V % 4 ? 1 : 4
	};
	const int thread = TEAM::thread(), mine = 2 * (int)blockIdx.x + g.begins,
	          n = g.last_block - g.first_block + 1;

	if (thread < g.n_head) {
		out.part_ml[(mine * S::HB + thread) * 2] = top[thread];
		out.part_ml[(mine * S::HB + thread) * 2 + 1] = sum[thread];
	}
	TEAM::sync();
	if (thread == 0) {
		*last = atom_add_acq_rel_gpu(out.ticket, 1) == n - 1;
		if (*last)
			st_relaxed_gpu(out.ticket, 0);
	}
	TEAM::sync();
	if (!*last)
		return;
	/* one warp per head computes the weight of each part */
	for (int h = thread / 32; h < g.n_head; h += S::WARPS) {
		float most = ATT_NONE, all = 0;
		for (int i = lane_id(); i < n; i += 32)
			most = fmaxf(
			    most,
			    out.part_ml[((2 * (g.first_block + i) + (i == 0)) * S::HB + h) * 2]);
		most = warp_max(most);
		for (int i = lane_id(); i < n; i += 32) {
			const float *ml =
			    out.part_ml + ((2 * (g.first_block + i) + (i == 0)) * S::HB + h) * 2;
			float f = exp2f(ml[0] - most);
			factor[i * S::HB + h] = f;
			all += ml[1] * f;
		}
		all = warp_sum(all);
		if (lane_id() == 0)
			sum[h] = all + att_sink(out.sink ? out.sink + h : 0, most);
	}
	TEAM::sync();
	/* A round waits 0.7 us for L2, so the loads of ROUNDS rounds are issued together. */
	const int step = W * TEAM::threads(), total = g.n_head * S::V;
#pragma unroll 1
	for (int i = W * thread; i < total; i += S::ROUNDS * step) {
		const float *from = out.part_o + (long long)2 * g.first_block * S::HB * S::V;
		float o[S::ROUNDS][W] = {};
#pragma unroll S::AT_ONCE / S::ROUNDS
		for (int k = 0; k < n; k++) {
			float x[S::ROUNDS][W];
#pragma unroll
			for (int r = 0; r < S::ROUNDS; r++)
				att_sums(from + (long long)(k == 0 ? 1 : 2 * k) * S::HB * S::V +
				             min(i + r * step, total - W),
				         x[r]);
#pragma unroll
			for (int r = 0; r < S::ROUNDS; r++) {
				const int h = min(i + r * step, total - W) / S::V;
#pragma unroll
				for (int c = 0; c < W; c++)
					o[r][c] = fmaf(x[r][c], factor[k * S::HB + h], o[r][c]);
			}
		}
#pragma unroll
		for (int r = 0; r < S::ROUNDS; r++) {
			const int at = i + r * step, h = at / S::V;
			if (at >= total)
				break;
#pragma unroll
			for (int c = 0; c < W; c++)
				out.y[h * out.y_step + at % S::V + c] = o[r][c] / sum[h];
		}
	}
	att_rotate_back<S, TEAM>(g, out);
}

/* Combines the warps of a CTA. s.m and s.l hold the warps' maxima and sums. store(v0) writes
 * o[.][v0 .. v0 + S::VC) of this warp to s.o[warp], multiplied by exp2f(s.m[warp][head] -
 * s.top[head]). The result goes to y, or to scratch if several CTAs share the unit; the last CTA to
 * arrive then writes y. */
template <class S, class Store> DEV void
att_finish(const att_args &a, const AttSegment &g, att_shared<S> &s, Store store)
{
	const AttOut out = { a.y + ((long long)g.row * S::HEADS + g.head) * S::V,
		             S::V,
		             a.part_o,
		             a.part_ml,
		             a.ticket + g.unit,
		             a.sink ? a.sink + g.head : 0 };
	const bool whole = g.first_block == g.last_block;
	const int mine = 2 * (int)blockIdx.x + g.begins;

	__syncthreads();
	if (threadIdx.x < S::HB) {
		int h = threadIdx.x;
		float m = s.m[0][h], l = 0;
		for (int w = 1; w < S::WARPS; w++)
			m = fmaxf(m, s.m[w][h]);
		for (int w = 0; w < S::WARPS; w++)
			l += s.l[w][h] * exp2f(s.m[w][h] - m);
		s.top[h] = m;
		s.sum[h] = whole && h < g.n_head ? l + att_sink(out.sink ? out.sink + h : 0, m) : l;
	}
	for (int v0 = 0; v0 < S::V; v0 += S::VC) {
		__syncthreads();
		store(v0);
		__syncthreads();
		for (int i = threadIdx.x; i < g.n_head * S::VC; i += blockDim.x) {
			int h = i / S::VC, v = i % S::VC;
			if (v0 + v >= S::V)
				continue;
			float o = 0;
#pragma unroll
			for (int w = 0; w < S::WARPS; w++)
				o += s.o[w][h][v];
			if (whole)
				out.y[h * S::V + v0 + v] = o / s.sum[h];
			else
				out.part_o[((long long)mine * S::HB + h) * S::V + v0 + v] = o;
		}
	}
	if (whole)
		att_rotate_back<S>(g, out);
	else
		att_combine<S>(g, out, s.top, s.sum, &s.last, &s.o[0][0][0]);
}

#endif
