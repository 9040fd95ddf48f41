/* Anthropic dialect: POST /v1/messages and /v1/messages/count_tokens. A body is translated to an
 * OpenAI chat body, whose reader checks fields, ranges, tools and the template. Tools that the
 * provider would run are dropped. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "serve/dialects/anthropic.h"
#include "serve/dialects/openai.h"

typedef struct Anthropic {
	OpenAi base;       /* filled by openai_read */
	int32_t stop;      /* index of the stop sequence that ended the answer; -1: none */
	bool started;      /* in a stream: message_start was sent */
	const char *block; /* type of the open block; NULL: no block is open */
	int n_blocks;
} Anthropic;

/* ---- errors ---- */

static const char *
error_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 413:
		return "request_too_large";
	case 429:
		return "rate_limit_error";
	case 503:
		return "overloaded_error";
	default:
		return status >= 500 ? "api_error" : "invalid_request_error";
	}
}

/* Append the message in the wording of Anthropic's API, which clients match on: if a field is
 * wrong, the message begins with its name. */
static void
error_text(const Problem *p, Strbuf *b)
{
	size_t n = strlen(p->param);

	if (p->most && !p->n_new) {
		strbuf_printf(b, "prompt is too long: %lld tokens > %lld maximum",
		              (long long)p->n_prompt, (long long)p->most);
		return;
	}
	if (p->most) {
		strbuf_printf(b,
		              "input length and `max_tokens` exceed context limit: %lld + %lld > "
		              "%lld, decrease input length or `max_tokens` and try again",
		              (long long)p->n_prompt, (long long)p->n_new, (long long)p->most);
		return;
	}
	if (p->code && !strcmp(p->code, "invalid_api_key")) {
		strbuf_puts(b, "invalid x-api-key: send the server's key as 'x-api-key' or as "
		               "'Authorization: Bearer KEY'");
		return;
	}
	if (n && (strncmp(p->text, p->param, n) != 0 || !strchr(":.", p->text[n])))
		strbuf_printf(b, "%s: ", p->param);
	strbuf_puts(b, p->text);
}

static void
error_object(const Req *r, Strbuf *b, const Problem *p)
{
	Strbuf text = { 0 };

	error_text(p, &text);
	json_printf(b,
	            "{\"type\":\"error\",\"error\":{\"type\":%s,\"message\":%s},\"request_id\":%s}",
	            error_type(p->status), strbuf_str(&text), r->id);
	b->failed |= text.failed;
	strbuf_release(&text);
}

void
anthropic_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	error_object(r, &b, p);
	req_answer(r, p->status, type_json, &b);
}

/* ---- requests ---- */

/* Return the key under which a block of this type holds its text. Thinking is handled by the
 * caller. */
static const char *
block_field(const char *type)
{
	return !type                                                             ? NULL
	       : !strcmp(type, "text")                                           ? "text"
	       : !strcmp(type, "thinking") || !strcmp(type, "redacted_thinking") ? ""
	                                                                         : NULL;
}

static const char *
thinking_field(const char *type)
{
	return type && !strcmp(type, "thinking") ? "thinking" : "";
}

static void
block_fault(Problem *p, const char *where, PartFault fault, size_t at, const char *got)
{
	if (fault == PART_LIST)
		problem(p, 400, where,
		        "%s: expected a string or an array of content blocks, but got %s.", where,
		        got);
	else if (fault == PART_TYPE)
		problem(p, 400, where,
		        "%s.%zu: content of type '%.40s' is not supported here: expected text "
		        "or an image.",
		        where, at, got);
	else
		problem(p, 400, where, "%s.%zu: expected 'text' to be a string, but got %s.", where,
		        at, got);
}

/* Move tool blocks out of the content. tool_use becomes tool_calls of the same message; tool_result
 * becomes a message of its own before it. Returns the remaining content as a new reference. */
static json_t *
split(const json_t *content, const char *where, json_t *messages, json_t *calls)
{
	json_t *rest = json_array(), *block;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)content, i, block) {
		if (anthropic_is(block, "tool_use")) {
			const json_t *input = json_object_get(block, "input");
			json_array_append_new(calls, json_pack("{s:O?,s:s,s:{s:O?,s:O?}}", "id",
			                                       json_object_get(block, "id"), "type",
			                                       "function", "function", "name",
			                                       json_object_get(block, "name"),
			                                       "arguments", input));
		} else if (anthropic_is(block, "tool_result")) {
			json_t *said = json_object_get(block, "content");
			json_array_append_new(
			    messages, json_pack("{s:s,s:O?,s:o}", "role", "tool", "tool_call_id",
			                        json_object_get(block, "tool_use_id"), "content",
			                        json_is_array(said)
			                            ? anthropic_result_text(said, i, where, rest)
			                        : said && !json_is_null(said) ? json_incref(said)
			                                                      : json_string("")));
		} else {
			json_array_append(rest, block);
		}
	}
	return rest;
}

static bool
add_message(json_t *messages, const char *role, const json_t *body, const char *where, Problem *p)
{
	json_t *content = anthropic_without_documents(body, where, p), *calls = json_array(),
	       *rest = json_is_array(content) ? split(content, where, messages, calls)
	                                      : json_incref(content);
	bool ok = true,
	     said = !json_is_array(content) || json_array_size(rest) || !json_array_size(content);
	json_t *text =
	    content && (said || json_array_size(calls))
	        ? parts_content(rest, where, block_field, block_fault, anthropic_image, p)
	        : NULL;
	json_t *thought = text && json_is_array(rest) && !strcmp(role, "assistant")
	                      ? parts_text(rest, where, thinking_field, block_fault, p)
	                      : NULL;

	if (text) {
		json_t *m = json_pack("{s:s,s:o}", "role", role, "content", text);
		if (json_string_length(thought)) /* the template decides how much of it to show */
			json_object_set(m, "reasoning_content", thought);
		if (json_array_size(calls))
			json_object_set(m, "tool_calls", calls);
		ok = json_array_append_new(messages, m) == 0 || problem_memory(p);
	}
	json_decref(thought);
	json_decref(calls);
	json_decref(rest);
	json_decref(content);
	return ok && !p->status;
}

static bool
read_messages(const json_t *in, json_t *messages, Problem *p)
{
	const json_t *system = json_object_get(in, "system"),
	             *list = json_object_get(in, "messages");

	if (system && !json_is_null(system) &&
	    !add_message(messages, "system", system, "system", p))
		return false;
	if (!json_is_array(list) || json_array_size(list) == 0)
		return problem(p, 400, "messages", "messages: at least one message is required.");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);
		const char *role = json_string_value(json_object_get(m, "role"));
		char where[48];
		if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
		              strcmp(role, "system") != 0))
			return problem(
			    p, 400, "messages",
			    "messages.%zu.role: expected 'user', 'assistant' or 'system'.", i);
		snprintf(where, sizeof where, "messages.%zu.content", i);
		const json_t *content = json_object_get(m, "content");
		if (!content)
			return problem(p, 400, where,
			               "%s: expected a string or an array of content blocks.",
			               where);
		if (!add_message(messages, role, content, where, p))
			return false;
	}
	return true;
}

/* Translate tools and tool_choice. Server-side tools, which have their own types, are dropped. */
static bool
read_tools(const json_t *in, json_t *out, Problem *p)
{
	const json_t *list = json_object_get(in, "tools"),
	             *choice = json_object_get(in, "tool_choice");
	json_t *tools, *tool;
	size_t i;
	bool one = false;

	if (list && !json_is_null(list)) {
		if (!json_is_array(list))
			return problem(p, 400, "tools", "tools: expected an array, but got %s.",
			               json_type_name(list));
		tools = json_array();
		json_array_foreach ((json_t *)(uintptr_t)list, i, tool) {
			json_t *schema = json_object_get(tool, "input_schema"),
			       *about = json_object_get(tool, "description"),
			       *strict = json_object_get(tool, "strict");
			if (json_object_get(tool, "type") && !anthropic_is(tool, "custom"))
				continue;
			if (!json_string_length(json_object_get(tool, "name")) ||
			    !json_is_object(schema)) {
				json_decref(tools);
				return problem(p, 400, "tools",
				               "tools.%zu: expected an object with a 'name' and an "
				               "'input_schema'.",
				               i);
			}
			json_t *f = json_pack("{s:O,s:O}", "name", json_object_get(tool, "name"),
			                      "parameters", schema);
			if (about)
				json_object_set(f, "description", about);
			if (strict)
				json_object_set(f, "strict", strict);
			json_array_append_new(
			    tools, json_pack("{s:s,s:o}", "type", "function", "function", f));
		}
		json_object_set_new(out, "tools", tools);
	}
	if (!choice || json_is_null(choice))
		return true;
	if (!field_bool(choice, "disable_parallel_tool_use", &one, p))
		return false;
	if (one)
		json_object_set_new(out, "parallel_tool_calls", json_false());
	if (anthropic_is(choice, "tool"))
		json_object_set_new(out, "tool_choice",
		                    json_pack("{s:s,s:{s:O?}}", "type", "function", "function",
		                              "name", json_object_get(choice, "name")));
	else if (anthropic_is(choice, "any") || anthropic_is(choice, "auto") ||
	         anthropic_is(choice, "none"))
		json_object_set_new(
		    out, "tool_choice",
		    json_string(anthropic_is(choice, "any")
		                    ? "required"
		                    : json_string_value(json_object_get(choice, "type"))));
	else
		return problem(p, 400, "tool_choice",
		               "tool_choice: expected a type 'auto', 'any', 'tool' or 'none'.");
	return true;
}

static bool
read_output_config(const json_t *in, json_t *out, Problem *p)
{
	const json_t *config = json_object_get(in, "output_config"),
	             *format = json_object_get(config, "format"),
	             *effort = json_object_get(config, "effort");

	if (config && !json_is_null(config) && !json_is_object(config))
		return problem(p, 400, "output_config",
		               "output_config: expected an object, but got %s.",
		               json_type_name(config));
	if (effort && !json_is_null(effort) && !json_is_string(effort))
		return problem(p, 400, "output_config",
		               "output_config.effort: expected a string, but got %s.",
		               json_type_name(effort));
	if (json_is_string(effort))
		json_object_set_new(out, "chat_template_kwargs",
		                    json_pack("{s:O}", "reasoning_effort", effort));
	if (!format || json_is_null(format))
		return true;
	const char *type = json_string_value(json_object_get(format, "type"));
	json_t *schema = json_object_get(format, "schema");
	if (!type || strcmp(type, "json_schema") != 0 || !schema)
		return problem(p, 400, "output_config",
		               "output_config.format: expected {\"type\": \"json_schema\", "
		               "\"schema\": ...}");
	json_object_set_new(out, "response_format",
	                    json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema",
	                              "name", "output", "schema", schema));
	return true;
}

static bool
read_thinking(const json_t *in, json_t *out, Problem *p)
{
	const json_t *thinking = json_object_get(in, "thinking");
	const char *kind = json_string_value(json_object_get(thinking, "type"));
	json_t *kwargs = json_object_get(out, "chat_template_kwargs");

	if (!thinking || json_is_null(thinking))
		return true;
	if (!kind || (strcmp(kind, "enabled") != 0 && strcmp(kind, "adaptive") != 0 &&
	              strcmp(kind, "disabled") != 0))
		return problem(
		    p, 400, "thinking",
		    "thinking: expected an object of type 'enabled', 'adaptive' or 'disabled'.");
	if (!kwargs)
		json_object_set_new(out, "chat_template_kwargs", kwargs = json_object());
	json_object_set_new(kwargs, "enable_thinking", json_boolean(strcmp(kind, "disabled") != 0));
	return true;
}

/* Translate the request to an OpenAI chat body. Returns NULL with a Problem. counting: only the
 * fields of the prompt are translated. */
static json_t *
translate(const json_t *in, bool counting, Problem *p)
{
	const json_t *stop = json_object_get(in, "stop_sequences");
	json_t *out = json_object(), *messages = json_array();

	if (!out || !messages || json_object_set_new(out, "messages", messages) != 0) {
		json_decref(out);
		problem_memory(p);
		return NULL;
	}
	if (!counting && !json_is_integer(json_object_get(in, "max_tokens"))) {
		problem(p, 400, "max_tokens",
		        json_object_get(in, "max_tokens")
		            ? "max_tokens: Input should be a valid integer"
		            : "max_tokens: Field required");
		goto fail;
	}
	if (stop && !json_is_null(stop) && !json_is_array(stop)) {
		problem(p, 400, "stop_sequences",
		        "stop_sequences: expected an array of strings, but got %s.",
		        json_type_name(stop));
		goto fail;
	}
	if (!read_messages(in, messages, p) || !read_tools(in, out, p))
		goto fail;
	fields_copy(FIELDS_MESSAGES, in, out);
	if (!read_output_config(in, out, p) || !read_thinking(in, out, p))
		goto fail;
	return out;
fail:
	json_decref(out);
	return NULL;
}

static json_t *
to_chat(const json_t *in, Problem *p)
{
	return translate(in, false, p);
}

/* ---- answers ---- */

static void
event(const Generation *g, const char *name, Strbuf *data)
{
	Strbuf b = { 0 };

	strbuf_printf(&b, "event: %s\ndata: ", name);
	strbuf_add(&b, strbuf_str(data), data->len);
	strbuf_puts(&b, "\n\n");
	if (!b.failed && !data->failed)
		req_push(g->req, b.data, b.len);
	strbuf_release(&b);
	strbuf_release(data);
}

/* Append usage. input_tokens excludes tokens found in the prefix cache, as Anthropic counts
 * them. */
static void
usage(Strbuf *b, int32_t n_prompt, int32_t n_cached, int32_t n_new)
{
	json_printf(b,
	            "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_"
	            "input_tokens\":%d,\"output_tokens\":%d}",
	            n_prompt - n_cached, n_cached, n_new);
}

/* Append the message up to "content": */
static void
message_open(const Generation *g, Strbuf *b)
{
	json_printf(
	    b, "{\"id\":%s,\"type\":\"message\",\"role\":\"assistant\",\"model\":%s,\"content\":",
	    openai_own(g)->id, g->model->name);
}

static void
stop_fields(const Generation *g, const Choice *c, Strbuf *b)
{
	const Anthropic *own = gen_own(g);
	bool sequence = c->finish == LLMC_FINISH_STOP && own->stop >= 0;

	json_printf(b, "\"stop_reason\":%s,\"stop_sequence\":%s",
	            c->finish == LLMC_FINISH_LENGTH ? "max_tokens"
	            : c->n_calls                    ? "tool_use"
	            : sequence                      ? "stop_sequence"
	                                            : "end_turn",
	            sequence ? g->stop[own->stop] : NULL);
}

static void
begin(Generation *g)
{
	Anthropic *own = gen_own(g);
	Strbuf b = { 0 };

	if (own->started || !g->stream)
		return;
	own->started = true;
	strbuf_puts(&b, "{\"type\":\"message_start\",\"message\":");
	message_open(g, &b);
	strbuf_puts(&b, "[],\"stop_reason\":null,\"stop_sequence\":null,");
	usage(&b, (int32_t)g->sub[0].n_tok, 0, 1);
	strbuf_puts(&b, "}}");
	event(g, "message_start", &b);
}

static void
block_end(Generation *g)
{
	Anthropic *own = gen_own(g);
	Strbuf b = { 0 };

	if (!own->block)
		return;
	json_printf(&b, "{\"type\":\"content_block_stop\",\"index\":%d}", own->n_blocks++);
	event(g, "content_block_stop", &b);
	own->block = NULL;
}

/* Start a content block. fields: JSON after the type of the block. */
static void
block_begin(Generation *g, const char *type, const char *fields)
{
	Anthropic *own = gen_own(g);
	Strbuf b = { 0 };

	block_end(g);
	own->block = type;
	json_printf(&b,
	            "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{\"type\":%s",
	            own->n_blocks, type);
	strbuf_puts(&b, fields);
	strbuf_puts(&b, "}}");
	event(g, "content_block_start", &b);
}

static void
block_delta(Generation *g, const char *type, const char *key, const char *said, size_t n)
{
	Strbuf b = { 0 };

	json_printf(&b, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":%s,%s:",
	            ((const Anthropic *)gen_own(g))->n_blocks, type, key);
	json_str(&b, said, n);
	strbuf_puts(&b, "}}");
	event(g, "content_block_delta", &b);
}

static void
put_delta(Generation *g, Choice *c, const char *type, const char *said, size_t n)
{
	const Anthropic *own = gen_own(g);
	bool is_text = !strcmp(type, "text");

	if (!n)
		return;
	if (!g->stream) {
		strbuf_add(is_text ? &c->text : &c->reasoning, said, n);
		return;
	}
	if (!own->block || strcmp(own->block, type) != 0)
		block_begin(g, type,
		            is_text ? ",\"text\":\"\"" : ",\"thinking\":\"\",\"signature\":\"\"");
	block_delta(g, is_text ? "text_delta" : "thinking_delta", type, said, n);
}

static void
on_piece(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call, const char *said, size_t n)
{
	Strbuf b = { 0 };
	char id[40];

	switch (kind) {
	case LLMC_PIECE_TEXT:
		put_delta(g, c, "text", said, n);
		break;
	case LLMC_PIECE_REASONING:
		put_delta(g, c, "thinking", said, n);
		break;
	case LLMC_PIECE_CALL:
		c->n_calls = call + 1;
		snprintf(id, sizeof id, "toolu_%016llx%08x", (unsigned long long)random_u64(),
		         (unsigned)random_u64());
		json_printf(&b, ",\"id\":%s,\"name\":", id);
		json_str(&b, said, n);
		strbuf_puts(&b, ",\"input\":");
		strbuf_clear(&c->held);
		if (g->stream) {
			strbuf_puts(&b, "{}");
			block_begin(g, "tool_use", strbuf_str(&b));
		} else {
			strbuf_puts(&c->call, ",{\"type\":\"tool_use\"");
			strbuf_add(&c->call, strbuf_str(&b), b.len);
		}
		c->call.failed |= b.failed;
		strbuf_release(&b);
		break;
	case LLMC_PIECE_ARGUMENTS:
		if (g->stream)
			block_delta(g, "input_json_delta", "partial_json", said, n);
		else
			strbuf_add(&c->held, said, n);
		break;
	case LLMC_PIECE_DONE:
		if (g->stream) {
			block_end(g);
		} else { /* arguments truncated at max_tokens are not valid JSON */
			json_t *input =
			    json_parse(strbuf_str(&c->held), c->held.len,
			               JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, NULL, &c->call.failed);
			if (json_is_object(input))
				strbuf_add(&c->call, strbuf_str(&c->held), c->held.len);
			else
				strbuf_puts(&c->call, "{}");
			strbuf_putc(&c->call, '}');
			json_decref(input);
		}
		break;
	}
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	gen_pieces(g, c, ev, false, on_piece);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	((Anthropic *)gen_own(g))->stop = ev->stop;
	begin(g);
	gen_pieces(g, c, ev, true, on_piece);
}

/* Append the blocks of a complete answer: thinking, text, calls. */
static void
blocks(const Choice *c, Strbuf *b)
{
	if (c->reasoning.len) {
		strbuf_puts(b, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
		json_str(b, strbuf_str(&c->reasoning), c->reasoning.len);
		strbuf_putc(b, '}');
	}
	if (c->text.len || !c->n_calls) {
		strbuf_puts(b, c->reasoning.len ? ",{\"type\":\"text\",\"text\":"
		                                : "{\"type\":\"text\",\"text\":");
		json_str(b, strbuf_str(&c->text), c->text.len);
		strbuf_putc(b, '}');
	}
	if (c->call.len) { /* the list of calls begins with a comma */
		size_t skip = !c->reasoning.len && !c->text.len;
		strbuf_add(b, strbuf_str(&c->call) + skip, c->call.len - skip);
	}
	b->failed |= c->reasoning.failed || c->text.failed || c->call.failed;
}

static void
on_done(Generation *g)
{
	const Choice *c = &g->choice[0];
	int32_t n_prompt, n_new, n_cached;
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	if (!g->stream) {
		message_open(g, &b);
		strbuf_putc(&b, '[');
		blocks(c, &b);
		strbuf_puts(&b, "],");
		stop_fields(g, c, &b);
		strbuf_putc(&b, ',');
		usage(&b, n_prompt, n_cached, n_new);
		strbuf_putc(&b, '}');
		req_answer(g->req, 200, type_json, &b);
		return;
	}
	block_end(g);
	strbuf_puts(&b, "{\"type\":\"message_delta\",\"delta\":{");
	stop_fields(g, c, &b);
	strbuf_puts(&b, "},");
	usage(&b, n_prompt, n_cached, n_new);
	strbuf_putc(&b, '}');
	event(g, "message_delta", &b);
	strbuf_puts(&b, "{\"type\":\"message_stop\"}");
	event(g, "message_stop", &b);
}

static void
failed(Generation *g, const Problem *p)
{
	Strbuf b = { 0 };

	if (!g->stream) {
		req_problem(g->req, p);
		return;
	}
	error_object(g->req, &b, p);
	event(g, "error", &b);
}

static const Dialect dialect = {
	.pieces = true,
	.own_bytes = sizeof(Anthropic),
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = failed,
};

void
anthropic_messages(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "msg_",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = to_chat,
		                           .fields = FIELDS_MESSAGES,
		                           .read = openai_read_chat };

	openai_handle(r, &dialect, &route);
}

static json_t *
to_counted(const json_t *in, Problem *p)
{
	return translate(in, true, p);
}

void
anthropic_count(Req *r)
{
	Strbuf b = { 0 };
	int64_t n;

	if (!openai_count(r, FIELDS_MESSAGES, to_counted, &n))
		return;
	json_printf(&b, "{\"input_tokens\":%lld}", (long long)n);
	req_answer(r, 200, type_json, &b);
}
