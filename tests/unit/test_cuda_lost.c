/* GPUs that vanish: the nth driver call of a program and all later ones fail, whatever runs then:
 * loading, capture, replay, copies, events, peer access, freeing. Each call of the API returns an
 * error that names the step; nothing hangs; a model on the CPU of the same process goes on; and
 * when the GPU is back, a new open works. LLMC_CHECK_ALL=1: twelve times as many n;
 * LLMC_TEST_FAULTS=1: every n. */
#include "tests/unit/cuda_whole.h"

#include "tests/unit/waiting.h"

enum { UNAVAILABLE = 46, NO_DEVICE = 100, ECC = 214, LAUNCH_FAILED = 719 };

static llmc_model *cpu;
static int32_t cpu_tokens[NEW];

/* Return the first error of a scenario. */
static llmc_status
first(llmc_status have, llmc_status status, const llmc_error *e, llmc_error *err)
{
	if (have == LLMC_OK && status != LLMC_OK)
		*err = *e;
	return have == LLMC_OK ? status : have;
}

/* ---- programs; each returns its first error ---- */

/* Use sequences: with tokens from the host and from the device, forks, trims, saved bytes and op
 * times */
static llmc_status
use_session(const char *device, const char *const *set, llmc_error *err)
{
	static float logits[2 * 300];
	static char saved[1 << 20];
	static const int32_t tok[40] = { 3, 1, 4, 1, 5, 9, 2, 6 };
	llmc_model *m = NULL;
	llmc_session *s = NULL;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_seq a = 0, b = 0, c = 0;
	size_t need = 0;
	int32_t id;
	llmc_error e;

	l.context = 96;
	l.seqs = 4;
	l.chunk = 40;
	llmc_status status = open_tiny_with(device, NULL, set, &m, err);
	if (status == LLMC_OK)
		status = llmc_session_open(m, &l, &s, err);
	if (status != LLMC_OK)
		goto end;
	/* later calls run even after an error, because a careless program would make them */
#define NEXT(call) status = first(status, call, &e, err)
	NEXT(llmc_seq_new(s, 0, &a, &e));
	llmc_chunk chunk = { .seq = a, .tok = tok, .n_tok = 40, .n_out = 1 };
	NEXT(llmc_forward(s, &chunk, 1, logits, &e));
	NEXT(llmc_seq_fork(s, a, &b, &e));
	llmc_chunk two[] = { { .seq = a, .tok = tok, .n_tok = 1, .n_out = 1 },
		             { .seq = b, .tok = tok + 1, .n_tok = 2, .n_out = 1 } };
	NEXT(llmc_forward(s, two, 2, logits, &e));
	NEXT(llmc_seq_save(s, b, saved, sizeof saved, &need, &e));
	NEXT(llmc_seq_load(s, saved, need <= sizeof saved ? need : 0, &c, &e));
	NEXT(llmc_seq_trim(s, b, 12, &e));
	if (llmc_can_sample(s, &p)) {
		NEXT(llmc_sample_params(s, a, &p, NULL, 0, &e));
		two[0].tok = tok;
		NEXT(llmc_queue_step(s, two, 1, &e));
		two[0].tok = NULL;
		NEXT(llmc_queue_step(s, two, 1, &e));
		NEXT(llmc_take_sampled(s, &id, NULL, &e));
		NEXT(llmc_take_sampled(s, &id, NULL, &e));
	}
	llmc_seq_free(s, b);
	llmc_seq_free(s, a);
#undef NEXT
end:
	llmc_session_close(s);
	llmc_close(m);
	return status;
}

static llmc_status
one_gpu(llmc_error *err)
{
	return use_session("cuda", NULL, err);
}

static llmc_status
two_ranks(llmc_error *err)
{
	static const char *const set[] = { "parallel.tp=2", "deterministic=true",
		                           "attention.n_heads=4", "attention.n_kv_heads=2", NULL };

	return use_session("cuda:0,1", set, err);
}

static llmc_status
gpu_and_cpu(llmc_error *err)
{
	static const char *const set[] = { "placement.gpu_layers=2", NULL };

	return use_session("cuda", set, err);
}

/* Run an engine whose prefix pages move to host memory, with requests that share a prefix, have
 * several choices or log probabilities, or are cancelled */
static llmc_status
engine(llmc_error *err)
{
	enum { REQUESTS = 5, TOKENS = 70 };
	static const char *const set[] = { "kv.host=1M", NULL };
	static int32_t tok[REQUESTS][TOKENS];
	llmc_model *m = NULL;
	llmc_engine *eng = NULL;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error e;
	int64_t id[REQUESTS] = { 0 };

	l.context = 128;
	l.chunk = 64;
	l.seqs = 3;
	l.kv_tokens = 256;
	o.limits = &l;
	p.max_tokens = 5;
	p.ignore_eos = true;
	p.temperature = 0.5f;
	llmc_status status = open_tiny_with("cuda", NULL, set, &m, err);
	if (status == LLMC_OK)
		status = llmc_engine_open(m, &o, &eng, err);
	for (int i = 0; eng && i < REQUESTS; i++) {
		llmc_request r = LLMC_INIT(llmc_request);
		for (int k = 0; k < TOKENS; k++)
			tok[i][k] = (k < 35 ? k : k * (i + 1)) % 300;
		r.tok = tok[i];
		r.n_tok = TOKENS;
		r.params = &p;
		r.n = i == 1 ? 2 : 1;
		r.logprobs = i == 2;
		r.prompt_logprobs = i == 2;
		status = first(status, llmc_submit(eng, &r, &id[i], &e), &e, err);
		if (i == 3 && id[i])
			llmc_cancel(eng, id[i]);
	}
	for (int i = 0; eng && i < REQUESTS; i++)
		for (bool last = !id[i]; !last;) {
			llmc_status got =
			    llmc_next(eng, id[i], (int)(1000 * wait_scaled(WAIT_HANG_S)), &ev, &e);
			if (got != LLMC_OK) {
				status = first(status, got, &e, err);
				break;
			}
			if (ev.kind == LLMC_EVENT_NONE)
				fail_msg("request %d has no event", i);
			if (ev.kind == LLMC_EVENT_ERROR) {
				e.code = ev.status;
				snprintf(e.text, sizeof e.text, "%s", ev.text);
				status = first(status, ev.status, &e, err);
			}
			last = ev.last;
		}
	llmc_event_release(&ev);
	llmc_engine_close(eng, 0);
	llmc_close(m);
	return status;
}

/* ---- the sweep ---- */

static void
the_cpu_goes_on(void)
{
	int32_t got[NEW] = { 0 };
	llmc_error err;

	if (greedy(cpu, NEW, got, &err) != LLMC_OK)
		fail_msg("the model on the CPU: %s", err.text);
	assert_memory_equal(got, cpu_tokens, sizeof got);
}

static void
lose_at_each_call(llmc_status (*program)(llmc_error *), int samples)
{
	static const int codes[] = { UNAVAILABLE, ECC, LAUNCH_FAILED, NO_DEVICE };
	const char *all = getenv("LLMC_TEST_FAULTS");
	llmc_error err = { 0 };
	long failed = 0, tried = 0;

	if (program(&err) != LLMC_OK) /* also builds the kernels */
		fail_msg("%s", err.text);
	emu_count_reset();
	assert_int_equal(program(&err), LLMC_OK);
	const long total = emu_count(NULL), leaks = emu_leaks();
	samples *= getenv("LLMC_CHECK_ALL") ? 12 : 1;
	const long stride = all || total <= samples ? 1 : total / samples;

	for (long n = 1; n <= total; n += stride, tried++) {
		const int code = codes[tried % 4];
		err = (llmc_error){ 0 };
		emu_lose(n, code);
		const llmc_status status = program(&err);
		const char *call = emu_failed() ? emu_failed() : "no call";
		if (tried % 8 == 0)
			the_cpu_goes_on();
		emu_lose(0, 0);
		if (status != LLMC_OK) {
			failed++;
			if ((status != LLMC_E_DEVICE && status != LLMC_E_MISSING) ||
			    strlen(err.text) < 20 || err.code != status)
				fail_msg("call %ld (%s), code %d: status %d, \"%s\"", n, call, code,
				         status, err.text);
		}
		if (tried % 8 == 0) {
			const llmc_status again = program(&err);
			if (again != LLMC_OK)
				fail_msg("after call %ld (%s) and code %d: %s", n, call, code,
				         err.text);
		}
	}
	assert_true(failed > tried / 2);
	assert_int_equal(emu_leaks(), leaks);
}

static void
one_gpu_is_lost(void **state)
{
	(void)state;
	lose_at_each_call(one_gpu, 8);
}

static void
one_of_two_ranks_is_lost(void **state)
{
	(void)state;
	lose_at_each_call(two_ranks, 4);
}

static void
the_gpu_of_a_divided_model_is_lost(void **state)
{
	(void)state;
	lose_at_each_call(gpu_and_cpu, 4);
}

static void
the_gpu_of_an_engine_is_lost(void **state)
{
	(void)state;
	lose_at_each_call(engine, 4);
}

static int
set_up(void **state)
{
	llmc_error err;

	(void)state;
	if (open_tiny("cpu", "generic", &cpu, &err) == LLMC_OK &&
	    greedy(cpu, NEW, cpu_tokens, &err) == LLMC_OK)
		return 0;
	print_error("%s\n", err.text);
	return 1;
}

static int
tear_down(void **state)
{
	(void)state;
	llmc_close(cpu);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_gpu_is_lost),
		cmocka_unit_test(one_of_two_ranks_is_lost),
		cmocka_unit_test(the_gpu_of_a_divided_model_is_lost),
		cmocka_unit_test(the_gpu_of_an_engine_is_lost),
	};
	char dir[4096];

	setenv("LLMC_EMU_DEVICES", "2", 1);
	if (!emulator(dir)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	alarm((unsigned)wait_scaled(WAIT_HANG_S)); /* a hang ends the program */
	if (getenv("TEST_ONLY"))
		cmocka_set_test_filter(getenv("TEST_ONLY"));
	return no_findings(cmocka_run_group_tests(tests, set_up, tear_down));
}
