/* Tensor parallelism: reduce the graph of the whole model to one rank.
 *
 * Each value is full (every rank has all of it), split (a rank has the columns of its share) or
 * partial (a rank has one term of a sum over all ranks). Rows of q, k, v, gate and up are sharded,
 * so their outputs are split. Columns of o and down are sharded the same way, so their outputs are
 * partial. Ops between them work per column or per head.
 *
 * A partial value records what must still be added to the sum: biases, which only one rank may add,
 * and the residual stream. An all_reduce is inserted before the first op that cannot work on a
 * partial value, which is as late as possible. A layer has two of them, or one if both blocks add
 * to the same stream.
 *
 * The graphs of all ranks have the same ops. They differ in the rows of weights that they read, and
 * in sizes if a model cannot be split evenly. */
#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

/* Rule of an op: its SHARD column in ops.def */
typedef struct ShardRule {
	void (*fn)(ShardPass *p, Op *op); /* function, for OWN */
	const char *along, *split;        /* attribute that ALONG or SPLIT changes */
} ShardRule;
#define SHARD_WHOLE { .fn = shard_whole }
#define SHARD_ALONG(a) { .along = #a }
#define SHARD_SPLIT(a) { .split = #a }
#define SHARD_OWN(op) { .fn = shard_##op }

static const ShardRule shard_rule[OP_COUNT] = {
#define OP(name, flags, args, attrs, shard, scratch, meaning) [OP_##name] = SHARD_##shard,
#include "ops/ops.def"
};

static void
shard_op(ShardPass *p, Op *op)
{
	const ShardRule *r = &shard_rule[op->kind];

	if (r->fn)
		r->fn(p, op);
	else if (r->along || (r->split && shard_is_split(p, op->arg[0])))
		shard_like_input(p, op, r->along ? r->along : r->split);
	else
		shard_whole(p, op);
}

/* Gather the logits. Each rank has the logits of its rows of the vocabulary. */
static void
gather_logits(Graph *g)
{
	const Op *last = &g->op[g->n_op - 1];
	int part = last->arg[op_info[last->kind].n_in];
	const char *name = g->val[part].name;
	Loc loc = last->loc;

	g->val[part].name = arena_printf(g->arena, "%s.part", name);
	int all = graph_value(g, VAL_ACT, name, loc);
	Op *join = graph_op(g, OP_all_gather, -1, loc);
	op_args(join, OP_ARGS(all_gather, .x = part, .y = all));
	op_set_int(g, join, "width", g->spec->vocab_size);
	op_set_int(g, join, "unit", g->shard->unit[SHARE_VOCAB]);
}

/* Reduce the graph to one rank.
 *
 *   requires  the unfused graph, after shape inference
 *   keeps     names of full values
 *   effect    the graph of one rank; logits are gathered at its end */
bool
graph_shard(Graph *g, int rank)
{
	int errors = g->diag->n_error;
	size_t n_op = g->n_op;
	Op *op = g->op;
	int made = op[n_op - 1].arg[op_info[op[n_op - 1].kind].n_in];

	g->rank = rank;
	g->ranks = g->spec->tp;
	g->shard = shard_deal(g);
	if (g->diag->n_error > errors)
		return false;
	ShardPass p = { .g = g,
		        .s = g->shard,
		        .state = NEW(g->arena, ValueState, g->n_val + 1),
		        .rank = rank };
	g->op = NULL;
	g->n_op = g->cap_op = 0;
	for (size_t i = 0; i < n_op; i++)
		shard_op(&p, &op[i]);
	if (g->diag->n_error > errors)
		return false;
	for (int i = 0; i < g->n_pool; i++)
		shard_pool(&p, &g->pool[i]);
	if (p.state[made].kind != STATE_SPLIT)
		/* the input of the next stage, or the rows before the head */
		shard_make_full(&p, made);
	else
		gather_logits(g);
	graph_infer(g);
	graph_sweep(g);
	return g->diag->n_error == errors;
}
