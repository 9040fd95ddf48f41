#include "quant/gram.h"

#include <stdlib.h>
#include <string.h>

#include "quant/rank_update.h"
#include "runtime/device.h"
#include "runtime/threads/threads.h"

enum {
	TILE_M = 64,
	TILE_N = 256,
	DEPTH = 64 /* rows of a tile's inputs per pass, small enough for L1 */
};

/* ---- fp32 ---- */

/* Copy the first width columns of each row of x to rows of out, step elements apart. */
static void
copy_columns(const float *x, int64_t n, int64_t width, int64_t rows, float *out, int64_t step)
{
	for (int64_t t = 0; t < rows; t++)
		memcpy(out + t * step, x + t * n, (size_t)width * sizeof *out);
}

static void
add_tile(const float *x, int64_t rows, int64_t n, float *h, int64_t a, int64_t b, float *left)
{
	const int64_t m = n - a < TILE_M ? n - a : TILE_M, w = n - b < TILE_N ? n - b : TILE_N;
	float *right = left + DEPTH * TILE_M;

	for (int64_t t = 0; t < rows; t += DEPTH) {
		int64_t k = rows - t < DEPTH ? rows - t : DEPTH;
		copy_columns(x + t * n + a, n, m, k, left, TILE_M);
		copy_columns(x + t * n + b, n, w, k, right, TILE_N);
		outer_add(left, TILE_M, right, TILE_N, k, h + a * n + b, n, m, w, 0);
	}
}

static void
add_floats(const Gram *g, int part, const float *x, int64_t rows, int64_t n, float *h)
{
	float *left = (float *)g->work + (int64_t)part * DEPTH * (TILE_M + TILE_N);
	int64_t tile = 0;

	for (int64_t a = 0; a < n; a += TILE_M)
		for (int64_t b = 0; b <= a + TILE_M - 1 && b < n; b += TILE_N)
			if (tile++ % g->n_part == part)
				add_tile(x, rows, n, h, a, b, left);
}

/* ---- AMX tiles ----
 *
 * Columns are processed in groups of 16 (padded to an even number of groups), rows in steps of 32,
 * padded with zeros. Each group and step is packed twice, 1 KB each:
 *
 *   left    [16 columns][32 rows] bf16        right   [16 pairs of rows][16 columns][2]: as 32-bit words, left transposed
 *
 * Two groups times two groups give four tiles of the result. */

enum { GROUP = 16, STEP = 32, PACKED = GROUP * STEP /* values per group and step */ };

static int64_t
groups_of(int64_t n)
{
	return (n + 2 * GROUP - 1) / (2 * GROUP) * 2;
}

static int64_t
steps_of(int64_t rows)
{
	return (rows + STEP - 1) / STEP;
}

static uint16_t
to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void
pack(const float *x, int64_t rows, int64_t n, int64_t group, int64_t step, uint16_t *left,
     uint16_t *right)
{
	uint32_t word[GROUP][GROUP];
	const int64_t first = group * GROUP, cols = n - first < GROUP ? n - first : GROUP;

	memset(right, 0, PACKED * sizeof *right);
	for (int64_t k = 0; k < STEP && step * STEP + k < rows; k++) {
		const float *row = x + (step * STEP + k) * n + first;
		for (int64_t c = 0; c < cols; c++)
			right[k / 2 * 2 * GROUP + 2 * c + k % 2] = to_bf16(row[c]);
	}
	memcpy(word, right, sizeof word);
	for (int p = 0; p < GROUP; p++)
		for (int c = 0; c < GROUP; c++)
			memcpy(left + c * STEP + 2 * p, &word[p][c], sizeof word[p][c]);
}

#if defined(__x86_64__)
typedef struct TileShape {
	uint8_t palette, start, none[14];
	uint16_t bytes[16]; /* bytes per row of each tile register */
	uint8_t rows[16];
} TileShape;

#define TILE_LOAD(r, p)                                                                            \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #r ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_STORE(r, p)                                                                           \
	__asm__ volatile("tilestored %%tmm" #r ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64)            \
	                 : "memor"                                                                 \
	                   "y")
#define TILE_ZERO(r) __asm__ volatile("tilezero %%tmm" #r ::)
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

static void
tiles_begin(void)
{
	TileShape s = { .palette = 1 };

	for (int r = 0; r < 8; r++) {
		s.rows[r] = 16;
		s.bytes[r] = 64;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(s));
}

static void
tiles_end(void)
{
	__asm__ volatile("tilerelease" ::);
}

/* Multiplies groups i, i + 1 by j, j + 1: out [4][16][16] */
static void
four_tiles(const uint16_t *left, const uint16_t *right, int64_t steps, int64_t i, int64_t j,
           float (*out)[GROUP * GROUP])
{
	const uint16_t *a = left + i * steps * PACKED, *b = right + j * steps * PACKED;

	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	TILE_ZERO(3);
	for (int64_t s = 0; s < steps; s++) {
		TILE_LOAD(4, a + s * PACKED);
		TILE_LOAD(5, a + (steps + s) * PACKED);
		TILE_LOAD(6, b + s * PACKED);
		TILE_LOAD(7, b + (steps + s) * PACKED);
		TILE_DOT(0, 4, 6);
		TILE_DOT(1, 4, 7);
		TILE_DOT(2, 5, 6);
		TILE_DOT(3, 5, 7);
	}
	TILE_STORE(0, out[0]);
	TILE_STORE(1, out[1]);
	TILE_STORE(2, out[2]);
	TILE_STORE(3, out[3]);
}
#else
static void
tiles_begin(void)
{
}
static void
tiles_end(void)
{
}
static void
four_tiles(const uint16_t *left, const uint16_t *right, int64_t steps, int64_t i, int64_t j,
           float (*out)[GROUP * GROUP])
{
	(void)left, (void)right, (void)steps, (void)i, (void)j, (void)out;
}
#endif

static void
put(const float *tile, int64_t n, float *h, int64_t row, int64_t col)
{
	const int64_t rows = n - row < GROUP ? n - row : GROUP,
	              cols = n - col < GROUP ? n - col : GROUP;

	for (int64_t r = 0; r < rows; r++, tile += GROUP) {
		float *to = h + (row + r) * n + col;
		if (cols == GROUP)
			for (int c = 0; c < GROUP; c++)
				to[c] += tile[c];
		else
			for (int64_t c = 0; c < cols; c++)
				to[c] += tile[c];
	}
}

static void
add_tiles(const Gram *g, Threads *threads, int part, const float *x, int64_t rows, int64_t n,
          float *h)
{
	const int64_t groups = groups_of(n), steps = steps_of(rows);
	uint16_t *left = g->work, *right = left + groups * steps * PACKED;
	_Alignas(64) float out[4][GROUP * GROUP];
	int64_t tile = 0;

	for (int64_t u = part; u < groups * steps; u += g->n_part)
		pack(x, rows, n, u / steps, u % steps, left + u * PACKED, right + u * PACKED);
	threads_barrier(threads);
	tiles_begin();
	for (int64_t i = 0; i < groups; i += 2)
		for (int64_t j = 0; j <= i; j += 2) {
			if (tile++ % g->n_part != part)
				continue;
			four_tiles(left, right, steps, i, j, out);
			for (int k = 0; k < 4; k++)
				put(out[k], n, h, (i + k / 2) * GROUP, (j + k % 2) * GROUP);
		}
	tiles_end();
	threads_barrier(threads); /* wait before any thread packs the next step */
}

/* ---- dispatch ---- */

void
gram_open(Gram *g, const Threads *threads)
{
	char why[160];

	*g = (Gram){ .tiles = !device_of(TARGET_CPU)->lacks("cpu-amx", why, sizeof why),
		     .n_part = threads_count(threads) };
}

void
gram_release(Gram *g)
{
	free(g->work);
	g->work = NULL;
	g->cap = 0;
}

bool
gram_room(Gram *g, int64_t rows, int64_t n)
{
	size_t need = g->tiles
	                  ? (size_t)(2 * groups_of(n) * steps_of(rows)) * PACKED * sizeof(uint16_t)
	                  : (size_t)g->n_part * DEPTH * (TILE_M + TILE_N) * sizeof(float);

	if (need > g->cap) {
		gram_release(g);
		g->work = malloc(need);
		g->cap = g->work ? need : 0;
	}
	return g->work != NULL;
}

void
gram_add(const Gram *g, Threads *threads, int part, const float *x, int64_t rows, int64_t n,
         float *h)
{
	if (g->tiles)
		add_tiles(g, threads, part, x, rows, n, h);
	else
		add_floats(g, part, x, rows, n, h);
}
