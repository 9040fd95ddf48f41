/* <immintrin.h> of gcc 12 has 74000 lines: a fifth to a third of the compile time of a kernel.
 * Compilers reuse a precompiled first header (gcc, clang: -include FILE uses FILE.gch; if it does
 * not fit the flags, gcc reads FILE, clang stops and cpu_compile.c continues without it). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/cpu_kernels.h"

enum { HEADER_NONE, HEADER_STARTED, HEADER_THERE };
enum { ROUNDS = 3, MAX_FLAGS = 256 };

/* Is a precompiled header worth it? Only if every thread has several units to compile for a target
 * with vectors. The user's flags must not include anything: only one header can be precompiled. */
static bool
is_worthwhile(const CpuKernels *k)
{
	bool vectors = false;

	if (k->build.todo < ROUNDS * k->build.jobs)
		return false;
	for (int i = 0; k->flag[i]; i++) {
		vectors |= !strcmp(k->flag[i], "-mavx2");
		if (!strcmp(k->flag[i], "-include") || i == MAX_FLAGS)
			return false;
	}
	return vectors;
}

static bool
make(const CpuKernels *k, const char *path)
{
	static const char text[] = "#include <immintrin.h>\n";
	char *argv[MAX_FLAGS + 8], out[4096];
	Strbuf output = { 0 };
	int n = 0, code = 1;

	argv[n++] = (char *)k->cc;
	for (int i = 0; k->flag[i]; i++)
		/* clang warns that -shared does not apply */
		if (strcmp(k->flag[i], "-shared") != 0)
			argv[n++] = k->flag[i];
	argv[n++] = (char *)"-x";
	argv[n++] = (char *)"c-header";
	argv[n++] = (char *)path;
	argv[n++] = (char *)"-o";
	argv[n++] = out;
	argv[n] = NULL;
	snprintf(out, sizeof out, "%s.gch", path);
	bool ok = file_write(path, text, sizeof text - 1, NULL) == LLMC_OK &&
	          program_run(argv, 0, &output, &code, NULL) == LLMC_OK && code == 0;
	strbuf_release(&output);
	return ok;
}

const char *
header_precompiled(CpuKernels *k)
{
	int none = HEADER_NONE;

	if (atomic_load(&k->header) == HEADER_THERE)
		return strbuf_str(&k->header_path);
	if (!is_worthwhile(k) ||
	    !atomic_compare_exchange_strong(&k->header, &none, HEADER_STARTED) ||
	    cache_temporary(&k->build.cache, &k->header_dir, NULL) != LLMC_OK)
		return NULL;
	file_join(&k->header_path, strbuf_str(&k->header_dir), "vectors.h");
	if (k->header_path.failed || !make(k, strbuf_str(&k->header_path)))
		return NULL;
	atomic_store(&k->header, HEADER_THERE);
	return strbuf_str(&k->header_path);
}

void
header_remove(CpuKernels *k)
{
	if (k->header_dir.len)
		cache_temporary_remove(strbuf_str(&k->header_dir));
	strbuf_release(&k->header_dir);
	strbuf_release(&k->header_path);
	atomic_store(&k->header, HEADER_NONE);
}
