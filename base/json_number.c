/* JSON numbers of any size: their syntax, and values that keep their digits. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

static size_t
count_digits(const char *s, size_t n)
{
	size_t k = 0;

	while (k < n && s[k] >= '0' && s[k] <= '9')
		k++;
	return k;
}

size_t
json_number_length(const char *s, size_t n, bool *real)
{
	size_t at = n && *s == '-', k = count_digits(s + at, n - at);

	*real = false;
	if (!k || (k > 1 && s[at] == '0'))
		return 0;
	at += k;
	if (at < n && s[at] == '.') {
		*real = true;
		k = count_digits(s + at + 1, n - at - 1);
		if (!k)
			return 0;
		at += k + 1;
	}
	if (at < n && (s[at] == 'e' || s[at] == 'E')) {
		*real = true;
		at++;
		at += at < n && (s[at] == '+' || s[at] == '-');
		k = count_digits(s + at, n - at);
		if (!k)
			return 0;
		at += k;
	}
	return at;
}

bool
json_number_syntax(const char *s, size_t n)
{
	bool real;

	return n && json_number_length(s, n, &real) == n;
}

/* Mark of kept numbers: U+10FFFE is not a character, so no other string begins with it. */
static const char kept[] = "\xF4\x8F\xBF\xBE";
enum { N_KEPT = sizeof kept - 1 };

json_t *
json_keep_number(const char *digits)
{
	return json_sprintf("%s%s", kept, digits);
}

const char *
json_kept_digits(const json_t *v)
{
	const char *s = json_string_value(v);

	return s && !strncmp(s, kept, N_KEPT) &&
	               json_number_syntax(s + N_KEPT, json_string_length(v) - N_KEPT)
	           ? s + N_KEPT
	           : NULL;
}

double
json_number_of(const json_t *v)
{
	const char *digits = json_kept_digits(v);

	return digits ? strtod(digits, NULL) : json_number_value(v);
}

bool
json_is_any_number(const json_t *v)
{
	return json_is_number(v) || json_kept_digits(v);
}

char *
json_dumps_numbers(const json_t *v, size_t flags)
{
	char *text = json_dumps(v, flags), *to = text;

	/* a string that begins with the mark is a kept number: remove its quotes and mark */
	for (const char *s = text; s && *s;) {
		size_t n = *s == '"' && !strncmp(s + 1, kept, N_KEPT) ? strcspn(s + 1, "\"") : 0;
		if (n && json_number_syntax(s + 1 + N_KEPT, n - N_KEPT) && s[1 + n + 1] != ':') {
			memmove(to, s + 1 + N_KEPT, n - N_KEPT);
			to += n - N_KEPT;
			s += n + 2;
		} else if (*s == '"') { /* any other string is copied unchanged */
			const char *end = s + 1;
			while (*end && *end != '"')
				end += *end == '\\' && end[1] ? 2 : 1;
			end += *end == '"';
			memmove(to, s, (size_t)(end - s));
			to += end - s;
			s = end;
		} else {
			*to++ = *s++;
		}
	}
	if (text)
		*to = 0;
	return text;
}
