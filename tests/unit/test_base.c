/* base/: arena, string buffer, error text, SHA-256. Files are in test_base_file.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/strbuf.h"

static void
arena_pieces_are_zeroed_aligned_and_apart(void **state)
{
	Arena a;
	unsigned char *piece[400];
	size_t size[400];

	(void)state;
	arena_init(&a);
	if (setjmp(a.oom))
		fail_msg("out of memory");
	for (size_t i = 0; i < 400; i++) {
		size[i] = i % 50 == 49 ? 70000 : i % 37;
		piece[i] = arena_alloc(&a, size[i], 1);
		assert_non_null(piece[i]);
		assert_int_equal((uintptr_t)piece[i] % 16, 0);
		for (size_t k = 0; k < size[i]; k++)
			assert_int_equal(piece[i][k], 0);
		memset(piece[i], (int)(i % 255 + 1), size[i]);
	}
	for (size_t i = 0; i < 400; i++)
		for (size_t k = 0; k < size[i]; k++)
			assert_int_equal(piece[i][k], i % 255 + 1);
	assert_true(a.total_bytes >= 8 * 70000);
	/* the pieces that fill blocks of their own do not waste the block in use */
	assert_true(a.total_bytes < 8 * 70000 + 3 * 65536);

	assert_string_equal(arena_strdup(&a, "twelve"), "twelve");
	assert_string_equal(arena_strndup(&a, "twelve", 3), "twe");
	assert_string_equal(arena_strndup(&a, NULL, 0), "");
	assert_string_equal(arena_printf(&a, "%d-%s", 7, "x"), "7-x");
	assert_string_equal(arena_printf(&a, "%s", ""), "");
	assert_int_equal(strlen(arena_printf(&a, "%100000d", 1)), 100000);

	int *list = NULL;
	size_t cap = 0;
	for (int i = 0; i < 1000; i++) {
		list = arena_grow(&a, list, &cap, (size_t)i + 1, sizeof *list);
		list[i] = i;
	}
	for (int i = 0; i < 1000; i++)
		assert_int_equal(list[i], i);
	assert_true(cap >= 1000);
	arena_release(&a);
	assert_int_equal(a.total_bytes, 0);
	arena_release(&a);
}

static int
tries_to_take(size_t n, size_t elem_bytes)
{
	Arena a;

	arena_init(&a);
	int failed = setjmp(a.oom);
	if (!failed)
		arena_alloc(&a, n, elem_bytes);
	arena_release(&a);
	return failed;
}

static void
arena_jumps_when_memory_is_out(void **state)
{
	(void)state;
	assert_int_equal(tries_to_take(10, 10), 0);
	assert_int_equal(tries_to_take(SIZE_MAX, 2), 1);
	assert_int_equal(tries_to_take((size_t)1 << 33, (size_t)1 << 31), 1);
	assert_int_equal(tries_to_take(SIZE_MAX, 1), 1);
	/* the allocation with a given number fails, no other */
	Arena a;
	volatile int done = 0;
	arena_init(&a);
	a.fail_after = 5;
	if (setjmp(a.oom) == 0)
		for (;;) {
			arena_alloc(&a, 1, 1);
			done++;
		}
	assert_int_equal(done, 4);
	assert_non_null(arena_alloc(&a, 1, 1));
	arena_release(&a);
}

static void
strbuf_appends(void **state)
{
	Strbuf b = { 0 };

	(void)state;
	assert_string_equal(strbuf_str(&b), "");
	strbuf_clear(&b);
	strbuf_add(&b, NULL, 0);
	strbuf_puts(&b, "ab");
	strbuf_putc(&b, 'c');
	strbuf_printf(&b, "%d%s", 42, "z");
	assert_string_equal(strbuf_str(&b), "abc42z");
	assert_int_equal(b.len, 6);
	for (int i = 0; i < 1000; i++)
		strbuf_printf(&b, "%03d", i);
	assert_int_equal(b.len, 3006);
	assert_memory_equal(b.data + 6 + 3 * 517, "517", 3);
	strbuf_printf(&b, "%70000d", 1);
	assert_int_equal(b.len, 73006);
	assert_int_equal(b.data[b.len], 0);
	strbuf_clear(&b);
	assert_string_equal(strbuf_str(&b), "");
	strbuf_add(&b, "a\0b", 3);
	assert_int_equal(b.len, 3);
	assert_memory_equal(b.data, "a\0b", 4);
	assert_false(b.failed);
	strbuf_release(&b);
	assert_int_equal(b.len + b.cap, 0);
	strbuf_release(&b);
	/* after a failed append nothing more is taken */
	strbuf_puts(&b, "x");
	b.failed = true;
	strbuf_puts(&b, "y");
	strbuf_printf(&b, "%d", 1);
	assert_string_equal(strbuf_str(&b), "x");
	strbuf_release(&b);
}

static llmc_status
three_steps(int fail_at, int *steps, llmc_error *err)
{
	llmc_status status;

	*steps = 0;
	for (int i = 0; i < 3; i++) {
		TRY_GOTO(i == fail_at ? error_set(err, LLMC_E_RANGE, "step %d", i) : LLMC_OK);
		++*steps;
	}
	TRY(fail_at == 3 ? error_set(err, LLMC_E_IO, "end") : LLMC_OK);
	return LLMC_OK;
fail:
	error_prefix(err, "in %s", "test");
	return status;
}

static void
errors_are_sentences_of_the_caller(void **state)
{
	llmc_error err;
	char big[5000];
	int steps;

	(void)state;
	assert_int_equal(error_set(&err, LLMC_E_INPUT, "%s has %d", "x", 3), LLMC_E_INPUT);
	assert_int_equal(err.code, LLMC_E_INPUT);
	assert_string_equal(err.text, "x has 3");
	error_prefix(&err, "file %d", 7);
	assert_string_equal(err.text, "file 7: x has 3");
	assert_int_equal(err.code, LLMC_E_INPUT);
	assert_int_equal(error_set(NULL, LLMC_E_BUG, "nobody reads this"), LLMC_E_BUG);
	error_prefix(NULL, "nor this");
	/* long texts are cut, never written past the end */
	memset(big, 'a', sizeof big - 1);
	big[sizeof big - 1] = 0;
	error_set(&err, LLMC_E_IO, "%s", big);
	assert_int_equal(strlen(err.text), sizeof err.text - 1);
	error_prefix(&err, "head");
	assert_memory_equal(err.text, "head: aaaa", 10);
	error_prefix(&err, "%s", big);
	assert_true(strlen(err.text) < sizeof err.text);

	assert_int_equal(three_steps(1, &steps, &err), LLMC_E_RANGE);
	assert_int_equal(steps, 1);
	assert_string_equal(err.text, "in test: step 1");
	assert_int_equal(three_steps(3, &steps, &err), LLMC_E_IO);
	assert_int_equal(three_steps(-1, &steps, NULL), LLMC_OK);
}

/* sums of bytes 0, 7, 14, ... (mod 256), from Python's hashlib; "abc" and a million a's are FIPS 180's examples */
static void
sha256_matches_known_sums(void **state)
{
	static const struct { size_t n; const char *hex; } row[] = {
		{ 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
		{ 1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d" },
		{ 55, "576a1bf8d4478657e6dc4af9398544765c2a92cde28478b019235cfed315fc09" },
		{ 56, "9b20501dfd1d99161c257950f3444f3e49230c351c5c8e0943ef369f85f5205d" },
		{ 57, "a5534a9d0694341dfde5b1bb3d8addcb38bd46f44a629dc97b3f8fb2721b0720" },
		{ 63, "30b345906b493f06f69444b6521113511c242f30e29840462950035043682f1e" },
		{ 64, "d8bc63b4fc1156e5e7d95a418b9bf54cd3174bedbc2db40f74895349b229b3c0" },
		{ 65, "1ee23b0fbcaecc1aff4a9e8f1645f35ab2c8e13609cd73b68df8b5e3f63ce073" },
		{ 119, "7a6589821178918ca8d9edaba5abfc1e9b2669564f4469b66885379c1530b2c8" },
		{ 120, "655250427d56b1b0eeb8497d21428704273458a01772d6881b65c0abac0f8a98" },
		{ 1000, "89f4ff56a25dd1db06a4ce6033603775d705fb96f30f8693733fef602a1ca532" },
	};
	unsigned char data[1000];
	char hex[65];
	Sha256 s;

	(void)state;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)(i * 7);
	for (size_t r = 0; r < sizeof row / sizeof *row; r++)
		for (size_t piece = 1; piece <= 64; piece += 21) {
			sha256_init(&s);
			for (size_t at = 0; at < row[r].n; at += piece)
				sha256_add(&s, data + at, row[r].n - at < piece ? row[r].n - at : piece);
			sha256_hex(&s, hex);
			assert_string_equal(hex, row[r].hex);
		}
	sha256_init(&s);
	sha256_add(&s, "abc", 3);
	sha256_hex(&s, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	sha256_init(&s);
	memset(data, 'a', sizeof data);
	for (int i = 0; i < 1000; i++)
		sha256_add(&s, data, sizeof data);
	sha256_hex(&s, hex);
	assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_pieces_are_zeroed_aligned_and_apart),
		cmocka_unit_test(arena_jumps_when_memory_is_out),
		cmocka_unit_test(strbuf_appends),
		cmocka_unit_test(errors_are_sentences_of_the_caller),
		cmocka_unit_test(sha256_matches_known_sums),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
