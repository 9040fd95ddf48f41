/* Inside of runtime/cuda: NCCL, as far as ranks need it. See nccl.c. */
#ifndef LLMC_RUNTIME_CUDA_NCCL_H
#define LLMC_RUNTIME_CUDA_NCCL_H

#include "runtime/cuda/cuda_session.h"

/* Nccl: the library, and communicators of ranks of this process */
typedef struct NcclId {
	char internal[128];
} NcclId;

/* E_MISSING: there is none, or it is too old. */
llmc_status nccl_library(Nccl **out, llmc_error *err);
/* Where ranks that are to be connected meet: one makes it, all take it */
llmc_status nccl_id(const Nccl *l, NcclId *id, llmc_error *err);
/* Communicators of ranks first .. first + n - 1 of `all`, a GPU each; by one thread. What fails is
 * to be closed. */
llmc_status nccl_connect(Nccl *l, CudaDevice *const *dev, int first, int n, int all,
                         const NcclId *id, int timeout_s, llmc_error *err);
/* The three in turn, where all ranks are of this process */
llmc_status nccl_open(CudaDevice *const *dev, int n, int timeout_s, Nccl **out, llmc_error *err);
void nccl_close(Nccl *l);
/* What waits in streams comes to an end, and is worth nothing. Any thread: a call that a rank's
 * thread is in ends first. */
void nccl_abort(Nccl *l);
/* receive [ranks, count] is what all ranks send, in the rank's stream or its capture; send may be
 * its place there. By the rank's thread. */
llmc_status nccl_all_gather(Nccl *l, int rank, const float *send, float *receive, int64_t count,
                            CUstream stream, llmc_error *err);
int nccl_version(const Nccl *l);

#endif
