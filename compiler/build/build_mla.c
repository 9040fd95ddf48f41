/* Attention over latents, and its indexer */
#include <math.h>

#include "compiler/build/build_heads.h"
#include "compiler/build/build_model.h"

/* Return the positions to which rows of this layer attend. If the layer has an indexer, they are
 * its selection, made from the stream h and the normed query latent; otherwise the selection of the
 * last indexer before this layer. -1: all positions. */
static int
build_indexer(ModelBuilder *b, int h, int low)
{
	const Spec *s = b->s;
	int64_t heads = s->attention.index.heads, dim = s->attention.index.dim;
	const char *style = s->attention.index.interleaved ? "interleaved" : "half";

	if (s->attention.index.top_k == 0 || b->index[b->layer] < 0)
		return b->sel;
	build_at(b, "attention.index.top_k");
	int q = build_rotate_as(
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
	k = build_rotate_as(b, normed, 1, dim, 0, style, "index_k_rope");
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

/* Add an adapter's contribution to heads of *_width elements. Its factors apply to the first *_cols
 * of them. *_stride: rows of a factor per head; 0: all heads use the same rows */
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

/* Latent attention with adapter slots. All rows use the absorbed form, and the adapter's part of
 * k_b and v_b is added between the ops. With k_b + b a instead of k_b, queries become k_b^T q + a^T
 * (b^T q). With v_b + b a, values become v_b o + b (a o). RoPE is not yet applied to q; `both` has
 * latent and key. */
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
	at = build_q_temperature(b, at, heads * (rank + rope));
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

int
build_mla(ModelBuilder *b, int h)
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
		q = build_rotate(b, q, heads, nope + rope, nope, "q_rope");
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
	key = build_rotate(b, key, 1, rope, 0, "k_rope");
	int sel = build_indexer(b, h, low);
	build_at(b, "attention.kind");

	int done = build_value(b, "kv");
	Op *o = OP(b, mla_append, .latent = latent, .rope_k = key, .kv = kv, .done = done);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "rope_dim", rope);

	q = build_q_temperature(b, q, heads * (nope + rope));
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
