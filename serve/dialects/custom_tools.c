/* Custom tools: translates them to functions, and extracts their input from the arguments that the
 * model generates. */
#include "serve/dialects/custom_tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/json.h"

/* Read the format of a custom tool's input: a grammar, or NULL in *out. */
bool
custom_format(const json_t *tool, size_t i, json_t **out, Problem *p)
{
	json_t *format = json_object_get(tool, "format");
	const char *type = json_string_value(json_object_get(format, "type")),
	           *syntax = json_string_value(json_object_get(format, "syntax"));

	*out = NULL;
	if (!format || json_is_null(format) || (type && !strcmp(type, "text")))
		return true;
	if (!type || strcmp(type, "grammar") != 0)
		return problem(
		    p, 400, "tools",
		    "Invalid 'tools[%zu].format': expected an object of type 'text' or 'grammar'.",
		    i);
	if (!syntax || (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0))
		return problem(p, 400, "tools",
		               "Invalid 'tools[%zu].format.syntax': expected 'lark' or 'regex'.",
		               i);
	if (!json_string_length(json_object_get(format, "definition")))
		return problem(
		    p, 400, "tools",
		    "Invalid 'tools[%zu].format.definition': expected the text of a grammar.", i);
	*out = format;
	return true;
}

/* Translate a custom tool to a function of one string. Its description states the required
 * format. */
json_t *
custom_function(const json_t *tool)
{
	const json_t *format = json_object_get(tool, "format");
	const char *about = json_string_value(json_object_get(tool, "description")),
	           *syntax = json_string_value(json_object_get(format, "syntax"));
	const char *definition = json_string_value(json_object_get(format, "definition"));
	json_t *f =
	    json_pack("{s:O,s:{s:s,s:{s:{s:s}},s:[s],s:b}}", "name", json_object_get(tool, "name"),
	              "parameters", "type", "object", "properties", CUSTOM_INPUT, "type", "string",
	              "required", CUSTOM_INPUT, "additionalProperties", 0);

	if (definition)
		json_object_set_new(f, "description",
		                    json_sprintf("%s\nThe input is of this %s grammar:\n%s",
		                                 about ? about : "", syntax ? syntax : "",
		                                 definition));
	else if (about)
		json_object_set_new(f, "description", json_string(about));
	return f;
}

/* Return the offset of the string's content in {"input": "..."; 0: not found. */
static size_t
input_at(const char *s)
{
	static const char *const parts[] = { "{", "\"" CUSTOM_INPUT "\"", ":", "\"" };
	const char *at = s;

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		at += strspn(at, " \t\r\n");
		if (strncmp(at, parts[i], strlen(parts[i])) != 0)
			return 0;
		at += strlen(parts[i]);
	}
	return (size_t)(at - s);
}

/* Return the bytes at s that hold complete characters and escapes of a JSON string, at most up to
 * its closing quote. *over: the quote was reached. */
static size_t
string_whole(const char *s, size_t n, bool *over)
{
	size_t i = 0;

	n = utf8_whole(s, n);
	while (i < n && s[i] != '"') {
		bool pair = s[i] == '\\' && i + 3 < n && s[i + 1] == 'u' &&
		            (s[i + 2] == 'd' || s[i + 2] == 'D') && strchr("89abAB", s[i + 3]);
		size_t len = s[i] != '\\' ? 1 : pair ? 12 : i + 1 < n && s[i + 1] == 'u' ? 6 : 2;
		if (i + len > n)
			return i;
		i += len;
	}
	*over = i < n;
	return i;
}

void
custom_input_begin(Choice *c)
{
	strbuf_clear(&c->held);
	c->n_input = 0;
	c->input_over = false;
}

void
custom_input(Choice *c, const char *text, size_t n, bool last, Strbuf *out)
{
	Strbuf quoted = { 0 };
	bool no_memory;

	strbuf_add(&c->held, text, n);
	if (!c->n_input)
		c->n_input = input_at(strbuf_str(&c->held));
	if (!c->n_input && last)
		strbuf_add(out, strbuf_str(&c->held), c->held.len);
	if (!c->n_input || c->input_over)
		return;
	const char *s = strbuf_str(&c->held) + c->n_input;
	size_t more = string_whole(s, c->held.len - c->n_input, &c->input_over);
	strbuf_putc(&quoted, '"');
	strbuf_add(&quoted, s, more);
	strbuf_putc(&quoted, '"');
	json_t *said = json_parse(strbuf_str(&quoted), quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL,
	                          NULL, &no_memory);
	out->failed |= no_memory;
	/* arguments that are not valid JSON are sent unchanged */
	strbuf_add(out, said ? json_string_value(said) : s, said ? json_string_length(said) : more);
	c->n_input += more;
	json_decref(said);
	strbuf_release(&quoted);
}

bool
custom_is_name(const json_t *names, const char *name, size_t n)
{
	const json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)names, i, v)
		if (json_string_length(v) == n && !memcmp(json_string_value(v), name, n))
			return true;
	return false;
}

/* ---- chat ---- */

static bool
is_custom(const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));

	return type && !strcmp(type, "custom") && json_is_object(json_object_get(v, "custom"));
}

/* Convert {"type": "custom", "custom": {"name"}} of tool_choice to the form of a function. */
static json_t *
named_function(const json_t *v)
{
	return is_custom(v) ? json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name",
	                                json_object_get(json_object_get(v, "custom"), "name"))
	                    : json_incref((json_t *)(uintptr_t)v);
}

/* Flatten {"type": "grammar", "grammar": {"syntax", "definition"}} to {"type", "syntax",
 * "definition"} */
static json_t *
flat_tool(const json_t *custom)
{
	const json_t *format = json_object_get(custom, "format"),
	             *inner = json_object_get(format, "grammar");
	json_t *out = json_copy((json_t *)(uintptr_t)custom);

	if (out && json_is_object(inner))
		json_object_set_new(out, "format",
		                    json_pack("{s:O?, s:O?, s:O?}", "type",
		                              json_object_get(format, "type"), "syntax",
		                              json_object_get(inner, "syntax"), "definition",
		                              json_object_get(inner, "definition")));
	return out;
}

static bool
translate_tools(const json_t *in, json_t *out, Problem *p)
{
	json_t *tools = json_array(), *names = json_array(), *tool, *format = NULL;
	bool ok = true;
	size_t i;

	json_array_foreach (json_object_get(in, "tools"), i, tool) {
		json_t *flat = is_custom(tool) ? flat_tool(json_object_get(tool, "custom")) : NULL;
		if (!flat) {
			json_array_append(tools, tool);
			continue;
		}
		const json_t *name = json_object_get(flat, "name");
		ok = ok &&
		     (json_string_length(name) ||
		      problem(p, 400, "tools", "Invalid 'tools[%zu].custom': expected a 'name'.",
		              i)) &&
		     custom_format(flat, i, &format, p);
		if (ok) {
			json_array_append_new(tools, json_pack("{s:s,s:o,s:O*}", "type", "function",
			                                       "function", custom_function(flat),
			                                       "format", format));
			json_array_append_new(names, json_string(json_string_value(name)));
		}
		json_decref(flat);
	}
	json_object_set_new(out, "tools", tools);
	json_object_set_new(out, CUSTOM_NAMES, names);
	return ok;
}

static void
translate_choice(const json_t *in, json_t *out)
{
	const json_t *choice = json_object_get(in, "tool_choice"),
	             *allowed = json_object_get(choice, "allowed_tools");
	json_t *some, *one;
	size_t i;

	if (is_custom(choice)) {
		json_object_set_new(out, "tool_choice", named_function(choice));
	} else if (json_is_object(allowed)) {
		some = json_array();
		json_array_foreach (json_object_get(allowed, "tools"), i, one)
			json_array_append_new(some, named_function(one));
		json_object_set_new(out, "tool_choice",
		                    json_pack("{s:s, s:{s:O*, s:o}}", "type", "allowed_tools",
		                              "allowed_tools", "mode",
		                              json_object_get(allowed, "mode"), "tools", some));
	}
}

/* Translate calls of custom tools in earlier messages. */
static void
translate_messages(const json_t *in, json_t *out)
{
	json_t *list = json_array(), *m, *call;
	size_t i, k;

	json_array_foreach (json_object_get(in, "messages"), i, m) {
		json_t *calls = json_object_get(m, "tool_calls"), *own = NULL, *copy;
		if (!json_is_array(calls)) {
			json_array_append(list, m);
			continue;
		}
		own = json_array();
		json_array_foreach (calls, k, call) {
			const json_t *custom = json_object_get(call, "custom");
			json_array_append_new(
			    own, is_custom(call) ? json_pack("{s:O*, s:s, s:{s:O?, s:{s:O?}}}",
			                                     "id", json_object_get(call, "id"),
			                                     "type", "function", "function", "name",
			                                     json_object_get(custom, "name"),
			                                     "arguments", CUSTOM_INPUT,
			                                     json_object_get(custom, CUSTOM_INPUT))
			                         : json_incref(call));
		}
		copy = json_copy(m);
		json_object_set_new(copy, "tool_calls", own);
		json_array_append_new(list, copy);
	}
	json_object_set_new(out, "messages", list);
}

json_t *
custom_chat(const json_t *in, Problem *p)
{
	const json_t *v;
	bool some = false;
	size_t i, k;

	json_array_foreach (json_object_get(in, "tools"), i, v)
		some |= is_custom(v);
	json_array_foreach (json_object_get(in, "messages"), i, v) {
		const json_t *call;
		json_array_foreach (json_object_get(v, "tool_calls"), k, call)
			some |= is_custom(call);
	}
	if (!some)
		return json_incref((json_t *)(uintptr_t)in);
	json_t *out = json_copy((json_t *)(uintptr_t)in);
	if (!out) {
		problem_memory(p);
		return NULL;
	}
	if (json_is_array(json_object_get(in, "tools")) && !translate_tools(in, out, p)) {
		json_decref(out);
		return NULL;
	}
	translate_choice(in, out);
	if (json_is_array(json_object_get(in, "messages")))
		translate_messages(in, out);
	return out;
}
