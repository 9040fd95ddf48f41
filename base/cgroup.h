/* Files of /proc and /sys, and the control groups of this process. `root` is a prefix of all paths,
 * for tests; "" on a real machine. */
#ifndef LLMC_BASE_CGROUP_H
#define LLMC_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read the first line of root + path into buf; false: no such file. */
bool host_line(const char *root, const char *path, char *buf, size_t cap);
int64_t host_number(const char *root, const char *path, int64_t missing);
/* Return the number after `key` and white space, from the first line that begins with key. */
int64_t host_field(const char *root, const char *path, const char *key, int64_t missing);

/* Callback that receives the folder of a group; v2: the group's files are those of version 2. */
typedef void (*CgroupFn)(void *user, const char *root, const char *dir, bool v2);
/* Call fn for this process's group of a controller ("cpu", "memory") and for each of its parents,
 * because limits of parents apply too. Folders may be absent, as in containers. */
void cgroup_each(const char *root, const char *controller, CgroupFn fn, void *user);

#endif
