/* Which plan a device runs. Plans of sm_90a, sm_100a and sm_120a use instructions of exactly these devices; the others use
 * what every later device has, and are compiled for the device at hand. So 8.7 runs the plan of sm_86, and 10.3 or 12.1
 * that of sm_89. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cuda.h"

static const char prefix[] = "cuda-sm_";

bool
cuda_is_target(const char *target)
{
	return !strncmp(target, prefix, sizeof prefix - 1);
}

const char *
cuda_best_target(int cc)
{
	switch (cc) {
	case 90:  return "cuda-sm_90a";
	case 100: return "cuda-sm_100a";
	case 120: return "cuda-sm_120a";
	}
	return cc >= 89 ? "cuda-sm_89" : cc >= 86 ? "cuda-sm_86" : cc >= 80 ? "cuda-sm_80" : cc >= 75 ? "cuda-sm_75" : NULL;
}

/* "sm_90a" or "cuda-sm_90a": 90 and exact */
static int
parse(const char *arch, bool *exact)
{
	const char *at = strstr(arch, "sm_");
	char *end = NULL;
	long n = at ? strtol(at + 3, &end, 10) : 0;

	*exact = n > 0 && *end == 'a';
	return n > 0 && n < 1000 && (!*end || (*exact && !end[1])) ? (int)n : 0;
}

bool
cuda_runs(int cc, const char *target)
{
	bool exact;
	int arch = cuda_is_target(target) ? parse(target, &exact) : 0;

	return arch && (exact ? arch == cc : arch <= cc);
}

void
cuda_arch(int cc, const char *target, char out[16])
{
	bool exact;
	int arch = parse(target, &exact);

	if (exact || cc == 0)
		snprintf(out, 16, "sm_%d%s", arch, exact ? "a" : "");
	else
		snprintf(out, 16, "sm_%d", cc);
}

bool
cuda_image_fits(const char *arch, int cc)
{
	bool exact;
	int n = parse(arch, &exact);

	return exact ? n == cc : n > 0 && n / 10 == cc / 10 && n <= cc;
}

llmc_status
cuda_target(int device, char out[32], llmc_error *err)
{
	CudaDevice d;

	TRY(cuda_device_open(&d, device, false, err));
	const char *best = cuda_best_target(d.cc);
	llmc_status status = LLMC_OK;
	if (best)
		snprintf(out, 32, "%s", best);
	else
		status = error_set(err, LLMC_E_MISSING,
		                   "GPU %d (%s) is of architecture sm_%d, llmc needs sm_75 (Turing, 2018) or newer; run with --device cpu",
		                   device, d.name, d.cc);
	cuda_device_close(&d);
	return status;
}
