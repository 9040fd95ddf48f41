/* Reader shared by the rule notations, GBNF and Lark: offset, line count and rule names. */
#ifndef LLMC_GRAMMAR_RULES_H
#define LLMC_GRAMMAR_RULES_H

#include "grammar/grammar_internal.h"

enum { MAX_NEST = 200, MAX_COUNT = 1000000, N_BUCKET = 4096 };

typedef struct RuleName {
	const char *s;
	size_t n;
	int32_t rule, next;
} RuleName; /* s: first occurrence; next: next entry of its bucket */
typedef struct RuleReader {
	GrammarBuilder *b;
	const char *s;
	size_t n, at;
	const char *what, *names; /* for errors: name of the notation and of its named items */
	size_t shown;             /* longest excerpt of a line in errors, in characters */
	RuleName *name;
	size_t n_name, cap_name;
	int32_t bucket[N_BUCKET]; /* index + 1; 0: empty */
	size_t counted;           /* bytes whose lines are included in `line` */
	int line, depth;          /* line: 1-based */
} RuleReader;

int rules_line(RuleReader *g, size_t at);
void rules_wrong(RuleReader *g, size_t at, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* creates an unknown name without a body */
RuleName *rules_name(RuleReader *g, const char *s, size_t n);
uint32_t rules_hex(RuleReader *g, int digits);

static inline char
rules_peek(const RuleReader *g)
{
	return g->at < g->n ? g->s[g->at] : 0;
}

static inline bool
rules_take(RuleReader *g, char c)
{
	bool yes = g->at < g->n && g->s[g->at] == c;

	g->at += yes;
	return yes;
}

#endif
