/* Merges several schemas of one value into one. */
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum { MAX_NEST = 40, MAX_OPTIONS = 1000, MAX_SMALL = 12 };

/* Is a keyword an annotation? The list has all keywords that restrict values, or that definitions
 * of other keywords need. */
bool
schema_is_annotation(const char *key)
{
	static const char *const words[] = {
		"$ref",
		"$dynamicRef",
		"$recursiveRef",
		"type",
		"nullable",
		"enum",
		"const",
		"allOf",
		"anyOf",
		"oneOf",
		"not",
		"if",
		"then",
		"else",
		"properties",
		"patternProperties",
		"additionalProperties",
		"unevaluatedProperties",
		"propertyNames",
		"required",
		"minProperties",
		"maxProperties",
		"dependentRequired",
		"dependentSchemas",
		"dependencies",
		"items",
		"prefixItems",
		"additionalItems",
		"unevaluatedItems",
		"contains",
		"minContains",
		"maxContains",
		"minItems",
		"maxItems",
		"uniqueItems",
		"pattern",
		"format",
		"minLength",
		"maxLength",
		"minimum",
		"maximum",
		"exclusiveMinimum",
		"exclusiveMaximum",
		"multipleOf",
		LATE_PROPERTIES,
		MORE_PATTERNS,
		MORE_FORMATS,
		MORE_CONDITIONS,
		NOT_PATTERNS,
		NOT_VALUES,
		FRACTION,
		HELD,
		SOME_MEMBERS,
		FOUND_MEMBERS,
		COUNTS,
		MORE_MULTIPLES,
		NOT_MULTIPLES,
		LATE_ITEMS,
	};

	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(key, words[i]))
			return false;
	return true;
}

bool
schema_constrains(const json_t *o, const char *but)
{
	const json_t *v;
	const char *key;

	json_object_foreach ((json_t *)(uintptr_t)o, key, v)
		if (!schema_is_annotation(key) && (!but || strcmp(key, but) != 0))
			return true;
	return false;
}

const json_t *
schema_without(Schema *s, const json_t *o, const char *key)
{
	json_t *v = json_copy((json_t *)(uintptr_t)o);

	schema_keep(s, v);
	json_object_del(v, key);
	return v;
}

/* Intersects two lists. For types, integer is contained in number. */
static const json_t *
common(Schema *s, const json_t *a, const json_t *b, bool types)
{
	json_t *out = json_array(), *x, *y;
	size_t i, k;

	schema_keep(s, out);
	json_t *la = json_is_array(a) ? (json_t *)(uintptr_t)a : json_pack("[O]", a),
	       *lb = json_is_array(b) ? (json_t *)(uintptr_t)b : json_pack("[O]", b);
	if (!json_is_array(a))
		schema_keep(s, la);
	if (!json_is_array(b))
		schema_keep(s, lb);
	json_array_foreach (la, i, x)
		json_array_foreach (lb, k, y) {
			const char *p = json_string_value(x), *q = json_string_value(y);
			json_t *both = schema_equal(x, y) ? x : NULL;
			if (types && p && q && !strcmp(p, "integer") && !strcmp(q, "number"))
				both = x;
			if (types && p && q && !strcmp(p, "number") && !strcmp(q, "integer"))
				both = y;
			if (both && json_array_append(out, both) != 0)
				arena_out(s->b->a);
		}
	return out;
}

static const json_t *
joined(Schema *s, const json_t *a, const json_t *b)
{
	json_t *out = json_copy((json_t *)(uintptr_t)a), *v;
	size_t i;

	schema_keep(s, out);
	if (!json_is_array(out) || !json_is_array(b))
		return json_is_array(out) ? out : b;
	json_array_foreach ((json_t *)(uintptr_t)b, i, v)
		if (json_array_append(out, v) != 0)
			arena_out(s->b->a);
	return out;
}

/* Is a schema small enough to be merged at once? Its size must not depend on other parts of the
 * document. */
static bool
is_small(const json_t *v, int *left)
{
	static const char *const nested[] = { "$ref",  "properties",  "patternProperties",
		                              "items", "prefixItems", "additionalProperties" };
	static const char *const lists[] = { "allOf", "anyOf", "oneOf" };
	const json_t *one;
	size_t i;

	if (--*left < 0)
		return false;
	for (i = 0; i < sizeof nested / sizeof *nested; i++)
		if (json_is_object(json_object_get(v, nested[i])) ||
		    json_is_string(json_object_get(v, nested[i])) ||
		    json_is_array(json_object_get(v, nested[i])))
			return false;
	for (int k = 0; k < 3; k++)
		json_array_foreach (json_object_get(v, lists[k]), i, one)
			if (!is_small(one, left))
				return false;
	return true;
}

/* Merges schemas of a part of a value. Larger schemas become one lazy schema per pair, which is
 * merged when it is visited, so that recursive schemas end. */
const json_t *
schema_merge_later(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	int left = MAX_SMALL;

	if (json_is_false(a) || json_is_true(b) || a == b)
		return a;
	if (json_is_false(b) || json_is_true(a))
		return b;
	if (is_small(a, &left) && is_small(b, &left))
		return schema_merge(s, a, b, p, depth + 1);
	size_t k = (((uintptr_t)a >> 4) * 31 + ((uintptr_t)b >> 4)) % N_REF_BUCKET;
	for (SchemaPair *x = s->pair[k]; x; x = x->next)
		if (x->a == a && x->b == b)
			return x->both;
	if (++s->n_merged > MAX_MERGED)
		schema_fail(s, p, "allOf", "there are too many schemas to merge");
	SchemaPair *x = NEW(s->b->a, SchemaPair, 1);
	*x = (SchemaPair){ a, b,
		           json_pack("{s:[O,O],s:b}", "allOf", (json_t *)(uintptr_t)a,
		                     (json_t *)(uintptr_t)b, LAZY, 1),
		           s->pair[k] };
	schema_keep(s, x->both);
	s->pair[k] = x;
	return x->both;
}

/* Merges each alternative of a with each alternative of b. */
static const json_t *
crossed(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	json_t *out = json_array(), *x, *y;
	size_t i, k;

	schema_keep(s, out);
	if (json_array_size(a) * json_array_size(b) > MAX_OPTIONS)
		schema_fail(s, p, "anyOf", "too many combinations of options");
	json_array_foreach ((json_t *)(uintptr_t)a, i, x)
		json_array_foreach ((json_t *)(uintptr_t)b, k, y) {
			const json_t *one = schema_merge(s, x, y, p, depth + 1);
			if (!json_is_false(one) &&
			    json_array_append(out, (json_t *)(uintptr_t)one) != 0)
				arena_out(s->b->a);
		}
	return out;
}

/* Returns the schema of o for an unlisted property: merged matches of patternProperties, or
 * additionalProperties; NULL: anything. */
const json_t *
schema_unlisted(Schema *s, const json_t *o, const char *name, const Path *p, int depth)
{
	const json_t *out = NULL, *v;
	const char *pattern;

	json_object_foreach (json_object_get(o, "patternProperties"), pattern, v)
		if (schema_fits(s, pattern, name, p))
			out = out ? schema_merge_later(s, out, v, p, depth) : v;
	return out ? out : json_object_get(o, "additionalProperties");
}

const json_t *
schema_member(Schema *s, const json_t *o, const char *name, const Path *p, int depth)
{
	const json_t *v = json_object_get(json_object_get(o, "properties"), name),
	             *held = json_object_get(json_object_get(o, HELD), name), *more;

	if (!v)
		v = schema_unlisted(s, o, name, p, depth);
	else if (json_object_get(o, "patternProperties") &&
	         (more = schema_unlisted(s, o, name, p, depth)) &&
	         more != json_object_get(o, "additionalProperties"))
		v = schema_merge_later(s, v, more, p, depth);
	return v && held ? schema_merge_later(s, v, held, p, depth) : held ? held : v;
}

static const json_t *
properties(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
	json_t *out = json_object(), *v;
	const char *key;

	schema_keep(s, out);
	json_object_foreach ((json_t *)(uintptr_t)pa, key, v) {
		const json_t *other = json_object_get(pb, key);
		other = other ? other : schema_unlisted(s, b, key, p, depth);
		schema_set(s, out, key, other ? schema_merge_later(s, v, other, p, depth) : v);
	}
	json_object_foreach ((json_t *)(uintptr_t)pb, key, v)
		if (!json_object_get(pa, key)) {
			const json_t *other = schema_unlisted(s, a, key, p, depth);
			schema_set(s, out, key,
			           other ? schema_merge_later(s, other, v, p, depth) : v);
		}
	return out;
}

/* Merges two arrays item by item. Beyond the shorter of the two prefixItems, the `items` of that
 * schema applies. */
static void
tuples(Schema *s, json_t *out, const json_t *a, const json_t *b, const Path *p, int depth)
{
	const json_t *la = json_object_get(a, "prefixItems"),
	             *lb = json_object_get(b, "prefixItems"), *ra = json_object_get(a, "items"),
	             *rb = json_object_get(b, "items");
	size_t n =
	    json_array_size(la) > json_array_size(lb) ? json_array_size(la) : json_array_size(lb);
	json_t *list = json_array();

	schema_keep(s, list);
	for (size_t i = 0; i < n; i++) {
		const json_t *x = i < json_array_size(la) ? json_array_get(la, i) : ra,
		             *y = i < json_array_size(lb) ? json_array_get(lb, i) : rb;
		const json_t *both = x && y ? schema_merge_later(s, x, y, p, depth)
		                     : x    ? x
		                     : y    ? y
		                            : json_true();
		if (json_array_append(list, (json_t *)(uintptr_t)both) != 0)
			arena_out(s->b->a);
	}
	schema_set(s, out, "prefixItems", list);
}

/* Merges two objects key by key. */
static const json_t *
by_key(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	json_t *out = json_copy((json_t *)(uintptr_t)a), *v;
	const char *key;

	schema_keep(s, out);
	json_object_foreach ((json_t *)(uintptr_t)b, key, v) {
		const json_t *own = json_object_get(a, key);
		schema_set(s, out, key, own ? schema_merge_later(s, own, v, p, depth) : v);
	}
	return out;
}

static const json_t *
one_keyword(Schema *s, const char *key, const json_t *a, const json_t *b, const json_t *x,
            const json_t *y, const Path *p, int depth)
{
	static const char *const largest[] = { "minimum",  "exclusiveMinimum", "minLength",
		                               "minItems", "minProperties",    NULL };
	static const char *const smallest[] = { "maximum",  "exclusiveMaximum", "maxLength",
		                                "maxItems", "maxProperties",    NULL };

	for (int i = 0; largest[i]; i++) {
		if (!strcmp(key, largest[i]))
			return json_number_of(x) >= json_number_of(y) ? x : y;
		if (!strcmp(key, smallest[i]))
			return json_number_of(x) <= json_number_of(y) ? x : y;
	}
	if (!strcmp(key, "type"))
		return common(s, x, y, true);
	if (!strcmp(key, "enum"))
		return common(s, x, y, false);
	if (!strcmp(key, "required"))
		return joined(s, x, y);
	if (!strcmp(key, "properties"))
		return properties(s, a, b, p, depth);
	if (!strcmp(key, "patternProperties") || !strcmp(key, HELD))
		return by_key(s, x, y, p, depth);
	if (!strcmp(key, "prefixItems"))
		return x; /* tuples() sets this keyword */
	if (!strcmp(key, "additionalProperties") || !strcmp(key, LATE_PROPERTIES) ||
	    !strcmp(key, LATE_ITEMS) || !strcmp(key, "propertyNames") ||
	    (!strcmp(key, "items") && !json_is_array(x) && !json_is_array(y)))
		return schema_merge_later(s, x, y, p, depth);
	if (!strcmp(key, "anyOf"))
		return crossed(s, x, y, p, depth);
	if (!strcmp(key, "uniqueItems") || !strcmp(key, "nullable"))
		return json_is_true(x) ? x : y;
	if (json_equal((json_t *)(uintptr_t)x, (json_t *)(uintptr_t)y))
		return x;
	if (!strcmp(key, "const"))
		return schema_equal(x, y) ? x : NULL; /* two different values: no value matches */
	if (!strcmp(key, "multipleOf") && json_is_integer(x) && json_is_integer(y) &&
	    json_integer_value(x) > 0 && json_integer_value(y) > 0) {
		json_int_t m = json_integer_value(x), n = json_integer_value(y), g = m, r = n;
		while (r) {
			json_int_t t = g % r;
			g = r;
			r = t;
		}
		if (m / g <= 1000000000 / n)
			return schema_keep(s, json_integer(m / g * n));
	}
	if (!strcmp(key, "pattern") || !strcmp(key, "format") || !strcmp(key, "multipleOf"))
		return x; /* more_values() keeps the other one */
	if (!strcmp(key, COUNTS) || !strcmp(key, SOME_MEMBERS) || !strcmp(key, FOUND_MEMBERS) ||
	    !strcmp(key, MORE_MULTIPLES) || !strcmp(key, NOT_MULTIPLES) ||
	    !strcmp(key, MORE_PATTERNS) || !strcmp(key, MORE_FORMATS) ||
	    !strcmp(key, NOT_PATTERNS) || !strcmp(key, NOT_VALUES) || !strcmp(key, MORE_CONDITIONS))
		return joined(s, x, y);
	if (!s->b->opt.strict)
		return x;
	schema_fail(s, p, key,
	            "two schemas of one value differ in this keyword and cannot be merged");
}

/* The second pattern, format and divisor go to lists. */
static void
more_values(Schema *s, json_t *out, const json_t *a, const json_t *b)
{
	static const char *const keys[] = { "pattern", "format", "multipleOf" }, *const more[] = {
		MORE_PATTERNS, MORE_FORMATS, MORE_MULTIPLES
	};

	for (int i = 0; i < 3; i++) {
		json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
		if (!x || !y || json_equal(x, y) || json_object_get(out, keys[i]) != x)
			continue;
		const json_t *list = json_object_get(out, more[i]),
		             *one = schema_keep(s, json_pack("[O]", y));
		schema_set(s, out, more[i], list ? joined(s, list, one) : one);
	}
}

static bool
lists_members(const json_t *o)
{
	return json_object_get(o, "properties") || json_object_get(o, "required") ||
	       json_object_get(o, HELD) || json_object_get(o, UNORDERED);
}

static bool
is_object_only(const json_t *type)
{
	const json_t *one = json_array_size(type) == 1 ? json_array_get(type, 0) : type;

	return json_is_string(one) && !strcmp(json_string_value(one), "object");
}

/* Is there a required property that can have no value? */
static bool
requires_nothing(const json_t *o)
{
	const json_t *v;
	size_t i;

	json_array_foreach (json_object_get(o, "required"), i, v) {
		const char *name = json_string_value(v);
		if (name &&
		    (json_is_false(json_object_get(json_object_get(o, "properties"), name)) ||
		     json_is_false(json_object_get(json_object_get(o, HELD), name))))
			return true;
	}
	return false;
}

const json_t *
schema_merge(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	const json_t *y;
	const char *key;

	build_work(s->b);
	if (depth > MAX_NEST || ++s->n_merged > MAX_MERGED)
		schema_fail(s, p, "allOf",
		            "schemas of one value are nested too deeply or recursively");
	a = schema_flat(s, a, p, depth + 1);
	b = schema_flat(s, b, p, depth + 1);
	if (json_is_false(a) || json_is_true(b))
		return a;
	if (json_is_false(b) || json_is_true(a))
		return b;
	json_t *out = json_copy((json_t *)(uintptr_t)a);
	schema_keep(s, out);
	json_object_foreach ((json_t *)(uintptr_t)b, key, y) {
		const json_t *x = json_object_get(a, key);
		if (schema_is_annotation(key) || !x) {
			if (!x && !strcmp(key, "properties"))
				y = properties(s, a, b, p, depth);
			if (!x)
				schema_set(s, out, key, y);
			continue;
		}
		const json_t *both = one_keyword(s, key, a, b, x, y, p, depth);
		if (!both)
			return json_false();
		schema_set(s, out, key, both);
	}
	/* properties listed in one schema and restricted by additionalProperties of the other */
	if (json_object_get(a, "properties") && !json_object_get(b, "properties"))
		schema_set(s, out, "properties", properties(s, a, b, p, depth));
	if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems"))
		tuples(s, out, a, b, p, depth);
	more_values(s, out, a, b);
	json_object_del(out, LAZY);
	if (lists_members(a) && lists_members(b))
		schema_set(s, out, UNORDERED, json_true());
	/* one has regexes, the other a schema for all other keys */
	for (int i = 0; i < 2; i++)
		if (json_object_get(i ? b : a, "patternProperties") &&
		    !json_is_true(json_object_get(i ? a : b, "additionalProperties")) &&
		    json_object_get(i ? a : b, "additionalProperties"))
			schema_not_enforced(s, out, "patternProperties", p);
	const json_t *type = json_object_get(out, "type");
	if ((json_is_array(type) && !json_array_size(type)) ||
	    (json_is_array(json_object_get(out, "anyOf")) &&
	     !json_array_size(json_object_get(out, "anyOf"))))
		return json_false();
	if (requires_nothing(out) && is_object_only(type))
		return json_false();
	return out;
}

/* Moves `contains` and its limits to COUNTS. */
static void
move_contains(Schema *s, json_t *o)
{
	static const char *const limits[][2] = { { "minContains", "min" },
		                                 { "maxContains", "max" } };
	const json_t *item = json_object_get(o, "contains"), *list = json_object_get(o, COUNTS);
	json_t *count =
	    json_pack("{s:O,s:i,s:b}", "item", schema_mutable(item), "min", 1, "evaluates", 1);

	schema_keep(s, count);
	for (int i = 0; i < 2; i++)
		if (json_object_get(o, limits[i][0]))
			schema_set(s, count, limits[i][1], json_object_get(o, limits[i][0]));
	const json_t *one = schema_keep(s, json_pack("[O]", count));
	schema_set(s, o, COUNTS, list ? joined(s, list, one) : one);
	json_object_del(o, "contains");
}

/* Turns LATE_ITEMS into `items` once everything that evaluates items is merged. */
static void
close_items(Schema *s, json_t *o)
{
	const json_t *rest = json_object_get(o, LATE_ITEMS), *v;
	size_t i;

	if (!json_object_get(o, "items")) {
		json_t *any = json_pack("{s:[O]}", "anyOf", schema_mutable(rest));
		schema_keep(s, any);
		json_array_foreach (json_object_get(o, COUNTS), i, v)
			if (json_object_get(v, "evaluates"))
				schema_add(s, json_object_get(any, "anyOf"),
				           json_object_get(v, "item"));
		schema_set(s, o, "items",
		           json_array_size(json_object_get(any, "anyOf")) > 1 ? any : rest);
	}
	json_object_del(o, LATE_ITEMS);
}

const json_t *
schema_plain(Schema *s, const json_t *v, bool options)
{
	static const char *const keys[] = { "unevaluatedProperties", "unevaluatedItems",
		                            "additionalItems",       "contains",
		                            "minContains",           "maxContains" };
	const json_t *items = json_object_get(v, "items"),
	             *late = json_object_get(v, "unevaluatedProperties"),
	             *rest = json_object_get(v, "unevaluatedItems");
	bool some = json_is_array(items);

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		some |= json_object_get(v, keys[i]) != NULL;
	if (!some)
		return v;
	json_t *out = json_copy(schema_mutable(v));
	schema_keep(s, out);
	if (json_is_array(items)) {
		const json_t *more = json_object_get(v, "additionalItems");
		schema_set(s, out, "prefixItems", items);
		json_object_del(out, "items");
		if (more)
			schema_set(s, out, "items", more);
	}
	if (json_object_get(out, "contains"))
		move_contains(s, out);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		json_object_del(out, keys[i]);
	if (late && !json_object_get(out, "additionalProperties"))
		schema_set(s, out, options ? LATE_PROPERTIES : "additionalProperties", late);
	if (rest && !json_object_get(out, "items")) {
		schema_set(s, out, LATE_ITEMS, rest);
		if (!options)
			close_items(s, out);
	}
	return out;
}

const json_t *
schema_closed(Schema *s, const json_t *v)
{
	const json_t *late = json_object_get(v, LATE_PROPERTIES);

	if (json_object_get(v, "anyOf") || (!late && !json_object_get(v, LATE_ITEMS)))
		return v;
	json_t *closed = json_copy(schema_mutable(v));
	schema_keep(s, closed);
	json_object_del(closed, LATE_PROPERTIES);
	if (late && !json_object_get(closed, "additionalProperties"))
		schema_set(s, closed, "additionalProperties", late);
	if (json_object_get(closed, LATE_ITEMS))
		close_items(s, closed);
	return closed;
}

const json_t *
schema_flat(Schema *s, const json_t *v, const Path *p, int depth)
{
	const json_t *part;
	size_t i;

	if (json_is_boolean(v))
		return v;
	v = schema_static_ref(s, v);
	const json_t *ref = json_object_get(v, "$ref"), *all = json_object_get(v, "allOf"),
	             *one = json_object_get(v, "oneOf");
	if (!json_is_object(v))
		schema_fail(s, p, NULL, "expected a schema: an object, true or false");
	if (depth > MAX_NEST)
		schema_fail(s, p, ref ? "$ref" : "allOf",
		            "schemas of one value are nested too deeply or recursively");
	if (!ref && !all && !one && !json_object_get(v, "anyOf") && !schema_has_conditions(v))
		return schema_plain(s, v, false);
	/* in a schema that will be merged, the set of evaluated members is no longer known */
	if ((json_object_get(v, "unevaluatedItems") ||
	     json_object_get(v, "unevaluatedProperties")) &&
	    (schema_hides_evaluated(v) ||
	     (depth > 0 && (json_object_get(v, "anyOf") || one || schema_has_conditions(v))))) {
		schema_not_enforced(s, v, "unevaluatedItems", p);
		schema_not_enforced(s, v, "unevaluatedProperties", p);
	}
	v = schema_plain(s, v, true);
	if (!ref && !all && !one)
		return schema_closed(
		    s, schema_conditions(s, schema_without_conditions(s, v), v, p, depth));
	json_t *rest = json_copy((json_t *)(uintptr_t)v);
	schema_keep(s, rest);
	json_object_del(rest, "$ref");
	json_object_del(rest, "allOf");
	json_object_del(rest, "oneOf");
	json_object_del(rest, LAZY);
	const json_t *out = schema_without_conditions(s, rest);
	if (all && !json_is_array(all))
		schema_fail(s, p, "allOf", "expected an array of schemas");
	if (one && !json_is_array(one))
		schema_fail(s, p, "oneOf", "expected an array of schemas");
	if (ref)
		out = schema_merge(s, out, schema_target(s, ref, p), p, depth + 1);
	json_array_foreach ((json_t *)(uintptr_t)all, i, part)
		out = schema_merge(s, out, part, p, depth + 1);
	if (one && !s->asked)
		one = schema_one_of(s, out, one, p);
	if (one) {
		json_t *any = json_object();
		schema_keep(s, any);
		schema_set(s, any, "anyOf", one);
		out = schema_merge(s, out, any, p, depth + 1);
	}
	/* last, so that the properties of conditions do not come first */
	out = schema_conditions(s, out, rest, p, depth);
	return schema_closed(s, out);
}
