/* Plan text for users (steps, kernels, memory), and the comments at the top of generated kernels */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compiler/select_kernels.h"
#include "templates/common/llmc_mla.h"

/* ---- small text ---- */

/* Format 1536 as "1.5 KiB". Uses integers, so that the locale does not matter. */
static void
put_scaled(Strbuf *out, int64_t v, int64_t base, const char *const unit[5])
{
	int64_t whole = v, rest = 0;
	int u = 0;

	for (; whole >= base && u < 4; u++) {
		rest = whole % base;
		whole /= base;
	}
	if (u == 0)
		strbuf_printf(out, "%" PRId64 " %s", whole, unit[0]);
	else
		strbuf_printf(out, "%" PRId64 ".%" PRId64 " %s", whole, rest * 10 / base, unit[u]);
}

static void
put_bytes(Strbuf *out, int64_t v)
{
	put_scaled(out, v, 1024, (const char *const[]){ "bytes", "KiB", "MiB", "GiB", "TiB" });
}

static void
put_count(Strbuf *out, int64_t v, const char *const unit[5])
{
	put_scaled(out, v, 1000, unit);
}

static const char *const flop_unit[5] = { "flop", "Kflop", "Mflop", "Gflop", "Tflop" };
static const char *const count_unit[5] = { "", "thousand", "million", "billion", "trillion" };

static void
put_extent(Strbuf *out, const PlanExtent *e)
{
	if (e->sym == SYM_one)
		strbuf_printf(out, "%" PRId64, e->mul);
	else if (e->div > 1)
		strbuf_printf(out, "%" PRId64 " x ceil(%s / %" PRId64 ")", e->mul,
		              plan_sym_text[e->sym], e->div);
	else
		strbuf_printf(out, "%" PRId64 " x %s", e->mul, plan_sym_text[e->sym]);
}

/* ---- head ---- */

static void
put_weights(const Plan *p, Strbuf *out)
{
	int64_t total = 0, by[DT_COUNT] = { 0 };

	for (int i = 0; i < p->n_tensor; i++) {
		int64_t n = plan_tensor_bytes(&p->tensor[i]);
		total += n > 0 ? n : 0;
		by[p->tensor[i].dtype] += n > 0 ? n : 0;
	}
	strbuf_puts(out, "  weights    ");
	put_bytes(out, total);
	strbuf_printf(out, " in %d tensors (", p->n_tensor);
	bool first = true;
	for (int d = 0; d < DT_COUNT; d++)
		if (by[d]) {
			strbuf_printf(out, "%s%s ", first ? "" : ", ", dtype_text((Dtype)d));
			put_bytes(out, by[d]);
			first = false;
		}
	strbuf_puts(out, ")\n");
}

/* Describe the cost of permuted expert columns: the orders themselves, and a row of x per selected
 * expert instead of per token. */
static void
put_orders(const Plan *p, Strbuf *out)
{
	int64_t bytes = 0, row = 0;

	for (int i = 0; i < p->phase[0].n_step; i++) {
		const PlanStep *s = &p->phase[0].step[i];
		if (s->op != OP_permute_expert_cols)
			continue;
		bytes += s->weight_bytes;
		row = step_int(s, "top_k") * step_int(s, "width") * 4;
	}
	if (!row)
		return;
	strbuf_puts(out, "  orders     ");
	put_bytes(out, bytes);
	strbuf_puts(out, " of the weights: column orders per expert; a layer writes and reads ");
	put_bytes(out, row);
	strbuf_puts(out, " per row, one x per selected expert\n");
}

static void
put_pools(const Plan *p, Strbuf *out)
{
	for (int i = 0; i < p->n_pool; i++) {
		const PlanPool *k = &p->pool[i];
		strbuf_printf(out, "  %-10s ", k->id);
		if (k->state) {
			put_bytes(out, plan_layer_state_bytes(k) * k->n_layers);
			strbuf_printf(out,
			              " per sequence: %d layers, %" PRId64 " x %" PRId64
			              " x %" PRId64 " elements, f32\n",
			              k->n_layers, k->kv_heads, k->k_dim, k->v_dim);
			continue;
		}
		put_bytes(out, plan_layer_page_bytes(k) * k->n_layers / PLAN_KV_PAGE);
		strbuf_printf(out, " per position: %d layers, ", k->n_layers);
		if (k->mla && strcmp(k->id, "index") == 0)
			strbuf_printf(out, "indexer key of %" PRId64 " elements", k->k_dim);
		else if (k->mla)
			strbuf_printf(out, "latent and key of %" PRId64 " elements", k->k_dim);
		else
			strbuf_printf(out,
			              "%" PRId64 " heads of %" PRId64 " + %" PRId64 " elements",
			              k->kv_heads, k->k_dim, k->v_dim);
		strbuf_printf(out, ", %s", kv_type_info(k->k)->text);
		if (k->v != k->k)
			strbuf_printf(out, " and %s", kv_type_info(k->v)->text);
		if (k->rotate)
			strbuf_puts(out, ", rotated");
		strbuf_printf(out, ", pages of %d positions", PLAN_KV_PAGE);
		if (k->keep)
			strbuf_printf(out, "; %" PRId64 " positions before the newest are needed",
			              k->keep);
		if (k->recent || k->sinks) {
			strbuf_printf(out,
			              "; the last %" PRId64 " and the first %" PRId64 " also as %s",
			              k->recent, k->sinks, kv_type_info(kv_exact(k->k))->text);
			if (kv_exact(k->v) != kv_exact(k->k))
				strbuf_printf(out, " and %s", kv_type_info(kv_exact(k->v))->text);
			strbuf_puts(out, ", ");
			put_bytes(out, plan_layer_exact_bytes(k) * k->n_layers / PLAN_KV_PAGE);
			strbuf_puts(out, " each");
		}
		strbuf_putc(out, '\n');
	}
}

static void
put_host(const Plan *p, Strbuf *out)
{
	int64_t page = 0;

	for (int i = 0; i < p->n_pool; i++)
		page += (plan_layer_page_bytes(&p->pool[i]) + plan_layer_exact_bytes(&p->pool[i])) *
		        p->pool[i].n_layers;
	if (!p->kv_host || !page)
		return;
	strbuf_puts(out, "  host       ");
	put_bytes(out, p->kv_host);
	strbuf_printf(out,
	              " of pinned memory: %" PRId64 " pages, %" PRId64
	              " positions evicted by the prefix cache\n",
	              p->kv_host / page, p->kv_host / page * PLAN_KV_PAGE);
}

static void
put_slots(const Selection *sel, const Plan *p, Strbuf *out)
{
	for (int i = 0; i < p->n_slot; i++) {
		const PlanExtent *e = &p->slot[i];
		strbuf_printf(out, "  slot %-5d ", i);
		put_extent(out, e);
		strbuf_puts(out, " bytes:");
		for (int b = 0; b < p->n_buffer; b++)
			if (p->buffer[b].slot == i) {
				strbuf_printf(out, " %s %s[", p->buffer[b].id,
				              dtype_text(p->buffer[b].dtype));
				put_extent(out, &p->buffer[b].extent);
				strbuf_putc(out, ']');
			}
		strbuf_putc(out, '\n');
	}
	for (int s = 0; s < SYM_COUNT; s++) {
		int64_t used, bound;
		mem_peak(sel, (PlanSym)s, 1, &used, &bound);
		if (!used)
			continue;
		strbuf_printf(out, "  %s %s: %" PRId64 " bytes used, lower bound %" PRId64 "\n",
		              s == SYM_one ? "at any size" : "per unit of",
		              s == SYM_one ? "" : plan_sym_text[s], used, bound);
	}
}

/* ---- steps ---- */

static void
put_arg(const Plan *p, const PlanRef *r, bool with_shape, Strbuf *out)
{
	switch (r->kind) {
	case REF_NONE:
		return;
	case REF_TENSOR: {
		const PlanTensor *t = &p->tensor[r->index];
		strbuf_printf(out, " %s", without_layer(t->id));
		if (t->cols && with_shape)
			strbuf_printf(out, "[%" PRId64 "x%" PRId64 " %s %s]", t->rows, t->cols,
			              dtype_text(t->dtype), t->layout);
		return;
	}
	case REF_BUFFER: {
		const PlanBuffer *b = &p->buffer[r->index];
		strbuf_printf(out, " %s", b->id);
		if (with_shape)
			strbuf_printf(out, "[%s %" PRId64 " @%d]", plan_sym_text[b->extent.sym],
			              b->extent.mul, b->slot);
		return;
	}
	case REF_POOL:
		strbuf_printf(out, " %s", p->pool[r->index].id);
		return;
	case REF_ROPE:
		strbuf_printf(out, " rope%d", r->index);
		return;
	}
}

/* List the prefetches of a step: "o 6.2 MiB from 6.2 MiB, experts of e_down 12.0 MiB". */
static void
put_prefetches(const Plan *p, const PlanStep *s, Strbuf *out)
{
	for (int i = 0; i < s->n_prefetch; i++) {
		const PlanPrefetch *f = &s->prefetch[i];
		strbuf_printf(out, "%s%s%s ", i ? ", " : "", f->experts ? "experts of " : "",
		              without_layer(p->tensor[f->tensor].id));
		put_bytes(out, f->bytes);
		if (f->first) {
			strbuf_puts(out, " after ");
			put_bytes(out, f->first);
		}
	}
}

static void
put_step(const Plan *p, int i, Strbuf *out)
{
	const PlanStep *s = &p->phase[0].step[i], *m = &p->phase[1].step[i];
	int n_in = op_info[s->op].n_in, n_op = op_info[s->op].n_arg;

	strbuf_printf(out, "    %-13s", op_info[s->op].name);
	for (int k = 0; k < n_in; k++)
		put_arg(p, &s->arg[k], true, out);
	strbuf_puts(out, " ->");
	for (int k = n_in; k < n_op; k++)
		put_arg(p, &s->arg[k], true, out);
	strbuf_puts(out, "\n                 ");
	if (s->kernel == m->kernel)
		strbuf_printf(out, " %s", s->kernel < 0 ? "reference" : p->kernel[s->kernel].id);
	else
		strbuf_printf(out, " decode %s, mixed %s",
		              s->kernel < 0 ? "reference" : p->kernel[s->kernel].id,
		              m->kernel < 0 ? "reference" : p->kernel[m->kernel].id);
	if (s->weight_bytes) {
		strbuf_puts(out, "; ");
		put_bytes(out, s->weight_bytes);
		if (plan_step_weights(p, s, 1) < s->weight_bytes) {
			strbuf_puts(out, " (of one row ");
			put_bytes(out, plan_step_weights(p, s, 1));
			strbuf_puts(out, ")");
		}
	}
	if (s->flops_per_row) {
		strbuf_puts(out, "; ");
		put_count(out, s->flops_per_row, flop_unit);
		strbuf_puts(out, " a row");
	}
	for (int k = 0, n = 0; k < s->n_make; k++)
		if (s->make[k].arg < 0)
			strbuf_printf(out, "%s%s", n++ ? ", " : "; within it ",
			              without_layer(s->make[k].value));
	if (s->n_prefetch) {
		strbuf_puts(out, "\n                  prefetches to L2: ");
		put_prefetches(p, s, out);
	}
	strbuf_putc(out, '\n');
}

/* Write the layer numbers of a group, for example "0-3,5". */
static void
put_layers(const int *group_of, int n_layers, int group, Strbuf *out)
{
	bool first = true;

	for (int l = 0; l < n_layers; l++) {
		if (group_of[l] != group)
			continue;
		int end = l;
		while (end + 1 < n_layers && group_of[end + 1] == group)
			end++;
		if (end > l)
			strbuf_printf(out, "%s%d-%d", first ? "" : ",", l, end);
		else
			strbuf_printf(out, "%s%d", first ? "" : ",", l);
		first = false;
		l = end;
	}
}

/* Describe when prefill rows use the expanded form of latent attention, with the arithmetic.
 * compiler/fuse/fuse_mla.c computes the break-even; mla_expanded of templates/common/llmc_mla.h
 * decides at run time. */
static void
put_mla_forms(const Plan *p, Strbuf *out)
{
	const PlanStep *s = NULL;

	for (int i = 0; i < p->phase[0].n_step; i++)
		if (p->phase[0].step[i].op == OP_mla_attend)
			s = &p->phase[0].step[i];
	if (!s)
		return;
	int64_t rank = step_int(s, "kv_rank"), rope = step_int(s, "rope_dim"),
	        nope = step_int(s, "nope_dim"), v_dim = step_int(s, "v_dim");
	int64_t expand = step_int(s, "expand");
	strbuf_printf(out,
	              "\nlatent attention, operations per head: absorbed %" PRId64
	              " per pair of row and position; expanded %" PRId64 ", and %" PRId64
	              " per position\n",
	              2 * (2 * rank + rope), 2 * (nope + rope + v_dim), 2 * rank * (nope + v_dim));
	if (expand == MLA_EXPAND_ALWAYS)
		strbuf_puts(out, "  all rows are expanded\n");
	else if (expand > 0)
		strbuf_printf(out,
		              "  decode rows are absorbed; n > 1 prefill rows after c positions "
		              "are expanded if n (c + n / 2) > %" PRId64 " c\n",
		              expand);
	else
		strbuf_puts(out, "  all rows are absorbed\n");
	if (step_int(s, "index_top_k"))
		strbuf_printf(
		    out,
		    "  a row attends to %" PRId64
		    " positions selected by the last index_select before it, and is absorbed\n",
		    step_int(s, "index_top_k"));
}

static void
put_steps(const Graph *g, const Plan *p, Strbuf *out)
{
	const PlanPhase *ph = &p->phase[0];
	const char **text = NEW(g->arena, const char *, p->n_layers + 1);
	int *group_of = NEW(g->arena, int, p->n_layers + 1), n_group = 0, i = 0;

	strbuf_puts(out, "\nbefore the layers\n");
	for (; i < ph->n_step && ph->step[i].layer < 0; i++)
		put_step(p, i, out);
	for (int l = 0; l < p->n_layers; l++) {
		size_t start = out->len;
		/* the layer belongs to another stage */
		if (i == ph->n_step || ph->step[i].layer != l) {
			group_of[l] = -1;
			continue;
		}
		for (; i < ph->n_step && ph->step[i].layer == l; i++)
			put_step(p, i, out);
		const char *mine =
		    out->failed ? "" : arena_strndup(g->arena, out->data + start, out->len - start);
		if (!out->failed)
			out->len = start;
		for (group_of[l] = 0;
		     group_of[l] < n_group && strcmp(text[group_of[l]], mine) != 0;)
			group_of[l]++;
		if (group_of[l] == n_group)
			text[n_group++] = mine;
	}
	for (int k = 0; k < n_group; k++) {
		strbuf_puts(out, "\nlayers ");
		put_layers(group_of, p->n_layers, k, out);
		strbuf_putc(out, '\n');
		strbuf_puts(out, text[k]);
	}
	strbuf_puts(out, "\nafter the layers\n");
	for (; i < ph->n_step; i++)
		put_step(p, i, out);
}

/* Describe the form of decode steps on a GPU, with the reason. */
static void
put_form(const Plan *p, Strbuf *out)
{
	const PlanPersistent *x = &p->persistent;

	if (x->n_body)
		strbuf_printf(out,
		              "\ndecode steps of up to %d rows: one persistent kernel, %s, with %d "
		              "bodies; larger ones: a launch per op\n",
		              PLAN_PERSISTENT_ROWS, p->kernel[x->kernel].file, x->n_body);
	else if (x->why)
		strbuf_printf(out,
		              "\ndecode steps: a launch per op, not one persistent kernel: %s\n",
		              x->why);
	else if (target_is_cuda(p->target))
		strbuf_puts(out, "\ndecode steps: a launch per op (step.persistent: never)\n");
}

/* Return whether a prefill step multiplies by quantised matrices. */
static bool
multiplies_blocks(const Plan *p, const PlanStep *s)
{
	bool any = false;

	for (int k = 0; k < s->n_arg && s->flops_per_row; k++)
		if (s->arg[k].kind == REF_TENSOR) {
			const PlanTensor *t = &p->tensor[s->arg[k].index];
			any |= t->cols && dtype_info(t->dtype)->block_elems > 1;
		}
	return any;
}

/* Describe the type of activations for quantised weights, the reason for it, and where it is
 * used. */
static void
put_activations(const Graph *g, const Selection *sel, const Plan *p, Strbuf *out)
{
	const Spec *s = g->spec;
	const char *type = s->activations_i8     ? "i8"
	                   : s->activations_f8   ? "f8"
	                   : s->activations_bf16 ? "bf16"
	                                         : NULL;
	const Target *target = target_find(p->target);
	const PlanPhase *mixed = &p->phase[PHASE_MIXED];
	int n = 0, eight = 0;

	for (int i = 0; i < mixed->n_step; i++) {
		const PlanStep *step = &mixed->step[i];
		if (!multiplies_blocks(p, step))
			continue;
		n++;
		eight += step->kernel >= 0 && sel->kernel[step->kernel]->activations;
	}
	if (!type || !n)
		return;
	strbuf_printf(out, "\nactivations: %s%s", type,
	              s->activations_declared ? " (declared by the checkpoint)" : "");
	if (target->kind == TARGET_REF)
		strbuf_puts(out, "; the reference computes in fp32\n");
	else if (target->kind == TARGET_CPU)
		strbuf_puts(out, s->activations_f8 ? "; CPUs use i16 instead\n"
		                 : s->activations_bf16 && !(target->needs & CPU_AMX)
		                     ? "; this CPU uses i16 instead\n"
		                     : ", in all steps\n");
	else if (eight)
		strbuf_printf(
		    out, ", in %d of %d matmuls with quantised weights, in %s; else 16 bits\n",
		    eight, n, s->deterministic ? "mixed steps" : "steps of more than 64 rows");
	else
		strbuf_printf(out, "; 16 bits on %s, which has no such GEMM for these weights\n",
		              target->isa);
}

void
emit_text(const Graph *g, const Selection *sel, const Plan *p, const char *fusions, int n_op_before,
          Strbuf *out)
{
	strbuf_printf(out, "%s, family %s, for %s\n", p->name, p->family, p->target);
	strbuf_printf(out,
	              "description %.16s: %d layers, hidden %" PRId64 ", vocabulary %" PRId64
	              ", %" PRId64 " positions, ",
	              p->spec_sha256, p->n_layers, p->hidden, p->vocab, p->max_positions);
	put_count(out, p->n_params, count_unit);
	strbuf_puts(out, " parameters\n\nmemory\n");
	put_weights(p, out);
	put_orders(p, out);
	put_pools(p, out);
	put_host(p, out);
	put_slots(sel, p, out);
	if (p->l2_budget) {
		strbuf_puts(out, "  L2         ");
		put_bytes(out, p->l2_budget);
		strbuf_puts(out, " for prefetched weights, or a quarter of a smaller L2\n");
	}
	if (*fusions) {
		strbuf_printf(out, "\nfusion: %d ops became %d steps\n", n_op_before,
		              p->phase[0].n_step);
		for (const char *at = fusions; *at;) {
			size_t n = strcspn(at, "\n");
			if (n < 3 || memcmp(at + n - 3, ": 0", 3) != 0)
				strbuf_printf(out, "  %.*s\n", (int)n, at);
			at += n + (at[n] == '\n');
		}
	} else {
		strbuf_printf(out, "\n%d steps, nothing fused\n", p->phase[0].n_step);
	}
	put_mla_forms(p, out);
	put_activations(g, sel, p, out);
	put_form(p, out);
	put_steps(g, p, out);
}

/* ---- kernels ---- */

/* Describe the bytes of the KV cache that a step reads per position, and the operations of a row on
 * them. */
static void
put_cache_cost(const Plan *p, const PlanStep *s, Strbuf *out)
{
	int64_t bytes, ops;

	if (!plan_step_cache(p, s, &bytes, &ops))
		return;
	strbuf_puts(out, " cache ");
	put_bytes(out, bytes);
	strbuf_puts(out, " per position, ");
	put_count(out, ops, flop_unit);
	strbuf_puts(out, " per position that a row attends to;");
}

/* Wrap words into the lines of a comment. col: columns already used on the first line */
static void
put_wrapped(const char *text, size_t col, Strbuf *out)
{
	while (*text) {
		size_t n = strcspn(text + 1, " ") + 1; /* a word, with the blank before it */
		if (col + n > 110) {
			strbuf_puts(out, "\n *  ");
			col = 4;
		}
		strbuf_printf(out, "%.*s", (int)n, text);
		col += n;
		text += n;
	}
}

/* List the prefetches in the decode steps of a kernel. Equal layers have equal text. */
static void
put_kernel_prefetches(const Selection *sel, const Plan *p, int kernel, Strbuf *out)
{
	Strbuf one = { 0 }, all = { 0 };

	for (int i = 0; i < sel->n_step; i++) {
		const PlanStep *s = &p->phase[0].step[i];
		if (s->kernel != kernel || !s->n_prefetch)
			continue;
		strbuf_clear(&one);
		strbuf_puts(&one, all.len ? "; or " : "");
		put_prefetches(p, s, &one);
		if (!strstr(strbuf_str(&all), strbuf_str(&one) + (all.len ? 5 : 0)))
			strbuf_puts(&all, strbuf_str(&one));
	}
	if (all.len)
		strbuf_printf(out, "\n * prefetches to L2 at its end: %s;", strbuf_str(&all));
	out->failed |= one.failed || all.failed;
	strbuf_release(&one);
	strbuf_release(&all);
}

void
emit_comment(const Graph *g, const Selection *sel, const Plan *p, int kernel, Strbuf *out)
{
	int at = sel->kernel_op[kernel], line = -1, n = 0;
	const PlanStep *s = &p->phase[0].step[at];
	const Op *op = &g->op[at];

	strbuf_puts(out, "/* generated from ");
	for (const char *c = p->name; *c; c++) /* a name must not contain the end of a comment */
		strbuf_putc(out, isalnum((unsigned char)*c) || strchr("._-+ ", *c) ? *c : '_');
	strbuf_printf(out, ", description %s: do not edit\n *\n * %s: ", p->spec_sha256,
	              op_info[op->kind].name);
	put_wrapped(op_info[op->kind].meaning, 5 + strlen(op_info[op->kind].name), out);
	strbuf_puts(out, "\n *\n *");
	for (int k = 0; k < op_info[op->kind].n_arg; k++) {
		const char *name = op_info[op->kind].arg[k].name;
		const PlanRef *r = &s->arg[k];
		if (r->kind == REF_TENSOR) {
			const PlanTensor *t = &p->tensor[r->index];
			strbuf_printf(out, " %s[%" PRId64, name, t->rows);
			if (t->cols)
				strbuf_printf(out, ", %" PRId64, t->cols);
			strbuf_printf(out, "] %s %s;", dtype_text(t->dtype), t->layout);
		} else if (r->kind == REF_BUFFER) {
			const PlanExtent *e = &p->buffer[r->index].extent;
			strbuf_printf(out, " %s[%s, %" PRId64 "];", name, plan_sym_text[e->sym],
			              e->mul);
		}
	}
	strbuf_puts(out, "\n * weights ");
	put_bytes(out, s->weight_bytes);
	strbuf_puts(out, " per call, ");
	for (int k = 0; k < op_info[op->kind].n_in; k++) {
		if (op_info[op->kind].arg[k].role != ROLE_TABLE)
			continue;
		const PlanTensor *t = &p->tensor[s->arg[k].index];
		put_bytes(out, dtype_row_bytes(t->dtype, t->cols));
		strbuf_puts(out, " per row of a table, ");
	}
	put_count(out, s->flops_per_row, flop_unit);
	strbuf_puts(out, " per row;");
	put_cache_cost(p, s, out);
	put_kernel_prefetches(sel, p, kernel, out);
	strbuf_puts(out, " lines of model.yaml:");
	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step && n < 8; i++)
			if (sel->step[ph][i].kernel == kernel && g->op[i].loc.resolved > 0 &&
			    g->op[i].loc.resolved != line) {
				line = g->op[i].loc.resolved;
				strbuf_printf(out, " %d", line);
				n++;
			}
	strbuf_puts(out, n ? " */\n" : " none */\n");
}
