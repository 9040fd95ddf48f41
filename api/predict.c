/* llmc_gpu and llmc_predict: the table of GPUs, and what a plan should reach on one. */
#include "compiler/predict.h"

#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/sized.h"

static void
copy_gpu(const Gpu *g, llmc_gpu *out)
{
	llmc_gpu all = {
		.name = g->name, .title = g->title, .arch = strchr(g->target, '-') + 1, .source = g->source, .sms = g->sms,
		.memory = (int64_t)g->memory_gib << 30, .bandwidth = g->bandwidth, .peak = g->peak, .launch_s = g->launch_s,
	};

	SIZED_GIVE(out, all);
}

bool
llmc_gpu_at(int i, llmc_gpu *out)
{
	const Gpu *g = gpu_at(i);

	if (g)
		copy_gpu(g, out);
	return g != NULL;
}

llmc_status
llmc_gpu_find(const char *name, llmc_gpu *out, llmc_error *err)
{
	const Gpu *g = gpu_find(name);
	char list[256] = "";

	for (int i = 0; !g && gpu_at(i); i++)
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", gpu_at(i)->name);
	if (!g)
		return error_set(err, LLMC_E_INPUT, "GPU %s: known are %s", name, list);
	copy_gpu(g, out);
	return LLMC_OK;
}

llmc_status
llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows, int32_t context, llmc_prediction *out,
             llmc_error *err)
{
	const Gpu *g = gpu_find(gpu);

	if (!g)
		return llmc_gpu_find(gpu, &LLMC_INIT(llmc_gpu), err);
	if (!target_is_cuda(m->plan->target))
		return error_set(err, LLMC_E_INPUT, "the plan is for %s: open the model for device cuda to predict a GPU", m->plan->target);
	if (rows < 1 || context < 1 || (prefill && rows > context))
		return error_set(err, LLMC_E_RANGE, "%d rows at %d positions make no step", rows, context);
	Prediction p = predict(m->plan, g, prefill, rows, context);
	const char *bound = p.flops_s > p.bytes_s && p.flops_s > p.launch_s ? "compute"
	                    : p.launch_s > p.bytes_s                        ? "launches" : "bandwidth";
	llmc_prediction all = { .bytes = p.bytes, .flops = p.flops, .launches = p.launches, .seconds = p.seconds,
		.tokens_per_s = rows / p.seconds, .bound = bound };
	SIZED_GIVE(out, all);
	return LLMC_OK;
}
