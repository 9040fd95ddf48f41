/* OpenAI's responses: POST /v1/responses, whole or as its events. Nothing is kept: the whole conversation comes in `input`. A body is turned into one of
 * the chat, whose reader then checks it. An answer is a list of items (reasoning, message, calls), each told as it begins, grows and ends; ids and
 * numbers of an item are the same in all events and in the last one, which has everything. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"

typedef enum ItemKind { ITEM_NONE, ITEM_MESSAGE, ITEM_REASONING, ITEM_CALL } ItemKind;

typedef struct Responses {
	OpenAi   base;       /* what openai_read fills in */
	int      n_events, n_items;
	bool     started;
	ItemKind open;       /* its text grows in Choice.text, items that are over lie in Choice.call */
	char     id[40], call_id[40], name[80];
} Responses;

/* ---- requests ---- */

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
		problem(p, 400, where, "Invalid '%s': expected a string or an array of parts, but got %s instead.", where, got);
	else if (fault == PART_TYPE)
		problem(p, 400, where, "Invalid '%s[%zu]': content of type '%.40s' is not supported, this model reads text only.", where, at, got);
	else
		problem(p, 400, where, "Invalid '%s[%zu].text': expected a string, but got %s instead.", where, at, got);
}

static json_t *
part_text(const json_t *content, const char *where, Problem *p)
{
	return parts_text(content, where, part_field, part_fault, p);
}

/* Calls of one turn stand in the message before them, when the assistant said it, else in a message of their own. */
static bool
add_call(json_t *messages, const json_t *item, const char *where, Problem *p)
{
	json_t *last = json_array_get(messages, json_array_size(messages) - 1), *name = json_object_get(item, "name");
	const char *role = json_string_value(json_object_get(last, "role"));

	if (!json_is_string(name) || !json_is_string(json_object_get(item, "call_id")))
		return problem(p, 400, where, "Invalid '%s': a call has a 'name' and a 'call_id'.", where);
	if (!role || strcmp(role, "assistant") != 0) {
		last = json_pack("{s:s,s:n}", "role", "assistant", "content");
		json_array_append_new(messages, last);
	}
	json_t *calls = json_object_get(last, "tool_calls");
	if (!calls)
		json_object_set_new(last, "tool_calls", calls = json_array());
	return json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:O,s:O?}}", "id", json_object_get(item, "call_id"), "type", "function", "function", "name", name,
	                                              "arguments", json_object_get(item, "arguments"))) == 0 || problem_memory(p);
}

static bool
add_item(json_t *messages, const json_t *item, size_t i, Problem *p)
{
	const char *type = json_string_value(json_object_get(item, "type")), *role = json_string_value(json_object_get(item, "role"));
	json_t *text;
	char where[48];

	snprintf(where, sizeof where, "input[%zu]", i);
	if (type && !strcmp(type, "reasoning"))
		return true; /* of earlier turns: templates leave it out */
	if (type && !strcmp(type, "function_call"))
		return add_call(messages, item, where, p);
	if (type && !strcmp(type, "function_call_output")) {
		snprintf(where, sizeof where, "input[%zu].output", i);
		text = part_text(json_object_get(item, "output"), where, p);
		return text && (json_array_append_new(messages, json_pack("{s:s,s:O?,s:o}", "role", "tool", "tool_call_id", json_object_get(item, "call_id"), "content", text)) == 0 ||
		                problem_memory(p));
	}
	if (type && strcmp(type, "message") != 0)
		return problem(p, 400, where, "Invalid '%s': an item of type '%.40s' is not supported by this server.", where, type);
	if (!role)
		return problem(p, 400, where, "Invalid '%s': expected an item with a 'type', or a message with a 'role'.", where);
	if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)
		return problem(p, 400, where, "Invalid '%s': the role '%.40s' is none of 'user', 'assistant', 'system' and 'developer'.", where, role);
	snprintf(where, sizeof where, "input[%zu].content", i);
	text = part_text(json_object_get(item, "content"), where, p);
	return text && (json_array_append_new(messages, json_pack("{s:s,s:o}", "role", role, "content", text)) == 0 || problem_memory(p));
}

/* {"type": "function", "name", ...} -> {"type": "function", "function": {"name", ...}}; tools that a provider runs itself are left out */
static bool
read_tools(const json_t *in, json_t *out, Problem *p)
{
	static const char *const keys[] = { "name", "description", "parameters", "strict" };
	const json_t *list = json_object_get(in, "tools"), *choice = json_object_get(in, "tool_choice");
	const char *kind = json_string_value(json_object_get(choice, "type"));
	json_t *tools, *tool, *v;
	size_t i;

	if (list && !json_is_null(list)) {
		if (!json_is_array(list))
			return problem(p, 400, "tools", "Invalid type for 'tools': expected an array, but got %s instead.", json_type_name(list));
		json_object_set_new(out, "tools", tools = json_array());
		json_array_foreach((json_t *)(uintptr_t)list, i, tool) {
			const char *type = json_string_value(json_object_get(tool, "type"));
			if (!type || !json_is_object(tool))
				return problem(p, 400, "tools", "Invalid 'tools[%zu]': expected an object with a 'type'.", i);
			if (strcmp(type, "function") != 0)
				continue;
			json_t *f = json_object();
			for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
				if ((v = json_object_get(tool, keys[k])) != NULL && !json_is_null(v))
					json_object_set(f, keys[k], v);
			json_array_append_new(tools, json_pack("{s:s,s:o}", "type", "function", "function", f));
		}
	}
	if (kind && !strcmp(kind, "function")) {
		json_object_set_new(out, "tool_choice", json_pack("{s:s,s:{s:O?}}", "type", "function", "function", "name", json_object_get(choice, "name")));
	} else if (kind && !strcmp(kind, "allowed_tools")) {
		json_t *some = json_array();
		json_array_foreach(json_object_get(choice, "tools"), i, tool)
			json_array_append_new(some, json_pack("{s:s,s:{s:O?}}", "type", "function", "function", "name", json_object_get(tool, "name")));
		json_object_set_new(out, "tool_choice", json_pack("{s:s,s:{s:O?,s:o}}", "type", "allowed_tools", "allowed_tools", "mode", json_object_get(choice, "mode"), "tools", some));
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
		return problem(p, 400, "text.format", "Invalid 'text.format': expected an object with a 'type'.");
	if (!strcmp(type, "json_schema") && !json_object_get(format, "schema"))
		return problem(p, 400, "text.format", "Invalid 'text.format': a json_schema has a 'schema'.");
	if (!strcmp(type, "json_schema"))
		json_object_set_new(out, "response_format", json_pack("{s:s,s:{s:O?,s:O?}}", "type", type, "json_schema", "strict", json_object_get(format, "strict"), "schema",
		                                                      json_object_get(format, "schema")));
	else
		json_object_set(out, "response_format", (json_t *)(uintptr_t)format);
	return true;
}

static const char KEPT[] = "response"; /* in the chat's body: what the answer repeats of the request */

static json_t *
or_else(const json_t *in, const char *key, json_t *preset)
{
	json_t *v = json_object_get(in, key);

	if (!v || json_is_null(v))
		return preset;
	json_decref(preset);
	return json_incref(v);
}

/* Fields of the request that its answer has as well, with their defaults. Tools as they were sent: also those that the model is not told of. */
static json_t *
repeated(const json_t *in)
{
	static const char *const may[] = { "parameters", "strict" };
	json_t *out = json_object(), *tools = or_else(in, "tools", json_array()), *format = json_object_get(json_object_get(in, "text"), "format");
	json_t *effort = json_object_get(json_object_get(in, "reasoning"), "effort"), *tool;
	json_t *mine = json_deep_copy(tools);
	size_t i;

	json_decref(tools);
	json_array_foreach(mine, i, tool)
		for (size_t k = 0; k < sizeof may / sizeof *may; k++)
			if (json_is_string(json_object_get(tool, "name")) && !json_object_get(tool, may[k])) /* clients want them, if only as null */
				json_object_set_new(tool, may[k], json_null());
	json_object_set_new(out, "tools", mine);
	json_object_set_new(out, "tool_choice", or_else(in, "tool_choice", json_string("auto")));
	json_object_set_new(out, "parallel_tool_calls", or_else(in, "parallel_tool_calls", json_true()));
	json_object_set_new(out, "instructions", or_else(in, "instructions", json_null()));
	json_object_set_new(out, "metadata", or_else(in, "metadata", json_object()));
	json_object_set_new(out, "max_output_tokens", or_else(in, "max_output_tokens", json_null()));
	json_object_set_new(out, "text", json_pack("{s:o}", "format", format && !json_is_null(format) ? json_incref(format) : json_pack("{s:s}", "type", "text")));
	json_object_set_new(out, "reasoning", json_pack("{s:o,s:n}", "effort", effort ? json_incref(effort) : json_null(), "summary"));
	return out;
}

static const FieldName names[] = {
	{ "max_output_tokens", "max_completion_tokens" }, { "text.format", "response_format" }, { "input", "messages" }, { NULL, NULL },
};

static json_t *
to_chat(const json_t *in, Problem *p)
{
	static const struct { const char *theirs, *ours; } same[] = {
		{ "model", "model" }, { "temperature", "temperature" }, { "top_p", "top_p" }, { "stream", "stream" }, { "max_output_tokens", "max_completion_tokens" },
		{ "parallel_tool_calls", "parallel_tool_calls" }, { "seed", "seed" }, { "top_k", "top_k" },
		{ "min_p", "min_p" }, { "priority", "priority" }, { "speculate", "speculate" }, { "structured_outputs", "structured_outputs" }, { "guided_json", "guided_json" },
		{ "guided_regex", "guided_regex" }, { "guided_choice", "guided_choice" }, { "guided_grammar", "guided_grammar" },
	};
	static const char *const objects[] = { "reasoning", "text", "metadata" };
	static const char *const never[] = { "previous_response_id", "conversation", "background", "prompt" };
	const json_t *input = json_object_get(in, "input"), *about = json_object_get(in, "instructions");
	const char *effort = json_string_value(json_object_get(json_object_get(in, "reasoning"), "effort"));
	json_t *out = json_object(), *messages = json_array(), *v;

	if (!out || !messages || json_object_set_new(out, "messages", messages) != 0) {
		problem_memory(p);
		goto fail;
	}
	for (size_t i = 0; i < sizeof never / sizeof *never; i++)
		if ((v = json_object_get(in, never[i])) != NULL && !json_is_null(v) && !json_is_false(v)) {
			problem(p, 400, never[i], "The '%s' parameter is not supported: this server keeps no responses, send the whole conversation as 'input'.", never[i]);
			p->code = "unsupported_parameter";
			goto fail;
		}
	for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
		if ((v = json_object_get(in, objects[i])) != NULL && !json_is_null(v) && !json_is_object(v)) {
			problem(p, 400, objects[i], "Invalid type for '%s': expected an object, but got %s instead.", objects[i], json_type_name(v));
			goto fail;
		}
	if (about && !json_is_null(about) && !json_is_string(about)) {
		problem(p, 400, "instructions", "Invalid type for 'instructions': expected a string, but got %s instead.", json_type_name(about));
		goto fail;
	}
	if ((v = json_object_get(json_object_get(in, "reasoning"), "effort")) != NULL && !json_is_null(v) && !effort) {
		problem(p, 400, "reasoning.effort", "Invalid type for 'reasoning.effort': expected a string, but got %s instead.", json_type_name(v));
		goto fail;
	}
	if (json_is_string(about) && json_string_length(about))
		json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "system", "content", about));
	if (json_is_string(input)) {
		json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "user", "content", input));
	} else if (json_is_array(input)) {
		for (size_t i = 0; i < json_array_size(input); i++)
			if (!add_item(messages, json_array_get(input, i), i, p))
				goto fail;
	} else {
		problem(p, 400, "input", input ? "Invalid type for 'input': expected a string or an array of items." : "Missing required parameter: 'input'.");
		goto fail;
	}
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		if ((v = json_object_get(in, same[i].theirs)) != NULL && !json_is_null(v))
			json_object_set(out, same[i].ours, v);
	if (effort)
		json_object_set_new(out, "chat_template_kwargs", json_pack("{s:s,s:b}", "reasoning_effort", effort, "enable_thinking", strcmp(effort, "none") != 0));
	if (read_tools(in, out, p) && read_format(in, out, p) && (json_object_set_new(out, KEPT, repeated(in)) == 0 || problem_memory(p)))
		return out;
fail:
	json_decref(out);
	return NULL;
}

static bool
read_chat(Gen *g, const json_t *o, Problem *p)
{
	if (!openai_read_chat(g, o, p))
		return false;
	char *text = json_dumps(json_object_get(o, KEPT), JSON_COMPACT);
	size_t n = text ? strlen(text) : 0;
	if (n > 2) /* without its braces, behind other fields */
		strbuf_add(&g->asked, text + 1, n - 2);
	free(text);
	if (n <= 2 || g->asked.failed)
		return problem_memory(p);
	return req_hold(g->req, g->asked.cap) || problem_busy(p);
}

/* ---- answers ---- */

/* fields: behind type and sequence_number, with their comma; released */
static void
event(const Gen *g, const char *type, Strbuf *fields)
{
	Responses *own = gen_own(g);
	Strbuf b = { 0 };

	if (g->stream) {
		strbuf_printf(&b, "event: %s\ndata: ", type);
		json_printf(&b, "{\"type\":%s,\"sequence_number\":%d", type, own->n_events++);
		strbuf_add(&b, strbuf_str(fields), fields->len);
		strbuf_puts(&b, "}\n\n");
		if (!b.failed && !fields->failed)
			req_push(g->req, b.data, b.len);
		strbuf_release(&b);
	}
	strbuf_release(fields);
}

/* items NULL: none yet; error NULL: none */
static void
response(const Gen *g, Strbuf *b, const char *status, const Choice *c, const Problem *error)
{
	int32_t n_prompt, n_new, n_cached;

	json_printf(b, "{\"id\":%s,\"object\":\"response\",\"created_at\":%lld,\"status\":%s,\"model\":%s,", openai_own(g)->id, (long long)openai_own(g)->created, status,
	            g->model->name);
	if (error)
		json_printf(b, "\"error\":{\"code\":\"server_error\",\"message\":%s},", error->text);
	else
		strbuf_puts(b, "\"error\":null,");
	strbuf_puts(b, !strcmp(status, "incomplete") ? "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}," : "\"incomplete_details\":null,");
	strbuf_add(b, strbuf_str(&g->asked), g->asked.len);
	json_printf(b, ",\"temperature\":%g,\"top_p\":%g,\"output\":[", (double)g->ep.temperature, (double)g->ep.top_p);
	if (c)
		strbuf_add(b, strbuf_str(&c->call), c->call.len);
	strbuf_puts(b, "],\"usage\":");
	if (!c || error) {
		strbuf_puts(b, "null}");
		return;
	}
	gen_sums(g, &n_prompt, &n_new, &n_cached);
	json_printf(b, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%d}}",
	            n_prompt, n_cached, n_new, c->n_reasoning, n_prompt + n_new);
	b->failed |= c->call.failed || c->text.failed;
}

static void
told(const Gen *g, const char *type, const char *status, const Choice *c, const Problem *error)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, ",\"response\":");
	response(g, &b, status, c, error);
	event(g, type, &b);
}

static void
begin(Gen *g)
{
	Responses *own = gen_own(g);

	if (own->started)
		return;
	own->started = true;
	told(g, "response.created", "in_progress", NULL, NULL);
	told(g, "response.in_progress", "in_progress", NULL, NULL);
}

/* The item as it stands: over or not. */
static void
item(const Gen *g, const Choice *c, Strbuf *b, bool over)
{
	const Responses *own = gen_own(g);
	const char *status = over ? "completed" : "in_progress";

	if (own->open == ITEM_CALL) {
		json_printf(b, "{\"id\":%s,\"type\":\"function_call\",\"status\":%s,\"call_id\":%s,\"name\":%s,\"arguments\":", own->id, status, own->call_id, own->name);
		json_str(b, strbuf_str(&c->text), over ? c->text.len : 0);
		strbuf_putc(b, '}');
		return;
	}
	json_printf(b, own->open == ITEM_MESSAGE ? "{\"id\":%s,\"type\":\"message\",\"status\":%s,\"role\":\"assistant\",\"content\":["
	                                         : "{\"id\":%s,\"type\":\"reasoning\",\"status\":%s,\"summary\":[],\"content\":[", own->id, status);
	if (over) {
		strbuf_puts(b, own->open == ITEM_MESSAGE ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":" : "{\"type\":\"reasoning_text\",\"text\":");
		json_str(b, strbuf_str(&c->text), c->text.len);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
}

/* where an event of the open item belongs */
static void
place(const Gen *g, Strbuf *b)
{
	const Responses *own = gen_own(g);

	json_printf(b, ",\"item_id\":%s,\"output_index\":%d", own->id, own->n_items);
	if (own->open != ITEM_CALL)
		strbuf_puts(b, ",\"content_index\":0");
}

static void
item_begin(Gen *g, Choice *c, ItemKind kind, const char *name, size_t n_name)
{
	static const char *const prefix[] = { "", "msg", "rs", "fc" };
	Responses *own = gen_own(g);
	Strbuf b = { 0 };

	own->open = kind;
	snprintf(own->id, sizeof own->id, "%s_%016llx%08x", prefix[kind], (unsigned long long)random_seed(), (unsigned)random_seed());
	if (kind == ITEM_CALL) {
		snprintf(own->call_id, sizeof own->call_id, "call_%016llx%08x", (unsigned long long)random_seed(), (unsigned)random_seed());
		snprintf(own->name, sizeof own->name, "%.*s", (int)n_name, name);
	}
	strbuf_clear(&c->text);
	json_printf(&b, ",\"output_index\":%d,\"item\":", own->n_items);
	item(g, c, &b, false);
	event(g, "response.output_item.added", &b);
	if (kind == ITEM_MESSAGE) {
		place(g, &b);
		strbuf_puts(&b, ",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"\"}");
		event(g, "response.content_part.added", &b);
	}
}

static void
item_grow(Gen *g, Choice *c, const char *text, size_t n)
{
	static const char *const type[] = { "", "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta" };
	const Responses *own = gen_own(g);
	Strbuf b = { 0 };

	if (!n)
		return;
	strbuf_add(&c->text, text, n);
	place(g, &b);
	strbuf_puts(&b, own->open == ITEM_MESSAGE ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
	json_str(&b, text, n);
	event(g, type[own->open], &b);
}

static void
item_end(Gen *g, Choice *c)
{
	static const char *const type[] = { "", "response.output_text.done", "response.reasoning_text.done", "response.function_call_arguments.done" };
	Responses *own = gen_own(g);
	Strbuf b = { 0 };

	if (own->open == ITEM_NONE)
		return;
	place(g, &b);
	if (own->open == ITEM_CALL)
		json_printf(&b, ",\"name\":%s", own->name);
	strbuf_puts(&b, own->open == ITEM_MESSAGE ? ",\"logprobs\":[],\"text\":" : own->open == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
	json_str(&b, strbuf_str(&c->text), c->text.len);
	event(g, type[own->open], &b);
	if (own->open == ITEM_MESSAGE) {
		place(g, &b);
		strbuf_puts(&b, ",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
		json_str(&b, strbuf_str(&c->text), c->text.len);
		strbuf_putc(&b, '}');
		event(g, "response.content_part.done", &b);
	}
	json_printf(&b, ",\"output_index\":%d,\"item\":", own->n_items);
	item(g, c, &b, true);
	event(g, "response.output_item.done", &b);
	strbuf_puts(&c->call, own->n_items ? "," : "");
	item(g, c, &c->call, true);
	own->n_items++;
	own->open = ITEM_NONE;
}

static void
on_piece(Gen *g, Choice *c, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	const Responses *own = gen_own(g);
	ItemKind want = kind == LLMC_PIECE_REASONING ? ITEM_REASONING : ITEM_MESSAGE;

	switch (kind) {
	case LLMC_PIECE_TEXT:
	case LLMC_PIECE_REASONING:
		if (n && own->open != want) {
			item_end(g, c);
			item_begin(g, c, want, NULL, 0);
		}
		item_grow(g, c, text, n);
		break;
	case LLMC_PIECE_CALL:
		c->n_calls = call + 1;
		item_end(g, c);
		item_begin(g, c, ITEM_CALL, text, n);
		break;
	case LLMC_PIECE_ARGUMENTS:
		item_grow(g, c, text, n);
		break;
	case LLMC_PIECE_DONE:
		item_end(g, c);
		break;
	}
}

static void
on_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	gen_pieces(g, c, ev, false, on_piece);
}

static void
on_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	gen_pieces(g, c, ev, true, on_piece);
	item_end(g, c);
}

static void
on_done(Gen *g)
{
	const Choice *c = &g->choice[0];
	bool cut = c->finish == LLMC_FINISH_LENGTH;
	Strbuf b = { 0 };

	if (g->stream) {
		told(g, cut ? "response.incomplete" : "response.completed", cut ? "incomplete" : "completed", c, NULL);
		return;
	}
	response(g, &b, cut ? "incomplete" : "completed", c, NULL);
	req_answer(g->req, 200, type_json, &b);
}

static void
failed(Gen *g, const Problem *p)
{
	if (g->stream) {
		begin(g);
		told(g, "response.failed", "failed", &g->choice[0], p);
	} else {
		req_problem(g->req, p);
	}
}

static const Dialect dialect = {
	.pieces = true, .own_bytes = sizeof(Responses), .token = on_token, .finish = on_finish, .done = on_done, .problem = failed,
};

void
openai_responses(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "resp_", .max_stop = OPENAI_MAX_STOP, .translate = to_chat, .names = names, .read = read_chat };

	openai_handle(r, &dialect, &route);
}
