/* Fills the fields of a Spec from the table of keys. */
#include "compiler/spec/family.h"
#include "compiler/spec/placement_tensors.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/spec_table.h"

static Dtype
dtype_of(const SpecTable *t, SpecKey k)
{
	return t->val[k].str ? dtype_from_text(t->val[k].str) : DT_NONE;
}

/* Return the index of the key's word among n names, some of which may be NULL; 0 if it is none of
 * them. */
static unsigned
word_index(const SpecTable *t, SpecKey k, const char *const *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (name[i] && spec_word_is(t, k, name[i]))
			return (unsigned)i;
	return 0;
}

/* Copy a list of integers, at most `most` of them, and return the number of integers. */
static int
copy_ints(const SpecTable *t, SpecKey k, int *to, int most)
{
	const int n = t->val[k].n < most ? t->val[k].n : most;

	for (int i = 0; i < n; i++)
		to[i] = (int)t->val[k].list[i];
	return n;
}

/* Enumerator of a key's word, for example WORD_OF(K_mask, [MASK_NONE] = "none"); 0 for words that
 * are not listed */
#define WORD_OF(k, ...)                                                                            \
	word_index(t, k, (const char *const[]){ __VA_ARGS__ },                                     \
	           sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))

static ActKind
act_of(const SpecTable *t, SpecKey k)
{
	return WORD_OF(k, [ACT_SILU] = "silu", [ACT_GELU] = "gelu", [ACT_GELU_TANH] = "gelu_tanh",
	               [ACT_GELU_QUICK] = "gelu_quick", [ACT_RELU] = "relu", [ACT_RELU2] = "relu2",
	               [ACT_SWIGLU_OAI] = "swiglu_oai", [ACT_SILU_LIMIT] = "silu_limit",
	               [ACT_XIELU] = "xielu");
}

static RopeScaling
scaling_of(const SpecTable *t, SpecKey k)
{
	return WORD_OF(
	    k, [SCALE_NONE] = "none", [SCALE_LINEAR] = "linear", [SCALE_DYNAMIC] = "dynamic",
	    [SCALE_YARN] = "yarn", [SCALE_LLAMA3] = "llama3", [SCALE_LONGROPE] = "longrope",
	    [SCALE_PROPORTIONAL] = "proportional");
}

#define INT(k) spec_int(t, K_##k)
#define NUM(k) (t->val[K_##k].num)
#define BOOL(k) (t->val[K_##k].num != 0)
#define STR(k) (t->val[K_##k].str)
#define IS(k, word) spec_word_is(t, K_##k, word)

#define ROPE(P, DIMS)                                                                              \
	(RopeTable)                                                                                \
	{                                                                                          \
		.theta = NUM(P##theta), .dims = (int)INT(DIMS),                                    \
		.scaling = scaling_of(t, K_##P##scaling), .factor = NUM(P##factor),                \
		.turning = NUM(P##turning), .original_positions = NUM(P##original),                \
		.low_freq_factor = NUM(P##low_freq), .high_freq_factor = NUM(P##high_freq),        \
		.beta_fast = NUM(P##beta_fast), .beta_slow = NUM(P##beta_slow),                    \
		.attention_factor = NUM(P##attention_factor), .mscale = NUM(P##mscale),            \
		.mscale_all_dim = NUM(P##mscale_all_dim), .truncate = BOOL(P##truncate),           \
		.n_short = t->val[K_##P##short_factor].n,                                          \
		.short_factor = t->val[K_##P##short_factor].list,                                  \
		.n_long = t->val[K_##P##long_factor].n,                                            \
		.long_factor = t->val[K_##P##long_factor].list,                                    \
	}

static void
fill_attention(const SpecTable *t, Spec *s)
{
	s->attention.kind = IS(att_kind, "mla") ? ATT_MLA : ATT_GQA;
	s->attention.n_heads = (int)INT(n_heads);
	s->attention.n_kv_heads = (int)INT(n_kv_heads);
	s->attention.head_dim = (int)INT(head_dim);
	s->attention.bias = BOOL(att_bias);
	s->attention.o_bias = BOOL(o_bias);
	s->attention.scale = NUM(att_scale);
	s->attention.out_scale = NUM(att_out_scale);
	s->attention.score_cap = NUM(score_cap);
	s->attention.q_temperature.scale = NUM(q_temperature_scale);
	s->attention.q_temperature.positions = INT(q_temperature_positions);
	s->attention.q_temperature.offset = (int)INT(q_temperature_offset);
	s->attention.q_temperature.layer_in = t->val[K_q_temperature_layers].layers;
	s->attention.window = INT(window);
	s->attention.windowed = t->val[K_window_layers].layers;
	if (s->attention.window == 0)
		s->attention.windowed = NEW(t->a, uint8_t, s->n_layers);
	s->attention.mask = WORD_OF(
	    K_mask, [MASK_PREFIX] = "prefix", [MASK_IMAGES] = "images", [MASK_NONE] = "none");
	s->attention.prefix_mark = (int32_t)INT(prefix_mark);
	s->attention.prefix_end = (int32_t)INT(prefix_end);
	s->attention.qk_norm =
	    WORD_OF(K_qk_norm, [QK_HEAD] = "head", [QK_WHOLE] = "whole", [QK_UNIT] = "unit",
	            [QK_LAYER] = "layer", [QK_LAYER_EACH] = "layer_each");
	s->attention.qkv_limit = NUM(qkv_limit);
	s->attention.chunked = IS(window_kind, "chunks");
	s->attention.segments = IS(window_kind, "segments");
	s->attention.qk_in = t->val[K_qk_norm_layers].layers;
	s->attention.qk_after = IS(qk_place, "after");
	s->attention.sinks = BOOL(sinks);
	s->attention.sink_in = t->val[K_sink_layers].layers;
	s->attention.v_scale = NUM(v_scale);
	s->attention.q_rank = (int)INT(q_rank);
	s->attention.kv_rank = (int)INT(kv_rank);
	s->attention.form =
	    WORD_OF(K_att_form, [MLA_ABSORBED] = "absorbed", [MLA_EXPANDED] = "expanded");
	s->attention.nope_dim = (int)INT(nope_dim);
	s->attention.rope_dim = (int)INT(rope_dim);
	s->attention.v_dim = (int)INT(v_dim);
	s->attention.index.top_k = INT(index_top_k);
	s->attention.index.heads = (int)INT(index_heads);
	s->attention.index.dim = (int)INT(index_dim);
	s->attention.index.interleaved = IS(index_rope, "interleaved");
	s->attention.index.eps = NUM(index_eps);
	s->attention.index.layer_in = t->val[K_index_layers].layers;
	s->attention.local = (HeadShape){ (int)INT(local_n_heads), (int)INT(local_n_kv_heads),
		                          (int)INT(local_head_dim), (int)INT(local_v_dim) };
	s->attention.layer_in = t->val[K_att_layers].layers;
	s->attention.k_is_v = t->val[K_k_is_v].layers;
	s->attention.kv_shared = (int)INT(kv_shared);
	s->attention.v_norm = IS(v_norm, "unit");
	s->attention.out_gate =
	    WORD_OF(K_out_gate, [GATE_HEAD] = "head", [GATE_ELEMENT] = "element");
	s->attention.out_gate_act = STR(out_gate_act);
	s->attention.out_gate_bias = BOOL(out_gate_bias);
}

/* Fill the fields of recurrent blocks, and of blocks that several layers share. */
static void
fill_recurrent(const SpecTable *t, Spec *s)
{
	s->linear.layer_in = t->val[K_linear_layers].layers;
	for (int l = 0; l < s->n_layers; l++)
		s->linear.n += s->linear.layer_in[l] != 0;
	s->conv.layer_in = t->val[K_conv_layers].layers;
	for (int l = 0; l < s->n_layers; l++)
		s->conv.n += s->conv.layer_in[l] != 0;
	s->conv.taps = (int)INT(conv_taps);
	s->conv.bias = BOOL(conv_bias);
	s->ssm.layer_in = t->val[K_ssm_layers].layers;
	for (int l = 0; l < s->n_layers; l++)
		s->ssm.n += s->ssm.layer_in[l] != 0;
	s->shared.layer_in = t->val[K_shared_layers].layers;
	for (int l = 0; l < s->n_layers; l++)
		s->shared.n += s->shared.layer_in[l] != 0;
	s->shared.blocks = (int)INT(shared_blocks);
	s->shared.rank = (int)INT(shared_rank);
	s->shared.qkv_rank = (int)INT(shared_qkv_rank);
	s->ssm.heads = (int)INT(ssm_heads);
	s->ssm.dim = (int)INT(ssm_dim);
	s->ssm.groups = (int)INT(ssm_groups);
	s->ssm.state = (int)INT(ssm_state);
	s->ssm.taps = (int)INT(ssm_taps);
	s->ssm.conv_bias = BOOL(ssm_conv_bias);
	s->ssm.bias = BOOL(ssm_bias);
	s->ssm.a_log = IS(ssm_rate, "log");
	s->ssm.dt_min = NUM(ssm_dt_min);
	s->ssm.dt_max = NUM(ssm_dt_max);
	s->ssm.parallel = BOOL(ssm_parallel);
	for (int i = 0; i < 5; i++)
		s->ssm.gain[i] = NUM(ssm_in_scale) *
		                 (t->val[K_ssm_gains].n == 5 ? t->val[K_ssm_gains].list[i] : 1);
	s->ssm.out_scale = NUM(ssm_out_scale);
	s->ssm.norm = WORD_OF(K_ssm_norm, [SSM_NO_NORM] = "none", [SSM_NORM_FIRST] = "norm_first");
	s->ssm.norm_groups = (int)INT(ssm_norm_groups);
	s->ssm.dt_rank = (int)INT(ssm_dt_rank);
	s->ssm.low_norm = WORD_OF(
	    K_ssm_low_norm, [LOW_NO_NORM] = "none", [LOW_UNIT] = "unit", [LOW_WEIGHT] = "weight");
	s->linear.k_heads = (int)INT(lin_k_heads);
	s->linear.v_heads = (int)INT(lin_v_heads);
	s->linear.k_dim = (int)INT(lin_k_dim);
	s->linear.v_dim = (int)INT(lin_v_dim);
	s->linear.taps = (int)INT(lin_taps);
	s->linear.tiled = IS(lin_order, "tiled");
	s->linear.a_log = IS(lin_rate, "log");
	s->linear.beta_scale = NUM(lin_beta);
	s->linear.per_channel = IS(lin_decay, "channel");
	s->linear.decay_rank = (int)INT(lin_decay_rank);
	s->linear.gate_rank = (int)INT(lin_gate_rank);
	s->linear.gate = STR(lin_gate);
}

static void
fill_ffn(const SpecTable *t, Spec *s)
{
	s->ffn.gated = IS(ffn_kind, "gated");
	s->ffn.act = act_of(t, K_ffn_act);
	s->ffn.limit = NUM(ffn_limit);
	s->ffn.limits = t->val[K_ffn_limits].n ? t->val[K_ffn_limits].list : NULL;
	s->ffn.sparsity = t->val[K_ffn_sparsity].n ? t->val[K_ffn_sparsity].list : NULL;
	s->ffn.width = INT(ffn_width);
	s->ffn.bias = BOOL(ffn_bias);
	s->ffn.down_bias = BOOL(ffn_down_bias);
	s->ffn.gate_scale = NUM(ffn_gate_scale);
	s->ffn.out_scale = NUM(ffn_out_scale);
	s->ffn.layer_in = t->val[K_ffn_layers].layers;
	s->ffn.wide = INT(wide_width);
	s->ffn.wide_in = t->val[K_wide_layers].layers;
	s->moe.n_experts = (int)INT(n_experts);
	s->moe.top_k = (int)INT(top_k);
	s->moe.width = INT(moe_width);
	s->moe.latent = INT(moe_latent);
	s->moe.plain = IS(moe_kind, "plain");
	uint8_t *sparse = NEW(t->a, uint8_t, s->n_layers);
	for (int l = 0; l < s->n_layers; l++)
		sparse[l] =
		    s->moe.n_experts > 0 && t->val[K_moe_layers].layers[l] && spec_has_ffn(s, l);
	s->moe.layer_in = sparse;
	s->moe.score = STR(moe_score);
	s->moe.jitter = NUM(moe_jitter);
	s->moe.weighs_input = IS(moe_weights_on, "input");
	s->moe.choice_bias = BOOL(choice_bias);
	s->moe.router_bias = BOOL(router_bias);
	s->moe.bias = BOOL(expert_bias);
	s->moe.parallel = BOOL(moe_parallel);
	s->moe.router_norm = BOOL(router_norm);
	s->moe.expert_gain = BOOL(expert_gain);
	s->moe.renorm = BOOL(renorm);
	s->moe.renorm_eps = NUM(renorm_eps);
	s->moe.scale = NUM(moe_scale);
	s->moe.groups = (int)INT(groups);
	s->moe.keep_groups = (int)INT(keep_groups);
	s->moe.group_top2 = IS(group_score, "top2");
	s->moe.act = act_of(t, K_moe_act);
	s->moe.limit = NUM(moe_limit);
	s->moe.limits = t->val[K_moe_limits].n ? t->val[K_moe_limits].list : NULL;
	s->moe.shared_limits = t->val[K_shared_limits].n ? t->val[K_shared_limits].list : NULL;
	s->moe.shared_width = INT(shared_width);
	s->moe.shared_gate = BOOL(shared_gate);
	s->moe.shared_scale = NUM(shared_scale);
}

static const char *
factors_name(const SpecTable *t, const TensorRule *rule, int n, const char *role)
{
	const TensorRule *r = rule_for(rule, n, role);

	return !r ? NULL : r->whole ? r->name : arena_printf(t->a, "%s.weight", r->name);
}

/* Reduce the Spec to that of a draft head: one layer, which is like the model's last layer with
 * full attention, or with a window if mtp.window is set. */
static void
reduce_to_draft_head(const SpecTable *t, Spec *s)
{
	const uint8_t **const in[] = {
		&s->attention.layer_in,
		&s->attention.k_is_v,
		&s->attention.q_temperature.layer_in,
		&s->attention.windowed,
		&s->attention.qk_in,
		&s->attention.sink_in,
		&s->attention.index.layer_in,
		&s->ffn.wide_in,
		&s->ffn.layer_in,
		&s->moe.layer_in,
		&s->norm.in_layers,
		&s->norm.attn_in_layers,
		&s->norm.out_layers,
		&s->rope_in,
	};
	const double **const limits[] = { &s->ffn.limits, &s->ffn.sparsity, &s->moe.limits,
		                          &s->moe.shared_limits };
	static const uint8_t none[1];
	const bool window = BOOL(mtp_window);
	int like = s->n_layers - 1;

	while (like >= 0 &&
	       (!spec_attends(s, like) ||
	        (s->attention.index.top_k && !s->attention.index.layer_in[like]) ||
	        spec_windowed(s, like) != window || spec_shared(s, like) || spec_ssm(s, like)))
		like--;
	if (like < 0) {
		err_at(t->d, t->val[K_mtp_part].loc,
		       "mtp.part = head: the draft head needs a layer of this model with %s, and "
		       "there is none",
		       window ? "a window" : "all positions");
		return;
	}
	for (size_t i = 0; i < sizeof in / sizeof *in; i++)
		if (*in[i])
			*in[i] += like;
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		if (*limits[i])
			*limits[i] += like;
	if (BOOL(mtp_dense))
		s->moe.layer_in = none;
	if (s->ffn.limits) {
		s->ffn.limits = NULL;
		s->ffn.limit = NUM(mtp_limit);
	}
	StorageRule *storage = NEW(t->a, StorageRule, s->n_storage + 1);
	for (int i = 0; i < s->n_storage; i++) {
		storage[i] = s->storage[i];
		if (storage[i].layer_in)
			storage[i].layer_in += like;
	}
	s->storage = storage;
	s->mtp.layer = s->n_layers;
	s->n_layers = 1;
	s->linear.n = s->ssm.n = s->conv.n = s->shared.n = 0;
}

static void
fill_norms(const SpecTable *t, Spec *s)
{
	s->norm.kind = WORD_OF(K_norm_kind, [NORM_RMS] = "rms", [NORM_LAYER] = "layer");
	s->norm.eps = NUM(norm_eps);
	s->norm.latent_eps = NUM(latent_eps);
	s->norm.final_eps = NUM(final_eps);
	s->norm.qk_eps = NUM(qk_eps);
	s->norm.ssm_eps = NUM(ssm_eps);
	s->norm.linear_eps = NUM(lin_eps);
	s->norm.plus_one = BOOL(plus_one);
	s->norm.bias = s->norm.kind == NORM_LAYER && BOOL(norm_bias);
	s->norm.weight = BOOL(norm_weight);
	s->norm.attn_in = BOOL(attn_in);
	s->norm.ffn_in = BOOL(ffn_in);
	s->norm.attn_out = BOOL(attn_out);
	s->norm.ffn_out = BOOL(ffn_out);
	s->norm.sum = BOOL(norm_sum);
	s->norm.in_layers = t->val[K_in_layers].layers;
	s->norm.attn_in_layers = t->val[K_attn_in_layers].layers;
	s->norm.out_layers = t->val[K_out_layers].layers;
	s->norm.embed = BOOL(norm_embed);
	s->norm.final = BOOL(norm_final);
}

static void
fill_placement(const SpecTable *t, Spec *s)
{
	const size_t n = (size_t)s->n_layers;
	uint8_t *layer_in = NEW(t->a, uint8_t, n + 1), *experts_in = NEW(t->a, uint8_t, n + 1);

	s->placement.layer_in = layer_in;
	s->placement.experts_in = experts_in;
	s->placement.embedding = BOOL(place_embedding);
	for (int l = 0; l < s->n_layers; l++) {
		layer_in[l] =
		    t->val[K_place_layers].layers[l] || l < s->n_layers - INT(place_gpu_layers);
		experts_in[l] = s->moe.layer_in[l] &&
		                (t->val[K_place_experts].layers[l] || l < INT(place_moe_layers));
	}
	spec_place_tensors(t, s, layer_in, experts_in);
	s->placement.any = s->placement.embedding;
	for (size_t l = 0; l < n; l++)
		s->placement.any |= layer_in[l] || experts_in[l];
}

static void
fill_vision(const SpecTable *t, Spec *s)
{
	s->vision.part = WORD_OF(K_vision_part, [VISION_ROWS] = "rows", [VISION_TOWER] = "tower");
	s->vision.token = (int32_t)INT(vision_token);
	s->vision.width = INT(vision_width);
	s->vision.bias = BOOL(vision_bias);
	s->vision.second_frame = BOOL(vision_second);
	s->vision.positions = INT(vision_positions);
	s->vision.class_row = BOOL(vision_class);
	s->vision.merge = INT(vision_merge);
	s->vision.mean = IS(vision_merge_kind, "mean");
	s->vision.inner = INT(vision_inner);
	s->vision.out = INT(vision_out);
	s->vision.out_bias = BOOL(vision_out_bias);
	s->vision.act = act_of(t, K_vision_act);
	s->vision.merge_width = INT(vision_merge_width);
	s->vision.merged_eps = NUM(vision_merged_eps);
	s->vision.merged_norm = t->val[K_vision_merged_norm].str;
	s->vision.interpolate = t->val[K_vision_interpolate].str;
	s->vision.n_deep = copy_ints(t, K_vision_deep, s->vision.deep, MAX_DEEP);
}

static void
fill_mtp(const SpecTable *t, Spec *s)
{
	s->mtp.norm = BOOL(mtp_norm);
	s->mtp.normed = BOOL(mtp_normed);
	s->mtp.output = BOOL(mtp_output);
	s->mtp.part =
	    WORD_OF(K_mtp_part, [MTP_ROWS] = "rows", [MTP_HEAD] = "head", [MTP_DRAFT] = "draft");
	s->mtp.norm_first = BOOL(mtp_norm_first);
	s->mtp.width = INT(mtp_width);
	s->mtp.vocab = INT(mtp_vocab);
	s->mtp.model = STR(mtp_model);
	s->mtp.tokens = t->val[K_mtp_tokens].str;
	s->mtp.n_from = copy_ints(t, K_mtp_from, s->mtp.from, MAX_MTP_FROM);
	if (spec_drafts(s)) {
		s->lora.path = NULL; /* a merged adapter affects a draft head only through the rows
		                        that it reads */
		s->placement.any = false;
		s->adapters.slots = 0; /* sequences of a draft head have no adapters */
		s->kv.host = 0;        /* host pages belong to the model */
	}
	if (s->mtp.part == MTP_HEAD)
		reduce_to_draft_head(t, s);
}

static void
fill_rest(const SpecTable *t, Spec *s)
{
	fill_vision(t, s);
	fill_norms(t, s);
	s->position = WORD_OF(
	    K_position, [POS_ROPE] = "rope", [POS_ALIBI] = "alibi", [POS_LEARNED] = "learned");
	s->rope_style = IS(rope_style, "interleaved") ? ROPE_INTERLEAVED : ROPE_HALF;
	s->rope_in = t->val[K_rope_layers].layers;
	s->rope_axes = (int)INT(rope_axes);
	s->rope[0] = ROPE(rope_, rope_dims);
	s->rope[1] = ROPE(local_, local_dims);
	copy_ints(t, K_rope_sections, s->rope[0].section, 3);
	s->rope[0].interleaved = IS(rope_order, "interleaved");
	s->rope[0].frequencies = t->val[K_rope_frequencies].str;
	if (!t->val[K_rope_sections].n && !IS(rope_frequencies, "whole"))
		s->rope[0].section[1] = s->rope[0].section[2] = s->rope[0].dims / 4;
	s->n_rope = s->position != POS_ROPE ? 0 : NUM(local_theta) > 0 ? 2 : 1;
	if (BOOL(rope_factors) && s->rope[0].scaling == SCALE_LONGROPE) {
		s->rope[0].factors_tensor[0] =
		    factors_name(t, s->tensor_rule, s->n_tensor_rule, "rope_factors_long");
		s->rope[0].factors_tensor[1] =
		    factors_name(t, s->tensor_rule, s->n_tensor_rule, "rope_factors_short");
	} else if (BOOL(rope_factors)) {
		s->rope[0].factors_tensor[0] =
		    factors_name(t, s->tensor_rule, s->n_tensor_rule, "rope_factors");
	}
	if (BOOL(rope_factors) && !s->rope[0].factors_tensor[0])
		err_at(t->d, t->val[K_rope_factors].loc,
		       "rope.factors = true, but tensors names no rope_factors");
	s->alibi_max_bias = NUM(alibi_max_bias);
	s->pos_offset = (int)INT(pos_offset);
	s->residual.parallel = IS(residual_form, "parallel");
	s->residual.from_norm = IS(residual_from, "norm");
	s->residual.block_scale = BOOL(block_scale);
	s->residual.skip_scale = NUM(skip_scale);
	s->residual.layer_gain = BOOL(layer_gain);
	s->ple_width = (int)INT(ple_width);
	s->ple_vocab = INT(ple_vocab);
	s->laurel_rank = (int)INT(laurel_rank);
	s->streams.count = (int)INT(streams);
	s->streams.active = (int)INT(stream_active);
	s->streams.gain = BOOL(stream_gain);
	s->embed.width = INT(embed_width);
	s->embed.rows = INT(embed_rows);
	s->embed.scale = NUM(embed_scale);
	s->embed.round_scale = BOOL(round_scale);
	s->embed.types = (int)INT(embed_types);
	s->head.tied = BOOL(tied);
	s->head.row_norm = BOOL(row_norm);
	s->head.scale = NUM(head_scale);
	s->head.cap = NUM(head_cap);
	s->head.bias = BOOL(head_bias);
	s->head.kind =
	    WORD_OF(K_head_kind, [LLMC_OUTPUT_HIDDEN] = "hidden", [LLMC_OUTPUT_LABELS] = "labels");
	s->head.labels = INT(labels);
	s->head.n_dense = copy_ints(t, K_head_dense, s->head.dense, 3);
	s->head.dense_bias = BOOL(dense_bias);
	s->head.dense_norm = BOOL(dense_norm);
	s->head.dense_act = STR(dense_act);
	s->pool.kind = WORD_OF(K_pool_kind, [LLMC_POOL_LAST] = "last", [LLMC_POOL_MEAN] = "mean",
	                       [LLMC_POOL_CLS] = "cls");
	s->pool.normalize = BOOL(pool_norm);
	s->dtype = dtype_of(t, K_dtype);
	s->kv.k = kv_type_from_text(STR(kv_k));
	s->kv.v = kv_type_from_text(STR(kv_v));
	if (s->attention.kind == ATT_MLA) {
		s->kv.k = kv_of_latents(s->kv.k);
		s->kv.v = kv_of_latents(s->kv.v);
	}
	s->kv.rotate = BOOL(kv_rotate);
	s->kv.window = (int)INT(kv_window);
	s->kv.sinks = (int)INT(kv_sinks);
	s->kv.host = INT(kv_host);
	s->prefetch = IS(step_prefetch, "auto");
	s->persistent = IS(step_persistent, "always");
	const bool by_checkpoint = IS(activations, "auto");
	s->activations_declared = by_checkpoint && !IS(activations_declared, "none");
	s->activations_i8 = by_checkpoint ? IS(activations_declared, "i8") : IS(activations, "i8");
	s->activations_f8 = by_checkpoint ? IS(activations_declared, "f8") : IS(activations, "f8");
	s->activations_bf16 = IS(activations, "bf16");
	s->deterministic = BOOL(deterministic);
	s->storage_default = dtype_of(t, K_storage_default);
	s->n_storage = t->n_storage;
	s->storage = t->storage;
	s->tp = (int)INT(tp);
	s->pp = (int)INT(pp);
	fill_placement(t, s);
	s->adapters.slots = (int)INT(adapter_slots);
	s->adapters.rank = (int)INT(adapter_rank);
	s->adapters.expert_rank = (int)INT(adapter_expert_rank);
	s->experts_whole = IS(experts, "whole");
	s->weights = STR(weights);
	s->checkpoint = STR(checkpoint);
	s->bos = (int32_t)INT(bos);
	s->n_eos = copy_ints(t, K_eos, s->eos, PLAN_MAX_EOS);
	s->prompt_prefix = STR(prompt);
	fill_mtp(t, s);
}

void
spec_fill(const SpecTable *t, Spec *s)
{
	s->name = STR(name);
	s->family = STR(family);
	s->vocab_size = INT(vocab_size);
	s->vocab_used = INT(vocab_used);
	s->max_positions = INT(max_positions);
	s->hard_limit = IS(position, "learned") || INT(exact_positions) > 0;
	s->exact_positions = INT(exact_positions);
	s->limit_context = INT(limit_context);
	s->limit_seqs = INT(limit_seqs);
	s->limit_chunk = INT(limit_chunk);
	s->n_layers = (int)INT(n_layers);
	s->hidden = INT(hidden);
	fill_attention(t, s);
	fill_recurrent(t, s);
	fill_ffn(t, s);
	fill_rest(t, s);
}
