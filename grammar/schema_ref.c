/* Resolves a $ref of a schema within its document: JSON pointer, anchor, or the $id of a part. */
#include <string.h>

#include "grammar/schema.h"

/* A part of the document with an identifier of its own. */
struct SchemaResource {
	const char *uri;
	const json_t *v;
	SchemaResource *next;
};
/* The base URI of a reference. */
struct SchemaBase {
	const json_t *ref;
	const SchemaResource *in;
	SchemaBase *next;
};

/* Length of a URI up to the first colon, "http:"; 0: it is relative. */
static size_t
absolute_length(const char *uri)
{
	size_t n = strcspn(uri, ":/?#");

	return n && uri[n] == ':' ? n + 1 : 0;
}

/* Removes "." and ".." from a path. */
static void
remove_dots(char *path)
{
	char *out = path, *at = path;

	while (*at) {
		size_t n = at[0] == '/' ? 1 + strcspn(at + 1, "/") : strcspn(at, "/");
		const bool up = n == 3 && !strncmp(at, "/..", 3),
		           same = n == 2 && !strncmp(at, "/.", 2);
		if (up)
			while (out > path && *--out != '/')
				;
		if ((up || same) && !at[n])
			*out++ = '/';
		if (!up && !same) {
			memmove(out, at, n);
			out += n;
		}
		at += n;
	}
	*out = 0;
}

/* Resolves a reference against a base (RFC 3986, section 5.2), without fragment. */
static const char *
resolve_uri(Arena *a, const char *base, const char *ref)
{
	const int n = (int)strcspn(ref, "#");
	const size_t before = absolute_length(base);

	if (!n)
		return base;
	if (absolute_length(ref))
		return arena_strndup(a, ref, (size_t)n);
	if (!strncmp(ref, "//", 2))
		return arena_printf(a, "%.*s%.*s", (int)before, base, n, ref);
	size_t host = before;
	if (!strncmp(base + before, "//", 2))
		host = before + 2 + strcspn(base + before + 2, "/?#");
	size_t end = host + strcspn(base + host, "?#");
	if (*ref != '/' && *ref != '?') /* replaces the last segment */
		while (end > host && base[end - 1] != '/')
			end--;
	else if (*ref == '/')
		end = host;
	char *out = arena_printf(a, "%.*s%s%.*s", (int)end, base,
	                         end == host && host > before && *ref != '/' ? "/" : "", n, ref);
	remove_dots(out + host);
	return out;
}

static void
find_parts(Schema *s, const json_t *v, const SchemaResource *in, int depth)
{
	const char *id = json_string_value(json_object_get(v, "$id")), *key;
	static const char *const refs[] = { "$ref", "$dynamicRef" };
	const json_t *one;
	size_t i;

	if (depth > MAX_SCHEMA_NEST)
		return;
	build_work(s->b);
	/* up to draft 7, keywords next to $ref have no effect */
	const bool ignored = depth && json_object_get(v, "$ref") && !s->ids_beside_refs;
	if (id && *id && *id != '#' && !ignored) {
		SchemaResource *own = NEW(s->b->a, SchemaResource, 1);
		*own =
		    (SchemaResource){ resolve_uri(s->b->a, in ? in->uri : "", id), v, s->resource };
		s->resource = own;
		in = own;
	}
	for (int k = 0; k < 2 && in; k++)
		if ((one = json_object_get(v, refs[k]))) {
			SchemaBase *base = NEW(s->b->a, SchemaBase, 1);
			const size_t at = ((uintptr_t)one >> 4) % N_REF_BUCKET;
			*base = (SchemaBase){ one, in, s->base[at] };
			s->base[at] = base;
		}
	json_object_foreach (schema_mutable(v), key, one)
		if (strcmp(key, "const") && strcmp(key, "enum") && strcmp(key, "default") &&
		    strcmp(key, "examples"))
			find_parts(s, one, in, depth + 1);
	json_array_foreach (schema_mutable(v), i, one)
		find_parts(s, one, in, depth + 1);
}

/* The part of a resource with an anchor. */
static const json_t *
find_anchor(const json_t *v, const char *name, int depth)
{
	static const char *const keys[] = { "$anchor", "$dynamicAnchor" };
	const char *id = json_string_value(json_object_get(v, "$id")), *own, *key;
	const json_t *found = NULL, *one;
	size_t i;

	if (depth > MAX_SCHEMA_NEST || (id && depth && *id && *id != '#')) /* another resource */
		return NULL;
	if (id && *id == '#' && !strcmp(id + 1, name)) /* up to draft 7 */
		return v;
	for (int k = 0; k < 2; k++)
		if ((own = json_string_value(json_object_get(v, keys[k]))) && !strcmp(own, name))
			return v;
	json_object_foreach (schema_mutable(v), key, one)
		if (!found && strcmp(key, "const") && strcmp(key, "enum"))
			found = find_anchor(one, name, depth + 1);
	json_array_foreach (schema_mutable(v), i, one)
		if (!found)
			found = find_anchor(one, name, depth + 1);
	return found;
}

static void
read_parts(Schema *s)
{
	if (s->has_parts)
		return;
	s->has_parts = true;
	SchemaResource *root = NEW(s->b->a, SchemaResource, 1);
	*root = (SchemaResource){ "", s->root, NULL };
	s->resource = root;
	const char *draft = json_string_value(json_object_get(s->root, "$schema"));
	s->ids_beside_refs = draft && (strstr(draft, "/2019-09/") || strstr(draft, "/2020-12/"));
	find_parts(s, s->root, root, 0);
}

/* The resource that a reference names; *fragment: the rest. NULL: it is not in the document. */
static const json_t *
resource_of(Schema *s, const json_t *ref, const char **fragment)
{
	const char *text = json_string_value(ref), *base = "";

	read_parts(s);
	*fragment = text + strcspn(text, "#");
	*fragment += **fragment == '#';
	const SchemaBase *x = s->base[((uintptr_t)ref >> 4) % N_REF_BUCKET];
	while (x && x->ref != ref)
		x = x->next;
	if (x && (!*text || *text == '#'))
		return x->in->v;
	base = x ? x->in->uri : base;
	const char *uri = resolve_uri(s->b->a, base, text);
	for (const SchemaResource *r = s->resource; r; r = r->next)
		if (!strcmp(r->uri, uri))
			return r->v;
	return NULL;
}

const json_t *
schema_target(Schema *s, const json_t *ref, const Path *p)
{
	const char *fragment;

	if (!json_is_string(ref))
		schema_fail(s, p, "$ref", "expected a string");
	const json_t *in = resource_of(s, ref, &fragment);
	if (!in)
		schema_fail(
		    s, p, "$ref",
		    "'%.100s' is outside this schema, and external references are not followed",
		    json_string_value(ref));
	const json_t *v = *fragment && *fragment != '/' ? find_anchor(in, fragment, 0)
	                                                : json_schema_target(s->b->a, in, fragment);
	if (!v && *fragment == '/') /* some documents give parts an $id and refer to the root */
		v = json_schema_target(s->b->a, s->root, fragment);
	if (!v)
		schema_fail(s, p, "$ref", "'%.100s' does not exist in the schema",
		            json_string_value(ref));
	return v;
}

/* Number of parts of the document with a $dynamicAnchor. */
static int
count_dynamic(const json_t *v, const char *name, int depth)
{
	const char *own = json_string_value(json_object_get(v, "$dynamicAnchor")), *key;
	const json_t *one;
	size_t i;
	int n = own && !strcmp(own, name);

	if (depth > MAX_SCHEMA_NEST)
		return 2;
	json_object_foreach (schema_mutable(v), key, one)
		n += count_dynamic(one, name, depth + 1);
	json_array_foreach (schema_mutable(v), i, one)
		n += count_dynamic(one, name, depth + 1);
	return n;
}

/* A $dynamicRef is a $ref if the document has one target for it. */
const json_t *
schema_static_ref(Schema *s, const json_t *v, const Path *p)
{
	const json_t *ref = json_object_get(v, "$dynamicRef");
	const char *text = json_string_value(ref), *fragment = text ? strchr(text, '#') : NULL;

	if (!text)
		return v;
	if (fragment && fragment[1] && fragment[1] != '/' &&
	    count_dynamic(s->root, fragment + 1, 0) > 1 &&
	    json_object_get(schema_target(s, ref, p), "$dynamicAnchor"))
		return v;
	json_t *out = schema_keep(s, json_copy(schema_mutable(v)));
	json_object_del(out, "$dynamicRef");
	if (!json_object_get(out, "$ref")) {
		schema_set(s, out, "$ref", ref);
		return out;
	}
	return schema_keep(s, json_pack("{s:[O,{s:O}]}", "allOf", out, "$ref", ref));
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
