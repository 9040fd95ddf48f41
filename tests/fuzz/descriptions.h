/* The descriptions in tests/fuzz/corpus/yaml, which other fuzzers use as seeds too. */
#ifndef TESTS_FUZZ_DESCRIPTIONS_H
#define TESTS_FUZZ_DESCRIPTIONS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { MAX_DESCRIPTIONS = 32 };

static inline int
descriptions_by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Fills path with the paths, sorted by name; exits if there are none. */
static inline int
descriptions_list(char *path[MAX_DESCRIPTIONS])
{
	static const char folder[] = "tests/fuzz/corpus/yaml";
	int n = 0;
	DIR *dir = opendir(folder);

	for (struct dirent *e; dir && (e = readdir(dir)) != NULL && n < MAX_DESCRIPTIONS;) {
		size_t len = strlen(e->d_name);
		/* the folder's other files are inputs that once failed */
		if (len > 5 && strcmp(e->d_name + len - 5, ".yaml") == 0 &&
		    asprintf(&path[n], "%s/%s", folder, e->d_name) > 0)
			n++;
	}
	if (dir)
		closedir(dir);
	if (n == 0) {
		fprintf(stderr, "%s: no descriptions; run from the root of the repository\n",
		        folder);
		exit(2);
	}
	qsort(path, (size_t)n, sizeof *path, descriptions_by_name);
	return n;
}

/* Reads all of them and returns their number. */
static inline int
descriptions_read(Strbuf text[MAX_DESCRIPTIONS])
{
	char *path[MAX_DESCRIPTIONS];
	const int n = descriptions_list(path);
	llmc_error err;

	for (int i = 0; i < n; i++) {
		if (file_read(path[i], 1 << 20, &text[i], &err) != LLMC_OK) {
			fprintf(stderr, "%s: %s\n", path[i], err.text);
			abort();
		}
		free(path[i]);
	}
	return n;
}

#endif
