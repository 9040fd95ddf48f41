/* Anthropic's documents and search results with text sources, which become text blocks. */
#include <string.h>

#include "base/json.h"
#include "serve/dialects/anthropic.h"

static void
add_line(Strbuf *b, const char *text, size_t n)
{
	strbuf_puts(b, b->len && n ? "\n" : "");
	strbuf_add(b, text, n);
}

static bool
add_field(Strbuf *b, const json_t *block, const char *key, const char *where, Problem *p)
{
	const json_t *v = json_object_get(block, key);

	if (v && !json_is_null(v) && !json_is_string(v))
		return problem(p, 400, where, "%s.%s: expected a string, but got %s.", where, key,
		               json_type_name(v));
	add_line(b, json_string_value(v), json_string_length(v));
	return true;
}

/* Add a string or a list of text blocks. */
static bool
add_content(Strbuf *b, const json_t *content, const char *where, Problem *p)
{
	const json_t *part;
	size_t i;

	if (json_is_string(content)) {
		add_line(b, json_string_value(content), json_string_length(content));
		return true;
	}
	if (!json_is_array(content))
		return problem(p, 400, where,
		               "%s: expected a string or an array of text blocks, but got %s.",
		               where, json_type_name(content));
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const char *type = json_string_of(part, "type");
		const json_t *text = json_object_get(part, "text");
		if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
			return problem(p, 400, where, "%s.%zu: expected a block of type 'text'.",
			               where, i);
		add_line(b, json_string_value(text), json_string_length(text));
	}
	return true;
}

static bool
add_source(Strbuf *b, const json_t *block, const char *where, Problem *p)
{
	const json_t *source = json_object_get(block, "source"),
	             *data = json_object_get(source, "data");
	const char *type = json_string_of(source, "type"),
	           *media = json_string_of(source, "media_type");
	char at[96];

	snprintf(at, sizeof at, "%.80s.source", where);
	if (!type)
		return problem(p, 400, at, "%s: expected an object with a 'type'.", at);
	if (!strcmp(type, "content"))
		return add_content(b, json_object_get(source, "content"), at, p);
	if (strcmp(type, "text") != 0)
		return problem(p, 400, at,
		               "%s: a document of type '%.40s' is not supported: this server "
		               "accepts text only. Send its text as a source of type 'text'.",
		               at, type);
	if (media && strcmp(media, "text/plain") != 0)
		return problem(p, 400, at, "%s.media_type: expected 'text/plain'.", at);
	if (!json_is_string(data))
		return problem(p, 400, at, "%s.data: expected a string, but got %s.", at,
		               json_type_name(data));
	add_line(b, json_string_value(data), json_string_length(data));
	return true;
}

/* Return the text block of a document, a new reference; NULL with a Problem. */
static json_t *
as_text(const json_t *block, bool search, const char *where, Problem *p)
{
	Strbuf b = { 0 };
	json_t *out = NULL;
	bool ok = add_field(&b, block, "title", where, p);

	if (json_is_true(json_object_get(json_object_get(block, "citations"), "enabled")))
		ok = ok && problem(p, 400, where,
		                   "%s.citations: not supported by this server. Request quotes in "
		                   "a message.",
		                   where);
	if (search)
		ok = ok && add_field(&b, block, "source", where, p) &&
		     add_content(&b, json_object_get(block, "content"), where, p);
	else
		ok = ok && add_field(&b, block, "context", where, p) &&
		     add_source(&b, block, where, p);
	if (ok && !(out = b.failed ? NULL
	                           : json_pack("{s:s,s:s%}", "type", "text", "text", strbuf_str(&b),
	                                       b.len)))
		problem_memory(p);
	strbuf_release(&b);
	return out;
}

json_t *
anthropic_without_documents(const json_t *content, const char *where, Problem *p)
{
	json_t *out, *block;
	size_t i;

	if (!json_is_array(content))
		return json_incref((json_t *)(uintptr_t)content);
	if (!(out = json_array()))
		problem_memory(p);
	json_array_foreach ((json_t *)(uintptr_t)content, i, block) {
		const char *type = json_string_of(block, "type");
		char at[64];
		json_t *in, *made = NULL;
		snprintf(at, sizeof at, "%.40s.%zu", where, i);
		if (type && (!strcmp(type, "document") || !strcmp(type, "search_result"))) {
			made = as_text(block, *type == 's', at, p);
		} else if (type && !strcmp(type, "tool_result") &&
		           json_is_array(in = json_object_get(block, "content"))) {
			json_t *inner = anthropic_without_documents(in, at, p);
			if (inner && (made = json_copy(block)) != NULL)
				json_object_set(made, "content", inner);
			json_decref(inner);
		} else {
			made = json_incref(block);
		}
		if (!made || json_array_append_new(out, made) != 0) {
			if (!p->status)
				problem_memory(p);
			json_decref(out);
			return NULL;
		}
	}
	return out;
}
