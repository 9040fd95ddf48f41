/* Parameters of tools: names and types of properties, resolved through $ref, allOf, anyOf, oneOf,
 * lists of types, enum, const and nullable. The grammar of calls (grammar/schema.c) uses the same
 * base/json_schema.h, so that both agree on which values are strings. */
#include "text/tool_params.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MAX_DEPTH = 24, MAX_VISITS = 20000, UNLISTED = -1 };

typedef struct Resolver {
	Arena *a;
	const json_t *root;
	JsonSchemaRefs *refs; /* NULL: not read yet */
	int visits;           /* schemas visited, at most MAX_VISITS */
} Resolver;

static int
with_integers(int types)
{
	return types & T_NUMBER ? types | T_INTEGER : types;
}

int
value_type(const json_t *v)
{
	return with_integers(json_schema_type_of(v));
}

/* Types of a name; "number" allows integers, and an unknown name anything. */
static int
named_type(const json_t *v)
{
	int type = json_schema_type(v);

	return type ? with_integers(type) : T_ALL;
}

static int
types_of_list(const json_t *type)
{
	const json_t *v;
	size_t i;
	int types = 0;

	if (!json_is_array(type))
		return named_type(type);
	json_array_foreach ((json_t *)(uintptr_t)type, i, v)
		types |= named_type(v);
	return types;
}

/* NULL: it does not exist, or is in another document. */
static const json_t *
target_of(Resolver *r, const json_t *ref)
{
	bool outside;

	if (!r->refs)
		r->refs = json_schema_refs_new(r->a, r->root);
	return json_schema_target(r->refs, ref, &outside);
}

/* The value of a $ref, or of a $dynamicRef that means the same; NULL: there is none. */
static const json_t *
ref_of(Resolver *r, const json_t *o)
{
	const json_t *ref = json_object_get(o, "$ref"),
	             *dynamic = json_object_get(o, "$dynamicRef");

	if (ref || !dynamic)
		return ref;
	return target_of(r, dynamic) && json_schema_has_one_target(r->refs, dynamic) ? dynamic
	                                                                             : NULL;
}

static int types_of(Resolver *r, const json_t *o, int depth);

/* Types of any of the alternatives. */
static int
any_types(Resolver *r, const json_t *list, int depth)
{
	const json_t *v;
	size_t i;
	int types = 0;

	if (!json_array_size(list))
		return T_ALL;
	json_array_foreach ((json_t *)(uintptr_t)list, i, v)
		types |= types_of(r, v, depth + 1);
	return types;
}

static int
types_of(Resolver *r, const json_t *o, int depth)
{
	const json_t *ref = ref_of(r, o), *type = json_object_get(o, "type"),
	             *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"),
	             *excluded = json_object_get(json_object_get(o, "not"), "type"), *v;
	bool others = false;
	int types = T_ALL;
	size_t i;

	if (json_is_false(o))
		return 0;
	if (!json_is_object(o) || depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
		return T_ALL;
	if (ref) {
		const json_t *to = target_of(r, ref);
		types &= to ? types_of(r, to, depth + 1) : T_ALL;
		others = true;
	}
	json_array_foreach (json_object_get(o, "allOf"), i, v) {
		types &= types_of(r, v, depth + 1);
		others = true;
	}
	static const char *const options[] = { "anyOf", "oneOf" };
	for (int k = 0; k < 2; k++)
		if (json_object_get(o, options[k])) {
			types &= any_types(r, json_object_get(o, options[k]), depth);
			others = true;
		}
	if (one) {
		types &= value_type(one);
		others = true;
	}
	if (json_is_array(list)) {
		int some = 0;
		json_array_foreach ((json_t *)(uintptr_t)list, i, v)
			some |= value_type(v);
		types &= some;
		others = true;
	}
	if (type)
		types &= types_of_list(type) |
		         (json_is_true(json_object_get(o, "nullable")) ? T_NULL : 0);
	else if (!others)
		types &= with_integers(json_schema_implied_types(o));
	if (excluded && json_object_size(json_object_get(o, "not")) == 1)
		types &= ~types_of_list(excluded);
	return types;
}

static int
both(int a, int b)
{
	return a == UNLISTED ? b : b == UNLISTED ? a : a & b;
}

/* Types of a property of an object schema; UNLISTED: no keyword of the schema covers it. */
static int
member_types(Resolver *r, const json_t *o, const char *name, int depth)
{
	const json_t *ref = ref_of(r, o),
	             *v = json_object_get(json_object_get(o, "properties"), name);
	int types = UNLISTED;
	const char *pattern;
	size_t i;

	if (!json_is_object(o) || depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
		return UNLISTED;
	if (v)
		types = types_of(r, v, 0);
	json_object_foreach (json_object_get(o, "patternProperties"), pattern, v)
		if (json_schema_name_matches(pattern, name) == NAME_MATCHES)
			types = both(types, types_of(r, v, 0));
	if (types == UNLISTED && json_is_object(json_object_get(o, "additionalProperties")))
		types = types_of(r, json_object_get(o, "additionalProperties"), 0);
	if (ref)
		types = both(types, member_types(r, target_of(r, ref), name, depth + 1));
	json_array_foreach (json_object_get(o, "allOf"), i, v)
		types = both(types, member_types(r, v, name, depth + 1));
	static const char *const options[] = { "anyOf", "oneOf" };
	for (int k = 0; k < 2; k++) {
		int any = UNLISTED;
		json_array_foreach (json_object_get(o, options[k]), i, v) {
			int one = member_types(r, v, name, depth + 1);
			any = any == UNLISTED ? one : one == UNLISTED ? any : any | one;
		}
		types = both(types, any);
	}
	return types;
}

/* The strings of enum or const of a property that lists nothing else. */
static const json_t *
words_of(Resolver *r, const json_t *o, const char *name)
{
	const json_t *v = json_object_get(json_object_get(o, "properties"), name), *one, *ref;
	size_t i;

	for (int k = 0; k < MAX_DEPTH && (ref = ref_of(r, v)); k++)
		v = target_of(r, ref);
	const json_t *list = json_object_get(v, "enum");
	json_array_foreach ((json_t *)(uintptr_t)list, i, one)
		if (!json_is_string(one) || json_kept_digits(one))
			return NULL;
	return json_array_size(list) ? list : NULL;
}

static void
add_names(Resolver *r, const json_t *o, Tool *t, size_t *cap, int depth)
{
	static const char *const lists[] = { "allOf", "anyOf", "oneOf" }, *const others[] = {
		"if", "then", "else"
	};
	const json_t *v, *ref;
	const char *key;
	size_t i;

	if (!json_is_object(o) || depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
		return;
	json_object_foreach (json_object_get(o, "properties"), key, v) {
		if (tool_param(t, key, strlen(key)))
			continue;
		t->param = arena_grow(r->a, t->param, cap, t->n + 1, sizeof *t->param);
		t->param[t->n++] = (ToolParam){ .name = key };
	}
	json_array_foreach (json_object_get(o, "required"), i, v) {
		const char *name = json_string_value(v);
		if (!name || tool_param(t, name, strlen(name)))
			continue;
		t->param = arena_grow(r->a, t->param, cap, t->n + 1, sizeof *t->param);
		t->param[t->n++] = (ToolParam){ .name = name };
	}
	if ((ref = ref_of(r, o)))
		add_names(r, target_of(r, ref), t, cap, depth + 1);
	for (int k = 0; k < 3; k++) {
		json_array_foreach (json_object_get(o, lists[k]), i, v)
			add_names(r, v, t, cap, depth + 1);
		add_names(r, json_object_get(o, others[k]), t, cap, depth + 1);
	}
}

/* {"type": "grammar", "syntax": "regex" | "lark", "definition"} next to the function */
static const json_t *
format_of(const json_t *tool, const Tool *t)
{
	const json_t *format = json_object_get(tool, "format");
	const char *type = json_string_value(json_object_get(format, "type")),
	           *syntax = json_string_value(json_object_get(format, "syntax"));

	if (!type || strcmp(type, "grammar") != 0 || !syntax ||
	    (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0) ||
	    !json_is_string(json_object_get(format, "definition")))
		return NULL;
	return t->n == 1 && (t->param[0].types == T_STRING || t->param[0].types == T_ALL) ? format
	                                                                                  : NULL;
}

Tool *
tools_resolve(Arena *a, const json_t *tools, size_t *n)
{
	Tool *out = NEW(a, Tool, json_array_size(tools) + 1);
	const json_t *tool;
	size_t i;

	*n = 0;
	json_array_foreach ((json_t *)(uintptr_t)tools, i, tool) {
		const json_t *f = json_object_get(tool, "function"),
		             *parameters = json_object_get(f, "parameters");
		const char *name = json_string_value(json_object_get(f, "name"));
		if (!name)
			continue;
		Tool *t = &out[(*n)++];
		Resolver r = { .a = a, .root = parameters };
		size_t cap = 0;
		*t = (Tool){ .name = name,
			     .parameters = json_is_object(parameters) ? parameters : NULL };
		add_names(&r, parameters, t, &cap, 0);
		for (size_t k = 0; k < t->n; k++) {
			r.visits = 0;
			int types = member_types(&r, parameters, t->param[k].name, 0);
			t->param[k].types = types == UNLISTED ? T_ALL : types;
			t->param[k].words = words_of(&r, parameters, t->param[k].name);
		}
		t->format = format_of(tool, t);
	}
	return out;
}

const Tool *
tool_find(const Tool *tools, size_t n, const char *name, size_t n_name)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(tools[i].name) == n_name && !memcmp(tools[i].name, name, n_name))
			return &tools[i];
	return NULL;
}

const ToolParam *
tool_param(const Tool *tool, const char *name, size_t n)
{
	for (size_t i = 0; tool && i < tool->n; i++)
		if (strlen(tool->param[i].name) == n && !memcmp(tool->param[i].name, name, n))
			return &tool->param[i];
	return NULL;
}

static bool
unlisted_types(Arena *a, const Tool *tool, const char *name, size_t n, int *out)
{
	if (setjmp(a->oom))
		return false;
	Resolver r = { .a = a, .root = tool->parameters };
	int types = member_types(&r, tool->parameters, arena_strndup(a, name, n), 0);

	*out = types == UNLISTED ? T_ALL : types;
	return true;
}

int
tool_param_types(const Tool *tool, const char *name, size_t n, bool *no_memory)
{
	const ToolParam *p = tool_param(tool, name, n);

	if (p || !tool || !tool->parameters)
		return p ? p->types : T_ALL;
	Arena a;
	int types = T_ALL;
	arena_init(&a);
	*no_memory |= !unlisted_types(&a, tool, name, n, &types);
	arena_release(&a);
	return types;
}
