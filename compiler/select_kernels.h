/* The kernel of each op and the memory of its values. select_kernels.c fills it first, then
 * plan_memory.c; emit_plan.c and emit_text.c read it. */
#ifndef LLMC_COMPILER_SELECT_KERNELS_H
#define LLMC_COMPILER_SELECT_KERNELS_H

#include "compiler/template/template.h"

typedef struct Step {
	int op;     /* index in the graph */
	int kernel; /* index in Selection.kernel; -1: the reference */
	int n_scratch;
	int scratch[PLAN_MAX_SCRATCH]; /* indices of buffers */
} Step;

/* A buffer that steps share. first, last: per phase, range of steps in which the content is live;
 * -1: the phase does not use the buffer */
typedef struct MemBuf {
	const char *id;
	Dtype dtype;
	PlanExtent extent; /* number of elements */
	int first[PHASES], last[PHASES];
	bool alone; /* the content persists between calls, so no other buffer shares the slot */
	int kernel; /* kernel that uses this scratch; -1: the buffer is a value */
	int same;   /* earlier buffer whose memory this one shares; -1: it has its own */
	int slot;
} MemBuf;

typedef struct Selection {
	int n_kernel;
	const Kernel **kernel; /* distinct kernels */
	int *kernel_op;        /* first op that uses each kernel */
	int n_step;            /* number of ops of the graph, in both phases */
	Step *step[PHASES];
	PlanPersistent persistent;
	int n_buf;
	MemBuf *buf;
	int *buf_of[PHASES]; /* [n_val] buffer of an activation; -1: none */
	int n_slot;
	PlanExtent *slot;
} Selection;

/* Set the layouts of all weights for the target of ts; ts NULL: file order. */
void select_layouts(Graph *g, const Templates *ts);
/* Select kernels. Ops without a template get the reference, with one warning per op name (ts NULL:
 * no warning). NULL if d has errors */
Selection *select_steps(Graph *g, const Templates *ts, Diag *d);

/* select_persistent.c: select the form of decode steps; ts as in select_steps */
void select_persistent(const Graph *g, const Templates *ts, Selection *sel);

/* plan_memory.c */
void mem_buffers(const Graph *g, Selection *sel); /* liveness, in-place */
void mem_assign(Arena *a, MemBuf *buf, int n_buf, PlanExtent **slot, int *n_slot);
/* Return in *used the bytes of all slots with this symbol and divisor, per unit of the symbol, and
 * in *bound the minimum for any assignment of slots. */
void mem_peak(const Selection *sel, PlanSym sym, int64_t div, int64_t *used, int64_t *bound);

/* emit_prefetch.c: set the prefetches of decode steps and their budget. */
void emit_prefetch(const Graph *g, const Selection *sel, Plan *p);

/* emit_plan.c, emit_text.c */
const char *
/* "L3.attn_in" becomes "attn_in", so that equal layers have equal text */
without_layer(const char *id);
Plan *emit_plan(const Graph *g, const Selection *sel, const char *target);
/* Write the plan text. fusions: log of graph_fuse, "" if nothing was fused; n_op_before: number of
 * ops of the unfused graph */
void emit_text(const Graph *g, const Selection *sel, const Plan *p, const char *fusions,
               int n_op_before, Strbuf *out);
/* Write the comment at the top of a kernel's file. */
void emit_comment(const Graph *g, const Selection *sel, const Plan *p, int kernel, Strbuf *out);
/* dump_graph.c: write the steps with their inputs and outputs, one per line */
void dump_order(const Plan *p, Strbuf *out);

#endif
