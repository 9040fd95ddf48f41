/* Kernels of a plan: which shared objects they need, where those are (shipped with the artifact, in the cache, or yet to
 * be compiled), and loading them.
 *
 * A cached object is known by what it was made from: source, the headers beside it, flags, compiler and its version, the
 * ABI of kernels. Opening an artifact runs its code, so sources and objects must be ours or root's, and nobody else's to
 * write. */
#include "runtime/cpu/build.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

enum { MAX_SOURCE = 1 << 24, MAX_HEADERS = 256 };

void
kernels_say(const Kernels *k, int level, const char *fmt, ...)
{
	char line[1600];
	va_list ap;

	if (!k->opt.log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	k->opt.log(k->opt.log_user, level, line);
}

/* The text without the comment that a generated file begins with: it names the model and lines of its description, and
 * models that differ only there share their kernels. */
static const char *
behind_head(const char *text)
{
	const char *end = strncmp(text, "/* generated from ", 18) ? NULL : strstr(text, "*/");

	return end ? end + 2 : text;
}

static llmc_status
add_file(Sha256 *sum, const char *path, const char *name, llmc_error *err)
{
	Strbuf text = { 0 };
	llmc_status status;

	TRY_GOTO(file_check_trusted(path, err));
	TRY_GOTO(file_read(path, MAX_SOURCE, &text, err));
	sha256_add(sum, name, strlen(name) + 1);
	const char *body = behind_head(strbuf_str(&text));
	sha256_add(sum, body, text.len - (size_t)(body - strbuf_str(&text)));
fail:
	strbuf_release(&text);
	return status;
}

static int
by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The headers that kernels may include: all of kernels/common, by name. */
static llmc_status
add_headers(Sha256 *sum, const char *root, llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 };
	char *name[MAX_HEADERS];
	int n = 0;
	llmc_status status = LLMC_OK;

	file_join(&dir, root, "common");
	DIR *d = opendir(strbuf_str(&dir));
	for (struct dirent *e; d && n < MAX_HEADERS && (e = readdir(d)) != NULL;) {
		size_t len = strlen(e->d_name);
		if (len > 2 && !strcmp(e->d_name + len - 2, ".h") && (name[n] = strdup(e->d_name)) != NULL)
			n++;
	}
	if (d)
		closedir(d);
	qsort(name, (size_t)n, sizeof *name, by_text);
	for (int i = 0; i < n; i++) {
		file_join(&path, strbuf_str(&dir), name[i]);
		if (status == LLMC_OK)
			status = add_file(sum, strbuf_str(&path), name[i], err);
		free(name[i]);
	}
	strbuf_release(&dir);
	strbuf_release(&path);
	return status;
}

static void
add_flags(Sha256 *sum, const Kernels *k)
{
	int abi = PLAN_STEP_ABI;

	sha256_add(sum, &abi, sizeof abi);
	sha256_add(sum, k->plan->target, strlen(k->plan->target) + 1);
	for (int i = 0; k->flag[i]; i++)
		sha256_add(sum, k->flag[i], strlen(k->flag[i]) + 1);
}

/* Units: each file of the plan once. */
static llmc_status
list_units(Kernels *k, llmc_error *err)
{
	const Plan *p = k->plan;

	k->unit = calloc((size_t)p->n_kernel + 1, sizeof *k->unit);
	k->unit_of = calloc((size_t)p->n_kernel + 1, sizeof *k->unit_of);
	k->fn = calloc((size_t)p->n_kernel + 1, sizeof *k->fn);
	if (!k->unit || !k->unit_of || !k->fn)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels", p->n_kernel);
	for (int i = 0; i < p->n_kernel; i++) {
		int u = 0;
		while (u < k->n_unit && strcmp(k->unit[u].file, p->kernel[i].file))
			u++;
		if (u == k->n_unit) {
			k->unit[k->n_unit++].file = p->kernel[i].file;
			file_join(&k->unit[u].source, k->opt.artifact, p->kernel[i].file);
		}
		k->unit_of[i] = u;
	}
	return LLMC_OK;
}

llmc_status
kernels_prepare(const Plan *plan, const KernelOptions *opt, Kernels **out, llmc_error *err)
{
	llmc_status status;
	Sha256 common;
	Kernels *k = calloc(1, sizeof *k);

	*out = NULL;
	if (!k)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	k->plan = plan;
	k->opt = *opt;
	if (!opt->artifact) {
		status = error_set(err, LLMC_E_INPUT, "the plan has kernels, but no folder to find their sources in");
		goto fail;
	}
	file_join(&k->root, opt->artifact, "kernels");
	TRY_GOTO(list_units(k, err));
	TRY_GOTO(cc_flags(plan->target, &k->flag, &k->flag_text, err));
	TRY_GOTO(file_check_trusted(opt->artifact, err));
	TRY_GOTO(file_check_trusted(strbuf_str(&k->root), err));
	sha256_init(&common);
	add_flags(&common, k);
	TRY_GOTO(add_headers(&common, strbuf_str(&k->root), err));
	for (int i = 0; i < k->n_unit; i++) {
		Sha256 sum = common;
		TRY_GOTO(add_file(&sum, strbuf_str(&k->unit[i].source), k->unit[i].file, err));
		sha256_hex(&sum, k->unit[i].source_key);
	}
	*out = k;
	return LLMC_OK;
fail:
	kernels_close(k);
	return status;
}

/* Where the cache has, or will have, each object that is not ready. */
static llmc_status
look_into_cache(Kernels *k, llmc_error *err)
{
	Strbuf dir = { 0 };
	llmc_status status;
	llmc_error why;
	char key[65], name[80];
	int damaged = 0;

	TRY_GOTO(cc_find(k->cc, sizeof k->cc, k->cc_version, sizeof k->cc_version, err));
	TRY_GOTO(file_cache_dir(&dir, err));
	strbuf_puts(&dir, "/kernels");
	if (dir.failed) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
		goto fail;
	}
	TRY_GOTO(file_mkdirs_private(strbuf_str(&dir), err));
	TRY_GOTO(file_check_trusted(strbuf_str(&dir), err));
	for (int i = 0; i < k->n_unit; i++) {
		Unit *u = &k->unit[i];
		if (u->ready)
			continue;
		Sha256 sum;
		sha256_init(&sum);
		sha256_add(&sum, u->source_key, 64);
		sha256_add(&sum, k->cc_version, strlen(k->cc_version));
		sha256_hex(&sum, key);
		snprintf(name, sizeof name, "%s.so", key);
		file_join(&u->object, strbuf_str(&dir), name);
		switch (object_check(strbuf_str(&u->object), u->source_key, &why)) {
		case LLMC_OK:
			u->ready = true;
			break;
		case LLMC_E_CHECK:
			if (damaged++ == 0)
				kernels_say(k, LLMC_LOG_WARNING, "%s: it is built again", why.text);
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

static llmc_status
load(Kernels *k, llmc_error *err)
{
	for (int i = 0; i < k->n_unit; i++) {
		Unit *u = &k->unit[i];
		u->handle = dlopen(strbuf_str(&u->object), RTLD_NOW | RTLD_LOCAL);
		if (!u->handle)
			return error_set(err, LLMC_E_MISSING, "cannot load the kernel %s: %s", u->file, dlerror());
	}
	for (int i = 0; i < k->plan->n_kernel; i++) {
		const PlanKernel *p = &k->plan->kernel[i];
		void *at = dlsym(k->unit[k->unit_of[i]].handle, p->symbol);
		if (!at)
			return error_set(err, LLMC_E_INPUT, "%s: has no function %s: compile the model again", p->file, p->symbol);
		memcpy(&k->fn[i], &at, sizeof at);
	}
	return LLMC_OK;
}

llmc_status
kernels_open(const Plan *plan, const KernelOptions *opt, Kernels **out, llmc_error *err)
{
	Kernels *k;
	llmc_status status;
	bool all = true;

	*out = NULL;
	TRY(kernels_prepare(plan, opt, &k, err));
	aot_use(k);
	for (int i = 0; i < k->n_unit; i++)
		all = all && k->unit[i].ready;
	if (!all) {
		TRY_GOTO(look_into_cache(k, err));
		TRY_GOTO(kernels_compile(k, err));
	}
	TRY_GOTO(load(k, err));
	*out = k;
	return LLMC_OK;
fail:
	kernels_close(k);
	return status;
}

void
kernels_close(Kernels *k)
{
	if (!k)
		return;
	for (int i = 0; i < k->n_unit; i++) {
		if (k->unit[i].handle)
			dlclose(k->unit[i].handle);
		strbuf_release(&k->unit[i].source);
		strbuf_release(&k->unit[i].object);
	}
	strbuf_release(&k->root);
	free(k->flag);
	free(k->flag_text);
	free(k->unit);
	free(k->unit_of);
	free(k->fn);
	free(k);
}

llmc_kernel *
kernels_find(const Kernels *k, int kernel)
{
	return k->fn[kernel];
}
