/* Grammars over the 300 tokens of configs/tiny.yaml, which has no tokenizer: token i is a letter
 * and a digit, a0, b0, ... z0, a1, ...; token 2 ends the output. */
#ifndef TESTS_UNIT_TINY_GRAMMAR_H
#define TESTS_UNIT_TINY_GRAMMAR_H

#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

/* A grammar over the first n tokens. */
static inline Grammar *
tiny_grammar_of(int n, const char *regex)
{
	enum { N = 300 };
	static char text[N][2];
	VocabToken tok[N];
	const int32_t eos = 2;
	TokenVocab *l = NULL;
	Grammar *g = NULL;

	for (int i = 0; i < N; i++) {
		text[i][0] = (char)('a' + i % 26);
		text[i][1] = (char)('0' + i / 26);
		tok[i] = (VocabToken){ .bytes = text[i], .n = 2, .special = i == eos };
	}
	if (token_vocab_open(tok, n, &l, NULL) != LLMC_OK ||
	    grammar_open(l, LLMC_GRAMMAR_REGEX, regex, strlen(regex), NULL, &eos, 1, &g, NULL) !=
	        LLMC_OK)
		abort();
	token_vocab_close(l);
	return g;
}

static inline Grammar *
tiny_grammar(const char *regex)
{
	return tiny_grammar_of(300, regex);
}

#endif
