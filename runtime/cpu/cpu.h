/* The CPU as a device: kernels are shared objects, run by threads. Private to runtime/cpu/.
 *
 *   cpu_device.c    its row in the table of devices (runtime/device.h)
 *   cpu_session.c   a session: memory and steps
 *   expert_ahead.c  reading routed experts of a mapped file ahead
 *   isa.c           which targets the processor runs
 *   processor_name.c  its name
 *   cpu_bandwidth.c its read bandwidth
 *   cc.c, precompiled_header.c, cpu_compile.c, cpu_kernels.c   compiled kernels (cpu_kernels.h) */
#ifndef LLMC_RUNTIME_CPU_H
#define LLMC_RUNTIME_CPU_H

#include <stdio.h>

#include "runtime/build/kernel_build.h"
#include "runtime/device.h"
#include "runtime/threads/threads.h"
#include "templates/common/llmc_step.h"

/* ---- isa.c ---- */

/* The best target of this processor: "cpu-amx", "cpu-v4", "cpu-vnni", "cpu-v3", "cpu-i8mm",
 * "cpu-neon", "cpu-generic". For a target with AMX the call requests the kernel's permission to use
 * tile registers, which lasts for the life of the process. */
const char *isa_best(void);
bool isa_runs(const char *target);
/* Return the CPU_... bits that the target needs and this machine lacks; 0: it runs; -1: not a CPU
 * target. why: the reason as a sentence, truncated to cap */
int isa_lacks(const char *target, char *why, size_t cap);
/* List the instruction sets that targets of this architecture use and this machine has (present) or
 * lacks. The list is separated by "; " and truncated to cap. Returns the length */
int isa_features(char *buf, size_t cap, bool present);

/* ---- processor_name.c ---- */

/* Name of the processor that the text of /proc/cpuinfo describes; "unknown" without one. cpuinfo
 * may be NULL */
void processor_name(FILE *cpuinfo, char *out, size_t cap);

/* ---- cc.c ---- */

/* The C compiler for kernels ($LLMC_CC, cc, gcc, clang): path and version line. E_MISSING if there
 * is none. */
llmc_status cc_find(char *path, size_t path_cap, char *version, size_t version_cap,
                    llmc_error *err);
/* Return the best target up to `target` that runs here and whose flags the compiler accepts; NULL:
 * none, or no compiler. why: the flags of `target` that the compiler rejects, truncated to cap;
 * empty if there are none */
const char *cc_target(const char *target, char *why, size_t cap);

/* ---- cpu_kernels.c: kernels of a plan, compiled and loaded ---- */

typedef struct CpuKernels CpuKernels;

llmc_status kernels_open(const Plan *plan, const KernelBuildOptions *opt, CpuKernels **out,
                         llmc_error *err);
void kernels_close(CpuKernels *k);
llmc_kernel *kernels_find(const CpuKernels *k, int kernel); /* index in the plan */
/* Compile all kernels of the plan into artifact/aot/<target>/ with a manifest. */
llmc_status kernels_ship(const Plan *plan, const KernelBuildOptions *opt, llmc_error *err);

/* ---- cpu_bandwidth.c ---- */

double cpu_bandwidth(int n_threads, double seconds); /* read bytes/s */
/* Return the size of the buffer that cpu_bandwidth reads: four times the last-level caches, at most
 * a quarter of the available memory. */
int64_t cpu_bandwidth_bytes(int64_t cache, int64_t available);
/* Return the duration of a measurement: `seconds`, at most 60; 0 for NaN */
double cpu_bandwidth_seconds(double seconds);

extern const Device cpu_device;

/* ---- cpu_device.c ---- */

typedef struct CpuModel {
	CpuKernels *kernels; /* NULL: the reference runs every step */
	Weights *weights;    /* owned by the runtime */
} CpuModel;

/* ---- cpu_session.c: as the members of Device ---- */

int64_t cpu_state_bytes(const Session *s, int64_t host_bytes);
llmc_status cpu_session_open(Session *s, const llmc_memory *need, llmc_error *err);
void cpu_session_close(Session *s);
llmc_status cpu_session_replace(Session *s, Weights *w, llmc_error *err);
llmc_status cpu_forward(Session *s, int phase, const float **logits, llmc_error *err);
llmc_status cpu_op_times(Session *s, int phase, llmc_op_time_fn fn, void *user, llmc_error *err);

#endif
