/* Strings and numbers of a schema. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "grammar/language.h"
#include "grammar/schema.h"

enum { MAX_MULTIPLE = 3000, MAX_DECIMALS = 6, MAX_HOSTNAME = 253 };

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
	const char *outer = s->b->place;

	s->b->place = arena_printf(s->b->a, "schema, %s/%s", schema_path(s, p), keyword);
	Expr *x = flags.operand ? regex_operand(s->b, regex, n, flags)
	                        : regex_read(s->b, regex, n, flags);
	s->b->place = outer;
	return x;
}

/* Finds the end of the group that begins at s[at] == '('; n: the group has no end. */
static size_t
group_end(const char *s, size_t n, size_t at)
{
	int depth = 0;
	bool set = false;

	for (; at < n; at++) {
		if (s[at] == '\\')
			at++;
		else if (set)
			set = s[at] != ']';
		else if (s[at] == '[')
			set = true;
		else if (s[at] == '(')
			depth++;
		else if (s[at] == ')' && --depth == 0)
			return at;
	}
	return n;
}

/* Does an alternative of the whole regex begin after byte `at`? */
static bool
has_alternatives(const char *s, size_t n, size_t at)
{
	for (; at < n; at++) {
		if (s[at] == '|')
			return true;
		if (s[at] == '\\')
			at++;
		else if (s[at] == '(')
			at = group_end(s, n, at);
		else if (s[at] == '[')
			while (++at < n && s[at] != ']')
				at += s[at] == '\\';
	}
	return false;
}

size_t
schema_operands(Schema *s, const char *regex, size_t n, Operand *out, const Path *p,
                const char *keyword)
{
	RegexFlags flags = { .search = true, .ecma = true, .operand = true };
	size_t k = 0, at = 1;

	while (k < MAX_LOOKAHEADS && n > at + 3 && *regex == '^' && regex[at] == '(' &&
	       regex[at + 1] == '?' && (regex[at + 2] == '!' || regex[at + 2] == '=')) {
		size_t end = group_end(regex, n, at);
		if (end == n || has_alternatives(regex, n, end + 1))
			break;
		const char *ahead =
		    arena_printf(s->b->a, "^(?:%.*s)", (int)(end - at - 3), regex + at + 3);
		out[k++] = (Operand){ schema_expression(s, ahead, strlen(ahead), flags, p, keyword),
			              regex[at + 2] == '!' };
		at = end + 1;
	}
	if (k) {
		regex = arena_printf(s->b->a, "^%.*s", (int)(n - at), regex + at);
		n = strlen(regex);
	}
	out[k++] = (Operand){ schema_expression(s, regex, n, flags, p, keyword), false };
	return k;
}

/* ---- the form of strings in the output ---- */

/* Matches any characters up to and including the string or token that ends a value. */
static Expr *
up_to(GrammarBuilder *b, const ValueStyle *v, bool raw)
{
	return until_text(b, raw ? v->end : v->quote);
}

static bool
is_json_string(const Schema *s)
{
	return !s->raw && (!s->b->style || !s->b->style->quote);
}

/* Matches a string between its quotes; `inside` matches its characters (in JSON including
 * escapes). */
static Expr *
string_marks(Schema *s, Expr *inside)
{
	GrammarBuilder *b = s->b;
	const ValueStyle *v = b->style;

	if (s->raw)
		return expr_seq(b, 3, mark_text(b, v->value), inside, mark_text(b, v->end));
	if (v && v->quote)
		return expr_seq(b, 3, mark_text(b, v->quote), inside, mark_text(b, v->quote));
	return expr_seq(b, 3, expr_text(b, "\""), inside, expr_text(b, "\""));
}

Expr *
schema_any_string(Schema *s)
{
	GrammarBuilder *b = s->b;

	if (is_json_string(s))
		return json_any_string(b);
	return expr_seq(b, 2, mark_text(b, s->raw ? b->style->value : b->style->quote),
	                up_to(b, b->style, s->raw));
}

Expr *
schema_fixed_string(Schema *s, const char *text, size_t n, const Path *p)
{
	GrammarBuilder *b = s->b;
	const char *end = is_json_string(s) ? NULL : s->raw ? b->style->end : b->style->quote;

	if (!end)
		return json_quoted(b, text, n);
	if (memmem(text, n, end, strlen(end))) {
		if (b->opt.strict)
			schema_fail(s, p, "enum",
			            "the string '%.60s' contains '%s', which ends values in this "
			            "model's format of calls, and the schema is strict",
			            text, end);
		return expr_none(b);
	}
	return string_marks(s, expr_bytes(b, text, n));
}

/* ---- several conditions on one string ---- */

void
string_rules_add(Schema *s, StringRules *r, const Expr *x, bool negate)
{
	if (r->n >= MAX_OPERANDS)
		schema_fail(s, NULL, NULL, "there are too many conditions on one string");
	r->op[r->n++] = (Operand){ x, negate };
}

static void
add_operand(Schema *s, StringRules *r, const char *text, size_t n, bool negate, const Path *p,
            const char *keyword)
{
	if (r->n >= MAX_OPERANDS) {
		if (s->b->opt.strict)
			schema_fail(s, p, keyword,
			            "more than %d conditions on one string are not enforced, and "
			            "the schema is strict",
			            MAX_OPERANDS);
		return;
	}
	if (!r->n) {
		r->keyword = keyword;
		r->text = text;
		r->n_text = n;
	}
	RegexFlags flags = { .search = true, .ecma = true, .operand = true };
	if (negate || r->n + MAX_LOOKAHEADS >= MAX_OPERANDS)
		r->op[r->n++] =
		    (Operand){ schema_expression(s, text, n, flags, p, keyword), negate };
	else
		r->n += schema_operands(s, text, n, r->op + r->n, p, keyword);
}

/* Returns a regex for "contains `mark`", as an operand to be excluded. */
static const char *
mark_core(GrammarBuilder *b, const char *mark)
{
	size_t n = strlen(mark);

	while (n && strchr(" \n\t\r", *mark))
		mark++, n--;
	while (n && strchr(" \n\t\r", mark[n - 1]))
		n--;
	return arena_strndup(b->a, mark, n);
}

static Operand
without(GrammarBuilder *b, const char *mark)
{
	Expr *any = expr_rep(b, expr_char(b, 0, 0x10FFFF), 0, -1);

	return (Operand){ expr_seq(b, 3, any, expr_text(b, mark), any), true };
}

/* Handles the simple case of one positive regex: the length limit holds anyway, or it limits one
 * repeated class. */
static Expr *
simple_string(Schema *s, const StringRules *r, RegexFlags flags, const Path *p)
{
	const Expr *plain = r->op[0].x;
	int64_t lo, hi;

	if (r->n != 1 || r->op[0].negate)
		return NULL;
	if (!r->min && r->max < 0)
		return schema_expression(s, r->text, r->n_text, flags, p, r->keyword);
	if (!lengths(plain, &lo, &hi, 0))
		return NULL;
	Expr *inside = schema_expression(s, r->text, r->n_text, flags, p, r->keyword);
	if (lo >= r->min && (r->max < 0 || (hi >= 0 && hi <= r->max)))
		return inside;
	if (plain->kind != EXPR_REP || plain->part[0]->kind != EXPR_CHARS ||
	    inside->kind != EXPR_REP)
		return NULL;
	int32_t least = plain->min > r->min ? plain->min : r->min,
	        most = plain->max < 0 || (r->max >= 0 && r->max < plain->max) ? r->max : plain->max;
	return most >= 0 && least > most ? expr_none(s->b)
	                                 : expr_rep(s->b, inside->part[0], least, most);
}

static Expr *
strings_of(Schema *s, StringRules *r, const Path *p)
{
	GrammarBuilder *b = s->b;
	bool json = is_json_string(s);
	RegexFlags flags = { .json = json, .search = true, .ecma = true };
	Language l;
	Expr *x = json ? simple_string(s, r, flags, p) : NULL;

	if (x)
		return string_marks(s, x);
	size_t n = r->n;
	if (!json && !mark_is_token(b, s->raw ? b->style->end : b->style->quote))
		r->op[n++] = without(b, s->raw ? b->style->end : b->style->quote);
	x = language_make(b, r->op, n, &l) ? language_expr(b, &l, r->min, r->max, flags) : NULL;
	if (x)
		return string_marks(s, x);
	if (b->opt.strict)
		schema_fail(s, p, r->keyword ? r->keyword : "maxLength",
		            "the conditions on this string are too large together, and the schema "
		            "is strict");
	if (!r->n || r->op[0].negate)
		return schema_any_string(s);
	return json
	           ? string_marks(s, schema_expression(s, r->text, r->n_text, flags, p, r->keyword))
	           : schema_any_string(s);
}

Expr *
schema_key(Schema *s, StringRules *r, bool arguments, bool *failed)
{
	GrammarBuilder *b = s->b;
	const ValueStyle *v = b->style;
	bool json = !arguments && (!v || v->kind != STYLE_QUOTED);
	Language l;

	if (!json && arguments && v->raw)
		string_rules_add(s, r, without(b, mark_core(b, v->value)).x, true);
	else if (!json)
		string_rules_add(s, r, json_bare_key(b), false);
	*failed = !language_make(b, r->op, r->n, &l);
	if (*failed || !l.n)
		return NULL;
	Expr *x = language_expr(b, &l, !json && !r->min ? 1 : r->min, r->max,
	                        (RegexFlags){ .json = json });
	*failed = !x;
	return !x || !json ? x : expr_seq(b, 3, expr_text(b, "\""), x, expr_text(b, "\""));
}

/* Collects the conditions of an object schema on a string. */
void
schema_string_rules(Schema *s, const json_t *o, StringRules *r, const Path *p)
{
	const json_t *pattern = json_object_get(o, "pattern"),
	             *format = json_object_get(o, "format"), *v;
	size_t i;

	*r = (StringRules){ .min = schema_count(s, o, "minLength", p),
		            .max = schema_most(s, o, "maxLength", p) };
	r->min = r->min < 0 ? 0 : r->min;
	if (pattern && !json_is_string(pattern))
		schema_fail(s, p, "pattern", "expected a string");
	if (pattern)
		add_operand(s, r, json_string_value(pattern), json_string_length(pattern), false, p,
		            "pattern");
	json_array_foreach (json_object_get(o, MORE_PATTERNS), i, v)
		add_operand(s, r, json_string_value(v), json_string_length(v), false, p, "pattern");
	const json_t *formats[] = { format, json_object_get(o, MORE_FORMATS) };
	for (size_t k = 0; k < 1 + json_array_size(formats[1]); k++) {
		const char *name =
		    json_string_value(k ? json_array_get(formats[1], k - 1) : format);
		const char *known = name ? format_regex(name) : NULL;
		if (known)
			add_operand(s, r, known, strlen(known), false, p, "format");
		/* RFC 1123 limits the whole name */
		if (name && (!strcmp(name, "hostname") || !strcmp(name, "host-name")) &&
		    (r->max < 0 || r->max > MAX_HOSTNAME))
			r->max = MAX_HOSTNAME;
		if (name && !known && format_is_standard(name) && s->b->opt.strict)
			schema_fail(s, p, "format",
			            "this format is not enforced, and the schema is strict");
	}
	json_array_foreach (json_object_get(o, NOT_PATTERNS), i, v)
		add_operand(s, r, json_string_value(v), json_string_length(v), true, p, "not");
	ExprList words = { 0 };
	json_array_foreach (json_object_get(o, NOT_VALUES), i, v)
		if (json_is_string(v))
			expr_push(s->b, &words,
			          expr_bytes(s->b, json_string_value(v), json_string_length(v)));
	if (words.n)
		string_rules_add(s, r, expr_list(s->b, EXPR_ALT, &words), true);
}

Expr *
schema_string(Schema *s, const json_t *o, const Path *p)
{
	StringRules *r = NEW(s->b->a, StringRules, 1);

	schema_string_rules(s, o, r, p);
	if (r->max >= 0 && r->min > r->max)
		return expr_none(s->b);
	if (r->n)
		return strings_of(s, r, p);
	if (r->min <= 0 && r->max < 0)
		return schema_any_string(s);
	if (!is_json_string(s))
		return strings_of(s, r, p);
	return expr_seq(s->b, 3, expr_text(s->b, "\""),
	                expr_rep(s->b, json_string_char(s->b), r->min, r->max),
	                expr_text(s->b, "\""));
}

/* ---- numbers ---- */

/* Converts multipleOf to an integer and a number of decimals; false: it has too many digits. */
static bool
divisor_of(Schema *s, const json_t *v, int32_t *divisor, int32_t *decimals, const Path *p)
{
	double x = json_number_of(v);

	if (!json_is_any_number(v) || !(x > 0))
		schema_fail(s, p, "multipleOf", "expected a number above 0");
	for (*decimals = 0; *decimals <= MAX_DECIMALS; ++*decimals, x *= 10) {
		if (x > MAX_MULTIPLE)
			return false;
		*divisor = (int32_t)nearbyint(x);
		if (x >= 0.5 && fabs(x - *divisor) < 1e-9 * x)
			return true;
	}
	return false;
}

/* Numbers without exponents. */
static Expr *
plain_number(GrammarBuilder *b, bool integer)
{
	Expr *minus = expr_rep(b, expr_text(b, "-"), 0, 1), *digit = expr_char(b, '0', '9'),
	     *whole = expr_alt(b, 2, expr_text(b, "0"),
	                       expr_seq(b, 2, expr_char(b, '1', '9'), expr_rep(b, digit, 0, -1)));
	return integer
	           ? expr_seq(b, 2, minus, whole)
	           : expr_seq(b, 3, minus, whole,
	                      expr_rep(b,
	                               expr_seq(b, 2, expr_text(b, "."), expr_rep(b, digit, 1, -1)),
	                               0, 1));
}

/* Multiples of a divisor. all: also those written with further zeros after the point. */
static Expr *
multiples(GrammarBuilder *b, int32_t divisor, int32_t decimals, bool all)
{
	Expr *m = expr_new(b, EXPR_MULTIPLE), *minus = expr_rep(b, expr_text(b, "-"), 0, 1),
	     *zeros = expr_rep(b, expr_text(b, "0"), 0, -1);

	m->min = divisor;
	m->n = decimals;
	return all ? expr_seq(b, 3, minus, m,
	                      expr_alt(b, 2, zeros, expr_seq(b, 2, expr_text(b, "."), zeros)))
	           : expr_seq(b, 2, minus, m);
}

/* Adds the condition on divisors of a list to the conditions on a number. Returns false if one is
 * too large. */
static bool
add_divisors(Schema *s, Operand *op, size_t *n, const json_t *list, bool negate, bool integer,
             const Path *p)
{
	const json_t *v;
	size_t i;
	int32_t divisor, decimals;

	json_array_foreach (schema_mutable(list), i, v) {
		if (!divisor_of(s, v, &divisor, &decimals, p) || *n >= MAX_OPERANDS)
			return false;
		if (!negate && integer && divisor == 1)
			continue;
		op[(*n)++] = (Operand){ multiples(s->b, divisor, decimals, negate), negate };
	}
	return true;
}

/* Numbers with divisors, or that are no integers. NULL: the automaton is too large, and the schema
 * is not strict. */
static Expr *
special_number(Schema *s, const json_t *o, const Bound *lo, const Bound *hi, bool integer,
               const Path *p)
{
	GrammarBuilder *b = s->b;
	const bool standard = b->opt.standard;
	const json_t *one = json_object_get(o, "multipleOf");
	Operand op[MAX_OPERANDS + 2] = { { plain_number(b, integer), false } };
	size_t n = 1;
	Language l;

	bool small =
	    !one || add_divisors(s, op, &n, schema_keep(s, json_pack("[O]", schema_mutable(one))),
	                         false, integer, p);
	small =
	    small && add_divisors(s, op, &n, json_object_get(o, MORE_MULTIPLES), false, integer, p);
	small =
	    small && add_divisors(s, op, &n, json_object_get(o, NOT_MULTIPLES), true, integer, p);
	if (small && json_object_get(o, FRACTION))
		op[n++] = (Operand){ multiples(b, 1, 0, true), true };
	if (small && n == 1)
		return NULL;
	if (small && (lo->set || hi->set)) {
		b->opt.standard = true; /* any number of digits, which are counted below */
		op[n++] = (Operand){ number_range(b, lo, hi, integer), false };
		b->opt.standard = standard;
	}
	Expr *x = small && language_make(b, op, n, &l)
	              ? language_expr(b, &l, 0, standard ? -1 : JSON_MAX_DIGITS, (RegexFlags){ 0 })
	              : NULL;
	if (!x && b->opt.strict)
		schema_fail(
		    s, p, "multipleOf",
		    "this divisor is not enforced, and the schema is strict: it may have up "
		    "to %d after moving the point by %d digits",
		    MAX_MULTIPLE, MAX_DECIMALS);
	return x;
}

static void
bound_of(Schema *s, const json_t *o, const char *key, const char *exclusive, bool low, Bound *out,
         const Path *p)
{
	const json_t *v = json_object_get(o, key), *x = json_object_get(o, exclusive);
	bool open = json_is_true(x); /* in draft 4 a bool: the bound is exclusive */

	if (v && !json_is_any_number(v))
		schema_fail(s, p, key, "expected a number");
	if (x && !json_is_any_number(x) && !json_is_boolean(x))
		schema_fail(s, p, exclusive, "expected a number");
	if (json_is_any_number(x)) {
		double a = v ? json_number_of(v) : 0, b = json_number_of(x);
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
	if (integer && json_object_get(o, FRACTION))
		return expr_none(s->b);
	Expr *x = json_object_get(o, "multipleOf") || json_object_get(o, NOT_MULTIPLES) ||
	                  json_object_get(o, FRACTION)
	              ? special_number(s, o, &lo, &hi, integer, p)
	              : NULL;
	if (x)
		return x;
	return lo.set || hi.set ? number_range(s->b, &lo, &hi, integer)
	                        : json_any_number(s->b, integer);
}
