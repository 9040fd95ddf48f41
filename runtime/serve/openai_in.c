/* OpenAI's requests: fields, ranges and refusals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/serve/serve.h"

enum { MAX_STOP = 4, MAX_N = 128, MAX_BIAS = 1024, MAX_STOP_TOKENS = 128, MAX_PROMPTS = 128 };

static bool
missing(Problem *p, const char *key)
{
	problem(p, 400, key, "Missing required parameter: '%s'.", key);
	p->code = "missing_required_parameter";
	return false;
}

static bool
check_model(Server *s, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "model");

	if (!v || json_is_null(v))
		return missing(p, "model");
	if (!json_is_string(v))
		return problem(p, 400, "model", "Invalid type for 'model': expected a string, but got %s instead.", json_type_name(v));
	const char *name = json_string_value(v);
	/* Hugging Face's client names the model so when it was given only an address */
	if (strcmp(name, s->model_name) != 0 && strcmp(name, "tgi") != 0 && strcmp(name, "dummy") != 0) {
		problem(p, 404, "model", "The model '%.200s' does not exist; this server has '%s'.", name, s->model_name);
		p->code = "model_not_found";
		return false;
	}
	return true;
}

static bool
read_stop(Gen *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "stop");
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!v || json_is_null(v) || (json_is_array(v) && n == 0))
		return true;
	if (!json_is_array(v) && !json_is_string(v))
		return problem(p, 400, "stop", "Invalid type for 'stop': expected a string or an array of strings, but got %s instead.", json_type_name(v));
	if (n > MAX_STOP)
		return problem(p, 400, "stop", "Invalid 'stop': array too long. Expected an array with maximum length %d, but got an array with length %zu instead.", MAX_STOP, n);
	g->stop = calloc(n + 1, sizeof *g->stop);
	for (size_t i = 0; g->stop && i < n; i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
		if (!json_is_string(one))
			return problem(p, 400, "stop", "Invalid type for 'stop[%zu]': expected a string, but got %s instead.", i, json_type_name(one));
		if (json_string_length(one) == 0 || strlen(json_string_value(one)) != json_string_length(one))
			return problem(p, 400, "stop", "Invalid 'stop[%zu]': expected text that is not empty and has no NUL in it.", i);
		g->stop[i] = strdup(json_string_value(one));
		if (!g->stop[i])
			return problem(p, 500, NULL, "out of memory");
	}
	return g->stop || problem(p, 500, NULL, "out of memory");
}

static bool
read_stop_tokens(Gen *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "stop_token_ids");
	size_t n = json_array_size(v);

	if (!v || json_is_null(v) || (json_is_array(v) && n == 0))
		return true;
	if (!json_is_array(v))
		return problem(p, 400, "stop_token_ids", "Invalid type for 'stop_token_ids': expected an array of integers, but got %s instead.", json_type_name(v));
	if (n > MAX_STOP_TOKENS)
		return problem(p, 400, "stop_token_ids", "Invalid 'stop_token_ids': at most %d are taken, got %zu.", MAX_STOP_TOKENS, n);
	g->stop_tokens = calloc(n, sizeof *g->stop_tokens);
	if (!g->stop_tokens)
		return problem(p, 500, NULL, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_array_get(v, i);
		if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) >= g->srv->back.info.vocab)
			return problem(p, 400, "stop_token_ids", "Invalid 'stop_token_ids[%zu]': expected an id from 0 to %d.", i, g->srv->back.info.vocab - 1);
		g->stop_tokens[i] = (int32_t)json_integer_value(one);
	}
	g->ep.n_stop_tokens = (int32_t)n;
	return true;
}

static bool
read_bias(Gen *g, const json_t *o, Problem *p)
{
	json_t *v = json_object_get(o, "logit_bias"), *one;
	const char *key;
	size_t n = json_object_size(v);

	if (!v || json_is_null(v) || (json_is_object(v) && n == 0))
		return true;
	if (!json_is_object(v))
		return problem(p, 400, "logit_bias", "Invalid type for 'logit_bias': expected an object, but got %s instead.", json_type_name(v));
	if (n > MAX_BIAS)
		return problem(p, 400, "logit_bias", "Invalid 'logit_bias': at most %d entries are taken, got %zu.", MAX_BIAS, n);
	g->bias = calloc(n, sizeof *g->bias);
	if (!g->bias)
		return problem(p, 500, NULL, "out of memory");
	n = 0;
	json_object_foreach(v, key, one) {
		char *end;
		long id = strtol(key, &end, 10);
		if (end == key || *end || id < 0 || id >= g->srv->back.info.vocab)
			return problem(p, 400, "logit_bias", "Invalid key in 'logit_bias': '%.40s'. Expected a token id from 0 to %d.", key, g->srv->back.info.vocab - 1);
		if (!json_is_number(one) || !(fabs(json_number_value(one)) <= 100))
			return problem(p, 400, "logit_bias", "Invalid value in 'logit_bias' for id %ld: expected a number from -100 to 100.", id);
		g->bias[n++] = (llmc_bias){ (int32_t)id, (float)json_number_value(one) };
	}
	g->ep.n_logit_bias = (int32_t)n;
	return true;
}

/* What both routes share. */
static bool
read_common(Gen *g, const json_t *o, Problem *p)
{
	double temperature = 1, top_p = 1, min_p = 0, presence = 0, frequency = 0, repetition = 1;
	int64_t n = 1, top_k = 0, min_tokens = 0, seed = 0;
	bool has_seed, ignore_eos = false, skip_special = true, usage = false;
	const json_t *so = json_object_get(o, "stream_options"), *v;

	if (!field_num(o, "temperature", 0, 2, &temperature, NULL, p) || !field_num(o, "top_p", 0, 1, &top_p, NULL, p) ||
	    !field_num(o, "min_p", 0, 1, &min_p, NULL, p) || !field_num(o, "presence_penalty", -2, 2, &presence, NULL, p) ||
	    !field_num(o, "frequency_penalty", -2, 2, &frequency, NULL, p) ||
	    !field_num(o, "repetition_penalty", 0, 100, &repetition, NULL, p) || !field_int(o, "n", 1, MAX_N, &n, NULL, p) ||
	    !field_int(o, "top_k", -1, INT32_MAX, &top_k, NULL, p) || !field_int(o, "min_tokens", 0, INT32_MAX, &min_tokens, NULL, p) ||
	    !field_int(o, "seed", INT64_MIN, INT64_MAX, &seed, &has_seed, p) || !field_bool(o, "ignore_eos", &ignore_eos, p) ||
	    !field_bool(o, "skip_special_tokens", &skip_special, p) || !field_bool(o, "stream", &g->stream, p) ||
	    !read_stop(g, o, p) || !read_stop_tokens(g, o, p) || !read_bias(g, o, p))
		return false;
	if (!(repetition > 0))
		return problem(p, 400, "repetition_penalty", "Invalid 'repetition_penalty': it must be greater than 0.");
	if (so && !json_is_null(so)) {
		if (!json_is_object(so))
			return problem(p, 400, "stream_options", "Invalid type for 'stream_options': expected an object, but got %s instead.", json_type_name(so));
		if (!g->stream)
			return problem(p, 400, "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
		if (!field_bool(so, "include_usage", &usage, p))
			return false;
	}
	v = json_object_get(o, "response_format");
	if (v && !json_is_null(v)) {
		const char *kind = json_string_value(json_object_get(v, "type"));
		if (!kind)
			return problem(p, 400, "response_format", "Invalid 'response_format': expected an object with a 'type'.");
		if (strcmp(kind, "text") != 0)
			return problem(p, 400, "response_format", "response_format of type '%.60s' is not supported by this server; only 'text' is.", kind);
	}
	g->include_usage = usage;
	g->n = (int32_t)n;
	g->ep.temperature = (float)temperature;
	g->ep.top_p = (float)top_p; /* 0 would mean off: the likeliest token alone is what it asks for */
	if (top_p == 0)
		g->ep.top_k = 1, g->ep.top_p = 1;
	else
		g->ep.top_k = top_k > 0 ? (int32_t)top_k : 0;
	g->ep.min_p = (float)min_p;
	g->ep.presence_penalty = (float)presence;
	g->ep.frequency_penalty = (float)frequency;
	g->ep.repetition_penalty = (float)repetition;
	g->ep.min_tokens = (int32_t)min_tokens;
	g->ep.ignore_eos = ignore_eos;
	g->ep.seed = has_seed ? (uint64_t)seed : random_seed();
	g->er.show_special = !skip_special;
	return true;
}

/* Prompt and new tokens against the limits; max_new -1: what is left. */
static bool
check_length(Gen *g, size_t n_tok, bool chat, Problem *p)
{
	Server *s = g->srv;
	int64_t most = s->max_total, new_tokens = g->max_new < 0 ? 1 : g->max_new;

	if (n_tok == 0)
		return problem(p, 400, chat ? "messages" : "prompt", "The prompt is empty: at least one token is needed.");
	if ((int64_t)n_tok + new_tokens > most || n_tok > (size_t)s->max_input) {
		if (n_tok > (size_t)s->max_input && (int64_t)n_tok + new_tokens <= most)
			most = s->max_input;
		if (g->max_new < 0)
			problem(p, 400, chat ? "messages" : "prompt", "This model's maximum context length is %lld tokens. However, your messages resulted in %zu tokens. Please reduce the length of the messages.",
			        (long long)most, n_tok);
		else
			problem(p, 400, chat ? "messages" : "prompt", "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%zu in the %s, %lld in the completion). Please reduce the length of the %s or completion.",
			        (long long)most, (long long)n_tok + (long long)new_tokens, n_tok, chat ? "messages" : "prompt", (long long)new_tokens,
			        chat ? "messages" : "prompt");
		p->code = "context_length_exceeded";
		return false;
	}
	return true;
}

static bool
ids_of(Gen *g, const json_t *list, Sub *sub, Problem *p)
{
	size_t n = json_array_size(list);

	sub->tok = malloc((n + 1) * sizeof *sub->tok);
	if (!sub->tok)
		return problem(p, 500, NULL, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= g->srv->back.info.vocab)
			return problem(p, 400, "prompt", "Invalid 'prompt': element %zu is no token id; expected integers from 0 to %d.", i, g->srv->back.info.vocab - 1);
		sub->tok[sub->n_tok++] = (int32_t)json_integer_value(v);
	}
	return true;
}

/* Text of ids, for echo. */
static bool
echo_ids(Gen *g, Sub *sub, Problem *p)
{
	const llmc_tokenizer *t = g->srv->back.tok;
	size_t cap = 8 * sub->n_tok + 64, need = 0;
	llmc_error err;

	for (int i = 0; t && i < 2; i++) {
		sub->echo = malloc(cap);
		if (!sub->echo)
			return problem(p, 500, NULL, "out of memory");
		llmc_status status = llmc_detokenize(t, sub->tok, sub->n_tok, false, sub->echo, cap, &need, &err);
		if (status == LLMC_OK) {
			sub->n_echo = need;
			return true;
		}
		free(sub->echo);
		sub->echo = NULL;
		if (status != LLMC_E_RANGE)
			return problem(p, 400, "prompt", "The prompt cannot be echoed: %s", err.text);
		cap = need + 1;
	}
	return true;
}

static bool
read_prompt(Gen *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "prompt"), *first = json_array_get(v, 0);
	bool ids = json_is_integer(first), special = true;
	size_t n = json_is_array(v) && !ids ? json_array_size(v) : 1;

	if (!v || json_is_null(v))
		return missing(p, "prompt");
	if (json_is_array(v) && json_array_size(v) == 0)
		return problem(p, 400, "prompt", "Invalid 'prompt': the array is empty.");
	if (!json_is_string(v) && !ids && !json_is_string(first) && !json_is_array(first))
		return problem(p, 400, "prompt", "Invalid type for 'prompt': expected a string, an array of strings, an array of token ids or an array of such arrays, but got %s%s instead.",
		               json_is_array(v) ? "an array of " : "", json_type_name(json_is_array(v) ? first : v));
	if (n > MAX_PROMPTS || (g->srv->back.max_concurrent && n > (size_t)g->srv->back.max_concurrent))
		return problem(p, 400, "prompt", "Invalid 'prompt': %zu prompts in one request, at most %d are taken.", n,
		               g->srv->back.max_concurrent && g->srv->back.max_concurrent < MAX_PROMPTS ? g->srv->back.max_concurrent : MAX_PROMPTS);
	if (!field_bool(o, "add_special_tokens", &special, p) || !gen_prompts(g, (int32_t)n, p))
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(v) && !ids ? json_array_get(v, i) : v;
		Sub *sub = &g->sub[i];
		if (json_is_string(one)) {
			if (!tokenize_prompt(g->srv, json_string_value(one), json_string_length(one), LLMC_PARSE_SPECIAL | (special ? LLMC_ADD_SPECIAL : 0),
			                     &sub->tok, &sub->n_tok, p))
				return false;
			if (g->echo) {
				sub->n_echo = json_string_length(one);
				sub->echo = malloc(sub->n_echo + 1);
				if (!sub->echo)
					return problem(p, 500, NULL, "out of memory");
				memcpy(sub->echo, json_string_value(one), sub->n_echo + 1);
			}
		} else if (json_is_array(one)) {
			if (!ids_of(g, one, sub, p) || (g->echo && sub->n_tok && !echo_ids(g, sub, p)))
				return false;
		} else {
			return problem(p, 400, "prompt", "Invalid type for 'prompt[%zu]': expected %s, but got %s instead.", i,
			               json_is_string(first) ? "a string" : "an array of token ids", json_type_name(one));
		}
		if (!check_length(g, sub->n_tok, false, p))
			return false;
	}
	return true;
}

static bool
read_completion(Gen *g, const json_t *o, Problem *p)
{
	int64_t max_tokens = 16, best_of = 1, logprobs = 0;
	bool has_best, has_logprobs;
	const json_t *suffix = json_object_get(o, "suffix");

	if (!check_model(g->srv, o, p) || !read_common(g, o, p) || !field_int(o, "max_tokens", 0, INT32_MAX, &max_tokens, NULL, p) ||
	    !field_int(o, "best_of", 0, 20, &best_of, &has_best, p) || !field_int(o, "logprobs", 0, 5, &logprobs, &has_logprobs, p) ||
	    !field_bool(o, "echo", &g->echo, p))
		return false;
	if (json_is_string(suffix) ? json_string_length(suffix) > 0 : suffix && !json_is_null(suffix))
		return problem(p, 400, "suffix", "'suffix' is not supported: this server does not insert text.");
	if (has_best && best_of > 0) {
		if (best_of < g->n)
			return problem(p, 400, "best_of", "Invalid 'best_of': %lld is less than 'n', which is %d.", (long long)best_of, g->n);
		if (g->stream && best_of > g->n)
			return problem(p, 400, "best_of", "'best_of' cannot be used with 'stream'.");
		if (best_of > g->n)
			g->best_of = (int32_t)best_of;
	}
	g->max_new = (int32_t)max_tokens;
	if (g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens", "Invalid 'min_tokens': %d is more than 'max_tokens', which is %d.", g->ep.min_tokens, g->max_new);
	g->logprobs = has_logprobs;
	g->n_top = (int32_t)logprobs;
	g->hide_new = g->max_new == 0;
	g->ep.max_tokens = g->hide_new ? 1 : g->max_new;
	g->er.logprobs = g->logprobs || g->best_of;
	g->er.prompt_logprobs = g->logprobs && g->echo;
	g->er.n_top = g->n_top;
	return read_prompt(g, o, p);
}

static bool
read_chat(Gen *g, const json_t *o, Problem *p)
{
	int64_t max_tokens = -1, older = -1, top = 0;
	bool has_max, has_older, has_top, special = false;
	char *text = NULL;
	size_t n;

	if (!check_model(g->srv, o, p) || !read_common(g, o, p) || !field_int(o, "max_completion_tokens", 1, INT32_MAX, &max_tokens, &has_max, p) ||
	    !field_int(o, "max_tokens", 1, INT32_MAX, &older, &has_older, p) || !field_bool(o, "logprobs", &g->logprobs, p) ||
	    !field_int(o, "top_logprobs", 0, 20, &top, &has_top, p) || !field_bool(o, "add_special_tokens", &special, p))
		return false;
	if (has_top && !g->logprobs)
		return problem(p, 400, "top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
	g->max_new = has_max ? (int32_t)max_tokens : has_older ? (int32_t)older : -1;
	if (g->max_new > 0 && g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens", "Invalid 'min_tokens': %d is more than the new tokens allowed, %d.", g->ep.min_tokens, g->max_new);
	g->n_top = (int32_t)top;
	g->er.logprobs = g->logprobs;
	g->er.n_top = g->n_top;
	if (!chat_prompt(g->srv, o, &text, &n, p))
		return false;
	bool ok = gen_prompts(g, 1, p) && tokenize_prompt(g->srv, text, n, LLMC_PARSE_SPECIAL | (special ? LLMC_ADD_SPECIAL : 0),
	                                                  &g->sub[0].tok, &g->sub[0].n_tok, p);
	free(text);
	if (!ok || !check_length(g, g->sub[0].n_tok, true, p))
		return false;
	g->ep.max_tokens = g->max_new < 0 ? g->srv->max_total - (int32_t)g->sub[0].n_tok : g->max_new;
	return true;
}

static void
handle(Req *r, Dialect d)
{
	Problem p = { 0 };
	Gen *g = NULL;
	json_t *o;

	gen_count(r);
	o = body_parse(strbuf_str(&r->body), r->body.len, &p);
	if (o && !json_is_object(o))
		problem(&p, 400, NULL, "The body must be a JSON object, but is %s.", json_type_name(o));
	else if (o && !(g = gen_new(r, d)))
		problem(&p, 500, NULL, "out of memory");
	if (g && p.status == 0 && (d == DIA_CHAT ? read_chat : read_completion)(g, o, &p)) {
		snprintf(g->model, sizeof g->model, "%s", r->srv->model_name);
		json_decref(o);
		bool stream = g->stream; /* g may be gone once it has started */
		if (!gen_start(g, &p))
			req_problem(r, &p);
		else if (stream)
			req_stream(r);
		return;
	}
	json_decref(o);
	gen_free(g);
	req_problem(r, &p);
}

void
openai_completions(Req *r)
{
	handle(r, DIA_COMPLETION);
}

void
openai_chat(Req *r)
{
	handle(r, DIA_CHAT);
}
