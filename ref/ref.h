/* The fp32 interpreter: a naive function for every op of ops/ops.def, fused ops included. It
 * defines what ops compute: kernels are compared with it, `--device ref` runs it, and a step
 * without a tuned kernel falls back to it. */
#ifndef LLMC_REF_H
#define LLMC_REF_H

#include "plan/plan.h"
#include "templates/common/llmc_step.h"

/* One argument of a call. Weights may be in any layout: they are read through plan_tensor_row. */
typedef struct RefArg {
	PlanRefKind kind; /* REF_NONE: optional argument that is absent */
	/* buffer or rope: f32 (ids: i32); pool: first page of the layer; tensor: see tensor */
	void *data;
	const PlanTensor *tensor; /* REF_TENSOR */
	const PlanPool *pool;     /* REF_POOL */
	/* REF_BUFFER: buffer whose extent determines whether there are n_tok or n_out rows; NULL:
	 * n_tok */
	const PlanBuffer *buffer;
} RefArg;

typedef struct RefCall {
	const PlanStep *step; /* op and attributes */
	const llmc_step *s;
	const RefArg *arg; /* indexed by ARG(op, name) */
	float *scratch;    /* ref_scratch_floats() floats, provided by the caller */
	/* for ops between ranks: number of ranks (0: single rank), and the first argument of each
	 * rank (stage_in: output of the previous stage) */
	int n_peer;
	const float *const *peer;
} RefCall;

typedef void ref_fn(const RefCall *c);
ref_fn *ref_find(OpKind op);
/* Scratch floats of a step for at most n_tok rows and kv_len positions; -1: overflow */
int64_t ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len);
/* glu of a gate element and an up element, with the step's act and limit */
double ref_glu_one(const PlanStep *step, double g, double u);
#endif
