/* The processor in the runtime's table of devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/cpu/cpu.h"

static llmc_status
best_target(int number, char out[32], llmc_error *err)
{
	(void)number;
	(void)err;
	snprintf(out, 32, "%s", isa_best());
	return LLMC_OK;
}

static llmc_status
check_target(const char *target, llmc_error *err)
{
	if (target_find(target)->kind == TARGET_REF || isa_runs(target))
		return LLMC_OK;
	char why[160];
	isa_lacks(target, why, sizeof why);
	return error_set(
	    err, LLMC_E_MISSING,
	    "the plan is for %s, this processor runs %s: compile the model for it (--arch %s); %s",
	    target, isa_best(), target_find(isa_best())->isa, why);
}

static bool
ships(const char *artifact, const char *target, int number)
{
	(void)number;
	return isa_runs(target) && build_ships(artifact, target);
}

static double
bandwidth(int number, int n_threads, double seconds)
{
	(void)number;
	return cpu_bandwidth(n_threads, seconds);
}

static void
model_close(void *model)
{
	CpuModel *m = model;

	if (m)
		kernels_close(m->kernels);
	free(m);
}

static llmc_status
model_open(const Plan *plan, const RuntimeOptions *opt, Weights *weights, void **out,
           RuntimeTimes *times, llmc_error *err)
{
	KernelBuildOptions k = { .artifact = opt->artifact,
		                 .n_jobs = opt->n_threads,
		                 .cache_warned = opt->cache_warned,
		                 .log = opt->log,
		                 .log_user = opt->log_user };
	WeightsOptions w = { .random_weights = opt->random_weights,
		             .cache_packed = opt->cache_packed && !opt->cache_warned,
		             .cache_made = !opt->cache_warned,
		             .log = opt->log,
		             .log_user = opt->log_user };
	double start = clock_now(), built;
	llmc_status status;
	CpuModel *m = calloc(1, sizeof *m);

	*out = NULL;
	if (!m)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	m->weights = weights;
	if (plan->n_kernel)
		TRY_GOTO(kernels_open(plan, &k, &m->kernels, err));
	built = clock_now();
	TRY_GOTO(threads_open(opt->n_threads, &w.threads, err));
	TRY_GOTO(weights_pack(weights, &w, err));
	threads_close(w.threads);
	*times = (RuntimeTimes){ .compile_s = built - start,
		                 .pack_s = clock_now() - built,
		                 .load_s = clock_now() - start };
	*out = m;
	return LLMC_OK;
fail:
	threads_close(w.threads);
	model_close(m);
	return status;
}

static const void *
tensor(const void *model, int i)
{
	return weights_data(((const CpuModel *)model)->weights, i);
}

static llmc_status
put(void *model, int i, int64_t offset, const void *data, size_t bytes, llmc_error *err)
{
	(void)err;
	weights_put(((CpuModel *)model)->weights, i, offset, data, bytes);
	return LLMC_OK;
}

static llmc_status
build_aot(const Plan *plan, const char *artifact, llmc_log_fn log, void *log_user, llmc_error *err)
{
	return kernels_ship(
	    plan, &(KernelBuildOptions){ .artifact = artifact, .log = log, .log_user = log_user },
	    err);
}

static llmc_status
enter(Session *s, llmc_error *err)
{
	(void)s;
	(void)err;
	return LLMC_OK;
}

static void
leave(Session *s)
{
	(void)s;
}

const Device cpu_device = {
	.best_target = best_target,
	.check_target = check_target,
	.ships = ships,
	.bandwidth = bandwidth,
	.model_open = model_open,
	.model_close = model_close,
	.tensor = tensor,
	.put = put,
	.build_aot = build_aot,
	.state_bytes = cpu_state_bytes,
	.open = cpu_session_open,
	.close = cpu_session_close,
	.enter = enter,
	.leave = leave,
	.forward = cpu_forward,
	.op_times = cpu_op_times,
};
