/* Rewrites of the graph: several ops become one whose kernel reads and writes less. Each pass is one pattern, with its contract
 * above it. A rewrite is made only where a template of the target takes the result, so that a tuned part never turns
 * into a slow one. Fused ops keep the output values of the last op they replace, and list the others in `makes`. */
#include "compiler/graph.h"

#include <string.h>

#include "compiler/template.h"
#include "templates/common/llmc_mla.h"

typedef struct Fuse {
	Graph           *g;
	const Templates *ts;
	int             *uses;      /* [n_val] inputs that read it */
	int             *mat_uses;  /* of these: x of a plain matmul */
	size_t           cap_uses;
} Fuse;

/* --- bookkeeping --- */

static void
count(Fuse *f, const Op *op, int by)
{
	for (int k = 0; k < op_info[op->kind].n_in; k++)
		if (op->arg[k] >= 0) {
			f->uses[op->arg[k]] += by;
			f->mat_uses[op->arg[k]] += op->kind == OP_matmul && k == ARG(matmul, x) ? by : 0;
		}
}

static void
recount(Fuse *f)
{
	Graph *g = f->g;

	if (g->n_val > f->cap_uses) {
		f->cap_uses = 2 * g->n_val;
		f->uses = NEW(g->arena, int, f->cap_uses);
		f->mat_uses = NEW(g->arena, int, f->cap_uses);
	}
	memset(f->uses, 0, f->cap_uses * sizeof *f->uses);
	memset(f->mat_uses, 0, f->cap_uses * sizeof *f->mat_uses);
	for (size_t i = 0; i < g->n_op; i++)
		count(f, &g->op[i], 1);
}

/* values made by stacking come after those counted */
static int
uses_of(const Fuse *f, int v)
{
	return v >= 0 && (size_t)v < f->cap_uses ? f->uses[v] : 0;
}

static void
drop(Fuse *f, Op *op)
{
	count(f, op, -1);
	op->kind = OP_nop;
}

static void
place(Fuse *f, Op *slot, const Op *fused)
{
	const OpInfo *info = &op_info[fused->kind];

	count(f, slot, -1);
	*slot = *fused;
	for (int k = 0; k < info->n_arg; k++) {
		int v = slot->arg[k];
		if (v >= 0 && k >= info->n_in)
			f->g->val[v].def = (int)(slot - f->g->op);
		else if (v >= 0 && (size_t)v < f->cap_uses)
			f->uses[v]++;
	}
}

static Op *
def(const Fuse *f, int v)
{
	int d = v < 0 ? -1 : f->g->val[v].def;
	return d < 0 ? NULL : &f->g->op[d];
}

/* The op of this kind that makes v, when nothing else reads v. */
static Op *
only_def(const Fuse *f, int v, OpKind kind)
{
	Op *op = def(f, v);
	return op && op->kind == kind && uses_of(f, v) == 1 ? op : NULL;
}

static Op
fused_op(OpKind kind, const Op *like, const int *arg)
{
	Op op = { .kind = kind, .layer = like->layer, .loc = like->loc };

	op_args(&op, arg);
	return op;
}

static const char *
name_of(const Fuse *f, int v)
{
	return f->g->val[v].name;
}

static bool
accepted(const Fuse *f, const Op *op)
{
	return !f->ts || templates_accept(f->ts, f->g, op);
}

/* Tensors of `val` as one named after the layer; -1: of several dtypes. */
static int
stack(Fuse *f, int layer, const char *role, const int *val, int n)
{
	Graph *g = f->g;
	const char *name = layer < 0 ? role : arena_printf(g->arena, "L%d.%s", layer, role);
	int    v = graph_stack(g, name, val, n);

	if (v >= 0 && f->ts)
		templates_layout(f->ts, &g->tensor[g->val[v].tensor]);
	return v;
}

/* --- the norm in front --- */

/* What the fused op reads instead of the normed row, and the attributes of its norm */
typedef struct Front { int x, nw, nb; const char *kind; double eps; int plus_one; int norm; /* value; -1: not taken in */ } Front;

static Front
front_plain(int h)
{
	return (Front){ .x = h, .nw = -1, .nb = -1, .kind = "none", .norm = -1 };
}

/* The norm that makes h, if every reader of h but `others` is a matmul: then h may vanish, and each of them norms for itself. */
static Front
front_norm(const Fuse *f, int h, int others)
{
	const Op *o = def(f, h);

	if (!o || uses_of(f, h) != f->mat_uses[h] + others)
		return front_plain(h);
	if (o->kind == OP_rmsnorm && op_int(o, "groups") == 1)
		return (Front){ o->arg[ARG(rmsnorm, x)], o->arg[ARG(rmsnorm, w)], -1, "rms", op_num(o, "eps"), (int)op_int(o, "plus_one"), h };
	if (o->kind == OP_layernorm)
		return (Front){ o->arg[ARG(layernorm, x)], o->arg[ARG(layernorm, w)], o->arg[ARG(layernorm, b)], "layer", op_num(o, "eps"), 0, h };
	return front_plain(h);
}

static void
set_front(Fuse *f, Op *op, const Front *n)
{
	op_set_word(f->g, op, "norm", n->kind);
	op_set_num(f->g, op, "eps", n->eps);
	op_set_int(f->g, op, "plus_one", n->plus_one);
	if (n->norm >= 0)
		op_makes(op, name_of(f, n->norm));
}

/* --- passes --- */

/* q or k on its way from the matmul: [rope] of [per-head norm] of matmul */
typedef struct Chain { Op *rope, *norm, *mat; } Chain;

static bool
chain_match(const Fuse *f, int v, int64_t heads, int64_t dim, Chain *c)
{
	*c = (Chain){ 0 };
	if ((c->rope = only_def(f, v, OP_rope))) {
		if (op_int(c->rope, "first") != 0)
			return false;
		v = c->rope->arg[ARG(rope, x)];
	}
	if ((c->norm = only_def(f, v, OP_rmsnorm))) {
		if (op_int(c->norm, "groups") != heads || op_int(c->norm, "dim") != dim)
			return false;
		v = c->norm->arg[ARG(rmsnorm, x)];
	}
	c->mat = only_def(f, v, OP_matmul);
	return c->mat != NULL;
}

static bool
same_num(const Op *a, const Op *b, const char *key)
{
	return op_num(a, key) == op_num(b, key) && op_int(a, key) == op_int(b, key);
}

/* Do a and b read the same, or both nothing, as this argument? */
static bool
same_arg(const Op *a, const Op *b, int arg)
{
	return a->arg[arg] == b->arg[arg];
}

static bool
both_have(const Op *a, const Op *b, int arg)
{
	return (a->arg[arg] < 0) == (b->arg[arg] < 0);
}

static bool
chains_agree(const Chain *q, const Chain *k, const Op *v)
{
	if (!q->rope != !k->rope || !q->norm != !k->norm || !same_arg(q->mat, k->mat, ARG(matmul, x)) || !same_arg(q->mat, v, ARG(matmul, x)))
		return false;
	if (q->rope && (!same_arg(q->rope, k->rope, ARG(rope, rope)) || !same_num(q->rope, k->rope, "rope_dims") ||
	                strcmp(op_word(q->rope, "style"), op_word(k->rope, "style")) != 0))
		return false;
	if (q->norm && (!same_num(q->norm, k->norm, "eps") || !same_num(q->norm, k->norm, "plus_one")))
		return false;
	return both_have(q->mat, k->mat, ARG(matmul, b)) && both_have(k->mat, v, ARG(matmul, b));
}

static void
chain_makes(const Fuse *f, Op *op, const Chain *c)
{
	op_makes(op, name_of(f, c->mat->arg[ARG(matmul, y)]));
	if (c->norm)
		op_makes(op, name_of(f, c->norm->arg[ARG(rmsnorm, y)]));
	if (c->rope)
		op_makes(op, name_of(f, c->rope->arg[ARG(rope, y)]));
}

/* The matmuls' weights as one, and their biases; false: they do not fit together. bias -1: they have none. */
static bool
stack_matmuls(Fuse *f, int layer, const char *role, Op *const *mat, int n, int *weight, int *bias)
{
	int w[3], b[3];

	for (int i = 0; i < n; i++) {
		w[i] = mat[i]->arg[ARG(matmul, w)];
		b[i] = mat[i]->arg[ARG(matmul, b)];
	}
	*weight = stack(f, layer, role, w, n);
	*bias = b[0] < 0 ? -1 : stack(f, layer, arena_printf(f->g->arena, "%s.bias", role), b, n);
	return *weight >= 0 && (b[0] < 0 || *bias >= 0);
}

/* q, k, v = matmuls of one h; per-head norms; rope; kv_append  ->  q, done = norm_qkv(x, ...)
 *
 * requires: q, k, v and all between them and the cache are read by nothing else; one dtype; V dim = head dim
 * keeps:    q as attention reads it, the order value
 * effect:   one read of x, one weight stream; k and v go straight to the cache. */
static int
fuse_norm_qkv(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *append = &g->op[i];
		if (append->kind != OP_kv_append)
			continue;
		Op *att = NULL;
		for (size_t j = i + 1; j < g->n_op && !att; j++)
			if (g->op[j].kind == OP_attention && g->op[j].arg[ARG(attention, done)] == append->arg[ARG(kv_append, done)])
				att = &g->op[j];
		int64_t kv_heads = op_int(append, "kv_heads"), dim = op_int(append, "dim");
		int     w, b, rotated = att ? att->arg[ARG(attention, q)] : -1;
		Chain   q, k;
		Op     *v = only_def(f, append->arg[ARG(kv_append, v)], OP_matmul);
		if (!att || !v || dim != op_int(append, "v_dim") || !chain_match(f, rotated, op_int(att, "heads"), dim, &q) ||
		    !chain_match(f, append->arg[ARG(kv_append, k)], kv_heads, dim, &k) || !chains_agree(&q, &k, v) ||
		    !stack_matmuls(f, append->layer, "qkv", (Op *[]){ q.mat, k.mat, v }, 3, &w, &b))
			continue;
		int   h = v->arg[ARG(matmul, x)];
		Front front[2] = { front_norm(f, h, 0), front_plain(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < 2; t++) {
			Op op = fused_op(OP_norm_qkv, q.mat, OP_ARGS(norm_qkv, .x = front[t].x, .nw = front[t].nw, .nb = front[t].nb, .w = w, .b = b,
			                                          .qn = q.norm ? q.norm->arg[ARG(rmsnorm, w)] : -1,
			                                          .kn = k.norm ? k.norm->arg[ARG(rmsnorm, w)] : -1,
			                                          .rope = q.rope ? q.rope->arg[ARG(rope, rope)] : -1,
			                                          .kv = append->arg[ARG(kv_append, kv)], .q = rotated,
			                                          .done = append->arg[ARG(kv_append, done)]));
			op_set_int(g, &op, "hidden", op_int(v, "cols"));
			op_set_int(g, &op, "heads", op_int(att, "heads"));
			op_set_int(g, &op, "kv_heads", kv_heads);
			op_set_int(g, &op, "dim", dim);
			op_makes(&op, name_of(f, rotated));
			set_front(f, &op, &front[t]);
			op_set_num(g, &op, "qk_eps", q.norm ? op_num(q.norm, "eps") : 0);
			op_set_int(g, &op, "qk_plus_one", q.norm ? op_int(q.norm, "plus_one") : 0);
			op_set_int(g, &op, "rope_dims", q.rope ? op_int(q.rope, "rope_dims") : 0);
			op_set_word(g, &op, "style", q.rope ? op_word(q.rope, "style") : "half");
			if (!accepted(f, &op))
				continue;
			chain_makes(f, &op, &q);
			chain_makes(f, &op, &k);
			op_makes(&op, name_of(f, v->arg[ARG(matmul, y)]));
			Op *gone[] = { q.rope, q.norm, q.mat, k.rope, k.norm, k.mat, v };
			for (size_t d = 0; d < sizeof gone / sizeof *gone; d++)
				if (gone[d])
					drop(f, gone[d]);
			place(f, append, &op);
			n++;
			break;
		}
	}
	return n;
}

/* The ops around one mla_attention, as build made them: query and latent on their way to it */
typedef struct Latent {
	Op *att, *append;
	Op *q_rope, *q_b, *q_norm, *q;   /* q_b, q_norm: where there is a query latent; q: the matmul of the normed row */
	Op *norm, *latent, *key, *k_rope, *kv;
} Latent;

static bool
latent_match(const Fuse *f, Op *att, Latent *m)
{
	int64_t heads = op_int(att, "heads"), nope = op_int(att, "nope_dim"), rope = op_int(att, "rope_dim"), rank = op_int(att, "kv_rank");
	int     q = att->arg[ARG(mla_attention, q)], c, k;

	*m = (Latent){ .att = att, .append = only_def(f, att->arg[ARG(mla_attention, done)], OP_mla_append) };
	if (!m->append)
		return false;
	c = m->append->arg[ARG(mla_append, latent)];
	k = m->append->arg[ARG(mla_append, rope_k)];
	if ((m->q_rope = only_def(f, q, OP_rope))) {
		if (op_int(m->q_rope, "heads") != heads || op_int(m->q_rope, "dim") != nope + rope || op_int(m->q_rope, "first") != nope ||
		    op_int(m->q_rope, "rope_dims") != rope)
			return false;
		q = m->q_rope->arg[ARG(rope, x)];
	}
	if (!(m->q = only_def(f, q, OP_matmul)))
		return false;
	if ((m->q_norm = only_def(f, m->q->arg[ARG(matmul, x)], OP_rmsnorm)) && op_int(m->q_norm, "groups") == 1 &&
	    only_def(f, m->q_norm->arg[ARG(rmsnorm, x)], OP_matmul) && m->q->arg[ARG(matmul, b)] < 0) {
		m->q_b = m->q;
		m->q = def(f, m->q_norm->arg[ARG(rmsnorm, x)]);
	} else {
		m->q_norm = NULL;
	}
	if (!(m->norm = only_def(f, c, OP_rmsnorm)) || op_int(m->norm, "groups") != 1 || op_int(m->norm, "plus_one") ||
	    !(m->latent = only_def(f, m->norm->arg[ARG(rmsnorm, x)], OP_slice)) || op_int(m->latent, "first") != 0)
		return false;
	if ((m->k_rope = only_def(f, k, OP_rope)))
		k = m->k_rope->arg[ARG(rope, x)];
	if (!m->q_rope != !m->k_rope || !(m->key = only_def(f, k, OP_slice)) || op_int(m->key, "first") != rank || !same_arg(m->key, m->latent, ARG(slice, x)))
		return false;
	if (m->q_rope && (!same_arg(m->q_rope, m->k_rope, ARG(rope, rope)) || op_int(m->k_rope, "rope_dims") != rope ||
	                  strcmp(op_word(m->q_rope, "style"), op_word(m->k_rope, "style")) != 0))
		return false;
	if (m->q_norm && (!same_num(m->q_norm, m->norm, "eps") || op_int(m->q_norm, "plus_one")))
		return false;
	m->kv = def(f, m->latent->arg[ARG(slice, x)]);
	return m->kv && m->kv->kind == OP_matmul && uses_of(f, m->kv->arg[ARG(matmul, y)]) == 2 && same_arg(m->kv, m->q, ARG(matmul, x));
}

/* The pairs of a row and a position that cost as much more absorbed than expanded as one position's expansion costs, in operations
 * of one head; 0: a prompt is never cheaper expanded, or rows must not depend on their company. */
static int64_t
expand_pairs(const Graph *g, const Op *att)
{
	int64_t rank = op_int(att, "kv_rank"), rope = op_int(att, "rope_dim"), nope = op_int(att, "nope_dim"), v_dim = op_int(att, "v_dim");
	int64_t absorbed = 2 * rank + rope, expanded = nope + rope + v_dim;

	if (g->spec->attention.form == MLA_EXPANDED && nope <= rank && v_dim <= rank)
		return MLA_EXPAND_ALWAYS;
	if (g->spec->attention.form == MLA_ABSORBED || g->spec->deterministic || nope > rank || v_dim > rank || expanded >= absorbed)
		return 0;
	return (rank * (nope + v_dim) + absorbed - expanded - 1) / (absorbed - expanded);
}

static int
new_value(Fuse *f, const Op *like, ValueKind kind, const char *name)
{
	Graph *g = f->g;

	return graph_value(g, kind, arena_printf(g->arena, "L%d.%s", like->layer, name), like->loc);
}

/* A value made by fusion has the width that its op's row says. */
static void
value_width(Fuse *f, const Op *op, int arg)
{
	ArgShape shape[OP_MAX_ARGS];

	graph_shapes(f->g, op, shape);
	f->g->val[op->arg[arg]].dim[1] = shape[arg].cols;
}

/* q_a, kv_a = matmuls of one h; norms of both latents; q_b; ropes; mla_append; mla_attention
 *   ->  a = norm_matmul(h, [q_a; kv_a]);  q, done = mla_query(a);  o = mla_attend(q);  y = mla_value(o)
 *
 * requires: all between h and y is read by nothing else. Of several dtypes, q_a and kv_a stay two products
 * keeps:    y, the order value
 * effect:   4 steps for 11; one read of h; the key and the normed latent go straight to the cache; k_b is read once a step. */
static int
fuse_mla(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Latent m;
		if (g->op[i].kind != OP_mla_attention || !latent_match(f, &g->op[i], &m))
			continue;
		Op     *att = m.att;
		int64_t heads = op_int(att, "heads"), nope = op_int(att, "nope_dim"), rope = op_int(att, "rope_dim");
		int64_t rank = op_int(att, "kv_rank"), v_dim = op_int(att, "v_dim"), best = expand_pairs(g, att);
		int     w = -1, b = -1, k_b = att->arg[ARG(mla_attention, k_b)], v_b = att->arg[ARG(mla_attention, v_b)];
		int     kv = att->arg[ARG(mla_attention, kv)], done = att->arg[ARG(mla_attention, done)];
		bool    stacked = both_have(m.q, m.kv, ARG(matmul, b)) && stack_matmuls(f, att->layer, "qkv_a", (Op *[]){ m.q, m.kv }, 2, &w, &b);
		int     a = stacked ? new_value(f, att, VAL_ACT, "qkv_a") : m.q->arg[ARG(matmul, y)];
		int     c = stacked ? -1 : m.kv->arg[ARG(matmul, y)];
		int     q = new_value(f, att, VAL_ACT, "q_mla"), o = new_value(f, att, VAL_ACT, "o_mla");
		int     h = m.q->arg[ARG(matmul, x)];
		Front   front[2] = { front_norm(f, h, 0), front_plain(h) };
		Op      first = { 0 }, query, attend, value;
		bool    taken = false;
		for (int t = stacked && front[0].norm < 0 ? 1 : 0; stacked && t < 2 && !taken; t++) {
			first = fused_op(OP_norm_matmul, m.q, OP_ARGS(norm_matmul, .x = front[t].x, .nw = front[t].nw, .nb = front[t].nb, .w = w, .b = b, .y = a));
			op_set_int(g, &first, "rows", op_int(m.q, "rows") + op_int(m.kv, "rows"));
			op_set_int(g, &first, "cols", op_int(m.q, "cols"));
			op_makes(&first, name_of(f, a));
			set_front(f, &first, &front[t]);
			value_width(f, &first, ARG(norm_matmul, y));
			taken = accepted(f, &first);
		}
		if (stacked && !taken)
			continue;
		taken = false;
		const int64_t ways[] = { best, best > 0 ? MLA_EXPAND_OWN : 0, 0 }; /* the cheapest that templates take */
		for (int t = 0; t < 3 && !taken; t++) {
			int64_t expand = ways[t];
			query = fused_op(OP_mla_query, m.q, OP_ARGS(mla_query, .a = a, .c = c, .qn = m.q_norm ? m.q_norm->arg[ARG(rmsnorm, w)] : -1,
			                                         .q_b = m.q_b ? m.q_b->arg[ARG(matmul, w)] : -1, .kvn = m.norm->arg[ARG(rmsnorm, w)],
			                                         .k_b = k_b, .rope = m.q_rope ? m.q_rope->arg[ARG(rope, rope)] : -1, .kv = kv,
			                                         .q = q, .done = done));
			op_set_int(g, &query, "heads", heads);
			op_set_int(g, &query, "q_rank", m.q_b ? op_int(m.q_b, "cols") : 0);
			op_set_int(g, &query, "kv_rank", rank);
			op_set_int(g, &query, "nope_dim", nope);
			op_set_int(g, &query, "rope_dim", rope);
			op_set_int(g, &query, "stacked", stacked);
			op_set_int(g, &query, "expand", expand);
			op_set_num(g, &query, "eps", op_num(m.norm, "eps"));
			op_set_word(g, &query, "style", m.q_rope ? op_word(m.q_rope, "style") : "none");
			attend = fused_op(OP_mla_attend, att, OP_ARGS(mla_attend, .q = q, .k_b = expand > 0 ? k_b : -1, .v_b = expand > 0 ? v_b : -1,
			                                           .kv = kv, .done = done, .o = o));
			op_set_int(g, &attend, "heads", heads);
			op_set_int(g, &attend, "kv_rank", rank);
			op_set_int(g, &attend, "nope_dim", nope);
			op_set_int(g, &attend, "rope_dim", rope);
			op_set_int(g, &attend, "v_dim", v_dim);
			op_set_int(g, &attend, "expand", expand);
			op_set_num(g, &attend, "scale", op_num(att, "scale"));
			value = fused_op(OP_mla_value, att, OP_ARGS(mla_value, .o = o, .v_b = v_b, .y = att->arg[ARG(mla_attention, y)]));
			op_set_int(g, &value, "heads", heads);
			op_set_int(g, &value, "kv_rank", rank);
			op_set_int(g, &value, "v_dim", v_dim);
			op_set_int(g, &value, "expand", expand);
			value_width(f, &query, ARG(mla_query, q));
			value_width(f, &attend, ARG(mla_attend, o));
			taken = accepted(f, &query) && accepted(f, &attend) && accepted(f, &value);
		}
		if (!taken)
			continue;
		op_makes(&query, name_of(f, q));
		op_makes(&attend, name_of(f, o));
		op_makes(&value, name_of(f, att->arg[ARG(mla_attention, y)]));
		/* four of the ops' places, in their order: a's, where both have been made; the append's; one before the attention's and its own */
		Op *gone[] = { m.q_rope, m.q_b, m.q_norm, m.norm, m.latent, m.key, m.k_rope, stacked ? m.q : NULL, stacked ? m.kv : NULL };
		for (size_t d = 0; d < sizeof gone / sizeof *gone; d++)
			if (gone[d])
				drop(f, gone[d]);
		if (stacked)
			place(f, m.kv, &first);
		place(f, m.key, &query);
		place(f, m.append, &attend);
		place(f, att, &value);
		n++;
	}
	return n;
}

/* y = glu(matmul(h, gate), matmul(h, up))  ->  y = norm_glu(x, [gate; up])
 *
 * requires: gate and up of one dtype, read by the glu alone
 * keeps:    y
 * effect:   one weight stream; gate and up never reach memory. */
static int
fuse_norm_glu(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *glu = &g->op[i];
		if (glu->kind != OP_glu)
			continue;
		int w, b, y = glu->arg[ARG(glu, y)];
		Op *gate = only_def(f, glu->arg[ARG(glu, g)], OP_matmul), *up = only_def(f, glu->arg[ARG(glu, u)], OP_matmul);
		if (!gate || !up || !same_arg(gate, up, ARG(matmul, x)) || !both_have(gate, up, ARG(matmul, b)))
			continue;
		bool shared = strstr(name_of(f, gate->arg[ARG(matmul, w)]), "s_gate") != NULL;
		if (!stack_matmuls(f, glu->layer, shared ? "s_gate_up" : "gate_up", (Op *[]){ gate, up }, 2, &w, &b))
			continue;
		int   h = gate->arg[ARG(matmul, x)];
		Front front[2] = { front_norm(f, h, 0), front_plain(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < 2; t++) {
			Op op = fused_op(OP_norm_glu, gate,
			                 OP_ARGS(norm_glu, .x = front[t].x, .nw = front[t].nw, .nb = front[t].nb, .w = w, .b = b, .y = y));
			op_set_int(g, &op, "rows", op_int(gate, "rows"));
			op_set_int(g, &op, "cols", op_int(gate, "cols"));
			op_makes(&op, name_of(f, y));
			set_front(f, &op, &front[t]);
			op_set_word(g, &op, "act", op_word(glu, "act"));
			if (!accepted(f, &op))
				continue;
			op_makes(&op, name_of(f, gate->arg[ARG(matmul, y)]));
			op_makes(&op, name_of(f, up->arg[ARG(matmul, y)]));
			drop(f, gate);
			drop(f, up);
			place(f, glu, &op);
			n++;
			break;
		}
	}
	return n;
}

/* y = f(matmul(norm(x))) for f = act or nothing  ->  norm_act or norm_matmul.
 *
 * requires: for act, that nothing else reads the matmul; for a plain matmul, a norm that only matmuls read
 * keeps:    y
 * effect:   the normed row is not written; several readers of one norm each repeat it. */
static int
fuse_norm_matmul(Fuse *f, bool with_act)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *last = &g->op[i], *mat = last;
		if (last->kind != (with_act ? OP_act : OP_matmul))
			continue;
		if (with_act && !(mat = only_def(f, last->arg[ARG(act, x)], OP_matmul)))
			continue;
		int   h = mat->arg[ARG(matmul, x)], w = mat->arg[ARG(matmul, w)], b = mat->arg[ARG(matmul, b)];
		int   y = last->arg[with_act ? ARG(act, y) : ARG(matmul, y)];
		Front front[2] = { front_norm(f, h, 0), front_plain(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < (with_act ? 2 : 1); t++) {
			int x = front[t].x, nw = front[t].nw, nb = front[t].nb;
			Op  op = with_act ? fused_op(OP_norm_act, mat, OP_ARGS(norm_act, .x = x, .nw = nw, .nb = nb, .w = w, .b = b, .y = y))
			                  : fused_op(OP_norm_matmul, mat, OP_ARGS(norm_matmul, .x = x, .nw = nw, .nb = nb, .w = w, .b = b, .y = y));
			op_set_int(g, &op, "rows", op_int(mat, "rows"));
			op_set_int(g, &op, "cols", op_int(mat, "cols"));
			op_makes(&op, name_of(f, y));
			set_front(f, &op, &front[t]);
			if (with_act)
				op_set_word(g, &op, "act", op_word(last, "act"));
			if (!accepted(f, &op))
				continue;
			if (with_act) {
				op_makes(&op, name_of(f, mat->arg[ARG(matmul, y)]));
				drop(f, mat);
			}
			place(f, last, &op);
			n++;
			break;
		}
	}
	return n;
}

/* What a mixture's feed-forward is made of: its ops; the shared expert's, where it fits in; who adds the result to what. */
typedef struct Mixture {
	Op *logits, *route, *ffn;
	Op *gate, *up, *glu, *down, *mix, *gated, *sum; /* shared expert: NULL without; mix, gated: without a gate */
	Op *add;                                        /* NULL: the result goes elsewhere */
	int r, y;                                       /* what the result is added to, or -1; what comes out */
} Mixture;

/* The only reader of v, if it is an add. */
static Op *
only_add(const Fuse *f, int v)
{
	if (uses_of(f, v) != 1)
		return NULL;
	for (size_t i = 0; i < f->g->n_op; i++) {
		Op *op = &f->g->op[i];
		if (op->kind == OP_add && (op->arg[ARG(add, x)] == v || op->arg[ARG(add, r)] == v))
			return op;
	}
	return NULL;
}

static Op *
only_matmul(const Fuse *f, int v, int x)
{
	Op *op = only_def(f, v, OP_matmul);
	return op && op->arg[ARG(matmul, b)] < 0 && (x < 0 || op->arg[ARG(matmul, x)] == x) ? op : NULL;
}

/* The shared expert that is added to the routed ones, if it reads what they read, has their activation and no bias. */
static bool
match_shared(const Fuse *f, Mixture *m)
{
	int h = m->ffn->arg[ARG(moe_ffn, x)], y = m->ffn->arg[ARG(moe_ffn, y)];

	m->sum = only_add(f, y);
	if (!m->sum || op_num(m->sum, "scale") != 1)
		return false;
	int z = m->sum->arg[m->sum->arg[ARG(add, x)] == y ? ARG(add, r) : ARG(add, x)];
	if ((m->gated = only_def(f, z, OP_gate_mul))) {
		if (!(m->mix = only_matmul(f, m->gated->arg[ARG(gate_mul, s)], h)))
			return false;
		z = m->gated->arg[ARG(gate_mul, x)];
	}
	if (!(m->down = only_matmul(f, z, -1)) || !(m->glu = only_def(f, m->down->arg[ARG(matmul, x)], OP_glu)))
		return false;
	m->gate = only_matmul(f, m->glu->arg[ARG(glu, g)], h);
	m->up = only_matmul(f, m->glu->arg[ARG(glu, u)], h);
	return m->gate && m->up && m->gate != m->up && strcmp(op_word(m->glu, "act"), op_word(m->ffn, "act")) == 0;
}

static bool
match_mixture(const Fuse *f, Op *ffn, bool with_shared, Mixture *m)
{
	*m = (Mixture){ .ffn = ffn, .r = -1 };
	int h = ffn->arg[ARG(moe_ffn, x)], id = ffn->arg[ARG(moe_ffn, id)], weight = ffn->arg[ARG(moe_ffn, weight)];
	m->route = only_def(f, id, OP_moe_route);
	if (!m->route || uses_of(f, weight) != 1 || m->route->arg[ARG(moe_route, weight)] != weight ||
	    !(m->logits = only_matmul(f, m->route->arg[ARG(moe_route, logits)], h)) || (with_shared && !match_shared(f, m)))
		return false;
	m->y = with_shared ? m->sum->arg[ARG(add, y)] : ffn->arg[ARG(moe_ffn, y)];
	m->add = only_add(f, m->y);
	if (m->add && m->add->arg[ARG(add, r)] == m->y)
		m->r = m->add->arg[ARG(add, x)];
	else if (m->add && op_num(m->add, "scale") == 1) /* scale is x's */
		m->r = m->add->arg[ARG(add, r)];
	else
		m->add = NULL;
	m->y = m->add ? m->add->arg[ARG(add, y)] : m->y;
	return true;
}

/* The router with the gate of the shared expert below it; -1: of another type */
static int
router_with(Fuse *f, const Mixture *m)
{
	int w[2] = { m->logits->arg[ARG(matmul, w)], m->mix ? m->mix->arg[ARG(matmul, w)] : -1 };

	return m->mix ? stack(f, m->ffn->layer, "router_mix", w, 2) : w[0];
}

/* A value of the fused graph alone, of so many elements a row */
static int
row_value(Fuse *f, const Op *like, const char *role, int64_t width)
{
	Graph *g = f->g;
	int    v = graph_value(g, VAL_ACT, arena_printf(g->arena, "L%d.%s", like->layer, role), like->loc);

	g->val[v].dtype = DT_F32;
	g->val[v].rows = g->val[like->arg[ARG(moe_ffn, y)]].rows;
	g->val[v].dim[0] = 1;
	g->val[v].dim[1] = width;
	return v;
}

static int
arg_of(const Op *op, int arg)
{
	return op ? op->arg[arg] : -1;
}

/* The three ops of a mixture */
static void
make_mixture(Fuse *f, const Mixture *m, const Front *front, int router, Op op[3])
{
	Graph   *g = f->g;
	const Op *ffn = m->ffn;
	int64_t  top_k = op_int(ffn, "top_k"), width = op_int(ffn, "width"), shared = m->gate ? op_int(m->gate, "rows") : 0, mix = m->mix != NULL;
	int      id = ffn->arg[ARG(moe_ffn, id)], weight = ffn->arg[ARG(moe_ffn, weight)];
	int      h = row_value(f, ffn, "experts_act", top_k * width + shared);

	if (mix)
		weight = row_value(f, ffn, "expert_weight_mix", top_k + 1);
	op[0] = fused_op(OP_norm_route, m->route, OP_ARGS(norm_route, .x = front->x, .nw = front->nw, .nb = front->nb, .w = router,
	                                                 .bias = m->route->arg[ARG(moe_route, bias)], .id = id, .weight = weight));
	op[1] = fused_op(OP_norm_moe_glu, ffn, OP_ARGS(norm_moe_glu, .x = front->x, .nw = front->nw, .nb = front->nb, .id = id,
	                                               .gate = ffn->arg[ARG(moe_ffn, gate)], .up = ffn->arg[ARG(moe_ffn, up)],
	                                               .s_gate = arg_of(m->gate, ARG(matmul, w)), .s_up = arg_of(m->up, ARG(matmul, w)), .h = h));
	op[2] = fused_op(OP_moe_down_add, ffn, OP_ARGS(moe_down_add, .h = h, .id = id, .weight = weight, .down = ffn->arg[ARG(moe_ffn, down)],
	                                               .s_down = arg_of(m->down, ARG(matmul, w)), .r = m->r, .y = m->y));
	for (int i = 0; i < 3; i++) {
		op_set_int(g, &op[i], "n_experts", op_int(ffn, "n_experts"));
		op_set_int(g, &op[i], "top_k", top_k);
		op_set_int(g, &op[i], "hidden", op_int(ffn, "hidden"));
		if (i > 0) {
			op_set_int(g, &op[i], "width", width);
			op_set_int(g, &op[i], "shared", shared);
		}
		if (i != 1)
			op_set_int(g, &op[i], "mix", mix);
	}
	for (int i = 0; i < m->route->n_attr; i++) { /* of the choice: all but the two that are set */
		const Attr *a = &m->route->attr[i];
		if (a->kind == ATTR_WORD)
			op_set_word(g, &op[0], a->key, a->s);
		else if (a->kind == ATTR_NUM)
			op_set_num(g, &op[0], a->key, a->f);
		else if (strcmp(a->key, "n_experts") != 0 && strcmp(a->key, "top_k") != 0)
			op_set_int(g, &op[0], a->key, a->i);
	}
	set_front(f, &op[0], front);
	op_set_word(g, &op[1], "act", op_word(ffn, "act"));
	set_front(f, &op[1], front);
	op_set_num(g, &op[2], "scale", m->add && m->r == m->add->arg[ARG(add, x)] ? op_num(m->add, "scale") : 1);
}

/* What the ops of the unfused graph made */
static void
mixture_makes(const Fuse *f, const Mixture *m, Op op[3])
{
	op_makes(&op[0], name_of(f, m->logits->arg[ARG(matmul, y)]));
	op_makes(&op[0], name_of(f, m->route->arg[ARG(moe_route, weight)]));
	op_makes(&op[2], name_of(f, m->y));
	op_makes(&op[2], name_of(f, m->ffn->arg[ARG(moe_ffn, y)]));
	for (int i = 0; m->down && i < 3; i++) {
		const Op *part = (const Op *[]){ m->down, m->gated, m->sum }[i];
		if (part)
			op_makes(&op[2], name_of(f, part->arg[op_info[part->kind].n_in]));
	}
}

/* moe_route(matmul(h)), moe_ffn(h, ...) [+ the shared expert], add  ->  norm_route, norm_moe_glu, moe_down_add
 *
 * requires: what lies between them is read by nothing else; templates for all three
 * keeps:    the experts' numbers; what the last of the replaced ops makes
 * effect:   three steps, whatever the number of experts; the normed row, the shared expert and its gate never reach memory on their own.
 *           The norm goes in where all other readers of its result can do without it; the shared expert stays apart where it
 *           has biases, or where templates want that: the result is then added to it. */
static int
fuse_mixture(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		if (g->op[i].kind != OP_moe_ffn)
			continue;
		bool done = false;
		for (int with_shared = 1; with_shared >= 0 && !done; with_shared--) {
			Mixture m;
			int     router;
			if (!match_mixture(f, &g->op[i], with_shared, &m) || (router = router_with(f, &m)) < 0)
				continue;
			int   h = m.ffn->arg[ARG(moe_ffn, x)];
			Front front[2] = { front_norm(f, h, 1), front_plain(h) };
			for (int t = front[0].norm < 0 ? 1 : 0; t < 2 && !done; t++) {
				Op op[3];
				make_mixture(f, &m, &front[t], router, op);
				if (!accepted(f, &op[0]) || !accepted(f, &op[1]) || !accepted(f, &op[2]))
					continue;
				mixture_makes(f, &m, op);
				Op *last = m.add ? m.add : m.sum ? m.sum : m.ffn;
				Op *gone[] = { m.ffn, m.gate, m.up, m.glu, m.down, m.mix, m.gated, m.sum };
				for (size_t d = 0; d < sizeof gone / sizeof *gone; d++)
					if (gone[d] && gone[d] != last)
						drop(f, gone[d]);
				place(f, m.logits, &op[0]);
				place(f, m.route, &op[1]);
				place(f, last, &op[2]);
				done = true;
				n++;
			}
		}
	}
	return n;
}

/* y = add(r, matmul(x, w))  ->  y = matmul_add(x, w, r)
 *
 * requires: the matmul's result is read by the add alone (a sandwich norm between them keeps them apart)
 * keeps:    y: the residual stream, in r's memory where r ends here
 * effect:   one pass over the row less; the block's output is not written on its own. */
static int
fuse_matmul_add(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *add = &g->op[i];
		if (add->kind != OP_add)
			continue;
		Op *mat = only_def(f, add->arg[ARG(add, r)], OP_matmul);
		if (!mat || add->arg[ARG(add, x)] == add->arg[ARG(add, r)])
			continue;
		Op op = fused_op(OP_matmul_add, mat,
		                 OP_ARGS(matmul_add, .x = mat->arg[ARG(matmul, x)], .w = mat->arg[ARG(matmul, w)], .b = mat->arg[ARG(matmul, b)],
		                      .r = add->arg[ARG(add, x)], .y = add->arg[ARG(add, y)]));
		op_set_int(g, &op, "rows", op_int(mat, "rows"));
		op_set_int(g, &op, "cols", op_int(mat, "cols"));
		op_set_num(g, &op, "scale", op_num(add, "scale"));
		op_makes(&op, name_of(f, add->arg[ARG(add, y)]));
		op_makes(&op, name_of(f, mat->arg[ARG(matmul, y)]));
		if (!accepted(f, &op))
			continue;
		drop(f, mat);
		place(f, add, &op);
		n++;
	}
	return n;
}

/* logits = cap(matmul(norm(pick(x)), w))  ->  logits = head(x, w); cap and norm may be missing
 *
 * requires: a head without bias, each step read by the next alone
 * keeps:    logits
 * effect:   rows whose logits nobody wants are not touched. */
static int
fuse_head(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *mat = &g->op[i];
		int h = mat->arg[ARG(matmul, x)], y = mat->arg[ARG(matmul, y)];
		if (mat->kind != OP_matmul || mat->arg[ARG(matmul, b)] >= 0 || g->val[y].rows != SYM_n_out)
			continue;
		Op   *last = mat, *pick;
		Front front = front_norm(f, h, 0);
		Op   *norm = front.norm >= 0 ? only_def(f, h, def(f, h)->kind) : NULL;
		if (front.norm >= 0 && !norm)
			front = front_plain(h);
		if (!(pick = only_def(f, front.x, OP_pick)))
			continue;
		for (size_t j = i + 1; j < g->n_op; j++)
			if (g->op[j].kind == OP_cap && g->op[j].arg[ARG(cap, x)] == y && uses_of(f, y) == 1)
				last = &g->op[j];
		int logits = last->kind == OP_cap ? last->arg[ARG(cap, y)] : y;
		Op  op = fused_op(OP_head, mat, OP_ARGS(head, .x = pick->arg[ARG(pick, x)], .nw = front.nw, .nb = front.nb,
		                                     .w = mat->arg[ARG(matmul, w)], .logits = logits));
		op_set_int(g, &op, "rows", op_int(mat, "rows"));
		op_set_int(g, &op, "cols", op_int(mat, "cols"));
		op_makes(&op, name_of(f, logits));
		set_front(f, &op, &front);
		op_set_num(g, &op, "cap", last->kind == OP_cap ? op_num(last, "cap") : 0);
		op_makes(&op, name_of(f, y));
		op_makes(&op, name_of(f, pick->arg[ARG(pick, y)]));
		if (!accepted(f, &op))
			continue;
		drop(f, pick);
		if (norm)
			drop(f, norm);
		if (last != mat)
			drop(f, mat);
		place(f, last, &op);
		n++;
	}
	return n;
}

/* Ops whose results nobody reads any more: norms that went into all their readers.
 * requires: topological order; keeps: the last op (logits); effect: they are nops. */
static int
drop_dead(Fuse *f)
{
	Graph *g = f->g;
	int    n = 0;

	for (size_t i = g->n_op; i-- > 1;) { /* all but the last, which makes the logits */
		Op  *op = &g->op[i - 1];
		bool dead = op->kind != OP_nop;
		for (int k = op_info[op->kind].n_in; k < op_info[op->kind].n_arg; k++)
			dead = dead && (op->arg[k] < 0 || uses_of(f, op->arg[k]) == 0);
		if (dead) {
			drop(f, op);
			n++;
		}
	}
	return n;
}

static int
pass_norm_act(Fuse *f)
{
	return fuse_norm_matmul(f, true);
}

static int
pass_norm_matmul(Fuse *f)
{
	return fuse_norm_matmul(f, false);
}

int
graph_fuse(Graph *g, const Templates *ts, Strbuf *log)
{
	static const struct { const char *name; int (*run)(Fuse *); } pass[] = {
		{ "mixture", fuse_mixture },         { "norm_qkv", fuse_norm_qkv },
		{ "mla", fuse_mla },                 { "norm_glu", fuse_norm_glu },
		{ "norm_act", pass_norm_act },       { "head", fuse_head },
		{ "matmul_add", fuse_matmul_add },   { "norm_matmul", pass_norm_matmul },
		{ "unused", drop_dead },
	};
	Fuse f = { .g = g, .ts = ts };
	int  total = 0;

	for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
		recount(&f);
		int n = pass[i].run(&f);
		graph_verify(g, pass[i].name);
		total += n;
		if (log)
			strbuf_printf(log, "%s: %d\n", pass[i].name, n);
	}
	graph_sweep(g);
	graph_verify(g, "sweep");
	return total;
}
