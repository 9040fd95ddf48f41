/* The graph as a data structure. Ops are appended, changed in place by passes, and compacted at the
 * end of fusion. */
#include "compiler/graph.h"

#include <string.h>

Graph *
graph_new(const Spec *s, Diag *d, Arena *perm)
{
	Graph *g = NEW(perm, Graph, 1);

	g->arena = perm;
	g->diag = d;
	g->spec = s;
	g->ranks = g->stages = g->partitions = 1;
	return g;
}

int
graph_value(Graph *g, ValueKind kind, const char *name, Loc loc)
{
	g->val = arena_grow(g->arena, g->val, &g->cap_val, g->n_val + 1, sizeof *g->val);
	g->val[g->n_val] = (Value){
		.name = name,
		.kind = kind,
		.dtype = DT_F32,
		.held = { DT_F32, DT_F32 },
		.rows = SYM_n_tok,
		.def = -1,
		.tensor = -1,
		.loc = loc,
	};
	return (int)g->n_val++;
}

Op *
graph_op(Graph *g, OpKind kind, int layer, Loc loc)
{
	g->op = arena_grow(g->arena, g->op, &g->cap_op, g->n_op + 1, sizeof *g->op);
	Op *op = &g->op[g->n_op++];
	*op = (Op){ .kind = kind, .layer = layer, .loc = loc };
	memset(op->arg, -1, sizeof op->arg);
	return op;
}

/* --- attributes --- */

static Attr *
attr_next(Graph *g, Op *op, const char *key, AttrKind kind)
{
	AttrKind want;
	const char *next = op_attr(op->kind, op->n_attr, &want);

	if (!next || strcmp(next, key) != 0 || want != kind)
		BUG(g->diag, op->loc, "%s: attribute %s is not number %d of its row",
		    op_info[op->kind].name, key, op->n_attr);
	Attr *a = &op->attr[op->n_attr++];
	*a = (Attr){ .key = key, .kind = kind };
	return a;
}

void
op_set_int(Graph *g, Op *op, const char *key, int64_t v)
{
	attr_next(g, op, key, ATTR_INT)->i = v;
}

void
op_change_int(Op *op, const char *key, int64_t v)
{
	for (int i = 0; i < op->n_attr; i++)
		if (strcmp(op->attr[i].key, key) == 0)
			op->attr[i].i = v;
}

void
op_set_num(Graph *g, Op *op, const char *key, double v)
{
	attr_next(g, op, key, ATTR_NUM)->f = v;
}

void
op_set_word(Graph *g, Op *op, const char *key, const char *v)
{
	attr_next(g, op, key, ATTR_WORD)->s = v;
}

int64_t
op_int(const Op *op, const char *name)
{
	return attr_int(op->attr, op->n_attr, name);
}

double
op_num(const Op *op, const char *name)
{
	return attr_num(op->attr, op->n_attr, name);
}

const char *
op_word(const Op *op, const char *name)
{
	return attr_word(op->attr, op->n_attr, name);
}

/* --- arguments --- */

void
op_args(Op *op, const int *arg)
{
	memcpy(op->arg, arg, (size_t)op_info[op->kind].n_arg * sizeof *arg);
}

llmc_status
op_fits(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS], llmc_error *err)
{
	const OpModel model = { g->spec->vocab_size, g->spec->max_positions, g->rank, g->ranks };
	const char *broken;

	TRY(attr_check(op->kind, op->attr, op->n_attr, err));
	broken = op_shapes(op->kind, op->attr, op->n_attr, &model, out);
	return broken ? error_set(err, LLMC_E_INPUT, "%s: attributes break the rule %s",
	                          op_info[op->kind].name, broken)
	              : LLMC_OK;
}

void
graph_shapes(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS])
{
	llmc_error err;

	if (op_fits(g, op, out, &err) != LLMC_OK)
		BUG(g->diag, op->loc, "layer %d: %s", op->layer, err.text);
}

void
op_makes(Op *op, const char *value)
{
	for (int i = 0; i < op->n_makes; i++)
		if (strcmp(op->makes[i], value) == 0)
			return;
	if (op->n_makes < PLAN_MAX_MAKES)
		op->makes[op->n_makes++] = value;
}

void
graph_sweep(Graph *g)
{
	int *val_to = NEW(g->arena, int, g->n_val + 1),
	    *tensor_to = NEW(g->arena, int, g->n_tensor + 1);
	size_t n_op = 0, n_val = 0, n_tensor = 0;

	memset(val_to, -1, g->n_val * sizeof *val_to);
	memset(tensor_to, -1, g->n_tensor * sizeof *tensor_to);
	for (size_t i = 0; i < g->n_op; i++) {
		if (g->op[i].kind == OP_nop)
			continue;
		g->op[n_op] = g->op[i];
		for (int k = 0; k < op_info[g->op[n_op].kind].n_arg; k++) {
			int v = g->op[n_op].arg[k];
			if (v >= 0)
				val_to[v] = 0;
			if (v >= 0 && g->val[v].kind == VAL_WEIGHT)
				tensor_to[g->val[v].tensor] = 0;
		}
		n_op++;
	}
	g->n_op = n_op;
	for (size_t i = 0; i < g->n_tensor; i++)
		if (tensor_to[i] == 0) {
			g->tensor[n_tensor] = g->tensor[i];
			tensor_to[i] = (int)n_tensor++;
		}
	g->n_tensor = n_tensor;
	for (size_t i = 0; i < g->n_val; i++)
		if (val_to[i] == 0) {
			g->val[n_val] = g->val[i];
			if (g->val[n_val].kind == VAL_WEIGHT)
				g->val[n_val].tensor = tensor_to[g->val[n_val].tensor];
			g->val[n_val].def = -1;
			val_to[i] = (int)n_val++;
		}
	g->n_val = n_val;
	g->rows = g->outputs_rows ? val_to[g->rows] : 0;
	for (size_t i = 0; i < n_op; i++) {
		Op *op = &g->op[i];
		const OpInfo *info = &op_info[op->kind];
		for (int k = 0; k < info->n_arg; k++) {
			op->arg[k] = op->arg[k] < 0 ? -1 : val_to[op->arg[k]];
			if (op->arg[k] >= 0 && k >= info->n_in)
				g->val[op->arg[k]].def = (int)i;
		}
	}
}
