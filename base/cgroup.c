/* Visits the control groups of this process, version 1 or 2. */
#include "base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

static FILE *
open_below(const char *root, const char *path)
{
	char full[1024];
	int n = snprintf(full, sizeof full, "%s%s", root, path);

	return n < 0 || (size_t)n >= sizeof full ? NULL : fopen(full, "re");
}

bool
host_line(const char *root, const char *path, char *buf, size_t cap)
{
	FILE *f = open_below(root, path);

	if (!f)
		return false;
	bool ok = fgets(buf, (int)cap, f) != NULL;
	fclose(f);
	return ok;
}

int64_t
host_number(const char *root, const char *path, int64_t missing)
{
	char line[64];

	return host_line(root, path, line, sizeof line) ? strtoll(line, NULL, 10) : missing;
}

int64_t
host_field(const char *root, const char *path, const char *key, int64_t missing)
{
	char line[256];
	size_t n = strlen(key);
	int64_t value = missing;
	FILE *f = open_below(root, path);

	while (f && value == missing && fgets(line, sizeof line, f))
		if (strncmp(line, key, n) == 0 && strchr(" \t", line[n]))
			value = strtoll(line + n, NULL, 10);
	if (f)
		fclose(f);
	return value;
}

/* Call fn for group and its parents below a mount. */
static void
visit_parents(const char *root, const char *mount, const char *group, bool v2, CgroupFn fn,
              void *user)
{
	char dir[640];
	size_t len = strlen(group);

	for (;;) {
		snprintf(dir, sizeof dir, "%s%.*s", mount, (int)len, group);
		fn(user, root, dir, v2);
		if (!len)
			return;
		while (len && group[len - 1] != '/')
			len--;
		if (len)
			len--;
	}
}

/* True if the comma-separated list of a hierarchy has the controller. */
static bool
has_controller(const char *list, const char *controller)
{
	size_t n = strlen(controller), len;

	for (const char *at; (at = text_item(&list, &len)) != NULL;)
		if (len == n && memcmp(at, controller, n) == 0)
			return true;
	return false;
}

void
cgroup_each(const char *root, const char *controller, CgroupFn fn, void *user)
{
	char line[512], mount[600];
	FILE *f = open_below(root, "/proc/self/cgroup");

	while (f && fgets(line, sizeof line, f)) {
		/* "0::/path" is version 2; "4:cpu,cpuacct:/path" version 1 */
		line[strcspn(line, "\n")] = 0;
		char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
		if (!group || group[1] != '/' || strstr(group, ".."))
			continue;
		*group++ = 0;
		kind++;
		if (!strcmp(group, "/"))
			group = (char *)"";
		if (!*kind)
			visit_parents(root, "/sys/fs/cgroup", group, true, fn, user);
		if (!has_controller(kind, controller))
			continue;
		snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
		visit_parents(root, mount, group, false, fn, user);
		/* a hierarchy of several controllers may be mounted under all of their names */
		if (strcmp(kind, controller) != 0) {
			snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", kind);
			visit_parents(root, mount, group, false, fn, user);
		}
	}
	if (f)
		fclose(f);
}
