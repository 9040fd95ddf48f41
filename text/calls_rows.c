/* configs/formats/calls.yaml: the row of a chat template, and what it forces. */
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/json.h"
#include "formats/yaml.h"
#include "text/calls.h"

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
	static const char *const names[] = { "", "json", "array", "named", "pairs" };

	for (int i = 1; word && i < 5; i++)
		if (!strcmp(word, names[i]))
			return (CallBody)i;
	return BODY_NONE;
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
		return error_set(err, LLMC_E_BUG, FILE_NAME " cannot be read: it belongs to the library itself");
	for (size_t i = 0; i < rows->n; i++) {
		const Node *row = rows->item[i];
		if (!fits(row, template))
			continue;
		out->name = text_of(row, "name");
		out->open = text_of(row, "open");
		out->close = text_of(row, "close");
		out->between = text_of(row, "between");
		out->name_end = text_of(row, "name_end");
		out->number = text_of(row, "number");
		out->bare = text_of(row, "bare");
		out->system = text_of(row, "system");
		out->body = body_of(text_of(row, "body"));
		texts_of(row, "think", out->think, 2);
		texts_of(row, "section", out->section, 2);
		texts_of(row, "keys", out->key, 2);
		texts_of(row, "pair", out->pair, 3);
		out->n_drop = texts_of(row, "drop", out->drop, MAX_DROP);
		return LLMC_OK;
	}
	return error_set(err, LLMC_E_BUG, FILE_NAME " has no last row for everything else");
}

/* ---- what is forced ---- */

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

	return (json_is_string(type) && !strcmp(json_string_value(type), "string") && !json_object_get(schema, "enum")) || !type;
}

/* Properties one behind the other; those that are not required may be left out. */
static void
put_pairs(const CallRow *r, Strbuf *b, const json_t *parameters)
{
	const json_t *properties = json_object_get(parameters, "properties"), *required = json_object_get(parameters, "required"), *v, *name;
	const char *key;
	size_t i;

	json_object_foreach((json_t *)(uintptr_t)properties, key, v) {
		bool must = false;
		json_array_foreach((json_t *)(uintptr_t)required, i, name)
			must |= json_is_string(name) && !strcmp(json_string_value(name), key);
		strbuf_puts(b, must ? ",{\"seq\":[" : ",{\"alt\":[{\"seq\":[]},{\"seq\":[");
		put_text(b, r->pair[0], key, r->pair[1], NULL);
		strbuf_putc(b, ',');
		if (takes_text(v)) {
			strbuf_puts(b, "{\"until\":");
			json_str(b, r->pair[2], strlen(r->pair[2]));
			strbuf_putc(b, '}');
		} else {
			put_schema(b, v, key, false);
			strbuf_putc(b, ',');
			put_text(b, r->pair[2], NULL, NULL, NULL);
		}
		strbuf_puts(b, must ? "]}" : "]}]}");
	}
}

/* One call of one tool, with `open` in front */
static void
put_call(const llmc_calls *c, Strbuf *b, const json_t *tool, const char *open, bool free_)
{
	const CallRow *r = &c->row;
	const json_t *f = json_object_get(tool, "function"), *parameters = json_object_get(f, "parameters");
	const char *name = json_string_value(json_object_get(f, "name"));
	Strbuf head = { 0 };

	strbuf_puts(b, "{\"seq\":[");
	if (r->body == BODY_NAMED || r->body == BODY_PAIRS) {
		strbuf_puts(&head, name);
		if (r->number)
			strbuf_printf(&head, "%s0", r->number);
		put_text(b, open, strbuf_str(&head), r->name_end, NULL);
		if (r->body == BODY_PAIRS && !free_) {
			put_pairs(r, b, parameters);
		} else {
			strbuf_putc(b, ',');
			put_schema(b, parameters, name, free_);
		}
		strbuf_putc(b, ',');
		put_text(b, r->close, NULL, NULL, NULL);
	} else {
		json_printf(&head, "{%s: %s, %s: ", r->key[0], name, r->key[1]);
		put_text(b, r->body == BODY_ARRAY ? NULL : open, strbuf_str(&head), NULL, NULL);
		strbuf_putc(b, ',');
		put_schema(b, parameters, name, free_);
		strbuf_putc(b, ',');
		put_text(b, "}", r->body == BODY_ARRAY ? NULL : r->close, NULL, NULL);
	}
	strbuf_puts(b, "]}");
	b->failed |= head.failed;
	strbuf_release(&head);
}

/* Calls of all tools, or of one */
static int
put_calls(const llmc_calls *c, Strbuf *b, const char *only, const char *open, bool free_)
{
	json_t *tool;
	size_t i;
	int n = 0;

	strbuf_puts(b, "{\"alt\":[");
	json_array_foreach(c->tools, i, tool) {
		const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
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
llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf, size_t cap, size_t *need, llmc_error *err)
{
	const CallRow *r = &c->row;
	bool array = r->body == BODY_ARRAY, free_ = flags & LLMC_CALLS_FREE, begun = flags & LLMC_CALLS_BEGUN;
	const char *first = r->section[0] ? r->section[0] : r->open, *open = r->open, *lead = "";
	Strbuf b = { 0 };
	int n;

	if (r->body == BODY_NONE || !c->tools)
		return error_set(err, LLMC_E_INPUT, "this model's format of calls is not known, or there are no tools");
	if (begun) { /* what stands behind the mark that has come */
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
		status = error_set(err, LLMC_E_MEMORY, "out of memory for the rules of %d tools", n);
	else if (!n)
		status = error_set(err, LLMC_E_INPUT, "there is no tool '%.100s'", only ? only : "");
	else if (b.len >= cap)
		status = error_set(err, LLMC_E_RANGE, "the rules have %zu bytes and a NUL, room for %zu", b.len, cap);
	else
		memcpy(buf, strbuf_str(&b), b.len + 1);
	strbuf_release(&b);
	return status;
}
