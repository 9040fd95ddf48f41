/* References of a JSON schema within its document: JSON pointers, anchors, and the $id of a part.
 * The document is read once; each reference is then found by its base URI and its text. */
#include <stdlib.h>
#include <string.h>

#include "base/json_schema.h"
#include "base/number.h"

enum { N_BUCKET = 1024, MAX_NEST = 200, MAX_URI = 1000, MAX_IDS = 10000 };

/* A part of the document that has a name. */
typedef struct NamedPart {
	const char *uri, *anchor; /* anchor "": the part has the URI as its $id */
	const json_t *v;
	struct NamedPart *next;
} NamedPart;
/* The part whose $id is the base URI of a reference. */
typedef struct RefBase {
	const json_t *ref;
	const NamedPart *in;
	struct RefBase *next;
} RefBase;
struct JsonSchemaRefs {
	Arena *a;
	const json_t *root;
	NamedPart *part[N_BUCKET], *dynamic[N_BUCKET]; /* dynamic: one per $dynamicAnchor */
	RefBase *base[N_BUCKET];
	int n_id;
	bool ids_beside_refs;
};

/* ---- URIs ---- */

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

/* Resolves a reference against a base (RFC 3986, section 5.2), without fragment. Returns false if
 * the result is too long. */
static bool
resolve_uri(const char *base, const char *ref, char out[MAX_URI])
{
	const size_t n = strcspn(ref, "#"), before = absolute_length(base);
	size_t host = before, kept = 0;
	bool slash = false, relative = false;

	if (!strncmp(base + before, "//", 2))
		host = before + 2 + strcspn(base + before + 2, "/?#");
	if (!n) {
		kept = strlen(base);
	} else if (!strncmp(ref, "//", 2)) {
		kept = before;
	} else if (!absolute_length(ref)) {
		relative = true;
		kept = *ref == '/' ? host : host + strcspn(base + host, "?#");
		while (*ref != '/' && *ref != '?' && kept > host && base[kept - 1] != '/')
			kept--; /* the reference replaces the last segment */
		slash = kept == host && host > before && *ref != '/';
	}
	if (kept + slash + n >= MAX_URI)
		return false;
	memcpy(out, base, kept);
	memcpy(out + kept, "/", slash);
	memcpy(out + kept + slash, ref, n);
	out[kept + slash + n] = 0;
	if (relative)
		remove_dots(out + host);
	return true;
}

/* ---- parts ---- */

static size_t
bucket_of(const char *uri, const char *anchor)
{
	uint32_t h = 2166136261u;

	for (; *uri; uri++)
		h = (h ^ (uint8_t)*uri) * 16777619u;
	h = (h ^ '#') * 16777619u;
	for (; *anchor; anchor++)
		h = (h ^ (uint8_t)*anchor) * 16777619u;
	return (h ^ h >> 15) % N_BUCKET;
}

static size_t
bucket_of_ref(const json_t *ref)
{
	return ((uintptr_t)ref >> 4) % N_BUCKET;
}

/* The part with a name; NULL: none. */
static const NamedPart *
find_part(const JsonSchemaRefs *r, const char *uri, const char *anchor)
{
	const NamedPart *x = r->part[bucket_of(uri, anchor)];

	while (x && (strcmp(x->uri, uri) != 0 || strcmp(x->anchor, anchor) != 0))
		x = x->next;
	return x;
}

static const NamedPart *
add_part(JsonSchemaRefs *r, NamedPart **table, const char *uri, const char *anchor, const json_t *v)
{
	NamedPart **bucket = &table[bucket_of(uri, anchor)], *x = NEW(r->a, NamedPart, 1);

	*x = (NamedPart){ uri, anchor, v, *bucket };
	*bucket = x;
	return x;
}

/* Adds an anchor unless the resource has one of that name, so that the first one counts. */
static void
add_anchor(JsonSchemaRefs *r, const NamedPart *in, const char *name, const json_t *v)
{
	if (name && *name && !find_part(r, in->uri, name))
		add_part(r, r->part, in->uri, name, v);
}

/* Reads the names of v. Returns the part that holds v, or v itself if it has a $id. */
static const NamedPart *
read_names(JsonSchemaRefs *r, const json_t *v, const NamedPart *in)
{
	const char *id = json_string_value(json_object_get(v, "$id")),
	           *dynamic = json_string_value(json_object_get(v, "$dynamicAnchor"));
	char uri[MAX_URI];

	/* up to draft 7, keywords next to $ref have no effect */
	if (v != r->root && json_object_get(v, "$ref") && !r->ids_beside_refs)
		id = NULL;
	if (id && *id && *id != '#' && r->n_id < MAX_IDS && resolve_uri(in->uri, id, uri)) {
		r->n_id++;
		in = add_part(r, r->part, arena_strdup(r->a, uri), "", v);
	}
	if (id && *id == '#') /* up to draft 7 */
		add_anchor(r, in, id + 1, v);
	add_anchor(r, in, json_string_value(json_object_get(v, "$anchor")), v);
	add_anchor(r, in, dynamic, v);
	if (dynamic)
		add_part(r, r->dynamic, "", dynamic, v);
	return in;
}

static void
read_parts(JsonSchemaRefs *r, const json_t *v, const NamedPart *in, int depth)
{
	static const char *const refs[] = { "$ref", "$dynamicRef" };
	const char *key;
	const json_t *one;
	size_t i;

	if (depth > MAX_NEST)
		return;
	in = read_names(r, v, in);
	for (int k = 0; k < 2; k++)
		if ((one = json_object_get(v, refs[k]))) {
			RefBase **bucket = &r->base[bucket_of_ref(one)], *x = NEW(r->a, RefBase, 1);
			*x = (RefBase){ one, in, *bucket };
			*bucket = x;
		}
	json_object_foreach ((json_t *)(uintptr_t)v, key, one)
		if (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0 &&
		    strcmp(key, "default") != 0 && strcmp(key, "examples") != 0)
			read_parts(r, one, in, depth + 1);
	json_array_foreach ((json_t *)(uintptr_t)v, i, one)
		read_parts(r, one, in, depth + 1);
}

JsonSchemaRefs *
json_schema_refs_new(Arena *a, const json_t *root)
{
	JsonSchemaRefs *r = NEW(a, JsonSchemaRefs, 1);
	const char *draft = json_string_value(json_object_get(root, "$schema"));

	*r = (JsonSchemaRefs){ .a = a, .root = root };
	r->ids_beside_refs = draft && (strstr(draft, "/2019-09/") || strstr(draft, "/2020-12/"));
	read_parts(r, root, add_part(r, r->part, "", "", root), 0);
	return r;
}

/* ---- targets ---- */

/* Returns the next segment of a JSON pointer, unescaped. */
static const char *
pointer_segment(Arena *a, const char **at)
{
	char *out = arena_strndup(a, *at, strcspn(*at, "/")), *to = out;
	const char *c = *at;

	while (*c && *c != '/') {
		int byte = percent_byte(c);
		if (byte >= 0) {
			*to++ = (char)byte;
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
follow_pointer(Arena *a, const json_t *v, const char *at)
{
	while (v && *at == '/') {
		at++;
		const char *key = pointer_segment(a, &at);
		if (json_is_array(v)) {
			char *end;
			unsigned long i = strtoul(key, &end, 10);
			v = *key && !*end ? json_array_get(v, i) : NULL;
		} else {
			v = json_object_get(v, key);
		}
	}
	return v;
}

const json_t *
json_schema_target(JsonSchemaRefs *r, const json_t *ref, bool *outside)
{
	const char *text = json_string_value(ref), *base = "", *fragment;
	char uri[MAX_URI];
	const NamedPart *in = NULL;
	const json_t *v = NULL;

	*outside = true;
	if (!text)
		return NULL;
	const RefBase *x = r->base[bucket_of_ref(ref)];
	while (x && x->ref != ref)
		x = x->next;
	base = x ? x->in->uri : base;
	if (x && (!*text || *text == '#'))
		in = x->in;
	else if (resolve_uri(base, text, uri))
		in = find_part(r, uri, "");
	if (!in)
		return NULL;
	*outside = false;
	fragment = text + strcspn(text, "#");
	fragment += *fragment == '#';
	if (!*fragment)
		return in->v;
	if (*fragment != '/') {
		in = find_part(r, in->uri, fragment);
		return in ? in->v : NULL;
	}
	v = follow_pointer(r->a, in->v, fragment);
	/* some documents give parts a $id and refer to the root */
	return v ? v : follow_pointer(r->a, r->root, fragment);
}

bool
json_schema_has_one_target(JsonSchemaRefs *r, const json_t *ref)
{
	const char *text = json_string_value(ref), *name = text ? strchr(text, '#') : NULL;
	bool outside;
	int n = 0;

	if (!name || !name[1] || name[1] == '/' ||
	    !json_object_get(json_schema_target(r, ref, &outside), "$dynamicAnchor"))
		return true;
	for (const NamedPart *x = r->dynamic[bucket_of("", name + 1)]; x && n < 2; x = x->next)
		n += !strcmp(x->anchor, name + 1);
	return n < 2;
}
