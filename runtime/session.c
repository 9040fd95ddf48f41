/* Sessions: limits, memory, sequences. All memory is taken by session_open, in three pieces (KV, slots, state), and the
 * same code that hands out the state measures it for session_memory. */
#include "runtime/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/plan/target.h"
#include "runtime/rope.h"

enum { MAX_CONTEXT = 1 << 28, MAX_SEQS = 1 << 16 };

static llmc_status
range(llmc_error *err, const char *what, int64_t have, int64_t max, const char *why)
{
	return error_set(err, LLMC_E_RANGE, "limit %s is %lld, possible are 1 .. %lld%s", what, (long long)have,
	                 (long long)max, why);
}

llmc_status
session_limits(const Plan *plan, const llmc_limits *lim, llmc_limits *out, llmc_error *err)
{
	llmc_limits l = { 0 };

	if (lim)
		memcpy(&l, lim, lim->size < sizeof l ? lim->size : sizeof l);
	l.size = sizeof l;
	int64_t max = plan->hard_limit && plan->max_positions < MAX_CONTEXT ? plan->max_positions : MAX_CONTEXT;
	if (l.context == 0)
		l.context = (int32_t)(plan->max_positions < 4096 ? plan->max_positions : 4096);
	if (l.context < 1 || l.context > max)
		return range(err, "context", l.context, max, plan->hard_limit ? ": the model has no positions beyond" : "");
	if (l.seqs == 0)
		l.seqs = 1;
	if (l.seqs < 1 || l.seqs > MAX_SEQS)
		return range(err, "seqs", l.seqs, MAX_SEQS, "");
	if (l.chunk == 0) /* a prompt that must run in one chunk may be as long as the context */
		l.chunk = plan->prompt_whole && l.context > 512 ? l.context : 512;
	if (l.chunk < 1 || l.chunk > MAX_CONTEXT)
		return range(err, "chunk", l.chunk, MAX_CONTEXT, "");
	if (l.n_out == 0)
		l.n_out = l.seqs;
	if (l.n_out < 1)
		return range(err, "n_out", l.n_out, l.chunk, "");
	if (l.n_out > l.chunk) /* no step has more rows */
		l.n_out = l.chunk;
	bool given = l.kv_tokens != 0;
	if (!given)
		l.kv_tokens = (int64_t)l.context * l.seqs;
	if (l.kv_tokens < 1 || kv_pages(l.kv_tokens, l.context, l.seqs, given) > INT32_MAX / 2)
		return range(err, "kv_tokens", l.kv_tokens, (int64_t)INT32_MAX / 2 * PLAN_KV_PAGE, "");
	if (l.n_threads == 0)
		l.n_threads = topology_threads();
	if (l.n_threads < 1 || l.n_threads > TOPOLOGY_MAX)
		return range(err, "n_threads", l.n_threads, TOPOLOGY_MAX, "");
	*out = l;
	return LLMC_OK;
}

static int32_t
least(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

/* Limits, as the symbols of extents. */
static void
set_limits(Session *s, const Plan *p, const llmc_limits *lim)
{
	*s = (Session){ .plan = p, .lim = *lim };
	s->sym[SYM_one] = 1;
	s->sym[SYM_n_tok] = s->sym[SYM_n_pre] = lim->chunk;
	s->sym[SYM_n_dec] = s->sym[SYM_n_seq] = least(lim->seqs, lim->chunk);
	s->sym[SYM_n_out] = lim->n_out;
	s->sym[SYM_n_part] = lim->n_threads;
	s->sym[SYM_n_sm] = target_is_cuda(p->target) ? PLAN_MAX_SM : 0; /* before a device is known */
	for (int i = 0; i < p->n_rope; i++)
		s->two_axes |= p->rope[i].axis == 1;
}

int64_t
session_pages(const llmc_limits *l)
{
	return kv_pages(l->kv_tokens, l->context, l->seqs, l->kv_tokens != (int64_t)l->context * l->seqs);
}

int64_t
session_max_page(const Session *s)
{
	return (s->lim.context + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE;
}

/* Hands out pieces of the state; with base NULL it only counts. */
typedef struct Bump { char *base; int64_t at; bool over; } Bump;

static void *
bump(Bump *b, int64_t n, size_t elem_bytes)
{
	int64_t bytes, at = b->at;

	if (n < 0 || __builtin_mul_overflow(n, (int64_t)elem_bytes, &bytes) || bytes > INT64_MAX / 4 - at) {
		b->over = true;
		return NULL;
	}
	b->at = (at + bytes + 63) & ~(int64_t)63;
	return b->base ? b->base + at : NULL;
}
#define BUMP(b, p, n) ((p) = bump((b), (n), sizeof *(p)))

static int64_t
scratch_floats(const Session *s, Bump *b)
{
	int64_t most = 1;

	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < s->plan->phase[ph].n_step; i++) {
			const PlanStep *st = &s->plan->phase[ph].step[i];
			int64_t n = st->kernel >= 0 ? 0 : ref_scratch_floats(st, s->lim.chunk, s->lim.context);
			b->over |= n < 0;
			most = n > most ? n : most;
		}
	return most;
}

/* The step's arrays. What a step of few rows needs lies close together: on its way to a GPU only that is copied. */
static void
lay_out_block(Session *s, Bump *b)
{
	int64_t n_tok = s->sym[SYM_n_tok], n_seq = s->sym[SYM_n_seq], start = b->at;

	s->block = b->base ? b->base + b->at : NULL;
	BUMP(b, s->n, 4);
	BUMP(b, s->q_start, n_seq + 1);
	BUMP(b, s->kv_len, n_seq);
	BUMP(b, s->prefix_len, n_seq);
	BUMP(b, s->out_row, s->sym[SYM_n_out]);
	BUMP(b, s->step_seq, n_seq);
	BUMP(b, s->tok, n_tok);
	BUMP(b, s->pos, n_tok);
	BUMP(b, s->pos2, n_tok);
	BUMP(b, s->rope_pos, n_tok);
	BUMP(b, s->seq_of, n_tok);
	BUMP(b, s->block_table, n_seq * session_max_page(s));
	s->block_bytes = b->at - start;
}

static void
lay_out_state(Session *s, Bump *b)
{
	const Plan *p = s->plan;
	int64_t n_tok = s->sym[SYM_n_tok], n_seq = s->sym[SYM_n_seq], freqs = 0;
	bool cuda = target_is_cuda(p->target);
	double *freq, *factor;

	BUMP(b, s->slot, p->n_slot);
	BUMP(b, s->seq, s->lim.seqs);
	BUMP(b, s->rope, p->n_rope);
	for (int i = 0; i < p->n_rope; i++) {
		float *r = cuda ? NULL : bump(b, n_tok, (size_t)p->rope[i].dims * sizeof *r); /* a GPU makes its own */
		if (s->rope)
			s->rope[i] = r;
		freqs += p->rope[i].dims / 2;
	}
	BUMP(b, freq, s->lim.seqs * freqs);
	BUMP(b, factor, (int64_t)s->lim.seqs * p->n_rope);
	for (int32_t q = 0; s->seq && q < s->lim.seqs; q++) {
		s->seq[q].freq = freq + q * freqs;
		s->seq[q].factor = factor + (int64_t)q * p->n_rope;
	}
	BUMP(b, s->scratch, cuda ? 1 : scratch_floats(s, b));
	for (int ph = 0; ph < 2; ph++)
		BUMP(b, s->phase[ph].step, p->phase[ph].n_step);
	lay_out_block(s, b);
	BUMP(b, s->order, n_seq);
	BUMP(b, s->add, n_seq);
	BUMP(b, s->out_base, n_seq);
}

/* Bytes of all slots; -1: overflow. With s->slot each gets its address. */
static int64_t
lay_out_slots(Session *s)
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

void
session_place_slots(Session *s)
{
	(void)lay_out_slots(s);
}

/* Bytes that a session keeps in host memory beside its slots; -1: overflow */
static int64_t
host_state(Session *s)
{
	Bump b = { 0 };

	lay_out_state(s, &b);
	return b.over ? -1 : b.at;
}

llmc_status
session_memory(const Plan *plan, const llmc_limits *lim, llmc_memory *out, llmc_error *err)
{
	llmc_limits l;
	Session s;
	size_t size = out->size ? out->size : sizeof *out;
	llmc_memory m = { .size = size };

	TRY(session_limits(plan, lim, &l, err));
	set_limits(&s, plan, &l);
	m.state = host_state(&s);
	if (m.state >= 0 && target_is_cuda(plan->target)) /* what counts is the device's memory */
		m.state = cuda_session_state_bytes(&s);
	m.scratch = lay_out_slots(&s);
	m.kv = kv_bytes(plan, session_pages(&l));
	m.kv_per_token = kv_bytes(plan, 1) / PLAN_KV_PAGE;
	for (int i = 0; i < plan->n_tensor; i++)
		m.weights += plan_tensor_bytes(&plan->tensor[i]);
	if (m.state < 0 || m.scratch < 0 || m.kv < 0)
		return error_set(err, LLMC_E_RANGE, "these limits need more memory than can be counted");
	memcpy(out, &m, size < sizeof m ? size : sizeof m);
	return LLMC_OK;
}

static void *
map_memory(int64_t bytes)
{
	void *m = mmap(NULL, bytes ? (size_t)bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

llmc_status
session_open(Runtime *rt, const llmc_limits *lim, Session **out, llmc_error *err)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_memory need = { 0 };
	llmc_status status;
	Bump b = { 0 };

	*out = NULL;
	if (lim)
		memcpy(&l, lim, lim->size < sizeof l ? lim->size : sizeof l);
	if (l.n_threads == 0)
		l.n_threads = rt->n_threads;
	TRY(session_limits(rt->plan, &l, &l, err));
	TRY(session_memory(rt->plan, &l, &need, err));
	Session *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	set_limits(s, rt->plan, &l);
	s->rt = rt;
	if (rt->cuda)
		TRY_GOTO(cuda_session_open(s, rt->cuda, &need, err));
	else
		TRY_GOTO(kv_open(&s->kv, rt->plan, (int32_t)session_pages(&l), l.context, l.seqs, err));
	s->slots_bytes = (size_t)need.scratch;
	s->state_bytes = (size_t)host_state(s);
	if (!rt->cuda)
		s->slots = map_memory(need.scratch);
	s->state = b.base = map_memory((int64_t)s->state_bytes);
	if ((!rt->cuda && !s->slots) || !s->state) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory: these limits need %lld MB beside the KV cache",
		                   (long long)((need.scratch + need.state) >> 20));
		goto fail;
	}
	lay_out_state(s, &b);
	if (rt->cuda) {
		TRY_GOTO(cuda_session_bind(s, err));
	} else {
		lay_out_slots(s);
		TRY_GOTO(session_bind(s, err));
		TRY_GOTO(threads_open(l.n_threads, &s->threads, err));
	}
	s->stats.size = sizeof s->stats;
	s->stats.kv_pages_total = s->kv.n_page;
	*out = s;
	return LLMC_OK;
fail:
	session_close(s);
	return status;
}

void
session_close(Session *s)
{
	if (!s)
		return;
	threads_close(s->threads);
	bool cuda = s->cuda != NULL;
	cuda_session_close(s->cuda);
	kv_release(&s->kv);
	if (s->slots && !cuda)
		munmap(s->slots, s->slots_bytes ? s->slots_bytes : 1);
	if (s->state)
		munmap(s->state, s->state_bytes ? s->state_bytes : 1);
	free(s);
}

void
session_set_probe(Session *s, session_probe_fn fn, void *user)
{
	s->probe = fn;
	s->probe_user = user;
}

const llmc_limits *
session_limits_of(const Session *s)
{
	return &s->lim;
}

static bool
is_seq(const Session *s, llmc_seq q)
{
	return q >= 0 && q < s->lim.seqs && s->kv.seq[q].used;
}

static llmc_status
no_seq(llmc_error *err, llmc_seq q)
{
	return error_set(err, LLMC_E_RANGE, "there is no sequence %d in this session", q);
}

static llmc_status
all_taken(const Session *s, llmc_error *err)
{
	return error_set(err, LLMC_E_FULL, "all %d sequences of this session are taken; free one or open a session with more (seqs)",
	                 s->lim.seqs);
}

llmc_status
session_seq_new(Session *s, int32_t length_bound, llmc_seq *out, llmc_error *err)
{
	*out = -1;
	if (length_bound < 0 || length_bound > s->lim.context)
		return error_set(err, LLMC_E_RANGE, "a sequence of %d positions does not fit the context of %d (context)",
		                 length_bound, s->lim.context);
	int32_t q = kv_seq_new(&s->kv);
	if (q < 0)
		return all_taken(s, err);
	SeqState *st = &s->seq[q];
	st->fresh = true;
	st->length_bound = length_bound ? length_bound : s->lim.context;
	st->prefix_len = st->mark = 0;
	double *freq = st->freq;
	for (int i = 0; i < s->plan->n_rope; i++) {
		const float *const factors[2] = { s->rt->factors[i][0], s->rt->factors[i][1] };
		rope_frequencies(&s->plan->rope[i], st->length_bound, factors, freq, &st->factor[i]);
		freq += s->plan->rope[i].dims / 2;
	}
	*out = q;
	return LLMC_OK;
}

llmc_status
session_seq_fork(Session *s, llmc_seq from, llmc_seq *out, llmc_error *err)
{
	*out = -1;
	if (!is_seq(s, from))
		return no_seq(err, from);
	int32_t q = kv_seq_fork(&s->kv, from), freqs = 0;
	if (q < 0)
		return all_taken(s, err);
	SeqState *to = &s->seq[q], *st = &s->seq[from];
	to->fresh = true;
	to->length_bound = st->length_bound;
	to->prefix_len = st->prefix_len;
	to->mark = st->mark;
	for (int i = 0; i < s->plan->n_rope; i++)
		freqs += s->plan->rope[i].dims / 2;
	memcpy(to->freq, st->freq, (size_t)freqs * sizeof *to->freq);
	memcpy(to->factor, st->factor, (size_t)s->plan->n_rope * sizeof *to->factor);
	*out = q;
	return LLMC_OK;
}

llmc_status
session_seq_trim(Session *s, llmc_seq q, int32_t len, llmc_error *err)
{
	if (!is_seq(s, q))
		return no_seq(err, q);
	if (len < 0 || len > s->kv.seq[q].len)
		return error_set(err, LLMC_E_RANGE, "sequence %d has %d positions, it cannot be trimmed to %d", q, s->kv.seq[q].len,
		                 len);
	if (len && len < s->seq[q].prefix_len)
		return error_set(err, LLMC_E_RANGE,
		                 "the first %d positions of sequence %d see each other: it can be trimmed to 0 or to %d and more",
		                 s->seq[q].prefix_len, q, s->seq[q].prefix_len);
	if (!len)
		s->seq[q].prefix_len = s->seq[q].mark = 0;
	kv_seq_trim(&s->kv, q, len);
	return LLMC_OK;
}

int32_t
session_seq_len(const Session *s, llmc_seq q)
{
	return is_seq(s, q) ? s->kv.seq[q].len : -1;
}

void
session_seq_free(Session *s, llmc_seq q)
{
	if (is_seq(s, q))
		kv_seq_free(&s->kv, q);
}

void
session_stats(const Session *s, llmc_stats *out)
{
	llmc_stats st = s->stats;

	st.size = out->size ? out->size : sizeof st;
	st.kv_pages_used = s->kv.n_page - s->kv.n_free;
	memcpy(out, &st, st.size < sizeof st ? st.size : sizeof st);
}
