/* The fp32 interpreter: every op of compiler/ops.def, naive, one function each. It defines what ops mean: kernels are
 * compared with it, `--device ref` runs it, and a step without a tuned kernel runs on it. Fused ops too. */
#ifndef LLMC_REF_H
#define LLMC_REF_H

#include "runtime/plan/plan.h"
#include "templates/common/llmc_step.h"

/* One argument of a call. Weights may be in any layout: they are read through layout_row. */
typedef struct RefArg {
	PlanRefKind kind;           /* REF_NONE: an absent optional */
	void       *data;           /* buffer or rope: f32 (ids i32); pool: first page of the layer; tensor: see tensor */
	const PlanTensor *tensor;   /* REF_TENSOR */
	const PlanPool   *pool;     /* REF_POOL */
	const PlanBuffer *buffer;   /* REF_BUFFER: its extent says whether the rows are n_tok or n_out; NULL: n_tok */
} RefArg;

typedef struct RefCall {
	const PlanStep  *step;      /* op and attributes */
	const llmc_step *s;
	const RefArg    *arg;       /* as in ops.def: inputs, then outputs */
	float           *scratch;   /* ref_scratch_floats() floats, the caller's */
} RefCall;

typedef void ref_fn(const RefCall *c);
ref_fn *ref_find(const char *op);                 /* NULL: no such op */
/* Scratch that a step needs for at most n_tok rows and kv_len positions; -1: overflow */
int64_t ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len);
/* Attributes and argument count are those of ops.def, values in range, tensor shapes agree, buffers are wide enough for
 * their rows: part of checking a plan. Indices of the arguments must have been checked before. */
llmc_status ref_check_step(const Plan *p, const PlanStep *step, llmc_error *err);

#endif
