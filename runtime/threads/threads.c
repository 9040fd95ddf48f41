/* A pool of threads, with two ways to run a function on it: threads_run runs each part on the
 * thread with its number and allows barriers; threads_deal runs stages whose parts may run on any
 * thread.
 *
 * Dealing: the word `open` holds the number of the stage whose parts may be claimed. A thread first
 * claims the part of its own number. When that is done and other threads are late, it claims their
 * parts. The thread that completes the last part opens the next stage. So a thread that was
 * preempted, or that has not woken up yet, delays a stage only while it is inside a part.
 *
 * Waiting: a spin bounded by time, then sleep on a futex. sched_yield is not used, because it gives
 * up the processor for a whole time slice (4 ms at 250 Hz), even to a process of the lowest
 * priority. With more threads than processors nothing spins. Wakers make a system call only if a
 * thread sleeps.
 *
 * If the pool is as large as the machine, each thread is pinned to its own core. Threads of a
 * smaller pool may move between cores but never share one through hyper-threading. A larger pool is
 * left to the OS scheduler. The caller's thread takes part only during threads_run or threads_deal,
 * and gets its own affinity mask back. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/align.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/thread.h"
#include "runtime/threads/threads.h"

/* Word of a stage: the stage's number, shifted, plus flags. SHARED: any thread may claim any part.
 * CLOSE: the pool is closing. */
enum { SHARED = 1, CLOSE = 2, NUMBER = 4 };
enum {
	SPIN_US = 200,   /* longest spin before sleep; LLMC_SPIN_US overrides it */
	SPIN_POLLS = 32, /* reads of the word between two reads of the clock */
	LATE_US = 5,     /* if a part is unclaimed for this long, another thread takes it */
};

/* Monotonic word; its low half is the futex. Each gate has its own cache lines, so that waiters of
 * one gate do not slow down writers of the other. */
typedef struct Gate {
	_Alignas(64) atomic_ullong turn;
	atomic_int asleep; /* a thread sleeps, or is about to */
} Gate;

/* Per thread of the pool */
typedef struct Worker {
	_Alignas(64)
	    atomic_ullong claimed; /* last stage in which the part of this number was claimed */
	Threads *pool;
	pthread_t thread;
	int part;
	/* the last stage had late parts: in this stage look for late parts without delay */
	bool alone;
} Worker;

struct Threads {
	int n, n_started;
	double spin,
	    late; /* seconds: longest spin before sleep; delay before late parts are taken */
	bool pin; /* affinity masks are in use */
	cpu_set_t caller; /* mask of part 0 while it runs */
	/* Current job. The caller writes these fields before the first stage opens; threads read
	 * them after they have claimed a part. */
	threads_fn *fn;
	threads_deal_fn *deal;
	void *user;
	uint64_t first, last; /* numbers of its stages */
	Gate open, over, barrier;
	/* used by the caller's thread only */
	TeamKind kind[DEAL_KINDS];
	bool alone;                      /* the last job ran on the caller alone */
	double waited;                   /* seconds, in this job */
	int64_t n_alone, n_own;          /* jobs run alone; parts of this job that the caller ran */
	_Alignas(64) atomic_int left;    /* unfinished parts of the open stage */
	_Alignas(64) atomic_int arrived; /* threads at threads_barrier */
	_Alignas(64) atomic_llong n_sleeps, n_taken;
	Worker worker[]; /* [n]; the first is the caller */
};

/* ---- waiting ---- */

static void
gate_set(Gate *g, uint64_t turn)
{
	atomic_store(&g->turn, turn);
	/* Sequentially consistent with gate_wait: either the waiter sees the new value, or this
	 * thread sees that it sleeps. Clearing the flag saves system calls in later stages while
	 * the thread is awake but has no processor yet. */
	if (atomic_load(&g->asleep) && atomic_exchange(&g->asleep, 0))
		futex_wake(&g->turn, false);
}

bool
threads_spin_for(atomic_ullong *word, uint64_t least, double seconds, double *waited)
{
	double since = 0, now = 0;

	for (unsigned i = 1; seconds > 0; i++) {
		if (atomic_load_explicit(word, memory_order_acquire) >= least)
			break;
		pause_cpu();
		if (i % SPIN_POLLS)
			continue;
		now = clock_now();
		since = since == 0 ? now : since;
		if (now - since > seconds)
			break;
	}
	if (waited)
		*waited += now - since;
	return atomic_load_explicit(word, memory_order_acquire) >= least;
}

/* Wait until the gate's value differs from `turn`; returns the new value. */
static uint64_t
gate_wait(Threads *t, Gate *g, uint64_t turn, double *waited)
{
	uint64_t now;

	if (threads_spin_for(&g->turn, turn + 1, t->spin, waited))
		return atomic_load_explicit(&g->turn, memory_order_acquire);
	double since = waited ? clock_now() : 0;
	while ((now = atomic_load(&g->turn)) == turn) {
		atomic_store(&g->asleep, 1);
		if (atomic_load(&g->turn) != turn)
			continue;
		atomic_fetch_add_explicit(&t->n_sleeps, 1, memory_order_relaxed);
		(void)futex_wait(&g->turn, (uint32_t)turn, false, 0);
	}
	if (waited)
		*waited += clock_now() - since;
	return now;
}

/* ---- stages and parts ---- */

/* Each part of a stage is claimed once. So a part is free in this stage exactly if its last claim
 * was in the previous stage. After a successful claim, neither the stage nor the job can end before
 * the part is done. */
static bool
claim(Threads *t, uint64_t turn, int part)
{
	unsigned long long before = turn / NUMBER - 1;
	atomic_ullong *claimed = &t->worker[part].claimed;

	return atomic_load_explicit(claimed, memory_order_relaxed) == before &&
	       atomic_compare_exchange_strong(claimed, &before, before + 1);
}

static void
run_part(Threads *t, uint64_t turn, int part)
{
	uint64_t number = turn / NUMBER;

	if (turn & SHARED)
		t->deal(t->user, (int)(number - t->first), part, t->n);
	else
		t->fn(t->user, part, t->n);
	if (atomic_fetch_sub(&t->left, 1) > 1)
		return;
	if (number == t->last) {
		gate_set(&t->over, number); /* returns control of the job to the caller */
	} else {
		atomic_store_explicit(&t->left, t->n, memory_order_relaxed);
		gate_set(&t->open, turn + NUMBER);
	}
}

/* Run the thread's own part, then parts that no other thread has begun. */
static void
run_parts(Worker *w, uint64_t turn)
{
	Threads *t = w->pool;

	if (claim(t, turn, w->part)) {
		run_part(t, turn, w->part);
		if (w->part == 0)
			t->n_own++;
	}
	if (!(turn & SHARED) || (!w->alone && threads_spin_for(&t->open.turn, turn + 1, t->late,
	                                                       w->part ? NULL : &t->waited)))
		return;
	w->alone = false;
	for (int i = 1;
	     i < t->n && atomic_load_explicit(&t->open.turn, memory_order_relaxed) == turn; i++) {
		int part = (w->part + i) % t->n;
		if (!claim(t, turn, part))
			continue;
		w->alone = true;
		atomic_fetch_add_explicit(&t->n_taken, 1, memory_order_relaxed);
		if (w->part == 0)
			t->n_own++;
		run_part(t, turn, part);
	}
}

static void *
worker_main(void *arg)
{
	Worker *w = arg;

	for (uint64_t turn = 0;;) {
		turn = gate_wait(w->pool, &w->pool->open, turn, NULL);
		if (turn & CLOSE)
			return NULL;
		run_parts(w, turn);
	}
}

/* Run a job of n_stages stages and take part in it. */
static void
run_job(Threads *t, int n_stages, unsigned flags)
{
	Worker *w = &t->worker[0];
	cpu_set_t own;
	bool moved = t->pin && pthread_getaffinity_np(pthread_self(), sizeof own, &own) == 0 &&
	             pthread_setaffinity_np(pthread_self(), sizeof t->caller, &t->caller) == 0;

	t->first = t->last + 1;
	t->last += (uint64_t)n_stages;
	atomic_store_explicit(&t->left, t->n, memory_order_relaxed);
	uint64_t turn = t->first * NUMBER | flags;
	gate_set(&t->open, turn);
	for (run_parts(w, turn); turn / NUMBER != t->last; run_parts(w, turn))
		turn = gate_wait(t, &t->open, turn, &t->waited);
	gate_wait(t, &t->over, t->first - 1, &t->waited);
	if (moved)
		(void)pthread_setaffinity_np(pthread_self(), sizeof own, &own);
}

void
threads_run(Threads *t, threads_fn *fn, void *user)
{
	if (t->n == 1) {
		fn(user, 0, 1);
		return;
	}
	t->fn = fn;
	t->user = user;
	run_job(t, 1, 0);
}

/* Seconds that the caller waited in the last job, minus the time it would have needed to run the
 * other threads' parts itself. */
static double
held_up(const Threads *t, int n_stages, double seconds)
{
	double all = (double)n_stages * t->n, own = t->n_own > 0 ? (double)t->n_own : 1;

	return t->waited - (seconds - t->waited) * (all - own) / own;
}

void
threads_deal(Threads *t, int kind, int n_stages, threads_deal_fn *fn, void *user)
{
	if (n_stages < 1)
		return;
	TeamKind *k = t->n > 1 && kind >= 0 ? &t->kind[kind] : NULL;
	double begin = k ? clock_now() : 0;
	if (k)
		t->alone = team_alone(k, begin);
	if (t->n == 1 || (kind != DEAL_ALL && t->alone)) {
		for (int i = 0; i < n_stages; i++)
			fn(user, i, 0, 1);
		t->n_alone++;
	} else {
		t->deal = fn;
		t->user = user;
		t->waited = 0;
		t->n_own = 0;
		run_job(t, n_stages, SHARED);
	}
	if (!k)
		return;
	double end = clock_now();
	team_ran(k, end, end - begin, t->alone ? 0 : held_up(t, n_stages, end - begin));
}

void
threads_barrier(Threads *t)
{
	if (t->n == 1)
		return;
	uint64_t turn = atomic_load(&t->barrier.turn);
	if (atomic_fetch_add(&t->arrived, 1) == t->n - 1) {
		atomic_store(&t->arrived, 0);
		gate_set(&t->barrier, turn + 1);
	} else {
		gate_wait(t, &t->barrier, turn, NULL);
	}
}

/* Compute the affinity masks of the parts: mask[0] is the caller's. */
static bool
place(const Topology *top, int n, cpu_set_t *mask)
{
	if (n > top->n_core || top->n_core < 2)
		return false;
	/* the caller stays on its current core */
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

/* Returns 0 or an error number. */
static int
start_worker(Threads *t, int part, const cpu_set_t *mask)
{
	pthread_attr_t attr;
	Worker *w = &t->worker[part];

	int rc = pthread_attr_init(&attr);
	if (rc)
		return rc;
	if (mask)
		(void)pthread_attr_setaffinity_np(&attr, sizeof *mask, mask);
	rc = thread_create(&w->thread, &attr, worker_main, w);
	/* the mask has become invalid meanwhile: start the thread without one */
	if (rc == EINVAL && mask) {
		pthread_attr_destroy(&attr);
		pthread_attr_init(&attr);
		rc = thread_create(&w->thread, &attr, worker_main, w);
	}
	pthread_attr_destroy(&attr);
	return rc;
}

double
threads_spin(const Topology *top, int n)
{
	const char *us = getenv("LLMC_SPIN_US");

	/* do not spin with more threads than processors: a spinning thread would keep another
	 * thread of the pool from running */
	if (n > top->n_allowed || (top->quota > 0 && n > top->quota + 0.01))
		return 0;
	double spin = us && *us ? strtod(us, NULL) : SPIN_US;
	return spin > 0 && spin < 1e6 ? spin * 1e-6 : 0;
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
		return error_set(err, LLMC_E_RANGE, "cannot start %d threads: 1 .. %d are possible",
		                 n, TOPOLOGY_MAX);
	size_t bytes = ALIGN_UP(sizeof(Threads) + (size_t)n * sizeof(Worker), 64);
	if (posix_memalign(&memory, 64, bytes))
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d threads", n);
	Threads *t = memset(memory, 0, bytes);
	t->n = t->n_started = 1;
	for (int i = 0; i < n; i++) {
		t->worker[i].pool = t;
		t->worker[i].part = i;
	}
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
	t->spin = threads_spin(&top, n);
	t->late = t->spin > 0 ? LATE_US * 1e-6 : 0;
	for (; t->n_started < n; t->n_started++) {
		int rc = start_worker(t, t->n_started, t->pin ? &mask[t->n_started] : NULL);
		if (rc) {
			status = error_set(err, LLMC_E_MEMORY, "cannot start thread %d of %d: %s",
			                   t->n_started + 1, n, strerror(rc));
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
	if (t->n_started > 1)
		gate_set(&t->open, (t->last + 1) * NUMBER | CLOSE);
	for (int i = 1; i < t->n_started; i++)
		pthread_join(t->worker[i].thread, NULL);
	free(t);
}

int
threads_count(const Threads *t)
{
	return t->n;
}

ThreadCounts
threads_counts(const Threads *t)
{
	return (ThreadCounts){ .sleeps = atomic_load(&t->n_sleeps),
		               .taken = atomic_load(&t->n_taken),
		               .alone = t->n_alone };
}
