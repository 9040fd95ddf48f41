/* /pause and /resume, by vLLM's and SGLang's names: while a model is paused, new requests wait, and
 * its weights may be replaced. Running requests finish with the weights that they began with, or
 * are cancelled. */
#include <string.h>

#include "base/json.h"
#include "serve/dialects/generation.h"
#include "serve/http/route.h"
#include "serve/models/catalogue.h"
#include "serve/models/model_manager.h"
#include "serve/models/sleep_wake.h"

static void
answer(Req *r, const char *status)
{
	Strbuf b = { 0 };

	json_printf(&b, "{\"success\":true,\"status\":%s}", status);
	req_answer(r, 200, type_json, &b);
}

typedef enum PauseMode {
	PAUSE_ABORT, /* cancel what runs */
	PAUSE_WAIT,  /* answer when nothing runs */
	PAUSE_KEEP,  /* answer at once */
} PauseMode;

/* Set *t to the model that the query or the body names; NULL: all. */
static bool
selected(Req *r, const json_t *o, Slot **t, Problem *p)
{
	char query[256];
	const char *name = head_query(&r->in, "model", query, sizeof query)
	                       ? query
	                       : json_string_value(json_object_get(o, "model"));

	*t = name ? models_find_or_add(r->srv, name, p) : NULL;
	r->slot = *t ? *t : r->slot;
	r->all_models = !*t;
	return !p->status;
}

static bool
mode_of(Req *r, const json_t *o, PauseMode *out, Problem *p)
{
	char query[32];
	const char *mode = head_query(&r->in, "mode", query, sizeof query)
	                       ? query
	                       : json_string_value(json_object_get(o, "mode"));

	*out = mode && !strcmp(mode, "wait") ? PAUSE_WAIT
	       : mode && (!strcmp(mode, "keep") || !strcmp(mode, "in_place") ||
	                  !strcmp(mode, "retract"))
	           ? PAUSE_KEEP
	           : PAUSE_ABORT;
	return !mode || *out != PAUSE_ABORT || !strcmp(mode, "abort") ||
	       problem(p, 400, "mode",
	               "Invalid 'mode': expected abort, wait or keep (in_place and retract are the "
	               "same as keep).");
}

/* Cancel the running requests of a slot; lock held. */
static void
cancel_running(const Slot *t)
{
	for (Generation *g = t->model ? t->model->running : NULL; g; g = g->next)
		req_cancel(g->req);
}

/* Read the body of a call, which may be empty. */
static json_t *
body_of(Req *r, Problem *p)
{
	return r->body.len ? body_object(&r->body, p) : NULL;
}

void
pause_begin(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	PauseMode mode = PAUSE_ABORT;
	Slot *t = NULL;
	json_t *o = sleep_allowed(r, &p) ? body_of(r, &p) : NULL;

	const bool ok = !p.status && mode_of(r, o, &mode, &p) && selected(r, o, &t, &p);
	json_decref(o);
	if (!ok) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	const bool closing = s->closing;
	for (int i = 0; i < s->n_slots; i++) {
		if (t && s->slot[i] != t)
			continue;
		s->slot[i]->paused = true;
		if (mode == PAUSE_ABORT)
			cancel_running(s->slot[i]);
	}
	if (!closing && mode != PAUSE_KEEP) {
		atomic_fetch_add(&r->refs, 1);
		r->reply = REPLY_SUCCESS;
		queue_put(&s->pausers, r);
		pthread_cond_signal(&s->keep);
	}
	pthread_mutex_unlock(&s->lock);
	if (closing || mode == PAUSE_KEEP)
		answer(r, "paused");
}

void
pause_end(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	Slot *t = NULL;
	json_t *o = sleep_allowed(r, &p) ? body_of(r, &p) : NULL;

	const bool ok = !p.status && selected(r, o, &t, &p);
	json_decref(o);
	if (!ok) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (t && at != t)
			continue;
		at->paused = false;
		if (at->waiting.first)
			slot_want(s, at);
	}
	pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
	answer(r, "resumed");
}

void
pause_state(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	Strbuf b = { 0 };
	Slot *t = NULL;
	bool paused = true;

	if (!selected(r, NULL, &t, &p)) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		paused &= (t && s->slot[i] != t) || s->slot[i]->paused;
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, paused ? "{\"is_paused\":true}" : "{\"is_paused\":false}");
	req_answer(r, 200, type_json, &b);
}

/* Prefixes that were computed with other weights are never used, so nothing is to be flushed. */
void
pause_flush(Req *r)
{
	Problem p = { 0 };

	if (sleep_allowed(r, &p))
		answer(r, "flushed");
	else
		req_problem(r, &p);
}

void
weights_over_links(Req *r)
{
	Problem p = { 0 };

	problem(&p, 400, NULL,
	        "This server receives no tensors over NCCL or CUDA IPC: write a checkpoint below "
	        "the folder of --weights-dir, such as /dev/shm/run, and send its path to "
	        "/v1/weights or /update_weights_from_disk.");
	p.code = "weights_not_replaced";
	req_problem(r, &p);
}
