/* llmc_generate: run one request through the session's own engine, on the caller's thread. Order of
 * samplers. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"
#include "runtime/engine/engine.h"
#include "runtime/sample/sampler.h"

typedef struct Caller {
	llmc_token_fn on_token;
	void *user;
	llmc_result *res;
	bool cancelled;
} Caller;

static bool
take_event(void *user, const llmc_event *ev)
{
	Caller *c = user;
	llmc_result *res = c->res;
	bool last = ev->kind == LLMC_EVENT_FINISH;

	/* A step may produce several tokens; those after the caller's cancellation are dropped. */
	if (!c->cancelled && c->on_token && (!last || ev->n_bytes))
		c->cancelled = !c->on_token(c->user, last ? -1 : ev->token, ev->text, ev->n_bytes);
	res->n_new += !last;
	if (last) {
		res->finish = c->cancelled ? LLMC_FINISH_CANCEL : ev->finish;
		res->n_prompt = ev->n_prompt;
		res->prefill_s = ev->prefill_s;
		res->decode_s = ev->decode_s;
	}
	return !c->cancelled;
}

/* Open the engine on the first request. Later requests reuse the engine, with its statistics about
 * draft tokens. */
static llmc_status
open_engine(llmc_session *s, llmc_error *err)
{
	llmc_engine_options opt = LLMC_INIT(llmc_engine_options);

	if (s->generate)
		return LLMC_OK;
	opt.speculate = model_rows_independent(s->model) ? 0 : -1;
	return engine_open_inline(s->s, s->model->tokenizer, &opt, &s->generate, err);
}

llmc_status
llmc_generate(llmc_session *s, const int32_t *tok, size_t n_tok, const llmc_params *p,
              llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err)
{
	llmc_result out = LLMC_INIT(llmc_result);
	llmc_request r = LLMC_INIT(llmc_request);
	Caller caller = { .on_token = on_token, .user = user, .res = &out };
	const llmc_limits *lim = session_limits_of(s->s);

	if (s->model->plan->output != LLMC_OUTPUT_LOGITS)
		return error_set(
		    err, LLMC_E_INPUT,
		    "this model returns vectors (head.kind = %s), not text: use llmc_embed",
		    plan_output_name[s->model->plan->output]);
	if (n_tok > (size_t)lim->context)
		return error_set(err, LLMC_E_RANGE,
		                 "the prompt has %zu tokens, the context holds %d of the model's "
		                 "%lld positions; open the session with a larger context "
		                 "(--context)",
		                 n_tok, lim->context, (long long)s->model->plan->max_positions);
	if (s->model->plan->prompt_whole && n_tok > (size_t)lim->chunk)
		return error_set(err, LLMC_E_RANGE,
		                 "this model reads its prompt in one chunk: %zu tokens do not fit "
		                 "a chunk of %d; raise the chunk limit",
		                 n_tok, lim->chunk);
	TRY(api_check_grammar(s->model, p, err));
	TRY(open_engine(s, err));
	r.tok = tok;
	r.n_tok = n_tok;
	r.params = p;
	TRY(engine_run_request(s->generate, &r, take_event, &caller, err));
	if (res)
		SIZED_GIVE(res, out);
	return LLMC_OK;
}

llmc_status
llmc_generate_text(llmc_session *s, const char *prompt, const llmc_params *p,
                   llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err)
{
	const llmc_tokenizer *t = s->model->tokenizer;
	size_t n_bytes = strlen(prompt), cap = n_bytes + 16, n = 0;

	if (!t)
		return error_set(err, LLMC_E_INPUT,
		                 "the model has no tokenizer: use llmc_generate with ids");
	for (;;) {
		int32_t *ids = malloc(cap * sizeof *ids);
		if (!ids)
			return error_set(err, LLMC_E_MEMORY, "out of memory");
		llmc_status status = llmc_tokenize(
		    t, prompt, n_bytes, LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL, ids, cap, &n, err);
		if (status == LLMC_OK)
			status = llmc_generate(s, ids, n, p, on_token, user, res, err);
		free(ids);
		if (status != LLMC_E_RANGE || n <= cap)
			return status;
		cap = n;
	}
}

llmc_status
llmc_sampler_order(const llmc_params *p, char *buf, size_t cap, size_t *need, llmc_error *err)
{
	const llmc_params own = sampler_params(p);
	char order[LLMC_MAX_SAMPLERS + 1];

	TRY(sampler_order_of(&own, order, err));
	return copy_out(order, strlen(order), buf, cap, need, err);
}
