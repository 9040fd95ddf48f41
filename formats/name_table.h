/* Names of a file's tensors or keys: looked up by binary search, so that no choice of names makes
 * it slow. */
#ifndef LLMC_FORMATS_NAME_TABLE_H
#define LLMC_FORMATS_NAME_TABLE_H

#include <stddef.h>

typedef struct NameEntry {
	const char *name;
	size_t at;
} NameEntry;

/* Sorts e; NULL, or the later of the first two entries that share a name (the earlier one is before
 * it in e). */
const NameEntry *names_sort(NameEntry *e, size_t n);
const NameEntry *names_find(const NameEntry *e, size_t n, const char *name); /* NULL: none */

/* A name from a file as an error may print it: short, without control bytes. */
typedef struct NameText {
	char s[84];
} NameText;
NameText name_text(const char *s, size_t n);

#endif
