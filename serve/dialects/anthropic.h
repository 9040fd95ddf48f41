/* Anthropic's dialect: what its files share. */
#ifndef LLMC_SERVE_DIALECTS_ANTHROPIC_H
#define LLMC_SERVE_DIALECTS_ANTHROPIC_H

#include "serve/http/json_body.h"

/* Return the content with documents and search results as text blocks, also those in results of
 * tools; a new reference. NULL with a Problem. */
json_t *anthropic_without_documents(const json_t *content, const char *where, Problem *p);

#endif
