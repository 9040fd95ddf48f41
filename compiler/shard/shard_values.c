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

/* Default rule: the op reads full values, and every rank computes all of it. */
void
shard_whole(ShardPass *p, Op *op)
{
	shard_make_inputs_full(p, op);
	shard_append(p, op);
}

/* Return whether the shares are contiguous, which an all_gather requires. Shares of query heads
 * follow the kv heads, and several ranks may hold a kv head. */
static bool
shares_are_contiguous(const ShardPass *p, ShareKind by)
{
	bool so = true;

	for (int r = 0; r < p->g->ranks; r++) {
		ShardShare s;
		op_share(p->s->total[by], p->s->unit[by], p->g->ranks, r, &s.first, &s.count);
		so &= s.first == p->s->share[by][r].first && s.count == p->s->share[by][r].count;
	}
	return so;
}

void
shard_compute_on_all_ranks(ShardPass *p, Op *op, int X, int Y, int64_t width, const char *what)
{
	Graph *g = p->g;
	const int x = op->arg[X], y = op->arg[Y], layer = op->layer;
	const Loc loc = op->loc;
	ShareKind by = p->state[x].by;
	const int64_t total = p->s->total[by];

	if (!shares_are_contiguous(p, by)) {
		err_at(g->diag, loc,
		       "parallel.tp = %d: %s of layer %d is over all heads together, and %d ranks "
		       "share a kv head: at most %d rank%s",
		       g->ranks, what, layer, p->s->copies[by], g->ranks / p->s->copies[by],
		       g->ranks == p->s->copies[by] ? "" : "s");
		return;
	}
	int all = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.all", g->val[x].name), loc);
	int done = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.all", g->val[y].name), loc);
	Op *join = graph_op(g, OP_all_gather, layer, loc);
	op_args(join, OP_ARGS(all_gather, .x = x, .y = all));
	op_set_int(g, join, "width", width);
	op_set_int(g, join, "unit", width / total * p->s->unit[by]);
	op->arg[X] = all;
	op->arg[Y] = done;
	shard_append(p, op);
	Op *slice = graph_op(g, OP_slice, layer, loc);
	op_args(slice, OP_ARGS(slice, .x = done, .y = y));
	op_set_int(g, slice, "width", width);
	op_set_int(g, slice, "first", shard_own_first(p, by, width));
	op_set_int(g, slice, "count", shard_own(p, by, width));
	shard_mark_split(p, y, by);
}
