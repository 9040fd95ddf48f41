/* Parses request bodies, which are untrusted JSON. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "serve/http/json_body.h"

bool
problem(Problem *p, int status, const char *param, const char *fmt, ...)
{
	va_list ap;

	*p = (Problem){ .status = status };
	va_start(ap, fmt);
	vsnprintf(p->text, sizeof p->text, fmt, ap);
	va_end(ap);
	/* the message may quote a part of the request that was cut within a character */
	size_t n = utf8_whole(p->text, strlen(p->text)), len;
	p->text[n] = 0;
	for (size_t i = 0; i < n; i += len) /* the quote may also be invalid UTF-8 */
		if (utf8_next(p->text + i, n - i, &len) < 0)
			memset(p->text + i, '?', len);
	snprintf(p->param, sizeof p->param, "%s", param ? param : "");
	return false;
}

bool
problem_busy(Problem *p)
{
	return problem(
	    p, 503, NULL,
	    "The server's memory limit for requests and answers is reached; try again later.");
}

bool
problem_memory(Problem *p)
{
	return problem(p, 503, NULL, "The server is out of memory; try again later.");
}

bool
problem_closing(Problem *p)
{
	return problem(p, 503, NULL, "The server is shutting down.");
}

bool
problem_of(Problem *p, llmc_status status, int http, const char *param, const char *fmt, ...)
{
	char text[sizeof p->text];
	va_list ap;

	if (status == LLMC_E_MEMORY)
		return problem_memory(p);
	if (status == LLMC_E_CANCELLED)
		return problem(p, 503, NULL, REQUEST_TOO_LONG);
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return problem(p, http, param, "%s", text);
}

/* Return the end of the string whose content begins at s: its closing quote, or n. */
static size_t
string_end(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && s[i] != '"')
		i += s[i] == '\\' ? 2 : 1;
	return i < n ? i : n;
}

/* Is the value of this key data, that is, a schema or arguments of a call? `top`: the key is in the
 * body itself, where `parameters` holds TGI's options. */
static bool
holds_data(const char *key, const json_t *v, bool top)
{
	static const char *const keys[] = { "schema", "input_schema", "guided_json", "json",
		                            "format", "arguments",    "input",       "value" };

	if (!json_is_object(v))
		return false;
	if (!strcmp(key, "parameters"))
		return !top;
	/* OpenAI's json_schema is an object with a name and a schema; elsewhere it is the schema
	 * itself */
	if (!strcmp(key, "json_schema"))
		return !json_object_get(v, "schema");
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!strcmp(key, keys[i]))
			return true;
	return false;
}

/* The parser keeps integers beyond int64 as strings of digits. Round them to reals, except in data
 * and in TGI's seed, an unsigned 64-bit integer. */
static bool
round_fields(json_t *o, bool top, bool in_parameters)
{
	const char *key;
	json_t *v;
	size_t i;

	json_array_foreach (o, i, v)
		if (json_kept_digits(v)
		        ? json_array_set_new(o, i, json_real(json_number_of(v))) != 0
		        : !round_fields(v, false, false))
			return false;
	json_object_foreach (o, key, v)
		if (json_kept_digits(v)
		        ? !(in_parameters && !strcmp(key, "seed")) &&
		              json_object_set_new(o, key, json_real(json_number_of(v))) != 0
		        : !holds_data(key, v, top) &&
		              !round_fields(v, false, top && !strcmp(key, "parameters")))
			return false;
	return true;
}

size_t
body_cost(const char *s, size_t n)
{
	size_t objects = 0, values = 0;
	bool in_text = false;

	for (size_t i = 0; i < n; i++)
		if (s[i] == '\\') {
			i++;
		} else if (in_text) {
			in_text = s[i] != '"';
		} else {
			in_text = s[i] == '"';
			objects += s[i] == '{' || s[i] == '[';
			values += s[i] == ',' || s[i] == ':';
		}
	return 4 * n + 300 * objects + 100 * values;
}

json_t *
body_parse(const char *data, size_t n, Problem *p)
{
	json_error_t je;
	size_t depth = 0;

	if (n == 0) {
		problem(p, 400, NULL, "the body is empty: a JSON object is expected");
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		if (data[i] == '"') {
			i += string_end(data + i + 1, n - i - 1) + 1;
		} else if (data[i] == '{' || data[i] == '[') {
			if (++depth > JSON_MAX_NEST) {
				problem(p, 400, NULL, "the body is nested deeper than %d levels",
				        JSON_MAX_NEST);
				return NULL;
			}
		} else if ((data[i] == '}' || data[i] == ']') && depth) {
			depth--;
		}
	}
	bool no_memory;
	json_t *o = json_parse(data, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_KEEP_INTEGERS, &je,
	                       &no_memory);
	if (o && !round_fields(o, true, false)) {
		json_decref(o);
		o = NULL;
		no_memory = true;
	}
	if (no_memory)
		problem_memory(p);
	else if (!o)
		problem(p, 400, NULL, "the body is not valid JSON: %s at line %d, column %d",
		        je.text, je.line, je.column);
	return o;
}

json_t *
body_object(const Strbuf *body, Problem *p)
{
	json_t *o = body_parse(strbuf_str(body), body->len, p);

	if (o && !json_is_object(o)) {
		problem(p, 400, NULL, "The body must be a JSON object, but is %s.",
		        json_type_name(o));
		json_decref(o);
		return NULL;
	}
	return o;
}

bool
number_u64(const json_t *v, uint64_t *out)
{
	const char *digits = json_kept_digits(v);
	char *end;

	if (json_is_integer(v)) {
		*out = (uint64_t)json_integer_value(v);
		return json_integer_value(v) >= 0;
	}
	if (!digits || *digits == '-')
		return false;
	errno = 0;
	*out = strtoull(digits, &end, 10);
	return !errno && !*end;
}

const char *
json_type_name(const json_t *v)
{
	if (!v)
		return "nothing";
	if (json_kept_digits(v))
		return "an integer";
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
		return "null";
	}
	return "nothing";
}

static bool
wrong_type(Problem *p, const char *key, const char *expected, const json_t *v)
{
	return problem(p, 400, key, "Invalid type for '%s': expected %s, but got %s instead.", key,
	               expected, json_type_name(v));
}

bool
field_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, bool *set,
          Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (set)
		*set = false;
	if (!v || json_is_null(v))
		return true;
	if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v))) {
		double x = json_real_value(v); /* clients in languages without integers send 16.0 */
		*out = x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
		/* out of range for int64; -2^63 itself is in range */
		if (x >= 0x1p63 || x <= -0x1p63)
			return problem(p, 400, key,
			               "Invalid '%s': the value is %s than the %s of %lld.", key,
			               x < 0 ? "less" : "greater", x < 0 ? "minimum" : "maximum",
			               (long long)(x < 0 ? lo : hi));
	} else if (!json_is_integer(v)) {
		return wrong_type(p, key, "an integer", v);
	} else {
		*out = json_integer_value(v);
	}
	if (*out < lo)
		return problem(p, 400, key, "Invalid '%s': %lld is less than the minimum of %lld.",
		               key, (long long)*out, (long long)lo);
	if (*out > hi)
		return problem(p, 400, key,
		               "Invalid '%s': %lld is greater than the maximum of %lld.", key,
		               (long long)*out, (long long)hi);
	if (set)
		*set = true;
	return true;
}

bool
field_num(const json_t *o, const char *key, double lo, double hi, double *out, bool *set,
          Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (set)
		*set = false;
	if (!v || json_is_null(v))
		return true;
	if (!json_is_number(v))
		return wrong_type(p, key, "a number", v);
	*out = json_number_value(v);
	if (!(*out >= lo))
		return problem(p, 400, key, "Invalid '%s': %g is less than the minimum of %g.", key,
		               *out, lo);
	if (!(*out <= hi))
		return problem(p, 400, key, "Invalid '%s': %g is greater than the maximum of %g.",
		               key, *out, hi);
	if (set)
		*set = true;
	return true;
}

bool
field_bool(const json_t *o, const char *key, bool *out, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (!v || json_is_null(v))
		return true;
	if (!json_is_boolean(v))
		return wrong_type(p, key, "a boolean", v);
	*out = json_is_true(v);
	return true;
}

bool
field_text(const json_t *o, const char *key, const char **out, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (out)
		*out = json_string_value(v);
	if (!v || json_is_null(v))
		return true;
	if (!json_is_string(v))
		return wrong_type(p, key, "a string", v);
	return !out || strlen(*out) == json_string_length(v) ||
	       problem(p, 400, key, "Invalid '%s': the string contains NUL.", key);
}
