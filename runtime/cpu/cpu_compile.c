/* Compiles a kernel's source to a shared object with the host compiler, in a temporary folder, then
 * moves it to the cache; without a usable cache the object stays in memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cpu/cpu_kernels.h"

enum { MAX_FLAGS = 256, MAX_OBJECT = 1 << 28 };
const char object_mark[8] = "llmc so2";

static llmc_status
run_compiler(const CpuKernels *k, const Object *o, const char *header, const char *tmp,
             bool lenient, Strbuf *text, int *code, llmc_error *err)
{
	char *argv[MAX_FLAGS + 16], include[1024];
	int n = 0;

	argv[n++] = (char *)k->cc;
	for (int i = 0; k->flag[i] && n < MAX_FLAGS; i++)
		argv[n++] = k->flag[i];
	if (lenient)
		argv[n++] = (char *)"-Wno-error";
	if (header) {
		argv[n++] = (char *)"-include";
		argv[n++] = (char *)header;
	}
	if (snprintf(include, sizeof include, "-I%s", strbuf_str(&k->root)) >= (int)sizeof include)
		return error_set(err, LLMC_E_IO, "%s: name too long", strbuf_str(&k->root));
	argv[n++] = include;
	argv[n++] = (char *)"-pipe"; /* no temporary files that a kill would leave in /tmp */
	argv[n++] = (char *)"-o";
	argv[n++] = (char *)tmp;
	argv[n++] = (char *)strbuf_str(&o->source);
	argv[n++] = (char *)"-lm";
	argv[n] = NULL;
	return program_run(argv, 1200, text, code, err);
}

/* Has the compiler read the sources that the key was made from? The model may have been compiled
 * again meanwhile. */
static llmc_status
check_unchanged(const CpuKernels *k, int unit, llmc_error *err)
{
	const BuildUnit *u = &k->build.unit[unit];
	Sha256 common;
	char key[65];

	TRY(objects_common(k, &common, err));
	TRY(object_key(k, &common, unit, key, err));
	return strcmp(key, u->key) ? error_set(err, LLMC_E_IO,
	                                       "%s, or a header of it, changed while it was "
	                                       "compiled: open the model again",
	                                       u->file)
	                           : LLMC_OK;
}

/* An object without a file: dlopen opens it through the name of its descriptor. */
static llmc_status
write_memfd(CpuKernels *k, int unit, const Strbuf *made, llmc_error *err)
{
	Object *o = &k->object[unit];
	Strbuf *path = &k->build.unit[unit].entry.path;

	o->fd = memfd_create("llmc-kernel", MFD_CLOEXEC);
	if (o->fd < 0 || !file_write_fd(o->fd, made->data, made->len))
		return error_set(err, LLMC_E_IO, "%s: no memory for the compiled kernel: %s",
		                 k->build.unit[unit].file, strerror(errno));
	strbuf_clear(path);
	strbuf_printf(path, "/proc/self/fd/%d", o->fd);
	return path->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

/* Can a file be created and written in this folder? A disk with free blocks may have no inodes
 * left, or a quota. */
static bool
takes_files(const char *dir)
{
	Strbuf path = { 0 };
	const size_t n = 1 << 20;
	char *zeros = calloc(1, n);

	file_join(&path, dir, "space");
	bool yes = zeros && !path.failed &&
	           file_write(strbuf_str(&path), zeros, n, NULL) == LLMC_OK &&
	           unlink(strbuf_str(&path)) == 0;
	free(zeros);
	strbuf_release(&path);
	return yes;
}

llmc_status
object_compile(void *kernels, int unit, llmc_error *err)
{
	CpuKernels *k = kernels;
	const BuildUnit *u = &k->build.unit[unit];
	Object *o = &k->object[unit];
	Strbuf dir = { 0 }, object = { 0 }, text = { 0 }, again = { 0 }, made = { 0 };
	llmc_status status;
	struct stat st;
	bool kept;
	int code = 0;

	const char *header = header_precompiled(k);

	TRY(cache_temporary(&k->build.cache, &dir, err));
	file_join(&object, strbuf_str(&dir), "kernel.so");
	const char *tmp = strbuf_str(&object);
	TRY_GOTO(run_compiler(k, o, header, tmp, false, &text, &code, err));
	/* the folder takes no files: compile again in $TMPDIR */
	if (code != 0 && code < 128 && !takes_files(strbuf_str(&dir))) {
		cache_temporary_remove(strbuf_str(&dir));
		TRY_GOTO(cache_temporary(&(Cache){ 0 }, &dir, err));
		file_join(&object, strbuf_str(&dir), "kernel.so");
		tmp = strbuf_str(&object);
		strbuf_clear(&text);
		TRY_GOTO(run_compiler(k, o, NULL, tmp, false, &text, &code, err));
	}
	/* the precompiled header may be the cause: compile again without it */
	if (header && code != 0 && code < 128) {
		strbuf_clear(&text);
		TRY_GOTO(run_compiler(k, o, NULL, tmp, false, &text, &code, err));
	}
	/* warnings of an unknown compiler must not fail the build: compile again without -Werror */
	if (code != 0 && code < 128) {
		TRY_GOTO(run_compiler(k, o, NULL, tmp, true, &again, &code, err));
		o->warned = code == 0;
	}
	if (code >= 128) {
		status =
		    error_set(err, LLMC_E_CANCELLED, "%s: the compiler %s was stopped by signal %d",
		              u->file, k->cc, code - 128);
		goto fail;
	}
	if (code != 0 || stat(tmp, &st) < 0 || !st.st_size) {
		status = error_set(err, LLMC_E_MISSING, "%s: %s cannot compile it:\n%s",
		                   strbuf_str(&o->source), k->cc, strbuf_str(&text));
		goto fail;
	}
	TRY_GOTO(check_unchanged(k, unit, err));
	TRY_GOTO(file_read(tmp, MAX_OBJECT, &made, err));
	TRY_GOTO(build_keep(&k->build, unit, made.data, made.len, &kept, err));
	if (!kept)
		TRY_GOTO(write_memfd(k, unit, &made, err));
fail:
	cache_temporary_remove(strbuf_str(&dir));
	strbuf_release(&dir);
	strbuf_release(&object);
	strbuf_release(&text);
	strbuf_release(&again);
	strbuf_release(&made);
	return status;
}
