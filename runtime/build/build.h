/* Kernels of a plan as built files, whoever builds them: which files a plan needs, where each one is (shipped with the
 * artifact, in the cache, or yet to be compiled), compiling several at once, and shipping them. What is a target's own (its
 * compiler, what a built file is, how it is loaded) comes in as a BuildKind.
 *
 *   build.c    units and the cache       shipped.c  artifact/aot/<name>/ and its manifest
 *   crew.c     threads that compile      seal.c     files that end with the key of their source and a checksum
 *
 * A built file is known by its key: a hash of its source and of all that it is compiled with, the compiler apart. Opening an
 * artifact runs its code, so sources and built files must be ours or root's, and nobody else's to write. */
#ifndef LLMC_RUNTIME_BUILD_H
#define LLMC_RUNTIME_BUILD_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/strbuf.h"
#include "plan/plan.h"

enum { BUILD_MAX_JOBS = 64 };

typedef struct BuildOptions {
	const char *artifact;
	int         n_jobs;     /* compilers at once; 0: as topology_threads */
	bool        cache_told; /* that the cache takes no files has been said already */
	llmc_log_fn log;
	void       *log_user;
} BuildOptions;

typedef struct BuildUnit {
	const char *file;       /* relative to the artifact, as the plan says, or one of the target's own */
	char        key[65];    /* set by the target */
	size_t      bytes;      /* of its source, where the target says: what is longest is compiled first */
	Strbuf      path;       /* of the built file; "": the cache has no place for it */
	bool        ready;
	llmc_status status;     /* of compiling it */
	llmc_error  error;
} BuildUnit;

typedef struct BuildKind {
	const char *suffix;     /* of built files: ".so" */
	const char *with;       /* what a source is built with: "flags" */
	/* Take the file at a unit's path. E_IO: there is none; E_CHECK: damaged, or built from another source; E_INPUT: others may
	 * have written it */
	llmc_status (*take)(void *target, int unit, llmc_error *err);
	/* Compile a unit into its path. Called by several threads at once. */
	llmc_status (*compile)(void *target, int unit, llmc_error *err);
} BuildKind;

typedef struct Build {
	const Plan      *plan;
	BuildOptions     opt;
	const BuildKind *kind;
	void            *target;
	int              n_unit;
	BuildUnit       *unit;
	int             *unit_of;    /* [n_kernel] */
	/* crew.c */
	int             *order;      /* [n_unit] units as they are begun */
	atomic_int       next;
	pthread_mutex_t  lock;
	pthread_cond_t   news;
	int              done, left; /* under lock: units compiled, threads that have gone */
	llmc_error       unkept;     /* under lock: why what was built is not in the cache; code LLMC_OK: it is */
	bool             shipping;   /* what cannot be written is an error */
	int              todo, jobs;   /* units to compile, by so many threads at most */
	int              shown, n_thread;
	pthread_t        thread[BUILD_MAX_JOBS];
} Build;

/* --- build.c --- */
/* Units: each file of the plan once, behind them those of `own` (NULL-terminated; NULL: none). Release it whatever comes back. */
llmc_status build_init(Build *b, const Plan *plan, const BuildOptions *opt, const BuildKind *kind, void *target,
                       const char *const *own, llmc_error *err);
void        build_release(Build *b);           /* stops and waits when threads still compile */
bool        build_all_ready(const Build *b);
/* Paths in the cache for units that are not ready; those that are there already are taken. compiler: bytes that tell compilers
 * and their versions apart. A cache that takes no files is no failure: units are built for this process alone, and build_wait
 * says so. */
llmc_status build_cached(Build *b, const void *compiler, size_t n, llmc_error *err);
/* Seal what was compiled at the unit's path; *kept false: the cache does not take it, and the target has to hold it in memory. */
llmc_status build_keep(Build *b, int unit, const char mark[8], const void *data, size_t n, bool *kept, llmc_error *err);
/* Temporary files of processes that died while they wrote into a folder of built files go. */
void        build_sweep(const char *dir);
/* Nobody else may rename anything in a folder of the artifact that a file lies in. */
llmc_status build_check_folders(const char *artifact, const char *file, llmc_error *err);
/* The text without the comment that a generated file begins with: it names the model and lines of its description, and models
 * that differ only there share their kernels. */
const char *build_source_body(const char *text);

/* --- shipped.c --- */
/* Take what ships in artifact/aot/<name>/ and fits; what does not is told in one line. unfit (may be NULL): why nothing will */
void        build_shipped(Build *b, const char *name, const char *unfit);
/* Is there anything of the name in artifact/aot/? */
bool        build_ships(const char *artifact, const char *name);
/* Compile all units into artifact/aot/<name>/, with a manifest. arch: NULL, or what else the manifest says */
llmc_status build_ship(Build *b, const char *name, const char *compiler, const char *arch, llmc_error *err);

/* --- crew.c --- */
/* Start compiling what is not ready. The log is called by the caller's thread alone, from here, poll and wait. */
void        build_start(Build *b, const char *name, const char *compiler);
void        build_poll(Build *b);
llmc_status build_wait(Build *b, llmc_error *err); /* the error of the first unit that failed */
void        build_stop(Build *b);                  /* without waiting for units that nobody has begun */

/* --- seal.c: contents, then 64 bytes of key, 64 of a checksum of both, and 8 of a mark: the format ---------------- */
/* E_IO, E_CHECK, E_INPUT as BuildKind.take. out: the contents; NULL: only checked */
llmc_status sealed_read(const char *path, const char mark[8], const char *key, Strbuf *out, llmc_error *err);
llmc_status sealed_write(const char *path, const char mark[8], const char *key, const void *data, size_t n, llmc_error *err);

#endif
