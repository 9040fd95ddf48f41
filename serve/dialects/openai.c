/* Shared by OpenAI's chat and completions: fields with ranges and refusals, frames, usage,
 * problems of missing fields. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/sha256.h"
#include "serve/dialects/constraints.h"
#include "serve/http/api_keys.h"
#include "serve/dialects/openai.h"
#include "serve/dialects/sampling_fields.h"
#include "serve/dialects/tokenize.h"

enum { MAX_BIAS = 1024, MAX_STOP_TOKENS = 128, MAX_BREAKERS = 64, MAX_PROMPTS = 128 };

bool
openai_missing(Problem *p, const char *key)
{
	problem(p, 400, key, "Missing required parameter: '%s'.", key);
	p->code = "missing_required_parameter";
	return false;
}

bool
openai_text(const json_t *o, const char *key, const char **out, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	return v && !json_is_null(v) ? field_text(o, key, out, p) : openai_missing(p, key);
}

/* ---- requests ---- */

bool
openai_model(Req *r, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "model");

	if (!v || json_is_null(v))
		return true; /* without a name the first model, or the only one, is used */
	if (!field_text(o, "model", NULL, p))
		return false;
	Slot *t = models_find(r->srv, json_string_value(v));
	if (!t) {
		models_unknown(r->srv, json_string_value(v), p);
		return false;
	}
	r->slot = t;
	return true;
}

/* Copy a list of strings; *out stays NULL if the field is absent. single: one string is allowed. */
static bool
read_strings(const json_t *o, const char *key, bool single, size_t most, char ***out, Problem *p)
{
	const json_t *v = json_object_get(o, key);
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!v || json_is_null(v) || (single && json_is_array(v) && n == 0))
		return true;
	if (!json_is_array(v) && !(single && json_is_string(v)))
		return problem(p, 400, key,
		               "Invalid type for '%s': expected %san array of strings, but got %s "
		               "instead.",
		               key, single ? "a string or " : "", json_type_name(v));
	if (n > most)
		return problem(p, 400, key,
		               "Invalid '%s': array too long. Expected an array with maximum "
		               "length %zu, but got an array with length %zu instead.",
		               key, most, n);
	*out = calloc(n + 1, sizeof **out);
	for (size_t i = 0; *out && i < n; i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
		if (!json_is_string(one))
			return problem(
			    p, 400, key,
			    "Invalid type for '%s[%zu]': expected a string, but got %s instead.",
			    key, i, json_type_name(one));
		if (json_string_length(one) == 0 ||
		    strlen(json_string_value(one)) != json_string_length(one))
			return problem(p, 400, key,
			               "Invalid '%s[%zu]': expected a string that is not empty "
			               "and has no NUL.",
			               key, i);
		(*out)[i] = strdup(json_string_value(one));
		if (!(*out)[i])
			return problem_memory(p);
	}
	return *out || problem_memory(p);
}

static bool
too_many_biases(Problem *p)
{
	return problem(p, 400, "logit_bias", "Invalid 'logit_bias': at most %d tokens are allowed.",
	               MAX_BIAS);
}

static bool
add_bias(Generation *g, int32_t id, const json_t *value, const char *name, Problem *p)
{
	/* llama.cpp's value false forbids the token */
	const double x = json_is_false(value) ? -INFINITY : json_number_value(value);

	if (!json_is_false(value) && !(json_is_number(value) && fabs(x) <= 100))
		return problem(p, 400, "logit_bias",
		               "Invalid value in 'logit_bias' for id %s: expected a number from "
		               "-100 to 100.",
		               name);
	if (g->ep.n_logit_bias == MAX_BIAS)
		return too_many_biases(p);
	g->bias[g->ep.n_logit_bias++] = (llmc_bias){ id, (float)x };
	return true;
}

/* Add a pair of llama.cpp's list: a value and an id, or a string, whose tokens all get the
 * value. */
static bool
add_bias_pair(Generation *g, const json_t *pair, size_t at, Problem *p)
{
	const json_t *key = json_array_get(pair, 0), *value = json_array_get(pair, 1);
	const int32_t vocab = g->model->back.info.vocab;
	int32_t *ids = NULL;
	size_t n = 0;
	char name[32];

	snprintf(name, sizeof name, "[%zu]", at);
	if (json_is_integer(key) && json_integer_value(key) >= 0 &&
	    json_integer_value(key) < vocab && json_array_size(pair) == 2)
		return add_bias(g, (int32_t)json_integer_value(key), value, name, p);
	if (!json_is_string(key) || json_array_size(pair) != 2)
		return problem(p, 400, "logit_bias",
		               "Invalid 'logit_bias[%zu]': expected a pair of a token id from 0 to "
		               "%d, or a string, and a number.",
		               at, vocab - 1);
	bool ok = tokenize_prompt(g->model, json_string_value(key), json_string_length(key), 0,
	                          MAX_BIAS, &ids, &n, p);
	if (ok && n > MAX_BIAS) /* n may be 0 */
		ok = too_many_biases(p);
	for (size_t i = 0; ok && i < n; i++)
		ok = add_bias(g, ids[i], value, name, p);
	free(ids);
	return ok;
}

static bool
read_bias(Generation *g, const json_t *o, Problem *p)
{
	json_t *v = json_object_get(o, "logit_bias"), *one;
	const char *key;

	if (!v || json_is_null(v))
		return true;
	if (!json_is_object(v) && !json_is_array(v))
		return problem(
		    p, 400, "logit_bias",
		    "Invalid type for 'logit_bias': expected an object, but got %s instead.",
		    json_type_name(v));
	g->bias = calloc(MAX_BIAS, sizeof *g->bias);
	if (!g->bias)
		return problem_memory(p);
	for (size_t i = 0; i < json_array_size(v); i++)
		if (!add_bias_pair(g, json_array_get(v, i), i, p))
			return false;
	json_object_foreach (v, key, one) {
		char *end;
		long id = strtol(key, &end, 10);
		if (end == key || *end || id < 0 || id >= g->model->back.info.vocab)
			return problem(p, 400, "logit_bias",
			               "Invalid key in 'logit_bias': '%.40s'. Expected a token id "
			               "from 0 to %d.",
			               key, g->model->back.info.vocab - 1);
		if (!add_bias(g, (int32_t)id, one, key, p))
			return false;
	}
	return true;
}

/* Hash vLLM's cache_salt into the prefix cache key. A client without the salt cannot find the pages
 * of the prompt, so response times do not depend on it. */
static bool
read_salt(Generation *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "cache_salt");
	Sha256 sum;
	char hex[65];

	if (!v || json_is_null(v))
		return true;
	if (!json_is_string(v) || !json_string_length(v))
		return problem(p, 400, "cache_salt",
		               "Invalid 'cache_salt': expected a string that is not empty.");
	sha256_init(&sum);
	sha256_add(&sum, json_string_value(v), json_string_length(v));
	sha256_hex(&sum, hex);
	hex[16] = 0;
	g->er.prefix_salt = strtoull(hex, NULL, 16) | 1;
	return true;
}

/* Read llama.cpp's order of samplers: a list of names, or a string of letters. */
static bool
read_samplers(Generation *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "samplers");
	Strbuf order = { 0 };
	llmc_error err = { 0 };
	llmc_params own = LLMC_INIT(llmc_params);
	char letters[LLMC_MAX_SAMPLERS + 1];

	if (!v || json_is_null(v))
		return true;
	if (!json_is_string(v) && !json_is_array(v))
		return problem(p, 400, "samplers",
		               "Invalid type for 'samplers': expected an array of names or a "
		               "string of letters, but got %s instead.",
		               json_type_name(v));
	for (size_t i = 0; i < json_array_size(v); i++) {
		const json_t *one = json_array_get(v, i);
		if (!json_is_string(one)) {
			strbuf_release(&order);
			return problem(p, 400, "samplers",
			               "Invalid type for 'samplers[%zu]': expected a string, but "
			               "got %s instead.",
			               i, json_type_name(one));
		}
		strbuf_add(&order, json_string_value(one), json_string_length(one));
		strbuf_putc(&order, ';');
	}
	if (json_is_string(v))
		strbuf_add(&order, json_string_value(v), json_string_length(v));
	strbuf_puts(&order, ""); /* an empty list gives an empty string, which is a valid order */
	g->samplers = order.data;
	if (order.failed)
		return problem_memory(p);
	if (memchr(order.data, 0, order.len))
		return problem(p, 400, "samplers", "Invalid 'samplers': a name contains NUL.");
	own.samplers = g->samplers;
	if (llmc_sampler_order(&own, letters, sizeof letters, NULL, &err) != LLMC_OK)
		return problem(p, 400, "samplers", "Invalid 'samplers': %s.", err.text);
	return true;
}

/* Read the fields that all routes have. */
static bool
read_shared(Generation *g, const json_t *o, const OpenAiRoute *route, Problem *p)
{
	int64_t n = 1, seed = 0, speculate = -1, priority = 0;
	bool has_seed, skip_special = true, usage = false, keep_stop = false;
	const json_t *so = json_object_get(o, "stream_options");
	const SamplingDefaults defaults = { .advice = g->srv->opt.neutral_sampling
		                                          ? NULL
		                                          : &g->model->back.advice,
		                            .server = g->dialect->defaults };

	if (!openai_model(g->req, o, p) || !read_samplers(g, o, p) ||
	    !sampling_read(o, &defaults, g->samplers != NULL, &g->ep, p) ||
	    !field_int(o, "n", 1, LLMC_MAX_CHOICES, &n, NULL, p) ||
	    !field_int(o, "seed", INT64_MIN, INT64_MAX, &seed, &has_seed, p) ||
	    !field_int(o, "speculate", 0, LLMC_MAX_SPECULATE, &speculate, NULL, p) ||
	    !field_int(o, "priority", -PRIORITY_MOST, PRIORITY_MOST, &priority, NULL, p) ||
	    !field_bool(o, "skip_special_tokens", &skip_special, p) ||
	    !field_bool(o, "include_stop_str_in_output", &g->er.keep_stop, p) ||
	    !field_bool(o, "no_stop_trim", &keep_stop, p) ||
	    !field_bool(o, "stream", &g->stream, p) ||
	    !read_strings(o, "stop", true, route->max_stop, &g->stop, p) ||
	    !read_strings(o, "dry_sequence_breakers", false, MAX_BREAKERS, &g->breakers, p) ||
	    !openai_ids(g, o, "stop_token_ids", MAX_STOP_TOKENS, true, &g->stop_tokens,
	                &g->ep.n_stop_tokens, p) ||
	    !openai_ids(g, o, "allowed_token_ids", (size_t)g->model->back.info.vocab, false,
	                &g->allowed, &g->ep.n_allowed_tokens, p) ||
	    !read_bias(g, o, p) || !read_salt(g, o, p))
		return false;
	if (so && !json_is_null(so)) {
		if (!json_is_object(so))
			return problem(p, 400, "stream_options",
			               "Invalid type for 'stream_options': expected an object, but "
			               "got %s instead.",
			               json_type_name(so));
		if (!g->stream)
			return problem(p, 400, "stream_options",
			               "The 'stream_options' parameter is only allowed when "
			               "'stream' is enabled.");
		if (!field_bool(so, "include_usage", &usage, p))
			return false;
	}
	if (!grammar_read(g, o, p))
		return false;
	openai_own(g)->include_usage = usage;
	if (!openai_read_extensions(g, o, p))
		return false;
	g->er.keep_stop |= keep_stop;
	g->n = (int32_t)n;
	g->er.priority = (int32_t)priority;
	g->ep.speculate = speculate == 0 ? -1 : speculate < 0 ? 0 : (int32_t)speculate;
	g->ep.seed = has_seed ? (uint64_t)seed : random_u64();
	g->er.show_special = !skip_special;
	return true;
}

bool
openai_prompts_allowed(const Generation *g, size_t n, Problem *p)
{
	const int32_t limit = g->model->back.max_concurrent;
	const size_t most = limit && limit < MAX_PROMPTS ? (size_t)limit : MAX_PROMPTS;

	return n <= most ||
	       problem(p, 400, "prompt",
	               "Invalid 'prompt': %zu prompts in one request, at most %zu are allowed.", n,
	               most);
}

bool
openai_fits(const Generation *g, size_t n_tok, const char *what, Problem *p)
{
	const ServedModel *m = g->model;
	char limit[MODEL_LIMIT_TEXT];
	int64_t most = m->max_total, new_tokens = g->max_new < 0 || g->clip_new ? 1 : g->max_new;

	if (n_tok == 0)
		return problem(p, 400, what,
		               "The prompt is empty: at least one token is required.");
	if ((int64_t)n_tok + new_tokens > most || n_tok > (size_t)m->max_input) {
		if (n_tok > (size_t)m->max_input && (int64_t)n_tok + new_tokens <= most)
			most = m->max_input;
		if (g->max_new < 0)
			problem(p, 400, what,
			        "%s However, your messages resulted in %zu tokens. Please reduce "
			        "the length of the messages.",
			        model_limit_text(m, most, limit), n_tok);
		else
			problem(p, 400, what,
			        "%s However, you requested %lld tokens (%zu in the %s, %lld in the "
			        "completion). Please reduce the length of the %s or completion.",
			        model_limit_text(m, most, limit),
			        (long long)n_tok + (long long)new_tokens, n_tok, what,
			        (long long)new_tokens, what);
		p->code = "context_length_exceeded";
		return problem_length(p, n_tok,
		                      g->max_new < 0 || (int64_t)n_tok >= most ? 0 : new_tokens,
		                      (size_t)most);
	}
	return true;
}

static bool
read_route(Generation *g, const json_t *in, const void *how, Problem *p)
{
	const OpenAiRoute *route = how;
	OpenAi *own = openai_own(g);
	bool ok = fields_check(route->fields, in, p);
	json_t *named = ok ? fields_aliases(route->fields, in) : NULL;
	json_t *made = named && route->translate ? route->translate(named, p) : NULL;
	const json_t *o = route->translate ? made : named;

	if (ok && !named)
		ok = problem_memory(p);

	own->object = route->object;
	own->chunk = route->chunk;
	own->created = time(NULL);
	snprintf(own->id, sizeof own->id, "%s%016llx%08x", route->id_prefix,
	         (unsigned long long)random_u64(), (unsigned)random_u64());
	ok = ok && o && read_shared(g, o, route, p) && route->read(g, o, p);
	if (o && !ok && made)
		fields_rename(route->fields, p);
	json_decref(made);
	json_decref(named);
	return ok;
}

void
openai_handle(Req *r, const Dialect *d, const OpenAiRoute *route)
{
	gen_handle(r, d, read_route, route);
}

bool
openai_count(Req *r, int fields, json_t *(*translate)(const json_t *in, Problem *p), int64_t *count)
{
	Problem p = { 0 };
	json_t *in = body_object(&r->body, &p),
	       *o = in && fields_check(fields, in, &p) ? translate(in, &p) : NULL;
	char *prompt = NULL;
	int32_t *tok = NULL;
	size_t n = 0, n_tok = 0;
	bool ok =
	    o && chat_prompt(r, o, &prompt, &n, &p) &&
	    tokenize_prompt(r->model, prompt, n, chat_flags(r->model), SIZE_MAX, &tok, &n_tok, &p);

	if (o && !ok)
		fields_rename(fields, &p);
	free(prompt);
	free(tok);
	json_decref(o);
	json_decref(in);
	*count = (int64_t)n_tok;
	if (!ok)
		req_problem(r, &p);
	return ok;
}

void
openai_input_tokens(Req *r, int fields, json_t *(*translate)(const json_t *in, Problem *p))
{
	Strbuf b = { 0 };
	int64_t n;

	if (!openai_count(r, fields, translate, &n))
		return;
	json_printf(&b, "{\"object\":\"response.input_tokens\",\"input_tokens\":%lld}",
	            (long long)n);
	req_answer(r, 200, type_json, &b);
}

/* ---- answers ---- */

void
openai_open(const Generation *g, Strbuf *b, bool chunk)
{
	const OpenAi *own = openai_own(g);

	json_printf(b,
	            "{\"id\":%s,\"object\":%s,\"created\":%lld,\"model\":%s,\"system_fingerprint\":"
	            "\"llmc-" LLMC_VERSION "\",\"choices\":[",
	            own->id, chunk ? own->chunk : own->object, (long long)own->created,
	            g->model->name);
}

void
openai_frame_open(const Generation *g, const Choice *c, Strbuf *b)
{
	strbuf_puts(b, "data: ");
	openai_open(g, b, true);
	strbuf_printf(b, "{\"index\":%d,", (int)(c - g->choice));
}

void
openai_frame_close(const Generation *g, Choice *c, Strbuf *b, const char *finish)
{
	json_printf(b, ",\"finish_reason\":%s", finish);
	openai_choice_ids(g, c, b);
	strbuf_puts(b, "}]");
	openai_frame_extensions(g, c, finish != NULL, b);
	strbuf_puts(b, "}\n\n");
	if (!b->failed)
		req_push(g->req, b->data, b->len);
	strbuf_release(b);
}

void
openai_image_tokens(const Generation *g, Strbuf *b)
{
	if (g->images.n_token)
		json_printf(b, ",\"image_tokens\":%lld", (long long)g->images.n_token);
}

void
openai_usage(const Generation *g, Strbuf *b)
{
	int32_t n_prompt, n_new, n_cached, n_reasoning = 0;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	for (int32_t i = 0; i < g->n_sub * g->n; i++)
		n_reasoning += g->choice[i].n_reasoning;
	json_printf(b,
	            "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
	            "\"prompt_tokens_details\":{\"cached_tokens\":%d",
	            n_prompt, n_new, n_prompt + n_new, n_cached);
	openai_image_tokens(g, b);
	json_printf(b, "},\"completion_tokens_details\":{\"reasoning_tokens\":%d}}", n_reasoning);
}

void
openai_stream_end(Generation *g)
{
	Strbuf b = { 0 };

	if (openai_own(g)->include_usage) {
		strbuf_puts(&b, "data: ");
		openai_open(g, &b, true);
		strbuf_puts(&b, "],");
		openai_usage(g, &b);
		strbuf_puts(&b, "}\n\n");
	}
	strbuf_puts(&b, "data: [DONE]\n\n");
	req_push(g->req, strbuf_str(&b), b.len);
	strbuf_release(&b);
}

const char *
openai_finish(const Choice *c)
{
	return c->finish == LLMC_FINISH_LENGTH ? "length" : c->n_calls ? "tool_calls" : "stop";
}

void
openai_token_bytes(Strbuf *b, const Strbuf *raw)
{
	strbuf_puts(b, ",\"bytes\":[");
	for (size_t i = 0; i < raw->len; i++)
		strbuf_printf(b, "%s%d", i ? "," : "", (unsigned char)raw->data[i]);
	strbuf_putc(b, ']');
}

static void
place_token(const Generation *g, Strbuf *b, int32_t id, float lp)
{
	Strbuf raw = { 0 };

	token_bytes(g->model->back.tok, id, &raw);
	strbuf_puts(b, "\"token\":");
	openai_put_token(g, b, id, &raw);
	strbuf_puts(b, ",\"logprob\":");
	openai_logprob(b, lp);
	openai_token_bytes(b, &raw);
	strbuf_release(&raw);
}

/* Byte range of a token in the output, and the length of its log probabilities as JSON. They wait
 * here because the reader may hold the text back. Choice.col[0] has the log probabilities, col[1]
 * the TextPositions. */
typedef struct TextPosition {
	size_t from, to, n_json;
} TextPosition;

void
openai_place(const Generation *g, Choice *c, const llmc_event *ev)
{
	Strbuf *b = &c->col[0];
	TextPosition at = { c->n_bytes, c->n_bytes + ev->n_bytes, b->len };

	c->n_bytes = at.to;
	if (!g->er.logprobs)
		return;
	strbuf_putc(b, '{');
	place_token(g, b, ev->token, ev->logprob);
	strbuf_puts(b, ",\"top_logprobs\":[");
	for (int32_t i = 0; i < ev->n_top && i < openai_own(g)->n_top; i++) {
		strbuf_puts(b, i ? ",{" : "{");
		place_token(g, b, ev->top[i].id, ev->top[i].logprob);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
	at.n_json = b->len - at.n_json;
	strbuf_add(&c->col[1], &at, sizeof at);
}

/* Append the log probabilities of the next n bytes of text. Tokens before that range are dropped:
 * they are marks, reasoning or calls. A token without text belongs to the text after it. */
void
openai_places_of(Choice *c, size_t n, Strbuf *out)
{
	size_t from = c->calls ? llmc_calls_at(c->calls) : 0, to = c->calls ? from + n : SIZE_MAX,
	       k = 0, n_json = 0;
	TextPosition at;

	for (; (k + 1) * sizeof at <= c->col[1].len; k++, n_json += at.n_json) {
		memcpy(&at, c->col[1].data + k * sizeof at, sizeof at);
		if (at.from >= to)
			break;
		if (c->calls && at.to <= from && !(at.from == at.to && at.to == from))
			continue;
		strbuf_puts(out, out->len ? "," : "");
		strbuf_add(out, c->col[0].data + n_json, at.n_json);
	}
	if (k) {
		strbuf_drop(&c->col[0], n_json);
		strbuf_drop(&c->col[1], k * sizeof at);
	}
}
