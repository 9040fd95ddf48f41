/* Build a Graph from a Spec: the equations of the model, one op each, nothing fused. Families
 * differ only in values of the Spec; no code here names a family. Graph values are named by their
 * meaning ("L3.q"), because llmc verify compares values of the same name. This file has the layers,
 * the parts before and after them, and the pools; build_attention.c and build_ffn.c have the two
 * blocks, build_ops.c single equations, build_tensor.c weights. */
#include "compiler/build/build_model.h"

#include <math.h>

#include "formats/dequant.h"
#include "formats/peft.h"

/* Return the output of a block, times a learned vector if the model has one. */
static int
block_scaled(ModelBuilder *b, int x, const char *role, const char *name)
{
	if (!b->s->residual.block_scale)
		return x;
	build_at(b, "residual.block_scale");
	return build_times(b, x, role, b->s->hidden, name);
}

/* Attention, or the recurrent block of the layer. */
static int
attention_block(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int y = block_scaled(b, build_attention(b, h), "attn_scale", "attn_scaled");

	build_at(b, "norm.kind");
	return build_norm(b, s->norm.attn_out && s->norm.out_layers[b->layer], y, "attn_out_norm",
	                  "attn_out_normed");
}

/* Second block of the layer. h: the norm of the stream x */
static int
ffn_block(ModelBuilder *b, int h, int x)
{
	const Spec *s = b->s;
	bool sparse = s->moe.n_experts > 0 && s->moe.layer_in && s->moe.layer_in[b->layer];
	int y;

	if (sparse && s->moe.parallel) {
		int d = build_norm(b, true, build_dense(b, h), "dense_out_norm", "dense_normed");
		int e = build_moe(b, build_norm(b, true, x, "moe_norm", "moe_in"), x);
		y = build_add(b, d, build_norm(b, true, e, "moe_out_norm", "moe_normed"), 1.0,
		              "ffn_out");
	} else {
		y = sparse ? build_moe(b, h, x) : build_dense(b, h);
	}
	y = block_scaled(b, y, "ffn_scale", "ffn_scaled");

	build_at(b, "norm.kind");
	return build_norm(b, s->norm.ffn_out && s->norm.out_layers[b->layer], y, "ffn_out_norm",
	                  "ffn_out_normed");
}

/* Return norm(out(act(gate x) * per-layer embedding of the token)). */
static int
per_layer_part(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	int64_t width = s->ple_width;

	build_at(b, "per_layer.width");
	int g = build_matmul(b, x, "ple_gate", false, width, s->hidden, "ple_gate");
	int u = build_slice(b, b->ple, s->n_layers * width, b->layer * width, width, "ple_u"),
	    y = build_value(b, "ple_act");
	Op *o = OP(b, glu, .g = g, .u = u, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", build_act_word(s->ffn.act));
	op_set_num(b->g, o, "limit", 0);
	y = build_matmul(b, y, "ple_out", false, s->hidden, width, "ple_out");
	return build_norm(b, true, y, "ple_out_norm", "ple_normed");
}

/* Correct all streams with a, the layer's result. Per-layer embeddings read the active stream and
 * are added to the other ones. */
static int
streams_end(ModelBuilder *b, int all, int a)
{
	const Spec *s = b->s;
	int y = build_stream_correct(b, all, a);

	if (!s->ple_width)
		return y;
	int x = build_stream_active(b, y, "stream_out");
	if (s->streams.gain) {
		build_at(b, "streams.gain");
		int by = build_matrix(b, "stream_gain", s->hidden, 0),
		    scaled = build_value(b, "stream_gained");
		Op *o = OP(b, permute_cols, .x = x, .nw = -1, .nb = -1, .order = -1, .factor = by,
		           .y = scaled);
		op_set_int(b->g, o, "width", s->hidden);
		op_set_word(b->g, o, "norm", "none");
		op_set_num(b->g, o, "eps", 0);
		op_set_int(b->g, o, "plus_one", 0);
		x = scaled;
	}
	return build_stream_add(b, y, per_layer_part(b, x));
}

/* End of a layer: adds per-layer embeddings to x, then multiplies by the layer's gain. With several
 * streams, which `all` holds, x is the active one. */
static int
layer_end(ModelBuilder *b, int x, int all)
{
	const Spec *s = b->s;

	if (s->streams.count > 1)
		return streams_end(b, all, x);
	if (s->ple_width)
		x = build_add(b, x, per_layer_part(b, x), 1.0, "with_ple");
	if (!s->residual.layer_gain)
		return x;
	build_at(b, "residual.layer_gain");
	return build_gain(b, x, "layer_gain", 1.0, s->hidden, "gained");
}

/* Laurel: return (mid + h + norm(right (left h))) / sqrt(2), where mid is the stream after
 * attention and h the input of attention. */
static int
laurel(ModelBuilder *b, int mid, int h)
{
	const Spec *s = b->s;
	int64_t rank = s->laurel_rank;

	if (!rank)
		return mid;
	build_at(b, "residual.low_rank");
	int y =
	    build_matmul(b, build_matmul(b, h, "laurel_a", false, rank, s->hidden, "laurel_low"),
	                 "laurel_b", false, s->hidden, rank, "laurel");
	mid = build_add(b, mid, h, 1.0, "mid_and_in");
	mid = build_add(b, mid, build_norm(b, true, y, "laurel_norm", "laurel_normed"), 1.0,
	                "mid_and_laurel");
	return build_gain(b, mid, NULL, sqrt(0.5), s->hidden, "mid_mean");
}

static int
layer(ModelBuilder *b, int x, int l)
{
	const Spec *s = b->s;
	double skip = s->residual.skip_scale;
	int mid = x;
	bool ffn_in = s->norm.ffn_in && s->norm.in_layers[l];

	b->layer = l;
	int all = s->streams.count > 1 ? build_stream_predict(b, x) : -1;
	if (all >= 0)
		mid = x = build_stream_active(b, all, "active");
	build_at(b, "norm.kind");
	int seen = spec_shared(s, l) ? build_add(b, x, build_shared(b, x), 1.0, "with_shared")
	                             : x; /* the block's output is not added to the stream */
	build_at(b, "norm.kind");
	int h = s->mtp.part == MTP_DRAFT && l == 0
	            ? build_draft_input(b, &x)
	            : build_norm(b,
	                         s->norm.attn_in && s->norm.in_layers[l] &&
	                             s->norm.attn_in_layers[l] && spec_has_block(s, l),
	                         seen, "attn_norm", "attn_in");
	if (s->residual.parallel) {
		/* Both blocks read the same stream. If the second block has no norm of its own, it
		 * uses that of the first. */
		int h2 = ffn_in ? build_norm(b, true, x, "ffn_norm", "ffn_in") : h;
		int from = s->residual.from_norm ? h : x;
		int a = attention_block(b, h), f = ffn_block(b, h2, x);
		build_at(b, "residual.form");
		mid = build_add(b, from, a, skip, "mid");
		return layer_end(b, build_add(b, mid, f, 1.0, "out"), all);
	}
	if (spec_has_block(s, l)) {
		int a = attention_block(b, h);
		build_at(b, "residual.form");
		mid = build_add(b, s->residual.from_norm ? h : x, a, skip, "mid");
		mid = build_norm(b, s->norm.sum && s->norm.in_layers[l], mid, "attn_norm",
		                 "mid_normed");
		mid = laurel(b, mid, h);
	}
	if (!spec_has_ffn(s, l))
		return layer_end(b, mid, all);
	build_at(b, "norm.kind");
	int h2 = build_norm(b, ffn_in, mid, "ffn_norm", "ffn_in");
	int f = ffn_block(b, h2, mid);
	build_at(b, "residual.form");
	int out = build_add(b, s->residual.from_norm ? h2 : mid, f, skip, "out");
	return layer_end(
	    b, build_norm(b, s->norm.sum && s->norm.in_layers[l], out, "ffn_norm", "out_normed"),
	    all);
}

/* --- the model --- */

/* Return the factor of the embedding. For models that multiply by the rounded square root of
 * hidden, it is rounded to the dtype of activations. */
static double
embed_scale(const Spec *s)
{
	if (!s->embed.round_scale)
		return s->embed.scale;
	if (s->dtype == DT_BF16)
		return bf16_to_f32(f32_to_bf16((float)s->embed.scale));
	if (s->dtype == DT_F16)
		return f16_to_f32(f32_to_f16((float)s->embed.scale));
	return (float)s->embed.scale;
}

static int
embed(ModelBuilder *b, int *table)
{
	const Spec *s = b->s;

	build_at(b, "vocab_size");
	*table = build_matrix(b, "embed", s->vocab_size, s->embed.width);
	int x = build_value(b, spec_narrow(s) ? "x0_narrow" : "x0");
	Op *o = OP(b, embed, .w = *table, .y = x);
	op_set_int(b->g, o, "hidden", s->embed.width);
	op_set_num(b->g, o, "scale", embed_scale(s));
	if (spec_narrow(s)) {
		build_at(b, "embed.width");
		x = build_matmul(b, x, "embed_in", false, s->hidden, s->embed.width, "x0");
	}
	if (s->position == POS_LEARNED) {
		build_at(b, "position");
		int w = build_matrix(b, "pos_embed", s->max_positions + s->pos_offset, s->hidden),
		    y = build_value(b, "x0_pos");
		o = OP(b, embed_pos, .x = x, .w = w, .y = y);
		op_set_int(b->g, o, "hidden", s->hidden);
		op_set_int(b->g, o, "offset", s->pos_offset);
		x = y;
	}
	if (s->embed.types) {
		build_at(b, "embed.types");
		int w = build_matrix(b, "type_embed", s->embed.types, s->hidden),
		    y = build_value(b, "x0_type");
		o = OP(b, embed_type, .x = x, .w = w, .y = y);
		op_set_int(b->g, o, "hidden", s->hidden);
		op_set_int(b->g, o, "types", s->embed.types);
		x = y;
	}
	build_at(b, "norm.kind");
	return build_norm(b, s->norm.embed, x, "embed_norm", "x0_normed");
}

/* Return the per-layer embeddings of the tokens, for all layers: a row of a separate table plus a
 * normed projection of the embedding, divided by the square root of two. */
static int
per_layer(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	int64_t width = s->ple_width, all = s->n_layers * width;

	build_at(b, "per_layer.width");
	int w = build_table(b->g, "ple_embed", s->ple_vocab ? s->ple_vocab : s->vocab_size,
	                    s->vocab_size, all, b->loc),
	    own = build_value(b, "ple_token");
	Op *o = OP(b, embed, .w = w, .y = own);
	op_set_int(b->g, o, "hidden", all);
	op_set_num(b->g, o, "scale", sqrt(width / 2.0));
	int p = build_matmul(b, x, "ple_proj", false, all, s->hidden, "ple_proj");
	p = build_gain(b, p, NULL, pow((double)s->hidden, -0.5), all, "ple_scaled");
	p = build_rmsnorm(b, p, "ple_norm", width, s->n_layers, s->norm.eps, s->norm.plus_one,
	                  "ple_projected");
	return build_add_wide(b, p, own, sqrt(0.5), all, "ple");
}

/* Return the stream before the first layer: the embedded tokens, plus position and type embeddings
 * and rows of images if the model has them. */
static int
stream(ModelBuilder *b, int *table)
{
	const Spec *s = b->s;

	if (s->mtp.part == MTP_HEAD) {
		const int rows = build_given_rows(b, "mtp.part", "came", s->hidden);
		b->embedded = embed(b, table);
		return build_head_stream(b, rows);
	}
	if (s->mtp.part == MTP_DRAFT) {
		const int rows = build_given_rows(b, "mtp.part", "came", s->mtp.width + s->hidden);
		b->embedded = embed(b, table);
		return build_draft_stream(b, rows);
	}
	if (s->vision.part != VISION_ROWS)
		return b->embedded = embed(b, table);
	b->images = build_given_images(b);
	return b->embedded = build_image_rows(b, embed(b, table));
}

/* Return x after the norm that follows the last layer. */
static int
final_norm(ModelBuilder *b, int x, const char *name)
{
	const bool own = b->s->mtp.part == MTP_HEAD;

	build_at(b, "norm.kind");
	b->layer = own ? 0 : -1;
	int y = build_norm(b, own ? b->s->mtp.norm : b->s->norm.final, x,
	                   own ? "mtp_norm" : "final_norm", name);
	b->layer = -1;
	return y;
}

/* Mark the rows that a draft head reads: all rows before or after the final norm (mtp.normed), or
 * streams between layers. at [n_layers + 1]: the stream before each layer, and after the last */
static void
mark_draft_rows(ModelBuilder *b, const int *at)
{
	const Spec *s = b->s;
	const int last = at[s->n_layers];

	b->g->rows = s->mtp.part == MTP_ROWS && s->mtp.n_from ? build_joined_streams(b, at)
	             : s->mtp.normed                          ? final_norm(b, last, "rows")
	                                                      : last;
	b->g->outputs_rows = true;
}

/* Build the linear layers between the final norm and the output, with their activations. *width:
 * number of columns of x, and then of the result */
static int
head_dense(ModelBuilder *b, int x, int64_t *width)
{
	static const char *const role[] = { "dense_1", "dense_2", "dense_3" };
	const Spec *s = b->s;

	for (int i = 0; i < s->head.n_dense; i++) {
		build_at(b, "head.dense");
		x = build_matmul(b, x, role[i], s->head.dense_bias, s->head.dense[i], *width,
		                 role[i]);
		*width = s->head.dense[i];
		if (strcmp(s->head.dense_act, "none") == 0)
			continue;
		int y = build_value(b, arena_printf(b->g->arena, "%s_act", role[i]));
		const bool is_tanh = strcmp(s->head.dense_act, "tanh") == 0;
		Op *o =
		    is_tanh ? OP(b, softcap, .x = x, .y = y) : OP(b, act, .x = x, .p = -1, .y = y);
		op_set_int(b->g, o, "width", *width);
		if (is_tanh) {
			op_set_num(b->g, o, "scale", 1);
			op_set_num(b->g, o, "softcap", 1);
		} else {
			op_set_word(b->g, o, "act", s->head.dense_act);
		}
		x = y;
	}
	build_at(b, "norm.kind");
	return build_norm(b, s->head.n_dense && s->head.dense_norm, x, "dense_norm",
	                  "dense_normed");
}

static void
head(ModelBuilder *b, int x, int table)
{
	const Spec *s = b->s;
	bool capped = s->head.cap > 0 || s->head.scale != 1;

	b->layer = -1;
	build_at(b, "vocab_size");
	int last = build_value(b, "last");
	Op *o = OP(b, gather_rows, .x = x, .y = last);
	op_set_int(b->g, o, "width", s->hidden);
	last = final_norm(b, last, "final_norm");
	int64_t width = s->hidden;
	last = head_dense(b, last, &width);
	if (s->head.kind == LLMC_OUTPUT_HIDDEN)
		return;
	if (s->head.kind == LLMC_OUTPUT_LABELS) {
		build_at(b, "head.labels");
		int scores = build_value(b, "logits");
		o = OP(b, matmul, .x = last, .w = build_matrix(b, "labels", s->head.labels, width),
		       .b = build_bias(b, s->head.bias, "labels", s->head.labels), .y = scores);
		op_set_int(b->g, o, "rows", s->head.labels);
		op_set_int(b->g, o, "cols", width);
		return;
	}
	build_at(b, "head.tied");
	if (spec_narrow(s))
		last = build_matmul(b, last, "embed_out", false, s->embed.width, s->hidden,
		                    "last_narrow");
	const bool own = s->mtp.part == MTP_HEAD && s->mtp.output;
	b->layer = own ? 0 : -1;
	const int64_t rows = spec_head_rows(s);
	build_draft_tokens(b);
	int w = !own && s->head.tied && !s->head.row_norm
	            ? table
	            : build_matrix(b, own ? "mtp_output" : "head", rows, s->embed.width);
	b->layer = -1;
	int wb = build_bias(b, s->head.bias, "head", rows),
	    y = build_value(b, capped ? "logits_raw" : "logits");
	o = OP(b, matmul, .x = last, .w = w, .b = wb, .y = y);
	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "cols", s->embed.width);
	if (!capped)
		return;
	build_at(b, "head.cap");
	int z = build_value(b, "logits");
	o = OP(b, softcap, .x = y, .y = z);
	op_set_int(b->g, o, "width", rows);
	op_set_num(b->g, o, "scale", s->head.scale);
	op_set_num(b->g, o, "softcap", s->head.cap);
}

static void
ropes(ModelBuilder *b)
{
	const Spec *s = b->s;
	int n = s->n_rope + (s->rope_axes == 2 ? 1 : 0);

	b->rope[0] = b->rope[1] = b->rope2 = -1;
	for (int i = 0; s->position == POS_ROPE && i < n; i++) {
		bool second_axis = i == s->n_rope;
		int v = graph_value(b->g, VAL_ROPE, arena_printf(b->g->arena, "rope%d", i),
		                    spec_loc(s, "position"));
		b->g->val[v].tensor = i;
		b->g->val[v].dim[0] = 1;
		b->g->val[v].dim[1] = s->rope[second_axis ? 0 : i].dims;
		*(second_axis ? &b->rope2 : &b->rope[i]) = v;
	}
}

/* Make a pool for data that layers store per sequence. v[n_layers]: receives the values of its
 * arguments */
static void
state_pool(ModelBuilder *b, int *v, const char *id, const uint8_t *layer_in, int64_t heads,
           int64_t rows, int64_t cols)
{
	const Spec *s = b->s;
	int index = b->g->n_pool++;
	PlanPool *p = &b->g->pool[index];

	*p = (PlanPool){ .id = id,
		         .state = true,
		         .k = KVT_F32,
		         .v = KVT_F32,
		         .kv_heads = heads,
		         .k_dim = rows,
		         .v_dim = cols };
	for (int l = 0; l < s->n_layers; l++) {
		if (!layer_in[l])
			continue;
		v[l] =
		    graph_value(b->g, VAL_POOL, arena_printf(b->g->arena, "%s.%d", id, p->n_layers),
		                spec_loc(s, "linear.layers"));
		b->g->val[v[l]].tensor = index;
		b->g->val[v[l]].dim[0] = p->n_layers++;
	}
}

/* Make the pool of indexer keys. Keys have 16 bits even if latents are quantised, because selecting
 * positions needs more precision than attention over the selected positions. */
static void
index_pool(ModelBuilder *b)
{
	const Spec *s = b->s;
	int at = -1;

	for (int l = 0; l < s->n_layers; l++) {
		b->index[l] = -1;
		if (s->attention.index.top_k == 0 || !s->attention.index.layer_in[l] ||
		    !spec_attends(s, l))
			continue;
		if (at < 0) {
			KvType type = kv_quantised(s->kv.k) ? KVT_F16 : s->kv.k;
			at = b->g->n_pool++;
			b->g->pool[at] = (PlanPool){ .id = "index",
				                     .mla = true,
				                     .k = type,
				                     .v = type,
				                     .kv_heads = 1,
				                     .k_dim = s->attention.index.dim };
		}
		int v = graph_value(b->g, VAL_POOL,
		                    arena_printf(b->g->arena, "index.%d", b->g->pool[at].n_layers),
		                    spec_loc(s, "attention.index.top_k"));
		b->g->val[v].tensor = at;
		b->g->val[v].dim[0] = b->g->pool[at].n_layers++;
		b->index[l] = v;
	}
}

/* Make the KV pools: one for all attention layers, and a second one if some layers are windowed.
 * Make the pools for recurrent states. */
static void
pools(ModelBuilder *b)
{
	const Spec *s = b->s;
	bool mla_kind = s->attention.kind == ATT_MLA;
	int count[2] = { 0 }, index[2] = { -1, -1 };

	b->pool = NEW(b->g->arena, int, s->n_layers);
	b->done = NEW(b->g->arena, int, s->n_layers);
	b->conv = NEW(b->g->arena, int, s->n_layers);
	b->state = NEW(b->g->arena, int, s->n_layers);
	b->index = NEW(b->g->arena, int, s->n_layers);
	b->g->pool = NEW(b->g->arena, PlanPool, 8);
	for (int l = 0; l < s->n_layers; l++)
		count[spec_windowed(s, l)] += spec_attends(s, l) && spec_kv_layer(s, l) == l;
	for (int w = 0; w < 2; w++)
		if (count[w]) {
			index[w] = b->g->n_pool++;
			const HeadShape h = w ? s->attention.local : spec_heads(s, -1);
			b->g->pool[index[w]] = (PlanPool){
				.id = w ? "kv_window" : "kv",
				.keep =
				    w && s->attention.mask != MASK_NONE ? s->attention.window : 0,
				.segment = w && s->attention.segments ? s->attention.window : 0,
				.mla = mla_kind,
				.k = s->kv.k,
				.v = s->kv.v,
				.rotate = s->kv.rotate,
				.recent = s->kv.window,
				.sinks = s->kv.sinks,
				.kv_heads = mla_kind ? 1 : h.n_kv_heads,
				.k_dim = mla_kind ? s->attention.kv_rank + s->attention.rope_dim
				                  : h.head_dim,
				.v_dim = mla_kind ? 0 : h.v_dim,
			};
		}
	for (int l = 0; l < s->n_layers; l++) {
		b->pool[l] = b->conv[l] = b->state[l] = -1;
		if (!spec_attends(s, l))
			continue;
		int i = index[spec_windowed(s, l)], from = spec_kv_layer(s, l);
		if (from != l) {
			b->pool[l] = b->pool[from];
			continue;
		}
		PlanPool *p = &b->g->pool[i];
		/* in an encoder, keys and values are not read after their layer, so all layers use
		 * one slot */
		const bool once = s->attention.mask == MASK_NONE && p->n_layers > 0;
		int v =
		    graph_value(b->g, VAL_POOL,
		                arena_printf(b->g->arena, "%s.%d", p->id, once ? l : p->n_layers),
		                spec_loc(s, "attention.n_heads"));
		b->g->val[v].tensor = i;
		b->g->val[v].dim[0] = once ? 0 : p->n_layers++;
		b->pool[l] = v;
	}
	index_pool(b);
	if (s->conv.n > 0)
		state_pool(b, b->conv, "short_conv", s->conv.layer_in, 1, s->conv.taps - 1,
		           s->hidden);
	if (s->linear.n > 0) {
		int64_t k = (int64_t)s->linear.k_heads * s->linear.k_dim,
		        v = (int64_t)s->linear.v_heads * s->linear.v_dim;
		state_pool(b, b->conv, "conv", s->linear.layer_in, 1, s->linear.taps - 1,
		           2 * k + v);
		state_pool(b, b->state, "state", s->linear.layer_in, s->linear.v_heads,
		           s->linear.k_dim, s->linear.v_dim);
	}
	if (s->ssm.n > 0) {
		state_pool(b, b->conv, "ssm_conv", s->ssm.layer_in, 1, s->ssm.taps - 1,
		           spec_ssm_row(s));
		if (s->ssm.dt_rank)
			state_pool(b, b->state, "ssm_state", s->ssm.layer_in, 1, s->ssm.dim,
			           s->ssm.state);
		else
			state_pool(b, b->state, "ssm_state", s->ssm.layer_in, s->ssm.heads,
			           s->ssm.state, s->ssm.dim);
	}
}

/* Figures of a plan are sums and multiples of sizes. Within these bounds none of them overflows,
 * and no description makes a plan of gigabytes. */
enum { MAX_EXPERT_TENSORS = 1 << 20 };
#define MAX_WEIGHTS ((int64_t)1 << 50)

static bool
experts_plausible(const Spec *s, Diag *d)
{
	int64_t n = (int64_t)s->n_layers * s->moe.n_experts;

	if (n <= MAX_EXPERT_TENSORS)
		return true;
	err_at(d, spec_loc(s, "moe.n_experts"),
	       "moe.n_experts = %d in %d layers: more than the %d experts that a plan can hold",
	       s->moe.n_experts, s->n_layers, MAX_EXPERT_TENSORS);
	return false;
}

static void
check_size(const Graph *g, Diag *d)
{
	int64_t total = 0, n;

	for (size_t i = 0; i < g->n_tensor; i++) {
		const PlanTensor *t = &g->tensor[i];
		if (__builtin_mul_overflow(t->rows, t->cols ? t->cols : 1, &n) || n > MAX_WEIGHTS ||
		    (total += n) > MAX_WEIGHTS) {
			err_at(d, spec_loc(g->spec, "hidden"),
			       "this description adds up to more than 2^50 weights");
			return;
		}
	}
	for (size_t i = 0; i < g->n_op; i++) {
		ArgShape shape[OP_MAX_ARGS];
		llmc_error err;
		if (op_fits(g, &g->op[i], shape, &err) != LLMC_OK) {
			err_at(d, g->op[i].loc, "%s", err.text);
			return;
		}
	}
}

static void
check_slots(const Graph *g, Diag *d)
{
	bool any = g->spec->adapters.slots < 1, experts = any || g->spec->adapters.expert_rank < 1;

	for (size_t i = 0; i < g->n_tensor && !(any && experts); i++) {
		any |= g->tensor[i].factor != FACTOR_NONE;
		experts |= g->tensor[i].experts > 0;
	}
	if (!any)
		err_at(d, spec_loc(g->spec, "adapters.slots"),
		       "adapters.slots: this model has no matrix for adapter slots, which support "
		       "projections of attention and of feed-forwards; use lora.path to merge one "
		       "adapter into the weights");
	if (!experts)
		err_at(d, spec_loc(g->spec, "adapters.expert_rank"),
		       "adapters.expert_rank: this model has no experts for adapter slots: there "
		       "are none, their family stores them transposed or interleaved, or their "
		       "columns are permuted (desc_act)");
}

static void
close_adapter(void *p)
{
	peft_close(p);
}

/* Open the adapter of lora.path and read the names of its tensors. The tensors themselves are read
 * together with the weights. */
static bool
open_adapter(Graph *g, Diag *d, Arena *perm)
{
	llmc_error err;

	if (!g->spec->lora.path)
		return true;
	if (peft_open(g->spec->lora.path, g->spec->lora.scale, &g->peft, &err) != LLMC_OK) {
		err_at(d, spec_loc(g->spec, "lora.path"), "%s", err.text);
		return false;
	}
	arena_defer(perm, close_adapter, g->peft);
	return true;
}

/* Build the graph.
 *
 *   requires  a Spec that spec.c has validated
 *   effect    ops in the order of the equations; weights with the positions of their rows in
 *             the checkpoint. Errors: names missing in the tensor map, shapes that storage formats
 *             cannot hold. Shapes of values come from graph_infer. */
Graph *
graph_build(const Spec *s, Diag *d, Arena *perm)
{
	ModelBuilder b = { .g = graph_new(s, d, perm), .s = s, .layer = -1, .ple = -1, .sel = -1 };
	int table = -1, x, errors = d->n_error;

	if (!experts_plausible(s, d) || !open_adapter(b.g, d, perm))
		return NULL;
	ropes(&b);
	pools(&b);
	x = s->vision.part == VISION_TOWER ? build_patches(&b) : stream(&b, &table);
	if (s->ple_width)
		b.ple = per_layer(&b, x);
	if (s->streams.count > 1)
		x = build_streams(&b, x);
	int *at = NEW(perm, int, s->n_layers + 1);
	for (int l = 0; l < s->n_layers; l++) {
		at[l] = x;
		x = build_deep_rows(&b, layer(&b, x, l), l);
		build_tower_deep(&b, x, l);
		b.g->val[x].name = arena_printf(perm, "x%d", l + 1);
	}
	b.layer = -1;
	if (s->streams.count > 1)
		x = build_stream_merge(&b, x);
	at[s->n_layers] = x;
	if (s->mtp.part != MTP_NONE)
		mark_draft_rows(&b, at);
	if (s->vision.part == VISION_TOWER)
		build_tower_end(&b, x);
	else
		head(&b, x, table);
	check_size(b.g, d);
	check_slots(b.g, d);
	return d->n_error == errors ? b.g : NULL;
}
