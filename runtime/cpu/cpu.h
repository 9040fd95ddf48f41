/* The processor: threads, kernels as shared objects. Private to runtime/; what others may ask is in runtime.h. */
#ifndef LLMC_RUNTIME_CPU_H
#define LLMC_RUNTIME_CPU_H

#include <sched.h>

#include "runtime/build/build.h"
#include "runtime/runtime.h"
#include "templates/common/llmc_step.h"

/* --- threads.c: n threads that run one function side by side; the caller is part 0 ---------------------------- */

typedef struct Threads Threads;
typedef void threads_fn(void *user, int part, int n_parts);

llmc_status threads_open(int n, Threads **out, llmc_error *err);
void        threads_close(Threads *t);
int         threads_count(const Threads *t);
/* Every part runs fn once; returns when all have. One caller at a time. Allocates nothing. */
void        threads_run(Threads *t, threads_fn *fn, void *user);
/* Within fn: wait until all parts are here. What they wrote before is seen by all after. */
void        threads_barrier(Threads *t);

/* --- topology.c ------------------------------------------------------------------------------------------------ */

enum { TOPOLOGY_MAX = 1024 };

typedef struct Topology {
	int     n_allowed;          /* processors that the affinity mask allows */
	int     n_core;             /* of distinct real cores */
	int     core[TOPOLOGY_MAX]; /* one allowed processor of each core */
	double  quota;              /* processors that the cgroup grants; 0: no limit */
} Topology;

/* root: "" or a folder with stand-ins for /sys and /proc (tests). allowed: processors of the mask. */
void topology_read(const char *root, const bool allowed[TOPOLOGY_MAX], Topology *out);
void topology_here(Topology *out);
int  topology_count(const Topology *t); /* threads worth running: cores within the quota, >= 1 */

/* --- build.c: kernels of a plan, compiled and loaded ---------------------------------------------------------- */

typedef struct Kernels Kernels;

llmc_status  kernels_open(const Plan *plan, const BuildOptions *opt, Kernels **out, llmc_error *err);
void         kernels_close(Kernels *k);
llmc_kernel *kernels_find(const Kernels *k, int kernel); /* by index in the plan */
/* Compile all kernels of the plan into artifact/aot/<target>/ with a manifest. */
llmc_status  kernels_ship(const Plan *plan, const BuildOptions *opt, llmc_error *err);

#endif
