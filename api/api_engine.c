/* Engines of the public interface. An llmc_engine consists of a runtime engine and of the session
 * and model that it keeps open. */
#include "runtime/engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/sized_struct.h"
#include "runtime/kv/kv.h"
#include "runtime/weights/weights.h"

/* Check that a row gives the same bits with draft tokens in the step as alone. */
static llmc_status
check_draftable(const llmc_model *m, llmc_error *err)
{
	return draft_rows(m->plan) > 1
	           ? LLMC_OK
	           : error_set(err, LLMC_E_INPUT,
	                       "%s supports no draft tokens: its latent attention switches form "
	                       "from two rows on. Set attention.form to use them.",
	                       m->plan->name);
}

/* Check that `head` is a draft checkpoint for m, or the MTP head of m: opened from the same
 * checkpoint, while m outputs its hidden rows. */
static llmc_status
check_head_of(const llmc_model *m, const llmc_model *head, llmc_error *err)
{
	if (head->plan->draft.row_width) {
		TRY(model_check_draft(m, head, err));
		return check_draftable(m, err);
	}
	if (!m->plan->outputs_rows)
		return error_set(err, LLMC_E_INPUT,
		                 "%s is opened without mtp.part=rows, which an MTP head needs. "
		                 "Open it with mtp.part=rows.",
		                 m->plan->name);
	if (m->spec->mtp.n_from > 0 || plan_rows_width(m->plan) != plan_row_width(head->plan))
		return error_set(err, LLMC_E_INPUT,
		                 "%s is opened for a draft checkpoint: its rows have %lld "
		                 "elements, the MTP head %s reads %lld. Open it with mtp.part=rows "
		                 "alone.",
		                 m->plan->name, (long long)plan_rows_width(m->plan),
		                 head->plan->name, (long long)plan_row_width(head->plan));
	if (m->plan->hidden != head->plan->hidden || m->plan->vocab != head->plan->vocab ||
	    !m->weights != !head->weights || (m->weights && strcmp(m->weights, head->weights) != 0))
		return error_set(err, LLMC_E_INPUT,
		                 "%s is the MTP head (mtp.part) of another model than %s",
		                 head->plan->name, m->plan->name);
	return check_draftable(m, err);
}

/* Check that two models share a vocabulary; the message names the first difference. */
static llmc_status
check_same_vocabulary(const llmc_model *m, const llmc_model *draft, llmc_error *err)
{
	const llmc_tokenizer *a = m->tokenizer, *b = draft->tokenizer;

	if (draft->plan->output != LLMC_OUTPUT_LOGITS)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s returns vectors (head.kind), not text: it cannot be a draft model",
		    draft->plan->name);
	if (!a || !b)
		return error_set(err, LLMC_E_INPUT,
		                 "a draft model must have the model's vocabulary: %s has no "
		                 "tokenizer to compare",
		                 a ? draft->plan->name : m->plan->name);
	if (llmc_tokenizer_size(a) != llmc_tokenizer_size(b))
		return error_set(
		    err, LLMC_E_INPUT,
		    "a draft model must have the model's vocabulary: %s has %d tokens, %s has %d",
		    draft->plan->name, llmc_tokenizer_size(b), m->plan->name,
		    llmc_tokenizer_size(a));
	for (int32_t i = 0; i < llmc_tokenizer_size(a); i++) {
		const char *x = llmc_token_text(a, i), *y = llmc_token_text(b, i);
		if ((x || y) && (!x || !y || strcmp(x, y) != 0))
			return error_set(err, LLMC_E_INPUT,
			                 "a draft model must have the model's vocabulary: token %d "
			                 "is \"%s\" in %s, \"%s\" in %s",
			                 i, y ? y : "", draft->plan->name, x ? x : "",
			                 m->plan->name);
	}
	if (draft->plan->prompt_whole || plan_has_state(draft->plan))
		return error_set(err, LLMC_E_INPUT, "%s cannot be a draft model: it %s",
		                 draft->plan->name,
		                 draft->plan->prompt_whole
		                     ? "reads its prompt in one chunk"
		                     : "has recurrent state, which returns only to its marks");
	return check_draftable(m, err);
}

static llmc_status
open_draft_model(llmc_engine *e, llmc_model *draft, llmc_error *err)
{
	llmc_limits lim = *session_limits_of(e->session->s);

	lim.context =
	    (int32_t)(draft->plan->max_positions < lim.context ? draft->plan->max_positions
	                                                       : lim.context);
	lim.n_out = DRAFT_MAX_SEQS;
	/* the draft model has a kv.host setting of its own */
	lim.host_tokens = kv_host_pages(draft->plan) * PLAN_KV_PAGE;
	TRY(llmc_session_open(draft, &lim, &e->second, err));
	TRY(session_prepare(e->second->s, err));
	return engine_set_draft_model(e->e, e->second->s, err);
}

llmc_status
llmc_engine_open(llmc_model *m, const llmc_engine_options *opt, llmc_engine **out, llmc_error *err)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(o, opt);
	llmc_engine *e = calloc(1, sizeof *e);
	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	if (m->plan->takes_rows) {
		status =
		    error_set(err, LLMC_E_INPUT,
		              "%s is %s, which cannot generate alone: pass it as the draft of "
		              "its model",
		              m->plan->name,
		              m->plan->draft.row_width ? "a draft checkpoint"
		                                       : "opened as an MTP head (mtp.part=head)");
		goto fail;
	}
	if (o.draft)
		TRY_GOTO(o.draft->plan->takes_rows ? check_head_of(m, o.draft, err)
		                                   : check_same_vocabulary(m, o.draft, err));
	if (!model_rows_independent(m)) {
		if (o.speculate > 0 || o.draft) {
			status = error_set(
			    err, LLMC_E_INPUT,
			    "on a GPU draft tokens (speculate, draft) leave the output unchanged "
			    "only with deterministic: true; set it in the description");
			goto fail;
		}
		o.speculate = -1;
	}
	const llmc_limits given = limits_take(m, o.limits);
	o.limits = &given;
	llmc_limits lim = engine_limits(m->plan, &o);
	TRY_GOTO(fit_engine(m, &o, &lim, err));
	TRY_GOTO(llmc_session_open(m, &lim, &e->session, err));
	/* allocate now, so that no step allocates later */
	TRY_GOTO(session_prepare(e->session->s, err));
	TRY_GOTO(engine_open(e->session->s, m->tokenizer, &o, &e->e, err));
	if (o.draft && o.speculate >= 0)
		TRY_GOTO(open_draft_model(e, o.draft, err));
	*out = e;
	return LLMC_OK;
fail:
	llmc_engine_close(e, 0);
	return status;
}

llmc_status
llmc_engine_drain(llmc_engine *e, int drain_ms, llmc_error *err)
{
	return engine_drain(e->e, drain_ms, err);
}

void
llmc_engine_close(llmc_engine *e, int drain_ms)
{
	if (!e)
		return;
	engine_close(e->e, drain_ms);
	llmc_session_close(e->session);
	llmc_session_close(e->second);
	free(e);
}

const llmc_limits *
llmc_engine_limits(const llmc_engine *e)
{
	return session_limits_of(e->session->s);
}

llmc_status
llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id, llmc_error *err)
{
	TRY(api_check_grammar(e->session->model, r->params, err));
	return engine_submit(e->e, r, id, err);
}

llmc_status
llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	return engine_next(e->e, id, timeout_ms, ev, err);
}

void
llmc_cancel(llmc_engine *e, int64_t id)
{
	engine_cancel(e->e, id, false);
}

void
llmc_forget(llmc_engine *e, int64_t id)
{
	engine_cancel(e->e, id, true);
}

int
llmc_engine_fd(const llmc_engine *e)
{
	return engine_fd(e->e);
}

typedef struct Replacement {
	llmc_engine *e;
	struct Weights *w;
	bool taken; /* the exchange has begun, so the caller no longer owns w */
} Replacement;

static llmc_status
exchange(void *user, llmc_error *err)
{
	Replacement *r = user;

	r->taken = true;
	return session_replace_weights(r->e->session->s, r->w, err);
}

llmc_status
llmc_engine_replace_weights(llmc_engine *e, const char *path, const llmc_replace_options *opt,
                            llmc_error *err)
{
	llmc_replace_options o = LLMC_INIT(llmc_replace_options);
	Replacement r = { .e = e };
	const unsigned faults = file_faults();

	SIZED_TAKE(o, opt);
	TRY(runtime_prepare_weights(e->session->model->rt, path, o.n_threads, &r.w, err));
	llmc_status status = LLMC_OK;
	if (file_faults() != faults)
		status = error_set(err, LLMC_E_IO,
		                   "%s: a file was truncated or replaced while it was read; write "
		                   "a complete file and rename it",
		                   path);
	if (status == LLMC_OK)
		status = engine_call_when_idle(e->e, o.cancel_running, exchange, &r, err);
	if (!r.taken)
		weights_close(r.w);
	return status;
}

void
llmc_engine_stats(llmc_engine *e, llmc_counts *out)
{
	engine_counts(e->e, out);
}
