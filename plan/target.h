/* Targets of plans: "ref", "cpu-v3", "cuda-sm_90a". One table, for the compiler and the runtime
 * alike: what differs between targets and is no template is a column here. */
#ifndef LLMC_PLAN_TARGET_H
#define LLMC_PLAN_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/dtype.h"

typedef enum TargetKind { TARGET_REF, TARGET_CPU, TARGET_CUDA } TargetKind;

/* What a processor must have beyond plain x86-64 (runtime/cpu/isa.c), each with the system's
 * consent to its registers */
enum {
	CPU_AVX2 = 1,   /* with FMA, F16C, BMI2: x86-64-v3 */
	CPU_AVX512 = 2, /* F, BW, DQ, VL, CD and VNNI: x86-64-v4 and its dot products */
	CPU_VNNI = 4,   /* AVX-VNNI: the same dot products, 256 bit wide */
	CPU_AMX = 8,    /* tiles of int8 and bf16 */
};

typedef struct Target {
	const char *name; /* as the plan writes it */
	TargetKind kind;
	const char *isa;    /* "v3", "sm_90a": TARGET of templates, --arch of the command line */
	const char *layout; /* of matrices that kernels stream (formats/layout.h), where it takes
	                       their type and width */
	int arch;           /* GPUs: compute capability x 10, 75 .. 120; else 0 */
	bool exact;         /* for this GPU architecture and no later one */
	int needs;          /* processors: CPU_..., or-ed */
	const char *cflags; /* processors: of the C compiler */
} Target;

const Target *target_find(const char *name); /* NULL: unknown */
/* The i-th target, each kind from the least to the most demanding; NULL behind the last. */
const Target *target_at(int i);
bool target_is_cuda(const char *name);
/* The layout of a matrix of this type on a target; "row" where the target's own does not take it */
const char *target_layout(const Target *t, Dtype d, int64_t rows, int64_t cols);
#endif
