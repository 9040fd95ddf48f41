/* Internal declarations of the JSON Schema front end, schema*.c. */
#ifndef LLMC_GRAMMAR_SCHEMA_H
#define LLMC_GRAMMAR_SCHEMA_H

#include <stdlib.h>

#include "base/json_schema.h"
#include "grammar/language.h"

enum { N_REF_BUCKET = 1024, MAX_SCHEMA_NEST = 200 };

/* Bucket of a schema in tables by its address. */
static inline size_t
schema_bucket(const json_t *v)
{
	return ((uintptr_t)v >> 4) % N_REF_BUCKET;
}

typedef struct Path {
	const struct Path *up;
	const char *key;
} Path;
typedef struct Ref {
	const json_t *target;
	bool arguments, raw; /* as in Schema */
	int32_t rule;
	struct Ref *next;
} Ref;
typedef struct StaticRef StaticRef; /* schema_ref.c */
typedef struct SchemaPair {         /* schemas a and b as one */
	const json_t *a, *b;
	json_t *both;
	struct SchemaPair *next;
} SchemaPair;
typedef struct Negation {         /* negation of schema v */
	const json_t *v, *result; /* result NULL: not known */
	json_t *later; /* {"not": v}, for a schema that contains itself; NULL: not made */
	bool done;
	struct Negation *next;
} Negation;
typedef struct OpenSchema { /* a schema that is being built, and those around it */
	const json_t *v;
	const struct OpenSchema *up;
} OpenSchema;
typedef struct Schema {
	GrammarBuilder *b;
	const json_t *root;
	Ref *ref[N_REF_BUCKET];
	SchemaPair *pair[N_REF_BUCKET];
	Negation *negation[N_REF_BUCKET];
	StaticRef *static_ref[N_REF_BUCKET];
	JsonSchemaRefs *refs; /* NULL: not read yet */
	const json_t *inside; /* schema whose rule is being built */
	const OpenSchema *open;
	int depth;
	size_t n_values, n_merged, n_asked, n_fits, n_checked, n_exclusive,
	    n_kept;          /* work counters, all bounded */
	int32_t string_tail; /* rule for the rest of a string; -1: not built */
	int asked;           /* > 0: a schema is examined only, not built */
	int ones;            /* nesting depth of oneOf lists being checked */
	int shared; /* > 0: values of members become rules, as they are built several times */
	/* arguments: the next object is the arguments of a call; raw: the next value is one of
	 * them, whose strings are not quoted */
	bool arguments, raw;
	bool open_objects; /* an object without additionalProperties may have unlisted properties */
} Schema;

/* Number of options, and nesting depth, up to which the options of oneOf lists are made exclusive.
 * With `strict`, exceeding MAX_ is an error; otherwise the lower limits FEW_ bound the compile
 * time. */
enum { MAX_ONE_OF = 128, MAX_ONES = 16, FEW_ONE_OF = 4, FEW_ONES = 3 };
/* Keys for unevaluatedProperties and unevaluatedItems of a schema whose alternatives are not merged
 * yet. */
#define LATE_PROPERTIES "\x7Funevaluated"
#define LATE_ITEMS "\x7Fitems left"
/* Keys of merged schemas: patterns and formats besides the first one; regexes of `not`. */
#define MORE_PATTERNS "\x7Fpatterns"
#define MORE_FORMATS                                                                               \
	"\x7F"                                                                                     \
	"formats"
#define NOT_PATTERNS "\x7Fnot"

/* Key of merged schemas: values that `not` excludes. */
#define NOT_VALUES "\x7Fvalues"

/* Key of merged schemas: further objects with if, then and else. */
#define MORE_CONDITIONS                                                                            \
	"\x7F"                                                                                     \
	"conditions"
/* Schemas of properties by name that only restrict: they neither list nor evaluate the property. */
#define HELD "\x7Fheld"
/* Members that an object must have, as {"key", "value"}: schemas of name and value. */
#define SOME_MEMBERS "\x7Fmembers"
/* The same after it is decided that each of them is a member of its own, which is not listed. */
#define FOUND_MEMBERS "\x7Fmembers found"
/* Numbers of items that match a schema, as {"item", "from", "to", "min", "max"}; "evaluates": from
 * the keyword `contains`. */
#define COUNTS "\x7Fitems"
/* Divisors besides the first one, and divisors of which a number is no multiple. */
#define MORE_MULTIPLES "\x7Fmultiples"
#define NOT_MULTIPLES "\x7Fno multiples"
/* Several schemas list members of the object, so that their order is free. */
#define UNORDERED                                                                                  \
	"\x7F"                                                                                     \
	"unordered"
/* Key: numbers that are not integers. */
#define FRACTION                                                                                   \
	"\x7F"                                                                                     \
	"fraction"
/* Key: two schemas that are merged when they are visited, once per pair. */
#define LAZY "\x7Flazy"
enum { MAX_MERGED = 100000 };

/* Conditions that one string must satisfy together. */
enum { MAX_OPERANDS = 24, MAX_LOOKAHEADS = 3 };
typedef struct StringRules {
	Operand op[MAX_OPERANDS];
	size_t n;
	const char *keyword, *text; /* keyword of the first operand, and its source text [n_text] */
	size_t n_text;
	int32_t min, max; /* length; max -1: unlimited */
} StringRules;
void schema_string_rules(Schema *s, const json_t *o, StringRules *r, const Path *p);
/* Reads a regex as conditions that a string has to satisfy, for language.c: the look-aheads with
 * which it begins, then the rest of it. Returns the number of conditions, at most MAX_LOOKAHEADS +
 * 1. */
size_t schema_operands(Schema *s, const char *regex, size_t n, Operand *out, const Path *p,
                       const char *keyword);
void string_rules_add(Schema *s, StringRules *r, const Expr *x, bool negate);
/* Builds a key of an object; NULL: no string satisfies the conditions, or an error (*failed). */
Expr *schema_key(Schema *s, StringRules *r, bool arguments, bool *failed);

void schema_fail(Schema *s, const Path *p, const char *keyword, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
Expr *schema_value(Schema *s, const json_t *v, const Path *p);
const char *schema_path(Schema *s, const Path *p); /* "#/properties/a" */
/* Return a count in 0..1000000 (larger values are clamped); -1: absent. schema_most also returns -1
 * for values that would be clamped. */
int32_t schema_count(Schema *s, const json_t *o, const char *key, const Path *p);
int32_t schema_most(Schema *s, const json_t *o, const char *key, const Path *p);
/* schema_scalar.c. Reads a regex; its errors show the path in the schema. */
Expr *schema_expression(Schema *s, const char *regex, size_t n, RegexFlags flags, const Path *p,
                        const char *keyword);
Expr *schema_string(Schema *s, const json_t *o, const Path *p);
Expr *schema_any_string(Schema *s);
Expr *schema_fixed_string(Schema *s, const char *text, size_t n, const Path *p);
Expr *schema_number(Schema *s, const json_t *o, bool integer, const Path *p);
/* schema_array.c, schema_object.c, schema_members.c */
Expr *schema_array(Schema *s, const json_t *o, const Path *p);
Expr *schema_object(Schema *s, const json_t *o, const Path *p);
Expr *schema_object_with_members(Schema *s, const json_t *o, const Path *p); /* SOME_MEMBERS */
/* schema_ref.c. Returns the rule of a definition, built on the first reference. */
Expr *schema_resolve_ref(Schema *s, const json_t *target, const Path *p);
const json_t *schema_target(Schema *s, const json_t *ref, const Path *p); /* target of a $ref */
/* The schema with a $ref for a $dynamicRef that has one target; the same object each time. */
const json_t *schema_static_ref(Schema *s, const json_t *v);
json_t *schema_keep(Schema *s, json_t *v); /* released with the arena */
static inline json_t *
schema_mutable(const json_t *v)
{
	return (json_t *)(uintptr_t)v;
}
/* Set a key of an object, append to a list; the value is shared. */
void schema_set(Schema *s, json_t *o, const char *key, const json_t *v);
void schema_add(Schema *s, json_t *list, const json_t *v);
bool schema_lists_name(const json_t *list, const char *name); /* is the name in `required`? */
/* Return a schema of the values that match one of `list`, or both a and b (NULL: a alone). */
const json_t *schema_any_of(Schema *s, json_t *list);
const json_t *schema_all_of(Schema *s, const json_t *a, const json_t *b);
/* schema_merge.c: returns whether any keyword other than `but` restricts values. */
bool schema_constrains(const json_t *o, const char *but);
const json_t *schema_without(Schema *s, const json_t *o, const char *key);
/* Returns an equivalent schema with $ref, allOf and oneOf merged in. */
const json_t *schema_flat(Schema *s, const json_t *v, const Path *p, int depth);
/* merges two schemas: values must match both a and b */
const json_t *schema_merge(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth);
/* Like schema_merge, for the schema of a part of a value: the merge is done when it is visited, so
 * that recursive schemas end. */
const json_t *schema_merge_later(Schema *s, const json_t *a, const json_t *b, const Path *p,
                                 int depth);
/* Returns the schema of o for a property: from properties, patternProperties or
 * additionalProperties. NULL: any value. */
const json_t *schema_member(Schema *s, const json_t *o, const char *name, const Path *p, int depth);
/* The same for a property that is not listed. */
const json_t *schema_unlisted(Schema *s, const json_t *o, const char *name, const Path *p,
                              int depth);
/* Returns whether a name matches a regex of patternProperties. */
bool schema_fits(Schema *s, const char *pattern, const char *name, const Path *p);
/* fails if the schema is strict and has this keyword */
void schema_not_enforced(Schema *s, const json_t *o, const char *key, const Path *p);
int schema_types(Schema *s, const json_t *o, const Path *p); /* T_ bit mask */
/* schema_check.c: whether a schema accepts a value; true if it cannot be decided. */
bool schema_accepts(Schema *s, const json_t *v, const json_t *o, const Path *p);
bool schema_equal(const json_t *a, const json_t *b); /* 1 and 1.0 are equal */
/* Turns unevaluated* into additional* where no other keyword evaluates members, tuples of older
 * drafts into prefixItems, and `contains` into COUNTS. options: the schema has alternatives. */
const json_t *schema_plain(Schema *s, const json_t *v, bool options);
/* Applies unevaluated* once everything that evaluates members is merged. */
const json_t *schema_closed(Schema *s, const json_t *v);
/* schema_not.c: the values that v excludes; NULL: there is no schema of them. */
const json_t *schema_negated(Schema *s, const json_t *v, const Path *p);
/* Returns a schema of the objects in which the property, if it is there or required, matches v. */
const json_t *schema_property(Schema *s, const char *name, const json_t *v, bool required);
/* Returns a schema of the values whose type is not in `types`; integers count as numbers. */
const json_t *schema_other_types(Schema *s, int types);
/* schema_conditions.c */
bool schema_has_conditions(const json_t *v);
/* Whether `not` or `if` contain a keyword whose negation has schemas that seem to evaluate. */
bool schema_hides_evaluated(const json_t *v);
const json_t *schema_without_conditions(Schema *s, const json_t *v);
/* Returns `out` together with not, if and dependencies of v, which become anyOf. */
const json_t *schema_conditions(Schema *s, const json_t *out, const json_t *v, const Path *p,
                                int depth);
/* Estimates the number of alternatives of a schema once it is merged, up to some thousands. */
size_t schema_ways(Schema *s, const json_t *v, const Path *p);
/* overlap [n * n]: T_ types that pairs of the options may have in common */
const json_t *schema_exclusive(Schema *s, const json_t *list, const uint8_t *overlap,
                               const Path *p);
/* schema_not.c: v, or the values that it excludes, for values of the types alone. Other types
 * match. */
const json_t *schema_negated_of(Schema *s, const json_t *v, int types, const Path *p);
/* schema_merge.c: keywords that do not restrict values. */
bool schema_is_annotation(const char *key);
/* schema_disjoint.c. T_ types of a schema: as in the standard, a missing type means any type, and a
 * number may be an integer. */
int schema_listed_types(Schema *s, const json_t *o, const Path *p);
/* T_ types of the values that may match both; T_ALL if unknown. */
int schemas_common_types(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth);
/* Returns disjoint alternatives of a oneOf, each merged with base; fails if they may overlap. */
const json_t *schema_one_of(Schema *s, const json_t *base, const json_t *list, const Path *p);
/* matches an object with at least one of the optional members */
Expr *json_some_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how,
                        bool arguments);
bool format_is_standard(const char *name);  /* is the format checked? Others are annotations */
const char *format_regex(const char *name); /* NULL: unknown format */

#endif
