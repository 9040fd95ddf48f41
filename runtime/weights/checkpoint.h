/* One interface to GGUF and safetensors checkpoints: tensors by name, mapped into memory, not
 * copied. */
#ifndef LLMC_RUNTIME_WEIGHTS_CHECKPOINT_H
#define LLMC_RUNTIME_WEIGHTS_CHECKPOINT_H

#include "base/sha256.h"
#include "formats/quant_format.h"
#include "plan/plan.h"

typedef struct Checkpoint Checkpoint;

typedef struct CheckpointTensor {
	const char *name;
	const char *file;
	Dtype dtype;            /* DT_NONE: unsupported type */
	const char *dtype_name; /* name of the stored type, for messages */
	int n_dims;
	int64_t dim[8];   /* row-major: the last is contiguous */
	const void *data; /* in the mapping; NULL: rows are computed by quant_format_row */
	int64_t bytes;
	bool copied; /* data is allocated, not mapped */
	/* quantised matrix whose rows quant_format_row computes; NULL: rows are stored
	 * unquantised */
	const QuantFormatMatrix *made;
	/* [rows]: row r of the source is stored row rows_in[r]; NULL: row r */
	const float *rows_in;
	const struct PeftDelta *delta; /* LoRA delta, added to rows as they are read; NULL: none */
} CheckpointTensor;

/* Open a GGUF or safetensors file, an index.json, or a folder that holds one of them. */
llmc_status checkpoint_open(const char *path, Checkpoint **out, llmc_error *err);
/* Open the checkpoint of another model for names that begin with '@' (PlanDraft); path may be
 * NULL. */
llmc_status checkpoint_add_model(Checkpoint *c, const char *path, llmc_error *err);
void checkpoint_close(Checkpoint *c);
bool checkpoint_find(const Checkpoint *c, const char *name, CheckpointTensor *out);
/* Return the tensor name closest to `name`; NULL: none is close. */
const char *checkpoint_nearest(const Checkpoint *c, const char *name);
/* Find the tensor that a source of the plan names. Returns an error if the tensor is missing or
 * does not match the plan. */
llmc_status checkpoint_source(const Checkpoint *c, const PlanTensor *t, const PlanSource *s,
                              CheckpointTensor *out, llmc_error *err);
/* Read a vector as fp32 (rotary frequency factors): its first n elements. */
llmc_status checkpoint_vector(const Checkpoint *c, const char *name, float *dst, int64_t n,
                              llmc_error *err);
/* Read a tensor of n integers, I32 or I64. */
llmc_status checkpoint_integers(const Checkpoint *c, const char *name, int64_t *dst, int64_t n,
                                llmc_error *err);
/* Add path, size, mtime and header bytes of every file to a cache key. */
llmc_status checkpoint_identity(const Checkpoint *c, Sha256 *sum, llmc_error *err);
/* Return a checksum of names, types, shapes and first bytes of all tensors. Machines of a group
 * compare it. */
uint64_t checkpoint_content(const Checkpoint *c);
/* Release the mapped pages of a tensor after use; they are read again on the next access. */
void checkpoint_forget(const CheckpointTensor *t);

#endif
