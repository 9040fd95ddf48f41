/* Infers shapes and dtypes of all values from the ops that define them. */
#include "compiler/graph.h"

/* Set dtype, width and rows of each op's outputs.
 *
 *   requires  topological order, complete attributes
 *   keeps     everything else
 *   effect    an output has the rows of the first activation that its op reads; after a gather only
 *             rows with an output remain */
void
graph_infer(Graph *g)
{
	for (size_t i = 0; i < g->n_op; i++) {
		const Op *op = &g->op[i];
		const OpInfo *info = &op_info[op->kind];
		PlanSym rows = SYM_n_tok;
		ArgShape shape[OP_MAX_ARGS];

		graph_shapes(g, op, shape);
		for (int k = info->n_in - 1; k >= 0; k--)
			if (op->arg[k] >= 0 && g->val[op->arg[k]].kind == VAL_ACT)
				rows = g->val[op->arg[k]].rows;
		if (info->flags & OPF_GATHER)
			rows = SYM_n_out;
		for (int k = info->n_in; k < info->n_arg; k++) {
			if (op->arg[k] < 0)
				continue;
			Value *v = &g->val[op->arg[k]];
			v->kind = shape[k].kind;
			v->dtype = shape[k].dtype;
			v->rows = rows;
			v->dim[0] = 1;
			v->dim[1] = shape[k].cols;
			v->def = (int)i;
		}
	}
}
