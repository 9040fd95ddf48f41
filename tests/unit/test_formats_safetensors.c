/* The safetensors reader on files built here: single files, shards, folders, and every error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "formats/safetensors.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/tight.h"

/* length, header, then data_bytes bytes 0, 1, 2, ... */
static void
make(Strbuf *b, const char *header, size_t data_bytes)
{
	uint64_t n = strlen(header);

	strbuf_clear(b);
	strbuf_add(b, &n, sizeof n);
	strbuf_puts(b, header);
	for (size_t i = 0; i < data_bytes; i++)
		strbuf_putc(b, (char)i);
}

static Safetensors *
open_tight(const Strbuf *b, llmc_error *err)
{
	Safetensors *s = NULL;

	err->text[0] = 0;
	llmc_status status = safetensors_open_memory(tight_copy(b), b->len, "made.st", &s, err);
	assert_true((status == LLMC_OK) == (s != NULL));
	if (status != LLMC_OK)
		assert_int_equal(status, err->code);
	return s;
}

static void
refused(const Strbuf *b, const char *what)
{
	llmc_error err;
	Safetensors *s = open_tight(b, &err);

	if (s)
		fail_msg("accepted, expected an error with: %s", what);
	assert_int_equal(err.code, LLMC_E_INPUT);
	if (!strstr(err.text, what) || strncmp(err.text, "made.st: ", 9) != 0)
		fail_msg("got '%s', expected the file and '%s'", err.text, what);
}

static Safetensors *
accepted(const Strbuf *b)
{
	llmc_error err;
	Safetensors *s = open_tight(b, &err);

	if (!s)
		fail_msg("rejected: %s", err.text);
	return s;
}

static const char whole[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"scalar\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[20,22]},"
    "\"empty\":{\"dtype\":\"I64\",\"shape\":[4,0],\"data_offsets\":[22,22]},"
    "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[22,25]},"
    "\"fp4\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[25,28]}}   ";

static void
reads_a_file(void **state)
{
	Strbuf b = { 0 };

	(void)state;
	make(&b, whole, 28);
	Safetensors *s = accepted(&b);
	assert_int_equal(safetensors_n(s), 6);
	assert_string_equal(safetensors_at(s, 0)->name, "b");
	assert_null(safetensors_at(s, 6));
	const StTensor *t = safetensors_find(s, "b");
	assert_int_equal(t->dtype, DT_BF16);
	assert_string_equal(t->dtype_name, "BF16");
	assert_int_equal(t->n_dims, 2);
	assert_int_equal(t->dim[0], 2);
	assert_int_equal(t->dim[1], 3);
	assert_int_equal(t->dim[2], 1);
	assert_int_equal(t->bytes, 12);
	assert_string_equal(t->file, "made.st");
	assert_memory_equal(
	    t->data, ((unsigned char[]){ 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 }), 12);
	t = safetensors_find(s, "scalar");
	assert_int_equal(t->n_dims, 0);
	assert_int_equal(t->bytes, 2);
	assert_int_equal(safetensors_find(s, "empty")->bytes, 0);
	t = safetensors_find(s, "mask");
	assert_int_equal(t->dtype, DT_NONE);
	assert_string_equal(t->dtype_name, "BOOL");
	assert_non_null(t->data); /* its bytes, for a quantisation format */
	assert_null(safetensors_find(s, "__metadata__"));
	assert_null(safetensors_find(s, "absent"));
	safetensors_close(s);
	safetensors_close(NULL);
	make(&b, "{}", 0);
	s = accepted(&b);
	assert_int_equal(safetensors_n(s), 0);
	safetensors_close(s);
	strbuf_release(&b);
}

static void
every_truncation_is_rejected(void **state)
{
	Strbuf b = { 0 };
	llmc_error err;

	(void)state;
	make(&b, whole, 28);
	for (size_t n = 0, full = b.len; n < full; n++) {
		b.len = n;
		Safetensors *s = open_tight(&b, &err);
		if (s)
			fail_msg("accepted when cut to %zu of %zu bytes", n, full);
		assert_int_equal(err.code, LLMC_E_INPUT);
		assert_int_equal(strncmp(err.text, "made.st: ", 9), 0);
	}
	strbuf_release(&b);
}

#define T(name, dtype, shape, from, to)                                                            \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from      \
	"," to "]}"

static void
bad_headers_are_rejected(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		const char *what;
	} row[] = {
		{ "[1]", 0, "does not begin with '{'" },
		{ " {}", 0, "does not begin with '{'" },
		{ "", 5, "does not begin with '{'" },
		{ "{\"a\":", 0, "the header is not valid JSON (line 1, column" },
		{ "{} {}", 0, "not valid JSON" },
		{ "{\"a\\u0000b\":1}", 0, "not valid JSON" },
		{ "{\"a\":\"\xff\"}", 0, "not valid JSON" },
		{ "{\"a\":1e999}", 0, "not valid JSON" },
		{ "{\"a\":1}", 0, "tensor a: expected an object with a string dtype" },
		{ "{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0,
		  "tensor a: expected an object" },
		{ "{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,0]}}", 0,
		  "tensor a: expected an object" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,0]}}", 0,
		  "tensor a: expected an object" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 0,
		  "tensor a: expected an object" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,1,2]}}", 0,
		  "tensor a: expected an object" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "tensor a: expected an object" },
		{ "{" T("a", "Q9", "1", "0", "4") "}", 4,
		  "tensor a has dtype 'Q9', which safetensors does not define" },
		{ "{" T("a", "", "1", "0", "4") "}", 4, "tensor a has dtype ''" },
		{ "{" T("a", "F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4,
		  "tensor a has 9 dimensions" },
		{ "{" T("a", "F32", "1.5", "0", "4") "}", 4,
		  "dimension 0 of the shape is not a non-negative integer" },
		{ "{" T("a", "F32", "1,-1", "0", "4") "}", 4,
		  "dimension 1 of the shape is not a non-negative integer" },
		{ "{" T("a", "F32", "\\\"1\\\"", "0", "4") "}", 4, "not valid JSON" },
		{ "{" T("a", "F32", "4294967296,4294967296", "0", "4") "}", 4,
		  "its shape is too large to count" },
		{ "{" T("a", "F32", "9223372036854775807", "0", "4") "}", 4,
		  "do not fill the 4 bytes" },
		{ "{" T("a", "F32", "99999999999999999999", "0", "4") "}", 4, "not valid JSON" },
		{ "{" T("a", "F32", "1", "-4", "0") "}", 4,
		  "data_offsets are not two ascending integers" },
		{ "{" T("a", "F32", "1", "4", "0") "}", 4, "data_offsets are not two" },
		{ "{" T("a", "F32", "1", "0.0", "4") "}", 4, "data_offsets are not two" },
		{ "{" T("a", "F32", "2", "0", "8") "}", 4,
		  "tensor a ends at byte 8 of the data, but the file holds 4" },
		{ "{" T("a", "F32", "2", "0", "4") "}", 4,
		  "tensor a: 2 elements of F32 do not fill the 4 bytes" },
		{ "{" T("a", "F4", "3", "0", "2") "}", 2,
		  "tensor a: 3 elements of F4 do not fill the 2 bytes" },
		{ "{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "0", "4") "}", 4,
		  "tensors a and b overlap" },
		{ "{" T("a", "F32", "2", "0", "8") "," T("b", "F32", "1", "4", "8") "}", 8,
		  "tensors a and b overlap" },
		{ "{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "8", "12") "}", 12,
		  "bytes 4 to 8 of the data, before tensor b, belong to no tensor" },
		{ "{" T("a", "F32", "1", "4", "8") "}", 8, "bytes 0 to 4 of the data" },
		{ "{" T("a", "F32", "1", "0", "4") "}", 6,
		  "the last 2 bytes of the data belong to no tensor" },
		{ "{}", 1, "the last 1 bytes" },
		{ "{" T("a", "F32", "1", "0", "4") "," T("a", "F32", "1", "4", "8") "}", 8,
		  "duplicate" },
		{ "{\"__metadata__\":[]}", 0, "__metadata__ is not an object of strings" },
		{ "{\"__metadata__\":{\"n\":1}}", 0, "__metadata__ is not an object of strings" },
	};
	Strbuf b = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		make(&b, row[i].header, row[i].data);
		refused(&b, row[i].what);
	}
	/* wrong lengths */
	static const uint64_t wrong_length[] = { 3,          100,        100000000,     100000001,
		                                 1ull << 40, UINT64_MAX, UINT64_MAX - 7 };
	for (size_t i = 0; i < sizeof wrong_length / sizeof *wrong_length; i++) {
		make(&b, "{}", 0);
		memcpy(b.data, &wrong_length[i], sizeof *wrong_length);
		refused(&b, "the header claims");
	}
	/* values of the wrong JSON type */
	strbuf_clear(&b);
	strbuf_puts(&b, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
	refused(&b, "git lfs pull");
	strbuf_clear(&b);
	strbuf_puts(&b, "GGUF\3aaaaaaaaaaaa");
	refused(&b, "a GGUF file, not safetensors");
	strbuf_clear(&b);
	strbuf_puts(&b, "PK\3\4aaaaaaaaaaaaaaaa");
	refused(&b, "a zip archive without its directory");
	/* brackets nested deeper than the parser's stack */
	strbuf_clear(&b);
	const uint64_t deep = 1000000;
	strbuf_add(&b, &deep, 8);
	strbuf_puts(&b, "{\"a\":");
	while (b.len < 8 + deep)
		strbuf_putc(&b, '[');
	refused(&b, "not valid JSON");
	strbuf_release(&b);
}

typedef struct Folder {
	Tempdir dir;
	Strbuf b;
} Folder;

static void
put(Folder *f, const char *name, const char *header, size_t data)
{
	llmc_error err;

	make(&f->b, header, data);
	if (file_write(tempdir_file(&f->dir, name), f->b.data, f->b.len, &err) != LLMC_OK)
		fail_msg("%s", err.text);
}

static void
put_text(Folder *f, const char *name, const char *text)
{
	llmc_error err;

	if (file_write(tempdir_file(&f->dir, name), text, strlen(text), &err) != LLMC_OK)
		fail_msg("%s", err.text);
}

static Safetensors *
open_path(const char *path)
{
	Safetensors *s;
	llmc_error err;

	if (safetensors_open(path, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

/* The error names `path` (unless NULL) and contains `what` */
static void
path_refused(const char *path, llmc_status code, const char *named, const char *what)
{
	Safetensors *s;
	llmc_error err;

	assert_int_equal(safetensors_open(path, &s, &err), code);
	assert_null(s);
	if (!strstr(err.text, what) || (named && !strstr(err.text, named)))
		fail_msg("got '%s', expected '%s' and '%s'", err.text, named ? named : "", what);
}

static int
folder_setup(void **state)
{
	Folder *f = calloc(1, sizeof *f);
	*state = f;
	return f ? tempdir_open(&f->dir) : -1;
}

static int
folder_teardown(void **state)
{
	Folder *f = *state;
	tempdir_close(&f->dir);
	strbuf_release(&f->b);
	free(f);
	return 0;
}

#define FOUR(name) "{" T(name, "F32", "1", "0", "4") "}"
#define INDEX "model.safetensors.index.json"

static void
folders_resolve(void **state)
{
	Folder *f = *state;
	Safetensors *s;

	path_refused(f->dir.path, LLMC_E_INPUT, f->dir.path, "holds no weights");
	put_text(f, "training_args.bin", "x");
	path_refused(f->dir.path, LLMC_E_INPUT, NULL, "holds no weights");
	put_text(f, "pytorch_model-00002-of-00002.bin", "x");
	put_text(f, "pytorch_model-00001-of-00002.bin", "x");
	path_refused(f->dir.path, LLMC_E_INPUT,
	             "(pytorch_model-00001-of-00002.bin, pytorch_model-00002-of-00002.bin)",
	             "several pickled files");
	path_refused(tempdir_file(&f->dir, "pytorch_model-00001-of-00002.bin"), LLMC_E_INPUT,
	             f->dir.path, "not a file of torch.save");
	put(f, "only.safetensors", FOUR("one"), 4);
	s = open_path(f->dir.path);
	assert_string_equal(safetensors_at(s, 0)->name, "one");
	safetensors_close(s);
	put(f, "b.safetensors", FOUR("two"), 4);
	put(f, "c.safetensors", FOUR("two"), 4);
	path_refused(f->dir.path, LLMC_E_INPUT, "(b.safetensors, c.safetensors)",
	             "several .safetensors files");
	put_text(f, INDEX, "{\"weight_map\":{\"two\":\"c.safetensors\"}}");
	s = open_path(f->dir.path);
	assert_non_null(strstr(safetensors_find(s, "two")->file, "/c.safetensors"));
	assert_int_equal(safetensors_n(s), 1);
	safetensors_close(s);
	put(f, "model.safetensors", FOUR("three"), 4);
	s = open_path(f->dir.path);
	assert_string_equal(safetensors_at(s, 0)->name, "three");
	safetensors_close(s);
	s = open_path(tempdir_file(&f->dir, "b.safetensors"));
	assert_string_equal(safetensors_at(s, 0)->name, "two");
	safetensors_close(s);
	path_refused(tempdir_file(&f->dir, "gone.safetensors"), LLMC_E_IO, "gone.safetensors", "");
	path_refused(tempdir_file(&f->dir, "gone.json"), LLMC_E_IO, "gone.json", "");
	/* from inside the folder, without a slash in the path */
	char here[1024];
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(chdir(f->dir.path), 0);
	s = open_path(INDEX);
	assert_string_equal(safetensors_at(s, 0)->name, "two");
	safetensors_close(s);
	s = open_path(".");
	assert_string_equal(safetensors_at(s, 0)->name, "three");
	safetensors_close(s);
	assert_int_equal(chdir(here), 0);
}

static void
shards_are_joined_and_checked(void **state)
{
	Folder *f = *state;
	const char *index = tempdir_file(&f->dir, INDEX);
	char index_path[512];

	snprintf(index_path, sizeof index_path, "%s", index);
	put(f, "s1.safetensors",
	    "{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "4", "8") "}", 8);
	put(f, "s2.safetensors", FOUR("c"), 4);
	put_text(f, INDEX,
	         "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"c\":\"s2.safetensors\","
	         "\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
	Safetensors *s = open_path(f->dir.path);
	assert_int_equal(safetensors_n(s), 3);
	assert_int_equal(*(const unsigned char *)safetensors_find(s, "b")->data, 4);
	assert_int_equal(*(const unsigned char *)safetensors_find(s, "c")->data, 0);
	assert_string_equal(safetensors_find(s, "c")->file,
	                    tempdir_file(&f->dir, "s2.safetensors"));
	safetensors_close(s);

	put_text(f, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s3.safetensors\"}}");
	path_refused(index_path, LLMC_E_INPUT, "s3.safetensors", "of the index is missing");
	put_text(f, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"zz\":\"s2.safetensors\"}}");
	path_refused(index_path, LLMC_E_INPUT, "s2.safetensors", "tensor zz is not in");
	put_text(f, INDEX, "{\"weight_map\":{\"a\":\"s2.safetensors\",\"c\":\"s1.safetensors\"}}");
	path_refused(index_path, LLMC_E_INPUT, NULL, "the shard that the index names");
	put(f, "s4.safetensors", FOUR("a"), 4);
	put_text(f, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"s4.safetensors\"}}");
	path_refused(index_path, LLMC_E_INPUT, "s4.safetensors", "tensor a is in both");
	put(f, "s5.safetensors", FOUR("e"), 3);
	put_text(f, INDEX, "{\"weight_map\":{\"e\":\"s5.safetensors\"}}");
	path_refused(index_path, LLMC_E_INPUT, "s5.safetensors", "but the file holds 3");

	static const struct {
		const char *text, *what;
	} bad[] = {
		{ "", "the index is not valid JSON" },
		{ "{", "the index is not valid JSON" },
		{ "[]", "expected an object with an object weight_map" },
		{ "{}", "expected an object with an object weight_map" },
		{ "{\"weight_map\":[]}", "expected an object with an object weight_map" },
		{ "{\"weight_map\":{\"a\":1}}", "tensor a is not mapped to the plain name" },
		{ "{\"weight_map\":{\"a\":\"\"}}", "tensor a is not mapped to the plain name" },
		{ "{\"weight_map\":{\"a\":\"../s1.safetensors\"}}",
		  "tensor a is not mapped to the plain name" },
		{ "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
		  "tensor a is not mapped to the plain name" },
		{ "{\"weight_map\":{\"a\":\"..\"}}", "tensor a is not mapped to the plain name" },
		{ "{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}",
		  "duplicate" },
		{ "{\"weight_map\":{\"a\":\"pytorch_model-1.bin\"}}",
		  "pytorch_model-1.bin of the index is missing" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		put_text(f, INDEX, bad[i].text);
		path_refused(index_path, LLMC_E_INPUT, f->dir.path, bad[i].what);
	}
}

static void
many_tensors_are_found_quickly(void **state)
{
	enum { N = 100000 };
	Strbuf header = { 0 }, b = { 0 };
	char name[64];

	(void)state;
	strbuf_puts(&header, "{");
	for (int i = 0; i < N; i++)
		strbuf_printf(
		    &header,
		    "%s\"layers.%d.w\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
		    i ? "," : "", (i * 7919) % N, 2 * i, 2 * i + 2);
	strbuf_puts(&header, "}");
	make(&b, header.data, 2 * N);
	Safetensors *s = accepted(&b);
	const char *start = safetensors_at(s, 0)->data;
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof name, "layers.%d.w", (i * 7919) % N);
		const StTensor *t = safetensors_find(s, name);
		assert_true(t && (const char *)t->data == start + 2 * i);
	}
	safetensors_close(s);
	strbuf_release(&b);
	strbuf_release(&header);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_a_file),
		cmocka_unit_test(every_truncation_is_rejected),
		cmocka_unit_test(bad_headers_are_rejected),
		cmocka_unit_test_setup_teardown(folders_resolve, folder_setup, folder_teardown),
		cmocka_unit_test_setup_teardown(shards_are_joined_and_checked, folder_setup,
		                                folder_teardown),
		cmocka_unit_test(many_tensors_are_found_quickly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
