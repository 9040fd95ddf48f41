/* HTTP over an engine: OpenAI's and TGI's routes, metrics, two pages.
 *
 * Three kinds of threads:
 *   http     libmicrohttpd's one thread (epoll): reads requests, writes answers, never waits for anything
 *   workers  parse, validate, apply templates, tokenize, submit
 *   pump     takes events from the engine, turns them into bytes of answers; once in a while looks for clients that
 *            have gone and for requests that arrive too slowly
 * A request whose answer is not ready is suspended: it costs a descriptor and some memory, no thread.
 *
 * One lock (Server.lock) guards the lists, the counters and what http and the others share of a Req. It is never held
 * while an engine call may wait, nor while JSON is made. Bodies, headers and files of requests are untrusted.
 * Nothing here prints: log lines go to the caller's function. */
#ifndef LLMC_RUNTIME_SERVE_H
#define LLMC_RUNTIME_SERVE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "api/llmc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"

struct MHD_Connection;
struct MHD_Daemon;

typedef struct llmc_server Server;
typedef struct Req Req;
typedef struct Gen Gen;

/* What the server needs of an engine: tests put a false one here. */
typedef struct Backend {
	void *self;
	llmc_status (*submit)(void *self, const llmc_request *r, int64_t *id, llmc_error *err);
	llmc_status (*next)(void *self, int timeout_ms, llmc_event *ev, llmc_error *err);
	void        (*release)(llmc_event *ev);
	void        (*cancel)(void *self, int64_t id);
	void        (*stats)(void *self, llmc_counts *out);
	const llmc_tokenizer *tok; /* NULL: ids only */
	llmc_limits     limits;
	llmc_model_info info;
	char            dtype[16]; /* of activations: "float32" */
	/* the engine's knobs in force, for /info and the metrics */
	int32_t max_concurrent, max_waiting_tokens;
	float   waiting_served_ratio;
	int64_t max_batch_total;
} Backend;

/* ---- counters (metrics.c) ---- */

enum { HIST_MAX = 128 };
typedef struct Hist { /* cumulative only when printed */
	int      n_bounds;
	double   bound[HIST_MAX];
	uint64_t count[HIST_MAX + 1];
	double   sum;
	uint64_t n;
} Hist;
enum { ERR_OVERLOADED, ERR_VALIDATION, ERR_INCOMPLETE, ERR_DROPPED, ERR_GENERATION, ERR_KINDS };
typedef struct Metrics { /* under Server.lock */
	uint64_t requests, success, failure[ERR_KINDS];
	Hist     duration, validation, queue, inference, per_token, input_length, max_new, generated;
	uint64_t stop_other[2]; /* choices that ended by abort, by error */
} Metrics;
void metrics_init(Metrics *m, int32_t max_input, int32_t max_total);
void hist_add(Hist *h, double x);

/* ---- the server ---- */

typedef struct Conn { /* one TCP connection */
	struct Conn *prev, *next;
	int          fd;
	enum { CONN_IDLE, CONN_HEADERS, CONN_BODY, CONN_WORK } state;
	double       since;  /* when it entered the state */
	uint64_t     n_requests;
	Req         *req;
} Conn;

enum { MAX_WORKERS = 16, N_SPEED = 60 };

struct llmc_server {
	Backend  back;
	llmc_serve_options opt; /* strings are owned */
	char    *model_name;
	char     url[300];
	int      port;
	time_t   started;
	int32_t  max_input, max_total;
	size_t   max_body, max_held; /* bytes of one body, of all */

	struct MHD_Daemon *mhd;
	int      listen_fd;
	pthread_mutex_t lock, log_lock;
	pthread_cond_t  work, idle;
	pthread_t worker[MAX_WORKERS], pump;
	int      n_workers;
	bool     has_pump;
	atomic_bool draining;      /* no new requests */
	atomic_bool closing;       /* what runs is cancelled, workers and pump end */
	atomic_bool ended;         /* they have: nothing is suspended any more */
	bool     healthy;          /* a generation has worked since the last failure */
	bool     failed;           /* the engine's device is gone */

	Conn    *conns;            /* list */
	Req     *queue, **queue_end; /* requests for the workers */
	int      n_active;         /* requests whose answer is not complete */
	int      n_gens;
	size_t   held;             /* bytes of bodies in memory */
	uint64_t next_id;
	Metrics  metrics;
	struct { double at; uint64_t prompt, fresh; } speed[N_SPEED]; /* a ring, one a second, for /status.json */
	int      speed_at;
};

typedef struct Route {
	const char *method, *path; /* a path that ends in '/' with `prefix` also takes what lies below */
	bool        prefix;
	bool        open;    /* needs no key */
	bool        tgi;     /* errors in TGI's form */
	bool        json;    /* body must be JSON: checked before the handler */
	bool        work;    /* by a worker, else at once on the http thread */
	void      (*handle)(Req *r);
} Route;

/* One request and its answer. */
struct Req {
	Server *srv;
	struct MHD_Connection *mhd;
	Conn   *conn;
	atomic_int refs;
	const Route *route;
	Req    *next;          /* in the workers' queue */
	char    id[136];
	char    method[16], path[256], client[64];
	double  t_start;
	Strbuf  body;
	bool    too_large, no_memory, wants_html, early, content_json, auth_ok;
	bool    whole;         /* all of it has come */
	char    allow_origin[256];
	const char *tail;      /* of the path, below a prefix route; points into path */

	/* shared, under Server.lock */
	bool    ready;         /* status, type and headers are set */
	bool    done;          /* out is complete */
	bool    stream;        /* answered in pieces */
	bool    suspended;
	bool    gone;          /* nobody will read the answer */
	bool    counted;       /* in n_active */
	bool    generates;     /* counts in the metrics of requests */
	int     status;
	const char *type;      /* content type, a constant */
	Strbuf  out;
	size_t  out_at;        /* bytes of out that http has taken */
	double  t_out;         /* when out last grew */
	struct { const char *name; char value[128]; } head[12];
	int     n_head;
	const char *policy;    /* Content-Security-Policy of a page */
	const char *fixed;     /* an embedded file instead of out */
	size_t  n_fixed;
	Gen    *gen;           /* NULL: none, or over */
	/* for the log */
	int32_t n_prompt, n_new;
	const char *finish;
};

/* http.c */
llmc_status http_open(Server *s, llmc_error *err);
void   http_wake(Req *r);                    /* resume if suspended; call without the lock */
void   req_unref(Req *r);
void   req_head(Req *r, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The whole answer; `body` is taken over (may be NULL). Wakes the connection. */
void   req_answer(Req *r, int status, const char *type, Strbuf *body);
void   req_answer_file(Req *r, const char *type, const char *data, size_t n);
void   req_text(Req *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Begin an answer in pieces; then req_push and at last req_end, from any thread. */
void   req_stream(Req *r);
void   req_push(Req *r, const char *data, size_t n);
void   req_end(Req *r);
const char *req_header(Req *r, const char *name); /* http thread, or a worker while the request is suspended */
extern const char type_json[], type_text[], type_sse[], type_html[];

/* watch.c: on the pump's thread, every tenth of a second */
void   watch_clients(Server *s, double now);

/* work.c */
llmc_status work_open(Server *s, llmc_error *err);
void   work_push(Server *s, Req *r); /* with the lock held */
void   work_close(Server *s);

/* route.c */
const Route *route_find(const char *method, const char *path, bool html, const char **tail, bool *wrong_method);

/* log.c */
void   log_request(Req *r);
void   serve_log(Server *s, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- JSON (json.c) ---- */

enum { JSON_MAX_NEST = 100 };
typedef struct Problem { /* what is wrong with a request */
	int         status;      /* 0: nothing */
	char        text[1024];
	char        param[128];  /* "": null */
	const char *code;        /* NULL: null */
	const char *type;        /* OpenAI's error.type, TGI's error_type; NULL: by the status */
} Problem;
bool problem(Problem *p, int status, const char *param, const char *fmt, ...) __attribute__((format(printf, 4, 5))); /* false */

/* Parse a body: nesting bounded, integers up to 2^64-1 kept ({"$u64": text} beyond int64). */
json_t *body_parse(const char *data, size_t n, Problem *p);
bool    json_u64(const json_t *v, uint64_t *out);       /* a whole number in 0 .. 2^64-1 */
void    json_str(Strbuf *b, const char *s, size_t n);   /* quoted; invalid UTF-8 as U+FFFD */
void    json_num(Strbuf *b, double x);                  /* finite, else null; shortest that a float needs */
/* JSON by a format: %s a quoted string (NULL: null), %d, %lld, %g a number; the rest stands for itself. */
void    json_printf(Strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fields of an object, OpenAI's manners: null is absent; false with a Problem when the type or the range is wrong. */
bool field_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, bool *set, Problem *p);
bool field_num(const json_t *o, const char *key, double lo, double hi, double *out, bool *set, Problem *p);
bool field_bool(const json_t *o, const char *key, bool *out, Problem *p);
const char *json_type_name(const json_t *v);

/* ---- generation (gen.c) ---- */

typedef enum Dialect { DIA_COMPLETION, DIA_CHAT, DIA_TGI, DIA_TGI_COMPAT, DIA_HEALTH } Dialect;

typedef struct Choice {
	Strbuf  text;      /* whole text so far */
	Strbuf  col[4];    /* columns of log probabilities, as JSON without brackets */
	int64_t n_chars;   /* of text */
	int32_t n_new, last_id;
	double  sum_logprob;
	bool    started, done;
	llmc_finish finish;
	Strbuf  held;      /* TGI stream: the frame of the last token, until the end is known */
} Choice;

typedef struct Sub { /* one request of the engine: a prompt */
	Gen     *gen;
	int32_t  index;
	int64_t  id;       /* 0: not submitted */
	bool     over;
	int32_t *tok;
	size_t   n_tok;
	char    *echo;     /* text of the prompt, for echo and return_full_text */
	size_t   n_echo;
	int64_t  echo_chars;
	int32_t  n_seen;   /* prompt tokens told so far */
	Strbuf   col[4];   /* columns of the prompt, for echo; of TGI the first: prefill */
	int32_t  n_cached;
} Sub;

struct Gen {
	Req      *req;
	Server   *srv;
	Dialect   dialect;
	bool      stream;
	char      oai_id[48];
	time_t    created;
	char      model[160];

	llmc_request er;         /* template of the engine requests */
	llmc_params  ep;
	int32_t  *stop_tokens;
	llmc_bias *bias;
	char    **stop;          /* NULL-terminated, owned */
	int32_t   n;             /* choices of a prompt */
	int32_t   best_of;
	int32_t   max_new;       /* as asked: 0 runs one token and hides it */
	bool      hide_new;
	bool      echo, include_usage, logprobs;
	int32_t   n_top;         /* alternatives to tell */
	/* TGI */
	bool      details, prefill, full_text, seeded;
	uint64_t  seed;
	double    t_valid;       /* when validation was over */
	double    queue_s, prefill_s, decode_s;

	Sub      *sub;
	int32_t   n_sub;
	Choice   *choice;        /* [n_sub * n] */
	/* under the lock */
	int32_t   n_open;        /* subs submitted and not over */
	bool      submitting;
	bool      silent;        /* submitting failed: the caller tells */
	bool      failed;        /* an error was told, or is to be told: no more output */
	llmc_status fail_status;
	char      fail_text[512];
};

Gen *gen_new(Req *r, Dialect d);     /* NULL: out of memory */
void gen_free(Gen *g);
void gen_count(Req *r);                              /* a request to generate has come */
bool gen_prompts(Gen *g, int32_t n, Problem *p);     /* room for n prompts, after g->n is known */
/* Submit all prompts; then everything goes by events. On false nothing runs, g is gone, the caller tells the Problem. */
bool gen_start(Gen *g, Problem *p);
void gen_event(Server *s, const llmc_event *ev);     /* pump's thread */
void gen_abort(Req *r);                              /* cancel what the request runs; lock held */
void gen_sums(const Gen *g, int32_t *n_prompt, int32_t *n_new, int32_t *n_cached);
/* What went wrong with a generation, as a Problem in OpenAI's words. */
void gen_failure(const Gen *g, Problem *p);
uint64_t random_seed(void);
bool tokenize_prompt(Server *s, const char *text, size_t n, int flags, int32_t **ids, size_t *n_ids, Problem *p);
/* Bytes of a token as the text has them, by the vocabulary: not always whole UTF-8. */
void token_bytes(const llmc_tokenizer *t, int32_t id, Strbuf *out);
bool token_is_special(const llmc_tokenizer *t, int32_t id);
int64_t utf8_chars(const char *s, size_t n);

/* openai_in.c, openai_out.c, tgi_in.c, tgi_out.c */
void openai_problem(Req *r, const Problem *p);
void openai_completions(Req *r);
void openai_chat(Req *r);
void openai_prompt(Gen *g, Sub *sub, const llmc_event *ev);
void openai_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev);
void openai_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev);
void openai_done(Gen *g);
bool chat_prompt(Server *s, const json_t *body, char **text, size_t *n, Problem *p); /* messages -> template */
void tgi_problem(Req *r, const Problem *p);
void tgi_frame_problem(Req *r, const Problem *p);
void tgi_generate(Req *r);
void tgi_generate_stream(Req *r);
void tgi_compat(Req *r);
void tgi_prompt(Gen *g, Sub *sub, const llmc_event *ev);
void tgi_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev);
void tgi_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev);
void tgi_done(Gen *g);
void req_problem(Req *r, const Problem *p); /* in the form of the route */

/* info.c, text.c, page.c, metrics.c, status.c */
void info_models(Req *r);
void info_model(Req *r);
void info_tgi(Req *r);
void info_health(Req *r);
void info_version(Req *r);
void info_status(Req *r);
void status_tick(Server *s, double now);
void text_tokenize(Req *r);
void text_detokenize(Req *r);
void text_tgi_tokenize(Req *r);
void text_chat_tokenize(Req *r);
void page_chat(Req *r);
void page_status(Req *r);
void page_asset(Req *r);
void page_docs(Req *r);
void page_openapi(Req *r);
void metrics_text(Req *r);

/* server.c: also what tests use */
llmc_status server_open(const Backend *b, const llmc_serve_options *opt, Server **out, llmc_error *err);
int         server_port(const Server *s);
void        server_stop(Server *s);                  /* no new requests */
bool        server_wait(Server *s, int timeout_ms);  /* true: nothing is in work */
void        server_close(Server *s);

#endif
