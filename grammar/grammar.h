/* Constrained output: computes which tokens may come next under a grammar.
 *
 *   TokenVocab   byte strings of all tokens, in tries; built once per tokenizer
 *   Grammar      a schema, regex or grammar, compiled to an automaton over bytes; sets of its
 *                states are built as outputs reach them
 *   Matcher      position in one output; several matchers share a grammar, its sets and its masks
 *
 *   front ends        schema*.c, number_range.c, string_formats.c, json_grammar.c (JSON Schema),
 *                     regex_grammar.c, gbnf.c and lark.c (with rules.c), structural_tags.c,
 *                     grammar_open.c (choices): source -> expressions (expression.c)
 *   automaton.c       expressions -> states and edges
 *   state_sets.c      sets of (state, stack), built lazily; stacks are hash-consed, repetitions are
 *                     counters on them
 *   token_mask.c      state set x tries -> mask
 *   matcher.c         functions that callers use
 *   vocabulary.c      tries and slices
 *
 * This module depends on no model and no tokenizer. Grammars and vocabularies may be used from any
 * thread: a lock guards the caches of a grammar. All input is untrusted, so time and memory of each
 * call are bounded. */
#ifndef LLMC_GRAMMAR_H
#define LLMC_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct TokenVocab TokenVocab;
typedef struct llmc_matcher Matcher;
typedef struct llmc_grammar Grammar;

typedef struct VocabToken { /* token as bytes; n 0: the id is unused */
	const char *bytes;
	uint32_t n;
	bool special; /* matched by its id only, never by its bytes */
} VocabToken;

/* Copies tok [n_tok]. The vocabulary is reference counted: each retain needs a close. */
llmc_status token_vocab_open(const VocabToken *tok, int32_t n_tok, TokenVocab **out,
                             llmc_error *err);
TokenVocab *token_vocab_retain(TokenVocab *l);
void token_vocab_close(TokenVocab *l);
/* True: both have the same tokens, so a grammar of one fits outputs of the other. */
bool token_vocab_same(const TokenVocab *a, const TokenVocab *b);
int32_t token_vocab_size(const TokenVocab *l);

/* Compiles text [n]. opt may be NULL. eos [n_eos]: end tokens, allowed where the grammar may end.
 * E_INPUT: the message names the location, which is a path and keyword of a schema or the line and
 * column of other notations. */
llmc_status grammar_open(TokenVocab *l, llmc_grammar_kind kind, const char *text, size_t n,
                         const llmc_grammar_options *opt, const int32_t *eos, int32_t n_eos,
                         Grammar **out, llmc_error *err);
Grammar *grammar_retain(Grammar *g);
void grammar_close(Grammar *g);
const TokenVocab *grammar_vocab(const Grammar *g);

/* Match a string. *complete: text [n] is an output of the grammar. *n_matched: bytes of its longest
 * prefix that is the beginning of an output. */
llmc_status grammar_match(Grammar *g, const char *text, size_t n, bool *complete, size_t *n_matched,
                          llmc_error *err);

/* after: NULL-terminated list of strings. The output must first contain all of them in this order;
 * the grammar begins right after the last one. NULL: it begins at once. */
llmc_status matcher_open(Grammar *g, const char *const *after, Matcher **out, llmc_error *err);
void matcher_close(Matcher *m);
/* Writes one bit per token to bits [n_words]; bits beyond the vocabulary are 0. If *all is set,
 * every token may come and bits are not written. E_MEMORY, E_RANGE: the grammar is too ambiguous
 * for its limits. */
llmc_status matcher_mask(Matcher *m, uint32_t *bits, size_t n_words, bool *all, llmc_error *err);
/* Returns whether the mask of the current position is cached, so that matcher_mask only copies
 * it. */
bool matcher_knows(Matcher *m);
/* Appends a token to the output. E_INPUT: the grammar does not allow it. */
llmc_status matcher_accept(Matcher *m, int32_t id, llmc_error *err);
/* Returns whether the output is complete and nothing can follow. */
bool matcher_ended(Matcher *m);
bool matcher_may_end(Matcher *m); /* the output is complete, but may continue */
/* Returns to the beginning of the output. */
void matcher_reset(Matcher *m);

#endif
