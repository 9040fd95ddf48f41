/* Shapes and dtypes of all values, from the ops that make them. */
#include "compiler/graph.h"

#include <string.h>

static ArgShape
act(int64_t width)
{
	return (ArgShape){ .kind = VAL_ACT, .dtype = DT_F32, .rows = 1, .cols = width };
}

static ArgShape
mat(int64_t rows, int64_t cols)
{
	return (ArgShape){ .kind = VAL_WEIGHT, .dtype = DT_F32, .rows = rows, .cols = cols };
}

static ArgShape
vec(int64_t n)
{
	return mat(n, 0);
}

static ArgShape
of_kind(ValueKind kind, int64_t width)
{
	return (ArgShape){ .kind = kind, .dtype = DT_F32, .rows = 1, .cols = width };
}

void
op_shapes(const Op *op, ArgShape out[PLAN_MAX_ARGS])
{
	int64_t  rows = op_int(op, "rows"), cols = op_int(op, "cols"), hidden = op_int(op, "hidden"), width = op_int(op, "width");
	int64_t  heads = op_int(op, "heads"), kv_heads = op_int(op, "kv_heads"), dim = op_int(op, "dim"), v_dim = op_int(op, "v_dim");
	int64_t  rank = op_int(op, "kv_rank"), nope = op_int(op, "nope_dim"), rope_dim = op_int(op, "rope_dim");
	int64_t  n_experts = op_int(op, "n_experts"), top_k = op_int(op, "top_k"), groups = op_int(op, "groups");
	ArgShape pool = of_kind(VAL_POOL, 0), order = of_kind(VAL_ORDER, 0), rope = of_kind(VAL_ROPE, op_int(op, "rope_dims"));
	ArgShape ids = act(top_k);

	ids.dtype = DT_I32;
#define SET(...)                                                                                   \
	do {                                                                                       \
		const ArgShape list_[] = { __VA_ARGS__ };                                          \
		_Static_assert(sizeof list_ <= PLAN_MAX_ARGS * sizeof *list_, "arguments");        \
		memcpy(out, list_, sizeof list_);                                                  \
	} while (0)
	switch (op->kind) {
	case OP_nop:
	case OP_COUNT:
		break;
	case OP_embed:
		SET(mat(-1, hidden), act(hidden));
		break;
	case OP_embed_pos:
		SET(act(hidden), mat(-1, hidden), act(hidden));
		break;
	case OP_rmsnorm:
		SET(act(groups * dim), vec(dim), act(groups * dim));
		break;
	case OP_layernorm:
		SET(act(dim), vec(dim), vec(dim), act(dim));
		break;
	case OP_matmul:
		SET(act(cols), mat(rows, cols), vec(rows), act(rows));
		break;
	case OP_slice:
		SET(act(width), act(op_int(op, "count")));
		break;
	case OP_rope:
		SET(act(heads * dim), rope, act(heads * dim));
		break;
	case OP_rope_2d:
		SET(act(heads * dim), rope, rope, act(heads * dim));
		break;
	case OP_kv_append:
		SET(act(kv_heads * dim), act(kv_heads * v_dim), pool, order);
		break;
	case OP_attention:
		SET(act(heads * dim), pool, order, act(heads * v_dim));
		break;
	case OP_mla_append:
		SET(act(rank), act(rope_dim), pool, order);
		break;
	case OP_mla_attention:
		SET(act(heads * (nope + rope_dim)), mat(heads * nope, rank), mat(heads * v_dim, rank), pool, order,
		    act(heads * v_dim));
		break;
	case OP_act:
	case OP_cap:
	case OP_pick:
		SET(act(width), act(width));
		break;
	case OP_glu:
	case OP_add:
		SET(act(width), act(width), act(width));
		break;
	case OP_moe_route:
		SET(act(n_experts), vec(n_experts), ids, act(top_k));
		break;
	case OP_moe_ffn:
		SET(act(hidden), ids, act(top_k), mat(n_experts * width, hidden), mat(n_experts * width, hidden),
		    mat(n_experts * hidden, width), act(hidden));
		break;
	case OP_gate_mul:
		SET(act(width), act(1), act(width));
		break;
	case OP_norm_matmul:
	case OP_norm_act:
		SET(act(cols), vec(cols), vec(cols), mat(rows, cols), vec(rows), act(rows));
		break;
	case OP_matmul_add:
		SET(act(cols), mat(rows, cols), vec(rows), act(rows), act(rows));
		break;
	case OP_norm_qkv:
		SET(act(hidden), vec(hidden), vec(hidden), mat((heads + 2 * kv_heads) * dim, hidden),
		    vec((heads + 2 * kv_heads) * dim), vec(dim), vec(dim), rope, pool, act(heads * dim), order);
		break;
	case OP_norm_glu:
		SET(act(cols), vec(cols), vec(cols), mat(2 * rows, cols), vec(2 * rows), act(rows));
		break;
	case OP_head:
		SET(act(cols), vec(cols), vec(cols), mat(rows, cols), act(rows));
		break;
	}
#undef SET
}

/* Sets dtype, width and rows of each op's outputs.
 *
 * requires: topological order, complete attributes
 * keeps:    everything else
 * effect:   rows are those of the first activation read; `pick` and `head` leave the wanted rows only. */
void
graph_infer(Graph *g)
{
	for (size_t i = 0; i < g->n_op; i++) {
		const Op *op = &g->op[i];
		int       n_in = op_info[op->kind].n_in;
		PlanSym   rows = SYM_n_tok;
		ArgShape  shape[PLAN_MAX_ARGS];

		op_shapes(op, shape);
		for (int k = n_in - 1; k >= 0; k--)
			if (op->in[k] >= 0 && g->val[op->in[k]].kind == VAL_ACT)
				rows = g->val[op->in[k]].rows;
		if (op->kind == OP_pick || op->kind == OP_head)
			rows = SYM_n_out;
		for (int k = 0; k < op_info[op->kind].n_out; k++) {
			if (op->out[k] < 0)
				continue;
			Value *v = &g->val[op->out[k]];
			v->kind = shape[n_in + k].kind;
			v->dtype = shape[n_in + k].dtype;
			v->rows = rows;
			v->dim[0] = 1;
			v->dim[1] = shape[n_in + k].cols;
			v->def = (int)i;
		}
	}
}
