/* Prompts of an embedding model: strings that its authors put before inputs, by kind of input. */
#include <string.h>

#include "api/api.h"
#include "base/file.h"

/* Does the pooling include the tokens of a prompt, as it does by default? */
static bool
pools_prompt(const char *folder, Arena *a)
{
	return !json_is_false(
	    json_object_get(folder_json(folder, "1_Pooling/config.json", a), "include_prompt"));
}

void
prompts_read(const char *folder, Arena *a, InputPrompts *out)
{
	const char *name;
	json_t *v;

	*out = (InputPrompts){ 0 };
	if (!file_is_dir(folder) || !pools_prompt(folder, a))
		return;
	json_t *j = folder_json(folder, "config_sentence_transformers.json", a);
	if (!j)
		return;
	json_t *all = json_object_get(j, "prompts");
	const json_t *usual = json_object_get(j, "default_prompt_name");
	llmc_input_prompt *list = arena_alloc(a, json_object_size(all) + 1, sizeof *list);
	json_object_foreach (all, name, v)
		if (json_is_string(v))
			list[out->n++] =
			    (llmc_input_prompt){ .name = name,
				                 .text = json_string_value(v),
				                 .usual = json_is_string(usual) &&
				                          !strcmp(name, json_string_value(usual)) };
	out->list = list;
}

const llmc_input_prompt *
llmc_input_prompts(const llmc_model *m, size_t *n)
{
	*n = m->prompts.n;
	return m->prompts.list;
}
