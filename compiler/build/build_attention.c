/* First block of a layer: attention over keys and values or over latents, or a recurrent block
 * instead. */
#include "compiler/build/build_model.h"

#include <math.h>

/* Rotate dims [first, first + rotated dims of the layer) of each head, in pairs of the given
 * style. */
static int
rotate_as(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first, const char *style,
          const char *name)
{
	const Spec *s = b->s;
	int table = s->n_rope > 1 && spec_windowed(s, b->layer) ? 1 : 0;

	if (s->position != POS_ROPE || (s->rope_in && !s->rope_in[b->layer]))
		return x;
	int y = build_value(b, name);
	if (s->rope_axes == 2) {
		Op *o = OP(b, rope_2d, .x = x, .rope = b->rope[0], .rope2 = b->rope2, .y = y);
		op_set_int(b->g, o, "heads", heads);
		op_set_int(b->g, o, "dim", dim);
		op_set_int(b->g, o, "rope_dims", s->rope[0].dims);
		op_set_word(b->g, o, "style", style);
		return y;
	}
	Op *o = OP(b, rope, .x = x, .rope = b->rope[table], .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "first", first);
	op_set_int(b->g, o, "rope_dims", s->rope[table].dims);
	op_set_word(b->g, o, "style", style);
	return y;
}

static int
rotate(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first, const char *name)
{
	return rotate_as(b, x, heads, dim, first,
	                 b->s->rope_style == ROPE_HALF ? "half" : "interleaved", name);
}

/* Norm of q or k, if the description has it at this position. */
static int
qk_norm(ModelBuilder *b, bool after, int x, const char *role, int64_t heads, const char *name)
{
	const Spec *s = b->s;
	bool whole = s->attention.qk_norm == QK_WHOLE;
	int64_t dim = spec_heads(s, b->layer).head_dim;

	if (s->attention.qk_norm == QK_NONE || !s->attention.qk_in[b->layer] ||
	    s->attention.qk_after != after)
		return x;
	build_at(b, "attention.qk_norm");
	if (s->attention.qk_norm == QK_LAYER || s->attention.qk_norm == QK_LAYER_EACH)
		return build_layernorm(b, x, role, dim, heads,
		                       s->attention.qk_norm == QK_LAYER_EACH, s->norm.qk_eps, name);
	return build_rmsnorm(b, x, s->attention.qk_norm == QK_UNIT ? NULL : role,
	                     whole ? heads * dim : dim, whole ? 1 : heads, s->norm.qk_eps,
	                     s->attention.qk_norm != QK_UNIT && s->norm.plus_one, name);
}

/* Clamp q, k or v to attention.qkv_limit, if it is set. */
static int
clamped(ModelBuilder *b, int x, int64_t width, const char *name)
{
	const Spec *s = b->s;

	if (s->attention.qkv_limit == 0)
		return x;
	build_at(b, "attention.qkv_limit");
	int y = build_value(b, name);
	Op *o = OP(b, clamp, .x = x, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "limit", s->attention.qkv_limit);
	build_at(b, "attention.n_heads");
	return y;
}

/* Scale queries by position (attention.temperature). The op follows the append, because fusion
 * writes queries after it. */
static int
q_temperature(ModelBuilder *b, int q, int64_t width)
{
	const Spec *s = b->s;

	if (s->attention.q_temperature.scale == 0 || !s->attention.q_temperature.layer_in[b->layer])
		return q;
	build_at(b, "attention.temperature.scale");
	int y = build_value(b, "q_tempered");
	Op *o = OP(b, pos_scale, .x = q, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", s->attention.q_temperature.scale);
	op_set_int(b->g, o, "offset", s->attention.q_temperature.offset);
	op_set_int(b->g, o, "base", s->attention.q_temperature.positions);
	return y;
}

/* Append keys and values to the layer's cache. The result orders the append before its readers. */
static int
append(ModelBuilder *b, int k, int v, const HeadShape *shape)
{
	int done = build_value(b, "kv");
	Op *o = OP(b, kv_append, .k = k, .v = v, .kv = b->pool[b->layer], .done = done);

	op_set_int(b->g, o, "kv_heads", shape->n_kv_heads);
	op_set_int(b->g, o, "dim", shape->head_dim);
	op_set_int(b->g, o, "v_dim", shape->v_dim);
	if (!kv_by_channel(b->s->kv.k))
		return done;
	int closed = build_value(b, "kv_closed");
	o = OP(b, kv_quantize_page, .kv = b->pool[b->layer], .done = done, .closed = closed);
	op_set_int(b->g, o, "kv_heads", shape->n_kv_heads);
	op_set_int(b->g, o, "dim", shape->head_dim);
	op_set_int(b->g, o, "v_dim", shape->v_dim);
	return closed;
}

/* Attention of q over the layer's cache, after `done`. */
static int
attend(ModelBuilder *b, int q, int done, const HeadShape *shape)
{
	const Spec *s = b->s;
	int sink = -1;

	build_at(b, "attention.n_heads");
	if (s->attention.sinks && s->attention.sink_in[b->layer]) {
		build_at(b, "attention.sinks");
		sink = build_matrix(b, "sinks", shape->n_heads, 0);
	}
	int y = build_value(b, "attn");
	Op *o =
	    OP(b, attention, .q = q, .kv = b->pool[b->layer], .done = done, .sink = sink, .y = y);
	op_set_int(b->g, o, "heads", shape->n_heads);
	op_set_int(b->g, o, "kv_heads", shape->n_kv_heads);
	op_set_int(b->g, o, "dim", shape->head_dim);
	op_set_int(b->g, o, "v_dim", shape->v_dim);
	op_set_num(b->g, o, "scale", s->attention.scale);
	op_set_num(b->g, o, "softcap", s->attention.score_cap);
	op_set_int(b->g, o, "window", spec_windowed(s, b->layer) ? s->attention.window : 0);
	op_set_int(b->g, o, "chunk", spec_windowed(s, b->layer) && s->attention.chunked);
	op_set_word(b->g, o, "mask",
	            s->attention.mask == MASK_PREFIX ? "prefix"
	            : s->attention.mask == MASK_NONE ? "none"
	                                             : "causal");
	op_set_num(b->g, o, "alibi", s->position == POS_ALIBI ? s->alibi_max_bias : 0);
	op_set_int(b->g, o, "alibi_first", 0);
	op_set_int(b->g, o, "alibi_heads", 0); /* not sharded yet: all heads */
	return y;
}

static int
gqa(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	const HeadShape shape = spec_heads(s, b->layer);
	int64_t heads = shape.n_heads, kv_heads = shape.n_kv_heads, dim = shape.head_dim,
	        v_dim = shape.v_dim;
	int source = spec_kv_layer(s, b->layer), k = -1, v = -1;
	bool own = source == b->layer; /* the layer has its own keys and values */

	build_at(b, "attention.n_heads");
	int q = clamped(b, build_matmul(b, h, "q", s->attention.bias, heads * dim, s->hidden, "q"),
	                heads * dim, "q_clipped");
	if (own) {
		k = v = clamped(
		    b, build_matmul(b, h, "k", s->attention.bias, kv_heads * dim, s->hidden, "k"),
		    kv_heads * dim, "k_clipped");
		if (!s->attention.k_is_v[b->layer])
			v = clamped(b,
			            build_matmul(b, h, "v", s->attention.bias, kv_heads * v_dim,
			                         s->hidden, "v"),
			            kv_heads * v_dim, "v_clipped");
	}
	q = qk_norm(b, false, q, "q_norm", heads, "q_normed");
	if (own)
		k = qk_norm(b, false, k, "k_norm", kv_heads, "k_normed");
	build_at(b, "position");
	q = rotate(b, q, heads, dim, 0, "q_rope");
	if (own)
		k = rotate(b, k, kv_heads, dim, 0, "k_rope");
	q = qk_norm(b, true, q, "q_norm", heads, "q_normed");
	if (own)
		k = qk_norm(b, true, k, "k_norm", kv_heads, "k_normed");
	if (own && s->attention.v_norm) {
		build_at(b, "attention.v_norm");
		v = build_rmsnorm(b, v, NULL, v_dim, kv_heads, s->norm.qk_eps, false, "v_normed");
	}
	if (own && s->attention.v_scale != 1) {
		build_at(b, "attention.v_scale");
		v = build_gain(b, v, NULL, s->attention.v_scale, kv_heads * v_dim, "v_scaled");
	}
	build_at(b, "attention.n_heads");
	int done = b->done[b->layer] = own ? append(b, k, v, &shape) : b->done[source];
	int y = attend(b, q_temperature(b, q, heads * dim), done, &shape);
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

/* Return the positions that rows of this layer attend to: the selection of its indexer, from the
 * stream h and the normed query latent, or of the last indexer before it; -1: all positions. */
static int
build_indexer(ModelBuilder *b, int h, int low)
{
	const Spec *s = b->s;
	int64_t heads = s->attention.index.heads, dim = s->attention.index.dim;
	const char *style = s->attention.index.interleaved ? "interleaved" : "half";

	if (s->attention.index.top_k == 0 || b->index[b->layer] < 0)
		return b->sel;
	build_at(b, "attention.index.top_k");
	int q = rotate_as(
	    b, build_matmul(b, low, "index_q", false, heads * dim, s->attention.q_rank, "index_q"),
	    heads, dim, 0, style, "index_q_rope");
	int k = build_matmul(b, h, "index_k", false, dim, s->hidden, "index_k"),
	    normed = build_value(b, "index_k_normed");
	Op *o = OP(b, layernorm, .x = k, .w = build_matrix(b, "index_k_norm", dim, 0),
	           .b = build_bias(b, true, "index_k_norm", dim), .y = normed);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", 1);
	op_set_int(b->g, o, "per_group", 0);
	op_set_num(b->g, o, "eps", s->attention.index.eps);
	op_set_int(b->g, o, "plus_one", 0);
	k = rotate_as(b, normed, 1, dim, 0, style, "index_k_rope");
	int w = build_matmul(b, h, "index_w", false, heads, s->hidden, "index_w"),
	    done = build_value(b, "index");
	o = OP(b, index_append, .k = k, .kv = b->index[b->layer], .done = done);
	op_set_int(b->g, o, "dim", dim);
	b->sel = build_value(b, "sel");
	o = OP(b, index_select, .q = q, .w = w, .kv = b->index[b->layer], .done = done,
	       .sel = b->sel);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "index_top_k", s->attention.index.top_k);
	op_set_num(b->g, o, "scale", 1 / sqrt((double)(heads * dim)));
	return b->sel;
}

/* Add an adapter's contribution to heads of *_width elements, of which *_cols take part in its
 * factors. *_apart: each head has its own rows in the factor. */
static int
heads_adapted(ModelBuilder *b, int x, int64_t x_width, int64_t x_cols, int64_t x_stride, int fa,
              int y, int64_t y_width, int64_t y_cols, int64_t y_stride, int fb, const char *name)
{
	const int rank = b->s->adapters.rank, slots = b->s->adapters.slots;
	int low = build_value(b, arena_printf(b->g->arena, "%s_low", name)),
	    sum = build_value(b, name);
	Op *o[2] = { OP(b, lora_heads_down, .x = x, .a = fa, .t = low), NULL };

	for (int i = 0; i < 2; i++) {
		if (i)
			o[1] = OP(b, lora_heads_up, .x = y, .t = low, .b = fb, .y = sum);
		op_set_int(b->g, o[i], "heads", b->s->attention.n_heads);
		op_set_int(b->g, o[i], "width", i ? y_width : x_width);
		op_set_int(b->g, o[i], "cols", i ? y_cols : x_cols);
		op_set_int(b->g, o[i], "head_stride", i ? y_stride : x_stride);
		op_set_int(b->g, o[i], "rank", rank);
		op_set_int(b->g, o[i], "slots", slots);
	}
	return sum;
}

/* Latent attention with adapter slots: always absorbed, with the adapter's part of k_b and v_b
 * added between the ops. With k_b + b a instead of k_b, queries become k_b^T q + a^T (b^T q); the
 * same holds for v_b: values become v_b o + b (a o). q is not rotated; `both` is latent and key. */
static int
mla_with_adapters(ModelBuilder *b, int q, int both, int sel)
{
	const Spec *s = b->s;
	const int64_t heads = s->attention.n_heads, nope = s->attention.nope_dim,
	              rope = s->attention.rope_dim, rank = s->attention.kv_rank,
	              v_dim = s->attention.v_dim;
	const bool rotated = s->position == POS_ROPE && !(s->rope_in && !s->rope_in[b->layer]);
	const int kv = b->pool[b->layer], done = build_value(b, "kv");
	int kf[2], vf[2], at = build_value(b, "q_mla"), y = build_value(b, "o_mla"), out;
	const bool k_has = build_factors(b->g, "k_b", b->layer, heads * nope, rank, b->loc, kf),
	           v_has = build_factors(b->g, "v_b", b->layer, heads * v_dim, rank, b->loc, vf);
	const int k_b = build_matrix(b, "k_b", heads * nope, rank),
	          v_b = build_matrix(b, "v_b", heads * v_dim, rank);

	Op *o =
	    OP(b, mla_query, .a = q, .c = both, .qn = -1, .q_b = -1,
	       .kvn = build_matrix(b, "kv_a_norm", rank, 0), .k_b = k_b,
	       .rope = rotated ? b->rope[s->n_rope > 1 && spec_windowed(s, b->layer) ? 1 : 0] : -1,
	       .kv = kv, .q = at, .done = done);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "q_rank", 0);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "nope_dim", nope);
	op_set_int(b->g, o, "rope_dim", rope);
	op_set_int(b->g, o, "fused", 0);
	op_set_int(b->g, o, "expand", 0);
	op_set_int(b->g, o, "index_top_k", s->attention.index.top_k);
	op_set_num(b->g, o, "eps", s->norm.latent_eps);
	op_set_word(b->g, o, "style",
	            !rotated                     ? "none"
	            : s->rope_style == ROPE_HALF ? "half"
	                                         : "interleaved");
	if (k_has)
		at = heads_adapted(b, q, nope + rope, nope, nope, kf[1], at, rank + rope, rank, 0,
		                   kf[0], "q_mla_adapted");
	at = q_temperature(b, at, heads * (rank + rope));
	build_at(b, "attention.kind");
	o = OP(b, mla_attend, .q = at, .k_b = -1, .v_b = -1, .kv = kv, .done = done, .sel = sel,
	       .o = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "nope_dim", nope);
	op_set_int(b->g, o, "rope_dim", rope);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "expand", 0);
	op_set_int(b->g, o, "index_top_k", s->attention.index.top_k);
	op_set_num(b->g, o, "scale", s->attention.scale);
	out = build_value(b, "attn");
	o = OP(b, mla_value, .o = y, .v_b = v_b, .y = out);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "expand", 0);
	op_set_int(b->g, o, "index_top_k", s->attention.index.top_k);
	return v_has ? heads_adapted(b, y, rank, rank, 0, vf[0], out, v_dim, v_dim, v_dim, vf[1],
	                             "attn_adapted")
	             : out;
}

/* The cache holds the normed latent and one rotated key; k_b and v_b remain separate factors. If an
 * indexer also reads the query latent, the GEMM of kv_a comes first, because fuse_mla merges q_a
 * and kv_a there. The indexer precedes the append, where the fused attention will be. */
static int
mla(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t heads = s->attention.n_heads, nope = s->attention.nope_dim,
	        rope = s->attention.rope_dim;
	int64_t rank = s->attention.kv_rank, q_rank = s->attention.q_rank,
	        v_dim = s->attention.v_dim;
	int kv = b->pool[b->layer], q, low = -1, both = -1;
	bool indexed = s->attention.index.top_k > 0;

	build_at(b, "attention.kind");
	if (indexed)
		both =
		    build_matmul(b, h, "kv_a", s->attention.bias, rank + rope, s->hidden, "kv_a");
	if (q_rank > 0) {
		low = build_matmul(b, h, "q_a", s->attention.bias, q_rank, s->hidden, "q_a");
		low = build_rmsnorm(b, low, "q_a_norm", q_rank, 1, s->norm.latent_eps, false,
		                    "q_a_normed");
		q = build_matmul(b, low, "q_b", false, heads * (nope + rope), q_rank, "q");
	} else {
		q = build_matmul(b, h, "q", false, heads * (nope + rope), s->hidden, "q");
	}
	if (!s->adapters.slots)
		q = rotate(b, q, heads, nope + rope, nope, "q_rope");
	if (!indexed)
		both =
		    build_matmul(b, h, "kv_a", s->attention.bias, rank + rope, s->hidden, "kv_a");
	if (s->adapters.slots)
		return build_matmul(b, mla_with_adapters(b, q, both, build_indexer(b, h, low)), "o",
		                    s->attention.o_bias, s->hidden, heads * v_dim, "attn_out");
	int latent = build_slice(b, both, rank + rope, 0, rank, "latent");
	latent = build_rmsnorm(b, latent, "kv_a_norm", rank, 1, s->norm.latent_eps, false,
	                       "latent_normed");
	int key = build_slice(b, both, rank + rope, rank, rope, "k_pe");
	key = rotate(b, key, 1, rope, 0, "k_rope");
	int sel = build_indexer(b, h, low);
	build_at(b, "attention.kind");

	int done = build_value(b, "kv");
	Op *o = OP(b, mla_append, .latent = latent, .rope_k = key, .kv = kv, .done = done);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "rope_dim", rope);

	q = q_temperature(b, q, heads * (nope + rope));
	build_at(b, "attention.kind");
	int k_b = build_matrix(b, "k_b", heads * nope, rank),
	    v_b = build_matrix(b, "v_b", heads * v_dim, rank);
	int y = build_value(b, "attn");
	o = OP(b, mla_attention, .q = q, .k_b = k_b, .v_b = v_b, .kv = kv, .done = done, .sel = sel,
	       .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "nope_dim", nope);
	op_set_int(b->g, o, "rope_dim", rope);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "index_top_k", s->attention.index.top_k);
	op_set_num(b->g, o, "scale", s->attention.scale);
	return build_matmul(b, y, "o", s->attention.o_bias, s->hidden, heads * v_dim, "attn_out");
}

/* --- recurrent blocks instead of a cache --- */

/* y = act(w * x + wb) along the sequence, with `taps` rows of w per channel. */
static int
conv(ModelBuilder *b, int x, int w, int wb, int64_t width, int taps, const char *gate,
     const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, conv1d, .x = x, .w = w, .b = wb, .state = b->conv[b->layer], .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_int(b->g, o, "taps", taps);
	op_set_word(b->g, o, "gate", gate);
	return y;
}

/* Concatenate the convolution weights of q, k and v in the order of the channels. */
static int
conv_weights(ModelBuilder *b, const int64_t rows[3])
{
	static const char *const role[] = { "lin_conv_q", "lin_conv_k", "lin_conv_v" };
	int part[3];

	for (int i = 0; i < 3; i++)
		if ((part[i] = build_matrix(b, role[i], rows[i] * b->s->linear.taps, 0)) < 0)
			return -1;
	int w = graph_stack(b->g, arena_printf(b->g->arena, "L%d.lin_conv", b->layer), part, 3);
	if (w < 0)
		err_at(
		    b->g->diag, b->loc,
		    "layer %d: the convolution's weights of q, k and v must be stored in one type",
		    b->layer);
	return w;
}

/* One GEMM, or two with inner dimension `low` if it is not 0. */
static int
low_rank(ModelBuilder *b, int h, const char *low, const char *role, int64_t rank, int64_t rows)
{
	if (rank)
		h = build_matmul(b, h, low, false, rank, b->s->hidden, low);
	return build_matmul(b, h, role, false, rows, rank ? rank : b->s->hidden, role);
}

/* Gated delta rule: q, k and v through one convolution, a recurrent state per head, and a norm
 * gated by another projection. */
static int
delta(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t k_heads = s->linear.k_heads, v_heads = s->linear.v_heads, k_dim = s->linear.k_dim,
	        v_dim = s->linear.v_dim;
	int64_t width = 2 * k_heads * k_dim + v_heads * v_dim,
	        decays = s->linear.per_channel ? k_dim : 1;
	static const char *const role[] = { "lin_q", "lin_k", "lin_v" };
	const int64_t rows[] = { k_heads * k_dim, k_heads * k_dim, v_heads * v_dim };
	const StorageRule as = spec_storage(s, role[0], b->layer);
	int part[3];
	bool there = true;

	build_at(b, "linear.layers");
	for (int i = 0; i < 3; i++) {
		const StorageRule own = spec_storage(s, role[i], b->layer);
		part[i] = build_matrix(b, role[i], rows[i], s->hidden);
		there &= part[i] >= 0;
		if (!same_word(own.order, as.order) || !same_word(own.factor, as.factor)) {
			err_at(b->g->diag, b->loc,
			       "layer %d: q, k and v before a convolution must share one column "
			       "order and one factor",
			       b->layer);
			return h;
		}
	}
	int w = there
	            ? graph_stack(b->g, arena_printf(b->g->arena, "L%d.lin_qkv", b->layer), part, 3)
	            : -1;
	if (w < 0) {
		if (there)
			err_at(
			    b->g->diag, b->loc,
			    "layer %d: q, k and v before a convolution must be stored in one type",
			    b->layer);
		return h;
	}
	int qkv = build_value(b, "lin_qkv"), in = build_permute_cols(b, h, role[0], s->hidden);
	Op *o = OP(b, matmul, .x = in, .w = w, .b = -1, .y = qkv);
	op_set_int(b->g, o, "rows", width);
	op_set_int(b->g, o, "cols", s->hidden);
	int z = low_rank(b, h, "lin_z_low", "lin_z", s->linear.gate_rank, v_heads * v_dim);
	int beta = build_matmul(b, h, "lin_b", false, v_heads, s->hidden, "lin_b");
	int a = low_rank(b, h, "lin_a_low", "lin_a", s->linear.decay_rank, v_heads * decays);
	int x = conv(b, qkv, conv_weights(b, rows), -1, width, s->linear.taps, "silu", "lin_conv");

	int rate = build_matrix(b, "lin_rate", v_heads, 0),
	    dt = build_matrix(b, "lin_dt", v_heads * decays, 0), y = build_value(b, "lin_y");
	o = OP(b, delta_rule, .x = x, .a = a, .b = beta, .rate = rate, .dt = dt,
	       .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "k_heads", k_heads);
	op_set_int(b->g, o, "v_heads", v_heads);
	op_set_int(b->g, o, "k_dim", k_dim);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "g_dim", decays);
	op_set_num(b->g, o, "scale", 1 / sqrt((double)k_dim));
	op_set_num(b->g, o, "eps", 1e-6);
	op_set_int(b->g, o, "tiled", s->linear.tiled);
	op_set_int(b->g, o, "a_log", s->linear.a_log);
	op_set_num(b->g, o, "b_scale", s->linear.beta_scale);

	int nw = build_matrix(b, "lin_norm", v_dim, 0), gated = build_value(b, "lin_gated");
	o = OP(b, norm_gate, .x = y, .z = z, .w = nw, .y = gated);
	op_set_int(b->g, o, "dim", v_dim);
	op_set_int(b->g, o, "groups", v_heads);
	op_set_num(b->g, o, "eps", s->norm.linear_eps);
	op_set_word(b->g, o, "order", "norm_first");
	op_set_word(b->g, o, "gate", s->linear.gate);
	return build_matmul(b, gated, "lin_o", false, s->hidden, v_heads * v_dim, "attn_out");
}

static int
mul(ModelBuilder *b, int x, int z, int64_t width, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, mul, .x = x, .z = z, .y = y);

	op_set_int(b->g, o, "width", width);
	return y;
}

/* out(c * conv(b * x)) */
static int
short_conv(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t hidden = s->hidden;

	build_at(b, "conv.layers");
	int gate = build_matmul(b, h, "conv_b", s->conv.bias, hidden, hidden, "conv_b"),
	    out = build_matmul(b, h, "conv_c", s->conv.bias, hidden, hidden, "conv_c");
	int x = mul(b, gate, build_matmul(b, h, "conv_x", s->conv.bias, hidden, hidden, "conv_x"),
	            hidden, "conv_in");
	int w = build_matrix(b, "conv_w", hidden * s->conv.taps, 0),
	    wb = build_bias(b, s->conv.bias, "conv_w", hidden);
	x = conv(b, x, w, wb, hidden, s->conv.taps, "none", "conv_y");
	return build_matmul(b, mul(b, out, x, hidden, "conv_out"), "conv_o", s->conv.bias, hidden,
	                    hidden, "attn_out");
}

/* Gate the output of a scan by z. */
static int
scan_gate(ModelBuilder *b, int y, int z, int64_t inner)
{
	const Spec *s = b->s;
	int out = build_value(b, "ssm_gated");
	bool first = s->ssm.norm == SSM_GATE_FIRST;
	Op *o;

	if (s->ssm.norm == SSM_NO_NORM) {
		o = OP(b, glu, .g = z, .u = y, .y = out);
		op_set_int(b->g, o, "width", inner);
		op_set_word(b->g, o, "act", "silu");
		op_set_num(b->g, o, "limit", 0);
		return out;
	}
	int64_t dim = inner / s->ssm.norm_groups;
	o = OP(b, norm_gate, .x = y, .z = z, .w = build_matrix(b, "ssm_norm", inner, 0), .y = out);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", s->ssm.norm_groups);
	op_set_num(b->g, o, "eps", s->norm.ssm_eps);
	op_set_word(b->g, o, "order", first ? "gate_first" : "norm_first");
	op_set_word(b->g, o, "gate", "silu");
	return out;
}

/* dt, B or C of a Mamba scan, with its norm if there is one. */
static int
scan_part(ModelBuilder *b, int x, const char *role, int64_t rows)
{
	const Spec *s = b->s;
	int y = build_matmul(b, x, role, false, rows, s->ssm.dim, role);
	const char *norm =
	    s->ssm.low_norm == LOW_WEIGHT ? arena_printf(b->g->arena, "%s_norm", role) : NULL;

	return s->ssm.low_norm == LOW_NO_NORM
	           ? y
	           : build_rmsnorm(b, y, norm, rows, 1, s->norm.ssm_eps, false,
	                           arena_printf(b->g->arena, "%s_normed", role));
}

/* Selective scan of Mamba: only u passes through the convolution; dt, B and C are projected from
 * its output; rates are per channel. */
static int
channel_scan(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t inner = s->ssm.dim, n = s->ssm.state;

	int z = build_matmul(b, h, "ssm_z", s->ssm.bias, inner, s->hidden, "ssm_z"),
	    u = build_matmul(b, h, "ssm_x", s->ssm.bias, inner, s->hidden, "ssm_x");
	int cw = build_matrix(b, "ssm_conv", inner * s->ssm.taps, 0),
	    cb = build_bias(b, s->ssm.conv_bias, "ssm_conv", inner);
	int x = conv(b, u, cw, cb, inner, s->ssm.taps, "silu", "ssm_conv");
	int low = scan_part(b, x, "ssm_low", s->ssm.dt_rank), in = scan_part(b, x, "ssm_b", n),
	    out = scan_part(b, x, "ssm_c", n);
	int dt = build_matmul(b, low, "ssm_dt", false, inner, s->ssm.dt_rank, "ssm_dt");

	int rate = build_matrix(b, "ssm_rate", inner * n, 0),
	    bias = build_matrix(b, "ssm_dt_bias", inner, 0),
	    skip = build_matrix(b, "ssm_skip", inner, 0);
	int y = build_value(b, "ssm_y");
	Op *o = OP(b, channel_scan, .x = x, .dt = dt, .b = in, .c = out, .rate = rate, .bias = bias,
	           .skip = skip, .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "width", inner);
	op_set_int(b->g, o, "n_state", n);
	op_set_int(b->g, o, "a_log", s->ssm.a_log);
	return build_matmul(b, scan_gate(b, y, z, inner), "ssm_o", s->ssm.bias, s->hidden, inner,
	                    s->ssm.beside ? "ssm_out" : "attn_out");
}

/* Selective scan of Mamba2: [u | B | C] through one convolution, a recurrent state per head, and a
 * gated norm. */
static int
scan(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t heads = s->ssm.heads, inner = heads * s->ssm.dim, width = spec_ssm_row(s);

	const double *gain = s->ssm.gain;
	const int64_t part = (int64_t)s->ssm.groups * s->ssm.state;
	int z = build_scaled(b, build_matmul(b, h, "ssm_z", s->ssm.bias, inner, s->hidden, "ssm_z"),
	                     gain[0], inner, "ssm_z_scaled");
	int in = build_matmul(b, h, "ssm_x", s->ssm.bias, width, s->hidden, "ssm_x");
	in = build_scaled_part(b, in, gain[1], width, 0, inner, "ssm_u_scaled");
	in = build_scaled_part(b, in, gain[2], width, inner, part, "ssm_b_scaled");
	in = build_scaled_part(b, in, gain[3], width, inner + part, part, "ssm_c_scaled");
	int dt =
	    build_scaled(b, build_matmul(b, h, "ssm_dt", s->ssm.bias, heads, s->hidden, "ssm_dt"),
	                 gain[4], heads, "ssm_dt_scaled");
	int cw = build_matrix(b, "ssm_conv", width * s->ssm.taps, 0),
	    cb = build_bias(b, s->ssm.conv_bias, "ssm_conv", width);
	int x = conv(b, in, cw, cb, width, s->ssm.taps, "silu", "ssm_conv");

	int rate = build_matrix(b, "ssm_rate", heads, 0),
	    bias = build_matrix(b, "ssm_dt_bias", heads, 0),
	    skip = build_matrix(b, "ssm_skip", heads, 0);
	int y = build_value(b, "ssm_y");
	Op *o = OP(b, selective_scan, .x = x, .dt = dt, .rate = rate, .bias = bias, .skip = skip,
	           .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "dim", s->ssm.dim);
	op_set_int(b->g, o, "groups", s->ssm.groups);
	op_set_int(b->g, o, "n_state", s->ssm.state);
	op_set_int(b->g, o, "a_log", s->ssm.a_log);
	op_set_num(b->g, o, "dt_min", s->ssm.dt_min);
	op_set_num(b->g, o, "dt_max", s->ssm.dt_max);
	return build_matmul(b, scan_gate(b, y, z, inner), "ssm_o", s->ssm.bias, s->hidden, inner,
	                    s->ssm.beside ? "ssm_out" : "attn_out");
}

/* ---- block with shared weights ---- */

/* Return a weight of the shared block; its first layer creates it. */
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

/* x w^T with w of the shared block. If `low` is a value, add low b^T, with b the layer's own factor
 * of this rank. */
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

/* from_shared(down(glu(gate h, up h))) with h = norm(o attention(norm([x | embedded]))). There is
 * no residual inside. */
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
	q = rotate(b, q, heads, dim, 0, "q_rope");
	k = rotate(b, k, kv, dim, 0, "k_rope");
	build_at(b, "shared.layers");
	int done = b->done[b->layer] = append(b, k, v, &shape);
	int y = attend(b, q, done, &shape);
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
		return delta(b, h);
	if (spec_conv(b->s, b->layer))
		return short_conv(b, h);
	int y = -1;
	if (spec_ssm(b->s, b->layer)) {
		build_at(b, "ssm.layers");
		y = b->s->ssm.dt_rank ? channel_scan(b, h) : scan(b, h);
		y = build_scaled(b, y, b->s->ssm.out_scale, b->s->hidden, "ssm_out_scaled");
	}
	if (!spec_attends(b->s, b->layer) || spec_shared(b->s, b->layer))
		return y;
	int a = b->s->attention.kind == ATT_MLA ? mla(b, h) : gqa(b, h);
	a = build_scaled(b, a, b->s->attention.out_scale, b->s->hidden, "attn_out_scaled");
	return y < 0 ? a : build_add(b, y, a, 1.0, "mixed");
}
