/* The keeper: one thread that opens and closes engines, one at a time, makes room for them, and
 * tells who has asked for that. All of it runs with the lock held, given back while it waits for a
 * file. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/generation.h"
#include "serve/models/model_manager.h"

/* ---- lists of requests that wait ---- */

void
queue_put(Queue *q, Req *r)
{
	if (!q->first)
		q->end = &q->first;
	r->next = NULL;
	*q->end = r;
	q->end = &r->next;
}

Req *
queue_pop(Queue *q)
{
	Req *r = q->first;

	if (r)
		q->first = r->next;
	return r;
}

/* Without the lock: each has the same Problem for an answer, or, with status 0, {"status": word}.
 * The references go. */
void
queue_answer(Queue q, const Problem *p, const char *word)
{
	for (Req *r; (r = queue_pop(&q)) != NULL; req_unref(r)) {
		Strbuf b = { 0 };
		if (p) {
			req_problem(r, p);
		} else {
			json_printf(&b, "{\"model\":%s,\"status\":%s}", r->slot->name, word);
			req_answer(r, 200, type_json, &b);
		}
	}
}

/* ---- room ---- */

typedef enum MemoryNeed { ROOM_YES, ROOM_SOON, ROOM_NO } MemoryNeed;

/* What engines share: memory, or, of one engine, the places for adapters, which the names have that
 * run in it */
typedef struct SharedBudget {
	const ServedModel *of;
	int64_t all;
} SharedBudget; /* of NULL: memory; all 0: there is no bound */

static int64_t
share_of(const SharedBudget *h, const ServedModel *m)
{
	return h->of ? m->of == h->of : m->bytes;
}

/* Room for so much more: others go, the least recently used first, of those that nobody uses, and
 * with `busy` then of those that are used as well. SOON: when they are over. */
static MemoryNeed
make_room(Server *s, const SharedBudget *h, const Slot *except, int64_t need, bool busy)
{
	if (h->all <= 0)
		return ROOM_YES;
	for (;;) {
		int64_t kept = 0, leaving = 0;
		Slot *victim = NULL;
		for (int i = 0; i < s->n_slots; i++) {
			Slot *t = s->slot[i];
			if (!t->model)
				continue;
			kept += share_of(h, t->model);
			if (t == except || !t->src.open || t->model->of != h->of ||
			    (t->model->n_refs && !busy))
				continue;
			bool better = !victim || (!t->model->n_refs != !victim->model->n_refs
			                              ? !t->model->n_refs
			                              : t->used_at < victim->used_at);
			if (better)
				victim = t;
		}
		for (ServedModel *m = s->retired; m; m = m->next)
			leaving += share_of(h, m);
		if (kept + need <= h->all)
			return kept + leaving + need <= h->all ? ROOM_YES : ROOM_SOON;
		if (!victim)
			return ROOM_NO;
		model_retire(s, victim);
	}
}

/* Does somebody share its engine? */
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

/* Calls to sleep whose models have ended. */
static bool
answer_sleep_calls(Server *s)
{
	Queue over = { 0 }, left = { 0 };
	Req *r;

	while ((r = queue_pop(&s->sleepers)) != NULL) {
		bool busy = false;
		for (const ServedModel *m = s->retired; m; m = m->next)
			busy |= r->all_models || m->slot == r->slot;
		for (int i = 0; i < s->n_slots; i++)
			busy |=
			    s->slot[i]->sleep_when_done && (r->all_models || s->slot[i] == r->slot);
		queue_put(busy ? &left : &over, r);
	}
	s->sleepers = left;
	if (!over.first)
		return false;
	pthread_mutex_unlock(&s->lock);
	queue_answer(over, NULL, "unloaded");
	pthread_mutex_lock(&s->lock);
	return true;
}

/* Nothing came of it: who waits is told why. */
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
	problem(p, 503, "model", "The model '%.200s' needs %.2f GiB, and --memory allows %.2f GiB.",
	        t->name, (double)need / 1073741824.0, (double)s->opt.memory_bytes / 1073741824.0);
	p->code = "model_too_large";
}

/* The slot has an engine: its requests go back to the workers, each with a reference, so that it
 * stays for them. */
static void
dispatch_waiting(Server *s, Slot *t)
{
	Queue wakers = t->wakers;

	for (Req *r; (r = queue_pop(&t->waiting)) != NULL;) {
		r->model = t->model;
		model_ref(t->model);
		work_push(s, r);
		atomic_fetch_sub(&r->refs, 1); /* the queue of the workers has one of its own */
	}
	t->n_waiting = 0;
	t->wakers = (Queue){ 0 };
	pthread_mutex_unlock(&s->lock);
	queue_answer(wakers, NULL, "loaded");
	pthread_mutex_lock(&s->lock);
}

/* The slot whose engine this one shares; NULL: it has its own */
static Slot *
base_of(Server *s, const Slot *t)
{
	for (int i = 0; i < s->n_slots && t->src.join; i++)
		if (!s->slot[i]->src.join && strcmp(s->slot[i]->name, t->parent) == 0)
			return s->slot[i];
	return NULL;
}

/* Memory for a slot's engine, or a place for its adapter in the engine that it shares, beside what
 * it has of either */
static MemoryNeed
room_for(Server *s, const Slot *t, int64_t bytes, bool busy)
{
	const Slot *base = base_of(s, t);

	if (!base)
		return make_room(s, &(SharedBudget){ .all = s->opt.memory_bytes }, t, bytes, busy);
	return base->model ? make_room(s, &(SharedBudget){ base->model, base->model->back.places },
	                               t, 1, busy)
	                   : ROOM_YES;
}

bool
slot_is_awaited(Server *s, const Slot *t)
{
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->wanted && !s->slot[i]->removed && base_of(s, s->slot[i]) == t)
			return true;
	return false;
}

/* Put to sleep, and kept for names that share its engine: it goes behind the last who waited for
 * one. */
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

/* The engine that it shares has been retired while it came. */
static bool
is_left(const ServedModel *m)
{
	return m->of && m->of->slot->model != m->of;
}

/* An engine is there and serves who has waited. Where its slot has been removed meanwhile they find
 * no such name, and it goes again, as it does where it was put to sleep. */
static void
begin_service(Server *s, Slot *t, ServedModel *m)
{
	model_set(t, m);
	dispatch_waiting(s, t);
	const bool stays = t->sleep_when_done && slot_is_awaited(s, t);
	if ((t->removed || (t->sleep_when_done && !stays) || is_left(m)) && t->model == m)
		model_retire(s, t);
	t->sleep_when_done = stays;
	put_to_sleep(s, base_of(s, t));
}

static void
slot_gone(const Slot *t, Problem *p)
{
	problem(p, 404, "model", "The model '%.200s' has been unloaded.", t->name);
	p->code = "model_not_found";
}

/* Open the slot's engine, the lock given back meanwhile. */
static llmc_status
open_slot(Server *s, Slot *t, int64_t bytes, ServedModel **out, llmc_error *err)
{
	Backend b = { 0 };
	double t0 = clock_now();
	Slot *base = base_of(s, t);
	ServedModel *of = base ? base->model : NULL; /* this thread alone ends it */

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
	Slot *named = t, *base = base_of(s, t);
	if (base && !base->model && !t->removed) /* first the engine that it shares */
		t = base;
	if (t->removed) {
		slot_gone(t, &p);
	} else if (t->model) {
		begin_service(s, t, t->model);
		return true;
	} else {
		MemoryNeed room = room_for(s, t, t->bytes, true);
		if (room == ROOM_SOON)
			return end_one(s); /* idle ones at once; who gives back the last reference
			                      of another wakes us */
		if (room == ROOM_NO)
			too_large(s, t, t->bytes, &p);
	}
	if (!p.status && open_slot(s, t, t->bytes, &m, &err) == LLMC_OK) {
		begin_service(s, t, m);
		return true;
	}
	if (!p.status) {
		problem(&p, 503, "model", "The model '%.200s' cannot be loaded: %.700s", t->name,
		        err.text);
		p.code = "model_not_loaded";
	}
	refuse(s, t, &p);
	if (named != t)
		refuse(s, named, &p);
	put_to_sleep(s, base_of(s, named));
	return true;
}

/* The file again, beside the engine that serves: new requests go to the new one when it is there,
 * the old one ends with what it has. */
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
	const Slot *base = base_of(s, t);
	const bool asleep = base && !base->model; /* with the engine that it shares: its files are
	                                             read when it is asked for */
	if (t->removed) {
		slot_gone(t, &p);
	} else if (status == LLMC_OK && !asleep) {
		MemoryNeed room = room_for(s, t, bytes, false);
		if (room == ROOM_NO &&
		    t->src.join) { /* its own place: requests wait until it has been read again */
			if (t->model)
				model_retire(s, t);
			room = room_for(s, t, bytes, true);
		}
		if (room == ROOM_SOON)
			return end_one(s);
		if (room == ROOM_NO) {
			problem(&p, 503, "model",
			        "The model '%.200s' needs %.2f GiB beside what is in use, and "
			        "--memory allows %.2f GiB: the one in service stays. "
			        "POST /sleep first, to load it in the place of the old one.",
			        t->name, (double)bytes / 1073741824.0,
			        (double)s->opt.memory_bytes / 1073741824.0);
			p.code = "model_too_large";
		}
	}
	if (status == LLMC_OK && !p.status && !asleep)
		status = open_slot(s, t, bytes, &m, &err);
	if (status != LLMC_OK && !p.status) {
		problem(&p, 400, "model", "The model '%.200s' cannot be read again%s: %.700s",
		        t->name, t->model ? ", what was in service stays" : "", err.text);
		p.code = "model_not_loaded";
	}
	if (m) {
		if (t->model)
			model_retire(s, t);
		begin_service(s, t, m);
	} else {
		if (t->sleep_when_done && t->model) /* what stays in service was to go as well */
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
adding_free(Adding *a)
{
	if (!a)
		return;
	free(a->name);
	free(a->dir);
	req_unref(a->r);
	free(a);
}

/* Where a new slot is from here on: in the place of one of its name that was removed, or of one
 * that was never reached, *old is then to be freed, or the next. NULL: there are too many; lock
 * held. */
static Slot *
put_slot(Server *s, Slot *t, Slot **old)
{
	t->removed = true; /* until its engine has been tried */
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (!at->removed || (at->was_found && strcmp(at->name, t->name) != 0) ||
		    at->wanted || at->reloads.first)
			continue;
		ModelSource src = at->src; /* requests and metrics point to the old slot, so it
		                              stays and changes */
		char *parent = at->parent, *name = at->name;
		at->src = t->src;
		at->parent = t->parent;
		if (!at->was_found) {
			at->name = t->name;
			t->name = name;
		}
		at->about = t->about;
		at->bytes = t->bytes;
		at->max_input = t->max_input;
		at->max_total = t->max_total;
		t->src = src;
		t->parent = parent;
		*old = t;
		return at;
	}
	if (s->n_slots == MAX_MODELS)
		return NULL;
	return s->slot[s->n_slots++] = t;
}

/* The slot's first engine, where there is room for it: an adapter of another model is found out so.
 * Lock held. */
static llmc_status
try_open(Server *s, Slot *t, llmc_error *err)
{
	const Slot *base = base_of(s, t);
	MemoryNeed room;
	ServedModel *m;

	if (base && !base->model)
		return LLMC_OK;
	while ((room = room_for(s, t, t->bytes, false)) == ROOM_SOON && end_one(s))
		;
	if (room != ROOM_YES ||
	    (base && !base->model)) /* it may have gone while the lock was given back */
		return LLMC_OK;
	TRY(open_slot(s, t, t->bytes, &m, err));
	model_set(t, m);
	if (is_left(m))
		model_retire(s, t);
	return LLMC_OK;
}

static bool
adapt_one(Server *s)
{
	Adding *a = s->adding;
	SlotInit init = { 0 };
	llmc_error err = { 0 };
	Slot *t = NULL, *old = NULL, *to = NULL;
	Problem p = { 0 };

	if (!a)
		return false;
	s->adding = a->next;
	bool taken = false; /* the keeper alone adds names */
	for (int i = 0; i < s->n_slots; i++)
		taken |= !s->slot[i]->removed && (slot_is_named(s->slot[i]->name, a->name) ||
		                                  slot_is_named(a->name, s->slot[i]->name));
	pthread_mutex_unlock(&s->lock);
	init.name = a->name;
	init.parent = a->base->name;
	llmc_status status = taken ? error_set(&err, LLMC_E_INPUT, "the name is taken")
	                           : a->base->src.adapt(a->base->src.self, a->dir, &init.src, &err);
	if (status == LLMC_OK)
		status = slot_new(s, &init, &t, &err);
	pthread_mutex_lock(&s->lock);
	if (status == LLMC_OK) {
		to = put_slot(s, t, &old);
		status = to ? try_open(s, to, &err)
		            : error_set(&err, LLMC_E_FULL,
		                        "a server has at most %d names in its life", MAX_MODELS);
	}
	if (status == LLMC_OK) {
		to->removed = false;
		to->was_found = true;
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

/* Those that nobody has asked for long; when the next one is due, in milliseconds. */
static int
sleep_idle(Server *s)
{
	double now = clock_now(), due = 3600;

	for (int i = 0; i < s->n_slots && s->opt.sleep_after_s > 0; i++) {
		Slot *t = s->slot[i];
		if (!t->model || !t->src.open || t->model->n_refs)
			continue;
		double left = t->used_at + s->opt.sleep_after_s - now;
		if (left <= 0)
			model_retire(s, t);
		else if (left < due)
			due = left;
	}
	return (int)(1e3 * due) + 1;
}

void *
model_manager(void *arg)
{
	Server *s = arg;
	struct timespec until;

	pthread_mutex_lock(&s->lock);
	while (!s->closing) {
		int ms = sleep_idle(s);
		if (end_one(s) || answer_sleep_calls(s) || adapt_one(s) || reload_one(s) ||
		    load_one(s))
			continue;
		clock_after(&until, ms);
		pthread_cond_timedwait(&s->keep, &s->lock, &until);
	}
	Problem p = { 0 };
	problem(&p, 503, NULL, "The server is shutting down.");
	for (int i = 0; i < s->n_slots; i++) {
		refuse(s, s->slot[i], &p);
		Queue over = s->slot[i]->reloads;
		s->slot[i]->reloads = (Queue){ 0 };
		pthread_mutex_unlock(&s->lock);
		queue_answer(over, &p, NULL);
		pthread_mutex_lock(&s->lock);
	}
	Queue over = s->sleepers;
	Adding *adding = s->adding;
	s->sleepers = (Queue){ 0 };
	s->adding = NULL;
	pthread_mutex_unlock(&s->lock);
	queue_answer(over, &p, NULL);
	for (Adding *next; adding; adding = next) {
		next = adding->next;
		req_problem(adding->r, &p);
		adding_free(adding);
	}
	return NULL;
}
