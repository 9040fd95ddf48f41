/* Arrays and objects of a schema. */
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "grammar/schema.h"

enum { MAX_PATTERNS = 5, MAX_KEY_CASES = 64, MAX_COUNTED = 6000, MAX_UNIQUE = 8 };

/* ---- arrays ---- */

/* The finite list of values of a schema; NULL: it has none. */
static const json_t *
listed_values(Schema *s, const json_t *items, const Path *p)
{
	const json_t *o = items ? schema_flat(s, items, p, 0) : NULL, *v;
	const json_t *list = json_object_get(o, "enum"), *type = json_object_get(o, "type"), *rest;
	json_t *out;
	size_t i, k;

	if (!list && json_is_string(type) && !strcmp(json_string_value(type), "boolean")) {
		json_t *both = json_pack("[b,b]", 1, 0);
		schema_keep(s, both);
		list = both;
	}
	if (!json_is_array(list) || json_object_get(o, "anyOf"))
		return NULL;
	rest = schema_without(s, o, "enum");
	out = json_array();
	schema_keep(s, out);
	json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
		bool known = !schema_accepts(s, v, rest, p);
		for (k = 0; k < json_array_size(out); k++)
			known |= schema_equal(v, json_array_get(out, k));
		if (!known && json_array_append(out, (json_t *)(uintptr_t)v) != 0)
			arena_out(s->b->a);
	}
	return out;
}

/* uniqueItems of a few listed values: one rule for each set of values that are used up. NULL: the
 * keyword is absent, or there are too many values. */
static Expr *
unique_items(Schema *s, const json_t *o, const json_t *items, int32_t min, int32_t max,
             const Path *p)
{
	GrammarBuilder *b = s->b;
	const json_t *list =
	    json_is_true(json_object_get(o, "uniqueItems")) && !json_object_get(o, "contains")
	        ? listed_values(s, items, p)
	        : NULL;
	size_t n = json_array_size(list);

	if (!list || !n || n > MAX_UNIQUE)
		return NULL;
	Expr *comma = json_comma(b, false), *value[MAX_UNIQUE];
	for (size_t i = 0; i < n; i++)
		value[i] = json_literal(b, json_array_get(list, i));
	Expr **after = NEW(b->a, Expr *, (size_t)1 << n);
	for (size_t set = (size_t)1 << n; set-- > 0;) {
		int32_t used = __builtin_popcountll(set), rule = rule_new(b);
		ExprList parts = { 0 };
		if (used >= min)
			expr_push(b, &parts, expr_empty(b));
		for (size_t i = 0; i < n && (max < 0 || used < max); i++) {
			if (set >> i & 1)
				continue;
			Expr *rest = after[set | (size_t)1 << i];
			expr_push(b, &parts,
			          used ? expr_seq(b, 3, comma, value[i], rest)
			               : expr_seq(b, 2, value[i], rest));
		}
		b->rule[rule] = expr_list(b, EXPR_ALT, &parts);
		after[set] = expr_rule(b, rule);
	}
	return expr_seq(b, 5, expr_text(b, "["), json_ws(b), after[0], json_ws(b),
	                expr_text(b, "]"));
}

/* An array with at least one item of `contains`; NULL: the keyword is absent, or other limits are
 * set too. */
static Expr *
containing(Schema *s, const json_t *o, const json_t *items, int32_t min, int32_t max, const Path *p)
{
	GrammarBuilder *b = s->b;
	const json_t *contains = json_object_get(o, "contains"),
	             *least = json_object_get(o, "minContains");

	if (!contains || min > 1 || max >= 0 || json_object_get(o, "maxContains") ||
	    json_object_get(o, "uniqueItems") || (least && json_number_of(least) > 1) ||
	    (least && json_number_of(least) < 1))
		return NULL;
	const json_t *both = items ? schema_merge_later(s, items, contains, p, 0) : contains;
	Expr *any = items ? schema_value(s, items, &(Path){ p, "items" }) : json_any_value(b),
	     *one = schema_value(s, both, &(Path){ p, "contains" }), *comma = json_comma(b, false);
	return expr_seq(
	    b, 7, expr_text(b, "["), json_ws(b), expr_rep(b, expr_seq(b, 2, any, comma), 0, -1),
	    one, expr_rep(b, expr_seq(b, 2, comma, any), 0, -1), json_ws(b), expr_text(b, "]"));
}

Expr *
schema_array(Schema *s, const json_t *o, const Path *p)
{
	const json_t *items = json_object_get(o, "items"),
	             *first = json_object_get(o, "prefixItems"), *v;
	int32_t min = schema_count(s, o, "minItems", p), max = schema_most(s, o, "maxItems", p);
	ExprList list = { 0 };
	Expr *rest = NULL;
	size_t i;

	if (!items)
		items = json_object_get(o, "unevaluatedItems");
	if (first && !json_is_array(first))
		schema_fail(s, p, "prefixItems", "expected an array of schemas");
	if (max >= 0 && min > max)
		return expr_none(s->b);
	Expr *special = first ? NULL : unique_items(s, o, items, min, max, p);
	special = special || first ? special : containing(s, o, items, min, max, p);
	if (special)
		return special;
	if (max < 0 || max > 1)
		schema_not_enforced(s, o, "uniqueItems", p);
	schema_not_enforced(s, o, "contains", p);
	json_array_foreach ((json_t *)(uintptr_t)first, i, v)
		expr_push(
		    s->b, &list,
		    schema_value(s, v, &(Path){ p, arena_printf(s->b->a, "prefixItems/%zu", i) }));
	if (items ? !json_is_false(items) : !first || s->open_objects || min > (int32_t)list.n)
		rest = items ? schema_value(s, items, &(Path){ p, "items" }) : json_any_value(s->b);
	return json_items(s->b, &list, rest, min < 0 ? 0 : min, max);
}

/* ---- objects ---- */

typedef struct NameSet {
	const char **v;
	size_t n, cap;
} NameSet;

static bool
is_among(const json_t *list, const char *name)
{
	const json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)list, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

/* Matches the rest of a string and its closing quote, except for the names, which share their first
 * `at` bytes. */
static Expr *
name_except(Schema *s, const char **name, size_t n, size_t at)
{
	static const char letters[] = "\"\\bfnrt";
	GrammarBuilder *b = s->b;
	ExprList parts = { 0 };
	Range *taken = NEW(b->a, Range, n + 1), *free_ = NEW(b->a, Range, n + 3),
	      *plain = NEW(b->a, Range, n + 7);
	size_t n_taken = 0, n_plain = 0, len;
	char escapes[sizeof letters];
	bool end = true;

	strcpy(escapes, letters);
	for (size_t i = 0; i < n;) {
		const char *x = name[i] + at;
		if (!*x) {
			end = false;
			i++;
			continue;
		}
		uint32_t c = (uint32_t)utf8_next(x, strlen(x), &len);
		size_t k = i + 1;
		while (k < n && strncmp(name[k] + at, x, len) == 0)
			k++;
		char esc[16];
		json_escape(esc, (int32_t)c, false);
		if (esc[0] && strlen(esc) == 2 && strchr(escapes, esc[1]))
			memmove(strchr(escapes, esc[1]), strchr(escapes, esc[1]) + 1,
			        strlen(strchr(escapes, esc[1])));
		taken[n_taken++] = (Range){ c, c };
		expr_push(b, &parts,
		          expr_seq(b, 2, esc[0] ? expr_text(b, esc) : expr_char(b, c, c),
		                   name_except(s, name + i, k - i, at + len)));
		i = k;
	}
	/* plain characters that continue no name */
	taken[n_taken++] = (Range){ 0, 0x1F };
	n_taken = ranges_join(taken, n_taken);
	size_t n_free = ranges_invert(taken, n_taken, free_);
	for (size_t i = 0; i < n_free; i++) {
		static const Range whole[] = {
			{ 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x7E }, { 0x80, 0x10FFFF }
		};
		for (int k = 0; k < 4; k++) {
			uint32_t lo = free_[i].lo > whole[k].lo ? free_[i].lo : whole[k].lo,
			         hi = free_[i].hi < whole[k].hi ? free_[i].hi : whole[k].hi;
			if (lo <= hi && n_plain < n + 7)
				plain[n_plain++] = (Range){ lo, hi };
		}
	}
	Expr *other = expr_alt(b, 2, expr_chars(b, plain, n_plain), json_escapes(b, escapes));
	if (s->string_tail < 0) {
		s->string_tail = rule_new(b);
		b->rule[s->string_tail] =
		    expr_seq(b, 2, expr_rep(b, json_string_char(b), 0, -1), expr_text(b, "\""));
	}
	expr_push(b, &parts, expr_seq(b, 2, other, expr_rule(b, s->string_tail)));
	if (end)
		expr_push(b, &parts, expr_text(b, "\""));
	return expr_list(b, EXPR_ALT, &parts);
}

/* Whether a name is among the later ones, from index `first`. */
static bool
is_known(const NameSet *names, size_t first, const char *name)
{
	for (size_t i = first; i < names->n; i++)
		if (!strcmp(names->v[i], name))
			return true;
	return false;
}

/* Matches a key that is not listed. */
static Expr *
other_key(Schema *s, NameSet *names)
{
	GrammarBuilder *b = s->b;
	size_t longest = 0;

	for (size_t i = 0; i < names->n; i++)
		longest = strlen(names->v[i]) > longest ? strlen(names->v[i]) : longest;
	if (!names->n)
		return json_any_string(b);
	if (longest > 1000)
		build_fail(b, "schema: a property name of %zu bytes is too long", longest);
	qsort(names->v, names->n, sizeof *names->v, text_order);
	return expr_seq(b, 2, expr_text(b, "\""), name_except(s, names->v, names->n, 0));
}

/* Returns the schema of unlisted members; NULL: there are none. */
static const json_t *
additional_of(Schema *s, const json_t *o)
{
	const json_t *v = json_object_get(o, "additionalProperties"),
	             *late = json_object_get(o, LATE_PROPERTIES);

	v = v ? v : late;
	if (!v) {
		bool lists = !json_object_get(o, OPEN) && (json_object_get(o, "properties") ||
		                                           json_object_get(o, "patternProperties"));
		return s->open_objects || !lists ? json_true() : NULL;
	}
	return json_is_false(v) ? NULL : v;
}

/* A key and its value; schema NULL: any. arguments: those of a call. */
static Expr *
member_of(Schema *s, Expr *key, const json_t *schema, const Path *p, bool arguments)
{
	GrammarBuilder *b = s->b;

	s->raw = arguments && b->style->raw;
	Expr *value = schema_value(s, schema ? schema : json_true(), p);
	s->raw = false;
	if (!arguments)
		return expr_seq(b, 4, key, expr_text(b, ":"), json_ws(b), value);
	if (b->style->raw)
		return expr_seq(b, 3, mark_text(b, b->style->open), key, value);
	return expr_seq(b, 5, mark_text(b, b->style->open), key, mark_text(b, b->style->value),
	                value, mark_text(b, b->style->end));
}

static Expr *
fixed_key(Schema *s, const char *name, bool arguments)
{
	return arguments ? expr_text(s->b, name) : json_name(s->b, name, strlen(name));
}

/* Whether keys that the schema does not list by name are written as JSON strings. */
static bool
has_json_keys(const Schema *s, bool arguments)
{
	return !arguments && (!s->b->style || s->b->style->kind != STYLE_QUOTED);
}

static void
member(Schema *s, ExprList *members, Strbuf *how, Expr *x, char which)
{
	expr_push(s->b, members, x);
	strbuf_putc(how, which);
}

/* Adds "is none of the names" to the conditions on a key. */
static void
exclude_names(Schema *s, StringRules *r, const NameSet *names)
{
	ExprList words = { 0 };

	for (size_t i = 0; i < names->n; i++)
		expr_push(s->b, &words, expr_text(s->b, names->v[i]));
	if (names->n)
		string_rules_add(s, r, expr_list(s->b, EXPR_ALT, &words), true);
}

/* A regex of patternProperties: a key has to satisfy all of its conditions. */
typedef struct KeyPattern {
	Operand op[MAX_LOOKAHEADS + 1];
	size_t n;
	size_t failing; /* 0: the key matches; i: it satisfies the first i - 1 conditions, not the
	                   next */
	const json_t *schema;
} KeyPattern;

/* Adds what `failing` means to the conditions on a key. */
static void
add_key_pattern(Schema *s, StringRules *r, const KeyPattern *k)
{
	for (size_t i = 0; i < (k->failing ? k->failing : k->n); i++)
		string_rules_add(s, r, k->op[i].x, k->op[i].negate != (i + 1 == k->failing));
}

/* Counts through all ways in which a key matches or fails each pattern. */
static bool
next_key_case(KeyPattern *k, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (++k[i].failing <= k[i].n)
			return true;
		k[i].failing = 0;
	}
	return false;
}

/* Converts the schema of keys to conditions on a string; true: any key. */
static bool
begin_key(Schema *s, const json_t *named, StringRules *r, const Path *p)
{
	*r = (StringRules){ .max = -1, .keyword = "propertyNames" };
	if (!named || json_is_true(named))
		return true;
	const json_t *type = schema_keep(s, json_pack("{s:s}", "type", "string"));
	const json_t *o = schema_merge(s, named, type, p, 0);
	if (json_is_false(o))
		return false;
	if (json_is_object(o) && !json_object_get(o, "anyOf"))
		schema_string_rules(s, o, r, p);
	else
		schema_not_enforced(s, s->root, "propertyNames", p);
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"), *v;
	ExprList words = { 0 };
	size_t i;
	if (json_is_string(one))
		expr_push(s->b, &words, expr_text(s->b, json_string_value(one)));
	json_array_foreach ((json_t *)(uintptr_t)(one ? NULL : list), i, v)
		if (json_is_string(v))
			expr_push(s->b, &words, expr_text(s->b, json_string_value(v)));
	if (one || list)
		string_rules_add(s, r, expr_list(s->b, EXPR_ALT, &words), false);
	return true;
}

/* Whether propertyNames allows a listed property. */
static bool
is_allowed_name(Schema *s, const json_t *o, const char *name, const Path *p)
{
	const json_t *named = json_object_get(o, "propertyNames");

	return !named || schema_accepts(s, schema_keep(s, json_string(name)), named, p);
}

/* Number of ways in which a key matches or fails each pattern; each is a language of its own. */
static size_t
count_key_cases(const KeyPattern *k, size_t n)
{
	size_t cases = 1;

	for (size_t i = 0; i < n; i++)
		cases *= k[i].n + 1;
	return cases;
}

/* Builds one member per set of patterns that a key may match at once. The member's schema is the
 * merge of theirs; keys that match none have `additional`. NULL with *failed: the languages are
 * too large. */
static Expr *
pattern_members(Schema *s, const json_t *o, const NameSet *names, const json_t *additional,
                const Path *p, bool arguments, bool *failed)
{
	json_t *patterns = json_object_get(o, "patternProperties"), *v;
	const json_t *named = json_object_get(o, "propertyNames");
	size_t n = json_object_size(patterns), i = 0;
	const char *key;
	KeyPattern *k = NEW(s->b->a, KeyPattern, MAX_PATTERNS);
	ExprList parts = { 0 };

	*failed = n > MAX_PATTERNS;
	if (*failed)
		return NULL;
	json_object_foreach (patterns, key, v) {
		k[i].n = schema_operands(s, key, strlen(key), k[i].op, p, "patternProperties");
		k[i++].schema = v;
	}
	if (count_key_cases(k, n) > MAX_KEY_CASES)
		schema_fail(s, p, "patternProperties",
		            "a key may match or fail the regexes in %zu ways, at most %d are "
		            "supported; use fewer look-aheads or fewer regexes",
		            count_key_cases(k, n), MAX_KEY_CASES);
	do {
		const json_t *value = NULL;
		for (i = 0; i < n; i++)
			if (!k[i].failing)
				value = value ? schema_merge_later(s, value, k[i].schema, p, 0)
				              : k[i].schema;
		const bool set = value;
		value = set ? value : additional;
		if (!value || json_is_false(value))
			continue;
		StringRules *r = NEW(s->b->a, StringRules, 1);
		if (!begin_key(s, named, r, p))
			break;
		for (i = 0; i < n; i++)
			add_key_pattern(s, r, &k[i]);
		exclude_names(s, r, names);
		Expr *name = schema_key(s, r, arguments, failed);
		if (*failed)
			return NULL;
		if (!name)
			continue;
		expr_push(
		    s->b, &parts,
		    member_of(s, name, value,
		              &(Path){ p, set ? "patternProperties" : "additionalProperties" },
		              arguments));
	} while (next_key_case(k, n));
	return parts.n ? expr_list(s->b, EXPR_ALT, &parts) : NULL;
}

static bool
has_lookahead(const json_t *patterns)
{
	const char *key;
	json_t *v;

	json_object_foreach ((json_t *)(uintptr_t)patterns, key, v)
		if (!strncmp(key, "^(?", 3) && (key[3] == '!' || key[3] == '='))
			return true;
	return false;
}

/* Returns one member with a key of patternProperties or an unlisted key; NULL: there is none. */
static Expr *
open_members(Schema *s, const json_t *o, NameSet *names, const Path *p, bool arguments)
{
	const json_t *patterns = json_object_get(o, "patternProperties"),
	             *additional = additional_of(s, o), *v;
	const json_t *named = json_object_get(o, "propertyNames");
	bool json = has_json_keys(s, arguments), failed = false;
	ExprList parts = { 0 };
	const char *key;
	GrammarBuilder *b = s->b;

	if (!json_object_size(patterns) && !additional)
		return NULL;
	size_t n = json_object_size(patterns);
	if (!json || named || n > 1 || (n && (names->n || additional)) || has_lookahead(patterns)) {
		Expr *x = pattern_members(s, o, names, additional, p, arguments, &failed);
		if (!failed)
			return x;
		if (s->b->opt.strict)
			schema_fail(s, p, "patternProperties",
			            "the languages of the keys are too large, and the schema is "
			            "strict");
		if (!json)
			return NULL;
	}
	json_object_foreach ((json_t *)(uintptr_t)patterns, key, v) {
		if (json_is_false(v))
			continue;
		Expr *inside = schema_expression(
		    s, key, strlen(key), (RegexFlags){ .json = true, .search = true, .ecma = true },
		    p, "patternProperties");
		expr_push(
		    b, &parts,
		    member_of(s, expr_seq(b, 3, expr_text(b, "\""), inside, expr_text(b, "\"")), v,
		              &(Path){ p, arena_printf(b->a, "patternProperties/%.60s", key) },
		              false));
	}
	if (additional && !parts.n)
		expr_push(b, &parts,
		          member_of(s, other_key(s, names), additional,
		                    &(Path){ p, "additionalProperties" }, false));
	return parts.n ? expr_list(b, EXPR_ALT, &parts) : NULL;
}

/* Members in order, some of them optional, then any number of others: from min to max in all. One
 * rule for each member and each number of members before it. NULL: there are too many. */
static Expr *
counted_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how, Expr *others,
                int32_t min, int32_t max, bool arguments)
{
	int32_t n = (int32_t)members->n, most = max >= 0 ? max : min;
	Expr *comma = json_comma(b, arguments), **next, **now;

	if ((int64_t)(n + 1) * (most + 1) > MAX_COUNTED)
		return NULL;
	next = NEW(b->a, Expr *, (size_t)most + 2);
	now = NEW(b->a, Expr *, (size_t)most + 2);
	/* next[k]: what follows after k members, k = most standing for more too if max < 0 */
	for (int32_t k = 0; k <= most; k++) {
		int32_t low = min > k ? min - k : 0, high = max < 0 ? -1 : max - k;
		if (!others || high == 0)
			next[k] = low ? expr_none(b) : expr_empty(b);
		else if (k)
			next[k] = expr_rep(b, expr_seq(b, 2, comma, others), low, high);
		else
			next[k] = expr_rep(
			    b,
			    expr_seq(b, 2, others,
			             expr_rep(b, expr_seq(b, 2, comma, others),
			                      low > 1 ? low - 1 : 0, high < 0 ? -1 : high - 1)),
			    low ? 1 : 0, 1);
	}
	for (int32_t i = n; i-- > 0;) {
		for (int32_t k = 0; k <= most; k++) {
			int32_t to = k < most ? k + 1 : max < 0 ? most : -1, rule = rule_new(b);
			Expr *with = to < 0 ? expr_none(b)
			             : k    ? expr_seq(b, 3, comma, members->v[i], next[to])
			                    : expr_seq(b, 2, members->v[i], next[to]);
			b->rule[rule] = how[i] == ORDER_MUST ? with : expr_alt(b, 2, with, next[k]);
			now[k] = expr_rule(b, rule);
		}
		Expr **x = now;
		now = next;
		next = x;
	}
	return json_braces(b, next[0], arguments);
}

Expr *
schema_object(Schema *s, const json_t *o, const Path *p)
{
	const json_t *properties = json_object_get(o, "properties"),
	             *required = json_object_get(o, "required"), *v;
	int32_t min = schema_count(s, o, "minProperties", p),
	        max = schema_most(s, o, "maxProperties", p);
	GrammarBuilder *b = s->b;
	ExprList members = { 0 };
	Strbuf *how = arena_strbuf(b->a);
	NameSet names = { 0 };
	const char *key;
	bool arguments = s->arguments;
	size_t i;

	s->arguments = false;
	if (properties && !json_is_object(properties))
		schema_fail(s, p, "properties", "expected an object");
	if (required && !json_is_array(required) && !json_is_boolean(required))
		schema_fail(s, p, "required", "expected an array of names");
	json_object_foreach ((json_t *)(uintptr_t)properties, key, v) {
		bool must = is_among(required, key);
		names.v = arena_grow(b->a, names.v, &names.cap, names.n + 1, sizeof *names.v);
		names.v[names.n++] = key;
		if (!is_allowed_name(s, o, key, p)) {
			if (must)
				return expr_none(b);
			continue;
		}
		if (json_is_false(v) && !must)
			continue;
		member(s, &members, how,
		       member_of(s, fixed_key(s, key, arguments), schema_member(s, o, key, p, 0),
		                 &(Path){ &(Path){ p, "properties" }, key }, arguments),
		       must ? ORDER_MUST : ORDER_MAY);
	}
	const size_t n_listed = names.n;
	json_array_foreach ((json_t *)(uintptr_t)required, i, v) { /* required but not listed */
		const char *name = json_string_value(v);
		if (!name)
			schema_fail(s, p, "required", "expected an array of names");
		if (json_object_get(properties, name) || is_known(&names, n_listed, name))
			continue;
		const json_t *own = schema_member(s, o, name, p, 0);
		own = own ? own : json_object_get(o, LATE_PROPERTIES);
		if (json_is_false(own) || !is_allowed_name(s, o, name, p))
			return expr_none(b);
		names.v = arena_grow(b->a, names.v, &names.cap, names.n + 1, sizeof *names.v);
		names.v[names.n++] = name;
		member(s, &members, how,
		       member_of(s, fixed_key(s, name, arguments), own,
		                 &(Path){ p, "additionalProperties" }, arguments),
		       ORDER_MUST);
	}
	Expr *others = open_members(s, o, &names, p, arguments);
	if (!members.n && others && (min > 0 || max >= 0)) { /* count them like items of an array */
		if (max >= 0 && min > max)
			return expr_none(b);
		Expr *comma = json_comma(b, arguments), *more;
		more = max == 0 ? expr_empty(b)
		                : expr_rep(b,
		                           expr_seq(b, 2, others,
		                                    expr_rep(b, expr_seq(b, 2, comma, others),
		                                             min > 1 ? min - 1 : 0,
		                                             max < 0 ? -1 : max - 1)),
		                           min > 0 ? 1 : 0, 1);
		return json_braces(b, more, arguments);
	}
	size_t n_must = 0;
	for (i = 0; i < how->len; i++)
		n_must += how->data[i] == ORDER_MUST;
	if (max >= 0 && (int32_t)n_must > max)
		return expr_none(b);
	if (!others && min > (int32_t)members.n)
		return expr_none(b);
	if (min > (int32_t)n_must || (max >= 0 && (others || (int32_t)members.n > max))) {
		/* at least one: the first comma decides */
		if (min == 1 && max < 0 && n_must == 0) {
			if (others) {
				expr_push(b, &members, others);
				strbuf_putc(how, ORDER_ANY);
			}
			return json_some_members(b, &members, (const uint8_t *)strbuf_str(how),
			                         arguments);
		}
		Expr *counted = counted_members(b, &members, (const uint8_t *)strbuf_str(how),
		                                others, min < 0 ? 0 : min, max, arguments);
		if (counted)
			return counted;
		if (s->b->opt.strict)
			schema_fail(s, p, min > (int32_t)n_must ? "minProperties" : "maxProperties",
			            "with optional properties this is not enforced, and the "
			            "schema is strict");
	}
	if (how->failed)
		arena_out(b->a);
	if (!arguments && members.n + (others != NULL) > 1 && members.n <= MAX_UNORDERED &&
	    json_object_get(o, UNORDERED))
		return json_unordered(b, &members, (const uint8_t *)strbuf_str(how), others);
	if (others) {
		expr_push(b, &members, others);
		strbuf_putc(how, ORDER_ANY);
	}
	return json_members(b, &members, (const uint8_t *)strbuf_str(how), arguments);
}
