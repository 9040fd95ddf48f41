/* UTF-8: read, written, checked, repaired. */
#ifndef LLMC_BASE_UTF8_H
#define LLMC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

/* Code point at s (n > 0 bytes left), its length in *len. Invalid: -1, and *len is the maximal part
 * that is replaced by one U+FFFD. */
int32_t utf8_next(const char *s, size_t n, size_t *len);
size_t utf8_put(char out[4], uint32_t cp);
bool utf8_valid(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); /* code points of valid text */
/* Bytes of s that are whole: less than n when an unfinished character, valid so far, ends it. */
size_t utf8_whole(const char *s, size_t n);
void utf8_add_lossy(Strbuf *out, const char *s, size_t n);

#endif
