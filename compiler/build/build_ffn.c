/* Second block of a layer: a dense feed-forward, or experts */
#include "compiler/build/build_model.h"

#include <math.h>

typedef struct FfnRoles {
	const char *gate, *up, *down, *act, *out;
	bool down_bias;
} FfnRoles;

/* Return the two parameters of a layer's xielu, stacked in one vector. */
static int
act_numbers(ModelBuilder *b)
{
	int p[2];

	p[0] = build_matrix(b, "act_p", 1, 0);
	p[1] = build_matrix(b, "act_n", 1, 0);
	if (p[0] < 0 || p[1] < 0)
		return -1;
	int both = graph_stack(b->g, arena_printf(b->g->arena, "L%d.act_numbers", b->layer), p, 2);
	if (both < 0)
		err_at(b->g->diag, b->loc,
		       "layer %d: the two parameters of xielu must be stored in one type",
		       b->layer);
	return both;
}

/* Return the quantile of the standard normal distribution at `share`. */
static double
normal_quantile(double share)
{
	double lo = -40, hi = 40;

	for (int i = 0; i < 200 && lo < hi; i++) {
		double mid = 0.5 * (lo + hi);
		if (0.5 * erfc(-mid * sqrt(0.5)) < share)
			lo = mid;
		else
			hi = mid;
	}
	return 0.5 * (lo + hi);
}

/* Set to 0 the share of a dense layer's gates that is below the threshold. */
static int
sparse(ModelBuilder *b, int g, int64_t width, double share)
{
	if (share <= 0)
		return g;
	build_at(b, "ffn.sparsity");
	int y = build_value(b, "gate_sparse");
	Op *o = OP(b, gaussian_topk, .x = g, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", normal_quantile(share));
	return y;
}

/* Return down(glu(gate x, up x)), or down(act(up x)). off: share of the gates that are 0 */
static int
ffn(ModelBuilder *b, int h, const FfnRoles *r, int64_t width, bool gated, bool with_bias,
    ActKind act, double limit, double gate_scale, double off)
{
	int64_t hidden = b->s->hidden;
	int y, g = -1;
	Op *o;

	if (gated)
		g = sparse(
		    b,
		    build_scaled(b, build_matmul(b, h, r->gate, with_bias, width, hidden, r->gate),
		                 gate_scale, width, "gate_scaled"),
		    width, off);
	int u = build_matmul(b, h, r->up, with_bias, width, hidden, r->up);
	y = build_value(b, r->act);
	if (gated)
		o = OP(b, glu, .g = g, .u = u, .y = y);
	else
		o = OP(b, act, .x = u, .p = act == ACT_XIELU ? act_numbers(b) : -1, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", build_act_word(act));
	if (gated)
		op_set_num(b->g, o, "limit", limit);
	return build_matmul(b, y, r->down, r->down_bias, hidden, width, r->out);
}

int
build_dense(ModelBuilder *b, int h)
{
	const Spec *s = b->s;

	build_at(b, "ffn.width");
	const FfnRoles roles = { "gate",
		                 "up",
		                 "down",
		                 "act",
		                 s->moe.parallel && s->moe.layer_in[b->layer] ? "dense" : "ffn_out",
		                 s->ffn.down_bias };
	int y = ffn(b, h, &roles, spec_ffn_width(s, b->layer), s->ffn.gated, s->ffn.bias,
	            s->ffn.act, spec_ffn_limit(s, b->layer), s->ffn.gate_scale,
	            s->ffn.sparsity ? s->ffn.sparsity[b->layer] : 0);
	return build_scaled(b, y, s->ffn.out_scale, s->hidden, "ffn_out_scaled");
}

/* Permute x for experts of which each has its own column order: one row per selected expert.
 * *x_rows receives the number of rows per token. */
static int
permute_expert_cols(ModelBuilder *b, int x, int id, int64_t width, int64_t *x_rows)
{
	const Spec *s = b->s;
	const StorageRule up = spec_storage(s, "e_up", b->layer),
	                  gate = s->moe.plain ? up : spec_storage(s, "e_gate", b->layer);

	*x_rows = 1;
	if (!same_word(gate.order, up.order))
		err_at(b->g->diag, b->loc,
		       "storage.rules: e_gate and e_up of layer %d read the same x, so they need "
		       "the same order",
		       b->layer);
	if (!up.order)
		return x;
	int order = build_expert_orders(b->g, up.order, b->layer, s->moe.n_experts, width, b->loc),
	    y = build_value(b, "expert_x");
	Op *o = OP(b, permute_expert_cols, .x = x, .id = id, .order = order, .y = y);
	op_set_int(b->g, o, "n_experts", s->moe.n_experts);
	op_set_int(b->g, o, "top_k", s->moe.top_k);
	op_set_int(b->g, o, "width", width);
	*x_rows = s->moe.top_k;
	return y;
}

/* Set the attributes of moe_route that select experts. Attributes before these must be set
 * already. */
static void
set_selection(ModelBuilder *b, Op *o)
{
	const Spec *s = b->s;

	op_set_word(b->g, o, "score", s->moe.score);
	op_set_int(b->g, o, "renorm", s->moe.renorm);
	op_set_num(b->g, o, "sum_eps", s->moe.renorm_eps);
	op_set_num(b->g, o, "scale", s->moe.scale);
	op_set_num(b->g, o, "jitter", s->moe.jitter);
	op_set_int(b->g, o, "groups", s->moe.groups > 0 ? s->moe.groups : 1);
	op_set_int(b->g, o, "top_k_groups", s->moe.groups > 0 ? s->moe.keep_groups : 1);
	op_set_word(b->g, o, "group_score", s->moe.group_top2 ? "top2" : "max");
}

/* Set the attributes of an op without a fused norm. */
static void
no_norm(ModelBuilder *b, Op *o)
{
	op_set_word(b->g, o, "norm", "none");
	op_set_num(b->g, o, "eps", 0);
	op_set_int(b->g, o, "plus_one", 0);
}

/* Make the ids and weights of the experts of each row. at_once: use the single op that fusion makes
 * of router and selection */
static void
route(ModelBuilder *b, int seen, bool at_once, int *id, int *weights)
{
	const Spec *s = b->s;
	const int n = s->moe.n_experts;
	Op *o;

	if (at_once) {
		const int w = build_matrix(b, "router", n, s->hidden),
		          logit_b = build_bias(b, s->moe.router_bias, "router", n),
		          bias = s->moe.choice_bias ? build_bias(b, true, "router_bias", n) : -1;
		const int in = build_permute_cols(b, seen, "router", s->hidden);
		*id = build_value(b, "expert_id");
		*weights = build_value(b, "expert_weight");
		o = OP(b, norm_route, .x = in, .nw = -1, .nb = -1, .w = w, .logit_b = logit_b,
		       .bias = bias, .id = *id, .weight = *weights);
		op_set_int(b->g, o, "n_experts", n);
		op_set_int(b->g, o, "top_k", s->moe.top_k);
		op_set_int(b->g, o, "hidden", s->hidden);
		op_set_int(b->g, o, "shared_gate", 0);
		set_selection(b, o);
		no_norm(b, o);
		return;
	}
	const int logits =
	              build_matmul(b, seen, "router", s->moe.router_bias, n, s->hidden, "router"),
	          bias = s->moe.choice_bias ? build_bias(b, true, "router_bias", n) : -1;
	*id = build_value(b, "expert_id");
	*weights = build_value(b, "expert_weight");
	o = OP(b, moe_route, .logits = logits, .bias = bias, .id = *id, .weight = *weights);
	op_set_int(b->g, o, "n_experts", n);
	op_set_int(b->g, o, "top_k", s->moe.top_k);
	set_selection(b, o);
}

/* Experts over the rows `in`: selection, weight matrices, and biases or -1. Without a gate, `gate`
 * is `up`. */
typedef struct Experts {
	int in, id, weights, gate, up, down, gate_b, up_b, down_b;
	int64_t row;
	const char *name;
} Experts;

/* Set the leading attributes of either expert op (gate and up, or down). x_rows 0: the down op,
 * which has no x_rows_per_token */
static void
expert_sizes(ModelBuilder *b, Op *o, int64_t x_rows, int64_t row)
{
	op_set_int(b->g, o, "n_experts", b->s->moe.n_experts);
	op_set_int(b->g, o, "n_remote_experts", 0);
	op_set_int(b->g, o, "top_k", b->s->moe.top_k);
	if (x_rows)
		op_set_int(b->g, o, "x_rows_per_token", x_rows);
	op_set_int(b->g, o, "hidden", row);
	op_set_int(b->g, o, "width", b->s->moe.width);
}

static void
expert_act(ModelBuilder *b, Op *o)
{
	op_set_word(b->g, o, "act", b->s->moe.plain ? "relu" : build_act_word(b->s->moe.act));
	op_set_num(b->g, o, "limit", spec_moe_limit(b->s, b->layer));
}

static void
lora_sizes(ModelBuilder *b, Op *o, int count)
{
	op_set_int(b->g, o, "n_experts", b->s->moe.n_experts);
	op_set_int(b->g, o, "n_remote_experts", 0);
	op_set_int(b->g, o, "top_k", b->s->moe.top_k);
	op_set_int(b->g, o, "rank", b->s->adapters.expert_rank);
	if (count)
		op_set_int(b->g, o, "count", count);
	op_set_int(b->g, o, "slots", b->s->adapters.slots);
}

/* Multiply x by the A factors of `count` matrices of the experts that each row selected. */
static int
expert_lora_down(ModelBuilder *b, int x, int id, int a, int64_t cols, bool each, int count,
                 const char *name)
{
	const int low = build_value(b, name);
	Op *o = OP(b, lora_experts_down, .x = x, .id = id, .a = a, .t = low);

	op_set_int(b->g, o, "cols", cols);
	op_set_int(b->g, o, "per_group", each);
	lora_sizes(b, o, count);
	return low;
}

/* Experts with adapters. The adapter's part is added between gate/up and activation, and after the
 * sum, so the two ops that fusion otherwise makes of moe_ffn are built here. */
static int
adapted_experts(ModelBuilder *b, const Experts *e, const int first[2], const int last[2])
{
	const int64_t width = b->s->moe.width;
	const int low = expert_lora_down(b, e->in, e->id, first[0], e->row, false, 2, "expert_low"),
	          add = build_value(b, "expert_add");
	Op *o = OP(b, lora_experts_up, .t = low, .id = e->id, .b = first[1], .y = add);

	op_set_int(b->g, o, "rows", width);
	lora_sizes(b, o, 2);
	const int h = build_value(b, "experts_act");
	o = OP(b, norm_moe_glu, .x = e->in, .nw = -1, .nb = -1, .id = e->id, .gate = e->gate,
	       .up = e->up, .gate_b = e->gate_b, .up_b = e->up_b, .s_gate = -1, .s_up = -1,
	       .add = add, .h = h);
	expert_sizes(b, o, 1, e->row);
	op_set_int(b->g, o, "shared", 0);
	expert_act(b, o);
	no_norm(b, o);
	const int base = build_value(b, arena_printf(b->g->arena, "%s_base", e->name));
	o = OP(b, moe_down_add, .h = h, .id = e->id, .weight = e->weights, .down = e->down,
	       .down_b = e->down_b, .s_down = -1, .r = -1, .y = base);
	expert_sizes(b, o, 0, e->row);
	op_set_int(b->g, o, "shared", 0);
	op_set_int(b->g, o, "shared_gate", 0);
	op_set_num(b->g, o, "scale", 1);
	const int down = expert_lora_down(b, h, e->id, last[0], width, true, 1, "expert_down_low"),
	          y = build_value(b, e->name);
	o = OP(b, lora_experts_add, .x = base, .t = down, .id = e->id, .weight = e->weights,
	       .b = last[1], .y = y);
	op_set_int(b->g, o, "rows", e->row);
	lora_sizes(b, o, 0);
	return y;
}

int
build_moe(ModelBuilder *b, int h, int x)
{
	const Spec *s = b->s;
	int n = s->moe.n_experts, seen = h, id, weights, first[2], last[2];
	int64_t hidden = s->hidden, width = s->moe.width, shared = s->moe.shared_width;
	Op *o;

	build_at(b, "moe.n_experts");
	/* computed before the selection, because fusion moves the experts' first op to the position
	 * of the selection */
	int64_t row = s->moe.latent ? s->moe.latent : hidden;
	int in =
	    s->moe.latent ? build_matmul(b, h, "moe_in", s->ffn.bias, row, hidden, "expert_in") : h;
	if (s->moe.router_norm) {
		build_at(b, "moe.router_norm");
		seen = build_rmsnorm(b, x, "router_norm", hidden, 1, s->norm.eps, false,
		                     "router_normed");
		seen = build_gain(b, seen, NULL, pow((double)hidden, -0.5), hidden, "router_in");
	}
	const bool slots =
	    build_expert_factors(b->g,
	                         (const char *const[]){ s->moe.plain ? "e_up" : "e_gate", "e_up" },
	                         2, b->layer, n, width, row, b->loc, first) &&
	    build_expert_factors(b->g, (const char *const[]){ "e_down" }, 1, b->layer, n, row,
	                         width, b->loc, last);
	route(b, seen, slots, &id, &weights);

	if (s->moe.expert_gain) {
		build_at(b, "moe.expert_gain");
		int each = build_matrix(b, "expert_gain", n, 0),
		    y = build_value(b, "expert_weight_gained");
		o = OP(b, expert_gain, .id = id, .weight = weights, .w = each, .y = y);
		op_set_int(b->g, o, "n_experts", n);
		op_set_int(b->g, o, "top_k", s->moe.top_k);
		weights = y;
		build_at(b, "moe.n_experts");
	}
	if (s->moe.weighs_input) {
		build_at(b, "moe.weights_on");
		int y = build_value(b, "expert_weighed"), one = build_value(b, "expert_weight_one");
		o = OP(b, expert_input, .x = in, .weight = weights, .y = y, .one = one);
		op_set_int(b->g, o, "hidden", row);
		in = y;
		weights = one;
		build_at(b, "moe.n_experts");
	}
	int64_t x_rows;
	in = permute_expert_cols(b, in, id, row, &x_rows);
	/* relu2(u) = relu(u) u, so without a gate, up is also the gate. Kernels read each of its
	 * rows twice, the second time from L1. */
	int gate =
	    s->moe.plain ? -1 : build_experts(b->g, "e_gate", b->layer, n, width, row, b->loc);
	int up = build_experts(b->g, "e_up", b->layer, n, width, row, b->loc);
	int down = build_experts(b->g, "e_down", b->layer, n, row, width, b->loc);
	int gate_b = -1, up_b = -1, down_b = -1;
	if (s->moe.bias) {
		build_at(b, "moe.bias");
		gate_b = build_experts(b->g, "e_gate_b", b->layer, n, width, 0, b->loc);
		up_b = build_experts(b->g, "e_up_b", b->layer, n, width, 0, b->loc);
		down_b = build_experts(b->g, "e_down_b", b->layer, n, hidden, 0, b->loc);
		build_at(b, "moe.n_experts");
	}
	const Experts e = { in,
		            id,
		            weights,
		            s->moe.plain ? up : gate,
		            up,
		            down,
		            gate_b,
		            up_b,
		            down_b,
		            row,
		            s->moe.latent                   ? "expert_out"
		            : shared > 0 || s->moe.parallel ? "routed"
		                                            : "ffn_out" };
	int y;
	if (slots) {
		y = adapted_experts(b, &e, first, last);
	} else {
		y = build_value(b, e.name);
		o = OP(b, moe_ffn, .x = in, .id = id, .weight = weights, .gate = e.gate, .up = up,
		       .down = down, .gate_b = gate_b, .up_b = up_b, .down_b = down_b, .y = y);
		expert_sizes(b, o, x_rows, row);
		expert_act(b, o);
	}
	if (s->moe.latent)
		y = build_matmul(b, y, "moe_out", s->ffn.bias, hidden, row,
		                 shared > 0 || s->moe.parallel ? "routed" : "ffn_out");
	if (shared <= 0)
		return y;

	build_at(b, "moe.shared.width");
	int z = ffn(b, h, &(FfnRoles){ "s_gate", "s_up", "s_down", "s_act", "shared", s->ffn.bias },
	            shared, !s->moe.plain, s->ffn.bias, s->moe.act, spec_shared_limit(s, b->layer),
	            1, 0);
	if (s->moe.shared_gate) {
		int mix = build_matmul(b, h, "s_mix", false, 1, hidden, "s_mix"),
		    gated = build_value(b, "shared_gated");
		o = OP(b, gate_mul, .x = z, .s = mix, .y = gated);
		op_set_int(b->g, o, "width", hidden);
		op_set_int(b->g, o, "groups", 1);
		op_set_word(b->g, o, "gate", "sigmoid");
		z = gated;
	}
	return s->moe.shared_scale == 1 ? build_add(b, y, z, 1.0, "ffn_out")
	                                : build_add(b, z, y, s->moe.shared_scale, "ffn_out");
}
