/* Checks a step against its op: attributes and arguments match the op's row, and tensors, buffers,
 * rotary tables and pools have the resulting shapes. */
#include "plan/plan_check.h"

#include <string.h>

typedef struct OpCheck {
	const Plan *p;
	const PlanStep *step;
	llmc_error *err;
	const OpInfo *op;
	PlanSym rows; /* symbol of the inputs' row count */
} OpCheck;

#define BAD(k, ...) error_set((k)->err, LLMC_E_INPUT, __VA_ARGS__)

/* Checks presence and index of each argument. */
static llmc_status
check_args(const OpCheck *k)
{
	const PlanStep *s = k->step;
	int n = k->op->n_arg;

	if (s->n_arg < n || (s->n_arg > n && s->kernel < 0))
		return BAD(k, "%s: %d arguments, expected %d%s", k->op->name, s->n_arg, n,
		           s->kernel < 0 ? "" : " and more");
	for (int i = 0; i < n; i++) {
		const PlanRef *a = &s->arg[i];
		const int limit[] = { [REF_NONE] = INT32_MAX,
			              [REF_TENSOR] = k->p->n_tensor,
			              [REF_BUFFER] = k->p->n_buffer,
			              [REF_POOL] = k->p->n_pool,
			              [REF_ROPE] = k->p->n_rope };
		if (a->kind != REF_NONE && (a->index < 0 || a->index >= limit[a->kind]))
			return BAD(k, "%s: argument %s has the index %d, of %d", k->op->name,
			           k->op->arg[i].name, a->index, limit[a->kind]);
	}
	return LLMC_OK;
}

/* Checks that an argument is a buffer with at least `width` elements per row */
static llmc_status
check_buffer(const OpCheck *k, const char *name, const PlanRef *a, const ArgShape *want,
             PlanSym rows)
{
	if (a->kind != REF_BUFFER)
		return BAD(k, "%s: argument %s is not a buffer", k->op->name, name);
	const PlanBuffer *b = &k->p->buffer[a->index];
	/* a 16-bit type is allowed instead of fp32 if the step's kernel has that type too
	 * (plan_check_steps.c) */
	if (b->dtype != want->dtype &&
	    (k->step->kernel < 0 || want->dtype != DT_F32 || b->dtype != DT_BF16))
		return BAD(k, "%s: argument %s is %s, expected %s", k->op->name, name,
		           dtype_text(b->dtype), dtype_text(want->dtype));
	if (b->extent.sym != rows || b->extent.div > 1 || b->extent.mul < want->cols)
		return BAD(k, "%s: buffer %s does not hold %lld elements for each row", k->op->name,
		           b->id, (long long)want->cols);
	return LLMC_OK;
}

/* Checks that an argument is a matrix with at least this many rows, or a vector with exactly this
 * many elements */
static llmc_status
check_weight(const OpCheck *k, const char *name, const PlanRef *a, const ArgShape *want)
{
	if (a->kind != REF_TENSOR)
		return BAD(k, "%s: argument %s is not a tensor", k->op->name, name);
	const PlanTensor *t = &k->p->tensor[a->index];
	if (t->cols != want->cols || (want->cols ? t->rows < want->rows : t->rows != want->rows))
		return BAD(k, "%s: tensor %s is %lld x %lld, expected %lld x %lld", k->op->name,
		           t->id, (long long)t->rows, (long long)t->cols, (long long)want->rows,
		           (long long)want->cols);
	if (!(k->op->flags & OPF_LORA))
		return LLMC_OK;
	/* the op must not use more slots than the tensor has, and must have its rank, on which
	 * offsets depend. With one matrix both kinds of factor have the same layout */
	const OpKind op = k->step->op;
	const bool experts =
	    op == OP_lora_experts_down || op == OP_lora_experts_up || op == OP_lora_experts_add;
	const bool down = op == OP_lora_down || op == OP_lora_experts_down,
	           heads = op == OP_lora_heads_down || op == OP_lora_heads_up;
	if ((heads ? t->factor == FACTOR_NONE : t->factor != (down ? FACTOR_A : FACTOR_B)) ||
	    t->slots != step_int(k->step, "slots") || t->rank != step_int(k->step, "rank") ||
	    t->n_src != (down || op == OP_lora_experts_up ? step_int(k->step, "count") : 1) ||
	    t->experts != (experts ? step_int(k->step, "n_experts") : 0))
		return BAD(k, "%s: tensor %s is not a factor with the op's slots and rank",
		           k->op->name, t->id);
	return LLMC_OK;
}

static llmc_status
check_rope(const OpCheck *k, const char *name, const PlanRef *a, const ArgShape *want)
{
	if (a->kind != REF_ROPE)
		return BAD(k, "%s: argument %s is not a rotary table", k->op->name, name);
	int dims = k->p->rope[a->index].dims;
	if (dims != want->cols || dims < 2 || dims % 2)
		return BAD(k,
		           "%s: rotary table %d has %d elements, expected %lld, and an even number",
		           k->op->name, a->index, dims, (long long)want->cols);
	return LLMC_OK;
}

static llmc_status
check_pool(const OpCheck *k, const char *name, const PlanRef *a, const PoolShape *want)
{
	if (a->kind != REF_POOL)
		return BAD(k, "%s: argument %s is not a pool", k->op->name, name);
	const PlanPool *p = &k->p->pool[a->index];
	if (p->mla != want->mla || p->state != want->state || p->kv_heads != want->kv_heads ||
	    p->k_dim != want->k_dim || p->v_dim != want->v_dim)
		return BAD(k, "%s: pool %s differs from the op in head counts or dimensions",
		           k->op->name, p->id);
	if (a->layer_slot < 0 || a->layer_slot >= p->n_layers)
		return BAD(k, "%s: layer %d of pool %s, which has %d", k->op->name, a->layer_slot,
		           p->id, p->n_layers);
	if (k->step->op == OP_kv_quantize_page && !kv_by_channel(p->k))
		return BAD(k, "%s: keys of pool %s need a per-channel type, but have %s",
		           k->op->name, p->id, kv_type_info(p->k)->text);
	int64_t window = step_int(k->step, "window");
	if (p->keep && k->op->flags & OPF_READS_KV && (window < 1 || window > p->keep))
		return BAD(k,
		           "%s: a window of %lld positions (0: all) over pool %s, which keeps %lld",
		           k->op->name, (long long)window, p->id, (long long)p->keep);
	return LLMC_OK;
}

static llmc_status
check_arg(const OpCheck *k, int i, const ArgShape *want)
{
	const OpArg *arg = &k->op->arg[i];
	const PlanRef *a = &k->step->arg[i];

	if (a->kind == REF_NONE && want->kind != VAL_ORDER)
		return role_may_lack(arg->role)
		           ? LLMC_OK
		           : BAD(k, "%s: argument %s is missing", k->op->name, arg->name);
	switch (want->kind) {
	case VAL_ACT:
		return check_buffer(k, arg->name, a, want,
		                    arg->role == ROLE_OUT && k->op->flags & OPF_GATHER ? SYM_n_out
		                                                                       : k->rows);
	case VAL_WEIGHT:
		return check_weight(k, arg->name, a, want);
	case VAL_ROPE:
		return check_rope(k, arg->name, a, want);
	case VAL_POOL:
		return check_pool(k, arg->name, a, &want->pool);
	case VAL_ORDER:
		break;
	}
	return LLMC_OK;
}

/* Checks the selection of an indexer: ops that use one need a buffer with the positions, and other
 * ops must not have one. */
static llmc_status
check_choice(const OpCheck *k)
{
	const PlanStep *s = k->step;

	if (s->op != OP_mla_attention && s->op != OP_mla_attend)
		return LLMC_OK;
	const PlanRef *sel =
	    &s->arg[s->op == OP_mla_attend ? ARG(mla_attend, sel) : ARG(mla_attention, sel)];
	const int64_t chosen = step_int(s, "index_top_k");
	if ((chosen > 0) != (sel->kind != REF_NONE))
		return BAD(k, "%s: index_top_k is %lld, but there is %s argument sel", k->op->name,
		           (long long)chosen, chosen > 0 ? "no" : "an");
	return LLMC_OK;
}

/* Row symbol of the step: that of the output buffer; n_tok for ops that depend on the step's
 * tokens. */
static PlanSym
rows_of(const OpCheck *k)
{
	const PlanRef *y = &k->step->arg[k->op->n_arg - 1];

	if (k->op->flags & OPF_PER_TOKEN || y->kind != REF_BUFFER)
		return SYM_n_tok;
	return k->p->buffer[y->index].extent.sym == SYM_n_out ? SYM_n_out : SYM_n_tok;
}

llmc_status
plan_check_op(const Plan *p, const PlanStep *step, llmc_error *err)
{
	OpCheck k = { .p = p, .step = step, .err = err, .op = &op_info[step->op] };
	const OpModel model = { p->vocab, p->max_positions, p->rank, p->ranks };
	ArgShape shape[OP_MAX_ARGS];
	const char *broken;

	TRY(attr_check(step->op, step->attr, step->n_attr, err));
	TRY(check_args(&k));
	if (step->op == OP_stage_in && p->stage == 0 && !plan_takes_rows(p))
		return BAD(&k, "%s: it needs a previous stage, or rows that come with the tokens",
		           k.op->name);
	if (step->op == OP_stage_in && step_int(step, "hidden") != plan_row_width(p))
		return BAD(&k, "%s: rows of %lld, the previous stage passes on rows of %lld",
		           k.op->name, (long long)step_int(step, "hidden"),
		           (long long)plan_row_width(p));
	const bool crosses = step->op == OP_send || step->op == OP_recv;
	if (crosses && p->partitions < 2)
		return BAD(&k, "%s: the plan is for one device", k.op->name);
	if (step->op == OP_merge_rows && step_int(step, "count") != p->merge)
		return BAD(&k, "%s: it merges %lld rows, the plan merges %lld", k.op->name,
		           (long long)step_int(step, "count"), (long long)p->merge);
	if (k.op->flags & OPF_COMM &&
	    ((step->op != OP_stage_in && !crosses && p->ranks < 2) || step->kernel >= 0))
		return BAD(&k, "%s: %s", k.op->name,
		           step->kernel < 0 ? "the plan is for one rank"
		                            : "it runs between ranks, without a kernel");
	if ((broken = op_shapes(step->op, step->attr, step->n_attr, &model, shape)) != NULL)
		return BAD(&k, "%s: attributes violate the rule %s", k.op->name, broken);
	TRY(check_choice(&k));
	k.rows = rows_of(&k);
	for (int i = 0; i < k.op->n_arg; i++) {
		TRY(check_arg(&k, i, &shape[i]));
		const PlanRef *a = &step->arg[i];
		if (k.op->flags & OPF_COMM && a->kind == REF_TENSOR &&
		    strcmp(p->tensor[a->index].layout, "f32"))
			return BAD(&k, "%s: tensor %s is in layout %s, ranks add f32", k.op->name,
			           p->tensor[a->index].id, p->tensor[a->index].layout);
	}
	return LLMC_OK;
}
