/* configs/formats/calls.yaml: selects the row of a chat template and writes the grammar of its
 * calls. */
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/json.h"
#include "formats/yaml.h"
#include "text/tool_calls.h"

enum {
	MAX_LITERALS = 16,
	MAX_OPTIONAL = 16
}; /* depth of values; optional properties of which any may be the first */

#define FILE_NAME "configs/formats/calls.yaml"

static const char *
text_of(const Node *map, const char *key)
{
	const Node *n = node_get(map, key);

	return n && n->kind == NODE_SCALAR && n->text[0] ? n->text : NULL;
}

static int
texts_of(const Node *map, const char *key, const char **out, int most)
{
	const Node *n = node_get(map, key);
	int k = 0;

	for (size_t i = 0; n && n->kind == NODE_LIST && i < n->n && k < most; i++)
		out[k++] = n->item[i]->text;
	return k;
}

static bool
fits(const Node *row, const char *template)
{
	const Node *words = node_get(row, "detect");

	for (size_t i = 0; words && i < words->n; i++)
		if (!template || !strstr(template, words->item[i]->text))
			return false;
	return true;
}

static CallBody
body_of(const char *word)
{
	static const char *const names[] = { "", "json", "array", "named", "pairs", "literals" };

	for (int i = 1; word && i < 6; i++)
		if (!strcmp(word, names[i]))
			return (CallBody)i;
	return BODY_NONE;
}

/* Returns the part of an added token between the two strings of `suffix`; "": there is no such
 * token. */
static const char *
suffix_of(const llmc_tokenizer *t, Arena *a, const Node *row)
{
	const char *around[2] = { "", "" };

	texts_of(row, "suffix", around, 2);
	size_t head = strlen(around[0]), tail = strlen(around[1]);
	for (size_t i = 0; head && i < t->n_added; i++) {
		ByteSpan s = t->added[i].text;
		if (s.n >= head + tail && !memcmp(s.s, around[0], head) &&
		    !memcmp(s.s + s.n - tail, around[1], tail))
			return arena_strndup(a, s.s + head, s.n - head - tail);
	}
	return "";
}

/* Replaces "{}" in markers by the suffix. */
static void
put_suffix(Arena *a, const char **mark, size_t n, const char *suffix)
{
	for (size_t i = 0; i < n; i++) {
		if (!mark[i] || !strstr(mark[i], "{}"))
			continue;
		Strbuf *b = arena_strbuf(a);
		const char *s = mark[i];
		for (const char *p; (p = strstr(s, "{}")); s = p + 2) {
			strbuf_add(b, s, (size_t)(p - s));
			strbuf_puts(b, suffix);
		}
		strbuf_puts(b, s);
		if (b->failed)
			arena_out(a);
		mark[i] = arena_strndup(a, strbuf_str(b), b->len);
	}
}

llmc_status
call_row(const llmc_tokenizer *t, Arena *a, CallRow *out, llmc_error *err)
{
	const char *template = t->chat_tools ? t->chat_tools : t->chat;
	size_t n;
	const char *text = embed_find(FILE_NAME, &n);
	Diag *d = NEW(a, Diag, 1);
	diag_init(d, a);
	const Node *rows = text ? yaml_parse(yaml_source(a, FILE_NAME, text, n), d, a) : NULL;

	*out = (CallRow){ 0 };
	if (!rows || rows->kind != NODE_LIST)
		return error_set(err, LLMC_E_BUG,
		                 FILE_NAME " cannot be read: it belongs to the library itself");
	for (size_t i = 0; i < rows->n; i++) {
		const Node *row = rows->item[i];
		if (!fits(row, template))
			continue;
		out->name = text_of(row, "name");
		out->open = text_of(row, "open");
		out->close = text_of(row, "close");
		out->between = text_of(row, "between");
		out->name_end = text_of(row, "name_end");
		out->name_from = text_of(row, "name_from");
		out->name_until = text_of(row, "name_until");
		out->number = text_of(row, "number");
		out->bare = text_of(row, "bare");
		out->quote = text_of(row, "quote");
		out->system = text_of(row, "system");
		out->body = body_of(text_of(row, "body"));
		texts_of(row, "think", out->think, 3);
		texts_of(row, "section", out->section, 2);
		texts_of(row, "keys", out->key, 2);
		texts_of(row, "pair", out->pair, 4);
		out->n_also = texts_of(row, "also", out->also, MAX_ALSO);
		out->n_drop = texts_of(row, "drop", out->drop, MAX_DROP);
		if (node_get(row, "suffix")) {
			const char *suffix = suffix_of(t, a, row),
			           **const marks[] = { &out->open, &out->close, &out->between,
				                       &out->name_end };
			for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
				put_suffix(a, marks[k], 1, suffix);
			put_suffix(a, out->think, 3, suffix);
			put_suffix(a, out->section, 2, suffix);
			put_suffix(a, out->pair, 4, suffix);
		}
		if (t->response)
			call_row_own(t->response, a, out);
		return LLMC_OK;
	}
	return error_set(err, LLMC_E_BUG, FILE_NAME " has no last row for everything else");
}

/* ---- grammar of calls ---- */

static void
put_text(Strbuf *b, const char *a, const char *c, const char *d, const char *e)
{
	const char *part[] = { a, c, d, e };
	Strbuf all = { 0 };

	for (int i = 0; i < 4; i++)
		if (part[i])
			strbuf_puts(&all, part[i]);
	strbuf_puts(b, "{\"text\":");
	json_str(b, strbuf_str(&all), all.len);
	strbuf_putc(b, '}');
	b->failed |= all.failed;
	strbuf_release(&all);
}

static void
put_schema(Strbuf *b, const json_t *schema, const char *name, bool free_)
{
	char *text = schema && !free_ ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	json_printf(b, "{\"name\":%s,\"schema\":", name);
	strbuf_puts(b, text ? text : "{\"type\":\"object\"}");
	strbuf_putc(b, '}');
	free(text);
}

static bool
takes_text(const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type");

	return (json_is_string(type) && !strcmp(json_string_value(type), "string") &&
	        !json_object_get(schema, "enum")) ||
	       !type;
}

static bool
is_required(const json_t *parameters, const char *key)
{
	json_t *name;
	size_t i;

	json_array_foreach (json_object_get(parameters, "required"), i, name)
		if (json_is_string(name) && !strcmp(json_string_value(name), key))
			return true;
	return false;
}

/* Writes a value as JSON. */
static void
json_text(Strbuf *b, const json_t *v)
{
	char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);

	put_text(b, text, NULL, NULL, NULL);
	free(text);
}

/* {"type": "grammar", "syntax": "regex" | "lark", "definition"} next to the function */
const json_t *
call_format(const json_t *tool)
{
	const json_t *format = json_object_get(tool, "format");
	json_t *properties = json_object_get(
	    json_object_get(json_object_get(tool, "function"), "parameters"), "properties");
	const char *type = json_string_value(json_object_get(format, "type")),
	           *syntax = json_string_value(json_object_get(format, "syntax"));

	if (!type || strcmp(type, "grammar") != 0 || !syntax ||
	    (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0) ||
	    !json_is_string(json_object_get(format, "definition")))
		return NULL;
	return json_object_size(properties) == 1 &&
	               takes_text(json_object_iter_value(json_object_iter(properties)))
	           ? format
	           : NULL;
}

/* Writes the grammar of a string; json: as the inside of a JSON string */
static void
put_format(Strbuf *b, const json_t *format, bool json)
{
	json_printf(
	    b, "{\"kind\":%s,\"grammar\":", json_string_value(json_object_get(format, "syntax")));
	json_str(b, json_string_value(json_object_get(format, "definition")),
	         json_string_length(json_object_get(format, "definition")));
	strbuf_puts(b, json ? ",\"json\":true}" : "}");
}

/* Writes arguments that consist of one string of a grammar, as JSON. */
static void
put_format_object(Strbuf *b, const json_t *format, const char *key)
{
	Strbuf head = { 0 };

	json_printf(&head, "{%s: \"", key);
	strbuf_puts(b, "{\"seq\":[");
	put_text(b, strbuf_str(&head), NULL, NULL, NULL);
	strbuf_putc(b, ',');
	put_format(b, format, true);
	strbuf_puts(b, ",{\"text\":\"\\\"}\"}]}");
	b->failed |= head.failed;
	strbuf_release(&head);
}

/* Returns the strings of enum or const if the value can be nothing else; NULL otherwise. */
static json_t *
known_texts(const json_t *schema)
{
	const json_t *values = json_object_get(schema, "enum"),
	             *one = json_object_get(schema, "const");
	json_t *v;
	size_t i;

	if (json_is_string(one))
		return json_pack("[O]", one);
	json_array_foreach ((json_t *)(uintptr_t)values, i, v)
		if (!json_is_string(v))
			return NULL;
	return json_array_size(values) ? json_incref((json_t *)(uintptr_t)values) : NULL;
}

/* Writes a value between the markers of a pair: strings raw, others as JSON. Some formats have a
 * separate marker for each. */
static void
put_value(const CallRow *r, Strbuf *b, const char *key, const json_t *schema)
{
	json_t *texts = known_texts(schema), *v;
	size_t i;

	if (texts) {
		put_text(b, r->pair[0], key, r->pair[1], NULL);
		strbuf_puts(b, ",{\"alt\":[");
		json_array_foreach (texts, i, v) {
			if (i)
				strbuf_putc(b, ',');
			put_text(b, json_string_value(v), NULL, NULL, NULL);
		}
		strbuf_puts(b, "]},");
		put_text(b, r->pair[2], NULL, NULL, NULL);
		json_decref(texts);
	} else if (takes_text(schema)) {
		put_text(b, r->pair[0], key, r->pair[1], NULL);
		strbuf_puts(b, ",{\"until\":");
		json_str(b, r->pair[2], strlen(r->pair[2]));
		strbuf_putc(b, '}');
	} else {
		put_text(b, r->pair[0], key, r->pair[3] ? r->pair[3] : r->pair[1], NULL);
		strbuf_putc(b, ',');
		put_schema(b, schema, key, false);
		strbuf_putc(b, ',');
		put_text(b, r->pair[2], NULL, NULL, NULL);
	}
}

/* Writes properties in order; optional ones may be absent. */
static void
put_pairs(const CallRow *r, Strbuf *b, const json_t *parameters)
{
	const json_t *properties = json_object_get(parameters, "properties"), *v;
	const char *key;

	json_object_foreach ((json_t *)(uintptr_t)properties, key, v) {
		bool must = is_required(parameters, key);
		strbuf_puts(b, must ? ",{\"seq\":[" : ",{\"alt\":[{\"seq\":[]},{\"seq\":[");
		put_value(r, b, key, v);
		strbuf_puts(b, must ? "]}" : "]}]}");
	}
}

/* ---- arguments of BODY_LITERALS ---- */

static void put_literal(const CallRow *r, Strbuf *b, const json_t *schema, int depth);
static void put_arguments(const CallRow *r, Strbuf *b, const json_t *parameters, int depth);

/* Writes a fixed string. */
static void
put_known_text(const CallRow *r, Strbuf *b, const char *s)
{
	Strbuf all = { 0 };

	if (r->quote)
		strbuf_puts(&all, s);
	else
		json_str(&all, s, strlen(s));
	put_text(b, r->quote, strbuf_str(&all), r->quote, NULL);
	b->failed |= all.failed;
	strbuf_release(&all);
}

static void
put_typed(const CallRow *r, Strbuf *b, const json_t *schema, const char *type, int depth)
{
	const json_t *items = json_object_get(schema, "items");
	const char *yes = r->quote ? "true" : "True", *no = r->quote ? "false" : "False",
	           *none = r->quote ? "null" : "None";

	if (!strcmp(type, "string") && r->quote) {
		strbuf_puts(b, "{\"seq\":[");
		put_text(b, r->quote, NULL, NULL, NULL);
		strbuf_puts(b, ",{\"until\":");
		json_str(b, r->quote, strlen(r->quote));
		strbuf_puts(b, "}]}");
	} else if (!strcmp(type, "boolean")) {
		strbuf_puts(b, "{\"alt\":[");
		put_text(b, yes, NULL, NULL, NULL);
		strbuf_putc(b, ',');
		put_text(b, no, NULL, NULL, NULL);
		strbuf_puts(b, "]}");
	} else if (!strcmp(type, "null")) {
		put_text(b, none, NULL, NULL, NULL);
	} else if (!strcmp(type, "array") && json_is_object(items)) {
		strbuf_puts(b, "{\"seq\":[{\"text\":\"[\"},{\"alt\":[{\"seq\":[]},{\"many\":[");
		put_literal(r, b, items, depth + 1);
		strbuf_putc(b, ',');
		put_text(b, r->pair[2], NULL, NULL, NULL);
		strbuf_puts(b, "]}]},{\"text\":\"]\"}]}");
	} else if (!strcmp(type, "object") &&
	           json_object_size(json_object_get(schema, "properties"))) {
		strbuf_puts(b, "{\"seq\":[{\"text\":\"{\"},");
		put_arguments(r, b, schema, depth + 1);
		strbuf_puts(b, ",{\"text\":\"}\"}]}");
	} else {
		put_schema(b, schema, type, false);
	}
}

/* Writes a value. Types without a rule here are JSON, which the parser accepts too. */
static void
put_literal(const CallRow *r, Strbuf *b, const json_t *schema, int depth)
{
	const json_t *type = json_object_get(schema, "type"),
	             *values = json_object_get(schema, "enum"),
	             *any = json_object_get(schema, "anyOf"), *v;
	const json_t *list = json_array_size(any)      ? any
	                     : json_array_size(values) ? values
	                     : json_is_array(type)     ? type
	                                               : NULL;
	size_t i;

	if (depth > MAX_LITERALS) {
		put_schema(b, schema, "value", false);
		return;
	}
	if (!list && json_is_string(type)) {
		put_typed(r, b, schema, json_string_value(type), depth);
		return;
	}
	if (!json_array_size(list)) {
		put_typed(r, b, schema, r->quote ? "string" : "", depth);
		return;
	}
	strbuf_puts(b, "{\"alt\":[");
	json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
		if (i)
			strbuf_putc(b, ',');
		if (list == any)
			put_literal(r, b, v, depth + 1);
		else if (list == type)
			put_typed(r, b, schema, json_is_string(v) ? json_string_value(v) : "",
			          depth);
		else if (json_is_string(v))
			put_known_text(r, b, json_string_value(v));
		else if (json_is_boolean(v) && !r->quote)
			put_text(b, json_is_true(v) ? "True" : "False", NULL, NULL, NULL);
		else if (json_is_null(v) && !r->quote)
			put_text(b, "None", NULL, NULL, NULL);
		else
			json_text(b, v);
	}
	strbuf_puts(b, "]}");
}

static void
put_argument(const CallRow *r, Strbuf *b, const char *key, const json_t *v, int depth)
{
	Strbuf quoted = { 0 };

	if (depth && !r->quote) /* keys of a nested Python dict are strings */
		json_str(&quoted, key, strlen(key));
	else
		strbuf_puts(&quoted, key);
	strbuf_puts(b, "{\"seq\":[");
	put_text(b, strbuf_str(&quoted), depth && !r->quote ? ": " : r->pair[1], NULL, NULL);
	strbuf_putc(b, ',');
	put_literal(r, b, v, depth);
	strbuf_puts(b, "]}");
	b->failed |= quoted.failed;
	strbuf_release(&quoted);
}

/* Writes properties in order, separated by commas. Those before the first required one carry a
 * trailing comma, later ones a leading one. If none is required, any may be the first. */
static void
put_arguments(const CallRow *r, Strbuf *b, const json_t *parameters, int depth)
{
	const json_t *properties = json_object_get(parameters, "properties"), *v;
	size_t n = json_object_size(properties), i = 0, anchor = n;
	const char *key;

	json_object_foreach ((json_t *)(uintptr_t)properties, key, v) {
		if (anchor == n && is_required(parameters, key))
			anchor = i;
		i++;
	}
	size_t turns = anchor < n ? 1 : n < MAX_OPTIONAL ? n : MAX_OPTIONAL;
	strbuf_puts(b, anchor < n ? "{\"alt\":[" : "{\"alt\":[{\"seq\":[]}");
	for (size_t turn = 0; turn < turns; turn++) {
		size_t first = anchor < n ? anchor : turn;
		bool some = false;
		strbuf_puts(b, turn || anchor == n ? ",{\"seq\":[" : "{\"seq\":[");
		i = 0;
		json_object_foreach ((json_t *)(uintptr_t)properties, key, v) {
			bool must = i == first || (i > first && is_required(parameters, key));
			size_t at = i++;
			if (at < first && anchor == n)
				continue;
			if (some)
				strbuf_putc(b, ',');
			some = true;
			strbuf_puts(b, must ? "{\"seq\":[" : "{\"alt\":[{\"seq\":[]},{\"seq\":[");
			if (at > first) {
				put_text(b, r->pair[2], NULL, NULL, NULL);
				strbuf_putc(b, ',');
			}
			put_argument(r, b, key, v, depth);
			if (at < first) {
				strbuf_putc(b, ',');
				put_text(b, r->pair[2], NULL, NULL, NULL);
			}
			strbuf_puts(b, must ? "]}" : "]}]}");
		}
		strbuf_puts(b, "]}");
	}
	strbuf_puts(b, "]}");
}

/* Writes one call of one tool, starting with `open`. */
static void
put_call(const llmc_calls *c, Strbuf *b, const json_t *tool, const char *open, bool free_)
{
	const CallRow *r = &c->row;
	const json_t *f = json_object_get(tool, "function"),
	             *parameters = json_object_get(f, "parameters");
	const char *name = json_string_value(json_object_get(f, "name"));
	const json_t *format = call_format(tool);
	const char *key =
	    json_object_iter_key(json_object_iter(json_object_get(parameters, "properties")));
	Strbuf head = { 0 };

	strbuf_puts(b, "{\"seq\":[");
	if (r->body == BODY_LITERALS && format) {
		put_text(b, open, name, r->name_end, NULL);
		strbuf_putc(b, ',');
		put_text(b, key, r->pair[1], r->quote ? r->quote : "\"", NULL);
		strbuf_putc(b, ',');
		put_format(b, format, !r->quote);
		strbuf_putc(b, ',');
		put_text(b, r->quote ? r->quote : "\"",
		         r->name_end && strchr(r->name_end, '{') ? "}" : ")", r->close, NULL);
	} else if (r->body == BODY_LITERALS) {
		bool brace = r->name_end && strchr(r->name_end, '{');
		put_text(b, open, name, r->name_end, NULL);
		strbuf_putc(b, ',');
		put_arguments(r, b, free_ ? NULL : parameters, 0);
		strbuf_putc(b, ',');
		put_text(b, brace ? "}" : ")", r->close, NULL, NULL);
	} else if (r->body == BODY_NAMED || r->body == BODY_PAIRS) {
		if (r->name_from)
			strbuf_printf(&head, "call000000%s", r->name_from);
		strbuf_puts(&head, name);
		if (r->number)
			strbuf_printf(&head, "%s0", r->number);
		put_text(b, open, strbuf_str(&head), r->name_end, NULL);
		if (r->body == BODY_PAIRS && format) {
			strbuf_putc(b, ',');
			put_text(b, r->pair[0], key, r->pair[1], NULL);
			strbuf_putc(b, ',');
			put_format(b, format, false);
			strbuf_putc(b, ',');
			put_text(b, r->pair[2], NULL, NULL, NULL);
		} else if (r->body == BODY_PAIRS && !free_) {
			put_pairs(r, b, parameters);
		} else if (format) {
			strbuf_putc(b, ',');
			put_format_object(b, format, key);
		} else {
			strbuf_putc(b, ',');
			put_schema(b, parameters, name, free_);
		}
		strbuf_putc(b, ',');
		put_text(b, r->close, NULL, NULL, NULL);
	} else {
		if (r->key[0])
			json_printf(&head, "{%s: %s, %s: ", r->key[0], name, r->key[1]);
		else
			json_printf(&head, "{%s: ", name);
		put_text(b, r->body == BODY_ARRAY ? NULL : open, strbuf_str(&head), NULL, NULL);
		strbuf_putc(b, ',');
		if (format)
			put_format_object(b, format, key);
		else
			put_schema(b, parameters, name, free_);
		strbuf_putc(b, ',');
		put_text(b, "}", r->body == BODY_ARRAY ? NULL : r->close, NULL, NULL);
	}
	strbuf_puts(b, "]}");
	b->failed |= head.failed;
	strbuf_release(&head);
}

/* Writes calls of all tools, or of one. */
static int
put_calls(const llmc_calls *c, Strbuf *b, const char *only, const char *open, bool free_)
{
	json_t *tool;
	size_t i;
	int n = 0;

	strbuf_puts(b, "{\"alt\":[");
	json_array_foreach (c->tools, i, tool) {
		const char *name =
		    json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
		if (!name || (only && strcmp(only, name) != 0))
			continue;
		if (n++)
			strbuf_putc(b, ',');
		put_call(c, b, tool, open, free_);
	}
	strbuf_puts(b, "]}");
	return n;
}

llmc_status
llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf, size_t cap,
                 size_t *need, llmc_error *err)
{
	const CallRow *r = &c->row;
	bool array = r->body == BODY_ARRAY, free_ = flags & LLMC_CALLS_FREE,
	     begun = flags & LLMC_CALLS_BEGUN;
	const char *first = r->section[0] ? r->section[0] : r->open, *open = r->open, *lead = "";
	Strbuf b = { 0 };
	int n;

	if (r->body == BODY_NONE || !c->tools)
		return error_set(
		    err, LLMC_E_INPUT,
		    "this model's format of calls is not known, or there are no tools");
	if (begun) { /* the rest of the marker that has come already */
		size_t skip = first ? strlen(first) : 0;
		while (skip && strchr(" \n", first[skip - 1]))
			skip--;
		lead = first ? first + skip : "";
	}
	strbuf_puts(&b, "{\"seq\":[");
	if (array) {
		put_text(&b, begun ? lead : first, "[", NULL, NULL);
		strbuf_puts(&b, ",{\"many\":[");
		n = put_calls(c, &b, only, NULL, free_);
		strbuf_puts(&b, ",{\"text\":\", \"}]");
		strbuf_puts(&b, flags & LLMC_CALLS_ONE ? ",\"max\":1}," : "},");
		put_text(&b, "]", r->close, NULL, NULL);
	} else if (begun && !r->section[0]) {
		n = put_calls(c, &b, only, lead, free_);
		if (!(flags & LLMC_CALLS_ONE)) {
			strbuf_puts(&b, ",{\"alt\":[{\"seq\":[]},{\"seq\":[");
			put_text(&b, r->between, NULL, NULL, NULL);
			strbuf_puts(&b, ",{\"many\":[");
			put_calls(c, &b, only, open, free_);
			strbuf_putc(&b, ',');
			put_text(&b, r->between, NULL, NULL, NULL);
			strbuf_puts(&b, "]}]}]}");
		}
	} else {
		put_text(&b, begun ? lead : r->section[0], NULL, NULL, NULL);
		strbuf_puts(&b, ",{\"many\":[");
		n = put_calls(c, &b, only, open, free_);
		strbuf_putc(&b, ',');
		put_text(&b, r->between, NULL, NULL, NULL);
		strbuf_puts(&b, flags & LLMC_CALLS_ONE ? "],\"max\":1}," : "]},");
		put_text(&b, r->section[1], NULL, NULL, NULL);
	}
	strbuf_puts(&b, "]}");
	llmc_status status = LLMC_OK;
	if (need)
		*need = b.len;
	if (b.failed)
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for the rules of %d tools", n);
	else if (!n)
		status =
		    error_set(err, LLMC_E_INPUT, "there is no tool '%.100s'", only ? only : "");
	else if (b.len >= cap)
		status = error_set(
		    err, LLMC_E_RANGE,
		    "the rules have %zu bytes and a NUL and do not fit into a buffer of %zu", b.len,
		    cap);
	else
		memcpy(buf, strbuf_str(&b), b.len + 1);
	strbuf_release(&b);
	return status;
}
