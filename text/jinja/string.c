/* String operations of Python's str, for methods and filters. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

static bool
in_set(int32_t cp, const Val *chars)
{
	if (!chars)
		return cp_is_space((uint32_t)cp) || (cp >= 0x1C && cp <= 0x1F);
	for (size_t i = 0, len; i < chars->s.n; i += len)
		if (utf8_next(chars->s.s + i, chars->s.n - i, &len) == cp)
			return true;
	return false;
}

ByteSpan
str_strip(Jinja *j, ByteSpan s, const Val *chars, bool left, bool right)
{
	size_t len;

	while (left && s.n) {
		jinja_step(j, chars ? chars->s.n : 0);
		if (!in_set(utf8_next(s.s, s.n, &len), chars))
			break;
		s.s += len;
		s.n -= len;
	}
	while (right && s.n) {
		jinja_step(j, chars ? chars->s.n : 0);
		size_t at = s.n - 1;
		while (at > 0 && ((unsigned char)s.s[at] & 0xC0) == 0x80)
			at--;
		if (!in_set(utf8_next(s.s + at, s.n - at, &len), chars))
			break;
		s.n = at;
	}
	return s;
}

static void
put_cp(Jinja *j, Buf *b, int32_t cp)
{
	char c[4];
	buf_add(j, b, c, utf8_put(c, (uint32_t)cp));
}

/* Letters whose upper case has several characters. The rest of SpecialCasing is rare in chat
 * templates, and is not supported. */
static void
put_upper(Jinja *j, Buf *b, int32_t cp, bool title)
{
	static const char *const ligature[] = { "FF", "FI", "FL", "FFI", "FFL", "ST", "ST" };

	if (cp == 0xDF)
		buf_puts(j, b, title ? "Ss" : "SS");
	else if (cp >= 0xFB00 && cp <= 0xFB06 && !title)
		buf_puts(j, b, ligature[cp - 0xFB00]);
	else
		put_cp(j, b, title ? utf8proc_totitle(cp) : utf8proc_toupper(cp));
}

static bool
cased(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);
	return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static void
put_lower(Jinja *j, Buf *b, int32_t cp, bool ends_word)
{
	if (cp == 0x130)
		buf_puts(j, b, "i\xCC\x87");
	else if (cp == 0x3A3 && ends_word)
		buf_puts(j, b, "\xCF\x82"); /* final sigma */
	else
		put_cp(j, b, utf8proc_tolower(cp));
}

ByteSpan
str_case(Jinja *j, ByteSpan s, int how)
{
	Buf b = { 0 };
	bool first = true, after_cased = false;

	jinja_step(j, 32 * s.n); /* Unicode tables are slow */
	for (size_t i = 0, len, next; i < s.n; i += len) {
		int32_t cp = utf8_next(s.s + i, s.n - i, &len);
		bool start = how == 'c' ? first : how == 't' && !after_cased;
		if (how == 'u')
			put_upper(j, &b, cp, false);
		else if (start)
			put_upper(j, &b, cp, true);
		else
			put_lower(j, &b, cp,
			          after_cased &&
			              (i + len == s.n ||
			               !cased(utf8_next(s.s + i + len, s.n - i - len, &next))));
		after_cased = cased(cp);
		first = false;
	}
	return buf_span(&b);
}

ByteSpan
str_replace(Jinja *j, ByteSpan s, ByteSpan old, ByteSpan with, int64_t max)
{
	Buf b = { 0 };
	size_t at = 0;

	if (max < 0)
		max = INT64_MAX;
	jinja_step(j, s.n);
	if (!old.n) { /* between all characters */
		for (size_t len; max > 0; max--) {
			buf_add(j, &b, with.s, with.n);
			if (at >= s.n)
				break;
			utf8_next(s.s + at, s.n - at, &len);
			buf_add(j, &b, s.s + at, len);
			at += len;
		}
		if (at < s.n)
			buf_add(j, &b, s.s + at, s.n - at);
		return buf_span(&b);
	}
	for (; max > 0; max--) {
		const char *hit = s.n - at ? memmem(s.s + at, s.n - at, old.s, old.n) : NULL;
		if (!hit)
			break;
		buf_add(j, &b, s.s + at, (size_t)(hit - s.s) - at);
		buf_add(j, &b, with.s, with.n);
		at = (size_t)(hit - s.s) + old.n;
	}
	buf_add(j, &b, s.s + at, s.n - at);
	return buf_span(&b);
}

/* Evaluates "%s and %d" % values. */
Val
str_percent(Jinja *j, ByteSpan f, Val args)
{
	Buf b = { 0 };
	size_t next = 0, given = args.type == V_TUPLE ? args.l->n : 1;
	char spec[24], text[400];

	jinja_step(j, f.n);
	for (size_t i = 0; i < f.n; i++) {
		if (f.s[i] != '%') {
			buf_add(j, &b, f.s + i, 1);
			continue;
		}
		size_t n = 0;
		spec[n++] = '%';
		for (i++; i < f.n && n < 8 && strchr("0123456789.-+ #", f.s[i]) && f.s[i]; i++)
			spec[n++] = f.s[i];
		char c = i < f.n ? f.s[i] : 0;
		if (c == '%') {
			buf_puts(j, &b, "%");
			continue;
		}
		if (!c || !strchr("sdirfeEgGxXo", c) || n >= 8)
			jinja_fail(j, "unsupported format in \"%.*s\"", (int)(f.n < 60 ? f.n : 60),
			           f.s);
		if (next >= given)
			jinja_fail(j, "not enough arguments for format string");
		Val v = args.type == V_TUPLE ? args.l->v[next] : args;
		next++;
		if (c == 's' || c == 'r') {
			Buf r = { 0 };
			if (c == 'r')
				val_repr(j, &r, v);
			ByteSpan s = c == 'r' ? buf_span(&r) : val_str(j, v);
			int width = 0, cut = -1;
			spec[n] = 0;
			const char *p = spec + 1;
			bool left = *p == '-';
			p += strspn(p, "-+ #0");
			for (; *p >= '0' && *p <= '9'; p++)
				width = width * 10 + (*p - '0');
			if (*p == '.')
				for (cut = 0, p++; *p >= '0' && *p <= '9'; p++)
					cut = cut * 10 + (*p - '0');
			if (cut >= 0)
				s = get_slice(j, val_span(s), val_none(), val_int(cut), val_none())
				        .s;
			int64_t pad = width - (int64_t)utf8_count(s.s, s.n);
			for (int64_t k = 0; !left && k < pad; k++)
				buf_puts(j, &b, " ");
			buf_add(j, &b, s.s, s.n);
			for (int64_t k = 0; left && k < pad; k++)
				buf_puts(j, &b, " ");
			continue;
		}
		if (!val_is_number(v))
			jinja_fail(j, "%%%c format: a real number is required, not %s", c,
			           val_type_name(v));
		int wide = 0;
		for (size_t k = 1; k < n; k++) {
			wide = spec[k] >= '0' && spec[k] <= '9' ? wide * 10 + (spec[k] - '0') : 0;
			if (wide > 60)
				jinja_fail(j, "a width or precision above 60 in \"%.*s\"",
				           (int)(f.n < 60 ? f.n : 60), f.s);
		}
		if (strchr("feEgG", c)) {
			spec[n++] = c;
			spec[n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
			snprintf(text, sizeof text, spec, val_number(v));
		} else {
			memcpy(spec + n, "ll", 2);
			spec[n + 2] = c == 'i' ? 'd' : c;
			spec[n + 3] = 0;
			double d = val_number(v);
			if (v.type == V_FLOAT && !(d > -9e18 && d < 9e18))
				jinja_fail(j, "an integer exceeds 64 bits");
			snprintf(text, sizeof text, spec,
			         v.type == V_INT    ? (long long)v.i
			         : v.type == V_BOOL ? (long long)v.b
			                            : (long long)d);
#pragma GCC diagnostic pop
		}
		buf_puts(j, &b, text);
	}
	if (next < given && args.type == V_TUPLE)
		jinja_fail(j, "not all arguments converted during string formatting");
	return val_span(buf_span(&b));
}
