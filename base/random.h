/* Random bytes of the operating system, for seeds and ids; pseudo-random numbers. */
#ifndef LLMC_BASE_RANDOM_H
#define LLMC_BASE_RANDOM_H
#include <stddef.h>
#include <stdint.h>

/* Mix the bits of x: the last step of splitmix64. Different numbers give unrelated results. */
static inline uint64_t
random_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Fill n (at most 256) bytes from getrandom(2). If a sandbox forbids that call, the bytes are made
 * from clocks and process id: distinct, but not secret. */
void random_bytes(void *out, size_t n);
/* 64 random bits. */
uint64_t random_u64(void);
/* Write n random bytes as 2 n lower-case hexadecimal digits and a NUL. */
void random_hex(char *out, size_t n);
#endif
