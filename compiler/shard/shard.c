/* Tensor parallelism: reduce the graph of the whole model to one rank.
 *
 * Each value is full (every rank has all of it), split (a rank has the columns of its share) or
 * partial (a rank has one term of a sum over all ranks). Rows of q, k, v, gate and up are sharded,
 * so their outputs are split. Columns of o and down are sharded the same way, so their outputs are
 * partial. Ops between them work per column or per head.
 *
 * A partial value records what must still be added to the sum: biases, which only one rank may add,
 * and the residual stream. The first op that cannot work on a partial value gets an all_reduce
 * before it. That is as late as possible: two per layer, or one if both blocks add to the same
 * stream.
 *
 * The graphs of all ranks have the same ops. They differ in sizes, if a model cannot be split
 * evenly, and in the rows that they read. */
#include "compiler/shard/shard.h"

#include <inttypes.h>
#include <string.h>

typedef enum RowCut { CUT_NONE, CUT_ROWS, CUT_COLS } RowCut;

static const struct {
	const char *role;
	RowCut cut;
	ShareKind by;
} rule[] = {
	{ "q", CUT_ROWS, SHARE_Q },           { "q_b", CUT_ROWS, SHARE_Q },
	{ "k", CUT_ROWS, SHARE_KV },          { "v", CUT_ROWS, SHARE_KV },
	{ "k_b", CUT_ROWS, SHARE_Q },         { "v_b", CUT_ROWS, SHARE_Q },
	{ "o", CUT_COLS, SHARE_Q },           { "gate", CUT_ROWS, SHARE_FFN },
	{ "up", CUT_ROWS, SHARE_FFN },        { "down", CUT_COLS, SHARE_FFN },
	{ "e_gate", CUT_ROWS, SHARE_EXPERT }, { "e_up", CUT_ROWS, SHARE_EXPERT },
	{ "e_down", CUT_COLS, SHARE_EXPERT }, { "s_gate", CUT_ROWS, SHARE_SHARED },
	{ "s_up", CUT_ROWS, SHARE_SHARED },   { "s_down", CUT_COLS, SHARE_SHARED },
	{ "q_gate", CUT_ROWS, SHARE_Q },      { "lin_z", CUT_ROWS, SHARE_LIN },
	{ "lin_a", CUT_ROWS, SHARE_LIN },     { "lin_b", CUT_ROWS, SHARE_LIN },
	{ "lin_o", CUT_COLS, SHARE_LIN },     { "conv_b", CUT_ROWS, SHARE_CONV },
	{ "conv_c", CUT_ROWS, SHARE_CONV },   { "conv_x", CUT_ROWS, SHARE_CONV },
	{ "conv_o", CUT_COLS, SHARE_CONV },
};

typedef enum StateKind { STATE_FULL, STATE_SPLIT, STATE_PARTIAL } StateKind;
typedef struct ValueState {
	StateKind kind;
	ShareKind by; /* STATE_SPLIT */
	int raw;      /* STATE_PARTIAL: the value with this rank's term */
	int bias[2];  /* STATE_PARTIAL: added after the sum; -1: none */
	int r;        /* STATE_PARTIAL: stream that is added, scaled; -1: none */
	double scale;
	int layer; /* layer and location for the all_reduce */
	Loc loc;
} ValueState;

typedef struct ShardPass {
	Graph *g;
	const Shard *s;
	ValueState *state; /* [n_val] of the whole graph */
	int rank;
} ShardPass;

/* ---- tensors ---- */

/* Append rows [first, first + count) of a source; evenly spaced runs are merged into one source. */
static void
push_rows(PlanSource *out, int *n, const PlanSource *s, int64_t first, int64_t count)
{
	while (count > 0) {
		int64_t b = first / s->block, at = first % s->block,
		        run = s->block - at < count ? s->block - at : count;
		PlanSource piece = *s, *last = *n ? &out[*n - 1] : NULL;

		piece.first = s->first + b * s->stride + at;
		piece.block = piece.stride = run;
		piece.n_block = 1;
		bool like = last && strcmp(last->name, s->name) == 0 && last->block == run &&
		            (last->n_block == 1 ||
		             piece.first == last->first + last->n_block * last->stride);
		if (like && piece.first > last->first &&
		    (!s->rope_pairs || run % s->rope_pairs == 0)) {
			last->stride =
			    last->n_block == 1 ? piece.first - last->first : last->stride;
			last->n_block++;
		} else {
			out[(*n)++] = piece;
		}
		first += run;
		count -= run;
	}
}

/* Add t, a part of weight v, as a separate tensor. */
static int
add_part(Graph *g, int v, PlanTensor t)
{
	int w = graph_value(g, VAL_WEIGHT, t.id, g->val[v].loc);

	g->tensor =
	    arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1, sizeof *g->tensor);
	g->tensor[g->n_tensor] = t;
	g->val[w].tensor = (int)g->n_tensor++;
	g->val[w].dtype = t.dtype;
	g->val[w].dim[0] = t.rows;
	g->val[w].dim[1] = t.cols;
	return w;
}

/* Cut these row ranges out of weight v, concatenated; rows may occur twice. */
static int
cut_rows(ShardPass *p, int v, const char *id, const ShardShare *range, int n_range)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	int n = 0, most = 0;

	for (int k = 0; k < t.n_src; k++)
		most += (int)t.src[k].n_block * n_range + n_range;
	PlanSource *src = NEW(g->arena, PlanSource, most + 1);
	int64_t count = 0;
	for (int e = 0; e < n_range; e++) {
		int64_t from = range[e].first, end = from + range[e].count, before = 0;
		for (int k = 0; k < t.n_src; k++) {
			int64_t rows = t.src[k].n_block * t.src[k].block;
			int64_t lo = from > before ? from : before,
			        hi = end < before + rows ? end : before + rows;
			if (lo < hi)
				push_rows(src, &n, &t.src[k], lo - before, hi - lo);
			before += rows;
		}
		count += range[e].count;
	}
	t.id = id;
	t.src = src;
	t.n_src = n;
	t.rows = count;
	return add_part(g, v, t);
}

static int
cut_cols(ShardPass *p, int v, const char *id, int64_t first, int64_t count)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, t.n_src);

	for (int k = 0; k < t.n_src; k++) {
		src[k] = t.src[k];
		src[k].col_first = first;
		src[k].col_total = t.cols;
	}
	t.id = id;
	t.src = src;
	t.cols = count;
	return add_part(g, v, t);
}

/* Cut an adapter factor for a matrix that is split: columns of the A factor, or rows of the B
 * factor, in whole blocks or within one. */
static int
cut_factor(ShardPass *p, int v, ShardShare part)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, 1);

	*src = t.src[0];
	if (t.factor == FACTOR_A) {
		src->col_first = part.first;
		src->col_total = src->cols;
		src->cols = part.count;
	} else {
		const int64_t block = src->lora_block, at = part.first % block;
		if (at + part.count > block && (at || part.count % block)) {
			err_at(g->diag, g->val[v].loc,
			       "adapters.slots: rows of %s are in blocks of %" PRId64
			       ", which %d ranks cannot share",
			       src->name, block, g->ranks);
			return v;
		}
		src->lora_first += part.first / block * src->lora_stride + at;
		if (at + part.count <= block)
			src->lora_block = src->lora_stride = part.count;
		src->block = src->stride = part.count;
	}
	t.src = src;
	t.rows = (int64_t)t.slots * t.rank * part.count;
	return add_part(g, v, t);
}

/* Return this rank's part of n elements that are ordered like a share. */
static int64_t
own(const ShardPass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].count;
}

static int64_t
own_first(const ShardPass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].first;
}

/* The same for experts: whole experts, or for each expert some rows of the B factors or some
 * columns of the A factor. */
static int
cut_expert_factor(ShardPass *p, int v, bool whole)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, t.n_src);
	const ShardShare mine = p->s->share[SHARE_EXPERT][p->rank];

	memcpy(src, t.src, (size_t)t.n_src * sizeof *src);
	if (whole) {
		t.rows = t.rows / t.experts * mine.count;
		t.experts = (int)mine.count;
		t.first_expert = (int)mine.first;
	}
	for (int k = 0; k < t.n_src && !whole; k++) {
		const int64_t n = t.factor == FACTOR_A ? src[k].cols : src[k].block,
		              first = own_first(p, SHARE_EXPERT, n),
		              count = own(p, SHARE_EXPERT, n);
		t.rows = k ? t.rows : t.rows / n * count;
		if (t.factor == FACTOR_A) {
			src[k].col_first = first;
			src[k].col_total = n;
			src[k].cols = count;
		} else {
			src[k].first += first;
			src[k].lora_first += first;
			src[k].block = src[k].lora_block = src[k].lora_stride = count;
		}
	}
	t.src = src;
	return add_part(g, v, t);
}

/* Return the share that applies in a layer instead of `by`: windowed and wide layers have their
 * own. */
static ShareKind
kind_in(const ShardPass *p, ShareKind by, int layer)
{
	const Spec *s = p->g->spec;

	if (layer < 0)
		return by;
	if (p->s->total[SHARE_Q_WINDOW] && spec_windowed(s, layer))
		return by == SHARE_Q ? SHARE_Q_WINDOW : by == SHARE_KV ? SHARE_KV_WINDOW : by;
	return by == SHARE_FFN && s->ffn.wide_in && s->ffn.wide_in[layer] ? SHARE_FFN_WIDE : by;
}

/* Return how a weight is cut; CUT_NONE if no rule applies. */
static RowCut
cut_of(const ShardPass *p, int w, int layer, ShareKind *by)
{
	for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
		if (shard_role(&p->g->tensor[p->g->val[w].tensor], rule[i].role)) {
			*by = kind_in(p, rule[i].by, layer);
			return rule[i].cut;
		}
	return CUT_NONE;
}

/* Return whether the weight gives the logits: a separate head, or the embedding. A tied embedding
 * is also kept whole, because tokens look up its rows. */
static bool
is_head(const ShardPass *p, const Op *op, int w)
{
	const PlanTensor *t =
	    p->g->val[w].kind == VAL_WEIGHT ? &p->g->tensor[p->g->val[w].tensor] : NULL;

	return t && op->layer < 0 && (shard_role(t, "head") || shard_role(t, "embed"));
}

/* Replace an argument of an op by this rank's part. */
static void
cut_arg(ShardPass *p, Op *op, int arg, RowCut cut, ShareKind by, int parts, const char *id)
{
	int v = op->arg[arg];

	if (v < 0)
		return;
	const PlanTensor *t = &p->g->tensor[p->g->val[v].tensor];
	const char *name = id ? id : t->id;
	int64_t n = cut == CUT_COLS ? t->cols : t->rows / parts;
	ShardShare *range = NEW(p->g->arena, ShardShare, parts);
	for (int e = 0; e < parts; e++)
		range[e] = (ShardShare){ e * n + own_first(p, by, n), own(p, by, n) };
	op->arg[arg] = cut == CUT_COLS ? cut_cols(p, v, name, range->first, range->count)
	                               : cut_rows(p, v, name, range, parts);
}

/* ---- values ---- */

/* Make a value full: insert the all_reduce of a partial value if there is none yet. */
static void
make_full(ShardPass *p, int v)
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

/* Make the op's output v partial: the op writes a value of another name, and v becomes the output
 * of the all_reduce. */
static void
make_partial(ShardPass *p, Op *op, int arg, int bias)
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

static void
append_op(ShardPass *p, const Op *op)
{
	Op *o = graph_op(p->g, op->kind, op->layer, op->loc);

	*o = *op;
}

static bool
split(const ShardPass *p, int v)
{
	return v >= 0 && p->state[v].kind == STATE_SPLIT;
}

static void
mark_split(ShardPass *p, int v, ShareKind by)
{
	p->state[v] = (ValueState){ .kind = STATE_SPLIT, .by = by };
}

static void
make_inputs_full(ShardPass *p, const Op *op)
{
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0 && p->g->val[op->arg[k]].kind == VAL_ACT)
			make_full(p, op->arg[k]);
}

/* Handle an op whose output is split like its first argument: an attribute becomes this rank's
 * part. */
static void
shard_like_input(ShardPass *p, Op *op, const char *key)
{
	int n_in = op_info[op->kind].n_in;
	ShareKind by = p->state[op->arg[0]].by;

	op_change_int(op, key, own(p, by, op_int(op, key)));
	if (p->g->val[op->arg[n_in]].kind == VAL_ACT)
		mark_split(p, op->arg[n_in], by);
	append_op(p, op);
}

/* ---- recurrent states ---- */

/* Return the number of key heads of this rank, those of its value heads. */
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
 * element. With tiled heads (value head h uses key head h % k_heads) the rank's key heads start
 * with that of its first value head, and several ranks may have the same one. Returns the number of
 * ranges, at most 2 key_heads + 1. */
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

/* Shard the stacked q, k and v of a delta rule. */
static void
shard_lin_qkv(ShardPass *p, Op *op)
{
	const int w = op->arg[ARG(matmul, w)];
	ShardShare *range = NEW(p->g->arena, ShardShare, 2 * key_heads(p) + 1);
	int n = lin_rows(p, 1, range);

	op->arg[ARG(matmul, w)] = cut_rows(p, w, p->g->tensor[p->g->val[w].tensor].id, range, n);
	op_change_int(op, "rows", lin_width(p));
	mark_split(p, op->arg[ARG(matmul, y)], SHARE_LIN);
	append_op(p, op);
}

/* Shard the channels of a convolution: those of this rank's heads, or an equal share. */
static void
shard_conv1d_width(ShardPass *p, Op *op)
{
	enum { W = ARG(conv1d, w), B = ARG(conv1d, b) };
	const ShareKind by = p->state[op->arg[ARG(conv1d, x)]].by;

	for (int a = W; a <= B && by == SHARE_LIN; a++) {
		ShardShare *range = NEW(p->g->arena, ShardShare, 2 * key_heads(p) + 1);
		if (op->arg[a] >= 0)
			op->arg[a] =
			    cut_rows(p, op->arg[a], p->g->tensor[p->g->val[op->arg[a]].tensor].id,
			             range, lin_rows(p, a == W ? op_int(op, "taps") : 1, range));
	}
	if (by == SHARE_LIN) {
		op_change_int(op, "width", lin_width(p));
		mark_split(p, op->arg[ARG(conv1d, y)], by);
		append_op(p, op);
		return;
	}
	cut_arg(p, op, W, CUT_ROWS, by, 1, NULL);
	cut_arg(p, op, B, CUT_ROWS, by, 1, NULL);
	shard_like_input(p, op, "width");
}

static void
shard_delta_rule(ShardPass *p, Op *op)
{
	cut_arg(p, op, ARG(delta_rule, rate), CUT_ROWS, SHARE_LIN, 1, NULL);
	cut_arg(p, op, ARG(delta_rule, dt), CUT_ROWS, SHARE_LIN, 1, NULL);
	op_change_int(op, "k_heads", key_heads(p));
	shard_like_input(p, op, "v_heads");
}

/* Reduce a pool to what this rank stores per sequence. */
static void
shard_pool(const ShardPass *p, PlanPool *pool)
{
	if (strcmp(pool->id, "state") == 0)
		pool->kv_heads = own(p, SHARE_LIN, pool->kv_heads);
	else if (strcmp(pool->id, "conv") == 0)
		pool->v_dim = lin_width(p);
	else if (strcmp(pool->id, "short_conv") == 0)
		pool->v_dim = own(p, SHARE_CONV, pool->v_dim);
	/* recurrent states of scans are complete on every rank */
	else if (!pool->mla && !pool->state)
		pool->kv_heads =
		    own(p,
		        p->s->total[SHARE_KV_WINDOW] && strcmp(pool->id, "kv_window") == 0
		            ? SHARE_KV_WINDOW
		            : SHARE_KV,
		        pool->kv_heads);
}

/* ---- ops ---- */

static void
shard_matmul(ShardPass *p, Op *op)
{
	enum { X = ARG(matmul, x), W = ARG(matmul, w), B = ARG(matmul, b), Y = ARG(matmul, y) };
	bool head = is_head(p, op, op->arg[W]);
	ShareKind by = SHARE_VOCAB;
	RowCut cut = head ? CUT_ROWS
	             : p->g->val[op->arg[W]].kind == VAL_WEIGHT
	                 ? cut_of(p, op->arg[W], op->layer, &by)
	                 : CUT_NONE;

	if (cut != CUT_COLS)
		make_full(p, op->arg[X]);
	if (!head && shard_role(&p->g->tensor[p->g->val[op->arg[W]].tensor], "lin_qkv")) {
		shard_lin_qkv(p, op);
		return;
	}
	if (cut == CUT_ROWS) {
		cut_arg(p, op, W, CUT_ROWS, by, 1, head ? "head" : NULL);
		cut_arg(p, op, B, CUT_ROWS, by, 1, NULL);
		op_change_int(op, "rows", own(p, by, op_int(op, "rows")));
		mark_split(p, op->arg[Y], by);
	} else if (cut == CUT_COLS) {
		int bias = op->arg[B];
		if (!split(p, op->arg[X]))
			BUG(p->g->diag, op->loc,
			    "shard: a matrix is split by columns, but its input is full");
		cut_arg(p, op, W, CUT_COLS, by, 1, NULL);
		op_change_int(op, "cols", own(p, by, op_int(op, "cols")));
		op->arg[B] = -1;
		make_partial(p, op, Y, bias);
	}
	append_op(p, op);
}

/* y = scale * x + r. If x is full, it is added after the sum of r. Two partial values are added
 * before the sum, and their pending additions are combined. */
static void
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
		make_inputs_full(p, op);
		append_op(p, op);
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
	make_partial(p, op, Y, -1);
	sum.raw = p->state[y].raw;
	sum.layer = op->layer;
	sum.loc = op->loc;
	p->state[y] = sum;
	append_op(p, op);
}

/* Return this rank's expert ids for the global ids. */
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

/* Restrict an op to the experts of this rank (parallel.experts: whole): routing is the same on all
 * ranks, and each computes its own experts. */
static void
local_experts(ShardPass *p, Op *op, int ID)
{
	const int64_t n = op_int(op, "n_experts"), mine = p->s->share[SHARE_EXPERT][p->rank].count;

	op->arg[ID] = local_expert_ids(p, op, op->arg[ID]);
	op_change_int(op, "n_experts", mine);
	op_change_int(op, "n_remote_experts", n - mine);
}

/* Shard gate and up of experts, matrices of `n_experts` times `width` rows: arguments FIRST to
 * LAST, some of which may be absent. */
static void
cut_gate_up(ShardPass *p, Op *op, int FIRST, int LAST, bool whole)
{
	const int n = (int)op_int(op, "n_experts");

	for (int k = FIRST; k <= LAST; k++)
		cut_arg(p, op, k, CUT_ROWS, SHARE_EXPERT, whole ? 1 : n, NULL);
}

/* Shard down. With split experts only rank 0 adds their biases, which are weighted by the
 * router. */
static void
cut_down(ShardPass *p, Op *op, int DOWN, int DOWN_B, bool whole)
{
	if (!whole && p->rank > 0)
		op->arg[DOWN_B] = -1;
	cut_arg(p, op, DOWN, whole ? CUT_ROWS : CUT_COLS, SHARE_EXPERT, 1, NULL);
	if (whole)
		cut_arg(p, op, DOWN_B, CUT_ROWS, SHARE_EXPERT, 1, NULL);
	else
		op_change_int(op, "width", own(p, SHARE_EXPERT, op_int(op, "width")));
}

static void
shard_moe_ffn(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	make_inputs_full(p, op);
	cut_gate_up(p, op, ARG(moe_ffn, gate), ARG(moe_ffn, up), whole);
	cut_gate_up(p, op, ARG(moe_ffn, gate_b), ARG(moe_ffn, up_b), whole);
	cut_down(p, op, ARG(moe_ffn, down), ARG(moe_ffn, down_b), whole);
	if (whole)
		local_experts(p, op, ARG(moe_ffn, id));
	make_partial(p, op, ARG(moe_ffn, y), -1);
	append_op(p, op);
}

/* Shard the two ops of a MoE layer with adapters; the value between them stays on this rank and has
 * no other reader. */
static void
shard_norm_moe_glu(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	make_inputs_full(p, op);
	cut_gate_up(p, op, ARG(norm_moe_glu, gate), ARG(norm_moe_glu, up_b), whole);
	if (whole)
		local_experts(p, op, ARG(norm_moe_glu, id));
	else
		op_change_int(op, "width", own(p, SHARE_EXPERT, op_int(op, "width")));
	append_op(p, op);
}

static void
shard_moe_down_add(ShardPass *p, Op *op)
{
	const bool whole = p->g->spec->experts_whole;

	make_inputs_full(p, op);
	cut_down(p, op, ARG(moe_down_add, down), ARG(moe_down_add, down_b), whole);
	if (whole)
		local_experts(p, op, ARG(moe_down_add, id));
	make_partial(p, op, ARG(moe_down_add, y), -1);
	append_op(p, op);
}

/* Return whether the shares are contiguous, as an all_gather needs. Shares of query heads follow
 * the kv heads, which several ranks may hold. */
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

/* Handle an op that needs the columns of all ranks, from argument X to Y of `width`: gather them,
 * compute all on each rank, and slice the rank's own. */
static void
compute_on_all_ranks(ShardPass *p, Op *op, int X, int Y, int64_t width, const char *what)
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
	append_op(p, op);
	Op *slice = graph_op(g, OP_slice, layer, loc);
	op_args(slice, OP_ARGS(slice, .x = done, .y = y));
	op_set_int(g, slice, "width", width);
	op_set_int(g, slice, "first", own_first(p, by, width));
	op_set_int(g, slice, "count", own(p, by, width));
	mark_split(p, y, by);
}

/* Shard an adapter: t = a x is full if x is full. If x is split, t is partial, like the value it is
 * added to. */
static void
shard_lora_down(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_down, x), A = ARG(lora_down, a) };
	const int64_t cols = op_int(op, "cols");
	const ShareKind by = p->state[op->arg[X]].by;

	if (split(p, op->arg[X])) {
		op->arg[A] = cut_factor(p, op->arg[A],
		                        (ShardShare){ own_first(p, by, cols), own(p, by, cols) });
		op_change_int(op, "cols", own(p, by, cols));
	} else {
		make_full(p, op->arg[X]);
	}
	append_op(p, op);
}

static void
shard_lora_up(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_up, x), B = ARG(lora_up, b), Y = ARG(lora_up, y) };
	const ValueState x = p->state[op->arg[X]];
	const int64_t rows = op_int(op, "rows");
	const int y = op->arg[Y];

	if (x.kind == STATE_SPLIT) {
		op->arg[B] = cut_factor(
		    p, op->arg[B], (ShardShare){ own_first(p, x.by, rows), own(p, x.by, rows) });
		shard_like_input(p, op, "rows");
		return;
	}
	if (x.kind == STATE_PARTIAL) {
		op->arg[X] = x.raw;
		make_partial(p, op, Y, x.bias[0]);
		const int raw = p->state[y].raw;
		p->state[y] = x;
		p->state[y].raw = raw;
	}
	append_op(p, op);
}

/* Shard an adapter of experts: the experts of this rank, or its rows of gate and up and its columns
 * of down. */
static void
cut_lora_experts(ShardPass *p, Op *op, int ID, int FACTOR, const char *cut)
{
	const bool whole = p->g->spec->experts_whole;

	if (whole || cut)
		op->arg[FACTOR] = cut_expert_factor(p, op->arg[FACTOR], whole);
	if (whole)
		local_experts(p, op, ID);
	else if (cut)
		op_change_int(op, cut, own(p, SHARE_EXPERT, op_int(op, cut)));
}

static void
shard_lora_experts_add(ShardPass *p, Op *op)
{
	enum { X = ARG(lora_experts_add, x), Y = ARG(lora_experts_add, y) };
	const int y = op->arg[Y], sum = op->arg[X];
	const ValueState x = p->state[sum];

	make_full(p, op->arg[ARG(lora_experts_add, weight)]);
	op->arg[X] = x.raw;
	cut_lora_experts(p, op, ARG(lora_experts_add, id), ARG(lora_experts_add, b), NULL);
	make_partial(p, op, Y, x.bias[0]);
	const int raw = p->state[y].raw;
	p->state[y] = x;
	p->state[y].raw = raw;
	append_op(p, op);
}

/* Default: the op reads full values, and every rank computes all of it. */
static void
shard_whole(ShardPass *p, Op *op)
{
	make_inputs_full(p, op);
	append_op(p, op);
}

static void
shard_lora_experts_down(ShardPass *p, Op *op)
{
	make_inputs_full(p, op);
	cut_lora_experts(p, op, ARG(lora_experts_down, id), ARG(lora_experts_down, a),
	                 op_int(op, "per_group") ? "cols" : NULL);
	append_op(p, op);
}

static void
shard_lora_experts_up(ShardPass *p, Op *op)
{
	make_inputs_full(p, op);
	cut_lora_experts(p, op, ARG(lora_experts_up, id), ARG(lora_experts_up, b), "rows");
	append_op(p, op);
}

/* Factors per head are sharded if heads have their own columns. */
static void
cut_lora_heads(ShardPass *p, Op *op, int FACTOR)
{
	const int64_t all = op_int(op, "head_stride") * op_int(op, "heads");

	if (all)
		op->arg[FACTOR] =
		    cut_factor(p, op->arg[FACTOR],
		               (ShardShare){ own_first(p, SHARE_Q, all), own(p, SHARE_Q, all) });
	shard_like_input(p, op, "heads");
}

static void
shard_lora_heads_down(ShardPass *p, Op *op)
{
	cut_lora_heads(p, op, ARG(lora_heads_down, a));
}

static void
shard_lora_heads_up(ShardPass *p, Op *op)
{
	cut_lora_heads(p, op, ARG(lora_heads_up, b));
}

static void
shard_mla_query(ShardPass *p, Op *op)
{
	cut_arg(p, op, ARG(mla_query, k_b), CUT_ROWS, SHARE_Q, 1, NULL);
	make_full(p, op->arg[ARG(mla_query, c)]);
	shard_like_input(p, op, "heads");
}

static void
shard_mla_value(ShardPass *p, Op *op)
{
	cut_arg(p, op, ARG(mla_value, v_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_like_input(p, op, "heads");
}

static void
shard_mla_attention(ShardPass *p, Op *op)
{
	cut_arg(p, op, ARG(mla_attention, k_b), CUT_ROWS, SHARE_Q, 1, NULL);
	cut_arg(p, op, ARG(mla_attention, v_b), CUT_ROWS, SHARE_Q, 1, NULL);
	shard_like_input(p, op, "heads");
}

/* A gate may scale one term of a sum instead of the sum if nothing is pending to be added first. */
static void
shard_gate_mul(ShardPass *p, Op *op)
{
	ValueState *x = &p->state[op->arg[ARG(gate_mul, x)]];

	if (x->kind == STATE_SPLIT) {
		op_change_int(op, "groups", own(p, x->by, op_int(op, "groups")));
		shard_like_input(p, op, "width");
	} else if (x->kind != STATE_PARTIAL || x->bias[0] >= 0 || x->r >= 0) {
		shard_whole(p, op);
	} else {
		make_full(p, op->arg[ARG(gate_mul, s)]);
		op->arg[ARG(gate_mul, x)] = x->raw;
		make_partial(p, op, ARG(gate_mul, y), -1);
		append_op(p, op);
	}
}

/* Norm per head, or over all heads together. */
static void
shard_rmsnorm(ShardPass *p, Op *op)
{
	if (!split(p, op->arg[0]))
		shard_whole(p, op);
	else if (op_int(op, "groups") % p->s->total[p->state[op->arg[0]].by])
		compute_on_all_ranks(p, op, ARG(rmsnorm, x), ARG(rmsnorm, y),
		                     op_int(op, "groups") * op_int(op, "dim"), "a norm");
	else
		shard_like_input(p, op, "groups");
}

/* Norm per head; the norm of the residual stream reads full values. */
static void
shard_layernorm(ShardPass *p, Op *op)
{
	const ShareKind by = p->state[op->arg[0]].by;

	if (!split(p, op->arg[0])) {
		shard_whole(p, op);
		return;
	}
	if (op_int(op, "per_group")) {
		cut_arg(p, op, ARG(layernorm, w), CUT_ROWS, by, 1, NULL);
		cut_arg(p, op, ARG(layernorm, b), CUT_ROWS, by, 1, NULL);
	}
	shard_like_input(p, op, "groups");
}

/* For split values: only without a weight, and over all elements. */
static void
shard_scale_cols(ShardPass *p, Op *op)
{
	if (!split(p, op->arg[0])) {
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
	op_change_int(op, "count", own(p, p->state[op->arg[0]].by, op_int(op, "count")));
	shard_like_input(p, op, "width");
}

static void
shard_gaussian_topk(ShardPass *p, Op *op)
{
	if (split(p, op->arg[ARG(gaussian_topk, x)]))
		compute_on_all_ranks(p, op, ARG(gaussian_topk, x), ARG(gaussian_topk, y),
		                     op_int(op, "width"), "mean and deviation of a row");
	else
		shard_whole(p, op);
}

static void
shard_conv1d(ShardPass *p, Op *op)
{
	if (split(p, op->arg[ARG(conv1d, x)]))
		shard_conv1d_width(p, op);
	else
		shard_whole(p, op);
}

static void
shard_norm_gate(ShardPass *p, Op *op)
{
	enum { X = ARG(norm_gate, x), W = ARG(norm_gate, w) };

	if (!split(p, op->arg[X])) {
		shard_whole(p, op);
		return;
	}
	if (strcmp(op_word(op, "order"), "gate_first") == 0)
		cut_arg(p, op, W, CUT_ROWS, p->state[op->arg[X]].by, 1, NULL);
	shard_like_input(p, op, "groups");
}

/* A column order moves elements across ranks; a factor does not. */
static void
shard_permute_cols(ShardPass *p, Op *op)
{
	enum { X = ARG(permute_cols, x), Y = ARG(permute_cols, y) };

	if (!split(p, op->arg[X])) {
		shard_whole(p, op);
	} else if (op->arg[ARG(permute_cols, order)] >= 0) {
		compute_on_all_ranks(p, op, X, Y, op_int(op, "width"),
		                     "the order of a matrix' columns (desc_act)");
	} else {
		cut_arg(p, op, ARG(permute_cols, factor), CUT_ROWS, p->state[op->arg[X]].by, 1,
		        NULL);
		shard_like_input(p, op, "width");
	}
}

static void
shard_kv_quantize_page(ShardPass *p, Op *op)
{
	op_change_int(op, "kv_heads",
	              own(p, kind_in(p, SHARE_KV, op->layer), op_int(op, "kv_heads")));
	append_op(p, op);
}

static void
shard_attention(ShardPass *p, Op *op)
{
	cut_arg(p, op, ARG(attention, sink), CUT_ROWS, kind_in(p, SHARE_Q, op->layer), 1, NULL);
	op_change_int(op, "kv_heads",
	              own(p, kind_in(p, SHARE_KV, op->layer), op_int(op, "kv_heads")));
	if (op_num(op, "alibi") > 0) {
		op_change_int(
		    op, "alibi_first",
		    own_first(p, p->state[op->arg[ARG(attention, q)]].by, op_int(op, "heads")));
		op_change_int(op, "alibi_heads", op_int(op, "heads"));
	}
	shard_like_input(p, op, "heads");
}

/* SHARD column of ops.def. */
typedef struct ShardRule {
	void (*fn)(ShardPass *p, Op *op); /* for OWN */
	const char *along, *split;        /* attribute for ALONG, for SPLIT */
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
	else if (r->along || (r->split && split(p, op->arg[0])))
		shard_like_input(p, op, r->along ? r->along : r->split);
	else
		shard_whole(p, op);
}

/* Gather the logits: each rank has its rows of the vocabulary. */
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

/*   requires  the unfused graph, after shape inference
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
		make_full(&p, made); /* input of the next stage, or rows before the head */
	else
		gather_logits(g);
	graph_infer(g);
	graph_sweep(g);
	return g->diag->n_error == errors;
}
