/* Templates: kernels as source text with a typed head (templates/README.md). This module parses the
 * head and evaluates its names. It contains no names of ops. */
#ifndef LLMC_COMPILER_TEMPLATE_TEMPLATE_H
#define LLMC_COMPILER_TEMPLATE_TEMPLATE_H

#include "compiler/graph.h"
#include "plan/target.h"

enum { PHASE_DECODE, PHASE_MIXED, PHASES };
extern const char *const phase_name[PHASES];

typedef struct Template Template;

enum { MAX_PRODUCTS = 4 };

/* A template expanded for one op: source text and the kernel's row of the plan. Files of matmul
 * functions, which other kernels call, are also of this type; there is one per weight type, and its
 * row has no arguments. */
typedef struct Kernel {
	const char *key;  /* hash of the text and its headers, as 16 hexadecimal digits */
	const char *text; /* expanded text, without the comment at the top */
	int n_header;
	const char *const *header; /* paths below templates/, for example "common/llmc_step.h" */
	PlanKernel row;
	/* prefetch: prefetches weights of following steps; prefetch_experts: also matrices of the
	 * experts that it selects */
	bool prefetch, prefetch_experts;
	/* the text ends with the entry of the function <symbol>_body, which a persistent step calls
	 * instead */
	bool has_body;
	/* on GPUs: type of 8-bit activations ("i8", "f8") in steps with more rows than the small-M
	 * GEMM handles; NULL: activations have at least 16 bits */
	const char *activations;
	int n_scratch;                         /* the last n_scratch arguments are scratch */
	Dtype scratch_dtype[PLAN_MAX_SCRATCH]; /* DT_NONE: the scratch is bytes */
	int n_product;
	/* files of matmul functions that the kernel calls */
	const struct Kernel *product[MAX_PRODUCTS];
} Kernel;

/* Load the templates of a target. These are all embedded files <op>[_decode|_mixed].c.in below
 * templates/cpu or, for a GPU, <op>[_decode|_mixed][_sm90|_sm80].cu.in below templates/cuda. Errors
 * in heads go to d. */
Templates *templates_load(const char *target, const Spec *s, Diag *d, Arena *perm);
/* For tests: no embedded files are loaded; the test adds templates one at a time. */
Templates *templates_none(const char *target, const Spec *s, Diag *d, Arena *perm);
bool templates_add(Templates *ts, OpKind op, const char *path, const char *text);
/* Return the template for op in this phase. NULL: the op runs on the reference */
const Template *templates_find(const Templates *ts, const Graph *g, const Op *op, int phase);
/* whether all phases have a template */
bool templates_accept(const Templates *ts, const Graph *g, const Op *op);
/* Set the layout of a tensor that kernels stream. A member of a stack (an expert, a head) may start
 * inside a group of rows. */
void templates_layout(const Templates *ts, PlanTensor *t);
/* Expand a template for op. Returns NULL with an error in d if a name is missing or has another
 * type, or if arguments differ from the op's. */
const Kernel *template_expand(const Templates *ts, const Template *t, const Graph *g, const Op *op,
                              int phase);
/* Make the kernel of a persistent decode step from the bodies of n kernels with has_body, in the
 * order of the switch. Returns NULL, with the reason in *why, if this is not possible. */
const Kernel *template_persistent(const Templates *ts, const Kernel *const *body, int n,
                                  const char **why);
const Target *templates_target(const Templates *ts);
/* Return whether decode steps use the mixed templates too. */
bool templates_one_phase(const Templates *ts, const Graph *g);

#endif
