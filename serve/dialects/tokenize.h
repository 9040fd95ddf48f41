/* Text, messages and ids of a server's model. */
#ifndef LLMC_SERVE_DIALECTS_TOKENIZE_H
#define LLMC_SERVE_DIALECTS_TOKENIZE_H

#include "base/utf8.h"
#include "serve/http/json_body.h"
#include "serve/serve.h"

/* *ids is malloc'd; NULL when the text surely has more ids than `most`, and *n_ids is what it has
 * at least. */
bool tokenize_prompt(ServedModel *model, const char *text, size_t n, int flags, size_t most,
                     int32_t **ids, size_t *n_ids, Problem *p);
/* Text of ids, special tokens shown; *text is malloc'd and ends with a NUL. */
bool detokenize_prompt(ServedModel *model, const int32_t *ids, size_t n_ids, char **text, size_t *n,
                       Problem *p);
/* Bytes of a token as the text has them, by the vocabulary: not always whole UTF-8. */
void token_bytes(const llmc_tokenizer *t, int32_t id, Strbuf *out);
/* "messages" and tools of a body, through the chat template; *text is malloc'd */
bool chat_prompt(ServedModel *model, const json_t *body, char **text, size_t *n, Problem *p);
/* The same with tools that have been read (NULL: none). */
bool chat_render(ServedModel *model, const json_t *body, json_t *tools, char **text, size_t *n,
                 Problem *p);

/* Text of a content as another dialect has it, for "messages": a string, or parts whose texts stand
 * a line each; a new reference. field: the key under which a part of this type (NULL: it says none)
 * has its text, "" to pass it over, NULL when it is not taken. On NULL the dialect has said what is
 * wrong in tell, of the content (PART_LIST; got: what it is) or of part `at` (PART_TYPE; got: the
 * type or "?", PART_TEXT; got: what its text is), or memory is out. */
typedef enum PartFault { PART_LIST, PART_TYPE, PART_TEXT } PartFault;
typedef const char *(*PartField)(const char *type);
typedef void (*PartTell)(Problem *p, const char *where, PartFault fault, size_t at,
                         const char *got);
json_t *parts_text(const json_t *content, const char *where, PartField field, PartTell tell,
                   Problem *p);

#endif
