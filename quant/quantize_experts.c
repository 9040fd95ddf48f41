/* Rounds matrices of experts by the rows that the router sends to each. An expert has two Hessians:
 * of its inputs, for gate and up, and of the inputs of down. An expert with few rows is rounded by
 * importance only, since compensation would overfit. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/block_quantize.h"
#include "quant/gptq.h"
#include "quant/gram.h"
#include "quant/rank_update.h"
#include "quant/quant_internal.h"
#include "ref/ref.h"

enum {
	GATE,
	UP,
	DOWN,
	ROLES,
	FEWEST = 8 /* a Hessian needs at least one row per FEWEST columns */,
	TILE = 32
};

/* Matrix of one expert: rows `first` .. of a tensor */
typedef struct ExpertMatrix {
	QuantTensor *t;
	int64_t first;
} ExpertMatrix;

typedef struct MoeLayer {
	QuantRun *r;
	CalibrationInput *in;
	int64_t cols[ROLES], rows[ROLES]; /* per expert */
	ExpertMatrix *m[ROLES];           /* [n_experts]; NULL: layout not supported */
	bool plain;                       /* there are no biases between the matrices */
	float *x, *turned; /* inputs of one expert: [n][hidden], and transposed [hidden][n] */
	float *y;          /* [n][width] inputs of down */
	int64_t n;
} MoeLayer;

/* Returns whether the source holds its rows consecutively from the first on */
static bool
is_whole(const PlanSource *s)
{
	return s->first == 0 && s->n_block * s->block == s->rows &&
	       (s->n_block == 1 || s->stride == s->block) && !s->transpose && !s->rope_pairs &&
	       !s->col_total && !s->permuted && !s->rows_in;
}

static void
find_matrices(MoeLayer *m)
{
	static const int role[ROLES] = { ARG(moe_ffn, gate), ARG(moe_ffn, up), ARG(moe_ffn, down) };
	const PlanStep *s = m->in->experts;
	const int n = m->in->n_experts;

	for (int k = 0; k < ROLES; k++) {
		const PlanTensor *t = &m->r->job->plan->tensor[s->arg[role[k]].index];
		m->cols[k] = t->cols;
		m->rows[k] = t->rows / n;
		m->m[k] = NEW(m->r->a, ExpertMatrix, n);
		for (int e = 0; e < n && m->m[k]; e++) {
			const PlanSource *src = &t->src[t->n_src == 1 ? 0 : e];
			QuantTensor *own = (t->n_src == 1 || t->n_src == n) && is_whole(src)
			                       ? run_tensor(m->r, src->name)
			                       : NULL;
			if (!own || own->in->dim[0] != t->cols ||
			    rows_of(own->in) != (t->n_src == 1 ? t->rows : m->rows[k]))
				m->m[k] = NULL;
			else
				m->m[k][e] =
				    (ExpertMatrix){ own, t->n_src == 1 ? e * m->rows[k] : 0 };
		}
	}
	m->plain = s->arg[ARG(moe_ffn, gate_b)].kind == REF_NONE &&
	           s->arg[ARG(moe_ffn, up_b)].kind == REF_NONE;
}

static bool
is_wanted(const MoeLayer *m, int role, int e)
{
	const QuantTensor *t = m->m[role] ? m->m[role][e].t : NULL;

	return t && t->made && !t->done && t->input == m->in;
}

/* ---- rows of one expert ---- */

static bool
gather_rows(MoeLayer *m, int e)
{
	const CalibrationInput *in = m->in;
	const int64_t cols = in->cols;

	m->n = 0;
	for (int64_t i = 0; i < in->seen * in->top_k; i++)
		m->n += in->chosen[i] == e;
	m->x = malloc((size_t)(m->n * cols + 1) * sizeof *m->x);
	m->turned = malloc((size_t)(m->n * cols + 1) * sizeof *m->turned);
	if (!m->x || !m->turned)
		return false;
	int64_t at = 0;
	for (int64_t i = 0; i < in->seen * in->top_k; i++)
		if (in->chosen[i] == e)
			memcpy(m->x + at++ * cols, in->row + i / in->top_k * cols,
			       (size_t)cols * sizeof *m->x);
	for (int64_t j = 0; j < cols; j++)
		for (int64_t i = 0; i < m->n; i++)
			m->turned[j * m->n + i] = m->x[i * cols + j];
	return true;
}

static void
release_rows(MoeLayer *m)
{
	free(m->x);
	free(m->turned);
	free(m->y);
	m->x = m->turned = m->y = NULL;
}

typedef struct ExpertInput {
	const MoeLayer *m;
	int e;
	atomic_llong next;
	atomic_bool failed;
} ExpertInput;

/* GEMM of rows first .. of a matrix with the expert's inputs: out [n][TILE] */
static void
expert_gemm(const MoeLayer *m, const ExpertMatrix *w, int64_t first, int64_t rows, float *row,
            float *turned, float *out)
{
	const int64_t cols = m->cols[GATE], bytes = dtype_row_bytes(w->t->in->dtype, cols);

	memset(turned, 0, (size_t)(cols * TILE) * sizeof *turned);
	memset(out, 0, (size_t)(m->n * TILE) * sizeof *out);
	for (int64_t o = 0; o < rows; o++) {
		dequant_row(w->t->in->dtype,
		            (const char *)w->t->in->data + (w->first + first + o) * bytes, row,
		            cols);
		for (int64_t j = 0; j < cols; j++)
			turned[j * TILE + o] = row[j];
	}
	outer_add(m->turned, m->n, turned, TILE, cols, out, TILE, m->n, TILE, 0);
}

static void
inner(void *user, int part, int n_parts)
{
	ExpertInput *job = user;
	const MoeLayer *m = job->m;
	const PlanStep *s = m->in->experts;
	const int64_t width = m->rows[GATE], cols = m->cols[GATE];
	const bool silu = strcmp(step_word(s, "act"), "silu") == 0 && step_num(s, "limit") <= 0;
	float *row = malloc((size_t)(cols + cols * TILE + 2 * m->n * TILE) * sizeof *row),
	      *turned = row + cols, *g = turned + cols * TILE, *u = g + m->n * TILE;

	(void)part, (void)n_parts;
	if (!row) {
		atomic_store(&job->failed, true);
		return;
	}
	for (int64_t first; (first = atomic_fetch_add(&job->next, TILE)) < width;) {
		const int64_t rows = width - first < TILE ? width - first : TILE;
		expert_gemm(m, &m->m[GATE][job->e], first, rows, row, turned, g);
		expert_gemm(m, &m->m[UP][job->e], first, rows, row, turned, u);
		for (int64_t i = 0; i < m->n; i++)
			for (int64_t o = 0; o < rows; o++) {
				const float a = g[i * TILE + o], b = u[i * TILE + o];
				m->y[i * width + first + o] =
				    silu ? a / (1 + expf(-a)) * b
				         : (float)ref_glu_one(s, (double)a, (double)b);
			}
	}
	free(row);
}

/* ---- rounding ---- */

typedef struct ExpertProduct {
	Gram gram;
	Threads *threads;
	const float *x;
	int64_t rows, n;
	float *h;
} ExpertProduct;

static void
product(void *user, int part, int n_parts)
{
	ExpertProduct *p = user;

	(void)n_parts;
	gram_add(&p->gram, p->threads, part, p->x, p->rows, p->n, p->h);
}

typedef struct DequantRows {
	const ExpertMatrix *w;
	const float *importance;
	int64_t rows, cols;
	atomic_llong next;
	atomic_bool failed;
} DequantRows;

static void
plain(void *user, int part, int n_parts)
{
	DequantRows *job = user;
	const QuantTensor *t = job->w->t;
	const int64_t from = dtype_row_bytes(t->in->dtype, job->cols),
	              to = dtype_row_bytes(t->to, job->cols);
	float *row = malloc((size_t)job->cols * sizeof *row);

	(void)part, (void)n_parts;
	if (!row) {
		atomic_store(&job->failed, true);
		return;
	}
	for (int64_t i; (i = atomic_fetch_add(&job->next, 1)) < job->rows;) {
		dequant_row(t->in->dtype, (const char *)t->in->data + (job->w->first + i) * from,
		            row, job->cols);
		quantize_row(t->to, row, job->importance, t->room + (job->w->first + i) * to,
		             job->cols);
	}
	free(row);
}

/* Rounds one expert's matrices of roles from .. to, which share the input rows x [n][cols] */
static bool
round_roles(MoeLayer *m, int e, int from, int to, const float *x, const float *importance)
{
	Threads *threads = m->r->job->threads;
	const int64_t cols = m->cols[from];
	const bool few = !x || m->n * FEWEST < cols;
	ExpertProduct p = { .threads = threads, .x = x, .rows = m->n, .n = cols };
	float *full = NULL;
	bool any = false, ok = true;

	for (int k = from; k <= to; k++)
		any |= is_wanted(m, k, e);
	if (!any)
		return true;
	if (!few) {
		gram_open(&p.gram, threads);
		p.h = calloc((size_t)(cols * cols), sizeof *p.h);
		full = malloc((size_t)(cols * cols) * sizeof *full);
		ok = p.h && full && gram_room(&p.gram, m->n, cols);
		if (ok) {
			threads_run(threads, product, &p);
			for (int64_t i = 0; i < cols * cols; i++)
				p.h[i] /= (float)m->n;
			double damp = m->r->job->damp > 0
			                  ? m->r->job->damp
			                  : fmin(fmax(6.0 * (double)cols / (double)m->n, .03), 1);
			gptq_damp(p.h, cols, damp);
			memcpy(full, p.h, (size_t)(cols * cols) * sizeof *full);
			gptq_factor(p.h, cols, threads);
		}
		gram_release(&p.gram);
	}
	for (int k = from; k <= to && ok; k++) {
		if (!is_wanted(m, k, e))
			continue;
		const ExpertMatrix *w = &m->m[k][e];
		const char *src = (const char *)w->t->in->data +
		                  w->first * dtype_row_bytes(w->t->in->dtype, cols);
		if (few) {
			DequantRows job = {
				.w = w, .importance = importance, .rows = m->rows[k], .cols = cols
			};
			threads_run(threads, plain, &job);
			ok = !atomic_load(&job.failed);
		} else {
			ok = gptq_rows(
			    &(GptqRows){ w->t->in->dtype, w->t->to, src,
			                 w->t->room + w->first * dtype_row_bytes(w->t->to, cols),
			                 m->rows[k], cols, p.h, full, RUN_PASSES },
			    threads);
		}
	}
	free(p.h);
	free(full);
	return ok;
}

static bool
round_expert(MoeLayer *m, int e, const float *mean)
{
	bool ok = gather_rows(m, e) && round_roles(m, e, GATE, UP, m->x, mean);

	if (ok && is_wanted(m, DOWN, e) && m->plain && m->m[GATE] && m->m[UP] &&
	    m->n * FEWEST >= m->cols[DOWN]) {
		ExpertInput job = { .m = m, .e = e };
		m->y = malloc((size_t)(m->n * m->cols[DOWN]) * sizeof *m->y);
		if ((ok = m->y != NULL)) {
			threads_run(m->r->job->threads, inner, &job);
			ok = !atomic_load(&job.failed);
		}
	}
	ok = ok && round_roles(m, e, DOWN, DOWN, m->y, NULL);
	release_rows(m);
	return ok;
}

void
run_moe_layers(QuantRun *r)
{
	for (int i = 0; i < calibration_n(r->job->calibration); i++) {
		MoeLayer m = { .r = r, .in = calibration_at(r->job->calibration, i) };
		if (!m.in->experts)
			continue;
		find_matrices(&m);
		for (int k = 0; k < ROLES; k++)
			for (int e = 0; m.m[k] && e < m.in->n_experts; e++) {
				QuantTensor *t = m.m[k][e].t;
				if (t->made && t->to != DT_NONE && grid_has(t->to))
					t->input = m.in;
			}
	}
}

llmc_status
run_experts(QuantRun *r, CalibrationInput *in, llmc_error *err)
{
	MoeLayer m = { .r = r, .in = in };
	llmc_status status = LLMC_OK;
	float *mean = NEW(r->a, float, in->cols);
	bool ok = true;

	find_matrices(&m);
	for (int64_t j = 0; j < in->cols; j++)
		mean[j] = in->seen ? (float)(in->squares[j] / (double)in->seen) : 1;
	for (int i = 0; i < r->n && ok; i++)
		if (r->t[i].input == in && r->t[i].made && !r->t[i].done)
			ok = (r->t[i].room =
			          malloc((size_t)(dtype_row_bytes(r->t[i].to, r->t[i].in->dim[0]) *
			                          rows_of(r->t[i].in)))) != NULL;
	for (int e = 0; e < in->n_experts && ok; e++)
		ok = round_expert(&m, e, mean);
	for (int i = 0; i < r->n; i++) {
		QuantTensor *t = &r->t[i];
		if (t->room && status == LLMC_OK && ok)
			status = run_keep_blocks(r, t, t->room, err);
		free(t->room);
		t->room = NULL;
	}
	return ok ? status
	          : error_set(err, LLMC_E_MEMORY, "out of memory for the experts of layer %d",
	                      in->layer);
}
