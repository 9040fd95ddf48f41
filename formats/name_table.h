/* Sorted names of a file's tensors or keys. Lookup is a binary search, so crafted names cannot make
 * it slow. */
#ifndef LLMC_FORMATS_NAME_TABLE_H
#define LLMC_FORMATS_NAME_TABLE_H

#include <stddef.h>

typedef struct NameEntry {
	const char *name;
	size_t at;
} NameEntry;

/* Sorts e. Returns NULL, or the later of the first two entries that share a name (the earlier one
 * precedes it in e). */
const NameEntry *names_sort(NameEntry *e, size_t n);
const NameEntry *names_find(const NameEntry *e, size_t n, const char *name); /* NULL: none */

/* A name from a file, shortened and without control bytes, for error messages. */
typedef struct NameText {
	char s[84];
} NameText;
NameText name_text(const char *s, size_t n);

#endif
