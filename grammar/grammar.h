/* Constrained output: which tokens may come next, by a grammar.
 *
 *   Lexicon   a vocabulary as masks need it: the bytes of its tokens, in tries; made once a tokenizer
 *   Grammar   a schema, an expression, a grammar, compiled to an automaton over bytes whose sets of states are made as texts reach them
 *   Matcher   a place in one text; several share a grammar, its sets and its masks
 *
 *   front ends   schema.c (schema_ref.c, schema_scalar.c, schema_containers.c, schema_merge.c, schema_disjoint.c, number_range.c, string_formats.c), regex_grammar.c, gbnf.c and lark.c (rules.c), structural_tags.c, grammar_open.c (choices): text -> expressions (expression.c)
 *   automaton.c  expressions -> states and edges
 *   state_sets.c       sets of (state, stack), made lazily; stacks are hash-consed, repetitions are counters on them, never copies
 *   token_mask.c       a set beside the tries -> a mask;  matcher.c  what callers see
 *   vocabulary.c    tries and slices
 *
 * The room knows no model and no tokenizer. Grammars and lexicons may be used from any thread: a
 * grammar's caches are behind its lock. All text is untrusted: time and memory of each call are
 * bounded. */
#ifndef LLMC_GRAMMAR_H
#define LLMC_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct TokenVocab TokenVocab;
typedef struct llmc_matcher Matcher;
typedef struct llmc_grammar Grammar;

typedef struct VocabToken { /* n 0: there is no such token */
	const char *bytes;
	uint32_t n;
	bool special; /* matched by its number alone, never by its bytes */
} VocabToken;

/* tok [n_tok] is copied. Counted: each retain wants a close. */
llmc_status token_vocab_open(const VocabToken *tok, int32_t n_tok, TokenVocab **out,
                             llmc_error *err);
TokenVocab *token_vocab_retain(TokenVocab *l);
void token_vocab_close(TokenVocab *l);

/* text [n]; opt may be NULL; eos [n_eos]: tokens that end a text, allowed where the grammar may
 * end. E_INPUT: the sentence names the place: a path and a keyword of a schema, a line or column of
 * the others. */
llmc_status grammar_open(TokenVocab *l, llmc_grammar_kind kind, const char *text, size_t n,
                         const llmc_grammar_options *opt, const int32_t *eos, int32_t n_eos,
                         Grammar **out, llmc_error *err);
Grammar *grammar_retain(Grammar *g);
void grammar_close(Grammar *g);

/* after: texts that must have come, one behind the other, before the grammar begins, right behind
 * the last; NULL-terminated, or NULL: at once. */
llmc_status matcher_open(Grammar *g, const char *const *after, Matcher **out, llmc_error *err);
void matcher_close(Matcher *m);
/* A bit a token, of bits [n_words]; beyond the vocabulary 0. *all: everything may come, bits are
 * not written. E_MEMORY, E_RANGE: the grammar is too ambiguous for its bounds. */
llmc_status matcher_mask(Matcher *m, uint32_t *bits, size_t n_words, bool *all, llmc_error *err);
/* The mask of this place has been made before, for this text or another: asking for it is a copy.
 */
bool matcher_knows(Matcher *m);
/* The next token of the text. E_INPUT: the grammar does not allow it. */
llmc_status matcher_accept(Matcher *m, int32_t id, llmc_error *err);
/* The text is complete, and nothing can follow. */
bool matcher_ended(Matcher *m);
bool matcher_may_end(Matcher *m); /* the text is complete as it stands */
/* Back to the beginning. */
void matcher_reset(Matcher *m);

#endif
