/* The engine on a compiled tiny model: many concurrent requests, with cancels, preemption, prefix
 * hits, choices and seeds, get the tokens that each of them gets alone. Rejected, cancelled, late
 * or broken requests do not affect others and leak nothing. All tests are in one file because they
 * use the same requests. Running each of these alone takes longest, and is done once per model. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api.h"
#include "runtime/draft/draft.h"
#include "runtime/engine/engine.h"
#include "tests/unit/alone.h"
#include "tests/unit/tiny_grammar.h"
#include "tests/unit/waiting.h"

enum { VOCAB = 300, MOST = 256, CONTEXT = 160, CROWD = 64 };

static const llmc_model *crowd_of; /* model that `crowd` was computed with */
/* draft_model: a separate model if the model has recurrent states */
static llmc_model *model, *draft_model;
/* quick: LLMC_TEST_QUICK, under sanitizers: only tests with threads; reduced: minimal rounds,
 * without LLMC_CHECK_ALL */
static bool quick, reduced;
static int n_crowd = CROWD;

static llmc_model *
opened(const char *path)
{
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model *m = NULL;
	llmc_error err;

	o.random_weights = true;
	o.n_threads = 2;
	o.arch = getenv("LLMC_TEST_ARCH");
	if (llmc_open(path, &o, &m, &err) != LLMC_OK)
		print_error("%s\n", err.text);
	return m;
}

static int
set_up(void **state)
{
	(void)state;
	model = draft_model = opened("configs/tiny.yaml");
	return !model;
}

static int
set_up_states(void **state)
{
	(void)state;
	model = opened("tests/unit/tiny_states.yaml");
	draft_model = opened("configs/tiny.yaml");
	return !model || !draft_model;
}

static int
set_up_latents(void **state)
{
	(void)state;
	model = opened("tests/unit/tiny_latents.yaml");
	draft_model = opened("configs/tiny.yaml");
	return !model || !draft_model;
}

static int
tear_down(void **state)
{
	(void)state;
	if (draft_model != model)
		llmc_close(draft_model);
	llmc_close(model);
	crowd_of = NULL; /* forget the model, because the next one may get its address */
	return 0;
}

/* The size is returned even if the buffer is too small or NULL, as documented in llmc.h. */
static void
llmc_get_reports_the_needed_size(void **state)
{
	size_t need = 0;
	llmc_error err;
	char buf[8];

	(void)state;
	assert_int_equal(llmc_get(model, "name", NULL, 0, &need, &err), LLMC_E_RANGE);
	assert_int_equal(need, strlen("tiny"));
	assert_int_equal(llmc_get(model, "name", buf, need, &need, &err), LLMC_E_RANGE);
	assert_int_equal(llmc_get(model, "name", buf, need + 1, &need, &err), LLMC_OK);
	assert_string_equal(buf, "tiny");
}

typedef struct TestEngine {
	llmc_session *s;
	Engine *e;
} TestEngine; /* an engine that checks its invariants */

static TestEngine
open_engine(int32_t seqs, int32_t chunk, int64_t kv_tokens, const llmc_engine_options *more)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err;
	TestEngine b;

	if (more)
		o = *more;
	o.limits = &l;
	l.context = CONTEXT;
	l.seqs = seqs;
	l.chunk = chunk;
	l.kv_tokens = kv_tokens;
	l.n_threads = 2;
	llmc_limits lim = engine_limits(model->plan, &o);
	if (llmc_session_open(model, &lim, &b.s, &err) != LLMC_OK ||
	    engine_open(b.s->s, NULL, &o, &b.e, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	engine_set_check(b.e);
	return b;
}

static llmc_counts
counts(TestEngine b)
{
	llmc_counts c = LLMC_INIT(llmc_counts);

	engine_counts(b.e, &c);
	return c;
}

/* Drain and close; all pages and memory must have been released. */
static void
close_engine(TestEngine b)
{
	llmc_counts c;

	assert_int_equal(engine_drain(b.e, -1, NULL), LLMC_OK);
	c = counts(b);
	assert_int_equal(c.running + c.waiting + c.preempted, 0);
	assert_int_equal(c.kv_pages_used, 0);
	assert_int_equal(c.swap_bytes_used, 0);
	assert_int_equal(c.batch_max_tokens, 0);
	engine_close(b.e, 0);
	llmc_session_close(b.s);
}

typedef struct TestRequest {
	int32_t prompt[CONTEXT], n_prompt;
	llmc_params p;
	int32_t want[MOST], n_want;
	llmc_finish finish;
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
run_alone(TestRequest *a)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *s;

	l.context = CONTEXT;
	l.n_threads = 1;
	assert_int_equal(llmc_session_open(model, &l, &s, NULL), LLMC_OK);
	a->n_want = alone_generate(s, a->prompt, a->n_prompt, &a->p, a->want, &a->finish);
	llmc_session_close(s);
}

/* Samplers with a history or a state of their own. */
static void
choose_samplers(llmc_params *p, uint64_t *r)
{
	p->temperature = 0.9f;
	switch (roll(r, 5)) {
	case 0:
		p->mirostat = 1 + (int32_t)roll(r, 2);
		p->mirostat_tau = 3;
		p->mirostat_eta = 0.4f;
		break;
	case 1:
		p->dry_multiplier = 1.5f;
		p->temperature = roll(r, 2) ? 0 : p->temperature;
		break;
	case 2:
		p->repetition_penalty = 1.4f;
		p->presence_penalty = 0.3f;
		p->repeat_last_n = 9;
		p->temperature = 0;
		break;
	case 3:
		p->xtc_probability = 0.5f;
		p->xtc_threshold = 0.02f;
		break;
	default:
		p->top_n_sigma = 1.5f;
		p->dynatemp_range = 0.5f;
		break;
	}
}

static void
make_request(TestRequest *a, uint64_t *r)
{
	uint32_t family = roll(r, 3);

	a->p = LLMC_INIT(llmc_params);
	a->n_prompt = 1 + (int32_t)roll(r, roll(r, 3) ? 60 : 100);
	int32_t same = roll(r, 2) ? a->n_prompt : (int32_t)roll(r, (uint32_t)a->n_prompt + 1);
	/* fill the whole context, because tests may lengthen the prompt */
	for (int32_t i = 0; i < CONTEXT; i++)
		a->prompt[i] = 3 + (i < same ? (int32_t)((family + 7) * (uint32_t)(i + 3) % 290)
		                             : (int32_t)roll(r, 290));
	a->p.max_tokens = 1 + (int32_t)roll(r, 60) + (roll(r, 2) ? 0 : (int32_t)roll(r, 90));
	a->p.ignore_eos = roll(r, 2);
	a->p.seed = roll(r, 1000);
	switch (roll(r, 5)) {
	case 0:
		a->p.temperature = 0.9f;
		a->p.top_p = 0.95f;
		break;
	case 2:
		choose_samplers(&a->p, r);
		break;
	case 1:
		a->p.repetition_penalty = 1.3f;
		a->p.frequency_penalty = 0.2f;
		break;
	default: /* greedy */
		break;
	}
}

/* A greedy request with a prompt of n_prompt tokens (0: as generated). */
static TestRequest
greedy_request(uint64_t seed, int32_t n_prompt, int32_t max_tokens, bool ignore_eos)
{
	TestRequest a;

	make_request(&a, &seed);
	a.n_prompt = n_prompt ? n_prompt : a.n_prompt;
	a.p = LLMC_INIT(llmc_params);
	a.p.max_tokens = max_tokens;
	a.p.ignore_eos = ignore_eos;
	return a;
}

static llmc_request
request(const TestRequest *a)
{
	llmc_request r = LLMC_INIT(llmc_request);

	r.tok = a->prompt;
	r.n_tok = (size_t)a->n_prompt;
	r.params = &a->p;
	return r;
}

static int64_t
submit(TestEngine b, const llmc_request *r)
{
	llmc_error err;
	int64_t id;

	if (engine_submit(b.e, r, &id, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	assert_true(id > 0);
	return id;
}

/* next: read the next event of a request; last: read until its last event. */
static void
next(TestEngine b, int64_t id, llmc_event *ev)
{
	assert_int_equal(engine_next(b.e, id, -1, ev, NULL), LLMC_OK);
}

static void
last(TestEngine b, int64_t id, llmc_event *ev)
{
	do
		next(b, id, ev);
	while (!ev->last);
}

static TestRequest crowd[CROWD];

static void
make_crowd(void)
{
	uint64_t r = 88172645463325252u;

	if (crowd_of == model)
		return;
	crowd_of = model;
	for (int i = 0; i < n_crowd; i++) {
		make_request(&crowd[i], &r);
		run_alone(&crowd[i]);
	}
}

/* Read all events of a request and compare; cancel it after so many tokens (-1: never). */
static bool
follow(TestEngine b, int64_t id, const TestRequest *a, int32_t cancel_after, char *why, size_t cap)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err;
	int32_t n = 0;
	bool ok = true;

	if (cancel_after == 0)
		engine_cancel(b.e, id, false);
	do {
		if (engine_next(b.e, id, -1, &ev, &err) != LLMC_OK || ev.kind == LLMC_EVENT_ERROR) {
			snprintf(why, cap, "%.200s",
			         ev.kind == LLMC_EVENT_ERROR ? ev.text : err.text);
			ok = false;
			break;
		}
		if (ev.kind == LLMC_EVENT_TOKEN) {
			if (n >= a->n_want || ev.token != a->want[n]) {
				snprintf(why, cap, "request %lld, token %d: %d, alone %d",
				         (long long)id, n, ev.token, a->want[n]);
				ok = false;
			}
			if (++n == cancel_after)
				engine_cancel(b.e, id, false);
		}
	} while (!ev.last);
	if (ok && (ev.kind != LLMC_EVENT_FINISH || ev.n_new != n ||
	           (ev.finish == LLMC_FINISH_CANCEL ? cancel_after < 0
	                                            : ev.finish != a->finish || n != a->n_want))) {
		snprintf(why, cap, "request %lld ended as %d after %d tokens, alone as %d after %d",
		         (long long)id, (int)ev.finish, n, (int)a->finish, a->n_want);
		ok = false;
	}
	llmc_event_release(&ev);
	return ok;
}

typedef struct Client {
	TestEngine b;
	int first, step;
	char why[256];
	bool ok;
	pthread_t thread;
} Client;

static void *
client(void *user)
{
	Client *c = user;
	int64_t id[CROWD];
	int n = 0;

	c->ok = true;
	for (int i = c->first; i < n_crowd; i += c->step) {
		llmc_request r = request(&crowd[i]);
		if (engine_submit(c->b.e, &r, &id[n++], NULL) != LLMC_OK)
			c->ok = false;
	}
	n = 0;
	for (int i = c->first; i < n_crowd && c->ok; i += c->step)
		c->ok = follow(c->b, id[n++], &crowd[i], i % 5 == 3 ? i % 17 : -1, c->why,
		               sizeof c->why);
	return NULL;
}

/* Four threads submit requests and cancel every fifth one at some point. Then all requests are
 * submitted before the first step. */
static void
concurrent_requests_equal_single_ones(void **state)
{
	static const struct {
		int32_t seqs, chunk;
		int64_t kv, swap;
		bool no_prefix;
	} with[] = {
		{ 16, 128, 4 * CONTEXT, 0, false },
		{ 8, 24, 192, 1 << 20, false },
		{ 12, 512, 224, 0, true },
	};

	(void)state;
	make_crowd();
	for (size_t w = 0; w < sizeof with / sizeof *with; w++) {
		llmc_engine_options o = LLMC_INIT(llmc_engine_options);
		if (quick && w != 1)
			continue;
		o.swap_bytes = with[w].swap;
		o.no_prefix_cache = with[w].no_prefix;
		Client c[4];
		TestEngine b = open_engine(with[w].seqs, with[w].chunk, with[w].kv, &o);
		for (int i = 0; i < 4; i++) {
			c[i] = (Client){ .b = b, .first = i, .step = 4 };
			assert_int_equal(pthread_create(&c[i].thread, NULL, client, &c[i]), 0);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(c[i].thread, NULL);
		for (int i = 0; i < 4; i++)
			if (!c[i].ok)
				fail_msg("engine %zu: %s", w, c[i].why);
		int64_t id[CROWD];
		char why[256];
		engine_pause(b.e, !quick);
		for (int i = 0; i < n_crowd && !quick; i++) {
			llmc_request r = request(&crowd[i]);
			id[i] = submit(b, &r);
		}
		engine_pause(b.e, false);
		for (int i = quick ? 0 : n_crowd; i-- > 0;)
			if (!follow(b, id[i], &crowd[i], -1, why, sizeof why))
				fail_msg("engine %zu: %s", w, why);
		llmc_counts n = counts(b);
		print_message(
		    "%llu steps, %llu preemptions, %llu swaps, %llu of %llu prompt tokens cached\n",
		    (unsigned long long)n.steps, (unsigned long long)n.preemptions,
		    (unsigned long long)n.swaps_in, (unsigned long long)n.prefix_hits,
		    (unsigned long long)n.prefix_queries);
		assert_true(w == 0 || quick || n.preemptions > 0);
		assert_true(with[w].no_prefix ? n.prefix_hits == 0 : quick || n.prefix_hits > 0);
		assert_int_equal(n.requests, quick ? n_crowd : 2 * n_crowd);
		assert_int_equal(n.request_s.n, n.requests);
		close_engine(b);
	}
}

/* Grammar masks do not depend on whether a separate thread computes them during the step, or the
 * engine after the step. */
static void
masks_made_ahead_change_nothing(void **state)
{
	enum { N = 24 };
	static TestRequest requests[N];
	Grammar *g[3] = { tiny_grammar("([a-f][0-4]){3,40}"),
		          tiny_grammar("(a0|b1|([x-z][0-9])*q2){1,30}"),
		          tiny_grammar("([a-m]3|[n-z][1-9])*") };
	uint64_t r = 4711;

	(void)state;
	for (int i = 0; i < N; i++) {
		make_request(&requests[i], &r);
		requests[i].p.grammar = i % 4 == 3 ? NULL : g[i % 4];
		run_alone(&requests[i]);
	}
	for (int ahead = 0; ahead < 2; ahead++) {
		llmc_engine_options o = LLMC_INIT(llmc_engine_options);
		int64_t id[N];
		char why[256];
		o.swap_bytes = 1 << 20;
		TestEngine b = open_engine(8, 64, 4 * CONTEXT, &o);
		assert_int_equal(engine_set_mask_thread(b.e, ahead, NULL), LLMC_OK);
		engine_pause(b.e, true);
		for (int i = 0; i < N; i++) {
			llmc_request q = request(&requests[i]);
			id[i] = submit(b, &q);
		}
		engine_pause(b.e, false);
		for (int i = 0; i < N; i++)
			if (!follow(b, id[i], &requests[i], i % 7 == 5 ? 3 : -1, why, sizeof why))
				fail_msg("%s: %s", ahead ? "ahead" : "behind", why);
		close_engine(b);
	}
	for (int i = 0; i < 3; i++)
		grammar_close(g[i]);
}

/* Choice i samples with seed + i; best_of returns the most likely choices, best first. */
static void
choices_sample_with_their_own_seeds(void **state)
{
	enum { N = 5 };
	static TestRequest each[N];
	TestEngine b = open_engine(8, 64, 12 * 32, NULL);
	llmc_event ev = LLMC_INIT(llmc_event);
	int32_t n[N] = { 0 }, ended = 0;
	double mean[N];

	(void)state;
	for (int i = 0; i < N; i++) {
		each[i] = greedy_request(5, 45, 40, false);
		each[i].p.temperature = 1;
		each[i].p.seed = 77 + (uint64_t)i;
		run_alone(&each[i]);
	}
	llmc_request q = request(&each[0]);
	q.n = N;
	q.logprobs = true;
	int64_t id = submit(b, &q);
	do {
		next(b, id, &ev);
		if (ev.kind == LLMC_EVENT_TOKEN) {
			assert_int_equal(ev.token, each[ev.index].want[n[ev.index]++]);
			assert_true(ev.logprob < 0);
		} else {
			assert_int_equal(ev.kind, LLMC_EVENT_FINISH);
			assert_int_equal(ev.n_new, each[ev.index].n_want);
			mean[ev.index] = ev.sum_logprob / ev.n_new;
			ended++;
		}
	} while (!ev.last);
	assert_int_equal(ended, N);
	q.n = 2;
	q.best_of = N;
	q.logprobs = false;
	id = submit(b, &q);
	double best[2] = { 0 };
	do {
		next(b, id, &ev);
		assert_in_range(ev.index, 0, 1);
		if (ev.kind == LLMC_EVENT_FINISH)
			best[ev.index] = ev.sum_logprob / ev.n_new;
	} while (!ev.last);
	int above[2] = { 0 };
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < N; i++)
			above[k] += mean[i] > best[k];
	assert_int_equal(above[0], 0);
	assert_int_equal(above[1], 1);
	llmc_event_release(&ev);
	close_engine(b);
}

/* ---- draft tokens ---- */

enum { CHOICES = 3, TOPS = 2 };

typedef struct ChoiceOutput {
	int32_t tok[MOST], n;
	float logprob[MOST];
	llmc_logprob top[MOST][TOPS];
	llmc_finish finish;
} ChoiceOutput;

typedef struct DraftSource {
	const ChoiceOutput *outputs;
	int32_t n_prompt;
	uint64_t random;
} DraftSource;

/* Draft the continuation of one of the choices, with one token in five wrong, and sometimes
 * nothing. */
static int32_t
draft_with_errors(void *user, const int32_t *tok, int32_t n, int32_t *out, int32_t most)
{
	DraftSource *t = user;
	int32_t at = n - t->n_prompt;

	for (int k = 0; k < CHOICES; k++) {
		const ChoiceOutput *s = &t->outputs[k];
		if (at > s->n || memcmp(s->tok, tok + t->n_prompt, (size_t)at * sizeof *tok))
			continue;
		most = (int32_t)roll(&t->random, (uint32_t)most + 1);
		for (int32_t i = 0; i < most; i++)
			out[i] = roll(&t->random, 5) && at + i < s->n
			             ? s->tok[at + i]
			             : (int32_t)roll(&t->random, VOCAB);
		return most;
	}
	return 0;
}

static void
collect_choices(TestEngine b, const llmc_request *q, ChoiceOutput outputs[CHOICES])
{
	llmc_event ev = LLMC_INIT(llmc_event);
	int64_t id = submit(b, q);

	for (int k = 0; k < CHOICES; k++)
		outputs[k].n = 0;
	do {
		next(b, id, &ev);
		ChoiceOutput *s = &outputs[ev.index];
		if (ev.kind == LLMC_EVENT_TOKEN) {
			s->tok[s->n] = ev.token;
			for (int i = 0; i < ev.n_top; i++)
				s->top[s->n][i] = ev.top[i];
			s->logprob[s->n++] = ev.logprob;
		} else if (ev.kind == LLMC_EVENT_FINISH) {
			s->finish = ev.finish;
		} else if (ev.kind == LLMC_EVENT_ERROR) {
			fail_msg("%s", ev.text);
		}
	} while (!ev.last);
	llmc_event_release(&ev);
}

/* Tokens and logprobs are the same, bit for bit, whatever is drafted: greedy, sampled, with
 * penalties and bad words, with several choices, at stop tokens and at the last token that fits. */
static void
draft_tokens_change_nothing(void **state)
{
	static ChoiceOutput off[CHOICES], on[CHOICES];
	llmc_engine_options none = LLMC_INIT(llmc_engine_options);
	const llmc_sequence bad[] = { { (const int32_t[]){ 20, 21 }, 2 },
		                      { (const int32_t[]){ 30 }, 1 } };
	const llmc_bias bias[] = { { 40, 3 }, { 41, -5 } };
	DraftSource t = { .outputs = off, .random = 12345 };
	int rounds = reduced ? 6 : getenv("LLMC_CHECK_ALL") ? 400 : 24;
	uint64_t r = 4242;

	(void)state;
	none.speculate = -1;
	TestEngine a = open_engine(4, 40, 0, &none), b = open_engine(4, 40, 0, NULL);
	engine_set_draft_fn(b.e, draft_with_errors, &t);
	for (int i = 0; i < rounds; i++) {
		int32_t stop;
		TestRequest k;
		make_request(&k, &r);
		llmc_request q = request(&k);
		q.n = 1 + (int32_t)roll(&r, CHOICES);
		q.logprobs = roll(&r, 2);
		q.n_top = q.logprobs ? TOPS : 0;
		if (roll(&r, 2)) {
			k.p.bad_words = bad;
			k.p.n_bad_words = 2;
			k.p.logit_bias = bias;
			k.p.n_logit_bias = 2;
			k.p.min_tokens = (int32_t)roll(&r, 20);
		}
		collect_choices(a, &q, off);
		if (off[0].n > 4 && roll(&r, 2)) { /* ends within a draft */
			stop = off[0].tok[off[0].n / 2];
			k.p.stop_tokens = &stop;
			k.p.n_stop_tokens = 1;
			collect_choices(a, &q, off);
		}
		t.n_prompt = k.n_prompt;
		collect_choices(b, &q, on);
		for (int32_t c = 0; c < q.n; c++) {
			assert_int_equal(on[c].n, off[c].n);
			assert_int_equal(on[c].finish, off[c].finish);
			assert_memory_equal(on[c].tok, off[c].tok,
			                    (size_t)on[c].n * sizeof *on[c].tok);
			assert_memory_equal(on[c].logprob, off[c].logprob,
			                    (size_t)on[c].n * sizeof *on[c].logprob);
			assert_memory_equal(on[c].top, off[c].top,
			                    q.n_top ? (size_t)on[c].n * sizeof *on[c].top : 0);
		}
	}
	llmc_counts n = counts(b), plain = counts(a);
	assert_true(n.accepted > 100 && n.drafted > n.accepted && n.drafts > 20);
	assert_true(n.accepted_at[0] > n.accepted_at[1] && n.accepted_at[1] > n.accepted_at[5] &&
	            n.accepted_at[5] > 0);
	assert_true(n.steps < plain.steps);
	assert_int_equal(plain.drafts + plain.drafted, 0);
	close_engine(a);
	close_engine(b);
}

/* Rows of a sequence that is shorter than the limit of draft rows use the single-row form of
 * attention, also when they are recomputed. */
static void
short_sequences_keep_their_attention_form(void **state)
{
	static ChoiceOutput off[CHOICES], on[CHOICES];
	llmc_engine_options none = LLMC_INIT(llmc_engine_options);
	DraftSource t = { .outputs = off, .random = 77 };

	(void)state;
	none.speculate = -1;
	TestEngine a = open_engine(4, 40, 0, &none), b = open_engine(4, 40, 0, NULL);
	engine_set_draft_fn(b.e, draft_with_errors, &t);
	for (int32_t n = 1; n <= (reduced ? 8 : 24); n++) {
		TestRequest k =
		    greedy_request(88172645463325252u + (uint64_t)n, 1 + n % 6, 24, true);
		llmc_request q = request(&k);
		q.logprobs = true;
		t.n_prompt = k.n_prompt;
		collect_choices(a, &q, off);
		collect_choices(b, &q, on);
		assert_int_equal(on[0].n, off[0].n);
		assert_memory_equal(on[0].tok, off[0].tok, (size_t)on[0].n * sizeof *on[0].tok);
		assert_memory_equal(on[0].logprob, off[0].logprob,
		                    (size_t)on[0].n * sizeof *on[0].logprob);
	}
	assert_true(counts(b).accepted > 100);
	close_engine(a);
	close_engine(b);
}

/* Drafts from the known answers of the crowd's requests that have this prefix; `wrong` of five
 * tokens are wrong */
typedef struct CrowdDrafts {
	uint64_t random;
	uint32_t wrong;
} CrowdDrafts;

static int32_t
draft_from_crowd(void *user, const int32_t *tok, int32_t n, int32_t *out, int32_t most)
{
	CrowdDrafts *t = user;

	for (int k = 0; k < n_crowd; k++) {
		const TestRequest *a = &crowd[k];
		const int32_t at = n - a->n_prompt;
		if (at < 0 || at > a->n_want ||
		    memcmp(a->prompt, tok, (size_t)a->n_prompt * sizeof *tok) ||
		    memcmp(a->want, tok + a->n_prompt, (size_t)at * sizeof *tok))
			continue;
		most = (int32_t)roll(&t->random, (uint32_t)most + 1);
		for (int32_t i = 0; i < most; i++)
			out[i] = roll(&t->random, 5) >= t->wrong && at + i < a->n_want
			             ? a->want[at + i]
			             : (int32_t)roll(&t->random, VOCAB);
		return most;
	}
	return 0;
}

/* Draft tokens, accepted and rejected, in steps of many sequences: fewer marks than sequences, few
 * pages, chunks smaller than a recomputed draft, cancelled and preempted requests. */
static void
concurrent_requests_with_draft_tokens(void **state)
{
	static const struct {
		int32_t seqs, chunk, n_out, marks;
		int64_t kv, swap;
		uint32_t wrong;
		bool no_prefix;
	} with[] = {
		{ 8, 40, 0, 0, 3 * CONTEXT, 0, 1, false }, { 8, 24, 0, 2, 192, 1 << 20, 1, false },
		{ 6, 10, 9, 3, 256, 1 << 20, 2, false },   { 3, 40, 0, 0, 224, 0, 1, true },
		{ 1, 40, 3, 0, CONTEXT, 0, 2, false },
	};

	(void)state;
	make_crowd();
	for (size_t w = 0; w < sizeof with / sizeof *with; w++) {
		llmc_engine_options o = LLMC_INIT(llmc_engine_options);
		llmc_limits l = LLMC_INIT(llmc_limits);
		if (reduced && w != 1)
			continue;
		CrowdDrafts t = { .random = 991 + w, .wrong = with[w].wrong };
		llmc_error err;
		int64_t id[CROWD];
		char why[256];
		TestEngine b;
		o.limits = &l;
		o.swap_bytes = with[w].swap;
		o.no_prefix_cache = with[w].no_prefix;
		l.context = CONTEXT;
		l.seqs = with[w].seqs;
		l.chunk = with[w].chunk;
		l.n_out = with[w].n_out;
		l.marks = with[w].marks;
		l.kv_tokens = with[w].kv;
		l.n_threads = 2;
		llmc_limits lim = engine_limits(model->plan, &o);
		if (llmc_session_open(model, &lim, &b.s, &err) != LLMC_OK ||
		    engine_open(b.s->s, NULL, &o, &b.e, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		engine_set_check(b.e);
		engine_set_draft_fn(b.e, draft_from_crowd, &t);
		engine_pause(b.e, true);
		for (int i = 0; i < n_crowd; i++) {
			llmc_request r = request(&crowd[i]);
			id[i] = submit(b, &r);
		}
		engine_pause(b.e, false);
		for (int i = 0; i < n_crowd; i++)
			if (!follow(b, id[i], &crowd[i], i % 5 == 3 ? i % 17 : -1, why, sizeof why))
				fail_msg("engine %zu: %s", w, why);
		llmc_counts n = counts(b);
		print_message("%llu steps, %llu preemptions, %llu swaps, %llu of %llu guesses "
		              "right, %llu of %llu prompt tokens cached\n",
		              (unsigned long long)n.steps, (unsigned long long)n.preemptions,
		              (unsigned long long)n.swaps_in, (unsigned long long)n.accepted,
		              (unsigned long long)n.drafted, (unsigned long long)n.prefix_hits,
		              (unsigned long long)n.prefix_queries);
		assert_true(n.accepted > 20 && n.drafted > n.accepted);
		close_engine(b);
	}
}

/* The model itself, or another one, drafts in a session that has memory for only two of eight
 * sequences. The answers do not depend on whether a sequence finds memory in that session, is
 * cancelled, or is preempted. */
static void
a_draft_model_changes_nothing(void **state)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *draft_session;
	llmc_error err;
	int64_t id[CROWD];
	char why[256];

	(void)state;
	make_crowd();
	for (int lone = 0; lone < (reduced ? 1 : 2); lone++) {
		TestEngine b = open_engine(lone ? 1 : 4, 40, 192, NULL);
		l.context = 128; /* less than the lengths of the sequences */
		l.seqs = 4;
		l.chunk = 24;
		l.n_out = DRAFT_MAX_SEQS;
		l.kv_tokens = 160;
		l.n_threads = 1;
		if (llmc_session_open(draft_model, &l, &draft_session, &err) != LLMC_OK ||
		    engine_set_draft_model(b.e, draft_session->s, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		int n = getenv("LLMC_CHECK_ALL") ? CROWD : reduced ? 6 : 16;
		for (int i = 0; i < n; i++) {
			llmc_request r = request(&crowd[i]);
			id[i] = submit(b, &r);
		}
		for (int i = 0; i < n; i++)
			if (!follow(b, id[i], &crowd[i], i % 5 == 3 ? i % 17 : -1, why, sizeof why))
				fail_msg("%s", why);
		assert_true(counts(b).drafts > 0);
		close_engine(b);
		llmc_stats st = LLMC_INIT(llmc_stats);
		llmc_session_stats(draft_session, &st);
		assert_int_equal(st.kv_pages_used, 0);
		llmc_session_close(draft_session);
	}
}

/* A phrase repeated to 200 tokens is found, and its acceptance estimate rises. */
static void
prompt_lookup_drafts_repetitions(void **state)
{
	enum { PERIOD = 7, N = 200 };
	Draft *d = draft_new(N + 40);
	Drafter of = { 0 };
	int32_t tok[N + 40];

	(void)state;
	assert_non_null(d);
	for (int32_t i = 0; i < N + 40; i++)
		tok[i] = 100 + i % PERIOD;
	drafter_record_step(&of, 1, false, 1);
	for (int32_t n = 1; n < N; n++) {
		draft_look_up(d, &of, tok, n, DRAFT_MOST);
		assert_true(n < PERIOD + 2 ? d->n == 0 : d->n > 0);
		for (int32_t i = 0; i < d->n; i++)
			assert_int_equal(d->tok[i], tok[n + i]);
		draft_update(d, &of, tok + n, 3);
	}
	draft_look_up(d, &of, tok, N, DRAFT_MOST);
	assert_int_equal(d->n, DRAFT_MOST);
	assert_true(d->odds_at[0] > 0.9f);
	/* if rows cost almost nothing, all are used; if each costs a step, none */
	for (int32_t rows = 2; rows <= DRAFT_ROWS; rows++)
		drafter_record_step(&of, rows, true, 1 + 0.01 * rows);
	drafter_choose_length(&of, &d, 1, 1, 0, DRAFT_MOST);
	assert_int_equal(d->run, DRAFT_MOST);
	drafter_choose_length(&of, &d, 1, 1, 0, 4);
	assert_int_equal(d->run, 4);
	for (int k = 0; k < 600; k++)
		for (int32_t rows = 2; rows <= DRAFT_ROWS; rows++)
			drafter_record_step(&of, rows, true, rows);
	drafter_record_step(&of, 1, false, 1);
	drafter_choose_length(&of, &d, 1, 1, 0, DRAFT_MOST);
	assert_int_equal(d->run, 0);
	/* rejected drafts lower the estimate */
	for (int k = 0; k < 60; k++) {
		draft_look_up(d, &of, tok, N, DRAFT_MOST);
		draft_update(d, &of, (const int32_t[]){ 1 }, 1);
	}
	draft_look_up(d, &of, tok, N, DRAFT_MOST);
	assert_true(d->odds_at[0] < 0.3f);
	draft_free(d);
}

/* A step with swapped-in sequences may have more recomputed rows than were ever measured: no draft
 * tokens are added. */
static void
full_steps_have_no_draft_tokens(void **state)
{
	Draft *d[DRAFT_MAX_SEQS];
	Drafter of = { .states = true, .model_idle = 99 };

	(void)state;
	for (int i = 0; i < DRAFT_MAX_SEQS; i++) {
		assert_non_null(d[i] = draft_new(64));
		draft_from_model(d[i], &of, 4);
	}
	for (int32_t rows = 1; rows <= DRAFT_ROWS; rows++)
		drafter_record_step(&of, rows, false, 1);
	assert_int_equal(draft_model_length(&of, d, DRAFT_MAX_SEQS, DRAFT_MAX_SEQS, 30, 4), 0);
	assert_int_equal(of.model_idle, 99);
	drafter_choose_length(&of, d, DRAFT_MAX_SEQS, DRAFT_MAX_SEQS, 30, 4);
	for (int i = 0; i < DRAFT_MAX_SEQS; i++) {
		assert_int_equal(d[i]->run, 0);
		draft_free(d[i]);
	}
}

/* Rows of latent attention (MLA) must use the form of single rows. */
static void
latent_attention_limits_draft_rows(void **state)
{
	PlanStep st = { .n_attr = 1, .attr = { { .key = "expand", .kind = ATTR_INT, .i = 9 } } };
	PlanPhase phase = { .n_step = 1, .step = &st };
	Plan p = { 0 };

	(void)state;
	assert_int_equal(draft_rows(&p), DRAFT_MOST + 1);
	p.n_phase = 1;
	p.phase = &phase;
	assert_int_equal(draft_rows(&p), 6);
	st.attr[0].i = 1; /* always expanded */
	assert_int_equal(draft_rows(&p), DRAFT_MOST + 1);
}

static double
logprob_of(const float *v, int32_t id)
{
	double sum = 0;

	for (int i = 0; i < VOCAB; i++)
		sum += exp((double)v[i] - v[id]);
	return -log(sum);
}

static void
logprobs_match_the_logits(void **state)
{
	static float logits[CONTEXT * VOCAB];
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *s;
	llmc_seq seq;
	TestRequest a = greedy_request(9, 70, 6, true);

	(void)state;
	run_alone(&a);
	memcpy(a.prompt + 70, a.want, 6 * sizeof *a.want);
	l.n_out = l.context = l.chunk = CONTEXT;
	assert_int_equal(llmc_session_open(model, &l, &s, NULL), LLMC_OK);
	assert_int_equal(llmc_seq_new(s, 75, &seq, NULL), LLMC_OK);
	const llmc_chunk c = { seq, a.prompt, 75, 75 };
	assert_int_equal(llmc_forward(s, &c, 1, logits, NULL), LLMC_OK);
	llmc_session_close(s);
	for (int round = 0; round < 2;
	     /* in the second round the prompt is in the cache, but must be computed nevertheless */
	     round++) {
		TestEngine b = open_engine(4, 48, 0, NULL);
		llmc_request q = request(&a);
		q.prompt_logprobs = q.logprobs = true;
		q.n_top = 4;
		for (int again = 0; again < 2; again++) {
			int64_t id = submit(b, &q);
			int32_t at = 0;
			do {
				next(b, id, &ev);
				if (ev.kind == LLMC_EVENT_FINISH)
					break;
				assert_int_equal(ev.kind,
				                 at < 70 ? LLMC_EVENT_PROMPT : LLMC_EVENT_TOKEN);
				assert_int_equal(ev.token, a.prompt[at]);
				if (at == 0) {
					assert_true(isnan(ev.logprob));
					assert_int_equal(ev.n_top, 0);
				} else {
					const float *v = logits + (at - 1) * VOCAB;
					assert_true(fabs(ev.logprob - logprob_of(v, ev.token)) <
					            1e-4);
					assert_int_equal(ev.n_top, 4);
					for (int k = 0; k < 4; k++) {
						assert_true(fabs(ev.top[k].logprob -
						                 logprob_of(v, ev.top[k].id)) <
						            1e-4);
						int above = 0, as_high = 0;
						for (int i = 0; i < VOCAB; i++) {
							above += v[i] > v[ev.top[k].id];
							as_high += v[i] >= v[ev.top[k].id];
						}
						assert_in_range(k, above, as_high - 1);
					}
				}
				at++;
			} while (!ev.last);
			assert_int_equal(at, 76);
			assert_int_equal(ev.n_cached, 0);
			assert_true(ev.last);
		}
		close_engine(b);
	}
	llmc_event_release(&ev);
}

static void
queue_and_cache_are_limited(void **state)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err;
	int64_t id, first;
	TestRequest a = greedy_request(3, 100, 3, false);

	(void)state;
	o.max_concurrent_requests = 2;
	TestEngine b = open_engine(4, 64, 320, &o);
	llmc_request q = request(&a);
	engine_pause(b.e, true);
	first = submit(b, &q);
	id = submit(b, &q);
	assert_int_equal(engine_submit(b.e, &q, &id, &err), LLMC_E_BUSY);
	assert_string_equal(err.text,
	                    "overloaded: 2 requests are in progress (max_concurrent_requests)");
	assert_int_equal(id, 0);
	assert_int_equal(counts(b).refused, 1);
	assert_int_equal(counts(b).waiting, 2);
	/* a finished request frees its queue slot, even if its events are not read */
	engine_cancel(b.e, first, true);
	engine_pause(b.e, false);
	assert_int_equal(engine_next(b.e, first, 0, &ev, &err), LLMC_E_RANGE);
	last(b, LLMC_ANY, &ev);
	assert_int_equal(ev.request, 2);
	/* submit the same prompt again: three of its pages are found; the fourth has the token that
	 * must be computed */
	id = submit(b, &q);
	last(b, id, &ev);
	assert_int_equal(ev.n_cached, 96);
	assert_int_equal(ev.n_prompt, 100);
	assert_int_equal(counts(b).kv_pages_cached, 3);
	assert_int_equal(engine_next(b.e, id, -1, &ev, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "there is no request 3, or its last event has been taken");
	assert_int_equal(engine_next(b.e, LLMC_ANY, 0, &ev, &err), LLMC_OK);
	assert_int_equal(ev.kind, LLMC_EVENT_NONE);
	close_engine(b);
}

static void
expect_error(TestEngine b, const llmc_request *q, llmc_status want, const char *text)
{
	llmc_error err = { 0 };
	int64_t id;

	assert_int_equal(engine_submit(b.e, q, &id, &err), want);
	assert_string_equal(err.text, text);
}

static void
requests_that_cannot_run_are_rejected(void **state)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	TestRequest a = greedy_request(4, 100, LLMC_INIT(llmc_params).max_tokens, false);
	llmc_request q;

	(void)state;
	TestEngine b = open_engine(4, 64, 128, &o);
	q = request(&a);
	q.n_tok = 0;
	expect_error(b, &q, LLMC_E_INPUT,
	             "the prompt is empty: a model needs at least one token to continue");
	q.n_tok = 10;
	q.pool = LLMC_POOL_LAST;
	expect_error(b, &q, LLMC_E_INPUT,
	             "this model generates text, not vectors: open it with head.kind=hidden for "
	             "its last hidden states");
	q.pool_tok = (const int32_t[]){ 5, VOCAB };
	q.n_pool_tok = 2;
	expect_error(b, &q, LLMC_E_RANGE,
	             "pool_tok is NULL or holds an invalid token id; ids are 0 .. 299");
	q.n_pool_tok = 1;
	q.pool = LLMC_POOL_MEAN;
	expect_error(b, &q, LLMC_E_RANGE,
	             "n_pool_tok is 1: up to 1024 tokens, for a model that generates text, with "
	             "pool last, cls or none");
	q.pool = LLMC_POOL_NONE;
	q.n_pool_tok = LLMC_MAX_TOP + 1;
	expect_error(b, &q, LLMC_E_RANGE,
	             "n_pool_tok is 21: up to 20 tokens, for a model that generates text, with "
	             "pool last, cls or none");
	q.n_pool_tok = 0;
	q.n_tok = 161;
	expect_error(b, &q, LLMC_E_RANGE,
	             "the prompt has 161 tokens, the context holds 160 of the model's 256 "
	             "positions");
	q.n_tok = 100;
	expect_error(
	    b, &q, LLMC_E_RANGE,
	    "the request (100 tokens, 61 new ones, 1 choices) cannot run here: prompt and new "
	    "tokens do not fit the KV cache "
	    "(kv_tokens)");
	a.p.max_tokens = 29;
	q.n = 5;
	expect_error(
	    b, &q, LLMC_E_RANGE,
	    "the request (100 tokens, 29 new ones, 5 choices) cannot run here: it has more choices "
	    "than sequences may run at once "
	    "(seqs)");
	q.best_of = 2;
	expect_error(b, &q, LLMC_E_RANGE, "best_of is 2, possible are n (5) .. 128");
	q.n = q.best_of = 0;
	q.n_top = 21;
	expect_error(b, &q, LLMC_E_RANGE, "n_top is 21, possible are 0 .. 20");
	q.n_top = 0;
	a.prompt[7] = VOCAB;
	expect_error(b, &q, LLMC_E_RANGE, "token 7 of the prompt is 300, ids are 0 .. 299");
	a.prompt[7] = 5;
	a.p.temperature = -1;
	expect_error(b, &q, LLMC_E_RANGE,
	             "temperature is -1, it must be a finite number of at least 0");
	a.p.temperature = 0;
	q.deadline_s = NAN;
	expect_error(b, &q, LLMC_E_RANGE, "deadline_s is nan, it must be 0 (none) or above");
	q.deadline_s = 0;
	/* max_tokens -1: generate until the KV cache is full, 128 positions here */
	llmc_event ev = LLMC_INIT(llmc_event);
	a.p.max_tokens = -1;
	a.p.ignore_eos = true;
	int64_t id = submit(b, &q);
	last(b, id, &ev);
	assert_int_equal(ev.finish, LLMC_FINISH_LENGTH);
	assert_int_equal(ev.n_new, 29);
	assert_int_equal(counts(b).requests, 1);
	llmc_event_release(&ev);
	close_engine(b);
}

/* One request is cancelled, one exceeds its time limit, one has no token to sample. The request
 * that runs with these gets the answer that it gets alone. */
static void
failed_requests_do_not_affect_others(void **state)
{
	static llmc_bias bias[VOCAB];
	llmc_event ev = LLMC_INIT(llmc_event);
	int64_t id[4];
	char why[256];
	TestRequest a = greedy_request(11, 20, 100, true), bad = a;

	(void)state;
	run_alone(&a);
	for (int i = 0; i < VOCAB; i++)
		bias[i] = (llmc_bias){ i, -INFINITY };
	bad.p.logit_bias = bias;
	bad.p.n_logit_bias = VOCAB;
	TestEngine b = open_engine(4, 64, 0, NULL);
	llmc_request q = request(&a), late = q, broken = request(&bad);
	late.deadline_s = 1e-9;
	broken.user = &bad;
	engine_pause(b.e, true);
	id[0] = submit(b, &q);
	id[1] = submit(b, &late);
	id[2] = submit(b, &broken);
	id[3] = submit(b, &q);
	engine_cancel(b.e, id[0], false);
	engine_cancel(b.e, id[0], false);
	engine_cancel(b.e, 12345, false);
	engine_pause(b.e, false);
	next(b, id[0], &ev);
	assert_int_equal(ev.finish, LLMC_FINISH_CANCEL);
	assert_true(ev.last);
	engine_cancel(b.e, id[0], false);
	next(b, id[1], &ev);
	assert_int_equal(ev.finish, LLMC_FINISH_DEADLINE);
	next(b, id[2], &ev);
	assert_int_equal(ev.kind, LLMC_EVENT_ERROR);
	assert_int_equal(ev.status, LLMC_E_CHECK);
	assert_string_equal(ev.text, "all logits are minus infinity: no token can be sampled");
	assert_ptr_equal(ev.user, &bad);
	assert_true(ev.last);
	if (!follow(b, id[3], &a, -1, why, sizeof why))
		fail_msg("%s", why);
	assert_int_equal(counts(b).failed, 1);
	assert_int_equal(counts(b).finished[LLMC_FINISH_CANCEL], 1);
	llmc_event_release(&ev);
	close_engine(b);
}

static void
stop_tokens_and_min_tokens(void **state)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	TestRequest a = greedy_request(12, 10, 30, true);

	(void)state;
	run_alone(&a);
	int32_t stop = a.want[9], at = 0, n = 0;
	while (a.want[at] != stop)
		at++;
	TestEngine b = open_engine(4, 64, 0, NULL);
	a.p.stop_tokens = &stop;
	a.p.n_stop_tokens = 1;
	for (int32_t least = 0; least <= 20; least += 20) {
		a.p.min_tokens = least;
		llmc_request q = request(&a);
		int64_t id = submit(b, &q);
		for (n = 0;; n++) {
			next(b, id, &ev);
			if (ev.kind == LLMC_EVENT_FINISH)
				break;
			assert_int_not_equal(ev.token, stop);
		}
		if (least) {
			assert_true(n >= 20);
		} else {
			assert_int_equal(n, at);
			assert_int_equal(ev.finish, LLMC_FINISH_TOKEN);
			assert_int_equal(ev.token, stop);
		}
	}
	llmc_event_release(&ev);
	close_engine(b);
}

static void
the_descriptor_is_readable_when_events_wait(void **state)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	TestRequest a = greedy_request(13, 0, 5, false);

	(void)state;
	TestEngine b = open_engine(4, 64, 0, NULL);
	struct pollfd p = { .fd = engine_fd(b.e), .events = POLLIN };
	assert_int_equal(poll(&p, 1, 0), 0);
	llmc_request q = request(&a);
	int left = 3;
	for (int i = 0; i < left; i++)
		submit(b, &q);
	while (left) {
		assert_int_equal(poll(&p, 1, (int)(1000 * wait_scaled(WAIT_HANG_S))), 1);
		assert_int_equal(engine_next(b.e, LLMC_ANY, 0, &ev, NULL), LLMC_OK);
		assert_int_not_equal(ev.kind, LLMC_EVENT_NONE);
		left -= ev.last;
	}
	assert_int_equal(poll(&p, 1, 0), 0);
	llmc_event_release(&ev);
	close_engine(b);
}

static void
draining_finishes_or_cuts_requests(void **state)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err;
	int64_t id, late;
	TestRequest a = greedy_request(14, 5, 10, true);

	(void)state;
	TestEngine b = open_engine(4, 64, 0, NULL);
	llmc_request q = request(&a);
	id = submit(b, &q);
	assert_int_equal(engine_drain(b.e, -1, &err), LLMC_OK);
	assert_int_equal(engine_submit(b.e, &q, &late, &err), LLMC_E_CANCELLED);
	int n = 0;
	do {
		assert_int_equal(engine_next(b.e, id, 0, &ev, &err), LLMC_OK);
		n++;
	} while (!ev.last);
	assert_int_equal(n, 11);
	assert_int_equal(engine_next(b.e, LLMC_ANY, -1, &ev, &err), LLMC_E_CANCELLED);
	close_engine(b);
	/* without time left the requests are cut off; nothing leaks although no events are read */
	b = open_engine(4, 64, 0, NULL);
	engine_pause(b.e, true);
	a.p.max_tokens = 150;
	id = submit(b, &q);
	submit(b, &q);
	engine_pause(b.e, false);
	engine_close(b.e, 0);
	llmc_session_close(b.s);
	llmc_event_release(&ev);
}

typedef struct Listener {
	TestEngine b;
	pthread_t thread;
	int n_token, n_last, wrong;
} Listener;

static void *
listen_to_all(void *user)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	Listener *l = user;

	while (engine_next(l->b.e, LLMC_ANY, 20, &ev, NULL) == LLMC_OK) {
		if (ev.kind == LLMC_EVENT_NONE)
			continue;
		const TestRequest *a = ev.user;
		l->n_token += ev.kind == LLMC_EVENT_TOKEN;
		l->n_last += ev.last;
		l->wrong += ev.kind == LLMC_EVENT_ERROR ||
		            (ev.kind == LLMC_EVENT_FINISH && ev.n_new > a->n_want);
	}
	llmc_event_release(&ev);
	return NULL;
}

/* Two threads read events while requests come, are cancelled and forgotten; closing the engine ends
 * both. */
static void
listeners_and_requests_come_and_go(void **state)
{
	TestEngine b = open_engine(6, 40, 256, NULL);
	Listener l[2] = { { .b = b }, { .b = b } };
	uint64_t r = 21;
	int forgotten = 0;

	(void)state;
	make_crowd();
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&l[i].thread, NULL, listen_to_all, &l[i]), 0);
	for (int i = 0; i < n_crowd; i++) {
		llmc_request q = request(&crowd[i]);
		q.user = &crowd[i];
		int64_t id = submit(b, &q);
		switch (roll(&r, 5)) {
		case 0:
			engine_cancel(b.e, 1 + roll(&r, (uint32_t)id), false);
			break;
		case 1:
			forgotten++;
			engine_cancel(b.e, id, true);
			break;
		default:
			break;
		}
	}
	assert_int_equal(engine_drain(b.e, -1, NULL), LLMC_OK);
	for (int i = 0; i < 2; i++)
		pthread_join(l[i].thread, NULL);
	assert_int_equal(l[0].wrong + l[1].wrong, 0);
	assert_in_range(l[0].n_last + l[1].n_last, n_crowd - forgotten, n_crowd);
	struct pollfd p = { .fd = engine_fd(b.e), .events = POLLIN };
	assert_int_equal(poll(&p, 1, 0), 0);
	close_engine(b);
}

static void
the_public_calls_work_together(void **state)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_counts c = LLMC_INIT(llmc_counts);
	llmc_engine *e;
	llmc_error err;
	int64_t id;
	TestRequest a = greedy_request(15, 0, 20, false);

	(void)state;
	run_alone(&a);
	assert_int_equal(llmc_engine_open(model, NULL, &e, &err), LLMC_OK);
	assert_int_equal(llmc_engine_limits(e)->seqs, 16);
	assert_int_equal(llmc_engine_limits(e)->kv_tokens, 16 * 256);
	llmc_request q = request(&a);
	assert_int_equal(llmc_submit(e, &q, &id, &err), LLMC_OK);
	for (int n = 0;; n++) {
		assert_int_equal(llmc_next(e, id, -1, &ev, &err), LLMC_OK);
		if (ev.last)
			break;
		assert_int_equal(ev.token, a.want[n]);
	}
	llmc_engine_stats(e, &c);
	assert_int_equal(c.requests, 1);
	assert_int_equal(c.kv_pages_used, 0);
	llmc_cancel(e, id);
	llmc_forget(e, id);
	assert_true(llmc_engine_fd(e) >= 0);
	assert_int_equal(llmc_engine_drain(e, 0, &err), LLMC_OK);
	llmc_engine_close(e, 0);
	llmc_engine_close(NULL, 0);
	o.swap_bytes = -1;
	assert_int_equal(llmc_engine_open(model, &o, &e, &err), LLMC_E_RANGE);
	assert_null(e);
	llmc_event_release(&ev);
}

/* A sequence saved in one session continues in another with the same tokens. */
static void
a_sequence_moves_to_another_session(void **state)
{
	static float want[VOCAB], got[VOCAB];
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *s, *t;
	llmc_error err;
	int32_t tok[50];
	llmc_seq q, r;
	size_t need;

	(void)state;
	for (int i = 0; i < 50; i++)
		tok[i] = 3 + i * 5;
	l.context = 96;
	l.seqs = 2;
	l.kv_tokens = 96;
	assert_int_equal(llmc_session_open(model, &l, &s, NULL), LLMC_OK);
	assert_int_equal(llmc_session_open(model, &l, &t, NULL), LLMC_OK);
	assert_int_equal(llmc_seq_new(s, 0, &q, NULL), LLMC_OK);
	llmc_chunk c = { q, tok, 49, 0 };
	assert_int_equal(llmc_forward(s, &c, 1, NULL, NULL), LLMC_OK);
	assert_int_equal(llmc_seq_save(s, q, NULL, 0, &need, &err), LLMC_E_RANGE);
	char *bytes = malloc(need);
	assert_int_equal(llmc_seq_save(s, q, bytes, need, &need, &err), LLMC_OK);
	c = (llmc_chunk){ q, tok + 49, 1, 1 };
	assert_int_equal(llmc_forward(s, &c, 1, want, NULL), LLMC_OK);
	assert_int_equal(llmc_seq_load(t, bytes, need, &r, &err), LLMC_OK);
	assert_int_equal(llmc_seq_len(t, r), 49);
	c.seq = r;
	assert_int_equal(llmc_forward(t, &c, 1, got, NULL), LLMC_OK);
	assert_memory_equal(want, got, sizeof want);
	assert_int_equal(llmc_seq_load(t, bytes, need, &r, &err), LLMC_E_FULL);
	assert_string_equal(err.text, "the saved sequence needs 2 KV pages, 1 are free");
	bytes[need - 5] ^= 1;
	assert_int_equal(llmc_seq_load(t, bytes, need, &r, &err), LLMC_E_INPUT);
	assert_string_equal(err.text, "the saved sequence is damaged or cut short");
	assert_int_equal(llmc_seq_load(t, bytes, 3, &r, &err), LLMC_E_INPUT);
	assert_int_equal(llmc_seq_load(t, bytes, need - 1, &r, &err), LLMC_E_INPUT);
	bytes[10] ^= 1;
	assert_int_equal(llmc_seq_load(t, bytes, need, &r, &err), LLMC_E_INPUT);
	assert_int_equal(llmc_seq_save(t, 7, bytes, need, &need, &err), LLMC_E_RANGE);
	free(bytes);
	llmc_session_close(s);
	llmc_session_close(t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(llmc_get_reports_the_needed_size),
		cmocka_unit_test(concurrent_requests_equal_single_ones),
		cmocka_unit_test(masks_made_ahead_change_nothing),
		cmocka_unit_test(choices_sample_with_their_own_seeds),
		cmocka_unit_test(draft_tokens_change_nothing),
		cmocka_unit_test(concurrent_requests_with_draft_tokens),
		cmocka_unit_test(a_draft_model_changes_nothing),
		cmocka_unit_test(prompt_lookup_drafts_repetitions),
		cmocka_unit_test(full_steps_have_no_draft_tokens),
		cmocka_unit_test(latent_attention_limits_draft_rows),
		cmocka_unit_test(logprobs_match_the_logits),
		cmocka_unit_test(queue_and_cache_are_limited),
		cmocka_unit_test(requests_that_cannot_run_are_rejected),
		cmocka_unit_test(failed_requests_do_not_affect_others),
		cmocka_unit_test(stop_tokens_and_min_tokens),
		cmocka_unit_test(the_descriptor_is_readable_when_events_wait),
		cmocka_unit_test(draining_finishes_or_cuts_requests),
		cmocka_unit_test(listeners_and_requests_come_and_go),
		cmocka_unit_test(the_public_calls_work_together),
		cmocka_unit_test(a_sequence_moves_to_another_session),
	};

	const struct CMUnitTest with_states[] = {
		cmocka_unit_test(concurrent_requests_equal_single_ones),
		cmocka_unit_test(draft_tokens_change_nothing),
		cmocka_unit_test(concurrent_requests_with_draft_tokens),
		cmocka_unit_test(a_draft_model_changes_nothing),
		cmocka_unit_test(a_sequence_moves_to_another_session),
	};

	/* prefill rows may use another form of attention than single rows, so results may depend
	 * on chunk sizes */
	const struct CMUnitTest with_latents[] = {
		cmocka_unit_test(draft_tokens_change_nothing),
		cmocka_unit_test(short_sequences_keep_their_attention_form),
	};

	quick = getenv("LLMC_TEST_QUICK") != NULL;
	reduced = quick && !getenv("LLMC_CHECK_ALL");
	n_crowd = reduced ? 20 : CROWD;
	int failed = cmocka_run_group_tests(tests, set_up, tear_down);
	failed = failed ? failed : cmocka_run_group_tests(with_states, set_up_states, tear_down);
	return failed ? failed : cmocka_run_group_tests(with_latents, set_up_latents, tear_down);
}
