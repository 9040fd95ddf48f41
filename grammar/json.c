/* JSON's own parts. Between its tokens stand at most a space, or one or two line ends and twenty blanks: never a loop that a model can get lost in;
 * with `compact` nothing. `standard` has what the standards allow without a bound. Strings hold what JSON lets stand as it is, its short
 * escapes, and control characters by number. */
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "grammar/schema.h"

enum { MAX_BLANKS = 20, MAX_DIGITS = 16, MAX_EXPONENT = 3 };

Ex *
json_ws(Build *b)
{
	if (b->opt.compact)
		return ex_empty(b);
	if (b->opt.standard)
		return ex_rep(b, ex_chars(b, (Range[]){ { ' ', ' ' }, { '\n', '\n' }, { '\r', '\r' }, { '\t', '\t' } }, 4), 0, -1);
	Ex *blanks = ex_rep(b, ex_chars(b, (Range[]){ { ' ', ' ' }, { '\t', '\t' } }, 2), 0, MAX_BLANKS);
	return ex_alt(b, 3, ex_empty(b), ex_text(b, " "), ex_seq(b, 2, ex_rep(b, ex_text(b, "\n"), 1, 2), blanks));
}

/* What stands behind a backslash: a letter of `letters`, or the number of a control character. No other numbers: a half of a surrogate pair is no text. */
Ex *
json_escapes(Build *b, const char *letters)
{
	static const Range hex[] = { { '0', '9' }, { 'a', 'f' }, { 'A', 'F' } };
	Range letter[16];
	size_t n = 0;

	for (; letters[n] && n < 16; n++)
		letter[n] = (Range){ (uint8_t)letters[n], (uint8_t)letters[n] };
	Ex *low = ex_seq(b, 2, ex_chars(b, (Range[]){ { '0', '1' } }, 1), ex_chars(b, hex, 3));
	Ex *del = ex_seq(b, 2, ex_text(b, "7"), ex_chars(b, (Range[]){ { 'f', 'f' }, { 'F', 'F' } }, 2));
	return ex_seq(b, 2, ex_text(b, "\\"), ex_alt(b, 2, ex_chars(b, letter, n), ex_seq(b, 2, ex_text(b, "u00"), ex_alt(b, 2, low, del))));
}

Ex *
json_string_char(Build *b)
{
	static const Range plain[] = { { 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x7E }, { 0x80, 0x10FFFF } };

	return ex_alt(b, 2, ex_chars(b, plain, 4), json_escapes(b, "\"\\bfnrt"));
}

Ex *
json_any_string(Build *b)
{
	if (b->json_string < 0) {
		b->json_string = rule_new(b);
		b->rule[b->json_string] = ex_seq(b, 3, ex_text(b, "\""), ex_rep(b, json_string_char(b), 0, -1), ex_text(b, "\""));
	}
	return ex_rule(b, b->json_string);
}

/* Models run on in numbers: digits have a bound. */
Ex *
json_any_number(Build *b, bool integer)
{
	int32_t digits = b->opt.standard ? -1 : MAX_DIGITS, exponent = b->opt.standard ? -1 : MAX_EXPONENT;
	Ex *digit = ex_char(b, '0', '9');
	Ex *whole = ex_seq(b, 2, ex_rep(b, ex_text(b, "-"), 0, 1),
	                   ex_alt(b, 2, ex_text(b, "0"), ex_seq(b, 2, ex_char(b, '1', '9'), ex_rep(b, digit, 0, digits < 0 ? -1 : digits - 1))));

	if (integer)
		return whole;
	Ex *e = ex_chars(b, (Range[]){ { 'e', 'e' }, { 'E', 'E' } }, 2), *sign = ex_chars(b, (Range[]){ { '+', '+' }, { '-', '-' } }, 2);
	return ex_seq(b, 3, whole, ex_rep(b, ex_seq(b, 2, ex_text(b, "."), ex_rep(b, digit, 1, digits)), 0, 1),
	              ex_rep(b, ex_seq(b, 3, e, ex_rep(b, sign, 0, 1), ex_rep(b, digit, 1, exponent)), 0, 1));
}

Ex *
json_any_value(Build *b)
{
	if (b->json_value < 0) {
		b->json_value = rule_new(b);
		b->rule[b->json_value] = ex_alt(b, 7, ex_text(b, "null"), ex_text(b, "true"), ex_text(b, "false"), json_any_number(b, false), json_any_string(b),
		                                json_any_array(b), json_any_object(b));
	}
	return ex_rule(b, b->json_value);
}

Ex *
json_members(Build *b, const ExList *members, const uint8_t *how)
{
	Ex *order = ex_new(b, EX_ORDER);
	Ex **part = NEW(b->a, Ex *, members->n + 1);
	uint8_t *own = NEW(b->a, uint8_t, members->n + 1);

	if (members->n) {
		memcpy(part, members->v, members->n * sizeof *part);
		memcpy(own, how, members->n);
	}
	part[members->n] = ex_seq(b, 2, ex_text(b, ","), json_ws(b));
	order->part = part;
	order->how = own;
	order->n = (int32_t)members->n;
	/* an empty object has its blanks once */
	return ex_seq(b, 5, ex_text(b, "{"), json_ws(b), order, json_ws(b), ex_text(b, "}"));
}

/* One of the members comes first, the rest may follow it in their order. */
Ex *
json_some_members(Build *b, const ExList *members, const uint8_t *how)
{
	ExList starts = { 0 };
	Ex *comma = ex_seq(b, 2, ex_text(b, ","), json_ws(b)), *rest = ex_empty(b);

	for (size_t i = members->n; i-- > 0;) { /* as rules, so that what follows is made once */
		int32_t behind = rule_new(b);
		b->rule[behind] = rest;
		Ex *own = members->v[i], *after = ex_rule(b, behind);
		ex_push(b, &starts, how[i] == ORDER_ANY ? ex_seq(b, 3, own, ex_rep(b, ex_seq(b, 2, comma, own), 0, -1), after) : ex_seq(b, 2, own, after));
		Ex *more = ex_rep(b, ex_seq(b, 2, comma, own), 0, how[i] == ORDER_ANY ? -1 : 1);
		rest = ex_seq(b, 2, more, after);
	}
	return ex_seq(b, 5, ex_text(b, "{"), json_ws(b), ex_list(b, EX_ALT, &starts), json_ws(b), ex_text(b, "}"));
}

Ex *
json_any_object(Build *b)
{
	if (b->json_object < 0) {
		ExList one = { 0 };
		b->json_object = rule_new(b);
		ex_push(b, &one, ex_seq(b, 4, json_any_string(b), ex_text(b, ":"), json_ws(b), json_any_value(b)));
		Ex *body = json_members(b, &one, (uint8_t[]){ ORDER_ANY });
		b->rule[b->json_object] = body;
	}
	return ex_rule(b, b->json_object);
}

/* max -1: none. What is beyond `first` is `rest`; NULL: nothing may. */
Ex *
json_items(Build *b, const ExList *first, Ex *rest, int32_t min, int32_t max)
{
	Ex *comma = ex_seq(b, 2, ex_text(b, ","), json_ws(b)), *tail = ex_empty(b);
	int32_t n = (int32_t)first->n;

	if (max >= 0 && n > max)
		n = max;
	if (rest && (max < 0 || max > n)) {
		int32_t low = min > n ? min - n : 0, high = max < 0 ? -1 : max - n;
		if (n)
			tail = ex_rep(b, ex_seq(b, 2, comma, rest), low, high);
		else if (low <= 1 && high == 1)
			tail = ex_rep(b, rest, low, 1);
		else
			tail = ex_rep(b, ex_seq(b, 2, rest, ex_rep(b, ex_seq(b, 2, comma, rest), low ? low - 1 : 0, high < 0 ? -1 : high - 1)), low ? 1 : 0, 1);
	} else if (min > n) {
		return ex_none(b);
	}
	for (int32_t i = n - 1; i >= 0; i--) {
		Ex *item = i ? ex_seq(b, 3, comma, first->v[i], tail) : ex_seq(b, 2, first->v[i], tail);
		tail = i < min ? item : ex_rep(b, item, 0, 1);
	}
	return ex_seq(b, 5, ex_text(b, "["), json_ws(b), tail, json_ws(b), ex_text(b, "]"));
}

Ex *
json_any_array(Build *b)
{
	if (b->json_array < 0) {
		b->json_array = rule_new(b);
		Ex *body = json_items(b, &(ExList){ 0 }, json_any_value(b), 0, -1);
		b->rule[b->json_array] = body;
	}
	return ex_rule(b, b->json_array);
}

Ex *
json_quoted(Build *b, const char *s, size_t n)
{
	Strbuf *text = arena_strbuf(b->a);

	json_str(text, s, n);
	if (text->failed)
		arena_out(b->a);
	return ex_bytes(b, text->data, text->len);
}

Ex *
json_key(Build *b, const char *name, size_t n)
{
	return ex_seq(b, 3, json_quoted(b, name, n), ex_text(b, ":"), json_ws(b));
}

Ex *
json_literal(Build *b, const json_t *v)
{
	ExList parts = { 0 };
	char number[NUMBER_SIZE];
	json_t *value;
	size_t i;

	switch (json_typeof(v)) {
	case JSON_OBJECT: {
		const char *key;
		size_t n = json_object_size(v);
		json_object_foreach((json_t *)(uintptr_t)v, key, value)
			ex_push(b, &parts, ex_seq(b, 2, json_key(b, key, strlen(key)), json_literal(b, value)));
		return json_members(b, &parts, NEW(b->a, uint8_t, n + 1));
	}
	case JSON_ARRAY:
		json_array_foreach(v, i, value)
			ex_push(b, &parts, json_literal(b, value));
		return json_items(b, &parts, NULL, (int32_t)parts.n, (int32_t)parts.n);
	case JSON_STRING:
		return json_quoted(b, json_string_value(v), json_string_length(v));
	case JSON_INTEGER:
		return ex_text(b, arena_printf(b->a, "%lld", (long long)json_integer_value(v)));
	case JSON_REAL:
		number_text(number, json_real_value(v), NUMBER_EXACT);
		return ex_text(b, number);
	case JSON_TRUE:
		return ex_text(b, "true");
	case JSON_FALSE:
		return ex_text(b, "false");
	case JSON_NULL:
		break;
	}
	return ex_text(b, "null");
}
