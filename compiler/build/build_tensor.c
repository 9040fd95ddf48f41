/* Weights: which rows of which checkpoint tensors form a role of the model. The family's tensor map
 * describes how a checkpoint stores roles. Graph and kernels use one tensor per role, with its rows
 * in order. */
#include <string.h>

#include "compiler/build/build_tensor.h"
#include "compiler/graph.h"
#include "compiler/spec/family.h"
#include "formats/quant_format.h"

/* Find an existing weight. One outside of the layers, or of a draft head, may be used twice. */
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
	/* a tied head whose rows are normalised is a separate tensor, made from the embedding */
	const char *from = head && s->head.tied ? "embed" : role;
	int part;
	const char *id = tensor_id(g->arena, role, layer, suffix);
	const int same = layer < 0 || spec_drafts(s) ? weight_of(g, id) : -1;

	if (same >= 0)
		return same;
	const TensorRule *rule = source_rule(g, from, &part, loc);
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
	if (!source_rule_rows(g, layer, rule, role, part, rows, src))
		return -1;
	if (strcmp(from, "embed") == 0)
		src->rows = s->embed.rows; /* only the first rows are used */
	const int64_t total = src->rows;
	if (rule->transpose && cols > 0) {
		int64_t each =
		    rule->per_head && !strchr(rule->role, '+') ? rows / heads.n_heads : total;
		src->rows = total / each * cols;
		src->cols = each;
		src->transpose = each;
	}
	if (rule->unfold && cols > 0 && s->vision.merge > 1)
		src->col_groups = s->vision.merge;
	if (rule->rope_pairs && (strcmp(role, "q") == 0 || strcmp(role, "k") == 0))
		src->rope_pairs = heads.head_dim;
	StorageRule file = source_file_storage(g, role, layer, cols ? src->cols : 0, loc),
	            as = source_memory_storage(g, src, 1, file, loc);
	src->permuted = file.order || file.factor;
	if (src->permuted && (src->transpose || !role_permutes(role)))
		err_at(g->diag, loc,
		       "storage.rules: order and factor are not supported for %s of layer %d", role,
		       layer);
	if (cols && !adapter_add(g, role, layer, rows, src, &as, loc))
		return -1;
	return tensor_add(g, id, as, rows, cols, src, 1, loc);
}

int
build_experts(Graph *g, const char *role, int layer, int n_experts, int64_t rows, int64_t cols,
              Loc loc)
{
	int part;
	int64_t before = 0, total = rows;
	const TensorRule *rule = source_rule(g, role, &part, loc);

	if (!rule)
		return -1;
	if (strchr(rule->role, '+') &&
	    !source_stack_rows(g->spec, layer, rule, part, &before, &total)) {
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
	StorageRule as = source_memory_storage(
	    g, src, n_src, source_file_storage(g, role, layer, src->cols, loc), loc);
	if (cols && !adapter_add_experts(g, rule, role, layer, src, n_src, n_experts, rows, &as))
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
		src[e].permuted = true;
	/* rows of gate and up are in the column order of down */
	if (strcmp(role, "e_down") != 0 && strcmp(role, "e_down_b") != 0 &&
	    spec_storage(g->spec, "e_down", layer).order) {
		const TensorRule *down = source_rule(g, "e_down", &part, loc);
		if (!down)
			return -1;
		if (!plain || before || total != rows || g->peft)
			err_at(g->diag, loc,
			       "storage.rules: order of e_down in layer %d also permutes rows of "
			       "%s, which must be separate tensors without an adapter",
			       layer, role);
		for (int e = 0; e < n_src; e++)
			src[e].rows_in =
			    rule_name_in(g->arena, g->spec, down, layer, e, "." QUANT_FORMAT_ORDER);
	}
	return tensor_add(g, tensor_id(g->arena, role, layer, ""), as, n_experts * rows, cols, src,
	                  n_src, loc);
}

int
build_expert_orders(Graph *g, const char *role, int layer, int n_experts, int64_t cols, Loc loc)
{
	int part;
	const TensorRule *rule = source_rule(g, role, &part, loc);

	if (!rule)
		return -1;
	PlanSource *src = NEW(g->arena, PlanSource, n_experts);
	for (int e = 0; e < n_experts; e++)
		src[e] = (PlanSource){ .name = rule_name_in(g->arena, g->spec, rule, layer, e,
			                                    "." QUANT_FORMAT_ORDER),
			               .rows = cols,
			               .block = cols,
			               .stride = cols,
			               .n_block = 1 };
	return tensor_add(g,
	                  arena_printf(g->arena, "%s.%s", tensor_id(g->arena, role, layer, ""),
	                               QUANT_FORMAT_ORDER),
	                  (StorageRule){ .dtype = DT_F32 }, n_experts * cols, 0, src, n_experts,
	                  loc);
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
	const TensorRule *rule = source_rule(g, role, &part, loc);

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
	StorageRule as =
	    source_memory_storage(g, src, 1, source_file_storage(g, role, layer, cols, loc), loc);
	if (as.order || as.factor)
		err_at(g->diag, loc, "storage.rules: order and factor are not supported for %s",
		       role);
	return tensor_add(g,
	                  arena_printf(g->arena, "%s.%d", tensor_id(g->arena, role, layer, ""), i),
	                  as, rows, cols, src, 1, loc);
}

/* Return whether b follows a in the same checkpoint tensor, and both are contiguous. */
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
	       a->unit_rows == b->unit_rows && a->col_groups == b->col_groups &&
	       a->permuted == b->permuted && same_word(a->rows_in, b->rows_in) &&
	       a->stored == b->stored && a->col_first == b->col_first &&
	       a->col_total == b->col_total;
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
