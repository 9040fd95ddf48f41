/* Connections: one thread accepts, reads, writes and closes. It closes connections that the client
 * has closed, that are too slow, or that are idle when a new one needs the slot.
 *
 *   IDLE --first byte--> HEAD --complete--> BODY --complete--> WORK --answer begins--> SEND --sent--> IDLE
 *                                                                                     `--close--> LINGER
 * llmc has its own HTTP code for three reasons. A client's hang-up must be seen in every state. The
 * oldest idle connection must yield to a new one. request_head.c is stricter than the libraries.
 *
 * A Conn belongs to this thread. Other threads reach it only through http_wake(), which puts its
 * request into Server.woken. Nothing here blocks: sockets are non-blocking, and a connection is
 * served one turn at a time. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "serve/http/request.h"

enum {
	READ_BYTES = 65536,
	EVENTS = 128,
	KEEP_ALIVE_S = 15,
	LINGER_S = 2,
	PRESSED_S = 1,
	UPLOAD_RATE = 128 << 10 /* bytes per second */
};
#define SETTLE_S 0.1

struct Conn {
	Conn *prev, *next; /* in Net.idle or Net.busy, oldest first */
	int fd;            /* -1: closed, freed when the turn is over */
	enum { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_WORK, CONN_SEND, CONN_LINGER } state;
	uint32_t events; /* events registered with epoll */
	/* time when it entered the state; in SEND: when the client last accepted bytes */
	double since;
	bool eof, close;  /* eof: the client sends no more; close: this answer is the last */
	bool used, again; /* used: had a request before; again: is in Net.again */
	Conn *next_again;
	struct in6_addr from;
	char client[INET6_ADDRSTRLEN];
	Strbuf
	    /* received bytes; those before `at` are consumed, those before `seen` hold no complete
	     * head */
	    in;
	size_t at, seen;
	HttpBody body;
	Req *req;
	/* output: three consecutive parts; `sent` counts bytes of all */
	Strbuf head, piece;
	const char *data;
	size_t n_data, n_tail, sent;
	bool last; /* no output follows it */
};

typedef struct ConnList {
	Conn *first, *last;
} ConnList;

typedef struct Net {
	Server *s;
	int epoll_fd, wake_fd;
	bool listening, has_thread, aborted;
	pthread_t thread;
	ConnList idle, busy; /* idle: IDLE and LINGER; busy: all others */
	Conn *dead;          /* closed in this turn; linked by next */
	Conn *again;         /* connections whose next request has arrived; linked by next_again */
	int n;
	char scratch[READ_BYTES];
	double now;
} Net;

/* ---- connections ---- */

static void
list_remove(ConnList *l, Conn *c)
{
	*(c->prev ? &c->prev->next : &l->first) = c->next;
	*(c->next ? &c->next->prev : &l->last) = c->prev;
}

static void
list_append(ConnList *l, Conn *c)
{
	c->prev = l->last;
	c->next = NULL;
	*(l->last ? &l->last->next : &l->first) = c;
	l->last = c;
}

static ConnList *
list_of(Net *n, const Conn *c)
{
	return c->state == CONN_IDLE || c->state == CONN_LINGER ? &n->idle : &n->busy;
}

static void
enter(Net *n, Conn *c, int state)
{
	list_remove(list_of(n, c), c);
	c->state = state;
	c->since = n->now;
	list_append(list_of(n, c), c);
}

static void
watch(Net *n, Conn *c, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = c };

	if (events != c->events)
		epoll_ctl(n->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
	c->events = events;
}

static void
listen_again(Net *n, bool on)
{
	struct epoll_event e = { .events = EPOLLIN };

	if (on == n->listening || (on && n->s->draining))
		return;
	n->listening = on;
	epoll_ctl(n->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, n->s->listen_fd, &e);
}

static void
conn_close(Net *n, Conn *c)
{
	if (c->fd < 0)
		return;
	list_remove(list_of(n, c), c);
	if (c->req)
		req_over(c->req, false);
	c->req = NULL;
	epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, c->fd,
	          /* a compiler process that is being started has a copy of the descriptor until
	           * exec, and epoll would keep reporting it */
	          NULL);
	close(c->fd);
	c->fd = -1;
	c->next = n->dead;
	n->dead = c;
	n->s->n_conns = --n->n;
	listen_again(n, true);
}

static void
free_closed(Net *n)
{
	Conn *c = n->dead, *next;

	n->dead = NULL;
	for (; c; c = next) {
		next = c->next;
		if (c->again) { /* wait until that list has been processed */
			c->next = n->dead;
			n->dead = c;
			continue;
		}
		strbuf_release(&c->in);
		strbuf_release(&c->head);
		strbuf_release(&c->piece);
		free(c);
	}
}

/* Close a connection to make a slot free. The candidate is the one idle longest, but not one just
 * opened: a flood of new connections would evict clients about to send. If none is idle, close one
 * that has been sending its request for more than a second. */
static bool
make_room(Net *n)
{
	Conn *old =
	    n->idle.first && n->now - n->idle.first->since > SETTLE_S ? n->idle.first : NULL;

	for (Conn *c = n->busy.first; c && !old; c = c->next)
		if ((c->state == CONN_HEAD || c->state == CONN_BODY) &&
		    n->now - c->since > PRESSED_S)
			old = c;
	if (old)
		conn_close(n, old);
	return old != NULL;
}

static bool
too_many_from(const Net *n, const struct in6_addr *from)
{
	int most = n->s->opt.max_connections_per_client;

	for (const Conn *c = n->idle.first; c && most; c = c->next)
		most -= !memcmp(&c->from, from, sizeof *from);
	for (const Conn *c = n->busy.first; c && most; c = c->next)
		most -= !memcmp(&c->from, from, sizeof *from);
	return n->s->opt.max_connections_per_client && most <= 0;
}

static void
conn_open(Net *n, int fd, const struct sockaddr_storage *addr)
{
	Conn *c = calloc(1, sizeof *c);
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = c };
	int on = 1;

	if (c && addr->ss_family == AF_INET6) {
		c->from = ((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
		inet_ntop(AF_INET6, &c->from, c->client, sizeof c->client);
	} else if (c) {
		const struct in_addr *four =
		    &((const struct sockaddr_in *)(const void *)addr)->sin_addr;
		memcpy(&c->from, four, sizeof *four);
		inet_ntop(AF_INET, four, c->client, sizeof c->client);
	}
	if (!c || too_many_from(n, &c->from) ||
	    epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
		close(fd);
		free(c);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* each token is a packet */
	c->fd = fd;
	c->events = e.events;
	c->since = n->now;
	list_append(&n->idle, c);
	n->s->n_conns = ++n->n;
}

static void
accept_some(Net *n)
{
	struct sockaddr_storage addr;

	for (int i = 0; i < 16; i++) {
		if (n->n >= n->s->opt.max_connections) {
			if (i == 0 && !make_room(n)) /* at least one connection is known to wait */
				listen_again(n, false);
			if (i || n->n >= n->s->opt.max_connections)
				return;
		}
		socklen_t len = sizeof addr;
		int fd = accept4(n->s->listen_fd, (struct sockaddr *)&addr, &len,
		                 SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			/* Out of descriptors or memory: close a connection or accept later. When
			 * draining, stop accepting. */
			if (n->s->draining || ((errno == EMFILE || errno == ENFILE ||
			                        errno == ENOBUFS || errno == ENOMEM) &&
			                       !make_room(n)))
				listen_again(n, false);
			return;
		}
		conn_open(n, fd, &addr);
	}
}

/* ---- sending ---- */

/* Send the output. True: all is sent. False: the socket is full, or the connection is closed. */
static bool
send_parts(Net *n, Conn *c)
{
	const struct iovec part[] = { { c->head.data, c->head.len },
		                      { (void *)(uintptr_t)c->data, c->n_data },
		                      { (void *)(uintptr_t)"\r\n", c->n_tail } };
	size_t total = c->head.len + c->n_data + c->n_tail;

	if (c->head.failed) { /* a body without its head would be read as another answer */
		conn_close(n, c);
		return false;
	}
	while (c->sent < total) {
		struct iovec rest[3];
		struct msghdr m = { .msg_iov = rest };
		size_t skip = c->sent;
		for (int i = 0; i < 3; i++) {
			size_t gone = skip < part[i].iov_len ? skip : part[i].iov_len;
			skip -= gone;
			if (part[i].iov_len > gone)
				rest[m.msg_iovlen++] =
				    (struct iovec){ (char *)part[i].iov_base + gone,
					            part[i].iov_len - gone };
		}
		ssize_t k = sendmsg(c->fd, &m, MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN) {
			watch(n, c, EPOLLOUT | (c->eof ? 0 : EPOLLRDHUP));
			return false;
		}
		if (k < 0) {
			conn_close(n, c);
			return false;
		}
		c->sent += (size_t)k;
		c->since = n->now;
	}
	strbuf_clear(&c->head);
	c->data = NULL;
	c->n_data = c->n_tail = c->sent = 0;
	return true;
}

/* Take the next part of a stream. False: there is none yet, or the connection is closed. */
static bool
next_piece(Net *n, Conn *c)
{
	bool over, chunked = !c->req->in.http10;

	if (!req_take(c->req, &c->piece, &over) || (c->piece.len == 0 && !over && n->s->ended)) {
		conn_close(n, c);
		return false;
	}
	if (c->piece.len) {
		if (chunked)
			strbuf_printf(&c->head, "%zx\r\n", c->piece.len);
		c->data = c->piece.data;
		c->n_data = c->piece.len;
		c->n_tail = chunked ? 2 : 0;
	} else if (over) {
		if (chunked)
			strbuf_puts(&c->head, "0\r\n\r\n");
		c->last = true;
	} else {
		watch(n, c, EPOLLRDHUP);
		return false;
	}
	return true;
}

/* Begin the answer: its head, and its body if that is complete. */
static void
begin_answer(Net *n, Conn *c)
{
	Req *r = c->req;

	c->close |= r->in.close || n->s->leaving || n->s->draining || (r->stream && r->in.http10);
	req_write_head(r, c->close, &c->head);
	bool body = r->status != 204 && !(r->in.method && !strcmp(r->in.method, "HEAD"));
	if (!r->stream) {
		c->data = !body ? NULL : r->fixed ? r->fixed : r->out.data;
		c->n_data = !body ? 0 : r->fixed ? r->n_fixed : r->out.len;
	}
	c->last = !r->stream || !body;
	enter(n, c, CONN_SEND);
}

static void
end_answer(Net *n, Conn *c)
{
	req_over(c->req, true);
	c->req = NULL;
	c->last = false;
	strbuf_release(&c->head);
	strbuf_release(&c->piece);
	if (c->close && c->eof) {
		conn_close(n, c);
		/* keep reading: closing with unread input would reset the connection and lose the
		 * answer in flight */
	} else if (c->close) {
		shutdown(c->fd, SHUT_WR);
		strbuf_release(&c->in);
		watch(n, c, EPOLLIN);
		enter(n, c, CONN_LINGER);
	} else {
		c->used = true;
		enter(n, c, CONN_IDLE);
	}
}

/* ---- reading ---- */

/* Begin a request; false: out of memory. */
static bool
begin_request(Net *n, Conn *c)
{
	c->seen = 0;
	c->req = req_new(n->s, c, c->client);
	if (c->req)
		enter(n, c, CONN_BODY);
	else
		conn_close(n, c);
	return c->req != NULL;
}

/* Answer without reading the rest of the request, then close. */
static void
answer_early(Conn *c, const HttpError *e)
{
	if (!c->req->ready) /* not yet shared with another thread */
		req_refuse(c->req, e);
	c->close = true;
	c->body.at = BODY_OVER;
}

/* Parse the head of a request, once complete. */
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
		enter(n, c, CONN_HEAD);
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
		/* bytes that the socket does not take are sent before the answer */
		send_parts(n, c);
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
			if (answered &&
			    /* the next request is here already: serve the others first */
			    c->in.len > c->at) {
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
					watch(n, c, EPOLLIN | EPOLLRDHUP);
				return;
			}
			break;
		case CONN_BODY:
			if (!take_body(c)) {
				if (c->eof)
					conn_close(n, c);
				else
					watch(n, c, EPOLLIN | EPOLLRDHUP);
				return;
			}
			enter(n, c, CONN_WORK);
			req_whole(c->req);
			break;
		case CONN_WORK:
			if (!answer_begins(c->req)) {
				if (c->eof || n->s->ended)
					conn_close(n, c);
				else
					watch(n, c, EPOLLRDHUP);
				return;
			}
			begin_answer(n, c);
			break;
		case CONN_SEND:
			if (!send_parts(n, c))
				return;
			if (c->last) {
				end_answer(n, c);
				answered = true;
			} else if (!next_piece(n, c)) {
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
	if (events & (EPOLLERR | EPOLLHUP)) {
		conn_close(n, c);
	} else if (c->events & EPOLLIN) {
		if (!c->again) /* process what was read first, or input accumulates */
			conn_read(n, c);
	} else if (events & EPOLLRDHUP) {
		/* The client closed at least its side before the answer was ready: send what is
		 * ready, drop the rest. */
		c->eof = true;
		if (c->state == CONN_WORK || !c->last)
			conn_close(n, c);
		else
			conn_step(n, c);
	} else {
		conn_step(n, c);
	}
}

/* ---- the clock ---- */

static double
idle_timeout(const Net *n, const Conn *c, bool pressed)
{
	const llmc_serve_options *o = &n->s->opt;

	switch (c->state) {
	/* a new connection must begin its request soon; between requests clients may pause */
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
	case CONN_SEND: /* the answer waits for the client */
		if (c->events & EPOLLOUT) {
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
			} else if (c->state == CONN_SEND && !(c->events & EPOLLOUT) &&
			           t > KEEP_ALIVE_S) {
				/* an SSE comment, so that proxies do not close a stream that is
				 * still queued */
				strbuf_puts(&c->head,
				            c->req->in.http10 ? ":\n\n" : "3\r\n:\n\n\r\n");
				conn_step(n, c);
			}
		}
	listen_again(n, true);
}

/* ---- the thread ---- */

static void
serve_woken(Net *n)
{
	uint64_t count;

	if (read(n->wake_fd, &count, sizeof count) < 0)
		count = 0;
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

/* Cancel everything that runs; clients get an error. */
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
	struct epoll_event ev[EVENTS];
	double checked = 0, end = 0;

	for (;;) {
		Conn *again = n->again;
		n->again = NULL;
		for (Conn *next; again; again = next) {
			next = again->next_again;
			again->again = false;
			conn_step(n, again);
		}
		int k = epoll_wait(n->epoll_fd, ev, EVENTS, n->again ? 0 : 100);
		n->now = clock_now();
		bool woken = false, more = false;
		for (int i = 0; i < k; i++) {
			if (ev[i].data.ptr == n)
				woken = true;
			else if (!ev[i].data.ptr)
				more = true;
			else
				conn_event(n, ev[i].data.ptr, ev[i].events);
		}
		if (woken)
			serve_woken(n);
		if (more) /* after closed connections have left */
			accept_some(n);
		if (n->now - checked >= 0.1) {
			checked = n->now;
			check_clocks(n);
		}
		if (s->closing && !n->aborted)
			abort_all(n);
		free_closed(n);
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
	free_closed(n);
	return NULL;
}

void
net_wake(Server *s)
{
	uint64_t one = 1;

	if (s->net && write(s->net->wake_fd, &one, sizeof one) < 0)
		return; /* the counter is full, so the thread is awake */
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
	n->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = n };
	if (n->epoll_fd < 0 || n->wake_fd < 0 ||
	    epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, n->wake_fd, &e) != 0)
		return error_set(err, LLMC_E_IO, "the HTTP server could not be started: %s",
		                 strerror(errno));
	listen_again(n, true);
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
	if (n->epoll_fd >= 0)
		close(n->epoll_fd);
	if (n->wake_fd >= 0)
		close(n->wake_fd);
	free(n);
	s->net = NULL;
}
