/* Names and engines: who gets which, when one comes and when one goes. The keeper is here. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/gen.h"
#include "serve/grammar.h"

/* ---- lists of requests that wait ---- */

static void
put(Queue *q, Req *r)
{
	if (!q->first)
		q->end = &q->first;
	r->next = NULL;
	*q->end = r;
	q->end = &r->next;
}

static Req *
pop(Queue *q)
{
	Req *r = q->first;

	if (r)
		q->first = r->next;
	return r;
}

/* Without the lock: each has the same Problem for an answer, or, with status 0, {"status": word}. The references go. */
static void
answer_all(Queue q, const Problem *p, const char *word)
{
	for (Req *r; (r = pop(&q)) != NULL; req_unref(r)) {
		Strbuf b = { 0 };
		if (p) {
			req_problem(r, p);
		} else {
			json_printf(&b, "{\"model\":%s,\"status\":%s}", r->slot->name, word);
			req_answer(r, 200, type_json, &b);
		}
	}
}

static void
answer_closing(Req *r, bool closing)
{
	Problem p = { 0 };

	if (!closing)
		return;
	problem(&p, 503, NULL, "The server is shutting down.");
	req_problem(r, &p);
}

/* ---- engines ---- */

void
model_ref(Model *m)
{
	m->n_refs++;
}

void
model_unref(Model *m)
{
	if (!m)
		return;
	Server *s = m->srv;
	pthread_mutex_lock(&s->lock);
	if (--m->n_refs == 0)
		pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
}

/* Events of an engine to requests. */
static void *
pump(void *arg)
{
	Model *m = arg;
	Server *s = m->srv;
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err = { 0 };
	double looked = 0;
	int dead = 0; /* calls in a row that failed */

	for (;;) {
		llmc_status status = m->back.next(m->back.self, 100, &ev, &err);
		dead = status == LLMC_OK ? 0 : dead + 1;
		if (status == LLMC_OK && ev.kind != LLMC_EVENT_NONE) {
			gen_event(s, &ev);
		} else if (status != LLMC_OK) {
			pthread_mutex_lock(&s->lock);
			m->failed |= status == LLMC_E_DEVICE;
			pthread_mutex_unlock(&s->lock);
			struct timespec rest = { 0, 50000000 }; /* an engine that cannot wait must not make us spin */
			nanosleep(&rest, NULL);
		}
		double now = clock_now();
		if (now - looked >= 0.1) {
			looked = now;
			status_tick(s, now);
			pthread_mutex_lock(&s->lock);
			bool end = m->ending && (m->n_gens == 0 || dead > 20);
			pthread_mutex_unlock(&s->lock);
			if (end)
				break;
		}
	}
	m->back.release(&ev);
	return NULL;
}

/* Without the lock; nobody uses it, or the server closes: what is with the engine is awaited. */
static void
model_stop(Model *m)
{
	pthread_mutex_lock(&m->srv->lock);
	m->ending = true;
	pthread_mutex_unlock(&m->srv->lock);
	if (m->has_pump)
		pthread_join(m->pump, NULL);
	m->has_pump = false;
}

static void
model_free(Model *m)
{
	grammars_close(m->grammars);
	if (m->slot->src.close)
		m->slot->src.close(&m->back);
	free(m);
}

/* The limits of requests to an engine, by the server's options. */
static llmc_status
set_limits(const Server *s, const Backend *b, const char *name, int32_t *max_input, int32_t *max_total, llmc_error *err)
{
	const llmc_serve_options *o = &s->opt;
	int32_t context = b->limits.context;
	/* what a request may have even when it runs alone */
	int64_t room = b->limits.kv_tokens;

	if (b->max_batch_total > 0 && b->max_batch_total < room)
		room = b->max_batch_total;
	*max_total = o->max_total_tokens ? o->max_total_tokens : room < context ? (int32_t)room : context;
	*max_input = o->max_input_length ? o->max_input_length : *max_total - 1;
	if (*max_total > context)
		return error_set(err, LLMC_E_INPUT, "max_total_tokens %d is more than the context of %d of %s; raise --context", *max_total, context, name);
	if (*max_input >= *max_total)
		return error_set(err, LLMC_E_INPUT, "max_input_length %d must be less than max_total_tokens %d", *max_input, *max_total);
	return LLMC_OK;
}

/* An engine that is open under a name, and its pump. On failure the engine is closed again, if the source does that. */
static llmc_status
model_begin(Server *s, Slot *t, const Backend *b, int64_t bytes, Model **out, llmc_error *err)
{
	Model *m = calloc(1, sizeof *m);
	llmc_status status = LLMC_OK;

	*out = NULL;
	if (m) {
		*m = (Model){ .slot = t, .name = t->name, .srv = s, .back = *b, .bytes = bytes, .grammars = grammars_open() };
		status = set_limits(s, b, t->name, &m->max_input, &m->max_total, err);
	}
	if (!m || !m->grammars)
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
	if (status == LLMC_OK) {
		m->has_pump = pthread_create(&m->pump, NULL, pump, m) == 0;
		if (m->has_pump) {
			*out = m;
			return LLMC_OK;
		}
		status = error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	}
	if (m)
		grammars_close(m->grammars);
	free(m);
	if (t->src.close) {
		Backend gone = *b;
		t->src.close(&gone);
	}
	return status;
}

/* It is the slot's from here on; lock held. */
static void
model_set(Slot *t, Model *m)
{
	t->model = m;
	t->about = m->back;
	t->about.self = t->about.model = NULL;
	t->about.tok = NULL;
	t->bytes = m->bytes;
	t->max_input = m->max_input;
	t->max_total = m->max_total;
	t->used_at = clock_now();
	t->wanted = false;
}

/* No new request gets it; lock held. */
static void
retire(Server *s, Slot *t)
{
	t->model->next = s->retired;
	s->retired = t->model;
	t->model = NULL;
	pthread_cond_signal(&s->keep);
}

static void
want(Server *s, Slot *t) /* lock held */
{
	if (!t->wanted) {
		t->wanted = true;
		t->wanted_at = ++s->n_wanted;
	}
	pthread_cond_signal(&s->keep);
}

/* ---- slots ---- */

/* Ollama's clients write the tag of a model that has none; Hugging Face's call the model "tgi" or "dummy" when they were given only an address. */
static bool
is_named(const char *own, const char *name)
{
	size_t n = strlen(own);

	return strncmp(name, own, n) == 0 && (!name[n] || !strcmp(name + n, ":latest"));
}

static void
slot_free(Slot *t)
{
	if (!t)
		return;
	if (t->src.free)
		t->src.free(t->src.self);
	free(t->name);
	free(t->parent);
	free(t);
}

/* A slot that is in no list yet, and its engine where it has one. Source and engine are the caller's again on failure. */
static llmc_status
slot_new(Server *s, const SlotInit *init, Slot **out, llmc_error *err)
{
	Slot *t = calloc(1, sizeof *t);
	Backend about = { 0 };
	int64_t bytes = init->bytes;
	llmc_status status = LLMC_OK;

	*out = t;
	if (!t)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (init->back)
		about = *init->back;
	else
		status = init->src.look(init->src.self, &about, &bytes, err);
	if (status != LLMC_OK)
		return status;
	t->name = strdup(init->name && *init->name ? init->name : about.info.name);
	t->parent = init->parent ? strdup(init->parent) : NULL;
	if (!t->name || (init->parent && !t->parent))
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (s->opt.memory_bytes > 0 && bytes > s->opt.memory_bytes)
		return error_set(err, LLMC_E_FULL, "%s needs %.2f GiB, --memory allows %.2f GiB; lower --context or --seqs (llmc plan shows what fits)", t->name,
		                 (double)bytes / 1073741824.0, (double)s->opt.memory_bytes / 1073741824.0);
	TRY(set_limits(s, &about, t->name, &t->max_input, &t->max_total, err));
	t->src = init->src;
	t->about = about;
	t->about.self = t->about.model = NULL;
	t->about.tok = NULL;
	t->bytes = bytes;
	metrics_init(&t->metrics, t->max_input, t->max_total);
	return LLMC_OK;
}

/* ---- the keeper; all of this with the lock held, given back while it waits for a file ---- */

typedef enum Room { ROOM_YES, ROOM_SOON, ROOM_NO } Room;

/* Memory for an engine: others go, those first that nobody uses, and with `busy` those that are used as well. SOON: when they are over. */
static Room
make_room(Server *s, const Slot *except, int64_t need, bool busy)
{
	if (s->opt.memory_bytes <= 0)
		return ROOM_YES;
	for (;;) {
		int64_t kept = 0, leaving = 0;
		Slot *victim = NULL;
		for (int i = 0; i < s->n_slots; i++) {
			Slot *t = s->slot[i];
			if (!t->model)
				continue;
			kept += t->model->bytes;
			if (t == except || !t->src.open || (t->model->n_refs && !busy))
				continue;
			bool better = !victim || (!t->model->n_refs != !victim->model->n_refs ? !t->model->n_refs : t->used_at < victim->used_at);
			if (better)
				victim = t;
		}
		for (Model *m = s->retired; m; m = m->next)
			leaving += m->bytes;
		if (kept + need <= s->opt.memory_bytes)
			return kept + leaving + need <= s->opt.memory_bytes ? ROOM_YES : ROOM_SOON;
		if (!victim)
			return ROOM_NO;
		retire(s, victim);
	}
}

static bool
end_one(Server *s)
{
	Model **at = &s->retired;

	while (*at && ((*at)->n_refs || (*at)->n_looks))
		at = &(*at)->next;
	Model *m = *at;
	if (!m)
		return false;
	*at = m->next;
	pthread_mutex_unlock(&s->lock);
	const char *name = m->name;
	model_stop(m);
	model_free(m);
	serve_log(s, LLMC_LOG_INFO, "model %s: its engine is closed", name);
	pthread_mutex_lock(&s->lock);
	return true;
}

/* Calls to sleep whose models have ended. */
static bool
told_sleepers(Server *s)
{
	Queue over = { 0 }, left = { 0 };
	Req *r;

	while ((r = pop(&s->sleepers)) != NULL) {
		bool busy = false;
		for (const Model *m = s->retired; m; m = m->next)
			busy |= r->all_models || m->slot == r->slot;
		put(busy ? &left : &over, r);
	}
	s->sleepers = left;
	if (!over.first)
		return false;
	pthread_mutex_unlock(&s->lock);
	answer_all(over, NULL, "unloaded");
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
	t->wanted = false;
	pthread_mutex_unlock(&s->lock);
	answer_all(waiting, p, NULL);
	answer_all(wakers, p, NULL);
	pthread_mutex_lock(&s->lock);
}

static void
too_large(const Server *s, const Slot *t, int64_t need, Problem *p)
{
	problem(p, 503, "model", "The model '%.200s' needs %.2f GiB, and --memory allows %.2f GiB.", t->name, (double)need / 1073741824.0, (double)s->opt.memory_bytes / 1073741824.0);
	p->code = "model_too_large";
}

/* The slot has an engine: its requests go back to the workers, each with a reference, so that it stays for them. */
static void
hand_out(Server *s, Slot *t)
{
	Queue wakers = t->wakers;

	for (Req *r; (r = pop(&t->waiting)) != NULL;) {
		r->model = t->model;
		model_ref(t->model);
		work_push(s, r);
		atomic_fetch_sub(&r->refs, 1); /* the queue of the workers has one of its own */
	}
	t->n_waiting = 0;
	t->wakers = (Queue){ 0 };
	pthread_mutex_unlock(&s->lock);
	answer_all(wakers, NULL, "loaded");
	pthread_mutex_lock(&s->lock);
}

/* An engine is there and serves, unless its slot has been removed meanwhile: who has waited for it finds no such name, and it goes again. */
static void
begin_service(Server *s, Slot *t, Model *m)
{
	model_set(t, m);
	hand_out(s, t);
	if (t->removed && t->model == m)
		retire(s, t);
}

static void
no_more(const Slot *t, Problem *p)
{
	problem(p, 404, "model", "The model '%.200s' has been unloaded.", t->name);
	p->code = "model_not_found";
}

/* Open the slot's engine, the lock given back meanwhile. */
static llmc_status
open_slot(Server *s, Slot *t, int64_t bytes, Model **out, llmc_error *err)
{
	Backend b = { 0 };
	double t0 = clock_now();

	t->loading = true;
	pthread_mutex_unlock(&s->lock);
	llmc_status status = t->src.open(t->src.self, &b, err);
	if (status == LLMC_OK)
		status = model_begin(s, t, &b, bytes, out, err);
	if (status == LLMC_OK)
		serve_log(s, LLMC_LOG_INFO, "model %s: opened in %.1f s", t->name, clock_now() - t0);
	else
		serve_log(s, LLMC_LOG_WARNING, "warning: model %s cannot be opened: %s", t->name, err->text);
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
	Model *m;

	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->wanted && (!t || s->slot[i]->wanted_at < t->wanted_at))
			t = s->slot[i];
	if (!t)
		return false;
	if (t->removed) {
		no_more(t, &p);
	} else if (t->model) {
		t->wanted = false;
		hand_out(s, t);
		return true;
	} else {
		Room room = make_room(s, t, t->bytes, true);
		if (room == ROOM_SOON)
			return end_one(s); /* idle ones at once; who gives back the last reference of another wakes us */
		if (room == ROOM_NO)
			too_large(s, t, t->bytes, &p);
	}
	if (!p.status && open_slot(s, t, t->bytes, &m, &err) == LLMC_OK) {
		begin_service(s, t, m);
		return true;
	}
	if (!p.status) {
		problem(&p, 503, "model", "The model '%.200s' cannot be loaded: %.700s", t->name, err.text);
		p.code = "model_not_loaded";
	}
	refuse(s, t, &p);
	return true;
}

/* The file again, beside the engine that serves: new requests go to the new one when it is there, the old one ends with what it has. */
static bool
reload_one(Server *s)
{
	Slot *t = NULL;
	llmc_error err = { 0 };
	Problem p = { 0 };
	Backend about = { 0 };
	int64_t bytes = 0;
	Model *m = NULL;

	for (int i = 0; i < s->n_slots && !t; i++)
		t = s->slot[i]->reloads.first ? s->slot[i] : NULL;
	if (!t)
		return false;
	pthread_mutex_unlock(&s->lock);
	llmc_status status = t->src.look(t->src.self, &about, &bytes, &err);
	pthread_mutex_lock(&s->lock);
	if (t->removed) {
		no_more(t, &p);
	} else if (status == LLMC_OK) {
		Room room = make_room(s, t, bytes, false);
		if (room == ROOM_SOON)
			return end_one(s);
		if (room == ROOM_NO) {
			problem(&p, 503, "model", "The model '%.200s' needs %.2f GiB beside what is in use, and --memory allows %.2f GiB: the one in service stays. "
			        "POST /sleep first, to load it in the place of the old one.", t->name, (double)bytes / 1073741824.0, (double)s->opt.memory_bytes / 1073741824.0);
			p.code = "model_too_large";
		}
	}
	if (status == LLMC_OK && !p.status)
		status = open_slot(s, t, bytes, &m, &err);
	if (status != LLMC_OK && !p.status) {
		problem(&p, 400, "model", "The model '%.200s' cannot be read again, what was in service stays: %.700s", t->name, err.text);
		p.code = "model_not_loaded";
	}
	if (m) {
		if (t->model)
			retire(s, t);
		begin_service(s, t, m);
	}
	Queue over = t->reloads;
	t->reloads = (Queue){ 0 };
	pthread_mutex_unlock(&s->lock);
	answer_all(over, m ? NULL : &p, "reloaded");
	pthread_mutex_lock(&s->lock);
	return true;
}

typedef struct Adding {
	struct Adding *next;
	Slot *base;
	char *name, *dir;
	Req  *r; /* with a reference */
} Adding;

static void
adding_free(Adding *a)
{
	if (!a)
		return;
	free(a->name);
	free(a->dir);
	req_unref(a->r);
	free(a);
}

/* Where a new slot is from here on: in the place of one of its name that was removed, or of one that was never reached, *old is then to be freed, or the next.
 * NULL: there are too many; lock held. */
static Slot *
put_slot(Server *s, Slot *t, Slot **old)
{
	t->removed = true; /* until its engine has been tried */
	for (int i = 0; i < s->n_slots; i++) {
		Slot *at = s->slot[i];
		if (!at->removed || (at->reached && strcmp(at->name, t->name) != 0) || at->wanted || at->reloads.first)
			continue;
		Source src = at->src; /* requests and metrics point to the old slot, so it stays and changes */
		char *parent = at->parent, *name = at->name;
		at->src = t->src;
		at->parent = t->parent;
		if (!at->reached) {
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

/* The slot's first engine, where there is room for it: an adapter of another model is found out so. Lock held. */
static llmc_status
try_open(Server *s, Slot *t, llmc_error *err)
{
	Room room;
	Model *m;

	while ((room = make_room(s, t, t->bytes, false)) == ROOM_SOON && end_one(s))
		;
	if (room != ROOM_YES)
		return LLMC_OK;
	TRY(open_slot(s, t, t->bytes, &m, err));
	model_set(t, m);
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
		taken |= !s->slot[i]->removed && (is_named(s->slot[i]->name, a->name) || is_named(a->name, s->slot[i]->name));
	pthread_mutex_unlock(&s->lock);
	init.name = a->name;
	init.parent = a->base->name;
	llmc_status status = taken ? error_set(&err, LLMC_E_INPUT, "the name is taken") : a->base->src.adapt(a->base->src.self, a->dir, &init.src, &err);
	if (status == LLMC_OK)
		status = slot_new(s, &init, &t, &err);
	pthread_mutex_lock(&s->lock);
	if (status == LLMC_OK) {
		to = put_slot(s, t, &old);
		status = to ? try_open(s, to, &err) : error_set(&err, LLMC_E_FULL, "a server has at most %d names in its life", MAX_MODELS);
	}
	if (status == LLMC_OK) {
		to->removed = false;
		to->reached = true;
	}
	pthread_mutex_unlock(&s->lock);
	if (!to) {
		if (t)
			t->src = (Source){ 0 };
		slot_free(t);
		if (init.src.free)
			init.src.free(init.src.self);
	}
	slot_free(old);
	if (status == LLMC_OK) {
		req_text(a->r, 200, "Success: LoRA adapter '%s' added successfully.", a->name);
	} else {
		problem(&p, 400, taken ? "lora_name" : "lora_path", "The LoRA adapter '%.200s' cannot be loaded: %.700s", a->name, err.text);
		req_problem(a->r, &p);
	}
	adding_free(a);
	pthread_mutex_lock(&s->lock);
	return true;
}

/* Those that nobody has asked for long; when the next one is due, in milliseconds. */
static int
doze(Server *s)
{
	double now = clock_now(), due = 3600;

	for (int i = 0; i < s->n_slots && s->opt.sleep_after_s > 0; i++) {
		Slot *t = s->slot[i];
		if (!t->model || !t->src.open || t->model->n_refs)
			continue;
		double left = t->used_at + s->opt.sleep_after_s - now;
		if (left <= 0)
			retire(s, t);
		else if (left < due)
			due = left;
	}
	return (int)(1e3 * due) + 1;
}

static void *
keeper(void *arg)
{
	Server *s = arg;
	struct timespec until;

	pthread_mutex_lock(&s->lock);
	while (!s->closing) {
		int ms = doze(s);
		if (end_one(s) || told_sleepers(s) || adapt_one(s) || reload_one(s) || load_one(s))
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
		answer_all(over, &p, NULL);
		pthread_mutex_lock(&s->lock);
	}
	Queue over = s->sleepers;
	Adding *adding = s->adding;
	s->sleepers = (Queue){ 0 };
	s->adding = NULL;
	pthread_mutex_unlock(&s->lock);
	answer_all(over, &p, NULL);
	for (Adding *next; adding; adding = next) {
		next = adding->next;
		req_problem(adding->r, &p);
		adding_free(adding);
	}
	return NULL;
}

/* ---- what others ask ---- */

const char *
slot_state(const Slot *t)
{
	return t->model ? "loaded" : t->loading ? "loading" : "unloaded";
}

static Slot *
find(Server *s, const char *name) /* lock held */
{
	for (int i = 0; i < s->n_slots; i++)
		if (!s->slot[i]->removed && is_named(s->slot[i]->name, name))
			return s->slot[i];
	return !strcmp(name, "tgi") || !strcmp(name, "dummy") ? s->slot[0] : NULL;
}

Slot *
models_find(Server *s, const char *name)
{
	pthread_mutex_lock(&s->lock);
	Slot *t = find(s, name);
	pthread_mutex_unlock(&s->lock);
	return t;
}

void
models_unknown(Server *s, const char *name, Problem *p)
{
	Strbuf b = { 0 };
	int n = 0;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		if (!s->slot[i]->removed)
			strbuf_printf(&b, n++ ? ", '%s'" : "'%s'", s->slot[i]->name);
	pthread_mutex_unlock(&s->lock);
	problem(p, 404, "model", "The model '%.200s' does not exist; this server has %s.", name, strbuf_str(&b));
	p->code = "model_not_found";
	strbuf_release(&b);
}

bool
models_take(Server *s, Req *r, Problem *p)
{
	Slot *t = s->slot[0];

	pthread_mutex_lock(&s->lock);
	bool several = s->n_slots > 1;
	pthread_mutex_unlock(&s->lock);
	if (several) { /* else nothing is to be chosen, and the handler reads the body */
		Problem q = { 0 };
		json_t *o = body_object(&r->body, &q), *v = json_object_get(o, "model");
		Slot *named = json_is_string(v) ? models_find(s, json_string_value(v)) : t;
		if (!named)
			models_unknown(s, json_string_value(v), p);
		json_decref(o);
		if (!named)
			return false;
		t = named;
	}
	pthread_mutex_lock(&s->lock);
	r->slot = t;
	t->used_at = clock_now();
	if (t->model && !t->wanted) {
		r->model = t->model;
		model_ref(r->model);
	} else if (s->closing) {
		problem(p, 503, NULL, "The server is shutting down.");
	} else if (t->about.max_concurrent && t->n_waiting >= t->about.max_concurrent) {
		problem(p, 429, NULL, "The engine is overloaded, please try again later.");
		p->code = "overloaded";
	} else {
		atomic_fetch_add(&r->refs, 1);
		put(&t->waiting, r);
		t->n_waiting++;
		want(s, t);
	}
	bool taken = r->model != NULL && !p->status;
	pthread_mutex_unlock(&s->lock);
	return taken;
}

/* lock held */
static bool
some_failed(const Server *s)
{
	bool failed = false;

	for (int i = 0; i < s->n_slots; i++)
		failed |= s->slot[i]->model && s->slot[i]->model->failed;
	return failed;
}

bool
models_failed(Server *s)
{
	pthread_mutex_lock(&s->lock);
	bool failed = some_failed(s);
	pthread_mutex_unlock(&s->lock);
	return failed;
}

Model *
models_unproven(Server *s, bool *ill)
{
	Model *m = NULL;

	pthread_mutex_lock(&s->lock);
	*ill = some_failed(s);
	for (int i = 0; i < s->n_slots && !m; i++)
		if (s->slot[i]->model && !s->slot[i]->model->healthy)
			m = s->slot[i]->model;
	if (m)
		model_ref(m);
	pthread_mutex_unlock(&s->lock);
	return m;
}

static void
add_histogram(llmc_histogram *to, const llmc_histogram *h)
{
	for (int i = 0; i < LLMC_BUCKETS; i++)
		to->bucket[i] += h->bucket[i];
	to->n += h->n;
	to->sum += h->sum;
}

static void
add_counts(llmc_counts *to, const llmc_counts *c)
{
	to->running += c->running;
	to->waiting += c->waiting;
	to->preempted += c->preempted;
	to->batch_size += c->batch_size;
	to->batch_max_tokens += c->batch_max_tokens;
	to->kv_pages_total += c->kv_pages_total;
	to->kv_pages_used += c->kv_pages_used;
	to->kv_pages_cached += c->kv_pages_cached;
	to->swap_bytes_used += c->swap_bytes_used;
	to->last_step_s = c->last_step_s > to->last_step_s ? c->last_step_s : to->last_step_s;
	to->steps += c->steps;
	to->prompt_tokens += c->prompt_tokens;
	to->new_tokens += c->new_tokens;
	to->prefix_queries += c->prefix_queries;
	to->prefix_hits += c->prefix_hits;
	to->preemptions += c->preemptions;
	add_histogram(&to->queue_s, &c->queue_s);
	add_histogram(&to->first_token_s, &c->first_token_s);
	add_histogram(&to->inter_token_s, &c->inter_token_s);
}

bool
model_counts(Server *s, Slot *t, llmc_counts *out)
{
	pthread_mutex_lock(&s->lock);
	Model *m = t->model;
	if (m)
		m->n_looks++;
	pthread_mutex_unlock(&s->lock);
	if (!m)
		return false;
	m->back.stats(m->back.self, out);
	pthread_mutex_lock(&s->lock);
	m->n_looks--;
	pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
	return true;
}

void
models_counts(Server *s, llmc_counts *out)
{
	int n = models_number(s);

	for (int i = 0; i < n; i++) {
		llmc_counts c = LLMC_INIT(llmc_counts);
		if (model_counts(s, s->slot[i], &c))
			add_counts(out, &c);
	}
}

int
models_number(Server *s)
{
	pthread_mutex_lock(&s->lock);
	int n = s->n_slots;
	pthread_mutex_unlock(&s->lock);
	return n;
}

void
models_want(Server *s, Slot *t, Req *r)
{
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	if (!closing) {
		atomic_fetch_add(&r->refs, 1);
		put(&t->wakers, r);
		want(s, t);
	}
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

void
models_reload(Server *s, Slot *t, Req *r)
{
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	if (!closing) {
		atomic_fetch_add(&r->refs, 1);
		put(&t->reloads, r);
		pthread_cond_signal(&s->keep);
	}
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

void
models_sleep(Server *s, Slot *t, Req *r)
{
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	for (int i = 0; i < s->n_slots && !closing; i++)
		if ((!t || s->slot[i] == t) && s->slot[i]->model && s->slot[i]->src.open)
			retire(s, s->slot[i]);
	if (!closing) {
		atomic_fetch_add(&r->refs, 1);
		put(&s->sleepers, r);
		pthread_cond_signal(&s->keep);
	}
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

void
models_adapt(Server *s, Slot *base, const char *name, char *dir, Req *r)
{
	Adding *a = calloc(1, sizeof *a);
	Problem p = { 0 };

	if (a)
		*a = (Adding){ .base = base, .name = strdup(name), .dir = dir, .r = r };
	if (!a || !a->name) {
		free(a);
		free(dir);
		problem_memory(&p);
		req_problem(r, &p);
		return;
	}
	atomic_fetch_add(&r->refs, 1);
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	if (!closing) {
		a->next = s->adding;
		s->adding = a;
		pthread_cond_signal(&s->keep);
	}
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
	if (closing)
		adding_free(a);
}

bool
models_remove(Server *s, const char *name, Problem *p)
{
	bool found = false;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots && !found; i++) {
		Slot *t = s->slot[i];
		if (t->removed || !t->parent || strcmp(t->name, name) != 0)
			continue;
		found = t->removed = true;
		if (t->model)
			retire(s, t);
		pthread_cond_signal(&s->keep);
	}
	pthread_mutex_unlock(&s->lock);
	return found || problem(p, 404, "lora_name", "The LoRA adapter '%.200s' cannot be found.", name);
}

void
models_drop(const SlotInit *init)
{
	Backend gone;

	if (init->back && init->src.close) {
		gone = *init->back;
		init->src.close(&gone);
	}
	if (init->src.free)
		init->src.free(init->src.self);
}

llmc_status
models_open(Server *s, const SlotInit *init, int n, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	int at = 0;

	for (; at < n && status == LLMC_OK; at++) {
		SlotInit one = init[at];
		Slot *t = NULL;
		Model *m = NULL;
		status = at < MAX_MODELS ? slot_new(s, &one, &t, err) : error_set(err, LLMC_E_INPUT, "more than %d models", MAX_MODELS);
		for (int k = 0; k < at && status == LLMC_OK; k++)
			if (is_named(s->slot[k]->name, t->name) || is_named(t->name, s->slot[k]->name))
				status = error_set(err, LLMC_E_INPUT, "two models are named %s; give each a name of its own: --model NAME=PATH", t->name);
		if (status == LLMC_OK && one.back) {
			status = model_begin(s, t, one.back, one.bytes, &m, err);
			one.back = NULL; /* closed, when it is not begun */
		}
		if (status == LLMC_OK) {
			pthread_mutex_lock(&s->lock); /* pumps look at the list already */
			if (m)
				model_set(t, m);
			t->reached = true;
			s->slot[s->n_slots++] = t;
			pthread_mutex_unlock(&s->lock);
		} else {
			if (t)
				t->src = (Source){ 0 };
			slot_free(t);
			models_drop(&one);
		}
	}
	for (; at < n; at++)
		models_drop(&init[at]);
	TRY(status);
	if (pthread_create(&s->keeper, NULL, keeper, s) != 0)
		return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	s->has_keeper = true;
	return LLMC_OK;
}

void
models_stop(Server *s)
{
	if (!s->has_keeper)
		return;
	pthread_mutex_lock(&s->lock);
	pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->keeper, NULL);
	s->has_keeper = false;
}

void
models_end(Server *s)
{
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->model)
			model_stop(s->slot[i]->model);
	for (Model *m = s->retired; m; m = m->next)
		model_stop(m);
}

void
models_close(Server *s)
{
	for (Model *m = s->retired, *next; m; m = next) {
		next = m->next;
		model_free(m);
	}
	for (int i = 0; i < s->n_slots; i++) {
		if (s->slot[i]->model)
			model_free(s->slot[i]->model);
		slot_free(s->slot[i]);
	}
}
