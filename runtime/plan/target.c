#include "runtime/plan/target.h"

#include <stddef.h>
#include <string.h>

static const Target table[] = {
	{ "ref", TARGET_REF, "ref", 0, false },
	{ "cpu-generic", TARGET_CPU, "generic", 0, false },
	{ "cpu-v3", TARGET_CPU, "v3", 0, false },
	{ "cpu-v4", TARGET_CPU, "v4", 0, false },
	{ "cuda-sm_75", TARGET_CUDA, "sm_75", 75, false },
	{ "cuda-sm_80", TARGET_CUDA, "sm_80", 80, false },
	{ "cuda-sm_86", TARGET_CUDA, "sm_86", 86, false },
	{ "cuda-sm_89", TARGET_CUDA, "sm_89", 89, false },
	{ "cuda-sm_90a", TARGET_CUDA, "sm_90a", 90, true },
	{ "cuda-sm_100a", TARGET_CUDA, "sm_100a", 100, true },
	{ "cuda-sm_120a", TARGET_CUDA, "sm_120a", 120, true },
};
enum { N_TARGET = sizeof table / sizeof *table };

const Target *
target_find(const char *name)
{
	for (int i = 0; i < N_TARGET; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

const Target *
target_at(int i)
{
	return i >= 0 && i < N_TARGET ? &table[i] : NULL;
}

bool
target_is_cuda(const char *name)
{
	const Target *t = target_find(name);

	return t && t->kind == TARGET_CUDA;
}
