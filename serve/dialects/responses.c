/* OpenAI's responses: POST /v1/responses, complete or as events. The server stores nothing: `input`
 * holds the whole conversation. responses_in.c translates a body to a chat body. An answer is a
 * list of items (reasoning, message, calls). Events report when an item begins, grows and ends; an
 * item keeps its id and index through all events and in the final response. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "base/random.h"
#include "serve/dialects/custom_tools.h"
#include "serve/dialects/responses.h"

typedef enum ItemKind { ITEM_NONE, ITEM_MESSAGE, ITEM_REASONING, ITEM_CALL, ITEM_CUSTOM } ItemKind;

static const struct {
	const char *type, *prefix, *event, *key;
} kinds[] = {
	/* event: middle part of the names of its delta and done events; key: field with the whole
	 * text in the done event */
	[ITEM_MESSAGE] = { "message", "msg", "output_text", "text" },
	[ITEM_REASONING] = { "reasoning", "rs", "reasoning_text", "text" },
	[ITEM_CALL] = { "function_call", "fc", "function_call_arguments", "arguments" },
	[ITEM_CUSTOM] = { "custom_tool_call", "ctc", "custom_tool_call_input", "input" },
};

enum {
	/* column of Choice.col for the log probabilities of the open item, after the columns of
	 * openai_place() */
	COL_ITEM = 2
};

typedef struct Responses {
	OpenAi base; /* filled by openai_read */
	int n_events, n_items;
	bool started;
	/* kind of the open item, whose text grows in Choice.text; finished items are in
	 * Choice.call */
	ItemKind open;
	char id[40], call_id[40];
	Strbuf name;    /* tool of the open call */
	json_t *custom; /* names of custom tools, copied by the reader */
} Responses;

/* Append a sampling field that the answer repeats: the number of the request, or the default that
 * was used. */
static void
repeat_number(Strbuf *b, const json_t *o, const char *key, float preset)
{
	const json_t *v = json_object_get(o, key);

	json_printf(b, ",%s:", key);
	json_num(b, json_is_number(v) ? json_number_value(v) : number_of_float(preset),
	         NUMBER_EXACT);
}

static bool
read_chat(Generation *g, const json_t *o, Problem *p)
{
	if (!openai_read_chat(g, o, p))
		return false;
	const json_t *kept = responses_kept(o);
	Responses *own = gen_own(g);
	json_t *tool;
	size_t i;

	own->custom = json_array();
	json_array_foreach (json_object_get(kept, "tools"), i, tool)
		if (!strcmp(json_string_value(json_object_get(tool, "type")), "custom"))
			json_array_append_new(own->custom, json_string(json_string_value(
			                                       json_object_get(tool, "name"))));
	char *text = json_dumps_numbers(kept, JSON_COMPACT);
	size_t n = text ? strlen(text) : 0;
	if (n > 2) /* append its fields without the braces */
		strbuf_add(&g->asked, text + 1, n - 2);
	free(text);
	repeat_number(&g->asked, o, "temperature", g->ep.temperature);
	repeat_number(&g->asked, o, "top_p", g->ep.top_p);
	if (n <= 2 || g->asked.failed)
		return problem_memory(p);
	return req_charge(g->req, g->asked.cap) || problem_busy(p);
}

/* Send an event. fields: JSON after type and sequence_number, with a leading comma; released. */

/* Send an event. fields: JSON after type and sequence_number, with a leading comma; released. */
static void
event(const Generation *g, const char *type, Strbuf *fields)
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

/* Append the response object. items NULL: none yet; error NULL: none. */
static void
response(const Generation *g, Strbuf *b, const char *status, const Choice *c, const Problem *error)
{
	int32_t n_prompt, n_new, n_cached;

	json_printf(
	    b, "{\"id\":%s,\"object\":\"response\",\"created_at\":%lld,\"status\":%s,\"model\":%s,",
	    openai_own(g)->id, (long long)openai_own(g)->created, status, g->model->name);
	if (error)
		json_printf(b, "\"error\":{\"code\":\"server_error\",\"message\":%s},",
		            error->text);
	else
		strbuf_puts(b, "\"error\":null,");
	strbuf_puts(b, !strcmp(status, "incomplete")
	                   ? "\"incomplete_details\":{\"reason\":\"max_output_tokens\"},"
	                   : "\"incomplete_details\":null,");
	strbuf_add(b, strbuf_str(&g->asked), g->asked.len);
	strbuf_puts(b, ",\"output\":[");
	if (c)
		strbuf_add(b, strbuf_str(&c->call), c->call.len);
	strbuf_puts(b, "],\"usage\":");
	if (!c || error) {
		strbuf_puts(b, "null}");
		return;
	}
	gen_sums(g, &n_prompt, &n_new, &n_cached);
	json_printf(b,
	            "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_"
	            "write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_"
	            "tokens\":%d},\"total_tokens\":%d}}",
	            n_prompt, n_cached, n_new, c->n_reasoning, n_prompt + n_new);
	b->failed |= c->call.failed || c->text.failed;
}

static void
send_response(const Generation *g, const char *type, const char *status, const Choice *c,
              const Problem *error)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, ",\"response\":");
	response(g, &b, status, c, error);
	event(g, type, &b);
}

static void
begin(Generation *g)
{
	Responses *own = gen_own(g);

	if (own->started)
		return;
	own->started = true;
	send_response(g, "response.created", "in_progress", NULL, NULL);
	send_response(g, "response.in_progress", "in_progress", NULL, NULL);
}

static bool
is_call(ItemKind kind)
{
	return kind == ITEM_CALL || kind == ITEM_CUSTOM;
}

static void
logprobs(Strbuf *b, const Strbuf *places)
{
	strbuf_puts(b, "\"logprobs\":[");
	strbuf_add(b, strbuf_str(places), places->len);
	strbuf_putc(b, ']');
}

/* Append a message's text as a content part. */
static void
part(const Choice *c, Strbuf *b)
{
	strbuf_puts(b, "{\"type\":\"output_text\",\"annotations\":[],");
	logprobs(b, &c->col[COL_ITEM]);
	strbuf_puts(b, ",\"text\":");
	json_str(b, strbuf_str(&c->text), c->text.len);
	strbuf_putc(b, '}');
}

/* Append the open item. When the item begins, its text is empty. */
static void
item(const Generation *g, const Choice *c, Strbuf *b, const char *status)
{
	const Responses *own = gen_own(g);
	size_t n = strcmp(status, "in_progress") != 0 ? c->text.len : 0;

	json_printf(b, "{\"id\":%s,\"type\":%s,\"status\":%s,", own->id, kinds[own->open].type,
	            status);
	if (is_call(own->open)) {
		json_printf(b, "\"call_id\":%s,\"name\":", own->call_id);
		json_str(b, strbuf_str(&own->name), own->name.len);
		json_printf(b, ",%s:", kinds[own->open].key);
		json_str(b, strbuf_str(&c->text), n);
		strbuf_putc(b, '}');
		return;
	}
	strbuf_puts(b, own->open == ITEM_MESSAGE ? "\"role\":\"assistant\",\"content\":["
	                                         : "\"summary\":[],\"content\":[");
	if (n && own->open == ITEM_MESSAGE) {
		part(c, b);
	} else if (n) {
		strbuf_puts(b, "{\"type\":\"reasoning_text\",\"text\":");
		json_str(b, strbuf_str(&c->text), n);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
}

/* Append the ids and indices that locate the open item. */
static void
place(const Generation *g, Strbuf *b)
{
	const Responses *own = gen_own(g);

	json_printf(b, ",\"item_id\":%s,\"output_index\":%d", own->id, own->n_items);
	if (!is_call(own->open))
		strbuf_puts(b, ",\"content_index\":0");
}

/* Send an event of the open item, with a content part (of a message) or the item itself. */
static void
event_part(const Generation *g, const Choice *c, const char *type)
{
	Strbuf b = { 0 };

	place(g, &b);
	strbuf_puts(&b, ",\"part\":");
	part(c, &b);
	event(g, type, &b);
}

static void
event_item(const Generation *g, const Choice *c, const char *type, const char *status)
{
	Strbuf b = { 0 };

	json_printf(&b, ",\"output_index\":%d,\"item\":", ((const Responses *)gen_own(g))->n_items);
	item(g, c, &b, status);
	event(g, type, &b);
}

static void
event_kind(const Generation *g, const char *what, Strbuf *fields)
{
	char type[64];

	snprintf(type, sizeof type, "response.%s.%s",
	         kinds[((const Responses *)gen_own(g))->open].event, what);
	event(g, type, fields);
}

static void
item_begin(Generation *g, Choice *c, ItemKind kind)
{
	Responses *own = gen_own(g);

	own->open = kind;
	snprintf(own->id, sizeof own->id, "%s_%016llx%08x", kinds[kind].prefix,
	         (unsigned long long)random_u64(), (unsigned)random_u64());
	snprintf(own->call_id, sizeof own->call_id, "call_%016llx%08x",
	         (unsigned long long)random_u64(), (unsigned)random_u64());
	strbuf_clear(&c->text);
	strbuf_clear(&c->held);
	strbuf_clear(&c->col[COL_ITEM]);
	custom_input_begin(c);
	event_item(g, c, "response.output_item.added", "in_progress");
	if (kind == ITEM_MESSAGE)
		event_part(g, c, "response.content_part.added");
}

static void
item_grow(Generation *g, Choice *c, const char *text, size_t n)
{
	const Responses *own = gen_own(g);
	Strbuf b = { 0 }, fresh = { 0 }, *all = &c->col[COL_ITEM];

	if (!n)
		return;
	strbuf_add(&c->text, text, n);
	place(g, &b);
	if (own->open == ITEM_MESSAGE) {
		strbuf_putc(&b, ',');
		openai_places_of(c, n, &fresh);
		logprobs(&b, &fresh);
		strbuf_puts(all, all->len && fresh.len ? "," : "");
		strbuf_add(all, strbuf_str(&fresh), fresh.len);
		strbuf_release(&fresh);
	}
	strbuf_puts(&b, ",\"delta\":");
	json_str(&b, text, n);
	event_kind(g, "delta", &b);
}

/* Add arguments of a custom call. Sends the new part of the "input" string with escapes decoded. */
static void
custom_grow(Generation *g, Choice *c, const char *text, size_t n, bool last)
{
	Strbuf more = { 0 };

	custom_input(c, text, n, last, &more);
	item_grow(g, c, strbuf_str(&more), more.len);
	c->text.failed |= more.failed;
	strbuf_release(&more);
}

static void
item_end(Generation *g, Choice *c, const char *status)
{
	Responses *own = gen_own(g);
	Strbuf b = { 0 };

	if (own->open == ITEM_NONE)
		return;
	if (own->open == ITEM_CUSTOM && !strcmp(status, "completed"))
		custom_grow(g, c, "", 0, true);
	place(g, &b);
	strbuf_putc(&b, ',');
	if (own->open == ITEM_CALL) {
		strbuf_puts(&b, "\"name\":");
		json_str(&b, strbuf_str(&own->name), own->name.len);
		strbuf_putc(&b, ',');
	} else if (own->open == ITEM_MESSAGE) {
		logprobs(&b, &c->col[COL_ITEM]);
		strbuf_putc(&b, ',');
	}
	json_printf(&b, "%s:", kinds[own->open].key);
	json_str(&b, strbuf_str(&c->text), c->text.len);
	event_kind(g, "done", &b);
	if (own->open == ITEM_MESSAGE)
		event_part(g, c, "response.content_part.done");
	event_item(g, c, "response.output_item.done", status);
	strbuf_puts(&c->call, own->n_items ? "," : "");
	item(g, c, &c->call, status);
	own->n_items++;
	own->open = ITEM_NONE;
}

/* Return the status of a call: a call is incomplete if its arguments were truncated, so that they
 * are no object. */
static const char *
call_status(const Generation *g, const Choice *c)
{
	const Strbuf *said =
	    ((const Responses *)gen_own(g))->open == ITEM_CUSTOM ? &c->held : &c->text;
	json_t *o =
	    json_parse(strbuf_str(said), said->len, JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, NULL, NULL);
	bool cut = c->done && c->finish == LLMC_FINISH_LENGTH && !o;

	json_decref(o);
	return cut ? "incomplete" : "completed";
}

static ItemKind
call_kind(const Responses *own)
{
	json_t *name;
	size_t i;

	json_array_foreach (own->custom, i, name)
		if (!strcmp(json_string_value(name), strbuf_str(&own->name)))
			return ITEM_CUSTOM;
	return ITEM_CALL;
}

static void
on_piece(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	Responses *own = gen_own(g);
	ItemKind want = kind == LLMC_PIECE_REASONING ? ITEM_REASONING : ITEM_MESSAGE;

	switch (kind) {
	case LLMC_PIECE_TEXT:
	case LLMC_PIECE_REASONING:
		if (n && own->open != want) {
			item_end(g, c, "completed");
			item_begin(g, c, want);
		}
		item_grow(g, c, text, n);
		break;
	case LLMC_PIECE_CALL:
		c->n_calls = call + 1;
		item_end(g, c, "completed");
		strbuf_clear(&own->name);
		strbuf_add(&own->name, text, n);
		c->call.failed |= own->name.failed;
		item_begin(g, c, call_kind(own));
		break;
	case LLMC_PIECE_ARGUMENTS:
		if (own->open == ITEM_CUSTOM)
			custom_grow(g, c, text, n, false);
		else
			item_grow(g, c, text, n);
		break;
	case LLMC_PIECE_DONE:
		item_end(g, c, call_status(g, c));
		break;
	}
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	openai_place(g, c, ev);
	gen_pieces(g, c, ev, false, on_piece);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	begin(g);
	gen_pieces(g, c, ev, true, on_piece);
	item_end(g, c, c->finish == LLMC_FINISH_LENGTH ? "incomplete" : "completed");
}

static void
on_done(Generation *g)
{
	const Choice *c = &g->choice[0];
	bool cut = c->finish == LLMC_FINISH_LENGTH;
	Strbuf b = { 0 };

	if (g->stream) {
		send_response(g, cut ? "response.incomplete" : "response.completed",
		              cut ? "incomplete" : "completed", c, NULL);
		return;
	}
	response(g, &b, cut ? "incomplete" : "completed", c, NULL);
	req_answer(g->req, 200, type_json, &b);
}

static void
failed(Generation *g, const Problem *p)
{
	if (g->stream) {
		begin(g);
		send_response(g, "response.failed", "failed", &g->choice[0], p);
	} else {
		req_problem(g->req, p);
	}
}

static void
release(Generation *g)
{
	Responses *own = gen_own(g);

	strbuf_release(&own->name);
	json_decref(own->custom);
}

static const Dialect dialect = {
	.pieces = true,
	.own_bytes = sizeof(Responses),
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = failed,
	.release = release,
};

void
openai_responses(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "resp_",
		                           .max_stop = OPENAI_MAX_STOP,
		                           .translate = responses_chat,
		                           .fields = FIELDS_RESPONSES,
		                           .read = read_chat };

	openai_handle(r, &dialect, &route);
}

void
openai_response_tokens(Req *r)
{
	openai_input_tokens(r, FIELDS_RESPONSES, responses_chat);
}
