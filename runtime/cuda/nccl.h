/* Private to runtime/cuda: the part of NCCL that ranks need. See nccl.c. */
#ifndef LLMC_RUNTIME_CUDA_NCCL_H
#define LLMC_RUNTIME_CUDA_NCCL_H

#include "runtime/cuda/cuda_session.h"

/* Nccl: the library, and communicators of this process's ranks */
typedef struct NcclId {
	char internal[128];
} NcclId;

/* E_MISSING: there is none, or it is too old. */
llmc_status nccl_library(Nccl **out, llmc_error *err);
/* Identifies a set of ranks to connect: one rank creates it, all use it. */
llmc_status nccl_id(const Nccl *l, NcclId *id, llmc_error *err);
/* Connect ranks first .. first + n - 1 of `all`, one GPU each; from one thread. Close it if this
 * fails. */
llmc_status nccl_connect(Nccl *l, CudaDevice *const *dev, int first, int n, int all,
                         const NcclId *id, int timeout_s, llmc_error *err);
/* The three calls above, for ranks that are all in this process */
llmc_status nccl_open(CudaDevice *const *dev, int n, int timeout_s, Nccl **out, llmc_error *err);
void nccl_close(Nccl *l);
/* Calls that wait in streams end with invalid results. Any thread; waits for calls of the ranks'
 * threads. */
void nccl_abort(Nccl *l);
/* receive [ranks, count]: the contributions of all ranks, in the rank's stream or its capture; send
 * may be its part of receive. On the rank's thread. */
llmc_status nccl_all_gather(Nccl *l, int rank, const float *send, float *receive, int64_t count,
                            CUstream stream, llmc_error *err);
int nccl_version(const Nccl *l);

#endif
