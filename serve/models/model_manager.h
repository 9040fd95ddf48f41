/* Internals of a server's models: engines (model_engine.c), the manager thread (model_manager.c),
 * names (models.c), and the choice of engines to close (model_memory.c). */
#ifndef LLMC_SERVE_MODELS_MODEL_MANAGER_H
#define LLMC_SERVE_MODELS_MODEL_MANAGER_H

#include "serve/models/model.h"

typedef struct PendingAdapter { /* an adapter to be added */
	struct PendingAdapter *next;
	Slot *base;
	char *name, *dir;
	Req *r; /* holds a reference */
} PendingAdapter;

/* model_manager.c */
void *model_manager(void *server); /* thread function; Server.keep wakes it */
void queue_put(Queue *q, Req *r);  /* the queue takes a reference */
/* Put a request into a queue, which takes its own reference, and wake the manager. Lock held. */
void queue_answer_later(Server *s, Queue *q, Req *r);
Req *queue_pop(Queue *q); /* NULL: empty */
/* Answer all requests of a queue with the same Problem, or with {"status": word} if p is NULL.
 * Releases their references. Lock not held. */
void queue_answer(Queue q, const Problem *p, const char *word);
/* Remove from the slot's waiting requests those whose time limit is over or whose client has
 * disconnected, and return them with their references; lock held. */
Queue slot_overdue(Slot *t, double now);
void queue_answer_late(Queue q); /* answers and releases them; lock not held */
/* Answer all that have waited for a model for longer than their time limit. The manager thread does
 * so too, but not while it opens a model. Lock not held. */
void models_answer_overdue(Server *s);
void adding_free(PendingAdapter *a);
/* does a slot that borrows the engine of t wait for it? Lock held */
bool slot_is_awaited(Server *s, const Slot *t);

/* Insert a new slot. It replaces a removed slot if possible (then the caller frees *old), else it
 * is appended. The new slot counts as removed until the caller clears `removed`. NULL: too many
 * slots. Lock held. */
Slot *slot_put(Server *s, Slot *t, Slot **old);

/* model_memory.c; lock held */
typedef enum MemoryNeed { ROOM_YES, ROOM_SOON, ROOM_NO } MemoryNeed;
/* Free `bytes` for a slot's engine, in addition to the memory that the slot has, or free an adapter
 * slot in the engine that it borrows. Engines with requests are retired only if `busy`. ROOM_SOON:
 * the memory is free once the retired engines have ended. */
MemoryNeed room_for(Server *s, const Slot *t, int64_t bytes, bool busy);
Slot *slot_base(Server *s, const Slot *t); /* slot whose engine t borrows; NULL: it has its own */
/* Retire the least recently used engine that has no requests, for a model that does not fit into
 * the free memory. False: there is none. */
bool models_free_idle(Server *s, const Slot *except);
/* Retire models that have been idle for long enough. Returns the milliseconds until the next one is
 * due. */
int models_sleep_idle(Server *s);

/* model_engine.c */
/* Create a ServedModel for an open engine and start its event thread. On failure the engine is
 * closed if its source can close engines. */
llmc_status model_begin(Server *s, Slot *t, const Backend *b, int64_t bytes, ServedModel *of,
                        ServedModel **out, llmc_error *err);
/* Set limits, info and memory of a slot, without the parts that exist only while the engine is
 * open. Lock held, or the slot is not in a list yet. */
void slot_describe(Slot *t, const Backend *b, int64_t bytes, int32_t max_input, int32_t max_total);
void model_set(Slot *t, ServedModel *m); /* assign the model to the slot; lock held */
/* retire the slot's model, which gets no new requests; lock held */
void model_retire(Server *s, Slot *t);
/* stop the event thread and close. Lock not held. The model must have no users, or the server
 * closes and waits for the engine's requests */
void model_stop(ServedModel *m);
void model_free(ServedModel *m);
/* Derive the limits of requests from the engine and the server's options. */
llmc_status model_limits(const Server *s, const Backend *b, const char *name, int32_t *max_input,
                         int32_t *max_total, llmc_error *err);
void slot_want(Server *s, Slot *t); /* request an engine for the slot; lock held */
/* Answer the calls of /sleep and /pause that need not wait any more. False: there are none. Lock
 * held, but released while answers are sent. */
bool models_answer_waiting(Server *s);

/* models.c */
/* Does a model that a /pause call selects still run a request? Lock held. */
bool models_are_pausing(const Server *s, const Req *r);
Slot *slot_find(Server *s, const char *name); /* NULL: unknown; lock held */
#define LATEST ":latest" /* tag that Ollama's clients append to names without one */
/* Compare a model's name with that of a request, with or without the tag LATEST. */
bool slot_is_named(const char *own, const char *name);
/* Create a slot that is not in a list yet. On failure the caller owns source and engine again. */
llmc_status slot_new(Server *s, const SlotInit *init, Slot **out, llmc_error *err);
void slot_free(Slot *t);

#endif
