/* Labels of a classifier: vLLM's /classify and TEI's /predict. A probability is the softmax over
 * the labels. With one label, or with independent labels (problem_type multi_label_classification),
 * it is the sigmoid. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "serve/dialects/embeddings.h"
#include "serve/dialects/openai.h"

typedef struct Classify {
	OpenAi base;
	bool tei, one; /* one: TEI's answer is one list of labels, not a list of lists */
	bool raw;      /* logits instead of probabilities */
} Classify;

static bool
read_model(Generation *g, const json_t *o, Problem *p)
{
	if (g->model->back.info.output != LLMC_OUTPUT_LABELS)
		return problem(p, 400, "model",
		               "This model is not a classifier: its checkpoint has no "
		               "classification head.");
	if (!embeddings_pool(g, o, p))
		return false;
	g->er.normalize = false;
	return true;
}

/* Read an input: a string, or a list of one string or of two (a pair). */
static bool
read_sequence(Generation *g, const json_t *v, size_t i, bool cut, Problem *p)
{
	const size_t n = json_is_array(v) ? json_array_size(v) : 1;
	const json_t *first = json_is_array(v) ? json_array_get(v, 0) : v,
	             *second = n == 2 ? json_array_get(v, 1) : NULL;

	if (n < 1 || n > 2 || !json_is_string(first) || (second && !json_is_string(second)))
		return problem(p, 400, "inputs",
		               "Invalid 'inputs[%zu]': expected a string, or an array of one "
		               "string or of two, a pair.",
		               i);
	return second ? embeddings_pair(g, first, second, cut, &g->sub[i], p)
	              : embeddings_text(g, first, "inputs", i, cut, &g->sub[i], p);
}

/* Read TEI's `inputs`: a string, a pair, or a list of lists of one string or two. */
static bool
read_tei(Generation *g, const json_t *o, Problem *p)
{
	Classify *own = gen_own(g);
	const json_t *v = json_object_get(o, "inputs");
	bool cut = false;

	g->req->problem = tei_problem;
	if (!v || json_is_null(v))
		return openai_missing(p, "inputs");
	own->one = !json_is_array(json_array_get(v, 0));
	const size_t n = own->one ? 1 : json_array_size(v);
	if (!embeddings_count(g, "inputs", n, p) || !tei_truncation(o, &cut, p) ||
	    !field_bool(o, "raw_scores", &own->raw, p) || !gen_prompts(g, (int32_t)n, p))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!read_sequence(g, own->one ? v : json_array_get(v, i), i, cut, p))
			return false;
	return true;
}

static bool
read_vllm(Generation *g, const json_t *o, Problem *p)
{
	Classify *own = gen_own(g);
	const json_t *v = json_object_get(o, "input");
	const bool list = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
	const size_t n = list ? json_array_size(v) : 1;
	bool probabilities = true, cut = false;

	if (!v || json_is_null(v))
		return openai_missing(p, "input");
	if (!embeddings_count(g, "input", n, p) || !embeddings_truncation(o, &cut, p) ||
	    !field_bool(o, "use_activation", &probabilities, p) ||
	    !field_bool(o, "activation", &probabilities, p) || !gen_prompts(g, (int32_t)n, p))
		return false;
	own->raw = !probabilities;
	for (size_t i = 0; i < n; i++)
		if (!embeddings_text(g, list ? json_array_get(v, i) : v, "input", i, cut,
		                     &g->sub[i], p))
			return false;
	return true;
}

static bool
read_classify(Generation *g, const json_t *o, const void *tei, Problem *p)
{
	Classify *own = gen_own(g);

	own->tei = *(const bool *)tei;
	own->base.created = time(NULL);
	snprintf(own->base.id, sizeof own->base.id, "classify-%016llx",
	         (unsigned long long)random_u64());
	g->max_new = 1;
	return openai_model(g->req, o, p) && read_model(g, o, p) &&
	       (own->tei ? read_tei(g, o, p) : read_vllm(g, o, p));
}

/* Turn logits [n] into probabilities. */
static void
probabilities(float *x, size_t n, bool several)
{
	double most = x[0], sum = 0;

	for (size_t i = 1; i < n; i++)
		most = x[i] > most ? x[i] : most;
	for (size_t i = 0; i < n; i++)
		sum += exp(x[i] - most);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(n == 1 || several ? 1 / (1 + exp(-(double)x[i]))
		                                 : exp(x[i] - most) / sum);
}

/* Append the labels of one input, the most likely one first. */
static void
put_tei(Strbuf *b, const Rank *rank, size_t n, const char *const *name)
{
	for (size_t i = 0; i < n; i++)
		json_printf(b, i ? ",{\"score\":%g,\"label\":%s}" : "[{\"score\":%g,\"label\":%s}",
		            rank[i].score, name[rank[i].index]);
	strbuf_puts(b, "]");
}

static void
put_vllm(Strbuf *b, int32_t index, const char *label, const float *x, size_t n)
{
	json_printf(b, "{\"index\":%d,\"label\":%s,\"probs\":", index, label);
	embeddings_floats(b, x, n);
	json_printf(b, ",\"num_classes\":%d}", (int)n);
}

static void
on_done(Generation *g)
{
	const Classify *own = gen_own(g);
	size_t n;
	bool several;
	const char *const *name = llmc_labels(g->model->back.model, &n, &several);
	float *x = malloc((n + 1) * sizeof *x);
	Rank *rank = malloc((n + 1) * sizeof *rank);
	Strbuf b = { 0 };

	b.failed = !x || !rank;
	if (!own->tei)
		embeddings_list_begin(g, &b);
	else if (!own->one)
		strbuf_putc(&b, '[');
	for (int32_t i = 0; i < g->n_sub && !b.failed; i++) {
		const Strbuf *logits = &g->choice[i].text;
		b.failed |= logits->failed || logits->len != n * sizeof *x;
		if (b.failed)
			break;
		memcpy(x, logits->data, logits->len);
		if (!own->raw)
			probabilities(x, n, several);
		for (size_t k = 0; k < n; k++)
			rank[k] = (Rank){ (int32_t)k, (double)x[k] };
		embeddings_sort(rank, n);
		strbuf_puts(&b, i ? "," : "");
		if (own->tei)
			put_tei(&b, rank, n, name);
		else
			put_vllm(&b, i, name[rank[0].index], x, n);
	}
	if (!own->tei)
		embeddings_list_end(g, &b);
	else if (!own->one)
		strbuf_putc(&b, ']');
	free(x);
	free(rank);
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = { .own_bytes = sizeof(Classify),
	                         .finish = embeddings_finish,
	                         .done = on_done };

void
classify_inputs(Req *r)
{
	gen_handle(r, &dialect, read_classify, &(bool){ false });
}

void
tei_predict(Req *r)
{
	gen_handle(r, &dialect, read_classify, &(bool){ true });
}
