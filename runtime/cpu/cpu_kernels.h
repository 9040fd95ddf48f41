/* Internals of building CPU kernels: cc.c finds the compiler, cpu_compile.c compiles shared
 * objects, cpu_kernel_key.c computes their keys, cpu_kernels.c loads them, precompiled_header.c
 * precompiles the header that all of them include. */
#ifndef LLMC_RUNTIME_CPU_CPU_KERNELS_H
#define LLMC_RUNTIME_CPU_CPU_KERNELS_H

#include "base/file.h"
#include "base/log.h"
#include "base/program.h"
#include "base/sha256.h"
#include "runtime/cpu/cpu.h"

/* State of a shared object in addition to its unit */
typedef struct Object {
	Strbuf source; /* path */
	int fd;        /* descriptor of an object in memory; 0: in a file */
	void *handle;
	bool warned; /* compiled with warnings */
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

/* ---- cc.c ---- */
/* Flags of a target and of $LLMC_KERNEL_CFLAGS: NULL-terminated, in one allocation, *text */
llmc_status cc_flags(const char *target, char ***flags, char **text, llmc_error *err);

enum { MAX_SOURCE = 1 << 24 };

/* ---- cpu_kernel_key.c ---- */
/* Hash the part that all keys have in common (flags, headers), and compute the key of a unit from
 * it and the current content of the files. */
llmc_status objects_common(const CpuKernels *k, Sha256 *common, llmc_error *err);
llmc_status object_key(const CpuKernels *k, const Sha256 *common, int unit, char hex[65],
                       llmc_error *err);

/* ---- precompiled_header.c ---- */
/* Return the path of the precompiled header of intrinsics, for -include. The first thread that
 * calls this compiles it, if it saves time. NULL: not available (yet), so the unit reads the plain
 * header. Both ways produce the same object. */
const char *header_precompiled(CpuKernels *k);
void header_remove(CpuKernels *k); /* after the last compiler has ended */

/* ---- cpu_compile.c: BuildKind.compile ---- */
llmc_status object_compile(void *kernels, int unit, llmc_error *err);

extern const char object_mark[8]; /* format mark in the trailer of a shared object */

#endif
