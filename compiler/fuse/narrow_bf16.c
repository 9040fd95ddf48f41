/* Store values as bf16 on GPUs. GEMMs of mixed steps round their input to the type of their
 * weights. If every reader of a value would round it to bf16, the value is stored as bf16. In both
 * cases it is rounded once, so results are bit-identical, but half as many bytes are written and
 * read (docs/kernels/epilogue.md). The residual stream stays fp32, because blocks add to it. */
#include "compiler/template/template.h"

/* Return whether the op has a matrix. If so, plan_mixed_serves will hold for the op's steps;
 * emit_plan.c checks this. */
static bool
alias_bf16(const Graph *g, const Op *op)
{
	if (op_info[op->kind].flags & OPF_READS_KV)
		return false;
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0 && g->val[op->arg[k]].kind == VAL_WEIGHT &&
		    op_info[op->kind].arg[k].role != ROLE_TABLE &&
		    g->tensor[g->val[op->arg[k]].tensor].cols > 0)
			return true;
	return false;
}

static bool
uses(const Op *op, int v)
{
	for (int k = 0; k < op_info[op->kind].n_arg; k++)
		if (op->arg[k] == v)
			return true;
	return false;
}

/* Return whether the value has a reader, and every op that makes or reads it has a kernel for its
 * new type. Kernels of experts change at other numbers of rows than other kernels
 * (runtime/cuda/cuda_step.c), so either all users of the value are expert ops or none is. */
static bool
all_take(const Graph *g, const Templates *ts, int v)
{
	int n = 0, experts = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		if (!uses(&g->op[i], v))
			continue;
		if (!alias_bf16(g, &g->op[i]) || !templates_find(ts, g, &g->op[i], PHASE_MIXED))
			return false;
		n++;
		experts += (op_info[g->op[i].kind].flags & OPF_EXPERTS) != 0;
	}
	return n > 1 && (experts == 0 || experts == n);
}

/* Store as bf16 the values that mixed kernels write and read as bf16. Decode steps store them as
 * bf16
 * too, if they use mixed kernels.
 *
 *   requires  fusion and layouts are final
 *   keeps     everything except the type of values in memory */
int
graph_narrow(Graph *g, const Templates *ts, Strbuf *log)
{
	int n = 0;

	if (templates_target(ts)->kind != TARGET_CUDA)
		return 0;
	for (int v = 0; v < (int)g->n_val; v++) {
		Value *val = &g->val[v];
		if (val->kind != VAL_ACT || val->dtype != DT_F32 ||
		    (g->outputs_rows && v == g->rows))
			continue;
		val->held[PHASE_MIXED] = DT_BF16;
		if (templates_one_phase(ts, g))
			val->held[PHASE_DECODE] = DT_BF16;
		if (all_take(g, ts, v))
			n++;
		else
			val->held[PHASE_DECODE] = val->held[PHASE_MIXED] = DT_F32;
	}
	if (log)
		strbuf_printf(log, "narrow: %d\n", n);
	return n;
}
