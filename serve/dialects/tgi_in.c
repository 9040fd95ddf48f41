/* TGI's requests. Its clients match on the messages, so their wording is part of the protocol. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "serve/dialects/constraints.h"
#include "serve/http/route.h"
#include "serve/dialects/tokenize.h"
#include "serve/dialects/tgi.h"

static bool invalid(Problem *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool
invalid(Problem *p, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	problem(p, 422, NULL, "Input validation error: %s", text);
	p->type = "validation";
	return false;
}

/* Report a refusal of TGI's web framework: plain text, before validation. */
static bool
wrong_type(Problem *p, const char *key, const char *want, const json_t *v)
{
	problem(p, 422, NULL,
	        "Failed to deserialize the JSON body into the target type: %s: invalid type: %s, "
	        "expected %s",
	        key, json_type_name(v), want);
	p->type = "plain";
	return false;
}

typedef struct TgiFields { /* fields of a request, not validated */
	json_t *inputs, *stop, *grammar, *adapter;
	bool has_best, has_temperature, has_repetition, has_frequency, has_top_k, has_top_p,
	    has_typical, has_truncate, has_seed, has_top_n, has_max_new, has_full;
	double temperature, repetition, frequency, top_p, typical;
	int64_t best_of, top_k, truncate, top_n, max_new;
	uint64_t seed;
	bool do_sample, full, watermark, details, prefill, stream;
} TgiFields;

static bool
get_num(const json_t *o, const char *key, double *out, bool *has, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	*has = v && !json_is_null(v);
	if (*has && !json_is_number(v))
		return wrong_type(p, key, "f32", v);
	if (*has)
		*out = json_number_value(v);
	return true;
}

static bool
get_int(const json_t *o, const char *key, bool is_signed, int64_t *out, bool *has, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	*has = v && !json_is_null(v);
	if (!*has)
		return true;
	if (!json_is_integer(v) || (!is_signed && json_integer_value(v) < 0) ||
	    json_integer_value(v) > UINT32_MAX || json_integer_value(v) < INT32_MIN)
		return wrong_type(p, key, is_signed ? "i32" : "usize", v);
	*out = json_integer_value(v);
	return true;
}

static bool
get_bool(const json_t *o, const char *key, bool *out, bool *has, Problem *p)
{
	const json_t *v = json_object_get(o, key);
	bool there =
	    /* null counts as absent for optional bools only */
	    v && (has == NULL || !json_is_null(v));

	if (has)
		*has = there;
	if (there && !json_is_boolean(v) && !json_is_null(v))
		return wrong_type(p, key, "a boolean", v);
	if (there)
		*out = json_is_true(v);
	return true;
}

static bool
read_fields(const json_t *o, TgiFields *f, Problem *p)
{
	json_t *q = json_object_get(o, "parameters"), *v;
	size_t i;

	*f = (TgiFields){ .best_of = 1,
		          .temperature = 1,
		          .repetition = 1,
		          .top_p = 1,
		          .typical = 1,
		          .max_new = 20 };
	if (!json_is_object(o))
		return wrong_type(p, "body", "struct GenerateRequest", o);
	f->inputs = json_object_get(o, "inputs");
	if (!f->inputs) {
		problem(p, 422, NULL,
		        "Failed to deserialize the JSON body into the target type: missing field "
		        "`inputs`");
		p->type = "plain";
		return false;
	}
	if (!json_is_string(f->inputs))
		return wrong_type(p, "inputs", "a string", f->inputs);
	if (q && !json_is_object(q))
		return wrong_type(p, "parameters", "struct GenerateParameters", q);
	/* TGI samples if `parameters` is absent, but not if only `do_sample` is absent */
	f->do_sample = !q;
	if (!get_bool(o, "stream", &f->stream, NULL, p) ||
	    !get_int(q, "best_of", false, &f->best_of, &f->has_best, p) ||
	    !get_num(q, "temperature", &f->temperature, &f->has_temperature, p) ||
	    !get_num(q, "repetition_penalty", &f->repetition, &f->has_repetition, p) ||
	    !get_num(q, "frequency_penalty", &f->frequency, &f->has_frequency, p) ||
	    !get_int(q, "top_k", true, &f->top_k, &f->has_top_k, p) ||
	    !get_num(q, "top_p", &f->top_p, &f->has_top_p, p) ||
	    !get_num(q, "typical_p", &f->typical, &f->has_typical, p) ||
	    !get_bool(q, "do_sample", &f->do_sample, NULL, p) ||
	    !get_int(q, "max_new_tokens", true, &f->max_new, &f->has_max_new, p) ||
	    !get_bool(q, "return_full_text", &f->full, &f->has_full, p) ||
	    !get_int(q, "truncate", false, &f->truncate, &f->has_truncate, p) ||
	    !get_bool(q, "watermark", &f->watermark, NULL, p) ||
	    !get_bool(q, "details", &f->details, NULL, p) ||
	    !get_bool(q, "decoder_input_details", &f->prefill, NULL, p) ||
	    !get_int(q, "top_n_tokens", false, &f->top_n, &f->has_top_n, p))
		return false;
	v = json_object_get(q, "seed");
	f->has_seed = v && !json_is_null(v);
	if (f->has_seed && !number_u64(v, &f->seed))
		return wrong_type(p, "seed", "u64", v);
	f->stop = json_object_get(q, "stop");
	if (f->stop && json_is_null(f->stop))
		f->stop = NULL;
	if (f->stop && !json_is_array(f->stop))
		return wrong_type(p, "stop", "a sequence", f->stop);
	json_array_foreach (f->stop, i, v)
		if (!json_is_string(v))
			return wrong_type(p, "stop", "a string", v);
	f->grammar = json_object_get(q, "grammar");
	f->adapter = json_object_get(q, "adapter_id");
	if (f->adapter && !json_is_null(f->adapter) && !json_is_string(f->adapter))
		return wrong_type(p, "adapter_id", "a string", f->adapter);
	return true;
}

/* Check the name of an adapter. With several models, models_take has used it to choose the
 * model. */
static bool
known_adapter(Req *r, const json_t *id, Problem *p)
{
	if (!json_is_string(id) || models_find(r->srv, json_string_value(id)) == r->slot)
		return true;
	models_unknown(r->srv, json_string_value(id), p);
	return false;
}

/* Validate fields in TGI's order, because only the first mistake is reported. */
static bool
validate(Generation *g, TgiFields *f, Problem *p)
{
	Server *s = g->srv;
	Tgi *own = tgi_own(g);
	size_t n_stop = json_array_size(f->stop);
	bool sample =
	    f->do_sample || f->has_temperature || f->has_top_k || f->has_top_p || f->has_typical;

	if (g->stream && f->best_of != 1)
		return invalid(p, "`best_of` != 1 is not supported when streaming tokens");
	if (g->stream && f->prefill)
		return invalid(
		    p, "`decoder_input_details` == true is not supported when streaming tokens");
	if (f->best_of != 1 && s->opt.max_best_of == 1)
		return invalid(p, "`best_of` != 1 is not allowed for this endpoint");
	if (f->best_of == 0 || f->best_of > s->opt.max_best_of)
		return invalid(p, "`best_of` must be > 0 and <= %d. Given: %lld",
		               s->opt.max_best_of, (long long)f->best_of);
	if (f->best_of > 1 && !sample)
		return invalid(p, "you must use sampling when `best_of` is > 1");
	if (!(f->temperature > 0))
		return invalid(p, "`temperature` must be strictly positive");
	if (!(f->repetition > 0))
		return invalid(p, "`repetition_penalty` must be strictly positive");
	if (!(f->frequency >= -2 && f->frequency <= 2))
		return invalid(p, "`frequency_penalty` must be >= -2.0 and <= 2.0");
	if (f->has_top_p && !(f->top_p > 0 && f->top_p < 1))
		return invalid(p, "`top_p` must be > 0.0 and < 1.0");
	if (f->has_typical && !(f->typical > 0 && f->typical < 1))
		return invalid(p, "`typical_p` must be > 0.0 and < 1.0");
	if (f->has_top_k && f->top_k <= 0)
		return invalid(p, "`top_k` must be strictly positive");
	if (f->max_new <= 0)
		return invalid(p, "`max_new_tokens` must be strictly positive");
	if (n_stop > (size_t)s->opt.max_stop_sequences)
		return invalid(p, "`stop` supports up to %d stop sequences. Given: %zu",
		               s->opt.max_stop_sequences, n_stop);
	if (f->has_seed && f->best_of > 1)
		return invalid(p, "`seed` must not be set when `best_of` > 1");
	if (f->top_n > s->opt.max_top_n_tokens)
		return invalid(p, "`top_n_tokens` must be >= 0 and <= %d. Given: %lld",
		               s->opt.max_top_n_tokens, (long long)f->top_n);
	if (json_string_length(f->inputs) == 0)
		return invalid(p, "`inputs` cannot be empty");
	if (f->has_truncate && (f->truncate == 0 || f->truncate > g->model->max_input))
		return invalid(p,
		               "`truncate` must be strictly positive and less than %d. Given: %lld",
		               g->model->max_input, (long long)f->truncate);
	g->n = (int32_t)f->best_of;
	own->seeded = sample;
	g->ep.seed = f->has_seed ? f->seed : random_u64();
	g->ep.temperature = sample ? (float)f->temperature : 0;
	g->ep.top_k = (int32_t)(f->top_k > INT32_MAX ? INT32_MAX : f->top_k);
	g->ep.top_p = (float)f->top_p;
	g->ep.typical_p = (float)f->typical;
	g->ep.repetition_penalty = (float)f->repetition;
	g->ep.frequency_penalty = (float)f->frequency;
	g->ep.watermark = f->watermark;
	g->max_new = (int32_t)(f->max_new > INT32_MAX ? INT32_MAX : f->max_new);
	g->er.logprobs = true;
	g->er.n_top = (int32_t)f->top_n;
	g->er.keep_stop = true;
	g->er.prompt_logprobs = f->prefill;
	own->details = f->details || f->prefill;
	own->full_text = f->full;
	return true;
}

static bool
read_stop(Generation *g, const json_t *stop, Problem *p)
{
	size_t n = json_array_size(stop), k = 0;

	if (n == 0)
		return true;
	g->stop = calloc(n + 1, sizeof *g->stop);
	for (size_t i = 0; g->stop && i < n; i++) {
		const json_t *v = json_array_get(stop, i);
		if (json_string_length(v) == 0)
			continue; /* an empty string would stop every output at once */
		if (strlen(json_string_value(v)) != json_string_length(v))
			return invalid(p, "`stop` sequences must not contain NUL");
		g->stop[k] = strdup(json_string_value(v));
		if (!g->stop[k++])
			return problem_memory(p);
	}
	return g->stop || problem_memory(p);
}

static bool
read_request(Generation *g, TgiFields *f, Problem *p)
{
	ServedModel *m = g->model;
	SubRequest *sub;

	if (!known_adapter(g->req, f->adapter, p) || !validate(g, f, p) ||
	    !read_stop(g, f->stop, p))
		return false;
	if (f->grammar && !json_is_null(f->grammar) &&
	    !grammar_read_typed(g, f->grammar, "grammar", p)) {
		char why[sizeof p->text];
		memcpy(why, p->text, sizeof why);
		return p->status == 400 ? invalid(p, "%.400s", why) : false;
	}
	if (!gen_prompts(g, 1, p))
		return false;
	sub = &g->sub[0];
	if (!tokenize_prompt(m, json_string_value(f->inputs), json_string_length(f->inputs),
	                     LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL,
	                     f->has_truncate ? SIZE_MAX : (size_t)m->max_input, &sub->tok,
	                     &sub->n_tok, p)) {
		p->type = "validation";
		p->status = p->status == 400 ? 422 : p->status;
		return false;
	}
	if (f->has_truncate && sub->n_tok > (size_t)f->truncate) {
		memmove(sub->tok, sub->tok + (sub->n_tok - (size_t)f->truncate),
		        (size_t)f->truncate * sizeof *sub->tok);
		sub->n_tok = (size_t)f->truncate;
	}
	if ((int64_t)sub->n_tok + f->max_new > m->max_total)
		return invalid(p,
		               "`inputs` tokens + `max_new_tokens` must be <= %d. Given: %zu "
		               "`inputs` tokens and %lld `max_new_tokens`",
		               m->max_total, sub->n_tok, (long long)f->max_new);
	if (sub->n_tok > (size_t)m->max_input)
		return invalid(p, "`inputs` must have less than %d tokens. Given: %zu",
		               m->max_input, sub->n_tok);
	if (sub->n_tok == 0)
		return invalid(p, "`inputs` cannot be empty");
	sub->n_echo = json_string_length(f->inputs);
	sub->echo = malloc(sub->n_echo + 1);
	if (!sub->echo)
		return problem_memory(p);
	memcpy(sub->echo, json_string_value(f->inputs), sub->n_echo + 1);
	return true;
}

/* Report a Problem as a frame: a stream begins as soon as its body is well-formed. */
static void
refuse(Req *r, bool stream, const Problem *p)
{
	if (!stream || (p->type && !strcmp(p->type, "plain"))) {
		req_problem(r, p);
		return;
	}
	int kind = p->status == 429                       ? ERR_OVERLOADED
	           : p->status == 422 || p->status == 400 ? ERR_VALIDATION
	                                                  : ERR_GENERATION;
	pthread_mutex_lock(&r->srv->lock);
	r->slot->metrics.failure[kind]++;
	r->finish = "error";
	pthread_mutex_unlock(&r->srv->lock);
	req_stream(r, NULL);
	tgi_frame_problem(r, p);
	req_end(r);
}

typedef enum TgiStream {
	STREAM_NO,
	STREAM_YES,
	STREAM_BODY
} TgiStream; /* BODY: the body's `stream` decides */

static void
generate(Req *r, TgiStream stream)
{
	Problem p = { 0 };
	TgiFields f;
	Generation *g = NULL;
	json_t *o = body_parse(strbuf_str(&r->body), r->body.len, &p);

	gen_count(r);
	if (!o && p.status != 503) {
		char text[sizeof p.text];
		memcpy(text, p.text, sizeof text);
		problem(&p, p.status, NULL, "Failed to parse the request body as JSON: %.900s",
		        text);
		p.type = "plain";
		req_problem(r, &p);
		return;
	}
	bool streams = false;
	if (o && read_fields(o, &f, &p)) {
		streams = stream == STREAM_BODY ? f.stream : stream == STREAM_YES;
		g = gen_new(r, &tgi_dialect);
		if (!g) {
			problem_memory(&p);
		} else {
			g->stream = streams;
			tgi_own(g)->in_list = stream == STREAM_BODY;
			if (read_request(g, &f, &p)) {
				size_t n_chars = (size_t)utf8_count(json_string_value(f.inputs),
				                                    json_string_length(f.inputs));
				json_decref(o);
				req_head(r, "x-compute-type", "%s", r->model->back.info.target);
				req_head(r, "x-compute-characters", "%zu", n_chars);
				if (streams)
					req_head(r, "X-Accel-Buffering", "no");
				if (!gen_start(g, &p))
					refuse(r, streams, &p);
				else if (streams)
					req_stream(r, NULL);
				return;
			}
		}
	}
	json_decref(o);
	gen_free(g);
	refuse(r, streams, &p);
}

void
tgi_generate(Req *r)
{
	generate(r, STREAM_NO);
}

void
tgi_generate_stream(Req *r)
{
	generate(r, STREAM_YES);
}

/* Handle TGI's older route: the body's `stream` selects the form, and a complete answer is wrapped
 * in an array. */
void
tgi_compat(Req *r)
{
	generate(r, STREAM_BODY);
}
