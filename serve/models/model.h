/* Models of a server: the names that clients know, and the engines behind them.
 *
 * A Slot is a name. Its engine, a Model, is there or asleep; a Slot stays as long as the server.
 * One thread, the keeper, opens and closes engines, one at a time, so that nobody else waits for a
 * file: a request for a model that is asleep is put aside and handled when it is there. Whoever
 * uses a Model holds a reference. One that no new request gets is retired, and ends when the last
 * reference is given back: nothing that runs is lost.
 *
 * Where memory is bounded, room is made by retiring the models that were used longest ago, those
 * first that nobody uses. Slots that want an engine get it in the order in which they were asked
 * for, so none waits for ever. */
#ifndef LLMC_SERVE_MODELS_MODEL_H
#define LLMC_SERVE_MODELS_MODEL_H

#include "serve/http/request.h"

/* Where a slot's engine comes from. open NULL: it is there from the start and stays. All block; on
 * the keeper's thread alone, once the server runs. */
typedef struct ModelSource {
	void *self;
	llmc_status (*look)(void *self, Backend *about, int64_t *bytes,
	                    llmc_error *err); /* what it would be, without opening it */
	llmc_status (*open)(void *self, Backend *out, llmc_error *err);
	void (*close)(Backend *b); /* what open made */
	void (*free)(void *self);
	/* another name for the engine of the slot's parent, which is open; NULL: an engine of its
	 * own, by open */
	llmc_status (*join)(void *self, const Backend *of, Backend *out, llmc_error *err);
	/* the source of the same with an adapter from a folder; NULL: it takes none */
	llmc_status (*adapt)(void *self, const char *dir, struct ModelSource *out, llmc_error *err);
} ModelSource;

struct ServedModel {
	Slot *slot;
	const char *name; /* the slot's */
	Server *srv;
	Backend back;
	int64_t bytes;
	int32_t max_input, max_total;
	ServedModel *of; /* whose engine it shares, and whose pump brings its events: it ends before
	                    that one does; NULL: it has its own */
	void (*close)(Backend *b); /* NULL: its engine stays */
	struct Grammars *grammars; /* of late */
	atomic_bool plain_chat; /* its format has no reasoning: without tools an answer is text */
	pthread_t pump;
	bool has_pump;
	/* under Server.lock */
	int n_refs;    /* and n_gens: with those of who shares its engine */
	int n_readers; /* at its counters */
	int n_gens;
	bool healthy;      /* a generation has worked since the last failure */
	bool failed;       /* the engine's device is gone */
	bool ending;       /* the pump ends when nothing is with the engine */
	ServedModel *next; /* of those that are retired */
};

struct Slot {
	char *name, *parent; /* parent: of an adapter, the model it changes; NULL */
	ModelSource src;
	/* under Server.lock */
	Backend about; /* limits and info, also while it sleeps: no engine, no tokenizer */
	int64_t bytes; /* what its engine takes */
	int32_t max_input, max_total;
	ServedModel *model; /* NULL: it sleeps */
	bool loading, removed;
	bool sleep_when_done; /* it was put to sleep while its engine was on its way: who waited
	                         before is served, then it goes */
	bool was_found;       /* requests may have found it: its name stays */
	bool wanted;          /* an engine, since wanted_at */
	uint64_t wanted_at;
	double used_at;
	int n_waiting;
	Queue waiting;         /* requests for it */
	Queue wakers, reloads; /* calls that are answered when that is done */
	Metrics metrics;
};

/* What a slot is when the server opens. */
typedef struct SlotInit {
	const char *name, *parent; /* name NULL: the model's own; copied */
	ModelSource src;
	const Backend *back; /* it is open; NULL: look */
	int64_t bytes;       /* of one that is open */
} SlotInit;

/* Sources and engines of init are the server's, also on failure. */
llmc_status models_open(Server *s, const SlotInit *init, int n, llmc_error *err);
void models_drop(const SlotInit *init); /* of one that no server takes */
/* Closing: Server.closing is set, and what waits is refused; no worker runs any more, and what runs
 * is awaited; nobody asks any more. */
void models_stop(Server *s);
void models_end(Server *s);
void models_close(Server *s);

Slot *models_find(Server *s, const char *name);               /* NULL: unknown; takes the lock */
void models_unknown(Server *s, const char *name, Problem *p); /* 404 that says which there are */
/* The model of a request into r->model, by its body. False without a Problem: it has been put
 * aside, and is somebody else's from here on. */
bool models_take(Server *s, Req *r, Problem *p);
/* A model that is there, and healthy so far or not; with a reference. NULL: none. */
ServedModel *models_unproven(Server *s, bool *ill);
bool models_failed(Server *s);      /* an engine has, for good */
void model_ref(ServedModel *m);     /* lock held */
void model_unref(ServedModel *m);   /* without it */
int models_number(Server *s);       /* of slots, removed ones too */
int model_gens(Server *s, Slot *t); /* in work, of a name for another one's engine; else -1 */
bool model_counts(Server *s, Slot *t, llmc_counts *out); /* false: it sleeps */
void models_counts(Server *s, llmc_counts *out);         /* sums over those that are there */
/* What r asks for; it is answered when that is done, or when it has failed. t NULL: all. */
void models_want(Server *s, Slot *t, Req *r);
void models_reload(Server *s, Slot *t, Req *r);
void models_sleep(Server *s, Slot *t, Req *r);
/* A new name for base with an adapter; dir is taken over. */
void models_adapt(Server *s, Slot *base, const char *name, char *dir, Req *r);
/* An adapter's name is no more; what runs goes on. False with a Problem: there is none. */
bool models_remove(Server *s, const char *name, Problem *p);
const char *slot_state(const Slot *t); /* "loaded", "loading", "unloaded"; lock held */

#endif
