/* Calls reserved for the operator. */
#ifndef LLMC_SERVE_MODELS_SLEEP_WAKE_H
#define LLMC_SERVE_MODELS_SLEEP_WAKE_H

#include "serve/http/request.h"

/* Report whether this request may load and unload engines: no key with limits, no web page of
 * another origin. False with a Problem. */
bool sleep_allowed(Req *r, Problem *p);

#endif
