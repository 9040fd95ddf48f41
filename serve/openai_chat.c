/* OpenAI's chat: messages through the template, answers as messages and deltas. */
#include <stdlib.h>

#include "serve/grammar.h"
#include "serve/openai.h"

/* -1: as many as the context holds */
static bool
new_tokens(const json_t *o, const char *key, int64_t *out, bool *set, Problem *p)
{
	return json_integer_value(json_object_get(o, key)) == -1 ? field_int(o, key, -1, -1, out, set, p)
	                                                          : field_int(o, key, 1, INT32_MAX, out, set, p);
}

static bool
read_chat(Gen *g, const json_t *o, Problem *p)
{
	int64_t max_tokens = -1, older = -1, top = 0;
	bool has_max, has_older, has_top, special = false;
	char *text = NULL;
	size_t n;

	if (!new_tokens(o, "max_completion_tokens", &max_tokens, &has_max, p) || !new_tokens(o, "max_tokens", &older, &has_older, p) ||
	    !field_bool(o, "logprobs", &g->er.logprobs, p) ||
	    !field_int(o, "top_logprobs", 0, LLMC_MAX_TOP, &top, &has_top, p) || !field_bool(o, "add_special_tokens", &special, p))
		return false;
	if (has_top && !g->er.logprobs)
		return problem(p, 400, "top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
	g->max_new = has_max ? (int32_t)max_tokens : has_older ? (int32_t)older : -1;
	if (g->max_new > 0 && g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens", "Invalid 'min_tokens': %d is more than the new tokens allowed, %d.", g->ep.min_tokens, g->max_new);
	g->er.n_top = (int32_t)top;
	if (!chat_prompt(g->srv, o, &text, &n, p))
		return false;
	grammar_waits(g, text, n);
	bool ok = gen_prompts(g, 1, p) && tokenize_prompt(g->srv, text, n, LLMC_PARSE_SPECIAL | (special ? LLMC_ADD_SPECIAL : 0),
	                                                  (size_t)g->srv->max_input, &g->sub[0].tok, &g->sub[0].n_tok, p);
	free(text);
	return ok && openai_fits(g, g->sub[0].n_tok, "messages", p);
}

/* ---- log probabilities ---- */

static void
chat_token(const Gen *g, Strbuf *b, int32_t id, float lp)
{
	Strbuf raw = { 0 };

	token_bytes(g->srv->back.tok, id, &raw);
	strbuf_puts(b, "\"token\":");
	json_str(b, strbuf_str(&raw), raw.len);
	strbuf_puts(b, ",\"logprob\":");
	openai_logprob(b, lp);
	strbuf_puts(b, ",\"bytes\":[");
	for (size_t i = 0; i < raw.len; i++)
		strbuf_printf(b, "%s%d", i ? "," : "", (unsigned char)raw.data[i]);
	strbuf_putc(b, ']');
	strbuf_release(&raw);
}

static void
chat_place(const Gen *g, Strbuf *b, const llmc_event *ev)
{
	strbuf_puts(b, b->len ? ",{" : "{");
	chat_token(g, b, ev->token, ev->logprob);
	strbuf_puts(b, ",\"top_logprobs\":[");
	for (int32_t i = 0; i < ev->n_top; i++) {
		strbuf_puts(b, i ? ",{" : "{");
		chat_token(g, b, ev->top[i].id, ev->top[i].logprob);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
}

static void
logprobs_object(const Gen *g, Strbuf *b, const Strbuf *places)
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

/* key NULL: an empty delta; finish NULL: not yet */
static void
frame(const Gen *g, const Choice *c, const char *key, const char *text, size_t n_text, const Strbuf *places, const char *finish)
{
	Strbuf b = { 0 };

	openai_frame_open(g, c, &b);
	strbuf_puts(&b, "\"delta\":{");
	if (key) {
		strbuf_puts(&b, key);
		json_str(&b, text, n_text);
	}
	strbuf_puts(&b, "},\"logprobs\":");
	if (places)
		logprobs_object(g, &b, places);
	else
		strbuf_puts(&b, "null");
	openai_frame_close(g, &b, finish);
}

/* What comes before the first token of a choice: the role. */
static void
begin(const Gen *g, Choice *c)
{
	if (!c->started && g->stream)
		frame(g, c, "\"role\":\"assistant\",\"content\":", "", 0, NULL, NULL);
	c->started = true;
}

static void
on_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	const char *text = ev->text ? ev->text : "";

	(void)sub;
	begin(g, c);
	if (g->stream)
		strbuf_clear(&c->col[0]);
	if (g->er.logprobs)
		chat_place(g, &c->col[0], ev);
	if (!g->stream)
		strbuf_add(&c->text, text, ev->n_bytes);
	else if (ev->n_bytes || g->er.logprobs)
		frame(g, c, "\"content\":", text, ev->n_bytes, &c->col[0], NULL);
}

static void
on_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	const char *text = ev->text ? ev->text : "";

	(void)sub;
	begin(g, c);
	if (!g->stream) {
		strbuf_add(&c->text, text, ev->n_bytes);
		return;
	}
	if (ev->n_bytes)
		frame(g, c, "\"content\":", text, ev->n_bytes, NULL, NULL);
	frame(g, c, NULL, NULL, 0, NULL, openai_finish(c));
}

static void
on_done(Gen *g)
{
	Strbuf b = { 0 };

	if (g->stream) {
		openai_stream_end(g);
		return;
	}
	openai_open(g, &b, false);
	for (int32_t i = 0; i < g->n; i++) {
		const Choice *c = &g->choice[i];
		strbuf_printf(&b, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
		json_str(&b, strbuf_str(&c->text), c->text.len);
		strbuf_puts(&b, ",\"refusal\":null},\"logprobs\":");
		logprobs_object(g, &b, &c->col[0]);
		json_printf(&b, ",\"finish_reason\":%s}", openai_finish(c));
	}
	strbuf_puts(&b, "],");
	openai_usage(g, &b);
	strbuf_putc(&b, '}');
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = {
	.own_bytes = sizeof(OpenAi), .token = on_token, .finish = on_finish, .done = on_done, .problem = openai_failed,
};

void
openai_chat(Req *r)
{
	openai_handle(r, &dialect, "chatcmpl-", "chat.completion", "chat.completion.chunk", read_chat);
}
