/* A few tensors in memory that replace the file in which formats/quant_format.h looks up tensors;
 * for unit tests and fuzzers. */
#ifndef LLMC_TESTS_QUANT_FORMAT_FILE_H
#define LLMC_TESTS_QUANT_FORMAT_FILE_H

#include <string.h>

#include "formats/quant_format.h"

typedef struct QuantFormatFile {
	QuantFormatTensor t[8];
	int n;
} QuantFormatFile;

/* a quant_format_find_fn; user: a QuantFormatFile */
static bool
quant_format_file_find(const void *user, const char *name, QuantFormatTensor *out)
{
	const QuantFormatFile *f = user;

	for (int i = 0; i < f->n; i++)
		if (strcmp(f->t[i].name, name) == 0) {
			*out = f->t[i];
			return true;
		}
	return false;
}

#endif
