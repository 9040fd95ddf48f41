#include "plan/target.h"

#include <stddef.h>
#include <string.h>

#include "formats/layout.h"

#define AVX2 "-mavx2 -mfma -mf16c -mbmi2"
#define VNNI "-mavxvnni"
#define AMX "-mamx-tile -mamx-int8 -mamx-bf16 -mavx512bf16"
#define NEON "-march=armv8.2-a+dotprod+fp16"
#define I8MM "-march=armv8.6-a+fp16"
#define AVX512 "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512"

/* clang-format off */
static const Target table[] = {
	/* name           kind         isa        layout    arch kernels exact  needs                              cflags */
	{ "ref",          TARGET_REF,  "ref",     "row",    0,   0,      false, 0,                                 "" },
	{ "cpu-generic",  TARGET_CPU,  "generic", "r4",     0,   0,      false, 0,                                 "-O3" },
	{ "cpu-v3",       TARGET_CPU,  "v3",      "r8",     0,   0,      false, CPU_AVX2,                          "-O3 " AVX2 },
	{ "cpu-vnni",     TARGET_CPU,  "vnni",    "r8",     0,   0,      false, CPU_AVX2 | CPU_VNNI,               "-O3 " VNNI " " AVX2 },
	{ "cpu-v4",       TARGET_CPU,  "v4",      "r16",    0,   0,      false, CPU_AVX2 | CPU_AVX512,             "-O3 " AVX512 " " AVX2 },
	{ "cpu-amx",      TARGET_CPU,  "amx",     "r16",    0,   0,      false, CPU_AVX2 | CPU_AVX512 | CPU_AMX,   "-O3 " AMX " " AVX512 " " AVX2 },
	{ "cpu-neon",     TARGET_CPU,  "neon",    "r4",     0,   0,      false, CPU_NEON,                          "-O3 " NEON },
	{ "cpu-i8mm",     TARGET_CPU,  "i8mm",    "r4",     0,   0,      false, CPU_NEON | CPU_I8MM,               "-O3 " I8MM },
	{ "cuda-sm_75",   TARGET_CUDA, "sm_75",   "planes", 75,  75,     false, 0,                                 "" },
	{ "cuda-sm_80",   TARGET_CUDA, "sm_80",   "planes", 80,  80,     false, 0,                                 "" },
	{ "cuda-sm_86",   TARGET_CUDA, "sm_86",   "planes", 86,  86,     false, 0,                                 "" },
	{ "cuda-sm_89",   TARGET_CUDA, "sm_89",   "planes", 89,  89,     false, 0,                                 "" },
	{ "cuda-sm_90a",  TARGET_CUDA, "sm_90a",  "planes", 90,  90,     true,  0,                                 "" },
	{ "cuda-sm_100a", TARGET_CUDA, "sm_100a", "planes", 100, 100,    true,  0,                                 "" },
	{ "cuda-sm_103a", TARGET_CUDA, "sm_103a", "planes", 103, 100,    true,  0,                                 "" },
	{ "cuda-sm_110a", TARGET_CUDA, "sm_110a", "planes", 110, 100,    true,  0,                                 "" },
	{ "cuda-sm_120a", TARGET_CUDA, "sm_120a", "planes", 120, 120,    true,  0,                                 "" },
	{ "cuda-sm_121a", TARGET_CUDA, "sm_121a", "planes", 121, 120,    true,  0,                                 "" },
};
/* clang-format on */
enum { N_TARGET = sizeof table / sizeof *table };

const Target *
target_find(const char *name)
{
	for (int i = 0; i < N_TARGET; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

bool
target_is_foreign(const Target *t)
{
#if defined(__x86_64__)
	return (t->needs & CPU_ARM) != 0;
#elif defined(__aarch64__)
	return (t->needs & CPU_X86) != 0;
#else
	return (t->needs & (CPU_X86 | CPU_ARM)) != 0;
#endif
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

const char *
target_built_name(const char *name)
{
	return target_is_cuda(name) ? target_find(name)->isa : name;
}

const char *
target_layout(const Target *t, Dtype d, int64_t rows, int64_t cols)
{
	return rows >= 1 && cols >= 1 && layout_find(t->layout)->group_bytes(d, cols) >= 0
	           ? t->layout
	           : "row";
}
