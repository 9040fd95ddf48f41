/* Connections of the load generator: non-blocking sockets under a poller; responses are parsed as
 * they arrive.
 *
 * A connection writes its request and reads status line, headers and body. The body is chunked, of
 * a given length, or ends with the connection. A streamed response consists of lines "data: {...}";
 * each is a part of the output, and its time of arrival is recorded. */
#include "base/clock.h"
#include "cli/load_generator.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/number.h"
#include "base/poller.h"
#include "cli/cli.h"

enum { MAX_LINE = 1 << 20 };

typedef enum ReadState {
	READ_HEAD,
	READ_BODY,
	READ_CHUNK_SIZE,
	READ_CHUNK,
	READ_CHUNK_END,
	READ_DONE
} ReadState;

typedef struct LoadConn {
	LoadRequest *r;
	int fd;
	char *out; /* header and body to send */
	size_t out_size, out_at;
	ReadState state;
	bool stream;
	bool extension; /* in the extension after a chunk size */
	int64_t left;   /* bytes left of the chunk or body; -1: until the connection ends */
	char *line;     /* current header line, chunk size or body line */
	size_t line_len, line_cap;
	struct LoadConn *next;
} LoadConn;

typedef struct LoadRun {
	const LoadOptions *o;
	struct addrinfo *addr;
	int poller;
	double t0;
	LoadConn *live;
	size_t running, done;
} LoadRun;

bool
load_target(const char *url, const char *route, LoadTarget *out)
{
	const char *p = url, *host, *end;

	if (strncmp(p, "http://", 7) != 0)
		return false;
	p += 7;
	if (*p == '[') {
		host = ++p;
		end = strchr(p, ']');
		p = end ? end + 1 : p;
	} else {
		host = p;
		end = p + strcspn(p, ":/");
		p = end;
	}
	if (!end || end == host || (size_t)(end - host) >= sizeof out->host)
		return false;
	snprintf(out->host, sizeof out->host, "%.*s", (int)(end - host), host);
	snprintf(out->port, sizeof out->port, "80");
	if (*p == ':') {
		size_t n = strspn(p + 1, "0123456789");
		if (n < 1 || n > 5)
			return false;
		snprintf(out->port, sizeof out->port, "%.*s", (int)n, p + 1);
		p += 1 + n;
	}
	if (*p && *p != '/')
		return false;
	size_t n = strlen(p);
	while (n && p[n - 1] == '/')
		n--;
	if (n >= 3 && !strncmp(p + n - 3, "/v1", 3))
		n -= 3;
	return snprintf(out->path, sizeof out->path, "%.*s%s", (int)n, p, route) <
	       (int)sizeof out->path;
}

static void
finish(LoadRun *l, LoadConn *c, const char *error)
{
	LoadRequest *r = c->r;

	r->end = clock_now() - l->t0;
	if (error && !r->error[0])
		snprintf(r->error, sizeof r->error, "%s", error);
	r->ok = !r->error[0] && r->status == 200 && r->n_token > 0;
	if (!r->ok && !r->error[0])
		snprintf(r->error, sizeof r->error,
		         r->status ? "the server answered with status %d and no body" : "no answer",
		         r->status);
	close(c->fd);
	for (LoadConn **p = &l->live; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	free(c->out);
	free(c->line);
	free(c);
	l->running--;
	l->done++;
}

static bool
start(LoadRun *l, LoadRequest *r, char why[200])
{
	const LoadTarget *t = l->o->target;
	int one = 1;

	LoadConn *c = calloc(1, sizeof *c);
	if (!c)
		return false;
	c->r = r;
	c->left = -1;
	c->fd = socket(l->addr->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd < 0) {
		snprintf(
		    why, 200,
		    "cannot open another socket: %s; raise the limit of open files (ulimit -n)",
		    strerror(errno));
		free(c);
		return false;
	}
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	size_t cap = r->size + 1200;
	c->out = malloc(cap);
	c->next = l->live;
	l->live = c;
	l->running++;
	r->sent = clock_now() - l->t0;
	r->new_tokens = r->prompt_tokens = -1;
	if (!c->out) {
		finish(l, c, "out of memory");
		return true;
	}
	int n = snprintf(
	    c->out, cap,
	    "POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: "
	    "%zu\r\n%s%s%sConnection: close\r\n\r\n",
	    t->path, t->host, t->port, r->size, l->o->api_key ? "Authorization: Bearer " : "",
	    l->o->api_key ? l->o->api_key : "", l->o->api_key ? "\r\n" : "");
	if (n < 0 || (size_t)n + r->size > cap) {
		finish(l, c, "the key or the path is too long");
		return true;
	}
	memcpy(c->out + n, r->body, r->size);
	c->out_size = (size_t)n + r->size;
	if ((connect(c->fd, l->addr->ai_addr, l->addr->ai_addrlen) != 0 && errno != EINPROGRESS) ||
	    !poller_add(l->poller, c->fd, POLLER_READ | POLLER_WRITE, c))
		finish(l, c, strerror(errno));
	return true;
}

/* Parse one event of a streamed response, or a whole response that is not streamed. */
static void
take_json(LoadRun *l, LoadRequest *r, const char *text, size_t n)
{
	json_t *j = json_parse(text, n, 0, NULL, NULL);
	json_t *choice = json_array_get(json_object_get(j, "choices"), 0),
	       *usage = json_object_get(j, "usage");
	json_t *error = json_object_get(j, "error");
	const char *delta = json_string_value(json_object_get(choice, "text"));

	if (!delta)
		delta =
		    json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
	if (!delta)
		delta = json_string_value(
		    json_object_get(json_object_get(choice, "message"), "content"));
	if (error) {
		const char *m = json_string_value(json_object_get(error, "message"));
		m = m ? m : json_string_value(error);
		snprintf(r->error, sizeof r->error, "%s", m ? m : "the server returned an error");
	}
	if (delta && *delta) {
		if (r->n_token == r->cap) {
			int32_t cap = r->cap ? 2 * r->cap : 64;
			double *grown = realloc(r->token_at, (size_t)cap * sizeof *grown);
			if (grown) {
				r->token_at = grown;
				r->cap = cap;
			}
		}
		double at = clock_now() - l->t0;
		if (r->n_token == 0)
			r->first = at;
		r->last = at;
		if (r->n_token < r->cap)
			r->token_at[r->n_token++] = at;
	}
	json_t *v = json_object_get(usage, "completion_tokens");
	if (json_is_integer(v))
		r->new_tokens = (int32_t)json_integer_value(v);
	v = json_object_get(usage, "prompt_tokens");
	if (json_is_integer(v))
		r->prompt_tokens = (int32_t)json_integer_value(v);
	json_decref(j);
}

static bool
line_add(LoadConn *c, char ch)
{
	if (c->line_len + 1 >= c->line_cap) {
		size_t cap = c->line_cap ? 2 * c->line_cap : 256;
		char *grown = cap <= MAX_LINE ? realloc(c->line, cap) : NULL;
		if (!grown)
			return false;
		c->line = grown;
		c->line_cap = cap;
	}
	c->line[c->line_len++] = ch;
	c->line[c->line_len] = 0;
	return true;
}

static void
head_line(LoadConn *c)
{
	const char *s = c->line ? c->line : "";
	size_t n = c->line_len;

	while (n && (s[n - 1] == '\r' || s[n - 1] == '\n'))
		n--;
	if (n == 0) {
		if (c->r->status == 100)
			c->r->status = 0;
		else
			c->state = c->state == READ_HEAD && c->left == -2 ? READ_CHUNK_SIZE
			           : c->left == 0                         ? READ_DONE
			                                                  : READ_BODY;
	} else if (!c->r->status) {
		if (strncmp(s, "HTTP/1.", 7) == 0 && n > 9)
			c->r->status = atoi(s + 9);
	} else if (!strncasecmp(s, "content-length:", 15)) {
		c->left = strtoll(s + 15, NULL, 10);
	} else if (!strncasecmp(s, "transfer-encoding:", 18) && strstr(s, "chunked")) {
		c->left = -2;
	} else if (!strncasecmp(s, "content-type:", 13) && strstr(s, "text/event-stream")) {
		c->stream = true;
	}
	c->line_len = 0;
}

static void
body_line(LoadRun *l, LoadConn *c)
{
	const char *s = c->line;
	size_t n = c->line_len;

	if (c->stream && n > 5 && !strncmp(s, "data:", 5)) {
		s += 5;
		n -= 5;
		while (n && *s == ' ')
			s++, n--;
		while (n && (s[n - 1] == '\n' || s[n - 1] == '\r'))
			n--;
		if (!(n == 6 && !strncmp(s, "[DONE]", 6)))
			take_json(l, c->r, s, n);
	}
	c->line_len = 0;
}

/* Consume bytes of the body: lines of a stream, else one document. */
static bool
body_byte(LoadRun *l, LoadConn *c, char ch)
{
	if (!line_add(c, ch))
		return false;
	if (ch == '\n' && c->stream)
		body_line(l, c);
	return true;
}

static bool
chunk_digit(LoadConn *c, int digit)
{
	int64_t left = c->left < 0 ? 0 : c->left;

	if (left > INT32_MAX)
		return false;
	c->left = left * 16 + digit;
	return true;
}

static bool
take(LoadRun *l, LoadConn *c, const char *p, size_t n)
{
	bool ok = true;

	for (size_t i = 0; ok && i < n && c->state != READ_DONE; i++) {
		switch (c->state) {
		case READ_HEAD:
			ok = line_add(c, p[i]);
			if (ok && p[i] == '\n')
				head_line(c);
			break;
		case READ_BODY:
			ok = body_byte(l, c, p[i]);
			if (c->left > 0 && --c->left == 0)
				c->state = READ_DONE;
			break;
		case READ_CHUNK_SIZE:
			if (p[i] == '\n')
				c->state = c->left > 0 ? READ_CHUNK : READ_DONE;
			else if (p[i] == ';')
				c->extension = true;
			else if (c->extension)
				break;
			else if (hex_digit(p[i]) >= 0)
				ok = chunk_digit(c, hex_digit(p[i]));
			break;
		case READ_CHUNK:
			ok = body_byte(l, c, p[i]);
			if (--c->left == 0)
				c->state = READ_CHUNK_END;
			break;
		case READ_CHUNK_END:
			if (p[i] == '\n') {
				c->state = READ_CHUNK_SIZE;
				c->extension = false;
				c->left = -1;
			}
			break;
		case READ_DONE:
			break;
		}
	}
	return ok;
}

/* Advance one connection. False: it is closed. */
static bool
readable(LoadRun *l, LoadConn *c)
{
	char buf[65536];

	for (;;) {
		ssize_t n = read(c->fd, buf, sizeof buf);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		bool ok = n <= 0 || take(l, c, buf, (size_t)n);
		if (n > 0 && ok && c->state != READ_DONE)
			continue;
		if (c->line_len && !c->stream && c->state >= READ_BODY)
			take_json(l, c->r, c->line, c->line_len);
		finish(l, c,
		       n < 0 ? strerror(errno)
		       : !ok ? "a line of the response is too long"
		       : c->state == READ_DONE || (c->state == READ_BODY && c->left < 0)
		           ? NULL
		           : "the connection ended early");
		return false;
	}
}

static bool
writable(LoadRun *l, LoadConn *c)
{
	int err = 0;
	socklen_t len = sizeof err;

	if (c->out_at == 0 && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err) {
		finish(l, c, strerror(err));
		return false;
	}
	while (c->out_at < c->out_size) {
		ssize_t n = send(c->fd, c->out + c->out_at, c->out_size - c->out_at, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n < 0) {
			finish(l, c, strerror(errno));
			return false;
		}
		c->out_at += (size_t)n;
	}
	(void)poller_change(l->poller, c->fd, POLLER_READ, c);
	return true;
}

static void
expire(LoadRun *l, bool all)
{
	double t = clock_now() - l->t0;

	for (LoadConn *c = l->live, *next; c; c = next) {
		next = c->next;
		if (all || t - c->r->sent > l->o->timeout)
			finish(l, c, all ? "interrupted" : "not complete within the timeout");
	}
}

char *
load_get(const LoadTarget *t, const char *path, const char *api_key, double timeout, char why[200])
{
	static const double MOST_S = 20;
	const double most = timeout < MOST_S ? timeout : MOST_S, begun = clock_now();
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM }, *addr = NULL;
	struct timeval limit = { .tv_sec = (time_t)most,
		                 .tv_usec = 1000 + (long)(900e3 * (most - floor(most))) };
	char head[2048], *text = NULL;
	size_t size = 0, cap = 0;

	int e = getaddrinfo(t->host, t->port, &hint, &addr);
	if (e) {
		snprintf(why, 200, "%.100s: %s", t->host, gai_strerror(e));
		return NULL;
	}
	int fd = socket(addr->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int n = snprintf(head, sizeof head, "GET %s HTTP/1.0\r\nHost: %s:%s\r\n%s%s%s\r\n", path,
	                 t->host, t->port, api_key ? "Authorization: Bearer " : "",
	                 api_key ? api_key : "", api_key ? "\r\n" : "");
	bool late = false;
	bool ok = fd >= 0 && n > 0 && (size_t)n < sizeof head &&
	          setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
	          setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
	          connect(fd, addr->ai_addr, addr->ai_addrlen) == 0 &&
	          send(fd, head, (size_t)n, MSG_NOSIGNAL) == n;
	while (ok && size < MAX_LINE) {
		if (cap - size < 4096) {
			char *grown = realloc(text, cap + 65536);
			if (!grown)
				break;
			text = grown;
			cap += 65536;
		}
		ssize_t k = read(fd, text + size, cap - size - 1);
		if (k <= 0)
			break;
		size += (size_t)k;
		text[size] = 0;
		if ((late = clock_now() - begun > most))
			break;
	}
	if (late)
		snprintf(why, 200, "%.80s:%s: the answer to GET %.60s is not complete after %.0f s",
		         t->host, t->port, path, most);
	else if (!size)
		snprintf(why, 200, "%.80s:%s: %s", t->host, t->port,
		         ok ? "no answer" : strerror(errno));
	if (fd >= 0)
		close(fd);
	freeaddrinfo(addr);
	char *body = size && !late ? strstr(text, "\r\n\r\n") : NULL;
	if (size && !late && (!body || size < 12 || strncmp(text + 9, "200", 3) != 0)) {
		snprintf(why, 200, "%.80s:%s answers GET %.60s with %.30s", t->host, t->port, path,
		         text);
		body = NULL;
	}
	if (body)
		memmove(text, body + 4, size - (size_t)(body + 4 - text) + 1);
	else
		free(text);
	return body ? text : NULL;
}

bool
load_run(const LoadOptions *o, LoadRequest *r, size_t n, double *took, char why[200])
{
	LoadRun l = { .o = o, .poller = -1 };
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM };
	PollerEvent ev[64];
	size_t sent = 0;
	bool fine = true;

	int e = getaddrinfo(o->target->host, o->target->port, &hint, &l.addr);
	if (e) {
		snprintf(why, 200, "%.100s: %s", o->target->host, gai_strerror(e));
		return false;
	}
	l.poller = poller_open();
	fine = l.poller >= 0;
	if (!fine)
		snprintf(why, 200, "the load generator could not be started: %s", strerror(errno));
	l.t0 = clock_now();
	while (fine && l.done < n) {
		double t = clock_now() - l.t0;
		while (fine && sent < n &&
		       (o->clients ? l.running < (size_t)o->clients : r[sent].at <= t))
			fine = start(&l, &r[sent++], why);
		int wait = 20;
		if (!o->clients && sent < n && (r[sent].at - t) * 1e3 < wait)
			wait = r[sent].at > t ? (int)((r[sent].at - t) * 1e3) : 0;
		int k = poller_wait(l.poller, ev, 64, wait);
		for (int i = 0; i < k; i++) {
			LoadConn *c = ev[i].data;
			bool alive = true;
			if (ev[i].events & POLLER_WRITE)
				alive = writable(&l, c);
			if (alive && (ev[i].events & (POLLER_READ | POLLER_FAILED)))
				readable(&l, c);
		}
		expire(&l, false);
		if (o->progress)
			o->progress(o->user, l.done, l.running);
		if (o->stop && o->stop())
			break;
	}
	expire(&l, true);
	*took = clock_now() - l.t0;
	if (l.poller >= 0)
		close(l.poller);
	freeaddrinfo(l.addr);
	return fine;
}
