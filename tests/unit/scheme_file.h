/* A few tensors in memory as the file in which formats/scheme.h looks up tensors; for unit tests
 * and fuzzers. */
#ifndef LLMC_TESTS_SCHEME_FILE_H
#define LLMC_TESTS_SCHEME_FILE_H

#include <string.h>

#include "formats/scheme.h"

typedef struct SchemeFile {
	SchemeTensor t[8];
	int n;
} SchemeFile;

/* a scheme_find_fn; user: a SchemeFile */
static bool
scheme_file_find(const void *user, const char *name, SchemeTensor *out)
{
	const SchemeFile *f = user;

	for (int i = 0; i < f->n; i++)
		if (strcmp(f->t[i].name, name) == 0) {
			*out = f->t[i];
			return true;
		}
	return false;
}

#endif
