/* Grammars for a tokenizer. The vocabulary is converted to tries once, and these are kept with the
 * tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"
#include "grammar/grammar.h"
#include "text/text.h"

static void
drop(void *p)
{
	token_vocab_close(p);
}

static llmc_status
make(const llmc_tokenizer *t, TokenVocab **out, llmc_error *err)
{
	int32_t n = llmc_tokenizer_size(t);
	VocabToken *tok = calloc((size_t)n + 1, sizeof *tok);
	Strbuf all = { 0 };
	llmc_status status = LLMC_OK;

	if (!tok)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a vocabulary of %d tokens",
		                 n);
	for (int32_t i = 0; i < n; i++) {
		char bytes[1024];
		size_t need = 0;
		if (!llmc_token_text(t, i))
			continue;
		tok[i].special = llmc_token_is_special(t, i);
		if (llmc_token_bytes(t, i, bytes, sizeof bytes, &need, NULL) == LLMC_OK) {
			/* tokens longer than `bytes` keep n == 0: they are never allowed */
			tok[i].n = (uint32_t)need;
			strbuf_add(&all, bytes, need);
		}
	}
	size_t at = 0;
	for (int32_t i = 0; i < n; at += tok[i++].n)
		tok[i].bytes = strbuf_str(&all) + at;
	status = all.failed ? error_set(err, LLMC_E_MEMORY,
	                                "out of memory for a vocabulary of %d tokens", n)
	                    : token_vocab_open(tok, n, out, err);
	strbuf_release(&all);
	free(tok);
	return status;
}

enum { N_BYTES = 256 }; /* number of tokens of a grammar without a tokenizer */

/* Open a grammar whose tokens are the 256 bytes. */
static llmc_status
open_bytes(llmc_grammar_kind kind, const char *text, size_t n, const llmc_grammar_options *opt,
           llmc_grammar **out, llmc_error *err)
{
	VocabToken tok[N_BYTES];
	char byte[N_BYTES];
	TokenVocab *l;

	for (int i = 0; i < N_BYTES; i++) {
		byte[i] = (char)i;
		tok[i] = (VocabToken){ .bytes = &byte[i], .n = 1 };
	}
	TRY(token_vocab_open(tok, N_BYTES, &l, err));
	llmc_status status = grammar_open(l, kind, text ? text : "", n, opt, NULL, 0, out, err);
	token_vocab_close(l);
	return status;
}

/* Return the vocabulary of a tokenizer, which stays with the tokenizer. */
static llmc_status
vocab_of(const llmc_tokenizer *t, TokenVocab **out, llmc_error *err)
{
	llmc_status status = LLMC_OK;

	pthread_mutex_lock(&t->kept->lock);
	if (!t->kept->p) {
		TokenVocab *l = NULL;
		status = make(t, &l, err);
		t->kept->p = l;
		t->kept->drop = drop;
	}
	*out = t->kept->p;
	pthread_mutex_unlock(&t->kept->lock);
	return status;
}

llmc_status
api_check_grammar(const llmc_model *m, const llmc_params *p, llmc_error *err)
{
	llmc_params all = LLMC_INIT(llmc_params);
	TokenVocab *own;

	SIZED_TAKE(all, p);
	const llmc_grammar *g = all.grammar;
	if (!g)
		return LLMC_OK;
	if (!m->tokenizer) {
		/* The model's vocabulary may be padded, so it may be larger. A grammar of bytes
		 * fits only a model with exactly 256 tokens. */
		const int32_t n = token_vocab_size(grammar_vocab(g));
		return n == m->plan->vocab || (n > N_BYTES && n < m->plan->vocab)
		           ? LLMC_OK
		           : error_set(err, LLMC_E_INPUT,
		                       "the grammar is over %d tokens, the model has %lld and no "
		                       "tokenizer",
		                       n, (long long)m->plan->vocab);
	}
	TRY(vocab_of(m->tokenizer, &own, err));
	if (token_vocab_same(grammar_vocab(g), own))
		return LLMC_OK;
	return error_set(
	    err, LLMC_E_INPUT,
	    "the grammar was opened with another tokenizer, of %d tokens, than that of "
	    "the model, of %d: open it with llmc_model_tokenizer",
	    token_vocab_size(grammar_vocab(g)), token_vocab_size(own));
}

llmc_status
llmc_grammar_open(const llmc_tokenizer *t, llmc_grammar_kind kind, const char *text, size_t n_bytes,
                  const llmc_grammar_options *opt, llmc_grammar **out, llmc_error *err)
{
	TokenVocab *vocab;
	int32_t n_eos;

	*out = NULL;
	if (!t)
		return open_bytes(kind, text, n_bytes, opt, out, err);
	TRY(vocab_of(t, &vocab, err));
	const int32_t *eos = text_eos(t, &n_eos);
	return grammar_open(vocab, kind, text ? text : "", n_bytes, opt, eos, n_eos, out, err);
}

void
llmc_grammar_retain(llmc_grammar *g)
{
	grammar_retain(g);
}

void
llmc_grammar_close(llmc_grammar *g)
{
	grammar_close(g);
}

llmc_status
llmc_grammar_match(llmc_grammar *g, const char *text, size_t n_bytes, bool *complete,
                   size_t *n_matched, llmc_error *err)
{
	return grammar_match(g, text ? text : "", n_bytes, complete, n_matched, err);
}

llmc_status
llmc_matcher_open(llmc_grammar *g, llmc_matcher **out, llmc_error *err)
{
	return matcher_open(g, NULL, out, err);
}

void
llmc_matcher_close(llmc_matcher *m)
{
	matcher_close(m);
}

llmc_status
llmc_matcher_mask(llmc_matcher *m, uint32_t *bits, size_t n_words, llmc_error *err)
{
	bool all;

	return matcher_mask(m, bits, n_words, &all, err);
}

llmc_status
llmc_matcher_accept(llmc_matcher *m, int32_t id, llmc_error *err)
{
	return matcher_accept(m, id, err);
}

bool
llmc_matcher_may_end(llmc_matcher *m)
{
	return matcher_may_end(m);
}

bool
llmc_matcher_ended(llmc_matcher *m)
{
	return matcher_ended(m);
}

void
llmc_matcher_reset(llmc_matcher *m)
{
	matcher_reset(m);
}
