/* Stream capture, graphs and their launches. A launch queues a copy of every node. Root nodes
 * depend on the earlier work of the stream, and the stream continues after all nodes. */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

Capture *driver_captures;
static CUgraph graphs;
static CUgraphExec execs;

void
op_template_free(EmuOp *op)
{
	free(op->param);
	free(op->param_mem);
	free(op->stage);
	free(op->work);
	free(op);
}

EmuOp *
op_clone(const EmuOp *op)
{
	EmuOp *c = op_new(op->kind, op->name);

	*c = *op;
	if (op->work) {
		c->work = emu_alloc(op->work_bytes);
		memcpy(c->work, op->work, op->work_bytes);
	}
	if (op->kind == OP_KERNEL) {
		c->param = emu_alloc(sizeof *c->param * (size_t)(op->fn->n_param + 1));
		c->param_mem = aligned_alloc(128, op->bytes);
		memcpy(c->param_mem, op->param_mem, op->bytes);
		for (int i = 0; i < op->fn->n_param; i++)
			c->param[i] = c->param_mem + ((char *)op->param[i] - op->param_mem);
	}
	return c;
}

static EmuNode **
nodes_copy(EmuNode **n, int count)
{
	EmuNode **c = emu_alloc(sizeof *c * (size_t)(count + 1));

	if (count)
		memcpy(c, n, sizeof *c * (size_t)count);
	return c;
}

EmuNode *
graph_node(CUgraph g, int type, EmuOp *op, EmuNode **dep, int n_dep, EmuNode **prog, int n_prog)
{
	EmuNode *n = emu_alloc(sizeof *n);

	*n = (EmuNode){ .type = type,
		        .op = op,
		        .dep = nodes_copy(dep, n_dep),
		        .prog = nodes_copy(prog, n_prog),
		        .n_dep = n_dep,
		        .n_prog = n_prog,
		        .index = g->n_node,
		        .graph = g };
	for (int i = 0; i < n_dep; i++)
		dep[i]->joined = true;
	for (int i = 0; i < n_prog; i++)
		prog[i]->joined = true;
	g->node = realloc(g->node, sizeof *g->node * (size_t)(g->n_node + 1));
	g->node[g->n_node++] = n;
	return n;
}

CUgraph
graph_new(void)
{
	return emu_alloc(sizeof(struct CUgraph_st));
}

void
graph_free(CUgraph g)
{
	for (int i = 0; i < g->n_node; i++) {
		op_template_free(g->node[i]->op);
		free(g->node[i]->dep);
		free(g->node[i]->prog);
		free(g->node[i]);
	}
	free(g->node);
	free(g);
}

static CUgraph
graph_clone(CUgraph g)
{
	CUgraph c = graph_new();

	for (int i = 0; i < g->n_node; i++) {
		EmuNode *n = g->node[i],
		        *m = graph_node(c, n->type, op_clone(n->op), NULL, 0, NULL, 0);
		free(m->dep);
		free(m->prog);
		m->dep = nodes_copy(n->dep, n->n_dep);
		m->prog = nodes_copy(n->prog, n->n_prog);
		m->n_dep = n->n_dep;
		m->n_prog = n->n_prog;
		for (int k = 0; k < m->n_dep; k++)
			m->dep[k] = c->node[m->dep[k]->index];
		for (int k = 0; k < m->n_prog; k++)
			m->prog[k] = c->node[m->prog[k]->index];
	}
	return c;
}

/* ---- capture ---- */

CUresult
capture_refuse(CUstream s, CUresult code)
{
	if (s->cap)
		s->cap->invalid = true;
	return code;
}

CUresult
capture_refuse_global(const char *name)
{
	for (Capture *c = driver_captures; c; c = c->next)
		if (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
		    (c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
		     c->thread == (unsigned long)pthread_self())) {
			c->invalid = true;
			emu_note("%s is not allowed while a stream is capturing", name);
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return CUDA_SUCCESS;
}

API(cuStreamBeginCapture_v2, (CUstream handle, int mode))
{
	ENTER(cuStreamBeginCapture_v2, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	if (mode < 0 || mode > 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (s == &driver_null)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->cap)
		return CUDA_ERROR_ILLEGAL_STATE;
	Capture *c = emu_alloc(sizeof *c);
	*c = (Capture){ .origin = s,
		        .mode = mode,
		        .graph = graph_new(),
		        .thread = (unsigned long)pthread_self(),
		        .next = driver_captures };
	driver_captures = c;
	s->cap = c;
	s->n_cap_tail = 0;
	return CUDA_SUCCESS;
}

API(cuStreamEndCapture, (CUstream handle, CUgraph *out))
{
	ENTER(cuStreamEndCapture, NEEDS_CONTEXT);
	CUstream s = NULL;
	for (CUstream x = driver_streams; x; x = x->next)
		if (x == handle)
			s = x;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	Capture *c = s->cap;
	if (!c)
		return CUDA_ERROR_ILLEGAL_STATE;
	CUresult r = CUDA_SUCCESS;
	if (c->origin != s) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != (unsigned long)pthread_self())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	for (int i = 0; i < s->n_cap_tail; i++)
		s->cap_tail[i]->joined = true;
	for (int i = 0; !c->invalid && !r && i < c->graph->n_node; i++)
		if (!c->graph->node[i]->joined)
			r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (CUstream x = driver_streams; x; x = x->next)
		if (x->cap == c) {
			x->cap = NULL;
			x->n_cap_tail = 0;
		}
	for (CUevent e = driver_events; e; e = e->next)
		if (e->cap == c) {
			e->cap = NULL;
			e->recorded = false;
		}
	for (Capture **x = &driver_captures; *x; x = &(*x)->next)
		if (*x == c) {
			*x = c->next;
			break;
		}
	if (out)
		*out = NULL;
	if (r || !out) {
		graph_free(c->graph);
	} else {
		c->graph->next = graphs;
		graphs = c->graph;
		*out = c->graph;
	}
	free(c);
	return r;
}

API(cuStreamIsCapturing, (CUstream handle, int *status))
{
	ENTER(cuStreamIsCapturing, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (!r)
		*status = !s->cap           ? CU_STREAM_CAPTURE_STATUS_NONE
		          : s->cap->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
		                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return r;
}

/* ---- graphs ---- */

static bool
graph_known(CUgraph g)
{
	for (CUgraph x = graphs; x; x = x->next)
		if (x == g)
			return true;
	return false;
}

static bool
exec_known(CUgraphExec g)
{
	for (CUgraphExec x = execs; x; x = x->next)
		if (x == g)
			return true;
	return false;
}

/* Statistics of the last instantiated graph: number of kernels, of kernels that requested a
 * programmatic edge, of programmatic edges between kernels with the same carveout (split of L1 and
 * shared memory), and of carveout changes between consecutive kernels. */
static long last_kernels, last_requested, last_edges, last_changes;

EXPORT void emu_graph(long *kernels, long *requested, long *edges, long *changes);
EXPORT void
emu_graph(long *kernels, long *requested, long *edges, long *changes)
{
	*changes = last_changes;
	*kernels = last_kernels;
	*requested = last_requested;
	*edges = last_edges;
}

static void
count_edges(const struct CUgraph_st *g)
{
	int before = -1;

	last_kernels = last_requested = last_edges = last_changes = 0;
	for (int i = 0; i < g->n_node; i++) {
		last_kernels += g->node[i]->op->kind == OP_KERNEL;
		last_requested += g->node[i]->op->requested;
		const int mine =
		    g->node[i]->op->kind == OP_KERNEL ? g->node[i]->op->fn->carveout : 0;
		last_edges += g->node[i]->n_prog > 0 && mine > 0 &&
		              g->node[i]->prog[0]->op->fn->carveout == mine;
		if (g->node[i]->op->kind != OP_KERNEL)
			continue;
		last_changes += before >= 0 && before != mine;
		before = mine;
	}
}

static CUresult
instantiate(CUgraphExec *out, CUgraph g)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!graph_known(g))
		return CUDA_ERROR_INVALID_HANDLE;
	CUgraphExec e = emu_alloc(sizeof *e);
	e->graph = graph_clone(g);
	e->origin = g;
	e->next = execs;
	execs = e;
	count_edges(e->graph);
	*out = e;
	return CUDA_SUCCESS;
}

API(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph g, unsigned long long flags))
{
	ENTER(cuGraphInstantiateWithFlags, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	(void)flags;
	return instantiate(out, g);
}

API(cuGraphInstantiate_v2, (CUgraphExec * out, CUgraph g, CUgraphNode *bad, char *log, size_t n))
{
	ENTER(cuGraphInstantiate_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	if (bad)
		*bad = NULL;
	if (log && n)
		*log = 0;
	return instantiate(out, g);
}

API(cuGraphUpload, (CUgraphExec e, CUstream handle))
{
	ENTER(cuGraphUpload, NEEDS_CONTEXT);
	CUstream s;
	return exec_known(e) ? stream_get(handle, &s) : CUDA_ERROR_INVALID_HANDLE;
}

API(cuGraphLaunch, (CUgraphExec e, CUstream handle))
{
	ENTER(cuGraphLaunch, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	if (!exec_known(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->cap)
		return capture_refuse(s,
		                      CUDA_ERROR_NOT_SUPPORTED); /* child graphs are not emulated */
	CUgraph g = e->graph;
	if (g->n_node >= TIMELINE / 2)
		return CUDA_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < g->n_node; i++)
		if (g->node[i]->type == CU_GRAPH_NODE_TYPE_KERNEL &&
		    !module_has_function(g->node[i]->op->fn)) {
			emu_note("cuGraphLaunch: the module of node %d, a kernel, was unloaded", i);
			return CUDA_ERROR_INVALID_HANDLE;
		}
	Seqs root = { 0 }, all = { 0 };
	seqs_join(&root, &s->tail);
	if (s == &driver_null)
		for (CUstream x = driver_streams; x; x = x->next) {
			if (x->blocking)
				seqs_join(&root, &x->tail);
		}
	else if (s->blocking)
		seqs_join(&root, &driver_null.tail);
	seqs_join(&root, &e->last); /* launches of one executable graph never overlap each other */
	uint64_t *at = emu_alloc(sizeof *at * (size_t)(g->n_node + 1));
	for (int i = 0; i < g->n_node && !emu_error; i++) {
		EmuNode *n = g->node[i];
		Seqs dep = { 0 }, prog = { 0 };
		for (int k = 0; k < n->n_dep; k++)
			seqs_add(&dep, at[n->dep[k]->index]);
		for (int k = 0; k < n->n_prog; k++)
			seqs_add(&prog, at[n->prog[k]->index]);
		if (!n->n_dep && !n->n_prog)
			seqs_join(&dep, &root);
		EmuOp *op = op_clone(n->op);
		op->device = driver_context->device;
		op_add(op, dep.seq, dep.n, prog.seq, prog.n);
		free(dep.seq);
		free(prog.seq);
		if (emu_error)
			break;
		at[i] = op->seq;
		seqs_add(&all, op->seq);
	}
	free(at);
	free(root.seq);
	if (g->n_node && !emu_error) {
		s->tail.n = e->last.n = 0;
		seqs_join(&s->tail, &all);
		seqs_join(&e->last, &all);
		s->last_kernel = 0;
	}
	free(all.seq);
	timeline_some();
	return driver_sticky();
}

API(cuGraphGetNodes, (CUgraph g, CUgraphNode *list, size_t *n))
{
	ENTER(cuGraphGetNodes, NEEDS_CONTEXT);
	if (!graph_known(g) || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; list && i < *n; i++)
		list[i] = i < (size_t)g->n_node ? (CUgraphNode)(void *)g->node[i] : NULL;
	*n = (size_t)g->n_node;
	return CUDA_SUCCESS;
}

static bool
node_known(const EmuNode *n)
{
	for (CUgraph g = graphs; g; g = g->next)
		for (int i = 0; i < g->n_node; i++)
			if (g->node[i] == n)
				return true;
	return false;
}

API(cuGraphNodeGetType, (CUgraphNode handle, int *type))
{
	ENTER(cuGraphNodeGetType, NEEDS_CONTEXT);
	EmuNode *n = (EmuNode *)(void *)handle;
	if (!type || !node_known(n))
		return CUDA_ERROR_INVALID_VALUE;
	*type = n->type;
	return CUDA_SUCCESS;
}

API(cuGraphKernelNodeGetParams_v2, (CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *p))
{
	ENTER(cuGraphKernelNodeGetParams_v2, NEEDS_CONTEXT);
	EmuNode *n = (EmuNode *)(void *)handle;
	if (!p || !node_known(n) || n->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	EmuOp *o = n->op;
	*p = (CUDA_KERNEL_NODE_PARAMS){ (CUfunction)(void *)o->fn,
		                        o->grid.x,
		                        o->grid.y,
		                        o->grid.z,
		                        o->block.x,
		                        o->block.y,
		                        o->block.z,
		                        o->dyn,
		                        o->param,
		                        NULL,
		                        NULL,
		                        NULL };
	return CUDA_SUCCESS;
}

API(cuGraphExecKernelNodeSetParams_v2,
    (CUgraphExec e, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *p))
{
	ENTER(cuGraphExecKernelNodeSetParams_v2, NEEDS_CONTEXT);
	EmuNode *n = (EmuNode *)(void *)handle;
	EmuOp *op;
	if (!p || !exec_known(e) || !node_known(n) || n->graph != e->origin ||
	    n->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	EmuNode *mine = e->graph->node[n->index];
	CUresult r =
	    launch_make((Func *)(void *)p->func, (Dim){ p->gridDimX, p->gridDimY, p->gridDimZ },
	                (Dim){ p->blockDimX, p->blockDimY, p->blockDimZ }, mine->op->cluster,
	                p->sharedMemBytes, mine->op->cooperative, p->kernelParams, p->extra, &op);
	if (r)
		return r;
	op_template_free(mine->op);
	mine->op = op;
	return CUDA_SUCCESS;
}

API(cuGraphExecUpdate_v2, (CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *info))
{
	ENTER(cuGraphExecUpdate_v2, NEEDS_CONTEXT);
	if (!info || !exec_known(e) || !graph_known(g))
		return CUDA_ERROR_INVALID_VALUE;
	*info = (CUgraphExecUpdateResultInfo){ 0 };
	CUgraph mine = e->graph;
	int bad = mine->n_node != g->n_node ? 2 : 0;
	for (int i = 0; !bad && i < g->n_node; i++) {
		EmuNode *a = mine->node[i], *b = g->node[i];
		bad = a->n_dep != b->n_dep || a->n_prog != b->n_prog ? 2
		      : a->type != b->type                           ? 3
		                                                     : 0;
		for (int k = 0; !bad && k < a->n_dep; k++)
			bad = a->dep[k]->index != b->dep[k]->index ? 2 : 0;
		for (int k = 0; !bad && k < a->n_prog; k++)
			bad = a->prog[k]->index != b->prog[k]->index ? 2 : 0;
		if (!bad && a->op->kind == OP_COPY && a->op->bytes != b->op->bytes)
			bad = 5;
		if (bad)
			info->errorNode = (CUgraphNode)(void *)b;
	}
	if (bad) {
		info->result = bad;
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	graph_free(mine);
	e->graph = graph_clone(g);
	return CUDA_SUCCESS;
}

API(cuGraphDestroy, (CUgraph g))
{
	ENTER(cuGraphDestroy, NEEDS_CONTEXT);
	for (CUgraph *x = &graphs; *x; x = &(*x)->next)
		if (*x == g) {
			*x = g->next;
			graph_free(g);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

static void
exec_free(CUgraphExec e)
{
	graph_free(e->graph);
	free(e->last.seq);
	free(e);
}

API(cuGraphExecDestroy, (CUgraphExec e))
{
	ENTER(cuGraphExecDestroy, NEEDS_CONTEXT);
	for (CUgraphExec *x = &execs; *x; x = &(*x)->next)
		if (*x == e) {
			*x = e->next;
			exec_free(e);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

int
graph_release_all(void)
{
	int n = 0;

	for (; driver_captures; n++) {
		Capture *c = driver_captures;
		driver_captures = c->next;
		graph_free(c->graph);
		free(c);
	}
	for (; execs; n++) {
		CUgraphExec e = execs;
		execs = e->next;
		exec_free(e);
	}
	for (; graphs; n++) {
		CUgraph g = graphs;
		graphs = g->next;
		graph_free(g);
	}
	return n;
}
