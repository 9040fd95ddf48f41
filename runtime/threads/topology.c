/* Processors to run on: one per physical core, within the affinity mask and the cgroup's quota. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "runtime/threads/threads.h"

/* Read the first line of root + path into buf; false: no such file. */
static bool
read_line(const char *root, const char *path, char *buf, size_t cap)
{
	char full[1024];
	int n = snprintf(full, sizeof full, "%s%s", root, path);

	if (n < 0 || (size_t)n >= sizeof full)
		return false;
	FILE *f = fopen(full, "re");
	if (!f)
		return false;
	bool ok = fgets(buf, (int)cap, f) != NULL;
	fclose(f);
	return ok;
}

static long
read_number(const char *root, const char *path, long missing)
{
	char line[64];

	return read_line(root, path, line, sizeof line) ? strtol(line, NULL, 10) : missing;
}

/* Return the smallest quota of a cgroup and its parents; 0: none. v2: "max 100000" or "150000
 * 100000" in cpu.max; v1: two files. */
static double
quota_of(const char *root, const char *mount, const char *group, bool v2)
{
	char path[640], line[64];
	size_t len = strlen(group);
	double least = 0;

	for (;;) {
		double quota = -1, period = 0;
		if (v2) {
			snprintf(path, sizeof path, "%s%.*s/cpu.max", mount, (int)len, group);
			if (read_line(root, path, line, sizeof line) &&
			    sscanf(line, "%lf %lf", &quota, &period) != 2)
				quota = -1; /* "max" */
		} else {
			snprintf(path, sizeof path, "%s%.*s/cpu.cfs_quota_us", mount, (int)len,
			         group);
			quota = (double)read_number(root, path, -1);
			snprintf(path, sizeof path, "%s%.*s/cpu.cfs_period_us", mount, (int)len,
			         group);
			period = (double)read_number(root, path, 0);
		}
		if (quota > 0 && period > 0 && (least == 0 || quota / period < least))
			least = quota / period;
		if (!len)
			return least;
		while (len && group[len - 1] != '/')
			len--;
		if (len)
			len--;
	}
}

static double
cgroup_quota(const char *root)
{
	char full[1024], line[512];
	double least = 0;
	int n = snprintf(full, sizeof full, "%s/proc/self/cgroup", root);

	if (n < 0 || (size_t)n >= sizeof full)
		return 0;
	FILE *f = fopen(full, "re");
	if (!f)
		return 0;
	while (fgets(line, sizeof line, f)) {
		/* "0::/path" is version 2; "4:cpu,cpuacct:/path" version 1 */
		line[strcspn(line, "\n")] = 0;
		char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
		if (!group || group[1] != '/' || strstr(group, ".."))
			continue;
		*group++ = 0;
		kind++;
		if (!strcmp(group, "/"))
			group = (char *)"";
		double q = 0;
		if (!*kind) {
			q = quota_of(root, "/sys/fs/cgroup", group, true);
		} else if (!strcmp(kind, "cpu") || !strncmp(kind, "cpu,", 4) ||
		           strstr(kind, ",cpu,") ||
		           (strlen(kind) > 4 && !strcmp(kind + strlen(kind) - 4, ",cpu"))) {
			q = quota_of(root, "/sys/fs/cgroup/cpu", group, false);
			if (q == 0)
				q = quota_of(root, "/sys/fs/cgroup/cpu,cpuacct", group, false);
		}
		if (q > 0 && (least == 0 || q < least))
			least = q;
	}
	fclose(f);
	return least;
}

void
topology_read(const char *root, const bool allowed[TOPOLOGY_MAX], Topology *out)
{
	long package[TOPOLOGY_MAX], core[TOPOLOGY_MAX];
	char path[128];

	*out = (Topology){ 0 };
	for (int cpu = 0; cpu < TOPOLOGY_MAX; cpu++) {
		if (!allowed[cpu])
			continue;
		out->n_allowed++;
		snprintf(path, sizeof path,
		         "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
		long pkg = read_number(root, path, -1);
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
		long id = read_number(root, path, -1);
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
	out->quota = cgroup_quota(root);
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
		/* count a shared cache only at its first processor: "0-7,64-71", "32768K" */
		snprintf(path, sizeof path,
		         "/sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
		if (read_number(root, path, -1) != cpu)
			continue;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/size", cpu);
		char *end = line;
		if (!read_line(root, path, line, sizeof line))
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
