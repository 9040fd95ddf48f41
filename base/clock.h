/* The monotonic clock: of no date, and never set back. */
#ifndef LLMC_BASE_CLOCK_H
#define LLMC_BASE_CLOCK_H

#include <time.h>

double clock_now(void); /* seconds */
void clock_after(struct timespec *t,
                 int ms); /* a time so many milliseconds from now, for waits with an end */

#endif
