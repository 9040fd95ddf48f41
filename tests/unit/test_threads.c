/* The thread pool: every part runs; barriers and stages order memory; nothing hangs with more
 * threads than processors or with a thread that is preempted for long; the caller keeps its
 * affinity. Also tests the choice between the team and the caller alone, with given times, and the
 * selection of processors, with stand-ins for /sys and /proc. */
#include <pthread.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/cpu/cpu.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/waiting.h"

/* TSan delivers signals when a thread calls an intercepted function, which a waiting thread does
 * not do. */
#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#define HAS_TSAN __has_feature(thread_sanitizer)
#else
#define HAS_TSAN 0
#endif

enum { STAGES = 200, MOST = 9 };

typedef struct Sum {
	Threads *pool;
	int64_t cell[MOST * 16]; /* plain memory: only the barriers order it */
	int64_t bad;
	int seen[MOST];
} Sum;

/* In each stage every part adds its neighbour's cell of the previous stage to its own. */
static void
stages(void *user, int part, int n)
{
	Sum *s = user;

	s->seen[part]++;
	for (int i = 0; i < STAGES; i++) {
		int64_t other = s->cell[(part + 1) % n * 16];
		threads_barrier(s->pool);
		if (other != s->cell[part * 16])
			s->bad++;
		s->cell[part * 16] = other + 1;
		threads_barrier(s->pool);
	}
}

static void
barriers_order_memory(void **state)
{
	(void)state;
	for (int n = 1; n <= MOST; n += n < 4 ? 1 : 5) {
		Sum s = { 0 };
		assert_int_equal(threads_open(n, &s.pool, NULL), LLMC_OK);
		assert_int_equal(threads_count(s.pool), n);
		for (int run = 0; run < 5; run++)
			threads_run(s.pool, stages, &s);
		for (int i = 0; i < n; i++) {
			assert_int_equal(s.cell[i * 16], 5 * STAGES);
			assert_int_equal(s.seen[i], 5);
		}
		assert_int_equal(s.bad, 0);
		threads_close(s.pool);
	}
}

static void
nothing(void *user, int part, int n)
{
	(void)part, (void)n;
	atomic_fetch_add((atomic_int *)user, 1);
}

/* In each stage every part computes its own cell of one array from its neighbour's in the other
 * array. */
typedef struct Deal {
	int64_t cell[2][MOST * 16]; /* plain memory: only the stages order it */
	atomic_int runs[STAGES][MOST];
	int from, parts;
} Deal;

static void
dealt(void *user, int stage, int part, int n)
{
	Deal *d = user;
	int64_t *now = d->cell[stage % 2], *before = d->cell[(stage + 1) % 2];

	atomic_fetch_add(&d->runs[stage][part], 1);
	if (part == 0)
		d->parts = n;
	if (n > 1)
		now[part * 16] = before[(part + 1) % n * 16] + 1;
}

static void
check_deal(const Deal *d, int n, int stages_)
{
	for (int i = 0; i < STAGES; i++)
		for (int part = 0; part < MOST; part++)
			assert_int_equal(d->runs[i][part], i < stages_ && part < n);
	for (int part = 0; part < n && n > 1 && stages_ > 0; part++)
		assert_int_equal(d->cell[(stages_ - 1) % 2][part * 16], stages_);
}

static void
every_part_of_a_stage_runs_once(void **state)
{
	static const int counts[] = { 0, 1, 2, 7, STAGES };

	(void)state;
	for (int n = 1; n <= MOST; n += n < 4 ? 1 : 5) {
		Threads *t;
		assert_int_equal(threads_open(n, &t, NULL), LLMC_OK);
		for (size_t run = 0; run < 40; run++) {
			Deal d = { .from = 0 };
			int count = counts[run % (sizeof counts / sizeof *counts)];
			Sum s = { .pool = t };
			threads_deal(t, DEAL_ALL, count, dealt, &d);
			check_deal(&d, n, count);
			if (run % 8 == 0) { /* threads_run in between */
				threads_run(t, stages, &s);
				assert_int_equal(s.cell[0], STAGES);
				assert_int_equal(s.bad, 0);
			}
		}
		threads_close(t);
	}
}

/* ---- a thread without a processor for long: it is inside a signal handler ---- */

#if !HAS_TSAN

static int release_[2];
static atomic_int entered;

static void
stay_away(int sig)
{
	char c;

	(void)sig;
	atomic_fetch_add(&entered, 1);
	(void)!read(release_[0], &c, 1);
}

typedef struct Away {
	pthread_t thread[MOST];
} Away;

/* Threads of the pool block all signals. */
static void
let_signals_in(void *user, int part, int n)
{
	sigset_t set;

	(void)n;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	((Away *)user)->thread[part] = pthread_self();
}

static void
descheduled_threads_block_nothing(void **state)
{
	struct sigaction sa = { .sa_handler = stay_away }, was;
	enum { N = 4, GONE = 3 };

	(void)state;
	assert_int_equal(pipe(release_), 0);
	assert_int_equal(sigaction(SIGUSR1, &sa, &was), 0);
	for (int gone = 1; gone <= GONE; gone++) {
		Threads *t;
		Away a;
		Deal d = { .from = 0 };
		atomic_store(&entered, 0);
		assert_int_equal(threads_open(N, &t, NULL), LLMC_OK);
		threads_run(t, let_signals_in, &a);
		for (int i = 1; i <= gone; i++)
			assert_int_equal(pthread_kill(a.thread[i], SIGUSR1), 0);
		WAIT_FOR(atomic_load(&entered) >= gone);
		int64_t taken = threads_counts(t).taken;
		/* the call returns although the workers are in the signal handler */
		threads_deal(t, DEAL_ALL, STAGES, dealt, &d);
		check_deal(&d, N, STAGES);
		assert_int_equal(d.parts, N);
		assert_true(threads_counts(t).taken - taken >= (int64_t)gone * STAGES);
		for (int i = 1; i <= gone; i++)
			assert_int_equal(write(release_[1], "x", 1), 1);
		Sum s = { .pool = t };
		threads_run(t, stages, &s); /* each part on its own thread again */
		for (int i = 0; i < N; i++)
			assert_int_equal(s.seen[i], 1);
		assert_int_equal(s.bad, 0);
		threads_close(t);
	}
	sigaction(SIGUSR1, &was, NULL);
	close(release_[0]);
	close(release_[1]);
}

#endif

/* Waiting threads end up sleeping in the kernel: an idle pool uses no processor time. */
static void
idle_threads_sleep(void **state)
{
	atomic_int count = 0;
	Threads *t;

	(void)state;
	assert_int_equal(threads_open(2, &t, NULL), LLMC_OK);
	WAIT_FOR(threads_counts(t).sleeps >= 1); /* the only worker, before any job */
	threads_run(t, nothing, &count);
	assert_int_equal(count, 2);
	threads_close(t);
}

static void
spins_are_bounded(void **state)
{
	Topology two = { .n_allowed = 2, .n_core = 2 },
	         half = { .n_allowed = 8, .n_core = 8, .quota = 2.5 };
	atomic_ullong word = 5;
	double waited = 0;

	(void)state;
	assert_true(threads_spin(&two, 2) > 0 && threads_spin(&two, 2) < 0.01);
	/* a thread that spins would prevent the third from running */
	assert_true(threads_spin(&two, 3) == 0);
	assert_true(threads_spin(&half, 2) > 0);
	assert_true(threads_spin(&half, 3) == 0);
	setenv("LLMC_SPIN_US", "50", 1);
	assert_true(threads_spin(&two, 2) == 50 * 1e-6);
	assert_true(threads_spin(&two, 3) == 0);
	setenv("LLMC_SPIN_US", "0", 1);
	assert_true(threads_spin(&two, 2) == 0);
	setenv("LLMC_SPIN_US", "-3", 1);
	assert_true(threads_spin(&two, 2) == 0);
	unsetenv("LLMC_SPIN_US");
	assert_true(threads_spin_for(&word, 5, 1, &waited));
	assert_true(waited == 0);
	assert_false(threads_spin_for(&word, 6, 0, NULL));
	assert_false(threads_spin_for(&word, 6, 0.002, &waited));
	assert_true(waited >= 0.002);
}

/* ---- team or alone ---- */

/* Simulate jobs for so many seconds, with given durations alone and in a team that is, or is not,
 * held up by preempted threads. Returns the share of time in which jobs ran alone. */
static double
simulate(TeamKind *k, double *now, double seconds, double team, double alone, bool held)
{
	double end = *now + seconds, by_itself = 0;

	while (*now < end) {
		bool a = team_alone(k, *now);
		double took = a ? alone : team;
		*now += took;
		by_itself += a ? took : 0;
		team_ran(k, *now, took, a ? 0 : held ? 0.3 * took : -took);
	}
	return by_itself / seconds;
}

static void
the_faster_of_team_and_alone_is_chosen(void **state)
{
	TeamKind k = { 0 };
	double now = 100;

	(void)state;
	/* a team that is not delayed is always used: there is not even a trial without it */
	assert_true(simulate(&k, &now, 20, 0.005, 0.010, false) == 0);
	/* other processes start: the caller alone is tried and then used, except for trials of the
	 * team */
	assert_true(simulate(&k, &now, 20, 0.030, 0.012, true) > 0.8);
	assert_true(k.alone || k.trial);
	/* the other processes end: the team is used again within two seconds */
	assert_true(simulate(&k, &now, 2, 0.005, 0.010, false) < 1);
	assert_true(simulate(&k, &now, 20, 0.005, 0.010, false) == 0);
	/* the team is delayed, but faster than the caller alone: there are few trials */
	assert_true(simulate(&k, &now, 20, 0.009, 0.010, true) < 0.25);
	/* after a long time without a job, statistics are reset */
	simulate(&k, &now, 5, 0.030, 0.012, true);
	now += 1000;
	assert_false(team_alone(&k, now));
	/* jobs of seconds: a window is three of them */
	k = (TeamKind){ 0 };
	assert_true(simulate(&k, &now, 300, 3, 1, true) > 0.7);
}

static void
held_up_threads(void *user, int stage, int part, int n)
{
	(void)stage;
	if (n > 1 && part > 0)
		usleep(20000); /* like a thread that is preempted inside its part */
	atomic_fetch_add(&((atomic_int *)user)[n > 1], 1);
}

/* Tests the choice in a real pool: the wait for other parts takes longer than running all parts on
 * the caller. */
static void
a_delayed_caller_continues_alone(void **state)
{
	atomic_int jobs[2] = { 0, 0 };
	Threads *t;

	(void)state;
	assert_int_equal(threads_open(2, &t, NULL), LLMC_OK);
	for (int i = 0; i < 10000 && threads_counts(t).alone == 0; i++)
		threads_deal(t, 3, 2, held_up_threads, jobs);
	assert_true(threads_counts(t).alone > 0);
	int64_t alone = threads_counts(t).alone;
	threads_deal(t, DEAL_AS_BEFORE, 1, held_up_threads, jobs);
	assert_int_equal(threads_counts(t).alone, alone + 1);
	int team = jobs[1];
	threads_deal(t, DEAL_ALL, 1, held_up_threads, jobs);
	assert_int_equal(jobs[1], team + 2);
	assert_int_equal(threads_counts(t).alone, alone + 1);
	threads_close(t);
}

static void
pools_open_and_close(void **state)
{
	(void)state;
	for (int i = 0; i < 50; i++) {
		Threads *t;
		atomic_int count = 0;
		assert_int_equal(threads_open(3, &t, NULL), LLMC_OK);
		for (int k = 0; k < i % 4; k++)
			threads_run(t, nothing, &count);
		assert_int_equal(count, 3 * (i % 4));
		threads_close(t);
	}
	threads_close(NULL);
}

static void *
own_pool(void *arg)
{
	Sum s = { 0 };

	if (threads_open(2, &s.pool, NULL) == LLMC_OK) {
		for (int run = 0; run < 10; run++)
			threads_run(s.pool, stages, &s);
		threads_close(s.pool);
	}
	*(int64_t *)arg = s.cell[0];
	return NULL;
}

static void
pools_run_side_by_side(void **state)
{
	pthread_t t[3];
	int64_t got[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, own_pool, &got[i]), 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(got[i], 10 * STAGES);
	}
}

static void
the_caller_keeps_its_affinity(void **state)
{
	cpu_set_t before, after;
	Threads *t;
	atomic_int count = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	assert_int_equal(threads_open(2, &t, NULL), LLMC_OK);
	threads_run(t, nothing, &count);
	assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
	assert_memory_equal(&before, &after, sizeof before);
	threads_close(t);
}

static void
invalid_thread_counts_are_rejected(void **state)
{
	llmc_error err;
	Threads *t;

	(void)state;
	assert_int_equal(threads_open(0, &t, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "cannot start 0 threads: 1 .. 1024 are possible");
	assert_null(t);
	assert_int_equal(threads_open(5000, &t, &err), LLMC_E_RANGE);
}

/* ---- topology on stand-ins ---- */

static Tempdir dir;

static void
put(const char *path, const char *text)
{
	tempdir_put(&dir, path, text);
}

static void
put_cpu(int cpu, int package, int core)
{
	char path[128], text[16];

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
	         cpu);
	snprintf(text, sizeof text, "%d\n", package);
	put(path, text);
	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
	snprintf(text, sizeof text, "%d\n", core);
	put(path, text);
}

/* two packages of two cores of two threads each: 0..3 first hardware threads, 4..7 their
 * siblings */
static void
put_machine(void)
{
	tempdir_remove(dir.path);
	mkdir(dir.path, 0700);
	for (int i = 0; i < 8; i++)
		put_cpu(i, i % 4 / 2, i % 2);
}

static void
siblings_count_once(void **state)
{
	bool all[TOPOLOGY_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 },
	     some[TOPOLOGY_MAX] = { 0, 1, 0, 0, 0, 1, 1, 0 };
	Topology t;

	(void)state;
	put_machine();
	topology_read(dir.path, all, &t);
	assert_int_equal(t.n_allowed, 8);
	assert_int_equal(t.n_core, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(t.core[i], i);
	assert_int_equal(topology_count(&t), 4);
	/* processors 1 and 6, and 5, which is the sibling of 1 */
	topology_read(dir.path, some, &t);
	assert_int_equal(t.n_allowed, 3);
	assert_int_equal(t.n_core, 2);
	assert_int_equal(t.core[0], 1);
	assert_int_equal(t.core[1], 6);
	/* no topology files: every processor counts as a core */
	topology_read("/nonexistent", all, &t);
	assert_int_equal(topology_count(&t), 8);
}

static void
quotas_of_both_versions(void **state)
{
	bool all[TOPOLOGY_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 };
	Topology t;

	(void)state;
	put_machine();
	put("/proc/self/cgroup", "0::/a/b\n");
	put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
	topology_read(dir.path, all, &t);
	assert_true(t.quota == 0);
	put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n"); /* a parent's limit applies too */
	topology_read(dir.path, all, &t);
	assert_true(t.quota == 2.5);
	assert_int_equal(topology_count(&t), 2);
	put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
	topology_read(dir.path, all, &t);
	assert_true(t.quota == 0.5);
	assert_int_equal(topology_count(&t), 1);

	put_machine();
	put("/proc/self/cgroup", "12:memory:/x\n4:cpu,cpuacct:/docker/1\n");
	put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "300000\n");
	put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
	topology_read(dir.path, all, &t);
	assert_true(t.quota == 3);
	put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
	topology_read(dir.path, all, &t);
	assert_true(t.quota == 0);
}

/* Replaces the system's function: the n-th call fails with this result, and with an unrelated
 * errno. */
static int fail_at;

int
pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	*(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
	if (fail_at && --fail_at == 0) {
		errno = ENOENT;
		return EAGAIN;
	}
	return next(t, attr, fn, arg);
}

/* The message has the system's reason, and the threads that had started end. */
static void
a_thread_that_does_not_start(void **state)
{
	llmc_error err = { 0 };
	Threads *t;

	(void)state;
	fail_at = 2;
	assert_int_equal(threads_open(4, &t, &err), LLMC_E_MEMORY);
	assert_null(t);
	assert_string_equal(err.text,
	                    "cannot start thread 3 of 4: Resource temporarily unavailable");
	assert_int_equal(threads_open(4, &t, &err), LLMC_OK);
	threads_close(t);
}

/* Two caches; one is listed by both processors that share it. */
static void
caches_count_once(void **state)
{
	(void)state;
	put("/sys/devices/system/cpu/cpu0/cache/index3/size", "245760K\n");
	put("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "0-1\n");
	put("/sys/devices/system/cpu/cpu1/cache/index3/size", "245760K\n");
	put("/sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "0-1\n");
	put("/sys/devices/system/cpu/cpu2/cache/index3/size", "240M\n");
	put("/sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list", "2\n");
	assert_int_equal(topology_cache_bytes(dir.path), (int64_t)480 << 20);
	assert_int_equal(topology_cache_bytes("/nonexistent"), 0);
}

static void
bandwidth_is_of_memory_and_not_of_caches(void **state)
{
	const int64_t mb = 1 << 20;

	(void)state;
	assert_int_equal(cpu_bandwidth_bytes(0, 0), 256 * mb);         /* nothing is known */
	assert_int_equal(cpu_bandwidth_bytes(480 * mb, 0), 1920 * mb); /* two sockets of 240 MB */
	assert_int_equal(cpu_bandwidth_bytes(1152 * mb, 0), 2048 * mb);
	assert_int_equal(cpu_bandwidth_bytes(480 * mb, 4096 * mb), 1024 * mb);
}

static void
a_variable_sets_the_default_count(void **state)
{
	const char *set = getenv("LLMC_THREADS");
	char *before = set ? strdup(set) : NULL;
	Topology t;

	(void)state;
	topology_here(&t);
	setenv("LLMC_THREADS", "3", 1);
	assert_int_equal(topology_threads(), 3);
	setenv("LLMC_THREADS", "0", 1);
	assert_int_equal(topology_threads(), topology_count(&t));
	unsetenv("LLMC_THREADS");
	assert_int_equal(topology_threads(), topology_count(&t));
	if (before)
		setenv("LLMC_THREADS", before, 1);
	free(before);
}

static void
this_machine_has_processors_and_caches(void **state)
{
	char text[256];

	(void)state;
	assert_true(topology_threads() >= 1);
	assert_true(topology_describe(text, sizeof text) > 0);
	assert_true(isa_runs("cpu-generic") && isa_runs(isa_best()));
	assert_false(isa_runs("cpu-v9"));
	assert_true(!isa_runs("cpu-v4") || isa_runs("cpu-v3"));
	assert_true(cpu_bandwidth(1, 0) > 1e6);
	assert_true(cpu_bandwidth_seconds(0.5) == 0.5 && cpu_bandwidth_seconds(-1) == 0);
	assert_true(cpu_bandwidth_seconds(NAN) == 0 && cpu_bandwidth_seconds(INFINITY) == 60);
}

static void
named(const char *cpuinfo, const char *want)
{
	char name[128], copy[512];
	FILE *f = fmemopen(copy, (size_t)snprintf(copy, sizeof copy, "%s", cpuinfo), "r");

	assert_non_null(f);
	processor_name(f, name, sizeof name);
	assert_string_equal(name, want);
	fclose(f);
}

static void
processors_have_names(void **state)
{
	char name[8];

	(void)state;
	named("processor\t: 0\nmodel name\t: AMD EPYC 7763\nmodel name\t: AMD EPYC 7763\n",
	      "AMD EPYC 7763");
	named("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"
	      "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n",
	      "Neoverse-V2");
	named("CPU implementer\t: 0x41\nCPU part\t: 0xd87\nCPU implementer\t: 0x41\n"
	      "CPU part\t: 0xd85\n",
	      "Cortex-A725 and Cortex-X925");
	named("CPU implementer\t: 0x51\nCPU part\t: 0x001\n", "Arm implementer 0x51, part 0x1");
	named("no colon\n:\n", "unknown");
	processor_name(NULL, name, sizeof name);
	assert_string_equal(name, "unknown");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(barriers_order_memory),
		cmocka_unit_test(every_part_of_a_stage_runs_once),
#if !HAS_TSAN
		cmocka_unit_test(descheduled_threads_block_nothing),
#endif
		cmocka_unit_test(idle_threads_sleep),
		cmocka_unit_test(spins_are_bounded),
		cmocka_unit_test(the_faster_of_team_and_alone_is_chosen),
		cmocka_unit_test(a_delayed_caller_continues_alone),
		cmocka_unit_test(pools_open_and_close),
		cmocka_unit_test(pools_run_side_by_side),
		cmocka_unit_test(the_caller_keeps_its_affinity),
		cmocka_unit_test(invalid_thread_counts_are_rejected),
		cmocka_unit_test(a_thread_that_does_not_start),
		cmocka_unit_test(siblings_count_once),
		cmocka_unit_test(quotas_of_both_versions),
		cmocka_unit_test(caches_count_once),
		cmocka_unit_test(bandwidth_is_of_memory_and_not_of_caches),
		cmocka_unit_test(a_variable_sets_the_default_count),
		cmocka_unit_test(this_machine_has_processors_and_caches),
		cmocka_unit_test(processors_have_names),
	};

	if (tempdir_open(&dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}
