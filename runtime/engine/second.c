/* Guesses of a second, smaller model of the same tokenizer. It has a session of its own, with a sequence for each text that it follows; one
 * step of it for all texts makes one more guess of each, the likeliest token. What it says decides about time alone. */
#include "runtime/engine/inside.h"

static void
drop(Engine *e, JobChoice *c)
{
	if (c->second >= 0)
		session_seq_free(e->second, c->second);
	c->second = -1;
}

/* Its sequence, with all of the text but the last tokens, which fit a step. False: not in this step. */
static bool
caught_up(Engine *e, JobChoice *c, const SchedSeq *q)
{
	const llmc_limits *lim = session_limits_of(e->second);
	llmc_error err;

	if (c->second < 0) {
		int32_t bound = q->req->bound < lim->context ? q->req->bound : lim->context;
		if (session_seq_new(e->second, bound, &c->second, &err) != LLMC_OK) {
			c->second = -1;
			return false;
		}
		session_prefix_find(e->second, c->second, q->tok, q->n_tok);
	}
	int32_t len = session_seq_len(e->second, c->second), left = q->n_tok - len;
	if (left <= e->second_chunk)
		return true;
	llmc_chunk k = { .seq = c->second, .tok = q->tok + len, .n_tok = e->second_chunk };
	if (session_forward(e->second, &k, 1, NULL, &err) != LLMC_OK)
		drop(e, c);
	else
		session_prefix_keep(e->second, c->second, q->tok);
	return false;
}

/* One more guess of each; false: it cannot go on. */
static bool
one_more(Engine *e, llmc_chunk *chunk, Draft *const *d, int32_t n, int32_t at)
{
	int32_t vocab = (int32_t)e->second->plan->vocab, most = (int32_t)e->plan->vocab;
	double start = clock_now();
	llmc_error err;

	if (session_forward(e->second, chunk, (size_t)n, e->second_logits, &err) != LLMC_OK)
		return false;
	if (at) /* the first reads what it has missed */
		drafter_model_measured(&e->drafter, clock_now() - start);
	for (int32_t i = 0; i < n; i++) {
		if (sample_largest(e->second_logits + (size_t)i * (size_t)vocab, vocab, &d[i]->tok[at], &err) != LLMC_OK || d[i]->tok[at] >= most)
			return false;
		chunk[i] = (llmc_chunk){ .seq = chunk[i].seq, .tok = &d[i]->tok[at], .n_tok = 1, .n_out = 1 };
	}
	return true;
}

void
second_guess(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t texts)
{
	const llmc_limits *lim = session_limits_of(e->second);
	llmc_chunk chunk[DRAFT_TEXTS];
	Draft *own[DRAFT_TEXTS];
	SchedSeq *of[DRAFT_TEXTS];
	int32_t n_own = 0, most = e->speculate, tokens = 0;

	for (int32_t i = 0; i < n; i++) {
		Job *j = q[i]->req->user;
		JobChoice *c = &j->choice[q[i]->index];
		int32_t room = q[i]->req->bound - q[i]->n_tok, second_room = lim->context - q[i]->n_tok;
		room = room < second_room ? room : second_room;
		room = room < j->speculate ? room : j->speculate;
		if (d[i]->n && d[i]->odds_at[0] >= SURE) /* what followed before is as good, and free */
			continue;
		if (room < 1 || n_own == lim->n_out || !caught_up(e, c, q[i]))
			continue;
		int32_t len = session_seq_len(e->second, c->second);
		if (tokens + q[i]->n_tok - len > lim->chunk)
			continue;
		tokens += q[i]->n_tok - len;
		most = most < room ? most : room;
		chunk[n_own] = (llmc_chunk){ .seq = c->second, .tok = q[i]->tok + len, .n_tok = q[i]->n_tok - len, .n_out = 1 };
		of[n_own] = q[i];
		own[n_own++] = d[i];
	}
	most = draft_model_most(&e->drafter, own, n_own, texts, most);
	for (int32_t k = 0; k < most; k++) {
		if (!one_more(e, chunk, own, n_own, k)) {
			for (int32_t i = 0; i < n_own; i++) {
				Job *j = of[i]->req->user;
				own[i]->n = 0;
				drop(e, &j->choice[of[i]->index]);
			}
			return;
		}
		for (int32_t i = 0; k == 0 && i < n_own; i++)
			session_prefix_keep(e->second, chunk[i].seq, of[i]->tok);
	}
	for (int32_t i = 0; i < n_own && most; i++)
		draft_from_model(own[i], &e->drafter, most);
}

void
second_settle(Engine *e, JobChoice *c, int32_t certain)
{
	int32_t len = c->second < 0 ? 0 : session_seq_len(e->second, c->second);

	if (len > certain)
		session_seq_trim(e->second, c->second, certain, NULL);
}

void
second_forget(Engine *e)
{
	for (Job *j = e->work; j; j = j->next)
		for (int32_t i = 0; i < j->best_of; i++)
			if (j->over || j->choice[i].done)
				drop(e, &j->choice[i]);
}
