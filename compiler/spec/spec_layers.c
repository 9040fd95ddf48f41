/* Properties of single layers, and lookups of keys, in a filled Spec */
#include <string.h>

#include "compiler/spec/spec.h"
#include "compiler/spec/spec_table.h"

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
	       (!spec_ssm(s, layer) || s->ssm.parallel || spec_shared(s, layer));
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
		/* rules of "q.bias" itself come before those of q */
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
