/* The GPUs' row in the table of devices. */
#include <stdio.h>

#include "runtime/build/kernel_build.h"
#include "runtime/cuda/cuda_session.h"

/* The GPU is known only when the model is opened. */
static llmc_status
check_target(const char *target, llmc_error *err)
{
	(void)target;
	(void)err;
	return LLMC_OK;
}

static bool
ships(const char *artifact, const char *target, int number)
{
	CudaDevice d;

	if (!build_ships(artifact, target_find(target)->isa) ||
	    cuda_device_open(&d, number, false, NULL) != LLMC_OK)
		return false;
	bool runs = cuda_image_fits(target, d.cc);
	cuda_device_close(&d);
	return runs;
}

static double
bandwidth(int number, int n_threads, double seconds)
{
	(void)n_threads;
	(void)seconds;
	return cuda_bandwidth(number);
}

static const void *
tensor(const void *model, int i)
{
	const CudaModel *m = model;

	return (const void *)(uintptr_t)(m->weights + (CUdeviceptr)m->offset[i]);
}

static llmc_status
put(void *model, int i, int64_t offset, const void *data, size_t bytes, llmc_error *err)
{
	CudaModel *m = model;
	CudaDevice *d = &m->dev;

	TRY(cuda_enter(d, err));
	CUresult r =
	    d->api.copy_up(m->weights + (CUdeviceptr)(m->offset[i] + offset), data, bytes, NULL);
	r = r == CU_OK ? d->api.stream_sync(NULL) : r;
	cuda_leave(d);
	CUDA_TRY(d, r, "copying weights to the GPU");
	return LLMC_OK;
}

/* Copy new weights to the addresses of the old ones, which graphs and descriptors hold. */
static llmc_status
replace(Session *s, Weights *w, llmc_error *err)
{
	const Plan *p = s->rt->plan;

	for (int i = 0; i < p->n_tensor; i++)
		TRY(put(s->rt->model, i, 0, weights_data(w, i),
		        (size_t)plan_tensor_bytes(&p->tensor[i]), err));
	weights_drop(w);
	return LLMC_OK;
}

static llmc_status
build_aot(const Plan *plan, const char *artifact, llmc_log_fn log, void *log_user, llmc_error *err)
{
	return cuda_build_ship(
	    plan, &(CudaBuildOptions){ .artifact = artifact, .log = log, .log_user = log_user },
	    err);
}

static FreeMemory
gpu_memory(int number)
{
	FreeMemory out = { .bytes = INT64_MAX };
	CudaDevice d;
	size_t left = 0, total = 0;

	snprintf(out.limited_by, sizeof out.limited_by, "GPU %d", number);
	if (cuda_device_open(&d, number, true, NULL) != LLMC_OK)
		return out;
	if (cuda_enter(&d, NULL) == LLMC_OK) {
		if (d.api.mem_info(&left, &total) == CU_OK) {
			out.bytes = (int64_t)left;
			out.total = (int64_t)total;
		}
		cuda_leave(&d);
	}
	cuda_device_close(&d);
	return out;
}

const Device cuda_device = {
	.best_target = cuda_target,
	.check_target = check_target,
	.ships = ships,
	.free_memory = gpu_memory,
	.bandwidth = bandwidth,
	.describe = cuda_describe,
	.max_sm = PLAN_MAX_SM,
	.model_open = cuda_model_open,
	.model_close = cuda_model_close,
	.tensor = tensor,
	.put = put,
	.replace = replace,
	.meet = cuda_connect_processes,
	.build_aot = build_aot,
	.state_bytes = cuda_state_bytes,
	.open = cuda_session_open,
	.close = cuda_session_close,
	.enter = cuda_session_enter,
	.join = cuda_group_open,
	.leave = cuda_session_leave,
	.forward = cuda_forward,
	.prepare = cuda_prepare,
	.op_times = cuda_op_times,
	.sampler = &cuda_sampler,
};
