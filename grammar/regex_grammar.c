/* Regular expressions of JSON Schema (ECMA-262) and the common part of other dialects:
 * alternatives, groups, classes, properties, quantifiers, anchors, word boundaries. Look-around and
 * back-references are rejected. \d, \w and \s are ASCII. (?i), (?s) and (?u) at
 * the beginning and (?i:...) are as in Python, with ASCII letters. */
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "grammar/language.h"

enum {
	MAX_NEST = 200,
	MAX_COUNT = 1000000,
	MAX_RANGES = 4096,        /* maximum number of ranges of a class */
	MAX_ALL_RANGES = 1 << 20, /* maximum number of ranges of all classes of a grammar */
	MAX_SHOWN = 200,
};

typedef struct RegexReader {
	GrammarBuilder *b;
	const char *text;
	size_t n, at;
	RegexFlags flags;
	int depth;
	bool anchors; /* an anchor is at another position than the ends */
} RegexReader;

typedef struct Class {
	Range *r;
	size_t n, cap;
} Class;

static void __attribute__((noreturn, format(printf, 2, 3)))
wrong(RegexReader *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	const char *why = arena_vprintf(r->b->a, fmt, ap);
	va_end(ap);
	size_t show = utf8_whole(r->text, r->n < MAX_SHOWN ? r->n : MAX_SHOWN);
	build_fail(r->b, "regular expression %.*s%s at byte %zu: %s", (int)show, r->text,
	           r->n > MAX_SHOWN ? "..." : "", r->at, why);
}

static bool
is_next(const RegexReader *r, const char *s)
{
	size_t n = strlen(s);

	return n <= r->n - r->at && memcmp(r->text + r->at, s, n) == 0;
}

static bool
take(RegexReader *r, const char *s)
{
	bool yes = is_next(r, s);

	r->at += yes ? strlen(s) : 0;
	return yes;
}

static uint32_t
take_char(RegexReader *r)
{
	size_t len;

	if (r->at >= r->n)
		wrong(r, "it ends unexpectedly");
	int32_t c = utf8_next(r->text + r->at, r->n - r->at, &len);
	r->at += len;
	return (uint32_t)c;
}

static void
class_add(RegexReader *r, Class *c, uint32_t lo, uint32_t hi)
{
	if (c->n >= MAX_RANGES)
		wrong(r, "a class has more than %d ranges", MAX_RANGES);
	/* limited, because a short name such as \pL means hundreds of ranges */
	if (++r->b->n_range > MAX_ALL_RANGES)
		wrong(r, "the character classes of the grammar have more than %d ranges",
		      MAX_ALL_RANGES);
	c->r = arena_grow(r->b->a, c->r, &c->cap, c->n + 3, sizeof *c->r);
	c->r[c->n++] = (Range){ lo, hi };
	if (r->flags.fold)
		c->n += ranges_fold(&c->r[c->n - 1], 1, &c->r[c->n]);
}

/* Returns the complement of a class. */
static Class
inverted(RegexReader *r, Class c)
{
	Range *out = NEW(r->b->a, Range, c.n + 2);

	c.n = ranges_join(c.r, c.n);
	return (Class){ out, ranges_invert(c.r, c.n, out), c.n + 2 };
}

static Expr *
characters(RegexReader *r, const Class *c)
{
	return regex_chars(r->b, c->r, c->n, r->flags);
}

static Expr *
character(RegexReader *r, uint32_t lo, uint32_t hi)
{
	Class c = { 0 };

	class_add(r, &c, lo, hi);
	return characters(r, &c);
}

static uint32_t
hex(RegexReader *r, int digits)
{
	uint32_t v = 0;

	for (int i = 0; i < digits; i++) {
		int d = hex_digit(r->at < r->n ? r->text[r->at] : 0);
		if (d < 0)
			wrong(r, "expected %d hexadecimal digits", digits);
		v = v << 4 | (uint32_t)d;
		r->at++;
	}
	return v;
}

/* Adds \d, \w, \s or one of their complements to the class; false: another name. */
static bool
named_class(RegexReader *r, char name, Class *out)
{
	static const Range white[] = { { 0xA0, 0xA0 },     { 0x1680, 0x1680 }, { 0x2000, 0x200A },
		                       { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
		                       { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } };
	Class c = { 0 };

	switch (name | 0x20) {
	case 'd':
		class_add(r, &c, '0', '9');
		break;
	case 'w':
		class_add(r, &c, '0', '9');
		class_add(r, &c, 'A', 'Z');
		class_add(r, &c, '_', '_');
		class_add(r, &c, 'a', 'z');
		break;
	case 's':
		class_add(r, &c, '\t', '\r');
		class_add(r, &c, ' ', ' ');
		for (size_t i = 0; r->flags.ecma && i < sizeof white / sizeof *white; i++)
			class_add(r, &c, white[i].lo, white[i].hi);
		break;
	default:
		return false;
	}
	if (name < 'a')
		c = inverted(r, c);
	for (size_t i = 0; i < c.n; i++)
		class_add(r, out, c.r[i].lo, c.r[i].hi);
	return true;
}

/* Adds the characters of a property, whose name follows: {Lu}, or one letter. */
static void
property(RegexReader *r, bool invert, Class *out)
{
	const char *name = r->text + r->at;
	Class c = { 0 }, *to = invert ? &c : out;
	const Range *range;
	size_t len = 1;

	if (take(r, "{")) {
		name = r->text + r->at;
		while (!is_next(r, "}"))
			take_char(r);
		len = (size_t)(r->text + r->at - name);
		take(r, "}");
	} else {
		take_char(r);
	}
	name = arena_strndup(r->b->a, name, len);
	size_t n = regex_property(r->b, name, &range);
	if (!n)
		wrong(
		    r,
		    "the Unicode property '%.40s' is not known; general categories, scripts and "
		    "binary properties are, such as \\p{Lu}, \\p{Script=Greek} and \\p{Alphabetic}",
		    name);
	for (size_t i = 0; i < n; i++)
		class_add(r, to, range[i].lo, range[i].hi);
	if (invert)
		c = inverted(r, c);
	for (size_t i = 0; i < c.n; i++)
		class_add(r, out, c.r[i].lo, c.r[i].hi);
}

/* Reads an escape after its backslash: returns the character, or -1 after adding a class like \d to
 * *cls. */
static int64_t
escape(RegexReader *r, Class *cls)
{
	uint32_t c = take_char(r);

	if (c < 0x80 && named_class(r, (char)c, cls))
		return -1;
	switch (c) {
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	case 'f':
		return '\f';
	case 'v':
		return '\v';
	case 'a':
		return '\a';
	case '0':
		return 0;
	case 'x':
		return hex(r, 2);
	case 'c':
		return take_char(r) & 31;
	case 'u':
		if (take(r, "{")) {
			uint32_t v = 0;
			while (!take(r, "}")) {
				v = v << 4 | hex(r, 1);
				if (v > 0x10FFFF)
					wrong(r, "the code point is above U+10FFFF");
			}
			return v;
		} else {
			uint32_t v = hex(r, 4);
			if (v >= 0xD800 && v < 0xDC00 && take(r, "\\u"))
				v = 0x10000 + ((v - 0xD800) << 10) + (hex(r, 4) - 0xDC00);
			if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
				wrong(r, "a lone surrogate is no character");
			return v;
		}
	case 'b':
	case 'B':
	case 'A':
	case 'z':
	case 'Z':
	case 'G':
		wrong(r, "\\%c is not supported", (int)c);
	case 'p':
	case 'P':
		property(r, c == 'P', cls);
		return -1;
	case 'k':
	case '1':
	case '2':
	case '3':
	case '4':
	case '5':
	case '6':
	case '7':
	case '8':
	case '9':
		wrong(r, "back-references are not supported");
	default:
		if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
			wrong(r, "\\%c is not known", (int)c);
		return c;
	}
}

static Expr *
bracket(RegexReader *r)
{
	bool invert = take(r, "^"), first = true;
	Class c = { 0 };

	for (; first || !is_next(r, "]"); first = false) {
		if (is_next(r, "[:"))
			wrong(r, "classes by name ([:alpha:]) are not supported");
		uint32_t lo = take_char(r), hi;
		if (lo == ']' && first) /* in ECMA-262 [] matches nothing and [^] anything */
			break;
		if (lo == '\\') {
			if (take(r, "b")) {
				lo = '\b';
			} else {
				int64_t x = escape(r, &c);
				if (x < 0)
					continue;
				lo = (uint32_t)x;
			}
		}
		hi = lo;
		if (is_next(r, "-") && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
			r->at++;
			hi = take_char(r);
			if (hi == '\\') {
				int64_t x = escape(r, &c);
				if (x < 0)
					wrong(r, "a range ends in a class");
				hi = (uint32_t)x;
			}
			if (hi < lo)
				wrong(r, "a range is reversed");
		}
		class_add(r, &c, lo, hi);
	}
	if (r->at && r->text[r->at - 1] == ']' && first && !c.n)
		; /* [] or [^] */
	else if (!take(r, "]"))
		wrong(r, "a character class has no closing ']'");
	if (invert)
		c = inverted(r, c);
	return characters(r, &c);
}

static int32_t
count(RegexReader *r)
{
	int32_t v = 0;

	if (r->at >= r->n || r->text[r->at] < '0' || r->text[r->at] > '9')
		return -1;
	while (r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
		v = v * 10 + (r->text[r->at++] - '0');
		if (v > MAX_COUNT)
			wrong(r, "a repetition count is above %d", MAX_COUNT);
	}
	return v;
}

/* Reads {m}, {m,} or {m,n}; any other brace is a literal character. */
static bool
counted(RegexReader *r, int32_t *min, int32_t *max)
{
	size_t start = r->at;

	if (!take(r, "{"))
		return false;
	*min = count(r);
	*max = *min;
	if (*min < 0 && is_next(r, ","))
		*min = 0;
	if (*min >= 0 && take(r, ",")) {
		*max = count(r);
		if (take(r, "}")) {
			if (*max >= 0 && *max < *min)
				wrong(r, "a repetition has a minimum above its maximum");
			return true;
		}
	} else if (*min >= 0 && take(r, "}")) {
		return true;
	}
	r->at = start;
	return false;
}

static Expr *alternatives(RegexReader *r, bool top);

static Expr *
group(RegexReader *r)
{
	const bool fold = r->flags.fold;

	if (take(r, "?i:"))
		r->flags.fold = true;
	else if (take(r, "?")) {
		if (take(r, "P<") || (is_next(r, "<") && !is_next(r, "<=") && !is_next(r, "<!"))) {
			while (!take(r, ">"))
				take_char(r);
		} else if (!take(r, ":")) {
			wrong(r, "look-around and inline flags are not supported");
		}
	}
	Expr *x = alternatives(r, false);
	if (!take(r, ")"))
		wrong(r, "a group has no closing ')'");
	r->flags.fold = fold;
	return x;
}

static Expr *
atom(RegexReader *r)
{
	Class c = { 0 };

	if (take(r, "("))
		return group(r);
	if (take(r, "["))
		return bracket(r);
	if (take(r, ".")) {
		static const Range line[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };
		for (size_t i = 0; !r->flags.dot_all && i < (r->flags.ecma ? 3 : 1); i++)
			class_add(r, &c, line[i].lo, line[i].hi);
		c = inverted(r, c);
		return characters(r, &c);
	}
	if (!r->flags.no_lazy && (is_next(r, "\\b") || is_next(r, "\\B"))) {
		Expr *x = expr_new(r->b, EXPR_ANCHOR);
		x->min = is_next(r, "\\b") ? ANCHOR_WORD : ANCHOR_NO_WORD;
		r->anchors = true;
		r->at += 2;
		return x;
	}
	if (take(r, "\\")) {
		int64_t x = escape(r, &c);
		return x < 0 ? characters(r, &c) : character(r, (uint32_t)x, (uint32_t)x);
	}
	if (is_next(r, "*") || is_next(r, "+") || is_next(r, "?"))
		wrong(r, "nothing to repeat");
	if (is_next(r, "^") || is_next(r, "$")) {
		Expr *x = expr_new(r->b, EXPR_ANCHOR);
		x->min = is_next(r, "$") ? ANCHOR_END : ANCHOR_START;
		r->anchors = true;
		r->at++;
		return x;
	}
	uint32_t x = take_char(r);
	return character(r, x, x);
}

static Expr *
repeated(RegexReader *r)
{
	Expr *x = atom(r);
	int32_t min, max;

	for (;;) {
		if (take(r, "*"))
			x = expr_rep(r->b, x, 0, -1);
		else if (take(r, "+"))
			x = expr_rep(r->b, x, 1, -1);
		else if (take(r, "?"))
			x = expr_rep(r->b, x, 0, 1);
		else if (counted(r, &min, &max))
			x = expr_rep(r->b, x, min, max);
		else
			return x;
		if (r->flags.no_lazy && is_next(r, "?"))
			wrong(r, "lazy repetitions are not supported");
		take(r, "?"); /* laziness does not change the set of matches */
	}
}

/* Matches any string; used at ends without an anchor. */
static Expr *
anything(RegexReader *r)
{
	return expr_rep(r->b, character(r, 0, 0x10FFFF), 0, -1);
}

/* Reads flags at the beginning of the expression. */
static void
leading_flags(RegexReader *r)
{
	for (;;) {
		if (take(r, "(?i)"))
			r->flags.fold = true;
		else if (take(r, "(?s)"))
			r->flags.dot_all = true;
		else if (!take(r, "(?u)"))
			return;
	}
}

static Expr *
sequence(RegexReader *r, bool top)
{
	bool start = top && take(r, "^"), end = false;
	ExprList parts = { 0 };

	if (start && r->at == 1)
		leading_flags(r);

	if (r->flags.search && top && !start)
		expr_push(r->b, &parts, anything(r));
	while (r->at < r->n && !is_next(r, "|") && !is_next(r, ")")) {
		if (top && is_next(r, "$") && (r->at + 1 == r->n || r->text[r->at + 1] == '|')) {
			r->at++;
			end = true;
			break;
		}
		expr_push(r->b, &parts, repeated(r));
	}
	if (r->flags.search && top && !end)
		expr_push(r->b, &parts, anything(r));
	return expr_list(r->b, EXPR_SEQ, &parts);
}

static Expr *
alternatives(RegexReader *r, bool top)
{
	ExprList parts = { 0 };

	if (++r->depth > MAX_NEST)
		wrong(r, "groups are nested more than %d deep", MAX_NEST);
	do
		expr_push(r->b, &parts, sequence(r, top));
	while (take(r, "|"));
	r->depth--;
	return expr_list(r->b, EXPR_ALT, &parts);
}

static Expr *
read_all(RegexReader *r)
{
	leading_flags(r);
	Expr *x = alternatives(r, true);

	if (r->at < r->n)
		wrong(r, "')' without a matching '('");
	return x;
}

Expr *
regex_operand(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags)
{
	RegexReader r = { .b = b, .text = arena_strndup(b->a, s, n), .n = n, .flags = flags };

	r.flags.json = false;
	return read_all(&r);
}

Expr *
regex_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags)
{
	RegexReader r = { .b = b, .text = arena_strndup(b->a, s, n), .n = n, .flags = flags };
	Expr *x = read_all(&r);
	Language l;

	if (!r.anchors)
		return x;
	if (!language_make(b, &(Operand){ .x = regex_operand(b, s, n, flags) }, 1, &l))
		wrong(&r, "it is too large for anchors inside");
	return language_expr(b, &l, 0, -1, flags);
}
