/* Memory of a session on the device: pages, slots, state. All of it is allocated when the session
 * opens. */
#include "runtime/cuda/cuda_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/align.h"

enum { ALIGN = 256 };

llmc_status
cuda_session_enter(Session *s, llmc_error *err)
{
	CudaSession *c = s->on;

	TRY(cuda_session_check(c, err));
	return cuda_enter(&c->m->dev, err);
}

void
cuda_session_leave(Session *s)
{
	cuda_leave(&((CudaSession *)s->on)->m->dev);
}

/* ---- state ---- */

/* Convert a device address to a pointer. The host does arithmetic on it but never dereferences
 * it. */
static void *
pointer(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* Lay out the session's state; base 0: only count bytes. Returns the size; -1: overflow */
static int64_t
lay_out_state(CudaSession *c, const Session *s, CUdeviceptr base)
{
	const Plan *p = s->plan;
	BumpAllocator b = { .base = pointer(base), .align = ALIGN };
	llmc_state *st = &c->st;
	int64_t seqs = s->lim.seqs, stride = session_table_stride(s),
	        max_page = session_max_page(s);

	c->n_freq = 0;
	c->max_out = (int32_t)(s->sym[SYM_n_out] < s->sym[SYM_n_seq] ? s->sym[SYM_n_out]
	                                                             : s->sym[SYM_n_seq]);
	*st = (llmc_state){ .n_rope = p->n_rope,
		            .block_stride = (int)stride,
		            .window_at = stride > max_page ? (int)max_page : 0,
		            .vocab = (int)p->vocab,
		            .max_out = c->max_out };
	st->note_stride = (int)((size_t)s->sym[SYM_n_seq] * sizeof(llmc_note_row));
	c->block_to = cuda_address(bump(&b, s->block_bytes, 1));
	for (int i = 0; i < p->n_rope && i < LLMC_MAX_ROPE; i++) {
		const PlanRope *r = &p->rope[i];
		st->rope[i] =
		    (llmc_rope_table){ .dims = r->dims,
			               .axis = r->axis,
			               .freq_at = c->n_freq,
			               .sections = !plan_rope_sections(r) ? 0
			                           : r->interleaved       ? 2
			                                                  : 1,
			               .section = { r->section[0], r->section[1], r->section[2] } };
		st->rope[i].dst =
		    bump(&b, s->sym[SYM_n_tok], (size_t)p->rope[i].dims * sizeof(float));
		c->n_freq += p->rope[i].dims / 2;
	}
	st->n_freq = c->n_freq;
	BUMP(&b, st->slot, seqs);
	BUMP(&b, st->tables, seqs * stride);
	BUMP(&b, st->counts, seqs * p->vocab);
	BUMP(&b, st->freq, seqs * c->n_freq);
	BUMP(&b, st->factor, seqs * p->n_rope);
	BUMP(&b, c->adapter, seqs);
	BUMP(&b, st->work, (int64_t)c->max_out * p->vocab);
	BUMP(&b, st->part, (int64_t)c->max_out * LLMC_SAMPLE_PARTS * 8);
	BUMP(&b, c->mask_at, c->max_out);
	BUMP(&b, c->mask, (int64_t)c->max_out * ((p->vocab + 31) / 32));
	c->mask_bytes = ((char *)c->mask - (char *)c->mask_at) +
	                (int64_t)c->max_out * ((p->vocab + 31) / 32) * (int64_t)sizeof *c->mask;
	BUMP(&b, st->row_done, c->max_out);
	BUMP(&b, st->all_done, 1);
	BUMP(&b, st->count, 1);
	BUMP(&b, st->now, 1);
	cuda_persistent_lay_out(c, s, &b);
	cuda_window_lay_out(c, s, &b);
	return b.over ? -1 : b.at;
}

int64_t
cuda_state_bytes(const Session *s, int64_t host_bytes)
{
	CudaSession c = { 0 };

	(void)host_bytes; /* only device memory is limited */
	int64_t bytes = lay_out_state(&c, s, 0);

	return bytes < 0 ? bytes : bytes + cublaslt_bytes(s);
}

/* ---- opening ---- */

static int64_t
need_for(const Session *s, int32_t context, int32_t seqs, int32_t chunk)
{
	llmc_limits l = s->lim;
	llmc_memory m;

	bool all_kv = l.kv_tokens == (int64_t)l.context * l.seqs, all_out = l.n_out == l.seqs;
	l.context = context;
	l.seqs = seqs;
	l.chunk = chunk;
	if (all_kv)
		l.kv_tokens = (int64_t)context * seqs;
	if (all_out)
		l.n_out = seqs;
	l.n_out = l.n_out < chunk ? l.n_out : chunk;
	return session_need(s->device, s->plan, &l, &m, NULL) == LLMC_OK
	           ? m.kv + m.scratch + m.state
	           : INT64_MAX;
}

/* The longest context that fits; 0: none. */
static int32_t
longest_in(const Session *s, int64_t room, int32_t chunk)
{
	int32_t lo = 0, hi = s->lim.context;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo + 1) / 2;
		if (need_for(s, mid, s->lim.seqs, chunk) <= room)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo >= PLAN_KV_PAGE ? lo - lo % PLAN_KV_PAGE : lo;
}

/* Set an error with the table of memory uses, the limits that would fit, and remedies that keep the
 * requested limits. */
static llmc_status
does_not_fit(const CudaSession *c, const llmc_memory *need, size_t left, size_t total,
             llmc_error *err)
{
	const Session *s = c->s;
	const CudaDevice *d = &c->m->dev;
	char w[32], k[32], sc[32], st[32], l[32], t[32],
	    kept[96] = "", fits[160] = "not even one position of one sequence would fit",
	    formats[160], smaller[320] = "";
	int64_t room = (int64_t)left - (8 << 20); /* reserve for the driver */
	int32_t chunk = s->lim.chunk, lo = longest_in(s, room, chunk), seqs = 0;

	for (int32_t n = s->lim.seqs; n > 0 && !seqs; n = n > 1 ? n / 2 : 0)
		if (need_for(s, s->lim.context, n, chunk) <= room)
			seqs = n;
	while (!lo && !seqs && chunk >= 2 * PLAN_KV_PAGE)
		lo = longest_in(s, room, chunk /= 2);
	if (lo && chunk < s->lim.chunk)
		snprintf(fits, sizeof fits, "--context %d with --seqs %d and --chunk %d would fit",
		         lo, s->lim.seqs, chunk);
	else if (lo && seqs)
		snprintf(fits, sizeof fits,
		         "--context %d with --seqs %d would fit, or --context %d with --seqs %d",
		         lo, s->lim.seqs, s->lim.context, seqs);
	else if (lo)
		snprintf(fits, sizeof fits, "--context %d with --seqs %d would fit", lo,
		         s->lim.seqs);
	else if (seqs)
		snprintf(fits, sizeof fits, "--context %d with --seqs %d would fit", s->lim.context,
		         seqs);
	/* remedies for the requested limits: smaller weights, or a part of the model on another
	 * device
	 */
	cuda_smaller_weights(c->m, room + need->weights - need->kv - need->scratch - need->state,
	                     formats);
	if (*formats || c->m->can_divide)
		snprintf(smaller, sizeof smaller, "\nthese limits: %s%s%s%s",
		         *formats ? "weights stored as " : "", formats,
		         *formats && c->m->can_divide ? ", or " : "",
		         c->m->can_divide ? "a part of the model on the CPU (--offload auto)" : "");
	if (need->kv_snapshots)
		snprintf(kept, sizeof kept,
		         "; %s of it snapshots of states, none without a prefix cache",
		         cuda_bytes_text(need->kv_snapshots, k));
	return error_set(
	    err, LLMC_E_MEMORY,
	    "this session does not fit GPU %d (%s):\n"
	    "  weights  %s (loaded)\n"
	    "  kv       %s (context %d, %d sequence%s%s)\n"
	    "  scratch  %s (chunk %d)\n"
	    "  state    %s\n"
	    "  free     %s of %s\n"
	    "%s%s",
	    d->number, d->name, cuda_bytes_text(need->weights, w), cuda_bytes_text(need->kv, k),
	    s->lim.context, s->lim.seqs, s->lim.seqs == 1 ? "" : "s", kept,
	    cuda_bytes_text(need->scratch, sc), s->lim.chunk, cuda_bytes_text(need->state, st),
	    cuda_bytes_text((int64_t)left, l), cuda_bytes_text((int64_t)total, t), fits, smaller);
}

static llmc_status
take_memory(CudaSession *c, const llmc_memory *need, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	Session *s = c->s;
	size_t left = 0, total = 0;
	const KvMem mem = cuda_pages(c);

	CUDA_TRY(d, d->api.mem_info(&left, &total), "querying free memory of GPU %d", d->number);
	if (need->kv + need->scratch + need->state > (int64_t)left)
		return does_not_fit(c, need, left, total, err);
	CUDA_TRY(d, d->api.stream_create(&c->stream, CU_STREAM_NON_BLOCKING), "making a stream");
	llmc_status status =
	    kv_open_on(&s->kv, &mem, s->plan, (int32_t)session_pages(&s->lim),
	               (int32_t)session_window_pages(s->plan, &s->lim), session_snapshots(&s->lim),
	               s->lim.context, s->lim.seqs, err);
	if (status == LLMC_OK)
		status = kv_marks_open(&s->kv, s->lim.marks, err);
	if (status == LLMC_OK)
		status = kv_host_open(&s->kv, (int32_t)(s->lim.host_tokens / PLAN_KV_PAGE),
		                      s->lim.chunk / PLAN_KV_PAGE + s->lim.seqs, err);
	if (c->failed == LLMC_E_MEMORY)
		return does_not_fit(c, need, left, total, err);
	TRY(cuda_session_check(c, err));
	TRY(status);
	CUresult r = d->api.mem_alloc(&c->slots, need->scratch ? (size_t)need->scratch : ALIGN);
	if (r == CU_OK)
		r = d->api.mem_alloc(&c->state, (size_t)(need->state - cublaslt_bytes(s)));
	if (r == CU_OUT_OF_MEMORY)
		return does_not_fit(c, need, left, total, err);
	CUDA_TRY(d, r, "allocating memory of a session");
	return LLMC_OK;
}

/* Pinned memory: blocks, notes, samples, masks, logits, and rows that a pipeline stage or an MTP
 * head receives and sends. */
static llmc_status
take_pinned(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Session *s = c->s;
	size_t block = (size_t)s->block_bytes * LLMC_RING,
	       note = (size_t)c->st.note_stride * LLMC_RING;
	size_t samples = ALIGN_UP((size_t)c->max_out * LLMC_RING * sizeof(llmc_sampled), 256);
	size_t masks = ALIGN_UP((size_t)c->mask_bytes * LLMC_RING, 256);
	size_t logits = (size_t)s->sym[SYM_n_out] * (size_t)plan_out_width(s->plan) * sizeof(float);
	const size_t row = (size_t)s->sym[SYM_n_tok] * sizeof(float),
	             given = plan_takes_rows(s->plan) ? row * (size_t)plan_row_width(s->plan) : 0;
	size_t stream = s->plan->outputs_rows ? row * (size_t)plan_rows_width(s->plan)
	                : s->plan->stages > 1 ? row * (size_t)s->plan->hidden
	                                      : 0;
	CUdeviceptr at;
	void *p = NULL;

	stream = stream > given ? stream : given;
	note = ALIGN_UP(note, 256);
	block = ALIGN_UP(block, 256);
	CUDA_TRY(d,
	         d->api.host_alloc(&p, block + note + samples + masks + logits + 2 * stream,
	                           CU_HOST_PORTABLE | CU_HOST_MAPPED),
	         "pinning %zu MB for steps",
	         (block + note + samples + masks + logits + 2 * stream) >> 20);
	c->pinned = p;
	memset(p, 0, block + note + samples);
	CUDA_TRY(d, d->api.host_device_ptr(&at, p, 0), "mapping pinned memory");
	c->block = c->pinned;
	c->note = c->block + block;
	c->sampled = (llmc_sampled *)(void *)(c->note + note);
	c->masks = c->note + note + samples;
	c->logits = (float *)(void *)(c->masks + masks);
	c->received = c->logits + logits / sizeof *c->logits;
	c->stage_out = c->received + stream / sizeof *c->received;
	c->s->rows = s->plan->outputs_rows ? c->stage_out : NULL;
	c->st.note = (const llmc_note_row *)(uintptr_t)(at + block);
	c->st.sampled = (llmc_sampled *)(uintptr_t)(at + block + note);
	for (int i = 0; i < LLMC_RING; i++)
		CUDA_TRY(d, d->api.event_create(&c->event[i], CU_EVENT_NO_TIMING),
		         "making an event");
	return LLMC_OK;
}

static llmc_status
take_tables(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	size_t n_seq = (size_t)s->sym[SYM_n_seq];
	bool ok = true;

	c->table = calloc((size_t)s->lim.seqs * (size_t)s->kv.stride, sizeof *c->table);
	c->row_seq = calloc(n_seq, sizeof *c->row_seq);
	c->row_pages = calloc(n_seq, sizeof *c->row_pages);
	c->counts = calloc((size_t)s->plan->vocab, sizeof *c->counts);
	c->freq = calloc((size_t)c->n_freq + 1, sizeof *c->freq);
	for (int i = 0; i < CUDA_MAX_IN_FLIGHT; i++) {
		c->flight[i].at = calloc((size_t)c->max_out, sizeof *c->flight[i].at);
		c->flight[i].sampled = calloc((size_t)c->max_out, sizeof *c->flight[i].sampled);
		ok = ok && c->flight[i].at && c->flight[i].sampled;
	}
	if (!ok || !c->table || !c->row_seq || !c->row_pages || !c->counts || !c->freq)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	memset(c->row_seq, 0xff, n_seq * sizeof *c->row_seq);
	memset(c->table, 0xff, (size_t)s->lim.seqs * (size_t)s->kv.stride * sizeof *c->table);
	return LLMC_OK;
}

/* Zero what kernels count with: i32 buffers, and the counters of begin and sample. The rest is
 * uninitialised. */
static llmc_status
clear(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Session *s = c->s;
	const llmc_state *st = &c->st;

	for (int i = 0; i < s->plan->n_buffer; i++) {
		const PlanBuffer *b = &s->plan->buffer[i];
		int64_t n = b->dtype == DT_I32 ? plan_extent_elems(&b->extent, s->sym) : 0;
		if (n > 0)
			CUDA_TRY(d,
			         d->api.set8(cuda_address(s->slot[b->slot]), 0, (size_t)n * 4,
			                     c->stream),
			         "clearing counters");
	}
	/* row_done, all_done and count are contiguous */
	CUDA_TRY(d,
	         d->api.set8(cuda_address(st->row_done), 0,
	                     (size_t)(cuda_address(st->now) - cuda_address(st->row_done)) + 4,
	                     c->stream),
	         "clearing counters");
	CUDA_TRY(d, d->api.set8(c->block_to, 0, (size_t)s->block_bytes, c->stream),
	         "clearing the step");
	CUDA_TRY(d,
	         d->api.set8(cuda_address(st->slot), 0, (size_t)s->lim.seqs * sizeof *st->slot,
	                     c->stream),
	         "clearing the step");
	return cuda_window_clear(c, err);
}

static llmc_status
bind(CudaSession *c, llmc_error *err)
{
	Session *s = c->s;
	const PlanBuffer *logits = &s->plan->buffer[s->plan->logits];
	llmc_state *st = &c->st;

	s->slots = pointer(c->slots);
	session_lay_out_slots(s);
	lay_out_state(c, s, c->state);
	TRY(take_pinned(c, err));
	TRY(take_tables(c, err));
#define IN_BLOCK(host) ((int *)(uintptr_t)(c->block_to + (CUdeviceptr)((char *)(host) - s->block)))
	st->s_n = IN_BLOCK(s->size);
	st->s_tok = IN_BLOCK(s->tok);
	st->s_pos = IN_BLOCK(s->pos);
	st->s_pos2 = IN_BLOCK(s->pos2);
	st->s_seq_of = IN_BLOCK(s->seq_of);
	st->s_q_start = IN_BLOCK(s->q_start);
	st->s_kv_len = IN_BLOCK(s->kv_len);
	st->s_prefix_len = IN_BLOCK(s->prefix_len);
	st->s_out_row = IN_BLOCK(s->out_row);
	st->s_block_table = IN_BLOCK(s->block_table);
	st->rope_pos = IN_BLOCK(s->rope_pos);
	st->rope_y = IN_BLOCK(s->rope_y);
	st->rope_x = IN_BLOCK(s->rope_x);
	st->slot_of = IN_BLOCK(s->step_seq);
#undef IN_BLOCK
	st->logits = (const float *)(const void *)s->slot[logits->slot];
	TRY(clear(c, err));
	TRY(cuda_bind(c, err));
	TRY(cuda_host_comm_open(c, err));
	TRY(cuda_crossing_open(c, err));
	TRY(cublaslt_open(c, err));
	/* capture the graphs. Not for several ranks, which are not connected yet, nor for stages,
	 * which do not sample on the device */
	for (int sampling = 0;
	     sampling < 2 && s->plan->ranks < 2 && s->plan->stages < 2 && s->plan->partitions < 2;
	     sampling++)
		TRY(cuda_graph(c, 0, sampling, false, err));
	CUDA_TRY(&c->m->dev, c->m->dev.api.stream_sync(c->stream),
	         "clearing the memory of a session");
	return cuda_session_check(c, err);
}

llmc_status
cuda_session_open(Session *s, const llmc_memory *need, llmc_error *err)
{
	CudaSession *c = s->on = calloc(1, sizeof *c);

	if (!c)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	c->m = s->rt->model;
	c->s = s;
	if (s->plan->n_rope > LLMC_MAX_ROPE)
		return error_set(err, LLMC_E_INPUT,
		                 "the plan has %d rotary tables, sessions on a GPU take %d",
		                 s->plan->n_rope, LLMC_MAX_ROPE);
	TRY(cuda_enter(&c->m->dev, err));
	llmc_status status = take_memory(c, need, err);
	if (status == LLMC_OK)
		status = bind(c, err);
	cuda_leave(&c->m->dev);
	return status;
}

void
cuda_session_close(Session *s)
{
	CudaSession *c = s->on;

	if (!c)
		return;
	CudaDevice *d = &c->m->dev;
	bool current = d->api.ctx_push(d->ctx) == CU_OK || d->api.ctx_push(d->ctx) == CU_OK;
	if (current && c->stream) /* running steps end before their memory is freed */
		CUDA_RELEASE(d->api.stream_sync(c->stream));
	cublaslt_close(c);
	cuda_group_leave(c);
	kv_release(&s->kv); /* its pages are freed through this session */
	cuda_pages_close(c, current);
	if (current) {
		for (int k = 0; k < 2 * 2 * CUDA_BUCKETS; k++)
			if ((&c->graph[0][0][0])[k])
				CUDA_RELEASE(d->api.graph_exec_destroy((&c->graph[0][0][0])[k]));
		for (int i = 0; i < LLMC_RING; i++)
			if (c->event[i])
				CUDA_RELEASE(d->api.event_destroy(c->event[i]));
		if (c->slots)
			CUDA_RELEASE(d->api.mem_free(c->slots));
		if (c->state)
			CUDA_RELEASE(d->api.mem_free(c->state));
		if (c->pinned)
			CUDA_RELEASE(d->api.host_free(c->pinned));
		cuda_host_comm_close(c);
		cuda_crossing_close(c);
		if (c->stream)
			CUDA_RELEASE(d->api.stream_destroy(c->stream));
		cuda_leave(d);
	}
	for (int i = 0; i < CUDA_MAX_IN_FLIGHT; i++) {
		free(c->flight[i].at);
		free(c->flight[i].sampled);
	}
	free(c->step[0]);
	free(c->step[1]);
	free(c->maps);
	free(c->table);
	free(c->row_seq);
	free(c->row_pages);
	free(c->counts);
	free(c->freq);
	free(c);
}
