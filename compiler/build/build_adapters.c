/* Adapters (LoRA): deltas that are merged into weights, and factors in adapter slots. */
#include <string.h>

#include "compiler/build/build_tensor.h"
#include "compiler/graph.h"
#include "compiler/spec/family.h"
#include "formats/peft.h"

/* Return the module name that Hugging Face checkpoints, and thus adapters, use for a role; NULL:
 * the family has none. */
static const char *
adapter_module(Graph *g, const char *role, int layer, const TensorRule **rule, int *part)
{
	const Spec *s = g->spec;

	*rule = source_rule_in(s->lora.rule, s->lora.n_rule, role, part);
	if (!*rule)
		return NULL;
	const char *name = rule_name_in(g->arena, s, *rule, layer, -1, "");
	size_t n = strlen(name);
	return n > 7 && strcmp(name + n - 7, ".weight") == 0 ? arena_strndup(g->arena, name, n - 7)
	                                                     : name;
}

bool
adapter_add(Graph *g, const char *role, int layer, int64_t rows, PlanSource *src, StorageRule *as,
            Loc loc)
{
	const Spec *s = g->spec;
	int part;
	const TensorRule *rule;
	const char *name = g->peft ? adapter_module(g, role, layer, &rule, &part) : NULL;
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
	if (!source_rule_rows(g, layer, rule, role, part, rows, &theirs))
		return false;
	if (src->permuted) {
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
	const char *quant_format = spec_get(s, g->arena, "quant.method");
	bool own_blocks = strcmp(s->checkpoint, "gguf") == 0 ||
	                  (quant_format && strcmp(quant_format, "null") != 0 &&
	                   dtype_from_text(quant_format) == DT_NONE);
	if (dtype_info(as->dtype)->block_elems > 1 && own_blocks) {
		src->stored = dtype_text(as->dtype);
		*as = (StorageRule){ .dtype = DT_F16 };
	}
	(void)loc;
	return true;
}

/* n_experts 0: the matrix has no experts */
static int
adapter_factor(Graph *g, PlanFactor factor, const char *id, int n_experts, int64_t each,
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
	const char *name = adapter_module(g, role, layer, &rule, &part);
	PlanSource *src = NEW(g->arena, PlanSource, 1),
	           theirs = { .rows = rows, .block = rows, .stride = rows, .n_block = 1 };
	/* The rows of this matrix are permuted while they are read, and so would the rows of the
	 * adapter have to be. */
	if (!name || (rule->rope_pairs && (!strcmp(role, "q") || !strcmp(role, "k"))) ||
	    !source_rule_rows(g, layer, rule, role, part, rows, &theirs))
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
	factor[0] =
	    adapter_factor(g, FACTOR_A, arena_printf(g->arena, "L%d.%s.lora_a", layer, role), 0,
	                   cols, src, 1, loc);
	factor[1] =
	    adapter_factor(g, FACTOR_B, arena_printf(g->arena, "L%d.%s.lora_b", layer, role), 0,
	                   rows, src, 1, loc);
	return true;
}

int
graph_stack_factors(Graph *g, const char *name, const int *val, int n)
{
	PlanSource *src = NEW(g->arena, PlanSource, n);

	for (int i = 0; i < n; i++)
		src[i] = g->tensor[g->val[val[i]].tensor].src[0];
	return adapter_factor(g, FACTOR_A, name, 0, src[0].cols, src, n, g->val[val[0]].loc);
}

/* names of the parameters in transformers that stack the matrices of all experts */
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
 * of this role are not supported. */
static bool
expert_source(Graph *g, const char *role, int layer, int64_t rows, int64_t cols, PlanSource *src)
{
	const bool down = strcmp(role, "e_down") == 0,
	           plain = g->spec->moe.plain; /* plain: experts without a gate, where `up` is used
	                                          for both gate and up */
	int part;
	const TensorRule *theirs =
	    source_rule_in(g->spec->lora.rule, g->spec->lora.n_rule, role, &part);
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
	/* With desc_act, rows of gate and up are in the column order of down, and so would the rows
	 * of an adapter have to be. */
	for (int i = 0; i < 3; i++)
		if (spec_storage(g->spec, (const char *const[]){ "e_gate", "e_up", "e_down" }[i],
		                 layer)
		        .order)
			return false;
	for (int i = 0; i < n_role; i++)
		if (!expert_source(g, role[i], layer, rows, cols, &src[i]))
			return false;
	factor[0] =
	    adapter_factor(g, FACTOR_A, arena_printf(g->arena, "L%d.%s.lora_a", layer, role[0]),
	                   n_experts, cols, src, n_role, loc);
	factor[1] =
	    adapter_factor(g, FACTOR_B, arena_printf(g->arena, "L%d.%s.lora_b", layer, role[0]),
	                   n_experts, rows, src, n_role, loc);
	return true;
}

int
build_adapter_input(Graph *g, const char *role, int layer, const char *what, int64_t cols, Loc loc)
{
	int part;
	const TensorRule *rule = source_rule(g, role, &part, loc);

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

bool
adapter_add_experts(Graph *g, const TensorRule *rule, const char *role, int layer, PlanSource *src,
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
	const TensorRule *theirs =
	    source_rule_in(g->spec->lora.rule, g->spec->lora.n_rule, role, &part);
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
	const char *quant_format = spec_get(g->spec, g->arena, "quant.method");
	bool own_blocks = strcmp(g->spec->checkpoint, "gguf") == 0 ||
	                  (quant_format && strcmp(quant_format, "null") != 0 &&
	                   dtype_from_text(quant_format) == DT_NONE);
	if (any && dtype_info(as->dtype)->block_elems > 1 && own_blocks) {
		for (int e = 0; e < n_src; e++)
			src[e].stored = dtype_text(as->dtype);
		*as = (StorageRule){ .dtype = DT_F16 };
	}
	return true;
}
