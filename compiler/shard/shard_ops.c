/* Sharding of the ops on heads and columns */
#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

void
shard_mla_query(ShardPass *p, Op *op)
{
	shard_cut_arg(p, op, ARG(mla_query, k_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_make_full(p, op->arg[ARG(mla_query, c)]);
	shard_like_input(p, op, "heads");
}

void
shard_mla_value(ShardPass *p, Op *op)
{
	shard_cut_arg(p, op, ARG(mla_value, v_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_like_input(p, op, "heads");
}

void
shard_mla_attention(ShardPass *p, Op *op)
{
	shard_cut_arg(p, op, ARG(mla_attention, k_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_cut_arg(p, op, ARG(mla_attention, v_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_like_input(p, op, "heads");
}

/* A gate may scale one term of a sum instead of the sum, if nothing else has to be added to the sum
 * before. */
void
shard_gate_mul(ShardPass *p, Op *op)
{
	ValueState *x = &p->state[op->arg[ARG(gate_mul, x)]];

	if (x->kind == STATE_SPLIT) {
		op_change_int(op, "groups", shard_own(p, x->by, op_int(op, "groups")));
		shard_like_input(p, op, "width");
	} else if (x->kind != STATE_PARTIAL || x->bias[0] >= 0 || x->r >= 0) {
		shard_whole(p, op);
	} else {
		shard_make_full(p, op->arg[ARG(gate_mul, s)]);
		op->arg[ARG(gate_mul, x)] = x->raw;
		shard_make_partial(p, op, ARG(gate_mul, y), -1);
		shard_append(p, op);
	}
}

/* Norm per head, or over all heads together */
void
shard_rmsnorm(ShardPass *p, Op *op)
{
	if (!shard_is_split(p, op->arg[0]))
		shard_whole(p, op);
	else if (op_int(op, "groups") % p->s->total[p->state[op->arg[0]].by])
		shard_compute_on_all_ranks(p, op, ARG(rmsnorm, x), ARG(rmsnorm, y),
		                           op_int(op, "groups") * op_int(op, "dim"), "a norm");
	else
		shard_like_input(p, op, "groups");
}

/* Norm per head. A norm of the residual stream reads full values instead. */
void
shard_layernorm(ShardPass *p, Op *op)
{
	const ShareKind by = p->state[op->arg[0]].by;

	if (!shard_is_split(p, op->arg[0])) {
		shard_whole(p, op);
		return;
	}
	if (op_int(op, "per_group")) {
		shard_cut_arg(p, op, ARG(layernorm, w), CUT_ROWS, by, 1, NULL);
		shard_cut_arg(p, op, ARG(layernorm, b), CUT_ROWS, by, 1, NULL);
	}
	shard_like_input(p, op, "groups");
}

/* Split values are supported only without a weight, and only over all elements. */
void
shard_scale_cols(ShardPass *p, Op *op)
{
	if (!shard_is_split(p, op->arg[0])) {
		shard_whole(p, op);
		return;
	}
	if (op_int(op, "count") != op_int(op, "width")) {
		err_at(
		    p->g->diag, op->loc,
		    "parallel.tp = %d: a factor of some columns of a split value runs on one rank",
		    p->g->ranks);
		return;
	}
	op_change_int(op, "count", shard_own(p, p->state[op->arg[0]].by, op_int(op, "count")));
	shard_like_input(p, op, "width");
}

void
shard_gaussian_topk(ShardPass *p, Op *op)
{
	if (shard_is_split(p, op->arg[ARG(gaussian_topk, x)]))
		shard_compute_on_all_ranks(p, op, ARG(gaussian_topk, x), ARG(gaussian_topk, y),
		                           op_int(op, "width"), "mean and deviation of a row");
	else
		shard_whole(p, op);
}

/* A column order moves elements between ranks; a factor does not. */
void
shard_permute_cols(ShardPass *p, Op *op)
{
	enum { X = ARG(permute_cols, x), Y = ARG(permute_cols, y) };

	if (!shard_is_split(p, op->arg[X])) {
		shard_whole(p, op);
	} else if (op->arg[ARG(permute_cols, order)] >= 0) {
		shard_compute_on_all_ranks(p, op, X, Y, op_int(op, "width"),
		                           "the order of a matrix' columns (desc_act)");
	} else {
		shard_cut_arg(p, op, ARG(permute_cols, factor), CUT_ROWS, p->state[op->arg[X]].by,
		              1, NULL);
		shard_like_input(p, op, "width");
	}
}

void
shard_kv_quantize_page(ShardPass *p, Op *op)
{
	op_change_int(op, "kv_heads",
	              shard_own(p, shard_kind_in(p, SHARE_KV, op->layer), op_int(op, "kv_heads")));
	shard_append(p, op);
}

void
shard_attention(ShardPass *p, Op *op)
{
	shard_cut_arg(p, op, ARG(attention, sink), CUT_ROWS, shard_kind_in(p, SHARE_Q, op->layer),
	              1, NULL);
	op_change_int(op, "kv_heads",
	              shard_own(p, shard_kind_in(p, SHARE_KV, op->layer), op_int(op, "kv_heads")));
	if (op_num(op, "alibi") > 0) {
		op_change_int(op, "alibi_first",
		              shard_own_first(p, p->state[op->arg[ARG(attention, q)]].by,
		                              op_int(op, "heads")));
		op_change_int(op, "alibi_heads", op_int(op, "heads"));
	}
	shard_like_input(p, op, "heads");
}
