/* Key of a kernel's object: the hash of its source, of the headers that it may include, of the
 * flags and of the kernel ABI. */
#include "base/text.h"
#include "runtime/cpu/cpu_kernels.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADERS = 256, MAX_DEPTH = 4 };

static llmc_status
add_file(Sha256 *sum, const char *path, const char *name, llmc_error *err)
{
	Strbuf text = { 0 };
	llmc_status status;

	TRY_GOTO(file_check_trusted(path, err));
	TRY_GOTO(file_read(path, MAX_SOURCE, &text, err));
	sha256_add(sum, name, strlen(name) + 1);
	const char *body = build_source_body(strbuf_str(&text));
	sha256_add(sum, body, text.len - (size_t)(body - strbuf_str(&text)));
fail:
	strbuf_release(&text);
	return status;
}

typedef struct HeaderList {
	char *name[MAX_HEADERS]; /* paths relative to the kernels folder */
	int n;
} HeaderList;

/* Add the headers of a folder and its subfolders. A folder that other users may write to is
 * rejected. */
static llmc_status
find_headers(HeaderList *h, const char *root, const char *folder, int depth, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = LLMC_OK;

	file_join(&path, root, folder);
	DIR *d = opendir(strbuf_str(&path));
	if (d && *folder)
		status = file_check_trusted(strbuf_str(&path), err);
	for (struct dirent *e;
	     status == LLMC_OK && d && h->n < MAX_HEADERS && (e = readdir(d)) != NULL;) {
		size_t len = strlen(e->d_name);
		strbuf_clear(&path);
		strbuf_printf(&path, "%s%s%s", folder, *folder ? "/" : "", e->d_name);
		if (*folder && len > 2 && !strcmp(e->d_name + len - 2, ".h")) {
			if ((h->name[h->n] = strdup(strbuf_str(&path))) != NULL)
				h->n++;
		} else if (e->d_name[0] != '.' && depth < MAX_DEPTH && !strchr(e->d_name, '.')) {
			status = find_headers(h, root, strbuf_str(&path), depth + 1, err);
		}
	}
	if (d)
		closedir(d);
	strbuf_release(&path);
	return status;
}

/* Headers that kernels may include: all below kernels/, sorted by path. */
static llmc_status
add_headers(Sha256 *sum, const char *root, llmc_error *err)
{
	Strbuf path = { 0 };
	HeaderList h = { .n = 0 };
	llmc_status status = find_headers(&h, root, "", 0, err);

	qsort(h.name, (size_t)h.n, sizeof *h.name, text_order);
	for (int i = 0; i < h.n; i++) {
		file_join(&path, root, h.name[i]);
		if (status == LLMC_OK)
			status = add_file(sum, strbuf_str(&path), h.name[i], err);
		free(h.name[i]);
	}
	strbuf_release(&path);
	return status;
}

static void
add_flags(Sha256 *sum, const CpuKernels *k)
{
	int abi = PLAN_STEP_ABI;

	sha256_add(sum, &abi, sizeof abi);
	sha256_add(sum, k->build.plan->target, strlen(k->build.plan->target) + 1);
	for (int i = 0; k->flag[i]; i++)
		sha256_add(sum, k->flag[i], strlen(k->flag[i]) + 1);
}

llmc_status
objects_common(const CpuKernels *k, Sha256 *common, llmc_error *err)
{
	sha256_init(common);
	add_flags(common, k);
	return add_headers(common, strbuf_str(&k->root), err);
}

llmc_status
object_key(const CpuKernels *k, const Sha256 *common, int unit, char hex[65], llmc_error *err)
{
	Sha256 sum = *common;

	TRY(add_file(&sum, strbuf_str(&k->object[unit].source), k->build.unit[unit].file, err));
	sha256_hex(&sum, hex);
	return LLMC_OK;
}
