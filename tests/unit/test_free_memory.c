/* Free memory of a host and of control groups of both versions, on stand-ins for /sys and /proc. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/free_memory.h"
#include "tests/unit/tempdir.h"

#define MIB ((int64_t)1 << 20)

static Tempdir dir;

static void
put(const char *path, const char *text)
{
	tempdir_put(&dir, path, text);
}

/* a host of 8 GiB, 6 GiB of them available */
static void
put_host(const char *groups)
{
	tempdir_remove(dir.path);
	mkdir(dir.path, 0700);
	put("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          131072 kB\n"
	                     "MemAvailable:    6291456 kB\n");
	put("/proc/self/cgroup", groups);
}

static void
expect(int64_t mib, int64_t total_mib, const char *limited_by)
{
	FreeMemory m = free_memory(dir.path);

	assert_int_equal(m.bytes, mib * MIB);
	assert_int_equal(m.total, total_mib * MIB);
	assert_string_equal(m.limited_by, limited_by);
}

static void
without_a_group_the_host_decides(void **state)
{
	(void)state;
	put_host("0::/\n");
	expect(6144, 8192, "MemAvailable");
	put_host("");
	expect(6144, 8192, "MemAvailable");
}

static void
version_2(void **state)
{
	(void)state;
	put_host("0::/a/b\n");
	put("/sys/fs/cgroup/a/b/memory.max", "max\n");
	put("/sys/fs/cgroup/a/b/memory.current", "104857600\n");
	expect(6144, 8192, "MemAvailable");
	/* 1 GiB less 300 MiB, of which 200 MiB are file cache */
	put("/sys/fs/cgroup/a/b/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/a/b/memory.current", "314572800\n");
	put("/sys/fs/cgroup/a/b/memory.stat",
	    "anon 104857600\nfile 209715200\ninactive_file 157286400\nactive_file 52428800\n");
	expect(924, 1024, "/sys/fs/cgroup/a/b/memory.max");
	put("/sys/fs/cgroup/a/b/memory.high", "536870912\n");
	expect(412, 512, "/sys/fs/cgroup/a/b/memory.high");
	put("/sys/fs/cgroup/a/memory.max", "268435456\n"); /* a parent's limit applies too */
	put("/sys/fs/cgroup/a/memory.current", "167772160\n");
	expect(96, 256, "/sys/fs/cgroup/a/memory.max");
	/* the group uses more than its limit */
	put("/sys/fs/cgroup/a/memory.current", "999999999\n");
	expect(0, 256, "/sys/fs/cgroup/a/memory.max");
}

static void
in_a_container_the_group_is_the_root(void **state)
{
	(void)state;
	put_host("0::/\n");
	put("/sys/fs/cgroup/memory.max", "2147483648\n");
	put("/sys/fs/cgroup/memory.current", "1073741824\n");
	expect(1024, 2048, "/sys/fs/cgroup/memory.max");
	/* the folder of the control group is mounted as the root */
	put_host("4:cpu:/x\n5:memory:/docker/1\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
	expect(1024, 2048, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static void
version_1(void **state)
{
	(void)state;
	put_host("12:cpu:/y\n4:hugetlb,memory:/x\n");
	put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "314572800\n");
	expect(6144, 8192, "MemAvailable");
	put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824\n");
	put("/sys/fs/cgroup/memory/x/memory.stat",
	    "inactive_file 1\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n");
	expect(924, 1024, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes");
}

static void
a_variable_replaces_all(void **state)
{
	(void)state;
	put_host("0::/\n");
	setenv("LLMC_FREE_MEMORY", "3M", 1);
	expect(3, 3, "LLMC_FREE_MEMORY");
	setenv("LLMC_FREE_MEMORY", "much", 1);
	expect(6144, 8192, "MemAvailable");
	unsetenv("LLMC_FREE_MEMORY");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_group_the_host_decides),
		cmocka_unit_test(version_2),
		cmocka_unit_test(in_a_container_the_group_is_the_root),
		cmocka_unit_test(version_1),
		cmocka_unit_test(a_variable_replaces_all),
	};

	if (tempdir_open(&dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}
