/* Rules between the keys of attention, positions and the KV cache */
#include <string.h>

#include "compiler/spec/spec_check_internal.h"
#include "compiler/spec/spec_table.h"

/* Check the shapes of windowed layers, and layers that share keys and values. */
static void
spec_check_kinds(SpecTable *t)
{
	const int64_t heads = INT(local_n_heads), kv = INT(local_n_kv_heads),
	              shared = INT(kv_shared), n_layers = INT(n_layers);
	const uint8_t *in = t->val[K_window_layers].layers, *bare = t->val[K_k_is_v].layers;
	SpecKey differing_key = K_window_layers, own; /* key by which the shapes of layers differ */
	bool kind[2] = { false };

	if (heads > 0 && kv > 0 && heads % kv && (heads != INT(n_heads) || kv != INT(n_kv_heads))) {
		SpecKey at = spec_check_key(t, K_local_n_kv_heads, K_local_n_heads);
		err_at(t->d, t->val[at].loc,
		       "attention.local.n_kv_heads = %lld does not divide attention.local.n_heads "
		       "= %lld",
		       (long long)kv, (long long)heads);
		spec_check_note(t, at == K_local_n_heads ? K_local_n_kv_heads : K_local_n_heads);
	}
	for (int64_t l = 0; bare && l < n_layers; l++) {
		bool local = INT(window) > 0 && in && in[l];
		if (bare[l] && INT(head_dim) > 0 &&
		    (local ? INT(local_head_dim) != INT(local_v_dim)
		           : INT(head_dim) != INT(v_dim))) {
			err_at(
			    t->d, LOC(k_is_v),
			    "attention.k_is_v_layers: keys and values of layer %lld differ in size",
			    (long long)l);
			spec_check_note(t, local ? K_local_v_dim : K_v_dim);
			break;
		}
	}
	if (shared <= 0 || n_layers < 1)
		return;
	if (shared >= n_layers) {
		err_at(t->d, LOC(kv_shared),
		       "attention.kv_shared = %lld: must be less than n_layers = %lld",
		       (long long)shared, (long long)n_layers);
		spec_check_note(t, K_n_layers);
		return;
	}
	for (int64_t l = 0; l < n_layers; l++) {
		bool local = INT(window) > 0 && in && in[l];
		/* a recurrent layer, without keys and values */
		if (!spec_check_attends(t, l, &own)) {
			differing_key = own;
			continue;
		}
		if (l < n_layers - shared) {
			kind[local] = true;
		} else if (!kind[local]) {
			err_at(t->d, LOC(kv_shared),
			       "attention.kv_shared = %lld: no earlier layer is %s like layer "
			       "%lld, which would read its keys and values",
			       (long long)shared,
			       local                              ? "windowed"
			       : differing_key == K_window_layers ? "without a window"
			                                          : "an attention layer",
			       (long long)l);
			spec_check_note(t, differing_key);
			return;
		}
	}
}

/* Reject keys that latent attention does not support. */
static void
spec_check_latent(SpecTable *t)
{
	static const SpecKey same[][2] = { { K_local_n_heads, K_n_heads },
		                           { K_local_n_kv_heads, K_n_kv_heads },
		                           { K_local_head_dim, K_head_dim },
		                           { K_local_v_dim, K_v_dim } };
	const uint8_t *bare = t->val[K_k_is_v].layers;

	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		if (t->val[same[i][0]].known && t->val[same[i][1]].known &&
		    t->val[same[i][0]].num != t->val[same[i][1]].num)
			err_at(t->d, t->val[same[i][0]].loc,
			       "%s: latent attention has one shape in all layers",
			       spec_key[same[i][0]].path);
	if (INT(kv_shared) > 0)
		err_at(
		    t->d, LOC(kv_shared),
		    "attention.kv_shared = %lld: layers of latent attention do not share a cache",
		    (long long)INT(kv_shared));
	if (KNOWN(v_scale) && t->val[K_v_scale].num != 1)
		err_at(t->d, LOC(v_scale),
		       "attention.v_scale = %g: latent attention has no values, only latents",
		       t->val[K_v_scale].num);
	if (KNOWN(qkv_limit) && t->val[K_qkv_limit].num > 0)
		err_at(t->d, LOC(qkv_limit),
		       "attention.qkv_limit = %g: latent attention has no q, k and v to clamp",
		       t->val[K_qkv_limit].num);
	if (IS(v_norm, "unit"))
		err_at(t->d, LOC(v_norm),
		       "attention.v_norm = unit: latent attention norms its latents instead");
	if (bare && INT(n_layers) > 0 && memchr(bare, 1, (size_t)INT(n_layers)))
		err_at(t->d, LOC(k_is_v),
		       "attention.k_is_v_layers: latent attention has no values, only latents");
}

void
spec_check_index(SpecTable *t)
{
	static const SpecKey sizes[] = { K_index_heads, K_index_dim };
	const uint8_t *in = t->val[K_index_layers].layers;
	const long long top_k = (long long)INT(index_top_k);
	SpecKey why;

	if (top_k == 0) {
		for (size_t i = 0; KNOWN(index_top_k) && i < sizeof sizes / sizeof *sizes; i++)
			if (t->val[sizes[i]].num > 0)
				err_at(
				    t->d, t->val[sizes[i]].loc,
				    "%s = %lld: there is no indexer without attention.index.top_k",
				    spec_key[sizes[i]].path, (long long)spec_int(t, sizes[i]));
		return;
	}
	if (!IS(att_kind, "mla")) {
		err_at(t->d, LOC(index_top_k),
		       "attention.index.top_k = %lld: only latent attention (attention.kind: mla) "
		       "has an indexer",
		       top_k);
		return;
	}
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (t->val[sizes[i]].known && t->val[sizes[i]].num < 1)
			err_at(t->d, LOC(index_top_k), "%s is missing: an indexer needs it",
			       spec_key[sizes[i]].path);
	if (KNOWN(q_rank) && INT(q_rank) < 1)
		err_at(t->d, LOC(index_top_k),
		       "attention.index.top_k = %lld: indexer queries are projected from the query "
		       "latent, attention.q_rank is missing",
		       top_k);
	if (IS(position, "rope") && INT(index_dim) > 0 && INT(rope_dims) > INT(index_dim)) {
		err_at(
		    t->d, LOC(index_dim),
		    "attention.index.dim = %lld is less than rope.dims = %lld, which are rotated",
		    (long long)INT(index_dim), (long long)INT(rope_dims));
		spec_check_note(t, K_rope_dims);
	}
	if (IS(att_form, "expanded")) {
		err_at(t->d, LOC(att_form),
		       "attention.form = expanded: with an indexer (attention.index.top_k), "
		       "latents are read directly");
		spec_check_note(t, K_index_top_k);
	}
	for (int64_t l = 0; in && l < INT(n_layers); l++) {
		if (!spec_check_attends(t, l, &why))
			continue;
		if (!in[l])
			err_at(t->d, LOC(index_layers),
			       "layer %lld needs the positions of an earlier indexer, and there is "
			       "none: add it to attention.index.layers",
			       (long long)l);
		return; /* the first layer with attention represents all */
	}
}

void
spec_check_heads(SpecTable *t)
{
	int64_t h = INT(n_heads), k = INT(n_kv_heads), d = INT(head_dim);

	if (h > 0 && k > 0 && h % k) {
		SpecKey at = spec_check_key(t, K_n_kv_heads, K_n_heads);
		err_at(t->d, t->val[at].loc,
		       "attention.n_kv_heads = %lld does not divide attention.n_heads = %lld",
		       (long long)k, (long long)h);
		spec_check_note(t, at == K_n_heads ? K_n_kv_heads : K_n_heads);
	}
	if (!IS(att_kind, "mla")) {
		if (!IS(att_form, "auto"))
			err_at(t->d, LOC(att_form),
			       "attention.form = %s: only latent attention (attention.kind: mla) "
			       "has forms",
			       t->val[K_att_form].str);
		spec_check_kinds(t);
		return;
	}
	spec_check_latent(t);
	if (INT(kv_rank) < 1)
		err_at(
		    t->d, LOC(kv_rank),
		    "attention.kv_rank is missing: latent attention needs the size of its latent");
	if (INT(nope_dim) < 1)
		err_at(t->d, LOC(nope_dim),
		       "attention.nope_dim is missing: latent attention needs the size of a head "
		       "without position");
	if (INT(rope_dim) < 2 || INT(rope_dim) % 2)
		err_at(t->d, LOC(rope_dim),
		       "attention.rope_dim = %lld: latent attention needs an even size, at least 2",
		       (long long)INT(rope_dim));
	if (d > 0 && INT(nope_dim) > 0 && INT(rope_dim) > 0 && d != INT(nope_dim) + INT(rope_dim)) {
		err_at(t->d, LOC(head_dim),
		       "attention.head_dim = %lld is not nope_dim + rope_dim = %lld + %lld",
		       (long long)d, (long long)INT(nope_dim), (long long)INT(rope_dim));
		spec_check_note(t, K_nope_dim);
	}
	if (h > 0 && k > 0 && k != h) {
		err_at(t->d, LOC(n_kv_heads),
		       "attention.n_kv_heads = %lld: latent attention has as many as "
		       "attention.n_heads = %lld",
		       (long long)k, (long long)h);
		spec_check_note(t, K_n_heads);
	}
	if (t->val[K_position].str && !IS(position, "rope") && !IS(position, "none")) {
		err_at(t->d, LOC(position), "position = %s: latent attention needs rope, or none",
		       t->val[K_position].str);
		spec_check_note(t, K_att_kind);
	}
	if (t->val[K_qk_norm].str && !IS(qk_norm, "none")) {
		err_at(t->d, LOC(qk_norm),
		       "attention.qk_norm = %s: latent attention norms its latents instead",
		       t->val[K_qk_norm].str);
		spec_check_note(t, K_att_kind);
	}
	if (t->val[K_out_gate].str && !IS(out_gate, "none")) {
		err_at(t->d, LOC(out_gate),
		       "attention.out_gate = %s: latent attention has no gate on its output",
		       t->val[K_out_gate].str);
		spec_check_note(t, K_att_kind);
	}
	if (ON(sinks)) {
		err_at(t->d, LOC(sinks), "attention.sinks = true: latent attention has no sinks");
		spec_check_note(t, K_att_kind);
	}
	if (INT(window) > 0) {
		err_at(t->d, LOC(window),
		       "attention.window = %lld: latent attention has no windowed layers",
		       (long long)INT(window));
		spec_check_note(t, K_att_kind);
	}
}

static void
check_factors(SpecTable *t, SpecKey key, int64_t dims, bool wanted)
{
	const SpecVal *v = &t->val[key];

	if (wanted ? v->known && v->n != dims / 2 : v->n != 0) {
		if (wanted)
			err_at(t->d, v->loc,
			       "%s has %d values: half of the %lld rotated dimensions are "
			       "expected, %lld",
			       spec_key[key].path, v->n, (long long)dims, (long long)(dims / 2));
		else
			err_at(t->d, v->loc, "%s is used by rope scaling longrope only",
			       spec_key[key].path);
	}
}

/* Check that the keys of a table of frequencies are valid for the runtime's formulas. */
static void
check_table(SpecTable *t, SpecKey theta, SpecKey scaling, SpecKey factor, SpecKey original,
            int64_t dims)
{
	const SpecVal *base = &t->val[theta], *form = &t->val[scaling], *length = &t->val[original];
	const char *kind = form->str ? form->str : "none";
	const double by = t->val[factor].num;

	if (t->val[factor].known && !(by >= 1e-6 || (by <= -1e-6 && strcmp(kind, "linear") == 0)))
		err_at(t->d, t->val[factor].loc,
		       "%s = %g: a number above 0 is expected, or below 0 with linear",
		       spec_key[factor].path, by);
	if (base->known && !(base->num > 1))
		err_at(t->d, base->loc, "%s = %g: a base above 1 is expected", spec_key[theta].path,
		       base->num);
	if (strcmp(kind, "none") != 0 && strcmp(kind, "linear") != 0 && length->known &&
	    !(length->num > 1))
		err_at(t->d, length->loc, "%s = %g: scaling %s needs a length above 1",
		       spec_key[original].path, length->num, kind);
	if (strcmp(kind, "dynamic") == 0 && dims > 0 && dims < 4)
		err_at(t->d, form->loc,
		       "%s = dynamic needs at least 4 rotated dimensions, there are %lld",
		       spec_key[scaling].path, (long long)dims);
}

/* Check the three sections. Unless they are interleaved, they must cover all pairs. */
static void
check_sections(SpecTable *t, int64_t dims)
{
	const SpecVal *v = &t->val[K_rope_sections];
	int64_t sum = 0;

	if (!IS(rope_frequencies, "whole") && !v->n && dims % 4)
		err_at(t->d, LOC(rope_frequencies),
		       "rope.frequencies: rope.dims = %lld is not a multiple of 4",
		       (long long)dims);
	if (!IS(rope_frequencies, "whole") && IS(rope_order, "interleaved")) {
		err_at(t->d, LOC(rope_frequencies),
		       "rope.frequencies = %s: interleaved sections have the frequencies of the "
		       "whole head",
		       t->val[K_rope_frequencies].str);
		spec_check_note(t, K_rope_order);
	}
	if (!v->n)
		return;
	for (int i = 0; i < v->n; i++)
		sum += (int64_t)v->list[i];
	if (v->n != 3)
		err_at(t->d, v->loc,
		       "rope.sections has %d numbers; time, row and column need three", v->n);
	else if (sum != dims / 2 && !IS(rope_order, "interleaved"))
		err_at(t->d, v->loc,
		       "rope.sections add up to %lld pairs, rope.dims = %lld has %lld",
		       (long long)sum, (long long)dims, (long long)(dims / 2));
	if (INT(rope_axes) == 2)
		err_at(t->d, v->loc, "rope.sections: not possible with rope.axes = 2");
	if (IS(rope_frequencies, "alternate") && v->n == 3 &&
	    (v->list[0] > 0 || v->list[1] != v->list[2]))
		err_at(t->d, LOC(rope_frequencies),
		       "rope.frequencies = alternate needs two equal sections, of row and column");
	if (!IS(rope_frequencies, "whole") && !IS(rope_scaling, "none"))
		err_at(t->d, LOC(rope_frequencies),
		       "rope.frequencies: supported without scaling only");
}

void
spec_check_rope(SpecTable *t)
{
	int64_t dims = INT(rope_dims), head = INT(head_dim), axes = INT(rope_axes);
	bool mla = IS(att_kind, "mla");

	if (!IS(position, "rope"))
		return;
	if (dims % 2) {
		err_at(t->d, LOC(rope_dims), "rope.dims = %lld is odd: rotation works on pairs",
		       (long long)dims);
		if (t->val[K_rope_dims].from == FROM_DEFAULT)
			spec_check_note(t, K_head_dim);
	}
	if (mla && dims > 0 && INT(rope_dim) > 0 && dims != INT(rope_dim)) {
		err_at(t->d, LOC(rope_dims),
		       "rope.dims = %lld differs from attention.rope_dim = %lld", (long long)dims,
		       (long long)INT(rope_dim));
		spec_check_note(t, K_rope_dim);
	} else if (dims > 0 && head > 0 && dims * axes > head) {
		err_at(t->d, LOC(rope_dims),
		       "rope.dims = %lld%s is more than attention.head_dim = %lld", (long long)dims,
		       axes == 2 ? " for each of two axes" : "", (long long)head);
		spec_check_note(t, K_head_dim);
	}
	check_sections(t, dims);
	check_table(t, K_rope_theta, K_rope_scaling, K_rope_factor, K_rope_original, dims);
	check_factors(t, K_rope_short_factor, dims,
	              IS(rope_scaling, "longrope") && !ON(rope_factors));
	check_factors(t, K_rope_long_factor, dims,
	              IS(rope_scaling, "longrope") && !ON(rope_factors));
	if (IS(rope_scaling, "llama3") &&
	    t->val[K_rope_low_freq].num >= t->val[K_rope_high_freq].num) {
		err_at(t->d, LOC(rope_low_freq),
		       "rope.scaling.low_freq_factor must be below high_freq_factor");
		spec_check_note(t, K_rope_high_freq);
	}
	if (!ON(local_theta)) { /* windowed layers have no table of their own */
		if (!mla && INT(window) > 0 && dims > 0 && INT(local_head_dim) > 0 &&
		    dims * axes > INT(local_head_dim)) {
			err_at(t->d, LOC(local_head_dim),
			       "attention.local.head_dim = %lld is less than rope.dims = %lld: "
			       "windowed layers need a table of their own (rope.local.theta)",
			       (long long)INT(local_head_dim), (long long)dims);
			spec_check_note(t, K_rope_dims);
		}
		return;
	}
	if (INT(local_dims) % 2 || (head > 0 && INT(local_dims) > INT(local_head_dim)))
		err_at(t->d, LOC(local_dims),
		       "rope.local.dims = %lld: an even number up to attention.local.head_dim = "
		       "%lld is expected",
		       (long long)INT(local_dims), (long long)INT(local_head_dim));
	check_table(t, K_local_theta, K_local_scaling, K_local_factor, K_local_original,
	            INT(local_dims));
	check_factors(t, K_local_short_factor, INT(local_dims), IS(local_scaling, "longrope"));
	check_factors(t, K_local_long_factor, INT(local_dims), IS(local_scaling, "longrope"));
	if (IS(local_scaling, "llama3") &&
	    t->val[K_local_low_freq].num >= t->val[K_local_high_freq].num)
		err_at(t->d, LOC(local_low_freq),
		       "rope.local.scaling.low_freq_factor must be below high_freq_factor");
	if (mla || axes == 2)
		err_at(
		    t->d, LOC(local_theta),
		    "rope.local is for windowed layers of grouped-query attention with one axis");
}

void
spec_check_kv(SpecTable *t)
{
	KvType k = kv_type_from_text(t->val[K_kv_k].str), v = kv_type_from_text(t->val[K_kv_v].str);
	int64_t d = INT(head_dim);

	if (k == KVT_NONE || v == KVT_NONE)
		return;
	if (IS(att_kind, "mla")) {
		if (ON(kv_rotate))
			err_at(t->d, LOC(kv_rotate),
			       "kv.rotate = true: latents (attention.kind: mla) are not rotated");
		else if (k != v)
			err_at(t->d, LOC(kv_v),
			       "kv.v = %s differs from kv.k = %s: a latent is both key and value",
			       t->val[K_kv_v].str, t->val[K_kv_k].str);
	}
	if (!ON(kv_rotate) || IS(att_kind, "mla"))
		return;
	if (!kv_rotates(k) && !kv_rotates(v))
		err_at(t->d, LOC(kv_rotate),
		       "kv.rotate = true: only rows of quantised types are rotated, keys are %s "
		       "and values %s",
		       t->val[K_kv_k].str, t->val[K_kv_v].str);
	else if (KNOWN(head_dim) && d > 0 && kv_rotation(d) < KV_LEAST_ROTATION)
		err_at(t->d, LOC(kv_rotate),
		       "kv.rotate = true: attention.head_dim = %lld is not a multiple of %d, which "
		       "rotation needs",
		       (long long)d, KV_LEAST_ROTATION);
	else if (KNOWN(v_dim) && KNOWN(local_v_dim) &&
	         (kv_rotation(INT(v_dim)) < KV_LEAST_ROTATION ||
	          kv_rotation(INT(local_head_dim)) < KV_LEAST_ROTATION ||
	          kv_rotation(INT(local_v_dim)) < KV_LEAST_ROTATION))
		err_at(t->d, LOC(kv_rotate),
		       "kv.rotate = true: the size of value heads or of heads in windowed layers "
		       "is not a multiple of %d, which rotation needs",
		       KV_LEAST_ROTATION);
}

void
spec_check_exact(SpecTable *t)
{
	const KvType k = kv_type_from_text(t->val[K_kv_k].str),
	             v = kv_type_from_text(t->val[K_kv_v].str);
	const SpecKey key = INT(kv_window) > 0 ? K_kv_window : K_kv_sinks;
	const Loc at = t->val[key].loc;
	const char *name = spec_key[key].path;
	const long long n = (long long)spec_int(t, key);

	if (k == KVT_NONE || v == KVT_NONE)
		return;
	if (kv_by_channel(k) && INT(kv_window) < KV_LEAST_RECENT) {
		err_at(t->d, LOC(kv_k),
		       "kv.k = %s: pages of keys are quantised when they are full, kv.window of at "
		       "least %d positions is needed",
		       t->val[K_kv_k].str, KV_LEAST_RECENT);
		return;
	}
	if (n <= 0)
		return;
	if (IS(att_kind, "mla")) {
		err_at(t->d, at, "%s = %lld: latents (attention.kind: mla) are stored in one type",
		       name, n);
		spec_check_note(t, K_att_kind);
	} else if (!kv_quantised(k) && !kv_quantised(v)) {
		err_at(t->d, at,
		       "%s = %lld: only quantised rows need it, keys are %s and values %s", name, n,
		       t->val[K_kv_k].str, t->val[K_kv_v].str);
	} else if (!IS(mask, "causal") && !(IS(mask, "images") && !IS(vision_part, "rows"))) {
		err_at(t->d, at,
		       "%s = %lld: not supported with mask %s, which attends to later tokens", name,
		       n, t->val[K_mask].str);
		spec_check_note(t, K_mask);
	} else if (INT(pp) > 1) {
		err_at(t->d, at, "%s = %lld: pipeline stages store all positions in one type", name,
		       n);
		spec_check_note(t, K_pp);
	}
}

/* Check a model whose tokens attend to later tokens. It cannot have parts that only read earlier
 * tokens. */
static void
check_later_tokens(SpecTable *t)
{
	static const SpecKey causal[] = { K_linear_layers, K_conv_layers, K_ssm_layers };
	const char *mask = t->val[K_mask].str;

	for (size_t i = 0; i < sizeof causal / sizeof *causal; i++)
		for (int64_t l = 0;
		     KNOWN(n_layers) && t->val[causal[i]].layers && l < INT(n_layers); l++)
			if (t->val[causal[i]].layers[l]) {
				err_at(t->d, t->val[causal[i]].loc,
				       "%s: recurrent layers read earlier tokens only, which "
				       "attention.mask = %s does not allow",
				       spec_key[causal[i]].path, mask);
				spec_check_note(t, K_mask);
				break;
			}
	if (IS(window_kind, "segments") && !IS(vision_part, "tower"))
		err_at(t->d, LOC(window_kind),
		       "attention.window_kind = segments: only the patches of a tower come with "
		       "windows");
	if (IS(window_kind, "segments") && INT(window) > PLAN_MOST_SEGMENT)
		err_at(t->d, LOC(window),
		       "attention.window = %lld: windows of an image have %d patches at most",
		       (long long)INT(window), PLAN_MOST_SEGMENT);
	if (IS(window_kind, "segments") && ON(vision_class)) {
		err_at(t->d, LOC(vision_class),
		       "vision.class_row: not supported with attention.window_kind = segments, "
		       "because the class row is in no window");
		spec_check_note(t, K_window_kind);
	}
	if (INT(window) > 0 && IS(window_kind, "chunks")) {
		err_at(t->d, LOC(window_kind),
		       "attention.window_kind = chunks: not defined for mask %s", mask);
		spec_check_note(t, K_mask);
	}
	if (IS(att_kind, "mla")) {
		err_at(t->d, LOC(mask), "attention.mask = %s: latent attention is causal", mask);
		spec_check_note(t, K_att_kind);
	}
	if (IS(position, "alibi")) {
		err_at(t->d, LOC(position),
		       "position = alibi: not defined for later tokens, which mask %s attends to",
		       mask);
		spec_check_note(t, K_mask);
	}
}

void
spec_check_mask(SpecTable *t)
{
	if (INT(embed_types) > 0 && !IS(mask, "none")) {
		err_at(t->d, LOC(embed_types),
		       "embed.types = %lld: token types need attention.mask = none",
		       (long long)INT(embed_types));
		spec_check_note(t, K_mask);
	}
	if (IS(mask, "none") && IS(head_kind, "logits")) {
		err_at(t->d, LOC(mask),
		       "attention.mask = none: an encoder predicts no next token; set head.kind to "
		       "hidden or labels");
		spec_check_note(t, K_head_kind);
	}
	if (IS(mask, "none") || IS(mask, "prefix") ||
	    (IS(mask, "images") && IS(vision_part, "rows")))
		check_later_tokens(t);
	if (!IS(mask, "prefix"))
		return;
	if (KNOWN(prefix_end) && INT(prefix_end) < 0)
		err_at(t->d, LOC(prefix_end),
		       "attention.prefix_end is missing: mask prefix needs the token that ends a "
		       "prefix");
	if (INT(window) > 0) {
		err_at(t->d, LOC(window),
		       "attention.window = %lld: mask prefix has no windowed layers",
		       (long long)INT(window));
		spec_check_note(t, K_mask);
	}
}
