/* The folder of files and batches: see batch.h. An uploaded file is its bytes under its id, and
 * id.json with the rest. Output files have no id.json; their batch describes them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/http/api_keys.h"

enum { MAX_META = 1 << 20, ID_DIGITS = 24 };

/* ---- names ---- */

void
store_id(char out[ID_SIZE], const char *prefix)
{
	unsigned char b[ID_DIGITS / 2];
	size_t at = strlen(prefix);

	while (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
		;
	memcpy(out, prefix, at);
	for (size_t i = 0; i < sizeof b; i++)
		snprintf(out + at + 2 * i, 3, "%02x", b[i]);
}

void
store_path(const FileStore *st, char *out, size_t cap, const char *id, const char *tail)
{
	snprintf(out, cap, "%s/%s%s", st->dir, id, tail);
}

/* ---- usage per owner; lock held ---- */

OwnerUsage *
store_share(FileStore *st, const char *owner)
{
	for (size_t i = 0; i < st->n_share; i++)
		if (!strcmp(st->share[i].owner, owner))
			return &st->share[i];
	OwnerUsage *more = realloc(st->share, (st->n_share + 1) * sizeof *more);
	char *name = strdup(owner);
	st->share = more ? more : st->share;
	if (!more || !name) {
		free(name);
		return &st->lost;
	}
	st->share[st->n_share] = (OwnerUsage){ .owner = name };
	return &st->share[st->n_share++];
}

/* Return a key's share of `all`; the server's own key may use all of it. */
static int64_t
part_of(const FileStore *st, const char *owner, int64_t all)
{
	const Keys *k = st->srv->keys;

	return k && k->n && *owner ? (all + k->n - 1) / k->n : all;
}

size_t
store_most(const FileStore *st, const char *owner)
{
	return (size_t)part_of(st, owner, MAX_STORED);
}

void
store_count(FileStore *st, const char *owner, int64_t bytes)
{
	st->used += bytes;
	store_share(st, owner)->used += bytes;
}

bool
store_take(FileStore *st, const char *owner, int64_t bytes)
{
	if (bytes > part_of(st, owner, st->max_bytes) - store_share(st, owner)->used +
	                batches_spare(st, owner) ||
	    bytes > st->max_bytes - st->used + batches_spare(st, NULL))
		return false; /* evict nothing if the bytes would not fit even then */
	while (bytes > part_of(st, owner, st->max_bytes) - store_share(st, owner)->used)
		if (!batches_evict(st, owner))
			return false;
	while (bytes > st->max_bytes - st->used)
		if (!batches_evict(st, NULL))
			return false;
	store_count(st, owner, bytes);
	return true;
}

/* ---- the folder ---- */

StoredFile *
store_find(FileStore *st, const char *id)
{
	for (size_t i = 0; i < st->n_file; i++)
		if (!strcmp(st->file[i].id, id))
			return &st->file[i];
	return NULL;
}

bool
store_add(FileStore *st, const StoredFile *f)
{
	StoredFile *more = st->n_file & (st->n_file + 1)
	                       ? st->file
	                       : realloc(st->file, 2 * (st->n_file + 1) *
	                                               sizeof *more); /* full at 0, 1, 3, 7 ... */
	char *name = strdup(f->name), *owner = strdup(f->owner);

	st->file = more ? more : st->file;
	if (!more || !name || !owner) {
		free(name);
		free(owner);
		return false;
	}
	st->file[st->n_file] = *f;
	st->file[st->n_file].name = name;
	st->file[st->n_file++].owner = owner;
	return true;
}

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

/* Match prefix, digits and return the rest in *tail. */
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

/* Remove files left by a crashed server: incomplete ones, and files without an owner. If some
 * description could not be read (sure is false), files without an owner stay, because they may
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
	pthread_condattr_t attr;
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
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&st->change, &attr);
	pthread_cond_init(&st->landed, &attr);
	pthread_condattr_destroy(&attr);
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

/* ---- shared by the routes ---- */

FileStore *
store_of(Req *r, Problem *p)
{
	if (r->srv->store)
		return r->srv->store;
	problem(p, 404, NULL, "This server stores no files: start it with --batch-dir FOLDER.");
	p->code = "files_not_kept";
	return NULL;
}

bool
store_sees(const Req *r, const char *owner)
{
	return !r->key || !strcmp(r->key->name, owner);
}

bool
store_page(Req *r, int most, int *limit, char after[ID_SIZE], Problem *p)
{
	char text[16] = "";
	char *end = text;

	after[0] = 0;
	head_query(&r->in, "after", after, ID_SIZE);
	if (!head_query(&r->in, "limit", text, sizeof text))
		return true;
	long n = strtol(text, &end, 10);
	if (end == text || *end || n < 1 || n > most)
		return problem(p, 400, "limit", "Invalid 'limit': expected a number from 1 to %d.",
		               most);
	*limit = (int)n;
	return true;
}

void
store_list_end(Strbuf *b, const char *first, const char *last, bool more)
{
	strbuf_puts(b, "],\"first_id\":");
	strbuf_printf(b, *first ? "\"%s\"" : "null", first);
	strbuf_puts(b, ",\"last_id\":");
	strbuf_printf(b, *last ? "\"%s\"" : "null", last);
	strbuf_puts(b, more ? ",\"has_more\":true}" : ",\"has_more\":false}");
}
