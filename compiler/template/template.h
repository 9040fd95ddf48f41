/* Templates: kernels as source with a typed head (templates/README.md). This module parses the head
 * and evaluates its names; it contains no op names. */
#ifndef LLMC_COMPILER_TEMPLATE_TEMPLATE_H
#define LLMC_COMPILER_TEMPLATE_TEMPLATE_H

#include "compiler/graph.h"
#include "plan/target.h"

enum { PHASE_DECODE, PHASE_MIXED, PHASES };
extern const char *const phase_name[PHASES];

typedef struct Template Template;

enum { MAX_PRODUCTS = 4 };

/* A template expanded for one op: source text and the kernel's row of the plan. Also the matmul
 * functions that kernels call, one file per weight type: a row without arguments. */
typedef struct Kernel {
	const char *key;  /* 16 hex digits of a hash of the text and its headers */
	const char *text; /* expanded, without the comment at the top */
	int n_header;
	const char *const *header; /* "common/llmc_step.h", ... below templates/ */
	PlanKernel row;
	bool prefetch, prefetch_experts; /* prefetches the next weights; experts that it selected */
	/* the text ends with the entry of the function <symbol>_body, which a persistent step
	 * calls */
	bool has_body;
	/* type of 8-bit activations in steps with more rows than the small-M GEMM: "i8", "f8";
	 * NULL: activations of 16 bits or more. GPUs */
	const char *activations;
	int n_scratch;                         /* number of last arguments that are scratch */
	Dtype scratch_dtype[PLAN_MAX_SCRATCH]; /* DT_NONE: bytes */
	int n_product;
	const struct Kernel *product[MAX_PRODUCTS]; /* kernels whose functions it calls */
} Kernel;

/* Load the templates of a target: all embedded <op>[_decode|_mixed].c.in below templates/cpu, or
 * for a GPU <op>[_decode|_mixed][_sm90|_sm80].cu.in below templates/cuda. Errors in heads go to
 * d. */
Templates *templates_load(const char *target, const Spec *s, Diag *d, Arena *perm);
/* For tests: no embedded files; templates are added one at a time. */
Templates *templates_none(const char *target, const Spec *s, Diag *d, Arena *perm);
bool templates_add(Templates *ts, OpKind op, const char *path, const char *text);
/* Return the template for op in this phase; NULL: the reference runs it. */
const Template *templates_find(const Templates *ts, const Graph *g, const Op *op, int phase);
/* whether all phases have a template */
bool templates_accept(const Templates *ts, const Graph *g, const Op *op);
/* Set the layout of a tensor that kernels stream. A member of a stack (an expert, a head) may start
 * inside a group of rows. */
void templates_layout(const Templates *ts, PlanTensor *t);
/* Expand a template for op. NULL with an error in d: a missing or mistyped name, or arguments that
 * differ from the op's. */
const Kernel *template_expand(const Templates *ts, const Template *t, const Graph *g, const Op *op,
                              int phase);
/* Make the kernel of a persistent decode step from the bodies of n kernels with has_body, in the
 * order of the switch. NULL, with the reason in *why: it cannot be made. */
const Kernel *template_persistent(const Templates *ts, const Kernel *const *body, int n,
                                  const char **why);
const Target *templates_target(const Templates *ts);
/* Return whether mixed templates also run decode steps. */
bool templates_one_phase(const Templates *ts, const Graph *g);

#endif
