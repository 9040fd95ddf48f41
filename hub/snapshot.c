/* Refs, snapshots and trees of the cache of Hugging Face. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/hub.h"

enum { MAX_DEPTH = 8, MAX_REF_BYTES = 256 };

HubRepo
hub_repo(const Hub *h, const char *repo)
{
	Strbuf *b = arena_strbuf(h->a);

	strbuf_puts(b, "models--");
	for (const char *p = repo; *p; p++)
		strbuf_puts(b, *p == '/' ? "--" : (char[]){ *p, 0 });
	const char *name = arena_strdup(h->a, strbuf_str(b));
	return (HubRepo){ .folder = arena_printf(h->a, "%s/%s", h->cfg.cache, name), .name = name };
}

const char *
hub_commit_of(const HubRepo *r, const char *revision, Arena *a)
{
	Strbuf *text = arena_strbuf(a);
	const char *ref = arena_printf(a, "%s/refs/%s", r->folder, revision);

	if (hub_is_hex(revision, 40))
		return revision;
	if (!file_exists(ref) || file_read(ref, MAX_REF_BYTES, text, NULL) != LLMC_OK)
		return NULL;
	const char *commit = strbuf_str(text);
	return arena_strndup(a, commit, strcspn(commit, "\r\n "));
}

const char *
hub_snapshot(const HubRepo *r, const char *commit, Arena *a)
{
	return arena_printf(a, "%s/snapshots/%s", r->folder, commit);
}

/* Add the files below a folder, without broken links. */
static void
add_folder(HubTree *t, const char *dir, const char *below, int depth, Arena *a)
{
	DIR *d = opendir(dir);
	struct stat st;

	if (!d)
		return;
	for (const struct dirent *e; (e = readdir(d)) != NULL;) {
		char path[PATH_MAX], full[PATH_MAX];
		if (e->d_name[0] == '.' ||
		    snprintf(path, sizeof path, "%s%s", below, e->d_name) >= (int)sizeof path ||
		    snprintf(full, sizeof full, "%s/%s", dir, e->d_name) >= (int)sizeof full ||
		    stat(full, &st) < 0)
			continue;
		HubFile f = { .size = st.st_size };
		/* not through a link: links may form a loop */
		if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH && strlen(path) + 1 < sizeof path &&
		    lstat(full, &st) == 0 && S_ISDIR(st.st_mode)) {
			strcat(path, "/");
			add_folder(t, full, path, depth + 1, a);
		} else if (S_ISREG(st.st_mode)) {
			f.path = arena_strdup(a, path);
			hub_tree_add(t, f, a);
		}
	}
	closedir(d);
}

bool
hub_local_tree(const HubRepo *r, const char *commit, HubTree *out, Arena *a)
{
	const char *dir = hub_snapshot(r, commit, a),
	           *tree = arena_printf(a, "%s/trees/%s.json", r->folder, commit);

	*out = (HubTree){ 0 };
	if (!hub_is_hex(commit, 40) || !file_is_dir(dir))
		return false;
	if (file_exists(tree) && hub_tree_load(out, tree, a, NULL) == LLMC_OK)
		return true;
	*out = (HubTree){ .partial = true };
	add_folder(out, dir, "", 0, a);
	return true;
}

bool
hub_file_is_here(const HubRepo *r, const char *commit, const HubFile *f, Arena *a)
{
	struct stat st;

	return stat(arena_printf(a, "%s/%s", hub_snapshot(r, commit, a), f->path), &st) == 0 &&
	       S_ISREG(st.st_mode) && st.st_size == f->size;
}

/* Return the path of `to` relative to the folder of the link `from`; both are below `top`. */
static const char *
relative(const char *top, const char *from, const char *to, Arena *a)
{
	Strbuf *b = arena_strbuf(a);

	for (const char *p = from + strlen(top) + 1; (p = strchr(p, '/')) != NULL; p++)
		strbuf_puts(b, "../");
	strbuf_puts(b, to + strlen(top) + 1);
	return arena_strdup(a, strbuf_str(b));
}

llmc_status
hub_link(const char *blob, const char *link, Arena *a, llmc_error *err)
{
	const char *blobs = strstr(blob, "/blobs/"), *last = NULL;
	static const char mark[] = ".new";
	struct stat st;

	for (; blobs; blobs = strstr(blobs + 1, "/blobs/"))
		last = blobs;
	const char *top = arena_strndup(a, blob, last ? (size_t)(last - blob) : 0),
	           *fresh = arena_printf(a, "%s%s.%ld", link, mark, (long)getpid());
	const char *slash = strrchr(link, '/');
	TRY(file_mkdirs(arena_strndup(a, link, (size_t)(slash - link)), err));
	unlink(fresh);
	if (symlink(relative(top, link, blob, a), fresh) < 0 &&
	    linkat(AT_FDCWD, blob, AT_FDCWD, fresh, 0) < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot link to %s: %s", link, blob,
		                 strerror(errno));
	if (rename(fresh, link) < 0) {
		unlink(fresh);
		return error_set(err, LLMC_E_IO, "%s: cannot create: %s", link, strerror(errno));
	}
	if (lstat(fresh, &st) == 0) /* if both names were the same file, rename() has left both */
		unlink(fresh);
	return LLMC_OK;
}

llmc_status
hub_ref_write(const HubRepo *r, const char *revision, const char *commit, Arena *a, llmc_error *err)
{
	const char *path = arena_printf(a, "%s/refs/%s", r->folder, revision),
	           *slash = strrchr(path, '/');

	if (strcmp(revision, commit) == 0)
		return LLMC_OK;
	TRY(file_mkdirs(arena_strndup(a, path, (size_t)(slash - path)), err));
	return file_write(path, commit, strlen(commit), err);
}
