/* Requests of OpenAI's responses, translated to a chat body, whose reader checks it. Items become
 * messages; custom tools become functions with one string argument. */
#include <string.h>

#include "serve/dialects/custom_tools.h"
#include "serve/dialects/responses.h"

static const char *
part_field(const char *type)
{
	static const char *const texts[] = { "input_text", "output_text", "text" };

	for (size_t i = 0; type && i < sizeof texts / sizeof *texts; i++)
		if (!strcmp(type, texts[i]))
			return "text";
	return type && !strcmp(type, "refusal") ? "refusal" : NULL;
}

static void
part_fault(Problem *p, const char *where, PartFault fault, size_t at, const char *got)
{
	if (fault == PART_LIST)
		problem(p, 400, where,
		        "Invalid '%s': expected a string or an array of parts, but got %s instead.",
		        where, got);
	else if (fault == PART_TYPE)
		problem(
		    p, 400, where,
		    "Invalid '%s[%zu]': content of type '%.40s' is not supported: expected text "
		    "or 'input_image'.",
		    where, at, got);
	else
		problem(p, 400, where,
		        "Invalid '%s[%zu].text': expected a string, but got %s instead.", where, at,
		        got);
}

typedef struct ResponseInput {
	json_t *messages;
	json_t *thought; /* reasoning that precedes the assistant's next message; NULL: none */
} ResponseInput;

/* Append m. An assistant's message takes the pending reasoning. m is owned; returns NULL if out of
 * memory. */
static json_t *
add_message(ResponseInput *t, json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role"));

	if (json_array_append_new(t->messages, m) != 0)
		return NULL;
	if (t->thought && !strcmp(role, "assistant"))
		json_object_set(m, "reasoning_content", t->thought);
	json_decref(t->thought);
	t->thought = NULL;
	return m;
}

static const char *
thought_field(const char *type)
{
	return type && (!strcmp(type, "reasoning_text") || !strcmp(type, "summary_text")) ? "text"
	                                                                                  : NULL;
}

/* Read the text of a reasoning item, else its summary; both may be absent. */
static bool
add_reasoning(ResponseInput *t, const json_t *item, const char *where, Problem *p)
{
	const json_t *content = json_object_get(item, "content"),
	             *summary = json_object_get(item, "summary");
	json_t *text = NULL, *before = t->thought;

	if (json_array_size(content) || json_array_size(summary))
		text = parts_text(json_array_size(content) ? content : summary, where,
		                  thought_field, part_fault, p);
	if (text && before) {
		t->thought =
		    json_sprintf("%s\n%s", json_string_value(before), json_string_value(text));
		json_decref(before);
		json_decref(text);
	} else if (text) {
		t->thought = text;
	}
	return !p->status;
}

/* Translate an input_image. */
static json_t *
part_image(const json_t *part, const char *where, size_t at, Problem *p)
{
	const json_t *url = json_object_get(part, "image_url");
	char key[96];

	snprintf(key, sizeof key, "%s[%zu]", where, at);
	if (json_is_string(url))
		return image_part_url(url, json_object_get(part, "detail"), key);
	problem(p, 400, key,
	        json_object_get(part, "file_id")
	            ? "Invalid '%s': images of files are not supported. Send the image as "
	              "'image_url' with a data: URL."
	            : "Invalid '%s': expected an 'image_url' that is a string.",
	        key);
	return NULL;
}

static json_t *
part_content(const json_t *content, const char *where, Problem *p)
{
	return parts_content(content, where, part_field, part_fault, part_image, p);
}

/* Split a content with images: returns the text, and sets *images to the images (NULL: none). They
 * are separated because templates show images in user messages only. */
static json_t *
take_images(json_t *content, json_t **images)
{
	json_t *text = json_array(), *part;
	size_t i;

	*images = NULL;
	if (!json_is_array(content)) {
		json_decref(text);
		return content;
	}
	*images = json_array();
	json_array_foreach (content, i, part)
		json_array_append(is_image_part(part) ? *images : text, part);
	json_decref(content);
	return text;
}

/* Add the output of a call, and a message of the user with the images of that output. */
static bool
add_output(ResponseInput *t, const json_t *item, const char *where, Problem *p)
{
	json_t *images, *content = part_content(json_object_get(item, "output"), where, p);

	if (!content)
		return false;
	content = take_images(content, &images);
	if (!add_message(t, json_pack("{s:s,s:O?,s:o}", "role", "tool", "tool_call_id",
	                              json_object_get(item, "call_id"), "content", content))) {
		json_decref(images);
		return problem_memory(p);
	}
	return !images ||
	       add_message(t, json_pack("{s:s,s:o}", "role", "user", "content", images)) ||
	       problem_memory(p);
}

/* Add a call to the last message if it is an assistant message, else to a new one. */
static bool
add_call(ResponseInput *t, const json_t *item, json_t *arguments, const char *where, Problem *p)
{
	json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1),
	       *name = json_object_get(item, "name");
	const char *role = json_string_value(json_object_get(last, "role"));

	if (!json_is_string(name) || !json_is_string(json_object_get(item, "call_id")))
		return problem(p, 400, where, "Invalid '%s': a call has a 'name' and a 'call_id'.",
		               where);
	if (!role || strcmp(role, "assistant") != 0 || t->thought)
		last = add_message(t, json_pack("{s:s,s:n}", "role", "assistant", "content"));
	if (!last)
		return problem_memory(p);
	json_t *calls = json_object_get(last, "tool_calls");
	if (!calls)
		json_object_set_new(last, "tool_calls", calls = json_array());
	return json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:O,s:O?}}", "id",
	                                              json_object_get(item, "call_id"), "type",
	                                              "function", "function", "name", name,
	                                              "arguments", arguments)) == 0 ||
	       problem_memory(p);
}

static bool
add_item(ResponseInput *t, const json_t *item, size_t i, Problem *p)
{
	const char *type = json_string_value(json_object_get(item, "type")),
	           *role = json_string_value(json_object_get(item, "role"));
	json_t *text;
	char where[48];

	snprintf(where, sizeof where, "input[%zu]", i);
	if (type && !strcmp(type, "reasoning"))
		return add_reasoning(t, item, where, p);
	if (type && !strcmp(type, "function_call"))
		return add_call(t, item, json_object_get(item, "arguments"), where, p);
	if (type && !strcmp(type, "custom_tool_call")) {
		json_t *arguments =
		    json_pack("{s:O?}", CUSTOM_INPUT, json_object_get(item, "input"));
		bool ok =
		    json_is_string(json_object_get(item, "input"))
		        ? add_call(t, item, arguments, where, p)
		        : problem(p, 400, where,
		                  "Invalid '%s': a custom call has an 'input' that is a string.",
		                  where);
		json_decref(arguments);
		return ok;
	}
	if (type &&
	    (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output"))) {
		snprintf(where, sizeof where, "input[%zu].output", i);
		return add_output(t, item, where, p);
	}
	if (type && strcmp(type, "message") != 0)
		return problem(
		    p, 400, where,
		    "Invalid '%s': an item of type '%.40s' is not supported by this server.", where,
		    type);
	if (!role)
		return problem(
		    p, 400, where,
		    "Invalid '%s': expected an item with a 'type', or a message with a 'role'.",
		    where);
	if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
	    strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)
		return problem(p, 400, where,
		               "Invalid '%s': the role '%.40s' is none of 'user', 'assistant', "
		               "'system' and 'developer'.",
		               where, role);
	snprintf(where, sizeof where, "input[%zu].content", i);
	text = part_content(json_object_get(item, "content"), where, p);
	return text && (add_message(t, json_pack("{s:s,s:o}", "role", role, "content", text)) ||
	                problem_memory(p));
}

/* Translate {"type": "function", "name", ...} to {"type": "function", "function": {"name", ...}}.
 * Tools that the provider would run are dropped. */
static bool
read_tools(const json_t *in, json_t *out, Problem *p)
{
	static const char *const keys[] = { "name", "description", "parameters", "strict" };
	const json_t *list = json_object_get(in, "tools"),
	             *choice = json_object_get(in, "tool_choice");
	const char *kind = json_string_value(json_object_get(choice, "type"));
	json_t *tools, *tool, *v;
	size_t i;

	if (list && !json_is_null(list)) {
		if (!json_is_array(list))
			return problem(
			    p, 400, "tools",
			    "Invalid type for 'tools': expected an array, but got %s instead.",
			    json_type_name(list));
		json_object_set_new(out, "tools", tools = json_array());
		json_array_foreach ((json_t *)(uintptr_t)list, i, tool) {
			const char *type = json_string_value(json_object_get(tool, "type"));
			if (!type || !json_is_object(tool))
				return problem(
				    p, 400, "tools",
				    "Invalid 'tools[%zu]': expected an object with a 'type'.", i);
			bool custom = !strcmp(type, "custom");
			if (!custom && strcmp(type, "function") != 0)
				continue;
			if (!json_string_length(json_object_get(tool, "name")))
				return problem(p, 400, "tools",
				               "Invalid 'tools[%zu]': expected a 'name'.", i);
			v = json_object_get(tool, "parameters");
			if (!custom && v && !json_is_null(v) && !json_is_object(v))
				return problem(p, 400, "tools",
				               "Invalid 'tools[%zu].parameters': expected a JSON "
				               "schema, but got %s instead.",
				               i, json_type_name(v));
			v = json_object_get(tool, "description");
			if (custom && v && !json_is_null(v) && !json_is_string(v))
				return problem(p, 400, "tools",
				               "Invalid type for 'tools[%zu].description': "
				               "expected a string, but got %s instead.",
				               i, json_type_name(v));
			json_t *format = NULL;
			if (custom && !custom_format(tool, i, &format, p))
				return false;
			json_t *f = custom ? custom_function(tool) : json_object();
			for (size_t k = 0; !custom && k < sizeof keys / sizeof *keys; k++)
				if ((v = json_object_get(tool, keys[k])) != NULL &&
				    !json_is_null(v))
					json_object_set(f, keys[k], v);
			json_array_append_new(tools, json_pack("{s:s,s:o,s:O*}", "type", "function",
			                                       "function", f, "format", format));
		}
	}
	if (kind && (!strcmp(kind, "function") || !strcmp(kind, "custom"))) {
		json_object_set_new(out, "tool_choice",
		                    json_pack("{s:s,s:{s:O?}}", "type", "function", "function",
		                              "name", json_object_get(choice, "name")));
	} else if (kind && !strcmp(kind, "allowed_tools")) {
		json_t *some = json_array();
		json_array_foreach (json_object_get(choice, "tools"), i, tool)
			json_array_append_new(some, json_pack("{s:s,s:{s:O?}}", "type", "function",
			                                      "function", "name",
			                                      json_object_get(tool, "name")));
		json_object_set_new(out, "tool_choice",
		                    json_pack("{s:s,s:{s:O?,s:o}}", "type", "allowed_tools",
		                              "allowed_tools", "mode",
		                              json_object_get(choice, "mode"), "tools", some));
	} else if (choice && !json_is_null(choice)) {
		json_object_set(out, "tool_choice", (json_t *)(uintptr_t)choice);
	}
	return true;
}

static bool
read_format(const json_t *in, json_t *out, Problem *p)
{
	const json_t *format = json_object_get(json_object_get(in, "text"), "format");
	const char *type = json_string_value(json_object_get(format, "type"));

	if (!format || json_is_null(format))
		return true;
	if (!type)
		return problem(p, 400, "text.format",
		               "Invalid 'text.format': expected an object with a 'type'.");
	if (!strcmp(type, "json_schema") && !json_object_get(format, "schema"))
		return problem(p, 400, "text.format",
		               "Invalid 'text.format': a json_schema has a 'schema'.");
	if (!strcmp(type, "json_schema"))
		json_object_set_new(out, "response_format",
		                    json_pack("{s:s,s:{s:O?,s:O?}}", "type", type, "json_schema",
		                              "strict", json_object_get(format, "strict"), "schema",
		                              json_object_get(format, "schema")));
	else
		json_object_set(out, "response_format", (json_t *)(uintptr_t)format);
	return true;
}

static const char KEPT[] = "response"; /* key in the chat body */

const json_t *
responses_kept(const json_t *chat)
{
	return json_object_get(chat, KEPT);
}

static json_t *
or_else(const json_t *in, const char *key, json_t *preset)
{
	json_t *v = json_object_get(in, key);

	if (!v || json_is_null(v))
		return preset;
	json_decref(preset);
	return json_incref(v);
}

/* Collect the request fields that the answer repeats, with defaults. Tools are repeated as the
 * client sent them, including those that the model does not see. */
static json_t *
repeated(const json_t *in)
{
	static const char *const may[] = { "parameters", "strict" };
	json_t *out = json_object(), *tools = or_else(in, "tools", json_array()),
	       *format = json_object_get(json_object_get(in, "text"), "format");
	json_t *effort = json_object_get(json_object_get(in, "reasoning"), "effort"), *tool;
	json_t *mine = json_deep_copy(tools);
	size_t i;

	json_decref(tools);
	json_array_foreach (mine, i, tool) {
		const char *type = json_string_value(json_object_get(tool, "type"));
		for (size_t k = 0; k < sizeof may / sizeof *may; k++)
			/* clients require these fields, even if they are null */
			if (type && !strcmp(type, "function") && !json_object_get(tool, may[k]))
				json_object_set_new(tool, may[k], json_null());
	}
	json_object_set_new(out, "tools", mine);
	json_object_set_new(out, "tool_choice", or_else(in, "tool_choice", json_string("auto")));
	json_object_set_new(out, "parallel_tool_calls",
	                    or_else(in, "parallel_tool_calls", json_true()));
	json_object_set_new(out, "instructions", or_else(in, "instructions", json_null()));
	json_object_set_new(out, "metadata", or_else(in, "metadata", json_object()));
	json_object_set_new(out, "max_output_tokens",
	                    or_else(in, "max_output_tokens", json_null()));
	json_object_set_new(out, "text",
	                    json_pack("{s:o}", "format",
	                              format && !json_is_null(format)
	                                  ? json_incref(format)
	                                  : json_pack("{s:s}", "type", "text")));
	json_object_set_new(out, "reasoning",
	                    json_pack("{s:o,s:n}", "effort",
	                              effort ? json_incref(effort) : json_null(), "summary"));
	return out;
}

/* Read the two fields that request log probabilities. Other values of `include` request data that
 * this server does not have, and are ignored. */
static bool
read_include(const json_t *in, json_t *out, Problem *p)
{
	const json_t *list = json_object_get(in, "include");
	json_t *one;
	int64_t top = 0;
	bool want = false;
	size_t i;

	if (list && !json_is_null(list) && !json_is_array(list))
		return problem(
		    p, 400, "include",
		    "Invalid type for 'include': expected an array of strings, but got %s instead.",
		    json_type_name(list));
	if (!field_int(in, "top_logprobs", 0, LLMC_MAX_TOP, &top, NULL, p))
		return false;
	json_array_foreach ((json_t *)(uintptr_t)list, i, one)
		want |= json_is_string(one) &&
		        !strcmp(json_string_value(one), "message.output_text.logprobs");
	if (want || top)
		json_object_update_new(
		    out, json_pack("{s:b,s:I}", "logprobs", 1, "top_logprobs", (json_int_t)top));
	return true;
}

json_t *
responses_chat(const json_t *in, Problem *p)
{
	static const char *const objects[] = { "reasoning", "text", "metadata" };
	const json_t *input = json_object_get(in, "input"),
	             *about = json_object_get(in, "instructions");
	const char *effort =
	    json_string_value(json_object_get(json_object_get(in, "reasoning"), "effort"));
	json_t *out = json_object(), *messages = json_array(), *v;
	ResponseInput talk = { .messages = messages };

	if (!out || !messages || json_object_set_new(out, "messages", messages) != 0) {
		problem_memory(p);
		goto fail;
	}
	for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
		if ((v = json_object_get(in, objects[i])) != NULL && !json_is_null(v) &&
		    !json_is_object(v)) {
			problem(p, 400, objects[i],
			        "Invalid type for '%s': expected an object, but got %s instead.",
			        objects[i], json_type_name(v));
			goto fail;
		}
	if (!field_text(in, "instructions", NULL, p))
		goto fail;
	if ((v = json_object_get(json_object_get(in, "reasoning"), "effort")) != NULL &&
	    !json_is_null(v) && !effort) {
		problem(
		    p, 400, "reasoning.effort",
		    "Invalid type for 'reasoning.effort': expected a string, but got %s instead.",
		    json_type_name(v));
		goto fail;
	}
	if (json_is_string(about) && json_string_length(about))
		json_array_append_new(messages,
		                      json_pack("{s:s,s:O}", "role", "system", "content", about));
	if (json_is_string(input)) {
		json_array_append_new(messages,
		                      json_pack("{s:s,s:O}", "role", "user", "content", input));
	} else if (json_is_array(input)) {
		for (size_t i = 0; i < json_array_size(input); i++)
			if (!add_item(&talk, json_array_get(input, i), i, p))
				goto fail;
	} else {
		problem(p, 400, "input",
		        input ? "Invalid type for 'input': expected a string or an array of items."
		              : "Missing required parameter: 'input'.");
		goto fail;
	}
	fields_copy(FIELDS_RESPONSES, in, out);
	if (effort) {
		json_t *kwargs = json_pack("{s:s,s:b}", "reasoning_effort", effort,
		                           "enable_thinking", strcmp(effort, "none") != 0);
		v = json_object_get(out, "chat_template_kwargs");
		if (!v ||
		    json_object_update(kwargs, v) == 0) /* otherwise the chat reader refuses it */
			json_object_set(out, "chat_template_kwargs", kwargs);
		json_decref(kwargs);
	}
	json_decref(talk.thought);
	talk.thought = NULL;
	if (read_tools(in, out, p) && read_format(in, out, p) && read_include(in, out, p) &&
	    (json_object_set_new(out, KEPT, repeated(in)) == 0 || problem_memory(p)))
		return out;
fail:
	json_decref(talk.thought);
	json_decref(out);
	return NULL;
}
