/* Negations, and the keywords that need them: not, if/then/else, dependentRequired,
 * dependentSchemas, dependencies, and oneOf where options overlap. Each becomes an anyOf of schemas
 * without these keywords. */
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum { MAX_NOT_DEPTH = 12, MAX_CONDITIONS = 64 };

static const char *const type_name[] = { "null", "boolean", "number", "string", "array", "object" };

static json_t *
keep(Schema *s, json_t *v)
{
	schema_keep(s, v);
	return v;
}

static json_t *mutable(const json_t *v)
{
	return (json_t *)(uintptr_t)v;
}

static void
add(Schema *s, json_t *list, const json_t *v)
{
	if (json_array_append(list, mutable(v)) != 0)
		arena_out(s->b->a);
}

static void
set(Schema *s, json_t *o, const char *key, const json_t *v)
{
	if (json_object_set(o, key, mutable(v)) != 0)
		arena_out(s->b->a);
}

/* {"type": type, key: v}; key NULL: the type alone. */
static const json_t *
of_type(Schema *s, const char *type, const char *key, const json_t *v)
{
	json_t *o = keep(s, json_pack("{s:s}", "type", type));

	if (key)
		set(s, o, key, v);
	return o;
}

/* Any value of a type that is not among `types`; integers count as numbers. */
static const json_t *
other_types(Schema *s, int types)
{
	static const int bit[] = { T_NULL,   T_BOOLEAN, T_NUMBER | T_INTEGER,
		                   T_STRING, T_ARRAY,   T_OBJECT };
	json_t *list = keep(s, json_array());

	for (int i = 0; i < 6; i++)
		if (!(types & bit[i]))
			add(s, list, keep(s, json_string(type_name[i])));
	if (!json_array_size(list))
		return json_false();
	json_t *o = keep(s, json_object());
	set(s, o, "type", list);
	return o;
}

static const json_t *
number(Schema *s, double v)
{
	return keep(s, v == (double)(json_int_t)v ? json_integer((json_int_t)v) : json_real(v));
}

/* Adds schemas of the values that differ from all of `list`. Returns false for arrays and objects,
 * of which no schema is known. */
static bool
add_other_values(Schema *s, json_t *out, const json_t *list)
{
	json_t *v, *w;
	size_t i, k;
	int types = 0;
	bool has[2] = { false, false };
	json_t *strings = keep(s, json_array());
	size_t n_number = 0;

	json_array_foreach (mutable(list), i, v) {
		types |= json_schema_type_of(v);
		if (json_is_array(v) || json_is_object(v))
			return false;
		if (json_is_string(v))
			add(s, strings, v);
		if (json_is_boolean(v))
			has[json_is_true(v)] = true;
		n_number += json_is_any_number(v);
	}
	const json_t *others = other_types(s, types & T_INTEGER ? types | T_NUMBER : types);
	if (!json_is_false(others))
		add(s, out, others);
	if (json_array_size(strings))
		add(s, out, of_type(s, "string", NOT_VALUES, strings));
	if (has[0] != has[1]) {
		json_t *o = keep(s, json_object());
		set(s, o, "const", has[0] ? json_true() : json_false());
		add(s, out, o);
	}
	/* numbers below, between and above the listed ones */
	json_array_foreach (mutable(list), i, v) {
		if (!json_is_any_number(v))
			continue;
		const json_t *before = NULL;
		bool last = true;
		json_array_foreach (mutable(list), k, w) {
			if (!json_is_any_number(w) || k == i)
				continue;
			if (json_number_of(w) < json_number_of(v) &&
			    (!before || json_number_of(w) > json_number_of(before)))
				before = w;
			last &= json_number_of(w) <= json_number_of(v);
		}
		json_t *o = mutable(of_type(s, "number", "exclusiveMaximum", v));
		if (before)
			set(s, o, "exclusiveMinimum", before);
		add(s, out, o);
		if (last)
			add(s, out, of_type(s, "number", "exclusiveMinimum", v));
	}
	return n_number <= MAX_CONDITIONS;
}

static bool
add_other_bound(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v)
{
	static const struct {
		const char *key, *type, *other;
		int step; /* to the first count on the other side of the bound */
	} bounds[] = {
		{ "minLength", "string", "maxLength", -1 },
		{ "maxLength", "string", "minLength", 1 },
		{ "minItems", "array", "maxItems", -1 },
		{ "maxItems", "array", "minItems", 1 },
		{ "minProperties", "object", "maxProperties", -1 },
		{ "maxProperties", "object", "minProperties", 1 },
		{ "minimum", "number", "exclusiveMaximum", 0 },
		{ "maximum", "number", "exclusiveMinimum", 0 },
		{ "exclusiveMinimum", "number", "maximum", 0 },
		{ "exclusiveMaximum", "number", "minimum", 0 },
	};

	for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
		if (strcmp(key, bounds[i].key) != 0)
			continue;
		const char *other = bounds[i].other;
		if (json_is_boolean(v)) /* draft 4: belongs to minimum or maximum */
			return true;
		if (!json_is_any_number(v))
			return false;
		if (!strcmp(key, "minimum") && json_is_true(json_object_get(o, "exclusiveMinimum")))
			other = "maximum";
		if (!strcmp(key, "maximum") && json_is_true(json_object_get(o, "exclusiveMaximum")))
			other = "minimum";
		double x = json_number_of(v) + bounds[i].step;
		if (bounds[i].step >= 0 || x >= 0)
			add(s, out,
			    of_type(s, bounds[i].type, other, bounds[i].step ? number(s, x) : v));
		return true;
	}
	return false;
}

static const json_t *
property(Schema *s, const char *name, const json_t *v, bool required)
{
	json_t *o = mutable(of_type(s, "object", NULL, NULL)), *all = keep(s, json_object());

	set(s, all, name, v);
	set(s, o, "properties", all);
	set(s, o, OPEN, json_true());
	if (required)
		set(s, o, "required", keep(s, json_pack("[s]", name)));
	return o;
}

/* Adds schemas of the values that a keyword of o excludes. */
static bool
add_excluded(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v,
             const Path *p, int depth)
{
	json_t *one;
	const char *name;
	size_t i;

	if (!strcmp(key, "type") || !strcmp(key, "nullable")) {
		int types = schema_types(s, o, p);
		const json_t *others = other_types(s, types);
		if (!strcmp(key, "type") && (types & T_INTEGER) && !(types & T_NUMBER))
			add(s, out, of_type(s, "number", FRACTION, json_true()));
		if (!strcmp(key, "type") && !json_is_false(others))
			add(s, out, others);
		return true;
	}
	if (!strcmp(key, "const"))
		return add_other_values(s, out, keep(s, json_pack("[O]", v)));
	if (!strcmp(key, "enum"))
		return json_is_array(v) && add_other_values(s, out, v);
	if (!strcmp(key, "pattern") || !strcmp(key, "format")) {
		const char *text = json_string_value(v);
		text = text && *key == 'f' ? format_regex(text) : text;
		if (text)
			add(s, out,
			    of_type(s, "string", NOT_PATTERNS, keep(s, json_pack("[s]", text))));
		return text;
	}
	if (!strcmp(key, "required")) {
		json_array_foreach (mutable(v), i, one)
			if (json_is_string(one))
				add(s, out,
				    property(s, json_string_value(one), json_false(), false));
		return true;
	}
	if (!strcmp(key, "properties")) {
		json_object_foreach (mutable(v), name, one) {
			const json_t *other = schema_negated(s, one, p, depth + 1);
			if (!other)
				return false;
			if (!json_is_false(other))
				add(s, out, property(s, name, other, true));
		}
		return true;
	}
	if (!strcmp(key, "allOf")) {
		json_array_foreach (mutable(v), i, one) {
			const json_t *other = schema_negated(s, one, p, depth + 1);
			if (!other)
				return false;
			add(s, out, other);
		}
		return true;
	}
	if (!strcmp(key, "anyOf")) {
		json_t *all = keep(s, json_array()), *both = keep(s, json_object());
		json_array_foreach (mutable(v), i, one) {
			const json_t *other = schema_negated(s, one, p, depth + 1);
			if (!other)
				return false;
			add(s, all, other);
		}
		set(s, both, "allOf", all);
		add(s, out, both);
		return true;
	}
	if (!strcmp(key, "not")) {
		add(s, out, v);
		return true;
	}
	if (!strcmp(key, "$ref")) {
		const json_t *other = schema_negated(s, schema_target(s, v, p), p, depth + 1);
		if (other)
			add(s, out, other);
		return other;
	}
	return add_other_bound(s, out, o, key, v);
}

const json_t *
schema_negated(Schema *s, const json_t *v, const Path *p, int depth)
{
	const json_t *x;
	const char *key;

	build_work(s->b);
	if (json_is_boolean(v))
		return json_is_true(v) ? json_false() : json_true();
	if (!json_is_object(v) || depth > MAX_NOT_DEPTH || ++s->n_merged > MAX_MERGED)
		return NULL;
	json_t *out = keep(s, json_array());
	json_object_foreach (mutable(v), key, x)
		if (!schema_is_annotation(key) && !add_excluded(s, out, v, key, x, p, depth))
			return NULL;
	if (!json_array_size(out))
		return json_false();
	if (json_array_size(out) == 1)
		return json_array_get(out, 0);
	json_t *any = keep(s, json_object());
	set(s, any, "anyOf", out);
	return any;
}

static const json_t *
any_of_two(Schema *s, const json_t *a, const json_t *b)
{
	json_t *o = keep(s, json_object()), *list = keep(s, json_array());

	if (!json_is_false(a))
		add(s, list, a);
	if (!json_is_false(b))
		add(s, list, b);
	set(s, o, "anyOf", list);
	return json_array_size(list) == 1 ? json_array_get(list, 0) : o;
}

static const json_t *
all_of_two(Schema *s, const json_t *a, const json_t *b)
{
	json_t *o = keep(s, json_object()), *list = keep(s, json_array());

	if (!b || json_is_true(b))
		return a;
	add(s, list, a);
	add(s, list, b);
	set(s, o, "allOf", list);
	return o;
}

/* The condition as anyOf; NULL: its negation has no schema. */
static const json_t *
condition(Schema *s, const json_t *c, const Path *p)
{
	const json_t *test = json_object_get(c, "if"), *then = json_object_get(c, "then"),
	             *other = json_object_get(c, "else");
	const json_t *inverse = test && (then || other) ? schema_negated(s, test, p, 0) : NULL;

	if (!test || (!then && !other))
		return json_true();
	return inverse ? any_of_two(s, all_of_two(s, test, then), all_of_two(s, inverse, other))
	               : NULL;
}

/* "If the property is there, `then` holds." */
static const json_t *
dependency(Schema *s, const char *name, const json_t *then)
{
	json_t *there = mutable(of_type(s, "object", NULL, NULL));

	if (json_is_array(then)) {
		json_t *all = json_copy(mutable(then));
		schema_keep(s, all);
		add(s, all, keep(s, json_string(name)));
		set(s, there, "required", all);
		set(s, there, OPEN, json_true());
	} else {
		set(s, there, "required", keep(s, json_pack("[s]", name)));
		set(s, there, OPEN, json_true());
		there = mutable(all_of_two(s, there, then));
	}
	const json_t *absent =
	    any_of_two(s, property(s, name, json_false(), false), other_types(s, T_OBJECT));
	return any_of_two(s, absent, there);
}

static const json_t *
conjoin(Schema *s, const json_t *out, const char *key, const json_t *more, const Path *p, int depth)
{
	size_t n = json_array_size(json_object_get(out, "anyOf")),
	       m = json_array_size(json_object_get(more, "anyOf"));

	if (!more || (n ? n : 1) * (m ? m : 1) > MAX_CONDITIONS) {
		if (s->b->opt.strict && !s->asked)
			schema_fail(s, p, key,
			            "this keyword is not enforced here, and the schema is strict");
		return out;
	}
	return json_is_true(more) ? out : schema_merge(s, out, more, p, depth + 1);
}

static const char *const condition_keys[] = {
	"not",          "if",           "then", "else", "dependentRequired", "dependentSchemas",
	"dependencies", MORE_CONDITIONS
};

bool
schema_has_conditions(const json_t *v)
{
	for (size_t i = 0; i < sizeof condition_keys / sizeof *condition_keys; i++)
		if (json_object_get(v, condition_keys[i]))
			return true;
	return false;
}

const json_t *
schema_without_conditions(Schema *s, const json_t *v)
{
	if (!json_is_object(v) || !schema_has_conditions(v))
		return v;
	json_t *rest = keep(s, json_copy(mutable(v)));
	for (size_t i = 0; i < sizeof condition_keys / sizeof *condition_keys; i++)
		json_object_del(rest, condition_keys[i]);
	return rest;
}

const json_t *
schema_conditions(Schema *s, const json_t *out, const json_t *v, const Path *p, int depth)
{
	json_t *one;
	const char *name;
	size_t i;

	if (!json_is_object(v) || !schema_has_conditions(v))
		return out;
	const json_t *no = json_object_get(v, "not");
	if (no && !json_is_false(no))
		out = conjoin(s, out, "not", schema_negated(s, no, p, 0), p, depth);
	out = conjoin(s, out, "if", condition(s, v, p), p, depth);
	json_array_foreach (json_object_get(v, MORE_CONDITIONS), i, one)
		out = conjoin(s, out, "if", condition(s, one, p), p, depth);
	static const char *const depends[] = { "dependentRequired", "dependentSchemas",
		                               "dependencies" };
	for (int k = 0; k < 3; k++)
		json_object_foreach (json_object_get(v, depends[k]), name, one) {
			if (json_is_true(one) || (json_is_array(one) && !json_array_size(one)))
				continue;
			const json_t *list =
			    json_is_string(one) ? keep(s, json_pack("[O]", one)) : one;
			out = conjoin(s, out, depends[k], dependency(s, name, list), p, depth);
		}
	return out;
}

/* Options of a oneOf that overlap become disjoint by excluding the other ones; NULL: the negation
 * of an option has no schema. */
const json_t *
schema_exclusive(Schema *s, const json_t *list, const bool *overlap, const Path *p)
{
	size_t n = json_array_size(list);
	json_t *out = keep(s, json_array());

	for (size_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(list, i);
		for (size_t k = 0; k < n; k++) {
			if (!overlap[i * n + k])
				continue;
			const json_t *other = schema_negated(s, json_array_get(list, k), p, 0);
			if (!other)
				return NULL;
			x = all_of_two(s, x, other);
		}
		add(s, out, x);
	}
	return out;
}
