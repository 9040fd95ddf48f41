/* Checks a value of enum or const against the other keywords of its schema, by the rules of JSON
 * Schema. If a keyword cannot be decided, the value counts as valid. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "base/json.h"
#include "grammar/schema.h"

enum { MAX_CHECK_DEPTH = 60, MAX_CHECKS = 200000 };

bool
schema_equal(const json_t *a, const json_t *b)
{
	const json_t *v;
	const char *key;
	size_t i;

	if (json_kept_digits(a) && json_kept_digits(b))
		return !strcmp(json_kept_digits(a), json_kept_digits(b));
	if (json_is_any_number(a) && json_is_any_number(b))
		return json_is_integer(a) && json_is_integer(b)
		           ? json_integer_value(a) == json_integer_value(b)
		           : !(json_number_of(a) < json_number_of(b)) &&
		                 !(json_number_of(a) > json_number_of(b));
	if (json_is_array(a) && json_is_array(b)) {
		if (json_array_size(a) != json_array_size(b))
			return false;
		json_array_foreach ((json_t *)(uintptr_t)a, i, v)
			if (!schema_equal(v, json_array_get(b, i)))
				return false;
		return true;
	}
	if (json_is_object(a) && json_is_object(b)) {
		if (json_object_size(a) != json_object_size(b))
			return false;
		json_object_foreach ((json_t *)(uintptr_t)a, key, v)
			if (!json_object_get(b, key) || !schema_equal(v, json_object_get(b, key)))
				return false;
		return true;
	}
	return json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b);
}

static bool check(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth);

/* Checks a bound. Returns true if it is absent or not a number. */
static bool
bound(const json_t *o, const char *key, double value, int sign, bool open)
{
	const json_t *x = json_object_get(o, key);

	if (!json_is_any_number(x))
		return true;
	double left = sign * (value - json_number_of(x));
	return open ? left > 0 : left >= 0;
}

static bool
is_multiple(const json_t *v, const json_t *m)
{
	double d = json_number_of(m), q = json_number_of(v) / d;

	if (json_is_integer(v) && json_is_integer(m) && json_integer_value(m) > 0)
		return json_integer_value(v) % json_integer_value(m) == 0;
	return !json_is_any_number(m) || !(d > 0) || !isfinite(q) ||
	       fabs(q - nearbyint(q)) <= 1e-9 * fmax(1, fabs(q));
}

static bool
number_fits(const json_t *v, const json_t *o)
{
	const json_t *m = json_object_get(o, "multipleOf");
	double x = json_number_of(v);
	size_t i;

	if (json_object_get(o, FRACTION) && x == nearbyint(x))
		return false;
	if (m && !is_multiple(v, m))
		return false;
	json_array_foreach (json_object_get(o, MORE_MULTIPLES), i, m)
		if (!is_multiple(v, m))
			return false;
	json_array_foreach (json_object_get(o, NOT_MULTIPLES), i, m)
		if (is_multiple(v, m))
			return false;
	return bound(o, "minimum", x, 1, json_is_true(json_object_get(o, "exclusiveMinimum"))) &&
	       bound(o, "maximum", x, -1, json_is_true(json_object_get(o, "exclusiveMaximum"))) &&
	       bound(o, "exclusiveMinimum", x, 1, true) &&
	       bound(o, "exclusiveMaximum", x, -1, true);
}

/* Does a regex of the schema match somewhere in a string? */
static bool
found(Schema *s, const char *regex, size_t n, const char *text, size_t n_text, const Path *p,
      const char *keyword, bool otherwise)
{
	Operand op[MAX_LOOKAHEADS + 1];
	Language l;
	size_t n_op = schema_operands(s, regex, n, op, p, keyword);

	return language_make(s->b, op, n_op, &l) ? language_has(&l, text, n_text) : otherwise;
}

static bool
string_fits(Schema *s, const char *text, size_t n, const json_t *o, const Path *p)
{
	const json_t *v,
	    *list[] = { json_object_get(o, MORE_PATTERNS), json_object_get(o, NOT_PATTERNS) };
	const json_t *pattern = json_object_get(o, "pattern");
	size_t i, length = utf8_count(text, n);

	if (!bound(o, "minLength", (double)length, 1, false) ||
	    !bound(o, "maxLength", (double)length, -1, false))
		return false;
	if (json_is_string(pattern) &&
	    !found(s, json_string_value(pattern), json_string_length(pattern), text, n, p,
	           "pattern", true))
		return false;
	for (int k = 0; k < 2; k++)
		json_array_foreach ((json_t *)(uintptr_t)list[k], i, v)
			if (found(s, json_string_value(v), json_string_length(v), text, n, p,
			          "pattern", !k) != !k)
				return false;
	const json_t *formats[] = { json_object_get(o, "format"),
		                    json_object_get(o, MORE_FORMATS) };
	for (size_t k = 0; k < 1 + json_array_size(formats[1]); k++) {
		const char *name =
		    json_string_value(k ? json_array_get(formats[1], k - 1) : formats[0]);
		const char *regex = name ? format_regex(name) : NULL;
		if (regex && !found(s, regex, strlen(regex), text, n, p, "format", true))
			return false;
	}
	return true;
}

/* Whether the numbers of items that match schemas are within their limits. */
static bool
counts_fit(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	const json_t *c;
	size_t i;

	json_array_foreach (json_object_get(o, COUNTS), i, c) {
		const json_t *from = json_object_get(c, "from"), *to = json_object_get(c, "to");
		size_t n = 0, at = from ? (size_t)json_integer_value(from) : 0,
		       end = to ? (size_t)json_integer_value(to) : SIZE_MAX;
		for (; at < json_array_size(v) && at < end; at++)
			n += check(s, json_array_get(v, at), json_object_get(c, "item"), p,
			           depth + 1);
		if (!bound(c, "min", (double)n, 1, false) || !bound(c, "max", (double)n, -1, false))
			return false;
	}
	return true;
}

static bool
array_fits(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	o = schema_plain(s, o, true);
	const json_t *items = json_object_get(o, "items"),
	             *first = json_object_get(o, "prefixItems");
	size_t n = json_array_size(v);

	if (!bound(o, "minItems", (double)n, 1, false) ||
	    !bound(o, "maxItems", (double)n, -1, false))
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(v, i),
		             *own = i < json_array_size(first) ? json_array_get(first, i) : items;
		if (own && !check(s, x, own, p, depth + 1))
			return false;
		for (size_t k = 0; k < i && json_is_true(json_object_get(o, "uniqueItems")); k++)
			if (schema_equal(x, json_array_get(v, k)))
				return false;
	}
	return counts_fit(s, v, o, p, depth);
}

/* Whether an object satisfies dependentRequired, dependentSchemas and dependencies. */
static bool
dependencies_fit(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	static const char *const keys[] = { "dependentRequired", "dependentSchemas",
		                            "dependencies" };
	const json_t *own, *x;
	const char *key;
	size_t i;

	for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
		json_object_foreach (json_object_get(o, keys[k]), key, own) {
			if (!json_object_get(v, key))
				continue;
			if (json_is_string(own) && !json_object_get(v, json_string_value(own)))
				return false;
			json_array_foreach (schema_mutable(own), i, x)
				if (json_is_string(x) && !json_object_get(v, json_string_value(x)))
					return false;
			if ((json_is_object(own) || json_is_boolean(own)) &&
			    !check(s, v, own, p, depth + 1))
				return false;
		}
	return true;
}

/* Whether an object has a member for each of a list of conditions. */
static bool
members_fit(Schema *s, const json_t *v, const json_t *list, const Path *p, int depth)
{
	const json_t *one, *x;
	const char *key;
	size_t i;

	json_array_foreach (schema_mutable(list), i, one) {
		bool some = false;
		json_object_foreach (schema_mutable(v), key, x)
			some = some || (check(s, schema_keep(s, json_string(key)),
			                      json_object_get(one, "key"), p, depth + 1) &&
			                check(s, x, json_object_get(one, "value"), p, depth + 1));
		if (!some)
			return false;
	}
	return true;
}

static bool
object_fits(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	const json_t *x, *own, *names = json_object_get(o, "propertyNames"),
	                       *more = json_object_get(o, "additionalProperties");
	double n = (double)json_object_size(v);
	const char *key, *pattern;
	size_t i;

	if (!bound(o, "minProperties", n, 1, false) || !bound(o, "maxProperties", n, -1, false))
		return false;
	json_array_foreach (json_object_get(o, "required"), i, x)
		if (json_is_string(x) && !json_object_get(v, json_string_value(x)))
			return false;
	json_object_foreach ((json_t *)(uintptr_t)v, key, x) {
		bool listed = false;
		if ((own = json_object_get(json_object_get(o, "properties"), key))) {
			listed = true;
			if (!check(s, x, own, p, depth + 1))
				return false;
		}
		json_object_foreach (json_object_get(o, "patternProperties"), pattern, own)
			if (found(s, pattern, strlen(pattern), key, strlen(key), p,
			          "patternProperties", false)) {
				listed = true;
				if (!check(s, x, own, p, depth + 1))
					return false;
			}
		if (!listed && more && !check(s, x, more, p, depth + 1))
			return false;
		if (names) {
			json_t *name = json_string(key);
			schema_keep(s, name);
			if (!check(s, name, names, p, depth + 1))
				return false;
		}
	}
	json_object_foreach (json_object_get(o, HELD), key, own)
		if (json_object_get(v, key) &&
		    !check(s, json_object_get(v, key), own, p, depth + 1))
			return false;
	return dependencies_fit(s, v, o, p, depth) &&
	       members_fit(s, v, json_object_get(o, SOME_MEMBERS), p, depth) &&
	       members_fit(s, v, json_object_get(o, FOUND_MEMBERS), p, depth);
}

static bool
options_fit(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	const json_t *x, *ref = json_object_get(o, "$ref"), *no = json_object_get(o, "not"),
	                 *test = json_object_get(o, "if");
	size_t i, n = 0;

	if (ref && !check(s, v, schema_target(s, ref, p), p, depth + 1))
		return false;
	json_array_foreach (json_object_get(o, "allOf"), i, x)
		if (!check(s, v, x, p, depth + 1))
			return false;
	json_array_foreach (json_object_get(o, "anyOf"), i, x)
		n += check(s, v, x, p, depth + 1);
	if (json_array_size(json_object_get(o, "anyOf")) && !n)
		return false;
	n = 0;
	json_array_foreach (json_object_get(o, "oneOf"), i, x)
		n += check(s, v, x, p, depth + 1);
	if (json_array_size(json_object_get(o, "oneOf")) && n != 1)
		return false;
	if (no && check(s, v, no, p, depth + 1))
		return false;
	if (test) {
		const json_t *then =
		    json_object_get(o, check(s, v, test, p, depth + 1) ? "then" : "else");
		if (then && !check(s, v, then, p, depth + 1))
			return false;
	}
	return true;
}

static bool
check(Schema *s, const json_t *v, const json_t *o, const Path *p, int depth)
{
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"), *x;
	bool among = !json_is_array(list);
	size_t i;

	build_work(s->b);
	if (json_is_boolean(o))
		return json_is_true(o);
	if (!json_is_object(o) || depth > MAX_CHECK_DEPTH || ++s->n_checked > MAX_CHECKS)
		return true;
	if (json_object_get(o, "type") && !(schema_types(s, o, p) & json_schema_type_of(v)))
		return false;
	if (one && !schema_equal(one, v))
		return false;
	json_array_foreach ((json_t *)(uintptr_t)list, i, x)
		among |= schema_equal(x, v);
	if (!among)
		return false;
	json_array_foreach (json_object_get(o, NOT_VALUES), i, x)
		if (schema_equal(x, v))
			return false;
	if (json_is_any_number(v) && !number_fits(v, o))
		return false;
	if (json_is_string(v) && !json_kept_digits(v) &&
	    !string_fits(s, json_string_value(v), json_string_length(v), o, p))
		return false;
	if (json_is_array(v) && !array_fits(s, v, o, p, depth))
		return false;
	if (json_is_object(v) && !object_fits(s, v, o, p, depth))
		return false;
	return options_fit(s, v, o, p, depth);
}

bool
schema_accepts(Schema *s, const json_t *v, const json_t *o, const Path *p)
{
	return check(s, v, o, p, 0);
}
