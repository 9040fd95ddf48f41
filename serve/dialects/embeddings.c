/* Embeddings: OpenAI's /v1/embeddings, Ollama's /api/embed and llama.cpp's /embedding. An embedding
 * model has a default pooling (llmc_model_info), which a request may override. An input longer than
 * the context is refused unless the request allows truncation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "serve/dialects/embeddings.h"
#include "serve/dialects/keep_alive.h"
#include "serve/dialects/openai.h"

enum { MAX_TEXTS = 2048 };

typedef enum EmbeddingsForm { OF_OPENAI, OF_OLLAMA, OF_LCPP } EmbeddingsForm;

typedef struct Embeddings {
	OpenAi base;
	bool base64;
	EmbeddingsForm form;
	int32_t dimensions; /* 0: full length */
	int64_t norm;       /* llama.cpp's embd_normalize */
} Embeddings;

/* ---- requests ---- */

void
embeddings_added(const Generation *g, int flags, size_t *before, size_t *after)
{
	const llmc_tokenizer *tok = g->model->back.tok;
	int32_t with[64], plain[64];
	size_t n = 0, k = 0;
	llmc_error err;

	*before = *after = 0;
	if (llmc_tokenize(tok, "a", 1, flags, with, 64, &n, &err) != LLMC_OK ||
	    llmc_tokenize(tok, "a", 1, 0, plain, 64, &k, &err) != LLMC_OK || k < 1)
		return;
	for (size_t i = 0; i + k <= n; i++)
		if (!memcmp(with + i, plain, k * sizeof *plain)) {
			*before = i;
			*after = n - k - i;
			return;
		}
}

size_t
embeddings_cut(const Generation *g, int flags, int32_t *ids, size_t n, size_t most)
{
	if (n <= most)
		return n;
	size_t before, after = 0;
	if (flags)
		embeddings_added(g, flags, &before, &after);
	if (after < most)
		memmove(ids + most - after, ids + n - after, after * sizeof *ids);
	return most;
}

bool
embeddings_text(const Generation *g, const json_t *v, const char *what, size_t i, bool cut,
                SubRequest *sub, Problem *p)
{
	char limit[MODEL_LIMIT_TEXT];
	int32_t most = g->model->max_total;

	if (json_is_array(v)) {
		if (!token_ids(v, g->model->back.info.vocab, what, &sub->tok, &sub->n_tok, p))
			return false;
	} else if (!json_is_string(v)) {
		return problem(p, 400, what,
		               "Invalid type for '%s[%zu]': expected a string or an array of token "
		               "ids, but got %s instead.",
		               what, i, json_type_name(v));
	} else if (!tokenize_prompt(g->model, json_string_value(v), json_string_length(v),
	                            LLMC_PARSE_SPECIAL | LLMC_ADD_SPECIAL,
	                            cut ? SIZE_MAX : (size_t)most, &sub->tok, &sub->n_tok, p)) {
		return false;
	}
	if (sub->n_tok == 0)
		return problem(p, 400, what, "Invalid '%s[%zu]': the input is empty.", what, i);
	if (sub->n_tok > (size_t)most && !cut) {
		problem(p, 400, what, "%s However, '%s[%zu]' has %s%zu.",
		        model_limit_text(g->model, most, limit), what, i,
		        sub->tok ? "" : "at least ", sub->n_tok);
		return problem_length(p, sub->n_tok, 0, (size_t)most);
	}
	sub->n_tok = embeddings_cut(g, json_is_string(v) ? LLMC_ADD_SPECIAL : 0, sub->tok,
	                            sub->n_tok, (size_t)most);
	return true;
}

bool
embeddings_count(const Generation *g, const char *what, size_t n, Problem *p)
{
	const int32_t limit = g->model->back.max_concurrent;
	const size_t most = limit && limit < MAX_TEXTS ? (size_t)limit : MAX_TEXTS;

	if (n == 0)
		return problem(p, 400, what, "Invalid '%s': the array is empty.", what);
	return n <= most ||
	       problem(p, 400, what,
	               "Invalid '%s': %zu inputs in one request, at most %zu are allowed.", what, n,
	               most);
}

bool
embeddings_truncation(const json_t *o, bool *cut, Problem *p)
{
	const json_t *v = json_object_get(o, "truncate_prompt_tokens");

	if (!v || json_is_null(v))
		return true;
	if (!json_is_integer(v) || json_integer_value(v) != -1)
		return problem(p, 400, "truncate_prompt_tokens",
		               "Invalid 'truncate_prompt_tokens': expected -1, which truncates an "
		               "input to the model's context.");
	*cut = true;
	return true;
}

/* ---- prompts of sentence-transformers ---- */

static const llmc_input_prompt *
prompt_named(const Backend *b, const char *name, bool any_case)
{
	for (size_t i = 0; i < b->n_prompt; i++)
		if (!(any_case ? strcasecmp : strcmp)(b->prompts[i].name, name))
			return &b->prompts[i];
	return NULL;
}

static bool
unknown_prompt(const Backend *b, const char *key, const char *name, Problem *p)
{
	Strbuf names = { 0 };

	for (size_t i = 0; i < b->n_prompt; i++)
		strbuf_printf(&names, "%s'%s'", i ? ", " : "", b->prompts[i].name);
	problem(p, 400, key, "Invalid '%s': this model has no prompt '%.60s'; it has %s.", key,
	        name, names.len ? strbuf_str(&names) : "none");
	strbuf_release(&names);
	return false;
}

/* Choose the string that is put before each input: the prompt that the request names, or the one
 * for its kind of input, or the model's default. *named: the request has chosen it. */
static bool
read_prompt(const Generation *g, const json_t *o, const char **text, bool *named, Problem *p)
{
	/* names in sentence-transformers' order of preference */
	static const char *const kinds[][6] = { { "query", "search_query", NULL },
		                                { "document", "search_document", "passage",
		                                  "corpus", NULL } };
	const Backend *b = &g->model->back;
	const llmc_input_prompt *found = NULL;
	const char *name, *kind;
	bool known = false;

	if (!field_text(o, "prompt_name", &name, p) || !field_text(o, "input_type", &kind, p))
		return false;
	*text = "";
	*named = name || kind;
	for (size_t i = 0; i < b->n_prompt; i++)
		if (b->prompts[i].usual)
			*text = b->prompts[i].text;
	if (!*named)
		return true;
	found = prompt_named(b, name ? name : kind, !name);
	for (size_t i = 0; !name && !found && i < sizeof kinds / sizeof *kinds; i++) {
		bool this_kind = false;
		for (const char *const *k = kinds[i]; *k; k++)
			this_kind |= !strcasecmp(*k, kind);
		for (const char *const *k = kinds[i]; this_kind && *k && !found; k++)
			found = prompt_named(b, *k, true);
		known |= this_kind;
	}
	if (!found && !known)
		return unknown_prompt(b, name ? "prompt_name" : "input_type", name ? name : kind,
		                      p);
	*text = found ? found->text : *text;
	*named = found != NULL;
	return true;
}

static bool
with_prompt(Generation *g, const char *key, const json_t *v, const char *prompt, bool named,
            size_t i, bool cut, Problem *p)
{
	if (!json_is_string(v) && named)
		return problem(p, 400, key,
		               "Invalid '%s[%zu]': token ids have no prompt before them; send "
		               "a string.",
		               key, i);
	if (!json_is_string(v) || !*prompt)
		return embeddings_text(g, v, key, i, cut, &g->sub[i], p);
	Strbuf text = { 0 };
	strbuf_puts(&text, prompt);
	strbuf_add(&text, json_string_value(v), json_string_length(v));
	json_t *both = text.failed ? NULL : json_stringn(strbuf_str(&text), text.len);
	strbuf_release(&text);
	bool ok = both ? embeddings_text(g, both, key, i, cut, &g->sub[i], p) : problem_memory(p);
	json_decref(both);
	return ok;
}

/* Read one string, one list of ids, or a list of either. key: name of the field */
static bool
read_input(Generation *g, const json_t *o, const char *key, bool cut, Problem *p)
{
	const json_t *v = json_object_get(o, key);
	const char *prompt;
	bool named;
	const json_t *first = json_array_get(v, 0);
	bool one = json_is_string(v) || json_is_integer(first);
	size_t n = one ? 1 : json_array_size(v);

	if (!v || json_is_null(v))
		return openai_missing(p, key);
	if (!one && !json_is_array(v))
		return problem(
		    p, 400, key,
		    "Invalid type for '%s': expected a string, an array of strings, an array of "
		    "token ids or an array of such arrays, but got %s instead.",
		    key, json_type_name(v));
	if (!embeddings_count(g, key, n, p) || !gen_prompts(g, (int32_t)n, p) ||
	    !read_prompt(g, o, &prompt, &named, p))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!with_prompt(g, key, one ? v : json_array_get(v, i), prompt, named, i, cut, p))
			return false;
	return true;
}

bool
embeddings_pool(Generation *g, const json_t *o, Problem *p)
{
	static const char *const kinds[] = { "none", "last", "mean", "cls" };
	const llmc_model_info *m = &g->model->back.info;
	const json_t *word = json_object_get(o, "pooling");

	if (m->output == LLMC_OUTPUT_LOGITS)
		return problem(p, 400, "model",
		               "This model generates text, not embeddings: its checkpoint has no "
		               "pooling. Start the server with --set head.kind=hidden for vectors "
		               "of its last hidden states.");
	g->er.pool = m->pool;
	g->er.normalize = m->normalize;
	for (int i = LLMC_POOL_LAST; i <= LLMC_POOL_CLS; i++)
		if (json_is_string(word) && !strcmp(json_string_value(word), kinds[i]))
			g->er.pool = (llmc_pool)i, word = NULL;
	if (word && !json_is_null(word))
		return problem(p, 400, "pooling",
		               "Invalid 'pooling': expected 'last', 'mean' or 'cls'.");
	if (g->er.pool == LLMC_POOL_NONE)
		return problem(p, 400, "pooling",
		               "This model does not specify its pooling: set 'pooling' to last, "
		               "mean or cls, or start the server with --set pool.kind=...");
	return field_bool(o, "normalize", &g->er.normalize, p) &&
	       field_bool(o, "use_activation", &g->er.normalize, p); /* vLLM's name */
}

/* Read llama.cpp's own fields. input comes before content. */
static bool
read_lcpp(Generation *g, const json_t *o, Problem *p)
{
	Embeddings *own = gen_own(g);
	const json_t *input = json_object_get(o, "input");
	const bool by_content = (!input || json_is_null(input)) && json_object_get(o, "content");

	own->norm = 2;
	if (!field_int(o, "embd_normalize", -1, INT32_MAX, &own->norm, NULL, p))
		return false;
	g->er.normalize = own->norm == 2;
	return read_input(g, o, by_content ? "content" : "input", false, p);
}

static bool
read_embeddings(Generation *g, const json_t *o, const void *form, Problem *p)
{
	Embeddings *own = gen_own(g);
	const json_t *format = json_object_get(o, "encoding_format");
	int64_t dimensions = 0;
	bool cut = false;

	own->form = *(const EmbeddingsForm *)form;
	g->max_new = 1;
	if (!fields_check(own->form == OF_OLLAMA ? FIELDS_OLLAMA_EMBED : FIELDS_EMBEDDINGS, o, p) ||
	    !openai_model(g->req, o, p) || !embeddings_pool(g, o, p) ||
	    !field_int(o, "dimensions", 1, g->model->back.info.out_width, &dimensions, NULL, p))
		return false;
	own->dimensions = (int32_t)dimensions;
	if (own->form == OF_OLLAMA) {
		bool truncate = true;
		g->er.normalize = true;
		return keep_alive_read(g->req, o, NULL, p) &&
		       field_bool(o, "truncate", &truncate, p) &&
		       read_input(g, o, "input", truncate, p);
	}
	if (own->form == OF_LCPP)
		return read_lcpp(g, o, p);
	if (format && !json_is_null(format) &&
	    (!json_is_string(format) || (strcmp(json_string_value(format), "float") != 0 &&
	                                 strcmp(json_string_value(format), "base64") != 0)))
		return problem(p, 400, "encoding_format",
		               "Invalid 'encoding_format': expected 'float' or 'base64'.");
	if (!embeddings_truncation(o, &cut, p))
		return false;
	own->base64 = json_is_string(format) && !strcmp(json_string_value(format), "base64");
	return read_input(g, o, "input", cut, p);
}

/* ---- answers ---- */

static void
put_base64(Strbuf *b, const unsigned char *data, size_t n)
{
	static const char digit[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < n; i += 3) {
		unsigned v = (unsigned)data[i] << 16 |
		             (i + 1 < n ? (unsigned)data[i + 1] << 8 : 0) |
		             (i + 2 < n ? data[i + 2] : 0);
		strbuf_putc(b, digit[v >> 18]);
		strbuf_putc(b, digit[v >> 12 & 63]);
		strbuf_putc(b, i + 1 < n ? digit[v >> 6 & 63] : '=');
		strbuf_putc(b, i + 2 < n ? digit[v & 63] : '=');
	}
}

void
embeddings_floats(Strbuf *b, const float *x, size_t n)
{
	strbuf_putc(b, '[');
	for (size_t i = 0; i < n; i++)
		json_printf(b, i ? ",%g" : "%g", (double)x[i]);
	strbuf_putc(b, ']');
}

/* Scale by llama.cpp's embd_normalize. 0: the largest absolute value becomes 32760; p of 1 or more:
 * the p-norm becomes 1; -1: unchanged. */
static void
scale(float *x, int32_t n, int64_t p)
{
	double most = 0, sum = 0;

	for (int32_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)x[i]));
	if (p < 0 || !(most > 0))
		return;
	/* a share of the largest value has powers that fit */
	for (int32_t i = 0; p > 0 && i < n; i++)
		sum += pow(fabs((double)x[i]) / most, (double)p);
	const double norm = p == 0 ? most / 32760 : most * pow(sum, 1 / (double)p);
	for (int32_t i = 0; i < n; i++)
		x[i] = (float)((double)x[i] / norm);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	const Embeddings *own = gen_own(g);
	int32_t n =
	    own->dimensions && own->dimensions < ev->n_vector ? own->dimensions : ev->n_vector;
	float *x = malloc(((size_t)n + 1) * sizeof *x);

	(void)sub;
	if (!x || !ev->vector) {
		c->text.failed = true;
		free(x);
		return;
	}
	memcpy(x, ev->vector, (size_t)n * sizeof *x);
	if (n < ev->n_vector && g->er.normalize)
		scale(x, n, 2);
	if (own->form == OF_LCPP && !g->er.normalize)
		scale(x, n, own->norm);
	if (own->base64) {
		strbuf_putc(&c->text, '"');
		put_base64(&c->text, (const unsigned char *)x, (size_t)n * sizeof *x);
		strbuf_putc(&c->text, '"');
	} else {
		embeddings_floats(&c->text, x, (size_t)n);
	}
	free(x);
}

static void
on_done(Generation *g)
{
	static const char *const end[] = { [OF_OPENAI] = "}", [OF_OLLAMA] = "", [OF_LCPP] = "]}" };
	const Embeddings *own = gen_own(g);
	int32_t n_prompt, n_new, n_cached;
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	if (own->form == OF_OLLAMA)
		json_printf(&b, "{\"model\":%s,\"embeddings\":[", g->model->name);
	else
		strbuf_puts(&b, own->form == OF_LCPP ? "[" : "{\"object\":\"list\",\"data\":[");
	for (int32_t i = 0; i < g->n_sub; i++) {
		const Strbuf *text = &g->choice[i].text;
		strbuf_puts(&b, i ? "," : "");
		if (own->form == OF_OPENAI)
			strbuf_printf(&b,
			              "{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i);
		else if (own->form == OF_LCPP) /* a list, as without pooling there would be a
		                                       row per token */
			strbuf_printf(&b, "{\"index\":%d,\"embedding\":[", i);
		strbuf_add(&b, strbuf_str(text), text->len);
		strbuf_puts(&b, end[own->form]);
		b.failed |= text->failed;
	}
	if (own->form == OF_LCPP)
		strbuf_putc(&b, ']');
	else if (own->form == OF_OLLAMA)
		json_printf(
		    &b, "],\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%d}",
		    (long long)(1e9 * (clock_now() - g->req->t_start)), n_prompt);
	else
		json_printf(&b,
		            "],\"model\":%s,\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}",
		            g->model->name, n_prompt, n_prompt);
	req_answer(g->req, 200, type_json, &b);
}

static const Dialect dialect = { .own_bytes = sizeof(Embeddings),
	                         .finish = on_finish,
	                         .done = on_done };

void
openai_embeddings(Req *r)
{
	gen_handle(r, &dialect, read_embeddings, &(EmbeddingsForm){ OF_OPENAI });
}

void
lcpp_embeddings(Req *r)
{
	gen_handle(r, &dialect, read_embeddings, &(EmbeddingsForm){ OF_LCPP });
}

void
ollama_embed(Req *r)
{
	gen_handle(r, &dialect, read_embeddings, &(EmbeddingsForm){ OF_OLLAMA });
}
