/* Ops on the heads of attention: rotation, norms, clamping, temperature, and attention itself. */
#include "compiler/build/build_heads.h"
#include "compiler/build/build_model.h"

int
build_rotate_as(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first,
                const char *style, const char *name)
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

int
build_rotate(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first, const char *name)
{
	return build_rotate_as(b, x, heads, dim, first,
	                       b->s->rope_style == ROPE_HALF ? "half" : "interleaved", name);
}

int
build_qk_norm(ModelBuilder *b, bool after, int x, const char *role, int64_t heads, const char *name)
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

int
build_clamped(ModelBuilder *b, int x, int64_t width, const char *name)
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

int
build_q_temperature(ModelBuilder *b, int q, int64_t width)
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

int
build_append(ModelBuilder *b, int k, int v, const HeadShape *shape)
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

int
build_attend(ModelBuilder *b, int q, int done, const HeadShape *shape)
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
	op_set_int(b->g, o, "window",
	           spec_windowed(s, b->layer) && !s->attention.segments ? s->attention.window : 0);
	op_set_int(b->g, o, "chunk", spec_windowed(s, b->layer) && s->attention.chunked);
	op_set_word(b->g, o, "mask",
	            s->attention.mask == MASK_PREFIX || spec_images_whole(s) ? "prefix"
	            : s->attention.mask == MASK_NONE                         ? "none"
	                                                                     : "causal");
	op_set_num(b->g, o, "alibi", s->position == POS_ALIBI ? s->alibi_max_bias : 0);
	op_set_int(b->g, o, "alibi_first", 0);
	/* number of heads in the slope rule; 0: all, before sharding */
	op_set_int(b->g, o, "alibi_heads", 0);
	return y;
}
