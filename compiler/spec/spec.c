/* Build the Spec of a description: merge the layers (defaults, family, description, --set) into one
 * table, then fill the fields. Reports all errors, up to the twenty that diag prints. */
#include "compiler/spec/spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "compiler/spec/family.h"
#include "compiler/spec/spec_table.h"

static void
relocate(Node *n, const SourceText *src, int cols)
{
	if (n->loc.line == 1)
		n->loc.col += cols;
	n->loc.src = src;
	for (size_t i = 0; i < n->n; i++) {
		relocate(n->item[i], src, cols);
		if (n->kind == NODE_MAP)
			relocate(n->key[i], src, cols);
	}
}

/* Parse "key=value" into {key: value}, with the value as YAML. */
static const Node *
read_override(const char *text, Diag *d, Arena *a)
{
	const SourceText *src = yaml_source(a, "--set", text, strlen(text));
	const char *eq = strchr(text, '=');

	if (!eq || eq == text) {
		err_at(d, (Loc){ .src = src, .line = 1, .col = 1 },
		       "--set needs key=value, such as attention.window=4096");
		return NULL;
	}
	Node *v = yaml_parse(yaml_source(a, "--set", eq + 1, strlen(eq + 1)), d, a);
	if (!v)
		return NULL;
	if (v->kind == NODE_MAP && v->n == 0 && !strchr(eq, '{')) { /* no value after = */
		v->kind = NODE_SCALAR;
		v->text = "";
		v->loc.line = v->loc.col = 1;
	}
	int chars = 0;
	for (const char *p = text; p <= eq; p++)
		chars += ((unsigned char)*p & 0xc0) != 0x80;
	relocate(v, src, chars);
	Node *map = NEW(a, Node, 1), *key = NEW(a, Node, 1);
	*key = (Node){ .kind = NODE_SCALAR,
		       .loc = { .src = src, .line = 1, .col = 1 },
		       .text = arena_strndup(a, text, (size_t)(eq - text)) };
	*map = (Node){ .kind = NODE_MAP,
		       .loc = key->loc,
		       .n = 1,
		       .cap = 1,
		       .key = NEW(a, Node *, 1),
		       .item = NEW(a, Node *, 1) };
	map->key[0] = key;
	map->item[0] = v;
	return map;
}

/* Return a top-level key from the last layer that has it. */
static const Node *
top_level_value(const Node *root, const Node *const *set, size_t n_set, const char *key)
{
	for (size_t i = n_set; i-- > 0;) {
		const Node *v = set[i] ? node_get(set[i], key) : NULL;
		if (v)
			return v;
	}
	return node_get(root, key);
}

static const char *
top_level_text(const Node *v, const char *otherwise)
{
	return v && v->kind == NODE_SCALAR && !node_is_null(v) ? v->text : otherwise;
}

/* Set a key that the kind of attention implies, unless it is given. */
static void
imply(SpecTable *t, SpecKey key, double value)
{
	SpecVal *v = &t->val[key];

	if (!v->given)
		*v = (SpecVal){
			.given = true, .known = true, .num = value, .loc = { .src = t->file.src }
		};
}

static void
imply_shapes(SpecTable *t)
{
	bool mla = spec_word_is(t, K_att_kind, "mla");

	if (mla && t->val[K_nope_dim].given && t->val[K_rope_dim].given)
		imply(t, K_head_dim, (double)(spec_int(t, K_nope_dim) + spec_int(t, K_rope_dim)));
	if (mla && t->val[K_rope_dim].given)
		imply(t, K_rope_dims, (double)spec_int(t, K_rope_dim));
	if (spec_int(t, K_rope_axes) == 2 && t->val[K_head_dim].given)
		imply(t, K_rope_dims, (double)(spec_int(t, K_head_dim) / 2));
}

/* Multiply latent attention's default scale by yarn's factor of the scores. */
static void
imply_scale(SpecTable *t)
{
	SpecVal *v = &t->val[K_att_scale];
	double all = t->val[K_rope_mscale_all_dim].num, factor = t->val[K_rope_factor].num;

	if (v->given || !v->known || !spec_word_is(t, K_att_kind, "mla") ||
	    !spec_word_is(t, K_rope_scaling, "yarn") || all == 0)
		return;
	double m = factor > 1 ? 0.1 * all * log(factor) + 1 : 1;
	v->num *= m * m;
}

static Dtype
dtype_of(const SpecTable *t, SpecKey k)
{
	return t->val[k].str ? dtype_from_text(t->val[k].str) : DT_NONE;
}

static ActKind
act_of(const SpecTable *t, SpecKey k)
{
	static const char *const name[] = {
		[ACT_SILU] = "silu",
		[ACT_GELU] = "gelu",
		[ACT_GELU_TANH] = "gelu_tanh",
		[ACT_RELU] = "relu",
		[ACT_RELU2] = "relu2",
		[ACT_SWIGLU_OAI] = "swiglu_oai",
		[ACT_SILU_LIMIT] = "silu_limit",
		[ACT_XIELU] = "xielu",
	};

	for (size_t i = 0; i < sizeof name / sizeof *name; i++)
		if (spec_word_is(t, k, name[i]))
			return (ActKind)i;
	return ACT_SILU;
}

static RopeScaling
scaling_of(const SpecTable *t, SpecKey k)
{
	static const char *const name[] = {
		[SCALE_NONE] = "none",
		[SCALE_LINEAR] = "linear",
		[SCALE_DYNAMIC] = "dynamic",
		[SCALE_YARN] = "yarn",
		[SCALE_LLAMA3] = "llama3",
		[SCALE_LONGROPE] = "longrope",
		[SCALE_PROPORTIONAL] = "proportional",
	};

	for (size_t i = 0; i < sizeof name / sizeof *name; i++)
		if (spec_word_is(t, k, name[i]))
			return (RopeScaling)i;
	return SCALE_NONE;
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
fill_shapes(const SpecTable *t, Spec *s)
{
	s->name = STR(name);
	s->family = STR(family);
	s->vocab_size = INT(vocab_size);
	s->vocab_used = INT(vocab_used);
	s->max_positions = INT(max_positions);
	s->hard_limit = IS(position, "learned") || INT(exact_positions) > 0;
	s->exact_positions = INT(exact_positions);
	s->n_layers = (int)INT(n_layers);
	s->hidden = INT(hidden);
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
	s->attention.mask = IS(mask, "prefix") ? MASK_PREFIX
	                    : IS(mask, "none") ? MASK_NONE
	                                       : MASK_CAUSAL;
	s->attention.prefix_mark = (int32_t)INT(prefix_mark);
	s->attention.prefix_end = (int32_t)INT(prefix_end);
	s->attention.qk_norm = IS(qk_norm, "head")         ? QK_HEAD
	                       : IS(qk_norm, "whole")      ? QK_WHOLE
	                       : IS(qk_norm, "unit")       ? QK_UNIT
	                       : IS(qk_norm, "layer")      ? QK_LAYER
	                       : IS(qk_norm, "layer_each") ? QK_LAYER_EACH
	                                                   : QK_NONE;
	s->attention.qkv_limit = NUM(qkv_limit);
	s->attention.chunked = IS(window_kind, "chunks");
	s->attention.qk_in = t->val[K_qk_norm_layers].layers;
	s->attention.qk_after = IS(qk_place, "after");
	s->attention.sinks = BOOL(sinks);
	s->attention.sink_in = t->val[K_sink_layers].layers;
	s->attention.v_scale = NUM(v_scale);
	s->attention.q_rank = (int)INT(q_rank);
	s->attention.kv_rank = (int)INT(kv_rank);
	s->attention.form = IS(att_form, "absorbed")   ? MLA_ABSORBED
	                    : IS(att_form, "expanded") ? MLA_EXPANDED
	                                               : MLA_AUTO;
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
	s->attention.out_gate = IS(out_gate, "head")      ? GATE_HEAD
	                        : IS(out_gate, "element") ? GATE_ELEMENT
	                                                  : GATE_NONE;
	s->attention.out_gate_act = STR(out_gate_act);
	s->attention.out_gate_bias = BOOL(out_gate_bias);
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
	s->ssm.beside = BOOL(ssm_beside);
	for (int i = 0; i < 5; i++)
		s->ssm.gain[i] = NUM(ssm_in_scale) *
		                 (t->val[K_ssm_gains].n == 5 ? t->val[K_ssm_gains].list[i] : 1);
	s->ssm.out_scale = NUM(ssm_out_scale);
	s->ssm.norm = IS(ssm_norm, "none")         ? SSM_NO_NORM
	              : IS(ssm_norm, "norm_first") ? SSM_NORM_FIRST
	                                           : SSM_GATE_FIRST;
	s->ssm.norm_groups = (int)INT(ssm_norm_groups);
	s->ssm.dt_rank = (int)INT(ssm_dt_rank);
	s->ssm.low_norm = IS(ssm_low_norm, "none")   ? LOW_NO_NORM
	                  : IS(ssm_low_norm, "unit") ? LOW_UNIT
	                                             : LOW_WEIGHT;
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
	s->ffn.gated = IS(ffn_kind, "gated");
	s->ffn.act = act_of(t, K_ffn_act);
	s->ffn.limit = NUM(ffn_limit);
	s->ffn.limits = t->val[K_ffn_limits].n ? t->val[K_ffn_limits].list : NULL;
	s->ffn.sparsity = t->val[K_ffn_sparsity].n ? t->val[K_ffn_sparsity].list : NULL;
	s->ffn.width = INT(ffn_width);
	s->ffn.bias = BOOL(ffn_bias);
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
	s->moe.beside = BOOL(moe_beside);
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

/* Reduce the Spec to a draft head: one layer, like the model's last layer with full attention, or
 * with a window (mtp.window). */
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
fill_rest(const SpecTable *t, Spec *s)
{
	s->norm.kind = IS(norm_kind, "rms")     ? NORM_RMS
	               : IS(norm_kind, "layer") ? NORM_LAYER
	                                        : NORM_NONE;
	s->norm.eps = NUM(norm_eps);
	s->norm.latent_eps = NUM(latent_eps);
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
	s->norm.out_layers = t->val[K_out_layers].layers;
	s->norm.embed = BOOL(norm_embed);
	s->norm.final = BOOL(norm_final);
	s->position = IS(position, "rope")      ? POS_ROPE
	              : IS(position, "alibi")   ? POS_ALIBI
	              : IS(position, "learned") ? POS_LEARNED
	                                        : POS_NONE;
	s->rope_style = IS(rope_style, "interleaved") ? ROPE_INTERLEAVED : ROPE_HALF;
	s->rope_in = t->val[K_rope_layers].layers;
	s->rope_axes = (int)INT(rope_axes);
	s->rope[0] = ROPE(rope_, rope_dims);
	s->rope[1] = ROPE(local_, local_dims);
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
	s->residual.skip_scale = NUM(skip_scale);
	s->residual.layer_gain = BOOL(layer_gain);
	s->ple_width = (int)INT(ple_width);
	s->ple_vocab = INT(ple_vocab);
	s->laurel_rank = (int)INT(laurel_rank);
	s->streams.count = (int)INT(streams);
	s->streams.active = (int)INT(stream_active);
	s->streams.gain = BOOL(stream_gain);
	s->embed.width = INT(embed_width);
	s->embed.scale = NUM(embed_scale);
	s->embed.round_scale = BOOL(round_scale);
	s->embed.types = (int)INT(embed_types);
	s->head.tied = BOOL(tied);
	s->head.row_norm = BOOL(row_norm);
	s->head.scale = NUM(head_scale);
	s->head.cap = NUM(head_cap);
	s->head.bias = BOOL(head_bias);
	s->head.kind = IS(head_kind, "hidden")   ? LLMC_OUTPUT_HIDDEN
	               : IS(head_kind, "labels") ? LLMC_OUTPUT_LABELS
	                                         : LLMC_OUTPUT_LOGITS;
	s->head.labels = INT(labels);
	s->pool.kind = IS(pool_kind, "last")   ? LLMC_POOL_LAST
	               : IS(pool_kind, "mean") ? LLMC_POOL_MEAN
	               : IS(pool_kind, "cls")  ? LLMC_POOL_CLS
	                                       : LLMC_POOL_NONE;
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
	s->activations_i8 = IS(activations, "i8");
	s->activations_bf16 = IS(activations, "bf16");
	s->deterministic = BOOL(deterministic);
	s->storage_default = dtype_of(t, K_storage_default);
	s->n_storage = t->n_storage;
	s->storage = t->storage;
	s->tp = (int)INT(tp);
	s->pp = (int)INT(pp);
	s->adapters.slots = (int)INT(adapter_slots);
	s->adapters.rank = (int)INT(adapter_rank);
	s->adapters.expert_rank = (int)INT(adapter_expert_rank);
	s->experts_whole = IS(experts, "whole");
	s->weights = STR(weights);
	s->checkpoint = STR(checkpoint);
	s->bos = (int32_t)INT(bos);
	s->n_eos = t->val[K_eos].n;
	for (int i = 0; i < s->n_eos && i < PLAN_MAX_EOS; i++)
		s->eos[i] = (int32_t)t->val[K_eos].list[i];
	s->prompt_prefix = STR(prompt);
	s->mtp.norm = BOOL(mtp_norm);
	s->mtp.normed = BOOL(mtp_normed);
	s->mtp.output = BOOL(mtp_output);
	s->mtp.part = IS(mtp_part, "rows") ? MTP_ROWS : IS(mtp_part, "head") ? MTP_HEAD : MTP_NONE;
	if (s->mtp.part == MTP_HEAD) {
		s->lora.path = NULL;   /* the adapter affects it only through the rows it reads */
		s->adapters.slots = 0; /* sequences of a draft head have no adapters */
		s->kv.host = 0;        /* belongs to the model */
		reduce_to_draft_head(t, s);
	}
}

/* Adapters name modules as Hugging Face checkpoints do, whatever format this checkpoint has. */
static void
lora_rules(SpecTable *t, const Family *f, const char *dir, Spec *s)
{
	SpecVal *prefix = &t->val[K_names_prefix], own = *prefix,
	        *replace = &t->val[K_names_replace], own_replace = *replace;
	Family hf;

	s->lora.path = t->val[K_lora_path].str;
	s->lora.scale = t->val[K_lora_scale].num;
	s->lora.rule = s->tensor_rule;
	s->lora.n_rule = s->n_tensor_rule;
	if (strcmp(t->val[K_checkpoint].str, "hf") == 0)
		return;
	if (!f || !family_load(&hf, f->name, dir, "hf", t->val[K_lora_path].loc, t->d, t->a) ||
	    !hf.format) {
		err_at(t->d, t->val[t->val[K_lora_path].str ? K_lora_path : K_adapter_slots].loc,
		       "adapters: the family has no Hugging Face tensor names, which adapters "
		       "refer to");
		return;
	}
	const Node *theirs = node_get(hf.format, "prefix");
	prefix->str = theirs ? theirs->text : NULL;
	replace->str = NULL;
	s->lora.rule = family_rules(t, &hf, &s->lora.n_rule);
	*prefix = own;
	*replace = own_replace;
}

static Spec *
resolve(const Node *root, const SourceText *src, const char *dir, const char *const *set, Diag *d,
        Arena *a)
{
	SpecTable *t = NEW(a, SpecTable, 1);
	size_t n_set = 0;
	bool resolved = false;
	Family f = { 0 };

	while (set && set[n_set])
		n_set++;
	const Node **over = NEW(a, const Node *, n_set + 1);
	for (size_t i = 0; i < n_set; i++)
		over[i] = read_override(set[i], d, a);
	t->d = d;
	t->a = a;
	t->file = (Loc){ .src = src };
	if (root->kind != NODE_MAP) {
		err_at(d, root->loc, "a description is a map of keys, this is %s",
		       node_kind_text(root));
		return NULL;
	}

	const Node *family = top_level_value(root, over, n_set, "family");
	const Node *format = top_level_value(root, over, n_set, "checkpoint");
	const Node *own = node_get(root, "resolved");
	if (own)
		node_bool(own, &resolved);
	const char *checkpoint = top_level_text(format, "hf");
	bool known_format = strcmp(checkpoint, "hf") == 0 || strcmp(checkpoint, "gguf") == 0;
	bool have = !resolved && family && known_format &&
	            family_load(&f, top_level_text(family, ""), dir, checkpoint, family->loc, d, a);
	if (have) {
		if (f.block)
			spec_table_apply(t, f.block, FROM_FAMILY);
		const Node *prefix = f.format ? node_get(f.format, "prefix") : NULL,
		           *block = f.format ? node_get(f.format, "block") : NULL;
		if (prefix)
			t->val[K_names_prefix] = (SpecVal){ .from = FROM_FAMILY,
				                            .given = true,
				                            .known = true,
				                            .str = prefix->text,
				                            .loc = prefix->loc };
		if (block)
			spec_table_apply(t, block, FROM_FAMILY);
	}
	if (resolved && format &&
	    strcmp(checkpoint, top_level_text(node_get(root, "checkpoint"), "hf")) != 0)
		err_at(d, format->loc,
		       "checkpoint = %s: this resolved description has the tensor names of another "
		       "format; start from the original description",
		       checkpoint);
	spec_table_apply(t, root, FROM_TEXT);
	for (size_t i = 0; i < n_set; i++)
		if (over[i])
			spec_table_apply(t, over[i], FROM_SET);
	imply_shapes(t);
	spec_table_finish(t);
	imply_scale(t);
	spec_check(t);

	Spec *s = NEW(a, Spec, 1);
	s->table = t;
	if (have || resolved)
		s->tensor_rule = family_rules(t, have ? &f : NULL, &s->n_tensor_rule);
	if (t->val[K_lora_path].str || t->val[K_adapter_slots].num > 0)
		lora_rules(t, have ? &f : NULL, dir, s);
	if (d->n_error)
		return NULL;
	fill_shapes(t, s);
	fill_rest(t, s);
	if (d->n_error)
		return NULL;
	s->yaml = spec_resolved_text(t, s->tensor_rule, s->n_tensor_rule);
	Sha256 h;
	char hex[65];
	sha256_init(&h);
	sha256_add(&h, s->yaml, strlen(s->yaml));
	sha256_hex(&h, hex);
	s->sha256 = arena_strdup(a, hex);
	return s;
}

static Spec *
from_source(const SourceText *src, const char *dir, const char *const *set, Diag *d, Arena *a)
{
	const Node *root = yaml_parse(src, d, a);

	return root ? resolve(root, src, dir, set, d, a) : NULL;
}

Spec *
spec_from_text(const char *name, const char *text, size_t size, const char *const *set, Diag *d,
               Arena *perm)
{
	return from_source(yaml_source(perm, name, text, size), NULL, set, d, perm);
}

Spec *
spec_from_file(const char *yaml_path, const char *const *set, Diag *d, Arena *perm)
{
	llmc_error err = { 0 };
	FileMap *m = file_hold(perm, yaml_path, &err);

	if (!m) {
		err_at(d, (Loc){ 0 }, "%s", err.text);
		return NULL;
	}
	if (m->size > YAML_MAX_BYTES) {
		err_at(d, (Loc){ 0 }, "%s: larger than %d MiB: not a description", yaml_path,
		       YAML_MAX_BYTES >> 20);
		return NULL;
	}
	const SourceText *src =
	    yaml_source(perm, yaml_path, m->size ? (const char *)m->data : "", m->size);
	arena_done(perm, m);
	const char *slash = strrchr(yaml_path, '/');
	const char *dir = slash ? arena_strndup(perm, yaml_path, (size_t)(slash - yaml_path)) : ".";
	return from_source(src, slash == yaml_path ? "/" : dir, set, d, perm);
}

bool
spec_windowed(const Spec *s, int layer)
{
	return s->attention.window > 0 && s->attention.windowed && layer >= 0 &&
	       s->attention.windowed[layer];
}

HeadShape
spec_heads(const Spec *s, int layer)
{
	return spec_windowed(s, layer) ? s->attention.local
	                               : (HeadShape){ s->attention.n_heads, s->attention.n_kv_heads,
		                                      s->attention.head_dim, s->attention.v_dim };
}

bool
spec_narrow(const Spec *s)
{
	return s->embed.width != s->hidden;
}

int64_t
spec_ffn_width(const Spec *s, int layer)
{
	return layer >= 0 && s->ffn.wide_in && s->ffn.wide_in[layer] ? s->ffn.wide : s->ffn.width;
}

static double
limit_of(const double *limits, double all, int layer)
{
	return limits && layer >= 0 ? limits[layer] : all;
}

double
spec_ffn_limit(const Spec *s, int layer)
{
	return limit_of(s->ffn.limits, s->ffn.limit, layer);
}

double
spec_moe_limit(const Spec *s, int layer)
{
	return limit_of(s->moe.limits, s->moe.limit, layer);
}

double
spec_shared_limit(const Spec *s, int layer)
{
	return limit_of(s->moe.shared_limits, s->moe.limit, layer);
}

bool
spec_has_block(const Spec *s, int layer)
{
	return !s->attention.layer_in || s->attention.layer_in[layer];
}

bool
spec_has_ffn(const Spec *s, int layer)
{
	return !s->ffn.layer_in || s->ffn.layer_in[layer];
}

bool
spec_linear(const Spec *s, int layer)
{
	return s->linear.n > 0 && s->linear.layer_in[layer];
}

bool
spec_conv(const Spec *s, int layer)
{
	return s->conv.n > 0 && s->conv.layer_in[layer];
}

bool
spec_ssm(const Spec *s, int layer)
{
	return s->ssm.n > 0 && s->ssm.layer_in[layer];
}

int64_t
spec_ssm_row(const Spec *s)
{
	return (int64_t)s->ssm.heads * s->ssm.dim +
	       (s->ssm.dt_rank ? 0 : 2 * (int64_t)s->ssm.groups * s->ssm.state);
}

bool
spec_shared(const Spec *s, int layer)
{
	return s->shared.n > 0 && s->shared.layer_in[layer];
}

int
spec_shared_use(const Spec *s, int layer)
{
	int n = 0;

	for (int l = 0; l < layer; l++)
		n += spec_shared(s, l);
	return n;
}

int
spec_shared_layer(const Spec *s, int layer)
{
	int block = spec_shared_use(s, layer) % s->shared.blocks, l = 0;

	while (!spec_shared(s, l) || block-- > 0)
		l++;
	return l;
}

bool
spec_attends(const Spec *s, int layer)
{
	return spec_has_block(s, layer) && !spec_linear(s, layer) && !spec_conv(s, layer) &&
	       (!spec_ssm(s, layer) || s->ssm.beside || spec_shared(s, layer));
}

int
spec_kv_layer(const Spec *s, int layer)
{
	int own = s->n_layers - s->attention.kv_shared;

	if (layer < own)
		return layer;
	for (int l = own; l-- > 0;)
		if (spec_windowed(s, l) == spec_windowed(s, layer) && spec_attends(s, l))
			return l;
	return -1;
}

Loc
spec_loc(const Spec *s, const char *key)
{
	int k = spec_key_find(key);

	return s->table && k >= 0 ? s->table->val[k].loc : s->table ? s->table->file : (Loc){ 0 };
}

StorageRule
spec_storage(const Spec *s, const char *role, int layer)
{
	size_t n = strlen(role), bias = n > 5 && strcmp(role + n - 5, ".bias") == 0 ? n - 5 : 0;

	for (int i = 0; i < s->n_storage; i++) {
		const StorageRule *r = &s->storage[i];
		/* rules of "q.bias" itself, and those of q */
		bool own =
		    strcmp(r->tensor, "*") == 0 || strcmp(r->tensor, role) == 0 ||
		    (bias && strlen(r->tensor) == bias && memcmp(r->tensor, role, bias) == 0);
		if (!own)
			continue;
		if (!r->layer_in || (layer >= 0 && layer < s->n_layers && r->layer_in[layer]))
			return *r;
	}
	return (StorageRule){ .dtype = s->storage_default };
}

const char *
spec_get(const Spec *s, Arena *a, const char *key)
{
	int k = spec_key_find(key);

	return s->table && k >= 0 && k != K_tensors ? spec_val_text(s->table, (SpecKey)k, a) : NULL;
}
