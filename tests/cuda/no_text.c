/* Stubs of grammar/ and the tokenizer for a build of the CPU sampler alone, whose tests use neither
 * grammars nor DRY breakers. */
#include "grammar/grammar.h"

llmc_status
matcher_open(Grammar *g, const char *const *after, Matcher **out, llmc_error *err)
{
	(void)g, (void)after, (void)err;
	*out = NULL;
	return LLMC_E_MISSING;
}

void
matcher_close(Matcher *m)
{
	(void)m;
}

llmc_status
matcher_mask(Matcher *m, uint32_t *bits, size_t n_words, bool *all, llmc_error *err)
{
	(void)m, (void)bits, (void)n_words, (void)all, (void)err;
	return LLMC_E_MISSING;
}

llmc_status
matcher_accept(Matcher *m, int32_t id, llmc_error *err)
{
	(void)m, (void)id, (void)err;
	return LLMC_E_MISSING;
}

bool
matcher_ended(Matcher *m)
{
	(void)m;
	return false;
}

bool
matcher_may_end(Matcher *m)
{
	(void)m;
	return true;
}

void
matcher_reset(Matcher *m)
{
	(void)m;
}

bool
matcher_knows(Matcher *m)
{
	(void)m;
	return true;
}

int32_t
llmc_tokenizer_size(const llmc_tokenizer *t)
{
	(void)t;
	return 0;
}

llmc_status
llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags, int32_t *ids,
              size_t cap, size_t *need, llmc_error *err)
{
	(void)t, (void)text, (void)n_bytes, (void)flags, (void)ids, (void)cap, (void)need,
	    (void)err;
	return LLMC_E_MISSING;
}

llmc_status
llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap, size_t *need,
                 llmc_error *err)
{
	(void)t, (void)id, (void)buf, (void)cap, (void)need, (void)err;
	return LLMC_E_MISSING;
}

bool
llmc_token_is_special(const llmc_tokenizer *t, int32_t id)
{
	(void)t, (void)id;
	return false;
}
