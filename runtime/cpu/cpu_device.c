/* The CPU's row in the table of devices. */
#include <jansson.h>
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

static bool
lacks(const char *target, char *why, size_t cap)
{
	return isa_lacks(target, why, cap) != 0;
}

static llmc_status
check_target(const char *target, llmc_error *err)
{
	if (target_find(target)->kind == TARGET_REF || isa_runs(target))
		return LLMC_OK;
	char why[160];
	lacks(target, why, sizeof why);
	return error_set(
	    err, LLMC_E_MISSING,
	    "the plan is for %s, this processor runs %s: compile the model for it (--arch %s); %s",
	    target, isa_best(), target_find(isa_best())->isa, why);
}

static bool
has_prebuilt(const char *artifact, const char *target, int number)
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

/* Describe the processor and the compiler of its kernels. */
static llmc_status
describe(char **json, llmc_error *err)
{
	char name[512], threads[512], amx[160], has[256], has_not[256], cc[512] = "",
	                                                                cc_version[512] = "";
	llmc_error why = { 0 };

	FILE *cpuinfo = fopen("/proc/cpuinfo", "re");
	processor_name(cpuinfo, name, sizeof name);
	if (cpuinfo)
		fclose(cpuinfo);
	topology_describe(threads, sizeof threads);
	bool tiles = !lacks("cpu-amx", amx, sizeof amx);
	isa_features(has, sizeof has, true);
	isa_features(has_not, sizeof has_not, false);
	bool have_cc = cc_find(cc, sizeof cc, cc_version, sizeof cc_version, &why) == LLMC_OK;
	json_t *runs = json_object();
	for (int i = 0; target_at(i); i++)
		if (target_at(i)->kind == TARGET_CPU && !target_is_foreign(target_at(i)))
			json_object_set_new(runs, target_at(i)->isa,
			                    json_boolean(isa_runs(target_at(i)->name)));
	json_t *processor =
	    json_pack("{s:s, s:s, s:i, s:s, s:o, s:{s:s, s:s}}", "name", name, "best_target",
	              isa_best(), "threads", topology_threads(), "topology", threads, "runs", runs,
	              "features", "has", has, "lacks", has_not);
	if (processor && !target_is_foreign(target_find("cpu-amx")))
		json_object_set_new(
		    processor, "amx",
		    json_pack("{s:b, s:s}", "found", tiles, "text",
		              tiles ? "tiles of int8 and bf16, granted by the system" : amx));
	json_t *compiler = json_pack("{s:b, s:s, s:s}", "found", have_cc, "path", cc, "text",
	                             have_cc ? cc_version : why.text);
	Strbuf dir = { 0 };
	const int kernels = prebuilt_count(&dir);
	json_t *prebuilt = json_pack("{s:b, s:s, s:i}", "found", kernels > 0, "path",
	                             kernels > 0 ? strbuf_str(&dir) : "", "kernels", kernels);
	json_t *j = json_pack("{s:o, s:o, s:o}", "processor", processor, "compiler", compiler,
	                      "prebuilt", prebuilt);
	strbuf_release(&dir);
	*json = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	return *json ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
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
		                 .skip_built = opt->skip_built,
		                 .log = opt->log,
		                 .log_user = opt->log_user };
	WeightsOptions w = { .random_weights = opt->random_weights,
		             .cache_packed = opt->cache_packed,
		             .cache_made = !opt->cache_warned,
		             .cache_warned = opt->cache_warned,
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

static FreeMemory
host_memory(int number)
{
	(void)number;
	return free_memory("");
}

const Device cpu_device = {
	.best_target = best_target,
	.check_target = check_target,
	.lacks = lacks,
	.compiler_target = cc_target,
	.describe = describe,
	.ships = has_prebuilt,
	.free_memory = host_memory,
	.bandwidth = bandwidth,
	.model_open = model_open,
	.model_close = model_close,
	.tensor = tensor,
	.put = put,
	.replace = cpu_session_replace,
	.build_aot = build_aot,
	.state_bytes = cpu_state_bytes,
	.open = cpu_session_open,
	.close = cpu_session_close,
	.enter = enter,
	.leave = leave,
	.forward = cpu_forward,
	.op_times = cpu_op_times,
};
