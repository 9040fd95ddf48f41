/* Sharding of delta rules, convolutions and their pools */
#include <string.h>

#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

/* Return the number of key heads of this rank, which are those of its value heads. */
static int64_t
key_heads(const ShardPass *p)
{
	const Spec *s = p->g->spec;
	const int64_t own_heads = p->s->share[SHARE_LIN][p->rank].count;

	if (!s->linear.tiled)
		return own_heads / (s->linear.v_heads / s->linear.k_heads);
	return own_heads % s->linear.k_heads == 0 ? s->linear.k_heads : own_heads;
}

/* Set the ranges of this rank's q, k and v within the rows of all heads, with `times` rows per
 * element. Returns the number of ranges, at most 2 key_heads + 1. With tiled heads (value head h
 * uses key head h % k_heads), the rank's key heads start with that of its first value head, and
 * several ranks may have the same key head. */
static int
lin_rows(const ShardPass *p, int64_t times, ShardShare *range)
{
	const Spec *s = p->g->spec;
	const ShardShare v = p->s->share[SHARE_LIN][p->rank];
	const int64_t k_dim = s->linear.k_dim * times, v_dim = s->linear.v_dim * times,
	              k_heads = s->linear.k_heads, n = key_heads(p);
	const int64_t first =
	    s->linear.tiled ? v.first % k_heads : v.first / (s->linear.v_heads / k_heads);
	int m = 0;

	for (int part = 0; part < 2; part++)
		for (int64_t i = 0; i < n;) {
			int64_t head = (first + i) % k_heads,
			        run = k_heads - head < n - i ? k_heads - head : n - i;
			range[m++] = (ShardShare){ (part * k_heads + head) * k_dim, run * k_dim };
			i += run;
		}
	range[m++] = (ShardShare){ 2 * k_heads * k_dim + v.first * v_dim, v.count * v_dim };
	return m;
}

static int64_t
lin_width(const ShardPass *p)
{
	const Spec *s = p->g->spec;

	return 2 * key_heads(p) * s->linear.k_dim +
	       p->s->share[SHARE_LIN][p->rank].count * s->linear.v_dim;
}

void
shard_lin_qkv(ShardPass *p, Op *op)
{
	const int w = op->arg[ARG(matmul, w)];
	ShardShare *range = NEW(p->g->arena, ShardShare, 2 * key_heads(p) + 1);
	int n = lin_rows(p, 1, range);

	op->arg[ARG(matmul, w)] =
	    shard_cut_rows(p, w, p->g->tensor[p->g->val[w].tensor].id, range, n);
	op_change_int(op, "rows", lin_width(p));
	shard_mark_split(p, op->arg[ARG(matmul, y)], SHARE_LIN);
	shard_append(p, op);
}

/* Shard the channels of a convolution: those of this rank's heads, or an equal share of the
 * channels. */
static void
shard_conv1d_width(ShardPass *p, Op *op)
{
	enum { W = ARG(conv1d, w), B = ARG(conv1d, b) };
	const ShareKind by = p->state[op->arg[ARG(conv1d, x)]].by;

	for (int a = W; a <= B && by == SHARE_LIN; a++) {
		ShardShare *range = NEW(p->g->arena, ShardShare, 2 * key_heads(p) + 1);
		if (op->arg[a] >= 0)
			op->arg[a] = shard_cut_rows(
			    p, op->arg[a], p->g->tensor[p->g->val[op->arg[a]].tensor].id, range,
			    lin_rows(p, a == W ? op_int(op, "taps") : 1, range));
	}
	if (by == SHARE_LIN) {
		op_change_int(op, "width", lin_width(p));
		shard_mark_split(p, op->arg[ARG(conv1d, y)], by);
		shard_append(p, op);
		return;
	}
	shard_cut_arg(p, op, W, CUT_ROWS, by, 1, NULL);
	shard_cut_arg(p, op, B, CUT_ROWS, by, 1, NULL);
	shard_like_input(p, op, "width");
}

void
shard_delta_rule(ShardPass *p, Op *op)
{
	shard_cut_arg(p, op, ARG(delta_rule, rate), CUT_ROWS, SHARE_LIN, 1, NULL);
	shard_cut_arg(p, op, ARG(delta_rule, dt), CUT_ROWS, SHARE_LIN, 1, NULL);
	op_change_int(op, "k_heads", key_heads(p));
	shard_like_input(p, op, "v_heads");
}

void
shard_pool(const ShardPass *p, PlanPool *pool)
{
	if (strcmp(pool->id, "state") == 0)
		pool->kv_heads = shard_own(p, SHARE_LIN, pool->kv_heads);
	else if (strcmp(pool->id, "conv") == 0)
		pool->v_dim = lin_width(p);
	else if (strcmp(pool->id, "short_conv") == 0)
		pool->v_dim = shard_own(p, SHARE_CONV, pool->v_dim);
	/* scans keep their complete recurrent states on every rank */
	else if (!pool->mla && !pool->state)
		pool->kv_heads =
		    shard_own(p,
		              p->s->total[SHARE_KV_WINDOW] && strcmp(pool->id, "kv_window") == 0
		                  ? SHARE_KV_WINDOW
		                  : SHARE_KV,
		              pool->kv_heads);
}

void
shard_conv1d(ShardPass *p, Op *op)
{
	if (shard_is_split(p, op->arg[ARG(conv1d, x)]))
		shard_conv1d_width(p, op);
	else
		shard_whole(p, op);
}

void
shard_norm_gate(ShardPass *p, Op *op)
{
	enum { X = ARG(norm_gate, x), W = ARG(norm_gate, w) };

	if (!shard_is_split(p, op->arg[X])) {
		shard_whole(p, op);
		return;
	}
	if (strcmp(op_word(op, "order"), "gate_first") == 0)
		shard_cut_arg(p, op, W, CUT_ROWS, p->state[op->arg[X]].by, 1, NULL);
	shard_like_input(p, op, "groups");
}
