/* The folder of files and their routes: see batch.h. A file that has come is its bytes under its id, and id.json with the rest; files of answers are told by the
 * batch that they belong to. */
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
#include "serve/batch.h"
#include "serve/keys.h"
#include "serve/multipart.h"
#include "serve/route.h"

enum { MAX_META = 1 << 20, ID_DIGITS = 24 };

/* ---- the folder ---- */

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
store_path(const Store *st, char *out, size_t cap, const char *id, const char *tail)
{
	snprintf(out, cap, "%s/%s%s", st->dir, id, tail);
}

/* prefix, digits, ".json": the id without its end */
static bool
is_meta(const char *name, const char *prefix, char id[ID_SIZE])
{
	size_t n = strlen(prefix);

	if (strncmp(name, prefix, n) != 0 || strspn(name + n, "0123456789abcdef") != ID_DIGITS || strcmp(name + n + ID_DIGITS, ".json") != 0)
		return false;
	snprintf(id, ID_SIZE, "%.*s", (int)(n + ID_DIGITS), name);
	return true;
}

Stored *
store_find(Store *st, const char *id)
{
	for (size_t i = 0; i < st->n_file; i++)
		if (!strcmp(st->file[i].id, id))
			return &st->file[i];
	return NULL;
}

bool
store_add(Store *st, const Stored *f)
{
	Stored *more = st->n_file & (st->n_file + 1) ? st->file : realloc(st->file, 2 * (st->n_file + 1) * sizeof *more); /* full at 0, 1, 3, 7 ... */
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

static const char *
text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static bool
load_file(Store *st, const char *id, llmc_error *err)
{
	char path[PATH_MAX];
	Strbuf text = { 0 };
	json_error_t why;
	struct stat is;

	store_path(st, path, sizeof path, id, ".json");
	bool ok = file_read(path, MAX_META, &text, err) == LLMC_OK;
	json_t *o = ok ? json_loadb(strbuf_str(&text), text.len, JSON_ALLOW_NUL, &why) : NULL;
	strbuf_release(&text);
	store_path(st, path, sizeof path, id, "");
	if (ok && (!json_is_object(o) || lstat(path, &is) != 0 || !S_ISREG(is.st_mode)))
		ok = error_set(err, LLMC_E_INPUT, "%s: what belongs to it cannot be read", path) == LLMC_OK;
	if (ok) {
		Stored f = { .name = (char *)(uintptr_t)text_of(o, "filename"), .owner = (char *)(uintptr_t)text_of(o, "owner"), .purpose = "batch",
			     .bytes = is.st_size, .created = (time_t)json_integer_value(json_object_get(o, "created_at")) };
		snprintf(f.id, sizeof f.id, "%s", id);
		ok = store_add(st, &f);
		st->used += ok ? f.bytes : 0;
	}
	json_decref(o);
	return ok;
}

static int
by_age(const void *a, const void *b)
{
	const Stored *x = a, *y = b;

	return x->created != y->created ? (x->created < y->created ? -1 : 1) : strcmp(x->id, y->id);
}

static llmc_status
load(Store *st, llmc_error *err)
{
	static const char *const kinds[] = { "file-", "batch_" };
	char id[ID_SIZE];
	llmc_error why = { 0 };

	for (int kind = 0; kind < 2; kind++) { /* batches find their files */
		DIR *d = opendir(st->dir);
		if (!d)
			return error_set(err, LLMC_E_IO, "%s: %s", st->dir, strerror(errno));
		for (struct dirent *e; (e = readdir(d));)
			if (is_meta(e->d_name, kinds[kind], id) && !(kind ? batches_load(st, id, &why) : load_file(st, id, &why)))
				serve_log(st->srv, LLMC_LOG_WARNING, "warning: %s/%s is passed over: %s", st->dir, e->d_name, why.text);
		closedir(d);
	}
	if (st->n_file)
		qsort(st->file, st->n_file, sizeof *st->file, by_age);
	return LLMC_OK;
}

llmc_status
store_open(Server *s, const char *dir, int64_t max_bytes, Store **out, llmc_error *err)
{
	pthread_condattr_t attr;
	char path[PATH_MAX];
	struct stat is;

	*out = NULL;
	TRY(file_mkdirs_private(dir, err));
	if (stat(dir, &is) != 0 || !S_ISDIR(is.st_mode))
		return error_set(err, LLMC_E_INPUT, "%s: no folder", dir);
	if (is.st_uid != geteuid() || is.st_mode & 077)
		return error_set(err, LLMC_E_INPUT, "%s: others may enter this folder, and what clients have sent lies there: chmod 700 it, or choose another", dir);
	if (strlen(dir) + ID_SIZE + 64 > sizeof path)
		return error_set(err, LLMC_E_INPUT, "%.100s...: the path is too long", dir);
	Store *st = calloc(1, sizeof *st);
	if (!st)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	st->srv = s;
	st->lock_fd = -1;
	st->max_bytes = max_bytes;
	st->max_file = max_bytes < (int64_t)s->max_held / 2 ? max_bytes : (int64_t)s->max_held / 2;
	pthread_mutex_init(&st->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&st->change, &attr);
	pthread_condattr_destroy(&attr);
	st->dir = strdup(dir);
	llmc_status status = st->dir ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
	if (status == LLMC_OK) {
		store_path(st, path, sizeof path, "lock", "");
		st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (st->lock_fd < 0)
			status = error_set(err, LLMC_E_IO, "%s: %s", path, strerror(errno));
		else if (flock(st->lock_fd, LOCK_EX | LOCK_NB) != 0)
			status = error_set(err, LLMC_E_INPUT, "%s: another server has this folder", dir);
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
store_close(Store *st)
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
	pthread_mutex_destroy(&st->lock);
	pthread_cond_destroy(&st->change);
	free(st);
}

/* ---- what routes share ---- */

Store *
store_of(Req *r, Problem *p)
{
	if (r->srv->store)
		return r->srv->store;
	problem(p, 404, NULL, "This server keeps no files: start it with --batch-dir, the folder that they shall lie in.");
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
		return problem(p, 400, "limit", "Invalid 'limit': expected a number from 1 to %d.", most);
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

static void
file_json(const Stored *f, Strbuf *b) /* lock held */
{
	json_printf(b, "{\"id\":%s,\"object\":\"file\",\"bytes\":%lld,\"created_at\":%lld,\"expires_at\":null,\"filename\":%s,\"purpose\":%s,\"status\":\"processed\",\"status_details\":null}",
	            f->id, (long long)f->bytes, (long long)f->created, f->name, f->purpose);
}

static bool
no_file(Problem *p, const char *id)
{
	problem(p, 404, "id", "No such File object: %.60s", id);
	p->code = "not_found";
	return false;
}

/* ---- routes ---- */

/* The parts of an upload: the file, which is the body's, and what it is for. */
static bool
read_upload(Req *r, Part *file, Problem *p)
{
	Multipart m;
	Part part;
	bool has_file = false, has_purpose = false;
	int more = 0;

	if (!multipart_open(&m, req_header(r, "Content-Type"), strbuf_str(&r->body), r->body.len))
		return problem(p, 400, NULL, "Expected a body of the type multipart/form-data with a 'file' and a 'purpose'.");
	while ((more = multipart_next(&m, &part)) > 0) {
		if (!strcmp(part.name, "file") && part.is_file) {
			if (has_file)
				return problem(p, 400, "file", "There is more than one 'file'.");
			has_file = true;
			*file = part;
		} else if (!strcmp(part.name, "purpose")) {
			if (part.n != 5 || memcmp(part.data, "batch", 5) != 0)
				return problem(p, 400, "purpose", "Invalid 'purpose': '%.*s'. This server takes files for 'batch'.", part.n < 40 ? (int)part.n : 40, part.data);
			has_purpose = true;
		}
	}
	if (more < 0)
		return problem(p, 400, NULL, "The body is no whole multipart/form-data.");
	if (!has_file || !has_purpose) {
		const char *what = has_file ? "purpose" : "file";
		problem(p, 400, what, "Missing required parameter: '%s'.", what);
		p->code = "missing_required_parameter";
		return false;
	}
	return true;
}

/* The file and what is said of it; what is half there goes again. */
static bool
write_upload(const Store *st, const Stored *f, const char *data, Problem *p)
{
	char path[PATH_MAX], meta[PATH_MAX];
	Strbuf b = { 0 };
	llmc_error err = { 0 };

	store_path(st, path, sizeof path, f->id, "");
	store_path(st, meta, sizeof meta, f->id, ".json");
	json_printf(&b, "{\"filename\":%s,\"owner\":%s,\"created_at\":%lld}\n", f->name, f->owner, (long long)f->created);
	bool ok = !b.failed && file_write(path, data, (size_t)f->bytes, &err) == LLMC_OK && file_write(meta, b.data, b.len, &err) == LLMC_OK;
	strbuf_release(&b);
	if (ok)
		return true;
	unlink(path);
	unlink(meta);
	serve_log(st->srv, LLMC_LOG_WARNING, "a file of a client is not kept: %s", err.text[0] ? err.text : "out of memory");
	problem(p, 507, NULL, "The server's disk does not take the file.");
	p->code = "storage_full";
	return false;
}

void
files_upload(Req *r)
{
	Problem p = { 0 };
	Part part = { 0 };
	Store *st = store_of(r, &p);
	Strbuf b = { 0 };

	if (st && req_own_page(r, &p) && read_upload(r, &part, &p)) {
		Stored f = { .name = part.file, .owner = (char *)(uintptr_t)(r->key ? r->key->name : ""), .purpose = "batch", .bytes = (int64_t)part.n, .created = time(NULL) };
		store_id(f.id, "file-");
		pthread_mutex_lock(&st->lock);
		bool room = st->n_file < MAX_STORED && f.bytes <= st->max_bytes - st->used;
		st->used += room ? f.bytes : 0;
		pthread_mutex_unlock(&st->lock);
		if (!room) {
			problem(&p, 507, NULL, "The files of this server's clients have no room for %lld bytes more (--batch-dir-size): delete some.", (long long)f.bytes);
			p.code = "storage_full";
		} else {
			bool ok = write_upload(st, &f, part.data, &p);
			pthread_mutex_lock(&st->lock);
			if (ok && !store_add(st, &f))
				ok = problem_memory(&p);
			if (ok)
				file_json(&f, &b);
			else
				st->used -= f.bytes;
			pthread_mutex_unlock(&st->lock);
		}
	}
	if (p.status) {
		req_problem(r, &p);
		return;
	}
	req_answer(r, 200, type_json, &b);
}

void
files_list(Req *r)
{
	Problem p = { 0 };
	Strbuf b = { 0 };
	char after[ID_SIZE], purpose[32] = "", order[8] = "", first[ID_SIZE] = "", last[ID_SIZE] = "";
	int limit = MAX_STORED, n = 0;
	Store *st = store_of(r, &p);

	if (!st || !store_page(r, MAX_STORED, &limit, after, &p)) {
		req_problem(r, &p);
		return;
	}
	head_query(&r->in, "purpose", purpose, sizeof purpose);
	head_query(&r->in, "order", order, sizeof order);
	bool old_first = !strcmp(order, "asc"), on = !after[0], more = false;
	strbuf_puts(&b, "{\"object\":\"list\",\"data\":[");
	pthread_mutex_lock(&st->lock);
	for (size_t i = 0; i < st->n_file && !more; i++) {
		const Stored *f = &st->file[old_first ? i : st->n_file - 1 - i];
		if (!store_sees(r, f->owner) || (*purpose && strcmp(f->purpose, purpose) != 0))
			continue;
		if (!on) {
			on = !strcmp(f->id, after);
			continue;
		}
		more = n == limit;
		if (more)
			break;
		strbuf_puts(&b, n++ ? "," : "");
		file_json(f, &b);
		memcpy(last, f->id, sizeof last);
		if (n == 1)
			memcpy(first, last, sizeof first);
	}
	pthread_mutex_unlock(&st->lock);
	store_list_end(&b, first, last, more);
	req_answer(r, 200, type_json, &b);
}

/* Its pages are the disk's, so that they count as no memory of ours; a file that is there is never cut, only removed. */
static void
send_content(Req *r, const Store *st, const char *id, Problem *p)
{
	char path[PATH_MAX];

	store_path(st, path, sizeof path, id, "");
	if (file_map(path, &r->file, NULL) == LLMC_OK)
		req_answer_file(r, "application/octet-stream", (const char *)r->file.data, r->file.size);
	else
		no_file(p, id); /* it went a moment ago */
}

void
files_get(Req *r)
{
	static const char content[] = "/content";
	Problem p = { 0 };
	Strbuf b = { 0 };
	char id[ID_SIZE] = "";
	Store *st = store_of(r, &p);
	size_t n = strcspn(r->tail, "/");
	bool there = false;

	if (st && n < sizeof id && (!r->tail[n] || !strcmp(r->tail + n, content))) {
		snprintf(id, sizeof id, "%.*s", (int)n, r->tail);
		pthread_mutex_lock(&st->lock);
		const Stored *f = store_find(st, id);
		there = f && store_sees(r, f->owner);
		if (there)
			file_json(f, &b);
		pthread_mutex_unlock(&st->lock);
	}
	if (st && !there)
		no_file(&p, r->tail);
	else if (st && r->tail[n])
		send_content(r, st, id, &p);
	if (p.status)
		req_problem(r, &p);
	else if (!r->tail[n])
		req_answer(r, 200, type_json, &b);
	strbuf_release(&b);
}

/* A batch that has not ended needs it; lock held. */
static bool
in_use(const Store *st, const char *id)
{
	for (const Batch *b = st->first; b; b = b->next)
		if (!batch_ended(b) && !strcmp(b->input, id))
			return true;
	return false;
}

void
files_delete(Req *r)
{
	char path[PATH_MAX];
	Problem p = { 0 };
	Strbuf b = { 0 };
	Store *st = store_of(r, &p);

	if (st) {
		pthread_mutex_lock(&st->lock);
		Stored *f = store_find(st, r->tail);
		if (!f || !store_sees(r, f->owner)) {
			no_file(&p, r->tail);
		} else if (in_use(st, f->id)) {
			problem(&p, 409, NULL, "A batch that has not ended reads this file: cancel it first.");
			p.code = "file_in_use";
		} else {
			for (int i = 0; i < 2; i++) {
				store_path(st, path, sizeof path, f->id, i ? "" : ".json");
				unlink(path);
			}
			for (Batch *at = st->first; at; at = at->next)
				for (int i = 0; i < 2; i++)
					if (at->has[i] && !strcmp(at->file[i], f->id))
						at->has[i] = false;
			st->used -= f->bytes;
			json_printf(&b, "{\"id\":%s,\"object\":\"file\",\"deleted\":", f->id);
			strbuf_puts(&b, "true}");
			free(f->name);
			free(f->owner);
			size_t left = st->n_file - (size_t)(f - st->file) - 1;
			memmove(f, f + 1, left * sizeof *f);
			st->n_file--;
		}
		pthread_mutex_unlock(&st->lock);
	}
	if (p.status)
		req_problem(r, &p);
	else
		req_answer(r, 200, type_json, &b);
}
