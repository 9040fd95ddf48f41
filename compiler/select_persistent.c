/* Select the form of decode steps: one launch per op, or one persistent kernel that runs the bodies
 * of all ops (docs/internals/persistent-step.md).
 *
 *   requires  kernels of all steps are selected
 *   effect    adds to the selection the kernel, or the reason why there is none */
#include "compiler/select_kernels.h"

#include <string.h>

static const char *
op_text(const Graph *g, const Op *op)
{
	return op->layer < 0
	           ? arena_printf(g->arena, "%s", op_info[op->kind].name)
	           : arena_printf(g->arena, "%s of layer %d", op_info[op->kind].name, op->layer);
}

/* Collect the distinct kernels of decode steps. Returns the reason why they cannot be one kernel,
 * or NULL. */
static const char *
collect(const Graph *g, Selection *sel)
{
	PlanPersistent *p = &sel->persistent;

	for (int i = 0; i < sel->n_step; i++) {
		const Step *step = &sel->step[PHASE_DECODE][i];
		const Op *op = &g->op[step->op];
		if (step->kernel < 0 || !sel->kernel[step->kernel]->has_body)
			return arena_printf(g->arena, "%s has no body for it", op_text(g, op));
		if (plan_body_of(p, step->kernel) >= 0)
			continue;
		if (p->n_body == PLAN_MAX_BODIES)
			return arena_printf(g->arena, "more than %d different kernels",
			                    PLAN_MAX_BODIES);
		p->body[p->n_body++] = step->kernel;
	}
	return sel->n_step < 2 ? "the model has a single op" : NULL;
}

/* Append a kernel that no step names. */
static int
add_kernel(const Graph *g, Selection *sel, const Kernel *k)
{
	const size_t n = (size_t)sel->n_kernel;
	const Kernel **kernel = NEW(g->arena, const Kernel *, n + 1);
	int *op = NEW(g->arena, int, n + 1);

	memcpy(kernel, sel->kernel, n * sizeof *kernel);
	memcpy(op, sel->kernel_op, n * sizeof *op);
	kernel[n] = k;
	sel->kernel = kernel;
	sel->kernel_op = op;
	return sel->n_kernel++;
}

void
select_persistent(const Graph *g, const Templates *ts, Selection *sel)
{
	PlanPersistent *p = &sel->persistent;
	const Kernel *body[PLAN_MAX_BODIES], *k = NULL;

	*p = (PlanPersistent){ 0 };
	if (!g->spec->persistent || !ts || templates_target(ts)->kind != TARGET_CUDA)
		return;
	p->why = collect(g, sel);
	for (int i = 0; i < p->n_body; i++)
		body[i] = sel->kernel[p->body[i]];
	if (!p->why)
		k = template_persistent(ts, body, p->n_body, &p->why);
	if (k)
		p->kernel = add_kernel(g, sel, k);
	else
		p->n_body = 0;
}
