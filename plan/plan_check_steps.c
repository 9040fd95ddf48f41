/* Checks the steps of a plan. Every argument is large enough for its kernel or the reference. Every
 * value is written before it is read, and not overwritten in between. No output overlaps memory
 * that the same step still reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_check.h"

#define BAD(c, ...) fault((c), __VA_ARGS__)

typedef struct StepsCheck {
	const Plan *p;
	llmc_error *err;
	const PlanPhase *phase;
	const PlanStep *step;
	int number;
	int *writer; /* [n_buffer] step that wrote the current content; -1: no content */
	int *next;   /* [n_buffer] next buffer in the same slot */
	int *first;  /* [n_slot] first buffer in the slot */
} StepsCheck;

static llmc_status fault(const StepsCheck *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static llmc_status
fault(const StepsCheck *c, const char *fmt, ...)
{
	char text[700];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return error_set(c->err, LLMC_E_INPUT, "phase %s, step[%d] (%s): %s", c->phase->id,
	                 c->number, op_info[c->step->op].name, text);
}

static int64_t
type_bytes(const char *type)
{
	return !strcmp(type, "u8") ? 1 : dtype_info(dtype_from_text(type))->block_bytes;
}

static llmc_status
check_kernel_arg(const StepsCheck *c, int i)
{
	const PlanKernelArg *k = &c->p->kernel[c->step->kernel].arg[i];
	const PlanRef *a = &c->step->arg[i];

	if (k->dir == DIR_NONE) {
		if (a->kind != REF_NONE)
			return BAD(c, "argument %s must be null: the kernel does not use it",
			           k->name);
		return LLMC_OK;
	}
	if (k->dir == DIR_POOL || k->dir == DIR_ROPE) {
		if (a->kind != (k->dir == DIR_POOL ? REF_POOL : REF_ROPE))
			return BAD(c, "argument %s must be a %s", k->name,
			           k->dir == DIR_POOL ? "pool" : "rotary table");
		return LLMC_OK;
	}
	if (a->kind == REF_TENSOR && k->dir == DIR_IN) {
		const PlanTensor *t = &c->p->tensor[a->index];
		/* plan_check_op checks the shape from the op's attributes */
		if (!strcmp(k->type, "packed"))
			return LLMC_OK;
		Dtype d = !strcmp(t->layout, "f32") ? DT_F32 : t->dtype;
		const PlanExtent have = { SYM_one, t->rows * (t->cols ? t->cols : 1), 1 };
		if ((strcmp(t->layout, "f32") && strcmp(t->layout, "row")) ||
		    strcmp(k->type, dtype_text(d)))
			return BAD(c, "argument %s is %s in layout %s, the kernel reads %s",
			           k->name, dtype_text(d), t->layout, k->type);
		if (!plan_extent_within(&k->extent, 1, &have, 1))
			return BAD(c,
			           "argument %s: tensor %s is smaller than what the kernel reads",
			           k->name, t->id);
		return LLMC_OK;
	}
	if (a->kind != REF_BUFFER || !strcmp(k->type, "packed"))
		return BAD(c, "argument %s must be a %s", k->name,
		           k->dir == DIR_IN ? "tensor or a buffer" : "buffer");
	const PlanBuffer *b = &c->p->buffer[a->index];
	if (strcmp(k->type, "u8") && strcmp(k->type, dtype_text(b->dtype)))
		return BAD(c, "argument %s: buffer %s is %s, the kernel needs %s", k->name, b->id,
		           dtype_text(b->dtype), k->type);
	if (!plan_extent_within(&k->extent, type_bytes(k->type), &b->extent,
	                        dtype_info(b->dtype)->block_bytes))
		return BAD(c,
		           "argument %s: buffer %s is smaller than what the kernel uses, for some "
		           "values of the symbols",
		           k->name, b->id);
	return LLMC_OK;
}

/* Checks the weight of a library GEMM: all columns of y by all columns of act. Its other arguments
 * are checked as the kernel's. */
static llmc_status
check_library_gemm(const StepsCheck *c, const PlanKernel *k, const PlanGemm *p)
{
	const PlanRef *r = &c->step->arg[p->w];
	int64_t rows = k->arg[p->y].extent.mul, cols = k->arg[p->act].extent.mul;

	if (r->kind != REF_TENSOR)
		return BAD(c, "argument %s must be a tensor: a library multiplies by it",
		           k->arg[p->w].name);
	const PlanTensor *t = &c->p->tensor[r->index];
	if ((t->dtype != DT_F16 && t->dtype != DT_BF16) || strcmp(t->layout, "row"))
		return BAD(c,
		           "tensor %s is %s in layout %s, a library multiplies by f16 or bf16 in "
		           "layout row",
		           t->id, dtype_text(t->dtype), t->layout);
	if (t->rows != rows || t->cols != cols)
		return BAD(c, "tensor %s is [%lld, %lld], the library GEMM needs [%lld, %lld]",
		           t->id, (long long)t->rows, (long long)t->cols, (long long)rows,
		           (long long)cols);
	if (strcmp(k->arg[p->y].type, "f32") && strcmp(k->arg[p->y].type, dtype_text(t->dtype)))
		return BAD(c,
		           "argument %s is %s: a library stores f32 or the type of the weights, "
		           "%s",
		           k->arg[p->y].name, k->arg[p->y].type, dtype_text(t->dtype));
	return LLMC_OK;
}

static PlanDir
direction(const StepsCheck *c, int i)
{
	if (c->step->arg[i].kind != REF_BUFFER)
		return DIR_NONE;
	if (c->step->kernel >= 0)
		return c->p->kernel[c->step->kernel].arg[i].dir;
	return i < op_info[c->step->op].n_in ? DIR_IN : DIR_OUT;
}

static llmc_status
check_aliases(const StepsCheck *c)
{
	const OpInfo *op = &op_info[c->step->op];

	for (int i = 0; i < c->step->n_arg; i++) {
		PlanDir di = direction(c, i);
		if (di == DIR_NONE || di == DIR_IN)
			continue;
		const PlanBuffer *bi = &c->p->buffer[c->step->arg[i].index];
		for (int j = 0; j < c->step->n_arg; j++) {
			PlanDir dj = direction(c, j);
			if (j == i || dj == DIR_NONE || (dj != DIR_IN && j > i))
				continue;
			const PlanBuffer *bj = &c->p->buffer[c->step->arg[j].index];
			if (bi->slot != bj->slot)
				continue;
			/* allowed in place: an elementwise op reads and writes the same elements at
			 * the same addresses */
			if (dj == DIR_IN && di != DIR_SCRATCH && bi->dtype == bj->dtype &&
			    j < op->n_in && role_in_place(op->arg[j].role))
				continue;
			return BAD(c, "buffers %s and %s share memory", bi->id, bj->id);
		}
	}
	return LLMC_OK;
}

/* Checks that every buffer is written before it is read. i32 buffers hold indices, so writer and
 * reader must agree on their range. */
static llmc_status
check_reads(const StepsCheck *c)
{
	for (int i = 0; i < c->step->n_arg; i++) {
		PlanDir d = direction(c, i);
		if (d != DIR_IN && d != DIR_INOUT)
			continue;
		int at = c->step->arg[i].index;
		const PlanBuffer *b = &c->p->buffer[at];
		if (c->writer[at] < 0)
			return BAD(c,
			           "buffer %s is read, but no step has written it since its "
			           "memory was reused",
			           b->id);
		const PlanStep *w = &c->phase->step[c->writer[at]];
		if (b->dtype == DT_I32 &&
		    (step_int(w, w->op == OP_local_experts ? "count" : "n_experts") !=
		         step_int(c->step, "n_experts") ||
		     step_int(w, "top_k") != step_int(c->step, "top_k") ||
		     step_int(w, "index_top_k") != step_int(c->step, "index_top_k")))
			return BAD(c, "buffer %s holds indices of step[%d] for other sizes", b->id,
			           c->writer[at]);
		const int64_t others =
		    w->op == OP_local_experts ? step_int(w, "n_experts") - step_int(w, "count") : 0;
		if (b->dtype == DT_I32 && others != step_int(c->step, "n_remote_experts"))
			return BAD(c,
			           "buffer %s holds -1 for %lld experts of other ranks "
			           "(step[%d]), but n_remote_experts is %lld",
			           b->id, (long long)others, c->writer[at],
			           (long long)step_int(c->step, "n_remote_experts"));
	}
	return LLMC_OK;
}

static void
note_writes(StepsCheck *c)
{
	for (int i = 0; i < c->step->n_arg; i++) {
		PlanDir d = direction(c, i);
		if (d != DIR_OUT && d != DIR_INOUT && d != DIR_SCRATCH)
			continue;
		int at = c->step->arg[i].index;
		for (int o = c->first[c->p->buffer[at].slot]; o >= 0; o = c->next[o])
			c->writer[o] = -1;
	}
	for (int i = 0; i < c->step->n_arg; i++) {
		PlanDir d = direction(c, i);
		if (d == DIR_OUT || d == DIR_INOUT)
			c->writer[c->step->arg[i].index] = c->number;
	}
}

/* Checks that prefetches occur in GPU decode steps only, and stay within their tensors. */
static llmc_status
check_prefetch(const StepsCheck *c)
{
	const PlanStep *s = c->step;
	int n = 0;

	/* only kernels of GPUs have launches */
	if (s->n_prefetch && (c->phase != &c->p->phase[0] || s->kernel < 0 ||
	                      !c->p->kernel[s->kernel].n_launch || !c->p->l2_budget))
		return BAD(c, "prefetches weights, which only decode kernels of GPUs do, within "
		              "the plan's l2_budget");
	for (int i = 0; i < s->n_prefetch; i++) {
		const PlanPrefetch *f = &s->prefetch[i];
		const PlanTensor *t = &c->p->tensor[f->tensor];
		const int64_t bytes = plan_tensor_bytes(t);
		n += f->experts == 0;
		if (!t->cols || f->first > bytes || f->bytes > bytes - f->first)
			return BAD(c,
			           "prefetches bytes %lld to %lld of tensor %s, a matrix of %lld",
			           (long long)f->first, (long long)(f->first + f->bytes), t->id,
			           (long long)(t->cols ? bytes : 0));
		if (f->experts && (f->first || f->runs != 1 || t->rows % f->experts))
			return BAD(c, "prefetches %d experts of tensor %s", f->experts, t->id);
	}
	return n <= PLAN_MAX_PREFETCH - 1 && s->n_prefetch - n <= 1
	           ? LLMC_OK
	           : BAD(c, "prefetches %d matrices and %d stacks of experts", n,
	                 s->n_prefetch - n);
}

static llmc_status
check_step(StepsCheck *c)
{
	const PlanStep *s = c->step;

	if (plan_check_op(c->p, s, c->err) != LLMC_OK)
		return error_prefix(c->err, "phase %s, step[%d]", c->phase->id, c->number),
		       LLMC_E_INPUT;
	if (s->kernel >= 0) {
		const PlanKernel *k = &c->p->kernel[s->kernel];
		if (s->n_arg != k->n_arg)
			return BAD(c, "%d arguments, kernel %s takes %d", s->n_arg, k->id,
			           k->n_arg);
		for (int i = 0; i < s->n_arg; i++)
			TRY(check_kernel_arg(c, i));
		if (plan_library_gemm(k))
			TRY(check_library_gemm(c, k, plan_library_gemm(k)));
	}
	TRY(check_prefetch(c));
	TRY(check_reads(c));
	TRY(check_aliases(c));
	note_writes(c);
	return LLMC_OK;
}

llmc_status
plan_check_steps(const Plan *p, llmc_error *err)
{
	StepsCheck c = { .p = p, .err = err };
	llmc_status status = LLMC_OK;

	c.writer = calloc((size_t)p->n_buffer + 1, sizeof *c.writer);
	c.next = calloc((size_t)p->n_buffer + 1, sizeof *c.next);
	c.first = calloc((size_t)p->n_slot + 1, sizeof *c.first);
	if (!c.writer || !c.next || !c.first) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
		goto fail;
	}
	for (int i = 0; i < p->n_slot; i++)
		c.first[i] = -1;
	for (int i = 0; i < p->n_buffer; i++) {
		c.next[i] = c.first[p->buffer[i].slot];
		c.first[p->buffer[i].slot] = i;
	}
	for (int ph = 0; ph < p->n_phase; ph++) {
		c.phase = &p->phase[ph];
		for (int i = 0; i < p->n_buffer; i++)
			c.writer[i] = -1;
		int enters = 0;
		for (c.number = 0; c.number < c.phase->n_step; c.number++) {
			c.step = &c.phase->step[c.number];
			TRY_GOTO(check_step(&c));
			enters += c.step->op == OP_stage_in;
		}
		if (enters != (p->stage > 0 || plan_takes_rows(p))) {
			status = error_set(err, LLMC_E_INPUT,
			                   "phase %s: stage %d of %d has %d stage_in, expected %d",
			                   c.phase->id, p->stage, p->stages, enters,
			                   p->stage > 0 || plan_takes_rows(p));
			goto fail;
		}
		if (p->outputs_rows && c.writer[p->rows] < 0) {
			status = error_set(err, LLMC_E_INPUT,
			                   "phase %s: no step writes rows to buffer %s",
			                   c.phase->id, p->buffer[p->rows].id);
			goto fail;
		}
		if (c.writer[p->logits] < 0) {
			status = error_set(err, LLMC_E_INPUT,
			                   "phase %s: no step writes logits to buffer %s",
			                   c.phase->id, p->buffer[p->logits].id);
			goto fail;
		}
	}
fail:
	free(c.writer);
	free(c.next);
	free(c.first);
	return status;
}
