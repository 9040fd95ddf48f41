/* Parts of the construction of an automaton. */
#ifndef LLMC_GRAMMAR_AUTOMATON_INTERNAL_H
#define LLMC_GRAMMAR_AUTOMATON_INTERNAL_H

#include "grammar/grammar_internal.h"

typedef struct RuleLink { /* edge, as an element of the list of its source state */
	Edge e;
	int32_t next; /* next edge of the same state */
} RuleLink;

typedef struct AutomatonBuilder {
	GrammarBuilder *b;
	RuleLink *link;
	size_t n_link, cap_link;
	int32_t *head;
	size_t n_state, cap_head;
	uint8_t *flags;
	size_t cap_flags;
	Repeat *rep;
	size_t n_rep, cap_rep;
	CountedNode *tick;
	size_t n_tick, cap_tick;
	int32_t *rule_start;
	uint8_t *rule_seen;
	int32_t *todo;
	size_t n_todo;
	uint8_t *nullable; /* [n_rule]: 0 unknown, 1 no, 2 yes */
	bool has_tokens;
	int depth;
} AutomatonBuilder;

/* automaton_finish.c */
/* Replaces a state whose only link is an empty edge by the target of that edge. */
void automaton_skip_empty(AutomatonBuilder *m, int32_t *to);
void automaton_make_classes(const AutomatonBuilder *m, Automaton *out);
/* Removes links to states from which no end can be reached. */
void automaton_prune(AutomatonBuilder *m);
/* Numbers the reachable states in `place`; the others stay -1. */
int32_t automaton_reach(const AutomatonBuilder *m, const int32_t *to, int32_t start, int32_t *place,
                        int32_t *todo);
bool automaton_copy_out(const AutomatonBuilder *m, Automaton *out, const int32_t *to,
                        const int32_t *place, const int32_t *order, int32_t n);

#endif
