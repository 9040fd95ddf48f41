/* Stop strings: no part of one is ever output, and everything before it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "runtime/sample/stop_strings.h"

/* Feed text in chunks of `step` bytes; collects the output and whether a stop string was found. */
static bool
feed_between(const char *const *stops, const char *const *ignore, const char *text, size_t step,
             Strbuf *shown)
{
	Stop *s;
	bool found = false;
	const char *safe;
	size_t n, len = strlen(text);

	strbuf_clear(shown);
	assert_int_equal(stop_open(stops, ignore, &s, NULL), LLMC_OK);
	for (size_t i = 0; i < len && !found; i += step) {
		assert_int_equal(stop_feed(s, text + i, step < len - i ? step : len - i, false,
		                           &safe, &n, &found, NULL),
		                 LLMC_OK);
		strbuf_add(shown, safe, n);
	}
	if (!found) {
		assert_int_equal(stop_feed(s, "", 0, true, &safe, &n, &found, NULL), LLMC_OK);
		strbuf_add(shown, safe, n);
	}
	stop_close(s);
	return found;
}

static bool
feed(const char *const *stops, const char *text, size_t step, Strbuf *shown)
{
	return feed_between(stops, NULL, text, step, shown);
}

static void
stops_do_not_apply_between_marks(void **state)
{
	(void)state;
	static const char *const stops[] = { "END", "zz", NULL },
	                         *const marks[] = { "<t>", "</t>" },
	                         *const begun[] = { "", "</t>" };
	static const struct {
		const char *const *marks;
		const char *text, *want;
		bool found;
	} row[] = {
		{ marks, "a<t>b END c</t>d END e", "a<t>b END c</t>d ", true },
		{ marks, "<t>END</t>x<t>END</t>y", "<t>END</t>x<t>END</t>y", false },
		{ marks, "<t>END", "<t>END", false },
		{ marks, "a END<t>", "a ", true },
		{ begun, "so END</t>yes END", "so END</t>yes ", true },
		{ begun, "END </t", "END </t", false },
	};
	Strbuf shown = { 0 };

	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		for (size_t step = 1; step < 9; step++) {
			assert_int_equal(
			    feed_between(stops, row[i].marks, row[i].text, step, &shown),
			    row[i].found);
			assert_string_equal(strbuf_str(&shown), row[i].want);
		}
	strbuf_release(&shown);
}

static void
output_is_cut_at_the_first_stop(void **state)
{
	(void)state;
	static const char *const stops[] = { "\n\nUser:", "END", NULL };
	static const struct {
		const char *text, *want;
		bool found;
	} row[] = {
		{ "hello\n\nUser: x", "hello", true },
		{ "hello\n\nUse it", "hello\n\nUse it", false },
		{ "an EN EEND more END", "an EN E", true },
		{ "END", "", true },
		{ "held EN", "held EN", false },
		{ "", "", false },
	};
	Strbuf shown = { 0 };

	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		for (size_t step = 1; step < 8; step++) {
			assert_int_equal(feed(stops, row[i].text, step, &shown), row[i].found);
			assert_string_equal(strbuf_str(&shown), row[i].want);
		}
	strbuf_release(&shown);
}

static void
without_stops_nothing_is_held_back(void **state)
{
	(void)state;
	Strbuf shown = { 0 };

	assert_false(feed(NULL, "text", 2, &shown));
	assert_string_equal(strbuf_str(&shown), "text");
	strbuf_release(&shown);
}

static void
an_empty_stop_is_rejected(void **state)
{
	(void)state;
	static const char *const stops[] = { "a", "", NULL };
	llmc_error err;
	Stop *s;

	assert_int_equal(stop_open(stops, NULL, &s, &err), LLMC_E_INPUT);
	assert_string_equal(err.text, "stop string 1 is empty");
}

int
main(void)
{
	const struct CMUnitTest test[] = {
		cmocka_unit_test(output_is_cut_at_the_first_stop),
		cmocka_unit_test(stops_do_not_apply_between_marks),
		cmocka_unit_test(without_stops_nothing_is_held_back),
		cmocka_unit_test(an_empty_stop_is_rejected),
	};
	return cmocka_run_group_tests(test, NULL, NULL);
}
