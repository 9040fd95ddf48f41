/* An engine whose model has an MTP head or a draft checkpoint (mtp.part), which runs all draft
 * tokens. The output equals that of the model alone, and the draft tokens are those that the head
 * computes step by step, for any chunks, preemption and choices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "runtime/draft/draft.h"
#include "runtime/engine/engine.h"

enum { VOCAB = 11, HIDDEN = 40, CONTEXT = 160, MOST = 96, CHOICES = 3, MAX_DRAFTS = 3 };

static const char mixture[] =
    "llmc: 1\nname: tiny-mtp\nfamily: glm4_moe\nvocab_size: 11\nmax_positions: 256\nn_layers: "
    "2\nhidden: 40\n"
    "attention: {n_heads: 3, n_kv_heads: 1, head_dim: 8}\nffn: {width: 24}\n"
    "moe: {n_experts: 5, top_k: 2, width: 12, layers: {from: 1}, shared: {width: 12}, scale: 1.5, "
    "renorm: true}\n"
    "rope: {theta: 10000, dims: 4}\nnorm: {eps: 1.0e-5}\nmtp: {layers: 1}\ntext: {eos: "
    "[2]}\ndtype: f32\n";

/* rejected tokens restore a mark */
static const char states[] =
    "llmc: 1\nname: tiny-mtp\nfamily: qwen3_5\nvocab_size: 11\nmax_positions: 256\nn_layers: "
    "3\nhidden: 40\n"
    "attention: {n_heads: 3, n_kv_heads: 1, head_dim: 8}\nffn: {width: 24}\n"
    "linear: {layers: [0, 2], k_heads: 2, v_heads: 4, k_dim: 12, v_dim: 10, taps: 3}\n"
    "rope: {theta: 10000, dims: 4}\nnorm: {eps: 1.0e-5}\nmtp: {layers: 1}\ntext: {eos: "
    "[2]}\ndtype: f32\n";

/* a draft checkpoint of the first model, of another hidden size */
static const char draft[] =
    "llmc: 1\nname: tiny-draft\nfamily: eagle3\nvocab_size: 11\nmax_positions: 256\nn_layers: "
    "1\nhidden: 24\n"
    "attention: {n_heads: 2, n_kv_heads: 1, head_dim: 8}\nffn: {width: 20, act: silu}\n"
    "rope: {theta: 10000, dims: 8}\nnorm: {eps: 1.0e-5}\nmtp: {width: 120}\ndtype: f32\n";

/* without a head; with its hidden rows as output; the head */
static llmc_model *whole, *model, *head;

static llmc_model *
open_part(const char *description, const char *part, const char *more)
{
	const char *set[] = { part, more, NULL }, *tmp = getenv("TMPDIR");
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model *m;
	llmc_error err;
	char path[512];

	snprintf(path, sizeof path, "%s/llmc-mtp-XXXXXX.yaml", tmp && *tmp ? tmp : "/tmp");
	int fd = mkstemps(path, 5);
	if (fd < 0 || write(fd, description, strlen(description)) != (ssize_t)strlen(description))
		return NULL;
	close(fd);
	o.random_weights = true;
	o.n_threads = 1;
	o.device = "ref";
	o.set = set;
	llmc_status status = llmc_open(path, &o, &m, &err);
	unlink(path);
	if (status == LLMC_OK)
		return m;
	print_error("%s\n", err.text);
	return NULL;
}

static int
set_up_of(const char *description)
{
	whole = open_part(description, "mtp.part=none", NULL);
	model = open_part(description, "mtp.part=rows", NULL);
	head = open_part(description, "mtp.part=head", NULL);
	return whole && model && head ? 0 : 1;
}

static int
set_up(void **state)
{
	(void)state;
	return set_up_of(mixture);
}

static int
set_up_states(void **state)
{
	(void)state;
	return set_up_of(states);
}

static int
set_up_draft(void **state)
{
	(void)state;
	whole = open_part(mixture, "mtp.part=none", NULL);
	model = open_part(mixture, "mtp.part=rows", "mtp.from=[1, 2, 0]");
	head = open_part(draft, "mtp.part=draft", NULL);
	return whole && model && head ? 0 : 1;
}

static int
tear_down(void **state)
{
	(void)state;
	llmc_close(whole);
	llmc_close(model);
	llmc_close(head);
	return 0;
}

typedef struct TestEngine {
	llmc_session *s, *draft_session;
	Engine *e;
} TestEngine;

static llmc_session *
open_session(llmc_model *m, llmc_limits l)
{
	llmc_session *s;
	llmc_error err;

	if (llmc_session_open(m, &l, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

static TestEngine
open_engine(bool drafts, int32_t seqs, int32_t chunk, int64_t kv_tokens)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err;
	TestEngine b = { 0 };

	l.context = CONTEXT;
	l.seqs = seqs;
	l.chunk = chunk;
	l.kv_tokens = kv_tokens;
	l.n_threads = 1;
	o.limits = &l;
	o.speculate = drafts ? MAX_DRAFTS : -1;
	llmc_limits lim = engine_limits((drafts ? model : whole)->plan, &o);
	b.s = open_session(drafts ? model : whole, lim);
	if (engine_open(b.s->s, NULL, &o, &b.e, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	engine_set_check(b.e);
	if (!drafts)
		return b;
	lim.n_out = DRAFT_MAX_SEQS;
	b.draft_session = open_session(head, lim);
	if (engine_set_draft_model(b.e, b.draft_session->s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	engine_set_eager(b.e);
	return b;
}

static llmc_counts
close_engine(TestEngine b)
{
	llmc_counts c = LLMC_INIT(llmc_counts);

	assert_int_equal(engine_drain(b.e, -1, NULL), LLMC_OK);
	engine_counts(b.e, &c);
	assert_int_equal(c.running + c.waiting + c.preempted, 0);
	engine_close(b.e, 0);
	llmc_session_close(b.s);
	llmc_session_close(b.draft_session);
	return c;
}

typedef struct TestRequest {
	int32_t prompt[CONTEXT], n_prompt, choices;
	llmc_params p;
	int32_t output[CHOICES][MOST], n[CHOICES];
	int64_t id;
} TestRequest;

static uint32_t
roll(uint64_t *r, uint32_t n)
{
	*r ^= *r << 13;
	*r ^= *r >> 7;
	*r ^= *r << 17;
	return (uint32_t)(*r >> 20) % n;
}

static void
make_request(TestRequest *a, uint64_t *r)
{
	*a = (TestRequest){ .p = LLMC_INIT(llmc_params),
		            .n_prompt = 1 + (int32_t)roll(r, 60),
		            .choices = 1 + (int32_t)roll(r, CHOICES) };
	/* some requests share a prefix that is longer than a page */
	const int32_t alike = roll(r, 2) ? 40 : 0;
	for (int32_t i = 0; i < a->n_prompt; i++)
		a->prompt[i] = i < alike ? i * 7 % VOCAB : (int32_t)roll(r, VOCAB);
	a->p.max_tokens = 1 + (int32_t)roll(r, MOST);
	a->p.ignore_eos = roll(r, 3) > 0;
	a->p.seed = roll(r, 1000);
	a->p.temperature = roll(r, 3) ? 0.8f : 0;
	a->p.repetition_penalty = roll(r, 3) ? 1 : 1.2f;
}

static void
submit(TestEngine b, TestRequest *a)
{
	llmc_request q = LLMC_INIT(llmc_request);
	llmc_error err;

	q.tok = a->prompt;
	q.n_tok = (size_t)a->n_prompt;
	q.params = &a->p;
	q.n = a->choices;
	if (engine_submit(b.e, &q, &a->id, &err) != LLMC_OK)
		fail_msg("%s", err.text);
}

static void
gather(TestEngine b, TestRequest *a)
{
	llmc_event ev = LLMC_INIT(llmc_event);

	memset(a->n, 0, sizeof a->n);
	do {
		assert_int_equal(engine_next(b.e, a->id, -1, &ev, NULL), LLMC_OK);
		if (ev.kind == LLMC_EVENT_ERROR)
			fail_msg("%s", ev.text);
		if (ev.kind == LLMC_EVENT_TOKEN)
			a->output[ev.index][a->n[ev.index]++] = ev.token;
	} while (!ev.last);
	llmc_event_release(&ev);
}

/* Return input rows of the head: n rows of the model, or of the head itself */
static const float *
joined(const float *row, int32_t n, bool own)
{
	static float came[CONTEXT * 4 * HIDDEN];
	const int64_t in = plan_row_width(head->plan),
	              width = plan_rows_width((own ? head : model)->plan),
	              at = own ? head->plan->draft.own_at : 0;

	memset(came, 0, sizeof came);
	for (int32_t i = 0; i < n; i++)
		memcpy(came + i * in + at, row + i * width, (size_t)width * sizeof *came);
	return came;
}

/* The draft tokens of one sequence equal those of a session with only the head. */
static void
draft_tokens_equal_the_heads(void **state)
{
	static float rows[CONTEXT * 3 * HIDDEN], own[CONTEXT * HIDDEN], logits[VOCAB];
	static TestRequest a;
	int32_t text[CONTEXT], n;
	llmc_counts want = { 0 };
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_seq q, h;
	llmc_error err;
	uint64_t r = 99;

	(void)state;
	for (int round = 0; round < 6; round++) {
		make_request(&a, &r);
		a.choices = 1;
		a.n_prompt = round ? a.n_prompt : 1;
		a.p.ignore_eos = true;
		a.p.max_tokens = 40 + round;
		TestEngine b = open_engine(true, 2, round % 2 ? 512 : 16, 0);
		submit(b, &a);
		gather(b, &a);
		llmc_counts got = close_engine(b);

		want = (llmc_counts){ 0 };
		n = a.n_prompt + a.n[0];
		memcpy(text, a.prompt, (size_t)a.n_prompt * sizeof *text);
		memcpy(text + a.n_prompt, a.output[0], (size_t)a.n[0] * sizeof *text);
		l.context = CONTEXT;
		l.n_threads = 1;
		llmc_session *m = open_session(model, l), *s = open_session(head, l);
		assert_int_equal(llmc_seq_new(m, CONTEXT, &q, NULL), LLMC_OK);
		assert_int_equal(llmc_seq_new(s, CONTEXT, &h, NULL), LLMC_OK);
		assert_int_equal(
		    llmc_forward_rows(m, &(llmc_chunk){ .seq = q, .tok = text, .n_tok = n }, 1,
		                      NULL, NULL, rows, &err),
		    LLMC_OK);
		for (int32_t k = a.n_prompt + 1, read = 0, again = 0; k < n;) {
			int32_t left = n - 1 - k, most = left < MAX_DRAFTS ? left : MAX_DRAFTS,
			        right = 0, id = -1;
			bool wrong = false;
			if (most > draft_rows(model->plan) - again - 1)
				most = draft_rows(model->plan) - again - 1;
			if (most > k - 1 - again -
			               /* at most as many rows as preceding positions */
			               (again + 1))
				most = k - 1 - again - (again + 1);
			for (int32_t g = 0; g < most; g++) {
				const int32_t from = g ? k - 1 + g : read,
				              count = g ? 1 : k - 1 - read;
				llmc_chunk c = { .seq = h,
					         .tok = g ? &id : text + from + 1,
					         .n_tok = count,
					         .n_out = 1 };
				const float *came =
				    g ? joined(own, 1, true)
				      : joined(rows + from * plan_rows_width(model->plan), count,
				               false);
				const int64_t width = plan_rows_width(head->plan);
				if (llmc_forward_rows(s, &c, 1, came, logits, own, &err) != LLMC_OK)
					fail_msg("%s", err.text);
				memmove(own, own + (count - 1) * width,
				        (size_t)width * sizeof *own);
				id = 0;
				for (int32_t i = 1; i < VOCAB; i++)
					id = logits[i] > logits[id] ? i : id;
				wrong |= text[k + g] != id;
				if (!wrong)
					want.accepted_at[right++]++;
			}
			if (most > 0) {
				read = k - 1;
				assert_int_equal(llmc_seq_trim(s, h, read, NULL), LLMC_OK);
				want.drafts++;
				want.drafted += (uint64_t)most;
				want.accepted += (uint64_t)right;
			}
			again = right < most && plan_has_state(model->plan)
			            ? again + right + 1
			            : 0; /* rows that the next step recomputes before its own */
			k += right + 1;
		}
		llmc_session_close(m);
		llmc_session_close(s);
		assert_int_equal(got.drafts, want.drafts);
		assert_int_equal(got.drafted, want.drafted);
		assert_int_equal(got.accepted, want.accepted);
		assert_memory_equal(got.accepted_at, want.accepted_at, sizeof want.accepted_at);
	}
}

/* Many requests with several choices run at once in little memory; each gets the answer that it
 * gets alone and without drafts. */
static void
output_is_unchanged_by_draft_tokens(void **state)
{
	enum { CROWD = 14 };
	static const struct {
		int32_t seqs, chunk;
		int64_t kv;
	} with[] = { { 6, 128, 0 }, { 8, 24, 192 }, { 12, 64, 256 } };
	static TestRequest alone[CROWD], now;
	uint64_t r = 20261123;

	(void)state;
	TestEngine plain = open_engine(false, 4, 64, 0);
	for (int i = 0; i < CROWD; i++) {
		make_request(&alone[i], &r);
		submit(plain, &alone[i]);
		gather(plain, &alone[i]);
	}
	llmc_counts none = close_engine(plain);
	assert_int_equal(none.drafts, 0);
	for (size_t w = 0; w < sizeof with / sizeof *with; w++) {
		TestEngine b = open_engine(true, with[w].seqs, with[w].chunk, with[w].kv);
		engine_pause(b.e, true);
		for (int i = 0; i < CROWD; i++)
			submit(b, &alone[i]);
		engine_pause(b.e, false);
		for (int i = 0; i < CROWD; i++) {
			now = alone[i];
			gather(b, &now);
			assert_memory_equal(now.n, alone[i].n, sizeof now.n);
			for (int k = 0; k < now.choices; k++)
				assert_memory_equal(now.output[k], alone[i].output[k],
				                    (size_t)now.n[k] * sizeof **now.output);
		}
		llmc_counts c = close_engine(b);
		assert_true(c.drafts > 0 && c.accepted > 0 && c.accepted < c.drafted);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(draft_tokens_equal_the_heads),
		cmocka_unit_test(output_is_unchanged_by_draft_tokens),
	};
	int failed = cmocka_run_group_tests(tests, set_up, tear_down);
	failed = failed ? failed : cmocka_run_group_tests(tests, set_up_states, tear_down);
	return failed ? failed : cmocka_run_group_tests(tests, set_up_draft, tear_down);
}
