/* Replaces grammar/ in a build of the CPU sampler alone: these tests use no grammars. */
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
