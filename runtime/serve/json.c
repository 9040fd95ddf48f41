/* Bodies in, JSON text out. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/serve/serve.h"
#include "runtime/text/text.h"

bool
problem(Problem *p, int status, const char *param, const char *fmt, ...)
{
	va_list ap;

	*p = (Problem){ .status = status };
	va_start(ap, fmt);
	vsnprintf(p->text, sizeof p->text, fmt, ap);
	va_end(ap);
	/* a quoted piece of the request may have been cut within a character */
	p->text[utf8_whole(p->text, strlen(p->text))] = 0;
	snprintf(p->param, sizeof p->param, "%s", param ? param : "");
	return false;
}

/* A number at s: its bytes; *big says that it is an integer that jansson's int64 does not hold. */
static size_t
number_span(const char *s, size_t n, bool *big)
{
	size_t i = *s == '-', digits = 0;
	bool real = false;

	for (; i < n; i++) {
		if (s[i] >= '0' && s[i] <= '9')
			digits += !real;
		else if (s[i] == '.' || s[i] == 'e' || s[i] == 'E' || s[i] == '+' || s[i] == '-')
			real = true;
		else
			break;
	}
	*big = false;
	if (!real && digits >= 19) {
		char copy[24];
		if (i >= sizeof copy) {
			*big = true;
		} else {
			memcpy(copy, s, i);
			copy[i] = 0;
			errno = 0;
			strtoll(copy, NULL, 10);
			*big = errno == ERANGE;
		}
	}
	return i;
}

/* jansson holds int64, seeds are uint64: larger integers become {"$u64":"..."}, still larger ones reals. */
static bool
rewrite_numbers(const char *s, size_t n, Strbuf *out)
{
	bool in_text = false, any = false;
	size_t from = 0;

	for (size_t i = 0; i < n; i++) {
		if (in_text) {
			if (s[i] == '\\')
				i++;
			else if (s[i] == '"')
				in_text = false;
			continue;
		}
		if (s[i] == '"') {
			in_text = true;
		} else if ((s[i] >= '0' && s[i] <= '9') || s[i] == '-') {
			bool big;
			size_t len = number_span(s + i, n - i, &big);
			if (big) {
				char copy[24];
				bool u64 = s[i] != '-' && s[i] != '0' && len < sizeof copy;
				if (u64) {
					memcpy(copy, s + i, len);
					copy[len] = 0;
					errno = 0;
					strtoull(copy, NULL, 10);
					u64 = errno != ERANGE;
				}
				any = true;
				strbuf_add(out, s + from, i - from);
				strbuf_puts(out, u64 ? "{\"$u64\":\"" : "");
				strbuf_add(out, s + i, len);
				strbuf_puts(out, u64 ? "\"}" : ".0");
				from = i + len;
			}
			i += len ? len - 1 : 0;
		}
	}
	if (any)
		strbuf_add(out, s + from, n - from);
	return any;
}

json_t *
body_parse(const char *data, size_t n, Problem *p)
{
	Strbuf fixed = { 0 };
	json_error_t je;
	size_t depth = 0;
	bool in_text = false;

	if (n == 0) {
		problem(p, 400, NULL, "the body is empty: a JSON object is expected");
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		char c = data[i];
		if (in_text) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_text = false;
		} else if (c == '"') {
			in_text = true;
		} else if (c == '{' || c == '[') {
			if (++depth > JSON_MAX_NEST) {
				problem(p, 400, NULL, "the body is nested deeper than %d levels", JSON_MAX_NEST);
				return NULL;
			}
		} else if ((c == '}' || c == ']') && depth) {
			depth--;
		}
	}
	bool big = rewrite_numbers(data, n, &fixed);
	if (fixed.failed) {
		strbuf_release(&fixed);
		problem(p, 500, NULL, "out of memory");
		return NULL;
	}
	json_t *o = json_loadb(big ? fixed.data : data, big ? fixed.len : n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
	strbuf_release(&fixed);
	if (!o)
		problem(p, 400, NULL, "the body is not valid JSON: %s at line %d, column %d", je.text, je.line, je.column);
	return o;
}

bool
json_u64(const json_t *v, uint64_t *out)
{
	if (json_is_integer(v)) {
		*out = (uint64_t)json_integer_value(v);
		return json_integer_value(v) >= 0;
	}
	const char *s = json_object_size(v) == 1 ? json_string_value(json_object_get(v, "$u64")) : NULL;
	if (!s)
		return false;
	char *end;
	errno = 0;
	*out = strtoull(s, &end, 10);
	return *s >= '0' && *s <= '9' && !*end && !errno;
}

void
json_str(Strbuf *b, const char *s, size_t n)
{
	strbuf_putc(b, '"');
	for (size_t i = 0; i < n;) {
		size_t from = i;
		while (i < n && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x7f && s[i] != '"' && s[i] != '\\')
			i++;
		strbuf_add(b, s + from, i - from);
		if (i == n)
			break;
		unsigned char c = (unsigned char)s[i];
		if (c >= 0x80) {
			size_t len;
			int32_t cp = utf8_next(s + i, n - i, &len);
			if (cp < 0)
				strbuf_puts(b, "\xef\xbf\xbd");
			else
				strbuf_add(b, s + i, len);
			i += len;
			continue;
		}
		if (c == '"' || c == '\\')
			strbuf_printf(b, "\\%c", c);
		else if (c == '\n')
			strbuf_puts(b, "\\n");
		else if (c == '\t')
			strbuf_puts(b, "\\t");
		else if (c == '\r')
			strbuf_puts(b, "\\r");
		else
			strbuf_printf(b, "\\u%04x", c);
		i++;
	}
	strbuf_putc(b, '"');
}

void
json_num(Strbuf *b, double x)
{
	char text[48];

	if (!isfinite(x)) {
		strbuf_puts(b, "null");
		return;
	}
	snprintf(text, sizeof text, "%.9g", x);
	for (char *c = text; *c; c++)
		if (*c == ',')
			*c = '.'; /* the caller's locale */
	strbuf_puts(b, text);
	if (!strpbrk(text, ".e"))
		strbuf_puts(b, ".0");
}

void
json_printf(Strbuf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	for (const char *c = fmt; *c; c++) {
		if (*c != '%') {
			strbuf_putc(b, *c);
			continue;
		}
		c++;
		if (*c == 's') {
			const char *s = va_arg(ap, const char *);
			if (s)
				json_str(b, s, strlen(s));
			else
				strbuf_puts(b, "null");
		} else if (*c == 'd') {
			strbuf_printf(b, "%d", va_arg(ap, int));
		} else if (c[0] == 'l' && c[1] == 'l' && c[2] == 'd') {
			strbuf_printf(b, "%lld", va_arg(ap, long long));
			c += 2;
		} else if (*c == 'g') {
			json_num(b, va_arg(ap, double));
		} else {
			strbuf_putc(b, *c);
		}
	}
	va_end(ap);
}

const char *
json_type_name(const json_t *v)
{
	if (!v)
		return "nothing";
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return json_object_get(v, "$u64") ? "a number beyond 2^63" : "an object";
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

bool
field_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, bool *set, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (set)
		*set = false;
	if (!v || json_is_null(v))
		return true;
	if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 9e15) {
		*out = (int64_t)json_real_value(v); /* clients of languages without integers send 16.0 */
	} else if (!json_is_integer(v)) {
		return problem(p, 400, key, "Invalid type for '%s': expected an integer, but got %s instead.", key, json_type_name(v));
	} else {
		*out = json_integer_value(v);
	}
	if (*out < lo)
		return problem(p, 400, key, "Invalid '%s': %lld is less than the minimum of %lld.", key, (long long)*out, (long long)lo);
	if (*out > hi)
		return problem(p, 400, key, "Invalid '%s': %lld is greater than the maximum of %lld.", key, (long long)*out, (long long)hi);
	if (set)
		*set = true;
	return true;
}

bool
field_num(const json_t *o, const char *key, double lo, double hi, double *out, bool *set, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (set)
		*set = false;
	if (!v || json_is_null(v))
		return true;
	if (!json_is_number(v))
		return problem(p, 400, key, "Invalid type for '%s': expected a number, but got %s instead.", key, json_type_name(v));
	*out = json_number_value(v);
	if (!(*out >= lo))
		return problem(p, 400, key, "Invalid '%s': %g is less than the minimum of %g.", key, *out, lo);
	if (!(*out <= hi))
		return problem(p, 400, key, "Invalid '%s': %g is greater than the maximum of %g.", key, *out, hi);
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
		return problem(p, 400, key, "Invalid type for '%s': expected a boolean, but got %s instead.", key, json_type_name(v));
	*out = json_is_true(v);
	return true;
}
