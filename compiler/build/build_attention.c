/* First block of a layer: attention over keys and values, attention over latents, or a recurrent
 * block. */
#include "compiler/build/build_heads.h"
#include "compiler/build/build_model.h"

static int
gqa(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	const HeadShape shape = spec_heads(s, b->layer);
	int64_t heads = shape.n_heads, kv_heads = shape.n_kv_heads, dim = shape.head_dim,
	        v_dim = shape.v_dim, in = spec_attention_in(s, b->layer);
	int source = spec_kv_layer(s, b->layer), k = -1, v = -1;
	bool own = source == b->layer; /* the layer has its own keys and values */

	build_at(b, "attention.n_heads");
	int q = build_clamped(b, build_matmul(b, h, "q", s->attention.bias, heads * dim, in, "q"),
	                      heads * dim, "q_clipped");
	if (own) {
		k = v = build_clamped(
		    b, build_matmul(b, h, "k", s->attention.bias, kv_heads * dim, in, "k"),
		    kv_heads * dim, "k_clipped");
		if (!s->attention.k_is_v[b->layer])
			v = build_clamped(
			    b,
			    build_matmul(b, h, "v", s->attention.bias, kv_heads * v_dim, in, "v"),
			    kv_heads * v_dim, "v_clipped");
	}
	q = build_qk_norm(b, false, q, "q_norm", heads, "q_normed");
	if (own)
		k = build_qk_norm(b, false, k, "k_norm", kv_heads, "k_normed");
	build_at(b, "position");
	q = build_rotate(b, q, heads, dim, 0, "q_rope");
	if (own)
		k = build_rotate(b, k, kv_heads, dim, 0, "k_rope");
	q = build_qk_norm(b, true, q, "q_norm", heads, "q_normed");
	if (own)
		k = build_qk_norm(b, true, k, "k_norm", kv_heads, "k_normed");
	if (own && s->attention.v_norm) {
		build_at(b, "attention.v_norm");
		v = build_rmsnorm(b, v, NULL, v_dim, kv_heads, s->norm.qk_eps, false, "v_normed");
	}
	if (own && s->attention.v_scale != 1) {
		build_at(b, "attention.v_scale");
		v = build_gain(b, v, NULL, s->attention.v_scale, kv_heads * v_dim, "v_scaled");
	}
	build_at(b, "attention.n_heads");
	int done = b->done[b->layer] = own ? build_append(b, k, v, &shape) : b->done[source];
	int y = build_attend(b, build_q_temperature(b, q, heads * dim), done, &shape);
	if (s->attention.out_gate != GATE_NONE) {
		build_at(b, "attention.out_gate");
		int64_t gates = s->attention.out_gate == GATE_HEAD ? heads : heads * v_dim;
		int g = build_matmul(b, h, "q_gate", s->attention.out_gate_bias, gates, s->hidden,
		                     "q_gate"),
		    gated = build_value(b, "attn_gated");
		Op *o = OP(b, gate_mul, .x = y, .s = g, .y = gated);
		op_set_int(b->g, o, "width", heads * v_dim);
		op_set_int(b->g, o, "groups", gates);
		op_set_word(b->g, o, "gate", s->attention.out_gate_act);
		y = gated;
	}
	return build_matmul(b, y, "o", s->attention.o_bias, s->hidden, heads * v_dim, "attn_out");
}

/* Return a weight of the shared block. The first layer that uses the block creates the weight. */
static int
shared_weight(ModelBuilder *b, const char *role, int64_t rows, int64_t cols)
{
	const int own = b->layer, first = spec_shared_layer(b->s, own);
	const char *id = arena_printf(b->g->arena, "L%d.%s", first, role);

	for (size_t v = 0; v < b->g->n_val; v++)
		if (b->g->val[v].kind == VAL_WEIGHT &&
		    strcmp(b->g->tensor[b->g->val[v].tensor].id, id) == 0)
			return (int)v;
	b->layer = first;
	int w = build_matrix(b, role, rows, cols);
	b->layer = own;
	return w;
}

static int
product(ModelBuilder *b, int x, int w, int wb, int64_t rows, int64_t cols, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, matmul, .x = x, .w = w, .b = wb, .y = y);

	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "cols", cols);
	return y;
}

/* Return x w^T with weight w of the shared block. If `low` is a value, add low b^T, where b is the
 * layer's own factor of this rank. */
static int
adapted(ModelBuilder *b, int x, const char *role, int64_t rows, int64_t cols, int low, int64_t rank)
{
	int y = product(b, x, shared_weight(b, role, rows, cols), -1, rows, cols, role);

	if (low < 0)
		return y;
	const char *own = arena_printf(b->g->arena, "%s_b", role);
	return build_add_wide(
	    b, y, product(b, low, build_matrix(b, own, rows, rank), -1, rows, rank, own), 1.0, rows,
	    arena_printf(b->g->arena, "%s_adapted", role));
}

static int
low_rank_input(ModelBuilder *b, int x, const char *role, int64_t rank, int64_t cols)
{
	return rank ? product(b, x, build_matrix(b, role, rank, cols), -1, rank, cols, role) : -1;
}

static int
shared_norm(ModelBuilder *b, int x, const char *role, int64_t width, const char *name)
{
	int w = shared_weight(b, role, width, 0), y = build_value(b, name);
	Op *o = OP(b, rmsnorm, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "dim", width);
	op_set_int(b->g, o, "groups", 1);
	op_set_num(b->g, o, "eps", b->s->norm.eps);
	op_set_int(b->g, o, "plus_one", b->s->norm.plus_one);
	return y;
}

/* Return from_shared(down(glu(gate h, up h))) with h = norm(o attention(norm([x | embedded]))). The
 * block has no residual inside. */
int
build_shared(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	const HeadShape shape = spec_heads(s, b->layer);
	const int64_t hidden = s->hidden, heads = shape.n_heads, kv = shape.n_kv_heads,
	              dim = shape.head_dim, width = s->ffn.width, wide = 2 * hidden;

	build_at(b, "shared.layers");
	int both = build_value(b, "shared_in");
	Op *o = OP(b, concat, .x = x, .z = b->embedded, .y = both);
	op_set_int(b->g, o, "width", hidden);
	op_set_int(b->g, o, "count", hidden);
	int h = shared_norm(b, both, "shared_norm", wide, "shared_normed"),
	    rank = s->shared.qkv_rank;
	int q = adapted(b, h, "shared_q", heads * dim, wide,
	                low_rank_input(b, h, "shared_q_a", rank, wide), rank);
	int k = adapted(b, h, "shared_k", kv * dim, wide,
	                low_rank_input(b, h, "shared_k_a", rank, wide), rank);
	int v = adapted(b, h, "shared_v", kv * dim, wide,
	                low_rank_input(b, h, "shared_v_a", rank, wide), rank);
	build_at(b, "position");
	q = build_rotate(b, q, heads, dim, 0, "q_rope");
	k = build_rotate(b, k, kv, dim, 0, "k_rope");
	build_at(b, "shared.layers");
	int done = b->done[b->layer] = build_append(b, k, v, &shape);
	int y = build_attend(b, q, done, &shape);
	build_at(b, "shared.layers");
	y = product(b, y, shared_weight(b, "shared_o", hidden, heads * dim), -1, hidden,
	            heads * dim, "shared_attn");

	h = shared_norm(b, y, "shared_ffn_norm", hidden, "shared_ffn_in");
	rank = s->shared.rank;
	int low = low_rank_input(b, h, "shared_ffn_a", rank, hidden),
	    g = adapted(b, h, "shared_gate", width, hidden, low, rank),
	    u = adapted(b, h, "shared_up", width, hidden, low, rank);
	y = build_value(b, "shared_act");
	o = OP(b, glu, .g = g, .u = u, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", build_act_word(s->ffn.act));
	op_set_num(b->g, o, "limit", spec_ffn_limit(s, b->layer));
	y = product(b, y, shared_weight(b, "shared_down", hidden, width), -1, hidden, width,
	            "shared_ffn");
	return build_matmul(b, y, "from_shared", false, hidden, hidden, "from_shared");
}

int
build_attention(ModelBuilder *b, int h)
{
	if (spec_linear(b->s, b->layer))
		return build_delta_rule(b, h);
	if (spec_conv(b->s, b->layer))
		return build_short_conv(b, h);
	int y = -1;
	if (spec_ssm(b->s, b->layer)) {
		build_at(b, "ssm.layers");
		y = b->s->ssm.dt_rank ? build_channel_scan(b, h) : build_scan(b, h);
		y = build_scaled(b, y, b->s->ssm.out_scale, b->s->hidden, "ssm_out_scaled");
	}
	if (!spec_attends(b->s, b->layer) || spec_shared(b->s, b->layer))
		return y;
	int a = b->s->attention.kind == ATT_MLA ? build_mla(b, h) : gqa(b, h);
	a = build_scaled(b, a, b->s->attention.out_scale, b->s->hidden, "attn_out_scaled");
	return y < 0 ? a : build_add(b, y, a, 1.0, "mixed");
}
