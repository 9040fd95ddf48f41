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

/* Answer a call about one model, or about all. */
static void
answer(Req *r, const char *status)
{
	Queue one = { 0 };

	atomic_fetch_add(&r->refs, 1);
	r->reply = REPLY_PAUSE;
	queue_put(&one, r);
	queue_answer(one, NULL, status);
}

typedef enum PauseMode {
	PAUSE_ABORT, /* cancel running requests */
	PAUSE_WAIT,  /* answer when no request runs */
	PAUSE_KEEP,  /* answer at once; running requests continue */
} PauseMode;

/* Read a field of the query, or else of the body; NULL: it is in neither. */
static bool
text_of(Req *r, const json_t *o, const char *key, char *query, size_t cap, const char **out,
        Problem *p)
{
	*out = query;
	return head_query(&r->in, key, query, cap) || field_text(o, key, out, p);
}

/* Set *t to the model that the query or the body names; NULL: all. */
static bool
selected(Req *r, const json_t *o, Slot **t, Problem *p)
{
	char query[512];
	const char *name = NULL;

	*t = NULL;
	if (text_of(r, o, "model", query, sizeof query, &name, p) && name)
		*t = models_find_or_add(r->srv, name, p);
	r->slot = *t ? *t : r->slot;
	r->all_models = !*t;
	return !p->status;
}

static bool
mode_of(Req *r, const json_t *o, PauseMode *out, Problem *p)
{
	char query[32];
	const char *mode = NULL;

	*out = PAUSE_ABORT;
	if (!text_of(r, o, "mode", query, sizeof query, &mode, p))
		return false;
	if (mode && !strcmp(mode, "wait"))
		*out = PAUSE_WAIT;
	else if (mode &&
	         (!strcmp(mode, "keep") || !strcmp(mode, "in_place") || !strcmp(mode, "retract")))
		*out = PAUSE_KEEP;
	return !mode || *out != PAUSE_ABORT || !strcmp(mode, "abort") ||
	       problem(p, 400, "mode",
	               "Invalid 'mode': expected abort, wait or keep (in_place and retract are the "
	               "same as keep).");
}

static void
cancel_all(const ServedModel *m)
{
	for (Generation *g = m->running; g; g = g->next) {
		g->req->cancelled = true;
		req_cancel(g->req);
	}
}

/* Cancel the running requests of a slot, including those of its retired engines; lock held. */
static void
cancel_running(const Server *s, Slot *t)
{
	t->cancels = true;
	if (t->model)
		cancel_all(t->model);
	for (const ServedModel *m = s->retired; m; m = m->next)
		if (m->slot == t)
			cancel_all(m);
}

/* Read the body of a call, which may be empty, and the selected model. */
static bool
read_call(Req *r, PauseMode *mode, Slot **t, Problem *p)
{
	json_t *o = sleep_allowed(r, p) && r->body.len ? body_object(&r->body, p) : NULL;
	const bool ok = !p->status && (!mode || mode_of(r, o, mode, p)) && selected(r, o, t, p);

	json_decref(o);
	return ok;
}

void
pause_begin(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	PauseMode mode = PAUSE_ABORT;
	Slot *t = NULL;

	if (!read_call(r, &mode, &t, &p)) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	if (s->closing)
		problem_closing(&p);
	s->paused_all |= !t;
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (at->removed || (t && at != t))
			continue;
		at->paused = true;
		if (mode == PAUSE_ABORT)
			cancel_running(s, at);
	}
	if (!p.status && mode != PAUSE_KEEP) {
		r->reply = REPLY_PAUSE;
		queue_answer_later(s, &s->pausers, r);
	}
	pthread_mutex_unlock(&s->lock);
	if (p.status)
		req_problem(r, &p);
	else if (mode == PAUSE_KEEP)
		answer(r, "paused");
}

void
pause_end(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	Slot *t = NULL;

	if (!read_call(r, NULL, &t, &p)) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	s->paused_all &= t != NULL;
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (at->removed || (t && at != t))
			continue;
		at->paused = at->cancels = false;
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
	int n = 0;

	if (!selected(r, NULL, &t, &p)) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		const Slot *at = s->slot[i];
		if (at->removed || (t && at != t))
			continue;
		paused &= at->paused;
		n++;
	}
	paused = n ? paused : s->paused_all;
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, paused ? "{\"is_paused\":true}" : "{\"is_paused\":false}");
	req_answer(r, 200, type_json, &b);
}

/* Answer a call that flushes the prefix cache. There is nothing to do: pages computed with other
 * weights are never found. */
void
pause_flush(Req *r)
{
	Problem p = { 0 };

	r->all_models = true;
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
