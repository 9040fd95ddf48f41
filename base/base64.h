/* Base64 of RFC 4648. */
#ifndef LLMC_BASE_BASE64_H
#define LLMC_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* Decode the standard or the URL-safe alphabet, with or without padding at the end. White space is
 * skipped. out has 3 * n / 4 + 3 bytes. Return the number of bytes. On invalid input return -1,
 * with the offset of the first invalid character in *at (n: the string ends within a group). */
ptrdiff_t base64_decode(const char *s, size_t n, uint8_t *out, size_t *at);
#endif
