/* Decode attention on tensor cores, without shuffles around the mma. Lanes load K and V as 16-byte
 * vectors. These vectors are mma fragments as loaded, if the dimensions of q (and the rows of the
 * output) are numbered as follows:
 *
 *   S = Q K^T    m16n8k16: rows are heads, columns are positions. Lane (g, t) = (lane / 4,
 *                lane % 4) holds dimensions 32c + 8t .. + 7 of position g as words. They count
 *                as columns 2t, 2t+1, 2t+8, 2t+9 of two mma. Rows 0-7 are 8 heads of q rounded,
 *                rows 8-15 the rounding residue, so q keeps its precision.
 *   O = V^T P^T  m16n8k16: rows are dimensions of V, columns are heads. Lane (g, t) holds
 *                dimensions 64c + 8g .. + 7 of positions 2t, 2t+1, 2t+8, 2t+9. A byte
 *                permutation pairs the positions. P has the layout of S, rounded plus residue,
 *                in two mma.
 *
 * A unit is a row, a kv head and 8 of its query heads. If the rows have similar lengths, a unit
 * belongs to one CTA or to one team of warps of a CTA (att_schedule).
 *
 *   CTAs without a unit, and warps at their end: prefetch weights of the next op to L2
 *   K, V of this warp's first tile --cp.async--> shared, if older than the step
 *   wait (gate); q --split--> shared
 *   mainloop: wait K; S; prefetch K of the next tile; softmax; wait V; O; prefetch V
 *
 * A warp processes 16 positions per iteration. Each lane's vectors have their own slots in shared
 * memory, filled by cp.async. K of the next tile is issued as soon as K has been used, and likewise
 * V. For 128 dimensions of 16 bits, 64 KB are in flight and occupy no registers. (Loads to
 * registers would not help, because ptxas moves them after the mma of K.) Slots beyond the range or
 * the dimensions load a valid neighbour and have weight 0. With more than 128 dimensions V is
 * loaded to registers, because shared memory does not suffice.
 *
 * Quantised rows: a lane converts a vector of 8 codes to 16-bit values and stores these to the
 * slot. Everything else is as for plain rows. (The fp32 kernel needs one multiplication per element
 * and head instead.) Rotated rows are multiplied with rotated queries, which are kept in shared
 * memory. */
#ifndef LLMC_CUDA_ATTENTION_ATTENTION_DECODE_MMA_H
#define LLMC_CUDA_ATTENTION_ATTENTION_DECODE_MMA_H

#include "cuda/attention/attention_split_kv.h"
#include "cuda/attention/kv_mma.h"
#include "cuda/runtime/gate.h"
#include "cuda/runtime/prefetch.h"

template <class A, int ARCH> struct att_mma : att_split<A, 16, 8, 4> {
	enum {
		KC = (A::D + 31) / 32,
		VCN = (A::V + 63) / 64,
		V_SHARED = A::V <= 128,
		/* Largest number of teams per CTA, limited by shared memory, which holds a set of
		 * queries per team. Rotation of rows needs the whole CTA. */
		/* Tiles of a unit that one CTA processes even if others idle: three rounds of 8
		 * warps. Two more rounds cost less than combining parts of several CTAs. */
		TEAMS = A::ROTATE     ? 1
		        : A::D <= 128 ? 4
		                      : 2,
		WHOLE = 24,
		/* CTAs per SM. Two let the next kernel start early; one is used if 128 registers
		 * per thread do not suffice. */
		MMA_BLOCKS = !V_SHARED || (ARCH >= 100 && A::D + A::V > 128) ||
		                     !A::KP::UNQUANTISED || !A::VP::UNQUANTISED
		                 ? 1
		                 : 2
	};
};

/* Warps that share a unit. A CTA has four teams of 2 warps, two teams of 4, or one team of 8. */
typedef struct AttTeam {
	int warps, team, member; /* member: index of this warp in its team */

	__device__ __forceinline__ int
	thread() const
	{
		return member * 32 + (int)lane_id();
	}
	__device__ __forceinline__ int
	threads() const
	{
		return warps * 32;
	}
	__device__ __forceinline__ void
	sync() const
	{
		bar_sync(1 + team, warps * 32);
	}
} AttTeam;

/* Per-warp shared memory: first the vectors in flight of the mainloop, then the results of the
 * warp's tiles. */
template <class S> union att_warp_storage {
	struct {
		uint4 k[2][S::KC][32];
		uint4 v[S::V_SHARED ? S::VCN : 1][S::V_SHARED ? 4 : 1][S::V_SHARED ? 32 : 1];
	};
	struct {
		float o[S::HB][S::VS], m[S::HB], l[S::HB];
	};
};

template <class S> struct alignas(16) att_mma_shared_storage {
	uint4 q[S::TEAMS][S::KC][2][32]; /* fragments by lane */
	AttSegment at[S::TEAMS];         /* in shared memory until the merge, to save registers */
	float top[S::HB],
	    sum[S::HB]; /* top, sum and last are for a unit that several CTAs process */
	int last;
	alignas(16) float rotated[S::KP::ROTATED ? 8 : 1][S::KP::ROTATED ? S::D : 4];
	att_warp_storage<S> warp[S::WARPS];
};

template <class S> DEV void
att_load_q(const float *from, const AttSegment &g, att_mma_shared_storage<S> &s,
           const AttTeam &team)
{
	constexpr float Q_FACTOR = kv_mma<typename S::E>::Q_FACTOR;
	const float *rows = from + ((long long)g.row * S::HEADS + g.head) * S::D;

	if constexpr (S::KP::ROTATED) {
		for (int i = threadIdx.x; i < g.n_head * S::D; i += blockDim.x)
			s.rotated[i / S::D][i % S::D] = rows[i];
		__syncthreads();
		kv_rotate_rows<S::D>(s.rotated[0], g.n_head, S::D, warp_id(), S::WARPS);
		__syncthreads();
		rows = s.rotated[0];
	}
#pragma unroll 4
	for (int i = team.thread(); i < S::KC * 64; i += team.threads()) {
		const int lane = i % 32, part = i / 32 % 2, c = i / 64, head = lane / 4,
		          d = 32 * c + 8 * (lane % 4) + 4 * part;
		uint4 f = {};
		if (head < g.n_head && d < S::D) {
			uint4 x = ld_v4(rows + head * S::D + d);
			kv_pair_split<typename S::E>(__uint_as_float(x.x) * Q_FACTOR,
			                             __uint_as_float(x.y) * Q_FACTOR, &f.x, &f.y);
			kv_pair_split<typename S::E>(__uint_as_float(x.z) * Q_FACTOR,
			                             __uint_as_float(x.w) * Q_FACTOR, &f.z, &f.w);
		}
		st_v4(&s.q[team.team][c][part][lane], f);
	}
}

/* Returns the row, within its page, of position `at` of a tile. Positions outside of the visible
 * range map to the nearest visible one. */
template <class S> DEV int
att_row_in_page(int tile, const AttRange &r, int at)
{
	return tile * S::TILE % KV_PAGE +
	       min(max(at, r.lo - tile * S::TILE), r.hi - tile * S::TILE - 1);
}

/* Returns a 0 that the compiler cannot see. Addresses that include it are computed where they are
 * used, instead of being held in registers. */
DEV int
att_zero()
{
	int zero = 0;

	asm volatile("" : "+r"(zero));
	return zero;
}

/* Dequantises elements d .. d + 8 of row j of plane P to 16 bits. */
template <class S, class P> DEV uint4
att_dequantise(const void *plane, int j, int d)
{
	float x[8];
	unsigned two[4];

	P::load(plane, j, d, x);
#pragma unroll
	for (int c = 0; c < 4; c++)
		two[c] = S::E::put(x[2 * c]) | (unsigned)S::E::put(x[2 * c + 1]) << 16;
	return make_uint4(two[0], two[1], two[2], two[3]);
}

/* Starts the loads of a tile of K. base: K of the head in the page. */
template <class S> DEV void
att_fetch_k(const typename S::elem *base, int tile, const AttRange &r, uint4 (&k)[2][S::KC][32])
{
	const int lane = lane_id(), to = lane + att_zero();

#pragma unroll
	for (int n = 0; n < 2; n++) {
		const int j = att_row_in_page<S>(tile, r, 8 * n + lane / 4);
#pragma unroll
		for (int c = 0; c < S::KC; c++) {
			int d = 32 * c + 8 * (lane % 4);
			d = 32 * c + 32 <= S::D || d < S::D ? d : 0;
			if constexpr (S::KP::UNQUANTISED)
				cp_async_16(&k[n][c][to], base + j * S::D + d);
			else
				st_v4(&k[n][c][to], att_dequantise<S, typename S::KP>(base, j, d));
		}
	}
}

/* Coordinates of a lane's V vector. x: row of the vector's i-th position (of four); y: its first
 * dimension, for dimensions from 64 c on */
template <class S> DEV int2
att_vector_v(int tile, const AttRange &r, int c, int i)
{
	const int lane = lane_id(), d = 64 * c + 8 * (lane / 4);

	return make_int2(att_row_in_page<S>(tile, r, lane % 4 * 2 + i % 2 + i / 2 * 8),
	                 64 * c + 64 <= S::V || d < S::V ? d : 0);
}

DEV unsigned
att_word(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* o += V^T P^T for 64 dimensions. */
template <class S> DEV void
att_weigh(const uint4 (&v)[4], const unsigned (&whole)[2], const unsigned (&rest)[2],
          float (&o)[4][4])
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		unsigned a = att_word(v[0], j), b = att_word(v[1], j), c = att_word(v[2], j),
		         d = att_word(v[3], j);
		const unsigned frag[4] = { __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632),
			                   __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632) };
		kv_mma<typename S::E>::product(o[j], frag, whole);
		kv_mma<typename S::E>::product(o[j], frag, rest);
	}
}

/* Starts the loads of a tile of V. */
template <class S, class Place> DEV void
att_fetch_v(const typename S::v_elem *base, int tile, const AttRange &r, Place &v)
{
	if constexpr (S::V_SHARED) {
		const int to = lane_id() + att_zero();
#pragma unroll
		for (int c = 0; c < S::VCN; c++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int2 piece = att_vector_v<S>(tile, r, c, i);
				if constexpr (S::VP::UNQUANTISED)
					cp_async_16(&v[c][i][to], base + piece.x * S::V + piece.y);
				else
					st_v4(&v[c][i][to], att_dequantise<S, typename S::VP>(
					                        base, piece.x, piece.y));
			}
	}
}

/* Returns a lane's vectors of 64 dimensions in registers. */
template <class S, class Place> DEV void
att_load_v(const typename S::v_elem *base, int tile, const AttRange &r, int c, const Place &v,
           uint4 (&to)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int2 piece = att_vector_v<S>(tile, r, c, i);
		if constexpr (S::V_SHARED)
			to[i] = ld_v4(&v[c][i][lane_id()]);
		else if constexpr (S::VP::UNQUANTISED)
			to[i] = ld_v4_stream(base + piece.x * S::V + piece.y);
		else
			to[i] = att_dequantise<S, typename S::VP>(base, piece.x, piece.y);
	}
}

/* Pages of this warp's tiles in a segment */
template <class S> struct att_pages {
	int pages;              /* lane i: page of the i-th of 32 tiles */
	typename S::elem *next; /* page of the tile in flight */
};

/* Prefetches a tile to L2. Only positions before the step's own one are prefetched. The positions
 * of a page are contiguous. */
template <class S> DEV void
att_prefetch_tile(const AttSegment &g, int tile, const typename S::elem *page)
{
	const int at = tile * S::TILE % KV_PAGE, n = min(g.pos - tile * S::TILE, (int)S::TILE);

	if constexpr (S::KP::UNQUANTISED)
		for (int i = lane_id() * 64; i < n * S::D;
		     i += 32 * 64) /* one line of 128 bytes per lane */
			prefetch_l2(S::k(page, g.kv_head) + at * S::D + i);
	if constexpr (S::VP::UNQUANTISED)
		for (int i = lane_id() * 64; i < n * S::V; i += 32 * 64)
			prefetch_l2(S::v(page, g.kv_head) + at * S::V + i);
}

/* Looks up the pages of this warp's tiles of a segment, if it has any. near: the first tile is not
 * in flight yet; prefetch it to L2. The second tile cannot be loaded before the slots of the first
 * are free, so it is prefetched too: its load then takes 0.4 us instead of 0.8. */
template <class S> DEV void
att_look_up(const llmc_step &step, const att_args &args, const AttSegment &g, const AttTeam &team,
            bool near, att_pages<S> &from)
{
	const int tile = g.tile + team.member;

	from.pages = 0;
	from.next = 0;
	if (tile >= g.end)
		return;
	if (tile + (int)lane_id() * team.warps < g.end)
		from.pages =
		    step.block_table[(long long)g.seq * step.block_stride +
		                     (tile + (int)lane_id() * team.warps) * S::TILE / KV_PAGE];
	from.next = S::page_at(args.kv, __shfl_sync(~0u, from.pages, 0));
	if (near)
		att_prefetch_tile<S>(g, tile, from.next);
	if (tile + team.warps < g.end)
		att_prefetch_tile<S>(g, tile + team.warps,
		                     S::page_at(args.kv, __shfl_sync(~0u, from.pages, 1)));
}

/* Starts the loads of the first tile. */
template <class S> DEV void
att_begin(const AttSegment &g, const AttTeam &team, att_mma_shared_storage<S> &s,
          const att_pages<S> &from)
{
	const int tile = g.tile + team.member;

	if (tile >= g.end)
		return;
	att_fetch_k<S>(S::k(from.next, g.kv_head), tile, g.range, s.warp[warp_id()].k);
	cp_async_commit();
	att_fetch_v<S>(S::v(from.next, g.kv_head), tile, g.range, s.warp[warp_id()].v);
	cp_async_commit();
}

/* Stores 8 neighbouring dimensions of one head. Fragment j has dimensions 2 j and 2 j + 1, in
 * elements e and e + 2. */
template <class S> DEV void
att_put(float *to, const float (&o)[4][4], int e)
{
#pragma unroll
	for (int j = 0; j < 4; j += 2)
		st_v4(to + 2 * j,
		      make_uint4(__float_as_uint(o[j][e]), __float_as_uint(o[j][e + 2]),
		                 __float_as_uint(o[j + 1][e]), __float_as_uint(o[j + 1][e + 2])));
}

/* Merges the results of a team's warps for a segment and stores them to y, or to scratch if several
 * CTAs share the unit. In that case, the last CTA to arrive writes y. A thread processes four
 * dimensions of a head, and computes the weights of the warps from their maxima itself. This needs
 * one barrier; three would be needed if one warp first computed the head's maximum. */
template <class S> DEV void
att_merge(const att_args &a, att_mma_shared_storage<S> &s, const AttTeam &team,
          const float (&o)[S::VCN][4][4], float m, float l)
{
	const AttSegment &g = s.at[team.team];
	const AttOut out = { a.y + ((long long)g.row * S::HEADS + g.head) * S::V,
		             S::V,
		             a.part_o,
		             a.part_ml,
		             a.ticket + g.unit,
		             a.sink ? a.sink + g.head : 0 };
	const bool whole = g.first_block == g.last_block;
	const int n = min(team.warps, g.end - g.tile), n_head = g.n_head, lane = lane_id(),
	          head = lane / 4, quad = lane % 4; /* n: number of warps that had a tile */
	float *part = out.part_o + (2 * (long long)blockIdx.x + g.begins) * S::HB * S::V;
	att_warp_storage<S> &mine = s.warp[warp_id()], *first = &s.warp[team.team * team.warps];

	if (team.member < n && quad == 0) {
		mine.m[head] = m;
		mine.l[head] = l;
	}
#pragma unroll 1
	for (int v0 = 0; v0 < S::V; v0 += S::VC) {
		if (v0)
			team.sync();
		if (team.member < n)
#pragma unroll
			for (int c = 0; c < S::VCN; c++) {
				const int v = 64 * c + 8 * head - v0;
#pragma unroll
				for (int e = 0; e < 2; e++)
					if (v >= 0 && v < S::VC && 2 * quad + e < n_head)
						att_put<S>(&mine.o[2 * quad + e][v], o[c], e);
			}
		team.sync();
		for (int i = team.thread(); i < n_head * (S::VC / 4); i += team.threads()) {
			const int h = i / (S::VC / 4), v = i % (S::VC / 4) * 4;
			float top = ATT_NONE, sum = 0, x[4] = {};
			if (v0 + v >= S::V)
				continue;
			for (int w = 0; w < n; w++)
				top = fmaxf(top, first[w].m[h]);
			for (int w = 0; w < n; w++) {
				const float f = exp2f(first[w].m[h] - top);
				float y[4];
				att_sums(&first[w].o[h][v], y);
				sum = fmaf(first[w].l[h], f, sum);
#pragma unroll
				for (int c = 0; c < 4; c++)
					x[c] = fmaf(y[c], f, x[c]);
			}
			const float all =
			    whole ? sum + att_sink(out.sink ? out.sink + h : 0, top) : 1;
			st_v4((whole ? out.y : part) + h * S::V + v0 + v,
			      make_uint4(__float_as_uint(x[0] / all), __float_as_uint(x[1] / all),
			                 __float_as_uint(x[2] / all), __float_as_uint(x[3] / all)));
			if (!whole && v0 + v == 0) {
				s.top[h] = top;
				s.sum[h] = sum;
			}
		}
	}
	if (whole) {
		att_rotate_back<S>(g, out);
		return;
	}
	team.sync(); /* maxima and sums of all heads are now in shared memory */
	att_combine<S>(g, out, s.top, s.sum, &s.last, (float *)s.warp);
}

/* Processes this warp's tiles of a segment. The first tile is already in flight. from: pages of the
 * tiles */
template <class S> DEV void
att_decode_segment(const llmc_step &step, const att_args &args, const AttSegment &g,
                   att_mma_shared_storage<S> &s, const AttTeam &team, att_pages<S> &from)
{
	const int lane = lane_id(), head = lane / 4, quad = lane % 4;
	constexpr float Q_FACTOR = kv_mma<typename S::E>::Q_FACTOR;
	const float slope = att_slope<S>(g.head + min(head, g.n_head - 1));
	float o[S::VCN][4][4] = {}, m = ATT_NONE, l = 0;
	typename S::elem *page = 0;
	att_warp_storage<S> &mine = s.warp[warp_id()];

	/* This warp's tiles are tile, tile + team.warps, ... Lane i holds the page of the i-th of
	 * 32 of them. */
	for (int tile = g.tile + team.member, n = 0; tile < g.end; tile += team.warps, n++) {
		const int after = tile + team.warps;
		page = from.next;
		cp_async_wait<1>(); /* K: a lane waits only for its own vectors, because it reads no
		                       others */
		float x[2][4] = {};
#pragma unroll
		for (int c = 0; c < S::KC; c++) {
			uint4 a = ld_v4(&s.q[team.team][c][0][lane]),
			      b = ld_v4(&s.q[team.team][c][1][lane]);
			const unsigned qa[4] = { a.x, a.y, a.z, a.w },
			               qb[4] = { b.x, b.y, b.z, b.w };
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint4 k = ld_v4(&mine.k[i][c][lane]);
				const unsigned ka[2] = { k.x, k.y }, kb[2] = { k.z, k.w };
				kv_mma<typename S::E>::product(x[i], qa, ka);
				kv_mma<typename S::E>::product(x[i], qb, kb);
			}
		}
		if (after < g.end) { /* uniform within the warp */
			if ((n + 1) % 32 == 0 && after + lane * team.warps < g.end)
				from.pages = step.block_table[(long long)g.seq * step.block_stride +
				                              (after + lane * team.warps) *
				                                  S::TILE / KV_PAGE];
			from.next = S::page_at(args.kv, __shfl_sync(~0u, from.pages, (n + 1) % 32));
			att_fetch_k<S>(S::k(from.next, g.kv_head), after, g.range, mine.k);
		}
		cp_async_commit();
		/* weights of positions 2t, 2t+1, 8+2t, 9+2t of head g */
		float w[4], top = m;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = tile * S::TILE + quad * 2 + i % 2 + i / 2 * 8;
			float product = (x[i / 2][i % 2] + x[i / 2][i % 2 + 2]) * (1 / Q_FACTOR);
			w[i] = at >= g.range.lo && at < g.range.hi
			           ? att_score<S>(product, slope, at - g.pos)
			           : ATT_NONE;
			top = fmaxf(top, w[i]);
		}
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
		float keep = exp2f(m - top);
		m = top;
		l *= keep;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			w[i] = w[i] != ATT_NONE ? exp2f(w[i] - top) : 0; /* a NaN score stays NaN */
			l += w[i];
		}
		unsigned whole[2], rest[2];
		kv_pair_split<typename S::E>(w[0], w[1], &whole[0], &rest[0]);
		kv_pair_split<typename S::E>(w[2], w[3], &whole[1], &rest[1]);
		/* columns of o are heads 2t and 2t+1 */
		float keep0 = __shfl_sync(~0u, keep, quad * 8),
		      keep1 = __shfl_sync(~0u, keep, quad * 8 + 4);
		cp_async_wait<1>(); /* V */
#pragma unroll
		for (int c = 0; c < S::VCN; c++) {
			uint4 v[4];
			att_load_v<S>(S::v(page, g.kv_head), tile, g.range, c, mine.v, v);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				o[c][j][0] *= keep0;
				o[c][j][1] *= keep1;
				o[c][j][2] *= keep0;
				o[c][j][3] *= keep1;
			}
			att_weigh<S>(v, whole, rest, o[c]);
		}
		if (after < g.end)
			att_fetch_v<S>(S::v(from.next, g.kv_head), after, g.range, mine.v);
		cp_async_commit();
	}
	cp_async_wait_all();
	l += __shfl_xor_sync(~0u, l, 1);
	l += __shfl_xor_sync(~0u, l, 2);
	__syncwarp(); /* the vectors share memory with the sums */
	att_merge<S>(args, s, team, o, m, l);
}

/* Schedule of a CTA. parts > 0: units are assigned as a whole, each to at most `parts` CTAs or to
 * one team of warps. parts 0: the CTA processes its run of the list of tiles. A whole unit has one
 * chain of latencies (page, K, V, sums). A run has one such chain for each of its units, and units
 * that it shares with other CTAs must be combined. */
typedef struct AttSchedule {
	AttList list;
	int parts, warps, units;
} AttSchedule;

/* Chooses between whole units and runs. Whole units take as long as the longest of them, so runs
 * are chosen if lengths differ much. Costs are counted in iterations of a warp (16 positions, about
 * 0.8 us). Starting a unit (page, K, V, sums) costs two, and so does combining its parts. A run has
 * two ends to combine. */
template <class S> DEV AttSchedule
att_schedule(const llmc_step &s)
{
	const bool one = s.rows == 1;
	const AttRange only = att_range<S>(s, 0, one ? s.pos[0] : 0);
	const int blocks = min((int)gridDim.x, (int)S::BLOCKS), n = s.n[0];
	int total = 0, most = 0;
	AttSchedule d = {};

	d.list.only = only;
	if (one) {
		total = most = n > 0 ? att_tiles<S>(only) : 0;
	} else {
		/* 64 rows per iteration, so that two loads of positions are in flight */
#pragma unroll 1
		for (int row = lane_id(); row < n; row += 64) {
			const int x = att_row_tiles<S>(s, row),
			          last = att_row_tiles<S>(s, min(row + 32, n - 1)),
			          y = row + 32 < n ? last : 0;
			total += x + y;
			most = max(most, max(x, y));
		}
#pragma unroll
		for (int i = 16; i; i /= 2) {
			total += __shfl_xor_sync(~0u, total, i);
			most = max(most, __shfl_xor_sync(~0u, most, i));
		}
	}
	d.units = n * S::UNITS;
	d.warps = S::WARPS;
	if (S::TEAMS >= 2 && d.units > blocks)
		d.warps = S::TEAMS >= 4 && d.units > 2 * blocks ? 2 : 4;
	d.parts = 1;
	if (d.units <= blocks && most > S::WHOLE)
		d.parts = min(blocks / max(d.units, 1), (most + S::WARPS - 1) / S::WARPS);
	const unsigned teams = blocks * (S::WARPS / d.warps),
	               tiles = (most + d.parts - 1) / d.parts;
	const int dealt =
	    (int)((d.units + teams - 1) / teams * ((tiles + d.warps - 1) / d.warps + 2)) +
	    2 * (d.parts > 1);
	const int even = (int)((unsigned)(total * S::UNITS) / (unsigned)(S::WARPS * blocks)),
	          segments = (int)((unsigned)d.units / (unsigned)blocks) + 1;
	if (dealt > even + even / 8 + 2 * segments + 4) {
		d.parts = 0;
		d.warps = S::WARPS;
		d.list = att_cut<S>(total * S::UNITS, only);
	}
	return d;
}

/* Returns the part of a unit that this CTA has to process. The part is empty (tile == end) if the
 * row has fewer parts. */
template <class S> DEV AttSegment
att_scheduled(const llmc_step &s, const AttRange &only, int unit, int part, int parts)
{
	AttSegment g;

	g.row = unit / S::UNITS;
	g.seq = S::seq_of(s, g.row);
	g.pos = s.pos[g.row];
	g.range = s.rows == 1 ? only : att_range<S>(s, g.seq, g.pos);
	const int tiles = att_tiles<S>(g.range), first = g.range.lo / S::TILE;
	const int n = tiles <= S::WHOLE ? 1 : min(parts, (tiles + S::WARPS - 1) / S::WARPS);
	att_unit<S>(g, unit % S::UNITS);
	g.begins = part == 0;
	g.tile = first + (int)((unsigned)(tiles * min(part, n)) / (unsigned)n);
	g.end = first + (int)((unsigned)(tiles * min(part + 1, n)) / (unsigned)n);
	g.first_block = (int)blockIdx.x - part;
	g.last_block = g.first_block + n - 1;
	return g;
}

template <class S, class GATE> DEV void
att_decode_mma(const llmc_call &call, const att_args &a, GATE &gate)
{
	const llmc_step &step = call.s;
	typedef att_mma_shared_storage<S> shared_storage;
	SHARED_STORAGE(shared_storage, s);
	static_assert(sizeof(shared_storage) <= (8192 + 1024 * S::TEAMS) * S::KC +
	                                            16384 * S::V_SHARED * S::VCN +
	                                            36864 * (S::V > 128) * (S::D <= 128) +
	                                            32 * S::D * S::KP::ROTATED + 768,
	              "must match shared in the @launch lines");

	AttSchedule d = att_schedule<S>(step);
	const AttTeam team = { d.warps, (int)warp_id() / d.warps, (int)warp_id() % d.warps };
	const int teams = S::WARPS / d.warps, blocks = min((int)gridDim.x, (int)S::BLOCKS);
	int unit = d.parts > 1 ? (int)((unsigned)blockIdx.x / (unsigned)d.parts)
	                       : (int)blockIdx.x + team.team * blocks;
	bool more = d.parts ? unit < d.units && (int)blockIdx.x < blocks : d.list.at < d.list.end;
	AttSegment g;

	if (more) {
		g = d.parts ? att_scheduled<S>(
		                  step, d.list.only, unit,
		                  d.parts > 1 ? (int)((unsigned)blockIdx.x % (unsigned)d.parts) : 0,
		                  d.parts)
		            : att_segment<S>(step, d.list);
		more = g.tile < g.end;
	}
	/* K and V were written before this step, except at the row's own position. A warp whose
	 * first tile precedes that position therefore loads the tile before the gate's wait. */
	att_pages<S> from;
	const bool early = more && (g.tile + team.member + 1) * S::TILE <= g.pos;
	if (more)
		att_look_up<S>(step, a, g, team, !early, from);
	else
		prefetch_next(call, warp_id(), S::WARPS);
	if (early)
		att_begin<S>(g, team, s, from);
	gate.wait();
	if (!more)
		return;
	if (!early)
		att_begin<S>(g, team, s, from);
	for (;;) {
		att_load_q<S>(a.q, g, s, team);
		if (team.thread() == 0)
			s.at[team.team] = g;
		team.sync(); /* queries are now in shared memory */
		att_decode_segment<S>(step, a, g, s, team, from);
		unit += teams * blocks;
		if (d.parts ? d.parts > 1 || unit >= d.units : d.list.at >= d.list.end)
			break;
		g = d.parts ? att_scheduled<S>(step, d.list.only, unit, 0, 1)
		            : att_segment<S>(step, d.list);
		att_look_up<S>(step, a, g, team, false, from);
		team.sync(); /* no warp uses s for the previous segment any more */
		att_begin<S>(g, team, s, from);
	}
	prefetch_next(call, warp_id(), S::WARPS);
}

#endif
