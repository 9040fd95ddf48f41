/* Small string predicates and comparisons. */
#ifndef LLMC_BASE_TEXT_H
#define LLMC_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* Return whether s ends with `tail`; s NULL ends only with "". */
static inline bool
ends_with(const char *s, const char *tail)
{
	size_t n = s ? strlen(s) : 0, k = strlen(tail);

	return n >= k && (k == 0 || memcmp(s + n - k, tail, k) == 0);
}

/* Return whether s ends with one of n tails. */
static inline bool
ends_with_any(const char *s, const char *const *tail, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ends_with(s, tail[i]))
			return true;
	return false;
}

/* Return the next item of a comma-separated list, which has *n bytes and may be empty, and move
 * *list to the item after it. NULL: there are no more items, or *list is NULL. */
static inline const char *
text_item(const char **list, size_t *n)
{
	const char *at = *list;

	if (!at || !*at)
		return NULL;
	*n = strcspn(at, ",");
	*list = at + *n + (at[*n] == ',');
	return at;
}

/* Order of two elements of a `char *` array, for qsort */
static inline int
text_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}
/* Return the part after the host of hf.co/ORG/REPO or huggingface.co/ORG/REPO, forms of model names
 * on web pages; NULL: another string. */
static inline const char *
text_after_hub(const char *s)
{
	static const char *const hosts[] = { "hf.co/", "huggingface.co/" };

	for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
		if (strncasecmp(s, hosts[i], strlen(hosts[i])) == 0)
			return s + strlen(hosts[i]);
	return NULL;
}

#endif
