/* Selects the implementation of each op: a template of the target that accepts the op, otherwise
 * the reference. Equal ops share one kernel. */
#include "compiler/select_kernels.h"

#include <string.h>

#include "templates/common/llmc_mla.h"

/* Set the layouts of weights. A weight by which some op multiplies gets the layout of the target's
 * kernels. On a CPU, a table from which ops only gather rows stays in file order, so that it need
 * not be read at load.
 *
 *   requires  weights are built
 *   keeps     everything else */
void
select_layouts(Graph *g, const Templates *ts)
{
	bool device = ts && templates_target(ts)->kind == TARGET_CUDA;

	for (size_t i = 0; ts && i < g->n_op; i++) {
		const Op *op = &g->op[i];
		ArgShape shape[OP_MAX_ARGS];
		graph_shapes(g, op, shape);
		for (int k = 0; k < op_info[op->kind].n_in; k++)
			if (op->arg[k] >= 0 && shape[k].kind == VAL_WEIGHT &&
			    (device || op_info[op->kind].arg[k].role != ROLE_TABLE))
				templates_layout(ts, &g->tensor[g->val[op->arg[k]].tensor]);
	}
}

static bool
same_pool(const PlanPool *a, const PlanPool *b)
{
	return plan_layer_page_bytes(a) == plan_layer_page_bytes(b) &&
	       plan_layer_state_bytes(a) == plan_layer_state_bytes(b) && a->recent == b->recent &&
	       a->sinks == b->sinks && (!(a->recent || a->sinks) || (a->keep > 0) == (b->keep > 0));
}

/* Return whether a template would produce the same kernel for two ops. They must have the same
 * attributes, the same rows, and weights that differ only by name. */
static bool
same_use(const Graph *g, const Op *a, const Op *b)
{
	if (a->kind != b->kind || a->n_attr != b->n_attr)
		return false;
	for (int i = 0; i < a->n_attr; i++) {
		const Attr *x = &a->attr[i], *y = &b->attr[i];
		if (x->i != y->i || x->f != y->f || strcmp(x->s ? x->s : "", y->s ? y->s : "") != 0)
			return false;
	}
	for (int k = 0; k < op_info[a->kind].n_arg; k++) {
		int va = a->arg[k], vb = b->arg[k];
		if ((va < 0) != (vb < 0))
			return false;
		if (va < 0)
			continue;
		const Value *x = &g->val[va], *y = &g->val[vb];
		if (x->kind != y->kind || x->rows != y->rows || x->dtype != y->dtype ||
		    x->dim[1] != y->dim[1] || memcmp(x->held, y->held, sizeof x->held) != 0)
			return false;
		if (x->kind == VAL_WEIGHT &&
		    (x->dim[0] != y->dim[0] ||
		     strcmp(g->tensor[x->tensor].layout, g->tensor[y->tensor].layout) != 0))
			return false;
		if (x->kind == VAL_POOL && !same_pool(&g->pool[x->tensor], &g->pool[y->tensor]))
			return false;
	}
	return true;
}

typedef struct KernelMemo {
	const Op *op;
	int kernel;
} KernelMemo;

typedef struct Select {
	Graph *g;
	const Templates *ts;
	Diag *d;
	Selection *sel;
	KernelMemo *memo[PHASES];
	int n_memo[PHASES];
	bool warned[OP_COUNT];
	size_t cap_kernel, cap_op;
} Select;

static int
kernel_index(Select *s, const Kernel *k, int op)
{
	Selection *sel = s->sel;
	Arena *a = s->g->arena;

	for (int i = 0; i < sel->n_kernel; i++)
		if (strcmp(sel->kernel[i]->row.id, k->row.id) == 0)
			return i;
	sel->kernel = arena_grow(a, sel->kernel, &s->cap_kernel, (size_t)sel->n_kernel + 1,
	                         sizeof *sel->kernel);
	sel->kernel_op = arena_grow(a, sel->kernel_op, &s->cap_op, (size_t)sel->n_kernel + 1,
	                            sizeof *sel->kernel_op);
	const int at = sel->n_kernel++;
	sel->kernel[at] = k;
	sel->kernel_op[at] = op;
	for (int i = 0; i < k->n_product; i++)
		kernel_index(s, k->product[i], op);
	return at;
}

static int
kernel_for(Select *s, int i, int phase)
{
	Graph *g = s->g;
	const Op *op = &g->op[i];

	if (!s->ts || op_info[op->kind].flags & OPF_COMM)
		return -1;
	for (int m = s->n_memo[phase]; m-- > 0;)
		if (same_use(g, s->memo[phase][m].op, op))
			return s->memo[phase][m].kernel;
	/* Decode rows use the kernels of mixed steps in three cases: if results must not depend on
	 * the batch; in encoders, which have no decode steps; and if latent attention always uses
	 * the expanded form, because decode kernels use the absorbed one. */
	bool one = templates_one_phase(s->ts, g) || op_int(op, "expand") == MLA_EXPAND_ALWAYS;
	int as = one ? PHASE_MIXED : phase;
	const Template *t = templates_find(s->ts, g, op, as);
	int k = -1;
	if (t) {
		const Kernel *kernel = template_expand(s->ts, t, g, op, as);
		k = kernel ? kernel_index(s, kernel, i) : -1;
	}
	s->memo[phase][s->n_memo[phase]++] = (KernelMemo){ op, k };
	return k;
}

static void
warn_slow(Select *s, const Op *op, const Target *target)
{
	if (s->warned[op->kind])
		return;
	s->warned[op->kind] = true;
	if (target->kind == TARGET_CUDA) {
		err_at(s->d, op->loc, "no kernel for %s on %s", op_info[op->kind].name,
		       target->name);
	} else
		warn_at(s->d, op->loc, "no tuned kernel for %s on %s: the slow reference runs it",
		        op_info[op->kind].name, target->name);
}

/* Do not pack matrices that only the reference reads. Embeddings keep the layout of the kernel that
 * reads them. */
static void
unpack_unused(Graph *g, const Selection *sel)
{
	bool *used = NEW(g->arena, bool, g->n_tensor + 1);

	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step; i++)
			for (int k = 0;
			     sel->step[ph][i].kernel >= 0 && k < op_info[g->op[i].kind].n_in; k++) {
				int v = g->op[i].arg[k];
				if (v >= 0 && g->val[v].kind == VAL_WEIGHT)
					used[g->val[v].tensor] = true;
			}
	for (size_t i = 0; i < g->n_tensor; i++)
		if (!used[i] && g->tensor[i].cols > 0 && strcmp(g->tensor[i].layout, "f32") != 0)
			g->tensor[i].layout = "row";
}

Selection *
select_steps(Graph *g, const Templates *ts, Diag *d)
{
	Arena *a = g->arena;
	Selection *sel = NEW(a, Selection, 1);
	Select s = { .g = g, .ts = ts, .d = d, .sel = sel };
	int errors = d->n_error;

	sel->n_step = (int)g->n_op;
	for (int ph = 0; ph < PHASES; ph++) {
		sel->step[ph] = NEW(a, Step, g->n_op);
		s.memo[ph] = NEW(a, KernelMemo, g->n_op);
		for (int i = 0; i < sel->n_step; i++) {
			int k = kernel_for(&s, i, ph);
			sel->step[ph][i] = (Step){ .op = i, .kernel = k };
			if (k < 0 && ts && !(op_info[g->op[i].kind].flags & OPF_COMM))
				warn_slow(&s, &g->op[i], templates_target(ts));
		}
	}
	if (d->n_error > errors)
		return NULL;
	unpack_unused(g, sel);
	return sel;
}
