/* Inside of runtime/cuda: the ranks of a stage that have a GPU of this process each. See
 * rank_group.c, collective.c. */
#ifndef LLMC_RUNTIME_CUDA_RANK_GROUP_H
#define LLMC_RUNTIME_CUDA_RANK_GROUP_H

#include <pthread.h>

#include "runtime/cuda/nccl.h"
#include "runtime/cuda/comm_algorithm.h"

/* What the host and all GPUs see: pinned. */
typedef struct GroupFlags {
	_Atomic unsigned end;
	unsigned pad[15];
	unsigned late[LLMC_PEERS]
	             [LLMC_LANES * LLMC_PEERS]; /* of each rank's kernels, as llmc_peers says */
} GroupFlags;

typedef struct GroupMember {
	CudaSession *c;
	_Atomic int64_t since; /* ms: a step has run from then on; 0: none runs */
} GroupMember;

struct CudaGroup {
	int n, first, timeout_s; /* ranks first .. first + n - 1 of the stage are of this process */
	atomic_int users;
	CudaDevice *dev; /* of rank 0, whose pinned memory this is */
	GroupFlags *word;
	bool lone;    /* the other ranks are other processes: NCCL goes between them, and is the
	                 model's */
	bool peers;   /* each sees the others' windows */
	Nccl *nccl;   /* NULL: not there, or not wanted. */
	unsigned set; /* of the ways that there are (comm_algorithm.h) */
	CommAlgorithmTimes algorithms;
	GroupMember rank[LLMC_PEERS]; /* [n] */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool over;
	atomic_int lost; /* the rank that had no step while others waited in one, or of a lone one
	                    its own; -1 */
};

/* collective.c: the launches of a step between ranks by one way, of so many rows */
llmc_status cuda_collective_run(CudaSession *c, const CudaStep *k, CommAlgorithm algorithm,
                                int64_t rows, llmc_error *err);

#endif
