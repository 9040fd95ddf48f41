/* llmc_eval: compare the probabilities of a model with those of its reference, token by token.
 * Threads share the rows of logits. Sums are taken in the order of the tokens, so the results do
 * not depend on the number of threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_eval.h"
#include "base/embed.h"
#include "base/sized_struct.h"
#include "runtime/threads/threads.h"

enum { WINDOW = 512, CHUNK = 128 };

static llmc_status
tokens_of(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags, int32_t **ids,
          size_t *n, llmc_error *err)
{
	*ids = NULL;
	llmc_status s = llmc_tokenize(t, text, n_bytes, flags, NULL, 0, n, err);
	if (s != LLMC_OK && s != LLMC_E_RANGE)
		return s;
	*ids = malloc((*n + 1) * sizeof **ids);
	if (!*ids)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the tokens of the corpus");
	return llmc_tokenize(t, text, n_bytes, flags, *ids, *n, n, err);
}

llmc_status
text_windows(const llmc_model *m, const char *text, size_t n_bytes, const char *name, int32_t width,
             int32_t most, Windows *w, llmc_error *err)
{
	char path[64];
	int32_t *all = NULL, *head = NULL;
	size_t n = 0, n_head = 0, n_tail = 0;
	llmc_status status;

	*w = (Windows){ .width = width };
	if (!m->tokenizer)
		return error_set(err, LLMC_E_INPUT, "the model has no tokenizer for the corpus");
	if (!text) {
		snprintf(path, sizeof path, "configs/texts/%s.txt", name);
		text = embed_find(path, &n_bytes);
		if (!text)
			return error_set(err, LLMC_E_BUG, "%s is not built in", path);
	}
	/* Find the tokens that the tokenizer adds before any string: the tokens of the empty
	 * string, without the suffix that they share with the tokens of "a". */
	TRY_GOTO(tokens_of(m->tokenizer, "", 0, LLMC_ADD_SPECIAL, &head, &n_head, err));
	if (n_head > 0 && n_head < (size_t)width) {
		TRY_GOTO(tokens_of(m->tokenizer, "a", 1, LLMC_ADD_SPECIAL, &all, &n, err));
		while (n_tail < n_head && n_tail < n &&
		       head[n_head - 1 - n_tail] == all[n - 1 - n_tail])
			n_tail++;
		n_head -= n_tail;
		free(all);
		all = NULL;
	} else {
		n_head = 0;
	}
	TRY_GOTO(tokens_of(m->tokenizer, text, n_bytes, 0, &all, &n, err));
	size_t step = (size_t)width - n_head, fit = n / step;
	if (fit < 1) {
		status = error_set(err, LLMC_E_INPUT,
		                   "the corpus has %zu tokens, fewer than a window of %d; use a "
		                   "longer corpus or a smaller window",
		                   n, width);
		goto fail;
	}
	w->n = most > 0 && (size_t)most < fit ? most : fit > INT32_MAX ? INT32_MAX : (int32_t)fit;
	w->tok = malloc((size_t)w->n * (size_t)width * sizeof *w->tok);
	if (!w->tok) {
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for the tokens of the corpus");
		goto fail;
	}
	for (int32_t i = 0; i < w->n; i++) {
		int32_t *to = w->tok + (size_t)i * (size_t)width;
		memcpy(to, head, n_head * sizeof *to);
		memcpy(to + n_head, all + (size_t)i * step, step * sizeof *to);
	}
fail:
	free(head);
	free(all);
	return status;
}

/* ---- rows of logits ---- */

typedef struct EvalRow {
	double nll, reference_nll, kl;
	bool same;
} EvalRow; /* results of one token */

typedef struct EvalWork {
	const float *logits, *reference; /* [n][stride]; reference NULL: none */
	const int32_t *next;             /* [n] token after each row */
	EvalRow *row;                    /* [n] */
	int64_t vocab, stride;
	int n;
} EvalWork;

/* Return ln sum exp of a row; *top receives the index of its largest element. */
static double
log_sum(const float *x, int64_t n, int64_t *top)
{
	double sum = 0;

	*top = 0;
	for (int64_t i = 1; i < n; i++)
		if (x[i] > x[*top])
			*top = i;
	for (int64_t i = 0; i < n; i++)
		sum += (double)expf(x[i] - x[*top]);
	return (double)x[*top] + log(sum);
}

static void
measure(void *user, int part, int n_parts)
{
	const EvalWork *w = user;

	for (int r = part; r < w->n; r += n_parts) {
		const float *q = w->logits + r * w->stride;
		int64_t top, reference_top = 0;
		double sum = log_sum(q, w->vocab, &top);
		w->row[r] = (EvalRow){ .nll = sum - (double)q[w->next[r]] };
		if (!w->reference)
			continue;
		const float *p = w->reference + r * w->stride;
		double reference_sum = log_sum(p, w->vocab, &reference_top), kl = 0;
		float base = (float)reference_sum;
		for (int64_t i = 0; i < w->vocab; i++)
			kl += (double)expf(p[i] - base) * ((double)p[i] - (double)q[i]);
		/* sum p (ln p - ln q), clamped at 0, because probabilities in float sum to 1 only
		 * approximately */
		w->row[r].kl = fmax(kl - reference_sum + sum, 0);
		w->row[r].reference_nll = reference_sum - (double)p[w->next[r]];
		w->row[r].same = top == reference_top;
	}
}

/* ---- figures ---- */

/* Return the mean of the windows' means with its 95 % confidence interval. Windows are the samples,
 * because tokens of one window are correlated and windows are nearly independent. */
static llmc_interval
interval(const double *mean, int32_t n)
{
	/* Student's t at 97.5 %, for 1 .. 30 degrees of freedom */
	static const double student[] = { 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
		                          2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
		                          2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
		                          2.060, 2.056, 2.052, 2.048, 2.045, 2.042 };
	double sum = 0, square = 0;

	for (int32_t i = 0; i < n; i++)
		sum += mean[i];
	sum /= n;
	if (n < 2)
		return (llmc_interval){ sum, NAN, NAN };
	for (int32_t i = 0; i < n; i++)
		square += (mean[i] - sum) * (mean[i] - sum);
	double half = (n <= 31 ? student[n - 2] : 1.96) * sqrt(square / (n - 1) / n);
	return (llmc_interval){ sum, sum - half, sum + half };
}

static llmc_interval
interval_exp(llmc_interval v)
{
	return (llmc_interval){ exp(v.mean), exp(v.low), exp(v.high) };
}

static int
compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Return a quantile: the element below which this share of the n sorted values lies. */
static double
quantile(const float *sorted, int64_t n, double share)
{
	int64_t i = (int64_t)(share * (double)n);
	return (double)sorted[i < n ? i : n - 1];
}

typedef struct EvalSide {
	Session *s;
	float *logits;
	llmc_seq q;
} EvalSide;

static llmc_status
side_open(llmc_model *m, int32_t window, int32_t chunk, int n_threads, EvalSide *side,
          llmc_error *err)
{
	llmc_limits lim = LLMC_INIT(llmc_limits);

	lim.context = window;
	lim.chunk = lim.n_out = m->plan->prompt_whole ? window : chunk;
	lim.n_threads = n_threads;
	TRY(session_open(m->rt, &lim, &side->s, err));
	side->logits = malloc((size_t)lim.n_out * (size_t)m->plan->vocab * sizeof(float));
	return side->logits ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory for logits");
}

static llmc_status
side_step(EvalSide *side, const int32_t *tok, int32_t first, int32_t n, int32_t window,
          llmc_error *err)
{
	if (first == 0)
		TRY(session_seq_new(side->s, window, &side->q, err));
	llmc_chunk c = { .seq = side->q, .tok = tok + first, .n_tok = n, .n_out = n };
	TRY(session_forward(side->s, &c, 1, side->logits, err));
	if (first + n == window)
		session_seq_free(side->s, side->q);
	return LLMC_OK;
}

static llmc_status
rows_finite(const EvalRow *row, int n, llmc_error *err)
{
	for (int i = 0; i < n; i++)
		if (!isfinite(row[i].nll) || !isfinite(row[i].reference_nll) ||
		    !isfinite(row[i].kl))
			return error_set(err, LLMC_E_CHECK, "a logit is NaN or infinite: the %s",
			                 isfinite(row[i].reference_nll) ? "model is damaged"
			                                                : "reference is damaged");
	return LLMC_OK;
}

static llmc_status
check(llmc_model *m, llmc_model *reference, const llmc_eval_options *o, llmc_error *err)
{
	if (!m->rt || (reference && !reference->rt))
		return error_set(err, LLMC_E_INPUT, "the model was opened without weights");
	if (m->plan->output != LLMC_OUTPUT_LOGITS ||
	    (reference && reference->plan->output != LLMC_OUTPUT_LOGITS))
		return error_set(
		    err, LLMC_E_INPUT,
		    "the model returns vectors (head.kind), not logits: it has no perplexity");
	if (reference && reference->plan->vocab != m->plan->vocab)
		return error_set(err, LLMC_E_INPUT,
		                 "the model has %lld tokens, the reference %lld: a reference must "
		                 "have the model's vocabulary",
		                 (long long)m->plan->vocab, (long long)reference->plan->vocab);
	if (o->window < 2 || o->chunk < 1 || o->max_windows < 0)
		return error_set(err, LLMC_E_RANGE, "window %d: expected at least 2 tokens",
		                 o->window);
	if (m->plan->hard_limit && o->window > m->plan->max_positions)
		return error_set(err, LLMC_E_RANGE, "window %d: the model has %lld positions",
		                 o->window, (long long)m->plan->max_positions);
	return LLMC_OK;
}

llmc_status
llmc_eval(llmc_model *m, llmc_model *reference, const llmc_eval_options *opt, llmc_eval_result *res,
          llmc_error *err)
{
	llmc_eval_options o = LLMC_INIT(llmc_eval_options);
	llmc_eval_result r = LLMC_INIT(llmc_eval_result);
	EvalSide side[2] = { { 0 } };
	Windows w = { 0 };
	Threads *threads = NULL;
	double *mean[5] = {
		NULL
	}; /* per window: nll, nll of the reference, their difference, kl, agreement */
	EvalRow *row = NULL;
	llmc_status status;

	SIZED_TAKE(o, opt);
	o.window = o.window ? o.window : WINDOW;
	o.chunk = o.chunk ? o.chunk : CHUNK;
	o.n_threads = o.n_threads ? o.n_threads : m->n_threads ? m->n_threads : topology_threads();
	TRY(check(m, reference, &o, err));
	TRY_GOTO(
	    text_windows(m, o.text, o.n_bytes, "evaluation", o.window, o.max_windows, &w, err));
	TRY_GOTO(threads_open(o.n_threads, &threads, err));
	TRY_GOTO(side_open(m, o.window, o.chunk, o.n_threads, &side[0], err));
	if (reference)
		TRY_GOTO(side_open(reference, o.window, o.chunk, o.n_threads, &side[1], err));
	r.window = o.window;
	r.n_windows = w.n;
	r.n_tokens = (int64_t)w.n * (o.window - 1);
	row = malloc((size_t)o.window * sizeof *row);
	r.kl_sorted = malloc((size_t)r.n_tokens * sizeof *r.kl_sorted);
	bool allocated = row && r.kl_sorted;
	for (int i = 0; i < 5; i++)
		allocated &= (mean[i] = calloc((size_t)w.n, sizeof **mean)) != NULL;
	if (!allocated) {
		status = error_set(err, LLMC_E_MEMORY,
		                   "out of memory for the figures of %d windows", w.n);
		goto fail;
	}
	int32_t chunk = m->plan->prompt_whole || (reference && reference->plan->prompt_whole)
	                    ? o.window
	                    : o.chunk;
	for (int32_t i = 0; i < w.n; i++) {
		const int32_t *tok = w.tok + (size_t)i * (size_t)w.width;
		for (int32_t first = 0, n; first < o.window; first += n) {
			n = o.window - first < chunk ? o.window - first : chunk;
			for (int k = 0; k < (reference ? 2 : 1); k++)
				TRY_GOTO(side_step(&side[k], tok, first, n, o.window, err));
			EvalWork work = { .logits = side[0].logits,
				          .reference = side[1].logits,
				          .next = tok + first + 1,
				          .row = row + first,
				          .vocab = m->plan->vocab_used > 0 ? m->plan->vocab_used
				                                           : m->plan->vocab,
				          .stride = m->plan->vocab,
				          .n = first + n == o.window ? n - 1 : n };
			threads_run(threads, measure, &work);
			TRY_GOTO(rows_finite(work.row, work.n, err));
		}
		for (int32_t t = 0; t + 1 < o.window; t++) {
			double v[5] = { row[t].nll, row[t].reference_nll,
				        row[t].nll - row[t].reference_nll, row[t].kl, row[t].same };
			for (int k = 0; k < 5; k++)
				mean[k][i] += v[k] / (o.window - 1);
			r.kl_sorted[(int64_t)i * (o.window - 1) + t] = (float)row[t].kl;
		}
		llmc_interval so_far = interval(mean[3], i + 1);
		if (o.progress && !o.progress(o.user, i + 1, w.n, &so_far)) {
			status = error_set(err, LLMC_E_CANCELLED, "stopped after %d of %d windows",
			                   i + 1, w.n);
			goto fail;
		}
	}
	r.perplexity = interval_exp(interval(mean[0], w.n));
	if (reference) {
		r.reference_perplexity = interval_exp(interval(mean[1], w.n));
		r.log_ratio = interval(mean[2], w.n);
		r.kl = interval(mean[3], w.n);
		r.agreement = interval(mean[4], w.n);
		r.kl.low = isnan(r.kl.low) ? NAN : fmax(r.kl.low, 0);
		r.agreement.low = isnan(r.agreement.low) ? NAN : fmax(r.agreement.low, 0);
		r.agreement.high = isnan(r.agreement.high) ? NAN : fmin(r.agreement.high, 1);
		qsort(r.kl_sorted, (size_t)r.n_tokens, sizeof *r.kl_sorted, compare_floats);
		r.kl_median = quantile(r.kl_sorted, r.n_tokens, .5);
		r.kl_90 = quantile(r.kl_sorted, r.n_tokens, .9);
		r.kl_99 = quantile(r.kl_sorted, r.n_tokens, .99);
		r.kl_999 = quantile(r.kl_sorted, r.n_tokens, .999);
		r.kl_max = (double)r.kl_sorted[r.n_tokens - 1];
	}
	SIZED_GIVE(res, r);
	r.kl_sorted = NULL;
fail:
	for (int i = 0; i < 5; i++)
		free(mean[i]);
	for (int i = 0; i < 2; i++) {
		session_close(side[i].s);
		free(side[i].logits);
	}
	threads_close(threads);
	free(r.kl_sorted);
	free(row);
	free(w.tok);
	return status;
}

void
llmc_eval_release(llmc_eval_result *res)
{
	free(res->kl_sorted);
	res->kl_sorted = NULL;
}
