/* Errors in the forms of OpenAI and of llama.cpp. serve/http/routes.def names the form of a route's
 * answers by openai_problem or lcpp_problem. */
#ifndef LLMC_SERVE_DIALECTS_ERROR_FORM_H
#define LLMC_SERVE_DIALECTS_ERROR_FORM_H

#include "serve/dialects/generation.h"

/* Dialect.problem of both: answer with the error, or end a stream with a frame that holds it, in
 * the form of the request's route. */
void error_end(Generation *g, const Problem *p);

#endif
