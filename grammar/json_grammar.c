/* Grammars of JSON values. By default the whitespace between JSON tokens is at most one space, or
 * one or two line ends and twenty blanks, so that a model cannot loop in it. `compact` allows none,
 * `standard` any amount. Strings hold unescaped characters, the short escapes, and control
 * characters as \u00XX. */
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "grammar/schema.h"

enum { MAX_BLANKS = 20, MAX_DIGITS = 16, MAX_EXPONENT = 3 };

Expr *
json_ws(GrammarBuilder *b)
{
	if (b->opt.compact)
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
 * left out, because a lone surrogate is no character. */
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
	if (b->json_string < 0) {
		b->json_string = rule_new(b);
		b->rule[b->json_string] =
		    expr_seq(b, 3, expr_text(b, "\""), expr_rep(b, json_string_char(b), 0, -1),
		             expr_text(b, "\""));
	}
	return expr_rule(b, b->json_string);
}

/* Models run on in numbers: digits have a bound. */
Expr *
json_any_number(GrammarBuilder *b, bool integer)
{
	int32_t digits = b->opt.standard ? -1 : MAX_DIGITS,
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
json_any_value(GrammarBuilder *b)
{
	if (b->json_value < 0) {
		b->json_value = rule_new(b);
		b->rule[b->json_value] =
		    expr_alt(b, 7, expr_text(b, "null"), expr_text(b, "true"),
		             expr_text(b, "false"), json_any_number(b, false), json_any_string(b),
		             json_any_array(b), json_any_object(b));
	}
	return expr_rule(b, b->json_value);
}

Expr *
json_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how)
{
	Expr *order = expr_new(b, EXPR_ORDER);
	Expr **part = NEW(b->a, Expr *, members->n + 1);
	uint8_t *own = NEW(b->a, uint8_t, members->n + 1);

	if (members->n) {
		memcpy(part, members->v, members->n * sizeof *part);
		memcpy(own, how, members->n);
	}
	part[members->n] = expr_seq(b, 2, expr_text(b, ","), json_ws(b));
	order->part = part;
	order->how = own;
	order->n = (int32_t)members->n;
	/* one whitespace position in an empty object, not two */
	return expr_seq(b, 5, expr_text(b, "{"), json_ws(b), order, json_ws(b), expr_text(b, "}"));
}

/* Builds an object in which one member comes first and later ones may follow in order. */
Expr *
json_some_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how)
{
	ExprList starts = { 0 };
	Expr *comma = expr_seq(b, 2, expr_text(b, ","), json_ws(b)), *rest = expr_empty(b);

	for (size_t i = members->n; i-- > 0;) { /* one rule per suffix, so that it is built once */
		int32_t behind = rule_new(b);
		b->rule[behind] = rest;
		Expr *own = members->v[i], *after = expr_rule(b, behind);
		expr_push(
		    b, &starts,
		    how[i] == ORDER_ANY
		        ? expr_seq(b, 3, own, expr_rep(b, expr_seq(b, 2, comma, own), 0, -1), after)
		        : expr_seq(b, 2, own, after));
		Expr *more =
		    expr_rep(b, expr_seq(b, 2, comma, own), 0, how[i] == ORDER_ANY ? -1 : 1);
		rest = expr_seq(b, 2, more, after);
	}
	return expr_seq(b, 5, expr_text(b, "{"), json_ws(b), expr_list(b, EXPR_ALT, &starts),
	                json_ws(b), expr_text(b, "}"));
}

Expr *
json_any_object(GrammarBuilder *b)
{
	if (b->json_object < 0) {
		ExprList one = { 0 };
		b->json_object = rule_new(b);
		expr_push(b, &one,
		          expr_seq(b, 4, json_any_string(b), expr_text(b, ":"), json_ws(b),
		                   json_any_value(b)));
		Expr *body = json_members(b, &one, (uint8_t[]){ ORDER_ANY });
		b->rule[b->json_object] = body;
	}
	return expr_rule(b, b->json_object);
}

/* max -1: unlimited. Elements beyond `first` match `rest`; NULL: there are none. */
Expr *
json_items(GrammarBuilder *b, const ExprList *first, Expr *rest, int32_t min, int32_t max)
{
	Expr *comma = expr_seq(b, 2, expr_text(b, ","), json_ws(b)), *tail = expr_empty(b);
	int32_t n = (int32_t)first->n;

	if (max >= 0 && n > max)
		n = max;
	if (rest && (max < 0 || max > n)) {
		int32_t low = min > n ? min - n : 0, high = max < 0 ? -1 : max - n;
		if (n)
			tail = expr_rep(b, expr_seq(b, 2, comma, rest), low, high);
		else if (low <= 1 && high == 1)
			tail = expr_rep(b, rest, low, 1);
		else
			tail = expr_rep(
			    b,
			    expr_seq(b, 2, rest,
			             expr_rep(b, expr_seq(b, 2, comma, rest), low ? low - 1 : 0,
			                      high < 0 ? -1 : high - 1)),
			    low ? 1 : 0, 1);
	} else if (min > n) {
		return expr_none(b);
	}
	for (int32_t i = n - 1; i >= 0; i--) {
		Expr *item = i ? expr_seq(b, 3, comma, first->v[i], tail)
		               : expr_seq(b, 2, first->v[i], tail);
		tail = i < min ? item : expr_rep(b, item, 0, 1);
	}
	return expr_seq(b, 5, expr_text(b, "["), json_ws(b), tail, json_ws(b), expr_text(b, "]"));
}

Expr *
json_any_array(GrammarBuilder *b)
{
	if (b->json_array < 0) {
		b->json_array = rule_new(b);
		Expr *body = json_items(b, &(ExprList){ 0 }, json_any_value(b), 0, -1);
		b->rule[b->json_array] = body;
	}
	return expr_rule(b, b->json_array);
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

Expr *
json_key(GrammarBuilder *b, const char *name, size_t n)
{
	return expr_seq(b, 3, json_quoted(b, name, n), expr_text(b, ":"), json_ws(b));
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
		return json_members(b, &parts, NEW(b->a, uint8_t, n + 1));
	}
	case JSON_ARRAY:
		json_array_foreach (v, i, value)
			expr_push(b, &parts, json_literal(b, value));
		return json_items(b, &parts, NULL, (int32_t)parts.n, (int32_t)parts.n);
	case JSON_STRING:
		return json_quoted(b, json_string_value(v), json_string_length(v));
	case JSON_INTEGER:
		return expr_text(b, arena_printf(b->a, "%lld", (long long)json_integer_value(v)));
	case JSON_REAL:
		number_text(number, json_real_value(v), NUMBER_EXACT);
		return expr_text(b, number);
	case JSON_TRUE:
		return expr_text(b, "true");
	case JSON_FALSE:
		return expr_text(b, "false");
	case JSON_NULL:
		break;
	}
	return expr_text(b, "null");
}
