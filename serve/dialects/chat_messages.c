/* Messages of a chat: check them, convert them to the form that templates expect, render them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/chat_tools.h"

enum { MAX_KWARGS = 100 };

/* Join text parts to one string. Refuse images and audio. */
static json_t *
content_text(const json_t *content, size_t at, const char *role, bool may_be_null, Problem *p)
{
	Strbuf b = { 0 };
	char key[64];
	size_t i;
	json_t *part, *out = NULL;

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
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const char *type = json_string_value(json_object_get(part, "type"));
		const json_t *text = json_object_get(part, "text");
		snprintf(key, sizeof key, "messages[%zu].content[%zu]", at, i);
		if (!type) {
			problem(p, 400, key, "Invalid '%s': a part is an object with a 'type'.",
			        key);
			goto out;
		}
		if (strcmp(type, "refusal") == 0 && strcmp(role, "assistant") == 0)
			text = json_object_get(part, "refusal");
		else if (strcmp(type, "text") != 0) {
			problem(p, 400, key,
			        "Content of type '%.40s' is not supported: this model accepts text "
			        "only.",
			        type);
			goto out;
		}
		if (!json_is_string(text)) {
			problem(p, 400, key, "Invalid '%s': expected a 'text' that is a string.",
			        key);
			goto out;
		}
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
one_message(const json_t *in, size_t at, Problem *p)
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
	json_t *content = content_text(json_object_get(in, "content"), at, name,
	                               calls && !strcmp(name, "assistant"), p);
	if (!content)
		return NULL;
	json_t *out = json_deep_copy(in);
	if (!out || json_object_set_new(out, "content", content) != 0) {
		json_decref(out);
		problem_memory(p);
		return NULL;
	}
	/* no template has "developer", the newer name of the system role */
	if (!strcmp(name, "developer"))
		json_object_set_new(out, "role", json_string("system"));
	if (!fix_calls(out, at, p)) {
		json_decref(out);
		return NULL;
	}
	return out;
}

static llmc_status
apply(ServedModel *model, const json_t *messages, const json_t *options, char **text, size_t *n,
      llmc_error *err)
{
	char *m = json_dumps_numbers(messages, JSON_COMPACT),
	     *opt = json_dumps_numbers(options, JSON_COMPACT);
	size_t cap = 8192;
	llmc_status status = LLMC_E_MEMORY;

	while (m && opt) {
		*text = malloc(cap);
		status =
		    *text ? llmc_chat(model->back.tok, m, opt, *text, cap, n, err) : LLMC_E_MEMORY;
		if (status == LLMC_OK)
			break;
		free(*text);
		*text = NULL;
		if (status != LLMC_E_RANGE || *n < cap)
			break;
		cap = *n + 1;
	}
	free(m);
	free(opt);
	return status;
}

/* Replace null contents with "". Some templates test for null, others append the content to a
 * string. */
static bool
empty_nulls(json_t *messages)
{
	json_t *m;
	size_t i;
	bool any = false;

	json_array_foreach (messages, i, m)
		if (json_is_null(json_object_get(m, "content")) &&
		    json_object_set_new(m, "content", json_string("")) == 0)
			any = true;
	return any;
}

static bool
render(ServedModel *model, json_t *messages, const json_t *options, char **text, size_t *n,
       Problem *p)
{
	llmc_error err = { 0 };
	llmc_status status = apply(model, messages, options, text, n, &err);

	if (status == LLMC_E_INPUT && empty_nulls(messages))
		status = apply(model, messages, options, text, n, &err);
	return status == LLMC_OK ||
	       problem_of(p, status, 400,
	                  json_object_get(options, "chat_template") ? "chat_template" : "messages",
	                  "The chat template refuses these messages: %s", err.text);
}

/* Report whether the template shows the tools in `options`: rendering without them differs. */
static bool
tools_shown(ServedModel *model, json_t *messages, json_t *options, const char *text, size_t n,
            bool *shown, Problem *p)
{
	char *without = NULL;
	size_t m;

	json_object_del(options, "tools");
	if (!render(model, messages, options, &without, &m, p))
		return false;
	*shown = n != m || memcmp(text, without, n) != 0;
	free(without);
	return true;
}

/* Render the prompt with tools. If the template does not show them, list them in the system
 * message. */
static bool
with_tools(ServedModel *model, json_t **messages, json_t *options, char **text, size_t *n,
           const json_t *tools, Problem *p)
{
	bool shown;

	if (!tools_shown(model, *messages, options, *text, *n, &shown, p) || shown)
		return !p->status;
	json_t *extended = messages_with_tools(model, *messages, tools);
	if (!extended)
		return problem_memory(p);
	json_decref(*messages);
	*messages = extended;
	free(*text);
	*text = NULL;
	return render(model, *messages, options, text, n, p);
}

/* Cut what the template added after the last message's content, for continue_final_message. */
static bool
leave_open(const json_t *messages, char *text, size_t *n, Problem *p)
{
	const char *last = json_string_value(
	    json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"));
	size_t len = last ? strlen(last) : 0;

	while (len && strchr(" \n\t\r", last[len - 1]))
		len--; /* many templates trim the content */
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

int
chat_flags(const ServedModel *model)
{
	return LLMC_PARSE_SPECIAL | (model->srv->opt.special_text ? LLMC_BREAKS : 0);
}

void
chat_unbreak(const ServedModel *model, char *text, size_t *n)
{
	const size_t len = strlen(LLMC_BREAK);
	size_t to = 0;

	for (size_t i = 0; model->srv->opt.special_text && i < *n; i++)
		if (*n - i >= len && !memcmp(text + i, LLMC_BREAK, len))
			i += len - 1;
		else
			text[to++] = text[i];
	if (model->srv->opt.special_text)
		*n = to;
}

/* Return a string with breaks in its special tokens. NULL: with a Problem. */
static char *
break_string(ServedModel *model, const char *s, size_t n, size_t *n_out, Problem *p)
{
	size_t cap = 2 * n + 64;
	llmc_error err = { 0 };

	for (;;) {
		char *out = malloc(cap);
		llmc_status status =
		    out ? llmc_break_special(model->back.tok, s, n, out, cap, n_out, &err)
		        : LLMC_E_MEMORY;
		if (status == LLMC_OK)
			return out;
		free(out);
		if (status != LLMC_E_RANGE || *n_out < cap) {
			problem_of(p, status, 400, "messages", "%s", err.text);
			return NULL;
		}
		cap = *n_out + 1;
	}
}

/* Return a copy of a value in which all strings, and keys of objects, have breaks in their special
 * tokens. `message`: v is a message, whose role one_message has checked. */
static json_t *
broken_copy(ServedModel *model, const json_t *v, bool message, Problem *p)
{
	json_t *out = NULL, *x, *y = NULL;
	const char *key;
	char *s;
	size_t i, n;

	if (json_is_string(v)) {
		s = break_string(model, json_string_value(v), json_string_length(v), &n, p);
		out = s ? json_stringn(s, n) : NULL;
		free(s);
	} else if (json_is_array(v)) {
		out = json_array();
		json_array_foreach ((json_t *)(uintptr_t)v, i, x)
			if (!out || !(y = broken_copy(model, x, false, p)) ||
			    json_array_append_new(out, y) != 0)
				goto fail;
	} else if (json_is_object(v)) {
		out = json_object();
		json_object_foreach ((json_t *)(uintptr_t)v, key, x) {
			bool role = message && !strcmp(key, "role");
			s = break_string(model, key, strlen(key), &n, p);
			y = !s ? NULL : role ? json_incref(x) : broken_copy(model, x, false, p);
			bool ok = out && y && json_object_set(out, s, y) == 0;
			json_decref(y);
			free(s);
			if (!ok)
				goto fail;
		}
	} else {
		return json_incref((json_t *)(uintptr_t)v);
	}
	return out;
fail:
	json_decref(out);
	return NULL;
}

/* Replace the messages, variables and tools (NULL: none) by such copies if the server keeps special
 * tokens as text. */
static bool
break_all(ServedModel *model, json_t *messages, json_t **options, json_t **tools, Problem *p)
{
	json_t *m, *copy;
	size_t i;

	if (!model->srv->opt.special_text)
		return true;
	json_array_foreach (messages, i, m)
		if (!(copy = broken_copy(model, m, true, p)) ||
		    json_array_set_new(messages, i, copy) != 0)
			goto fail;
	if (!(copy = broken_copy(model, *options, false, p)))
		goto fail;
	json_decref(*options);
	*options = copy;
	if (!*tools)
		return true;
	if (!(copy = broken_copy(model, *tools, false, p)))
		goto fail;
	json_decref(*tools);
	*tools = copy;
	return true;
fail:
	return p->status ? false : problem_memory(p);
}

bool
chat_render(ServedModel *model, const json_t *o, json_t *tools, char **text, size_t *n, Problem *p)
{
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
	if (template && !json_is_null(template) && !json_is_string(template))
		return problem(p, 400, "chat_template",
		               "Invalid type for 'chat_template': expected a string, but got %s "
		               "instead.",
		               json_type_name(template));
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
	if (json_object_size(kwargs) > MAX_KWARGS) /* each becomes a variable of the template */
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
	messages = json_array();
	options = json_object();
	tools = json_incref(tools);
	if (!messages || !options) {
		problem_memory(p);
		goto out;
	}
	for (size_t i = 0; i < json_array_size(in); i++) {
		json_t *m = one_message(json_array_get(in, i), i, p);
		if (!m)
			goto out;
		json_array_append_new(messages, m);
	}
	if (effort) { /* vLLM passes both; chat_template_kwargs override them */
		json_object_set_new(options, "reasoning_effort", json_string(effort));
		json_object_set_new(options, "enable_thinking",
		                    json_boolean(strcmp(effort, "none") != 0));
	}
	json_object_foreach (kwargs, key, value) {
		if (!strcmp(key, "messages") || !strcmp(key, "tools") ||
		    !strcmp(key, "add_generation_prompt") || !strcmp(key, "chat_template")) {
			problem(p, 400, "chat_template_kwargs",
			        "'chat_template_kwargs' cannot set '%s': pass it as a field of the "
			        "request.",
			        key);
			goto out;
		}
		json_object_set(options, key, value);
	}
	json_object_set_new(options, "add_generation_prompt", json_boolean(generate));
	if (json_is_array(documents))
		json_object_set(options, "documents", documents);
	if (!break_all(model, messages, &options, &tools, p))
		goto out;
	if (json_is_string(template))
		json_object_set(options, "chat_template", template);
	if (tools)
		json_object_set(options, "tools", tools);
	ok = render(model, messages, options, text, n, p) &&
	     (!tools || with_tools(model, &messages, options, text, n, tools, p)) &&
	     (!go_on || leave_open(messages, *text, n, p));
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
chat_prompt(ServedModel *model, const json_t *o, char **text, size_t *n, Problem *p)
{
	ToolUse use;
	bool ok = tools_read(o, &use, p) && chat_render(model, o, use.tools, text, n, p);

	tools_release(&use);
	return ok;
}
