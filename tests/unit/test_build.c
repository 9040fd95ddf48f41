/* Kernels built by the system's compiler: they are compiled once, found in the cache, rebuilt if
 * damaged, and shipped with an artifact; each possible failure has a message. The artifact has two
 * small kernels that share a header. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/file.h"
#include "runtime/cpu/cpu.h"
#include "tests/unit/tempdir.h"

static Tempdir dir;
static char log_text[8192];
static int n_compiled;
static char artifact[400];

static PlanKernel kernels[] = {
	{ .id = "one", .file = "kernels/one.c", .symbol = "one", .n_arg = 1 },
	{ .id = "two", .file = "kernels/two.c", .symbol = "two", .n_arg = 1 },
	{ .id = "again",
	  .file = "kernels/one.c",
	  .symbol = "one",
	  .n_arg = 1 }, /* a file may hold several kernels */
};
static const Plan plan = { .target = "cpu-generic", .n_kernel = 3, .kernel = kernels };

static void
on_log(void *user, int level, const char *line)
{
	(void)user;
	sscanf(line, "compiling %d kernel", &n_compiled);
	if (level == LLMC_LOG_WARNING)
		snprintf(log_text + strlen(log_text), sizeof log_text - strlen(log_text), "%s\n",
		         line);
}

static void
put(const char *name, const char *text)
{
	char path[600];

	snprintf(path, sizeof path, "%s/%s", artifact, name);
	unlink(path);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	chmod(path, 0644);
}

static const char good[] =
    "#include \"common/step.h\"\nvoid one(const llmc_step *s, void *const *a, int part, int n);\n"
    "void\none(const llmc_step *s, void *const *a, int part, int n)\n{\n\t(void)s;\n"
    "\t*(int *)a[0] = ANSWER + part * n;\n}\n";

/* Create a fresh artifact and an empty cache. */
static void
make_artifact(void)
{
	static const char *const folder[] = { "", "/kernels", "/kernels/common" };
	char path[600];

	tempdir_remove(dir.path);
	mkdir(dir.path, 0700);
	snprintf(artifact, sizeof artifact, "%s/art", dir.path);
	for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
		snprintf(path, sizeof path, "%s%s", artifact, folder[i]);
		mkdir(path, 0755);
	}
	put("kernels/common/step.h", "typedef struct llmc_step llmc_step;\n#define ANSWER 42\n");
	put("kernels/one.c", good);
	put("kernels/two.c",
	    "void two(const void *s, void *const *a, int part, int n);\nvoid\ntwo(const void *s, "
	    "void *const *a, "
	    "int part, int n)\n{\n\t(void)s, (void)part;\n\t*(int *)a[0] = n;\n}\n");
	setenv("LLMC_CACHE", tempdir_file(&dir, "cache"), 1);
	unsetenv("LLMC_CC");
	unsetenv("LLMC_KERNEL_CFLAGS");
}

static llmc_status
open_kernels(CpuKernels **k, llmc_error *err)
{
	const KernelBuildOptions o = { .artifact = artifact, .n_jobs = 2, .log = on_log };

	log_text[0] = 0;
	n_compiled = 0;
	return kernels_open(&plan, &o, k, err);
}

/* Open, run both kernels, close; returns the number of files compiled. */
static int
run_kernels(int answer)
{
	CpuKernels *k;
	llmc_error err;
	int got = 0;
	void *args[] = { &got };

	if (open_kernels(&k, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	kernels_find(k, 0)(NULL, args, 2, 3);
	assert_int_equal(got, answer + 6);
	kernels_find(k, 1)(NULL, args, 0, 9);
	assert_int_equal(got, 9);
	assert_ptr_equal((void *)kernels_find(k, 0), (void *)kernels_find(k, 2));
	kernels_close(k);
	return n_compiled;
}

static void
expect_error(llmc_status want, const char *text)
{
	CpuKernels *k;
	llmc_error err = { 0 };

	assert_int_equal(open_kernels(&k, &err), want);
	assert_null(k);
	if (!strstr(err.text, text))
		fail_msg("\"%s\", expected \"%s\"", err.text, text);
}

/* Call edit(path) for all objects of the cache; returns their number. */
static int
each_object(const char *folder, void (*edit)(const char *path))
{
	DIR *d = opendir(folder);
	char path[900];
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (!strstr(e->d_name, ".so"))
			continue;
		snprintf(path, sizeof path, "%s/%.200s", folder, e->d_name);
		n++;
		if (edit)
			edit(path);
	}
	if (d)
		closedir(d);
	return n;
}

static void
cut(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void
flip(const char *path)
{
	FILE *f = fopen(path, "r+");

	assert_non_null(f);
	fseek(f, 1000, SEEK_SET);
	int c = fgetc(f);
	fseek(f, 1000, SEEK_SET);
	fputc(c ^ 1, f);
	fclose(f);
}

static void
open_to_others(const char *path)
{
	chmod(path, 0777);
}

static void
kernels_are_compiled_once(void **state)
{
	(void)state;
	make_artifact();
	assert_int_equal(run_kernels(42), 2);
	assert_int_equal(run_kernels(42), 0);
	/* a changed header is noticed, whatever the modification times */
	put("kernels/common/step.h", "typedef struct llmc_step llmc_step;\n#define ANSWER 43\n");
	assert_int_equal(run_kernels(43), 2);
	put("kernels/common/step.h", "typedef struct llmc_step llmc_step;\n#define ANSWER 42\n");
	assert_int_equal(run_kernels(42), 0);
	setenv("LLMC_KERNEL_CFLAGS", "-O0  -DEXTRA", 1);
	assert_int_equal(run_kernels(42), 2);
	unsetenv("LLMC_KERNEL_CFLAGS");
	/* another compiler builds the kernels again */
	setenv("LLMC_CC", "clang", 1);
	char path[512], version[256];
	if (cc_find(path, sizeof path, version, sizeof version, NULL) == LLMC_OK)
		assert_int_equal(run_kernels(42), 2);
	unsetenv("LLMC_CC");
	/* a moved artifact keeps its builds */
	char moved[420];
	snprintf(moved, sizeof moved, "%s-moved", artifact);
	assert_int_equal(rename(artifact, moved), 0);
	snprintf(artifact, sizeof artifact, "%.390s", moved);
	assert_int_equal(run_kernels(42), 0);
	assert_string_equal(log_text, "");
}

static void
damaged_objects_are_rebuilt(void **state)
{
	void (*const edit[])(const char *) = { cut, flip };
	const char *folder;

	(void)state;
	make_artifact();
	assert_int_equal(run_kernels(42), 2);
	for (int i = 0; i < 2; i++) {
		folder = tempdir_file(&dir, "cache/kernels");
		assert_int_equal(each_object(folder, edit[i]), 2);
		assert_int_equal(run_kernels(42), 2);
		/* one line reports all damaged files */
		char *end = strchr(log_text, '\n');
		assert_true(end && !end[1]);
		assert_non_null(strstr(log_text, "damaged or cut off: it is built again"));
		assert_int_equal(run_kernels(42), 0);
	}
	/* no temporary files remain */
	assert_int_equal(each_object(tempdir_file(&dir, "cache/kernels"), NULL), 2);
}

static void
files_writable_by_others_are_not_run(void **state)
{
	char path[600];

	(void)state;
	make_artifact();
	assert_int_equal(run_kernels(42), 2);
	each_object(tempdir_file(&dir, "cache/kernels"), open_to_others);
	expect_error(
	    LLMC_E_IO,
	    "others may write to it (mode 777): llmc does not run code from it; chmod go-w it");
	make_artifact();
	snprintf(path, sizeof path, "%s/kernels/two.c", artifact);
	chmod(path, 0666);
	expect_error(LLMC_E_IO, "kernels/two.c: others may write to it (mode 666)");
	chmod(path, 0644);
	snprintf(path, sizeof path, "%s/kernels/common/step.h", artifact);
	chmod(path, 0622);
	expect_error(LLMC_E_IO, "step.h: others may write to it");
	make_artifact();
	chmod(artifact, 0777);
	expect_error(LLMC_E_IO, "art: others may write to it (mode 777)");
	make_artifact();
	snprintf(path, sizeof path, "%s/kernels", artifact);
	chmod(path, 0777);
	expect_error(LLMC_E_IO, "kernels: others may write to it (mode 777)");
}

/* A user who may write to any folder of a file's path could replace the file, so the file is
 * rejected, even if another user owns it. */
static void
folders_writable_by_others_are_rejected(void **state)
{
	KernelBuildOptions ship = { .artifact = artifact, .n_jobs = 2, .log = on_log };
	static const char *const shipped[] = { "aot", "aot/cpu-generic" };
	char path[600];

	(void)state;
	make_artifact();
	snprintf(path, sizeof path, "%s/kernels/common", artifact);
	chmod(path, 0777);
	expect_error(LLMC_E_IO, "kernels/common: others may write to it (mode 777)");
	chmod(path, 0755);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(kernels_ship(&plan, &ship, NULL), LLMC_OK);
		snprintf(path, sizeof path, "%s/%s", artifact, shipped[i]);
		chmod(path, 0777);
		assert_int_equal(run_kernels(42), i ? 0 : 2); /* compiled, then in the cache */
		assert_non_null(
		    strstr(log_text, "2 of 2 kernels built ahead of time cannot be used"));
		assert_non_null(strstr(log_text, "others may write to it (mode 777)"));
		chmod(path, 0755);
	}
}

/* Files that llmc creates itself are accepted, even with a umask that lets the group write. */
static void
any_umask_works(void **state)
{
	KernelBuildOptions ship = { .artifact = artifact, .n_jobs = 2, .log = on_log };
	mode_t was;

	(void)state;
	make_artifact();
	was = umask(0);
	int first = run_kernels(42), again = run_kernels(42);
	llmc_status status = kernels_ship(&plan, &ship, NULL);
	umask(was);
	assert_int_equal(first, 2);
	assert_int_equal(again, 0);
	assert_int_equal(status, LLMC_OK);
	tempdir_remove(tempdir_file(&dir, "cache"));
	assert_int_equal(run_kernels(42), 0);
	assert_string_equal(log_text, "");
}

/* The longest compilations start first, so that all threads end at about the same time. */
static void
long_sources_are_compiled_first(void **state)
{
	KernelBuildOptions one_at_a_time = { .artifact = artifact, .n_jobs = 1, .log = on_log };
	char text[4000], line[600], name[600];
	CpuKernels *k;

	(void)state;
	make_artifact();
	snprintf(text, sizeof text,
	         "/*%3000s*/\nvoid two(const void *s, void *const *a, int part, int "
	         "n);\nvoid\ntwo(const void *s, void *const *a, int part, int n)\n"
	         "{\n\t(void)s, (void)part;\n\t*(int *)a[0] = n;\n}\n",
	         "");
	put("kernels/two.c", text);
	snprintf(line, sizeof line,
	         "#!/bin/sh\nfor x in \"$@\"; do case \"$x\" in */one.c|*/two.c) basename \"$x\" "
	         ">> %s/order;; esac; done\nexec cc \"$@\"\n",
	         artifact);
	put("cc", line);
	snprintf(line, sizeof line, "%s/cc", artifact);
	chmod(line, 0755);
	for (int called = 0; called < 2;
	     called++) { /* the source that other kernels call contains the long text */
		PlanKernel row[] = { kernels[0], kernels[1] };
		const Plan p = { .target = "cpu-generic", .n_kernel = 2, .kernel = row };
		row[0].n_arg = !called;
		setenv("LLMC_CC", line, 1);
		setenv("LLMC_CACHE", tempdir_file(&dir, called ? "cache2" : "cache"), 1);
		assert_int_equal(kernels_open(&p, &one_at_a_time, &k, NULL), LLMC_OK);
		kernels_close(k);
		unsetenv("LLMC_CC");
		snprintf(name, sizeof name, "%s/order", artifact);
		FILE *f = fopen(name, "r");
		assert_non_null(f);
		text[fread(text, 1, sizeof text - 1, f)] = 0;
		fclose(f);
		unlink(name);
		assert_string_equal(text, called ? "one.c\ntwo.c\n" : "two.c\none.c\n");
	}
}

/* Threads that open two models at once share a process id, and so may containers that share a
 * cache: no two compilations ever write to the same name. */
static void
temporary_names_are_never_used_twice(void **state)
{
	char line[600], *name[8];
	int n = 0;

	(void)state;
	make_artifact();
	put("cc", "");
	snprintf(line, sizeof line,
	         "#!/bin/sh\nfor x in \"$@\"; do case \"$x\" in *tmp.*) echo \"$x\" >> %s/names;; "
	         "esac; done\nexec cc \"$@\"\n",
	         artifact);
	put("cc", line);
	snprintf(line, sizeof line, "%s/cc", artifact);
	chmod(line, 0755);
	setenv("LLMC_CC", line, 1);
	assert_int_equal(run_kernels(42), 2);
	put("kernels/common/step.h", "typedef struct llmc_step llmc_step;\n#define ANSWER 43\n");
	assert_int_equal(run_kernels(43), 2);
	unsetenv("LLMC_CC");
	snprintf(line, sizeof line, "%s/names", artifact);
	FILE *f = fopen(line, "r");
	assert_non_null(f);
	while (n < 8 && fgets(line, sizeof line, f))
		name[n++] = strdup(line);
	fclose(f);
	assert_int_equal(n, 4);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			assert_string_not_equal(name[i], name[k]);
	while (n)
		free(name[--n]);
}

/* If each thread compiles several kernels, the includes that all share are precompiled once.
 * Kernels are built even if the precompilation fails, and no precompiled header remains. */
static void
common_headers_are_precompiled(void **state)
{
	enum { N = 8 };
	static const char *const way[] = { "", "case \"$*\" in *c-header*) exit 1;; esac\n",
		                           "case \"$*\" in *-include*) exit 1;; esac\n" };
	PlanKernel many[N];
	const Plan p = { .target = "cpu-v3", .n_kernel = N, .kernel = many };
	char name[N][24], line[2000], path[600];

	(void)state;
	for (int i = 0; i < N; i++) {
		snprintf(name[i], sizeof name[i], "kernels/u%d.c", i);
		many[i] = (PlanKernel){ .id = name[i], .file = name[i], .symbol = "u" };
	}
	for (int w = 0; w < 3; w++) {
		CpuKernels *k;
		llmc_error err;
		int made = 0, used = 0;
		make_artifact();
		for (int i = 0; i < N; i++) {
			snprintf(line, sizeof line,
			         "%sint u(void);\nint\nu(void)\n{\n\treturn %d;\n}\n",
			         i ? "" : "#include <immintrin.h>\n", i);
			put(name[i], line);
		}
		snprintf(line, sizeof line, "#!/bin/sh\necho \"$*\" >> %s/args\n%sexec cc \"$@\"\n",
		         artifact, way[w]);
		put("cc", line);
		snprintf(path, sizeof path, "%s/cc", artifact);
		chmod(path, 0755);
		setenv("LLMC_CC", path, 1);
		if (kernels_open(
		        &p,
		        &(KernelBuildOptions){ .artifact = artifact, .n_jobs = 2, .log = on_log },
		        &k, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		assert_string_equal(log_text, "");
		kernels_close(k);
		unsetenv("LLMC_CC");
		snprintf(path, sizeof path, "%s/args", artifact);
		FILE *f = fopen(path, "r");
		assert_non_null(f);
		while (fgets(line, sizeof line, f)) {
			made += strstr(line, "c-header") != NULL;
			used += strstr(line, "-include") != NULL;
		}
		fclose(f);
		assert_int_equal(made, 1);
		assert_true(w == 1 ? used == 0 : used >= 1);
		snprintf(path, sizeof path, "%s/kernels", tempdir_file(&dir, "cache"));
		DIR *d = opendir(path);
		int n = 0;
		for (struct dirent *e; d && (e = readdir(d)) != NULL;)
			n += e->d_name[0] != '.';
		assert_non_null(d);
		closedir(d);
		assert_int_equal(n, N);
	}
}

/* Another process compiles a model into the folder while kernels are built there: no kernel is
 * cached under the key of another source. */
static void
sources_that_change_during_a_build(void **state)
{
	char script[900], path[600];

	(void)state;
	make_artifact();
	snprintf(path, sizeof path, "%s/cc", artifact);
	snprintf(script, sizeof script,
	         "#!/bin/sh\ncase \"$*\" in *one.c*) sed -i 's/ANSWER/7/' %s/kernels/one.c;; "
	         "esac\nexec cc \"$@\"\n",
	         artifact);
	put("cc", script);
	chmod(path, 0755);
	setenv("LLMC_CC", path, 1);
	expect_error(LLMC_E_IO,
	             "kernels/one.c, or a header of it, changed while it was compiled: open "
	             "the model again");
	assert_true(run_kernels(7) >= 1);
	put("kernels/one.c", good);
	put("cc", "#!/bin/sh\nexec cc \"$@\"\n");
	chmod(path, 0755);
	assert_int_equal(run_kernels(42), 1);
	unsetenv("LLMC_CC");
}

/* The file of a killed process does not block the next process with the same pid, and is deleted
 * eventually. */
static void
leftovers_of_dead_processes_are_removed(void **state)
{
	static const char *const left[] = { "put.abcdef", "put.ghijkl", "tmp.abcdef",
		                            "tmp.ghijkl" };
	const struct timespec old[2] = { { .tv_sec = 1000000 }, { .tv_sec = 1000000 } };
	char path[900];
	llmc_error err;

	(void)state;
	make_artifact();
	for (int i = 0; i < 400; i++) {
		snprintf(path, sizeof path, "file.tmp.%ld.%d", (long)getpid(), i);
		put(path, "left");
	}
	snprintf(path, sizeof path, "%s/file", artifact);
	if (file_write(path, "new", 3, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	make_artifact();
	assert_int_equal(run_kernels(42), 2);
	put("kernels/one.c", "/* new */\n#include \"one2.h\"\n");
	put("kernels/one2.h", good);
	for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
		snprintf(path, sizeof path, "%s/../cache/kernels/.tmp/%s", artifact, left[i]);
		if (i >= 2)
			mkdir(path, 0700);
		snprintf(path, sizeof path, "../cache/kernels/.tmp/%s%s", left[i],
		         i >= 2 ? "/kernel.so" : "");
		put(path, "left");
		snprintf(path, sizeof path, "%s/../cache/kernels/.tmp/%s", artifact, left[i]);
		if (i % 2 == 0) /* keep the others recent: another process may be writing them */
			assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
	}
	assert_int_equal(run_kernels(42), 1);
	for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
		snprintf(path, sizeof path, "%s/../cache/kernels/.tmp/%s", artifact, left[i]);
		assert_int_equal(file_exists(path), i % 2);
	}
}

static void
failures_have_readable_errors(void **state)
{
	char *path = strdup(getenv("PATH"));

	(void)state;
	make_artifact();
	setenv("LLMC_CC", "/nonexistent/cc", 1);
	expect_error(LLMC_E_MISSING,
	             "LLMC_CC is \"/nonexistent/cc\", which is no C compiler that runs; "
	             "unset it or give the path of gcc "
	             "or clang");
	unsetenv("LLMC_CC");
	setenv("PATH", "/nonexistent", 1);
	expect_error(LLMC_E_MISSING,
	             "no C compiler found (cc, gcc or clang): llmc compiles the model's "
	             "kernels with it; install one "
	             "(`apt install gcc libc6-dev`), name one in LLMC_CC, or run "
	             "without it, slowly, with --device ref");
	setenv("PATH", path, 1);
	free(path);
	put("kernels/one.c", "this is no C\n");
	expect_error(LLMC_E_MISSING, "kernels/one.c: ");
	make_artifact();
	put("kernels/one.c", "void other(void);\nvoid\nother(void)\n{\n}\n");
	expect_error(LLMC_E_INPUT, "kernels/one.c: has no function one: compile the model again");
	make_artifact();
	snprintf(artifact + strlen(artifact), 16, "/none");
	expect_error(LLMC_E_IO, "none");
	/* an unusual warning of this compiler does not stop the build */
	make_artifact();
	char with[1024];
	snprintf(with, sizeof with, "%s\nstatic int unused = 1;\n", good);
	put("kernels/one.c", with);
	assert_int_equal(run_kernels(42), 2);
	assert_non_null(strstr(log_text, "kernels/one.c: "));
	assert_non_null(strstr(log_text, " warns about it"));
}

/* Without a usable cache, kernels are compiled in memory for this process: two builds at once do
 * not mix, no file remains on disk, and one line reports the missing cache. */
static void
kernels_are_built_without_a_writable_cache(void **state)
{
	char tmp[600];
	CpuKernels *k[2];
	llmc_error err;
	int got = 0;
	void *args[] = { &got };

	(void)state;
	make_artifact();
	put("../cache", "a file");
	snprintf(tmp, sizeof tmp, "%s/tmp", dir.path);
	mkdir(tmp, 0700);
	setenv("TMPDIR", tmp, 1);
	for (int i = 0; i < 2; i++) {
		if (i)
			put("kernels/common/step.h",
			    "typedef struct llmc_step llmc_step;\n#define ANSWER 43\n");
		if (open_kernels(&k[i], &err) != LLMC_OK)
			fail_msg("%s", err.text);
		assert_int_equal(n_compiled, 2);
		assert_ptr_equal(
		    strstr(log_text, "compiled kernels are not kept for the next time: "),
		    log_text);
		assert_non_null(strstr(log_text, "LLMC_CACHE"));
		assert_string_equal(strchr(log_text, '\n'), "\n");
	}
	for (int i = 0; i < 2; i++) {
		kernels_find(k[i], 0)(NULL, args, 2, 3);
		assert_int_equal(got, 42 + i + 6);
		kernels_close(k[i]);
	}
	assert_int_equal(rmdir(tmp), 0);
	unsetenv("TMPDIR");
}

/* A kernel's callee is loaded first and found by name. Two models may each have a file with a
 * function of this name: closing the first model does not break the second. */
static void
called_kernels_outlive_their_model(void **state)
{
	PlanKernel both[] = {
		{ .id = "calls", .file = "kernels/calls.c", .symbol = "calls", .n_arg = 1 },
		{ .id = "called", .file = "kernels/called.c", .symbol = "called_by_all" },
	};
	const Plan p = { .target = "cpu-generic", .n_kernel = 2, .kernel = both };
	const KernelBuildOptions o = { .artifact = artifact, .n_jobs = 2, .log = on_log };
	CpuKernels *k[2];
	llmc_error err;
	int got = 0;
	void *args[] = { &got };

	(void)state;
	for (int first = 0; first < 2; first++) {
		make_artifact();
		put("kernels/called.c",
		    "typedef struct calls { int (*answer)(void); } calls;\nstatic "
		    "int\nanswer(void)\n{\n\treturn 42;\n}\n"
		    "extern const calls called_by_all;\nconst calls called_by_all = { answer };\n");
		put("kernels/calls.c",
		    "typedef struct table { int (*answer)(void); } table;\nextern const table "
		    "called_by_all;\n"
		    "void calls(const void *s, void *const *a, int part, int "
		    "n);\nvoid\ncalls(const void *s, void *const *a, int part, int n)\n"
		    "{\n\t(void)s, (void)part, (void)n;\n\t*(int *)a[0] = "
		    "called_by_all.answer();\n}\n");
		for (int i = 0; i < 2; i++) {
			setenv("LLMC_CACHE", tempdir_file(&dir, i ? "cache2" : "cache"), 1);
			n_compiled = 0;
			if (kernels_open(&p, &o, &k[i], &err) != LLMC_OK)
				fail_msg("%s", err.text);
			assert_int_equal(n_compiled, 2);
		}
		kernels_close(k[first]);
		kernels_find(k[!first], 0)(NULL, args, 0, 1);
		assert_int_equal(got, 42);
		kernels_close(k[!first]);
		got = 0;
	}
	/* the kernel is not loaded without the function that it calls */
	both[1].n_arg = 1;
	both[1].file = "kernels/two.c";
	assert_int_equal(kernels_open(&p, &o, &k[0], &err), LLMC_E_MISSING);
	assert_non_null(strstr(err.text, "cannot load the kernel kernels/calls.c: "));
	assert_non_null(strstr(err.text, "called_by_all"));
}

static void
shipped_kernels_are_used_if_they_match(void **state)
{
	const KernelBuildOptions o = { .artifact = NULL };
	KernelBuildOptions ship = { .artifact = artifact, .n_jobs = 2, .log = on_log };
	char path[600];
	CpuKernels *k;
	llmc_error err;

	(void)state;
	make_artifact();
	if (kernels_ship(&plan, &ship, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	/* no compiler and no cache are needed now */
	char *was = strdup(getenv("PATH"));
	setenv("PATH", "/nonexistent", 1);
	assert_int_equal(run_kernels(42), 0);
	assert_string_equal(log_text, "");
	setenv("PATH", was, 1);
	free(was);
	/* a built folder that is damaged, from another source, or without its manifest is built
	 * again; one line reports each */
	snprintf(path, sizeof path, "%s/aot/cpu-generic", artifact);
	assert_int_equal(each_object(path, cut), 2);
	assert_int_equal(run_kernels(42), 2);
	assert_non_null(strstr(log_text, "2 of 2 kernels built ahead of time cannot be used ("));
	assert_non_null(strstr(log_text, "damaged or cut off): they are compiled here"));
	assert_int_equal(kernels_ship(&plan, &ship, NULL), LLMC_OK);
	put("kernels/one.c", "/* new */\n#include \"one2.h\"\n");
	put("kernels/one2.h", good);
	assert_int_equal(run_kernels(42), 1);
	assert_non_null(strstr(log_text,
	                       "1 of 2 kernels built ahead of time cannot be used (one.so "
	                       "was built from another source or "
	                       "with other flags): they are compiled here"));
	put("aot/cpu-generic/manifest.json", "{\"manifest\":1,\"step_abi\":77}");
	assert_int_equal(run_kernels(42), 0); /* the kernels are in the cache now */
	char want[64];
	snprintf(want, sizeof want, "their kernel ABI is 77, this llmc has %d", PLAN_STEP_ABI);
	assert_non_null(strstr(log_text, want));
	put("aot/cpu-generic/manifest.json", "{");
	run_kernels(42);
	assert_non_null(strstr(log_text, "the manifest cannot be read"));
	snprintf(path, sizeof path, "%s/aot/cpu-generic/manifest.json", artifact);
	unlink(path);
	run_kernels(42);
	assert_non_null(strstr(log_text, "the manifest is missing"));
	assert_int_equal(kernels_open(&plan, &o, &k, &err), LLMC_E_INPUT);
	assert_string_equal(err.text,
	                    "the plan has kernels, but no folder to find their sources in");
}

/* Several processes with one key and one empty cache all work. */
static void
processes_build_the_same_kernels(void **state)
{
	pid_t pid[4];
	int code;

	(void)state;
	make_artifact();
	for (int i = 0; i < 4; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (!pid[i]) {
			CpuKernels *k;
			int got = 0;
			void *args[] = { &got };
			if (open_kernels(&k, NULL) != LLMC_OK)
				_exit(1);
			kernels_find(k, 0)(NULL, args, 0, 0);
			_exit(got == 42 ? 0 : 2);
		}
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(waitpid(pid[i], &code, 0), pid[i]);
		assert_int_equal(code, 0);
	}
	assert_int_equal(run_kernels(42), 0);
	assert_int_equal(each_object(tempdir_file(&dir, "cache/kernels"), NULL), 2);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernels_are_compiled_once),
		cmocka_unit_test(damaged_objects_are_rebuilt),
		cmocka_unit_test(files_writable_by_others_are_not_run),
		cmocka_unit_test(folders_writable_by_others_are_rejected),
		cmocka_unit_test(any_umask_works),
		cmocka_unit_test(long_sources_are_compiled_first),
		cmocka_unit_test(temporary_names_are_never_used_twice),
		cmocka_unit_test(common_headers_are_precompiled),
		cmocka_unit_test(sources_that_change_during_a_build),
		cmocka_unit_test(leftovers_of_dead_processes_are_removed),
		cmocka_unit_test(failures_have_readable_errors),
		cmocka_unit_test(kernels_are_built_without_a_writable_cache),
		cmocka_unit_test(called_kernels_outlive_their_model),
		cmocka_unit_test(shipped_kernels_are_used_if_they_match),
		cmocka_unit_test(processes_build_the_same_kernels),
	};

	if (tempdir_open(&dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}
