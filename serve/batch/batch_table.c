/* The table of batches and its files: see batch.h. The file id.json describes a batch; output and
 * errors are in <id>.part until it has ended. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/batch/batch_table.h"
#include "serve/dialects/openai.h"

enum { MAX_META = 4 << 20 };

const char *const batch_status_name[N_BATCH_STATUS] = {
	[BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress",
	[BATCH_FINALIZING] = "finalizing", [BATCH_CANCELLING] = "cancelling",
	[BATCH_COMPLETED] = "completed",   [BATCH_FAILED] = "failed",
	[BATCH_EXPIRED] = "expired",       [BATCH_CANCELLED] = "cancelled",
};

const char *
batch_endpoint(const char *s)
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
	            b->id, b->endpoint, b->input, batch_status_name[b->status],
	            b->has[0] ? b->file[0] : NULL, b->has[1] ? b->file[1] : NULL,
	            (long long)b->at[BATCH_VALIDATING], (long long)b->expires);
	for (int i = BATCH_VALIDATING + 1; i < N_BATCH_STATUS; i++)
		if (b->at[i])
			strbuf_printf(out, ",\"%s_at\":%lld", batch_status_name[i],
			              (long long)b->at[i]);
		else
			strbuf_printf(out, ",\"%s_at\":null", batch_status_name[i]);
	strbuf_printf(out,
	              ",\"request_counts\":{\"total\":%lld,\"completed\":%lld,\"failed\":%lld}",
	              (long long)b->total, (long long)b->completed, (long long)b->failed);
	put_value(out, "errors", b->errors);
	put_value(out, "metadata", b->metadata);
	strbuf_putc(out, '}');
}

/* ---- the table ---- */

void
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

void
batch_put(FileStore *st, Batch *b)
{
	Batch **at = &st->first;

	while (*at && (*at)->at[BATCH_VALIDATING] <= b->at[BATCH_VALIDATING])
		at = &(*at)->next;
	b->next = *at;
	*at = b;
}

Batch *
batch_find(FileStore *st, const char *id)
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
	Batch *b = batch_find(st, id);
	if (b) {
		json_printf(&text, "{\"owner\":%s,\"output\":%s,\"error\":%s,\"batch\":", b->owner,
		            b->file[0], b->file[1]);
		batch_json(b, &text);
		strbuf_puts(&text, "}\n");
		store_count(st, b->owner, (int64_t)text.len - b->bytes);
		b->bytes = (int64_t)text.len;
		b->saves++; /* prevents eviction while the file is being written */
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
		/* the output file is complete although the batch is not: a crash came between
		 * rename and save */
		if (!batch_ended(b) && lstat(path, &is) != 0 && rename(whole, path) != 0 &&
		    errno != ENOENT)
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
		b->endpoint = batch_endpoint(json_text_of(in, "endpoint"));
		b->status = N_BATCH_STATUS;
		b->at[BATCH_VALIDATING] =
		    (time_t)json_integer_value(json_object_get(in, "created_at"));
		b->expires = (time_t)json_integer_value(json_object_get(in, "expires_at"));
		for (int i = 0; i < N_BATCH_STATUS; i++) {
			char key[32];
			snprintf(key, sizeof key, "%s_at", batch_status_name[i]);
			if (i != BATCH_VALIDATING)
				b->at[i] = (time_t)json_integer_value(json_object_get(in, key));
			if (!strcmp(json_text_of(in, "status"), batch_status_name[i]))
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
	batch_put(st, b);
	return true;
}

void
batch_drop(FileStore *st, Batch **at) /* lock held */
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
			batch_drop(st, at);
			return true;
		}
	return false;
}

bool
store_take(FileStore *st, const char *owner, int64_t bytes)
{
	if (bytes > store_part(st, owner, st->max_bytes) - store_share(st, owner)->used +
	                batches_spare(st, owner) ||
	    bytes > st->max_bytes - st->used + batches_spare(st, NULL))
		return false; /* evict nothing if the bytes would not fit even after evictions */
	while (bytes > store_part(st, owner, st->max_bytes) - store_share(st, owner)->used)
		if (!batches_evict(st, owner))
			return false;
	while (bytes > st->max_bytes - st->used)
		if (!batches_evict(st, NULL))
			return false;
	store_count(st, owner, bytes);
	return true;
}

void
batch_wake(FileStore *st)
{
	pthread_mutex_lock(&st->flight_lock);
	st->nudged = true;
	pthread_cond_signal(&st->landed);
	pthread_mutex_unlock(&st->flight_lock);
}
