/* Limits the reasoning of an output: after `budget` tokens of reasoning, the tokens of the end mark
 * are forced. Marks are searched in the bytes of the output, so they may consist of any tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "runtime/sample/sampler.h"

struct Thinking {
	const llmc_tokenizer *tok;
	char *mark[2]; /* strings before and after the reasoning; the first may be empty */
	int32_t *end;  /* [n_end] tokens of the end mark */
	size_t n_end;
	int32_t budget, used; /* number of tokens of reasoning: limit, and so far */
	bool inside;
	size_t forced; /* tokens of the end mark that have been forced; 0: none */
	Strbuf tail;   /* last bytes of the output, which may begin a mark */
};

llmc_status
thinking_open(const llmc_tokenizer *t, int32_t vocab, const char *const *marks, int32_t budget,
              Thinking **out, llmc_error *err)
{
	*out = NULL;
	if (!t)
		return error_set(err, LLMC_E_INPUT,
		                 "thinking has marks, but this model has no tokenizer: set it to "
		                 "NULL");
	if (!marks[0] || !marks[1] || !marks[1][0])
		return error_set(err, LLMC_E_INPUT,
		                 "thinking must be two strings, and the second must not be empty");
	if (budget < 0)
		return error_set(err, LLMC_E_RANGE, "thinking_budget is %d, it must be at least 0",
		                 budget);
	Thinking *k = calloc(1, sizeof *k);
	const size_t n = strlen(marks[1]), cap = n + 8;
	if (!k)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a sampler");
	k->tok = t;
	k->budget = budget;
	k->mark[0] = strdup(marks[0]);
	k->mark[1] = strdup(marks[1]);
	k->end = calloc(cap, sizeof *k->end);
	if (!k->mark[0] || !k->mark[1] || !k->end) {
		thinking_close(k);
		return error_set(err, LLMC_E_MEMORY, "out of memory for a sampler");
	}
	llmc_status status =
	    llmc_tokenize(t, marks[1], n, LLMC_PARSE_SPECIAL, k->end, cap, &k->n_end, err);
	if (status == LLMC_OK && k->n_end == 0)
		status = error_set(err, LLMC_E_INPUT,
		                   "thinking ends with a mark that has no token: %s", marks[1]);
	for (size_t i = 0; i < k->n_end && status == LLMC_OK; i++)
		if (k->end[i] >= vocab)
			status = error_set(err, LLMC_E_INPUT,
			                   "the end mark of thinking has token %d, the model has "
			                   "%d tokens",
			                   k->end[i], vocab);
	if (status != LLMC_OK) {
		thinking_close(k);
		return status;
	}
	thinking_reset(k);
	*out = k;
	return LLMC_OK;
}

void
thinking_close(Thinking *k)
{
	if (!k)
		return;
	free(k->mark[0]);
	free(k->mark[1]);
	free(k->end);
	strbuf_release(&k->tail);
	free(k);
}

void
thinking_reset(Thinking *k)
{
	k->used = 0;
	k->forced = 0;
	k->inside = !k->mark[0][0];
	strbuf_clear(&k->tail);
}

int32_t
thinking_forced(const Thinking *k)
{
	return k->forced || (k->inside && k->used >= k->budget) ? k->end[k->forced] : -1;
}

/* Enter or leave the reasoning at each mark in the tail, then keep the bytes that may begin the
 * next mark. */
static void
find_marks(Thinking *k)
{
	for (;;) {
		const char *mark = k->mark[k->inside];
		const size_t n = strlen(mark);
		const char *at =
		    n && k->tail.len ? memmem(k->tail.data, k->tail.len, mark, n) : NULL;
		if (!at) {
			size_t keep = n ? n - 1 : 0;
			if (k->tail.len > keep)
				strbuf_drop(&k->tail, k->tail.len - keep);
			return;
		}
		strbuf_drop(&k->tail, (size_t)(at - k->tail.data) + n);
		k->inside = !k->inside;
	}
}

void
thinking_accept(Thinking *k, int32_t id)
{
	char few[256];
	size_t n;

	if (thinking_forced(k) >= 0) {
		if (++k->forced == k->n_end) {
			k->forced = 0;
			k->inside = false;
			strbuf_clear(&k->tail);
		}
		return;
	}
	k->used += k->inside;
	/* a token without bytes, or with more bytes than `few`, is not part of a mark */
	if (llmc_token_bytes(k->tok, id, few, sizeof few, &n, NULL) == LLMC_OK)
		strbuf_add(&k->tail, few, n);
	else
		strbuf_clear(&k->tail);
	find_marks(k);
}
