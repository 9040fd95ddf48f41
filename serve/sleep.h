/* Calls of the operator. */
#ifndef LLMC_SERVE_SLEEP_H
#define LLMC_SERVE_SLEEP_H

#include "serve/req.h"

/* Whether this request may close and open engines: no key with limits, no web page of another origin. False with a Problem. */
bool sleep_allowed(Req *r, Problem *p);

#endif
