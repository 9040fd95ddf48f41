/* Inside of the models of a server: engines (model_engine.c), the thread that makes them come and
 * go (model_manager.c), and names (models.c). */
#ifndef LLMC_SERVE_MODELS_MODEL_MANAGER_H
#define LLMC_SERVE_MODELS_MODEL_MANAGER_H

#include "serve/models/model.h"

typedef struct Adding { /* a name that is to come */
	struct Adding *next;
	Slot *base;
	char *name, *dir;
	Req *r; /* with a reference */
} Adding;

/* model_manager.c */
void *model_manager(void *server); /* the thread; Server.keep wakes it */
void queue_put(Queue *q, Req *r);  /* a reference is the queue's */
Req *queue_pop(Queue *q);          /* NULL: none */
/* Without the lock: each has the same Problem for an answer, or, with p NULL, {"status": word}. The
 * references go. */
void queue_answer(Queue q, const Problem *p, const char *word);
void adding_free(Adding *a);
bool
slot_is_awaited(Server *s,
                const Slot *t); /* somebody waits for a name that shares its engine; lock held */

/* model_engine.c */
/* An engine that is open under a name, and its pump. On failure the engine is closed again, if the
 * source does that. */
llmc_status model_begin(Server *s, Slot *t, const Backend *b, int64_t bytes, ServedModel *of,
                        ServedModel **out, llmc_error *err);
void model_set(Slot *t, ServedModel *m); /* it is the slot's from here on; lock held */
void model_retire(Server *s, Slot *t);   /* no new request gets it; lock held */
void model_stop(ServedModel *m); /* without the lock; nobody uses it, or the server closes: what is
                                    with the engine is awaited */
void model_free(ServedModel *m);
/* The limits of requests to an engine, by the server's options. */
llmc_status model_limits(const Server *s, const Backend *b, const char *name, int32_t *max_input,
                         int32_t *max_total, llmc_error *err);
void slot_want(Server *s, Slot *t); /* an engine for it; lock held */

/* models.c */
/* Ollama's clients write the tag of a model that has none. */
bool slot_is_named(const char *own, const char *name);
/* A slot that is in no list yet. Source and engine are the caller's again on failure. */
llmc_status slot_new(Server *s, const SlotInit *init, Slot **out, llmc_error *err);
void slot_free(Slot *t);

#endif
