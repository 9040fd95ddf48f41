/* Assigns the values of a step to memory. A slot is memory that several buffers share. All its
 * buffers have the same kind of extent (bytes per row, per row of logits, per thread), so the size
 * of a slot is one multiplication for any limits, and no bytes are lost to rounding. */
#include "compiler/select_kernels.h"

#include <stdlib.h>
#include <string.h>

static int64_t
unit_bytes(const MemBuf *b)
{
	return b->extent.mul * dtype_info(b->dtype)->block_bytes;
}

/* ---- liveness ---- */

/* Return whether the output may overwrite this input. It may not if the op also reads the same
 * value as another argument that does not allow this. */
static bool
may_share(const Op *op, int arg)
{
	const OpInfo *info = &op_info[op->kind];

	for (int k = 0; k < info->n_in; k++)
		if (op->arg[k] == op->arg[arg] && !role_in_place(info->arg[k].role))
			return false;
	return true;
}

static int
buffer_add(Selection *sel, const char *id, Dtype dtype, PlanExtent extent)
{
	MemBuf *b = &sel->buf[sel->n_buf];

	if (dtype == DT_NONE) { /* byte buffers become f32, so that plans need fewer types */
		dtype = DT_F32;
		extent.mul = extent.mul / 4 + (extent.mul % 4 != 0);
	}
	*b = (MemBuf){
		.id = id, .dtype = dtype, .extent = extent, .kernel = -1, .same = -1, .slot = -1
	};
	for (int ph = 0; ph < PHASES; ph++)
		b->first[ph] = b->last[ph] = -1;
	return sel->n_buf++;
}

static void
scratch_buffers(Selection *sel)
{
	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step; i++) {
			Step *st = &sel->step[ph][i];
			if (st->kernel < 0)
				continue;
			const Kernel *k = sel->kernel[st->kernel];
			for (st->n_scratch = 0; st->n_scratch < k->n_scratch; st->n_scratch++) {
				int n = st->n_scratch, found = -1;
				const PlanKernelArg *arg =
				    &k->row.arg[k->row.n_arg - k->n_scratch + n];
				bool keeps = k->scratch_dtype[n] == DT_I32;
				/* counters are zero between calls of a kernel, so all its calls
				 * share them */
				for (int b = 0; keeps && found < 0 && b < sel->n_buf; b++)
					found = sel->buf[b].kernel == st->kernel &&
					                strcmp(sel->buf[b].id, arg->name) == 0
					            ? b
					            : -1;
				if (found < 0) {
					found = buffer_add(sel, arg->name, k->scratch_dtype[n],
					                   arg->extent);
					sel->buf[found].alone = keeps;
					sel->buf[found].kernel = st->kernel;
				}
				st->scratch[n] = found;
				MemBuf *buf = &sel->buf[found];
				if (buf->first[ph] < 0)
					buf->first[ph] = i;
				buf->last[ph] = i;
			}
		}
}

static size_t
scratch_count(const Selection *sel)
{
	size_t n = 0;

	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step; i++)
			n += sel->step[ph][i].kernel < 0
			         ? 0
			         : (size_t)sel->kernel[sel->step[ph][i].kernel]->n_scratch;
	return n;
}

/* Make the buffers of a value: one, or one per phase if its type differs between the phases. Two
 * buffers share memory, because on GPUs a large decode batch runs some of its steps as the mixed
 * phase does (runtime/cuda/cuda_step.c). The memory is reserved in both phases. The buffer of the
 * decode phase comes first; its type is the wider one. */
static void
value_buffers(const Graph *g, Selection *sel, int v)
{
	const Value *val = &g->val[v];
	const PlanExtent extent = { val->rows, val->dim[1], 1 };

	for (int ph = 0; ph < PHASES; ph++) {
		Dtype d = value_dtype(val, ph);
		if (ph > 0 && d == value_dtype(val, 0)) {
			sel->buf_of[ph][v] = sel->buf_of[0][v];
			continue;
		}
		const char *id = d == val->dtype
		                     ? val->name
		                     : arena_printf(g->arena, "%s_%s", val->name, dtype_text(d));
		sel->buf_of[ph][v] = buffer_add(sel, id, d, extent);
		if (ph > 0)
			sel->buf[sel->buf_of[ph][v]].same = sel->buf_of[0][v];
	}
}

/* Make one buffer per value and per scratch argument, with the range of steps in which it lives. If
 * an output may overwrite an input that is not read later, both share memory.
 *
 *   requires  a complete selection */
void
mem_buffers(const Graph *g, Selection *sel)
{
	sel->buf = NEW(g->arena, MemBuf, PHASES * g->n_val + scratch_count(sel) + 1);
	for (int ph = 0; ph < PHASES; ph++) {
		sel->buf_of[ph] = NEW(g->arena, int, g->n_val + 1);
		memset(sel->buf_of[ph], -1, (g->n_val + 1) * sizeof *sel->buf_of[ph]);
	}
	for (int i = 0; i < sel->n_step; i++) {
		const Op *op = &g->op[i];
		for (int k = 0; k < op_info[op->kind].n_arg; k++) {
			int v = op->arg[k];
			if (v < 0 || g->val[v].kind != VAL_ACT)
				continue;
			if (sel->buf_of[0][v] < 0)
				value_buffers(g, sel, v);
			for (int ph = 0; ph < PHASES; ph++) {
				MemBuf *b = &sel->buf[sel->buf_of[ph][v]];
				if (b->first[ph] < 0)
					b->first[ph] = i;
				b->last[ph] = i;
			}
		}
	}
	for (int ph = 0; ph < PHASES && g->outputs_rows; ph++)
		sel->buf[sel->buf_of[ph][g->rows]].last[ph] = sel->n_step - 1;
	for (int i = 0; i < sel->n_step; i++) {
		const Op *op = &g->op[i];
		int n_in = op_info[op->kind].n_in, out = op->arg[n_in];
		if (out < 0 || sel->buf_of[0][out] < 0 ||
		    sel->buf_of[0][out] != sel->buf_of[1][out])
			continue;
		MemBuf *y = &sel->buf[sel->buf_of[0][out]];
		for (int k = 0; k < n_in && y->same < 0; k++) {
			int b = op->arg[k] < 0 ? -1 : sel->buf_of[0][op->arg[k]];
			if (b < 0 || b != sel->buf_of[1][op->arg[k]] || !may_share(op, k))
				continue;
			const MemBuf *x = &sel->buf[b];
			if (x->last[0] == i && x->dtype == y->dtype &&
			    x->extent.sym == y->extent.sym && x->extent.mul == y->extent.mul)
				y->same = b;
		}
	}
	scratch_buffers(sel);
}

/* ---- slots ---- */

static bool
overlaps(const MemBuf *a, const MemBuf *b)
{
	if (a->alone || b->alone)
		return true;
	for (int ph = 0; ph < PHASES; ph++)
		if (a->first[ph] >= 0 && b->first[ph] >= 0 && a->first[ph] <= b->last[ph] &&
		    b->first[ph] <= a->last[ph])
			return true;
	return false;
}

static int
root_of(const MemBuf *buf, int i)
{
	while (buf[i].same >= 0)
		i = buf[i].same;
	return i;
}

typedef struct BufferOrder {
	int64_t bytes;
	int at;
} BufferOrder;

static int
by_size(const void *a, const void *b)
{
	const BufferOrder *x = a, *y = b;
	return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1)
	                            : (x->at > y->at) - (x->at < y->at);
}

/* Assign slots. The largest buffers come first, and each gets the first slot of its kind without an
 * overlapping buffer. This slot is also the smallest that fits, because slots have descending
 * sizes.
 *
 *   requires  `same` is an earlier buffer of the same extent that ends where this one begins, or a
 * buffer of the same value with a wider type */
void
mem_assign(Arena *a, MemBuf *buf, int n_buf, PlanExtent **slot, int *n_slot)
{
	MemBuf *whole =
	    /* live ranges of root buffers, extended by those of all buffers that share their
	     * memory */
	    NEW(a, MemBuf, n_buf + 1);
	BufferOrder *order = NEW(a, BufferOrder, n_buf + 1);
	int *next = NEW(a, int, n_buf + 1), *head = NEW(a, int, n_buf + 1), n = 0;

	memcpy(whole, buf, (size_t)n_buf * sizeof *whole);
	for (int i = 0; i < n_buf; i++) {
		int r = root_of(buf, i);
		if (r == i) {
			order[n++] = (BufferOrder){ unit_bytes(&buf[i]), i };
			continue;
		}
		for (int ph = 0; ph < PHASES; ph++) {
			if (buf[i].first[ph] >= 0 &&
			    (whole[r].first[ph] < 0 || buf[i].first[ph] < whole[r].first[ph]))
				whole[r].first[ph] = buf[i].first[ph];
			if (buf[i].last[ph] > whole[r].last[ph])
				whole[r].last[ph] = buf[i].last[ph];
		}
	}
	qsort(order, (size_t)n, sizeof *order, by_size);
	*slot = NEW(a, PlanExtent, n + 1);
	*n_slot = 0;
	for (int i = 0; i < n; i++) {
		MemBuf *b = &whole[order[i].at];
		int s = 0;
		for (; s < *n_slot; s++) {
			const PlanExtent *e = &(*slot)[s];
			bool free_here = e->sym == b->extent.sym && e->div == b->extent.div;
			for (int o = head[s]; free_here && o >= 0; o = next[o])
				free_here = !overlaps(&whole[o], b);
			if (free_here)
				break;
		}
		if (s == *n_slot) {
			(*slot)[s] = (PlanExtent){ b->extent.sym, order[i].bytes, b->extent.div };
			head[s] = -1;
			++*n_slot;
		}
		b->slot = s;
		next[order[i].at] = head[s];
		head[s] = order[i].at;
	}
	for (int i = 0; i < n_buf; i++)
		buf[i].slot = whole[root_of(buf, i)].slot;
}

void
mem_peak(const Selection *sel, PlanSym sym, int64_t div, int64_t *used, int64_t *bound)
{
	*used = *bound = 0;
	for (int s = 0; s < sel->n_slot; s++)
		if (sel->slot[s].sym == sym && sel->slot[s].div == div)
			*used += sel->slot[s].mul;
	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step; i++) {
			int64_t live = 0;
			for (int k = 0; k < sel->n_buf; k++) {
				const MemBuf *b = &sel->buf[k];
				bool here = b->alone || (b->first[ph] >= 0 && b->first[ph] <= i &&
				                         i <= b->last[ph]);
				if (here && b->extent.sym == sym && b->extent.div == div)
					live += unit_bytes(b);
			}
			/* memory that passes from one buffer to another at this step counts once */
			for (int k = 0; k < sel->n_buf; k++) {
				const MemBuf *b = &sel->buf[k];
				if (b->same >= 0 && b->first[ph] == i &&
				    sel->buf[b->same].last[ph] == i && b->extent.sym == sym &&
				    b->extent.div == div)
					live -= unit_bytes(b);
			}
			if (live > *bound)
				*bound = live;
		}
}
