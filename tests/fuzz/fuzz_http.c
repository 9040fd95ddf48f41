/* Arbitrary bytes as the body of any route that accepts one: parsed, checked, run on a fake engine.
 * The first byte selects the route. There is always one complete answer of well-formed JSON or
 * frames, and nothing remains in the engine. Images run through a small vision tower. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/batch/batch.h"
#include "serve/dialects/generation.h"
#include "serve/dialects/constraints.h"
#include "serve/models/image_cache.h"
#include "serve/models/model.h"
#include "serve/models/model_manager.h"
#include "text/text.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/tiny_tower.h"
#include "tests/serve/fake_engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* New routes go to the end, because the seeds of the corpus contain indices of this list. */
static const char *const paths[] = { "/v1/completions",
	                             "/v1/chat/completions",
	                             "/generate",
	                             "/generate_stream",
	                             "/",
	                             "/v1/tokenize",
	                             "/v1/detokenize",
	                             "/tokenize",
	                             "/chat_tokenize",
	                             "/v1/responses",
	                             "/v1/responses/input_tokens",
	                             "/rerank",
	                             "/v1/messages",
	                             "/v1/messages/count_tokens",
	                             "/v1/embeddings",
	                             "/api/embed",
	                             "/api/chat",
	                             "/api/generate",
	                             "/api/show",
	                             "/infill",
	                             "/v1/score",
	                             "/v1/rerank",
	                             "/rerank",
	                             "/v1/batches",
	                             "/v1/files",
	                             "/v1/load_lora_adapter",
	                             "/v1/unload_lora_adapter",
	                             "/v1/models/load",
	                             "/v1/models/unload",
	                             "/v1/weights",
	                             "/update_weights_from_disk",
	                             "/pause_generation",
	                             "/continue_generation",
	                             "/classify",
	                             "/predict",
	                             "/completion",
	                             "/embedding",
	                             "/chat/completions/input_tokens",
	                             "/apply-template" };
static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"<s>\":0,\"a\":1,"
    "\"b\":2,\"\\u0120\":3,\"\\u00c3\":4,\"\\u00a9\":5,\"h\":6,\"i\":7,\"hi\":8},\"merges\":[\"h "
    "i\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
static const char template[] = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}"
                               "{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == "
                               "'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}"
                               "{% endif %}{% if "
                               "m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
                               "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if "
                               "add_generation_prompt %}hi{% endif %}";

static void
wrong(const char *what, const Req *r)
{
	fprintf(stderr, "fuzz_http: %s; %s, status %d: %.*s\n", what, r->route->path, r->status,
	        (int)r->out.len, strbuf_str(&r->out));
	abort();
}

static void
check_json(const char *s, size_t n, const Req *r)
{
	Problem p;
	json_t *o = body_parse(s, n, &p); /* parsed by jansson, because seeds have 64 bits */

	if (!o)
		wrong("invalid JSON", r);
	json_decref(o);
}

static void
check(const Req *r)
{
	const char *s = strbuf_str(&r->out), *end = s + r->out.len;

	if (!r->ready || !r->done)
		wrong("no answer", r);
	if (r->status < 200 || r->status > 599 || !utf8_valid(s, r->out.len))
		wrong("an invalid status or header", r);
	if (!r->stream) {
		if (r->type == type_json)
			check_json(s, r->out.len, r);
		return;
	}
	while (s < end && r->type != type_sse) { /* the answer is lines of JSON */
		const char *stop = memchr(s, '\n', (size_t)(end - s));
		if (!stop)
			wrong("an invalid JSON line", r);
		check_json(s, (size_t)(stop - s), r);
		s = stop + 1;
	}
	while (s < end) {
		const char *stop = memmem(s, (size_t)(end - s), "\n\n", 2);
		if (stop && strncmp(s, "event: ", 7) == 0) /* the line names the event */
			s = (const char *)memchr(s, '\n', (size_t)(end - s)) + 1;
		if (!stop || strncmp(s, "data:", 5) != 0)
			wrong("an invalid event frame", r);
		s += s[5] == ' ' ? 6 : 5;
		if (strncmp(s, "[DONE]\n", 7) != 0)
			check_json(s, (size_t)(stop - s), r);
		s = stop + 2;
	}
}

/* Returns a store with one file of one line, for uploads and batches. */
static FileStore *
store(Server *s)
{
	static const char line[] =
	    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}";
	FileStore *st;
	llmc_error err;

	folder_make();
	folder_clear();
	folder_put("file-0123456789abcdef01234567", line, sizeof line - 1);
	folder_put("file-0123456789abcdef01234567.json", "{\"filename\":\"f\"}", 16);
	if (store_open(s, folder, 1 << 20, &st, &err) != LLMC_OK)
		abort();
	return st;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static llmc_tokenizer *t;
	static llmc_tower *tower;
	Fake f;
	Server s = { 0 };
	Slot slot = { .name = (char *)(uintptr_t)"m", .max_input = 63, .max_total = 64 };
	ServedModel m = { .slot = &slot,
		          .name = "m",
		          .srv = &s,
		          .max_input = 63,
		          .max_total = 64,
		          .healthy = true };
	Problem p = { 0 };
	const char *tail;
	bool wrong_method;
	llmc_error err;

	if (size == 0)
		return 0;
	if (!t) {
		if (text_open_json(vocabulary, sizeof vocabulary - 1, "fuzz", &t, &err) != LLMC_OK)
			abort();
		t->chat = template;
		tower = tiny_tower();
	}
	fake_init(&f, t, 4);
	slot.about = fake_backend(&f, 64);
	slot.about.tower = tower;
	slot.about.info.hidden = TINY_TOWER_HIDDEN;
	m.back = slot.about;
	m.images = image_cache_open(1 << 16);
	slot.model = &m;
	m.grammars = grammars_open();
	if (!m.grammars || !m.images)
		abort();
	s.slot[0] = &slot;
	s.n_slots = 1;
	s.max_body = 1 << 16;
	s.max_held = 1 << 30;
	s.opt.max_best_of = 2;
	s.opt.max_stop_sequences = 4;
	s.opt.max_top_n_tokens = 5;
	s.opt.max_images = 3;
	s.opt.image_pixels = 1 << 14;
	pthread_mutex_init(&s.lock, NULL);
	pthread_cond_init(&s.keep, NULL);
	metrics_init(&slot.metrics, 63, 64);
	Req *r = calloc(1, sizeof *r);
	r->srv = &s;
	r->slot = &slot;
	r->on_images = true; /* the work of the image worker */
	atomic_init(&r->refs, 2);
	r->route = route_find(serve_routes, "POST", paths[data[0] % (sizeof paths / sizeof *paths)],
	                      false, &tail, &wrong_method);
	strbuf_add(&r->body, data + 1, size - 1);
	if (!strcmp(r->route->path, "/v1/files") || !strcmp(r->route->path, "/v1/batches"))
		s.store = store(&s);
	if (!(r->route->flags & RT_MODEL) ||
	    models_take(&s, r, &p)) /* a worker checks this condition too */
		r->route->handle(r);
	else
		wrong("no model", r);
	model_unref(r->model);
	llmc_event ev;
	for (int i = 0; m.n_gens && i < 100000; i++)
		if (fake_next(&f, 0, &ev, &err) == LLMC_OK && ev.kind != LLMC_EVENT_NONE)
			gen_event(&s, &ev);
	pthread_mutex_lock(&s.lock);
	(void)models_answer_waiting(&s); /* the work of the manager thread */
	pthread_mutex_unlock(&s.lock);
	if (m.n_gens || m.n_refs || f.n_live || atomic_load(&r->refs) != 2)
		wrong("the engine is not empty", r);
	check(r);
	atomic_store(&r->refs, 1);
	req_unref(r);
	store_close(s.store);
	grammars_close(m.grammars);
	image_cache_close(m.images);
	free(f.held);
	return 0;
}
