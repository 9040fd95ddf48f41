/* See scheduler.h. */
#include <math.h>
#include <string.h>

#include "plan/plan.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/scheduler_internal.h"

typedef struct StepBudget {
	int32_t tokens, prefill, rows;
} StepBudget;

static int64_t
pages_left(Sched *s)
{
	return s->ops.pages_free(s->ops.user) -
	       (s->n_chunk ? s->ops.pages_need(s->ops.user, s->q, s->add, (size_t)s->n_chunk) : 0);
}

/* Number of rows of logits that a chunk of n tokens needs. */
static int32_t
rows_of(const SchedSeq *c, int32_t n)
{
	int32_t end = c->n_done + n, rows = end == c->n_tok;

	/* not for a prompt that is recomputed after preemption: its rows have been reported */
	if (c->req->prompt_rows && c->n_tok == c->req->n_prompt && !c->req->forked)
		rows = n;
	return rows;
}

static void
add_chunk(Sched *s, SchedSeq *c, int32_t n)
{
	c->at = s->n_chunk;
	s->chunk_seq[c->at] = c;
	s->chunk[c->at] = (llmc_chunk){
		.seq = c->q, .tok = c->tok + c->n_done, .n_tok = n, .n_out = rows_of(c, n)
	};
	s->q[c->at] = c->q;
	s->add[c->at] = n;
	s->n_chunk++;
}

static void
consume_budget(StepBudget *b, const SchedSeq *c, int32_t n, bool prefill)
{
	b->tokens -= n;
	b->rows -= rows_of(c, n);
	b->prefill -= prefill ? n : 0;
}

static bool
is_here(Sched *s, const SchedSeq *c)
{
	return s->only_waiting || s->ops.here(s->ops.user, c->q);
}

/* Preempt a choice and give its rows back to the step's budget. */
static void
evict(Sched *s, SchedSeq *out, StepBudget *b)
{
	if (out->at >= 0) {
		b->tokens += s->add[out->at];
		b->rows += s->chunk[out->at].n_out;
		b->prefill += out->n_done && (out->n_tok - out->n_done == 1 || out->again)
		                  ? 0
		                  : s->add[out->at];
	}
	sched_preempt(s, out);
}

static void
evict_youngest(Sched *s, StepBudget *b)
{
	evict(s, s->running.youngest, b);
}

/* Add decode chunks, oldest first: choices with one new token, or with accepted tokens that run
 * again. If pages run out, younger choices are preempted. */
static void
plan_decode(Sched *s, StepBudget *b)
{
	for (SchedSeq *c = s->running.oldest, *next; c; c = next) {
		const int32_t n = c->n_tok - c->n_done;
		if (c->at < 0 && (n == 1 || c->again) && c->n_done && b->tokens >= n &&
		    b->rows > 0 && is_here(s, c)) {
			add_chunk(s, c, n);
			while (pages_left(s) < 0 && s->running.youngest != c)
				evict_youngest(s, b);
			if (pages_left(s) < 0)
				/* c itself is the youngest: older choices hold the pages */
				sched_preempt(s, c);
			else
				consume_budget(b, c, n, false);
		}
		next = c->state == SEQ_RUNNING ? c->younger : NULL;
	}
}

/* Return n if a chunk of n tokens, which runs as a whole, fits the step; 0: it waits for the next
 * one. Two things must not block such a chunk forever. A prefill budget smaller than the chunk does
 * not apply to it. If decode, which comes first, leaves no space for it, the oldest such chunk
 * precedes decode in the next step. */
static int32_t
whole_chunk(const Sched *s, SchedSeq *c, const StepBudget *b, int32_t n)
{
	const bool alone = b->prefill == s->lim.prefill,
	           fits = n <= b->tokens && (n <= b->prefill || alone) && rows_of(c, n) <= b->rows;

	c->blocked = !fits && alone;
	return fits ? n : 0;
}

/* Limit a chunk of n tokens to one image or to the tokens before the next one. */
static int32_t
whole_image(const Sched *s, SchedSeq *c, const StepBudget *b, int32_t n)
{
	const int32_t *at = c->req->image_at + c->n_done, most = c->req->n_prompt - c->n_done;
	int32_t run = 1;

	if (most < 1)
		return n;
	const int32_t end = at[0] < 0 && n < most ? n : most;
	while (run < end && (at[run] >= 0) == (at[0] >= 0))
		run++;
	if (at[0] < 0)
		return run < end ? run : n;
	return whole_chunk(s, c, b, run);
}

/* Return the number of tokens of the next prompt chunk within the budgets; 0: none in this step. */
static int32_t
chunk_size(Sched *s, SchedSeq *c, const StepBudget *b)
{
	int32_t n = c->n_tok - c->n_done, most = b->tokens < b->prefill ? b->tokens : b->prefill;

	if (s->lim.prompt_whole && c->n_done == 0)
		return whole_chunk(s, c, b, c->req->n_prompt);
	n = n < most ? n : most;
	/* logits of all prompt rows may be wanted, or only of the last one */
	if (n > 0 && rows_of(c, n) > b->rows)
		n = rows_of(c, n) == n ? b->rows : n - 1;
	if (s->lim.page_aligned) {
		int32_t boundary = (c->n_tok - 1) / PLAN_KV_PAGE * PLAN_KV_PAGE,
		        cut = (c->n_done + n) / PLAN_KV_PAGE * PLAN_KV_PAGE;
		if (!s->lim.no_prefix && c->n_done < boundary && c->n_done + n > boundary)
			n = boundary - c->n_done;
		else if (c->n_done + n < c->n_tok && c->n_done < cut)
			n = cut - c->n_done;
		/* less than a page is left for another prompt: it waits for the next step */
		else if (c->n_done + n < c->n_tok && b->prefill < s->lim.prefill &&
		         !s->only_waiting)
			n = 0;
	}
	n = n > 0 ? n : 0;
	return c->req->image_at ? whole_image(s, c, b, n) : n;
}

/* Add a prompt chunk: preempt younger choices for its pages, then shorten it to the free pages. */
static void
plan_chunk(Sched *s, SchedSeq *c, StepBudget *b)
{
	int32_t n = chunk_size(s, c, b);

	if (n == 0 || !is_here(s, c))
		return;
	while (pages_left(s) < sched_pages_of(c->n_done + n) - sched_pages_of(c->n_done)) {
		if (s->running.youngest != c) {
			evict_youngest(s, b);
			continue;
		}
		int64_t room =
		    (sched_pages_of(c->n_done) + pages_left(s)) * PLAN_KV_PAGE - c->n_done;
		if (room < 1 || s->lim.prompt_whole ||
		    (c->req->image_at && c->n_done < c->req->n_prompt &&
		     c->req->image_at[c->n_done] >= 0))
			return;
		n = room < n ? (int32_t)room : n;
		break;
	}
	/* a shortened chunk may need fewer logits, so add_chunk counts them again */
	add_chunk(s, c, n);
	consume_budget(b, c, n, true);
}

/* Add the oldest chunk that decode left no space for. */
static void
plan_blocked(Sched *s, StepBudget *b)
{
	for (SchedSeq *c = s->running.oldest; c; c = c->younger)
		if (c->blocked) {
			plan_chunk(s, c, b);
			return;
		}
}

static void
plan_prefill(Sched *s, StepBudget *b)
{
	for (SchedSeq *c = s->running.oldest, *next; c; c = next) {
		if (c->at < 0 && c->n_tok > c->n_done &&
		    (c->n_tok - c->n_done > 1 || c->n_done == 0) && b->tokens > 0 && b->prefill > 0)
			plan_chunk(s, c, b);
		next = c->younger;
	}
}

/* Number of pages that running choices still need for their known tokens, plus one per choice to
 * continue. */
static int64_t
pages_promised(const Sched *s)
{
	int64_t n = 0;

	for (const SchedSeq *c = s->running.oldest; c; c = c->younger)
		n += sched_pages_of(c->n_tok) -
		     sched_pages_of(c->at >= 0 ? c->n_done + s->add[c->at] : c->n_done) + 1;
	return n;
}

static bool
has_free_sequence(const Sched *s, int32_t n_seq)
{
	return s->running.n + s->reserved + n_seq <= s->lim.seqs;
}

static void
run(Sched *s, SchedSeq *c, llmc_seq q, int32_t n_done)
{
	c->q = q;
	c->n_done = n_done;
	c->state = SEQ_RUNNING;
	c->blocked = false;
	s->reserved += sched_reserve(c->req);
	c->req->of->n_held += 1 + sched_reserve(c->req);
	sched_enqueue(&s->running, c);
}

/* Open a sequence for a choice, with its saved KV or cached prefix, if all its tokens will fit the
 * free pages. */
static bool
open_sequence(Sched *s, SchedSeq *c, bool prefix)
{
	int64_t room = pages_left(s) - (s->running.n ? pages_promised(s) + 1 : 0);
	int32_t found = 0;
	llmc_seq q;

	if (c->saved) {
		if (room < sched_pages_of(c->n_tok) || !s->ops.load(s->ops.user, c->saved, &q))
			return false;
		c->saved = NULL;
		found = c->n_saved;
		s->n_loaded++;
	} else {
		int64_t before = s->ops.pages_free(s->ops.user);
		if (s->ops.seq_new(s->ops.user, c->req, &q, NULL) != LLMC_OK)
			return false;
		if (prefix)
			found = s->ops.prefix_find(s->ops.user, q, c->tok, c->n_tok);
		/* subtract found pages that were idle and are in use now */
		room -= before - s->ops.pages_free(s->ops.user);
		if (room < sched_pages_of(c->n_tok) - found / PLAN_KV_PAGE) {
			s->ops.seq_free(s->ops.user, q);
			return false;
		}
	}
	run(s, c, q, found);
	return true;
}

static bool
use_prefix(const Sched *s, const SchedSeq *c)
{
	return !s->lim.no_prefix && !s->lim.prompt_whole && rows_of(c, 2) < 2;
}

static bool
may_start(const Sched *s)
{
	if (s->running.n == 0 || s->lim.waiting_ratio <= 0)
		return true;
	return (double)s->n_waiting >= floor((double)s->running.n * (double)s->lim.waiting_ratio) ||
	       s->steps_since_start >= s->lim.max_waiting_steps;
}

/* Does the request fit total_tokens, together with all started requests? Preempted requests
 * count. */
static bool
has_tokens(const Sched *s, const SchedReq *r)
{
	return !s->lim.total_tokens || s->total_tokens + sched_cost(r) <= s->lim.total_tokens;
}

/* Has another prompt left less than a page of the step, and less than the n tokens of this
 * prompt? */
static bool
is_partial_page(const Sched *s, const StepBudget *b, int32_t n)
{
	int32_t left = b->tokens < b->prefill ? b->tokens : b->prefill;

	return s->lim.page_aligned && b->prefill < s->lim.prefill && left < PLAN_KV_PAGE &&
	       n > left;
}

/* Open the sequence of a request. Choices of a worse priority, or of a client that runs more, may
 * lose theirs. */
static bool
open_request(Sched *s, SchedReq *r, StepBudget *b)
{
	SchedSeq *c = &r->seq[0];

	for (;;) {
		bool fits = has_free_sequence(s, r->n_seq);
		if (fits && open_sequence(s, c, use_prefix(s, c)))
			return true;
		if (s->running.n && s->running.youngest->req->priority > r->priority) {
			evict_youngest(s, b);
			continue;
		}
		/* only for a sequence, not for pages, which may not suffice: the choice would
		 * resume and yield again in each step */
		SchedSeq *out = fits || !r->may_yield ? NULL : sched_yields_to(s, r);
		if (!out) {
			r->may_yield &= !fits;
			return false;
		}
		out->age = ++s->n_age;
		evict(s, out, b);
		sched_set_yielded(s, out, true);
	}
}

/* May a waiting request start before the oldest preempted choice resumes? It would preempt that
 * choice again, or take its sequence. */
static bool
precedes_preempted(const Sched *s, const SchedReq *r)
{
	const SchedSeq *c = s->preempted.oldest;

	return !c || r->priority < c->req->priority ||
	       (s->n_yielded == s->preempted.n && sched_would_yield(c, r));
}

static void
start(Sched *s, StepBudget *b)
{
	while (s->first && b->tokens > 0 && b->prefill > 0) {
		SchedReq *r = sched_next(s);
		SchedSeq *c = &r->seq[0];
		if (!precedes_preempted(s, r))
			return;
		if (!has_tokens(s, r) || is_partial_page(s, b, r->n_prompt))
			return;
		s->n_age++;
		for (int32_t i = 0; i < r->n_seq; i++)
			r->seq[i].age = s->n_age;
		if (!open_request(s, r, b))
			return;
		/* choices that yielded stay younger than all that run */
		if (s->n_yielded == s->preempted.n)
			for (SchedSeq *y = s->preempted.oldest; y; y = y->younger)
				y->age = ++s->n_age;
		sched_unwait(s, r);
		r->started = true;
		r->n_cached = c->n_done;
		s->total_tokens += sched_cost(r);
		sched_client_charge(s, r, r->n_prompt - c->n_done);
		s->prefix_queries += use_prefix(s, c) ? (uint64_t)r->n_prompt : 0;
		s->prefix_hits += (uint64_t)c->n_done;
		s->n_started++;
		plan_chunk(s, c, b);
	}
}

static void
resume(Sched *s, StepBudget *b)
{
	/* no choice that resumes changes it */
	const SchedReq *r = s->preempted.oldest ? sched_next(s) : NULL;

	while (s->preempted.oldest && b->tokens > 0) {
		SchedSeq *c = s->preempted.oldest;
		/* a request that waits for total_tokens cannot start before this choice has ended
		 */
		if (r && precedes_preempted(s, r) && has_tokens(s, r))
			return;
		if ((b->prefill < 1 || is_partial_page(s, b, c->n_tok)) && !c->saved)
			return;
		if (!has_free_sequence(s, 1 + sched_reserve(c->req)))
			return;
		sched_dequeue(&s->preempted, c);
		if (!open_sequence(s, c, use_prefix(s, c))) {
			sched_enqueue(&s->preempted, c);
			return;
		}
		sched_set_yielded(s, c, false);
		if (b->rows > 0 && b->prefill > 0) /* else in the next step */
			plan_chunk(s, c, b);
	}
}

int32_t
sched_plan(Sched *s)
{
	StepBudget b = { .tokens = s->lim.chunk, .prefill = s->lim.prefill, .rows = s->lim.n_out };
	uint64_t preempted = s->n_preempted;

	s->n_chunk = s->n_started = 0;
	plan_blocked(s, &b);
	plan_decode(s, &b);
	plan_prefill(s, &b);
	/* a choice preempted in this step cannot resume in it, and nothing younger can start */
	if (s->n_preempted == preempted)
		resume(s, &b);
	if (may_start(s))
		start(s, &b);
	if (s->n_chunk == 0 && s->running.n) {
		s->only_waiting = true;
		plan_decode(s, &b);
		plan_prefill(s, &b);
		s->only_waiting = false;
	}
	s->steps_since_start = s->n_started ? 0 : s->steps_since_start + 1;
	for (int32_t i = 0; i < s->n_chunk; i++) /* a later cancellation does not change the step */
		s->chunk_seq[i]->at = -1;
	return s->n_chunk;
}

bool
sched_may_draft(const Sched *s, int32_t i)
{
	const SchedSeq *c = s->chunk_seq[i];

	return (s->chunk[i].n_tok == 1 || c->again) && s->chunk[i].n_out == 1 && c->n_done &&
	       c->req->forked;
}

int32_t
sched_spare_rows(const Sched *s)
{
	int32_t tokens = s->lim.chunk, rows = s->lim.n_out;

	for (int32_t i = 0; i < s->n_chunk; i++) {
		tokens -= s->chunk[i].n_tok;
		rows -= s->chunk[i].n_out;
	}
	return tokens < rows ? tokens : rows;
}

int32_t
sched_add_drafts(Sched *s, int32_t i, const int32_t *tok, int32_t n)
{
	SchedSeq *c = s->chunk_seq[i];
	const int32_t own = s->chunk[i].n_tok;
	int32_t room = c->req->bound - c->n_tok,
	        /* one row less: the last new token is never an input */
	    spare = sched_spare_rows(s);

	n = n < room ? n : room;
	n = n < spare ? n : spare;
	if (s->lim.draft_rows_max) {
		const int32_t most =
		    s->lim.draft_rows_max < c->n_done ? s->lim.draft_rows_max : c->n_done;
		n = n < most - own ? n : most - own;
	}
	for (; n > 0; n--) {
		s->add[i] = own + n;
		if (pages_left(s) >= 0)
			break;
	}
	if (n > 0 && s->lim.states && !c->marked) {
		c->marked = s->ops.seq_mark(s->ops.user, c->q, true);
		c->mark = c->n_done;
	}
	if (n <= 0 || (s->lim.states && !c->marked)) {
		s->add[i] = own;
		return 0;
	}
	memcpy(c->tok + c->n_tok, tok, (size_t)n * sizeof *tok);
	s->chunk[i].n_tok = own + n;
	s->chunk[i].n_out = 1 + n;
	return c->n_draft_tokens = n;
}

bool
sched_chunk_done(Sched *s, int32_t i)
{
	SchedSeq *c = s->chunk_seq[i];

	c->n_done += s->chunk[i].n_tok - c->n_draft_tokens;
	if (!s->lim.no_prefix && !c->n_draft_tokens)
		s->ops.prefix_keep(s->ops.user, c->q, c->tok);
	return c->n_done == c->n_tok;
}

void
sched_commit_drafts(Sched *s, SchedSeq *c)
{
	sched_rollback(s, c, c->n_tok - 1); /* the last token is not in the KV cache yet */
}

bool
sched_must_fork(const SchedSeq *c)
{
	return !c->req->forked && c->req->n_seq > 1;
}

llmc_status
sched_fork(Sched *s, SchedReq *r, llmc_error *err)
{
	const SchedSeq *from = &r->seq[0];

	s->reserved -= sched_reserve(r);
	r->of->n_held -= sched_reserve(r);
	r->forked = true;
	for (int32_t i = 1; i < r->n_seq; i++) {
		llmc_seq q;
		TRY(s->ops.seq_fork(s->ops.user, from->q, &q, err));
		run(s, &r->seq[i], q, from->n_done);
	}
	return LLMC_OK;
}

bool
sched_push(Sched *s, SchedSeq *c, int32_t id)
{
	bool accepted = c->n_tok < c->n_done + c->n_draft_tokens && c->tok[c->n_tok] == id;

	sched_client_charge(s, c->req, 1);
	c->req->forked = true; /* the prompt has produced its first token */
	c->tok[c->n_tok++] = id;
	return accepted;
}

static const char *
check_queue(const SchedQueue *u, SchedState state)
{
	int32_t n = 0;

	for (const SchedSeq *c = u->oldest, *before = NULL; c; before = c, c = c->younger, n++) {
		if (c->older != before || (before && !sched_older(before, c)))
			return "a queue is not in order of age";
		if (c->state != state || (c->q >= 0) != (state == SEQ_RUNNING))
			return "a choice is in the queue of another state";
		if (!c->req->started || c->n_done > c->n_tok ||
		    c->n_tok > c->req->n_prompt + c->req->max_new)
			return "a choice has impossible counts";
		if (c->saved && state == SEQ_RUNNING)
			return "a running choice has saved KV";
		if (n > u->n)
			break;
	}
	return n != u->n ? "the length of a queue is wrong" : NULL;
}

const char *
sched_check(const Sched *s)
{
	const char *wrong = check_queue(&s->running, SEQ_RUNNING);
	int32_t n = 0, reserved = 0;

	if (!wrong)
		wrong = check_queue(&s->preempted, SEQ_PREEMPTED);
	if (wrong)
		return wrong;
	if (s->running.n && s->preempted.n && sched_older(s->preempted.oldest, s->running.youngest))
		return "a younger choice runs while an older one is preempted";
	for (const SchedReq *r = s->first, *before = NULL; r; before = r, r = r->next, n++) {
		if (r->started || (before && !sched_before(before, r)))
			return "the waiting requests are not in order";
		if (n > s->n_waiting || (!r->next && r != s->last))
			return "the list of waiting requests is broken";
	}
	if (n != s->n_waiting || !s->first != !s->n_waiting)
		return "the number of waiting requests is wrong";
	for (const SchedSeq *c = s->running.oldest; c; c = c->younger)
		reserved += sched_reserve(c->req);
	int32_t waiting = s->spare_client.n_waiting, held = s->spare_client.n_held, yielded = 0,
	        turns = waiting > 0;
	for (const SchedSeq *c = s->preempted.oldest; c; c = c->younger)
		yielded += c->yielded;
	if (yielded != s->n_yielded)
		return "the number of choices that yielded is wrong";
	for (const SchedClient *t = s->client; t; t = t->next) {
		if (t->n_req < 1 || t->n_waiting < 0 || t->n_held < 0)
			return "a client has impossible counts";
		waiting += t->n_waiting;
		turns += t->n_waiting > 0;
		held += t->n_held;
	}
	if (waiting != s->n_waiting || turns != s->n_turns || held != s->running.n + s->reserved)
		return "the counts of clients are wrong";
	if (reserved != s->reserved || s->running.n + s->reserved > s->lim.seqs)
		return "more sequences are reserved than exist";
	return NULL;
}
