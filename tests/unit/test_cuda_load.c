/* Opening a model on the emulated GPU: weights are uploaded while kernels are compiled, and both
 * report their progress. */
#include "tests/unit/cuda_util.h"

#include <dirent.h>

#include "runtime/runtime.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/waiting.h"

enum { MOST = 32 };

typedef struct LoadLog {
	const char *kernels;      /* folder in which compiled kernels appear */
	int n, done[MOST], total; /* progress lines of the upload: MB */
	int compiling, compiled, n_kernel;
	int lines_before_weights;
	bool side_by_side; /* a kernel was compiled before the upload ended */
} LoadLog;

static int
files_in(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

static void
on_log(void *user, int level, const char *line)
{
	LoadLog *h = user;
	int a, b;

	(void)level;
	if (sscanf(line, "weights: %d of %d MB on the GPU", &a, &b) == 2 && h->n < MOST) {
		h->done[h->n++] = a;
		h->total = b;
		/* block the loading thread until a kernel has been compiled */
		if (h->n == 1)
			WAIT_FOR(h->side_by_side = files_in(h->kernels) > 0);
		return;
	}
	h->lines_before_weights += h->n == 0;
	if (sscanf(line, "compiling %d kernel", &a) == 1)
		h->compiling = h->n == 0 ? a : -1;
	if (sscanf(line, "compiled %d of %d kernels", &a, &b) == 2) {
		assert_true(a > h->compiled);
		h->compiled = a;
		h->n_kernel = b;
	}
}

static void
progress(void **state)
{
	const char *set[] = { "vocab_size=12000", NULL };
	llmc_options o = LLMC_INIT(llmc_options);
	const Tempdir *dir = *state;
	LoadLog h = { .kernels = tempdir_file(dir, "kernels") };
	llmc_model *m = NULL;
	Runtime *rt = NULL;
	llmc_error err;

	o.device = "cuda";
	o.set = set;
	o.random_weights = true;
	setenv("LLMC_CACHE", tempdir_file(dir, "first"), 1);
	if (llmc_open("configs/tiny.yaml", &o, &m, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	setenv("LLMC_CACHE", dir->path, 1); /* an empty cache */
	assert_int_equal(files_in(h.kernels), 0);
	RuntimeOptions r = { .artifact = m->artifact,
		             .random_weights = true,
		             .n_threads = 2,
		             .log = on_log,
		             .log_user = &h };
	for (int small = 1; small >= 0; small--) {
		r.stage_bytes = small ? 256 << 10 : 0;
		if (runtime_open(m->plan, &r, &rt, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		runtime_close(rt);
		if (small) { /* ten lines, in order, one per tenth */
			assert_int_equal(h.n, 10);
			for (int i = 1; i < h.n; i++)
				assert_true(h.done[i] >= h.done[i - 1]);
			assert_true(h.total >= 2 * 12000 * 96 * 4 >> 20);
			assert_int_equal(h.done[h.n - 1], h.total);
			assert_true(h.compiling > 0 && h.side_by_side);
			assert_int_equal(h.compiled, h.compiling);
			assert_int_equal(h.n_kernel, h.compiling);
			h = (LoadLog){ .kernels = h.kernels };
		}
	}
	/* little to load and nothing to compile: nothing is reported */
	assert_int_equal(h.n + h.lines_before_weights, 0);
	llmc_close(m);
}

int
main(void)
{
	char lib[4096];
	static Tempdir dir;

	if (!emulator(lib)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	if (tempdir_open(&dir) != 0)
		return 1;
	const struct CMUnitTest tests[] = { cmocka_unit_test_prestate(progress, &dir) };
	int rc = no_findings(cmocka_run_group_tests(tests, NULL, NULL));
	tempdir_close(&dir);
	return rc;
}
