/* A Kv in this process whose host copies run as late as possible, or at random points. Code that
 * does not wait for a copy then reads old content, or copies newer content. */
#ifndef TESTS_UNIT_LATE_COPIES_H
#define TESTS_UNIT_LATE_COPIES_H

#include <stdlib.h>
#include <string.h>

#include "runtime/kv/kv.h"

typedef struct LateCopy {
	void *to;
	const void *from;
	size_t bytes;
	uint32_t group;
} LateCopy;

typedef struct Late {
	LateCopy copy[8192];        /* copies that have not run yet, in order */
	int n, n_queries, n_waited; /* queries of `over`; of those, queries that returned false */
	uint32_t group;             /* last completed group */
	uint64_t random;            /* not 0 */
} Late;

static inline uint32_t
late_roll(Late *l, uint32_t n)
{
	l->random ^= l->random << 13;
	l->random ^= l->random >> 7;
	l->random ^= l->random << 17;
	return (uint32_t)(l->random >> 20) % n;
}

static inline void
late_make(Late *l, uint32_t group)
{
	int n = 0;

	for (; n < l->n && (int32_t)(group - l->copy[n].group) >= 0; n++)
		memcpy(l->copy[n].to, l->copy[n].from, l->copy[n].bytes);
	l->n -= n;
	memmove(l->copy, l->copy + n, (size_t)l->n * sizeof *l->copy);
}

static inline llmc_status
late_alloc(void *user, size_t bytes, void **out, llmc_error *err)
{
	(void)user;
	(void)err;
	*out = calloc(1, bytes);
	return *out ? LLMC_OK : LLMC_E_MEMORY;
}

static inline void
late_free(void *user, void *mem, size_t bytes)
{
	(void)user;
	(void)bytes;
	free(mem);
}

static inline void
late_unpin(void *user, void *mem, size_t bytes)
{
	((Late *)user)->n = 0;
	late_free(user, mem, bytes);
}

static inline void
late_now(void *user, void *to, const void *from, size_t bytes)
{
	(void)user;
	memcpy(to, from, bytes);
}

static inline void
late_clear(void *user, void *at, size_t bytes, size_t stride, int n)
{
	(void)user;
	for (int i = 0; i < n; i++)
		memset((char *)at + (size_t)i * stride, 0, bytes);
}

static inline void
late_begin(void *user)
{
	(void)user;
}

static inline void
late_copying(void *user, void *to, const void *from, size_t bytes)
{
	Late *l = user;

	if (l->n == (int)(sizeof l->copy / sizeof *l->copy))
		late_make(l, l->group);
	/* no copy of the group that is still open has run */
	assert_true(l->n < (int)(sizeof l->copy / sizeof *l->copy));
	l->copy[l->n++] = (LateCopy){ to, from, bytes, l->group + 1 };
}

static inline void
late_end(void *user, uint32_t number)
{
	Late *l = user;

	assert_int_equal(number, l->group + 1);
	l->group = number;
}

static inline void
late_wait(void *user, uint32_t number)
{
	late_make(user, number);
}

static inline bool
late_over(void *user, uint32_t number)
{
	Late *l = user;

	l->n_queries++;
	if (l->n && late_roll(l, 2)) /* simulate progress of the device: some copies run */
		late_make(l, l->copy[late_roll(l, (uint32_t)l->n)].group);
	bool over = !l->n || (int32_t)(number - l->copy[0].group) < 0;
	l->n_waited += !over;
	return over;
}

static inline KvMem
late_mem(Late *l)
{
	return (KvMem){ .user = l,
		        .alloc = late_alloc,
		        .free = late_free,
		        .copy = late_now,
		        .clear = late_clear,
		        .read = late_now,
		        .write = late_now,
		        .pin = late_alloc,
		        .unpin = late_unpin,
		        .begin = late_begin,
		        .out = late_copying,
		        .in = late_copying,
		        .end = late_end,
		        .wait = late_wait,
		        .over = late_over };
}

#endif
