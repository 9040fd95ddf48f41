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
/* Connect ranks first .. first + n - 1 of `all` ranks, with one GPU per rank, from one thread. The
 * caller closes l if this fails. */
llmc_status nccl_connect(Nccl *l, CudaDevice *const *dev, int first, int n, int all,
                         const NcclId *id, int timeout_s, llmc_error *err);
/* Open the library, create an id and connect n ranks that are all in this process */
llmc_status nccl_open(CudaDevice *const *dev, int n, int timeout_s, Nccl **out, llmc_error *err);
void nccl_close(Nccl *l);
/* Abort: collectives that wait in streams end with invalid results. Call it from any thread; it
 * waits for calls of the ranks' threads to return. */
void nccl_abort(Nccl *l);
/* receive [ranks, count]: the contributions of all ranks, queued in the rank's stream, which may be
 * capturing. `send` may be the rank's own part of `receive`. Call it on the rank's thread. */
llmc_status nccl_all_gather(Nccl *l, int rank, const float *send, float *receive, int64_t count,
                            CUstream stream, llmc_error *err);
int nccl_version(const Nccl *l);

#endif
