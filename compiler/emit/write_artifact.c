/* Write an artifact's files to disk. Each file is written under a temporary name, then renamed;
 * plans are renamed last. A folder with a plan therefore always has all files that the plan
 * names. */
#include <string.h>

#include "base/file.h"
#include "compiler/compile.h"

static bool
is_plan(const char *path)
{
	return strncmp(path, "plan-", 5) == 0;
}

static llmc_status
write_one(const char *dir, const ArtifactFile *f, Strbuf *path, llmc_error *err)
{
	const char *slash = strrchr(f->path, '/');

	if (slash) {
		file_join(path, dir, "");
		strbuf_add(path, f->path, (size_t)(slash - f->path));
		if (!path->failed)
			TRY(file_mkdirs(strbuf_str(path), err));
	}
	file_join(path, dir, f->path);
	if (path->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory while writing %s", f->path);
	return file_write(strbuf_str(path), f->text, f->size, err);
}

static llmc_status
write_all(const Compiled *const *c, size_t n, const char *dir, Strbuf *path, llmc_error *err)
{
	file_join(path, dir, "kernels/common");
	if (path->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory while writing %s", dir);
	TRY(file_mkdirs(strbuf_str(path), err));
	for (int plans = 0; plans < 2; plans++)
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < c[i]->n_file; k++)
				if (is_plan(c[i]->file[k].path) == (plans == 1))
					TRY(write_one(dir, &c[i]->file[k], path, err));
	return LLMC_OK;
}

llmc_status
artifact_write(const Compiled *const *c, size_t n, const char *dir, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = write_all(c, n, dir, &path, err);

	strbuf_release(&path);
	return status;
}
