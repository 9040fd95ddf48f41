/* Find the known word that a misspelt one is nearest to. */
#ifndef LLMC_BASE_NEAREST_H
#define LLMC_BASE_NEAREST_H

#include <stddef.h>

/* Return the candidate nearest to `word` by edit distance, or NULL if none is close. Longer words
 * may differ in up to 3 characters. */
const char *nearest_text(const char *word, const char *const *candidates, size_t n);

#endif
