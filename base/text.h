/* Small string predicates and comparisons. */
#ifndef LLMC_BASE_TEXT_H
#define LLMC_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

/* Return whether s ends with `tail`; NULL ends only with "". */
static inline bool
ends_with(const char *s, const char *tail)
{
	size_t n = s ? strlen(s) : 0, k = strlen(tail);

	return n >= k && (k == 0 || memcmp(s + n - k, tail, k) == 0);
}

/* Order of two elements of a `char *` array, for qsort */
static inline int
text_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

#endif
