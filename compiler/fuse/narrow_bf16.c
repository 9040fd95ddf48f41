/* Values in 16 bits: on a GPU the products of mixed steps round what they multiply to the type of
 * their weights. Where all that reads a value would round it to bf16, it is held so from the start:
 * rounded once either way, so no bit of a result changes, and 2 bytes are written and read in the
 * place of 4, 4, 2 and 2 (docs/kernels/epilogue.md). The residual stream is added to, so it stays
 * fp32. */
#include "compiler/template/template.h"

/* Will plan_mixed_serves hold of the op's steps? It has a matrix. emit_plan.c asks again. */
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

/* Does every op that makes or reads the value have a kernel for it as it is held, and does somebody
 * read it? Experts' kernels change with other numbers of rows than others'
 * (runtime/cuda/cuda_step.c), so all are of them or none. */
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

/* requires: nothing fuses any more, layouts; keeps: all but the type of values in memory
 * effect:   values that mixed kernels make and take in bf16 are held so, in decode steps too where those run mixed kernels. */
int
graph_narrow(Graph *g, const Templates *ts, Strbuf *log)
{
	int n = 0;

	if (templates_target(ts)->kind != TARGET_CUDA)
		return 0;
	for (int v = 0; v < (int)g->n_val; v++) {
		Value *val = &g->val[v];
		if (val->kind != VAL_ACT || val->dtype != DT_F32 || (g->hands_rows && v == g->rows))
			continue;
		val->held[PHASE_MIXED] = DT_BF16;
		if (templates_one_phase(ts))
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
