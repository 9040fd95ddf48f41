/* Find the known word that a misspelt one is nearest to. */
#ifndef LLMC_BASE_NEAREST_H
#define LLMC_BASE_NEAREST_H

#include <stddef.h>

/* Return the edit distance (insert, delete, replace, swap of neighbours) if it is below limit, else
 * limit. For words of more than 256 bytes it is `limit`. */
size_t edit_distance(const char *a, const char *b, size_t limit);
/* Return the candidate nearest to `word` by edit distance, or NULL if none is close. Longer words
 * may differ in up to 3 characters. */
const char *nearest_text(const char *word, const char *const *candidates, size_t n);

#endif
