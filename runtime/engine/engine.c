/* The engine's thread: accept requests, plan a step, run it, sample a token for each choice,
 * deliver the events. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/engine/engine_internal.h"

enum { POLL_MS = 100 };

static void
fail_all(Engine *e, llmc_status status, const char *text)
{
	for (EngineRequest *j = e->work; j; j = j->next)
		request_fail(e, j, status, text);
}

static void
fail_device(Engine *e, const llmc_error *err)
{
	pthread_mutex_lock(&e->lock);
	e->dead = *err;
	pthread_cond_broadcast(&e->any);
	pthread_mutex_unlock(&e->lock);
	if (e->log)
		e->log(e->log_user, LLMC_LOG_WARNING, err->text);
	fail_all(e, err->code, err->text);
}

/* Wait with the lock held. With several ranks, check from time to time that none has been lost. */
static void
wait_for_work(Engine *e)
{
	struct timespec until;
	llmc_error err;

	clock_after(&until, POLL_MS);
	if (!e->ranks || e->dead.code != LLMC_OK) {
		pthread_cond_wait(&e->wake, &e->lock);
	} else if (pthread_cond_timedwait(&e->wake, &e->lock, &until) != 0 &&
	           !session_check_ranks(e->session, &err)) {
		pthread_mutex_unlock(&e->lock);
		fail_device(e, &err);
		pthread_mutex_lock(&e->lock);
	}
}

void
engine_end_job(Engine *e, EngineRequest *j, llmc_finish finish)
{
	if (j->over)
		return;
	sched_cancel(e->sched, j->req);
	for (int32_t i = 0; i < j->best_of && !j->over; i++)
		if (!j->choice[i].done)
			request_finish(e, j, &j->choice[i], finish, NULL);
}

/* Accept new requests and end cancelled ones. False: the engine closes. */
static bool
drain_inbox(Engine *e)
{
	EngineRequest *fresh, **end = &e->work;

	pthread_mutex_lock(&e->lock);
	while (e->paused || (!e->inbox && !e->work && !e->stop && !e->idle_call))
		wait_for_work(e);
	if (e->idle_call && !e->work)
		engine_run_idle_call(e);
	bool stop = e->stop && !e->inbox && !e->work, cut = e->cut;
	const bool held = e->idle_call;
	fresh = held ? NULL : e->inbox;
	if (!held)
		e->inbox = e->inbox_last = NULL;
	cut |= held && e->idle_call->cut;
	while (*end)
		end = &(*end)->next;
	*end = fresh;
	if (e->n_cancel || cut)
		for (EngineRequest *j = e->work; j; j = j->next)
			/* only mark the requests that must end; they end after the lock is
			 * released */
			j->over = j->over || j->cancel || cut;
	e->n_cancel = held ? e->n_cancel : 0; /* the inbox may hold cancelled requests */
	pthread_mutex_unlock(&e->lock);
	if (stop)
		return false;
	for (EngineRequest *j = fresh; j; j = j->next) {
		e->now.requests++;
		histogram_count(&e->now.request_prompt, j->req->n_prompt);
		histogram_count(&e->now.request_max_new, j->req->max_new);
		histogram_count(&e->now.request_n, j->best_of);
		sched_submit(e->sched, j->req);
	}
	double now = clock_now();
	for (EngineRequest *j = e->work; j; j = j->next) {
		if (j->over) {
			j->over = false;
			engine_end_job(e, j, LLMC_FINISH_CANCEL);
		} else if (j->deadline > 0 && now >= j->deadline) {
			engine_end_job(e, j, LLMC_FINISH_DEADLINE);
		}
	}
	return true;
}

/* Sample for every n_parts-th choice, on thread `part` of the session's pool. */
static void
sample_part(void *user, int stage, int part, int n_parts)
{
	Engine *e = user;

	(void)stage;
	if (part >= e->n_scratch)
		return;
	n_parts = n_parts < e->n_scratch ? n_parts : e->n_scratch;
	for (int32_t i = part; i < e->n_sampled; i += n_parts) {
		SampledToken *p = &e->sampled[i];
		p->status =
		    sampler_sample(p->c->sampler, &e->scratch[part], p->logits, &p->id, &p->err);
		p->logprob = 0;
		p->n_top = 0;
		if (p->status != LLMC_OK || !p->job->logprobs)
			continue;
		p->n_top = p->job->n_top < (int32_t)e->plan->vocab ? p->job->n_top
		                                                   : (int32_t)e->plan->vocab;
		p->logprob =
		    sample_logprobs(p->logits, (int32_t)e->plan->vocab, p->id, p->top, p->n_top);
		if (p->job->pool_tok)
			p->n_top = sample_logprobs_of(p->logits, (int32_t)e->plan->vocab,
			                              p->job->pool_tok, p->job->n_pooled, p->top);
	}
}

static void
sample_all(Engine *e)
{
	if (e->n_sampled > 1 && e->session->threads)
		threads_deal(e->session->threads, DEAL_AS_BEFORE, 1, sample_part, e);
	else
		sample_part(e, 0, 0, 1);
}

/* Can the device sample every token of this step? If a sequence is new to the device, passes its
 * sampling parameters. */
static bool
can_sample_on_device(Engine *e, int32_t n)
{
	bool has_token = false;

	/* the device samples only one row per sequence, and the rows of a head are available
	 * only after a step that samples on the host */
	if (e->has_drafts || (e->is_head && n <= DRAFT_MAX_SEQS))
		return false;
	for (int32_t i = 0; i < n; i++) {
		const EngineRequest *j = e->sched->chunk_seq[i]->req->user;
		if (e->sched->chunk[i].n_out && !j->on_device)
			return false;
		has_token |= e->sched->chunk[i].n_out > 0;
	}
	for (int32_t i = 0; i < n && has_token; i++) {
		const SchedSeq *q = e->sched->chunk_seq[i];
		EngineRequest *j = q->req->user;
		RequestChoice *c = &j->choice[q->index];
		if (!e->sched->chunk[i].n_out ||
		    (c->device_n == c->n_new && c->device_preempted == q->n_preempted))
			continue;
		if (session_sample_params(e->session, q->q, &j->p,
		                          j->image_prompt ? j->image_prompt : q->tok,
		                          (size_t)q->req->n_prompt, q->tok + q->req->n_prompt,
		                          (size_t)c->n_new, NULL) != LLMC_OK)
			return false;
	}
	return has_token;
}

/* Return the sampler of chunk i if the chunk yields a token under a grammar, else NULL. */
static llmc_sampler *
constrained_choice(const Engine *e, int32_t i)
{
	const SchedSeq *q = e->sched->chunk_seq[i];
	const EngineRequest *j = q->req->user;
	llmc_sampler *s = j->choice[q->index].sampler;

	return e->sched->chunk[i].n_out && !j->pool && sampler_has_grammar(s) ? s : NULL;
}

/* Start to compute slow grammar masks while the step runs. */
static void
begin_masks(Engine *e, int32_t n)
{
	if (!e->masks)
		return;
	for (int32_t i = 0; i < n; i++) {
		llmc_sampler *s = constrained_choice(e, i);
		if (s && sampler_mask_is_slow(s))
			masks_add(e->masks, s);
	}
	masks_begin(e->masks);
}

/* Collect the image rows of chunks [from, from + n). NULL: no chunk has image rows. */
static const StepRows *
images_of(Engine *e, int32_t from, int32_t n)
{
	bool any = false;

	for (int32_t i = from; i < from + n; i++) {
		const SchedSeq *q = e->sched->chunk_seq[i];
		const EngineRequest *j = q->req->user;
		const int32_t n_tok = e->sched->chunk[i].n_tok;
		e->images[i] = (StepRows){ 0 };
		if (!j->image_row || q->n_done >= q->req->n_prompt)
			continue;
		e->images[i] = (StepRows){ .row = j->image_row, .at = j->image_at + q->n_done };
		for (int k = 0; k < 3 && j->rope_at; k++)
			e->images[i].pos[k] =
			    j->rope_at + k * ((int64_t)j->req->bound + 1) + q->n_done;
		any |= n_tok > 0;
	}
	return any ? e->images + from : NULL;
}

/* Compute the remaining masks while the device runs the step, then queue sampling. A choice whose
 * grammar allows no token fails alone; the token sampled for it is ignored. */
static llmc_status
queue_masked(Engine *e, int32_t n, llmc_error *err)
{
	int32_t at = 0;

	session_queue_images(e->session, images_of(e, 0, n));
	TRY(session_queue_rows(e->session, e->sched->chunk, (size_t)n, err));
	masks_end(e->masks, true);
	for (int32_t i = 0; i < n; i++) {
		llmc_sampler *s = constrained_choice(e, i);
		if (!e->sched->chunk[i].n_out)
			continue;
		e->mask[at] = NULL;
		if (s)
			(void)!sampler_mask(s, &e->mask[at], NULL);
		at++;
	}
	return session_queue_sample(e->session, e->mask, err) == LLMC_OK ? LLMC_OK : LLMC_E_DEVICE;
}

/* Inline engine only: queue the next step before the host has read the token that this step
 * samples, so that the device does not wait for the host. The device takes the sampled token as
 * input of the next step. If the request ends with this token, the queued step is dropped. Requires
 * an engine without a prefix cache: the KV cache has a position whose token is not known yet.
 * E_DEVICE: the device has failed. After any other error the next step is queued as usual. */
static llmc_status
queue_ahead(Engine *e, int32_t n, llmc_error *err)
{
	const SchedSeq *q = e->sched->chunk_seq[0];
	const EngineRequest *j = q->req->user;
	const llmc_chunk next = { .seq = q->q, .n_tok = 1, .n_out = 1 };

	if (!e->is_inline || n != 1 || !e->sched->chunk[0].n_out ||
	    j->choice[q->index].n_new + 1 >= j->req->max_new)
		return LLMC_OK;
	llmc_status status = session_queue_step(e->session, &next, 1, err);
	e->is_ahead = status == LLMC_OK;
	return status == LLMC_E_DEVICE ? status : LLMC_OK;
}

/* Run the step and sample on the device. E_RANGE: nothing ran; the caller uses the host path. */
static llmc_status
step_on_device(Engine *e, int32_t n, llmc_error *err)
{
	int32_t at = 0;
	bool masked = false;

	for (int32_t i = 0; i < n; i++)
		masked |= constrained_choice(e, i) != NULL;
	if (masked)
		TRY(queue_masked(e, n, err));
	else if (!e->is_ahead) {
		session_queue_images(e->session, images_of(e, 0, n));
		TRY(session_queue_step(e->session, e->sched->chunk, (size_t)n, err));
	}
	e->is_ahead = false;
	if (!masked)
		TRY(queue_ahead(e, n, err));
	llmc_status status = session_take_sampled(e->session, e->ids, e->logprobs, err);
	if (status != LLMC_OK && status != LLMC_E_CHECK)
		return LLMC_E_DEVICE;
	e->n_sampled = 0;
	for (int32_t i = 0; i < n; i++) {
		SchedSeq *q = e->sched->chunk_seq[i];
		EngineRequest *j = q->req->user;
		bool has_token = sched_chunk_done(e->sched, i);
		if (!e->sched->chunk[i].n_out)
			continue;
		SampledToken *p = &e->sampled[e->n_sampled];
		*p = (SampledToken){ .job = j,
			             .c = &j->choice[q->index],
			             .id = e->ids[at],
			             .logprob = j->logprobs ? e->logprobs[at] : 0 };
		at++;
		if (p->id < 0)
			p->status = error_set(&p->err, LLMC_E_CHECK, "%s",
			                      status == LLMC_E_CHECK && err->text[0]
			                          ? err->text
			                          : "no token can be sampled from these logits");
		else if (constrained_choice(e, i))
			p->status =
			    sampler_mask(p->c->sampler, &(const uint32_t *){ NULL }, &p->err);
		sampler_advance(p->c->sampler);
		p->c->device_n = p->c->n_new + 1;
		p->c->device_preempted = q->n_preempted;
		e->n_sampled += has_token;
	}
	return LLMC_OK;
}

/* Add draft tokens to a pure decode step. Their number follows from the measured times of earlier
 * steps. */
static void
draft_tokens(Engine *e, int32_t n)
{
	Draft *draft[DRAFT_MAX_SEQS];
	SchedSeq *seq[DRAFT_MAX_SEQS];
	int32_t chunk[DRAFT_MAX_SEQS], n_draft = 0, rows = sched_spare_rows(e->sched), again = -n;

	e->has_drafts = false;
	if (n > DRAFT_MAX_SEQS || rows < 1 || !e->speculate)
		return;
	for (int32_t i = 0; i < n; i++) {
		if (!sched_may_draft(e->sched, i))
			return;
		again += e->sched->chunk[i].n_tok;
	}
	for (int32_t i = 0; i < n; i++) {
		SchedSeq *q = e->sched->chunk_seq[i];
		EngineRequest *j = q->req->user;
		RequestChoice *c = &j->choice[q->index];
		if (!c->draft && j->speculate)
			c->draft = draft_new(q->req->n_prompt + q->req->max_new);
		if (!c->draft)
			continue;
		if (e->draft_fn) {
			c->draft->n = c->draft->run = e->draft_fn(
			    e->draft_fn_user, q->tok, q->n_tok, c->draft->tok, j->speculate);
		} else {
			int32_t left = q->req->bound - q->n_tok;
			draft_look_up(c->draft, &e->drafter, q->tok, q->n_tok,
			              left < j->speculate ? left : j->speculate);
		}
		chunk[n_draft] = i;
		seq[n_draft] = q;
		draft[n_draft++] = c->draft;
	}
	if (e->draft_session && !e->draft_fn)
		draft_model_propose(e, seq, draft, n_draft, n, again);
	if (!e->draft_fn)
		drafter_choose_length(&e->drafter, draft, n_draft, n, again, rows);
	for (int32_t k = 0; k < n_draft; k++) {
		if (draft[k]->run)
			draft[k]->run =
			    sched_add_drafts(e->sched, chunk[k], draft[k]->tok, draft[k]->run);
		e->has_drafts |= draft[k]->run > 0;
		e->now.drafts += draft[k]->run > 0;
		e->now.drafted += (uint64_t)draft[k]->run;
	}
}

/* Remove rejected draft tokens from the KV cache and record acceptance, after all sampled tokens of
 * the step are known. */
static void
commit_drafts(Engine *e, int32_t n)
{
	for (int32_t i = 0; i < n; i++) {
		SchedSeq *q = e->sched->chunk_seq[i];
		EngineRequest *j = q->req->user;
		Draft *d = j->choice[q->index].draft;
		int32_t from = e->n_tok_was[i], n_sampled_now = q->n_tok - from;
		int32_t right = 0;
		for (; d && right < d->n && right < n_sampled_now &&
		       d->tok[right] == q->tok[from + right];
		     right++)
			if (right < d->run) {
				e->now.accepted++;
				e->now.accepted_at[right]++;
			}
		if (e->draft_session)
			draft_model_commit(e, &j->choice[q->index], from + right);
		if (d)
			draft_update(d, &e->drafter, q->tok + from, n_sampled_now);
		sched_commit_drafts(e->sched, q);
		if (e->is_head && e->rows && n <= DRAFT_MAX_SEQS && j->speculate &&
		    q->state == SEQ_RUNNING) {
			int32_t at = (int32_t)(e->sched->chunk[i].tok - q->tok);
			int32_t certain = q->again ? q->n_tok - 1
			                           /* rows of accepted tokens are valid, even if the
			                            * tokens will run again */
			                           : q->n_done;
			mtp_rows_add(e, &j->choice[q->index], q, at, certain - at,
			             session_rows(e->session, (size_t)i));
		}
	}
}

static void
add_sample(Engine *e, EngineRequest *j, SchedSeq *c, const float *logits)
{
	SampledToken *p = &e->sampled[e->n_sampled++];

	p->job = j;
	p->c = &j->choice[c->index];
	p->logits = logits;
}

/* Handle the logits of a chunk that has run: prompt rows give log probabilities, the last row gives
 * the next token. */
static void
finish_chunk(Engine *e, int32_t i)
{
	SchedSeq *c = e->sched->chunk_seq[i];
	const llmc_chunk *k = &e->sched->chunk[i];
	const float *logits = e->row[i];
	EngineRequest *j = c->req->user;
	int32_t at = c->n_done;
	llmc_error err;

	if (c->state != SEQ_RUNNING) /* the request has failed because of another choice */
		return;
	bool has_token = sched_chunk_done(e->sched, i);
	if (j->pool) {
		request_rows(e, j, at, k->n_tok, logits, k->n_out);
		if (has_token)
			request_finish(e, j, &j->choice[0], LLMC_FINISH_LENGTH, NULL);
		return;
	}
	if (j->prompt_logprobs && k->n_out == k->n_tok && at < c->req->n_prompt &&
	    !request_prompt(e, j, at, k->n_tok, logits))
		return;
	if (!has_token)
		return;
	/* row of the last known token; rows of draft tokens follow it */
	const float *last =
	    logits + (size_t)(k->n_out - 1 - c->n_draft_tokens) * (size_t)plan_out_width(e->plan);
	add_sample(e, j, c, last);
	if (!sched_must_fork(c))
		return;
	if (sched_fork(e->sched, c->req, &err) != LLMC_OK) {
		request_fail(e, j, err.code, err.text);
		return;
	}
	for (int32_t n = 1; n < c->req->n_seq; n++)
		add_sample(e, j, &c->req->seq[n], last);
}

/* Append the sampled token to its choice. True: it equals the draft token, so the next row is valid
 * and has to be sampled. */
static bool
emit_token(Engine *e, const SampledToken *p)
{
	EngineRequest *j = p->job;
	llmc_finish finish;
	bool finished;

	if (j->over)
		return false;
	if (p->status != LLMC_OK) {
		request_fail(e, j, p->status, p->err.text);
		return false;
	}
	double now = clock_now();
	if (j->first <= 0) {
		j->first = now;
		histogram_seconds(&e->now.first_token_s, now - j->submitted);
		histogram_seconds(&e->now.prefill_s, now - j->started);
	} else if (p->c->n_new) {
		histogram_seconds(&e->now.inter_token_s, now - p->c->latest);
	}
	p->c->latest = now;
	if (!request_token(e, j, p->c, p, &finish, &finished))
		return false;
	if (!finished)
		return sched_push(e->sched, p->c->seq, p->id);
	request_finish(e, j, p->c, finish, p);
	return false;
}

/* Sample row after row: the next row of a choice is sampled only if its draft token was accepted,
 * with a sampler that has seen that token. */
static void
emit_sampled(Engine *e, bool sampled)
{
	for (int32_t left; e->n_sampled; e->n_sampled = left) {
		if (!sampled)
			sample_all(e);
		left = 0;
		for (int32_t i = 0; i < e->n_sampled; i++) {
			SampledToken *p = &e->sampled[i];
			if (!emit_token(e, p))
				continue;
			SampledToken *next = &e->sampled[left++];
			next->job = p->job;
			next->c = p->c;
			next->logits = p->logits + e->plan->vocab;
		}
	}
}

/* Run the step; row[i] becomes the address of the logits of chunk i. If the session refuses the
 * batch, run each chunk alone, so that only the faulty one fails. */
static llmc_status
forward(Engine *e, int32_t n, llmc_error *err)
{
	const llmc_chunk *c = e->sched->chunk;
	float *at = e->logits;

	for (int32_t i = 0; i < n; i++) {
		e->row[i] = at;
		at += (size_t)c[i].n_out * (size_t)plan_out_width(e->plan);
	}
	llmc_status status =
	    session_forward_images(e->session, c, (size_t)n, images_of(e, 0, n), e->logits, err);
	e->rows = status == LLMC_OK;
	if (status == LLMC_OK || status == LLMC_E_DEVICE)
		return status;
	for (int32_t i = 0; i < n; i++) {
		SchedReq *r = e->sched->chunk_seq[i]->req;
		if (e->sched->chunk_seq[i]->state != SEQ_RUNNING)
			continue;
		status = session_forward_images(e->session, &c[i], 1, images_of(e, i, 1), e->row[i],
		                                err);
		if (status == LLMC_E_DEVICE)
			return status;
		if (status != LLMC_OK)
			request_fail(e, r->user, status, err->text);
	}
	return LLMC_OK;
}

static void
record_starts(Engine *e)
{
	double now = clock_now();

	if (e->sched->n_started)
		histogram_count(&e->now.start_size, e->sched->n_started);
	for (EngineRequest *j = e->work; j; j = j->next)
		if (j->req->started && j->started <= 0 && !j->over) {
			j->started = now;
			histogram_seconds(&e->now.queue_s, now - j->submitted);
			e->now.prompt_tokens += (uint64_t)j->req->n_prompt;
		}
}

/* Record the size of the step that is about to run. */
static void
record_step(Engine *e, int32_t n)
{
	e->step_tokens = 0;
	e->is_prefill = false;
	for (int32_t i = 0; i < n; i++) {
		const SchedSeq *c = e->sched->chunk_seq[i];
		e->step_tokens += e->sched->chunk[i].n_tok;
		e->is_prefill |= c->n_done < c->req->n_prompt;
		e->n_tok_was[i] = c->n_tok;
	}
	e->now.batch_size = n;
}

static void
record_step_time(Engine *e, double took, double forward_s)
{
	e->now.steps++;
	e->now.prefill_steps += e->is_prefill;
	histogram_seconds(e->is_prefill ? &e->now.prefill_step_s : &e->now.decode_step_s, took);
	histogram_count(&e->now.step_tokens, e->step_tokens);
	e->now.last_step_s = took;
	if (!e->is_prefill && (e->has_drafts || e->step_tokens == e->now.batch_size))
		drafter_record_step(&e->drafter, e->step_tokens, e->has_drafts, forward_s);
	if (e->step_tokens >= 16)
		e->token_s += 0.25 * (took / e->step_tokens - e->token_s);
}

void
engine_update_stats(Engine *e)
{
	const Sched *s = e->sched;
	const Kv *kv = &e->session->kv;
	llmc_counts *c = &e->now;

	c->running = s->running.n;
	c->waiting = s->n_waiting;
	c->preempted = s->preempted.n;
	c->batch_max_tokens = s->total_tokens;
	c->kv_pages_total = kv->n_page;
	c->kv_pages_used = kv->n_page - kv->n_free;
	c->kv_pages_cached = kv_prefix_idle(kv);
	c->host_pages_total = kv->host.n;
	c->host_pages_used = kv_host_used(kv);
	c->host_out = kv->host.n_out * PLAN_KV_PAGE;
	c->host_in = kv->host.n_in * PLAN_KV_PAGE;
	c->swap_bytes_used = e->swap_used;
	c->prefix_queries = s->prefix_queries;
	c->prefix_hits = s->prefix_hits;
	session_prefix_counts(e->session, &c->prefix_read, &c->prefix_written, &c->prefix_wrong);
	c->preemptions = s->n_preempted;
	c->swaps_out = s->n_saved;
	c->swaps_in = s->n_loaded;
	if (!e->work)
		c->batch_size = 0;
}

/* Run the planned step of n chunks and emit its tokens. */
static void
run_step(Engine *e, int32_t n, double start)
{
	llmc_error err = { 0 };

	e->has_drafts = false;
	if (!e->is_ahead)
		draft_tokens(e, n);
	record_step(e, n);
	double drafted_at = clock_now();
	begin_masks(e, n);
	llmc_status status = can_sample_on_device(e, n) ? step_on_device(e, n, &err) : LLMC_E_RANGE;
	bool sampled = status == LLMC_OK;
	e->rows = false;
	if (!sampled && status != LLMC_E_DEVICE)
		status = forward(e, n, &err);
	masks_end(e->masks, false);
	if (status != LLMC_OK) {
		fail_device(e, &err);
		return;
	}
	double now = clock_now();
	record_step_time(e, now - start, now - drafted_at);
	if (!sampled) {
		e->n_sampled = 0;
		for (int32_t i = 0; i < n; i++)
			finish_chunk(e, i);
	}
	emit_sampled(e, sampled);
	commit_drafts(e, n);
}

bool
engine_step(Engine *e)
{
	if (e->dead.code != LLMC_OK) { /* only this thread writes it */
		fail_all(e, e->dead.code, e->dead.text);
		return true;
	}
	int32_t n = sched_plan(e->sched);
	record_starts(e);
	if (n == 0)
		return false;
	runtime_lock_processors(e->session->rt);
	run_step(e, n, clock_now());
	runtime_unlock_processors(e->session->rt);
	return true;
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
		wrong = "a sequence in use belongs to no running choice";
	if (!wrong && e->draft_session)
		wrong = kv_check(&e->draft_session->kv);
	for (const EngineRequest *j = e->work; !wrong && j; j = j->next)
		if (j->over != (j->req->n_open == 0))
			wrong = "a request is over with open choices, or not over without one";
	if (wrong) {
		llmc_error err;
		error_set(&err, LLMC_E_BUG, "the state of the engine is inconsistent: %s", wrong);
		fail_device(e, &err);
	}
}

void *
engine_run(void *user)
{
	Engine *e = user;

	while (drain_inbox(e)) {
		engine_step(e);
		if (e->draft_session)
			draft_model_sweep(e);
		if (e->check)
			check(e);
		engine_update_stats(e);
		events_flush(e);
	}
	return NULL;
}
