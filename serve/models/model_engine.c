/* Starts and stops engines of slots, and runs the thread that passes an engine's events to
 * requests. */
#include <stdlib.h>
#include <string.h>

#include "serve/dialects/generation.h"
#include "serve/dialects/constraints.h"
#include "serve/models/model_manager.h"

void
model_ref(ServedModel *m)
{
	m->n_refs++;
	if (m->of)
		m->of->n_refs++;
}

void
model_unref(ServedModel *m)
{
	if (!m)
		return;
	Server *s = m->srv;
	pthread_mutex_lock(&s->lock);
	m->n_refs--;
	if (m->of)
		m->of->n_refs--;
	if (m->n_refs == 0)
		m->slot->used_at = clock_now();
	if (m->n_refs == 0 || s->pausers.first)
		pthread_cond_signal(&s->keep);
	pthread_mutex_unlock(&s->lock);
}

/* Pass the engine's events to requests. */
static void *
event_thread(void *arg)
{
	ServedModel *m = arg;
	Server *s = m->srv;
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err = { 0 };
	double looked = 0;
	int dead = 0; /* number of consecutive failed calls */

	for (;;) {
		llmc_status status = m->back.next(m->back.self, 100, &ev, &err);
		dead = status == LLMC_OK ? 0 : dead + 1;
		if (status == LLMC_OK && ev.kind != LLMC_EVENT_NONE) {
			gen_event(s, &ev);
		} else if (status != LLMC_OK) {
			pthread_mutex_lock(&s->lock);
			m->failed |= status == LLMC_E_DEVICE;
			pthread_mutex_unlock(&s->lock);
			struct timespec rest = {
				0, 50000000
			}; /* pause, so that the loop does not spin if the engine's wait fails */
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

/* Stop the event thread and close. Lock not held. The model must have no users, or the server
 * closes and waits for the engine's requests. */
void
model_stop(ServedModel *m)
{
	pthread_mutex_lock(&m->srv->lock);
	m->ending = true;
	pthread_mutex_unlock(&m->srv->lock);
	if (m->has_pump)
		pthread_join(m->pump, NULL);
	m->has_pump = false;
}

void
model_free(ServedModel *m)
{
	grammars_close(m->grammars);
	image_cache_close(m->images);
	if (m->close)
		m->close(&m->back);
	free(m);
}

/* Derive the limits of requests from the engine and the server's options. */
llmc_status
model_limits(const Server *s, const Backend *b, const char *name, int32_t *max_input,
             int32_t *max_total, llmc_error *err)
{
	const llmc_serve_options *o = &s->opt;
	int32_t context = b->limits.context;
	/* KV tokens of a request that runs alone */
	int64_t room = b->limits.kv_tokens;

	if (b->max_batch_total > 0 && b->max_batch_total < room)
		room = b->max_batch_total;
	*max_total = o->max_total_tokens ? o->max_total_tokens
	             : room < context    ? (int32_t)room
	                                 : context;
	*max_input = o->max_input_length ? o->max_input_length : *max_total - 1;
	if (*max_total > context)
		return error_set(
		    err, LLMC_E_INPUT,
		    "max_total_tokens %d is more than the context of %d of %s; raise --context",
		    *max_total, context, name);
	if (*max_input >= *max_total)
		return error_set(err, LLMC_E_INPUT,
		                 "max_input_length %d must be less than max_total_tokens %d",
		                 *max_input, *max_total);
	return LLMC_OK;
}

const char *
model_limit_text(const ServedModel *m, int64_t most, char buf[MODEL_LIMIT_TEXT])
{
	const int32_t own = m->back.info.max_positions;

	if (own > most)
		snprintf(buf, MODEL_LIMIT_TEXT,
		         "This server's maximum context length is %lld tokens (--context); the "
		         "model's own is %d tokens.",
		         (long long)most, own);
	else
		snprintf(buf, MODEL_LIMIT_TEXT,
		         "This model's maximum context length is %lld tokens.", (long long)most);
	return buf;
}

/* Create a ServedModel for an open engine and start its event thread, or use that of `of`. On
 * failure the engine is closed if its source can close engines. */
llmc_status
model_begin(Server *s, Slot *t, const Backend *b, int64_t bytes, ServedModel *of, ServedModel **out,
            llmc_error *err)
{
	ServedModel *m = calloc(1, sizeof *m);
	llmc_status status = LLMC_OK;

	*out = NULL;
	if (m) {
		*m = (ServedModel){ .slot = t,
			            .name = t->name,
			            .srv = s,
			            .back = *b,
			            .bytes = bytes,
			            .of = of,
			            .close = t->src.close,
			            .grammars = grammars_open() };
		status = model_limits(s, b, t->name, &m->max_input, &m->max_total, err);
	}
	if (m && b->tower && !of)
		m->images = image_cache_open(s->opt.image_cache_bytes);
	if (!m || !m->grammars || (b->tower && !of && !m->images))
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
	if (status == LLMC_OK) {
		m->has_pump = !of && pthread_create(&m->pump, NULL, event_thread, m) == 0;
		if (m->has_pump || of) {
			*out = m;
			return LLMC_OK;
		}
		status = error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	}
	if (m) {
		grammars_close(m->grammars);
		image_cache_close(m->images);
	}
	free(m);
	if (t->src.close) {
		Backend gone = *b;
		t->src.close(&gone);
	}
	return status;
}

void
slot_describe(Slot *t, const Backend *b, int64_t bytes, int32_t max_input, int32_t max_total)
{
	t->about = *b;
	t->about.self = t->about.model = NULL;
	t->about.tok = NULL;
	t->about.tower = NULL;
	t->about.prompts = NULL;
	t->about.n_prompt = 0;
	t->bytes = bytes;
	t->max_input = max_input;
	t->max_total = max_total;
}

/* Assign the model to its slot; lock held. */
void
model_set(Slot *t, ServedModel *m)
{
	t->model = m;
	slot_describe(t, &m->back, m->bytes, m->max_input, m->max_total);
	t->used_at = clock_now();
	t->wanted = false;
	t->lost = false;
}

static bool
model_failed(const ServedModel *m)
{
	return m && (m->failed || (m->of && m->of->failed));
}

bool
slot_failed(const Slot *t)
{
	return !t->removed && (t->lost || model_failed(t->model));
}

Slot *
slot_owner(Server *s, Slot *t)
{
	Slot *base = slot_base(s, t);

	return base ? base : t;
}

bool
slot_revive(Server *s, Slot *t)
{
	Slot *o = slot_owner(s, t);
	const double now = clock_now();
	const bool failed = model_failed(t->model) || model_failed(o->model),
	           opens = o->loading || o->wanted || slot_is_awaited(s, o);

	/* ranks are other processes, or have lost one: all start anew */
	if ((!failed && !o->lost) || !o->src.open || o->about.info.ranks > 1 || opens)
		return true;
	if (now < o->lost_until) /* a failed engine answers with its error */
		return t->model != NULL;
	o->lost_until = now + SLOT_REOPEN_S;
	if (o->model)
		model_retire(s, o);
	o->lost = true;
	return true;
}

void
slots_revive(Server *s)
{
	for (int i = 0; i < s->n_slots; i++) {
		Slot *t = s->slot[i], *owner = slot_owner(s, t);
		if (slot_failed(t) && !t->paused && !s->closing && slot_revive(s, t) &&
		    !owner->model && owner->lost && !owner->wanted && !owner->loading)
			slot_want(s, owner);
	}
}

/* Retire the slot's model: it gets no new requests; lock held. */
void
model_retire(Server *s, Slot *t)
{
	ServedModel *m = t->model;

	m->next = s->retired;
	s->retired = m;
	t->model = NULL;
	t->lost = false;
	for (int i = 0; i < s->n_slots; i++) /* retire models that borrow its engine, too */
		if (s->slot[i]->model && s->slot[i]->model->of == m)
			model_retire(s, s->slot[i]);
	pthread_cond_signal(&s->keep);
}

void
slot_want(Server *s, Slot *t) /* lock held */
{
	if (!t->wanted) {
		t->wanted = true;
		t->wanted_at = ++s->n_wanted;
	}
	pthread_cond_signal(&s->keep);
}
