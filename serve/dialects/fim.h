/* Prompts whose middle is missing (fill-in-the-middle): `suffix` of completions, /infill. */
#ifndef LLMC_SERVE_DIALECTS_FIM_H
#define LLMC_SERVE_DIALECTS_FIM_H

#include "serve/dialects/generation.h"

typedef struct FimParts {
	const json_t *prefix; /* text, or an array of ids; NULL: empty */
	const json_t *more;   /* text that continues the prefix, with special tokens; NULL: none */
	const json_t *suffix; /* text */
	const json_t *extra;  /* [{"filename", "text"}], other files; NULL: none */
	/* largest number of prompt tokens: the parts are cut to fit; 0: they are not cut */
	size_t room;
	const char *param; /* field that a refusal names */
} FimParts;

/* Fill the prompt of `sub`, and add the tokens that end the middle to g->stop_tokens. */
bool fim_prompt(Generation *g, SubRequest *sub, const FimParts *parts, Problem *p);

#endif
