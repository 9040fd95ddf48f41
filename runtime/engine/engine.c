/* The engine's thread: take requests in, decide on a step, run it, let each choice say its token, hand the events over. */
#include "runtime/engine/engine.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/engine/inside.h"

double
engine_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------- the scheduler's hold on the session ---- */

static llmc_status
op_new(void *user, int32_t bound, llmc_seq *out, llmc_error *err)
{
	return session_seq_new(((Engine *)user)->session, bound, out, err);
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

static int64_t
op_need(void *user, const llmc_seq *q, const int32_t *add, size_t n)
{
	return kv_need(&((Engine *)user)->session->kv, q, add, n);
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

typedef struct Saved { size_t bytes; char data[]; } Saved;

/* Out and in again against computing it again, by what both have taken so far. */
static void *
op_save(void *user, llmc_seq q, int32_t n_tok)
{
	Engine *e = user;
	double start = engine_clock();
	size_t need = 0;

	int64_t bytes = kv_seq_bytes(&e->session->kv, n_tok);
	if (bytes > e->swap_max - e->swap_used || 2 * (double)bytes / e->copy_bytes_s > n_tok * e->token_s)
		return NULL;
	session_seq_save(e->session, q, NULL, 0, &need, NULL);
	Saved *s = malloc(sizeof *s + need);
	if (!s || session_seq_save(e->session, q, s->data, need, &need, NULL) != LLMC_OK) {
		free(s);
		return NULL;
	}
	s->bytes = need;
	e->swap_used += (int64_t)need;
	double took = engine_clock() - start;
	if (took > 0)
		e->copy_bytes_s += 0.25 * ((double)need / took - e->copy_bytes_s);
	return s;
}

static void
op_drop(void *user, void *saved)
{
	Saved *s = saved;

	((Engine *)user)->swap_used -= (int64_t)s->bytes;
	free(s);
}

static bool
op_load(void *user, void *saved, llmc_seq *out)
{
	Engine *e = user;
	Saved *s = saved;

	if (session_seq_load(e->session, s->data, s->bytes, out, NULL) != LLMC_OK)
		return false;
	op_drop(e, s);
	return true;
}

/* ----------------------------------------------------------------------------------------------- the step ---- */

static void
fail_all(Engine *e, llmc_status status, const char *text)
{
	for (Job *j = e->work; j; j = j->next)
		job_fail(e, j, status, text);
}

static void
end_job(Engine *e, Job *j, llmc_finish finish)
{
	if (j->over)
		return;
	sched_cancel(e->sched, j->req);
	for (int32_t i = 0; i < j->best_of && !j->over; i++)
		if (!j->choice[i].done)
			job_finish(e, j, &j->choice[i], finish, NULL);
}

/* New requests, cancelled ones. False: the engine closes. */
static bool
take_in(Engine *e)
{
	Job *fresh, **end = &e->work;

	pthread_mutex_lock(&e->lock);
	while (e->paused || (!e->inbox && !e->work && !e->stop))
		pthread_cond_wait(&e->wake, &e->lock);
	bool stop = e->stop && !e->inbox && !e->work, cut = e->cut;
	fresh = e->inbox;
	e->inbox = e->inbox_last = NULL;
	while (*end)
		end = &(*end)->next;
	*end = fresh;
	if (e->n_cancel || cut)
		for (Job *j = e->work; j; j = j->next)
			j->over = j->over || j->cancel || cut; /* for a moment: what to end outside of the lock */
	e->n_cancel = 0;
	pthread_mutex_unlock(&e->lock);
	if (stop)
		return false;
	for (Job *j = fresh; j; j = j->next) {
		e->now.requests++;
		count_things(&e->now.request_prompt, j->req->n_prompt);
		count_things(&e->now.request_max_new, j->req->max_new);
		count_things(&e->now.request_n, j->best_of);
		sched_submit(e->sched, j->req);
	}
	double now = engine_clock();
	for (Job *j = e->work; j; j = j->next) {
		if (j->over) {
			j->over = false;
			end_job(e, j, LLMC_FINISH_CANCEL);
		} else if (j->deadline > 0 && now >= j->deadline) {
			end_job(e, j, LLMC_FINISH_DEADLINE);
		}
	}
	return true;
}

/* Each thread of the session picks for every n-th choice. */
static void
pick_part(void *user, int part, int n_parts)
{
	Engine *e = user;

	if (part >= e->n_scratch)
		return;
	n_parts = n_parts < e->n_scratch ? n_parts : e->n_scratch;
	for (int32_t i = part; i < e->n_pick; i += n_parts) {
		Pick *p = &e->pick[i];
		p->status = sampler_pick(p->c->sampler, &e->scratch[part], p->logits, &p->id, &p->err);
		p->logprob = 0;
		p->n_top = 0;
		if (p->status != LLMC_OK || !p->job->logprobs)
			continue;
		p->n_top = p->job->n_top < (int32_t)e->plan->vocab ? p->job->n_top : (int32_t)e->plan->vocab;
		p->logprob = sample_logprobs(p->logits, (int32_t)e->plan->vocab, p->id, p->top, p->n_top);
	}
}

static void
pick_all(Engine *e)
{
	if (e->n_pick > 1 && e->session->threads)
		threads_run(e->session->threads, pick_part, e);
	else
		pick_part(e, 0, 1);
}

/* Can the device pick all that this step says? What it must know of the sequences is told it on the way. */
static bool
picks_on_device(Engine *e, int32_t n)
{
	bool says = false;

	for (int32_t i = 0; i < n; i++) {
		const Job *j = e->sched->chunk_seq[i]->req->user;
		if (e->sched->chunk[i].n_out && !j->on_device)
			return false;
		says |= e->sched->chunk[i].n_out > 0;
	}
	for (int32_t i = 0; i < n && says; i++) {
		const SchedSeq *q = e->sched->chunk_seq[i];
		Job *j = q->req->user;
		Choice *c = &j->choice[q->index];
		if (!e->sched->chunk[i].n_out || (c->device_n == c->n_new && c->device_stay == q->n_aside))
			continue;
		if (session_pick_resume(e->session, q->q, &j->p, q->tok, (size_t)q->req->n_prompt, q->tok + q->req->n_prompt,
		                        (size_t)c->n_new, NULL) != LLMC_OK)
			return false;
	}
	return says;
}

/* The step with its picks, in one. E_RANGE: nothing ran, it can run the other way. */
static llmc_status
step_on_device(Engine *e, int32_t n, llmc_error *err)
{
	int32_t at = 0;

	TRY(session_step(e->session, e->sched->chunk, (size_t)n, err));
	llmc_status status = session_picked(e->session, e->ids, e->logprobs, err);
	if (status != LLMC_OK && status != LLMC_E_CHECK)
		return LLMC_E_DEVICE;
	e->n_pick = 0;
	for (int32_t i = 0; i < n; i++) {
		SchedSeq *q = e->sched->chunk_seq[i];
		Job *j = q->req->user;
		bool says = sched_ran(e->sched, i);
		if (!e->sched->chunk[i].n_out)
			continue;
		Pick *p = &e->pick[e->n_pick];
		*p = (Pick){ .job = j, .c = &j->choice[q->index], .id = e->ids[at], .logprob = j->logprobs ? e->logprobs[at] : 0 };
		at++;
		if (p->id < 0)
			p->status = error_set(&p->err, LLMC_E_CHECK, "%s",
			                      status == LLMC_E_CHECK && err->text[0] ? err->text : "the logits hold no token that can be picked");
		sampler_skip(p->c->sampler);
		p->c->device_n = p->c->n_new + 1;
		p->c->device_stay = q->n_aside;
		e->n_pick += says;
	}
	return LLMC_OK;
}

static void
add_pick(Engine *e, Job *j, SchedSeq *c, const float *logits)
{
	Pick *p = &e->pick[e->n_pick++];

	p->job = j;
	p->c = &j->choice[c->index];
	p->logits = logits;
}

/* A chunk has run: its rows tell of the prompt, its last row how the choice goes on. */
static void
chunk_ran(Engine *e, int32_t i)
{
	SchedSeq *c = e->sched->chunk_seq[i];
	const llmc_chunk *k = &e->sched->chunk[i];
	const float *logits = e->row[i];
	Job *j = c->req->user;
	int32_t at = c->n_done;
	llmc_error err;

	if (c->state != SEQ_RUNNING) /* its request has failed by another choice */
		return;
	bool says = sched_ran(e->sched, i);
	if (j->prompt_logprobs && k->n_out == k->n_tok && at < c->req->n_prompt && !job_prompt(e, j, at, k->n_tok, logits))
		return;
	if (!says)
		return;
	const float *last = logits + (size_t)(k->n_out - 1) * (size_t)e->plan->vocab;
	add_pick(e, j, c, last);
	if (!sched_must_fork(c))
		return;
	if (sched_fork(e->sched, c->req, &err) != LLMC_OK) {
		job_fail(e, j, err.code, err.text);
		return;
	}
	for (int32_t n = 1; n < c->req->n_seq; n++)
		add_pick(e, j, &c->req->seq[n], last);
}

static void
say(Engine *e, const Pick *p)
{
	Job *j = p->job;
	llmc_finish finish;
	bool finished;

	if (j->over)
		return;
	if (p->status != LLMC_OK) {
		job_fail(e, j, p->status, p->err.text);
		return;
	}
	double now = engine_clock();
	if (j->first <= 0) {
		j->first = now;
		count_seconds(&e->now.first_token_s, now - j->submitted);
		count_seconds(&e->now.prefill_s, now - j->started);
	} else if (p->c->n_new) {
		count_seconds(&e->now.inter_token_s, now - p->c->latest);
	}
	p->c->latest = now;
	if (!job_token(e, j, p->c, p, &finish, &finished))
		return;
	if (finished)
		job_finish(e, j, p->c, finish, p);
	else
		sched_push(e->sched, p->c->seq, p->id);
}

/* Run the step; row[i]: where the logits of chunk i are. When a batch is refused, each of its chunks runs alone, so that
 * only the one at fault fails. */
static llmc_status
forward(Engine *e, int32_t n, llmc_error *err)
{
	const llmc_chunk *c = e->sched->chunk;
	float *at = e->logits;

	for (int32_t i = 0; i < n; i++) {
		e->row[i] = at;
		at += (size_t)c[i].n_out * (size_t)e->plan->vocab;
	}
	llmc_status status = session_forward(e->session, c, (size_t)n, e->logits, err);
	if (status == LLMC_OK || status == LLMC_E_DEVICE)
		return status;
	for (int32_t i = 0; i < n; i++) {
		SchedReq *r = e->sched->chunk_seq[i]->req;
		if (e->sched->chunk_seq[i]->state != SEQ_RUNNING)
			continue;
		status = session_forward(e->session, &c[i], 1, e->row[i], err);
		if (status == LLMC_E_DEVICE)
			return status;
		if (status != LLMC_OK)
			job_fail(e, r->user, status, err->text);
	}
	return LLMC_OK;
}

static void
note_starts(Engine *e)
{
	double now = engine_clock();

	if (e->sched->n_started)
		count_things(&e->now.start_size, e->sched->n_started);
	for (Job *j = e->work; j; j = j->next)
		if (j->req->started && j->started <= 0 && !j->over) {
			j->started = now;
			count_seconds(&e->now.queue_s, now - j->submitted);
			e->now.prompt_tokens += (uint64_t)j->req->n_prompt;
		}
}

/* Of the step that is about to run */
static void
note_step(Engine *e, int32_t n)
{
	e->step_tokens = 0;
	e->is_prefill = false;
	for (int32_t i = 0; i < n; i++) {
		const SchedSeq *c = e->sched->chunk_seq[i];
		e->step_tokens += e->sched->chunk[i].n_tok;
		e->is_prefill |= c->n_done < c->req->n_prompt;
	}
	e->now.batch_size = n;
}

static void
note_time(Engine *e, double took)
{
	e->now.steps++;
	e->now.prefill_steps += e->is_prefill;
	count_seconds(e->is_prefill ? &e->now.prefill_step_s : &e->now.decode_step_s, took);
	count_things(&e->now.step_tokens, e->step_tokens);
	e->now.last_step_s = took;
	if (e->step_tokens >= 16)
		e->token_s += 0.25 * (took / e->step_tokens - e->token_s);
}

static void
note_state(Engine *e)
{
	const Sched *s = e->sched;
	const Kv *kv = &e->session->kv;
	llmc_counts *c = &e->now;

	c->running = s->running.n;
	c->waiting = s->n_waiting;
	c->preempted = s->aside.n;
	c->batch_max_tokens = s->total_tokens;
	c->kv_pages_total = kv->n_page;
	c->kv_pages_used = kv->n_page - kv->n_free;
	c->kv_pages_cached = kv_prefix_idle(kv);
	c->swap_bytes_used = e->swap_used;
	c->prefix_queries = s->prefix_queries;
	c->prefix_hits = s->prefix_hits;
	c->preemptions = s->n_aside;
	c->swaps_out = s->n_saved;
	c->swaps_in = s->n_loaded;
	if (!e->work)
		c->batch_size = 0;
}

static void
die(Engine *e, const llmc_error *err)
{
	pthread_mutex_lock(&e->lock);
	e->dead = *err;
	pthread_mutex_unlock(&e->lock);
	if (e->log)
		e->log(e->log_user, LLMC_LOG_WARNING, err->text);
	fail_all(e, err->code, err->text);
}

static void
step(Engine *e)
{
	double start = engine_clock();
	llmc_error err = { 0 };

	if (e->dead.code != LLMC_OK) { /* only this thread writes it */
		fail_all(e, e->dead.code, e->dead.text);
		return;
	}
	int32_t n = sched_plan(e->sched);
	note_starts(e);
	if (n == 0)
		return;
	note_step(e, n);
	llmc_status status = picks_on_device(e, n) ? step_on_device(e, n, &err) : LLMC_E_RANGE;
	bool picked = status == LLMC_OK;
	if (!picked && status != LLMC_E_DEVICE)
		status = forward(e, n, &err);
	if (status != LLMC_OK) {
		die(e, &err);
		return;
	}
	note_time(e, engine_clock() - start);
	if (!picked) {
		e->n_pick = 0;
		for (int32_t i = 0; i < n; i++)
			chunk_ran(e, i);
		pick_all(e);
	}
	for (int32_t i = 0; i < e->n_pick; i++)
		say(e, &e->pick[i]);
}

static void
check(Engine *e)
{
	const char *wrong = sched_check(e->sched);
	int32_t used = 0;

	if (!wrong)
		wrong = kv_check(&e->session->kv);
	for (int32_t q = 0; q < e->session->kv.n_seq; q++)
		used += e->session->kv.seq[q].used;
	if (!wrong && used != e->sched->running.n)
		wrong = "a sequence has been lost";
	for (const Job *j = e->work; !wrong && j; j = j->next)
		if (j->over != (j->req->n_open == 0))
			wrong = "a request without open choices is in work, or one with is over";
	if (wrong) {
		llmc_error err;
		error_set(&err, LLMC_E_BUG, "the engine has lost its books: %s", wrong);
		die(e, &err);
	}
}

static void *
run(void *user)
{
	Engine *e = user;

	while (take_in(e)) {
		step(e);
		if (e->check)
			check(e);
		note_state(e);
		mail_flush(e);
	}
	return NULL;
}

/* ------------------------------------------------------------------------------------- open and close ---- */

llmc_limits
engine_limits(const Plan *plan, const llmc_engine_options *opt)
{
	llmc_limits l = LLMC_INIT(llmc_limits);

	if (opt->limits)
		memcpy(&l, opt->limits, opt->limits->size < sizeof l ? opt->limits->size : sizeof l);
	l.size = sizeof l;
	if (l.context == 0)
		l.context = (int32_t)(plan->max_positions < 4096 ? plan->max_positions : 4096);
	if (l.seqs == 0)
		l.seqs = 16;
	if (l.n_out == 0) /* room for pieces of prompts whose logits are wanted */
		l.n_out = l.seqs + 32;
	if (l.kv_tokens == 0)
		l.kv_tokens = opt->max_batch_total_tokens > 0 ? opt->max_batch_total_tokens
		                                              : (int64_t)l.context * (l.seqs < 4 ? l.seqs : 4);
	return l;
}

static llmc_status
check_options(const llmc_engine_options *o, llmc_error *err)
{
	if (o->max_concurrent_requests < 0 || o->max_batch_prefill_tokens < 0 || o->max_batch_total_tokens < 0 ||
	    o->max_waiting_tokens < 0 || o->swap_bytes < 0)
		return error_set(err, LLMC_E_RANGE, "an option of the engine is below 0; 0 takes its default");
	if (!(o->waiting_served_ratio >= 0))
		return error_set(err, LLMC_E_RANGE, "waiting_served_ratio is %g, it must be 0 or above",
		                 (double)o->waiting_served_ratio);
	return LLMC_OK;
}

static llmc_status
open_memory(Engine *e, llmc_error *err)
{
	const SchedOps ops = { .user = e, .seq_new = op_new, .seq_fork = op_fork, .seq_free = op_free, .pages_need = op_need,
		.pages_free = op_pages, .prefix_find = op_find, .prefix_keep = op_keep, .save = op_save, .load = op_load,
		.drop = op_drop };
	int n = e->session->threads ? threads_count(e->session->threads) : 1;

	TRY(sched_open(&e->sched_lim, &ops, &e->sched, err));
	if (!e->sched_lim.no_prefix)
		TRY(kv_prefix_open(&e->session->kv, err));
	e->logits = calloc((size_t)e->lim.n_out * (size_t)e->plan->vocab, sizeof *e->logits);
	e->ids = calloc((size_t)e->lim.seqs + 1, sizeof *e->ids);
	e->logprobs = calloc((size_t)e->lim.seqs + 1, sizeof *e->logprobs);
	e->row = calloc((size_t)e->lim.seqs + 1, sizeof *e->row);
	e->pick = calloc((size_t)e->lim.seqs + 1, sizeof *e->pick);
	e->scratch = calloc((size_t)n, sizeof *e->scratch);
	if (!e->logits || !e->ids || !e->logprobs || !e->row || !e->pick || !e->scratch)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine of %d sequences", e->lim.seqs);
	for (; e->n_scratch < n; e->n_scratch++)
		TRY(sample_scratch_open((int32_t)e->plan->vocab, &e->scratch[e->n_scratch], err));
	e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->fd < 0)
		return error_set(err, LLMC_E_IO, "no descriptor for events: %s", strerror(errno));
	return LLMC_OK;
}

/* Signals are the program's, not this thread's. */
static llmc_status
start_thread(Engine *e, llmc_error *err)
{
	sigset_t all, was;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int failed = pthread_create(&e->thread, NULL, run, e);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (failed)
		return error_set(err, LLMC_E_MEMORY, "no thread for the engine: %s", strerror(failed));
	e->has_thread = true;
	return LLMC_OK;
}

llmc_status
engine_open(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt, Engine **out, llmc_error *err)
{
	llmc_status status;

	*out = NULL;
	TRY(check_options(opt, err));
	Engine *e = calloc(1, sizeof *e);
	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	pthread_condattr_init(&e->monotonic);
	pthread_condattr_setclock(&e->monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->wake, &e->monotonic);
	pthread_cond_init(&e->any, &e->monotonic);
	pthread_cond_init(&e->idle, &e->monotonic);
	e->session = session;
	e->plan = session->plan;
	e->tok = tok;
	e->lim = *session_limits_of(session);
	e->log = opt->log;
	e->log_user = opt->log_user;
	e->fd = -1;
	e->max_jobs = opt->max_concurrent_requests ? opt->max_concurrent_requests : 128;
	e->swap_max = opt->swap_bytes;
	e->token_s = 1e-3;
	e->copy_bytes_s = 2e9;
	e->sched_lim = (SchedLimits){ .seqs = e->lim.seqs, .chunk = e->lim.chunk, .n_out = e->lim.n_out, .prefill = e->lim.chunk,
		.pages = session->kv.n_page, .total_tokens = opt->max_batch_total_tokens, .waiting_ratio = opt->waiting_served_ratio,
		.max_waiting_steps = opt->max_waiting_tokens ? opt->max_waiting_tokens : 20, .prompt_whole = e->plan->prompt_whole,
		.no_prefix = opt->no_prefix_cache || e->plan->prompt_whole };
	if (opt->max_batch_prefill_tokens && opt->max_batch_prefill_tokens < e->lim.chunk)
		e->sched_lim.prefill = opt->max_batch_prefill_tokens;
#ifdef LLMC_ENGINE_CHECK
	e->check = true;
#endif
	TRY_GOTO(open_memory(e, err));
	note_state(e);
	e->counts = e->now;
	TRY_GOTO(start_thread(e, err));
	*out = e;
	return LLMC_OK;
fail:
	engine_close(e, 0);
	return status;
}

void
engine_set_check(Engine *e)
{
	e->check = true;
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
	mail_close(e);
	if (e->fd >= 0)
		close(e->fd);
	sched_close(e->sched);
	for (int i = 0; i < e->n_scratch; i++)
		sample_scratch_release(&e->scratch[i]);
	free(e->scratch);
	free(e->pick);
	free(e->row);
	free(e->ids);
	free(e->logprobs);
	free(e->logits);
	pthread_cond_destroy(&e->wake);
	pthread_cond_destroy(&e->any);
	pthread_cond_destroy(&e->idle);
	pthread_mutex_destroy(&e->lock);
	pthread_condattr_destroy(&e->monotonic);
	free(e);
}
