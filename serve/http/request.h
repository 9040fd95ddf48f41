/* A request, its route and its answer: what a handler sees of the server. */
#ifndef LLMC_SERVE_HTTP_REQUEST_H
#define LLMC_SERVE_HTTP_REQUEST_H

#include <stdatomic.h>

#include "base/file.h"
#include "serve/http/json_body.h"
#include "serve/http/request_head.h"
#include "serve/serve.h"

enum {                  /* flags of a Route */
       RT_JSON = 1,     /* the body must be JSON: checked before the handler */
       RT_WORK = 2,     /* by a worker, else at once on the http thread */
       RT_OPEN = 4,     /* needs no key */
       RT_PREFIX = 8,   /* also takes what lies below its path, which ends in '/' */
       RT_HTML = 16,    /* for clients that accept HTML */
       RT_DRAIN = 32,   /* answered by a worker while the server shuts down, too */
       RT_MODEL = 128,  /* asks a model, by the "model" of its body */
       RT_UPLOAD = 256, /* its body is a file's bytes: larger than others, and no JSON */
       RT_PROBE =
	   64, /* for routers and scrapers: needs no key where the server's open_probes say so */
};

typedef struct Route {             /* a row of serve/http/routes.def */
	const char *method, *path; /* path NULL: of what has no other row; the last rows */
	const char *below; /* of those: for paths that begin so; NULL: for all, the last row */
	void (*handle)(Req *r);
	void (*problem)(Req *r,
	                const Problem *p); /* answers with an error, in the dialect's form */
	int flags;
} Route;

/* One request and its answer. */
struct Req {
	Server *srv;
	Conn *conn; /* http's; NULL when it has closed (Server.lock) */
	HttpHead in;
	char *head_bytes; /* that the texts of in point into */
	atomic_int refs;
	const Route *route;
	Req *next; /* in the workers' queue */
	char id[136];
	char method[16], path[256], client[64];
	double t_start;
	Strbuf body;
	bool too_large, no_memory, wants_html, content_json, auth_ok;
	struct ApiKey *key; /* whose limits hold; NULL: none */
	Slot *slot;         /* whose metrics count it */
	ServedModel
	    *model;      /* while a worker handles it, of a route that asks one; with a reference */
	bool all_models; /* a call to sleep: of all */
	char allow_origin[256];
	const char *allow_headers; /* of a preflight, as it asked */
	const char *tail;          /* of the path, below a prefix route; points into path */

	/* shared, under Server.lock */
	bool ready;  /* status, type and headers are set */
	bool done;   /* out is complete */
	bool stream; /* answered in pieces */
	bool awake;  /* http will look at it */
	bool listed; /* it is in Server.woken, by wake_next; it may have been looked at since */
	Req *wake_next;
	bool gone;      /* nobody will read the answer */
	size_t held;    /* bytes, of Server.held */
	bool generates; /* counts in the metrics of requests */
	int status;
	const char *type; /* content type, a constant */
	Strbuf out;
	struct {
		const char *name;
		char value[128];
	} head[12];
	int n_head;
	const char *policy; /* Content-Security-Policy of a page */
	const char *fixed;  /* an embedded file instead of out, or what file maps */
	size_t n_fixed;
	FileMap file;
	void *gen;              /* what is being generated; NULL: nothing, or over */
	void (*cancel)(Req *r); /* stops that; called with the lock held */
	void (*answered)(
	    Req *r); /* of a request without a connection: its answer is whole; NULL: it has one */
	/* for the log */
	int32_t n_prompt, n_new;
	const char *finish;
	double t_valid, queue_s, prefill_s, decode_s;
	char trace[33], parent[17], span[17]; /* digits, as OpenTelemetry has them */
	bool untraced;                        /* its client does not want it told */
};

/* http.c */
/* The row that fits; *tail: of the path, below a prefix. One without a path: there is none, maybe
 * because of the method. */
const Route *route_find(const Route *table, const char *method, const char *path, bool html,
                        const char **tail, bool *wrong_method);
extern const Route serve_routes[]; /* route.c */

/* http.c: what connection.c calls, on its thread, in this order */
Req *req_new(Server *s, Conn *conn, const char *client);
bool req_begin(Req *r, char *head,
               size_t n); /* takes the head over; false: answer now, without the body */
void req_refuse(Req *r, const HttpError *e); /* it cannot be read */
void req_body(Req *r, const char *data, size_t n);
void req_whole(Req *r);
void req_write_head(Req *r, bool close, Strbuf *b);
bool req_take(Req *r, Strbuf *piece,
              bool *over); /* the next piece of a stream, for the last; false: it breaks off */
void req_over(Req *r, bool sent);
/* A request of the server's own to a route, behind all others: then req_whole, when answered() may
 * come on any thread, at last req_over. NULL: out of memory. */
Req *req_inside(Server *s, const char *path, const char *body, size_t n, void (*answered)(Req *r));

/* http.c: what handlers call, from any thread */
bool req_charge(
    Req *r,
    size_t n); /* count n bytes as in use until req_release or the end; false: too many are */
void req_release(Req *r, size_t n);
void req_drop_body(Req *r);
void req_unref(Req *r);
void req_head(Req *r, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The whole answer; `body` is taken over (may be NULL). Wakes the connection. */
void req_answer(Req *r, int status, const char *type, Strbuf *body);
void req_problem(Req *r, const Problem *p); /* in the form of the route */
void req_cancel(Req *r);                    /* stop what it generates, if anything; lock held */
void req_answer_file(Req *r, const char *type, const char *data, size_t n);
void req_text(Req *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Begin an answer in pieces, type NULL: server-sent events; then req_push and at last req_end, from
 * any thread. */
void req_stream(Req *r, const char *type);
void req_push(Req *r, const char *data, size_t n);
void req_end(Req *r);
const char *req_header(Req *r, const char *name);
/* Not a web page of somebody else's: it may send some kinds of requests without asking first. False
 * with a Problem. */
bool req_own_page(Req *r, Problem *p);
/* load_report.c: the header of how busy we are, where the request asks for it */
void load_header(Req *r, Strbuf *b);
extern const char type_json[], type_text[], type_sse[], type_html[];

#endif
