/* Fusion of latent attention into three ops: query and append, attention over latents, values.
 * fuse.c describes the contract of a pass. */
#include "compiler/fuse/fuse.h"

#include <string.h>

#include "templates/common/llmc_mla.h"

/* Ops around one mla_attention as build_mla.c makes them, from query and latent on. */
typedef struct Latent {
	Op *att, *append,
	    *q_temperature; /* q_temperature: factor of queries by position, or NULL */
	Op *q_rope, *q_b, *q_norm,
	    *q; /* q_b, q_norm: only with a query latent; q: matmul of the normed row */
	Op *norm, *latent, *key, *k_rope, *kv;
	bool indexed; /* an indexer also reads the normed query latent */
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

/* Return the break-even of expanded attention: operations to expand one position, over the
 * operations that each pair of row and position saves by it, for one head. 0: prefill is never
 * cheaper expanded, or rows must not depend on the batch. */
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

/* Set the width of a value made by fusion from the shapes of its op. */
static void
value_width(Fuse *f, const Op *op, int arg)
{
	ArgShape shape[OP_MAX_ARGS];

	graph_shapes(f->g, op, shape);
	f->g->val[op->arg[arg]].dim[1] = shape[arg].cols;
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
		int64_t heads = op_int(att, "heads"), nope = op_int(att, "nope_dim"),
		        rope = op_int(att, "rope_dim");
		int64_t rank = op_int(att, "kv_rank"), v_dim = op_int(att, "v_dim"),
		        best = expand_pairs(g, att);
		int w = -1, b = -1, k_b = att->arg[ARG(mla_attention, k_b)],
		    v_b = att->arg[ARG(mla_attention, v_b)];
		int kv = att->arg[ARG(mla_attention, kv)],
		    done = att->arg[ARG(mla_attention, done)];
		bool stacked =
		    fuse_both_have(m.q, m.kv, ARG(matmul, b)) &&
		    fuse_stack_matmuls(f, att->layer, "qkv_a", (Op *[]){ m.q, m.kv }, 2, &w, &b);
		int a = stacked ? new_value(f, att, VAL_ACT, "qkv_a") : m.q->arg[ARG(matmul, y)];
		int c = stacked ? -1 : m.kv->arg[ARG(matmul, y)];
		int q = new_value(f, att, VAL_ACT, "q_mla"),
		    read = m.q_temperature ? new_value(f, att, VAL_ACT, "q_mla_tempered") : q,
		    o = new_value(f, att, VAL_ACT, "o_mla");
		int h = m.q->arg[ARG(matmul, x)];
		NormInput front[2] = { norm_input_of(f, h, 0), norm_input_none(h) };
		Op first = { 0 }, query, attend, value, q_temperature = { 0 }, part = { 0 };
		bool taken = false;
		for (int t = stacked && front[0].norm < 0 ? 1 : 0; stacked && t < 2 && !taken;
		     t++) {
			first = fuse_op(OP_norm_matmul, m.q,
			                OP_ARGS(norm_matmul, .x = front[t].x, .nw = front[t].nw,
			                        .nb = front[t].nb, .w = w, .b = b, .y = a));
			op_set_int(g, &first, "rows", op_int(m.q, "rows") + op_int(m.kv, "rows"));
			op_set_int(g, &first, "cols", op_int(m.q, "cols"));
			op_makes(&first, fuse_name(f, a));
			norm_input_set(f, &first, &front[t]);
			value_width(f, &first, ARG(norm_matmul, y));
			taken = fuse_accepted(f, &first);
		}
		if (stacked && !taken)
			continue;
		taken = false;
		const int64_t ways[] = { best, 0 }; /* the cheapest form that templates implement */
		for (int t = 0; t < 2 && !taken; t++) {
			int64_t expand = ways[t];
			query =
			    fuse_op(OP_mla_query, m.q,
			            OP_ARGS(mla_query, .a = a, .c = c,
			                    .qn = m.q_norm ? m.q_norm->arg[ARG(rmsnorm, w)] : -1,
			                    .q_b = m.q_b ? m.q_b->arg[ARG(matmul, w)] : -1,
			                    .kvn = m.norm->arg[ARG(rmsnorm, w)], .k_b = k_b,
			                    .rope = m.q_rope ? m.q_rope->arg[ARG(rope, rope)] : -1,
			                    .kv = kv, .q = q, .done = done));
			op_set_int(g, &query, "heads", heads);
			op_set_int(g, &query, "q_rank", m.q_b ? op_int(m.q_b, "cols") : 0);
			op_set_int(g, &query, "kv_rank", rank);
			op_set_int(g, &query, "nope_dim", nope);
			op_set_int(g, &query, "rope_dim", rope);
			op_set_int(g, &query, "fused", stacked);
			op_set_int(g, &query, "expand", expand);
			op_set_int(g, &query, "index_top_k", op_int(att, "index_top_k"));
			op_set_num(g, &query, "eps", op_num(m.norm, "eps"));
			op_set_word(g, &query, "style",
			            m.q_rope ? op_word(m.q_rope, "style") : "none");
			attend =
			    fuse_op(OP_mla_attend, att,
			            OP_ARGS(mla_attend, .q = read, .k_b = expand > 0 ? k_b : -1,
			                    .v_b = expand > 0 ? v_b : -1, .kv = kv, .done = done,
			                    .sel = att->arg[ARG(mla_attention, sel)], .o = o));
			op_set_int(g, &attend, "heads", heads);
			op_set_int(g, &attend, "kv_rank", rank);
			op_set_int(g, &attend, "nope_dim", nope);
			op_set_int(g, &attend, "rope_dim", rope);
			op_set_int(g, &attend, "v_dim", v_dim);
			op_set_int(g, &attend, "expand", expand);
			op_set_int(g, &attend, "index_top_k", op_int(att, "index_top_k"));
			op_set_num(g, &attend, "scale", op_num(att, "scale"));
			value = fuse_op(OP_mla_value, att,
			                OP_ARGS(mla_value, .o = o, .v_b = v_b,
			                        .y = att->arg[ARG(mla_attention, y)]));
			op_set_int(g, &value, "heads", heads);
			op_set_int(g, &value, "kv_rank", rank);
			op_set_int(g, &value, "v_dim", v_dim);
			op_set_int(g, &value, "expand", expand);
			op_set_int(g, &value, "index_top_k", op_int(att, "index_top_k"));
			value_width(f, &query, ARG(mla_query, q));
			value_width(f, &attend, ARG(mla_attend, o));
			if (m.q_temperature) {
				q_temperature = fuse_op(OP_pos_scale, m.q_temperature,
				                        OP_ARGS(pos_scale, .x = q, .y = read));
				op_set_int(g, &q_temperature, "width", heads * (rank + rope));
				op_set_num(g, &q_temperature, "scale",
				           op_num(m.q_temperature, "scale"));
				op_set_int(g, &q_temperature, "offset",
				           op_int(m.q_temperature, "offset"));
				op_set_int(g, &q_temperature, "base",
				           op_int(m.q_temperature, "base"));
				value_width(f, &q_temperature, ARG(pos_scale, y));
			}
			taken = (!m.q_temperature || fuse_accepted(f, &q_temperature)) &&
			        fuse_accepted(f, &query) && fuse_accepted(f, &attend) &&
			        fuse_accepted(f, &value);
		}
		if (stacked && m.indexed) {
			part = fuse_op(OP_slice, m.q,
			               OP_ARGS(slice, .x = a, .y = m.q->arg[ARG(matmul, y)]));
			op_set_int(g, &part, "width", op_int(m.q, "rows") + op_int(m.kv, "rows"));
			op_set_int(g, &part, "first", 0);
			op_set_int(g, &part, "count", op_int(m.q, "rows"));
		}
		if (!taken || (stacked && m.indexed && !fuse_accepted(f, &part)))
			continue;
		op_makes(&query, fuse_name(f, q));
		op_makes(&attend, fuse_name(f, o));
		op_makes(&value, fuse_name(f, att->arg[ARG(mla_attention, y)]));
		/* Positions of the new ops: a at kv_a, the query at the slice of the key, attention
		 * over latents at the append (or at q_temperature), the values at the attention. */
		Op *dropped[] = { m.q_rope,
			          m.q_b,
			          m.indexed ? NULL : m.q_norm,
			          m.norm,
			          m.latent,
			          m.key,
			          m.k_rope,
			          stacked && !m.indexed ? m.q : NULL,
			          stacked ? m.kv : NULL };
		for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
			if (dropped[d])
				fuse_drop(f, dropped[d]);
		if (stacked)
			fuse_place(f, m.kv, &first);
		if (stacked && m.indexed)
			fuse_place(f, m.q, &part);
		fuse_place(f, m.key, &query);
		fuse_place(f, m.append, m.q_temperature ? &q_temperature : &attend);
		if (m.q_temperature)
			fuse_place(f, m.q_temperature, &attend);
		fuse_place(f, att, &value);
		n++;
	}
	return n;
}
