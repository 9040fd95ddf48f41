/* llama.cpp's GET /props, GET /slots and GET /lora-adapters, and its calls that change these. A
 * slot is a sequence of the batch. Slots belong to no client, so prompts are not shown. */
#include <string.h>

#include "base/json.h"
#include "serve/dialects/sampling_fields.h"
#include "serve/dialects/tokenize.h"
#include "serve/http/route.h"
#include "serve/models/model.h"

/* Append the sampling parameters of a /completion request without any. */
static void
defaults(const SamplingDefaults *usual, Strbuf *b)
{
	size_t n;
	const llmc_option *option = llmc_sampling_options(&n);

	strbuf_puts(b, "{\"n_predict\":-1,\"stream\":false,\"seed\":-1");
	for (const llmc_option *k = option; k < option + n; k++) {
		if (k->http_least > k->http_most)
			continue;
		const double x = sampling_default(k, (size_t)(k - option), usual);
		json_printf(b, ",%s:", k->alias ? k->alias : k->name);
		if (k->kind == LLMC_OPTION_BOOL)
			strbuf_puts(b, x > 0 ? "true" : "false");
		else
			json_num(b, x, 6);
	}
	strbuf_putc(b, '}');
}

static void
token(const ServedModel *m, int32_t id, Strbuf *b)
{
	Strbuf raw = { 0 };

	if (m && m->back.tok && id >= 0)
		token_bytes(m->back.tok, id, &raw);
	json_str(b, strbuf_str(&raw), raw.len);
	strbuf_release(&raw);
}

void
slots_props(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };

	pthread_mutex_lock(&s->lock);
	const Slot *t = slot_shown(s);
	const ServedModel *m = t->model; /* NULL: asleep */
	const llmc_model_info *i = &t->about.info;
	const SamplingDefaults usual = {
		.advice = s->opt.neutral_sampling ? NULL : &t->about.advice,
		.server = LLMC_DEFAULT_LLAMA_CPP,
	};
	const char *template = m ? llmc_chat_template(m->back.tok) : NULL;
	json_printf(&b, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":", t->max_total);
	defaults(&usual, &b);
	json_printf(&b, "},\"total_slots\":%d,\"model_alias\":%s,\"model_path\":%s,",
	            t->about.limits.seqs, t->name, i->name);
	strbuf_printf(&b, "\"modalities\":{\"vision\":%s,\"audio\":false},",
	              i->reads_images ? "true" : "false");
	json_printf(&b,
	            "\"endpoint_slots\":true,"
	            "\"endpoint_props\":false,\"endpoint_metrics\":true,\"chat_template\":%s,",
	            template ? template : "");
	strbuf_puts(&b, "\"bos_token\":");
	token(m, i->bos, &b);
	strbuf_puts(&b, ",\"eos_token\":");
	token(m, i->n_eos ? i->eos[0] : -1, &b);
	json_printf(&b, ",\"build_info\":%s,\"is_sleeping\":", "llmc-" LLMC_VERSION);
	strbuf_puts(&b, m ? "false}" : "true}");
	pthread_mutex_unlock(&s->lock);
	req_answer(r, 200, type_json, &b);
}

void
slots_list(Req *r)
{
	Server *s = r->srv;
	llmc_counts c = LLMC_INIT(llmc_counts);
	Strbuf b = { 0 };
	int id = 0;
	char fail[8];

	models_counts(s, &c);
	strbuf_putc(&b, '[');
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		const Slot *t = s->slot[i];
		if (t->removed || !t->model || t->model->of)
			continue; /* a model with `of` shares the sequences of another model */
		for (int32_t k = 0; k < t->about.limits.seqs; k++, id++) {
			json_printf(&b,
			            id ? ",{\"id\":%d,\"n_ctx\":%d,\"model\":%s,"
			               : "{\"id\":%d,\"n_ctx\":%d,\"model\":%s,",
			            id, t->max_total, t->name);
			strbuf_printf(&b, "\"speculative\":%s,\"is_processing\":%s}",
			              c.drafted > 0 ? "true" : "false",
			              id < c.running ? "true" : "false");
		}
	}
	pthread_mutex_unlock(&s->lock);
	strbuf_putc(&b, ']');
	if (head_query(&r->in, "fail_on_no_slot", fail, sizeof fail) && c.running >= id) {
		Problem p;
		problem(&p, 503, NULL, "All %d sequences of the batch are in use.", id);
		strbuf_release(&b);
		req_problem(r, &p);
		return;
	}
	req_head(r, "Cache-Control", "no-store");
	req_answer(r, 200, type_json, &b);
}

/* An adapter is a model here, whose name is its path. Its scale is 0: a request for another model
 * does not use it. */
void
slots_adapters(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };
	int id = 0;

	strbuf_putc(&b, '[');
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		const Slot *t = s->slot[i];
		if (t->removed || !t->parent)
			continue;
		strbuf_puts(&b, id ? "," : "");
		json_printf(&b, "{\"id\":%d,\"path\":%s,\"scale\":0,\"task_name\":\"\",", id++,
		            t->name);
		strbuf_puts(&b, "\"prompt_prefix\":\"\"}");
	}
	pthread_mutex_unlock(&s->lock);
	strbuf_putc(&b, ']');
	req_answer(r, 200, type_json, &b);
}

void
slots_refused(Req *r)
{
	Problem p;

	if (!strcmp(r->path, "/lora-adapters"))
		problem(&p, 501, NULL,
		        "Adapters have no common scale here: name an adapter as 'model' of a "
		        "request. GET /v1/models lists them.");
	else if (!strcmp(r->path, "/props"))
		problem(&p, 501, NULL, "Settings of a running server cannot be changed.");
	else
		problem(&p, 501, NULL,
		        "Sequences are not saved or erased by clients here: requests share "
		        "prefixes, which --prefix-dir keeps in files. POST /flush_cache drops "
		        "them.");
	req_problem(r, &p);
}
