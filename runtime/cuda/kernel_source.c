/* Sources of kernels. Each header is expanded once, so one text is hashed, compiled and quoted in
 * messages; #line keeps the names and lines of the files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/file.h"
#include "base/sha256.h"
#include "runtime/build/kernel_build.h"
#include "runtime/cuda/cuda.h"

enum { MAX_SOURCE = 1 << 24, MAX_HEADERS = 64, MAX_DEPTH = 16 };

typedef struct Expand {
	const char *artifact; /* NULL: sources embedded in llmc */
	char seen[MAX_HEADERS][64];
	int n_seen;
	Strbuf *out;
} Expand;

static llmc_status expand(Expand *e, const char *text, const char *name, int depth,
                          llmc_error *err);

static llmc_status
read_header(const Expand *e, const char *name, Strbuf *text, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = LLMC_OK;

	if (!e->artifact) {
		strbuf_printf(&path, "templates/%s", name);
		const char *own = embed_find(strbuf_str(&path), NULL);
		if (own)
			strbuf_puts(text, own);
		else
			status = error_set(err, LLMC_E_BUG, "%s is not built into this llmc",
			                   strbuf_str(&path));
	} else {
		strbuf_printf(&path, "kernels/%s", name);
		status = build_check_folders(e->artifact, strbuf_str(&path), err);
		strbuf_clear(&path);
		strbuf_printf(&path, "%s/kernels/%s", e->artifact, name);
		if (status == LLMC_OK)
			status = file_check_trusted(strbuf_str(&path), err);
		if (status == LLMC_OK)
			status = file_read(strbuf_str(&path), MAX_SOURCE, text, err);
	}
	strbuf_release(&path);
	return status;
}

/* The path in `#include "PATH"`, of a header below templates/; false: not such a line. */
static bool
include_of(const char *line, size_t n, char name[64])
{
	static const char what[] = "#include \"";
	size_t k = sizeof what - 1;

	while (n && (*line == ' ' || *line == '\t'))
		line++, n--;
	if (n < k || strncmp(line, what, k))
		return false;
	const char *end = memchr(line + k, '"', n - k);
	size_t len = end ? (size_t)(end - line) - k : 0;
	if (!len || len >= 64)
		return false;
	memcpy(name, line + k, len);
	name[len] = 0;
	return *name != '/' && !strstr(name, "..");
}

static llmc_status
add_header(Expand *e, const char *name, int depth, llmc_error *err)
{
	Strbuf text = { 0 };
	llmc_status status;

	for (int i = 0; i < e->n_seen; i++)
		if (!strcmp(e->seen[i], name))
			return LLMC_OK;
	if (e->n_seen == MAX_HEADERS || depth == MAX_DEPTH)
		return error_set(err, LLMC_E_INPUT, "too many headers, or headers too deep, at %s",
		                 name);
	snprintf(e->seen[e->n_seen++], sizeof e->seen[0], "%s", name);
	TRY_GOTO(read_header(e, name, &text, err));
	strbuf_printf(e->out, "#line 1 \"%s\"\n", name);
	TRY_GOTO(expand(e, strbuf_str(&text), name, depth + 1, err));
fail:
	strbuf_release(&text);
	return status;
}

static llmc_status
expand(Expand *e, const char *text, const char *name, int depth, llmc_error *err)
{
	char header[64];
	int line = 1;

	for (const char *at = text; *at; line++) {
		size_t n = strcspn(at, "\n");
		if (include_of(at, n, header)) {
			TRY(add_header(e, header, depth, err));
			strbuf_printf(e->out, "#line %d \"%s\"\n", line + 1, name);
		} else {
			strbuf_add(e->out, at, n);
			strbuf_putc(e->out, '\n');
		}
		at += n + (at[n] == '\n');
	}
	return e->out->failed
	           ? error_set(err, LLMC_E_MEMORY, "out of memory for the source of %s", name)
	           : LLMC_OK;
}

llmc_status
cuda_source_read(const char *artifact, const char *file, Strbuf *out, llmc_error *err)
{
	Strbuf path = { 0 }, text = { 0 };
	Expand *e = calloc(1, sizeof *e);
	llmc_status status;

	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	e->artifact = artifact;
	e->out = out;
	file_join(&path, artifact, file);
	TRY_GOTO(file_check_trusted(strbuf_str(&path), err));
	TRY_GOTO(file_read(strbuf_str(&path), MAX_SOURCE, &text, err));
	TRY_GOTO(expand(e, strbuf_str(&text), file, 0, err));
fail:
	strbuf_release(&path);
	strbuf_release(&text);
	free(e);
	return status;
}

llmc_status
cuda_source_embedded(const char *file, Strbuf *out, llmc_error *err)
{
	char path[128];
	Expand *e = calloc(1, sizeof *e);

	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	snprintf(path, sizeof path, "templates/cuda/%s", file);
	const char *text = embed_find(path, NULL);
	e->out = out;
	llmc_status status =
	    text ? expand(e, text, file, 0, err)
	         : error_set(err, LLMC_E_MISSING, "%s is not built into this llmc", path);
	free(e);
	return status;
}

void
cuda_source_key(const Strbuf *source, const char *arch, char hex[65])
{
	const char *text = strbuf_str(source), *body = build_source_body(text);
	int abi = PLAN_STEP_ABI;
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, &abi, sizeof abi);
	sha256_add(&sum, nvrtc_options, strlen(nvrtc_options) + 1);
	sha256_add(&sum, arch, strlen(arch) + 1);
	sha256_add(&sum, body, source->len - (size_t)(body - text));
	sha256_hex(&sum, hex);
}
