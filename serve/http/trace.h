/* Spans of requests for an OpenTelemetry collector: OTLP over HTTP, as JSON, from a thread of its
 * own. A request's span has the queue, the prompt and the answer below it; a `traceparent` of the
 * client becomes its parent, and one that is not sampled is not told. What the collector does not
 * take is dropped: nothing waits for it. */
#ifndef LLMC_SERVE_HTTP_TRACE_H
#define LLMC_SERVE_HTTP_TRACE_H

#include "serve/http/request.h"

typedef struct Trace Trace;

/* url: http://host[:port][/path], without a path /v1/traces. E_INPUT: it is another. */
llmc_status trace_open(Server *s, const char *url, Trace **out, llmc_error *err);
/* What is left goes out first, if the collector takes it within seconds. NULL is fine. */
void trace_close(Trace *t);
/* Its identity, by its traceparent or a new one: r->trace, r->parent. */
void trace_begin(Req *r);
/* It is over; t NULL: nobody wants to know. */
void trace_request(Trace *t, Req *r);

#endif
