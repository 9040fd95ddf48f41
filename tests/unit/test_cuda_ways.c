/* Which way messages between GPUs go: the fastest of those that there are, by size, measured once for a machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
/* after these */
#include <cmocka.h>

#include "runtime/cuda/ways.h"
#include "tests/unit/tempdir.h"

enum { ONE = 1 << WAY_ONE_SHOT, TWO = 1 << WAY_TWO_SHOT, NCCL = 1 << WAY_NCCL };

/* A machine: a latency, and bytes a microsecond */
static const struct { double us, bytes_us; } machine[N_WAY] = { { 4, 10000 }, { 6, 30000 }, { 20, 60000 } };

typedef struct Runs { int n[N_WAY]; } Runs;

static llmc_status
run(void *user, Way way, int64_t bytes, int times, double *seconds, llmc_error *err)
{
	(void)err;
	((Runs *)user)->n[way]++;
	*seconds = times * (machine[way].us + (double)bytes / machine[way].bytes_us) * 1e-6;
	return LLMC_OK;
}

static void
the_fastest_goes(void **state)
{
	Ways w = { 0 };
	Runs r = { 0 };

	(void)state;
	assert_int_equal(ways_choose(&w, "all", ONE | TWO | NCCL, 1 << 21, run, &r, NULL), LLMC_OK);
	assert_int_equal(ways_best(&w, ONE | TWO | NCCL, 1), WAY_ONE_SHOT);
	assert_int_equal(ways_best(&w, ONE | TWO | NCCL, 1 << 14), WAY_ONE_SHOT);
	assert_int_equal(ways_best(&w, ONE | TWO | NCCL, 1 << 17), WAY_TWO_SHOT);
	assert_int_equal(ways_best(&w, ONE | TWO | NCCL, 1 << 21), WAY_NCCL);
	assert_int_equal(ways_best(&w, ONE | TWO | NCCL, 1 << 30), WAY_NCCL); /* as the largest that was measured */
	assert_int_equal(ways_best(&w, ONE | TWO, 1 << 21), WAY_TWO_SHOT);
	assert_int_equal(ways_best(&w, ONE | NCCL, 1 << 17), WAY_ONE_SHOT);
	assert_int_equal(ways_best(&w, NCCL, 1), WAY_NCCL);

	/* kept; another machine, and another set, is measured by itself */
	Ways again = { 0 };
	Runs none = { 0 };
	assert_int_equal(ways_choose(&again, "all", ONE | TWO | NCCL, 1 << 21, run, &none, NULL), LLMC_OK);
	assert_int_equal(none.n[WAY_ONE_SHOT] + none.n[WAY_TWO_SHOT] + none.n[WAY_NCCL], 0);
	assert_memory_equal(&again, &w, sizeof w);
	assert_int_equal(ways_choose(&again, "other", TWO | NCCL, 1 << 14, run, &none, NULL), LLMC_OK);
	assert_true(none.n[WAY_ONE_SHOT] == 0 && none.n[WAY_TWO_SHOT] > 0 && none.n[WAY_NCCL] == none.n[WAY_TWO_SHOT]);
}

/* Nothing was measured: the first that there is. */
static void
one_way_needs_no_figures(void **state)
{
	const Ways w = { 0 };

	(void)state;
	assert_int_equal(ways_best(&w, ONE, 1 << 20), WAY_ONE_SHOT);
	assert_int_equal(ways_best(&w, TWO, 1 << 20), WAY_TWO_SHOT);
	assert_int_equal(ways_best(&w, NCCL, 1 << 20), WAY_NCCL);
	assert_int_equal(ways_best(&w, TWO | NCCL, 1 << 20), WAY_TWO_SHOT);
}

static void
words_are_known(void **state)
{
	(void)state;
	unsetenv("LLMC_PEER_SUMS");
	assert_int_equal(ways_of_peers(), ONE | TWO);
	setenv("LLMC_PEER_SUMS", "two-shot", 1);
	assert_int_equal(ways_of_peers(), TWO);
	setenv("LLMC_PEER_SUMS", "three-shot", 1);
	assert_int_equal(ways_of_peers(), 0);
	unsetenv("LLMC_PEER_SUMS");
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_fastest_goes), cmocka_unit_test(one_way_needs_no_figures), cmocka_unit_test(words_are_known) };
	Tempdir dir;

	if (tempdir_open(&dir))
		return 1;
	setenv("LLMC_CACHE", dir.path, 1);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return rc;
}
