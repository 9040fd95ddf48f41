/* Models in Ollama's form: /api/tags, /api/ps and /api/show. */
#include <ctype.h>
#include <string.h>

#include "base/json.h"
#include "base/sha256.h"
#include "serve/dialects/ollama.h"
#include "serve/dialects/openai.h"
#include "serve/models/catalogue.h"
#include "serve/models/model_manager.h"

static void
details(const Slot *t, Strbuf *b) /* lock held */
{
	const llmc_model_info *i = &t->about.info;
	char size[32], level[sizeof t->about.quant_format];

	snprintf(size, sizeof size, i->n_params >= 1000000000 ? "%.1fB" : "%.0fM",
	         (double)i->n_params / (i->n_params >= 1000000000 ? 1e9 : 1e6));
	for (size_t k = 0; k < sizeof level; k++)
		level[k] = (char)toupper((unsigned char)t->about.quant_format[k]);
	json_printf(b,
	            "\"details\":{\"parent_model\":%s,\"format\":\"llmc\",\"family\":%s,"
	            "\"families\":[%s],\"parameter_size\":%s,\"quantization_level\":%s}",
	            t->parent ? t->parent : "", i->family, i->family, size, level);
}

/* Derive a digest from the model's properties. It is equal for the same model on any server;
 * clients compare digests and show the first digits. */
static void
digest(const Slot *t, char hex[65])
{
	const llmc_model_info *i = &t->about.info;
	Sha256 sum;
	Strbuf b = { 0 };

	json_printf(&b, "[%s,%s,%s,%s,%lld,%lld]", t->name, i->name, i->family,
	            t->about.quant_format, (long long)i->n_params, (long long)i->weight_bytes);
	sha256_init(&sum);
	sha256_add(&sum, strbuf_str(&b), b.len);
	sha256_hex(&sum, hex);
	strbuf_release(&b);
}

/* Append one model without its closing brace. */
static void
one_model(const Slot *t, int64_t bytes, Strbuf *b) /* lock held */
{
	char hex[65];

	digest(t, hex);
	json_printf(b, "{\"name\":%s,\"model\":%s,\"size\":%lld,\"digest\":%s,", t->name, t->name,
	            (long long)bytes, hex);
	details(t, b);
}

/* Append the details of a model whose description has not been read. */
static void
unread_details(Strbuf *b)
{
	strbuf_puts(b, "\"details\":{\"parent_model\":\"\",\"format\":\"llmc\",\"family\":\"\","
	               "\"families\":[],\"parameter_size\":\"\",\"quantization_level\":\"\"}");
}

/* Append a model of the catalogue whose description has not been read. Its digest is computed from
 * name, size and time. */
static void
found_model(const FoundModel *f, Strbuf *b)
{
	Sha256 sum;
	Strbuf id = { 0 };
	char hex[65];

	json_printf(&id, "[%s,%lld,%lld]", f->name, (long long)f->bytes, (long long)f->modified);
	sha256_init(&sum);
	sha256_add(&sum, strbuf_str(&id), id.len);
	sha256_hex(&sum, hex);
	strbuf_release(&id);
	json_printf(b, "{\"name\":%s,\"model\":%s,\"size\":%lld,\"digest\":%s,", f->name, f->name,
	            (long long)f->bytes, hex);
	unread_details(b);
	strbuf_puts(b, ",\"modified_at\":");
	json_time(b, f->modified);
	strbuf_putc(b, '}');
}

void
ollama_tags(Req *r)
{
	Server *s = r->srv;
	FoundModels found = catalogue_list(s);
	Strbuf b = { 0 };
	int n = 0;

	strbuf_puts(&b, "{\"models\":[");
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		if (!s->slot[i]->removed && !s->slot[i]->unread) {
			strbuf_puts(&b, n++ ? "," : "");
			one_model(s->slot[i], s->slot[i]->about.info.weight_bytes, &b);
			strbuf_puts(&b, ",\"modified_at\":");
			json_time(&b, s->started);
			strbuf_putc(&b, '}');
		}
	for (size_t i = 0; i < found.n; i++) {
		const Slot *t = slot_find(s, found.at[i].name);
		if (t && !t->unread)
			continue;
		strbuf_puts(&b, n++ ? "," : "");
		found_model(&found.at[i], &b);
	}
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, "]}");
	catalogue_free(&found);
	req_answer(r, 200, type_json, &b);
}

/* List loaded models with the memory of their engines and their expiry time. */
void
ollama_ps(Req *r)
{
	enum { NEVER = 100 * 365 * 86400LL };
	Server *s = r->srv;
	Strbuf b = { 0 };
	int n = 0;

	strbuf_puts(&b, "{\"models\":[");
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		const Slot *t = s->slot[i];
		if (t->removed || !t->model)
			continue;
		const double keep = slot_keep_s(s, t);
		/* while requests run, the time until unloading has not begun */
		double left = keep < 0 || !t->src.open ? (double)NEVER
		              : t->model->n_refs       ? keep
		                                       : t->used_at + keep - clock_now();
		strbuf_puts(&b, n++ ? "," : "");
		one_model(t, t->bytes, &b);
		json_printf(&b, ",\"size_vram\":%lld,\"context_length\":%d,\"expires_at\":",
		            strncmp(t->about.info.target, "cuda", 4) ? 0LL : (long long)t->bytes,
		            t->max_total);
		json_time(&b, time(NULL) + (time_t)(left > 0 ? left : 0));
		strbuf_putc(&b, '}');
	}
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, "]}");
	req_answer(r, 200, type_json, &b);
}

/* Append a model whose description has not been read: its capabilities are not known either. */
static void
show_unread(time_t modified, Strbuf *b)
{
	strbuf_puts(b,
	            "{\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",\"modified_at\":");
	json_time(b, modified);
	strbuf_putc(b, ',');
	unread_details(b);
	strbuf_puts(b, ",\"model_info\":{},\"capabilities\":[\"completion\"]}");
}

/* Append a model that is loaded or has been loaded before. */
static void
show_slot(const Server *s, const Slot *t, Strbuf *b) /* lock held */
{
	const llmc_model_info *i = &t->about.info;
	const char *template = t->model ? llmc_chat_template(t->model->back.tok)
	                                : NULL; /* a model that sleeps has no template in memory */

	if (t->unread) {
		show_unread(s->started, b);
		return;
	}
	json_printf(b, "{\"modelfile\":\"\",\"parameters\":\"\",\"template\":%s,\"modified_at\":",
	            template ? template : "");
	json_time(b, s->started);
	strbuf_putc(b, ',');
	details(t, b);
	json_printf(
	    b, ",\"model_info\":{\"general.architecture\":%s,\"general.parameter_count\":%lld,",
	    i->family, (long long)i->n_params);
	strbuf_printf(b,
	              "\"%s.context_length\":%d,\"%s.embedding_length\":%d,\"%s.block_count\":%d},"
	              "\"capabilities\":[\"completion\",\"tools\"%s]}",
	              i->family, t->max_total, i->family, i->hidden, i->family, i->n_layers,
	              i->reads_images ? ",\"vision\"" : "");
}

void
ollama_show(Req *r)
{
	Problem p = { 0 };
	Strbuf b = { 0 };
	json_t *in = body_object(&r->body, &p);

	if (in && !json_object_get(in, "model")) /* older clients send "name" */
		json_object_set(in, "model", json_object_get(in, "name"));
	json_t *o = in ? ollama_translate(in, &p) : NULL;
	const char *name = json_string_value(json_object_get(o, "model"));
	FoundModels found = { 0 };
	if (name && !models_find(r->srv, name))
		found = catalogue_list(r->srv);
	const FoundModel *f = name ? catalogue_entry(&found, name) : NULL;
	const bool named = name || !r->srv->nameless;
	const bool ok = f || (o && openai_model(r, o, &p) &&
	                      (named || problem(&p, 400, "model", "Name a model as 'model'.")));
	if (f) {
		show_unread(f->modified, &b);
	} else if (ok) {
		pthread_mutex_lock(&r->srv->lock);
		show_slot(r->srv, r->slot, &b);
		pthread_mutex_unlock(&r->srv->lock);
	}
	catalogue_free(&found);
	json_decref(o);
	json_decref(in);
	if (!ok) {
		req_problem(r, &p);
		return;
	}
	req_answer(r, 200, type_json, &b);
}
