/* Tokenizes a template. Whitespace control is that of Jinja with trim_blocks and lstrip_blocks. The
 * spaces before a tag are removed if it is first on its line, and one newline is removed after a
 * block or comment. In a tag, - removes all whitespace, and + keeps all. */
#include "text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

#include "base/number.h"

static Tok *
push(Jinja *j, TokType type, int line, ByteSpan s)
{
	j->tok = arena_grow(&j->arena, j->tok, &j->cap_tok, j->n_tok + 1, sizeof *j->tok);
	j->tok[j->n_tok] = (Tok){ .type = type, .line = line, .s = s };
	return &j->tok[j->n_tok++];
}

static bool
blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

typedef struct Lex {
	const char *s;
	size_t n, at;
	int line;
} Lex;

static void
advance(Lex *x, size_t to)
{
	for (; x->at < to; x->at++)
		x->line += x->s[x->at] == '\n';
}

static bool
looking_at(const Lex *x, size_t at, const char *what)
{
	size_t n = strlen(what);
	return x->n - at >= n && memcmp(x->s + at, what, n) == 0;
}

static size_t
skip_blank(const Lex *x, size_t at)
{
	while (at < x->n && blank(x->s[at]))
		at++;
	return at;
}

/* Finds the end of a tag after a name such as raw. *end: position after the tag; newline:
 * trim_blocks applies */
static bool
tag_end(const Lex *x, size_t at, bool newline, size_t *end)
{
	if (looking_at(x, at, "-%}")) {
		*end = skip_blank(x, at + 3);
		return true;
	}
	if (newline && looking_at(x, at, "+%}")) {
		*end = at + 3;
		return true;
	}
	if (looking_at(x, at, "%}")) {
		*end = at + 2;
		if (newline && *end < x->n && x->s[*end] == '\n')
			++*end;
		return true;
	}
	return false;
}

static bool
raw_tag(const Lex *x, size_t at, const char *name, bool newline, size_t *end)
{
	at += 2;
	if (at < x->n && (x->s[at] == '-' || x->s[at] == '+'))
		at++;
	at = skip_blank(x, at);
	if (!looking_at(x, at, name))
		return false;
	return tag_end(x, skip_blank(x, at + strlen(name)), newline, end);
}

/* Emits the text before a tag at `to`, trimmed as the sign of the tag and lstrip_blocks require. */
static void
text_before(Jinja *j, const Lex *x, size_t from, size_t to, char sign, bool variable)
{
	size_t end = to;

	if (sign == '-') {
		while (end > from && blank(x->s[end - 1]))
			end--;
	} else if (sign != '+' && !variable) {
		size_t line = end;
		while (line > from && x->s[line - 1] != '\n')
			line--;
		/* if the text before `from` ended a line, a line begins at `from` */
		if (line > from || from == 0 || x->s[from - 1] == '\n') {
			size_t k = line;
			while (k < end && blank(x->s[k]))
				k++;
			if (k == end)
				end = line;
		}
	}
	if (end > from)
		push(j, T_DATA, x->line, (ByteSpan){ x->s + from, end - from });
}

static char
sign_at(const Lex *x, size_t at)
{
	return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
}

static int
hex_digits(const char *s, size_t n, uint32_t *out)
{
	*out = 0;
	for (size_t i = 0; i < n; i++) {
		int v = hex_digit(s[i]);
		if (v < 0)
			return -1;
		*out = *out << 4 | (uint32_t)v;
	}
	return 0;
}

static ByteSpan
unescape(Jinja *j, ByteSpan in)
{
	static const char from[] = "nrtabfv\\'\"", to[] = "\n\r\t\a\b\f\v\\'\"";
	char *p;
	size_t n = 0;

	if (!memchr(in.s, '\\', in.n))
		return in;
	p = jinja_alloc(j, in.n + 1, 1);
	for (size_t i = 0; i < in.n; i++) {
		if (in.s[i] != '\\' || i + 1 == in.n) {
			p[n++] = in.s[i];
			continue;
		}
		char c = in.s[++i];
		const char *hit = c ? strchr(from, c) : NULL;
		size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
		uint32_t cp;
		if (hit) {
			p[n++] = to[hit - from];
		} else if (c == '\n') {
			continue;
		} else if (c >= '0' && c <= '7') {
			cp = 0;
			for (int k = 0; k < 3 && i < in.n && in.s[i] >= '0' && in.s[i] <= '7'; k++)
				cp = cp * 8 + (uint32_t)(in.s[i++] - '0');
			i--;
			n += utf8_put(p + n, cp);
		} else if (digits) {
			if (in.n - i - 1 < digits || hex_digits(in.s + i + 1, digits, &cp) < 0 ||
			    cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
				jinja_fail(j, "a string holds a bad \\%c escape", c);
			/* an escape is never shorter than the UTF-8 of its character */
			n += utf8_put(p + n, cp);
			i += digits;
		} else {
			p[n++] = '\\';
			p[n++] = c;
		}
	}
	return (ByteSpan){ p, n };
}

static bool
name_char(const Lex *x, size_t at, size_t *len, bool first)
{
	if (at >= x->n)
		return false;
	int32_t cp = utf8_next(x->s + at, x->n - at, len);
	if (cp < 0x80)
		return cp == '_' || ((cp | 32) >= 'a' && (cp | 32) <= 'z') ||
		       (!first && cp >= '0' && cp <= '9');
	return cp_is_word((uint32_t)cp);
}

static size_t
digits(const Lex *x, size_t at)
{
	while (at < x->n &&
	       ((x->s[at] >= '0' && x->s[at] <= '9') ||
	        (x->s[at] == '_' && at + 1 < x->n && x->s[at + 1] >= '0' && x->s[at + 1] <= '9')))
		at++;
	return at;
}

static void
lex_number(Jinja *j, Lex *x)
{
	size_t end = digits(x, x->at), k;
	bool is_float = false;

	if (x->s[x->at] == '0' && x->at + 1 < x->n && strchr("xXoObB", x->s[x->at + 1]) &&
	    x->s[x->at + 1]) {
		for (end = x->at + 2; end < x->n && name_char(x, end, &k, false) && k == 1; end++)
			;
	} else {
		if (end + 1 < x->n && x->s[end] == '.' && x->s[end + 1] >= '0' &&
		    x->s[end + 1] <= '9') {
			is_float = true;
			end = digits(x, end + 1);
		}
		k = end;
		if (k < x->n && (x->s[k] | 32) == 'e') {
			k++;
			if (k < x->n && (x->s[k] == '+' || x->s[k] == '-'))
				k++;
			if (k < x->n && x->s[k] >= '0' && x->s[k] <= '9') {
				is_float = true;
				end = digits(x, k);
			}
		}
	}
	Tok *t =
	    push(j, is_float ? T_FLOAT : T_INT, x->line, (ByteSpan){ x->s + x->at, end - x->at });
	if (!num_parse(t->s, is_float, &t->num))
		jinja_fail(j, "the number %.*s is too large", (int)(t->s.n < 40 ? t->s.n : 40),
		           t->s.s);
	advance(x, end);
}

static void
lex_string(Jinja *j, Lex *x)
{
	char quote = x->s[x->at];
	size_t end = x->at + 1;

	while (end < x->n && x->s[end] != quote)
		end += x->s[end] == '\\' && end + 1 < x->n ? 2 : 1;
	if (end >= x->n)
		jinja_fail(j, "a string that begins here has no end");
	ByteSpan body = unescape(j, (ByteSpan){ x->s + x->at + 1, end - x->at - 1 });
	push(j, T_STR, x->line, body);
	advance(x, end + 1);
}

/* Tokenizes a tag including its end. */
static void
lex_tag(Jinja *j, Lex *x, bool variable)
{
	static const char two[][3] = { "//", "**", "==", "!=", ">=", "<=" };
	char open[JINJA_MAX_DEPTH];
	int depth = 0, from = x->line;
	size_t len;

	for (;;) {
		advance(x, skip_blank(x, x->at));
		j->line = x->line;
		if (x->at >= x->n) {
			j->line = from;
			jinja_fail(j, "a tag that begins here has no end");
		}
		size_t end = 0;
		if (depth == 0 && variable && looking_at(x, x->at, "-}}"))
			end = skip_blank(x, x->at + 3);
		else if (depth == 0 && variable && looking_at(x, x->at, "}}"))
			end = x->at + 2;
		if (end || (depth == 0 && !variable && tag_end(x, x->at, true, &end))) {
			push(j, variable ? T_VAR_END : T_BLOCK_END, x->line,
			     (ByteSpan){ "end of the tag", 14 });
			advance(x, end);
			return;
		}
		char c = x->s[x->at];
		jinja_step(j, 0);
		if (c >= '0' && c <= '9') {
			lex_number(j, x);
			continue;
		}
		if (c == '\'' || c == '"') {
			lex_string(j, x);
			continue;
		}
		if (name_char(x, x->at, &len, true)) {
			size_t to = x->at;
			while (name_char(x, to, &len, false))
				to += len;
			push(j, T_NAME, x->line, (ByteSpan){ x->s + x->at, to - x->at });
			advance(x, to);
			continue;
		}
		Tok *t = NULL;
		for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
			if (looking_at(x, x->at, two[i])) {
				t = push(j, T_OP, x->line, (ByteSpan){ x->s + x->at, 2 });
				t->op = OP2(two[i][0], two[i][1]);
				advance(x, x->at + 2);
				break;
			}
		}
		if (t)
			continue;
		if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
			jinja_fail(j, "unexpected character `%c`", c >= 32 && c < 127 ? c : '?');
		if (strchr("([{", c)) {
			if (depth == JINJA_MAX_DEPTH)
				jinja_fail(j, "brackets nested deeper than %d", JINJA_MAX_DEPTH);
			open[depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
		} else if (strchr(")]}", c)) {
			if (depth == 0 || open[depth - 1] != c)
				jinja_fail(j, "unexpected `%c`", c);
			depth--;
		}
		t = push(j, T_OP, x->line, (ByteSpan){ x->s + x->at, 1 });
		t->op = c;
		advance(x, x->at + 1);
	}
}

static void
lex_comment(Jinja *j, Lex *x)
{
	size_t body = x->at + 2 + (sign_at(x, x->at + 2) ? 1 : 0);
	const char *hit = memmem(x->s + body, x->n - body, "#}", 2);

	if (!hit)
		jinja_fail(j, "a comment that begins here has no end");
	size_t at = (size_t)(hit - x->s), end = at + 2;
	char sign = at > body ? x->s[at - 1] : 0;
	if (sign == '-')
		end = skip_blank(x, end);
	else if (sign != '+' && end < x->n && x->s[end] == '\n')
		end++;
	advance(x, end);
}

static void
lex_raw(Jinja *j, Lex *x, size_t begin)
{
	size_t end;

	for (size_t at = begin; at + 1 < x->n; at++) {
		if (looking_at(x, at, "{%") && raw_tag(x, at, "endraw", true, &end)) {
			text_before(j, x, begin, at, sign_at(x, at + 2), false);
			advance(x, end);
			return;
		}
	}
	jinja_fail(j, "{%% raw %%} that begins here has no {%% endraw %%}");
}

/* Converts \r\n and \r to \n and removes one newline at the end, as Jinja does. */
static ByteSpan
newlines(Jinja *j, ByteSpan in)
{
	char *p = jinja_alloc(j, in.n + 1, 1);
	size_t n = 0;

	for (size_t i = 0; i < in.n; i++) {
		if (in.s[i] == '\r') {
			p[n++] = '\n';
			if (i + 1 < in.n && in.s[i + 1] == '\n')
				i++;
		} else {
			p[n++] = in.s[i];
		}
	}
	if (n && p[n - 1] == '\n')
		n--;
	return (ByteSpan){ p, n };
}

void
jinja_lex(Jinja *j)
{
	ByteSpan text = newlines(j, utf8_sanitize(&j->arena, j->source.s, j->source.n));
	Lex x = { .s = text.s, .n = text.n, .line = 1 };

	while (x.at < x.n) {
		size_t from = x.at, to = from;
		char kind = 0;
		for (; to + 1 < x.n; to++) {
			if (x.s[to] == '{' &&
			    (x.s[to + 1] == '{' || x.s[to + 1] == '%' || x.s[to + 1] == '#')) {
				kind = x.s[to + 1];
				break;
			}
		}
		if (!kind) {
			push(j, T_DATA, x.line, (ByteSpan){ x.s + from, x.n - from });
			break;
		}
		char sign = sign_at(&x, to + 2);
		text_before(j, &x, from, to, sign, kind == '{');
		advance(&x, to);
		j->line = x.line;
		jinja_step(j, 0);
		size_t end;
		if (kind == '#') {
			lex_comment(j, &x);
		} else if (kind == '%' && raw_tag(&x, to, "raw", false, &end)) {
			advance(&x, end);
			lex_raw(j, &x, end);
		} else {
			push(j, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, x.line,
			     (ByteSpan){ x.s + to, 2 });
			advance(&x, to + 2 + (sign ? 1 : 0));
			lex_tag(j, &x, kind == '{');
		}
	}
	push(j, T_EOF, x.line, (ByteSpan){ "end of the template", 19 });
}
