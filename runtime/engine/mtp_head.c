/* Heads that produce draft tokens from rows of the model (mtp.part): the model's own MTP head, or a
 * draft checkpoint (EAGLE-3). For each position, a head reads the model's row of this position and
 * the token at the next position. It predicts the token after that one. The head's session has one
 * sequence per output, with one position per row that the head has read. Rows come from the model's
 * steps. They are stored until their next token is known and the head runs.
 *
 * Rows can be missing: too many sequences ran at once, or the model's prefix cache had pages that
 * the head's prefix cache lacks. The head then continues without them. Its drafts get worse;
 * outputs do not change. */
#include <stdlib.h>
#include <string.h>

#include "runtime/engine/engine_internal.h"

void
mtp_rows_free(MtpRows *h)
{
	free(h->row);
	*h = (MtpRows){ 0 };
}

void
draft_sequence_drop(Engine *e, RequestChoice *c)
{
	if (c->draft_session >= 0)
		session_seq_free(e->draft_session, c->draft_session);
	c->draft_session = -1;
	mtp_rows_free(&c->head);
}

/* Open the sequence in the head's session, with the pages that its prefix cache holds. */
static bool
begin(Engine *e, RequestChoice *c, const SchedSeq *q)
{
	const llmc_limits *lim = session_limits_of(e->draft_session);
	llmc_error err;

	if (c->draft_session >= 0)
		return true;
	if (session_seq_new(e->draft_session,
	                    q->req->bound < lim->context ? q->req->bound : lim->context,
	                    &c->draft_session, &err) != LLMC_OK) {
		c->draft_session = -1;
		return false;
	}
	session_seq_salt(e->draft_session, c->draft_session, q->req->salt);
	c->head.at = session_prefix_find(e->draft_session, c->draft_session, q->tok + 1,
	                                 /* position i of the head has read token i + 1 */
	                                 q->n_tok - 1);
	c->head.n = 0;
	c->head.holes = false;
	return true;
}

static bool
reserve_rows(MtpRows *h, int32_t n, int64_t width)
{
	if (n <= h->cap)
		return true;
	float *row = realloc(h->row, (size_t)n * (size_t)width * sizeof *row);
	if (!row)
		return false;
	h->row = row;
	h->cap = n;
	return true;
}

void
mtp_rows_consume(Engine *e, RequestChoice *c, const SchedSeq *q, int32_t n)
{
	const int64_t width = plan_row_width(e->draft_session->plan);

	c->head.at += n;
	c->head.n -= n;
	memmove(c->head.row, c->head.row + n * width,
	        (size_t)(c->head.n * width) * sizeof *c->head.row);
	if (!c->head.holes)
		session_prefix_keep(e->draft_session, c->draft_session, q->tok + 1);
}

/* Run all pending rows but the last ones, which the drafting step reads. */
static bool
run_pending_rows(Engine *e, RequestChoice *c, const SchedSeq *q)
{
	const int32_t chunk = session_limits_of(e->draft_session)->chunk;
	llmc_error err;

	while (c->head.n > e->draft_chunk) {
		int32_t n = c->head.n - 1 < chunk ? c->head.n - 1 : chunk;
		llmc_chunk k = { .seq = c->draft_session,
			         .tok = q->tok + c->head.at + 1,
			         .n_tok = n };
		if (session_forward_rows(e->draft_session, &k, 1,
		                         (const float *const[]){ c->head.row }, NULL,
		                         &err) != LLMC_OK)
			return false;
		mtp_rows_consume(e, c, q, n);
	}
	return true;
}

void
mtp_rows_add(Engine *e, RequestChoice *c, const SchedSeq *q, int32_t at, int32_t n,
             const float *rows)
{
	const int64_t width = plan_row_width(e->draft_session->plan),
	              given = plan_rows_width(e->plan);
	MtpRows *h = &c->head;

	if (n < 1 || !begin(e, c, q))
		return;
	int32_t known = h->at + h->n - at; /* rows that it has already: a sequence may run again */
	if (known >= n)
		return;
	if (known < 0) {
		h->holes = true;
		h->at = at;
		h->n = known = 0;
	}
	if (!reserve_rows(h, h->n + n - known, width)) {
		draft_sequence_drop(e, c);
		return;
	}
	for (; known < n; known++, h->n++) {
		float *to = h->row + h->n * width;
		memcpy(to, rows + known * given, (size_t)given * sizeof *to);
		memset(to + given, 0, (size_t)(width - given) * sizeof *to);
	}
	if (!run_pending_rows(e, c, q))
		draft_sequence_drop(e, c);
}
