/* Grammars of JSON values. By default the whitespace between JSON tokens is at most one space, or
 * one or two line ends and twenty blanks, so that a model cannot loop in it. `compact` allows none,
 * `standard` any amount. Strings hold unescaped characters, the short escapes, and control
 * characters as \u00XX. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "grammar/schema.h"

enum { MAX_BLANKS = 20, MAX_EXPONENT = 3 };

static StyleKind
style_of(const GrammarBuilder *b)
{
	return b->style ? b->style->kind : STYLE_JSON;
}

Expr *
json_ws(GrammarBuilder *b)
{
	if (b->opt.compact || style_of(b) == STYLE_QUOTED)
		return expr_empty(b);
	if (b->opt.standard)
		return expr_rep(
		    b,
		    expr_chars(
		        b,
		        (Range[]){ { ' ', ' ' }, { '\n', '\n' }, { '\r', '\r' }, { '\t', '\t' } },
		        4),
		    0, -1);
	Expr *blanks =
	    expr_rep(b, expr_chars(b, (Range[]){ { ' ', ' ' }, { '\t', '\t' } }, 2), 0, MAX_BLANKS);
	return expr_alt(b, 3, expr_empty(b), expr_text(b, " "),
	                expr_seq(b, 2, expr_rep(b, expr_text(b, "\n"), 1, 2), blanks));
}

/* Matches an escape: a letter of `letters` or \u00XX of a control character. Other \u escapes are
 * not allowed, because they could make lone surrogates. */
Expr *
json_escapes(GrammarBuilder *b, const char *letters)
{
	static const Range hex[] = { { '0', '9' }, { 'a', 'f' }, { 'A', 'F' } };
	Range letter[16];
	size_t n = 0;

	for (; letters[n] && n < 16; n++)
		letter[n] = (Range){ (uint8_t)letters[n], (uint8_t)letters[n] };
	Expr *low =
	    expr_seq(b, 2, expr_chars(b, (Range[]){ { '0', '1' } }, 1), expr_chars(b, hex, 3));
	Expr *del = expr_seq(b, 2, expr_text(b, "7"),
	                     expr_chars(b, (Range[]){ { 'f', 'f' }, { 'F', 'F' } }, 2));
	return expr_seq(b, 2, expr_text(b, "\\"),
	                expr_alt(b, 2, expr_chars(b, letter, n),
	                         expr_seq(b, 2, expr_text(b, "u00"), expr_alt(b, 2, low, del))));
}

Expr *
json_string_char(GrammarBuilder *b)
{
	static const Range plain[] = {
		{ 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x7E }, { 0x80, 0x10FFFF }
	};

	return expr_alt(b, 2, expr_chars(b, plain, 4), json_escapes(b, "\"\\bfnrt"));
}

Expr *
json_any_string(GrammarBuilder *b)
{
	int32_t *rule = &b->json_string[style_of(b)];

	if (*rule < 0) {
		*rule = rule_new(b);
		b->rule[*rule] =
		    style_of(b) == STYLE_QUOTED
		        ? expr_seq(b, 2, mark_text(b, b->style->quote),
		                   until_text(b, b->style->quote))
		        : expr_seq(b, 3, expr_text(b, "\""),
		                   expr_rep(b, json_string_char(b), 0, -1), expr_text(b, "\""));
	}
	return expr_rule(b, *rule);
}

/* The number of digits is limited, because models may continue a number without end. */
Expr *
json_any_number(GrammarBuilder *b, bool integer)
{
	int32_t digits = b->opt.standard ? -1 : JSON_MAX_DIGITS,
	        exponent = b->opt.standard ? -1 : MAX_EXPONENT;
	Expr *digit = expr_char(b, '0', '9');
	Expr *whole =
	    expr_seq(b, 2, expr_rep(b, expr_text(b, "-"), 0, 1),
	             expr_alt(b, 2, expr_text(b, "0"),
	                      expr_seq(b, 2, expr_char(b, '1', '9'),
	                               expr_rep(b, digit, 0, digits < 0 ? -1 : digits - 1))));

	if (integer)
		return whole;
	Expr *e = expr_chars(b, (Range[]){ { 'e', 'e' }, { 'E', 'E' } }, 2),
	     *sign = expr_chars(b, (Range[]){ { '+', '+' }, { '-', '-' } }, 2);
	return expr_seq(
	    b, 3, whole,
	    expr_rep(b, expr_seq(b, 2, expr_text(b, "."), expr_rep(b, digit, 1, digits)), 0, 1),
	    expr_rep(b, expr_seq(b, 3, e, expr_rep(b, sign, 0, 1), expr_rep(b, digit, 1, exponent)),
	             0, 1));
}

Expr *
json_word(GrammarBuilder *b, json_type type)
{
	bool python = style_of(b) == STYLE_PYTHON;

	return expr_text(b, type == JSON_TRUE    ? (python ? "True" : "true")
	                    : type == JSON_FALSE ? (python ? "False" : "false")
	                    : python             ? "None"
	                                         : "null");
}

Expr *
json_any_value(GrammarBuilder *b)
{
	int32_t *rule = &b->json_value[style_of(b)];

	if (*rule < 0) {
		*rule = rule_new(b);
		b->rule[*rule] =
		    expr_alt(b, 7, json_word(b, JSON_NULL), json_word(b, JSON_TRUE),
		             json_word(b, JSON_FALSE), json_any_number(b, false),
		             json_any_string(b), json_any_array(b), json_any_object(b));
	}
	return expr_rule(b, *rule);
}

Expr *
json_comma(GrammarBuilder *b, bool arguments)
{
	return arguments ? expr_text(b, b->style->between)
	                 : expr_seq(b, 2, expr_text(b, ","), json_ws(b));
}

Expr *
json_braces(GrammarBuilder *b, Expr *members, bool arguments)
{
	return arguments ? members
	                 : expr_seq(b, 5, expr_text(b, "{"), json_ws(b), members, json_ws(b),
	                            expr_text(b, "}"));
}

Expr *
json_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how, bool arguments)
{
	Expr *order = expr_new(b, EXPR_ORDER);
	Expr **part = NEW(b->a, Expr *, members->n + 1);
	uint8_t *own = NEW(b->a, uint8_t, members->n + 1);

	if (members->n) {
		memcpy(part, members->v, members->n * sizeof *part);
		memcpy(own, how, members->n);
	}
	part[members->n] = json_comma(b, arguments);
	order->part = part;
	order->how = own;
	order->n = (int32_t)members->n;
	return json_braces(b, order, arguments);
}

Expr *
json_unordered(GrammarBuilder *b, const ExprList *members, const uint8_t *how, Expr *others)
{
	Expr *x = expr_new(b, EXPR_UNORDERED);
	Expr **part = NEW(b->a, Expr *, members->n + 2);

	for (size_t i = 0; i < members->n; i++) {
		part[i] = members->v[i];
		if (how[i] == ORDER_MUST)
			x->must |= (uint64_t)1 << i;
	}
	part[members->n] = json_comma(b, false);
	part[members->n + 1] = others;
	x->part = part;
	x->n = (int32_t)members->n;
	return json_braces(b, x, false);
}

/* Builds an object that begins with any of its members; later ones may follow in order. */
Expr *
json_some_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how, bool arguments)
{
	ExprList starts = { 0 };
	Expr *comma = json_comma(b, arguments), *rest = expr_empty(b);

	/* one rule per suffix of the list, so that each suffix is built once */
	for (size_t i = members->n; i-- > 0;) {
		int32_t rest_rule = rule_new(b);
		b->rule[rest_rule] = rest;
		Expr *own = members->v[i], *after = expr_rule(b, rest_rule);
		expr_push(
		    b, &starts,
		    how[i] == ORDER_ANY
		        ? expr_seq(b, 3, own, expr_rep(b, expr_seq(b, 2, comma, own), 0, -1), after)
		        : expr_seq(b, 2, own, after));
		Expr *more =
		    expr_rep(b, expr_seq(b, 2, comma, own), 0, how[i] == ORDER_ANY ? -1 : 1);
		rest = expr_seq(b, 2, more, after);
	}
	return json_braces(b, expr_list(b, EXPR_ALT, &starts), arguments);
}

Expr *
json_any_object(GrammarBuilder *b)
{
	int32_t *rule = &b->json_object[style_of(b)];

	if (*rule < 0) {
		ExprList one = { 0 };
		*rule = rule_new(b);
		Expr *key = style_of(b) == STYLE_QUOTED
		                ? expr_alt(b, 2, json_bare_key(b), json_any_string(b))
		                : json_any_string(b);
		expr_push(b, &one,
		          expr_seq(b, 4, key, expr_text(b, ":"), json_ws(b), json_any_value(b)));
		Expr *body = json_members(b, &one, (uint8_t[]){ ORDER_ANY }, false);
		b->rule[*rule] = body;
	}
	return expr_rule(b, *rule);
}

Expr *
json_brackets(GrammarBuilder *b, Expr *items)
{
	return expr_seq(b, 5, expr_text(b, "["), json_ws(b), items, json_ws(b), expr_text(b, "]"));
}

Expr *
json_list(GrammarBuilder *b, Expr *comma, Expr *one, int32_t min, int32_t max)
{
	if (max >= 0 && min > max)
		return expr_none(b);
	if (max == 0)
		return expr_empty(b);
	if (max == 1)
		return expr_rep(b, one, min > 0 ? 1 : 0, 1);
	Expr *more =
	    expr_rep(b, expr_seq(b, 2, comma, one), min > 1 ? min - 1 : 0, max < 0 ? -1 : max - 1);
	return expr_rep(b, expr_seq(b, 2, one, more), min > 0 ? 1 : 0, 1);
}

Expr *
json_items(GrammarBuilder *b, const ExprList *first, Expr *rest, int32_t min, int32_t max)
{
	Expr *comma = json_comma(b, false), *tail = expr_empty(b);
	int32_t n = (int32_t)first->n;

	if (max >= 0 && n > max)
		n = max;
	if (rest && (max < 0 || max > n)) {
		int32_t low = min > n ? min - n : 0, high = max < 0 ? -1 : max - n;
		tail = n ? expr_rep(b, expr_seq(b, 2, comma, rest), low, high)
		         : json_list(b, comma, rest, low, high);
	} else if (min > n) {
		return expr_none(b);
	}
	for (int32_t i = n - 1; i >= 0; i--) {
		Expr *item = i ? expr_seq(b, 3, comma, first->v[i], tail)
		               : expr_seq(b, 2, first->v[i], tail);
		tail = i < min ? item : expr_rep(b, item, 0, 1);
	}
	return json_brackets(b, tail);
}

Expr *
json_any_array(GrammarBuilder *b)
{
	int32_t *rule = &b->json_array[style_of(b)];

	if (*rule < 0) {
		*rule = rule_new(b);
		Expr *body = json_items(b, &(ExprList){ 0 }, json_any_value(b), 0, -1);
		b->rule[*rule] = body;
	}
	return expr_rule(b, *rule);
}

Expr *
json_quoted(GrammarBuilder *b, const char *s, size_t n)
{
	Strbuf *text = arena_strbuf(b->a);

	json_str(text, s, n);
	if (text->failed)
		arena_out(b->a);
	return expr_bytes(b, text->data, text->len);
}

/* Matches a key without quotes: not empty, without blanks and without characters that delimit
 * values. */
Expr *
json_bare_key(GrammarBuilder *b)
{
	Range r[sizeof BARE_KEY_ENDS + 1], rest[sizeof BARE_KEY_ENDS + 3];
	size_t n = 0;

	for (const char *c = BARE_KEY_ENDS; *c; c++)
		r[n++] = (Range){ (uint8_t)*c, (uint8_t)*c };
	r[n++] = (Range){ ' ', ' ' };
	n = ranges_join(r, n);
	n = ranges_invert(r, n, rest);
	return expr_rep(b, expr_chars(b, rest, n), 1, -1);
}

/* Matches a key. In a style with other quotes than JSON, keys are written without quotes unless
 * they have characters that delimit values. */
Expr *
json_name(GrammarBuilder *b, const char *name, size_t n)
{
	if (style_of(b) == STYLE_QUOTED && n && !name[strcspn(name, BARE_KEY_ENDS)] &&
	    *name != ' ' && name[n - 1] != ' ')
		return expr_bytes(b, name, n);
	return json_quoted(b, name, n);
}

Expr *
json_key(GrammarBuilder *b, const char *name, size_t n)
{
	return expr_seq(b, 3, json_name(b, name, n), expr_text(b, ":"), json_ws(b));
}

Expr *
json_literal(GrammarBuilder *b, const json_t *v)
{
	ExprList parts = { 0 };
	char number[NUMBER_SIZE];
	json_t *value;
	size_t i;

	switch (json_typeof(v)) {
	case JSON_OBJECT: {
		const char *key;
		size_t n = json_object_size(v);
		json_object_foreach ((json_t *)(uintptr_t)v, key, value)
			expr_push(
			    b, &parts,
			    expr_seq(b, 2, json_key(b, key, strlen(key)), json_literal(b, value)));
		return json_members(b, &parts, NEW(b->a, uint8_t, n + 1), false);
	}
	case JSON_ARRAY:
		json_array_foreach (v, i, value)
			expr_push(b, &parts, json_literal(b, value));
		return json_items(b, &parts, NULL, (int32_t)parts.n, (int32_t)parts.n);
	case JSON_STRING:
		if (json_kept_digits(v))
			return expr_text(b, json_kept_digits(v));
		if (style_of(b) != STYLE_QUOTED)
			return json_quoted(b, json_string_value(v), json_string_length(v));
		if (strstr(json_string_value(v), b->style->quote))
			return expr_none(b);
		return expr_seq(b, 3, mark_text(b, b->style->quote),
		                expr_bytes(b, json_string_value(v), json_string_length(v)),
		                mark_text(b, b->style->quote));
	case JSON_INTEGER:
		return expr_text(b, arena_printf(b->a, "%lld", (long long)json_integer_value(v)));
	case JSON_REAL:
		number_text(number, json_real_value(v), NUMBER_EXACT);
		if (fabs(json_real_value(v)) < 1e15 &&
		    nearbyint(json_real_value(v)) == json_real_value(v))
			return expr_alt(
			    b, 2, expr_text(b, number),
			    expr_text(b, arena_printf(b->a, "%.0f", json_real_value(v))));
		return expr_text(b, number);
	case JSON_TRUE:
	case JSON_FALSE:
	case JSON_NULL:
		break;
	}
	return json_word(b, json_typeof(v));
}
