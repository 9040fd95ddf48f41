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
		                             "x.bin", &v, &err),
		                 LLMC_E_INPUT);
		if (!strstr(err.text, bad[i].what) || strncmp(err.text, "x.bin: ", 7) != 0)
			fail_msg("got '%s', expected '%s'", err.text, bad[i].what);
		strbuf_release(&b);
		arena_release(&a);
	}
}

/* A list of a million pairs, turned into dicts repeatedly by way of the memo: rejected long before
 * memory runs out. */
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
	assert_int_equal(pickle_read(&a, (const uint8_t *)b.data, b.len, &at, "x.bin", &v, &err),
	                 LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "copies more values than it has bytes"));
	assert_true(a.total_bytes < (size_t)200 << 20);
	strbuf_release(&b);
	arena_release(&a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensors_equal_those_of_torch_load),
		cmocka_unit_test(views_in_order_are_not_copied),
		cmocka_unit_test(truncated_files_are_rejected),
		cmocka_unit_test(rejected_pickles_are_named),
		cmocka_unit_test(pickles_do_not_grow_beyond_their_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
