/* Draft tokens from a second model: a smaller model with the same tokenizer, or a head that reads
 * rows of the model (mtp_head.c). The second model has its own session, with one sequence per
 * output of the first. Each of its steps adds the most likely token to every sequence as a draft
 * token. Draft tokens affect speed only, never the sampled tokens. */
#include <string.h>

#include "runtime/engine/engine_internal.h"

/* Prepare the draft model's sequence: bring its KV cache up to all but the last tokens of the
 * output, so that the rest fits one step. False: not ready in this step. */
static bool
draft_model_ready(Engine *e, RequestChoice *c, const SchedSeq *q)
{
	const llmc_limits *lim = session_limits_of(e->draft_session);
	llmc_error err;

	if (e->is_head) /* the head reads the model's rows as they arrive */
		return c->draft_session >= 0 && c->head.n > 0 &&
		       c->head.at + c->head.n == q->n_tok - 1;
	if (c->draft_session < 0) {
		int32_t bound = q->req->bound < lim->context ? q->req->bound : lim->context;
		if (session_seq_new(e->draft_session, bound, &c->draft_session, &err) != LLMC_OK) {
			c->draft_session = -1;
			return false;
		}
		session_seq_salt(e->draft_session, c->draft_session, q->req->salt);
		session_prefix_find(e->draft_session, c->draft_session, q->tok, q->n_tok);
	}
	int32_t len = session_seq_len(e->draft_session, c->draft_session), left = q->n_tok - len;
	if (left <= e->draft_chunk)
		return true;
	llmc_chunk k = { .seq = c->draft_session, .tok = q->tok + len, .n_tok = e->draft_chunk };
	if (session_forward(e->draft_session, &k, 1, NULL, &err) != LLMC_OK)
		draft_sequence_drop(e, c);
	else
		session_prefix_keep(e->draft_session, c->draft_session, q->tok);
	return false;
}

/* Add draft token `at` to each sequence. False: the draft model's step failed. came [n]: input rows
 * of a head; the call replaces them by the head's output rows, which are the input of its next
 * step. */
static bool
draft_one_token(Engine *e, llmc_chunk *chunk, const float **came, Draft *const *d, int32_t n,
                int32_t at)
{
	const Plan *p = e->draft_session->plan;
	const int32_t *token = e->draft_session->rt->draft_token;
	const int32_t columns = (int32_t)plan_out_width(p), most = (int32_t)e->plan->vocab;
	double start = clock_now();
	llmc_error err;

	if (session_forward_rows(e->draft_session, chunk, (size_t)n, e->is_head ? came : NULL,
	                         e->draft_logits, &err) != LLMC_OK)
		return false;
	for (int32_t i = 0; i < n && e->is_head; i++) {
		float *own = e->draft_rows_buf + i * plan_row_width(p);
		memcpy(own + p->draft.own_at,
		       session_rows(e->draft_session, (size_t)i) + (chunk[i].n_tok - 1) * p->hidden,
		       (size_t)p->hidden * sizeof *own);
		came[i] = own;
	}
	/* not the first step: it also reads tokens that the draft model has missed, so its time is
	 * not typical */
	if (at)
		drafter_record_model_step(&e->drafter, clock_now() - start);
	for (int32_t i = 0; i < n; i++) {
		int32_t *tok = &d[i]->tok[at];
		if (sample_largest(e->draft_logits + (size_t)i * (size_t)columns, columns, tok,
		                   &err) != LLMC_OK)
			return false;
		*tok = token ? token[*tok] : *tok;
		if (*tok >= most)
			return false;
		chunk[i] = (llmc_chunk){
			.seq = chunk[i].seq, .tok = &d[i]->tok[at], .n_tok = 1, .n_out = 1
		};
	}
	return true;
}

void
draft_model_propose(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t n_seqs,
                    int32_t again)
{
	const llmc_limits *lim = session_limits_of(e->draft_session);
	llmc_chunk chunk[DRAFT_MAX_SEQS];
	const float *came[DRAFT_MAX_SEQS];
	Draft *own[DRAFT_MAX_SEQS];
	SchedSeq *of[DRAFT_MAX_SEQS];
	int32_t len[DRAFT_MAX_SEQS], n_own = 0, most = e->speculate, tokens = 0;

	for (int32_t i = 0; i < n; i++) {
		EngineRequest *j = q[i]->req->user;
		RequestChoice *c = &j->choice[q[i]->index];
		int32_t room = q[i]->req->bound - q[i]->n_tok,
		        draft_room = lim->context - q[i]->n_tok;
		room = room < draft_room ? room : draft_room;
		room = room < j->speculate ? room : j->speculate;
		/* the draft found by lookup is likely enough and costs no step */
		if (d[i]->n && d[i]->odds_at[0] >= SURE)
			continue;
		if (room < 1 || n_own == lim->n_out || !draft_model_ready(e, c, q[i]))
			continue;
		int32_t from = e->is_head ? c->head.at + 1
		                          : session_seq_len(e->draft_session, c->draft_session);
		if (tokens + q[i]->n_tok - from > lim->chunk)
			continue;
		tokens += q[i]->n_tok - from;
		most = most < room ? most : room;
		came[n_own] = c->head.row;
		chunk[n_own] = (llmc_chunk){ .seq = c->draft_session,
			                     .tok = q[i]->tok + from,
			                     .n_tok = q[i]->n_tok - from,
			                     .n_out = 1 };
		of[n_own] = q[i];
		own[n_own++] = d[i];
	}
	most = draft_model_length(&e->drafter, own, n_own, n_seqs, again, most);
	for (int32_t k = 0; k < most; k++) {
		if (!draft_one_token(e, chunk, came, own, n_own, k)) {
			for (int32_t i = 0; i < n_own; i++) {
				EngineRequest *j = of[i]->req->user;
				own[i]->n = 0;
				draft_sequence_drop(e, &j->choice[of[i]->index]);
			}
			return;
		}
		for (int32_t i = 0; k == 0 && i < n_own; i++) {
			RequestChoice *c =
			    &((EngineRequest *)of[i]->req->user)->choice[of[i]->index];
			if (e->is_head)
				mtp_rows_consume(e, c, of[i], c->head.n);
			else
				session_prefix_keep(e->draft_session, chunk[i].seq, of[i]->tok);
			len[i] = session_seq_len(e->draft_session, chunk[i].seq);
		}
	}
	for (int32_t i = 0; i < n_own && most && e->is_head;
	     i++) /* drop the positions whose input was the head's own output */
		session_seq_trim(e->draft_session, chunk[i].seq, len[i], NULL);
	for (int32_t i = 0; i < n_own && most; i++)
		draft_from_model(own[i], &e->drafter, most);
}

void
draft_model_commit(Engine *e, RequestChoice *c, int32_t certain)
{
	int32_t len = c->draft_session < 0 || e->is_head
	                  ? 0
	                  : session_seq_len(e->draft_session, c->draft_session);

	if (len > certain)
		session_seq_trim(e->draft_session, c->draft_session, certain, NULL);
}

void
draft_model_sweep(Engine *e)
{
	for (EngineRequest *j = e->work; j; j = j->next)
		for (int32_t i = 0; i < j->best_of; i++)
			if (j->over || j->choice[i].done)
				draft_sequence_drop(e, &j->choice[i]);
}
