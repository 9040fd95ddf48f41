/* Ollama's keep_alive: how long a model stays loaded after a request. */
#ifndef LLMC_SERVE_DIALECTS_KEEP_ALIVE_H
#define LLMC_SERVE_DIALECTS_KEEP_ALIVE_H

#include "serve/http/request.h"

/* Apply "keep_alive" of a body to the request's model: seconds, or a duration such as "5m" or
 * "1h30m"; negative: for ever; 0: it is unloaded when its requests have been answered. Without the
 * field the server's --sleep-after applies again. *seconds may be NULL; it is -1 if the field is
 * absent. False with a Problem: neither a number nor a duration. */
bool keep_alive_read(Req *r, const json_t *body, double *seconds, Problem *p);

#endif
