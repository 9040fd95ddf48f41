/* Conversion of text to ids and back. */
#include <stdlib.h>

#include "serve/models/model.h"
#include "serve/dialects/tokenize.h"

bool
tokenize_prompt(ServedModel *m, const char *text, size_t n, int flags, size_t most, int32_t **ids,
                size_t *n_ids, Problem *p)
{
	size_t cap = n / 2 + 16;
	llmc_error err = { 0 };

	*ids = NULL;
	if (!m->back.tok)
		return problem(p, 400, "prompt", "This model has no tokenizer: send token ids.");
	/* not with breaks, which count as bytes but are not part of the text */
	*n_ids = flags & LLMC_BREAKS ? 0 : llmc_tokenize_least(m->back.tok, text, n);
	if (*n_ids > most)
		return true;
	for (;;) {
		*ids = malloc(cap * sizeof **ids);
		if (!*ids)
			return problem_memory(p);
		llmc_status status =
		    llmc_tokenize(m->back.tok, text, n, flags, *ids, cap, n_ids, &err);
		if (status == LLMC_OK)
			return true;
		free(*ids);
		*ids = NULL;
		if (status != LLMC_E_RANGE || *n_ids <= cap)
			return problem_of(p, status, 400, NULL, "The text cannot be tokenized: %s",
			                  err.text);
		cap = *n_ids;
	}
}

bool
detokenize_prompt(ServedModel *m, const int32_t *ids, size_t n_ids, char **text, size_t *n,
                  Problem *p)
{
	size_t cap = 8 * n_ids + 64;
	llmc_error err = { 0 };

	for (;;) {
		*text = malloc(cap);
		if (!*text)
			return problem_memory(p);
		llmc_status status =
		    llmc_detokenize(m->back.tok, ids, n_ids, false, *text, cap, n, &err);
		if (status == LLMC_OK)
			return true;
		free(*text);
		*text = NULL;
		if (status != LLMC_E_RANGE || *n < cap)
			return problem_of(p, status, 400, NULL, "The ids cannot be detokenized: %s",
			                  err.text);
		cap = *n + 1;
	}
}

void
token_bytes(const llmc_tokenizer *t, int32_t id, Strbuf *out)
{
	char few[256], *many;
	size_t n = 0;

	if (llmc_token_bytes(t, id, few, sizeof few, &n, NULL) == LLMC_OK) {
		strbuf_add(out, few, n);
	} else if (n >= sizeof few) {
		many = malloc(n + 1);
		if (many && llmc_token_bytes(t, id, many, n + 1, &n, NULL) == LLMC_OK)
			strbuf_add(out, many, n);
		else
			out->failed = true;
		free(many);
	}
}
