/* GBNF, llama.cpp's grammars: rules `name ::= ...` of texts in quotes, classes, names, groups, alternatives, `*` `+` `?` `{m,n}`, `.` for any character, and `#`
 * comments. The text is `root`. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/inside.h"

enum { MAX_NEST = 200, MAX_COUNT = 1000000, MAX_NAMES = 1 << 15, N_BUCKET = 4096 };

typedef struct Name { const char *s; size_t n; int32_t rule, next; } Name; /* next: of its bucket */
typedef struct Gbnf {
	Build      *b;
	const char *s;
	size_t      n, at;
	Name       *name;
	size_t      n_name, cap_name;
	int32_t     bucket[N_BUCKET]; /* + 1 */
	size_t      counted;          /* bytes whose lines are counted in line */
	int         line, depth;
} Gbnf;

/* Places are asked for in their order, but for those of mistakes. */
static int
line_of(Gbnf *g, size_t at)
{
	if (at < g->counted) {
		g->counted = 0;
		g->line = 1;
	}
	for (; g->counted < at; g->counted++)
		g->line += g->s[g->counted] == '\n';
	return g->line;
}

static void __attribute__((noreturn))
wrong(Gbnf *g, const char *why)
{
	size_t left = g->n - g->at, show = 0;

	while (show < left && show < 20 && g->s[g->at + show] != '\n')
		show++;
	build_fail(g->b, "grammar, line %d, at '%.*s': %s", line_of(g, g->at), (int)utf8_whole(g->s + g->at, show), g->s + g->at, why);
}

static char
peek(const Gbnf *g)
{
	return g->at < g->n ? g->s[g->at] : 0;
}

static bool
take(Gbnf *g, char c)
{
	bool yes = g->at < g->n && g->s[g->at] == c;

	g->at += yes;
	return yes;
}

static void
blanks(Gbnf *g, bool lines)
{
	for (;; g->at++) {
		char c = peek(g);
		if (c == '#')
			while (g->at + 1 < g->n && g->s[g->at + 1] != '\n')
				g->at++;
		else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
			return;
	}
}

static bool
is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t
word(const Gbnf *g)
{
	size_t n = 0;

	while (g->at + n < g->n && is_word(g->s[g->at + n]))
		n++;
	return n;
}

static Name *
name_of(Gbnf *g, size_t n)
{
	uint32_t key = 0;

	for (size_t i = 0; i < n; i++)
		key = key * 31 + (uint8_t)g->s[g->at + i];
	int32_t *bucket = &g->bucket[key % N_BUCKET];
	for (int32_t i = *bucket - 1; i >= 0; i = g->name[i].next)
		if (g->name[i].n == n && memcmp(g->name[i].s, g->s + g->at, n) == 0)
			return &g->name[i];
	if (g->n_name >= MAX_NAMES)
		wrong(g, arena_printf(g->b->a, "there are more than %d rules", MAX_NAMES));
	g->name = arena_grow(g->b->a, g->name, &g->cap_name, g->n_name + 1, sizeof *g->name);
	g->name[g->n_name] = (Name){ g->s + g->at, n, rule_new(g->b), *bucket - 1 };
	*bucket = (int32_t)g->n_name + 1;
	return &g->name[g->n_name++];
}

static uint32_t
hex(Gbnf *g, int digits)
{
	uint32_t v = 0;

	while (digits--) {
		char c = peek(g);
		int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
		if (d < 0)
			wrong(g, "expected hexadecimal digits");
		v = v << 4 | (uint32_t)d;
		g->at++;
	}
	return v;
}

static uint32_t
character(Gbnf *g)
{
	size_t len;

	if (g->at >= g->n)
		wrong(g, "a text or a class has no end");
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
	case 'x': return hex(g, 2);
	case 'u': return hex(g, 4);
	case 'U': return hex(g, 8);
	case '"': case '[': case ']': case '\\': case '-': case '^': case '/':
		return (uint32_t)c;
	default:
		g->at -= g->at > 0;
		wrong(g, "no such escape");
	}
}

static Ex *
text(Gbnf *g)
{
	Strbuf *out = arena_strbuf(g->b->a);
	char bytes[4];

	while (!take(g, '"')) {
		uint32_t c = character(g);
		if (c > 0x10FFFF)
			wrong(g, "no character has so high a number");
		strbuf_add(out, bytes, utf8_put(bytes, c));
	}
	if (out->failed)
		arena_out(g->b->a);
	return ex_bytes(g->b, strbuf_str(out), out->len);
}

static Ex *
class(Gbnf *g)
{
	bool invert = take(g, '^');
	Range *r = NULL, *out;
	size_t n = 0, cap = 0;

	while (!take(g, ']')) {
		uint32_t lo = character(g), hi = lo;
		if (peek(g) == '-' && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
			g->at++;
			hi = character(g);
		}
		if (hi < lo || hi > 0x10FFFF)
			wrong(g, "a range is the wrong way round, or of no characters");
		r = arena_grow(g->b->a, r, &cap, n + 1, sizeof *r);
		r[n++] = (Range){ lo, hi };
	}
	if (!invert)
		return ex_chars(g->b, r, n);
	out = NEW(g->b->a, Range, n + 2);
	n = n ? ranges_join(r, n) : 0;
	n = ranges_invert(r, n, out);
	return ex_chars(g->b, out, n);
}

static Ex *alternatives(Gbnf *g, bool nested);

/* NULL: no item begins here */
static Ex *
item(Gbnf *g)
{
	if (take(g, '"'))
		return text(g);
	if (take(g, '['))
		return class(g);
	if (take(g, '.'))
		return ex_char(g->b, 0, 0x10FFFF);
	if (take(g, '(')) {
		Ex *x = alternatives(g, true);
		blanks(g, true);
		if (!take(g, ')'))
			wrong(g, "expected ')'");
		return x;
	}
	size_t n = word(g);
	if (!n)
		return NULL;
	int32_t rule = name_of(g, n)->rule;
	g->at += n;
	return ex_rule(g->b, rule);
}

static int32_t
number(Gbnf *g)
{
	int32_t v = 0;
	bool any = false;

	for (; peek(g) >= '0' && peek(g) <= '9'; g->at++, any = true) {
		v = v * 10 + (peek(g) - '0');
		if (v > MAX_COUNT)
			wrong(g, "a repetition is too large");
	}
	return any ? v : -1;
}

static Ex *
repeated(Gbnf *g, Ex *x)
{
	for (;;) {
		blanks(g, false);
		if (take(g, '*')) {
			x = ex_rep(g->b, x, 0, -1);
		} else if (take(g, '+')) {
			x = ex_rep(g->b, x, 1, -1);
		} else if (take(g, '?')) {
			x = ex_rep(g->b, x, 0, 1);
		} else if (take(g, '{')) {
			blanks(g, false);
			int32_t min = number(g), max = min;
			blanks(g, false);
			if (take(g, ',')) {
				blanks(g, false);
				max = number(g);
				min = min < 0 ? 0 : min;
			}
			blanks(g, false);
			if (min < 0 || (max >= 0 && max < min) || !take(g, '}'))
				wrong(g, "expected {m}, {m,} or {m,n}");
			x = ex_rep(g->b, x, min, max);
		} else {
			return x;
		}
	}
}

static bool
rule_begins(Gbnf *g)
{
	size_t at = g->at, n = word(g);

	g->at += n;
	blanks(g, false);
	bool yes = n && g->n - g->at >= 3 && memcmp(g->s + g->at, "::=", 3) == 0;
	g->at = at;
	return yes;
}

static Ex *
sequence(Gbnf *g, bool nested)
{
	ExList parts = { 0 };

	for (;;) {
		blanks(g, true); /* a line that begins no rule goes on with this one */
		if (!nested && rule_begins(g))
			break;
		Ex *x = item(g);
		if (!x)
			break;
		ex_push(g->b, &parts, repeated(g, x));
	}
	return ex_list(g->b, EX_SEQ, &parts);
}

static Ex *
alternatives(Gbnf *g, bool nested)
{
	ExList parts = { 0 };

	if (++g->depth > MAX_NEST)
		wrong(g, "groups are nested too deeply");
	do
		ex_push(g->b, &parts, sequence(g, nested));
	while (take(g, '|'));
	g->depth--;
	return ex_list(g->b, EX_ALT, &parts);
}

Ex *
gbnf_read(Build *b, const char *s, size_t n)
{
	Gbnf *read = NEW(b->a, Gbnf, 1);
	int32_t root = -1;

	*read = (Gbnf){ .b = b, .s = s, .n = n, .line = 1 };

	for (blanks(read, true); read->at < read->n; blanks(read, true)) {
		size_t len = word(read);
		if (!len || !rule_begins(read))
			wrong(read, "expected a rule: name ::= ...");
		int32_t rule = name_of(read, len)->rule;
		if (b->rule[rule])
			wrong(read, "this rule is there already");
		ex_rule_name(b, rule, arena_printf(b->a, "grammar, line %d: '%.*s'", line_of(read, read->at), (int)(len < 100 ? len : 100), read->s + read->at));
		if (len == 4 && memcmp(read->s + read->at, "root", 4) == 0)
			root = rule;
		read->at += len;
		blanks(read, false);
		read->at += 3;
		Ex *body = alternatives(read, false);
		b->rule[rule] = body;
		if (read->at < read->n && !rule_begins(read))
			wrong(read, "not understood");
	}
	for (size_t i = 0; i < read->n_name; i++)
		if (!b->rule[read->name[i].rule])
			build_fail(b, "grammar, line %d: there is no rule '%.*s'", line_of(read, (size_t)(read->name[i].s - s)), (int)read->name[i].n, read->name[i].s);
	if (root < 0)
		build_fail(b, "the grammar has no rule 'root'");
	return ex_rule(b, root);
}
