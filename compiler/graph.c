/* The graph as a data structure: ops are appended, changed in place by passes, and swept once at the end of fusion. */
#include "compiler/graph.h"

#include <string.h>

const OpInfo op_info[OP_COUNT] = {
	[OP_nop] = { "nop", 0, 0, 0, "", "", "" },
#define OP(name, in, out, flags, args, attrs, meaning) [OP_##name] = { #name, in, out, flags, args, attrs, meaning },
#include "compiler/ops.def"
#undef OP
};

#define OP(name, in, out, flags, args, attrs, meaning) \
	_Static_assert((in) <= OP_MAX_IN && (out) <= OP_MAX_OUT && (in) + (out) <= PLAN_MAX_ARGS, #name);
#include "compiler/ops.def"
#undef OP

Graph *
graph_new(const Spec *s, Diag *d, Arena *perm)
{
	Graph *g = NEW(perm, Graph, 1);

	g->arena = perm;
	g->diag = d;
	g->spec = s;
	return g;
}

int
graph_value(Graph *g, ValueKind kind, const char *name, Loc loc)
{
	g->val = arena_grow(g->arena, g->val, &g->cap_val, g->n_val + 1, sizeof *g->val);
	g->val[g->n_val] = (Value){
		.name = name, .kind = kind, .dtype = DT_F32, .rows = SYM_n_tok, .def = -1, .tensor = -1, .loc = loc,
	};
	return (int)g->n_val++;
}

Op *
graph_op(Graph *g, OpKind kind, int layer, Loc loc)
{
	g->op = arena_grow(g->arena, g->op, &g->cap_op, g->n_op + 1, sizeof *g->op);
	Op *op = &g->op[g->n_op++];
	*op = (Op){ .kind = kind, .layer = layer, .loc = loc };
	for (int i = 0; i < OP_MAX_IN; i++)
		op->in[i] = -1;
	for (int i = 0; i < OP_MAX_OUT; i++)
		op->out[i] = -1;
	return op;
}

/* --- attributes: a row's text is "rows:i cols:i norm:s" --- */

static const char *
word_at(const char *text, int n)
{
	for (; n > 0; n--) {
		text = strchr(text, ' ');
		if (!text)
			return NULL;
		text++;
	}
	return *text ? text : NULL;
}

static Attr *
attr_next(Graph *g, Op *op, const char *key, PlanAttrKind kind)
{
	const char *want = word_at(op_info[op->kind].attrs, op->n_attr);
	size_t      n = strlen(key);

	if (!want || strncmp(want, key, n) != 0 || want[n] != ':' || want[n + 1] != "ifsv"[kind])
		BUG(g->diag, op->loc, "%s: attribute %s is not number %d of its row", op_info[op->kind].name, key, op->n_attr);
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
op_set_num(Graph *g, Op *op, const char *key, double v)
{
	attr_next(g, op, key, ATTR_NUM)->f = v;
}

void
op_set_word(Graph *g, Op *op, const char *key, const char *v)
{
	attr_next(g, op, key, ATTR_WORD)->s = v;
}

const Attr *
op_attr(const Op *op, const char *name)
{
	for (int i = 0; i < op->n_attr; i++)
		if (strcmp(op->attr[i].key, name) == 0)
			return &op->attr[i];
	return NULL;
}

int64_t
op_int(const Op *op, const char *name)
{
	const Attr *a = op_attr(op, name);
	return a ? a->i : 0;
}

double
op_num(const Op *op, const char *name)
{
	const Attr *a = op_attr(op, name);
	return a ? a->f : 0;
}

const char *
op_word(const Op *op, const char *name)
{
	const Attr *a = op_attr(op, name);
	return a && a->s ? a->s : "";
}

/* --- arguments --- */

int
op_n_arg(OpKind kind)
{
	return op_info[kind].n_in + op_info[kind].n_out;
}

int
op_arg_name(OpKind kind, int arg, char name[16], bool *opt)
{
	const char *at = word_at(op_info[kind].args, arg);
	int         n = 0;

	for (; at && at[n] && at[n] != ' ' && at[n] != '?' && n < 15; n++)
		name[n] = at[n];
	name[n] = 0;
	if (opt)
		*opt = at && at[n] == '?';
	return n;
}

int
op_arg_value(const Op *op, int arg)
{
	int n_in = op_info[op->kind].n_in;
	return arg < n_in ? op->in[arg] : op->out[arg - n_in];
}

void
op_makes(Op *op, const char *value)
{
	for (int i = 0; i < op->n_makes; i++)
		if (strcmp(op->makes[i], value) == 0)
			return;
	if (op->n_makes < (int)(sizeof op->makes / sizeof *op->makes))
		op->makes[op->n_makes++] = value;
}

int
graph_uses(const Graph *g, int val)
{
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++)
		for (int k = 0; k < op_info[g->op[i].kind].n_in; k++)
			n += g->op[i].in[k] == val;
	return n;
}

void
graph_sweep(Graph *g)
{
	int   *val_to = NEW(g->arena, int, g->n_val + 1), *tensor_to = NEW(g->arena, int, g->n_tensor + 1);
	size_t n_op = 0, n_val = 0, n_tensor = 0;

	memset(val_to, -1, g->n_val * sizeof *val_to);
	memset(tensor_to, -1, g->n_tensor * sizeof *tensor_to);
	for (size_t i = 0; i < g->n_op; i++) {
		if (g->op[i].kind == OP_nop)
			continue;
		g->op[n_op] = g->op[i];
		for (int k = 0; k < op_n_arg(g->op[n_op].kind); k++) {
			int v = op_arg_value(&g->op[n_op], k);
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
	for (size_t i = 0; i < n_op; i++) {
		Op *op = &g->op[i];
		for (int k = 0; k < op_info[op->kind].n_in; k++)
			op->in[k] = op->in[k] < 0 ? -1 : val_to[op->in[k]];
		for (int k = 0; k < op_info[op->kind].n_out; k++)
			if (op->out[k] >= 0) {
				op->out[k] = val_to[op->out[k]];
				g->val[op->out[k]].def = (int)i;
			}
	}
}
