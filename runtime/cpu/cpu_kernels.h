/* Inside of building kernels for the processor: cc.c finds the compiler, cpu_compile.c makes shared
 * objects, cpu_kernels.c says what each is made from and loads them, precompiled_header.c
 * precompiles what all of them include. */
#ifndef LLMC_RUNTIME_CPU_CPU_KERNELS_H
#define LLMC_RUNTIME_CPU_CPU_KERNELS_H

#include "base/file.h"
#include "base/log.h"
#include "base/program.h"
#include "base/sha256.h"
#include "runtime/cpu/cpu.h"

/* What a shared object has beside its unit. */
typedef struct Object {
	Strbuf source; /* path */
	int fd;        /* of an object that lies in memory; 0: in a file */
	void *handle;
	bool warned; /* it compiles, but not without warnings */
} Object;

struct CpuKernels {
	KernelBuild build;
	Strbuf root;                   /* artifact/kernels, for -I */
	char cc[512], cc_version[256]; /* "" until needed */
	char **flag;                   /* NULL-terminated */
	char *flag_text;
	Object *object;    /* [n_unit] */
	llmc_kernel **fn;  /* [n_kernel] */
	atomic_int header; /* precompiled_header.c */
	Strbuf header_dir, header_path;
};

/* --- cc.c --- */
/* Flags for a target and those of $LLMC_KERNEL_CFLAGS: NULL-terminated, over one allocation in
 * *text */
llmc_status cc_flags(const char *target, char ***flags, char **text, llmc_error *err);

/* --- cpu_kernels.c --- */
/* What all keys begin with (flags, headers), and the key of a unit: from what the files hold now.
 */
llmc_status objects_common(const CpuKernels *k, Sha256 *common, llmc_error *err);
llmc_status object_key(const CpuKernels *k, const Sha256 *common, int unit, char hex[65],
                       llmc_error *err);

/* --- precompiled_header.c --- */
/* The header of intrinsics, precompiled for the units that begin from now on, where it is worth it:
 * made once, by the first thread that asks. The path for -include; NULL: there is none (yet), and
 * units read the header itself. The object is the same. */
const char *header_precompiled(CpuKernels *k);
void header_remove(CpuKernels *k); /* when nobody compiles any more */

/* --- cpu_compile.c: BuildKind.compile --- */
llmc_status object_compile(void *kernels, int unit, llmc_error *err);

extern const char object_mark[8]; /* format of a shared object and its seal */

#endif
