/* Convert Graph and Selection to a Plan: the structs that the runtime reads, and figures for the
 * user */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/build/build_tensor.h"
#include "compiler/select_kernels.h"
#include "templates/common/llmc_mla.h"

/* ---- buffers ---- */

const char *
without_layer(const char *id)
{
	const char *dot = id[0] == 'L' && isdigit((unsigned char)id[1]) ? strchr(id, '.') : NULL;
	return dot ? dot + 1 : id;
}

/* Return a value's name without its layer: "q" for "L3.q", "x" for the stream's "x17". Layers reuse
 * the same memory, so one name stands for all of them. */
static const char *
short_name(const char *id)
{
	id = without_layer(id);
	return id[0] == 'x' && isdigit((unsigned char)id[1]) &&
	               strspn(id + 1, "0123456789") == strlen(id + 1)
	           ? "x"
	           : id;
}

static bool
id_taken(const Plan *p, const char *id)
{
	for (int i = 0; i < p->n_buffer; i++)
		if (strcmp(p->buffer[i].id, id) == 0)
			return true;
	for (int i = 0; i < p->n_tensor; i++)
		if (strcmp(p->tensor[i].id, id) == 0)
			return true;
	return false;
}

static const char *
free_id(const Plan *p, Arena *a, const char *want)
{
	const char *id = want;

	for (int n = 2; id_taken(p, id); n++)
		id = arena_printf(a, "%s_%d", want, n);
	return id;
}

static void
set_draft(const Graph *g, Plan *p)
{
	const Spec *s = g->spec;
	int part;
	const TensorRule *r =
	    strcmp(s->mtp.tokens, "none") != 0
	        ? source_rule_in(s->tensor_rule, s->n_tensor_rule, "mtp_tokens", &part)
	        : NULL;

	p->draft = (PlanDraft){ .row_width = s->mtp.width + s->hidden,
		                .own_at = s->mtp.width,
		                .vocab = s->mtp.vocab,
		                .tokens = r ? r->name : NULL,
		                .offsets = strcmp(s->mtp.tokens, "offsets") == 0,
		                .model = s->mtp.model };
}

/* Merge values that have the same shape and slot into one buffer of the plan. `to` receives, for
 * each MemBuf, the index of its buffer. */
static void
plan_buffers(const Graph *g, const Selection *sel, Plan *p, int *to)
{
	const Op *last = &g->op[g->n_op - 1];
	/* the part of a model on the CPU ends with a send instead of logits */
	int logits =
	    sel->buf_of[PHASE_MIXED]
	               [last->arg[last->kind == OP_send ? ARG(send, x) : op_info[last->kind].n_in]];

	p->buffer = NEW(g->arena, PlanBuffer, sel->n_buf + 1);
	for (int i = 0; i < sel->n_buf; i++) {
		const MemBuf *b = &sel->buf[i];
		int k = 0;
		for (; k < p->n_buffer; k++) {
			const PlanBuffer *o = &p->buffer[k];
			if (o->slot == b->slot && o->dtype == b->dtype &&
			    o->extent.sym == b->extent.sym && o->extent.mul == b->extent.mul &&
			    o->extent.div == b->extent.div)
				break;
		}
		to[i] = k;
		if (k < p->n_buffer)
			continue;
		p->buffer[k] = (PlanBuffer){
			.id = free_id(p, g->arena, short_name(b->id)),
			.dtype = b->dtype,
			.extent = b->extent,
			.slot = b->slot,
		};
		p->n_buffer++;
	}
	p->logits = to[logits];
	p->outputs_rows = g->outputs_rows;
	p->takes_rows = spec_drafts(g->spec);
	if (g->spec->mtp.part == MTP_DRAFT)
		set_draft(g, p);
	p->vision = g->spec->vision.part;
	p->row_width = p->vision == VISION_TOWER ? spec_patch_row(g->spec)
	                                         : g->spec->hidden * (1 + g->spec->vision.n_deep);
	p->merge = p->vision == VISION_TOWER ? g->spec->vision.merge : 1;
	p->class_rows = p->vision == VISION_TOWER && g->spec->vision.class_row;
	p->image_whole = spec_images_whole(g->spec);
	p->image_token = p->vision == VISION_ROWS ? g->spec->vision.token : -1;
	p->rows = g->outputs_rows ? to[sel->buf_of[PHASE_MIXED][g->rows]] : 0;
	if (g->stage + 1 == g->stages && !id_taken(p, "logits"))
		p->buffer[p->logits].id = "logits";
	p->n_slot = sel->n_slot;
	p->slot = sel->slot;
}

/* ---- steps ---- */

static PlanRef
value_ref(const Graph *g, const Selection *sel, const int *to, int phase, int v)
{
	if (v < 0)
		return (PlanRef){ .kind = REF_NONE };
	const Value *val = &g->val[v];
	switch (val->kind) {
	case VAL_ACT:
		return (PlanRef){ .kind = REF_BUFFER, .index = to[sel->buf_of[phase][v]] };
	case VAL_WEIGHT:
		return (PlanRef){ .kind = REF_TENSOR, .index = val->tensor };
	case VAL_ROPE:
		return (PlanRef){ .kind = REF_ROPE, .index = val->tensor };
	case VAL_POOL:
		return (PlanRef){ .kind = REF_POOL,
			          .index = val->tensor,
			          .layer_slot = (int)val->dim[0] };
	case VAL_ORDER:
		break;
	}
	return (PlanRef){ .kind = REF_NONE };
}

/* Set the weight bytes that a step reads in full, and its multiply-adds per row. A gather reads one
 * row of its table and multiplies nothing. The cost of attention is not included, because it
 * depends on lengths. */
static void
step_cost(const Graph *g, const Op *op, int phase, PlanStep *st)
{
	ArgShape shape[OP_MAX_ARGS];

	if (op->kind == OP_mla_attend && phase == PHASE_DECODE &&
	    op_int(op, "expand") != MLA_EXPAND_ALWAYS)
		return; /* only expanded rows use the weights */

	graph_shapes(g, op, shape);
	for (int k = 0; k < op_info[op->kind].n_in; k++) {
		if (op->arg[k] < 0 || shape[k].kind != VAL_WEIGHT ||
		    op_info[op->kind].arg[k].role == ROLE_TABLE)
			continue;
		const PlanTensor *t = &g->tensor[g->val[op->arg[k]].tensor];
		int64_t bytes = plan_tensor_bytes(t);
		st->weight_bytes += bytes > 0 ? bytes : 0;
		st->flops_per_row += 2 * t->rows * t->cols * shape[k].used / shape[k].pieces;
	}
}

static void
step_makes(const Graph *g, const Op *op, PlanStep *st)
{
	for (int k = op_info[op->kind].n_in; k < op_info[op->kind].n_arg; k++)
		if (op->arg[k] >= 0 && g->val[op->arg[k]].kind == VAL_ACT)
			st->make[st->n_make++] = (PlanMake){ g->val[op->arg[k]].name, k };
	for (int i = 0; i < op->n_makes && st->n_make < PLAN_MAX_MAKES; i++) {
		bool held = false;
		for (int k = 0; k < st->n_make; k++)
			held |= strcmp(st->make[k].value, op->makes[i]) == 0;
		if (!held)
			st->make[st->n_make++] = (PlanMake){ op->makes[i], -1 };
	}
}

static void
plan_step(const Graph *g, const Selection *sel, const int *to, const Step *from, int phase,
          PlanStep *st)
{
	const Op *op = &g->op[from->op];

	*st = (PlanStep){
		.op = op->kind,
		.layer = op->layer,
		.kernel = from->kernel,
		.n_attr = op->n_attr,
		.yaml_line = op->loc.resolved,
	};
	step_cost(g, op, phase, st);
	for (int k = 0; k < op_info[op->kind].n_arg; k++) {
		const Value *v = op->arg[k] < 0 ? NULL : &g->val[op->arg[k]];
		if (v && v->held[PHASE_DECODE] != v->held[PHASE_MIXED] && !plan_mixed_serves(st))
			BUG(g->diag, op->loc,
			    "%s: %s has two types in memory, and mixed kernels do not replace the "
			    "decode kernel",
			    op_info[op->kind].name, v->name);
	}
	for (int k = 0; k < op_info[op->kind].n_arg; k++)
		st->arg[st->n_arg++] = value_ref(g, sel, to, phase, op->arg[k]);
	for (int k = 0; k < from->n_scratch; k++)
		st->arg[st->n_arg++] =
		    (PlanRef){ .kind = REF_BUFFER, .index = to[from->scratch[k]] };
	memcpy(st->attr, op->attr, (size_t)op->n_attr * sizeof *st->attr);
	step_makes(g, op, st);
}

/* ---- the rest ---- */

static const char *
scaling_text(RopeScaling s)
{
	switch (s) {
	case SCALE_NONE:
		return "none";
	case SCALE_LINEAR:
		return "linear";
	case SCALE_DYNAMIC:
		return "dynamic";
	case SCALE_YARN:
		return "yarn";
	case SCALE_LLAMA3:
		return "llama3";
	case SCALE_LONGROPE:
		return "longrope";
	case SCALE_PROPORTIONAL:
		return "proportional";
	}
	return "none";
}

/* sections matter only for images: the positions of text are equal in all of them */
static PlanRope
plan_rope(const RopeTable *r, int axis, bool images)
{
	return (PlanRope){
		.theta = r->theta,
		.dims = r->dims,
		.scaling = scaling_text(r->scaling),
		.factor = r->factor,
		.turning = r->turning,
		.original_positions = r->original_positions,
		.low_freq_factor = r->low_freq_factor,
		.high_freq_factor = r->high_freq_factor,
		.beta_fast = r->beta_fast,
		.beta_slow = r->beta_slow,
		.attention_factor = r->attention_factor,
		.mscale = r->mscale,
		.mscale_all_dim = r->mscale_all_dim,
		.truncate = r->truncate,
		.n_short = r->n_short,
		.n_long = r->n_long,
		.short_factor = r->short_factor,
		.long_factor = r->long_factor,
		.factors_tensor = { r->factors_tensor[0], r->factors_tensor[1] },
		.axis = axis,
		.section = { images ? r->section[0] : 0, images ? r->section[1] : 0,
		             images ? r->section[2] : 0 },
		.interleaved = r->interleaved,
		.frequencies = r->frequencies,
	};
}

static void
plan_ropes(const Spec *s, Arena *a, Plan *p)
{
	const bool images = s->vision.part != VISION_NONE;

	p->rope = NEW(a, PlanRope, 3);
	if (s->position != POS_ROPE)
		return;
	for (int i = 0; i < s->n_rope; i++)
		p->rope[p->n_rope++] = plan_rope(&s->rope[i], 0, images);
	if (s->rope_axes == 2)
		p->rope[p->n_rope++] = plan_rope(&s->rope[0], 1, images);
}

static void
plan_model(const Spec *s, Plan *p)
{
	p->format = PLAN_FORMAT;
	p->step_abi = PLAN_STEP_ABI;
	p->output = s->head.kind;
	p->lora = s->lora.path;
	p->lora_scale = s->lora.scale;
	p->name = s->name;
	p->family = s->family;
	p->spec_sha256 = s->sha256;
	p->vocab = s->vocab_size;
	p->vocab_used = s->vocab_used;
	p->hidden = s->hidden;
	p->max_positions = s->exact_positions && s->exact_positions < s->max_positions
	                       ? s->exact_positions
	                       : s->max_positions;
	p->n_layers = s->n_layers;
	p->hard_limit = s->hard_limit;
	p->encoder = s->attention.mask == MASK_NONE;
	p->token_types = s->embed.types;
	p->prompt_whole = s->attention.mask == MASK_PREFIX || p->encoder;
	p->prefix_mark = s->attention.prefix_mark;
	p->prefix_end = s->attention.prefix_end;
	p->prompt_prefix = s->prompt_prefix;
	p->kv_host = s->kv.host;
	p->checkpoint = s->checkpoint;
	p->weights = s->weights;
	p->bos = s->bos;
	p->n_eos = s->n_eos;
	memcpy(p->eos, s->eos, sizeof p->eos);
}

Plan *
emit_plan(const Graph *g, const Selection *sel, const char *target)
{
	Arena *a = g->arena;
	Plan *p = NEW(a, Plan, 1);
	int *to = NEW(a, int, sel->n_buf + 1);

	plan_model(g->spec, p);
	p->target = arena_strdup(a, target);
	p->rank = g->rank;
	p->ranks = g->ranks;
	p->stage = g->stage;
	p->stages = g->stages;
	p->partition = g->partition;
	p->partitions = g->partitions;
	p->window = g->window;
	p->n_tensor = (int)g->n_tensor;
	p->tensor = g->tensor;
	p->n_params = g->n_params;
	for (int i = 0; i < p->n_tensor && g->ranks * g->stages * g->partitions == 1; i++)
		p->n_params +=
		    p->tensor[i].factor
		        ? 0
		        : p->tensor[i].rows * (p->tensor[i].cols ? p->tensor[i].cols : 1);
	p->n_pool = g->n_pool;
	p->pool = g->pool;
	plan_ropes(g->spec, a, p);
	plan_buffers(g, sel, p, to);
	p->n_kernel = sel->n_kernel;
	p->kernel = NEW(a, PlanKernel, sel->n_kernel + 1);
	for (int i = 0; i < sel->n_kernel; i++)
		p->kernel[i] = sel->kernel[i]->row;
	p->persistent = sel->persistent;
	p->n_phase = PHASES;
	p->phase = NEW(a, PlanPhase, PHASES);
	for (int ph = 0; ph < PHASES; ph++) {
		p->phase[ph] =
		    (PlanPhase){ phase_name[ph], sel->n_step, NEW(a, PlanStep, sel->n_step) };
		for (int i = 0; i < sel->n_step; i++)
			plan_step(g, sel, to, &sel->step[ph][i], ph, &p->phase[ph].step[i]);
	}
	emit_prefetch(g, sel, p);
	return p;
}
