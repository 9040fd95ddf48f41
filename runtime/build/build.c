/* Units of a plan, and what the cache has of them. */
#include "runtime/build/build.h"

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
		else if (file_exists(strbuf_str(&path))) /* else reading will tell */
			status = file_check_trusted(strbuf_str(&path), err);
	}
	strbuf_release(&path);
	return status;
}

/* By age: in another container a number is another process. */
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
		if (!path.failed && lstat(strbuf_str(&path), &st) == 0 && S_ISREG(st.st_mode) && time(NULL) - st.st_mtime > STALE_S)
			unlink(strbuf_str(&path));
	}
	if (d)
		closedir(d);
	strbuf_release(&path);
}

/* Several kernels of the plan may lie in one file. */
static int
add_unit(Build *b, const char *file)
{
	int u = 0;

	while (u < b->n_unit && strcmp(b->unit[u].file, file))
		u++;
	if (u == b->n_unit)
		b->unit[b->n_unit++].file = file;
	return u;
}

llmc_status
build_init(Build *b, const Plan *plan, const BuildOptions *opt, const BuildKind *kind, void *target, const char *const *own,
           llmc_error *err)
{
	size_t n_own = 0;

	while (own && own[n_own])
		n_own++;
	*b = (Build){ .plan = plan, .opt = *opt, .kind = kind, .target = target };
	atomic_init(&b->next, 0);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->news, NULL);
	if (!opt->artifact)
		return error_set(err, LLMC_E_INPUT, "the plan has kernels, but no folder to find their sources in");
	TRY(file_check_trusted(opt->artifact, err));
	TRY(build_check_folders(opt->artifact, "kernels/common/", err));
	b->unit = calloc((size_t)plan->n_kernel + n_own + 1, sizeof *b->unit);
	b->unit_of = calloc((size_t)plan->n_kernel + 1, sizeof *b->unit_of);
	b->order = calloc((size_t)plan->n_kernel + n_own + 1, sizeof *b->order);
	if (!b->unit || !b->unit_of || !b->order)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d kernels", plan->n_kernel);
	for (int i = 0; i < plan->n_kernel; i++)
		b->unit_of[i] = add_unit(b, plan->kernel[i].file);
	for (int i = 0; i < b->n_unit; i++)
		TRY(build_check_folders(opt->artifact, b->unit[i].file, err));
	for (size_t i = 0; i < n_own; i++)
		b->unit[b->n_unit++].file = own[i];
	return LLMC_OK;
}

void
build_release(Build *b)
{
	build_stop(b);
	for (int i = 0; i < b->n_unit; i++)
		strbuf_release(&b->unit[i].path);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->news);
	free(b->unit);
	free(b->unit_of);
	free(b->order);
}

bool
build_all_ready(const Build *b)
{
	for (int i = 0; i < b->n_unit; i++)
		if (!b->unit[i].ready)
			return false;
	return true;
}

llmc_status
build_keep(Build *b, int unit, const char mark[8], const void *data, size_t n, bool *kept, llmc_error *err)
{
	const BuildUnit *u = &b->unit[unit];
	llmc_error why = { 0 };

	*kept = u->path.len && sealed_write(strbuf_str(&u->path), mark, u->key, data, n, &why) == LLMC_OK;
	if (*kept)
		return LLMC_OK;
	if (b->shipping) {
		if (err)
			*err = why;
		return why.code;
	}
	pthread_mutex_lock(&b->lock);
	if (b->unkept.code == LLMC_OK)
		b->unkept = why;
	pthread_mutex_unlock(&b->lock);
	return LLMC_OK;
}

llmc_status
build_cached(Build *b, const void *compiler, size_t n, llmc_error *err)
{
	Strbuf dir = { 0 };
	llmc_status status = LLMC_OK;
	llmc_error why;
	char key[65], name[80];
	int damaged = 0;

	for (int i = 0; i < b->n_unit; i++) /* of files that were shipped, and do not fit */
		if (!b->unit[i].ready)
			strbuf_clear(&b->unit[i].path);
	if (file_cache_dir(&dir, &b->unkept) != LLMC_OK)
		return LLMC_OK;
	strbuf_puts(&dir, "/kernels");
	if (dir.failed) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
		goto fail;
	}
	if (file_mkdirs_private(strbuf_str(&dir), &b->unkept) != LLMC_OK)
		goto fail; /* nothing to find, and nothing will be kept */
	TRY_GOTO(file_check_trusted(strbuf_str(&dir), err));
	if (!build_all_ready(b))
		build_sweep(strbuf_str(&dir));
	for (int i = 0; i < b->n_unit; i++) {
		BuildUnit *u = &b->unit[i];
		Sha256 sum;
		if (u->ready)
			continue;
		sha256_init(&sum);
		sha256_add(&sum, u->key, 64);
		sha256_add(&sum, compiler, n);
		sha256_hex(&sum, key);
		snprintf(name, sizeof name, "%s%s", key, b->kind->suffix);
		file_join(&u->path, strbuf_str(&dir), name);
		switch (b->kind->take(b->target, i, &why)) {
		case LLMC_OK:
			u->ready = true;
			break;
		case LLMC_E_CHECK:
			if (damaged++ == 0)
				log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING, "%s: it is built again", why.text);
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
