/* SHA-256 (FIPS 180-4), for cache keys and the hash of a description. */
#ifndef LLMC_BASE_SHA256_H
#define LLMC_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 {
	uint32_t h[8];
	uint64_t n_bytes;
	uint8_t block[64];
} Sha256;

void sha256_init(Sha256 *s);
void sha256_add(Sha256 *s, const void *data, size_t n);
void sha256_hex(Sha256 *s, char hex[65]); /* finalises; 64 digits and a NUL */
/* Use only portable code, for tests; false: the processor's instructions if it has them. */
void sha256_portable(bool only);

#endif
