/* Lark grammars without a lexer: rules and terminals `name: ...` of quoted strings, regexes between
 * slashes, ranges "a".."z", names, groups, [optional] groups, alternatives, `*` `+` `?` `~n`
 * `~n..m`, `-> alias`, comments, `%import common.NAME`. The start rule is `start`. A terminal
 * matches wherever it fits, so its length and priority are irrelevant. Features that need a lexer
 * (`%ignore`, priorities, lazy quantifiers) and templates are rejected by name. A directly
 * left-recursive rule is rewritten as a loop. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/rules.h"

typedef struct Lark {
	RuleReader r;
	RegexFlags flags;
	/* characters with a single spelling, collected into words, so that words share prefix
	 * trees */
	Strbuf *run;
	bool in_terminal;
} Lark;

/* terminals of %import common.NAME */
static const struct {
	const char *name, *regex;
} common[] = {
	{ "DIGIT", "[0-9]" },
	{ "HEXDIGIT", "[a-fA-F0-9]" },
	{ "INT", "[0-9]+" },
	{ "SIGNED_INT", "[+-]?[0-9]+" },
	{ "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
	{ "FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_FLOAT",
	  "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_NUMBER",
	  "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\"" },
	{ "LCASE_LETTER", "[a-z]" },
	{ "UCASE_LETTER", "[A-Z]" },
	{ "LETTER", "[A-Za-z]" },
	{ "WORD", "[A-Za-z]+" },
	{ "CNAME", "[_A-Za-z][_A-Za-z0-9]*" },
	{ "WS_INLINE", "[ \\t]+" },
	{ "WS", "[ \\t\\f\\r\\n]+" },
	{ "CR", "\\r" },
	{ "LF", "\\n" },
	{ "NEWLINE", "(\\r?\\n)+" },
	{ "SH_COMMENT", "#[^\\n]*" },
	{ "CPP_COMMENT", "//[^\\n]*" },
	{ "C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/" },
	{ "SQL_COMMENT", "--[^\\n]*" },
};

static bool
is_next(const Lark *g, const char *s)
{
	size_t n = strlen(s);

	return n <= g->r.n - g->r.at && memcmp(g->r.s + g->r.at, s, n) == 0;
}

static void
blanks(Lark *g, bool lines)
{
	for (; g->r.at < g->r.n; g->r.at++) {
		char c = g->r.s[g->r.at];
		if (c == '#' || is_next(g, "//"))
			while (g->r.at + 1 < g->r.n && g->r.s[g->r.at + 1] != '\n')
				g->r.at++;
		else if (c != ' ' && c != '\t' && c != '\r' && c != '\f' && !(lines && c == '\n'))
			return;
	}
}

static bool
is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

static size_t
word(const Lark *g)
{
	size_t n = 0;

	while (g->r.at + n < g->r.n && is_word(g->r.s[g->r.at + n]))
		n++;
	return n && (g->r.s[g->r.at] < '0' || g->r.s[g->r.at] > '9') ? n : 0;
}

/* Terminal names are upper case. */
static bool
is_terminal(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && s[i] == '_')
		i++;
	return i < n && s[i] >= 'A' && s[i] <= 'Z';
}

/* ---- strings and regexes ---- */

static uint32_t
character(Lark *g)
{
	size_t len, from = g->r.at;

	if (!rules_take(&g->r, '\\')) {
		int32_t c = utf8_next(g->r.s + g->r.at, g->r.n - g->r.at, &len);
		g->r.at += len;
		return (uint32_t)c;
	}
	char c = rules_peek(&g->r);
	g->r.at += g->r.at < g->r.n;
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
	case 'x':
		return rules_hex(&g->r, 2);
	case 'u':
		return rules_hex(&g->r, 4);
	case 'U':
		return rules_hex(&g->r, 8);
	case '"':
	case '\\':
	case '\'':
	case '/':
		return (uint32_t)c;
	default:
		rules_wrong(&g->r, from, "no such escape");
	}
}

/* Reads a string after its opening quote; one range per character. */
static Range *
quoted(Lark *g, size_t *n)
{
	size_t from = g->r.at - 1, cap = 0;
	Range *r = NEW(g->r.b->a, Range, 1);

	for (*n = 0; !rules_take(&g->r, '"'); ++*n) {
		if (g->r.at >= g->r.n || rules_peek(&g->r) == '\n')
			rules_wrong(&g->r, from, "a string is not closed");
		size_t at = g->r.at;
		uint32_t c = character(g);
		if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
			rules_wrong(&g->r, at, "the code point is a surrogate or above U+10FFFF");
		r = arena_grow(g->r.b->a, *n ? r : NULL, &cap, *n + 1, sizeof *r);
		r[*n] = (Range){ c, c };
	}
	return r;
}

static void
add_run(Lark *g, ExprList *parts)
{
	if (g->run->failed)
		arena_out(g->r.b->a);
	if (g->run->len)
		expr_push(g->r.b, parts, expr_bytes(g->r.b, strbuf_str(g->run), g->run->len));
	strbuf_clear(g->run);
}

static Expr *
text(Lark *g)
{
	size_t n, n_last, from;
	Range *r = quoted(g, &n), *last;
	ExprList parts = { 0 };
	RegexFlags flags = g->flags;
	char bytes[4];

	if (is_next(g, "..")) {
		from = g->r.at;
		g->r.at += 2;
		if (!rules_take(&g->r, '"'))
			rules_wrong(&g->r, from, "a range needs a string on both sides");
		last = quoted(g, &n_last);
		if (n != 1 || n_last != 1 || last->lo < r->lo)
			rules_wrong(&g->r, from,
			            "a range needs two single characters in ascending order");
		return regex_chars(g->r.b, &(Range){ r->lo, last->lo }, 1, flags);
	}
	if (rules_peek(&g->r) == 'i' && !(g->r.at + 1 < g->r.n && is_word(g->r.s[g->r.at + 1]))) {
		g->r.at++;
		flags.fold = true;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t c = r[i].lo;
		bool letter = (c | 32) >= 'a' && (c | 32) <= 'z',
		     escaped = c < 0x20 || c == '"' || c == '\\' || c == 0x7F;
		if (!(flags.fold && letter) && !(flags.json && escaped)) {
			strbuf_add(g->run, bytes, utf8_put(bytes, c));
			continue;
		}
		add_run(g, &parts);
		expr_push(g->r.b, &parts, regex_chars(g->r.b, &r[i], 1, flags));
	}
	add_run(g, &parts);
	return expr_list(g->r.b, EXPR_SEQ, &parts);
}

static Expr *
expression(Lark *g)
{
	size_t from = g->r.at - 1, begin = g->r.at;
	RegexFlags flags = g->flags;

	while (rules_peek(&g->r) != '/') {
		g->r.at += rules_peek(&g->r) == '\\';
		if (g->r.at >= g->r.n || rules_peek(&g->r) == '\n')
			rules_wrong(&g->r, from, "a regular expression has no closing '/'");
		g->r.at++;
	}
	size_t n = g->r.at++ - begin;
	for (char c; (c = rules_peek(&g->r)) >= 'a' && c <= 'z'; g->r.at++) {
		if (c == 'i')
			flags.fold = true;
		else if (c == 's')
			flags.dot_all = true;
		else if (c != 'u')
			rules_wrong(
			    &g->r, from,
			    "the flag '%c' of an expression is not supported: i, s and u are", c);
	}
	flags.no_lazy = true;
	const char *outer = g->r.b->place;
	g->r.b->place = arena_printf(g->r.b->a, "lark, line %d", rules_line(&g->r, from));
	Expr *x = regex_read(g->r.b, g->r.s + begin, n, flags);
	g->r.b->place = outer;
	return x;
}

/* ---- rules ---- */

static Expr *alternatives(Lark *g, bool nested, ExprList *list);

/* Reads a group up to `close`. */
static Expr *
group(Lark *g, char close)
{
	size_t from = g->r.at - 1;
	Expr *x = alternatives(g, true, NULL);

	blanks(g, true);
	if (!rules_take(&g->r, close))
		rules_wrong(&g->r, from, "a group has no closing '%c'", close);
	return close == ']' ? expr_rep(g->r.b, x, 0, 1) : x;
}

/* Returns NULL if no item begins at the current offset. */
static Expr *
item(Lark *g)
{
	size_t from = g->r.at, n = word(g);

	if (n) {
		RuleName *name = rules_name(&g->r, g->r.s + g->r.at, n);
		int32_t rule = name->rule;
		g->r.at += n;
		if (rules_peek(&g->r) == '{' && g->r.at + 1 < g->r.n &&
		    !strchr("0123456789,", g->r.s[g->r.at + 1]))
			rules_wrong(&g->r, from, "templates are not supported");
		if (g->in_terminal && !is_terminal(g->r.s + from, n))
			rules_wrong(&g->r, from,
			            "a terminal may contain strings, regular expressions and "
			            "terminals, but no rules");
		return expr_rule(g->r.b, rule);
	}
	switch (rules_peek(&g->r)) {
	case '"':
		g->r.at++;
		return text(g);
	case '/':
		g->r.at++;
		return expression(g);
	case '(':
		g->r.at++;
		return group(g, ')');
	case '[':
		g->r.at++;
		return group(g, ']');
	case '<':
		rules_wrong(&g->r, from, "tokens by name are not supported");
	case '@':
		rules_wrong(&g->r, from, "other grammars are not supported");
	case '%':
		rules_wrong(&g->r, from, "grammars of other kinds within a rule are not supported");
	default:
		return NULL;
	}
}

static int32_t
number(Lark *g)
{
	size_t from = g->r.at;
	int32_t v = 0;

	for (; rules_peek(&g->r) >= '0' && rules_peek(&g->r) <= '9'; g->r.at++) {
		v = v * 10 + (rules_peek(&g->r) - '0');
		if (v > MAX_COUNT)
			rules_wrong(&g->r, from, "a repetition count is above %d", MAX_COUNT);
	}
	return g->r.at > from ? v : -1;
}

static Expr *
repeated(Lark *g, Expr *x, bool nested)
{
	for (;;) {
		size_t from = g->r.at;
		blanks(g, nested);
		if (rules_take(&g->r, '*')) {
			x = expr_rep(g->r.b, x, 0, -1);
		} else if (rules_take(&g->r, '+')) {
			x = expr_rep(g->r.b, x, 1, -1);
		} else if (rules_take(&g->r, '?')) {
			x = expr_rep(g->r.b, x, 0, 1);
		} else if (rules_peek(&g->r) == '~' || rules_peek(&g->r) == '{') {
			/* {m,n}, which llguidance adds to Lark */
			size_t at = g->r.at;
			bool brace = g->r.s[g->r.at++] == '{';
			blanks(g, false);
			int32_t min = number(g), max = min;
			blanks(g, false);
			if (brace ? rules_take(&g->r, ',') : is_next(g, "..")) {
				g->r.at += brace ? 0 : 2;
				blanks(g, false);
				max = number(g);
				min = brace && min < 0 ? 0 : min;
				if (!brace && max < 0)
					min = -1;
			}
			blanks(g, false);
			if (min < 0 || (max >= 0 && max < min) ||
			    (brace && !rules_take(&g->r, '}')))
				rules_wrong(&g->r, at,
				            brace ? "expected {m}, {m,} or {m,n}"
				                  : "expected ~n or ~n..m");
			x = expr_rep(g->r.b, x, min, max);
		} else {
			g->r.at = from;
			return x;
		}
	}
}

static Expr *
sequence(Lark *g, bool nested)
{
	ExprList parts = { 0 };
	Expr *x;

	for (blanks(g, nested); (x = item(g)); blanks(g, nested))
		expr_push(g->r.b, &parts, repeated(g, x, nested));
	if (is_next(g, "->")) { /* {m,n} is a notation of llguidance */
		size_t from = g->r.at;
		g->r.at += 2;
		blanks(g, false);
		size_t n = word(g);
		if (!n)
			rules_wrong(&g->r, from, "an alias has no name");
		g->r.at += n;
		blanks(g, nested);
	}
	return expr_list(g->r.b, EXPR_SEQ, &parts);
}

/* Reads alternatives. If list is not NULL, they are added to it one by one, and NULL is
 * returned. */
static Expr *
alternatives(Lark *g, bool nested, ExprList *list)
{
	ExprList own = { 0 }, *parts = list ? list : &own;

	if (++g->r.depth > MAX_NEST)
		rules_wrong(&g->r, g->r.at, "groups are nested more than %d deep", MAX_NEST);
	for (;;) {
		expr_push(g->r.b, parts, sequence(g, nested));
		size_t at = g->r.at;
		blanks(g, true); /* the next line may begin with `|` */
		if (!rules_take(&g->r, '|')) {
			g->r.at = nested ? g->r.at : at;
			break;
		}
	}
	g->r.depth--;
	return list ? NULL : expr_list(g->r.b, EXPR_ALT, parts);
}

static bool
is_rule(const Expr *x, int32_t rule)
{
	return x->kind == EXPR_RULE && x->min == rule;
}

/* Rewrites a: a x | a y | b  as  a: b (x | y)* */
static Expr *
without_left_recursion(GrammarBuilder *b, int32_t rule, const ExprList *l)
{
	ExprList first = { 0 }, more = { 0 };

	for (size_t i = 0; i < l->n; i++) {
		const Expr *x = l->v[i];
		if (is_rule(x, rule))
			continue; /* `a: a` is dropped, because it adds nothing */
		if (x->kind != EXPR_SEQ || !x->n || !is_rule(x->part[0], rule)) {
			expr_push(b, &first, l->v[i]);
			continue;
		}
		ExprList rest = { 0 };
		for (int32_t k = 1; k < x->n; k++)
			expr_push(b, &rest, x->part[k]);
		expr_push(b, &more, expr_list(b, EXPR_SEQ, &rest));
	}
	Expr *begins = expr_list(b, EXPR_ALT, &first);
	return more.n ? expr_seq(b, 2, begins, expr_rep(b, expr_list(b, EXPR_ALT, &more), 0, -1))
	              : begins;
}

static void
set_body(Lark *g, size_t at, int32_t rule, Expr *body)
{
	if (g->r.b->rule[rule])
		rules_wrong(&g->r, at, "this name has been defined already");
	g->r.b->rule[rule] = body;
}

static void
definition(Lark *g)
{
	size_t from = g->r.at;

	rules_take(&g->r, '!'); /* tree-shaping marks, in either order */
	rules_take(&g->r, '?');
	rules_take(&g->r, '!');
	size_t at = g->r.at, n = word(g);
	if (!n)
		rules_wrong(&g->r, from, "expected a rule, name: ..., or a statement");
	int32_t rule = rules_name(&g->r, g->r.s + at, n)->rule;
	expr_rule_name(g->r.b, rule,
	               arena_printf(g->r.b->a, "lark, line %d: '%.*s'", rules_line(&g->r, at),
	                            (int)(n < 100 ? n : 100), g->r.s + at));
	bool terminal = is_terminal(g->r.s + at, n);
	ExprList list = { 0 };
	g->r.at += n;
	if (rules_peek(&g->r) == '{')
		rules_wrong(&g->r, from, "templates are not supported");
	if (rules_peek(&g->r) == '[')
		rules_wrong(&g->r, from, "attributes of rules are not supported");
	if (rules_peek(&g->r) == '.')
		rules_wrong(&g->r, from, "priorities are not supported");
	blanks(g, false);
	if (!rules_take(&g->r, ':'))
		rules_wrong(&g->r, from, "expected a rule, name: ..., or a statement");
	g->in_terminal = terminal;
	alternatives(g, false, &list);
	set_body(g, at, rule, without_left_recursion(g->r.b, rule, &list));
}

static void
import_name(Lark *g, size_t statement, const char *s, size_t n, const char *as, size_t n_as)
{
	for (size_t i = 0; i < sizeof common / sizeof *common; i++)
		if (strlen(common[i].name) == n && memcmp(common[i].name, s, n) == 0) {
			int32_t rule = rules_name(&g->r, as, n_as)->rule;
			set_body(
			    g, statement, rule,
			    regex_read(g->r.b, common[i].regex, strlen(common[i].regex), g->flags));
			return;
		}
	rules_wrong(&g->r, statement, "there is no '%.*s' to import from common",
	            (int)(n < 100 ? n : 100), s);
}

/* Reads %import common.NAME [-> ALIAS] or %import common (NAME, NAME). */
static void
import(Lark *g, size_t statement)
{
	static const char from[] = "common";

	blanks(g, false);
	size_t n = word(g);
	if (n != strlen(from) || memcmp(g->r.s + g->r.at, from, n) != 0)
		rules_wrong(&g->r, statement, "only imports from common are supported");
	g->r.at += n;
	blanks(g, false);
	bool list = rules_take(&g->r, '(');
	if (!list && !rules_take(&g->r, '.'))
		rules_wrong(&g->r, statement, "expected %%import common.NAME");
	do {
		blanks(g, list);
		const char *s = g->r.s + g->r.at;
		if (!(n = word(g)))
			rules_wrong(&g->r, statement, "expected the name of a terminal");
		g->r.at += n;
		const char *as = s;
		size_t n_as = n;
		blanks(g, list);
		if (!list && is_next(g, "->")) {
			g->r.at += 2;
			blanks(g, false);
			as = g->r.s + g->r.at;
			if (!(n_as = word(g)))
				rules_wrong(&g->r, statement, "an alias has no name");
			g->r.at += n_as;
		}
		import_name(g, statement, s, n, as, n_as);
	} while (list && rules_take(&g->r, ','));
	if (list && !rules_take(&g->r, ')'))
		rules_wrong(&g->r, statement, "the list of imports has no closing ')'");
}

#define OPTIONS "llguidance"

/* Reads %llguidance {...}. Options that change no language concern llguidance only and are skipped.
 * Others are an error. */
static void
options(Lark *g, size_t statement)
{
	size_t at = g->r.at + strlen(OPTIONS), end = at;

	while (end < g->r.n && g->r.s[end] != '\n')
		end++;
	json_error_t why;
	json_t *v = json_read(g->r.b->a, g->r.s + at, end - at, 0, &why), *one;
	const char *key;
	if (!json_is_object(v))
		rules_wrong(&g->r, statement, "expected %%llguidance and a JSON object");
	json_object_foreach (v, key, one)
		if (strcmp(key, "no_forcing") != 0 && strcmp(key, "allow_initial_skip") != 0)
			rules_wrong(&g->r, statement, "the option '%.40s' is not supported", key);
	g->r.at = end;
}

static void
statement(Lark *g)
{
	size_t from = g->r.at++, n = word(g);

	if (n == 6 && memcmp(g->r.s + g->r.at, "import", n) == 0) {
		g->r.at += n;
		import(g, from);
		return;
	}
	if (n == strlen(OPTIONS) && memcmp(g->r.s + g->r.at, OPTIONS, n) == 0) {
		options(g, from);
		return;
	}
	rules_wrong(&g->r, from, "%%%.*s is not supported", (int)(n < 40 ? n : 40),
	            g->r.s + g->r.at);
}

Expr *
lark_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags)
{
	Lark *g = NEW(b->a, Lark, 1);
	int32_t start = -1;

	*g = (Lark){ .r = { .b = b,
		            .s = s,
		            .n = n,
		            .what = "lark",
		            .names = "names",
		            .shown = 24,
		            .line = 1 },
		     .flags = flags,
		     .run = arena_strbuf(b->a) };
	for (blanks(g, true); g->r.at < g->r.n; blanks(g, true)) {
		if (rules_peek(&g->r) == '%')
			statement(g);
		else
			definition(g);
		blanks(g, false);
		if (g->r.at < g->r.n && rules_peek(&g->r) != '\n')
			rules_wrong(&g->r, g->r.at, "not understood");
	}
	for (size_t i = 0; i < g->r.n_name; i++) {
		if (!b->rule[g->r.name[i].rule])
			rules_wrong(&g->r, (size_t)(g->r.name[i].s - s),
			            "this name is not defined");
		if (g->r.name[i].n == 5 && memcmp(g->r.name[i].s, "start", 5) == 0)
			start = g->r.name[i].rule;
	}
	if (start < 0)
		build_fail(b, "lark: the grammar has no rule 'start'");
	return expr_rule(b, start);
}
