/* Rules between keys. Each message names both values and points at the other key. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/spec/spec_table.h"

#define LOC(k) (t->val[K_##k].loc)
#define INT(k) spec_int(t, K_##k)
#define KNOWN(k) (t->val[K_##k].known)
#define ON(k) (t->val[K_##k].known && t->val[K_##k].num != 0)
#define IS(k, word) spec_word_is(t, K_##k, word)

/* Add a note: "n_heads = 8 is set here", or that it is a default. */
static void
note(SpecTable *t, SpecKey k)
{
	const SpecVal *v = &t->val[k];
	const char *text = spec_val_text(t, k, t->a);

	if (v->from == FROM_DEFAULT)
		note_at(t->d, (Loc){ .src = t->file.src }, "%s is %s by default", spec_key[k].path,
		        text);
	else
		note_at(t->d, v->loc, "%s = %s is set here", spec_key[k].path, text);
}

/* Return the key of the two that a later layer of values set; errors are reported there. */
static SpecKey
key_to_report(const SpecTable *t, SpecKey a, SpecKey b)
{
	return t->val[a].from >= t->val[b].from ? a : b;
}

/* Keys with the layers that have a recurrent block instead of attention. */
static const SpecKey recurrent_key[] = { K_linear_layers, K_conv_layers, K_ssm_layers };
enum { N_RECURRENT_KEY = sizeof recurrent_key / sizeof *recurrent_key };

/* Return whether a layer has keys and values; if not, *why is the key that removes them. */
static bool
attends(const SpecTable *t, int64_t l, SpecKey *why)
{
	const uint8_t *blocks = t->val[K_att_layers].layers;

	for (int i = 0; i < N_RECURRENT_KEY; i++)
		if (t->val[recurrent_key[i]].layers && t->val[recurrent_key[i]].layers[l] &&
		    !(recurrent_key[i] == K_ssm_layers &&
		      (ON(ssm_beside) || t->val[K_shared_layers].layers[l]))) {
			*why = recurrent_key[i];
			return false;
		}
	*why = K_att_layers;
	return !blocks || blocks[l];
}

/* Check the shapes of windowed layers, and layers that share keys and values. */
static void
check_kinds(SpecTable *t)
{
	const int64_t heads = INT(local_n_heads), kv = INT(local_n_kv_heads),
	              shared = INT(kv_shared), n_layers = INT(n_layers);
	const uint8_t *in = t->val[K_window_layers].layers, *bare = t->val[K_k_is_v].layers;
	SpecKey apart = K_window_layers, own; /* key by which the layers differ */
	bool kind[2] = { false };

	if (heads > 0 && kv > 0 && heads % kv && (heads != INT(n_heads) || kv != INT(n_kv_heads))) {
		SpecKey at = key_to_report(t, K_local_n_kv_heads, K_local_n_heads);
		err_at(t->d, t->val[at].loc,
		       "attention.local.n_kv_heads = %lld does not divide attention.local.n_heads "
		       "= %lld",
		       (long long)kv, (long long)heads);
		note(t, at == K_local_n_heads ? K_local_n_kv_heads : K_local_n_heads);
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
			note(t, local ? K_local_v_dim : K_v_dim);
			break;
		}
	}
	if (shared <= 0 || n_layers < 1)
		return;
	if (shared >= n_layers) {
		err_at(t->d, LOC(kv_shared),
		       "attention.kv_shared = %lld: must be less than n_layers = %lld",
		       (long long)shared, (long long)n_layers);
		note(t, K_n_layers);
		return;
	}
	for (int64_t l = 0; l < n_layers; l++) {
		bool local = INT(window) > 0 && in && in[l];
		if (!attends(t, l, &own)) { /* recurrent, without keys and values */
			apart = own;
			continue;
		}
		if (l < n_layers - shared) {
			kind[local] = true;
		} else if (!kind[local]) {
			err_at(t->d, LOC(kv_shared),
			       "attention.kv_shared = %lld: no earlier layer is %s like layer "
			       "%lld, which would read its keys and values",
			       (long long)shared,
			       local                      ? "windowed"
			       : apart == K_window_layers ? "without a window"
			                                  : "an attention layer",
			       (long long)l);
			note(t, apart);
			return;
		}
	}
}

/* Reject keys that latent attention does not support. */
static void
check_latent(SpecTable *t)
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

/* Check the indexer of latent attention. */
static void
check_index(SpecTable *t)
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
		note(t, K_rope_dims);
	}
	if (IS(att_form, "expanded")) {
		err_at(t->d, LOC(att_form),
		       "attention.form = expanded: with an indexer (attention.index.top_k), "
		       "latents are read directly");
		note(t, K_index_top_k);
	}
	for (int64_t l = 0; in && l < INT(n_layers); l++) {
		if (!attends(t, l, &why))
			continue;
		if (!in[l])
			err_at(t->d, LOC(index_layers),
			       "layer %lld needs the positions of an earlier indexer, and there is "
			       "none: add it to attention.index.layers",
			       (long long)l);
		return; /* only the first layer with attention matters */
	}
}

static void
check_heads(SpecTable *t)
{
	int64_t h = INT(n_heads), k = INT(n_kv_heads), d = INT(head_dim);

	if (h > 0 && k > 0 && h % k) {
		SpecKey at = key_to_report(t, K_n_kv_heads, K_n_heads);
		err_at(t->d, t->val[at].loc,
		       "attention.n_kv_heads = %lld does not divide attention.n_heads = %lld",
		       (long long)k, (long long)h);
		note(t, at == K_n_heads ? K_n_kv_heads : K_n_heads);
	}
	if (!IS(att_kind, "mla")) {
		if (!IS(att_form, "auto"))
			err_at(t->d, LOC(att_form),
			       "attention.form = %s: only latent attention (attention.kind: mla) "
			       "has forms",
			       t->val[K_att_form].str);
		check_kinds(t);
		return;
	}
	check_latent(t);
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
		note(t, K_nope_dim);
	}
	if (h > 0 && k > 0 && k != h) {
		err_at(t->d, LOC(n_kv_heads),
		       "attention.n_kv_heads = %lld: latent attention has as many as "
		       "attention.n_heads = %lld",
		       (long long)k, (long long)h);
		note(t, K_n_heads);
	}
	if (t->val[K_position].str && !IS(position, "rope") && !IS(position, "none")) {
		err_at(t->d, LOC(position), "position = %s: latent attention needs rope, or none",
		       t->val[K_position].str);
		note(t, K_att_kind);
	}
	if (t->val[K_qk_norm].str && !IS(qk_norm, "none")) {
		err_at(t->d, LOC(qk_norm),
		       "attention.qk_norm = %s: latent attention norms its latents instead",
		       t->val[K_qk_norm].str);
		note(t, K_att_kind);
	}
	if (t->val[K_out_gate].str && !IS(out_gate, "none")) {
		err_at(t->d, LOC(out_gate),
		       "attention.out_gate = %s: latent attention has no gate on its output",
		       t->val[K_out_gate].str);
		note(t, K_att_kind);
	}
	if (ON(sinks)) {
		err_at(t->d, LOC(sinks), "attention.sinks = true: latent attention has no sinks");
		note(t, K_att_kind);
	}
	if (INT(window) > 0) {
		err_at(t->d, LOC(window),
		       "attention.window = %lld: latent attention has no windowed layers",
		       (long long)INT(window));
		note(t, K_att_kind);
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

/* Check that a table of frequencies satisfies the runtime's formulas. */
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

static void
check_rope(SpecTable *t)
{
	int64_t dims = INT(rope_dims), head = INT(head_dim), axes = INT(rope_axes);
	bool mla = IS(att_kind, "mla");

	if (!IS(position, "rope"))
		return;
	if (dims % 2) {
		err_at(t->d, LOC(rope_dims), "rope.dims = %lld is odd: rotation works on pairs",
		       (long long)dims);
		if (t->val[K_rope_dims].from == FROM_DEFAULT)
			note(t, K_head_dim);
	}
	if (mla && dims > 0 && INT(rope_dim) > 0 && dims != INT(rope_dim)) {
		err_at(t->d, LOC(rope_dims),
		       "rope.dims = %lld differs from attention.rope_dim = %lld", (long long)dims,
		       (long long)INT(rope_dim));
		note(t, K_rope_dim);
	} else if (dims > 0 && head > 0 && dims * axes > head) {
		err_at(t->d, LOC(rope_dims),
		       "rope.dims = %lld%s is more than attention.head_dim = %lld", (long long)dims,
		       axes == 2 ? " for each of two axes" : "", (long long)head);
		note(t, K_head_dim);
	}
	check_table(t, K_rope_theta, K_rope_scaling, K_rope_factor, K_rope_original, dims);
	check_factors(t, K_rope_short_factor, dims,
	              IS(rope_scaling, "longrope") && !ON(rope_factors));
	check_factors(t, K_rope_long_factor, dims,
	              IS(rope_scaling, "longrope") && !ON(rope_factors));
	if (IS(rope_scaling, "llama3") &&
	    t->val[K_rope_low_freq].num >= t->val[K_rope_high_freq].num) {
		err_at(t->d, LOC(rope_low_freq),
		       "rope.scaling.low_freq_factor must be below high_freq_factor");
		note(t, K_rope_high_freq);
	}
	if (!ON(local_theta)) { /* no separate table */
		if (!mla && INT(window) > 0 && dims > 0 && INT(local_head_dim) > 0 &&
		    dims * axes > INT(local_head_dim)) {
			err_at(t->d, LOC(local_head_dim),
			       "attention.local.head_dim = %lld is less than rope.dims = %lld: "
			       "windowed layers need a table of their own (rope.local.theta)",
			       (long long)INT(local_head_dim), (long long)dims);
			note(t, K_rope_dims);
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

/* Check KV types and their rotation. */
static void
check_kv(SpecTable *t)
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

/* Check positions that are stored in 16 bits in addition to the quantised rows. */
static void
check_exact(SpecTable *t)
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
		note(t, K_att_kind);
	} else if (!kv_quantised(k) && !kv_quantised(v)) {
		err_at(t->d, at,
		       "%s = %lld: only quantised rows need it, keys are %s and values %s", name, n,
		       t->val[K_kv_k].str, t->val[K_kv_v].str);
	} else if (!IS(mask, "causal")) {
		err_at(t->d, at,
		       "%s = %lld: not supported with mask %s, which attends to later tokens", name,
		       n, t->val[K_mask].str);
		note(t, K_mask);
	} else if (INT(pp) > 1) {
		err_at(t->d, at, "%s = %lld: pipeline stages store all positions in one type", name,
		       n);
		note(t, K_pp);
	}
}

/* Check an encoder: nothing in it may depend on the direction of the text, or on earlier steps. */
static void
check_encoder(SpecTable *t)
{
	static const SpecKey causal[] = { K_linear_layers, K_conv_layers, K_ssm_layers };

	if (IS(head_kind, "logits")) {
		err_at(t->d, LOC(mask),
		       "attention.mask = none: an encoder predicts no next token; set head.kind to "
		       "hidden or labels");
		note(t, K_head_kind);
	}
	for (size_t i = 0; i < sizeof causal / sizeof *causal; i++)
		for (int64_t l = 0;
		     KNOWN(n_layers) && t->val[causal[i]].layers && l < INT(n_layers); l++)
			if (t->val[causal[i]].layers[l]) {
				err_at(t->d, t->val[causal[i]].loc,
				       "%s: recurrent layers read earlier tokens only, which "
				       "attention.mask = none does not allow",
				       spec_key[causal[i]].path);
				note(t, K_mask);
				break;
			}
	if (INT(window) > 0 && IS(window_kind, "chunks")) {
		err_at(t->d, LOC(window_kind),
		       "attention.window_kind = chunks: not defined for mask none");
		note(t, K_mask);
	}
	if (IS(att_kind, "mla")) {
		err_at(t->d, LOC(mask), "attention.mask = none: latent attention is causal");
		note(t, K_att_kind);
	}
	if (IS(position, "alibi")) {
		err_at(
		    t->d, LOC(position),
		    "position = alibi: not supported for later tokens, which mask none attends to");
		note(t, K_mask);
	}
}

static void
check_mask(SpecTable *t)
{
	if (INT(embed_types) > 0 && !IS(mask, "none")) {
		err_at(t->d, LOC(embed_types),
		       "embed.types = %lld: token types need attention.mask = none",
		       (long long)INT(embed_types));
		note(t, K_mask);
	}
	if (IS(mask, "none"))
		check_encoder(t);
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
		note(t, K_mask);
	}
	if (IS(position, "alibi")) {
		err_at(
		    t->d, LOC(position),
		    "position = alibi: not defined for later tokens, which mask prefix attends to");
		note(t, K_mask);
	}
	if (IS(att_kind, "mla")) {
		err_at(t->d, LOC(mask), "attention.mask = prefix: latent attention is causal");
		note(t, K_att_kind);
	}
}

/* Check sizes that the layers of a key require. */
static void
check_sizes(SpecTable *t, SpecKey layers, int n, const SpecKey *size, size_t n_size,
            const char *what)
{
	for (size_t i = 0; n && i < n_size; i++)
		if (t->val[size[i]].known && t->val[size[i]].num < 1)
			err_at(t->d, t->val[layers].loc, "%s is missing: %d layers have a %s",
			       spec_key[size[i]].path, n, what);
}

static void
check_ssm(SpecTable *t)
{
	int64_t heads = INT(ssm_heads), groups = INT(ssm_groups), inner = heads * INT(ssm_dim),
	        pieces = INT(ssm_norm_groups);
	double least = t->val[K_ssm_dt_min].num, most = t->val[K_ssm_dt_max].num;

	if (heads > 0 && groups > 0 && heads % groups) {
		err_at(t->d, LOC(ssm_groups), "ssm.groups = %lld does not divide ssm.heads = %lld",
		       (long long)groups, (long long)heads);
		note(t, K_ssm_heads);
	}
	if (inner > 0 && pieces > 0 && inner % pieces) {
		err_at(t->d, LOC(ssm_norm_groups),
		       "ssm.norm_groups = %lld does not divide ssm.heads * ssm.dim = %lld",
		       (long long)pieces, (long long)inner);
		note(t, K_ssm_heads);
	}
	static const SpecKey heads_only[] = { K_ssm_groups, K_ssm_dt_min, K_ssm_dt_max,
		                              K_ssm_in_scale, K_ssm_gains };
	if (INT(ssm_dt_rank) > 0 && heads > 1) {
		err_at(t->d, LOC(ssm_heads),
		       "ssm.heads = %lld: with ssm.dt_rank there is one head of ssm.dim channels",
		       (long long)heads);
		note(t, K_ssm_dt_rank);
	}
	for (size_t i = 0; INT(ssm_dt_rank) > 0 && i < sizeof heads_only / sizeof *heads_only;
	     i++) {
		const SpecVal *v = &t->val[heads_only[i]];
		if (v->given &&
		    (v->n ||
		     v->num != strtod(spec_key[heads_only[i]].def,
		                      NULL))) { /* a resolved description sets defaults too */
			err_at(t->d, v->loc,
			       "%s is for scans with one rate per head, not for those with "
			       "ssm.dt_rank",
			       spec_key[heads_only[i]].path);
			note(t, K_ssm_dt_rank);
		}
	}
	if (INT(ssm_dt_rank) == 0 && !IS(ssm_low_norm, "none"))
		err_at(t->d, LOC(ssm_low_norm), "ssm.low_norm needs ssm.dt_rank");
	if (t->val[K_ssm_gains].n && t->val[K_ssm_gains].n != 5)
		err_at(t->d, LOC(ssm_gains),
		       "ssm.gains has %d values: 5 are expected, for gate, input, B, C and dt",
		       t->val[K_ssm_gains].n);
	if (IS(ssm_norm, "norm_first") && pieces > 1) {
		err_at(t->d, LOC(ssm_norm),
		       "ssm.norm = norm_first: this norm covers the whole row, not groups");
		note(t, K_ssm_norm_groups);
	}
	if (most > 0 && least >= most) {
		err_at(t->d, LOC(ssm_dt_max), "ssm.dt_max = %g is not above ssm.dt_min = %g", most,
		       least);
		note(t, K_ssm_dt_min);
	}
}

/* Check blocks with shared weights. */
static void
check_shared(SpecTable *t)
{
	/* keys that build_shared does not support */
	static const SpecKey plain[] = { K_att_kind,
		                         K_qk_norm,
		                         K_out_gate,
		                         K_kv_shared,
		                         K_att_bias,
		                         K_o_bias,
		                         K_qkv_limit,
		                         K_v_norm,
		                         K_v_scale,
		                         K_att_out_scale,
		                         K_q_temperature_scale,
		                         K_ffn_kind,
		                         K_ffn_bias,
		                         K_ffn_gate_scale,
		                         K_ffn_out_scale };
	const uint8_t *in = t->val[K_shared_layers].layers, *scans = t->val[K_ssm_layers].layers;
	int n = 0;

	for (int l = 0; in && l < (int)INT(n_layers); l++) {
		n += in[l] != 0;
		if (in[l] && (!scans || !scans[l] || ON(ssm_beside))) {
			err_at(t->d, LOC(shared_layers),
			       "layer %d is in shared.layers: a shared block needs a selective "
			       "scan without attention in parallel",
			       l);
			note(t, ON(ssm_beside) ? K_ssm_beside : K_ssm_layers);
			return;
		}
	}
	if (n && INT(shared_blocks) > n)
		err_at(t->d, LOC(shared_blocks),
		       "shared.blocks = %lld: more than the %d layers of shared.layers",
		       (long long)INT(shared_blocks), n);
	if (n && (INT(tp) > 1 || INT(pp) > 1))
		err_at(t->d, INT(tp) > 1 ? LOC(tp) : LOC(pp),
		       "%s: layers that share a block (shared.layers) run on one rank",
		       INT(tp) > 1 ? "parallel.tp" : "parallel.pp");
	if (n && INT(ffn_width) < 1)
		err_at(t->d, LOC(shared_layers),
		       "ffn.width is missing: %d layers share a block with a feed-forward", n);
	if (n && KNOWN(v_dim) && INT(v_dim) != INT(head_dim)) {
		err_at(t->d, LOC(v_dim),
		       "attention.v_dim = %lld: values of a shared block have the size of its "
		       "keys, %lld",
		       (long long)INT(v_dim), (long long)INT(head_dim));
		note(t, K_shared_layers);
	}
	for (size_t i = 0; n && i < sizeof plain / sizeof *plain; i++) {
		const SpecVal *v = &t->val[plain[i]];
		const SpecKeyInfo *key = &spec_key[plain[i]];
		if (!v->known ||
		    (v->str ? strcmp(v->str, key->def) == 0 : v->num == atof(key->def)))
			continue;
		err_at(t->d, v->loc, "%s = %s: not supported in shared blocks (shared.layers)",
		       key->path, spec_val_text(t, plain[i], t->a));
		note(t, K_shared_layers);
	}
	if (n && (INT(moe_latent) > 0 || IS(residual_form, "parallel")))
		err_at(t->d, LOC(shared_layers),
		       "shared.layers: not supported with moe.latent or residual.form = parallel");
}

/* Check layers with a recurrent state. */
static void
check_states(SpecTable *t)
{
	static const SpecKey sizes[] = { K_lin_k_heads, K_lin_v_heads, K_lin_k_dim, K_lin_v_dim },
	                     ssm[] = { K_ssm_heads, K_ssm_dim, K_ssm_state };
	int64_t k = INT(lin_k_heads), v = INT(lin_v_heads);
	int n[N_RECURRENT_KEY] = { 0 }, all = 0;
	SpecKey which = K_linear_layers;

	for (int l = 0; l < (int)INT(n_layers); l++) {
		int first = -1;
		for (int i = 0; i < N_RECURRENT_KEY; i++) {
			const uint8_t *in = t->val[recurrent_key[i]].layers;
			if (!in || !in[l])
				continue;
			n[i]++;
			all++;
			which = recurrent_key[i];
			if (first >= 0) {
				err_at(t->d, t->val[recurrent_key[i]].loc,
				       "layer %d is in %s and in %s", l,
				       spec_key[recurrent_key[i]].path,
				       spec_key[recurrent_key[first]].path);
				note(t, recurrent_key[first]);
				return;
			}
			first = i;
		}
	}
	check_shared(t);
	if (all == 0)
		return;
	check_sizes(t, K_linear_layers, n[0], sizes, sizeof sizes / sizeof *sizes, "delta rule");
	check_sizes(t, K_ssm_layers, n[2], ssm, sizeof ssm / sizeof *ssm, "selective scan");
	if (n[0] && k > 0 && v > 0 && v % k) {
		err_at(t->d, LOC(lin_v_heads),
		       "linear.v_heads = %lld is not a multiple of linear.k_heads = %lld",
		       (long long)v, (long long)k);
		note(t, K_lin_k_heads);
	}
	if (n[2])
		check_ssm(t);
	if (IS(mask, "prefix")) {
		err_at(t->d, t->val[which].loc,
		       "%s: recurrent layers are causal, mask prefix is not", spec_key[which].path);
		note(t, K_mask);
	}
}

/* Check layers without one of their two blocks. */
static void
check_halves(SpecTable *t)
{
	const uint8_t *first = t->val[K_att_layers].layers, *second = t->val[K_ffn_layers].layers;

	for (int l = 0; first && second && l < (int)INT(n_layers); l++) {
		if (!first[l] && !second[l]) {
			err_at(t->d, LOC(ffn_layers),
			       "layer %d is neither in attention.layers nor in ffn.layers", l);
			note(t, K_att_layers);
			return;
		}
		if ((!first[l] || !second[l]) && IS(residual_form, "parallel")) {
			const SpecKey key = first[l] ? K_ffn_layers : K_att_layers;
			err_at(t->d, t->val[key].loc,
			       "%s: layer %d has one block, and residual.form = parallel needs two",
			       spec_key[key].path, l);
			note(t, K_residual_form);
			return;
		}
		for (int i = 0; !first[l] && i < N_RECURRENT_KEY; i++)
			if (t->val[recurrent_key[i]].layers && t->val[recurrent_key[i]].layers[l]) {
				err_at(t->d, t->val[recurrent_key[i]].loc,
				       "layer %d is in %s and not in attention.layers", l,
				       spec_key[recurrent_key[i]].path);
				note(t, K_att_layers);
				return;
			}
	}
}

static void
check_moe(SpecTable *t)
{
	int64_t e = INT(n_experts), k = INT(top_k), g = INT(groups), keep = INT(keep_groups);
	int n_layers = (int)INT(n_layers), dense = 0;
	const uint8_t *in = t->val[K_moe_layers].layers;

	if (!KNOWN(n_experts))
		return;
	const uint8_t *fed = t->val[K_ffn_layers].layers;
	for (int l = 0; l < n_layers; l++)
		dense += (!fed || fed[l]) && !(e > 0 && in && in[l]);
	if (ON(moe_beside) && e > 0)
		dense = n_layers;
	if (dense && KNOWN(ffn_width) && INT(ffn_width) < 1) {
		err_at(t->d, t->val[K_ffn_width].given ? LOC(ffn_width) : t->file,
		       "ffn.width is missing: %d of %d layers are dense", dense, n_layers);
		if (e > 0)
			note(t, K_moe_layers);
	}
	if (e == 0)
		return;
	if (KNOWN(moe_width) && INT(moe_width) < 1)
		err_at(t->d, LOC(n_experts), "moe.width is missing: there are %lld experts",
		       (long long)e);
	if (IS(moe_kind, "plain") && !IS(moe_act, "relu2")) {
		err_at(t->d, LOC(moe_act), "moe.act = %s: plain experts support only relu2",
		       t->val[K_moe_act].str);
		note(t, K_moe_kind);
	}
	if (IS(moe_kind, "plain") && (ON(expert_bias) || INT(tp) > 1)) {
		SpecKey key = ON(expert_bias) ? K_expert_bias : K_tp;
		err_at(t->d, t->val[key].loc, "%s: plain experts %s", spec_key[key].path,
		       ON(expert_bias) ? "have no bias" : "run on one rank");
		note(t, K_moe_kind);
	}
	if (INT(moe_latent) > 0 && INT(tp) > 1) {
		err_at(
		    t->d, LOC(tp),
		    "parallel.tp = %lld: experts with a latent size (moe.latent) run on one rank",
		    (long long)INT(tp));
		note(t, K_moe_latent);
	}
	if (KNOWN(top_k) && (k < 1 || k > e)) {
		err_at(t->d, t->val[K_top_k].given ? LOC(top_k) : LOC(n_experts),
		       "moe.top_k = %lld: 1 to moe.n_experts = %lld is expected", (long long)k,
		       (long long)e);
		note(t, K_n_experts);
	}
	if (IS(moe_weights_on, "input") && (k != 1 || ON(expert_gain))) {
		err_at(t->d, LOC(moe_weights_on),
		       "moe.weights_on = input: needs moe.top_k = 1 and no moe.expert_gain");
		note(t, k != 1 ? K_top_k : K_expert_gain);
	}
	if (IS(moe_score, "sparsemixer") && (ON(renorm) || g > 1 || ON(choice_bias))) {
		SpecKey key = ON(renorm) ? K_renorm : g > 1 ? K_groups : K_choice_bias;
		err_at(t->d, t->val[key].loc,
		       "%s: not supported with sparsemixer, which uses only the logits and does "
		       "not renormalise",
		       spec_key[key].path);
		note(t, K_moe_score);
	}
	if (g < 2)
		return;
	if (e % g) {
		err_at(t->d, LOC(groups), "moe.groups = %lld does not divide moe.n_experts = %lld",
		       (long long)g, (long long)e);
		note(t, K_n_experts);
		return;
	}
	if (keep < 1 || keep > g) {
		err_at(t->d, t->val[K_keep_groups].given ? LOC(keep_groups) : LOC(groups),
		       "moe.keep_groups = %lld: 1 to moe.groups = %lld is expected",
		       (long long)keep, (long long)g);
		note(t, K_groups);
	} else if (k > keep * (e / g)) {
		err_at(t->d, LOC(top_k),
		       "moe.top_k = %lld is more than the %lld experts of the groups that are kept",
		       (long long)k, (long long)(keep * (e / g)));
		note(t, K_keep_groups);
	}
	if (IS(group_score, "top2") && e / g < 2) {
		err_at(t->d, LOC(group_score),
		       "moe.group_score = top2 needs groups of two experts or more");
		note(t, K_groups);
	}
}

static void
check_tokens(SpecTable *t)
{
	int64_t v = INT(vocab_size);
	const SpecVal *eos = &t->val[K_eos];

	if (v < 1)
		return;
	if (INT(vocab_used) > v) {
		err_at(t->d, LOC(vocab_used), "vocab_used = %lld is more than vocab_size = %lld",
		       (long long)INT(vocab_used), (long long)v);
		note(t, K_vocab_size);
	}
	if (eos->n > PLAN_MAX_EOS)
		err_at(t->d, eos->loc, "text.eos has %d tokens: at most %d are used", eos->n,
		       PLAN_MAX_EOS);
	for (int i = 0; i < eos->n; i++)
		if (eos->list[i] >= (double)v) {
			err_at(t->d, eos->loc, "text.eos = %.0f is not a token: vocab_size = %lld",
			       eos->list[i], (long long)v);
			note(t, K_vocab_size);
			break;
		}
	static const SpecKey one[] = { K_bos, K_prefix_mark, K_prefix_end };
	for (size_t i = 0; i < sizeof one / sizeof *one; i++)
		if (t->val[one[i]].known && t->val[one[i]].num >= (double)v) {
			err_at(t->d, t->val[one[i]].loc,
			       "%s = %.0f is not a token: vocab_size = %lld", spec_key[one[i]].path,
			       t->val[one[i]].num, (long long)v);
			note(t, K_vocab_size);
		}
}

/* The name is used in names of files and folders. */
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

/* A draft head has one layer like the model's; its only input from the model is the last rows. */
static void
check_mtp(SpecTable *t)
{
	const char *part = t->val[K_mtp_part].str;

	if (!part || IS(mtp_part, "none"))
		return;
	if (KNOWN(mtp_layers) && INT(mtp_layers) < 1)
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: this model has no draft head (mtp.layers = 0)", part);
	if (!IS(head_kind, "logits")) {
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: a model without logits has no draft tokens", part);
		note(t, K_head_kind);
	}
	if (INT(tp) * INT(pp) > 1) {
		err_at(t->d, LOC(mtp_part), "mtp.part = %s: a draft head runs on one rank", part);
		note(t, INT(tp) > 1 ? K_tp : K_pp);
	}
	if (INT(ple_width) > 0 || INT(kv_shared) > 0 || INT(streams) > 1) {
		err_at(t->d, LOC(mtp_part),
		       "mtp.part = %s: layers of this model read outputs of other layers, which a "
		       "draft head does not have",
		       part);
		note(t, INT(ple_width) > 0   ? K_ple_width
		        : INT(kv_shared) > 0 ? K_kv_shared
		                             : K_streams);
	}
}

static void
check_streams(SpecTable *t)
{
	const bool several = INT(streams) > 1;

	if (INT(stream_active) >= INT(streams) && (several || INT(stream_active) > 0)) {
		err_at(t->d, LOC(stream_active),
		       "streams.active = %lld: must be less than streams.count = %lld",
		       (long long)INT(stream_active), (long long)INT(streams));
		note(t, K_streams);
	}
	if (ON(stream_gain) && (!several || INT(ple_width) == 0)) {
		err_at(t->d, LOC(stream_gain),
		       "streams.gain = true: needs per-layer embeddings and several streams");
		note(t, several ? K_ple_width : K_streams);
	}
	if (several && ON(layer_gain)) {
		err_at(t->d, LOC(layer_gain),
		       "residual.layer_gain = true: not supported with several streams");
		note(t, K_streams);
	}
	if ((several || INT(laurel_rank) > 0) &&
	    (!IS(residual_form, "serial") || IS(residual_from, "norm") || ON(norm_sum))) {
		err_at(t->d, several ? LOC(streams) : LOC(laurel_rank),
		       "%s: needs residual.form = serial, residual.from = stream and no norm.sum",
		       several ? "streams.count" : "residual.low_rank");
		note(t, ON(norm_sum)                ? K_norm_sum
		        : IS(residual_from, "norm") ? K_residual_from
		                                    : K_residual_form);
	}
	if (several && INT(pp) > 1) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: stages pass on one stream, this model has %lld",
		       (long long)INT(pp), (long long)INT(streams));
		note(t, K_streams);
	}
	if (INT(ple_width) > 0 && KNOWN(ple_vocab) && KNOWN(vocab_size) &&
	    INT(ple_vocab) > INT(vocab_size)) {
		err_at(t->d, LOC(ple_vocab), "per_layer.vocab = %lld: more than vocab_size = %lld",
		       (long long)INT(ple_vocab), (long long)INT(vocab_size));
		note(t, K_vocab_size);
	}
}

void
spec_check(SpecTable *t)
{
	check_name(t);
	check_heads(t);
	check_index(t);
	check_rope(t);
	check_kv(t);
	check_exact(t);
	check_mask(t);
	check_states(t);
	check_halves(t);
	check_moe(t);
	check_tokens(t);
	if (INT(tp) * INT(pp) > PLAN_MAX_RANKS) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: with parallel.tp = %lld that is more than %d ranks",
		       (long long)INT(pp), (long long)INT(tp), PLAN_MAX_RANKS);
		note(t, K_tp);
	}
	if (IS(residual_from, "norm") &&
	    (IS(norm_kind, "none") || (KNOWN(attn_in) && !ON(attn_in)) ||
	     (KNOWN(ffn_in) && !ON(ffn_in)))) {
		err_at(t->d, LOC(residual_from),
		       "residual.from = norm: needs a norm before attention and before the "
		       "feed-forward");
		note(t, IS(norm_kind, "none") ? K_norm_kind : ON(attn_in) ? K_ffn_in : K_attn_in);
	}
	if (ON(norm_sum) && (ON(attn_in) || ON(ffn_in) || ON(attn_out) || ON(ffn_out) ||
	                     IS(norm_kind, "none") || IS(residual_form, "parallel"))) {
		err_at(t->d, LOC(norm_sum),
		       "norm.sum = true: excludes other norms of the stream and residual.form = "
		       "parallel");
		note(t, ON(attn_in)             ? K_attn_in
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
		note(t, K_head_kind);
	}
	if (IS(residual_form, "parallel") && IS(residual_from, "norm")) {
		err_at(t->d, LOC(residual_form),
		       "residual.form = parallel: the only skip branch carries the stream, not a "
		       "norm");
		note(t, K_residual_from);
	}
	if (ON(plus_one) && KNOWN(norm_weight) && !ON(norm_weight)) {
		err_at(t->d, LOC(plus_one),
		       "norm.plus_one = true: these norms have no weight to add 1 to");
		note(t, K_norm_weight);
	}
	if ((IS(ffn_act, "swiglu_oai") || IS(ffn_act, "silu_limit")) && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_act), "ffn.act = %s needs ffn.kind = gated",
		       t->val[K_ffn_act].str);
		note(t, K_ffn_kind);
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
			note(t, K_n_layers);
		}
	}
	if (IS(ffn_act, "xielu") && !IS(ffn_kind, "plain")) {
		err_at(t->d, LOC(ffn_act), "ffn.act = xielu is for plain feed-forward layers");
		note(t, K_ffn_kind);
	}
	if (KNOWN(ffn_gate_scale) && t->val[K_ffn_gate_scale].num != 1 && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_gate_scale),
		       "ffn.gate_scale is for gated feed-forward layers");
		note(t, K_ffn_kind);
	}
	if ((t->val[K_ffn_limit].num > 0 || t->val[K_ffn_limits].n) && !IS(ffn_kind, "gated")) {
		err_at(t->d, t->val[K_ffn_limits].n ? LOC(ffn_limits) : LOC(ffn_limit),
		       "ffn.%s for gated feed-forward layers",
		       t->val[K_ffn_limits].n ? "limits are" : "limit is");
		note(t, K_ffn_kind);
	}
	if (t->val[K_ffn_sparsity].n && !IS(ffn_kind, "gated")) {
		err_at(t->d, LOC(ffn_sparsity), "ffn.sparsity is for gated feed-forward layers");
		note(t, K_ffn_kind);
	}
	check_streams(t);
	if (IS(head_kind, "labels") != (INT(labels) > 0)) {
		err_at(t->d, LOC(labels),
		       "head.labels = %lld: must be above 0 for head.kind = labels, and 0 for "
		       "other heads",
		       (long long)INT(labels));
		note(t, K_head_kind);
	}
	if (!IS(pool_kind, "none") && IS(head_kind, "logits")) {
		err_at(t->d, LOC(pool_kind),
		       "pool.kind: rows of logits are not pooled; head.kind = hidden outputs the "
		       "rows before the head");
		note(t, K_head_kind);
	}
	if (!IS(head_kind, "logits") && INT(tp) * INT(pp) > 1) {
		err_at(t->d, INT(tp) > 1 ? LOC(tp) : LOC(pp),
		       "%s: a model without logits runs on one rank",
		       INT(tp) > 1 ? "parallel.tp" : "parallel.pp");
		note(t, K_head_kind);
	}
	check_mtp(t);
	if (t->val[K_lora_path].str && INT(tp) * INT(pp) > 1) {
		err_at(t->d, LOC(lora_path),
		       "lora.path: adapters are merged into weights on one rank only");
		note(t, INT(tp) > 1 ? K_tp : K_pp);
	}
	if (INT(adapter_slots) > 0 && IS(att_kind, "mla") && IS(att_form, "expanded")) {
		err_at(t->d, LOC(adapter_slots),
		       "adapters.slots: not supported with attention.form = expanded, because "
		       "expanded keys and values would differ per adapter");
		note(t, K_att_form);
	}
	if (INT(pp) > 1 && (INT(ple_width) > 0 || INT(kv_shared) > 0)) {
		err_at(t->d, LOC(pp),
		       "parallel.pp = %lld: layers of this model read outputs of other layers "
		       "(per-layer embeddings, shared keys and values), so they run on one rank",
		       (long long)INT(pp));
		note(t, INT(ple_width) > 0 ? K_ple_width : K_kv_shared);
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
		note(t, K_ffn_kind);
	}
	if (ON(tied) && ON(row_norm)) {
		err_at(t->d, LOC(row_norm),
		       "head.row_norm changes the rows of the head: head.tied must be false");
		note(t, K_tied);
	}
	if (IS(position, "learned") && KNOWN(max_positions) &&
	    INT(limit_context) > INT(max_positions)) {
		err_at(t->d, LOC(limit_context),
		       "limits.context = %lld is beyond the %lld learned positions",
		       (long long)INT(limit_context), (long long)INT(max_positions));
		note(t, K_max_positions);
	}
	if (INT(exact_positions) > 0 && INT(limit_context) > INT(exact_positions)) {
		err_at(t->d, LOC(limit_context),
		       "limits.context = %lld: the description is exact only up to %lld positions "
		       "(exact_positions)",
		       (long long)INT(limit_context), (long long)INT(exact_positions));
		note(t, K_exact_positions);
	}
}
