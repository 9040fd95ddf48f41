/* Pollers, wakeups, futexes and random bytes: what a port to another system replaces. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/futex.h"
#include "base/poller.h"
#include "base/random.h"
#include "base/wakeup.h"

static void
a_poller_reports_requested_events(void **state)
{
	int p = poller_open(), fd[2], data;
	PollerEvent e[2];

	(void)state;
	assert_true(p >= 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(poller_wait(p, e, 2, 0), 0);
	assert_true(poller_add(p, fd[0], POLLER_READ | POLLER_ENDED, &data));
	assert_false(poller_add(p, fd[0], POLLER_READ, &data)); /* is there already */
	assert_int_equal(poller_wait(p, e, 2, 0), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	assert_int_equal(poller_wait(p, e, 2, -1), 1);
	assert_int_equal(e[0].events, POLLER_READ);
	assert_ptr_equal(e[0].data, &data);

	assert_true(poller_change(p, fd[0], POLLER_WRITE, NULL));
	assert_int_equal(poller_wait(p, e, 2, -1), 1);
	assert_int_equal(e[0].events, POLLER_WRITE);
	assert_null(e[0].data);

	assert_true(poller_change(p, fd[0], POLLER_READ | POLLER_ENDED, &data));
	assert_int_equal(shutdown(fd[1], SHUT_WR), 0);
	assert_int_equal(poller_wait(p, e, 2, -1), 1);
	assert_int_equal(e[0].events, POLLER_READ | POLLER_ENDED);

	assert_true(poller_change(p, fd[0], 0, &data));
	close(fd[1]);
	assert_int_equal(poller_wait(p, e, 2, -1), 1);
	assert_int_equal(e[0].events, POLLER_FAILED); /* though it was not requested */
	poller_remove(p, fd[0]);
	assert_int_equal(poller_wait(p, e, 2, 0), 0);
	close(fd[0]);
	close(p);
	assert_false(poller_add(p, 0, POLLER_READ, NULL));
}

static void *
add_two(void *fd)
{
	wakeup_add(*(int *)fd, 1);
	wakeup_add(*(int *)fd, (uint64_t)1 << 32);
	return NULL;
}

static void
a_wakeup_counts(void **state)
{
	int p = poller_open(), fd = wakeup_open();
	PollerEvent e;
	pthread_t t;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(wakeup_take(fd), 0); /* does not wait */
	assert_true(poller_add(p, fd, POLLER_READ, NULL));
	assert_int_equal(pthread_create(&t, NULL, add_two, &fd), 0);
	assert_int_equal(poller_wait(p, &e, 1, -1), 1);
	pthread_join(t, NULL);
	assert_int_equal(wakeup_take(fd), ((uint64_t)1 << 32) + 1);
	assert_int_equal(poller_wait(p, &e, 1, 0), 0);
	wakeup_add(fd, UINT64_MAX - 1);
	wakeup_add(fd, 5); /* full: it neither waits nor wraps */
	assert_true(wakeup_take(fd) == UINT64_MAX - 1);
	close(fd);
	close(p);
}

typedef struct Turn {
	atomic_ullong word, answer;
	bool shared;
} Turn;

/* Wait for 1, then for 2; answer each. */
static void *
follow(void *arg)
{
	Turn *t = arg;

	for (unsigned k = 1; k <= 2; k++) {
		while (atomic_load(&t->word) < k)
			assert_true(futex_wait(&t->word, k - 1, t->shared, 0));
		atomic_store(&t->answer, k);
		futex_wake(&t->answer, t->shared);
	}
	return NULL;
}

static void
lead(Turn *t)
{
	for (unsigned k = 1; k <= 2; k++) {
		atomic_store(&t->word, k);
		futex_wake(&t->word, t->shared);
		while (atomic_load(&t->answer) < k)
			assert_true(futex_wait(&t->answer, k - 1, t->shared, 0));
	}
}

static void
threads_and_processes_sleep_on_a_word(void **state)
{
	Turn own = { .shared = false };
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, follow, &own), 0);
	lead(&own);
	pthread_join(thread, NULL);

	Turn *both =
	    mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(both != MAP_FAILED);
	both->shared = true;
	pid_t child = fork();
	if (child == 0) {
		follow(both);
		_exit(0);
	}
	lead(both);
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	munmap(both, sizeof *both);

	/* another value: it does not sleep; the same one: until the time limit */
	assert_true(futex_wait(&own.word, 1, false, 0));
	while (futex_wait(&own.word, 2, false, 0.01))
		;
}

static void
random_bytes_differ(void **state)
{
	unsigned char a[256], b[256];
	char hex[2 * 70 + 2];

	(void)state;
	random_bytes(a, sizeof a);
	random_bytes(b, sizeof b);
	assert_memory_not_equal(a, b, sizeof a);
	assert_true(random_u64() != random_u64());
	memset(hex, 'x', sizeof hex);
	random_hex(hex, 70);
	assert_int_equal(strspn(hex, "0123456789abcdef"), 140);
	assert_int_equal(hex[140], 0);
	assert_int_equal(hex[141], 'x');
	assert_memory_not_equal(hex, hex + 70, 70);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_poller_reports_requested_events),
		cmocka_unit_test(a_wakeup_counts),
		cmocka_unit_test(threads_and_processes_sleep_on_a_word),
		cmocka_unit_test(random_bytes_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
