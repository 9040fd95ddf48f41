/* Ollama's dialect: requests (ollama.c) and models (ollama_models.c). */
#ifndef LLMC_SERVE_DIALECTS_OLLAMA_H
#define LLMC_SERVE_DIALECTS_OLLAMA_H

#include "serve/http/json_body.h"

/* Translate the fields that chat and generate share to OpenAI's; NULL with a Problem. */
json_t *ollama_translate(const json_t *in, Problem *p);

#endif
