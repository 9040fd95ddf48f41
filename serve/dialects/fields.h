/* The table of request fields, serve/fields.def: what is read, ignored or refused per route. */
#ifndef LLMC_SERVE_DIALECTS_FIELDS_H
#define LLMC_SERVE_DIALECTS_FIELDS_H

#include "serve/http/json_body.h"

enum { /* routes of a row */
       FIELDS_CHAT = 1,
       FIELDS_COMPLETIONS = 2,
       FIELDS_RESPONSES = 4,
       FIELDS_EMBEDDINGS = 8,
       FIELDS_MESSAGES = 16, /* Anthropic's messages and their counting */
       FIELDS_OLLAMA_CHAT = 32,
       FIELDS_OLLAMA_GENERATE = 64,
       FIELDS_OLLAMA_EMBED = 128,
       FIELDS_TGI = 256,
       FIELDS_LCPP = 512, /* /completion, /completions, /infill */
};

/* Refuse the fields of the body that the table refuses: they would change the answer. */
bool fields_check(int route, const json_t *body, Problem *p);
/* Return the body with each alias also under the own name of its field, unless that is there too.
 * NULL: out of memory. The result is released by the caller. */
json_t *fields_aliases(int route, const json_t *body);
/* Copy fields to an OpenAI chat body under their names there. null counts as absent. */
void fields_copy(int route, const json_t *body, json_t *chat);
/* Replace names of chat fields in a Problem by the names in the client's body, in param and in
 * quotes. */
void fields_rename(int route, Problem *p);

#endif
