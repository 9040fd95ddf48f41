/* Memory of a server's models. Engines are closed to make space for others, least recently used
 * first, and when they have been idle for long enough. All functions are called with the lock
 * held. */
#include <string.h>

#include "serve/models/model_manager.h"

/* May the slot's engine be closed without a request to do so? Not if its weights were replaced in
 * place: no file has them. */
static bool
may_close(const Slot *t)
{
	return t->src.open && !t->model->n_replaced;
}

double
slot_keep_s(const Server *s, const Slot *t)
{
	return t->has_keep ? t->keep_s : s->opt.sleep_after_s > 0 ? s->opt.sleep_after_s : -1;
}

/* A resource that models share: memory if `of` is NULL, else the adapter slots of the engine of
 * `of`.
 */
typedef struct SharedBudget {
	const ServedModel *of;
	int64_t all;
} SharedBudget; /* all 0: the resource is unlimited */

static int64_t
share_of(const SharedBudget *h, const ServedModel *m)
{
	return h->of ? m->of == h->of : m->bytes;
}

/* Return the slot whose engine is retired next: the least recently used, unused ones before used
 * ones. of: the slot must borrow the engine of this model; NULL: the slot must own its engine.
 * Returns NULL if there is none. */
static Slot *
victim_of(const Server *s, const ServedModel *of, const Slot *except, bool busy)
{
	Slot *victim = NULL;

	for (int i = 0; i < s->n_slots; i++) {
		Slot *t = s->slot[i];
		if (t == except || !t->model || !may_close(t) || t->model->of != of ||
		    (t->model->n_refs && !busy))
			continue;
		if (!victim ||
		    (!t->model->n_refs != !victim->model->n_refs ? !t->model->n_refs
		                                                 : t->used_at < victim->used_at))
			victim = t;
	}
	return victim;
}

/* Free `need` bytes or adapter slots by retiring models, least recently used first, unused models
 * before used ones. Used models are retired only if `busy`. ROOM_SOON: free once the retired models
 * have ended. */
static MemoryNeed
make_room(Server *s, const SharedBudget *h, const Slot *except, int64_t need, bool busy)
{
	if (h->all <= 0)
		return ROOM_YES;
	for (;;) {
		int64_t kept = 0, leaving = 0;
		for (int i = 0; i < s->n_slots; i++)
			kept += s->slot[i]->model ? share_of(h, s->slot[i]->model) : 0;
		for (ServedModel *m = s->retired; m; m = m->next)
			leaving += share_of(h, m);
		if (kept + need <= h->all)
			return kept + leaving + need <= h->all ? ROOM_YES : ROOM_SOON;
		Slot *victim = victim_of(s, h->of, except, busy);
		if (!victim)
			return ROOM_NO;
		model_retire(s, victim);
	}
}

Slot *
slot_base(Server *s, const Slot *t)
{
	Slot *gone = NULL; /* a removed slot of the same name */

	for (int i = 0; i < s->n_slots && t->src.join; i++) {
		Slot *at = s->slot[i];
		if (at->src.join || strcmp(at->name, t->parent) != 0)
			continue;
		if (!at->removed)
			return at;
		gone = at;
	}
	return gone;
}

MemoryNeed
room_for(Server *s, const Slot *t, int64_t bytes, bool busy)
{
	const Slot *base = slot_base(s, t);

	if (!base)
		return make_room(s, &(SharedBudget){ .all = s->opt.memory_bytes }, t, bytes, busy);
	return base->model ? make_room(s, &(SharedBudget){ base->model, base->model->back.places },
	                               t, 1, busy)
	                   : ROOM_YES;
}

bool
models_free_idle(Server *s, const Slot *except)
{
	Slot *victim = victim_of(s, NULL, except, false);

	if (victim)
		model_retire(s, victim);
	return victim;
}

int
models_sleep_idle(Server *s)
{
	double now = clock_now(), due = 3600;

	for (int i = 0; i < s->n_slots; i++) {
		Slot *t = s->slot[i];
		const double keep = slot_keep_s(s, t);
		if (!t->model || t->model->n_refs || keep < 0 || !may_close(t))
			continue;
		double left = t->used_at + keep - now;
		if (left <= 0)
			model_retire(s, t);
		else if (left < due)
			due = left;
	}
	return (int)(1e3 * due) + 1;
}
