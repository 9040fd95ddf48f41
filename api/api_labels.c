/* Names of a classifier's labels: id2label of config.json, or classifier.output_labels of a GGUF.
 */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "formats/gguf.h"

static void
from_config(const char *folder, Arena *a, Labels *out)
{
	const char *key, *type;
	json_t *v, *j = folder_json(folder, "config.json", a);

	if (!j)
		return;
	json_object_foreach (json_object_get(j, "id2label"), key, v) {
		char *end;
		const long i = strtol(key, &end, 10);
		if (json_is_string(v) && *key && !*end && i >= 0 && (size_t)i < out->n)
			out->name[i] = arena_strdup(a, json_string_value(v));
	}
	type = json_string_value(json_object_get(j, "problem_type"));
	out->several = type && strcmp(type, "multi_label_classification") == 0;
	arena_done(a, j);
}

static void
from_gguf(const char *path, Arena *a, Labels *out)
{
	Gguf *g = NULL;
	GgufStr arch, s;

	if (gguf_open(path, &g, NULL) != LLMC_OK)
		return;
	gguf_hold(a, g);
	if (gguf_str(g, "general.architecture", &arch)) {
		const char *key = arena_printf(a, "%.*s.classifier.output_labels",
		                               (int)(arch.n < 100 ? arch.n : 100), arch.s);
		for (size_t i = 0; i < out->n; i++)
			if (gguf_arr_str(g, key, i, &s))
				out->name[i] = arena_strndup(a, s.s, s.n);
	}
	arena_done(a, g);
}

void
labels_read(const char *path, size_t n, Arena *a, Labels *out)
{
	*out = (Labels){ .n = n, .name = arena_alloc(a, n + 1, sizeof *out->name) };
	for (size_t i = 0; i < n; i++)
		out->name[i] = arena_printf(a, "LABEL_%zu", i); /* names of transformers */
	if (!path || !n)
		return;
	if (file_is_dir(path))
		from_config(path, a, out);
	else
		from_gguf(path, a, out);
}

const char *const *
llmc_labels(const llmc_model *m, size_t *n, bool *several)
{
	*n = m->labels.n;
	*several = m->labels.several;
	return m->labels.name;
}
