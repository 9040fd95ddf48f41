/* Prefetches of the next op's weights to L2: slices stay within their tensor, and windows of two
 * kernels do not overlap. tests/e2e/test_cuda.py runs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/cuda/cuda_session.h"

/* Slices of every shape lie in the tensor and do not overlap. Their sum is at most the window, and
 * at least the window less a line per slice and per end. */
static void
slices_stay_within_the_tensor(void **state)
{
	static const int64_t size[] = { 128, 1000, 4096, 33554432, 117440512, 12345678 };
	static const int sms[] = { 1, 4, 132, 148 };
	static char memory[1]; /* only its address is used */

	(void)state;
	for (size_t i = 0; i < sizeof size / sizeof *size; i++)
		for (size_t m = 0; m < sizeof sms / sizeof *sms; m++)
			for (int runs = 1; runs <= 2; runs++)
				for (int64_t bytes = 128; bytes <= size[i]; bytes *= 3) {
					const PlanPrefetch f = { .runs = runs, .bytes = bytes };
					const llmc_prefetch p = cuda_prefetch_slices(
					    memory, size[i], &f, 1 << 24, 1 << 24, sms[m]);
					const int64_t sum = (int64_t)p.n * p.bytes;
					assert_true(p.n <= sms[m] * runs && p.bytes % 128 == 0);
					if (p.n == 0)
						continue;
					assert_true(p.at == (const unsigned char *)memory);
					assert_true(p.bytes <= p.stride && p.stride % 128 == 0);
					assert_true((p.n - 1) * p.stride + p.bytes <= size[i]);
					assert_true(sum <= bytes &&
					            sum > bytes - 256 - 256 * (int64_t)p.n);
				}
}

/* Two kernels share the bytes that a reader finds in L2: the second continues each slice where the
 * first one ended. A GPU with a quarter of the plan's L2 gets a quarter of both. */
static void
windows_continue_each_other(void **state)
{
	static char memory[1];
	const PlanPrefetch a = { .runs = 1, .first = 0, .bytes = 6553600 },
	                   b = { .runs = 1, .first = 6553600, .bytes = 6553600 };

	(void)state;
	for (int64_t allowed = 13107200; allowed >= 13107200 / 4; allowed /= 4) {
		const llmc_prefetch p = cuda_prefetch_slices(memory, 33554432, &a, 13107200,
		                                             allowed, 132),
		                    q = cuda_prefetch_slices(memory, 33554432, &b, 13107200,
		                                             allowed, 132);
		assert_true(p.n == 132 && q.n == 132 && p.stride == q.stride);
		assert_true(q.at == p.at + p.bytes);
		assert_true((int64_t)p.n * (p.bytes + q.bytes) <= allowed);
		assert_true((int64_t)p.n * (p.bytes + q.bytes) > allowed - 3 * 132 * 128);
	}
}

/* A prefetch of 4.5 MB from 128 experts of 1 MB covers parts of five matrices. Each CTA has an
 * equal part of each. */
static void
parts_of_experts_stay_within_a_matrix(void **state)
{
	static char memory[1];
	const PlanPrefetch f = { .runs = 1, .experts = 128, .bytes = 4718592 };
	const llmc_prefetch p =
	    cuda_prefetch_slices(memory, (int64_t)128 << 20, &f, 1 << 24, 1 << 24, 132);

	(void)state;
	assert_true(p.n == 5 && p.stride == 1 << 20);
	assert_true(132 * (int64_t)p.bytes <= p.stride && p.bytes == 4718592 / 5 / 132 / 128 * 128);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slices_stay_within_the_tensor),
		cmocka_unit_test(windows_continue_each_other),
		cmocka_unit_test(parts_of_experts_stay_within_a_matrix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
