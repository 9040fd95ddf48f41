/* Private to runtime/cuda: a model as its sessions see it. */
#ifndef LLMC_RUNTIME_CUDA_CUDA_MODEL_H
#define LLMC_RUNTIME_CUDA_CUDA_MODEL_H

#include "runtime/cuda/cuda.h"

typedef struct Nccl Nccl; /* nccl.h */

typedef struct CudaModel {
	const Plan *plan;
	CudaDevice dev;
	int n_module;
	CUmodule *module;
	CUfunction (*fn)[PLAN_MAX_LAUNCH]; /* [n_kernel] */
	CUfunction begin, sample;
	/* kernels of collectives */
	CUfunction all_reduce, all_reduce_two, all_gather, add_ranks, place_ranks;
	bool can_divide; /* see RuntimeOptions */
	bool pdl;        /* programmatic launches also within graphs */
	CUdeviceptr weights;
	int64_t *offset; /* [n_tensor] */
	int64_t weight_bytes;
	/* rank_processes.c: connection to the ranks of this stage in other processes; NULL: none */
	Nccl *nccl;
} CudaModel;

static inline CUdeviceptr
cuda_address(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* cuda_model.c: as the members of Device */
llmc_status cuda_model_open(const Plan *plan, const RuntimeOptions *opt, Weights *weights,
                            void **out, RuntimeTimes *times, llmc_error *err);
void cuda_model_close(void *model);

/* Shared memory of a launch: its kernel's need, raised until only the intended number of CTAs fits
 * on an SM */
int64_t cuda_shared_of(const CudaModel *m, const PlanLaunch *p);

/* rank_processes.c: as the member of Device */
llmc_status cuda_connect_processes(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);

/* Write to buf, and return it, the formats in which the weights are smaller than now and take less
 * than `most` bytes, "Q6_K (1.2 GB), Q4_K (0.9 GB)"; empty: none. */
const char *cuda_smaller_weights(const CudaModel *m, int64_t most, char buf[160]);

/* "17.3 GB", "512 KB" */
const char *cuda_bytes_text(int64_t bytes, char buf[32]);

#endif
