/* HTTP over an engine: OpenAI's, TGI's, Anthropic's and Ollama's routes, metrics, two pages. Over
 * llmc.h and base/ alone.
 *
 *   server, net, head, http, work, log   the machine; it knows no route: rows of serve/http/routes.def come as a table
 *   gen, body, json, tokens, grammar     what dialects share: a generation, bodies in, JSON out, text and ids, constraints
 *   openai_*, responses, tgi_*, anthropic, ollama   dialects
 *   files, batches, batch_run            files of requests and their answers, over a folder (batch.h)
 *   info, text, page, metrics, ...       other routes
 *   models, sleep                        names and the engines behind them, which come and go (model.h)
 *
 * Five kinds of threads:
 *   http     one thread (epoll): reads requests, writes answers, sees who has gone or is too slow, never waits
 *   workers  parse, validate, apply templates, tokenize, submit
 *   pumps    one an engine: takes its events, turns them into bytes of answers
 *   keeper   opens and closes engines
 *   batches  sends the lines of files as requests, where a folder for them is given
 * A connection whose answer is not ready costs a descriptor and some memory, no thread. What
 * bodies, their parsing and answers that wait take is counted in bytes (Server.held): beyond the
 * limit large requests get 503, small ones pass.
 *
 * One lock (Server.lock) guards the lists, the counters and what http and the others share of a
 * Req. It is never held while an engine call may wait, nor while the JSON of an answer that can be
 * long is made. Bodies, headers and files of requests are untrusted. Nothing here prints: log lines
 * go to the caller's function. */
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
typedef struct Slot Slot;               /* the name */

/* What the server needs of an engine: tests put a false one here. */
typedef struct Backend {
	void *self;
	void *model; /* of its Source */
	llmc_status (*submit)(void *self, const llmc_request *r, int64_t *id, llmc_error *err);
	llmc_status (*next)(void *self, int timeout_ms, llmc_event *ev, llmc_error *err);
	void (*release)(llmc_event *ev);
	void (*cancel)(void *self, int64_t id);
	void (*stats)(void *self, llmc_counts *out);
	const llmc_tokenizer *tok; /* NULL: ids only */
	llmc_limits limits;
	llmc_model_info info;
	char dtype[16];  /* of activations: "float32" */
	char scheme[24]; /* of weights: "q4_k", "gptq", "bf16" */
	/* the engine's knobs in force, for /info and the metrics */
	int32_t max_concurrent, max_waiting_tokens;
	float waiting_served_ratio;
	int64_t max_batch_total;
	int32_t places; /* for adapters of models that share this engine (Source.join); 0: there is
	                   no bound */
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
typedef struct Metrics { /* under Server.lock */
	uint64_t requests, success, failure[ERR_KINDS];
	Histogram duration, validation, queue, inference, per_token, input_length, max_new,
	    generated;
	uint64_t stop_other[2]; /* choices that ended by abort, by error */
} Metrics;
void metrics_init(Metrics *m, int32_t max_input, int32_t max_total);
void hist_add(Histogram *h, double x);

/* ---- the server ---- */

typedef struct Conn Conn; /* one TCP connection (connection.c) */

typedef struct Queue {
	Req *first, **end;
} Queue;
enum { MAX_WORKERS = 16, N_SPEED = 60, N_PAST = 360, MAX_MODELS = 256, PAST_SECONDS = 10 };

typedef struct HistorySample {    /* the server as it was */
	double at;                /* clock_now() */
	int32_t running, waiting; /* preempted ones as well */
	int64_t pages;            /* in use */
	/* since the start: tokens of prompts, new ones, looked up and found in the prefix cache,
	 * guessed ahead and of them those that came true */
	uint64_t prompt, fresh, queries, hits, drafted, accepted;
} HistorySample;

struct llmc_server {
	llmc_serve_options opt; /* strings are owned */
	char url[300];
	int port;
	time_t started;
	size_t max_body, max_held; /* bytes of one body, of all */
	size_t max_upload;         /* of one that is a file */

	Slot *slot[MAX_MODELS]; /* the first is meant where a request names none */
	int n_slots;            /* grows under the lock */
	ServedModel *retired;   /* they end when nobody uses them */
	Queue sleepers;         /* calls that are answered then */
	struct Adding *adding;  /* adapters that the keeper shall look at */
	uint64_t n_wanted;      /* times that a slot has begun to want an engine */
	pthread_t model_manager;
	bool has_model_manager;
	pthread_cond_t keep;     /* the keeper has something to do */
	struct Keys *keys;       /* of several clients; NULL */
	struct Trace *trace;     /* spans go there; NULL: nowhere */
	struct FileStore *store; /* files and batches; NULL: none are kept */
	const Route *routes;     /* ends with the rows of what is not there */
	struct Net *net;
	int listen_fd;
	bool loopback; /* only this machine can reach it */
	pthread_mutex_t lock, log_lock;
	pthread_cond_t work, idle;
	pthread_t worker[MAX_WORKERS + 1]; /* the first for small requests only */
	int n_workers;
	atomic_bool leaving;  /* routers shall send new requests elsewhere; all are still taken */
	atomic_bool draining; /* no new requests */
	atomic_bool closing;  /* what runs is cancelled, pumps end */
	bool work_over;       /* workers end, when all that came is handled; under lock */
	atomic_bool ended;    /* they have: no answer that is not there will come */

	Queue large, small; /* requests for the workers */
	Req *woken;         /* those that http should look at */
	atomic_int n_conns;
	int n_active; /* requests whose answer is not complete */
	size_t held;  /* bytes of requests and answers in memory */
	bool pressed; /* some request found no room since http last looked */
	bool trim;    /* much was freed: the heap can give some back */
	uint64_t next_id;
	struct {
		double at;
		uint64_t prompt, fresh;
	} speed[N_SPEED]; /* a ring, one a second, for /status.json */
	int speed_at;
	double ticked;              /* when the last one was begun */
	HistorySample past[N_PAST]; /* the last hour, a ring */
	uint64_t n_past;            /* ever taken */
};

/* connection.c */
llmc_status net_open(Server *s, llmc_error *err);
void net_wake(Server *s);  /* look at the server's state */
void net_close(Server *s); /* answers that are ready are sent, for two seconds; then all closes */
void http_wake(Req *r);    /* its answer has grown; call without the lock */
/* worker_pool.c, access_log.c, status.c */
llmc_status work_open(Server *s, llmc_error *err);
void work_push(Server *s, Req *r); /* with the lock held */
void work_close(Server *s);
void log_request(Req *r);
void serve_log(Server *s, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void status_tick(Server *s, double now); /* on any pump's thread */

/* server.c: also what tests use */
struct SlotInit;
llmc_status server_open(const Backend *b, const llmc_serve_options *opt, Server **out,
                        llmc_error *err); /* one model, open for good */
llmc_status server_open_models(const struct SlotInit *init, int n, const llmc_serve_options *opt,
                               Server **out, llmc_error *err);
int server_port(const Server *s);
void server_drain(Server *s);                /* unhealthy to routers, else as before */
void server_stop(Server *s);                 /* no new requests */
bool server_wait(Server *s, int timeout_ms); /* true: nothing is in work */
void server_close(Server *s);

#endif
