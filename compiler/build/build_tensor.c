/* Weights: which rows of which checkpoint tensors form a role of the model. The family's tensor map
 * describes how a checkpoint stores roles; graph and kernels use one tensor per role, with rows in
 * order. */
#include "compiler/spec/family.h"
#include "compiler/graph.h"
#include "formats/peft.h"
#include "formats/scheme.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_STACKED = 4 };

/* Find the rule of a role, alone or in a stack ("q+k+v"); *part receives its index in the stack. */
static const TensorRule *
rule_in(const TensorRule *rule, int n_rule, const char *role, int *part)
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

/* Return the rows of a role that checkpoints may stack; 0 for other roles. */
static int64_t
role_rows(const Spec *s, int layer, const char *role, size_t n)
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

/* Count the rows before part `part` of a stacked rule, and of all parts. */
static bool
stack_rows(const Spec *s, int layer, const TensorRule *rule, int part, int64_t *before,
           int64_t *total)
{
	const char *at = rule->role;

	*before = *total = 0;
	for (int k = 0; at; k++) {
		size_t len = strcspn(at, "+");
		int64_t rows = role_rows(s, layer, at, len);
		if (rows == 0)
			return false;
		if (k < part)
			*before += rows;
		*total += rows;
		at = at[len] ? at + len + 1 : NULL;
	}
	return true;
}

static const char *
tensor_id(Arena *a, const char *role, int layer, const char *suffix)
{
	const char *tail =
	    strcmp(suffix, ".bias") == 0 && strcmp(role, "router_bias") != 0 ? ".bias" : "";
	return layer < 0 ? arena_printf(a, "%s%s", role, tail)
	                 : arena_printf(a, "L%d.%s%s", layer, role, tail);
}

/* Merge blocks that are contiguous. */
static void
source_join(PlanSource *s)
{
	if (s->n_block > 1 && s->stride == s->block) {
		s->block *= s->n_block;
		s->stride = s->block;
		s->n_block = 1;
	}
}

static int
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

/* Return the storage of a role whose rows in the file have `cols` elements; cols 0: vectors. */
static StorageRule
file_storage(Graph *g, const char *role, int layer, int64_t cols, Loc loc)
{
	StorageRule r = spec_storage(g->spec, role, layer);

	if (cols == 0) /* vectors are never quantised, whatever the default is */
		return (StorageRule){ .dtype =
			                  dtype_info(r.dtype)->block_elems > 1 ? DT_F32 : r.dtype };
	if (r.group < 0) { /* one scale per row: the group type's size does not matter */
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

/* Return the storage in memory. A block holds neighbouring elements of one row of the file, so a
 * transposed matrix cannot keep it: packing dequantises and rounds each element once to 16 bits.
 * Rows divided by their norm cannot keep it either. */
static StorageRule
memory_storage(Graph *g, PlanSource *src, int n_src, StorageRule r, Loc loc)
{
	if (dtype_info(r.dtype)->block_elems == 1)
		return r;
	if (src->unit_rows)
		err_at(g->diag, loc,
		       "storage: head.row_norm changes the rows of the head: f32, f16 or bf16 is "
		       "needed, not %s",
		       dtype_text(r.dtype));
	if (!src->transpose)
		return r;
	for (int i = 0; i < n_src; i++)
		src[i].stored = dtype_text(r.dtype);
	return (StorageRule){ .dtype = DT_F16 };
}

static const TensorRule *
rule_or_error(Graph *g, const char *role, int *part, Loc loc)
{
	const TensorRule *rule = rule_in(g->spec->tensor_rule, g->spec->n_tensor_rule, role, part);

	if (!rule)
		err_at(
		    g->diag, loc,
		    "the %s tensor map of family %s has no name for '%s', which this model needs",
		    g->spec->checkpoint, g->spec->family, role);
	return rule;
}

/* Return the number of units of a tensor whose roles are interleaved per head: one per kv head,
 * with its q heads, then k, then v; or one per head if every head has all roles. */
static int64_t
head_units(const Spec *s, int layer, const char *roles)
{
	bool each = strncmp(roles, "k_b", 3) == 0 || rule_has_role(roles, "q_gate");

	return strncmp(roles, "lin_", 4) == 0 ? s->linear.k_heads
	       : each                         ? spec_heads(s, layer).n_heads
	                                      : spec_heads(s, layer).n_kv_heads;
}

/* Set the rows of the rule's tensor that belong to a role. */
static bool
rule_rows(Graph *g, int layer, const TensorRule *rule, const char *role, int part, int64_t rows,
          PlanSource *src)
{
	const Spec *s = g->spec;
	int64_t before, total;

	if (!strchr(rule->role, '+'))
		return true;
	if (!stack_rows(s, layer, rule, part, &before, &total)) {
		err_at(g->diag, rule->loc, "tensors: '%s' stacks roles that llmc cannot separate",
		       rule->role);
		return false;
	}
	src->rows = total;
	src->first = before;
	src->stride = total;
	if (rule->per_head || rule->quarters) {
		int64_t units = rule->quarters ? 4 : head_units(s, layer, rule->role);
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

/* Return the Hugging Face module name of a role, which adapters use; NULL: the family has none. */
static const char *
module_name(Graph *g, const char *role, int layer, const TensorRule **rule, int *part)
{
	const Spec *s = g->spec;

	*rule = rule_in(s->lora.rule, s->lora.n_rule, role, part);
	if (!*rule)
		return NULL;
	const char *name = rule_name_in(g->arena, s, *rule, layer, -1, "");
	size_t n = strlen(name);
	return n > 7 && strcmp(name + n - 7, ".weight") == 0 ? arena_strndup(g->arena, name, n - 7)
	                                                     : name;
}

/* Attach the adapter's delta to a matrix, found by Hugging Face module name and rows. Block types
 * that cannot hold the sum become f16: nothing is quantised twice. */
static bool
add_adapter(Graph *g, const char *role, int layer, int64_t rows, PlanSource *src, StorageRule *as,
            Loc loc)
{
	const Spec *s = g->spec;
	int part;
	const TensorRule *rule;
	const char *name = g->peft ? module_name(g, role, layer, &rule, &part) : NULL;
	PlanSource theirs = { .block = rows, .stride = rows, .n_block = 1 };

	if (!name || !peft_has(g->peft, name))
		return true;
	if (strcmp(role, "embed") == 0 && s->head.tied && s->head.kind == LLMC_OUTPUT_LOGITS) {
		err_at(g->diag, spec_loc(s, "lora.path"),
		       "lora.path: the adapter changes %s, which is also the head (head.tied): the "
		       "two would differ",
		       name);
		return false;
	}
	if (!rule_rows(g, layer, rule, role, part, rows, &theirs))
		return false;
	if (src->arranged) {
		err_at(g->diag, spec_loc(s, "lora.path"),
		       "lora.path: the adapter changes %s, whose columns the checkpoint permutes: "
		       "merge it into the checkpoint that it was trained on",
		       name);
		return false;
	}
	src->lora = name;
	src->lora_first = theirs.first;
	src->lora_block = theirs.block;
	src->lora_stride = theirs.stride;
	const char *scheme = spec_get(s, g->arena, "quant.scheme");
	bool own_blocks =
	    strcmp(s->checkpoint, "gguf") == 0 ||
	    (scheme && strcmp(scheme, "null") != 0 && dtype_from_text(scheme) == DT_NONE);
	if (dtype_info(as->dtype)->block_elems > 1 && own_blocks) {
		src->stored = dtype_text(as->dtype);
		*as = (StorageRule){ .dtype = DT_F16 };
	}
	(void)loc;
	return true;
}

/* n_experts 0: not a matrix of experts */
static int
factor_add(Graph *g, PlanFactor factor, const char *id, int n_experts, int64_t each,
           const PlanSource *src, int n_src, Loc loc)
{
	const int slots = g->spec->adapters.slots,
	          rank = n_experts ? g->spec->adapters.expert_rank : g->spec->adapters.rank;
	int v = tensor_add(g, id, (StorageRule){ .dtype = DT_F32 },
	                   (int64_t)slots * rank * (n_experts ? n_experts : 1) * each *
	                       (factor == FACTOR_A || n_experts ? n_src : 1),
	                   0, src, n_src, loc);

	PlanTensor *t = &g->tensor[g->val[v].tensor];
	t->factor = factor;
	t->slots = slots;
	t->rank = rank;
	t->experts = t->all_experts = n_experts;
	return v;
}

bool
build_factors(Graph *g, const char *role, int layer, int64_t rows, int64_t cols, Loc loc,
              int factor[2])
{
	static const char *const roles[] = { "q",   "k",    "v",      "o",    "gate",
		                             "up",  "down", "q_a",    "q_b",  "kv_a",
		                             "k_b", "v_b",  "s_gate", "s_up", "s_down" };
	const TensorRule *rule;
	bool known = false;
	int part;

	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
		known |= strcmp(role, roles[i]) == 0;
	if (!known || layer < 0 || g->spec->adapters.slots < 1)
		return false;
	const char *name = module_name(g, role, layer, &rule, &part);
	PlanSource *src = NEW(g->arena, PlanSource, 1),
	           theirs = { .rows = rows, .block = rows, .stride = rows, .n_block = 1 };
	/* rows that are permuted while they are read: an adapter's rows would need it too */
	if (!name || (rule->rope_pairs && (!strcmp(role, "q") || !strcmp(role, "k"))) ||
	    !rule_rows(g, layer, rule, role, part, rows, &theirs))
		return false;
	*src = (PlanSource){ .name = name,
		             .rows = theirs.rows,
		             .cols = cols,
		             .block = rows,
		             .stride = rows,
		             .n_block = 1,
		             .lora = name,
		             .lora_first = theirs.first,
		             .lora_block = theirs.block,
		             .lora_stride = theirs.stride };
	factor[0] = factor_add(g, FACTOR_A, arena_printf(g->arena, "L%d.%s.lora_a", layer, role), 0,
	                       cols, src, 1, loc);
	factor[1] = factor_add(g, FACTOR_B, arena_printf(g->arena, "L%d.%s.lora_b", layer, role), 0,
	                       rows, src, 1, loc);
	return true;
}

int
graph_stack_factors(Graph *g, const char *name, const int *val, int n)
{
	PlanSource *src = NEW(g->arena, PlanSource, n);

	for (int i = 0; i < n; i++)
		src[i] = g->tensor[g->val[val[i]].tensor].src[0];
	return factor_add(g, FACTOR_A, name, 0, src[0].cols, src, n, g->val[val[0]].loc);
}

/* names of the stacked expert matrices in transformers */
static const char UP_PARAMETER[] = "gate_up_proj", DOWN_PARAMETER[] = "down_proj";

/* "model.layers.0.mlp.experts.0.up_proj" becomes "model.layers.0"; NULL: the name has another
 * form. */
static const char *
experts_stem(Arena *a, const TensorRule *theirs, int layer)
{
	const char *first = rule_name(a, theirs, layer, 0, ""), *at = strstr(first, ".experts");

	while (at && at > first && at[-1] != '.')
		at--;
	return at && at > first ? arena_strndup(a, first, (size_t)(at - 1 - first)) : NULL;
}

/* Set the source of a factor for a role of experts with matrices [rows, cols] each. False: adapters
 * for it are not supported. */
static bool
expert_source(Graph *g, const char *role, int layer, int64_t rows, int64_t cols, PlanSource *src)
{
	const bool down = strcmp(role, "e_down") == 0,
	           plain = g->spec->moe.plain; /* plain: `up` is used for both gate and up */
	int part;
	const TensorRule *theirs = rule_in(g->spec->lora.rule, g->spec->lora.n_rule, role, &part);
	const char *stem = theirs && !theirs->interleaved && !theirs->transpose
	                       ? experts_stem(g->arena, theirs, layer)
	                       : NULL;

	if (!stem)
		return false;
	TensorRule each = *theirs; /* {e} stays unexpanded */
	const char *hole = strstr(theirs->name, "{e}"),
	           *name = arena_printf(g->arena, "%s#%s", stem,
	                                down    ? DOWN_PARAMETER
	                                : plain ? "up_proj"
	                                        : UP_PARAMETER);
	if (hole)
		each.name = arena_printf(g->arena, "%.*s{x}%s", (int)(hole - theirs->name),
		                         theirs->name, hole + 3);
	char *module =
	         hole ? arena_strdup(g->arena, rule_name(g->arena, &each, layer, 0, "")) : NULL,
	     *at = module ? strstr(module, "{x}") : NULL;
	if (at)
		at[1] = 'e';
	*src = (PlanSource){ .name = name,
		             .lora = at ? module : name,
		             .rows = rows,
		             .cols = cols,
		             .first = strcmp(role, "e_up") == 0 && !plain ? rows : 0,
		             .stride = down || plain ? rows : 2 * rows,
		             .block = rows,
		             .n_block = 1,
		             .lora_block = rows,
		             .lora_stride = rows };
	return true;
}

bool
build_expert_factors(Graph *g, const char *const *role, int n_role, int layer, int n_experts,
                     int64_t rows, int64_t cols, Loc loc, int factor[2])
{
	PlanSource *src = NEW(g->arena, PlanSource, n_role);

	if (g->spec->adapters.slots < 1 || g->spec->adapters.expert_rank < 1)
		return false;
	/* with desc_act, rows of gate and up are in the column order of down, and an adapter's rows
	 * would need it too */
	for (int i = 0; i < 3; i++)
		if (spec_storage(g->spec, (const char *const[]){ "e_gate", "e_up", "e_down" }[i],
		                 layer)
		        .order)
			return false;
	for (int i = 0; i < n_role; i++)
		if (!expert_source(g, role[i], layer, rows, cols, &src[i]))
			return false;
	factor[0] = factor_add(g, FACTOR_A, arena_printf(g->arena, "L%d.%s.lora_a", layer, role[0]),
	                       n_experts, cols, src, n_role, loc);
	factor[1] = factor_add(g, FACTOR_B, arena_printf(g->arena, "L%d.%s.lora_b", layer, role[0]),
	                       n_experts, rows, src, n_role, loc);
	return true;
}

/* Find an existing weight: one outside the layers, or of a draft head, may be used twice. */
static int
weight_of(const Graph *g, const char *id)
{
	for (size_t i = 0; i < g->n_val; i++)
		if (g->val[i].kind == VAL_WEIGHT && strcmp(g->val[i].name, id) == 0)
			return (int)i;
	return -1;
}

int
build_weight(Graph *g, const char *role, int layer, const char *suffix, int64_t rows, int64_t cols,
             Loc loc)
{
	const Spec *s = g->spec;
	const HeadShape heads = spec_heads(s, layer);
	bool head = strcmp(role, "head") == 0;
	/* a tied head with normalised rows is a separate tensor, made from the embedding */
	const char *from = head && s->head.tied ? "embed" : role;
	int part;
	const char *id = tensor_id(g->arena, role, layer, suffix);
	const int same = layer < 0 || s->mtp.part == MTP_HEAD ? weight_of(g, id) : -1;

	if (same >= 0)
		return same;
	const TensorRule *rule = rule_or_error(g, from, &part, loc);
	PlanSource *src = NEW(g->arena, PlanSource, 1);

	if (!rule)
		return -1;
	*src = (PlanSource){
		.name = rule_name_in(g->arena, s, rule, layer, -1,
		                     strcmp(role, "router_bias") == 0 ? "" : suffix),
		.rows = rows,
		.cols = cols,
		.block = rows,
		.stride = rows,
		.n_block = 1,
		.unit_rows = head && s->head.row_norm && cols > 0,
	};
	if (!rule_rows(g, layer, rule, role, part, rows, src))
		return -1;
	const int64_t total = src->rows;
	if (rule->transpose && cols > 0) {
		int64_t each =
		    rule->per_head && !strchr(rule->role, '+') ? rows / heads.n_heads : total;
		src->rows = total / each * cols;
		src->cols = each;
		src->transpose = each;
	}
	if (rule->rope_pairs && (strcmp(role, "q") == 0 || strcmp(role, "k") == 0))
		src->rope_pairs = heads.head_dim;
	StorageRule file = file_storage(g, role, layer, cols ? src->cols : 0, loc),
	            as = memory_storage(g, src, 1, file, loc);
	src->arranged = file.order || file.factor;
	if (src->arranged && (src->transpose || !role_arranges(role)))
		err_at(g->diag, loc,
		       "storage.rules: order and factor are not supported for %s of layer %d", role,
		       layer);
	if (cols && !add_adapter(g, role, layer, rows, src, &as, loc))
		return -1;
	return tensor_add(g, id, as, rows, cols, src, 1, loc);
}

int
build_adapter_input(Graph *g, const char *role, int layer, const char *what, int64_t cols, Loc loc)
{
	int part;
	const TensorRule *rule = rule_or_error(g, role, &part, loc);

	if (!rule)
		return -1;
	PlanSource *src = NEW(g->arena, PlanSource, 1);
	*src = (PlanSource){ .name = rule_name_in(g->arena, g->spec, rule, layer, -1,
		                                  arena_printf(g->arena, ".%s", what)),
		             .rows = cols,
		             .block = cols,
		             .stride = cols,
		             .n_block = 1 };
	const char *id =
	    arena_printf(g->arena, "%s.%s", tensor_id(g->arena, role, layer, ""), what);
	return tensor_add(g, id, (StorageRule){ .dtype = DT_F32 }, cols, 0, src, 1, loc);
}

/* Attach adapters of experts: a pair of factors per expert if experts are modules, else the stacked
 * factors of gate and up together, and of down. */
static bool
adapt_experts(Graph *g, const TensorRule *rule, const char *role, int layer, PlanSource *src,
              int n_src, int n_experts, int64_t rows, StorageRule *as)
{
	const bool down = strcmp(role, "e_down") == 0, up = strcmp(role, "e_up") == 0;
	const int64_t out = down ? rows : 2 * rows,
	              cols =
	                  src->transpose ? src->rows / (rule->stacked ? n_experts : 1) : src->cols;
	int part;
	char name[1024];

	if (!g->peft)
		return true;
	const TensorRule *theirs = rule_in(g->spec->lora.rule, g->spec->lora.n_rule, role, &part);
	const char *stem = theirs ? experts_stem(g->arena, theirs, layer) : NULL;
	bool stacked = stem && peft_experts(g->peft, stem, down ? DOWN_PARAMETER : UP_PARAMETER,
	                                    out, cols, name, sizeof name),
	     any = stacked;
	if (stacked && (rule->interleaved || rule->transpose)) {
		err_at(g->diag, spec_loc(g->spec, "lora.path"),
		       "lora.path: the adapter changes experts of layer %d, which this family "
		       "stores transposed or interleaved: merge it into the checkpoint",
		       layer);
		return false;
	}
	for (int e = 0; e < n_src; e++) {
		const char *own = theirs ? rule_name(g->arena, theirs, layer, e, "") : "";
		if (stacked) {
			src[e].lora = arena_strdup(g->arena, name);
			src[e].lora_first = e * out + (up ? rows : 0);
			src[e].lora_block = rows;
			src[e].lora_stride = out;
		} else if (n_src > 1 && peft_has(g->peft, own)) {
			src[e].lora = own;
			src[e].lora_block = src[e].lora_stride = rows;
			any = true;
		}
	}
	const char *scheme = spec_get(g->spec, g->arena, "quant.scheme");
	bool own_blocks =
	    strcmp(g->spec->checkpoint, "gguf") == 0 ||
	    (scheme && strcmp(scheme, "null") != 0 && dtype_from_text(scheme) == DT_NONE);
	if (any && dtype_info(as->dtype)->block_elems > 1 && own_blocks) {
		for (int e = 0; e < n_src; e++)
			src[e].stored = dtype_text(as->dtype);
		*as = (StorageRule){ .dtype = DT_F16 };
	}
	return true;
}

int
build_experts(Graph *g, const char *role, int layer, int n_experts, int64_t rows, int64_t cols,
              Loc loc)
{
	int part;
	int64_t before = 0, total = rows;
	const TensorRule *rule = rule_or_error(g, role, &part, loc);

	if (!rule)
		return -1;
	if (strchr(rule->role, '+') && !stack_rows(g->spec, layer, rule, part, &before, &total)) {
		err_at(g->diag, rule->loc, "tensors: '%s' stacks roles that llmc cannot separate",
		       rule->role);
		return -1;
	}
	if (!rule->stacked && !strstr(rule->name, "{e}")) {
		err_at(g->diag, rule->loc,
		       "tensors: '%s' names one tensor for all experts: write `| stacked`, or {e} "
		       "in its name",
		       role);
		return -1;
	}
	int n_src = rule->stacked ? 1 : n_experts;
	PlanSource *src = NEW(g->arena, PlanSource, n_src);
	for (int e = 0; e < n_src; e++) {
		src[e] = (PlanSource){
			.name = rule_name_in(g->arena, g->spec, rule, layer, e,
			                     cols ? ".weight" : ".bias"),
			.rows = rule->stacked ? n_experts * total : total,
			.cols = cols,
			.first = before,
			.block = rows,
			.stride = total,
			.n_block = rule->stacked ? n_experts : 1,
		};
		if (rule->interleaved && total > rows) {
			src[e].first = part;
			src[e].n_block *= rows;
			src[e].block = 1;
			src[e].stride = total / rows;
		}
		if (rule->transpose && cols) {
			src[e].rows = (rule->stacked ? n_experts : 1) * cols;
			src[e].cols = src[e].transpose = total;
		}
		source_join(&src[e]);
	}
	StorageRule as =
	    memory_storage(g, src, n_src, file_storage(g, role, layer, src->cols, loc), loc);
	if (cols && !adapt_experts(g, rule, role, layer, src, n_src, n_experts, rows, &as))
		return -1;
	const bool plain = !rule->stacked && !rule->transpose && !rule->interleaved;
	if (as.factor || (as.order && !plain))
		err_at(g->diag, loc,
		       "storage.rules: %s of layer %d: experts support no factor, and an order "
		       "only if each expert is a separate tensor",
		       role, layer);
	if (as.order && g->peft)
		err_at(g->diag, spec_loc(g->spec, "lora.path"),
		       "lora.path: the columns of %s in layer %d are permuted per expert: merge "
		       "the adapter into the checkpoint that it was trained on",
		       role, layer);
	for (int e = 0; e < n_src && as.order; e++)
		src[e].arranged = true;
	/* rows of gate and up are in the column order of down */
	if (strcmp(role, "e_down") != 0 && strcmp(role, "e_down_b") != 0 &&
	    spec_storage(g->spec, "e_down", layer).order) {
		const TensorRule *down = rule_or_error(g, "e_down", &part, loc);
		if (!down)
			return -1;
		if (!plain || before || total != rows || g->peft)
			err_at(g->diag, loc,
			       "storage.rules: order of e_down in layer %d also permutes rows of "
			       "%s, which must be separate tensors without an adapter",
			       layer, role);
		for (int e = 0; e < n_src; e++)
			src[e].rows_in =
			    rule_name_in(g->arena, g->spec, down, layer, e, "." SCHEME_ORDER);
	}
	return tensor_add(g, tensor_id(g->arena, role, layer, ""), as, n_experts * rows, cols, src,
	                  n_src, loc);
}

int
build_expert_orders(Graph *g, const char *role, int layer, int n_experts, int64_t cols, Loc loc)
{
	int part;
	const TensorRule *rule = rule_or_error(g, role, &part, loc);

	if (!rule)
		return -1;
	PlanSource *src = NEW(g->arena, PlanSource, n_experts);
	for (int e = 0; e < n_experts; e++)
		src[e] = (PlanSource){ .name = rule_name_in(g->arena, g->spec, rule, layer, e,
			                                    "." SCHEME_ORDER),
			               .rows = cols,
			               .block = cols,
			               .stride = cols,
			               .n_block = 1 };
	return tensor_add(
	    g, arena_printf(g->arena, "%s.%s", tensor_id(g->arena, role, layer, ""), SCHEME_ORDER),
	    (StorageRule){ .dtype = DT_F32 }, n_experts * cols, 0, src, n_experts, loc);
}

int
build_table(Graph *g, const char *role, int64_t rows, int64_t all, int64_t cols, Loc loc)
{
	int v = build_weight(g, role, -1, ".weight", rows, cols, loc);

	if (v < 0 || rows >= all)
		return v;
	PlanTensor *t = &g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, 2);
	src[0] = src[1] = t->src[0];
	src[1].block = 1;
	src[1].stride = 0;
	src[1].n_block = all - rows;
	t->src = src;
	t->n_src = 2;
	t->rows = g->val[v].dim[0] = all;
	return v;
}

int
build_one_of(Graph *g, const char *role, int layer, int i, int n, int64_t rows, int64_t cols,
             Loc loc)
{
	int part;
	const TensorRule *rule = rule_or_error(g, role, &part, loc);

	if (!rule)
		return -1;
	PlanSource *src = NEW(g->arena, PlanSource, 1);
	const int64_t all = rule->stacked ? n : 1;
	*src = (PlanSource){
		.name = rule_name(g->arena, rule, layer, i, ".weight"),
		.rows = all * rows,
		.cols = cols,
		.first = rule->stacked ? i * rows : 0,
		.block = rows,
		.stride = all * rows,
		.n_block = 1,
	};
	StorageRule as = memory_storage(g, src, 1, file_storage(g, role, layer, cols, loc), loc);
	if (as.order || as.factor)
		err_at(g->diag, loc, "storage.rules: order and factor are not supported for %s",
		       role);
	return tensor_add(g,
	                  arena_printf(g->arena, "%s.%d", tensor_id(g->arena, role, layer, ""), i),
	                  as, rows, cols, src, 1, loc);
}

/* Return whether b continues a in the same checkpoint tensor, both contiguous. */
static bool
source_continues(const PlanSource *a, const PlanSource *b)
{
	bool alike = !a->lora == !b->lora &&
	             (!a->lora || (strcmp(a->lora, b->lora) == 0 && a->lora_first == a->first &&
	                           b->lora_first == b->first && a->lora_block == a->block &&
	                           b->lora_block == b->block && a->lora_stride == a->stride &&
	                           b->lora_stride == b->stride));

	return alike && strcmp(a->name, b->name) == 0 && a->n_block == 1 && b->n_block == 1 &&
	       b->first == a->first + a->block && a->rows == b->rows && a->cols == b->cols &&
	       a->rope_pairs == b->rope_pairs && a->transpose == b->transpose &&
	       a->unit_rows == b->unit_rows && a->arranged == b->arranged &&
	       same_word(a->rows_in, b->rows_in) && a->stored == b->stored &&
	       a->col_first == b->col_first && a->col_total == b->col_total;
}

int
graph_stack(Graph *g, const char *name, const int *val, int n)
{
	int n_src = 0;
	int64_t rows = 0;
	const PlanTensor *first = &g->tensor[g->val[val[0]].tensor];
	const StorageRule as = { .dtype = first->dtype,
		                 .group = first->scale_cols,
		                 .symmetric = first->symmetric };
	int64_t cols = first->cols;

	for (int i = 0; i < n; i++) {
		const PlanTensor *t = &g->tensor[g->val[val[i]].tensor];
		if (t->dtype != as.dtype || t->cols != cols || t->scale_cols != as.group ||
		    t->symmetric != as.symmetric)
			return -1;
		n_src += t->n_src;
	}
	PlanSource *src = NEW(g->arena, PlanSource, n_src);
	n_src = 0;
	for (int i = 0; i < n; i++) {
		const PlanTensor *t = &g->tensor[g->val[val[i]].tensor];
		rows += t->rows;
		for (int k = 0; k < t->n_src; k++) {
			const PlanSource *b = &t->src[k];
			PlanSource *a = n_src ? &src[n_src - 1] : NULL;
			if (a && source_continues(a, b)) {
				a->block += b->block;
				a->stride = a->rows;
				a->lora_block = a->block;
				a->lora_stride = a->stride;
			} else {
				src[n_src++] = *b;
			}
		}
	}
	return tensor_add(g, name, as, rows, cols, src, n_src, g->val[val[0]].loc);
}
