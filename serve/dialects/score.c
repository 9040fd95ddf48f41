/* Scores of documents for a query: vLLM's /v1/score, and /v1/rerank in the forms of Jina, Cohere
 * and TEI. An embedding model compares two vectors by cosine. A classifier with one label reads
 * query and document as one input, paired as transformers' tokenizers do. A generative model gets
 * the question whether the document answers the query, in the prompt that such rerankers are
 * trained on; the score comes from its logits of yes and no. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/random.h"
#include "serve/dialects/embeddings.h"
#include "serve/dialects/openai.h"

typedef enum ScoreRequest { JUDGE_COSINE, JUDGE_LABEL, JUDGE_YES } ScoreRequest;

typedef struct Score {
	OpenAi base;
	ScoreRequest judge;
	bool rerank, show; /* show: return the documents */
	bool tei, raw;     /* TEI's rerank: scores as a list; raw: logits */
	/* with JUDGE_COSINE: number of inputs in the first list, which the second list follows.
	 * With other judges each prompt is a pair */
	int32_t n_first;
	int32_t n, top_n; /* number of scores */
	int32_t yes_no[2];
} Score;

/* ---- requests ---- */

static const json_t *
at(const json_t *v, size_t i)
{
	return json_is_array(v) ? json_array_get(v, i) : v;
}

/* Read a string or a list of strings. */
static bool
count(const json_t *v, const char *what, bool list, size_t *n, Problem *p)
{
	*n = json_is_array(v) ? json_array_size(v) : 1;
	if (!v || json_is_null(v))
		return openai_missing(p, what);
	if (!(json_is_string(v) && !list) && !json_is_array(v))
		return problem(p, 400, what,
		               "Invalid type for '%s': expected %s, but got %s instead.", what,
		               list ? "an array of strings" : "a string or an array of strings",
		               json_type_name(v));
	if (*n == 0)
		return problem(p, 400, what, "Invalid '%s': the array is empty.", what);
	for (size_t i = 0; i < *n; i++) {
		const json_t *one = at(v, i);
		const json_t *text = json_is_object(one)
		                         ? json_object_get(one, "text")
		                         : one; /* Cohere's documents may be objects */
		if (!json_is_string(text))
			return problem(
			    p, 400, what,
			    "Invalid type for '%s[%zu]': expected a string, but got %s instead.",
			    what, i, json_type_name(text));
	}
	return true;
}

static const json_t *
text_at(const json_t *v, size_t i)
{
	const json_t *one = at(v, i);

	return json_is_object(one) ? json_object_get(one, "text") : one;
}

/* Look up a word that must be one token. */
static bool
one_token(const Generation *g, const char *word, int32_t *id, Problem *p)
{
	llmc_error err;
	size_t n = 0;

	if (llmc_tokenize(g->model->back.tok, word, strlen(word), 0, id, 1, &n, &err) == LLMC_OK &&
	    n == 1)
		return true;
	return problem(p, 400, "model",
	               "This generative model's tokenizer has no token '%s', so the model cannot "
	               "score documents.",
	               word);
}

/* Choose how this model scores, and read the fields that only some methods accept. */
static bool
read_judge(Generation *g, const json_t *o, Problem *p)
{
	Score *own = gen_own(g);
	const llmc_model_info *m = &g->model->back.info;

	own->judge = m->output == LLMC_OUTPUT_HIDDEN   ? JUDGE_COSINE
	             : m->output == LLMC_OUTPUT_LABELS ? JUDGE_LABEL
	                                               : JUDGE_YES;
	if (own->judge == JUDGE_LABEL && m->out_width != 1)
		return problem(p, 400, "model",
		               "This classifier has %d labels: scores need a classifier with one "
		               "label. /v1/embeddings returns those of all labels.",
		               m->out_width);
	if (own->judge != JUDGE_YES) {
		if (!embeddings_pool(g, o, p))
			return false;
		/* only vectors: a normalised single logit is 1 or -1 */
		g->er.normalize = g->er.normalize && own->judge == JUDGE_COSINE;
		return true;
	}
	if (!g->model->back.tok || !m->has_chat_template)
		return problem(
		    p, 400, "model",
		    "This generative model has no chat template, so it cannot score documents.");
	g->er.pool = LLMC_POOL_LAST;
	g->er.pool_tok = own->yes_no;
	g->er.n_pool_tok = 2;
	return one_token(g, "yes", &own->yes_no[0], p) && one_token(g, "no", &own->yes_no[1], p);
}

bool
embeddings_pair(const Generation *g, const json_t *a, const json_t *b, bool cut, SubRequest *sub,
                Problem *p)
{
	char limit[MODEL_LIMIT_TEXT];
	size_t most = (size_t)g->model->max_total, n_first = 0, n_second = 0;
	int32_t *first = NULL, *second = NULL;

	if (!tokenize_prompt(g->model, json_string_value(a), json_string_length(a),
	                     LLMC_PARSE_SPECIAL | LLMC_ADD_FIRST, most, &first, &n_first, p))
		return false;
	bool ok = tokenize_prompt(g->model, json_string_value(b), json_string_length(b),
	                          LLMC_PARSE_SPECIAL | LLMC_ADD_SECOND, cut ? SIZE_MAX : most,
	                          &second, &n_second, p);
	if (ok && (n_first >= most || (n_first + n_second > most && !cut))) {
		problem(p, 400, NULL, "%s However, query and document have at least %zu.",
		        model_limit_text(g->model, (int64_t)most, limit), n_first + n_second);
		ok = problem_length(p, n_first + n_second, 0, most);
	}
	if (ok) {
		n_second = embeddings_cut(g, LLMC_ADD_SECOND, second, n_second, most - n_first);
		/* the separator between both strings counts as part of the first one */
		size_t between, after;
		embeddings_added(g, LLMC_ADD_SECOND, &between, &after);
		sub->n_first = n_first + between;
		sub->n_tok = n_first + n_second;
		sub->tok = malloc((sub->n_tok + 1) * sizeof *sub->tok);
		ok = sub->tok || problem_memory(p);
	}
	if (ok) {
		memcpy(sub->tok, first, n_first * sizeof *first);
		memcpy(sub->tok + n_first, second, n_second * sizeof *second);
	}
	if (ok && !sub->n_tok)
		ok = problem(p, 400, NULL, "Query and document are empty.");
	free(first);
	free(second);
	return ok;
}

/* Build the prompt for a generative model by its chat template. */
static bool
question(const Generation *g, const char *instruction, const json_t *a, const json_t *b,
         SubRequest *sub, Problem *p)
{
	static const char system[] =
	    "Judge whether the Document meets the requirements based on the Query and the Instruct "
	    "provided. Note that the answer can only be \"yes\" or \"no\".";
	Strbuf ask = { 0 };
	char *text = NULL;
	size_t n = 0, most = (size_t)g->model->max_input;

	strbuf_printf(&ask, "<Instruct>: %s\n<Query>: ", instruction);
	strbuf_add(&ask, json_string_value(a), json_string_length(a));
	strbuf_puts(&ask, "\n<Document>: ");
	strbuf_add(&ask, json_string_value(b), json_string_length(b));
	json_t *body = ask.failed ? NULL
	                          : json_pack("{s:[{s:s, s:s}, {s:s, s:s%}], s:{s:b}}", "messages",
	                                      "role", "system", "content", system, "role", "user",
	                                      "content", strbuf_str(&ask), ask.len,
	                                      "chat_template_kwargs", "enable_thinking", 0);
	strbuf_release(&ask);
	bool ok = body ? chat_render(g->model, body, NULL, NULL, &text, &n, p) : problem_memory(p);
	json_decref(body);
	ok = ok && tokenize_prompt(g->model, text, n, chat_flags(g->model), most, &sub->tok,
	                           &sub->n_tok, p);
	free(text);
	if (ok && (!sub->tok || sub->n_tok > most)) {
		problem(p, 400, NULL,
		        "This model accepts prompts of %zu tokens, query and document have at "
		        "least %zu.",
		        most, sub->n_tok);
		return problem_length(p, sub->n_tok, 0, most);
	}
	return ok;
}

void
tei_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };
	int status = p->n_prompt ? 413 : p->status == 400 ? 422 : p->status;

	json_printf(&b, "{\"error\":%s,\"error_type\":%s}", p->text,
	            status == 429   ? "Overloaded"
	            : status == 503 ? "Unhealthy"
	            : status >= 500 ? "Backend"
	                            : "Validation");
	req_answer(r, status, type_json, &b);
}

bool
tei_truncation(const json_t *o, bool *cut, Problem *p)
{
	const json_t *side = json_object_get(o, "truncation_direction");

	if (json_is_string(side) && strcasecmp(json_string_value(side), "right") != 0)
		return problem(p, 400, "truncation_direction",
		               "'truncation_direction' is not supported: inputs are cut on the "
		               "right.");
	return field_bool(o, "truncate", cut, p);
}

/* Read the fields that only TEI's rerank has. */
static bool
read_tei(Generation *g, const json_t *o, bool *cut, Problem *p)
{
	Score *own = gen_own(g);

	g->req->problem = tei_problem;
	own->show = false;
	return field_bool(o, "raw_scores", &own->raw, p) &&
	       field_bool(o, "return_text", &own->show, p) && tei_truncation(o, cut, p);
}

static bool
read_score(Generation *g, const json_t *o, const void *rerank, Problem *p)
{
	Score *own = gen_own(g);
	own->rerank = own->show = *(const bool *)rerank;
	own->tei = own->rerank && json_object_get(o, "texts") && !json_object_get(o, "documents");
	const char *one = own->rerank ? "query" : "text_1", *two = own->tei      ? "texts"
	                                                           : own->rerank ? "documents"
	                                                                         : "text_2";
	bool cuts = false;
	const json_t *a = json_object_get(o, one), *b = json_object_get(o, two),
	             *task = json_object_get(o, "instruction");
	const char *instruction =
	    "Given a web search query, retrieve relevant passages that answer the query";
	size_t n = 0, m = 0;
	int64_t top = 0;

	own->base.created = time(NULL);
	snprintf(own->base.id, sizeof own->base.id, "%s-%016llx", own->rerank ? "rerank" : "score",
	         (unsigned long long)random_u64());
	g->max_new = 1;
	if ((own->tei && !read_tei(g, o, &cuts, p)) || !openai_model(g->req, o, p) ||
	    !read_judge(g, o, p) || !count(a, one, false, &n, p) ||
	    !count(b, two, own->rerank, &m, p) ||
	    !field_int(o, "top_n", 0, INT32_MAX, &top, NULL, p) ||
	    !field_bool(o, "return_documents", &own->show, p))
		return false;
	const bool pairs = own->judge != JUDGE_COSINE;
	const size_t n_sub = pairs ? m : n + m;
	if (own->rerank && n != 1)
		return problem(
		    p, 400, "query",
		    "Invalid 'query': one query is compared with the documents, got %zu.", n);
	if (n != 1 && n != m)
		return problem(p, 400, "text_2",
		               "'text_1' has %zu strings and 'text_2' %zu: expected equal numbers, "
		               "or one in 'text_1'.",
		               n, m);
	if (!embeddings_count(g, two, n_sub, p) || !embeddings_truncation(o, &cuts, p) ||
	    !field_text(o, "instruction", NULL, p))
		return false;
	if (json_is_string(task) && own->judge != JUDGE_YES)
		return problem(p, 400, "instruction",
		               "'instruction' is for generative rerankers: this model was trained "
		               "on inputs without one.");
	if (json_is_string(task))
		instruction = json_string_value(task);
	if (!gen_prompts(g, (int32_t)n_sub, p))
		return false;
	own->n_first = (int32_t)n;
	own->n = (int32_t)m;
	own->top_n = (int32_t)(top && (size_t)top < m ? top : (int64_t)m);
	for (size_t i = 0; !pairs && i < n; i++)
		if (!embeddings_text(g, text_at(a, i), one, i, cuts, &g->sub[i], p))
			return false;
	for (size_t i = 0; i < m; i++) {
		const json_t *v = text_at(b, i), *with = text_at(a, n > 1 ? i : 0);
		SubRequest *sub = &g->sub[pairs ? i : n + i];
		if (!(own->judge == JUDGE_COSINE  ? embeddings_text(g, v, two, i, cuts, sub, p)
		      : own->judge == JUDGE_LABEL ? embeddings_pair(g, with, v, cuts, sub, p)
		                                  : question(g, instruction, with, v, sub, p)))
			return false;
		if (!own->rerank || !own->show)
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

void
embeddings_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)g;
	(void)sub;
	if (ev->vector)
		strbuf_add(&c->text, (const char *)ev->vector,
		           (size_t)ev->n_vector * sizeof *ev->vector);
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

/* Return the probability of yes versus no, or of the label. raw: return the logit instead. */
static double
odds(const Strbuf *x, bool raw)
{
	float v[2] = { 0 };

	memcpy(v, x->data, x->len < sizeof v ? x->len : sizeof v);
	return raw ? (double)v[0] - (double)v[1] : 1 / (1 + exp((double)v[1] - (double)v[0]));
}

static int
by_score(const void *pa, const void *pb)
{
	const Rank *a = pa, *b = pb;

	return a->score > b->score ? -1 : a->score < b->score ? 1 : a->index - b->index;
}

void
embeddings_sort(Rank *rank, size_t n)
{
	qsort(rank, n, sizeof *rank, by_score);
}

void
embeddings_list_begin(const Generation *g, Strbuf *b)
{
	const OpenAi *own = openai_own(g);

	json_printf(b, "{\"id\":%s,\"object\":\"list\",\"created\":%lld,\"model\":%s,\"data\":[",
	            own->id, (long long)own->created, g->model->name);
}

void
embeddings_list_end(const Generation *g, Strbuf *b)
{
	int32_t n_prompt, n_new, n_cached;

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	json_printf(
	    b, "],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":0}}",
	    n_prompt, n_prompt);
}

static void
on_done(Generation *g)
{
	const Score *own = gen_own(g);
	int32_t n_prompt, n_new, n_cached, m = own->n;
	Rank *rank = calloc((size_t)m, sizeof *rank);
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	b.failed = !rank;
	for (int32_t i = 0; rank && i < m; i++) {
		const bool pairs = own->judge != JUDGE_COSINE;
		const Strbuf *x = &g->choice[pairs || own->n_first > 1 ? i : 0].text,
		             *y = &g->choice[pairs ? i : own->n_first + i].text;
		b.failed |= x->failed || y->failed;
		rank[i] = (Rank){ i, b.failed ? 0 : pairs ? odds(x, own->raw) : cosine(x, y) };
	}
	if (rank && own->rerank)
		embeddings_sort(rank, (size_t)m);
	if (own->tei)
		strbuf_putc(&b, '[');
	else if (own->rerank)
		json_printf(
		    &b,
		    "{\"id\":%s,\"model\":%s,\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d},"
		    "\"results\":[",
		    own->base.id, g->model->name, n_prompt, n_prompt);
	else
		embeddings_list_begin(g, &b);
	for (int32_t i = 0; rank && i < (own->rerank ? own->top_n : m); i++) {
		strbuf_puts(&b, i ? "," : "");
		if (!own->rerank) {
			json_printf(&b, "{\"index\":%d,\"object\":\"score\",\"score\":%g}", i,
			            rank[i].score);
			continue;
		}
		const SubRequest *sub =
		    &g->sub[(own->judge == JUDGE_COSINE ? own->n_first : 0) + rank[i].index];
		json_printf(&b,
		            own->tei ? "{\"index\":%d,\"score\":%g"
		                     : "{\"index\":%d,\"relevance_score\":%g",
		            rank[i].index, rank[i].score);
		if (own->show) {
			strbuf_puts(&b, own->tei ? ",\"text\":" : ",\"document\":{\"text\":");
			json_str(&b, sub->echo, sub->n_echo);
			strbuf_puts(&b, own->tei ? "" : "}");
		}
		strbuf_puts(&b, "}");
	}
	if (own->rerank)
		strbuf_puts(&b, own->tei ? "]" : "]}");
	else
		embeddings_list_end(g, &b);
	free(rank);
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = { .own_bytes = sizeof(Score),
	                         .finish = embeddings_finish,
	                         .done = on_done };

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
