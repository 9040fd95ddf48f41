/* Weights that decode kernels of GPUs prefetch to L2 for later steps.
 *
 *   requires  steps and kernels of the plan
 *   effect    prefetch of decode steps, l2_budget
 *
 * Without prefetches, memory is idle between the last byte of a kernel and the first load of the
 * next, and during attention and routing. A kernel whose template has @prefetch therefore
 * prefetches weights of following steps when its own reads end; its CTAs without work prefetch at
 * once. Prefetched bytes that have not been read yet never exceed a quarter of L2, so that they are
 * not evicted. If several kernels precede a reader, they share its bytes: q/k/v and attention
 * prefetch one half of o each. The list of steps is cyclic: the last step is followed by the first
 * one of the next token. */
#include <string.h>

#include "compiler/cost_model.h"
#include "compiler/select_kernels.h"

enum {
	L2_SHARE = 4,     /* divisor: a quarter of L2 is used for prefetched bytes */
	REACH = 3,        /* maximum number of launches between a prefetch and its reader */
	BETWEEN_STEPS = 2 /* launches between two steps: sampling, and the begin of the next step */
};

typedef struct Prefetches {
	const Graph *g;
	const Selection *sel;
	Plan *p;
	int n; /* steps */
	int64_t *
	    planned; /* [n][PLAN_MAX_ARGS] bytes of each argument for which a prefetch is planned */
} Prefetches;

static int64_t *
planned(const Prefetches *f, int step, int arg)
{
	return &f->planned[step * PLAN_MAX_ARGS + arg];
}

/* Return the bytes of argument k of a step if a decode kernel streams all of it, i.e. if it is a
 * matrix and neither a table nor a stack of experts. Otherwise 0. */
static int64_t
streamed_bytes(const Prefetches *f, int step, int k)
{
	const PlanStep *s = &f->p->phase[PHASE_DECODE].step[step];
	const Op *op = &f->g->op[f->sel->step[PHASE_DECODE][step].op];
	ArgShape shape[OP_MAX_ARGS];

	if (k >= op_info[s->op].n_in || s->arg[k].kind != REF_TENSOR ||
	    op_info[s->op].arg[k].role == ROLE_TABLE || !s->weight_bytes)
		return 0;
	graph_shapes(f->g, op, shape);
	const PlanTensor *t = &f->p->tensor[s->arg[k].index];
	return t->cols && !t->factor && shape[k].pieces == 1 ? plan_tensor_bytes(t) : 0;
}

static bool
streams(const Prefetches *f, int step)
{
	for (int k = 0; k < PLAN_MAX_ARGS; k++)
		if (streamed_bytes(f, step, k) > 0)
			return true;
	return false;
}

/* Return the number of launches from the beginning of a step to that of the next one. */
static int
launches(const Prefetches *f, int step)
{
	const int k = f->p->phase[PHASE_DECODE].step[step].kernel;

	return (k < 0 ? 1 : f->p->kernel[k].n_launch) + (step + 1 == f->n ? BETWEEN_STEPS : 0);
}

/* Return whether the step's kernel prefetches. */
static bool
prefetches(const Prefetches *f, int step)
{
	const int k = f->p->phase[PHASE_DECODE].step[step].kernel;

	return k >= 0 && f->sel->kernel[k]->prefetch;
}

static void
add(Prefetches *f, int from, int step, int k, int64_t *bytes)
{
	PlanStep *s = &f->p->phase[PHASE_DECODE].step[from];
	const PlanStep *reader = &f->p->phase[PHASE_DECODE].step[step];
	int64_t *first = planned(f, step, k), left = streamed_bytes(f, step, k) - *first;
	const int64_t n = left < *bytes ? left : *bytes;

	if (n <= 0 || s->n_prefetch == PLAN_MAX_PREFETCH - 1)
		return;
	s->prefetch[s->n_prefetch++] = (PlanPrefetch){
		.tensor = reader->arg[k].index,
		.runs = reader->op == OP_norm_glu ? 2 : 1,
		.first = *first,
		.bytes = n,
	};
	*first += n;
	*bytes -= n;
}

/* Prefetch matrices of the experts that this step has selected and that the next step reads. */
static void
add_experts(Prefetches *f, int from, int64_t bytes)
{
	PlanStep *s = &f->p->phase[PHASE_DECODE].step[from];
	const int next = from + 1;

	if (next == f->n || f->p->phase[PHASE_DECODE].step[next].op != OP_moe_down_add ||
	    !f->sel->kernel[s->kernel]->prefetch_experts)
		return;
	const PlanStep *reader = &f->p->phase[PHASE_DECODE].step[next];
	ArgShape shape[OP_MAX_ARGS];
	graph_shapes(f->g, &f->g->op[f->sel->step[PHASE_DECODE][next].op], shape);
	for (int k = 0; k < op_info[reader->op].n_in; k++) {
		if (reader->arg[k].kind != REF_TENSOR || shape[k].pieces <= 1)
			continue;
		const PlanTensor *t = &f->p->tensor[reader->arg[k].index];
		if (!t->cols || t->factor || f->p->ranks > 1)
			continue;
		const int64_t one = plan_tensor_bytes(t) / shape[k].pieces;
		const int64_t many = one > 0 && one < bytes ? bytes / one : 1;
		const int64_t n = many < shape[k].used ? many : shape[k].used;
		s->prefetch[s->n_prefetch++] = (PlanPrefetch){
			.tensor = reader->arg[k].index,
			.runs = 1,
			.experts = (int)shape[k].pieces,
			.bytes = n * one < bytes ? n * one : bytes,
		};
		return;
	}
}

/* Set the prefetches of one step: its share of the bytes that fit. Nothing is prefetched across a
 * step that reads more than the budget, because it would be evicted. */
static void
plan_one(Prefetches *f, int from, int64_t budget)
{
	PlanStep *s = &f->p->phase[PHASE_DECODE].step[from];
	int64_t left = budget, passed = 0;
	int producers = 1;

	s->n_prefetch = 0;
	for (int k = 0; k < PLAN_MAX_ARGS; k++)
		/* this step reads the bytes; later prefetches are for the next token */
		*planned(f, from, k) = 0;
	if (!prefetches(f, from))
		return;
	for (int i = 0; i < f->n * PLAN_MAX_ARGS; i++)
		left -= f->planned[i];
	for (int i = 1; i < f->n && !streams(f, (from + i) % f->n); i++)
		producers += prefetches(f, (from + i) % f->n);
	if (s->op == OP_norm_moe_glu)
		add_experts(f, from, producers > 1 ? left : left / 2);
	left /= producers;
	for (int i = 1, after = launches(f, from) - 1; i < f->n && left > 0; i++) {
		const int step = (from + i) % f->n;
		if (after > REACH || passed > budget)
			return;
		for (int k = 0; k < PLAN_MAX_ARGS; k++)
			if (streamed_bytes(f, step, k) > 0)
				add(f, from, step, k, &left);
		after += launches(f, step);
		passed += plan_step_weights(f->p, &f->p->phase[PHASE_DECODE].step[step], 1);
	}
}

void
emit_prefetch(const Graph *g, const Selection *sel, Plan *p)
{
	Prefetches f = { .g = g, .sel = sel, .p = p, .n = sel->n_step };
	const int64_t budget = gpu_largest_l2(p->target) / L2_SHARE;

	if (!g->spec->prefetch || budget == 0)
		return;
	f.planned = NEW(g->arena, int64_t, (size_t)sel->n_step *PLAN_MAX_ARGS + 1);
	/* two rounds, because in the first one the first steps have no predecessors yet */
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < sel->n_step; i++)
			plan_one(&f, i, budget);
	for (int i = 0; i < sel->n_step; i++)
		if (p->phase[PHASE_DECODE].step[i].n_prefetch)
			p->l2_budget = budget;
}
