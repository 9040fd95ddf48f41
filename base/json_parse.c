/* JSON parser that builds jansson's values.
 *
 * jansson's own lexer ignores failed appends to its token buffer: if one allocation fails and the
 * next succeeds, it writes beyond its buffers, or an assertion stops the process. This parser stops
 * at the first failed allocation. Grammar, limits and messages are those of jansson's json_loadb,
 * which must not be called. */
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 2048, MAX_NEAR = 20 };

typedef struct JsonParser {
	const char *s;
	size_t n, at, token; /* token: where the current one begins */
	size_t flags;
	int depth;
	json_error_t *why;
	bool no_memory;
	Strbuf text; /* the current string or number */
} JsonParser;

static json_t *parse_value(JsonParser *p);

/* ---- errors ---- */

static void
fill_error(JsonParser *p, enum json_error_code code, const char *text, bool near)
{
	json_error_t *e = p->why;
	size_t line = 1, column = 0, len = p->at - p->token;

	if (!e)
		return;
	if (near && !len && code == json_error_invalid_syntax)
		code = json_error_premature_end_of_input;
	for (size_t i = 0; i < p->at; i++) {
		column += (p->s[i] & 0xc0) != 0x80;
		if (p->s[i] == '\n') {
			line++;
			column = 0;
		}
	}
	*e = (json_error_t){ .line = (int)line, .column = (int)column, .position = (int)p->at };
	snprintf(e->source, sizeof e->source, "<buffer>");
	if (near && !len)
		snprintf(e->text, sizeof e->text - 1, "%s near end of file", text);
	else if (near && len <= MAX_NEAR)
		snprintf(e->text, sizeof e->text - 1, "%s near '%.*s'", text, (int)len,
		         p->s + p->token);
	else
		snprintf(e->text, sizeof e->text - 1, "%s", text);
	/* json_error_code() reads the code from the last byte */
	e->text[sizeof e->text - 1] = (char)code;
}

static void *
bad(JsonParser *p, enum json_error_code code, const char *text)
{
	fill_error(p, code, text, true);
	return NULL;
}

static void *
out_of_memory(JsonParser *p)
{
	p->no_memory = true;
	fill_error(p, json_error_out_of_memory, "out of memory", false);
	return NULL;
}

static json_t *
or_out_of_memory(JsonParser *p, json_t *v)
{
	return v ? v : out_of_memory(p);
}

/* Refuse the byte at p->at if it begins no UTF-8 character. */
static bool
bad_utf8(JsonParser *p)
{
	char text[64];
	size_t len;

	if (utf8_next(p->s + p->at, p->n - p->at, &len) >= 0)
		return false;
	snprintf(text, sizeof text, "unable to decode byte 0x%x",
	         (unsigned)(unsigned char)p->s[p->at]);
	fill_error(p, json_error_invalid_utf8, text, false);
	return true;
}

/* ---- tokens ---- */

static bool
is_digit(const JsonParser *p, size_t at)
{
	return at < p->n && p->s[at] >= '0' && p->s[at] <= '9';
}

static bool
is_alpha(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Skip white space; returns the next character, 0 at the end or for a NUL. */
static char
next_token(JsonParser *p)
{
	while (p->at < p->n && (p->s[p->at] == ' ' || p->s[p->at] == '\t' || p->s[p->at] == '\n' ||
	                        p->s[p->at] == '\r'))
		p->at++;
	p->token = p->at;
	return p->at < p->n ? p->s[p->at] : 0;
}

/* Move p->at to the end of the token at p->token, for an error's context. */
static void
skip_token(JsonParser *p)
{
	size_t len = 1;

	if (p->at >= p->n)
		return;
	if (p->s[p->at] == '"') {
		for (p->at++; p->at < p->n && p->s[p->at] != '"'; p->at++)
			p->at += p->s[p->at] == '\\' && p->at + 1 < p->n;
		p->at += p->at < p->n;
	} else if (is_alpha(p->s[p->at])) {
		while (p->at < p->n && is_alpha(p->s[p->at]))
			p->at++;
	} else if (is_digit(p, p->at) || p->s[p->at] == '-') {
		while (p->at < p->n && strchr("0123456789+-.eE", p->s[p->at]) && p->s[p->at])
			p->at++;
	} else {
		utf8_next(p->s + p->at, p->n - p->at, &len);
		p->at += len;
	}
}

static json_t *
unexpected_as(JsonParser *p, enum json_error_code code, const char *text)
{
	if (p->at < p->n && (unsigned char)p->s[p->at] >= 0x80 && bad_utf8(p))
		return NULL;
	skip_token(p);
	return bad(p, code, text);
}

static json_t *
unexpected(JsonParser *p, const char *text)
{
	return unexpected_as(p, json_error_invalid_syntax, text);
}

static int32_t
hex4(const JsonParser *p, size_t at)
{
	int32_t v = 0;

	for (size_t i = at; i < at + 4; i++) {
		int d = hex_digit(i < p->n ? p->s[i] : 0);
		if (d < 0)
			return -1;
		v = 16 * v + d;
	}
	return v;
}

/* Decode the escape at p->at. */
static bool
escape(JsonParser *p)
{
	static const char letter[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
	const char *known;
	char c = p->at + 1 < p->n ? p->s[p->at + 1] : 0, out[4];

	if (c && (known = strchr(letter, c)) != NULL) {
		strbuf_putc(&p->text, value[known - letter]);
		p->at += 2;
		return true;
	}
	int32_t cp = c == 'u' ? hex4(p, p->at + 2) : -1;
	size_t len = 6;
	if (cp < 0) {
		p->at += p->at + 1 < p->n ? 2 : 1;
		return bad(p, json_error_invalid_syntax, "invalid escape");
	}
	if (cp >= 0xd800 && cp < 0xe000) {
		int32_t low = p->at + 7 < p->n && p->s[p->at + 6] == '\\' && p->s[p->at + 7] == 'u'
		                  ? hex4(p, p->at + 8)
		                  : -1;
		if (cp >= 0xdc00 || low < 0xdc00 || low > 0xdfff) {
			char text[64];
			snprintf(text, sizeof text, "invalid Unicode '\\u%04X'", (unsigned)cp);
			p->at += len;
			return bad(p, json_error_invalid_syntax, text);
		}
		cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
		len = 12;
	}
	strbuf_add(&p->text, out, utf8_put(out, (uint32_t)cp));
	p->at += len;
	return true;
}

/* Read the string at p->at into p->text. */
static bool
string(JsonParser *p)
{
	strbuf_clear(&p->text);
	p->at++;
	for (;;) {
		size_t from = p->at, len;
		while (p->at < p->n && (unsigned char)p->s[p->at] >= 32 &&
		       (unsigned char)p->s[p->at] < 128 && p->s[p->at] != '"' &&
		       p->s[p->at] != '\\')
			p->at++;
		strbuf_add(&p->text, p->s + from, p->at - from);
		if (p->at >= p->n)
			return bad(p, json_error_premature_end_of_input, "premature end of input");
		unsigned char c = (unsigned char)p->s[p->at];
		if (c == '"')
			break;
		if (c == '\\') {
			if (!escape(p))
				return false;
		} else if (c < 32) {
			char text[64];
			snprintf(text, sizeof text, "control character 0x%x", (unsigned)c);
			return bad(p, json_error_invalid_syntax,
			           c == '\n' ? "unexpected newline" : text);
		} else {
			if (bad_utf8(p))
				return false;
			utf8_next(p->s + p->at, p->n - p->at, &len);
			strbuf_add(&p->text, p->s + p->at, len);
			p->at += len;
		}
	}
	p->at++;
	return !p->text.failed || out_of_memory(p);
}

static json_t *
number(JsonParser *p)
{
	bool real;
	size_t n = json_number_length(p->s + p->at, p->n - p->at, &real);

	if (!n)
		return unexpected(p, "invalid token");
	strbuf_clear(&p->text);
	strbuf_add(&p->text, p->s + p->at, n);
	p->at += n;
	if (p->text.failed)
		return out_of_memory(p);
	if (real) {
		double x;
		/* number_parse refuses a valid number if it overflows or if memory runs out */
		errno = 0;
		if (number_parse(strbuf_str(&p->text), &x))
			return or_out_of_memory(p, json_real(x));
		if (errno != ENOMEM && (p->flags & JSON_KEEP_REALS))
			return or_out_of_memory(p, json_keep_number(strbuf_str(&p->text)));
		return errno == ENOMEM
		           ? out_of_memory(p)
		           : bad(p, json_error_numeric_overflow, "real number overflow");
	}
	errno = 0;
	long long v = strtoll(strbuf_str(&p->text), NULL, 10);
	if (errno == ERANGE && (p->flags & JSON_KEEP_INTEGERS))
		return or_out_of_memory(p, json_keep_number(strbuf_str(&p->text)));
	if (errno == ERANGE)
		return bad(p, json_error_numeric_overflow,
		           v < 0 ? "too big negative integer" : "too big integer");
	return or_out_of_memory(p, json_integer(v));
}

static json_t *
word(JsonParser *p)
{
	static const struct {
		const char *text;
		json_t *(*make)(void);
	} words[] = { { "true", json_true }, { "false", json_false }, { "null", json_null } };

	skip_token(p);
	size_t n = p->at - p->token;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strlen(words[i].text) == n && memcmp(p->s + p->token, words[i].text, n) == 0)
			return words[i].make();
	return bad(p, json_error_invalid_syntax, "invalid token");
}

/* ---- values ---- */

static json_t *
parse_array(JsonParser *p)
{
	json_t *array = json_array(), *v;

	if (!array)
		return out_of_memory(p);
	p->at++;
	for (char c = next_token(p); c != ']'; c = next_token(p)) {
		if (p->at >= p->n) {
			bad(p, json_error_premature_end_of_input, "']' expected");
			goto fail;
		}
		if (!(v = parse_value(p)))
			goto fail;
		if (json_array_append_new(array, v) != 0) {
			out_of_memory(p);
			goto fail;
		}
		c = next_token(p);
		if (c == ']')
			break;
		if (c != ',') {
			unexpected(p, "']' expected");
			goto fail;
		}
		p->at++;
		if (next_token(p) == ']') {
			unexpected(p, "unexpected token");
			goto fail;
		}
	}
	p->at++;
	return array;
fail:
	json_decref(array);
	return NULL;
}

static bool
pair(JsonParser *p, json_t *object)
{
	if (next_token(p) != '"')
		return unexpected(p, "string or '}' expected");
	if (!string(p))
		return false;
	if (memchr(strbuf_str(&p->text), 0, p->text.len))
		return bad(p, json_error_null_byte_in_key, "NUL byte in object key not supported");
	if ((p->flags & JSON_REJECT_DUPLICATES) && json_object_get(object, strbuf_str(&p->text)))
		return bad(p, json_error_duplicate_key, "duplicate object key");
	char *key = strdup(strbuf_str(&p->text));
	if (!key)
		return out_of_memory(p);
	json_t *v = NULL;
	if (next_token(p) != ':') {
		unexpected(p, "':' expected");
	} else {
		p->at++;
		next_token(p);
		v = parse_value(p);
	}
	bool ok = v && json_object_set_new_nocheck(object, key, v) == 0;
	free(key);
	return ok || (v && out_of_memory(p));
}

static json_t *
parse_object(JsonParser *p)
{
	json_t *object = json_object();

	if (!object)
		return out_of_memory(p);
	p->at++;
	if (next_token(p) != '}') {
		for (;;) {
			if (!pair(p, object))
				goto fail;
			char c = next_token(p);
			if (c == '}')
				break;
			if (c != ',') {
				unexpected(p, "'}' expected");
				goto fail;
			}
			p->at++;
		}
	}
	p->at++;
	return object;
fail:
	json_decref(object);
	return NULL;
}

/* Parse the value at p->token. */
static json_t *
parse_value(JsonParser *p)
{
	char c = p->at < p->n ? p->s[p->at] : 0;
	json_t *v;

	if (++p->depth > MAX_DEPTH) {
		skip_token(p);
		return bad(p, json_error_stack_overflow, "maximum parsing depth reached");
	}
	if (c == '{') {
		v = parse_object(p);
	} else if (c == '[') {
		v = parse_array(p);
	} else if (c == '"') {
		if (!string(p))
			return NULL;
		if (!(p->flags & JSON_ALLOW_NUL) && memchr(strbuf_str(&p->text), 0, p->text.len))
			return bad(p, json_error_null_character,
			           "\\u0000 is not allowed without JSON_ALLOW_NUL");
		v = or_out_of_memory(p, json_stringn_nocheck(strbuf_str(&p->text), p->text.len));
	} else if (c == '-' || is_digit(p, p->at)) {
		v = number(p);
	} else if (is_alpha(c)) {
		v = word(p);
	} else {
		return unexpected(p, p->at >= p->n || strchr("}],:", c) ? "unexpected token"
		                                                        : "invalid token");
	}
	p->depth--;
	return v;
}

json_t *
json_parse(const char *text, size_t n, size_t flags, json_error_t *why, bool *no_memory)
{
	JsonParser p = { .s = text, .n = n, .flags = flags, .why = why };
	json_t *v = NULL;
	char c = next_token(&p);

	if (why)
		*why = (json_error_t){ .line = -1, .column = -1 };
	if (!(flags & JSON_DECODE_ANY) && c != '[' && c != '{')
		unexpected(&p, "'[' or '{' expected");
	else
		v = parse_value(&p);
	if (v) {
		next_token(&p);
		if (p.at < p.n) {
			unexpected_as(&p, json_error_end_of_input_expected, "end of file expected");
			json_decref(v);
			v = NULL;
		}
	}
	strbuf_release(&p.text);
	if (no_memory)
		*no_memory = p.no_memory;
	return v;
}
