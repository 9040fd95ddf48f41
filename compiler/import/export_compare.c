/* Comparison of a folder's graph with that of the GGUF file made from the folder */
#include "compiler/import/export_compare.h"

#include <math.h>
#include <string.h>

bool
export_nearly_equal(double a, double b, double rel)
{
	return fabs(a - b) <= rel * fmax(fabs(a), fabs(b));
}

/* Compare the attributes of two ops. A norm's plus_one may differ, and the scale of an
 * embedding may be rounded. */
static bool
ops_agree(const Op *a, const Op *b)
{
	if (a->kind != b->kind || a->layer != b->layer || a->n_attr != b->n_attr)
		return false;
	for (int i = 0; i < a->n_attr; i++) {
		const Attr *x = &a->attr[i], *y = &b->attr[i];
		if (strcmp(x->key, y->key) == 0 && strcmp(x->key, "plus_one") == 0)
			continue;
		/* the table in a file begins with the row of the first position */
		if (a->kind == OP_embed_pos && strcmp(x->key, "offset") == 0)
			continue;
		double rel = a->kind == OP_embed && strcmp(x->key, "scale") == 0 ? 1.0 / 256 : 1e-6;
		if (strcmp(x->key, y->key) || x->kind != y->kind || x->i != y->i ||
		    !export_nearly_equal(x->f, y->f, rel) || (x->s && y->s && strcmp(x->s, y->s)))
			return false;
	}
	return true;
}

static bool
ropes_agree(const Spec *a, const Spec *b)
{
	if (a->position != b->position || a->n_rope != b->n_rope ||
	    a->rope_style != b->rope_style || a->rope_axes != b->rope_axes)
		return false;
	for (int i = 0; i < a->n_rope && a->position == POS_ROPE; i++) {
		const RopeTable *x = &a->rope[i], *y = &b->rope[i];
		bool same = x->dims == y->dims && export_nearly_equal(x->theta, y->theta, 1e-6);
		if (x->scaling == SCALE_LLAMA3)
			same = same && y->scaling == SCALE_NONE && y->factors_tensor[0] && i == 0;
		else
			same = same && x->scaling == y->scaling;
		if (x->scaling == SCALE_LONGROPE)
			same =
			    same && i == 0 && y->factors_tensor[0] && y->factors_tensor[1] &&
			    export_nearly_equal(x->original_positions, y->original_positions, 1e-6);
		if (x->scaling == SCALE_LINEAR || x->scaling == SCALE_YARN ||
		    x->scaling == SCALE_DYNAMIC)
			same = same && export_nearly_equal(x->factor, y->factor, 1e-6);
		if (x->scaling == SCALE_YARN)
			same =
			    same &&
			    export_nearly_equal(x->original_positions, y->original_positions,
			                        1e-6) &&
			    export_nearly_equal(x->beta_fast, y->beta_fast, 1e-6) &&
			    export_nearly_equal(x->beta_slow, y->beta_slow, 1e-6) &&
			    export_nearly_equal(x->attention_factor, y->attention_factor, 1e-5) &&
			    x->mscale == y->mscale && x->mscale_all_dim == y->mscale_all_dim &&
			    x->truncate == y->truncate;
		if (!same || x->scaling == SCALE_PROPORTIONAL)
			return false;
	}
	return true;
}

int64_t
export_rows_before(const Graph *g, size_t tensor)
{
	return strcmp(g->tensor[tensor].id, "pos_embed") == 0 ? g->spec->pos_offset : 0;
}

bool
export_graphs_agree(const Graph *a, const Graph *b)
{
	bool same = a->n_op == b->n_op && a->n_tensor == b->n_tensor && a->n_pool == b->n_pool &&
	            ropes_agree(a->spec, b->spec);

	for (size_t i = 0; same && i < a->n_op; i++) {
		same = ops_agree(&a->op[i], &b->op[i]);
		for (int k = 0; same && k < OP_MAX_ARGS; k++) {
			int v = a->op[i].arg[k], w = b->op[i].arg[k];
			same = (v < 0) == (w < 0) &&
			       (v < 0 || strcmp(a->val[v].name, b->val[w].name) == 0);
		}
	}
	for (size_t i = 0; same && i < a->n_tensor; i++)
		same = strcmp(a->tensor[i].id, b->tensor[i].id) == 0 &&
		       a->tensor[i].rows - export_rows_before(a, i) ==
		           b->tensor[i].rows - export_rows_before(b, i) &&
		       a->tensor[i].cols == b->tensor[i].cols;
	for (int i = 0; same && i < a->n_pool; i++)
		same = a->pool[i].keep == b->pool[i].keep &&
		       a->pool[i].n_layers == b->pool[i].n_layers &&
		       a->pool[i].kv_heads == b->pool[i].kv_heads &&
		       a->pool[i].k_dim == b->pool[i].k_dim && a->pool[i].v_dim == b->pool[i].v_dim;
	return same && a->spec->max_positions == b->spec->max_positions;
}

float *
export_norms(const Graph *a, const Graph *b, Arena *arena)
{
	float *add = NEW(arena, float, a->n_tensor + 1);

	for (size_t i = 0; i < a->n_op; i++) {
		const Op *o = &a->op[i];
		int w = o->kind == OP_rmsnorm     ? o->arg[ARG(rmsnorm, w)]
		        : o->kind == OP_layernorm ? o->arg[ARG(layernorm, w)]
		                                  : -1;
		if (w >= 0)
			add[a->val[w].tensor] =
			    (float)(attr_int(o->attr, o->n_attr, "plus_one") -
			            attr_int(b->op[i].attr, b->op[i].n_attr, "plus_one"));
	}
	return add;
}
