/* Templates: kernels as source with a typed head (templates/README.md). This file knows the grammar
 * of the head and how names become values; it knows no op by name. */
#ifndef LLMC_COMPILER_TEMPLATE_TEMPLATE_H
#define LLMC_COMPILER_TEMPLATE_TEMPLATE_H

#include "compiler/graph.h"
#include "plan/target.h"

enum { PHASE_DECODE, PHASE_MIXED, PHASES };
extern const char *const phase_name[PHASES];

typedef struct Template Template;

enum { MAX_PRODUCTS = 4 };

/* What a template becomes for one op: the file's text and the kernel's row of the plan. Or what
 * kernels with products call, one for each type of weights: a row without arguments. */
typedef struct Kernel {
	const char *key;  /* 16 hex digits of the hash of text and headers */
	const char *text; /* expanded, without the comment on top */
	int n_header;
	const char *const *header; /* "common/llmc_step.h", ... under templates/ */
	PlanKernel row;
	int n_scratch;                         /* its last arguments */
	Dtype scratch_dtype[PLAN_MAX_SCRATCH]; /* DT_NONE: bytes */
	int n_product;
	const struct Kernel *product[MAX_PRODUCTS]; /* whose functions it calls */
} Kernel;

/* The templates of a target: every embedded templates/cpu/<op>[_decode|_mixed].c.in, or for a GPU
 * templates/cuda/<op>[_decode|_mixed][_sm90|_sm80].cu.in. Errors in heads go to d. */
Templates *templates_load(const char *target, const Spec *s, Diag *d, Arena *perm);
/* Tests: no embedded files, then texts one by one. */
Templates *templates_none(const char *target, const Spec *s, Diag *d, Arena *perm);
bool templates_add(Templates *ts, OpKind op, const char *path, const char *text);
/* The template that runs op in this phase; NULL: none, the reference does. */
const Template *templates_find(const Templates *ts, const Graph *g, const Op *op, int phase);
bool templates_accept(const Templates *ts, const Graph *g, const Op *op); /* in every phase */
/* Layout of a tensor that kernels stream. A piece of a stack (an expert, a head) may begin inside a
 * group of rows. */
void templates_layout(const Templates *ts, PlanTensor *t);
/* NULL with an error in d: a missing or mistyped binding, arguments that are not the op's. */
const Kernel *template_expand(const Templates *ts, const Template *t, const Graph *g, const Op *op,
                              int phase);
const Target *templates_target(const Templates *ts);
bool templates_one_phase(const Templates *ts); /* mixed templates run decode steps too */

#endif
