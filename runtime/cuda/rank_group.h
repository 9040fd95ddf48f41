/* Private to runtime/cuda: the ranks of a stage that run on GPUs of this process. See rank_group.c
 * and collective.c. */
#ifndef LLMC_RUNTIME_CUDA_RANK_GROUP_H
#define LLMC_RUNTIME_CUDA_RANK_GROUP_H

#include <pthread.h>

#include "runtime/cuda/nccl.h"
#include "runtime/cuda/comm_algorithm.h"

/* Pinned memory that the host and all GPUs read. */
typedef struct GroupFlags {
	_Atomic unsigned end;
	unsigned pad[15];
	unsigned late[LLMC_PEERS]
	             /* written by each rank's kernels, as documented at llmc_peers */
	             [LLMC_LANES * LLMC_PEERS];
} GroupFlags;

typedef struct GroupMember {
	CudaSession *c;
	_Atomic int64_t since; /* start of the running step, ms; 0: none runs */
} GroupMember;

struct CudaGroup {
	/* first, n: this process has ranks first .. first + n - 1 of the stage */
	int n, first, timeout_s;
	atomic_int users;
	CudaDevice *dev; /* device of rank 0, which owns this pinned memory */
	GroupFlags *word;
	/* the other ranks are other processes: they use NCCL, which belongs to the model */
	bool single_local;
	bool peers;   /* each rank can access the peer memory of the others */
	Nccl *nccl;   /* NULL: not available, or not requested */
	unsigned set; /* available algorithms (comm_algorithm.h) */
	CommAlgorithmTimes algorithms;
	GroupMember rank[LLMC_PEERS]; /* [n] */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool over;
	/* rank that had no step while other ranks waited in one, or the only rank of this process;
	 * -1: none */
	atomic_int lost;
};

/* collective.c: launch a collective of `rows` rows with one algorithm */
llmc_status cuda_collective_run(CudaSession *c, const CudaStep *k, CommAlgorithm algorithm,
                                int64_t rows, llmc_error *err);

#endif
