/* Checks invariants of the graph after every pass. A violation is a bug of llmc, so the message
 * names the pass and the op. */
#include "compiler/graph.h"

#include <inttypes.h>
#include <string.h>

static void
verify_arg(const Graph *g, const Op *op, int arg, const ArgShape *want, const char *after)
{
	const char *name = op_info[op->kind].arg[arg].name;
	int v = op->arg[arg];

	if (v < 0) {
		if (!role_may_lack(op_info[op->kind].arg[arg].role))
			BUG(g->diag, op->loc, "after %s: %s (layer %d) lacks its argument %s",
			    after, op_info[op->kind].name, op->layer, name);
		return;
	}
	if ((size_t)v >= g->n_val)
		BUG(g->diag, op->loc, "after %s: %s: argument %s is not a value", after,
		    op_info[op->kind].name, name);
	const Value *val = &g->val[v];
	bool ok = val->kind == want->kind;
	int64_t rows = val->dim[0], cols = val->dim[1];
	if (val->kind == VAL_WEIGHT)
		ok = ok && rows == want->rows && cols == want->cols;
	else if (val->kind == VAL_ACT)
		ok = ok && cols == want->cols && val->dtype == want->dtype;
	else if (val->kind == VAL_ROPE)
		ok = ok && cols == want->cols;
	if (!ok)
		BUG(g->diag, op->loc,
		    "after %s: %s (layer %d): argument %s is %s [%" PRId64 ", %" PRId64
		    "], expected [%" PRId64 ", %" PRId64 "]",
		    after, op_info[op->kind].name, op->layer, name, val->name, rows, cols,
		    want->rows, want->cols);
}

/* Report a bug if
 *
 *   - an input is read before it is defined, or a value is defined twice, or by another op than
 * `def`
 *   - attributes or arguments do not fit the op's row, or shapes do not follow from the attributes
 *   - the number of rows changes in an op other than gather_rows and lm_head
 *   - an op that does not rotate has a rope argument */
void
graph_verify(const Graph *g, const char *after)
{
	unsigned char *made = NEW(g->arena, unsigned char, g->n_val + 1);

	for (size_t i = 0; i < g->n_op; i++) {
		const Op *op = &g->op[i];
		const OpInfo *info = &op_info[op->kind];
		ArgShape shape[OP_MAX_ARGS];
		PlanSym rows = SYM_one;

		if (op->kind == OP_nop)
			continue;
		graph_shapes(g, op, shape);
		for (int k = 0; k < info->n_arg; k++)
			verify_arg(g, op, k, &shape[k], after);
		for (int k = 0; k < info->n_in; k++) {
			const Value *v = op->arg[k] < 0 ? NULL : &g->val[op->arg[k]];
			if (!v || (v->kind != VAL_ACT && v->kind != VAL_ORDER))
				continue;
			if (!made[op->arg[k]])
				BUG(g->diag, op->loc,
				    "after %s: %s (layer %d) reads %s before it is defined", after,
				    info->name, op->layer, v->name);
			if (v->kind != VAL_ACT)
				continue;
			if (rows != SYM_one && v->rows != rows)
				BUG(g->diag, op->loc, "after %s: %s mixes rows of two kinds", after,
				    info->name);
			rows = v->rows;
		}
		for (int k = info->n_in; k < info->n_arg; k++) {
			const Value *v = op->arg[k] < 0 ? NULL : &g->val[op->arg[k]];
			if (!v)
				continue;
			if (made[op->arg[k]] || v->def != (int)i)
				BUG(g->diag, op->loc, "after %s: %s is defined twice or not by %s",
				    after, v->name, info->name);
			made[op->arg[k]] = 1;
			if (v->kind == VAL_ACT && v->rows != (info->flags & OPF_GATHER ? SYM_n_out
			                                      : rows == SYM_one        ? SYM_n_tok
			                                                               : rows))
				BUG(g->diag, op->loc, "after %s: %s has rows of the wrong kind",
				    after, v->name);
		}
	}
}
