#include "base/random.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* Make bytes by splitmix64, seeded by clocks, the process id and the number of the call. */
static void
bytes_of_clocks(unsigned char *out, size_t n)
{
	static atomic_uint calls;
	struct timespec wall, steady;

	clock_gettime(CLOCK_REALTIME, &wall);
	clock_gettime(CLOCK_MONOTONIC, &steady);
	uint64_t x = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
	x ^= (uint64_t)steady.tv_nsec << 34 ^ (uint64_t)getpid() << 40;
	x += (uint64_t)atomic_fetch_add(&calls, 1) << 20;
	for (size_t i = 0; i < n; i++) {
		x += 0x9e3779b97f4a7c15u;
		out[i] = (unsigned char)random_mix(x);
	}
}

void
random_bytes(void *out, size_t n)
{
	ssize_t got;

	do
		got = getrandom(out, n, 0);
	while (got < 0 && errno == EINTR);
	if (got != (ssize_t)n)
		bytes_of_clocks(out, n);
}

uint64_t
random_u64(void)
{
	uint64_t x;

	random_bytes(&x, sizeof x);
	return x;
}

void
random_hex(char *out, size_t n)
{
	unsigned char b[64];

	for (size_t i = 0; i < n; i++) {
		if (i % sizeof b == 0)
			random_bytes(b, n - i < sizeof b ? n - i : sizeof b);
		snprintf(out + 2 * i, 3, "%02x", b[i % sizeof b]);
	}
}
