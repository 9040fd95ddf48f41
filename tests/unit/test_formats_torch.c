/* Files of torch.save (tests/golden/torch, made by torch, with the result of torch.load as
 * safetensors), and pickles built here that must be rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "formats/pickle.h"
#include "formats/safetensors.h"
#include "formats/torch.h"
#include "tests/unit/tight.h"

static void
tensors_equal_those_of_torch_load(void **state)
{
	static const char *const names[] = { "zip",    "old",        "protocol4", "newer",
		                             "linear", "linear-old", "inner" };
	Safetensors *s, *want;
	char path[128];
	llmc_error err;

	(void)state;
	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		snprintf(path, sizeof path, "tests/golden/torch/%s.safetensors", names[k]);
		assert_int_equal(safetensors_open(path, &want, &err), LLMC_OK);
		snprintf(path, sizeof path, "tests/golden/torch/%s.bin", names[k]);
		if (safetensors_open(path, &s, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		assert_int_equal(safetensors_n(s), safetensors_n(want));
		for (size_t i = 0; i < safetensors_n(s); i++) {
			const StTensor *t = safetensors_at(s, i),
			               *w = safetensors_find(want, t->name);
			assert_non_null(w);
			assert_string_equal(t->dtype_name, w->dtype_name);
			assert_int_equal(t->n_dims, w->n_dims);
			assert_memory_equal(t->dim, w->dim, sizeof t->dim);
			assert_int_equal(t->bytes, w->bytes);
			if (t->bytes)
				assert_memory_equal(t->data, w->data, (size_t)t->bytes);
		}
		safetensors_close(s);
		safetensors_close(want);
	}
}

static void
views_in_order_are_not_copied(void **state)
{
	static const char *const copied[] = { "turned", "column", "stepped", "repeated", "cube" };
	Safetensors *s;
	llmc_error err;
	size_t n = 0;

	(void)state;
	assert_int_equal(safetensors_open("tests/golden/torch/zip.bin", &s, &err), LLMC_OK);
	for (size_t i = 0; i < safetensors_n(s); i++)
		n += safetensors_at(s, i)->copied;
	assert_int_equal(n, sizeof copied / sizeof *copied);
	for (size_t i = 0; i < n; i++)
		assert_true(safetensors_find(s, copied[i])->copied);
	const char *whole = safetensors_find(s, "whole")->data,
	           *rows = safetensors_find(s, "rows")->data;
	assert_ptr_equal(rows, whole + 5 * sizeof(float)); /* one storage */
	safetensors_close(s);
}

/* Every truncation of a valid file is rejected, with a message that names the file. */
static void
truncated_files_are_rejected(void **state)
{
	static const char *const names[] = { "tests/golden/torch/linear.bin",
		                             "tests/golden/torch/linear-old.bin" };
	Safetensors *s;
	llmc_error err;
	FileMap m;

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		assert_int_equal(file_map(names[k], &m, &err), LLMC_OK);
		Strbuf b = { 0 };
		strbuf_add(&b, m.data, m.size);
		for (size_t n = 0; n < m.size; n++) {
			b.len = n;
			assert_int_equal(
			    safetensors_open_memory(tight_copy(&b), n, "cut.bin", &s, &err),
			    LLMC_E_INPUT);
			assert_ptr_equal(strstr(err.text, "cut.bin: "), err.text);
		}
		strbuf_release(&b);
		file_unmap(&m);
	}
}

typedef struct Bad {
	const char *text;
	size_t n;
	const char *what;
} Bad;
#define BAD(text, what) { text, sizeof(text) - 1, what }

static void
rejected_pickles_are_named(void **state)
{
	static const Bad bad[] = {
		BAD("\x80\x02"
		    "cos\nsystem\n(X\x02\0\0\0hitR.",
		    "references os.system"),
		BAD("\x80\x02"
		    "c__builtin__\neval\n.",
		    "references __builtin__.eval"),
		BAD("\x80\x04\x8c\x02os\x8c\x06"
		    "system\x93.",
		    "references os.system"),
		BAD("\x80\x02"
		    "ctorch._utils\n_rebuild_qtensor\n.",
		    "references torch._utils._rebuild_qtensor"),
		BAD("\x80\x02"
		    "ctorch\nFloatStorage\n)R.",
		    "calls torch.FloatStorage"),
		BAD("\x80\x02"
		    "(ios\nsystem\n.",
		    "byte 0x69 at 3 is not an opcode"),
		BAD("\x80\x02"
		    "I1\n.",
		    "byte 0x49"),
		BAD("\x80\x01.", "a protocol other than 2 to 5"),
		BAD("", "it ends within a value"),
		BAD(".", "an opcode finds nothing on the stack"),
		BAD("}}.", "values are left on the stack"),
		BAD("(.", "an opcode finds nothing on the stack"),
		BAD("t.", "an opcode finds no mark"),
		BAD("h\x05.", "an empty memo entry"),
		BAD("}r\xff\xff\xff\x7f.", "an invalid memo index"),
		BAD("X\xff\xff\xff\xff"
		    "a.",
		    "it ends within a value"),
		BAD("X\1\0\0\0\0.", "a string with a NUL"),
		BAD("\x8b\xff\xff\xff\xff.", "it ends within a value"),
		BAD("N}b.", "attributes set on an unsupported object"),
		BAD("N(u.", "an item is set in a non-dict"),
		BAD("}(Nu.", "an item is set in a non-dict"),
		BAD("N(e.", "a value is appended to a non-list"),
		BAD("(Nd.", "a dict with a key without a value"),
		BAD("NQ.", "a persistent id that is not a storage"),
		BAD("N)R.", "a call of a value that is not a function"),
		BAD("ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor without a storage"),
		BAD("ctorch._utils\n_rebuild_parameter\n)R.", "a parameter that is not a tensor"),
		BAD("ccollections\nOrderedDict\nN\x85R.", "not built from a list of pairs"),
		BAD("ccollections\n", "an unterminated name"),
	};
	const PickleValue *v;
	llmc_error err;

	(void)state;
	for (volatile size_t i = 0; i < sizeof bad / sizeof *bad;
	     i++) { /* volatile because of setjmp in the loop */
		Arena a;
		Strbuf b = { 0 };
		size_t at = 0;
		arena_init(&a);
		assert_false(setjmp(a.oom));
		strbuf_add(&b, bad[i].text, bad[i].n);
		assert_int_equal(pickle_read(&a, (const uint8_t *)tight_copy(&b), bad[i].n, &at,
		                             "x.bin", &v, NULL, &err),
		                 LLMC_E_INPUT);
		if (!strstr(err.text, bad[i].what) || strncmp(err.text, "x.bin: ", 7) != 0)
			fail_msg("got '%s', expected '%s'", err.text, bad[i].what);
		strbuf_release(&b);
		arena_release(&a);
	}
}

/* A pickle that converts a list of a million pairs from the memo to dicts repeatedly is rejected
 * long before memory runs out. */
static void
pickles_do_not_grow_beyond_their_bytes(void **state)
{
	const PickleValue *v;
	llmc_error err;
	Strbuf b = { 0 };
	size_t at = 0;
	Arena a;

	(void)state;
	arena_init(&a);
	assert_false(setjmp(a.oom));
	strbuf_puts(&b, "](");
	for (int i = 0; i < 100000; i++)
		strbuf_puts(&b, "NN\x86");
	strbuf_puts(&b, "eq\1ccollections\nOrderedDict\nq\2");
	for (int i = 0; i < 10000; i++)
		strbuf_puts(&b, "h\x02h\x01\x85R0");
	strbuf_puts(&b, ".");
	assert_int_equal(
	    pickle_read(&a, (const uint8_t *)b.data, b.len, &at, "x.bin", &v, NULL, &err),
	    LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "copies more values than it has bytes"));
	assert_true(a.total_bytes < (size_t)200 << 20);
	strbuf_release(&b);
	arena_release(&a);
}

/* ---- files that multiply memory or work by way of the memo ---- */
static void
add_number(Strbuf *b, uint64_t x, int bytes)
{
	for (int i = 0; i < bytes; i++, x >>= 8)
		strbuf_add(b, &(char){ (char)x }, 1);
}

/* One entry of a zip archive; `directory` receives its record of the central directory. */
static void
add_entry(Strbuf *b, Strbuf *directory, const char *name, const void *data, size_t n)
{
	const size_t at = b->len;

	strbuf_puts(b, "PK\3\4");
	add_number(b, 0, 14);
	add_number(b, n, 4), add_number(b, n, 4);
	add_number(b, strlen(name), 4);
	strbuf_puts(b, name);
	strbuf_add(b, data, n);
	strbuf_puts(directory, "PK\1\2");
	add_number(directory, 0, 16);
	add_number(directory, n, 4), add_number(directory, n, 4);
	add_number(directory, strlen(name), 4);
	add_number(directory, 0, 10);
	add_number(directory, at, 4);
	strbuf_puts(directory, name);
}

static void
end_zip(Strbuf *b, Strbuf *directory, int n)
{
	const size_t at = b->len;

	strbuf_add(b, directory->data, directory->len);
	strbuf_puts(b, "PK\5\6");
	add_number(b, 0, 4);
	add_number(b, (uint64_t)n, 2), add_number(b, (uint64_t)n, 2);
	add_number(b, directory->len, 4), add_number(b, at, 4);
	add_number(b, 0, 2);
	strbuf_release(directory);
}

static void
add_text(Strbuf *b, const char *s, size_t n)
{
	strbuf_puts(b, "X");
	add_number(b, n, 4);
	strbuf_add(b, s, n);
}

/* A tensor of one float32 element, which stays in entry 1 of the memo */
static void
add_tensor(Strbuf *b, const char *key)
{
	strbuf_puts(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
	add_text(b, "storage", 7);
	strbuf_puts(b, "ctorch\nFloatStorage\n");
	add_text(b, key, strlen(key));
	add_text(b, "cpu", 3);
	strbuf_puts(b, "K\1tQ");
	strbuf_add(b, "K\0", 2);
	strbuf_puts(b, "K\1\x85K\1\x85\x89Ntq\2");
	strbuf_puts(b, "Rq\1");
}

/* Reads a file of torch.save and returns the bytes of its arena. */
static size_t
arena_of(const Strbuf *b, llmc_status want, llmc_error *err)
{
	TorchTensor *t;
	size_t n;
	Arena a;

	arena_init(&a);
	assert_false(setjmp(a.oom));
	if (torch_read(&a, (const uint8_t *)b->data, b->len, "x.bin", &t, &n, err) != want)
		fail_msg("got '%s', expected status %d", err->text, want);
	n = a.total_bytes;
	arena_release(&a);
	return n;
}

static void
many_tensors_of_a_long_key(void **state)
{
	enum { TENSORS = 50000, KEY = 4000 };
	static char key[KEY + 1], path[KEY + 20];
	Strbuf pickle = { 0 }, file = { 0 }, directory = { 0 };
	llmc_error err;

	(void)state;
	memset(key, 'k', KEY);
	snprintf(path, sizeof path, "a/data/%s", key);
	strbuf_puts(&pickle, "\x80\2}(");
	add_text(&pickle, "name", 4);
	strbuf_puts(&pickle, "q\3");
	add_tensor(&pickle, key);
	for (int i = 0; i < TENSORS; i++)
		strbuf_puts(&pickle, "h\3h\1");
	strbuf_puts(&pickle, "u.");
	add_entry(&file, &directory, "a/data.pkl", pickle.data, pickle.len);
	add_entry(&file, &directory, path, "\0\0\0", 4);
	end_zip(&file, &directory, 2);
	assert_true(arena_of(&file, LLMC_OK, &err) < (size_t)64 << 20);
	strbuf_release(&file);
	strbuf_release(&pickle);
}

/* Dicts of dicts: each of 50,000 items is the same dict of 50,000 tensors. */
static void
nested_dicts_are_not_multiplied(void **state)
{
	enum { ITEMS = 50000 };
	Strbuf b = { 0 };
	llmc_error err;

	(void)state;
	strbuf_add(&b, "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
	strbuf_puts(&b, "\x80\2M\xe9\3.\x80\2}.\x80\2}(");
	add_tensor(&b, "k");
	strbuf_puts(&b, "0");
	add_text(&b, "model", 5);
	strbuf_puts(&b, "q\3}(");
	for (int i = 0; i < ITEMS; i++)
		strbuf_puts(&b, "h\3h\1");
	strbuf_puts(&b, "uq\4");
	for (int i = 0; i < ITEMS; i++)
		strbuf_puts(&b, "h\3h\4");
	strbuf_puts(&b, "u.\x80\2]");
	add_text(&b, "k", 1);
	strbuf_puts(&b, "a.");
	add_number(&b, 1, 8), add_number(&b, 0, 4);
	assert_true(arena_of(&b, LLMC_OK, &err) < (size_t)64 << 20);
	strbuf_release(&b);
}

static void
values_are_bounded(void **state)
{
	/* repeated `part`, then `end` */
	static const struct {
		const char *part, *end;
	} bad[] = { { "]0", "." }, { "N", "." }, { "]2", "." }, { "K\1", "." }, { "(", "." } };
	const PickleValue *v;
	llmc_error err;
	Arena a;

	(void)state;
	for (volatile size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		Strbuf b = { 0 };
		size_t at = 0;
		arena_init(&a);
		assert_false(setjmp(a.oom));
		for (int k = 0; k <= PICKLE_MAX_VALUES; k++)
			strbuf_puts(&b, bad[i].part);
		strbuf_puts(&b, bad[i].end);
		assert_int_equal(
		    pickle_read(&a, (const uint8_t *)b.data, b.len, &at, "x.bin", &v, NULL, &err),
		    LLMC_E_INPUT);
		assert_non_null(strstr(err.text, "more values than a checkpoint"));
		strbuf_release(&b);
		arena_release(&a);
	}
}

/* A long string is not a name, so it is read as a value that weights do not need. */
static void
strings_are_bounded(void **state)
{
	static char text[PICKLE_MAX_STRING + 1];
	const PickleValue *v;
	llmc_error err;
	Arena a;

	(void)state;
	memset(text, 'x', sizeof text);
	arena_init(&a);
	assert_false(setjmp(a.oom));
	for (size_t n = PICKLE_MAX_STRING; n <= sizeof text; n++) {
		Strbuf b = { 0 };
		size_t at = 0;
		add_text(&b, text, n);
		strbuf_puts(&b, ".");
		assert_int_equal(
		    pickle_read(&a, (const uint8_t *)b.data, b.len, &at, "x.bin", &v, NULL, &err),
		    LLMC_OK);
		assert_int_equal(v->kind, n > PICKLE_MAX_STRING ? PICKLE_OTHER : PICKLE_STR);
		strbuf_release(&b);
	}
	arena_release(&a);
}

static void
archives_with_two_pickles(void **state)
{
	Strbuf file = { 0 }, directory = { 0 };
	llmc_error err;

	(void)state;
	add_entry(&file, &directory, "a/data.pkl", "}.", 2);
	add_entry(&file, &directory, "b/data.pkl", "}.", 2);
	end_zip(&file, &directory, 2);
	arena_of(&file, LLMC_E_INPUT, &err);
	assert_non_null(strstr(err.text, "several data.pkl"));
	strbuf_release(&file);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_tensors_of_a_long_key),
		cmocka_unit_test(nested_dicts_are_not_multiplied),
		cmocka_unit_test(values_are_bounded),
		cmocka_unit_test(strings_are_bounded),
		cmocka_unit_test(archives_with_two_pickles),
		cmocka_unit_test(tensors_equal_those_of_torch_load),
		cmocka_unit_test(views_in_order_are_not_copied),
		cmocka_unit_test(truncated_files_are_rejected),
		cmocka_unit_test(rejected_pickles_are_named),
		cmocka_unit_test(pickles_do_not_grow_beyond_their_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
