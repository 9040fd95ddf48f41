/* Rules between the keys of recurrent, shared and MoE blocks */
#include <stdlib.h>
#include <string.h>

#include "compiler/spec/spec_check_internal.h"
#include "compiler/spec/spec_table.h"

/* Check sizes that must be set if the key `layers` selects any layer. */
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
		spec_check_note(t, K_ssm_heads);
	}
	if (inner > 0 && pieces > 0 && inner % pieces) {
		err_at(t->d, LOC(ssm_norm_groups),
		       "ssm.norm_groups = %lld does not divide ssm.heads * ssm.dim = %lld",
		       (long long)pieces, (long long)inner);
		spec_check_note(t, K_ssm_heads);
	}
	static const SpecKey heads_only[] = { K_ssm_groups, K_ssm_dt_min, K_ssm_dt_max,
		                              K_ssm_in_scale, K_ssm_gains };
	if (INT(ssm_dt_rank) > 0 && heads > 1) {
		err_at(t->d, LOC(ssm_heads),
		       "ssm.heads = %lld: with ssm.dt_rank there is one head of ssm.dim channels",
		       (long long)heads);
		spec_check_note(t, K_ssm_dt_rank);
	}
	for (size_t i = 0; INT(ssm_dt_rank) > 0 && i < sizeof heads_only / sizeof *heads_only;
	     i++) {
		const SpecVal *v = &t->val[heads_only[i]];
		if (v->given &&
		    (v->n ||
		     v->num !=
		         strtod(
		             spec_key[heads_only[i]].def,
		             NULL))) { /* a resolved description sets keys to their defaults, too */
			err_at(t->d, v->loc,
			       "%s is for scans with one rate per head, not for those with "
			       "ssm.dt_rank",
			       spec_key[heads_only[i]].path);
			spec_check_note(t, K_ssm_dt_rank);
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
		spec_check_note(t, K_ssm_norm_groups);
	}
	if (most > 0 && least >= most) {
		err_at(t->d, LOC(ssm_dt_max), "ssm.dt_max = %g is not above ssm.dt_min = %g", most,
		       least);
		spec_check_note(t, K_ssm_dt_min);
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
		                         K_ffn_down_bias,
		                         K_ffn_gate_scale,
		                         K_ffn_out_scale };
	const uint8_t *in = t->val[K_shared_layers].layers, *scans = t->val[K_ssm_layers].layers;
	int n = 0;

	for (int l = 0; in && l < (int)INT(n_layers); l++) {
		n += in[l] != 0;
		if (in[l] && (!scans || !scans[l] || ON(ssm_parallel))) {
			err_at(t->d, LOC(shared_layers),
			       "layer %d is in shared.layers: a shared block needs a selective "
			       "scan without attention in parallel",
			       l);
			spec_check_note(t, ON(ssm_parallel) ? K_ssm_parallel : K_ssm_layers);
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
		spec_check_note(t, K_shared_layers);
	}
	for (size_t i = 0; n && i < sizeof plain / sizeof *plain; i++) {
		const SpecVal *v = &t->val[plain[i]];
		const SpecKeyInfo *key = &spec_key[plain[i]];
		if (!v->known ||
		    (v->str ? strcmp(v->str, key->def) == 0 : v->num == atof(key->def)))
			continue;
		err_at(t->d, v->loc, "%s = %s: not supported in shared blocks (shared.layers)",
		       key->path, spec_val_text(t, plain[i], t->a));
		spec_check_note(t, K_shared_layers);
	}
	if (n && (INT(moe_latent) > 0 || IS(residual_form, "parallel")))
		err_at(t->d, LOC(shared_layers),
		       "shared.layers: not supported with moe.latent or residual.form = parallel");
}

void
spec_check_states(SpecTable *t)
{
	static const SpecKey sizes[] = { K_lin_k_heads, K_lin_v_heads, K_lin_k_dim, K_lin_v_dim },
	                     ssm[] = { K_ssm_heads, K_ssm_dim, K_ssm_state };
	int64_t k = INT(lin_k_heads), v = INT(lin_v_heads);
	int n[N_RECURRENT_KEY] = { 0 }, all = 0;
	SpecKey which = K_linear_layers;

	for (int l = 0; l < (int)INT(n_layers); l++) {
		int first = -1;
		for (int i = 0; i < N_RECURRENT_KEY; i++) {
			const uint8_t *in = t->val[spec_recurrent_key[i]].layers;
			if (!in || !in[l])
				continue;
			n[i]++;
			all++;
			which = spec_recurrent_key[i];
			if (first >= 0) {
				err_at(t->d, t->val[spec_recurrent_key[i]].loc,
				       "layer %d is in %s and in %s", l,
				       spec_key[spec_recurrent_key[i]].path,
				       spec_key[spec_recurrent_key[first]].path);
				spec_check_note(t, spec_recurrent_key[first]);
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
		spec_check_note(t, K_lin_k_heads);
	}
	if (n[2])
		check_ssm(t);
	if (IS(mask, "prefix")) {
		err_at(t->d, t->val[which].loc,
		       "%s: recurrent layers are causal, mask prefix is not", spec_key[which].path);
		spec_check_note(t, K_mask);
	}
}

void
spec_check_halves(SpecTable *t)
{
	const uint8_t *first = t->val[K_att_layers].layers, *second = t->val[K_ffn_layers].layers;

	for (int l = 0; first && second && l < (int)INT(n_layers); l++) {
		if (!first[l] && !second[l]) {
			err_at(t->d, LOC(ffn_layers),
			       "layer %d is neither in attention.layers nor in ffn.layers", l);
			spec_check_note(t, K_att_layers);
			return;
		}
		if ((!first[l] || !second[l]) && IS(residual_form, "parallel")) {
			const SpecKey key = first[l] ? K_ffn_layers : K_att_layers;
			err_at(t->d, t->val[key].loc,
			       "%s: layer %d has one block, and residual.form = parallel needs two",
			       spec_key[key].path, l);
			spec_check_note(t, K_residual_form);
			return;
		}
		for (int i = 0; !first[l] && i < N_RECURRENT_KEY; i++)
			if (t->val[spec_recurrent_key[i]].layers &&
			    t->val[spec_recurrent_key[i]].layers[l]) {
				err_at(t->d, t->val[spec_recurrent_key[i]].loc,
				       "layer %d is in %s and not in attention.layers", l,
				       spec_key[spec_recurrent_key[i]].path);
				spec_check_note(t, K_att_layers);
				return;
			}
	}
}

void
spec_check_moe(SpecTable *t)
{
	int64_t e = INT(n_experts), k = INT(top_k), g = INT(groups), keep = INT(keep_groups);
	int n_layers = (int)INT(n_layers), dense = 0;
	const uint8_t *in = t->val[K_moe_layers].layers;

	if (!KNOWN(n_experts))
		return;
	const uint8_t *fed = t->val[K_ffn_layers].layers;
	for (int l = 0; l < n_layers; l++)
		dense += (!fed || fed[l]) && !(e > 0 && in && in[l]);
	if (ON(moe_parallel) && e > 0)
		dense = n_layers;
	if (dense && KNOWN(ffn_width) && INT(ffn_width) < 1) {
		err_at(t->d, t->val[K_ffn_width].given ? LOC(ffn_width) : t->file,
		       "ffn.width is missing: %d of %d layers are dense", dense, n_layers);
		if (e > 0)
			spec_check_note(t, K_moe_layers);
	}
	if (e == 0)
		return;
	if (KNOWN(moe_width) && INT(moe_width) < 1)
		err_at(t->d, LOC(n_experts), "moe.width is missing: there are %lld experts",
		       (long long)e);
	if (IS(moe_kind, "plain") && !IS(moe_act, "relu2")) {
		err_at(t->d, LOC(moe_act), "moe.act = %s: plain experts support only relu2",
		       t->val[K_moe_act].str);
		spec_check_note(t, K_moe_kind);
	}
	if (IS(moe_kind, "plain") && (ON(expert_bias) || INT(tp) > 1)) {
		SpecKey key = ON(expert_bias) ? K_expert_bias : K_tp;
		err_at(t->d, t->val[key].loc, "%s: plain experts %s", spec_key[key].path,
		       ON(expert_bias) ? "have no bias" : "run on one rank");
		spec_check_note(t, K_moe_kind);
	}
	if (INT(moe_latent) > 0 && INT(tp) > 1) {
		err_at(
		    t->d, LOC(tp),
		    "parallel.tp = %lld: experts with a latent size (moe.latent) run on one rank",
		    (long long)INT(tp));
		spec_check_note(t, K_moe_latent);
	}
	if (KNOWN(top_k) && (k < 1 || k > e)) {
		err_at(t->d, t->val[K_top_k].given ? LOC(top_k) : LOC(n_experts),
		       "moe.top_k = %lld: 1 to moe.n_experts = %lld is expected", (long long)k,
		       (long long)e);
		spec_check_note(t, K_n_experts);
	}
	if (IS(moe_weights_on, "input") && (k != 1 || ON(expert_gain))) {
		err_at(t->d, LOC(moe_weights_on),
		       "moe.weights_on = input: needs moe.top_k = 1 and no moe.expert_gain");
		spec_check_note(t, k != 1 ? K_top_k : K_expert_gain);
	}
	if (IS(moe_score, "sparsemixer") && (ON(renorm) || g > 1 || ON(choice_bias))) {
		SpecKey key = ON(renorm) ? K_renorm : g > 1 ? K_groups : K_choice_bias;
		err_at(t->d, t->val[key].loc,
		       "%s: not supported with sparsemixer, which uses only the logits and does "
		       "not renormalise",
		       spec_key[key].path);
		spec_check_note(t, K_moe_score);
	}
	if (g < 2)
		return;
	if (e % g) {
		err_at(t->d, LOC(groups), "moe.groups = %lld does not divide moe.n_experts = %lld",
		       (long long)g, (long long)e);
		spec_check_note(t, K_n_experts);
		return;
	}
	if (keep < 1 || keep > g) {
		err_at(t->d, t->val[K_keep_groups].given ? LOC(keep_groups) : LOC(groups),
		       "moe.keep_groups = %lld: 1 to moe.groups = %lld is expected",
		       (long long)keep, (long long)g);
		spec_check_note(t, K_groups);
	} else if (k > keep * (e / g)) {
		err_at(t->d, LOC(top_k),
		       "moe.top_k = %lld is more than the %lld experts of the groups that are kept",
		       (long long)k, (long long)(keep * (e / g)));
		spec_check_note(t, K_keep_groups);
	}
	if (IS(group_score, "top2") && e / g < 2) {
		err_at(t->d, LOC(group_score),
		       "moe.group_score = top2 needs groups of two experts or more");
		spec_check_note(t, K_groups);
	}
}
