/* Request bodies: numbers that are too large, and memory that runs out while one is parsed. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/http/json_body.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static long n_allowed; /* jansson allocations until failure */

static void *
limited_malloc(size_t n)
{
	return n_allowed-- > 0 ? malloc(n) : NULL;
}

/* Whichever allocation fails, the error is out of memory; the body is not called invalid. */
static void
out_of_memory_is_not_a_client_error(void **state)
{
	static const char body[] =
	    "{\"messages\": [{\"role\": \"user\", \"content\": \"a text that is longer than a "
	    "short one\"}], \"n\": 1.5, \"seed\": 18446744073709551615}";
	json_t *o = NULL;
	int n = 0;

	(void)state;
	json_set_alloc_funcs(limited_malloc, free);
	for (; !o && n < 1000; n++) {
		Problem p = { 0 };
		n_allowed = n;
		o = body_parse(body, sizeof body - 1, &p);
		assert_int_equal(p.status, o ? 0 : 503);
	}
	n_allowed = 1000000;
	json_decref(o);
	json_set_alloc_funcs(malloc, free);
	assert_in_range(n, 10, 999);
}

static void
integers_beyond_63_bits(void **state)
{
	static const struct {
		const char *text;
		uint64_t want;
		bool ok;
	} row[] = {
		{ "0", 0, true },
		{ "9223372036854775807", INT64_MAX, true },
		{ "9223372036854775808", (uint64_t)INT64_MAX + 1, true },
		{ "18446744073709551615", UINT64_MAX, true },
		{ "18446744073709551616", 0, false },
		{ "-1", 0, false },
		{ "-9223372036854775809", 0, false },
		{ "9223372036854775808.0", 0, false },
		{ "1e19", 0, false },
		{ "99999999999999999999999999", 0, false },
		{ "{\"$u64\": \"5\"}", 0, false },
		{ "\"5\"", 0, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		Strbuf b = { 0 };
		Problem p = { 0 };
		uint64_t x;
		/* the same key elsewhere, and the key's name in a string, have no effect */
		strbuf_printf(&b,
		              "{\"a\": {\"seed\" : 9300000000000000000}, \"b\": \"\\\"seed\\\": "
		              "1\", \"c\": \"seed\", \"parameters\": {\"seed\"\n: %s}}",
		              row[i].text);
		json_t *o = body_parse(b.data, b.len, &p);
		assert_non_null(o);
		const json_t *seed = json_object_get(json_object_get(o, "parameters"), "seed");
		assert_int_equal(number_u64(seed, &x), row[i].ok);
		if (row[i].ok)
			assert_true(x == row[i].want);
		json_decref(o);
		strbuf_release(&b);
	}
}

/* An integer beyond int64 is a number wherever the request is read: a string would be read as
 * content or as a name. Schemas and arguments keep its digits. */
static void
digits_are_kept_in_data_only(void **state)
{
	static const struct {
		const char *before, *after; /* the number */
		bool kept;
	} row[] = {
		{ "{\"user\": ", "}", false },
		{ "{\"parameters\": {\"seed\": ", "}}", true }, /* TGI: 64 bits without a sign */
		{ "{\"parameters\": {\"top_k\": ", "}}", false },
		{ "{\"options\": {\"seed\": ", "}}", false },
		{ "{\"options\": {\"num_ctx\": ", "}}", false },
		{ "{\"stop\": [", "]}", false },
		{ "{\"input\": [", "]}", false },
		{ "{\"messages\": [{\"content\": ", "}]}", false },
		{ "{\"messages\": [{\"content\": [{\"type\": \"text\", \"text\": ", "}]}]}",
		  false },
		{ "{\"tools\": [{\"function\": {\"name\": ", "}}]}", false },
		{ "{\"tools\": [{\"function\": {\"parameters\": {\"const\": ", "}}}]}", true },
		{ "{\"tools\": [{\"input_schema\": {\"enum\": [", "]}}]}", true },
		{ "{\"messages\": [{\"content\": [{\"input\": {\"a\": ", "}}]}]}", true },
		{ "{\"messages\": [{\"tool_calls\": [{\"function\": {\"arguments\": {\"a\": ",
		  "}}}]}]}", true },
		{ "{\"response_format\": {\"json_schema\": {\"schema\": {\"const\": ", "}}}}",
		  true },
		{ "{\"response_format\": {\"json_schema\": {\"schema\": {}, \"name\": ", "}}}",
		  false },
		{ "{\"json_schema\": {\"const\": ", "}}", true },
		{ "{\"format\": {\"minimum\": ", "}}", true },
		{ "{\"parameters\": {\"grammar\": {\"value\": {\"const\": ", "}}}}", true },
		{ "{\"structured_outputs\": {\"json\": {\"const\": ", "}}}", true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		Strbuf b = { 0 };
		Problem p = { 0 };
		strbuf_printf(&b, "%s99999999999999999999%s", row[i].before, row[i].after);
		json_t *o = body_parse(b.data, b.len, &p);
		assert_non_null(o);
		char *text = json_dumps_numbers(o, JSON_COMPACT);
		assert_non_null(text);
		if (!strstr(text, "99999999999999999999") == row[i].kept)
			fail_msg("%s: %s", row[i].before, text);
		free(text);
		json_decref(o);
		strbuf_release(&b);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(out_of_memory_is_not_a_client_error),
		cmocka_unit_test(integers_beyond_63_bits),
		cmocka_unit_test(digits_are_kept_in_data_only),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
