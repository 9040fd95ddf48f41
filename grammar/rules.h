/* What grammars that are written as rules share, GBNF and Lark's: a place in the text, its lines,
 * the names of rules. */
#ifndef LLMC_GRAMMAR_RULES_H
#define LLMC_GRAMMAR_RULES_H

#include "grammar/grammar_internal.h"

enum { MAX_NEST = 200, MAX_COUNT = 1000000, N_BUCKET = 4096 };

typedef struct RuleName {
	const char *s;
	size_t n;
	int32_t rule, next;
} RuleName; /* s: where it came first; next: of its bucket */
typedef struct RuleReader {
	GrammarBuilder *b;
	const char *s;
	size_t n, at;
	const char *what, *names; /* in errors: the notation, and what has names in it */
	size_t shown;             /* characters of a line in errors, at most */
	RuleName *name;
	size_t n_name, cap_name;
	int32_t bucket[N_BUCKET]; /* + 1 */
	size_t counted;           /* bytes whose lines are counted in line */
	int line, depth;          /* line: 1 at first */
} RuleReader;

int rules_line(RuleReader *g, size_t at);
void rules_wrong(RuleReader *g, size_t at, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
RuleName *rules_name(RuleReader *g, const char *s,
                     size_t n); /* made where it is new, without a body */
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
