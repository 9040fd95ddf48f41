/* The kernels of a plan as images: shipped with the artifact, in the cache, or compiled here by NVRTC, several at once on
 * threads of their own, while the caller loads weights. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "runtime/cuda/build.h"

static const char *const own_kernels[] = { "begin", "sample", NULL };

void
cuda_build_say(const CudaBuild *b, int level, const char *fmt, ...)
{
	char line[1600];
	va_list ap;

	if (!b->opt.log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	b->opt.log(b->opt.log_user, level, line);
}

/* Each file of the plan once, then the runtime's own. */
static llmc_status
list_units(CudaBuild *b, llmc_error *err)
{
	const Plan *p = b->plan;
	int own = 0;

	while (own_kernels[own])
		own++;
	b->unit = calloc((size_t)(p->n_kernel + own), sizeof *b->unit);
	b->unit_of = calloc((size_t)p->n_kernel + 1, sizeof *b->unit_of);
	if (!b->unit || !b->unit_of)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels", p->n_kernel);
	for (int i = 0; i < p->n_kernel; i++) {
		int u = 0;
		while (u < b->n_unit && strcmp(b->unit[u].name, p->kernel[i].file))
			u++;
		if (u == b->n_unit)
			snprintf(b->unit[b->n_unit++].name, sizeof b->unit[0].name, "%s", p->kernel[i].file);
		b->unit_of[i] = u;
	}
	for (int i = 0; i < b->n_unit; i++)
		TRY(cuda_source_read(b->opt.artifact, b->unit[i].name, &b->unit[i].source, err));
	for (int i = 0; i < own; i++) {
		CudaUnit *u = &b->unit[b->n_unit++];
		u->own = own_kernels[i];
		snprintf(u->name, sizeof u->name, "runtime/%s.cu", u->own);
		TRY(cuda_source_embedded(u->own, &u->source, err));
	}
	return LLMC_OK;
}

llmc_status
cuda_build_prepare(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out, llmc_error *err)
{
	Strbuf dir = { 0 };
	llmc_status status;
	CudaBuild *b = calloc(1, sizeof *b);

	*out = NULL;
	if (!b)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	b->plan = plan;
	b->opt = *opt;
	atomic_init(&b->next, 0);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->news, NULL);
	cuda_arch(opt->cc, plan->target, b->arch);
	cuda_arch(0, plan->target, b->plan_arch);
	if (!opt->artifact) {
		status = error_set(err, LLMC_E_INPUT, "the plan has kernels, but no folder to find their sources in");
		goto fail;
	}
	TRY_GOTO(file_check_trusted(opt->artifact, err));
	file_join(&dir, opt->artifact, "kernels");
	TRY_GOTO(file_check_trusted(strbuf_str(&dir), err));
	TRY_GOTO(list_units(b, err));
	for (int i = 0; i < b->n_unit; i++)
		cuda_source_key(&b->unit[i].source, b->arch, b->unit[i].key);
	*out = b;
fail:
	strbuf_release(&dir);
	if (status != LLMC_OK)
		cuda_build_close(b);
	return status;
}

/* Folder of images in the cache. */
static llmc_status
cache_folder(Strbuf *dir, llmc_error *err)
{
	TRY(file_cache_dir(dir, err));
	strbuf_puts(dir, "/kernels");
	if (dir->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	TRY(file_mkdirs_private(strbuf_str(dir), err));
	return file_check_trusted(strbuf_str(dir), err);
}

static llmc_status
look_into_cache(CudaBuild *b, llmc_error *err)
{
	Strbuf dir = { 0 };
	char key[65], name[80];
	llmc_status status;
	llmc_error why;
	int damaged = 0;

	TRY_GOTO(cache_folder(&dir, err));
	for (int i = 0; i < b->n_unit; i++) {
		CudaUnit *u = &b->unit[i];
		Sha256 sum;
		if (u->ready)
			continue;
		sha256_init(&sum);
		sha256_add(&sum, u->key, 64);
		sha256_add(&sum, &b->nvrtc.major, sizeof b->nvrtc.major);
		sha256_add(&sum, &b->nvrtc.minor, sizeof b->nvrtc.minor);
		sha256_hex(&sum, key);
		snprintf(name, sizeof name, "%s.cubin", key);
		file_join(&u->path, strbuf_str(&dir), name);
		switch (cubin_read(strbuf_str(&u->path), u->key, &u->image, &why)) {
		case LLMC_OK:
			u->ready = true;
			break;
		case LLMC_E_CHECK:
			if (damaged++ == 0)
				cuda_build_say(b, LLMC_LOG_WARNING, "%s: it is built again", why.text);
			break;
		case LLMC_E_INPUT: /* somebody else's file */
			status = error_set(err, LLMC_E_IO, "%s", why.text);
			goto fail;
		default:
			break;
		}
	}
fail:
	strbuf_release(&dir);
	return status;
}

/* NVRTC's log with the op that the kernel is for and the line of the description that made it. */
static llmc_status
does_not_compile(const CudaBuild *b, CudaUnit *u, const Strbuf *log)
{
	char where[160] = "a kernel of the runtime";
	llmc_error why = u->error;

	for (int ph = 0; ph < b->plan->n_phase && !u->own; ph++)
		for (int i = 0; i < b->plan->phase[ph].n_step; i++) {
			const PlanStep *st = &b->plan->phase[ph].step[i];
			if (st->kernel < 0 || strcmp(b->plan->kernel[st->kernel].file, u->name))
				continue;
			snprintf(where, sizeof where, "op %s of layer %d, line %d of model.yaml", st->op, st->layer, st->yaml_line);
			ph = b->plan->n_phase;
			break;
		}
	return error_set(&u->error, LLMC_E_MISSING, "%s (%s) does not compile for %s: %s\n%.1400s", u->name, where, b->arch,
	                 why.text, strbuf_str(log));
}

static llmc_status
compile(CudaBuild *b, CudaUnit *u)
{
	Strbuf log = { 0 };
	llmc_status status = nvrtc_compile(&b->nvrtc, strbuf_str(&u->source), u->name, b->arch, &u->image, &log, &u->error);

	if (status == LLMC_E_CHECK)
		status = does_not_compile(b, u, &log);
	strbuf_release(&log);
	if (status == LLMC_OK)
		status = cubin_write(strbuf_str(&u->path), u->key, &u->image, &u->error);
	return status;
}

static void *
crew_main(void *arg)
{
	CudaBuild *b = arg;

	for (int i; (i = atomic_fetch_add(&b->next, 1)) < b->n_unit;) {
		CudaUnit *u = &b->unit[i];
		if (u->ready)
			continue;
		u->status = compile(b, u);
		pthread_mutex_lock(&b->lock);
		b->done++;
		if (u->status == LLMC_OK)
			u->ready = true;
		else /* what failed once fails again: start no more */
			atomic_store(&b->next, b->n_unit);
		pthread_cond_signal(&b->news);
		pthread_mutex_unlock(&b->lock);
	}
	pthread_mutex_lock(&b->lock);
	b->left++;
	pthread_cond_signal(&b->news);
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static void
start_crew(CudaBuild *b)
{
	int n = b->opt.n_jobs > 0 ? b->opt.n_jobs : topology_threads();
	sigset_t all, was;

	n = n > b->todo ? b->todo : n > CUDA_MAX_JOBS ? CUDA_MAX_JOBS : n;
	cuda_build_say(b, LLMC_LOG_INFO, "compiling %d kernel%s for %s with NVRTC %d.%d", b->todo, b->todo == 1 ? "" : "s", b->arch,
	               b->nvrtc.major, b->nvrtc.minor);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	while (b->n_thread < n && pthread_create(&b->thread[b->n_thread], NULL, crew_main, b) == 0)
		b->n_thread++;
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (!b->n_thread) /* then the caller alone */
		crew_main(b);
}

static llmc_status
nvrtc_knows(const CudaBuild *b, llmc_error *err)
{
	int arch = atoi(b->arch + 3), best = 0;

	for (int i = 0; i < b->nvrtc.n_arch; i++) {
		if (b->nvrtc.arch[i] == arch)
			return LLMC_OK;
		best = b->nvrtc.arch[i] > best ? b->nvrtc.arch[i] : best;
	}
	if (b->nvrtc.n_arch == 0)
		return LLMC_OK;
	return error_set(err, LLMC_E_MISSING,
	                 "%s (CUDA %d.%d) does not compile for %s%s%s, only up to sm_%d: install a newer NVRTC (`pip install "
	                 "nvidia-cuda-nvrtc`)%s",
	                 b->nvrtc.path, b->nvrtc.major, b->nvrtc.minor, b->arch, b->opt.device_name ? ", which is " : "",
	                 b->opt.device_name ? b->opt.device_name : "", best, arch < best ? "; this one has dropped that architecture" : "");
}

llmc_status
cuda_build_compile(CudaBuild *b, llmc_error *err)
{
	b->todo = 0;
	for (int i = 0; i < b->n_unit; i++)
		b->todo += !b->unit[i].ready;
	if (!b->todo)
		return LLMC_OK;
	TRY(nvrtc_knows(b, err));
	start_crew(b);
	return LLMC_OK;
}

llmc_status
cuda_build_start(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out, llmc_error *err)
{
	llmc_error why = { 0 };
	llmc_status status;
	CudaBuild *b;
	bool all = true;

	*out = NULL;
	TRY(cuda_build_prepare(plan, opt, &b, err));
	cuda_aot_use(b);
	for (int i = 0; i < b->n_unit; i++)
		all = all && b->unit[i].ready;
	if (!all) {
		status = nvrtc_open(&b->nvrtc, opt->driver, &why);
		if (status != LLMC_OK) {
			cuda_aot_lacks(b, &why, err);
			goto fail;
		}
		TRY_GOTO(look_into_cache(b, err));
		TRY_GOTO(cuda_build_compile(b, err));
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
	pthread_mutex_lock(&b->lock);
	int done = b->done;
	pthread_mutex_unlock(&b->lock);
	if (done > b->shown && (done == b->todo || done - b->shown >= (b->todo + 7) / 8)) {
		b->shown = done;
		cuda_build_say(b, LLMC_LOG_INFO, "compiled %d of %d kernels", done, b->todo);
	}
}

static void
join(CudaBuild *b)
{
	for (int i = 0; i < b->n_thread; i++)
		pthread_join(b->thread[i], NULL);
	b->n_thread = 0;
}

llmc_status
cuda_build_wait(CudaBuild *b, llmc_error *err)
{
	pthread_mutex_lock(&b->lock);
	while (b->left < b->n_thread) {
		pthread_mutex_unlock(&b->lock);
		cuda_build_poll(b);
		pthread_mutex_lock(&b->lock);
		int seen = b->done;
		while (b->left < b->n_thread && b->done == seen)
			pthread_cond_wait(&b->news, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	join(b);
	cuda_build_poll(b);
	for (int i = 0; i < b->n_unit; i++)
		if (b->unit[i].status != LLMC_OK) {
			if (err)
				*err = b->unit[i].error;
			return b->unit[i].status;
		}
	return LLMC_OK;
}

llmc_status
cuda_build_again(CudaBuild *b, int unit, const char *why, llmc_error *err)
{
	CudaUnit *u = &b->unit[unit];
	llmc_error missing = { 0 };

	cuda_build_say(b, LLMC_LOG_WARNING, "%s: its image for %s does not load (%s): it is compiled again", u->name, b->arch, why);
	if (!b->nvrtc.lib && nvrtc_open(&b->nvrtc, b->opt.driver, &missing) != LLMC_OK)
		return cuda_aot_lacks(b, &missing, err);
	for (int i = 0; i < b->n_unit; i++)
		b->unit[i].shipped &= i != unit;
	if (!u->path.len) {
		Strbuf dir = { 0 };
		char name[80];
		llmc_status status = cache_folder(&dir, err);
		snprintf(name, sizeof name, "%s.again.cubin", u->key);
		if (status == LLMC_OK)
			file_join(&u->path, strbuf_str(&dir), name);
		strbuf_release(&dir);
		TRY(status);
	}
	u->status = compile(b, u);
	if (u->status != LLMC_OK && err)
		*err = u->error;
	return u->status;
}

void
cuda_build_close(CudaBuild *b)
{
	if (!b)
		return;
	atomic_store(&b->next, b->n_unit);
	join(b);
	for (int i = 0; i < b->n_unit; i++) {
		strbuf_release(&b->unit[i].source);
		strbuf_release(&b->unit[i].image);
		strbuf_release(&b->unit[i].path);
	}
	nvrtc_close(&b->nvrtc);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->news);
	free(b->unit);
	free(b->unit_of);
	free(b);
}

int
cuda_build_units(const CudaBuild *b)
{
	return b->n_unit;
}

int
cuda_build_unit_of(const CudaBuild *b, int kernel)
{
	return b->unit_of[kernel];
}

int
cuda_build_own(const CudaBuild *b, const char *name)
{
	for (int i = 0; i < b->n_unit; i++)
		if (b->unit[i].own && !strcmp(b->unit[i].own, name))
			return i;
	return -1;
}

const Strbuf *
cuda_build_image(const CudaBuild *b, int unit)
{
	return &b->unit[unit].image;
}

const char *
cuda_build_name(const CudaBuild *b, int unit)
{
	return b->unit[unit].name;
}
