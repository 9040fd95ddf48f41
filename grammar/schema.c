/* JSON Schema -> expressions. Each definition that is referred to is one rule, so recursion is free; what several schemas say of one value ($ref with
 * siblings, allOf, anyOf beside others) is merged to one schema first (merge.c). What is not written is false for other properties of an object that lists some, and
 * a type is inferred from keywords, unless `standard`: models invent what is allowed. Errors name the path of the schema and the keyword. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/schema.h"

enum { MAX_NEST = 200, MAX_VALUES = 400000, MAX_COUNT = 1000000, MAX_MULTIPLE = 1000 };

static const char *
path_text(Schema *s, const Path *p)
{
	Strbuf *out = arena_strbuf(s->b->a);
	const Path *up[MAX_NEST + 2];
	int n = 0;

	for (; p && n < MAX_NEST + 2; p = p->up)
		up[n++] = p;
	strbuf_putc(out, '#');
	while (n--)
		strbuf_printf(out, "/%.80s", up[n]->key);
	if (out->failed)
		arena_out(s->b->a);
	return strbuf_str(out);
}

void
schema_fail(Schema *s, const Path *p, const char *keyword, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	const char *why = arena_vprintf(s->b->a, fmt, ap);
	va_end(ap);
	build_fail(s->b, "schema, %s%s%s: %s", path_text(s, p), keyword ? "/" : "", keyword ? keyword : "", why);
}

const json_t *
schema_keep(Schema *s, json_t *v)
{
	if (!v)
		arena_out(s->b->a);
	arena_defer(s->b->a, (void (*)(void *))json_decref, v);
	return v;
}

static bool
is_false(const json_t *v)
{
	return json_is_false(v);
}

/* A number of things, 0 .. MAX_COUNT (more is as good as that); -1: not given. */
static int32_t
count_of(Schema *s, const json_t *o, const char *key, const Path *p)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return -1;
	if (!json_is_number(v) || json_number_value(v) < 0)
		schema_fail(s, p, key, "expected a number that is not negative");
	return json_number_value(v) > MAX_COUNT ? MAX_COUNT : (int32_t)json_number_value(v);
}

static int32_t
at_most(Schema *s, const json_t *o, const char *key, const Path *p)
{
	int32_t n = count_of(s, o, key, p);

	return n >= MAX_COUNT ? -1 : n;
}

void
schema_not_enforced(Schema *s, const json_t *o, const char *key, const Path *p)
{
	const json_t *v = json_object_get(o, key);

	if (v && !(json_is_false(v) && (!strcmp(key, "uniqueItems") || !strcmp(key, "not"))) && s->b->opt.strict)
		schema_fail(s, p, key, "this keyword is not enforced, and the schema is strict");
}

/* ---- references ---- */

static bool
hex_digit(char c, int *v)
{
	*v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
	return *v >= 0;
}

/* A piece of a JSON pointer, up to the next '/', unescaped. */
static const char *
pointer_piece(Schema *s, const char **at)
{
	char *out = arena_strdup(s->b->a, *at), *to = out;
	const char *c = *at;
	int hi, lo;

	while (*c && *c != '/') {
		if (c[0] == '%' && hex_digit(c[1], &hi) && hex_digit(c[2], &lo)) {
			*to++ = (char)(hi << 4 | lo);
			c += 3;
		} else if (c[0] == '~' && (c[1] == '0' || c[1] == '1')) {
			*to++ = c[1] == '0' ? '~' : '/';
			c += 2;
		} else {
			*to++ = *c++;
		}
	}
	*to = 0;
	*at = c;
	return out;
}

static const json_t *
find_anchor(const json_t *v, const char *name, int depth)
{
	const json_t *found = NULL, *x;
	const char *key;
	size_t i;

	if (depth > MAX_NEST)
		return NULL;
	if (json_is_object(v)) {
		const char *own = json_string_value(json_object_get(v, "$anchor"));
		if (own && !strcmp(own, name))
			return v;
		json_object_foreach((json_t *)(uintptr_t)v, key, x)
			if (!found)
				found = find_anchor(x, name, depth + 1);
	} else if (json_is_array(v)) {
		json_array_foreach((json_t *)(uintptr_t)v, i, x)
			if (!found)
				found = find_anchor(x, name, depth + 1);
	}
	return found;
}

const json_t *
schema_target(Schema *s, const json_t *ref, const Path *p)
{
	const char *text = json_string_value(ref), *id = json_string_value(json_object_get(s->root, "$id"));
	const json_t *v = s->root;

	if (!text)
		schema_fail(s, p, "$ref", "expected a string");
	size_t n = id ? strcspn(id, "#") : 0;
	if (n && !strncmp(text, id, n) && (text[n] == '#' || !text[n]))
		text += n;
	if (*text && *text != '#')
		schema_fail(s, p, "$ref", "'%.100s' is not within this schema: references to others are not followed", text);
	text += *text == '#';
	if (*text && *text != '/') {
		v = find_anchor(s->root, text, 0);
		text = "";
	}
	while (v && *text == '/') {
		text++;
		const char *key = pointer_piece(s, &text);
		if (json_is_array(v)) {
			char *end;
			unsigned long i = strtoul(key, &end, 10);
			v = *key && !*end ? json_array_get(v, i) : NULL;
		} else {
			v = json_object_get(v, key);
		}
	}
	if (!v)
		schema_fail(s, p, "$ref", "there is nothing at '%.100s'", json_string_value(ref));
	return v;
}

/* The rule of a definition: made once, whoever refers to it. */
static Ex *
referred(Schema *s, const json_t *target, const Path *p)
{
	size_t k = ((uintptr_t)target >> 4) % N_REF_BUCKET;

	for (Ref *r = s->ref[k]; r; r = r->next)
		if (r->target == target)
			return ex_rule(s->b, r->rule);
	Ref *r = NEW(s->b->a, Ref, 1);
	*r = (Ref){ target, rule_new(s->b), s->ref[k] };
	s->ref[k] = r;
	Ex *body = schema_value(s, target, p);
	s->b->rule[r->rule] = body;
	return ex_rule(s->b, r->rule);
}

/* ---- strings ---- */

/* Fewest and most characters that x matches; -1: no bound. False: too deep to tell. */
static bool
lengths(const Ex *x, int64_t *lo, int64_t *hi, int depth)
{
	int64_t l, h;

	*lo = *hi = 0;
	if (depth > 100)
		return false;
	switch (x->kind) {
	case EX_CHARS:
		*lo = *hi = 1;
		return true;
	case EX_SEQ:
		for (int32_t i = 0; i < x->n; i++) {
			if (!lengths(x->part[i], &l, &h, depth + 1))
				return false;
			*lo += l;
			*hi = *hi < 0 || h < 0 ? -1 : *hi + h;
		}
		return true;
	case EX_ALT:
		for (int32_t i = 0; i < x->n; i++) {
			if (!lengths(x->part[i], &l, &h, depth + 1))
				return false;
			*lo = !i || l < *lo ? l : *lo;
			*hi = *hi < 0 || h < 0 ? -1 : h > *hi ? h : *hi;
		}
		return true;
	case EX_REP:
		if (!lengths(x->part[0], &l, &h, depth + 1))
			return false;
		*lo = l * x->min;
		*hi = h == 0 ? 0 : h < 0 || x->max < 0 ? -1 : h * x->max;
		return true;
	default:
		return false;
	}
}

/* An expression, whose mistakes are told with its place in the schema. */
static Ex *
expression(Schema *s, const char *regex, size_t n, RegexFlags flags, const Path *p, const char *keyword)
{
	s->b->place = arena_printf(s->b->a, "schema, %s/%s", path_text(s, p), keyword);
	Ex *x = regex_read(s->b, regex, n, flags);
	s->b->place = NULL;
	return x;
}

/* An expression within quotes, beside minLength and maxLength. */
static Ex *
with_lengths(Schema *s, const char *regex, size_t n, const json_t *o, const char *keyword, const Path *p)
{
	int32_t min = count_of(s, o, "minLength", p), max = at_most(s, o, "maxLength", p);
	Ex *inside = expression(s, regex, n, (RegexFlags){ .json = true, .search = true }, p, keyword);
	int64_t lo, hi;

	if (min > 0 || max >= 0) {
		Ex *plain = regex_read(s->b, regex, n, (RegexFlags){ .search = true });
		bool told = lengths(plain, &lo, &hi, 0);
		if (plain->kind == EX_REP && plain->part[0]->kind == EX_CHARS && inside->kind == EX_REP) {
			int32_t least = plain->min > min ? plain->min : min, most = plain->max < 0 || (max >= 0 && max < plain->max) ? max : plain->max;
			inside = most >= 0 && least > most ? ex_none(s->b) : ex_rep(s->b, inside->part[0], least, most);
		} else if (!told || lo < min || (max >= 0 && (hi < 0 || hi > max))) {
			/* one of a class, more often: ^[a-z][a-z0-9]*$ and the like */
			Ex *last = plain->kind == EX_SEQ && plain->n ? plain->part[plain->n - 1] : NULL;
			int64_t l = 0, h = 0, x, y;
			bool fixed = last && last->kind == EX_REP && last->part[0]->kind == EX_CHARS && inside->kind == EX_SEQ && inside->n == plain->n;
			for (int32_t i = 0; fixed && i < plain->n - 1; i++) {
				fixed = lengths(plain->part[i], &x, &y, 0) && x == y;
				l += x;
			}
			h = l;
			if (!fixed)
				schema_fail(s, p, keyword, "beside minLength or maxLength an expression must have a length of its own, or end in one repeated class");
			int64_t least = last->min > min - l ? last->min : min - l, most = last->max;
			if (max >= 0 && (most < 0 || max - h < most))
				most = max - h;
			if (most >= 0 && least > most)
				return ex_none(s->b);
			ExList parts = { 0 };
			for (int32_t i = 0; i < inside->n - 1; i++)
				ex_push(s->b, &parts, inside->part[i]);
			ex_push(s->b, &parts, ex_rep(s->b, inside->part[inside->n - 1]->part[0], (int32_t)least, (int32_t)most));
			inside = ex_list(s->b, EX_SEQ, &parts);
		}
	}
	return ex_seq(s->b, 3, ex_text(s->b, "\""), inside, ex_text(s->b, "\""));
}

static Ex *
string(Schema *s, const json_t *o, const Path *p)
{
	const json_t *pattern = json_object_get(o, "pattern"), *format = json_object_get(o, "format");
	const char *known = json_is_string(format) ? format_regex(json_string_value(format)) : NULL;
	int32_t min = count_of(s, o, "minLength", p), max = at_most(s, o, "maxLength", p);

	if (pattern && !json_is_string(pattern))
		schema_fail(s, p, "pattern", "expected a string");
	if (format && !known && s->b->opt.strict)
		schema_fail(s, p, "format", "this format is not enforced, and the schema is strict");
	if (pattern && known && s->b->opt.strict)
		schema_fail(s, p, "format", "a format beside a pattern is not enforced, and the schema is strict");
	if (max >= 0 && min > max)
		return ex_none(s->b);
	if (pattern)
		return with_lengths(s, json_string_value(pattern), json_string_length(pattern), o, "pattern", p);
	if (known)
		return with_lengths(s, known, strlen(known), o, "format", p);
	if (min <= 0 && max < 0)
		return json_any_string(s->b);
	return ex_seq(s->b, 3, ex_text(s->b, "\""), ex_rep(s->b, json_string_char(s->b), min < 0 ? 0 : min, max), ex_text(s->b, "\""));
}

/* ---- numbers ---- */

static Ex *
multiple_of(Schema *s, const json_t *o, bool integer, const Path *p)
{
	const json_t *v = json_object_get(o, "multipleOf");
	double x = json_number_value(v);
	Ex *minus = ex_rep(s->b, ex_text(s->b, "-"), 0, 1);

	if (!json_is_number(v) || !(x > 0))
		schema_fail(s, p, "multipleOf", "expected a number above 0");
	if (x == 1 && integer)
		return json_any_number(s->b, true);
	if (x >= 1 && x <= MAX_MULTIPLE && x == (int32_t)x) {
		Ex *m = ex_new(s->b, EX_MULTIPLE);
		m->min = (int32_t)x;
		return ex_seq(s->b, 2, minus, m);
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
		return ex_seq(s->b, 2, json_any_number(s->b, true),
		              ex_rep(s->b, ex_seq(s->b, 2, ex_text(s->b, "."), ex_rep(s->b, ex_char(s->b, '0', '9'), 1, digits)), 0, 1));
	}
	schema_fail(s, p, "multipleOf", "multiples are supported of whole numbers up to %d and of 0.1, 0.01, ...", MAX_MULTIPLE);
}

static void
bound_of(Schema *s, const json_t *o, const char *key, const char *exclusive, bool low, Bound *out, const Path *p)
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

static Ex *
number(Schema *s, const json_t *o, bool integer, const Path *p)
{
	Bound lo, hi;

	bound_of(s, o, "minimum", "exclusiveMinimum", true, &lo, p);
	bound_of(s, o, "maximum", "exclusiveMaximum", false, &hi, p);
	if (json_object_get(o, "multipleOf")) {
		if ((lo.set || hi.set) && s->b->opt.strict)
			schema_fail(s, p, "multipleOf", "multiples within a range are not enforced, and the schema is strict");
		if (!lo.set && !hi.set)
			return multiple_of(s, o, integer, p);
	}
	return lo.set || hi.set ? number_range(s->b, &lo, &hi, integer) : json_any_number(s->b, integer);
}

/* ---- arrays ---- */

static Ex *
array(Schema *s, const json_t *o, const Path *p)
{
	const json_t *items = json_object_get(o, "items"), *first = json_object_get(o, "prefixItems"), *v;
	int32_t min = count_of(s, o, "minItems", p), max = at_most(s, o, "maxItems", p);
	ExList list = { 0 };
	Ex *rest = NULL;
	size_t i;

	if (!items)
		items = json_object_get(o, "unevaluatedItems");
	schema_not_enforced(s, o, "uniqueItems", p);
	schema_not_enforced(s, o, "contains", p);
	if (first && !json_is_array(first))
		schema_fail(s, p, "prefixItems", "expected an array of schemas");
	if (max >= 0 && min > max)
		return ex_none(s->b);
	json_array_foreach((json_t *)(uintptr_t)first, i, v)
		ex_push(s->b, &list, schema_value(s, v, &(Path){ p, arena_printf(s->b->a, "prefixItems/%zu", i) }));
	if (items ? !is_false(items) : !first || s->b->opt.standard || min > (int32_t)list.n)
		rest = items ? schema_value(s, items, &(Path){ p, "items" }) : json_any_value(s->b);
	return json_items(s->b, &list, rest, min < 0 ? 0 : min, max);
}

/* ---- objects ---- */

typedef struct Names { const char **v; size_t n, cap; } Names;

static bool
is_among(const json_t *list, const char *name)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)list, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

/* The inside of a string that is none of the names, which all begin alike up to byte `at`, and its closing quote. */
static Ex *
name_except(Schema *s, const char **name, size_t n, size_t at)
{
	static const char letters[] = "\"\\bfnrt";
	Build *b = s->b;
	ExList parts = { 0 };
	Range *taken = NEW(b->a, Range, n + 1), *free_ = NEW(b->a, Range, n + 3), *plain = NEW(b->a, Range, n + 7);
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
			memmove(strchr(escapes, esc[1]), strchr(escapes, esc[1]) + 1, strlen(strchr(escapes, esc[1])));
		taken[n_taken++] = (Range){ c, c };
		ex_push(b, &parts, ex_seq(b, 2, esc[0] ? ex_text(b, esc) : ex_char(b, c, c), name_except(s, name + i, k - i, at + len)));
		i = k;
	}
	/* plain characters that begin no name */
	taken[n_taken++] = (Range){ 0, 0x1F };
	n_taken = ranges_join(taken, n_taken);
	size_t n_free = ranges_invert(taken, n_taken, free_);
	for (size_t i = 0; i < n_free; i++) {
		static const Range whole[] = { { 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x7E }, { 0x80, 0x10FFFF } };
		for (int k = 0; k < 4; k++) {
			uint32_t lo = free_[i].lo > whole[k].lo ? free_[i].lo : whole[k].lo, hi = free_[i].hi < whole[k].hi ? free_[i].hi : whole[k].hi;
			if (lo <= hi && n_plain < n + 7)
				plain[n_plain++] = (Range){ lo, hi };
		}
	}
	Ex *other = ex_alt(b, 2, ex_chars(b, plain, n_plain), json_escapes(b, escapes));
	if (s->string_tail < 0) {
		s->string_tail = rule_new(b);
		b->rule[s->string_tail] = ex_seq(b, 2, ex_rep(b, json_string_char(b), 0, -1), ex_text(b, "\""));
	}
	ex_push(b, &parts, ex_seq(b, 2, other, ex_rule(b, s->string_tail)));
	if (end)
		ex_push(b, &parts, ex_text(b, "\""));
	return ex_list(b, EX_ALT, &parts);
}

static int
by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key beside those that are listed */
static Ex *
other_key(Schema *s, Names *names)
{
	Build *b = s->b;
	size_t longest = 0;

	for (size_t i = 0; i < names->n; i++)
		longest = strlen(names->v[i]) > longest ? strlen(names->v[i]) : longest;
	if (!names->n)
		return json_any_string(b);
	if (longest > 1000)
		build_fail(b, "schema: a property's name of %zu bytes is too long", longest);
	qsort(names->v, names->n, sizeof *names->v, by_text);
	return ex_seq(b, 2, ex_text(b, "\""), name_except(s, names->v, names->n, 0));
}

/* Of keys that are written nowhere: the members' schema, or NULL where there may be none. */
static const json_t *
additional_of(Schema *s, const json_t *o)
{
	const json_t *v = json_object_get(o, "additionalProperties"), *late = json_object_get(o, LATE_PROPERTIES);

	v = v ? v : late;
	if (!v) {
		bool lists = json_object_get(o, "properties") || json_object_get(o, "patternProperties");
		return s->b->opt.standard || !lists ? json_true() : NULL;
	}
	return is_false(v) ? NULL : v;
}

static void
member(Schema *s, ExList *members, Strbuf *how, Ex *key, Ex *value, char which)
{
	ex_push(s->b, members, ex_seq(s->b, 4, key, ex_text(s->b, ":"), json_ws(s->b), value));
	strbuf_putc(how, which);
}

/* Keys by an expression or any, with their schemas: one of them. NULL: there are none. */
static Ex *
open_members(Schema *s, const json_t *o, Names *names, const Path *p)
{
	const json_t *patterns = json_object_get(o, "patternProperties"), *additional = additional_of(s, o), *v;
	const json_t *named = json_object_get(o, "propertyNames");
	ExList parts = { 0 };
	const char *key;
	Build *b = s->b;

	schema_patterns(s, o, p);
	json_object_foreach((json_t *)(uintptr_t)patterns, key, v) {
		if (is_false(v)) {
			if (additional) /* names that are not of it */
				schema_not_enforced(s, o, "patternProperties", p);
			continue;
		}
		Ex *inside = expression(s, key, strlen(key), (RegexFlags){ .json = true, .search = true }, p, "patternProperties");
		Ex *value = schema_value(s, v, &(Path){ p, arena_printf(b->a, "patternProperties/%.60s", key) });
		ex_push(b, &parts, ex_seq(b, 6, ex_text(b, "\""), inside, ex_text(b, "\""), ex_text(b, ":"), json_ws(b), value));
	}
	if (additional && (!json_object_size(patterns) || !parts.n)) { /* beside patterns: those alone, since others must not match them */
		Ex *name = other_key(s, names);
		if (named && !names->n) /* as values that are texts */
			name = schema_value(s, schema_merge(s, named, schema_keep(s, json_pack("{s:s}", "type", "string")), p, 0), &(Path){ p, "propertyNames" });
		else
			schema_not_enforced(s, o, "propertyNames", p);
		Ex *value = json_is_true(additional) ? json_any_value(b) : schema_value(s, additional, &(Path){ p, "additionalProperties" });
		ex_push(b, &parts, ex_seq(b, 4, name, ex_text(b, ":"), json_ws(b), value));
	}
	return parts.n ? ex_list(b, EX_ALT, &parts) : NULL;
}

static Ex *
object(Schema *s, const json_t *o, const Path *p)
{
	static const char *const never[] = { "dependentRequired", "dependentSchemas", "dependencies", NULL };
	const json_t *properties = json_object_get(o, "properties"), *required = json_object_get(o, "required"), *v;
	int32_t min = count_of(s, o, "minProperties", p), max = at_most(s, o, "maxProperties", p);
	Build *b = s->b;
	ExList members = { 0 };
	Strbuf *how = arena_strbuf(b->a);
	Names names = { 0 };
	const char *key;
	size_t i;

	for (const char *const *k = never; *k; k++)
		schema_not_enforced(s, o, *k, p);
	if (properties && !json_is_object(properties))
		schema_fail(s, p, "properties", "expected an object");
	if (required && !json_is_array(required) && !json_is_boolean(required))
		schema_fail(s, p, "required", "expected an array of names");
	json_object_foreach((json_t *)(uintptr_t)properties, key, v) {
		bool must = is_among(required, key);
		names.v = arena_grow(b->a, names.v, &names.cap, names.n + 1, sizeof *names.v);
		names.v[names.n++] = key;
		if (is_false(v) && !must)
			continue;
		Ex *value = schema_value(s, schema_member(s, o, key, p, 0), &(Path){ &(Path){ p, "properties" }, key });
		member(s, &members, how, json_quoted(b, key, strlen(key)), value, must ? ORDER_MUST : ORDER_MAY);
	}
	json_array_foreach((json_t *)(uintptr_t)required, i, v) { /* required, but not described */
		const char *name = json_string_value(v);
		if (!name)
			schema_fail(s, p, "required", "expected an array of names");
		if (json_object_get(properties, name))
			continue;
		const json_t *own = schema_member(s, o, name, p, 0);
		own = own ? own : json_object_get(o, LATE_PROPERTIES);
		if (is_false(own))
			return ex_none(b);
		names.v = arena_grow(b->a, names.v, &names.cap, names.n + 1, sizeof *names.v);
		names.v[names.n++] = name;
		Ex *value = own ? schema_value(s, own, &(Path){ p, "additionalProperties" }) : json_any_value(b);
		member(s, &members, how, json_quoted(b, name, strlen(name)), value, ORDER_MUST);
	}
	Ex *others = open_members(s, o, &names, p);
	if (!members.n && others && (min > 0 || max >= 0)) { /* so many of them: as items of an array */
		if (max >= 0 && min > max)
			return ex_none(b);
		Ex *comma = ex_seq(b, 2, ex_text(b, ","), json_ws(b)), *more;
		more = max == 0 ? ex_empty(b)
		                : ex_rep(b, ex_seq(b, 2, others, ex_rep(b, ex_seq(b, 2, comma, others), min > 1 ? min - 1 : 0, max < 0 ? -1 : max - 1)), min > 0 ? 1 : 0, 1);
		return ex_seq(b, 5, ex_text(b, "{"), json_ws(b), more, json_ws(b), ex_text(b, "}"));
	}
	size_t n_must = 0;
	for (i = 0; i < how->len; i++)
		n_must += how->data[i] == ORDER_MUST;
	if (max >= 0 && (int32_t)n_must > max)
		return ex_none(b);
	if (!others && min > (int32_t)members.n)
		return ex_none(b);
	if (min > (int32_t)n_must || (max >= 0 && (others || (int32_t)members.n > max))) {
		if (min == 1 && max < 0 && n_must == 0) { /* at least one: the comma tells */
			if (others) {
				ex_push(b, &members, others);
				strbuf_putc(how, ORDER_ANY);
			}
			return json_some_members(b, &members, (const uint8_t *)strbuf_str(how));
		}
		if (s->b->opt.strict)
			schema_fail(s, p, min > (int32_t)n_must ? "minProperties" : "maxProperties", "beside optional properties this is not enforced, and the schema is strict");
	}
	if (others) {
		ex_push(b, &members, others);
		strbuf_putc(how, ORDER_ANY);
	}
	if (how->failed)
		arena_out(b->a);
	return json_members(b, &members, (const uint8_t *)strbuf_str(how));
}

/* ---- values ---- */

static int
type_bit(Schema *s, const json_t *v, const Path *p)
{
	static const char *const name[] = { "null", "boolean", "integer", "number", "string", "array", "object" };

	for (int i = 0; json_is_string(v) && i < 7; i++)
		if (!strcmp(json_string_value(v), name[i]))
			return 1 << i;
	schema_fail(s, p, "type", "expected null, boolean, integer, number, string, array or object");
}

/* What a schema without a type speaks of. */
static int
inferred(const json_t *o)
{
	static const struct { const char *key; int type; } says[] = {
		{ "properties", T_OBJECT }, { "required", T_OBJECT }, { "additionalProperties", T_OBJECT }, { "patternProperties", T_OBJECT },
		{ "minProperties", T_OBJECT }, { "maxProperties", T_OBJECT }, { "propertyNames", T_OBJECT }, { "items", T_ARRAY }, { "prefixItems", T_ARRAY },
		{ "minItems", T_ARRAY }, { "maxItems", T_ARRAY }, { "uniqueItems", T_ARRAY }, { "contains", T_ARRAY }, { "pattern", T_STRING }, { "format", T_STRING },
		{ "minLength", T_STRING }, { "maxLength", T_STRING }, { "minimum", T_NUMBER }, { "maximum", T_NUMBER }, { "exclusiveMinimum", T_NUMBER },
		{ "exclusiveMaximum", T_NUMBER }, { "multipleOf", T_NUMBER },
	};
	int types = 0;

	for (size_t i = 0; i < sizeof says / sizeof *says; i++)
		if (json_object_get(o, says[i].key))
			types |= says[i].type;
	return types ? types : T_ALL;
}

int
schema_types(Schema *s, const json_t *o, const Path *p)
{
	const json_t *type = json_object_get(o, "type"), *v;
	int types = 0;
	size_t i;

	if (!type)
		return s->b->opt.standard ? T_ALL : inferred(o);
	if (!json_is_array(type))
		types = type_bit(s, type, p);
	json_array_foreach((json_t *)(uintptr_t)type, i, v)
		types |= type_bit(s, v, p);
	if (json_is_true(json_object_get(o, "nullable")))
		types |= T_NULL;
	return types;
}

int
schema_type_of(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return T_OBJECT;
	case JSON_ARRAY: return T_ARRAY;
	case JSON_STRING: return T_STRING;
	case JSON_INTEGER: return T_INTEGER | T_NUMBER;
	case JSON_REAL: return json_real_value(v) == (double)(int64_t)json_real_value(v) ? T_INTEGER | T_NUMBER : T_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE: return T_BOOLEAN;
	case JSON_NULL: break;
	}
	return T_NULL;
}

/* const and enum: those of the values that have a type of the schema's */
static Ex *
fixed(Schema *s, const json_t *o, const Path *p)
{
	const json_t *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"), *v;
	int types = json_object_get(o, "type") ? schema_types(s, o, p) : T_ALL;
	ExList parts = { 0 };
	size_t i;

	if (one) {
		bool in = !list;
		json_array_foreach((json_t *)(uintptr_t)list, i, v)
			in |= json_equal((json_t *)(uintptr_t)v, (json_t *)(uintptr_t)one);
		return in && (schema_type_of(one) & types) ? json_literal(s->b, one) : ex_none(s->b);
	}
	if (!json_is_array(list))
		schema_fail(s, p, "enum", "expected an array of values");
	json_array_foreach((json_t *)(uintptr_t)list, i, v)
		if (schema_type_of(v) & types)
			ex_push(s->b, &parts, json_literal(s->b, v));
	return ex_list(s->b, EX_ALT, &parts);
}

static Ex *
of_types(Schema *s, const json_t *o, const Path *p)
{
	int types = schema_types(s, o, p);
	ExList parts = { 0 };
	Build *b = s->b;

	if (types & T_NULL)
		ex_push(b, &parts, ex_text(b, "null"));
	if (types & T_BOOLEAN) {
		ex_push(b, &parts, ex_text(b, "true"));
		ex_push(b, &parts, ex_text(b, "false"));
	}
	if (types & (T_INTEGER | T_NUMBER))
		ex_push(b, &parts, number(s, o, !(types & T_NUMBER), p));
	if (types & T_STRING)
		ex_push(b, &parts, string(s, o, p));
	if (types & T_ARRAY)
		ex_push(b, &parts, array(s, o, p));
	if (types & T_OBJECT)
		ex_push(b, &parts, object(s, o, p));
	return ex_list(b, EX_ALT, &parts);
}

Ex *
schema_value(Schema *s, const json_t *v, const Path *p)
{
	static const char *const never[] = { "not", "if", "then", "else", "$dynamicRef", "$recursiveRef", NULL };
	static const char *const beside[] = { "$ref", "allOf", "anyOf", "oneOf", "contains", NULL };
	const json_t *o, *option;
	ExList parts = { 0 };
	size_t i;
	Ex *x;

	if (json_is_true(v))
		return json_any_value(s->b);
	if (json_is_false(v))
		return ex_none(s->b);
	if (!json_is_object(v))
		schema_fail(s, p, NULL, "expected a schema: an object, true or false");
	if (++s->depth > MAX_NEST || ++s->n_values > MAX_VALUES)
		schema_fail(s, p, NULL, s->depth > MAX_NEST ? "nested too deeply" : "the schema is too large");
	for (const char *const *k = never; *k; k++)
		schema_not_enforced(s, v, *k, p);
	for (const char *const *k = beside; *k; k++) /* alone it is `items` */
		if (json_object_get(v, *k))
			schema_not_enforced(s, v, "unevaluatedItems", p);
	const json_t *ref = json_object_get(v, "$ref");
	if (ref && !schema_says(v, "$ref")) {
		x = referred(s, schema_target(s, ref, p), &(Path){ p, "$ref" });
	} else {
		o = schema_flat(s, v, p, 0);
		for (const char *const *k = never; *k; k++) /* of those that were merged */
			schema_not_enforced(s, o, *k, p);
		if (json_is_boolean(o)) {
			x = json_is_true(o) ? json_any_value(s->b) : ex_none(s->b);
		} else if (json_object_get(o, "anyOf")) {
			const json_t *list = json_object_get(o, "anyOf");
			bool more = schema_says(o, "anyOf");
			json_array_foreach((json_t *)(uintptr_t)list, i, option) {
				Path here = { p, arena_printf(s->b->a, "anyOf/%zu", i) };
				ex_push(s->b, &parts, schema_value(s, more ? schema_merge(s, schema_without(s, o, "anyOf"), option, &here, 0) : option, &here));
			}
			x = ex_list(s->b, EX_ALT, &parts);
		} else if (json_object_get(o, "const") || json_object_get(o, "enum")) {
			x = fixed(s, o, p);
		} else if (!schema_says(o, NULL)) {
			x = json_any_value(s->b);
		} else {
			x = of_types(s, o, p);
		}
	}
	s->depth--;
	return x;
}

Ex *
schema_of(Build *b, const json_t *schema, const json_t *root, const char *path)
{
	Schema *s = NEW(b->a, Schema, 1);
	Path top = { NULL, path };

	s->b = b;
	s->root = root;
	s->string_tail = -1;
	return schema_value(s, schema, path && *path ? &top : NULL);
}

Ex *
schema_read(Build *b, const char *text, size_t n)
{
	json_error_t why;
	json_t *root = json_read(b->a, text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);

	if (!root) /* whole numbers that no integer holds */
		root = json_read(b->a, text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
	if (!root)
		build_fail(b, "schema: not JSON: %s at line %d, column %d", why.text, why.line, why.column);
	return schema_of(b, root, root, "");
}
