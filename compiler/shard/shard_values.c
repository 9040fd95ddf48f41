/* States of values while a graph is sharded: full, split or partial. */
#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

void
shard_make_full(ShardPass *p, int v)
{
	Graph *g = p->g;
	ValueState *s = &p->state[v];

	if (s->kind == STATE_SPLIT)
		BUG(g->diag, g->val[v].loc, "shard: %s is split, but all of it is read",
		    g->val[v].name);
	if (s->kind == STATE_FULL)
		return;
	Op *op = graph_op(g, OP_all_reduce, s->layer, s->loc);
	op_args(op, OP_ARGS(all_reduce, .x = s->raw, .b = s->bias[0], .b2 = s->bias[1], .r = s->r,
	                    .y = v));
	op_set_int(g, op, "width", g->spec->hidden);
	op_set_num(g, op, "scale", s->r >= 0 ? s->scale : 1);
	s->kind = STATE_FULL;
}

void
shard_make_partial(ShardPass *p, Op *op, int arg, int bias)
{
	Graph *g = p->g;
	int v = op->arg[arg],
	    raw =
	        graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.part", g->val[v].name), op->loc);

	p->state[v] = (ValueState){ .kind = STATE_PARTIAL,
		                    .raw = raw,
		                    .bias = { bias, -1 },
		                    .r = -1,
		                    .scale = 1,
		                    .layer = op->layer,
		                    .loc = op->loc };
	op->arg[arg] = raw;
}

void
shard_append(ShardPass *p, const Op *op)
{
	Op *o = graph_op(p->g, op->kind, op->layer, op->loc);

	*o = *op;
}

bool
shard_is_split(const ShardPass *p, int v)
{
	return v >= 0 && p->state[v].kind == STATE_SPLIT;
}

void
shard_mark_split(ShardPass *p, int v, ShareKind by)
{
	p->state[v] = (ValueState){ .kind = STATE_SPLIT, .by = by };
}

void
shard_make_inputs_full(ShardPass *p, const Op *op)
{
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0 && p->g->val[op->arg[k]].kind == VAL_ACT)
			shard_make_full(p, op->arg[k]);
}

void
shard_like_input(ShardPass *p, Op *op, const char *key)
{
	int n_in = op_info[op->kind].n_in;
	ShareKind by = p->state[op->arg[0]].by;

	op_change_int(op, key, shard_own(p, by, op_int(op, key)));
	if (p->g->val[op->arg[n_in]].kind == VAL_ACT)
		shard_mark_split(p, op->arg[n_in], by);
	shard_append(p, op);
}
