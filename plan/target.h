/* Targets of plans: "ref", "cpu-v3", "cuda-sm_90a". The compiler and the runtime share one table.
 * Differences between targets outside of templates are columns of it. */
#ifndef LLMC_PLAN_TARGET_H
#define LLMC_PLAN_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/dtype.h"

typedef enum TargetKind { TARGET_REF, TARGET_CPU, TARGET_CUDA } TargetKind;

/* CPU features beyond plain x86-64 and Armv8.0 (runtime/cpu/isa.c), each including OS support for
 * its registers */
enum {
	CPU_AVX2 = 1,   /* with FMA, F16C and BMI2: x86-64-v3 */
	CPU_AVX512 = 2, /* F, BW, DQ, VL and CD (x86-64-v4), and VNNI dot products */
	CPU_VNNI = 4,   /* AVX-VNNI: VNNI dot products with 256 bits */
	CPU_AMX = 8,    /* int8 and bf16 tiles */
	CPU_NEON = 16,  /* NEON with dot products and fp16: Armv8.2 */
	CPU_I8MM = 32,  /* int8 matrix multiply and bf16: Armv8.6 */
	CPU_X86 = CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_AMX,
	CPU_ARM = CPU_NEON | CPU_I8MM,
};

typedef struct Target {
	const char *name; /* spelling in the plan */
	TargetKind kind;
	const char *isa; /* "v3", "sm_90a": TARGET in templates, --arch on the command line */
	/* layout of matrices that kernels stream (formats/layout.h), if it supports their type and
	 * columns */
	const char *layout;
	int arch; /* GPUs: 10 x compute capability, 75 .. 121; else 0 */
	/* GPUs: ARCH in the heads of templates: the architecture whose kernels and shared memory
	 * size this one uses (103 and 110 use those of 100, 121 uses those of 120) */
	int kernels;
	bool exact;         /* runs on this GPU architecture only, not on later ones */
	int needs;          /* CPUs: CPU_* flags */
	const char *cflags; /* CPUs: C compiler options */
} Target;

const Target *target_find(const char *name); /* NULL: unknown */
/* Returns target i, or NULL after the last; each kind is sorted from least to most demanding. */
const Target *target_at(int i);
bool target_is_cuda(const char *name);
/* Returns the name of the folder below aot/ that holds the built kernels of a target. */
const char *target_built_name(const char *name);
/* Returns whether the target needs another processor architecture than this build's. */
bool target_is_foreign(const Target *t);
/* Returns the layout of a matrix of this type and shape on a target: "row" if the target's own
 * layout does not fit */
const char *target_layout(const Target *t, Dtype d, int64_t rows, int64_t cols);
#endif
