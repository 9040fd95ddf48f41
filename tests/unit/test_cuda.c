/* CUDA runtime on the emulated GPU: tokens, driver calls per token, and a failure of every driver
 * call. */
#include "runtime/cuda/cuda.h"
#include "tests/unit/cuda_whole.h"
#include "tests/unit/tempdir.h"

static int32_t reference[40];

static void
targets(void **state)
{
	static const struct {
		int cc;
		const char *best;
	} want[] = {
		{ 70, NULL },
		{ 75, "cuda-sm_75" },
		{ 80, "cuda-sm_80" },
		{ 86, "cuda-sm_86" },
		{ 87, "cuda-sm_86" },
		{ 89, "cuda-sm_89" },
		{ 90, "cuda-sm_90a" },
		{ 100, "cuda-sm_100a" },
		{ 103, "cuda-sm_103a" },
		{ 110, "cuda-sm_110a" },
		{ 120, "cuda-sm_120a" },
		{ 121, "cuda-sm_121a" },
		{ 101, "cuda-sm_89" }, /* an architecture without its own row */
	};
	char arch[16];

	(void)state;
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		const char *best = cuda_best_target(want[i].cc);
		if (!want[i].best) {
			assert_null(best);
			continue;
		}
		assert_string_equal(best, want[i].best);
		assert_true(cuda_runs(want[i].cc, best));
	}
	assert_false(cuda_runs(86, "cuda-sm_90a"));
	assert_false(cuda_runs(103, "cuda-sm_100a"));
	assert_true(cuda_runs(90, "cuda-sm_80"));
	assert_false(cuda_runs(75, "cuda-sm_80"));
	assert_false(cuda_runs(80, "cpu-v3"));
	cuda_arch(87, "cuda-sm_86", arch);
	assert_string_equal(arch, "sm_87");
	cuda_arch(90, "cuda-sm_90a", arch);
	assert_string_equal(arch, "sm_90a");
	cuda_arch(0, "cuda-sm_80", arch);
	assert_string_equal(arch, "sm_80");
	/* image compatibility: same major and no earlier minor; "a" only exactly; Tegra (8.7, 11.0)
	 * with no other */
	assert_true(cuda_image_fits("cuda-sm_80", 86));
	assert_true(cuda_image_fits("cuda-sm_86", 89));
	assert_false(cuda_image_fits("cuda-sm_86", 80));
	assert_false(cuda_image_fits("cuda-sm_80", 90));
	assert_false(cuda_image_fits("cuda-sm_89", 121));
	assert_true(cuda_image_fits("cuda-sm_90a", 90));
	assert_false(cuda_image_fits("cuda-sm_90a", 91));
	assert_false(cuda_image_fits("cuda-sm_120a", 121));
	assert_true(cuda_image_fits("cuda-sm_121a", 121));
	assert_false(cuda_image_fits("cuda-sm_100a", 103));
	assert_false(cuda_image_fits("cuda-sm_86", 87));
	assert_false(cuda_arch_fits(87, 89));
	assert_true(cuda_arch_fits(87, 87));
	assert_true(cuda_arch_fits(120, 121));
}

/* Greedy tokens equal those of the reference interpreter, with tokens that the host or the device
 * passes to the next step. */
static void
greedy_tokens_equal_the_references(void **state)
{
	int32_t got[40] = { 0 };
	llmc_model *m;
	llmc_error err;

	(void)state;
	if (shared_tiny("ref", NULL, NULL, &m, &err) != LLMC_OK ||
	    greedy(m, 36, reference, &err) != LLMC_OK ||
	    shared_tiny("cuda", NULL, NULL, &m, &err) != LLMC_OK ||
	    greedy(m, 36, got, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	for (int i = 0; i < 36; i++)
		assert_int_equal(got[i], reference[i]);
}

/* The reference's sampler and the device's select the same tokens, also if a sequence is preempted
 * and resumed in another session. */
static void
sampled_tokens_equal_the_references(void **state)
{
	enum { N = 24, CUT = 9 };
	static const llmc_params set[] = {
		{ .size = sizeof(llmc_params),
		  .temperature = 0.8f,
		  .top_k = 40,
		  .top_p = 0.9f,
		  .seed = 7 },
		{ .size = sizeof(llmc_params),
		  .temperature = 1.3f,
		  .min_p = 0.05f,
		  .seed = 9,
		  .presence_penalty = 0.5f,
		  .frequency_penalty = 0.25f },
		{ .size = sizeof(llmc_params), .repetition_penalty = 1.3f },
	};
	llmc_model *m[2];
	llmc_session *s[2];
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err;

	(void)state;
	l.context = 128;
	for (int k = 0; k < 2; k++) {
		assert_int_equal(shared_tiny(k ? "cuda" : "ref", NULL, NULL, &m[k], &err), LLMC_OK);
		assert_int_equal(llmc_session_open(m[k], &l, &s[k], &err), LLMC_OK);
	}
	for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
		int32_t id[2][N], all[PROMPT + CUT];
		llmc_params p = set[i];
		p.max_tokens = N;
		p.ignore_eos = true;
		for (int k = 0; k < 2; k++) {
			int32_t *at = id[k];
			assert_int_equal(
			    llmc_generate(s[k], prompt, PROMPT, &p, keep_id, &at, NULL, &err),
			    LLMC_OK);
		}
		for (int k = 0; k < N; k++)
			assert_int_equal(id[1][k], id[0][k]);
		/* prefill all but the last of the tokens so far, then sample it from the resumed
		 * random stream */
		llmc_seq q;
		int32_t got;
		memcpy(all, prompt, sizeof prompt);
		memcpy(all + PROMPT, id[0], CUT * sizeof *all);
		assert_int_equal(session_seq_new(s[1]->s, 0, &q, &err), LLMC_OK);
		assert_int_equal(
		    session_sample_params(s[1]->s, q, &p, prompt, PROMPT, id[0], CUT, &err),
		    LLMC_OK);
		llmc_chunk c = { .seq = q, .tok = all, .n_tok = PROMPT + CUT - 1 };
		assert_int_equal(session_queue_step(s[1]->s, &c, 1, &err), LLMC_OK);
		c = (llmc_chunk){ .seq = q, .n_tok = 1, .n_out = 1 };
		for (int k = CUT; k < N; k++) {
			assert_int_equal(session_queue_step(s[1]->s, &c, 1, &err), LLMC_OK);
			assert_int_equal(session_take_sampled(s[1]->s, &got, NULL, &err), LLMC_OK);
			assert_int_equal(got, id[0][k]);
		}
		llmc_seq_free(s[1], q);
	}
	for (int k = 0; k < 2; k++)
		llmc_session_close(s[k]);
}

/* A decode step: one launch, one event, no allocation, no wait except for the token. Around them
 * the context is made current. */
static void
driver_calls_per_token(void **state)
{
	llmc_model *m;
	llmc_session *s;
	llmc_error err;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_seq q;
	int32_t id;
	enum { N = 70 }; /* more than two pages */

	(void)state;
	l.context = 128;
	assert_int_equal(shared_tiny("cuda", NULL, NULL, &m, &err), LLMC_OK);
	assert_int_equal(llmc_session_open(m, &l, &s, &err), LLMC_OK);
	assert_int_equal(session_seq_new(s->s, 0, &q, &err), LLMC_OK);
	assert_true(session_can_sample(s->s, &p));
	assert_int_equal(session_sample_params(s->s, q, &p, prompt, PROMPT, NULL, 0, &err),
	                 LLMC_OK);
	llmc_chunk c = { .seq = q, .tok = prompt, .n_tok = PROMPT, .n_out = 1 };
	assert_int_equal(session_queue_step(s->s, &c, 1, &err), LLMC_OK);
	c.tok = NULL;
	c.n_tok = 1;
	emu_count_reset();
	for (int i = 0; i < N; i++) {
		assert_int_equal(session_queue_step(s->s, &c, 1, &err), LLMC_OK);
		if (i == 0) /* two steps are in flight */
			assert_int_equal(session_queue_step(s->s, &c, 1, &err), LLMC_E_BUSY);
		assert_int_equal(session_take_sampled(s->s, &id, NULL, &err), LLMC_OK);
		if (i < 36)
			assert_int_equal(id, reference[i]);
	}
	assert_int_equal(emu_count("cuGraphLaunch"), N);
	assert_int_equal(emu_count("cuEventRecord"), N);
	long waits = emu_count("cuEventSynchronize"),
	     context = emu_count("cuCtxPushCurrent_v2") + emu_count("cuCtxPopCurrent_v2");
	assert_true(waits <= 2 * N);
	assert_int_equal(emu_count(NULL), 2 * N + waits + context);
	assert_int_equal(session_take_sampled(s->s, &id, NULL, &err), LLMC_OK);
	assert_int_equal(session_take_sampled(s->s, &id, NULL, &err), LLMC_E_RANGE);
	llmc_session_close(s);
}

static bool
frees_something(const char *call)
{
	static const char *const words[] = { "Free", "Destroy", "Unload", "Release", "Pop", NULL };
	bool found = false;

	for (const char *const *w = words; *w; w++)
		found = found || strstr(call, *w);
	return found;
}

static void
driver_words(int code, char *buf, size_t cap)
{
	CudaApi api;
	void *lib;
	char path[1024];

	assert_int_equal(cuda_driver_open(&lib, &api, path, sizeof path, NULL), LLMC_OK);
	cuda_result_text(&api, code, buf, cap);
	dlclose(lib);
}

/* Returns whether the message has the form "copying weights to the GPU: GPU 0 (H100): ...",
 * followed by the driver's own message or by a table of memory. */
static bool
names_the_step(const llmc_error *err, const char *words)
{
	const char *own = strstr(err->text, words), *end = strstr(err->text, ": ");

	if (!own)
		return err->code == LLMC_E_MEMORY && strstr(err->text, " does not fit GPU 0 (") &&
		       strstr(err->text, "free");
	return end && end < own && memchr(err->text, ' ', (size_t)(end - err->text)) &&
	       strncmp(err->text, "GPU ", 4) != 0;
}

/* Each phase of opening and running has its own message: the call fails for the nth time, and the
 * message begins with this text. */
static void
errors_name_the_failed_step(void **state)
{
	static const struct {
		const char *call;
		int n;
		const char *says;
	} part[] = {
		{ "cuDriverGetVersion", 1, "querying the driver version: GPU 0: " },
		{ "cuInit", 1, "starting the NVIDIA driver: GPU 0: " },
		{ "cuDeviceGetCount", 1, "counting GPUs: " },
		{ "cuDevicePrimaryCtxRetain", 1, "opening GPU 0: GPU 0 (Emulated H100): " },
		{ "cuMemGetInfo_v2", 1, "querying free memory of GPU 0: " },
		{ "cuMemAlloc_v2", 1, "allocating 1.1 MB for weights: " },
		{ "cuMemHostAlloc", 1, "pinning 1 MB to load weights: " },
		{ "cuMemcpyHtoDAsync_v2", 1, "copying weights to the GPU: " },
		{ "cuModuleLoadData", 1, "loading the kernel kernels/embed." },
		{ "cuModuleGetFunction", 1, "looking for embed_" },
		{ "cuFuncSetAttribute", 1, "preferring shared memory for embed_" },
		{ "cuFuncSetAttribute", 4, "granting " },
		{ "cuMemAlloc_v2", 2, "allocating 0 MB for the KV cache: " },
		{ "cuMemHostAlloc", 4, "pinning 0 MB for steps: " },
		{ "cuTensorMapEncodeTiled", 1, "mapping argument kv of op attention (layer 0): " },
		{ "cuStreamBeginCapture_v2", 1, "capturing the decode step of 1 rows: " },
		{ "cuLaunchKernelEx", 2, "op embed: launching embed_" },
		{ "cuLaunchKernelEx", 3, "op norm_qkv of layer 0: launching norm_qkv_" },
		{ "cuGraphInstantiateWithFlags", 1, "making the decode graph of 1 rows: " },
		{ "cuGraphLaunch", 1, "launching the decode graph of 1 rows: " },
		{ "cuEventSynchronize", 1, "waiting for a step: " },
	};
	enum { INVALID_VALUE = 1 };
	char words[256];
	int32_t got[40];

	(void)state;
	driver_words(INVALID_VALUE, words, sizeof words);
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		llmc_error err = { 0 };
		emu_fail(part[i].call, part[i].n, INVALID_VALUE);
		llmc_status status = whole("cuda", NULL, NEW, got, &err);
		emu_fail(NULL, 0, 0);
		if (status != LLMC_E_DEVICE ||
		    strncmp(err.text, part[i].says, strlen(part[i].says)) != 0 ||
		    !strstr(err.text, words))
			fail_msg("%s: status %d, expected \"%s... %s\", got: %s", part[i].call,
			         status, part[i].says, words, err.text);
	}
	assert_int_equal(whole("cuda", NULL, NEW, got, &(llmc_error){ 0 }), LLMC_OK);
}

/* If the nth driver call fails, the result is an error with a message, or success if only cleanup
 * failed. Nothing leaks, and the next open works. 46 means a lost device; codes from 700 on make
 * the context unusable. LLMC_CHECK_ALL=1: twice as many n, LLMC_TEST_FAULTS=1: every n. */
static void
every_driver_call_may_fail(void **state)
{
	static const struct {
		int code, stride;
	} with[] = { { 2, 3 }, { 719, 9 }, { 46, 41 }, { 214, 43 }, { 700, 47 }, { 999, 37 } };
	bool all = getenv("LLMC_TEST_FAULTS") != NULL;
	int32_t got[40];
	llmc_error err;
	long total;

	(void)state;
	emu_count_reset();
	assert_int_equal(whole("cuda", NULL, NEW, got, &err), LLMC_OK);
	total = emu_count(NULL);
	assert_int_equal(emu_count("cuCtxPushCurrent_v2"), emu_count("cuCtxPopCurrent_v2"));
	assert_int_equal(emu_leaks(), 0);
	for (size_t k = 0; k < sizeof with / sizeof *with; k++) {
		int code = with[k].code, stride = all                        ? 1
		                                  : getenv("LLMC_CHECK_ALL") ? with[k].stride
		                                                             : 2 * with[k].stride;
		long failed = 0;
		char words[256];
		driver_words(code, words, sizeof words);
		for (long n = 1 + (long)k; n <= total; n += stride) {
			long leaks = emu_leaks();
			err = (llmc_error){ 0 };
			emu_fail(NULL, n, code);
			llmc_status status = whole("cuda", NULL, NEW, got, &err);
			emu_fail(NULL, 0, 0);
			const char *call = emu_failed();
			if (status != LLMC_OK) {
				failed++;
				if (!names_the_step(&err, words))
					fail_msg("call %ld (%s), code %d: the error does not name "
					         "the step: %s",
					         n, call, code, err.text);
				if (strlen(err.text) < 20 ||
				    (status != LLMC_E_DEVICE && status != LLMC_E_MEMORY &&
				     status != LLMC_E_MISSING))
					fail_msg("call %ld (%s), code %d: status %d, %s", n, call,
					         code, status, err.text);
			}
			if (status != LLMC_OK && call && !frees_something(call) &&
			    emu_leaks() != leaks)
				fail_msg(
				    "call %ld (%s), code %d: %ld things were not given back; %s", n,
				    call, code, emu_leaks() - leaks, err.text);
			if ((all || n % 10 == 0) &&
			    (status = whole("cuda", NULL, NEW, got, &err)) != LLMC_OK)
				fail_msg("after call %ld (%s) failed with %d: %s", n, call, code,
				         err.text);
		}
		assert_true(failed * stride > total / 3);
	}
	assert_int_equal(whole("cuda", NULL, NEW, got, &err), LLMC_OK);
	assert_int_equal(got[NEW - 1], reference[NEW - 1]);
}

static void
doctor(void **state)
{
	char *json;
	llmc_error err;

	(void)state;
	assert_int_equal(cuda_describe(&json, &err), LLMC_OK);
	assert_non_null(strstr(json, "Emulated"));
	assert_non_null(strstr(json, "cuda-sm_"));
	assert_non_null(strstr(json, "NVRTC 13.0"));
	assert_non_null(strstr(json, "supports CUDA 13.0"));
	free(json);
}

/* The device is lost while a request runs: session and model can be closed, and a fresh open
 * works. */
static void
device_lost_during_a_request(void **state)
{
	static const struct {
		int code;
		const char *name;
	} with[] = { { 700, "ILLEGAL_ADDRESS" },
		     { 4, "DEINITIALIZED" },
		     { 46, "DEVICE_UNAVAILABLE" },
		     { 100, "NO_DEVICE" },
		     { 214, "ECC_UNCORRECTABLE" },
		     { 220, "NVLINK_UNCORRECTABLE" },
		     { 226, "CONTAINED" },
		     { 702, "LAUNCH_TIMEOUT" },
		     { 709, "CONTEXT_IS_DESTROYED" },
		     { 710, "ASSERT" },
		     { 714, "HARDWARE_STACK" },
		     { 715, "ILLEGAL_INSTRUCTION" },
		     { 716, "MISALIGNED" },
		     { 717, "ADDRESS_SPACE" },
		     { 718, "INVALID_PC" },
		     { 719, "LAUNCH_FAILED" },
		     { 721, "TENSOR_MEMORY_LEAK" },
		     { 806, "MPS_RPC" },
		     { 810, "MPS_CLIENT" },
		     { 911, "EXTERNAL_DEVICE" },
		     { 999, "UNKNOWN" } };
	llmc_model *m;
	llmc_session *s;
	llmc_error err;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);
	int32_t got[40], *at;

	(void)state;
	l.context = 128;
	for (size_t k = 0; k < sizeof with / sizeof *with; k++) {
		at = got;
		assert_int_equal(open_tiny("cuda", NULL, &m, &err), LLMC_OK);
		assert_int_equal(llmc_session_open(m, &l, &s, &err), LLMC_OK);
		emu_fail("cuEventSynchronize", 4, with[k].code);
		assert_int_equal(llmc_generate(s, prompt, PROMPT, &p, keep_id, &at, NULL, &err),
		                 LLMC_E_DEVICE);
		assert_non_null(strstr(err.text, "waiting for a step"));
		assert_non_null(strstr(err.text, with[k].name));
		assert_non_null(strstr(err.text, "open it again"));
		assert_int_equal(llmc_generate(s, prompt, PROMPT, &p, keep_id, &at, NULL, &err),
		                 LLMC_E_DEVICE);
		assert_non_null(strstr(err.text, "has failed before"));
		llmc_session_close(s);
		llmc_close(m);
	}
	at = got;
	assert_int_equal(whole("cuda", NULL, NEW, got, &err), LLMC_OK);
	assert_int_equal(got[NEW - 1], reference[NEW - 1]);
}

int
main(void)
{
	char dir[4096];
	Tempdir cache;

	if (!emulator(dir)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	if (tempdir_open(&cache) != 0)
		return 1;
	setenv("LLMC_CACHE", cache.path, 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(targets),
		cmocka_unit_test(greedy_tokens_equal_the_references),
		cmocka_unit_test(sampled_tokens_equal_the_references),
		cmocka_unit_test(driver_calls_per_token),
		cmocka_unit_test(doctor),
	};
	const struct CMUnitTest of_opening[] = {
		/* each of these tests opens its own models, which fail or are lost */
		cmocka_unit_test(errors_name_the_failed_step),
		cmocka_unit_test(device_lost_during_a_request),
		cmocka_unit_test(every_driver_call_may_fail),
	};
	int rc = close_shared(cmocka_run_group_tests(tests, NULL, NULL));
	rc = no_findings(rc + cmocka_run_group_tests(of_opening, NULL, NULL));
	tempdir_close(&cache);
	return rc;
}
