/* Lines of a batch that were already tried when its next turn begins. Real turns take minutes, so
 * the functions are tested directly. */
#include "serve/batch/batch_runner.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { N = 200 };

/* Lines that have reached the maximum number of tries fail at once: this applies to lines that
 * waited, and to no others. */
static void
only_waiting_lines_count_an_attempt(void **state)
{
	BatchLine line[N];
	Batch b = { .tries = MAX_TRIES };
	Req r = { .status = 503 };
	Server srv = { 0 };

	(void)state;
	r.srv = &srv;
	for (b.waited = 0; b.waited <= N + 1; b.waited++)
		for (size_t apart = 1; apart < 4;
		     apart++) { /* some were answered in earlier turns */
			BatchRun run = { .b = &b, .line = line, .n_line = N };
			int failed = 0;
			memset(line, 0, sizeof line);
			for (size_t i = 0; i < N; i++)
				line[i].done = i % apart != 0;
			restore_tries(&run);
			for (size_t i = 0; i < N; i++) {
				const bool first = !line[i].done && (int)(i / apart) < b.waited;
				assert_int_equal(line[i].tries, first ? MAX_TRIES : 0);
				failed += !line[i].done && !may_wait(&r, &line[i]);
			}
			const int left = (int)((N + apart - 1) / apart);
			assert_int_equal(failed, b.waited < left ? b.waited : left);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(only_waiting_lines_count_an_attempt) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
