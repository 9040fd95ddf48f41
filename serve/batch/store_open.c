/* Opening and closing of the folder of files and batches: see batch.h. Removes incomplete files of
 * a crashed server and loads the others. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"

enum { MAX_META = 1 << 20 };

static bool
load_file(FileStore *st, const char *id, llmc_error *err)
{
	char path[PATH_MAX];
	Strbuf text = { 0 };
	json_error_t why;
	struct stat is;

	store_path(st, path, sizeof path, id, ".json");
	bool ok = file_read(path, MAX_META, &text, err) == LLMC_OK;
	json_t *o = ok ? json_parse(strbuf_str(&text), text.len, JSON_ALLOW_NUL, &why, NULL) : NULL;
	strbuf_release(&text);
	store_path(st, path, sizeof path, id, "");
	if (ok && (!json_is_object(o) || lstat(path, &is) != 0 || !S_ISREG(is.st_mode)))
		ok = error_set(err, LLMC_E_INPUT, "%s: the file that it describes cannot be read",
		               path) == LLMC_OK;
	if (ok) {
		StoredFile f = { .name = (char *)(uintptr_t)json_text_of(o, "filename"),
			         .owner = (char *)(uintptr_t)json_text_of(o, "owner"),
			         .purpose = "batch",
			         .bytes = is.st_size,
			         .created =
			             (time_t)json_integer_value(json_object_get(o, "created_at")) };
		snprintf(f.id, sizeof f.id, "%s", id);
		ok = store_add(st, &f);
		if (ok)
			store_count(st, f.owner, f.bytes);
	}
	json_decref(o);
	return ok;
}

/* Does the name begin with the prefix and the digits of an id? *tail: the rest of the name. */
static bool
is_ours(const char *name, const char *prefix, char id[ID_SIZE], const char **tail)
{
	size_t n = strlen(prefix);

	if (strncmp(name, prefix, n) != 0 || strspn(name + n, "0123456789abcdef") != ID_DIGITS)
		return false;
	snprintf(id, ID_SIZE, "%.*s", (int)(n + ID_DIGITS), name);
	*tail = name + n + ID_DIGITS;
	return true;
}

/* Report whether the file of this id (or with `part` its partial output) belongs to a known file or
 * batch. */
static bool
is_known(FileStore *st, const char *id, bool part)
{
	if (!part && store_find(st, id))
		return true;
	for (const Batch *b = st->first; b; b = b->next)
		for (int i = 0; i < 2; i++)
			if (!strcmp(b->file[i], id) && batch_ended(b) != part)
				return true;
	return false;
}

/* Remove files left by a crashed server: incomplete ones, and files without an owner. If a
 * description could not be read (sure is false), files without an owner are kept, because they may
 * belong to it. */
static void
clean(FileStore *st, bool sure)
{
	char path[PATH_MAX], id[ID_SIZE];
	struct stat is;
	DIR *d = opendir(st->dir);

	for (struct dirent *e; d && (e = readdir(d));) {
		const char *tail;
		bool file = is_ours(e->d_name, "file-", id, &tail);
		if (!file && !is_ours(e->d_name, "batch_", id, &tail))
			continue;
		bool half = strstr(tail, ".tmp.") != NULL, part = !strcmp(tail, ".part");
		store_path(st, path, sizeof path, id, ".json");
		if (!half && (!sure || !file || (*tail && !part) || is_known(st, id, part) ||
		              lstat(path, &is) == 0))
			continue;
		store_path(st, path, sizeof path, e->d_name, "");
		serve_log(st->srv, LLMC_LOG_INFO, "%s: left by a crashed server, removed: %s", path,
		          unlink(path) == 0 ? "done" : strerror(errno));
	}
	if (d)
		closedir(d);
}

static int
by_age(const void *a, const void *b)
{
	const StoredFile *x = a, *y = b;

	return x->created != y->created ? (x->created < y->created ? -1 : 1) : strcmp(x->id, y->id);
}

static llmc_status
load(FileStore *st, llmc_error *err)
{
	static const char *const kinds[] = { "file-", "batch_" };
	char id[ID_SIZE];
	const char *tail;
	bool sure = true;
	llmc_error why = { 0 };

	for (int kind = 0; kind < 2; kind++) { /* files first, because batches look them up */
		DIR *d = opendir(st->dir);
		if (!d)
			return error_set(err, LLMC_E_IO, "%s: %s", st->dir, strerror(errno));
		for (struct dirent *e; (e = readdir(d));)
			if (is_ours(e->d_name, kinds[kind], id, &tail) && !strcmp(tail, ".json") &&
			    !(kind ? batches_load(st, id, &why) : load_file(st, id, &why))) {
				serve_log(st->srv, LLMC_LOG_WARNING,
				          "warning: %s/%s is ignored: %s", st->dir, e->d_name,
				          why.text);
				sure &= !kind;
			}
		closedir(d);
	}
	if (st->n_file)
		qsort(st->file, st->n_file, sizeof *st->file, by_age);
	clean(st, sure);
	return LLMC_OK;
}

llmc_status
store_open(Server *s, const char *dir, int64_t max_bytes, FileStore **out, llmc_error *err)
{
	char path[PATH_MAX];
	struct stat is;

	*out = NULL;
	TRY(file_mkdirs_private(dir, err));
	if (stat(dir, &is) != 0 || !S_ISDIR(is.st_mode))
		return error_set(err, LLMC_E_INPUT, "%s: no folder", dir);
	if (is.st_uid != geteuid() || is.st_mode & 077)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: other users may read this folder with client data: chmod 700 "
		                 "it, or choose another",
		                 dir);
	if (strlen(dir) + ID_SIZE + 64 > sizeof path)
		return error_set(err, LLMC_E_INPUT, "%.100s...: the path is too long", dir);
	FileStore *st = calloc(1, sizeof *st);
	if (!st)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	st->srv = s;
	st->lock_fd = -1;
	st->max_bytes = max_bytes;
	st->max_file = max_bytes < (int64_t)s->max_held / 2 ? max_bytes : (int64_t)s->max_held / 2;
	pthread_mutex_init(&st->save, NULL);
	pthread_mutex_init(&st->lock, NULL);
	pthread_mutex_init(&st->flight_lock, NULL);
	clock_cond_init(&st->change);
	clock_cond_init(&st->landed);
	st->dir = strdup(dir);
	llmc_status status = st->dir ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
	if (status == LLMC_OK) {
		store_path(st, path, sizeof path, "lock", "");
		st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (st->lock_fd < 0)
			status = error_set(err, LLMC_E_IO, "%s: %s", path, strerror(errno));
		else if (flock(st->lock_fd, LOCK_EX | LOCK_NB) != 0)
			status = error_set(err, LLMC_E_INPUT, "%s: another server uses this folder",
			                   dir);
	}
	if (status == LLMC_OK)
		status = load(st, err);
	if (status != LLMC_OK) {
		store_close(st);
		return status;
	}
	*out = st;
	return LLMC_OK;
}

void
store_close(FileStore *st)
{
	if (!st)
		return;
	batches_free(st);
	for (size_t i = 0; i < st->n_file; i++) {
		free(st->file[i].name);
		free(st->file[i].owner);
	}
	free(st->file);
	free(st->dir);
	if (st->lock_fd >= 0)
		close(st->lock_fd);
	for (size_t i = 0; i < st->n_share; i++)
		free(st->share[i].owner);
	free(st->share);
	pthread_mutex_destroy(&st->save);
	pthread_mutex_destroy(&st->lock);
	pthread_mutex_destroy(&st->flight_lock);
	pthread_cond_destroy(&st->change);
	pthread_cond_destroy(&st->landed);
	free(st);
}
