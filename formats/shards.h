/* Model-parallel shards: consolidated.00.pth, .01.pth, .. of Meta's own checkpoints. Each has every
 * name; matrices are cut by rows or by columns, vectors are in all of them. */
#ifndef LLMC_FORMATS_SHARDS_H
#define LLMC_FORMATS_SHARDS_H

#include "formats/safetensors.h"

/* t [*n]: the tensors of all n_shard files, file after file, become whole ones, in memory of the
 * arena where there is more than one file. hidden: the model's width, which tells how a matrix is
 * cut: one that still has as many columns was cut by rows. E_INPUT: a tensor that is not in all
 * files, or does not fit itself. */
llmc_status shards_join(Arena *a, StTensor *t, size_t *n, int n_shard, int64_t hidden,
                        llmc_error *err);

#endif
