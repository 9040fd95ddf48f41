/* Loads and unloads LoRA adapters at run time, with the routes of vLLM: /v1/load_lora_adapter and
 * /v1/unload_lora_adapter. They are off unless the server has an adapter folder. */
#include <stdlib.h>
#include <string.h>

#include "serve/models/model.h"
#include "serve/dialects/openai.h"
#include "serve/http/route.h"
#include "serve/models/sleep_wake.h"

static bool
filled_field(const json_t *o, const char *key, const char **out, Problem *p)
{
	return openai_text(o, key, out, p) &&
	       (**out ||
	        problem(p, 400, key, "Invalid '%s': expected a string that is not empty.", key));
}

/* Resolve `path` to a folder below the adapter folder; malloc'd. Clients can open only such
 * folders. */
static char *
allowed(const Server *s, const char *path, Problem *p)
{
	char *real = path_below(s->opt.lora_dir, path);

	if (!real)
		problem(p, 404, "lora_path",
		        "There is no adapter '%.300s' below the folder of --lora-dir.", path);
	return real;
}

static json_t *
begin(Req *r, const char **name, Problem *p)
{
	json_t *o = NULL;

	if (!r->srv->opt.lora_dir)
		problem(p, 403, NULL,
		        "Adapters cannot be loaded or unloaded here: start the server with "
		        "--lora-dir, the folder that contains them.");
	else if (sleep_allowed(r, p))
		o = body_object(&r->body, p);
	if (o && !filled_field(o, "lora_name", name, p)) {
		json_decref(o);
		o = NULL;
	}
	return o;
}

void
adapters_load(Req *r)
{
	Problem p = { 0 };
	const char *name = NULL, *path = NULL, *of = NULL;
	char *dir = NULL;
	json_t *o = begin(r, &name, &p);
	Slot *base = r->srv->slot[0];

	if (o && field_text(o, "base_model_name", &of, &p) && of &&
	    !(base = models_find(r->srv, of)))
		models_unknown(r->srv, of, &p);
	if (o && !p.status && !of && r->srv->nameless)
		problem(&p, 400, "base_model_name", "Expected the name of a model.");
	if (o && !p.status && (base->parent || !base->src.adapt))
		problem(&p, 400, "base_model_name", "The model '%.200s' does not support adapters.",
		        base->name);
	if (o && !p.status && filled_field(o, "lora_path", &path, &p))
		dir = allowed(r->srv, path, &p);
	if (dir)
		models_adapt(r->srv, base, name, dir, r);
	json_decref(o);
	if (p.status)
		req_problem(r, &p);
}

void
adapters_unload(Req *r)
{
	Problem p = { 0 };
	const char *name = NULL;
	json_t *o = begin(r, &name, &p);

	if (o && models_remove(r->srv, name, &p))
		req_text(r, 200, "Success: LoRA adapter '%s' removed successfully.", name);
	json_decref(o);
	if (p.status)
		req_problem(r, &p);
}
