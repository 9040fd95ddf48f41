/* HTTP server over engines: OpenAI's, TGI's, Anthropic's and Ollama's routes, metrics, two pages.
 * It uses only llmc.h and base/.
 *
 *   serve/http/      connections, requests, workers, logs, metrics; routes come from routes.def
 *   serve/dialects/  generation.[ch] and one group of files per dialect, constraints, tokens,
 * information
 *   serve/batch/     files of requests and their answers, stored in a folder (batch.h)
 *   serve/models/    names and their engines, which are loaded and unloaded (model.h)
 *   serve/pages/     chat page, status page and description of the routes
 *
 * Six kinds of threads:
 *   http     one thread (base/poller.h): reads requests, writes answers, detects closed and slow
 *            connections; never waits
 *   workers  parse, validate, apply templates, tokenize, submit
 *   images   one worker for requests with images: decodes them and runs vision towers
 *   pumps    one per engine: take its events and turn them into bytes of answers
 *   manager  opens and closes engines
 *   batches  sends the lines of files as requests, if the server has a batch folder
 * A connection that waits for its answer uses a descriptor and some memory, but no thread.
 * Server.held counts the bytes of bodies, their parsed form and pending answers. Above its limit,
 * large requests get status 503; small requests are still accepted.
 *
 * Server.lock protects the lists, the counters and the fields of a Req that several threads use. It
 * is not held during an engine call that may wait, nor while a long JSON answer is built. Bodies,
 * headers and files of requests are untrusted. Nothing here prints: log lines are passed to the
 * caller's function. */
#ifndef LLMC_SERVE_H
#define LLMC_SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "llmc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"

typedef struct llmc_server Server;
typedef struct Req Req;
typedef struct Route Route;
typedef struct ServedModel ServedModel; /* an engine that serves a name (model.h) */
typedef struct Slot Slot;               /* a name of a model (model.h) */

/* Interface of an engine to the server. Tests implement it with a fake engine. */
typedef struct Backend {
	void *self;
	void *model; /* set by its ModelSource */
	llmc_status (*submit)(void *self, const llmc_request *r, int64_t *id, llmc_error *err);
	llmc_status (*next)(void *self, int timeout_ms, llmc_event *ev, llmc_error *err);
	void (*release)(llmc_event *ev);
	void (*cancel)(void *self, int64_t id);
	void (*stats)(void *self, llmc_counts *out);
	/* replace the weights in place by a checkpoint; `cancel`: cancel running requests. The call
	 * blocks. NULL: not supported */
	llmc_status (*replace)(void *self, const char *path, bool cancel, llmc_error *err);
	const llmc_tokenizer *tok; /* NULL: no tokenizer, ids only */
	llmc_limits limits;
	llmc_model_info info;
	llmc_advice advice;               /* recommended sampling parameters; set 0: none */
	const llmc_input_prompt *prompts; /* [n_prompt] of an embedding model, while it is open */
	size_t n_prompt;
	char dtype[16];        /* type of activations: "float32" */
	char quant_format[24]; /* quantisation format of weights: "q4_k", "gptq", "bf16" */
	/* effective engine limits, for /info and the metrics */
	int32_t max_concurrent, max_waiting_tokens;
	float waiting_served_ratio;
	int64_t max_batch_total;
	/* adapter slots for models that borrow this engine (ModelSource.join); 0: unlimited */
	int32_t places;
	llmc_tower *tower; /* NULL: prompts have no images */
} Backend;

/* ---- counters (metrics.c) ---- */

enum { HIST_MAX = 128 };
typedef struct Histogram { /* cumulative only when printed */
	int n_bounds;
	double bound[HIST_MAX];
	uint64_t count[HIST_MAX + 1];
	double sum;
	uint64_t n;
} Histogram;
enum { ERR_OVERLOADED, ERR_VALIDATION, ERR_INCOMPLETE, ERR_DROPPED, ERR_GENERATION, ERR_KINDS };
typedef struct Metrics { /* protected by Server.lock */
	uint64_t requests, success, failure[ERR_KINDS];
	Histogram duration, validation, queue, inference, per_token, input_length, max_new,
	    generated;
	uint64_t stop_other[2]; /* number of choices that ended by abort, and by error */
} Metrics;
void metrics_init(Metrics *m, int32_t max_input, int32_t max_total);
void hist_add(Histogram *h, double x);

/* ---- the server ---- */

typedef struct Conn Conn; /* one TCP connection (connection.c) */

typedef struct Queue {
	Req *first, **end;
} Queue;
enum { MAX_WORKERS = 16, N_SPEED = 60, N_PAST = 360, MAX_MODELS = 256, PAST_SECONDS = 10 };

typedef struct HistorySample {    /* state of the server at one time */
	double at;                /* clock_now() */
	int32_t running, waiting; /* sequences; waiting includes preempted ones */
	int64_t pages;            /* pages in use */
	/* totals since the start: prompt tokens, prompt tokens computed, prefix cache lookups and
	 * hits, draft tokens and accepted ones */
	uint64_t prompt, fresh, queries, hits, drafted, accepted;
	uint64_t steps[LLMC_BUCKETS]; /* engine steps by duration, buckets of llmc_histogram */
} HistorySample;

struct llmc_server {
	llmc_serve_options opt; /* strings are owned */
	char url[300];
	int port;
	time_t started;
	size_t max_body, max_held; /* limits in bytes: one body, all bodies */
	size_t max_upload;         /* limit in bytes of an uploaded file */

	Slot *slot[MAX_MODELS]; /* the first is the default model */
	int n_slots;            /* only grows, under the lock */
	bool nameless;          /* slot[0] is no model: there are only those of the catalogue */
	struct json_t *template_defaults; /* variables of chat templates; NULL: none */
	ServedModel *retired;             /* closed when they have no users */
	bool paused_all; /* all models are paused, also those that are still to be added */
	Queue sleepers;  /* /sleep calls to answer then */
	Queue pausers;   /* /pause calls to answer when the paused models run nothing */
	struct PendingAdapter *adding; /* adapters to be added by the manager thread */
	/* number of threads of POST /v1/weights calls; each signals `idle` at its end */
	int n_replacing;
	/* number of requests for an engine so far, which gives their order */
	uint64_t n_wanted;
	pthread_t model_manager;
	bool has_model_manager;
	pthread_cond_t keep;     /* wakes the manager thread */
	struct Keys *keys;       /* keys of several clients; NULL: none */
	struct Trace *trace;     /* destination of spans; NULL: off */
	struct FileStore *store; /* files and batches; NULL: off */
	const Route *routes;     /* ends with the not-found rows */
	struct Net *net;
	int listen_fd;
	bool loopback; /* listens on the loopback interface only */
	pthread_mutex_t lock, log_lock;
	pthread_cond_t work, idle;
	pthread_t worker[MAX_WORKERS + 1]; /* the first worker handles small requests only */
	int n_workers;
	/* the server reports itself unhealthy, so that routers send new requests elsewhere; it
	 * still accepts them */
	atomic_bool leaving;
	atomic_bool draining; /* no new requests */
	atomic_bool closing;  /* running requests are being cancelled; event threads end */
	bool work_over;       /* workers end when their queues are empty; under lock */
	atomic_bool ended;    /* workers have ended: no further answers will come */

	Queue large, small; /* requests for the workers */
	Queue images;       /* requests with images, for the image worker */
	/* number of the last turn of each client whose requests had images, by the hash of its key
	 * or address */
	uint64_t image_turn[64], n_image_turn;
	bool images_over; /* the image worker ends when its queue is empty; under lock */
	pthread_t image_worker;
	bool has_image_worker;
	Req *woken; /* requests that the HTTP thread must look at */
	atomic_int n_conns;
	int n_active; /* requests with incomplete answers */
	size_t held;  /* bytes of requests and answers in memory */
	/* a request was refused for lack of memory since the HTTP thread last checked */
	bool pressed;
	bool trim; /* much memory was freed: trim the heap */
	struct {
		double at;
		uint64_t prompt, fresh, steps[LLMC_BUCKETS];
	} speed[N_SPEED]; /* ring with one entry per second, for /status.json */
	int speed_at;
	double ticked;              /* start of the latest entry */
	HistorySample past[N_PAST]; /* ring with the last hour */
	uint64_t n_past;            /* samples taken in total */
};

/* connection.c */
llmc_status net_open(Server *s, llmc_error *err);
void net_wake(Server *s); /* makes the HTTP thread look at the server's state */
/* sends answers that are ready, for at most two seconds, then closes all connections */
void net_close(Server *s);
void http_wake(Req *r); /* call when the answer of r has grown; lock not held */
/* worker_pool.c, access_log.c, status.c */
llmc_status work_open(Server *s, llmc_error *err);
void work_push(Server *s, Req *r); /* lock held */
void work_close(Server *s);
void log_request(Req *r);
void serve_log(Server *s, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void status_tick(Server *s, double now); /* called on any event thread */

/* server.c: also used by tests */
struct SlotInit;
/* opens a server with one model that is never closed */
llmc_status server_open(const Backend *b, const llmc_serve_options *opt, Server **out,
                        llmc_error *err);
llmc_status server_open_models(const struct SlotInit *init, int n, const llmc_serve_options *opt,
                               Server **out, llmc_error *err);
int server_port(const Server *s);
/* makes the server report itself unhealthy to routers; it still accepts requests */
void server_drain(Server *s);
void server_stop(Server *s); /* refuses new requests */
/* waits until no request is in flight; false: the time has passed */
bool server_wait(Server *s, int timeout_ms);
void server_close(Server *s);

#endif
