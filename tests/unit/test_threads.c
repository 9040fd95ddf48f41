/* The pool: every part runs, barriers order memory, nothing hangs with more threads than processors, the caller keeps its
 * affinity. And which processors a pool would use, on stand-ins for /sys and /proc. */
#include <pthread.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/cpu/cpu.h"
#include "tests/unit/tempdir.h"

enum { STAGES = 200, MOST = 9 };

typedef struct Sum {
	Threads *pool;
	int64_t  cell[MOST * 16]; /* plain memory: only the barriers order it */
	int64_t  bad;
	int      seen[MOST];
} Sum;

/* In each stage every part adds its neighbour's cell of the last stage to its own. */
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
silly_counts_are_refused(void **state)
{
	llmc_error err;
	Threads *t;

	(void)state;
	assert_int_equal(threads_open(0, &t, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "0 threads were asked for; 1 .. 1024 are possible");
	assert_null(t);
	assert_int_equal(threads_open(5000, &t, &err), LLMC_E_RANGE);
}

/* --- topology on stand-ins ------------------------------------------------------------------------------------- */

static Tempdir dir;

static void
put(const char *path, const char *text)
{
	char full[600], *slash;

	snprintf(full, sizeof full, "%s%s", dir.path, path);
	for (slash = full + strlen(dir.path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
		*slash = 0;
		mkdir(full, 0700);
		*slash = '/';
	}
	FILE *f = fopen(full, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void
put_cpu(int cpu, int package, int core)
{
	char path[128], text[16];

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
	snprintf(text, sizeof text, "%d\n", package);
	put(path, text);
	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
	snprintf(text, sizeof text, "%d\n", core);
	put(path, text);
}

/* two packages of two cores of two threads each: 0..3 first threads, 4..7 their siblings */
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
	bool all[TOPOLOGY_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 }, some[TOPOLOGY_MAX] = { 0, 1, 0, 0, 0, 1, 1, 0 };
	Topology t;

	(void)state;
	put_machine();
	topology_read(dir.path, all, &t);
	assert_int_equal(t.n_allowed, 8);
	assert_int_equal(t.n_core, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(t.core[i], i);
	assert_int_equal(topology_count(&t), 4);
	topology_read(dir.path, some, &t); /* 1 and its sibling 5, and 6 */
	assert_int_equal(t.n_allowed, 3);
	assert_int_equal(t.n_core, 2);
	assert_int_equal(t.core[0], 1);
	assert_int_equal(t.core[1], 6);
	/* a machine that says nothing: every processor is a core */
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
	put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n"); /* a parent's holds too */
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

/* Instead of the system's: the n-th fails when asked to, by its result as it does, with an errno of something else. */
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

/* What the system says is why, and the threads that had started end. */
static void
a_thread_that_does_not_start(void **state)
{
	llmc_error err = { 0 };
	Threads *t;

	(void)state;
	fail_at = 2;
	assert_int_equal(threads_open(4, &t, &err), LLMC_E_MEMORY);
	assert_null(t);
	assert_string_equal(err.text, "cannot start thread 3 of 4: Resource temporarily unavailable");
	assert_int_equal(threads_open(4, &t, &err), LLMC_OK);
	threads_close(t);
}

/* Two caches, one of which is told of by a processor that it shares. */
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
	assert_int_equal(cpu_bandwidth_bytes(0, 0), 256 * mb);               /* nothing is known */
	assert_int_equal(cpu_bandwidth_bytes(480 * mb, 0), 1920 * mb);       /* two sockets of 240 MB */
	assert_int_equal(cpu_bandwidth_bytes(1152 * mb, 0), 2048 * mb);
	assert_int_equal(cpu_bandwidth_bytes(480 * mb, 4096 * mb), 1024 * mb);
}

static void
this_machine_has_something(void **state)
{
	char text[256];

	(void)state;
	assert_true(topology_threads() >= 1);
	assert_true(topology_describe(text, sizeof text) > 0);
	assert_true(isa_runs("cpu-generic") && isa_runs(isa_best()));
	assert_false(isa_runs("cpu-v9"));
	assert_true(!isa_runs("cpu-v4") || isa_runs("cpu-v3"));
	assert_true(cpu_bandwidth(1, 0) > 1e6);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(barriers_order_memory),
		cmocka_unit_test(pools_open_and_close),
		cmocka_unit_test(pools_run_side_by_side),
		cmocka_unit_test(the_caller_keeps_its_affinity),
		cmocka_unit_test(silly_counts_are_refused),
		cmocka_unit_test(a_thread_that_does_not_start),
		cmocka_unit_test(siblings_count_once),
		cmocka_unit_test(quotas_of_both_versions),
		cmocka_unit_test(caches_count_once),
		cmocka_unit_test(bandwidth_is_of_memory_and_not_of_caches),
		cmocka_unit_test(this_machine_has_something),
	};

	if (tempdir_open(&dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}
