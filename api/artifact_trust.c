/* Artifacts contain code: kernels that are compiled and loaded, and built kernels below aot/.
 * Before llmc runs code of a folder that the user names, it compiles the folder's model.yaml and
 * compares the kernels and plans. A trust record in the cache, named by the hash of the contents,
 * states that they were equal, or that this user's own compile has written them. The next start
 * finds the record and need not compile. Built kernels cannot be compared, so they run only with a
 * record of the compile that built them. trust_artifact turns all of this off. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/checksummed_file.h"
#include "base/embed.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/text.h"

enum { MAX_FILES = 1 << 14, MAX_FOLDERS = 8 };
static const size_t max_bytes = (size_t)1 << 30;
static const char mark[8] = "llmc sl1";

typedef struct FileList {
	const char **path; /* relative to the artifact */
	size_t n, cap;
} FileList;

/* Add all files below a folder of the artifact. */
static llmc_status
list_files(const char *artifact, const char *folder, int depth, Arena *a, FileList *l,
           llmc_error *err)
{
	DIR *d = opendir(arena_printf(a, "%s/%s", artifact, folder));
	llmc_status status = LLMC_OK;

	for (struct dirent *e; d && status == LLMC_OK && (e = readdir(d)) != NULL;) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		const char *path = arena_printf(a, "%s/%s", folder, e->d_name);
		if (l->n == MAX_FILES || depth == MAX_FOLDERS) {
			status = error_set(err, LLMC_E_INPUT, "%s/%s: too many files or folders",
			                   artifact, folder);
		} else if (file_is_dir(arena_printf(a, "%s/%s", artifact, path))) {
			status = list_files(artifact, path, depth + 1, a, l, err);
		} else {
			l->path = arena_grow(a, l->path, &l->cap, l->n + 1, sizeof *l->path);
			l->path[l->n++] = path;
		}
	}
	if (d)
		closedir(d);
	return status;
}

static llmc_status
digest(const char *artifact, const FileList *l, const char *what, char hex[65], llmc_error *err)
{
	Sha256 sum;
	Strbuf path = { 0 }, text = { 0 };
	llmc_status status = LLMC_OK;

	sha256_init(&sum);
	sha256_add(&sum, what, strlen(what) + 1);
	if (l->n)
		qsort(l->path, l->n, sizeof *l->path, text_order);
	for (size_t i = 0; i < l->n && status == LLMC_OK; i++) {
		file_join(&path, artifact, l->path[i]);
		status = file_read(strbuf_str(&path), max_bytes, &text, err);
		uint64_t n = text.len;
		sha256_add(&sum, l->path[i], strlen(l->path[i]) + 1);
		sha256_add(&sum, &n, sizeof n);
		sha256_add(&sum, strbuf_str(&text), text.len);
	}
	sha256_hex(&sum, hex);
	strbuf_release(&path);
	strbuf_release(&text);
	return status;
}

/* "kernels/head.1f3a9c.c": sources of kernels. Sources of other targets do no harm, because only a
 * plan can name them. A kernel could include any other file, even in place of a system header. */
static bool
is_source(const char *path)
{
	return !strchr(path + strlen("kernels/"), '/') &&
	       (ends_with(path, ".c") || ends_with(path, ".cu"));
}

static void
add_file(FileList *l, Arena *a, const char *path)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->path[i], path))
			return;
	l->path = arena_grow(a, l->path, &l->cap, l->n + 1, sizeof *l->path);
	l->path[l->n++] = path;
}

/* Compute a digest of all code that the plans run, except built kernels. */
static llmc_status
digest_sources(const char *artifact, const TrustPlans *t, Arena *a, char hex[65], llmc_error *err)
{
	FileList all = { 0 }, used = { 0 };

	TRY(list_files(artifact, "kernels", 0, a, &all, err));
	for (int i = 0; i < t->n; i++) {
		add_file(&used, a, t->file[i]);
		for (int k = 0; k < t->plan[i]->n_kernel; k++)
			add_file(&used, a, t->plan[i]->kernel[k].file);
	}
	add_file(&used, a, "model.yaml");
	for (size_t i = 0; i < all.n; i++)
		if (!is_source(all.path[i]))
			add_file(&used, a, all.path[i]);
	return digest(artifact, &used, "sources", hex, err);
}

static llmc_status
digest_built(const char *artifact, const char *name, Arena *a, char hex[65], llmc_error *err)
{
	FileList l = { 0 };

	TRY(list_files(artifact, arena_printf(a, "aot/%s", name), 0, a, &l, err));
	return digest(artifact, &l, "built", hex, err);
}

static llmc_status
record_path(const char *hex, bool make, Strbuf *path, llmc_error *err)
{
	TRY(file_cache_dir(path, err));
	strbuf_puts(path, "/trusted");
	if (make)
		TRY(file_mkdirs_private(strbuf_str(path), err));
	strbuf_printf(path, "/%s", hex);
	return path->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

static bool
is_trusted(const char *hex)
{
	Strbuf path = { 0 };
	bool yes = record_path(hex, false, &path, NULL) == LLMC_OK &&
	           checked_read(strbuf_str(&path), mark, hex, NULL, NULL) == LLMC_OK;

	strbuf_release(&path);
	return yes;
}

static llmc_status
write_trust_record(const char *hex, const char *artifact, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = record_path(hex, true, &path, err);

	if (status == LLMC_OK)
		status =
		    checked_write(strbuf_str(&path), mark, hex, artifact, strlen(artifact), err);
	strbuf_release(&path);
	return status;
}

static const ArtifactFile *
made_file(const Compiled *const *made, size_t n, const char *path)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < made[i]->n_file; k++)
			if (!strcmp(made[i]->file[k].path, path))
				return &made[i]->file[k];
	return NULL;
}

static llmc_status
differs(const char *artifact, const char *path, const char *how, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT,
	                 "%s/%s %s, so the folder is not run. Compile its model again: `llmc "
	                 "compile %s/model.yaml -o DIR` with a new DIR. If you trust the "
	                 "author of the folder, use --trust-artifact (trust_artifact in the API)",
	                 artifact, path, how, artifact);
}

llmc_status
artifact_compare(const char *artifact, const Compiled *const *made, size_t n, Arena *a,
                 llmc_error *err)
{
	FileList all = { 0 };
	Strbuf *path = arena_strbuf(a), *text = arena_strbuf(a);

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < made[i]->n_file; k++) {
			const ArtifactFile *f = &made[i]->file[k];
			if (!strcmp(f->path, "model.yaml") || ends_with(f->path, ".txt"))
				continue;
			file_join(path, artifact, f->path);
			TRY(file_read(strbuf_str(path), max_bytes, text, err));
			if (text->len != f->size || memcmp(strbuf_str(text), f->text, f->size) != 0)
				return differs(artifact, f->path,
				               "is not what this llmc makes of model.yaml", err);
		}
	TRY(list_files(artifact, "kernels", 0, a, &all, err));
	for (size_t i = 0; i < all.n; i++) {
		size_t size;
		if (is_source(all.path[i]) || made_file(made, n, all.path[i]))
			continue;
		/* a header that only kernels of another target include */
		const char *own = embed_find(
		    arena_printf(a, "templates/%s", all.path[i] + strlen("kernels/")), &size);
		file_join(path, artifact, all.path[i]);
		TRY(file_read(strbuf_str(path), max_bytes, text, err));
		if (!own || text->len != size || memcmp(strbuf_str(text), own, size) != 0)
			return differs(artifact, all.path[i], "is not a file of llmc", err);
	}
	return LLMC_OK;
}

void
artifact_mark_trusted(const char *artifact, const TrustPlans *t, const char *const *built,
                      int n_built, Arena *a, llmc_log_fn log, void *log_user)
{
	char hex[65];
	llmc_error why = { 0 };
	llmc_status status = digest_sources(artifact, t, a, hex, &why);

	if (status == LLMC_OK)
		status = write_trust_record(hex, artifact, &why);
	for (int i = 0; i < n_built && status == LLMC_OK; i++) {
		status = digest_built(artifact, built[i], a, hex, &why);
		if (status == LLMC_OK)
			status = write_trust_record(hex, artifact, &why);
	}
	if (status != LLMC_OK && n_built)
		log_line(
		    log, log_user, LLMC_LOG_WARNING,
		    "%s: its built kernels cannot be recorded as made by you, so they run only "
		    "with --trust-artifact: %s",
		    artifact, why.text);
}

bool
artifact_sources_trusted(const char *artifact, const TrustPlans *t, Arena *a)
{
	char hex[65];

	return digest_sources(artifact, t, a, hex, NULL) == LLMC_OK && is_trusted(hex);
}

bool
artifact_built_trusted(const char *artifact, const char *name, Arena *a)
{
	char hex[65];

	return digest_built(artifact, name, a, hex, NULL) == LLMC_OK && is_trusted(hex);
}
