/* GBNF, the grammar notation of llama.cpp: rules `name ::= ...` of quoted strings, classes, names,
 * groups, alternatives, `*` `+` `?` `{m,n}`, `.` for any character, and `#` comments. The start
 * rule is `root`. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/rules.h"

static void
blanks(RuleReader *g, bool lines)
{
	for (;; g->at++) {
		char c = rules_peek(g);
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
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_';
}

static size_t
word(const RuleReader *g)
{
	size_t n = 0;

	while (g->at + n < g->n && is_word(g->s[g->at + n]))
		n++;
	return n;
}

static uint32_t
character(RuleReader *g)
{
	size_t len;

	if (g->at >= g->n)
		rules_wrong(g, g->at, "a string or a character class is not closed");
	if (!rules_take(g, '\\')) {
		int32_t c = utf8_next(g->s + g->at, g->n - g->at, &len);
		g->at += len;
		return (uint32_t)c;
	}
	char c = rules_peek(g);
	g->at += g->at < g->n;
	switch (c) {
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	case 'x':
		return rules_hex(g, 2);
	case 'u':
		return rules_hex(g, 4);
	case 'U':
		return rules_hex(g, 8);
	case '"':
	case '[':
	case ']':
	case '\\':
	case '-':
	case '^':
	case '/':
		return (uint32_t)c;
	default:
		g->at -= g->at > 0;
		rules_wrong(g, g->at, "no such escape");
	}
}

static Expr *
text(RuleReader *g)
{
	Strbuf *out = arena_strbuf(g->b->a);
	char bytes[4];

	while (!rules_take(g, '"')) {
		uint32_t c = character(g);
		if (c > 0x10FFFF)
			rules_wrong(g, g->at, "the code point is above U+10FFFF");
		strbuf_add(out, bytes, utf8_put(bytes, c));
	}
	if (out->failed)
		arena_out(g->b->a);
	return expr_bytes(g->b, strbuf_str(out), out->len);
}

static Expr *class(RuleReader *g)
{
	bool invert = rules_take(g, '^');
	Range *r = NULL, *out;
	size_t n = 0, cap = 0;

	while (!rules_take(g, ']')) {
		uint32_t lo = character(g), hi = lo;
		if (rules_peek(g) == '-' && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
			g->at++;
			hi = character(g);
		}
		if (hi < lo || hi > 0x10FFFF)
			rules_wrong(g, g->at, "a range is reversed or above U+10FFFF");
		r = arena_grow(g->b->a, r, &cap, n + 1, sizeof *r);
		r[n++] = (Range){ lo, hi };
	}
	if (!invert)
		return expr_chars(g->b, r, n);
	out = NEW(g->b->a, Range, n + 2);
	n = n ? ranges_join(r, n) : 0;
	n = ranges_invert(r, n, out);
	return expr_chars(g->b, out, n);
}

static Expr *alternatives(RuleReader *g, bool nested);

/* Returns NULL if no item begins at the current offset. */
static Expr *
item(RuleReader *g)
{
	if (rules_take(g, '"'))
		return text(g);
	if (rules_take(g, '['))
		return class(g);
	if (rules_take(g, '.'))
		return expr_char(g->b, 0, 0x10FFFF);
	if (rules_take(g, '(')) {
		Expr *x = alternatives(g, true);
		blanks(g, true);
		if (!rules_take(g, ')'))
			rules_wrong(g, g->at, "expected ')'");
		return x;
	}
	size_t n = word(g);
	if (!n)
		return NULL;
	int32_t rule = rules_name(g, g->s + g->at, n)->rule;
	g->at += n;
	return expr_rule(g->b, rule);
}

static int32_t
number(RuleReader *g)
{
	int32_t v = 0;
	bool any = false;

	for (; rules_peek(g) >= '0' && rules_peek(g) <= '9'; g->at++, any = true) {
		v = v * 10 + (rules_peek(g) - '0');
		if (v > MAX_COUNT)
			rules_wrong(g, g->at, "a repetition is too large");
	}
	return any ? v : -1;
}

static Expr *
repeated(RuleReader *g, Expr *x)
{
	for (;;) {
		blanks(g, false);
		if (rules_take(g, '*')) {
			x = expr_rep(g->b, x, 0, -1);
		} else if (rules_take(g, '+')) {
			x = expr_rep(g->b, x, 1, -1);
		} else if (rules_take(g, '?')) {
			x = expr_rep(g->b, x, 0, 1);
		} else if (rules_take(g, '{')) {
			blanks(g, false);
			int32_t min = number(g), max = min;
			blanks(g, false);
			if (rules_take(g, ',')) {
				blanks(g, false);
				max = number(g);
				min = min < 0 ? 0 : min;
			}
			blanks(g, false);
			if (min < 0 || (max >= 0 && max < min) || !rules_take(g, '}'))
				rules_wrong(g, g->at, "expected {m}, {m,} or {m,n}");
			x = expr_rep(g->b, x, min, max);
		} else {
			return x;
		}
	}
}

static bool
rule_begins(RuleReader *g)
{
	size_t at = g->at, n = word(g);

	g->at += n;
	blanks(g, false);
	bool yes = n && g->n - g->at >= 3 && memcmp(g->s + g->at, "::=", 3) == 0;
	g->at = at;
	return yes;
}

static Expr *
sequence(RuleReader *g, bool nested)
{
	ExprList parts = { 0 };

	for (;;) {
		blanks(g, true); /* a line that begins no rule continues the current one */
		if (!nested && rule_begins(g))
			break;
		Expr *x = item(g);
		if (!x)
			break;
		expr_push(g->b, &parts, repeated(g, x));
	}
	return expr_list(g->b, EXPR_SEQ, &parts);
}

static Expr *
alternatives(RuleReader *g, bool nested)
{
	ExprList parts = { 0 };

	if (++g->depth > MAX_NEST)
		rules_wrong(g, g->at, "groups are nested too deeply");
	do
		expr_push(g->b, &parts, sequence(g, nested));
	while (rules_take(g, '|'));
	g->depth--;
	return expr_list(g->b, EXPR_ALT, &parts);
}

Expr *
gbnf_read(GrammarBuilder *b, const char *s, size_t n)
{
	RuleReader *read = NEW(b->a, RuleReader, 1);
	int32_t root = -1;

	*read = (RuleReader){
		.b = b, .s = s, .n = n, .what = "grammar", .names = "rules", .shown = 20, .line = 1
	};

	for (blanks(read, true); read->at < read->n; blanks(read, true)) {
		size_t len = word(read);
		if (!len || !rule_begins(read))
			rules_wrong(read, read->at, "expected a rule: name ::= ...");
		int32_t rule = rules_name(read, read->s + read->at, len)->rule;
		if (b->rule[rule])
			rules_wrong(read, read->at, "this rule is defined twice");
		expr_rule_name(b, rule,
		               arena_printf(b->a, "grammar, line %d: '%.*s'",
		                            rules_line(read, read->at),
		                            (int)(len < 100 ? len : 100), read->s + read->at));
		if (len == 4 && memcmp(read->s + read->at, "root", 4) == 0)
			root = rule;
		read->at += len;
		blanks(read, false);
		read->at += 3;
		Expr *body = alternatives(read, false);
		b->rule[rule] = body;
		if (read->at < read->n && !rule_begins(read))
			rules_wrong(read, read->at, "not understood");
	}
	for (size_t i = 0; i < read->n_name; i++)
		if (!b->rule[read->name[i].rule])
			build_fail(b, "grammar, line %d: there is no rule '%.*s'",
			           rules_line(read, (size_t)(read->name[i].s - s)),
			           (int)read->name[i].n, read->name[i].s);
	if (root < 0)
		build_fail(b, "the grammar has no rule 'root'");
	return expr_rule(b, root);
}
