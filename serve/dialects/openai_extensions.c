/* Parts that vLLM and llama.cpp add to OpenAI's requests and answers: bad words, prompts that are
 * cut, token ids, log probabilities of the prompt, usage per frame, timings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/dialects/openai.h"

enum { MAX_BAD_WORDS = 128 };

/* Append the tokens of a bad word, with a space before it if `space`. As in vLLM, the variant with
 * a space counts only if it has as many tokens as the one without, and another first token.
 * Otherwise the space is a token of its own. */
static bool
bad_word(Generation *g, const char *word, bool space, Problem *p)
{
	Strbuf text = { 0 };
	int32_t *tok = NULL, *n_bad = &g->ep.n_bad_words;
	size_t n = 0;

	strbuf_puts(&text, space ? " " : "");
	strbuf_puts(&text, word);
	bool ok = text.failed ? problem_memory(p)
	                      : tokenize_prompt(g->model, strbuf_str(&text), text.len, 0, SIZE_MAX,
	                                        &tok, &n, p);
	strbuf_release(&text);
	const llmc_sequence *last = space ? &g->bad_words[*n_bad - 1] : NULL;
	if (!ok || !n || (last && (last->n != n || last->tok[0] == tok[0])))
		free(tok);
	else
		g->bad_words[(*n_bad)++] = (llmc_sequence){ tok, n };
	return ok;
}

static bool
read_bad_words(Generation *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "bad_words"), *one;
	size_t i;

	if (!v || json_is_null(v) || (json_is_array(v) && !json_array_size(v)))
		return true;
	if (!json_is_array(v) || json_array_size(v) > MAX_BAD_WORDS)
		return problem(p, 400, "bad_words",
		               "Invalid 'bad_words': expected an array of up to %d strings.",
		               MAX_BAD_WORDS);
	g->bad_words = calloc(2 * json_array_size(v), sizeof *g->bad_words);
	if (!g->bad_words)
		return problem_memory(p);
	json_array_foreach ((json_t *)(uintptr_t)v, i, one) {
		const char *word = json_string_value(one);
		while (word && (*word == ' ' || (*word >= '\t' && *word <= '\r')))
			word++;
		if (!word || !*word)
			return problem(p, 400, "bad_words",
			               "Invalid 'bad_words[%zu]': expected a string with a "
			               "character that is no space.",
			               i);
		int32_t before = g->ep.n_bad_words;
		if (!bad_word(g, word, false, p) ||
		    (g->ep.n_bad_words > before && !bad_word(g, word, true, p)))
			return false;
	}
	return true;
}

static bool
read_cut(Generation *g, const json_t *o, Problem *p)
{
	OpenAi *own = openai_own(g);
	const json_t *side = json_object_get(o, "truncation_side");
	const char *word = json_string_value(side);
	int64_t keep = NO_CUT;

	if (!field_int(o, "truncate_prompt_tokens", -1, INT32_MAX, &keep, NULL, p))
		return false;
	if (keep == 0)
		return problem(
		    p, 400, "truncate_prompt_tokens",
		    "Invalid 'truncate_prompt_tokens': expected -1 or a number of tokens "
		    "greater than 0.");
	if (side && !json_is_null(side) &&
	    (!word || (strcmp(word, "left") != 0 && strcmp(word, "right") != 0)))
		return problem(p, 400, "truncation_side",
		               "Invalid 'truncation_side': expected 'left' or 'right'.");
	own->keep = (int32_t)keep;
	own->keep_first = word && !strcmp(word, "right");
	return true;
}

size_t
openai_most(const Generation *g)
{
	return openai_own(g)->keep == NO_CUT ? (size_t)g->model->max_input : SIZE_MAX;
}

bool
openai_cut(const Generation *g, SubRequest *sub)
{
	const OpenAi *own = openai_own(g);
	int32_t room = g->model->max_total - (g->max_new > 0 && !g->clip_new ? g->max_new : 1),
	        most = room < g->model->max_input ? room : g->model->max_input;
	size_t keep = own->keep > 0 ? (size_t)own->keep : most > 0 ? (size_t)most : 1;

	if (own->keep == NO_CUT || sub->n_tok <= keep)
		return false;
	if (!own->keep_first)
		memmove(sub->tok, sub->tok + sub->n_tok - keep, keep * sizeof *sub->tok);
	sub->n_tok = keep;
	return true;
}

/* Is a field true or a number? The number 0 counts: completions allow logprobs 0. */
static bool
is_on(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_true(v) || json_is_number(v);
}

/* Does a field request alternatives? False with a Problem for vLLM's -1, which means the whole
 * vocabulary. */
static bool
has_top(const json_t *o, const char *key, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	return !json_is_integer(v) || json_integer_value(v) != -1 ||
	       problem(p, 400, key,
	               "Invalid '%s': -1 requests the whole vocabulary; at most %d tokens per "
	               "position are possible.",
	               key, LLMC_MAX_TOP);
}

bool
openai_read_extensions(Generation *g, const json_t *o, Problem *p)
{
	OpenAi *own = openai_own(g);
	const json_t *so = json_object_get(o, "stream_options");
	int64_t top = -1;

	if (!read_bad_words(g, o, p) || !read_cut(g, o, p) || !has_top(o, "prompt_logprobs", p) ||
	    !has_top(o, "logprobs", p) || !has_top(o, "top_logprobs", p))
		return false;

	if (!field_bool(o, "return_token_ids", &own->token_ids, p) ||
	    !field_bool(o, "return_tokens_as_token_ids", &own->tokens_as_ids, p) ||
	    !field_bool(o, "timings_per_token", &own->timings_per_token, p) ||
	    !field_bool(o, "verbose", &own->verbose, p) ||
	    !field_bool(so, "continuous_usage_stats", &own->usage_per_frame, p) ||
	    !field_int(o, "prompt_logprobs", 0, LLMC_MAX_TOP, &top, NULL, p))
		return false;
	if (!openai_ids(g, o, "logprob_token_ids", LLMC_MAX_TOP, true, &g->report,
	                &g->er.n_pool_tok, p))
		return false;
	if (g->report && !is_on(o, "logprobs") && !is_on(o, "n_probs"))
		return problem(p, 400, "logprob_token_ids",
		               "'logprob_token_ids' is only allowed when 'logprobs' is enabled.");
	if (top >= 0 && g->stream)
		return problem(p, 400, "prompt_logprobs",
		               "'prompt_logprobs' cannot be used with 'stream'.");
	own->usage_per_frame &= own->include_usage;
	own->prompt_top = (int32_t)top;
	return true;
}

/* Request as many alternatives as the prompt and the answer need together. Call it after g->n_top
 * of the answer is set. */
void
openai_set_top(Generation *g)
{
	OpenAi *own = openai_own(g);

	own->n_top = g->er.n_top;
	if (g->report) {
		g->er.pool_tok = g->report;
		own->n_top = g->er.n_pool_tok;
	}
	if (own->prompt_top < 0)
		return;
	g->er.prompt_logprobs = true;
	if (g->er.n_top < own->prompt_top)
		g->er.n_top = own->prompt_top;
}

/* ---- log probabilities of the prompt ---- */

void
openai_logprob(Strbuf *b, float x)
{
	/* JSON has no infinity, so the API uses -9999 for impossible tokens */
	json_num(b, isinf(x) ? -9999.0 : (double)x, 9);
}

static void
prompt_entry(const Generation *g, Strbuf *b, int32_t id, float logprob, int32_t rank)
{
	Strbuf raw = { 0 };

	strbuf_printf(b, "\"%d\":{\"logprob\":", id);
	openai_logprob(b, logprob);
	strbuf_printf(b, ",\"rank\":%d,\"decoded_token\":", rank);
	token_bytes(g->model->back.tok, id, &raw);
	json_str(b, strbuf_str(&raw), raw.len);
	strbuf_putc(b, '}');
	strbuf_release(&raw);
}

/* Append a prompt token in vLLM's form: null for the first token; for others an object by token id,
 * with the token itself and the most likely ones. */
void
openai_prompt_token(const Generation *g, SubRequest *sub, const llmc_event *ev)
{
	int32_t most = openai_own(g)->prompt_top;
	Strbuf *b = &sub->prompt_logprobs;

	if (most < 0)
		return;
	strbuf_puts(b, b->len ? "," : "");
	if (isnan(ev->logprob)) {
		strbuf_puts(b, "null");
		return;
	}
	strbuf_putc(b, '{');
	prompt_entry(g, b, ev->token, ev->logprob, ev->rank);
	for (int32_t i = 0; i < ev->n_top && i < most; i++)
		if (ev->top[i].id != ev->token) {
			strbuf_putc(b, ',');
			prompt_entry(g, b, ev->top[i].id, ev->top[i].logprob, i + 1);
		}
	strbuf_putc(b, '}');
}

/* ---- answers ---- */

void
openai_put_token(const Generation *g, Strbuf *b, int32_t id, const Strbuf *bytes)
{
	if (openai_own(g)->tokens_as_ids)
		strbuf_printf(b, "\"token_id:%d\"", id);
	else
		json_str(b, strbuf_str(bytes), bytes->len);
}

void
openai_new_token(const Generation *g, Choice *c, const llmc_event *ev)
{
	if (openai_own(g)->token_ids && !g->hide_new)
		strbuf_printf(&c->ids, c->ids.len ? ",%d" : "%d", ev->token);
}

static void
prompt_ids(const SubRequest *sub, Strbuf *b)
{
	strbuf_puts(b, ",\"prompt_token_ids\":[");
	for (size_t i = 0; i < sub->n_tok; i++)
		strbuf_printf(b, i ? ",%d" : "%d", sub->tok[i]);
	strbuf_putc(b, ']');
}

static const SubRequest *
sub_of(const Generation *g, const Choice *c)
{
	return &g->sub[(c - g->choice) / g->n];
}

void
openai_choice_ids(const Generation *g, Choice *c, Strbuf *b)
{
	const OpenAi *own = openai_own(g);
	const SubRequest *sub = sub_of(g, c);

	if (own->token_ids) {
		strbuf_puts(b, ",\"token_ids\":[");
		strbuf_add(b, strbuf_str(&c->ids), c->ids.len);
		strbuf_putc(b, ']');
		b->failed |= c->ids.failed;
		strbuf_clear(&c->ids);
		if (!own->is_chat && !c->ids_begun)
			prompt_ids(sub, b);
	}
	if (!own->is_chat && own->prompt_top >= 0)
		openai_prompt_logprobs(g, sub, b);
}

void
openai_prompt_logprobs(const Generation *g, const SubRequest *sub, Strbuf *b)
{
	if (openai_own(g)->prompt_top < 0)
		return;
	strbuf_puts(b, ",\"prompt_logprobs\":[");
	strbuf_add(b, strbuf_str(&sub->prompt_logprobs), sub->prompt_logprobs.len);
	strbuf_putc(b, ']');
	b->failed |= sub->prompt_logprobs.failed;
}

void
openai_chat_prompt(const Generation *g, Strbuf *b)
{
	if (openai_own(g)->token_ids)
		prompt_ids(&g->sub[0], b);
	openai_prompt_logprobs(g, &g->sub[0], b);
}

/* Append llama.cpp's timings, of seconds. The first new token comes with the prompt, so rates are
 * over the tokens after it. */
static void
put_timings(Strbuf *b, int32_t n_cached, int32_t n_prompt, int32_t n_new, double prefill,
            double decode)
{
	const int32_t steps = n_new > 1 ? n_new - 1 : 0;
	const struct {
		const char *name;
		double value;
	} part[] = {
		{ ",\"prompt_ms\":", 1e3 * prefill },
		{ ",\"prompt_per_token_ms\":", n_prompt > 0 ? 1e3 * prefill / n_prompt : 0 },
		{ ",\"prompt_per_second\":", prefill > 0 ? n_prompt / prefill : 0 },
		{ ",\"predicted_ms\":", 1e3 * decode },
		{ ",\"predicted_per_token_ms\":", steps ? 1e3 * decode / steps : 0 },
		{ ",\"predicted_per_second\":", steps && decode > 0 ? steps / decode : 0 },
	};

	strbuf_printf(b, ",\"timings\":{\"cache_n\":%d,\"prompt_n\":%d,\"predicted_n\":%d",
	              n_cached, n_prompt, n_new);
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		strbuf_puts(b, part[i].name);
		json_num(b, part[i].value, 12);
	}
	strbuf_putc(b, '}');
}

/* last: the choice has ended, so the engine's own times are known. */
void
openai_timings(const Generation *g, bool last, Strbuf *b)
{
	int32_t n_prompt, n_new, n_cached;
	double now = clock_now(), prefill = g->prefill_s, decode = g->decode_s;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	if (!last) {
		prefill = (g->t_first > 0 ? g->t_first : now) - g->t_valid;
		decode = g->t_first > 0 ? now - g->t_first : 0;
	}
	put_timings(b, n_cached, n_prompt - n_cached, n_new, prefill, decode);
}

void
openai_choice_timings(const Generation *g, const SubRequest *sub, const Choice *c, Strbuf *b)
{
	put_timings(b, sub->n_cached, (int32_t)sub->n_tok - sub->n_cached,
	            g->hide_new ? 0 : c->n_new, c->prefill_s, c->decode_s);
}

/* The vocabulary of a model may be larger than that of its tokenizer: such ids have no text. */
void
openai_put_prompt(const Generation *g, const SubRequest *sub, Strbuf *b)
{
	const llmc_tokenizer *tok = g->model->back.tok;
	int32_t *ids = malloc((sub->n_tok + 1) * sizeof *ids);
	Problem p = { 0 };
	char *text = NULL;
	size_t n_ids = 0, n = 0;

	for (size_t i = 0; ids && tok && i < sub->n_tok; i++)
		if (sub->tok[i] < llmc_tokenizer_size(tok))
			ids[n_ids++] = sub->tok[i];
	if (!ids || (tok && !detokenize_prompt(g->model, ids, n_ids, &text, &n, &p)))
		b->failed = true;
	json_str(b, text ? text : "", n);
	free(text);
	free(ids);
}

void
openai_verbose(const Generation *g, const SubRequest *sub, Strbuf *b)
{
	if (!openai_own(g)->verbose)
		return;
	strbuf_puts(b, ",\"__verbose\":{\"prompt\":");
	openai_put_prompt(g, sub, b);
	strbuf_printf(b, ",\"tokens_evaluated\":%d}", (int)sub->n_tok);
}

/* Append what a frame has after its choice. */
void
openai_frame_extensions(const Generation *g, Choice *c, bool last, Strbuf *b)
{
	const OpenAi *own = openai_own(g);
	const SubRequest *sub = sub_of(g, c);
	int32_t n_prompt = (int32_t)sub->n_tok, n_new = g->hide_new ? 0 : c->n_new;

	if (own->is_chat && own->token_ids && !c->ids_begun)
		prompt_ids(sub, b);
	c->ids_begun = true;
	if (own->usage_per_frame)
		strbuf_printf(b,
		              ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_"
		              "tokens\":%d}",
		              n_prompt, n_new, n_prompt + n_new);
	else if (own->include_usage)
		strbuf_puts(b, ",\"usage\":null");
	if (last || own->timings_per_token)
		openai_timings(g, last, b);
	if (last)
		openai_verbose(g, sub, b);
}
