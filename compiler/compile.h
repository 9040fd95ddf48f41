/* Compile a Spec into an artifact in memory, and write artifacts to a folder. compile.c lists the
 * passes. */
#ifndef LLMC_COMPILER_COMPILE_H
#define LLMC_COMPILER_COMPILE_H

#include "compiler/graph.h"

typedef struct ArtifactFile {
	/* for example "plan-cpu-v3.json", "kernels/head.1f3a9c.c", "kernels/common/llmc_step.h" */
	const char *path;
	const char *text;
	size_t size;
} ArtifactFile;

typedef struct Compiled {
	Plan *plan;
	size_t n_file;
	/* sorted by path; model.yaml, plan-<target>.json, plan-<target>.txt, kernels/ */
	ArtifactFile *file;
	const char *plan_text; /* contents of plan-<target>.txt */
} Compiled;

/* Compile for a target of plan/target.h. dump: NULL, or one of spec graph shard fuse order plan,
 * which is written to dump_out. If the model has several ranks, the first is compiled. Returns NULL
 * if d has errors. Warnings (for example an op without a tuned kernel) go to d. */
Compiled *compile_spec(const Spec *s, const char *target, const char *dump, Strbuf *dump_out,
                       Diag *d, Arena *perm);
/* Like compile_spec, for one rank (0 <= rank < s->tp * s->pp). fuse false: no fusion, so that a
 * probe can read every op's input as a value */
Compiled *compile_rank(const Spec *s, const char *target, int rank, bool fuse, Diag *d,
                       Arena *perm);
/* Return the number of plans of a model with one rank. It is 2 if the target is a GPU and
 * placement.cpu has a part of the model; rank 1 is then this part, compiled for a CPU target. */
int compile_partitions(const Spec *s, const char *target, int rank);
/* Write the files of several targets into dir. On failure no file is left incomplete. */
llmc_status artifact_write(const Compiled *const *c, size_t n, const char *dir, llmc_error *err);

#endif
