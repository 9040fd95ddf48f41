/* Resolves a $ref of a schema within its document: JSON pointer or anchor. */
#include <string.h>

#include "grammar/schema.h"

static bool
hex_digit(char c, int *v)
{
	*v = c >= '0' && c <= '9'                 ? c - '0'
	     : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
	                                          : -1;
	return *v >= 0;
}

/* Returns the next segment of a JSON pointer, unescaped. */
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

	if (depth > MAX_SCHEMA_NEST)
		return NULL;
	if (json_is_object(v)) {
		const char *own = json_string_value(json_object_get(v, "$anchor"));
		if (own && !strcmp(own, name))
			return v;
		json_object_foreach ((json_t *)(uintptr_t)v, key, x)
			if (!found)
				found = find_anchor(x, name, depth + 1);
	} else if (json_is_array(v)) {
		json_array_foreach ((json_t *)(uintptr_t)v, i, x)
			if (!found)
				found = find_anchor(x, name, depth + 1);
	}
	return found;
}

const json_t *
schema_target(Schema *s, const json_t *ref, const Path *p)
{
	const char *text = json_string_value(ref),
	           *id = json_string_value(json_object_get(s->root, "$id"));
	const json_t *v = s->root;

	if (!text)
		schema_fail(s, p, "$ref", "expected a string");
	size_t n = id ? strcspn(id, "#") : 0;
	if (n && !strncmp(text, id, n) && (text[n] == '#' || !text[n]))
		text += n;
	if (*text && *text != '#')
		schema_fail(
		    s, p, "$ref",
		    "'%.100s' is outside this schema, and external references are not followed",
		    text);
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
	s->inside = json_object_get(target, LAZY) ? target : NULL;
	Expr *body = schema_value(s, target, p);
	s->inside = outer;
	s->b->rule[r->rule] = body;
	return expr_rule(s->b, r->rule);
}
