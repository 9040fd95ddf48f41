/* Inside of runtime/cuda: NCCL, as far as ranks need it. See nccl.c. */
#ifndef LLMC_RUNTIME_CUDA_NCCL_H
#define LLMC_RUNTIME_CUDA_NCCL_H

#include "runtime/cuda/session.h"

typedef struct Nccl Nccl; /* the communicators of all ranks of this process */

/* By one thread for all. E_MISSING: there is no library, or it is too old. */
llmc_status nccl_open(CudaSession *const *rank, int n, int timeout_s, Nccl **out, llmc_error *err);
void        nccl_close(Nccl *l);
/* What waits in streams comes to an end, and is worth nothing. No thread may be inside of nccl_all_gather. */
void        nccl_abort(Nccl *l);
/* receive [ranks, count] is what all ranks send, in the rank's stream or its capture; send may be its place there. By the rank's thread. */
llmc_status nccl_all_gather(Nccl *l, int rank, const float *send, float *receive, int64_t count, CUstream stream, llmc_error *err);
int         nccl_version(const Nccl *l);

#endif
