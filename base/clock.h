/* Monotonic clock: not tied to the date and never set back. */
#ifndef LLMC_BASE_CLOCK_H
#define LLMC_BASE_CLOCK_H

#include <pthread.h>
#include <time.h>

double clock_now(void); /* seconds */
/* absolute time `ms` milliseconds from now, for timed waits */
void clock_after(struct timespec *t, int ms);
/* initialises c so that timed waits on it take times of clock_after */
void clock_cond_init(pthread_cond_t *c);

#endif
