/* Many tokens: weights of TILE_H groups are unpacked once per TILE_CHUNK blocks into the cache and meet up to TILE_T tokens
 * at a time in registers. Sums wait in memory between chunks. Order of summation: see cpu_stream.h. */
#ifndef LLMC_CPU_TILE_H
#define LLMC_CPU_TILE_H

#include "common/cpu_stream.h"

enum {
	TILE_H = 2,
	TILE_T = VL == 16 ? 8 : VL == 8 ? 6 : 4,
	TILE_ROWS = TILE_H * VL,
};

/* A token's part of a tile's sums: D of each row, M of each row */
typedef struct tile_sum {
	_Alignas(64) vf d[TILE_H];
#if !W_FLOAT && W_MIN
	vf m[TILE_H];
#endif
} tile_sum;

/* What the next unpacking will read, fetched while this chunk computes: some lines after each block. Without it memory and
 * arithmetic take turns, which for a handful of tokens is half of the time. */
typedef struct tile_ahead {
	const uint8_t *p;            /* and the same in the TILE_H - 1 groups after it */
	int            at, end, step; /* bytes of p */
} tile_ahead;

LLMC_INLINE void
tile_fetch(tile_ahead *f)
{
	for (int stop = f->at + f->step; f->at < stop && f->at < f->end; f->at += 64)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			__builtin_prefetch(f->p + h * W_GROUP_BYTES + f->at);
}

#if W_FLOAT

enum { TILE_CHUNK = COLS < 128 ? COLS : 128 };  /* columns */
typedef struct tile_weights { _Alignas(64) vf w[TILE_CHUNK][TILE_H]; } tile_weights;

/* groups that do not exist (past the last) are zeros */
static void
tile_unpack(const uint8_t *w, int groups, int first, int n, tile_weights *o)
{
	for (int h = 0; h < TILE_H; h++)
		for (int k = 0; k < n; k++) {
			const uint8_t *g = w + h * W_GROUP_BYTES;
			o->w[k][h] = h < groups ? w_column(g, first + k) : vf_set1(0);
		}
}

#define TILE_ALL COLS
#define TILE_PIECE_BYTES W_COLUMN_BYTES
#define TILE_FETCHES(n) (((n) + 7) / 8)
#else

#define TILE_STEPS (ACT_TILE_BYTES ? 8 : 16)
/* Blocks of a chunk: 18 KiB of weights beside the activations in the nearest cache. Chunks of a row are as equal as can be. */
#define TILE_CHUNK_MOST (18 * 8 * 2 / (VL * TILE_H) * 16 / TILE_STEPS)
#define TILE_CHUNKS ((W_BLOCKS + TILE_CHUNK_MOST - 1) / TILE_CHUNK_MOST)
enum { TILE_CHUNK = (W_BLOCKS + TILE_CHUNKS - 1) / TILE_CHUNKS };
/* 16-bit sums of bytes that must be widened half way through a block */
#define TILE_WIDEN (ACT_TILE_BYTES && (DOT_BYTES_ROOM >> W_BITS) < 8)
#define TILE_ALL W_BLOCKS
#define TILE_PIECE_BYTES W_BLOCK_BYTES
#define TILE_FETCHES(n) (n)

typedef struct tile_weights {
	_Alignas(64) vi q[TILE_CHUNK][TILE_STEPS][TILE_H];
	vf scale[TILE_CHUNK][W_HALVES][TILE_H];
#if W_MIN
	vf min[TILE_CHUNK][TILE_H];
#endif
} tile_weights;

static void
tile_unpack(const uint8_t *w, int groups, int first, int n, tile_weights *o)
{
	for (int b = 0; b < n; b++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++) {
			const uint8_t *g = w + (h < groups ? h : 0) * W_GROUP_BYTES;
			w_at k = w_block(g, first + b);
			LLMC_UNROLL
			for (int i = 0; i < TILE_STEPS; i++)
				o->q[b][i][h] = ACT_TILE_BYTES ? w_bytes(k, i) : w_words(k, i);
			LLMC_UNROLL
			for (int s = 0; s < W_HALVES; s++)
				o->scale[b][s][h] = w_scale(k, s);
#if W_MIN
			o->min[b][h] = w_min(k);
#endif
		}
}

/* One step of a token: both groups' sums, in this order of instructions. Left alone, compilers move the broadcasts of a whole
 * block before it and spill the sums. */
#if VL == 8 && defined(VF_HAVE_256)
#if ACT_TILE_BYTES
#define TILE_MUL "vpmaddubsw"
#define TILE_ADD "vpaddw"
#else
#define TILE_MUL "vpmaddwd"
#define TILE_ADD "vpaddd"
#endif
#endif

LLMC_INLINE vi
tile_load(const vi *p)
{
	vi v;
#if defined(VF_NATIVE_512)
	__asm__ volatile("vmovdqa32 %[p], %[v]" : [v] "=v"(v) : [p] "m"(*p));
#elif VL == 8 && defined(VF_HAVE_256)
	__asm__ volatile("vmovdqa %[p], %[v]" : [v] "=x"(v) : [p] "m"(*p));
#else
	v = *p;
#endif
	return v;
}

LLMC_INLINE void
tile_token(vi acc[TILE_H], const vi w[TILE_H], const uint8_t *p, int first)
{
#if defined(VF_NATIVE_512)
	vi x;
	if (first)
		acc[0] = acc[1] = vi_all(0);
#if ACT_TILE_BYTES
	__asm__ volatile("vpbroadcastd %[p], %[x]\n\tvpdpbusd %[x], %[w0], %[a0]\n\tvpdpbusd %[x], %[w1], %[a1]"
#else
	__asm__ volatile("vpbroadcastd %[p], %[x]\n\tvpdpwssd %[x], %[w0], %[a0]\n\tvpdpwssd %[x], %[w1], %[a1]"
#endif
	                 : [a0] "+v"(acc[0]), [a1] "+v"(acc[1]), [x] "=&v"(x)
	                 : [w0] "v"(w[0]), [w1] "v"(w[1]), [p] "m"(*(const int32_t *)(const void *)p));
#elif VL == 8 && defined(VF_HAVE_256)
	vi x, t;
	if (first) {
		__asm__ volatile("vpbroadcastd %[p], %[a1]\n\t" TILE_MUL " %[a1], %[w0], %[a0]\n\t" TILE_MUL " %[a1], %[w1], %[a1]"
		                 : [a0] "=&x"(acc[0]), [a1] "=&x"(acc[1])
		                 : [w0] "x"(w[0]), [w1] "x"(w[1]), [p] "m"(*(const int32_t *)(const void *)p));
		return;
	}
	__asm__ volatile("vpbroadcastd %[p], %[x]\n\t" TILE_MUL " %[x], %[w0], %[t]\n\t" TILE_ADD " %[t], %[a0], %[a0]\n\t" TILE_MUL
	                 " %[x], %[w1], %[x]\n\t" TILE_ADD " %[x], %[a1], %[a1]"
	                 : [a0] "+x"(acc[0]), [a1] "+x"(acc[1]), [x] "=&x"(x), [t] "=&x"(t)
	                 : [w0] "x"(w[0]), [w1] "x"(w[1]), [p] "m"(*(const int32_t *)(const void *)p));
#else
	vi x = vi_bcast4(p);
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++) {
		if (first)
			acc[h] = vi_all(0);
#if ACT_TILE_BYTES
		acc[h] = dot_bytes(acc[h], w[h], x);
#else
		acc[h] = dot_words(acc[h], w[h], x);
#endif
	}
#endif
}

#endif

/* A function for each number of tokens: the number must be a constant where compilers first see the loops. */
#define T 2
#define TILE_DOT tile_dot_2
#include "common/cpu_tile_dot.h"
#define T 3
#define TILE_DOT tile_dot_3
#include "common/cpu_tile_dot.h"
#define T 4
#define TILE_DOT tile_dot_4
#include "common/cpu_tile_dot.h"
#if VL >= 8
#define T 5
#define TILE_DOT tile_dot_5
#include "common/cpu_tile_dot.h"
#define T 6
#define TILE_DOT tile_dot_6
#include "common/cpu_tile_dot.h"
#endif
#if VL >= 16
#define T 7
#define TILE_DOT tile_dot_7
#include "common/cpu_tile_dot.h"
#define T 8
#define TILE_DOT tile_dot_8
#include "common/cpu_tile_dot.h"
#endif

/* out[t][row] for all rows of at most TILE_H groups and tokens >= 2; sum: `tokens` of them, to work in */
static void
tile_rows(const uint8_t *w, int groups, const act_rows *a, int tokens, tile_sum *sum, float *out, int ld)
{
	tile_weights chunk;
	int tiles = (tokens + TILE_T - 1) / TILE_T;

	memset(sum, 0, (size_t)tokens * sizeof *sum);
	for (int first = 0; first < TILE_ALL; first += TILE_CHUNK) {
		int n = TILE_ALL - first < TILE_CHUNK ? TILE_ALL - first : TILE_CHUNK;
		int next = first + TILE_CHUNK < TILE_ALL ? first + TILE_CHUNK : 0;
		tile_ahead ahead = {
			.p = w + (next ? 0 : groups * W_GROUP_BYTES) + (int64_t)next * TILE_PIECE_BYTES,
			.end = (TILE_ALL - next < TILE_CHUNK ? TILE_ALL - next : TILE_CHUNK) * TILE_PIECE_BYTES,
		};
		ahead.step = (ahead.end / (tiles * TILE_FETCHES(n)) + 63) / 64 * 64;
		tile_unpack(w, groups, first, n, &chunk);
		for (int i = 0, t = 0, size; i < tiles; i++, t += size) {
			size = tokens / tiles + (i < tokens % tiles);
			switch (size) {
			case 2: tile_dot_2(&chunk, first, n, a, t, sum + t, &ahead); break;
			case 3: tile_dot_3(&chunk, first, n, a, t, sum + t, &ahead); break;
			case 4: tile_dot_4(&chunk, first, n, a, t, sum + t, &ahead); break;
#if VL >= 8
			case 5: tile_dot_5(&chunk, first, n, a, t, sum + t, &ahead); break;
			case 6: tile_dot_6(&chunk, first, n, a, t, sum + t, &ahead); break;
#endif
#if VL >= 16
			case 7: tile_dot_7(&chunk, first, n, a, t, sum + t, &ahead); break;
			case 8: tile_dot_8(&chunk, first, n, a, t, sum + t, &ahead); break;
#endif
			default: break;
			}
		}
	}
	for (int t = 0; t < tokens; t++)
		for (int h = 0; h < groups; h++) {
#if !W_FLOAT && W_MIN
			vf_store(out + (int64_t)t * ld + h * VL, sum[t].d[h] + sum[t].m[h]);
#else
			vf_store(out + (int64_t)t * ld + h * VL, sum[t].d[h]);
#endif
		}
}

#endif
