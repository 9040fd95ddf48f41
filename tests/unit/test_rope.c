/* RoPE tables against transformers 5.23: inv_freq and attention factor of its ROPE_INIT_FUNCTIONS,
 * printed once. */
#include <math.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/state/rope_tables.h"

static const double shorts[] = { 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7 };
static const double longs[] = { 2.0, 3.5, 5.0, 6.5, 8.0, 9.5, 11.0, 12.5 };

typedef struct Case {
	const char *what;
	PlanRope r;
	int64_t length;
	double factor;
	double freq[16];
} Case;

#define ROPE(...) { .theta = 10000, .truncate = true, __VA_ARGS__ }

static const Case cases[] = {
	{ "none",
	  ROPE(.scaling = "none", .dims = 16),
	  100,
	  1,
	  { 1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
	    0.000316227786 } },
	{ "linear",
	  ROPE(.scaling = "linear", .dims = 16, .factor = 4),
	  100,
	  1,
	  { 0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
	    0.000250000012, 7.90569466e-05 } },
	{ "dynamic, short",
	  ROPE(.scaling = "dynamic", .dims = 16, .factor = 2, .original_positions = 64),
	  40,
	  1,
	  { 1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
	    0.000316227786 } },
	{ "dynamic, long",
	  ROPE(.scaling = "dynamic", .dims = 16, .factor = 2, .original_positions = 64),
	  200,
	  1,
	  { 1, 0.249528468, 0.0622644536, 0.0155367535, 0.00387686281, 0.000967387517,
	    0.000241390735, 6.02338623e-05 } },
	{ "llama3",
	  { .scaling = "llama3",
	    .theta = 500000,
	    .dims = 32,
	    .factor = 8,
	    .low_freq_factor = 1,
	    .high_freq_factor = 4,
	    .original_positions = 8192 },
	  100,
	  1,
	  { 1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
	    0.00321144611, 0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05,
	    6.64786967e-06, 2.92749974e-06, 1.28917316e-06, 5.6770881e-07 } },
	{ "yarn",
	  ROPE(.scaling = "yarn", .dims = 32, .factor = 4, .original_positions = 2048,
	       .beta_fast = 32, .beta_slow = 1),
	  100,
	  1.13862944,
	  { 1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0502090417, 0.02484647,
	    0.0120668961, 0.00571428565, 0.0026108704, 0.00112938497, 0.000444569858,
	    0.000250000012, 0.000140585325, 7.90569466e-05, 4.44569851e-05 } },
	{ "yarn, not rounded",
	  { .scaling = "yarn",
	    .theta = 10000,
	    .dims = 32,
	    .factor = 4,
	    .original_positions = 2048,
	    .beta_fast = 32,
	    .beta_slow = 1 },
	  100,
	  1.13862944,
	  { 1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0494530834, 0.0238701962,
	    0.0112079531, 0.00505697168, 0.00214322237, 0.000811290462, 0.000444569858,
	    0.000250000012, 0.000140585325, 7.90569466e-05, 4.44569851e-05 } },
	{ "yarn, mscale",
	  ROPE(.scaling = "yarn", .dims = 16, .factor = 40, .original_positions = 4096,
	       .beta_fast = 32, .beta_slow = 1, .mscale = 0.707, .mscale_all_dim = 1),
	  100,
	  0.921042355,
	  { 1, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176,
	    2.49999994e-05, 7.90569447e-06 } },
	{ "longrope, short",
	  ROPE(.scaling = "longrope", .dims = 16, .factor = 32, .original_positions = 4096,
	       .n_short = 8, .n_long = 8, .short_factor = shorts, .long_factor = longs),
	  4096,
	  1.19023807,
	  { 1, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532,
	    0.000624999986, 0.000186016332 } },
	{ "longrope, long",
	  ROPE(.scaling = "longrope", .dims = 16, .factor = 32, .original_positions = 4096,
	       .n_short = 8, .n_long = 8, .short_factor = shorts, .long_factor = longs),
	  4097,
	  1.19023807,
	  { 0.5, 0.0903507844, 0.0199999996, 0.0048650424, 0.00124999997, 0.000332871365,
	    9.09090886e-05, 2.52982227e-05 } },
	{ "linear, the other way round",
	  ROPE(.scaling = "linear", .dims = 16, .factor = -1),
	  100,
	  1,
	  { -1, -0.316227764, -0.100000001, -0.0316227786, -0.00999999978, -0.00316227786,
	    -0.00100000005, -0.000316227786 } },
};

static void
frequencies_equal_transformers(void **state)
{
	const float *const none[2] = { NULL, NULL };
	double freq[16], factor;

	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		rope_frequencies(&cases[c].r, cases[c].length, none, freq, &factor);
		if (fabs(factor - cases[c].factor) > 1e-6)
			fail_msg("%s: factor %.9g, expected %.9g", cases[c].what, factor,
			         cases[c].factor);
		for (int i = 0; i < cases[c].r.dims / 2; i++)
			if (fabs(freq[i] / cases[c].freq[i] - 1) > 1e-6)
				fail_msg("%s: frequency %d is %.9g, expected %.9g", cases[c].what,
				         i, freq[i], cases[c].freq[i]);
	}
}

/* An explicit factor overrides the formula. */
static void
a_given_attention_factor_wins(void **state)
{
	const float *const none[2] = { NULL, NULL };
	double freq[16], factor;

	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		PlanRope r = cases[c].r;
		if (strcmp(r.scaling, "yarn") != 0 && strcmp(r.scaling, "longrope") != 0)
			continue;
		r.attention_factor = 0.75;
		rope_frequencies(&r, cases[c].length, none, freq, &factor);
		assert_true(factor == 0.75);
	}
}

/* Factors stored in a checkpoint divide the frequencies; if there are two lists, the length selects
 * one. */
static void
factor_tensors_divide(void **state)
{
	const PlanRope r = ROPE(.scaling = "none", .dims = 4, .original_positions = 10);
	const float one[] = { 2, 4 }, other[] = { 1, 8 };
	const float *const always[2] = { one, NULL }, *const by_length[2] = { one, other };
	double freq[2], factor;

	(void)state;
	rope_frequencies(&r, 5, always, freq, &factor);
	assert_true(freq[0] == 0.5 && fabs(freq[1] - 0.0025) < 1e-9);
	rope_frequencies(&r, 10, by_length, freq, &factor);
	assert_true(freq[0] == 1 && fabs(freq[1] - 0.00125) < 1e-9);
	rope_frequencies(&r, 11, by_length, freq, &factor);
	assert_true(freq[0] == 0.5 && fabs(freq[1] - 0.0025) < 1e-9);
}

/* cos, then sin, times the factor, at the precision that position 131071 needs */
static void
a_row_is_cosines_then_sines(void **state)
{
	const PlanRope r = ROPE(.scaling = "none", .dims = 4);
	const double freq[] = { 1, 0.01 };
	float row[4];

	(void)state;
	rope_row(&r, freq, 2, (int32_t[3]){ 131071 }, row);
	assert_true(fabs(row[0] - 2 * cos(131071.0)) < 1e-6 &&
	            fabs(row[1] - 2 * cos(1310.71)) < 1e-6);
	assert_true(fabs(row[2] - 2 * sin(131071.0)) < 1e-6 &&
	            fabs(row[3] - 2 * sin(1310.71)) < 1e-6);
	rope_row(&r, freq, 1, (int32_t[3]){ 0 }, row);
	assert_true(row[0] == 1 && row[1] == 1 && row[2] == 0 && row[3] == 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frequencies_equal_transformers),
		cmocka_unit_test(a_given_attention_factor_wins),
		cmocka_unit_test(factor_tensors_divide),
		cmocka_unit_test(a_row_is_cosines_then_sines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
