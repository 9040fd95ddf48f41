/* How alike texts are, by the cosine of their vectors: vLLM's /v1/score, and /v1/rerank in the form of Jina's and Cohere's clients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/embeddings.h"
#include "serve/openai.h"

typedef struct Score {
	OpenAi  base;
	bool    rerank, show; /* show: documents come back */
	int32_t n_first;      /* texts of the first list; the others follow */
	int32_t top_n;
} Score;

/* ---- requests ---- */

static const json_t *
at(const json_t *v, size_t i)
{
	return json_is_array(v) ? json_array_get(v, i) : v;
}

/* A text, or a list of texts. */
static bool
count(const json_t *v, const char *what, bool list, size_t *n, Problem *p)
{
	*n = json_is_array(v) ? json_array_size(v) : 1;
	if (!v || json_is_null(v))
		return openai_missing(p, what);
	if (!(json_is_string(v) && !list) && !json_is_array(v))
		return problem(p, 400, what, "Invalid type for '%s': expected %s, but got %s instead.", what, list ? "an array of strings" : "a string or an array of strings", json_type_name(v));
	if (*n == 0)
		return problem(p, 400, what, "Invalid '%s': the array is empty.", what);
	for (size_t i = 0; i < *n; i++) {
		const json_t *one = at(v, i);
		const json_t *text = json_is_object(one) ? json_object_get(one, "text") : one; /* Cohere's documents may be objects */
		if (!json_is_string(text))
			return problem(p, 400, what, "Invalid type for '%s[%zu]': expected a string, but got %s instead.", what, i, json_type_name(text));
	}
	return true;
}

static bool
read_score(Gen *g, const json_t *o, const void *rerank, Problem *p)
{
	Score *own = gen_own(g);
	own->rerank = own->show = *(const bool *)rerank;
	const char *one = own->rerank ? "query" : "text_1", *two = own->rerank ? "documents" : "text_2";
	const json_t *a = json_object_get(o, one), *b = json_object_get(o, two), *cut = json_object_get(o, "truncate_prompt_tokens");
	size_t n = 0, m = 0;
	int64_t top = 0;

	own->base.created = time(NULL);
	snprintf(own->base.id, sizeof own->base.id, "%s-%016llx", own->rerank ? "rerank" : "score", (unsigned long long)random_seed());
	g->max_new = 1;
	if (!openai_model(g->req, o, p) || !embeddings_pool(g, o, p) || !count(a, one, false, &n, p) || !count(b, two, own->rerank, &m, p) ||
	    !field_int(o, "top_n", 0, INT32_MAX, &top, NULL, p) || !field_bool(o, "return_documents", &own->show, p))
		return false;
	if (g->model->back.info.output == LLMC_OUTPUT_LABELS)
		return problem(p, 400, "model", "This model gives scores of labels, not vectors that can be compared; /v1/embeddings has them.");
	if (own->rerank && n != 1)
		return problem(p, 400, "query", "Invalid 'query': one text is compared with the documents, got %zu.", n);
	if (n != 1 && n != m)
		return problem(p, 400, "text_2", "'text_1' has %zu texts and 'text_2' %zu: expected as many, or one in 'text_1'.", n, m);
	if (n + m > embeddings_most(g))
		return problem(p, 400, two, "Invalid '%s': %zu texts in one request, at most %zu are taken.", two, n + m, embeddings_most(g));
	if (cut && !json_is_null(cut) && (!json_is_integer(cut) || json_integer_value(cut) != -1))
		return problem(p, 400, "truncate_prompt_tokens", "Invalid 'truncate_prompt_tokens': expected -1, which cuts a text to the model's context.");
	if (!gen_prompts(g, (int32_t)(n + m), p))
		return false;
	own->n_first = (int32_t)n;
	own->top_n = (int32_t)(top && (size_t)top < m ? top : (int64_t)m);
	for (size_t i = 0; i < n + m; i++) {
		const json_t *v = i < n ? at(a, i) : at(b, i - n);
		v = json_is_object(v) ? json_object_get(v, "text") : v;
		Sub *sub = &g->sub[i];
		if (!embeddings_text(g, v, i < n ? one : two, i < n ? i : i - n, json_integer_value(cut) == -1, sub, p))
			return false;
		if (i < n || !own->rerank || !own->show)
			continue;
		sub->n_echo = json_string_length(v);
		sub->echo = malloc(sub->n_echo + 1);
		if (!sub->echo)
			return problem_memory(p);
		memcpy(sub->echo, json_string_value(v), sub->n_echo + 1);
	}
	return true;
}

/* ---- answers ---- */

static void
on_finish(Gen *g, Sub *sub, Choice *c, const llmc_event *ev)
{
	(void)g;
	(void)sub;
	if (ev->vector)
		strbuf_add(&c->text, (const char *)ev->vector, (size_t)ev->n_vector * sizeof *ev->vector);
	else
		c->text.failed = true;
}

static double
cosine(const Strbuf *a, const Strbuf *b)
{
	size_t n = (a->len < b->len ? a->len : b->len) / sizeof(float);
	double ab = 0, aa = 0, bb = 0;

	for (size_t i = 0; i < n; i++) {
		float x, y;
		memcpy(&x, a->data + i * sizeof x, sizeof x);
		memcpy(&y, b->data + i * sizeof y, sizeof y);
		ab += (double)x * (double)y;
		aa += (double)x * (double)x;
		bb += (double)y * (double)y;
	}
	return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

typedef struct Rank { int32_t index; double score; } Rank;

static int
by_score(const void *pa, const void *pb)
{
	const Rank *a = pa, *b = pb;

	return a->score > b->score ? -1 : a->score < b->score ? 1 : a->index - b->index;
}

static void
on_done(Gen *g)
{
	const Score *own = gen_own(g);
	int32_t n_prompt, n_new, n_cached, m = g->n_sub - own->n_first;
	Rank *rank = calloc((size_t)m, sizeof *rank);
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	b.failed = !rank;
	for (int32_t i = 0; rank && i < m; i++) {
		const Strbuf *x = &g->choice[own->n_first > 1 ? i : 0].text, *y = &g->choice[own->n_first + i].text;
		b.failed |= x->failed || y->failed;
		rank[i] = (Rank){ i, b.failed ? 0 : cosine(x, y) };
	}
	if (rank && own->rerank)
		qsort(rank, (size_t)m, sizeof *rank, by_score);
	if (own->rerank)
		json_printf(&b, "{\"id\":%s,\"model\":%s,\"usage\":{\"total_tokens\":%d},\"results\":[", own->base.id, g->model->name, n_prompt);
	else
		json_printf(&b, "{\"id\":%s,\"object\":\"list\",\"created\":%lld,\"model\":%s,\"data\":[", own->base.id, (long long)own->base.created, g->model->name);
	for (int32_t i = 0; rank && i < (own->rerank ? own->top_n : m); i++) {
		strbuf_puts(&b, i ? "," : "");
		if (!own->rerank) {
			json_printf(&b, "{\"index\":%d,\"object\":\"score\",\"score\":%g}", i, rank[i].score);
			continue;
		}
		const Sub *sub = &g->sub[own->n_first + rank[i].index];
		json_printf(&b, "{\"index\":%d,\"relevance_score\":%g", rank[i].index, rank[i].score);
		if (own->show) {
			strbuf_puts(&b, ",\"document\":{\"text\":");
			json_str(&b, sub->echo, sub->n_echo);
			strbuf_puts(&b, "}");
		}
		strbuf_puts(&b, "}");
	}
	if (own->rerank)
		strbuf_puts(&b, "]}");
	else
		json_printf(&b, "],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":0}}", n_prompt, n_prompt);
	free(rank);
	req_answer(g->req, 200, type_json, &b);
}

static void
failed(Gen *g, const Problem *p)
{
	req_problem(g->req, p);
}

static const Dialect dialect = { .own_bytes = sizeof(Score), .finish = on_finish, .done = on_done, .problem = failed };

void
score_texts(Req *r)
{
	gen_handle(r, &dialect, read_score, &(bool){ false });
}

void
score_rerank(Req *r)
{
	gen_handle(r, &dialect, read_score, &(bool){ true });
}
