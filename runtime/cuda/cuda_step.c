/* One step: arrays to the device, then kernels, launched one by one (mixed steps) or as a graph
 * (decode steps, one graph for each number of rows 1, 2, 4, ...). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cublaslt.h"
#include "templates/common/llmc_mla.h"

/* Largest bucket whose steps may be one persistent kernel, in which every op uses its decode
 * kernel. 0: none */
static int32_t
persistent_rows(CudaSession *c)
{
	const Plan *p = c->s->plan;
	int32_t rows = 0;

	if (!p->persistent.n_body || !c->m->dev.cooperative)
		return 0;
	for (int b = 0; b < c->n_bucket && c->bucket[b] <= PLAN_PERSISTENT_ROWS; b++) {
		for (int i = 0; i < p->phase[0].n_step; i++)
			if (cuda_step_for(c, 0, i, c->bucket[b]) != &c->step[0][i])
				return rows;
		rows = c->bucket[b];
	}
	return rows;
}

llmc_status
cuda_bind(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	const Plan *p = s->plan;
	const llmc_state *st = &c->st;
	llmc_step k = { .n = st->s_n,
		        .tok = st->s_tok,
		        .pos = st->s_pos,
		        .pos2 = st->s_pos2,
		        .seq_of = st->s_seq_of,
		        .q_start = st->s_q_start,
		        .kv_len = st->s_kv_len,
		        .prefix_len = st->s_prefix_len,
		        .out_row = st->s_out_row,
		        .block_table = st->s_block_table,
		        .seq = st->slot_of,
		        .adapter = c->adapter,
		        .block_stride = st->block_stride };
#define IN_BLOCK(host) ((int *)(uintptr_t)(c->block_to + (CUdeviceptr)((char *)(host) - s->block)))
	llmc_step segments = k;
	if (s->segments) {
		segments.n = IN_BLOCK(s->segments);
		segments.pos = IN_BLOCK(s->segment_pos);
		segments.seq_of = IN_BLOCK(s->segment_of);
		segments.q_start = IN_BLOCK(s->segment_start);
		segments.kv_len = IN_BLOCK(s->segment_len);
		segments.block_table = IN_BLOCK(s->segment_table);
		segments.block_stride = s->segment_pages;
	}
#undef IN_BLOCK
	static const PlanKernel between = { .id = "collective", .file = "runtime/collective.cu" };
	int64_t max = s->sym[SYM_n_seq];

	for (int i = 0; i < p->n_rope; i++)
		s->rope[i] = st->rope[i].dst;
	for (int ph = 0; ph < 2; ph++) {
		int n_step = p->phase[ph].n_step;
		c->step[ph] = calloc((size_t)n_step + 1, sizeof *c->step[ph]);
		if (!c->step[ph])
			return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
		for (int i = 0; i < n_step; i++) {
			const PlanStep *ps = &p->phase[ph].step[i];
			CudaStep *to = &c->step[ph][i];
			if (op_info[ps->op].flags & OPF_COMM) {
				*to = (CudaStep){ .step = ps, .kernel = &between };
				if (ps->op == OP_stage_in)
					TRY(cuda_stage_bind(c, ph, i, err));
				else if (ps->op != OP_send && ps->op != OP_recv)
					TRY(cuda_collective_bind(c, to, i, err));
				continue;
			}
			if (ps->kernel < 0)
				return error_set(err, LLMC_E_INPUT,
				                 "the plan has no kernel for op %s (layer %d): a "
				                 "GPU runs nothing else",
				                 op_info[ps->op].name, ps->layer);
			*to = (CudaStep){ .step = ps,
				          .kernel = &p->kernel[ps->kernel],
				          .fn = c->m->fn[ps->kernel],
				          .call = { .s = k } };
			if (session_sees_window(s, ps))
				to->call.s.block_table += st->window_at;
			if (session_sees_segments(s, ps))
				to->call.s = segments;
			for (int a = 0; a < ps->n_arg && a < LLMC_CALL_ARGS; a++)
				to->call.a[a] = session_argument(s, &ps->arg[a]);
			/* a result in a buffer of its own is always read, so the step must run
			 * without adapters too */
			const OpInfo *op = &op_info[ps->op];
			to->slots = op->flags & OPF_LORA && (op->arg[0].role != ROLE_SAME ||
			                                     to->call.a[0] == to->call.a[op->n_in]);
			c->skips |= to->slots;
			cuda_bind_prefetch(c, to);
		}
	}
	TRY(cuda_bind_maps(c, err));
	for (int64_t b = 1; c->n_bucket < CUDA_BUCKETS && (b < 2 * max || b == 1); b *= 2)
		c->bucket[c->n_bucket++] = (int32_t)(b < max ? b : max);
	c->persistent_rows = persistent_rows(c);
	return cuda_persistent_bind(c, err);
}

llmc_status
cuda_session_check(CudaSession *c, llmc_error *err)
{
	if (c->failed != LLMC_OK && err)
		*err = c->why;
	return c->failed;
}

/* ---- arrays ---- */

void
cuda_in_flight_save(CudaSession *c, CudaInFlight *f)
{
	const llmc_sampled *p = c->sampled + (size_t)(f->number % LLMC_RING) * (size_t)c->max_out;

	for (int32_t i = 0; i < f->n; i++)
		f->sampled[i] = p[f->at[i]];
	f->kept = true;
}

llmc_status
cuda_ring_take(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	int e = (int)(c->number % LLMC_RING);

	if (!c->busy[e])
		return LLMC_OK;
	CUDA_TRY(d, d->api.event_sync(c->event[e]), "waiting for an earlier step");
	c->busy[e] = false;
	for (int32_t i = 0; i < c->n_flight; i++)
		if (c->flight[i].number == c->number - LLMC_RING && !c->flight[i].kept)
			cuda_in_flight_save(c, &c->flight[i]);
	return LLMC_OK;
}

llmc_status
cuda_upload_freq(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	Session *s = c->s;

	for (int32_t i = 0; i < s->size->n_seq; i++) {
		int32_t q = s->step_seq[i];
		SeqState *st = &s->seq[q];
		if (!st->fresh)
			continue;
		for (int32_t k = 0; k < c->n_freq; k++)
			c->freq[k] = (float)st->freq[k];
		/* pageable memory: the driver has read it when the call returns */
		if (c->n_freq)
			CUDA_TRY(d,
			         d->api.copy_up(cuda_address(c->st.freq + (int64_t)q * c->n_freq),
			                        c->freq, (size_t)c->n_freq * sizeof *c->freq,
			                        c->stream),
			         "copying rotary frequencies to the GPU");
		if (s->plan->n_rope)
			CUDA_TRY(d,
			         d->api.copy_up(
			             cuda_address(c->st.factor + (int64_t)q * s->plan->n_rope),
			             st->factor, (size_t)s->plan->n_rope * sizeof *st->factor,
			             c->stream),
			         "copying rotary frequencies to the GPU");
		CUDA_TRY(d,
		         d->api.copy_up(cuda_address(c->adapter + q), &s->adapter[q],
		                        sizeof *s->adapter, c->stream),
		         "setting a sequence's adapter on the GPU");
		st->fresh = false;
	}
	return LLMC_OK;
}

llmc_note_row *
cuda_note(CudaSession *c)
{
	return (llmc_note_row *)(void *)(c->note + (size_t)(c->number % LLMC_RING) *
	                                               (size_t)c->st.note_stride);
}

void
cuda_note_rows(CudaSession *c, int32_t n, int32_t n_out)
{
	llmc_note_row *row = cuda_note(c);

	for (int64_t i = 0; i < c->s->sym[SYM_n_seq]; i++) {
		row[i].n = n;
		row[i].n_out = n_out;
	}
}

llmc_status
cuda_upload_step(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	Session *s = c->s;
	int e = (int)(c->number % LLMC_RING);
	char *block = c->block + (size_t)e * (size_t)s->block_bytes;
	const char *end =
	    (const char *)(s->block_table + (size_t)s->size->n_seq * (size_t)s->kv.stride);
	size_t bytes = (size_t)(end - s->block);

	memcpy(block, s->block, bytes);
	cuda_note_rows(c, -1, 0);
	CUDA_TRY(d, d->api.copy_up(c->block_to, block, bytes, c->stream),
	         "copying a step to the GPU");
	/* the upload overwrites rows of the block table */
	for (int32_t i = 0; i < s->size->n_seq; i++)
		c->row_seq[i] = -1;
	return LLMC_OK;
}

/* ---- launches ---- */

static llmc_status
launch_begin(CudaSession *c, int64_t rows, bool noted, llmc_error *err)
{
	llmc_state st = c->st;

	if (!noted)
		st.note = NULL;
	return cuda_launch(c, c->m->begin, "llmc_begin", (int64_t[3]){ rows, 1, 1 }, 128, 1, 0,
	                   PLAIN, &st, NULL, err);
}

/* Launch the sampler. Several CTAs share a row of logits if all of them fit on the device, one CTA
 * per SM. */
static llmc_status
launch_sampler(CudaSession *c, int64_t n_out, LaunchEdge edge, llmc_state *st, llmc_error *err)
{
	int64_t rows = n_out > 0 ? n_out : 1, parts = LLMC_SAMPLE_PARTS;

	while (parts > 1 && parts * rows > c->m->dev.n_sm)
		parts /= 2;
	return cuda_launch(c, c->m->sample, "llmc_sample", (int64_t[3]){ parts, rows, 1 }, 512, 1,
	                   0, edge, st, NULL, err);
}

llmc_status
cuda_launch_sample(CudaSession *c, int64_t n_out, bool masked, llmc_error *err)
{
	llmc_state st = c->st;

	st.mask_at = masked ? c->mask_at : NULL;
	st.mask = c->mask;
	return launch_sampler(c, n_out, PLAIN, &st, err);
}

/* Number of position ranges for which latent attention expands keys and values in this step. */
static int
rounds_of(const CudaSession *c, const PlanStep *step, int positions)
{
	const Session *s = c->s;
	int64_t all = 0;

	for (int32_t i = 0; i < s->size->n_seq; i++) {
		int rows = s->q_start[i + 1] - s->q_start[i];
		all += mla_places(rows, s->kv_len[i] - rows, (int)step_int(step, "expand"));
	}
	return (int)((all + positions - 1) / positions);
}

llmc_status
cuda_launch_kernel(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT], LtChoice *by,
                   bool only, llmc_error *err)
{
	PlanPath other = by ? PATH_OWN : PATH_LIBRARY;

	if (op_info[k->step->op].flags & OPF_COMM)
		return cuda_collective_launch(c, k, sym, err);
	k->call.s.rows = (int)sym[SYM_n_tok];
	k->call.s.round = 0;
	for (int l = 0, first = 0; l < k->kernel->n_launch; l++) {
		const PlanLaunch *p = &k->kernel->launch[l];
		int64_t grid[3];
		first = p->rounds && (l == 0 || !p[-1].rounds) ? l : first;
		if (p->rounds && k->call.s.round >= rounds_of(c, k->step, p->rounds))
			continue;
		if (p->path == other || (only && p->path == PATH_ANY) || !plan_launch_runs(p, sym))
			continue;
		if (!p->fn) {
			TRY(cublaslt_matmul(c, k, by, sym[SYM_n_tok], err));
			/* the library rejected it: run all launches with our own kernels */
			if (!by->library)
				return cuda_launch_kernel(c, k, sym, NULL, only, err);
			continue;
		}
		for (int i = 0; i < 3; i++)
			grid[i] = plan_extent_elems(&p->grid[i], sym);
		if (!grid[0] || !grid[1] || !grid[2])
			continue; /* the step has no rows for this launch */
		TRY(cuda_launch(c, k->fn[l], p->fn, grid, p->block, p->cluster,
		                cuda_shared_of(c->m, p), p->pdl ? PROGRAMMATIC : PLAIN, &k->call,
		                k->maps, err));
		if (p->rounds && (l + 1 == k->kernel->n_launch || !p[1].rounds) &&
		    ++k->call.s.round < rounds_of(c, k->step, p->rounds))
			l = first - 1;
	}
	return LLMC_OK;
}

void
cuda_symbols(const CudaSession *c, int64_t sym[SYM_COUNT], int64_t n_tok, int64_t n_dec,
             int64_t n_seq, int64_t n_out)
{
	memset(sym, 0, SYM_COUNT * sizeof *sym);
	sym[SYM_one] = 1;
	sym[SYM_n_tok] = n_tok;
	sym[SYM_n_dec] = n_dec;
	sym[SYM_n_pre] = n_tok - n_dec;
	sym[SYM_n_seq] = n_seq;
	sym[SYM_n_out] = n_out;
	sym[SYM_n_part] = 1;
	sym[SYM_n_sm] = c->m->dev.n_sm;
}

/* ---- verify ---- */

/* Convert bf16 values at the start of a buffer of n floats to fp32, in place. It starts at the end,
 * so that no value is overwritten before it is read. */
static void
widen(void *data, size_t n)
{
	const uint16_t *from = data;
	float *to = data;

	while (n-- > 0) {
		const uint32_t bits = (uint32_t)from[n] << 16;
		memcpy(&to[n], &bits, sizeof bits);
	}
}

/* Copy results of a step to the host; 16-bit values as fp32, for inspection only. */
static llmc_status
probe(CudaSession *c, const CudaStep *k, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	Session *s = c->s;

	CUDA_TRY(d, d->api.stream_sync(c->stream), "running %s (op %s, layer %d)", k->kernel->file,
	         op_info[k->step->op].name, k->step->layer);
	for (int i = 0; i < k->step->n_make; i++) {
		const PlanMake *m = &k->step->make[i];
		int64_t rows = session_probe_rows(s, k->step, m);
		const PlanBuffer *b =
		    rows > 0 ? &s->plan->buffer[k->step->arg[m->arg].index] : NULL;
		bool narrow = b && b->dtype == DT_BF16;
		size_t n = b ? (size_t)(rows * b->extent.mul) : 0, bytes = n * (narrow ? 2 : 4);
		/* `llmc verify` only, not serving */
		void *host = n ? malloc(n * sizeof(float)) : NULL;
		if (!host)
			continue;
		CUdeviceptr at = cuda_address(session_argument(s, &k->step->arg[m->arg]));
		CUresult r = d->api.copy_down(host, at, bytes, c->stream);
		if (r == CU_OK)
			r = d->api.stream_sync(c->stream);
		if (r == CU_OK && narrow)
			widen(host, n);
		if (r == CU_OK &&
		    s->probe(s->probe_user, k->step, m->value, narrow ? DT_F32 : b->dtype, host,
		             rows, b->extent.mul) &&
		    !narrow) {
			r = d->api.copy_up(at, host, bytes, c->stream);
			if (r == CU_OK)
				r = d->api.stream_sync(c->stream);
		}
		free(host);
		CUDA_TRY(d, r, "reading what %s made", k->kernel->file);
	}
	return LLMC_OK;
}

/* Decode steps with more rows use the mixed step's kernels, which were faster on an H100
 * (docs/kernels/gemv.md): a decode kernel keeps x in more bits, and its time grows with each row. A
 * decode kernel of experts reads an expert's weights once per row that chose it. On GPUs without
 * 16-bit tensor cores, mixed kernels use FMA. */
static int64_t
decode_rows(const Plan *p, OpKind op)
{
	if (strcmp(p->target, "cuda-sm_75") == 0)
		return 8;
	return op_info[op].flags & OPF_EXPERTS ? 1 : 4;
}

/* Return the decode or the mixed form of a step, whichever suits the number of rows. Both forms may
 * occur in one forward, because values have the same addresses in both phases and scratch lives
 * within a step. If mixed steps hold a value in another type, the steps that write and read it are
 * replaced together (compiler/fuse/narrow_bf16.c). */
CudaStep *
cuda_step_for(CudaSession *c, int phase, int i, int64_t rows)
{
	const PlanStep *p = c->step[phase][i].step;

	if (phase != 0 || rows <= decode_rows(c->s->plan, p->op) || !plan_mixed_serves(p) ||
	    i >= c->s->plan->phase[1].n_step)
		return &c->step[phase][i];
	/* plans come from files: only the same op of the same layer may replace a step */
	const PlanStep *mixed = c->step[1][i].step;
	return &c->step[mixed->op == p->op && mixed->layer == p->layer ? 1 : 0][i];
}

/* Launch the steps of a phase in order, or only those with kernel `only`; sym gives the grid
 * extents. Decode steps use our own GEMMs, not the library's, because a graph reads its number of
 * rows on the device. */
static llmc_status
launch_phase(CudaSession *c, int phase, const PlanKernel *only, const int64_t sym[SYM_COUNT],
             bool inspect, llmc_error *err)
{
	for (int i = 0; i < c->s->plan->phase[phase].n_step; i++) {
		CudaStep *k = cuda_step_for(c, phase, i, sym[SYM_n_tok]);
		if ((only && k->kernel != only) || (k->slots && !c->adapted))
			continue;
		llmc_status status = cuda_launch_kernel(
		    c, k, sym, phase == 0 ? NULL : cublaslt_choice(c, k, sym[SYM_n_tok]), false,
		    err);
		if (status != LLMC_OK) {
			if (k->step->layer >= 0)
				error_prefix(err, "op %s of layer %d", op_info[k->step->op].name,
				             k->step->layer);
			else
				error_prefix(err, "op %s", op_info[k->step->op].name);
			return status;
		}
		if (inspect)
			TRY(probe(c, k, err));
	}
	return LLMC_OK;
}

bool
cuda_has_adapter(const Session *s)
{
	bool any = false;

	for (int32_t i = 0; i < s->size->n_seq; i++)
		any |= s->adapter[s->step_seq[i]] >= 0;
	return any;
}

llmc_status
cuda_launch_mixed(CudaSession *c, int phase, bool sampling, llmc_error *err)
{
	const StepSize *st = c->s->size;
	int64_t sym[SYM_COUNT];

	cuda_symbols(c, sym, st->n_tok, st->n_dec, st->n_seq, st->n_out);
	c->adapted = c->s->probe || cuda_has_adapter(c->s); /* a probe sees all steps, as on CPUs */
	TRY(launch_begin(c, st->n_tok, false, err));
	TRY(launch_phase(c, phase, NULL, sym, c->s->probe != NULL, err));
	return sampling ? launch_sampler(c, st->n_out, PROGRAMMATIC, &c->st, err) : LLMC_OK;
}

llmc_status
cuda_launch_again(CudaSession *c, int phase, const PlanKernel *only, llmc_error *err)
{
	const StepSize *st = c->s->size;
	int64_t sym[SYM_COUNT];

	cuda_symbols(c, sym, st->n_tok, st->n_dec, st->n_seq, st->n_out);
	c->adapted = cuda_has_adapter(c->s);
	return launch_phase(c, phase, only, sym, false, err);
}

/* ---- graphs ---- */

/* Launch all ops of a decode step as one kernel; rows: a bucket of at most persistent_rows */
static llmc_status
launch_persistent(CudaSession *c, int32_t rows, llmc_error *err)
{
	const Plan *p = c->s->plan;
	const PlanLaunch *u = &p->kernel[p->persistent.kernel].launch[0];
	llmc_tasks tasks = { .task = c->task, .count = c->task_count, .n = p->phase[0].n_step };

	for (int b = 0; c->bucket[b] != rows; b++)
		tasks.task += tasks.n;
	return cuda_launch(c, c->m->fn[p->persistent.kernel][0], u->fn,
	                   (int64_t[3]){ c->m->dev.n_sm, 1, 1 }, u->block, 1,
	                   cuda_shared_of(c->m, u), TOGETHER, &tasks, NULL, err);
}

static llmc_status
capture(CudaSession *c, int32_t rows, bool sampling, llmc_error *err)
{
	int64_t sym[SYM_COUNT], n_out = rows < c->s->sym[SYM_n_out] ? rows : c->s->sym[SYM_n_out];

	cuda_symbols(c, sym, rows, rows, rows, n_out);
	TRY(launch_begin(c, rows, true, err));
	if (rows <= c->persistent_rows && !c->adapted)
		TRY(launch_persistent(c, rows, err));
	else
		TRY(launch_phase(c, 0, NULL, sym, false, err));
	return sampling ? launch_sampler(c, n_out, PROGRAMMATIC, &c->st, err) : LLMC_OK;
}

llmc_status
cuda_graph(CudaSession *c, int bucket, bool sampling, bool adapted, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	CUgraphExec *to = &c->graph[sampling][adapted][bucket];
	CUgraph g = NULL;

	if (*to)
		return LLMC_OK;
	c->adapted = adapted;
	CUDA_TRY(d, d->api.capture_begin(c->stream, CU_CAPTURE_THREAD_LOCAL),
	         "capturing the decode step of %d rows", c->bucket[bucket]);
	llmc_status status = capture(c, c->bucket[bucket], sampling, err);
	CUresult r = d->api.capture_end(c->stream, &g);
	if (r != CU_OK && status == LLMC_OK) {
		status = cuda_error(d, r, err, "capturing the decode step of %d rows",
		                    c->bucket[bucket]);
		(void)!d->api.capture_end(c->stream, &g);
	}
	if (status == LLMC_OK && (r = d->api.graph_make(to, g, 0)) != CU_OK) {
		*to = NULL;
		status =
		    cuda_error(d, r, err, "making the decode graph of %d rows", c->bucket[bucket]);
	}
	if (status == LLMC_OK) /* upload the graph now, not at its first launch */
		(void)!d->api.graph_upload(*to, c->stream);
	if (g)
		CUDA_RELEASE(d->api.graph_destroy(g));
	return status;
}

llmc_status
cuda_launch_decode(CudaSession *c, int32_t rows, bool sampling, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const bool adapted = c->skips && cuda_has_adapter(c->s);
	int b = 0;

	while (b + 1 < c->n_bucket && c->bucket[b] < rows)
		b++;
	TRY(cuda_graph(c, b, sampling, adapted, err));
	CUDA_TRY(d, d->api.graph_launch(c->graph[sampling][adapted][b], c->stream),
	         "launching the decode graph of %d rows", c->bucket[b]);
	return LLMC_OK;
}

llmc_status
cuda_prepare(Session *s, llmc_error *err)
{
	CudaSession *c = s->on;

	for (int sample = 0; sample < 2; sample++)
		for (int b = 0; b < c->n_bucket; b++)
			for (int adapted = 0; adapted <= c->skips; adapted++)
				TRY(cuda_graph(c, b, sample, adapted, err));
	return LLMC_OK;
}

/* ---- host-fed steps ---- */

static llmc_status
forward(CudaSession *c, int phase, const float **logits, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Session *s = c->s;
	const bool last = s->plan->stages > 1 && s->plan->rank == 0 && !plan_hands_on(s->plan);

	TRY(cuda_session_check(c, err)); /* errors of page operations */
	TRY(cuda_ring_take(c, err));
	TRY(cuda_upload_freq(c, err));
	TRY(cuda_upload_step(c, err));
	TRY(cuda_stage_receive(c, phase, err));
	/* the step's time limit starts here: a rank that waits for the previous stage is not
	 * late */
	cuda_group_step(c, true);
	if (phase == 0 && !s->probe)
		TRY(cuda_launch_decode(c, s->size->n_tok, false, err));
	else
		TRY(cuda_launch_mixed(c, phase, false, err));
	TRY(cuda_stage_fetch(c, err));
	if ((logits || last) && s->size->n_out)
		CUDA_TRY(d,
		         d->api.copy_down(c->logits, cuda_address(c->st.logits),
		                          (size_t)s->size->n_out * (size_t)plan_out_width(s->plan) *
		                              sizeof *c->logits,
		                          c->stream),
		         "copying logits from the GPU");
	CUDA_TRY(d, d->api.stream_sync(c->stream), "running a step of %d tokens", s->size->n_tok);
	if (s->plan->partitions > 1 && comm_ended(s->comm))
		return comm_error(s->comm, err);
	TRY(cuda_group_check(c, phase, err)); /* invalid results are not sent on */
	cuda_group_step(c, false);
	if (logits)
		*logits = c->logits;
	return cuda_stage_send(c, err);
}

llmc_status
cuda_forward(Session *s, int phase, const float **logits, llmc_error *err)
{
	CudaSession *c = s->on;
	c->n_steps++;
	llmc_status status = forward(c, phase, logits, err);

	cuda_group_step(c, false);
	/* end the group: the other ranks wait for this one, and this rank's stream waits for
	 * them */
	if (status != LLMC_OK && s->rt->world)
		comm_end(s->comm);
	if (s->rt->world && status == LLMC_OK)
		comm_set_position(s->comm, c->n_steps, -1, -1);
	if (status != LLMC_OK) /* copies from the ring entry must end before it is refilled */
		(void)!c->m->dev.api.stream_sync(c->stream);
	return status;
}
