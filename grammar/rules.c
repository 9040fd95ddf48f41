/* Line numbers, names and errors of the rule notations GBNF and Lark. */
#include "grammar/rules.h"

#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

enum { MAX_NAMES = 1 << 15 };

/* Return the line of an offset. Fast for ascending offsets, which all are except those of
 * errors. */
int
rules_line(RuleReader *g, size_t at)
{
	if (at < g->counted) {
		g->counted = 0;
		g->line = 1;
	}
	for (; g->counted < at; g->counted++)
		g->line += g->s[g->counted] == '\n';
	return g->line;
}

void
rules_wrong(RuleReader *g, size_t at, const char *fmt, ...)
{
	size_t left = g->n - at, show = 0;
	va_list ap;

	va_start(ap, fmt);
	const char *why = arena_vprintf(g->b->a, fmt, ap);
	va_end(ap);
	while (show < left && show < g->shown && g->s[at + show] != '\n')
		show++;
	build_fail(g->b, "%s, line %d, at '%.*s': %s", g->what, rules_line(g, at),
	           (int)utf8_whole(g->s + at, show), g->s + at, why);
}

RuleName *
rules_name(RuleReader *g, const char *s, size_t n)
{
	uint32_t key = 0;

	for (size_t i = 0; i < n; i++)
		key = key * 31 + (uint8_t)s[i];
	int32_t *bucket = &g->bucket[key % N_BUCKET];
	for (int32_t i = *bucket - 1; i >= 0; i = g->name[i].next)
		if (g->name[i].n == n && memcmp(g->name[i].s, s, n) == 0)
			return &g->name[i];
	if (g->n_name >= MAX_NAMES)
		rules_wrong(g, (size_t)(s - g->s), "there are more than %d %s", MAX_NAMES,
		            g->names);
	g->name = arena_grow(g->b->a, g->name, &g->cap_name, g->n_name + 1, sizeof *g->name);
	g->name[g->n_name] = (RuleName){ s, n, rule_new(g->b), *bucket - 1 };
	*bucket = (int32_t)g->n_name + 1;
	return &g->name[g->n_name++];
}

uint32_t
rules_hex(RuleReader *g, int digits)
{
	uint32_t v = 0;

	while (digits--) {
		int d = hex_digit(rules_peek(g));
		if (d < 0)
			rules_wrong(g, g->at, "expected hexadecimal digits");
		v = v << 4 | (uint32_t)d;
		g->at++;
	}
	return v;
}
