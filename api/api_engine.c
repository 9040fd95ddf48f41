/* Engines: the runtime's, with the session and the model that they keep alive. */
#include "runtime/engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"
#include "runtime/kv/kv.h"

struct llmc_engine {
	llmc_session *session, *second; /* second: of the draft model, or NULL */
	Engine *e;
};

/* Can rows of guesses have the bits of single ones? */
static llmc_status
guesses_fit(const llmc_model *m, llmc_error *err)
{
	return draft_rows(m->plan) > 1
	           ? LLMC_OK
	           : error_set(err, LLMC_E_INPUT,
	                       "nothing can be guessed for %s: its latent attention takes another "
	                       "form from two rows on (attention.form)",
	                       m->plan->name);
}

/* A head guesses for its own model: the same checkpoint, opened with its rows handed out. */
static llmc_status
is_head_of(const llmc_model *m, const llmc_model *head, llmc_error *err)
{
	if (!m->plan->hands_rows)
		return error_set(err, LLMC_E_INPUT,
		                 "%s is opened without handing its rows to a head (mtp.part = "
		                 "rows): it cannot guess for it",
		                 m->plan->name);
	if (m->plan->hidden != head->plan->hidden || m->plan->vocab != head->plan->vocab ||
	    !m->weights != !head->weights || (m->weights && strcmp(m->weights, head->weights) != 0))
		return error_set(err, LLMC_E_INPUT,
		                 "%s is the head (mtp.part) of another model than %s",
		                 head->plan->name, m->plan->name);
	return guesses_fit(m, err);
}

/* The first difference of two vocabularies, as a sentence. */
static llmc_status
same_tokens(const llmc_model *m, const llmc_model *draft, llmc_error *err)
{
	const llmc_tokenizer *a = m->tokenizer, *b = draft->tokenizer;

	if (draft->plan->output != LLMC_OUTPUT_LOGITS)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s makes vectors of texts (head.kind), no text: it cannot be a draft model",
		    draft->plan->name);
	if (!a || !b)
		return error_set(err, LLMC_E_INPUT,
		                 "a draft model must have the tokens of the model: %s has no "
		                 "tokenizer to compare",
		                 a ? draft->plan->name : m->plan->name);
	if (llmc_tokenizer_size(a) != llmc_tokenizer_size(b))
		return error_set(
		    err, LLMC_E_INPUT,
		    "a draft model must have the tokens of the model: %s has %d, %s has %d",
		    draft->plan->name, llmc_tokenizer_size(b), m->plan->name,
		    llmc_tokenizer_size(a));
	for (int32_t i = 0; i < llmc_tokenizer_size(a); i++) {
		const char *x = llmc_token_text(a, i), *y = llmc_token_text(b, i);
		if ((x || y) && (!x || !y || strcmp(x, y) != 0))
			return error_set(err, LLMC_E_INPUT,
			                 "a draft model must have the tokens of the model: token "
			                 "%d is \"%s\" in %s, \"%s\" in %s",
			                 i, y ? y : "", draft->plan->name, x ? x : "",
			                 m->plan->name);
	}
	if (draft->plan->prompt_whole || plan_has_state(draft->plan))
		return error_set(
		    err, LLMC_E_INPUT, "%s %s: it cannot be a draft model", draft->plan->name,
		    draft->plan->prompt_whole
		        ? "reads its prompt in one piece"
		        : "keeps a state, which goes back to where it was marked alone");
	return guesses_fit(m, err);
}

static llmc_status
open_draft_model(llmc_engine *e, llmc_model *draft, llmc_error *err)
{
	llmc_limits lim = *session_limits_of(e->session->s);

	lim.context =
	    (int32_t)(draft->plan->max_positions < lim.context ? draft->plan->max_positions
	                                                       : lim.context);
	lim.n_out = DRAFT_MAX_SEQS;
	lim.host_tokens = kv_host_pages(draft->plan) * PLAN_KV_PAGE; /* its own */
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
		status = error_set(err, LLMC_E_INPUT,
		                   "%s is opened as a head that guesses (mtp.part = head): it "
		                   "makes no text, it is a draft for its model",
		                   m->plan->name);
		goto fail;
	}
	if (o.draft)
		TRY_GOTO(o.draft->plan->takes_rows ? is_head_of(m, o.draft, err)
		                                   : same_tokens(m, o.draft, err));
	if (!model_rows_alike(m)) {
		if (o.speculate > 0 || o.draft) {
			status =
			    error_set(err, LLMC_E_INPUT,
			              "on a GPU guessed tokens (speculate, draft) change nothing "
			              "only where the description says deterministic: true");
			goto fail;
		}
		o.speculate = -1;
	}
	llmc_limits lim = engine_limits(m->plan, &o);
	TRY_GOTO(llmc_session_open(m, &lim, &e->session, err));
	TRY_GOTO(session_prepare(e->session->s, err)); /* nothing is made while serving */
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

void
llmc_engine_stats(llmc_engine *e, llmc_counts *out)
{
	engine_counts(e->e, out);
}
