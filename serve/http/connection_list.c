/* Lists connections, accepts and closes them: see serve/http/connection.c. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/poller.h"
#include "serve/http/connection_internal.h"
#include "serve/http/request.h"

static void
conn_list_remove(ConnList *l, Conn *c)
{
	*(c->prev ? &c->prev->next : &l->first) = c->next;
	*(c->next ? &c->next->prev : &l->last) = c->prev;
}

static void
conn_list_append(ConnList *l, Conn *c)
{
	c->prev = l->last;
	c->next = NULL;
	*(l->last ? &l->last->next : &l->first) = c;
	l->last = c;
}

static ConnList *
conn_list_of(Net *n, const Conn *c)
{
	return c->state == CONN_IDLE || c->state == CONN_LINGER ? &n->idle : &n->busy;
}

void
conn_enter(Net *n, Conn *c, int state)
{
	conn_list_remove(conn_list_of(n, c), c);
	c->state = state;
	c->since = n->now;
	conn_list_append(conn_list_of(n, c), c);
}

void
conn_watch(Net *n, Conn *c, uint32_t events)
{
	if (events != c->events)
		(void)poller_change(n->poller, c->fd, events, c);
	c->events = events;
}

void
net_listen_again(Net *n, bool on)
{
	if (on == n->listening || (on && n->s->draining))
		return;
	n->listening = on;
	if (on)
		(void)poller_add(n->poller, n->s->listen_fd, POLLER_READ, NULL);
	else
		poller_remove(n->poller, n->s->listen_fd);
}

void
conn_close(Net *n, Conn *c)
{
	if (c->fd < 0)
		return;
	conn_list_remove(conn_list_of(n, c), c);
	if (c->req)
		req_over(c->req, false);
	c->req = NULL;
	poller_remove(n->poller, c->fd);
	close(c->fd);
	c->fd = -1;
	c->next = n->dead;
	n->dead = c;
	n->s->n_conns = --n->n;
	net_listen_again(n, true);
}

void
net_free_closed(Net *n)
{
	Conn *c = n->dead, *next;

	n->dead = NULL;
	for (; c; c = next) {
		next = c->next;
		/* the list Net.again still refers to it: free it after that list has been
		 * processed */
		if (c->again) {
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

/* Close a connection to make a slot free. Choose the connection that has been idle longest, unless
 * it was opened just now: otherwise a flood of new connections would evict clients that are about
 * to send. If none is idle, close one that has been sending its request for more than a second. */
static bool
net_make_room(Net *n)
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
net_too_many_from(const Net *n, const struct in6_addr *from)
{
	int most = n->s->opt.max_connections_per_client;

	for (const Conn *c = n->idle.first; c && most; c = c->next)
		most -= !memcmp(&c->from, from, sizeof *from);
	for (const Conn *c = n->busy.first; c && most; c = c->next)
		most -= !memcmp(&c->from, from, sizeof *from);
	return n->s->opt.max_connections_per_client && most <= 0;
}

void
conn_open(Net *n, int fd, const struct sockaddr_storage *addr)
{
	Conn *c = calloc(1, sizeof *c);
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
	if (!c || net_too_many_from(n, &c->from) ||
	    !poller_add(n->poller, fd, POLLER_READ | POLLER_ENDED, c)) {
		close(fd);
		free(c);
		return;
	}
	/* send each token at once as a packet of its own */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	c->fd = fd;
	c->events = POLLER_READ | POLLER_ENDED;
	c->since = n->now;
	conn_list_append(&n->idle, c);
	n->s->n_conns = ++n->n;
}

void
net_accept(Net *n)
{
	struct sockaddr_storage addr;

	for (int i = 0; i < 16; i++) {
		if (n->n >= n->s->opt.max_connections) {
			if (i == 0 &&
			    !net_make_room(n)) /* at least one connection waits to be accepted */
				net_listen_again(n, false);
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
			                       !net_make_room(n)))
				net_listen_again(n, false);
			return;
		}
		conn_open(n, fd, &addr);
	}
}
