/* Threads of the host that run one function side by side, and which processors they run on. */
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
	int64_t sleeps; /* waits that ended in the kernel */
	int64_t taken;  /* parts that ran on another thread than that of their number */
	int64_t alone;  /* jobs that the caller ran by itself */
} ThreadCounts;
/* Kinds of jobs. Jobs of one kind (0 .. DEAL_KINDS - 1) take about the same time, and may run as
 * one part on the caller alone where that is faster. */
enum {
	DEAL_KINDS = 32,
	DEAL_ALL = -1 /* always with the parts of all threads */,
	DEAL_AS_BEFORE = -2 /* as the last job did */
};

llmc_status threads_open(int n, Threads **out, llmc_error *err);
void threads_close(Threads *t);
int threads_count(const Threads *t);
/* Every part runs fn once; returns when all have. One caller at a time. Allocates nothing. */
void threads_run(Threads *t, threads_fn *fn, void *user);
/* Stages 0 .. n_stages - 1 one after the other. Every part of a stage runs fn once, on any thread
 * of the pool: what is kept between stages belongs to a part, not to a thread. A stage begins when
 * all parts of the one before are done, and sees what they wrote. No barriers in fn. The number of
 * parts may differ from job to job: it is that of the threads, or 1 where other processes displace
 * the threads so often that the caller is faster alone. Otherwise as threads_run. */
void threads_deal(Threads *t, int kind, int n_stages, threads_deal_fn *fn, void *user);
/* Within fn of threads_run: wait until all parts are here. What they wrote before is seen by all
 * after. */
void threads_barrier(Threads *t);
ThreadCounts threads_counts(const Threads *t); /* since threads_open */

/* ---- team.c ---- */

typedef struct TeamKind {
	bool alone, trial; /* mode of this window; the other one has been better so far */
	int jobs, left,
	    stay; /* jobs of this window; windows until the next trial, and from one to the next */
	double window,
	    held; /* seconds of this window: its jobs; what the caller might have gained alone */
	double mean[2]; /* seconds of a job, by mode; 0: unknown */
	double seen;    /* time of the last job */
} TeamKind;

/* Is the next job of the kind the caller's alone? Afterwards team_ran records when it ended and how
 * long it took. held: seconds that the caller waited for others, less those that their parts would
 * have taken it at its pace in this job. */
bool team_alone(TeamKind *k, double now);
void team_ran(TeamKind *k, double end, double seconds, double held);

/* ---- topology.c ---- */

enum { TOPOLOGY_MAX = 1024 };

typedef struct Topology {
	int n_allowed;          /* processors that the affinity mask allows */
	int n_core;             /* of distinct real cores */
	int core[TOPOLOGY_MAX]; /* one allowed processor of each core */
	double quota;           /* processors that the cgroup grants; 0: no limit */
} Topology;

/* root: "" or a folder with stand-ins for /sys and /proc (tests). allowed: processors of the mask.
 */
void topology_read(const char *root, const bool allowed[TOPOLOGY_MAX], Topology *out);
void topology_here(Topology *out);
int topology_count(const Topology *t); /* threads worth running: cores within the quota, >= 1 */
int topology_threads(void); /* LLMC_THREADS if it is set, else the same of this machine */
/* Seconds that each of n waiting threads spins before it sleeps; 0 where they are more than the
 * processors. LLMC_SPIN_US overrides its default. */
double threads_spin(const Topology *t, int n);
/* Spins until a word that only grows is at `least` or beyond; false: it is not after so many
 * seconds. *waited (or NULL) += what it took, unless that was too short for the clock. */
bool threads_spin_for(atomic_ullong *word, uint64_t least, double seconds, double *waited);
/* Bytes of the last-level caches of the machine, each once; 0: it does not tell. root: as above */
int64_t topology_cache_bytes(const char *root);
int topology_describe(char *buf, size_t cap); /* a sentence for doctor; as snprintf */

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
