/* Resolves a $ref of a schema within its document: JSON pointer or anchor. */
#include <string.h>

#include "grammar/schema.h"

const json_t *
schema_target(Schema *s, const json_t *ref, const Path *p)
{
	const char *text = json_string_value(ref);

	if (!text)
		schema_fail(s, p, "$ref", "expected a string");
	if (!json_schema_is_local(s->root, &text))
		schema_fail(
		    s, p, "$ref",
		    "'%.100s' is outside this schema, and external references are not followed",
		    text);
	const json_t *v = json_schema_target(s->b->a, s->root, text);
	if (!v)
		schema_fail(s, p, "$ref", "'%.100s' does not exist in the schema",
		            json_string_value(ref));
	return v;
}

/* Returns the rule of a definition, built on the first reference. */
Expr *
schema_resolve_ref(Schema *s, const json_t *target, const Path *p)
{
	size_t k = ((uintptr_t)target >> 4) % N_REF_BUCKET;

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
