/* Requests of the scheduler: waiting and running ones, from submission to their end. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/scheduler_internal.h"

int64_t
sched_pages_of(int64_t n_tok)
{
	return (n_tok + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE;
}

SchedReq *
sched_req_new(const int32_t *prompt, int32_t n_prompt, int32_t max_new, int32_t n_seq)
{
	size_t room = (size_t)n_prompt + (size_t)max_new;
	SchedReq *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->seq = calloc((size_t)n_seq, sizeof *r->seq);
	int32_t *tok = calloc(room * (size_t)n_seq, sizeof *tok);
	if (!r->seq || !tok) {
		free(tok);
		free(r->seq);
		free(r);
		return NULL;
	}
	r->n_prompt = n_prompt;
	r->max_new = max_new;
	r->n_seq = r->n_open = n_seq;
	r->may_yield = true;
	r->bound = n_prompt + max_new - 1; /* one less: the last new token is never an input */
	for (int32_t i = 0; i < n_seq; i++) {
		r->seq[i] = (SchedSeq){
			.req = r, .index = i, .q = -1, .at = -1, .tok = tok + room * (size_t)i
		};
		memcpy(r->seq[i].tok, prompt, (size_t)n_prompt * sizeof *prompt);
		r->seq[i].n_tok = n_prompt;
	}
	return r;
}

void
sched_req_free(SchedReq *r)
{
	if (!r)
		return;
	free(r->seq[0].tok);
	free(r->seq);
	free(r);
}

int64_t
sched_cost(const SchedReq *r)
{
	return r->n_prompt + (int64_t)r->max_new * r->n_seq;
}

const char *
sched_reject_reason(const SchedLimits *lim, const SchedReq *r)
{
	if (r->n_seq > lim->seqs)
		return "it has more choices than sequences may run at once (seqs)";
	if (sched_pages_of(r->bound) > lim->pages)
		return "prompt and new tokens do not fit the KV cache (kv_tokens)";
	if (lim->total_tokens && sched_cost(r) > lim->total_tokens)
		return "prompt and new tokens are more than max_batch_total_tokens";
	if (lim->prompt_whole && r->n_prompt > lim->chunk)
		return "this model processes its prompt in one chunk, and the prompt is "
		       "longer than a step (chunk)";
	for (int32_t i = 0, run = 0; r->image_at && i < r->n_prompt; i++) {
		run = r->image_at[i] >= 0 ? run + 1 : 0;
		if (run > lim->chunk)
			return "this model processes an image in one chunk, and the image is "
			       "longer than a step (chunk)";
	}
	if (lim->prompt_whole && r->prompt_rows && r->n_prompt > lim->n_out)
		return "this model processes its prompt in one chunk, and a step has "
		       "fewer rows of logits (n_out)";
	return NULL;
}

bool
sched_before(const SchedReq *a, const SchedReq *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->order < b->order;
}

bool
sched_older(const SchedSeq *a, const SchedSeq *b)
{
	if (a->req->priority != b->req->priority)
		return a->req->priority < b->req->priority;
	return a->age != b->age ? a->age < b->age : a->index < b->index;
}

void
sched_enqueue(SchedQueue *u, SchedSeq *c)
{
	SchedSeq *before = u->youngest;

	while (before && sched_older(c, before))
		before = before->older;
	c->older = before;
	c->younger = before ? before->younger : u->oldest;
	*(c->older ? &c->older->younger : &u->oldest) = c;
	*(c->younger ? &c->younger->older : &u->youngest) = c;
	u->n++;
}

void
sched_dequeue(SchedQueue *u, SchedSeq *c)
{
	*(c->older ? &c->older->younger : &u->oldest) = c->younger;
	*(c->younger ? &c->younger->older : &u->youngest) = c->older;
	c->older = c->younger = NULL;
	u->n--;
}

int32_t
sched_reserve(const SchedReq *r)
{
	return r->forked ? 0 : r->n_seq - 1;
}

llmc_status
sched_open(const SchedLimits *lim, const SchedOps *ops, Sched **out, llmc_error *err)
{
	Sched *s = *out = calloc(1, sizeof *s);
	size_t n = (size_t)lim->seqs + 1;

	if (s) {
		s->lim = *lim;
		s->ops = *ops;
		s->chunk = calloc(n, sizeof *s->chunk);
		s->chunk_seq = calloc(n, sizeof *s->chunk_seq);
		s->q = calloc(n, sizeof *s->q);
		s->add = calloc(n, sizeof *s->add);
	}
	if (s && s->chunk && s->chunk_seq && s->q && s->add)
		return LLMC_OK;
	sched_close(s);
	*out = NULL;
	return error_set(err, LLMC_E_MEMORY, "out of memory for the scheduler");
}

void
sched_close(Sched *s)
{
	if (!s)
		return;
	for (SchedClient *c = s->client, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	free(s->chunk);
	free(s->chunk_seq);
	free(s->q);
	free(s->add);
	free(s);
}

void
sched_submit(Sched *s, SchedReq *r)
{
	SchedReq **at = &s->first;

	r->order = ++s->n_order;
	if (s->last && sched_before(s->last, r)) /* the usual case: append */
		at = &s->last->next;
	while (*at && sched_before(*at, r))
		at = &(*at)->next;
	r->next = *at;
	*at = r;
	s->last = r->next ? s->last : r;
	s->n_waiting++;
	sched_client_add(s, r);
}

void
sched_unwait(Sched *s, SchedReq *r)
{
	SchedReq **at = &s->first, *before = NULL;

	while (*at && *at != r) {
		before = *at;
		at = &before->next;
	}
	if (!*at)
		return;
	*at = r->next;
	s->last = r->next ? s->last : before;
	s->n_waiting--;
	s->n_turns -= --r->of->n_waiting == 0;
}

void
sched_set_yielded(Sched *s, SchedSeq *c, bool yielded)
{
	s->n_yielded += (int)yielded - (int)c->yielded;
	c->yielded = yielded;
}

static void
sched_remove_chunk(Sched *s, SchedSeq *c)
{
	if (c->at < 0)
		return;
	int32_t last = --s->n_chunk;
	s->chunk[c->at] = s->chunk[last];
	s->chunk_seq[c->at] = s->chunk_seq[last];
	s->q[c->at] = s->q[last];
	s->add[c->at] = s->add[last];
	s->chunk_seq[c->at]->at = c->at;
	c->at = -1;
}

/* Free the sequence of a running choice and remove the choice from the step. */
static void
sched_stop(Sched *s, SchedSeq *c)
{
	sched_remove_chunk(s, c);
	sched_dequeue(&s->running, c);
	s->reserved -= sched_reserve(c->req);
	c->req->of->n_held -= 1 + sched_reserve(c->req);
	s->ops.seq_free(s->ops.user, c->q);
	c->q = -1;
	c->n_draft_tokens = 0;
	c->marked = c->again = false;
}

void
sched_preempt(Sched *s, SchedSeq *c)
{
	c->saved = c->n_done ? s->ops.save(s->ops.user, c->q, c->n_done) : NULL;
	c->n_saved = c->saved ? c->n_done : 0;
	sched_stop(s, c);
	c->n_done = 0;
	c->n_preempted++;
	c->state = SEQ_PREEMPTED;
	sched_enqueue(&s->preempted, c);
	s->n_preempted++;
	s->n_saved += c->saved != NULL;
}

static void
sched_done(Sched *s, SchedSeq *c)
{
	if (c->state == SEQ_RUNNING) {
		sched_stop(s, c);
	} else if (c->state == SEQ_PREEMPTED) {
		sched_dequeue(&s->preempted, c);
		sched_set_yielded(s, c, false);
		if (c->saved)
			s->ops.drop(s->ops.user, c->saved);
		c->saved = NULL;
	}
	if (c->state != SEQ_DONE && --c->req->n_open == 0) {
		s->total_tokens -= c->req->started ? sched_cost(c->req) : 0;
		sched_client_remove(s, c->req);
	}
	c->state = SEQ_DONE;
}

void
sched_rollback(Sched *s, SchedSeq *c, int32_t certain)
{
	const int32_t held = c->n_done + c->n_draft_tokens;

	if (c->state != SEQ_RUNNING)
		return;
	c->again = s->lim.states && certain < held && c->n_draft_tokens;
	if (c->n_draft_tokens) {
		c->n_done = c->again ? c->mark : certain < held ? certain : held;
		c->n_draft_tokens = 0;
		if (c->n_done < held)
			s->ops.seq_trim(s->ops.user, c->q, c->n_done);
		if (!s->lim.no_prefix)
			s->ops.prefix_keep(s->ops.user, c->q, c->tok);
	}
	if (c->marked && !c->again)
		c->marked = s->ops.seq_mark(s->ops.user, c->q, false);
}

void
sched_finish(Sched *s, SchedSeq *c)
{
	sched_rollback(s, c, c->n_tok);
	sched_done(s, c);
}

void
sched_cancel(Sched *s, SchedReq *r)
{
	if (!r->started)
		sched_unwait(s, r);
	for (int32_t i = 0; i < r->n_seq; i++)
		sched_done(s, &r->seq[i]);
}
