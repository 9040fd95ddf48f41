/* <immintrin.h> of gcc 12 has 74000 lines, a fifth to a third of what a kernel takes to compile. Compilers keep what they made of a header that comes first
 * (gcc, clang: -include FILE takes FILE.gch; where that does not fit the flags, gcc reads FILE, clang stops and compile.c goes on without it). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cpu/build.h"

enum { HEADER_NONE, HEADER_BEGUN, HEADER_THERE };
enum { ROUNDS = 3, MAX_FLAGS = 256 };

/* Every thread has some units to compile, for a target with vectors, and the user's flags include nothing: there is one precompiled header. */
static bool
pays(const Kernels *k)
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
make(const Kernels *k, const char *path)
{
	static const char text[] = "#include <immintrin.h>\n";
	char *argv[MAX_FLAGS + 8], out[2060];
	Strbuf said = { 0 };
	int n = 0, code = 1;

	argv[n++] = (char *)k->cc;
	for (int i = 0; k->flag[i]; i++)
		if (strcmp(k->flag[i], "-shared") != 0) /* clang says that it does not apply */
			argv[n++] = k->flag[i];
	argv[n++] = (char *)"-x";
	argv[n++] = (char *)"c-header";
	argv[n++] = (char *)path;
	argv[n++] = (char *)"-o";
	argv[n++] = out;
	argv[n] = NULL;
	snprintf(out, sizeof out, "%s.gch", path);
	bool ok = file_write(path, text, sizeof text - 1, NULL) == LLMC_OK && cc_run(argv, 0, &said, &code, NULL) == LLMC_OK && code == 0;
	strbuf_release(&said);
	return ok;
}

/* beside: a file of the folder that it goes to, which is nobody else's to write */
const char *
header_precompiled(Kernels *k, const char *beside)
{
	const char *slash = strrchr(beside, '/');
	int none = HEADER_NONE, fd;

	if (atomic_load(&k->header) == HEADER_THERE)
		return k->header_path;
	if (!slash || !pays(k) || !atomic_compare_exchange_strong(&k->header, &none, HEADER_BEGUN))
		return NULL;
	if (snprintf(k->header_path, sizeof k->header_path, "%.*s/tmp.XXXXXX.h", (int)(slash - beside), beside) >= (int)sizeof k->header_path ||
	    (fd = mkostemps(k->header_path, 2, O_CLOEXEC)) < 0) {
		k->header_path[0] = 0;
		return NULL;
	}
	close(fd);
	if (!make(k, k->header_path))
		return NULL;
	atomic_store(&k->header, HEADER_THERE);
	return k->header_path;
}

void
header_remove(Kernels *k)
{
	char made[2060];

	if (!k->header_path[0])
		return;
	snprintf(made, sizeof made, "%s.gch", k->header_path);
	unlink(made);
	unlink(k->header_path);
	k->header_path[0] = 0;
	atomic_store(&k->header, HEADER_NONE);
}
