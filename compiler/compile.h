/* The compiler as one call: Spec -> artifact in memory -> folder. The map of the passes is
 * compile.c. */
#ifndef LLMC_COMPILER_COMPILE_H
#define LLMC_COMPILER_COMPILE_H

#include "compiler/graph.h"

typedef struct ArtifactFile {
	const char
	    *path; /* "plan-cpu-v3.json", "kernels/head.1f3a9c.c", "kernels/common/llmc_step.h" */
	const char *text;
	size_t size;
} ArtifactFile;

typedef struct Compiled {
	Plan *plan;
	size_t n_file;
	ArtifactFile
	    *file; /* sorted by path; model.yaml, plan-<target>.json, plan-<target>.txt, kernels/ */
	const char *plan_text; /* plan.txt */
} Compiled;

/* target: a name of plan/target.h. dump (may be NULL): spec graph shard fuse order plan ->
 * dump_out. Of a model that is split over ranks: the plan of the first. NULL when d has errors.
 * Warnings (an op without a tuned kernel) go to d. */
Compiled *compile_spec(const Spec *s, const char *target, const char *dump, Strbuf *dump_out,
                       Diag *d, Arena *perm);
/* The same of one of the spec's ranks (0 <= rank < s->tp * s->pp). fuse false: without rewrites, so
 * that what every op takes in is a value that a probe sees. */
Compiled *compile_rank(const Spec *s, const char *target, int rank, bool fuse, Diag *d,
                       Arena *perm);
/* Write all files of several targets' Compiled into dir; nothing is left half-written. */
llmc_status artifact_write(const Compiled *const *c, size_t n, const char *dir, llmc_error *err);

#endif
