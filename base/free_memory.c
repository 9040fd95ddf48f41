/* Memory that this process can still allocate: /proc/meminfo and the limits of control groups. */
#include "base/free_memory.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cgroup.h"
#include "base/number.h"

/* Limits above this mean no limit: cgroup v1 reports 2^63, rounded down to pages. */
#define NO_LIMIT ((int64_t)1 << 60)

static void
group(void *user, const char *root, const char *dir, bool v2)
{
	static const char *const limit_file[2][3] = { { "memory.limit_in_bytes", NULL },
		                                      { "memory.max", "memory.high", NULL } };
	static const char *const cache[2][2] = { { "total_inactive_file", "total_active_file" },
		                                 { "inactive_file", "active_file" } };
	FreeMemory *out = user;
	char path[768];

	snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
	int64_t used = host_number(root, path, 0);
	snprintf(path, sizeof path, "%s/memory.stat", dir);
	for (int i = 0; i < 2; i++)
		used -= host_field(root, path, cache[v2][i], 0);
	for (int i = 0; limit_file[v2][i]; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, limit_file[v2][i]);
		int64_t limit = host_number(root, path, 0); /* "max" (no limit) reads as 0 */
		int64_t left = limit - (used > 0 ? used : 0);
		if (limit <= 0 || limit >= NO_LIMIT || left >= out->bytes)
			continue;
		out->bytes = left > 0 ? left : 0;
		out->total = limit;
		snprintf(out->limited_by, sizeof out->limited_by, "%.159s", path);
	}
}

FreeMemory
free_memory(const char *root)
{
	FreeMemory out = { .bytes = INT64_MAX, .limited_by = "MemAvailable" };
	const char *given = getenv("LLMC_FREE_MEMORY");
	int64_t kb = host_field(root, "/proc/meminfo", "MemAvailable:", -1),
	        total = host_field(root, "/proc/meminfo", "MemTotal:", 0);

	if (given && bytes_parse(given, &out.bytes)) {
		out.total = out.bytes;
		snprintf(out.limited_by, sizeof out.limited_by, "LLMC_FREE_MEMORY");
		return out;
	}
	out.total = total * 1024;
	if (kb >= 0)
		out.bytes = kb * 1024;
	cgroup_each(root, "memory", group, &out);
	return out;
}
