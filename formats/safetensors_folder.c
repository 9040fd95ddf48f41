/* Finds the files of a checkpoint: an index, numbered shards, or all files of a folder. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/name_table.h"
#include "formats/safetensors.h"
#include "formats/safetensors_internal.h"
#include "formats/shards.h"

llmc_status
st_index_names(Safetensors *s, llmc_error *err)
{
	s->name = NEW(&s->arena, NameEntry, s->n);
	for (size_t i = 0; i < s->n; i++)
		s->name[i] = (NameEntry){ s->tensor[i].name, i };
	const NameEntry *twice = names_sort(s->name, s->n);
	if (!twice)
		return LLMC_OK;
	const NameText text = name_text(twice->name, strlen(twice->name));
	const char *one = s->tensor[twice[-1].at].file, *other = s->tensor[twice->at].file;
	if (strcmp(one, other) == 0)
		return error_set(err, LLMC_E_INPUT, "%s: duplicate tensor %s", one, text.s);
	return error_set(err, LLMC_E_INPUT, "tensor %s is in both %s and %s", text.s, one, other);
}

/* Collects the files that an index names, sorted and each once. */
static llmc_status
index_files(Safetensors *s, const char *path, const json_t *weight_map, const char ***out,
            size_t *n_out, llmc_error *err)
{
	const char **file = NEW(&s->arena, const char *, json_object_size(weight_map));
	const char *key;
	json_t *value;
	size_t n = 0, kept = 0;

	json_object_foreach ((json_t *)weight_map, key, value) {
		const char *name = json_string_value(value);
		if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s is not mapped to the plain name of a file "
			                 "in the same folder",
			                 path, name_text(key, strlen(key)).s);
		file[n++] = name;
	}
	if (n > 1)
		qsort(file, n, sizeof *file, text_order);
	for (size_t i = 0; i < n; i++)
		if (kept == 0 || strcmp(file[kept - 1], file[i]) != 0)
			file[kept++] = file[i];
	*out = file;
	*n_out = kept;
	return LLMC_OK;
}

const char *
st_folder_of(Safetensors *s, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return "";
	return arena_strndup(&s->arena, path, (size_t)(slash - path) + 1);
}

llmc_status
st_open_index(Safetensors *s, const char *path, llmc_error *err)
{
	const char *folder = st_folder_of(s, path), **file = NULL, *key;
	json_error_t e;
	json_t *value;
	llmc_error why;
	size_t n = 0;

	FileMap *m = file_hold(&s->arena, path, &why);
	if (!m)
		return error_set(err, why.code, "%s", why.text);
	json_t *index = json_read(&s->arena, m->data ? (const char *)m->data : "", m->size,
	                          JSON_REJECT_DUPLICATES, &e);
	arena_done(&s->arena, m);
	if (!index)
		return st_json_failed(path, "the index", &e, err);
	const json_t *weight_map = json_object_get(index, "weight_map");
	if (!json_is_object(weight_map))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: expected an object with an object weight_map", path);
	TRY(index_files(s, path, weight_map, &file, &n, err));
	for (size_t i = 0; i < n; i++) {
		const char *full = arena_printf(&s->arena, "%s%s", folder, file[i]);
		if (!file_exists(full))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: shard %s of the index is missing: download it", path,
			                 full);
		TRY(st_map_file(s, full, err));
	}
	TRY(st_index_names(s, err));
	json_object_foreach ((json_t *)weight_map, key, value) {
		const StTensor *t = safetensors_find(s, key);
		const char *want = json_string_value(value);
		if (!t || strcmp(t->file + strlen(folder), want) != 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s is not in %s%s, the shard that the index "
			                 "names",
			                 path, name_text(key, strlen(key)).s, folder, want);
	}
	arena_done(&s->arena, index);
	return LLMC_OK;
}

/* Files of one kind in a folder. The two smallest names are stored, because directory order depends
 * on the file system and messages must not. */
typedef struct StFile {
	char first[256], second[256];
} StFile;

static void
found_add(StFile *f, const char *name)
{
	if (!*f->first || strcmp(name, f->first) < 0) {
		strcpy(f->second, f->first);
		snprintf(f->first, sizeof f->first, "%s", name);
	} else if (!*f->second || strcmp(name, f->second) < 0) {
		snprintf(f->second, sizeof f->second, "%s", name);
	}
}

/* Sets *only to the single file found, or NULL if there is none. E_INPUT: several files without an
 * index. */
static llmc_status
found_one(Safetensors *s, const char *folder, const StFile *f, const char *kind, const char *whole,
          const char **only, llmc_error *err)
{
	*only = *f->first ? arena_printf(&s->arena, "%s/%s", folder, f->first) : NULL;
	if (!*f->second)
		return LLMC_OK;
	return error_set(err, LLMC_E_INPUT,
	                 "%s: holds several %s files (%s, %s) but no %s and no %s.index.json to "
	                 "join them",
	                 folder, kind, f->first, f->second, whole, whole);
}

/* Reads the hidden size from params.json */
static llmc_status
params_width(Safetensors *s, const char *folder, int64_t *out, llmc_error *err)
{
	const char *path = arena_printf(&s->arena, "%s/params.json", folder);
	Strbuf *text = arena_strbuf(&s->arena);
	json_error_t e;

	TRY(file_read(path, MAX_CONFIG_BYTES, text, err));
	json_t *root =
	    json_read(&s->arena, strbuf_str(text), text->len, JSON_REJECT_DUPLICATES, &e);
	if (!root)
		return st_json_failed(path, "params.json", &e, err);
	*out = json_integer_value(json_object_get(root, "dim"));
	if (*out < 1)
		return error_set(err, LLMC_E_INPUT, "%s: dim is not a positive integer", path);
	return LLMC_OK;
}

/* Opens Meta's checkpoints: consolidated.00.pth, .01.pth, ... */
static llmc_status
open_shards(Safetensors *s, const char *folder, llmc_error *err)
{
	int64_t width = 0;
	int n = 0;

	for (const char *file;
	     n < MAX_SHARDS &&
	     file_exists(file = arena_printf(&s->arena, "%s/consolidated.%02d.pth", folder, n));
	     n++)
		TRY(st_map_file(s, file, err));
	TRY(params_width(s, folder, &width, err));
	return shards_join(&s->arena, s->tensor, &s->n, n, width, err);
}

llmc_status
st_open_folder(Safetensors *s, const char *path, llmc_error *err)
{
	static const char *const whole[] = { "model.safetensors", "pytorch_model.bin" };
	StFile found[2] = { 0 };

	if (file_exists(arena_printf(&s->arena, "%s/params.json", path)) &&
	    file_exists(arena_printf(&s->arena, "%s/consolidated.00.pth", path)) &&
	    !file_exists(arena_printf(&s->arena, "%s/config.json", path)))
		return open_shards(s, path, err);
	for (int i = 0; i < 2; i++) {
		const char *one = arena_printf(&s->arena, "%s/%s", path, whole[i]),
		           *index = arena_printf(&s->arena, "%s.index.json", one), *only;
		if (file_exists(one))
			return st_map_file(s, one, err);
		if (file_exists(index))
			return st_open_index(s, index, err);
		DIR *dir = opendir(path);
		if (!dir)
			return error_set(err, LLMC_E_IO, "%s: cannot list the folder: %s", path,
			                 strerror(errno));
		for (struct dirent *d; (d = readdir(dir)) != NULL;)
			if (i == 0 ? ends_with(d->d_name, ".safetensors")
			           : st_is_pickled(d->d_name))
				found_add(&found[i], d->d_name);
		closedir(dir);
		TRY(found_one(s, path, &found[i], i == 0 ? ".safetensors" : "pickled", whole[i],
		              &only, err));
		if (only)
			return st_map_file(s, only, err);
	}
	return error_set(err, LLMC_E_INPUT,
	                 "%s: holds no weights: no .safetensors file and no pytorch_model.bin",
	                 path);
}

llmc_status
st_open_modules(Safetensors *s, const char *path, llmc_error *err)
{
	enum { FIRST = 2, LAST = 4 };

	for (int i = FIRST; i <= LAST; i++) {
		const char *dir = arena_printf(&s->arena, "%s/%d_Dense", path, i),
		           *one = arena_printf(&s->arena, "%s/model.safetensors", dir),
		           *old = arena_printf(&s->arena, "%s/pytorch_model.bin", dir);
		const size_t n = s->n;
		if (!file_exists(one) && !file_exists(old))
			continue;
		TRY(st_map_file(s, file_exists(one) ? one : old, err));
		for (size_t k = n; k < s->n; k++)
			s->tensor[k].name =
			    arena_printf(&s->arena, "%d_Dense.%s", i, s->tensor[k].name);
		s->name = NULL;
	}
	return LLMC_OK;
}
