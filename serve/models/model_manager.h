/* Internals of a server's models: engines (model_engine.c), the manager thread (model_manager.c),
 * names (models.c), and what to close (model_memory.c). */
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
/* Put a request into a queue, with a reference of its own, and wake the manager. Lock held. */
void queue_answer_later(Server *s, Queue *q, Req *r);
Req *queue_pop(Queue *q); /* NULL: empty */
/* Answer all with the same Problem, or {"status": word} if p is NULL. Releases their references.
 * Lock not held. */
void queue_answer(Queue q, const Problem *p, const char *word);
/* Remove from the slot's waiting requests those whose time limit is over or whose client has
 * disconnected, and return them with their references; lock held. */
Queue slot_overdue(Slot *t, double now);
void queue_answer_late(Queue q); /* answers and releases them; lock not held */
/* Answer all that have waited for a model for longer than their time limit. The manager thread does
 * so too, but not while it opens a model. Lock not held. */
void models_answer_overdue(Server *s);
void adding_free(PendingAdapter *a);
bool slot_is_awaited(Server *s,
                     const Slot *t); /* a name that borrows its engine waits for it; lock held */

/* Insert a new slot. It replaces a removed slot of the same name or one that was never reached
 * (*old is then to be freed), else it is appended. The slot counts as removed until the caller
 * clears that. NULL: too many slots. Lock held. */
Slot *slot_put(Server *s, Slot *t, Slot **old);

/* model_memory.c; lock held */
typedef enum MemoryNeed { ROOM_YES, ROOM_SOON, ROOM_NO } MemoryNeed;
/* Free memory for a slot's engine, or an adapter slot in the engine that it borrows, in addition to
 * what it has. Engines with requests are retired only if `busy`. SOON: free once the retired ones
 * have ended. */
MemoryNeed room_for(Server *s, const Slot *t, int64_t bytes, bool busy);
Slot *slot_base(Server *s, const Slot *t); /* slot whose engine t borrows; NULL: it has its own */
/* Retire the least recently used engine that has no requests, for a model that does not fit into
 * the free memory. False: there is none. */
bool models_free_idle(Server *s, const Slot *except);
/* Retire models that have been idle for long enough. Returns the milliseconds until the next one is
 * due. */
int models_sleep_idle(Server *s);

/* model_engine.c */
/* Make a ServedModel of an open engine and start its event thread. On failure the engine is closed,
 * if the source can close it. */
llmc_status model_begin(Server *s, Slot *t, const Backend *b, int64_t bytes, ServedModel *of,
                        ServedModel **out, llmc_error *err);
/* Set limits, info and memory, without what exists only while the engine is open. Lock held, or the
 * slot is in no list. */
void slot_describe(Slot *t, const Backend *b, int64_t bytes, int32_t max_input, int32_t max_total);
void model_set(Slot *t, ServedModel *m); /* assign it to the slot; lock held */
void model_retire(Server *s, Slot *t);   /* no new requests; lock held */
/* lock not held; no users left, or the server closes and waits for the engine's requests */
void model_stop(ServedModel *m);
void model_free(ServedModel *m);
/* Derive the limits of requests from the engine and the server's options. */
llmc_status model_limits(const Server *s, const Backend *b, const char *name, int32_t *max_input,
                         int32_t *max_total, llmc_error *err);
void slot_want(Server *s, Slot *t); /* request an engine for it; lock held */
/* Answer the calls of /sleep and /pause whose wait is over. False: there are none. Lock held,
 * released meanwhile. */
bool models_answer_waiting(Server *s);

/* models.c */
/* Does a model that a /pause call selects still run a request? Lock held. */
bool models_are_pausing(const Server *s, const Req *r);
Slot *slot_find(Server *s, const char *name); /* NULL: unknown; lock held */
#define LATEST ":latest" /* tag that Ollama's clients append to names without one */
/* Compare a model's name with that of a request, with or without the tag LATEST. */
bool slot_is_named(const char *own, const char *name);
/* Make a slot that is in no list yet. On failure the caller owns source and engine again. */
llmc_status slot_new(Server *s, const SlotInit *init, Slot **out, llmc_error *err);
void slot_free(Slot *t);

#endif
