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

LLMC_INLINE void
tile_dot(const tile_weights *w, int first, int n, const act_rows *a, int t0, const int T, tile_sum *sum,
         tile_ahead *ahead)
{
	vf d[TILE_T][TILE_H];
	const uint8_t *x = a->q + (size_t)t0 * ACT_ROW_BYTES + (size_t)first * 4;

	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			d[t][h] = sum[t].d[h];
	for (int k = 0; k < n; k++, x += 4) {
		vf v[TILE_H];
		if (k % 8 == 0)
			tile_fetch(ahead);
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			v[h] = w->w[k][h];
		LLMC_UNROLL
		for (int t = 0; t < T; t++) {
			vf xv = vf_set1(*(const float *)(const void *)(x + t * ACT_ROW_BYTES));
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				d[t][h] = vf_fma(v[h], xv, d[t][h]);
		}
	}
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			sum[t].d[h] = d[t][h];
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

/* The first step: nothing to add to. */
LLMC_INLINE vi
tile_first(vi w, vi x)
{
#if VL == 8 && defined(VF_HAVE_256)
	vi t;
#if ACT_TILE_BYTES
	__asm__ volatile("vpmaddubsw %[x], %[w], %[t]" : [t] "=x"(t) : [w] "x"(w), [x] "x"(x));
#else
	__asm__ volatile("vpmaddwd %[x], %[w], %[t]" : [t] "=x"(t) : [w] "x"(w), [x] "x"(x));
#endif
	return t;
#elif ACT_TILE_BYTES
	return dot_bytes(vi_all(0), w, x);
#else
	return dot_words(vi_all(0), w, x);
#endif
}

/* acc + the dot of one step, in this order of instructions: left alone, compilers move the broadcasts of a whole block
 * before it and spill the sums. */
LLMC_INLINE vi
tile_step(vi acc, vi w, vi x)
{
#if VL == 8 && defined(VF_HAVE_256)
	vi t;
#if ACT_TILE_BYTES
	__asm__ volatile("vpmaddubsw %[x], %[w], %[t]\n\tvpaddw %[t], %[a], %[a]"
	                 : [a] "+x"(acc), [t] "=&x"(t) : [w] "x"(w), [x] "x"(x));
#else
	__asm__ volatile("vpmaddwd %[x], %[w], %[t]\n\tvpaddd %[t], %[a], %[a]"
	                 : [a] "+x"(acc), [t] "=&x"(t) : [w] "x"(w), [x] "x"(x));
#endif
	return acc;
#elif ACT_TILE_BYTES
	return dot_bytes(acc, w, x);
#else
	return dot_words(acc, w, x);
#endif
}

LLMC_INLINE void
tile_dot(const tile_weights *w, int first, int n, const act_rows *a, int t0, const int T, tile_sum *sum,
         tile_ahead *ahead)
{
	const uint8_t *x = a->q + (size_t)t0 * ACT_ROW_BYTES + (size_t)first * ACT_BLOCK_BYTES;
	const size_t at = (size_t)t0 * W_BLOCKS + (size_t)first;

	for (int b = 0; b < n; b++, x += ACT_BLOCK_BYTES) {
#if TILE_WIDEN
		vi wide[TILE_T][TILE_H];
#endif
		tile_fetch(ahead);
		LLMC_UNROLL
		for (int part = 0; part < (TILE_WIDEN ? 2 : W_HALVES); part++) {
			enum { N = TILE_STEPS / (TILE_WIDEN ? 2 : W_HALVES) };
			vi acc[TILE_T][TILE_H];
			LLMC_UNROLL
			for (int i = part * N; i < part * N + N; i++) {
				vi v[TILE_H];
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++)
					v[h] = w->q[b][i][h];
				LLMC_UNROLL
				for (int t = 0; t < T; t++) {
					vi xv = vi_bcast4(x + t * ACT_ROW_BYTES + 4 * i);
					LLMC_UNROLL
					for (int h = 0; h < TILE_H; h++)
						acc[t][h] = i == part * N ? tile_first(v[h], xv) : tile_step(acc[t][h], v[h], xv);
				}
			}
#if TILE_WIDEN
			LLMC_UNROLL
			for (int t = 0; t < T; t++)
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++) {
					vi s = dot_bytes_sum(acc[t][h], 1);
					if (part)
						s += wide[t][h];
					wide[t][h] = s;
				}
			if (part == 0)
				continue;
#endif
			LLMC_UNROLL
			for (int t = 0; t < T; t++) {
				vf d = vf_set1(a->d[at + (size_t)(t * W_BLOCKS + b)]);
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++) {
#if TILE_WIDEN
					vi dot = wide[t][h];
#elif ACT_TILE_BYTES
					vi dot = dot_bytes_sum(acc[t][h], 1);
#else
					vi dot = acc[t][h];
#endif
#if ACT_TILE_BYTES && W_OFFSET
					dot -= vi_all(a->z[(at + (size_t)(t * W_BLOCKS + b)) * W_HALVES + (W_HALVES == 2 ? part : 0)]);
#endif
					vf scale = w->scale[b][W_HALVES == 2 ? part : 0][h];
					sum[t].d[h] = vf_fma(vf_of_vi(dot) * d, scale, sum[t].d[h]);
				}
			}
		}
	}
#if W_MIN
	vf m[TILE_T][TILE_H];
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			m[t][h] = sum[t].m[h];
	for (int b = 0; b < n; b++)
		LLMC_UNROLL
		for (int t = 0; t < T; t++)
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				m[t][h] = vf_fma(w->min[b][h], vf_set1(a->s[at + (size_t)(t * W_BLOCKS + b)]), m[t][h]);
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			sum[t].m[h] = m[t][h];
#endif
}

#endif

#define TILE_DOT(T)                                                                                                    \
	static __attribute__((noinline, unused)) void tile_dot_##T(const tile_weights *w, int first, int n,            \
	                                                           const act_rows *a, int t0, tile_sum *sum,           \
	                                                           tile_ahead *ahead)                                  \
	{                                                                                                              \
		tile_dot(w, first, n, a, t0, T, sum, ahead);                                                                \
	}
TILE_DOT(2)
TILE_DOT(3)
TILE_DOT(4)
#if VL >= 8
TILE_DOT(5)
TILE_DOT(6)
#endif
#if VL >= 16
TILE_DOT(7)
TILE_DOT(8)
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
