/* A sum of bytes that tells accidents apart (a file cut off, a bit turned), not attacks: 8 bytes at
 * a time. */
#ifndef LLMC_BASE_SUM64_H
#define LLMC_BASE_SUM64_H

#include <stddef.h>
#include <stdint.h>

uint64_t sum64(const void *data, size_t n, uint64_t seed);

#endif
