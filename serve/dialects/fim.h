/* Prompts for fill-in-the-middle: `suffix` of completions, and /infill. */
#ifndef LLMC_SERVE_DIALECTS_FIM_H
#define LLMC_SERVE_DIALECTS_FIM_H

#include "serve/dialects/generation.h"

typedef struct FimParts {
	const json_t *prefix; /* text, or an array of ids; NULL: empty */
	/* text that continues the prefix; special tokens in it are recognised; NULL: none */
	const json_t *more;
	const json_t *suffix; /* text */
	const json_t *extra;  /* [{"filename", "text"}], other files; NULL: none */
	/* maximum number of prompt tokens, to which the parts are cut; 0: they are not cut */
	size_t room;
	const char *param; /* field that the message of a refusal names */
} FimParts;

/* Fill the prompt of `sub`, and add the tokens that end the middle to g->stop_tokens. */
bool fim_prompt(Generation *g, SubRequest *sub, const FimParts *parts, Problem *p);

#endif
