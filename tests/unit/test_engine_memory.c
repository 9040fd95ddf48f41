/* The N-th allocation fails, for every N: opening an engine, submitting a request and answering it
 * either work or return E_MEMORY. Afterwards nothing leaks, and the engine continues to serve. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api.h"
#include "runtime/engine/engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
#define COUNTS 0
static atomic_long until;
#else
#define COUNTS 1
static atomic_long until; /* 0: never */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
static bool
fails(void)
{
	return atomic_load(&until) > 0 && atomic_fetch_sub(&until, 1) == 1;
}
void *
malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}
void *
calloc(size_t n, size_t each)
{
	return fails() ? NULL : __libc_calloc(n, each);
}
#endif

static llmc_model *model;

static int
set_up(void **state)
{
	llmc_options o = LLMC_INIT(llmc_options);

	(void)state;
	o.random_weights = true;
	o.device = "ref";
	return llmc_open("configs/tiny.yaml", &o, &model, NULL) != LLMC_OK;
}

static int
tear_down(void **state)
{
	(void)state;
	llmc_close(model);
	return 0;
}

static const int32_t prompt[] = { 3, 4, 5, 6, 7 };

/* Runs a request, which either fails with E_MEMORY (in submit, or by an event) or generates all 6
 * tokens. */
static llmc_status
run_request(Engine *e)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_request r = LLMC_INIT(llmc_request);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_sequence bad = { prompt, 2 };
	int64_t id;
	int n = 0;

	p.max_tokens = 3;
	p.ignore_eos = true;
	p.repetition_penalty = 1.1f;
	p.bad_words = &bad;
	p.n_bad_words = 1;
	p.stop = (const char *const[]){ "never", NULL };
	r.tok = prompt;
	r.n_tok = 5;
	r.params = &p;
	r.n = 2;
	r.n_top = 2;
	r.prompt_logprobs = true;
	llmc_status status = engine_submit(e, &r, &id, NULL);
	if (status != LLMC_OK)
		return status;
	do {
		assert_int_equal(engine_next(e, id, -1, &ev, NULL), LLMC_OK);
		n += ev.kind == LLMC_EVENT_TOKEN;
	} while (!ev.last);
	status = ev.kind == LLMC_EVENT_ERROR ? ev.status : LLMC_OK;
	assert_true(status != LLMC_OK || n == 6);
	llmc_event_release(&ev);
	return status;
}

static void
memory_runs_out(void **state)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_counts c = LLMC_INIT(llmc_counts);
	llmc_session *s;
	Engine *e;
	long n = 1;

	(void)state;
	if (!COUNTS) /* the sanitizers have their own allocators */
		skip();
	o.limits = &l;
	l.context = 64;
	l.seqs = 4;
	l.chunk = 16;
	l.n_threads = 1;
	llmc_limits lim = engine_limits(model->plan, &o);
	assert_int_equal(llmc_session_open(model, &lim, &s, NULL), LLMC_OK);
	for (;; n++) {
		atomic_store(&until, n);
		llmc_status status = engine_open(s->s, NULL, &o, &e, NULL);
		bool through = atomic_exchange(&until, 0) > 0;
		if (status == LLMC_OK && through)
			break;
		assert_true(status == LLMC_E_MEMORY || status == LLMC_OK);
		engine_close(e, 0);
	}
	assert_true(n > 8);
	engine_set_check(e);
	for (n = 1;; n++) {
		atomic_store(&until, n);
		llmc_status status = run_request(e);
		bool through = atomic_exchange(&until, 0) > 0;
		engine_counts(e, &c);
		assert_int_equal(c.running + c.waiting + c.preempted, 0);
		assert_int_equal(c.kv_pages_used, 0);
		if (status == LLMC_OK && through)
			break;
		assert_true(status == LLMC_E_MEMORY || status == LLMC_OK);
		assert_int_equal(run_request(e), LLMC_OK);
	}
	assert_true(n > 30);
	engine_close(e, 0);
	llmc_session_close(s);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_runs_out),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
