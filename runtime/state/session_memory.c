/* Memory of a session: its limits as symbols of the plan's extents, the layout of its own state and
 * of the slots, and the addresses of step arguments. session_memory computes sizes with the same
 * code that assigns the memory. */
#include "runtime/state/session_state.h"

#include <string.h>
#include <sys/mman.h>

static int32_t
least(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

void
session_set_limits(Session *s, const Device *d, const Plan *p, const llmc_limits *lim)
{
	*s = (Session){ .plan = p, .device = d, .lim = *lim };
	s->sym[SYM_one] = 1;
	s->sym[SYM_n_tok] = s->sym[SYM_n_pre] = lim->chunk;
	s->sym[SYM_n_dec] = s->sym[SYM_n_seq] = least(lim->seqs, lim->chunk);
	s->sym[SYM_n_out] = lim->n_out;
	s->sym[SYM_n_part] = lim->n_threads;
	s->sym[SYM_n_sm] = d->max_sm;
	for (int i = 0; i < p->n_rope; i++)
		s->two_axes |= p->rope[i].axis == 1;
}

int64_t
session_pages(const llmc_limits *l)
{
	return kv_pages(l->kv_tokens, l->context, l->seqs,
	                l->kv_tokens != (int64_t)l->context * l->seqs);
}

int64_t
session_window_pages(const Plan *p, const llmc_limits *l)
{
	return kv_window_pages(p, session_pages(l), l->seqs, l->chunk);
}

int32_t
session_snapshots(const llmc_limits *l)
{
	return l->seqs * l->snapshots;
}

int64_t
session_max_page(const Session *s)
{
	return (kv_context(s->plan, s->lim.context) + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE;
}

int64_t
session_table_stride(const Session *s)
{
	return session_max_page(s) * (kv_window_positions(s->plan) ? 2 : 1);
}

bool
session_sees_window(const Session *s, const PlanStep *step)
{
	for (int k = 0; s->kv.window && k < step->n_arg; k++)
		if (step->arg[k].kind == REF_POOL && s->plan->pool[step->arg[k].index].keep)
			return true;
	return false;
}

bool
session_sees_segments(const Session *s, const PlanStep *step)
{
	for (int k = 0; s->segments && k < step->n_arg; k++)
		if (step->arg[k].kind == REF_POOL && s->plan->pool[step->arg[k].index].segment)
			return true;
	return false;
}

void *
bump(BumpAllocator *b, int64_t n, size_t elem_bytes)
{
	int64_t bytes, at = b->at;

	if (n < 0 || __builtin_mul_overflow(n, (int64_t)elem_bytes, &bytes) ||
	    bytes > INT64_MAX / 4 - at) {
		b->over = true;
		return NULL;
	}
	b->at = (at + bytes + b->align - 1) & -b->align;
	return b->base ? b->base + at : NULL;
}

/* Lay out the step's arrays. The arrays that a small step needs are adjacent, so that one short
 * copy transfers them to another device. */
static void
lay_out_block(Session *s, BumpAllocator *b)
{
	int64_t n_tok = s->sym[SYM_n_tok], n_seq = s->sym[SYM_n_seq], start = b->at;

	s->block = b->base ? b->base + b->at : NULL;
	BUMP(b, s->size, 1);
	BUMP(b, s->q_start, n_seq + 1);
	BUMP(b, s->kv_len, n_seq);
	BUMP(b, s->prefix_len, n_seq);
	BUMP(b, s->out_row, s->sym[SYM_n_out]);
	BUMP(b, s->step_seq, n_seq);
	BUMP(b, s->tok, n_tok);
	BUMP(b, s->pos, n_tok);
	BUMP(b, s->pos2, n_tok);
	BUMP(b, s->rope_pos, n_tok);
	BUMP(b, s->rope_y, n_tok);
	BUMP(b, s->rope_x, n_tok);
	BUMP(b, s->seq_of, n_tok);
	if (plan_segment(s->plan)) {
		s->segment_pages =
		    (int32_t)((plan_segment(s->plan) + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE);
		BUMP(b, s->segments, 1);
		BUMP(b, s->segment_pos, n_tok);
		BUMP(b, s->segment_of, n_tok);
		BUMP(b, s->segment_start, n_tok + 1);
		BUMP(b, s->segment_len, n_tok);
		BUMP(b, s->segment_table, n_tok * s->segment_pages);
	}
	BUMP(b, s->block_table, n_seq * session_table_stride(s));
	s->block_bytes = b->at - start;
}

int64_t
session_lay_out(Session *s, char *base)
{
	const Plan *p = s->plan;
	BumpAllocator b = { .base = base, .align = 64 };
	int64_t n_seq = s->sym[SYM_n_seq], freqs = 0;
	double *freq, *factor;

	for (int i = 0; i < p->n_rope; i++)
		freqs += p->rope[i].dims / 2;
	BUMP(&b, s->slot, p->n_slot);
	BUMP(&b, s->seq, s->lim.seqs);
	BUMP(&b, s->adapter, s->lim.seqs);
	BUMP(&b, s->rope, p->n_rope);
	BUMP(&b, freq, s->lim.seqs * freqs);
	BUMP(&b, factor, (int64_t)s->lim.seqs * p->n_rope);
	for (int32_t q = 0; s->seq && q < s->lim.seqs; q++) {
		s->seq[q].freq = freq + q * freqs;
		s->seq[q].factor = factor + (int64_t)q * p->n_rope;
	}
	lay_out_block(s, &b);
	BUMP(&b, s->order, n_seq);
	BUMP(&b, s->add, n_seq);
	BUMP(&b, s->out_base, n_seq);
	return b.over ? -1 : b.at;
}

int64_t
session_lay_out_slots(Session *s)
{
	int64_t sum = 0;

	for (int i = 0; i < s->plan->n_slot; i++) {
		int64_t n = plan_slot_bytes(s->plan, i, s->sym);
		if (n < 0 || n > INT64_MAX / 4 - sum)
			return -1;
		if (s->slots)
			s->slot[i] = s->slots + sum;
		sum += n;
	}
	return sum;
}

llmc_status
session_need(const Device *d, const Plan *plan, const llmc_limits *lim, llmc_memory *out,
             llmc_error *err)
{
	Session s;
	llmc_memory m = { .size = sizeof m };

	session_set_limits(&s, d, plan, lim);
	m.state = session_lay_out(&s, NULL);
	if (m.state >= 0)
		m.state = d->state_bytes(&s, m.state);
	m.scratch = session_lay_out_slots(&s);
	int64_t kept = session_snapshots(lim) + lim->marks,
	        states = kv_state_bytes(plan, lim->seqs + kept), pages = session_pages(lim);
	m.kv = kv_bytes(plan, pages);
	if (kv_window_positions(plan) && m.kv >= 0) {
		int64_t windows = session_window_pages(plan, lim),
		        exact = kv_exact_bytes(plan, pages - windows);
		m.kv_saved = kv_window_bytes(plan, pages - windows) - exact;
		m.kv_exact = kv_exact_bytes(plan, windows);
		m.kv -= exact;
	}
	m.kv -= m.kv_saved;
	m.kv = m.kv < 0 || states < 0 || m.kv > INT64_MAX / 4 || states > INT64_MAX / 4
	           ? -1
	           : m.kv + states;
	m.kv_per_token = (kv_bytes(plan, 1) - kv_exact_bytes(plan, 1)) / PLAN_KV_PAGE;
	m.kv_per_seq = kv_state_bytes(plan, 1);
	m.kv_snapshots = kv_state_bytes(plan, kept);
	m.kv_host = kv_host_pages(plan) * kv_bytes(plan, 1);
	for (int i = 0; i < plan->n_tensor; i++)
		m.weights += plan_tensor_bytes(&plan->tensor[i]);
	if (m.state < 0 || m.scratch < 0 || m.kv < 0)
		return error_set(err, LLMC_E_RANGE,
		                 "the memory for these limits overflows 64 bits; lower them");
	*out = m;
	return LLMC_OK;
}

void *
session_map(int64_t bytes)
{
	void *m = mmap(NULL, bytes ? (size_t)bytes : 1, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

void
session_unmap(void *m, int64_t bytes)
{
	if (m)
		munmap(m, bytes ? (size_t)bytes : 1);
}

void
session_given(const Session *s, float *to)
{
	const int64_t width = plan_row_width(s->plan);

	for (int32_t i = 0; s->rows_in && i < s->size->n_seq; i++) {
		const StepRows *in = &s->rows_in[s->order[i]];
		const int32_t n = s->q_start[i + 1] - s->q_start[i];
		float *rows = to + s->q_start[i] * width;
		for (int32_t t = 0; in->at && in->row && t < n; t++)
			if (in->at[t] >= 0)
				memcpy(rows + t * width, in->row + in->at[t] * width,
				       (size_t)width * sizeof *to);
		if (in->row && !in->at)
			memcpy(rows, in->row, (size_t)(n * width) * sizeof *to);
	}
}

void *
session_argument(const Session *s, const PlanRef *r)
{
	switch (r->kind) {
	case REF_NONE:
		return NULL;
	case REF_TENSOR:
		return (void *)s->device->tensor(s->rt->model, r->index); /* kernels only read it */
	case REF_BUFFER:
		return s->slot[s->plan->buffer[r->index].slot];
	case REF_POOL:
		return kv_layer(&s->kv, r->index, r->layer_slot);
	case REF_ROPE:
		return s->rope[r->index];
	}
	return NULL;
}

void
session_op_cost(const Session *s, const PlanStep *step, llmc_op_time *t)
{
	int64_t rows = s->size->n_tok, position, ops, window = plan_step_reach(step);

	for (int k = 0; k < step->n_arg; k++)
		if (step->arg[k].kind == REF_BUFFER &&
		    s->plan->buffer[step->arg[k].index].extent.sym == SYM_n_out)
			rows = s->size->n_out;
	t->n++;
	t->weight_bytes += plan_step_weights(s->plan, step, rows);
	t->ops += step->flops_per_row * rows;
	if (!plan_step_cache(s->plan, step, &position, &ops))
		return;
	for (int32_t i = 0; i < s->size->n_seq; i++) {
		int64_t n = s->add[i], before = s->kv_len[i] - n,
		        first = window > 0 ? before + 1 - window : 0;
		int64_t seen = s->kv_len[i] - (first > 0 ? first : 0), pairs = 0;
		for (int64_t k = 1; k <= n; k++)
			pairs += window > 0 && window < before + k ? window : before + k;
		t->cache_bytes += position * seen;
		t->ops += ops * pairs;
	}
}

int64_t
session_probe_rows(const Session *s, const PlanStep *step, const PlanMake *m)
{
	if (m->arg < 0 || step->arg[m->arg].kind != REF_BUFFER)
		return -1;
	const PlanBuffer *b = &s->plan->buffer[step->arg[m->arg].index];
	if ((b->dtype != DT_F32 && b->dtype != DT_I32 && b->dtype != DT_BF16) || b->extent.div > 1)
		return -1;
	return b->extent.sym == SYM_n_out   ? s->size->n_out
	       : b->extent.sym == SYM_n_tok ? s->size->n_tok
	                                    : 1;
}
