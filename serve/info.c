/* What the server is and how it fares: models, TGI's info, health, version. */
#include <stdlib.h>
#include <string.h>

#include "serve/gen.h"
#include "base/json.h"
#include "serve/route.h"

static void
answer(Req *r, Strbuf *b)
{
	req_answer(r, 200, type_json, b);
}

static void
one_model(Server *s, Strbuf *b)
{
	json_printf(b, "{\"id\":%s,\"object\":\"model\",\"created\":%lld,\"owned_by\":\"llmc\",\"root\":%s,\"parent\":null,\"max_model_len\":%d}",
	            s->model_name, (long long)s->started, s->back.info.name, s->max_total);
}

void
info_models(Req *r)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, "{\"object\":\"list\",\"data\":[");
	one_model(r->srv, &b);
	strbuf_puts(&b, "]}");
	answer(r, &b);
}

void
info_model(Req *r)
{
	Strbuf b = { 0 };
	Problem p;

	if (strcmp(r->tail, r->srv->model_name) != 0) {
		problem(&p, 404, "model", "The model '%s' does not exist; this server has '%s'.", r->tail, r->srv->model_name);
		p.code = "model_not_found";
		req_problem(r, &p);
		return;
	}
	one_model(r->srv, &b);
	answer(r, &b);
}

void
info_tgi(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };

	json_printf(&b, "{\"model_id\":%s,\"model_sha\":null,\"model_dtype\":%s,\"model_device_type\":%s,\"model_pipeline_tag\":\"text-generation\",",
	            s->model_name, s->back.dtype, strncmp(s->back.info.target, "cuda", 4) ? "cpu" : "cuda");
	json_printf(&b, "\"max_concurrent_requests\":%d,\"max_best_of\":%d,\"max_stop_sequences\":%d,\"max_input_length\":%d,\"max_total_tokens\":%d,",
	            s->back.max_concurrent, s->opt.max_best_of, s->opt.max_stop_sequences, s->max_input, s->max_total);
	json_printf(&b, "\"waiting_served_ratio\":%g,\"max_batch_total_tokens\":%lld,\"max_waiting_tokens\":%d,\"validation_workers\":%d,",
	            (double)s->back.waiting_served_ratio, (long long)s->back.max_batch_total, s->back.max_waiting_tokens, s->opt.validation_workers);
	json_printf(&b, "\"max_input_tokens\":%d,\"max_client_batch_size\":%d,\"router\":\"llmc\",\"version\":%s,\"sha\":null,\"docker_label\":null}",
	            s->max_input, s->opt.max_best_of, llmc_version());
	answer(r, &b);
}

void
info_version(Req *r)
{
	Strbuf b = { 0 };

	json_printf(&b, "{\"version\":%s}", llmc_version());
	answer(r, &b);
}

static void
well(Gen *g)
{
	req_answer(g->req, 200, NULL, NULL);
}

static void
unwell(Req *r)
{
	Problem p;

	problem(&p, 503, NULL, "unhealthy");
	p.type = "healthcheck";
	req_problem(r, &p);
}

static void
failed(Gen *g, const Problem *p)
{
	(void)p;
	unwell(g->req);
}

static const Dialect health = { .done = well, .problem = failed };

/* The first time a token is really made; later the engine's own word is taken. */
void
info_health(Req *r)
{
	Server *s = r->srv;
	Problem p;
	int32_t *tok;

	pthread_mutex_lock(&s->lock);
	bool healthy = s->healthy, ill = s->failed || s->leaving || s->draining;
	pthread_mutex_unlock(&s->lock);
	if (healthy && !ill) {
		req_answer(r, 200, NULL, NULL);
		return;
	}
	Gen *g = ill ? NULL : gen_new(r, &health);
	if (g && gen_prompts(g, 1, &p) && (tok = malloc(sizeof *tok)) != NULL) {
		*tok = s->back.info.bos >= 0 ? s->back.info.bos : 0;
		g->sub[0].tok = tok;
		g->sub[0].n_tok = 1;
		g->max_new = 1;
		g->er.pool = s->back.info.output == LLMC_OUTPUT_LOGITS ? LLMC_POOL_NONE : LLMC_POOL_LAST;
		if (gen_start(g, &p))
			return;
		if (p.status == 429) /* busy is not ill */
			req_answer(r, 200, NULL, NULL);
		else
			unwell(r);
		return;
	}
	gen_free(g);
	unwell(r);
}
