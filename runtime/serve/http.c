/* libmicrohttpd's side: reading requests, handing them on, writing answers. All callbacks run on its one thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include "runtime/serve/serve.h"

enum { MAX_UNREAD = 64 << 20 }; /* bytes of a stream that its client has not taken */

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
	return MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name);
}

/* The client's id when it is harmless in a header and a log line, else one of ours. */
static void
choose_id(Req *r)
{
	const char *s = req_header(r, "X-Request-Id");
	size_t n = s ? strlen(s) : 0, ok = 0;

	while (ok < n && (s[ok] == '-' || s[ok] == '_' || s[ok] == '.' || (s[ok] >= '0' && s[ok] <= '9') || ((s[ok] | 32) >= 'a' && (s[ok] | 32) <= 'z')))
		ok++;
	if (n && ok == n && n <= 128) {
		copy_header(r->id, sizeof r->id, s);
		return;
	}
	unsigned char b[12];
	if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
		memcpy(b, &r->t_start, sizeof r->t_start), memcpy(b + 8, &r->srv->next_id, 4);
	for (int i = 0; i < 12; i++)
		snprintf(r->id + 2 * i, 3, "%02x", b[i]);
}

/* Equal without telling by its time where the first difference is. */
static bool
same_key(const char *given, const char *key)
{
	size_t n = strlen(key), m = strlen(given);
	unsigned char d = n != m;

	for (size_t i = 0; i < m; i++)
		d |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
	return d == 0;
}

static bool
key_ok(Req *r)
{
	const char *key = r->srv->opt.api_key, *given = req_header(r, "Authorization");

	if (!key || !*key)
		return true;
	return given && strncasecmp(given, "Bearer ", 7) == 0 && same_key(given + 7, key);
}

static Req *
req_new(Server *s, struct MHD_Connection *mhd, const char *method, const char *url)
{
	Req *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->srv = s;
	r->mhd = mhd;
	atomic_init(&r->refs, 1);
	r->t_start = clock_now();
	snprintf(r->method, sizeof r->method, "%s", method);
	snprintf(r->path, sizeof r->path, "%s", url);
	const union MHD_ConnectionInfo *ci = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	r->conn = ci ? ci->socket_context : NULL;
	ci = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	if (ci && ci->client_addr && ci->client_addr->sa_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)ci->client_addr)->sin_addr, r->client, sizeof r->client);
	else if (ci && ci->client_addr && ci->client_addr->sa_family == AF_INET6)
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)ci->client_addr)->sin6_addr, r->client, sizeof r->client);
	const char *accept = req_header(r, "Accept"), *type = req_header(r, "Content-Type"), *origin = req_header(r, "Origin");
	r->wants_html = accept && strstr(accept, "text/html") != NULL;
	r->content_json = type && strncasecmp(type, "application/json", 16) == 0;
	if (origin && s->opt.allow_origin && (!strcmp(s->opt.allow_origin, "*") || !strcmp(s->opt.allow_origin, origin)))
		copy_header(r->allow_origin, sizeof r->allow_origin, s->opt.allow_origin);
	r->auth_ok = key_ok(r);
	pthread_mutex_lock(&s->lock);
	s->next_id++;
	choose_id(r);
	s->n_active++;
	r->counted = true;
	if (r->conn) {
		r->conn->state = CONN_BODY;
		r->conn->since = r->t_start;
		r->conn->n_requests++;
		r->conn->req = r;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

void
req_unref(Req *r)
{
	if (atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	strbuf_release(&r->body);
	strbuf_release(&r->out);
	free(r);
}

void
http_wake(Req *r)
{
	bool wake;

	pthread_mutex_lock(&r->srv->lock);
	wake = r->suspended;
	r->suspended = false;
	pthread_mutex_unlock(&r->srv->lock);
	/* until it is resumed a suspended connection stays: nobody else resumes this one */
	if (wake)
		MHD_resume_connection(r->mhd);
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

static void
count_down(Req *r) /* lock held */
{
	if (r->counted) {
		r->counted = false;
		if (--r->srv->n_active == 0)
			pthread_cond_broadcast(&r->srv->idle);
	}
}

void
req_answer(Req *r, int status, const char *type, Strbuf *body)
{
	if (body && body->failed) {
		status = 500;
		type = type_text;
	}
	pthread_mutex_lock(&r->srv->lock);
	if (!r->ready) {
		r->status = status;
		r->type = type;
		if (body && !body->failed) {
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
req_stream(Req *r)
{
	pthread_mutex_lock(&r->srv->lock);
	r->status = 200;
	r->type = type_sse;
	r->stream = r->ready = true;
	r->t_out = clock_now();
	pthread_mutex_unlock(&r->srv->lock);
	http_wake(r);
}

void
req_push(Req *r, const char *data, size_t n)
{
	pthread_mutex_lock(&r->srv->lock);
	if (!r->gone) {
		if (r->out_at == r->out.len && !r->out.failed) {
			strbuf_clear(&r->out);
			r->out_at = 0;
		}
		strbuf_add(&r->out, data, n);
		r->t_out = clock_now();
		if (r->out.len - r->out_at > MAX_UNREAD) { /* who does not read for so long will not */
			r->gone = true;
			gen_abort(r);
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

/* The next bytes of an answer in pieces, or a rest until there are some. */
static ssize_t
read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
	Req *r = cls;
	ssize_t n = 0;

	(void)pos;
	pthread_mutex_lock(&r->srv->lock);
	size_t left = r->out.len - r->out_at;
	if (r->gone || r->out.failed) {
		n = MHD_CONTENT_READER_END_WITH_ERROR;
	} else if (left) {
		n = (ssize_t)(left < max ? left : max);
		memcpy(buf, r->out.data + r->out_at, (size_t)n);
		r->out_at += (size_t)n;
	} else if (r->done) {
		n = MHD_CONTENT_READER_END_OF_STREAM;
	} else if (r->srv->ended) {
		n = MHD_CONTENT_READER_END_WITH_ERROR;
	} else {
		r->suspended = true;
		MHD_suspend_connection(r->mhd);
	}
	pthread_mutex_unlock(&r->srv->lock);
	return n;
}

static void
release_stream(void *cls)
{
	req_unref(cls);
}

static enum MHD_Result
send_answer(Req *r)
{
	struct MHD_Response *resp;
	unsigned status = (unsigned)r->status;

	if (r->stream) {
		atomic_fetch_add(&r->refs, 1);
		resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, r, release_stream);
		if (!resp)
			req_unref(r);
	} else if (r->fixed) {
		resp = MHD_create_response_from_buffer(r->n_fixed, (void *)(uintptr_t)r->fixed, MHD_RESPMEM_PERSISTENT);
	} else {
		char *data = r->out.data; /* malloc'd: handed over */
		resp = MHD_create_response_from_buffer(r->out.len, data ? data : (void *)(uintptr_t)"", data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
		if (resp)
			r->out = (Strbuf){ 0 };
	}
	if (!resp)
		return MHD_NO;
	if (r->type)
		MHD_add_response_header(resp, "Content-Type", r->type);
	MHD_add_response_header(resp, "X-Request-Id", r->id);
	if (r->stream)
		MHD_add_response_header(resp, "Cache-Control", "no-cache");
	if (r->policy)
		MHD_add_response_header(resp, "Content-Security-Policy", r->policy);
	if (r->allow_origin[0]) {
		MHD_add_response_header(resp, "Access-Control-Allow-Origin", r->allow_origin);
		MHD_add_response_header(resp, "Vary", "Origin");
	}
	for (int i = 0; i < r->n_head; i++)
		MHD_add_response_header(resp, r->head[i].name, r->head[i].value);
	if (r->srv->draining || r->early)
		MHD_add_response_header(resp, "Connection", "close");
	enum MHD_Result ok = MHD_queue_response(r->mhd, status, resp);
	MHD_destroy_response(resp);
	return ok;
}

/* ---- reading ---- */

/* Whether the request may go on; else it has its answer. */
static bool
admit(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	bool wrong_method = false;
	const char *tail = "";

	r->route = route_find(r->method, r->path, r->wants_html, &tail, &wrong_method);
	r->tail = tail;
	if (!r->route && !strcmp(r->method, "OPTIONS") && r->allow_origin[0]) {
		req_head(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
		req_head(r, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id");
		req_answer(r, 204, NULL, NULL);
		return false;
	}
	if (!r->route) {
		if (wrong_method)
			problem(&p, 405, NULL, "Method %s is not allowed for %s.", r->method, r->path);
		else
			problem(&p, 404, NULL, "There is no %s %s here; GET /docs lists the routes.", r->method, r->path);
		p.code = wrong_method ? "method_not_allowed" : "unknown_url";
	} else if (!r->auth_ok && !r->route->open) {
		problem(&p, 401, NULL, "Incorrect API key provided: send the server's key as 'Authorization: Bearer KEY'.");
		p.code = "invalid_api_key";
		req_head(r, "WWW-Authenticate", "Bearer");
	} else if (s->draining && r->route->work && r->route->handle != info_health) {
		problem(&p, 503, NULL, "The server is shutting down.");
		p.type = r->route->tgi ? "overloaded" : NULL;
	} else {
		return true;
	}
	req_problem(r, &p);
	return false;
}

static void
take_body(Req *r, const char *data, size_t n)
{
	Server *s = r->srv;
	bool held;

	if (r->too_large || r->no_memory)
		return;
	if (n > s->max_body - r->body.len) {
		r->too_large = true;
	} else {
		pthread_mutex_lock(&s->lock);
		held = s->held + n <= s->max_held;
		if (held)
			s->held += n;
		pthread_mutex_unlock(&s->lock);
		if (held) {
			strbuf_add(&r->body, data, n);
			if (!r->body.failed)
				return;
			pthread_mutex_lock(&s->lock);
			s->held -= n;
			pthread_mutex_unlock(&s->lock);
		}
		r->no_memory = true;
	}
	pthread_mutex_lock(&s->lock);
	s->held -= r->body.len;
	pthread_mutex_unlock(&s->lock);
	strbuf_release(&r->body);
}

/* The request is complete: check its form, then let it be handled here or by a worker. */
static void
dispatch(Req *r)
{
	Problem p = { 0 };

	if (r->too_large) {
		if (r->route->tgi) {
			req_text(r, 413, "length limit exceeded");
			return;
		}
		problem(&p, 413, NULL, "The body is larger than %zu bytes, the server's --max-body-size.", r->srv->max_body);
	} else if (r->no_memory) {
		problem(&p, 503, NULL, "The server holds too many request bodies; try again later.");
		req_head(r, "Retry-After", "1");
	} else if (r->route->json && !r->content_json) {
		if (r->route->tgi) {
			req_text(r, 415, "Expected request with `Content-Type: application/json`");
			return;
		}
		problem(&p, 415, NULL, "Expected a request with 'Content-Type: application/json'.");
	} else {
		if (!r->route->work) {
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

static enum MHD_Result
on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
           const char *data, size_t *n_data, void **req_cls)
{
	Server *s = cls;
	Req *r = *req_cls;

	(void)version;
	if (!r) {
		r = *req_cls = req_new(s, mhd, method, url);
		if (!r)
			return MHD_NO;
		if (!admit(r)) {
			const char *length = req_header(r, "Content-Length");
			/* a small body is read first, so that the client is not cut off while it sends */
			if (req_header(r, "Expect") || (length && strtoull(length, NULL, 10) > (64u << 20))) {
				r->early = true;
				return send_answer(r);
			}
			return MHD_YES;
		}
		const char *length = req_header(r, "Content-Length");
		uint64_t n = length ? strtoull(length, NULL, 10) : 0;
		if (n > s->max_body && (req_header(r, "Expect") || n > (256u << 20))) {
			r->too_large = r->early = true;
			dispatch(r);
			return send_answer(r);
		}
		return MHD_YES;
	}
	if (*n_data) {
		if (!r->ready)
			take_body(r, data, *n_data);
		*n_data = 0;
		return MHD_YES;
	}
	if (!r->whole) {
		r->whole = true;
		pthread_mutex_lock(&s->lock);
		if (r->conn) /* there is none when memory ran out */
			r->conn->state = CONN_WORK;
		pthread_mutex_unlock(&s->lock);
		if (!r->ready)
			dispatch(r);
	}
	pthread_mutex_lock(&s->lock);
	bool ready = r->ready, gone = r->gone || s->ended;
	if (!ready && !gone) {
		r->suspended = true;
		MHD_suspend_connection(mhd);
	}
	pthread_mutex_unlock(&s->lock);
	if (ready)
		return send_answer(r);
	return gone ? MHD_NO : MHD_YES;
}

static void
on_completed(void *cls, struct MHD_Connection *mhd, void **req_cls, enum MHD_RequestTerminationCode why)
{
	Server *s = cls;
	Req *r = *req_cls;

	(void)mhd;
	if (!r)
		return;
	*req_cls = NULL;
	pthread_mutex_lock(&s->lock);
	if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK || !r->done) {
		r->gone = true;
		gen_abort(r);
	}
	s->held -= r->body.len;
	if (r->conn) {
		r->conn->state = CONN_IDLE;
		r->conn->since = clock_now();
		r->conn->req = NULL;
		r->conn = NULL;
	}
	count_down(r);
	pthread_mutex_unlock(&s->lock);
	log_request(r);
	req_unref(r);
}

static void
on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context, enum MHD_ConnectionNotificationCode what)
{
	Server *s = cls;
	Conn *c = *socket_context;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *ci = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
		c = calloc(1, sizeof *c);
		if (!c || !ci) {
			free(c);
			return;
		}
		c->fd = ci->connect_fd;
		c->since = clock_now();
		pthread_mutex_lock(&s->lock);
		c->next = s->conns;
		if (c->next)
			c->next->prev = c;
		s->conns = c;
		pthread_mutex_unlock(&s->lock);
		*socket_context = c;
	} else if (c) {
		pthread_mutex_lock(&s->lock);
		if (c->prev)
			c->prev->next = c->next;
		else
			s->conns = c->next;
		if (c->next)
			c->next->prev = c->prev;
		pthread_mutex_unlock(&s->lock);
		*socket_context = NULL;
		free(c);
	}
}

/* The first line of a request is there. */
static void *
on_line(void *cls, const char *uri, struct MHD_Connection *mhd)
{
	Server *s = cls;
	const union MHD_ConnectionInfo *ci = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	Conn *c = ci ? ci->socket_context : NULL;

	(void)uri;
	if (c) {
		pthread_mutex_lock(&s->lock);
		c->state = CONN_HEADERS;
		c->since = clock_now();
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

static void
on_mhd_log(void *cls, const char *fmt, va_list ap)
{
	char text[512];

	vsnprintf(text, sizeof text, fmt, ap);
	text[strcspn(text, "\r\n")] = 0;
	serve_log(cls, LLMC_LOG_DEBUG, "http: %s", text);
}

llmc_status
http_open(Server *s, llmc_error *err)
{
	unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG;

	s->mhd = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s,
	                          MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, s,
	                          MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
	                          MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->opt.max_connections,
	                          MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)s->opt.max_connections_per_client,
	                          MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->opt.idle_timeout_s,
	                          MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)49152,
	                          MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
	                          MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
	                          MHD_OPTION_URI_LOG_CALLBACK, on_line, s,
	                          MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
	if (!s->mhd)
		return error_set(err, LLMC_E_IO, "the HTTP server could not be started: %s", strerror(errno));
	return LLMC_OK;
}
