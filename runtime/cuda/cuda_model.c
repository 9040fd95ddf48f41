/* A model on a device: kernels as loaded modules, weights in one block of memory. Kernels compile
 * while weights load. */
#include "runtime/cuda/cuda_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/cuda/nccl.h"

const char *
cuda_bytes_text(int64_t bytes, char buf[32])
{
	static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
	double v = (double)bytes;
	int u = 0;

	while (v >= 1000 && u < 4)
		v /= 1000, u++;
	snprintf(buf, 32, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
	return buf;
}

static llmc_status
check_device(CudaModel *m, llmc_error *err)
{
	const char *target = m->plan->target;

	if (cuda_runs(m->dev.cc, target))
		return LLMC_OK;
	const char *best = cuda_best_target(m->dev.cc);
	if (!best)
		return error_set(err, LLMC_E_MISSING,
		                 "GPU %d (%s) is of architecture sm_%d, llmc needs sm_75 (Turing, "
		                 "2018) or newer; run with --device cpu",
		                 m->dev.number, m->dev.name, m->dev.cc);
	return error_set(
	    err, LLMC_E_MISSING,
	    "the plan is for %s, GPU %d (%s) is of architecture sm_%d: compile the model for it "
	    "(--target cuda --arch %s)",
	    target + 5, m->dev.number, m->dev.name, m->dev.cc, best + 5);
}

const char *
cuda_smaller_weights(const CudaModel *m, int64_t most, char buf[160])
{
	static const struct {
		Dtype as;
		const char *name;
	} smaller[] = { { DT_Q8_0, "Q8_0" }, { DT_Q6_K, "Q6_K" }, { DT_Q4_K, "Q4_K" } };
	size_t n = 0;
	char a[32];

	*buf = 0;
	for (size_t i = 0; i < sizeof smaller / sizeof *smaller && n < 160; i++) {
		int64_t bytes = plan_weights_as(m->plan, smaller[i].as);
		if (bytes < most && bytes < m->weight_bytes)
			n += (size_t)snprintf(buf + n, 160 - n, "%s%s (%s)", n ? ", " : "",
			                      smaller[i].name, cuda_bytes_text(bytes, a));
	}
	return buf;
}

/* An error with the plan's table and the weight formats that would fit. */
static llmc_status
does_not_fit(const CudaModel *m, size_t left, size_t total, llmc_error *err)
{
	const CudaDevice *d = &m->dev;
	char a[32], b[32], c[32], fits[160];
	int64_t position = 0;

	for (int i = 0; i < m->plan->n_pool; i++)
		position += plan_layer_page_bytes(&m->plan->pool[i]) * m->plan->pool[i].n_layers /
		            PLAN_KV_PAGE;
	cuda_smaller_weights(m, (int64_t)left, fits);
	return error_set(
	    err, LLMC_E_MEMORY,
	    "the model does not fit GPU %d (%s):\n"
	    "  weights  %s\n"
	    "  kv       %lld bytes per position\n"
	    "  free     %s of %s\n"
	    "%s%s, another GPU (--device cuda:N)%s or --device cpu would do",
	    d->number, d->name, cuda_bytes_text(m->weight_bytes, a), (long long)position,
	    cuda_bytes_text((int64_t)left, b), cuda_bytes_text((int64_t)total, c),
	    *fits ? "weights stored as " : "no smaller format of the weights fits either", fits,
	    m->can_divide ? ", a part of the model on the CPU (--offload auto)" : "");
}

static llmc_status
alloc_weights(CudaModel *m, const Weights *w, llmc_error *err)
{
	CudaDevice *d = &m->dev;
	size_t left = 0, total = 0;
	char a[32];

	m->offset = calloc((size_t)m->plan->n_tensor + 1, sizeof *m->offset);
	if (!m->offset)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d tensors",
		                 m->plan->n_tensor);
	TRY(weights_layout(w, m->offset, &m->weight_bytes, err));
	CUDA_TRY(d, d->api.mem_info(&left, &total), "querying free memory of GPU %d", d->number);
	CUresult r =
	    (size_t)m->weight_bytes > left
	        ? CU_OUT_OF_MEMORY
	        : d->api.mem_alloc(&m->weights, m->weight_bytes ? (size_t)m->weight_bytes : 256);
	if (r == CU_OUT_OF_MEMORY)
		return does_not_fit(m, left, total, err);
	if (r != CU_OK)
		m->weights = 0;
	CUDA_TRY(d, r, "allocating %s for weights", cuda_bytes_text(m->weight_bytes, a));
	return LLMC_OK;
}

static llmc_status
function(CudaModel *m, CUfunction *f, int unit, const char *name, const CudaBuild *b,
         llmc_error *err)
{
	CudaDevice *d = &m->dev;

	CUDA_TRY(d, d->api.module_function(f, m->module[unit], name), "looking for %s in %s", name,
	         cuda_build_name(b, unit));
	return LLMC_OK;
}

/* Two kernels run on an SM at the same time only if both use the same split of shared memory and
 * L1, and both fit. The driver chooses the split for each kernel on its own. If two splits differ,
 * the second kernel waits for the end of the first, even across a programmatic edge. So all kernels
 * that may overlap get the same split. */
static llmc_status
all_shared(CudaModel *m, CUfunction f, const char *name, llmc_error *err)
{
	CudaDevice *d = &m->dev;

	if (m->pdl)
		CUDA_TRY(d, d->api.func_set(f, CU_FUNC_CARVEOUT, 100),
		         "preferring shared memory for %s", name);
	return LLMC_OK;
}

/* A kernel meant to run k CTAs per SM must get exactly k. If more fit, CTAs of the next
 * programmatic launch start early and unevenly: some SMs get two of them, others none, and all
 * later kernels inherit this imbalance. On an H100 (k = 1), GEMVs took 1.6 times as long with q8_0
 * and 1.1 times with bf16. So a CTA requests enough shared memory that no further CTA fits. The
 * CTAs of the next kernel then start one by one as these end, and fill their rings while the last
 * ones run. */
int64_t
cuda_shared_of(const CudaModel *m, const PlanLaunch *p)
{
	const PlanExtent *g = p->grid;
	const int64_t k = g[0].sym == SYM_n_sm && g[0].mul % g[0].div == 0 && g[1].sym == SYM_one &&
	                          g[1].mul == g[1].div && p->cluster <= 1
	                      ? g[0].mul / g[0].div
	                      : 0;
	const int64_t least = k > 0 ? m->dev.sm_shared / (k + 1) : 0;

	return m->pdl && p->pdl && p->shared < least ? least : p->shared;
}

static llmc_status
functions(CudaModel *m, const CudaBuild *b, llmc_error *err)
{
	CudaDevice *d = &m->dev;

	for (int i = 0; i < m->plan->n_kernel; i++) {
		const PlanKernel *k = &m->plan->kernel[i];
		for (int l = 0; l < k->n_launch; l++) {
			const PlanLaunch *p = &k->launch[l];
			if (!p->fn)
				continue;
			TRY(function(m, &m->fn[i][l], cuda_build_unit_of(b, i), p->fn, b, err));
			TRY(all_shared(m, m->fn[i][l], p->fn, err));
			const int64_t shared = cuda_shared_of(m, p);
			if (shared <= 0)
				continue;
			if (shared > d->max_shared)
				return error_set(
				    err, LLMC_E_MISSING,
				    "kernel %s needs %lld bytes of shared memory, a CTA of GPU "
				    "%d (%s) has at most %d: compile the model for this GPU",
				    k->id, (long long)shared, d->number, d->name, d->max_shared);
			CUDA_TRY(
			    d, d->api.func_set(m->fn[i][l], CU_FUNC_DYNAMIC_SHARED, (int)shared),
			    "granting %lld bytes of shared memory to %s", (long long)shared, p->fn);
		}
	}
	TRY(function(m, &m->begin, cuda_build_own(b, "begin"), "llmc_begin", b, err));
	TRY(function(m, &m->sample, cuda_build_own(b, "sample"), "llmc_sample", b, err));
	if (m->plan->ranks > 1) {
		TRY(function(m, &m->all_reduce, cuda_build_own(b, "collective"), "llmc_all_reduce",
		             b, err));
		TRY(function(m, &m->all_reduce_two, cuda_build_own(b, "collective"),
		             "llmc_all_reduce_two_shot", b, err));
		TRY(function(m, &m->all_gather, cuda_build_own(b, "collective"), "llmc_all_gather",
		             b, err));
		TRY(function(m, &m->add_ranks, cuda_build_own(b, "collective"), "llmc_add_ranks", b,
		             err));
		TRY(function(m, &m->place_ranks, cuda_build_own(b, "collective"),
		             "llmc_place_ranks", b, err));
		TRY(all_shared(m, m->all_reduce, "llmc_all_reduce", err));
		TRY(all_shared(m, m->all_reduce_two, "llmc_all_reduce_two_shot", err));
		TRY(all_shared(m, m->all_gather, "llmc_all_gather", err));
	}
	TRY(all_shared(m, m->begin, "llmc_begin", err));
	return all_shared(m, m->sample, "llmc_sample", err);
}

static llmc_status
load_modules(CudaModel *m, CudaBuild *b, llmc_error *err)
{
	CudaDevice *d = &m->dev;

	m->module = calloc((size_t)cuda_build_units(b) + 1, sizeof *m->module);
	m->fn = calloc((size_t)m->plan->n_kernel + 1, sizeof *m->fn);
	if (!m->module || !m->fn)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels",
		                 m->plan->n_kernel);
	m->n_module = cuda_build_units(b);
	for (int u = 0; u < m->n_module; u++) {
		CUresult r = d->api.module_load(&m->module[u], cuda_build_image(b, u)->data);
		/* The driver may reject an intact image that matches the source. Replace the
		 * shipped image first, then the cached one. */
		for (int tries = 0; tries < 2 && (r == CU_INVALID_IMAGE || r == CU_NO_BINARY);
		     tries++) {
			char why[256];
			cuda_result_text(&d->api, r, why, sizeof why);
			TRY(cuda_build_again(b, u, why, err));
			r = d->api.module_load(&m->module[u], cuda_build_image(b, u)->data);
		}
		if (r != CU_OK)
			m->module[u] = NULL;
		CUDA_TRY(d, r, "loading the kernel %s", cuda_build_name(b, u));
	}
	return functions(m, b, err);
}

static void
poll_build(void *user)
{
	cuda_build_poll(user);
}

/* Log the form of decode steps if the plan wants a persistent one. */
static void
log_form(const CudaModel *m, const RuntimeOptions *opt)
{
	const PlanPersistent *p = &m->plan->persistent;

	if (p->n_body && m->dev.cooperative)
		log_line(opt->log, opt->log_user, LLMC_LOG_INFO,
		         "decode steps of up to %d rows are one persistent kernel, larger ones are "
		         "a launch per op",
		         PLAN_PERSISTENT_ROWS);
	else if (p->n_body || p->why)
		log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
		         "decode steps are a launch per op, not one persistent kernel: %s",
		         p->why ? p->why : "the driver has no cooperative launches");
}

/* The context is current. */
static llmc_status
fill(CudaModel *m, const RuntimeOptions *opt, Weights *weights, RuntimeTimes *times,
     llmc_error *err)
{
	CudaBuildOptions o = { .artifact = opt->artifact,
		               .n_jobs = opt->n_threads,
		               .cc = m->dev.cc,
		               .driver = m->dev.driver,
		               .device_name = m->dev.name,
		               .cache_warned = opt->cache_warned,
		               .skip_built = opt->skip_built,
		               .log = opt->log,
		               .log_user = opt->log_user };
	WeightsOptions w = { .random_weights = opt->random_weights,
		             .stage_bytes = opt->stage_bytes,
		             .log = opt->log,
		             .log_user = opt->log_user };
	double start = clock_now(), packed;
	CudaBuild *b = NULL;
	llmc_status status;

	TRY_GOTO(cuda_build_start(m->plan, &o, &b, err));
	TRY_GOTO(alloc_weights(m, weights, err));
	TRY_GOTO(threads_open(opt->n_threads, &w.threads, err));
	TRY_GOTO(cuda_weights_load(&m->dev, weights, &w, m->weights, m->offset, m->weight_bytes,
	                           poll_build, b, err));
	packed = clock_now();
	times->pack_s = packed - start;
	TRY_GOTO(cuda_build_wait(b, err));
	TRY_GOTO(load_modules(m, b, err));
	log_form(m, opt);
	times->compile_s = clock_now() - packed; /* compile time beyond loading */
	times->load_s = clock_now() - start;
fail:
	threads_close(w.threads);
	cuda_build_close(b);
	return status;
}

llmc_status
cuda_model_open(const Plan *plan, const RuntimeOptions *opt, Weights *weights, void **out,
                RuntimeTimes *times, llmc_error *err)
{
	llmc_status status;
	CudaModel *m = calloc(1, sizeof *m);

	*out = NULL;
	if (!m)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	m->plan = plan;
	m->can_divide = opt->can_divide;
	TRY_GOTO(cuda_device_open(&m->dev, opt->device, true, err));
	TRY_GOTO(check_device(m, err));
	m->pdl = m->dev.cc >= 90 && m->dev.driver >= 12030;
	TRY_GOTO(cuda_enter(&m->dev, err));
	status = fill(m, opt, weights, times, err);
	cuda_leave(&m->dev);
	if (status == LLMC_OK) {
		*out = m;
		return LLMC_OK;
	}
fail:
	cuda_model_close(m);
	return status;
}

void
cuda_model_close(void *model)
{
	CudaModel *m = model;

	if (!m)
		return;
	CudaDevice *d = &m->dev;
	/* these calls fail if the device is lost; destroying the context frees all */
	if (d->ctx && d->api.ctx_push(d->ctx) == CU_OK) {
		for (int i = 0; i < m->n_module; i++)
			if (m->module[i])
				CUDA_RELEASE(d->api.module_unload(m->module[i]));
		if (m->weights)
			CUDA_RELEASE(d->api.mem_free(m->weights));
		cuda_leave(d);
	}
	nccl_close(m->nccl);
	cuda_device_close(d);
	free(m->module);
	free(m->fn);
	free(m->offset);
	free(m);
}
