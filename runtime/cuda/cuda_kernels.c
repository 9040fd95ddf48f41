/* The kernels of a plan as images, compiled by NVRTC on background threads while the caller loads
 * weights. The key of an image is the hash of its source with all headers, NVRTC's options and the
 * architecture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "runtime/build/kernel_build.h"
#include "runtime/cuda/cuda.h"
#include "plan/target.h"

/* The runtime's own kernels, for models on one GPU and for ranks */
static const char *const own_kernels[] = { "runtime/begin.cu", "runtime/sample.cu", NULL };
static const char *const rank_kernels[] = { "runtime/begin.cu", "runtime/sample.cu",
	                                    "runtime/collective.cu", NULL };
static const char mark[8] = "llmc cu1"; /* format mark in the trailer of an image */

/* State of an image in addition to its unit */
typedef struct Image {
	Strbuf source, image;
	bool shipped;
} Image;

struct CudaBuild {
	KernelBuild build;
	CudaBuildOptions opt;
	char arch[16]; /* architecture that the units' keys are for */
	Nvrtc nvrtc;
	Image *image; /* [n_unit] */
};

static const char *const *
own_of(const Plan *p)
{
	return p->ranks > 1 ? rank_kernels : own_kernels;
}

static int
n_own(const Plan *p)
{
	int n = 0;

	while (own_of(p)[n])
		n++;
	return n;
}

static Strbuf *
contents(void *cuda_build, int unit)
{
	return &((CudaBuild *)cuda_build)->image[unit].image;
}

/* Report NVRTC's log with the op of the kernel and the line of the description that it comes
 * from. */
static llmc_status
does_not_compile(const CudaBuild *b, int unit, const char *why, const Strbuf *log, llmc_error *err)
{
	const Plan *p = b->build.plan;
	const PlanStep *step = NULL;
	char where[160] = "a kernel of the runtime";

	for (int ph = 0; ph < p->n_phase; ph++)
		for (int i = 0; i < p->phase[ph].n_step && !step; i++) {
			const PlanStep *st = &p->phase[ph].step[i];
			if (st->kernel >= 0 && b->build.unit_of[st->kernel] == unit)
				step = st;
		}
	if (step)
		snprintf(where, sizeof where, "op %s of layer %d, line %d of model.yaml",
		         op_info[step->op].name, step->layer, step->yaml_line);
	return error_set(err, LLMC_E_MISSING, "%s (%s) does not compile for %s: %s\n%.1400s",
	                 b->build.unit[unit].file, where, b->arch, why, strbuf_str(log));
}

static llmc_status
compile(void *cuda_build, int unit, llmc_error *err)
{
	CudaBuild *b = cuda_build;
	const BuildUnit *u = &b->build.unit[unit];
	Image *m = &b->image[unit];
	Strbuf log = { 0 };
	llmc_error why = { 0 };
	llmc_status status = nvrtc_compile(&b->nvrtc, strbuf_str(&m->source), u->file, b->arch,
	                                   &m->image, &log, &why);

	if (status == LLMC_E_CHECK)
		status = does_not_compile(b, unit, why.text, &log, err);
	else if (status != LLMC_OK)
		*err = why;
	strbuf_release(&log);
	bool kept; /* unused: the image is in memory whether the cache keeps it or not */
	return status == LLMC_OK
	           ? build_keep(&b->build, unit, m->image.data, m->image.len, &kept, err)
	           : status;
}

static const BuildKind kind = {
	.suffix = "cubin", .with = "options", .mark = mark, .contents = contents, .compile = compile
};

/* Compute keys of units that are not ready, for the architecture. */
static void
set_keys(CudaBuild *b)
{
	for (int i = 0; i < b->build.n_unit; i++)
		if (!b->build.unit[i].ready)
			cuda_source_key(&b->image[i].source, b->arch, b->build.unit[i].key);
}

/* Create the units with their sources and the keys that images built ahead of time have. */
static llmc_status
prepare(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out, llmc_error *err)
{
	const KernelBuildOptions o = { .artifact = opt->artifact,
		                       .n_jobs = opt->n_jobs,
		                       .cache_warned = opt->cache_warned,
		                       .skip_built = opt->skip_built,
		                       .log = opt->log,
		                       .log_user = opt->log_user };
	llmc_status status;
	CudaBuild *b = calloc(1, sizeof *b);

	*out = NULL;
	if (!b)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	b->opt = *opt;
	TRY_GOTO(build_init(&b->build, plan, &o, &kind, b, own_of(plan), err));
	b->image = calloc((size_t)b->build.n_unit, sizeof *b->image);
	if (!b->image) {
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels", plan->n_kernel);
		goto fail;
	}
	for (int i = 0; i < b->build.n_unit; i++) {
		const char *file = b->build.unit[i].file;
		TRY_GOTO(i >= b->build.n_unit - n_own(plan)
		             ? cuda_source_embedded(file, &b->image[i].source, err)
		             : cuda_source_read(opt->artifact, file, &b->image[i].source, err));
	}
	snprintf(b->arch, sizeof b->arch, "%s", target_find(plan->target)->isa);
	set_keys(b);
	*out = b;
	return LLMC_OK;
fail:
	cuda_build_close(b);
	return status;
}

/* Open NVRTC and choose the architecture: the device's, or, if NVRTC is too old for it, an earlier
 * one whose images the device runs. */
static llmc_status
open_compiler(CudaBuild *b, llmc_error *err)
{
	const Nvrtc *n = &b->nvrtc;
	char arch[16];
	int best = 0, last = 0;

	TRY(nvrtc_open(&b->nvrtc, b->opt.driver, err));
	cuda_arch(b->opt.cc, b->build.plan->target, arch);
	/* If the architecture uses the kernels of an earlier one, they have no
	 * architecture-specific instructions. */
	const Target *t = target_find(b->build.plan->target);
	const bool portable = !strchr(arch, 'a') || t->kernels != t->arch;
	int want = atoi(arch + 3);
	for (int i = 0; i < n->n_arch; i++) {
		last = n->arch[i] > last ? n->arch[i] : last;
		if (n->arch[i] > best &&
		    (n->arch[i] == want || (portable && cuda_arch_fits(n->arch[i], want))))
			best = n->arch[i];
	}
	if (n->n_arch && !best)
		return error_set(err, LLMC_E_MISSING,
		                 "%s (CUDA %d.%d) does not compile for %s%s%s, only up to sm_%d: "
		                 "install a newer NVRTC (`pip install "
		                 "nvidia-cuda-nvrtc`)%s",
		                 n->path, n->major, n->minor, arch,
		                 b->opt.device_name ? ", which is " : "",
		                 b->opt.device_name ? b->opt.device_name : "", last,
		                 want < last ? "; this one has dropped that architecture" : "");
	if (best && best != want)
		snprintf(b->arch, sizeof b->arch, "sm_%d", best);
	else
		memcpy(b->arch, arch, sizeof arch);
	set_keys(b);
	return LLMC_OK;
}

/* Report that images are missing and that there is no compiler (why): list the images that exist
 * and how to get the others. */
static llmc_status
missing_compiler(const CudaBuild *b, const llmc_error *why, llmc_error *err)
{
	const char *best = cuda_best_target(b->opt.cc);
	Strbuf have = { 0 }, cure = { 0 };

	for (int i = 0; target_at(i); i++)
		if (target_at(i)->kind == TARGET_CUDA &&
		    build_ships(b->opt.artifact, target_at(i)->isa))
			strbuf_printf(&have, "%s%s", have.len ? ", " : "", target_at(i)->isa);
	if (best && cuda_image_fits(best, b->opt.cc))
		strbuf_printf(&cure,
		              "Or ship kernels that fit, where NVRTC is: llmc compile MODEL.yaml "
		              "--target cuda --aot --arch %s",
		              target_find(best)->isa);
	else
		strbuf_printf(
		    &cure,
		    "No kernels built ahead of time run on sm_%d: it takes NVRTC on this machine",
		    b->opt.cc);
	error_set(err, LLMC_E_MISSING,
	          "kernels for sm_%d (%s) have to be compiled: %s ships %s%s. %s. %s", b->opt.cc,
	          b->opt.device_name ? b->opt.device_name : "the GPU", b->opt.artifact,
	          have.len ? "kernels for " : "none", strbuf_str(&have), why->text,
	          strbuf_str(&cure));
	strbuf_release(&have);
	strbuf_release(&cure);
	return LLMC_E_MISSING;
}

/* Look up units that are not ready in the cache. */
static llmc_status
look_up_cached(CudaBuild *b, llmc_error *err)
{
	const int version[2] = { b->nvrtc.major, b->nvrtc.minor };

	return build_cached(&b->build, version, sizeof version, err);
}

static const char *
compiler_name(const CudaBuild *b, char name[32])
{
	snprintf(name, 32, "NVRTC %d.%d", b->nvrtc.major, b->nvrtc.minor);
	return name;
}

llmc_status
cuda_build_start(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out, llmc_error *err)
{
	char unfit[96], compiler[32];
	llmc_error why = { 0 };
	llmc_status status;
	CudaBuild *b;

	*out = NULL;
	TRY(prepare(plan, opt, &b, err));
	snprintf(unfit, sizeof unfit, "they are for %s, this GPU is sm_%d", b->arch, opt->cc);
	build_shipped(&b->build, b->arch, cuda_image_fits(plan->target, opt->cc) ? NULL : unfit);
	for (int i = 0; i < b->build.n_unit; i++)
		b->image[i].shipped = b->build.unit[i].ready;
	if (!build_all_ready(&b->build)) {
		status = open_compiler(b, &why);
		if (status != LLMC_OK && !b->nvrtc.lib)
			missing_compiler(b, &why, err);
		else if (status != LLMC_OK && err)
			*err = why;
		if (status != LLMC_OK)
			goto fail;
		TRY_GOTO(look_up_cached(b, err));
		build_start(&b->build, b->arch, compiler_name(b, compiler));
	}
	*out = b;
	return LLMC_OK;
fail:
	cuda_build_close(b);
	return status;
}

void
cuda_build_poll(CudaBuild *b)
{
	build_poll(&b->build);
}

llmc_status
cuda_build_wait(CudaBuild *b, llmc_error *err)
{
	return build_wait(&b->build, err);
}

llmc_status
cuda_build_again(CudaBuild *b, int unit, const char *why, llmc_error *err)
{
	BuildUnit *u = &b->build.unit[unit];
	llmc_error missing = { 0 };

	log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
	         "%s: its image for %s does not load (%s): it is compiled again", u->file, b->arch,
	         why);
	u->ready = false;
	if (!b->nvrtc.lib && open_compiler(b, &missing) != LLMC_OK) {
		if (!b->nvrtc.lib)
			return missing_compiler(b, &missing, err);
		if (err)
			*err = missing;
		return LLMC_E_MISSING;
	}
	if (b->image[unit].shipped) { /* the cache may have an image that was compiled here */
		b->image[unit].shipped = false;
		set_keys(b);
		TRY(look_up_cached(b, err));
		if (u->ready)
			return LLMC_OK;
	}
	u->status = compile(b, unit, &u->error);
	u->ready = u->status == LLMC_OK;
	if (!u->ready && err)
		*err = u->error;
	return u->status;
}

llmc_status
cuda_build_ship(const Plan *plan, const CudaBuildOptions *opt, llmc_error *err)
{
	CudaBuildOptions o = *opt;
	char compiler[32];
	CudaBuild *b;
	llmc_status status;

	o.cc = o.driver = 0;
	o.device_name = NULL;
	TRY(prepare(plan, &o, &b, err));
	TRY_GOTO(open_compiler(b, err));
	TRY_GOTO(build_ship(&b->build, b->arch, compiler_name(b, compiler), b->arch, err));
fail:
	cuda_build_close(b);
	return status;
}

void
cuda_build_close(CudaBuild *b)
{
	if (!b)
		return;
	build_stop(&b->build);
	for (int i = 0; b->image && i < b->build.n_unit; i++) {
		strbuf_release(&b->image[i].source);
		strbuf_release(&b->image[i].image);
	}
	build_release(&b->build);
	nvrtc_close(&b->nvrtc);
	free(b->image);
	free(b);
}

int
cuda_build_units(const CudaBuild *b)
{
	return b->build.n_unit;
}

int
cuda_build_unit_of(const CudaBuild *b, int kernel)
{
	return b->build.unit_of[kernel];
}

int
cuda_build_own(const CudaBuild *b, const char *name)
{
	char file[64];

	snprintf(file, sizeof file, "runtime/%s.cu", name);
	for (int i = b->build.n_unit - n_own(b->build.plan); i < b->build.n_unit; i++)
		if (!strcmp(b->build.unit[i].file, file))
			return i;
	return -1;
}

const Strbuf *
cuda_build_image(const CudaBuild *b, int unit)
{
	return &b->image[unit].image;
}

const char *
cuda_build_name(const CudaBuild *b, int unit)
{
	return b->build.unit[unit].file;
}
