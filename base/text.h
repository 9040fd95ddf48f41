/* Small string predicates. */
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

#endif
