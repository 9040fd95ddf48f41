/* References of a schema, and the rules of their targets. */
#include <string.h>

#include "grammar/schema.h"

/* A schema without its $dynamicRef. */
struct StaticRef {
	const json_t *v, *out;
	StaticRef *next;
};

static JsonSchemaRefs *
refs_of(Schema *s)
{
	if (!s->refs)
		s->refs = json_schema_refs_new(s->b->a, s->root);
	return s->refs;
}

const json_t *
schema_target(Schema *s, const json_t *ref, const Path *p)
{
	bool outside;

	if (!json_is_string(ref))
		schema_fail(s, p, "$ref", "expected a string");
	const json_t *v = json_schema_target(refs_of(s), ref, &outside);
	if (!v && outside)
		schema_fail(
		    s, p, "$ref",
		    "'%.100s' is outside this schema, and external references are not followed",
		    json_string_value(ref));
	if (!v)
		schema_fail(s, p, "$ref", "'%.100s' does not exist in the schema",
		            json_string_value(ref));
	return v;
}

/* Replaces a $dynamicRef by a $ref. */
static const json_t *
without_dynamic(Schema *s, const json_t *v, const json_t *ref)
{
	json_t *out = schema_keep(s, json_copy(schema_mutable(v)));

	json_object_del(out, "$dynamicRef");
	if (json_object_get(out, "$ref"))
		return schema_keep(s, json_pack("{s:[O,{s:O}]}", "allOf", out, "$ref", ref));
	schema_set(s, out, "$ref", ref);
	return out;
}

const json_t *
schema_static_ref(Schema *s, const json_t *v)
{
	const json_t *ref = json_object_get(v, "$dynamicRef");
	const size_t k = schema_bucket(v);

	if (!json_is_string(ref))
		return v;
	/* one schema per v, so that a schema that contains itself is recognised */
	for (const StaticRef *x = s->static_ref[k]; x; x = x->next)
		if (x->v == v)
			return x->out;
	StaticRef *x = NEW(s->b->a, StaticRef, 1);
	*x = (StaticRef){ v,
		          json_schema_has_one_target(refs_of(s), ref) ? without_dynamic(s, v, ref)
		                                                      : v,
		          s->static_ref[k] };
	s->static_ref[k] = x;
	return x->out;
}

/* Returns the rule of a definition, built on the first reference. */
Expr *
schema_resolve_ref(Schema *s, const json_t *target, const Path *p)
{
	size_t k = schema_bucket(target);

	for (Ref *r = s->ref[k]; r; r = r->next)
		if (r->target == target && r->raw == s->raw && r->arguments == s->arguments)
			return expr_rule(s->b, r->rule);
	Ref *r = NEW(s->b->a, Ref, 1);
	*r = (Ref){ target, s->arguments, s->raw, rule_new(s->b), s->ref[k] };
	s->ref[k] = r;
	expr_rule_name(s->b, r->rule, arena_printf(s->b->a, "schema, %s", schema_path(s, p)));
	const json_t *outer = s->inside;
	s->inside = target;
	Expr *body = schema_value(s, target, p);
	s->inside = outer;
	s->b->rule[r->rule] = body;
	return expr_rule(s->b, r->rule);
}
