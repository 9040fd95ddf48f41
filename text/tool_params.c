/* Parameters of tools: names and types of properties, resolved through $ref, allOf, anyOf, oneOf,
 * lists of types, enum, const and nullable. The grammar of calls resolves the same keywords
 * (grammar/schema.c), so that both agree on which values are strings. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tool_params.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MAX_DEPTH = 24, MAX_VISITS = 20000, UNLISTED = -1 };

typedef struct Resolver {
	Arena *a;
	const json_t *root;
	int visits; /* schemas looked at, which is bounded */
} Resolver;

int
value_type(const json_t *v)
{
	if (json_kept_digits(v))
		return VALUE_NUMBER;
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return VALUE_OBJECT;
	case JSON_ARRAY:
		return VALUE_ARRAY;
	case JSON_STRING:
		return VALUE_STRING;
	case JSON_INTEGER:
	case JSON_REAL:
		return VALUE_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return VALUE_BOOLEAN;
	case JSON_NULL:
		break;
	}
	return VALUE_NULL;
}

static int
named_type(const json_t *v)
{
	static const struct {
		const char *name;
		int type;
	} types[] = {
		{ "null", VALUE_NULL },      { "boolean", VALUE_BOOLEAN },
		{ "integer", VALUE_NUMBER }, { "number", VALUE_NUMBER },
		{ "string", VALUE_STRING },  { "array", VALUE_ARRAY },
		{ "object", VALUE_OBJECT },
	};

	for (size_t i = 0; json_is_string(v) && i < sizeof types / sizeof *types; i++)
		if (!strcmp(json_string_value(v), types[i].name))
			return types[i].type;
	return VALUE_ANY;
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

/* Types to which the keywords of a schema without a type apply. */
static int
implied_types(const json_t *o)
{
	static const struct {
		const char *key;
		int type;
	} keys[] = {
		{ "properties", VALUE_OBJECT },
		{ "required", VALUE_OBJECT },
		{ "additionalProperties", VALUE_OBJECT },
		{ "patternProperties", VALUE_OBJECT },
		{ "minProperties", VALUE_OBJECT },
		{ "maxProperties", VALUE_OBJECT },
		{ "propertyNames", VALUE_OBJECT },
		{ "items", VALUE_ARRAY },
		{ "prefixItems", VALUE_ARRAY },
		{ "minItems", VALUE_ARRAY },
		{ "maxItems", VALUE_ARRAY },
		{ "uniqueItems", VALUE_ARRAY },
		{ "contains", VALUE_ARRAY },
		{ "pattern", VALUE_STRING },
		{ "format", VALUE_STRING },
		{ "minLength", VALUE_STRING },
		{ "maxLength", VALUE_STRING },
		{ "minimum", VALUE_NUMBER },
		{ "maximum", VALUE_NUMBER },
		{ "exclusiveMinimum", VALUE_NUMBER },
		{ "exclusiveMaximum", VALUE_NUMBER },
		{ "multipleOf", VALUE_NUMBER },
	};
	int types = 0;

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (json_object_get(o, keys[i].key))
			types |= keys[i].type;
	return types ? types : VALUE_ANY;
}

/* Follows a JSON pointer or an anchor within the document; NULL: it leads elsewhere. */
static const json_t *
target_of(const Resolver *r, const json_t *ref)
{
	const char *text = json_string_value(ref);
	const json_t *v = r->root;

	if (!text || *text != '#')
		return NULL;
	text++;
	if (*text && *text != '/') {
		const char *const places[] = { "$defs", "definitions" };
		for (int i = 0; i < 2; i++) {
			const char *key;
			json_t *one;
			json_object_foreach (json_object_get(r->root, places[i]), key, one) {
				const char *name =
				    json_string_value(json_object_get(one, "$anchor"));
				if (name && !strcmp(name, text))
					return one;
			}
		}
		return NULL;
	}
	while (v && *text == '/') {
		size_t n = strcspn(++text, "/"), k = 0;
		char *key = NEW(r->a, char, n + 1);
		for (size_t i = 0; i < n; i++) {
			unsigned hex;
			if (text[i] == '~' && i + 1 < n && strchr("01", text[i + 1])) {
				key[k++] = text[++i] == '0' ? '~' : '/';
			} else if (text[i] == '%' && i + 2 < n &&
			           sscanf(text + i + 1, "%2x", &hex) == 1) {
				key[k++] = (char)hex;
				i += 2;
			} else {
				key[k++] = text[i];
			}
		}
		text += n;
		v = json_is_array(v) ? json_array_get(v, (size_t)strtoul(key, NULL, 10))
		                     : json_object_get(v, key);
	}
	return v;
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
		return VALUE_ANY;
	json_array_foreach ((json_t *)(uintptr_t)list, i, v)
		types |= types_of(r, v, depth + 1);
	return types;
}

static int
types_of(Resolver *r, const json_t *o, int depth)
{
	const json_t *ref = json_object_get(o, "$ref"), *type = json_object_get(o, "type"),
	             *one = json_object_get(o, "const"), *list = json_object_get(o, "enum"),
	             *excluded = json_object_get(json_object_get(o, "not"), "type"), *v;
	bool others = false;
	int types = VALUE_ANY;
	size_t i;

	if (json_is_false(o))
		return 0;
	if (!json_is_object(o) || depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
		return VALUE_ANY;
	if (ref) {
		const json_t *to = target_of(r, ref);
		types &= to ? types_of(r, to, depth + 1) : VALUE_ANY;
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
		         (json_is_true(json_object_get(o, "nullable")) ? VALUE_NULL : 0);
	else if (!others)
		types &= implied_types(o);
	/* not integer leaves other numbers */
	if (excluded && json_object_size(json_object_get(o, "not")) == 1 &&
	    !(json_is_string(excluded) && !strcmp(json_string_value(excluded), "integer")))
		types &= ~types_of_list(excluded);
	return types;
}

static bool
matches(const char *pattern, const char *name)
{
	int code = 0;
	PCRE2_SIZE at;
	pcre2_code *re =
	    pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
	                  PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX, &code, &at, NULL);
	pcre2_match_data *m = re ? pcre2_match_data_create(1, NULL) : NULL;
	pcre2_match_context *limits = m ? pcre2_match_context_create(NULL) : NULL;
	bool yes = false;

	if (limits) {
		pcre2_set_match_limit(limits, 100000);
		yes = pcre2_match(re, (PCRE2_SPTR)name, strlen(name), 0, 0, m, limits) >= 0;
	}
	pcre2_match_context_free(limits);
	pcre2_match_data_free(m);
	pcre2_code_free(re);
	return yes;
}

static int
both(int a, int b)
{
	return a == UNLISTED ? b : b == UNLISTED ? a : a & b;
}

/* Types of a property of an object schema; UNLISTED: no keyword speaks of it. */
static int
member_types(Resolver *r, const json_t *o, const char *name, int depth)
{
	const json_t *ref = json_object_get(o, "$ref"),
	             *v = json_object_get(json_object_get(o, "properties"), name);
	int types = UNLISTED;
	const char *pattern;
	size_t i;

	if (!json_is_object(o) || depth > MAX_DEPTH || ++r->visits > MAX_VISITS)
		return UNLISTED;
	if (v)
		types = types_of(r, v, 0);
	json_object_foreach (json_object_get(o, "patternProperties"), pattern, v)
		if (matches(pattern, name))
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
	const json_t *v = json_object_get(json_object_get(o, "properties"), name), *one;
	size_t i;

	for (int k = 0; k < MAX_DEPTH && json_object_get(v, "$ref"); k++)
		v = target_of(r, json_object_get(v, "$ref"));
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
	const json_t *v;
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
	if (json_object_get(o, "$ref"))
		add_names(r, target_of(r, json_object_get(o, "$ref")), t, cap, depth + 1);
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
	return t->n == 1 && (t->param[0].types == VALUE_STRING || t->param[0].types == VALUE_ANY)
	           ? format
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
			t->param[k].types = types == UNLISTED ? VALUE_ANY : types;
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

	*out = types == UNLISTED ? VALUE_ANY : types;
	return true;
}

int
tool_param_types(const Tool *tool, const char *name, size_t n, bool *no_memory)
{
	const ToolParam *p = tool_param(tool, name, n);

	if (p || !tool || !tool->parameters)
		return p ? p->types : VALUE_ANY;
	Arena a;
	int types = VALUE_ANY;
	arena_init(&a);
	*no_memory |= !unlisted_types(&a, tool, name, n, &types);
	arena_release(&a);
	return types;
}
