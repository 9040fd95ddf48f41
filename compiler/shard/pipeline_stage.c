/* Pipeline stages: reduce the graph of the whole model to one stage.
 *
 * A stage has contiguous layers; the first also has the embedding, the last the head. One value
 * passes from a stage to the next: the residual stream between two layers. The receiving stage
 * reads it by the op stage_in. In the sending stage it is the last value of the graph; in the last
 * stage this is the logits. Layers themselves are unchanged, so a stage is sharded over ranks like
 * a model. */
#include <inttypes.h>

#include "compiler/graph.h"

/* Return the stage of an op, which is that of its layer. Ops outside of the layers belong to the
 * first stage if they precede the layers, and to the last stage if they follow them. */
static int
stage_of(const Graph *g, size_t i, bool after_layers, int stages)
{
	int64_t first, count;

	for (int k = 0; g->op[i].layer >= 0 && k < stages; k++) {
		op_share(g->spec->n_layers, 1, stages, k, &first, &count);
		if (g->op[i].layer < first + count)
			return k;
	}
	return after_layers ? stages - 1 : 0;
}

bool
graph_keeps_state(const Graph *g)
{
	bool any = false;

	for (int i = 0; i < g->n_pool; i++)
		any |= g->pool[i].state;
	return any;
}

void
graph_own_pools(Graph *g)
{
	int *slots = NEW(g->arena, int, g->n_pool + 1), *to = NEW(g->arena, int, g->n_pool + 1),
	    n = 0;

	for (size_t i = 0; i < g->n_val; i++) {
		Value *v = &g->val[i];
		bool used = false;
		for (size_t k = 0; k < g->n_op && v->kind == VAL_POOL && !used; k++)
			for (int a = 0; a < op_info[g->op[k].kind].n_arg; a++)
				used |= g->op[k].arg[a] == (int)i;
		if (used)
			v->dim[0] = slots[v->tensor]++;
	}
	for (int i = 0; i < g->n_pool; i++) {
		to[i] = n;
		if (!slots[i])
			continue;
		g->pool[n] = g->pool[i];
		g->pool[n++].n_layers = slots[i];
	}
	g->n_pool = n;
	for (size_t i = 0; i < g->n_val; i++)
		if (g->val[i].kind == VAL_POOL)
			g->val[i].tensor = to[g->val[i].tensor];
}

/* Reduce the graph to one pipeline stage.
 *
 *   requires  the unfused graph of the whole model, after shape inference
 *   keeps     names, and the contents of layers
 *   effect    the graph of one stage; its last op makes its output */
bool
graph_stage(Graph *g, int stage)
{
	const int stages = g->spec->pp;
	Op *op = g->op;
	size_t n_op = g->n_op;
	int enters = -1;
	bool after_layers = false;

	if (stages > g->spec->n_layers) {
		err_at(g->diag, spec_loc(g->spec, "parallel.pp"),
		       "parallel.pp = %d: more stages than the %d layers", stages,
		       g->spec->n_layers);
		return false;
	}
	if (g->spec->head.kind == LLMC_OUTPUT_LABELS) {
		err_at(g->diag, spec_loc(g->spec, "parallel.pp"),
		       "parallel.pp = %d: a model with a classification head runs in one stage",
		       stages);
		return false;
	}
	g->stage = stage;
	g->stages = stages;
	int *of = NEW(g->arena, int, n_op + 1);
	for (size_t i = 0; i < n_op; i++) {
		after_layers |= op[i].layer >= 0;
		of[i] = stage_of(g, i, after_layers, stages);
	}
	/* for all stages, so that each of them reports the same error */
	for (size_t i = 0; i < n_op; i++)
		for (int k = 0; k < op_info[op[i].kind].n_in; k++) {
			int v = op[i].arg[k], def = v < 0 ? -1 : g->val[v].def;
			if (def < 0 || of[def] == of[i] || op[def].kind != OP_index_select)
				continue;
			err_at(g->diag, spec_loc(g->spec, "parallel.pp"),
			       "parallel.pp = %d: layer %d needs positions that an earlier stage "
			       "selects (attention.index.layers): use another number of stages",
			       stages, op[i].layer);
			return false;
		}
	for (size_t i = 0; i < n_op; i++)
		for (int k = 0; k < op_info[op[i].kind].n_in && of[i] == stage; k++) {
			int v = op[i].arg[k];
			if (v < 0 || g->val[v].def < 0 || of[g->val[v].def] == stage)
				continue;
			if (enters >= 0 && enters != v)
				BUG(g->diag, op[i].loc,
				    "stages: a stage reads two values of other stages, %s and %s",
				    g->val[enters].name, g->val[v].name);
			enters = v;
		}
	g->op = NULL;
	g->n_op = g->cap_op = 0;
	if (enters >= 0) {
		Op *in = graph_op(g, OP_stage_in, -1, g->val[enters].loc);
		op_args(in, OP_ARGS(stage_in, .y = enters));
		op_set_int(g, in, "hidden", g->spec->hidden);
	}
	for (size_t i = 0; i < n_op; i++)
		if (of[i] == stage) {
			Op *o = graph_op(g, op[i].kind, op[i].layer, op[i].loc);
			*o = op[i];
		}
	bool states = graph_keeps_state(g);
	for (int i = 0; i < g->n_pool; i++)
		g->window = g->pool[i].keep > g->window ? g->pool[i].keep : g->window;
	graph_own_pools(g);
	if (stage == 0 && states && !graph_keeps_state(g)) {
		err_at(g->diag, spec_loc(g->spec, "parallel.pp"),
		       "parallel.pp = %d: the first stage, which manages the sequences, has no "
		       "recurrent layer, and others have: use fewer stages",
		       stages);
		return false;
	}
	graph_infer(g);
	graph_sweep(g);
	return true;
}
