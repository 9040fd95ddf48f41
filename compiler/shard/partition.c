/* Two devices: reduce the graph of the whole model to the part that runs on one of them.
 *
 * placement.cpu assigns ops to the CPU; the others run on the GPU. If the other device reads a
 * value, the value is sent as soon as it is made (op send), and received just before its first
 * reader (op recv). Ops between the two overlap with the other device. Values arrive in the order
 * in which they are sent, and both parts keep the order of the whole graph. So the devices cannot
 * deadlock, if the memory between them holds `queued` elements per row. */
#include "compiler/graph.h"

enum { ON_GPU, ON_CPU };

/* A value that one device makes and the other reads */
typedef struct Crossing {
	int val, from;
	/* indices of ops in the whole graph. made: definition of the value; read: its first reader,
	 * or that of a later crossing in the same direction */
	size_t made, read;
} Crossing;

static int
def_of(const Graph *g, int v)
{
	return v < 0 ? -1 : g->val[v].def;
}

/* Place the routed experts that `ffn` runs on the CPU, with their router. */
static void
place_experts(const Graph *g, size_t ffn, int *on)
{
	on[ffn] = ON_CPU;
	/* from the experts back to the router's logits: selection, gains, permuted inputs */
	for (size_t i = ffn; i-- > 0 && g->op[i].layer == g->op[ffn].layer;) {
		const Op *op = &g->op[i];
		if (op->kind == OP_moe_route || op->kind == OP_expert_gain ||
		    op->kind == OP_expert_input || op->kind == OP_permute_expert_cols)
			on[i] = ON_CPU;
		if (op->kind == OP_moe_route) {
			const int logits = def_of(g, op->arg[ARG(moe_route, logits)]);
			if (logits >= 0)
				on[logits] = ON_CPU;
			break;
		}
	}
}

static void
place(const Graph *g, int *on)
{
	const Spec *s = g->spec;
	bool after_layer = false;

	for (size_t i = 0; i < g->n_op; i++) {
		const int layer = g->op[i].layer;
		after_layer |= layer >= 0;
		on[i] = layer >= 0 ? s->placement.layer_in[layer] ? ON_CPU : ON_GPU
		        : !after_layer && (s->placement.embedding || s->placement.layer_in[0])
		            ? ON_CPU
		            : ON_GPU;
	}
	for (size_t i = 0; i < g->n_op; i++)
		if (g->op[i].kind == OP_moe_ffn && s->placement.experts_in[g->op[i].layer])
			place_experts(g, i, on);
}

/* Check that v can be sent to `reader`, which reads it on another device than its own. */
static bool
check_crossing(const Graph *g, const Op *reader, const Value *v)
{
	const char *why = NULL;

	if (v->kind == VAL_ORDER)
		why = "it reads keys and values of a layer on the other device";
	else if (v->dtype == DT_I32)
		why = "it reads positions or experts that were selected on the other device";
	else if (v->rows != SYM_n_tok)
		why = "it reads rows of the output";
	if (why)
		err_at(g->diag, spec_loc(g->spec, "placement.cpu.layers"),
		       "placement.cpu: %s of layer %d cannot run on another device than %s: %s",
		       op_info[reader->kind].name, reader->layer, v->name, why);
	return !why;
}

/* List the crossings in the order in which their values are defined. -1: there is an error */
static int
crossings(const Graph *g, const int *on, Crossing *out)
{
	size_t *first = NEW(g->arena, size_t, g->n_val + 1), next[2] = { g->n_op, g->n_op };
	int n = 0;

	for (size_t i = g->n_op; i-- > 0;)
		for (int k = 0; k < op_info[g->op[i].kind].n_in; k++) {
			const int v = g->op[i].arg[k], def = def_of(g, v);
			if (def < 0 || on[def] == on[i])
				continue;
			if (!check_crossing(g, &g->op[i], &g->val[v]))
				return -1;
			first[v] = i;
		}
	for (size_t i = 0; i < g->n_op; i++)
		for (int k = op_info[g->op[i].kind].n_in; k < op_info[g->op[i].kind].n_arg; k++) {
			const int v = g->op[i].arg[k];
			if (v >= 0 && first[v])
				out[n++] = (Crossing){
					.val = v, .from = on[i], .made = i, .read = first[v]
				};
		}
	for (int c = n; c-- > 0;) {
		size_t *at = &next[out[c].from];
		out[c].read = *at = out[c].read < *at ? out[c].read : *at;
	}
	return n;
}

/* Return the largest sum of widths that `from` has sent and that have not been received yet, if ops
 * run in the order of the whole graph. */
static int64_t
most_queued(const Graph *g, const Crossing *c, int n, int from)
{
	int64_t now = 0, most = 0;

	for (size_t i = 0; i < g->n_op; i++) {
		for (int k = 0; k < n; k++)
			now -= c[k].from == from && c[k].read == i ? g->val[c[k].val].dim[1] : 0;
		for (int k = 0; k < n; k++)
			now += c[k].from == from && c[k].made == i ? g->val[c[k].val].dim[1] : 0;
		most = now > most ? now : most;
	}
	return most;
}

static void
add_crossing(Graph *g, const Crossing *c, OpKind kind, int layer, int64_t queued)
{
	const Value v = g->val[c->val];
	int sent = -1;

	if (kind == OP_send)
		sent = graph_value(g, VAL_ORDER, arena_printf(g->arena, "%s.sent", v.name), v.loc);
	Op *op = graph_op(g, kind, layer, v.loc);
	if (kind == OP_send)
		op_args(op, OP_ARGS(send, .x = c->val, .sent = sent));
	else
		op_args(op, OP_ARGS(recv, .y = c->val));
	op_set_int(g, op, "width", v.dim[1]);
	op_set_int(g, op, "queued", queued);
}

/* Reduce the graph to one device.
 *
 *   requires  the unfused graph of the whole model, after shape inference
 *   keeps     names, the order of ops
 *   effect    the graph of one device, with the values that it sends and receives */
bool
graph_partition(Graph *g, int partition)
{
	const Op *op = g->op;
	const size_t n_op = g->n_op;
	int *on = NEW(g->arena, int, n_op + 1);
	Crossing *c = NEW(g->arena, Crossing, g->n_val + 1);

	g->partition = partition;
	g->partitions = 2;
	place(g, on);
	const int n = crossings(g, on, c);
	if (n < 0)
		return false;
	const int64_t queued[2] = { most_queued(g, c, n, ON_GPU), most_queued(g, c, n, ON_CPU) };
	g->op = NULL;
	g->n_op = g->cap_op = 0;
	for (size_t i = 0; i < n_op; i++) {
		if (on[i] != partition)
			continue;
		for (int k = 0; k < n; k++)
			if (c[k].from != partition && c[k].read == i)
				add_crossing(g, &c[k], OP_recv, op[i].layer, queued[c[k].from]);
		*graph_op(g, op[i].kind, op[i].layer, op[i].loc) = op[i];
		for (int k = 0; k < n; k++)
			if (c[k].from == partition && c[k].made == i)
				add_crossing(g, &c[k], OP_send, op[i].layer, queued[partition]);
	}
	bool states = graph_keeps_state(g);
	for (int i = 0; i < g->n_pool; i++)
		g->window = g->pool[i].keep > g->window ? g->pool[i].keep : g->window;
	graph_own_pools(g);
	if (partition == ON_GPU && states && !graph_keeps_state(g)) {
		err_at(
		    g->diag, spec_loc(g->spec, "placement.cpu.layers"),
		    "placement.cpu.layers: the GPU, which manages the sequences, has no recurrent "
		    "layer, and the CPU has: leave one on the GPU");
		return false;
	}
	graph_infer(g);
	graph_sweep(g);
	return true;
}
