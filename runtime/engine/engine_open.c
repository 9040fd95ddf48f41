/* Opening and closing an engine; the scheduler's interface to the session. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/engine/engine_internal.h"
#include "base/sized_struct.h"
#include "base/wakeup.h"
#include "runtime/ranks.h"

/* ---- the scheduler's interface to the session ---- */

static llmc_status
op_new(void *user, const SchedReq *req, llmc_seq *out, llmc_error *err)
{
	Session *s = ((Engine *)user)->session;

	TRY(session_seq_new(s, req->bound, out, err));
	session_seq_salt(s, *out, req->salt);
	session_seq_pair(s, *out, req->n_first);
	llmc_status status = req->adapter ? session_seq_adapt(s, *out, req->adapter, err) : LLMC_OK;
	if (status != LLMC_OK)
		session_seq_free(s, *out);
	return status;
}

static llmc_status
op_fork(void *user, llmc_seq from, llmc_seq *out, llmc_error *err)
{
	return session_seq_fork(((Engine *)user)->session, from, out, err);
}

static void
op_free(void *user, llmc_seq q)
{
	session_seq_free(((Engine *)user)->session, q);
}

static void
op_trim(void *user, llmc_seq q, int32_t len)
{
	session_seq_trim(((Engine *)user)->session, q, len, NULL);
}

static bool
op_mark(void *user, llmc_seq q, bool on)
{
	Session *s = ((Engine *)user)->session;

	if (!on)
		session_seq_unmark(s, q);
	return on && session_seq_mark(s, q, NULL) == LLMC_OK;
}

static int64_t
op_need(void *user, const llmc_seq *q, const int32_t *add, size_t n)
{
	return kv_pages_needed(&((Engine *)user)->session->kv, q, add, n);
}

static int64_t
op_pages(void *user)
{
	return ((Engine *)user)->session->kv.n_free;
}

static int32_t
op_find(void *user, llmc_seq q, const int32_t *tok, int32_t n)
{
	return session_prefix_find(((Engine *)user)->session, q, tok, n);
}

static void
op_keep(void *user, llmc_seq q, const int32_t *tok)
{
	session_prefix_keep(((Engine *)user)->session, q, tok);
}

static bool
op_here(void *user, llmc_seq q)
{
	return kv_seq_ready(&((Engine *)user)->session->kv, q);
}

typedef struct SavedSequence {
	size_t bytes;
	char data[];
} SavedSequence;

/* Save a sequence to host memory if measured speeds predict that two copies (out and back) are
 * faster than computing it again. NULL: not saved. */
static void *
op_save(void *user, llmc_seq q, int32_t n_tok)
{
	Engine *e = user;
	double start = clock_now();
	size_t need = 0;

	int64_t bytes = session_seq_bytes(e->session, n_tok);
	if (bytes > e->swap_max - e->swap_used ||
	    2 * (double)bytes / e->copy_bytes_s > n_tok * e->token_s)
		return NULL;
	session_seq_save(e->session, q, NULL, 0, &need, NULL);
	SavedSequence *s = malloc(sizeof *s + need);
	if (!s || session_seq_save(e->session, q, s->data, need, &need, NULL) != LLMC_OK) {
		free(s);
		return NULL;
	}
	s->bytes = need;
	e->swap_used += (int64_t)need;
	double took = clock_now() - start;
	if (took > 0)
		e->copy_bytes_s += 0.25 * ((double)need / took - e->copy_bytes_s);
	return s;
}

static void
op_drop(void *user, void *saved)
{
	SavedSequence *s = saved;

	((Engine *)user)->swap_used -= (int64_t)s->bytes;
	free(s);
}

static bool
op_load(void *user, void *saved, llmc_seq *out)
{
	Engine *e = user;
	SavedSequence *s = saved;

	if (session_seq_load(e->session, s->data, s->bytes, out, NULL) != LLMC_OK)
		return false;
	op_drop(e, s);
	return true;
}

/* ---- open and close ---- */

llmc_limits
engine_limits(const Plan *plan, const llmc_engine_options *opt)
{
	llmc_limits l = LLMC_INIT(llmc_limits);

	SIZED_TAKE(l, opt->limits);
	if (l.context == 0)
		l.context =
		    (int32_t)(plan->max_positions < LLMC_DEFAULT_CONTEXT ? plan->max_positions
		                                                         : LLMC_DEFAULT_CONTEXT);
	if (l.seqs == 0)
		l.seqs = 16;
	if (l.n_out == 0 &&
	    plan->output == LLMC_OUTPUT_LOGITS) /* enough for prompt chunks with logits */
		l.n_out = l.seqs < INT32_MAX - 32 ? l.seqs + 32 : l.seqs; /* checked later */
	if (l.kv_tokens == 0)
		l.kv_tokens = opt->max_batch_total_tokens > 0
		                  ? opt->max_batch_total_tokens
		                  : (int64_t)l.context * (l.seqs < 4 ? l.seqs : 4);
	if (opt->no_prefix_cache || plan->prompt_whole)
		l.snapshots = 0;
	else if (l.snapshots == 0)
		l.snapshots = LLMC_DEFAULT_SNAPSHOTS;
	if (opt->speculate < 0)
		l.marks = 0;
	else if (l.marks == 0)
		l.marks = l.seqs < LLMC_DEFAULT_MARKS ? l.seqs : LLMC_DEFAULT_MARKS;
	if (l.host_tokens == 0)
		l.host_tokens = kv_host_pages(plan) * PLAN_KV_PAGE;
	return l;
}

static llmc_status
check_options(const llmc_engine_options *o, llmc_error *err)
{
	if (o->max_concurrent_requests < 0 || o->max_batch_prefill_tokens < 0 ||
	    o->max_batch_total_tokens < 0 || o->max_waiting_tokens < 0 || o->swap_bytes < 0 ||
	    o->prefix_dir_bytes < 0)
		return error_set(err, LLMC_E_RANGE,
		                 "an engine option is negative; 0 selects its default");
	if (o->speculate < -1 || o->speculate > LLMC_MAX_SPECULATE)
		return error_set(err, LLMC_E_RANGE,
		                 "speculate is %d, possible are -1 (off), 0 (default) and 1 .. %d",
		                 o->speculate, LLMC_MAX_SPECULATE);
	if (!(o->waiting_served_ratio >= 0))
		return error_set(err, LLMC_E_RANGE,
		                 "waiting_served_ratio is %g, it must be 0 or above",
		                 (double)o->waiting_served_ratio);
	return LLMC_OK;
}

static llmc_status
open_memory(Engine *e, const llmc_engine_options *opt, llmc_error *err)
{
	const SchedOps ops = { .user = e,
		               .seq_new = op_new,
		               .seq_fork = op_fork,
		               .seq_free = op_free,
		               .seq_trim = op_trim,
		               .seq_mark = op_mark,
		               .pages_need = op_need,
		               .pages_free = op_pages,
		               .prefix_find = op_find,
		               .prefix_keep = op_keep,
		               .here = op_here,
		               .save = op_save,
		               .load = op_load,
		               .drop = op_drop };
	int n = e->session->threads ? threads_count(e->session->threads) : 1;

	TRY(sched_open(&e->sched_lim, &ops, &e->sched, err));
	if (e->plan->kv_host && e->sched_lim.no_prefix && !e->is_inline)
		return error_set(err, LLMC_E_INPUT,
		                 "kv.host and no_prefix_cache exclude each other: pages in host "
		                 "memory belong to the prefix cache");
	if (e->session->kv.host.n && opt->swap_bytes)
		return error_set(
		    err, LLMC_E_INPUT,
		    "kv.host and swap_bytes exclude each other: with kv.host the prefix "
		    "cache also keeps the pages of preempted requests");
	if (!e->sched_lim.no_prefix)
		TRY(kv_prefix_open(&e->session->kv, err));
	if (opt->prefix_dir && e->sched_lim.no_prefix && opt->no_prefix_cache)
		return error_set(err, LLMC_E_INPUT,
		                 "prefix_dir and no_prefix_cache exclude each other");
	if (opt->prefix_dir)
		TRY(session_prefix_dir(e->session, opt->prefix_dir,
		                       opt->prefix_dir_bytes ? opt->prefix_dir_bytes
		                                             : LLMC_DEFAULT_PREFIX_DIR_BYTES,
		                       "", opt->log, opt->log_user, err));
	e->logits =
	    calloc((size_t)e->lim.n_out * (size_t)plan_out_width(e->plan), sizeof *e->logits);
	e->ids = calloc((size_t)e->lim.seqs + 1, sizeof *e->ids);
	e->logprobs = calloc((size_t)e->lim.seqs + 1, sizeof *e->logprobs);
	e->row = calloc((size_t)e->lim.seqs + 1, sizeof *e->row);
	e->images = calloc((size_t)e->lim.seqs + 1, sizeof *e->images);
	e->n_tok_was = calloc((size_t)e->lim.seqs + 1, sizeof *e->n_tok_was);
	e->sampled = calloc((size_t)e->lim.seqs + 1, sizeof *e->sampled);
	e->mask = calloc((size_t)e->lim.seqs + 1, sizeof *e->mask);
	e->scratch = calloc((size_t)n, sizeof *e->scratch);
	if (!e->logits || !e->ids || !e->logprobs || !e->row || !e->images || !e->n_tok_was ||
	    !e->sampled || !e->mask || !e->scratch)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine of %d sequences",
		                 e->lim.seqs);
	for (; e->n_scratch < n; e->n_scratch++)
		TRY(sample_scratch_open((int32_t)e->plan->vocab, &e->scratch[e->n_scratch], err));
	if (e->is_inline)
		return LLMC_OK;
	e->fd = wakeup_open();
	if (e->fd < 0)
		return error_set(err, LLMC_E_IO, "cannot create the event descriptor: %s",
		                 strerror(errno));
	return LLMC_OK;
}

/* Is there a core for the mask thread? If the threads of a step use every core, a mask thread would
 * only delay one of them; instead they compute the masks in parallel after the step. With a GPU the
 * only host thread waits, so a core is free. */
static bool
has_spare_core(const Engine *e)
{
	int own = e->session->threads ? threads_count(e->session->threads) : 1;

	return topology_threads() > own * e->plan->ranks * e->plan->stages;
}

static llmc_status
open_engine(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt,
            bool is_inline, Engine **out, llmc_error *err)
{
	llmc_status status;

	*out = NULL;
	TRY(check_options(opt, err));
	Engine *e = calloc(1, sizeof *e);
	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	pthread_mutex_init(&e->lock, NULL);
	clock_cond_init(&e->wake);
	clock_cond_init(&e->any);
	clock_cond_init(&e->idle);
	e->session = session;
	e->is_inline = is_inline;
	e->ranks = session->comm != NULL;
	e->plan = session->plan;
	e->tok = tok;
	e->lim = *session_limits_of(session);
	e->log = opt->log;
	e->log_user = opt->log_user;
	e->fd = -1;
	e->max_jobs = opt->max_concurrent_requests ? opt->max_concurrent_requests
	                                           : LLMC_DEFAULT_CONCURRENT_REQUESTS;
	e->swap_max = opt->swap_bytes;
	e->speculate = opt->speculate < 0 ? 0
	               : opt->speculate   ? opt->speculate
	                                  : LLMC_MAX_SPECULATE;
	if (e->speculate > draft_rows(e->plan) - 1)
		e->speculate = draft_rows(e->plan) - 1;
	e->drafter.states = plan_has_state(e->plan);
	e->token_s = 1e-3;
	e->copy_bytes_s = 2e9;
	e->sched_lim =
	    (SchedLimits){ .seqs = e->lim.seqs,
		           .chunk = e->lim.chunk,
		           .n_out = e->lim.n_out,
		           .prefill = e->lim.chunk,
		           .pages = session->kv.n_page,
		           .total_tokens = opt->max_batch_total_tokens,
		           .waiting_ratio = opt->waiting_served_ratio,
		           .max_waiting_steps = opt->max_waiting_tokens
		                                    ? opt->max_waiting_tokens
		                                    : LLMC_DEFAULT_WAITING_TOKENS,
		           .prompt_whole = e->plan->prompt_whole,
		           .no_prefix = opt->no_prefix_cache || e->plan->prompt_whole || is_inline,
		           .page_aligned = plan_has_state(e->plan),
		           .states = plan_has_state(e->plan),
		           .draft_rows_max = draft_rows(e->plan) };
	if (opt->max_batch_prefill_tokens && opt->max_batch_prefill_tokens < e->lim.chunk)
		e->sched_lim.prefill = opt->max_batch_prefill_tokens;
#ifdef LLMC_ENGINE_CHECK
	e->check = true;
#endif
	TRY_GOTO(open_memory(e, opt, err));
	if (!is_inline && has_spare_core(e))
		TRY_GOTO(masks_open(e->lim.seqs, &e->masks, err));
	engine_update_stats(e);
	e->counts = e->now;
	if (!is_inline)
		TRY_GOTO(thread_start(engine_run, e, &e->thread, err));
	e->has_thread = !is_inline;
	*out = e;
	return LLMC_OK;
fail:
	engine_close(e, 0);
	return status;
}

llmc_status
engine_open(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt,
            Engine **out, llmc_error *err)
{
	return open_engine(session, tok, opt, false, out, err);
}

llmc_status
engine_open_inline(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt,
                   Engine **out, llmc_error *err)
{
	return open_engine(session, tok, opt, true, out, err);
}

void
engine_set_check(Engine *e)
{
	e->check = true;
}

llmc_status
engine_set_draft_model(Engine *e, Session *draft_session, llmc_error *err)
{
	const llmc_limits *lim = session_limits_of(draft_session);

	e->draft_logits = calloc((size_t)lim->n_out * (size_t)plan_out_width(draft_session->plan),
	                         sizeof *e->draft_logits);
	if (!e->draft_logits)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the draft model");
	e->is_head = draft_session->plan->takes_rows;
	if (e->is_head &&
	    !(e->draft_rows_buf =
	          calloc((size_t)DRAFT_MAX_SEQS * (size_t)plan_row_width(draft_session->plan),
	                 sizeof *e->draft_rows_buf)))
		return error_set(err, LLMC_E_MEMORY, "out of memory for the draft head");
	TRY(kv_prefix_open(&draft_session->kv, err));
	e->draft_chunk = lim->chunk / DRAFT_MAX_SEQS > 0 ? lim->chunk / DRAFT_MAX_SEQS : 1;
	e->draft_session = draft_session;
	return LLMC_OK;
}

llmc_status
engine_set_mask_thread(Engine *e, bool ahead, llmc_error *err)
{
	masks_close(e->masks);
	e->masks = NULL;
	return ahead ? masks_open(e->lim.seqs, &e->masks, err) : LLMC_OK;
}

void
engine_set_eager(Engine *e)
{
	e->drafter.eager = true;
}

void
engine_set_draft_fn(Engine *e, engine_draft_fn fn, void *user)
{
	e->draft_fn = fn;
	e->draft_fn_user = user;
}

void
engine_pause(Engine *e, bool paused)
{
	pthread_mutex_lock(&e->lock);
	e->paused = paused;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
}

void
engine_close(Engine *e, int drain_ms)
{
	if (!e)
		return;
	if (e->has_thread) {
		engine_drain(e, drain_ms, NULL);
		pthread_mutex_lock(&e->lock);
		e->stop = true;
		pthread_cond_signal(&e->wake);
		pthread_mutex_unlock(&e->lock);
		pthread_join(e->thread, NULL);
	}
	events_close(e);
	if (e->fd >= 0)
		close(e->fd);
	sched_close(e->sched);
	for (int i = 0; i < e->n_scratch; i++)
		sample_scratch_release(&e->scratch[i]);
	masks_close(e->masks);
	dry_breakers_close(e->breakers);
	strbuf_release(&e->breakers_key);
	free(e->scratch);
	free(e->mask);
	free(e->sampled);
	free(e->row);
	free(e->images);
	free(e->n_tok_was);
	free(e->draft_logits);
	free(e->draft_rows_buf);
	free(e->ids);
	free(e->logprobs);
	free(e->logits);
	pthread_cond_destroy(&e->wake);
	pthread_cond_destroy(&e->any);
	pthread_cond_destroy(&e->idle);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
