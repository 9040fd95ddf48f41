/* Fusion: rewrites that replace several ops by one whose kernel reads and writes less. Each pass is
 * one pattern, with its contract above it. A rewrite is made only if a template of the target
 * implements the result, so fusion never replaces a tuned kernel by the reference. A fused op has
 * the output values of the last op that it replaces, and lists the outputs of the other ones in
 * `makes`. */
#include "compiler/fuse/fuse.h"

#include <string.h>

/* --- passes --- */

/* Ops from the matmul to q or k: rope(norm(matmul)), where rope and the per-head norm are
 * optional. */
typedef struct Chain {
	Op *rope, *norm, *mat;
} Chain;

static bool
chain_match(const Fuse *f, int v, int64_t heads, int64_t dim, Chain *c)
{
	*c = (Chain){ 0 };
	if ((c->rope = fuse_only_def(f, v, OP_rope))) {
		if (op_int(c->rope, "first") != 0)
			return false;
		v = c->rope->arg[ARG(rope, x)];
	}
	if ((c->norm = fuse_only_def(f, v, OP_rmsnorm))) {
		if (op_int(c->norm, "groups") != heads || op_int(c->norm, "dim") != dim)
			return false;
		v = c->norm->arg[ARG(rmsnorm, x)];
	}
	c->mat = fuse_only_def(f, v, OP_matmul);
	return c->mat != NULL;
}

static bool
chains_agree(const Chain *q, const Chain *k, const Op *v)
{
	if (!q->rope != !k->rope || !q->norm != !k->norm ||
	    !fuse_same_arg(q->mat, k->mat, ARG(matmul, x)) ||
	    !fuse_same_arg(q->mat, v, ARG(matmul, x)))
		return false;
	if (q->rope && (!fuse_same_arg(q->rope, k->rope, ARG(rope, rope)) ||
	                !fuse_same_num(q->rope, k->rope, "rope_dims") ||
	                strcmp(op_word(q->rope, "style"), op_word(k->rope, "style")) != 0))
		return false;
	if (q->norm && (!fuse_same_num(q->norm, k->norm, "eps") ||
	                !fuse_same_num(q->norm, k->norm, "plus_one")))
		return false;
	return fuse_both_have(q->mat, k->mat, ARG(matmul, b)) &&
	       fuse_both_have(k->mat, v, ARG(matmul, b));
}

static void
chain_makes(const Fuse *f, Op *op, const Chain *c)
{
	op_makes(op, fuse_name(f, c->mat->arg[ARG(matmul, y)]));
	if (c->norm)
		op_makes(op, fuse_name(f, c->norm->arg[ARG(rmsnorm, y)]));
	if (c->rope)
		op_makes(op, fuse_name(f, c->rope->arg[ARG(rope, y)]));
}

/* q, k, v = matmuls of one h; per-head norms; rope; kv_append  ->  q, done = norm_qkv(x, ...)
 *
 *   requires  q, k, v and the values between them and the cache have no other reader; one dtype;
 *             V dim = head dim
 *   keeps     q as attention reads it, and the order value
 *   effect    one read of x, one weight stream; k and v are written directly to the cache */
static int
fuse_norm_qkv(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *append = &g->op[i];
		if (append->kind != OP_kv_append)
			continue;
		Op *att = NULL;
		int done = append->arg[ARG(kv_append, done)];
		for (size_t j = i + 1; j < g->n_op && !att; j++) {
			if (g->op[j].kind == OP_kv_quantize_page &&
			    g->op[j].arg[ARG(kv_quantize_page, done)] == done)
				done = g->op[j].arg[ARG(kv_quantize_page, closed)];
			if (g->op[j].kind == OP_attention &&
			    g->op[j].arg[ARG(attention, done)] == done)
				att = &g->op[j];
		}
		int64_t kv_heads = op_int(append, "kv_heads"), dim = op_int(append, "dim");
		int w, b, rotated = att ? att->arg[ARG(attention, q)] : -1;
		Op *q_temperature = fuse_only_def(
		    f, rotated, OP_pos_scale); /* the position factor of queries, after rope */
		Chain q, k;

		if (q_temperature)
			rotated = q_temperature->arg[ARG(pos_scale, x)];
		Op *v = fuse_only_def(f, append->arg[ARG(kv_append, v)], OP_matmul);
		if (!att || !v || dim != op_int(append, "v_dim") ||
		    !chain_match(f, rotated, op_int(att, "heads"), dim, &q) ||
		    !chain_match(f, append->arg[ARG(kv_append, k)], kv_heads, dim, &k) ||
		    !chains_agree(&q, &k, v) ||
		    !fuse_stack_matmuls(f, append->layer, "qkv", (Op *[]){ q.mat, k.mat, v }, 3, &w,
		                        &b))
			continue;
		int h = v->arg[ARG(matmul, x)];
		NormInput front[2] = { norm_input_of(f, h, 0), norm_input_none(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < 2; t++) {
			Op op = fuse_op(OP_norm_qkv, q.mat,
			                OP_ARGS(norm_qkv, .x = front[t].x, .nw = front[t].nw,
			                        .nb = front[t].nb, .w = w, .b = b,
			                        .qn = q.norm ? q.norm->arg[ARG(rmsnorm, w)] : -1,
			                        .kn = k.norm ? k.norm->arg[ARG(rmsnorm, w)] : -1,
			                        .rope = q.rope ? q.rope->arg[ARG(rope, rope)] : -1,
			                        .kv = append->arg[ARG(kv_append, kv)], .q = rotated,
			                        .done = append->arg[ARG(kv_append, done)]));
			op_set_int(g, &op, "hidden", op_int(v, "cols"));
			op_set_int(g, &op, "heads", op_int(att, "heads"));
			op_set_int(g, &op, "kv_heads", kv_heads);
			op_set_int(g, &op, "dim", dim);
			op_makes(&op, fuse_name(f, rotated));
			norm_input_set(f, &op, &front[t]);
			op_set_num(g, &op, "qk_eps", q.norm ? op_num(q.norm, "eps") : 0);
			op_set_int(g, &op, "qk_plus_one", q.norm ? op_int(q.norm, "plus_one") : 0);
			op_set_int(g, &op, "rope_dims", q.rope ? op_int(q.rope, "rope_dims") : 0);
			op_set_word(g, &op, "style", q.rope ? op_word(q.rope, "style") : "half");
			if (!fuse_accepted(f, &op))
				continue;
			chain_makes(f, &op, &q);
			chain_makes(f, &op, &k);
			op_makes(&op, fuse_name(f, v->arg[ARG(matmul, y)]));
			Op *dropped[] = { q.rope, q.norm, q.mat, k.rope, k.norm, k.mat, v };
			for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
				if (dropped[d])
					fuse_drop(f, dropped[d]);
			fuse_place(f, append, &op);
			n++;
			break;
		}
	}
	return n;
}

/* y = glu(matmul(h, gate), matmul(h, up))  ->  y = norm_glu(x, [gate; up])
 *
 *   requires  gate and up of one dtype, read only by the glu
 *   keeps     y
 *   effect    one weight stream; gate and up are not written to memory */
static int
fuse_norm_glu(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *glu = &g->op[i];
		if (glu->kind != OP_glu)
			continue;
		int w, b, y = glu->arg[ARG(glu, y)];
		Op *gate = fuse_only_def(f, glu->arg[ARG(glu, g)], OP_matmul),
		   *up = fuse_only_def(f, glu->arg[ARG(glu, u)], OP_matmul);
		if (!gate || !up || !fuse_same_arg(gate, up, ARG(matmul, x)) ||
		    !fuse_both_have(gate, up, ARG(matmul, b)))
			continue;
		bool shared = strstr(fuse_name(f, gate->arg[ARG(matmul, w)]), "s_gate") != NULL;
		if (!fuse_stack_matmuls(f, glu->layer, shared ? "s_gate_up" : "gate_up",
		                        (Op *[]){ gate, up }, 2, &w, &b))
			continue;
		int h = gate->arg[ARG(matmul, x)];
		NormInput front[2] = { norm_input_of(f, h, 0), norm_input_none(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < 2; t++) {
			Op op = fuse_op(OP_norm_glu, gate,
			                OP_ARGS(norm_glu, .x = front[t].x, .nw = front[t].nw,
			                        .nb = front[t].nb, .w = w, .b = b, .y = y));
			op_set_int(g, &op, "rows", op_int(gate, "rows"));
			op_set_int(g, &op, "cols", op_int(gate, "cols"));
			op_makes(&op, fuse_name(f, y));
			norm_input_set(f, &op, &front[t]);
			op_set_word(g, &op, "act", op_word(glu, "act"));
			op_set_num(g, &op, "limit", op_num(glu, "limit"));
			if (!fuse_accepted(f, &op))
				continue;
			op_makes(&op, fuse_name(f, gate->arg[ARG(matmul, y)]));
			op_makes(&op, fuse_name(f, up->arg[ARG(matmul, y)]));
			fuse_drop(f, gate);
			fuse_drop(f, up);
			fuse_place(f, glu, &op);
			n++;
			break;
		}
	}
	return n;
}

/* y = f(matmul(norm(x))) with f = act or nothing  ->  norm_act or norm_matmul
 *
 *   requires  with act: no other reader of the matmul; without: a norm with only matmul readers
 *   keeps     y
 *   effect    the normed row is not written; each reader of a norm computes it again */
static int
fuse_norm_matmul(Fuse *f, bool with_act)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *last = &g->op[i], *mat = last;
		if (last->kind != (with_act ? OP_act : OP_matmul))
			continue;
		if (with_act && last->arg[ARG(act, p)] >= 0)
			continue;
		if (with_act && !(mat = fuse_only_def(f, last->arg[ARG(act, x)], OP_matmul)))
			continue;
		int h = mat->arg[ARG(matmul, x)], w = mat->arg[ARG(matmul, w)],
		    b = mat->arg[ARG(matmul, b)];
		int y = last->arg[with_act ? ARG(act, y) : ARG(matmul, y)];
		NormInput front[2] = { norm_input_of(f, h, 0), norm_input_none(h) };
		for (int t = front[0].norm < 0 ? 1 : 0; t < (with_act ? 2 : 1); t++) {
			int x = front[t].x, nw = front[t].nw, nb = front[t].nb;
			Op op = with_act ? fuse_op(OP_norm_act, mat,
			                           OP_ARGS(norm_act, .x = x, .nw = nw, .nb = nb,
			                                   .w = w, .b = b, .y = y))
			                 : fuse_op(OP_norm_matmul, mat,
			                           OP_ARGS(norm_matmul, .x = x, .nw = nw, .nb = nb,
			                                   .w = w, .b = b, .y = y));
			op_set_int(g, &op, "rows", op_int(mat, "rows"));
			op_set_int(g, &op, "cols", op_int(mat, "cols"));
			op_makes(&op, fuse_name(f, y));
			norm_input_set(f, &op, &front[t]);
			if (with_act)
				op_set_word(g, &op, "act", op_word(last, "act"));
			if (!fuse_accepted(f, &op))
				continue;
			if (with_act) {
				op_makes(&op, fuse_name(f, mat->arg[ARG(matmul, y)]));
				fuse_drop(f, mat);
			}
			fuse_place(f, last, &op);
			n++;
			break;
		}
	}
	return n;
}

/* y = add(r, matmul(x, w))  ->  y = matmul_add(x, w, r)
 *
 *   requires  the add is the only reader of the matmul (a sandwich norm between them prevents it)
 *   keeps     y: the residual stream, in the memory of r if r ends here
 *   effect    one pass over the row less; the block's output is not written separately */
static int
fuse_matmul_add(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *add = &g->op[i];
		if (add->kind != OP_add)
			continue;
		Op *mat = fuse_only_def(f, add->arg[ARG(add, r)], OP_matmul);
		if (!mat || add->arg[ARG(add, x)] == add->arg[ARG(add, r)])
			continue;
		Op op =
		    fuse_op(OP_matmul_add, mat,
		            OP_ARGS(matmul_add, .x = mat->arg[ARG(matmul, x)],
		                    .w = mat->arg[ARG(matmul, w)], .b = mat->arg[ARG(matmul, b)],
		                    .r = add->arg[ARG(add, x)], .y = add->arg[ARG(add, y)]));
		op_set_int(g, &op, "rows", op_int(mat, "rows"));
		op_set_int(g, &op, "cols", op_int(mat, "cols"));
		op_set_num(g, &op, "scale", op_num(add, "scale"));
		op_makes(&op, fuse_name(f, add->arg[ARG(add, y)]));
		op_makes(&op, fuse_name(f, mat->arg[ARG(matmul, y)]));
		if (!fuse_accepted(f, &op))
			continue;
		fuse_drop(f, mat);
		fuse_place(f, add, &op);
		n++;
	}
	return n;
}

/* logits = softcap(matmul(norm(gather_rows(x)), w))  ->  logits = lm_head(x, w); softcap and norm
 * are optional
 *
 *   requires  a head without bias; each op is the only reader of the previous one
 *   keeps     logits
 *   effect    rows without a requested output are not processed */
static int
fuse_head(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *mat = &g->op[i];
		int h = mat->arg[ARG(matmul, x)], y = mat->arg[ARG(matmul, y)];
		if (mat->kind != OP_matmul || mat->arg[ARG(matmul, b)] >= 0 ||
		    g->val[y].rows != SYM_n_out)
			continue;
		Op *last = mat, *gather;
		NormInput front = norm_input_of(f, h, 0);
		Op *norm = front.norm >= 0 ? fuse_only_def(f, h, fuse_def(f, h)->kind) : NULL;
		if (front.norm >= 0 && !norm)
			front = norm_input_none(h);
		if (!(gather = fuse_only_def(f, front.x, OP_gather_rows)))
			continue;
		for (size_t j = i + 1; j < g->n_op; j++)
			if (g->op[j].kind == OP_softcap && g->op[j].arg[ARG(softcap, x)] == y &&
			    fuse_uses(f, y) == 1)
				last = &g->op[j];
		int logits = last->kind == OP_softcap ? last->arg[ARG(softcap, y)] : y;
		Op op = fuse_op(OP_lm_head, mat,
		                OP_ARGS(lm_head, .x = gather->arg[ARG(gather_rows, x)],
		                        .nw = front.nw, .nb = front.nb,
		                        .w = mat->arg[ARG(matmul, w)], .logits = logits));
		op_set_int(g, &op, "rows", op_int(mat, "rows"));
		op_set_int(g, &op, "cols", op_int(mat, "cols"));
		op_makes(&op, fuse_name(f, logits));
		norm_input_set(f, &op, &front);
		op_set_num(g, &op, "scale", last->kind == OP_softcap ? op_num(last, "scale") : 1);
		op_set_num(g, &op, "softcap",
		           last->kind == OP_softcap ? op_num(last, "softcap") : 0);
		op_makes(&op, fuse_name(f, y));
		op_makes(&op, fuse_name(f, gather->arg[ARG(gather_rows, y)]));
		if (!fuse_accepted(f, &op))
			continue;
		fuse_drop(f, gather);
		if (norm)
			fuse_drop(f, norm);
		if (last != mat)
			fuse_drop(f, mat);
		fuse_place(f, last, &op);
		n++;
	}
	return n;
}

/* permute_cols(norm(x))  ->  permute_cols(x) with a fused norm
 *
 *   requires  a norm whose readers are all permute_cols
 *   keeps     y
 *   effect    one launch and one write of the row less; each reader of a norm computes it again */
static int
fuse_norm_permute_cols(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *last = &g->op[i];
		if (last->kind != OP_permute_cols || strcmp(op_word(last, "norm"), "none") != 0)
			continue;
		int h = last->arg[ARG(permute_cols, x)], readers = 0,
		    y = last->arg[ARG(permute_cols, y)];
		for (size_t j = 0; j < g->n_op; j++)
			readers += g->op[j].kind == OP_permute_cols &&
			           g->op[j].arg[ARG(permute_cols, x)] == h;
		NormInput front = norm_input_of(f, h, fuse_uses(f, h) - f->mat_uses[h]);
		if (front.norm < 0 || readers != fuse_uses(f, h))
			continue;
		Op op = fuse_op(OP_permute_cols, last,
		                OP_ARGS(permute_cols, .x = front.x, .nw = front.nw, .nb = front.nb,
		                        .order = last->arg[ARG(permute_cols, order)],
		                        .factor = last->arg[ARG(permute_cols, factor)], .y = y));
		op_set_int(g, &op, "width", op_int(last, "width"));
		op_makes(&op, fuse_name(f, y));
		norm_input_set(f, &op, &front);
		if (!fuse_accepted(f, &op))
			continue;
		fuse_place(f, last, &op);
		n++;
	}
	return n;
}

/* Replace ops without readers by nops, for example norms that were fused into all their readers.
 *
 *   requires  topological order
 *   keeps     the last op (logits) */
static int
drop_dead(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = g->n_op; i-- > 1;) { /* all ops but the last, which makes the logits */
		Op *op = &g->op[i - 1];
		bool dead = op->kind != OP_nop && op->kind != OP_send;
		for (int k = op_info[op->kind].n_in; k < op_info[op->kind].n_arg; k++)
			dead = dead && (op->arg[k] < 0 || fuse_uses(f, op->arg[k]) == 0);
		if (dead) {
			fuse_drop(f, op);
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
	static const struct {
		const char *name;
		int (*run)(Fuse *);
	} pass[] = {
		{ "lora_down", fuse_lora_down },
		{ "lora_add", fuse_lora_add },
		{ "lora_experts", fuse_lora_experts },
		{ "mixture", fuse_moe },
		{ "norm_qkv", fuse_norm_qkv },
		{ "mla", fuse_mla },
		{ "norm_glu", fuse_norm_glu },
		{ "norm_act", pass_norm_act },
		{ "head", fuse_head },
		{ "matmul_add", fuse_matmul_add },
		{ "norm_matmul", pass_norm_matmul },
		{ "norm_permute_cols", fuse_norm_permute_cols },
		{ "unused", drop_dead },
	};
	Fuse f = { .g = g, .ts = ts };
	int total = 0;

	for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
		fuse_recount(&f);
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
