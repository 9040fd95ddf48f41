/* Arbitrary bytes as a grammar: the first byte selects its kind and options. A grammar that
 * compiles is explored: each token of a mask can be accepted, a token outside it cannot, and the
 * bytes of a longer token are allowed one by one if the token is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EOS = 272, N_TOK = 273, N_WORDS = (N_TOK + 31) / 32 };

static void
check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_grammar: %s\n", what);
		abort();
	}
}

static TokenVocab *
lexicon(void)
{
	static const char *const longer[] = { "{\"",  "\":",      "\", \"", "true", "]}", "123",
		                              "    ", "\n\n",     "abc",    "\"}",  "]]", "\\u00",
		                              "00",   "\xc3\xa9", "\"a\"",  "-1.5" };
	static char byte[256];
	VocabToken tok[N_TOK] = { 0 };
	TokenVocab *l = NULL;

	for (int i = 0; i < 256; i++) {
		byte[i] = (char)i;
		tok[i] = (VocabToken){ &byte[i], 1, false };
	}
	for (int i = 0; i < 16; i++)
		tok[256 + i] = (VocabToken){ longer[i], (uint32_t)strlen(longer[i]), false };
	tok[EOS] = (VocabToken){ "</s>", 4, true };
	check(token_vocab_open(tok, N_TOK, &l, NULL) == LLMC_OK, "no lexicon");
	return l;
}

static bool
has(const uint32_t *bits, int32_t id)
{
	return bits[id >> 5] >> (id & 31) & 1;
}

static void
walk(Grammar *g, const uint8_t *data, size_t size)
{
	uint32_t bits[N_WORDS];
	Matcher *m;
	bool all;

	check(matcher_open(g, NULL, &m, NULL) == LLMC_OK, "no matcher");
	for (size_t i = 0; i < 60; i++) {
		if (matcher_mask(m, bits, N_WORDS, &all, NULL) != LLMC_OK)
			break;
		check(
		    has(bits, EOS) == matcher_may_end(m),
		    "the end token is not allowed where the text may end, or is where it may not");
		uint32_t want = size ? data[i * 7 % size] * 31u + (uint32_t)i : (uint32_t)i;
		int32_t id = -1;
		for (uint32_t k = 0; k < EOS && id < 0; k++)
			if (has(bits, (int32_t)((want + k) % EOS)))
				id = (int32_t)((want + k) % EOS);
		if (id < 0) {
			check(has(bits, EOS), "a text that can neither go on nor end");
			break;
		}
		if (matcher_accept(m, id, NULL) != LLMC_OK)
			check(false, "a token of the mask is not accepted");
	}
	matcher_close(m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static TokenVocab *l;
	Grammar *g = NULL;
	llmc_error err = { 0 };
	int32_t eos = EOS;

	if (!l)
		l = lexicon();
	if (size < 1)
		return 0;
	llmc_grammar_options opt = { .size = sizeof opt,
		                     .compact = data[0] & 8,
		                     .standard = data[0] & 16,
		                     .strict = data[0] & 32,
		                     .additional = (llmc_additional)(data[0] >> 6) % 3 };
	llmc_status status =
	    grammar_open(l, (llmc_grammar_kind)(data[0] % 7), (const char *)data + 1, size - 1,
	                 &opt, &eos, 1, &g, &err);
	check((status == LLMC_OK) == (g != NULL), "a grammar and a failure");
	check(status == LLMC_OK || (err.text[0] && status != LLMC_E_BUG),
	      "a refusal without a sentence");
	if (g)
		walk(g, data, size);
	grammar_close(g);
	return 0;
}
