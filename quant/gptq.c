#include "quant/gptq.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/block_quantize.h"
#include "quant/rank_update.h"

enum {
	PANEL = 64,
	TILE = 128,
	TOGETHER = 16 /* rows per batch */,
	CHUNK = 256 /* columns per chunk, a multiple of every block size */
};

/* ---- the factor R ---- */

typedef struct Factor {
	float *h;
	int64_t n;
	float least; /* lower bound on a pivot; dependent columns would round to about 0 */
	Threads *threads;
} Factor;

/* Returns the start of a part's range in 0 .. n, in whole vectors */
static int64_t
share(int64_t n, int part, int n_parts)
{
	return part == n_parts ? n : n * part / n_parts / 16 * 16;
}

/* Computes columns first .. end of rows s .. e of R', from the last row up: divides by the pivot,
 * then updates the rows above in the panel */
static void
solve_panel(const Factor *f, int64_t s, int64_t e, int64_t first, int64_t end)
{
	for (int64_t k = e - 1; k >= s; k--) {
		float *row = f->h + k * f->n, inv = 1 / row[k];
		for (int64_t i = first; i < end; i++)
			row[i] *= inv;
		for (int64_t q = s; q < k; q++)
			outer_axpy(-row[q], row + first, f->h + q * f->n + first, end - first);
	}
}

/* Factors a block on the diagonal, which depends only on itself */
static void
factor_diag(const Factor *f, int64_t s, int64_t e)
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
			factor_diag(f, s, e);
		threads_barrier(f->threads);
		solve_panel(f, s, e, share(s, part, n_parts), share(s, part + 1, n_parts));
		threads_barrier(f->threads);
		for (int64_t i = 0; i < s; i += TILE)
			for (int64_t j = 0; j <= i; j += TILE)
				if (tile++ % n_parts == part)
					outer_add(h + s * n + i, n, h + s * n + j, n, e - s,
					          h + i * n + j, n, s - i < TILE ? s - i : TILE,
					          s - j < TILE ? s - j : TILE, 1);
		threads_barrier(f->threads);
		e = s;
	}
	/* R_ij / R_jj above the diagonal, in tiles that fit the caches */
	int64_t square = 0;
	for (int64_t i0 = 0; i0 < n; i0 += PANEL)
		for (int64_t j0 = i0; j0 < n; j0 += PANEL)
			if (square++ % n_parts == part)
				for (int64_t i = i0; i < n && i < i0 + PANEL; i++)
					for (int64_t j = j0 > i ? j0 : i + 1;
					     j < n && j < j0 + PANEL; j++)
						h[i * n + j] = h[j * n + i] / h[j * n + j];
}

void
gptq_damp(float *h, int64_t n, double damp)
{
	double mean = 0;

	for (int64_t i = 0; i < n; i++)
		mean += (double)h[i * n + i] / (double)n;
	mean = mean > 0 ? mean : 1;
	for (int64_t i = 0; i < n; i++) {
		h[i * n + i] = h[i * n + i] > 0
		                   ? (float)((double)h[i * n + i] * (1 + damp) + .001 * damp * mean)
		                   : (float)mean;
		for (int64_t j = 0; j < i; j++)
			h[j * n + i] = h[i * n + j];
	}
}

void
gptq_factor(float *h, int64_t n, Threads *threads)
{
	double mean = 0;

	for (int64_t i = 0; i < n; i++)
		mean += (double)h[i * n + i] / (double)n;
	Factor f = { h, n, (float)(1e-6 * mean), threads };
	threads_run(threads, factor, &f);
}

/* ---- rounding rows ---- */

typedef struct GptqWork {
	const GptqRows *job;
	atomic_llong next; /* next row batch to process */
	atomic_bool failed;
} GptqWork;

typedef struct GptqScratch {
	float *w;         /* [TOGETHER][cols] original values */
	float *e;         /* [cols][TOGETHER] error w - v */
	float *weight;    /* [cols] R_jj^2: weight of each column's squared rounding error */
	float *half_grad; /* [TOGETHER][cols] H e: half of the gradient of the loss */
	int8_t *code;     /* [TOGETHER][cols] */
	BlockGrid *grid;  /* [TOGETHER][cols / block] */
	float level[GRID_MAX][TOGETHER],
	    hq[GRID_MAX][TOGETHER];  /* levels of a sub-block, and H times levels */
	float more[TOGETHER][CHUNK]; /* corrections of the chunk's columns for the errors so far */
} GptqScratch;

/* Rounds a chunk of columns of one row */
static void
round_chunk(const GptqRows *job, GptqScratch *scratch, int r, int64_t s, int64_t n)
{
	const int block = dtype_info(job->to)->block_elems;
	const float *w = scratch->w + r * job->cols + s;
	int8_t *code = scratch->code + r * job->cols + s;
	float *more = scratch->more[r], x[GRID_MAX];

	for (int64_t at = 0; at < n; at += block) {
		BlockGrid *g = &scratch->grid[(r * job->cols + s + at) / block];
		for (int i = 0; i < block; i++)
			x[i] = w[at + i] + more[at + i];
		grid_choose(job->to, x, scratch->weight + s + at, g);
		for (int i = 0; i < block; i++) {
			int64_t j = at + i;
			code[j] = (int8_t)grid_code(g, i, w[j] + more[j]);
			float e = w[j] - grid_value(g, i, code[j]);
			scratch->e[(s + j) * TOGETHER + r] = e;
			outer_axpy(e, job->h + (s + j) * job->cols + s + j + 1, more + j + 1,
			           n - j - 1);
		}
	}
}

/* ---- further passes over the rounded rows ---- */

/* Rounds one column of all rows again: each code moves to the value nearest to the optimum given
 * the other columns. */
static void
requantize_column(const GptqRows *job, GptqScratch *scratch, int m, int64_t j)
{
	const int block = dtype_info(job->to)->block_elems, i = (int)(j % block);
	const float *h = job->full + j * job->cols;

	for (int r = 0; r < m; r++) {
		const BlockGrid *g = &scratch->grid[(r * job->cols + j) / block];
		int8_t *code = &scratch->code[r * job->cols + j];
		float *half_grad = scratch->half_grad + r * job->cols,
		      old = grid_value(g, i, *code);
		int c = grid_code(g, i, old + half_grad[j] / h[j]);
		if (c == *code)
			continue;
		float by = grid_value(g, i, c) - old;
		*code = (int8_t)c;
		scratch->e[j * TOGETHER + r] -= by;
		outer_axpy(-by, h, half_grad, job->cols);
	}
}

/* Refits the scales of the sub-block that begins at column j, for all rows: the nearby storable
 * scales with the least loss for the current codes */
static void
refit_scales(const GptqRows *job, GptqScratch *scratch, int m, int64_t j, int sub)
{
	const int block = dtype_info(job->to)->block_elems;
	const int64_t n = job->cols;
	float by[GRID_MAX][TOGETHER] = { { 0 } }; /* change of the elements' values */
	double qq[TOGETHER] = { 0 }, q1[TOGETHER] = { 0 }, gq[TOGETHER] = { 0 },
	       /* sums over H and the gradient with levels and ones */
	    g1[TOGETHER] = { 0 }, one = 0;
	bool any = false;

	memset(scratch->level, 0, (size_t)sub * sizeof *scratch->level);
	memset(scratch->hq, 0, (size_t)sub * sizeof *scratch->hq);
	for (int r = 0; r < m; r++) {
		const BlockGrid *g = &scratch->grid[(r * n + j) / block];
		const int8_t *code = scratch->code + r * n + j;
		for (int a = 0; a < sub; a++)
			scratch->level[a][r] = (float)(g->level ? g->level[code[a]] : code[a]);
	}
	outer_add(job->full + j * n + j, n, scratch->level[0], TOGETHER, sub, scratch->hq[0],
	          TOGETHER, sub, TOGETHER, 0);
	for (int a = 0; a < sub; a++) {
		const float *h = job->full + (j + a) * n + j;
		float h1 = 0;
		for (int b = 0; b < sub; b++)
			h1 += h[b];
		one += (double)h1;
		for (int r = 0; r < m; r++) {
			const double level = (double)scratch->level[a][r],
			             half_grad = (double)scratch->half_grad[r * n + j + a];
			qq[r] += (double)scratch->hq[a][r] * level;
			q1[r] += (double)h1 * level;
			gq[r] += half_grad * level;
			g1[r] += half_grad;
		}
	}
	for (int r = 0; r < m; r++) {
		BlockGrid *g = &scratch->grid[(r * n + j) / block], best;
		const int k = (int)(j % block) / sub;
		double least = 0;
		best = *g;
		/* optimum of scale and base together, and of scale alone */
		const double det = qq[r] * one - q1[r] * q1[r];
		const bool two = det > 1e-7 * qq[r] * one;
		const double ds = two ? (gq[r] * one - g1[r] * q1[r]) / det : 0,
		             db = two ? (g1[r] * qq[r] - gq[r] * q1[r]) / det : 0;
		for (int t = 0; t < 18; t++) {
			BlockGrid other = *g;
			double to_s = t < 9       ? ds
			              : qq[r] > 0 ? gq[r] / qq[r]
			                          : 0,
			       to_b = t < 9 ? db : 0;
			if (!grid_move(job->to, &other, k, g->scale[k] + (float)to_s,
			               g->base[k] + (float)to_b, t % 3 - 1, t / 3 % 3 - 1))
				continue;
			double s = (double)(other.scale[k] - g->scale[k]),
			       b = (double)(other.base[k] - g->base[k]);
			double loss = s * s * qq[r] + 2 * s * b * q1[r] + b * b * one -
			              2 * (s * gq[r] + b * g1[r]);
			if (loss < least)
				least = loss, best = other;
		}
		if (!(least < 0))
			continue;
		any = true;
		for (int a = 0; a < sub; a++)
			by[a][r] = (best.scale[k] - g->scale[k]) * scratch->level[a][r] +
			           (best.base[k] - g->base[k]);
		*g = best;
	}
	if (!any)
		return;
	outer_add(by[0], TOGETHER, job->full + j * n, n, sub, scratch->half_grad, n, TOGETHER, n,
	          1);
	for (int a = 0; a < sub; a++)
		for (int r = 0; r < m; r++)
			scratch->e[(j + a) * TOGETHER + r] -= by[a][r];
}
static void
rows(void *user, int part, int n_parts)
{
	GptqWork *work = user;
	const GptqRows *job = work->job;
	const int64_t n = job->cols, from_bytes = dtype_row_bytes(job->from, n),
	              to_bytes = dtype_row_bytes(job->to, n);
	const int block = dtype_info(job->to)->block_elems,
	          block_bytes = dtype_info(job->to)->block_bytes;
	GptqScratch *scratch = calloc(1, sizeof *scratch);

	(void)part, (void)n_parts;
	if (scratch) {
		scratch->w = malloc((size_t)n * TOGETHER * sizeof *scratch->w);
		scratch->e = malloc((size_t)n * TOGETHER * sizeof *scratch->e);
		scratch->weight = malloc((size_t)n * sizeof *scratch->weight);
		scratch->half_grad = malloc((size_t)n * TOGETHER * sizeof *scratch->half_grad);
		scratch->code = malloc((size_t)n * TOGETHER);
		scratch->grid = malloc((size_t)(n / block) * TOGETHER * sizeof *scratch->grid);
	}
	if (!scratch || !scratch->w || !scratch->e || !scratch->weight || !scratch->half_grad ||
	    !scratch->code || !scratch->grid) {
		atomic_store(&work->failed, true);
		goto out;
	}
	for (int64_t j = 0; j < n; j++)
		scratch->weight[j] = job->h[j * n + j] * job->h[j * n + j];
	for (int64_t first; (first = atomic_fetch_add(&work->next, TOGETHER)) < job->rows;) {
		int m = job->rows - first < TOGETHER ? (int)(job->rows - first) : TOGETHER;
		memset(scratch->w, 0, (size_t)n * TOGETHER * sizeof *scratch->w);
		memset(scratch->e, 0, (size_t)n * TOGETHER * sizeof *scratch->e);
		for (int r = 0; r < m; r++)
			dequant_row(job->from, (const char *)job->src + (first + r) * from_bytes,
			            scratch->w + r * n, n);
		for (int64_t s = 0; s < n; s += CHUNK) {
			int64_t c = n - s < CHUNK ? n - s : CHUNK;
			memset(scratch->more, 0, sizeof scratch->more);
			outer_add(scratch->e, TOGETHER, job->h + s, n, s, scratch->more[0], CHUNK,
			          TOGETHER, c, 0);
			for (int r = 0; r < m; r++)
				round_chunk(job, scratch, r, s, c);
		}
		for (int pass = 0; job->full && pass < job->passes; pass++) {
			if (pass == 0) {
				memset(scratch->half_grad, 0,
				       (size_t)n * TOGETHER * sizeof *scratch->half_grad);
				outer_add(scratch->e, TOGETHER, job->full, n, n, scratch->half_grad,
				          n, TOGETHER, n, 0);
			}
			for (int64_t j = 0; j < n; j++) {
				int sub = scratch->grid[j / block].sub;
				if (j % sub == 0)
					refit_scales(job, scratch, m, j, sub);
				requantize_column(job, scratch, m, j);
			}
		}
		for (int r = 0; r < m; r++)
			for (int64_t b = 0; b < n / block; b++)
				grid_pack(job->to, &scratch->grid[r * n / block + b],
				          scratch->code + r * n + b * block,
				          (uint8_t *)job->dst + (first + r) * to_bytes +
				              b * block_bytes);
	}
out:
	if (scratch) {
		free(scratch->w);
		free(scratch->e);
		free(scratch->weight);
		free(scratch->half_grad);
		free(scratch->code);
		free(scratch->grid);
	}
	free(scratch);
}

bool
gptq_rows(const GptqRows *job, Threads *threads)
{
	GptqWork work = { .job = job };

	threads_run(threads, rows, &work);
	return !atomic_load(&work.failed);
}
