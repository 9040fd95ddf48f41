/* Connections: one thread accepts, reads, writes and closes. It closes a connection if the client
 * has closed it or is too slow, or if it is idle and a new connection needs its slot.
 *
 *   IDLE --first byte--> HEAD --complete--> BODY --complete--> WORK --answer begins--> SEND --sent--> IDLE
 *                                                                                     `--close--> LINGER
 * llmc has its own HTTP code for three reasons. It must notice in every state that a client has
 * disconnected. The oldest idle connection must yield to a new one. And request_head.c is stricter
 * than the parsers of HTTP libraries.
 *
 * A Conn belongs to this thread. Other threads reach it only through http_wake(), which puts its
 * request into Server.woken. Nothing here blocks: sockets are non-blocking, and connections are
 * served in turns. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/wakeup.h"
#include "serve/http/connection_internal.h"
#include "serve/http/request.h"
#include "serve/models/model_manager.h"

/* Begin a request; false: out of memory. */
static bool
begin_request(Net *n, Conn *c)
{
	c->seen = 0;
	c->req = req_new(n->s, c, c->client);
	if (c->req)
		conn_enter(n, c, CONN_BODY);
	else
		conn_close(n, c);
	return c->req != NULL;
}

/* Answer without reading the rest of the request, then close. */
static void
answer_early(Conn *c, const HttpError *e)
{
	if (!c->req->ready) /* no other thread has the request yet, so no lock is needed */
		req_refuse(c->req, e);
	c->close = true;
	c->body.at = BODY_OVER;
}

/* Parse the head of a request once it is complete. */
static bool
take_head(Net *n, Conn *c)
{
	HttpError e = { 0 };

	while (c->in.len - c->at >= 2 && memcmp(c->in.data + c->at, "\r\n", 2) == 0)
		c->at += 2; /* some clients send CRLF after a body */
	size_t len = c->in.len - c->at;
	if (len == 0 || (len == 1 && c->in.data[c->at] == '\r')) {
		if (len == 0)
			strbuf_release(&c->in);
		c->at = len ? c->at : 0;
		c->seen = 0;
		return false;
	}
	if (c->state == CONN_IDLE)
		conn_enter(n, c, CONN_HEAD);
	ptrdiff_t span = head_span(c->in.data + c->at, len, c->seen, &e);
	c->seen = len;
	if (span == 0)
		return false;
	if (!begin_request(n, c))
		return false;
	if (span < 0) {
		answer_early(c, &e);
		return true;
	}
	char *head = malloc((size_t)span + 1);
	if (!head) {
		conn_close(n, c);
		return false;
	}
	memcpy(head, c->in.data + c->at, (size_t)span);
	head[span] = 0;
	c->at += (size_t)span;
	if (!req_begin(c->req, head, (size_t)span)) {
		answer_early(c, NULL);
		return true;
	}
	body_begin(&c->body, &c->req->in);
	if (c->req->in.expect && c->body.at != BODY_OVER && c->at == c->in.len) {
		strbuf_puts(&c->head, "HTTP/1.1 100 Continue\r\n\r\n");
		/* if the socket does not accept all bytes now, they are sent before the answer */
		conn_send(n, c);
	}
	return c->fd >= 0;
}

/* Read the body. True: complete. */
static bool
take_body(Conn *c)
{
	HttpError e = { 0 };
	const char *data;
	size_t n_data;

	while (c->at < c->in.len && c->body.at != BODY_OVER) {
		size_t used =
		    body_next(&c->body, c->in.data + c->at, c->in.len - c->at, &data, &n_data, &e);
		if (e.status) {
			answer_early(c, &e);
			return true;
		}
		req_body(c->req, data, n_data);
		c->at += used;
	}
	if (c->at == c->in.len) {
		strbuf_release(&c->in);
		c->at = 0;
	}
	return c->body.at == BODY_OVER;
}

/* Report whether the answer has begun; if not, http_wake() announces it. */
static bool
answer_begins(Req *r)
{
	pthread_mutex_lock(&r->srv->lock);
	bool ready = r->awake = r->ready;
	pthread_mutex_unlock(&r->srv->lock);
	return ready;
}

/* Advance a connection as far as possible, but at most by one request. */
static void
conn_step(Net *n, Conn *c)
{
	bool answered = false;

	while (c->fd >= 0)
		switch (c->state) {
		case CONN_IDLE:
		case CONN_HEAD:
			/* the next request has arrived: serve other connections first */
			if (answered && c->in.len > c->at) {
				if (!c->again) {
					c->next_again = n->again;
					n->again = c;
				}
				c->again = true;
				return;
			}
			if (!take_head(n, c)) {
				if (c->fd >= 0 && c->eof)
					conn_close(n, c);
				else if (c->fd >= 0)
					conn_watch(n, c, POLLER_READ | POLLER_ENDED);
				return;
			}
			break;
		case CONN_BODY:
			if (!take_body(c)) {
				if (c->eof)
					conn_close(n, c);
				else
					conn_watch(n, c, POLLER_READ | POLLER_ENDED);
				return;
			}
			conn_enter(n, c, CONN_WORK);
			req_whole(c->req);
			break;
		case CONN_WORK:
			if (!answer_begins(c->req)) {
				if (c->eof || n->s->ended)
					conn_close(n, c);
				else
					conn_watch(n, c, POLLER_ENDED);
				return;
			}
			conn_begin_answer(n, c);
			break;
		case CONN_SEND:
			if (!conn_send(n, c))
				return;
			if (c->last) {
				conn_end_answer(n, c);
				answered = true;
			} else if (!conn_next_part(n, c)) {
				return;
			}
			break;
		case CONN_LINGER:
			return;
		}
}

static void
conn_read(Net *n, Conn *c)
{
	ssize_t k = recv(c->fd, n->scratch, sizeof n->scratch, 0);

	if (k < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (k < 0 || (k == 0 && c->state == CONN_LINGER)) {
		conn_close(n, c);
		return;
	}
	c->eof |= k == 0;
	if (c->state == CONN_LINGER)
		return;
	if (c->at) { /* discard consumed bytes */
		memmove(c->in.data, c->in.data + c->at, c->in.len - c->at);
		c->in.len -= c->at;
		c->at = 0;
	}
	if (k)
		strbuf_add(&c->in, n->scratch, (size_t)k);
	if (c->in.failed)
		conn_close(n, c);
	else
		conn_step(n, c);
}

static void
conn_event(Net *n, Conn *c, uint32_t events)
{
	if (c->fd < 0)
		return;
	if (events & POLLER_FAILED) {
		conn_close(n, c);
	} else if (c->events & POLLER_READ) {
		if (!c->again) /* do not read more before the bytes read so far are processed */
			conn_read(n, c);
	} else if (events & POLLER_ENDED) {
		/* The client has closed its sending side before the answer was complete: send the
		 * part that is ready and drop the rest. */
		c->eof = true;
		if (c->state == CONN_WORK || !c->last)
			conn_close(n, c);
		else
			conn_step(n, c);
	} else {
		conn_step(n, c);
	}
}

static double
idle_timeout(const Net *n, const Conn *c, bool pressed)
{
	const llmc_serve_options *o = &n->s->opt;

	switch (c->state) {
	/* a new connection must begin its request soon; after its first request it may be idle for
	 * longer */
	case CONN_IDLE:
		return c->used ? o->idle_timeout_s : o->header_timeout_s;
	case CONN_HEAD:
		return o->header_timeout_s;
	/* an upload gets additional time for its bytes at the slowest allowed rate */
	case CONN_BODY:
		return o->body_timeout_s + (c->req->route && c->req->route->flags & RT_UPLOAD
		                                ? (double)c->req->in.length / UPLOAD_RATE
		                                : 0);
	case CONN_WORK:
		break;
	case CONN_SEND: /* the answer is ready, but the client does not read */
		if (c->events & POLLER_WRITE) {
			pthread_mutex_lock(&n->s->lock);
			size_t held = c->req->held;
			pthread_mutex_unlock(&n->s->lock);
			return pressed && held > READ_BYTES ? PRESSED_S : o->body_timeout_s;
		}
		break;
	case CONN_LINGER:
		return LINGER_S;
	}
	return 1e18;
}

static void
check_clocks(Net *n)
{
	static const HttpError late = { 408, "The request was not complete in time." };
	ConnList *lists[] = { &n->idle, &n->busy };

	pthread_mutex_lock(&n->s->lock);
	bool pressed = n->s->pressed;
	n->s->pressed = false;
	pthread_mutex_unlock(&n->s->lock);
	models_answer_overdue(n->s);
	for (int i = 0; i < 2; i++)
		for (Conn *c = lists[i]->first, *next; c; c = next) {
			next = c->next;
			double t = n->now - c->since;
			if (t > idle_timeout(n, c, pressed)) {
				if (c->state == CONN_BODY ||
				    (c->state == CONN_HEAD && begin_request(n, c))) {
					answer_early(c, &late);
					conn_step(n, c);
				} else {
					conn_close(n, c);
				}
			} else if (c->state == CONN_SEND && !(c->events & POLLER_WRITE) &&
			           t > KEEP_ALIVE_S) {
				/* an SSE comment, so that proxies do not close a stream that is
				 * still queued */
				strbuf_puts(&c->head,
				            c->req->in.http10 ? ":\n\n" : "3\r\n:\n\n\r\n");
				conn_step(n, c);
			}
		}
	net_listen_again(n, true);
}

static void
serve_woken(Net *n)
{
	(void)wakeup_take(n->wake_fd);
	pthread_mutex_lock(&n->s->lock);
	Req *r = n->s->woken;
	n->s->woken = NULL;
	pthread_mutex_unlock(&n->s->lock);
	for (Req *next; r; r = next) {
		pthread_mutex_lock(&n->s->lock);
		next = r->wake_next;
		r->listed = false;
		pthread_mutex_unlock(&n->s->lock);
		if (r->conn) /* only this thread changes conn */
			conn_step(n, r->conn);
		req_unref(r);
	}
}

/* Cancel all running requests; their clients get an error. */
static void
abort_all(Net *n)
{
	n->aborted = true;
	pthread_mutex_lock(&n->s->lock);
	for (Conn *c = n->busy.first; c; c = c->next)
		if (c->req)
			req_cancel(c->req);
	pthread_mutex_unlock(&n->s->lock);
}

static void *
run(void *arg)
{
	Net *n = arg;
	Server *s = n->s;
	PollerEvent ev[EVENTS];
	double checked = 0, end = 0;

	for (;;) {
		Conn *again = n->again;
		n->again = NULL;
		for (Conn *next; again; again = next) {
			next = again->next_again;
			again->again = false;
			conn_step(n, again);
		}
		int k = poller_wait(n->poller, ev, EVENTS, n->again ? 0 : 100);
		n->now = clock_now();
		bool woken = false, more = false;
		for (int i = 0; i < k; i++) {
			if (ev[i].data == n)
				woken = true;
			else if (!ev[i].data)
				more = true;
			else
				conn_event(n, ev[i].data, ev[i].events);
		}
		if (woken)
			serve_woken(n);
		if (more) /* accept after closed connections have freed their slots */
			net_accept(n);
		if (n->now - checked >= 0.1) {
			checked = n->now;
			check_clocks(n);
		}
		if (s->closing && !n->aborted)
			abort_all(n);
		net_free_closed(n);
		if (!s->ended)
			continue;
		/* For a limited time, keep sending answers that are ready to clients that accept
		 * them. */
		if (end == 0)
			end = n->now + LINGER_S;
		for (Conn *c = n->busy.first, *next; c; c = next) {
			next = c->next;
			if (c->state == CONN_HEAD || c->state == CONN_BODY)
				conn_close(n, c);
			else
				conn_step(n, c);
		}
		if (!n->busy.first || n->now > end)
			break;
	}
	while (n->idle.first)
		conn_close(n, n->idle.first);
	while (n->busy.first)
		conn_close(n, n->busy.first);
	for (Conn *c = n->again; c; c = c->next_again)
		c->again = false;
	net_free_closed(n);
	return NULL;
}

void
net_wake(Server *s)
{
	if (s->net)
		wakeup_add(s->net->wake_fd, 1);
}

void
http_wake(Req *r)
{
	Server *s = r->srv;

	pthread_mutex_lock(&s->lock);
	bool whole = r->answered && r->done;
	bool wake = r->conn && !r->awake && !r->listed;
	if (wake) {
		r->awake = r->listed = true;
		atomic_fetch_add(&r->refs, 1);
		r->wake_next = s->woken;
		s->woken = r;
	}
	pthread_mutex_unlock(&s->lock);
	if (wake)
		net_wake(s);
	if (whole)
		r->answered(r);
}

llmc_status
net_open(Server *s, llmc_error *err)
{
	Net *n = s->net = calloc(1, sizeof *n);

	if (!n)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	n->s = s;
	n->poller = poller_open();
	n->wake_fd = wakeup_open();
	if (n->poller < 0 || n->wake_fd < 0 || !poller_add(n->poller, n->wake_fd, POLLER_READ, n))
		return error_set(err, LLMC_E_IO, "the HTTP server could not be started: %s",
		                 strerror(errno));
	net_listen_again(n, true);
	int rc = pthread_create(&n->thread, NULL, run, n);
	if (rc != 0)
		return error_set(err, LLMC_E_MEMORY,
		                 "the HTTP server's thread could not be started: %s", strerror(rc));
	n->has_thread = true;
	return LLMC_OK;
}

void
net_close(Server *s) /* s->ended is set */
{
	Net *n = s->net;

	if (!n)
		return;
	net_wake(s);
	if (n->has_thread)
		pthread_join(n->thread, NULL);
	for (Req *r = s->woken, *next; r; r = next) {
		next = r->wake_next;
		req_unref(r);
	}
	if (n->poller >= 0)
		close(n->poller);
	if (n->wake_fd >= 0)
		close(n->wake_fd);
	free(n);
	s->net = NULL;
}
