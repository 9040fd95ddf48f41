/* Decode attention by tensor cores, straight from memory to registers: no shared memory between K or V and mma, no shuffle in the
 * products. The 16-byte pieces in which lanes load K and V are mma fragments already, once the dimensions of q (and the rows
 * of the sum) are numbered to suit:
 *
 *   S = Q K^T   m16n8k16: rows are heads, columns positions. Lane (g, t) = (lane / 4, lane % 4) holds dimensions 32c + 8t .. + 7 of
 *               position g as words; they count as columns 2t, 2t+1, 2t+8, 2t+9 of two products. Rows 0-7 are 8 heads of q rounded,
 *               rows 8-15 what rounding left, so that q counts in full.
 *   O = V^T P^T m16n8k16: rows are dimensions of V, columns heads. Lane (g, t) holds dimensions 64c + 8g .. + 7 of positions 2t, 2t+1,
 *               2t+8, 2t+9; a byte permutation pairs positions. P comes as S leaves it, rounded and rest, in two products.
 *
 * A warp takes 16 positions at a time: 8 KB of K and V in flight for 128 dimensions of 16 bits. Places beyond the range or the
 * dimensions read a valid neighbour and count 0. */
#ifndef LLMC_CUDA_ATTENTION_MMA_H
#define LLMC_CUDA_ATTENTION_MMA_H

#define ATT_TILE 16
#define ATT_HB 8
#define ATT_MIN_TILES 4
#include "common/cuda_attention_split.h"

enum { ATT_KC = (ATT_D + 31) / 32, ATT_VCN = (ATT_V + 63) / 64 };

#ifdef LLMC_KV_bf16
#define ATT_Q_FACTOR 1.0f
DEV unsigned att_pack(float lo, float hi) { return pack_bf16(lo, hi); }
DEV float att_lo(unsigned pair) { return bf16_lo(pair); }
DEV float att_hi(unsigned pair) { return bf16_hi(pair); }
DEV void att_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_bf16_m16n8k16(d, a, b, d); }
#else
#define ATT_Q_FACTOR 0.0625f /* room for large queries */
DEV unsigned att_pack(float lo, float hi) { return pack_f16(lo, hi); }
DEV float att_lo(unsigned pair) { return f16_lo(pair); }
DEV float att_hi(unsigned pair) { return f16_hi(pair); }
DEV void att_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_f16_m16n8k16(d, a, b, d); }
#endif

typedef struct AttMma {
	uint4 q[ATT_KC][2][32]; /* fragments by lane */
	AttShared s;
} AttMma;

/* two numbers as a rounded pair and the pair of what is left */
DEV void
att_split(float a, float b, unsigned *whole, unsigned *rest)
{
	*whole = att_pack(a, b);
	*rest = att_pack(a - att_lo(*whole), b - att_hi(*whole));
}

DEV void
att_load_q(const llmc_call &p, const AttSegment &g, AttMma &s)
{
	for (int i = threadIdx.x; i < ATT_KC * 64; i += blockDim.x) {
		const int lane = i % 32, part = i / 32 % 2, c = i / 64, head = lane / 4, d = 32 * c + 8 * (lane % 4) + 4 * part;
		uint4 f = {};
		if (head < g.n_head && d < ATT_D) {
			uint4 x = ld_v4((const float *)p.a[0] + ((long long)g.row * ATT_HEADS + g.head + head) * ATT_D + d);
			att_split(__uint_as_float(x.x) * ATT_Q_FACTOR, __uint_as_float(x.y) * ATT_Q_FACTOR, &f.x, &f.y);
			att_split(__uint_as_float(x.z) * ATT_Q_FACTOR, __uint_as_float(x.w) * ATT_Q_FACTOR, &f.z, &f.w);
		}
		st_v4(&s.q[c][part][lane], f);
	}
}

/* K of 16 positions; base: K of the head in the page */
DEV void
att_load_k(const kv_elem *base, int tile, const AttRange &r, uint4 (&k)[2][ATT_KC])
{
	const int lane = lane_id(), in_page = tile * ATT_TILE % KV_PAGE, lo = max(r.lo - tile * ATT_TILE, 0),
	          hi = min(r.hi - tile * ATT_TILE, ATT_TILE) - 1;

#pragma unroll
	for (int n = 0; n < 2; n++) {
		const kv_elem *row = base + (in_page + min(max(8 * n + lane / 4, lo), hi)) * ATT_D;
#pragma unroll
		for (int c = 0; c < ATT_KC; c++) {
			int d = 32 * c + 8 * (lane % 4);
			k[n][c] = ld_v4_stream(row + (32 * c + 32 <= ATT_D || d < ATT_D ? d : 0));
		}
	}
}

/* 64 dimensions of V of 16 positions */
DEV void
att_load_v(const kv_elem *base, int tile, const AttRange &r, int c, uint4 (&v)[4])
{
	const int lane = lane_id(), in_page = tile * ATT_TILE % KV_PAGE, lo = max(r.lo - tile * ATT_TILE, 0),
	          hi = min(r.hi - tile * ATT_TILE, ATT_TILE) - 1, d = 64 * c + 8 * (lane / 4);

#pragma unroll
	for (int i = 0; i < 4; i++) {
		int at = lane % 4 * 2 + i % 2 + i / 2 * 8;
		v[i] = ld_v4_stream(base + (in_page + min(max(at, lo), hi)) * ATT_V + (64 * c + 64 <= ATT_V || d < ATT_V ? d : 0));
	}
}

DEV unsigned
att_word(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* o += V^T P^T for 64 dimensions */
DEV void
att_weigh(const uint4 (&v)[4], const unsigned (&whole)[2], const unsigned (&rest)[2], float (&o)[4][4])
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		unsigned a = att_word(v[0], j), b = att_word(v[1], j), c = att_word(v[2], j), d = att_word(v[3], j);
		const unsigned frag[4] = { __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632) };
		att_mma(o[j], frag, whole);
		att_mma(o[j], frag, rest);
	}
}

DEV void
att_decode_segment(const llmc_call &p, const AttSegment &g, AttMma &s)
{
	const int lane = lane_id(), warp = warp_id(), head = lane / 4, quad = lane % 4;
	const float slope = att_slope(g.head + min(head, g.n_head - 1));
	float o[ATT_VCN][4][4] = {}, m = ATT_NONE, l = 0;
	uint4 k[2][ATT_KC];
	int pages = 0;
	kv_elem *page = 0;

	/* this warp's tiles are tile, tile + 8, ...; lane i holds the page of the i-th of 32 */
	for (int tile = g.tile + warp, n = 0; tile < g.end; tile += ATT_WARPS, n++) {
		const bool more = tile + ATT_WARPS < g.end;
		if (n % 32 == 0) {
			int at = tile + lane * ATT_WARPS;
			if (at < g.end)
				pages = p.s.block_table[(long long)g.seq * p.s.block_stride + at * ATT_TILE / KV_PAGE];
		}
		if (n == 0) {
			page = (kv_elem *)((char *)p.a[1] + __shfl_sync(~0u, pages, 0) * (long long)(ATT_PAGE_BYTES));
			att_load_k(kv_k(page, g.kv_head, ATT_D), tile, g.range, k);
		}
		const kv_elem *v_base = kv_v(page, g.kv_head, ATT_KV_HEADS, ATT_D, ATT_V);
		uint4 v[ATT_VCN][4];
		if (ATT_V <= 128) {
#pragma unroll
			for (int c = 0; c < ATT_VCN; c++)
				att_load_v(v_base, tile, g.range, c, v[c]);
		}
		float x[2][4] = {};
#pragma unroll
		for (int c = 0; c < ATT_KC; c++) {
			uint4 a = ld_v4(&s.q[c][0][lane]), b = ld_v4(&s.q[c][1][lane]);
			const unsigned qa[4] = { a.x, a.y, a.z, a.w }, qb[4] = { b.x, b.y, b.z, b.w };
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const unsigned ka[2] = { k[i][c].x, k[i][c].y }, kb[2] = { k[i][c].z, k[i][c].w };
				att_mma(x[i], qa, ka);
				att_mma(x[i], qb, kb);
			}
		}
		if (ATT_V > 128) {
#pragma unroll
			for (int c = 0; c < ATT_VCN; c++)
				att_load_v(v_base, tile, g.range, c, v[c]);
		}
		if (more) { /* all lanes take the same way */
			if (n % 32 == 31) {
				int at = tile + ATT_WARPS;
				page = kv_page(p.s, p.a[1], ATT_PAGE_BYTES, g.seq, at * ATT_TILE);
			} else {
				page = (kv_elem *)((char *)p.a[1] + __shfl_sync(~0u, pages, (n + 1) % 32) * (long long)(ATT_PAGE_BYTES));
			}
			att_load_k(kv_k(page, g.kv_head, ATT_D), tile + ATT_WARPS, g.range, k);
		}
		/* weights of the positions 2t, 2t+1, 8+2t, 9+2t of head g */
		float w[4], top = m;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = tile * ATT_TILE + quad * 2 + i % 2 + i / 2 * 8;
			float product = (x[i / 2][i % 2] + x[i / 2][i % 2 + 2]) * (1 / ATT_Q_FACTOR);
			w[i] = at >= g.range.lo && at < g.range.hi ? att_score(product, slope, at - g.pos) : ATT_NONE;
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
		att_split(w[0], w[1], &whole[0], &rest[0]);
		att_split(w[2], w[3], &whole[1], &rest[1]);
		/* o's columns are heads 2t and 2t+1 */
		float keep0 = __shfl_sync(~0u, keep, quad * 8), keep1 = __shfl_sync(~0u, keep, quad * 8 + 4);
#pragma unroll
		for (int c = 0; c < ATT_VCN; c++) {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				o[c][j][0] *= keep0;
				o[c][j][1] *= keep1;
				o[c][j][2] *= keep0;
				o[c][j][3] *= keep1;
			}
			att_weigh(v[c], whole, rest, o[c]);
		}
	}
	l += __shfl_xor_sync(~0u, l, 1);
	l += __shfl_xor_sync(~0u, l, 2);
	if (quad == 0) {
		s.s.m[warp][head] = m;
		s.s.l[warp][head] = l;
	}
	att_finish(p, g, s.s, [&](int v0) {
#pragma unroll
		for (int c = 0; c < ATT_VCN; c++) {
			int v = 64 * c + 8 * head - v0;
			if (v < 0 || v >= ATT_VC)
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

DEV void
att_decode_mma(const llmc_call &p)
{
	SHARED(AttMma, s);

	PDL_LAUNCH();
	PDL_WAIT();
	AttList list = att_list(p);
	while (list.at < list.end) {
		AttSegment g = att_segment(p, list);
		__syncthreads();
		att_load_q(p, g, s);
		__syncthreads();
		att_decode_segment(p, g, s);
	}
}

#endif
