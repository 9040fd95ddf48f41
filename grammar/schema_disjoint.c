/* Detects schemas that have no value in common, by a simple check that may miss some. If the
 * alternatives of a oneOf are pairwise disjoint, the oneOf is equal to an anyOf. */
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum { MAX_DEPTH_ASKED = 6, MAX_ASKED = 50000, MAX_FITS = 20000 };

bool
schema_fits(Schema *s, const char *pattern, const char *name, const Path *p)
{
	build_work(s->b);
	if (++s->n_fits > MAX_FITS) {
		if (s->b->opt.strict)
			schema_fail(s, p, "patternProperties",
			            "there are too many names and expressions to compare, and the "
			            "schema is strict");
		return false;
	}
	NameMatch match = json_schema_name_matches(pattern, name);
	if (match == NAME_NO_MEMORY)
		arena_out(s->b->a);
	if (match == NAME_UNDECIDED && s->b->opt.strict)
		schema_fail(s, p, "patternProperties",
		            "cannot decide whether the name '%.60s' matches '%.100s'", name,
		            pattern);
	return match == NAME_MATCHES;
}

int
schema_listed_types(Schema *s, const json_t *o, const Path *p)
{
	int types = json_object_get(o, "type") ? schema_types(s, o, p) : T_ALL;

	return types & T_NUMBER ? types | T_INTEGER : types;
}

/* Could two values be equal? True for arrays and objects, because numbers in them have several
 * spellings. */
static bool
may_be_equal(json_t *x, json_t *y)
{
	if (json_is_any_number(x) && json_is_any_number(y))
		return !(json_number_of(x) < json_number_of(y)) &&
		       !(json_number_of(x) > json_number_of(y));
	if ((json_is_object(x) && json_is_object(y)) || (json_is_array(x) && json_is_array(y)))
		return true;
	return json_equal(x, y);
}

/* Returns whether o may accept v; true if unknown. */
static bool
may_take(Schema *s, const json_t *o, json_t *v, const Path *p)
{
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum");
	json_t *x;
	size_t i;
	bool among = !json_is_array(list);

	if (one && !may_be_equal((json_t *)(uintptr_t)one, v))
		return false;
	json_array_foreach ((json_t *)(uintptr_t)list, i, x)
		among |= may_be_equal(x, v);
	return among && schema_listed_types(s, o, p) & json_schema_type_of(v);
}

/* Returns whether no value of a's const or enum is accepted by b; false if a has neither. */
static bool
values_disjoint(Schema *s, const json_t *a, const json_t *b, const Path *p)
{
	json_t *one = json_object_get(a, "const"), *list = json_object_get(a, "enum"), *v;
	size_t i;

	if (one)
		return !may_take(s, b, one, p);
	if (!json_is_array(list))
		return false;
	json_array_foreach (list, i, v)
		if (may_take(s, b, v, p))
			return false;
	return true;
}

static bool
least_above(const json_t *a, const char *least, const json_t *b, const char *most, bool or_equal)
{
	const json_t *x = json_object_get(a, least), *y = json_object_get(b, most);

	return json_is_any_number(x) && json_is_any_number(y) &&
	       (json_number_of(x) > json_number_of(y) ||
	        (or_equal && !(json_number_of(x) < json_number_of(y))));
}

static bool
ranges_disjoint(const json_t *a, const json_t *b)
{
	return least_above(a, "minimum", b, "maximum", false) ||
	       least_above(a, "exclusiveMinimum", b, "maximum", true) ||
	       least_above(a, "minimum", b, "exclusiveMaximum", true) ||
	       least_above(a, "exclusiveMinimum", b, "exclusiveMaximum", true);
}

/* Returns whether a requires a property that b forbids, or that b requires with a disjoint
 * schema. */
static bool
members_disjoint(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	const json_t *list = json_object_get(a, "required"), *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
		const char *name = json_string_value(v);
		build_work_of(s->b, json_array_size(json_object_get(b, "required")));
		if (!name)
			continue;
		const json_t *mine = schema_member(s, a, name, p, 0),
		             *other = schema_member(s, b, name, p, 0);
		if (json_is_false(other) ||
		    (schema_lists_name(json_object_get(b, "required"), name) && mine && other &&
		     !schemas_common_types(s, mine, other, p, depth + 1)))
			return true;
	}
	return false;
}

static bool
of_type(Schema *s, int type, const json_t *a, const json_t *b, const Path *p, int depth)
{
	switch (type) {
	case T_INTEGER:
	case T_NUMBER:
		return ranges_disjoint(a, b) || ranges_disjoint(b, a);
	case T_STRING:
		return least_above(a, "minLength", b, "maxLength", false) ||
		       least_above(b, "minLength", a, "maxLength", false);
	case T_ARRAY:
		return least_above(a, "minItems", b, "maxItems", false) ||
		       least_above(b, "minItems", a, "maxItems", false);
	case T_OBJECT:
		return members_disjoint(s, a, b, p, depth) || members_disjoint(s, b, a, p, depth) ||
		       least_above(a, "minProperties", b, "maxProperties", false) ||
		       least_above(b, "minProperties", a, "maxProperties", false);
	default:
		return false;
	}
}

/* Types of the values that an alternative of a and b may have in common; T_ALL without
 * alternatives. */
static int
common_of_options(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	json_t *list = json_object_get(a, "anyOf"), *v;
	int types = 0;
	size_t i;

	if (!json_is_array(list))
		return T_ALL;
	json_array_foreach (list, i, v)
		types |= schemas_common_types(s, v, b, p, depth + 1);
	return types;
}

int
schemas_common_types(Schema *s, const json_t *a, const json_t *b, const Path *p, int depth)
{
	build_work(s->b);
	s->n_asked += json_object_get(a, "$ref") || json_object_get(b, "$ref") ||
	                      json_object_get(a, "allOf") || json_object_get(b, "allOf")
	                  ? 25
	                  : 1; /* merging copies them */
	if (depth > MAX_DEPTH_ASKED || s->n_asked > MAX_ASKED)
		return T_ALL;
	s->asked++; /* alternatives are checked when they are built */
	a = schema_flat(s, a, p, 1);
	b = schema_flat(s, b, p, 1);
	s->asked--;
	if (json_is_false(a) || json_is_false(b))
		return 0;
	if (json_is_true(a) || json_is_true(b))
		return T_ALL;
	if (values_disjoint(s, a, b, p) || values_disjoint(s, b, a, p))
		return 0;
	int both = schema_listed_types(s, a, p) & schema_listed_types(s, b, p), types = 0;
	for (int type = T_NULL; type <= T_OBJECT; type <<= 1)
		if (both & type && !of_type(s, type, a, b, p, depth))
			types |= type;
	if (types)
		types &= common_of_options(s, a, b, p, depth);
	if (types)
		types &= common_of_options(s, b, a, p, depth);
	return types;
}

const json_t *
schema_one_of(Schema *s, const json_t *base, const json_t *list, const Path *p)
{
	size_t n = json_array_size(list);
	const json_t **option = NEW(s->b->a, const json_t *, n + 1);
	uint8_t *overlap = NEW(s->b->a, uint8_t, n *n + 1); /* types in common */
	bool some = false;

	const bool strict = s->b->opt.strict;
	if (!strict && (n > FEW_ONE_OF || s->ones >= FEW_ONES))
		return list;
	if (n > MAX_ONE_OF)
		schema_fail(s, p, "oneOf",
		            "more than %d alternatives are not checked to exclude each other, and "
		            "the schema is strict",
		            MAX_ONE_OF);
	if (++s->ones > MAX_ONES)
		schema_fail(s, p, "oneOf",
		            "alternatives of one value are nested too deeply or recursively");
	for (size_t i = 0; i < n; i++)
		option[i] = schema_merge(s, base, json_array_get(list, i), p, 1);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if ((overlap[i * n + k] = overlap[k * n + i] =
			         (uint8_t)schemas_common_types(s, option[k], option[i], p, 0)))
				some = true;
	s->ones--;
	if (!some)
		return list;
	const json_t *out = schema_exclusive(s, list, overlap, p);
	if (!out && !strict)
		return list;
	for (size_t i = 0; i < n && !out; i++)
		for (size_t k = 0; k < i; k++)
			if (overlap[i * n + k])
				schema_fail(s, p, "oneOf",
				            "a value may fit options %zu and %zu; that one alone "
				            "fits is enforced where types, bounds, properties or a "
				            "negation separate them, and the schema is strict",
				            k, i);
	return out;
}
