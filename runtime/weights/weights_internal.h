/* Internals of weights, for weights.c and stage_weights.c. */
#ifndef LLMC_RUNTIME_WEIGHTS_WEIGHTS_INTERNAL_H
#define LLMC_RUNTIME_WEIGHTS_WEIGHTS_INTERNAL_H

#include "formats/peft.h"
#include "runtime/weights/weights.h"

struct Weights {
	const Plan *plan;
	Checkpoint *checkpoint;
	Peft *peft; /* NULL: no adapter */
	/* all sources of all tensors, until they are packed; NULL: random weights */
	CheckpointTensor *src;
	const void **data; /* [n_tensor] */
	void *region;      /* packed tensors */
	size_t region_bytes;
	FileMap packed; /* file of the packed tensors, instead of region */
	bool cached;
};

#endif
