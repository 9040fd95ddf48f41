/* Names of GPUs: those of `llmc plan --gpu`, and those that drivers tell (nvidia-smi's lists) are the same devices; a device that
 * is not in the table is not taken for a relative. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compiler/predict.h"

static void
names(void **state)
{
	static const char *const same[][2] = {
		{ "NVIDIA A100-SXM4-80GB", "a100" }, { "NVIDIA A10", "a10" }, { "NVIDIA B200", "b200" },
		{ "NVIDIA H100 80GB HBM3", "h100" }, { "NVIDIA H200", "h200" }, { "NVIDIA L4", "l4" }, { "NVIDIA L40S", "l40s" },
		{ "NVIDIA GeForce RTX 3090", "rtx3090" }, { "NVIDIA GeForce RTX 4090", "rtx4090" }, { "GeForce RTX 5090", "rtx5090" },
		{ "Tesla T4", "t4" }, { "RTX 4090", "rtx4090" }, { "H100", "h100" },
	};
	static const char *const other[] = {
		"", "NVIDIA", "NVIDIA A100-SXM4-40GB", "NVIDIA A10G", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "NVIDIA L40",
		"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA RTX A4090", "NVIDIA GB10",
		"NVIDIA 4090", "a100a10",
	};

	(void)state;
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		const Gpu *g = gpu_find(same[i][0]);
		assert_non_null(g);
		assert_string_equal(g->name, same[i][1]);
	}
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		assert_null(gpu_find(other[i]));
	for (int i = 0; gpu_at(i); i++)
		assert_ptr_equal(gpu_find(gpu_at(i)->name), gpu_at(i));
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(names) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
