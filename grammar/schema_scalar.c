/* Strings and numbers of a schema. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_MULTIPLE = 1000 };

/* ---- strings ---- */

/* Computes the shortest and longest match of x in characters; -1: unlimited. Returns false if x is
 * too deeply nested. */
static bool
lengths(const Expr *x, int64_t *lo, int64_t *hi, int depth)
{
	int64_t l, h;

	*lo = *hi = 0;
	if (depth > 100)
		return false;
	switch (x->kind) {
	case EXPR_CHARS:
		*lo = *hi = 1;
		return true;
	case EXPR_SEQ:
		for (int32_t i = 0; i < x->n; i++) {
			if (!lengths(x->part[i], &l, &h, depth + 1))
				return false;
			*lo += l;
			*hi = *hi < 0 || h < 0 ? -1 : *hi + h;
		}
		return true;
	case EXPR_ALT:
		for (int32_t i = 0; i < x->n; i++) {
			if (!lengths(x->part[i], &l, &h, depth + 1))
				return false;
			*lo = !i || l < *lo ? l : *lo;
			*hi = *hi < 0 || h < 0 ? -1 : h > *hi ? h : *hi;
		}
		return true;
	case EXPR_REP:
		if (!lengths(x->part[0], &l, &h, depth + 1))
			return false;
		*lo = l * x->min;
		*hi = h == 0 ? 0 : h < 0 || x->max < 0 ? -1 : h * x->max;
		return true;
	default:
		return false;
	}
}

/* Reads a regex; its errors show the path in the schema. */
Expr *
schema_expression(Schema *s, const char *regex, size_t n, RegexFlags flags, const Path *p,
                  const char *keyword)
{
	s->b->place = arena_printf(s->b->a, "schema, %s/%s", schema_path(s, p), keyword);
	Expr *x = regex_read(s->b, regex, n, flags);
	s->b->place = NULL;
	return x;
}

/* Builds a quoted regex together with minLength and maxLength. */
static Expr *
with_lengths(Schema *s, const char *regex, size_t n, const json_t *o, const char *keyword,
             const Path *p)
{
	int32_t min = schema_count(s, o, "minLength", p), max = schema_most(s, o, "maxLength", p);
	Expr *inside = schema_expression(s, regex, n, (RegexFlags){ .json = true, .search = true },
	                                 p, keyword);
	int64_t lo, hi;

	if (min > 0 || max >= 0) {
		Expr *plain = regex_read(s->b, regex, n, (RegexFlags){ .search = true });
		bool told = lengths(plain, &lo, &hi, 0);
		if (plain->kind == EXPR_REP && plain->part[0]->kind == EXPR_CHARS &&
		    inside->kind == EXPR_REP) {
			int32_t least = plain->min > min ? plain->min : min,
			        most = plain->max < 0 || (max >= 0 && max < plain->max)
			                   ? max
			                   : plain->max;
			inside = most >= 0 && least > most
			             ? expr_none(s->b)
			             : expr_rep(s->b, inside->part[0], least, most);
		} else if (!told || lo < min || (max >= 0 && (hi < 0 || hi > max))) {
			/* the common case ^[a-z][a-z0-9]*$ and similar */
			Expr *last =
			    plain->kind == EXPR_SEQ && plain->n ? plain->part[plain->n - 1] : NULL;
			int64_t l = 0, h = 0, x, y;
			bool fixed = last && last->kind == EXPR_REP &&
			             last->part[0]->kind == EXPR_CHARS &&
			             inside->kind == EXPR_SEQ && inside->n == plain->n;
			for (int32_t i = 0; fixed && i < plain->n - 1; i++) {
				fixed = lengths(plain->part[i], &x, &y, 0) && x == y;
				l += x;
			}
			h = l;
			if (!fixed)
				schema_fail(
				    s, p, keyword,
				    "with minLength or maxLength a regular expression must have "
				    "a fixed length or end in one repeated class");
			int64_t least = last->min > min - l ? last->min : min - l, most = last->max;
			if (max >= 0 && (most < 0 || max - h < most))
				most = max - h;
			if (most >= 0 && least > most)
				return expr_none(s->b);
			ExprList parts = { 0 };
			for (int32_t i = 0; i < inside->n - 1; i++)
				expr_push(s->b, &parts, inside->part[i]);
			expr_push(s->b, &parts,
			          expr_rep(s->b, inside->part[inside->n - 1]->part[0],
			                   (int32_t)least, (int32_t)most));
			inside = expr_list(s->b, EXPR_SEQ, &parts);
		}
	}
	return expr_seq(s->b, 3, expr_text(s->b, "\""), inside, expr_text(s->b, "\""));
}

Expr *
schema_string(Schema *s, const json_t *o, const Path *p)
{
	const json_t *pattern = json_object_get(o, "pattern"),
	             *format = json_object_get(o, "format");
	const char *known = json_is_string(format) ? format_regex(json_string_value(format)) : NULL;
	int32_t min = schema_count(s, o, "minLength", p), max = schema_most(s, o, "maxLength", p);

	if (pattern && !json_is_string(pattern))
		schema_fail(s, p, "pattern", "expected a string");
	if (format && !known && s->b->opt.strict)
		schema_fail(s, p, "format",
		            "this format is not enforced, and the schema is strict");
	if (pattern && known && s->b->opt.strict)
		schema_fail(s, p, "format",
		            "a format next to a pattern is not enforced, and the schema is strict");
	if (max >= 0 && min > max)
		return expr_none(s->b);
	if (pattern)
		return with_lengths(s, json_string_value(pattern), json_string_length(pattern), o,
		                    "pattern", p);
	if (known)
		return with_lengths(s, known, strlen(known), o, "format", p);
	if (min <= 0 && max < 0)
		return json_any_string(s->b);
	return expr_seq(s->b, 3, expr_text(s->b, "\""),
	                expr_rep(s->b, json_string_char(s->b), min < 0 ? 0 : min, max),
	                expr_text(s->b, "\""));
}

/* ---- numbers ---- */

static Expr *
multiple_of(Schema *s, const json_t *o, bool integer, const Path *p)
{
	const json_t *v = json_object_get(o, "multipleOf");
	double x = json_number_value(v);
	Expr *minus = expr_rep(s->b, expr_text(s->b, "-"), 0, 1);

	if (!json_is_number(v) || !(x > 0))
		schema_fail(s, p, "multipleOf", "expected a number above 0");
	if (x == 1 && integer)
		return json_any_number(s->b, true);
	if (x >= 1 && x <= MAX_MULTIPLE && x == (int32_t)x) {
		Expr *m = expr_new(s->b, EXPR_MULTIPLE);
		m->min = (int32_t)x;
		return expr_seq(s->b, 2, minus, m);
	}
	int32_t digits = 0;
	for (double y = x; y < 0.999999 && digits < 16; y *= 10)
		digits++;
	double ten = 1;
	for (int32_t i = 0; i < digits; i++)
		ten *= 10;
	if (digits && x * ten > 0.999999 && x * ten < 1.000001) { /* 0.01: as many digits */
		if (integer)
			return json_any_number(s->b, true);
		return expr_seq(
		    s->b, 2, json_any_number(s->b, true),
		    expr_rep(s->b,
		             expr_seq(s->b, 2, expr_text(s->b, "."),
		                      expr_rep(s->b, expr_char(s->b, '0', '9'), 1, digits)),
		             0, 1));
	}
	schema_fail(s, p, "multipleOf",
	            "supported divisors are integers up to %d and 0.1, 0.01, ...", MAX_MULTIPLE);
}

static void
bound_of(Schema *s, const json_t *o, const char *key, const char *exclusive, bool low, Bound *out,
         const Path *p)
{
	const json_t *v = json_object_get(o, key), *x = json_object_get(o, exclusive);
	bool open = json_is_true(x); /* draft 4 */

	if (v && !json_is_number(v))
		schema_fail(s, p, key, "expected a number");
	if (x && !json_is_number(x) && !json_is_boolean(x))
		schema_fail(s, p, exclusive, "expected a number");
	if (json_is_number(x)) {
		double a = v ? json_number_value(v) : 0, b = json_number_value(x);
		if (!v || (low ? b >= a : b <= a)) {
			v = x;
			open = true;
		}
	}
	bound_read(out, v, open);
}

Expr *
schema_number(Schema *s, const json_t *o, bool integer, const Path *p)
{
	Bound lo, hi;

	bound_of(s, o, "minimum", "exclusiveMinimum", true, &lo, p);
	bound_of(s, o, "maximum", "exclusiveMaximum", false, &hi, p);
	if (json_object_get(o, "multipleOf")) {
		if ((lo.set || hi.set) && s->b->opt.strict)
			schema_fail(
			    s, p, "multipleOf",
			    "multiples within a range are not enforced, and the schema is strict");
		if (!lo.set && !hi.set)
			return multiple_of(s, o, integer, p);
	}
	return lo.set || hi.set ? number_range(s->b, &lo, &hi, integer)
	                        : json_any_number(s->b, integer);
}
