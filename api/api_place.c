/* llmc_place: chooses the parts of a model that run on the CPU, by memory and bandwidths.
 * llmc_predict_two: predicts the speed of a model on two devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/number.h"
#include "base/sized_struct.h"
#include "compiler/cost_model.h"

/* Bytes of the parts of a model that placement can put on either device */
typedef struct PlaceSizes {
	int n; /* layers */
	struct PlaceLayer {
		int64_t experts, rest, kv;
	} *layer;      /* [n] */
	int64_t embed; /* 0: the embedding is also the head, which stays on the GPU */
	int64_t fixed,
	    /* bytes that are always on the GPU; head: those of weights, all of which every row
	     * reads */
	    head;
	double experts_read; /* share of the experts' bytes that a row reads */
	int64_t hidden;
} PlaceSizes;

/* Placement: experts of the first `moe` layers, and all of the first `all` layers, are on the
 * CPU */
typedef struct PlaceChoice {
	int moe, all;
	int64_t gpu, host; /* bytes on either device */
	double seconds;    /* duration of a decode step of one row */
} PlaceChoice;

static bool
is_of_experts(const char *role)
{
	return !strncmp(role, "e_", 2) || !strncmp(role, "router", 6) ||
	       !strncmp(role, "expert_gain", 11);
}

static void
add_tensor(PlaceSizes *s, const PlanTensor *t, bool tied)
{
	const char *dot = strchr(t->id, '.');
	const int64_t bytes = plan_tensor_bytes(t);
	int layer;

	if (dot && sscanf(t->id, "L%d.", &layer) == 1 && layer >= 0 && layer < s->n)
		*(is_of_experts(dot + 1) ? &s->layer[layer].experts : &s->layer[layer].rest) +=
		    bytes;
	else if (!strcmp(t->id, "embed") && !tied)
		s->embed += bytes;
	else {
		s->fixed += bytes;
		s->head += bytes;
	}
}

/* Divide the KV cache evenly over the layers that have one. */
static void
add_kv(PlaceSizes *s, const Plan *p, int64_t kv)
{
	int n = 0;

	for (int pass = 0; pass < 2; pass++)
		for (int i = 0, last = -1; i < p->phase[0].n_step; i++) {
			const PlanStep *st = &p->phase[0].step[i];
			bool pool = false;
			for (int k = 0; k < st->n_arg; k++)
				pool |= st->arg[k].kind == REF_POOL;
			if (!pool || st->layer == last || st->layer < 0 || st->layer >= s->n)
				continue;
			last = st->layer;
			n += pass == 0;
			if (pass == 1)
				s->layer[last].kv = kv / n;
		}
}

static llmc_status
sizes_of(const llmc_model *m, const llmc_limits *lim, PlaceSizes *s, llmc_error *err)
{
	const Plan *p = m->plan;
	llmc_memory mem = LLMC_INIT(llmc_memory);
	bool tied = true;

	TRY(session_memory(p, lim, &mem, err));
	*s = (PlaceSizes){ .n = p->n_layers,
		           .hidden = p->hidden,
		           .fixed = mem.scratch + mem.state,
		           .experts_read = m->spec->moe.n_experts > 0
		                               ? (double)m->spec->moe.top_k / m->spec->moe.n_experts
		                               : 0,
		           .layer = calloc((size_t)p->n_layers + 1, sizeof *s->layer) };
	if (!s->layer)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (int i = 0; i < p->n_tensor; i++)
		tied = tied && strncmp(p->tensor[i].id, "head", 4) != 0;
	for (int i = 0; i < p->n_tensor; i++)
		add_tensor(s, &p->tensor[i], tied);
	add_kv(s, p, mem.kv);
	return LLMC_OK;
}

/* Compute memory and decode time of a placement. The time is the sum of the bytes that a row reads
 * from each memory in turn, and of the values that cross. */
static void
weigh(const PlaceSizes *s, const llmc_machine *at, PlaceChoice *c)
{
	double gpu = 0, host = 0;
	int crossings = c->all > 0;

	c->gpu = s->fixed + (c->all ? 0 : s->embed);
	c->host = c->all ? s->embed : 0;
	gpu = (double)s->head;
	for (int l = 0; l < s->n; l++) {
		const struct PlaceLayer *a = &s->layer[l];
		const bool layer = l < c->all, experts = layer || l < c->moe;
		*(layer ? &c->host : &c->gpu) += a->rest + a->kv;
		*(layer ? &host : &gpu) += (double)(a->rest + a->kv);
		*(experts ? &c->host : &c->gpu) += a->experts;
		*(experts ? &host : &gpu) += (double)a->experts * s->experts_read;
		crossings += !layer && experts && a->experts ? 2 : 0;
	}
	c->seconds =
	    gpu / at->gpu_bandwidth + host / at->host_bandwidth +
	    crossings * (at->link_latency_s + 4.0 * (double)s->hidden / at->link_bandwidth);
}

/* Try all pairs of the two numbers of layers, and return the fastest placement that fits. */
static bool
solve(const PlaceSizes *s, const llmc_machine *at, PlaceChoice *best, PlaceChoice *least)
{
	bool found = false;

	for (int all = 0; all <= s->n; all++)
		for (int moe = all; moe <= s->n; moe++) {
			PlaceChoice c = { .moe = moe, .all = all };
			if (moe > all && !s->layer[moe - 1].experts)
				continue; /* equal to the placement with one layer less */
			weigh(s, at, &c);
			if (c.gpu < least->gpu || (!all && !moe))
				*least = c;
			if (c.gpu > at->gpu_bytes || c.host > at->host_bytes ||
			    (found && c.seconds >= best->seconds))
				continue;
			*best = c;
			found = true;
		}
	return found;
}

/* Fill in values that the caller has not set: the free memory, and bandwidths from the table of
 * GPUs. */
static llmc_status
machine_of(const llmc_model *m, const llmc_machine *given, llmc_machine *at, llmc_error *err)
{
	enum { MARGIN = 32 }; /* 1 / this of a GPU's free memory is left to the driver */
	llmc_machine all = LLMC_INIT(llmc_machine);
	const Device *device;

	SIZED_TAKE(all, given);
	TRY(device_find(m->plan->target, &device, err));
	const Gpu *g = all.gpu ? gpu_find(all.gpu) : NULL;
	if (all.gpu && !g)
		return llmc_gpu_find(all.gpu, &LLMC_INIT(llmc_gpu), err);
	if (!all.gpu_bytes) {
		const int64_t have =
		    g ? (int64_t)g->memory_gib << 30 : device->free_memory(m->gpu).bytes;
		all.gpu_bytes = have - have / MARGIN;
	}
	if (!all.host_bytes)
		all.host_bytes = device_of(TARGET_CPU)->free_memory(0).bytes;
	if (!(all.host_bandwidth > 0))
		return error_set(err, LLMC_E_RANGE,
		                 "host_bandwidth is 0: measure it (llmc_bandwidth)");
	if (!(all.gpu_bandwidth > 0))
		all.gpu_bandwidth = gpu_read_bandwidth(g);
	if (!(all.link_bandwidth > 0))
		all.link_bandwidth = gpu_host_link(g)->bandwidth;
	if (!(all.link_latency_s > 0))
		all.link_latency_s = CROSSING_S;
	*at = all;
	return LLMC_OK;
}

static llmc_status
refuse(const PlaceChoice *least, const llmc_machine *at, llmc_error *err)
{
	char g[32], h[32], gm[32], hm[32];

	return error_set(
	    err, LLMC_E_FULL,
	    "the model fits no division: with the least on the GPU it needs %s there and %s on "
	    "the host, %s and %s are available; use a smaller type of weights (--quantize) or a "
	    "shorter --context",
	    human_bytes((double)least->gpu, g), human_bytes((double)least->host, h),
	    human_bytes((double)at->gpu_bytes, gm), human_bytes((double)at->host_bytes, hm));
}

static void
describe(const PlaceSizes *s, const PlaceChoice *c, const llmc_machine *at, char *buf, size_t cap)
{
	char what[96], g[32], gm[32], h[32];
	int n = 0;

	for (int l = c->all; l < c->moe; l++)
		n += s->layer[l].experts > 0;
	if (!c->all && !n)
		snprintf(what, sizeof what, "all of the model on the GPU");
	else if (!c->all)
		snprintf(what, sizeof what, "routed experts of %d layers on the CPU", n);
	else if (!n)
		snprintf(what, sizeof what, "%d of %d layers on the CPU", c->all, s->n);
	else
		snprintf(what, sizeof what,
		         "%d of %d layers and the routed experts of %d more on the CPU", c->all,
		         s->n, n);
	snprintf(buf, cap, "offload: %s (GPU %s of %s, CPU %s)", what,
	         human_bytes((double)c->gpu, g), human_bytes((double)at->gpu_bytes, gm),
	         human_bytes((double)c->host, h));
}

llmc_status
llmc_place(const llmc_model *m, const llmc_limits *lim, const llmc_machine *machine,
           llmc_placement *out, llmc_error *err)
{
	PlaceChoice best = { 0 }, least = { 0 };
	llmc_placement r = LLMC_INIT(llmc_placement);
	llmc_machine at = LLMC_INIT(llmc_machine);
	PlaceSizes s = { 0 };

	if (m->gpu < 0 || m->cpu_target[0] || m->n_rank > 1)
		return error_set(err, LLMC_E_INPUT,
		                 "--offload auto divides a model between one GPU and the CPU: open "
		                 "it for device cuda, without placement and ranks");
	TRY(machine_of(m, machine, &at, err));
	TRY(sizes_of(m, lim, &s, err));
	const bool fits = solve(&s, &at, &best, &least);
	if (fits) {
		r.gpu_layers = s.n - best.all;
		r.moe_layers = best.moe > best.all ? best.moe : 0;
		r.gpu_bytes = best.gpu;
		r.host_bytes = best.host;
		describe(&s, &best, &at, r.text, sizeof r.text);
		SIZED_GIVE(out, r);
	}
	free(s.layer);
	return fits ? LLMC_OK : refuse(&least, &at, err);
}

llmc_status
llmc_predict_two(const llmc_model *m, const llmc_machine *machine, int32_t rows, int32_t context,
                 llmc_prediction *out, llmc_error *err)
{
	llmc_machine at = LLMC_INIT(llmc_machine);

	SIZED_TAKE(at, machine);
	const Gpu *g = gpu_find(at.gpu ? at.gpu : "");
	if (!g)
		return llmc_gpu_find(at.gpu ? at.gpu : "", &LLMC_INIT(llmc_gpu), err);
	if (!m->cpu_target[0] || !m->rank[0] || !m->rank[1])
		return error_set(err, LLMC_E_INPUT,
		                 "the model is on one device: llmc_predict predicts it");
	if (rows < 1 || context < 1 || !(at.host_bandwidth > 0))
		return error_set(err, LLMC_E_RANGE,
		                 "cannot predict a step of %d rows at %d positions with a host of "
		                 "%g bytes/s; all must be above 0",
		                 rows, context, at.host_bandwidth);
	Prediction p = predict(m->rank[0], g, 0, rows, context);
	llmc_prediction all = { .bytes = p.bytes,
		                .flops = p.flops,
		                .launches = p.launches,
		                .sums = p.sums,
		                .sum_bytes = p.sum_bytes,
		                .link_s = p.link_s };
	all.host_bytes = predict_host_bytes(m->rank[1], rows, context);
	all.host_s = (double)all.host_bytes / at.host_bandwidth;
	all.seconds = p.seconds + all.host_s;
	all.tokens_per_s = rows / all.seconds;
	all.bound = all.host_s > p.seconds - p.link_s && all.host_s > p.link_s ? "host"
	            : p.link_s > p.seconds - p.link_s                          ? "links"
	            : p.launch_s > p.bytes_s                                   ? "launches"
	                                                                       : "bandwidth";
	SIZED_GIVE(out, all);
	return LLMC_OK;
}
