#include "serve/dialects/thinking.h"

#include <stdlib.h>
#include <string.h>

#include "serve/dialects/tokenize.h"

bool
thinking_read(Generation *g, const json_t *o, int32_t *budget, Problem *p)
{
	/* names in vLLM, in llama.cpp (two), in OpenRouter */
	static const struct {
		const char *object, *key, *path;
	} name[] = {
		{ NULL, "thinking_token_budget", "thinking_token_budget" },
		{ NULL, "thinking_budget_tokens", "thinking_budget_tokens" },
		{ NULL, "reasoning_budget_tokens", "reasoning_budget_tokens" },
		{ "reasoning", "max_tokens", "reasoning.max_tokens" },
	};
	const json_t *reasoning = json_object_get(o, "reasoning");
	const char *first = NULL;
	bool include = true, exclude = false;

	*budget = -1;
	if (reasoning && !json_is_null(reasoning) && !json_is_object(reasoning))
		return problem(p, 400, "reasoning",
		               "Invalid type for 'reasoning': expected an object, but got %s "
		               "instead.",
		               json_type_name(reasoning));
	for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
		const json_t *from = name[i].object ? reasoning : o;
		int64_t n = -1;
		bool set = false;
		if (!field_int(from, name[i].key, -1, INT32_MAX, &n, &set, p)) {
			if (name[i].object)
				problem(p, 400, name[i].path,
				        "Invalid '%s': expected an integer from -1 to %d.",
				        name[i].path, INT32_MAX);
			return false;
		}
		if (!set)
			continue;
		if (first && n != *budget)
			return problem(p, 400, name[i].path,
			               "'%s' and '%s' have different values: send one of them.",
			               first, name[i].path);
		first = name[i].path;
		*budget = (int32_t)n;
	}
	if (!field_bool(o, "include_reasoning", &include, p) ||
	    !field_bool(reasoning, "exclude", &exclude, p))
		return false;
	g->hide_reasoning = !include || exclude;
	return true;
}

void
thinking_limit(Generation *g, int32_t budget)
{
	if (budget < 0 || !g->reasoning[1])
		return; /* no limit, or a format without reasoning */
	g->ep.thinking = g->reasoning;
	g->ep.thinking_budget = budget;
}

bool
thinking_limit_prompt(Generation *g, int32_t budget, Problem *p)
{
	char *text = NULL;
	llmc_calls *c = NULL;
	llmc_error err;
	size_t n;

	if (budget < 0 || !g->model->back.tok)
		return true;
	if (g->n_sub > 1)
		return problem(p, 400, "thinking_token_budget",
		               "'thinking_token_budget' is for one prompt, not for %d.", g->n_sub);
	if (!detokenize_prompt(g->model, g->sub[0].tok, g->sub[0].n_tok, &text, &n, p))
		return false;
	llmc_status status = llmc_calls_open(g->model->back.tok, text, n, NULL, &c, &err);
	free(text);
	if (status != LLMC_OK)
		return problem_of(p, status, 500, NULL, "%s", err.text);
	g->marks = c; /* owns the strings of g->reasoning */
	if (llmc_calls_reasoning(c, g->reasoning))
		thinking_limit(g, budget);
	return true;
}
