/* Processors to run on: one per physical core, within the affinity mask and the cgroup's quota. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "runtime/threads/threads.h"

/* Lower *least to the quota, in processors, of one cgroup. v2: "max 100000" or "150000 100000" in
 * cpu.max; v1: two files. */
static void
quota_of(void *user, const char *root, const char *dir, bool v2)
{
	char path[768], line[64];
	double *least = user, quota = -1, period = 0;

	if (v2) {
		snprintf(path, sizeof path, "%s/cpu.max", dir);
		if (host_line(root, path, line, sizeof line) &&
		    sscanf(line, "%lf %lf", &quota, &period) != 2)
			quota = -1; /* "max": no limit */
	} else {
		snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
		quota = (double)host_number(root, path, -1);
		snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
		period = (double)host_number(root, path, 0);
	}
	if (quota > 0 && period > 0 && (*least == 0 || quota / period < *least))
		*least = quota / period;
}

void
topology_read(const char *root, const bool allowed[TOPOLOGY_MAX], Topology *out)
{
	int64_t package[TOPOLOGY_MAX], core[TOPOLOGY_MAX];
	char path[128];

	*out = (Topology){ 0 };
	for (int cpu = 0; cpu < TOPOLOGY_MAX; cpu++) {
		if (!allowed[cpu])
			continue;
		out->n_allowed++;
		snprintf(path, sizeof path,
		         "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
		int64_t pkg = host_number(root, path, -1);
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
		int64_t id = host_number(root, path, -1);
		int i = 0;
		/* without topology files every processor counts as a core */
		while (id >= 0 && i < out->n_core && (package[i] != pkg || core[i] != id))
			i++;
		if (id < 0)
			i = out->n_core;
		if (i < out->n_core)
			continue;
		package[i] = pkg;
		core[i] = id;
		out->core[out->n_core++] = cpu;
	}
	cgroup_each(root, "cpu", quota_of, &out->quota);
}

void
topology_here(Topology *out)
{
	bool allowed[TOPOLOGY_MAX] = { false };
	cpu_set_t set;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof set, &set) == 0) {
		for (int i = 0; i < TOPOLOGY_MAX && i < CPU_SETSIZE; i++)
			allowed[i] = CPU_ISSET(i, &set);
	} else {
		allowed[0] = true;
	}
	topology_read("", allowed, out);
}

int
topology_count(const Topology *t)
{
	int n = t->n_core;

	/* round the quota down: a thread on a fraction of a processor would be throttled at every
	 * barrier */
	if (t->quota > 0 && t->quota < n)
		n = (int)(t->quota + 0.01);
	return n < 1 ? 1 : n;
}

int
topology_threads(void)
{
	const char *own = getenv("LLMC_THREADS");
	Topology t;

	if (own && atoi(own) > 0)
		return atoi(own) < TOPOLOGY_MAX ? atoi(own) : TOPOLOGY_MAX;
	topology_here(&t);
	return topology_count(&t);
}

int64_t
topology_cache_bytes(const char *root)
{
	char path[128], line[64];
	int64_t sum = 0;

	for (int cpu = 0; cpu < TOPOLOGY_MAX; cpu++) {
		/* count a shared cache only at its first processor. The files hold "0-7,64-71" and
		 * "32768K" */
		snprintf(path, sizeof path,
		         "/sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
		if ((int)host_number(root, path, -1) != cpu)
			continue;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/size", cpu);
		char *end = line;
		if (!host_line(root, path, line, sizeof line))
			continue;
		int64_t n = strtoll(line, &end, 10);
		sum += *end == 'M' ? n << 20 : *end == 'K' ? n << 10 : n;
	}
	return sum;
}

int
topology_describe(char *buf, size_t cap)
{
	Topology t;
	char quota[64] = "no cgroup quota";

	topology_here(&t);
	if (t.quota > 0)
		snprintf(quota, sizeof quota, "a cgroup quota of %.2f", t.quota);
	return snprintf(buf, cap, "%d processors on %d real cores, %s: %d thread%s", t.n_allowed,
	                t.n_core, quota, topology_count(&t), topology_count(&t) == 1 ? "" : "s");
}
