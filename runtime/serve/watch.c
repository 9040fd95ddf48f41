/* Clients that have gone while their answer is being made, and requests that arrive too slowly.
 *
 * libmicrohttpd does not look at suspended connections and measures idleness only from byte to byte; here whole
 * headers and bodies have a deadline, and poll() tells when the other side has closed. Descriptors are those of
 * connections in the list: they leave it before they are closed. */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "runtime/serve/serve.h"

enum { BATCH = 256 };

static bool
too_slow(const Server *s, const Conn *c, double now)
{
	double t = now - c->since;

	switch (c->state) {
	case CONN_IDLE: /* the first request must begin at once, later ones may take their time */
		return t > (c->n_requests ? s->opt.idle_timeout_s : s->opt.header_timeout_s);
	case CONN_HEADERS:
		return t > s->opt.header_timeout_s;
	case CONN_BODY:
		return t > s->opt.body_timeout_s;
	case CONN_WORK:
		return false;
	}
	return false;
}

/* Under the lock: what one poll() found. The requests get a reference each, to be woken later. */
static int
look(struct pollfd *fd, Req **who, int n, Req **gone, int n_gone)
{
	if (n == 0 || poll(fd, (nfds_t)n, 0) <= 0)
		return n_gone;
	for (int i = 0; i < n && n_gone < BATCH; i++)
		if (fd[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) {
			who[i]->gone = true;
			gen_abort(who[i]);
			atomic_fetch_add(&who[i]->refs, 1);
			gone[n_gone++] = who[i];
		}
	return n_gone;
}

void
watch_clients(Server *s, double now)
{
	struct pollfd fd[BATCH];
	Req *who[BATCH], *wake[BATCH];
	int n = 0, n_wake = 0;

	pthread_mutex_lock(&s->lock);
	for (Conn *c = s->conns; c; c = c->next) {
		if (too_slow(s, c, now)) {
			shutdown(c->fd, SHUT_RDWR);
			c->since = now; /* once is enough */
		}
		Req *r = c->req;
		if (!r || !r->suspended || n_wake == BATCH)
			continue;
		if (r->stream && r->ready && now - r->t_out > 15) {
			/* a comment keeps proxies from closing a stream that is still in the queue */
			strbuf_puts(&r->out, ":\n\n");
			r->t_out = now;
			atomic_fetch_add(&r->refs, 1);
			wake[n_wake++] = r;
			continue;
		}
		fd[n] = (struct pollfd){ .fd = c->fd, .events = POLLRDHUP };
		who[n++] = r;
		if (n == BATCH) {
			n_wake = look(fd, who, n, wake, n_wake);
			n = 0;
		}
	}
	n_wake = look(fd, who, n, wake, n_wake);
	pthread_mutex_unlock(&s->lock);
	for (int i = 0; i < n_wake; i++) {
		http_wake(wake[i]);
		req_unref(wake[i]);
	}
}
