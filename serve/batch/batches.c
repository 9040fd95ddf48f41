/* Routes of batches: see batch.h. */
#include <stdlib.h>
#include <string.h>

#include "serve/batch/batch.h"
#include "serve/batch/batch_table.h"
#include "serve/http/api_keys.h"
#include "serve/dialects/openai.h"

enum { MAX_PAIRS = 16, NEW_BYTES = 1024 }; /* NEW_BYTES: estimated size of a batch's JSON file */

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
				batch_drop(st, at);
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
	if (b && openai_text(o, "input_file_id", &input, &p) &&
	    openai_text(o, "endpoint", &endpoint, &p) &&
	    openai_text(o, "completion_window", &window, &p) &&
	    read_metadata(o, &b->metadata, &p)) {
		b->endpoint = batch_endpoint(endpoint);
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
			batch_put(st, b);
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
	Batch *b = batch_find(st, id);
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
			        batch_status_name[b->status]);
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
