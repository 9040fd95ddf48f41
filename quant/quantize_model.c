/* Runs a quantisation: selects types (choose_types.c), rounds rows in parallel, calibrates layer by
 * layer, applies column factors, and writes the file (resume.c). */
#include "quant/quant_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "formats/dequant.h"
#include "formats/gguf_write.h"
#include "formats/block_quantize.h"
#include "quant/awq.h"
#include "quant/gptq.h"

enum { ROWS_AT_ONCE = 8 };

/* ---- tensors ---- */

typedef struct QuantRows {
	const QuantTensor *t;
	uint8_t *dst;
	FolderForm form;
	atomic_llong next;
	atomic_bool failed;
} QuantRows;

static void
convert(void *user, int part, int n_parts)
{
	QuantRows *w = user;
	const GgufTensor *in = w->t->in;
	const int64_t cols = in->dim[0], from = dtype_row_bytes(in->dtype, cols),
	              to = w->t->to == DT_NONE ? 0 : dtype_row_bytes(w->t->to, cols),
	              n = rows_of(in);
	const int64_t per_mat =
	    w->t->importance && w->t->importance->n_mat > 1 ? n / w->t->importance->n_mat : n;
	const float *times = w->t->times;
	float *row = malloc((size_t)cols * 2 * sizeof *row), *counts = row + cols;

	(void)part, (void)n_parts;
	if (!row) {
		atomic_store(&w->failed, true);
		return;
	}
	for (int64_t first; (first = atomic_fetch_add(&w->next, ROWS_AT_ONCE)) < n;)
		for (int64_t i = first; i < n && i < first + ROWS_AT_ONCE; i++) {
			const float *importance =
			    w->t->importance ? w->t->importance->mean + i / per_mat * cols : NULL;
			dequant_row(in->dtype, (const char *)in->data + i * from, row, cols);
			for (int64_t j = 0; times && j < cols; j++) {
				row[j] *= times[j];
				counts[j] =
				    (importance ? importance[j] : 1) / (times[j] * times[j]);
			}
			if (times)
				importance = counts;
			if (w->t->to == DT_NONE)
				folder_row(w->form, w->t->scale, row, importance, i, n, cols,
				           w->dst);
			else if (grid_has(w->t->to))
				quantize_row(w->t->to, row, importance, w->dst + i * to, cols);
			else
				quant_row(w->t->to, row, w->dst + i * to, cols);
		}
	free(row);
}

/* Divides a norm's weights */
static llmc_status
keep_divided(QuantRun *r, QuantTensor *t, llmc_error *err)
{
	const int64_t n = t->in->dim[0];
	float *w = malloc((size_t)n * 2 * sizeof *w);

	if (!w)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %s", t->in->name);
	dequant_row(t->in->dtype, t->in->data, w, n);
	for (int64_t j = 0; j < n; j++)
		w[j] /= t->over[j];
	quant_row(t->in->dtype, w, w + n, n);
	llmc_status s = run_keep(r, t, w + n, err);
	free(w);
	return s;
}

static llmc_status
quantise(QuantRun *r, QuantTensor *t, const float *full, llmc_error *err)
{
	const QuantJob *job = r->job;
	bool ok;

	if (t->over)
		return keep_divided(r, t, err);
	if (!t->made)
		return run_keep(r, t, t->in->data, err);
	const bool blocks = t->n_part && t->to != DT_NONE; /* parts are built from blocks */
	const int64_t room =
	    blocks ? dtype_row_bytes(t->to, t->in->dim[0]) * rows_of(t->in) : t->bytes;
	uint8_t *dst = malloc((size_t)room);
	if (!dst)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %s", t->in->name);
	if (t->input && t->input->h && t->to != DT_NONE && grid_has(t->to)) {
		ok = gptq_rows(&(GptqRows){ t->in->dtype, t->to, t->in->data, dst, rows_of(t->in),
		                            t->in->dim[0], t->input->h, full, RUN_PASSES },
		               job->threads);
	} else {
		QuantRows w = { .t = t, .dst = dst, .form = job->form };
		threads_run(job->threads, convert, &w);
		ok = !atomic_load(&w.failed);
	}
	llmc_status s =
	    !ok      ? error_set(err, LLMC_E_MEMORY, "out of memory for rows of %s", t->in->name)
	    : blocks ? run_keep_blocks(r, t, dst, err)
	             : run_keep(r, t, dst, err);
	free(dst);
	return s;
}

/* ---- calibration ---- */

static void
find_importance(QuantRun *r, const Imatrix *m)
{
	for (int i = 0; i < r->n; i++)
		if (r->t[i].made)
			r->t[i].importance = run_importance(r, m, r->t[i].in);
}

static bool
is_wanted(const QuantRun *r, const CalibrationInput *in)
{
	for (int k = 0; k < r->n; k++)
		if (!r->t[k].done && r->t[k].input == in)
			return true;
	return false;
}

/* Bytes of a Hessian, or of the captured rows of experts */
static int64_t
bytes_of(const QuantRun *r, const CalibrationInput *in)
{
	return 4 * in->cols * (in->experts ? (int64_t)r->job->n_window * r->job->width : in->cols);
}

/* Selects inputs whose Hessians are computed together: from the first missing Hessian on, as many
 * as the memory limit allows, in whole segments of the model. false: none is left. */
static bool
next_group(QuantRun *r)
{
	Calibration *c = r->job->calibration;
	int64_t bytes = 0;
	bool any = false;

	calibration_drop(c);
	for (int i = 0, end; i < calibration_n(c); i = end) {
		bool wanted = false;
		for (end = i; end < calibration_n(c) &&
		              calibration_segment(c, end) == calibration_segment(c, i);
		     end++)
			if (is_wanted(r, calibration_at(c, end))) {
				wanted = true;
				bytes += bytes_of(r, calibration_at(c, end));
			}
		if (any && bytes > r->job->hessian_bytes)
			break;
		any |= wanted;
		for (int k = i; k < end; k++)
			calibration_at(c, k)->hessian = is_wanted(r, calibration_at(c, k));
	}
	return any;
}

static llmc_status
quantise_group(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;

	for (int i = 0; i < calibration_n(job->calibration); i++) {
		CalibrationInput *in = calibration_at(job->calibration, i);
		if (in->experts && in->hessian) {
			if (in->row)
				TRY(run_experts(r, in, err));
			for (int k = 0; k < r->n; k++) /* the input had no rows */
				if (r->t[k].input == in && !r->t[k].done)
					r->t[k].input = NULL;
			in->hessian = false;
		}
		if (!in->h)
			continue;
		/* With few rows per column, correlations are uncertain, so the default damping
		 * grows as data gets scarcer */
		double damp = job->damp > 0
		                  ? job->damp
		                  : fmin(fmax(6.0 * (double)in->cols / (double)in->seen, .03), 1);
		float *full = malloc((size_t)in->cols * (size_t)in->cols * sizeof *full);
		if (!full)
			return error_set(err, LLMC_E_MEMORY, "out of memory for the Hessian of %s",
			                 in->name[0]);
		gptq_damp(in->h, in->cols, damp);
		memcpy(full, in->h, (size_t)in->cols * (size_t)in->cols * sizeof *full);
		gptq_factor(in->h, in->cols, job->threads);
		llmc_status s = LLMC_OK;
		for (int k = 0; k < r->n && s == LLMC_OK; k++)
			if (r->t[k].input == in && !r->t[k].done)
				s = quantise(r, &r->t[k], full, err);
		free(full);
		TRY(s);
		free(in->h);
		in->h = NULL;
		in->hessian = false;
	}
	return LLMC_OK;
}

/* ---- column factors ---- */

/* Computes factors for the matrices after one norm. The norm's weights are rounded to their stored
 * type, and the factors are adjusted to the rounded values, so the output stays the same. */
static llmc_status
scale_following(QuantRun *r, QuantTensor *norm, QuantTensor *const *t, int n, llmc_error *err)
{
	const int64_t cols = t[0]->in->dim[0];
	AwqMatrix m[AWQ_READERS];
	float *s = NEW(r->a, float, cols), *w = NEW(r->a, float, 3 * cols);

	for (int i = 0; i < n; i++)
		m[i] = (AwqMatrix){ t[i]->in->dtype, t[i]->to, t[i]->in->data, rows_of(t[i]->in) };
	if (!awq_factors(m, n, cols, t[0]->importance->mean, r->job->threads, s))
		return error_set(err, LLMC_E_MEMORY, "out of memory for factors of %s",
		                 norm->in->name);
	dequant_row(norm->in->dtype, norm->in->data, w, cols);
	for (int64_t j = 0; j < cols; j++)
		w[cols + j] = w[j] / s[j];
	quant_row(norm->in->dtype, w + cols, w + 2 * cols, cols);
	dequant_row(norm->in->dtype, w + 2 * cols, w + cols, cols);
	for (int64_t j = 0; j < cols; j++)
		s[j] = w[j] != 0 && w[cols + j] != 0 && isfinite(w[j] / w[cols + j])
		           ? w[j] / w[cols + j]
		           : 1;
	norm->over = s;
	for (int i = 0; i < n; i++)
		t[i]->times = s;
	return LLMC_OK;
}

static llmc_status
find_factors(QuantRun *r, llmc_error *err)
{
	const Plan *plan = r->job->plan;
	const char *weight, *name[AWQ_READERS];

	for (int i = 0; i < plan->phase[1].n_step; i++) {
		QuantTensor *t[AWQ_READERS], *norm;
		int n = awq_readers(plan, i, &weight, name);
		bool all = n > 0 && (norm = run_tensor(r, weight)) && !norm->made && !norm->over &&
		           dtype_is_float(norm->in->dtype);
		for (int k = 0; k < n && all; k++) {
			t[k] = run_tensor(r, name[k]);
			all = t[k] && t[k]->made && t[k]->to != DT_NONE && grid_has(t[k]->to) &&
			      !t[k]->times && t[k]->in->dim[0] == norm->in->dim[0] &&
			      t[k]->importance && t[k]->importance->n_mat == 1;
		}
		if (all)
			TRY(scale_following(r, norm, t, n, err));
	}
	return LLMC_OK;
}

static llmc_status
quantise_all(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;

	if (job->method == QUANT_GPTQ) {
		run_moe_layers(r);
		for (int i = 0; i < r->n; i++) {
			QuantTensor *t = &r->t[i];
			/* not for a tied embedding, which is also read row by row */
			if (t->input || !t->made || t->to == DT_NONE ||
			    rows_of(t->in) != t->in->dim[1] ||
			    strcmp(t->in->name, "token_embd.weight") == 0)
				continue;
			t->input = calibration_find(job->calibration, t->in->name);
			if (t->input && (t->input->experts || t->input->cols != t->in->dim[0]))
				t->input = NULL;
		}
	}
	while (job->method == QUANT_GPTQ && next_group(r)) {
		TRY(quant_calibrate(job, err));
		TRY(quantise_group(r, err));
	}
	bool left = false;
	for (int i = 0; i < r->n; i++)
		left |= !r->t[i].done && r->t[i].made;
	if (left && job->method != QUANT_NEAREST && !job->imatrix && r->own.n == 0) {
		if (!calibration_whole(job->calibration))
			TRY(quant_calibrate(job, err));
		calibration_imatrix(job->calibration, r->a, &r->own);
	}
	find_importance(r, job->imatrix ? job->imatrix : &r->own);
	if (job->method == QUANT_AWQ)
		TRY(find_factors(r, err));
	for (int i = 0; i < r->n; i++)
		if (!r->t[i].done)
			TRY(quantise(r, &r->t[i], NULL, err));
	return LLMC_OK;
}

llmc_status
quant_run(QuantJob *job, Arena *a, llmc_error *err)
{
	QuantRun r = { .job = job, .a = a, .fd = -1 };
	int64_t align = 32;
	llmc_status status;

	if (file_exists(job->out))
		return error_set(err, LLMC_E_INPUT, "%s: exists already and is not overwritten",
		                 job->out);
	r.partial = arena_printf(a, "%s.partial", job->out);
	r.done_path = arena_printf(a, "%s.partial.done", job->out);
	if (job->form != FOLDER_NONE) {
		status = run_choose_parts(&r, err);
		safetensors_hold(a, r.st);
		if (status != LLMC_OK)
			goto fail;
		r.folder = r.partial;
		r.partial = arena_printf(a, "%s/model.safetensors", r.folder);
		TRY_GOTO(file_mkdirs(r.folder, err));
	} else {
		TRY(gguf_open(job->in, &r.g, err));
		gguf_hold(a, r.g);
		gguf_int(r.g, "general.alignment", &align);
		gguf_head_init(&r.head, align);
		TRY_GOTO(run_choose_types(&r, err));
	}
	TRY_GOTO(run_open(&r, err));
	TRY_GOTO(quantise_all(&r, err));
	TRY_GOTO(run_finish(&r, err));
fail:
	if (job->calibration)
		calibration_drop(job->calibration);
	if (r.done)
		fclose(r.done);
	if (r.fd >= 0)
		close(r.fd);
	gguf_head_release(&r.head);
	strbuf_release(&r.names);
	return status;
}
