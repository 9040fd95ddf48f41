/* Models by name: llmc_pull and the list of models in the caches, over hub/. */
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/sized_struct.h"
#include "hub/hub.h"

bool
llmc_is_model_name(const char *s)
{
	return hub_is_name(s);
}

static llmc_status
pull(const char *text, const llmc_pull_options *o, Arena *a, char *buf, size_t cap, size_t *need,
     llmc_error *err)
{
	Hub *h = NEW(a, Hub, 1);
	HubName name;
	const char *path = NULL;

	*h = (Hub){ .a = a, .progress = o->progress, .user = o->user };
	TRY(hub_config_read(&h->cfg, a, err));
	h->cfg.offline = h->cfg.offline || o->offline;
	TRY(hub_name_parse(text, h->cfg.endpoint, a, &name, err));
	TRY(name.url ? hub_pull_url(h, &name, o->update, &path, err)
	             : hub_pull(h, &name, o->update, &path, err));
	return copy_out(path, strlen(path), buf, cap, need, err);
}

llmc_status
llmc_pull(const char *name, const llmc_pull_options *opt, char *buf, size_t cap, size_t *need,
          llmc_error *err)
{
	llmc_pull_options o = { 0 };
	llmc_error own = { 0 };
	Arena arena;
	llmc_status s;

	SIZED_TAKE(o, opt);
	if (!hub_is_name(name))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not the name of a model; expected hf:ORG/REPO or an address "
		                 "that begins with https://",
		                 name ? name : "NULL");
	arena_init(&arena);
	if (setjmp(arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "%s: out of memory", name);
	else
		s = pull(name, &o, &arena, buf, cap, need, &own);
	arena_release(&arena);
	if (s != LLMC_OK && err)
		*err = own;
	return s;
}

static llmc_status
pulled(Arena *a, char *buf, size_t cap, size_t *need, llmc_error *err)
{
	Hub *h = NEW(a, Hub, 1);
	Strbuf *out = arena_strbuf(a);

	h->a = a;
	TRY(hub_config_read(&h->cfg, a, err));
	TRY(hub_list(h, out, err));
	return copy_out(strbuf_str(out), out->len, buf, cap, need, err);
}

llmc_status
llmc_pulled(char *buf, size_t cap, size_t *need, llmc_error *err)
{
	llmc_error own = { 0 };
	Arena arena;
	llmc_status s;

	arena_init(&arena);
	if (setjmp(arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "out of memory");
	else
		s = pulled(&arena, buf, cap, need, &own);
	arena_release(&arena);
	if (s != LLMC_OK && err)
		*err = own;
	return s;
}

static llmc_status
pulled_remove(const char *text, int64_t *freed, Arena *a, llmc_error *err)
{
	Hub *h = NEW(a, Hub, 1);
	HubName name;

	h->a = a;
	TRY(hub_config_read(&h->cfg, a, err));
	TRY(hub_name_parse(text, h->cfg.endpoint, a, &name, err));
	return hub_remove(h, &name, freed, err);
}

llmc_status
llmc_pulled_remove(const char *name, int64_t *freed, llmc_error *err)
{
	llmc_error own = { 0 };
	Arena arena;
	llmc_status s;
	int64_t n = 0;

	if (!hub_is_name(name))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not the name of a model; llmc list shows the names",
		                 name ? name : "NULL");
	arena_init(&arena);
	if (setjmp(arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "%s: out of memory", name);
	else
		s = pulled_remove(name, &n, &arena, &own);
	arena_release(&arena);
	if (freed)
		*freed = n;
	if (s != LLMC_OK && err)
		*err = own;
	return s;
}

/* Fetch a URL into *out. */
static llmc_status
fetch(const char *url, const llmc_fetch_options *o, Arena *a, Strbuf *out, llmc_error *err)
{
	Hub *h = NEW(a, Hub, 1);

	h->a = a;
	TRY(hub_config_read(&h->cfg, a, err));
	h->cfg.token = NULL;
	return hub_fetch(h, url, o, out, err);
}

llmc_status
llmc_fetch(const char *url, const llmc_fetch_options *opt, void **data, size_t *n, llmc_error *err)
{
	llmc_fetch_options o = LLMC_INIT(llmc_fetch_options);
	llmc_error own = { 0 };
	Strbuf out = { 0 };
	Arena arena;
	llmc_status s;

	*data = NULL;
	*n = 0;
	SIZED_TAKE(o, opt);
	o.max_bytes = o.max_bytes > 0 ? o.max_bytes : (int64_t)32 << 20;
	o.timeout_s = o.timeout_s > 0 ? o.timeout_s : 10;
	arena_init(&arena);
	if (setjmp(arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "out of memory");
	else
		s = fetch(url, &o, &arena, &out, &own);
	arena_release(&arena);
	if (s != LLMC_OK) {
		strbuf_release(&out);
		if (err)
			*err = own;
		return s;
	}
	*data = out.data;
	*n = out.len;
	return LLMC_OK;
}
