/* Sources of tensors: the rule of a role, the role's rows in the checkpoint, and storage types */
#include <inttypes.h>
#include <string.h>

#include "compiler/build/build_tensor.h"
#include "compiler/graph.h"
#include "compiler/spec/family.h"

enum { MAX_STACKED = 4 };

const TensorRule *
source_rule_in(const TensorRule *rule, int n_rule, const char *role, int *part)
{
	size_t n = strlen(role);

	*part = 0;
	for (int i = 0; i < n_rule; i++)
		if (strcmp(rule[i].role, role) == 0)
			return &rule[i];
	for (int i = 0; i < n_rule; i++) {
		const char *at = rule[i].role;
		for (int k = 0; at; k++) {
			size_t len = strcspn(at, "+");
			if (len == n && memcmp(at, role, n) == 0) {
				*part = k;
				return &rule[i];
			}
			at = at[len] ? at + len + 1 : NULL;
		}
	}
	return NULL;
}

/* Return the number of rows of a role that checkpoints may stack; 0 for other roles. */
static int64_t
source_role_rows(const Spec *s, int layer, const char *role, size_t n)
{
	const HeadShape h = spec_heads(s, layer);
	int64_t heads = h.n_heads, dim = h.head_dim;
	const struct {
		const char *role;
		int64_t rows;
	} known[] = {
		{ "q", heads * dim },
		{ "k", h.n_kv_heads * dim },
		{ "v", h.n_kv_heads * (int64_t)h.v_dim },
		{ "q_gate", s->attention.out_gate == GATE_HEAD ? heads : heads * h.v_dim },
		{ "lin_q", (int64_t)s->linear.k_heads * s->linear.k_dim },
		{ "lin_k", (int64_t)s->linear.k_heads * s->linear.k_dim },
		{ "lin_v", (int64_t)s->linear.v_heads * s->linear.v_dim },
		{ "lin_z", (int64_t)s->linear.v_heads * s->linear.v_dim },
		{ "lin_a", s->linear.v_heads },
		{ "lin_b", s->linear.v_heads },
		{ "lin_conv_q", (int64_t)s->linear.k_heads * s->linear.k_dim * s->linear.taps },
		{ "lin_conv_k", (int64_t)s->linear.k_heads * s->linear.k_dim * s->linear.taps },
		{ "lin_conv_v", (int64_t)s->linear.v_heads * s->linear.v_dim * s->linear.taps },
		{ "ssm_z", (int64_t)s->ssm.heads * s->ssm.dim },
		{ "ssm_x", spec_ssm_row(s) },
		{ "ssm_dt", s->ssm.heads },
		{ "ssm_low", s->ssm.dt_rank },
		{ "ssm_b", s->ssm.state },
		{ "ssm_c", s->ssm.state },
		{ "shared_gate", s->ffn.width },
		{ "shared_up", s->ffn.width },
		{ "shared_gate_b", s->ffn.width },
		{ "shared_up_b", s->ffn.width },
		{ "conv_b", s->hidden },
		{ "conv_c", s->hidden },
		{ "conv_x", s->hidden },
		{ "gate", spec_ffn_width(s, layer) },
		{ "up", spec_ffn_width(s, layer) },
		{ "e_gate", s->moe.width },
		{ "e_up", s->moe.width },
		{ "e_gate_b", s->moe.width },
		{ "e_up_b", s->moe.width },
		{ "s_gate", s->moe.shared_width },
		{ "s_up", s->moe.shared_width },
		{ "k_b", heads * s->attention.nope_dim },
		{ "v_b", heads * h.v_dim },
		{ "q_a", s->attention.q_rank },
		{ "kv_a", s->attention.kv_rank + s->attention.rope_dim },
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].role) == n && memcmp(known[i].role, role, n) == 0)
			return known[i].rows;
	return 0;
}

bool
source_stack_rows(const Spec *s, int layer, const TensorRule *rule, int part, int64_t *before,
                  int64_t *total)
{
	const char *at = rule->role;

	*before = *total = 0;
	for (int k = 0; at; k++) {
		size_t len = strcspn(at, "+");
		int64_t rows = source_role_rows(s, layer, at, len);
		if (rows == 0)
			return false;
		if (k < part)
			*before += rows;
		*total += rows;
		at = at[len] ? at + len + 1 : NULL;
	}
	return true;
}

const char *
tensor_id(Arena *a, const char *role, int layer, const char *suffix)
{
	const char *tail =
	    strcmp(suffix, ".bias") == 0 && strcmp(role, "router_bias") != 0 ? ".bias" : "";
	return layer < 0 ? arena_printf(a, "%s%s", role, tail)
	                 : arena_printf(a, "L%d.%s%s", layer, role, tail);
}

void
source_join(PlanSource *s)
{
	if (s->n_block > 1 && s->stride == s->block) {
		s->block *= s->n_block;
		s->stride = s->block;
		s->n_block = 1;
	}
}

int
tensor_add(Graph *g, const char *id, StorageRule as, int64_t rows, int64_t cols,
           const PlanSource *src, int n_src, Loc loc)
{
	int v = graph_value(g, VAL_WEIGHT, id, loc);

	g->tensor =
	    arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1, sizeof *g->tensor);
	g->tensor[g->n_tensor] = (PlanTensor){
		.id = id,
		.dtype = as.dtype,
		.rows = rows,
		.cols = cols,
		.layout = cols ? "row" : "f32",
		.n_src = n_src,
		.src = src,
		.scale_cols = as.group,
		.symmetric = as.symmetric,
	};
	g->val[v].tensor = (int)g->n_tensor++;
	g->val[v].dtype = as.dtype;
	g->val[v].dim[0] = rows;
	g->val[v].dim[1] = cols;
	return v;
}

StorageRule
source_file_storage(Graph *g, const char *role, int layer, int64_t cols, Loc loc)
{
	StorageRule r = spec_storage(g->spec, role, layer);

	if (cols == 0) /* vectors are never quantised, whatever the default type is */
		return (StorageRule){ .dtype =
			                  dtype_info(r.dtype)->block_elems > 1 ? DT_F32 : r.dtype };
	if (r.group < 0) { /* one scale per row: the group size of the type does not matter */
		Dtype narrow = dtype_regroup(r.dtype, 32);
		r.dtype =
		    dtype_row_bytes(r.dtype, cols) < 0 && narrow != DT_NONE ? narrow : r.dtype;
		r.group = cols;
	}
	if (dtype_row_bytes(r.dtype, cols) < 0)
		err_at(g->diag, loc,
		       "storage: rows of %s in layer %d have %" PRId64
		       " elements, not a multiple of the %d of a %s block",
		       role, layer, cols, dtype_info(r.dtype)->block_elems, dtype_text(r.dtype));
	else if (r.group && cols % r.group)
		err_at(g->diag, loc,
		       "storage: rows of %s in layer %d have %" PRId64
		       " elements, not a multiple of the %" PRId64 " that share a scale",
		       role, layer, cols, r.group);
	return r;
}

StorageRule
source_memory_storage(Graph *g, PlanSource *src, int n_src, StorageRule r, Loc loc)
{
	if (dtype_info(r.dtype)->block_elems == 1)
		return r;
	if (src->unit_rows)
		err_at(g->diag, loc,
		       "storage: head.row_norm changes the rows of the head: f32, f16 or bf16 is "
		       "needed, not %s",
		       dtype_text(r.dtype));
	if (!src->transpose && !src->col_groups)
		return r;
	for (int i = 0; i < n_src; i++)
		src[i].stored = dtype_text(r.dtype);
	return (StorageRule){ .dtype = DT_F16 };
}

const TensorRule *
source_rule(Graph *g, const char *role, int *part, Loc loc)
{
	const TensorRule *rule =
	    source_rule_in(g->spec->tensor_rule, g->spec->n_tensor_rule, role, part);

	if (!rule)
		err_at(
		    g->diag, loc,
		    "the %s tensor map of family %s has no name for '%s', which this model needs",
		    g->spec->checkpoint, g->spec->family, role);
	return rule;
}

/* Return the number of units of a tensor that interleaves its roles per head. A unit is a kv head
 * with its q heads, then k, then v; or a head, if every head has all roles. */
static int64_t
source_head_units(const Spec *s, int layer, const char *roles)
{
	bool each = strncmp(roles, "k_b", 3) == 0 || rule_has_role(roles, "q_gate");

	return strncmp(roles, "lin_", 4) == 0 ? s->linear.k_heads
	       : each                         ? spec_heads(s, layer).n_heads
	                                      : spec_heads(s, layer).n_kv_heads;
}

bool
source_rule_rows(Graph *g, int layer, const TensorRule *rule, const char *role, int part,
                 int64_t rows, PlanSource *src)
{
	const Spec *s = g->spec;
	int64_t before, total;

	if (!strchr(rule->role, '+'))
		return true;
	if (!source_stack_rows(s, layer, rule, part, &before, &total)) {
		err_at(g->diag, rule->loc, "tensors: '%s' stacks roles that llmc cannot separate",
		       rule->role);
		return false;
	}
	src->rows = total;
	src->first = before;
	src->stride = total;
	if (rule->per_head || rule->quarters) {
		int64_t units = rule->quarters ? 4 : source_head_units(s, layer, rule->role);
		if (rows % units) {
			err_at(
			    g->diag, rule->loc,
			    "tensors: '%s' has %d parts, which do not divide the %lld rows of %s",
			    rule->role, (int)units, (long long)rows, role);
			return false;
		}
		src->first = before / units;
		src->block = rows / units;
		src->stride = total / units;
		src->n_block = units;
	}
	return true;
}
