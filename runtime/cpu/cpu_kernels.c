/* Kernels of a plan as shared objects: found in the cache or compiled, and loaded. */
#include "runtime/cpu/cpu_kernels.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(llmc_step) == 112 && offsetof(llmc_step, tok) == 16 &&
                   offsetof(llmc_step, block_stride) == 88,
               "kernels of another build read it: a change needs a new PLAN_STEP_ABI");

/* No buffer: the loader opens objects by path. */
static Strbuf *
contents(void *kernels, int unit)
{
	(void)kernels, (void)unit;
	return NULL;
}

static const BuildKind kind = { .suffix = "so",
	                        .with = "flags",
	                        .mark = object_mark,
	                        .contents = contents,
	                        .compile = object_compile };

static llmc_status
prepare(const Plan *plan, const KernelBuildOptions *opt, CpuKernels **out, llmc_error *err)
{
	llmc_status status;
	Sha256 common;
	CpuKernels *k = calloc(1, sizeof *k);

	*out = NULL;
	if (!k)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	KernelBuild *b = &k->build;
	TRY_GOTO(build_init(b, plan, opt, &kind, k, NULL, err));
	k->object = calloc((size_t)b->n_unit + 1, sizeof *k->object);
	k->fn = calloc((size_t)plan->n_kernel + 1, sizeof *k->fn);
	if (!k->object || !k->fn) {
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels", plan->n_kernel);
		goto fail;
	}
	file_join(&k->root, opt->artifact, "kernels");
	TRY_GOTO(cc_flags(plan->target, &k->flag, &k->flag_text, err));
	TRY_GOTO(objects_common(k, &common, err));
	for (int i = 0; i < b->n_unit; i++) {
		file_join(&k->object[i].source, opt->artifact, b->unit[i].file);
		TRY_GOTO(object_key(k, &common, i, b->unit[i].key, err));
		struct stat st;
		if (stat(strbuf_str(&k->object[i].source), &st) == 0)
			b->unit[i].bytes = (size_t)st.st_size;
	}
	/* a persistent kernel: its code is in headers and takes long to compile */
	for (int i = 0; i < plan->n_kernel; i++)
		if (plan->kernel[i].n_arg == 0)
			b->unit[b->unit_of[i]].bytes = MAX_SOURCE;
	*out = k;
	return LLMC_OK;
fail:
	kernels_close(k);
	return status;
}

static void
log_warnings(const CpuKernels *k)
{
	const KernelBuild *b = &k->build;

	for (int i = 0; i < b->n_unit; i++)
		if (k->object[i].warned)
			log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
			         "%s: %s warns about it", b->unit[i].file, k->cc);
}

static llmc_status
load(CpuKernels *k, llmc_error *err)
{
	const KernelBuild *b = &k->build;

	for (int pass = 0; pass < 2; pass++) /* functions that kernels call are loaded first */
		for (int i = 0; i < b->plan->n_kernel; i++) {
			const bool called = b->plan->kernel[i].n_arg == 0;
			const int u = b->unit_of[i];
			if (called != (pass == 0) || k->object[u].handle)
				continue;
			/* exported names contain the hash of everything they depend on */
			k->object[u].handle =
			    dlopen(strbuf_str(&b->unit[u].entry.path),
			           RTLD_NOW | (called ? RTLD_GLOBAL : RTLD_LOCAL));
			if (!k->object[u].handle)
				return error_set(err, LLMC_E_MISSING,
				                 "cannot load the kernel %s: %s", b->unit[u].file,
				                 dlerror());
		}
	for (int i = 0; i < b->plan->n_kernel; i++) {
		const PlanKernel *p = &b->plan->kernel[i];
		void *at = dlsym(k->object[b->unit_of[i]].handle, p->symbol);
		if (!at)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: has no function %s: compile the model again", p->file,
			                 p->symbol);
		memcpy(&k->fn[i], &at, sizeof at);
	}
	return LLMC_OK;
}

/* Find the compiler of kernels that are neither shipped nor prebuilt. */
static llmc_status
find_compiler(CpuKernels *k, llmc_error *err)
{
	const KernelBuild *b = &k->build;
	llmc_error why = { 0 };
	int lacking = 0;

	if (cc_find(k->cc, sizeof k->cc, k->cc_version, sizeof k->cc_version, &why) == LLMC_OK)
		return LLMC_OK;
	for (int i = 0; i < b->n_unit; i++)
		lacking += !b->unit[i].ready;
	return b->prebuilt ? error_set(err, why.code,
	                               "%s; %d of this model's %d kernels for %s are not among "
	                               "the prebuilt ones",
	                               why.text, lacking, b->n_unit, b->plan->target)
	                   : error_set(err, why.code, "%s", why.text);
}

llmc_status
kernels_open(const Plan *plan, const KernelBuildOptions *opt, CpuKernels **out, llmc_error *err)
{
	CpuKernels *k;
	llmc_status status;

	*out = NULL;
	TRY(prepare(plan, opt, &k, err));
	build_shipped(&k->build, plan->target, NULL);
	build_prebuilt(&k->build);
	if (!build_all_ready(&k->build)) {
		TRY_GOTO(find_compiler(k, err));
		TRY_GOTO(build_cached(&k->build, k->cc_version, strlen(k->cc_version), err));
		build_start(&k->build, plan->target, k->cc);
		TRY_GOTO(build_wait(&k->build, err));
		header_remove(k);
		log_warnings(k);
	}
	TRY_GOTO(load(k, err));
	build_unlock(&k->build);
	*out = k;
	return LLMC_OK;
fail:
	kernels_close(k);
	return status;
}

llmc_status
kernels_ship(const Plan *plan, const KernelBuildOptions *opt, llmc_error *err)
{
	CpuKernels *k;
	llmc_status status;

	TRY(prepare(plan, opt, &k, err));
	TRY_GOTO(cc_find(k->cc, sizeof k->cc, k->cc_version, sizeof k->cc_version, err));
	TRY_GOTO(build_ship(&k->build, plan->target, k->cc_version, NULL, err));
	log_warnings(k);
fail:
	kernels_close(k);
	return status;
}

void
kernels_close(CpuKernels *k)
{
	if (!k)
		return;
	for (int i = 0; k->object && i < k->build.n_unit; i++) {
		if (k->object[i].handle)
			dlclose(k->object[i].handle);
		/* closed only now: the loader identifies an object by the name of its descriptor,
		 * which must not be reused while objects are loaded */
		if (k->object[i].fd > 0)
			close(k->object[i].fd);
		strbuf_release(&k->object[i].source);
	}
	build_release(&k->build);
	header_remove(k);
	strbuf_release(&k->root);
	free(k->flag);
	free(k->flag_text);
	free(k->object);
	free(k->fn);
	free(k);
}

llmc_kernel *
kernels_find(const CpuKernels *k, int kernel)
{
	return k->fn[kernel];
}
