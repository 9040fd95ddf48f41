/* Streams and events, which determine the predecessors of a new operation */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct CUstream_st driver_null = { .blocking = true };
CUstream driver_streams;
CUevent driver_events;

void
seqs_add(Seqs *s, uint64_t seq)
{
	if (s->n == s->cap) {
		int k = 0;
		/* drop operations for which the host has waited */
		for (int i = 0; i < s->n; i++)
			if (op_at(s->seq[i]))
				s->seq[k++] = s->seq[i];
		s->n = k;
		if (2 * s->n >= s->cap) {
			s->cap = s->cap ? 2 * s->cap : 8;
			s->seq = realloc(s->seq, sizeof *s->seq * (size_t)s->cap);
		}
	}
	s->seq[s->n++] = seq;
}

void
seqs_join(Seqs *a, const Seqs *b)
{
	for (int i = 0; i < b->n; i++)
		seqs_add(a, b->seq[i]);
}

void
seqs_set(Seqs *s, uint64_t seq)
{
	s->n = 0;
	seqs_add(s, seq);
}

CUresult
stream_get(CUstream handle, CUstream *s)
{
	if (!handle || handle == (CUstream)1 || handle == (CUstream)2) {
		*s = &driver_null;
		/* While the legacy stream is used, no blocking stream may be in capture. */
		for (Capture *c = driver_captures; c; c = c->next)
			if (c->origin->blocking && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
				return capture_refuse(c->origin,
				                      CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		return CUDA_SUCCESS;
	}
	for (CUstream x = driver_streams; x; x = x->next)
		if (x == handle && driver_context && x->device != driver_context->device) {
			emu_note("a stream of device %d is used while the context of device %d is "
			         "current",
			         x->device, driver_context->device);
			return CUDA_ERROR_INVALID_HANDLE;
		} else if (x == handle) {
			*s = x;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult
add_to_capture(CUstream s, EmuOp *op, bool programmatic)
{
	static const int type[] = { [OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
		                    [OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
		                    [OP_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
		                    [OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
		                    [OP_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY };

	if (s->cap->invalid) {
		op_template_free(op);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	bool prog =
	    programmatic && s->n_cap_tail == 1 && s->cap_tail[0]->type == CU_GRAPH_NODE_TYPE_KERNEL;
	EmuNode *n = graph_node(s->cap->graph, type[op->kind], op, prog ? NULL : s->cap_tail,
	                        prog ? 0 : s->n_cap_tail, prog ? s->cap_tail : NULL,
	                        prog ? s->n_cap_tail : 0);
	s->cap_tail = realloc(s->cap_tail, sizeof *s->cap_tail);
	s->cap_tail[0] = n;
	s->n_cap_tail = 1;
	return CUDA_SUCCESS;
}

CUresult
stream_add(CUstream s, EmuOp *op, bool programmatic)
{
	Seqs dep = { 0 };
	uint64_t prog = 0;

	if (s->cap)
		return add_to_capture(s, op, programmatic);
	bool kernel = op->kind == OP_KERNEL;
	if (programmatic && s->last_kernel)
		prog = s->last_kernel;
	else
		seqs_join(&dep, &s->tail);
	if (s == &driver_null)
		for (CUstream x = driver_streams; x; x = x->next) {
			if (x->blocking && !x->cap)
				seqs_join(&dep, &x->tail);
		}
	else if (s->blocking)
		seqs_join(&dep, &driver_null.tail);
	op->device = s == &driver_null ? driver_context->device : s->device;
	op_add(op, dep.seq, dep.n, &prog, prog != 0);
	free(dep.seq);
	if (emu_error)
		return driver_sticky();
	if (prog)
		seqs_add(&s->tail, op->seq);
	else
		seqs_set(&s->tail, op->seq);
	s->last_kernel = kernel ? op->seq : 0;
	timeline_some();
	return driver_sticky();
}

/* Makes the host wait for everything in the stream. */
CUresult
stream_wait(CUstream s)
{
	Seqs all = { 0 };

	seqs_join(&all, &s->tail);
	if (s == &driver_null)
		for (CUstream x = driver_streams; x; x = x->next) {
			if (x->blocking)
				seqs_join(&all, &x->tail);
		}
	timeline_run(all.seq, all.n);
	if (!emu_error)
		timeline_known(all.seq, all.n);
	free(all.seq);
	return driver_sticky();
}

static CUresult
create(CUstream *out, unsigned flags)
{
	if (!out || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	CUstream s = emu_alloc(sizeof *s);
	s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
	s->device = driver_context->device;
	s->next = driver_streams;
	driver_streams = s;
	*out = s;
	return CUDA_SUCCESS;
}

API(cuStreamCreate, (CUstream * out, unsigned flags))
{
	ENTER(cuStreamCreate, NEEDS_CONTEXT);
	return create(out, flags);
}

API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority))
{
	ENTER(cuStreamCreateWithPriority, NEEDS_CONTEXT);
	(void)priority;
	return create(out, flags);
}

static void
stream_free(CUstream s)
{
	free(s->tail.seq);
	free(s->cap_tail);
	free(s);
}

API(cuStreamDestroy_v2, (CUstream handle))
{
	ENTER(cuStreamDestroy_v2, NEEDS_CONTEXT);
	for (CUstream *x = &driver_streams; *x; x = &(*x)->next)
		if (*x == handle) {
			if (handle->cap)
				return capture_refuse(handle,
				                      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
			*x = handle->next;
			stream_free(handle); /* work that is still queued runs later */
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

API(cuStreamSynchronize, (CUstream handle))
{
	ENTER(cuStreamSynchronize, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	return s->cap ? capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : stream_wait(s);
}

static bool
all_done(const Seqs *s)
{
	for (int i = 0; i < s->n; i++)
		if (!op_done(s->seq[i]))
			return false;
	return true;
}

API(cuStreamQuery, (CUstream handle))
{
	ENTER(cuStreamQuery, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	if (s->cap)
		return capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	timeline_some();
	if (driver_sticky())
		return emu_error;
	if (!all_done(&s->tail))
		return CUDA_ERROR_NOT_READY;
	timeline_known(s->tail.seq, s->tail.n);
	return CUDA_SUCCESS;
}

/* ---- events ---- */

static bool
event_known(CUevent e)
{
	for (CUevent x = driver_events; x; x = x->next)
		if (x == e)
			return true;
	return false;
}

API(cuEventCreate, (CUevent * out, unsigned flags))
{
	ENTER(cuEventCreate, NEEDS_CONTEXT);
	if (!out || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	CUevent e = emu_alloc(sizeof *e);
	e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
	e->device = driver_context->device;
	e->next = driver_events;
	driver_events = e;
	*out = e;
	return CUDA_SUCCESS;
}

static void
event_free(CUevent e)
{
	free(e->ops.seq);
	free(e->node);
	free(e);
}

API(cuEventDestroy_v2, (CUevent e))
{
	ENTER(cuEventDestroy_v2, NEEDS_CONTEXT);
	for (CUevent *x = &driver_events; *x; x = &(*x)->next)
		if (*x == e) {
			*x = e->next;
			event_free(e);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_HANDLE;
}

API(cuEventRecord, (CUevent e, CUstream handle))
{
	ENTER(cuEventRecord, NEEDS_CONTEXT);
	CUstream s;
	struct timespec t;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	if (!event_known(e) || e->device != driver_context->device)
		return CUDA_ERROR_INVALID_HANDLE;
	e->ops.n = 0;
	free(e->node);
	e->node = NULL;
	e->n_node = 0;
	e->cap = s->cap;
	e->recorded = true;
	if (s->cap) {
		if (s->cap->invalid)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		e->node = emu_alloc(sizeof *e->node * (size_t)(s->n_cap_tail + 1));
		memcpy(e->node, s->cap_tail, sizeof *e->node * (size_t)s->n_cap_tail);
		e->n_node = s->n_cap_tail;
		return CUDA_SUCCESS;
	}
	seqs_join(&e->ops, &s->tail);
	clock_gettime(CLOCK_MONOTONIC, &t);
	e->time = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
	return CUDA_SUCCESS;
}

API(cuStreamWaitEvent, (CUstream handle, CUevent e, unsigned flags))
{
	ENTER(cuStreamWaitEvent, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	if (!event_known(e) || flags > 1)
		return event_known(e) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	if (!e->recorded)
		return CUDA_SUCCESS;
	if (e->cap) { /* the stream joins the event's capture */
		if (s->cap && s->cap != e->cap)
			return capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_MERGE);
		if (e->cap->invalid)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		s->cap = e->cap;
		s->cap_tail = realloc(s->cap_tail, sizeof *s->cap_tail *
		                                       (size_t)(s->n_cap_tail + e->n_node + 1));
		for (int i = 0; i < e->n_node; i++)
			s->cap_tail[s->n_cap_tail++] = e->node[i];
		return CUDA_SUCCESS;
	}
	if (s->cap)
		return capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	seqs_join(&s->tail, &e->ops);
	s->last_kernel = 0;
	return CUDA_SUCCESS;
}

API(cuEventQuery, (CUevent e))
{
	ENTER(cuEventQuery, NEEDS_CONTEXT);
	if (!event_known(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->cap)
		return CUDA_ERROR_CAPTURED_EVENT;
	timeline_some();
	if (driver_sticky())
		return emu_error;
	if (!all_done(&e->ops))
		return CUDA_ERROR_NOT_READY;
	timeline_known(e->ops.seq, e->ops.n);
	return CUDA_SUCCESS;
}

API(cuEventSynchronize, (CUevent e))
{
	ENTER(cuEventSynchronize, NEEDS_CONTEXT);
	if (!event_known(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->cap)
		return CUDA_ERROR_CAPTURED_EVENT;
	timeline_run(e->ops.seq, e->ops.n);
	if (!emu_error)
		timeline_known(e->ops.seq, e->ops.n);
	/* The device makes progress while the host polls, so later work may already have changed
	 * what the host reads. */
	timeline_some();
	return driver_sticky();
}

/* Elapsed times are those of the host between the calls that recorded the events. They do not
 * predict a GPU's. */
API(cuEventElapsedTime, (float *ms, CUevent a, CUevent b))
{
	ENTER(cuEventElapsedTime, NEEDS_CONTEXT);
	if (!event_known(a) || !event_known(b) || !a->timing || !b->timing || !a->recorded ||
	    !b->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!all_done(&a->ops) || !all_done(&b->ops))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)(b->time - a->time);
	return CUDA_SUCCESS;
}

int
stream_release_all(void)
{
	int n = 0;

	for (; driver_events; n++) {
		CUevent e = driver_events;
		driver_events = e->next;
		event_free(e);
	}
	for (; driver_streams; n++) {
		CUstream s = driver_streams;
		driver_streams = s->next;
		stream_free(s);
	}
	free(driver_null.tail.seq);
	driver_null = (struct CUstream_st){ .blocking = true };
	return n;
}
