/* OpenAI's responses: functions that the reader and the answers share. */
#ifndef LLMC_SERVE_DIALECTS_RESPONSES_H
#define LLMC_SERVE_DIALECTS_RESPONSES_H

#include "serve/dialects/openai.h"

/* Translate the body to a chat body; a new reference, or NULL with a Problem. */
json_t *responses_chat(const json_t *in, Problem *p);
/* Return the object with the request fields that the answer repeats. */
const json_t *responses_kept(const json_t *chat);

#endif
