/* Text form of a Graph, for --dump and golden tests:  L0.q = matmul L0.attn_in, L0.q[64x48 f32]
 * rows=64 cols=48 */
#include "compiler/select_kernels.h"

#include <inttypes.h>

#include "base/json.h"
#include "base/number.h"

static void
dump_value(const Graph *g, int v, Strbuf *out)
{
	if (v < 0) {
		strbuf_putc(out, '-');
		return;
	}
	const Value *val = &g->val[v];
	switch (val->kind) {
	case VAL_ACT:
		strbuf_printf(out, "%%%s", val->name);
		break;
	case VAL_WEIGHT:
		strbuf_puts(out, val->name);
		break;
	case VAL_ROPE:
	case VAL_POOL:
		strbuf_printf(out, "$%s", val->name);
		break;
	case VAL_ORDER:
		strbuf_printf(out, "!%s", val->name);
		break;
	}
}

static void
dump_attrs(const Op *op, Strbuf *out)
{
	for (int i = 0; i < op->n_attr; i++) {
		const Attr *a = &op->attr[i];
		strbuf_printf(out, " %s=", a->key);
		switch (a->kind) {
		case ATTR_INT:
			strbuf_printf(out, "%" PRId64, a->i);
			break;
		case ATTR_NUM:
			json_num(out, a->f, NUMBER_EXACT);
			break;
		case ATTR_WORD:
			strbuf_puts(out, a->s);
			break;
		}
	}
}

static void
dump_tensor(const PlanTensor *t, Strbuf *out)
{
	strbuf_printf(out, "%s [%" PRId64, t->id, t->rows);
	if (t->cols)
		strbuf_printf(out, ", %" PRId64, t->cols);
	strbuf_printf(out, "] %s %s", dtype_text(t->dtype), t->layout);
	for (int i = 0; i < t->n_src; i++) {
		const PlanSource *s = &t->src[i];
		bool whole =
		    s->first == 0 && s->n_block == 1 &&
		    s->block * (t->cols ? t->cols : 1) == s->rows * (s->cols ? s->cols : 1);
		if (i == 4 && t->n_src > 5) {
			strbuf_printf(out, " + ... %d more", t->n_src - 4);
			break;
		}
		strbuf_printf(out, "%s%s", i ? " + " : " = ", s->name);
		if (!whole)
			strbuf_printf(out, "[%" PRId64 " from %" PRId64, s->block, s->first);
		if (!whole && s->n_block > 1)
			strbuf_printf(out, ", %" PRId64 " times, every %" PRId64, s->n_block,
			              s->stride);
		if (!whole)
			strbuf_putc(out, ']');
		if (s->rope_pairs)
			strbuf_printf(out, " pairs of %" PRId64, s->rope_pairs);
		if (s->transpose)
			strbuf_printf(out, " transposed by %" PRId64, s->transpose);
		if (s->unit_rows)
			strbuf_puts(out, " unit rows");
		if (s->col_groups)
			strbuf_printf(out, " col_groups %" PRId64, s->col_groups);
		if (s->permuted)
			strbuf_puts(out, " permuted");
		if (s->rows_in)
			strbuf_printf(out, " rows in %s", s->rows_in);
		if (s->stored)
			strbuf_printf(out, " from %s", s->stored);
	}
	strbuf_putc(out, '\n');
}

void
graph_dump(const Graph *g, Strbuf *out)
{
	for (size_t i = 0; i < g->n_op; i++) {
		const Op *op = &g->op[i];
		const OpInfo *info = &op_info[op->kind];
		if (op->kind == OP_nop)
			continue;
		for (int k = info->n_in; k < info->n_arg; k++) {
			strbuf_puts(out, k > info->n_in ? ", " : "");
			dump_value(g, op->arg[k], out);
		}
		strbuf_printf(out, " = %s", info->name);
		for (int k = 0; k < info->n_in; k++) {
			strbuf_puts(out, k ? ", " : " ");
			dump_value(g, op->arg[k], out);
		}
		dump_attrs(op, out);
		strbuf_putc(out, '\n');
	}
	strbuf_putc(out, '\n');
	for (size_t i = 0; i < g->n_tensor; i++)
		dump_tensor(&g->tensor[i], out);
}

static void
dump_ref(const Plan *p, const PlanRef *r, Strbuf *out)
{
	switch (r->kind) {
	case REF_NONE:
		strbuf_putc(out, '-');
		break;
	case REF_TENSOR:
		strbuf_puts(out, p->tensor[r->index].id);
		break;
	case REF_BUFFER:
		strbuf_printf(out, "%%%s", p->buffer[r->index].id);
		break;
	case REF_POOL:
		strbuf_printf(out, "$%s.%d", p->pool[r->index].id, r->layer_slot);
		break;
	case REF_ROPE:
		strbuf_printf(out, "$rope%d", r->index);
		break;
	}
}

void
dump_order(const Plan *p, Strbuf *out)
{
	for (int ph = 0; ph < p->n_phase; ph++) {
		strbuf_printf(out, "%s\n", p->phase[ph].id);
		for (int i = 0; i < p->phase[ph].n_step; i++) {
			const PlanStep *s = &p->phase[ph].step[i];
			strbuf_printf(out, "%4d %s", i, op_info[s->op].name);
			for (int k = 0; k < s->n_arg; k++) {
				strbuf_puts(out, k ? ", " : " ");
				dump_ref(p, &s->arg[k], out);
			}
			strbuf_printf(out, "  by %s\n",
			              s->kernel < 0 ? "reference" : p->kernel[s->kernel].id);
		}
	}
}
