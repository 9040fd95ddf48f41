/* The vision tower of a GGUF model: a file of its own, mmproj-*.gguf, by the name of llama.cpp. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/model_file.h"
#include "formats/gguf.h"
#include "image/prepare.h"

bool
set_has_rows(const char *const *set)
{
	bool rows = false;

	for (size_t i = 0; set && set[i]; i++) /* the last one applies */
		if (strncmp(set[i], "vision.part=", 12) == 0)
			rows = strcmp(set[i] + 12, "rows") == 0;
	return rows;
}

/* Return the best mmproj file in the folder of the model; NULL: there is none. */
static const char *
beside(const char *model, Arena *a)
{
	const char *slash = strrchr(model, '/'), *best = NULL;
	const char *dir = slash ? arena_printf(a, "%.*s/", (int)(slash - model), model) : "";
	const struct dirent *entry;
	DIR *d = opendir(*dir ? dir : ".");

	while (d && (entry = readdir(d)))
		if (model_file_is_mmproj(entry->d_name) &&
		    (!best ||
		     model_file_mmproj_order(slash ? slash + 1 : model, entry->d_name, best) < 0)) {
			char name[NAME_MAX + 1];
			snprintf(name, sizeof name, "%s", entry->d_name);
			best = arena_strdup(a, name);
		}
	if (d)
		closedir(d);
	return best ? arena_printf(a, "%s%s", dir, best) : NULL;
}

/* Find the id of a token's text in a GGUF model. E_INPUT: its vocabulary lacks it. */
static llmc_status
token_of(const char *model, const char *text, int64_t *id, llmc_error *err)
{
	const size_t n = strlen(text);
	bool found = false;
	GgufStr s;
	Gguf *g;

	TRY(gguf_open(model, &g, err));
	for (size_t i = 0; !found && gguf_arr_str(g, "tokenizer.ggml.tokens", i, &s); i++) {
		found = s.n == n && memcmp(s.s, text, n) == 0;
		*id = (int64_t)i;
	}
	gguf_close(g);
	return found ? LLMC_OK
	             : error_set(err, LLMC_E_INPUT,
	                         "%s: the vocabulary has no token %s, which stands for a row of "
	                         "an image",
	                         model, text);
}

/* Read which token the rows of the tower replace. */
static llmc_status
image_token(const char *model, const char *mmproj, int64_t *id, llmc_error *err)
{
	llmc_image_processor *p;

	TRY(llmc_image_processor_open(mmproj, &p, err));
	const llmc_status status = token_of(model, image_processor_rules(p)->token, id, err);
	llmc_image_processor_close(p);
	return status;
}

llmc_status
model_find_mmproj(llmc_model *m, const char *path, SourceKind kind, const llmc_options *opt,
                  llmc_error *err)
{
	const bool must = opt->mmproj || set_has_rows(m->set);
	llmc_error why;
	int64_t id = -1;

	if (opt->mmproj && (kind != SOURCE_GGUF || opt->tower))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: mmproj %s is for the language model of a GGUF file", path,
		                 opt->mmproj);
	if (kind != SOURCE_GGUF || opt->tower || !(must || opt->images))
		return LLMC_OK;
	const char *found = opt->mmproj ? opt->mmproj : beside(path, &m->arena);
	if (!found && must)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: images need the vision tower of this model, and its folder "
		                 "has no mmproj-*.gguf: name the file with --mmproj "
		                 "(llmc_options.mmproj)",
		                 path);
	if (!found)
		return LLMC_OK;
	const llmc_status status = image_token(path, found, &id, &why);
	if (status != LLMC_OK && (must || status == LLMC_E_MEMORY))
		return error_set(err, status, "%s", why.text);
	if (status != LLMC_OK) {
		log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
		         "%s reads text only, not images: %s", path, why.text);
		return LLMC_OK;
	}
	m->mmproj = file_absolute(&m->arena, found);
	m->set = set_with(m->set, arena_printf(&m->arena, "vision.token=%lld", (long long)id),
	                  &m->arena);
	return LLMC_OK;
}
