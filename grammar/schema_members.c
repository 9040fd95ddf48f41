/* Objects that must have members with certain keys and values (SOME_MEMBERS), as the negations of
 * propertyNames, patternProperties and additionalProperties are. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_SOME = 5, MAX_CHOICES = 200 };

/* Each of n conditions belongs to a group, and each group is one member: a listed property, or an
 * unlisted member of its own. */
typedef struct Carriers {
	Schema *s;
	const json_t *o, *some; /* some: the conditions */
	const Path *p;
	size_t n, n_group;
	const json_t *key[MAX_SOME], *value[MAX_SOME]; /* [n_group] */
	const char *carrier[MAX_SOME]; /* name of each group's property; NULL: unlisted */
	json_t *out;                   /* objects, one per choice */
	bool failed;
} Carriers;

/* Adds the object for one choice of groups and carriers. */
static void
add_choice(Carriers *c)
{
	Schema *s = c->s;
	json_t *o = json_copy(schema_mutable(c->o)), *found = json_array(), *held, *required;

	schema_keep(s, o);
	schema_keep(s, found);
	json_object_del(o, SOME_MEMBERS);
	held = json_object_get(o, HELD) ? json_copy(json_object_get(o, HELD)) : json_object();
	schema_keep(s, held);
	required = json_is_array(json_object_get(o, "required"))
	               ? json_copy(json_object_get(o, "required"))
	               : json_array();
	schema_keep(s, required);
	for (size_t g = 0; g < c->n_group; g++) {
		const char *name = c->carrier[g];
		if (!name) {
			schema_add(s, found,
			           schema_keep(s, json_pack("{s:O,s:O}", "key", c->key[g], "value",
			                                    c->value[g])));
			continue;
		}
		const json_t *own = json_object_get(held, name);
		own = own ? schema_merge_later(s, own, c->value[g], c->p, 0) : c->value[g];
		schema_set(s, held, name, own);
		schema_add(s, required, schema_keep(s, json_string(name)));
	}
	schema_set(s, o, HELD, held);
	schema_set(s, o, "required", required);
	schema_set(s, o, FOUND_MEMBERS, found);
	schema_add(s, c->out, o);
}

static bool
fits_key(Carriers *c, size_t g, const char *name)
{
	return schema_accepts(c->s, schema_keep(c->s, json_string(name)), c->key[g], c->p);
}

/* Tries all carriers of the groups from g on. */
static void
choose_carriers(Carriers *c, size_t g)
{
	const char *name;
	json_t *v;
	size_t i;

	if (g == c->n_group) {
		if (json_array_size(c->out) >= MAX_CHOICES)
			c->failed = true;
		else
			add_choice(c);
		return;
	}
	c->carrier[g] = NULL;
	choose_carriers(c, g + 1);
	const json_t *properties = json_object_get(c->o, "properties");
	for (int more = 0; more < 2 && !c->failed; more++) {
		json_t *names = json_array();
		schema_keep(c->s, names);
		json_object_foreach (more ? NULL : schema_mutable(properties), name, v)
			schema_add(c->s, names, schema_keep(c->s, json_string(name)));
		json_array_foreach (more ? json_object_get(c->o, "required") : NULL, i, v)
			if (json_is_string(v) && !json_object_get(properties, json_string_value(v)))
				schema_add(c->s, names, v);
		json_array_foreach (names, i, v) {
			if (c->failed)
				return;
			name = json_string_value(v);
			bool taken = !fits_key(c, g, name);
			for (size_t k = 0; k < g; k++)
				taken |= c->carrier[k] && !strcmp(c->carrier[k], name);
			if (taken)
				continue;
			c->carrier[g] = name;
			choose_carriers(c, g + 1);
		}
	}
}

/* Puts the conditions from i on into groups in all ways. */
static void
choose_groups(Carriers *c, size_t i)
{
	if (c->failed)
		return;
	if (i == c->n) {
		choose_carriers(c, 0);
		return;
	}
	const json_t *one = json_array_get(c->some, i), *key = json_object_get(one, "key"),
	             *value = json_object_get(one, "value");
	for (size_t g = 0; g < c->n_group; g++) {
		const json_t *own_key = c->key[g], *own_value = c->value[g];
		c->key[g] = schema_merge(c->s, own_key, key, c->p, 0);
		c->value[g] = schema_merge_later(c->s, own_value, value, c->p, 0);
		if (!json_is_false(c->key[g]) && !json_is_false(c->value[g]))
			choose_groups(c, i + 1);
		c->key[g] = own_key;
		c->value[g] = own_value;
	}
	c->key[c->n_group] = key;
	c->value[c->n_group++] = value;
	choose_groups(c, i + 1);
	c->n_group--;
}

/* Whether a required property satisfies a condition in any case. */
static bool
is_satisfied(Schema *s, const json_t *o, const json_t *one, const Path *p)
{
	const json_t *v;
	size_t i;

	if (!json_is_true(json_object_get(one, "value")))
		return false;
	json_array_foreach (json_object_get(o, "required"), i, v)
		if (json_is_string(v) && schema_accepts(s, v, json_object_get(one, "key"), p))
			return true;
	return false;
}

/* An object that must have members with certain keys and values. */
Expr *
schema_object_with_members(Schema *s, const json_t *o, const Path *p)
{
	json_t *some = json_array(), *one;
	Carriers c = { .s = s, .o = o, .p = p, .some = some, .out = json_array() };
	ExprList parts = { 0 };
	bool arguments = s->arguments;
	size_t i;

	schema_keep(s, some);
	schema_keep(s, c.out);
	json_array_foreach (json_object_get(o, SOME_MEMBERS), i, one)
		if (!is_satisfied(s, o, one, p))
			schema_add(s, some, one);
	c.n = json_array_size(some);
	c.failed = c.n > MAX_SOME;
	choose_groups(&c, 0);
	if (c.failed && s->b->opt.strict)
		schema_fail(
		    s, p, "not",
		    "there are too many ways to have the required members, and the schema is "
		    "strict");
	if (c.failed)
		return schema_object(s, schema_without(s, o, SOME_MEMBERS), p);
	s->shared++;
	json_array_foreach (c.out, i, one) {
		s->arguments = arguments;
		expr_push(s->b, &parts, schema_object(s, one, p));
	}
	s->shared--;
	return expr_list(s->b, EXPR_ALT, &parts);
}
