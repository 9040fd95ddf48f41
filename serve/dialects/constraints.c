/* Grammars of requests. Workers compile them and cache them for later requests with the same
 * constraint. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_schema.h"
#include "serve/dialects/constraints.h"

enum { MAX_KEPT = 64 };

typedef struct CachedGrammar {
	llmc_grammar *grammar;
	llmc_grammar_kind kind;
	llmc_grammar_options opt;
	char *text;
	size_t n;
	uint64_t used;
} CachedGrammar;

struct Grammars {
	pthread_mutex_t lock;
	CachedGrammar kept[MAX_KEPT];
	uint64_t clock;
};

Grammars *
grammars_open(void)
{
	Grammars *c = calloc(1, sizeof *c);

	if (c)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

static void
drop(CachedGrammar *k)
{
	llmc_grammar_close(k->grammar);
	free(k->text);
	*k = (CachedGrammar){ 0 };
}

void
grammars_close(Grammars *c)
{
	for (int i = 0; c && i < MAX_KEPT; i++)
		drop(&c->kept[i]);
	if (c)
		pthread_mutex_destroy(&c->lock);
	free(c);
}

static llmc_grammar *
find(Grammars *c, llmc_grammar_kind kind, const char *text, size_t n,
     const llmc_grammar_options *opt)
{
	llmc_grammar *g = NULL;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < MAX_KEPT && !g; i++) {
		CachedGrammar *k = &c->kept[i];
		if (k->grammar && k->kind == kind && k->n == n && k->opt.compact == opt->compact &&
		    k->opt.standard == opt->standard && k->opt.strict == opt->strict &&
		    k->opt.additional == opt->additional && memcmp(k->text, text, n) == 0) {
			k->used = ++c->clock;
			g = k->grammar;
			llmc_grammar_retain(g);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return g;
}

/* Insert a grammar, evicting the least recently used one. */
static void
keep(Grammars *c, llmc_grammar *g, llmc_grammar_kind kind, const char *text, size_t n,
     const llmc_grammar_options *opt)
{
	char *own = malloc(n + 1);

	if (!own)
		return;
	memcpy(own, text, n);
	llmc_grammar_retain(g);
	pthread_mutex_lock(&c->lock);
	CachedGrammar *oldest = &c->kept[0];
	for (int i = 1; i < MAX_KEPT; i++)
		if (c->kept[i].used < oldest->used)
			oldest = &c->kept[i];
	CachedGrammar old = *oldest;
	*oldest = (CachedGrammar){ g, kind, *opt, own, n, ++c->clock };
	pthread_mutex_unlock(&c->lock);
	drop(&old);
}

bool
grammar_of(ServedModel *m, llmc_grammar_kind kind, const char *text, size_t n,
           const llmc_grammar_options *opt, const char *param, llmc_grammar **out, Problem *p)
{
	llmc_error err = { 0 };

	if (!m->back.tok)
		return problem(p, 400, param,
		               "This model has no tokenizer: its output cannot be constrained.");
	*out = find(m->grammars, kind, text, n, opt);
	if (*out)
		return true;
	llmc_status status = llmc_grammar_open(m->back.tok, kind, text, n, opt, out, &err);
	if (status != LLMC_OK)
		return problem_of(p, status, 400, param, "Invalid '%s': %s", param, err.text);
	keep(m->grammars, *out, kind, text, n, opt);
	return true;
}

/* Options of schemas in requests. With `strict`, an object without additionalProperties allows no
 * other properties, as OpenAI demands. */
static llmc_grammar_options
schema_options(const Generation *g, bool strict)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);

	opt.strict = strict;
	opt.additional = strict ? LLMC_ADDITIONAL_CLOSED : g->srv->opt.additional;
	return opt;
}

/* Constrain the answer by a grammar. If the request has tools, g->form becomes an alternative of
 * the combined grammar. */
static bool
hold(Generation *g, llmc_grammar_kind kind, const char *text, size_t n,
     const llmc_grammar_options *opt, const char *param, Problem *p)
{
	static const char *const names[] = {
		[LLMC_GRAMMAR_JSON] = "json",     [LLMC_GRAMMAR_JSON_SCHEMA] = "json_schema",
		[LLMC_GRAMMAR_REGEX] = "regex",   [LLMC_GRAMMAR_GBNF] = "gbnf",
		[LLMC_GRAMMAR_CHOICE] = "choice", [LLMC_GRAMMAR_LARK] = "lark",
	};

	if (!grammar_of(g->model, kind, text, n, opt, param, &g->grammar, p))
		return false;
	if (kind == LLMC_GRAMMAR_PARTS) {
		strbuf_add(&g->form, text, n);
	} else {
		json_printf(&g->form, "{\"kind\":%s,\"grammar\":", names[kind]);
		json_str(&g->form, text, n);
		strbuf_puts(&g->form, opt->strict ? ",\"strict\":true" : "");
		json_printf(&g->form, ",\"additional\":%s}",
		            json_schema_additional[opt->additional]);
	}
	g->compact = opt->compact;
	return !g->form.failed || problem_memory(p);
}

/* Return the notation of a grammar by vLLM's rule: Lark if no line has `::=`, else GBNF. */
static llmc_grammar_kind
grammar_kind(const json_t *v)
{
	for (const char *s = json_string_value(v); s && *s;) {
		size_t n = strcspn(s, "\n"), end = strcspn(s, "#\n");
		const char *slashes = memmem(s, n, "//", 2);
		if (slashes && (size_t)(slashes - s) < end)
			end = (size_t)(slashes - s);
		if (memmem(s, end, "::=", 3))
			return LLMC_GRAMMAR_GBNF;
		s += n + (s[n] != 0);
	}
	return LLMC_GRAMMAR_LARK;
}

/* Read a schema: an object, true or false, or a string with JSON. */
static bool
of_schema(Generation *g, const json_t *schema, const llmc_grammar_options *opt, const char *param,
          Problem *p)
{
	if (json_is_string(schema))
		return hold(g, LLMC_GRAMMAR_JSON_SCHEMA, json_string_value(schema),
		            json_string_length(schema), opt, param, p);
	if (!json_is_object(schema) && !json_is_boolean(schema))
		return problem(p, 400, param,
		               "Invalid '%s': expected a JSON schema, but got %s instead.", param,
		               json_type_name(schema));
	char *text = json_dumps_numbers(schema, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!text)
		return problem_memory(p);
	bool ok = hold(g, LLMC_GRAMMAR_JSON_SCHEMA, text, strlen(text), opt, param, p);
	free(text);
	return ok;
}

static bool
of_string(Generation *g, llmc_grammar_kind kind, const json_t *v, const char *param, Problem *p)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);

	if (!json_is_string(v))
		return problem(p, 400, param,
		               "Invalid type for '%s': expected a string, but got %s instead.",
		               param, json_type_name(v));
	return hold(g, kind, json_string_value(v), json_string_length(v), &opt, param, p);
}

static bool
of_choice(Generation *g, const json_t *v, const char *param, Problem *p)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);

	if (!json_is_array(v))
		return problem(
		    p, 400, param,
		    "Invalid type for '%s': expected an array of strings, but got %s instead.",
		    param, json_type_name(v));
	char *text = json_dumps_numbers(v, JSON_COMPACT);
	bool ok = text ? hold(g, LLMC_GRAMMAR_CHOICE, text, strlen(text), &opt, param, p)
	               : problem_memory(p);
	free(text);
	return ok;
}

static bool
of_any_json(Generation *g, const llmc_grammar_options *opt, const char *param, Problem *p)
{
	return hold(g, LLMC_GRAMMAR_JSON, "", 0, opt, param, p);
}

/* ---- structural tags ---- */

static json_t *tag_part(const json_t *v, int depth);

/* {"begin", "content", "end"} to a tag in the notation of LLMC_GRAMMAR_PARTS; NULL: unsupported. */
static json_t *
tag_of(const json_t *v, int depth)
{
	const json_t *begin = json_object_get(v, "begin"), *end = json_object_get(v, "end");

	end = json_is_array(end) ? json_array_get(end, 0) : end;
	if (!json_is_string(begin) || !json_is_string(end))
		return NULL;
	json_t *content = json_object_get(v, "content"),
	       *part = content ? tag_part(content, depth + 1)
	               : json_object_get(v, "schema")
	                   ? json_pack("{s:O}", "schema", json_object_get(v, "schema"))
	                   : tag_part(NULL, depth + 1);
	/* free text extends to the first occurrence of `end` */
	const char *type = json_string_value(json_object_get(content, "type"));
	if (type && !strcmp(type, "any_text") && json_string_length(end)) {
		json_decref(part);
		return json_pack("{s:O, s:{s:O}, s:s}", "begin", begin, "part", "until", end, "end",
		                 "");
	}
	return part ? json_pack("{s:O, s:o, s:O}", "begin", begin, "part", part, "end", end) : NULL;
}

static json_t *
tag_list(const json_t *list, json_t *(*one)(const json_t *v, int depth), int depth)
{
	json_t *out = json_array(), *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)list, i, v)
		if (json_array_append_new(out, one(v, depth + 1)) != 0) {
			json_decref(out);
			return NULL;
		}
	return out;
}

static json_t *
tag_as_sequence(const json_t *v, int depth)
{
	json_t *tag = tag_of(v, depth), *out;

	if (!tag)
		return NULL;
	out = json_pack("{s:[{s:O}, O, {s:O}]}", "seq", "text", json_object_get(tag, "begin"),
	                json_object_get(tag, "part"), "text", json_object_get(tag, "end"));
	json_decref(tag);
	return out;
}

/* Convert a format of xgrammar's structural tags to a part; NULL: unsupported. */
static json_t *
tag_part(const json_t *v, int depth)
{
	enum { MAX_TAGS = 40 };
	const char *type = json_string_value(json_object_get(v, "type"));

	if (depth > MAX_TAGS)
		return NULL;
	if (!type || !strcmp(type, "any_text"))
		return json_pack("{s:s}", "regex", "(.|\n)*");
	if (!strcmp(type, "const_string"))
		return json_pack("{s:O?}", "text", json_object_get(v, "value"));
	if (!strcmp(type, "json_schema"))
		return json_pack("{s:O?}", "schema", json_object_get(v, "json_schema"));
	if (!strcmp(type, "regex"))
		return json_pack("{s:O?}", "regex", json_object_get(v, "pattern"));
	if (!strcmp(type, "grammar"))
		return json_pack("{s:s, s:O?}", "kind",
		                 grammar_kind(json_object_get(v, "grammar")) == LLMC_GRAMMAR_LARK
		                     ? "lark"
		                     : "gbnf",
		                 "grammar", json_object_get(v, "grammar"));
	if (!strcmp(type, "sequence"))
		return json_pack("{s:o}", "seq",
		                 tag_list(json_object_get(v, "elements"), tag_part, depth));
	if (!strcmp(type, "or"))
		return json_pack("{s:o}", "alt",
		                 tag_list(json_object_get(v, "elements"), tag_part, depth));
	if (!strcmp(type, "tag"))
		return tag_as_sequence(v, depth);
	if (!strcmp(type, "tags_with_separator")) {
		json_t *many =
		    json_pack("{s:[{s:o}, {s:O?}]}", "many", "alt",
		              tag_list(json_object_get(v, "tags"), tag_as_sequence, depth), "text",
		              json_object_get(v, "separator"));
		if (json_is_true(json_object_get(v, "at_least_one")) || !many)
			return many;
		return json_pack("{s:[{s:[]}, o]}", "alt", "seq", many);
	}
	if (!strcmp(type, "triggered_tags"))
		return json_pack("{s:{s:O?, s:o, s:b, s:b}}", "triggered", "triggers",
		                 json_object_get(v, "triggers"), "tags",
		                 tag_list(json_object_get(v, "tags"), tag_of, depth),
		                 "at_least_one", json_is_true(json_object_get(v, "at_least_one")),
		                 "stop_after_first",
		                 json_is_true(json_object_get(v, "stop_after_first")));
	return NULL;
}

/* Read a structural tag: {"structures", "triggers"}, or xgrammar's {"format"}. It is an object, or
 * a string with JSON. */
static bool
structural_tag_read(Generation *g, const json_t *v, const char *param, Problem *p)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);
	json_t *own = NULL, *part;
	bool no_memory = false;

	/* most contents are calls, so objects are closed */
	opt.additional = LLMC_ADDITIONAL_CLOSED;
	if (json_is_string(v))
		v = own =
		    json_parse(json_string_value(v), json_string_length(v), 0, NULL, &no_memory);
	if (json_object_get(v, "structures"))
		part = json_pack("{s:{s:O?, s:o}}", "triggered", "triggers",
		                 json_object_get(v, "triggers"), "tags",
		                 tag_list(json_object_get(v, "structures"), tag_of, 0));
	else
		part = json_is_object(json_object_get(v, "format"))
		           ? tag_part(json_object_get(v, "format"), 0)
		           : NULL;
	json_decref(own);
	char *text = part ? json_dumps_numbers(part, JSON_COMPACT) : NULL;
	json_decref(part);
	if (no_memory)
		return problem_memory(p);
	if (!text)
		return problem(p, 400, param,
		               "Invalid '%s': expected a structural tag with 'structures' and "
		               "'triggers', or with a 'format' of a known type.",
		               param);
	bool ok = hold(g, LLMC_GRAMMAR_PARTS, text, strlen(text), &opt, param, p);
	free(text);
	return ok;
}

bool
grammar_read_typed(Generation *g, const json_t *v, const char *param, Problem *p)
{
	llmc_grammar_options opt = schema_options(g, false);
	const char *type = json_string_value(json_object_get(v, "type"));
	const json_t *value = json_object_get(v, "value");

	if (!type || !value)
		return problem(p, 400, param,
		               "Invalid '%s': expected an object with a 'type' and a 'value'.",
		               param);
	if (!strcmp(type, "regex"))
		return of_string(g, LLMC_GRAMMAR_REGEX, value, param, p);
	if (!strcmp(type, "grammar"))
		return of_string(g, grammar_kind(value), value, param, p);
	if (!strcmp(type, "json_schema") && json_object_get(value, "schema"))
		value = json_object_get(value, "schema");
	if (!strcmp(type, "json") || !strcmp(type, "json_schema"))
		return of_schema(g, value, &opt, param, p);
	return problem(
	    p, 400, param,
	    "Invalid '%s': type '%.40s' is none of 'json', 'json_schema', 'regex' and 'grammar'.",
	    param, type);
}

static bool
read_format(Generation *g, const json_t *v, Problem *p)
{
	llmc_grammar_options opt = schema_options(g, false);
	const char *type = json_string_value(json_object_get(v, "type"));
	const json_t *inner = json_object_get(v, "json_schema"),
	             *schema = json_object_get(v, "schema");

	if (!type)
		return problem(p, 400, "response_format",
		               "Invalid 'response_format': expected an object with a 'type'.");
	if (!strcmp(type, "text"))
		return true;
	if (!strcmp(type, "json_object"))
		return schema ? of_schema(g, schema, &opt, "response_format", p)
		              : of_any_json(g, &opt, "response_format", p);
	if (!strcmp(type, "json_schema")) {
		if (json_is_object(inner)) {
			schema = json_object_get(inner, "schema");
			bool strict = false;
			if (!field_bool(inner, "strict", &strict, p))
				return false;
			opt = schema_options(g, strict);
			/* json_schema has a name but no schema */
			if (!schema || json_is_null(schema))
				return of_any_json(g, &opt, "response_format", p);
		}
		if (!schema)
			return problem(
			    p, 400, "response_format",
			    "Invalid 'response_format': expected a 'json_schema' with a 'schema'.");
		return of_schema(g, schema, &opt, "response_format", p);
	}
	if (!strcmp(type, "structural_tag"))
		return structural_tag_read(g, v, "response_format", p);
	/* the form that Together and Fireworks use */
	if (!strcmp(type, "regex") && json_object_get(v, "pattern"))
		return of_string(g, LLMC_GRAMMAR_REGEX, json_object_get(v, "pattern"),
		                 "response_format", p);
	if (!strcmp(type, "grammar") && json_object_get(v, "grammar"))
		return of_string(g, grammar_kind(json_object_get(v, "grammar")),
		                 json_object_get(v, "grammar"), "response_format", p);
	if (json_object_get(v, "value"))
		return grammar_read_typed(g, v, "response_format", p);
	return problem(p, 400, "response_format",
	               "Invalid 'response_format': type '%.60s' is none of 'text', 'json_object', "
	               "'json_schema', 'structural_tag', 'regex' with a 'pattern' and 'grammar' "
	               "with a 'grammar'.",
	               type);
}

static bool
is_requested(const json_t *v)
{
	return v && !json_is_null(v) && !json_is_false(v);
}

/* Read vLLM's structured_outputs object. */
static bool
read_structured(Generation *g, const json_t *v, Problem *p)
{
	static const char *const param = "structured_outputs", *const kinds[] = {
		"json", "regex", "choice", "grammar", "json_object", "structural_tag"
	};
	llmc_grammar_options opt = schema_options(g, false);
	int n = 0;

	if (!json_is_object(v))
		return problem(p, 400, param,
		               "Invalid type for '%s': expected an object, but got %s instead.",
		               param, json_type_name(v));
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		n += is_requested(json_object_get(v, kinds[i]));
	if (n != 1)
		return problem(p, 400, param,
		               "Invalid '%s': expected one of json, regex, choice, grammar, "
		               "json_object and structural_tag, got %d.",
		               param, n);
	if (is_requested(json_object_get(v, "whitespace_pattern")))
		return problem(p, 400, param,
		               "Invalid '%s': whitespace_pattern is not supported by this server; "
		               "disable_any_whitespace is.",
		               param);
	bool closed = false;
	if (!field_bool(v, "disable_any_whitespace", &opt.compact, p) ||
	    !field_bool(v, "disable_additional_properties", &closed, p))
		return false;
	if (closed) /* vLLM's clients send false, the default, with every request */
		opt.additional = LLMC_ADDITIONAL_CLOSED;
	if (is_requested(json_object_get(v, "json")))
		return of_schema(g, json_object_get(v, "json"), &opt, param, p);
	if (is_requested(json_object_get(v, "regex")))
		return of_string(g, LLMC_GRAMMAR_REGEX, json_object_get(v, "regex"), param, p);
	if (is_requested(json_object_get(v, "choice")))
		return of_choice(g, json_object_get(v, "choice"), param, p);
	if (is_requested(json_object_get(v, "grammar")))
		return of_string(g, grammar_kind(json_object_get(v, "grammar")),
		                 json_object_get(v, "grammar"), param, p);
	if (is_requested(json_object_get(v, "structural_tag")))
		return structural_tag_read(g, json_object_get(v, "structural_tag"), param, p);
	return of_any_json(g, &opt, param, p);
}

/* Return the value of a constraint field, and its kind. Clients may send a constraint in an old
 * field or in a new one. */
static const json_t *
constraint_of(const json_t *o, const char *field, const char **kind)
{
	static const struct {
		const char *field, *kind;
	} kinds[] = {
		{ "guided_json", "json" },     { "json_schema", "json" },
		{ "guided_regex", "regex" },   { "regex", "regex" },
		{ "guided_choice", "choice" }, { "guided_grammar", "grammar" },
		{ "grammar", "grammar" },      { "ebnf", "grammar" },
		{ "structural_tag", "tag" },   { "json", "json" },
		{ "choice", "choice" },
	};
	const json_t *v = json_object_get(o, field), *inner;
	const char *key;

	*kind = field;
	if (!strcmp(field, "structured_outputs")) {
		json_object_foreach ((json_t *)(uintptr_t)v, key, inner)
			if (is_requested(inner) && strncmp(key, "disable_", 8) != 0)
				return constraint_of(v, key, kind);
		return v;
	}
	if (!strcmp(field, "response_format")) {
		inner = json_object_get(json_object_get(v, "json_schema"), "schema");
		*kind = inner ? "json" : "format";
		return inner ? inner : v;
	}
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(field, kinds[i].field))
			*kind = kinds[i].kind;
	return v;
}

static bool
equal_constraints(const json_t *o, const char *a, const char *b)
{
	const char *kind[2];
	const json_t *x = constraint_of(o, a, &kind[0]), *y = constraint_of(o, b, &kind[1]);

	return !strcmp(kind[0], kind[1]) &&
	       json_equal((json_t *)(uintptr_t)x, (json_t *)(uintptr_t)y);
}

bool
grammar_read(Generation *g, const json_t *o, Problem *p)
{
	static const char *const fields[] = { "response_format", "guided_json",
		                              "guided_regex",    "guided_choice",
		                              "guided_grammar",  "structured_outputs",
		                              "grammar",         "json_schema",
		                              "regex",           "ebnf",
		                              "structural_tag" };
	llmc_grammar_options opt = schema_options(g, false);
	const json_t *format = json_object_get(o, "response_format");
	const char *which = NULL;

	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		const json_t *v = json_object_get(o, fields[i]);
		const char *type = json_string_value(json_object_get(format, "type"));
		if (!is_requested(v) || (v == format && type && !strcmp(type, "text")) ||
		    (json_is_string(v) && !json_string_length(v)))
			continue;
		if (which && equal_constraints(o, which, fields[i]))
			continue;
		if (which)
			return problem(
			    p, 400, fields[i],
			    "'%s' and '%s' exclude each other: a request has one constraint.",
			    which, fields[i]);
		which = fields[i];
	}
	if (!which)
		return true;
	const json_t *v = json_object_get(o, which);
	if (v == format)
		return read_format(g, v, p);
	if (!strcmp(which, "structured_outputs"))
		return read_structured(g, v, p);
	if (!strcmp(which, "guided_json") || !strcmp(which, "json_schema"))
		return of_schema(g, v, &opt, which, p);
	if (!strcmp(which, "structural_tag"))
		return structural_tag_read(g, v, which, p);
	if (!strcmp(which, "guided_choice"))
		return of_choice(g, v, which, p);
	if (!strcmp(which, "grammar") && json_is_object(v))
		return grammar_read_typed(g, v, which, p);
	return of_string(g,
	                 strcmp(which, "guided_regex") && strcmp(which, "regex")
	                     ? grammar_kind(v)
	                     : LLMC_GRAMMAR_REGEX,
	                 v, which, p);
}
