/* Anthropic's dialect: functions that its files share. */
#ifndef LLMC_SERVE_DIALECTS_ANTHROPIC_H
#define LLMC_SERVE_DIALECTS_ANTHROPIC_H

#include "serve/http/json_body.h"

/* Return the content with documents and search results as text blocks, including those in tool
 * results; a new reference. NULL with a Problem. */
json_t *anthropic_without_documents(const json_t *content, const char *where, Problem *p);

/* anthropic_images.c: is a block, or another object, of this type? */
bool anthropic_is(const json_t *block, const char *type);
/* Translate an image block to an image part of a chat body; NULL with a
 * Problem. */
json_t *anthropic_image(const json_t *block, const char *where, size_t at, Problem *p);
/* Move the images of a tool result to `rest`, with their field: templates show images in messages
 * of the user. Returns the remaining content as a new reference. */
json_t *anthropic_result_text(const json_t *content, size_t at, const char *where, json_t *rest);

#endif
