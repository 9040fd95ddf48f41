/* UTF-8: decode, encode, validate and repair. */
#ifndef LLMC_BASE_UTF8_H
#define LLMC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

/* Decode the code point at s (n > 0 bytes left) and set *len to its length. Invalid input returns
 * -1, and *len is the maximal subpart, which one U+FFFD replaces. */
int32_t utf8_next(const char *s, size_t n, size_t *len);
size_t utf8_put(char out[4], uint32_t cp);
bool utf8_valid(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); /* code points of valid UTF-8 */
/* Count the bytes of s before an incomplete but so far valid character at its end; n if there is
 * none. */
size_t utf8_whole(const char *s, size_t n);
void utf8_add_lossy(Strbuf *out, const char *s, size_t n);

#endif
