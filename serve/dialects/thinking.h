/* Limits of the reasoning: vLLM's thinking_token_budget under its several names, include_reasoning.
 */
#ifndef LLMC_SERVE_DIALECTS_THINKING_H
#define LLMC_SERVE_DIALECTS_THINKING_H

#include "serve/dialects/generation.h"

/* Read the budget, in tokens, and whether the answer has the reasoning. *budget -1: no limit. */
bool thinking_read(Generation *g, const json_t *o, int32_t *budget, Problem *p);
/* Limit the reasoning between g->reasoning, the marks of the chat's format. */
void thinking_limit(Generation *g, int32_t budget);
/* The same for a prompt that is no chat: its marks are those of the chat template. */
bool thinking_limit_prompt(Generation *g, int32_t budget, Problem *p);

#endif
