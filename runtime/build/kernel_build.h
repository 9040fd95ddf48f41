/* Kernels of a plan as built files, whoever builds them: which files a plan needs, where each one
 * is (shipped with the artifact, in the cache, or yet to be compiled), compiling several at once,
 * and shipping them. What is a target's own (its compiler, what a built file is, how it is loaded)
 * comes in as a BuildKind.
 *
 *   kernel_build.c    units and the cache (base/build_cache.h)    aot.c  artifact/aot/<name>/ and its manifest
 *   thread_pool.c     threads that compile
 *
 * A built file is known by its key: a hash of its source and of all that it is compiled with, the
 * compiler apart. Opening an artifact runs its code, so sources and built files must be ours or
 * root's, and nobody else's to write. */
#ifndef LLMC_RUNTIME_BUILD_KERNEL_BUILD_H
#define LLMC_RUNTIME_BUILD_KERNEL_BUILD_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/build_cache.h"
#include "base/checksummed_file.h"
#include "base/strbuf.h"
#include "plan/plan.h"

enum { BUILD_MAX_JOBS = 64 };

typedef struct KernelBuildOptions {
	const char *artifact;
	int n_jobs;        /* compilers at once; 0: as topology_threads */
	bool cache_warned; /* that the cache takes no files has been said already */
	llmc_log_fn log;
	void *log_user;
} KernelBuildOptions;

typedef struct BuildUnit {
	const char
	    *file;    /* relative to the artifact, as the plan says, or one of the target's own */
	char key[65]; /* set by the target */
	size_t bytes; /* of its source, where the target says: what is longest is compiled first */
	char cached[65]; /* key of its entry in the cache: `key` and the compiler; "": not looked up
	                    yet */
	CacheEntry
	    entry; /* path of the built file, shipped or cached; "": the cache does not keep it */
	bool ready;
	llmc_status status; /* of compiling it */
	llmc_error error;
} BuildUnit;

typedef struct BuildKind {
	const char *suffix; /* of built files, and their kind in the cache: "so" */
	const char *with;   /* what a source is built with: "flags" */
	const char *mark;   /* [8] of the seal of shipped files */
	/* Buffer for a unit's contents; NULL: the loader takes the file by its path */
	Strbuf *(*contents)(void *target, int unit);
	/* Compile a unit, and keep it by build_keep. Called by several threads at once. */
	llmc_status (*compile)(void *target, int unit, llmc_error *err);
} BuildKind;

typedef struct KernelBuild {
	const Plan *plan;
	KernelBuildOptions opt;
	Cache cache;
	const BuildKind *kind;
	void *target;
	int n_unit;
	BuildUnit *unit;
	int *unit_of; /* [n_kernel] */
	/* thread_pool.c */
	int *order; /* [n_unit] units as they are begun */
	atomic_int next;
	pthread_mutex_t lock;
	pthread_cond_t news;
	int done, left; /* under lock: units compiled, threads that have gone */
	llmc_error
	    unkept;    /* under lock: why what was built is not in the cache; code LLMC_OK: it is */
	bool shipping; /* what cannot be written is an error */
	int todo, jobs; /* units to compile, by so many threads at most */
	int shown, n_thread;
	pthread_t thread[BUILD_MAX_JOBS];
} KernelBuild;

/* --- kernel_build.c --- */
/* Units: each file of the plan once, behind them those of `own` (NULL-terminated; NULL: none).
 * Release it whatever comes back. */
llmc_status build_init(KernelBuild *b, const Plan *plan, const KernelBuildOptions *opt,
                       const BuildKind *kind, void *target, const char *const *own,
                       llmc_error *err);
void build_release(KernelBuild *b); /* stops and waits when threads still compile */
bool build_all_ready(const KernelBuild *b);
/* Look up units that are not ready. compiler: bytes that identify the compiler and its version. A
 * cache that takes no files is no failure: units are built for this process alone, and build_wait
 * reports it. */
llmc_status build_cached(KernelBuild *b, const void *compiler, size_t n, llmc_error *err);
/* Keep what was compiled, in the cache or in the artifact; *kept false: the cache does not take it,
 * and the target has to hold it in memory. */
llmc_status build_keep(KernelBuild *b, int unit, const void *data, size_t n, bool *kept,
                       llmc_error *err);
/* Units are loaded: their entries may be evicted from the cache. */
void build_unlock(KernelBuild *b);
/* Temporary files of processes that died while they wrote into a folder of built files go. */
void build_sweep(const char *dir);
/* Nobody else may rename anything in a folder of the artifact that a file lies in. */
llmc_status build_check_folders(const char *artifact, const char *file, llmc_error *err);
/* The text without the comment that a generated file begins with: it names the model and lines of
 * its description, and models that differ only there share their kernels. */
const char *build_source_body(const char *text);

/* --- aot.c --- */
/* Take what ships in artifact/aot/<name>/ and fits; what does not is told in one line. unfit (may
 * be NULL): why nothing will */
void build_shipped(KernelBuild *b, const char *name, const char *unfit);
/* Is there anything of the name in artifact/aot/? */
bool build_ships(const char *artifact, const char *name);
/* Compile all units into artifact/aot/<name>/, with a manifest. arch: NULL, or what else the
 * manifest says */
llmc_status build_ship(KernelBuild *b, const char *name, const char *compiler, const char *arch,
                       llmc_error *err);

/* --- thread_pool.c --- */
/* Start compiling what is not ready. The log is called by the caller's thread alone, from here,
 * poll and wait. */
void build_start(KernelBuild *b, const char *name, const char *compiler);
void build_poll(KernelBuild *b);
llmc_status build_wait(KernelBuild *b,
                       llmc_error *err); /* the error of the first unit that failed */
void build_stop(KernelBuild *b);         /* without waiting for units that nobody has begun */

#endif
