/* Threads of the host that run one function side by side, and which processors they run on. */
#ifndef LLMC_RUNTIME_THREADS_H
#define LLMC_RUNTIME_THREADS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* --- threads.c: n threads; the caller is part 0 ----------------------------------------------------------------- */

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
int  topology_threads(void);            /* the same of this machine */
/* Bytes of the last-level caches of the machine, each once; 0: it does not tell. root: as above */
int64_t topology_cache_bytes(const char *root);
int  topology_describe(char *buf, size_t cap); /* a sentence for doctor; as snprintf */

/* Between two looks at what another thread writes: lets the core's other thread on. */
static inline void
pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
