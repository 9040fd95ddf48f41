/* Units of a plan, and their entries in the cache. */
#include "runtime/build/kernel_build.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"

enum { STALE_S = 3600 };

const char *
build_source_body(const char *text)
{
	const char *end = strncmp(text, "/* generated from ", 18) ? NULL : strstr(text, "*/");

	return end ? end + 2 : text;
}

llmc_status
build_check_folders(const char *artifact, const char *file, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = LLMC_OK;

	for (const char *at = file; status == LLMC_OK && (at = strchr(at, '/')) != NULL; at++) {
		strbuf_clear(&path);
		strbuf_printf(&path, "%s/%.*s", artifact, (int)(at - file), file);
		if (path.failed)
			status = error_set(err, LLMC_E_MEMORY, "out of memory");
		/* a missing file is reported when it is read */
		else if (file_exists(strbuf_str(&path)))
			status = file_check_trusted(strbuf_str(&path), err);
	}
	strbuf_release(&path);
	return status;
}

/* Delete temporary files by age, not by pid: a pid of another container may be in use here. */
void
build_sweep(const char *dir)
{
	DIR *d = opendir(dir);
	Strbuf path = { 0 };
	struct stat st;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (strncmp(e->d_name, "tmp.", 4) && !strstr(e->d_name, ".tmp."))
			continue;
		file_join(&path, dir, e->d_name);
		if (!path.failed && lstat(strbuf_str(&path), &st) == 0 && S_ISREG(st.st_mode) &&
		    time(NULL) - st.st_mtime > STALE_S)
			unlink(strbuf_str(&path));
	}
	if (d)
		closedir(d);
	strbuf_release(&path);
}

/* Several kernels of the plan may share a file. */
static int
add_unit(KernelBuild *b, const char *file)
{
	int u = 0;

	while (u < b->n_unit && strcmp(b->unit[u].file, file))
		u++;
	if (u == b->n_unit)
		b->unit[b->n_unit++].file = file;
	return u;
}

llmc_status
build_init(KernelBuild *b, const Plan *plan, const KernelBuildOptions *opt, const BuildKind *kind,
           void *target, const char *const *own, llmc_error *err)
{
	size_t n_own = 0;

	while (own && own[n_own])
		n_own++;
	*b = (KernelBuild){ .plan = plan, .opt = *opt, .kind = kind, .target = target };
	atomic_init(&b->next, 0);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->news, NULL);
	if (!opt->artifact)
		return error_set(err, LLMC_E_INPUT,
		                 "the plan has kernels, but no folder to find their sources in");
	TRY(file_check_trusted(opt->artifact, err));
	TRY(build_check_folders(opt->artifact, "kernels/common/", err));
	b->unit = calloc((size_t)plan->n_kernel + n_own + 1, sizeof *b->unit);
	b->unit_of = calloc((size_t)plan->n_kernel + 1, sizeof *b->unit_of);
	b->order = calloc((size_t)plan->n_kernel + n_own + 1, sizeof *b->order);
	if (!b->unit || !b->unit_of || !b->order)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels",
		                 plan->n_kernel);
	for (int i = 0; i < plan->n_kernel; i++)
		b->unit_of[i] = add_unit(b, plan->kernel[i].file);
	for (int i = 0; i < b->n_unit; i++)
		TRY(build_check_folders(opt->artifact, b->unit[i].file, err));
	for (size_t i = 0; i < n_own; i++)
		b->unit[b->n_unit++].file = own[i];
	return LLMC_OK;
}

void
build_release(KernelBuild *b)
{
	build_stop(b);
	for (int i = 0; i < b->n_unit; i++)
		cache_entry_release(&b->unit[i].entry);
	cache_close(&b->cache);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->news);
	free(b->unit);
	free(b->unit_of);
	free(b->order);
}

bool
build_all_ready(const KernelBuild *b)
{
	for (int i = 0; i < b->n_unit; i++)
		if (!b->unit[i].ready)
			return false;
	return true;
}

llmc_status
build_keep(KernelBuild *b, int unit, const void *data, size_t n, bool *kept, llmc_error *err)
{
	BuildUnit *u = &b->unit[unit];
	llmc_error why = { 0 };
	llmc_status status = LLMC_E_IO;

	if (b->shipping)
		status =
		    checked_write(strbuf_str(&u->entry.path), b->kind->mark, u->key, data, n, &why);
	else if (cache_keeps(&b->cache))
		status = cache_put(&b->cache, b->kind->suffix, u->cached, data, n,
		                   b->kind->contents(b->target, unit) ? NULL : &u->entry, &why);
	*kept = status == LLMC_OK;
	if (*kept)
		return LLMC_OK;
	if (b->shipping) {
		if (err)
			*err = why;
		return why.code;
	}
	strbuf_clear(&u->entry.path);
	pthread_mutex_lock(&b->lock);
	if (b->unkept.code == LLMC_OK)
		b->unkept = why;
	pthread_mutex_unlock(&b->lock);
	return LLMC_OK;
}

void
build_unlock(KernelBuild *b)
{
	for (int i = 0; i < b->n_unit; i++)
		cache_unlock(&b->unit[i].entry);
	if (b->todo)
		cache_trim(&b->cache);
}

static llmc_status
find_unit(KernelBuild *b, int unit, const void *compiler, size_t n, int *damaged, llmc_error *err)
{
	BuildUnit *u = &b->unit[unit];
	Sha256 sum;
	llmc_error why;

	sha256_init(&sum);
	sha256_add(&sum, u->key, 64);
	sha256_add(&sum, compiler, n);
	sha256_hex(&sum, u->cached);
	Strbuf *contents = b->kind->contents(b->target, unit);
	switch (cache_find(&b->cache, b->kind->suffix, u->cached, &u->entry, contents, &why)) {
	case LLMC_OK:
		u->ready = true;
		if (contents)
			cache_unlock(&u->entry);
		break;
	case LLMC_E_CHECK:
		if ((*damaged)++ == 0)
			log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
			         "%s: it is built again", why.text);
		break;
	case LLMC_E_INPUT: /* the file belongs to another user */
		return error_set(err, LLMC_E_IO, "%s", why.text);
	default:
		break;
	}
	if (!u->ready) /* a shipped file that does not fit is not used either */
		strbuf_clear(&u->entry.path);
	return LLMC_OK;
}

llmc_status
build_cached(KernelBuild *b, const void *compiler, size_t n, llmc_error *err)
{
	int damaged = 0;

	if (!cache_keeps(&b->cache) && cache_open(&b->cache, NULL, &b->unkept) == LLMC_E_INPUT)
		return error_set(err, LLMC_E_IO, "%s", b->unkept.text);
	for (int i = 0; i < b->n_unit; i++)
		if (!b->unit[i].ready)
			TRY(find_unit(b, i, compiler, n, &damaged, err));
	return LLMC_OK;
}
