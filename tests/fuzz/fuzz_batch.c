/* Reads arbitrary bytes as a line of a batch, and as the descriptions of a stored file and of a
 * batch, which a crash or another program may have damaged. The body that the server cuts out of a
 * line equals the body that the JSON parser finds. */
#include <jansson.h>

#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/batch/batch_run.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FILE_ID "file-0123456789abcdef01234567"
#define BATCH_ID "batch_0123456789abcdef01234567"

static void
check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_batch: %s\n", what);
		abort();
	}
}

static void
line(const char *s, size_t n)
{
	Problem p = { 0 };
	json_t *o = body_parse(s, n, &p);
	const char *at;
	size_t len;

	if (json_is_object(o) && batch_value_span(s, n, "body", &at, &len)) {
		json_t *own = body_parse(at, len, &p), *theirs = json_object_get(o, "body");
		check(own && theirs && json_equal(own, theirs), "another body than the parser's");
		json_decref(own);
	}
	json_decref(o);
}

static void
store(const uint8_t *data, size_t size)
{
	Server s = { .max_held = 1 << 20, .max_body = 1 << 16 };
	FileStore *st;
	const uint8_t *file, *batch;
	llmc_error err = { 0 };
	Strbuf text = { 0 };
	size_t n = part(&data, &size, &file), m = part(&data, &size, &batch);

	folder_make();
	folder_clear();
	folder_put(FILE_ID, data, size);
	folder_put(FILE_ID ".json", file, n);
	folder_put(BATCH_ID ".json", batch, m);
	pthread_mutex_init(&s.log_lock, NULL);
	if (store_open(&s, folder, 1 << 20, &st, &err) != LLMC_OK)
		abort();
	for (const Batch *b = st->first; b; b = b->next) {
		Problem p = { 0 };
		strbuf_clear(&text);
		batch_json(b, &text);
		json_t *o = body_parse(strbuf_str(&text), text.len, &p);
		check(json_is_object(o), "a batch is shown as invalid JSON");
		json_decref(o);
	}
	strbuf_release(&text);
	store_close(st);
	pthread_mutex_destroy(&s.log_lock);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] % 2)
		line((const char *)data + 1, size - 1);
	else if (size)
		store(data + 1, size - 1);
	return 0;
}
