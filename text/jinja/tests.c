/* Tests: `x is test`. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

typedef enum Test {
	IS_DEFINED,
	IS_UNDEFINED,
	IS_NONE,
	IS_STRING,
	IS_NUMBER,
	IS_MAPPING,
	IS_ITERABLE,
	IS_SEQUENCE,
	IS_BOOLEAN,
	IS_TRUE,
	IS_FALSE,
	IS_INTEGER,
	IS_FLOAT,
	IS_EVEN,
	IS_ODD,
	IS_DIVISIBLE,
	IS_EQ,
	IS_NE,
	IS_LT,
	IS_LE,
	IS_GT,
	IS_GE,
	IS_IN,
	IS_SAMEAS,
	IS_CALLABLE,
	IS_LOWER,
	IS_UPPER,
} Test;

static const struct {
	const char *name;
	Test test;
} tests[] = {
	{ "defined", IS_DEFINED },
	{ "undefined", IS_UNDEFINED },
	{ "none", IS_NONE },
	{ "string", IS_STRING },
	{ "number", IS_NUMBER },
	{ "mapping", IS_MAPPING },
	{ "iterable", IS_ITERABLE },
	{ "sequence", IS_SEQUENCE },
	{ "boolean", IS_BOOLEAN },
	{ "true", IS_TRUE },
	{ "false", IS_FALSE },
	{ "integer", IS_INTEGER },
	{ "float", IS_FLOAT },
	{ "even", IS_EVEN },
	{ "odd", IS_ODD },
	{ "divisibleby", IS_DIVISIBLE },
	{ "eq", IS_EQ },
	{ "equalto", IS_EQ },
	{ "==", IS_EQ },
	{ "ne", IS_NE },
	{ "!=", IS_NE },
	{ "lt", IS_LT },
	{ "lessthan", IS_LT },
	{ "<", IS_LT },
	{ "le", IS_LE },
	{ "<=", IS_LE },
	{ "gt", IS_GT },
	{ "greaterthan", IS_GT },
	{ ">", IS_GT },
	{ "ge", IS_GE },
	{ ">=", IS_GE },
	{ "in", IS_IN },
	{ "sameas", IS_SAMEAS },
	{ "callable", IS_CALLABLE },
	{ "lower", IS_LOWER },
	{ "upper", IS_UPPER },
	{ "None", IS_NONE },
};

static int64_t
whole(Jinja *j, Val v)
{
	if (v.type == V_FLOAT && v.f == floor(v.f) && fabs(v.f) < 1e15)
		return (int64_t)v.f;
	return arg_int(j, "test", v);
}

static bool
same(Jinja *j, Val a, Val b)
{
	if (a.type != b.type)
		return false;
	switch (a.type) {
	case V_NONE:
		return true;
	case V_BOOL:
		return a.b == b.b;
	case V_INT:
		return a.i == b.i;
	case V_FLOAT:
		return a.f == b.f;
	case V_STR:
		jinja_step(j, a.s.n < b.s.n ? a.s.n : b.s.n);
		return span_same(a.s, b.s);
	default:
		return a.l == b.l;
	}
}

bool
apply_test(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val other = arg(a, 0, NULL, val_none());
	size_t i, n = sizeof tests / sizeof *tests;

	jinja_step(j, 0);
	for (i = 0; i < n && !span_is(name, tests[i].name); i++)
		;
	if (i == n)
		jinja_fail(j, "no test named '%.*s'", (int)(name.n < 60 ? name.n : 60), name.s);
	switch (tests[i].test) {
	case IS_DEFINED:
		return v.type != V_UNDEF;
	case IS_UNDEFINED:
		return v.type == V_UNDEF;
	case IS_NONE:
		return v.type == V_NONE;
	case IS_STRING:
		return v.type == V_STR;
	case IS_NUMBER:
		return val_is_number(v);
	case IS_MAPPING:
		return v.type == V_DICT;
	case IS_ITERABLE:
		return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE ||
		       v.type == V_DICT || v.type == V_UNDEF;
	case IS_SEQUENCE:
		return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE ||
		       v.type == V_DICT || v.type == V_UNDEF;
	case IS_BOOLEAN:
		return v.type == V_BOOL;
	case IS_TRUE:
		return v.type == V_BOOL && v.b;
	case IS_FALSE:
		return v.type == V_BOOL && !v.b;
	case IS_INTEGER:
		return v.type == V_INT;
	case IS_FLOAT:
		return v.type == V_FLOAT;
	case IS_EVEN:
		return whole(j, v) % 2 == 0;
	case IS_ODD:
		return whole(j, v) % 2 != 0;
	case IS_DIVISIBLE:
		if (whole(j, other) == 0)
			jinja_fail(j, "division by zero");
		return whole(j, other) == -1 || whole(j, v) % whole(j, other) == 0;
	case IS_EQ:
		return val_equal(j, v, other);
	case IS_NE:
		return !val_equal(j, v, other);
	case IS_LT:
		return val_compare(j, v, other) < 0;
	case IS_LE:
		return val_compare(j, v, other) <= 0;
	case IS_GT: {
		int c = val_compare(j, v, other);
		return c > 0 && c != 2;
	}
	case IS_GE: {
		int c = val_compare(j, v, other);
		return c >= 0 && c != 2;
	}
	case IS_IN:
		return val_in(j, v, other);
	case IS_SAMEAS:
		return same(j, v, other);
	case IS_CALLABLE:
		return v.type == V_MACRO || v.type == V_METHOD || v.type == V_FUNC;
	case IS_LOWER:
	case IS_UPPER: {
		CallArgs none = { 0 };
		Method m = { val_span(val_str(j, v)), { "isupper", 7 } };
		if (tests[i].test == IS_LOWER)
			m.name = (ByteSpan){ "islower", 7 };
		return val_true(call_method(j, &m, &none));
	}
	}
	return false;
}
