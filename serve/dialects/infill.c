/* llama.cpp's POST /infill: the text between input_prefix and input_suffix, answered in the form of
 * llama.cpp, which editor plug-ins read. */
#include <string.h>

#include "serve/dialects/fim.h"
#include "serve/dialects/lcpp.h"

static bool
read_extra(const json_t *extra, Problem *p)
{
	if (!extra || json_is_null(extra))
		return true;
	bool ok = json_is_array(extra);
	for (size_t i = 0; ok && i < json_array_size(extra); i++) {
		const json_t *one = json_array_get(extra, i),
		             *name = json_object_get(one, "filename");
		ok =
		    json_is_string(json_object_get(one, "text")) && (!name || json_is_string(name));
	}
	return ok || problem(p, 400, "input_extra",
	                     "Invalid 'input_extra': expected an array of {\"filename\": string, "
	                     "\"text\": string}.");
}

static bool
read_infill(Generation *g, const json_t *o, Problem *p)
{
	const json_t *extra = json_object_get(o, "input_extra");

	if (!openai_text(o, "input_prefix", NULL, p) || !openai_text(o, "input_suffix", NULL, p) ||
	    !field_text(o, "prompt", NULL, p) || !read_extra(extra, p) || !lcpp_read(g, o, p))
		return false;
	if (g->n != 1)
		return problem(p, 400, "n", "Invalid 'n': /infill has one answer.");
	if (!gen_prompts(g, 1, p))
		return false;
	/* an answer without a limit, or with a limit beyond the context, gets a quarter of it */
	const int64_t total = g->model->max_total, quarter = total / 4,
	              left = g->max_new >= 0 && g->max_new <= total - quarter ? total - g->max_new
	                                                                      : total - quarter;
	FimParts parts = { .prefix = json_object_get(o, "input_prefix"),
		           .more = json_object_get(o, "prompt"),
		           .suffix = json_object_get(o, "input_suffix"),
		           .extra = extra,
		           .room =
		               (size_t)(left < g->model->max_input ? left : g->model->max_input),
		           .param = "input_suffix" };
	return fim_prompt(g, &g->sub[0], &parts, p) &&
	       openai_fits(g, g->sub[0].n_tok, "input_prefix", p) && lcpp_begin(g, o, p);
}

void
infill(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "cmpl-",
		                           .object = "text_completion",
		                           .chunk = "text_completion",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = lcpp_translate,
		                           .fields = FIELDS_LCPP,
		                           .read = read_infill };

	openai_handle(r, &lcpp_dialect, &route);
}
