/* Rules between keys. Each message names both values and points at the other key. */
#include <string.h>

#include "compiler/spec/spec_check_internal.h"
#include "compiler/spec/spec_table.h"

static void
check_tokens(SpecTable *t)
{
	int64_t v = INT(vocab_size);
	const SpecVal *eos = &t->val[K_eos];

	if (v < 1)
		return;
	if (INT(embed_rows) < v) {
		err_at(t->d, LOC(embed_rows), "embed.rows = %lld is less than vocab_size = %lld",
		       (long long)INT(embed_rows), (long long)v);
		spec_check_note(t, K_vocab_size);
	}
	if (INT(vocab_used) > v) {
		err_at(t->d, LOC(vocab_used), "vocab_used = %lld is more than vocab_size = %lld",
		       (long long)INT(vocab_used), (long long)v);
		spec_check_note(t, K_vocab_size);
	}
	if (eos->n > PLAN_MAX_EOS)
		err_at(t->d, eos->loc, "text.eos has %d tokens: at most %d are used", eos->n,
		       PLAN_MAX_EOS);
	for (int i = 0; i < eos->n; i++)
		if (eos->list[i] >= (double)v) {
			err_at(t->d, eos->loc, "text.eos = %.0f is not a token: vocab_size = %lld",
			       eos->list[i], (long long)v);
			spec_check_note(t, K_vocab_size);
			break;
		}
	static const SpecKey one[] = { K_bos, K_prefix_mark, K_prefix_end };
	for (size_t i = 0; i < sizeof one / sizeof *one; i++)
		if (t->val[one[i]].known && t->val[one[i]].num >= (double)v) {
			err_at(t->d, t->val[one[i]].loc,
			       "%s = %.0f is not a token: vocab_size = %lld", spec_key[one[i]].path,
			       t->val[one[i]].num, (long long)v);
			spec_check_note(t, K_vocab_size);
		}
}

/* The name is used for files and folders, so only some characters are valid. */
static void
check_name(SpecTable *t)
{
	const char *name = t->val[K_name].str;

	if (name &&
	    (!*name || *name == '.' || strlen(name) > 120 ||
	     name[strspn(name,
	                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")]))
		err_at(t->d, LOC(name),
		       "name = %.120s: at most 120 letters, digits, . _ and - are expected, "
		       "without a leading .",
		       name);
}

/* Check mtp.from: the layers whose streams a draft checkpoint reads. */
static void
check_mtp_from(SpecTable *t)
{
	const SpecVal *v = &t->val[K_mtp_from];
	const bool rows = IS(mtp_part, "rows");

	if (v->n > MAX_MTP_FROM)
		err_at(t->d, v->loc, "mtp.from has %d layers, at most %d are supported", v->n,
		       MAX_MTP_FROM);
	for (int i = 0; rows && KNOWN(n_layers) && i < v->n; i++)
		if (v->list[i] > (double)INT(n_layers))
			err_at(t->d, v->loc, "mtp.from: layer %.0f is above n_layers = %lld",
			       v->list[i], (long long)INT(n_layers));
	if (v->n && rows && INT(streams) > 1) {
		err_at(t->d, v->loc,
		       "mtp.from: a draft checkpoint reads one residual stream, this model has "
		       "several");
		spec_check_note(t, K_streams);
	}
}

/* Check a draft checkpoint, which is a separate model whose first layer has another shape. */
static void
check_draft(SpecTable *t)
{
	if (KNOWN(mtp_width) && INT(mtp_width) < 1)
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = draft: mtp.width is 0, a row of the model has at least one "
		       "element");
	if (!IS(att_kind, "gqa") || !IS(residual_form, "serial") || IS(residual_from, "norm") ||
	    !ON(attn_in) || ON(norm_sum) || INT(streams) > 1 || INT(ple_width) > 0 ||
	    INT(laurel_rank) > 0 || !IS(out_gate, "none"))
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = draft: the layers of a draft checkpoint have grouped-query "
		       "attention and norms before each block");
	if (INT(mtp_vocab) > INT(vocab_size) && KNOWN(vocab_size))
		err_at(t->d, LOC(mtp_vocab), "mtp.vocab = %lld: vocab_size is only %lld",
		       (long long)INT(mtp_vocab), (long long)INT(vocab_size));
	if (INT(mtp_vocab) > 0 && INT(mtp_vocab) != INT(vocab_size) && IS(mtp_tokens, "none"))
		err_at(t->d, LOC(mtp_vocab),
		       "mtp.vocab = %lld: mtp.tokens is none, so nothing maps these rows to "
		       "tokens",
		       (long long)INT(mtp_vocab));
	if (INT(mtp_vocab) > 0 && ON(tied))
		err_at(t->d, LOC(mtp_vocab),
		       "mtp.vocab = %lld: an output matrix of its own is needed, but head.tied is "
		       "true",
		       (long long)INT(mtp_vocab));
}

/* Check a draft head. It has one layer like the model's, and its only input from the model is the
 * last rows. */
static void
check_mtp(SpecTable *t)
{
	const char *part = t->val[K_mtp_part].str;

	if (!part || IS(mtp_part, "none"))
		return;
	const bool other = IS(mtp_part, "draft") || t->val[K_mtp_from].n > 0;
	check_mtp_from(t);
	if (IS(mtp_part, "draft"))
		check_draft(t);
	if (!other && KNOWN(mtp_layers) && INT(mtp_layers) < 1)
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: this model has no draft head (mtp.layers = 0)", part);
	if (!IS(head_kind, "logits")) {
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: a model without logits has no draft tokens", part);
		spec_check_note(t, K_head_kind);
	}
	if (INT(tp) * INT(pp) > 1) {
		err_at(t->d, LOC(mtp_part), "mtp.part = %s: a draft head runs on one rank", part);
		spec_check_note(t, INT(tp) > 1 ? K_tp : K_pp);
	}
	if (!other && (INT(ple_width) > 0 || INT(kv_shared) > 0 || INT(streams) > 1)) {
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: layers of this model read outputs of other layers, which a "
		       "draft head does not have",
		       part);
		spec_check_note(t, INT(ple_width) > 0   ? K_ple_width
		                   : INT(kv_shared) > 0 ? K_kv_shared
		                                        : K_streams);
	}
}

/* Check vision.deep: the layers of the language model that receive parts of an image row. */
static void
check_deep(SpecTable *t)
{
	const SpecVal *v = &t->val[K_vision_deep];
	const bool tower = IS(vision_part, "tower");

	if (v->n > MAX_DEEP)
		err_at(t->d, v->loc, "vision.deep has %d layers, at most %d are supported", v->n,
		       MAX_DEEP);
	if (KNOWN(n_layers) && !tower && v->n > INT(n_layers))
		err_at(t->d, v->loc, "vision.deep has %d layers, the model %lld", v->n,
		       (long long)INT(n_layers));
	for (int i = 0; tower && KNOWN(n_layers) && i < v->n; i++)
		if (v->list[i] >= (double)INT(n_layers))
			err_at(t->d, v->loc, "vision.deep: layer %.0f is not below n_layers = %lld",
			       v->list[i], (long long)INT(n_layers));
	/* each layer has one merger, and a merger's number is below that of its layer */
	for (int i = 1; tower && i < v->n; i++)
		if (v->list[i] <= v->list[i - 1]) {
			err_at(t->d, v->loc,
			       "vision.deep: layer %.0f follows layer %.0f, layers must ascend",
			       v->list[i], v->list[i - 1]);
			break;
		}
	if (v->n && tower && INT(vision_out) < 1)
		err_at(t->d, v->loc, "vision.deep: its rows are projected, which needs vision.out");
}

/* Check that an interpolated table has a square number of rows. */
static void
check_positions(SpecTable *t)
{
	int64_t side = 0;

	if (IS(vision_interpolate, "none"))
		return;
	while (side * side < INT(vision_positions))
		side++;
	if (side < 1 || side * side != INT(vision_positions) || ON(vision_class))
		err_at(t->d, LOC(vision_interpolate),
		       "vision.interpolate: vision.positions = %lld is not a square without a "
		       "class row",
		       (long long)INT(vision_positions));
}

/* Check the keys of vision. A tower is an encoder of rows. Rows of images reach one rank, in a step
 * with a causal mask. */
static void
check_vision(SpecTable *t)
{
	const char *part = t->val[K_vision_part].str;

	if (!part || IS(vision_part, "none"))
		return;
	if (INT(tp) * INT(pp) > 1) {
		err_at(t->d, LOC(vision_part),
		       "vision.part = %s: images are supported on one rank only", part);
		spec_check_note(t, INT(tp) > 1 ? K_tp : K_pp);
	}
	if (!IS(mtp_part, "none")) {
		err_at(t->d, LOC(vision_part),
		       "vision.part = %s: not supported together with a draft head", part);
		spec_check_note(t, K_mtp_part);
	}
	if (IS(vision_part, "rows") && !IS(mask, "causal") && !IS(mask, "images")) {
		err_at(t->d, LOC(vision_part),
		       "vision.part = rows: images need attention.mask = causal or images");
		spec_check_note(t, K_mask);
	}
	if (IS(vision_part, "rows") && KNOWN(vision_token) && INT(vision_token) < 0)
		err_at(t->d, LOC(vision_part),
		       "vision.part = rows: this model reads text only (vision.token is -1)");
	check_deep(t);
	if (!IS(vision_part, "tower"))
		return;
	check_positions(t);
	if (!IS(mask, "none")) {
		err_at(t->d, LOC(vision_part),
		       "vision.part = tower: a tower attends to all patches of an image; set "
		       "attention.mask to none");
		spec_check_note(t, K_mask);
	}
	if (KNOWN(vision_width) && INT(vision_width) < 1)
		err_at(t->d, LOC(vision_part),
		       "vision.part = tower: vision.width is 0, a patch has at least one value");
	if (INT(vision_inner) > 0 && INT(vision_out) < 1)
		err_at(t->d, LOC(vision_inner),
		       "vision.inner = %lld: the projector's second layer needs vision.out",
		       (long long)INT(vision_inner));
}

static void
check_streams(SpecTable *t)
{
	const bool several = INT(streams) > 1;

	if (INT(stream_active) >= INT(streams) && (several || INT(stream_active) > 0)) {
		err_at(t->d, LOC(stream_active),
		       "streams.active = %lld: must be less than streams.count = %lld",
		       (long long)INT(stream_active), (long long)INT(streams));
		spec_check_note(t, K_streams);
	}
	if (ON(stream_gain) && (!several || INT(ple_width) == 0)) {
		err_at(t->d, LOC(stream_gain),
		       "streams.gain = true: needs per-layer embeddings and several streams");
		spec_check_note(t, several ? K_ple_width : K_streams);
	}
	if (several && ON(layer_gain)) {
		err_at(t->d, LOC(layer_gain),
		       "residual.layer_gain = true: not supported with several streams");
		spec_check_note(t, K_streams);
	}
	if ((several || INT(laurel_rank) > 0) &&
	    (!IS(residual_form, "serial") || IS(residual_from, "norm") || ON(norm_sum))) {
		err_at(t->d, several ? LOC(streams) : LOC(laurel_rank),
		       "%s: needs residual.form = serial, residual.from = stream and no norm.sum",
		       several ? "streams.count" : "residual.low_rank");
		spec_check_note(t, ON(norm_sum)                ? K_norm_sum
		                   : IS(residual_from, "norm") ? K_residual_from
		                                               : K_residual_form);
	}
	if (several && INT(pp) > 1) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: stages pass on one stream, this model has %lld",
		       (long long)INT(pp), (long long)INT(streams));
		spec_check_note(t, K_streams);
	}
	if (INT(ple_width) > 0 && KNOWN(ple_vocab) && KNOWN(vocab_size) &&
	    INT(ple_vocab) > INT(vocab_size)) {
		err_at(t->d, LOC(ple_vocab), "per_layer.vocab = %lld: more than vocab_size = %lld",
		       (long long)INT(ple_vocab), (long long)INT(vocab_size));
		spec_check_note(t, K_vocab_size);
	}
}

/* Check the keys of norms and the residual stream. */
static void
check_norms(SpecTable *t)
{
	if (IS(residual_from, "norm") &&
	    (IS(norm_kind, "none") || (KNOWN(attn_in) && !ON(attn_in)) ||
	     (KNOWN(ffn_in) && !ON(ffn_in)))) {
		err_at(t->d, LOC(residual_from),
		       "residual.from = norm: needs a norm before attention and before the "
		       "feed-forward");
		spec_check_note(t, IS(norm_kind, "none") ? K_norm_kind
		                   : ON(attn_in)         ? K_ffn_in
		                                         : K_attn_in);
	}
	if (ON(norm_sum) && (ON(attn_in) || ON(ffn_in) || ON(attn_out) || ON(ffn_out) ||
	                     IS(norm_kind, "none") || IS(residual_form, "parallel"))) {
		err_at(t->d, LOC(norm_sum),
		       "norm.sum = true: excludes other norms of the stream and residual.form = "
		       "parallel");
		spec_check_note(t, ON(attn_in)             ? K_attn_in
		                   : ON(ffn_in)            ? K_ffn_in
		                   : ON(attn_out)          ? K_attn_out
		                   : ON(ffn_out)           ? K_ffn_out
		                   : IS(norm_kind, "none") ? K_norm_kind
		                                           : K_residual_form);
	}
	if (KNOWN(embed_width) && KNOWN(hidden) && INT(embed_width) != INT(hidden) &&
	    !IS(head_kind, "logits")) {
		err_at(t->d, LOC(embed_width),
		       "embed.width = %lld: a head of kind %s needs hidden = %lld",
		       (long long)INT(embed_width), t->val[K_head_kind].str,
		       (long long)INT(hidden));
		spec_check_note(t, K_head_kind);
	}
	if (IS(residual_form, "parallel") && IS(residual_from, "norm")) {
		err_at(t->d, LOC(residual_form),
		       "residual.form = parallel: the only skip branch carries the stream, not a "
		       "norm");
		spec_check_note(t, K_residual_from);
	}
	if (ON(plus_one) && KNOWN(norm_weight) && !ON(norm_weight)) {
		err_at(t->d, LOC(plus_one),
		       "norm.plus_one = true: these norms have no weight to add 1 to");
		spec_check_note(t, K_norm_weight);
	}
}

static void
check_ffn(SpecTable *t)
{
	if ((IS(ffn_act, "swiglu_oai") || IS(ffn_act, "silu_limit")) && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_act), "ffn.act = %s needs ffn.kind = gated",
		       t->val[K_ffn_act].str);
		spec_check_note(t, K_ffn_kind);
	}
	static const SpecKey by_layer[] = { K_ffn_limits, K_moe_limits, K_shared_limits,
		                            K_ffn_sparsity };
	for (size_t i = 0; i < sizeof by_layer / sizeof *by_layer; i++) {
		const SpecVal *v = &t->val[by_layer[i]];
		if (v->n && KNOWN(n_layers) && v->n != INT(n_layers)) {
			err_at(t->d, v->loc,
			       "%s has %d number%s: one for each of %lld layers is expected",
			       spec_key[by_layer[i]].path, v->n, v->n == 1 ? "" : "s",
			       (long long)INT(n_layers));
			spec_check_note(t, K_n_layers);
		}
	}
	if (IS(ffn_act, "xielu") && !IS(ffn_kind, "plain")) {
		err_at(t->d, LOC(ffn_act), "ffn.act = xielu is for plain feed-forward layers");
		spec_check_note(t, K_ffn_kind);
	}
	if (KNOWN(ffn_gate_scale) && t->val[K_ffn_gate_scale].num != 1 && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_gate_scale),
		       "ffn.gate_scale is for gated feed-forward layers");
		spec_check_note(t, K_ffn_kind);
	}
	if ((t->val[K_ffn_limit].num > 0 || t->val[K_ffn_limits].n) && !IS(ffn_kind, "gated")) {
		err_at(t->d, t->val[K_ffn_limits].n ? LOC(ffn_limits) : LOC(ffn_limit),
		       "ffn.%s for gated feed-forward layers",
		       t->val[K_ffn_limits].n ? "limits are" : "limit is");
		spec_check_note(t, K_ffn_kind);
	}
	if (t->val[K_ffn_sparsity].n && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_sparsity), "ffn.sparsity is for gated feed-forward layers");
		spec_check_note(t, K_ffn_kind);
	}
}

/* Check the linear layers of the head. Pooling follows them. The mean of rows can be taken after
 * them only if they have no activation. */
static void
check_dense(SpecTable *t)
{
	const SpecVal *v = &t->val[K_head_dense];

	if (!v->n)
		return;
	if (IS(head_kind, "logits")) {
		err_at(t->d, v->loc, "head.dense: for head.kind = hidden or labels");
		spec_check_note(t, K_head_kind);
	}
	if (v->n > 3)
		err_at(t->d, v->loc, "head.dense has %d layers, at most 3 are supported", v->n);
	if (ON(dense_norm) && KNOWN(hidden) && v->list[v->n - 1] != (double)INT(hidden))
		err_at(t->d, t->val[K_dense_norm].loc,
		       "head.dense_norm = true: the last of head.dense must be hidden = %lld",
		       (long long)INT(hidden));
	if (IS(pool_kind, "mean") && !IS(dense_act, "none")) {
		err_at(t->d, LOC(pool_kind),
		       "pool.kind = mean: not supported with head.dense_act = %s, because the "
		       "activation follows the mean",
		       t->val[K_dense_act].str);
		spec_check_note(t, K_dense_act);
	}
}

static void
check_output(SpecTable *t)
{
	if (IS(head_kind, "labels") != (INT(labels) > 0)) {
		err_at(t->d, LOC(labels),
		       "head.labels = %lld: must be above 0 for head.kind = labels, and 0 for "
		       "other heads",
		       (long long)INT(labels));
		spec_check_note(t, K_head_kind);
	}
	check_dense(t);
	if (!IS(pool_kind, "none") && IS(head_kind, "logits")) {
		err_at(t->d, LOC(pool_kind),
		       "pool.kind: rows of logits are not pooled; head.kind = hidden outputs the "
		       "rows before the head");
		spec_check_note(t, K_head_kind);
	}
	if (!IS(head_kind, "logits") && INT(tp) * INT(pp) > 1) {
		err_at(t->d, INT(tp) > 1 ? LOC(tp) : LOC(pp),
		       "%s: a model without logits runs on one rank",
		       INT(tp) > 1 ? "parallel.tp" : "parallel.pp");
		spec_check_note(t, K_head_kind);
	}
}

static bool
any_layer(const SpecTable *t, SpecKey key)
{
	const uint8_t *in = t->val[key].layers;

	return in && INT(n_layers) > 0 && memchr(in, 1, (size_t)INT(n_layers));
}

/* A feature that is not supported for a model on two devices (placement) */
typedef struct Undivided {
	SpecKey key;
	const char *what;
} Undivided;

enum { MAX_UNDIVIDED = 9 };

/* Write the features that the model uses to `out`, and return their number. */
static size_t
undivided(const SpecTable *t, Undivided out[MAX_UNDIVIDED])
{
	const struct {
		SpecKey key;
		bool used;
		const char *what;
	} unsupported[MAX_UNDIVIDED] = {
		{ K_tp, INT(tp) > 1, "ranks of a layer" },
		{ K_pp, INT(pp) > 1, "pipeline stages" },
		{ K_adapter_slots, INT(adapter_slots) > 0, "adapter slots" },
		{ K_kv_host, INT(kv_host) > 0, "pages in host memory" },
		{ K_kv_window, INT(kv_window) + INT(kv_sinks) > 0, "exact KV pages" },
		{ K_mtp_part, !IS(mtp_part, "none"), "MTP heads" },
		{ K_vision_part, !IS(vision_part, "none"), "images" },
		{ K_mask, IS(mask, "none"), "encoders" },
		{ K_head_kind, IS(head_kind, "labels"), "classification heads" },
	};
	size_t n = 0;

	for (size_t i = 0; i < MAX_UNDIVIDED; i++)
		if (unsupported[i].used)
			out[n++] = (Undivided){ unsupported[i].key, unsupported[i].what };
	return n;
}

bool
spec_can_divide(const Spec *s)
{
	Undivided what[MAX_UNDIVIDED];

	return s->table && undivided(s->table, what) == 0;
}

/* Check that a model on two devices (placement.cpu) uses only supported features. */
static void
check_placement(SpecTable *t)
{
	Undivided what[MAX_UNDIVIDED];
	const size_t n = undivided(t, what);
	const bool experts = any_layer(t, K_place_experts) || INT(place_moe_layers) > 0;
	const SpecKey key = INT(place_gpu_layers) < INT(n_layers) ? K_place_gpu_layers
	                    : any_layer(t, K_place_layers)        ? K_place_layers
	                    : any_layer(t, K_place_experts)       ? K_place_experts
	                    : experts                             ? K_place_moe_layers
	                    : t->val[K_place_tensors].str         ? K_place_tensors
	                                                          : K_place_embedding;

	if (key == K_place_embedding && !ON(place_embedding))
		return;
	for (size_t i = 0; i < n; i++) {
		err_at(t->d, t->val[key].loc, "%s: not supported with %s (%s)", spec_key[key].path,
		       what[i].what, spec_key[what[i].key].path);
		spec_check_note(t, what[i].key);
	}
	if (experts && INT(n_experts) < 1)
		err_at(t->d,
		       any_layer(t, K_place_experts) ? LOC(place_experts) : LOC(place_moe_layers),
		       "%s: this model has no experts; use placement.gpu_layers",
		       any_layer(t, K_place_experts) ? "placement.cpu.experts"
		                                     : "placement.cpu.moe_layers");
}

void
spec_check(SpecTable *t)
{
	check_name(t);
	spec_check_heads(t);
	spec_check_index(t);
	spec_check_rope(t);
	spec_check_kv(t);
	spec_check_exact(t);
	spec_check_mask(t);
	spec_check_states(t);
	spec_check_halves(t);
	spec_check_moe(t);
	check_tokens(t);
	if (INT(tp) * INT(pp) > PLAN_MAX_RANKS) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: with parallel.tp = %lld that is more than %d ranks",
		       (long long)INT(pp), (long long)INT(tp), PLAN_MAX_RANKS);
		spec_check_note(t, K_tp);
	}
	check_norms(t);
	check_ffn(t);
	check_streams(t);
	check_output(t);
	check_mtp(t);
	check_placement(t);
	check_vision(t);
	if (t->val[K_lora_path].str && INT(tp) * INT(pp) > 1) {
		err_at(t->d, LOC(lora_path),
		       "lora.path: adapters are merged into weights on one rank only");
		spec_check_note(t, INT(tp) > 1 ? K_tp : K_pp);
	}
	if (INT(adapter_slots) > 0 && IS(att_kind, "mla") && IS(att_form, "expanded")) {
		err_at(t->d, LOC(adapter_slots),
		       "adapters.slots: not supported with attention.form = expanded, because "
		       "expanded keys and values would differ per adapter");
		spec_check_note(t, K_att_form);
	}
	if (INT(pp) > 1 && (INT(ple_width) > 0 || INT(kv_shared) > 0)) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: layers of this model read outputs of other layers "
		       "(per-layer embeddings, shared keys and values), so they run on one rank",
		       (long long)INT(pp));
		spec_check_note(t, INT(ple_width) > 0 ? K_ple_width : K_kv_shared);
	}
	const uint8_t *wide = t->val[K_wide_layers].layers;
	if (KNOWN(wide_width) && INT(wide_width) < 1 && wide && INT(n_layers) > 0 &&
	    memchr(wide, 1, (size_t)INT(n_layers)))
		err_at(t->d, LOC(wide_layers),
		       "ffn.wide.width is missing: ffn.wide.layers has layers");
	if (INT(ple_width) > 0 && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ple_width),
		       "per_layer.width = %lld: needs ffn.kind = gated, whose activation its gates "
		       "use",
		       (long long)INT(ple_width));
		spec_check_note(t, K_ffn_kind);
	}
	if (ON(tied) && ON(row_norm)) {
		err_at(t->d, LOC(row_norm),
		       "head.row_norm changes the rows of the head: head.tied must be false");
		spec_check_note(t, K_tied);
	}
	if (IS(position, "learned") && KNOWN(max_positions) &&
	    INT(limit_context) > INT(max_positions)) {
		err_at(t->d, LOC(limit_context),
		       "limits.context = %lld is beyond the %lld learned positions",
		       (long long)INT(limit_context), (long long)INT(max_positions));
		spec_check_note(t, K_max_positions);
	}
	if (INT(exact_positions) > 0 && INT(limit_context) > INT(exact_positions)) {
		err_at(t->d, LOC(limit_context),
		       "limits.context = %lld: the description is exact only up to %lld positions "
		       "(exact_positions)",
		       (long long)INT(limit_context), (long long)INT(exact_positions));
		spec_check_note(t, K_exact_positions);
	}
}
