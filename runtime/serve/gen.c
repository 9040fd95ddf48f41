/* A request that generates: its prompts go to the engine, its events come back and become an answer. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/serve/serve.h"
#include "runtime/text/text.h"

uint64_t
random_seed(void)
{
	uint64_t x = 0;

	if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
		x = (uint64_t)(clock_now() * 1e9);
	return x;
}

Gen *
gen_new(Req *r, Dialect d)
{
	Gen *g = calloc(1, sizeof *g);
	unsigned char b[12];

	if (!g)
		return NULL;
	g->req = r;
	atomic_fetch_add(&r->refs, 1);
	g->srv = r->srv;
	g->dialect = d;
	g->n = 1;
	g->created = time(NULL);
	g->er = LLMC_INIT(llmc_request);
	g->ep = LLMC_INIT(llmc_params);
	for (int i = 0; i < 3; i++) {
		uint64_t x = random_seed();
		memcpy(b + 4 * i, &x, 4);
	}
	int n = snprintf(g->oai_id, sizeof g->oai_id, d == DIA_CHAT ? "chatcmpl-" : "cmpl-");
	for (int i = 0; i < 12; i++)
		snprintf(g->oai_id + n + 2 * i, 3, "%02x", b[i]);
	return g;
}

void
gen_free(Gen *g)
{
	if (!g)
		return;
	for (int32_t i = 0; i < g->n_sub; i++) {
		free(g->sub[i].tok);
		free(g->sub[i].echo);
		for (int j = 0; j < 4; j++)
			strbuf_release(&g->sub[i].col[j]);
		for (int32_t k = 0; k < g->n; k++) {
			Choice *c = &g->choice[i * g->n + k];
			strbuf_release(&c->text);
			strbuf_release(&c->held);
			for (int j = 0; j < 4; j++)
				strbuf_release(&c->col[j]);
		}
	}
	free(g->sub);
	free(g->choice);
	for (char **s = g->stop; s && *s; s++)
		free(*s);
	free(g->stop);
	free(g->stop_tokens);
	free(g->bias);
	req_unref(g->req);
	free(g);
}

void
gen_count(Req *r)
{
	pthread_mutex_lock(&r->srv->lock);
	r->generates = true;
	r->srv->metrics.requests++;
	pthread_mutex_unlock(&r->srv->lock);
}

bool
gen_prompts(Gen *g, int32_t n, Problem *p)
{
	g->sub = calloc((size_t)n, sizeof *g->sub);
	g->choice = calloc((size_t)n * (size_t)g->n, sizeof *g->choice);
	if (!g->sub || !g->choice) {
		free(g->sub);
		free(g->choice);
		g->sub = NULL;
		g->choice = NULL;
		return problem(p, 500, NULL, "out of memory");
	}
	g->n_sub = n;
	for (int32_t i = 0; i < n; i++)
		g->sub[i] = (Sub){ .gen = g, .index = i };
	return true;
}

bool
tokenize_prompt(Server *s, const char *text, size_t n, int flags, int32_t **ids, size_t *n_ids, Problem *p)
{
	size_t cap = n / 2 + 16;
	llmc_error err = { 0 };

	*ids = NULL;
	if (!s->back.tok)
		return problem(p, 400, "prompt", "This model has no tokenizer: send token ids.");
	for (;;) {
		*ids = malloc(cap * sizeof **ids);
		if (!*ids)
			return problem(p, 500, NULL, "out of memory");
		llmc_status status = llmc_tokenize(s->back.tok, text, n, flags, *ids, cap, n_ids, &err);
		if (status == LLMC_OK)
			return true;
		free(*ids);
		*ids = NULL;
		if (status != LLMC_E_RANGE || *n_ids <= cap)
			return problem(p, status == LLMC_E_MEMORY ? 500 : 400, NULL, "The text cannot be tokenized: %s", err.text);
		cap = *n_ids;
	}
}

static void
submit_problem(Gen *g, llmc_status status, const llmc_error *err, Problem *p)
{
	switch (status) {
	case LLMC_E_BUSY:
		problem(p, 429, NULL, "The engine is overloaded, please try again later.");
		p->code = "overloaded";
		break;
	case LLMC_E_INPUT:
	case LLMC_E_RANGE:
		problem(p, 400, NULL, "%s", err->text);
		break;
	case LLMC_E_CANCELLED:
		problem(p, 503, NULL, "The server is shutting down.");
		break;
	default:
		if (status == LLMC_E_DEVICE) {
			pthread_mutex_lock(&g->srv->lock);
			g->srv->failed = true;
			pthread_mutex_unlock(&g->srv->lock);
		}
		problem(p, 500, NULL, "%s", err->text);
	}
}

void
gen_abort(Req *r)
{
	Gen *g = r->gen;

	for (int32_t i = 0; g && i < g->n_sub; i++)
		if (g->sub[i].id && !g->sub[i].over)
			g->srv->back.cancel(g->srv->back.self, g->sub[i].id);
}

void
gen_sums(const Gen *g, int32_t *n_prompt, int32_t *n_new, int32_t *n_cached)
{
	*n_prompt = *n_new = *n_cached = 0;
	for (int32_t i = 0; i < g->n_sub; i++) {
		*n_prompt += (int32_t)g->sub[i].n_tok;
		*n_cached += g->sub[i].n_cached;
	}
	for (int32_t i = 0; i < g->n_sub * g->n && !g->hide_new; i++)
		*n_new += g->choice[i].n_new;
}

void
gen_failure(const Gen *g, Problem *p)
{
	switch (g->fail_status) {
	case LLMC_E_CANCELLED:
		problem(p, 503, NULL, "%s", g->fail_text);
		break;
	default:
		problem(p, 500, NULL, "%s", g->fail_text);
	}
}

static const char *const finish_name[LLMC_FINISH_COUNT] = { "length", "eos", "stop", "cancel", "token", "deadline" };

/* All prompts are over: the last words, the counters, and the end. */
static void
done(Gen *g)
{
	Server *s = g->srv;
	Req *r = g->req;
	double now = clock_now();
	int32_t n_prompt, n_new, n_cached;
	Problem p;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	pthread_mutex_lock(&s->lock);
	bool gone = r->gone, told = g->silent || (r->ready && !g->stream);
	r->n_prompt = n_prompt;
	r->n_new = n_new;
	r->finish = g->failed ? "error" : g->n_sub ? finish_name[g->choice[0].finish] : NULL;
	if (gone && !g->silent && g->dialect != DIA_HEALTH)
		s->metrics.failure[ERR_DROPPED]++;
	if (!gone && !told && g->dialect != DIA_HEALTH) {
		Metrics *m = &s->metrics;
		if (g->failed) {
			if (g->stream) /* else the answer counts it */
				m->failure[ERR_GENERATION]++;
		} else {
			m->success++;
			hist_add(&m->duration, now - r->t_start);
			hist_add(&m->validation, g->t_valid - r->t_start);
			hist_add(&m->queue, g->queue_s);
			hist_add(&m->inference, g->prefill_s + g->decode_s);
			hist_add(&m->per_token, (g->prefill_s + g->decode_s) / (n_new > 0 ? n_new : 1));
			hist_add(&m->generated, n_new);
		}
	}
	if (!gone && !told && (!g->failed || g->fail_status != LLMC_E_CANCELLED))
		s->healthy = !g->failed;
	pthread_mutex_unlock(&s->lock);
	if (!gone && !told) {
		if (g->dialect == DIA_HEALTH) {
			if (g->failed) {
				problem(&p, 503, NULL, "unhealthy");
				p.type = "healthcheck";
				req_problem(r, &p);
			} else {
				req_answer(r, 200, NULL, NULL);
			}
		} else if (g->dialect == DIA_TGI || g->dialect == DIA_TGI_COMPAT) {
			tgi_done(g);
		} else {
			openai_done(g);
		}
	}
	if (g->stream && !g->silent)
		req_end(r);
	pthread_mutex_lock(&s->lock);
	r->gen = NULL;
	s->n_gens--;
	pthread_mutex_unlock(&s->lock);
	gen_free(g);
}

/* A sub begins or ends; whoever brings it to nothing finishes the Gen. */
static void
settle(Gen *g, int delta, bool submitted)
{
	pthread_mutex_lock(&g->srv->lock);
	g->n_open += delta;
	if (submitted)
		g->submitting = false;
	bool end = !g->submitting && g->n_open == 0;
	pthread_mutex_unlock(&g->srv->lock);
	if (end)
		done(g);
}

bool
gen_start(Gen *g, Problem *p)
{
	Server *s = g->srv;
	Req *r = g->req;
	llmc_error err = { 0 };
	bool ok = true;

	g->ep.stop = (const char *const *)g->stop;
	g->ep.stop_tokens = g->stop_tokens;
	g->ep.logit_bias = g->bias;
	g->er.params = &g->ep;
	g->er.n = g->n;
	g->er.best_of = g->best_of;
	g->er.deadline_s = s->opt.request_timeout_s;
	g->t_valid = clock_now();
	pthread_mutex_lock(&s->lock);
	g->submitting = true;
	r->gen = g;
	s->n_gens++;
	for (int32_t i = 0; i < g->n_sub && g->dialect != DIA_HEALTH; i++) {
		hist_add(&s->metrics.input_length, (double)g->sub[i].n_tok);
		hist_add(&s->metrics.max_new, g->ep.max_tokens);
	}
	pthread_mutex_unlock(&s->lock);
	for (int32_t i = 0; ok && i < g->n_sub; i++) {
		Sub *sub = &g->sub[i];
		int64_t id = 0;
		g->er.tok = sub->tok;
		g->er.n_tok = sub->n_tok;
		g->er.user = sub;
		llmc_status status = s->back.submit(s->back.self, &g->er, &id, &err);
		pthread_mutex_lock(&s->lock);
		if (status == LLMC_OK) {
			g->n_open++;
			sub->id = id;
		}
		if (status == LLMC_OK && (r->gone || s->closing)) {
			status = LLMC_E_CANCELLED;
			error_set(&err, status, "the client has gone");
		}
		if (status != LLMC_OK) {
			ok = false;
			g->failed = true;
			gen_abort(r);
		}
		pthread_mutex_unlock(&s->lock);
		if (!ok)
			submit_problem(g, status, &err, p);
	}
	if (ok) {
		settle(g, 0, true);
		return true;
	}
	pthread_mutex_lock(&s->lock);
	g->silent = true; /* what had begun ends without a word */
	pthread_mutex_unlock(&s->lock);
	settle(g, 0, true);
	return false;
}

static void
fail(Gen *g, llmc_status status, const char *text)
{
	pthread_mutex_lock(&g->srv->lock);
	if (!g->failed) {
		g->failed = true;
		g->fail_status = status;
		snprintf(g->fail_text, sizeof g->fail_text, "%s", text);
		gen_abort(g->req);
	}
	if (status == LLMC_E_DEVICE)
		g->srv->failed = true;
	pthread_mutex_unlock(&g->srv->lock);
}

static void
count(Sub *sub, Choice *c, const llmc_event *ev)
{
	if (ev->kind == LLMC_EVENT_TOKEN || ev->token >= 0) {
		c->n_new++;
		c->last_id = ev->token;
		c->sum_logprob += ev->logprob;
	}
	if (ev->kind == LLMC_EVENT_FINISH) {
		Gen *g = sub->gen;
		c->done = true;
		c->finish = ev->finish;
		sub->n_cached = ev->n_cached;
		g->queue_s = ev->queue_s;
		g->prefill_s = ev->prefill_s > g->prefill_s ? ev->prefill_s : g->prefill_s;
		g->decode_s = ev->decode_s > g->decode_s ? ev->decode_s : g->decode_s;
	}
}

void
gen_event(Server *s, const llmc_event *ev)
{
	Sub *sub = ev->user;
	Gen *g = sub ? sub->gen : NULL;
	bool tgi = g && (g->dialect == DIA_TGI || g->dialect == DIA_TGI_COMPAT);

	if (!g)
		return;
	pthread_mutex_lock(&s->lock);
	bool quiet = g->failed || g->req->gone;
	pthread_mutex_unlock(&s->lock);
	Choice *c = &g->choice[sub->index * g->n + (ev->index >= 0 && ev->index < g->n ? ev->index : 0)];
	switch (ev->kind) {
	case LLMC_EVENT_NONE:
		break;
	case LLMC_EVENT_PROMPT:
		if (!quiet && g->dialect != DIA_HEALTH)
			(tgi ? tgi_prompt : openai_prompt)(g, sub, ev);
		break;
	case LLMC_EVENT_TOKEN:
		count(sub, c, ev);
		if (!quiet && g->dialect != DIA_HEALTH)
			(tgi ? tgi_token : openai_token)(g, sub, c, ev);
		break;
	case LLMC_EVENT_FINISH:
		count(sub, c, ev);
		if (ev->finish == LLMC_FINISH_CANCEL && !quiet)
			fail(g, LLMC_E_CANCELLED, "The request was cut short: the server is shutting down.");
		else if (ev->finish == LLMC_FINISH_DEADLINE && !quiet)
			fail(g, LLMC_E_CANCELLED, "The request took longer than the server allows (--request-timeout).");
		else if (!quiet && g->dialect != DIA_HEALTH)
			(tgi ? tgi_finish : openai_finish)(g, sub, c, ev);
		break;
	case LLMC_EVENT_ERROR:
		if (!quiet)
			fail(g, ev->status, ev->text && *ev->text ? ev->text : llmc_status_text(ev->status));
		break;
	}
	if (ev->last) {
		pthread_mutex_lock(&s->lock);
		sub->over = true;
		pthread_mutex_unlock(&s->lock);
		settle(g, -1, false);
	}
}

void
req_problem(Req *r, const Problem *p)
{
	if (r->generates) {
		int kind = p->status == 429 ? ERR_OVERLOADED : p->status >= 500 ? ERR_GENERATION : ERR_VALIDATION;
		pthread_mutex_lock(&r->srv->lock);
		r->srv->metrics.failure[kind]++;
		r->finish = "error";
		pthread_mutex_unlock(&r->srv->lock);
	}
	if (p->status == 429)
		req_head(r, "Retry-After", "1");
	if (r->route && r->route->tgi)
		tgi_problem(r, p);
	else
		openai_problem(r, p);
}

/* ---- tokens ---- */

bool
token_is_special(const llmc_tokenizer *t, int32_t id)
{
	return t && text_is_special(t, id);
}

void
token_bytes(const llmc_tokenizer *t, int32_t id, Strbuf *out)
{
	bool byte_level = false;
	const char *s = t ? llmc_token_text(t, id) : NULL;
	size_t n, len;

	if (!s)
		return;
	n = t->tok[id].n;
	for (size_t i = 0; i < t->n_dec; i++)
		byte_level |= t->dec[i].kind == DEC_BYTELEVEL;
	if (t->tok[id].special || t->tok[id].type == TT_CONTROL || t->tok[id].type == TT_USER) {
		strbuf_add(out, s, n);
		return;
	}
	unsigned byte;
	if (t->byte_fallback && n == 6 && sscanf(s, "<0x%2X>", &byte) == 1) {
		strbuf_putc(out, (char)byte);
		return;
	}
	for (size_t i = 0; i < n; i += len) {
		int32_t cp = utf8_next(s + i, n - i, &len);
		int b = byte_level && cp >= 0 ? bytelevel_byte((uint32_t)cp) : -1;
		if (b >= 0)
			strbuf_putc(out, (char)b);
		else if (!byte_level && cp == 0x2581)
			strbuf_putc(out, ' ');
		else
			strbuf_add(out, s + i, len);
	}
}

int64_t
utf8_chars(const char *s, size_t n)
{
	int64_t k = 0;

	for (size_t i = 0; i < n; i++)
		k += ((unsigned char)s[i] & 0xc0) != 0x80;
	return k;
}
