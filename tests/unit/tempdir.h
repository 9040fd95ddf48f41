/* A scratch folder for one test program; tempdir_close removes it with the files in it. */
#ifndef TESTS_UNIT_TEMPDIR_H
#define TESTS_UNIT_TEMPDIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Tempdir {
	char path[256];
} Tempdir;

static inline int
tempdir_open(Tempdir *t)
{
	const char *base = getenv("TMPDIR");

	snprintf(t->path, sizeof t->path, "%s/llmc-test-XXXXXX", base && *base ? base : "/tmp");
	return mkdtemp(t->path) ? 0 : -1;
}

/* Path of a file in the folder; valid until the 8th call after this one */
static inline const char *
tempdir_file(const Tempdir *t, const char *name)
{
	static char text[8][512];
	static unsigned next;
	char *s = text[next++ % 8];

	if (snprintf(s, sizeof *text, "%s/%s", t->path, name) >= (int)sizeof *text)
		abort();
	return s;
}

/* Write a file of this absolute path below the folder, and its parents. */
static inline void
tempdir_put(const Tempdir *t, const char *path, const char *text)
{
	char full[600], *slash;

	snprintf(full, sizeof full, "%s%s", t->path, path);
	for (slash = full + strlen(t->path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
		*slash = 0;
		mkdir(full, 0700);
		*slash = '/';
	}
	FILE *f = fopen(full, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		abort();
}

static inline void
tempdir_remove(const char *path)
{
	struct stat st;
	char child[1024];
	DIR *d = lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path)
	                                                      : NULL; /* do not follow links */

	if (d) {
		for (struct dirent *e; (e = readdir(d)) != NULL;) {
			if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
				continue;
			if (snprintf(child, sizeof child, "%s/%s", path, e->d_name) <
			    (int)sizeof child)
				tempdir_remove(child);
		}
		closedir(d);
		rmdir(path);
	} else {
		unlink(path);
	}
}

static inline void
tempdir_close(Tempdir *t)
{
	tempdir_remove(t->path);
}

/* Fixture for a test or a group: *state is the folder */
static inline int
tempdir_setup(void **state)
{
	static Tempdir dir;

	*state = &dir;
	return tempdir_open(&dir);
}

static inline int
tempdir_teardown(void **state)
{
	tempdir_close(*state);
	return 0;
}

#endif
