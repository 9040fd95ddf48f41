/* Helpers of the passes: counts of readers, replacement of ops, input norms, stacks of weights. */
#include "compiler/fuse/fuse.h"

#include <string.h>

/* --- bookkeeping --- */

static void
count(Fuse *f, const Op *op, int by)
{
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0) {
			f->uses[op->arg[k]] += by;
			f->mat_uses[op->arg[k]] +=
			    op->kind == OP_matmul && k == ARG(matmul, x) ? by : 0;
		}
}

void
fuse_recount(Fuse *f)
{
	Graph *g = f->g;

	if (g->n_val > f->cap_uses) {
		f->cap_uses = 2 * g->n_val;
		f->uses = NEW(g->arena, int, f->cap_uses);
		f->mat_uses = NEW(g->arena, int, f->cap_uses);
	}
	memset(f->uses, 0, f->cap_uses * sizeof *f->uses);
	memset(f->mat_uses, 0, f->cap_uses * sizeof *f->mat_uses);
	for (size_t i = 0; i < g->n_op; i++)
		count(f, &g->op[i], 1);
	if (g->outputs_rows) /* the caller of the step reads the rows */
		f->uses[g->rows]++;
}

/* Return the number of readers of v. A value that was added after the count has none. */
int
fuse_uses(const Fuse *f, int v)
{
	return v >= 0 && (size_t)v < f->cap_uses ? f->uses[v] : 0;
}

void
fuse_drop(Fuse *f, Op *op)
{
	count(f, op, -1);
	op->kind = OP_nop;
}

void
fuse_place(Fuse *f, Op *slot, const Op *fused)
{
	const OpInfo *info = &op_info[fused->kind];

	count(f, slot, -1);
	*slot = *fused;
	for (int k = 0; k < info->n_arg; k++) {
		int v = slot->arg[k];
		if (v >= 0 && k >= info->n_in)
			f->g->val[v].def = (int)(slot - f->g->op);
		else if (v >= 0 && (size_t)v < f->cap_uses)
			f->uses[v]++;
	}
}

Op *
fuse_def(const Fuse *f, int v)
{
	int d = v < 0 ? -1 : f->g->val[v].def;
	return d < 0 ? NULL : &f->g->op[d];
}

/* Return the op that defines v, if it is of this kind and v has only one reader. */
Op *
fuse_only_def(const Fuse *f, int v, OpKind kind)
{
	Op *op = fuse_def(f, v);
	return op && op->kind == kind && fuse_uses(f, v) == 1 ? op : NULL;
}

Op
fuse_op(OpKind kind, const Op *like, const int *arg)
{
	Op op = { .kind = kind, .layer = like->layer, .loc = like->loc };

	op_args(&op, arg);
	return op;
}

const char *
fuse_name(const Fuse *f, int v)
{
	return f->g->val[v].name;
}

bool
fuse_accepted(const Fuse *f, const Op *op)
{
	return !f->ts || templates_accept(f->ts, f->g, op);
}

/* Stack 2 or 3 tensors into one, which is named after the first layer that uses it. -1: their
 * dtypes differ. */
int
fuse_stack(Fuse *f, int layer, const char *role, const int *val, int n)
{
	Graph *g = f->g;
	const char *name = layer < 0 ? role : arena_printf(g->arena, "L%d.%s", layer, role);

	for (size_t i = 0; i < f->n_stack; i++)
		if (f->stack[i].n == n &&
		    memcmp(f->stack[i].val, val, (size_t)n * sizeof *val) == 0)
			return f->stack[i].stacked;
	int v = graph_stack(g, name, val, n);
	if (v < 0)
		return -1;
	if (f->ts)
		templates_layout(f->ts, &g->tensor[g->val[v].tensor]);
	f->stack = arena_grow(g->arena, f->stack, &f->cap_stack, f->n_stack + 1, sizeof *f->stack);
	FuseStack *made = &f->stack[f->n_stack++];
	*made = (FuseStack){ .n = n, .stacked = v };
	memcpy(made->val, val, (size_t)n * sizeof *val);
	return v;
}

/* --- fused input norm --- */

NormInput
norm_input_none(int h)
{
	return (NormInput){ .x = h, .nw = -1, .nb = -1, .kind = "none", .norm = -1 };
}

/* Return the norm that defines h if all readers of h but `others` are matmuls. h can then be
 * removed, and each reader computes the norm itself. */
NormInput
norm_input_of(const Fuse *f, int h, int others)
{
	const Op *o = fuse_def(f, h);

	if (!o || fuse_uses(f, h) != f->mat_uses[h] + others)
		return norm_input_none(h);
	if (o->kind == OP_rmsnorm && op_int(o, "groups") == 1)
		return (NormInput){ o->arg[ARG(rmsnorm, x)], o->arg[ARG(rmsnorm, w)],    -1, "rms",
			            op_num(o, "eps"),        (int)op_int(o, "plus_one"), h };
	if (o->kind == OP_layernorm && op_int(o, "groups") == 1)
		return (NormInput){ o->arg[ARG(layernorm, x)],
			            o->arg[ARG(layernorm, w)],
			            o->arg[ARG(layernorm, b)],
			            "layer",
			            op_num(o, "eps"),
			            (int)op_int(o, "plus_one"),
			            h };
	return norm_input_none(h);
}

void
norm_input_set(Fuse *f, Op *op, const NormInput *n)
{
	op_set_word(f->g, op, "norm", n->kind);
	op_set_num(f->g, op, "eps", n->eps);
	op_set_int(f->g, op, "plus_one", n->plus_one);
	if (n->norm >= 0)
		op_makes(op, fuse_name(f, n->norm));
}

/* --- comparing, stacking --- */

bool
fuse_same_num(const Op *a, const Op *b, const char *key)
{
	return op_num(a, key) == op_num(b, key) && op_int(a, key) == op_int(b, key);
}

/* Return whether a and b have the same value for this argument, or neither has one. */
bool
fuse_same_arg(const Op *a, const Op *b, int arg)
{
	return a->arg[arg] == b->arg[arg];
}

bool
fuse_both_have(const Op *a, const Op *b, int arg)
{
	return (a->arg[arg] < 0) == (b->arg[arg] < 0);
}

/* Stack the weights and biases of matmuls. Returns false if they cannot be stacked. *bias: -1 if
 * they have no biases */
bool
fuse_stack_matmuls(Fuse *f, int layer, const char *role, Op *const *mat, int n, int *weight,
                   int *bias)
{
	int w[3], b[3];

	for (int i = 0; i < n; i++) {
		w[i] = mat[i]->arg[ARG(matmul, w)];
		b[i] = mat[i]->arg[ARG(matmul, b)];
	}
	*weight = fuse_stack(f, layer, role, w, n);
	*bias =
	    b[0] < 0 ? -1 : fuse_stack(f, layer, arena_printf(f->g->arena, "%s.bias", role), b, n);
	return *weight >= 0 && (b[0] < 0 || *bias >= 0);
}
