/* The runtime's use of cuBLASLt, with a stand-in for the library on the emulated GPU: accuracy of
 * its GEMMs, choice and caching of algorithms, a failure of each call, machines without some
 * features, and op times. */
#include "tests/unit/cuda_util.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "runtime/cuda/cublaslt.h"
#include "tests/unit/tempdir.h"

enum {
	VOCAB = 300,
	LAYERS = 3,
	PRODUCTS = 4 /* q/k/v, o, gate and up, down */,
	FEW = 9,
	MANY = 128
};

static char cache[4096];
static int32_t tok[MANY];

static long
calls(const char *what)
{
	char name[64];

	snprintf(name, sizeof name, "cublasLt%s", what);
	return emu_count(name);
}

/* Run one chunk of n tokens in a session of the tiny model with 16-bit weights; returns the last
 * logits. own: the model is opened and closed here */
static llmc_status
run_in(bool own, const char *mode, const char *dtype, const char *more, const char *arch, int32_t n,
       int32_t chunk, float out[VOCAB], llmc_error *err)
{
	char first[64];
	const char *set[] = { first, more, NULL };
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_model *m = NULL;
	llmc_session *s = NULL;
	llmc_seq q;

	snprintf(first, sizeof first, "dtype=%s", dtype);
	l.context = 160;
	l.chunk = chunk;
	setenv("LLMC_CUBLASLT", mode, 1);
	llmc_status status = own ? LLMC_OK : shared_tiny("cuda", arch, set, &m, err);
	emu_count_reset();
	if (own)
		status = open_tiny_with("cuda", arch, set, &m, err);
	if (status == LLMC_OK)
		status = llmc_session_open(m, &l, &s, err);
	if (status == LLMC_OK)
		status = llmc_seq_new(s, n, &q, err);
	if (status == LLMC_OK) {
		llmc_chunk c = { .seq = q, .tok = tok, .n_tok = n, .n_out = 1 };
		status = llmc_forward(s, &c, 1, out, err);
	}
	llmc_session_close(s);
	if (own)
		llmc_close(m);
	else if (status != LLMC_OK)
		close_models();
	return status;
}

static llmc_status
run(const char *mode, const char *dtype, const char *more, const char *arch, int32_t n,
    int32_t chunk, float out[VOCAB], llmc_error *err)
{
	return run_in(false, mode, dtype, more, arch, n, chunk, out, err);
}

#define OK(...)                                                                                    \
	do {                                                                                       \
		llmc_error ok_ = { 0 };                                                            \
		if (run(__VA_ARGS__, &ok_) != LLMC_OK)                                             \
			fail_msg("%s", ok_.text);                                                  \
	} while (0)

static void
close_to(const float *got, const float *want, float most)
{
	float low = want[0], high = want[0], off = 0;

	for (int i = 0; i < VOCAB; i++) {
		low = fminf(low, want[i]);
		high = fmaxf(high, want[i]);
		off = fmaxf(off, fabsf(got[i] - want[i]));
	}
	assert_true(off <= most * (high - low)); /* also fails for NaN */
}

/* The library and our own kernels round activations to the same 16 bits; with bf16 the library's
 * gate and up results are rounded too. */
static void
library_and_own_kernels_agree(void **state)
{
	static const struct {
		const char *dtype, *more, *arch;
		float most;
		int products;
	} by[] = {
		{ "bf16", NULL, "sm_80", 1e-2f, PRODUCTS },
		{ "f16", NULL, "sm_80", 1e-5f, PRODUCTS - 1 },
		/* full pipeline stages of wgmma */
		{ "bf16", "hidden=128", "sm_90a", 1e-2f, PRODUCTS },
	};
	float own[VOCAB], library[VOCAB];

	(void)state;
	for (size_t i = 0; i < (getenv("LLMC_CHECK_ALL") ? sizeof by / sizeof *by : 2); i++) {
		OK("never", by[i].dtype, by[i].more, by[i].arch, FEW, 16, own);
		assert_int_equal(calls("Create") + calls("Matmul"), 0);
		OK("always", by[i].dtype, by[i].more, by[i].arch, FEW, 16, library);
		assert_int_equal(calls("Matmul"), LAYERS * by[i].products);
		assert_int_equal(calls("MatmulAlgoGetHeuristic"),
		                 by[i].products * 5); /* 1, 2, 4, 8, 16 rows */
		close_to(library, own, by[i].most);
		assert_true(memcmp(library, own, sizeof own) != 0 || i == 1);
	}
}

/* The library is not used if rows must not depend on the batch size, for GEMMs in f32, and for
 * small steps. */
static void
library_is_not_used_where_it_must_not_be(void **state)
{
	float x[VOCAB];

	(void)state;
	OK("always", "bf16", "deterministic=true", "sm_80", FEW, 16, x);
	assert_int_equal(calls("Create"), 0);
	OK("always", "f32", "n_layers=1", NULL, FEW, 16, x);
	assert_int_equal(calls("Create"), 0);
	OK("always", "bf16", "n_layers=1", "sm_75", FEW, 16, x);
	assert_int_equal(calls("Create"), 0);
	OK("auto", "bf16", "n_layers=1", "sm_80", FEW, MANY - 1, x);
	assert_int_equal(calls("Create"), 0);
}

/* The library's workspace is counted, and only if it is used. */
static void
workspace_is_counted(void **state)
{
	static const struct {
		const char *mode, *arch;
		int32_t chunk;
		int64_t bytes;
	} by[] = {
		{ "never", "sm_80", 128, 0 },        { "auto", "sm_80", 128, 4 << 20 },
		{ "auto", "sm_90a", 128, 32 << 20 }, { "auto", "sm_80", 127, 0 },
		{ "always", "sm_80", 127, 4 << 20 }, { "auto", "sm_75", 128, 0 },
	};
	static const char *const set[] = { "dtype=bf16", NULL };
	llmc_error err;

	(void)state;
	for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
		llmc_memory with = LLMC_INIT(llmc_memory), without = LLMC_INIT(llmc_memory);
		llmc_options o = LLMC_INIT(llmc_options);
		llmc_limits l = LLMC_INIT(llmc_limits);
		llmc_model *m;
		o.device = "cuda";
		o.arch = by[i].arch;
		o.set = set;
		o.no_weights = true;
		l.context = 160;
		l.chunk = by[i].chunk;
		assert_int_equal(llmc_open("configs/tiny.yaml", &o, &m, &err), LLMC_OK);
		setenv("LLMC_CUBLASLT", "never", 1);
		assert_int_equal(llmc_memory_for(m, &l, &without, &err), LLMC_OK);
		setenv("LLMC_CUBLASLT", by[i].mode, 1);
		assert_int_equal(llmc_memory_for(m, &l, &with, &err), LLMC_OK);
		assert_int_equal(with.state - without.state, by[i].bytes);
		llmc_close(m);
	}
}

/* Number of files in the cache folder of tuning results; the last one's path in `path`. */
static int
files(char path[4300])
{
	char dir[4200];
	int n = 0;

	snprintf(dir, sizeof dir, "%s/cublaslt", cache);
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.') {
			snprintf(path, 4300, "%s/%.64s", dir, e->d_name);
			n++;
		}
	if (d)
		closedir(d);
	return n;
}

static void
damage(const char *path, int how)
{
	FILE *f = fopen(path, "r+b");

	assert_non_null(f);
	if (how == 0) {
		assert_int_equal(fseek(f, 4, SEEK_SET), 0);
		fputc(fgetc(f) ^ 1, f);
	}
	fclose(f);
	if (how == 0) {
		f = fopen(path, "r+b");
		assert_non_null(f);
		fputs("xx", f);
		fclose(f);
	}
	if (how == 1)
		assert_int_equal(truncate(path, 100), 0);
	if (how == 2)
		assert_int_equal(chmod(path, 0666), 0);
}

/* Open until nothing is left to measure, because measurements of one start are limited in time.
 * Returns the number of heuristic queries. */
static long
settle(int32_t chunk, float out[VOCAB])
{
	long queries = 0, now = 1;

	for (int i = 0; now && i < 2 * PRODUCTS + 1; i++) {
		OK("auto", "bf16", "n_layers=1", "sm_80", MANY, chunk, out);
		now = calls("MatmulAlgoGetHeuristic");
		queries += now;
	}
	assert_int_equal(now, 0);
	return queries;
}

/* Tuning results are cached: another open makes no queries. If a file is damaged, only its GEMMs
 * are measured again. */
static void
choices_are_cached(void **state)
{
	char path[4300];
	float first[VOCAB], again[VOCAB];

	(void)state;
	assert_int_equal(settle(MANY, first), PRODUCTS);
	assert_int_equal(files(path), PRODUCTS);
	OK("auto", "bf16", "n_layers=1", "sm_80", MANY, MANY, again);
	assert_int_equal(calls("MatmulAlgoGetHeuristic"), 0);
	assert_int_equal(emu_count("cuEventElapsedTime"), 0);
	assert_memory_equal(again, first, sizeof first); /* the same algorithm was selected */
	assert_int_equal(calls("Create"),
	                 /* not created if our own kernels are faster everywhere */
	                 calls("Matmul") > 0);
	for (int how = 0; how < 3; how++) {
		assert_int_equal(files(path), PRODUCTS);
		damage(path, how);
		OK("auto", "bf16", "n_layers=1", "sm_80", MANY, MANY, again);
		assert_int_equal(calls("MatmulAlgoGetHeuristic"), 1);
		OK("auto", "bf16", "n_layers=1", "sm_80", FEW, MANY, again);
		assert_int_equal(calls("MatmulAlgoGetHeuristic"), 0);
		assert_int_equal(calls("Matmul"), 0); /* small steps use our own kernels */
	}
	/* earlier results are kept when larger steps are tuned */
	assert_int_equal(settle(2 * MANY, again), PRODUCTS);
	assert_int_equal(files(path), PRODUCTS);
}

static const char *const calls_that_fail[] = {
	"cublasLtCreate",
	"cublasLtMatmulPreferenceCreate",
	"cublasLtMatmulPreferenceSetAttribute",
	"cublasLtMatmulDescCreate",
	"cublasLtMatmulDescSetAttribute",
	"cublasLtMatrixLayoutCreate",
	"cublasLtMatrixLayoutSetAttribute",
	"cublasLtMatmulAlgoGetHeuristic",
};

/* A library failure before the first step is not an error: our own kernels are used, and everything
 * opened is closed. */
static void
failures_before_a_step_select_own_kernels(void **state)
{
	float own[VOCAB], got[VOCAB];

	(void)state;
	OK("never", "bf16", "n_layers=1", "sm_80", FEW, 16, own);
	for (size_t i = 0; i < sizeof calls_that_fail / sizeof *calls_that_fail; i++)
		for (long n = 1; n <= 3; n += 2) {
			emu_fail(calls_that_fail[i], n, 801);
			OK("always", "bf16", "n_layers=1", "sm_80", FEW, 16, got);
			emu_fail(NULL, 0, 0);
			close_to(got, own, 1e-2f);
			assert_int_equal(calls("Create") - (i == 0 && n == 1), calls("Destroy"));
			assert_int_equal(emu_count("cuMemAlloc_v2"), emu_count("cuMemFree_v2"));
			if (i > 2)
				continue;
			if (n == 1)
				assert_memory_equal(got, own, sizeof own);
		}
	OK("always", "bf16", "n_layers=1", "sm_80", FEW, 16, got);
	assert_int_equal(calls("MatmulDescCreate"), calls("MatmulDescDestroy"));
	assert_int_equal(calls("MatrixLayoutCreate"), calls("MatrixLayoutDestroy"));
	assert_int_equal(calls("MatmulPreferenceCreate"), calls("MatmulPreferenceDestroy"));
	assert_int_equal(calls("MatrixLayoutCreate"), 3 * PRODUCTS);
}

/* If there is no memory for the library's workspace, our own kernels are used, too. */
static void
missing_workspace_selects_own_kernels(void **state)
{
	float own[VOCAB], got[VOCAB];

	(void)state;
	OK("never", "bf16", NULL, "sm_80", FEW, 16, own);
	emu_fail("cuMemAlloc_v2", emu_count("cuMemAlloc_v2") + 1, 2);
	OK("always", "bf16", NULL, "sm_80", FEW, 16, got);
	assert_string_equal(emu_failed(), "cuMemAlloc_v2");
	emu_fail(NULL, 0, 0);
	assert_int_equal(calls("Matmul"), 0);
	assert_int_equal(calls("Create"), 1);
	assert_int_equal(calls("Destroy"), 1);
	assert_memory_equal(got, own, sizeof own);
}

/* If the time for tuning runs out, only the largest steps have been measured: small ones use our
 * own kernels. */
static void
unmeasured_sizes_use_own_kernels(void **state)
{
	LtMatmul *p = calloc(1, sizeof *p);

	(void)state;
	assert_non_null(p);
	p->n_choice = 1;
	p->choice[0] = (LtChoice){ .rows = 4096, .library = 1 };
	assert_null(lt_find(p, 128));
	assert_null(lt_find(p, 1024));
	assert_ptr_equal(lt_find(p, 2049), &p->choice[0]);
	assert_ptr_equal(lt_find(p, 4096), &p->choice[0]);
	assert_null(lt_find(p, 4097));
	free(p);
}

/* ---- llmc_op_times ---- */

typedef struct OpTimes {
	int n, library, launches;
	bool sane;
} OpTimes;

static void
on_op_time(void *user, const llmc_op_time *t)
{
	OpTimes *all = user;

	all->n++;
	all->library += t->library;
	all->launches += t->n;
	all->sane =
	    all->sane && t->op && *t->op && t->n > 0 && t->seconds > 0 && t->weight_bytes >= 0;
}

static void
step_of(llmc_session *s, llmc_seq *q, int32_t n, float *out)
{
	llmc_error err = { 0 };

	assert_int_equal(llmc_seq_new(s, 32, q, &err), LLMC_OK);
	llmc_chunk c = { .seq = *q, .tok = tok, .n_tok = n, .n_out = 1 };
	assert_int_equal(llmc_forward(s, &c, 1, out, &err), LLMC_OK);
}

/* Measured graphs include the library's GEMMs; a later step gives the same results as without the
 * measurement. */
static void
op_times_include_library_gemms(void **state)
{
	static const char *const set[] = { "dtype=bf16", "n_layers=1", NULL };
	llmc_limits l = LLMC_INIT(llmc_limits);
	float before[VOCAB], after[VOCAB];
	llmc_error err = { 0 };
	llmc_session *s;
	llmc_model *m;
	llmc_seq q;

	(void)state;
	l.context = 32;
	l.chunk = 16;
	setenv("LLMC_CUBLASLT", "always", 1);
	assert_int_equal(shared_tiny("cuda", "sm_80", set, &m, &err), LLMC_OK);
	assert_int_equal(llmc_session_open(m, &l, &s, &err), LLMC_OK);
	OpTimes times = { .sane = true };
	assert_int_equal(llmc_op_times(s, on_op_time, &times, &err), LLMC_E_RANGE);
	for (int32_t n = 1; n <= FEW; n += FEW - 1) {
		times = (OpTimes){ .sane = true };
		step_of(s, &q, n, before);
		if (llmc_op_times(s, on_op_time, &times, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		assert_true(times.sane && times.n > PRODUCTS && times.launches >= times.n);
		assert_int_equal(times.library, n == 1 ? 0 : PRODUCTS);
		llmc_seq_free(s, q);
		step_of(s, &q, n, after);
		assert_memory_equal(after, before, sizeof before);
		/* the pages of the freed sequence may belong to another one */
		llmc_seq_free(s, q);
		assert_int_equal(llmc_op_times(s, on_op_time, &times, &err), LLMC_E_RANGE);
		assert_non_null(strstr(err.text, "is not as the last step left it"));
		step_of(s, &q, n, after);
		assert_int_equal(llmc_seq_trim(s, q, 0, &err), LLMC_OK);
		assert_int_equal(llmc_op_times(s, on_op_time, &times, &err), LLMC_E_RANGE);
		llmc_seq_free(s, q);
	}
	llmc_session_close(s);
}

/* Within a step: if the library refuses a GEMM, our own kernel runs; any other failure is an error
 * that names the op. */
static void
failures_in_a_step(void **state)
{
	static const int refusal[] = { 3, 7, 8, 15 };
	float own[VOCAB], got[VOCAB];
	llmc_error err = { 0 };

	(void)state;
	OK("never", "bf16", NULL, "sm_80", FEW, 16, own);
	for (size_t i = 0; i < sizeof refusal / sizeof *refusal; i++) {
		emu_fail("cublasLtMatmul", (long)i + 1, refusal[i]);
		OK("always", "bf16", NULL, "sm_80", FEW, 16, got);
		emu_fail(NULL, 0, 0);
		close_to(got, own, 1e-2f);
		assert_int_equal(calls("Matmul"),
		                 1 + LAYERS * (PRODUCTS - 1) +
		                     0); /* the library is not tried again for this kernel */
	}
	emu_fail("cublasLtMatmul", 6, 719);
	assert_int_equal(run("always", "bf16", NULL, "sm_80", FEW, 16, got, &err), LLMC_E_DEVICE);
	emu_fail(NULL, 0, 0);
	assert_non_null(strstr(err.text, "op matmul_add of layer 1"));
	assert_non_null(strstr(err.text, "CUBLAS_STATUS_EXECUTION_FAILED"));
	assert_non_null(strstr(err.text, "LLMC_CUBLASLT=never"));
	OK("always", "bf16", NULL, "sm_80", FEW, 16, got);
	close_to(got, own, 1e-2f);
}

/* During tuning, any call of the driver or the library may fail: the result is success, or an error
 * with a message, and nothing leaks. */
static void
failures_while_measuring(void **state)
{
	char path[4300];
	float x[VOCAB];
	long total, failed = 0;

	(void)state;
	close_models();
	for (int left = files(path); left > 0; left = files(path))
		assert_int_equal(unlink(path), 0);
	if (run_in(true, "auto", "bf16", "n_layers=1", "sm_80", FEW, MANY, x, &(llmc_error){ 0 }) !=
	    LLMC_OK)
		fail();
	total = emu_count(NULL);
	assert_int_equal(emu_count("cuEventCreate"), emu_count("cuEventDestroy_v2"));
	assert_int_equal(emu_count("cuMemAlloc_v2"), emu_count("cuMemFree_v2"));
	for (long n = total / 3; n < total; n += 61) {
		llmc_error err = { 0 };
		for (int left = files(path); left > 0; left = files(path))
			assert_int_equal(unlink(path), 0);
		emu_fail(NULL, n, n % 2 ? 2 : 719);
		llmc_status status =
		    run_in(true, "auto", "bf16", "n_layers=1", "sm_80", FEW, MANY, x, &err);
		emu_fail(NULL, 0, 0);
		failed += status != LLMC_OK;
		if (status != LLMC_OK &&
		    (!err.text[0] || (status != LLMC_E_DEVICE && status != LLMC_E_MEMORY)))
			fail_msg("call %ld: status %d, %s", n, status, err.text);
	}
	assert_true(failed > 1);
}

/* Runs a test in its own process, because a library that was opened once is not loaded again from
 * another folder. */
static int
in_own_process(const char *mode, const char *dir, llmc_status want, const char *word)
{
	pid_t pid = fork();
	int code = 1;

	if (pid == 0) {
		float x[VOCAB];
		llmc_error err = { 0 };
		if (dir)
			setenv("LLMC_CUDA_LIBDIR", dir, 1);
		llmc_status status = run(mode, "bf16", "n_layers=1", "sm_80", FEW, MANY, x, &err);
		bool ok = status == want && strstr(err.text, word);
		if (!ok)
			fprintf(stderr, "LLMC_CUBLASLT=%s: status %d: %s\n", mode, status,
			        err.text);
		_exit(!ok);
	}
	waitpid(pid, &code, 0);
	return code;
}

static void
machines(void **state)
{
	const char *emu = getenv("LLMC_CUDA_LIBDIR");
	char from[4300], to[4300];
	LtLibrary l;
	llmc_error err = { 0 };
	Tempdir t;

	(void)state;
	assert_int_equal(lt_library_open(&l, 13000, &err), LLMC_OK);
	assert_int_equal(l.version, 130000);
	lt_library_close(&l);
	assert_int_equal(lt_library_open(&l, 12080, &err), LLMC_E_MISSING);
	assert_non_null(strstr(err.text, "is of CUDA 13.0, the driver is for CUDA 12"));
	assert_null(l.lib);
	assert_int_equal(tempdir_open(&t), 0);
	for (const char *const *name =
	         (const char *const[]){ "libcuda.so.1", "libnvrtc.so.13", NULL };
	     *name; name++) {
		snprintf(from, sizeof from, "%s/%s", emu, *name);
		snprintf(to, sizeof to, "%s/%s", t.path, *name);
		assert_int_equal(symlink(from, to), 0);
	}
	assert_int_equal(in_own_process("auto", t.path, LLMC_OK, ""), 0);
	assert_int_equal(in_own_process("always", t.path, LLMC_E_MISSING,
	                                "LLMC_CUBLASLT is \"always\", but cuBLASLt: not found"),
	                 0);
	assert_int_equal(
	    in_own_process("sometimes", NULL, LLMC_E_INPUT,
	                   "LLMC_CUBLASLT is \"sometimes\", expected auto, always or never"),
	    0);
	/* a different library has the same name */
	snprintf(from, sizeof from, "%s/libnvrtc.so.13", emu);
	snprintf(to, sizeof to, "%s/libcublasLt.so.13", t.path);
	assert_int_equal(symlink(from, to), 0);
	assert_int_equal(in_own_process("auto", t.path, LLMC_OK, ""), 0);
	assert_int_equal(in_own_process("always", t.path, LLMC_E_MISSING,
	                                "is too old: it lacks cublasLtGetVersion"),
	                 0);
	tempdir_close(&t);
}

int
main(void)
{
	char dir[4096];
	Tempdir t;

	if (!emulator(dir)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	if (tempdir_open(&t) != 0)
		return 1;
	snprintf(cache, sizeof cache, "%s", t.path);
	setenv("LLMC_CACHE", cache, 1);
	for (int i = 0; i < MANY; i++)
		tok[i] = (i * 7919 + 13) % VOCAB;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(machines),
		cmocka_unit_test(library_and_own_kernels_agree),
		cmocka_unit_test(library_is_not_used_where_it_must_not_be),
		cmocka_unit_test(workspace_is_counted),
		cmocka_unit_test(choices_are_cached),
		cmocka_unit_test(failures_before_a_step_select_own_kernels),
		cmocka_unit_test(missing_workspace_selects_own_kernels),
		cmocka_unit_test(unmeasured_sizes_use_own_kernels),
		cmocka_unit_test(op_times_include_library_gemms),
		cmocka_unit_test(failures_in_a_step),
		cmocka_unit_test(failures_while_measuring),
	};
	int rc = no_findings(close_shared(cmocka_run_group_tests(tests, NULL, NULL)));
	tempdir_close(&t);
	return rc;
}
