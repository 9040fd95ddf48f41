/* The fp32 interpreter: every op of ops/ops.def, naive, one function each. It defines what ops
 * mean: kernels are compared with it, `--device ref` runs it, and a step without a tuned kernel
 * runs on it. Fused ops too. */
#ifndef LLMC_REF_H
#define LLMC_REF_H

#include "plan/plan.h"
#include "templates/common/llmc_step.h"

/* One argument of a call. Weights may be in any layout: they are read through plan_tensor_row. */
typedef struct RefArg {
	PlanRefKind kind; /* REF_NONE: an absent optional */
	void *data; /* buffer or rope: f32 (ids i32); pool: first page of the layer; tensor: see
	               tensor */
	const PlanTensor *tensor; /* REF_TENSOR */
	const PlanPool *pool;     /* REF_POOL */
	const PlanBuffer *buffer; /* REF_BUFFER: its extent says whether the rows are n_tok or
	                             n_out; NULL: n_tok */
} RefArg;

typedef struct RefCall {
	const PlanStep *step; /* op and attributes */
	const llmc_step *s;
	const RefArg *arg; /* by ARG(op, name) */
	float *scratch;    /* ref_scratch_floats() floats, the caller's */
	int n_peer; /* ops between ranks: ranks, and the first argument of each (stage_in: what the
	               stage before leaves); 0: this rank alone */
	const float *const *peer;
} RefCall;

typedef void ref_fn(const RefCall *c);
ref_fn *ref_find(OpKind op);
/* Scratch that a step needs for at most n_tok rows and kv_len positions; -1: overflow */
int64_t ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len);
/* Gate and up of one element, of the step's act and limit */
double ref_glu_one(const PlanStep *step, double g, double u);
#endif
