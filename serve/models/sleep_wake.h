/* Calls reserved for the operator. */
#ifndef LLMC_SERVE_MODELS_SLEEP_WAKE_H
#define LLMC_SERVE_MODELS_SLEEP_WAKE_H

#include "serve/http/request.h"

/* Report whether this request may load and unload engines: no key with limits, no web page of
 * another origin. False with a Problem. */
bool sleep_allowed(Req *r, Problem *p);
/* Resolve `path`, with or without the prefix `dir`, to an existing path below dir; malloc'd. NULL:
 * the path does not exist, or is outside dir, perhaps through a link. */
char *path_below(const char *dir, const char *path);

#endif
