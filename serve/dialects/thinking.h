/* Limits of the reasoning: vLLM's thinking_token_budget, its names in other servers, and
 * include_reasoning.
 */
#ifndef LLMC_SERVE_DIALECTS_THINKING_H
#define LLMC_SERVE_DIALECTS_THINKING_H

#include "serve/dialects/generation.h"

/* Read the budget, in tokens, and whether the answer has the reasoning. *budget -1: no limit. */
bool thinking_read(Generation *g, const json_t *o, int32_t *budget, Problem *p);
/* Limit the reasoning between the marks g->reasoning, which come from the chat format. */
void thinking_limit(Generation *g, int32_t budget);
/* Limit the reasoning of a prompt that is not a chat; the marks are taken from the model's chat
 * template. */
bool thinking_limit_prompt(Generation *g, int32_t budget, Problem *p);

#endif
