/* Lark's grammars, as far as texts can be held to them: rules and terminals `name: ...` of texts in quotes, expressions between slashes, ranges "a".."z", names, groups,
 * [optional] ones, alternatives, `*` `+` `?` `~n` `~n..m`, `-> alias`, comments, `%import common.NAME`. The text is `start`.
 * There is no lexer: a terminal is taken wherever it fits, so which of two is longer or comes first does not matter. What needs one (`%ignore`, priorities, lazy
 * repetitions) is refused by name, as are templates. A rule that begins with itself is read as the loop that it is. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/inside.h"

enum { MAX_NEST = 200, MAX_COUNT = 1000000, MAX_NAMES = 1 << 15, N_BUCKET = 4096, MAX_SHOWN = 24 };

typedef struct Name { const char *s; size_t n, at; int32_t rule, next; } Name; /* at: where it came first; next: of its bucket */
typedef struct Lark {
	Build      *b;
	const char *s;
	size_t      n, at;
	RegexFlags  flags;
	Strbuf     *run;              /* characters of a text that have one spelling: as words they share trees of prefixes */
	Name       *name;
	size_t      n_name, cap_name;
	int32_t     bucket[N_BUCKET]; /* + 1 */
	size_t      counted;          /* bytes whose lines are counted in line */
	int         line, depth;
	bool        in_terminal;
} Lark;

/* What %import common.NAME brings */
static const struct { const char *name, *regex; } common[] = {
	{ "DIGIT", "[0-9]" }, { "HEXDIGIT", "[a-fA-F0-9]" }, { "INT", "[0-9]+" }, { "SIGNED_INT", "[+-]?[0-9]+" }, { "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
	{ "FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_NUMBER", "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\"" }, { "LCASE_LETTER", "[a-z]" }, { "UCASE_LETTER", "[A-Z]" }, { "LETTER", "[A-Za-z]" }, { "WORD", "[A-Za-z]+" },
	{ "CNAME", "[_A-Za-z][_A-Za-z0-9]*" }, { "WS_INLINE", "[ \\t]+" }, { "WS", "[ \\t\\f\\r\\n]+" }, { "CR", "\\r" }, { "LF", "\\n" }, { "NEWLINE", "(\\r?\\n)+" },
	{ "SH_COMMENT", "#[^\\n]*" }, { "CPP_COMMENT", "//[^\\n]*" }, { "C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/" }, { "SQL_COMMENT", "--[^\\n]*" },
};

/* Places are asked for in their order, but for those of mistakes. */
static int
line_of(Lark *g, size_t at)
{
	if (at < g->counted) {
		g->counted = 0;
		g->line = 1;
	}
	for (; g->counted < at; g->counted++)
		g->line += g->s[g->counted] == '\n';
	return g->line;
}

static void __attribute__((noreturn, format(printf, 3, 4)))
wrong(Lark *g, size_t at, const char *fmt, ...)
{
	size_t left = g->n - at, show = 0;
	va_list ap;

	va_start(ap, fmt);
	const char *why = arena_vprintf(g->b->a, fmt, ap);
	va_end(ap);
	while (show < left && show < MAX_SHOWN && g->s[at + show] != '\n')
		show++;
	build_fail(g->b, "lark, line %d, at '%.*s': %s", line_of(g, at), (int)utf8_whole(g->s + at, show), g->s + at, why);
}

static char
peek(const Lark *g)
{
	return g->at < g->n ? g->s[g->at] : 0;
}

static bool
take(Lark *g, char c)
{
	bool yes = g->at < g->n && g->s[g->at] == c;

	g->at += yes;
	return yes;
}

static bool
is_next(const Lark *g, const char *s)
{
	size_t n = strlen(s);

	return n <= g->n - g->at && memcmp(g->s + g->at, s, n) == 0;
}

static void
blanks(Lark *g, bool lines)
{
	for (; g->at < g->n; g->at++) {
		char c = g->s[g->at];
		if (c == '#' || is_next(g, "//"))
			while (g->at + 1 < g->n && g->s[g->at + 1] != '\n')
				g->at++;
		else if (c != ' ' && c != '\t' && c != '\r' && c != '\f' && !(lines && c == '\n'))
			return;
	}
}

static bool
is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static size_t
word(const Lark *g)
{
	size_t n = 0;

	while (g->at + n < g->n && is_word(g->s[g->at + n]))
		n++;
	return n && (g->s[g->at] < '0' || g->s[g->at] > '9') ? n : 0;
}

/* Names of terminals are in capitals */
static bool
is_terminal(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && s[i] == '_')
		i++;
	return i < n && s[i] >= 'A' && s[i] <= 'Z';
}

static Name *
name_of(Lark *g, const char *s, size_t n)
{
	uint32_t key = 0;

	for (size_t i = 0; i < n; i++)
		key = key * 31 + (uint8_t)s[i];
	int32_t *bucket = &g->bucket[key % N_BUCKET];
	for (int32_t i = *bucket - 1; i >= 0; i = g->name[i].next)
		if (g->name[i].n == n && memcmp(g->name[i].s, s, n) == 0)
			return &g->name[i];
	if (g->n_name >= MAX_NAMES)
		wrong(g, (size_t)(s - g->s), "there are more than %d names", MAX_NAMES);
	g->name = arena_grow(g->b->a, g->name, &g->cap_name, g->n_name + 1, sizeof *g->name);
	g->name[g->n_name] = (Name){ s, n, (size_t)(s - g->s), rule_new(g->b), *bucket - 1 };
	*bucket = (int32_t)g->n_name + 1;
	return &g->name[g->n_name++];
}

/* ---- texts and expressions ---- */

static uint32_t
hex(Lark *g, int digits)
{
	uint32_t v = 0;

	while (digits--) {
		char c = peek(g);
		int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
		if (d < 0)
			wrong(g, g->at, "expected hexadecimal digits");
		v = v << 4 | (uint32_t)d;
		g->at++;
	}
	return v;
}

static uint32_t
character(Lark *g)
{
	size_t len, from = g->at;

	if (!take(g, '\\')) {
		int32_t c = utf8_next(g->s + g->at, g->n - g->at, &len);
		g->at += len;
		return (uint32_t)c;
	}
	char c = peek(g);
	g->at += g->at < g->n;
	switch (c) {
	case 'n': return '\n';
	case 'r': return '\r';
	case 't': return '\t';
	case 'f': return '\f';
	case 'v': return '\v';
	case 'x': return hex(g, 2);
	case 'u': return hex(g, 4);
	case 'U': return hex(g, 8);
	case '"': case '\\': case '\'': case '/':
		return (uint32_t)c;
	default:
		wrong(g, from, "no such escape");
	}
}

/* The characters between quotes, each as a range of its own; the first quote has been taken. */
static Range *
quoted(Lark *g, size_t *n)
{
	size_t from = g->at - 1, cap = 0;
	Range *r = NEW(g->b->a, Range, 1);

	for (*n = 0; !take(g, '"'); ++*n) {
		if (g->at >= g->n || peek(g) == '\n')
			wrong(g, from, "a text has no end");
		size_t at = g->at;
		uint32_t c = character(g);
		if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
			wrong(g, at, "there is no such character");
		r = arena_grow(g->b->a, *n ? r : NULL, &cap, *n + 1, sizeof *r);
		r[*n] = (Range){ c, c };
	}
	return r;
}

static void
add_run(Lark *g, ExList *parts)
{
	if (g->run->failed)
		arena_out(g->b->a);
	if (g->run->len)
		ex_push(g->b, parts, ex_bytes(g->b, strbuf_str(g->run), g->run->len));
	strbuf_clear(g->run);
}

static Ex *
text(Lark *g)
{
	size_t n, n_last, from;
	Range *r = quoted(g, &n), *last;
	ExList parts = { 0 };
	RegexFlags flags = g->flags;
	char bytes[4];

	if (is_next(g, "..")) {
		from = g->at;
		g->at += 2;
		if (!take(g, '"'))
			wrong(g, from, "a range goes from one text to another");
		last = quoted(g, &n_last);
		if (n != 1 || n_last != 1 || last->lo < r->lo)
			wrong(g, from, "a range goes from one character to one behind it");
		return regex_chars(g->b, &(Range){ r->lo, last->lo }, 1, flags);
	}
	if (peek(g) == 'i' && !(g->at + 1 < g->n && is_word(g->s[g->at + 1]))) {
		g->at++;
		flags.fold = true;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t c = r[i].lo;
		bool letter = (c | 32) >= 'a' && (c | 32) <= 'z', escaped = c < 0x20 || c == '"' || c == '\\' || c == 0x7F;
		if (!(flags.fold && letter) && !(flags.json && escaped)) {
			strbuf_add(g->run, bytes, utf8_put(bytes, c));
			continue;
		}
		add_run(g, &parts);
		ex_push(g->b, &parts, regex_chars(g->b, &r[i], 1, flags));
	}
	add_run(g, &parts);
	return ex_list(g->b, EX_SEQ, &parts);
}

static Ex *
expression(Lark *g)
{
	size_t from = g->at - 1, begin = g->at;
	RegexFlags flags = g->flags;

	while (peek(g) != '/') {
		g->at += peek(g) == '\\';
		if (g->at >= g->n || peek(g) == '\n')
			wrong(g, from, "an expression has no end");
		g->at++;
	}
	size_t n = g->at++ - begin;
	for (char c; (c = peek(g)) >= 'a' && c <= 'z'; g->at++) {
		if (c == 'i')
			flags.fold = true;
		else if (c == 's')
			flags.dot_all = true;
		else if (c != 'u')
			wrong(g, from, "the flag '%c' of an expression is not supported: i, s and u are", c);
	}
	flags.no_lazy = true;
	const char *outer = g->b->place;
	g->b->place = arena_printf(g->b->a, "lark, line %d", line_of(g, from));
	Ex *x = regex_read(g->b, g->s + begin, n, flags);
	g->b->place = outer;
	return x;
}

/* ---- rules ---- */

static Ex *alternatives(Lark *g, bool nested, ExList *list);

/* A group up to its bracket */
static Ex *
group(Lark *g, char close)
{
	size_t from = g->at - 1;
	Ex *x = alternatives(g, true, NULL);

	blanks(g, true);
	if (!take(g, close))
		wrong(g, from, "a group has no '%c'", close);
	return close == ']' ? ex_rep(g->b, x, 0, 1) : x;
}

/* NULL: no item begins here */
static Ex *
item(Lark *g)
{
	size_t from = g->at, n = word(g);

	if (n) {
		Name *name = name_of(g, g->s + g->at, n);
		int32_t rule = name->rule;
		g->at += n;
		if (peek(g) == '{' && g->at + 1 < g->n && !strchr("0123456789,", g->s[g->at + 1]))
			wrong(g, from, "templates are not supported");
		if (g->in_terminal && !is_terminal(g->s + from, n))
			wrong(g, from, "a terminal holds texts, expressions and terminals, no rules");
		return ex_rule(g->b, rule);
	}
	switch (peek(g)) {
	case '"':
		g->at++;
		return text(g);
	case '/':
		g->at++;
		return expression(g);
	case '(':
		g->at++;
		return group(g, ')');
	case '[':
		g->at++;
		return group(g, ']');
	case '<':
		wrong(g, from, "tokens by name are not supported");
	case '@':
		wrong(g, from, "other grammars are not supported");
	case '%':
		wrong(g, from, "grammars of other kinds within a rule are not supported");
	default:
		return NULL;
	}
}

static int32_t
number(Lark *g)
{
	size_t from = g->at;
	int32_t v = 0;

	for (; peek(g) >= '0' && peek(g) <= '9'; g->at++) {
		v = v * 10 + (peek(g) - '0');
		if (v > MAX_COUNT)
			wrong(g, from, "a repetition may be up to %d times", MAX_COUNT);
	}
	return g->at > from ? v : -1;
}

static Ex *
repeated(Lark *g, Ex *x, bool nested)
{
	for (;;) {
		size_t from = g->at;
		blanks(g, nested);
		if (take(g, '*')) {
			x = ex_rep(g->b, x, 0, -1);
		} else if (take(g, '+')) {
			x = ex_rep(g->b, x, 1, -1);
		} else if (take(g, '?')) {
			x = ex_rep(g->b, x, 0, 1);
		} else if (peek(g) == '~' || peek(g) == '{') { /* {m,n} as llguidance has it */
			size_t at = g->at;
			bool brace = g->s[g->at++] == '{';
			blanks(g, false);
			int32_t min = number(g), max = min;
			blanks(g, false);
			if (brace ? take(g, ',') : is_next(g, "..")) {
				g->at += brace ? 0 : 2;
				blanks(g, false);
				max = number(g);
				min = brace && min < 0 ? 0 : min;
				if (!brace && max < 0)
					min = -1;
			}
			blanks(g, false);
			if (min < 0 || (max >= 0 && max < min) || (brace && !take(g, '}')))
				wrong(g, at, brace ? "expected {m}, {m,} or {m,n}" : "expected ~n or ~n..m");
			x = ex_rep(g->b, x, min, max);
		} else {
			g->at = from;
			return x;
		}
	}
}

static Ex *
sequence(Lark *g, bool nested)
{
	ExList parts = { 0 };
	Ex *x;

	for (blanks(g, nested); (x = item(g)); blanks(g, nested))
		ex_push(g->b, &parts, repeated(g, x, nested));
	if (is_next(g, "->")) { /* what a tree calls it */
		size_t from = g->at;
		g->at += 2;
		blanks(g, false);
		size_t n = word(g);
		if (!n)
			wrong(g, from, "an alias has no name");
		g->at += n;
		blanks(g, nested);
	}
	return ex_list(g->b, EX_SEQ, &parts);
}

/* list: those of a rule, one by one, in place of what is returned. */
static Ex *
alternatives(Lark *g, bool nested, ExList *list)
{
	ExList own = { 0 }, *parts = list ? list : &own;

	if (++g->depth > MAX_NEST)
		wrong(g, g->at, "groups are nested more than %d deep", MAX_NEST);
	for (;;) {
		ex_push(g->b, parts, sequence(g, nested));
		size_t at = g->at;
		blanks(g, true); /* a line may begin with the next one */
		if (!take(g, '|')) {
			g->at = nested ? g->at : at;
			break;
		}
	}
	g->depth--;
	return list ? NULL : ex_list(g->b, EX_ALT, parts);
}

static bool
is_rule(const Ex *x, int32_t rule)
{
	return x->kind == EX_RULE && x->min == rule;
}

/* a: a x | a y | b  is  a: b (x | y)* */
static Ex *
without_left_recursion(Build *b, int32_t rule, const ExList *l)
{
	ExList first = { 0 }, more = { 0 };

	for (size_t i = 0; i < l->n; i++) {
		const Ex *x = l->v[i];
		if (is_rule(x, rule))
			continue; /* a: a says nothing */
		if (x->kind != EX_SEQ || !x->n || !is_rule(x->part[0], rule)) {
			ex_push(b, &first, l->v[i]);
			continue;
		}
		ExList rest = { 0 };
		for (int32_t k = 1; k < x->n; k++)
			ex_push(b, &rest, x->part[k]);
		ex_push(b, &more, ex_list(b, EX_SEQ, &rest));
	}
	Ex *begins = ex_list(b, EX_ALT, &first);
	return more.n ? ex_seq(b, 2, begins, ex_rep(b, ex_list(b, EX_ALT, &more), 0, -1)) : begins;
}

static void
set_body(Lark *g, size_t at, int32_t rule, Ex *body)
{
	if (g->b->rule[rule])
		wrong(g, at, "this name has been defined already");
	g->b->rule[rule] = body;
}

static void
definition(Lark *g)
{
	size_t from = g->at;

	take(g, '!'); /* marks of how a tree is made, in either order */
	take(g, '?');
	take(g, '!');
	size_t at = g->at, n = word(g);
	if (!n)
		wrong(g, from, "expected a rule, name: ..., or a statement");
	int32_t rule = name_of(g, g->s + at, n)->rule;
	ex_rule_name(g->b, rule, arena_printf(g->b->a, "lark, line %d: '%.*s'", line_of(g, at), (int)(n < 100 ? n : 100), g->s + at));
	bool terminal = is_terminal(g->s + at, n);
	ExList list = { 0 };
	g->at += n;
	if (peek(g) == '{')
		wrong(g, from, "templates are not supported");
	if (peek(g) == '[')
		wrong(g, from, "attributes of rules are not supported");
	if (peek(g) == '.')
		wrong(g, from, "priorities are not supported");
	blanks(g, false);
	if (!take(g, ':'))
		wrong(g, from, "expected a rule, name: ..., or a statement");
	g->in_terminal = terminal;
	alternatives(g, false, &list);
	set_body(g, at, rule, without_left_recursion(g->b, rule, &list));
}

static void
import_name(Lark *g, size_t statement, const char *s, size_t n, const char *as, size_t n_as)
{
	for (size_t i = 0; i < sizeof common / sizeof *common; i++)
		if (strlen(common[i].name) == n && memcmp(common[i].name, s, n) == 0) {
			int32_t rule = name_of(g, as, n_as)->rule;
			set_body(g, statement, rule, regex_read(g->b, common[i].regex, strlen(common[i].regex), g->flags));
			return;
		}
	wrong(g, statement, "there is no '%.*s' to import from common", (int)(n < 100 ? n : 100), s);
}

/* %import common.NAME, maybe -> ALIAS, or %import common (NAME, NAME) */
static void
import(Lark *g, size_t statement)
{
	static const char from[] = "common";

	blanks(g, false);
	size_t n = word(g);
	if (n != strlen(from) || memcmp(g->s + g->at, from, n) != 0)
		wrong(g, statement, "imports are supported from common alone");
	g->at += n;
	blanks(g, false);
	bool list = take(g, '(');
	if (!list && !take(g, '.'))
		wrong(g, statement, "expected %%import common.NAME");
	do {
		blanks(g, list);
		const char *s = g->s + g->at;
		if (!(n = word(g)))
			wrong(g, statement, "expected the name of a terminal");
		g->at += n;
		const char *as = s;
		size_t n_as = n;
		blanks(g, list);
		if (!list && is_next(g, "->")) {
			g->at += 2;
			blanks(g, false);
			as = g->s + g->at;
			if (!(n_as = word(g)))
				wrong(g, statement, "an alias has no name");
			g->at += n_as;
		}
		import_name(g, statement, s, n, as, n_as);
	} while (list && take(g, ','));
	if (list && !take(g, ')'))
		wrong(g, statement, "the names to import have no ')'");
}

static void
statement(Lark *g)
{
	size_t from = g->at++, n = word(g);

	if (n == 6 && memcmp(g->s + g->at, "import", n) == 0) {
		g->at += n;
		import(g, from);
		return;
	}
	wrong(g, from, "%%%.*s is not supported", (int)(n < 40 ? n : 40), g->s + g->at);
}

Ex *
lark_read(Build *b, const char *s, size_t n, RegexFlags flags)
{
	Lark *g = NEW(b->a, Lark, 1);
	int32_t start = -1;

	*g = (Lark){ .b = b, .s = s, .n = n, .flags = flags, .run = arena_strbuf(b->a), .line = 1 };
	for (blanks(g, true); g->at < g->n; blanks(g, true)) {
		if (peek(g) == '%')
			statement(g);
		else
			definition(g);
		blanks(g, false);
		if (g->at < g->n && peek(g) != '\n')
			wrong(g, g->at, "not understood");
	}
	for (size_t i = 0; i < g->n_name; i++) {
		if (!b->rule[g->name[i].rule])
			wrong(g, g->name[i].at, "this name is not defined");
		if (g->name[i].n == 5 && memcmp(g->name[i].s, "start", 5) == 0)
			start = g->name[i].rule;
	}
	if (start < 0)
		build_fail(b, "lark: the grammar has no rule 'start'");
	return ex_rule(b, start);
}
