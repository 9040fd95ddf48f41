/* Steps from checked messages to the rendered prompt of a chat. A content is a string, null, or a
 * list of {"type": "text", "text"} and {"type": "image"}. */
#ifndef LLMC_SERVE_DIALECTS_CHAT_TEMPLATE_H
#define LLMC_SERVE_DIALECTS_CHAT_TEMPLATE_H

#include "serve/models/model.h"

/* Replace the messages, variables and tools (NULL: none) by copies with breaks in special tokens,
 * so that they are tokenized as text. With special_text this concerns all special tokens, otherwise
 * only the image token. */
bool chat_break(ServedModel *model, json_t *messages, json_t **options, json_t **tools, Problem *p);
/* Return the forms of contents (PARTS_...) that the template reads: the one in `options`, else the
 * model's own. */
int chat_forms(ServedModel *model, const json_t *options);
/* Return a variable of the template that is a field of requests; NULL: there is none. */
const char *template_reserved(const json_t *kwargs);
/* Apply the template. Contents are passed as strings with placeholders, or as lists of parts, as
 * `forms` selects. Null contents may become "". *text is malloc'd. */
bool chat_apply(ServedModel *model, json_t *messages, const json_t *options, int forms, char **text,
                size_t *n, Problem *p);
#endif
