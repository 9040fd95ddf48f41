/* Image files of a prompt: --image of llmc run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static llmc_status
out_of_memory(llmc_error *err)
{
	snprintf(err->text, sizeof err->text, "out of memory for the images");
	return err->code = LLMC_E_MEMORY;
}

llmc_status
prompt_images_open(const Common *c, llmc_model *m, const List *files, PromptImages *out,
                   llmc_error *err)
{
	llmc_options o = LLMC_INIT(llmc_options);

	*out = (PromptImages){ 0 };
	if (!files->n)
		return LLMC_OK;
	o.device = c->device;
	o.arch = c->arch;
	o.n_threads = c->threads;
	o.cache_packed = c->cache_packed;
	llmc_status status = llmc_tower_open(m, &o, &out->tower, err);
	if (status != LLMC_OK)
		return status;
	out->image = calloc(files->n, sizeof(llmc_tower_image *));
	out->part = calloc(files->n, sizeof *out->part);
	if (!out->image || !out->part)
		return out_of_memory(err);
	for (; out->n < files->n; out->n++) {
		size_t n = 0;
		char *bytes = read_all(files->v[out->n], &n);
		llmc_error own = { 0 };
		if (!bytes)
			return err->code = LLMC_E_INPUT; /* read_all has printed the error */
		status = llmc_tower_read(out->tower, bytes, n, NULL, &out->image[out->n], &own);
		free(bytes);
		if (status != LLMC_OK) {
			snprintf(err->text, sizeof err->text, "%.200s: %.1800s", files->v[out->n],
			         own.text);
			return err->code = status;
		}
		out->part[out->n] = LLMC_INIT(llmc_image_part);
		llmc_tower_image_part(out->image[out->n], &out->part[out->n]);
	}
	return LLMC_OK;
}

llmc_status
prompt_images_text(const PromptImages *im, bool chat, char **text, size_t *n_bytes, llmc_error *err)
{
	char *made = NULL;
	size_t size = 0, used = 0, found = 0;

	if (!im->n)
		return LLMC_OK;
	const char *mark = llmc_tower_placeholder(im->tower);
	for (const char *p = *text; *mark && (p = strstr(p, mark)); p += strlen(mark))
		found++;
	if (found > im->n || (chat && found < im->n)) {
		snprintf(err->text, sizeof err->text,
		         "the prompt has %zu placeholders %s for %zu images", found, mark, im->n);
		return err->code = LLMC_E_INPUT;
	}
	FILE *f = open_memstream(&made, &size);
	if (!f)
		return out_of_memory(err);
	for (; used + found < im->n; used++)
		fputs(llmc_tower_image_text(im->image[used]), f);
	const char *rest = *text;
	for (const char *p; used < im->n && (p = strstr(rest, mark)); rest = p + strlen(mark)) {
		fwrite(rest, 1, (size_t)(p - rest), f);
		fputs(llmc_tower_image_text(im->image[used++]), f);
	}
	fputs(rest, f);
	if (fclose(f) != 0 || !made) {
		free(made);
		return out_of_memory(err);
	}
	free(*text);
	*text = made;
	*n_bytes = size;
	return LLMC_OK;
}

void
prompt_images_close(PromptImages *im)
{
	for (size_t i = 0; i < im->n; i++)
		llmc_tower_image_close(im->image[i]);
	free(im->image);
	free(im->part);
	llmc_tower_close(im->tower);
	*im = (PromptImages){ 0 };
}
