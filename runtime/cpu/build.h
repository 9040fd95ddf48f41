/* Inside of building kernels: cc.c starts the compiler, compile.c builds shared objects side by side, build.c decides which
 * are needed and loads them, aot.c ships them with an artifact. */
#ifndef LLMC_RUNTIME_CPU_BUILD_H
#define LLMC_RUNTIME_CPU_BUILD_H

#include "base/file.h"
#include "base/strbuf.h"
#include "runtime/cpu/cpu.h"

/* One kernel file of a plan. */
typedef struct Unit {
	const char *file;        /* relative to the artifact, as the plan says */
	Strbuf      source;      /* its path */
	Strbuf      object;      /* path of its shared object */
	char        source_key[65]; /* of source, headers, flags, ABI: what AOT objects are known by */
	bool        ready;       /* object is there and whole */
	void       *handle;
	llmc_status status;      /* of compiling it */
	llmc_error  error;
	bool        warned;      /* it compiles, but not without warnings */
} Unit;

struct Kernels {
	const Plan   *plan;
	KernelOptions opt;
	Strbuf        root;      /* artifact/kernels, for -I */
	char          cc[512], cc_version[256]; /* "" until needed */
	char        **flag;      /* NULL-terminated */
	char         *flag_text;
	int           n_unit;
	Unit         *unit;
	int          *unit_of;   /* [n_kernel] */
	llmc_kernel **fn;        /* [n_kernel] */
};

void kernels_say(const Kernels *k, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- cc.c --- */
/* Run argv[0] (a path) without a shell; what it prints, at most cap bytes, goes to out. *code: exit status, 128 + signal */
llmc_status cc_run(char *const argv[], size_t cap, Strbuf *out, int *code, llmc_error *err);
/* Flags for a target and those of $LLMC_KERNEL_CFLAGS: NULL-terminated, over one allocation in *text */
llmc_status cc_flags(const char *target, char ***flags, char **text, llmc_error *err);

/* --- compile.c --- */
/* Compile the units that are not ready to their `object`, several at once. Each object ends with its source's key and a checksum. */
llmc_status kernels_compile(Kernels *k, llmc_error *err);
/* Is the file there, ours, whole, and built from this source? LLMC_OK, E_IO (not there), E_CHECK (to be built again), or
 * E_INPUT (others may have written it). */
llmc_status object_check(const char *path, const char *source_key, llmc_error *err);

/* --- build.c --- */
llmc_status kernels_prepare(const Plan *plan, const KernelOptions *opt, Kernels **out, llmc_error *err);

/* --- aot.c --- */
/* Mark units ready whose object ships with the artifact and fits. */
void aot_use(Kernels *k);

#endif
