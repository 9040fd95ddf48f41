/* Answers of llama.cpp's own form: one object per choice, whole or as frames, with the settings of
 * the request; limits by line, which end a choice early. */
#include "serve/dialects/lcpp.h"

#include <string.h>
#include <stdlib.h>

#include "serve/dialects/error_form.h"

/* Progress of the limits n_indent and t_max_predict_ms in the text of a choice. */
struct LineLimit {
	bool has_line;  /* a newline was generated */
	size_t line_at; /* offset of the latest line whose indentation is not known yet; 0: none */
	size_t from;    /* offset up to which newlines are known */
	double t_first; /* time of its first token */
};

/* ---- settings ---- */

static void
put_samplers(const Generation *g, Strbuf *b)
{
#define NAME(letter, name) name,
	static const char letters[] = LLMC_SAMPLER_LETTERS;
	static const char *const names[] = { LLMC_SAMPLERS(NAME) };
	llmc_params p = g->ep;
	char order[LLMC_MAX_SAMPLERS + 1] = "";

	p.samplers = g->samplers; /* checked by openai.c */
	llmc_sampler_order(&p, order, sizeof order, NULL, NULL);
	strbuf_putc(b, '[');
	for (const char *at = order; *at; at++) {
		const char *name = names[strchr(letters, *at) - letters];
		strbuf_puts(b, at > order ? "," : "");
		json_str(b, name, strlen(name));
	}
	strbuf_putc(b, ']');
}

static void
put_strings(char *const *list, Strbuf *b)
{
	strbuf_putc(b, '[');
	for (size_t i = 0; list && list[i]; i++) {
		strbuf_puts(b, i ? "," : "");
		json_str(b, list[i], strlen(list[i]));
	}
	strbuf_putc(b, ']');
}

/* Append the biases; null is minus infinity. ignore_eos forbids all ends. */
static void
put_biases(const Generation *g, Strbuf *b)
{
	const llmc_model_info *m = &g->model->back.info;
	int n = 0;

	strbuf_putc(b, '[');
	for (int32_t i = 0; i < g->ep.n_logit_bias; i++) {
		strbuf_puts(b, n++ ? ",{\"bias\":" : "{\"bias\":");
		json_num(b, (double)g->bias[i].value, 6);
		strbuf_printf(b, ",\"token\":%d}", g->bias[i].id);
	}
	for (int i = 0; g->ep.ignore_eos && i < m->n_eos; i++)
		strbuf_printf(b, "%s{\"bias\":null,\"token\":%d}", n++ ? "," : "", m->eos[i]);
	strbuf_putc(b, ']');
}

/* Value over HTTP of an option. sampling_read raises it to `least`. */
static int
number_sent(const llmc_option *k, int32_t x)
{
	const bool raised = k->rule == LLMC_OPTION_PART_0 && k->http_least < k->least;

	return raised && x <= k->least ? (int)k->http_least : x;
}

/* Append the settings that apply to the generation. */
static void
put_settings(const Generation *g, const json_t *o, Strbuf *b)
{
	const Lcpp *own = gen_own(g);
	const char *grammar = json_string_value(json_object_get(o, "grammar"));
	size_t n;
	const llmc_option *option = llmc_sampling_options(&n);

	json_printf(b, "{\"seed\":%lld", (long long)g->ep.seed);
	for (const llmc_option *k = option; k < option + n; k++) {
		const void *field = (const char *)&g->ep + k->offset;
		if (k->http_least > k->http_most)
			continue;
		json_printf(b, ",%s:", k->alias ? k->alias : k->name);
		if (k->kind == LLMC_OPTION_BOOL)
			strbuf_puts(b, *(const bool *)field ? "true" : "false");
		else if (k->kind == LLMC_OPTION_INT)
			strbuf_printf(b, "%d", number_sent(k, *(const int32_t *)field));
		else /* FLT_MIN stands for 0 */
			json_num(b, *(const float *)field < 1e-30f ? 0.0 : *(const float *)field,
			         6);
	}
	json_printf(b, ",\"max_tokens\":%d,\"n_predict\":%d,\"n_keep\":0,\"n_discard\":0",
	            g->max_new, g->max_new);
	strbuf_puts(b, ",\"adaptive_target\":-1,\"adaptive_decay\":0,\"dry_sequence_breakers\":");
	static char *const usual[] = { LLMC_DRY_BREAKERS, NULL };
	put_strings(g->breakers ? g->breakers : usual, b);
	strbuf_puts(b, ",\"stop\":");
	put_strings(g->stop, b);
	strbuf_puts(b, ",\"logit_bias\":");
	put_biases(g, b);
	strbuf_puts(b, ",\"samplers\":");
	put_samplers(g, b);
	json_printf(b, ",\"n_probs\":%d,\"n_indent\":%lld,\"t_max_predict_ms\":%lld,\"grammar\":%s",
	            g->er.logprobs ? g->er.n_top : 0, (long long)own->n_indent,
	            (long long)own->limit_ms, grammar ? grammar : "");
	strbuf_printf(b, ",\"stream\":%s,\"timings_per_token\":%s", g->stream ? "true" : "false",
	              own->base.timings_per_token ? "true" : "false");
	strbuf_puts(b, ",\"post_sampling_probs\":false,\"lora\":[]}");
}

bool
lcpp_begin(Generation *g, const json_t *o, Problem *p)
{
	Lcpp *own = gen_own(g);

	if (own->n_indent > 0 || own->limit_ms > 0) {
		own->line = calloc((size_t)(g->n_sub * g->n), sizeof *own->line);
		if (!own->line)
			return problem_memory(p);
	}
	put_settings(g, o, &g->asked);
	if (g->asked.failed)
		return problem_memory(p);
	/* a whole answer repeats them for each choice */
	const size_t copies = g->stream ? 1 : 1 + (size_t)(g->n_sub * g->n);
	return req_charge(g->req, copies * g->asked.cap) || problem_busy(p);
}

static void
release(Generation *g)
{
	Lcpp *own = gen_own(g);

	free(own->line);
	json_decref(own->fields);
}

/* ---- answers ---- */

static void
put_token(const Generation *g, Strbuf *b, int32_t id, float logprob)
{
	Strbuf raw = { 0 };

	token_bytes(g->model->back.tok, id, &raw);
	json_printf(b, "{\"id\":%d,\"token\":", id);
	json_str(b, strbuf_str(&raw), raw.len);
	openai_token_bytes(b, &raw);
	strbuf_puts(b, ",\"logprob\":");
	openai_logprob(b, logprob);
	strbuf_release(&raw);
}

/* Append an element of completion_probabilities. */
static void
put_probabilities(const Generation *g, const llmc_event *ev, Strbuf *b)
{
	if (b->len)
		strbuf_putc(b, ',');
	put_token(g, b, ev->token, ev->logprob);
	strbuf_puts(b, ",\"top_logprobs\":[");
	for (int32_t i = 0; i < ev->n_top; i++) {
		strbuf_puts(b, i ? "," : "");
		put_token(g, b, ev->top[i].id, ev->top[i].logprob);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
}

/* Append what frames and whole answers begin with. tokens: ids as JSON without brackets */
static void
put_part(const Generation *g, const SubRequest *sub, const Choice *c, Strbuf *b, const char *text,
         size_t n, const char *tokens, bool stop)
{
	const Lcpp *own = gen_own(g);

	strbuf_printf(b, "{\"index\":%d,\"content\":", (int)(c - g->choice));
	json_str(b, text, n);
	strbuf_printf(b,
	              ",\"tokens\":[%s],\"id_slot\":%d,\"stop\":%s,\"tokens_predicted\":%d,"
	              "\"tokens_evaluated\":%d",
	              tokens, (int)own->id_slot, stop ? "true" : "false",
	              g->hide_new ? 0 : c->n_new, (int)sub->n_tok);
}

/* Append the object of a choice that has ended. */
static void
put_end(const Generation *g, const SubRequest *sub, const Choice *c, Strbuf *b, const char *text,
        size_t n)
{
	const char *type = g->hide_new || c->finish == LLMC_FINISH_LENGTH ? "limit"
	                   : c->finish == LLMC_FINISH_STOP                ? "word"
	                                                                  : "eos";
	const bool full = c->finish == LLMC_FINISH_LENGTH && !c->enough && !g->hide_new &&
	                  (int64_t)sub->n_tok + c->n_new >= g->model->max_total;

	put_part(g, sub, c, b, text, n, g->stream ? "" : strbuf_str(&c->ids), true);
	json_printf(b, ",\"model\":%s,\"generation_settings\":", g->model->name);
	strbuf_add(b, strbuf_str(&g->asked), g->asked.len);
	strbuf_puts(b, ",\"prompt\":");
	openai_put_prompt(g, sub, b);
	strbuf_printf(b, ",\"has_new_line\":%s,\"truncated\":%s",
	              c->text.len && memchr(c->text.data, '\n', c->text.len) ? "true" : "false",
	              full ? "true" : "false");
	json_printf(b, ",\"stop_type\":%s,\"stopping_word\":%s,\"tokens_cached\":%d", type,
	            c->finish == LLMC_FINISH_STOP && c->stop >= 0 ? g->stop[c->stop] : "",
	            (int)sub->n_tok + (g->hide_new ? 0 : c->n_new));
	openai_choice_timings(g, sub, c, b);
	if (!g->stream && g->er.logprobs) {
		strbuf_puts(b, ",\"completion_probabilities\":[");
		strbuf_add(b, strbuf_str(&c->col[0]), c->col[0].len);
		strbuf_putc(b, ']');
	}
	strbuf_putc(b, '}');
	b->failed |= c->ids.failed || c->text.failed || c->col[0].failed;
}

/* Return the value of a path whose names are separated by '/'; NULL: absent. */
static json_t *
value_at(json_t *o, const char *path)
{
	char *name = strdup(path);

	for (char *at = name, *next; at && o; at = next) {
		next = strchr(at, '/');
		if (next)
			*next++ = 0;
		o = json_object_get(o, at);
	}
	free(name);
	return name ? o : NULL;
}

/* Replace the object in b that begins at `from` by the fields that the request names. */
static void
select_fields(const Lcpp *own, Strbuf *b, size_t from)
{
	json_t *all, *out, *path, *v;
	size_t i;

	if (!own->fields || b->failed)
		return;
	all = json_parse(b->data + from, b->len - from, JSON_ALLOW_NUL, NULL, NULL);
	out = json_object();
	json_array_foreach (own->fields, i, path)
		if ((v = value_at(all, json_string_value(path))) != NULL)
			json_object_set(out, json_string_value(path), v);
	/* json_num writes at most 12 digits */
	char *text = all && out ? json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
	b->len = from;
	if (text)
		strbuf_puts(b, text);
	else
		b->failed = true;
	free(text);
	json_decref(out);
	json_decref(all);
}

static void
send_frame(const Generation *g, Strbuf *b)
{
	strbuf_puts(b, "\n\n");
	if (!b->failed)
		req_push(g->req, b->data, b->len);
	strbuf_release(b);
}

/* Send a frame that is not the last one. */
static void
send_part(Generation *g, const SubRequest *sub, const Choice *c, const llmc_event *ev, size_t n)
{
	const Lcpp *own = gen_own(g);
	char tokens[16] = "";
	Strbuf b = { 0 }, probs = { 0 };

	if (ev->token >= 0)
		snprintf(tokens, sizeof tokens, "%d", ev->token);
	strbuf_puts(&b, "data: ");
	put_part(g, sub, c, &b, ev->text ? ev->text : "", n, tokens, false);
	if (own->base.timings_per_token)
		openai_timings(g, false, &b);
	if (g->er.logprobs && ev->token >= 0) {
		put_probabilities(g, ev, &probs);
		strbuf_puts(&b, ",\"completion_probabilities\":[");
		strbuf_add(&b, strbuf_str(&probs), probs.len);
		strbuf_putc(&b, ']');
		b.failed |= probs.failed;
		strbuf_release(&probs);
	}
	strbuf_putc(&b, '}');
	send_frame(g, &b);
}

/* Look for the end of a choice in its text, which has grown: the first line with less than n_indent
 * characters of indentation, or a newline after the time limit if there was one before. *cut: new
 * length of the text. Returns whether the choice ends. */
static bool
ends_here(const Generation *g, Choice *c, double now, size_t *cut)
{
	const Lcpp *own = gen_own(g);
	LineLimit *at = own->line ? &own->line[c - g->choice] : NULL;
	const char *text = strbuf_str(&c->text);
	const size_t len = c->text.len;

	if (!at)
		return false;
	if (!(at->t_first > 0))
		at->t_first = now;
	for (;;) {
		if (at->line_at && own->n_indent > 0) {
			const size_t indent = strspn(text + at->line_at, " \t"),
			             end = at->line_at + indent;
			if (end >= len)
				return false;
			if ((int64_t)indent < own->n_indent) {
				*cut = end;
				return true;
			}
		}
		at->line_at = 0;
		const char *newline =
		    at->from < len ? memchr(text + at->from, '\n', len - at->from) : NULL;
		if (!newline) {
			at->from = len;
			return false;
		}
		const bool late =
		    own->limit_ms > 0 && 1e3 * (now - at->t_first) > (double)own->limit_ms;
		if (late && at->has_line) {
			*cut = len;
			return true;
		}
		at->has_line = true;
		at->from = at->line_at = (size_t)(newline - text) + 1;
	}
}

/* Add a token to a choice, and send it with a stream. */
static void
add_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	const Lcpp *own = gen_own(g);
	size_t n = ev->n_bytes;

	if (g->hide_new)
		return;
	strbuf_add(&c->text, ev->text, n);
	const size_t before = c->text.len - (c->text.failed ? c->text.len : n);
	size_t cut = 0;
	if (n && !c->text.failed && ends_here(g, c, ev->time_s, &cut)) {
		c->text.len = cut > before ? cut : before;
		n = c->text.len - before;
		if (ev->kind == LLMC_EVENT_TOKEN)
			gen_enough(g, sub, c, ev->request);
	}
	if (g->stream) {
		if (ev->token >= 0 || n)
			send_part(g, sub, c, ev, n);
		return;
	}
	if (own->return_tokens && ev->token >= 0)
		strbuf_printf(&c->ids, c->ids.len ? ",%d" : "%d", ev->token);
	if (g->er.logprobs && ev->token >= 0)
		put_probabilities(g, ev, &c->col[0]);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	Strbuf b = { 0 };

	add_token(g, sub, c, ev);
	if (!g->stream)
		return;
	strbuf_puts(&b, "data: ");
	const size_t from = b.len;
	put_end(g, sub, c, &b, "", 0);
	select_fields(gen_own(g), &b, from);
	send_frame(g, &b);
}

static void
on_done(Generation *g)
{
	const int32_t n = g->n_sub * g->n;
	Strbuf b = { 0 };

	if (g->stream)
		return; /* the last frames have been sent */
	strbuf_puts(&b, n > 1 ? "[" : "");
	for (int32_t i = 0; i < n; i++) {
		const Choice *c = &g->choice[i];
		strbuf_puts(&b, i ? "," : "");
		const size_t from = b.len;
		put_end(g, &g->sub[i / g->n], c, &b, strbuf_str(&c->text), c->text.len);
		select_fields(gen_own(g), &b, from);
	}
	strbuf_puts(&b, n > 1 ? "]" : "");
	req_answer(g->req, 200, type_json, &b);
}

const Dialect lcpp_dialect = {
	.own_bytes = sizeof(Lcpp),
	.defaults = LLMC_DEFAULT_LLAMA_CPP,
	.token = add_token,
	.finish = on_finish,
	.done = on_done,
	.problem = error_end,
	.release = release,
};
