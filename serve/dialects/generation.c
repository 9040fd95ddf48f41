/* Passes prompts to the engine and the engine's events to the dialect. Decides which thread
 * finishes a generation if several of its requests end at once. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"
#include "base/random.h"
#include "base/sha256.h"
#include "serve/dialects/generation.h"
#include "serve/http/api_keys.h"

Generation *
gen_new(Req *r, const Dialect *d)
{
	Generation *g = calloc(1, sizeof *g + d->own_bytes);

	if (!g)
		return NULL;
	g->req = r;
	atomic_fetch_add(&r->refs, 1);
	g->srv = r->srv;
	g->model = r->model;
	pthread_mutex_lock(&g->srv->lock);
	model_ref(g->model);
	pthread_mutex_unlock(&g->srv->lock);
	g->dialect = d;
	g->n = 1;
	g->images.req = r;
	g->er = LLMC_INIT(llmc_request);
	g->ep = LLMC_INIT(llmc_params);
	return g;
}

void
gen_free(Generation *g)
{
	if (!g)
		return;
	if (g->dialect->release)
		g->dialect->release(g);
	for (int32_t i = 0; i < g->n_sub; i++) {
		free(g->sub[i].tok);
		free(g->sub[i].echo);
		strbuf_release(&g->sub[i].prompt_logprobs);
		for (int j = 0; j < 4; j++)
			strbuf_release(&g->sub[i].col[j]);
		for (int32_t k = 0; k < g->n; k++) {
			Choice *c = &g->choice[i * g->n + k];
			strbuf_release(&c->text);
			strbuf_release(&c->ids);
			strbuf_release(&c->held);
			strbuf_release(&c->input);
			strbuf_release(&c->reasoning);
			strbuf_release(&c->call);
			llmc_calls_close(c->calls);
			for (int j = 0; j < 4; j++)
				strbuf_release(&c->col[j]);
		}
	}
	free(g->sub);
	free(g->choice);
	for (char **s = g->stop; s && *s; s++)
		free(*s);
	free(g->stop);
	for (char **s = g->breakers; s && *s; s++)
		free(*s);
	free(g->breakers);
	free(g->samplers);
	llmc_calls_close(g->marks);
	free(g->stop_tokens);
	free(g->allowed);
	free(g->report);
	free(g->bias);
	for (int32_t i = 0; i < g->ep.n_bad_words; i++)
		free((void *)(uintptr_t)g->bad_words[i].tok);
	free(g->bad_words);
	llmc_grammar_close(g->grammar);
	strbuf_release(&g->form);
	free(g->after[0]);
	free(g->after[1]);
	strbuf_release(&g->asked);
	chat_images_release(&g->images, g->model);
	model_unref(g->model);
	req_unref(g->req);
	free(g);
}

void
gen_count(Req *r)
{
	pthread_mutex_lock(&r->srv->lock);
	r->generates = true;
	r->slot->metrics.requests++;
	pthread_mutex_unlock(&r->srv->lock);
}

bool
gen_prompts(Generation *g, int32_t n, Problem *p)
{
	g->sub = calloc((size_t)n, sizeof *g->sub);
	g->choice = calloc((size_t)n * (size_t)g->n, sizeof *g->choice);
	if (!g->sub || !g->choice) {
		free(g->sub);
		free(g->choice);
		g->sub = NULL;
		g->choice = NULL;
		return problem_memory(p);
	}
	g->n_sub = n;
	for (int32_t i = 0; i < n; i++)
		g->sub[i] = (SubRequest){ .gen = g, .index = i };
	return true;
}

bool
gen_stopped(Req *r, Problem *p)
{
	pthread_mutex_lock(&r->srv->lock);
	const bool cancelled = r->cancelled;
	pthread_mutex_unlock(&r->srv->lock);
	return problem(p, 503, NULL, "%s",
	               cancelled                               ? MODEL_PAUSED
	               : r->srv->closing && !deadline_passed() ? "The server is shutting down."
	                                                       : REQUEST_TOO_LONG);
}

static void
submit_problem(Generation *g, llmc_status status, const llmc_error *err, Problem *p)
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
		gen_stopped(g->req, p);
		break;
	case LLMC_E_MEMORY:
		problem_memory(p);
		break;
	default:
		if (status == LLMC_E_DEVICE) {
			pthread_mutex_lock(&g->srv->lock);
			g->model->failed = g->req->device_failed = true;
			pthread_mutex_unlock(&g->srv->lock);
		}
		problem(p, 500, NULL, "%s", err->text);
	}
}

/* Cancel the engine requests of r; lock held. */
static void
gen_cancel(Req *r)
{
	Generation *g = r->gen;

	for (int32_t i = 0; g && i < g->n_sub; i++)
		if (g->sub[i].id && !g->sub[i].over)
			g->model->back.cancel(g->model->back.self, g->sub[i].id);
}

void
gen_sums(const Generation *g, int32_t *n_prompt, int32_t *n_new, int32_t *n_cached)
{
	*n_prompt = *n_new = *n_cached = 0;
	for (int32_t i = 0; i < g->n_sub; i++) {
		*n_prompt += (int32_t)g->sub[i].n_tok;
		*n_cached += g->sub[i].n_cached;
	}
	for (int32_t i = 0; i < g->n_sub * g->n && !g->hide_new; i++)
		*n_new += g->choice[i].n_new;
}

/* Finish: all prompts are over. Send the end of the answer, update the counters, free. */
static void
done(Generation *g)
{
	Server *s = g->srv;
	Req *r = g->req;
	double now = clock_now();
	int32_t n_prompt, n_new, n_cached;
	Problem p;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	pthread_mutex_lock(&s->lock);
	/* release the key's limits before the answer is sent: the client's next request must find
	 * them free */
	if (g->key_taken)
		key_give(r->key, g->key_tokens);
	bool gone = r->gone, answered = g->silent || (r->ready && !g->stream);
	r->n_prompt = n_prompt;
	r->n_new = n_new;
	r->t_valid = g->t_valid;
	r->queue_s = g->queue_s;
	r->prefill_s = g->prefill_s;
	r->decode_s = g->decode_s;
	r->finish = g->failed ? "error" : g->n_sub ? llmc_finish_name(g->choice[0].finish) : NULL;
	if (gone && !g->silent && r->generates)
		r->slot->metrics.failure[ERR_DROPPED]++;
	if (!gone && !answered && r->generates) {
		Metrics *m = &r->slot->metrics;
		if (g->failed) {
			/* in a stream this function counts; a complete answer is counted when it is
			 * sent */
			if (g->stream)
				m->failure[ERR_GENERATION]++;
		} else {
			m->success++;
			hist_add(&m->duration, now - r->t_start);
			hist_add(&m->validation, g->t_valid - r->t_start);
			hist_add(&m->queue, g->queue_s);
			hist_add(&m->inference, g->prefill_s + g->decode_s);
			hist_add(&m->per_token,
			         (g->prefill_s + g->decode_s) / (n_new > 0 ? n_new : 1));
			hist_add(&m->generated, n_new);
		}
	}
	if (!gone && !answered && g->n_sub && (!g->failed || g->fail_status != LLMC_E_CANCELLED))
		g->model->healthy = !g->failed;
	pthread_mutex_unlock(&s->lock);
	if (!gone && !answered && g->failed) {
		problem(&p,
		        g->fail_status == LLMC_E_CANCELLED || g->fail_status == LLMC_E_MEMORY ? 503
		                                                                              : 500,
		        NULL, "%s", g->fail_text);
		if (g->dialect->problem)
			g->dialect->problem(g, &p);
		else
			req_problem(r, &p);
	} else if (!gone && !answered) {
		g->dialect->done(g);
	}
	if (g->stream && !g->silent)
		req_end(r);
	pthread_mutex_lock(&s->lock);
	r->gen = NULL;
	r->cancel = NULL;
	for (ServedModel *m = g->model; m; m = m->of) {
		m->n_gens--;
		m->slot->used_at = clock_now();
	}
	*g->from = g->next;
	if (g->next)
		g->next->from = g->from;
	pthread_mutex_unlock(&s->lock);
	gen_free(g);
}

/* Count a sub-request that begins (delta 1) or is over (-1). The call that brings the count to 0
 * finishes the Generation. */
static void
add_pending(Generation *g, int delta, bool submitted)
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

static int32_t
max_tokens(const Generation *g, const SubRequest *sub)
{
	const int32_t left = g->model->max_total - (int32_t)sub->n_tok;

	return g->max_new < 0 || (g->clip_new && g->max_new > left) ? left
	       : g->hide_new                                        ? 1
	                                                            : g->max_new;
}

/* Give each key of --keys its own prefix pages. Otherwise cached_tokens and the time to the first
 * token would show a client whether another client has sent the same prefix. */
static void
separate_keys(Generation *g)
{
	const Req *r = g->req;
	const char *owner = r->key ? r->key->name : r->owner;
	Sha256 sum;
	char hex[65];

	if (!owner || !*owner || g->srv->opt.share_prefix)
		return;
	sha256_init(&sum);
	sha256_add(&sum, &g->er.prefix_salt, sizeof g->er.prefix_salt);
	sha256_add(&sum, owner, strlen(owner));
	sha256_hex(&sum, hex);
	hex[16] = 0;
	g->er.prefix_salt = strtoull(hex, NULL, 16) | 1;
}

/* Run the vision tower over the images of the prompt. */
static bool
run_images(Generation *g, Problem *p)
{
	bool ok = chat_images_run(&g->images, g->model, p);

	g->er.images = g->images.part;
	g->er.n_images = g->images.n;
	if (!ok) {
		pthread_mutex_lock(&g->srv->lock);
		g->failed = true;
		pthread_mutex_unlock(&g->srv->lock);
	}
	return ok;
}

bool
gen_start(Generation *g, Problem *p)
{
	Server *s = g->srv;
	Req *r = g->req;
	llmc_error err = { 0 };
	bool ok = true;

	g->ep.stop = (const char *const *)g->stop;
	g->ep.dry_sequence_breakers = (const char *const *)g->breakers;
	g->ep.samplers = g->samplers;
	g->ep.stop_tokens = g->stop_tokens;
	g->ep.allowed_tokens = g->allowed;
	g->ep.logit_bias = g->bias;
	g->ep.bad_words = g->bad_words;
	g->ep.grammar = g->grammar;
	g->er.params = &g->ep;
	g->er.n = g->n;
	g->er.best_of = g->best_of;
	separate_keys(g);
	/* without keys each HTTP request is a client */
	g->er.client = key_hash(r) ? key_hash(r) : (uint64_t)(uintptr_t)r;
	g->t_valid = clock_now();
	for (int32_t i = 0; i < g->n_sub; i++)
		g->key_tokens +=
		    (int64_t)g->sub[i].n_tok +
		    (int64_t)max_tokens(g, &g->sub[i]) * (g->best_of > g->n ? g->best_of : g->n);
	pthread_mutex_lock(&s->lock);
	if (r->key && g->er.priority < r->key->priority)
		g->er.priority = r->key->priority;
	if (r->answered)
		g->er.priority = PRIORITY_MOST + 1; /* lower priority than any client's */
	if (r->key)
		g->failed = !(ok = g->key_taken = key_take(r->key, g->key_tokens, p));
	if (ok && g->model->slot->cancels) {
		g->failed = true;
		ok = problem(p, 503, NULL, MODEL_PAUSED);
	}
	g->submitting = true;
	r->gen = g;
	r->cancel = gen_cancel;
	for (ServedModel *m = g->model; m; m = m->of)
		m->n_gens++;
	g->next = g->model->running;
	g->from = &g->model->running;
	if (g->next)
		g->next->from = &g->next;
	g->model->running = g;
	for (int32_t i = 0; i < g->n_sub && r->generates; i++) {
		hist_add(&r->slot->metrics.input_length, (double)g->sub[i].n_tok);
		hist_add(&r->slot->metrics.max_new, max_tokens(g, &g->sub[i]));
	}
	pthread_mutex_unlock(&s->lock);
	ok = ok && run_images(g, p);
	/* time left of the request's limit; kept above 0, which means no limit to the engine */
	double left = deadline_at() - clock_now();
	g->er.deadline_s = deadline_at() > 0 ? (left > 1e-9 ? left : 1e-9) : 0;
	for (int32_t i = 0; ok && i < g->n_sub; i++) {
		SubRequest *sub = &g->sub[i];
		int64_t id = 0;
		g->ep.max_tokens = max_tokens(g, sub);
		g->er.tok = sub->tok;
		g->er.n_tok = sub->n_tok;
		g->er.n_first = sub->n_first;
		g->er.user = sub;
		llmc_status status = g->model->back.submit(g->model->back.self, &g->er, &id, &err);
		pthread_mutex_lock(&s->lock);
		if (status == LLMC_OK) {
			g->n_open++;
			sub->id = id;
		}
		if (status == LLMC_OK && (r->gone || r->cancelled || s->closing)) {
			status = LLMC_E_CANCELLED;
		}
		if (status != LLMC_OK) {
			ok = false;
			g->failed = true;
			gen_cancel(r);
		}
		pthread_mutex_unlock(&s->lock);
		if (!ok)
			submit_problem(g, status, &err, p);
	}
	chat_images_release(&g->images, g->model); /* the engine has copied the images */
	if (ok) {
		add_pending(g, 0, true);
		return true;
	}
	pthread_mutex_lock(&s->lock);
	g->silent = true; /* sub-requests that were submitted end without output */
	pthread_mutex_unlock(&s->lock);
	add_pending(g, 0, true);
	return false;
}

void
gen_handle(Req *r, const Dialect *d, GenReadFn read, const void *how)
{
	Problem p = { 0 };
	Generation *g = NULL;

	/* not if the image worker handles the request again: it has been counted then */
	if (!r->generates)
		gen_count(r);
	json_t *o = body_object(&r->body, &p);
	if (o && !(g = gen_new(r, d)))
		problem_memory(&p);
	bool ok = g && read(g, o, how, &p);
	json_decref(o);
	bool stream = ok && g->stream; /* read now, because g may be freed once it has started */
	if (!ok)
		gen_free(g);
	if (!ok || !gen_start(g, &p))
		req_problem(r, &p);
	else if (stream)
		req_stream(r, d->stream_type);
}

static void
fail(Generation *g, llmc_status status, const char *text)
{
	pthread_mutex_lock(&g->srv->lock);
	if (!g->failed) {
		g->failed = true;
		g->fail_status = status;
		snprintf(g->fail_text, sizeof g->fail_text, "%s", text);
		req_cancel(g->req);
	}
	if (status == LLMC_E_DEVICE)
		g->model->failed = g->req->device_failed = true;
	pthread_mutex_unlock(&g->srv->lock);
}

static void
count(SubRequest *sub, Choice *c, const llmc_event *ev)
{
	if (ev->kind == LLMC_EVENT_TOKEN || ev->token >= 0) {
		c->n_new++;
		if (!(sub->gen->t_first > 0))
			sub->gen->t_first = ev->time_s;
		c->last_id = ev->token;
		c->sum_logprob += ev->logprob;
	}
	if (ev->kind == LLMC_EVENT_FINISH) {
		Generation *g = sub->gen;
		c->done = true;
		c->finish = ev->finish;
		c->stop = ev->stop;
		c->prefill_s = ev->prefill_s;
		c->decode_s = ev->decode_s;
		sub->n_cached = ev->n_cached;
		g->queue_s = ev->queue_s;
		g->prefill_s = ev->prefill_s > g->prefill_s ? ev->prefill_s : g->prefill_s;
		g->decode_s = ev->decode_s > g->decode_s ? ev->decode_s : g->decode_s;
	}
}

typedef struct Listener {
	Generation *g;
	Choice *c;
	GenPieceFn fn;
	bool reasoned;
} Listener;

static void
on_piece(void *user, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	Listener *l = user;

	if (kind == LLMC_PIECE_TEXT && l->g->calls_only)
		return;
	l->reasoned |= kind == LLMC_PIECE_REASONING;
	l->fn(l->g, l->c, kind, call, text, n);
}

void
gen_pieces(Generation *g, Choice *c, const llmc_event *ev, bool last, GenPieceFn fn)
{
	Listener l = { g, c, fn, false };
	const char *text = ev->text ? ev->text : "";

	if (!c->calls)
		fn(g, c, LLMC_PIECE_TEXT, -1, text, ev->n_bytes);
	else if (llmc_calls_feed(c->calls, text, ev->n_bytes, last, on_piece, &l, NULL) != LLMC_OK)
		c->text.failed = true;
	c->n_reasoning += l.reasoned && !last;
}

void
gen_enough(const Generation *g, const SubRequest *sub, Choice *c, int64_t request)
{
	const Choice *first = &g->choice[sub->index * g->n];
	bool all = true;

	c->enough = true;
	for (const Choice *k = first; k < first + g->n; k++)
		all &= k->enough || k->done;
	if (all)
		g->model->back.cancel(g->model->back.self, request);
}

/* Return the end of a choice that gen_enough has ended, whatever it is in the engine. */
static llmc_event
early_end(const llmc_event *ev)
{
	llmc_event out = *ev;

	out.finish = LLMC_FINISH_LENGTH;
	out.token = out.stop = -1;
	out.text = "";
	out.n_bytes = 0;
	return out;
}

/* Bytes of output buffered for this choice. */
static size_t
buffered_bytes(const SubRequest *sub, const Choice *c)
{
	size_t n = c->text.cap + c->held.cap + c->reasoning.cap + c->call.cap + c->ids.cap +
	           sub->prompt_logprobs.cap;

	for (int i = 0; i < 4; i++)
		n += c->col[i].cap + sub->col[i].cap;
	return n;
}

void
gen_event(Server *s, const llmc_event *ev)
{
	SubRequest *sub = ev->user;
	Generation *g = sub ? sub->gen : NULL;

	if (!g)
		return;
	const Dialect *d = g->dialect;
	pthread_mutex_lock(&s->lock);
	bool quiet = g->failed || g->req->gone;
	const bool paused = g->req->cancelled;
	pthread_mutex_unlock(&s->lock);
	Choice *c =
	    &g->choice[sub->index * g->n + (ev->index >= 0 && ev->index < g->n ? ev->index : 0)];
	llmc_event ended;
	if (c->enough && ev->kind == LLMC_EVENT_FINISH) {
		ended = early_end(ev);
		ev = &ended;
	}
	size_t before = buffered_bytes(sub, c);
	switch (ev->kind) {
	case LLMC_EVENT_NONE:
		break;
	case LLMC_EVENT_PROMPT:
		if (!quiet && d->prompt)
			d->prompt(g, sub, ev);
		break;
	case LLMC_EVENT_TOKEN:
		if (c->enough)
			break;
		count(sub, c, ev);
		if (!quiet && d->token)
			d->token(g, sub, c, ev);
		break;
	case LLMC_EVENT_FINISH:
		count(sub, c, ev);
		if (ev->finish == LLMC_FINISH_CANCEL && !quiet)
			fail(g, LLMC_E_CANCELLED,
			     s->closing ? "The request was cancelled: the server is shutting down."
			     : paused   ? MODEL_PAUSED
			                : "The request was cancelled: the model gets new weights.");
		else if (ev->finish == LLMC_FINISH_DEADLINE && !quiet)
			fail(g, LLMC_E_CANCELLED, REQUEST_TOO_LONG);
		else if (!quiet && d->finish)
			d->finish(g, sub, c, ev);
		break;
	case LLMC_EVENT_ERROR:
		if (!quiet)
			fail(g, ev->status,
			     ev->text && *ev->text ? ev->text : llmc_status_text(ev->status));
		break;
	}
	size_t after = buffered_bytes(sub, c);
	if (!quiet && after > before && !req_charge(g->req, after - before))
		fail(g, LLMC_E_MEMORY,
		     "The answer exceeds the server's memory limit for requests. Reduce max_tokens "
		     "or n, or try again later.");
	if (ev->last) {
		pthread_mutex_lock(&s->lock);
		sub->over = true;
		pthread_mutex_unlock(&s->lock);
		add_pending(g, -1, false);
	}
}
