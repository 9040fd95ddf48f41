/* Finds the vision tower of a GGUF model. It is a separate file, which llama.cpp names
 * mmproj-*.gguf. */
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

/* Towers in a folder: the one that fits the model's name, another one, and whether the folder has
 * other models */
typedef struct FolderTowers {
	/* file with the model's name; file with another name */
	char named[NAME_MAX + 1], other[NAME_MAX + 1];
	bool models; /* the folder has files of other models */
} FolderTowers;

static void
keep_best(const char *model, const char *name, char best[NAME_MAX + 1])
{
	if (!*best || model_file_mmproj_order(model, name, best) < 0)
		snprintf(best, NAME_MAX + 1, "%s", name);
}

static void
look_in(const char *dir, const char *model, FolderTowers *b)
{
	const struct dirent *entry;
	DIR *d = opendir(*dir ? dir : ".");

	*b = (FolderTowers){ 0 };
	while (d && (entry = readdir(d)))
		if (model_file_is_mmproj(entry->d_name))
			keep_best(model, entry->d_name,
			          model_file_mmproj_named(model, entry->d_name) ? b->named
			                                                        : b->other);
		else if (model_file_is_gguf(entry->d_name))
			b->models |= !model_file_same_model(model, entry->d_name);
	if (d)
		closedir(d);
}

/* Return the mmproj file in the folder of the model, else in the folder above it, because large
 * models have a folder per quantisation. A file with the model's name is preferred. Another file is
 * used only if its folder has no other model; in the folder above, its name must also contain no
 * model's name. NULL: no file can be used. *foreign: there are mmproj files that were not used. */
static const char *
find_mmproj(const char *model, bool *foreign, Arena *a)
{
	const char *slash = strrchr(model, '/'), *base = slash ? slash + 1 : model;
	const char *dir = slash ? arena_printf(a, "%.*s/", (int)(slash - model), model) : "";
	FolderTowers b;

	*foreign = false;
	for (int up = 0; up < 2; up++) {
		look_in(dir, base, &b);
		if (up && (b.models || !model_file_mmproj_nameless(b.other)))
			*b.other = 0;
		if (*b.named || (*b.other && !b.models))
			return arena_printf(a, "%s%s", dir, *b.named ? b.named : b.other);
		*foreign |= *b.other != 0;
		dir = arena_printf(a, "%s../", dir);
	}
	return NULL;
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
	for (size_t i = 0; !found && gguf_arr_str(g, GGUF_VOCAB "tokens", i, &s); i++) {
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

/* Read the id of the token that the rows of the tower replace. */
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
	bool foreign = false;
	const char *found = opt->mmproj ? opt->mmproj : find_mmproj(path, &foreign, &m->arena);
	if (!found && must && foreign)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: images need the vision tower of this model, and its folder "
		                 "has other models and no mmproj-*.gguf with this model's name: "
		                 "name the file with --mmproj (llmc_options.mmproj)",
		                 path);
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
