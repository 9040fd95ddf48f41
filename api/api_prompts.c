/* Prompts of an embedding model: what its authors put before an input of each kind. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/json.h"

/* Read a JSON file of the folder. NULL: there is none, or it cannot be read. */
static json_t *
json_of(const char *folder, const char *name, Arena *a)
{
	char file[PATH_MAX];
	Strbuf *text = arena_strbuf(a);
	int n = snprintf(file, sizeof file, "%s/%s", folder, name);

	if (n <= 0 || (size_t)n >= sizeof file || !file_exists(file) ||
	    file_read(file, (size_t)1 << 20, text, NULL) != LLMC_OK)
		return NULL;
	return json_read(a, strbuf_str(text), text->len, 0, NULL);
}

/* Does the pooling include the tokens of a prompt, as it does by default? */
static bool
pools_prompt(const char *folder, Arena *a)
{
	return !json_is_false(
	    json_object_get(json_of(folder, "1_Pooling/config.json", a), "include_prompt"));
}

void
prompts_read(const char *folder, Arena *a, InputPrompts *out)
{
	const char *name;
	json_t *v;

	*out = (InputPrompts){ 0 };
	if (!file_is_dir(folder) || !pools_prompt(folder, a))
		return;
	json_t *j = json_of(folder, "config_sentence_transformers.json", a);
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
