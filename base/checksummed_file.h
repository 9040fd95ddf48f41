/* Trailer that identifies a built file and detects damage: 64 digits of a key, 64 digits of the
 * SHA-256 of contents and key, and 8 bytes that identify the format. The trailer comes after the
 * contents, so the dynamic loader accepts a shared object with a trailer. */
#ifndef LLMC_BASE_CHECKSUMMED_FILE_H
#define LLMC_BASE_CHECKSUMMED_FILE_H

#include "base/error.h"
#include "base/strbuf.h"

enum { CHECKSUM_TRAILER_BYTES = 136 };

void checksum_trailer_make(char trailer[CHECKSUM_TRAILER_BYTES], const char mark[8],
                           const char *key, const void *data, size_t n);
/* Verify the trailer and set *n to the bytes of the contents. E_CHECK: truncated, damaged, or
 * written with another key. `path` is for the message. */
llmc_status checksum_trailer_check(const char *path, const char mark[8], const char *key,
                                   const void *data, size_t size, size_t *n, llmc_error *err);

/* Read a file with a trailer. *out (may be NULL: only verify) receives the contents. E_IO: no such
 * file; E_CHECK as above; E_INPUT: another user may have written it. */
llmc_status checked_read(const char *path, const char mark[8], const char *key, Strbuf *out,
                         llmc_error *err);
llmc_status checked_write(const char *path, const char mark[8], const char *key, const void *data,
                          size_t n, llmc_error *err);

#endif
