/* FastLLM files. The key table contains the model's configuration as Python prints it, and tensors
 * have Hugging Face names. After the values are parsed, the file is read like a Hugging Face
 * folder. */
#include "compiler/import/import.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "formats/flm.h"
#include "formats/safetensors.h"

/* Convert a value as Python prints it to JSON: 'a' becomes "a", True true, None null, (1, 2) [1,
 * 2]. Any other text remains a string. */
static json_t *
value_of(ImportSource *s, const char *text)
{
	static const struct {
		const char *python, *json;
	} word[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
	Strbuf *out = arena_strbuf(s->a);
	json_error_t why;

	for (const char *p = text; *p;) {
		size_t k = 0;
		if (*p == '\'' || *p == '"') {
			const char quote = *p++, *from = p;
			while (*p && *p != quote)
				p += *p == '\\' && p[1] ? 2 : 1;
			json_str(out, from, (size_t)(p - from));
			p += *p != 0;
			continue;
		}
		while (k < 3 && strncmp(p, word[k].python, strlen(word[k].python)) != 0)
			k++;
		strbuf_puts(out, k < 3 ? word[k].json : "");
		if (k == 3)
			strbuf_putc(out, *p == '(' ? '[' : *p == ')' ? ']' : *p);
		p += k < 3 ? strlen(word[k].python) : 1;
	}
	if (out->failed)
		arena_out(s->a);
	return json_read(s->a, strbuf_str(out), out->len, JSON_DECODE_ANY, &why);
}

static void
put(ImportSource *s, json_t *root, const char *key, json_t *own)
{
	if (!root || !own || json_object_set_new(root, key, own) != 0)
		arena_out(s->a);
}

bool
source_read_flm(ImportSource *s, llmc_error *err)
{
	FileMap *m;
	Flm f;

	s->format = "hf";
	s->file = s->path;
	if (!(m = file_hold(s->a, s->path, err)) ||
	    flm_read(s->a, m->data, m->size, s->path, &f, err) != LLMC_OK)
		return false;
	if (!flm_get(&f, "model_type")) {
		error_set(err, LLMC_E_INPUT,
		          "%s: a FastLLM file of version %d without model_type does not identify "
		          "its model; describe it in YAML and pass the file with --weights",
		          s->path, f.version);
		return false;
	}
	json_t *root = json_object();
	if (!root)
		arena_out(s->a);
	json_hold(s->a, root);
	for (size_t i = 0; i < f.n_pair; i++) {
		json_t *v = value_of(s, f.pair[i].value);
		put(s, root, f.pair[i].key, v ? json_incref(v) : json_string(f.pair[i].value));
	}
	const json_t *scaling = json_object_get(root, "rope_scaling");
	if (scaling && !json_is_object(scaling))
		/* its value is None; the members are separate keys */
		json_object_del(root, "rope_scaling");
	source_take_config(s, root);
	/* most of the other keys are attributes of Python objects and generation settings, which do
	 * not describe the model */
	source_use(s, "*");
	arena_done(s->a, root);
	if (!source_take_weights(s, err))
		return false;
	arena_done(s->a, m);
	return true;
}
