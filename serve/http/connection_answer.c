/* Sending an answer in parts: see serve/http/connection.c. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "serve/http/connection_internal.h"
#include "serve/http/request.h"

bool
conn_send(Net *n, Conn *c)
{
	const struct iovec part[] = { { c->head.data, c->head.len },
		                      { (void *)(uintptr_t)c->data, c->n_data },
		                      { (void *)(uintptr_t)"\r\n", c->n_tail } };
	size_t total = c->head.len + c->n_data + c->n_tail;

	/* close the connection: the client would read a body without a head as another answer */
	if (c->head.failed) {
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
			conn_watch(n, c, POLLER_WRITE | (c->eof ? 0 : POLLER_ENDED));
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

bool
conn_next_part(Net *n, Conn *c)
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
		conn_watch(n, c, POLLER_ENDED);
		return false;
	}
	return true;
}

void
conn_begin_answer(Net *n, Conn *c)
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
	conn_enter(n, c, CONN_SEND);
}

void
conn_end_answer(Net *n, Conn *c)
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
		conn_watch(n, c, POLLER_READ);
		conn_enter(n, c, CONN_LINGER);
	} else {
		c->used = true;
		conn_enter(n, c, CONN_IDLE);
	}
}
