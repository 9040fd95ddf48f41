/* OpenAI's completions: prompts as strings or ids, echo, and log probabilities in four columns. */
#include <stdlib.h>
#include <string.h>

#include "serve/dialects/error_form.h"
#include "serve/dialects/fim.h"
#include "serve/dialects/openai.h"
#include "serve/dialects/thinking.h"

/* ---- requests ---- */

static bool
read_prompt(Generation *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "prompt"), *first = json_array_get(v, 0);
	bool ids = json_is_integer(first), special = true;
	const json_t *suffix = json_object_get(o, "suffix");
	size_t n = json_is_array(v) && !ids ? json_array_size(v) : 1;

	if (!v || json_is_null(v))
		return openai_missing(p, "prompt");
	if (!field_text(o, "suffix", NULL, p))
		return false;
	if (!json_string_length(suffix))
		suffix = NULL;
	if (suffix && openai_own(g)->echo)
		return problem(p, 400, "echo",
		               "'echo' and 'suffix' exclude each other: the prompt is not one "
		               "text.");
	if (json_is_array(v) && json_array_size(v) == 0)
		return problem(p, 400, "prompt", "Invalid 'prompt': the array is empty.");
	if (!json_is_string(v) && !ids && !json_is_string(first) && !json_is_array(first))
		return problem(
		    p, 400, "prompt",
		    "Invalid type for 'prompt': expected a string, an array of strings, an array "
		    "of token ids or an array of such arrays, but got %s%s instead.",
		    json_is_array(v) ? "an array of " : "",
		    json_type_name(json_is_array(v) ? first : v));
	if (!openai_prompts_allowed(g, n, p) || !field_bool(o, "add_special_tokens", &special, p) ||
	    !gen_prompts(g, (int32_t)n, p))
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(v) && !ids ? json_array_get(v, i) : v;
		SubRequest *sub = &g->sub[i];
		if (suffix && (json_is_string(one) || json_is_array(one))) {
			FimParts parts = { .prefix = one, .suffix = suffix, .param = "suffix" };
			if (!fim_prompt(g, sub, &parts, p))
				return false;
		} else if (json_is_string(one)) {
			if (!tokenize_prompt(g->model, json_string_value(one),
			                     json_string_length(one),
			                     LLMC_PARSE_SPECIAL | (special ? LLMC_ADD_SPECIAL : 0),
			                     openai_most(g), &sub->tok, &sub->n_tok, p))
				return false;
			bool cut = openai_cut(g, sub);
			if (openai_own(g)->echo && cut) {
				if (!detokenize_prompt(g->model, sub->tok, sub->n_tok, &sub->echo,
				                       &sub->n_echo, p))
					return false;
			} else if (openai_own(g)->echo) {
				sub->n_echo = json_string_length(one);
				sub->echo = malloc(sub->n_echo + 1);
				if (!sub->echo)
					return problem_memory(p);
				memcpy(sub->echo, json_string_value(one), sub->n_echo + 1);
			}
		} else if (json_is_array(one)) {
			if (!token_ids(one, g->model->back.info.vocab, "prompt", &sub->tok,
			               &sub->n_tok, p))
				return false;
			openai_cut(g, sub);
			if (openai_own(g)->echo && g->model->back.tok &&
			    !detokenize_prompt(g->model, sub->tok, sub->n_tok, &sub->echo,
			                       &sub->n_echo, p))
				return false;
		} else {
			return problem(
			    p, 400, "prompt",
			    "Invalid type for 'prompt[%zu]': expected %s, but got %s instead.", i,
			    json_is_string(first) ? "a string" : "an array of token ids",
			    json_type_name(one));
		}
		if (!openai_fits(g, sub->n_tok, "prompt", p))
			return false;
	}
	return true;
}

static bool
read_completion(Generation *g, const json_t *o, Problem *p)
{
	OpenAi *own = openai_own(g);
	int32_t budget;
	int64_t max_tokens = 16, n_predict = -1, best_of = 1, logprobs = 0, n_probs = 0;
	bool has_max, has_predict, has_best, has_logprobs;

	if (!field_int(o, "max_tokens", -1, INT32_MAX, &max_tokens, &has_max, p) ||
	    !field_int(o, "n_predict", -1, INT32_MAX, &n_predict, &has_predict, p) ||
	    !field_int(o, "best_of", 0, 20, &best_of, &has_best, p) ||
	    !field_int(o, "logprobs", 0, 5, &logprobs, &has_logprobs, p) ||
	    !field_int(o, "n_probs", 0, LLMC_MAX_TOP, &n_probs, NULL, p) ||
	    !field_bool(o, "echo", &own->echo, p))
		return false;
	if (has_best && best_of > 0) {
		if (best_of < g->n)
			return problem(p, 400, "best_of",
			               "Invalid 'best_of': %lld is less than 'n', which is %d.",
			               (long long)best_of, g->n);
		if (g->stream && best_of > g->n)
			return problem(p, 400, "best_of",
			               "'best_of' cannot be used with 'stream'.");
		if (best_of > g->n)
			g->best_of = (int32_t)best_of;
	}
	g->clip_new = has_predict && !has_max; /* as in llama.cpp, whose field it is */
	g->max_new = (int32_t)(g->clip_new ? n_predict : max_tokens);
	if (g->max_new >= 0 && g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens",
		               "Invalid 'min_tokens': %d is more than 'max_tokens', which is %d.",
		               g->ep.min_tokens, g->max_new);
	g->hide_new = g->max_new == 0;
	if (n_probs > 0 && !has_logprobs) {
		has_logprobs = true;
		logprobs = n_probs;
	}
	g->er.logprobs = has_logprobs || g->best_of;
	g->er.prompt_logprobs = has_logprobs && own->echo;
	g->er.n_top = (int32_t)logprobs;
	own->logprobs = has_logprobs;
	openai_set_top(g);
	return thinking_read(g, o, &budget, p) && read_prompt(g, o, p) &&
	       thinking_limit_prompt(g, budget, p);
}

/* ---- log probabilities ---- */

/* Append a token as text. Incomplete UTF-8 is written as "bytes:\x..", as the older API does. */
static void
token_text(const Generation *g, int32_t id, Strbuf *out)
{
	Strbuf raw = { 0 };

	token_bytes(g->model->back.tok, id, &raw);
	if (openai_own(g)->tokens_as_ids) {
		openai_put_token(g, out, id, &raw);
	} else if (utf8_valid(strbuf_str(&raw), raw.len)) {
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
comma(Strbuf *b)
{
	if (b->len)
		strbuf_putc(b, ',');
}

/* Append an entry to the four columns tokens, token_logprobs, top_logprobs, text_offset. */
static void
completion_place(const Generation *g, Strbuf col[4], const llmc_event *ev, bool first,
                 int64_t offset)
{
	int32_t most = openai_own(g)->n_top, n_top = ev->n_top < most ? ev->n_top : most;
	bool seen = false;

	for (int i = 0; i < 4; i++)
		comma(&col[i]);
	token_text(g, ev->token, &col[0]);
	if (first) {
		strbuf_puts(&col[1], "null");
		strbuf_puts(&col[2], "null");
	} else {
		openai_logprob(&col[1], ev->logprob);
		strbuf_putc(&col[2], '{');
		for (int32_t i = 0; i < n_top; i++) {
			if (i)
				strbuf_putc(&col[2], ',');
			token_text(g, ev->top[i].id, &col[2]);
			strbuf_putc(&col[2], ':');
			openai_logprob(&col[2], ev->top[i].logprob);
			seen |= ev->top[i].id == ev->token;
		}
		if (!seen) {
			if (n_top)
				strbuf_putc(&col[2], ',');
			token_text(g, ev->token, &col[2]);
			strbuf_putc(&col[2], ':');
			openai_logprob(&col[2], ev->logprob);
		}
		strbuf_putc(&col[2], '}');
	}
	strbuf_printf(&col[3], "%lld", (long long)offset);
}

static void
logprobs_object(const Generation *g, Strbuf *b, const Strbuf col[4])
{
	static const char *const name[] = { "{\"tokens\":[", "],\"token_logprobs\":[",
		                            "],\"top_logprobs\":[", "],\"text_offset\":[" };

	if (!openai_own(g)->logprobs) {
		strbuf_puts(b, "null");
		return;
	}
	for (int i = 0; i < 4; i++) {
		strbuf_puts(b, name[i]);
		strbuf_add(b, strbuf_str(&col[i]), col[i].len);
	}
	strbuf_puts(b, "]}");
}

/* ---- answers ---- */

/* Append a choice. finish NULL: the choice is not over; col NULL: no log probabilities. */
static void
frame(const Generation *g, Choice *c, const char *text, size_t n_text, const Strbuf *col,
      const char *finish)
{
	static const Strbuf none[4];
	Strbuf b = { 0 };

	openai_frame_open(g, c, &b);
	strbuf_puts(&b, "\"text\":");
	json_str(&b, text, n_text);
	strbuf_puts(&b, ",\"logprobs\":");
	if (col || n_text)
		logprobs_object(g, &b, col ? col : none);
	else
		strbuf_puts(&b, "null");
	openai_frame_close(g, c, &b, finish);
}

/* Send the echo of the prompt before a choice's first token. */
static void
begin(const Generation *g, const SubRequest *sub, Choice *c)
{
	const char *echo = sub->echo ? sub->echo : "";

	if (c->started)
		return;
	c->started = true;
	if (!openai_own(g)->echo)
		return;
	c->n_chars = (int64_t)utf8_count(echo, sub->n_echo);
	if (g->stream) {
		frame(g, c, echo, sub->n_echo, sub->col, NULL);
		return;
	}
	strbuf_add(&c->text, echo, sub->n_echo);
	for (int i = 0; i < 4; i++)
		strbuf_add(&c->col[i], strbuf_str(&sub->col[i]), sub->col[i].len);
}

static void
on_prompt(Generation *g, SubRequest *sub, const llmc_event *ev)
{
	openai_prompt_token(g, sub, ev);
	if (!openai_own(g)->logprobs || !openai_own(g)->echo)
		return;
	completion_place(g, sub->col, ev, sub->n_seen == 0, sub->echo_chars);
	sub->echo_chars += (int64_t)utf8_count(ev->text ? ev->text : "", ev->n_bytes);
	sub->n_seen++;
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	const char *text = ev->text ? ev->text : "";
	bool logprobs = openai_own(g)->logprobs;

	begin(g, sub, c);
	if (g->hide_new)
		return;
	openai_new_token(g, c, ev);
	if (g->stream) {
		Strbuf col[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
		if (logprobs)
			completion_place(g, col, ev, false, c->n_chars);
		if (ev->n_bytes || logprobs)
			frame(g, c, text, ev->n_bytes, col, NULL);
		for (int i = 0; i < 4; i++)
			strbuf_release(&col[i]);
	} else {
		if (logprobs)
			completion_place(g, c->col, ev, false, c->n_chars);
		strbuf_add(&c->text, text, ev->n_bytes);
	}
	c->n_chars += (int64_t)utf8_count(text, ev->n_bytes);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	const char *text = g->hide_new || !ev->text ? "" : ev->text;
	size_t n = *text ? ev->n_bytes : 0;

	begin(g, sub, c);
	if (ev->token >= 0)
		openai_new_token(g, c, ev);
	if (g->stream)
		frame(g, c, text, n, NULL, openai_finish(c));
	else
		strbuf_add(&c->text, text, n);
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
	for (int32_t i = 0; i < g->n_sub * g->n; i++) {
		Choice *c = &g->choice[i];
		strbuf_printf(&b, "%s{\"index\":%d,\"text\":", i ? "," : "", i);
		json_str(&b, strbuf_str(&c->text), c->text.len);
		strbuf_puts(&b, ",\"logprobs\":");
		logprobs_object(g, &b, c->col);
		json_printf(&b, ",\"finish_reason\":%s", g->hide_new ? "length" : openai_finish(c));
		openai_choice_ids(g, c, &b);
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, "],");
	openai_usage(g, &b);
	openai_timings(g, true, &b);
	openai_verbose(g, &g->sub[0], &b);
	strbuf_putc(&b, '}');
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = {
	.own_bytes = sizeof(OpenAi),
	.prompt = on_prompt,
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = error_end,
};

void
openai_completions(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "cmpl-",
		                           .object = "text_completion",
		                           .chunk = "text_completion",
		                           .max_stop = OPENAI_MAX_STOP,
		                           .fields = FIELDS_COMPLETIONS,
		                           .read = read_completion };

	openai_handle(r, &dialect, &route);
}
