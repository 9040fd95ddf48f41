/* Sharding of the ops for adapter slots */
#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

/* Shard t = a x of an adapter. If x is full, t is full. If x is split, t is partial, like the value
 * to which the adapter's result is added. */
void
shard_lora_down(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_down, x), A = ARG(lora_down, a) };
	const int64_t cols = op_int(op, "cols");
	const ShareKind by = p->state[op->arg[X]].by;

	if (shard_is_split(p, op->arg[X])) {
		op->arg[A] = shard_cut_factor(
		    p, op->arg[A],
		    (ShardShare){ shard_own_first(p, by, cols), shard_own(p, by, cols) });
		op_change_int(op, "cols", shard_own(p, by, cols));
	} else {
		shard_make_full(p, op->arg[X]);
	}
	shard_append(p, op);
}

void
shard_lora_up(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_up, x), B = ARG(lora_up, b), Y = ARG(lora_up, y) };
	const ValueState x = p->state[op->arg[X]];
	const int64_t rows = op_int(op, "rows");
	const int y = op->arg[Y];

	if (x.kind == STATE_SPLIT) {
		op->arg[B] = shard_cut_factor(
		    p, op->arg[B],
		    (ShardShare){ shard_own_first(p, x.by, rows), shard_own(p, x.by, rows) });
		shard_like_input(p, op, "rows");
		return;
	}
	if (x.kind == STATE_PARTIAL) {
		op->arg[X] = x.raw;
		shard_make_partial(p, op, Y, x.bias[0]);
		const int raw = p->state[y].raw;
		p->state[y] = x;
		p->state[y].raw = raw;
	}
	shard_append(p, op);
}

/* Shard an adapter of experts: keep the experts of this rank, or this rank's rows of gate and up
 * and its columns of down. */
static void
cut_lora_experts(ShardPass *p, Op *op, int ID, int FACTOR, const char *cut)
{
	const bool whole = p->g->spec->experts_whole;

	if (whole || cut)
		op->arg[FACTOR] = shard_cut_expert_factor(p, op->arg[FACTOR], whole);
	if (whole)
		shard_local_experts(p, op, ID);
	else if (cut)
		op_change_int(op, cut, shard_own(p, SHARE_EXPERT, op_int(op, cut)));
}

void
shard_lora_experts_add(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_experts_add, x), Y = ARG(lora_experts_add, y) };
	const int y = op->arg[Y], sum = op->arg[X];
	const ValueState x = p->state[sum];

	shard_make_full(p, op->arg[ARG(lora_experts_add, weight)]);
	op->arg[X] = x.raw;
	cut_lora_experts(p, op, ARG(lora_experts_add, id), ARG(lora_experts_add, b), NULL);
	shard_make_partial(p, op, Y, x.bias[0]);
	const int raw = p->state[y].raw;
	p->state[y] = x;
	p->state[y].raw = raw;
	shard_append(p, op);
}

void
shard_lora_experts_down(ShardPass *p, Op *op)
{
	shard_make_inputs_full(p, op);
	cut_lora_experts(p, op, ARG(lora_experts_down, id), ARG(lora_experts_down, a),
	                 op_int(op, "per_group") ? "cols" : NULL);
	shard_append(p, op);
}

void
shard_lora_experts_up(ShardPass *p, Op *op)
{
	shard_make_inputs_full(p, op);
	cut_lora_experts(p, op, ARG(lora_experts_up, id), ARG(lora_experts_up, b), "rows");
	shard_append(p, op);
}

/* Factors per head are sharded if each head has its own columns. */
static void
cut_lora_heads(ShardPass *p, Op *op, int FACTOR)
{
	const int64_t all = op_int(op, "head_stride") * op_int(op, "heads");

	if (all)
		op->arg[FACTOR] = shard_cut_factor(
		    p, op->arg[FACTOR],
		    (ShardShare){ shard_own_first(p, SHARE_Q, all), shard_own(p, SHARE_Q, all) });
	shard_like_input(p, op, "heads");
}

void
shard_lora_heads_down(ShardPass *p, Op *op)
{
	cut_lora_heads(p, op, ARG(lora_heads_down, a));
}

void
shard_lora_heads_up(ShardPass *p, Op *op)
{
	cut_lora_heads(p, op, ARG(lora_heads_up, b));
}
