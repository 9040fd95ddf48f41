/* The model manager: one thread that opens and closes engines, one at a time, frees memory for
 * them, and answers the calls that requested it. It runs with the lock held and releases it while
 * it waits for a file. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/generation.h"
#include "serve/models/model_manager.h"

/* ---- queues of waiting requests ---- */

void
queue_put(Queue *q, Req *r)
{
	if (!q->first)
		q->end = &q->first;
	r->next = NULL;
	*q->end = r;
	q->end = &r->next;
}

void
queue_answer_later(Server *s, Queue *q, Req *r)
{
	atomic_fetch_add(&r->refs, 1);
	queue_put(q, r);
	pthread_cond_signal(&s->keep);
}

Req *
queue_pop(Queue *q)
{
	Req *r = q->first;

	if (r)
		q->first = r->next;
	return r;
}

/* Append the answer of a call that loads or unloads, in the form that its clients expect. */
static void
put_reply(const Req *r, const char *word, Strbuf *b)
{
	switch (r->reply) {
	case REPLY_STATUS:
		json_printf(b, "{\"model\":%s,\"status\":%s}", r->slot->name, word);
		break;
	case REPLY_SUCCESS:
		json_printf(b, "{\"success\":true,\"model\":%s,\"status\":%s}", r->slot->name,
		            word);
		break;
	case REPLY_PAUSE:
		strbuf_puts(b, "{\"success\":true,");
		if (!r->all_models)
			json_printf(b, "\"model\":%s,", r->slot->name);
		json_printf(b, "\"status\":%s}", word);
		break;
	case REPLY_DELETED:
		json_printf(b, "{\"id\":%s,\"object\":\"model\",\"deleted\":true}", r->slot->name);
		break;
	}
}

/* Answer all requests of a queue with the same Problem, or with `word` if p is NULL. Releases their
 * references. Lock not held. */
void
queue_answer(Queue q, const Problem *p, const char *word)
{
	for (Req *r; (r = queue_pop(&q)) != NULL; req_unref(r)) {
		Strbuf b = { 0 };
		if (p) {
			req_problem(r, p);
		} else {
			put_reply(r, word, &b);
			req_answer(r, 200, type_json, &b);
		}
	}
}

/* ---- closing ---- */

/* Report whether another model borrows m's engine. */
static bool
is_shared(const Server *s, const ServedModel *m)
{
	bool shared = false;

	for (const ServedModel *o = s->retired; o; o = o->next)
		shared |= o->of == m;
	for (int i = 0; i < s->n_slots; i++)
		shared |= s->slot[i]->model && s->slot[i]->model->of == m;
	return shared;
}

static bool
end_one(Server *s)
{
	ServedModel **at = &s->retired;

	while (*at && ((*at)->n_refs || (*at)->n_readers || is_shared(s, *at)))
		at = &(*at)->next;
	ServedModel *m = *at;
	if (!m)
		return false;
	*at = m->next;
	pthread_mutex_unlock(&s->lock);
	const char *name = m->name;
	const bool own = !m->of;
	model_stop(m);
	model_free(m);
	serve_log(s, LLMC_LOG_INFO,
	          own ? "model %s: its engine is closed" : "model %s: its slot is free", name);
	pthread_mutex_lock(&s->lock);
	return true;
}

/* Has an engine of the models that a /sleep call selects not ended yet? Lock held. */
static bool
models_are_unloading(const Server *s, const Req *r)
{
	bool busy = false;

	for (const ServedModel *m = s->retired; m; m = m->next)
		busy |= r->all_models || m->slot == r->slot;
	for (int i = 0; i < s->n_slots; i++)
		busy |= s->slot[i]->sleep_when_done && (r->all_models || s->slot[i] == r->slot);
	return busy;
}

/* Answer calls that need not wait any more with `status`. Returns false if there are none. The
 * caller holds the lock, which is released while answers are sent. */
static bool
answer_calls(Server *s, Queue *calls, bool (*waits)(const Server *s, const Req *r),
             const char *status)
{
	Queue over = { 0 }, left = { 0 };
	Req *r;

	while ((r = queue_pop(calls)) != NULL)
		queue_put(waits(s, r) ? &left : &over, r);
	*calls = left;
	if (!over.first)
		return false;
	pthread_mutex_unlock(&s->lock);
	queue_answer(over, NULL, status);
	pthread_mutex_lock(&s->lock);
	return true;
}

bool
models_answer_waiting(Server *s)
{
	return answer_calls(s, &s->sleepers, models_are_unloading, "unloaded") ||
	       answer_calls(s, &s->pausers, models_are_pausing, "paused");
}

Queue
slot_overdue(Slot *t, double now)
{
	Queue over = { 0 }, left = { 0 };

	for (Req *r; (r = queue_pop(&t->waiting)) != NULL;) {
		const bool late = r->gone || (r->deadline > 0 && r->deadline <= now);
		queue_put(late ? &over : &left, r);
		t->n_waiting -= late;
	}
	t->waiting = left;
	return over;
}

void
queue_answer_late(Queue q)
{
	Problem p = { 0 };

	problem(&p, 503, NULL, REQUEST_TOO_LONG);
	queue_answer(q, &p, NULL);
}

/* Answer requests that waited for longer than their time limit, and drop those without a client.
 * *ms: time until the next limit. */
static bool
answer_overdue(Server *s, int *ms)
{
	const double now = clock_now();
	Queue over = { 0 };

	for (int i = 0; i < s->n_slots; i++) {
		Queue late = slot_overdue(s->slot[i], now);
		for (Req *r; (r = queue_pop(&late)) != NULL;)
			queue_put(&over, r);
		for (const Req *r = s->slot[i]->waiting.first; r; r = r->next)
			if (r->deadline > 0 && 1e3 * (r->deadline - now) < *ms)
				*ms = (int)(1e3 * (r->deadline - now)) + 1;
	}
	if (!over.first)
		return false;
	pthread_mutex_unlock(&s->lock);
	queue_answer_late(over);
	pthread_mutex_lock(&s->lock);
	return true;
}

void
models_answer_overdue(Server *s)
{
	int ms = INT_MAX;

	pthread_mutex_lock(&s->lock);
	(void)answer_overdue(s, &ms);
	pthread_mutex_unlock(&s->lock);
}

/* Answer all requests that wait for the slot with a Problem. */
static void
refuse(Server *s, Slot *t, const Problem *p)
{
	Queue waiting = t->waiting, wakers = t->wakers;

	t->waiting = t->wakers = (Queue){ 0 };
	t->n_waiting = 0;
	t->wanted = t->sleep_when_done = false;
	pthread_mutex_unlock(&s->lock);
	queue_answer(waiting, p, NULL);
	queue_answer(wakers, p, NULL);
	pthread_mutex_lock(&s->lock);
}

static void
too_large(const Server *s, const Slot *t, int64_t need, Problem *p)
{
	problem(p, 503, "model", "The model '%.200s' needs %.2f GiB, but --memory allows %.2f GiB.",
	        t->name, (double)need / 1073741824.0, (double)s->opt.memory_bytes / 1073741824.0);
	p->code = "model_too_large";
}

/* Give waiting requests back to the workers. Each request gets a reference to the model, so that
 * the model stays open. */
static void
dispatch_waiting(Server *s, Slot *t)
{
	Queue wakers = t->wakers, left = { 0 };
	int n_left = 0;

	for (Req *r; (r = queue_pop(&t->waiting)) != NULL;) {
		if (t->paused && !(r->route->flags & RT_UNPAUSED)) {
			queue_put(&left, r);
			n_left++;
			continue;
		}
		r->model = t->model;
		model_ref(t->model);
		work_push(s, r);
		atomic_fetch_sub(&r->refs, 1); /* the workers' queue holds its own reference */
	}
	t->waiting = left;
	t->n_waiting = n_left;
	t->wakers = (Queue){ 0 };
	pthread_mutex_unlock(&s->lock);
	queue_answer(wakers, NULL, "loaded");
	pthread_mutex_lock(&s->lock);
}

bool
slot_is_awaited(Server *s, const Slot *t)
{
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->wanted && !s->slot[i]->removed && slot_base(s, s->slot[i]) == t)
			return true;
	return false;
}

/* Carry out a deferred /sleep of a model, once no adapter waits for the model's engine. */
static void
put_to_sleep(Server *s, Slot *t)
{
	if (!t || !t->sleep_when_done || t->wanted || t->loading || t->reloads.first ||
	    slot_is_awaited(s, t))
		return;
	if (t->model)
		model_retire(s, t);
	t->sleep_when_done = false;
}

/* Report whether the engine that m borrows was retired while m was being opened. */
static bool
is_left(const ServedModel *m)
{
	return m->of && m->of->slot->model != m->of;
}

/* Serve the waiting requests with a new engine. If the slot was removed meanwhile, the requests get
 * "not found". The engine is retired if the slot was removed or put to sleep. */
static void
begin_service(Server *s, Slot *t, ServedModel *m)
{
	model_set(t, m);
	dispatch_waiting(s, t);
	const bool stays = t->sleep_when_done && slot_is_awaited(s, t);
	if ((t->removed || (t->sleep_when_done && !stays) || is_left(m)) && t->model == m)
		model_retire(s, t);
	t->sleep_when_done = stays;
	put_to_sleep(s, slot_base(s, t));
}

static void
slot_gone(const Slot *t, Problem *p)
{
	problem(p, 404, "model", "The model '%.200s' has been unloaded.", t->name);
	p->code = "model_not_found";
}

/* Open the slot's engine; releases the lock meanwhile. */
static llmc_status
open_slot(Server *s, Slot *t, int64_t bytes, ServedModel **out, llmc_error *err)
{
	Backend b = { 0 };
	double t0 = clock_now();
	Slot *base = slot_base(s, t);
	/* stays valid without the lock: only this thread ends models */
	ServedModel *of = base ? base->model : NULL;

	t->loading = true;
	pthread_mutex_unlock(&s->lock);
	llmc_status status =
	    of ? t->src.join(t->src.self, &of->back, &b, err) : t->src.open(t->src.self, &b, err);
	if (status == LLMC_OK)
		status = model_begin(s, t, &b, bytes, of, out, err);
	if (status == LLMC_OK)
		serve_log(s, LLMC_LOG_INFO, "model %s: opened in %.1f s", t->name,
		          clock_now() - t0);
	else
		serve_log(s, LLMC_LOG_WARNING, "warning: model %s cannot be opened: %s", t->name,
		          err->text);
	pthread_mutex_lock(&s->lock);
	t->loading = false;
	return status;
}

/* Read the description of a slot that has only a name so far. False with a Problem: the model
 * cannot be used, and the slot is removed. Releases the lock meanwhile. */
static bool
read_slot(Server *s, Slot *t, Problem *p)
{
	llmc_error err = { 0 };
	Backend about = { 0 };
	int64_t bytes = 0;
	int32_t max_input = 0, max_total = 0;

	t->loading = true;
	pthread_mutex_unlock(&s->lock);
	llmc_status status = t->src.look(t->src.self, &about, &bytes, &err);
	if (status == LLMC_OK)
		status = model_limits(s, &about, t->name, &max_input, &max_total, &err);
	pthread_mutex_lock(&s->lock);
	t->loading = false;
	if (status != LLMC_OK) {
		t->removed = true;
		problem(p, 503, "model", "The model '%.200s' cannot be loaded: %.700s", t->name,
		        err.text);
		p->code = "model_not_loaded";
		return false;
	}
	slot_describe(t, &about, bytes, max_input, max_total);
	metrics_init(&t->metrics, max_input, max_total);
	t->unread = false;
	return true;
}

static bool
load_one(Server *s)
{
	Slot *t = NULL;
	llmc_error err = { 0 };
	Problem p = { 0 };
	ServedModel *m;

	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->wanted && (!t || s->slot[i]->wanted_at < t->wanted_at))
			t = s->slot[i];
	if (!t)
		return false;
	Slot *named = t, *base = slot_base(s, t);
	if (base && !base->model && !t->removed) /* first open the engine that the slot borrows */
		t = base;
	if (t->removed) {
		slot_gone(t, &p);
	} else if (t->model) {
		begin_service(s, t, t->model);
		return true;
	} else if (!t->unread || read_slot(s, t, &p)) {
		MemoryNeed room = room_for(s, t, t->bytes, true);
		if (room == ROOM_SOON)
			/* idle models end now; otherwise the thread that releases the last
			 * reference wakes this one */
			return end_one(s);
		if (room == ROOM_NO)
			too_large(s, t, t->bytes, &p);
	}
	if (!p.status) {
		const llmc_status status = open_slot(s, t, t->bytes, &m, &err);
		if (status == LLMC_OK) {
			begin_service(s, t, m);
			return true;
		}
		/* the slot still waits for an engine: the next round tries again */
		if (status == LLMC_E_FULL && !t->src.join && models_free_idle(s, t))
			return true;
	}
	if (!p.status) {
		problem(&p, 503, "model", "The model '%.200s' cannot be loaded: %.700s", t->name,
		        err.text);
		p.code = "model_not_loaded";
	}
	snprintf(t->lost_text, sizeof t->lost_text, "%.250s", p.text);
	t->lost_until = clock_now() + SLOT_REOPEN_S;
	refuse(s, t, &p);
	if (named != t)
		refuse(s, named, &p);
	put_to_sleep(s, slot_base(s, named));
	return true;
}

/* Read the file again while the old engine serves. New requests use the new engine once it is
 * loaded; running requests finish on the old one. */
static bool
reload_one(Server *s)
{
	Slot *t = NULL;
	llmc_error err = { 0 };
	Problem p = { 0 };
	Backend about = { 0 };
	int64_t bytes = 0;
	ServedModel *m = NULL;

	for (int i = 0; i < s->n_slots && !t; i++)
		t = s->slot[i]->reloads.first ? s->slot[i] : NULL;
	if (!t)
		return false;
	pthread_mutex_unlock(&s->lock);
	llmc_status status = t->src.look(t->src.self, &about, &bytes, &err);
	pthread_mutex_lock(&s->lock);
	const Slot *base = slot_base(s, t);
	/* the borrowed engine sleeps: the adapter's files are read when that engine is loaded */
	const bool asleep = base && !base->model;
	if (t->removed) {
		slot_gone(t, &p);
	} else if (status == LLMC_OK && !asleep) {
		MemoryNeed room = room_for(s, t, bytes, false);
		/* reuse the adapter slot of the old version: requests wait until the new one is
		 * loaded */
		if (room == ROOM_NO && t->src.join) {
			if (t->model)
				model_retire(s, t);
			room = room_for(s, t, bytes, true);
		}
		if (room == ROOM_SOON)
			return end_one(s);
		if (room == ROOM_NO) {
			problem(&p, 503, "model",
			        "The model '%.200s' needs %.2f GiB in addition to those in use, "
			        "but --memory allows %.2f GiB: the old one stays in service. POST "
			        "/sleep first, then load the new one.",
			        t->name, (double)bytes / 1073741824.0,
			        (double)s->opt.memory_bytes / 1073741824.0);
			p.code = "model_too_large";
		}
	}
	if (status == LLMC_OK && !p.status && !asleep)
		status = open_slot(s, t, bytes, &m, &err);
	if (status != LLMC_OK && !p.status) {
		problem(&p, 400, "model", "The model '%.200s' cannot be reloaded%s: %.700s",
		        t->name, t->model ? ", the old one stays in service" : "", err.text);
		p.code = "model_not_loaded";
	}
	if (m) {
		if (t->model)
			model_retire(s, t);
		begin_service(s, t, m);
	} else {
		/* the old model stays in service, but /sleep was called meanwhile */
		if (t->sleep_when_done && t->model)
			model_retire(s, t);
		t->sleep_when_done = t->wanted && t->sleep_when_done;
	}
	Queue over = t->reloads;
	t->reloads = (Queue){ 0 };
	pthread_mutex_unlock(&s->lock);
	queue_answer(over, m || (asleep && status == LLMC_OK && !p.status) ? NULL : &p, "reloaded");
	pthread_mutex_lock(&s->lock);
	return true;
}

void
adding_free(PendingAdapter *a)
{
	if (!a)
		return;
	free(a->name);
	free(a->dir);
	req_unref(a->r);
	free(a);
}

Slot *
slot_put(Server *s, Slot *t, Slot **old)
{
	t->removed = true; /* counts as removed until its engine has been opened once */
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (!at->removed || (at->was_found && strcmp(at->name, t->name) != 0) ||
		    at->wanted || at->reloads.first || at->loading || at->pinned)
			continue;
		/* requests and metrics point to the old Slot, so keep it and exchange the
		 * contents */
		ModelSource src = at->src;
		char *parent = at->parent, *name = at->name;
		at->src = t->src;
		at->parent = t->parent;
		if (!at->was_found) {
			at->name = t->name;
			t->name = name;
		}
		slot_describe(at, &t->about, t->bytes, t->max_input, t->max_total);
		at->found = t->found;
		at->unread = t->unread;
		at->lost = false;
		at->has_keep = at->sleep_when_done = at->paused = at->cancels = false;
		t->src = src;
		t->parent = parent;
		*old = t;
		return at;
	}
	if (s->n_slots == MAX_MODELS)
		return NULL;
	return s->slot[s->n_slots++] = t;
}

/* Open the slot's engine for the first time, if memory allows. This detects an adapter that does
 * not fit the model. Lock held; released while the engine is opened. */
static llmc_status
try_open(Server *s, Slot *t, llmc_error *err)
{
	const Slot *base = slot_base(s, t);
	MemoryNeed room;
	ServedModel *m = NULL;

	if (base && !base->model)
		return LLMC_OK;
	t->pinned = true;
	while ((room = room_for(s, t, t->bytes, false)) == ROOM_SOON && end_one(s))
		;
	/* not if the base was retired while the lock was released */
	const bool opens = room == ROOM_YES && !(base && !base->model);
	const llmc_status status = opens ? open_slot(s, t, t->bytes, &m, err) : LLMC_OK;
	t->pinned = false;
	if (!m)
		return status;
	model_set(t, m);
	if (is_left(m))
		model_retire(s, t);
	return LLMC_OK;
}

static bool
name_is_taken(const Server *s, const char *name) /* lock held */
{
	bool taken = false;

	for (int i = 0; i < s->n_slots; i++)
		taken |= !s->slot[i]->removed && (slot_is_named(s->slot[i]->name, name) ||
		                                  slot_is_named(name, s->slot[i]->name));
	return taken;
}

static bool
adapt_one(Server *s)
{
	PendingAdapter *a = s->adding;
	SlotInit init = { 0 };
	llmc_error err = { 0 };
	Slot *t = NULL, *old = NULL, *to = NULL;
	Problem p = { 0 };

	if (!a)
		return false;
	s->adding = a->next;
	bool taken = name_is_taken(s, a->name);
	llmc_status status = taken ? error_set(&err, LLMC_E_INPUT, "the name is taken")
	                     : a->base->removed
	                         ? error_set(&err, LLMC_E_INPUT, "its model has been unloaded")
	                         : LLMC_OK;
	a->base->pinned = true;
	pthread_mutex_unlock(&s->lock);
	init.name = a->name;
	init.parent = a->base->name;
	if (status == LLMC_OK)
		status = a->base->src.adapt(a->base->src.self, a->dir, &init.src, &err);
	if (status == LLMC_OK)
		status = slot_new(s, &init, &t, &err);
	pthread_mutex_lock(&s->lock);
	a->base->pinned = false;
	/* a request may have added the name meanwhile, for a model of the catalogue */
	if (status == LLMC_OK && (taken = name_is_taken(s, a->name)))
		status = error_set(&err, LLMC_E_INPUT, "the name is taken");
	if (status == LLMC_OK) {
		to = slot_put(s, t, &old);
		status = to ? try_open(s, to, &err)
		            : error_set(&err, LLMC_E_FULL,
		                        "a server has at most %d model names in its lifetime",
		                        MAX_MODELS);
	}
	/* or while the engine was being opened */
	if (status == LLMC_OK && (taken = name_is_taken(s, a->name))) {
		status = error_set(&err, LLMC_E_INPUT, "the name is taken");
		if (to->model)
			model_retire(s, to);
	}
	if (status == LLMC_OK) {
		to->removed = false;
		to->was_found = true;
		to->paused = s->paused_all;
		if (to->sleep_when_done && to->model)
			model_retire(s, to);
	}
	if (to)
		to->sleep_when_done = false;
	pthread_mutex_unlock(&s->lock);
	if (!to) {
		if (t)
			t->src = (ModelSource){ 0 };
		slot_free(t);
		if (init.src.free)
			init.src.free(init.src.self);
	}
	slot_free(old);
	if (status == LLMC_OK) {
		req_text(a->r, 200, "Success: LoRA adapter '%s' added successfully.", a->name);
	} else {
		problem(&p, 400, taken ? "lora_name" : "lora_path",
		        "The LoRA adapter '%.200s' cannot be loaded: %.700s", a->name, err.text);
		req_problem(a->r, &p);
	}
	adding_free(a);
	pthread_mutex_lock(&s->lock);
	return true;
}

void *
model_manager(void *arg)
{
	Server *s = arg;
	struct timespec until;

	pthread_mutex_lock(&s->lock);
	while (!s->closing) {
		int ms = models_sleep_idle(s);
		if (end_one(s) || models_answer_waiting(s) || answer_overdue(s, &ms) ||
		    adapt_one(s) || reload_one(s) || load_one(s))
			continue;
		clock_after(&until, ms);
		pthread_cond_timedwait(&s->keep, &s->lock, &until);
	}
	Problem p = { 0 };
	problem_closing(&p);
	for (int i = 0; i < s->n_slots; i++) {
		refuse(s, s->slot[i], &p);
		Queue over = s->slot[i]->reloads;
		s->slot[i]->reloads = (Queue){ 0 };
		pthread_mutex_unlock(&s->lock);
		queue_answer(over, &p, NULL);
		pthread_mutex_lock(&s->lock);
	}
	Queue pausers = s->pausers, sleepers = s->sleepers;
	PendingAdapter *adding = s->adding;
	s->pausers = s->sleepers = (Queue){ 0 };
	s->adding = NULL;
	pthread_mutex_unlock(&s->lock);
	queue_answer(pausers, &p, NULL);
	queue_answer(sleepers, &p, NULL);
	for (PendingAdapter *next; adding; adding = next) {
		next = adding->next;
		req_problem(adding->r, &p);
		adding_free(adding);
	}
	return NULL;
}
