/* Inside of what reads JSON schemas: schema.c, schema_ref.c, schema_scalar.c, schema_containers.c,
 * schema_merge.c and schema_disjoint.c. */
#ifndef LLMC_GRAMMAR_SCHEMA_H
#define LLMC_GRAMMAR_SCHEMA_H

#include <stdlib.h>

#include "grammar/grammar_internal.h"

enum { N_REF_BUCKET = 1024, MAX_SCHEMA_NEST = 200 };

typedef struct Path {
	const struct Path *up;
	const char *key;
} Path;
typedef struct Ref {
	const json_t *target;
	int32_t rule;
	struct Ref *next;
} Ref;
typedef struct Schema {
	GrammarBuilder *b;
	const json_t *root;
	Ref *ref[N_REF_BUCKET];
	int depth;
	size_t n_values, n_merged, n_asked, n_fits; /* work done, which is bounded */
	int32_t string_tail;                        /* rule: the rest of a string; -1: not made */
	int asked; /* > 0: a schema is only asked about, not made */
	int ones;  /* lists of oneOf within which another is looked at */
} Schema;

enum {
	T_NULL = 1,
	T_BOOLEAN = 2,
	T_INTEGER = 4,
	T_NUMBER = 8,
	T_STRING = 16,
	T_ARRAY = 32,
	T_OBJECT = 64,
	T_ALL = 127
};
enum { MAX_ONE_OF = 128, MAX_ONES = 16 };
/* What unevaluatedProperties says of a schema whose options are not merged yet. */
#define LATE_PROPERTIES "\x7Funevaluated"

void schema_fail(Schema *s, const Path *p, const char *keyword, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
Expr *schema_value(Schema *s, const json_t *v, const Path *p);
const char *schema_path(Schema *s, const Path *p); /* "#/properties/a" */
/* A number of things, 0 .. a million (more is as good as that); -1: not given. The same of a bound
 * from above: -1 also where it is as good as none. */
int32_t schema_count(Schema *s, const json_t *o, const char *key, const Path *p);
int32_t schema_most(Schema *s, const json_t *o, const char *key, const Path *p);
/* schema_scalar.c. An expression, whose mistakes are told with its place in the schema. */
Expr *schema_expression(Schema *s, const char *regex, size_t n, RegexFlags flags, const Path *p,
                        const char *keyword);
Expr *schema_string(Schema *s, const json_t *o, const Path *p);
Expr *schema_number(Schema *s, const json_t *o, bool integer, const Path *p);
/* schema_containers.c */
Expr *schema_array(Schema *s, const json_t *o, const Path *p);
Expr *schema_object(Schema *s, const json_t *o, const Path *p);
/* schema_ref.c. The rule of a definition: made once, whoever refers to it. */
Expr *schema_resolve_ref(Schema *s, const json_t *target, const Path *p);
const json_t *schema_target(Schema *s, const json_t *ref,
                            const Path *p);      /* what a $ref points to */
const json_t *schema_keep(Schema *s, json_t *v); /* goes with the arena */
/* schema_merge.c: does a schema say anything of values, but for the keyword `but`? */
bool schema_constrains(const json_t *o, const char *but);
const json_t *schema_without(Schema *s, const json_t *o, const char *key);
/* Without $ref, allOf and oneOf; what they say is in it. */
const json_t *schema_flat(Schema *s, const json_t *v, const Path *p, int depth);
const json_t *schema_merge(Schema *s, const json_t *a, const json_t *b, const Path *p,
                           int depth); /* both hold */
/* What o has for a property of this name: listed, by patterns or else; NULL: anything. */
const json_t *schema_member(Schema *s, const json_t *o, const char *name, const Path *p, int depth);
/* Does a name fit an expression of patternProperties? */
bool schema_fits(Schema *s, const char *pattern, const char *name, const Path *p);
void schema_not_enforced(Schema *s, const json_t *o, const char *key,
                         const Path *p); /* an error where the schema is strict and has it */
int schema_types(Schema *s, const json_t *o, const Path *p); /* T_ bits */
int schema_type_of(const json_t *v);
/* schema_disjoint.c. An error where a name may fit two expressions of patternProperties, or one and
 * a listed property, that say different things, and the schema is strict. */
void schema_patterns(Schema *s, const json_t *o, const Path *p);
/* No value fits both; false: one may. */
bool schemas_disjoint(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth);
/* The options of a oneOf, each with base, are apart; an error where they may not be. */
void schema_one_of(Schema *s, const json_t *base, const json_t *list, const Path *p);
Expr *json_some_members(GrammarBuilder *b, const ExprList *members,
                        const uint8_t *how); /* { ... } with at least one of optional members */
const char *format_regex(const char *name);  /* NULL: not known */

#endif
