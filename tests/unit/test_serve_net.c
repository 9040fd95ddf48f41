/* Connections, tested from inside: wake-ups of an answer that grows, and memory that runs out while
 * one is sent. */
#include "serve/http/connection.c"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* An answer may be processed for another reason while its wake-up is still queued, and grow again
 * after that. The request must be in the list only once, and the list must end. */
static void
a_request_is_woken_once(void **state)
{
	static const Route last = { 0 };
	Server s = { .routes = &last, .max_held = 1 << 20 };
	Strbuf piece = { 0 };
	bool over;

	(void)state;
	pthread_mutex_init(&s.lock, NULL);
	pthread_cond_init(&s.work, NULL);
	Req *r = req_new(&s, (Conn *)(void *)&s, "127.0.0.1");
	assert_non_null(r);
	req_stream(r, NULL);
	for (int i = 0; i < 2; i++) {
		do
			assert_true(req_take(r, &piece, &over));
		while (piece.len); /* nothing is left, so the next push must wake the poller */
		req_push(r, "a", 1);
	}
	assert_ptr_equal(s.woken, r);
	assert_null(r->wake_next);
	assert_int_equal(r->refs, 2);
	strbuf_release(&piece);
	s.woken = NULL;
	r->refs = 1;
	r->held = 0;
	req_unref(r);
	pthread_cond_destroy(&s.work);
	pthread_mutex_destroy(&s.lock);
}

/* If memory runs out after a part of the header, no more is sent: otherwise the client would read
 * the body as the next answer. */
static void
an_answer_is_not_sent_without_memory(void **state)
{
	static Net n;
	Server s = { .listen_fd = -1 };
	struct sockaddr_storage addr = { .ss_family = AF_INET };
	int fd[2];
	char said[64];

	(void)state;
	n = (Net){ .s = &s, .poller = poller_open(), .wake_fd = -1, .listening = true };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	conn_open(&n, fd[0], &addr);
	assert_non_null(n.idle.first);
	strbuf_puts(&n.idle.first->head, "HTTP/1.1 200");
	n.idle.first->head.failed = true;
	assert_false(conn_send(&n, n.idle.first));
	assert_null(n.idle.first);
	net_free_closed(&n);
	assert_int_equal(read(fd[1], said, sizeof said), 0);
	close(fd[1]);
	close(n.poller);
}

/* A child process has copies of all descriptors until exec, so close() here does not remove them
 * from the poller. A closed connection must not report events. */
static void
a_closed_connection_has_no_events(void **state)
{
	static Net n;
	Server s = { .listen_fd = -1 };
	struct sockaddr_storage addr = { .ss_family = AF_INET };
	PollerEvent e;
	int fd[2];

	(void)state;
	n = (Net){ .s = &s, .poller = poller_open(), .wake_fd = -1, .listening = true };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	int copy = dup(fd[0]);
	conn_open(&n, fd[0], &addr);
	close(fd[1]);
	assert_int_equal(poller_wait(n.poller, &e, 1, 0), 1);
	conn_close(&n, n.idle.first);
	net_free_closed(&n);
	assert_int_equal(poller_wait(n.poller, &e, 1, 0), 0);
	close(copy);
	close(n.poller);
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_request_is_woken_once),
		                            cmocka_unit_test(an_answer_is_not_sent_without_memory),
		                            cmocka_unit_test(a_closed_connection_has_no_events) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
