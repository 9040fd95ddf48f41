/* Model-parallel shards: consolidated.00.pth, .01.pth, .. of Meta's checkpoints. Each shard has all
 * names. Matrices are split by rows or by columns; vectors are replicated. */
#ifndef LLMC_FORMATS_SHARDS_H
#define LLMC_FORMATS_SHARDS_H

#include "formats/safetensors.h"

/* Joins t [*n], the tensors of all n_shard files in file order; with several files, results are in
 * arena memory. hidden: hidden size of the model, which determines the split: a matrix that still
 * has that many columns was split by rows. E_INPUT: a tensor is missing in a file, or its shapes
 * differ. */
llmc_status shards_join(Arena *a, StTensor *t, size_t *n, int n_shard, int64_t hidden,
                        llmc_error *err);

#endif
