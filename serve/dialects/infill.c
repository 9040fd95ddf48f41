/* llama.cpp's POST /infill: the text between input_prefix and input_suffix, answered in llama.cpp's
 * own form, which editors read. */
#include <string.h>

#include "serve/dialects/fim.h"
#include "serve/dialects/openai.h"

typedef struct Infill {
	OpenAi base;
	const char *word; /* stop string that ended the text; "": none */
} Infill;

/* ---- requests ---- */

/* Return a copy of the body with llama.cpp's defaults, and without fields that only limit an
 * editor's time or select the parts of the answer that it reads. */
static json_t *
translate(const json_t *in, Problem *p)
{
	static const struct {
		const char *key;
		double value;
	} usual[] = { { "temperature", 0.8 }, { "top_p", 0.95 }, { "min_p", 0.05 } };
	static const char *const unused[] = { "n_indent", "t_max_prompt_ms", "t_max_predict_ms",
		                              "response_fields" };
	json_t *out = json_copy((json_t *)(uintptr_t)in);

	for (size_t i = 0; out && i < sizeof usual / sizeof *usual; i++)
		if (!json_object_get(out, usual[i].key))
			json_object_set_new(out, usual[i].key, json_real(usual[i].value));
	if (out && !json_object_get(out, "top_k"))
		json_object_set_new(out, "top_k", json_integer(40));
	for (size_t i = 0; out && i < sizeof unused / sizeof *unused; i++)
		json_object_del(out, unused[i]);
	if (!out)
		problem_memory(p);
	/* the others are those of completions */
	if (out && !fields_check(FIELDS_COMPLETIONS, out, p)) {
		json_decref(out);
		return NULL;
	}
	return out;
}

static bool
read_extra(const json_t *extra, Problem *p)
{
	if (!extra || json_is_null(extra))
		return true;
	bool ok = json_is_array(extra);
	for (size_t i = 0; ok && i < json_array_size(extra); i++) {
		const json_t *one = json_array_get(extra, i),
		             *name = json_object_get(one, "filename");
		ok =
		    json_is_string(json_object_get(one, "text")) && (!name || json_is_string(name));
	}
	return ok || problem(p, 400, "input_extra",
	                     "Invalid 'input_extra': expected an array of {\"filename\": string, "
	                     "\"text\": string}.");
}

static bool
read_infill(Generation *g, const json_t *o, Problem *p)
{
	const json_t *extra = json_object_get(o, "input_extra");
	int64_t n_predict = -1, max_tokens = -1;
	bool has_predict;

	if (!openai_text(o, "input_prefix", NULL, p) || !openai_text(o, "input_suffix", NULL, p) ||
	    !field_text(o, "prompt", NULL, p) || !read_extra(extra, p) ||
	    !field_int(o, "n_predict", -1, INT32_MAX, &n_predict, &has_predict, p) ||
	    !field_int(o, "max_tokens", -1, INT32_MAX, &max_tokens, NULL, p))
		return false;
	if (g->n != 1)
		return problem(p, 400, "n", "Invalid 'n': /infill has one answer.");
	g->max_new = (int32_t)(has_predict ? n_predict : max_tokens);
	g->hide_new = g->max_new == 0;
	if (!gen_prompts(g, 1, p))
		return false;
	/* an answer without a limit needs space too */
	const int64_t new_tokens = g->max_new >= 0 ? g->max_new : g->model->max_total / 4,
	              left = g->model->max_total - new_tokens;
	if (left <= 0)
		return openai_fits(g, 1, "input_prefix", p);
	FimParts parts = { .prefix = json_object_get(o, "input_prefix"),
		           .more = json_object_get(o, "prompt"),
		           .suffix = json_object_get(o, "input_suffix"),
		           .extra = extra,
		           .room =
		               (size_t)(left < g->model->max_input ? left : g->model->max_input),
		           .param = "input_suffix" };
	return fim_prompt(g, &g->sub[0], &parts, p) &&
	       openai_fits(g, g->sub[0].n_tok, "input_prefix", p);
}

/* ---- answers ---- */

static void
put_part(const Generation *g, const Choice *c, Strbuf *b, const char *text, size_t n, bool stop)
{
	strbuf_puts(b, "{\"index\":0,\"content\":");
	json_str(b, text, n);
	strbuf_printf(b,
	              ",\"tokens\":[],\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%d,"
	              "\"tokens_evaluated\":%d",
	              stop ? "true" : "false", c->n_new, (int)g->sub[0].n_tok);
}

static void
put_end(const Generation *g, const Choice *c, Strbuf *b, const char *text, size_t n)
{
	const Infill *own = gen_own(g);
	const SubRequest *sub = &g->sub[0];
	const char *type = g->hide_new || c->finish == LLMC_FINISH_LENGTH ? "limit"
	                   : c->finish == LLMC_FINISH_STOP                ? "word"
	                                                                  : "eos";

	put_part(g, c, b, text, n, true);
	json_printf(b, ",\"model\":%s,\"stop_type\":%s,\"stopping_word\":%s,\"truncated\":",
	            g->model->name, type, own->word);
	strbuf_printf(b, "false,\"has_new_line\":%s,\"tokens_cached\":%d",
	              c->text.len && memchr(c->text.data, '\n', c->text.len) ? "true" : "false",
	              (int)sub->n_tok + c->n_new);
	openai_timings(g, true, b);
	strbuf_putc(b, '}');
}

static void
send_frame(const Generation *g, Strbuf *b)
{
	strbuf_puts(b, "\n\n");
	if (!b->failed)
		req_push(g->req, b->data, b->len);
	strbuf_release(b);
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	Strbuf b = { 0 };

	(void)sub;
	if (g->hide_new)
		return;
	strbuf_add(&c->text, ev->text, ev->n_bytes);
	if (!g->stream || !ev->n_bytes)
		return;
	strbuf_puts(&b, "data: ");
	put_part(g, c, &b, ev->text, ev->n_bytes, false);
	strbuf_putc(&b, '}');
	send_frame(g, &b);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	Infill *own = gen_own(g);
	Strbuf b = { 0 };

	(void)sub;
	own->word = ev->stop >= 0 ? g->stop[ev->stop] : "";
	if (!g->hide_new)
		strbuf_add(&c->text, ev->text, ev->n_bytes);
	if (!g->stream)
		return;
	strbuf_puts(&b, "data: ");
	put_end(g, c, &b, g->hide_new ? "" : ev->text, g->hide_new ? 0 : ev->n_bytes);
	send_frame(g, &b);
}

static void
on_done(Generation *g)
{
	const Choice *c = &g->choice[0];
	Strbuf b = { 0 };

	if (g->stream)
		return; /* the last frame has been sent */
	put_end(g, c, &b, strbuf_str(&c->text), c->text.len);
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = {
	.own_bytes = sizeof(Infill),
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = openai_failed,
};

void
infill(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "cmpl-",
		                           .object = "text_completion",
		                           .chunk = "text_completion",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = translate,
		                           .fields = FIELDS_INFILL,
		                           .read = read_infill };

	openai_handle(r, &dialect, &route);
}
