/* Arrays of a schema. */
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"

enum {
	MAX_UNIQUE = 8,       /* values of an array with uniqueItems */
	MAX_COUNTS = 4,       /* counts of items, as of `contains` */
	MAX_COUNTED = 4000,   /* rules of an array with counts */
	MAX_DISTINCT = 20000, /* positions and counts, clamped before they are multiplied */
};

/* Adds the values of a list that a schema accepts, each once, up to one more than MAX_UNIQUE. */
static void
add_values(Schema *s, json_t *out, const json_t *list, const json_t *rest, const Path *p)
{
	const json_t *v;
	size_t i, k;

	json_array_foreach (schema_mutable(list), i, v) {
		if (json_array_size(out) > MAX_UNIQUE)
			return;
		bool known = !schema_accepts(s, v, rest, p);
		for (k = 0; k < json_array_size(out); k++)
			known |= schema_equal(v, json_array_get(out, k));
		if (!known)
			schema_add(s, out, v);
	}
}

/* The finite list of values of a schema; NULL: it has none. */
static const json_t *
listed_values(Schema *s, const json_t *items, const Path *p)
{
	const json_t *o = items ? schema_flat(s, items, p, 0) : NULL;
	const json_t *list = json_object_get(o, "enum"), *type = json_object_get(o, "type"),
	             *one = json_object_get(o, "const");

	if (!list && json_is_string(type) && !strcmp(json_string_value(type), "boolean"))
		list = schema_keep(s, json_pack("[b,b]", 1, 0));
	if (one)
		list = schema_keep(s, json_pack("[O]", one));
	if (!json_is_array(list) || json_object_get(o, "anyOf"))
		return NULL;
	json_t *out = json_array();
	schema_keep(s, out);
	add_values(s, out, list, schema_without(s, o, one ? "const" : "enum"), p);
	return out;
}

/* ---- counts ---- */

/* At least min and at most max (-1: unlimited) of the items at positions from <= i < to (-1: all
 * later ones) match `item`. */
typedef struct ItemCount {
	int32_t from, to, min, max;
	const json_t *item, *other; /* other: its negation, if there is a maximum */
	int32_t levels;             /* number of counts that are different states */
} ItemCount;

static int32_t
small(const json_t *v, const char *key, int32_t absent)
{
	const json_t *x = json_object_get(v, key);
	double n = json_number_of(x);

	return !x ? absent : n > MAX_DISTINCT ? MAX_DISTINCT : n < 0 ? 0 : (int32_t)n;
}

/* Reads the counts of a schema. Returns their number; -1: there are too many, or one has a maximum
 * and no negation. */
static int
read_counts(Schema *s, const json_t *o, ItemCount *out, const Path *p)
{
	const json_t *v;
	size_t i;
	int n = 0;

	json_array_foreach (json_object_get(o, COUNTS), i, v) {
		ItemCount c = { small(v, "from", 0),
			        small(v, "to", -1),
			        small(v, "min", 0),
			        small(v, "max", -1),
			        json_object_get(v, "item"),
			        NULL,
			        1 };
		if (c.min == 0 && c.max < 0)
			continue;
		if (n == MAX_COUNTS)
			return -1;
		c.levels += c.max >= 0 ? c.max : c.min;
		if (c.max >= 0 && !(c.other = schema_negated(s, c.item, p)))
			return -1;
		out[n++] = c;
	}
	return n;
}

typedef struct CountedArray {
	Schema *s;
	const Path *p;
	const json_t *first, *rest; /* rest NULL: no items after `first` */
	const ItemCount *count;
	int n_count;
	int32_t *rule;   /* [last + 1][n_level] */
	int32_t last;    /* positions from here on are one state */
	int32_t n_level; /* combinations of levels of all counts */
	int32_t min, max;
	/* [items of `first` + 1][1 << n_count][1 << n_count] rule of an item that matches counts
	 * and must not match others; -1: not made, -2: there is no such item */
	int32_t *value;
} CountedArray;

/* Returns whether the counts differ between items that match and others at this position. */
static bool
is_counted(const ItemCount *c, int32_t at, int32_t level)
{
	return at >= c->from && (c->to < 0 || at < c->to) && (c->max >= 0 || level < c->min);
}

/* Returns an item at a position: it matches the counts of `matched`, and not those among `counted`
 * that have a maximum. NULL: none. */
static Expr *
counted_item(CountedArray *a, int32_t at, int counted, int matched)
{
	const int32_t n_first = (int32_t)json_array_size(a->first);
	const json_t *v = at < n_first ? json_array_get(a->first, (size_t)at) : a->rest;
	int forbidden = 0;

	for (int i = 0; i < a->n_count; i++)
		if (counted >> i & 1 && !(matched >> i & 1) && a->count[i].max >= 0)
			forbidden |= 1 << i;
	int32_t *rule =
	    &a->value[((at < n_first ? at : n_first) << a->n_count | matched) << a->n_count |
	              forbidden];
	if (*rule == -1) {
		for (int i = 0; i < a->n_count; i++) {
			if (matched >> i & 1)
				v = schema_merge_later(a->s, v, a->count[i].item, a->p, 0);
			if (forbidden >> i & 1)
				v = schema_merge_later(a->s, v, a->count[i].other, a->p, 0);
		}
		*rule = -2;
		if (!json_is_false(v)) {
			*rule = rule_new(a->s->b);
			Expr *body = schema_value(a->s, v, &(Path){ a->p, "items" });
			a->s->b->rule[*rule] = body;
		}
	}
	return *rule < 0 ? NULL : expr_rule(a->s->b, *rule);
}

/* Builds the rule of what follows at a position, with each count at the level that `levels`
 * encodes. */
static Expr *
counted_rest(CountedArray *a, int32_t at, int32_t levels)
{
	GrammarBuilder *b = a->s->b;
	int32_t level[MAX_COUNTS], left = levels;
	bool complete = at >= a->min;
	int counted = 0;
	ExprList parts = { 0 };

	for (int i = 0; i < a->n_count; i++) {
		level[i] = left % a->count[i].levels;
		left /= a->count[i].levels;
		complete &= level[i] >= a->count[i].min;
		counted |= is_counted(&a->count[i], at, level[i]) << i;
	}
	if (complete)
		expr_push(b, &parts, expr_empty(b));
	const bool more =
	    (a->max < 0 || at < a->max) && (at < (int32_t)json_array_size(a->first) || a->rest);
	for (int matched = 0; more && matched < 1 << a->n_count; matched++) {
		int32_t next = 0, scale = 1;
		bool possible = !(matched & ~counted);
		for (int i = 0; i < a->n_count; i++) {
			int32_t now = level[i] + (matched >> i & 1);
			possible &= now < a->count[i].levels;
			next += now * scale;
			scale *= a->count[i].levels;
		}
		Expr *item = possible ? counted_item(a, at, counted, matched) : NULL;
		if (!item)
			continue;
		int32_t to = at < a->last ? at + 1 : at;
		Expr *rest = expr_rule(b, a->rule[to * a->n_level + next]);
		expr_push(b, &parts,
		          at ? expr_seq(b, 3, json_comma(b, false), item, rest)
		             : expr_seq(b, 2, item, rest));
	}
	return expr_list(b, EXPR_ALT, &parts);
}

/* An array with counts: one rule per position and level of each count. NULL: there are too many. */
static Expr *
counted_array(Schema *s, const json_t *o, const json_t *rest, int32_t min, int32_t max,
              const Path *p)
{
	GrammarBuilder *b = s->b;
	ItemCount count[MAX_COUNTS];
	CountedArray a = {
		s, p, json_object_get(o, "prefixItems"), rest, count, 0, NULL, 1, 1, min, max, NULL
	};

	a.n_count = read_counts(s, o, count, p);
	if (a.n_count < 0)
		return NULL;
	const int32_t ends[] = { (int32_t)json_array_size(a.first), min, max };
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		a.last = ends[i] > a.last ? ends[i] : a.last;
	for (int i = 0; i < a.n_count; i++) {
		a.last = count[i].from > a.last ? count[i].from : a.last;
		a.last = count[i].to > a.last ? count[i].to : a.last;
		if ((int64_t)a.n_level * count[i].levels > MAX_COUNTED)
			return NULL;
		a.n_level *= count[i].levels;
	}
	if ((int64_t)(a.last + 1) * a.n_level > MAX_COUNTED)
		return NULL;
	const size_t n_rule = (size_t)(a.last + 1) * (size_t)a.n_level,
	             n_value = (json_array_size(a.first) + 1) << 2 * a.n_count;
	a.rule = NEW(b->a, int32_t, n_rule);
	a.value = NEW(b->a, int32_t, n_value);
	memset(a.value, -1, n_value * sizeof *a.value);
	for (size_t i = 0; i < n_rule; i++)
		a.rule[i] = rule_new(b);
	for (size_t i = 0; i < n_rule; i++) {
		Expr *x = counted_rest(&a, (int32_t)i / a.n_level, (int32_t)i % a.n_level);
		b->rule[a.rule[i]] = x;
	}
	return json_brackets(b, expr_rule(b, a.rule[0]));
}

/* ---- uniqueItems ---- */

/* The values of all items of an array, and per item position the set of them that may stand
 * there. */
typedef struct UniqueValues {
	json_t *all;
	uint32_t *at; /* [n + 1]; the last one is for all later items */
	int32_t n;
} UniqueValues;

static bool
read_unique(Schema *s, const json_t *first, const json_t *rest, UniqueValues *out, const Path *p)
{
	const int32_t n = (int32_t)json_array_size(first);
	const json_t **list = NEW(s->b->a, const json_t *, (size_t)n + 1), *v, *w;
	size_t i, k;

	*out = (UniqueValues){ json_array(), NEW(s->b->a, uint32_t, (size_t)n + 1), n };
	schema_keep(s, out->all);
	for (int32_t at = 0; at <= n; at++) {
		const json_t *item = at < n ? json_array_get(first, (size_t)at) : rest;
		list[at] = !item || json_is_false(item) ? schema_keep(s, json_array())
		                                        : listed_values(s, item, p);
		if (!list[at])
			return false;
		add_values(s, out->all, list[at], json_true(), p);
		if (json_array_size(out->all) > MAX_UNIQUE)
			return false;
	}
	for (int32_t at = 0; at <= n; at++)
		json_array_foreach (schema_mutable(list[at]), i, v)
			json_array_foreach (out->all, k, w)
				if (schema_equal(v, w))
					out->at[at] |= 1u << k;
	return json_array_size(out->all) > 0;
}

/* Returns whether a set of used values satisfies the lower or the upper limit of all counts. */
static bool
set_fits(Schema *s, const json_t *o, const UniqueValues *u, size_t set, bool upper, const Path *p)
{
	const json_t *c;
	size_t i;

	json_array_foreach (json_object_get(o, COUNTS), i, c) {
		int32_t n = 0, max = small(c, "max", -1);
		for (size_t k = 0; k < json_array_size(u->all); k++)
			n += set >> k & 1 && schema_accepts(s, json_array_get(u->all, k),
			                                    json_object_get(c, "item"), p);
		if (upper ? max >= 0 && n > max : n < small(c, "min", 0))
			return false;
	}
	return true;
}

/* uniqueItems of a few listed values: one rule for each set of values that are used up. NULL: the
 * keyword is absent, or there are too many values. */
static Expr *
unique_items(Schema *s, const json_t *o, const json_t *rest, int32_t min, int32_t max,
             const Path *p)
{
	GrammarBuilder *b = s->b;
	UniqueValues u;
	const json_t *v;
	size_t i;

	if (!json_is_true(json_object_get(o, "uniqueItems")))
		return NULL;
	json_array_foreach (json_object_get(o, COUNTS), i, v)
		if (json_object_get(v, "from") || json_object_get(v, "to"))
			return NULL;
	if (!read_unique(s, json_object_get(o, "prefixItems"), rest, &u, p))
		return NULL;
	const size_t n = json_array_size(u.all);
	Expr *comma = json_comma(b, false), *value[MAX_UNIQUE];
	for (i = 0; i < n; i++)
		value[i] = json_literal(b, json_array_get(u.all, i));
	Expr **after = NEW(b->a, Expr *, (size_t)1 << n);
	for (size_t set = (size_t)1 << n; set-- > 0;) {
		int32_t used = __builtin_popcountll(set), rule = rule_new(b);
		uint32_t here = u.at[used < u.n ? used : u.n];
		ExprList parts = { 0 };
		if (used >= min && set_fits(s, o, &u, set, false, p))
			expr_push(b, &parts, expr_empty(b));
		for (i = 0; i < n && (max < 0 || used < max); i++) {
			if (set >> i & 1 || !(here >> i & 1) ||
			    !set_fits(s, o, &u, set | (size_t)1 << i, true, p))
				continue;
			Expr *next = after[set | (size_t)1 << i];
			expr_push(b, &parts,
			          used ? expr_seq(b, 3, comma, value[i], next)
			               : expr_seq(b, 2, value[i], next));
		}
		b->rule[rule] = expr_list(b, EXPR_ALT, &parts);
		after[set] = expr_rule(b, rule);
	}
	return json_brackets(b, after[0]);
}

Expr *
schema_array(Schema *s, const json_t *o, const Path *p)
{
	const json_t *items = json_object_get(o, "items"),
	             *first = json_object_get(o, "prefixItems"), *v;
	int32_t min = schema_count(s, o, "minItems", p), max = schema_most(s, o, "maxItems", p);
	ExprList list = { 0 };
	size_t i;

	if (first && !json_is_array(first))
		schema_fail(s, p, "prefixItems", "expected an array of schemas");
	if (max >= 0 && min > max)
		return expr_none(s->b);
	const bool open = items
	                      ? !json_is_false(items)
	                      : !first || s->open_objects || min > (int32_t)json_array_size(first);
	const json_t *rest = !open ? NULL : items ? items : json_true();
	Expr *special = unique_items(s, o, rest, min, max, p);
	if (special)
		return special;
	if (max < 0 || max > 1)
		schema_not_enforced(s, o, "uniqueItems", p);
	if (json_object_get(o, COUNTS)) {
		special = counted_array(s, o, rest, min, max, p);
		if (special)
			return special;
		if (s->b->opt.strict)
			schema_fail(s, p, "contains",
			            "these limits of the number of matching items are not "
			            "enforced, and the schema is strict");
	}
	json_array_foreach (schema_mutable(first), i, v)
		expr_push(
		    s->b, &list,
		    schema_value(s, v, &(Path){ p, arena_printf(s->b->a, "prefixItems/%zu", i) }));
	return json_items(s->b, &list, rest ? schema_value(s, rest, &(Path){ p, "items" }) : NULL,
	                  min < 0 ? 0 : min, max);
}
