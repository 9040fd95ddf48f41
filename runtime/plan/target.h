/* Targets of plans: "ref", "cpu-v3", "cuda-sm_90a". One table, for the compiler and the runtime alike. */
#ifndef LLMC_RUNTIME_PLAN_TARGET_H
#define LLMC_RUNTIME_PLAN_TARGET_H

#include <stdbool.h>

typedef enum TargetKind { TARGET_REF, TARGET_CPU, TARGET_CUDA } TargetKind;

typedef struct Target {
	const char *name;   /* as the plan writes it */
	TargetKind  kind;
	const char *isa;    /* "v3", "sm_90a": TARGET of templates, --arch of the command line */
	int         arch;   /* compute capability x 10: 75 .. 120; 0: not a GPU */
	bool        exact;  /* for this GPU architecture and no later one */
} Target;

const Target *target_find(const char *name);      /* NULL: unknown */
/* The i-th target, each kind from the least to the most demanding; NULL behind the last. */
const Target *target_at(int i);
bool          target_is_cuda(const char *name);
#endif
