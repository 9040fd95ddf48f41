/* Lists and removes models of the caches. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/model_file.h"
#include "base/text.h"
#include "hub/hub.h"

/* ---- folders ---- */

/* Return the names in a folder, sorted; hidden: including hidden files. */
static const char **
entries(const char *dir, bool hidden, size_t *n, Arena *a)
{
	const char **out = NULL;
	size_t cap = 0;
	DIR *d = opendir(dir);

	*n = 0;
	for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    (e->d_name[0] == '.' && !hidden))
			continue;
		if (*n == cap) {
			cap = 2 * cap + 16;
			const char **more = realloc(out, cap * sizeof *more);
			if (!more)
				break;
			out = more;
		}
		if ((out[*n] = strdup(e->d_name)))
			(*n)++;
	}
	if (d)
		closedir(d);
	if (*n)
		qsort(out, *n, sizeof *out, text_order);
	const char **kept = NEW(a, const char *, *n + 1);
	for (size_t i = 0; i < *n; i++)
		kept[i] = arena_strdup(a, out[i]);
	for (size_t i = 0; i < *n; i++)
		free((void *)(uintptr_t)out[i]);
	free(out);
	return kept;
}

/* Return "ORG/REPO" for "models--ORG--REPO"; NULL: another folder */
static const char *
repo_of(const char *folder, Arena *a)
{
	if (strncmp(folder, "models--", 8) != 0 || !folder[8])
		return NULL;
	char *repo = arena_strdup(a, folder + 8), *dash = strstr(repo, "--");
	if (dash) {
		*dash = '/';
		memmove(dash + 1, dash + 2, strlen(dash + 2) + 1);
	}
	return repo;
}

/* Return a branch or tag whose ref is the commit, preferably "main"; else the commit itself */
static const char *
revision_of(const HubRepo *r, const char *commit, Arena *a)
{
	const char *main = hub_commit_of(r, "main", a);
	size_t n;

	if (main && strcmp(main, commit) == 0)
		return "main";
	const char *refs = arena_printf(a, "%s/refs", r->folder),
	           **ref = entries(refs, false, &n, a);
	for (size_t i = 0; i < n; i++) {
		const char *at = file_is_dir(arena_printf(a, "%s/%s", refs, ref[i]))
		                     ? NULL
		                     : hub_commit_of(r, ref[i], a);
		if (at && strcmp(at, commit) == 0)
			return ref[i];
	}
	return commit;
}

/* ---- list ---- */

typedef struct Row {
	const char *name, *path;
	int64_t bytes;
	time_t modified;
	bool complete;
} Row;

/* Write one row; the caller has opened the array. */
static void
put_row(Strbuf *out, const Row *row, bool *first)
{
	strbuf_puts(out, *first ? "" : ",");
	*first = false;
	json_printf(out, "{\"name\":%s,\"path\":%s,\"bytes\":%lld,\"complete\":", row->name,
	            row->path, (long long)row->bytes);
	strbuf_printf(out, "%s,\"modified\":%lld}", row->complete ? "true" : "false",
	              (long long)row->modified);
}

/* Add up the sizes of a choice's files that the cache holds. */
static void
measure(const HubRepo *r, const char *commit, const HubFile *const *file, size_t n, Row *row,
        Arena *a)
{
	struct stat st;

	for (size_t i = 0; i < n; i++) {
		const char *path =
		    arena_printf(a, "%s/%s", hub_snapshot(r, commit, a), file[i]->path);
		if (stat(path, &st) < 0) {
			row->complete = false;
			continue;
		}
		row->bytes += st.st_size;
		row->modified = st.st_mtime > row->modified ? st.st_mtime : row->modified;
	}
}

/* Write the rows of one snapshot: the folder, and each GGUF model that has a file in the cache */
static void
list_snapshot(const HubRepo *r, const char *repo, const char *commit, Strbuf *out, bool *first,
              Arena *a)
{
	const char *dir = hub_snapshot(r, commit, a), *rev = revision_of(r, commit, a),
	           *at = strcmp(rev, "main") != 0 ? arena_printf(a, "@%s", rev) : "";
	HubTree t;
	HubChoice c;
	size_t n;

	if (!hub_local_tree(r, commit, &t, a))
		return;
	hub_choose_folder(&t, a, &c);
	bool weights = false;
	for (size_t i = 0; i < c.n; i++)
		weights = weights ||
		          (!ends_with(c.file[i]->path, ".json") &&
		           (strstr(c.file[i]->path, ".safetensors") ||
		            strstr(c.file[i]->path, ".bin") || strstr(c.file[i]->path, ".pt")) &&
		           hub_file_is_here(r, commit, c.file[i], a));
	if (weights) {
		Row row = { .name = arena_printf(a, "hf:%s%s", repo, at),
			    .path = dir,
			    .complete = c.whole };
		measure(r, commit, c.file, c.n, &row, a);
		put_row(out, &row, first);
	}
	const HubGguf *g = hub_ggufs(&t, a, &n);
	/* towers are shared by all models of the repository: count them once */
	bool counted = false;
	for (size_t i = 0; i < n; i++) {
		size_t same = 0, here = 0;
		for (int k = 0; k < g[i].n_part; k++)
			here += hub_file_is_here(r, commit, g[i].part[k], a);
		if (!here)
			continue;
		for (size_t k = 0; k < n; k++)
			same += strcmp(g[k].tag, g[i].tag) == 0;
		const char *want = g[i].tag[0] && same == 1 ? g[i].tag : g[i].part[0]->path;
		Row row = { .name = arena_printf(a, "hf:%s%s:%s", repo, at, want),
			    .path = arena_printf(a, "%s/%s", dir, g[i].part[0]->path),
			    .complete = g[i].n_part == g[i].count };
		measure(r, commit, g[i].part, (size_t)g[i].n_part, &row, a);
		for (size_t k = 0; !counted && k < t.n; k++) {
			const HubFile *f = &t.file[k];
			if (model_file_is_mmproj(f->path) && hub_file_is_here(r, commit, f, a))
				measure(r, commit, &f, 1, &row, a);
		}
		counted = true;
		put_row(out, &row, first);
	}
}

/* Write the row of a stopped download: its parts, under the name of the repository */
static void
list_parts(const HubRepo *r, const char *repo, Strbuf *out, bool *first, Arena *a)
{
	const char *blobs = arena_printf(a, "%s/blobs", r->folder);
	size_t n, n_part = 0;
	const char **name = entries(blobs, false, &n, a);
	Row row = { .name = arena_printf(a, "hf:%s", repo), .path = blobs };
	struct stat st;

	for (size_t i = 0; i < n; i++)
		if (ends_with(name[i], ".incomplete") &&
		    stat(arena_printf(a, "%s/%s", blobs, name[i]), &st) == 0) {
			row.bytes += st.st_size;
			row.modified = st.st_mtime > row.modified ? st.st_mtime : row.modified;
			n_part++;
		}
	if (n_part)
		put_row(out, &row, first);
}

static void
list_urls(Hub *h, Strbuf *out, bool *first)
{
	size_t n, n_file;
	const char **dir = entries(h->cfg.downloads, false, &n, h->a);

	for (size_t i = 0; i < n; i++) {
		const char *folder = arena_printf(h->a, "%s/%s", h->cfg.downloads, dir[i]),
		           *url_file = arena_printf(h->a, "%s/.url", folder);
		Strbuf *url = arena_strbuf(h->a);
		if (!file_exists(url_file) || file_read(url_file, 8192, url, NULL) != LLMC_OK)
			continue;
		Row row = { .name = strbuf_str(url), .path = folder, .complete = true };
		const char **file = entries(folder, false, &n_file, h->a);
		for (size_t k = 0; k < n_file; k++) {
			struct stat st;
			const char *path = arena_printf(h->a, "%s/%s", folder, file[k]);
			if (stat(path, &st) < 0)
				continue;
			row.bytes += st.st_size;
			row.modified = st.st_mtime > row.modified ? st.st_mtime : row.modified;
			if (ends_with(file[k], ".incomplete"))
				row.complete = false;
			else if (row.path == folder)
				row.path = path;
		}
		if (n_file)
			put_row(out, &row, first);
	}
}

llmc_status
hub_list(Hub *h, Strbuf *out, llmc_error *err)
{
	size_t n, n_commit;
	const char **folder = entries(h->cfg.cache, false, &n, h->a);
	bool first = true;

	strbuf_putc(out, '[');
	for (size_t i = 0; i < n; i++) {
		const char *repo = repo_of(folder[i], h->a);
		if (!repo)
			continue;
		const HubRepo r = hub_repo(h, repo);
		const char **commit =
		    entries(arena_printf(h->a, "%s/snapshots", r.folder), false, &n_commit, h->a);
		for (size_t k = 0; k < n_commit; k++)
			list_snapshot(&r, repo, commit[k], out, &first, h->a);
		list_parts(&r, repo, out, &first, h->a);
	}
	list_urls(h, out, &first);
	strbuf_putc(out, ']');
	return out->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

/* ---- remove ---- */

/* Return the bytes of a folder's files on the disk; links are not counted. */
static int64_t
bytes_below(const char *dir, Arena *a)
{
	size_t n;
	const char **name = entries(dir, true, &n, a);
	int64_t sum = 0;

	for (size_t i = 0; i < n; i++) {
		struct stat st;
		const char *path = arena_printf(a, "%s/%s", dir, name[i]);
		if (lstat(path, &st) == 0)
			sum += S_ISDIR(st.st_mode)   ? bytes_below(path, a)
			       : S_ISREG(st.st_mode) ? st.st_size
			                             : 0;
	}
	return sum;
}

/* Refuse while another process downloads a blob whose lock is in this folder. */
static llmc_status
check_locks(const char *dir, const char *name, Arena *a, llmc_error *err)
{
	size_t n;
	const char **file = entries(dir, true, &n, a);

	for (size_t i = 0; i < n; i++) {
		if (!ends_with(file[i], ".lock"))
			continue;
		int fd = open(arena_printf(a, "%s/%s", dir, file[i]), O_RDWR | O_CLOEXEC);
		bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
		if (fd >= 0)
			close(fd);
		if (held)
			return error_set(
			    err, LLMC_E_BUSY,
			    "%s: another process downloads it; wait for that or stop it", name);
	}
	return LLMC_OK;
}

/* True if a link of another snapshot or path leads to a blob. */
static bool
is_linked(const char *dir, const char *blob, Arena *a)
{
	size_t n, len;
	const char **name = entries(dir, true, &n, a);
	char to[PATH_MAX];

	for (size_t i = 0; i < n; i++) {
		struct stat st;
		const char *path = arena_printf(a, "%s/%s", dir, name[i]);
		if (lstat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode) && is_linked(path, blob, a))
			return true;
		ssize_t got = S_ISLNK(st.st_mode) ? readlink(path, to, sizeof to - 1) : -1;
		if (got < 0)
			continue;
		to[got] = 0;
		len = strlen(to);
		if (len > strlen(blob) && to[len - strlen(blob) - 1] == '/' && ends_with(to, blob))
			return true;
	}
	return false;
}

/* Remove one path of a snapshot, and its blob if no other path links to it. */
static void
remove_file(const HubRepo *r, const char *link, int64_t *freed, Arena *a)
{
	char to[PATH_MAX];
	struct stat st;
	ssize_t n = readlink(link, to, sizeof to - 1);

	if (n < 0) { /* not a link: on a file system without links the path is the file itself */
		if (lstat(link, &st) == 0 && unlink(link) == 0)
			*freed += st.st_size;
		return;
	}
	to[n] = 0;
	const char *slash = strrchr(to, '/'), *blob = slash ? slash + 1 : to;
	if (unlink(link) < 0 || is_linked(arena_printf(a, "%s/snapshots", r->folder), blob, a))
		return;
	const char *path = arena_printf(a, "%s/blobs/%s", r->folder, blob);
	if (lstat(path, &st) == 0 && unlink(path) == 0)
		*freed += S_ISREG(st.st_mode) ? st.st_size : 0;
}

static llmc_status
not_there(const Hub *h, const HubName *name, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "%s: not in the cache (%s); llmc list shows what is",
	                 name->text, name->url ? h->cfg.downloads : h->cfg.cache);
}

/* True if the cache has a GGUF model of the repository. */
static bool
models_here(const HubRepo *r, const char *commit, const HubTree *t, Arena *a)
{
	size_t n;
	const HubGguf *g = hub_ggufs(t, a, &n);

	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < g[i].n_part; k++)
			if (hub_file_is_here(r, commit, g[i].part[k], a))
				return true;
	return false;
}

/* Remove a file, or the part of its download. False: there is neither. */
static bool
remove_one(const HubRepo *r, const char *commit, const HubFile *f, int64_t *freed, Arena *a)
{
	const char *link = arena_printf(a, "%s/%s", hub_snapshot(r, commit, a), f->path);
	const char *part = arena_printf(a, "%s/blobs/%s.incomplete", r->folder,
	                                f->sha256 ? f->sha256
	                                : f->oid  ? f->oid
	                                          : "-");
	struct stat st;
	bool here = false;

	if (lstat(link, &st) == 0) {
		remove_file(r, link, freed, a);
		here = true;
	}
	if (stat(part, &st) == 0 && unlink(part) == 0) {
		*freed += st.st_size;
		here = true;
	}
	return here;
}

/* Remove one GGUF or file of a repository. With the last model, towers and the repository are
 * removed too. */
static llmc_status
remove_choice(Hub *h, const HubName *name, const HubRepo *r, int64_t *freed, llmc_error *err)
{
	const char *commit = hub_commit_of(r, name->revision, h->a);
	HubTree t;
	HubChoice c;
	size_t n_here = 0, n_left;

	if (!commit || !hub_local_tree(r, commit, &t, h->a))
		return not_there(h, name, err);
	TRY(hub_choose(&t, name, h->a, &c, err));
	for (size_t i = 0; i < c.n; i++)
		if (c.file[i] != c.mmproj)
			n_here += remove_one(r, commit, c.file[i], freed, h->a);
	if (n_here && model_file_is_gguf(c.main) && !models_here(r, commit, &t, h->a))
		for (size_t i = 0; i < t.n; i++) /* with the last model remove the towers */
			if (model_file_is_mmproj(t.file[i].path))
				remove_one(r, commit, &t.file[i], freed, h->a);
	if (!n_here)
		return not_there(h, name, err);
	entries(arena_printf(h->a, "%s/blobs", r->folder), true, &n_left, h->a);
	if (!n_left)
		file_remove_tree(r->folder);
	return LLMC_OK;
}

llmc_status
hub_remove(Hub *h, const HubName *name, int64_t *freed, llmc_error *err)
{
	*freed = 0;
	if (name->url) {
		const char *dir = hub_url_folder(h, name);
		if (!file_is_dir(dir))
			return not_there(h, name, err);
		TRY(check_locks(dir, name->text, h->a, err));
		*freed = bytes_below(dir, h->a);
		file_remove_tree(dir);
		return LLMC_OK;
	}
	const HubRepo r = hub_repo(h, name->repo);
	const char *locks = arena_printf(h->a, "%s/.locks/%s", h->cfg.cache, r.name);
	if (!file_is_dir(r.folder))
		return not_there(h, name, err);
	TRY(check_locks(locks, name->text, h->a, err));
	if (name->want)
		return remove_choice(h, name, &r, freed, err);
	*freed = bytes_below(r.folder, h->a);
	file_remove_tree(r.folder);
	file_remove_tree(locks);
	return file_exists(r.folder)
	           ? error_set(err, LLMC_E_IO, "%s: cannot remove %s", name->text, r.folder)
	           : LLMC_OK;
}
