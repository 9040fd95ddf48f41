/* Sharding of matmuls, experts and sums */
#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

void
shard_matmul(ShardPass *p, Op *op)
{
	enum { X = ARG(matmul, x), W = ARG(matmul, w), B = ARG(matmul, b), Y = ARG(matmul, y) };
	bool head = shard_is_head(p, op, op->arg[W]);
	ShareKind by = SHARE_VOCAB;
	RowCut cut = head ? CUT_ROWS
	             : p->g->val[op->arg[W]].kind == VAL_WEIGHT
	                 ? shard_cut_of(p, op->arg[W], op->layer, &by)
	                 : CUT_NONE;

	if (cut != CUT_COLS)
		shard_make_full(p, op->arg[X]);
	if (!head && shard_role(&p->g->tensor[p->g->val[op->arg[W]].tensor], "lin_qkv")) {
		shard_lin_qkv(p, op);
		return;
	}
	if (cut == CUT_ROWS) {
		shard_cut_arg(p, op, W, CUT_ROWS, by, 1, head ? "head" : NULL);
		shard_cut_arg(p, op, B, CUT_ROWS, by, 1, NULL);
		op_change_int(op, "rows", shard_own(p, by, op_int(op, "rows")));
		shard_mark_split(p, op->arg[Y], by);
	} else if (cut == CUT_COLS) {
		int bias = op->arg[B];
		if (!shard_is_split(p, op->arg[X]))
			BUG(p->g->diag, op->loc,
			    "shard: a matrix is split by columns, but its input is full");
		shard_cut_arg(p, op, W, CUT_COLS, by, 1, NULL);
		op_change_int(op, "cols", shard_own(p, by, op_int(op, "cols")));
		op->arg[B] = -1;
		shard_make_partial(p, op, Y, bias);
	}
	shard_append(p, op);
}

/* y = scale * x + r. If x is full, it is added after r has been summed. If both are partial, they
 * are added before the sum, and their pending additions are combined. */
void
shard_add(ShardPass *p, Op *op)
{
	enum { X = ARG(add, x), R = ARG(add, r), Y = ARG(add, y) };
	ValueState *x = &p->state[op->arg[X]], *r = &p->state[op->arg[R]];
	double scale = op_num(op, "scale");
	bool both = x->kind == STATE_PARTIAL && r->kind == STATE_PARTIAL && scale == 1 &&
	            x->bias[1] < 0 && r->bias[1] < 0 && (x->r < 0 || r->r < 0);

	if (x->kind == STATE_FULL && r->kind == STATE_PARTIAL && r->r < 0) {
		ValueState sum = *r;
		sum.r = op->arg[X];
		sum.scale = scale;
		sum.layer = op->layer;
		sum.loc = op->loc;
		p->state[op->arg[Y]] = sum;
		return;
	}
	if (!both) {
		shard_make_inputs_full(p, op);
		shard_append(p, op);
		return;
	}
	ValueState sum = *x;
	sum.bias[x->bias[0] >= 0] = r->bias[0];
	if (x->r < 0) {
		sum.r = r->r;
		sum.scale = r->scale;
	}
	op->arg[X] = x->raw;
	op->arg[R] = r->raw;
	int y = op->arg[Y];
	shard_make_partial(p, op, Y, -1);
	sum.raw = p->state[y].raw;
	sum.layer = op->layer;
	sum.loc = op->loc;
	p->state[y] = sum;
	shard_append(p, op);
}

/* Map the global expert ids to those of this rank. */
static int
local_expert_ids(ShardPass *p, const Op *op, int id)
{
	Graph *g = p->g;
	const int64_t n = g->spec->moe.n_experts;

	for (size_t i = g->n_op; i-- > 0 && g->op[i].layer == op->layer;)
		if (g->op[i].kind == OP_local_experts && g->op[i].arg[ARG(local_experts, id)] == id)
			return g->op[i].arg[ARG(local_experts, own)];
	int mine =
	    graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.own", g->val[id].name), op->loc);
	Op *o = graph_op(g, OP_local_experts, op->layer, op->loc);
	op_args(o, OP_ARGS(local_experts, .id = id, .own = mine));
	op_set_int(g, o, "n_experts", n);
	op_set_int(g, o, "top_k", op_int(op, "top_k"));
	op_set_int(g, o, "first", p->s->share[SHARE_EXPERT][p->rank].first);
	op_set_int(g, o, "count", p->s->share[SHARE_EXPERT][p->rank].count);
	return mine;
}

void
shard_local_experts(ShardPass *p, Op *op, int ID)
{
	const int64_t n = op_int(op, "n_experts"), mine = p->s->share[SHARE_EXPERT][p->rank].count;

	op->arg[ID] = local_expert_ids(p, op, op->arg[ID]);
	op_change_int(op, "n_experts", mine);
	op_change_int(op, "n_remote_experts", n - mine);
}

/* Shard gate and up of experts: matrices of `n_experts` times `width` rows, in arguments FIRST to
 * LAST, some of which may be absent. */
static void
shard_cut_gate_up(ShardPass *p, Op *op, int FIRST, int LAST, bool whole)
{
	const int n = (int)op_int(op, "n_experts");

	for (int k = FIRST; k <= LAST; k++)
		shard_cut_arg(p, op, k, CUT_ROWS, SHARE_EXPERT, whole ? 1 : n, NULL);
}

/* Shard down of experts. If experts are split, only rank 0 adds their biases, which are weighted by
 * the router. */
static void
shard_cut_down(ShardPass *p, Op *op, int DOWN, int DOWN_B, bool whole)
{
	if (!whole && p->rank > 0)
		op->arg[DOWN_B] = -1;
	shard_cut_arg(p, op, DOWN, whole ? CUT_ROWS : CUT_COLS, SHARE_EXPERT, 1, NULL);
	if (whole)
		shard_cut_arg(p, op, DOWN_B, CUT_ROWS, SHARE_EXPERT, 1, NULL);
	else
		op_change_int(op, "width", shard_own(p, SHARE_EXPERT, op_int(op, "width")));
}

void
shard_moe_ffn(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	shard_make_inputs_full(p, op);
	shard_cut_gate_up(p, op, ARG(moe_ffn, gate), ARG(moe_ffn, up), whole);
	shard_cut_gate_up(p, op, ARG(moe_ffn, gate_b), ARG(moe_ffn, up_b), whole);
	shard_cut_down(p, op, ARG(moe_ffn, down), ARG(moe_ffn, down_b), whole);
	if (whole)
		shard_local_experts(p, op, ARG(moe_ffn, id));
	shard_make_partial(p, op, ARG(moe_ffn, y), -1);
	shard_append(p, op);
}

/* Shard the two ops of a MoE layer with adapters. The value between them stays on this rank and has
 * no other reader. */
void
shard_norm_moe_glu(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	shard_make_inputs_full(p, op);
	shard_cut_gate_up(p, op, ARG(norm_moe_glu, gate), ARG(norm_moe_glu, up_b), whole);
	if (whole)
		shard_local_experts(p, op, ARG(norm_moe_glu, id));
	else
		op_change_int(op, "width", shard_own(p, SHARE_EXPERT, op_int(op, "width")));
	shard_append(p, op);
}

void
shard_moe_down_add(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	shard_make_inputs_full(p, op);
	shard_cut_down(p, op, ARG(moe_down_add, down), ARG(moe_down_add, down_b), whole);
	if (whole)
		shard_local_experts(p, op, ARG(moe_down_add, id));
	shard_make_partial(p, op, ARG(moe_down_add, y), -1);
	shard_append(p, op);
}
