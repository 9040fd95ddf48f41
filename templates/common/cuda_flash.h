/* Attention of mixed steps on tensor cores: rows of many sequences, any number of rows each, over paged K and V of 16 bits.
 *
 * Definition of a row's result; nothing else may decide on it:
 *
 *     score    s_j = flash_score(q . k_j), q rounded to the type of the pool, products added 16 at a time in the order of d
 *     chunk    positions [32 c, 32 c + 32), a page: m' = max(m, max s_j), o = o 2^(m - m') + sum 2^(s_j - m') v_j, weights rounded to the
 *              pool's type; l likewise, unrounded
 *     segment  16 chunks, from m = none, l = 0, o = 0
 *     row      segments in order: m' = max(m, m_i), o = o 2^(m - m') + o_i 2^(m_i - m'), l likewise; y = o (1 / l)
 *
 * Chunks and segments in which a row sees nothing change nothing, to the bit, so rows with different ranges share a tile.
 *
 * Work is handed out by cuda_flash_work.h. A warp holds FLASH_MT times 16 pairs. Long tiles go through their segments in order and keep what
 * came before in y.
 *
 * Resources (ptxas 13.0, no spills): heads of 128 take 237-255 registers, so two blocks (8 warps) share a multiprocessor; a chunk is 128 mma, 48
 * loads from shared memory and about 250 other instructions a warp, and 24 KB of shared memory for 32 x 32 scores. Not measured on a
 * GPU yet.
 *
 * Before inclusion: what cuda_attention.h asks for, FLASH_ARCH. */
#ifndef LLMC_CUDA_FLASH_H
#define LLMC_CUDA_FLASH_H

#include "common/cuda_attention.h"

#ifdef LLMC_KV_bf16
#define flash_mma mma_bf16_m16n8k16
#else
#define flash_mma mma_f16_m16n8k16
#endif

enum {
	FLASH_THREADS = 128,
	FLASH_WARPS = FLASH_THREADS / 32,
	FLASH_C = KV_PAGE,                                  /* positions of a chunk */
	FLASH_SEGMENT = 512,                                /* of a segment */
	/* chunks on their way, as far as two blocks fit on a multiprocessor; the template's launch knows it, too */
	FLASH_STAGES = ATT_D <= 64 && ATT_V <= 64 || (FLASH_ARCH == 90 || FLASH_ARCH == 100) && ATT_D <= 128 && ATT_V <= 128 ? 3 : 2,
	FLASH_MT = ATT_D <= 128 && ATT_V <= 128 ? 2 : 1,
	FLASH_ROWS = FLASH_WARPS * FLASH_MT * 16,
	FLASH_KK = ATT_D / 16, FLASH_VN = ATT_V / 8,
	FLASH_K_ROW = (ATT_D / 8 / 2 * 2 + 1) * 16,         /* bytes; an odd number of chunks of 16: ldmatrix meets no bank twice */
	FLASH_V_TURNED = ATT_V == 256,                      /* no room for that: chunks stand in another order instead */
	FLASH_V_ROW = FLASH_V_TURNED ? ATT_V * 2 : (ATT_V / 8 / 2 * 2 + 1) * 16,
	FLASH_STAGE = FLASH_C * (FLASH_K_ROW + FLASH_V_ROW),
	FLASH_Q_SHARED = ATT_D > 64 || ATT_V > 64,          /* 1: no registers are left for the queries */
	FLASH_UNROLL = FLASH_Q_SHARED ? (ATT_D % 64 ? 2 : 4) : FLASH_KK, /* else they all come early, and registers overflow */
	FLASH_Q_BYTES = FLASH_Q_SHARED * FLASH_ROWS * ATT_D * 2,
};
static_assert(ATT_D % 16 == 0 && ATT_V % 16 == 0 && FLASH_SEGMENT % FLASH_C == 0, "shapes");

#include "common/cuda_flash_work.h"

/* Where chunk c of row r of V stands. */
DEV int flash_place(int r, int c) { return r * FLASH_V_ROW + (FLASH_V_TURNED ? c ^ (r & 7) : c) * 16; }

/* A chunk of K and V on its way to shared memory; what the tile does not see is zeros. */
DEV void
flash_load(unsigned char *stage, const kv_elem *page, const FlashWork &w, int c0)
{
	const kv_elem *k = kv_k((kv_elem *)page, w.kv_head, ATT_D), *v = kv_v((kv_elem *)page, w.kv_head, ATT_KV_HEADS, ATT_D, ATT_V);
	const int      lo = w.lo - c0, hi = w.hi - c0;

#pragma unroll
	for (int i = 0; i < (FLASH_C * ATT_D / 8 + FLASH_THREADS - 1) / FLASH_THREADS; i++) {
		const int at = (int)threadIdx.x + i * FLASH_THREADS, j = at / (ATT_D / 8), c = at % (ATT_D / 8);
		if (FLASH_C * ATT_D / 8 % FLASH_THREADS == 0 || at < FLASH_C * ATT_D / 8)
			cp_async_16_fill(stage + j * FLASH_K_ROW + c * 16, k + at * 8, j >= lo && j < hi ? 16 : 0);
	}
	stage += FLASH_C * FLASH_K_ROW;
#pragma unroll
	for (int i = 0; i < (FLASH_C * ATT_V / 8 + FLASH_THREADS - 1) / FLASH_THREADS; i++) {
		const int at = (int)threadIdx.x + i * FLASH_THREADS, j = at / (ATT_V / 8), c = at % (ATT_V / 8);
		if (FLASH_C * ATT_V / 8 % FLASH_THREADS == 0 || at < FLASH_C * ATT_V / 8)
			cp_async_16_fill(stage + flash_place(j, c), v + at * 8, j >= lo && j < hi ? 16 : 0);
	}
}

/* A pair of the tile: what it sees, and what the segments before came to. Only threads of one warp read what that warp wrote, so these are
 * the few values that registers are too dear for. */
typedef struct FlashPair {
	int   lo, hi, pos;
	float slope, m, l;
} FlashPair;

/* What all pairs of a warp see, and what some see. */
typedef struct FlashWarp {
	int all_lo, all_hi, some_lo, some_hi;
} FlashWarp;

typedef struct FlashBlock {
	FlashWork w;
	FlashWarp warp[FLASH_WARPS];
	FlashPair pair[FLASH_ROWS];
	int       found, item, last;
} FlashBlock;
/* as much as the template's launch has */
static_assert(sizeof(FlashBlock) <= 1664 * FLASH_MT, "shared memory");

/* A thread's share of its warp's pairs: rows g and g + 8 of each of FLASH_MT times 16, in the fragments of mma. */
typedef struct FlashRows {
	unsigned q[FLASH_MT][FLASH_Q_SHARED ? 1 : FLASH_KK][4];
	float    o[FLASH_MT][FLASH_VN][4];
	float    m[FLASH_MT][2], l[FLASH_MT][2];         /* of the segment; l: this thread's columns only */
} FlashRows;

/* Queries in shared memory: the 16 bytes of each lane, in the order of fragments. */
DEV unsigned char *
flash_query(unsigned char *queries, int i, int kk)
{
	return queries + ((((int)warp_id() * FLASH_MT + i) * FLASH_KK + kk) * 32 + (int)lane_id()) * 16;
}

DEV int flash_pair(int i, int half) { return ((int)warp_id() * FLASH_MT + i) * 16 + half * 8 + (int)(lane_id() >> 2); }

DEV void
flash_reset(FlashRows &r)
{
#pragma unroll
	for (int i = 0; i < FLASH_MT; i++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			r.m[i][h] = ATT_NONE;
			r.l[i][h] = 0;
		}
#pragma unroll
		for (int n = 0; n < FLASH_VN; n++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				r.o[i][n][c] = 0;
	}
}

DEV void
flash_begin(unsigned char *queries, const llmc_step &s, const float *q, FlashBlock &b, FlashRows &r)
{
	const FlashWork &w = b.w;
	const int warp_first = (int)warp_id() * FLASH_MT * 16;

	for (int at = (int)lane_id(); at < FLASH_MT * 16; at += 32) {
		const int pair = w.first + warp_first + at;
		FlashPair x = { 0, 0, 0, att_slope(w.kv_head * ATT_G + pair % ATT_G), ATT_NONE, 0 };
		if (warp_first + at < w.pairs) {
			x.pos = s.pos[w.row0 + pair / ATT_G];
			const AttRange range = att_range(s, w.seq, x.pos);
			x.lo = range.lo;
			x.hi = range.hi;
		}
		b.pair[warp_first + at] = x;
	}
#pragma unroll
	for (int i = 0; i < FLASH_MT; i++) {
		const float *from[2];
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int pair = w.first + min(flash_pair(i, h), w.pairs - 1);
			from[h] = q + ((long long)(w.row0 + pair / ATT_G) * ATT_HEADS + w.kv_head * ATT_G + pair % ATT_G) * ATT_D + (lane_id() & 3) * 2;
		}
#pragma unroll
		for (int k = 0; k < FLASH_KK; k++) {
			unsigned a[4];
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint2 v = ld_v2(from[c % 2] + k * 16 + c / 2 * 8);
				a[c] = flash_pack(__uint_as_float(v.x), __uint_as_float(v.y));
			}
			if (FLASH_Q_SHARED)
				st_v4(flash_query(queries, i, k), make_uint4(a[0], a[1], a[2], a[3]));
			else
#pragma unroll
				for (int c = 0; c < 4; c++)
					r.q[i][FLASH_Q_SHARED ? 0 : k][c] = a[c];
		}
	}
	FlashWarp x = { 0, 0, 0, 0 };
	if (warp_first < w.pairs) {
		const int      last = min(warp_first + FLASH_MT * 16, w.pairs) - 1;
		const AttRange from = att_range(s, w.seq, s.pos[w.row0 + (w.first + warp_first) / ATT_G]);
		const AttRange to = att_range(s, w.seq, s.pos[w.row0 + (w.first + last) / ATT_G]);
		x = { to.lo, from.hi, from.lo, to.hi };
	}
	if (lane_id() == 0)
		b.warp[warp_id()] = x;
	__syncwarp();
	flash_reset(r); /* not before: zeros take registers, too */
}

/* The chunk at c0 for this warp's pairs. */
DEV void
flash_chunk(unsigned char *queries, const unsigned char *stage, int c0, const FlashBlock &b, FlashRows &r)
{
	const int lane = (int)lane_id();
	constexpr bool  PLAIN = !(ATT_CAP > 0) && !(ATT_ALIBI > 0); /* the score is a multiple of the product */
	constexpr float UNIT = PLAIN ? ATT_SCALE * ATT_LOG2E : 1.0f;
	float           t[FLASH_MT][FLASH_C / 8][4] = {};
	const unsigned char *k = stage + ((lane & 7) + (lane >> 4 << 3)) * FLASH_K_ROW + (lane >> 3 & 1) * 16;

#pragma unroll(FLASH_UNROLL)
	for (int kk = 0; kk < FLASH_KK; kk++) {
		unsigned a[FLASH_MT][4];
#pragma unroll
		for (int i = 0; i < FLASH_MT; i++) {
			uint4 v = make_uint4(0, 0, 0, 0);
			if (FLASH_Q_SHARED)
				v = ld_v4(flash_query(queries, i, kk));
			const unsigned *from = r.q[i][FLASH_Q_SHARED ? 0 : kk];
			a[i][0] = FLASH_Q_SHARED ? v.x : from[0];
			a[i][1] = FLASH_Q_SHARED ? v.y : from[1];
			a[i][2] = FLASH_Q_SHARED ? v.z : from[2];
			a[i][3] = FLASH_Q_SHARED ? v.w : from[3];
		}
#pragma unroll
		for (int n = 0; n < FLASH_C / 8; n += 2) {
			unsigned kv[4];
			ldmatrix_x4(kv, k + n * 8 * FLASH_K_ROW + kk * 32);
			const unsigned b0[2] = { kv[0], kv[1] }, b1[2] = { kv[2], kv[3] };
#pragma unroll
			for (int i = 0; i < FLASH_MT; i++) {
				flash_mma(t[i][n], a[i], b0, t[i][n]);
				flash_mma(t[i][n + 1], a[i], b1, t[i][n + 1]);
			}
		}
	}
	if (!PLAIN) {
#pragma unroll
		for (int i = 0; i < FLASH_MT; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const FlashPair &x = b.pair[flash_pair(i, h)];
#pragma unroll
				for (int n = 0; n < FLASH_C / 8; n++)
#pragma unroll
					for (int c = 0; c < 2; c++)
						t[i][n][2 * h + c] = flash_score(t[i][n][2 * h + c], x.slope, c0 + n * 8 + (lane & 3) * 2 + c - x.pos);
			}
	}
	if (c0 < b.warp[warp_id()].all_lo || c0 + FLASH_C > b.warp[warp_id()].all_hi) {
#pragma unroll
		for (int i = 0; i < FLASH_MT; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int lo = b.pair[flash_pair(i, h)].lo, hi = b.pair[flash_pair(i, h)].hi;
#pragma unroll
				for (int n = 0; n < FLASH_C / 8; n++)
#pragma unroll
					for (int c = 0; c < 2; c++) {
						const int j = c0 + n * 8 + (lane & 3) * 2 + c;
						if (j < lo || j >= hi)
							t[i][n][2 * h + c] = __uint_as_float(0xff800000u); /* minus infinity: its weight is 0 */
					}
			}
	}
	unsigned p[FLASH_MT][FLASH_C / 16][4];
	float    keep[FLASH_MT][2];
	bool     same = true;
#pragma unroll
	for (int i = 0; i < FLASH_MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float top = t[i][0][2 * h], sum = 0;
#pragma unroll
			for (int n = 0; n < FLASH_C / 8; n++)
				top = fmaxf(top, fmaxf(t[i][n][2 * h], t[i][n][2 * h + 1]));
			top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
			top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
			const float m = fmaxf(r.m[i][h], __fmul_rn(top, UNIT));
			same = same && m == r.m[i][h];
			keep[i][h] = flash_exp2(r.m[i][h] - m);
			r.m[i][h] = m;
#pragma unroll
			for (int n = 0; n < FLASH_C / 8; n++) {
				const float a = flash_exp2(fmaf(t[i][n][2 * h], UNIT, -m)), b = flash_exp2(fmaf(t[i][n][2 * h + 1], UNIT, -m));
				sum += a + b;
				p[i][n / 2][n % 2 * 2 + h] = flash_pack_weights(a, b);
			}
			r.l[i][h] = fmaf(r.l[i][h], keep[i][h], sum);
		}
	if (!__all_sync(~0u, same)) { /* else all factors are 1 */
#pragma unroll
		for (int i = 0; i < FLASH_MT; i++)
#pragma unroll
			for (int n = 0; n < FLASH_VN; n++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					r.o[i][n][c] *= keep[i][c / 2];
	}
	const unsigned char *v = stage + FLASH_C * FLASH_K_ROW;
#pragma unroll
	for (int kk = 0; kk < FLASH_C / 16; kk++)
#pragma unroll
		for (int n = 0; n < FLASH_VN; n += 2) {
			unsigned kv[4];
			ldmatrix_x4_trans(kv, v + flash_place(lane & 15, n + (lane >> 4)) + kk * 16 * FLASH_V_ROW);
			const unsigned b0[2] = { kv[0], kv[1] }, b1[2] = { kv[2], kv[3] };
#pragma unroll
			for (int i = 0; i < FLASH_MT; i++) {
				flash_mma(r.o[i][n], p[i][kk], b0, r.o[i][n]);
				flash_mma(r.o[i][n + 1], p[i][kk], b1, r.o[i][n + 1]);
			}
		}
}

/* A segment ends: into y, or to memory for the block that will put the parts together. */
DEV void
flash_segment(const FlashWork &w, FlashPair *pairs, FlashRows &r, float *y, float *parts, bool first, bool last)
{
	const int lane = (int)lane_id();

#pragma unroll
	for (int i = 0; i < FLASH_MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float l = r.l[i][h], a, b;
			l += __shfl_xor_sync(~0u, l, 1);
			l += __shfl_xor_sync(~0u, l, 2);
			const int pair = flash_pair(i, h);
			if (pair >= w.pairs)
				continue;
			if (w.parts) {
				float *part = parts + (long long)(w.slot + w.part) * FLASH_PART;
				float *o = part + pair * ATT_V + (lane & 3) * 2;
#pragma unroll
				for (int n = 0; n < FLASH_VN; n++)
					st_v2(o + n * 8, make_uint2(__float_as_uint(r.o[i][n][2 * h]), __float_as_uint(r.o[i][n][2 * h + 1])));
				if ((lane & 3) == 0)
					st_v2(part + FLASH_PART_ROWS * ATT_V + pair * 2, make_uint2(__float_as_uint(r.m[i][h]), __float_as_uint(l)));
				continue;
			}
			const int at = w.first + pair;
			float    *o = y + ((long long)(w.row0 + at / ATT_G) * ATT_HEADS + w.kv_head * ATT_G + at % ATT_G) * ATT_V + (lane & 3) * 2;
			float m = pairs[pair].m, sum = pairs[pair].l;
			flash_merge(m, sum, r.m[i][h], l, a, b);
			const float scale = last ? 1.0f / sum : 1.0f;
			__syncwarp(0xfu << (lane & 28)); /* the four threads of a pair have read it */
			if ((lane & 3) == 0) {
				pairs[pair].m = m;
				pairs[pair].l = sum;
			}
#pragma unroll
			for (int n = 0; n < FLASH_VN; n++) {
				uint2 old = make_uint2(0, 0);
				if (!first)
					old = ld_v2(o + n * 8);
				const float x = __fmul_rn(fmaf(__uint_as_float(old.x), a, __fmul_rn(r.o[i][n][2 * h], b)), scale);
				const float z = __fmul_rn(fmaf(__uint_as_float(old.y), a, __fmul_rn(r.o[i][n][2 * h + 1], b)), scale);
				st_v2(o + n * 8, make_uint2(__float_as_uint(x), __float_as_uint(z)));
			}
		}
}

DEV int
flash_page(const llmc_step &s, const FlashWork &w, int chunk)
{
	return chunk * FLASH_C < w.hi ? s.block_table[(long long)w.seq * s.block_stride + chunk] : 0;
}

/* One piece of work. done: how many parts of each tile are there, zeros before and after */
DEV void
flash_tile(unsigned char *smem, FlashBlock &b, const llmc_step &s, const float *q, const void *pool, float *y, float *parts, int *done)
{
	const FlashWork &w = b.w;
	FlashRows        r;
	unsigned char   *queries = smem + FLASH_STAGES * FLASH_STAGE;
	int              page = flash_page(s, w, w.lo / FLASH_C); /* of the next chunk to load */

#pragma unroll
	for (int i = 0; i < FLASH_STAGES - 1; i++) {
		const int c = w.lo / FLASH_C + i;
		if (c * FLASH_C < w.hi)
			flash_load(smem + i * FLASH_STAGE, (const kv_elem *)((const char *)pool + (long long)page * ATT_PAGE_BYTES), w, c * FLASH_C);
		cp_async_commit();
		page = flash_page(s, w, c + 1);
	}
	flash_begin(queries, s, q, b, r);
	int at = 0;
	/* what the loop needs seldom is read where it is needed: registers are for sums */
#pragma unroll 1
	for (int c = w.lo / FLASH_C; c * FLASH_C < w.hi; c++) {
		cp_async_wait<FLASH_STAGES - 2>();
		__syncthreads();
		const int next = c + FLASH_STAGES - 1;
		if (next * FLASH_C < w.hi)
			flash_load(smem + (at == 0 ? FLASH_STAGES - 1 : at - 1) * FLASH_STAGE,
			           (const kv_elem *)((const char *)pool + (long long)page * ATT_PAGE_BYTES), w, next * FLASH_C);
		cp_async_commit();
		page = flash_page(s, w, next + 1);
		if (c * FLASH_C < b.warp[warp_id()].some_hi && (c + 1) * FLASH_C > b.warp[warp_id()].some_lo)
			flash_chunk(queries, smem + at * FLASH_STAGE, c * FLASH_C, b, r);
		const bool last = (c + 1) * FLASH_C >= w.hi;
		if (last || (c + 1) % (FLASH_SEGMENT / FLASH_C) == 0) {
			flash_segment(w, b.pair, r, y, parts, c * FLASH_C / FLASH_SEGMENT == w.lo / FLASH_SEGMENT, last);
			flash_reset(r);
		}
		at = at + 1 == FLASH_STAGES ? 0 : at + 1;
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
			flash_gather(w, y, parts, (int)threadIdx.x, FLASH_THREADS);
	}
}

/* count: [0] pieces of work handed out beyond one a block, [1] blocks that have ended, then of parts; zeros before and after */
DEV void
flash_run(const llmc_step &s, const float *q, const void *pool, float *y, float *parts, int *count)
{
	SHARED_BYTES(smem);
	FlashBlock &b = *(FlashBlock *)(smem + FLASH_STAGES * FLASH_STAGE + FLASH_Q_BYTES);

	for (int item = (int)blockIdx.x;; item = b.item) {
		__syncthreads();
		if (warp_id() == 0) {
			const bool found = flash_find(s, item, b.w);
			if (lane_id() == 0) {
				b.found = found;
				b.item = (int)gridDim.x + atomicAdd(count, 1);
			}
		}
		__syncthreads();
		if (!b.found)
			break;
		flash_tile(smem, b, s, q, pool, y, parts, count + 2);
	}
	if (threadIdx.x == 0 && atomicAdd(count + 1, 1) == (int)gridDim.x - 1) {
		atomicExch(count, 0);
		atomicExch(count + 1, 0);
	}
}

#endif
