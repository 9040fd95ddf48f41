/* llmc_gpu and llmc_predict: the table of GPUs, and the speed that a plan should reach on one. */
#include "compiler/cost_model.h"

#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"

static void
copy_gpu(const Gpu *g, llmc_gpu *out)
{
	llmc_gpu all = {
		.name = g->name,
		.title = g->title,
		.arch = strchr(g->target, '-') + 1,
		.source = g->source,
		.sms = g->sms,
		.memory = (int64_t)g->memory_gib << 30,
		.bandwidth = g->bandwidth,
		.peak = g->peak,
		.launch_s = g->launch_s,
		.link = g->link->title,
		.link_source = g->link->source,
		.link_bandwidth = g->link->bandwidth,
		.link_latency_s = g->link->latency_s,
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
	char list[512] = "";

	for (int i = 0; !g && gpu_at(i); i++)
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
		         gpu_at(i)->name);
	if (!g)
		return error_set(err, LLMC_E_INPUT, "GPU %s is unknown; known: %s", name, list);
	copy_gpu(g, out);
	return LLMC_OK;
}

llmc_status
llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows, int32_t context,
             llmc_prediction *out, llmc_error *err)
{
	const Gpu *g = gpu_find(gpu);

	if (!g)
		return llmc_gpu_find(gpu, &LLMC_INIT(llmc_gpu), err);
	if (!target_is_cuda(m->plan->target))
		return error_set(
		    err, LLMC_E_INPUT,
		    "the plan is for %s: open the model for device cuda to predict a GPU",
		    m->plan->target);
	if (rows < 1 || context < 1 || (prefill && rows > context))
		return error_set(err, LLMC_E_RANGE,
		                 "cannot predict a step of %d rows at %d positions; a prefill "
		                 "needs rows <= positions, both >= 1",
		                 rows, context);
	Prediction p = { 0 };
	double slowest = 0;
	for (int stage = 0; stage < m->spec->pp;
	     stage++) { /* the first rank of a stage has the largest share */
		const Plan *of = m->rank[stage * m->spec->tp];
		if (!of)
			return error_set(
			    err, LLMC_E_RANGE,
			    "the plans of ranks in other processes are not available here");
		Prediction k = predict(of, g, prefill, rows, context);
		p.bytes += k.bytes;
		p.flops += k.flops;
		p.launches += k.launches;
		p.sums += k.sums;
		p.sum_bytes += k.sum_bytes;
		p.bytes_s += k.bytes_s;
		p.flops_s += k.flops_s;
		p.launch_s += k.launch_s;
		p.link_s += k.link_s;
		p.seconds += k.seconds;
		slowest = k.seconds > slowest ? k.seconds : slowest;
	}
	const char *bound = p.link_s > p.bytes_s && p.link_s > p.flops_s && p.link_s > p.launch_s
	                        ? "links"
	                    : p.flops_s > p.bytes_s && p.flops_s > p.launch_s ? "compute"
	                    : p.launch_s > p.bytes_s                          ? "launches"
	                                                                      : "bandwidth";
	llmc_prediction all = { .bytes = p.bytes,
		                .flops = p.flops,
		                .launches = p.launches,
		                .seconds = p.seconds,
		                .tokens_per_s = rows / slowest,
		                .bound = bound,
		                .sums = p.sums,
		                .sum_bytes = p.sum_bytes,
		                .link_s = p.link_s };
	SIZED_GIVE(out, all);
	return LLMC_OK;
}
