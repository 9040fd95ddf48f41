/* Routes of files: see batch.h. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/http/api_keys.h"
#include "serve/http/multipart.h"
#include "serve/http/route.h"

static void
file_json(const StoredFile *f, Strbuf *b) /* lock held */
{
	json_printf(
	    b,
	    "{\"id\":%s,\"object\":\"file\",\"bytes\":%lld,\"created_at\":%lld,\"expires_at\":null,"
	    "\"filename\":%s,\"purpose\":%s,\"status\":\"processed\",\"status_details\":null}",
	    f->id, (long long)f->bytes, (long long)f->created, f->name, f->purpose);
}

static bool
no_file(Problem *p, const char *id)
{
	problem(p, 404, "id", "No such File object: %.60s", id);
	p->code = "not_found";
	return false;
}

/* Read the parts of an upload: the file (out points into the body) and its purpose. */
static bool
read_upload(Req *r, MultipartPart *file, Problem *p)
{
	Multipart m;
	MultipartPart part;
	bool has_file = false, has_purpose = false;
	int more = 0;

	if (!multipart_open(&m, req_header(r, "Content-Type"), strbuf_str(&r->body), r->body.len))
		return problem(p, 400, NULL,
		               "Expected a body of the type multipart/form-data with a 'file' and "
		               "a 'purpose'.");
	while ((more = multipart_next(&m, &part)) > 0) {
		if (!strcmp(part.name, "file") && part.is_file) {
			if (has_file)
				return problem(p, 400, "file", "There is more than one 'file'.");
			has_file = true;
			*file = part;
		} else if (!strcmp(part.name, "purpose")) {
			if (part.n != 5 || memcmp(part.data, "batch", 5) != 0)
				return problem(p, 400, "purpose",
				               "Invalid 'purpose': '%.*s'. This server takes files "
				               "for 'batch'.",
				               part.n < 40 ? (int)part.n : 40, part.data);
			has_purpose = true;
		}
	}
	if (more < 0)
		return problem(p, 400, NULL, "The body is not complete multipart/form-data.");
	if (!has_file || !has_purpose) {
		const char *what = has_file ? "purpose" : "file";
		problem(p, 400, what, "Missing required parameter: '%s'.", what);
		p->code = "missing_required_parameter";
		return false;
	}
	return true;
}

/* Write the file and its description; on failure remove both. */
static bool
write_upload(const FileStore *st, const StoredFile *f, const char *data, Problem *p)
{
	char path[PATH_MAX], meta[PATH_MAX];
	Strbuf b = { 0 };
	llmc_error err = { 0 };

	store_path(st, path, sizeof path, f->id, "");
	store_path(st, meta, sizeof meta, f->id, ".json");
	json_printf(&b, "{\"filename\":%s,\"owner\":%s,\"created_at\":%lld}\n", f->name, f->owner,
	            (long long)f->created);
	bool ok = !b.failed && file_write(path, data, (size_t)f->bytes, &err) == LLMC_OK &&
	          file_write(meta, b.data, b.len, &err) == LLMC_OK;
	strbuf_release(&b);
	if (ok)
		return true;
	unlink(path);
	unlink(meta);
	serve_log(st->srv, LLMC_LOG_WARNING, "an uploaded file could not be saved: %s",
	          err.text[0] ? err.text : "out of memory");
	problem(p, 507, NULL, "The file could not be written to the server's disk.");
	p->code = "storage_full";
	return false;
}

void
files_upload(Req *r)
{
	Problem p = { 0 };
	MultipartPart part = { 0 };
	FileStore *st = store_of(r, &p);
	Strbuf b = { 0 };

	if (st && req_own_page(r, &p) && read_upload(r, &part, &p)) {
		StoredFile f = { .name = part.file,
			         .owner = (char *)(uintptr_t)(r->key ? r->key->name : ""),
			         .purpose = "batch",
			         .bytes = (int64_t)part.n,
			         .created = time(NULL) };
		store_id(f.id, "file-");
		pthread_mutex_lock(&st->lock);
		size_t n = 0;
		for (size_t i = 0; i < st->n_file; i++)
			n += !strcmp(st->file[i].owner, f.owner);
		bool room = st->n_file < MAX_STORED && n < store_most(st, f.owner) &&
		            store_take(st, f.owner, f.bytes);
		pthread_mutex_unlock(&st->lock);
		if (!room) {
			problem(&p, 507, NULL,
			        "%lld more bytes exceed the space of this server's files or of "
			        "this key (--batch-dir-size): delete some files.",
			        (long long)f.bytes);
			p.code = "storage_full";
		} else {
			bool ok = write_upload(st, &f, part.data, &p);
			pthread_mutex_lock(&st->lock);
			if (ok && !store_add(st, &f))
				ok = problem_memory(&p);
			if (ok)
				file_json(&f, &b);
			else
				store_count(st, f.owner, -f.bytes);
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
	char after[ID_SIZE], purpose[32] = "", order[8] = "", first[ID_SIZE] = "",
	                     last[ID_SIZE] = "";
	int limit = MAX_STORED, n = 0;
	FileStore *st = store_of(r, &p);

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
		const StoredFile *f = &st->file[old_first ? i : st->n_file - 1 - i];
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

/* Map the file, so that its pages count as page cache and not as memory of the server. A stored
 * file is never truncated, only removed. */
static void
send_content(Req *r, const FileStore *st, const char *id, Problem *p)
{
	char path[PATH_MAX];

	store_path(st, path, sizeof path, id, "");
	if (file_map(path, &r->file, NULL) == LLMC_OK)
		req_answer_file(r, "application/octet-stream", (const char *)r->file.data,
		                r->file.size);
	else
		no_file(p, id); /* the file has been removed meanwhile */
}

void
files_get(Req *r)
{
	static const char content[] = "/content";
	Problem p = { 0 };
	Strbuf b = { 0 };
	char id[ID_SIZE] = "";
	FileStore *st = store_of(r, &p);
	size_t n = strcspn(r->tail, "/");
	bool there = false;

	if (st && n < sizeof id && (!r->tail[n] || !strcmp(r->tail + n, content))) {
		snprintf(id, sizeof id, "%.*s", (int)n, r->tail);
		pthread_mutex_lock(&st->lock);
		const StoredFile *f = store_find(st, id);
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

/* Report whether an unfinished batch needs the file; lock held. */
static bool
in_use(const FileStore *st, const char *id)
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
	FileStore *st = store_of(r, &p);

	if (st) {
		pthread_mutex_lock(&st->lock);
		StoredFile *f = store_find(st, r->tail);
		if (!f || !store_sees(r, f->owner)) {
			no_file(&p, r->tail);
		} else if (in_use(st, f->id)) {
			problem(&p, 409, NULL,
			        "An unfinished batch uses this file: cancel the batch first.");
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
			store_count(st, f->owner, -f->bytes);
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
