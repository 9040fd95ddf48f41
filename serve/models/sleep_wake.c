/* Calls that load and unload engines: vLLM's /sleep, /wake_up and /is_sleeping, and /reload, where
 * `?model=NAME` selects the model; /models/load and /models/unload of llama.cpp's router, where the
 * body names it; and DELETE /v1/models/NAME. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/models/catalogue.h"
#include "serve/http/route.h"
#include "serve/models/sleep_wake.h"

/* Is the caller an operator? A key with limits belongs to a client. */
bool
sleep_allowed(Req *r, Problem *p)
{
	if (r->key)
		return problem(
		    p, 403, NULL,
		    "A key of --keys must not do this: use the server's own key (--api-key).");
	return req_own_page(r, p);
}

char *
path_below(const char *dir, const char *path)
{
	char below[PATH_MAX];
	char *home = realpath(dir, NULL), *real = NULL;
	const size_t n = home ? strlen(home) : 0;

	if (home && snprintf(below, sizeof below, *path == '/' ? "%.0s%s" : "%s/%s", home, path) <
	                (int)sizeof below)
		real = realpath(below, NULL);
	if (real && (strncmp(real, home, n) != 0 || (home[n - 1] != '/' && real[n] != '/'))) {
		free(real);
		real = NULL;
	}
	free(home);
	return real;
}

/* Return the selected slot; NULL without a Problem: the query names no model. */
static Slot *
slot_of_query(Req *r, Problem *p)
{
	char name[512];
	Slot *t = NULL;

	if (head_query(&r->in, "model", name, sizeof name)) {
		t = models_find_or_add(r->srv, name, p);
		r->slot = t ? t : r->slot;
	}
	return t;
}

/* Return the selected slot; a Problem if it cannot be loaded and unloaded. */
static Slot *
selected_slot(Req *r, Problem *p)
{
	Slot *t = sleep_allowed(r, p) ? slot_of_query(r, p) : NULL;

	if (!t && !p->status && (models_number(r->srv) > 1 || r->srv->nameless))
		problem(p, 400, "model",
		        "This server has several models: select one with ?model=NAME.");
	else if (!t && !p->status)
		t = r->srv->slot[0];
	if (t && !t->src.open)
		problem(p, 400, "model",
		        "The model '%.200s' is managed by the program that opened it: it cannot be "
		        "reloaded here.",
		        t->name);
	return p->status ? NULL : t;
}

void
sleep_begin(Req *r)
{
	Problem p = { 0 };
	char level[16] = "1";

	head_query(&r->in, "level", level, sizeof level);
	if (strcmp(level, "1") != 0 && strcmp(level, "2") != 0)
		problem(&p, 400, "level",
		        "Invalid 'level': expected 1 or 2, which have the same effect.");
	Slot *t = !p.status && sleep_allowed(r, &p) ? slot_of_query(r, &p) : NULL;
	Slot *first = t ? t : r->srv->slot[0];
	if (!p.status && !first->src.open)
		problem(
		    &p, 400, "model",
		    "The model '%.200s' is managed by the program that opened it: it cannot sleep.",
		    first->name);
	r->all_models = !t;
	if (p.status)
		req_problem(r, &p);
	else
		models_sleep(r->srv, t, r);
}

void
sleep_end(Req *r)
{
	Problem p = { 0 };
	Slot *t = selected_slot(r, &p);

	if (t)
		models_want(r->srv, t, r);
	else
		req_problem(r, &p);
}

void
sleep_reload(Req *r)
{
	Problem p = { 0 };
	Slot *t = selected_slot(r, &p);

	if (t)
		models_reload(r->srv, t, r);
	else
		req_problem(r, &p);
}

void
sleep_state(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	Strbuf b = { 0 };
	Slot *t = slot_of_query(r, &p);
	bool sleeping = true;

	if (p.status) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		sleeping &= (t && s->slot[i] != t) || !s->slot[i]->model;
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, sleeping ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}");
	req_answer(r, 200, type_json, &b);
}

/* ---- by a body ---- */

/* Return the slot that a body names. */
static Slot *
slot_of_body(Req *r, Problem *p)
{
	json_t *o = sleep_allowed(r, p) ? body_object(&r->body, p) : NULL;
	const char *name = json_string_value(json_object_get(o, "model"));
	Slot *t = NULL;

	if (o && !name)
		problem(p, 400, "model", "'model' is missing: expected the name of a model.");
	if (name)
		t = models_find_or_add(r->srv, name, p);
	if (t && !t->src.open)
		problem(p, 400, "model",
		        "The model '%.200s' is managed by the program that opened it: it cannot be "
		        "loaded or unloaded here.",
		        t->name);
	json_decref(o);
	r->slot = t ? t : r->slot;
	r->reply = REPLY_SUCCESS;
	return p->status ? NULL : t;
}

void
models_load_call(Req *r)
{
	Problem p = { 0 };
	Slot *t = slot_of_body(r, &p);

	if (t)
		models_want(r->srv, t, r);
	else
		req_problem(r, &p);
}

void
models_unload_call(Req *r)
{
	Problem p = { 0 };
	Slot *t = slot_of_body(r, &p);

	if (t)
		models_sleep(r->srv, t, r);
	else
		req_problem(r, &p);
}

void
models_delete_call(Req *r)
{
	Problem p = { 0 };
	Slot *t = sleep_allowed(r, &p) ? models_find(r->srv, r->tail) : NULL;

	if (!t && !p.status)
		models_unknown(r->srv, r->tail, &p);
	if (t && !t->found)
		problem(&p, 400, "model",
		        "The server was started with the model '%.200s', so its name stays: POST "
		        "/models/unload frees its memory.",
		        t->name);
	r->slot = t ? t : r->slot;
	r->reply = REPLY_DELETED;
	if (p.status)
		req_problem(r, &p);
	else
		models_forget(r->srv, t, r);
}
