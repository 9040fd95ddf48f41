/* Bodies of requests: parsed, their fields taken, and what is wrong with them. */
#ifndef LLMC_SERVE_HTTP_JSON_BODY_H
#define LLMC_SERVE_HTTP_JSON_BODY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

enum { JSON_MAX_NEST = 100 };
typedef struct Problem { /* what is wrong with a request */
	int status;      /* 0: nothing */
	char text[1024];
	char param[128];  /* "": null */
	const char *code; /* NULL: null */
	const char *type; /* OpenAI's error.type, TGI's error_type; NULL: by the status */
} Problem;
bool problem(Problem *p, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5))); /* false */
bool problem_busy(Problem *p);             /* req_charge() said no; false */

bool problem_memory(Problem *p); /* false */

size_t body_cost(const char *data, size_t n); /* bytes that parsing may take at most: values are
                                                 much larger in memory than as text */
/* Parse a body: nesting bounded; integers beyond int64 become reals. */
json_t *body_parse(const char *data, size_t n, Problem *p);
json_t *body_object(const Strbuf *body, Problem *p); /* the same, and it is an object */
/* A whole number in 0 .. 2^64-1, the value of `key` somewhere in the body. */
bool body_u64(const Strbuf *body, const char *key, const json_t *v, uint64_t *out);
/* Fields of an object, OpenAI's manners: null is absent; false with a Problem when the type or the
 * range is wrong. */
bool field_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, bool *set,
               Problem *p);
bool field_num(const json_t *o, const char *key, double lo, double hi, double *out, bool *set,
               Problem *p);
bool field_bool(const json_t *o, const char *key, bool *out, Problem *p);
const char *json_type_name(const json_t *v);

#endif
