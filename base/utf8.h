/* UTF-8: decode, encode, validate and repair. */
#ifndef LLMC_BASE_UTF8_H
#define LLMC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

/* Decode the code point at s (n > 0 bytes left) and set *len to its length. For invalid input
 * return -1, with *len the length of the maximal subpart, which one U+FFFD replaces. */
int32_t utf8_next(const char *s, size_t n, size_t *len);
size_t utf8_put(char out[4], uint32_t cp);
bool utf8_valid(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); /* number of code points of valid UTF-8 */
/* Return the number of bytes of s before an incomplete but so far valid character at its end; n if
 * s does not end in one. */
size_t utf8_whole(const char *s, size_t n);
/* Report whether a code point could forge a line, hide text or steer a terminal: C0 and C1
 * controls, line and paragraph separators, bidirectional controls, invisible characters. */
bool utf8_is_unsafe(int32_t cp);
/* Replace unsafe code points of s, and bytes that are not UTF-8, by '?'. lines: keep newlines and
 * tabs. */
void utf8_make_printable(char *s, bool lines);
void utf8_add_lossy(Strbuf *out, const char *s, size_t n);

#endif
