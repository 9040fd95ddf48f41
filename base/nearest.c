/* Find the known word that a misspelt one is nearest to. */
#include "base/nearest.h"

#include <string.h>

enum { MAX_WORD = 256 };

size_t
edit_distance(const char *a, const char *b, size_t limit)
{
	size_t na = strlen(a), nb = strlen(b), row[3][MAX_WORD + 1];
	size_t *prev2 = row[0], *prev = row[1], *cur = row[2];

	if (na > MAX_WORD || nb > MAX_WORD || (na > nb ? na - nb : nb - na) >= limit)
		return limit;
	for (size_t j = 0; j <= nb; j++)
		prev[j] = j;
	for (size_t i = 1, before = 0; i <= na; i++) {
		size_t least = cur[0] = i;
		for (size_t j = 1; j <= nb; j++) {
			size_t best = prev[j - 1] + (a[i - 1] != b[j - 1]);
			if (prev[j] + 1 < best)
				best = prev[j] + 1;
			if (cur[j - 1] + 1 < best)
				best = cur[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    prev2[j - 2] + 1 < best)
				best = prev2[j - 2] + 1;
			cur[j] = best;
			least = best < least ? best : least;
		}
		/* a swap refers to two rows above, so both rows must reach the limit */
		if (least >= limit && before >= limit)
			return limit;
		before = least;
		size_t *t = prev2;
		prev2 = prev;
		prev = cur;
		cur = t;
	}
	return prev[nb] < limit ? prev[nb] : limit;
}

const char *
nearest_text(const char *word, const char *const *candidates, size_t n)
{
	const char *best = NULL;
	size_t len = strlen(word), least = (len < 4 ? 1 : len < 8 ? 2 : 3) + 1;

	for (size_t i = 0; len && i < n; i++) {
		size_t d = *candidates[i] ? edit_distance(word, candidates[i], least) : least;
		if (d < least) {
			least = d;
			best = candidates[i];
		}
	}
	return best;
}
