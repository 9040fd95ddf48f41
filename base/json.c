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

void
json_hold(Arena *a, json_t *v)
{
	if (v)
		arena_defer(a, release, v);
}

json_t *
json_read(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why)
{
	bool no_memory;
	json_t *tree = json_parse(text, n, flags, why, &no_memory);

	json_hold(a, tree);
	if (!tree && no_memory)
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
json_string_of(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

const char *
json_text_of(const json_t *o, const char *key)
{
	const char *s = json_string_of(o, key);

	return s ? s : "";
}
