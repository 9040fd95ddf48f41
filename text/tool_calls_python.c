/* Argument values that are Python literals, or that have special delimiters of strings and bare
 * keys. Finds where a value ends, and converts it to JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "base/utf8.h"
#include "text/tool_calls.h"

enum { MAX_NEST = 64 };

/* ---- end of a value ---- */

/* Returns whether a mark ends a string. h: input after the mark. Returns 2: yes, because a
 * delimiter follows, 1: more input is needed, 0: no. */
static int
mark_ends(const char *h, const char *end)
{
	while (h < end && strchr(" \n\t\r", *h))
		h++;
	return h == end ? 1 : strchr(",:)]}", *h) ? 2 : 0;
}

bool
literal_ends(LiteralScan *s, const char *p, size_t n, const char *quote)
{
	size_t nq = quote ? strlen(quote) : 0;

	while (s->at < n) {
		char x = p[s->at];
		size_t left = n - s->at, k = left < nq ? left : nq;
		if (s->in == SCAN_MARKED) {
			const char *e = memmem(p + s->at, left, quote, nq);
			if (!e) {
				if (left >= nq)
					s->at = n - nq +
					        /* the input may end with the beginning of the
					         * delimiter */
					        1;
				return false;
			}
			int ends = mark_ends(e + nq, p + n);
			if (ends == 1) {
				s->at = (size_t)(e - p);
				return false;
			}
			s->at = (size_t)(e - p) + nq;
			s->in = ends ? SCAN_OUT : SCAN_MARKED;
		} else if (s->in != SCAN_OUT) {
			if ((x == '\\' && left < 2) ||
			    (x == s->quote && s->in == SCAN_TRIPLE && left < 3))
				return false;
			if (x == '\\') {
				s->at += 2;
			} else if (x == s->quote && (s->in == SCAN_QUOTED ||
			                             (p[s->at + 1] == x && p[s->at + 2] == x))) {
				s->at += s->in == SCAN_QUOTED ? 1 : 3;
				s->in = SCAN_OUT;
			} else {
				s->at++;
			}
		} else if (nq && x == quote[0] && memcmp(p + s->at, quote, k) == 0) {
			if (k < nq)
				return false;
			s->at += nq;
			s->in = SCAN_MARKED;
		} else if (x == '"' || (x == '\'' && !quote)) {
			if (left < 2 || (left < 3 && p[s->at + 1] == x))
				return false;
			s->in = p[s->at + 1] == x && p[s->at + 2] == x ? SCAN_TRIPLE : SCAN_QUOTED;
			s->quote = x;
			s->at += s->in == SCAN_QUOTED ? 1 : 3;
		} else {
			if (!s->depth && strchr(",)]}", x))
				return true;
			s->depth += strchr("([{", x) ? 1 : strchr(")]}", x) ? -1 : 0;
			s->at++;
		}
	}
	return false;
}

/* ---- conversion to JSON ---- */

typedef struct LiteralReader {
	const char *p, *end, *quote;
	Strbuf *out;
} LiteralReader;

static bool value(LiteralReader *l, int depth);

static void
blanks(LiteralReader *l)
{
	while (l->p < l->end && strchr(" \n\t\r", *l->p))
		l->p++;
}

static bool
next_is(LiteralReader *l, char x)
{
	blanks(l);
	if (l->p == l->end || *l->p != x)
		return false;
	l->p++;
	return true;
}

/* Reads n hexadecimal digits; -1: they are invalid. */
static int32_t
hex(LiteralReader *l, int n)
{
	int32_t v = 0;

	if (l->end - l->p < n)
		return -1;
	for (int i = 0; i < n; i++) {
		int d = hex_digit(*l->p++);
		if (d < 0 || v > 0xFFFFFF)
			return -1;
		v = v * 16 + d;
	}
	return v;
}

/* Reads an escape, without its backslash; returns false if it is invalid. */
static bool
escape(LiteralReader *l, Strbuf *b)
{
	static const char from[] = "ntrbfav0", to[] = "\n\t\r\b\f\a\v";
	char x = *l->p++, utf8[4];
	const char *at = strchr(from, x);
	int32_t cp;

	if (x == '\n')
		return true; /* line continuation */
	if (at) {
		strbuf_putc(b, to[at - from]);
		return true;
	}
	if (!strchr("xuU", x)) {
		if (!strchr("\\\"'/", x))
			strbuf_putc(b, '\\');
		strbuf_putc(b, x);
		return true;
	}
	cp = hex(l, x == 'x' ? 2 : x == 'u' ? 4 : 8);
	if (cp >= 0xD800 && cp < 0xDC00 && l->end - l->p >= 6 && l->p[0] == '\\' &&
	    l->p[1] == 'u') {
		/* a surrogate pair, as in JSON */
		l->p += 2;
		int32_t low = hex(l, 4);
		if (low < 0xDC00 || low > 0xDFFF)
			return false;
		cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
	}
	if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
		return false;
	strbuf_add(b, utf8, utf8_put(utf8, (uint32_t)cp));
	return true;
}

static bool
quoted(LiteralReader *l)
{
	char q = *l->p;
	int n = l->end - l->p >= 3 && l->p[1] == q && l->p[2] == q ? 3 : 1;
	bool ok = true, closed = false;
	Strbuf b = { 0 };

	l->p += n;
	while (ok && !closed && l->p < l->end) {
		if (*l->p == '\\' && l->p + 1 < l->end) {
			l->p++;
			ok = escape(l, &b);
		} else if (*l->p == q &&
		           (n == 1 || (l->end - l->p >= 3 && l->p[1] == q && l->p[2] == q))) {
			l->p += n;
			closed = true;
		} else {
			strbuf_putc(&b, *l->p++);
		}
	}
	if (ok && closed)
		json_str(l->out, strbuf_str(&b), b.len);
	l->out->failed |= b.failed;
	strbuf_release(&b);
	return ok && closed;
}

/* Reads a string. Returns 1: read, 0: there is no string here, -1: it is invalid */
static int
a_text(LiteralReader *l)
{
	size_t nq = l->quote ? strlen(l->quote) : 0, left = (size_t)(l->end - l->p);

	if (nq && left >= nq && memcmp(l->p, l->quote, nq) == 0) {
		const char *from = l->p + nq, *e = from;
		while ((e = memmem(e, (size_t)(l->end - e), l->quote, nq)) &&
		       !mark_ends(e + nq, l->end))
			e++;
		if (!e)
			return -1;
		json_str(l->out, from, (size_t)(e - from));
		l->p = e + nq;
		return 1;
	}
	if (left && (*l->p == '"' || (*l->p == '\'' && !l->quote)))
		return quoted(l) ? 1 : -1;
	return 0;
}

static ByteSpan
word(LiteralReader *l)
{
	const char *from = l->p;

	while (l->p < l->end && !strchr(",:()[]{}\"' \n\t\r", *l->p))
		l->p++;
	return (ByteSpan){ from, (size_t)(l->p - from) };
}

static bool
a_word(LiteralReader *l)
{
	static const char *const from[] = { "True", "False", "None", "true", "false", "null" },
	                         *const to[] = { "true", "false", "null", "true", "false", "null" };
	ByteSpan w = word(l);

	for (int i = 0; i < 6; i++)
		if (w.n == strlen(from[i]) && memcmp(w.s, from[i], w.n) == 0) {
			strbuf_puts(l->out, to[i]);
			return true;
		}
	bool number = json_number_syntax(w.s, w.n);
	if (number)
		strbuf_add(l->out, w.s, w.n);
	return number;
}

static bool
a_key(LiteralReader *l)
{
	blanks(l);
	int text = a_text(l);
	if (text)
		return text > 0;
	const char *from = l->p;
	while (l->p < l->end && !strchr(",:()[]{}\"'", *l->p))
		l->p++;
	size_t n = (size_t)(l->p - from);
	while (n && strchr(" \n\t\r", from[n - 1]))
		n--;
	json_str(l->out, from, n);
	return n > 0;
}

/* Reads elements after an opening bracket, up to the closing one. A trailing comma is allowed. */
static bool
elements(LiteralReader *l, char close, bool keys, int depth)
{
	for (bool first = true; !next_is(l, close); first = false) {
		if (!first) {
			if (!next_is(l, ','))
				return false;
			if (next_is(l, close))
				return true;
			strbuf_puts(l->out, ", ");
		}
		if (keys) {
			if (!a_key(l) || !next_is(l, ':'))
				return false;
			strbuf_puts(l->out, ": ");
		}
		if (!value(l, depth))
			return false;
	}
	return true;
}

static bool
value(LiteralReader *l, int depth)
{
	blanks(l);
	int text = a_text(l);
	if (text)
		return text > 0;
	if (l->p == l->end || depth > MAX_NEST)
		return false;
	char open = *l->p;
	if (open != '{' && open != '[' && open != '(')
		return a_word(l);
	l->p++;
	strbuf_putc(l->out, open == '{' ? '{' : '[');
	bool ok = elements(l, open == '{' ? '}' : open == '[' ? ']' : ')', open == '{', depth + 1);
	strbuf_putc(l->out, open == '{' ? '}' : ']');
	return ok;
}

void
literal_put(Strbuf *out, ByteSpan s, const char *quote)
{
	size_t before = out->len;
	LiteralReader l = { s.s, s.s + s.n, quote, out };
	bool ok = value(&l, 0);

	blanks(&l);
	if (ok && l.p == l.end)
		return;
	while (s.n && strchr(" \n\t\r", s.s[0]))
		s.s++, s.n--;
	while (s.n && strchr(" \n\t\r", s.s[s.n - 1]))
		s.n--;
	out->len = before;
	json_str(out, s.s, s.n); /* an unknown value becomes a string */
}
