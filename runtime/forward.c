/* One step: chunks checked, pages found, the step's arrays filled, the plan walked, logits handed back. Until the pages
 * are found nothing has changed, so a refusal leaves every sequence as it was. */
#include <string.h>

#include "runtime/session.h"

/* fed: a chunk without tokens takes the one that its sequence has picked on the device */
static llmc_status
check_chunk(const Session *s, const llmc_chunk *c, size_t i, bool fed, llmc_error *err)
{
	const llmc_limits *l = &s->lim;

	if (c->seq < 0 || c->seq >= l->seqs || !s->kv.seq[c->seq].used)
		return error_set(err, LLMC_E_RANGE, "chunk %zu: there is no sequence %d in this session", i, c->seq);
	if (s->seq[c->seq].in_step)
		return error_set(err, LLMC_E_RANGE, "chunk %zu: sequence %d has another chunk in this call already", i, c->seq);
	fed = fed && !c->tok && c->n_tok == 1 && s->kv.seq[c->seq].len > 0;
	if (c->n_tok < 1 || (!c->tok && !fed))
		return error_set(err, LLMC_E_RANGE, "chunk %zu: %d tokens, at least one is needed", i, c->n_tok);
	if (c->n_out < 0 || c->n_out > c->n_tok)
		return error_set(err, LLMC_E_RANGE, "chunk %zu: logits of %d rows are wanted, the chunk has %d", i, c->n_out,
		                 c->n_tok);
	int32_t len = s->kv.seq[c->seq].len;
	if (c->n_tok > l->context - len)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: sequence %d holds %d positions, %d more do not fit the context of %d (context)", i,
		                 c->seq, len, c->n_tok, l->context);
	for (int32_t t = 0; !fed && t < c->n_tok; t++)
		if (c->tok[t] < 0 || c->tok[t] >= s->plan->vocab)
			return error_set(err, LLMC_E_RANGE, "chunk %zu: token %d is %d, ids are 0 .. %lld", i, t, c->tok[t],
			                 (long long)s->plan->vocab - 1);
	return LLMC_OK;
}

/* Checks all; fills order, step_seq and add: sequences with one row first. */
static llmc_status
admit(Session *s, const llmc_chunk *chunk, size_t n, bool fed, int32_t *n_dec, llmc_error *err)
{
	int64_t n_tok = 0, n_out = 0;
	llmc_status status = LLMC_OK;
	size_t seen = 0, at = 0;

	if (n < 1 || !chunk)
		return error_set(err, LLMC_E_RANGE, "no chunk to run");
	for (; seen < n && status == LLMC_OK; seen++) {
		status = check_chunk(s, &chunk[seen], seen, fed, err);
		if (status != LLMC_OK)
			break;
		s->seq[chunk[seen].seq].in_step = true;
		n_tok += chunk[seen].n_tok;
		n_out += chunk[seen].n_out;
	}
	for (size_t i = 0; i < seen; i++)
		s->seq[chunk[i].seq].in_step = false;
	if (status != LLMC_OK)
		return status;
	if (n_tok > s->lim.chunk && s->plan->prompt_whole)
		return error_set(err, LLMC_E_RANGE,
		                 "%lld tokens in one step, the session allows %d (chunk); the prompts of this model run in one piece",
		                 (long long)n_tok, s->lim.chunk);
	if (n_tok > s->lim.chunk)
		return error_set(err, LLMC_E_RANGE, "%lld tokens in one step, the session allows %d (chunk)", (long long)n_tok,
		                 s->lim.chunk);
	if (n_out > s->lim.n_out)
		return error_set(err, LLMC_E_RANGE, "logits of %lld rows are wanted, the session allows %d (n_out)",
		                 (long long)n_out, s->lim.n_out);
	for (int pass = 0; pass < 2; pass++) {
		for (size_t i = 0; i < n; i++)
			if ((chunk[i].n_tok == 1) == (pass == 0)) {
				s->order[at] = (int32_t)i;
				s->step_seq[at] = chunk[i].seq;
				s->add[at++] = chunk[i].n_tok;
			}
		if (pass == 0)
			*n_dec = (int32_t)at;
	}
	int64_t need = kv_need(&s->kv, s->step_seq, s->add, n);
	if (need > s->kv.n_free)
		return error_set(err, LLMC_E_FULL,
		                 "this step needs %lld KV pages of %d positions, %d of %d are free; free or trim a sequence, or "
		                 "open a session with more (kv_tokens)",
		                 (long long)need, PLAN_KV_PAGE, s->kv.n_free, s->kv.n_page);
	return LLMC_OK;
}

static int32_t
find(const int32_t *tok, int32_t n, int32_t id)
{
	for (int32_t i = 0; i < n; i++)
		if (tok[i] == id)
			return i;
	return -1;
}

/* The first chunk of a sequence of a model whose prompt is seen whole: positions before prefix_end see each other. */
static void
set_prefix(const Plan *p, SeqState *st, const llmc_chunk *c)
{
	int32_t end = p->prefix_end >= 0 ? find(c->tok, c->n_tok, p->prefix_end) : -1;
	int32_t mark = p->prefix_mark >= 0 ? find(c->tok, c->n_tok, p->prefix_mark) : -1;

	st->prefix_len = end >= 0 ? end : c->n_tok;
	st->mark = mark >= 0 ? mark : st->prefix_len > 0 ? st->prefix_len - 1 : 0;
}

/* With two axes rows after the prefix stay at the mark on the first and count on the second. */
static void
fill_rows(Session *s, const SeqState *st, int32_t row, int32_t n, int32_t pos, int32_t seq)
{
	for (int32_t i = 0; i < n; i++, row++, pos++) {
		bool after = s->two_axes && pos >= st->prefix_len;
		s->pos[row] = pos;
		s->rope_pos[row] = after ? st->mark : pos;
		s->pos2[row] = after ? pos - st->prefix_len + 1 : 0;
		s->seq_of[row] = seq;
	}
}

static void
fill(Session *s, const llmc_chunk *chunk, int32_t n, int32_t n_dec, bool tables)
{
	int32_t row = 0, out = 0;

	for (int32_t i = 0; i < n; i++) {
		const llmc_chunk *c = &chunk[s->order[i]];
		KvSeq *kv = &s->kv.seq[c->seq];
		SeqState *st = &s->seq[c->seq];
		kv_extend(&s->kv, c->seq, c->n_tok);
		if (s->plan->prompt_whole && kv->len == 0)
			set_prefix(s->plan, st, c);
		fill_rows(s, st, row, c->n_tok, kv->len, i);
		if (c->tok)
			memcpy(s->tok + row, c->tok, (size_t)c->n_tok * sizeof *s->tok);
		else
			s->tok[row] = -1 - c->seq;
		s->q_start[i] = row;
		s->kv_len[i] = kv->len + c->n_tok;
		s->prefix_len[i] = st->prefix_len;
		if (tables)
			memcpy(s->block_table + (size_t)i * (size_t)s->kv.max_page, kv->page, (size_t)kv->n_page * sizeof *kv->page);
		row += c->n_tok;
		s->out_base[s->order[i]] = out;
		for (int32_t k = c->n_out; k > 0; k--)
			s->out_row[out++] = row - k;
	}
	s->q_start[n] = row;
	s->step = (llmc_step){
		.n_tok = row, .n_dec = n_dec, .n_seq = n, .n_out = out, .tok = s->tok, .pos = s->pos, .pos2 = s->pos2,
		.seq_of = s->seq_of, .q_start = s->q_start, .kv_len = s->kv_len, .prefix_len = s->prefix_len,
		.out_row = s->out_row, .block_table = s->block_table, .block_stride = s->kv.max_page,
	};
}

/* The step is done, or on its way. */
static void
count(Session *s, const llmc_chunk *chunk, size_t n, const PhaseRun *ph)
{
	for (size_t i = 0; i < n; i++)
		s->kv.seq[chunk[i].seq].len += chunk[i].n_tok;
	s->stats.forwards++;
	s->stats.tokens += s->step.n_tok;
	s->stats.weight_bytes = ph->weight_bytes;
	if (s->cuda)
		s->stats.steps_run += ph->n_step;
}

llmc_status
session_forward(Session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err)
{
	const PlanBuffer *b = &s->plan->buffer[s->plan->logits];
	const float *made = (const float *)(const void *)(s->slot[b->slot] + b->offset);
	size_t vocab = (size_t)s->plan->vocab;
	int32_t n_dec = 0;

	TRY(admit(s, chunk, n, false, &n_dec, err));
	int phase = (size_t)n_dec == n ? 0 : 1;
	if (s->cuda) {
		TRY(cuda_session_enter(s->cuda, err));
		fill(s, chunk, (int32_t)n, n_dec, true);
		llmc_status status = cuda_forward(s->cuda, phase, logits ? &made : NULL, err);
		cuda_session_leave(s->cuda);
		TRY(status);
	} else {
		fill(s, chunk, (int32_t)n, n_dec, true);
		session_walk(s, &s->phase[phase]);
	}
	count(s, chunk, n, &s->phase[phase]);
	for (size_t i = 0; logits && i < n; i++)
		if (chunk[i].n_out) {
			size_t floats = (size_t)chunk[i].n_out * vocab;
			memcpy(logits, made + (size_t)s->out_base[i] * vocab, floats * sizeof *logits);
			logits += floats;
		}
	return LLMC_OK;
}

llmc_status
session_op_times(Session *s, llmc_op_time_fn fn, void *user, llmc_error *err)
{
	if (!s->cuda)
		return error_set(err, LLMC_E_MISSING, "the times of single ops are measured on a GPU only (--device cuda)");
	if (s->step.n_seq < 1)
		return error_set(err, LLMC_E_RANGE, "the ops of a step are measured after a step (llmc_forward)");
	for (int32_t i = 0; i < s->step.n_seq; i++) {
		const KvSeq *q = &s->kv.seq[s->step_seq[i]];
		/* they write its rows of KV again, where by now another sequence's may lie */
		if (!q->used || q->len != s->kv_len[i])
			return error_set(err, LLMC_E_RANGE, "sequence %d is not as the last step left it: the ops of a step are measured right behind it",
			                 s->step_seq[i]);
	}
	TRY(cuda_session_enter(s->cuda, err));
	llmc_status status = cuda_op_times(s->cuda, s->step.n_dec == s->step.n_seq ? 0 : 1, fn, user, err);
	cuda_session_leave(s->cuda);
	return status;
}

llmc_status
session_step(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err)
{
	int32_t n_dec = 0;

	if (!s->cuda)
		return error_set(err, LLMC_E_RANGE, "this session picks no tokens on its device");
	TRY(admit(s, chunk, n, true, &n_dec, err));
	TRY(cuda_pick_room(s->cuda, chunk, n, err));
	TRY(cuda_session_enter(s->cuda, err));
	bool decode = (size_t)n_dec == n;
	llmc_status status = cuda_ring_take(s->cuda, err);
	if (status == LLMC_OK) {
		fill(s, chunk, (int32_t)n, n_dec, !decode);
		status = cuda_pick_step(s->cuda, chunk, n, decode, err);
	}
	cuda_session_leave(s->cuda);
	TRY(status);
	count(s, chunk, n, &s->phase[decode ? 0 : 1]);
	return LLMC_OK;
}
