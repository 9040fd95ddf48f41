/* See trace.h. */
#include "serve/http/trace.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/random.h"
#include "serve/http/api_keys.h"
#include "serve/models/model.h"

enum { MOST_WAITING = 4096, AT_ONCE = 256, EVERY_MS = 1000, SEND_S = 5, POST_S = 10 };

typedef struct TraceSpan {
	struct TraceSpan *next;
	char text[];
} TraceSpan;

struct Trace {
	Server *server;
	char host[256], port[8], path[256];
	pthread_t thread;
	bool has_thread, reported; /* reported: a failure was logged; used by the thread only */
	pthread_mutex_t lock;
	pthread_cond_t work;
	/* protected by lock */
	TraceSpan *first, *last;
	int n;
	bool stop;
};

/* ---- a request's spans ---- */

/* Report whether s has n hexadecimal digits, not all 0. */
static bool
is_hex(const char *s, size_t n)
{
	return strspn(s, "0123456789abcdef") >= n && strspn(s, "0") < n;
}

void
trace_begin(Req *r)
{
	const char *p = req_header(r, "traceparent");

	r->untraced = false;
	r->parent[0] = 0;
	/* 00-<32 digits>-<16 digits>-<2 digits> */
	if (p && strlen(p) == 55 && !strncmp(p, "00-", 3) && is_hex(p + 3, 32) && p[35] == '-' &&
	    is_hex(p + 36, 16) && p[52] == '-' && strspn(p + 53, "0123456789abcdef") == 2) {
		memcpy(r->trace, p + 3, 32);
		r->trace[32] = 0;
		memcpy(r->parent, p + 36, 16);
		r->parent[16] = 0;
		r->untraced = !(strtol(p + 53, NULL, 16) & 1);
	} else {
		random_hex(r->trace, 16);
	}
	random_hex(r->span, 8);
}

/* Append a span. wall: seconds to add to the monotonic clock. */
static void
span(Strbuf *b, const Req *r, const char *id, const char *parent, const char *name, int kind,
     double from, double to, double wall)
{
	strbuf_puts(b, b->len ? ",{\"traceId\":" : "{\"traceId\":");
	json_printf(b, "%s,\"spanId\":%s,\"name\":%s,\"kind\":%d", r->trace, id, name, kind);
	if (*parent)
		json_printf(b, ",\"parentSpanId\":%s", parent);
	strbuf_printf(b, ",\"startTimeUnixNano\":\"%.0f\",\"endTimeUnixNano\":\"%.0f\"",
	              1e9 * (from + wall), 1e9 * (to + wall));
}

static void
text_attribute(Strbuf *b, const char *key, const char *value)
{
	json_printf(b, "%s,\"value\":{\"stringValue\":%s}}", key, value);
}

void
trace_request(Trace *t, Req *r)
{
	struct timespec real;
	Strbuf b = { 0 };
	char id[17];

	if (!t || r->untraced || !r->trace[0] || !(r->route->flags & RT_WORK))
		return;
	double now = clock_now();
	clock_gettime(CLOCK_REALTIME, &real);
	double wall = (double)real.tv_sec + 1e-9 * (double)real.tv_nsec - now;
	pthread_mutex_lock(&t->server->lock);
	int status = r->gone && !r->status ? 499 : r->status;
	int32_t n_prompt = r->n_prompt, n_new = r->n_new;
	const char *finish = r->finish;
	double at = r->t_valid, part[3] = { r->queue_s, r->prefill_s, r->decode_s };
	pthread_mutex_unlock(&t->server->lock);
	span(&b, r, r->span, r->parent, r->path, 2, r->t_start, now, wall);
	strbuf_puts(&b, ",\"attributes\":[{\"key\":");
	text_attribute(&b, "http.request.method", r->method);
	strbuf_puts(&b, ",{\"key\":");
	text_attribute(&b, "url.path", r->path);
	strbuf_printf(
	    &b, ",{\"key\":\"http.response.status_code\",\"value\":{\"intValue\":\"%d\"}}", status);
	if (r->key) {
		strbuf_puts(&b, ",{\"key\":");
		text_attribute(&b, "llmc.key", r->key->name);
	}
	if (n_prompt || n_new) {
		strbuf_puts(&b, ",{\"key\":");
		text_attribute(&b, "gen_ai.request.model", r->slot->name);
		strbuf_printf(
		    &b,
		    ",{\"key\":\"gen_ai.usage.input_tokens\",\"value\":{\"intValue\":\"%d\"}},{"
		    "\"key\":\"gen_ai.usage.output_tokens\",\"value\":{\"intValue\":\"%d\"}}",
		    n_prompt, n_new);
		if (finish) {
			strbuf_puts(&b, ",{\"key\":");
			text_attribute(&b, "llmc.finish", finish);
		}
	}
	strbuf_puts(&b, status >= 500 ? "],\"status\":{\"code\":2}}" : "]}");
	static const char *const name[] = { "queue", "prefill", "decode" };
	for (int i = 0; i < 3 && at > 0 && (part[0] > 0 || part[1] > 0 || part[2] > 0); i++) {
		random_hex(id, 8);
		span(&b, r, id, r->span, name[i], 1, at, at + part[i], wall);
		strbuf_putc(&b, '}');
		at += part[i];
	}
	TraceSpan *s = b.failed ? NULL : malloc(sizeof *s + b.len + 1);
	if (s) {
		s->next = NULL;
		memcpy(s->text, strbuf_str(&b), b.len + 1);
	}
	strbuf_release(&b);
	if (!s)
		return;
	pthread_mutex_lock(&t->lock);
	bool room = t->n < MOST_WAITING;
	if (room) {
		*(t->first ? &t->last->next : &t->first) = s;
		t->last = s;
		if (++t->n >= AT_ONCE)
			pthread_cond_signal(&t->work);
	}
	pthread_mutex_unlock(&t->lock);
	if (!room)
		free(s);
}

/* Append a span. wall: offset from the monotonic to the wall clock, in seconds. */

static bool
send_all(int fd, const char *at, size_t n, double until)
{
	while (n) {
		if (clock_now() > until)
			return false;
		ssize_t put = send(fd, at, n, MSG_NOSIGNAL);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return false;
		at += put;
		n -= (size_t)put;
	}
	return true;
}

/* Send one request and return its status; 0: no answer. The total time is bounded, because the
 * server waits for this thread when it closes. */
static int
post(const Trace *t, const Strbuf *body)
{
	const struct addrinfo want = { .ai_socktype = SOCK_STREAM };
	const struct timeval patience = { .tv_sec = SEND_S };
	struct addrinfo *list = NULL;
	char head[700], answer[64] = "";
	const double until = clock_now() + POST_S;
	int fd = -1, status = 0;
	size_t got = 0;

	if (getaddrinfo(t->host, t->port, &want, &list) != 0)
		return 0;
	for (const struct addrinfo *a = list; a && fd < 0 && clock_now() < until; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience,
		           sizeof patience); /* this timeout also bounds connect() */
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	if (fd < 0)
		return 0;
	int n = snprintf(head, sizeof head,
	                 "POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: "
	                 "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
	                 t->path, t->host, t->port, body->len);
	if (send_all(fd, head, (size_t)n, until) && send_all(fd, body->data, body->len, until)) {
		while (got < 13 && clock_now() < until) {
			ssize_t k = recv(fd, answer + got, sizeof answer - 1 - got, 0);
			if (k <= 0)
				break;
			got += (size_t)k;
		}
		if (got >= 12 && strncmp(answer, "HTTP/1.", 7) == 0)
			status = atoi(answer + 9);
		for (ssize_t k = 1;
		     status && k > 0 &&
		     clock_now() <
		         /* read to the end, so that the collector sees no broken connection */
		         until;)
			k = recv(fd, head, sizeof head, 0);
	}
	close(fd);
	return status;
}

static void
export_spans(Trace *t, TraceSpan *list)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service."
	                "name\",\"value\":{\"stringValue\":\"llmc\"}},{\"key\":");
	text_attribute(&b, "service.version", llmc_version());
	json_printf(&b, "]},\"scopeSpans\":[{\"scope\":{\"name\":%s},\"spans\":[", "llmc");
	for (TraceSpan *s = list, *next; s; s = next) {
		next = s->next;
		strbuf_puts(&b, s->text);
		if (next)
			strbuf_putc(&b, ',');
		free(s);
	}
	strbuf_puts(&b, "]}]}]}");
	int status = b.failed ? 0 : post(t, &b);
	bool ok = status >= 200 && status < 300;
	if (!ok && !t->reported && status)
		serve_log(t->server, LLMC_LOG_WARNING,
		          "traces: %s:%s answers %d; spans are dropped", t->host, t->port, status);
	else if (!ok && !t->reported)
		serve_log(t->server, LLMC_LOG_WARNING,
		          "traces: %s:%s cannot be reached; spans are dropped", t->host, t->port);
	t->reported = !ok;
	strbuf_release(&b);
}

static void *
run(void *arg)
{
	Trace *t = arg;
	struct timespec until;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		clock_after(&until, EVERY_MS);
		while (!t->stop && t->n < AT_ONCE &&
		       pthread_cond_timedwait(&t->work, &t->lock, &until) == 0)
			;
		TraceSpan *list = t->first;
		bool stop = t->stop;
		t->first = t->last = NULL;
		t->n = 0;
		pthread_mutex_unlock(&t->lock);
		if (list)
			export_spans(t, list);
		pthread_mutex_lock(&t->lock);
		if (stop && !t->first)
			break;
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

llmc_status
trace_open(Server *s, const char *url, Trace **out, llmc_error *err)
{
	size_t n = strncmp(url, "http://", 7) == 0 ? strcspn(url + 7, ":/") : 0, digits = 0;
	const char *at = n ? url + 7 + n : url, *port = "4318", *end = at;

	*out = NULL;
	if (n && *at == ':') {
		port = at + 1;
		digits = strspn(port, "0123456789");
		end = port + digits;
	}
	if (!n || n > 255 || (*at == ':' && (digits < 1 || digits > 5)) || (*end && *end != '/') ||
	    strlen(end) > 255 || strpbrk(end, " \r\n"))
		return error_set(err, LLMC_E_INPUT,
		                 "traces need a URL such as http://127.0.0.1:4318, found %.100s",
		                 url);
	Trace *t = calloc(1, sizeof *t);
	if (!t)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	t->server = s;
	memcpy(t->host, url + 7, n);
	snprintf(t->port, sizeof t->port, "%.*s", digits ? (int)digits : 4, port);
	snprintf(t->path, sizeof t->path, "%s", end[0] && end[1] ? end : "/v1/traces");
	pthread_mutex_init(&t->lock, NULL);
	clock_cond_init(&t->work);
	t->has_thread = pthread_create(&t->thread, NULL, run, t) == 0;
	if (!t->has_thread) {
		trace_close(t);
		return error_set(err, LLMC_E_MEMORY, "the thread for traces could not be started");
	}
	*out = t;
	return LLMC_OK;
}

void
trace_close(Trace *t)
{
	if (!t)
		return;
	if (t->has_thread) {
		pthread_mutex_lock(&t->lock);
		t->stop = true;
		pthread_cond_signal(&t->work);
		pthread_mutex_unlock(&t->lock);
		pthread_join(t->thread, NULL);
	}
	pthread_cond_destroy(&t->work);
	pthread_mutex_destroy(&t->lock);
	free(t);
}
