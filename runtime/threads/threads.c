/* A pool of threads that run one function side by side, and a barrier between its stages.
 *
 * Waiting goes in three stages: a short spin (the others are nearly there), a few yields (someone else wants this
 * processor, perhaps the very thread that is waited for), then sleep on a futex. So nothing collapses when there are
 * more threads than processors, and an idle pool costs nothing.
 *
 * When the pool is as large as the machine each thread has its own core; a smaller pool may move between cores but
 * never shares one through hyper-threading; a larger one is left to the scheduler. The caller's thread takes part only
 * while threads_run runs, and gets its own mask back. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/threads/threads.h"

enum { YIELDS = 64 };

/* One line each: the waiters of one must not slow the writers of the other. */
typedef struct Gate {
	_Alignas(64) atomic_uint turn;
	_Alignas(64) atomic_int sleepers;
} Gate;

typedef struct Worker {
	Threads  *pool;
	pthread_t thread;
	int       part;
} Worker;

struct Threads {
	int         n, n_started;
	int         spins;     /* pauses before yielding */
	bool        pin;       /* masks below are in force */
	cpu_set_t   caller;    /* mask of part 0 while it runs */
	threads_fn *fn;        /* NULL: end */
	void       *user;
	Gate        start, meet;
	_Alignas(64) atomic_int arrived;
	Worker      worker[];  /* [n], the first unused */
};

static void
gate_open(Gate *g)
{
	atomic_fetch_add(&g->turn, 1);
	/* sequentially consistent against gate_wait: either it sees the new turn or we see the sleeper */
	if (atomic_load(&g->sleepers) > 0)
		syscall(SYS_futex, &g->turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void
gate_wait(Gate *g, unsigned turn, int spins)
{
	for (int i = 0; i < spins; i++) {
		if (atomic_load_explicit(&g->turn, memory_order_acquire) != turn)
			return;
		pause_cpu();
	}
	for (int i = 0; i < YIELDS; i++) {
		if (atomic_load_explicit(&g->turn, memory_order_acquire) != turn)
			return;
		sched_yield();
	}
	atomic_fetch_add(&g->sleepers, 1);
	while (atomic_load(&g->turn) == turn)
		syscall(SYS_futex, &g->turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
	atomic_fetch_sub(&g->sleepers, 1);
}

void
threads_barrier(Threads *t)
{
	if (t->n == 1)
		return;
	unsigned turn = atomic_load(&t->meet.turn);
	if (atomic_fetch_add(&t->arrived, 1) == t->n - 1) {
		atomic_store(&t->arrived, 0);
		gate_open(&t->meet);
	} else {
		gate_wait(&t->meet, turn, t->spins);
	}
}

static void *
worker_main(void *arg)
{
	Worker *w = arg;
	Threads *t = w->pool;

	for (unsigned turn = 0;; turn++) {
		gate_wait(&t->start, turn, t->spins);
		if (!t->fn)
			return NULL;
		t->fn(t->user, w->part, t->n);
		threads_barrier(t);
	}
}

void
threads_run(Threads *t, threads_fn *fn, void *user)
{
	cpu_set_t own;

	if (t->n == 1) {
		fn(user, 0, 1);
		return;
	}
	bool moved = t->pin && pthread_getaffinity_np(pthread_self(), sizeof own, &own) == 0 &&
	             pthread_setaffinity_np(pthread_self(), sizeof t->caller, &t->caller) == 0;
	t->fn = fn;
	t->user = user;
	gate_open(&t->start);
	fn(user, 0, t->n);
	threads_barrier(t);
	if (moved)
		(void)pthread_setaffinity_np(pthread_self(), sizeof own, &own);
}

/* Masks of the parts: mask[0] is the caller's. */
static bool
place(const Topology *top, int n, cpu_set_t *mask)
{
	if (n > top->n_core || top->n_core < 2)
		return false;
	/* the caller keeps the core it is on */
	int here = sched_getcpu(), first = 0;
	for (int i = 0; i < top->n_core; i++)
		if (top->core[i] == here)
			first = i;
	for (int part = 0; part < n; part++) {
		CPU_ZERO(&mask[part]);
		for (int i = 0; i < top->n_core; i++)
			if (n < top->n_core || (i - first + n) % n == part)
				CPU_SET(top->core[i], &mask[part]);
	}
	return true;
}

/* 0, or an error number */
static int
start_worker(Threads *t, int part, const cpu_set_t *mask)
{
	pthread_attr_t attr;
	sigset_t all, was;
	Worker *w = &t->worker[part];

	*w = (Worker){ .pool = t, .part = part };
	int rc = pthread_attr_init(&attr);
	if (rc)
		return rc;
	/* the host program's signals go to its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	if (mask)
		(void)pthread_attr_setaffinity_np(&attr, sizeof *mask, mask);
	rc = pthread_create(&w->thread, &attr, worker_main, w);
	if (rc == EINVAL && mask) { /* the mask became impossible meanwhile: run without */
		pthread_attr_destroy(&attr);
		pthread_attr_init(&attr);
		rc = pthread_create(&w->thread, &attr, worker_main, w);
	}
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	pthread_attr_destroy(&attr);
	return rc;
}

llmc_status
threads_open(int n, Threads **out, llmc_error *err)
{
	const char *pin = getenv("LLMC_PIN");
	Topology top;
	llmc_status status = LLMC_OK;
	cpu_set_t *mask = NULL;
	void *memory;

	*out = NULL;
	if (n < 1 || n > TOPOLOGY_MAX)
		return error_set(err, LLMC_E_RANGE, "%d threads were asked for; 1 .. %d are possible", n, TOPOLOGY_MAX);
	size_t bytes = (sizeof(Threads) + (size_t)n * sizeof(Worker) + 63) & ~(size_t)63;
	if (posix_memalign(&memory, 64, bytes))
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d threads", n);
	Threads *t = memset(memory, 0, bytes);
	t->n = t->n_started = 1;
	if (n == 1) {
		*out = t;
		return LLMC_OK;
	}
	t->n = n;
	topology_here(&top);
	if (!(mask = calloc((size_t)n, sizeof *mask))) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory for %d threads", n);
		goto fail;
	}
	t->pin = !(pin && !strcmp(pin, "0")) && place(&top, n, mask);
	t->caller = mask[0];
	/* about 20 us; with more threads than processors whoever waits had better make room at once */
	t->spins = n > top.n_allowed || (top.quota > 0 && n > top.quota + 0.01) ? 0 : 1000;
	for (; t->n_started < n; t->n_started++) {
		int rc = start_worker(t, t->n_started, t->pin ? &mask[t->n_started] : NULL);
		if (rc) {
			status = error_set(err, LLMC_E_MEMORY, "cannot start thread %d of %d: %s", t->n_started + 1, n, strerror(rc));
			goto fail;
		}
	}
	free(mask);
	*out = t;
	return LLMC_OK;
fail:
	free(mask);
	threads_close(t);
	return status;
}

void
threads_close(Threads *t)
{
	if (!t)
		return;
	t->fn = NULL;
	if (t->n_started > 1)
		gate_open(&t->start);
	for (int i = 1; i < t->n_started; i++)
		pthread_join(t->worker[i].thread, NULL);
	free(t);
}

int
threads_count(const Threads *t)
{
	return t->n;
}
