#include "quant/gptq.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/quantize.h"
#include "quant/outer.h"

enum { PANEL = 64, TILE = 128, TOGETHER = 16 /* rows */, CHUNK = 256 /* columns, a multiple of every block */ };

/* --- the factor -------------------------------------------------------------------------------------------------------- */

typedef struct Factor {
	float   *h;
	int64_t  n;
	float    least; /* of a pivot: what rounding leaves of a column that others determine */
	Threads *threads;
} Factor;

/* Part of 0 .. n in whole vectors */
static int64_t
share(int64_t n, int part, int n_parts)
{
	return part == n_parts ? n : n * part / n_parts / 16 * 16;
}

/* Columns first .. end of the rows s .. e of R', from the last row: divided by the pivot, then taken from the rows above in the panel */
static void
beside(const Factor *f, int64_t s, int64_t e, int64_t first, int64_t end)
{
	for (int64_t k = e - 1; k >= s; k--) {
		float *row = f->h + k * f->n, inv = 1 / row[k];
		for (int64_t i = first; i < end; i++)
			row[i] *= inv;
		for (int64_t q = s; q < k; q++)
			outer_axpy(-row[q], row + first, f->h + q * f->n + first, end - first);
	}
}

/* The block on the diagonal, which needs nothing but itself */
static void
corner(const Factor *f, int64_t s, int64_t e)
{
	for (int64_t k = e - 1; k >= s; k--) {
		float *row = f->h + k * f->n;
		row[k] = sqrtf(row[k] > f->least ? row[k] : f->least);
		for (int64_t i = s; i < k; i++)
			row[i] /= row[k];
		for (int64_t q = s; q < k; q++)
			outer_axpy(-row[q], row + s, f->h + q * f->n + s, q + 1 - s);
	}
}

static void
factor(void *user, int part, int n_parts)
{
	const Factor *f = user;
	const int64_t n = f->n;
	float *h = f->h;

	for (int64_t e = n; e > 0;) {
		int64_t s = e > PANEL ? e - PANEL : 0, tile = 0;
		if (part == 0)
			corner(f, s, e);
		threads_barrier(f->threads);
		beside(f, s, e, share(s, part, n_parts), share(s, part + 1, n_parts));
		threads_barrier(f->threads);
		for (int64_t i = 0; i < s; i += TILE)
			for (int64_t j = 0; j <= i; j += TILE)
				if (tile++ % n_parts == part)
					outer_add(h + s * n + i, n, h + s * n + j, n, e - s, h + i * n + j, n, s - i < TILE ? s - i : TILE,
					          s - j < TILE ? s - j : TILE, 1);
		threads_barrier(f->threads);
		e = s;
	}
	/* R_ij / R_jj above the diagonal, in squares that fit the caches */
	int64_t square = 0;
	for (int64_t i0 = 0; i0 < n; i0 += PANEL)
		for (int64_t j0 = i0; j0 < n; j0 += PANEL)
			if (square++ % n_parts == part)
				for (int64_t i = i0; i < n && i < i0 + PANEL; i++)
					for (int64_t j = j0 > i ? j0 : i + 1; j < n && j < j0 + PANEL; j++)
						h[i * n + j] = h[j * n + i] / h[j * n + j];
}

void
gptq_factor(float *h, int64_t n, double damp, Threads *threads)
{
	double mean = 0;

	for (int64_t i = 0; i < n; i++)
		mean += (double)h[i * n + i] / (double)n;
	mean = mean > 0 ? mean : 1;
	for (int64_t i = 0; i < n; i++)
		h[i * n + i] = h[i * n + i] > 0 ? h[i * n + i] + (float)(damp * mean) : (float)mean;
	Factor f = { h, n, (float)(damp * mean * .1), threads };
	threads_run(threads, factor, &f);
}

/* --- rows ---------------------------------------------------------------------------------------------------------------- */

typedef struct Work {
	const GptqRows *job;
	atomic_llong    next;   /* rows that nobody has taken */
	atomic_bool     failed;
} Work;

typedef struct Room {
	float *w;      /* [TOGETHER][cols] as they are */
	float *e;      /* [cols][TOGETHER] w - v, scaled by nothing */
	float *weight; /* [cols] R_jj^2: what the square of each rounding costs */
	float  more[TOGETHER][CHUNK]; /* what errors so far ask of the columns of the chunk */
} Room;

/* A chunk of columns of one row */
static void
round_chunk(const GptqRows *job, Room *room, int r, int64_t s, int64_t n, uint8_t *dst)
{
	const int block = dtype_info(job->to)->block_elems, bytes = dtype_info(job->to)->block_bytes;
	const float *w = room->w + r * job->cols + s;
	float *more = room->more[r], x[GRID_MAX];
	int8_t code[GRID_MAX];
	BlockGrid g;

	for (int64_t at = 0; at < n; at += block) {
		for (int i = 0; i < block; i++)
			x[i] = w[at + i] + more[at + i];
		grid_choose(job->to, x, room->weight + s + at, &g);
		for (int i = 0; i < block; i++) {
			int64_t j = at + i;
			code[i] = (int8_t)grid_code(&g, i, w[j] + more[j]);
			float e = w[j] - grid_value(&g, i, code[i]);
			room->e[(s + j) * TOGETHER + r] = e;
			outer_axpy(e, job->h + (s + j) * job->cols + s + j + 1, more + j + 1, n - j - 1);
		}
		grid_pack(job->to, &g, code, dst + at / block * bytes);
	}
}

static void
rows(void *user, int part, int n_parts)
{
	Work *work = user;
	const GptqRows *job = work->job;
	const int64_t n = job->cols, from_bytes = dtype_row_bytes(job->from, n), to_bytes = dtype_row_bytes(job->to, n);
	const int block = dtype_info(job->to)->block_elems, block_bytes = dtype_info(job->to)->block_bytes;
	Room *room = calloc(1, sizeof *room);

	(void)part, (void)n_parts;
	if (room) {
		room->w = malloc((size_t)n * TOGETHER * sizeof *room->w);
		room->e = malloc((size_t)n * TOGETHER * sizeof *room->e);
		room->weight = malloc((size_t)n * sizeof *room->weight);
	}
	if (!room || !room->w || !room->e || !room->weight) {
		atomic_store(&work->failed, true);
		goto out;
	}
	for (int64_t j = 0; j < n; j++)
		room->weight[j] = job->h[j * n + j] * job->h[j * n + j];
	for (int64_t first; (first = atomic_fetch_add(&work->next, TOGETHER)) < job->rows;) {
		int m = job->rows - first < TOGETHER ? (int)(job->rows - first) : TOGETHER;
		memset(room->w, 0, (size_t)n * TOGETHER * sizeof *room->w);
		memset(room->e, 0, (size_t)n * TOGETHER * sizeof *room->e);
		for (int r = 0; r < m; r++)
			dequant_row(job->from, (const char *)job->src + (first + r) * from_bytes, room->w + r * n, n);
		for (int64_t s = 0; s < n; s += CHUNK) {
			int64_t c = n - s < CHUNK ? n - s : CHUNK;
			memset(room->more, 0, sizeof room->more);
			outer_add(room->e, TOGETHER, job->h + s, n, s, room->more[0], CHUNK, TOGETHER, c, 0);
			for (int r = 0; r < m; r++)
				round_chunk(job, room, r, s, c, (uint8_t *)job->dst + (first + r) * to_bytes + s / block * block_bytes);
		}
	}
out:
	if (room) {
		free(room->w);
		free(room->e);
		free(room->weight);
	}
	free(room);
}

bool
gptq_rows(const GptqRows *job, Threads *threads)
{
	Work work = { .job = job };

	threads_run(threads, rows, &work);
	return !atomic_load(&work.failed);
}
