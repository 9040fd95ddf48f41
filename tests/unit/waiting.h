/* Waits of unit tests. Every deadline is a multiple of LLMC_TEST_SLOW (default 1), as in
 * tests/waiting.py. */
#ifndef TESTS_UNIT_WAITING_H
#define TESTS_UNIT_WAITING_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { WAIT_HANG_S = 600 }; /* seconds after which a condition counts as hanging, before scaling */

static inline double
wait_scaled(double seconds)
{
	const char *slow = getenv("LLMC_TEST_SLOW");
	double factor = slow ? atof(slow) : 0;

	return seconds * (factor > 0 ? factor : 1);
}

/* Sleep briefly between two polls; end the program when the deadline has passed. Usable from any
 * thread and process, so it does not use cmocka's assertions. */
static inline void
wait_look_again(double begun, const char *condition, const char *file, int line)
{
	if (clock_now() - begun > wait_scaled(WAIT_HANG_S)) {
		fprintf(stderr, "%s:%d: %s did not come true within %g s\n", file, line, condition,
		        wait_scaled(WAIT_HANG_S));
		abort();
	}
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

#define WAIT_FOR(condition)                                                                        \
	do {                                                                                       \
		const double begun_ = clock_now();                                                 \
		while (!(condition))                                                               \
			wait_look_again(begun_, #condition, __FILE__, __LINE__);                   \
	} while (0)

#endif
