/* OpenTelemetry spans of requests: OTLP/HTTP as JSON, sent by one thread. A request's span has
 * children for queue, prompt and answer. A `traceparent` header of the client sets the parent; if
 * it is not sampled, no span is sent. Spans that the collector does not accept are dropped: no
 * request waits for it. */
#ifndef LLMC_SERVE_HTTP_TRACE_H
#define LLMC_SERVE_HTTP_TRACE_H

#include "serve/http/request.h"

typedef struct Trace Trace;

/* url: http://host[:port][/path]; the default path is /v1/traces. E_INPUT: the URL has another
 * form. */
llmc_status trace_open(Server *s, const char *url, Trace **out, llmc_error *err);
/* Send the remaining spans, which takes at most some seconds, and free. t may be NULL. */
void trace_close(Trace *t);
/* Set r->trace and r->parent from the request's traceparent header, or create new ids. */
void trace_begin(Req *r);
/* Record a finished request; t NULL: tracing is off. */
void trace_request(Trace *t, Req *r);

#endif
