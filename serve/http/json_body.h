/* Request bodies: parsing, access to fields, and Problems that describe mistakes. */
#ifndef LLMC_SERVE_HTTP_JSON_BODY_H
#define LLMC_SERVE_HTTP_JSON_BODY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"

enum { JSON_MAX_NEST = 100 };
typedef struct Problem { /* reason why a request is refused */
	int status;      /* HTTP status; 0: no problem */
	char text[1024];
	char param[128];  /* "": null in the answer */
	const char *code; /* NULL: null in the answer */
	const char *type; /* OpenAI's error.type, TGI's error_type; NULL: derived from the status */
	/* with context_length_exceeded: tokens of the prompt, new tokens (0: the prompt alone is
	 * too long), and the limit */
	int64_t n_prompt, n_new, most;
	char model[128]; /* with model_not_found: the requested name, possibly truncated */
} Problem;
/* Status of a Problem that is not sent to the client: the image worker handles the request
 * again. */
enum { PROBLEM_MOVED = -1 };
/* Sets the status, parameter and text of a Problem; returns false. */
bool problem(Problem *p, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool problem_busy(Problem *p);    /* call after req_charge() has failed; returns false */
bool problem_closing(Problem *p); /* the server is shutting down; returns false */

/* Add the lengths to a Problem of a prompt that is too long; returns false. */
static inline bool
problem_length(Problem *p, size_t n_prompt, int64_t n_new, size_t most)
{
	p->n_prompt = (int64_t)n_prompt;
	p->n_new = n_new;
	p->most = (int64_t)most;
	return false;
}
bool problem_memory(Problem *p); /* returns false */
/* Describe the failure of a library call: memory ran out, or the time limit of the request has
 * passed, or else `text` with this HTTP status. Returns false. */
bool problem_of(Problem *p, llmc_status status, int http, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define REQUEST_TOO_LONG "The request took longer than the server allows (--request-timeout)."

/* upper bound of the memory for parsing, in bytes: values take much more memory than their text */
size_t body_cost(const char *data, size_t n);
/* Parse a body. Nesting is bounded; integers beyond int64 become reals. */
json_t *body_parse(const char *data, size_t n, Problem *p);
json_t *body_object(const Strbuf *body, Problem *p); /* like body_parse, but only an object */
/* Read an integer in 0 .. 2^64-1, for which body_parse keeps the digits of large numbers. */
bool number_u64(const json_t *v, uint64_t *out);
/* Read fields of an object; as in OpenAI's API, null means absent. False with a Problem on a wrong
 * type or range. */
bool field_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, bool *set,
               Problem *p);
bool field_num(const json_t *o, const char *key, double lo, double hi, double *out, bool *set,
               Problem *p);
bool field_bool(const json_t *o, const char *key, bool *out, Problem *p);
/* *out is NULL if the field is absent. A string with a NUL character is refused. out NULL: only
 * check the type. */
bool field_text(const json_t *o, const char *key, const char **out, Problem *p);
const char *json_type_name(const json_t *v);

#endif
