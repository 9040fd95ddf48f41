/* Find the known word that a misspelt one is nearest to. */
#include "base/nearest.h"

#include <string.h>

enum { MAX_WORD = 64 };

/* Return the edit distance (insert, delete, replace, swap of neighbours) from a to b, both at most
 * MAX_WORD long. */
static int
edits(const char *a, size_t na, const char *b, size_t nb)
{
	int row[3][MAX_WORD + 1];
	int *prev2 = row[0], *prev = row[1], *cur = row[2];

	for (size_t j = 0; j <= nb; j++)
		prev[j] = (int)j;
	for (size_t i = 1; i <= na; i++) {
		cur[0] = (int)i;
		for (size_t j = 1; j <= nb; j++) {
			int best = prev[j - 1] + (a[i - 1] != b[j - 1]);
			if (prev[j] + 1 < best)
				best = prev[j] + 1;
			if (cur[j - 1] + 1 < best)
				best = cur[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    prev2[j - 2] + 1 < best)
				best = prev2[j - 2] + 1;
			cur[j] = best;
		}
		int *t = prev2;
		prev2 = prev;
		prev = cur;
		cur = t;
	}
	return prev[nb];
}

const char *
nearest_text(const char *word, const char *const *candidates, size_t n)
{
	const char *best = NULL;
	size_t len = strlen(word);
	int limit = len < 4 ? 1 : len < 8 ? 2 : 3, least = limit + 1;

	if (len == 0 || len > MAX_WORD)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		size_t k = strlen(candidates[i]);
		if (k == 0 || k > MAX_WORD || (k > len ? k - len : len - k) >= (size_t)least)
			continue;
		int e = edits(word, len, candidates[i], k);
		if (e < least) {
			least = e;
			best = candidates[i];
		}
	}
	return best;
}
