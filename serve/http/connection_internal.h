/* Internals of the HTTP thread, shared by the files connection*.c. */
#ifndef LLMC_SERVE_HTTP_CONNECTION_INTERNAL_H
#define LLMC_SERVE_HTTP_CONNECTION_INTERNAL_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/poller.h"
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
	Conn *prev, *next; /* neighbours in Net.idle or Net.busy, oldest first */
	int fd;            /* -1: closed, freed when the turn is over */
	enum { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_WORK, CONN_SEND, CONN_LINGER } state;
	uint32_t events; /* POLLER_* events that the connection waits for */
	/* time at which the connection entered its state; in SEND: time at which the client last
	 * accepted bytes */
	double since;
	bool eof, close;  /* eof: the client sends no more; close: this answer is the last */
	bool used, again; /* used: the connection has had a request; again: it is in Net.again */
	Conn *next_again;
	struct in6_addr from;
	char client[INET6_ADDRSTRLEN];
	/* received bytes; those before `at` are consumed, those before `seen` hold no complete
	 * head */
	Strbuf in;
	size_t at, seen;
	HttpBody body;
	Req *req;
	/* output: three consecutive parts; `sent` counts bytes of all */
	Strbuf head, piece;
	const char *data;
	size_t n_data, n_tail, sent;
	bool last; /* last: no output follows `data` */
};

typedef struct ConnList {
	Conn *first, *last;
} ConnList;

typedef struct Net {
	Server *s;
	int poller, wake_fd;
	bool listening, has_thread, aborted;
	pthread_t thread;
	ConnList idle, busy; /* idle: IDLE and LINGER; busy: all others */
	Conn *dead;          /* connections closed in this turn; linked by next */
	Conn *again;         /* connections whose next request has arrived; linked by next_again */
	int n;
	char scratch[READ_BYTES];
	double now;
} Net;

/* connection_list.c */
void conn_enter(Net *n, Conn *c, int state);
void conn_watch(Net *n, Conn *c, uint32_t events);
void net_listen_again(Net *n, bool on);
void conn_open(Net *n, int fd, const struct sockaddr_storage *addr);
void conn_close(Net *n, Conn *c);
void net_free_closed(Net *n);
void net_accept(Net *n);

/* connection_answer.c */
/* Send the output. True: all is sent. False: the socket is full, or the connection is closed. */
bool conn_send(Net *n, Conn *c);
/* Take the next part of a stream. False: there is none yet, or the connection is closed. */
bool conn_next_part(Net *n, Conn *c);
/* Begin the answer: its head, and its body if that is complete. */
void conn_begin_answer(Net *n, Conn *c);
void conn_end_answer(Net *n, Conn *c);

#endif
