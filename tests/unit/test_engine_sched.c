/* The scheduler over real pages and a fake model, whose next token is a hash of what it reads back
 * through the block table. A wrong copy on write, prefix hit, saved or recomputed page gives
 * another answer than the request gets alone. In over 100,000 random steps the answers are equal,
 * the invariants hold after every step, no request starves, and nothing leaks.
 * All tests are in one file because they use the same fake model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/engine/scheduler.h"
#include "tests/unit/late_copies.h"

enum { VOCAB = 400, EOS = 0, CONTEXT = 336 };

static PlanPool pools[] = { { .id = "kv",
	                      .k = KVT_F32,
	                      .v = KVT_F32,
	                      .n_layers = 1,
	                      .kv_heads = 1,
	                      .k_dim = 1,
	                      .v_dim = 1 } };
static const Plan plan = { .n_pool = 1, .pool = pools };
/* A pool of recurrent states next to the KV pages; a state holds the value of the last position */
static PlanPool state_pools[] = { { .id = "kv",
	                            .k = KVT_F32,
	                            .v = KVT_F32,
	                            .n_layers = 1,
	                            .kv_heads = 1,
	                            .k_dim = 1,
	                            .v_dim = 1 },
	                          { .id = "state",
	                            .state = true,
	                            .k = KVT_F32,
	                            .v = KVT_F32,
	                            .n_layers = 1,
	                            .kv_heads = 1,
	                            .k_dim = 1,
	                            .v_dim = 1 } };
static const Plan state_plan = { .n_pool = 2, .pool = state_pools };
/* A pool of sliding-window pages next to the KV pages, with and without a state; it holds a copy of
 * the values */
#define WINDOW_POOL                                                                                \
	{ .id = "kv_window",                                                                       \
	  .k = KVT_F32,                                                                            \
	  .v = KVT_F32,                                                                            \
	  .n_layers = 1,                                                                           \
	  .kv_heads = 1,                                                                           \
	  .k_dim = 1,                                                                              \
	  .v_dim = 1,                                                                              \
	  .keep = 23 }
static PlanPool window_pools[] = { { .id = "kv",
	                             .k = KVT_F32,
	                             .v = KVT_F32,
	                             .n_layers = 1,
	                             .kv_heads = 1,
	                             .k_dim = 1,
	                             .v_dim = 1 },
	                           WINDOW_POOL };
static const Plan window_plan = { .n_pool = 2, .pool = window_pools };
/* A layer that reads recent and first positions from exact pages; the test uses no other part of
 * it */
static PlanPool exact_pools[] = { { .id = "kv",
	                            .k = KVT_F32,
	                            .v = KVT_F32,
	                            .n_layers = 1,
	                            .kv_heads = 1,
	                            .k_dim = 1,
	                            .v_dim = 1 },
	                          { .id = "kv_exact",
	                            .k = KVT_F32,
	                            .v = KVT_F32,
	                            .n_layers = 1,
	                            .kv_heads = 1,
	                            .k_dim = 1,
	                            .v_dim = 1,
	                            .recent = 23,
	                            .sinks = 40 } };
static const Plan exact_plan = { .n_pool = 2, .pool = exact_pools };
static PlanPool both_pools[] = { { .id = "kv",
	                           .k = KVT_F32,
	                           .v = KVT_F32,
	                           .n_layers = 1,
	                           .kv_heads = 1,
	                           .k_dim = 1,
	                           .v_dim = 1 },
	                         { .id = "state",
	                           .state = true,
	                           .k = KVT_F32,
	                           .v = KVT_F32,
	                           .n_layers = 1,
	                           .kv_heads = 1,
	                           .k_dim = 1,
	                           .v_dim = 1 },
	                         WINDOW_POOL };
static const Plan both_plan = { .n_pool = 3, .pool = both_pools };

static uint32_t
mix(uint32_t h, uint32_t x)
{
	h = (h ^ x) * 0x9e3779b1u;
	return h ^ h >> 15;
}

typedef struct FakeModel {
	Kv kv;
	char *pages;        /* pages of the first pool */
	int64_t page_bytes; /* size of one of them */
	int save;           /* weight out of 8 */
	int n_saved;        /* saved sequences that exist */
	int n_dropped;      /* forwards of sequences that had released window pages */
	Late late;
} FakeModel;

static uint32_t
roll(FakeModel *f, uint32_t n)
{
	return late_roll(&f->late, n);
}

static void
find_pages(FakeModel *f)
{
	f->pages = kv_layer(&f->kv, 0, 0);
	f->page_bytes = plan_layer_page_bytes(&f->kv.plan->pool[0]);
}

/* Keys hold the token, values a hash of all tokens before it. */
static uint32_t *
cell(FakeModel *f, llmc_seq q, int32_t pos, bool value)
{
	uint32_t *page =
	    (uint32_t *)(f->pages + f->kv.seq[q].page[pos / PLAN_KV_PAGE] * f->page_bytes);
	return &page[pos % PLAN_KV_PAGE + (value ? PLAN_KV_PAGE : 0)];
}

static uint32_t *
state_of(FakeModel *f, llmc_seq q)
{
	return plan_has_state(f->kv.plan) ? (uint32_t *)kv_layer(&f->kv, 1, 0) + q : NULL;
}

static llmc_status
fake_new(void *user, const SchedReq *req, llmc_seq *out, llmc_error *err)
{
	(void)req;
	(void)err;
	*out = kv_seq_new(&((FakeModel *)user)->kv);
	return *out < 0 ? LLMC_E_FULL : LLMC_OK;
}

static llmc_status
fake_fork(void *user, llmc_seq from, llmc_seq *out, llmc_error *err)
{
	(void)err;
	*out = kv_seq_fork(&((FakeModel *)user)->kv, from);
	return *out < 0 ? LLMC_E_FULL : LLMC_OK;
}

static void
fake_free(void *user, llmc_seq q)
{
	kv_seq_free(&((FakeModel *)user)->kv, q);
}

static void
fake_trim(void *user, llmc_seq q, int32_t len)
{
	assert_true(kv_can_trim(&((FakeModel *)user)->kv, q, len));
	kv_seq_trim(&((FakeModel *)user)->kv, q, len);
}

static bool
fake_mark(void *user, llmc_seq q, bool on)
{
	if (!on)
		kv_seq_unmark(&((FakeModel *)user)->kv, q);
	return on && kv_seq_mark(&((FakeModel *)user)->kv, q);
}

static int64_t
fake_need(void *user, const llmc_seq *q, const int32_t *add, size_t n)
{
	return kv_pages_needed(&((FakeModel *)user)->kv, q, add, n);
}

static int64_t
fake_pages(void *user)
{
	return ((FakeModel *)user)->kv.n_free;
}

static int32_t
fake_find(void *user, llmc_seq q, const int32_t *tok, int32_t n)
{
	return kv_prefix_find(&((FakeModel *)user)->kv, q, -1, tok, n);
}

static void
fake_keep(void *user, llmc_seq q, const int32_t *tok)
{
	kv_prefix_keep(&((FakeModel *)user)->kv, q, -1, tok);
}

static bool
fake_here(void *user, llmc_seq q)
{
	return kv_seq_ready(&((FakeModel *)user)->kv, q);
}

typedef struct Saved {
	int32_t n;
	uint32_t cells[];
} Saved;

static void *
fake_save(void *user, llmc_seq q, int32_t n_tok)
{
	FakeModel *f = user;

	if ((int)roll(f, 8) >= f->save)
		return NULL;
	size_t pages = (size_t)kv_bytes(f->kv.plan, kv_seq_pages(n_tok));
	Saved *s = malloc(sizeof *s + pages + (size_t)kv_state_bytes(f->kv.plan, 1));
	assert_non_null(s);
	kv_seq_wait(&f->kv, q);
	kv_state_read(&f->kv, q, (char *)s->cells + pages);
	s->n = n_tok;
	kv_pages_read(&f->kv, f->kv.seq[q].page, f->kv.seq[q].n_page,
	              kv_windowless_pages(&f->kv, n_tok), s->cells);
	f->n_saved++;
	return s;
}

static void
fake_drop(void *user, void *saved)
{
	((FakeModel *)user)->n_saved--;
	free(saved);
}

static bool
fake_load(void *user, void *saved, llmc_seq *out)
{
	FakeModel *f = user;
	Saved *s = saved;

	*out = kv_seq_new(&f->kv);
	assert_true(*out >= 0 && kv_pages_needed(&f->kv, out, &s->n, 1) <= f->kv.n_free);
	kv_seq_reserve(&f->kv, *out, s->n, kv_windowless_pages(&f->kv, s->n));
	kv_pages_write(&f->kv, f->kv.seq[*out].page, f->kv.seq[*out].n_page,
	               kv_windowless_pages(&f->kv, s->n), s->cells);
	kv_state_write(&f->kv, *out, (char *)s->cells + kv_bytes(f->kv.plan, kv_seq_pages(s->n)));
	fake_drop(f, s);
	return true;
}

enum { MAX_DRAFT = 6 };

/* Position pos of the last pool: in its window page, or its exact page */
static uint32_t *
window_cell(FakeModel *f, llmc_seq q, int32_t pos)
{
	const int last = f->kv.plan->n_pool - 1;
	const PlanPool *p = &f->kv.plan->pool[last];
	const int32_t at = f->kv.seq[q].page[f->kv.max_page + pos / PLAN_KV_PAGE];
	char *layer = kv_layer(&f->kv, last, 0);

	return (uint32_t *)(p->recent ? layer - (at + 1) * plan_layer_exact_bytes(p)
	                              : layer + at * plan_layer_page_bytes(p)) +
	       pos % PLAN_KV_PAGE;
}

/* The rows at .. end - 1 write their window pages. Each row reads the positions of its window and
 * the sinks from these pages. */
static void
see_window(FakeModel *f, llmc_seq q, int32_t at, int32_t end)
{
	const int32_t sinks = (int32_t)f->kv.plan->pool[f->kv.plan->n_pool - 1].sinks;

	for (int32_t i = at; f->kv.window && i < end; i++) {
		*window_cell(f, q, i) = *cell(f, q, i, true);
		for (int32_t p = 0; p <= i; p++)
			if (p < sinks || p > i - f->kv.keep)
				assert_int_equal(*window_cell(f, q, p), *cell(f, q, p, true));
	}
}

/* Run the tokens of a chunk; state: after each of the last rows. */
static void
fake_forward(FakeModel *f, const llmc_chunk *c, int32_t rows, uint32_t state[1 + MAX_DRAFT])
{
	int32_t at = f->kv.seq[c->seq].len, end = at + c->n_tok;
	uint32_t h = 1, *own = state_of(f, c->seq);

	if (own && at) /* the recurrent state must be that of the previous position */
		assert_int_equal(*own, *cell(f, c->seq, at - 1, true));
	if (f->kv.window) /* there are too few window pages to keep those that are not needed */
		f->n_dropped += !kv_can_trim(&f->kv, c->seq, at / 2);
	kv_extend(&f->kv, c->seq, c->n_tok);
	for (int32_t i = 0; i < c->n_tok; i++) {
		uint32_t past = at + i ? *cell(f, c->seq, at + i - 1, true) : 7;
		*cell(f, c->seq, at + i, false) = (uint32_t)c->tok[i];
		*cell(f, c->seq, at + i, true) = mix(past, (uint32_t)c->tok[i]);
	}
	see_window(f, c->seq, at, end);
	kv_advance(&f->kv, c->seq, c->n_tok);
	if (own)
		*own = *cell(f, c->seq, end - 1, true);
	for (int32_t i = 0; c->n_out && i < end; i++) {
		h = mix(mix(h, *cell(f, c->seq, i, false)), *cell(f, c->seq, i, true));
		if (i >= end - rows)
			state[i - (end - rows)] = h;
	}
}

static int32_t
token(uint32_t h, int32_t index)
{
	return (int32_t)(mix(h, 100 + (uint32_t)index) >> 8) % VOCAB;
}

/* Answer of a choice that runs alone. */
static int32_t
alone(const int32_t *prompt, int32_t n_prompt, int32_t max_new, int32_t index, int32_t *out)
{
	int32_t tok[CONTEXT + 1], n = n_prompt, last = -1;

	memcpy(tok, prompt, (size_t)n_prompt * sizeof *tok);
	while (n < n_prompt + max_new && last != EOS) {
		uint32_t h = 1, v = 7;
		for (int32_t i = 0; i < n; i++) {
			v = mix(v, (uint32_t)tok[i]);
			h = mix(mix(h, (uint32_t)tok[i]), v);
		}
		tok[n++] = last = token(h, index);
	}
	memcpy(out, tok + n_prompt, (size_t)(n - n_prompt) * sizeof *out);
	return n - n_prompt;
}

/* Draft up to n tokens; one token in `wrong` is wrong. */
static int32_t
draft_with_errors(FakeModel *f, const SchedSeq *c, int32_t *out, int32_t n, uint32_t wrong)
{
	uint32_t h = 1, v = 7;

	for (int32_t i = 0; i < c->n_tok + n; i++) {
		uint32_t id = i < c->n_tok ? (uint32_t)c->tok[i] : (uint32_t)out[i - c->n_tok];
		v = mix(v, id);
		h = mix(mix(h, id), v);
		if (i + 1 >= c->n_tok && i + 1 < c->n_tok + n)
			out[i + 1 - c->n_tok] =
			    roll(f, wrong) ? token(h, c->index) : 1 + (int32_t)roll(f, VOCAB - 1);
	}
	return n;
}

typedef struct Sim {
	FakeModel f;
	Sched *s;
	SchedReq *live[64];
	uint64_t born[64];
	int priorities, clients;
	int windows;  /* 1: a layer with a sliding window, 2: with exact pages */
	int32_t host; /* pages in host memory */
	int n_live;
	uint64_t step, n_done, n_cancelled, slowest, n_drafted, n_right;
} Sim;

static const SchedOps ops = { .seq_new = fake_new,
	                      .seq_fork = fake_fork,
	                      .seq_free = fake_free,
	                      .seq_trim = fake_trim,
	                      .seq_mark = fake_mark,
	                      .pages_need = fake_need,
	                      .pages_free = fake_pages,
	                      .prefix_find = fake_find,
	                      .prefix_keep = fake_keep,
	                      .here = fake_here,
	                      .save = fake_save,
	                      .load = fake_load,
	                      .drop = fake_drop };

static void
check(Sim *m)
{
	const char *wrong = sched_check(m->s);

	if (!wrong)
		wrong = kv_check(&m->f.kv);
	if (wrong)
		fail_msg("step %llu: %s", (unsigned long long)m->step, wrong);
	int32_t used = 0;
	for (int32_t q = 0; q < m->f.kv.n_seq; q++)
		used += m->f.kv.seq[q].used;
	assert_int_equal(used, m->s->running.n);
}

static void
submit(Sim *m, int choices)
{
	int32_t prompt[CONTEXT], n = 1 + (int32_t)roll(&m->f, roll(&m->f, 3) ? 60 : 180), same,
	                         max_new;
	uint32_t family = roll(&m->f, 4);

	/* prompts of a family have a shared prefix, sometimes the whole prompt, which may end at a
	 * page boundary; or all but the first token */
	if (roll(&m->f, 3) == 0)
		n = (n + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE * PLAN_KV_PAGE;
	same = roll(&m->f, 4) ? (int32_t)roll(&m->f, (uint32_t)n + 1) : n;
	for (int32_t i = 0; i < n; i++)
		prompt[i] =
		    1 + (int32_t)((i < same ? mix(family, (uint32_t)i) >> 4 : roll(&m->f, 1000)) %
		                  (VOCAB - 1));
	if (roll(&m->f, 3) == 0)
		prompt[0] = 1 + (int32_t)roll(&m->f, 3);
	max_new = 1 + (int32_t)roll(&m->f, roll(&m->f, 2) ? 20 : 130);
	SchedReq *r =
	    sched_req_new(prompt, n, max_new, 1 + (int32_t)roll(&m->f, (uint32_t)choices));
	assert_non_null(r);
	r->prompt_rows = roll(&m->f, 8) == 0;
	r->priority = m->priorities ? (int32_t)roll(&m->f, (uint32_t)m->priorities) - 1 : 0;
	r->client = m->clients ? roll(&m->f, (uint32_t)m->clients) : 0;
	if (sched_reject_reason(&m->s->lim, r)) {
		sched_req_free(r);
		return;
	}
	m->born[m->n_live] = m->step;
	m->live[m->n_live++] = r;
	sched_submit(m->s, r);
}

static void
remove_request(Sim *m, int i)
{
	sched_req_free(m->live[i]);
	m->live[i] = m->live[--m->n_live];
	m->born[i] = m->born[m->n_live];
}

static void
finish_some(Sim *m)
{
	for (int i = m->n_live; i-- > 0;) {
		SchedReq *r = m->live[i];
		if (m->step - m->born[i] > m->slowest)
			m->slowest = m->step - m->born[i];
		/* requests of a client start in order */
		for (int k = 0; r->started && k < m->n_live; k++)
			assert_true(m->live[k]->started || m->live[k]->priority != r->priority ||
			            m->live[k]->client != r->client ||
			            m->live[k]->order > r->order);
		if (r->n_open)
			continue;
		for (int32_t k = 0; k < r->n_seq; k++) {
			int32_t want[CONTEXT],
			    n = alone(r->seq[k].tok, r->n_prompt, r->max_new, k, want);
			assert_int_equal(r->seq[k].n_tok, r->n_prompt + n);
			assert_memory_equal(want, r->seq[k].tok + r->n_prompt,
			                    (size_t)n * sizeof *want);
		}
		m->n_done++;
		remove_request(m, i);
	}
}

/* state: the state after the last token, then the state after each draft token */
static void
answer(Sim *m, SchedSeq *c, const uint32_t *state)
{
	bool right;

	do {
		int32_t id = token(*state++, c->index);
		assert_int_equal(c->state, SEQ_RUNNING);
		right = sched_push(m->s, c, id);
		m->n_right += right;
		if (id == EOS || c->n_tok == c->req->n_prompt + c->req->max_new) {
			sched_finish(m->s, c);
			right = false;
		}
	} while (right);
}

static void
step(Sim *m)
{
	uint32_t state[16][1 + MAX_DRAFT];
	SchedSeq *choice[16], *ran[16];
	bool with_drafts = roll(&m->f, 2) && (!m->s->lim.page_aligned || m->s->lim.states);
	int32_t n = sched_plan(m->s), n_tok = 0, n_out = 0;

	/* an empty step with live requests would repeat forever */
	if (n == 0 && m->n_live)
		fail_msg("step %llu: no request runs, %d wait", (unsigned long long)m->step,
		         m->n_live);
	for (int32_t i = 0; i < n && with_drafts; i++) { /* in any kind of step */
		int32_t draft[MAX_DRAFT];
		if (sched_may_draft(m->s, i) && roll(&m->f, 3))
			m->n_drafted += (uint64_t)sched_add_drafts(
			    m->s, i, draft,
			    draft_with_errors(&m->f, m->s->chunk_seq[i], draft,
			                      (int32_t)roll(&m->f, MAX_DRAFT + 1), 6));
	}
	for (int32_t i = 0; i < n; i++) {
		n_tok += m->s->chunk[i].n_tok;
		n_out += m->s->chunk[i].n_out;
		assert_true(m->s->chunk[i].n_tok > 0 &&
		            m->s->chunk[i].n_out <= m->s->chunk[i].n_tok);
	}
	assert_true(n_tok <= m->s->lim.chunk && n_out <= m->s->lim.n_out);
	assert_true(n == 0 ||
	            kv_pages_needed(&m->f.kv, m->s->q, m->s->add, (size_t)n) <= m->f.kv.n_free);
	for (int32_t i = 0; i < n; i++) {
		ran[i] = choice[i] = m->s->chunk_seq[i];
		fake_forward(&m->f, &m->s->chunk[i], 1 + choice[i]->n_draft_tokens, state[i]);
		bool has_token =
		    m->s->chunk[i].n_out > 0 &&
		    choice[i]->n_done + m->s->chunk[i].n_tok - choice[i]->n_draft_tokens ==
		        choice[i]->n_tok;
		assert_int_equal(sched_chunk_done(m->s, i), has_token);
		choice[i] = has_token ? choice[i] : NULL;
	}
	for (int32_t i = 0; i < n; i++) {
		if (!choice[i])
			continue;
		SchedReq *r = choice[i]->req;
		if (sched_must_fork(choice[i])) {
			assert_int_equal(sched_fork(m->s, r, NULL), LLMC_OK);
			for (int32_t k = 1; k < r->n_seq; k++)
				answer(m, &r->seq[k], state[i]);
		}
		answer(m, choice[i], state[i]);
	}
	for (int32_t i = 0; i < n; i++)
		sched_commit_drafts(m->s, ran[i]);
	m->step++;
	finish_some(m);
	check(m);
}

static void
simulate(Sim *m, SchedLimits lim, int steps, int choices, int busy,
         int save) /* m->priorities: number of priority levels */
{
	SchedOps o = ops;
	int32_t pages = (int32_t)lim.pages;

	o.user = &m->f;
	m->f.save = save;
	m->slowest = 0;
	/* sessions allocate more: here there are only pages for the windows of all sequences and
	 * the rows of a step */
	const Plan *p = m->windows == 2    ? &exact_plan
	                : m->windows       ? lim.page_aligned ? &both_plan : &window_plan
	                : lim.page_aligned ? &state_plan
	                                   : &plan;
	const KvMem mem = late_mem(&m->f.late);
	assert_int_equal(kv_open_on(&m->f.kv, &mem, p, pages,
	                            m->windows ? (m->windows == 2 ? 5 : 4) * lim.seqs +
	                                             lim.chunk / PLAN_KV_PAGE + 1
	                                       : 0,
	                            lim.no_prefix ? 0 : 2 * lim.seqs, CONTEXT, lim.seqs, NULL),
	                 LLMC_OK);
	find_pages(&m->f);
	assert_int_equal(kv_host_open(&m->f.kv, m->host, lim.chunk / PLAN_KV_PAGE + 1, NULL),
	                 LLMC_OK);
	m->f.late.group = m->f.kv.host.n_moved = m->f.kv.host.waited =
	    (uint32_t)-1000; /* let group numbers wrap around */
	if (!lim.no_prefix)
		assert_int_equal(kv_prefix_open(&m->f.kv, NULL), LLMC_OK);
	assert_int_equal(kv_marks_open(&m->f.kv, lim.states ? (lim.seqs + 1) / 2 : 0, NULL),
	                 LLMC_OK); /* there are fewer marks than sequences with drafts */
	assert_int_equal(sched_open(&lim, &o, &m->s, NULL), LLMC_OK);
	for (int i = 0; i < steps; i++) {
		while (m->n_live < busy && roll(&m->f, 4) == 0)
			submit(m, choices);
		if (m->n_live && roll(&m->f, 40) == 0) {
			int k = (int)roll(&m->f, (uint32_t)m->n_live);
			sched_cancel(m->s, m->live[k]);
			assert_int_equal(m->live[k]->n_open, 0);
			m->n_cancelled++;
			remove_request(m, k);
			check(m);
		}
		step(m);
	}
	while (m->n_live)
		step(m);
	assert_int_equal(m->f.kv.n_free, pages);
	assert_int_equal(m->s->reserved, 0);
	assert_int_equal(m->s->total_tokens, 0);
	assert_int_equal(m->f.n_saved, 0);
	/* bound on the longest request: all live requests run one at a time */
	assert_true(m->slowest < (uint64_t)busy * 3 * 130 * 8);
}

static void
random_requests_answer_as_they_do_alone(void **state)
{
	static const struct {
		SchedLimits lim;
		int choices, busy, save, windows, host;
	} with[] = {
		{ { .seqs = 8, .chunk = 64, .n_out = 24, .prefill = 64, .pages = 14 },
		  3,
		  16,
		  3,
		  0,
		  0 },
		{ { .seqs = 8, .chunk = 64, .n_out = 24, .prefill = 32, .pages = 10 },
		  3,
		  12,
		  0,
		  0,
		  0 },
		{ { .seqs = 8, .chunk = 48, .n_out = 8, .prefill = 48, .pages = 11 },
		  4,
		  30,
		  8,
		  0,
		  0 },
		{ { .seqs = 3, .chunk = 2, .n_out = 2, .prefill = 1, .pages = 60 }, 2, 8, 4, 0, 0 },
		{ { .seqs = 12, .chunk = 512, .n_out = 12, .prefill = 512, .pages = 16 },
		  1,
		  40,
		  4,
		  0,
		  0 },
		{ { .seqs = 6,
		    .chunk = 40,
		    .n_out = 40,
		    .prefill = 40,
		    .pages = 9,
		    .no_prefix = true },
		  2,
		  10,
		  2,
		  0,
		  0 },
		{ { .seqs = 10,
		    .chunk = 100,
		    .n_out = 10,
		    .prefill = 100,
		    .pages = 12,
		    .total_tokens = 900,
		    .waiting_ratio = 1.2f,
		    .max_waiting_steps = 20 },
		  2,
		  30,
		  2,
		  0,
		  0 },
		{ { .seqs = 8,
		    .chunk = 256,
		    .n_out = 200,
		    .prefill = 100,
		    .pages = 12,
		    .prompt_whole = true,
		    .no_prefix = true },
		  2,
		  20,
		  2,
		  0,
		  0 },
		{ { .seqs = 8,
		    .chunk = 64,
		    .n_out = 24,
		    .prefill = 64,
		    .pages = 14,
		    .page_aligned = true },
		  3,
		  16,
		  3,
		  0,
		  0 },
		{ { .seqs = 5,
		    .chunk = 200,
		    .n_out = 60,
		    .prefill = 160,
		    .pages = 40,
		    .page_aligned = true },
		  2,
		  12,
		  4,
		  0,
		  0 },
		{ { .seqs = 4, .chunk = 64, .n_out = 24, .prefill = 64, .pages = 40 },
		  3,
		  12,
		  3,
		  1,
		  0 },
		{ { .seqs = 3, .chunk = 40, .n_out = 40, .prefill = 40, .pages = 18 },
		  2,
		  10,
		  4,
		  1,
		  0 },
		{ { .seqs = 4,
		    .chunk = 64,
		    .n_out = 24,
		    .prefill = 64,
		    .pages = 36,
		    .page_aligned = true },
		  2,
		  12,
		  3,
		  1,
		  0 },
		{ { .seqs = 3, .chunk = 40, .n_out = 40, .prefill = 40, .pages = 44 },
		  2,
		  10,
		  4,
		  2,
		  0 },
		{ { .seqs = 8, .chunk = 64, .n_out = 24, .prefill = 64, .pages = 14 },
		  3,
		  16,
		  1,
		  0,
		  7 },
		{ { .seqs = 8, .chunk = 48, .n_out = 8, .prefill = 48, .pages = 11 },
		  4,
		  30,
		  0,
		  0,
		  200 },
		{ { .seqs = 4, .chunk = 64, .n_out = 24, .prefill = 64, .pages = 40 },
		  3,
		  12,
		  0,
		  1,
		  60 },
		{ { .seqs = 12, .chunk = 512, .n_out = 12, .prefill = 512, .pages = 16 },
		  1,
		  40,
		  0,
		  0,
		  1 },
		{ { .seqs = 3, .chunk = 2, .n_out = 2, .prefill = 1, .pages = 30 },
		  2,
		  8,
		  0,
		  0,
		  30 },
		{ { .seqs = 3, .chunk = 40, .n_out = 40, .prefill = 40, .pages = 44 },
		  2,
		  10,
		  0,
		  2,
		  60 },
		{ { .seqs = 8,
		    .chunk = 40,
		    .n_out = 6,
		    .prefill = 33,
		    .pages = 40,
		    .page_aligned = true },
		  3,
		  12,
		  3,
		  0,
		  0 },
		{ { .seqs = 8,
		    .chunk = 24,
		    .n_out = 4,
		    .prefill = 20,
		    .pages = 40,
		    .page_aligned = true },
		  3,
		  12,
		  3,
		  0,
		  0 },
		{ { .seqs = 8,
		    .chunk = 64,
		    .n_out = 24,
		    .prefill = 64,
		    .pages = 14,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 16 },
		  3,
		  16,
		  3,
		  0,
		  0 },
		{ { .seqs = 5,
		    .chunk = 200,
		    .n_out = 60,
		    .prefill = 160,
		    .pages = 40,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 9 },
		  2,
		  12,
		  4,
		  0,
		  0 },
		{ { .seqs = 4,
		    .chunk = 64,
		    .n_out = 24,
		    .prefill = 64,
		    .pages = 36,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 16 },
		  2,
		  12,
		  3,
		  1,
		  0 },
		{ { .seqs = 4,
		    .chunk = 13,
		    .n_out = 7,
		    .prefill = 11,
		    .pages = 40,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 16 },
		  3,
		  12,
		  3,
		  0,
		  0 },
		{ { .seqs = 8,
		    .chunk = 12,
		    .n_out = 9,
		    .prefill = 3,
		    .pages = 16,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 16 },
		  2,
		  12,
		  4,
		  0,
		  0 },
		{ { .seqs = 6,
		    .chunk = 40,
		    .n_out = 40,
		    .prefill = 40,
		    .pages = 12,
		    .page_aligned = true,
		    .states = true,
		    .draft_rows_max = 16,
		    .no_prefix = true },
		  3,
		  14,
		  3,
		  0,
		  0 },
	};
	static Sim m;
	uint64_t preempted = 0, saved = 0, hits = 0, guessed = 0, right = 0, out = 0, in = 0,
	         waited = 0;
	int steps = 10000;

	(void)state;
	for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
		m = (Sim){ .f.late.random = 88172645463325252u + i,
			   .windows = with[i].windows,
			   .host = with[i].host,
			   .priorities = i % 3 == 1 || with[i].lim.total_tokens ? 3 : 0,
			   .clients = i % 2 ? 4 : 0 };
		simulate(&m, with[i].lim, steps, with[i].choices, with[i].busy, with[i].save);
		preempted += m.s->n_preempted;
		saved += m.s->n_loaded;
		hits += m.s->prefix_hits;
		guessed += m.n_drafted;
		right += m.n_right;
		out += m.f.kv.host.n_out;
		in += m.f.kv.host.n_in;
		waited += (uint64_t)m.f.late.n_waited;
		print_message("%zu: %llu answered, %llu cancelled, %llu preempted, %llu loaded, "
		              "%llu cached, %llu of %llu guesses right, at most %llu steps\n",
		              i, (unsigned long long)m.n_done, (unsigned long long)m.n_cancelled,
		              (unsigned long long)m.s->n_preempted,
		              (unsigned long long)m.s->n_loaded,
		              (unsigned long long)m.s->prefix_hits, (unsigned long long)m.n_right,
		              (unsigned long long)m.n_drafted, (unsigned long long)m.slowest);
		assert_true(m.n_done > 100);
		assert_true((!with[i].lim.page_aligned && !with[i].windows) ||
		            with[i].lim.no_prefix || m.s->prefix_hits > (m.clients ? 300 : 500));
		assert_true(!with[i].lim.states ||
		            (m.n_right > 200 && m.n_drafted > m.n_right + 200));
		assert_true(!with[i].windows || m.f.n_dropped > 200);
		sched_close(m.s);
		kv_release(&m.f.kv);
	}
	/* the simulation has covered the interesting cases */
	assert_true(preempted > 500 && saved > 200 && hits > 10000);
	assert_true(right > 5000 && guessed - right > 2000);
	print_message(
	    "%llu pages to host memory, %llu back, %llu times a sequence waited for them\n",
	    (unsigned long long)out, (unsigned long long)in, (unsigned long long)waited);
	assert_true(out > 1000 && in > 300 && waited > 100);
}

/* ---- single cases ---- */

static Sim *
open_sim(SchedLimits lim)
{
	static Sim m;
	SchedOps o = ops;

	m = (Sim){ .f.late.random = 1 };
	o.user = &m.f;
	assert_int_equal(kv_open(&m.f.kv, &plan, (int32_t)lim.pages, CONTEXT, lim.seqs, NULL),
	                 LLMC_OK);
	find_pages(&m.f);
	assert_int_equal(sched_open(&lim, &o, &m.s, NULL), LLMC_OK);
	return &m;
}

static SchedReq *
add_request_at(Sim *m, int32_t n_prompt, int32_t max_new, int32_t n_seq, int32_t priority)
{
	int32_t prompt[CONTEXT];

	for (int32_t i = 0; i < n_prompt; i++)
		prompt[i] = 1 + (i + m->n_live) % 90;
	SchedReq *r = sched_req_new(prompt, n_prompt, max_new, n_seq);
	assert_non_null(r);
	assert_null(sched_reject_reason(&m->s->lim, r));
	m->live[m->n_live++] = r;
	r->priority = priority;
	sched_submit(m->s, r);
	return r;
}

static SchedReq *
add_request(Sim *m, int32_t n_prompt, int32_t max_new, int32_t n_seq)
{
	return add_request_at(m, n_prompt, max_new, n_seq, 0);
}

/* Run a step in which no request ends before max_new. */
static int32_t
quiet_step(Sim *m)
{
	int32_t n = sched_plan(m->s), n_tok = 0;
	uint32_t state[1 + MAX_DRAFT];
	SchedSeq *choice[16];

	for (int32_t i = 0; i < n; i++) {
		n_tok += m->s->chunk[i].n_tok;
		choice[i] = m->s->chunk_seq[i];
		fake_forward(&m->f, &m->s->chunk[i], 1, state);
		if (!sched_chunk_done(m->s, i))
			choice[i] = NULL;
	}
	for (int32_t i = 0; i < n; i++) {
		SchedReq *r = choice[i] ? choice[i]->req : NULL;
		if (!r)
			continue;
		const bool forks = sched_must_fork(choice[i]);
		if (forks)
			assert_int_equal(sched_fork(m->s, r, NULL), LLMC_OK);
		for (int32_t k = 0; k < r->n_seq; k++) {
			SchedSeq *c = &r->seq[k];
			if (!forks && c != choice[i])
				continue;
			sched_push(m->s, c, 9);
			if (c->n_tok == r->n_prompt + r->max_new)
				sched_finish(m->s, c);
		}
	}
	check(m);
	return n_tok;
}

static void
close_sim(Sim *m)
{
	while (m->n_live) {
		sched_cancel(m->s, m->live[m->n_live - 1]);
		sched_req_free(m->live[--m->n_live]);
	}
	assert_int_equal(m->f.kv.n_free, m->f.kv.n_page);
	assert_int_equal(m->s->total_tokens, 0);
	sched_close(m->s);
	kv_release(&m->f.kv);
}

static SchedReq *
add_request_of(Sim *m, uint64_t client, int32_t n_prompt, int32_t max_new, int32_t n_seq)
{
	int32_t prompt[CONTEXT];

	for (int32_t i = 0; i < n_prompt; i++)
		prompt[i] = 1 + (i + m->n_live) % 90;
	SchedReq *r = sched_req_new(prompt, n_prompt, max_new, n_seq);
	assert_non_null(r);
	r->client = client;
	m->live[m->n_live++] = r;
	sched_submit(m->s, r);
	return r;
}

static int32_t
running_of(const Sim *m, uint64_t client)
{
	int32_t n = 0;

	for (const SchedSeq *c = m->s->running.oldest; c; c = c->younger)
		n += c->req->client == client;
	return n;
}

/* A request of another client starts before those that one client has sent earlier. */
static void
clients_take_turns(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 1, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60 });
	SchedReq *many[6];

	(void)state;
	for (int i = 0; i < 6; i++)
		many[i] = add_request_of(m, 1, 10, 5, 1);
	quiet_step(m);
	SchedReq *other = add_request_of(m, 2, 10, 5, 1), *next = add_request_of(m, 2, 10, 5, 1);
	assert_true(many[0]->started);
	for (int i = 0; i < 5; i++)
		quiet_step(m);
	assert_int_equal(many[0]->n_open, 0);
	assert_true(other->started && !many[1]->started);
	for (int i = 0; i < 5; i++)
		quiet_step(m);
	/* each has run one request; the second client began with the count of the first */
	assert_true(many[1]->started && !next->started);
	for (int i = 0; i < 5; i++)
		quiet_step(m);
	assert_true(next->started && !many[2]->started);
	close_sim(m);
}

/* A request with as many choices as there are sequences yields up to half of them. */
static void
choices_of_one_client_yield_to_another(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 4, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60 });
	SchedReq *other[4];

	(void)state;
	SchedReq *all = add_request_of(m, 1, 10, 60, 4);
	quiet_step(m);
	quiet_step(m);
	assert_int_equal(running_of(m, 1), 4);
	for (int i = 0; i < 4; i++)
		other[i] = add_request_of(m, 2, 10, 5, 1);
	quiet_step(m);
	assert_int_equal(running_of(m, 1), 2);
	assert_int_equal(running_of(m, 2), 2);
	assert_true(other[1]->started && !other[2]->started);
	const uint64_t preempted = m->s->n_preempted;
	for (int i = 0; i < 5; i++)
		quiet_step(m);
	assert_true(other[3]->started);
	assert_int_equal(m->s->n_preempted, preempted); /* other[2] and other[3] followed them */
	for (int i = 0; i < 12; i++)
		quiet_step(m);
	assert_int_equal(running_of(m, 1), 4); /* resumed */
	for (int i = 0; i < 80 && all->n_open; i++)
		quiet_step(m);
	assert_int_equal(all->n_open, 0);
	close_sim(m);
}

/* Clients share the sequences of a step although no token of either has run yet. */
static void
clients_share_the_starts_of_a_step(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 4, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60 });

	(void)state;
	for (int i = 0; i < 6; i++)
		add_request_of(m, 1, 10, 5, 1);
	for (int i = 0; i < 6; i++)
		add_request_of(m, 2, 10, 5, 1);
	quiet_step(m);
	assert_int_equal(running_of(m, 1), 2);
	assert_int_equal(running_of(m, 2), 2);
	assert_int_equal(m->s->n_preempted, 0);
	close_sim(m);
}

/* A choice that yielded and now lacks only pages precedes requests of other clients and of a worse
 * priority, which would take these pages. */
static void
choices_that_yielded_get_their_pages_first(void **state)
{
	Sim *m = open_sim((SchedLimits){
	    .seqs = 4, .chunk = 320, .n_out = 8, .prefill = 320, .pages = 14, .no_prefix = true });

	(void)state;
	SchedReq *all = add_request_of(m, 1, 10, 250, 4);
	for (int i = 0; i < 60; i++) /* to 3 pages each */
		quiet_step(m);
	SchedReq *other = add_request_of(m, 2, 10, 250, 1);
	quiet_step(m);
	assert_true(other->started);
	assert_int_equal(m->s->n_yielded, 1);
	for (int i = 0; i < 4; i++)
		if (all->seq[i].state == SEQ_RUNNING)
			sched_finish(m->s, &all->seq[i]);
	SchedReq *urgent = add_request_at(m, 9 * PLAN_KV_PAGE - 1, 2, 1, -1);
	SchedReq *small[2] = { add_request_of(m, 3, 5, 5, 1), add_request_at(m, 5, 5, 1, 1) };
	quiet_step(m);
	assert_true(urgent->started && !small[0]->started && !small[1]->started);
	for (int i = 0; i < 6; i++)
		quiet_step(m);
	assert_int_equal(m->s->preempted.n, 0);
	assert_true(small[0]->started && small[1]->started);
	close_sim(m);
}

/* A client with many requests gets its turns although new clients arrive in each step. */
static void
new_clients_do_not_starve_one_with_many_requests(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 1, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60 });
	SchedReq *many[6];
	int steps = 0;

	(void)state;
	for (int i = 0; i < 6; i++)
		many[i] = add_request_of(m, 1, 10, 5, 1);
	for (uint64_t client = 2; many[5]->n_open; steps++) {
		for (int i = m->n_live; i-- > 0;)
			if (!m->live[i]->n_open && m->live[i]->client != 1)
				remove_request(m, i);
		if (steps % 5 == 0 && m->n_live < 16)
			add_request_of(m, client++, 10, 5, 1);
		quiet_step(m);
		assert_true(steps < 2000);
	}
	close_sim(m);
}

static void
admission_stops_at_the_first_request_over_the_token_budget(void **state)
{
	Sim *m = open_sim((SchedLimits){
	    .seqs = 8, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60, .total_tokens = 100 });

	(void)state;
	SchedReq *a = add_request(m, 10, 40, 1), *b = add_request(m, 20, 40, 1),
	         *c = add_request(m, 5, 5, 1);
	quiet_step(m);
	/* c would fit, but must wait because it came later */
	assert_true(a->started && !b->started && !c->started);
	assert_int_equal(m->s->total_tokens, 50);
	sched_cancel(m->s, a);
	quiet_step(m);
	assert_true(b->started && c->started);
	assert_int_equal(m->s->total_tokens, 70);
	/* choices cost the memory of the prompt only once */
	SchedReq *d = sched_req_new((const int32_t[]){ 1, 2 }, 2, 25, 4);
	assert_string_equal(sched_reject_reason(&m->s->lim, d),
	                    "prompt and new tokens are more than max_batch_total_tokens");
	sched_req_free(d);
	close_sim(m);
}

static void
higher_priority_runs_first(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 2, .chunk = 64, .n_out = 8, .prefill = 64, .pages = 60 });

	(void)state;
	SchedReq *a = add_request(m, 10, 40, 1), *b = add_request_at(m, 20, 40, 1, 3);
	quiet_step(m);
	assert_true(a->started && b->started);
	SchedReq *later = add_request(m, 5, 40, 1), *urgent = add_request_at(m, 6, 40, 1, -1);
	assert_ptr_equal(m->s->first, urgent);
	/* the urgent request replaces a running request of the worst priority; the other request of
	 * that priority remains */
	quiet_step(m);
	assert_true(urgent->started && !later->started);
	assert_int_equal(b->seq[0].state, SEQ_PREEMPTED);
	assert_int_equal(a->seq[0].state, SEQ_RUNNING);
	sched_cancel(m->s, urgent);
	quiet_step(m); /* the waiting request has a better priority than the preempted one */
	assert_true(later->started);
	assert_int_equal(b->seq[0].state, SEQ_PREEMPTED);
	sched_cancel(m->s, a);
	quiet_step(m);
	assert_int_equal(b->seq[0].state, SEQ_RUNNING);
	close_sim(m);
}

static void
requests_over_the_token_budget_wait_for_preempted_ones(void **state)
{
	Sim *m = open_sim((SchedLimits){
	    .seqs = 1, .chunk = 64, .n_out = 4, .prefill = 64, .pages = 60, .total_tokens = 100 });

	(void)state;
	SchedReq *slow = add_request_at(m, 10, 50, 1, 9);
	quiet_step(m);
	SchedReq *soon = add_request_at(m, 10, 20, 1, 0), *large = add_request_at(m, 10, 50, 1, 0);
	quiet_step(m);
	assert_true(soon->started &&
	            !large->started); /* 60 + 30 of 100 tokens: 60 more do not fit */
	assert_int_equal(slow->seq[0].state, SEQ_PREEMPTED);
	for (int i = 0; i < 200 && large->n_open; i++)
		assert_true(quiet_step(m) > 0);
	assert_true(slow->n_open == 0 && soon->n_open == 0 && large->n_open == 0);
	close_sim(m);
}

static void
decoding_is_not_interrupted_until_enough_requests_wait(void **state)
{
	Sim *m = open_sim((SchedLimits){ .seqs = 12,
	                                 .chunk = 64,
	                                 .n_out = 12,
	                                 .prefill = 64,
	                                 .pages = 90,
	                                 .waiting_ratio = 1.2f,
	                                 .max_waiting_steps = 6 });
	SchedReq *r[8];

	(void)state;
	r[0] = add_request(m, 5, 100, 1);
	r[1] = add_request(m, 5, 100, 1);
	quiet_step(m);
	assert_true(r[0]->started && r[1]->started); /* no request was running */
	r[2] = add_request(m, 5, 100, 1);
	quiet_step(m);
	assert_false(r[2]->started); /* one request waits, but floor(2 * 1.2) must wait */
	r[3] = add_request(m, 5, 100, 1);
	quiet_step(m);
	assert_true(r[2]->started && r[3]->started);
	r[4] = add_request(m, 5, 100, 1);
	for (int i = 0; i < 6; i++) {
		quiet_step(m);
		assert_false(r[4]->started);
	}
	quiet_step(m);
	assert_true(r[4]->started); /* it has waited for the maximum number of steps */
	close_sim(m);
}

/* Models with recurrent states: rows that remain after a page-aligned chunk go to another prompt,
 * if its chunk then ends at a page boundary or at the prompt's end. */
static void
prefill_chunks_end_at_page_boundaries(void **state)
{
	Sim *m = open_sim((SchedLimits){
	    .seqs = 4, .chunk = 96, .n_out = 4, .prefill = 80, .pages = 40, .page_aligned = true });

	(void)state;
	add_request(m, 5, 100, 1);
	assert_int_equal(quiet_step(m), 5);
	SchedReq *a = add_request(m, 70, 10, 1), *b = add_request(m, 100, 10, 1),
	         *c = add_request(m, 12, 10, 1);
	assert_int_equal(quiet_step(m), 1 + 64); /* 16 are left */
	assert_true(a->seq[0].n_done == 64 && !b->started);
	assert_int_equal(quiet_step(m), 1 + 6 + 64);
	assert_true(a->seq[0].n_done == 70 && b->seq[0].n_done == 64 && !c->started);
	assert_int_equal(quiet_step(m), 2 + 32 + 12);
	assert_true(b->seq[0].n_done == 96 && c->seq[0].n_done == 12);
	assert_int_equal(quiet_step(m), 3 + 4);
	assert_int_equal(b->seq[0].n_done, 100);
	close_sim(m);
}

static void
prefill_chunks_run_with_decoding(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 4, .chunk = 64, .n_out = 4, .prefill = 20, .pages = 40 });

	(void)state;
	add_request(m, 5, 100, 1);
	assert_int_equal(quiet_step(m), 5);
	SchedReq *r = add_request(m, 50, 10, 1);
	assert_int_equal(quiet_step(m), 21);
	assert_int_equal(quiet_step(m), 21);
	assert_int_equal(r->seq[0].n_tok, 50);
	assert_int_equal(quiet_step(m), 11);
	assert_int_equal(r->seq[0].n_tok, 51); /* has sampled its first token */
	assert_int_equal(quiet_step(m), 2);
	close_sim(m);
}

/* An image, or a whole prompt, that fills a step runs although another request always decodes. */
static void
chunks_as_long_as_a_step_run_with_decoding(void **state)
{
	int32_t image_at[70];

	(void)state;
	for (int32_t i = 0; i < 70; i++)
		image_at[i] = i < 64 ? 0 : -1;
	for (int whole = 0; whole < 2; whole++) {
		Sim *m = open_sim((SchedLimits){ .seqs = 4,
		                                 .chunk = 64,
		                                 .n_out = 4,
		                                 .prefill = 20,
		                                 .pages = 40,
		                                 .prompt_whole = whole,
		                                 .no_prefix = true });
		SchedReq *first = add_request(m, 5, 100, 1);
		assert_int_equal(quiet_step(m), 5);
		SchedReq *r = add_request(m, whole ? 64 : 70, 10, 1);
		r->image_at = whole ? NULL : image_at;
		assert_null(sched_reject_reason(&m->s->lim, r));
		assert_int_equal(quiet_step(m), 1);
		assert_true(r->started && r->seq[0].n_done == 0);
		assert_int_equal(quiet_step(m), 64);
		assert_int_equal(r->seq[0].n_done, 64);
		assert_int_equal(first->seq[0].n_tok, 7);
		assert_int_equal(quiet_step(m), whole ? 2 : 7); /* decode goes on */
		assert_int_equal(first->seq[0].n_tok, 8);
		close_sim(m);
	}
}

static void
the_youngest_is_preempted_and_resumed_first(void **state)
{
	Sim *m = open_sim(
	    (SchedLimits){ .seqs = 4, .chunk = 128, .n_out = 4, .prefill = 128, .pages = 6 });

	(void)state;
	SchedReq *a = add_request(m, 30, 100, 1), *b = add_request(m, 30, 100, 1);
	quiet_step(m);
	assert_true(a->started && b->started);
	while (!b->seq[0].n_preempted)
		quiet_step(m);
	/* both had three pages, and a needs a fourth one */
	assert_int_equal(a->seq[0].n_preempted, 0);
	assert_int_equal(a->seq[0].n_tok, b->seq[0].n_tok + 1);
	assert_int_equal(b->seq[0].state, SEQ_PREEMPTED);
	SchedReq *c = add_request(m, 5, 5, 1);
	quiet_step(m);
	assert_false(c->started); /* although it would fit */
	sched_cancel(m->s, a);
	assert_int_equal(a->n_open, 0);
	quiet_step(m);
	assert_int_equal(b->seq[0].state, SEQ_RUNNING);
	sched_cancel(m->s, b);
	quiet_step(m);
	assert_true(c->started);
	close_sim(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_requests_answer_as_they_do_alone),
		cmocka_unit_test(clients_take_turns),
		cmocka_unit_test(choices_of_one_client_yield_to_another),
		cmocka_unit_test(clients_share_the_starts_of_a_step),
		cmocka_unit_test(choices_that_yielded_get_their_pages_first),
		cmocka_unit_test(new_clients_do_not_starve_one_with_many_requests),
		cmocka_unit_test(admission_stops_at_the_first_request_over_the_token_budget),
		cmocka_unit_test(higher_priority_runs_first),
		cmocka_unit_test(requests_over_the_token_budget_wait_for_preempted_ones),
		cmocka_unit_test(decoding_is_not_interrupted_until_enough_requests_wait),
		cmocka_unit_test(prefill_chunks_run_with_decoding),
		cmocka_unit_test(chunks_as_long_as_a_step_run_with_decoding),
		cmocka_unit_test(prefill_chunks_end_at_page_boundaries),
		cmocka_unit_test(the_youngest_is_preempted_and_resumed_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
