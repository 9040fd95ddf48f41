/* Keywords that need negations: not, if/then/else, dependentRequired, dependentSchemas,
 * dependencies, and oneOf where options overlap. Each becomes an anyOf of schemas without these
 * keywords. */
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum {
	MAX_CONDITIONS = 64,
	/* without `strict`: alternatives of one option of a oneOf, and of all together */
	MAX_WAYS = 64,
	MAX_EXCLUSIVE = 1000,
	MAX_WAYS_DEPTH = 12,
	MAX_WAYS_VISITS = 20000,
	MANY_WAYS = 4096, /* above all limits */
};

static const json_t *
any_of_two(Schema *s, const json_t *a, const json_t *b)
{
	json_t *list = schema_keep(s, json_array());

	if (!json_is_false(a))
		schema_add(s, list, a);
	if (!json_is_false(b))
		schema_add(s, list, b);
	return schema_any_of(s, list);
}

/* The condition as anyOf; NULL: its negation has no schema. Without then and else it only evaluates
 * members, which matters if `evaluates`. */
static const json_t *
condition(Schema *s, const json_t *c, bool evaluates, const Path *p)
{
	const json_t *test = json_object_get(c, "if"), *then = json_object_get(c, "then"),
	             *other = json_object_get(c, "else");

	if (!test || (!then && !other && !evaluates))
		return json_true();
	const json_t *inverse = schema_negated(s, test, p);
	return inverse
	           ? any_of_two(s, schema_all_of(s, test, then), schema_all_of(s, inverse, other))
	           : NULL;
}

/* "If the property is there, `then` holds." */
static const json_t *
dependency(Schema *s, const char *name, const json_t *then)
{
	const json_t *absent = schema_property(s, name, json_false(), false);
	json_t *there = schema_keep(
	    s, json_pack("{s:s,s:[s],s:b}", "type", "object", "required", name, UNORDERED, 1));

	if (json_is_array(then)) {
		json_t *all = schema_keep(s, json_copy(schema_mutable(then)));
		schema_add(s, all, schema_keep(s, json_string(name)));
		schema_set(s, there, "required", all);
	} else {
		there = schema_mutable(schema_all_of(s, there, then));
	}
	return schema_keep(
	    s, json_pack("{s:[O,O,O]}", "anyOf", absent, there, schema_other_types(s, T_OBJECT)));
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

static bool
contains_not(const json_t *v, int depth)
{
	const json_t *one;
	const char *key;
	size_t i;

	if (depth > MAX_SCHEMA_NEST)
		return true;
	json_array_foreach (schema_mutable(v), i, one)
		if (contains_not(one, depth + 1))
			return true;
	json_object_foreach (schema_mutable(v), key, one)
		if (!strcmp(key, "not") || !strcmp(key, "oneOf") || !strcmp(key, "if") ||
		    !strcmp(key, "$ref") || contains_not(one, depth + 1))
			return true;
	return false;
}

bool
schema_hides_evaluated(const json_t *v)
{
	const json_t *one;
	size_t i;

	json_array_foreach (json_object_get(v, MORE_CONDITIONS), i, one)
		if (contains_not(json_object_get(one, "if"), 0))
			return true;
	return contains_not(json_object_get(v, "not"), 0) ||
	       contains_not(json_object_get(v, "if"), 0);
}

const json_t *
schema_without_conditions(Schema *s, const json_t *v)
{
	if (!json_is_object(v) || !schema_has_conditions(v))
		return v;
	json_t *rest = schema_keep(s, json_copy(schema_mutable(v)));
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
		out = conjoin(s, out, "not", schema_negated(s, no, p), p, depth);
	const bool evaluates =
	    json_object_get(v, LATE_PROPERTIES) || json_object_get(v, LATE_ITEMS);
	out = conjoin(s, out, "if", condition(s, v, evaluates, p), p, depth);
	json_array_foreach (json_object_get(v, MORE_CONDITIONS), i, one)
		out = conjoin(s, out, "if", condition(s, one, evaluates, p), p, depth);
	static const char *const depends[] = { "dependentRequired", "dependentSchemas",
		                               "dependencies" };
	for (int k = 0; k < 3; k++)
		json_object_foreach (json_object_get(v, depends[k]), name, one) {
			if (json_is_true(one) || (json_is_array(one) && !json_array_size(one)))
				continue;
			const json_t *list =
			    json_is_string(one) ? schema_keep(s, json_pack("[O]", one)) : one;
			out = conjoin(s, out, depends[k], dependency(s, name, list), p, depth);
		}
	return out;
}

static size_t
few_ways(size_t n)
{
	return n < MANY_WAYS ? n : MANY_WAYS;
}

/* Alternatives are counted up to MANY_WAYS, in at most `left` schemas. */
static size_t
count_ways(Schema *s, const json_t *v, const Path *p, int depth, int *left)
{
	static const char *const sums[] = { "anyOf", "oneOf" };
	const json_t *one, *ref = json_object_get(v, "$ref");
	size_t i, ways = 1;

	if (depth > MAX_WAYS_DEPTH)
		return 1;
	build_work(s->b);
	if (--*left < 0)
		return MANY_WAYS;
	for (int k = 0; k < 2; k++) {
		size_t sum = 0;
		json_array_foreach (json_object_get(v, sums[k]), i, one)
			if (sum < MANY_WAYS)
				sum += count_ways(s, one, p, depth + 1, left);
		ways = few_ways(ways * (sum ? sum : 1));
	}
	json_array_foreach (json_object_get(v, "allOf"), i, one)
		if (ways < MANY_WAYS)
			ways = few_ways(ways * count_ways(s, one, p, depth + 1, left));
	if (ref && ways < MANY_WAYS)
		ways = few_ways(ways * count_ways(s, schema_target(s, ref, p), p, depth + 1, left));
	return ways;
}

size_t
schema_ways(Schema *s, const json_t *v, const Path *p)
{
	int left = MAX_WAYS_VISITS;

	return count_ways(s, v, p, 0, &left);
}

/* Options of a oneOf that overlap become disjoint by excluding the other ones; NULL: the negation
 * of an option has no schema, or there would be too many alternatives. */
const json_t *
schema_exclusive(Schema *s, const json_t *list, const uint8_t *overlap, const Path *p)
{
	size_t n = json_array_size(list), total = 0;
	json_t *out = schema_keep(s, json_array());

	for (size_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(list, i);
		size_t ways = 1;
		for (size_t k = 0; k < n; k++) {
			if (!overlap[i * n + k])
				continue;
			const json_t *other =
			    schema_negated_of(s, json_array_get(list, k), overlap[i * n + k], p);
			if (!other)
				return NULL;
			ways *= schema_ways(s, other, p);
			if (ways > MAX_WAYS && !s->b->opt.strict)
				return NULL;
			x = schema_all_of(s, x, other);
		}
		total += ways;
		schema_add(s, out, x);
	}
	s->n_exclusive += total;
	return s->n_exclusive > MAX_EXCLUSIVE && !s->b->opt.strict ? NULL : out;
}
