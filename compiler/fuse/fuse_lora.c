/* Fusion passes for adapter slots. */
#include "compiler/fuse/fuse.h"

#include <string.h>

enum { MOST = 4 }; /* largest number of matrices with a common input */

/* Make a value with the rows of v, defined by op `def`. */
static int
value_like(Fuse *f, int v, const char *name, int64_t width, int def)
{
	Graph *g = f->g;
	int to = graph_value(g, VAL_ACT, name, g->val[v].loc);

	g->val[to].rows = g->val[v].rows;
	g->val[to].dim[0] = 1;
	g->val[to].dim[1] = width;
	g->val[to].def = def;
	return to;
}

/* t = lora_down(x, a), t' = lora_down(x, a'), ...  ->  [t | t' | ...] = lora_down(x, [a; a'; ...])
 *
 *   requires  factors of one matrix each
 *   keeps     the results of the lora_ups
 *   effect    one step for all matrices with input x */
int
fuse_lora_down(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *down[MOST] = { &g->op[i] };
		int a[MOST], count = 1;
		if (down[0]->kind != OP_lora_down || op_int(down[0], "count") != 1)
			continue;
		const int x = down[0]->arg[ARG(lora_down, x)];
		for (size_t j = i + 1; j < g->n_op && count < MOST; j++)
			if (g->op[j].kind == OP_lora_down && g->op[j].arg[ARG(lora_down, x)] == x &&
			    g->op[j].layer == down[0]->layer && op_int(&g->op[j], "count") == 1)
				down[count++] = &g->op[j];
		if (count == 1)
			continue;
		for (int k = 0; k < count; k++)
			a[k] = down[k]->arg[ARG(lora_down, a)];
		const int first = down[0]->arg[ARG(lora_down, t)];
		const char *name = fuse_name(f, first);
		int t = value_like(f, first, arena_printf(g->arena, "%ss", name),
		                   count * op_int(down[0], "rank"), (int)i);
		Op op = *down[0];
		op.arg[ARG(lora_down, a)] = graph_stack_factors(
		    g, arena_printf(g->arena, "%ss", fuse_name(f, a[0])), a, count);
		op.arg[ARG(lora_down, t)] = t;
		op_change_int(&op, "count", count);
		for (size_t j = i + 1; j < g->n_op; j++)
			for (int k = 0; k < count; k++)
				if (g->op[j].kind == OP_lora_up &&
				    g->op[j].arg[ARG(lora_up, t)] ==
				        down[k]->arg[ARG(lora_down, t)]) {
					g->op[j].arg[ARG(lora_up, t)] = t;
					op_change_int(&g->op[j], "count", count);
					op_change_int(&g->op[j], "first", k);
					break;
				}
		for (int k = 1; k < count; k++)
			fuse_drop(f, down[k]);
		fuse_place(f, down[0], &op);
		n++;
	}
	return n;
}

/* y = add(r, lora_experts_add(moe_down_add(h)))  ->  y = lora_experts_add(moe_down_add(h, r))
 *
 *   requires  no other reader of the values between; r is defined before
 *   keeps     y, up to rounding
 *   effect    moe_down_add adds directly to the stream, or to the shared expert's output */
int
fuse_lora_experts(Fuse *f)
{
	enum { X = ARG(add, x), R = ARG(add, r) };
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *add = &g->op[i];
		for (int side = X; add->kind == OP_add && side <= R; side++) {
			const int other = add->arg[side == X ? R : X];
			Op *up = fuse_only_def(f, add->arg[side], OP_lora_experts_add),
			   *down = up ? fuse_only_def(f, up->arg[ARG(lora_experts_add, x)],
			                              OP_moe_down_add)
			              : NULL;
			if (!down || down->arg[ARG(moe_down_add, r)] >= 0 ||
			    (side == X && op_num(add, "scale") != 1) ||
			    (fuse_def(f, other) && fuse_def(f, other) >= down))
				continue;
			const int y = add->arg[ARG(add, y)],
			          sum = value_like(
			              f, y, arena_printf(g->arena, "%s_base", fuse_name(f, y)),
			              g->val[y].dim[1], (int)(down - g->op));
			down->arg[ARG(moe_down_add, r)] = other;
			down->arg[ARG(moe_down_add, y)] = up->arg[ARG(lora_experts_add, x)] = sum;
			for (int k = 0; k < down->n_attr; k++)
				if (strcmp(down->attr[k].key, "scale") == 0)
					down->attr[k].f = op_num(add, "scale");
			Op last = *up;
			last.arg[ARG(lora_experts_add, y)] = y;
			op_makes(&last, fuse_name(f, y));
			up->kind = OP_nop;
			/* the same position as the last op, because the last op of a stage must
			 * make its output */
			*add = last;
			g->val[y].def = (int)i;
			fuse_recount(f);
			n++;
		}
	}
	return n;
}

/* y = add(r, lora_up(matmul(x, w)))  ->  y = lora_up(add(r, matmul(x, w)))
 *
 *   requires  no other reader of the matmul or of lora_up; r is defined before lora_up
 *   keeps     y, up to rounding
 *   effect    the matmul can be fused with the add (matmul_add) */
int
fuse_lora_add(Fuse *f)
{
	Graph *g = f->g;
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		Op *add = &g->op[i], *up = add->kind == OP_add
		                               ? fuse_only_def(f, add->arg[ARG(add, r)], OP_lora_up)
		                               : NULL;
		int stream = add->arg[ARG(add, x)];
		if (!up || stream == add->arg[ARG(add, r)] ||
		    !fuse_only_def(f, up->arg[ARG(lora_up, x)], OP_matmul) ||
		    (fuse_def(f, stream) && fuse_def(f, stream) >= up))
			continue;
		const int at = (int)(up - g->op), y = add->arg[ARG(add, y)];
		const int sum = value_like(f, y, arena_printf(g->arena, "%s_base", fuse_name(f, y)),
		                           g->val[y].dim[1], at);
		Op first = *add, last = *up;
		first.arg[ARG(add, r)] = up->arg[ARG(lora_up, x)];
		first.arg[ARG(add, y)] = last.arg[ARG(lora_up, x)] = sum;
		last.arg[ARG(lora_up, y)] = y;
		op_makes(&last, fuse_name(f, y));
		g->op[at] = first;
		g->op[i] = last;
		g->val[y].def = (int)i;
		fuse_recount(f);
		n++;
	}
	return n;
}
