/* The GGUF reader on files built here: what it reads, and that every kind of malformed file is
 * rejected with a message that names the file and the object. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "formats/gguf.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/tight.h"

static void
u32(Strbuf *b, uint32_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
u64(Strbuf *b, uint64_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
str(Strbuf *b, const char *s)
{
	u64(b, strlen(s));
	strbuf_puts(b, s);
}

static void
head(Strbuf *b, uint32_t version, uint64_t n_tensor, uint64_t n_key)
{
	strbuf_clear(b);
	strbuf_puts(b, "GGUF");
	u32(b, version);
	u64(b, n_tensor);
	u64(b, n_key);
}

static void
key_u32(Strbuf *b, const char *key, uint32_t v)
{
	str(b, key);
	u32(b, GGUF_U32);
	u32(b, v);
}

static void
tensor(Strbuf *b, const char *name, int n_dims, const int64_t *dim, uint32_t type, uint64_t offset)
{
	str(b, name);
	u32(b, (uint32_t)n_dims);
	for (int i = 0; i < n_dims; i++)
		u64(b, (uint64_t)dim[i]);
	u32(b, type);
	u64(b, offset);
}

static void
matrix(Strbuf *b, const char *name, int64_t cols, int64_t rows, uint32_t type, uint64_t offset)
{
	tensor(b, name, 2, (int64_t[]){ cols, rows }, type, offset);
}

static void
pad(Strbuf *b, size_t align)
{
	while (b->len % align)
		strbuf_putc(b, 0);
}

static void
zeros(Strbuf *b, size_t n)
{
	while (n--)
		strbuf_putc(b, 0);
}

static Gguf *
open_tight(const Strbuf *b, llmc_error *err)
{
	Gguf *g = NULL;

	err->text[0] = 0;
	llmc_status s = gguf_open_memory(tight_copy(b), b->len, "made.gguf", &g, err);
	assert_true((s == LLMC_OK) == (g != NULL));
	if (s != LLMC_OK)
		assert_int_equal(s, err->code);
	return g;
}

static void
refused(const Strbuf *b, const char *what)
{
	llmc_error err;
	Gguf *g = open_tight(b, &err);

	if (g)
		fail_msg("accepted, expected an error with: %s", what);
	assert_int_equal(err.code, LLMC_E_INPUT);
	if (!strstr(err.text, what) || strncmp(err.text, "made.gguf: ", 11) != 0)
		fail_msg("got '%s', expected the file and '%s'", err.text, what);
}

static Gguf *
accepted(const Strbuf *b)
{
	llmc_error err;
	Gguf *g = open_tight(b, &err);

	if (!g)
		fail_msg("rejected: %s", err.text);
	return g;
}

static void
put_whole_file(Strbuf *b, uint32_t version)
{
	head(b, version, 3, 18);
	str(b, "u8"), u32(b, GGUF_U8), strbuf_putc(b, (char)200);
	str(b, "i8"), u32(b, GGUF_I8), strbuf_putc(b, (char)-3);
	str(b, "u16"), u32(b, GGUF_U16), strbuf_add(b, &(uint16_t){ 40000 }, 2);
	str(b, "i16"), u32(b, GGUF_I16), strbuf_add(b, &(int16_t){ -2 }, 2);
	key_u32(b, "u32", 4000000000u);
	str(b, "i32"), u32(b, GGUF_I32), u32(b, (uint32_t)-7);
	str(b, "u64"), u32(b, GGUF_U64), u64(b, 1ull << 40);
	str(b, "huge"), u32(b, GGUF_U64), u64(b, UINT64_MAX);
	str(b, "i64"), u32(b, GGUF_I64), u64(b, (uint64_t)-9);
	str(b, "f32"), u32(b, GGUF_F32), strbuf_add(b, &(float){ 1.5f }, 4);
	str(b, "f64"), u32(b, GGUF_F64), strbuf_add(b, &(double){ 0.1 }, 8);
	str(b, "yes"), u32(b, GGUF_BOOL), strbuf_putc(b, 1);
	str(b, "text"), u32(b, GGUF_STR), u64(b, 5), strbuf_add(b, "a\0b\xc3\xa9", 5);
	str(b, "words"), u32(b, GGUF_ARR), u32(b, GGUF_STR), u64(b, 3), str(b, "one"), str(b, ""),
	    str(b, "three");
	str(b, "floats"), u32(b, GGUF_ARR), u32(b, GGUF_F32), u64(b, 2),
	    strbuf_add(b, (float[]){ 0.5f, -2 }, 8);
	str(b, "ints"), u32(b, GGUF_ARR), u32(b, GGUF_I32), u64(b, 2),
	    strbuf_add(b, (int32_t[]){ -5, 6 }, 8);
	str(b, "none"), u32(b, GGUF_ARR), u32(b, GGUF_U64), u64(b, 0);
	key_u32(b, "general.alignment", 64);
	matrix(b, "b.weight", 32, 3, 8, 64);
	tensor(b, "a.weight", 1, (int64_t[]){ 5 }, 0, 0);
	matrix(b, "c.odd", 256, 1, 15, 192); /* Q8_K: not supported, but may be present */
	pad(b, 64);
	strbuf_add(b, (float[]){ 1, 2, 3, 4, 5 }, 20);
	pad(b, 64);
	for (int i = 0; i < 3 * 34; i++)
		strbuf_putc(b, (char)i);
	pad(b, 64);
	zeros(b, 84);
}

static void
reads_keys_and_tensors(void **state)
{
	Strbuf b = { 0 };
	GgufType type, elem;
	GgufStr s;
	size_t n;
	int64_t i;
	double x;

	(void)state;
	for (uint32_t version = 2; version <= 3; version++) {
		put_whole_file(&b, version);
		Gguf *g = accepted(&b);
		assert_int_equal(gguf_n_keys(g), 18);
		assert_string_equal(gguf_key_at(g, 0), "u8");
		assert_string_equal(gguf_key_at(g, 17), "general.alignment");
		assert_null(gguf_key_at(g, 18));
		static const struct {
			const char *key;
			int64_t want;
		} ints[] = {
			{ "u8", 200 },        { "i8", -3 },          { "u16", 40000 },
			{ "i16", -2 },        { "u32", 4000000000 }, { "i32", -7 },
			{ "u64", 1ll << 40 }, { "i64", -9 },         { "yes", 1 },
		};
		for (size_t k = 0; k < sizeof ints / sizeof *ints; k++) {
			assert_true(gguf_int(g, ints[k].key, &i) && i == ints[k].want);
			assert_true(gguf_num(g, ints[k].key, &x) && x == (double)ints[k].want);
		}
		assert_false(gguf_int(g, "huge", &i));
		assert_true(gguf_num(g, "huge", &x) && x == 0x1p64);
		assert_true(gguf_num(g, "f32", &x) && x == 1.5);
		assert_true(gguf_num(g, "f64", &x) && x == 0.1);
		assert_false(gguf_int(g, "f32", &i));
		assert_false(gguf_int(g, "absent", &i));
		assert_false(gguf_num(g, "text", &x));
		assert_false(gguf_int(g, "ints", &i));
		assert_false(gguf_str(g, "u8", &s));
		assert_false(gguf_str(g, "words", &s));
		assert_true(gguf_str(g, "text", &s) && s.n == 5 &&
		            memcmp(s.s, "a\0b\xc3\xa9", 5) == 0);
		assert_true(gguf_type(g, "text", &type, &elem, &n) && type == GGUF_STR &&
		            elem == GGUF_STR && n == 1);
		assert_true(gguf_type(g, "words", &type, &elem, &n) && type == GGUF_ARR &&
		            elem == GGUF_STR && n == 3);
		assert_true(gguf_type(g, "none", &type, &elem, &n) && type == GGUF_ARR &&
		            elem == GGUF_U64 && n == 0);
		assert_false(gguf_type(g, "nothing", &type, &elem, &n));
		assert_true(gguf_arr_str(g, "words", 2, &s) && s.n == 5 &&
		            memcmp(s.s, "three", 5) == 0);
		assert_true(gguf_arr_str(g, "words", 1, &s) && s.n == 0);
		assert_false(gguf_arr_str(g, "words", 3, &s));
		assert_false(gguf_arr_str(g, "ints", 0, &s));
		assert_false(gguf_arr_num(g, "words", 0, &x));
		assert_false(gguf_arr_num(g, "u8", 0, &x));
		assert_true(gguf_arr_num(g, "floats", 1, &x) && x == -2);
		assert_true(gguf_arr_num(g, "ints", 0, &x) && x == -5);
		assert_false(gguf_arr_num(g, "ints", 2, &x));
		assert_false(gguf_arr_num(g, "none", 0, &x));

		assert_int_equal(gguf_n_tensors(g), 3);
		const GgufTensor *t = gguf_tensor(g, "a.weight");
		assert_ptr_equal(t, gguf_tensor_at(g, 1));
		assert_int_equal(t->dtype, DT_F32);
		assert_int_equal(t->n_dims, 1);
		assert_int_equal(t->dim[0], 5);
		assert_int_equal(t->dim[3], 1);
		assert_int_equal(t->bytes, 20);
		assert_memory_equal(t->data, ((float[]){ 1, 2, 3, 4, 5 }), 20);
		t = gguf_tensor(g, "b.weight");
		assert_int_equal(t->dtype, DT_Q8_0);
		assert_int_equal(t->dim[1], 3);
		assert_int_equal(t->bytes, 102);
		assert_int_equal(((const unsigned char *)t->data)[101], 101);
		t = gguf_tensor(g, "c.odd");
		assert_int_equal(t->dtype, DT_NONE);
		assert_int_equal(t->ggml_type, 15);
		assert_null(t->data);
		assert_null(gguf_tensor(g, "b.weigh"));
		assert_null(gguf_tensor_at(g, 3));
		gguf_close(g);
	}
	/* empty: no keys, no tensors, no padding */
	head(&b, 3, 0, 0);
	Gguf *g = accepted(&b);
	assert_int_equal(gguf_n_keys(g) + gguf_n_tensors(g), 0);
	assert_null(gguf_tensor(g, "x"));
	gguf_close(g);
	gguf_close(NULL);
	/* a scalar */
	head(&b, 3, 1, 0);
	tensor(&b, "scalar", 0, NULL, 0, 0);
	pad(&b, 32), zeros(&b, 4);
	g = accepted(&b);
	assert_int_equal(gguf_tensor(g, "scalar")->bytes, 4);
	gguf_close(g);
	strbuf_release(&b);
}

/* Truncated anywhere, the file is rejected, and nothing past its end is read. */
static void
every_truncation_is_rejected(void **state)
{
	Strbuf b = { 0 };
	llmc_error err;

	(void)state;
	put_whole_file(&b, 3);
	/* the last 84 bytes belong to a tensor of an unsupported type, whose length is unknown */
	const size_t full = b.len - 84;
	for (size_t n = 0; n < full; n++) {
		b.len = n;
		Gguf *g = open_tight(&b, &err);
		if (g)
			fail_msg("accepted when cut to %zu of %zu bytes", n, full);
		assert_int_equal(err.code, LLMC_E_INPUT);
		assert_int_equal(strncmp(err.text, "made.gguf: ", 11), 0);
	}
	b.len = full;
	gguf_close(accepted(&b));
	strbuf_release(&b);
}

static void
bad_headers_are_rejected(void **state)
{
	Strbuf b = { 0 };

	(void)state;
	refused(&b, "not a GGUF file");
	strbuf_puts(&b, "GGML and more bytes that follow");
	refused(&b, "not a GGUF file");
	strbuf_clear(&b);
	strbuf_puts(&b, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
	refused(&b, "git lfs pull");
	head(&b, 1, 0, 0);
	refused(&b, "GGUF version 1; llmc reads versions 2 and 3");
	head(&b, 4, 0, 0);
	refused(&b, "GGUF version 4");
	head(&b, 3u << 24, 0, 0);
	refused(&b, "big-endian");
	head(&b, 3, 0, 1000);
	refused(&b, "claims 1000 keys");
	head(&b, 3, 0, UINT64_MAX);
	refused(&b, "keys");
	head(&b, 3, 1ull << 60, 0);
	refused(&b, "claims 1152921504606846976 tensors");
	head(&b, 3, 0, 2);
	key_u32(&b, "a", 1);
	strbuf_puts(&b, "12345678");
	refused(&b, "keys");
	strbuf_release(&b);
}

static void
bad_keys_are_rejected(void **state)
{
	Strbuf b = { 0 };

	(void)state;
	head(&b, 3, 0, 1);
	u64(&b, 1000), zeros(&b, 20);
	refused(&b, "key 0 reaches beyond the end of the file");
	head(&b, 3, 0, 1);
	u64(&b, UINT64_MAX), zeros(&b, 20);
	refused(&b, "key 0 reaches beyond");
	head(&b, 3, 0, 1);
	u64(&b, 0), zeros(&b, 20);
	refused(&b, "the name of key 0 has 0 bytes");
	head(&b, 3, 0, 1);
	u64(&b, 65536), zeros(&b, 65536 + 20);
	refused(&b, "the name of key 0 has 65536 bytes");
	head(&b, 3, 0, 1);
	u64(&b, 3), strbuf_add(&b, "a\0b", 3), u32(&b, GGUF_U32), u32(&b, 1);
	refused(&b, "'a?b', contains a NUL");
	head(&b, 3, 0, 1);
	str(&b, "k"), u32(&b, 13), u64(&b, 0);
	refused(&b, "key k has value type 13");
	head(&b, 3, 0, 2);
	key_u32(&b, "same", 1), key_u32(&b, "same", 2);
	refused(&b, "duplicate key same");
	head(&b, 3, 0, 1);
	str(&b, "flag"), u32(&b, GGUF_BOOL), strbuf_putc(&b, 2);
	refused(&b, "key flag holds the bool 2");
	head(&b, 3, 0, 1);
	str(&b, "flags"), u32(&b, GGUF_ARR), u32(&b, GGUF_BOOL), u64(&b, 2),
	    strbuf_add(&b, "\1\3", 2);
	refused(&b, "key flags holds the bool 3");
	head(&b, 3, 0, 1);
	str(&b, "text"), u32(&b, GGUF_STR), u64(&b, 9), strbuf_puts(&b, "12345678");
	refused(&b, "key text: string 0 of 1 reaches beyond");
	head(&b, 3, 0, 1);
	str(&b, "nest"), u32(&b, GGUF_ARR), u32(&b, GGUF_ARR), u64(&b, 1), u32(&b, GGUF_U8),
	    u64(&b, 0);
	refused(&b, "key nest is an array of arrays");
	head(&b, 3, 0, 1);
	str(&b, "arr"), u32(&b, GGUF_ARR), u32(&b, 99), u64(&b, 1), u64(&b, 0);
	refused(&b, "the array arr has element type 99");
	head(&b, 3, 0, 1);
	str(&b, "arr"), u32(&b, GGUF_ARR), u32(&b, GGUF_F64), u64(&b, 3), zeros(&b, 16);
	refused(&b, "key arr claims 3 elements of at least 8 bytes, but 16 bytes are left");
	head(&b, 3, 0, 1);
	str(&b, "arr"), u32(&b, GGUF_ARR), u32(&b, GGUF_U64), u64(&b, (1ull << 61) + 1),
	    zeros(&b, 64);
	refused(&b, "key arr claims 2305843009213693953 elements");
	head(&b, 3, 0, 1);
	str(&b, "arr"), u32(&b, GGUF_ARR), u32(&b, GGUF_STR), u64(&b, 1ull << 61), zeros(&b, 64);
	refused(&b, "key arr claims");
	head(&b, 3, 0, 1);
	str(&b, "arr"), u32(&b, GGUF_ARR), u32(&b, GGUF_STR), u64(&b, 2), str(&b, "ok"),
	    u64(&b, UINT64_MAX);
	refused(&b, "key arr: string 1 of 2");
	/* control bytes do not reach the terminal, long names are truncated */
	head(&b, 3, 0, 1);
	str(&b, "\33[31mred"), u32(&b, 77), u64(&b, 0);
	refused(&b, "key ?[31mred has value type 77");
	head(&b, 3, 0, 1);
	u64(&b, 3000);
	for (int i = 0; i < 3000; i++)
		strbuf_putc(&b, 'x');
	u32(&b, 77), u64(&b, 0);
	refused(&b, "xxxxxxxx... has value type 77");
	strbuf_release(&b);
}

static void
bad_alignment_is_rejected(void **state)
{
	static const uint32_t bad[] = { 0, 1, 4, 24, 100, UINT32_MAX };
	Strbuf b = { 0 };
	char want[64];

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		head(&b, 3, 0, 1);
		key_u32(&b, "general.alignment", bad[i]);
		snprintf(want, sizeof want, "general.alignment is %u,", bad[i]);
		refused(&b, want);
	}
	head(&b, 3, 0, 1);
	str(&b, "general.alignment"), u32(&b, GGUF_U64), u64(&b, 32);
	refused(&b, "general.alignment has value type 10, expected u32");
	head(&b, 3, 0, 1);
	key_u32(&b, "general.alignment", 1u << 31);
	gguf_close(accepted(&b)); /* without tensors the padding may be absent */
	head(&b, 3, 1, 1);
	key_u32(&b, "general.alignment", 1u << 31);
	matrix(&b, "w", 1, 1, 0, 0), zeros(&b, 64);
	refused(&b, "tensor w needs 4 bytes");
	strbuf_release(&b);
}

static void
bad_tensors_are_rejected(void **state)
{
	Strbuf b = { 0 };

	(void)state;
#define ONE(...) (head(&b, 3, 1, 0), __VA_ARGS__, pad(&b, 32), zeros(&b, 256))
	ONE(u64(&b, 1ull << 50));
	refused(&b, "tensor 0 reaches beyond");
	ONE(u64(&b, 0));
	refused(&b, "the name of tensor 0 has 0 bytes");
	ONE(str(&b, "w"), u32(&b, 5), zeros(&b, 60));
	refused(&b, "tensor w has 5 dimensions");
	ONE(matrix(&b, "w", 4, 0, 0, 0));
	refused(&b, "tensor w: dimension 1 is 0");
	ONE(matrix(&b, "w", -4, 1, 0, 0));
	refused(&b, "tensor w: dimension 0 is 18446744073709551612");
	ONE(matrix(&b, "w", 1ll << 40, 1ll << 40, 0, 0));
	refused(&b, "tensor w: its shape [1099511627776, 1099511627776, 1, 1] is too large");
	ONE(tensor(&b, "w", 4, (int64_t[]){ 1, 1ll << 32, 1ll << 32, 1ll << 32 }, 0, 0));
	refused(&b, "too large to count");
	ONE(tensor(&b, "w", 4, (int64_t[]){ 3, 1ll << 32, 1ll << 31, 5 }, 999, 0));
	refused(&b, "too large to count"); /* the error also occurs for a type that is not read */
	ONE(matrix(&b, "w", INT64_MAX, 1, 0, 0));
	refused(&b, "too large to count");
	ONE(matrix(&b, "w", 33, 2, 8, 0));
	refused(&b, "rows of 33 elements are not a multiple of the q8_0 block size 32");
	ONE(matrix(&b, "w", 32, 1, 14, 0));
	refused(&b, "not a multiple of the q6_k block size 256");
	ONE(matrix(&b, "w", 1, 1, 0, 8));
	refused(
	    &b,
	    "tensor w starts at byte 8 of the data, which is not a multiple of the alignment 32");
	ONE(matrix(&b, "w", 65, 1, 0, 0));
	refused(&b, "tensor w needs 260 bytes from byte 0 of the data, but the data has 256");
	ONE(matrix(&b, "w", 1, 1, 0, 256));
	refused(&b, "tensor w needs 4 bytes from byte 256");
	ONE(matrix(&b, "w", 1, 1, 0, UINT64_MAX - 31));
	refused(&b, "tensor w needs 4 bytes from byte 18446744073709551584");
	ONE(matrix(&b, "w", 256, 1, 10, 1ull << 40));
	refused(&b, "tensor w needs");
#undef ONE
#define TWO(x, y) (head(&b, 3, 2, 0), x, y, pad(&b, 32), zeros(&b, 256))
	TWO(matrix(&b, "w", 1, 1, 0, 0), matrix(&b, "w", 1, 1, 0, 32));
	refused(&b, "duplicate tensor w");
	TWO(matrix(&b, "w", 9, 1, 0, 0), matrix(&b, "v", 1, 1, 0, 32));
	refused(&b, "the data of tensors w and v overlap");
	TWO(matrix(&b, "v", 1, 1, 0, 32), matrix(&b, "w", 9, 1, 0, 0));
	refused(&b, "the data of tensors w and v overlap");
	TWO(matrix(&b, "w", 2, 1, 0, 0), matrix(&b, "v", 1, 1, 0, 0));
	refused(&b, "the data of tensors v and w overlap");
	TWO(matrix(&b, "w", 8, 1, 0, 0), matrix(&b, "v", 1, 1, 0, 32));
	gguf_close(accepted(&b));
#undef TWO
	/* data that starts past the end of the file */
	head(&b, 3, 1, 0);
	matrix(&b, "w", 1, 1, 0, 0);
	assert_true(b.len % 32 != 0);
	refused(&b, "but the data has 0");
	strbuf_release(&b);
}

static void
files_are_opened_by_path(void **state)
{
	Strbuf b = { 0 };
	Tempdir dir;
	llmc_error err;
	Gguf *g;

	(void)state;
	assert_int_equal(tempdir_open(&dir), 0);
	const char *path = tempdir_file(&dir, "m.gguf");
	put_whole_file(&b, 3);
	assert_int_equal(file_write(path, b.data, b.len, &err), LLMC_OK);
	assert_int_equal(gguf_open(path, &g, &err), LLMC_OK);
	assert_int_equal(gguf_tensor(g, "a.weight")->bytes, 20);
	gguf_close(g);
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(gguf_open(path, &g, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(gguf_open(path, &g, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, path));
	assert_null(g);
	assert_int_equal(gguf_open(dir.path, &g, NULL), LLMC_E_IO);
	tempdir_close(&dir);
	strbuf_release(&b);
}

/* One part of a split file: split.no, split.count (0: none of these keys), split.tensors.count; n
 * tensors of one float, named from `first` on; more: another key */
typedef struct Part {
	uint32_t no, count, tensors;
	char first;
	int n;
	const char *name;
} Part;

static void
put_part(Tempdir *dir, const char *file, const Part *p)
{
	Strbuf b = { 0 };
	llmc_error err;

	head(&b, 3, (uint64_t)p->n, (p->count ? 3 : 0) + (p->name ? 1 : 0));
	if (p->count) {
		key_u32(&b, "split.no", p->no);
		key_u32(&b, "split.count", p->count);
		key_u32(&b, "split.tensors.count", p->tensors);
	}
	if (p->name)
		str(&b, "general.name"), u32(&b, GGUF_STR), str(&b, p->name);
	for (int i = 0; i < p->n; i++)
		matrix(&b, (char[]){ (char)(p->first + i), 0 }, 1, 1, 0, 32 * (uint64_t)i);
	pad(&b, 32);
	for (int i = 0; i < p->n; i++) {
		strbuf_add(&b, &(float){ (float)(p->first + i) }, 4);
		pad(&b, 32);
	}
	assert_int_equal(file_write(tempdir_file(dir, file), b.data, b.len, &err), LLMC_OK);
	strbuf_release(&b);
}

#define A "m-00001-of-00003.gguf"
#define B "m-00002-of-00003.gguf"
#define C "m-00003-of-00003.gguf"

static void
parts_are_joined(void **state)
{
	Tempdir dir;
	llmc_error err;
	Gguf *g;
	GgufStr name;

	(void)state;
	assert_int_equal(tempdir_open(&dir), 0);
	/* the first part may have keys only, and other parts need not repeat the name */
	put_part(&dir, A, &(Part){ 0, 3, 5, 'a', 0, "model" });
	put_part(&dir, B, &(Part){ 1, 3, 5, 'a', 3, NULL });
	put_part(&dir, C, &(Part){ 2, 3, 5, 'd', 2, "model" });
	assert_int_equal(gguf_open(tempdir_file(&dir, A), &g, &err), LLMC_OK);
	assert_int_equal(gguf_n_tensors(g), 5);
	assert_int_equal(gguf_n_parts(g), 2);
	assert_non_null(strstr(gguf_part_at(g, 1), C));
	assert_null(gguf_part_at(g, 2));
	for (char c = 'a'; c < 'f'; c++) {
		const GgufTensor *t = gguf_tensor(g, (char[]){ c, 0 });
		assert_true(*(const float *)t->data == (float)c);
		assert_non_null(strstr(t->file, c < 'd' ? B : C));
	}
	assert_true(gguf_str(g, "general.name", &name) && name.n == 5);
	gguf_close(g);
	/* a single part is an ordinary file, whatever its name */
	put_part(&dir, "whole.gguf", &(Part){ 0, 1, 2, 'a', 2, NULL });
	assert_int_equal(gguf_open(tempdir_file(&dir, "whole.gguf"), &g, &err), LLMC_OK);
	assert_int_equal(gguf_n_parts(g), 0);
	gguf_close(g);
	tempdir_close(&dir);
}

static void
inconsistent_parts_are_rejected(void **state)
{
	static const struct {
		const char *file, *says;
		Part a, b, c;
		const char *gone;
	} row[] = {
		{ A,
		  "m-00002-of-00003.gguf: no such file: part 2 of 3",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  B },
		{ B,
		  "part 2 of 3 of a split GGUF: name the first one",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its name has part 2, its key split.no has part 3",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 2, 3, 3, 'b', 1, NULL },
		  { 1, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its name has part 1, its key split.no has part 2",
		  { 1, 3, 3, 'a', 1, NULL },
		  { 0, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "one of 2 parts",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 2, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its name has 3 parts, its key split.count is 4",
		  { 0, 4, 3, 'a', 1, NULL },
		  { 1, 4, 3, 'b', 1, NULL },
		  { 2, 4, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "not part of a split GGUF",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 0, 0, 0, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its split GGUF has 4 tensors in all parts",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 4, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its parts hold 2 tensors",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 0, NULL },
		  NULL },
		{ A,
		  "holds 4 tensors of the 3",
		  { 0, 3, 3, 'a', 4, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "duplicate tensor b",
		  { 0, 3, 4, 'a', 2, NULL },
		  { 1, 3, 4, 'b', 1, NULL },
		  { 2, 3, 4, 'c', 1, NULL },
		  NULL },
		{ A,
		  "its general.name is 'other'",
		  { 0, 3, 3, 'a', 1, "model" },
		  { 1, 3, 3, 'b', 1, "other" },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ A,
		  "they belong to different models",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, "model" },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
		{ "x.gguf",
		  "rename the parts as llama-gguf-split named them",
		  { 0, 3, 3, 'a', 1, NULL },
		  { 1, 3, 3, 'b', 1, NULL },
		  { 2, 3, 3, 'c', 1, NULL },
		  NULL },
	};
	Tempdir dir;
	llmc_error err;

	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		Gguf *g;
		assert_int_equal(tempdir_open(&dir), 0);
		put_part(&dir, A, &row[i].a);
		put_part(&dir, B, &row[i].b);
		put_part(&dir, C, &row[i].c);
		put_part(&dir, "x.gguf", &row[i].a);
		if (row[i].gone)
			assert_int_equal(unlink(tempdir_file(&dir, row[i].gone)), 0);
		if (gguf_open(tempdir_file(&dir, row[i].file), &g, &err) != LLMC_E_INPUT ||
		    !strstr(err.text, row[i].says))
			fail_msg("row %zu: '%s', expected '%s'", i, err.text, row[i].says);
		assert_null(g);
		tempdir_close(&dir);
	}
}
#undef A
#undef B
#undef C

static void
many_tensors_are_found_quickly(void **state)
{
	enum { N = 100000 };
	Strbuf b = { 0 };
	char name[64];

	(void)state;
	head(&b, 3, N, 0);
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof name, "blk.%d.with.a.long.common.prefix", (i * 7919) % N);
		matrix(&b, name, 1, 1, 0, (uint64_t)i * 32);
	}
	pad(&b, 32);
	for (int i = 0; i < N; i++) {
		float v = (float)((i * 7919) % N);
		strbuf_add(&b, &v, sizeof v);
		zeros(&b, i == N - 1 ? 0 : 28);
	}
	Gguf *g = accepted(&b);
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof name, "blk.%d.with.a.long.common.prefix", i);
		const GgufTensor *t = gguf_tensor(g, name);
		assert_non_null(t);
		assert_true(*(const float *)t->data == (float)i);
	}
	gguf_close(g);
	strbuf_release(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_keys_and_tensors),
		cmocka_unit_test(every_truncation_is_rejected),
		cmocka_unit_test(bad_headers_are_rejected),
		cmocka_unit_test(bad_keys_are_rejected),
		cmocka_unit_test(bad_alignment_is_rejected),
		cmocka_unit_test(bad_tensors_are_rejected),
		cmocka_unit_test(files_are_opened_by_path),
		cmocka_unit_test(parts_are_joined),
		cmocka_unit_test(inconsistent_parts_are_rejected),
		cmocka_unit_test(many_tensors_are_found_quickly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
