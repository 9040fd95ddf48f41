/* Import: read the checkpoint, find the family, map its keys, check the tensors, write YAML */
#include "compiler/import/import.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "formats/flm.h"

/* Return REPO of models--ORG--REPO/snapshots/COMMIT, a folder of Hugging Face's cache; NULL: the
 * path has another form. */
static const char *
cached_name(Arena *a, const char *path)
{
	const char *at = strstr(path, "/models--"), *end = at ? strstr(at, "/snapshots/") : NULL;

	if (!end || strchr(at + 1, '/') != end || strchr(end + strlen("/snapshots/"), '/'))
		return NULL;
	for (const char *dash = at; (dash = strstr(dash + 1, "--")) && dash < end;)
		at = dash;
	return arena_strndup(a, at + 2, (size_t)(end - at - 2));
}

/* Return a name for files and folders: the last component of the path, without the extension of a
 * checkpoint. */
static const char *
model_name(Arena *a, const char *path)
{
	const char *cached = cached_name(a, path);
	size_t end;

	path = cached ? cached : path;
	end = strlen(path);
	while (end > 1 && path[end - 1] == '/')
		end--;
	size_t start = end;
	while (start > 0 && path[start - 1] != '/')
		start--;
	if (end - start > 5 && strncmp(path + end - 5, ".gguf", 5) == 0)
		end -= 5;
	else if (end - start > 4 && strncmp(path + end - 4, ".flm", 4) == 0)
		end -= 4;
	if (end - start > 100)
		end = start + 100;
	char *name = arena_strndup(a, path + start, end - start);
	for (char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
			*p = '-';
	if (*name == '.' || *name == '-' || !*name)
		return arena_printf(a, "model%s", name);
	return name;
}

/* Return whether a key need not be written, because its value is that of the family or the
 * default. */
static bool
is_implied(const ImportSource *s, SpecKey k)
{
	const char *text = s->value[k], *word = family_word(s, k),
	           *def = word ? word : spec_key[k].def;
	double x, y;

	if (k == K_llmc || !def || (!word && strchr(def, '$')))
		return false;
	if (strcmp(text, def) == 0)
		return true;
	if (spec_key[k].type == TYPE_BOOL && !word)
		return strcmp(text, strcmp(def, "0") == 0 ? "false" : "true") == 0;
	return number_parse(text, &x) && number_parse(def, &y) && x == y;
}

const char *
import_text(const ImportSource *s)
{
	const char *out = arena_printf(s->a, "# imported by llmc from %s\n",
	                               strcmp(s->format, "hf") != 0 ? "a GGUF file"
	                               : flm_name(s->path)          ? "a FastLLM model"
	                                                            : "a Hugging Face folder");
	const char *open = ""; /* prefix of the map that is currently written, up to the last dot */

	for (int k = 0; k < K_COUNT; k++) {
		const char *path = spec_key[k].path;
		size_t same = 0, depth = 0;
		if (!s->value[k] || is_implied(s, (SpecKey)k))
			continue;
		for (size_t i = 0; path[i] && path[i] == open[i]; i++)
			if (path[i] == '.') {
				same = i + 1;
				depth++;
			}
		const char *p = path + same;
		for (const char *dot; (dot = strchr(p, '.')); p = dot + 1)
			out = arena_printf(s->a, "%s%*s%.*s:\n", out, (int)(2 * depth++), "",
			                   (int)(dot - p), p);
		open = arena_strndup(s->a, path, (size_t)(p - path));
		out =
		    arena_printf(s->a, "%s%*s%s: %s\n", out, (int)(2 * depth), "", p, s->value[k]);
	}
	return out;
}

static Spec *
resolve(const ImportSource *s, const char *text)
{
	return spec_from_text(arena_printf(s->a, "%s (imported)", s->path), text, strlen(text),
	                      NULL, s->d, s->a);
}

/* Remove eos ids outside of the vocabulary. Configurations of small models often keep the ids of
 * large ones. */
static void
drop_invalid_tokens(ImportSource *s, SpecKey k)
{
	const char *text = s->value[k], *out = "";
	double vocab;

	if (!text || !s->value[K_vocab_size] || !number_parse(s->value[K_vocab_size], &vocab))
		return;
	bool list = *text == '[', dropped = false;
	for (const char *p = text + list; *p && *p != ']';) {
		char *end;
		long id = strtol(p, &end, 10);
		if (end == p)
			break;
		if ((double)id < vocab)
			out = arena_printf(s->a, "%s%s%ld", out, *out ? ", " : "", id);
		else {
			warn_at(s->d, (Loc){ 0 },
			        "%s: %s = %ld is not a token, vocab_size is %.0f: it is ignored",
			        s->file, spec_key[k].path, id, vocab);
			dropped = true;
		}
		p = end + strspn(end, ", ");
	}
	if (dropped)
		source_set(s, k, !*out ? NULL : list ? arena_printf(s->a, "[%s]", out) : out);
}

char *
import_source(ImportSource *s, llmc_error *err)
{
	if (!import_family(s))
		return NULL;
	source_set(s, K_llmc, "1");
	source_set(s, K_name, spec_quote(s->a, model_name(s->a, file_absolute(s->a, s->path))));
	source_set(s, K_family, s->family.name);
	if (strcmp(s->format, "gguf") == 0)
		source_convert_gguf(s);
	else if (strcmp(s->format, "hf") == 0)
		source_convert_hf(s);
	import_map(s);
	drop_invalid_tokens(s, K_eos);
	drop_invalid_tokens(s, K_bos);
	if (s->have_tensors)
		source_set(s, K_weights, spec_quote(s->a, file_absolute(s->a, s->path)));
	source_set(s, K_checkpoint, s->format);
	if (!import_add_model(s, err) || s->d->n_error)
		return NULL;
	const char *text = import_text(s);
	Spec *spec = resolve(s, text);
	for (int round = 0; spec && s->have_tensors && round < 3 && import_names(s, spec); round++)
		spec = resolve(s, text = import_text(s));
	if (!spec)
		return NULL;
	if (s->have_tensors) {
		import_check(s, spec);
		if (s->d->n_error || !resolve(s, text = import_text(s)))
			return NULL;
	}
	return arena_strdup(s->a, text);
}

char *
import_yaml(const char *src, const ImportOptions *o, Diag *d, Arena *perm, llmc_error *err)
{
	ImportSource *s = NEW(perm, ImportSource, 1);
	bool folder = file_is_dir(src);

	*s = (ImportSource){
		.d = d,
		.a = perm,
		.path = src,
		.tower = o->tower,
		.mmproj = o->mmproj,
		.allow_unknown_keys = o->allow_unknown_keys,
		.of = o->of,
	};
	if (folder && !file_exists(arena_printf(perm, "%s/config.json", src)) &&
	    !file_exists(arena_printf(perm, "%s/params.json", src))) {
		error_set(
		    err, LLMC_E_INPUT,
		    "%s: holds no config.json: a Hugging Face folder or a GGUF file is expected",
		    src);
		return NULL;
	}
	if (o->tower && flm_name(src)) {
		error_set(err, LLMC_E_INPUT, "%s: this file has no vision tower", src);
		return NULL;
	}
	char *text = (folder          ? source_read_hf
	              : flm_name(src) ? source_read_flm
	                              : source_read_gguf)(s, err)
	                 ? import_source(s, err)
	                 : NULL;
	source_close_weights(s);
	return text;
}
