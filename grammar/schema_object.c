/* Objects of a schema. */
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "grammar/schema.h"

enum { MAX_PATTERNS = 5, MAX_KEY_CASES = 64, MAX_COUNTED = 6000 };

typedef struct NameSet {
	const char **v;
	size_t n, cap;
} NameSet;

/* Matches the rest of a string and its closing quote, unless the string is one of the names, which
 * share their first `at` bytes. */
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
	/* plain characters with which no name continues */
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

/* Is a name among the names from index `first` on? */
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
		bool lists =
		    json_object_get(o, "properties") || json_object_get(o, "patternProperties");
		return s->open_objects || !lists ? json_true() : NULL;
	}
	return json_is_false(v) ? NULL : v;
}

/* Matches a key and its value; schema NULL: any value. arguments: the member is an argument of a
 * call. */
static Expr *
member_of(Schema *s, Expr *key, const json_t *schema, const Path *p, bool arguments)
{
	GrammarBuilder *b = s->b;

	s->raw = arguments && b->style->raw;
	Expr *value = s->shared && json_is_object(schema)
	                  ? schema_resolve_ref(s, schema, p)
	                  : schema_value(s, schema ? schema : json_true(), p);
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

/* Are keys that the schema does not list by name written as JSON strings? */
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

/* Adds the condition that a key is none of the names. */
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
	/* 0: the key matches all conditions; i: it satisfies the first i - 1 of them and not the
	 * next */
	size_t failing;
	const json_t *schema;
} KeyPattern;

/* Adds the conditions that `failing` describes to those on a key. */
static void
add_key_pattern(Schema *s, StringRules *r, const KeyPattern *k)
{
	for (size_t i = 0; i < (k->failing ? k->failing : k->n); i++)
		string_rules_add(s, r, k->op[i].x, k->op[i].negate != (i + 1 == k->failing));
}

/* Advances to the next combination of ways in which a key matches or fails each pattern. */
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

/* Returns the alternatives of a schema of keys, without anyOf; NULL: no key fits. */
static const json_t *
key_options(Schema *s, const json_t *named, const Path *p)
{
	const json_t *type = schema_keep(s, json_pack("{s:s}", "type", "string")), *v, *more;
	const json_t *o = named ? schema_merge(s, named, type, p, 0) : json_true();
	size_t i, k;

	if (json_is_false(o))
		return NULL;
	if (!json_object_get(o, "anyOf"))
		return schema_keep(s, json_pack("[O]", schema_mutable(o)));
	json_t *out = json_array();
	schema_keep(s, out);
	json_array_foreach (json_object_get(o, "anyOf"), i, v) {
		const json_t *one = schema_merge(s, schema_without(s, o, "anyOf"), v, p, 0);
		if (json_is_false(one))
			continue;
		if (!json_object_get(one, "anyOf")) {
			schema_add(s, out, one);
			continue;
		}
		json_array_foreach (schema_mutable(key_options(s, one, p)), k, more)
			schema_add(s, out, more);
	}
	return out;
}

/* Converts an alternative of the schema of keys to conditions on a string. */
static void
begin_key(Schema *s, const json_t *o, StringRules *r, const Path *p)
{
	*r = (StringRules){ .max = -1, .keyword = "propertyNames" };
	if (!json_is_object(o))
		return;
	schema_string_rules(s, o, r, p);
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"), *v;
	ExprList words = { 0 };
	size_t i;
	if (json_is_string(one))
		expr_push(s->b, &words, expr_text(s->b, json_string_value(one)));
	json_array_foreach (schema_mutable(one ? NULL : list), i, v)
		if (json_is_string(v))
			expr_push(s->b, &words, expr_text(s->b, json_string_value(v)));
	if (one || list)
		string_rules_add(s, r, expr_list(s->b, EXPR_ALT, &words), false);
}

/* Does propertyNames allow a listed property? */
static bool
is_allowed_name(Schema *s, const json_t *o, const char *name, const Path *p)
{
	const json_t *named = json_object_get(o, "propertyNames");

	return !named || schema_accepts(s, schema_keep(s, json_string(name)), named, p);
}

/* Returns the number of ways in which a key matches or fails each pattern. Each way needs a
 * language of its own. */
static size_t
count_key_cases(const KeyPattern *k, size_t n)
{
	size_t cases = 1;

	for (size_t i = 0; i < n; i++)
		cases *= k[i].n + 1;
	return cases;
}

/* Builds one member per set of patterns that a key may match at once, for one alternative of the
 * schema of keys. Returns false if the languages are too large. */
static bool
add_pattern_members(Schema *s, ExprList *parts, KeyPattern *k, size_t n, const json_t *named,
                    const NameSet *names, const json_t *additional, const json_t *also,
                    const Path *p, bool arguments)
{
	bool failed = false;

	do {
		const json_t *value = NULL;
		for (size_t i = 0; i < n; i++)
			if (!k[i].failing)
				value = value ? schema_merge_later(s, value, k[i].schema, p, 0)
				              : k[i].schema;
		const bool set = value;
		value = set ? value : additional;
		if (value && also)
			value = schema_merge_later(s, value, also, p, 0);
		if (!value || json_is_false(value))
			continue;
		StringRules *r = NEW(s->b->a, StringRules, 1);
		begin_key(s, named, r, p);
		for (size_t i = 0; i < n; i++)
			add_key_pattern(s, r, &k[i]);
		exclude_names(s, r, names);
		Expr *name = schema_key(s, r, arguments, &failed);
		if (failed)
			return false;
		if (!name)
			continue;
		expr_push(
		    s->b, parts,
		    member_of(s, name, value,
		              &(Path){ p, set ? "patternProperties" : "additionalProperties" },
		              arguments));
	} while (next_key_case(k, n));
	return true;
}

/* Builds an unlisted member. Its schema is the merge of those of all patterns that its key matches;
 * keys that match none have `additional`. found: further conditions {"key", "value"}, or NULL.
 * Returns NULL if there is none; with *failed, because the languages are too large. */
static Expr *
pattern_members(Schema *s, const json_t *o, const NameSet *names, const json_t *additional,
                const json_t *found, const Path *p, bool arguments, bool *failed)
{
	json_t *patterns = json_object_get(o, "patternProperties"), *v;
	const json_t *named = json_object_get(o, "propertyNames"),
	             *key_of_found = json_object_get(found, "key");
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
	if (key_of_found)
		named = named ? schema_merge(s, named, key_of_found, p, 0) : key_of_found;
	json_array_foreach (schema_mutable(key_options(s, named, p)), i, v)
		if (!add_pattern_members(s, &parts, k, n, v, names, additional,
		                         json_object_get(found, "value"), p, arguments)) {
			*failed = true;
			return NULL;
		}
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
		Expr *x = pattern_members(s, o, names, additional, NULL, p, arguments, &failed);
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

/* Matches members in order, some of them optional, then other members: from min to max members in
 * total. There is one rule for each member and each number of members before it. NULL: there are
 * too many rules. */
static Expr *
counted_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how, size_t n_found,
                Expr *others, int32_t min, int32_t max, bool arguments)
{
	int32_t n = (int32_t)members->n, most = max >= 0 ? max : min;
	Expr *comma = json_comma(b, arguments), **next, **now;

	if ((int64_t)(n + 1) * (most + 1) > MAX_COUNTED)
		return NULL;
	next = NEW(b->a, Expr *, (size_t)most + 2);
	now = NEW(b->a, Expr *, (size_t)most + 2);
	/* next[k]: expression after k members; if max < 0, k = most also means more members */
	for (int32_t k = 0; k <= most; k++) {
		int32_t low = min > k ? min - k : 0, high = max < 0 ? -1 : max - k;
		if (!others || high == 0)
			next[k] = low ? expr_none(b) : expr_empty(b);
		else if (k)
			next[k] = expr_rep(b, expr_seq(b, 2, comma, others), low, high);
		else
			next[k] = json_list(b, comma, others, low, high);
	}
	for (int32_t i = n; i-- > 0;) {
		for (int32_t k = most; k >= 0; k--) {
			int32_t to = k < most ? k + 1 : max < 0 ? most : -1, rule = rule_new(b);
			Expr *with = to < 0 ? expr_none(b)
			             : k    ? expr_seq(b, 3, comma, members->v[i], next[to])
			                    : expr_seq(b, 2, members->v[i], next[to]);
			now[k] = expr_rule(b, rule);
			if (others && to >= 0 && i >= n - (int32_t)n_found) /* others come before */
				with = expr_alt(b, 2, with,
				                k ? expr_seq(b, 3, comma, others, now[to])
				                  : expr_seq(b, 2, others, now[to]));
			b->rule[rule] = how[i] == ORDER_MUST ? with : expr_alt(b, 2, with, next[k]);
		}
		Expr **x = now;
		now = next;
		next = x;
	}
	return json_braces(b, next[0], arguments);
}

/* ---- objects ---- */

/* Members of an object while it is built. */
typedef struct Members {
	ExprList v;
	Strbuf *how; /* ORDER_ of each */
	NameSet names;
	size_t n_found; /* members with FOUND_MEMBERS, which come last */
	bool arguments;
} Members;

static void
add_name(Schema *s, NameSet *names, const char *name)
{
	names->v = arena_grow(s->b->a, names->v, &names->cap, names->n + 1, sizeof *names->v);
	names->v[names->n++] = name;
}

/* Adds the members of `properties`. Returns false if a required one has no value. */
static bool
add_listed(Schema *s, Members *m, const json_t *o, const Path *p)
{
	const char *key;
	const json_t *v;

	json_object_foreach (json_object_get(o, "properties"), key, v) {
		bool must = schema_lists_name(json_object_get(o, "required"), key);
		add_name(s, &m->names, key);
		const json_t *own =
		    is_allowed_name(s, o, key, p) ? schema_member(s, o, key, p, 0) : json_false();
		const Path here = { &(Path){ p, "properties" }, key };
		if (json_is_false(own) && must) {
			schema_value(s, own, &here); /* for the error: the property has no value */
			return false;
		}
		if (!json_is_false(own))
			member(
			    s, &m->v, m->how,
			    member_of(s, fixed_key(s, key, m->arguments), own, &here, m->arguments),
			    must ? ORDER_MUST : ORDER_MAY);
	}
	return true;
}

/* Adds members that are required or restricted, but not listed. Returns false if a required one has
 * no value. */
static bool
add_unlisted(Schema *s, Members *m, const json_t *o, const Path *p)
{
	const json_t *properties = json_object_get(o, "properties"),
	             *required = json_object_get(o, "required"), *v;
	const size_t n_listed = m->names.n;
	const char *name;
	size_t i;

	json_array_foreach (schema_mutable(required), i, v) {
		name = json_string_value(v);
		if (!name)
			schema_fail(s, p, "required", "expected an array of names");
		if (json_object_get(properties, name) || is_known(&m->names, n_listed, name))
			continue;
		const json_t *own = schema_unlisted(s, o, name, p, 0),
		             *held = json_object_get(json_object_get(o, HELD), name);
		own = own ? own : json_object_get(o, LATE_PROPERTIES);
		own = own && held ? schema_merge_later(s, own, held, p, 0) : held ? held : own;
		if (json_is_false(own) || !is_allowed_name(s, o, name, p))
			return false;
		add_name(s, &m->names, name);
		member(s, &m->v, m->how,
		       member_of(s, fixed_key(s, name, m->arguments), own,
		                 &(Path){ p, "additionalProperties" }, m->arguments),
		       ORDER_MUST);
	}
	json_object_foreach (json_object_get(o, HELD), name, v) {
		if (json_object_get(properties, name) || is_known(&m->names, n_listed, name) ||
		    json_is_true(v))
			continue;
		add_name(s, &m->names, name);
		const json_t *own = schema_unlisted(s, o, name, p, 0);
		own = own ? own : additional_of(s, o);
		if (!own || json_is_false(own) || !is_allowed_name(s, o, name, p))
			continue;
		own = schema_merge_later(s, own, v, p, 0);
		if (!json_is_false(own))
			member(s, &m->v, m->how,
			       member_of(s, fixed_key(s, name, m->arguments), own,
			                 &(Path){ p, "additionalProperties" }, m->arguments),
			       ORDER_MAY);
	}
	return true;
}

/* Adds one member per element of FOUND_MEMBERS. Returns false if one is impossible. */
static bool
add_found(Schema *s, Members *m, const json_t *o, const Path *p)
{
	const json_t *found;
	size_t i;
	bool failed;

	json_array_foreach (json_object_get(o, FOUND_MEMBERS), i, found) {
		/* an object that is closed by default may have it, like a required property */
		const json_t *additional = additional_of(s, o);
		if (!additional && !json_object_get(o, "additionalProperties") &&
		    !json_object_get(o, LATE_PROPERTIES))
			additional = json_true();
		Expr *x =
		    pattern_members(s, o, &m->names, additional, found, p, m->arguments, &failed);
		if (failed && s->b->opt.strict)
			schema_fail(s, p, "patternProperties",
			            "the languages of the keys are too large, and the schema is "
			            "strict");
		if (failed)
			continue;
		if (!x)
			return false;
		member(s, &m->v, m->how, x, ORDER_MUST);
		m->n_found++;
	}
	return true;
}

/* An object of the members and any number of others; NULL: the limits of its size are not
 * enforced. */
static Expr *
sized_members(Schema *s, Members *m, Expr *others, int32_t min, int32_t max, bool *impossible)
{
	const int32_t n = (int32_t)m->v.n;
	int32_t n_must = 0;

	for (size_t i = 0; i < m->how->len; i++)
		n_must += m->how->data[i] == ORDER_MUST;
	*impossible = (max >= 0 && (n_must > max || min > max)) || (!others && min > n);
	if (*impossible || (min <= n_must && (max < 0 || (!others && n <= max))))
		return NULL;
	/* at least one: the first comma decides */
	if (min == 1 && max < 0 && n_must == 0) {
		if (others)
			member(s, &m->v, m->how, others, ORDER_ANY);
		return json_some_members(s->b, &m->v, (const uint8_t *)strbuf_str(m->how),
		                         m->arguments);
	}
	return counted_members(s->b, &m->v, (const uint8_t *)strbuf_str(m->how), m->n_found, others,
	                       min < 0 ? 0 : min, max, m->arguments);
}

Expr *
schema_object(Schema *s, const json_t *o, const Path *p)
{
	const json_t *properties = json_object_get(o, "properties"),
	             *required = json_object_get(o, "required");
	int32_t min = schema_count(s, o, "minProperties", p),
	        max = schema_most(s, o, "maxProperties", p);
	GrammarBuilder *b = s->b;
	Members m = { .how = arena_strbuf(b->a), .arguments = s->arguments };

	if (json_object_get(o, SOME_MEMBERS))
		return schema_object_with_members(s, o, p);
	s->arguments = false;
	if (properties && !json_is_object(properties))
		schema_fail(s, p, "properties", "expected an object");
	if (required && !json_is_array(required) && !json_is_boolean(required))
		schema_fail(s, p, "required", "expected an array of names");
	if (!add_listed(s, &m, o, p) || !add_unlisted(s, &m, o, p) || !add_found(s, &m, o, p))
		return expr_none(b);
	Expr *others = open_members(s, o, &m.names, p, m.arguments);
	if (!m.v.n && others && (min > 0 || max >= 0))
		return json_braces(b, json_list(b, json_comma(b, m.arguments), others, min, max),
		                   m.arguments);
	bool impossible;
	Expr *sized = sized_members(s, &m, others, min, max, &impossible);
	if (impossible)
		return expr_none(b);
	if (sized)
		return sized;
	const uint8_t *how = (const uint8_t *)strbuf_str(m.how);
	int32_t n_must = 0;
	for (size_t i = 0; i < m.how->len; i++)
		n_must += how[i] == ORDER_MUST;
	if (s->b->opt.strict && (min > n_must || (max >= 0 && (others || (int32_t)m.v.n > max))))
		schema_fail(s, p, min > n_must ? "minProperties" : "maxProperties",
		            "with optional properties this is not enforced, and the schema is "
		            "strict");
	if (m.how->failed)
		arena_out(b->a);
	if (!m.arguments && m.v.n + (others != NULL) > 1 && m.v.n <= MAX_UNORDERED &&
	    (m.n_found || json_object_get(o, HELD) || json_object_get(o, UNORDERED)))
		return json_unordered(b, &m.v, how, others);
	if (others)
		member(s, &m.v, m.how, others, ORDER_ANY);
	return json_members(b, &m.v, (const uint8_t *)strbuf_str(m.how), m.arguments);
}
