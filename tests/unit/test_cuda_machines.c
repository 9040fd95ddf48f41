/* CUDA runtime on machines of all kinds, each in a process of its own: GPUs and drivers that are
 * too old or too small, another process on the GPU, libraries in unusual folders. */
#include <sys/wait.h>

#include "base/file.h"
#include "runtime/cuda/cuda.h"
#include "tests/unit/cuda_whole.h"
#include "tests/unit/tempdir.h"

static const char *plan_arch; /* architecture to compile for; NULL: the device's own */

/* Runs a test in its own process, because the emulator reads its settings only once. */
static int
in_own_process(const char *name, const char *value, llmc_status want, const char *const *words)
{
	pid_t pid = fork();
	int code = 0;

	if (pid == 0) {
		int32_t got[40];
		llmc_error err = { 0 };
		setenv(name, value, 1);
		llmc_status status = whole("cuda", plan_arch, NEW, got, &err);
		bool ok = status == want;
		for (; ok && *words; words++)
			ok = strstr(err.text, *words) != NULL;
		if (!ok)
			fprintf(stderr, "%s=%s: status %d: %s\n", name, value, status, err.text);
		_exit(!ok);
	}
	waitpid(pid, &code, 0);
	return code;
}

static void
machines(void **state)
{
	Tempdir t;

	(void)state;
	assert_int_equal(tempdir_open(&t), 0);
	const char *dir = t.path;
	assert_int_equal(in_own_process("LLMC_EMU_DRIVER", "11040", LLMC_E_MISSING,
	                                (const char *[]){ "11.4", "11.8", "update", NULL }),
	                 0);
	assert_int_equal(in_own_process("LLMC_CUDA_LIBDIR", dir, LLMC_E_MISSING,
	                                (const char *[]){ "libcuda.so.1", dir, NULL }),
	                 0);
	assert_int_equal(
	    in_own_process("LLMC_EMU_GPU", "none", LLMC_E_MISSING,
	                   (const char *[]){ "no GPU is visible", "--device cpu", NULL }),
	    0);
	const char *const too_old[] = { "GPU 0 (Emulated V100) is of architecture sm_70",
		                        "needs sm_75 (Turing", "--device cpu", NULL };
	assert_int_equal(in_own_process("LLMC_EMU_GPU", "sm_70", LLMC_E_MISSING, too_old), 0);
	plan_arch = "sm_75"; /* the next test has a plan for another architecture */
	assert_int_equal(in_own_process("LLMC_EMU_GPU", "sm_70", LLMC_E_MISSING, too_old), 0);
	plan_arch = "sm_80";
	assert_int_equal(in_own_process("LLMC_EMU_GPU", "sm_75", LLMC_E_MISSING,
	                                (const char *[]){ "the plan is for sm_80", "Emulated T4",
	                                                  "sm_75", "--arch sm_75", NULL }),
	                 0);
	plan_arch = NULL;
	assert_int_equal(in_own_process("LLMC_EMU_DRIVER", "12040", LLMC_E_MISSING,
	                                (const char *[]){ "13.0", "CUDA 12", "NVRTC", NULL }),
	                 0);
	/* NVRTC of CUDA 12.8 has no sm_121, so kernels that sm_120 shares are compiled for sm_120.
	 * A Thor runs images for its own architecture only. */
	setenv("LLMC_EMU_NVRTC", "12080", 1);
	assert_int_equal(
	    in_own_process("LLMC_EMU_GPU", "sm_121", LLMC_OK, (const char *[]){ NULL }), 0);
	assert_int_equal(
	    in_own_process("LLMC_EMU_GPU", "sm_110", LLMC_E_MISSING,
	                   (const char *[]){ "CUDA 12.8", "sm_110a", "Emulated Thor", NULL }),
	    0);
	unsetenv("LLMC_EMU_NVRTC");
	assert_int_equal(
	    in_own_process("LLMC_EMU_MEM_MB", "1", LLMC_E_MEMORY,
	                   (const char *[]){ "weights  1.1 MB", "kv       384 bytes per position",
	                                     "free     1.0 MB", "weights stored as Q8_0 (",
	                                     "another GPU", NULL }),
	    0);
	assert_int_equal(in_own_process("LLMC_EMU_MEM_MB", "2", LLMC_E_MEMORY,
	                                (const char *[]){ "kv", "scratch", "state", "free",
	                                                  "not even one position", "these limits: ",
	                                                  "--offload auto", NULL }),
	                 0);
	tempdir_close(&t);
}

/* A session with the limits that the error message suggests fits; one with twice as much does
 * not. */
static int
check_suggested_limits(void)
{
	llmc_model *m;
	llmc_session *s;
	llmc_error err = { 0 };
	llmc_limits l = LLMC_INIT(llmc_limits);
	const char *suggested;

	setenv("LLMC_EMU_MEM_MB", "64", 1);
	l.context = l.seqs = l.chunk = 512; /* 101 MB of KV */
	if (open_tiny("cuda", NULL, &m, &err) != LLMC_OK ||
	    llmc_session_open(m, &l, &s, &err) != LLMC_E_MEMORY || !strstr(err.text, "would fit") ||
	    !(suggested = strstr(err.text, "--context ")) ||
	    sscanf(suggested, "--context %d with --seqs %d", &l.context, &l.seqs) != 2) {
		fprintf(stderr, "no suggested limits: %s\n", err.text);
		return 1;
	}
	if (llmc_session_open(m, &l, &s, &err) != LLMC_OK) {
		fprintf(stderr, "the suggested limits do not fit: %s\n", err.text);
		return 1;
	}
	llmc_session_close(s);
	*(l.context < 512 ? &l.context : &l.seqs) *= 2;
	if (llmc_session_open(m, &l, &s, &err) == LLMC_OK) {
		fprintf(stderr, "context %d with %d sequences would have fit as well\n", l.context,
		        l.seqs);
		return 1;
	}
	llmc_close(m);
	return 0;
}

static void
suggested_limits_fit(void **state)
{
	int code = 1;
	pid_t pid = fork();

	(void)state;
	if (pid == 0)
		_exit(check_suggested_limits());
	waitpid(pid, &code, 0);
	assert_int_equal(code, 0);
}

/* Hold a session on the device until the other end of `go` is closed. */
static int
holds_memory(llmc_limits l, int ready, int go)
{
	llmc_model *m;
	llmc_session *s;
	llmc_error err = { 0 };
	char byte = 0;

	if (open_tiny("cuda", NULL, &m, &err) != LLMC_OK ||
	    llmc_session_open(m, &l, &s, &err) != LLMC_OK) {
		fprintf(stderr, "the first process: %s\n", err.text);
		return 1;
	}
	if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0)
		return 1;
	llmc_session_close(s);
	llmc_close(m);
	return 0;
}

/* Another process holds half of the GPU: a session that does not fit is rejected with the free
 * memory, the suggested limits fit, and after the other process has ended all fits. */
static int
with_another_process(void)
{
	int ready[2], go[2], code = 1;
	llmc_model *m;
	llmc_session *s;
	llmc_error err = { 0 };
	llmc_limits l = LLMC_INIT(llmc_limits), suggested = LLMC_INIT(llmc_limits);
	double left = 0, total = 0;
	char byte;

	l.context = 512;
	l.chunk = 64;
	l.seqs = 160; /* 32 MB of KV of 64 MB */
	if (pipe(ready) != 0 || pipe(go) != 0)
		return 1;
	pid_t pid = fork();
	if (pid == 0) {
		close(ready[0]);
		close(go[1]);
		_exit(holds_memory(l, ready[1], go[0]));
	}
	close(ready[1]);
	close(go[0]);
	suggested.chunk = l.chunk;
	if (read(ready[0], &byte, 1) != 1 || open_tiny("cuda", NULL, &m, &err) != LLMC_OK ||
	    llmc_session_open(m, &l, &s, &err) != LLMC_E_MEMORY) {
		fprintf(stderr, "not refused: %s\n", err.text);
		return 1;
	}
	const char *free_of = strstr(err.text, "  free     "),
	           *fits = strstr(err.text, "--context ");
	if (!free_of || sscanf(free_of, "  free %lf MB of %lf MB", &left, &total) != 2 ||
	    left < 16 || left > 34 || total < 67 || !fits ||
	    sscanf(fits, "--context %d with --seqs %d would fit", &suggested.context,
	           &suggested.seqs) != 2) {
		fprintf(stderr, "no suggested limits: %s\n", err.text);
		return 1;
	}
	if (llmc_session_open(m, &suggested, &s, &err) != LLMC_OK) {
		fprintf(stderr, "the suggested limits do not fit: %s\n", err.text);
		return 1;
	}
	llmc_session_close(s);
	close(go[1]);
	waitpid(pid, &code, 0);
	if (code != 0 || llmc_session_open(m, &l, &s, &err) != LLMC_OK) {
		fprintf(stderr, "alone again: %d, %s\n", code, err.text);
		return 1;
	}
	llmc_session_close(s);
	llmc_close(m);
	return 0;
}

static void
two_processes_share_a_gpu(void **state)
{
	int code = 1;
	Tempdir t;

	(void)state;
	assert_int_equal(tempdir_open(&t), 0);
	pid_t pid = fork();
	if (pid == 0) {
		setenv("LLMC_EMU_SHARED", tempdir_file(&t, "used"), 1);
		setenv("LLMC_EMU_MEM_MB", "64", 1);
		_exit(with_another_process());
	}
	waitpid(pid, &code, 0);
	tempdir_close(&t);
	assert_int_equal(code, 0);
}

/* Run `test_cuda_machines wheel FILE` in a process of its own, because the loader reads its path
 * once. FILE is the NVRTC that must be found; the driver comes from the loader. */
static int
with_wheel(const char *file)
{
	int32_t got[40];
	llmc_error err = { 0 };
	char driver[1024];
	CudaApi api;
	Nvrtc n;
	void *lib;

	if (nvrtc_open(&n, 0, &err) != LLMC_OK ||
	    cuda_driver_open(&lib, &api, driver, sizeof driver, &err) != LLMC_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	bool right = strcmp(n.path, file) == 0 && strcmp(driver, "libcuda.so.1") == 0;
	if (!right)
		fprintf(stderr, "NVRTC is %s instead of %s, the driver %s\n", n.path, file, driver);
	nvrtc_close(&n);
	dlclose(lib);
	if (right && whole("cuda", plan_arch, NEW, got, &err) != LLMC_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	return !right;
}

/* LLMC_CUDA_LIBDIR names a folder with NVRTC only, or one that contains it as in Python's
 * site-packages: the system's driver is used. */
static void
nvrtc_without_a_driver_next_to_it(void **state)
{
	static const char *const below[] = { "", "/nvidia/cuda_nvrtc/lib", "/nvidia/cu13/lib" };
	const char *emu = getenv("LLMC_CUDA_LIBDIR"), *path = getenv("LD_LIBRARY_PATH");
	char self[4096] = "", search[8400], from[4200], file[1024];

	(void)state;
	assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	snprintf(search, sizeof search, "%s%s%.4000s", emu, path ? ":" : "", path ? path : "");
	snprintf(from, sizeof from, "%s/libnvrtc.so.13", emu);
	for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
		Tempdir t;
		int code = 1;
		assert_int_equal(tempdir_open(&t), 0);
		snprintf(file, sizeof file, "%s%s", t.path, below[i]);
		assert_int_equal(file_mkdirs(file, NULL), LLMC_OK);
		strcat(file, "/libnvrtc.so.13");
		assert_int_equal(symlink(from, file), 0);
		pid_t pid = fork();
		if (pid == 0) {
			setenv("LLMC_CUDA_LIBDIR", t.path, 1);
			setenv("LD_LIBRARY_PATH", search, 1);
			execl(self, self, "wheel", file, (char *)NULL);
			_exit(127);
		}
		waitpid(pid, &code, 0);
		tempdir_close(&t);
		assert_int_equal(code, 0);
	}
}

/* From sm_90 on, each kernel of a decode step except the first starts before its predecessor ends,
 * on the same SMs (PDL). On older GPUs, and in graphs of drivers before CUDA 12.3, no edge requests
 * an early start. No graph changes the shared memory carveout of an SM. */
static void
overlaps(const char *gpu, const char *driver, bool all)
{
	llmc_model *m;
	llmc_session *s;
	llmc_error err = { 0 };
	llmc_limits l = LLMC_INIT(llmc_limits);
	static const char *const set[] = { "dtype=bf16", "n_layers=2", NULL };
	long kernels, requested, edges, changes;
	pid_t pid = fork();
	int code = 1;

	if (pid == 0) {
		setenv("LLMC_EMU_GPU", gpu, 1);
		setenv("LLMC_EMU_DRIVER", driver, 1);
		setenv("LLMC_EMU_NVRTC", driver, 1);
		l.context = 128;
		l.seqs = 16;
		if (open_tiny_with("cuda", NULL, set, &m, &err) != LLMC_OK ||
		    llmc_session_open(m, &l, &s, &err) != LLMC_OK) {
			fprintf(stderr, "%s, driver %s: %s\n", gpu, driver, err.text);
			_exit(1);
		}
		emu_graph(&kernels, &requested, &edges, &changes);
		bool right = kernels > 10 && requested == (all ? kernels - 1 : 0) &&
		             edges == requested && !changes;
		if (!right)
			fprintf(stderr,
			        "%s, driver %s: of %ld kernels %ld ask for a programmatic edge, "
			        "%ld have one; %ld changes of L1\n",
			        gpu, driver, kernels, requested, edges, changes);
		/* graphs of many rows contain the GEMMs of mixed steps, whose kernels do not
		 * overlap */
		if (right && session_prepare(s->s, &err) != LLMC_OK) {
			fprintf(stderr, "%s, driver %s: %s\n", gpu, driver, err.text);
			_exit(1);
		}
		emu_graph(&kernels, &requested, &edges, &changes);
		if (right && (changes || kernels < 6))
			fprintf(stderr,
			        "%s, driver %s: L1 changes %ld times in a graph of 16 rows with "
			        "%ld kernels\n",
			        gpu, driver, changes, kernels);
		right = right && !changes && kernels >= 6;
		_exit(!right);
	}
	waitpid(pid, &code, 0);
	assert_int_equal(code, 0);
}

static void
graphs_have_programmatic_edges(void **state)
{
	(void)state;
	overlaps("sm_90a", "13000", true);
	if (getenv("LLMC_CHECK_ALL"))
		overlaps("sm_120a", "13000", true);
	overlaps("sm_90a", "12020", false);
	overlaps("sm_80", "13000", false);
}

int
main(int argc, char **argv)
{
	char dir[4096];
	Tempdir cache;

	if (argc == 3 && strcmp(argv[1], "wheel") == 0)
		return with_wheel(argv[2]);
	if (!emulator(dir)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	if (tempdir_open(&cache) != 0)
		return 1;
	setenv("LLMC_CACHE", cache.path, 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(machines),
		cmocka_unit_test(suggested_limits_fit),
		cmocka_unit_test(two_processes_share_a_gpu),
		cmocka_unit_test(graphs_have_programmatic_edges),
		cmocka_unit_test(nvrtc_without_a_driver_next_to_it),
	};
	int rc = no_findings(cmocka_run_group_tests(tests, NULL, NULL));
	tempdir_close(&cache);
	return rc;
}
