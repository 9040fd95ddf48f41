/* OpenAI's responses: what its reader and its answers share. */
#ifndef LLMC_SERVE_DIALECTS_RESPONSES_H
#define LLMC_SERVE_DIALECTS_RESPONSES_H

#include "serve/dialects/openai.h"

#define CUSTOM_INPUT                                                                               \
	"input" /* the argument of a custom tool, which the model sees as a function of one text   \
	         */

extern const FieldName responses_names[];
/* The body as OpenAI's chat has it; a new reference, or NULL with a Problem. */
json_t *responses_chat(const json_t *in, Problem *p);
/* Of that: what the answer repeats of the request, an object. */
const json_t *responses_kept(const json_t *chat);

#endif
