/* Generates tokens for run and chat: with a session, or with an engine if there is a draft
 * model. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

llmc_status
draft_open(const Common *c, const llmc_model *m, const char *path, const llmc_limits *lim,
           int64_t *memory, llmc_model **out, llmc_error *err)
{
	llmc_memory mem = LLMC_INIT(llmc_memory);
	Common own = { .device = offload_device(c),
		       .arch = c->arch,
		       .threads = c->threads,
		       .quiet = c->quiet,
		       .verbose = c->verbose,
		       .cache_packed = c->cache_packed,
		       .allow_unknown_keys = c->allow_unknown_keys,
		       .draft_of = m };
	const bool head = strcmp(c->draft, "mtp") == 0;

	if (head) {
		own = *c;
		own.fit = NULL;
		own.draft = NULL;
		own.mtp_head = true;
		own.out_dir = NULL;
	}
	llmc_status status = open_model(&own, head ? path : c->draft, !memory, out, err);

	if (status == LLMC_OK && memory && *memory > 0) {
		status = llmc_memory_for(*out, lim, &mem, err);
		*memory -= mem.weights + mem.kv + mem.scratch + mem.state;
		*memory = *memory > 0 ? *memory : 1;
	}
	return status;
}

llmc_status
token_source_open(Common *c, llmc_model *m, const char *path, const Sampling *smp, llmc_limits *lim,
                  TokenSource *out, llmc_error *err)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_fitted fitted = LLMC_INIT(llmc_fitted);

	*out = (TokenSource){ 0 };
	o.limits = lim;
	if (!c->draft && c->images)
		return llmc_engine_open(m, &o, &out->e, err);
	if (!c->draft)
		return llmc_session_open(m, lim, &out->s, err);
	llmc_status status = draft_open(c, m, path, lim, c->memory, &out->draft, err);
	if (status == LLMC_OK) /* does it fit next to the draft model? */
		status = llmc_fit_limits(m, lim, c->memory[0], &fitted, err);
	o.speculate = smp->p.speculate;
	o.draft = out->draft;
	return status == LLMC_OK ? llmc_engine_open(m, &o, &out->e, err) : status;
}

void
token_source_close(TokenSource *s)
{
	llmc_engine_close(s->e, 0);
	llmc_session_close(s->s);
	llmc_close(s->draft);
	*s = (TokenSource){ 0 };
}

/* Handle one event of a request; *over: it was the last. */
static llmc_status
on_event(TokenSource *s, int64_t id, const llmc_event *ev, llmc_token_fn on_token, void *user,
         llmc_result *res, bool *over, llmc_error *err)
{
	*over = ev->last;
	if (ev->kind == LLMC_EVENT_ERROR) {
		snprintf(err->text, sizeof err->text, "%s", ev->text);
		return err->code = ev->status;
	}
	if (ev->kind == LLMC_EVENT_TOKEN ? !on_token(user, ev->token, ev->text, ev->n_bytes)
	                                 : interrupted())
		llmc_cancel(s->e, id);
	if (ev->kind != LLMC_EVENT_FINISH)
		return LLMC_OK;
	if (ev->n_bytes)
		on_token(user, -1, ev->text, ev->n_bytes);
	res->finish = ev->finish;
	res->n_prompt = ev->n_prompt;
	res->n_new = ev->n_new;
	res->prefill_s = ev->prefill_s;
	res->decode_s = ev->decode_s;
	return LLMC_OK;
}

llmc_status
token_source_run(TokenSource *s, const int32_t *tok, size_t n_tok, const llmc_params *p,
                 llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err)
{
	enum { POLL_MS = 100 }; /* ms between two checks for an interrupt */
	llmc_request r = LLMC_INIT(llmc_request);
	llmc_event ev = LLMC_INIT(llmc_event);
	bool over = false;
	int64_t id;

	if (s->s)
		return llmc_generate(s->s, tok, n_tok, p, on_token, user, res, err);
	r.tok = tok;
	r.n_tok = n_tok;
	r.params = p;
	r.images = s->image;
	r.n_images = s->n_image;
	llmc_status status = llmc_submit(s->e, &r, &id, err);
	while (status == LLMC_OK && !over) {
		status = llmc_next(s->e, id, POLL_MS, &ev, err);
		if (status == LLMC_OK)
			status = on_event(s, id, &ev, on_token, user, res, &over, err);
	}
	llmc_event_release(&ev);
	return status;
}

void
token_source_drafts(const TokenSource *s, char *buf, size_t cap)
{
	llmc_counts c = LLMC_INIT(llmc_counts);

	*buf = 0;
	if (!s->e || s->n_image)
		return;
	llmc_engine_stats(s->e, &c);
	snprintf(buf, cap, "; %llu of %llu draft tokens accepted, %.2f tokens per drafting step",
	         (unsigned long long)c.accepted, (unsigned long long)c.drafted,
	         c.drafts ? 1 + (double)c.accepted / (double)c.drafts : 1);
}
