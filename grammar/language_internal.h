/* Parts of the operations on regular languages. */
#ifndef LLMC_GRAMMAR_LANGUAGE_INTERNAL_H
#define LLMC_GRAMMAR_LANGUAGE_INTERNAL_H

#include "grammar/language.h"

enum {
	MAX_NODES = 20000,    /* nodes of one NFA */
	MAX_DFA = 4000,       /* states of the intersection */
	MAX_TABLE = 1 << 21,  /* states of the intersection times classes of characters */
	MAX_STEPS = 3 << 19,  /* NFA nodes visited for one intersection */
	MAX_ALL = 1 << 23,    /* NFA nodes visited for all intersections of a grammar */
	MAX_ITEMS = 1 << 20,  /* NFA nodes in all states of the intersection */
	MAX_UNROLLED = 20000, /* states that contain their length */
	MAX_WINDOW = 2048,    /* lengths that are checked one by one */
};

typedef enum NfaKind { NFA_EMPTY, NFA_RANGE, NFA_START, NFA_END, NFA_WORD, NFA_NO_WORD } NfaKind;
typedef struct NfaEdge {
	NfaKind kind;
	uint32_t lo, hi;
	int32_t to, next;
} NfaEdge;
_Static_assert(sizeof(NfaEdge) == 20, "edges without padding are compared as bytes");
typedef struct Nfa {
	Arena *a;
	int32_t *head;
	size_t n, cap_head;
	NfaEdge *edge;
	size_t n_edge, cap_edge;
	int32_t end;
	uint8_t *ends, *ends_first; /* [n] an end is reachable without a character; the same if the
	                               string is still empty */
	bool words;                 /* it has word boundaries */
	bool negate;                /* the operand is all other strings */
	bool failed;
} Nfa;

/* language_nfa.c */
int32_t nfa_node(Nfa *m);
void nfa_build(Nfa *m, const Expr *x, int32_t from, int32_t to, int depth);
/* Replaces word boundaries by nodes that hold whether the last character was one of a word and what
 * the next one has to be. The start stays node 0. */
void nfa_expand_words(Nfa *m);
/* Marks the nodes from which the end is reachable without a character. */
uint8_t *nfa_find_ends(const Nfa *m, bool first);

#endif
