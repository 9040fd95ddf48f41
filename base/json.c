#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

void
json_escape(char out[16], int32_t cp, bool ascii)
{
	static const char letter[] = "\"\"\\\\\nn\rr\tt\bb\ff";

	out[0] = 0;
	for (const char *p = letter; *p && cp < 128; p += 2)
		if (cp == *p) {
			snprintf(out, 16, "\\%c", p[1]);
			return;
		}
	if (cp > 0xffff && ascii)
		snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
		         (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
	else if (cp < 32 || (ascii && cp > 126))
		snprintf(out, 16, "\\u%04x", (unsigned)cp);
}

void
json_str(Strbuf *b, const char *s, size_t n)
{
	char esc[16];
	size_t from = 0, len;

	strbuf_putc(b, '"');
	for (size_t i = 0; i < n; i += len) {
		int32_t cp = utf8_next(s + i, n - i, &len);
		if (cp < 0)
			strcpy(esc, "\xef\xbf\xbd");
		else if (cp >= 128 || (cp >= 32 && cp != '"' && cp != '\\'))
			continue;
		else
			json_escape(esc, cp, false);
		strbuf_add(b, s + from, i - from);
		strbuf_puts(b, esc);
		from = i + len;
	}
	strbuf_add(b, s + from, n - from);
	strbuf_putc(b, '"');
}

void
json_num(Strbuf *b, double v, int digits)
{
	char text[NUMBER_SIZE];

	number_text(text, v, digits);
	strbuf_puts(b, isfinite(v) ? text : "null");
}

void
json_printf(Strbuf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	for (const char *c = fmt, *plain; *c; c++) {
		for (plain = c; *c && *c != '%'; c++)
			;
		strbuf_add(b, plain, (size_t)(c - plain));
		if (!*c || !*++c)
			break;
		if (*c == 's') {
			const char *s = va_arg(ap, const char *);
			if (s)
				json_str(b, s, strlen(s));
			else
				strbuf_puts(b, "null");
		} else if (*c == 'd') {
			strbuf_printf(b, "%d", va_arg(ap, int));
		} else if (strncmp(c, "lld", 3) == 0) {
			strbuf_printf(b, "%lld", va_arg(ap, long long));
			c += 2;
		} else if (*c == 'g') {
			json_num(b, va_arg(ap, double), 9);
		} else {
			strbuf_putc(b, *c);
		}
	}
	va_end(ap);
}

void
json_time(Strbuf *b, time_t t)
{
	char text[32];
	struct tm tm;

	gmtime_r(&t, &tm);
	strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
	json_str(b, text, strlen(text));
}

static void
release(void *tree)
{
	json_decref(tree);
}

json_t *
json_read(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why)
{
	bool no_memory;
	json_t *tree = json_parse(text, n, flags, why, &no_memory);

	if (tree)
		arena_defer(a, release, tree);
	else if (no_memory)
		arena_out(a);
	return tree;
}

/* Report the word at text + at, which is no finite number. */
static void
not_finite(json_error_t *why, const char *text, size_t at, size_t len)
{
	*why = (json_error_t){ .line = 1, .column = 1, .position = (int)at };
	for (size_t i = 0; i < at; i++) {
		why->line += text[i] == '\n';
		why->column = text[i] == '\n' ? 1 : why->column + 1;
	}
	snprintf(why->text, sizeof why->text, "%.*s is not a finite number", (int)len, text + at);
}

json_t *
json_read_python(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why)
{
	static const char *const word[] = { "-Infinity", "Infinity", "NaN" };
	Strbuf *out = arena_strbuf(a);
	bool quoted = false;
	int lists = 0;

	for (size_t i = 0; i < n; i++) {
		size_t len = 0;
		if (quoted && text[i] == '\\' && i + 1 < n) {
			strbuf_add(out, text + i++, 1);
		} else if (text[i] == '"') {
			quoted = !quoted;
		} else if (!quoted) {
			for (size_t w = 0; w < sizeof word / sizeof *word && !len; w++)
				if (n - i >= strlen(word[w]) &&
				    memcmp(text + i, word[w], strlen(word[w])) == 0)
					len = strlen(word[w]);
			lists += (text[i] == '[') - (text[i] == ']');
			if (len == strlen("NaN") || (len && lists < 1)) {
				not_finite(why, text, i, len);
				strbuf_release(out);
				return NULL;
			}
		}
		strbuf_add(out, len ? "null" : text + i, len ? 4 : 1);
		i += len ? len - 1 : 0;
	}
	if (out->failed)
		arena_out(a);
	json_t *tree = json_read(a, strbuf_str(out), out->len, flags, why);
	strbuf_release(out);
	return tree;
}

const char *
json_text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

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

/* U+10FFFE is no character, so no other string begins with it. */
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

	/* a kept number is a whole string, and its quotes and mark go */
	for (const char *s = text; s && *s;) {
		size_t n = *s == '"' && !strncmp(s + 1, kept, N_KEPT) ? strcspn(s + 1, "\"") : 0;
		if (n && json_number_syntax(s + 1 + N_KEPT, n - N_KEPT) && s[1 + n + 1] != ':') {
			memmove(to, s + 1 + N_KEPT, n - N_KEPT);
			to += n - N_KEPT;
			s += n + 2;
		} else if (*s == '"') { /* another string, as it is */
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
