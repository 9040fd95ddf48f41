/* Fusion of MoE layers into three ops: routing, gate and up, down. fuse.c describes the contract of
 * a pass. */
#include "compiler/fuse/fuse.h"

#include <string.h>

/* Ops of a MoE feed-forward, those of its shared expert if that can be fused, and the add of the
 * result */
typedef struct MoeMatch {
	Op *logits, *route, *gain, *weigh, *permute, *own,
	    /* optional ops, NULL if absent. gain: factors of the routing weights per expert; weigh:
	     * routing weights on the input; permute: column order per expert; own: selection of the
	     * experts of this rank */
	    *ffn;
	Op *gate, *up, *glu, *down, *mix, *gated,
	    *sum; /* sum: shared expert, NULL: none; mix, gated: its gate, NULL: none */
	Op *add;  /* NULL: the result is not added to the stream */
	int r, y; /* r: value to which the result is added, or -1; y: output */
} MoeMatch;

/* Return the only reader of v if it is an add. */
static Op *
only_add(const Fuse *f, int v)
{
	if (fuse_uses(f, v) != 1)
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
	Op *op = fuse_only_def(f, v, OP_matmul);
	return op && op->arg[ARG(matmul, b)] < 0 && (x < 0 || op->arg[ARG(matmul, x)] == x) ? op
	                                                                                    : NULL;
}

/* Match a shared expert that is added to the routed experts. It must have the same input and
 * activation, and no bias. */
static bool
match_shared(const Fuse *f, MoeMatch *m)
{
	int h = m->ffn->arg[ARG(moe_ffn, x)], y = m->ffn->arg[ARG(moe_ffn, y)];

	m->sum = only_add(f, y);
	if (!m->sum || op_num(m->sum, "scale") != 1)
		return false;
	int z = m->sum->arg[m->sum->arg[ARG(add, x)] == y ? ARG(add, r) : ARG(add, x)];
	if ((m->gated = fuse_only_def(f, z, OP_gate_mul))) {
		if (op_int(m->gated, "groups") != 1 ||
		    strcmp(op_word(m->gated, "gate"), "sigmoid") ||
		    !(m->mix = only_matmul(f, m->gated->arg[ARG(gate_mul, s)], h)))
			return false;
		z = m->gated->arg[ARG(gate_mul, x)];
	}
	if (!(m->down = only_matmul(f, z, -1)) ||
	    !(m->glu = fuse_only_def(f, m->down->arg[ARG(matmul, x)], OP_glu)))
		return false;
	m->gate = only_matmul(f, m->glu->arg[ARG(glu, g)], h);
	m->up = only_matmul(f, m->glu->arg[ARG(glu, u)], h);
	return m->gate && m->up && m->gate != m->up &&
	       strcmp(op_word(m->glu, "act"), op_word(m->ffn, "act")) == 0 &&
	       fuse_same_num(m->glu, m->ffn, "limit");
}

static bool
match_moe(const Fuse *f, Op *ffn, bool with_shared, MoeMatch *m)
{
	*m = (MoeMatch){ .ffn = ffn, .r = -1 };
	int id = ffn->arg[ARG(moe_ffn, id)], weight = ffn->arg[ARG(moe_ffn, weight)];
	m->gain = fuse_only_def(f, weight, OP_expert_gain);
	if ((m->own = fuse_only_def(f, id, OP_local_experts)))
		id = m->own->arg[ARG(local_experts, id)];
	m->route = fuse_def(f, id);
	if (m->gain)
		weight = m->gain->arg[ARG(expert_gain, weight)];
	if ((m->weigh = fuse_only_def(f, weight, OP_expert_input)))
		weight = m->weigh->arg[ARG(expert_input, weight)];
	m->permute = fuse_only_def(f, ffn->arg[ARG(moe_ffn, x)], OP_permute_expert_cols);
	if (!m->route || m->route->kind != OP_moe_route ||
	    fuse_uses(f, id) != 1 + !!m->gain + !!m->permute || fuse_uses(f, weight) != 1 ||
	    m->route->arg[ARG(moe_route, weight)] != weight ||
	    !(m->logits = fuse_only_def(f, m->route->arg[ARG(moe_route, logits)], OP_matmul)) ||
	    (with_shared && !match_shared(f, m)) ||
	    (m->mix && (m->gain || m->weigh || m->logits->arg[ARG(matmul, b)] >= 0)))
		return false;
	m->y = with_shared ? m->sum->arg[ARG(add, y)] : ffn->arg[ARG(moe_ffn, y)];
	m->add = only_add(f, m->y);
	if (m->add && m->add->arg[ARG(add, r)] == m->y)
		m->r = m->add->arg[ARG(add, x)];
	/* add multiplies x by scale, so the other operand can be r only if the scale is 1 */
	else if (m->add && op_num(m->add, "scale") == 1)
		m->r = m->add->arg[ARG(add, r)];
	else
		m->add = NULL;
	m->y = m->add ? m->add->arg[ARG(add, y)] : m->y;
	return true;
}

/* Return the router's weight, with the row of the shared expert's gate appended; -1: their types
 * differ. */
static int
router_with(Fuse *f, const MoeMatch *m)
{
	int w[2] = { m->logits->arg[ARG(matmul, w)], m->mix ? m->mix->arg[ARG(matmul, w)] : -1 };

	return m->mix ? fuse_stack(f, m->ffn->layer, "router_mix", w, 2) : w[0];
}

/* Make a value that exists only in the fused graph and has `width` elements per row. */
static int
row_value(Fuse *f, const Op *like, const char *role, int64_t width)
{
	Graph *g = f->g;
	int v =
	    graph_value(g, VAL_ACT, arena_printf(g->arena, "L%d.%s", like->layer, role), like->loc);

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

/* Make the three fused ops. seen: input norm of the router; front: input norm of the experts */
static void
make_moe(Fuse *f, const MoeMatch *m, const NormInput *seen, const NormInput *front, int router,
         Op op[3])
{
	Graph *g = f->g;
	const Op *ffn = m->ffn;
	int64_t top_k = op_int(ffn, "top_k"), width = op_int(ffn, "width"),
	        shared = m->gate ? op_int(m->gate, "rows") : 0, mix = m->mix != NULL;
	int id = ffn->arg[ARG(moe_ffn, id)], all = m->route->arg[ARG(moe_route, id)],
	    weight = m->route->arg[ARG(moe_route, weight)];
	int h = row_value(f, ffn, "experts_act", top_k * width + shared);

	if (mix)
		weight = row_value(f, ffn, "expert_weight_mix", top_k + 1);
	op[0] = fuse_op(OP_norm_route, m->route,
	                OP_ARGS(norm_route, .x = seen->x, .nw = seen->nw, .nb = seen->nb,
	                        .w = router, .logit_b = m->logits->arg[ARG(matmul, b)],
	                        .bias = m->route->arg[ARG(moe_route, bias)], .id = all,
	                        .weight = weight));
	op[1] = fuse_op(
	    OP_norm_moe_glu, ffn,
	    OP_ARGS(norm_moe_glu, .x = front->x, .nw = front->nw, .nb = front->nb, .id = id,
	            .gate = ffn->arg[ARG(moe_ffn, gate)], .up = ffn->arg[ARG(moe_ffn, up)],
	            .gate_b = ffn->arg[ARG(moe_ffn, gate_b)], .up_b = ffn->arg[ARG(moe_ffn, up_b)],
	            .s_gate = arg_of(m->gate, ARG(matmul, w)),
	            .s_up = arg_of(m->up, ARG(matmul, w)), .add = -1, .h = h));
	op[2] = fuse_op(
	    OP_moe_down_add, ffn,
	    OP_ARGS(moe_down_add, .h = h, .id = id,
	            .weight = m->gain || m->weigh ? ffn->arg[ARG(moe_ffn, weight)] : weight,
	            .down = ffn->arg[ARG(moe_ffn, down)], .down_b = ffn->arg[ARG(moe_ffn, down_b)],
	            .s_down = arg_of(m->down, ARG(matmul, w)), .r = m->r, .y = m->y));
	for (int i = 0; i < 3; i++) {
		op_set_int(g, &op[i], "n_experts", op_int(i ? ffn : m->route, "n_experts"));
		if (i > 0)
			op_set_int(g, &op[i], "n_remote_experts", op_int(ffn, "n_remote_experts"));
		op_set_int(g, &op[i], "top_k", top_k);
		if (i == 1)
			op_set_int(g, &op[i], "x_rows_per_token", op_int(ffn, "x_rows_per_token"));
		op_set_int(g, &op[i], "hidden",
		           i ? op_int(ffn, "hidden") : op_int(m->logits, "cols"));
		if (i > 0) {
			op_set_int(g, &op[i], "width", width);
			op_set_int(g, &op[i], "shared", shared);
		}
		if (i != 1)
			op_set_int(g, &op[i], "shared_gate", mix);
	}
	for (int i = 0; i < m->route->n_attr;
	     i++) { /* all attributes of the selection except the two that are set already */
		const Attr *a = &m->route->attr[i];
		if (a->kind == ATTR_WORD)
			op_set_word(g, &op[0], a->key, a->s);
		else if (a->kind == ATTR_NUM)
			op_set_num(g, &op[0], a->key, a->f);
		else if (strcmp(a->key, "n_experts") != 0 && strcmp(a->key, "top_k") != 0)
			op_set_int(g, &op[0], a->key, a->i);
	}
	norm_input_set(f, &op[0], seen);
	op_set_word(g, &op[1], "act", op_word(ffn, "act"));
	op_set_num(g, &op[1], "limit", op_num(ffn, "limit"));
	norm_input_set(f, &op[1], front);
	op_set_num(g, &op[2], "scale",
	           m->add && m->r == m->add->arg[ARG(add, x)] ? op_num(m->add, "scale") : 1);
}

/* Record which values of the unfused graph the fused ops make. */
static void
moe_makes(const Fuse *f, const MoeMatch *m, Op op[3])
{
	op_makes(&op[0], fuse_name(f, m->logits->arg[ARG(matmul, y)]));
	op_makes(&op[0], fuse_name(f, m->route->arg[ARG(moe_route, weight)]));
	op_makes(&op[2], fuse_name(f, m->y));
	op_makes(&op[2], fuse_name(f, m->ffn->arg[ARG(moe_ffn, y)]));
	for (int i = 0; m->down && i < 3; i++) {
		const Op *part = (const Op *[]){ m->down, m->gated, m->sum }[i];
		if (part)
			op_makes(&op[2], fuse_name(f, part->arg[op_info[part->kind].n_in]));
	}
}

/* moe_route(matmul(h)), moe_ffn(h, ...) [+ the shared expert], add
 *   ->  norm_route, norm_moe_glu, moe_down_add
 *
 *   requires  no other reader of the values between; templates for all three ops
 *   keeps     the expert ids; the output of the last replaced op
 *   effect    three steps, whatever the number of experts; the normed row, the shared expert and its
 *             gate are not written to memory
 *
 * The norm is fused if all other readers of its result can compute it themselves. The shared expert
 * remains separate if it has biases or if templates require it; the result is then added to its
 * output. */
int
fuse_moe(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		if (g->op[i].kind != OP_moe_ffn)
			continue;
		bool done = false;
		for (int with_shared = 1; with_shared >= 0 && !done; with_shared--) {
			MoeMatch m;
			int router;
			if (!match_moe(f, &g->op[i], with_shared, &m) ||
			    (router = router_with(f, &m)) < 0)
				continue;
			int h = m.ffn->arg[ARG(moe_ffn, x)];
			int in = m.logits->arg[ARG(
			    matmul, x)]; /* h, or the router's own input if it has its own norm */
			NormInput front[2] = { norm_input_of(f, h, 1), norm_input_none(h) },
			          own = in == h ? front[0] : norm_input_of(f, in, 0);
			for (int t = front[0].norm < 0 ? 1 : 0; t < 2 && !done; t++) {
				Op op[3];
				make_moe(f, &m, in == h ? &front[t] : &own, &front[t], router, op);
				if (!fuse_accepted(f, &op[0]) || !fuse_accepted(f, &op[1]) ||
				    !fuse_accepted(f, &op[2]))
					continue;
				moe_makes(f, &m, op);
				Op *last = m.add ? m.add : m.sum ? m.sum : m.ffn;
				Op *dropped[] = { m.ffn,  m.gate, m.up,    m.glu,
					          m.down, m.mix,  m.gated, m.sum };
				for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
					if (dropped[d] && dropped[d] != last)
						fuse_drop(f, dropped[d]);
				/* ops between routing and experts move up by one position each and
				 * keep their order */
				Op *between[] = { m.weigh, m.permute, m.own }, *at = m.route;
				fuse_place(f, m.logits, &op[0]);
				for (size_t b = 0; b < sizeof between / sizeof *between; b++)
					if (between[b]) {
						Op mine = *between[b];
						fuse_place(f, at, &mine);
						at = between[b];
					}
				fuse_place(f, at, &op[1]);
				fuse_place(f, last, &op[2]);
				done = true;
				n++;
			}
		}
	}
	return n;
}
