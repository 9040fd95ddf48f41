#include "emu.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;

void
emu_seed(uint64_t seed)
{
	state = (seed + 1) * 0x9e3779b97f4a7c15ull;
	if (!state)
		state = 1;
	for (int i = 0; i < 8; i++)
		emu_random();
}

uint64_t
emu_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dull >> 8;
}

uint64_t
emu_random_below(uint64_t n)
{
	return emu_random() % n;
}

void *
emu_alloc(size_t n)
{
	void *p = calloc(1, n ? n : 1);
	if (!p) {
		fprintf(stderr, "emu: out of host memory (%zu bytes for the emulator itself)\n", n);
		abort();
	}
	return p;
}

void *
emu_alloc_lines(size_t n)
{
	void *p = aligned_alloc(64, (n + 63) / 64 * 64);
	if (!p) {
		fprintf(stderr, "emu: out of host memory (%zu bytes for the emulator itself)\n", n);
		abort();
	}
	return memset(p, 0, n);
}

char *
emu_format(const char *fmt, ...)
{
	va_list ap;
	char *s = NULL;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0)
		abort();
	va_end(ap);
	return s;
}

long
emu_env(const char *name, long otherwise)
{
	const char *s = getenv(name);
	char *end;

	if (!s || !*s)
		return otherwise;
	long v = strtol(s, &end, 10);
	return *end ? otherwise : v;
}

/* Converts f16 by a table, because matrix instructions convert millions of values. */
float
emu_half(uint16_t h)
{
	static float table[65536];
	static bool made;

	if (unlikely(!made)) {
		for (uint32_t i = 0; i < 65536; i++) {
			int e = (int)(i >> 10 & 31);
			float m = (float)(i & 1023), v = e == 31 ? (i & 1023 ? NAN : INFINITY)
			                                 : e     ? ldexpf(1024 + m, e - 25)
			                                         : ldexpf(m, -24);
			table[i] = i >> 15 ? -v : v;
		}
		made = true;
	}
	return table[h];
}

/* Returns a checksum that detects changes of memory. */
uint64_t
emu_sum(uint64_t sum, const void *p, size_t n)
{
	const char *c = p;

	for (; n >= 8; n -= 8, c += 8) {
		uint64_t w;
		memcpy(&w, c, 8);
		sum = (sum ^ w) * 0x9e3779b97f4a7c15ull;
		sum ^= sum >> 29;
	}
	for (; n; n--, c++)
		sum = (sum ^ (unsigned char)*c) * 0x100000001b3ull;
	return sum;
}
