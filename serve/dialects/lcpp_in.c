/* Requests of llama.cpp's POST /completion: prompts as strings, ids, both mixed, or lists of these;
 * llama.cpp's names and defaults of fields. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "serve/dialects/lcpp.h"
#include "serve/dialects/thinking.h"

enum { MAX_RESPONSE_FIELDS = 64 };

/* ---- fields ---- */

/* llama.cpp takes -1 and its own default, 2^32 - 1, as a request for a random seed. */
static bool
is_random_seed(const json_t *v)
{
	return json_is_integer(v) &&
	       (json_integer_value(v) == -1 || json_integer_value(v) == (json_int_t)UINT32_MAX);
}

/* Return a copy of the stop strings without empty ones, which llama.cpp ignores. */
static json_t *
stops_of(json_t *v)
{
	json_t *out = json_array(), *one;
	size_t i;

	json_array_foreach (v, i, one)
		if (!json_is_string(one) || json_string_length(one))
			json_array_append(out, one);
	return out;
}

/* Return an object of biases as a list of pairs: its names are ids or strings. */
static json_t *
bias_pairs(json_t *v)
{
	json_t *out = json_array(), *one;
	const char *key;

	json_object_foreach (v, key, one) {
		char *end;
		const long id = strtol(key, &end, 10);
		json_t *name = *key && !*end && *key != ' ' ? json_integer(id) : json_string(key);
		json_array_append_new(out, json_pack("[o,O]", name, one));
	}
	return out;
}

json_t *
lcpp_translate(const json_t *in, Problem *p)
{
	json_t *out = json_copy((json_t *)(uintptr_t)in), *stop = json_object_get(out, "stop"),
	       *bias = json_object_get(out, "logit_bias");

	if (is_random_seed(json_object_get(out, "seed")))
		json_object_del(out, "seed");
	json_object_del(out, "stream_options"); /* these two are of OpenAI's routes */
	json_object_del(out, "verbose");
	if (json_is_string(stop) && !json_string_length(stop))
		json_object_del(out, "stop");
	if (json_is_array(stop))
		json_object_set_new(out, "stop", stops_of(stop));
	if (json_is_object(bias))
		json_object_set_new(out, "logit_bias", bias_pairs(bias));
	if (!out)
		problem_memory(p);
	return out;
}

/* Read n_predict by the last of its names that the body has. */
static bool
read_length(Generation *g, const json_t *o, Problem *p)
{
	static const char *const names[] = { "max_tokens", "max_completion_tokens", "n_predict" };
	int64_t n = -1;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!field_int(o, names[i], -1, INT32_MAX, &n, NULL, p))
			return false;
	g->max_new = (int32_t)n;
	g->hide_new = n == 0;
	g->clip_new = true;
	return true;
}

static bool
read_response_fields(Lcpp *own, const json_t *o, Problem *p)
{
	json_t *v = json_object_get(o, "response_fields"), *one;
	size_t i;

	if (!v || json_is_null(v))
		return true;
	if (!json_is_array(v) || json_array_size(v) > MAX_RESPONSE_FIELDS)
		return problem(p, 400, "response_fields",
		               "Invalid 'response_fields': expected an array of up to %d strings.",
		               MAX_RESPONSE_FIELDS);
	json_array_foreach (v, i, one)
		if (!json_is_string(one))
			return problem(p, 400, "response_fields",
			               "Invalid type for 'response_fields[%zu]': expected a "
			               "string, but got %s instead.",
			               i, json_type_name(one));
		else if (strlen(json_string_value(one)) != json_string_length(one))
			return problem(p, 400, "response_fields",
			               "Invalid 'response_fields[%zu]': expected a string "
			               "without NUL characters.",
			               i);
	if (json_array_size(v))
		own->fields = json_incref(v);
	return true;
}

bool
lcpp_read(Generation *g, const json_t *o, Problem *p)
{
	Lcpp *own = gen_own(g);
	const int64_t slots = g->model->back.limits.seqs;
	int64_t n_probs = 0;
	bool has_probs, cache = true;

	own->id_slot = -1;
	own->limit_ms = -1;
	if (!read_length(g, o, p) ||
	    !field_int(o, "logprobs", 0, LLMC_MAX_TOP, &n_probs, NULL, p) ||
	    !field_int(o, "n_probs", 0, LLMC_MAX_TOP, &n_probs, &has_probs, p) ||
	    !field_int(o, "id_slot", -1, slots > 0 ? slots - 1 : 0, &own->id_slot, NULL, p) ||
	    !field_bool(o, "return_tokens", &own->return_tokens, p) ||
	    !field_bool(o, "cache_prompt", &cache, p) ||
	    !field_int(o, "n_indent", 0, INT32_MAX, &own->n_indent, NULL, p) ||
	    !field_int(o, "t_max_predict_ms", -1, INT64_MAX, &own->limit_ms, NULL, p) ||
	    !read_response_fields(own, o, p))
		return false;
	if (g->max_new > 0 && g->ep.min_tokens > g->max_new)
		return problem(p, 400, "min_tokens",
		               "Invalid 'min_tokens': %d is more than 'n_predict', which is %d.",
		               g->ep.min_tokens, g->max_new);
	g->er.logprobs = n_probs > 0;
	g->er.n_top = (int32_t)n_probs;
	openai_set_top(g);
	if (!json_is_integer(json_object_get(o, "seed")))
		g->ep.seed = (uint32_t)random_u64(); /* clients hold seeds in 32 bits */
	if (!cache)                                  /* no other request has this salt */
		g->er.prefix_salt = random_u64() | 1;
	return true;
}

/* ---- prompts ---- */

static bool
add_string(Generation *g, Ids *to, const json_t *v, bool first, Problem *p)
{
	int32_t *ids = NULL;
	size_t n = 0;
	bool ok = tokenize_prompt(g->model, json_string_value(v), json_string_length(v),
	                          LLMC_PARSE_SPECIAL | (first ? LLMC_ADD_SPECIAL : 0),
	                          openai_most(g), &ids, &n, p);

	if (ok && !ids) /* too many: n is a lower bound */
		ok = openai_fits(g, n > openai_most(g) ? n : openai_most(g) + 1, "prompt", p);
	if (ok)
		ids_add(to, ids, n);
	free(ids);
	return ok && (!to->failed || problem_memory(p));
}

static bool
add_element(Generation *g, Ids *to, const json_t *v, size_t i, Problem *p)
{
	const int32_t vocab = g->model->back.info.vocab;

	if (json_is_string(v))
		return add_string(g, to, v, i == 0, p);
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
		return problem(p, 400, "prompt",
		               "Invalid 'prompt': element %zu is neither a string nor a token id; "
		               "expected integers from 0 to %d.",
		               i, vocab - 1);
	ids_add(to, &(int32_t){ (int32_t)json_integer_value(v) }, 1);
	return !to->failed || problem_memory(p);
}

/* Read one prompt: a string, a list of ids and strings, or either as "prompt_string". */
static bool
read_prompt(Generation *g, SubRequest *sub, const json_t *v, Problem *p)
{
	const json_t *inner = json_object_get(v, "prompt_string"), *one,
	             *data = json_object_get(v, "multimodal_data");
	Ids ids = { 0 };
	bool ok = true;
	size_t i;

	if (json_is_object(v) && inner) {
		if (data && !json_is_null(data))
			return problem(p, 400, "prompt",
			               "'multimodal_data' of 'prompt' is not supported by this "
			               "server. Send images to /v1/chat/completions.");
		v = inner;
	}
	if (json_is_string(v)) {
		ok = add_string(g, &ids, v, true, p);
	} else if (!json_is_array(v)) {
		return problem(p, 400, "prompt",
		               "Invalid type for 'prompt': expected a string, an array of token "
		               "ids and strings, an object with 'prompt_string' or an array of "
		               "these, but got %s instead.",
		               json_type_name(v));
	}
	json_array_foreach ((json_t *)(uintptr_t)v, i, one)
		if (!(ok = add_element(g, &ids, one, i, p)))
			break;
	sub->tok = ids.id;
	sub->n_tok = ids.n;
	return ok && openai_fits(g, sub->n_tok, "prompt", p);
}

static bool
has_ids(const json_t *list)
{
	const json_t *one;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)list, i, one)
		if (json_is_number(one))
			return true;
	return false;
}

static bool
read_completion(Generation *g, const json_t *o, Problem *p)
{
	const json_t *v = json_object_get(o, "prompt");
	const bool several = json_is_array(v) && !has_ids(v);
	const size_t n = several ? json_array_size(v) : 1;
	int32_t budget;

	if (!v || json_is_null(v))
		return openai_missing(p, "prompt");
	if (several && n == 0)
		return problem(p, 400, "prompt", "Invalid 'prompt': the array is empty.");
	if (!lcpp_read(g, o, p) || !thinking_read(g, o, &budget, p) ||
	    !openai_prompts_allowed(g, n, p) || !gen_prompts(g, (int32_t)n, p))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!read_prompt(g, &g->sub[i], several ? json_array_get(v, i) : v, p))
			return false;
	return thinking_limit_prompt(g, budget, p) && lcpp_begin(g, o, p);
}

void
lcpp_completion(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "cmpl-",
		                           .object = "text_completion",
		                           .chunk = "text_completion",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = lcpp_translate,
		                           .fields = FIELDS_LCPP,
		                           .read = read_completion };

	openai_handle(r, &lcpp_dialect, &route);
}
