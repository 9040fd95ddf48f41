/* Checksum over 8 bytes at a time. It detects accidents (truncation, a flipped bit), not
 * attacks. */
#ifndef LLMC_BASE_SUM64_H
#define LLMC_BASE_SUM64_H

#include <stddef.h>
#include <stdint.h>

uint64_t sum64(const void *data, size_t n, uint64_t seed);

#endif
