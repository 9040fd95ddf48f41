/* Inside of schema.c and merge.c. */
#ifndef LLMC_GRAMMAR_SCHEMA_H
#define LLMC_GRAMMAR_SCHEMA_H

#include <stdlib.h>

#include "grammar/inside.h"

enum { N_REF_BUCKET = 1024 };

typedef struct Path { const struct Path *up; const char *key; } Path;
typedef struct Ref { const json_t *target; int32_t rule; struct Ref *next; } Ref;
typedef struct Schema {
	Build        *b;
	const json_t *root;
	Ref          *ref[N_REF_BUCKET];
	int           depth;
	size_t        n_values, n_merged;
	int32_t       string_tail;  /* rule: the rest of a string; -1: not made */
} Schema;

void          schema_fail(Schema *s, const Path *p, const char *keyword, const char *fmt, ...) __attribute__((noreturn, format(printf, 4, 5)));
Ex           *schema_value(Schema *s, const json_t *v, const Path *p);
const json_t *schema_target(Schema *s, const json_t *ref, const Path *p); /* what a $ref points to */
const json_t *schema_keep(Schema *s, json_t *v);                          /* goes with the arena */
/* merge.c: does a schema say anything of values, but for the keyword `but`? */
bool          schema_says(const json_t *o, const char *but);
const json_t *schema_without(Schema *s, const json_t *o, const char *key);
/* Without $ref, allOf and oneOf; what they say is in it. */
const json_t *schema_flat(Schema *s, const json_t *v, const Path *p, int depth);
const json_t *schema_merge(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth); /* both hold */
Ex           *json_some_members(Build *b, const ExList *members, const uint8_t *how); /* { ... } with at least one of optional members */
const char   *format_regex(const char *name); /* NULL: not known */

#endif
