/* Information about the server: models, TGI's info, health, version. */
#include <stdlib.h>
#include <string.h>

#include "serve/dialects/generation.h"
#include "base/json.h"
#include "base/text.h"
#include "serve/http/route.h"
#include "serve/models/model_manager.h"
#include "serve/models/catalogue.h"

static void
answer(Req *r, Strbuf *b)
{
	req_answer(r, 200, type_json, b);
}

/* Report whether the client uses Anthropic's API: that API and OpenAI's list models at the same
 * paths. */
static bool
is_anthropic(Req *r)
{
	return req_header(r, "anthropic-version") != NULL;
}

void
info_problem(Req *r, const Problem *p)
{
	(is_anthropic(r) ? anthropic_problem : openai_problem)(r, p);
}

/* Append the further names of the first model, without "*"; lock held. */
static void
put_aliases(const Server *s, const Slot *t, Strbuf *b)
{
	const char *list = t == s->slot[0] ? s->opt.aliases : NULL;
	size_t len;
	int n = 0;

	strbuf_putc(b, '[');
	for (const char *at; (at = text_item(&list, &len)) != NULL;)
		if (len && !(len == 1 && *at == '*')) {
			strbuf_puts(b, n++ ? "," : "");
			json_str(b, at, len);
		}
	strbuf_putc(b, ']');
}

/* Append OpenAI's form; max_model_len is vLLM's, architecture OpenRouter's, meta llama.cpp's. */
static void
one_model(const Server *s, const Slot *t, Strbuf *b) /* lock held */
{
	const llmc_model_info *i = &t->about.info;

	json_printf(b,
	            "{\"id\":%s,\"object\":\"model\",\"created\":%lld,\"owned_by\":\"llmc\","
	            "\"root\":%s,\"parent\":%s,\"aliases\":",
	            t->name, (long long)s->started, t->unread ? t->name : i->name, t->parent);
	put_aliases(s, t, b);
	strbuf_puts(b, ",\"status\":");
	slot_status(t, b);
	json_printf(b, ",\"weights\":{\"version\":%lld,\"name\":%s}",
	            t->model ? (long long)t->model->n_replaced : 0LL,
	            t->model && *t->model->weights_name ? t->model->weights_name : NULL);
	if (t->unread) { /* the model's description is still being read */
		strbuf_puts(b, ",\"max_model_len\":null,\"meta\":null}");
		return;
	}
	json_printf(b, ",\"max_model_len\":%d,", t->max_total);
	strbuf_printf(b,
	              "\"architecture\":{\"input_modalities\":[\"text\"%s],\"output_modalities\":"
	              "[\"text\"]},",
	              i->reads_images ? ",\"image\"" : "");
	json_printf(b,
	            "\"meta\":{\"n_vocab\":%d,\"n_ctx_train\":%d,\"n_embd\":%d,\"n_params\":%lld,"
	            "\"size\":%lld}}",
	            i->vocab, i->max_positions, i->hidden, (long long)i->n_params,
	            (long long)i->weight_bytes);
}

static void
begin_anthropic(const char *name, time_t created, Strbuf *b)
{
	json_printf(b, "{\"type\":\"model\",\"id\":%s,\"display_name\":%s,\"created_at\":", name,
	            name);
	json_time(b, created);
	strbuf_puts(b, ",\"lifecycle\":\"active\"");
}

static void
one_anthropic(const Server *s, const Slot *t, Strbuf *b) /* lock held */
{
	begin_anthropic(t->name, s->started, b);
	if (!t->unread)
		strbuf_printf(
		    b,
		    ",\"max_input_tokens\":%d,\"max_tokens\":%d,\"capabilities\":{\"image_input\":"
		    "{\"supported\":%s}}",
		    t->max_input, t->max_total, t->about.info.reads_images ? "true" : "false");
	strbuf_putc(b, '}');
}

/* Append a model of the catalogue that no request has used yet. */
static void
one_found(const FoundModel *f, bool anthropic, Strbuf *b)
{
	if (anthropic) {
		begin_anthropic(f->name, f->modified, b);
		strbuf_putc(b, '}');
	} else {
		json_printf(b,
		            "{\"id\":%s,\"object\":\"model\",\"created\":%lld,\"owned_by\":"
		            "\"llmc\",\"root\":%s,\"parent\":null,\"status\":{\"value\":%s},"
		            "\"max_model_len\":null,\"meta\":null}",
		            f->name, (long long)f->modified, f->name, "unloaded");
	}
}

void
info_models(Req *r)
{
	Server *s = r->srv;
	const char *first = NULL, *last = NULL;
	bool anthropic = is_anthropic(r);
	FoundModels found = catalogue_list(s);
	Strbuf b = { 0 };

	strbuf_puts(&b, anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		if (s->slot[i]->removed)
			continue;
		strbuf_puts(&b, last ? "," : "");
		last = s->slot[i]->name;
		first = first ? first : last;
		(anthropic ? one_anthropic : one_model)(s, s->slot[i], &b);
	}
	for (size_t i = 0; i < found.n; i++) {
		if (slot_find(s, found.at[i].name))
			continue;
		strbuf_puts(&b, last ? "," : "");
		last = found.at[i].name;
		first = first ? first : last;
		one_found(&found.at[i], anthropic, &b);
	}
	strbuf_putc(&b, ']');
	if (anthropic) /* there is one page with all models */
		json_printf(&b, ",\"has_more\":false,\"first_id\":%s,\"last_id\":%s", first, last);
	pthread_mutex_unlock(&s->lock);
	strbuf_putc(&b, '}');
	catalogue_free(&found);
	answer(r, &b);
}

void
info_model(Req *r)
{
	Server *s = r->srv;
	const Slot *t = models_find(s, r->tail);
	FoundModels found = t ? (FoundModels){ 0 } : catalogue_list(s);
	const FoundModel *f = catalogue_entry(&found, r->tail);
	Strbuf b = { 0 };
	Problem p;

	if (t) {
		pthread_mutex_lock(&s->lock);
		(is_anthropic(r) ? one_anthropic : one_model)(s, t, &b);
		pthread_mutex_unlock(&s->lock);
	} else if (f) {
		one_found(f, is_anthropic(r), &b);
	} else {
		models_unknown(s, r->tail, &p);
	}
	catalogue_free(&found);
	if (t || f)
		answer(r, &b);
	else
		req_problem(r, &p);
}

void
info_tgi(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };

	pthread_mutex_lock(&s->lock);
	const Slot *t = slot_shown(s);
	const char *target = t->about.info.target;
	json_printf(&b,
	            "{\"model_id\":%s,\"model_sha\":null,\"model_dtype\":%s,\"model_device_type\":%"
	            "s,\"model_pipeline_tag\":\"text-generation\",",
	            t->name, t->about.dtype,
	            !*target                     ? NULL
	            : strncmp(target, "cuda", 4) ? "cpu"
	                                         : "cuda");
	json_printf(&b,
	            "\"max_concurrent_requests\":%d,\"max_best_of\":%d,\"max_stop_sequences\":%d,"
	            "\"max_input_length\":%d,\"max_total_tokens\":%d,",
	            t->about.max_concurrent, s->opt.max_best_of, s->opt.max_stop_sequences,
	            t->max_input, t->max_total);
	json_printf(&b,
	            "\"waiting_served_ratio\":%g,\"max_batch_total_tokens\":%lld,\"max_waiting_"
	            "tokens\":%d,\"validation_workers\":%d,",
	            (double)t->about.waiting_served_ratio, (long long)t->about.max_batch_total,
	            t->about.max_waiting_tokens, s->opt.validation_workers);
	json_printf(&b,
	            "\"max_input_tokens\":%d,\"max_client_batch_size\":%d,\"router\":\"llmc\","
	            "\"version\":%s,\"sha\":null,\"docker_label\":null}",
	            t->max_input, s->opt.max_best_of, llmc_version());
	pthread_mutex_unlock(&s->lock);
	answer(r, &b);
}

void
info_version(Req *r)
{
	Strbuf b = { 0 };

	json_printf(&b, "{\"version\":%s}", llmc_version());
	answer(r, &b);
}

/* llama.cpp's clients read a body at /health; TGI's and SGLang's paths have none. */
static void
healthy(Req *r)
{
	Strbuf b = { 0 };

	if (strcmp(r->path, "/health") != 0 && strcmp(r->path, "/v1/health") != 0) {
		req_answer(r, 200, NULL, NULL);
		return;
	}
	strbuf_puts(&b, "{\"status\":\"ok\"}");
	req_answer(r, 200, type_json, &b);
}

static void
answer_healthy(Generation *g)
{
	healthy(g->req);
}

static void
answer_unhealthy(Req *r)
{
	Problem p;

	problem(&p, 503, NULL, "unhealthy");
	p.type = "healthcheck";
	req_problem(r, &p);
}

static void
failed(Generation *g, const Problem *p)
{
	(void)p;
	answer_unhealthy(g->req);
}

static const Dialect health = { .done = answer_healthy, .problem = failed };

/* Health check. The first check of each engine generates one token; later ones use the engine's
 * state. A model that sleeps or is being opened counts as healthy. */
void
info_health(Req *r)
{
	Server *s = r->srv;
	Problem p;
	int32_t *tok;
	bool ill;

	r->model = models_unproven(s, &ill);
	ill |= s->leaving || s->draining;
	if (!r->model && !ill) {
		healthy(r);
		return;
	}
	Generation *g = ill ? NULL : gen_new(r, &health);
	if (g && gen_prompts(g, 1, &p) && (tok = malloc(sizeof *tok)) != NULL) {
		*tok = r->model->back.info.bos >= 0 ? r->model->back.info.bos : 0;
		g->sub[0].tok = tok;
		g->sub[0].n_tok = 1;
		g->max_new = 1;
		g->er.pool = r->model->back.info.output == LLMC_OUTPUT_LOGITS ? LLMC_POOL_NONE
		                                                              : LLMC_POOL_LAST;
		if (gen_start(g, &p))
			return;
		if (p.status == 429) /* a busy server is healthy */
			healthy(r);
		else
			answer_unhealthy(r);
		return;
	}
	gen_free(g);
	answer_unhealthy(r);
}
