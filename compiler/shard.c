/* Tensor parallelism: the graph of the whole model becomes the graph of one rank.
 *
 * Each value is full (every rank holds all of it), split (a rank holds the columns of its share) or partial (what a rank holds is one
 * term of a sum over all ranks). Rows of q, k, v, gate and up are cut, so what they make is split; columns of o and down are cut the same
 * way, so what they make is partial; all between them works on columns, or on heads, alone. A partial value carries what is still to be
 * added to the sum: biases, which no rank may add twice, and the residual stream. The first op that cannot work on a partial value gets
 * an all_reduce in front of it. That is as late as it can be: two a layer, one where both blocks add to the same stream.
 *
 * The graphs of ranks have the same ops; they differ in sizes, where a model cannot be dealt evenly, and in which rows they read. */
#include "compiler/shard.h"

#include <inttypes.h>
#include <string.h>

const char *const share_text[SHARE_COUNT] = {
#define X(name, text) text,
	SHARE_LIST(X)
#undef X
};

enum { EVEN = 32, EVEN_VOCAB = 64 }; /* shares in whole ones of these, where there are enough: blocks of activations, rows of layouts */

typedef enum Cut { CUT_NONE, CUT_ROWS, CUT_COLS } Cut;

static const struct { const char *role; Cut cut; ShareKind by; } rule[] = {
	{ "q", CUT_ROWS, SHARE_Q },        { "q_b", CUT_ROWS, SHARE_Q },       { "k", CUT_ROWS, SHARE_KV },
	{ "v", CUT_ROWS, SHARE_KV },       { "k_b", CUT_ROWS, SHARE_Q },       { "v_b", CUT_ROWS, SHARE_Q },
	{ "o", CUT_COLS, SHARE_Q },        { "gate", CUT_ROWS, SHARE_FFN },    { "up", CUT_ROWS, SHARE_FFN },
	{ "down", CUT_COLS, SHARE_FFN },   { "e_gate", CUT_ROWS, SHARE_EXPERT }, { "e_up", CUT_ROWS, SHARE_EXPERT },
	{ "e_down", CUT_COLS, SHARE_EXPERT }, { "s_gate", CUT_ROWS, SHARE_SHARED }, { "s_up", CUT_ROWS, SHARE_SHARED },
	{ "s_down", CUT_COLS, SHARE_SHARED }, { "head", CUT_ROWS, SHARE_VOCAB },
};

typedef enum StateKind { STATE_FULL, STATE_SPLIT, STATE_PARTIAL } StateKind;
typedef struct State {
	StateKind kind;
	ShareKind by;      /* split */
	int       raw;     /* partial: the value with this rank's term */
	int       bias[2]; /* partial: to be added to the sum; -1: none */
	int       r;       /* partial: the stream that is added, scaled; -1: none */
	double    scale;
	int       layer;   /* of the op whose result the sum is, and its place */
	Loc       loc;
} State;

typedef struct Pass {
	Graph       *g;
	const Shard *s;
	State       *state;  /* [values of the whole graph] */
	int          rank;
} Pass;

/* ---------------------------------------------------------------- dealing ---- */

static int64_t
gcd(int64_t a, int64_t b)
{
	return b ? gcd(b, a % b) : a;
}

static int64_t
lcm(int64_t a, int64_t b)
{
	return a / gcd(a, b) * b;
}

/* "L3.o.bias" -> "o", which is *len long */
static const char *
role_of(const char *id, size_t *len)
{
	if (id[0] == 'L' && id[1] >= '0' && id[1] <= '9' && strchr(id, '.'))
		id = strchr(id, '.') + 1;
	*len = strcspn(id, ".");
	return id;
}

static bool
is_role(const PlanTensor *t, const char *role)
{
	size_t      n;
	const char *at = role_of(t->id, &n);

	return strlen(role) == n && memcmp(at, role, n) == 0;
}

/* Columns between which every tensor of a role can be cut, and one of them, for the text; 0: there is none of the role. */
static int64_t
block_of(const Graph *g, const char *role, const PlanTensor **like)
{
	int64_t block = 0;

	for (size_t i = 0; i < g->n_tensor; i++) {
		const PlanTensor *t = &g->tensor[i];
		if (!t->cols || !is_role(t, role))
			continue;
		int64_t own = dtype_info(t->dtype)->block_elems;
		if (own > block || !block)
			*like = t;
		block = block ? lcm(block, own) : own;
	}
	return block;
}

static void
deal(Graph *g, Shard *s, ShareKind k, int64_t total, int64_t unit)
{
	s->total[k] = total;
	s->unit[k] = unit;
	s->share[k] = NEW(g->arena, Share, g->ranks);
	for (int r = 0; r < g->ranks; r++)
		op_share(total, unit, g->ranks, r, &s->share[k][r].first, &s->share[k][r].count);
}

/* Columns of `role`, of which units keep blocks whole. */
static void
deal_columns(Graph *g, Shard *s, ShareKind k, const char *role, int64_t total)
{
	const PlanTensor *like = NULL;
	int64_t block = block_of(g, role, &like);

	if (!block || total <= 0)
		return;
	if (total / block < g->ranks) {
		err_at(g->diag, spec_loc(g->spec, "parallel.tp"), "parallel.tp = %d: %s has %" PRId64 " block%s of %" PRId64 " columns (%s), fewer than %d ranks",
		       g->ranks, role, total / block, total / block == 1 ? "" : "s", block, dtype_text(like->dtype), g->ranks);
		return;
	}
	int64_t even = lcm(block, EVEN);
	deal(g, s, k, total, total / even >= g->ranks ? even : block);
}

/* Whole heads: a kv head with the query heads that read it, or query heads alone where a kv head lies on several ranks. What they take
 * of o's columns is whole blocks. */
static void
deal_heads(Graph *g, Shard *s)
{
	const Spec *spec = g->spec;
	Loc         loc = spec_loc(spec, "parallel.tp");
	bool        latent = spec->attention.kind == ATT_MLA;
	const PlanTensor *like = NULL;
	int64_t     n = g->ranks, q = spec->attention.n_heads, kv = latent ? q : spec->attention.n_kv_heads, group = q / kv;
	int64_t     block = block_of(g, "o", &like), v_dim = spec->attention.v_dim;

	s->copies = 1;
	if (spec->position == POS_ALIBI)
		err_at(g->diag, loc, "parallel.tp = %d: attention with ALiBi slopes runs on one rank: its kernels count heads from the first", g->ranks);
	if (latent && n > q) {
		err_at(g->diag, loc, "parallel.tp = %d: more ranks than the %" PRId64 " heads", g->ranks, q);
		return;
	}
	if (n > kv && n % kv) {
		int64_t next = (n / kv + 1) * kv;
		err_at(g->diag, loc, "parallel.tp = %d: more ranks than the %" PRId64 " kv heads must be a multiple of them: %" PRId64 ", %" PRId64 " or %" PRId64,
		       g->ranks, kv, next, next + kv, next + 2 * kv);
		return;
	}
	if (n <= kv) {
		int64_t unit = block / gcd(block, group * v_dim), units = kv / unit + (kv % unit != 0);
		if (units < n) {
			err_at(g->diag, loc, "parallel.tp = %d: blocks of %" PRId64 " columns of o (%s) hold %" PRId64 " kv head%s of %" PRId64 " columns together, which leaves shares for %" PRId64 " of %d ranks",
			       g->ranks, block, dtype_text(like->dtype), unit, unit == 1 ? "" : "s", group * v_dim, units, g->ranks);
			return;
		}
		deal(g, s, SHARE_KV, kv, unit);
		deal(g, s, SHARE_Q, q, unit * group);
		return;
	}
	s->copies = (int)(n / kv);
	int64_t unit = block / gcd(block, v_dim), units = group / unit + (group % unit != 0);
	if (units < s->copies) {
		err_at(g->diag, loc, "parallel.tp = %d: %d ranks would share a kv head, which %" PRId64 " query heads read in %" PRId64 " unit%s: at most %" PRId64 " ranks",
		       g->ranks, s->copies, group, units, units == 1 ? "" : "s", units * kv);
		return;
	}
	deal(g, s, SHARE_KV, kv, 1);
	deal(g, s, SHARE_Q, q, 1);
	for (int r = 0; r < g->ranks; r++) {
		int64_t head = r / s->copies;
		s->share[SHARE_KV][r] = (Share){ head, 1 };
		op_share(group, unit, s->copies, r % s->copies, &s->share[SHARE_Q][r].first, &s->share[SHARE_Q][r].count);
		s->share[SHARE_Q][r].first += head * group;
	}
}

static Shard *
shares(Graph *g)
{
	const Spec *spec = g->spec;
	Shard      *s = NEW(g->arena, Shard, 1);
	const HeadShape a = spec_heads(spec, -1), b = spec->attention.local;

	if (a.n_heads != b.n_heads || a.n_kv_heads != b.n_kv_heads || a.head_dim != b.head_dim || a.v_dim != b.v_dim)
		err_at(g->diag, spec_loc(spec, "parallel.tp"), "parallel.tp = %d: layers with heads of different shapes run on one rank", g->ranks);
	if (spec->ple_width)
		err_at(g->diag, spec_loc(spec, "parallel.tp"), "parallel.tp = %d: per-layer embeddings run on one rank", g->ranks);
	if (spec->ffn.wide_in && memchr(spec->ffn.wide_in, 1, (size_t)spec->n_layers))
		err_at(g->diag, spec_loc(spec, "parallel.tp"), "parallel.tp = %d: layers with feed-forwards of different widths run on one rank", g->ranks);

	deal_heads(g, s);
	deal_columns(g, s, SHARE_FFN, "down", spec->ffn.width);
	if (!spec->experts_whole)
		deal_columns(g, s, SHARE_EXPERT, "e_down", spec->moe.width);
	else if (spec->moe.n_experts > 0 && spec->moe.n_experts < g->ranks)
		err_at(g->diag, spec_loc(spec, "parallel.experts"), "parallel.experts = whole: %d ranks, and %d experts are fewer", g->ranks, spec->moe.n_experts);
	else if (spec->moe.n_experts > 0)
		deal(g, s, SHARE_EXPERT, spec->moe.n_experts, 1);
	deal_columns(g, s, SHARE_SHARED, "s_down", spec->moe.shared_width);
	if (spec->vocab_size < g->ranks)
		err_at(g->diag, spec_loc(spec, "parallel.tp"), "parallel.tp = %d: more ranks than the %" PRId64 " rows of the head", g->ranks, spec->vocab_size);
	else
		deal(g, s, SHARE_VOCAB, spec->vocab_size, spec->vocab_size / EVEN_VOCAB >= g->ranks ? EVEN_VOCAB : 1);
	return s;
}

/* ---------------------------------------------------------------- tensors ---- */

/* Append rows [first, first + count) of a piece; runs of equal steps become one source again. */
static void
push_rows(PlanSource *out, int *n, const PlanSource *s, int64_t first, int64_t count)
{
	while (count > 0) {
		int64_t b = first / s->block, at = first % s->block, run = s->block - at < count ? s->block - at : count;
		PlanSource piece = *s, *last = *n ? &out[*n - 1] : NULL;

		piece.first = s->first + b * s->stride + at;
		piece.block = piece.stride = run;
		piece.n_block = 1;
		bool like = last && strcmp(last->name, s->name) == 0 && last->block == run && (last->n_block == 1 || piece.first == last->first + last->n_block * last->stride);
		if (like && piece.first > last->first && (!s->rope_pairs || run % s->rope_pairs == 0)) {
			last->stride = last->n_block == 1 ? piece.first - last->first : last->stride;
			last->n_block++;
		} else {
			out[(*n)++] = piece;
		}
		first += run;
		count -= run;
	}
}

/* The weight v with rows [first, first + count) of each of `parts` equal parts, or with these columns, as a tensor of its own. */
static int
cut_weight(Pass *p, int v, const char *id, Cut cut, int parts, int64_t first, int64_t count)
{
	Graph     *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	int64_t    each = t.rows / parts;
	int        n = 0, most = 0;

	t.id = id;
	if (cut == CUT_ROWS) {
		for (int k = 0; k < t.n_src; k++)
			most += (int)t.src[k].n_block + parts;
		PlanSource *src = NEW(g->arena, PlanSource, most + 1);
		for (int e = 0; e < parts; e++) {
			int64_t from = e * each + first, end = from + count, before = 0;
			for (int k = 0; k < t.n_src; k++) {
				int64_t rows = t.src[k].n_block * t.src[k].block;
				int64_t lo = from > before ? from : before, hi = end < before + rows ? end : before + rows;
				if (lo < hi)
					push_rows(src, &n, &t.src[k], lo - before, hi - lo);
				before += rows;
			}
		}
		t.src = src;
		t.n_src = n;
		t.rows = parts * count;
	} else {
		PlanSource *src = NEW(g->arena, PlanSource, t.n_src);
		for (int k = 0; k < t.n_src; k++) {
			src[k] = t.src[k];
			src[k].col_first = first;
			src[k].col_total = t.cols;
		}
		t.src = src;
		t.cols = count;
	}
	int w = graph_value(g, VAL_WEIGHT, id, g->val[v].loc);
	g->tensor = arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1, sizeof *g->tensor);
	g->tensor[g->n_tensor] = t;
	g->val[w].tensor = (int)g->n_tensor++;
	g->val[w].dtype = t.dtype;
	g->val[w].dim[0] = t.rows;
	g->val[w].dim[1] = t.cols;
	return w;
}

/* This rank's part of n elements that lie in the order of a share */
static int64_t
own(const Pass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].count;
}

static int64_t
own_first(const Pass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].first;
}

/* How a weight is cut: CUT_NONE where no rule says so. A tied head is the embedding, which stays whole: a row of it is read a token. */
static Cut
cut_of(const Pass *p, int w, bool head, ShareKind *by)
{
	for (size_t i = 0; w >= 0 && i < sizeof rule / sizeof *rule; i++)
		if (head ? rule[i].by == SHARE_VOCAB : is_role(&p->g->tensor[p->g->val[w].tensor], rule[i].role)) {
			*by = rule[i].by;
			return rule[i].cut;
		}
	return CUT_NONE;
}

/* An argument of an op becomes this rank's part of it. */
static void
cut_arg(Pass *p, Op *op, int arg, Cut cut, ShareKind by, int parts, const char *id)
{
	int v = op->arg[arg];

	if (v < 0)
		return;
	const PlanTensor *t = &p->g->tensor[p->g->val[v].tensor];
	int64_t           n = cut == CUT_COLS ? t->cols : t->rows / parts;
	op->arg[arg] = cut_weight(p, v, id ? id : t->id, cut, parts, own_first(p, by, n), own(p, by, n));
}

/* ---------------------------------------------------------------- values ---- */

static void
set_int(Op *op, const char *key, int64_t v)
{
	for (int i = 0; i < op->n_attr; i++)
		if (strcmp(op->attr[i].key, key) == 0)
			op->attr[i].i = v;
}

/* The op that sums a partial value, if that has not been done: then it is full. */
static void
whole(Pass *p, int v)
{
	Graph *g = p->g;
	State *s = &p->state[v];

	if (s->kind == STATE_SPLIT)
		BUG(g->diag, g->val[v].loc, "shard: %s is split where all of it is read", g->val[v].name);
	if (s->kind == STATE_FULL)
		return;
	Op *op = graph_op(g, OP_all_reduce, s->layer, s->loc);
	op_args(op, OP_ARGS(all_reduce, .x = s->raw, .b = s->bias[0], .b2 = s->bias[1], .r = s->r, .y = v));
	op_set_int(g, op, "width", g->spec->hidden);
	op_set_num(g, op, "scale", s->r >= 0 ? s->scale : 1);
	s->kind = STATE_FULL;
}

/* v is one term of a sum: the op that made v makes a value of another name, and v is made by the all_reduce. */
static void
make_partial(Pass *p, Op *op, int arg, int bias)
{
	Graph *g = p->g;
	int    v = op->arg[arg], raw = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.part", g->val[v].name), op->loc);

	p->state[v] = (State){ .kind = STATE_PARTIAL, .raw = raw, .bias = { bias, -1 }, .r = -1, .scale = 1, .layer = op->layer, .loc = op->loc };
	op->arg[arg] = raw;
}

static void
keep(Pass *p, const Op *op)
{
	Op *o = graph_op(p->g, op->kind, op->layer, op->loc);

	*o = *op;
}

static bool
split(const Pass *p, int v)
{
	return v >= 0 && p->state[v].kind == STATE_SPLIT;
}

static void
mark_split(Pass *p, int v, ShareKind by)
{
	p->state[v] = (State){ .kind = STATE_SPLIT, .by = by };
}

static void
whole_inputs(Pass *p, const Op *op)
{
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0 && p->g->val[op->arg[k]].kind == VAL_ACT)
			whole(p, op->arg[k]);
}

/* An op whose result is as split as its first argument: an attribute becomes this rank's part. */
static void
along(Pass *p, Op *op, const char *key)
{
	int       n_in = op_info[op->kind].n_in;
	ShareKind by = p->state[op->arg[0]].by;

	set_int(op, key, own(p, by, op_int(op, key)));
	if (p->g->val[op->arg[n_in]].kind == VAL_ACT)
		mark_split(p, op->arg[n_in], by);
	keep(p, op);
}

/* ---------------------------------------------------------------- ops ---- */

static void
shard_matmul(Pass *p, Op *op)
{
	enum { X = ARG(matmul, x), W = ARG(matmul, w), B = ARG(matmul, b), Y = ARG(matmul, y) };
	bool      head = p->g->val[op->arg[W]].kind == VAL_WEIGHT && op->layer < 0;
	ShareKind by = SHARE_Q;
	Cut       cut = cut_of(p, op->arg[W], head, &by);

	if (cut != CUT_COLS)
		whole(p, op->arg[X]);
	if (cut == CUT_ROWS) {
		cut_arg(p, op, W, CUT_ROWS, by, 1, head ? "head" : NULL);
		cut_arg(p, op, B, CUT_ROWS, by, 1, NULL);
		set_int(op, "rows", own(p, by, op_int(op, "rows")));
		mark_split(p, op->arg[Y], by);
	} else if (cut == CUT_COLS) {
		int bias = op->arg[B];
		if (!split(p, op->arg[X]))
			BUG(p->g->diag, op->loc, "shard: columns are cut of a matrix whose input is whole");
		cut_arg(p, op, W, CUT_COLS, by, 1, NULL);
		set_int(op, "cols", own(p, by, op_int(op, "cols")));
		op->arg[B] = -1;
		make_partial(p, op, Y, bias);
	}
	keep(p, op);
}

/* y = scale * x + r. A full x waits for the sum of r; two partial ones are added before it, and share what is to be added to it. */
static void
shard_add(Pass *p, Op *op)
{
	enum { X = ARG(add, x), R = ARG(add, r), Y = ARG(add, y) };
	State *x = &p->state[op->arg[X]], *r = &p->state[op->arg[R]];
	double scale = op_num(op, "scale");
	bool   both = x->kind == STATE_PARTIAL && r->kind == STATE_PARTIAL && scale == 1 && x->bias[1] < 0 && r->bias[1] < 0 && (x->r < 0 || r->r < 0);

	if (x->kind == STATE_FULL && r->kind == STATE_PARTIAL && r->r < 0) {
		State sum = *r;
		sum.r = op->arg[X];
		sum.scale = scale;
		sum.layer = op->layer;
		sum.loc = op->loc;
		p->state[op->arg[Y]] = sum;
		return;
	}
	if (!both) {
		whole_inputs(p, op);
		keep(p, op);
		return;
	}
	State sum = *x;
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
	keep(p, op);
}

/* The experts of this rank, whole: the choice is the same on all ranks, and each goes on with what is its own of it. */
static void
shard_moe_whole(Pass *p, Op *op)
{
	enum { GATE = ARG(moe_ffn, gate), DOWN_B = ARG(moe_ffn, down_b), ID = ARG(moe_ffn, id) };
	Graph        *g = p->g;
	const int64_t n = op_int(op, "n_experts");

	whole_inputs(p, op);
	for (int k = GATE; k <= DOWN_B; k++)
		cut_arg(p, op, k, CUT_ROWS, SHARE_EXPERT, 1, NULL);
	int mine = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.own", g->val[op->arg[ID]].name), op->loc);
	Op *o = graph_op(g, OP_own_experts, op->layer, op->loc);
	op_args(o, OP_ARGS(own_experts, .id = op->arg[ID], .own = mine));
	op_set_int(g, o, "n_experts", n);
	op_set_int(g, o, "top_k", op_int(op, "top_k"));
	op_set_int(g, o, "first", p->s->share[SHARE_EXPERT][p->rank].first);
	op_set_int(g, o, "count", p->s->share[SHARE_EXPERT][p->rank].count);
	op->arg[ID] = mine;
	set_int(op, "n_experts", p->s->share[SHARE_EXPERT][p->rank].count);
	make_partial(p, op, ARG(moe_ffn, y), -1);
	keep(p, op);
}

static void
shard_moe(Pass *p, Op *op)
{
	int n = (int)op_int(op, "n_experts");

	if (p->g->spec->experts_whole) {
		shard_moe_whole(p, op);
		return;
	}
	if (p->rank > 0) /* weighted by the router, they are part of rank 0's term alone */
		op->arg[ARG(moe_ffn, down_b)] = -1;
	whole_inputs(p, op);
	cut_arg(p, op, ARG(moe_ffn, gate_b), CUT_ROWS, SHARE_EXPERT, n, NULL);
	cut_arg(p, op, ARG(moe_ffn, up_b), CUT_ROWS, SHARE_EXPERT, n, NULL);
	cut_arg(p, op, ARG(moe_ffn, gate), CUT_ROWS, SHARE_EXPERT, n, NULL);
	cut_arg(p, op, ARG(moe_ffn, up), CUT_ROWS, SHARE_EXPERT, n, NULL);
	cut_arg(p, op, ARG(moe_ffn, down), CUT_COLS, SHARE_EXPERT, 1, NULL);
	set_int(op, "width", own(p, SHARE_EXPERT, op_int(op, "width")));
	make_partial(p, op, ARG(moe_ffn, y), -1);
	keep(p, op);
}

/* A norm over columns of all ranks: they are gathered, each rank norms all of them, and goes on with its own. */
static void
norm_of_all(Pass *p, Op *op)
{
	enum { X = ARG(rmsnorm, x), Y = ARG(rmsnorm, y) };
	Graph        *g = p->g;
	const int     x = op->arg[X], y = op->arg[Y], layer = op->layer;
	const Loc     loc = op->loc;
	ShareKind     by = p->state[x].by;
	const int64_t width = op_int(op, "groups") * op_int(op, "dim"), total = p->s->total[by];

	if (by == SHARE_KV && p->s->copies > 1) {
		err_at(g->diag, loc, "parallel.tp = %d: a norm over all %" PRId64 " kv heads together, which several ranks hold each: at most %" PRId64 " ranks", g->ranks, total, total);
		return;
	}
	int all = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.all", g->val[x].name), loc);
	int normed = graph_value(g, VAL_ACT, arena_printf(g->arena, "%s.all", g->val[y].name), loc);
	Op *join = graph_op(g, OP_all_gather, layer, loc);
	op_args(join, OP_ARGS(all_gather, .x = x, .y = all));
	op_set_int(g, join, "width", width);
	op_set_int(g, join, "unit", width / total * p->s->unit[by]);
	op->arg[X] = all;
	op->arg[Y] = normed;
	keep(p, op);
	Op *slice = graph_op(g, OP_slice, layer, loc);
	op_args(slice, OP_ARGS(slice, .x = normed, .y = y));
	op_set_int(g, slice, "width", width);
	op_set_int(g, slice, "first", own_first(p, by, width));
	op_set_int(g, slice, "count", own(p, by, width));
	mark_split(p, y, by);
}

static void
shard_op(Pass *p, Op *op)
{
	switch (op->kind) {
	case OP_matmul:
		shard_matmul(p, op);
		return;
	case OP_add:
		shard_add(p, op);
		return;
	case OP_moe_ffn:
		shard_moe(p, op);
		return;
	case OP_gate_mul: {
		State *x = &p->state[op->arg[ARG(gate_mul, x)]];
		if (x->kind != STATE_PARTIAL || x->bias[0] >= 0 || x->r >= 0)
			break;
		whole(p, op->arg[ARG(gate_mul, s)]);
		op->arg[ARG(gate_mul, x)] = x->raw;
		make_partial(p, op, ARG(gate_mul, y), -1);
		keep(p, op);
		return;
	}
	case OP_rope:
	case OP_rope_2d:
		if (!split(p, op->arg[0]))
			break;
		along(p, op, "heads");
		return;
	case OP_rmsnorm: /* of each head by itself, or of all together */
		if (!split(p, op->arg[0]))
			break;
		if (op_int(op, "groups") % p->s->total[p->state[op->arg[0]].by])
			norm_of_all(p, op);
		else
			along(p, op, "groups");
		return;
	case OP_pos_scale:
	case OP_gain: /* of split values: without a weight */
	case OP_act:
	case OP_glu:
	case OP_cap:
		if (!split(p, op->arg[0]))
			break;
		along(p, op, "width");
		return;
	case OP_arrange:
		if (!split(p, op->arg[ARG(arrange, x)]))
			break;
		if (op->arg[ARG(arrange, order)] >= 0)
			err_at(p->g->diag, op->loc, "parallel.tp = %d: columns of a matrix of layer %d lie in an order of their own (desc_act), which crosses the ranks that they are dealt to",
			       p->g->ranks, op->layer);
		else
			cut_arg(p, op, ARG(arrange, factor), CUT_ROWS, p->state[op->arg[ARG(arrange, x)]].by, 1, NULL);
		along(p, op, "width");
		return;
	case OP_kv_append:
		along(p, op, "kv_heads");
		return;
	case OP_attention:
		cut_arg(p, op, ARG(attention, sink), CUT_ROWS, SHARE_Q, 1, NULL);
		set_int(op, "kv_heads", own(p, SHARE_KV, op_int(op, "kv_heads")));
		along(p, op, "heads");
		return;
	case OP_mla_attention:
		cut_arg(p, op, ARG(mla_attention, k_b), CUT_ROWS, SHARE_Q, 1, NULL);
		cut_arg(p, op, ARG(mla_attention, v_b), CUT_ROWS, SHARE_Q, 1, NULL);
		along(p, op, "heads");
		return;
	default:
		break;
	}
	whole_inputs(p, op);
	keep(p, op);
}

/* Each rank has the logits of its rows of the vocabulary. */
static void
gather_logits(Graph *g)
{
	const Op   *last = &g->op[g->n_op - 1];
	int         part = last->arg[op_info[last->kind].n_in];
	const char *name = g->val[part].name;
	Loc         loc = last->loc;

	g->val[part].name = arena_printf(g->arena, "%s.part", name);
	int all = graph_value(g, VAL_ACT, name, loc);
	Op *join = graph_op(g, OP_all_gather, -1, loc);
	op_args(join, OP_ARGS(all_gather, .x = part, .y = all));
	op_set_int(g, join, "width", g->spec->vocab_size);
	op_set_int(g, join, "unit", g->shard->unit[SHARE_VOCAB]);
}

/* requires: the unfused graph, inferred
 * keeps:    names of full values
 * effect:   the graph of one of ranks, as the head of this file says; logits are gathered at its end. */
bool
graph_shard(Graph *g, int rank)
{
	int   errors = g->diag->n_error;
	size_t n_op = g->n_op;
	Op   *op = g->op;
	int   made = op[n_op - 1].arg[op_info[op[n_op - 1].kind].n_in];

	g->rank = rank;
	g->ranks = g->spec->tp;
	g->shard = shares(g);
	if (g->diag->n_error > errors)
		return false;
	Pass p = { .g = g, .s = g->shard, .state = NEW(g->arena, State, g->n_val + 1), .rank = rank };
	g->op = NULL;
	g->n_op = g->cap_op = 0;
	for (size_t i = 0; i < n_op; i++)
		shard_op(&p, &op[i]);
	if (g->diag->n_error > errors)
		return false;
	for (int i = 0; i < g->n_pool && g->spec->attention.kind != ATT_MLA; i++)
		g->pool[i].kv_heads = own(&p, SHARE_KV, g->pool[i].kv_heads);

	if (p.state[made].kind != STATE_SPLIT)
		whole(&p, made); /* what the next stage reads, or rows in front of the head */
	else
		gather_logits(g);
	graph_infer(g);
	graph_sweep(g);
	return g->diag->n_error == errors;
}
