/* Converts between text, messages and token ids of a model. */
#ifndef LLMC_SERVE_DIALECTS_TOKENIZE_H
#define LLMC_SERVE_DIALECTS_TOKENIZE_H

#include "base/utf8.h"
#include "serve/http/json_body.h"
#include "serve/serve.h"

/* Tokenize text; *ids is malloc'd. If the text certainly has more than `most` tokens, *ids is NULL
 * and *n_ids is a lower bound of their number. */
bool tokenize_prompt(ServedModel *model, const char *text, size_t n, int flags, size_t most,
                     int32_t **ids, size_t *n_ids, Problem *p);
/* Detokenize ids, showing special tokens; *text is malloc'd and NUL-terminated. */
bool detokenize_prompt(ServedModel *model, const int32_t *ids, size_t n_ids, char **text, size_t *n,
                       Problem *p);
/* Read a list of token ids below vocab; *ids is malloc'd, also on failure. where: its field. */
bool token_ids(const json_t *list, int32_t vocab, const char *where, int32_t **ids, size_t *n,
               Problem *p);
/* A list of token ids that grows. */
typedef struct Ids {
	int32_t *id; /* malloc'd */
	size_t n, cap;
	bool failed; /* memory ran out */
} Ids;
void ids_add(Ids *to, const int32_t *id, size_t n);
/* Append the bytes of a token as the vocabulary has them; they may be incomplete UTF-8. */
void token_bytes(const llmc_tokenizer *t, int32_t id, Strbuf *out);
/* Render "messages" and tools of a body by the chat template; *text is malloc'd. Tokenize it with
 * the flags of chat_flags: the text has LLMC_BREAKs where special tokens in messages must stay
 * text. */
bool chat_prompt(Req *r, const json_t *body, char **text, size_t *n, Problem *p);
/* Render with tools that were read before (NULL: none). Images of the messages are added to
 * *images, whose req must be set. images NULL: messages with images are refused. */
struct ChatImages;
bool chat_render(ServedModel *model, const json_t *body, json_t *tools, struct ChatImages *images,
                 char **text, size_t *n, Problem *p);

int chat_flags(const ServedModel *model);
/* Remove LLMC_BREAKs in place, from text to show. */
void chat_unbreak(const ServedModel *model, char *text, size_t *n);

/* Join the text parts of a content (a string or a list of parts) with newlines; returns a new
 * reference. field(type) returns the key that holds a part's text, "" to skip the part, NULL to
 * refuse it; type is NULL if absent. If NULL is returned, `report` has described the fault, or
 * memory ran out. got: PART_LIST: JSON type of the content; PART_TYPE: type of part `at`, or "?";
 * PART_TEXT: JSON type of its text. */
typedef enum PartFault { PART_LIST, PART_TYPE, PART_TEXT } PartFault;
typedef const char *(*PartField)(const char *type);
typedef void (*PartFaultFn)(Problem *p, const char *where, PartFault fault, size_t at,
                            const char *got);
json_t *parts_text(const json_t *content, const char *where, PartField field, PartFaultFn report,
                   Problem *p);
/* Like the function above, for a content that may have images: if it has any, the result is a list
 * of text and image parts of a chat body. image() returns such a part (image_part_url,
 * image_part_base64) for part `at`, a new reference; NULL with a Problem. */
typedef json_t *(*PartImageFn)(const json_t *part, const char *where, size_t at, Problem *p);
json_t *parts_content(const json_t *content, const char *where, PartField field, PartFaultFn report,
                      PartImageFn image, Problem *p);

#endif
