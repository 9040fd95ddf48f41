/* The table of request fields, serve/fields.def: for each route the fields that are read, ignored
 * or refused. */
#ifndef LLMC_SERVE_DIALECTS_FIELDS_H
#define LLMC_SERVE_DIALECTS_FIELDS_H

#include "serve/http/json_body.h"

/* FIELDS_CHAT and others: bits of the sets of routes */
enum {
#define ROUTES(set, name, paths) FIELDS_AT_##set,
#include "serve/field_routes.def"
#undef ROUTES
};
enum {
#define ROUTES(set, name, paths) FIELDS_##set = 1 << FIELDS_AT_##set,
#include "serve/field_routes.def"
#undef ROUTES
};

/* Refuse the fields of the body that the table refuses: they would change the answer. */
bool fields_check(int route, const json_t *body, Problem *p);
/* Return the body in which the value of each alias is also stored under the name of the field
 * itself, unless the body has that too. NULL: out of memory. The result is released by the
 * caller. */
json_t *fields_aliases(int route, const json_t *body);
/* Copy fields to an OpenAI chat body, under the names that they have in it. null counts as
 * absent. */
void fields_copy(int route, const json_t *body, json_t *chat);
/* Replace names of chat fields in a Problem by the names in the client's body, in param and in
 * quotes. */
void fields_rename(int route, Problem *p);

#endif
