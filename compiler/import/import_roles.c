/* Checks of the tensors that a description names: all roles, of each layer and outside of the
 * layers, with their shapes */
#include <stdio.h>
#include <string.h>

#include "compiler/import/import.h"
#include "compiler/import/import_check.h"
#include "formats/quant_format.h"

/* Return the first role of the layer that has the same column order (or factors). Such roles share
 * one permuted x. */
static const char *
first_with_same_columns(const ImportCheck *c, const struct Stored *own, int place,
                        const SourceTensor *t, bool order)
{
	const size_t bytes = (size_t)t->dim[t->n_dims - 1] * sizeof(float);

	for (const struct Stored *r = c->role; r < c->role + c->n_role && r != own; r++) {
		const SourceTensor *o = r->how[place].from;
		const float *a = o ? order ? o->order : o->factor : NULL,
		            *b = order ? t->order : t->factor;
		if (a && role_permutes(r->role) && o->dim[o->n_dims - 1] == t->dim[t->n_dims - 1] &&
		    memcmp(a, b, bytes) == 0)
			return r->role;
	}
	return own->role;
}

/* Return the rule of an expert role if each expert is a separate tensor without a transformation;
 * otherwise NULL. */
static const TensorRule *
expert_rule(const ImportCheck *c, const char *role)
{
	const TensorRule *r = rule_for(c->spec->tensor_rule, c->spec->n_tensor_rule, role);

	return r && !r->stacked && !r->transpose && !r->interleaved && !strchr(r->role, '+') ? r
	                                                                                     : NULL;
}

/* Classify the column order of a layer's experts. Blocks can be kept if each expert is a separate
 * tensor, and gate and up, which share x, have the same order. Rows of gate and up follow the
 * column order of down. */
static enum ExpertColumns
expert_columns(ImportCheck *c, const char *role, int layer)
{
	const Spec *s = c->spec;
	const bool down = strcmp(role, "e_down") == 0;
	enum ExpertColumns **of = &c->columns[down], *is;

	if (strcmp(role, "e_gate") != 0 && strcmp(role, "e_up") != 0 && !down)
		return EXPERTS_PLAIN;
	if (!*of)
		*of = NEW(c->s->a, enum ExpertColumns, s->n_layers + 1);
	is = &(*of)[layer];
	if (*is != EXPERTS_UNSEEN)
		return *is;
	const TensorRule *up = expert_rule(c, "e_up"),
	                 *gate = s->moe.plain ? up : expert_rule(c, "e_gate"),
	                 *rule[2] = { gate, up };
	if (down)
		rule[0] = rule[1] = expert_rule(c, "e_down");
	bool any = false, good = gate && up && rule[0];
	for (int e = 0; e < s->moe.n_experts && rule[0] && rule[1]; e++) {
		const SourceTensor *t[2];
		for (int i = 0; i < 2; i++) {
			t[i] = source_tensor(
			    c->s, rule_name_in(c->s->a, s, rule[i], layer, e, ".weight"));
			if (!t[i])
				return EXPERTS_PLAIN; /* other checks report the missing tensor */
			any |= t[i]->order || t[i]->factor;
			good = good && !t[i]->factor && t[i]->dtype != DT_F32;
		}
		good = good && (!t[0]->order) == (!t[1]->order) &&
		       t[0]->dim[t[0]->n_dims - 1] == t[1]->dim[t[1]->n_dims - 1] &&
		       (!t[0]->order ||
		        memcmp(t[0]->order, t[1]->order,
		               (size_t)t[0]->dim[t[0]->n_dims - 1] * sizeof(float)) == 0);
	}
	return *is = !any ? EXPERTS_PLAIN : good ? EXPERTS_ORDERED : EXPERTS_MIXED;
}

/* Mark the order and factor vectors of a matrix as used. */
static void
mark_column_vectors_used(ImportCheck *c, const SourceTensor *t)
{
	static const char *const what[] = { QUANT_FORMAT_ORDER, QUANT_FORMAT_FACTOR };
	const int n = (int)strlen(t->name) - (int)strlen("weight");

	for (int i = 0; n > 0 && strcmp(t->name + n, "weight") == 0 && i < 2; i++) {
		SourceTensor *v =
		    source_tensor(c->s, arena_printf(c->s->a, "%.*s%s", n, t->name, what[i]));
		if (v)
			v->used = true;
	}
}

static void
record_storage(ImportCheck *c, const char *role, int layer, const SourceTensor *t, bool vector)
{
	struct Stored *r = NULL;
	int n = c->spec->n_layers;

	for (size_t i = 0; i < c->n_role; i++)
		if (strcmp(c->role[i].role, role) == 0)
			r = &c->role[i];
	if (!r) {
		c->role =
		    arena_grow(c->s->a, c->role, &c->cap_role, c->n_role + 1, sizeof *c->role);
		r = &c->role[c->n_role++];
		*r = (struct Stored){ .role = role,
			              .how = NEW(c->s->a, StoredForm, n + 1),
			              .vector = vector };
		for (int l = 0; l <= n; l++)
			r->how[l].dtype = DT_NONE;
	}
	StoredForm *h = &r->how[layer < 0 ? n : layer];
	const enum ExpertColumns experts = expert_columns(c, role, layer);
	const bool plain =
	    experts == EXPERTS_MIXED ||
	    (experts == EXPERTS_PLAIN && (t->order || t->factor) && !role_permutes(role));
	const Dtype d = plain ? DT_F32 : t->dtype;
	if (h->dtype != DT_NONE && h->dtype != d)
		err_at(c->s->d, (Loc){ 0 },
		       "%s: %s is stored as %s, other parts of %s in the same layer as %s: llmc "
		       "needs one type for them",
		       c->s->path, t->name, dtype_text(d), role, dtype_text(h->dtype));
	h->dtype = d;
	h->from = t;
	if (role_permutes(role)) {
		h->order =
		    t->order ? first_with_same_columns(c, r, layer < 0 ? n : layer, t, true) : NULL;
		h->factor = t->factor
		                ? first_with_same_columns(c, r, layer < 0 ? n : layer, t, false)
		                : NULL;
	}
	if (experts == EXPERTS_ORDERED)
		h->order = strcmp(role, "e_down") == 0 ? "e_down"
		           : c->spec->moe.plain        ? "e_up"
		                                       : "e_gate";
	mark_column_vectors_used(c, t);
	int64_t elems = 1;
	for (int i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(elems, t->dim[i], &elems))
			elems = INT64_MAX / 4096;
	if (__builtin_add_overflow(r->elems, elems, &r->elems))
		r->elems = INT64_MAX;
}

static const char *
shape_text(Arena *a, const int64_t *dim, int n)
{
	const char *out = "";

	for (int i = 0; i < n; i++)
		out = arena_printf(a, "%s%s%lld", out, i ? ", " : "", (long long)dim[i]);
	return arena_printf(a, "[%s]", out);
}

/* Return whether the last dimensions of the tensor, more than one of them, multiply to this
 * width. */
static bool
ends_with_dims(const SourceTensor *t, int64_t width)
{
	int64_t n = 1;
	int d = t->n_dims;

	while (d > 1 && n < width)
		if (__builtin_mul_overflow(n, t->dim[--d], &n))
			return false;
	return n == width;
}

/* Check one tensor, which has the rows of all roles stacked in it. cols 0: a vector. A stack of
 * matrices (experts, heads) has `units` of them; in the file, units may be a separate first
 * dimension. */
static void
tensor(ImportCheck *c, const TensorRule *r, const char *role, int layer, int expert, int64_t rows,
       int64_t cols, int64_t units, const char *suffix)
{
	const char *name = rule_name_in(c->s->a, c->spec, r, layer, expert, suffix);
	SourceTensor *t = source_tensor(c->s, name);

	if (!t) {
		if (++c->n_missing <= 8)
			err_at(c->s->d, (Loc){ 0 }, "%s: tensor %s is missing (role %s)",
			       c->s->path, name, role);
		return;
	}
	t->used = true;
	int64_t want = rows * (cols ? cols : 1), have = 1,
	        last = t->n_dims ? t->dim[t->n_dims - 1] : 1;
	for (int i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(have, t->dim[i], &have))
			have = -1;
	/* The columns of an untransposed matrix are its last dimension, those of a convolution
	 * several dimensions. Vectors may have additional dimensions of 1. */
	int64_t each = rows / units, width = r->transpose ? each : cols;
	bool stack = units > 1 && t->n_dims == 3;
	if (have != want ||
	    (cols && last != width && !ends_with_dims(t, width) &&
	     !(rows == 1 && t->n_dims == 1)) ||
	    (cols && stack && t->dim[0] != units)) {
		int64_t dims[3] = { units, r->transpose ? cols : each, width };
		bool flat = !stack && !r->transpose;
		if (flat)
			dims[1] = rows;
		err_at(c->s->d, (Loc){ 0 }, "%s: tensor %s has the shape %s, %s is expected",
		       c->s->path, name, shape_text(c->s->a, t->dim, t->n_dims),
		       shape_text(c->s->a, dims + (flat || units == 1),
		                  !cols                ? 1
		                  : flat || units == 1 ? 2
		                                       : 3));
		return;
	}
	if (t->dtype == DT_NONE || t->dtype == DT_I32 || t->dtype == DT_I64) {
		const char *type = t->dtype == DT_NONE ? t->dtype_name : dtype_text(t->dtype);
		const bool sums = strcmp(type, "Q8_K") == 0 || strcmp(type, "Q8_1") == 0;
		err_at(c->s->d, (Loc){ 0 }, "%s: tensor %s is stored as %s, %s", c->s->path, name,
		       type,
		       sums ? "which ggml uses for activations, not for weights: the file was not "
		              "made by its tools"
		            : "which llmc does not support");
		return;
	}
	bool bias = strcmp(suffix, ".bias") == 0;
	for (const char *p = r->role;;) {
		size_t k = strcspn(p, "+");
		const char *part = arena_strndup(c->s->a, p, k);
		record_storage(c, bias ? arena_printf(c->s->a, "%s.bias", part) : part, layer, t,
		               cols == 0);
		if (!p[k])
			break;
		p += k + 1;
	}
}

static const Role *
role_named(const Role *role, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(role[i].name, name) == 0)
			return &role[i];
	return NULL;
}

/* Check all roles of a layer, or all roles outside of the layers. Each tensor is checked once. */
static void
check_roles(ImportCheck *c, const RoleList *list, int layer, int n_experts)
{
	const Role *role = list->role;
	const int n = list->n;
	const Spec *s = c->spec;

	for (int i = 0; i < n; i++) {
		const TensorRule *r = rule_for(s->tensor_rule, s->n_tensor_rule, role[i].name);
		int64_t rows = 0;
		bool first = true;
		if (!r) {
			err_at(
			    c->s->d, (Loc){ 0 },
			    "%s: family %s names no tensor for the role %s, which this model needs",
			    c->s->path, s->family, role[i].name);
			continue;
		}
		/* a stacked tensor is checked at the first of its roles, with the rows of all
		 * roles */
		for (const char *p = r->role;;) {
			size_t k = strcspn(p, "+");
			const Role *part = role_named(role, n, arena_strndup(c->s->a, p, k));
			if (part)
				rows += part->rows;
			if (part && part < &role[i])
				first = false;
			if (!p[k])
				break;
			p += k + 1;
		}
		if (!first)
			continue;
		bool each = role[i].name[0] == 'e' && role[i].name[1] == '_';
		const char *suffix = each && !role[i].cols ? ".bias" : ".weight";
		if (each && !r->stacked) {
			for (int e = 0; e < n_experts; e++)
				tensor(c, r, role[i].name, layer, e, rows, role[i].cols, 1, suffix);
		} else {
			int64_t units = each ? n_experts
			                : r->per_head && !strchr(r->role, '+')
			                    ? spec_heads(s, layer).n_heads
			                    : 1;
			tensor(c, r, role[i].name, layer, -1, each ? rows * n_experts : rows,
			       role[i].cols, units, suffix);
		}
		if (role[i].bias)
			tensor(c, r, role[i].name, layer, -1, rows, 0, 1, ".bias");
	}
}

/* Check a bias whose length differs from that of the vector of its role. */
static void
bias_role(ImportCheck *c, const char *role, int layer, int64_t rows)
{
	const TensorRule *r = rule_for(c->spec->tensor_rule, c->spec->n_tensor_rule, role);

	if (r)
		tensor(c, r, role, layer, -1, rows, 0, 1, ".bias");
}

static void
scan_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden;

	int64_t inner = (int64_t)s->ssm.heads * s->ssm.dim, row = spec_ssm_row(s);
	ROLE("ssm_z", inner, H, s->ssm.bias);
	ROLE("ssm_x", row, H, s->ssm.bias);
	ROLE("ssm_conv", row * s->ssm.taps, 0, false);
	if (s->ssm.conv_bias)
		bias_role(c, "ssm_conv", l, row);
	if (s->ssm.dt_rank) {
		int64_t rows = s->ssm.state, low = s->ssm.dt_rank;
		ROLE("ssm_low", low, inner, false);
		ROLE("ssm_b", rows, inner, false);
		ROLE("ssm_c", rows, inner, false);
		if (s->ssm.low_norm == LOW_WEIGHT) {
			ROLE("ssm_low_norm", low, 0, false);
			ROLE("ssm_b_norm", rows, 0, false);
			ROLE("ssm_c_norm", rows, 0, false);
		}
		ROLE("ssm_dt", inner, low, false);
	} else {
		ROLE("ssm_dt", s->ssm.heads, H, s->ssm.bias);
	}
	int64_t own = s->ssm.dt_rank ? inner : s->ssm.heads;
	ROLE("ssm_rate", s->ssm.dt_rank ? inner * s->ssm.state : own, 0, false);
	ROLE("ssm_dt_bias", own, 0, false);
	ROLE("ssm_skip", own, 0, false);
	if (s->ssm.norm != SSM_NO_NORM)
		ROLE("ssm_norm", inner, 0, false);
	ROLE("ssm_o", H, inner, s->ssm.bias);
}

static void
delta_rule_roles(ImportCheck *c, RoleList *list)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden;

	int64_t q = (int64_t)s->linear.k_heads * s->linear.k_dim,
	        v = (int64_t)s->linear.v_heads * s->linear.v_dim;
	ROLE("lin_q", q, H, false);
	ROLE("lin_k", q, H, false);
	ROLE("lin_v", v, H, false);
	int64_t decays = s->linear.v_heads * (int64_t)(s->linear.per_channel ? s->linear.k_dim : 1),
	        a = s->linear.decay_rank, z = s->linear.gate_rank;
	if (z)
		ROLE("lin_z_low", z, H, false);
	ROLE("lin_z", v, z ? z : H, false);
	ROLE("lin_b", s->linear.v_heads, H, false);
	if (a)
		ROLE("lin_a_low", a, H, false);
	ROLE("lin_a", decays, a ? a : H, false);
	ROLE("lin_conv_q", q * s->linear.taps, 0, false);
	ROLE("lin_conv_k", q * s->linear.taps, 0, false);
	ROLE("lin_conv_v", v * s->linear.taps, 0, false);
	ROLE("lin_rate", s->linear.v_heads, 0, false);
	ROLE("lin_dt", decays, 0, false);
	ROLE("lin_norm", s->linear.v_dim, 0, false);
	ROLE("lin_o", H, v, false);
}

static void
conv_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden;

	ROLE("conv_b", H, H, s->conv.bias);
	ROLE("conv_c", H, H, s->conv.bias);
	ROLE("conv_x", H, H, s->conv.bias);
	ROLE("conv_w", H * s->conv.taps, 0, false);
	if (s->conv.bias)
		bias_role(c, "conv_w", l, H);
	ROLE("conv_o", H, H, s->conv.bias);
}

static void
shared_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const HeadShape shape = spec_heads(s, l);
	const int64_t H = s->hidden, heads = shape.n_heads, D = shape.head_dim;

	int64_t F = s->ffn.width, rank = s->shared.rank, qkv = s->shared.qkv_rank,
	        kv = shape.n_kv_heads * D;
	if (spec_shared_layer(s, l) == l) {
		ROLE("shared_norm", 2 * H, 0, false);
		ROLE("shared_q", heads * D, 2 * H, false);
		ROLE("shared_k", kv, 2 * H, false);
		ROLE("shared_v", kv, 2 * H, false);
		ROLE("shared_o", H, heads * D, false);
		ROLE("shared_ffn_norm", H, 0, false);
		ROLE("shared_gate", F, H, false);
		ROLE("shared_up", F, H, false);
		ROLE("shared_down", H, F, false);
	}
	if (qkv) {
		ROLE("shared_q_a", qkv, 2 * H, false);
		ROLE("shared_q_b", heads * D, qkv, false);
		ROLE("shared_k_a", qkv, 2 * H, false);
		ROLE("shared_k_b", kv, qkv, false);
		ROLE("shared_v_a", qkv, 2 * H, false);
		ROLE("shared_v_b", kv, qkv, false);
	}
	if (rank) {
		ROLE("shared_ffn_a", rank, H, false);
		ROLE("shared_gate_b", F, rank, false);
		ROLE("shared_up_b", F, rank, false);
	}
	ROLE("from_shared", H, H, false);
}

static void
mla_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const HeadShape shape = spec_heads(s, l);
	const int64_t H = s->hidden, heads = shape.n_heads, D = shape.head_dim;
	const bool ab = s->attention.bias;

	if (s->attention.q_rank) {
		ROLE("q_a", s->attention.q_rank, H, ab);
		ROLE("q_a_norm", s->attention.q_rank, 0, false);
		ROLE("q_b", heads * D, s->attention.q_rank, false);
	} else {
		ROLE("q", heads * D, H, false);
	}
	ROLE("kv_a", s->attention.kv_rank + s->attention.rope_dim, H, ab);
	ROLE("kv_a_norm", s->attention.kv_rank, 0, false);
	if (s->attention.index.top_k && s->attention.index.layer_in[l]) {
		ROLE("index_q", (int64_t)s->attention.index.heads * s->attention.index.dim,
		     s->attention.q_rank, false);
		ROLE("index_k", s->attention.index.dim, H, false);
		ROLE("index_k_norm", s->attention.index.dim, 0, true);
		ROLE("index_w", s->attention.index.heads, H, false);
	}
	ROLE("k_b", heads * s->attention.nope_dim, s->attention.kv_rank, false);
	ROLE("v_b", heads * s->attention.v_dim, s->attention.kv_rank, false);
}

static void
gqa_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const HeadShape shape = spec_heads(s, l);
	const int64_t H = spec_attention_in(s, l), heads = shape.n_heads, D = shape.head_dim;
	const bool ab = s->attention.bias, nb = s->norm.bias, owner = spec_kv_layer(s, l) == l;

	ROLE("q", heads * D, H, ab);
	if (owner)
		ROLE("k", shape.n_kv_heads * D, H, ab);
	if (owner && !s->attention.k_is_v[l])
		ROLE("v", shape.n_kv_heads * (int64_t)shape.v_dim, H, ab);
	const QkNorm qk = s->attention.qk_norm;
	bool all = qk == QK_WHOLE || qk == QK_LAYER_EACH, biased = qk == QK_LAYER && nb;
	if (qk != QK_NONE && qk != QK_UNIT && s->attention.qk_in[l]) {
		ROLE("q_norm", all ? heads * D : D, 0, biased);
		if (owner)
			ROLE("k_norm", all ? shape.n_kv_heads * D : D, 0, biased);
	}
	if (s->attention.sinks && s->attention.sink_in[l])
		ROLE("sinks", heads, 0, false);
	if (s->attention.out_gate != GATE_NONE)
		ROLE("q_gate", s->attention.out_gate == GATE_HEAD ? heads : heads * shape.v_dim, H,
		     s->attention.out_gate_bias);
}

static void
moe_roles(ImportCheck *c, RoleList *list)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden;
	const bool nb = s->norm.bias;
	int64_t W;

	W = s->moe.width;
	if (s->moe.router_norm)
		ROLE("router_norm", H, 0, false);
	if (s->moe.expert_gain)
		ROLE("expert_gain", s->moe.n_experts, 0, false);
	if (s->moe.parallel) {
		ROLE("dense_out_norm", H, 0, nb);
		ROLE("moe_norm", H, 0, nb);
		ROLE("moe_out_norm", H, 0, nb);
	}
	ROLE("router", s->moe.n_experts, H, s->moe.router_bias);
	if (s->moe.choice_bias)
		ROLE("router_bias", s->moe.n_experts, 0, false);
	int64_t row = s->moe.latent ? s->moe.latent : H;
	if (s->moe.latent) {
		ROLE("moe_in", row, H, s->ffn.bias);
		ROLE("moe_out", H, row, s->ffn.bias);
	}
	if (!s->moe.plain)
		ROLE("e_gate", W, row, false);
	ROLE("e_up", W, row, false);
	ROLE("e_down", row, W, false);
	if (s->moe.bias) {
		ROLE("e_gate_b", W, 0, false);
		ROLE("e_up_b", W, 0, false);
		ROLE("e_down_b", H, 0, false);
	}
	W = s->moe.shared_width;
	if (W) {
		if (!s->moe.plain)
			ROLE("s_gate", W, H, s->ffn.bias);
		ROLE("s_up", W, H, s->ffn.bias);
		ROLE("s_down", H, W, s->ffn.bias);
	}
	if (W && s->moe.shared_gate)
		ROLE("s_mix", 1, H, false);
}

static void
ffn_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden, W = spec_ffn_width(s, l);

	if (s->ffn.gated)
		ROLE("gate", W, H, s->ffn.bias);
	ROLE("up", W, H, s->ffn.bias);
	ROLE("down", H, W, s->ffn.down_bias);
	if (s->ffn.act == ACT_XIELU) {
		ROLE("act_p", 1, 0, false);
		ROLE("act_n", 1, 0, false);
	}
}

static void
stream_roles(ImportCheck *c, RoleList *list, int l)
{
	const Spec *s = c->spec;
	const int64_t H = s->hidden;
	const bool nb = s->norm.bias;

	if (s->ple_width) {
		ROLE("ple_gate", s->ple_width, H, false);
		ROLE("ple_out", H, s->ple_width, false);
		ROLE("ple_out_norm", H, 0, nb);
	}
	if (s->residual.layer_gain)
		ROLE("layer_gain", 1, 0, false);
	if (s->laurel_rank && spec_has_block(s, l)) {
		ROLE("laurel_a", s->laurel_rank, H, false);
		ROLE("laurel_b", H, s->laurel_rank, false);
		ROLE("laurel_norm", H, 0, nb);
	}
	if (s->streams.count > 1) {
		int64_t S = s->streams.count;
		ROLE("stream_norm", H, 0, false);
		ROLE("stream_router", S, H, false);
		ROLE("stream_predict", S * S, S, false);
		ROLE("stream_correct", S, S, false);
		if (s->streams.gain)
			ROLE("stream_gain", H, 0, false);
	}
}

void
import_layer_roles(ImportCheck *c, int l)
{
	const Spec *s = c->spec;
	const HeadShape shape = spec_heads(s, l);
	const int64_t H = s->hidden;
	const bool sparse = s->moe.layer_in[l], nb = s->norm.bias,
	           normed = s->norm.kind != NORM_NONE && s->norm.weight;
	const bool in = normed && s->norm.in_layers[l], out = normed && s->norm.out_layers[l];
	RoleList roles_of = { .n = 0 }, *list = &roles_of;

	if (((s->norm.attn_in && s->norm.attn_in_layers[l]) || s->norm.sum) && in &&
	    spec_has_block(s, l))
		ROLE("attn_norm", H, 0, nb);
	if (s->mtp.part == MTP_DRAFT && l == 0)
		ROLE("mtp_hnorm", H, 0, nb);
	if (spec_ssm(s, l))
		scan_roles(c, list, l);
	if (spec_linear(s, l))
		delta_rule_roles(c, list);
	else if (spec_conv(s, l))
		conv_roles(c, list, l);
	else if (spec_shared(s, l))
		shared_roles(c, list, l);
	else if (spec_attends(s, l) && s->attention.kind == ATT_MLA)
		mla_roles(c, list, l);
	else if (spec_attends(s, l))
		gqa_roles(c, list, l);
	if (spec_attends(s, l) && !spec_shared(s, l))
		ROLE("o", H, (int64_t)shape.n_heads * shape.v_dim, s->attention.o_bias);
	if (s->norm.attn_out && out && spec_has_block(s, l))
		ROLE("attn_out_norm", H, 0, nb);
	if ((s->norm.ffn_in || s->norm.sum) && in && spec_has_ffn(s, l))
		ROLE("ffn_norm", H, 0, nb);
	if (sparse)
		moe_roles(c, list);
	if (spec_has_ffn(s, l) && (!sparse || s->moe.parallel))
		ffn_roles(c, list, l);
	if (s->norm.ffn_out && out && spec_has_ffn(s, l))
		ROLE("ffn_out_norm", H, 0, nb);
	stream_roles(c, list, l);
	if (s->residual.block_scale) {
		ROLE("attn_scale", H, 0, false);
		ROLE("ffn_scale", H, 0, false);
	}
	check_roles(c, list, l, s->moe.n_experts);
}

void
import_outer_roles(ImportCheck *c)
{
	const Spec *s = c->spec;
	int64_t H = s->hidden;
	RoleList outside = { .n = 0 }, *list = &outside;

	if (s->vision.part == VISION_TOWER)
		import_tower_roles(s, list);
	else
		ROLE("embed", s->embed.rows, s->embed.width, false);
	if (spec_narrow(s)) {
		ROLE("embed_in", H, s->embed.width, false);
		ROLE("embed_out", s->embed.width, H, false);
	}
	if (s->position == POS_LEARNED)
		ROLE("pos_embed", s->max_positions + s->pos_offset, H, false);
	if (s->embed.types)
		ROLE("type_embed", s->embed.types, H, false);
	if (s->norm.embed && s->norm.weight)
		ROLE("embed_norm", H, 0, s->norm.bias);
	if (s->norm.final && s->norm.kind != NORM_NONE && s->norm.weight)
		ROLE("final_norm", H, 0, s->norm.bias);
	if (s->ple_width) {
		ROLE("ple_embed", s->ple_vocab ? s->ple_vocab : s->vocab_size,
		     s->n_layers * (int64_t)s->ple_width, false);
		ROLE("ple_proj", s->n_layers * (int64_t)s->ple_width, H, false);
		ROLE("ple_norm", s->ple_width, 0, false);
	}
	if (s->streams.count > 1) {
		ROLE("e_stream_in", H, H, false);
		ROLE("e_stream_out", H, H, false);
	}
	int64_t width = H;
	for (int i = 0; i < s->head.n_dense; width = s->head.dense[i++]) {
		static const char *const dense[] = { "dense_1", "dense_2", "dense_3" };
		ROLE(dense[i], s->head.dense[i], width, s->head.dense_bias);
	}
	if (s->head.n_dense && s->head.dense_norm)
		ROLE("dense_norm", H, 0, s->norm.bias);
	if (s->head.kind == LLMC_OUTPUT_LABELS)
		ROLE("labels", s->head.labels, width, s->head.bias);
	if (!s->head.tied && s->head.kind == LLMC_OUTPUT_LOGITS)
		ROLE("head", spec_head_rows(s), s->embed.width, s->head.bias);
	if (s->mtp.part == MTP_DRAFT)
		ROLE("mtp_fc", H, s->mtp.width, false);
	import_draft_roles(c);
	if (s->rope[0].factors_tensor[1]) {
		ROLE("rope_factors_long", s->rope[0].dims / 2, 0, false);
		ROLE("rope_factors_short", s->rope[0].dims / 2, 0, false);
	} else if (s->rope[0].factors_tensor[0]) {
		/* If windowed layers have their own table, the tensor has the length of the longer
		 * table, and this table uses its first elements. */
		const SourceTensor *t = source_tensor(c->s, s->rope[0].factors_tensor[0]);
		bool longer = t && s->n_rope > 1 && t->n_dims == 1 &&
		              t->dim[0] == s->rope[1].dims / 2 && s->rope[1].dims > s->rope[0].dims;
		ROLE("rope_factors", s->rope[longer].dims / 2, 0, false);
	}
	check_roles(c, list, -1, s->streams.count - 1);
	for (int i = 0; s->vision.part == VISION_TOWER && i < s->vision.n_deep; i++) {
		list->n = 0;
		import_deep_roles(s, list);
		check_roles(c, list, i, 0);
	}
}
