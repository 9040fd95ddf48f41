/* Parts of JSON Schema that grammars of values (grammar/) and the reader of tool calls (text/)
 * share: types, references, names. Drafts 4 to 2020-12. */
#ifndef LLMC_BASE_JSON_SCHEMA_H
#define LLMC_BASE_JSON_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"

/* types of a value; T_NUMBER: a number with a fraction. The type "number" allows T_INTEGER and
 * T_NUMBER */
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

/* Return the type that a name such as "array" means; 0: unknown, or not a string. */
int json_schema_type(const json_t *name);
/* Types of a value; an integer is also a number. */
int json_schema_type_of(const json_t *v);
/* Return the types to which the keywords of a schema without `type` apply; T_ALL if no keyword
 * applies to a type. */
int json_schema_implied_types(const json_t *schema);

/* Names of llmc_additional, in its order. */
extern const char *const json_schema_additional[3];
/* Return the index of a name; -1: unknown. */
int json_schema_additional_of(const char *name);

/* The references of a document, whose parts are read when it is made (json_schema_ref.c). */
typedef struct JsonSchemaRefs JsonSchemaRefs;
JsonSchemaRefs *json_schema_refs_new(Arena *a, const json_t *root);
/* Return the target of the value of a $ref or $dynamicRef. NULL: it does not exist; *outside: it is
 * in another document. */
const json_t *json_schema_target(JsonSchemaRefs *r, const json_t *ref, bool *outside);
/* Does a $dynamicRef mean the same as a $ref, because the document has one target for it? */
bool json_schema_has_one_target(JsonSchemaRefs *r, const json_t *ref);

typedef enum NameMatch { NAME_DIFFERS, NAME_MATCHES, NAME_UNDECIDED, NAME_NO_MEMORY } NameMatch;
/* Match a name against a pattern of patternProperties, in bounded time. */
NameMatch json_schema_name_matches(const char *pattern, const char *name);

#endif
