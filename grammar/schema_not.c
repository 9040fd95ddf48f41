/* Negations of schemas. Each is an anyOf of schemas, one per way to break a keyword. They use keys
 * that only restrict values (HELD, SOME_MEMBERS, COUNTS), so that what is evaluated or listed does
 * not depend on them. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum { MAX_NOT_DEPTH = 40, MAX_NUMBERS = 64, MAX_NOT_ONE = 8, MAX_WAYS = 64 };

static const char *const type_name[] = { "null", "boolean", "number", "string", "array", "object" };

/* {"type": type, key: v}; key NULL: the type alone. */
static const json_t *
of_type(Schema *s, const char *type, const char *key, const json_t *v)
{
	json_t *o = schema_keep(s, json_pack("{s:s}", "type", type));

	if (key)
		schema_set(s, o, key, v);
	return o;
}

const json_t *
schema_other_types(Schema *s, int types)
{
	static const int bit[] = { T_NULL,   T_BOOLEAN, T_NUMBER | T_INTEGER,
		                   T_STRING, T_ARRAY,   T_OBJECT };
	json_t *list = schema_keep(s, json_array());

	for (int i = 0; i < 6; i++)
		if (!(types & bit[i]))
			schema_add(s, list, schema_keep(s, json_string(type_name[i])));
	if (!json_array_size(list))
		return json_false();
	json_t *o = schema_keep(s, json_object());
	schema_set(s, o, "type", list);
	return o;
}

static const json_t *
number(Schema *s, double v)
{
	const bool integer = fabs(v) < 0x1p62 && v == trunc(v);

	return schema_keep(s, integer ? json_integer((json_int_t)v) : json_real(v));
}

/* A schema of one array or object, of the schemas of its parts. */
static const json_t *
of_composite(Schema *s, const json_t *v)
{
	json_t *parts = schema_keep(s, json_is_array(v) ? json_array() : json_object()), *one,
	       *names = schema_keep(s, json_array());
	const char *key;
	size_t i;

	json_array_foreach (schema_mutable(v), i, one)
		schema_add(s, parts, schema_keep(s, json_pack("{s:O}", "const", one)));
	json_object_foreach (schema_mutable(v), key, one) {
		schema_set(s, parts, key, schema_keep(s, json_pack("{s:O}", "const", one)));
		schema_add(s, names, schema_keep(s, json_string(key)));
	}
	int n = (int)json_array_size(v);
	return schema_keep(
	    s, json_is_array(v) ? json_pack("{s:s,s:i,s:i,s:O}", "type", "array", "minItems", n,
	                                    "maxItems", n, "prefixItems", parts)
	                        : json_pack("{s:s,s:O,s:O,s:b}", "type", "object", "required",
	                                    names, "properties", parts, "additionalProperties", 0));
}

/* Adds schemas of the values that differ from all of `list`, whose arrays and objects are
 * skipped. */
static bool
add_other_scalars(Schema *s, json_t *out, const json_t *list)
{
	json_t *v, *w;
	size_t i, k;
	int types = 0;
	bool has[2] = { false, false };
	json_t *strings = schema_keep(s, json_array());
	size_t n_number = 0;

	json_array_foreach (schema_mutable(list), i, v) {
		if (json_is_array(v) || json_is_object(v))
			continue;
		types |= json_schema_type_of(v);
		if (json_is_string(v))
			schema_add(s, strings, v);
		if (json_is_boolean(v))
			has[json_is_true(v)] = true;
		n_number += json_is_any_number(v);
	}
	const json_t *others = schema_other_types(s, types & T_INTEGER ? types | T_NUMBER : types);
	if (!json_is_false(others))
		schema_add(s, out, others);
	if (json_array_size(strings))
		schema_add(s, out, of_type(s, "string", NOT_VALUES, strings));
	if (has[0] != has[1]) {
		json_t *o = schema_keep(s, json_object());
		schema_set(s, o, "const", has[0] ? json_true() : json_false());
		schema_add(s, out, o);
	}
	if (n_number > MAX_NUMBERS)
		return false;
	/* numbers below, between and above the listed ones */
	json_array_foreach (schema_mutable(list), i, v) {
		if (!json_is_any_number(v))
			continue;
		const json_t *before = NULL;
		bool last = true;
		json_array_foreach (schema_mutable(list), k, w) {
			if (!json_is_any_number(w) || k == i)
				continue;
			if (json_number_of(w) < json_number_of(v) &&
			    (!before || json_number_of(w) > json_number_of(before)))
				before = w;
			last &= json_number_of(w) <= json_number_of(v);
		}
		json_t *o = schema_mutable(of_type(s, "number", "exclusiveMaximum", v));
		if (before)
			schema_set(s, o, "exclusiveMinimum", before);
		schema_add(s, out, o);
		if (last)
			schema_add(s, out, of_type(s, "number", "exclusiveMinimum", v));
	}
	return true;
}

static bool
add_other_bound(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v)
{
	static const struct {
		const char *key, *type, *other;
		int step; /* distance to the first count on the other side of the bound */
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
		if (json_is_boolean(v)) /* in draft 4 a bool belongs to minimum or maximum */
			return true;
		if (!json_is_any_number(v))
			return false;
		if (!strcmp(key, "minimum") && json_is_true(json_object_get(o, "exclusiveMinimum")))
			other = "maximum";
		if (!strcmp(key, "maximum") && json_is_true(json_object_get(o, "exclusiveMaximum")))
			other = "minimum";
		double x = json_number_of(v) + bounds[i].step;
		if (bounds[i].step >= 0 || x >= 0)
			schema_add(
			    s, out,
			    of_type(s, bounds[i].type, other, bounds[i].step ? number(s, x) : v));
		return true;
	}
	return false;
}

static const json_t *negated(Schema *s, const json_t *v, const Path *p, int depth);

/* Adds schemas of the values that differ from all of `list`. */
static bool
add_other_values(Schema *s, json_t *out, const json_t *list, const Path *p, int depth)
{
	json_t *scalars = schema_keep(s, json_array()), *all = schema_keep(s, json_array()), *v;
	size_t i;

	if (!add_other_scalars(s, scalars, list))
		return false;
	schema_add(s, all, schema_any_of(s, scalars));
	json_array_foreach (schema_mutable(list), i, v) {
		if (!json_is_array(v) && !json_is_object(v))
			continue;
		const json_t *other = negated(s, of_composite(s, v), p, depth + 1);
		if (!other)
			return false;
		schema_add(s, all, other);
	}
	schema_add(s, out,
	           json_array_size(all) == 1 ? json_array_get(all, 0)
	                                     : schema_keep(s, json_pack("{s:O}", "allOf", all)));
	return true;
}

const json_t *
schema_property(Schema *s, const char *name, const json_t *v, bool required)
{
	json_t *o = schema_mutable(of_type(s, "object", NULL, NULL)),
	       *held = schema_keep(s, json_object());

	schema_set(s, held, name, v);
	schema_set(s, o, HELD, held);
	if (required)
		schema_set(s, o, "required", schema_keep(s, json_pack("[s]", name)));
	return o;
}

/* Objects with a member whose key and value match. */
static void
add_member(Schema *s, json_t *out, const json_t *key, const json_t *value)
{
	if (!json_is_false(key) && !json_is_false(value))
		schema_add(s, out,
		           schema_keep(s, json_pack("{s:s,s:[{s:O,s:O}]}", "type", "object",
		                                    SOME_MEMBERS, "key", key, "value", value)));
}

/* Arrays in which the number of items of a range that match is limited. */
static void
add_count(Schema *s, json_t *out, const json_t *range, const json_t *item, const char *limit,
          const json_t *n)
{
	json_t *count = schema_keep(s, json_pack("{s:O,s:O}", "item", item, limit, n));
	static const char *const keys[] = { "from", "to" };

	for (int i = 0; i < 2; i++)
		if (json_object_get(range, keys[i]))
			schema_set(s, count, keys[i], json_object_get(range, keys[i]));
	schema_add(s, out,
	           schema_keep(s, json_pack("{s:s,s:[O]}", "type", "array", COUNTS, count)));
}

/* Adds arrays with an item of another schema at positions from `from` up to `to` (-1: the end). */
static bool
add_other_item(Schema *s, json_t *out, size_t from, int to, const json_t *item, const Path *p,
               int depth)
{
	const json_t *other = negated(s, item, p, depth + 1);
	json_t *range = schema_keep(s, json_pack("{s:i}", "from", (int)from));

	if (to >= 0)
		schema_set(s, range, "to", schema_keep(s, json_integer(to)));
	if (other && !json_is_false(other))
		add_count(s, out, range, other, "min", number(s, 1));
	return other;
}

static bool
add_all_negated(Schema *s, json_t *out, const json_t *list, const Path *p, int depth)
{
	const json_t *one;
	size_t i;

	json_array_foreach (schema_mutable(list), i, one) {
		const json_t *other = negated(s, one, p, depth + 1);
		if (!other)
			return false;
		if (!json_is_false(other))
			schema_add(s, out, other);
	}
	return true;
}

/* Adds the values that match none, or at least two, of the options of a oneOf. */
static bool
add_not_one(Schema *s, json_t *out, const json_t *list, const Path *p, int depth)
{
	const size_t n = json_array_size(list);
	json_t *none = schema_keep(s, json_array());

	if (n > MAX_NOT_ONE || !add_all_negated(s, none, list, p, depth))
		return false;
	if (json_array_size(none) == n)
		schema_add(s, out, schema_keep(s, json_pack("{s:O}", "allOf", none)));
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			schema_add(
			    s, out,
			    schema_all_of(s, json_array_get(list, k), json_array_get(list, i)));
	return true;
}

/* Adds what breaks if/then/else. */
static bool
add_other_branch(Schema *s, json_t *out, const json_t *o, const Path *p, int depth)
{
	static const char *const branches[] = { "then", "else" };
	const json_t *test = json_object_get(o, "if");

	for (int i = 0; i < 2; i++) {
		const json_t *branch = json_object_get(o, branches[i]);
		const json_t *other = branch ? negated(s, branch, p, depth + 1) : NULL,
		             *side = i && branch ? negated(s, test, p, depth + 1) : test;
		if (!branch)
			continue;
		if (!other || !side)
			return false;
		if (!json_is_false(other) && !json_is_false(side))
			schema_add(s, out, schema_all_of(s, side, other));
	}
	return true;
}

/* Adds what breaks dependentRequired, dependentSchemas or dependencies. */
static bool
add_other_dependency(Schema *s, json_t *out, const json_t *all, const Path *p, int depth)
{
	json_t *one;
	const json_t *name;
	const char *key;
	size_t i;

	json_object_foreach (schema_mutable(all), key, one) {
		json_t *there = schema_keep(
		           s, json_pack("{s:s,s:[s]}", "type", "object", "required", key)),
		       *list = json_is_string(one) ? schema_keep(s, json_pack("[O]", one)) : one;
		if (json_is_array(list)) {
			json_array_foreach (list, i, name)
				if (json_is_string(name))
					schema_add(s, out,
					           schema_all_of(
					               s, there,
					               schema_property(s, json_string_value(name),
					                               json_false(), false)));
			continue;
		}
		const json_t *other = negated(s, one, p, depth + 1);
		if (!other)
			return false;
		if (!json_is_false(other))
			schema_add(s, out, schema_all_of(s, there, other));
	}
	return true;
}

/* Adds what breaks a count of items. */
static void
add_other_count(Schema *s, json_t *out, const json_t *count)
{
	const json_t *item = json_object_get(count, "item"), *max = json_object_get(count, "max");
	const double min = json_number_of(json_object_get(count, "min"));

	if (min > 0)
		add_count(s, out, count, item, "max", number(s, min - 1));
	if (json_is_any_number(max))
		add_count(s, out, count, item, "min", number(s, json_number_of(max) + 1));
}

/* The keys to which additionalProperties of o applies. */
static const json_t *
other_keys(Schema *s, const json_t *o)
{
	json_t *names = schema_keep(s, json_array()), *patterns = schema_keep(s, json_array()), *v,
	       *key = schema_keep(s, json_pack("{s:s}", "type", "string"));
	const char *name;

	json_object_foreach (json_object_get(o, "properties"), name, v)
		schema_add(s, names, schema_keep(s, json_string(name)));
	json_object_foreach (json_object_get(o, "patternProperties"), name, v)
		schema_add(s, patterns, schema_keep(s, json_string(name)));
	if (json_array_size(names))
		schema_set(s, key, NOT_VALUES, names);
	if (json_array_size(patterns))
		schema_set(s, key, NOT_PATTERNS, patterns);
	return key;
}

/* Adds what breaks a keyword about the members of an object. Sets *known to false for another
 * keyword. */
static bool
add_other_members(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v,
                  const Path *p, int depth, bool *known)
{
	json_t *one;
	const json_t *other;
	const char *name;
	size_t i;

	if (!strcmp(key, "required")) {
		json_array_foreach (schema_mutable(v), i, one)
			if (json_is_string(one))
				schema_add(s, out,
				           schema_property(s, json_string_value(one), json_false(),
				                           false));
		return true;
	}
	if (!strcmp(key, "properties") || !strcmp(key, HELD)) {
		json_object_foreach (schema_mutable(v), name, one) {
			if (!(other = negated(s, one, p, depth + 1)))
				return false;
			if (!json_is_false(other))
				schema_add(s, out, schema_property(s, name, other, true));
		}
		return true;
	}
	if (!strcmp(key, "patternProperties")) {
		json_object_foreach (schema_mutable(v), name, one) {
			if (!(other = negated(s, one, p, depth + 1)))
				return false;
			add_member(
			    s, out,
			    of_type(s, "string", "pattern", schema_keep(s, json_string(name))),
			    other);
		}
		return true;
	}
	if (!strcmp(key, "additionalProperties")) {
		if ((other = negated(s, v, p, depth + 1)))
			add_member(s, out, other_keys(s, o), other);
		return other;
	}
	if (!strcmp(key, "propertyNames")) {
		if ((other = negated(s, v, p, depth + 1)))
			add_member(s, out, other, json_true());
		return other;
	}
	if (!strcmp(key, "dependentRequired") || !strcmp(key, "dependentSchemas") ||
	    !strcmp(key, "dependencies"))
		return add_other_dependency(s, out, v, p, depth);
	*known = false;
	return false;
}

/* Adds what breaks a keyword about the items of an array. Sets *known to false for another
 * keyword. */
static bool
add_other_items(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v,
                const Path *p, int depth, bool *known)
{
	const json_t *one;
	size_t i;

	if (!strcmp(key, "items"))
		return add_other_item(s, out, json_array_size(json_object_get(o, "prefixItems")),
		                      -1, v, p, depth);
	if (!strcmp(key, "prefixItems")) {
		json_array_foreach (schema_mutable(v), i, one)
			if (!add_other_item(s, out, i, (int)i + 1, one, p, depth))
				return false;
		return true;
	}
	if (!strcmp(key, COUNTS)) {
		json_array_foreach (schema_mutable(v), i, one)
			add_other_count(s, out, one);
		return true;
	}
	if (!strcmp(key, "uniqueItems"))
		return !json_is_true(v);
	*known = false;
	return false;
}

/* Adds what breaks a keyword about types, values, strings or numbers. Sets *known to false for
 * another keyword. */
static bool
add_other_kind(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v,
               const Path *p, int depth, bool *known)
{
	if (!strcmp(key, "type")) {
		int types = schema_types(s, o, p);
		const json_t *others = schema_other_types(s, types);
		if ((types & T_INTEGER) && !(types & T_NUMBER))
			schema_add(s, out, of_type(s, "number", FRACTION, json_true()));
		if (!json_is_false(others))
			schema_add(s, out, others);
		return true;
	}
	if (!strcmp(key, "nullable")) /* part of `type` */
		return true;
	if (!strcmp(key, "const"))
		return add_other_values(s, out, schema_keep(s, json_pack("[O]", v)), p, depth);
	if (!strcmp(key, "enum"))
		return json_is_array(v) && add_other_values(s, out, v, p, depth);
	if (!strcmp(key, "pattern") || !strcmp(key, "format")) {
		const char *text = json_string_value(v);
		if (text && *key == 'f' && !format_is_standard(text))
			return true;
		text = text && *key == 'f' ? format_regex(text) : text;
		if (text)
			schema_add(s, out,
			           of_type(s, "string", NOT_PATTERNS,
			                   schema_keep(s, json_pack("[s]", text))));
		return text;
	}
	if (!strcmp(key, "multipleOf")) {
		schema_add(
		    s, out,
		    of_type(s, "number", NOT_MULTIPLES, schema_keep(s, json_pack("[O]", v))));
		return true;
	}
	*known = false;
	return false;
}

/* Adds schemas of the values that a keyword of o excludes. Returns false if they are not known. */
static bool
add_excluded(Schema *s, json_t *out, const json_t *o, const char *key, const json_t *v,
             const Path *p, int depth)
{
	static bool (*const parts[])(
	    Schema *, json_t *, const json_t *, const char *, const json_t *, const Path *, int,
	    bool *) = { add_other_kind, add_other_members, add_other_items };

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		bool known = true, added = parts[i](s, out, o, key, v, p, depth, &known);
		if (known)
			return added;
	}
	if (!strcmp(key, "allOf"))
		return add_all_negated(s, out, v, p, depth);
	if (!strcmp(key, "anyOf")) {
		json_t *all = schema_keep(s, json_array());
		if (!add_all_negated(s, all, v, p, depth))
			return false;
		if (json_array_size(all) == json_array_size(v))
			schema_add(s, out, schema_keep(s, json_pack("{s:O}", "allOf", all)));
		return true;
	}
	if (!strcmp(key, "oneOf"))
		return add_not_one(s, out, v, p, depth);
	if (!strcmp(key, "if"))
		return add_other_branch(s, out, o, p, depth);
	if (!strcmp(key, "then") || !strcmp(key, "else"))
		return true;
	if (!strcmp(key, "not")) {
		schema_add(s, out, v);
		return true;
	}
	if (!strcmp(key, "$ref")) {
		const json_t *other = negated(s, schema_target(s, v, p), p, depth + 1);
		if (other && !json_is_false(other))
			schema_add(s, out, other);
		return other;
	}
	return add_other_bound(s, out, o, key, v);
}

static const json_t *
negate_object(Schema *s, const json_t *v, const Path *p, int depth)
{
	json_t *out = schema_keep(s, json_array()), *x;
	const char *key;

	/* the members that are evaluated depend on the value */
	if ((json_object_get(v, "unevaluatedProperties") ||
	     json_object_get(v, "unevaluatedItems")) &&
	    (json_object_get(v, "$ref") || json_object_get(v, "allOf") ||
	     json_object_get(v, "anyOf") || json_object_get(v, "oneOf") ||
	     schema_has_conditions(v)))
		return NULL;
	v = schema_plain(s, schema_static_ref(s, v), false);
	json_object_foreach (schema_mutable(v), key, x)
		if (!schema_is_annotation(key) && !add_excluded(s, out, v, key, x, p, depth))
			return NULL;
	return schema_any_of(s, out);
}

/* Alternatives of a negation, which bounds the time that a schema takes to compile. */
static size_t
max_ways(const Schema *s)
{
	return s->b->opt.strict ? 8 * MAX_WAYS : MAX_WAYS;
}

/* Each schema is negated once. One that contains itself has {"not": ...} inside, which is resolved
 * when it is visited. */
static const json_t *
negated(Schema *s, const json_t *v, const Path *p, int depth)
{
	build_work(s->b);
	if (json_is_boolean(v))
		return json_is_true(v) ? json_false() : json_true();
	if (!json_is_object(v) || depth > MAX_NOT_DEPTH)
		return NULL;
	const size_t k = schema_bucket(v);
	for (Negation *x = s->negation[k]; x; x = x->next) {
		if (x->v != v)
			continue;
		if (x->done)
			return x->result;
		if (!x->later)
			x->later = schema_keep(s, json_pack("{s:O}", "not", v));
		return x->later;
	}
	if (++s->n_merged > MAX_MERGED)
		return NULL;
	Negation *x = NEW(s->b->a, Negation, 1);
	*x = (Negation){ .v = v, .next = s->negation[k] };
	s->negation[k] = x;
	x->result = negate_object(s, v, p, depth);
	if (x->result && schema_ways(s, x->result, p) > max_ways(s))
		x->result = NULL;
	x->done = true;
	return x->result;
}

const json_t *
schema_negated(Schema *s, const json_t *v, const Path *p)
{
	return negated(s, v, p, 0);
}

const json_t *
schema_negated_of(Schema *s, const json_t *v, int types, const Path *p)
{
	const json_t *all = schema_negated(s, v, p), *list = json_object_get(all, "anyOf"), *one;
	json_t *out = schema_keep(s, json_array());
	size_t i;

	if (!all)
		return NULL;
	types |= types & (T_NUMBER | T_INTEGER) ? T_NUMBER | T_INTEGER : 0;
	const json_t *others = schema_other_types(s, types);
	if (!json_is_false(others))
		schema_add(s, out, others);
	json_array_foreach (schema_mutable(list), i, one)
		if (schema_listed_types(s, one, p) & types)
			schema_add(s, out, one);
	if (!list && !json_is_boolean(all) && schema_listed_types(s, all, p) & types)
		schema_add(s, out, all);
	return json_is_true(all) ? all : schema_any_of(s, out);
}
