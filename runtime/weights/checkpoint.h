/* A checkpoint of either format behind one face: tensors by name, mapped, never copied here. */
#ifndef LLMC_RUNTIME_WEIGHTS_CHECKPOINT_H
#define LLMC_RUNTIME_WEIGHTS_CHECKPOINT_H

#include "base/sha256.h"
#include "formats/scheme.h"
#include "plan/plan.h"

typedef struct Checkpoint Checkpoint;

typedef struct CheckpointTensor {
	const char *name;
	const char *file;
	Dtype dtype;            /* DT_NONE: a type that is not read */
	const char *dtype_name; /* of a type that is not read */
	int n_dims;
	int64_t dim[8];   /* row-major: the last is contiguous */
	const void *data; /* in the mapping; NULL: rows are made */
	int64_t bytes;
	bool copied;                   /* data is in memory, not in the mapping */
	const SchemeMatrix *made;      /* by scheme_row; NULL: they are the file's */
	const float *rows_in;          /* [rows]: row r is row rows_in[r] of it; NULL: row r */
	const struct PeftDelta *delta; /* added to its rows while they are read; NULL: nothing */
} CheckpointTensor;

/* A GGUF or safetensors file, an index.json, or a folder that holds one of them. */
llmc_status checkpoint_open(const char *path, Checkpoint **out, llmc_error *err);
void checkpoint_close(Checkpoint *c);
bool checkpoint_find(const Checkpoint *c, const char *name, CheckpointTensor *out);
/* The tensor's name that looks most like `name`; NULL: none is close. */
const char *checkpoint_nearest(const Checkpoint *c, const char *name);
/* The tensor that a source of the plan names, with a sentence when it is missing or is not what the
 * plan says. */
llmc_status checkpoint_source(const Checkpoint *c, const PlanTensor *t, const PlanSource *s,
                              CheckpointTensor *out, llmc_error *err);
/* A vector of n factors as fp32 (rotary frequency factors), the first of those that are stored. */
llmc_status checkpoint_vector(const Checkpoint *c, const char *name, float *dst, int64_t n,
                              llmc_error *err);
/* Path, size, mtime and the header's bytes of every file: what a cache of this checkpoint depends
 * on. */
llmc_status checkpoint_identity(const Checkpoint *c, Sha256 *sum, llmc_error *err);
/* Of names, types, shapes and the first bytes of all tensors: what files on several machines must
 * have in common. */
uint64_t checkpoint_content(const Checkpoint *c);
/* Consumed pages of the mapping go back to the kernel; they are read again when touched. */
void checkpoint_forget(const CheckpointTensor *t);

#endif
