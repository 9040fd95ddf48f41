/* Models of a server: the names that clients use, and their engines.
 *
 * A Slot is a name and exists as long as the server. Its engine, a ServedModel, is loaded or
 * asleep. One thread, the model manager, opens and closes engines, one at a time. A request for a
 * model that sleeps waits in its slot's queue, so that no worker waits for a file. A user of a
 * ServedModel holds a reference. A retired model gets no new requests and is closed when the last
 * reference is released, so that running requests finish.
 *
 * With a memory limit, the least recently used models are retired to free memory, unused ones
 * first. Slots get engines in the order of their first waiting requests, so no slot starves. */
#ifndef LLMC_SERVE_MODELS_MODEL_H
#define LLMC_SERVE_MODELS_MODEL_H

#include "serve/http/request.h"

/* Source of a slot's engine. open NULL: the engine exists from the start and is never closed. All
 * functions may block; once the server runs, only the manager thread calls them. */
typedef struct ModelSource {
	void *self;
	llmc_status (*look)(void *self, Backend *about, int64_t *bytes,
	                    /* limits, info and size of the engine, without opening it */
	                    llmc_error *err);
	llmc_status (*open)(void *self, Backend *out, llmc_error *err);
	void (*close)(Backend *b); /* closes what open made */
	void (*free)(void *self);
	/* create the Backend of a slot in the open engine of its parent; NULL: the slot has its own
	 * engine, which open creates */
	llmc_status (*join)(void *self, const Backend *of, Backend *out, llmc_error *err);
	/* describe the progress of a running open in a few words, on any thread; NULL: unknown */
	void (*progress)(void *self, char *buf, size_t cap);
	/* create the source of a model of the catalogue (catalogue.h), on any thread; NULL: the
	 * server has no catalogue */
	llmc_status (*sibling)(void *self, const char *path, struct ModelSource *out,
	                       llmc_error *err);
	/* create the source of this model with an adapter from a folder; NULL: adapters are not
	 * supported */
	llmc_status (*adapt)(void *self, const char *dir, struct ModelSource *out, llmc_error *err);
} ModelSource;

/* forms of message contents that a chat template reads */
enum { PARTS_KNOWN = 1, PARTS_STRINGS = 2, PARTS_LISTS = 4 };
struct ServedModel {
	Slot *slot;
	const char *name; /* name of the slot */
	Server *srv;
	Backend back;
	int64_t bytes;
	int32_t max_input, max_total;
	/* model whose engine and event thread this one borrows (must outlive it); NULL: it has its
	 * own */
	ServedModel *of;
	void (*close)(Backend *b); /* NULL: the engine stays open */
	struct Grammars *grammars; /* cache of recent grammars */
	struct ImageCache *images; /* images that the tower has read; NULL: no tower */
	atomic_int parts;          /* PARTS_... of the template; 0: unknown */
	/* the chat format has no reasoning: without tools all output is text */
	atomic_bool plain_chat;
	pthread_t pump;
	bool has_pump;
	/* under Server.lock */
	int n_refs;    /* n_refs and n_gens include models that share its engine */
	int n_readers; /* number of threads that read its counters */
	int n_gens;
	bool healthy; /* a generation has succeeded since the last failure */
	bool failed;  /* the engine's device is lost */
	/* list of the model's generations, without those of models that share its engine */
	struct Generation *running;
	bool replacing;         /* a POST /v1/weights call is running */
	int64_t n_replaced;     /* number of times that its weights were replaced */
	char weights_name[128]; /* name of the latest weights, as the client gave it */
	bool ending;            /* the event thread ends when the engine has no requests */
	ServedModel *next;      /* link in Server.retired */
};

/* Write a sentence about the largest number of tokens that a request may have, and return buf. If
 * the server's limit is lower than the model's own, the sentence has both. */
enum { MODEL_LIMIT_TEXT = 160 };
const char *model_limit_text(const ServedModel *m, int64_t most, char buf[MODEL_LIMIT_TEXT]);

struct Slot {
	char *name, *parent; /* parent: base model of an adapter; NULL: not an adapter */
	ModelSource src;
	/* under Server.lock */
	Backend about; /* limits and info, also while the model sleeps: no engine, no tokenizer */
	int64_t bytes; /* memory of the slot's engine */
	int32_t max_input, max_total;
	ServedModel *model; /* NULL: asleep */
	bool loading, removed;
	bool lost;           /* its device failed, and it has not been opened again yet */
	double lost_until;   /* it is not opened again before this time */
	char lost_text[256]; /* reason why it could not be opened */
	bool paused;         /* requests wait, except those of RT_UNPAUSED */
	/* ... and those that had its model before, but do not generate yet, are refused */
	bool cancels;
	/* the manager thread uses the slot's source without the lock, so the slot must not be
	 * reused */
	bool pinned;
	bool found; /* a model of the catalogue, not of the command line */
	/* about, bytes and limits are not set yet: the manager thread will call `look` */
	bool unread;
	/* the slot was put to sleep while its engine was being opened: it first serves the waiting
	 * requests */
	bool sleep_when_done;
	/* a removed model of the catalogue; requests may point to the slot, so it keeps its name */
	bool was_found;
	/* keep_alive of the last request with that field (Ollama): seconds that the idle engine
	 * stays open; negative: for ever */
	bool has_keep;
	double keep_s;
	bool wanted; /* the slot waits for an engine since wanted_at */
	uint64_t wanted_at;
	double used_at;
	int n_waiting;
	Queue waiting;         /* requests that wait for the engine or the end of a pause */
	Queue wakers, reloads; /* /wake_up and /reload calls to answer when done */
	Metrics metrics;
};

/* Initial state of a slot. */
typedef struct SlotInit {
	const char *name, *parent; /* name NULL: the model's own name; both are copied */
	ModelSource src;
	const Backend *back; /* open engine; NULL: call look */
	int64_t bytes;       /* size of an open engine */
	/* the slot has no model: the server has models of the catalogue only */
	bool nameless;
} SlotInit;

/* Open all slots. The server takes ownership of the sources and engines of init, even on
 * failure. */
llmc_status models_open(Server *s, const SlotInit *init, int n, llmc_error *err);
void models_drop(const SlotInit *init); /* frees an init that was not passed to models_open */
/* Close in three steps. models_stop refuses waiting requests; Server.closing must be set.
 * models_end waits for running requests; all workers must have ended. models_close frees
 * everything; no other thread may use the models. */
void models_stop(Server *s);
void models_end(Server *s);
void weights_wait(Server *s); /* wait until no POST /v1/weights call runs; no new one may begin */
void models_close(Server *s);

/* Return the slot that descriptions of the server show: the first one. On a server without models
 * of its own it is the only slot that requests have used, or else the empty first slot. Lock held.
 */
const Slot *slot_shown(Server *s);
Slot *models_find(Server *s, const char *name);               /* NULL: unknown; takes the lock */
void models_unknown(Server *s, const char *name, Problem *p); /* 404 that lists the models */
/* Set r->model from the body. False without a Problem: the request waits for its model and no
 * longer belongs to the caller. */
bool models_take(Server *s, Req *r, Problem *p);
/* Return, with a reference, a loaded model that has not generated successfully since its last
 * failure; NULL: none. *ill: an engine has failed; it is opened again. */
ServedModel *models_unproven(Server *s, bool *ill);
bool models_failed(Server *s);    /* an engine has failed */
void model_ref(ServedModel *m);   /* lock held */
void model_unref(ServedModel *m); /* lock not held */
int models_number(Server *s);     /* number of slots, including removed ones */
/* return the number of generations in flight of a slot that borrows an engine; -1 for other
 * slots */
int model_gens(Server *s, Slot *t);
bool model_counts(Server *s, Slot *t, llmc_counts *out); /* false: asleep */
void models_counts(Server *s, llmc_counts *out);         /* sums over loaded models */
/* Load, put to sleep, or reload a model for the call r, which is answered at the end, in the form
 * of r->reply. t NULL: all models. */
void models_want(Server *s, Slot *t, Req *r);
void models_reload(Server *s, Slot *t, Req *r);
void models_sleep(Server *s, Slot *t, Req *r);
/* Add an adapter of base under this name; takes ownership of dir. */
void models_adapt(Server *s, Slot *base, const char *name, char *dir, Req *r);
/* Unload a model of the catalogue and forget its description; r is answered when the model's
 * requests have ended. */
void models_forget(Server *s, Slot *t, Req *r);
/* Remove an adapter's name; running requests finish. False with a Problem: not found. */
bool models_remove(Server *s, const char *name, Problem *p);
const char *slot_state(const Slot *t); /* "loaded", "loading", "unloaded", "failed"; lock held */
bool slot_failed(const Slot *t);       /* its device is lost; lock held */
Slot *slot_owner(Server *s, Slot *t);  /* slot of the engine that t uses; lock held */
/* Before a slot is used whose device is lost: retire the engine, so that it is opened again, at
 * most every SLOT_REOPEN_S seconds. False: there is no engine, because it could not be opened a
 * moment ago. Lock held. */
enum { SLOT_REOPEN_S = 10 };
bool slot_revive(Server *s, Slot *t);
/* Open all models again whose devices are lost. While /health fails, a load balancer sends no
 * request that would do so. Lock held. */
void slots_revive(Server *s);
/* Append {"value":...} with the progress of a model that is being loaded; lock held. */
void slot_status(const Slot *t, Strbuf *b);
/* Seconds that an idle engine stays open; negative: for ever. Lock held. */
double slot_keep_s(const Server *s, const Slot *t);
/* Set the keep_alive of the slot of a request's model. Requests with a key of --keys cannot change
 * it. */
void slot_keep(Req *r, bool given, double seconds);

#endif
