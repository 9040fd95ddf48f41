/* Maps the model names of requests to engines, and takes the calls that change models, which the
 * manager thread (model_manager.c) carries out. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/json.h"
#include "base/text.h"
#include "serve/dialects/generation.h"
#include "serve/models/catalogue.h"
#include "serve/models/model_manager.h"

/* ---- slots ---- */

/* Hugging Face's clients use these names if only an address is configured. */
static bool
is_address_only(const char *name)
{
	return !strcmp(name, "tgi") || !strcmp(name, "dummy");
}

/* Compare a model's name with that of a request, with or without the tag LATEST. */
bool
slot_is_named(const char *own, const char *name)
{
	size_t n = strlen(own);

	return strncmp(name, own, n) == 0 && (!name[n] || !strcmp(name + n, LATEST));
}

void
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

/* Create a slot that is not in a list yet, with its engine if that is open. On failure the caller
 * owns source and engine again. */
llmc_status
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
		return error_set(err, LLMC_E_FULL,
		                 "%s needs %.2f GiB, --memory allows %.2f GiB; lower --context or "
		                 "--seqs (llmc plan shows what fits)",
		                 t->name, (double)bytes / 1073741824.0,
		                 (double)s->opt.memory_bytes / 1073741824.0);
	TRY(model_limits(s, &about, t->name, &t->max_input, &t->max_total, err));
	t->src = init->src;
	slot_describe(t, &about, bytes, t->max_input, t->max_total);
	metrics_init(&t->metrics, t->max_input, t->max_total);
	return LLMC_OK;
}

/* ---- calls from other modules ---- */

static void
answer_closing(Req *r, bool closing)
{
	Problem p = { 0 };

	if (!closing)
		return;
	problem_closing(&p);
	req_problem(r, &p);
}

const char *
slot_state(const Slot *t)
{
	return t->loading       ? t->model ? "loaded" : "loading"
	       : slot_failed(t) ? "failed"
	       : t->model       ? "loaded"
	                        : "unloaded";
}

void
slot_status(const Slot *t, Strbuf *b)
{
	char doing[160] = "";

	if (t->loading && t->src.progress)
		t->src.progress(t->src.self, doing, sizeof doing);
	json_printf(b, "{\"value\":%s", slot_state(t));
	if (*doing)
		json_printf(b, ",\"progress\":%s", doing);
	strbuf_putc(b, '}');
}

void
slot_keep(Req *r, bool given, double seconds)
{
	Server *s = r->srv;

	if (!r->model || r->key)
		return;
	pthread_mutex_lock(&s->lock);
	Slot *t = r->model->of ? r->model->of->slot : r->model->slot;
	t->has_keep = given;
	t->keep_s = seconds;
	pthread_cond_signal(&s->keep); /* another engine may now be the next one to be closed */
	pthread_mutex_unlock(&s->lock);
}

/* Return the only slot; NULL: there are several or none. */
static Slot *
only_slot(Server *s)
{
	Slot *only = NULL;

	for (int i = 0; i < s->n_slots; i++) {
		if (s->slot[i]->removed)
			continue;
		if (only)
			return NULL;
		only = s->slot[i];
	}
	return only;
}

const Slot *
slot_shown(Server *s)
{
	const Slot *only = s->nameless ? only_slot(s) : NULL;

	return only ? only : s->slot[0];
}

/* Report whether a name is a further one of the first model. */
static bool
is_alias(const Server *s, const char *name)
{
	const size_t len = strlen(name);
	const char *list = s->nameless ? NULL : s->opt.aliases;
	size_t n;

	for (const char *at; (at = text_item(&list, &n)) != NULL;)
		if ((n == len && !memcmp(at, name, n)) ||
		    (n == 1 && *at == '*' && !catalogue_is_on(s)))
			return true;
	return false;
}

Slot *
slot_find(Server *s, const char *name)
{
	/* a downloaded model has the name that `llmc list` shows, with or without hf: */
	const char *bare = strncmp(name, "hf:", 3) ? name : name + 3;

	for (int i = 0; i < s->n_slots; i++)
		if (!s->slot[i]->removed && (slot_is_named(s->slot[i]->name, name) ||
		                             slot_is_named(s->slot[i]->name, bare)))
			return s->slot[i];
	if (is_alias(s, name))
		return s->slot[0];
	return !is_address_only(name) ? NULL : s->nameless ? only_slot(s) : s->slot[0];
}

Slot *
models_find(Server *s, const char *name)
{
	pthread_mutex_lock(&s->lock);
	Slot *t = slot_find(s, name);
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
	problem(p, 404, "model", "The model '%.200s' does not exist; %s%s%s%s.", name,
	        n ? "this server has " : "", strbuf_str(&b),
	        n && catalogue_is_on(s) ? ", and " : "",
	        catalogue_is_on(s) ? "GET /v1/models lists those that it can load" : "");
	p->code = "model_not_found";
	snprintf(p->model, sizeof p->model, "%.*s",
	         (int)utf8_whole(name, strnlen(name, sizeof p->model - 1)), name);
	strbuf_release(&b);
}

/* Return the model name in a body: `model`, or TGI's field for an adapter. */
static const char *
named(const json_t *o)
{
	const json_t *model = json_object_get(o, "model"),
	             *v = json_is_string(model)
	                      ? model
	                      : json_object_get(json_object_get(o, "parameters"), "adapter_id");
	const char *name = json_string_value(v);

	/* no model has a name with NUL */
	return name && strlen(name) != json_string_length(v) ? "" : name;
}

bool
models_take(Server *s, Req *r, Problem *p)
{
	Slot *t = s->slot[0];

	pthread_mutex_lock(&s->lock);
	bool several = s->n_slots > 1 || catalogue_is_on(s);
	pthread_mutex_unlock(&s->lock);
	if (several) { /* with one model there is no choice, so only the handler reads the body */
		Problem q = { 0 };
		json_t *o = body_object(&r->body, &q);
		const char *name = named(o);
		if (s->nameless && (!name || is_address_only(name)))
			t = models_only(s, p);
		else
			t = name ? models_find_or_add(s, name, p) : t;
		json_decref(o);
		if (!t)
			return false;
	}
	pthread_mutex_lock(&s->lock);
	Queue over = slot_overdue(t, clock_now());
	r->slot = t;
	t->used_at = clock_now();
	if (t->model && t->model->of)
		t->model->of->slot->used_at = t->used_at;
	const bool paused = t->paused && !(r->route->flags & RT_UNPAUSED);
	const bool late = !paused && !slot_revive(s, t);
	if (t->model && !t->wanted && !paused) {
		r->model = t->model;
		model_ref(r->model);
	} else if (s->closing) {
		problem_closing(p);
	} else if (late) {
		problem(p, 503, "model",
		        "The device of the model '%.200s' has failed; it can be opened again in a "
		        "few seconds. %s",
		        t->name, slot_owner(s, t)->lost_text);
		p->code = "model_failed";
	} else if (t->n_waiting >= (t->about.max_concurrent ? t->about.max_concurrent
	                                                    : LLMC_DEFAULT_CONCURRENT_REQUESTS)) {
		problem(p, 429, NULL, "The engine is overloaded, please try again later.");
		p->code = "overloaded";
	} else {
		atomic_fetch_add(&r->refs, 1);
		queue_put(&t->waiting, r);
		t->n_waiting++;
		if (!paused)
			slot_want(s, t);
	}
	bool taken = r->model != NULL && !p->status;
	pthread_mutex_unlock(&s->lock);
	queue_answer_late(over);
	return taken;
}

/* lock held */
static bool
some_failed(const Server *s)
{
	bool failed = false;

	for (int i = 0; i < s->n_slots; i++)
		failed |= slot_failed(s->slot[i]);
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

ServedModel *
models_unproven(Server *s, bool *ill)
{
	ServedModel *m = NULL;

	pthread_mutex_lock(&s->lock);
	*ill = some_failed(s);
	slots_revive(s);
	for (int i = 0; i < s->n_slots && !m; i++)
		if (s->slot[i]->model && !s->slot[i]->model->healthy && !s->slot[i]->paused)
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
	to->host_pages_total += c->host_pages_total;
	to->host_pages_used += c->host_pages_used;
	to->host_out += c->host_out;
	to->host_in += c->host_in;
	to->last_step_s = c->last_step_s > to->last_step_s ? c->last_step_s : to->last_step_s;
	to->steps += c->steps;
	to->prompt_tokens += c->prompt_tokens;
	to->new_tokens += c->new_tokens;
	to->prefix_queries += c->prefix_queries;
	to->prefix_hits += c->prefix_hits;
	to->preemptions += c->preemptions;
	to->drafts += c->drafts;
	to->drafted += c->drafted;
	to->accepted += c->accepted;
	add_histogram(&to->prefill_step_s, &c->prefill_step_s);
	add_histogram(&to->decode_step_s, &c->decode_step_s);
	add_histogram(&to->queue_s, &c->queue_s);
	add_histogram(&to->first_token_s, &c->first_token_s);
	add_histogram(&to->inter_token_s, &c->inter_token_s);
}

int
model_gens(Server *s, Slot *t)
{
	pthread_mutex_lock(&s->lock);
	int n = t->model && t->model->of ? t->model->n_gens : -1;
	pthread_mutex_unlock(&s->lock);
	return n;
}

bool
model_counts(Server *s, Slot *t, llmc_counts *out)
{
	pthread_mutex_lock(&s->lock);
	ServedModel *m = t->model;
	if (m)
		m->n_readers++;
	pthread_mutex_unlock(&s->lock);
	if (!m)
		return false;
	m->back.stats(m->back.self, out);
	pthread_mutex_lock(&s->lock);
	m->n_readers--;
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
		queue_put(&t->wakers, r);
		slot_want(s, t);
		t->sleep_when_done = false;
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
		queue_answer_later(s, &t->reloads, r);
		t->sleep_when_done = false;
	}
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

void
models_sleep(Server *s, Slot *t, Req *r)
{
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	for (int i = 0; i < s->n_slots && !closing; i++) {
		Slot *at = s->slot[i];
		if ((t && at != t) || !at->src.open)
			continue;
		const bool awaited = slot_is_awaited(s, at);
		at->sleep_when_done = at->loading || at->wanted || at->reloads.first || awaited;
		at->lost &= awaited;
		if (at->model && !awaited)
			model_retire(s, at);
	}
	if (!closing)
		queue_answer_later(s, &s->sleepers, r);
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

/* Remove a slot: requests that wait for it get status 404, running requests finish. Lock held. */
static void
slot_remove(Server *s, Slot *t)
{
	t->removed = true;
	t->paused = t->cancels = false;
	if (t->waiting.first)
		slot_want(s, t);
	if (t->model)
		model_retire(s, t);
	pthread_cond_signal(&s->keep);
}

void
models_forget(Server *s, Slot *t, Req *r)
{
	pthread_mutex_lock(&s->lock);
	bool closing = s->closing;
	if (!closing && !t->removed) {
		slot_remove(s, t);
		t->sleep_when_done = t->loading || t->wanted || t->reloads.first;
	}
	if (!closing)
		queue_answer_later(s, &s->sleepers, r);
	pthread_mutex_unlock(&s->lock);
	answer_closing(r, closing);
}

/* Report whether a request uses the model itself, not only a model that borrows its engine. */
static bool
has_requests(const Server *s, const ServedModel *m)
{
	int n = m->n_refs;

	for (const ServedModel *o = s->retired; o; o = o->next)
		n -= o->of == m ? o->n_refs : 0;
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->model && s->slot[i]->model->of == m)
			n -= s->slot[i]->model->n_refs;
	return n > 0;
}

/* Report whether a request uses an engine of the slot, the present one or a retired one. A request
 * uses it from models_take to the end of its generation. */
static bool
slot_is_busy(const Server *s, const Slot *t)
{
	bool busy = t->model && has_requests(s, t->model);

	for (const ServedModel *m = s->retired; m; m = m->next)
		busy |= m->slot == t && has_requests(s, m);
	return busy;
}

bool
models_are_pausing(const Server *s, const Req *r)
{
	bool busy = false;

	for (int i = 0; i < s->n_slots; i++) {
		const Slot *t = s->slot[i];
		if (r->all_models || t == r->slot)
			busy |= t->paused && slot_is_busy(s, t);
	}
	return busy;
}

void
models_adapt(Server *s, Slot *base, const char *name, char *dir, Req *r)
{
	PendingAdapter *a = calloc(1, sizeof *a);
	Problem p = { 0 };

	if (a)
		*a = (PendingAdapter){ .base = base, .name = strdup(name), .dir = dir, .r = r };
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
		found = true;
		slot_remove(s, t);
	}
	pthread_mutex_unlock(&s->lock);
	return found ||
	       problem(p, 404, "lora_name", "The LoRA adapter '%.200s' cannot be found.", name);
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

/* Create the first slot of a server without models of its own. It has no name, and counts as
 * removed. */
static llmc_status
nameless_slot(Server *s, const SlotInit *init, Slot **out, llmc_error *err)
{
	Slot *t = *out = calloc(1, sizeof *t);

	if (!t || !(t->name = strdup("")))
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	t->src = init->src;
	t->removed = t->unread = true;
	s->nameless = true;
	return LLMC_OK;
}

llmc_status
models_open(Server *s, const SlotInit *init, int n, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	int at = 0;

	for (; at < n && status == LLMC_OK; at++) {
		SlotInit one = init[at];
		Slot *t = NULL;
		ServedModel *m = NULL;
		if (one.nameless)
			status = nameless_slot(s, &one, &t, err);
		else if (at < MAX_MODELS)
			status = slot_new(s, &one, &t, err);
		else
			status = error_set(err, LLMC_E_INPUT, "a server has at most %d models",
			                   MAX_MODELS);
		for (int k = 0; k < at && status == LLMC_OK; k++)
			if (slot_is_named(s->slot[k]->name, t->name) ||
			    slot_is_named(t->name, s->slot[k]->name))
				status = error_set(err, LLMC_E_INPUT,
				                   "two models are named %s; give each a name of "
				                   "its own: --model NAME=PATH",
				                   t->name);
		if (status == LLMC_OK && one.back) {
			status = model_begin(s, t, one.back, one.bytes, NULL, &m, err);
			one.back = NULL; /* model_begin closes it on failure */
		}
		if (status == LLMC_OK) {
			/* lock, because event threads already read the list */
			pthread_mutex_lock(&s->lock);
			if (m)
				model_set(t, m);
			t->was_found = true;
			s->slot[s->n_slots++] = t;
			pthread_mutex_unlock(&s->lock);
		} else {
			if (t)
				t->src = (ModelSource){ 0 };
			slot_free(t);
			models_drop(&one);
		}
	}
	for (; at < n; at++)
		models_drop(&init[at]);
	TRY(status);
	if (pthread_create(&s->model_manager, NULL, model_manager, s) != 0)
		return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	s->has_model_manager = true;
	return LLMC_OK;
}

void
models_stop(Server *s)
{
	if (!s->has_model_manager)
		return;
	pthread_mutex_lock(&s->lock);
	pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->model_manager, NULL);
	s->has_model_manager = false;
}

void
models_end(Server *s)
{
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->model)
			model_stop(s->slot[i]->model);
	for (ServedModel *m = s->retired; m; m = m->next)
		model_stop(m);
}

void
models_close(Server *s)
{
	/* models that borrow an engine end before the engine */
	for (int shared = 1; shared >= 0; shared--) {
		for (ServedModel **at = &s->retired, *m; (m = *at) != NULL;) {
			if (shared && !m->of) {
				at = &m->next;
				continue;
			}
			*at = m->next;
			model_free(m);
		}
		for (int i = 0; i < s->n_slots; i++) {
			ServedModel *m = s->slot[i]->model;
			if (!m || (shared && !m->of))
				continue;
			s->slot[i]->model = NULL;
			model_free(m);
		}
	}
	for (int i = 0; i < s->n_slots; i++)
		slot_free(s->slot[i]);
}
