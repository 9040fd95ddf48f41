/* Checks messages of a chat, converts them to the form that templates expect, and renders them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/chat_template.h"
#include "serve/dialects/chat_images.h"
#include "serve/dialects/chat_tools.h"

enum { MAX_KWARGS = 100 };

typedef struct ChatIn { /* options for reading messages */
	ServedModel *model;
	ChatImages *images; /* NULL: images are refused */
} ChatIn;

/* Return the text of a part; NULL with a Problem. */
static const json_t *
part_text(const json_t *part, const char *key, const char *role, Problem *p)
{
	const char *type = json_string_value(json_object_get(part, "type"));
	const json_t *text = json_object_get(part, "text");

	if (!type) {
		problem(p, 400, key, "Invalid '%s': a part is an object with a 'type'.", key);
		return NULL;
	}
	if (strcmp(type, "refusal") == 0 && strcmp(role, "assistant") == 0) {
		text = json_object_get(part, "refusal");
	} else if (strcmp(type, "text") != 0) {
		problem(p, 400, key,
		        "Content of type '%.40s' is not supported: expected 'text' or "
		        "'image_url'.",
		        type);
		return NULL;
	}
	if (json_is_string(text))
		return text;
	problem(p, 400, key, "Invalid '%s': expected a 'text' that is a string.", key);
	return NULL;
}

/* Join text parts to one string. */
static json_t *
joined_text(const json_t *content, const char *where, const char *role, Problem *p)
{
	Strbuf b = { 0 };
	char key[96];
	size_t i;
	json_t *part, *out = NULL;

	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		snprintf(key, sizeof key, "%s[%zu]", where, i);
		const json_t *text = part_text(part, key, role, p);
		if (!text)
			goto out;
		if (i)
			strbuf_putc(&b, '\n');
		strbuf_add(&b, json_string_value(text), json_string_length(text));
	}
	out = b.failed ? NULL : json_stringn(strbuf_str(&b), b.len);
	if (!out)
		problem_memory(p);
out:
	strbuf_release(&b);
	return out;
}

/* Read parts with images: [{"type": "text", "text"} and {"type": "image"}]. */
static json_t *
image_content(const ChatIn *in, const json_t *content, const char *where, const char *role,
              Problem *p)
{
	json_t *out = json_array(), *part;
	char key[96];
	size_t i;

	if (strcmp(role, "user") != 0 && strcmp(role, "tool") != 0 && strcmp(role, "function") != 0)
		problem(p, 400, where,
		        "Invalid '%s': images are possible in messages of the roles 'user' and "
		        "'tool', not '%s'.",
		        where, role);
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		json_t *made = NULL;
		snprintf(key, sizeof key, "%s[%zu]", where, i);
		if (p->status)
			break;
		if (is_image_part(part)) {
			if (chat_images_add(in->images, in->model, part, key, p))
				made = json_pack("{s:s}", "type", "image");
		} else {
			const json_t *text = part_text(part, key, role, p);
			if (text)
				made = json_pack("{s:s,s:O}", "type", "text", "text", text);
		}
		if ((!made || json_array_append_new(out, made) != 0) && !p->status)
			problem_memory(p);
	}
	if (!p->status && out)
		return out;
	json_decref(out);
	if (!p->status)
		problem_memory(p);
	return NULL;
}

/* Read a content: a string, null, or a list of parts. */
static json_t *
read_content(const ChatIn *in, const json_t *content, size_t at, const char *role, bool may_be_null,
             Problem *p)
{
	char key[64];
	size_t i;
	json_t *part;

	snprintf(key, sizeof key, "messages[%zu].content", at);
	if (!content || json_is_null(content)) {
		if (may_be_null)
			return json_null();
		problem(p, 400, key,
		        "Invalid value for 'content': expected a string or an array of parts, got "
		        "null.");
		return NULL;
	}
	if (json_is_string(content))
		return json_incref((json_t *)(uintptr_t)content);
	if (!json_is_array(content)) {
		problem(p, 400, key,
		        "Invalid type for '%s': expected a string or an array of parts, but got %s "
		        "instead.",
		        key, json_type_name(content));
		return NULL;
	}
	json_array_foreach ((json_t *)(uintptr_t)content, i, part)
		if (is_image_part(part))
			return image_content(in, content, key, role, p);
	return joined_text(content, key, role, p);
}

json_t *
parts_text(const json_t *content, const char *where, PartField field, PartFaultFn report,
           Problem *p)
{
	Strbuf b = { 0 };
	json_t *part, *out = NULL;
	size_t i;

	if (json_is_string(content))
		return json_incref((json_t *)(uintptr_t)content);
	if (!json_is_array(content)) {
		report(p, where, PART_LIST, 0, json_type_name(content));
		return NULL;
	}
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const char *type = json_string_value(json_object_get(part, "type")),
		           *key = field(type);
		const json_t *text = key ? json_object_get(part, key) : NULL;
		if (key && !*key)
			continue;
		if (!key || !json_is_string(text)) {
			report(p, where, key ? PART_TEXT : PART_TYPE, i,
			       key    ? json_type_name(text)
			       : type ? type
			              : "?");
			goto out;
		}
		strbuf_puts(&b, b.len ? "\n" : "");
		strbuf_add(&b, json_string_value(text), json_string_length(text));
	}
	out = b.failed ? NULL : json_stringn(strbuf_str(&b), b.len);
	if (!out)
		problem_memory(p);
out:
	strbuf_release(&b);
	return out;
}

json_t *
parts_content(const json_t *content, const char *where, PartField field, PartFaultFn report,
              PartImageFn image, Problem *p)
{
	json_t *out, *part;
	bool any = false;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)content, i, part)
		any |= is_image_part(part);
	if (!any)
		return parts_text(content, where, field, report, p);
	out = json_array();
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const char *type = json_string_value(json_object_get(part, "type")),
		           *key = field(type);
		const json_t *text = key ? json_object_get(part, key) : NULL;
		json_t *made = NULL;
		if (is_image_part(part))
			made = image(part, where, i, p);
		else if (key && !*key)
			continue;
		else if (!key || !json_is_string(text))
			report(p, where, key ? PART_TEXT : PART_TYPE, i,
			       key    ? json_type_name(text)
			       : type ? type
			              : "?");
		else
			made = json_pack("{s:s,s:O}", "type", "text", "text", text);
		if ((!made || json_array_append_new(out, made) != 0) && !p->status)
			problem_memory(p);
		if (p->status) {
			json_decref(out);
			return NULL;
		}
	}
	if (!out)
		problem_memory(p);
	return out;
}

/* Parse the arguments of calls: the protocol sends a string, templates expect an object. */
static bool
fix_calls(json_t *message, size_t at, Problem *p)
{
	json_t *calls = json_object_get(message, "tool_calls"), *call;
	char key[64];
	size_t i;

	snprintf(key, sizeof key, "messages[%zu].tool_calls", at);
	if (!calls || json_is_null(calls))
		return true;
	if (!json_is_array(calls))
		return problem(p, 400, key,
		               "Invalid type for '%s': expected an array, but got %s instead.", key,
		               json_type_name(calls));
	json_array_foreach (calls, i, call) {
		json_t *function = json_object_get(call, "function"),
		       *arguments = json_object_get(function, "arguments");
		if (!json_is_string(json_object_get(function, "name")))
			return problem(p, 400, key,
			               "Invalid '%s[%zu]': expected an object with a 'function' "
			               "that has a 'name'.",
			               key, i);
		if (json_is_string(arguments)) {
			bool no_memory;
			json_t *o =
			    json_parse(json_string_value(arguments), json_string_length(arguments),
			               JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, NULL, &no_memory);
			if (no_memory)
				return problem_memory(p);
			if (json_is_object(o))
				json_object_set(function, "arguments", o);
			json_decref(o);
		}
	}
	return true;
}

static json_t *
one_message(const ChatIn *how, const json_t *in, size_t at, Problem *p)
{
	static const char *const roles[] = { "system",    "developer", "user",
		                             "assistant", "tool",      "function" };
	const json_t *role = json_object_get(in, "role");
	char key[64];
	bool known = false;

	snprintf(key, sizeof key, "messages[%zu]", at);
	if (!json_is_object(in)) {
		problem(p, 400, key,
		        "Invalid type for '%s': expected an object, but got %s instead.", key,
		        json_type_name(in));
		return NULL;
	}
	for (size_t i = 0; i < sizeof roles / sizeof *roles && json_is_string(role); i++)
		known |= !strcmp(json_string_value(role), roles[i]);
	if (!known) {
		snprintf(key, sizeof key, "messages[%zu].role", at);
		problem(p, 400, key,
		        "Invalid value for 'role': '%.40s'. Supported values are: 'system', "
		        "'developer', 'user', 'assistant' and 'tool'.",
		        json_is_string(role) ? json_string_value(role) : json_type_name(role));
		return NULL;
	}
	const char *name = json_string_value(role);
	bool calls = json_array_size(json_object_get(in, "tool_calls")) > 0;
	json_t *content = read_content(how, json_object_get(in, "content"), at, name,
	                               calls && !strcmp(name, "assistant"), p);
	if (!content)
		return NULL;
	/* images, which are large, are not copied */
	json_t *flat = json_copy((json_t *)(uintptr_t)in);
	bool ok = json_object_set_new(flat, "content", content) == 0;
	json_t *out = ok ? json_deep_copy(flat) : NULL;
	json_decref(flat);
	if (!out) {
		problem_memory(p);
		return NULL;
	}
	/* "developer" is a newer name of the system role, which no template has */
	if (!strcmp(name, "developer"))
		json_object_set_new(out, "role", json_string("system"));
	if (!fix_calls(out, at, p)) {
		json_decref(out);
		return NULL;
	}
	return out;
}

/* Report whether the template shows the tools in `options`: it does if rendering without them gives
 * another text. */
static bool
tools_shown(ServedModel *model, json_t *messages, json_t *options, int forms, const char *text,
            size_t n, bool *shown, Problem *p)
{
	char *without = NULL;
	size_t m;

	json_object_del(options, "tools");
	if (!chat_apply(model, messages, options, forms, &without, &m, p))
		return false;
	*shown = n != m || memcmp(text, without, n) != 0;
	free(without);
	return true;
}

/* Render the prompt with tools. If the template does not show them, list them in the system
 * message. */
static bool
with_tools(ServedModel *model, json_t **messages, json_t *options, int forms, char **text,
           size_t *n, const json_t *tools, Problem *p)
{
	bool shown;

	if (!tools_shown(model, *messages, options, forms, *text, *n, &shown, p) || shown)
		return !p->status;
	json_t *extended = messages_with_tools(model, *messages, tools);
	if (!extended)
		return problem_memory(p);
	json_decref(*messages);
	*messages = extended;
	free(*text);
	*text = NULL;
	return chat_apply(model, *messages, options, forms, text, n, p);
}

/* Cut the text that the template adds after the content of the last message, for
 * continue_final_message. */
static bool
leave_open(const json_t *messages, char *text, size_t *n, Problem *p)
{
	const char *last = json_string_value(
	    json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"));
	size_t len = last ? strlen(last) : 0;

	while (len && strchr(" \n\t\r", last[len - 1]))
		len--; /* ignore spaces at the end, because many templates trim the content */
	while (len && strchr(" \n\t\r", *last))
		last++, len--;
	for (size_t i = *n >= len ? *n - len + 1 : 0; len && i-- > 0;)
		if (memcmp(text + i, last, len) == 0) {
			*n = i + len;
			text[*n] = 0;
			return true;
		}
	return problem(p, 400, "continue_final_message",
	               "The last message has no text to continue.");
}

const char *
template_reserved(const json_t *kwargs)
{
	static const char *const names[] = { "messages", "tools", "add_generation_prompt",
		                             "chat_template" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (json_object_get(kwargs, names[i]))
			return names[i];
	return NULL;
}

bool
chat_render(ServedModel *model, const json_t *o, json_t *tools, ChatImages *images, char **text,
            size_t *n, Problem *p)
{
	const ChatIn how = { model, images };
	json_t *in = json_object_get(o, "messages"),
	       *kwargs = json_object_get(o, "chat_template_kwargs"), *value,
	       *template = json_object_get(o, "chat_template"),
	       *documents = json_object_get(o, "documents");
	json_t *messages = NULL, *options = NULL;
	bool generate = true, go_on = false, ok = false;
	const char *key, *effort = json_string_value(json_object_get(o, "reasoning_effort"));

	*text = NULL;
	if (!model->back.tok || (!model->back.info.has_chat_template && !json_is_string(template)))
		return problem(p, 400, "messages",
		               "This model has no chat template: use /v1/completions, or pass "
		               "'chat_template'.");
	if (!field_text(o, "chat_template", NULL, p))
		return false;
	if (documents && !json_is_null(documents) && !json_is_array(documents))
		return problem(
		    p, 400, "documents",
		    "Invalid type for 'documents': expected an array of objects, but got "
		    "%s instead.",
		    json_type_name(documents));
	if (!in || json_is_null(in)) {
		problem(p, 400, "messages", "Missing required parameter: 'messages'.");
		p->code = "missing_required_parameter";
		return false;
	}
	if (!json_is_array(in) || json_array_size(in) == 0)
		return problem(p, 400, "messages",
		               "Invalid 'messages': expected an array with at least one message, "
		               "but got %s instead.",
		               json_is_array(in) ? "an empty array" : json_type_name(in));
	/* limited, because each becomes a variable of the template */
	if (json_object_size(kwargs) > MAX_KWARGS)
		return problem(p, 400, "chat_template_kwargs",
		               "Invalid 'chat_template_kwargs': at most %d are allowed, got %zu.",
		               MAX_KWARGS, json_object_size(kwargs));
	if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
		return problem(p, 400, "chat_template_kwargs",
		               "Invalid type for 'chat_template_kwargs': expected an object, but "
		               "got %s instead.",
		               json_type_name(kwargs));
	if (!field_bool(o, "continue_final_message", &go_on, p))
		return false;
	generate = !go_on;
	if (!field_bool(o, "add_generation_prompt", &generate, p))
		return false;
	if (go_on && generate)
		return problem(
		    p, 400, "continue_final_message",
		    "'continue_final_message' and 'add_generation_prompt' exclude each other.");
	if (!chat_images_check(images, model, in, p))
		return false;
	messages = json_array();
	options = json_object();
	tools = json_incref(tools);
	if (!messages || !options) {
		problem_memory(p);
		goto out;
	}
	for (size_t i = 0; i < json_array_size(in); i++) {
		json_t *m = one_message(&how, json_array_get(in, i), i, p);
		if (!m)
			goto out;
		json_array_append_new(messages, m);
	}
	json_object_foreach (model->srv->template_defaults, key, value)
		json_object_set_new(options, key, json_deep_copy(value));
	if (effort) { /* vLLM passes both; chat_template_kwargs override them */
		json_object_set_new(options, "reasoning_effort", json_string(effort));
		json_object_set_new(options, "enable_thinking",
		                    json_boolean(strcmp(effort, "none") != 0));
	}
	if ((key = template_reserved(kwargs)) != NULL) {
		problem(p, 400, "chat_template_kwargs",
		        "'chat_template_kwargs' cannot set '%s': pass it as a field of the "
		        "request.",
		        key);
		goto out;
	}
	json_object_foreach (kwargs, key, value)
		json_object_set(options, key, value);
	json_object_set_new(options, "add_generation_prompt", json_boolean(generate));
	if (json_is_array(documents))
		json_object_set(options, "documents", documents);
	if (!chat_break(model, messages, &options, &tools, p))
		goto out;
	if (json_is_string(template))
		json_object_set(options, "chat_template", template);
	if (tools)
		json_object_set(options, "tools", tools);
	const int forms = chat_forms(model, options);
	ok = chat_apply(model, messages, options, forms, text, n, p) &&
	     (!tools || with_tools(model, &messages, options, forms, text, n, tools, p)) &&
	     (!go_on || leave_open(messages, *text, n, p)) &&
	     (!images || !images->n || chat_images_place(images, model, text, n, p));
out:
	json_decref(messages);
	json_decref(options);
	json_decref(tools);
	if (!ok) {
		free(*text);
		*text = NULL;
	}
	return ok;
}

bool
chat_prompt(Req *r, const json_t *o, char **text, size_t *n, Problem *p)
{
	ChatImages images = { .req = r };
	ToolUse use;
	bool ok =
	    tools_read(o, &use, p) && chat_render(r->model, o, use.tools, &images, text, n, p);

	chat_images_release(&images, r->model);
	tools_release(&use);
	return ok;
}
