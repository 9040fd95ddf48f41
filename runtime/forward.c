/* One step: check the chunks, allocate pages, fill the step's arrays, run the plan, return logits.
 * Nothing changes before all checks have passed and the pages are known to suffice, so a rejected
 * step leaves every sequence unchanged. */
#include <stdlib.h>
#include <string.h>

#include "base/sized_struct.h"
#include "runtime/ranks.h"
#include "runtime/sample/sampler.h"
#include "runtime/state/session_state.h"

/* Largest RoPE position of a token that comes with a row of an image */
enum { MAX_PLACE = 1 << 30 };

/* Return how many of the tokens have a row. */
static int32_t
rows_given(const StepRows *in, int32_t n)
{
	int32_t given = 0;

	for (int32_t t = 0; in && in->row && in->at && t < n; t++)
		given += in->at[t] >= 0;
	return given;
}

/* fed: a chunk without tokens is allowed; its token is the one that the device sampled for its
 * sequence. */
static llmc_status
check_chunk(const Session *s, const llmc_chunk *c, size_t i, bool fed, llmc_error *err)
{
	/* row of each image token, whose id is not read */
	const int32_t *at = s->rows_in ? s->rows_in[i].at : NULL;
	const llmc_limits *l = &s->lim;

	if (c->seq < 0 || c->seq >= l->seqs || !s->kv.seq[c->seq].used)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: there is no sequence %d in this session", i, c->seq);
	if (s->seq[c->seq].in_step)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: sequence %d has another chunk in this call already", i,
		                 c->seq);
	fed = fed && !c->tok && c->n_tok == 1 && s->kv.seq[c->seq].len > 0;
	if (c->n_tok < 1 || (!c->tok && !fed))
		return error_set(err, LLMC_E_RANGE, "chunk %zu: %d tokens, at least one is needed",
		                 i, c->n_tok);
	if (s->plan->vision == VISION_TOWER &&
	    c->n_out * s->plan->merge + s->plan->class_rows != c->n_tok)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: %d patches give %d rows, this tower merges %lld "
		                 "patches into one row",
		                 i, c->n_tok - s->plan->class_rows, c->n_out,
		                 (long long)s->plan->merge);
	if (s->plan->image_whole && s->rows_in) {
		const int32_t given = rows_given(&s->rows_in[i], c->n_tok);
		if (given > 0 && given < c->n_tok)
			return error_set(err, LLMC_E_RANGE,
			                 "chunk %zu: %d of %d tokens have a row; the tokens of an "
			                 "image attend to each other, so a chunk has those of one "
			                 "image or none",
			                 i, given, c->n_tok);
	}
	if (c->n_out < 0 || c->n_out > c->n_tok)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: logits of %d rows are wanted, the chunk has %d", i,
		                 c->n_out, c->n_tok);
	int32_t len = s->kv.seq[c->seq].len;
	if (c->n_tok > l->context - len)
		return error_set(err, LLMC_E_RANGE,
		                 "chunk %zu: sequence %d holds %d positions, %d more do not fit "
		                 "the context of %d (context)",
		                 i, c->seq, len, c->n_tok, l->context);
	for (int32_t t = 0; !fed && t < c->n_tok; t++)
		if ((c->tok[t] < 0 || c->tok[t] >= s->plan->vocab) && (!at || at[t] < 0))
			return error_set(err, LLMC_E_RANGE,
			                 "chunk %zu: token %d is %d, ids are 0 .. %lld", i, t,
			                 c->tok[t], (long long)s->plan->vocab - 1);
	for (int k = 0; s->rows_in && k < 3; k++)
		for (int32_t t = 0; s->rows_in[i].pos[k] && t < c->n_tok; t++)
			if (s->rows_in[i].pos[k][t] < 0 || s->rows_in[i].pos[k][t] > MAX_PLACE)
				return error_set(err, LLMC_E_RANGE,
				                 "chunk %zu: position %d of token %d is %d, "
				                 "possible are 0 .. %d",
				                 i, k, t, s->rows_in[i].pos[k][t], MAX_PLACE);
	return session_check_windows(s, i, c->n_tok, err);
}

/* Check all chunks; fill `order`, `step_seq` and `add`, with single-row sequences first. */
static llmc_status
admit(Session *s, const llmc_chunk *chunk, size_t n, bool fed, int32_t *n_dec, llmc_error *err)
{
	int64_t n_tok = 0, n_out = 0;
	llmc_status status = LLMC_OK;
	size_t seen = 0, at = 0;

	if (n < 1 || !chunk)
		return error_set(err, LLMC_E_RANGE, "no chunk to run");
	if (s->plan->takes_rows && !s->rows_in)
		return error_set(err, LLMC_E_RANGE,
		                 "this is the draft head of a model (mtp.part): pass rows "
		                 "of the model with its tokens (llmc_forward_rows)");
	if (s->plan->vision == VISION_TOWER && !s->rows_in)
		return error_set(err, LLMC_E_RANGE,
		                 "this is a vision tower (vision.part): pass patches "
		                 "(llmc_forward_images)");
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
		                 "%lld tokens in one step, the session allows %d "
		                 "(chunk); the prompts of this model run in one chunk",
		                 (long long)n_tok, s->lim.chunk);
	if (n_tok > s->lim.chunk)
		return error_set(err, LLMC_E_RANGE,
		                 "%lld tokens in one step, the session allows %d (chunk)",
		                 (long long)n_tok, s->lim.chunk);
	if (n_out > s->lim.n_out)
		return error_set(err, LLMC_E_RANGE,
		                 "logits of %lld rows are wanted, the session allows %d (n_out)",
		                 (long long)n_out, s->lim.n_out);
	for (int pass = 0; pass < 2; pass++) {
		for (size_t i = 0; i < n; i++)
			/* an encoder has no decode rows */
			if ((chunk[i].n_tok == 1 && !s->plan->encoder) == (pass == 0)) {
				s->order[at] = (int32_t)i;
				s->step_seq[at] = chunk[i].seq;
				s->add[at++] = chunk[i].n_tok;
			}
		if (pass == 0)
			*n_dec = (int32_t)at;
	}
	int64_t need = session_pages_needed(s, chunk, n);
	if (need > s->kv.n_free)
		return error_set(err, LLMC_E_FULL,
		                 "this step needs %lld KV pages of %d positions, %d of %d are "
		                 "free; free or trim a sequence, or "
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

/* Handle the first chunk of a sequence of a prefix-LM: positions before prefix_end attend to each
 * other. */
static void
set_prefix(const Plan *p, SeqState *st, const llmc_chunk *c)
{
	int32_t end = p->prefix_end >= 0 ? find(c->tok, c->n_tok, p->prefix_end) : -1;
	int32_t mark = p->prefix_mark >= 0 ? find(c->tok, c->n_tok, p->prefix_mark) : -1;

	st->prefix_len = end >= 0 ? end : c->n_tok;
	st->mark = mark >= 0 ? mark : st->prefix_len > 0 ? st->prefix_len - 1 : 0;
}

/* Fill per-row arrays. pos2 depends on the model. With two-axis RoPE, rows after the prefix keep
 * the position of the mark on the first axis and count up on the second. In an encoder it is the
 * token type. In a tower pos and pos2 are the row and column of a patch. In a language model with
 * images it marks tokens that have a row of an image. */
static void
fill_rows(Session *s, const SeqState *st, const StepRows *in, int32_t row, int32_t n, int32_t pos,
          int32_t seq)
{
	const bool second = s->plan->token_types > 1 && st->n_first > 0;

	for (int32_t i = 0; i < n; i++, row++, pos++) {
		bool after = s->two_axes && pos >= st->prefix_len;
		s->pos[row] = pos;
		s->rope_pos[row] = after ? st->mark : pos + st->rope_shift;
		s->rope_y[row] = s->rope_x[row] = s->rope_pos[row];
		s->pos2[row] = after ? pos - st->prefix_len + 1 : second && pos >= st->n_first;
		s->seq_of[row] = seq;
		if (!in)
			continue;
		if (in->at && in->at[i] >= 0)
			s->tok[row] = 0;
		if (in->pos[0])
			s->rope_pos[row] = in->pos[0][i];
		if (in->pos[1])
			s->rope_y[row] = in->pos[1][i];
		if (in->pos[2])
			s->rope_x[row] = in->pos[2][i];
		if (in->number)
			s->pos2[row] = in->number[i];
		else if (s->plan->vision == VISION_ROWS)
			s->pos2[row] = in->row && in->at && in->at[i] >= 0;
	}
}

/* Set the RoPE positions that follow a chunk whose tokens came with RoPE positions: later tokens
 * count up from the largest position of the chunk's last token. */
static void
set_shift(const Session *s, SeqState *st, const StepRows *in, int32_t last)
{
	int32_t most = s->rope_pos[last];

	if (!in || !in->pos[0] || s->plan->vision != VISION_ROWS)
		return;
	most = s->rope_y[last] > most ? s->rope_y[last] : most;
	most = s->rope_x[last] > most ? s->rope_x[last] : most;
	st->rope_shift = most - s->pos[last];
	st->n_placed = s->pos[last] + 1;
}

/* Fill the block table of a sequence: its pages, and its window pages from max_page on. */
static void
fill_table(Session *s, int32_t i, const KvSeq *kv)
{
	int32_t *to = s->block_table + (size_t)i * (size_t)s->kv.stride;

	memcpy(to, kv->page, (size_t)kv->n_page * sizeof *to);
	if (s->kv.window)
		memcpy(to + s->kv.max_page, kv->page + s->kv.max_page,
		       (size_t)kv->n_page * sizeof *to);
}

static void
fill(Session *s, const llmc_chunk *chunk, int32_t n, int32_t n_dec, bool tables)
{
	int32_t row = 0, out = 0;

	if (s->segments)
		s->segments->n_seq = 0;
	for (int32_t i = 0; i < n; i++) {
		const llmc_chunk *c = &chunk[s->order[i]];
		KvSeq *kv = &s->kv.seq[c->seq];
		SeqState *st = &s->seq[c->seq];
		kv_extend(&s->kv, c->seq, session_positions(s, s->order[i], c->n_tok));
		if (s->plan->prompt_whole && kv->len == 0)
			set_prefix(s->plan, st, c);
		if (c->tok)
			memcpy(s->tok + row, c->tok, (size_t)c->n_tok * sizeof *s->tok);
		else
			s->tok[row] = -1 - c->seq;
		const StepRows *in =
		    s->rows_in && s->plan->vision != VISION_NONE ? &s->rows_in[s->order[i]] : NULL;
		fill_rows(s, st, in, row, c->n_tok, kv->len, i);
		set_shift(s, st, in, row + c->n_tok - 1);
		s->q_start[i] = row;
		s->kv_len[i] = kv->len + c->n_tok;
		s->prefix_len[i] = st->prefix_len;
		if (s->plan->image_whole && rows_given(in, c->n_tok))
			s->prefix_len[i] = st->n_placed = kv->len + c->n_tok;
		if (tables)
			fill_table(s, i, kv);
		if (s->segments)
			session_fill_segments(s, i, row, c->n_tok);
		row += c->n_tok;
		s->out_base[s->order[i]] = out;
		for (int32_t k = c->n_out - 1; k >= 0; k--)
			s->out_row[out++] = row - 1 - k * (int32_t)s->plan->merge;
	}
	s->q_start[n] = row;
	*s->size = (StepSize){ .n_tok = row, .n_dec = n_dec, .n_seq = n, .n_out = out };
	if (s->segments)
		*s->segments =
		    (StepSize){ .n_tok = row, .n_seq = s->segments->n_seq, .n_out = out };
}

/* Return the weight bytes that the step reads. Cached by row count, because consecutive decode
 * steps rarely differ and counting takes time. */
static int64_t
weight_bytes(Session *s, int phase)
{
	const PlanPhase *p = &s->plan->phase[phase];

	if (s->counted_rows[phase] != s->size->n_tok) {
		s->counted_rows[phase] = s->size->n_tok;
		s->weight_bytes[phase] = 0;
		for (int i = 0; i < p->n_step; i++)
			s->weight_bytes[phase] +=
			    plan_step_weights(s->plan, &p->step[i], s->size->n_tok);
	}
	return s->weight_bytes[phase];
}

/* Update lengths and statistics after the step has run or has been queued. */
static void
count(Session *s, const llmc_chunk *chunk, size_t n, int phase)
{
	for (size_t i = 0; i < n; i++)
		/* an encoder's keys and values are valid within one step only */
		if (s->plan->encoder)
			kv_seq_trim(&s->kv, chunk[i].seq, 0);
		else
			kv_advance(&s->kv, chunk[i].seq, chunk[i].n_tok);
	s->stats.forwards++;
	s->stats.tokens += s->size->n_tok;
	s->stats.weight_bytes = weight_bytes(s, phase);
	s->stats.steps_run += s->plan->phase[phase].n_step;
}

/* ---- a step over pipeline stages ---- */

/* The rows of a forward pass through the stages in micro-batches, so that a stage can work while
 * the next one processes its previous output. A micro-batch has at least LEAST_ROWS rows, because
 * every micro-batch reads the weights again. */
enum { LEAST_ROWS = 32, MICRO_BATCHES_PER_STAGE = 4 };

/* Part of a chunk in a micro-batch, and the destination of its logits */
typedef struct MicroBatchRows {
	int32_t batch, base, n_out;
	int64_t to;
} MicroBatchRows;
typedef struct MicroBatches {
	float *made; /* [n_out, plan_out_width] of a micro-batch */
	int64_t made_bytes;
	llmc_chunk *chunk;    /* [most] of the micro-batch */
	MicroBatchRows *part; /* [most] of all micro-batches */
	int32_t most;
	int32_t out[]; /* [micro-batches] rows of logits */
} MicroBatches;

void
forward_close(Session *s)
{
	if (!s->micro_batches)
		return;
	session_unmap(s->micro_batches->made, s->micro_batches->made_bytes);
	free(s->micro_batches->chunk);
	free(s->micro_batches->part);
	free(s->micro_batches);
	s->micro_batches = NULL;
}

llmc_status
forward_open(Session *s, llmc_error *err)
{
	const int most = MICRO_BATCHES_PER_STAGE * s->plan->stages;

	if (s->plan->stages < 2 || s->plan->stage > 0 || s->plan->rank > 0)
		return LLMC_OK;
	MicroBatches *p = s->micro_batches = calloc(1, sizeof *p + (size_t)most * sizeof *p->out);
	if (p) {
		p->most = s->lim.seqs + most;
		p->made_bytes =
		    (int64_t)s->lim.n_out * plan_out_width(s->plan) * (int64_t)sizeof *p->made;
		p->made = session_map(p->made_bytes);
		p->chunk = calloc((size_t)p->most, sizeof *p->chunk);
		p->part = calloc((size_t)p->most, sizeof *p->part);
	}
	return p && p->made && p->chunk && p->part
	           ? LLMC_OK
	           : error_set(err, LLMC_E_MEMORY,
	                       "out of memory for the logits of the last stage");
}

static llmc_status
forward_micro_batch(Session *s, const llmc_chunk *chunk, size_t n, const float **made,
                    llmc_error *err)
{
	int32_t n_dec = 0;

	TRY(admit(s, chunk, n, false, &n_dec, err));
	int phase = (size_t)n_dec == n ? 0 : 1;
	TRY(s->device->enter(s, err));
	fill(s, chunk, (int32_t)n, n_dec, true);
	llmc_status status = ranks_step(s, phase) ? s->device->forward(s, phase, made, err)
	                                          : comm_error(s->comm, err);
	s->device->leave(s);
	TRY(ranks_error(s, status, err));
	count(s, chunk, n, phase);
	return LLMC_OK;
}

static llmc_status
forward_stages(Session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err)
{
	MicroBatches *p = s->micro_batches;
	const int stages = s->plan->stages;
	const int64_t width = plan_out_width(s->plan), forwards = s->stats.forwards;
	int64_t rows = 0, to = 0, each;
	int32_t n_part = 0, n_batch = 0, at = 0;

	for (size_t i = 0; i < n; i++)
		rows += chunk[i].n_tok;
	each = (rows + MICRO_BATCHES_PER_STAGE * stages - 1) / (MICRO_BATCHES_PER_STAGE * stages);
	each = s->plan->prompt_whole ? rows : each < LEAST_ROWS ? LEAST_ROWS : each;
	for (size_t i = 0; i < n; n_batch++) {
		int32_t first = n_part, here = 0;
		for (; i < n && here < each; n_part++) {
			const llmc_chunk *c = &chunk[i];
			int32_t left = c->n_tok - at,
			        take = left < each - here ? left : (int32_t)(each - here),
			        silent = c->n_tok - c->n_out;
			int32_t from = at > silent ? at : silent,
			        out = at + take > from ? at + take - from : 0;
			p->chunk[n_part - first] = (llmc_chunk){
				.seq = c->seq, .tok = c->tok + at, .n_tok = take, .n_out = out
			};
			p->part[n_part] =
			    (MicroBatchRows){ .batch = n_batch, .n_out = out, .to = to };
			to += out;
			here += take;
			at += take;
			if (at == c->n_tok) {
				at = 0;
				i++;
			}
		}
		TRY(forward_micro_batch(s, p->chunk, (size_t)(n_part - first), NULL, err));
		for (int32_t k = first; k < n_part; k++)
			p->part[k].base = s->out_base[k - first];
		p->out[n_batch] = s->size->n_out;
	}
	s->stats.forwards = forwards + 1;
	for (int32_t k = 0, batch = 0; batch < n_batch; batch++) {
		if (!comm_pipe_receive(s->comm, p->made,
		                       (size_t)(p->out[batch] * width) * sizeof *p->made))
			return ranks_error(s, comm_error(s->comm, err), err);
		for (; k < n_part && p->part[k].batch == batch; k++)
			if (logits)
				memcpy(logits + p->part[k].to * width,
				       p->made + p->part[k].base * width,
				       (size_t)(p->part[k].n_out * width) * sizeof *logits);
	}
	return LLMC_OK;
}

llmc_status
session_forward(Session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err)
{
	const float *made = NULL;
	size_t width = (size_t)plan_out_width(s->plan);

	if (s->micro_batches) {
		TRY(admit(s, chunk, n, false, &(int32_t){ 0 }, err));
		return forward_stages(s, chunk, n, logits, err);
	}
	TRY(forward_micro_batch(s, chunk, n, logits ? &made : NULL, err));
	for (size_t i = 0; logits && i < n; i++)
		if (chunk[i].n_out) {
			size_t floats = (size_t)chunk[i].n_out * width;
			memcpy(logits, made + (size_t)s->out_base[i] * width,
			       floats * sizeof *logits);
			logits += floats;
		}
	return LLMC_OK;
}

llmc_status
session_forward_rows(Session *s, const llmc_chunk *chunk, size_t n, const float *const *came,
                     float *logits, llmc_error *err)
{
	if (!came != !s->plan->takes_rows)
		return error_set(err, LLMC_E_RANGE, "%s",
		                 came ? "this model takes no rows with its tokens: it is "
		                        "not a draft head (mtp.part)"
		                      : "a draft head (mtp.part) needs rows of the model "
		                        "with its tokens");
	if (!came)
		return session_forward(s, chunk, n, logits, err);
	StepRows *rows = calloc(n ? n : 1, sizeof *rows);
	if (!rows)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (size_t i = 0; i < n; i++)
		rows[i].row = came[i];
	s->rows_in = rows;
	llmc_status status = session_forward(s, chunk, n, logits, err);
	s->rows_in = NULL;
	free(rows);
	return status;
}

llmc_status
session_forward_images(Session *s, const llmc_chunk *chunk, size_t n, const StepRows *rows,
                       float *logits, llmc_error *err)
{
	if (rows && s->plan->vision == VISION_NONE)
		return error_set(err, LLMC_E_RANGE,
		                 "this model was opened without images (vision.part)");
	s->rows_in = rows;
	llmc_status status = session_forward(s, chunk, n, logits, err);
	s->rows_in = NULL;
	return status;
}

void
session_queue_images(Session *s, const StepRows *rows)
{
	s->rows_in = rows;
}

const float *
session_rows(const Session *s, size_t chunk)
{
	const PlanBuffer *b = &s->plan->buffer[s->plan->rows];
	int32_t i = 0;

	while (s->order[i] != (int32_t)chunk)
		i++;
	return (s->rows ? s->rows : (const float *)(const void *)s->slot[b->slot]) +
	       s->q_start[i] * b->extent.mul;
}

bool
session_check_ranks(const Session *s, llmc_error *err)
{
	if (!s->comm || !comm_ended(s->comm))
		return true;
	(void)comm_error(s->comm, err);
	return false;
}

llmc_status
session_prepare(Session *s, llmc_error *err)
{
	if (!s->device->prepare)
		return LLMC_OK;
	TRY(s->device->enter(s, err));
	llmc_status status = s->device->prepare(s, err);
	s->device->leave(s);
	return status;
}

llmc_status
session_op_times(Session *s, llmc_op_time_fn fn, void *user, llmc_error *err)
{
	if (!s->device->op_times)
		return error_set(err, LLMC_E_MISSING, "single ops are not measured on this device");
	if (s->plan->partitions > 1)
		return error_set(err, LLMC_E_MISSING,
		                 "single ops are not measured for a model on two devices "
		                 "(placement.cpu): one waits for the other");
	if (s->plan->stages > 1)
		return error_set(err, LLMC_E_MISSING,
		                 "single ops are not measured with pipeline stages: a "
		                 "rank has only its own ops");
	if (s->size->n_seq < 1)
		return error_set(err, LLMC_E_RANGE,
		                 "the ops of a step are measured after a step (llmc_forward)");
	for (int32_t i = 0; i < s->size->n_seq; i++) {
		const KvSeq *q = &s->kv.seq[s->step_seq[i]];
		/* the measurement writes the step's KV rows again; by now another sequence may own
		 * those pages. An encoder is safe: this is its last step, which owns the pages */
		if (!s->plan->encoder && (!q->used || q->len != s->kv_len[i]))
			return error_set(err, LLMC_E_RANGE,
			                 "sequence %d is not as the last step left it: "
			                 "measure the ops directly after a step",
			                 s->step_seq[i]);
	}
	int64_t each = plan_has_state(s->plan) ? ranks_saved_bytes(s, 0, 0, true) : 0;
	char *states = each > 0 ? malloc((size_t)each * (size_t)s->size->n_seq) : NULL;
	if (each > 0 && !states)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	llmc_status status = s->device->enter(s, err);
	if (status != LLMC_OK)
		goto fail;
	/* measured runs advance the recurrent states again, so save and restore them */
	bool together = true;
	for (int32_t i = 0; states && i < s->size->n_seq && together; i++)
		together = ranks_save(s, NULL, 0, 0, s->step_seq[i], states + i * each);
	if (!together) {
		status = comm_error(s->comm, err);
		goto over;
	}
	status = s->device->op_times(s, s->size->n_dec == s->size->n_seq ? 0 : 1, fn, user, err);
	for (int32_t i = 0; states && i < s->size->n_seq && status == LLMC_OK; i++)
		if (!ranks_restore(s, NULL, 0, 0, s->step_seq[i], states + i * each))
			status = comm_error(s->comm, err);
over:
	s->device->leave(s);
fail:
	free(states);
	return status;
}

/* ---- sampling on the device ---- */

static llmc_status
no_device_sampling(llmc_error *err)
{
	return error_set(err, LLMC_E_RANGE, "this session samples no tokens on its device");
}

static llmc_params
whole(const llmc_params *p)
{
	llmc_params own = { 0 };

	SIZED_TAKE(own, p);
	return own;
}

bool
session_can_sample(const Session *s, const llmc_params *p)
{
	llmc_params own = whole(p);

	return s->device->sampler && !s->comm && s->plan->output == LLMC_OUTPUT_LOGITS &&
	       !s->probe && !own.grammar && !own.n_allowed_tokens &&
	       s->device->sampler->can(s, &own);
}

bool
session_can_mask(const Session *s, const llmc_params *p)
{
	llmc_params own = whole(p);

	own.grammar = NULL;
	own.grammar_after = NULL;
	own.n_allowed_tokens = 0;
	return session_can_sample(s, &own);
}

llmc_status
session_sample_params(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt,
                      size_t n_prompt, const int32_t *output, size_t n_output, llmc_error *err)
{
	llmc_params own = whole(p);

	if (!session_can_sample(s, p))
		return no_device_sampling(err);
	if (session_seq_len(s, q) < 0)
		return error_set(err, LLMC_E_RANGE, "there is no sequence %d in this session", q);
	TRY(sampler_check(&own, (int32_t)s->plan->vocab, err));
	TRY(s->device->enter(s, err));
	llmc_status status =
	    s->device->sampler->params(s, q, &own, prompt, n_prompt, output, n_output, err);
	s->device->leave(s);
	return status;
}

static llmc_status
queue_step(Session *s, const llmc_chunk *chunk, size_t n, bool sampling, llmc_error *err)
{
	int32_t n_dec = 0;

	if (!s->device->sampler || s->comm)
		return no_device_sampling(err);
	TRY(admit(s, chunk, n, true, &n_dec, err));
	/* a decode step is described by notes, which have no rows of images */
	bool decode = (size_t)n_dec == n && !s->rows_in;
	TRY(s->device->sampler->begin(s, chunk, n, err));
	fill(s, chunk, (int32_t)n, n_dec, !decode);
	llmc_status status = s->device->sampler->step(s, chunk, n, decode, sampling, err);
	s->rows_in = NULL;
	s->device->leave(s);
	TRY(status);
	count(s, chunk, n, decode ? 0 : 1);
	return LLMC_OK;
}

llmc_status
session_queue_step(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err)
{
	return queue_step(s, chunk, n, true, err);
}

llmc_status
session_queue_rows(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err)
{
	return queue_step(s, chunk, n, false, err);
}

llmc_status
session_queue_sample(Session *s, const uint32_t *const *mask, llmc_error *err)
{
	if (!s->device->sampler || s->comm)
		return no_device_sampling(err);
	TRY(s->device->enter(s, err));
	llmc_status status = s->device->sampler->sample(s, mask, err);
	s->device->leave(s);
	return status;
}

llmc_status
session_take_sampled(Session *s, int32_t *ids, float *logprobs, llmc_error *err)
{
	return s->device->sampler ? s->device->sampler->take(s, ids, logprobs, err)
	                          : no_device_sampling(err);
}

void
session_drop_sampled(Session *s)
{
	if (s->device->sampler)
		s->device->sampler->drop(s);
}
