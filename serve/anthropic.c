/* Anthropic's dialect: POST /v1/messages and /v1/messages/count_tokens. A body is turned into one of OpenAI's chat, whose reader then checks it:
 * fields, ranges and the template are looked at in one place. Text only: tools, images and documents are refused by name. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"

typedef struct Anthropic {
	OpenAi  base;       /* what openai_read fills in */
	int32_t stop;       /* which stop sequence ended it; -1: none */
	bool    started, block;
} Anthropic;

/* ---- errors ---- */

static const char *
error_type(int status)
{
	switch (status) {
	case 401: return "authentication_error";
	case 403: return "permission_error";
	case 404: return "not_found_error";
	case 413: return "request_too_large";
	case 429: return "rate_limit_error";
	case 503: return "overloaded_error";
	default:  return status >= 500 ? "api_error" : "invalid_request_error";
	}
}

static void
error_object(const Req *r, Strbuf *b, const Problem *p)
{
	json_printf(b, "{\"type\":\"error\",\"error\":{\"type\":%s,\"message\":%s},\"request_id\":%s}", error_type(p->status), p->text, r->id);
}

void
anthropic_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	error_object(r, &b, p);
	req_answer(r, p->status, type_json, &b);
}

/* ---- requests ---- */

/* Text of a string or of blocks of text; NULL with a Problem. */
static json_t *
block_text(const json_t *content, const char *where, Problem *p)
{
	Strbuf b = { 0 };
	json_t *block, *out = NULL;
	size_t i;

	if (json_is_string(content))
		return json_incref((json_t *)(uintptr_t)content);
	if (!json_is_array(content)) {
		problem(p, 400, where, "%s: expected a string or an array of content blocks, but got %s.", where, json_type_name(content));
		return NULL;
	}
	json_array_foreach((json_t *)(uintptr_t)content, i, block) {
		const char *type = json_string_value(json_object_get(block, "type"));
		const json_t *text = json_object_get(block, "text");
		if (type && (!strcmp(type, "thinking") || !strcmp(type, "redacted_thinking")))
			continue; /* of earlier turns: templates leave them out */
		if (!type || strcmp(type, "text") != 0) {
			problem(p, 400, where, "%s.%zu: content of type '%.40s' is not supported: this server reads text only.", where, i, type ? type : "?");
			goto out;
		}
		if (!json_is_string(text)) {
			problem(p, 400, where, "%s.%zu.text: expected a string, but got %s.", where, i, json_type_name(text));
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

static bool
add_message(json_t *messages, const char *role, const json_t *content, const char *where, Problem *p)
{
	json_t *text = block_text(content, where, p);

	if (!text)
		return false;
	return json_array_append_new(messages, json_pack("{s:s,s:o}", "role", role, "content", text)) == 0 || problem_memory(p);
}

static bool
read_messages(const json_t *in, json_t *messages, Problem *p)
{
	const json_t *system = json_object_get(in, "system"), *list = json_object_get(in, "messages");

	if (system && !json_is_null(system) && !add_message(messages, "system", system, "system", p))
		return false;
	if (!json_is_array(list) || json_array_size(list) == 0)
		return problem(p, 400, "messages", "messages: at least one message is required.");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);
		const char *role = json_string_value(json_object_get(m, "role"));
		char where[48];
		if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
			return problem(p, 400, "messages", "messages.%zu.role: expected 'user', 'assistant' or 'system'.", i);
		snprintf(where, sizeof where, "messages.%zu.content", i);
		if (!add_message(messages, role, json_object_get(m, "content"), where, p))
			return false;
	}
	return true;
}

/* The same request as OpenAI's chat has it; NULL with a Problem. counting: only the prompt matters. */
static json_t *
translate(const json_t *in, bool counting, Problem *p)
{
	static const struct { const char *theirs, *ours; } same[] = {
		{ "model", "model" }, { "temperature", "temperature" }, { "top_p", "top_p" }, { "top_k", "top_k" }, { "stream", "stream" },
		{ "stop_sequences", "stop" }, { "max_tokens", "max_tokens" },
	};
	const json_t *tools = json_object_get(in, "tools"), *thinking = json_object_get(in, "thinking");
	json_t *out = json_object(), *messages = json_array();

	if (!out || !messages || json_object_set_new(out, "messages", messages) != 0) {
		json_decref(out);
		problem_memory(p);
		return NULL;
	}
	if (json_array_size(tools) > 0) {
		problem(p, 400, "tools", "tools: not supported by this server at this path; /v1/chat/completions shows them to the model.");
		goto fail;
	}
	if (!counting && !json_is_integer(json_object_get(in, "max_tokens"))) {
		problem(p, 400, "max_tokens", "max_tokens: a whole number is required.");
		goto fail;
	}
	if (!read_messages(in, messages, p))
		goto fail;
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		json_t *v = json_object_get(in, same[i].theirs);
		if (v && !json_is_null(v))
			json_object_set(out, same[i].ours, v);
	}
	const json_t *format = json_object_get(json_object_get(in, "output_config"), "format");
	if (format && !json_is_null(format)) {
		const char *type = json_string_value(json_object_get(format, "type"));
		json_t *schema = json_object_get(format, "schema");
		if (!type || strcmp(type, "json_schema") != 0 || !schema) {
			problem(p, 400, "output_config", "output_config.format: expected {\"type\": \"json_schema\", \"schema\": ...}");
			goto fail;
		}
		json_object_set_new(out, "response_format", json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name", "output", "schema", schema));
	}
	const char *kind = json_string_value(json_object_get(thinking, "type"));
	if (kind)
		json_object_set_new(out, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", strcmp(kind, "disabled") != 0));
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
event(const Gen *g, const char *name, Strbuf *data)
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

/* fresh: tokens of the prompt that were not found in the cache are what they count as input */
static void
usage(Strbuf *b, int32_t n_prompt, int32_t n_cached, int32_t n_new)
{
	json_printf(b, "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d}", n_prompt - n_cached, n_cached,
	            n_new);
}

/* up to "content": */
static void
message_open(const Gen *g, Strbuf *b)
{
	json_printf(b, "{\"id\":%s,\"type\":\"message\",\"role\":\"assistant\",\"model\":%s,\"content\":", openai_own(g)->id, g->srv->model_name);
}

static void
stop_fields(const Gen *g, const Choice *c, Strbuf *b)
{
	const Anthropic *own = gen_own(g);
	bool sequence = c->finish == LLMC_FINISH_STOP && own->stop >= 0;

	json_printf(b, "\"stop_reason\":%s,\"stop_sequence\":%s", c->finish == LLMC_FINISH_LENGTH ? "max_tokens" : sequence ? "stop_sequence" : "end_turn",
	            sequence ? g->stop[own->stop] : NULL);
}

static void
begin(Gen *g)
{
	Anthropic *own = gen_own(g);
	Strbuf b = { 0 };

	if (own->started || !g->stream)
		return;
	own->started = own->block = true;
	strbuf_puts(&b, "{\"type\":\"message_start\",\"message\":");
	message_open(g, &b);
	strbuf_puts(&b, "[],\"stop_reason\":null,\"stop_sequence\":null,");
	usage(&b, (int32_t)g->sub[0].n_tok, 0, 1);
	strbuf_puts(&b, "}}");
	event(g, "message_start", &b);
	strbuf_puts(&b, "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}");
	event(g, "content_block_start", &b);
}

static void
text(Gen *g, Choice *c, const llmc_event *ev)
{
	Strbuf b = { 0 };

	if (!g->stream) {
		strbuf_add(&c->text, ev->text ? ev->text : "", ev->n_bytes);
	} else if (ev->n_bytes) {
		strbuf_puts(&b, "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
		json_str(&b, ev->text, ev->n_bytes);
		strbuf_puts(&b, "}}");
		event(g, "content_block_delta", &b);
	}
}

static void
on_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	text(g, c, ev);
}

static void
on_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	Anthropic *own = gen_own(g);

	(void)sub;
	own->stop = ev->stop;
	begin(g);
	text(g, c, ev);
}

static void
on_done(Gen *g)
{
	const Choice *c = &g->choice[0];
	int32_t n_prompt, n_new, n_cached;
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	if (!g->stream) {
		message_open(g, &b);
		strbuf_puts(&b, "[{\"type\":\"text\",\"text\":");
		json_str(&b, strbuf_str(&c->text), c->text.len);
		strbuf_puts(&b, "}],");
		stop_fields(g, c, &b);
		strbuf_putc(&b, ',');
		usage(&b, n_prompt, n_cached, n_new);
		strbuf_putc(&b, '}');
		req_answer(g->req, 200, type_json, &b);
		return;
	}
	strbuf_puts(&b, "{\"type\":\"content_block_stop\",\"index\":0}");
	event(g, "content_block_stop", &b);
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
failed(Gen *g, const Problem *p)
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
	.own_bytes = sizeof(Anthropic), .token = on_token, .finish = on_finish, .done = on_done, .problem = failed,
};

void
anthropic_messages(Req *r)
{
	openai_handle(r, &dialect, "msg_", NULL, NULL, to_chat, openai_read_chat);
}

void
anthropic_count(Req *r)
{
	Problem p = { 0 };
	json_t *in = body_object(&r->body, &p), *o = in ? translate(in, true, &p) : NULL;
	char *prompt = NULL;
	int32_t *tok = NULL;
	size_t n = 0, n_tok = 0;
	Strbuf b = { 0 };

	bool ok = o && chat_prompt(r->srv, o, &prompt, &n, &p) && tokenize_prompt(r->srv, prompt, n, LLMC_PARSE_SPECIAL, SIZE_MAX, &tok, &n_tok, &p);
	free(prompt);
	free(tok);
	json_decref(o);
	json_decref(in);
	if (!ok) {
		req_problem(r, &p);
		return;
	}
	json_printf(&b, "{\"input_tokens\":%lld}", (long long)n_tok);
	req_answer(r, 200, type_json, &b);
}
