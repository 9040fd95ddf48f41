/* What runs each op, and where its values lie: filled by select_kernels.c, then plan_memory.c, read
 * by emit_plan.c and emit_text.c. */
#ifndef LLMC_COMPILER_SELECT_KERNELS_H
#define LLMC_COMPILER_SELECT_KERNELS_H

#include "compiler/template/template.h"

typedef struct Step {
	int op;     /* index in the graph */
	int kernel; /* index in Selection.kernel; -1: the reference */
	int n_scratch;
	int scratch[PLAN_MAX_SCRATCH]; /* buffers */
} Step;

/* A piece of memory that steps share. first, last: steps of each phase between which it must keep
 * its content; -1: the phase does not use it. */
typedef struct MemBuf {
	const char *id;
	Dtype dtype;
	PlanExtent extent; /* elements */
	int first[PHASES], last[PHASES];
	bool alone; /* keeps its content between calls: shares its slot with nothing */
	int kernel; /* scratch: whose; -1: a value */
	int same;   /* in place: the buffer whose memory it is; -1: its own */
	int slot;
} MemBuf;

typedef struct Selection {
	int n_kernel;
	const Kernel **kernel; /* without repetition */
	int *kernel_op;        /* first op that uses it */
	int n_step;            /* ops of the graph, in both phases */
	Step *step[PHASES];
	int n_buf;
	MemBuf *buf;
	int *buf_of[PHASES]; /* [n_val]: of an activation; -1: none */
	int n_slot;
	PlanExtent *slot;
} Selection;

/* Layouts of all weights for ts's target; NULL: file order. */
void select_layouts(Graph *g, const Templates *ts);
/* Kernels, or the reference with a warning per op name (ts NULL: without). NULL when d has errors.
 */
Selection *select_steps(Graph *g, const Templates *ts, Diag *d);

/* plan_memory.c */
void mem_buffers(const Graph *g, Selection *sel); /* liveness, in-place */
void mem_assign(Arena *a, MemBuf *buf, int n_buf, PlanExtent **slot, int *n_slot);
/* Bytes of all slots of one kind of extent for one unit of its symbol, and the least that any plan
 * needs. */
void mem_peak(const Selection *sel, PlanSym sym, int64_t div, int64_t *used, int64_t *bound);

/* emit_plan.c, emit_text.c */
const char *
without_layer(const char *id); /* "L3.attn_in" -> "attn_in", so that equal layers read the same */
Plan *emit_plan(const Graph *g, const Selection *sel, const char *target);
/* Text for people. fusions: graph_fuse's log, "" when nothing was fused; n_op_before: ops of the
 * unfused graph. */
void emit_text(const Graph *g, const Selection *sel, const Plan *p, const char *fusions,
               int n_op_before, Strbuf *out);
/* The comment on top of a kernel's file */
void emit_comment(const Graph *g, const Selection *sel, const Plan *p, int kernel, Strbuf *out);
/* dump_graph.c: the steps with what they read and write, one a line */
void dump_order(const Plan *p, Strbuf *out);

#endif
