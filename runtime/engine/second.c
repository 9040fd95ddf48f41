/* Guesses of a second, smaller model of the same tokenizer, or of the head of the model itself (head.c). It has a session of its own, with a sequence for each text that it follows; one
 * step of it for all texts makes one more guess of each, the likeliest token. What it says decides about time alone. */
#include <string.h>

#include "runtime/engine/inside.h"

void
second_drop(Engine *e, JobChoice *c)
{
	if (c->second >= 0)
		session_seq_free(e->second, c->second);
	c->second = -1;
	head_drop(&c->head);
}

/* Its sequence, with all of the text but the last tokens, which fit a step. False: not in this step. */
static bool
caught_up(Engine *e, JobChoice *c, const SchedSeq *q)
{
	const llmc_limits *lim = session_limits_of(e->second);
	llmc_error err;

	if (e->is_head) /* it reads the model's rows as they come */
		return c->second >= 0 && c->head.n > 0 && c->head.at + c->head.n == q->n_tok - 1;
	if (c->second < 0) {
		int32_t bound = q->req->bound < lim->context ? q->req->bound : lim->context;
		if (session_seq_new(e->second, bound, &c->second, &err) != LLMC_OK) {
			c->second = -1;
			return false;
		}
		session_seq_salt(e->second, c->second, q->req->salt);
		session_prefix_find(e->second, c->second, q->tok, q->n_tok);
	}
	int32_t len = session_seq_len(e->second, c->second), left = q->n_tok - len;
	if (left <= e->second_chunk)
		return true;
	llmc_chunk k = { .seq = c->second, .tok = q->tok + len, .n_tok = e->second_chunk };
	if (session_forward(e->second, &k, 1, NULL, &err) != LLMC_OK)
		second_drop(e, c);
	else
		session_prefix_keep(e->second, c->second, q->tok);
	return false;
}

/* One more guess of each; false: it cannot go on. came [n]: rows for the head, which leaves the next ones there. */
static bool
one_more(Engine *e, llmc_chunk *chunk, const float **came, Draft *const *d, int32_t n, int32_t at)
{
	const int64_t hidden = e->plan->hidden;
	int32_t vocab = (int32_t)e->second->plan->vocab, most = (int32_t)e->plan->vocab;
	double start = clock_now();
	llmc_error err;

	if (session_forward_rows(e->second, chunk, (size_t)n, e->is_head ? came : NULL, e->second_logits, &err) != LLMC_OK)
		return false;
	for (int32_t i = 0; i < n && e->is_head; i++)
		came[i] = memcpy(e->second_rows + i * hidden, session_rows(e->second, (size_t)i) + (chunk[i].n_tok - 1) * hidden, (size_t)hidden * sizeof **came);
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
second_guess(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t texts, int32_t again)
{
	const llmc_limits *lim = session_limits_of(e->second);
	llmc_chunk chunk[DRAFT_TEXTS];
	const float *came[DRAFT_TEXTS];
	Draft *own[DRAFT_TEXTS];
	SchedSeq *of[DRAFT_TEXTS];
	int32_t len[DRAFT_TEXTS], n_own = 0, most = e->speculate, tokens = 0;

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
		int32_t from = e->is_head ? c->head.at + 1 : session_seq_len(e->second, c->second);
		if (tokens + q[i]->n_tok - from > lim->chunk)
			continue;
		tokens += q[i]->n_tok - from;
		most = most < room ? most : room;
		came[n_own] = c->head.row;
		chunk[n_own] = (llmc_chunk){ .seq = c->second, .tok = q[i]->tok + from, .n_tok = q[i]->n_tok - from, .n_out = 1 };
		of[n_own] = q[i];
		own[n_own++] = d[i];
	}
	most = draft_model_most(&e->drafter, own, n_own, texts, again, most);
	for (int32_t k = 0; k < most; k++) {
		if (!one_more(e, chunk, came, own, n_own, k)) {
			for (int32_t i = 0; i < n_own; i++) {
				Job *j = of[i]->req->user;
				own[i]->n = 0;
				second_drop(e, &j->choice[of[i]->index]);
			}
			return;
		}
		for (int32_t i = 0; k == 0 && i < n_own; i++) {
			JobChoice *c = &((Job *)of[i]->req->user)->choice[of[i]->index];
			if (e->is_head)
				head_read(e, c, of[i], c->head.n);
			else
				session_prefix_keep(e->second, chunk[i].seq, of[i]->tok);
			len[i] = session_seq_len(e->second, chunk[i].seq);
		}
	}
	for (int32_t i = 0; i < n_own && most && e->is_head; i++) /* behind the text it has read rows of its own */
		session_seq_trim(e->second, chunk[i].seq, len[i], NULL);
	for (int32_t i = 0; i < n_own && most; i++)
		draft_from_model(own[i], &e->drafter, most);
}

void
second_settle(Engine *e, JobChoice *c, int32_t certain)
{
	int32_t len = c->second < 0 || e->is_head ? 0 : session_seq_len(e->second, c->second);

	if (len > certain)
		session_seq_trim(e->second, c->second, certain, NULL);
}

void
second_forget(Engine *e)
{
	for (Job *j = e->work; j; j = j->next)
		for (int32_t i = 0; i < j->best_of; i++)
			if (j->over || j->choice[i].done)
				second_drop(e, &j->choice[i]);
}
