/* Built kernels of a plan, for any target: the files that the plan needs, where each one is
 * (shipped with the artifact, in the cache, or not compiled yet), compiling several at once, and
 * shipping them. A BuildKind holds the parts that depend on the target: compiler, suffix, loading.
 *
 *   kernel_build.c    units and the cache (base/build_cache.h)
 *   aot.c             artifact/aot/<name>/ and its manifest
 *   prebuilt.c        kernels of common models that a release ships
 *   thread_pool.c     threads that compile
 *
 * A built file is identified by its key: a hash of its source and everything it is compiled with,
 * except the compiler. Opening an artifact runs its code, so sources and built files must belong to
 * this user or root, and no other user may have write access. */
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
	int n_jobs;        /* compilers at once; 0: topology_threads() */
	bool cache_warned; /* the warning that the cache cannot be written has been logged */
	bool skip_built;   /* do not use the kernels below aot/ */
	llmc_log_fn log;
	void *log_user;
} KernelBuildOptions;

typedef struct BuildUnit {
	/* relative to the artifact as in the plan, or one of the target's own files */
	const char *file;
	char key[65]; /* set by the target */
	size_t bytes; /* bytes of the source, 0 if unknown: the longest source is compiled first */
	char cached[65]; /* key of its cache entry: `key` and the compiler; "": not looked up yet */
	CacheEntry entry; /* path of the built file, shipped or cached; "": not in the cache */
	bool ready;
	llmc_status status; /* result of the compilation */
	llmc_error error;
} BuildUnit;

typedef struct BuildKind {
	const char *suffix; /* suffix of built files and their kind in the cache: "so" */
	const char *with;   /* inputs of a build other than the source, for messages: "flags" */
	const char *mark;   /* [8] format mark in the trailer of shipped files */
	/* Buffer for a unit's built content; NULL: the loader opens the file by path */
	Strbuf *(*contents)(void *target, int unit);
	/* Compile a unit and store it with build_keep. Called from several threads at once. */
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
	int *order; /* [n_unit] units in the order in which they are started */
	atomic_int next;
	pthread_mutex_t lock;
	pthread_cond_t news;
	int done, left; /* protected by `lock`: units compiled, threads that have ended */
	/* protected by `lock`: why a built file is not in the cache; code LLMC_OK: all are */
	llmc_error unkept;
	bool prebuilt;  /* there is a folder of prebuilt kernels */
	bool shipping;  /* failing to write a file is an error */
	int todo, jobs; /* units to compile, maximum number of threads */
	int shown, n_thread;
	pthread_t thread[BUILD_MAX_JOBS];
} KernelBuild;

/* ---- kernel_build.c ---- */
/* Units: each file of the plan once, followed by those of `own` (NULL-terminated; may be NULL).
 * Call build_release whatever the result. */
llmc_status build_init(KernelBuild *b, const Plan *plan, const KernelBuildOptions *opt,
                       const BuildKind *kind, void *target, const char *const *own,
                       llmc_error *err);
void build_release(KernelBuild *b); /* stops threads that still compile and waits for them */
bool build_all_ready(const KernelBuild *b);
/* Look up units that are not ready in the cache. compiler: bytes that identify the compiler and its
 * version. An unwritable cache is not an error: units are built for this process only, and
 * build_wait reports it. */
llmc_status build_cached(KernelBuild *b, const void *compiler, size_t n, llmc_error *err);
/* Store a compiled unit in the cache or the artifact. *kept false: the cache rejects it and the
 * target keeps it in memory. */
llmc_status build_keep(KernelBuild *b, int unit, const void *data, size_t n, bool *kept,
                       llmc_error *err);
/* Call after the units have been loaded: from then on the cache may evict their entries. */
void build_unlock(KernelBuild *b);
/* Delete temporary files that killed processes left in a folder of built files. */
void build_sweep(const char *dir);
/* Check that no other user may rename anything in the artifact's folders that lead to a file. */
llmc_status build_check_folders(const char *artifact, const char *file, llmc_error *err);
/* Return the source without the comment at the top of a generated file. That comment names the
 * model and lines of its description; models that differ only there share their kernels. */
const char *build_source_body(const char *text);

/* ---- aot.c ---- */
/* Use the files in artifact/aot/<name>/ that fit; one log line reports the others. unfit: the
 * reason why none of them can fit; may be NULL */
void build_shipped(KernelBuild *b, const char *name, const char *unfit);
/* Does artifact/aot/ contain anything of this name? */
bool build_ships(const char *artifact, const char *name);
/* Compile all units into artifact/aot/<name>/, with a manifest. arch: architecture to record in the
 * manifest; may be NULL */
llmc_status build_ship(KernelBuild *b, const char *name, const char *compiler, const char *arch,
                       llmc_error *err);

/* ---- prebuilt.c ---- */
/* Folder of prebuilt kernels: LLMC_KERNELS, or llmc/kernels next to the library (../lib/ of the
 * command). False: there is none. */
bool prebuilt_dir(Strbuf *dir);
/* Number of kernels in the folder, with its path; 0: none that may be used */
int prebuilt_count(Strbuf *dir);
/* Use prebuilt kernels for units that are not ready. */
void build_prebuilt(KernelBuild *b);

/* ---- thread_pool.c ---- */
/* Start compiling units that are not ready. The log function is called on the caller's thread only:
 * here, in build_poll and in build_wait. */
void build_start(KernelBuild *b, const char *name, const char *compiler);
void build_poll(KernelBuild *b);
llmc_status build_wait(KernelBuild *b, llmc_error *err); /* error of the first unit that failed */
void build_stop(KernelBuild *b); /* does not wait for units that have not started */

#endif
