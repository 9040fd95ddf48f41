/* A request, its route and its answer: the interface of handlers to the server. */
#ifndef LLMC_SERVE_HTTP_REQUEST_H
#define LLMC_SERVE_HTTP_REQUEST_H

#include <stdatomic.h>

#include "base/file.h"
#include "serve/http/json_body.h"
#include "serve/http/request_head.h"
#include "serve/serve.h"

enum {                    /* flags of a Route */
       RT_JSON = 1,       /* the body must be JSON, which is checked before the handler runs */
       RT_WORK = 2,       /* a worker handles the request; without this flag the HTTP thread does */
       RT_OPEN = 4,       /* needs no key */
       RT_PREFIX = 8,     /* also matches paths below its path, which ends in '/' */
       RT_HTML = 16,      /* only for clients that accept HTML */
       RT_DRAIN = 32,     /* also answered while the server drains */
       RT_MODEL = 128,    /* the request needs the model that its body names */
       RT_UPLOAD = 256,   /* the body is a file: it has another size limit and need not be JSON */
       RT_UNPAUSED = 512, /* runs even while its model is paused */
       RT_PROBE = 64,     /* for routers and metrics scrapers: needs no key if open_probes is set */
};

typedef struct Route { /* a row of serve/http/routes.def */
	/* path NULL: the row of paths that are not found; such rows come last */
	const char *method, *path;
	/* for not-found rows: path prefix that the row covers; NULL: all paths, the last row */
	const char *below;
	void (*handle)(Req *r);
	void (*problem)(Req *r, const Problem *p); /* writes an error in the dialect's form */
	int flags;
} Route;

/* Forms of the answer of a call that loads or unloads a model */
typedef enum LoadReply {
	REPLY_STATUS,  /* {"model","status"} */
	REPLY_SUCCESS, /* llama.cpp's {"success"} in addition */
	REPLY_DELETED, /* OpenAI's {"id","object","deleted"} */
	REPLY_PAUSE,   /* {"success","status"}, with "model" unless the call was for all models */
} LoadReply;

/* One request and its answer. */
struct Req {
	Server *srv;
	/* connection, owned by the HTTP thread; NULL after it is closed (Server.lock) */
	Conn *conn;
	HttpHead in;
	char *head_bytes; /* memory that the strings of `in` point into */
	atomic_int refs;
	const Route *route;
	Req *next; /* link in the workers' queue */
	char id[136];
	char method[16], path[256], client[64];
	double t_start;
	Strbuf body;
	bool too_large, no_memory, wants_html, content_json, auth_ok;
	/* for a request that the server makes itself: name of the key on whose behalf */
	char *owner;
	struct ApiKey *key; /* key whose limits apply; NULL: none */
	Slot *slot;         /* slot whose metrics count the request */
	/* model of a route with RT_MODEL, set while a worker handles the request; holds a
	 * reference */
	ServedModel *model;
	bool device_failed; /* the device failed during its generation; under Server.lock */
	bool all_models;    /* a /sleep call for all models */
	LoadReply reply;
	char allow_origin[256];
	const char *allow_headers; /* headers that a preflight requested */
	const char *tail;          /* path below a prefix route; points into path */

	bool on_images; /* on_images: the image worker handles the request */
	/* moved: the image worker will handle the request; only workers set both flags */
	bool moved;
	/* end of the request's time limit, which includes waiting for a model; 0: no limit, or not
	 * begun */
	double deadline;

	/* shared, under Server.lock */
	bool ready;  /* status, type and headers are set */
	bool done;   /* out is complete */
	bool stream; /* answered in parts */
	bool awake;  /* the HTTP thread will check the request */
	/* in Server.woken, linked by wake_next; the HTTP thread may have processed it already */
	bool listed;
	Req *wake_next;
	bool gone;      /* no client reads the answer */
	bool cancelled; /* a /pause call has cancelled the request's generation */
	size_t held;    /* bytes of this request that are counted in Server.held */
	bool generates; /* counted in the request metrics */
	int status;
	const char *type; /* content type, a string constant */
	Strbuf out;
	struct {
		const char *name;
		char value[128];
	} head[12];
	int n_head;
	const char *policy; /* Content-Security-Policy of a page */
	const char *fixed;  /* embedded or mapped file to send instead of out */
	size_t n_fixed;
	FileMap file;
	void *gen;              /* generation in flight; NULL: none */
	void (*cancel)(Req *r); /* cancels gen; called with the lock held */
	/* writes errors in place of the route's function, for a body in another dialect; NULL: the
	 * route's function does */
	void (*problem)(Req *r, const Problem *p);
	/* for a request without a connection: called when the answer is complete; NULL: the
	 * request has a connection */
	void (*answered)(Req *r);
	/* for the log */
	int32_t n_prompt, n_new;
	const char *finish;
	double t_valid, queue_s, prefill_s, decode_s;
	char trace[33], parent[17], span[17]; /* ids of OpenTelemetry, as hexadecimal digits */
	/* the client's traceparent header has the flag "not sampled" */
	bool untraced;
};

/* http.c */
/* Find the row for a request. *tail: path below a prefix row. If the returned row has no path, the
 * path is not found or the method is not allowed. */
const Route *route_find(const Route *table, const char *method, const char *path, bool html,
                        const char **tail, bool *wrong_method);
extern const Route serve_routes[]; /* route.c */

/* http.c: called by connection.c on its thread, in this order */
Req *req_new(Server *s, Conn *conn, const char *client);
/* takes ownership of the head; false: send an answer now, without reading the body */
bool req_begin(Req *r, char *head, size_t n);
void req_refuse(Req *r, const HttpError *e); /* answers a malformed request */
void req_body(Req *r, const char *data, size_t n);
void req_whole(Req *r);
void req_write_head(Req *r, bool close, Strbuf *b);
/* gets the next part of a stream; *over: it was the last; false: the stream was aborted */
bool req_take(Req *r, Strbuf *piece, bool *over);
void req_over(Req *r, bool sent);
/* Make a request of the server itself with the lowest priority. Call req_whole after that.
 * answered() may run on any thread. Call req_over at the end. NULL: out of memory. */
Req *req_inside(Server *s, const char *path, const char *owner, const char *body, size_t n,
                void (*answered)(Req *r));

/* http.c: called by handlers on any thread */
/* count n bytes until req_release or the end of the request; false: over the limit */
bool req_charge(Req *r, size_t n);
void req_release(Req *r, size_t n);
void req_drop_body(Req *r);
void req_unref(Req *r);
void req_head(Req *r, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Send the complete answer and wake the connection. Takes ownership of `body`, which may be
 * NULL. */
void req_answer(Req *r, int status, const char *type, Strbuf *body);
void req_problem(Req *r, const Problem *p); /* in the route's form */
void req_cancel(Req *r);                    /* cancel its generation, if any; lock held */
void req_answer_file(Req *r, const char *type, const char *data, size_t n);
void req_text(Req *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Begin an answer in parts; type NULL: server-sent events. Then call req_push and finally req_end,
 * from any thread. */
void req_stream(Req *r, const char *type);
void req_push(Req *r, const char *data, size_t n);
void req_end(Req *r);
const char *req_header(Req *r, const char *name);
/* Refuse requests from web pages of other origins, because browsers send some requests without a
 * CORS preflight. False with a Problem. */
bool req_own_page(Req *r, Problem *p);
/* load_report.c: append the header with the load if a header of the request enables it */
void load_header(Req *r, Strbuf *b);
extern const char type_json[], type_text[], type_sse[], type_html[];

#endif
