/* JSON Schema -> expressions. Each definition that is referenced is one rule, so recursion costs
 * nothing. Schemas that apply to one value ($ref with siblings, allOf, anyOf with siblings) are
 * merged into one schema first (schema_merge.c). Two rules differ from the standard, because models
 * use whatever is allowed. An object that lists properties has no others, unless llmc_additional
 * allows them. A missing type is inferred from keywords, unless `standard` is set. Errors name the
 * path of the schema and the keyword.
 *
 * This file handles types and alternatives; schema_ref.c has rules of $ref, schema_scalar.c builds
 * strings and numbers, schema_array.c and schema_object.c the rest. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/schema.h"

enum {
	MAX_VALUES = 400000,
	MAX_KEPT = 1000000, /* members and items of the schemas that merges make */
	MAX_COUNT = 1000000,
	PATH_END = 8,
	MAX_KEY = 80
};

const char *
schema_path(Schema *s, const Path *p)
{
	Strbuf *out = arena_strbuf(s->b->a);
	const Path *up[MAX_SCHEMA_NEST + 2];
	int n = 0;

	for (; p && n < MAX_SCHEMA_NEST + 2; p = p->up)
		up[n++] = p;
	strbuf_putc(out, '#');
	for (int i = n - 1; i >= 0; i--) {
		if (n > 2 * PATH_END && i == n - 1 - PATH_END) {
			/* omit the middle of a long path */
			strbuf_puts(out, "/...");
			i = PATH_END - 1;
		}
		size_t len = strlen(up[i]->key);
		strbuf_putc(out, '/');
		strbuf_add(out, up[i]->key, utf8_whole(up[i]->key, len < MAX_KEY ? len : MAX_KEY));
	}
	if (out->failed)
		arena_out(s->b->a);
	return strbuf_str(out);
}

void
schema_fail(Schema *s, const Path *p, const char *keyword, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	const char *why = arena_vprintf(s->b->a, fmt, ap);
	va_end(ap);
	build_fail(s->b, "schema, %s%s%s: %s", schema_path(s, p), keyword ? "/" : "",
	           keyword ? keyword : "", why);
}

/* Bounds the memory of schemas that merges and negations make. */
static void
count_kept(Schema *s, size_t n)
{
	build_work_of(s->b, n);
	s->n_kept += n;
	if (s->n_kept > MAX_KEPT)
		schema_fail(s, NULL, NULL, "merging its parts takes too much memory");
}

json_t *
schema_keep(Schema *s, json_t *v)
{
	if (!v)
		arena_out(s->b->a);
	json_hold(s->b->a, v);
	count_kept(s, 1 + json_object_size(v) + json_array_size(v));
	return v;
}

void
schema_set(Schema *s, json_t *o, const char *key, const json_t *v)
{
	count_kept(s, 1);
	if (json_object_set(o, key, schema_mutable(v)) != 0)
		arena_out(s->b->a);
}

void
schema_add(Schema *s, json_t *list, const json_t *v)
{
	count_kept(s, 1);
	if (json_array_append(list, schema_mutable(v)) != 0)
		arena_out(s->b->a);
}

bool
schema_lists_name(const json_t *list, const char *name)
{
	const json_t *v;
	size_t i;

	json_array_foreach (schema_mutable(list), i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

const json_t *
schema_any_of(Schema *s, json_t *list)
{
	if (!json_array_size(list))
		return json_false();
	return json_array_size(list) == 1 ? json_array_get(list, 0)
	                                  : schema_keep(s, json_pack("{s:O}", "anyOf", list));
}

const json_t *
schema_all_of(Schema *s, const json_t *a, const json_t *b)
{
	return !b || json_is_true(b) ? a : schema_keep(s, json_pack("{s:[O,O]}", "allOf", a, b));
}

/* Returns a count in 0..MAX_COUNT (larger values are clamped); -1: absent. */
int32_t
schema_count(Schema *s, const json_t *o, const char *key, const Path *p)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return -1;
	if (!json_is_any_number(v) || json_number_of(v) < 0)
		schema_fail(s, p, key, "expected a number that is at least 0");
	return json_number_of(v) > MAX_COUNT ? MAX_COUNT : (int32_t)json_number_of(v);
}

int32_t
schema_most(Schema *s, const json_t *o, const char *key, const Path *p)
{
	int32_t n = schema_count(s, o, key, p);

	return n >= MAX_COUNT ? -1 : n;
}

void
schema_not_enforced(Schema *s, const json_t *o, const char *key, const Path *p)
{
	const json_t *v = json_object_get(o, key);

	if (v && !(json_is_false(v) && (!strcmp(key, "uniqueItems") || !strcmp(key, "not"))) &&
	    s->b->opt.strict)
		schema_fail(s, p, key, "this keyword is not enforced, and the schema is strict");
}

/* ---- values ---- */

static int
type_bit(Schema *s, const json_t *v, const Path *p)
{
	int type = json_schema_type(v);

	if (type)
		return type;
	schema_fail(s, p, "type",
	            "expected null, boolean, integer, number, string, array or object");
}

int
schema_types(Schema *s, const json_t *o, const Path *p)
{
	const json_t *type = json_object_get(o, "type"), *v;
	int types = 0;
	size_t i;

	if (!type && !s->b->opt.standard) {
		types = json_schema_implied_types(o);
		return !json_object_get(o, COUNTS) ? types
		       : types == T_ALL            ? T_ARRAY
		                                   : types | T_ARRAY;
	}
	if (!type)
		return T_ALL;
	if (!json_is_array(type))
		types = type_bit(s, type, p);
	json_array_foreach ((json_t *)(uintptr_t)type, i, v)
		types |= type_bit(s, v, p);
	if (json_is_true(json_object_get(o, "nullable")))
		types |= T_NULL;
	return types;
}

static Expr *one_value(Schema *s, const json_t *v, const Path *p);

/* Matches the values of const or enum that the other keywords accept. */
static Expr *
fixed(Schema *s, const json_t *o, const Path *p)
{
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"), *v;
	ExprList parts = { 0 };
	size_t i;

	if (one)
		return schema_accepts(s, one, o, p) ? one_value(s, one, p) : expr_none(s->b);
	if (!json_is_array(list))
		schema_fail(s, p, "enum", "expected an array of values");
	const json_t *rest = schema_without(s, o, "enum");
	bool all = !schema_constrains(rest, NULL);
	json_array_foreach ((json_t *)(uintptr_t)list, i, v)
		if (all || schema_accepts(s, v, rest, p))
			expr_push(s->b, &parts, one_value(s, v, p));
	return expr_list(s->b, EXPR_ALT, &parts);
}

/* Matches a value that is not a string, in a style in which strings are not quoted. */
static Expr *
raw_value(Schema *s, Expr *x)
{
	GrammarBuilder *b = s->b;

	return expr_seq(b, 3, mark_text(b, b->style->json), x, mark_text(b, b->style->end));
}

static Expr *
any_value(Schema *s, const Path *p)
{
	if (s->arguments)
		return schema_object(s, NULL, p);
	return s->raw ? expr_alt(s->b, 2, schema_any_string(s), raw_value(s, json_any_value(s->b)))
	              : json_any_value(s->b);
}

static Expr *
one_value(Schema *s, const json_t *v, const Path *p)
{
	if (json_is_string(v) && s->raw && !json_kept_digits(v))
		return schema_fixed_string(s, json_string_value(v), json_string_length(v), p);
	return s->raw ? raw_value(s, json_literal(s->b, v)) : json_literal(s->b, v);
}

static Expr *
of_types(Schema *s, const json_t *o, const Path *p)
{
	int types = schema_types(s, o, p);
	ExprList parts = { 0 };
	GrammarBuilder *b = s->b;
	bool raw = s->raw;

	if (s->arguments)
		return types & T_OBJECT ? schema_object(s, o, p) : expr_none(b);
	s->raw = false;
	if (types & T_NULL)
		expr_push(b, &parts, json_word(b, JSON_NULL));
	if (types & T_BOOLEAN) {
		expr_push(b, &parts, json_word(b, JSON_TRUE));
		expr_push(b, &parts, json_word(b, JSON_FALSE));
	}
	if (types & (T_INTEGER | T_NUMBER))
		expr_push(b, &parts, schema_number(s, o, !(types & T_NUMBER), p));
	if (types & T_STRING && !raw)
		expr_push(b, &parts, schema_string(s, o, p));
	if (types & T_ARRAY)
		expr_push(b, &parts, schema_array(s, o, p));
	if (types & T_OBJECT)
		expr_push(b, &parts, schema_object(s, o, p));
	s->raw = raw;
	if (!raw)
		return expr_list(b, EXPR_ALT, &parts);
	Expr *other = parts.n ? raw_value(s, expr_list(b, EXPR_ALT, &parts)) : expr_none(b);
	return types & T_STRING ? expr_alt(b, 2, schema_string(s, o, p), other) : other;
}

/* Returns whether x obviously matches nothing: the search is shallow. */
static bool
is_nothing(const Expr *x, int depth)
{
	bool all = x->kind == EXPR_ALT;

	if (depth > 6 || (x->kind != EXPR_ALT && x->kind != EXPR_SEQ))
		return false;
	for (int32_t i = 0; i < x->n; i++) {
		const bool one = is_nothing(x->part[i], depth + 1);
		if (x->kind == EXPR_ALT ? !one : one)
			return x->kind == EXPR_SEQ;
	}
	return all;
}

/* Records the schema that no value matches, for the error if the whole grammar matches nothing. The
 * most likely keyword is reported. */
static void
note_nothing(Schema *s, const json_t *v, const Path *p)
{
	static const char *const keys[] = {
		"const",         "enum",  "minimum", "exclusiveMinimum", "minLength", "minItems",
		"minProperties", "allOf", "oneOf",   "required",         NULL
	};
	const char *const *k = keys;

	while (*k && !json_object_get(v, *k))
		k++;
	s->b->nothing =
	    arena_printf(s->b->a, "schema, %s%s%s", schema_path(s, p), *k ? "/" : "", *k ? *k : "");
}

static Expr *value_of(Schema *s, const json_t *v, const Path *p);

Expr *
schema_value(Schema *s, const json_t *v, const Path *p)
{
	const char *before = s->b->nothing;
	Expr *x = value_of(s, v, p);

	if (s->b->nothing == before && !s->asked &&
	    is_nothing(x, 0)) /* otherwise an inner schema has been recorded */
		note_nothing(s, v, p);
	return x;
}

/* Returns whether v is being built. If so, v contains itself and must become a rule. */
static bool
is_open(const Schema *s, const json_t *v)
{
	for (const OpenSchema *o = s->open; o; o = o->up)
		if (o->v == v)
			return true;
	return false;
}

static Expr *
value_of(Schema *s, const json_t *v, const Path *p)
{
	static const char *const never[] = { "$dynamicRef", "$recursiveRef", NULL };
	const json_t *o, *option;
	ExprList parts = { 0 };
	size_t i;
	Expr *x;

	build_work(s->b);
	if (json_is_true(v))
		return any_value(s, p);
	if (json_is_false(v))
		return expr_none(s->b);
	if (!json_is_object(v))
		schema_fail(s, p, NULL, "expected a schema: an object, true or false");
	if (++s->depth > MAX_SCHEMA_NEST || ++s->n_values > MAX_VALUES)
		schema_fail(s, p, NULL,
		            s->depth > MAX_SCHEMA_NEST ? "nested too deeply"
		                                       : "the schema is too large");
	v = schema_static_ref(s, v);
	for (const char *const *k = never; *k; k++)
		schema_not_enforced(s, v, *k, p);
	const json_t *ref = json_object_get(v, "$ref");
	const bool own_rule = s->inside != v && (json_object_get(v, LAZY) || is_open(s, v));
	OpenSchema open = { v, s->open };
	s->inside = NULL;
	s->open = &open;
	if (own_rule) {
		x = schema_resolve_ref(s, v, p);
	} else if (ref && !schema_constrains(v, "$ref")) {
		x = schema_resolve_ref(s, schema_target(s, ref, p), &(Path){ p, "$ref" });
	} else {
		o = schema_closed(s, schema_flat(s, v, p, 0));
		/* check again: merging may have brought them in */
		for (const char *const *k = never; *k; k++)
			schema_not_enforced(s, o, *k, p);
		if (json_is_boolean(o)) {
			x = json_is_true(o) ? any_value(s, p) : expr_none(s->b);
		} else if (json_object_get(o, "anyOf")) {
			const json_t *list = json_object_get(o, "anyOf");
			bool more = schema_constrains(o, "anyOf");
			/* alternatives that come from merging have members in common */
			const bool shared = json_array_size(list) >
			                    1 + json_array_size(json_object_get(v, "anyOf"));
			s->shared += shared;
			json_array_foreach ((json_t *)(uintptr_t)list, i, option) {
				Path here = { p, arena_printf(s->b->a, "anyOf/%zu", i) };
				expr_push(s->b, &parts,
				          schema_value(
				              s,
				              more ? schema_merge(s, schema_without(s, o, "anyOf"),
				                                  option, &here, 0)
				                   : option,
				              &here));
			}
			s->shared -= shared;
			x = expr_list(s->b, EXPR_ALT, &parts);
		} else if (json_object_get(o, "const") || json_object_get(o, "enum")) {
			x = fixed(s, o, p);
		} else if (!schema_constrains(o, NULL)) {
			x = any_value(s, p);
		} else {
			x = of_types(s, o, p);
		}
	}
	s->open = open.up;
	s->depth--;
	return x;
}

static bool
has_open_objects(const GrammarBuilder *b, const json_t *root, bool arguments)
{
	switch (b->opt.additional) {
	case LLMC_ADDITIONAL_CLOSED:
		return b->opt.standard;
	case LLMC_ADDITIONAL_OPEN:
		return true;
	case LLMC_ADDITIONAL_AUTO:
		break;
	}
	return b->opt.standard || (!arguments && json_is_string(json_object_get(root, "$schema")));
}

Expr *
schema_of(GrammarBuilder *b, const json_t *schema, const json_t *root, const char *path)
{
	Schema *s = NEW(b->a, Schema, 1);
	Path top = { NULL, path };

	s->b = b;
	s->root = root;
	s->string_tail = -1;
	s->open_objects = has_open_objects(b, root, false);
	return schema_value(s, schema, path && *path ? &top : NULL);
}

Expr *
schema_arguments(GrammarBuilder *b, const json_t *schema, const char *path)
{
	Schema *s = NEW(b->a, Schema, 1);
	Path top = { NULL, path };

	s->b = b;
	s->root = schema;
	s->string_tail = -1;
	s->arguments = true;
	s->open_objects = has_open_objects(b, schema, true);
	return schema_value(s, schema, path && *path ? &top : NULL);
}

Expr *
schema_read(GrammarBuilder *b, const char *text, size_t n)
{
	json_error_t why;
	json_t *root =
	    json_read(b->a, text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, &why);

	if (!root)
		build_fail(b, "schema: invalid JSON: %s at line %d, column %d", why.text, why.line,
		           why.column);
	return schema_of(b, root, root, "");
}
