/* Plan + weights + kernels, ready to be shared by sessions. */
#include "runtime/runtime.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "runtime/plan/target.h"
#include "runtime/session.h"

static llmc_status
check_target(const Plan *plan, llmc_error *err)
{
	if (!strcmp(plan->target, "ref") || isa_runs(plan->target) || target_is_cuda(plan->target))
		return LLMC_OK;
	if (!strcmp(plan->target, "cpu-v4") || !strcmp(plan->target, "cpu-v3"))
		return error_set(err, LLMC_E_MISSING,
		                 "the plan is for %s, this processor runs %s: compile the model for it (--arch %s)", plan->target,
		                 isa_best(), isa_best() + strlen("cpu-"));
	return error_set(err, LLMC_E_INPUT, "the plan is for target \"%s\", which this llmc does not know", plan->target);
}

/* Find the weights: a checkpoint that does not fit is told before time goes into compiling for it. */
static llmc_status
open_weights(Runtime *rt, const RuntimeOptions *o, WeightsOptions *w, llmc_error *err)
{
	Strbuf path = { 0 };

	if (!w->path && rt->plan->weights) {
		file_join(&path, o->artifact, rt->plan->weights);
		w->path = strbuf_str(&path);
	}
	llmc_status status = weights_open(rt->plan, w, &rt->weights, err);
	w->path = NULL; /* not needed any more */
	strbuf_release(&path);
	return status;
}

static llmc_status
pack_weights(Runtime *rt, WeightsOptions *w, llmc_error *err)
{
	TRY(threads_open(rt->n_threads, &w->threads, err));
	llmc_status status = weights_pack(rt->weights, w, err);
	threads_close(w->threads);
	return status;
}

/* Rotary factors that a checkpoint holds as tensors. Random weights have none: 1. */
static llmc_status
load_factors(Runtime *rt, llmc_error *err)
{
	const Checkpoint *c = weights_checkpoint(rt->weights);

	rt->factors = calloc((size_t)rt->plan->n_rope + 1, sizeof *rt->factors);
	if (!rt->factors)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (int i = 0; c && i < rt->plan->n_rope; i++)
		for (int k = 0; k < 2; k++) {
			const PlanRope *r = &rt->plan->rope[i];
			if (!r->factors_tensor[k])
				continue;
			float *f = rt->factors[i][k] = calloc((size_t)r->dims / 2, sizeof *f);
			if (!f)
				return error_set(err, LLMC_E_MEMORY, "out of memory");
			TRY(checkpoint_vector(c, r->factors_tensor[k], f, r->dims / 2, err));
			for (int j = 0; j < r->dims / 2; j++)
				if (!(f[j] > 0))
					return error_set(err, LLMC_E_INPUT, "tensor \"%s\": rotary factor %d is %g, it must be above 0",
					                 r->factors_tensor[k], j, (double)f[j]);
		}
	return LLMC_OK;
}

llmc_status
runtime_open(const Plan *plan, const RuntimeOptions *opt, Runtime **out, llmc_error *err)
{
	llmc_status status;

	*out = NULL;
	TRY(check_target(plan, err));
	Runtime *rt = calloc(1, sizeof *rt);
	if (!rt)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	rt->plan = plan;
	rt->n_threads = opt->n_threads > 0 ? opt->n_threads : topology_threads();
	WeightsOptions w = { .path = opt->weights, .random_weights = opt->random_weights, .cache_packed = opt->cache_packed,
		.log = opt->log, .log_user = opt->log_user };
	TRY_GOTO(open_weights(rt, opt, &w, err));
	if (target_is_cuda(plan->target)) {
		TRY_GOTO(cuda_model_open(plan, opt, rt->n_threads, rt->weights, &rt->cuda, &rt->times, err));
		TRY_GOTO(load_factors(rt, err));
		*out = rt;
		return LLMC_OK;
	}
	double start = clock_now();
	if (plan->n_kernel) {
		BuildOptions k = { .artifact = opt->artifact, .n_jobs = rt->n_threads, .log = opt->log, .log_user = opt->log_user };
		TRY_GOTO(kernels_open(plan, &k, &rt->kernels, err));
	}
	double built = clock_now();
	TRY_GOTO(pack_weights(rt, &w, err));
	TRY_GOTO(load_factors(rt, err));
	rt->times = (RuntimeTimes){ .compile_s = built - start, .pack_s = clock_now() - built, .load_s = clock_now() - start };
	*out = rt;
	return LLMC_OK;
fail:
	runtime_close(rt);
	return status;
}

void
runtime_close(Runtime *rt)
{
	if (!rt)
		return;
	for (int i = 0; rt->factors && i < rt->plan->n_rope; i++) {
		free(rt->factors[i][0]);
		free(rt->factors[i][1]);
	}
	free(rt->factors);
	cuda_model_close(rt->cuda);
	kernels_close(rt->kernels);
	weights_close(rt->weights);
	free(rt);
}

const Plan *
runtime_plan(const Runtime *rt)
{
	return rt->plan;
}

RuntimeTimes
runtime_times(const Runtime *rt)
{
	return rt->times;
}

const void *
runtime_tensor(const Runtime *rt, int tensor)
{
	return weights_data(rt->weights, tensor);
}

bool
runtime_ships(const char *artifact, const char *target, int device)
{
	const Target *t = target_find(target);

	if (t->kind == TARGET_CUDA)
		return build_ships(artifact, t->isa) && cuda_target_built_runs(device, target);
	return isa_runs(target) && build_ships(artifact, target);
}

llmc_status
runtime_build_aot(const Plan *plan, const char *artifact, llmc_log_fn log, void *log_user, llmc_error *err)
{
	BuildOptions k = { .artifact = artifact, .log = log, .log_user = log_user };

	if (target_is_cuda(plan->target)) {
		CudaBuildOptions o = { .artifact = artifact, .log = log, .log_user = log_user };
		return cuda_build_ship(plan, &o, err);
	}
	return kernels_ship(plan, &k, err);
}
