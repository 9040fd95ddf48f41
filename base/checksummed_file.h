/* A trailer that identifies a built file and detects damage: 64 digits of a key, 64 of the SHA-256
 * of contents and key, 8 bytes of a mark (the format). Contents come first, so the dynamic loader
 * takes a sealed shared object as it is. */
#ifndef LLMC_BASE_CHECKSUMMED_FILE_H
#define LLMC_BASE_CHECKSUMMED_FILE_H

#include "base/error.h"
#include "base/strbuf.h"

enum { CHECKSUM_TRAILER_BYTES = 136 };

void checksum_trailer_make(char seal[CHECKSUM_TRAILER_BYTES], const char mark[8], const char *key,
                           const void *data, size_t n);
/* Bytes of the contents into *n; E_CHECK: truncated, damaged, or sealed with another key. path: for
 * the sentence */
llmc_status checksum_trailer_check(const char *path, const char mark[8], const char *key,
                                   const void *data, size_t size, size_t *n, llmc_error *err);

/* A sealed file as a whole. E_IO: there is none; E_CHECK as above; E_INPUT: others may have written
 * it. out: the contents; NULL: only checked */
llmc_status checked_read(const char *path, const char mark[8], const char *key, Strbuf *out,
                         llmc_error *err);
llmc_status checked_write(const char *path, const char mark[8], const char *key, const void *data,
                          size_t n, llmc_error *err);

#endif
