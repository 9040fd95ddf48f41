/* Requests and their answers: authorisation, body buffers, response heads. connection.c moves the
 * bytes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/random.h"
#include "base/text.h"
#include "serve/http/api_keys.h"
#include "serve/http/trace.h"
#include "serve/models/model.h"

enum {
	MAX_UNREAD = 64 << 20, /* limit of the bytes of a stream that its client has not read */
	/* every request may hold this many bytes; --max-connections bounds the sum */
	SMALL = 256 << 10,
	/* a refused body up to this size is read before the error is sent */
	READ_ANYWAY = 256 << 20,
};

const char type_json[] = "application/json", type_text[] = "text/plain; charset=utf-8",
           type_sse[] = "text/event-stream", type_html[] = "text/html; charset=utf-8";

/* ---- requests ---- */

static void
copy_header(char *out, size_t cap, const char *value)
{
	snprintf(out, cap, "%s", value ? value : "");
}

const char *
req_header(Req *r, const char *name)
{
	return head_field(&r->in, name);
}

/* Choose the request id: the client's if it is safe in a header and a log line, else a new one. */
static void
choose_id(Req *r)
{
	const char *s = req_header(r, "X-Request-Id");
	size_t n = s ? strlen(s) : 0, ok = 0;

	while (ok < n &&
	       (s[ok] == '-' || s[ok] == '_' || s[ok] == '.' || (s[ok] >= '0' && s[ok] <= '9') ||
	        ((s[ok] | 32) >= 'a' && (s[ok] | 32) <= 'z')))
		ok++;
	if (n && ok == n && n <= 128) {
		copy_header(r->id, sizeof r->id, s);
		return;
	}
	random_hex(r->id, 12);
}

/* Compare in constant time. */
static bool
key_ok(Req *r)
{
	const char *key = r->srv->opt.api_key, *given = req_header(r, "Authorization");

	if (!(key && *key) && !r->srv->keys)
		return true;
	if (given)
		given = strncasecmp(given, "Bearer ", 7) == 0 ? given + 7 : NULL;
	else
		given = req_header(r, "x-api-key"); /* sent by Anthropic's clients */
	if (!given)
		return false;
	pthread_mutex_lock(&r->srv->lock);
	r->key = keys_find(r->srv->keys, given);
	pthread_mutex_unlock(&r->srv->lock);
	return r->key || (key && *key && keys_same(given, key));
}

Req *
req_new(Server *s, Conn *conn, const char *client)
{
	Req *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->srv = s;
	r->slot = s->slot[0];
	r->conn = conn;
	atomic_init(&r->refs, 1);
	r->t_start = clock_now();
	snprintf(r->client, sizeof r->client, "%s", client);
	r->awake = true;
	for (r->route = s->routes; r->route->path || r->route->below; r->route++)
		; /* until the path is known, errors have the form of the table's last row */
	pthread_mutex_lock(&s->lock);
	s->n_active++;
	pthread_mutex_unlock(&s->lock);
	return r;
}

Req *
req_inside(Server *s, const char *path, const char *owner, const char *body, size_t n,
           void (*answered)(Req *r))
{
	Req *r = req_new(s, NULL, "batch");
	const char *tail = "";
	bool wrong_method;

	if (r && !(r->owner = strdup(owner))) {
		req_unref(r);
		return NULL;
	}
	if (!r)
		return NULL;
	snprintf(r->method, sizeof r->method, "POST");
	snprintf(r->path, sizeof r->path, "%s", path);
	r->route = route_find(s->routes, r->method, r->path, false, &tail, &wrong_method);
	r->tail = tail;
	r->auth_ok = r->content_json = true;
	r->answered = answered;
	choose_id(r);
	trace_begin(r);
	req_body(r, body, n);
	return r;
}

static bool
charge_bytes(Req *r, size_t n) /* lock held */
{
	Server *s = r->srv;

	if (r->held + n > SMALL && s->held + n > s->max_held) {
		s->pressed = true; /* answers that clients do not read are dropped from now on */
		return false;
	}
	r->held += n;
	s->held += n;
	return true;
}

static void
release_bytes(Req *r, size_t n) /* lock held */
{
	r->held -= n;
	r->srv->held -= n;
	if (n > SMALL) {
		r->srv->trim = true;
		pthread_cond_broadcast(&r->srv->work);
	}
}

bool
req_charge(Req *r, size_t n)
{
	pthread_mutex_lock(&r->srv->lock);
	bool ok = charge_bytes(r, n);
	pthread_mutex_unlock(&r->srv->lock);
	return ok;
}

void
req_release(Req *r, size_t n)
{
	pthread_mutex_lock(&r->srv->lock);
	release_bytes(r, n);
	pthread_mutex_unlock(&r->srv->lock);
}

void
req_drop_body(Req *r)
{
	size_t n = r->body.len;

	strbuf_release(&r->body);
	req_release(r, n);
}

void
req_unref(Req *r)
{
	if (atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	strbuf_release(&r->body);
	strbuf_release(&r->out);
	file_unmap(&r->file);
	req_release(r, r->held); /* release after the free, because the release may trim the heap */
	free(r->head_bytes);
	free(r->owner);
	free(r);
}

/* ---- routes ---- */

const Route *
route_find(const Route *table, const char *method, const char *path, bool html, const char **tail,
           bool *wrong_method)
{
	const Route *t = table;

	if (!strcmp(method, "HEAD"))
		method = "GET";
	*wrong_method = false;
	for (; t->path; t++) {
		size_t n = strlen(t->path);
		if (t->flags & RT_PREFIX ? strncmp(path, t->path, n) != 0 || !path[n]
		                         : strcmp(path, t->path) != 0)
			continue;
		*tail = path + n;
		if (!strcmp(method, t->method) && (html || !(t->flags & RT_HTML)))
			break;
		*wrong_method |= strcmp(method, t->method) != 0;
	}
	while (t->below && strncmp(path, t->below, strlen(t->below)) != 0)
		t++;
	return t;
}

/* ---- answers ---- */

void
req_head(Req *r, const char *name, const char *fmt, ...)
{
	va_list ap;

	if (r->n_head == (int)(sizeof r->head / sizeof *r->head))
		return;
	va_start(ap, fmt);
	vsnprintf(r->head[r->n_head].value, sizeof r->head[0].value, fmt, ap);
	va_end(ap);
	r->head[r->n_head++].name = name;
}

static const char no_memory[] =
    "{\"error\":{\"message\":\"The server is out of memory for this answer; try again later.\","
    "\"type\":\"server_error\",\"param\":null,\"code\":null}}";

void
req_answer(Req *r, int status, const char *type, Strbuf *body)
{
	pthread_mutex_lock(&r->srv->lock);
	if (!r->ready) {
		bool fits = !body || (!body->failed && charge_bytes(r, body->len));
		r->status = fits ? status : 503;
		r->type = fits ? type : type_json;
		if (!fits) {
			r->fixed = no_memory;
			r->n_fixed = sizeof no_memory - 1;
		}
		if (body && fits) {
			strbuf_release(&r->out);
			r->out = *body;
			*body = (Strbuf){ 0 };
		}
		r->ready = r->done = true;
	}
	pthread_mutex_unlock(&r->srv->lock);
	if (body)
		strbuf_release(body);
	http_wake(r);
}

void
req_problem(Req *r, const Problem *p)
{
	if (p->status == PROBLEM_MOVED) {
		r->moved = true;
		return;
	}
	if (r->generates) {
		int kind = p->status == 429   ? ERR_OVERLOADED
		           : p->status >= 500 ? ERR_GENERATION
		                              : ERR_VALIDATION;
		pthread_mutex_lock(&r->srv->lock);
		r->slot->metrics.failure[kind]++;
		r->finish = "error";
		pthread_mutex_unlock(&r->srv->lock);
	}
	if (p->status == 429 || p->status == 503)
		req_head(r, "Retry-After", "1");
	(r->problem ? r->problem : r->route->problem)(r, p);
}

void
req_cancel(Req *r)
{
	if (r->cancel)
		r->cancel(r);
}

void
req_answer_file(Req *r, const char *type, const char *data, size_t n)
{
	r->fixed = data;
	r->n_fixed = n;
	req_answer(r, 200, type, NULL);
}

void
req_text(Req *r, int status, const char *fmt, ...)
{
	Strbuf b = { 0 };
	va_list ap;

	va_start(ap, fmt);
	strbuf_vprintf(&b, fmt, ap);
	va_end(ap);
	req_answer(r, status, type_text, &b);
}

void
req_stream(Req *r, const char *type)
{
	pthread_mutex_lock(&r->srv->lock);
	r->status = 200;
	r->type = type ? type : type_sse;
	r->stream = r->ready = true;
	pthread_mutex_unlock(&r->srv->lock);
	http_wake(r);
}

void
req_push(Req *r, const char *data, size_t n)
{
	pthread_mutex_lock(&r->srv->lock);
	if (!r->gone) {
		if (r->out.len + n <= MAX_UNREAD && charge_bytes(r, n))
			strbuf_add(&r->out, data, n);
		else
			r->out.failed = true;
		if (r->out.failed) { /* the stream is broken: the client does not read any more */
			r->gone = true;
			req_cancel(r);
		}
	}
	pthread_mutex_unlock(&r->srv->lock);
	http_wake(r);
}

void
req_end(Req *r)
{
	pthread_mutex_lock(&r->srv->lock);
	r->done = true;
	pthread_mutex_unlock(&r->srv->lock);
	http_wake(r);
}

bool
req_take(Req *r, Strbuf *piece, bool *over)
{
	pthread_mutex_lock(&r->srv->lock);
	bool ok = !r->gone && !r->out.failed;
	release_bytes(r, piece->len);
	strbuf_clear(piece);
	if (ok) {
		Strbuf empty = *piece;
		*piece = r->out;
		r->out = empty;
	}
	*over = r->done;
	r->awake = piece->len || *over || !ok;
	pthread_mutex_unlock(&r->srv->lock);
	return ok;
}

static const char *
reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} known[] = {
		{ 200, "OK" },
		{ 204, "No Content" },
		{ 400, "Bad Request" },
		{ 401, "Unauthorized" },
		{ 403, "Forbidden" },
		{ 404, "Not Found" },
		{ 405, "Method Not Allowed" },
		{ 408, "Request Timeout" },
		{ 409, "Conflict" },
		{ 413, "Content Too Large" },
		{ 414, "URI Too Long" },
		{ 415, "Unsupported Media Type" },
		{ 417, "Expectation Failed" },
		{ 422, "Unprocessable Content" },
		{ 424, "Failed Dependency" },
		{ 429, "Too Many Requests" },
		{ 431, "Request Header Fields Too Large" },
		{ 500, "Internal Server Error" },
		{ 501, "Not Implemented" },
		{ 503, "Service Unavailable" },
		{ 505, "HTTP Version Not Supported" },
		{ 507, "Insufficient Storage" },
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].status == status)
			return known[i].text;
	return "";
}

static void
field(Strbuf *b, const char *name, const char *value)
{
	strbuf_printf(b, "%s: ", name);
	for (; *value; value++) /* remove line ends, so that a value cannot begin another header */
		strbuf_putc(b, (unsigned char)*value < 32 ? ' ' : *value);
	strbuf_puts(b, "\r\n");
}

void
req_write_head(Req *r, bool close, Strbuf *b)
{
	static const char days[] = "SunMonTueWedThuFriSat",
	                  months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	time_t now = time(NULL);
	struct tm t;

	gmtime_r(&now, &t); /* not strftime, which depends on the caller's locale */
	strbuf_printf(b, "HTTP/1.1 %d %s\r\nDate: %.3s, %02d %.3s %d %02d:%02d:%02d GMT\r\n",
	              r->status, reason(r->status), days + 3 * t.tm_wday, t.tm_mday,
	              months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
	if (r->type)
		field(b, "Content-Type", r->type);
	if (!r->stream && r->status != 204)
		strbuf_printf(b, "Content-Length: %zu\r\n", r->fixed ? r->n_fixed : r->out.len);
	else if (r->stream && !r->in.http10)
		strbuf_puts(b, "Transfer-Encoding: chunked\r\n");
	field(b, "X-Request-Id", r->id);
	if (r->stream)
		strbuf_puts(b, "Cache-Control: no-cache\r\n");
	if (r->policy)
		field(b, "Content-Security-Policy", r->policy);
	if (r->allow_origin[0]) {
		field(b, "Access-Control-Allow-Origin", r->allow_origin);
		strbuf_puts(b, "Vary: Origin\r\n");
		strbuf_puts(b, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
		if (r->allow_headers)
			field(b, "Access-Control-Allow-Headers", r->allow_headers);
	}
	load_header(r, b);
	for (int i = 0; i < r->n_head; i++)
		field(b, r->head[i].name, r->head[i].value);
	strbuf_puts(b, close          ? "Connection: close\r\n\r\n"
	               : r->in.http10 ? "Connection: keep-alive\r\n\r\n"
	                              : "\r\n");
}

/* ---- reading ---- */

/* Refuse foreign host names on a loopback server. Otherwise a web page could make its own name
 * resolve to this machine (DNS rebinding) and read the answers. */
static bool
host_ok(const Req *r)
{
	const Server *s = r->srv;
	const char *host = r->in.host, *list = s->opt.allow_host;
	char name[256];
	unsigned char addr[16];

	if (!host || s->opt.api_key || s->keys || (!list && !s->loopback))
		return true;
	bool six = *host == '[';
	size_t n = six ? strcspn(host, "]") - (strchr(host, ']') != NULL) : strcspn(host, ":");
	snprintf(name, sizeof name, "%.*s", (int)n, host + six);
	n = strlen(name); /* "[" alone leaves an empty name */
	if (n && name[n - 1] == '.')
		name[--n] = 0; /* the dot of the DNS root */
	if (inet_pton(six ? AF_INET6 : AF_INET, name, addr) == 1 ||
	    !strcasecmp(name, "localhost") || !strcasecmp(name, s->opt.host) ||
	    (n > 10 && !strcasecmp(name + n - 10, ".localhost")))
		return true;
	size_t len;
	for (const char *at; (at = text_item(&list, &len)) != NULL;)
		if ((len == 1 && *at == '*') || (len == n && strncasecmp(at, name, n) == 0))
			return true;
	return false;
}

bool
req_own_page(Req *r, Problem *p)
{
	const char *origin = req_header(r, "Origin"), *host = r->in.host,
	           *own = origin ? strstr(origin, "://") : NULL;

	if (!origin || r->allow_origin[0] || (own && host && !strcasecmp(own + 3, host)))
		return true;
	return problem(
	    p, 403, NULL,
	    "A web page of '%.100s' sent this request. --allow-origin permits its origin.", origin);
}

/* Admit the request: route, method, key. A request that is refused has been answered. */
static void
admit(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	bool wrong_method = false;
	const char *tail = "";

	if (!host_ok(r)) {
		problem(&p, 403, NULL,
		        "The Host '%.100s' is not a name of this machine (possible DNS rebinding). "
		        "--allow-host permits it.",
		        r->in.host);
		p.code = "host_not_allowed";
		req_problem(r, &p);
		return;
	}
	r->route = route_find(s->routes, r->method, r->path, r->wants_html, &tail, &wrong_method);
	r->tail = tail;
	if (!r->route->path && !strcmp(r->method, "OPTIONS") && r->allow_origin[0]) {
		req_head(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
		req_head(r, "Access-Control-Max-Age", "600");
		/* Allow all requested headers: clients send headers such as x-stainless-*, and none
		 * of them changes what the server does. */
		r->allow_headers = req_header(r, "Access-Control-Request-Headers");
		req_answer(r, 204, NULL, NULL);
		return;
	}
	if (!r->route->path) {
		if (wrong_method)
			problem(&p, 405, NULL, "Method %s is not allowed for %s.", r->method,
			        r->path);
		else
			problem(&p, 404, NULL,
			        "There is no %s %s here; GET /docs lists the routes.", r->method,
			        r->path);
		p.code = wrong_method ? "method_not_allowed" : "unknown_url";
	} else if (!r->auth_ok &&
	           !(r->route->flags & (s->opt.open_probes ? RT_OPEN | RT_PROBE : RT_OPEN))) {
		problem(&p, 401, NULL,
		        "Incorrect API key provided: send the server's key as 'Authorization: "
		        "Bearer KEY'.");
		p.code = "invalid_api_key";
		req_head(r, "WWW-Authenticate", "Bearer");
	} else if (s->draining && (r->route->flags & (RT_WORK | RT_DRAIN)) == RT_WORK) {
		problem_closing(&p);
	} else {
		return;
	}
	req_problem(r, &p);
}

/* Return the largest allowed body in bytes. */
static size_t
body_limit(const Req *r)
{
	return r->route->flags & RT_UPLOAD && r->srv->store ? r->srv->max_upload : r->srv->max_body;
}

/* Dispatch a complete request: check its content type, then handle it here or queue it for a
 * worker. */
static void
dispatch(Req *r)
{
	Problem p = { 0 };

	if (r->too_large) {
		problem(&p, 413, NULL, "The body is larger than %zu bytes, %s.", body_limit(r),
		        body_limit(r) == r->srv->max_body ? "the server's --max-body-size"
		                                          : "the limit for files");
	} else if (r->no_memory) {
		problem_busy(&p);
	} else if ((r->route->flags & RT_JSON) && !r->content_json) {
		problem(&p, 415, NULL, "Expected a request with 'Content-Type: application/json'.");
	} else {
		if (!(r->route->flags & RT_WORK)) {
			r->route->handle(r);
		} else {
			pthread_mutex_lock(&r->srv->lock);
			work_push(r->srv, r);
			pthread_mutex_unlock(&r->srv->lock);
		}
		return;
	}
	req_problem(r, &p);
}

void
req_body(Req *r, const char *data, size_t n)
{
	if (r->ready || r->too_large || r->no_memory)
		return;
	r->too_large = n > body_limit(r) - r->body.len;
	r->no_memory = !r->too_large && !req_charge(r, n);
	if (!r->too_large && !r->no_memory) {
		strbuf_add(&r->body, data, n);
		if (!r->body.failed)
			return;
		req_release(r, n);
		r->no_memory = true;
	}
	req_drop_body(r);
}

bool
req_begin(Req *r, char *head, size_t n)
{
	const char *opt = r->srv->opt.allow_origin;
	HttpError e = { 0 };

	r->head_bytes = head;
	if (!head_parse(head, n, &r->in, &e)) {
		req_refuse(r, &e);
		return false;
	}
	snprintf(r->method, sizeof r->method, "%s", r->in.method);
	snprintf(r->path, sizeof r->path, "%s", r->in.path);
	const char *accept = req_header(r, "Accept"), *type = req_header(r, "Content-Type"),
	           *origin = req_header(r, "Origin");
	r->wants_html = accept && strstr(accept, "text/html") != NULL;
	r->content_json = type && strncasecmp(type, "application/json", 16) == 0;
	/* Ollama's clients may omit the content type. A web page can omit it too, but its browser
	 * adds Origin or Sec-Fetch-Site. */
	if (!type && !origin && !req_header(r, "Sec-Fetch-Site") &&
	    strncmp(r->path, "/api/", 5) == 0)
		r->content_json = true;
	if (origin && opt && (!strcmp(opt, "*") || !strcmp(opt, origin)))
		copy_header(r->allow_origin, sizeof r->allow_origin, opt);
	r->auth_ok = key_ok(r);
	choose_id(r);
	trace_begin(r);
	admit(r);
	/* read a small refused body to its end, so that the client can read the error */
	bool large = r->in.expect || r->in.length > READ_ANYWAY;
	if (!r->ready && r->in.length > body_limit(r) && large) {
		r->too_large = true;
		dispatch(r);
	}
	return !(r->ready && large);
}

void
req_refuse(Req *r, const HttpError *e)
{
	Problem p;

	if (!r->id[0])
		choose_id(r);
	problem(&p, e->status, NULL, "%s", e->text);
	req_problem(r, &p);
}

void
req_whole(Req *r)
{
	if (!r->ready)
		dispatch(r);
}

void
req_over(Req *r, bool sent)
{
	Server *s = r->srv;

	pthread_mutex_lock(&s->lock);
	if (!sent) {
		r->gone = true;
		req_cancel(r);
		/* the request may wait for a model: wake the manager, which drops it */
		pthread_cond_signal(&s->keep);
	}
	r->conn = NULL;
	if (--s->n_active == 0)
		pthread_cond_broadcast(&s->idle);
	pthread_mutex_unlock(&s->lock);
	log_request(r);
	trace_request(s->trace, r);
	req_unref(r);
}
