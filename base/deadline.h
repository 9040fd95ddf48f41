/* Time limit of the work that the calling thread does for one request.
 *
 * The server sets it before it renders, tokenizes and compiles for a request. Loops over untrusted
 * input check it and return LLMC_E_CANCELLED. The limit belongs to the thread, because the calls
 * between the server and those loops are public and have no argument for it. Threads outside of the
 * server have no limit and are never late. */
#ifndef LLMC_BASE_DEADLINE_H
#define LLMC_BASE_DEADLINE_H

#include <stdbool.h>

#include "base/error.h"

void deadline_set(double at);                /* time of clock_now(); 0 removes the limit */
double deadline_at(void);                    /* 0: none */
bool deadline_passed(void);                  /* reads the clock if there is a limit */
llmc_status deadline_error(llmc_error *err); /* returns LLMC_E_CANCELLED with a message */

#endif
