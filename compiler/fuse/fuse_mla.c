/* Fusion of latent attention into three ops: query and append, attention over latents, values.
 * fuse.c describes the contract of a pass. */
#include "compiler/fuse/fuse.h"

#include <string.h>

#include "templates/common/llmc_mla.h"

/* Ops around one mla_attention, as build_mla.c makes them from query and latent on */
typedef struct Latent {
	Op *att, *append, *q_temperature; /* factor of queries by position, or NULL */
	Op *q_rope, *q_b, *q_norm,
	    *q; /* q_b, q_norm: only with a query latent; q: matmul of the normed row */
	Op *norm, *latent, *key, *k_rope, *kv;
	bool indexed; /* true if an indexer also reads the normed query latent */
} Latent;

static bool
latent_match(const Fuse *f, Op *att, Latent *m)
{
	int64_t heads = op_int(att, "heads"), nope = op_int(att, "nope_dim"),
	        rope = op_int(att, "rope_dim"), rank = op_int(att, "kv_rank");
	int q = att->arg[ARG(mla_attention, q)], c, k;

	*m = (Latent){ .att = att,
		       .append =
		           fuse_only_def(f, att->arg[ARG(mla_attention, done)], OP_mla_append) };
	if (!m->append)
		return false;
	c = m->append->arg[ARG(mla_append, latent)];
	k = m->append->arg[ARG(mla_append, rope_k)];
	if ((m->q_temperature = fuse_only_def(f, q, OP_pos_scale)))
		q = m->q_temperature->arg[ARG(pos_scale, x)];
	if ((m->q_rope = fuse_only_def(f, q, OP_rope))) {
		if (op_int(m->q_rope, "heads") != heads ||
		    op_int(m->q_rope, "dim") != nope + rope || op_int(m->q_rope, "first") != nope ||
		    op_int(m->q_rope, "rope_dims") != rope)
			return false;
		q = m->q_rope->arg[ARG(rope, x)];
	}
	if (!(m->q = fuse_only_def(f, q, OP_matmul)))
		return false;
	m->indexed =
	    att->arg[ARG(mla_attention, sel)] >= 0 && fuse_uses(f, m->q->arg[ARG(matmul, x)]) > 1;
	m->q_norm = fuse_def(f, m->q->arg[ARG(matmul, x)]);
	if (m->q_norm && m->q_norm->kind == OP_rmsnorm &&
	    (m->indexed || fuse_uses(f, m->q->arg[ARG(matmul, x)]) == 1) &&
	    op_int(m->q_norm, "groups") == 1 &&
	    fuse_only_def(f, m->q_norm->arg[ARG(rmsnorm, x)], OP_matmul) &&
	    m->q->arg[ARG(matmul, b)] < 0) {
		m->q_b = m->q;
		m->q = fuse_def(f, m->q_norm->arg[ARG(rmsnorm, x)]);
	} else {
		m->q_norm = NULL;
	}
	if (!(m->norm = fuse_only_def(f, c, OP_rmsnorm)) || op_int(m->norm, "groups") != 1 ||
	    op_int(m->norm, "plus_one") ||
	    !(m->latent = fuse_only_def(f, m->norm->arg[ARG(rmsnorm, x)], OP_slice)) ||
	    op_int(m->latent, "first") != 0)
		return false;
	if ((m->k_rope = fuse_only_def(f, k, OP_rope)))
		k = m->k_rope->arg[ARG(rope, x)];
	if (!m->q_rope != !m->k_rope || !(m->key = fuse_only_def(f, k, OP_slice)) ||
	    op_int(m->key, "first") != rank || !fuse_same_arg(m->key, m->latent, ARG(slice, x)))
		return false;
	if (m->q_rope && (!fuse_same_arg(m->q_rope, m->k_rope, ARG(rope, rope)) ||
	                  op_int(m->k_rope, "rope_dims") != rope ||
	                  strcmp(op_word(m->q_rope, "style"), op_word(m->k_rope, "style")) != 0))
		return false;
	if (m->q_norm &&
	    (!fuse_same_num(m->q_norm, m->norm, "eps") || op_int(m->q_norm, "plus_one")))
		return false;
	m->kv = fuse_def(f, m->latent->arg[ARG(slice, x)]);
	return m->kv && m->kv->kind == OP_matmul && fuse_uses(f, m->kv->arg[ARG(matmul, y)]) == 2 &&
	       fuse_same_arg(m->kv, m->q, ARG(matmul, x));
}

/* Return the break-even of expanded attention, for one head: the operations that expand one
 * position, divided by the operations that expansion saves per pair of row and position. 0: never
 * expand prefill rows, either because it would not save operations, or because rows must not depend
 * on the batch. */
static int64_t
expand_pairs(const Graph *g, const Op *att)
{
	int64_t rank = op_int(att, "kv_rank"), rope = op_int(att, "rope_dim"),
	        nope = op_int(att, "nope_dim"), v_dim = op_int(att, "v_dim");
	int64_t absorbed = 2 * rank + rope, expanded = nope + rope + v_dim;

	if (g->spec->attention.form == MLA_EXPANDED && nope <= rank && v_dim <= rank)
		return MLA_EXPAND_ALWAYS;
	if (g->spec->attention.form == MLA_ABSORBED || g->spec->deterministic || nope > rank ||
	    v_dim > rank || expanded >= absorbed)
		return 0;
	return (rank * (nope + v_dim) + absorbed - expanded - 1) / (absorbed - expanded);
}

static int
new_value(Fuse *f, const Op *like, ValueKind kind, const char *name)
{
	Graph *g = f->g;

	return graph_value(g, kind, arena_printf(g->arena, "L%d.%s", like->layer, name), like->loc);
}

/* Set the width of a value that fusion has made, from the shapes of its op. */
static void
value_width(Fuse *f, const Op *op, int arg)
{
	ArgShape shape[OP_MAX_ARGS];

	graph_shapes(f->g, op, shape);
	f->g->val[op->arg[arg]].dim[1] = shape[arg].cols;
}

/* Values and ops of one rewrite */
typedef struct LatentOps {
	bool stacked;   /* q_a and kv_a are one matmul, with weight w and bias b */
	int w, b, a, c; /* a: result of the stacked matmul, or of q_a; c: result of kv_a if they are
	                   not stacked */
	/* q: query; tempered: query times its factor by position; o: attended latents */
	int q, tempered, o;
	Op first, part; /* first: stacked matmul; part: columns of q_a, for an indexer */
	Op query, q_temperature, attend, value;
} LatentOps;

/* Build the stacked matmul. The norm before it is fused if a template accepts that. */
static bool
build_first(Fuse *f, const Latent *m, LatentOps *p)
{
	Graph *g = f->g;
	const int h = m->q->arg[ARG(matmul, x)];
	NormInput front[2] = { norm_input_of(f, h, 0), norm_input_none(h) };

	for (int t = front[0].norm < 0 ? 1 : 0; t < 2; t++) {
		p->first = fuse_op(OP_norm_matmul, m->q,
		                   OP_ARGS(norm_matmul, .x = front[t].x, .nw = front[t].nw,
		                           .nb = front[t].nb, .w = p->w, .b = p->b, .y = p->a));
		op_set_int(g, &p->first, "rows", op_int(m->q, "rows") + op_int(m->kv, "rows"));
		op_set_int(g, &p->first, "cols", op_int(m->q, "cols"));
		op_makes(&p->first, fuse_name(f, p->a));
		norm_input_set(f, &p->first, &front[t]);
		value_width(f, &p->first, ARG(norm_matmul, y));
		if (fuse_accepted(f, &p->first))
			return true;
	}
	return false;
}

/* mla_query: queries in latent space, and the append to the cache */
static void
build_query(Fuse *f, const Latent *m, LatentOps *p, int64_t expand)
{
	Graph *g = f->g;
	const Op *att = m->att;

	p->query = fuse_op(OP_mla_query, m->q,
	                   OP_ARGS(mla_query, .a = p->a, .c = p->c,
	                           .qn = m->q_norm ? m->q_norm->arg[ARG(rmsnorm, w)] : -1,
	                           .q_b = m->q_b ? m->q_b->arg[ARG(matmul, w)] : -1,
	                           .kvn = m->norm->arg[ARG(rmsnorm, w)],
	                           .k_b = att->arg[ARG(mla_attention, k_b)],
	                           .rope = m->q_rope ? m->q_rope->arg[ARG(rope, rope)] : -1,
	                           .kv = att->arg[ARG(mla_attention, kv)], .q = p->q,
	                           .done = att->arg[ARG(mla_attention, done)]));
	op_set_int(g, &p->query, "heads", op_int(att, "heads"));
	op_set_int(g, &p->query, "q_rank", m->q_b ? op_int(m->q_b, "cols") : 0);
	op_set_int(g, &p->query, "kv_rank", op_int(att, "kv_rank"));
	op_set_int(g, &p->query, "nope_dim", op_int(att, "nope_dim"));
	op_set_int(g, &p->query, "rope_dim", op_int(att, "rope_dim"));
	op_set_int(g, &p->query, "fused", p->stacked);
	op_set_int(g, &p->query, "expand", expand);
	op_set_int(g, &p->query, "index_top_k", op_int(att, "index_top_k"));
	op_set_num(g, &p->query, "eps", op_num(m->norm, "eps"));
	op_set_word(g, &p->query, "style", m->q_rope ? op_word(m->q_rope, "style") : "none");
	value_width(f, &p->query, ARG(mla_query, q));
}

/* mla_attend and mla_value: attention over latents, and the values of its result */
static void
build_attend(Fuse *f, const Latent *m, LatentOps *p, int64_t expand)
{
	Graph *g = f->g;
	const Op *att = m->att;
	const int k_b = att->arg[ARG(mla_attention, k_b)], v_b = att->arg[ARG(mla_attention, v_b)];

	p->attend =
	    fuse_op(OP_mla_attend, att,
	            OP_ARGS(mla_attend, .q = p->tempered, .k_b = expand > 0 ? k_b : -1,
	                    .v_b = expand > 0 ? v_b : -1, .kv = att->arg[ARG(mla_attention, kv)],
	                    .done = att->arg[ARG(mla_attention, done)],
	                    .sel = att->arg[ARG(mla_attention, sel)], .o = p->o));
	op_set_int(g, &p->attend, "heads", op_int(att, "heads"));
	op_set_int(g, &p->attend, "kv_rank", op_int(att, "kv_rank"));
	op_set_int(g, &p->attend, "nope_dim", op_int(att, "nope_dim"));
	op_set_int(g, &p->attend, "rope_dim", op_int(att, "rope_dim"));
	op_set_int(g, &p->attend, "v_dim", op_int(att, "v_dim"));
	op_set_int(g, &p->attend, "expand", expand);
	op_set_int(g, &p->attend, "index_top_k", op_int(att, "index_top_k"));
	op_set_num(g, &p->attend, "scale", op_num(att, "scale"));
	value_width(f, &p->attend, ARG(mla_attend, o));
	p->value = fuse_op(
	    OP_mla_value, att,
	    OP_ARGS(mla_value, .o = p->o, .v_b = v_b, .y = att->arg[ARG(mla_attention, y)]));
	op_set_int(g, &p->value, "heads", op_int(att, "heads"));
	op_set_int(g, &p->value, "kv_rank", op_int(att, "kv_rank"));
	op_set_int(g, &p->value, "v_dim", op_int(att, "v_dim"));
	op_set_int(g, &p->value, "expand", expand);
	op_set_int(g, &p->value, "index_top_k", op_int(att, "index_top_k"));
}

/* Build pos_scale of queries in latent space, which replaces that of the original queries. */
static void
build_temperature(Fuse *f, const Latent *m, LatentOps *p)
{
	Graph *g = f->g;
	const Op *was = m->q_temperature;

	p->q_temperature = fuse_op(OP_pos_scale, m->q_temperature,
	                           OP_ARGS(pos_scale, .x = p->q, .y = p->tempered));
	op_set_int(g, &p->q_temperature, "width",
	           op_int(m->att, "heads") *
	               (op_int(m->att, "kv_rank") + op_int(m->att, "rope_dim")));
	op_set_num(g, &p->q_temperature, "scale", op_num(was, "scale"));
	op_set_int(g, &p->q_temperature, "offset", op_int(was, "offset"));
	op_set_int(g, &p->q_temperature, "base", op_int(was, "base"));
	value_width(f, &p->q_temperature, ARG(pos_scale, y));
}

/* Build query, attention and values, in the form with the least cost among those that templates
 * implement. */
static bool
build_latent(Fuse *f, const Latent *m, LatentOps *p)
{
	const int64_t forms[] = { expand_pairs(f->g, m->att), 0 };

	for (int t = 0; t < 2; t++) {
		build_query(f, m, p, forms[t]);
		build_attend(f, m, p, forms[t]);
		if (m->q_temperature)
			build_temperature(f, m, p);
		if ((!m->q_temperature || fuse_accepted(f, &p->q_temperature)) &&
		    fuse_accepted(f, &p->query) && fuse_accepted(f, &p->attend) &&
		    fuse_accepted(f, &p->value))
			return true;
	}
	return false;
}

/* Build the result of q_a, for an indexer, as a slice of the result of the stacked matmul. */
static bool
build_part(Fuse *f, const Latent *m, LatentOps *p)
{
	Graph *g = f->g;

	p->part =
	    fuse_op(OP_slice, m->q, OP_ARGS(slice, .x = p->a, .y = m->q->arg[ARG(matmul, y)]));
	op_set_int(g, &p->part, "width", op_int(m->q, "rows") + op_int(m->kv, "rows"));
	op_set_int(g, &p->part, "first", 0);
	op_set_int(g, &p->part, "count", op_int(m->q, "rows"));
	return fuse_accepted(f, &p->part);
}

/* Replace the matched ops:
 *   kv_a                         ->  a
 *   slice of the key             ->  query
 *   append, q_temperature if any ->  q_temperature if any, attention over latents
 *   attention                    ->  values */
static void
replace(Fuse *f, const Latent *m, const LatentOps *p)
{
	Op *dropped[] = { m->q_rope,
		          m->q_b,
		          m->indexed ? NULL : m->q_norm,
		          m->norm,
		          m->latent,
		          m->key,
		          m->k_rope,
		          p->stacked && !m->indexed ? m->q : NULL,
		          p->stacked ? m->kv : NULL };

	for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
		if (dropped[d])
			fuse_drop(f, dropped[d]);
	if (p->stacked)
		fuse_place(f, m->kv, &p->first);
	if (p->stacked && m->indexed)
		fuse_place(f, m->q, &p->part);
	fuse_place(f, m->key, &p->query);
	fuse_place(f, m->append, m->q_temperature ? &p->q_temperature : &p->attend);
	if (m->q_temperature)
		fuse_place(f, m->q_temperature, &p->attend);
	fuse_place(f, m->att, &p->value);
}

/* q_a, kv_a = matmuls of one h; norms of both latents; q_b; ropes; mla_append; mla_attention
 *   ->  a = norm_matmul(h, [q_a; kv_a]);  q, done = mla_query(a);  o = mla_attend(q);  y =
 * mla_value(o)
 *
 *   requires  no other reader between h and y, except an indexer of q_a's norm; kv_a then precedes
 *             q_a. If their dtypes differ, q_a and kv_a remain two matmuls
 *   keeps     y and the order value; with an indexer also q_a's norm, with q_a as a slice of a
 *   effect    4 steps instead of 11; one read of h; the key and the normed latent are written
 *             directly to the cache; k_b is read once per step */
int
fuse_mla(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Latent m;
		if (g->op[i].kind != OP_mla_attention || !latent_match(f, &g->op[i], &m))
			continue;
		Op *att = m.att;
		LatentOps p = { .w = -1, .b = -1 };
		p.stacked = fuse_both_have(m.q, m.kv, ARG(matmul, b)) &&
		            fuse_stack_matmuls(f, att->layer, "qkv_a", (Op *[]){ m.q, m.kv }, 2,
		                               &p.w, &p.b);
		p.a = p.stacked ? new_value(f, att, VAL_ACT, "qkv_a") : m.q->arg[ARG(matmul, y)];
		p.c = p.stacked ? -1 : m.kv->arg[ARG(matmul, y)];
		p.q = new_value(f, att, VAL_ACT, "q_mla");
		p.tempered = m.q_temperature ? new_value(f, att, VAL_ACT, "q_mla_tempered") : p.q;
		p.o = new_value(f, att, VAL_ACT, "o_mla");
		if ((p.stacked && !build_first(f, &m, &p)) || !build_latent(f, &m, &p) ||
		    (p.stacked && m.indexed && !build_part(f, &m, &p)))
			continue;
		op_makes(&p.query, fuse_name(f, p.q));
		op_makes(&p.attend, fuse_name(f, p.o));
		op_makes(&p.value, fuse_name(f, att->arg[ARG(mla_attention, y)]));
		replace(f, &m, &p);
		n++;
	}
	return n;
}
