/* Decode attention by tensor cores, without a shuffle in the products. The 16-byte pieces in which lanes load K and V are mma fragments
 * already, once the dimensions of q (and the rows of the sum) are numbered to suit:
 *
 *   S = Q K^T   m16n8k16: rows are heads, columns positions. Lane (g, t) = (lane / 4, lane % 4) holds dimensions 32c + 8t .. + 7 of
 *               position g as words; they count as columns 2t, 2t+1, 2t+8, 2t+9 of two products. Rows 0-7 are 8 heads of q rounded,
 *               rows 8-15 what rounding left, so that q counts in full.
 *   O = V^T P^T m16n8k16: rows are dimensions of V, columns heads. Lane (g, t) holds dimensions 64c + 8g .. + 7 of positions 2t, 2t+1,
 *               2t+8, 2t+9; a byte permutation pairs positions. P comes as S leaves it, rounded and rest, in two products.
 *
 *   K, V of this warp's first tile --cp.async--> shared, where they are older than the step; PDL wait; q --split--> shared
 *   main loop: wait K, S, prefetch K of the next tile, softmax, wait V, O, prefetch V
 *
 * A warp takes 16 positions at a time. Each lane's pieces wait in places of its own in shared memory, brought by cp.async: K of the
 * next tile comes once K has been used, and so does V, so that 64 KB are on their way for 128 dimensions of 16 bits, and no register
 * waits with them. (Loads to registers are moved behind the products of K by ptxas.) Places beyond the range or the dimensions
 * read a valid neighbour and count 0. More than 128 dimensions of V are loaded to registers after all: shared memory ends.
 *
 * A piece of quantised rows is 8 codes, which the lane makes into numbers of 16 bits on their way to its place: what remains of the work is that of
 * plain rows, where fp32 takes a multiplication for each element and head. Turned rows meet turned queries, which wait in shared memory. */
#ifndef LLMC_CUDA_ATTENTION_MMA_H
#define LLMC_CUDA_ATTENTION_MMA_H

#include "common/cuda_attention_split.h"
#include "common/cuda_kv_mma.h"

template <class A, int ARCH> struct att_mma : att_split<A, 16, 8, 4> {
	enum {
		KC = (A::D + 31) / 32, VCN = (A::V + 63) / 64,
		V_SHARED = A::V <= 128,
		/* a multiprocessor: a block leaves room for the next kernel; where 128 registers do not do, it has more */
		MMA_BLOCKS = !V_SHARED || (ARCH >= 100 && A::D + A::V > 128) || !A::KP::PLAIN || !A::VP::PLAIN ? 1 : 2
	};
};

template <class S> struct alignas(16) att_mma_arena {
	uint4      q[S::KC][2][32]; /* fragments by lane */
	AttSegment at;               /* for what comes after the tiles: registers are few */
	alignas(16) float turned[S::KP::TURNS ? 8 : 1][S::KP::TURNS ? S::D : 4];
	union {
		struct {
			uint4 k[S::WARPS][2][S::KC][32];
			uint4 v[S::WARPS][S::V_SHARED ? S::VCN : 1][S::V_SHARED ? 4 : 1][S::V_SHARED ? 32 : 1];
		};
		att_shared<S> s;    /* after the last tile of a segment */
	};
};

template <class S> DEV void
att_load_q(const float *from, const AttSegment &g, att_mma_arena<S> &s)
{
	constexpr float Q_FACTOR = kv_mma<typename S::E>::Q_FACTOR;
	const float *rows = from + ((long long)g.row * S::HEADS + g.head) * S::D;

	if constexpr (S::KP::TURNS) {
		for (int i = threadIdx.x; i < g.n_head * S::D; i += blockDim.x)
			s.turned[i / S::D][i % S::D] = rows[i];
		__syncthreads();
		kv_turn_rows<S::D>(s.turned[0], g.n_head, S::D, warp_id(), S::WARPS);
		__syncthreads();
		rows = s.turned[0];
	}
	for (int i = threadIdx.x; i < S::KC * 64; i += blockDim.x) {
		const int lane = i % 32, part = i / 32 % 2, c = i / 64, head = lane / 4, d = 32 * c + 8 * (lane % 4) + 4 * part;
		uint4 f = {};
		if (head < g.n_head && d < S::D) {
			uint4 x = ld_v4(rows + head * S::D + d);
			kv_pair_split<typename S::E>(__uint_as_float(x.x) * Q_FACTOR, __uint_as_float(x.y) * Q_FACTOR, &f.x, &f.y);
			kv_pair_split<typename S::E>(__uint_as_float(x.z) * Q_FACTOR, __uint_as_float(x.w) * Q_FACTOR, &f.z, &f.w);
		}
		st_v4(&s.q[c][part][lane], f);
	}
}

/* Place in its page of position `at` of a tile, or of a neighbour that the row sees */
template <class S> DEV int
att_place(int tile, const AttRange &r, int at)
{
	return tile * S::TILE % KV_PAGE + min(max(at, r.lo - tile * S::TILE), r.hi - tile * S::TILE - 1);
}

/* 0, but the compiler does not know: addresses made with it are made when they are wanted, not kept in registers throughout */
DEV int
att_zero()
{
	int zero = 0;

	asm volatile("" : "+r"(zero));
	return zero;
}

/* Elements d .. d + 8 of row j of a quantised plane P, as 16 bits */
template <class S, class P> DEV uint4
att_made(const void *plane, int j, int d)
{
	float    x[8];
	unsigned two[4];

	P::load(plane, j, d, x);
#pragma unroll
	for (int c = 0; c < 4; c++)
		two[c] = S::E::put(x[2 * c]) | (unsigned)S::E::put(x[2 * c + 1]) << 16;
	return make_uint4(two[0], two[1], two[2], two[3]);
}

/* K of a tile on its way; base: K of the head in the page */
template <class S> DEV void
att_fetch_k(const typename S::elem *base, int tile, const AttRange &r, uint4 (&k)[2][S::KC][32])
{
	const int lane = lane_id(), to = lane + att_zero();

#pragma unroll
	for (int n = 0; n < 2; n++) {
		const int j = att_place<S>(tile, r, 8 * n + lane / 4);
#pragma unroll
		for (int c = 0; c < S::KC; c++) {
			int d = 32 * c + 8 * (lane % 4);
			d = 32 * c + 32 <= S::D || d < S::D ? d : 0;
			if constexpr (S::KP::PLAIN)
				cp_async_16(&k[n][c][to], base + j * S::D + d);
			else
				st_v4(&k[n][c][to], att_made<S, typename S::KP>(base, j, d));
		}
	}
}

/* The piece of V for position i of a lane's four, dimensions from 64 c on: x its row, y its first dimension */
template <class S> DEV int2
att_piece_v(int tile, const AttRange &r, int c, int i)
{
	const int lane = lane_id(), d = 64 * c + 8 * (lane / 4);

	return make_int2(att_place<S>(tile, r, lane % 4 * 2 + i % 2 + i / 2 * 8), 64 * c + 64 <= S::V || d < S::V ? d : 0);
}

DEV unsigned
att_word(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* o += V^T P^T for 64 dimensions */
template <class S> DEV void
att_weigh(const uint4 (&v)[4], const unsigned (&whole)[2], const unsigned (&rest)[2], float (&o)[4][4])
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		unsigned a = att_word(v[0], j), b = att_word(v[1], j), c = att_word(v[2], j), d = att_word(v[3], j);
		const unsigned frag[4] = { __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632) };
		kv_mma<typename S::E>::product(o[j], frag, whole);
		kv_mma<typename S::E>::product(o[j], frag, rest);
	}
}

/* V of a tile on its way */
template <class S, class Place> DEV void
att_fetch_v(const typename S::v_elem *base, int tile, const AttRange &r, Place &v)
{
	if constexpr (S::V_SHARED) {
		const int to = lane_id() + att_zero();
#pragma unroll
		for (int c = 0; c < S::VCN; c++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int2 piece = att_piece_v<S>(tile, r, c, i);
				if constexpr (S::VP::PLAIN)
					cp_async_16(&v[c][i][to], base + piece.x * S::V + piece.y);
				else
					st_v4(&v[c][i][to], att_made<S, typename S::VP>(base, piece.x, piece.y));
			}
	}
}

/* The same 64 dimensions' pieces in registers */
template <class S, class Place> DEV void
att_load_v(const typename S::v_elem *base, int tile, const AttRange &r, int c, const Place &v, uint4 (&to)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int2 piece = att_piece_v<S>(tile, r, c, i);
		if constexpr (S::V_SHARED)
			to[i] = ld_v4(&v[c][i][lane_id()]);
		else if constexpr (S::VP::PLAIN)
			to[i] = ld_v4_stream(base + piece.x * S::V + piece.y);
		else
			to[i] = att_made<S, typename S::VP>(base, piece.x, piece.y);
	}
}

/* Where this warp's tiles of a segment come from */
template <class S> struct att_pages {
	int               pages; /* of the i-th of 32 tiles, in lane i */
	typename S::elem *next;  /* the page of the tile on its way */
};

/* This warp's first tile of a segment on its way */
template <class S> DEV void
att_begin(const llmc_step &step, const att_args &args, const AttSegment &g, att_mma_arena<S> &s, att_pages<S> &from)
{
	const int tile = g.tile + (int)warp_id();

	from.pages = 0;
	from.next = 0;
	if (tile >= g.end)
		return;
	if (tile + (int)lane_id() * S::WARPS < g.end)
		from.pages = step.block_table[(long long)g.seq * step.block_stride + (tile + (int)lane_id() * S::WARPS) * S::TILE / KV_PAGE];
	from.next = S::page_at(args.kv, __shfl_sync(~0u, from.pages, 0));
	att_fetch_k<S>(S::k(from.next, g.kv_head), tile, g.range, s.k[warp_id()]);
	cp_async_commit();
	att_fetch_v<S>(S::v(from.next, g.kv_head), tile, g.range, s.v[warp_id()]);
	cp_async_commit();
}

/* from: of its first tile, which is on its way */
template <class S> DEV void
att_decode_segment(const llmc_step &step, const att_args &args, const AttSegment &g, att_mma_arena<S> &s, att_pages<S> &from)
{
	const int lane = lane_id(), warp = warp_id(), head = lane / 4, quad = lane % 4;
	constexpr float Q_FACTOR = kv_mma<typename S::E>::Q_FACTOR;
	const float slope = att_slope<S>(g.head + min(head, g.n_head - 1));
	float o[S::VCN][4][4] = {}, m = ATT_NONE, l = 0;
	typename S::elem *page = 0;

	/* this warp's tiles are tile, tile + 8, ...; lane i holds the page of the i-th of 32 */
	for (int tile = g.tile + warp, n = 0; tile < g.end; tile += S::WARPS, n++) {
		const int after = tile + S::WARPS;
		page = from.next;
		cp_async_wait<1>(); /* K: a lane waits for its own pieces, and reads no others */
		float x[2][4] = {};
#pragma unroll
		for (int c = 0; c < S::KC; c++) {
			uint4 a = ld_v4(&s.q[c][0][lane]), b = ld_v4(&s.q[c][1][lane]);
			const unsigned qa[4] = { a.x, a.y, a.z, a.w }, qb[4] = { b.x, b.y, b.z, b.w };
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint4 k = ld_v4(&s.k[warp][i][c][lane]);
				const unsigned ka[2] = { k.x, k.y }, kb[2] = { k.z, k.w };
				kv_mma<typename S::E>::product(x[i], qa, ka);
				kv_mma<typename S::E>::product(x[i], qb, kb);
			}
		}
		if (after < g.end) { /* all lanes take the same way */
			if ((n + 1) % 32 == 0 && after + lane * S::WARPS < g.end)
				from.pages = step.block_table[(long long)g.seq * step.block_stride + (after + lane * S::WARPS) * S::TILE / KV_PAGE];
			from.next = S::page_at(args.kv, __shfl_sync(~0u, from.pages, (n + 1) % 32));
			att_fetch_k<S>(S::k(from.next, g.kv_head), after, g.range, s.k[warp]);
		}
		cp_async_commit();
		/* weights of the positions 2t, 2t+1, 8+2t, 9+2t of head g */
		float w[4], top = m;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = tile * S::TILE + quad * 2 + i % 2 + i / 2 * 8;
			float product = (x[i / 2][i % 2] + x[i / 2][i % 2 + 2]) * (1 / Q_FACTOR);
			w[i] = at >= g.range.lo && at < g.range.hi ? att_score<S>(product, slope, at - g.pos) : ATT_NONE;
			top = fmaxf(top, w[i]);
		}
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
		float keep = exp2f(m - top);
		m = top;
		l *= keep;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			w[i] = w[i] > ATT_NONE ? exp2f(w[i] - top) : 0;
			l += w[i];
		}
		unsigned whole[2], rest[2];
		kv_pair_split<typename S::E>(w[0], w[1], &whole[0], &rest[0]);
		kv_pair_split<typename S::E>(w[2], w[3], &whole[1], &rest[1]);
		/* o's columns are heads 2t and 2t+1 */
		float keep0 = __shfl_sync(~0u, keep, quad * 8), keep1 = __shfl_sync(~0u, keep, quad * 8 + 4);
		cp_async_wait<1>(); /* V */
#pragma unroll
		for (int c = 0; c < S::VCN; c++) {
			uint4 v[4];
			att_load_v<S>(S::v(page, g.kv_head), tile, g.range, c, s.v[warp], v);
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
			att_fetch_v<S>(S::v(from.next, g.kv_head), after, g.range, s.v[warp]);
		cp_async_commit();
	}
	cp_async_wait_all();
	__syncthreads(); /* the pieces make room for the sums */
	l += __shfl_xor_sync(~0u, l, 1);
	l += __shfl_xor_sync(~0u, l, 2);
	if (quad == 0) {
		s.s.m[warp][head] = m;
		s.s.l[warp][head] = l;
	}
	att_finish<S>(args, s.at, s.s, [&](int v0) {
#pragma unroll
		for (int c = 0; c < S::VCN; c++) {
			int v = 64 * c + 8 * head - v0;
			if (v < 0 || v >= S::VC)
				continue;
#pragma unroll
			for (int e = 0; e < 2; e++) {
				int h = 2 * quad + e;
				float f = exp2f(s.s.m[warp][h] - s.s.top[h]), *to = &s.s.o[warp][h][v];
#pragma unroll
				for (int j = 0; j < 4; j++) {
					to[2 * j] = o[c][j][e] * f;
					to[2 * j + 1] = o[c][j][e + 2] * f;
				}
			}
		}
	});
}

template <class S> DEV void
att_decode_mma(const llmc_step &step, const att_args &a)
{
	typedef att_mma_arena<S> arena;
	SHARED_ARENA(arena, s);
	static_assert(sizeof(arena) <= 9216 * S::KC + 16384 * S::V_SHARED * S::VCN + 36864 * (S::V > 128) * (S::D <= 128) + 32 * S::D * S::KP::TURNS + 256, "the @launch lines say so");

	AttList list = att_list<S>(step);
	if (list.at >= list.end) {
		PDL_WAIT();
		return;
	}
	/* K and V are older than this step, but for the row's own position: a warp whose first tile lies before it does not wait with it */
	AttSegment   g = att_segment<S>(step, list);
	att_pages<S> from;
	const bool   early = (g.tile + (int)warp_id() + 1) * S::TILE <= g.pos;
	if (early)
		att_begin<S>(step, a, g, s, from);
	PDL_WAIT();
	PDL_LAUNCH();
	if (!early)
		att_begin<S>(step, a, g, s, from);
	for (;;) {
		att_load_q<S>(a.q, g, s);
		if (threadIdx.x == 0)
			s.at = g;
		__syncthreads();
		att_decode_segment<S>(step, a, g, s, from);
		if (list.at >= list.end)
			return;
		g = att_segment<S>(step, list);
		__syncthreads(); /* the segment before is done with s */
		att_begin<S>(step, a, g, s, from);
	}
}

#endif
