/* OpenAI's chat: renders messages by the template; answers are messages and deltas. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "serve/dialects/openai.h"
#include "serve/dialects/chat_tools.h"
#include "serve/dialects/custom_tools.h"
#include "serve/dialects/error_form.h"
#include "serve/dialects/thinking.h"

/* Check the fields by which other services switch thinking on and off; fields_aliases has copied
 * their values. */
static bool
check_switches(const json_t *o, Problem *p)
{
	const json_t *r = json_object_get(json_object_get(o, "reasoning"), "enabled");
	bool on;

	if (r && !json_is_null(r) && !json_is_boolean(r))
		return problem(p, 400, "reasoning.enabled",
		               "Invalid type for 'reasoning.enabled': expected a boolean, but got "
		               "%s instead.",
		               json_type_name(r));
	return field_bool(o, "enable_thinking", &on, p);
}

/* Read SGLang's separate_reasoning and llama.cpp's reasoning_format. */
static bool
read_join(Generation *g, const json_t *o, Problem *p)
{
	const char *format;
	bool separate = true;

	/* all formats except "none" separate the reasoning */
	if (!field_text(o, "reasoning_format", &format, p) ||
	    !field_bool(o, "separate_reasoning", &separate, p))
		return false;
	g->join_reasoning = !separate || (format && !strcmp(format, "none"));
	if (g->join_reasoning && json_array_size(json_object_get(o, "tools")))
		return problem(p, 400, separate ? "reasoning_format" : "separate_reasoning",
		               "With 'tools' the reasoning is separate: join 'reasoning_content' "
		               "and 'content' of the answer.");
	return true;
}

/* Read max_tokens; -1: up to the end of the context. */
static bool
new_tokens(const json_t *o, const char *key, int64_t *out, bool *set, Problem *p)
{
	return json_integer_value(json_object_get(o, key)) == -1
	           ? field_int(o, key, -1, -1, out, set, p)
	           : field_int(o, key, 1, INT32_MAX, out, set, p);
}

bool
openai_read_logprobs(Generation *g, const json_t *o, Problem *p)
{
	int64_t top = 0, n_probs = 0;
	bool has_top;

	if (!field_bool(o, "logprobs", &g->er.logprobs, p) ||
	    !field_int(o, "top_logprobs", 0, LLMC_MAX_TOP, &top, &has_top, p) ||
	    !field_int(o, "n_probs", 0, LLMC_MAX_TOP, &n_probs, NULL, p))
		return false;
	if (n_probs > 0 && !g->er.logprobs) {
		g->er.logprobs = true;
		top = n_probs;
	}
	if (has_top && !g->er.logprobs)
		return problem(
		    p, 400, "top_logprobs",
		    "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
	g->er.n_top = (int32_t)top;
	openai_set_top(g);
	return true;
}

bool
openai_read_chat(Generation *g, const json_t *o, Problem *p)
{
	int64_t max_tokens = -1, older = -1, oldest = -1;
	bool has_max, has_older, has_oldest, special = false;
	char *text = NULL;
	size_t n;

	if (!new_tokens(o, "max_completion_tokens", &max_tokens, &has_max, p) ||
	    !new_tokens(o, "max_tokens", &older, &has_older, p) ||
	    !new_tokens(o, "n_predict", &oldest, &has_oldest, p) || !check_switches(o, p) ||
	    !read_join(g, o, p) || !openai_read_logprobs(g, o, p) ||
	    !field_bool(o, "add_special_tokens", &special, p))
		return false;
	g->clip_new = has_oldest && !has_max && !has_older; /* as in llama.cpp, whose field it is */
	g->max_new = (int32_t)(has_max ? max_tokens : has_older ? older : oldest);
	if (g->max_new > 0 && g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens",
		               "Invalid 'min_tokens': %d is more than the new tokens allowed, %d.",
		               g->ep.min_tokens, g->max_new);
	int32_t budget;
	if (!thinking_read(g, o, &budget, p))
		return false;
	if (!field_text(o, "reasoning_effort", NULL, p))
		return false;
	ToolUse use = { 0 };
	if (!tools_read(o, &use, p))
		return false;
	g->images.salt = g->er.prefix_salt;
	bool ok = chat_render(g->model, o, use.tools, &g->images, &text, &n, p) &&
	          gen_prompts(g, 1, p) && tools_begin(g, &use, text, n, p);
	tools_release(&use);
	thinking_limit(g, budget);
	const json_t *ids = json_object_get(o, "input_ids");
	int32_t n_ids = 0;
	/* as in SGLang, input_ids replace the rendered messages */
	if (ok && ids && !json_is_null(ids)) {
		ok = openai_ids(g, o, "input_ids", (size_t)INT32_MAX, false, &g->sub[0].tok, &n_ids,
		                p);
		g->sub[0].n_tok = (size_t)n_ids;
	} else {
		ok = ok && tokenize_prompt(g->model, text, n,
		                           chat_flags(g->model) | (special ? LLMC_ADD_SPECIAL : 0),
		                           openai_most(g), &g->sub[0].tok, &g->sub[0].n_tok, p);
	}
	free(text);
	if (ok && openai_cut(g, &g->sub[0]) && g->images.n)
		ok = problem(p, 400, "truncate_prompt_tokens",
		             "The prompt has images, which cannot be truncated: shorten the "
		             "messages.");
	return ok && openai_fits(g, g->sub[0].n_tok, "messages", p);
}

/* ---- log probabilities ---- */

static void
logprobs_object(const Generation *g, Strbuf *b, const Strbuf *places)
{
	if (!g->er.logprobs) {
		strbuf_puts(b, "null");
		return;
	}
	strbuf_puts(b, "{\"content\":[");
	strbuf_add(b, strbuf_str(places), places->len);
	strbuf_puts(b, "],\"refusal\":null}");
}

/* ---- answers ---- */

/* Send a delta. delta: object without its braces; finish NULL: the choice is not over. */
static void
frame(const Generation *g, Choice *c, const Strbuf *delta, const Strbuf *places, const char *finish)
{
	Strbuf b = { 0 };

	openai_frame_open(g, c, &b);
	strbuf_puts(&b, "\"delta\":{");
	if (delta)
		strbuf_add(&b, strbuf_str(delta), delta->len);
	b.failed |= delta && delta->failed;
	strbuf_puts(&b, "},\"logprobs\":");
	if (places)
		logprobs_object(g, &b, places);
	else
		strbuf_puts(&b, "null");
	openai_frame_close(g, c, &b, finish);
}

static void
frame_of(const Generation *g, Choice *c, Strbuf *delta, const Strbuf *places)
{
	frame(g, c, delta, places, NULL);
	strbuf_release(delta);
}

typedef struct ChatOwn {
	OpenAi openai;
	json_t *custom; /* names of custom tools; NULL: none */
	Strbuf echo;    /* text that precedes each answer */
} ChatOwn;

/* Send the role and the echo before a choice's first token. */
static void
begin(const Generation *g, Choice *c)
{
	const Strbuf *echo = &((const ChatOwn *)gen_own(g))->echo;
	Strbuf delta = { 0 };

	if (!c->started && g->stream) {
		strbuf_puts(&delta, "\"role\":\"assistant\",\"content\":\"\"");
		frame_of(g, c, &delta, NULL);
	}
	if (!c->started && echo->len && g->stream) {
		strbuf_puts(&delta, "\"content\":");
		json_str(&delta, strbuf_str(echo), echo->len);
		frame_of(g, c, &delta, NULL);
	} else if (!c->started) {
		strbuf_add(&c->text, strbuf_str(echo), echo->len);
	}
	c->started = true;
}

static void
say(const Generation *g, Choice *c, const char *text, size_t n)
{
	Strbuf delta = { 0 }, places = { 0 }, *logprobs = g->stream ? &places : &c->col[2];

	openai_places_of(c, n, logprobs);
	if (!g->stream) {
		strbuf_add(&c->text, text, n);
	} else if (n || places.len) {
		strbuf_puts(&delta, "\"content\":");
		json_str(&delta, text, n);
		delta.failed |= places.failed;
		frame_of(g, c, &delta, places.len ? &places : NULL);
	}
	strbuf_release(&places);
}

static void
call_id(char out[32])
{
	snprintf(out, 32, "call_%016llx%08x", (unsigned long long)random_u64(),
	         (unsigned)random_u64());
}

/* Read vLLM's echo: the answer begins with the last message if that has the role of the answer. */
static bool
read_echo(const json_t *o, Strbuf *out, Problem *p)
{
	const json_t *messages = json_object_get(o, "messages"),
	             *last = json_array_get(messages, json_array_size(messages) - 1),
	             *content = json_object_get(last, "content"), *part;
	const char *role = json_string_value(json_object_get(last, "role"));
	bool echo = false, generate = !json_is_true(json_object_get(o, "continue_final_message"));
	size_t i;

	if (!field_bool(o, "echo", &echo, p) ||
	    !field_bool(o, "add_generation_prompt", &generate, p))
		return false;
	if (!echo || !role || (generate && strcmp(role, "assistant") != 0))
		return true;
	if (json_is_string(content))
		strbuf_add(out, json_string_value(content), json_string_length(content));
	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const char *text = json_string_value(json_object_get(part, "text"));
		strbuf_puts(out, i ? "\n" : "");
		strbuf_puts(out, text ? text : "");
	}
	return !out->failed || problem_memory(p);
}

static bool
read_chat(Generation *g, const json_t *o, Problem *p)
{
	ChatOwn *own = gen_own(g);

	own->custom = json_incref(json_object_get(o, CUSTOM_NAMES));
	own->openai.is_chat = true;
	return read_echo(o, &own->echo, p) && openai_read_chat(g, o, p);
}

static void
release(Generation *g)
{
	ChatOwn *own = gen_own(g);

	json_decref(own->custom);
	strbuf_release(&own->echo);
}

static void
custom_begin(Generation *g, Choice *c, int32_t call, const char *name, size_t n, Strbuf *to)
{
	char id[32];

	c->custom = true;
	custom_input_begin(c);
	call_id(id);
	if (g->stream)
		json_printf(to, "\"tool_calls\":[{\"index\":%d,", call);
	else
		strbuf_puts(to, call ? ",{" : "{");
	json_printf(to, "\"id\":%s,\"type\":\"custom\",\"custom\":{\"name\":", id);
	json_str(to, name, n);
	strbuf_puts(to, g->stream ? ",\"input\":\"\"}}]" : ",\"input\":");
	if (!g->stream)
		strbuf_clear(&c->input);
}

/* Send the new part of a custom call's input. */
static void
custom_more(Generation *g, Choice *c, int32_t call, const char *text, size_t n, bool last)
{
	Strbuf more = { 0 }, delta = { 0 };

	custom_input(c, text, n, last, &more);
	if (!g->stream) {
		strbuf_add(&c->input, strbuf_str(&more), more.len);
		c->input.failed |= more.failed;
		if (last) {
			json_str(&c->call, strbuf_str(&c->input), c->input.len);
			strbuf_puts(&c->call, "}}");
			c->call.failed |= c->input.failed;
		}
	} else if (more.len || more.failed) {
		json_printf(&delta, "\"tool_calls\":[{\"index\":%d,\"custom\":{\"input\":", call);
		json_str(&delta, strbuf_str(&more), more.len);
		strbuf_puts(&delta, "}}]");
		delta.failed |= more.failed;
		frame_of(g, c, &delta, NULL);
	}
	strbuf_release(&more);
}

static void
on_piece(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	Strbuf delta = { 0 }, *to = g->stream ? &delta : &c->call;
	const ChatOwn *own = gen_own(g);
	char id[32];

	switch (kind) {
	case LLMC_PIECE_TEXT:
		say(g, c, text, n);
		return;
	case LLMC_PIECE_REASONING:
		if (g->hide_reasoning)
			return;
		if (!g->stream) {
			strbuf_add(&c->reasoning, text, n);
			return;
		}
		strbuf_puts(&delta, "\"reasoning_content\":"); /* clients use either name */
		json_str(&delta, text, n);
		strbuf_puts(&delta, ",\"reasoning\":");
		json_str(&delta, text, n);
		break;
	case LLMC_PIECE_CALL:
		c->n_calls = call + 1;
		c->custom = false;
		if (custom_is_name(own->custom, text, n)) {
			custom_begin(g, c, call, text, n, to);
			break;
		}
		call_id(id);
		if (g->stream)
			json_printf(to,
			            "\"tool_calls\":[{\"index\":%d,\"id\":%s,\"type\":\"function\","
			            "\"function\":{\"name\":",
			            call, id);
		else
			json_printf(
			    to,
			    call ? ",{\"id\":%s,\"type\":\"function\",\"function\":{\"name\":"
			         : "{\"id\":%s,\"type\":\"function\",\"function\":{\"name\":",
			    id);
		json_str(to, text, n);
		strbuf_puts(to, g->stream ? ",\"arguments\":\"\"}}]" : ",\"arguments\":");
		strbuf_clear(&c->held);
		break;
	case LLMC_PIECE_ARGUMENTS:
		if (c->custom) {
			custom_more(g, c, call, text, n, false);
			return;
		}
		if (!g->stream) {
			strbuf_add(&c->held, text, n);
			return;
		}
		json_printf(&delta,
		            "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", call);
		json_str(&delta, text, n);
		strbuf_puts(&delta, "}}]");
		break;
	case LLMC_PIECE_DONE:
		if (c->custom) {
			custom_more(g, c, call, "", 0, true);
			return;
		}
		if (g->stream)
			return;
		json_str(to, strbuf_str(&c->held), c->held.len);
		strbuf_puts(to, "}}");
		strbuf_clear(&c->held);
		return;
	}
	if (g->stream)
		frame_of(g, c, &delta, NULL);
}

static void
on_prompt(Generation *g, SubRequest *sub, const llmc_event *ev)
{
	openai_prompt_token(g, sub, ev);
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g, c);
	openai_new_token(g, c, ev);
	openai_place(g, c, ev);
	gen_pieces(g, c, ev, false, on_piece);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g, c);
	if (ev->token >= 0)
		openai_new_token(g, c, ev);
	gen_pieces(g, c, ev, true, on_piece);
	if (g->stream)
		frame(g, c, NULL, NULL, openai_finish(c));
}

static void
on_done(Generation *g)
{
	Strbuf b = { 0 };

	if (g->stream) {
		openai_stream_end(g);
		return;
	}
	openai_open(g, &b, false);
	for (int32_t i = 0; i < g->n; i++) {
		Choice *c = &g->choice[i];
		strbuf_printf(&b,
		              "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":",
		              i ? "," : "", i);
		if (c->n_calls && !c->text.len)
			strbuf_puts(&b, "null");
		else
			json_str(&b, strbuf_str(&c->text), c->text.len);
		for (int k = 0; k < 2 && c->reasoning.len; k++) {
			strbuf_puts(&b, k ? ",\"reasoning\":" : ",\"reasoning_content\":");
			json_str(&b, strbuf_str(&c->reasoning), c->reasoning.len);
		}
		if (c->n_calls) {
			strbuf_puts(&b, ",\"tool_calls\":[");
			strbuf_add(&b, strbuf_str(&c->call), c->call.len);
			strbuf_putc(&b, ']');
		}
		strbuf_puts(&b, ",\"refusal\":null},\"logprobs\":");
		logprobs_object(g, &b, &c->col[2]);
		json_printf(&b, ",\"finish_reason\":%s", openai_finish(c));
		openai_choice_ids(g, c, &b);
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, "],");
	openai_usage(g, &b);
	openai_chat_prompt(g, &b);
	openai_timings(g, true, &b);
	openai_verbose(g, &g->sub[0], &b);
	strbuf_putc(&b, '}');
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = {
	.pieces = true,
	.own_bytes = sizeof(ChatOwn),
	.prompt = on_prompt,
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = error_end,
	.release = release,
};

void
openai_chat(Req *r)
{
	static const OpenAiRoute route = {
		.id_prefix = "chatcmpl-",
		.object = "chat.completion",
		.chunk = "chat.completion.chunk",
		.max_stop = OPENAI_MAX_STOP,
		.fields = FIELDS_CHAT,
		.translate = custom_chat,
		.read = read_chat,
	};

	openai_handle(r, &dialect, &route);
}

static json_t *
with_aliases(const json_t *in, Problem *p)
{
	json_t *out = fields_aliases(FIELDS_CHAT, in);

	if (!out)
		problem_memory(p);
	return out;
}

void
openai_chat_tokens(Req *r)
{
	openai_input_tokens(r, FIELDS_CHAT, with_aliases);
}
