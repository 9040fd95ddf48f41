/* configs/formats/calls.yaml: selects the row for a chat template, and writes the grammar of its
 * calls. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/json.h"
#include "formats/yaml.h"
#include "text/tool_calls.h"

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

/* Returns the part of an added token between the two strings of `suffix`. "": there is no such
 * token */
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

/* Fills the row for a tokenizer. May jump to the arena's oom. */
static llmc_status
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

struct CallFormat {
	Arena arena;
	CallRow row;
};

void
call_format_free(CallFormat *f)
{
	if (f)
		arena_release(&f->arena);
	free(f);
}

static llmc_status
fill(CallFormat *f, const llmc_tokenizer *t, llmc_error *err)
{
	arena_init(&f->arena);
	if (setjmp(f->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "out of memory for the format of calls");
	return call_row(t, &f->arena, &f->row, err);
}

llmc_status
call_format(const llmc_tokenizer *t, const CallRow **out, llmc_error *err)
{
	_Atomic(CallFormat *) *kept = &((llmc_tokenizer *)t)->call_format;
	CallFormat *f = atomic_load(kept), *other = NULL;

	if (!f) {
		f = calloc(1, sizeof *f);
		if (!f)
			return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
		llmc_status status = fill(f, t, err);
		if (status != LLMC_OK) {
			call_format_free(f);
			return status;
		}
		if (!atomic_compare_exchange_strong(kept, &other, f)) {
			call_format_free(f);
			f = other;
		}
	}
	*out = &f->row;
	return LLMC_OK;
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
	char *text = json_object_size(schema) && !free_
	                 ? json_dumps_numbers(schema, JSON_COMPACT | JSON_ENCODE_ANY)
	                 : NULL;

	json_printf(b, "{\"name\":%s,\"schema\":", name);
	strbuf_puts(b, text ? text : "{\"type\":\"object\"}");
	strbuf_putc(b, '}');
	free(text);
}

/* Writes the grammar of a string. json: as the inside of a JSON string */
static void
put_format(Strbuf *b, const json_t *format, bool json)
{
	json_printf(
	    b, "{\"kind\":%s,\"grammar\":", json_string_value(json_object_get(format, "syntax")));
	json_str(b, json_string_value(json_object_get(format, "definition")),
	         json_string_length(json_object_get(format, "definition")));
	strbuf_puts(b, json ? ",\"json\":true}" : "}");
}

/* Writes, as JSON, arguments that consist of one string with a grammar. */
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

/* Writes the arguments of a call in a format other than one JSON object: keys and values between
 * the marks of the row. */
static void
put_arguments(const CallRow *r, Strbuf *b, const Tool *tool, bool free_)
{
	bool pairs = r->body == BODY_PAIRS;
	const json_t *parameters = tool->parameters;
	char *text = parameters && !free_ ? json_dumps_numbers(parameters, JSON_COMPACT) : NULL;

	json_printf(b, "{\"name\":%s,\"schema\":", tool->name);
	strbuf_puts(b, text    ? text
	               : free_ ? "{\"type\":\"object\"}"
	                       : "{\"type\":\"object\",\"properties\":{}}");
	json_printf(b, ",\"arguments\":{\"values\":%s,\"open\":%s,\"value\":%s",
	            pairs      ? "raw"
	            : r->quote ? "quoted"
	                       : "python",
	            r->pair[0], r->pair[1]);
	if (pairs)
		json_printf(b, ",\"end\":%s", r->pair[2]);
	else
		json_printf(b, ",\"between\":%s", r->pair[2]);
	if (pairs && r->pair[3])
		json_printf(b, ",\"json\":%s", r->pair[3]);
	if (r->quote)
		json_printf(b, ",\"quote\":%s", r->quote);
	strbuf_puts(b, "}}");
	b->failed |= parameters && !free_ && !text;
	free(text);
}

/* Writes one call of one tool, starting with `open`. */
static void
put_call(const llmc_calls *c, Strbuf *b, const Tool *tool, const char *open, bool free_)
{
	const CallRow *r = &c->row;
	const json_t *parameters = tool->parameters, *format = tool->format;
	const char *name = tool->name, *key = tool->n ? tool->param[0].name : NULL;
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
		put_arguments(r, b, tool, free_);
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
		} else if (r->body == BODY_PAIRS) {
			strbuf_putc(b, ',');
			put_arguments(r, b, tool, free_);
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
	int n = 0;

	strbuf_puts(b, "{\"alt\":[");
	for (size_t i = 0; i < c->n_tool; i++) {
		if (only && strcmp(only, c->tool[i].name) != 0)
			continue;
		if (n++)
			strbuf_putc(b, ',');
		put_call(c, b, &c->tool[i], open, free_);
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
	if (begun) { /* the rest of the marker, of which the beginning has been generated already */
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
