/* OpenAI's answers: whole or in frames, log probabilities, usage, errors. */
#include <math.h>
#include <string.h>

#include "runtime/serve/serve.h"
#include "runtime/text/text.h"

static const char *
error_type(const Problem *p)
{
	return p->type ? p->type : p->status == 429 ? "rate_limit_error" : p->status >= 500 ? "server_error" : "invalid_request_error";
}

static void
error_object(Strbuf *b, const Problem *p)
{
	json_printf(b, "{\"error\":{\"message\":%s,\"type\":%s,\"param\":%s,\"code\":%s}}", p->text, error_type(p), p->param[0] ? p->param : NULL, p->code);
}

void
openai_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	error_object(&b, p);
	req_answer(r, p->status, type_json, &b);
}

/* ---- log probabilities ---- */

/* A token as text: when its bytes are no whole characters, written out as the older API does. */
static void
token_text(const Gen *g, int32_t id, Strbuf *out)
{
	Strbuf raw = { 0 };

	token_bytes(g->srv->back.tok, id, &raw);
	if (utf8_valid(strbuf_str(&raw), raw.len)) {
		json_str(out, strbuf_str(&raw), raw.len);
	} else {
		strbuf_puts(out, "\"bytes:");
		for (size_t i = 0; i < raw.len; i++)
			strbuf_printf(out, "\\\\x%02x", (unsigned char)raw.data[i]);
		strbuf_putc(out, '"');
	}
	strbuf_release(&raw);
}

static void
logprob(Strbuf *b, float x)
{
	/* JSON has no infinity; this is what the API says of impossible tokens */
	json_num(b, isinf(x) ? -9999.0 : (double)x);
}

static void
comma(Strbuf *b)
{
	if (b->len)
		strbuf_putc(b, ',');
}

/* completions: a place in the four columns tokens, token_logprobs, top_logprobs, text_offset */
static void
completion_place(const Gen *g, Strbuf col[4], const llmc_event *ev, bool first, int64_t offset)
{
	bool seen = false;

	for (int i = 0; i < 4; i++)
		comma(&col[i]);
	token_text(g, ev->token, &col[0]);
	if (first) {
		strbuf_puts(&col[1], "null");
		strbuf_puts(&col[2], "null");
	} else {
		logprob(&col[1], ev->logprob);
		strbuf_putc(&col[2], '{');
		for (int32_t i = 0; i < ev->n_top; i++) {
			if (i)
				strbuf_putc(&col[2], ',');
			token_text(g, ev->top[i].id, &col[2]);
			strbuf_putc(&col[2], ':');
			logprob(&col[2], ev->top[i].logprob);
			seen |= ev->top[i].id == ev->token;
		}
		if (!seen) {
			if (ev->n_top)
				strbuf_putc(&col[2], ',');
			token_text(g, ev->token, &col[2]);
			strbuf_putc(&col[2], ':');
			logprob(&col[2], ev->logprob);
		}
		strbuf_putc(&col[2], '}');
	}
	strbuf_printf(&col[3], "%lld", (long long)offset);
}

static void
chat_token(const Gen *g, Strbuf *b, int32_t id, float lp)
{
	Strbuf raw = { 0 };

	token_bytes(g->srv->back.tok, id, &raw);
	strbuf_puts(b, "\"token\":");
	json_str(b, strbuf_str(&raw), raw.len);
	strbuf_puts(b, ",\"logprob\":");
	logprob(b, lp);
	strbuf_puts(b, ",\"bytes\":[");
	for (size_t i = 0; i < raw.len; i++)
		strbuf_printf(b, "%s%d", i ? "," : "", (unsigned char)raw.data[i]);
	strbuf_putc(b, ']');
	strbuf_release(&raw);
}

static void
chat_place(const Gen *g, Strbuf *b, const llmc_event *ev)
{
	comma(b);
	strbuf_putc(b, '{');
	chat_token(g, b, ev->token, ev->logprob);
	strbuf_puts(b, ",\"top_logprobs\":[");
	for (int32_t i = 0; i < ev->n_top; i++) {
		strbuf_puts(b, i ? ",{" : "{");
		chat_token(g, b, ev->top[i].id, ev->top[i].logprob);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
}

/* the value of "logprobs" from columns */
static void
logprobs_object(const Gen *g, Strbuf *b, const Strbuf col[4])
{
	static const char *const name[] = { "{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[", "],\"text_offset\":[" };

	if (!g->logprobs) {
		strbuf_puts(b, "null");
	} else if (g->dialect == DIA_CHAT) {
		strbuf_puts(b, "{\"content\":[");
		strbuf_add(b, strbuf_str(&col[0]), col[0].len);
		strbuf_puts(b, "],\"refusal\":null}");
	} else {
		for (int i = 0; i < 4; i++) {
			strbuf_puts(b, name[i]);
			strbuf_add(b, strbuf_str(&col[i]), col[i].len);
		}
		strbuf_puts(b, "]}");
	}
}

/* ---- frames ---- */

static void
top_of(const Gen *g, Strbuf *b, bool chunk)
{
	json_printf(b, "{\"id\":%s,\"object\":%s,\"created\":%lld,\"model\":%s,\"system_fingerprint\":\"llmc-" LLMC_VERSION "\",\"choices\":[", g->oai_id,
	            g->dialect != DIA_CHAT ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion", (long long)g->created, g->model);
}

static void
usage(const Gen *g, Strbuf *b)
{
	int32_t n_prompt, n_new, n_cached;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	json_printf(b, "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d},\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
	            n_prompt, n_new, n_prompt + n_new, n_cached);
}

static const char *
finish_word(const Choice *c)
{
	return c->finish == LLMC_FINISH_LENGTH ? "length" : "stop";
}

/* One frame of a choice. `delta` is the inside of chat's delta, NULL for completions; finish NULL: not yet. */
static void
frame(Gen *g, const Sub *sub, const Choice *c, const char *delta, const char *text, size_t n_text, const Strbuf *col, const char *finish)
{
	static const Strbuf none[4];
	Strbuf b = { 0 };

	strbuf_puts(&b, "data: ");
	top_of(g, &b, true);
	strbuf_printf(&b, "{\"index\":%d,", (int)(c - g->choice));
	(void)sub;
	if (g->dialect == DIA_CHAT) {
		strbuf_puts(&b, "\"delta\":{");
		if (delta) {
			strbuf_puts(&b, delta);
		} else if (!finish) {
			strbuf_puts(&b, "\"content\":");
			json_str(&b, text, n_text);
		}
		strbuf_puts(&b, "},");
	} else {
		strbuf_puts(&b, "\"text\":");
		json_str(&b, text, n_text);
		strbuf_putc(&b, ',');
	}
	strbuf_puts(&b, "\"logprobs\":");
	if (col)
		logprobs_object(g, &b, col);
	else if (g->logprobs && g->dialect != DIA_CHAT && n_text)
		logprobs_object(g, &b, none);
	else
		strbuf_puts(&b, "null");
	json_printf(&b, ",\"finish_reason\":%s}]", finish);
	strbuf_puts(&b, g->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
	if (!b.failed)
		req_push(g->req, b.data, b.len);
	strbuf_release(&b);
}

/* What comes before the first token of a choice: the role, the prompt's echo. */
static void
begin(Gen *g, Sub *sub, Choice *c)
{
	if (c->started)
		return;
	c->started = true;
	if (g->stream && g->dialect == DIA_CHAT)
		frame(g, sub, c, "\"role\":\"assistant\",\"content\":\"\"", "", 0, NULL, NULL);
	if (!g->echo)
		return;
	c->n_chars = utf8_chars(sub->echo ? sub->echo : "", sub->n_echo);
	if (g->stream) {
		frame(g, sub, c, NULL, sub->echo ? sub->echo : "", sub->n_echo, g->logprobs ? sub->col : NULL, NULL);
		return;
	}
	strbuf_add(&c->text, sub->echo ? sub->echo : "", sub->n_echo);
	for (int i = 0; i < 4; i++)
		strbuf_add(&c->col[i], strbuf_str(&sub->col[i]), sub->col[i].len);
}

void
openai_prompt(Gen *g, Sub *sub, const llmc_event *ev)
{
	if (!g->logprobs || g->dialect == DIA_CHAT)
		return;
	completion_place(g, sub->col, ev, sub->n_seen == 0, sub->echo_chars);
	sub->echo_chars += utf8_chars(ev->text ? ev->text : "", ev->n_bytes);
	sub->n_seen++;
}

void
openai_token(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	begin(g, sub, c);
	if (g->hide_new)
		return;
	if (g->stream) {
		Strbuf col[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
		if (g->logprobs && g->dialect == DIA_CHAT)
			chat_place(g, &col[0], ev);
		else if (g->logprobs)
			completion_place(g, col, ev, false, c->n_chars);
		if (ev->n_bytes || g->logprobs)
			frame(g, sub, c, NULL, ev->text ? ev->text : "", ev->n_bytes, g->logprobs ? col : NULL, NULL);
		for (int i = 0; i < 4; i++)
			strbuf_release(&col[i]);
	} else {
		if (g->logprobs && g->dialect == DIA_CHAT)
			chat_place(g, &c->col[0], ev);
		else if (g->logprobs)
			completion_place(g, c->col, ev, false, c->n_chars);
		strbuf_add(&c->text, ev->text ? ev->text : "", ev->n_bytes);
	}
	c->n_chars += utf8_chars(ev->text ? ev->text : "", ev->n_bytes);
}

void
openai_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	const char *text = g->hide_new || !ev->text ? "" : ev->text;
	size_t n = *text ? ev->n_bytes : 0;

	begin(g, sub, c);
	if (!g->stream) {
		strbuf_add(&c->text, text, n);
		return;
	}
	if (g->dialect == DIA_CHAT && n)
		frame(g, sub, c, NULL, text, n, NULL, NULL);
	frame(g, sub, c, NULL, g->dialect == DIA_CHAT ? "" : text, g->dialect == DIA_CHAT ? 0 : n, NULL, finish_word(c));
}

void
openai_done(Gen *g)
{
	Strbuf b = { 0 };
	Problem p;

	if (g->failed) {
		gen_failure(g, &p);
		if (!g->stream) {
			req_problem(g->req, &p);
			return;
		}
		strbuf_puts(&b, "data: ");
		error_object(&b, &p);
		strbuf_puts(&b, "\n\n");
		req_push(g->req, strbuf_str(&b), b.len);
		strbuf_release(&b);
		return;
	}
	if (g->stream) {
		if (g->include_usage) {
			strbuf_puts(&b, "data: ");
			top_of(g, &b, true);
			strbuf_puts(&b, "],");
			usage(g, &b);
			strbuf_puts(&b, "}\n\n");
		}
		strbuf_puts(&b, "data: [DONE]\n\n");
		req_push(g->req, strbuf_str(&b), b.len);
		strbuf_release(&b);
		return;
	}
	top_of(g, &b, false);
	for (int32_t i = 0; i < g->n_sub * g->n; i++) {
		Choice *c = &g->choice[i];
		strbuf_printf(&b, "%s{\"index\":%d,", i ? "," : "", i);
		strbuf_puts(&b, g->dialect == DIA_CHAT ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
		json_str(&b, strbuf_str(&c->text), c->text.len);
		strbuf_puts(&b, g->dialect == DIA_CHAT ? ",\"refusal\":null},\"logprobs\":" : ",\"logprobs\":");
		logprobs_object(g, &b, c->col);
		json_printf(&b, ",\"finish_reason\":%s}", g->hide_new ? "length" : finish_word(c));
	}
	strbuf_puts(&b, "],");
	usage(g, &b);
	strbuf_putc(&b, '}');
	req_answer(g->req, 200, type_json, &b);
}
