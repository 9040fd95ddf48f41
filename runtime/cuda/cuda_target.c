/* Targets and images that a device runs.
 *
 * A plan of sm_90a or later runs on devices of exactly that architecture. Plans of older targets
 * use only instructions that every later device has, and are compiled for the device at hand. So
 * 8.7 runs the plan of sm_86. An architecture without a row in the table of targets runs the plan
 * of sm_89.
 *
 * Images are more restricted, by the vendor's rule: one for sm_86 runs on 8.6 and on later devices
 * of the same major version (8.9), one for sm_90a on 9.0 only, and Tegra devices share images with
 * no other. */
#include <stdio.h>

#include "runtime/cuda/cuda.h"
#include "plan/target.h"

static bool
is_tegra(int cc)
{
	/* Tegra devices: Orin is 8.7; Thor is 11.0, and was 10.1 before CUDA 13 */
	return cc == 87 || cc == 101 || cc == 110;
}

const char *
cuda_best_target(int cc)
{
	const char *best = NULL;

	for (int i = 0; target_at(i); i++)
		if (cuda_runs(cc, target_at(i)->name))
			best = target_at(i)->name;
	return best;
}

bool
cuda_runs(int cc, const char *target)
{
	const Target *t = target_find(target);

	return t && t->kind == TARGET_CUDA && (t->exact ? t->arch == cc : t->arch <= cc);
}

void
cuda_arch(int cc, const char *target, char out[16])
{
	const Target *t = target_find(target);

	if (t->exact || cc == 0)
		snprintf(out, 16, "%s", t->isa);
	else
		snprintf(out, 16, "sm_%d", cc);
}

bool
cuda_arch_fits(int arch, int cc)
{
	return arch == cc ||
	       (arch / 10 == cc / 10 && arch < cc && !is_tegra(arch) && !is_tegra(cc));
}

bool
cuda_image_fits(const char *target, int cc)
{
	const Target *t = target_find(target);

	return t && t->kind == TARGET_CUDA &&
	       (t->exact ? t->arch == cc : cuda_arch_fits(t->arch, cc));
}

llmc_status
cuda_target(int number, char out[32], llmc_error *err)
{
	CudaDevice d;

	TRY(cuda_device_open(&d, number, false, err));
	const char *best = cuda_best_target(d.cc);
	llmc_status status = LLMC_OK;
	if (best)
		snprintf(out, 32, "%s", best);
	else
		status = error_set(err, LLMC_E_MISSING,
		                   "GPU %d (%s) is of architecture sm_%d, llmc needs sm_75 "
		                   "(Turing, 2018) or newer; run with --device cpu",
		                   number, d.name, d.cc);
	cuda_device_close(&d);
	return status;
}
