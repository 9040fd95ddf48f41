/* Host threads that run one function in parallel, and the processors they run on. */
#ifndef LLMC_RUNTIME_THREADS_H
#define LLMC_RUNTIME_THREADS_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* ---- threads.c: n threads; the caller is part 0 ---- */

typedef struct Threads Threads;
typedef void threads_fn(void *user, int part, int n_parts);
typedef void threads_deal_fn(void *user, int stage, int part, int n_parts);
typedef struct ThreadCounts {
	int64_t sleeps; /* waits that ended in a futex call */
	int64_t taken;  /* parts that ran on a different thread than the one with their number */
	int64_t alone;  /* jobs that the caller ran alone */
} ThreadCounts;
/* Kinds of jobs. Jobs of one kind (0 .. DEAL_KINDS - 1) take about the same time, and may run as
 * one part on the caller alone if that is faster. */
enum {
	DEAL_KINDS = 32,
	DEAL_ALL = -1 /* always split over all threads */,
	DEAL_AS_BEFORE = -2 /* like the last job */
};

llmc_status threads_open(int n, Threads **out, llmc_error *err);
void threads_close(Threads *t);
int threads_count(const Threads *t);
/* Run fn once per part; returns after all parts have. One caller at a time. Does not allocate. */
void threads_run(Threads *t, threads_fn *fn, void *user);
/* Run stages 0 .. n_stages - 1 in order. Each part of a stage runs fn once, on any thread of the
 * pool, so data kept between stages belongs to a part, not to a thread. A stage begins after all
 * parts of the previous one are done, and sees their writes. fn must not use barriers. The number
 * of parts may differ between jobs: it is the number of threads, or 1 if other processes preempt
 * the threads so often that the caller is faster alone. Otherwise like threads_run. */
void threads_deal(Threads *t, int kind, int n_stages, threads_deal_fn *fn, void *user);
/* Within fn of threads_run: wait until all parts have arrived. Writes before the barrier are
 * visible to all parts after it. */
void threads_barrier(Threads *t);
ThreadCounts threads_counts(const Threads *t); /* counts since threads_open */

/* ---- team.c ---- */

typedef struct TeamKind {
	/* alone: mode of this window; trial: the window tries the mode that has been slower so
	 * far */
	bool alone, trial;
	int jobs, left,
	    /* jobs: in this window; left: windows until the next trial; stay: windows between two
	     * trials */
	    stay;
	double window,
	    /* seconds in this window: duration of its jobs; time that running alone would have
	     * saved */
	    held;
	double mean[2]; /* seconds per job, by mode; 0: unknown */
	double seen;    /* time of the last job */
} TeamKind;

/* team_alone returns whether the caller should run the next job of this kind alone. team_ran then
 * records the end of the job and its duration. held: seconds that the caller waited for other
 * threads, minus the time it would have needed for their parts at its own pace. */
bool team_alone(TeamKind *k, double now);
void team_ran(TeamKind *k, double end, double seconds, double held);

/* ---- topology.c ---- */

enum { TOPOLOGY_MAX = 1024 };

typedef struct Topology {
	int n_allowed;          /* processors in the affinity mask */
	int n_core;             /* distinct physical cores among them */
	int core[TOPOLOGY_MAX]; /* one allowed processor per core */
	double quota;           /* processors granted by the cgroup; 0: no limit */
} Topology;

/* root: "" or a folder with stand-ins for /sys and /proc (tests). allowed: the affinity mask. */
void topology_read(const char *root, const bool allowed[TOPOLOGY_MAX], Topology *out);
void topology_here(Topology *out);
int topology_count(const Topology *t); /* useful number of threads: cores within the quota, >= 1 */
int topology_threads(void); /* LLMC_THREADS if it is set, else topology_count of this machine */
/* Return the seconds that each of n waiting threads spins before it sleeps; 0 if the threads
 * outnumber the processors. LLMC_SPIN_US overrides the default. */
double threads_spin(const Topology *t, int n);
/* Spin until a monotonic word is at least `least`; returns false if that takes longer than
 * `seconds`. Adds the wait to *waited (may be NULL), unless it was too short for the clock. */
bool threads_spin_for(atomic_ullong *word, uint64_t least, double seconds, double *waited);
/* Return the total bytes of the machine's last-level caches; 0: unknown. root: see topology_read */
int64_t topology_cache_bytes(const char *root);
/* one sentence for `llmc doctor`; returns as snprintf */
int topology_describe(char *buf, size_t cap);

/* Pause between two polls of a shared word, which leaves resources of the core to its other
 * hardware thread. On Arm this is isb, which takes some ten cycles: most cores ignore yield. */
static inline void
pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

#endif
