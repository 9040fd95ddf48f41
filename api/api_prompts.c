/* Prompts of an embedding model: what its authors put before an input of each kind. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/json.h"

/* Does the pooling include the tokens of a prompt, as it does by default? */
static bool
pools_prompt(const char *folder)
{
	char file[PATH_MAX];
	Strbuf text = { 0 };
	int n = snprintf(file, sizeof file, "%s/1_Pooling/config.json", folder);

	if (n <= 0 || (size_t)n >= sizeof file || !file_exists(file) ||
	    file_read(file, (size_t)1 << 20, &text, NULL) != LLMC_OK)
		return true;
	json_t *j = json_parse(strbuf_str(&text), text.len, 0, NULL, NULL);
	bool yes = !json_is_false(json_object_get(j, "include_prompt"));
	strbuf_release(&text);
	json_decref(j);
	return yes;
}

static void
release_json(void *j)
{
	json_decref(j);
}

void
prompts_read(const char *folder, Arena *a, InputPrompts *out)
{
	char file[PATH_MAX];
	Strbuf text = { 0 };
	const char *name;
	json_t *v;

	*out = (InputPrompts){ 0 };
	int n = snprintf(file, sizeof file, "%s/config_sentence_transformers.json", folder);
	if (!file_is_dir(folder) || n <= 0 || (size_t)n >= sizeof file || !file_exists(file) ||
	    !pools_prompt(folder))
		return;
	json_t *j = file_read(file, (size_t)1 << 20, &text, NULL) == LLMC_OK
	                ? json_parse(strbuf_str(&text), text.len, 0, NULL, NULL)
	                : NULL;
	strbuf_release(&text);
	if (!j)
		return;
	arena_defer(a, release_json, j);
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
