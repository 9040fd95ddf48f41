/* Regular languages of characters, made of several expressions (language.c). */
#ifndef LLMC_GRAMMAR_LANGUAGE_H
#define LLMC_GRAMMAR_LANGUAGE_H

#include "grammar/grammar_internal.h"

typedef struct Operand { /* strings that x matches; negate: all other strings */
	const Expr *x;   /* made of EXPR_CHARS, SEQ, ALT, REP, BYTES and ANCHOR */
	bool negate;
} Operand;
typedef struct Language {   /* minimal deterministic automaton; state 0 is the start */
	int32_t n, n_class; /* n 0: the language has no string */
	int32_t *next;      /* [n][n_class] next state; -1: no string continues with this class */
	uint8_t *accept;    /* [n] */
	const uint32_t *bound; /* [n_range + 1] first code points of the ranges */
	const int32_t *cls;    /* [n_range] class; -1: surrogates */
	size_t n_range;
} Language;

/* Makes the language of the strings that are in all operands. Returns false if the automaton would
 * be too large. */
bool language_make(GrammarBuilder *b, const Operand *op, size_t n_op, Language *out);
bool language_has(const Language *l, const char *s, size_t n);
/* Returns an expression for the strings of min to max characters (max -1: unlimited). NULL: the
 * length cannot be enforced. flags: json. */
Expr *language_expr(GrammarBuilder *b, const Language *l, int32_t min, int32_t max,
                    RegexFlags flags);

#endif
