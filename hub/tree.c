/* Reads lists of a repository's files: from the Hub's API, and from files of huggingface_hub. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "hub/hub.h"

enum { MAX_FILES = 1 << 17, MAX_TREE_BYTES = 256 << 20 };

void
hub_tree_add(HubTree *t, HubFile f, Arena *a)
{
	t->file = arena_grow(a, t->file, &t->cap, t->n + 1, sizeof *t->file);
	t->file[t->n++] = f;
}

const HubFile *
hub_tree_find(const HubTree *t, const char *path)
{
	for (size_t i = 0; i < t->n; i++)
		if (strcmp(t->file[i].path, path) == 0)
			return &t->file[i];
	return NULL;
}

/* Copy a hexadecimal string of n digits; NULL: the value is something else. */
static const char *
hex_of(const json_t *o, const char *key, size_t n, Arena *a)
{
	const char *s = json_string_value(json_object_get(o, key));

	return hub_is_hex(s, n) ? arena_strdup(a, s) : NULL;
}

static llmc_status
check_path(const json_t *path, llmc_error *err)
{
	const char *s = json_string_value(path);

	if (s && strlen(s) == json_string_length(path) && hub_path_is_safe(s))
		return LLMC_OK;
	return error_set(err, LLMC_E_INPUT,
	                 "the list of files contains a path that leads out of the model's folder "
	                 "or is not valid: %.200s",
	                 s ? s : "no string");
}

/* Add one file of either format. The formats differ in size_key, oid_key and lfs. */
static llmc_status
add_file(HubTree *t, HubFile f, const char *sha256, llmc_error *err, Arena *a)
{
	if (f.size < 0 || f.size > HUB_MAX_FILE_BYTES)
		return error_set(err, LLMC_E_INPUT,
		                 "the list of files has no valid size for %.200s", f.path);
	if (!f.oid && !sha256)
		return error_set(err, LLMC_E_INPUT, "the list of files has no valid id for %.200s",
		                 f.path);
	if (t->n >= MAX_FILES)
		return error_set(err, LLMC_E_INPUT, "the repository has more than %d files",
		                 MAX_FILES);
	f.sha256 = sha256;
	hub_tree_add(t, f, a);
	return LLMC_OK;
}

static int64_t
size_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_integer(v) ? json_integer_value(v) : -1;
}

static int
path_order(const void *a, const void *b)
{
	return strcmp((*(const HubFile *const *)a)->path, (*(const HubFile *const *)b)->path);
}

llmc_status
hub_tree_check(const HubTree *t, Arena *a, llmc_error *err)
{
	const HubFile **f = NEW(a, const HubFile *, t->n + 1);

	for (size_t i = 0; i < t->n; i++)
		f[i] = &t->file[i];
	qsort(f, t->n, sizeof *f, path_order);
	for (size_t i = 1; i < t->n; i++)
		if (strcmp(f[i - 1]->path, f[i]->path) == 0)
			return error_set(err, LLMC_E_INPUT,
			                 "the list of files contains %.200s twice", f[i]->path);
	return LLMC_OK;
}

static llmc_status
parse_entry(HubTree *t, const json_t *e, Arena *a, llmc_error *err)
{
	const char *type = json_string_value(json_object_get(e, "type"));
	const json_t *path = json_object_get(e, "path"), *lfs = json_object_get(e, "lfs");

	if (!type || strcmp(type, "file") != 0)
		return LLMC_OK;
	TRY(check_path(path, err));
	HubFile f = { .path = arena_strdup(a, json_string_value(path)),
		      .size = size_of(json_is_object(lfs) ? lfs : e, "size"),
		      .oid = hex_of(e, "oid", 40, a),
		      .xet = hex_of(e, "xetHash", 64, a) };
	const char *sha256 = hex_of(lfs, "oid", 64, a);
	if (json_is_object(lfs) && !sha256)
		return error_set(err, LLMC_E_INPUT,
		                 "the list of files has no valid SHA-256 for %.200s", f.path);
	return add_file(t, f, sha256, err, a);
}

llmc_status
hub_tree_parse(HubTree *t, const char *json, size_t n, Arena *a, llmc_error *err)
{
	json_error_t why;
	json_t *list = json_read(a, json, n, 0, &why);
	const json_t *e;
	size_t i;

	if (!json_is_array(list))
		return error_set(err, LLMC_E_INPUT, "the list of files is no JSON array%s%s",
		                 list ? "" : ": ", list ? "" : why.text);
	json_array_foreach (list, i, e)
		TRY(parse_entry(t, e, a, err));
	/* free the parsed page, so that memory does not grow with the number of pages */
	arena_done(a, list);
	return LLMC_OK;
}

llmc_status
hub_tree_load(HubTree *t, const char *path, Arena *a, llmc_error *err)
{
	Strbuf *text = arena_strbuf(a);
	json_error_t why;
	const char *name;
	json_t *e;

	TRY(file_read(path, MAX_TREE_BYTES, text, err));
	json_t *root = json_read(a, strbuf_str(text), text->len, 0, &why),
	       *files = json_object_get(root, "files");
	if (json_integer_value(json_object_get(root, "format_version")) != 1 ||
	    !json_is_object(files))
		return error_set(err, LLMC_E_INPUT, "%s: not a list of files", path);
	json_object_foreach (files, name, e) {
		if (!hub_path_is_safe(name))
			return error_set(err, LLMC_E_INPUT, "%s: not a valid path: %.200s", path,
			                 name);
		const char *sha256 = hex_of(e, "lfs_sha256", 64, a);
		HubFile f = { .path = arena_strdup(a, name),
			      .size = size_of(e, sha256 ? "lfs_size" : "size"),
			      .oid = hex_of(e, "blob_id", 40, a),
			      .xet = hex_of(e, "xet_hash", 64, a) };
		TRY(add_file(t, f, sha256, err, a));
	}
	return LLMC_OK;
}

llmc_status
hub_tree_save(const HubTree *t, const char *path, llmc_error *err)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, "{\"format_version\": 1, \"files\": {");
	for (size_t i = 0; i < t->n; i++) {
		const HubFile *f = &t->file[i];
		json_printf(&b, "%s: {\"size\": %lld, \"blob_id\": %s", f->path, (long long)f->size,
		            f->oid ? f->oid : f->sha256);
		if (f->sha256)
			json_printf(&b, ", \"lfs_sha256\": %s, \"lfs_size\": %lld", f->sha256,
			            (long long)f->size);
		if (f->xet)
			json_printf(&b, ", \"xet_hash\": %s", f->xet);
		strbuf_puts(&b, i + 1 < t->n ? "},\n" : "}\n");
	}
	strbuf_puts(&b, "}}\n");
	llmc_status s = b.failed ? error_set(err, LLMC_E_MEMORY, "%s: out of memory", path)
	                         : file_write(path, b.data, b.len, err);
	strbuf_release(&b);
	return s;
}
