/* base/: arena, string buffer, error text, SHA-256. Files are tested in test_base_file.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <math.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "base/sha256.h"
#include "base/sized_struct.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "locale_comma.h"

static void
arena_allocations_are_zeroed_aligned_and_disjoint(void **state)
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
	/* a large allocation with its own block does not waste the rest of the block in use */
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
fails_to_allocate(size_t n, size_t elem_bytes)
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
	assert_int_equal(fails_to_allocate(10, 10), 0);
	assert_int_equal(fails_to_allocate(SIZE_MAX, 2), 1);
	assert_int_equal(fails_to_allocate((size_t)1 << 33, (size_t)1 << 31), 1);
	assert_int_equal(fails_to_allocate(SIZE_MAX, 1), 1);
	/* only the allocation with the given number fails */
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

static char order[16];

static void
note(void *p)
{
	strcat(order, p);
}

/* Each resource is released once, the latest first. A resource that cannot be registered is
 * released before the error jump. */
static void
arenas_run_deferred_releases(void **state)
{
	static char one[] = "1", two[] = "2", three[] = "3";
	Arena a;

	(void)state;
	arena_init(&a);
	if (setjmp(a.oom))
		fail_msg("out of memory");
	arena_defer(&a, note, one);
	arena_defer(&a, note, two);
	arena_defer(&a, note, three);
	arena_done(&a, two);
	arena_done(&a, two);
	assert_string_equal(order, "2");
	strbuf_puts(arena_strbuf(&a), "heap text that only the arena knows");
	arena_release(&a);
	assert_string_equal(order, "231");

	order[0] = 0;
	arena_init(&a);
	a.fail_after = 2;
	if (setjmp(a.oom) == 0) {
		arena_defer(&a, note, one);
		arena_defer(&a, note, two);
		fail_msg("no jump");
	}
	assert_string_equal(order, "2");
	arena_release(&a);
	assert_string_equal(order, "21");
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
	/* after a failed append nothing more is appended */
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
errors_are_written_to_the_callers_struct(void **state)
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
	/* long messages are truncated, never written past the end */
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

/* Hashes of bytes 0, 7, 14, ... (mod 256) from Python's hashlib; "abc" and a million a's are
 * examples of FIPS 180 */
static void
check_known_sums(void)
{
	static const struct {
		size_t n;
		const char *hex;
	} row[] = {
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

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)(i * 7);
	for (size_t r = 0; r < sizeof row / sizeof *row; r++)
		for (size_t piece = 1; piece <= 64; piece += 21) {
			sha256_init(&s);
			for (size_t at = 0; at < row[r].n; at += piece)
				sha256_add(&s, data + at,
				           row[r].n - at < piece ? row[r].n - at : piece);
			sha256_hex(&s, hex);
			assert_string_equal(hex, row[r].hex);
		}
	sha256_init(&s);
	sha256_add(&s, "abc", 3);
	sha256_hex(&s, hex);
	assert_string_equal(hex,
	                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	sha256_init(&s);
	memset(data, 'a', sizeof data);
	for (int i = 0; i < 1000; i++)
		sha256_add(&s, data, sizeof data);
	sha256_hex(&s, hex);
	assert_string_equal(hex,
	                    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void
sha256_matches_known_sums(void **state)
{
	(void)state;
	check_known_sums();
	sha256_portable(true);
	check_known_sums();
	sha256_portable(false);
}

static void
hexadecimal_digits_have_values(void **state)
{
	(void)state;
	for (int c = -128; c < 128; c++) {
		const char text[] = { (char)c, 0 };
		assert_int_equal(hex_digit((char)c),
		                 c > 0 && isxdigit(c) ? (int)strtol(text, NULL, 16) : -1);
	}
}

/* Numbers are written like Python's repr, and strtod reads back any double. */
static void
numbers_in_any_locale(void **state)
{
	static const struct {
		double v;
		const char *text, *plain, *nine;
	} row[] = {
		{ 0, "0.0", "0", "0.0" },
		{ 1, "1.0", "1", "1.0" },
		{ -3, "-3.0", "-3", "-3.0" },
		{ 50, "50.0", "50", "50.0" },
		{ 0.1, "0.1", "0.1", "0.1" },
		{ 1e-5, "1e-05", "1e-05", "1e-05" },
		{ 1e-4, "0.0001", "0.0001", "0.0001" },
		{ 0.00012345, "0.00012345", "0.00012345", "0.00012345" },
		{ 1e300, "1e+300", "1e+300", "1e+300" },
		{ 1.0 / 3, "0.3333333333333333", "0.3333333333333333", "0.333333333" },
		{ 2.0 / 3, "0.6666666666666666", "0.6666666666666666", "0.666666667" },
		{ 1e15, "1000000000000000.0", "1000000000000000", "1000000000000000.0" },
		{ 1e16, "1e+16", "1e+16", "1e+16" },
		{ 123456789012, "123456789012.0", "123456789012", "123456789000.0" },
		{ 5e-324, "5e-324", "5e-324", "5e-324" },
		{ 1.7976931348623157e308, "1.7976931348623157e+308", "1.7976931348623157e+308",
		  "1.79769313e+308" },
		{ 0.08838834764831845, "0.08838834764831845", "0.08838834764831845",
		  "0.0883883476" },
		{ (double)0.1f, "0.10000000149011612", "0.10000000149011612", "0.100000001" },
	};
	static const char *const wrong[] = { "0x10", "inf",   "nan", "1e999",  "",
		                             "1,5",  "1 ",    " 1",  "-",      "--1",
		                             "1e",   "1.2.3", ".",   "1.500,5" };
	char out[NUMBER_SIZE];
	double back;
	uint64_t bits = 1;

	(void)state;
	for (int comma = 0; comma < 2; comma++) {
		if (comma && !locale_comma())
			continue;
		for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
			number_text(out, row[i].v, NUMBER_EXACT);
			assert_string_equal(out, row[i].text);
			assert_true(number_parse(out, &back) && back == row[i].v);
			number_text(out, row[i].v, 9);
			assert_string_equal(out, row[i].nine);
			number_plain(out, row[i].v, NUMBER_EXACT);
			assert_string_equal(out, row[i].plain);
		}
		for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
			if (number_parse(wrong[i], &back))
				fail_msg("\"%s\" is not a number", wrong[i]);
		assert_true(number_of_float(0.6f) == 0.6 && number_of_float(-0.1f) == -0.1 &&
		            number_of_float(1e-05f) == 1e-05 && number_of_float(0) == 0);
		for (int i = 0; i < 20000; i++) {
			double v;
			bits = bits * 6364136223846793005u + 1442695040888963407u;
			uint64_t mixed = bits ^ bits >> 29;
			memcpy(&v, &mixed, sizeof v);
			number_text(out, v, NUMBER_EXACT);
			assert_true(strlen(out) < NUMBER_SIZE);
			if (isfinite(v))
				assert_true(number_parse(out, &back) && back == v);
			if (!comma && isfinite(v))
				assert_true(strtod(out, NULL) == v);
		}
	}
	setlocale(LC_ALL, "C");
}

/* jansson reads back any bytes that were written as a JSON string. */
static void
json_reads_back(void **state)
{
	Strbuf b = { 0 }, fixed = { 0 };
	static const char pieces[] =
	    "\0\1\n\t\"\\/\x7f\x80\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0x\b\f\r\x1f";
	char text[64];
	const char *volatile none = NULL;
	uint64_t bits = 7;

	(void)state;
	for (int i = 0; i < 5000; i++) {
		size_t n = (size_t)i % sizeof text;
		for (size_t k = 0; k < n; k++) {
			bits = bits * 6364136223846793005u + 1442695040888963407u;
			text[k] = pieces[(bits >> 40) % (sizeof pieces - 1)];
		}
		strbuf_clear(&b);
		json_str(&b, text, n);
		json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		if (!v)
			fail_msg("not JSON: %s", b.data);
		strbuf_clear(&fixed);
		utf8_add_lossy(&fixed, text, n);
		assert_int_equal(json_string_length(v), fixed.len);
		assert_memory_equal(json_string_value(v), strbuf_str(&fixed), fixed.len);
		json_decref(v);
	}
	strbuf_clear(&b);
	json_printf(&b, "{\"a\":%s,\"b\":%s,\"c\":[%d,%lld,%g,%g]}", "x\"\n", none, -1, 1ll << 40,
	            0.5, 1.0 / 0.0);
	assert_string_equal(strbuf_str(&b),
	                    "{\"a\":\"x\\\"\\n\",\"b\":null,\"c\":[-1,1099511627776,0.5,null]}");
	strbuf_release(&b);
	strbuf_release(&fixed);
}

/* In configurations written by Python, words like NaN that JSON lacks become null; strings that
 * contain such words are unchanged. */
static void
json_of_python_is_read(void **state)
{
	static const char text[] =
	    "{\"a\": [0.0, Infinity, -Infinity], \"In\\\"NaN\": \"Infinity\", \"b\": -1}";
	json_error_t why;
	Arena a = { 0 };

	(void)state;
	json_t *v = json_read_python(&a, text, sizeof text - 1, 0, &why),
	       *list = json_object_get(v, "a");
	assert_non_null(v);
	assert_int_equal(json_array_size(list), 3);
	assert_true(json_number_value(json_array_get(list, 0)) == 0);
	for (size_t i = 1; i < 3; i++)
		assert_true(json_is_null(json_array_get(list, i)));
	assert_string_equal(json_string_value(json_object_get(v, "In\"NaN")), "Infinity");
	assert_int_equal(json_integer_value(json_object_get(v, "b")), -1);
	static const char *const bad[] = { "{\n \"a\": NaN}", "{\n \"a\": [NaN]}",
		                           "{\n \"a\": Infinity}", "{\n \"a\": -Infinity}" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_null(json_read_python(&a, bad[i], strlen(bad[i]), 0, &why));
		assert_non_null(strstr(why.text, "is not a finite number"));
		assert_int_equal(why.line, 2);
		assert_int_equal(why.column, i == 1 ? 8 : 7);
	}
	assert_null(json_read_python(&a, "{\"a\": Infinit}", 14, 0, &why));
	assert_null(json_read_python(&a, "{\"a", 3, 0, &why));
	arena_release(&a);
}

static uint64_t
random_bits(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* json_parse accepts what jansson's parser accepts, as the same values, and reports an error
 * for all else. Documents are mutated by bytes and by fragments. */
static void
json_is_parsed_like_jansson(void **state)
{
	static const char *const seeds[] = {
		("{\"a\": [1, -2.5e3, true, false, null, \"x\\u00e9\\n\"], \"b\": {\"c\": "
		 "\"\\ud83d\\ude00\"}}"),
		" [ 0 , 9223372036854775807, -9223372036854775808, 1e-400, 123456789012345e5 ]\n",
		"\"a long string of more than twenty bytes \xc3\xa4 \xf0\x9f\x98\x80\"",
		"[[[[]]], {}, [{\"k\": [{}]}], \"\\u0000\"]",
		"{\"key\":1,\"key\":2,\"other\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}",
	};
	static const char *const parts[] = {
		"{",
		"}",
		"[",
		"]",
		",",
		":",
		"\"",
		"\\",
		"\\u",
		"\\ud800",
		"0",
		"-",
		".",
		"e",
		"E+",
		"1e400",
		"tru",
		"nul",
		"\n",
		"\t",
		" ",
		"\x80",
		"\xc3",
		"\xe2\x82",
		"\xff",
		"\x01",
		"99999999999999999999",
		"a",
		"\"a\":",
		"\"\\u0000\":",
		"-9999999999999999999",
		"01",
		"1.",
		"\\x",
		"\\udc00",
	};
	static const size_t flags[] = { 0, JSON_DECODE_ANY, JSON_ALLOW_NUL | JSON_DECODE_ANY,
		                        JSON_REJECT_DUPLICATES };
	uint64_t bits = 11;

	(void)state;
	for (int i = 0; i < 200000; i++) {
		char text[512];
		size_t n =
		    (size_t)snprintf(text, sizeof text, "%s",
		                     seeds[random_bits(&bits) % (sizeof seeds / sizeof *seeds)]);
		for (uint64_t k = random_bits(&bits) % 4; k > 0; k--) {
			const char *part =
			    parts[random_bits(&bits) % (sizeof parts / sizeof *parts)];
			size_t at = random_bits(&bits) % (n + 1), len = strlen(part),
			       cut = random_bits(&bits) % 3 ? 0 : random_bits(&bits) % (n - at + 1);
			if (n + len > sizeof text)
				break;
			memmove(text + at + len, text + at + cut, n - at - cut);
			memcpy(text + at, part, len);
			n = n + len - cut;
		}
		size_t flag = flags[random_bits(&bits) % (sizeof flags / sizeof *flags)];
		json_error_t why = { 0 }, oracle = { 0 };
		bool no_memory;
		json_t *v = json_parse(text, n, flag, &why, &no_memory),
		       *o = json_loadb(text, n, flag, &oracle);
		if (!v != !o || no_memory || (v && !json_equal(v, o)))
			fail_msg("%.*s: %s, jansson: %s", (int)n, text, why.text, oracle.text);
		if (!v && (!why.text[0] || why.line < 1))
			fail_msg("%.*s: no message", (int)n, text);
		json_decref(v);
		json_decref(o);
	}
}

/* If a document has a single error, it is reported with jansson's code, message and position. */
static void
json_errors_equal_janssons(void **state)
{
	static const char *const wrong[] = {
		"",
		" ",
		"1",
		"{",
		"{\"a\"",
		"{\"a\":",
		"{\"a\":1",
		"{\"a\":1,",
		"{1:2}",
		"{\"a\" 1}",
		"[",
		"[1",
		"[1 2]",
		"[1,]",
		"[1,\n2,\n x]",
		"[1] 2",
		"[\"abc",
		"[\"a\nb\"]",
		"[\"\x01\"]",
		"[\"\\x\"]",
		"[\xc3\xa4]",
		"[9223372036854775808]",
		"[-9223372036854775809]",
		"[1e999]",
		"[nul]",
		"{\"\\u0000\":1}",
		"[\"\\u0000\"]",
		"[}",
		"{\"a\":1}}",
		"[truefalsetruefalsetruefalse]",
	};

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		json_error_t why = { 0 }, oracle = { 0 };
		assert_null(json_parse(wrong[i], strlen(wrong[i]), 0, &why, NULL));
		assert_null(json_loads(wrong[i], 0, &oracle));
		if (strcmp(why.text, oracle.text) != 0 || why.line != oracle.line ||
		    why.column != oracle.column)
			fail_msg("%s: '%s' at %d:%d, jansson: '%s' at %d:%d", wrong[i], why.text,
			         why.line, why.column, oracle.text, oracle.line, oracle.column);
		assert_int_equal(json_error_code(&why), json_error_code(&oracle));
	}
	char deep[4200];
	bool no_memory;
	memset(deep, '[', 2100);
	memset(deep + 2100, ']', 2100);
	assert_null(json_parse(deep, sizeof deep, 0, NULL, &no_memory));
	assert_false(no_memory);
	json_t *v = json_parse(deep + 52, 4096, 0, NULL, NULL);
	assert_non_null(v);
	json_decref(v);
}

static void
sizes_have_units(void **state)
{
	static const struct {
		const char *text;
		int64_t bytes;
	} right[] = { { "1", 1 },           { "8G", 8ll << 30 },
		      { "1.5k", 1536 },     { "512MiB", 512 << 20 },
		      { "2tb", 2ll << 40 }, { "1e3K", 1024000 } };
	static const char *const wrong[] = {
		"",    "0",   "-1",    "8X",  "G",   "8Gi ",
		"8 G", "8GG", "1e40G", "nan", "8iB", "12345678901234567890123456789012345678901G"
	};
	int64_t n;

	(void)state;
	for (size_t i = 0; i < sizeof right / sizeof *right; i++)
		assert_true(bytes_parse(right[i].text, &n) && n == right[i].bytes);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (bytes_parse(wrong[i], &n))
			fail_msg("\"%s\" is not a size", wrong[i]);
}

/* Elements of a caller's array may be smaller or larger than those of the library. */
static void
arrays_of_sized_structs_have_the_size_of_the_first(void **state)
{
	typedef struct Old {
		size_t size;
		int32_t a;
	} Old;
	typedef struct Own {
		size_t size;
		int32_t a, b;
	} Own;
	typedef struct New {
		size_t size;
		int32_t a, b, c[4];
	} New;
	const Old old[2] = { { sizeof(Old), 1 }, { sizeof(Old), 2 } };
	const Own same[2] = { { 0, 3, 4 }, { 0, 5, 6 } };
	const New new[2] = { { sizeof(New), 7, 8, { 0 } }, { sizeof(New), 9, 10, { 0 } } };
	Own own = { .b = -1 };

	(void)state;
	SIZED_TAKE_AT(own, old, 1);
	assert_int_equal(own.a, 2);
	SIZED_TAKE_AT(own, same, 1);
	assert_true(own.a == 5 && own.b == 6);
	SIZED_TAKE_AT(own, new, 1);
	assert_true(own.a == 9 && own.b == 10 && own.size == sizeof own);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_allocations_are_zeroed_aligned_and_disjoint),
		cmocka_unit_test(arena_jumps_when_memory_is_out),
		cmocka_unit_test(arenas_run_deferred_releases),
		cmocka_unit_test(arrays_of_sized_structs_have_the_size_of_the_first),
		cmocka_unit_test(strbuf_appends),
		cmocka_unit_test(errors_are_written_to_the_callers_struct),
		cmocka_unit_test(sha256_matches_known_sums),
		cmocka_unit_test(numbers_in_any_locale),
		cmocka_unit_test(hexadecimal_digits_have_values),
		cmocka_unit_test(sizes_have_units),
		cmocka_unit_test(json_reads_back),
		cmocka_unit_test(json_is_parsed_like_jansson),
		cmocka_unit_test(json_errors_equal_janssons),
		cmocka_unit_test(json_of_python_is_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
