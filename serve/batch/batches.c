/* The table of batches and their routes: see batch.h. The file id.json describes a batch; output
 * and errors are in <id>.part until it has ended. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/http/api_keys.h"
#include "serve/dialects/openai.h"

enum {
	MAX_META = 4 << 20,
	MAX_PAIRS = 16,
	NEW_BYTES = 1024
}; /* NEW_BYTES: estimated size of a batch's JSON file */

static const char *const status_name[N_BATCH_STATUS] = {
	[BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress",
	[BATCH_FINALIZING] = "finalizing", [BATCH_CANCELLING] = "cancelling",
	[BATCH_COMPLETED] = "completed",   [BATCH_FAILED] = "failed",
	[BATCH_EXPIRED] = "expired",       [BATCH_CANCELLED] = "cancelled",
};

static const char *
known_endpoint(const char *s)
{
	static const char *const known[] = { "/v1/chat/completions", "/v1/completions",
		                             "/v1/embeddings", "/v1/responses" };

	for (size_t i = 0; s && i < sizeof known / sizeof *known; i++)
		if (!strcmp(s, known[i]))
			return known[i];
	return NULL;
}

/* ---- JSON ---- */

static void
put_value(Strbuf *out, const char *key, const json_t *v)
{
	char *text = v ? json_dumps_numbers(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	strbuf_printf(out, ",\"%s\":%s", key, text ? text : "null");
	out->failed |= v && !text;
	free(text);
}

void
batch_json(const Batch *b, Strbuf *out)
{
	json_printf(out,
	            "{\"id\":%s,\"object\":\"batch\",\"endpoint\":%s,\"input_file_id\":%s,"
	            "\"completion_window\":\"24h\",\"status\":%s,\"output_file_id\":%s,\"error_"
	            "file_id\":%s,\"created_at\":%lld,\"expires_at\":%lld",
	            b->id, b->endpoint, b->input, status_name[b->status],
	            b->has[0] ? b->file[0] : NULL, b->has[1] ? b->file[1] : NULL,
	            (long long)b->at[BATCH_VALIDATING], (long long)b->expires);
	for (int i = BATCH_VALIDATING + 1; i < N_BATCH_STATUS; i++)
		if (b->at[i])
			strbuf_printf(out, ",\"%s_at\":%lld", status_name[i], (long long)b->at[i]);
		else
			strbuf_printf(out, ",\"%s_at\":null", status_name[i]);
	strbuf_printf(out,
	              ",\"request_counts\":{\"total\":%lld,\"completed\":%lld,\"failed\":%lld}",
	              (long long)b->total, (long long)b->completed, (long long)b->failed);
	put_value(out, "errors", b->errors);
	put_value(out, "metadata", b->metadata);
	strbuf_putc(out, '}');
}

/* ---- the table ---- */

static void
batch_free(Batch *b)
{
	if (!b)
		return;
	free(b->owner);
	json_decref(b->metadata);
	json_decref(b->errors);
	free(b);
}

void
batches_free(FileStore *st)
{
	for (Batch *b = st->first, *next; b; b = next) {
		next = b->next;
		batch_free(b);
	}
	st->first = NULL;
}

/* Insert in order of creation, after those of the same second. */
static void
put(FileStore *st, Batch *b)
{
	Batch **at = &st->first;

	while (*at && (*at)->at[BATCH_VALIDATING] <= b->at[BATCH_VALIDATING])
		at = &(*at)->next;
	b->next = *at;
	*at = b;
}

static Batch *
find(FileStore *st, const char *id)
{
	Batch *b = st->first;

	while (b && strcmp(b->id, id) != 0)
		b = b->next;
	return b;
}

/* Write a batch's state. The state is read under the save lock, so a later writer never stores an
 * older state than clients have seen. The space was reserved when the batch was created. */
bool
batch_save(FileStore *st, const char *id)
{
	char path[PATH_MAX];
	Strbuf text = { 0 };
	llmc_error err = { 0 };

	store_path(st, path, sizeof path, id, ".json");
	pthread_mutex_lock(&st->save);
	pthread_mutex_lock(&st->lock);
	Batch *b = find(st, id);
	if (b) {
		json_printf(&text, "{\"owner\":%s,\"output\":%s,\"error\":%s,\"batch\":", b->owner,
		            b->file[0], b->file[1]);
		batch_json(b, &text);
		strbuf_puts(&text, "}\n");
		store_count(st, b->owner, (int64_t)text.len - b->bytes);
		b->bytes = (int64_t)text.len;
		b->saves++; /* prevents eviction meanwhile */
	}
	pthread_mutex_unlock(&st->lock);
	bool ok = !b || (!text.failed && file_write(path, text.data, text.len, &err) == LLMC_OK);
	if (b) {
		pthread_mutex_lock(&st->lock);
		b->saves--;
		pthread_mutex_unlock(&st->lock);
	}
	pthread_mutex_unlock(&st->save);
	strbuf_release(&text);
	if (!ok)
		serve_log(st->srv, LLMC_LOG_WARNING, "the state of batch %s could not be saved: %s",
		          id, err.text[0] ? err.text : "out of memory");
	return ok;
}

/* Find the output files of a batch in the folder. */
static void
load_files(FileStore *st, Batch *b)
{
	static const char *const what[2] = { "output", "error" };
	char path[PATH_MAX], whole[PATH_MAX], name[ID_SIZE + 16];
	struct stat is;

	for (int i = 0; i < 2; i++) {
		store_path(st, whole, sizeof whole, b->file[i], "");
		store_path(st, path, sizeof path, b->file[i], batch_ended(b) ? "" : ".part");
		if (!batch_ended(b) && lstat(path, &is) != 0 && rename(whole, path) != 0 &&
		    errno != ENOENT) /* a crash occurred between rename and save */
			serve_log(st->srv, LLMC_LOG_WARNING, "warning: %s: %s", whole,
			          strerror(errno));
		bool there = lstat(path, &is) == 0 && S_ISREG(is.st_mode);
		b->has[i] = there && batch_ended(b);
		if (there)
			store_count(st, b->owner, is.st_size);
		if (!b->has[i])
			continue;
		snprintf(name, sizeof name, "%s_%s.jsonl", b->id, what[i]);
		StoredFile f = { .name = name,
			         .owner = b->owner,
			         .purpose = "batch_output",
			         .bytes = is.st_size,
			         .created = b->at[b->status] };
		memcpy(f.id, b->file[i], sizeof f.id);
		b->has[i] = store_add(st, &f);
	}
}

bool
batches_load(FileStore *st, const char *id, llmc_error *err)
{
	char path[PATH_MAX];
	Strbuf text = { 0 };
	json_error_t why;

	store_path(st, path, sizeof path, id, ".json");
	if (file_read(path, MAX_META, &text, err) != LLMC_OK)
		return false;
	json_t *o = json_parse(strbuf_str(&text), text.len, JSON_ALLOW_NUL, &why, NULL),
	       *in = json_object_get(o, "batch"), *n = json_object_get(in, "request_counts");
	int64_t bytes = (int64_t)text.len;
	strbuf_release(&text);
	Batch *b = calloc(1, sizeof *b);
	const char *output = json_text_of(o, "output"), *error = json_text_of(o, "error"),
	           *input = json_text_of(in, "input_file_id");
	bool ok = b && in && strlen(output) < ID_SIZE && strlen(error) < ID_SIZE &&
	          strlen(input) < ID_SIZE && !strncmp(output, "file-", 5) &&
	          !strncmp(error, "file-", 5) && !strpbrk(output, "/.") && !strpbrk(error, "/.") &&
	          !strpbrk(input, "/.");
	if (ok) {
		snprintf(b->id, sizeof b->id, "%s", id);
		snprintf(b->file[0], sizeof b->file[0], "%s", output);
		snprintf(b->file[1], sizeof b->file[1], "%s", error);
		snprintf(b->input, sizeof b->input, "%s", input);
		b->owner = strdup(json_text_of(o, "owner"));
		b->endpoint = known_endpoint(json_text_of(in, "endpoint"));
		b->status = N_BATCH_STATUS;
		b->at[BATCH_VALIDATING] =
		    (time_t)json_integer_value(json_object_get(in, "created_at"));
		b->expires = (time_t)json_integer_value(json_object_get(in, "expires_at"));
		for (int i = 0; i < N_BATCH_STATUS; i++) {
			char key[32];
			snprintf(key, sizeof key, "%s_at", status_name[i]);
			if (i != BATCH_VALIDATING)
				b->at[i] = (time_t)json_integer_value(json_object_get(in, key));
			if (!strcmp(json_text_of(in, "status"), status_name[i]))
				b->status = (BatchStatus)i;
		}
		b->cancel = b->status == BATCH_CANCELLING;
		b->total = json_integer_value(json_object_get(n, "total"));
		b->completed = json_integer_value(json_object_get(n, "completed"));
		b->failed = json_integer_value(json_object_get(n, "failed"));
		if (json_is_object(json_object_get(in, "metadata")))
			b->metadata = json_incref(json_object_get(in, "metadata"));
		if (json_is_object(json_object_get(in, "errors")))
			b->errors = json_incref(json_object_get(in, "errors"));
		ok = b->owner && b->endpoint && b->status != N_BATCH_STATUS;
	}
	json_decref(o);
	if (!ok) {
		batch_free(b);
		error_set(err, LLMC_E_INPUT, "not a batch of this server");
		return false;
	}
	b->bytes = bytes;
	store_count(st, b->owner, bytes);
	load_files(st, b);
	put(st, b);
	return true;
}

/* ---- routes ---- */

static bool
no_batch(Problem *p, const char *id)
{
	problem(p, 404, "id", "No batch found with id '%.60s'.", id);
	p->code = "not_found";
	return false;
}

static bool
read_metadata(const json_t *o, json_t **out, Problem *p)
{
	json_t *v = json_object_get(o, "metadata"), *one;
	const char *key;

	*out = NULL;
	if (!v || json_is_null(v))
		return true;
	if (!json_is_object(v))
		return problem(
		    p, 400, "metadata",
		    "Invalid type for 'metadata': expected an object, but got %s instead.",
		    json_type_name(v));
	if (json_object_size(v) > MAX_PAIRS)
		return problem(p, 400, "metadata",
		               "Invalid 'metadata': at most %d pairs are allowed.", MAX_PAIRS);
	json_object_foreach (v, key, one)
		if (strlen(key) > 64 || !json_is_string(one) || json_string_length(one) > 512)
			return problem(p, 400, "metadata",
			               "Invalid 'metadata': keys are strings of up to 64 bytes, "
			               "values strings of up to 512.");
	*out = json_incref(v);
	return true;
}

static bool
text_field(const json_t *o, const char *key, const char **out, Problem *p)
{
	const json_t *v = json_object_get(o, key);

	if (!v || json_is_null(v))
		return openai_missing(p, key);
	*out = json_string_value(v);
	return *out ||
	       problem(p, 400, key, "Invalid type for '%s': expected a string, but got %s instead.",
	               key, json_type_name(v));
}

static void
drop(FileStore *st, Batch **at) /* lock held */
{
	char path[PATH_MAX];
	Batch *b = *at;

	store_path(st, path, sizeof path, b->id, ".json");
	unlink(path);
	store_count(st, b->owner, -b->bytes);
	*at = b->next;
	batch_free(b);
}

static bool
is_spare(const Batch *b, const char *owner)
{
	return batch_ended(b) && !b->saves && !b->has[0] && !b->has[1] &&
	       (!owner || !strcmp(b->owner, owner));
}

int64_t
batches_spare(const FileStore *st, const char *owner)
{
	int64_t n = 0;

	for (const Batch *b = st->first; b; b = b->next)
		n += is_spare(b, owner) ? b->bytes : 0;
	return n;
}

bool
batches_evict(FileStore *st, const char *owner)
{
	for (Batch **at = &st->first; *at; at = &(*at)->next)
		if (is_spare(*at, owner)) {
			drop(st, at);
			return true;
		}
	return false;
}

/* Reserve space for one more batch of this owner, evicting finished ones; lock held. */
static bool
room_for_one(FileStore *st, const char *owner)
{
	size_t n = 0, own = 0;

	for (const Batch *b = st->first; b; b = b->next) {
		n++;
		own += !strcmp(b->owner, owner);
	}
	return (own < store_most(st, owner) || batches_evict(st, owner)) &&
	       (n < MAX_STORED || batches_evict(st, NULL)) && store_take(st, owner, NEW_BYTES);
}

/* Write a new batch and make it visible, or drop it if the write fails. */
static bool
keep(FileStore *st, const char *id, Strbuf *text)
{
	bool ok = batch_save(st, id);

	pthread_mutex_lock(&st->lock);
	for (Batch **at = &st->first; *at; at = &(*at)->next)
		if (!strcmp((*at)->id, id)) {
			(*at)->fresh = false;
			if (ok)
				batch_json(*at, text);
			else
				drop(st, at);
			break;
		}
	pthread_cond_broadcast(&st->change);
	pthread_mutex_unlock(&st->lock);
	return ok;
}

void
batches_create(Req *r)
{
	Problem p = { 0 };
	Strbuf text = { 0 };
	const char *input = "", *endpoint = NULL, *window = NULL;
	char id[ID_SIZE];
	FileStore *st = store_of(r, &p);
	json_t *o = st ? body_object(&r->body, &p) : NULL;
	Batch *b = o ? calloc(1, sizeof *b) : NULL;

	if (o && !b)
		problem_memory(&p);
	if (b && text_field(o, "input_file_id", &input, &p) &&
	    text_field(o, "endpoint", &endpoint, &p) &&
	    text_field(o, "completion_window", &window, &p) && read_metadata(o, &b->metadata, &p)) {
		b->endpoint = known_endpoint(endpoint);
		if (!b->endpoint)
			problem(&p, 400, "endpoint",
			        "Invalid 'endpoint': expected /v1/chat/completions, "
			        "/v1/completions, /v1/embeddings or /v1/responses.");
		else if (strcmp(window, "24h") != 0)
			problem(&p, 400, "completion_window",
			        "Invalid 'completion_window': expected '24h'.");
	}
	if (b && !p.status) {
		store_id(b->id, "batch_");
		store_id(b->file[0], "file-");
		store_id(b->file[1], "file-");
		snprintf(b->input, sizeof b->input, "%s", input);
		b->owner = strdup(r->key ? r->key->name : "");
		b->at[BATCH_VALIDATING] = time(NULL);
		b->expires = b->at[BATCH_VALIDATING] + BATCH_S;
		pthread_mutex_lock(&st->lock);
		const StoredFile *f = store_find(st, input);
		if (!b->owner) {
			problem_memory(&p);
		} else if (!f || !store_sees(r, f->owner) || strcmp(f->purpose, "batch") != 0) {
			problem(&p, 404, "input_file_id",
			        "There is no file '%.60s' with purpose 'batch'.", input);
			p.code = "not_found";
		} else if (!room_for_one(st, b->owner)) {
			problem(&p, 429, NULL,
			        "This server, or this key, has reached its limit of batches or of "
			        "space (--batch-dir-size): delete the files of old batches.");
		} else {
			snprintf(id, sizeof id, "%s", b->id);
			b->bytes = NEW_BYTES;
			b->fresh = true;
			put(st, b);
			b = NULL;
		}
		pthread_mutex_unlock(&st->lock);
		if (!p.status && !keep(st, id, &text)) {
			problem(&p, 507, NULL,
			        "The batch could not be written to the server's disk.");
			p.code = "storage_full";
		}
	}
	batch_free(b);
	json_decref(o);
	if (p.status)
		req_problem(r, &p);
	else
		req_answer(r, 200, type_json, &text);
}

void
batches_list(Req *r)
{
	Problem p = { 0 };
	Strbuf text = { 0 };
	char after[ID_SIZE], first[ID_SIZE] = "", last[ID_SIZE] = "";
	int limit = 20, n = 0;
	FileStore *st = store_of(r, &p);
	const Batch **all = NULL;
	size_t n_all = 0;

	if (!st || !store_page(r, 100, &limit, after, &p)) {
		req_problem(r, &p);
		return;
	}
	pthread_mutex_lock(&st->lock);
	for (const Batch *b = st->first; b; b = b->next)
		n_all++;
	all = calloc(n_all + 1, sizeof *all);
	n_all = 0;
	for (const Batch *b = st->first; b && all; b = b->next)
		if (!b->fresh && store_sees(r, b->owner))
			all[n_all++] = b;
	size_t at = n_all; /* newest first */
	while (*after && at && strcmp(all[at - 1]->id, after) != 0)
		at--;
	at -= *after && at;
	strbuf_puts(&text, "{\"object\":\"list\",\"data\":[");
	for (; at && n < limit; at--, n++) {
		strbuf_puts(&text, n ? "," : "");
		batch_json(all[at - 1], &text);
		memcpy(last, all[at - 1]->id, sizeof last);
		if (!n)
			memcpy(first, last, sizeof first);
	}
	pthread_mutex_unlock(&st->lock);
	store_list_end(&text, first, last, at > 0);
	text.failed |= !all;
	free(all);
	req_answer(r, 200, type_json, &text);
}

/* Find the batch named by the path, or set a Problem; lock held. */
static Batch *
batch_of_path(Req *r, FileStore *st, const char *tail, Problem *p)
{
	char id[ID_SIZE] = "";
	size_t n = strcspn(r->tail, "/");

	if (n < sizeof id && !strcmp(r->tail + n, tail))
		snprintf(id, sizeof id, "%.*s", (int)n, r->tail);
	Batch *b = find(st, id);
	if (b && store_sees(r, b->owner))
		return b;
	no_batch(p, r->tail);
	return NULL;
}

static void
answer_one(Req *r, bool cancel)
{
	Problem p = { 0 };
	Strbuf text = { 0 };
	FileStore *st = store_of(r, &p);
	char id[ID_SIZE] = "";

	if (st && (!cancel || req_own_page(r, &p))) {
		pthread_mutex_lock(&st->lock);
		Batch *b = batch_of_path(r, st, cancel ? "/cancel" : "", &p);
		if (b && cancel && batch_ended(b) && b->status != BATCH_CANCELLED) {
			problem(&p, 409, NULL, "Cannot cancel a batch with status '%s'.",
			        status_name[b->status]);
		} else if (b && cancel && !batch_ended(b) && !b->cancel) {
			b->cancel = true;
			b->status = BATCH_CANCELLING;
			b->at[BATCH_CANCELLING] = time(NULL);
			memcpy(id, b->id, sizeof id);
		}
		if (b && !p.status)
			batch_json(b, &text);
		pthread_mutex_unlock(&st->lock);
		if (*id) {
			batch_save(st, id);
			batch_wake(st);
		}
	}
	if (p.status)
		req_problem(r, &p);
	else
		req_answer(r, 200, type_json, &text);
}

void
batches_get(Req *r)
{
	answer_one(r, false);
}

void
batches_cancel(Req *r)
{
	answer_one(r, true);
}
