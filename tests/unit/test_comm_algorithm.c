/* Algorithm selection for messages between GPUs: the fastest available one per size, measured once
 * per machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
/* must come after these headers */
#include <cmocka.h>

#include "runtime/cuda/comm_algorithm.h"
#include "tests/unit/tempdir.h"

enum { ONE = 1 << ALGO_ONE_SHOT, TWO = 1 << ALGO_TWO_SHOT, NCCL = 1 << ALGO_NCCL };

/* A machine: latency, and bytes per microsecond */
static const struct {
	double us, bytes_us;
} machine[N_ALGO] = { { 4, 10000 }, { 6, 30000 }, { 20, 60000 } };

typedef struct Runs {
	int n[N_ALGO];
} Runs;

static llmc_status
run(void *user, CommAlgorithm algorithm, int64_t bytes, int times, double *seconds, llmc_error *err)
{
	(void)err;
	((Runs *)user)->n[algorithm]++;
	*seconds =
	    times * (machine[algorithm].us + (double)bytes / machine[algorithm].bytes_us) * 1e-6;
	return LLMC_OK;
}

static void
the_fastest_algorithm_is_chosen(void **state)
{
	CommAlgorithmTimes w = { 0 };
	Runs r = { 0 };

	(void)state;
	assert_int_equal(
	    comm_algorithm_tune(&w, "all", ONE | TWO | NCCL, 1 << 21, INFINITY, run, &r, NULL),
	    LLMC_OK);
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO | NCCL, 1), ALGO_ONE_SHOT);
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO | NCCL, 1 << 14), ALGO_ONE_SHOT);
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO | NCCL, 1 << 17), ALGO_TWO_SHOT);
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO | NCCL, 1 << 21), ALGO_NCCL);
	/* larger messages use the algorithm of the largest measured size */
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO | NCCL, 1 << 30), ALGO_NCCL);
	assert_int_equal(comm_algorithm_best(&w, ONE | TWO, 1 << 21), ALGO_TWO_SHOT);
	assert_int_equal(comm_algorithm_best(&w, ONE | NCCL, 1 << 17), ALGO_ONE_SHOT);
	assert_int_equal(comm_algorithm_best(&w, NCCL, 1), ALGO_NCCL);

	/* measurements are cached separately for each machine and each set of algorithms */
	CommAlgorithmTimes again = { 0 };
	Runs none = { 0 };
	assert_int_equal(comm_algorithm_tune(&again, "all", ONE | TWO | NCCL, 1 << 21, INFINITY,
	                                     run, &none, NULL),
	                 LLMC_OK);
	assert_int_equal(none.n[ALGO_ONE_SHOT] + none.n[ALGO_TWO_SHOT] + none.n[ALGO_NCCL], 0);
	assert_memory_equal(&again, &w, sizeof w);
	assert_int_equal(
	    comm_algorithm_tune(&again, "other", TWO | NCCL, 1 << 14, INFINITY, run, &none, NULL),
	    LLMC_OK);
	assert_true(none.n[ALGO_ONE_SHOT] == 0 && none.n[ALGO_TWO_SHOT] > 0 &&
	            none.n[ALGO_NCCL] == none.n[ALGO_TWO_SHOT]);
}

/* Without measurements: the first available algorithm. */
static void
without_measurements_the_first_algorithm_is_used(void **state)
{
	const CommAlgorithmTimes w = { 0 };

	(void)state;
	assert_int_equal(comm_algorithm_best(&w, ONE, 1 << 20), ALGO_ONE_SHOT);
	assert_int_equal(comm_algorithm_best(&w, TWO, 1 << 20), ALGO_TWO_SHOT);
	assert_int_equal(comm_algorithm_best(&w, NCCL, 1 << 20), ALGO_NCCL);
	assert_int_equal(comm_algorithm_best(&w, TWO | NCCL, 1 << 20), ALGO_TWO_SHOT);
}

static void
peer_algorithm_names_are_parsed(void **state)
{
	(void)state;
	unsetenv("LLMC_PEER_SUMS");
	assert_int_equal(peer_algorithms(), ONE | TWO);
	setenv("LLMC_PEER_SUMS", "two-shot", 1);
	assert_int_equal(peer_algorithms(), TWO);
	setenv("LLMC_PEER_SUMS", "three-shot", 1);
	assert_int_equal(peer_algorithms(), 0);
	unsetenv("LLMC_PEER_SUMS");
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_fastest_algorithm_is_chosen),
		                            cmocka_unit_test(
		                                without_measurements_the_first_algorithm_is_used),
		                            cmocka_unit_test(peer_algorithm_names_are_parsed) };
	Tempdir dir;

	if (tempdir_open(&dir))
		return 1;
	setenv("LLMC_CACHE", dir.path, 1);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return rc;
}
